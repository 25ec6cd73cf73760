/* A real `gpu-worker serve` with a tiny model, and an HTTP client of plain sockets, for tests. */
#ifndef TESTS_LIB_SERVE_FIXTURE_H
#define TESTS_LIB_SERVE_FIXTURE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct serve_fixture {
	char log[128];
	pid_t pid; /* 0: not running */
	int port;
};

/* Start it on a free port of the loopback address with the NULL-terminated `arguments`, and wait
 * until it listens (and, with `ready`, until its health is ok). False after printing its log. */
bool serve_fixture_start(struct serve_fixture *fixture, const char *const *arguments, bool ready);
void serve_fixture_signal(const struct serve_fixture *fixture, int number);
/* Wait for its end: its exit code, -1 for a signal or when it did not end (it is killed then). */
int serve_fixture_wait(struct serve_fixture *fixture);
/* SIGTERM and wait; prints the log when `failed` or when the code is not 0. */
bool serve_fixture_stop(struct serve_fixture *fixture, bool failed);

/* A request that was sent, and what has been read of its answer. */
struct serve_call {
	int fd;
	char *raw;
	size_t length, capacity;
};

/* Send a request; `body` NULL for none. False when there is no connection. */
bool serve_call_open(struct serve_call *call, const struct serve_fixture *fixture,
    const char *method, const char *path, const char *body);
/* Read until `word` has come, or to the end with NULL. False at the end or after 60 s without it.
 */
bool serve_call_read(struct serve_call *call, const char *word);
/* Read a stream until an event says that there are as many tokens. False as above. */
bool serve_call_tokens(struct serve_call *call, uint32_t tokens);
/* Read what has come; true when that was all of it. Does not wait. */
bool serve_call_ended(struct serve_call *call);
void serve_call_close(struct serve_call *call);
/* Header lines, each with its end, of calls that are opened from now on; NULL: none. Borrowed. */
void serve_extra_headers(const char *lines);
/* Another limit than 60 s for what is read from calls that are opened from now on. */
void serve_answer_limit(unsigned seconds);

struct serve_reply {
	int code;
	char *head, *body; /* terminated; the body without its chunks */
	json_t *json;      /* the body where it is JSON */
};

/* Read to the end and take apart. Closes the call. */
bool serve_call_finish(struct serve_call *call, struct serve_reply *reply);
/* Send and finish in one. */
bool serve_ask(const struct serve_fixture *fixture, const char *method, const char *path,
    const char *body, struct serve_reply *reply);
void serve_reply_deinit(struct serve_reply *reply);
/* The answer of 40 tokens to a prompt of more than a segment of 64, which the caller frees, and how
 * many of its tokens were found; asked again while the worker has no store, for 20 s. NULL when
 * it did not come. */
char *serve_long_answer(const struct serve_fixture *fixture, long *hit_tokens);
/* The same to this prompt, in words that JSON takes as they are. */
char *serve_answer_to(const struct serve_fixture *fixture, const char *prompt, long *hit_tokens);

/* A streamed answer taken apart; all NULL or 0 where it was not there. */
struct serve_stream {
	char *text; /* of all events together; a model may say NUL bytes */
	size_t text_length;
	char sequence[64]; /* of the first event */
	json_t *last;      /* the last event before the end mark */
	unsigned events, comments;
	bool done; /* the end mark came last */
};

bool serve_stream_parse(const struct serve_reply *reply, struct serve_stream *stream);
void serve_stream_deinit(struct serve_stream *stream);

/* Wait until /health says `name`: `value` (or the status word), for at most 20 s. */
bool serve_wait_number(const struct serve_fixture *fixture, const char *name, int value);
bool serve_wait_status(const struct serve_fixture *fixture, const char *word);

#ifdef __cplusplus
}
#endif
#endif
