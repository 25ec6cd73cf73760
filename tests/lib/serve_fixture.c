#include "tests/lib/serve_fixture.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ARGUMENTS = 64, WAIT_STEPS = 2000, STEP_MS = 10, ANSWER_SECONDS = 60 };

static unsigned answer_seconds = ANSWER_SECONDS;

void serve_answer_limit(unsigned seconds)
{
	answer_seconds = seconds;
}

static const char *extra_headers = "";

void serve_extra_headers(const char *lines)
{
	extra_headers = lines != NULL ? lines : "";
}

static void nap(void)
{
	const struct timespec pause = {0, STEP_MS * 1000000L};

	nanosleep(&pause, NULL);
}

static void print_log(const struct serve_fixture *fixture)
{
	char line[512];
	FILE *file = fopen(fixture->log, "r");

	while (file != NULL && fgets(line, sizeof line, file) != NULL)
		fprintf(stderr, "  worker: %s", line);
	if (file != NULL) fclose(file);
}

static int port_in_log(const struct serve_fixture *fixture)
{
	static const char mark[] = "listening on http://127.0.0.1:";
	char line[512];
	FILE *file = fopen(fixture->log, "r");
	int port = 0;

	while (file != NULL && port == 0 && fgets(line, sizeof line, file) != NULL) {
		const char *at = strstr(line, mark);

		if (at != NULL && strchr(line, '\n') != NULL) port = atoi(at + strlen(mark));
	}
	if (file != NULL) fclose(file);
	return port;
}

static void run_worker(int output, const char *const *arguments)
{
	static const char *const first[] = {
	    KV_GPU_WORKER, "serve", "--listen", "127.0.0.1:0", "--threads", "1", NULL};
	char *all[MAX_ARGUMENTS + 1] = {0};
	int count = 0;

	for (int i = 0; first[i] != NULL; i++)
		all[count++] = (char *)(uintptr_t)first[i];
	for (int i = 0; arguments[i] != NULL && count < MAX_ARGUMENTS; i++)
		all[count++] = (char *)(uintptr_t)arguments[i];
	dup2(output, 1);
	dup2(output, 2);
	close(output);
	/* A test that is killed takes its worker along. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	execv(all[0], all);
	_exit(127);
}

bool serve_fixture_start(struct serve_fixture *fixture, const char *const *arguments, bool ready)
{
	const char *base = getenv("TMPDIR");
	int output;

	memset(fixture, 0, sizeof *fixture);
	/* A new file: process ids come again, and an old log names an old port. */
	snprintf(fixture->log, sizeof fixture->log, "%s/clusterkv-serve-XXXXXX",
	    base != NULL && strlen(base) < 60 ? base : "/tmp");
	output = mkstemp(fixture->log);
	if (output < 0) {
		perror(fixture->log);
		return false;
	}
	fixture->pid = fork();
	if (fixture->pid == 0) run_worker(output, arguments);
	close(output);
	if (fixture->pid < 0) return false;
	for (int i = 0; i < WAIT_STEPS && fixture->port == 0; i++) {
		if (waitpid(fixture->pid, NULL, WNOHANG) != 0) {
			fixture->pid = 0;
			break;
		}
		fixture->port = port_in_log(fixture);
		if (fixture->port == 0) nap();
	}
	if (fixture->port != 0 && (!ready || serve_wait_status(fixture, "ok"))) return true;
	print_log(fixture);
	return false;
}

void serve_fixture_signal(const struct serve_fixture *fixture, int number)
{
	if (fixture->pid > 0) kill(fixture->pid, number);
}

int serve_fixture_wait(struct serve_fixture *fixture)
{
	int status = 0;

	if (fixture->pid <= 0) return -1;
	for (int i = 0; i < WAIT_STEPS; i++) {
		if (waitpid(fixture->pid, &status, WNOHANG) == fixture->pid) {
			fixture->pid = 0;
			return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
		}
		nap();
	}
	fprintf(stderr, "the worker did not end\n");
	kill(fixture->pid, SIGKILL);
	waitpid(fixture->pid, NULL, 0);
	fixture->pid = 0;
	return -1;
}

bool serve_fixture_stop(struct serve_fixture *fixture, bool failed)
{
	int code = 0;

	if (fixture->pid > 0) {
		kill(fixture->pid, SIGTERM);
		code = serve_fixture_wait(fixture);
		if (code != 0) fprintf(stderr, "the worker ended with %d\n", code);
	}
	if (failed || code != 0) print_log(fixture);
	unlink(fixture->log);
	return code == 0;
}

static bool send_all(int fd, const char *bytes, size_t size)
{
	while (size > 0) {
		ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR) continue;
		if (sent <= 0) return false;
		bytes += sent;
		size -= (size_t)sent;
	}
	return true;
}

bool serve_call_open(struct serve_call *call, const struct serve_fixture *fixture,
    const char *method, const char *path, const char *body)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	const struct timeval limit = {(time_t)answer_seconds, 0};
	char head[1024];

	memset(call, 0, sizeof *call);
	address.sin_port = htons((uint16_t)fixture->port);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	call->fd = socket(AF_INET, SOCK_STREAM, 0);
	if (call->fd < 0) return false;
	setsockopt(call->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	snprintf(head, sizeof head,
	    "%s %s HTTP/1.1\r\nHost: test\r\nConnection: close\r\n%sContent-Length: %zu\r\n\r\n",
	    method, path, extra_headers, body != NULL ? strlen(body) : 0);
	if (connect(call->fd, (struct sockaddr *)&address, sizeof address) == 0 &&
	    send_all(call->fd, head, strlen(head)) &&
	    (body == NULL || send_all(call->fd, body, strlen(body))))
		return true;
	serve_call_close(call);
	return false;
}

/* What the socket has, once: its bytes' number, 0 at the end, -1 when none came in time. */
static ssize_t read_more(struct serve_call *call, int flags)
{
	ssize_t got;

	if (call->length + 65536 > call->capacity) {
		char *grown = realloc(call->raw, call->capacity * 2 + 131072);

		if (grown == NULL) return -1;
		call->raw = grown;
		call->capacity = call->capacity * 2 + 131072;
	}
	do
		got = recv(call->fd, call->raw + call->length, 65535, flags);
	while (got < 0 && errno == EINTR);
	if (got < 0) return -1;
	call->length += (size_t)got;
	call->raw[call->length] = '\0';
	return got;
}

bool serve_call_read(struct serve_call *call, const char *word)
{
	for (;;) {
		ssize_t got;

		if (word != NULL && call->raw != NULL && strstr(call->raw, word) != NULL) return true;
		got = read_more(call, 0);
		if (got <= 0) return got == 0 && word == NULL;
	}
}

bool serve_call_tokens(struct serve_call *call, uint32_t tokens)
{
	static const char mark[] = "\"tokens\":";
	size_t from = 0;

	for (;;) {
		const char *at = call->raw != NULL ? call->raw + from : NULL;

		while (at != NULL && (at = strstr(at, mark)) != NULL) {
			at += strlen(mark);
			if (strtoul(at, NULL, 10) >= tokens) return true;
		}
		/* What was cut off is looked at again. */
		from = call->length > 64 ? call->length - 64 : 0;
		if (read_more(call, 0) <= 0) return false;
	}
}

bool serve_call_ended(struct serve_call *call)
{
	ssize_t got;

	do
		got = read_more(call, MSG_DONTWAIT);
	while (got > 0);
	return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

void serve_call_close(struct serve_call *call)
{
	if (call->fd >= 0) close(call->fd);
	free(call->raw);
	memset(call, 0, sizeof *call);
	call->fd = -1;
}

/* Take the chunk lengths out, in place. */
static bool unchunk(char *body)
{
	char *from = body, *to = body;

	for (;;) {
		char *line = strstr(from, "\r\n");
		size_t size = strtoul(from, NULL, 16);

		if (line == NULL) return false;
		if (size == 0) break;
		if (strlen(line + 2) < size + 2) return false;
		memmove(to, line + 2, size);
		to += size;
		from = line + 2 + size + 2;
	}
	*to = '\0';
	return true;
}

bool serve_call_finish(struct serve_call *call, struct serve_reply *reply)
{
	bool whole = serve_call_read(call, NULL);
	char *split = call->raw != NULL ? strstr(call->raw, "\r\n\r\n") : NULL;

	memset(reply, 0, sizeof *reply);
	if (split == NULL || strncmp(call->raw, "HTTP/1.1 ", 9) != 0) {
		serve_call_close(call);
		return false;
	}
	*split = '\0';
	reply->code = atoi(call->raw + 9);
	reply->body = split + 4;
	reply->head = call->raw;
	call->raw = NULL;
	serve_call_close(call);
	if (strstr(reply->head, "Transfer-Encoding: chunked") != NULL)
		whole = unchunk(reply->body) && whole;
	reply->json = json_loads(reply->body, JSON_ALLOW_NUL, NULL);
	if (!whole) serve_reply_deinit(reply);
	return whole;
}

bool serve_ask(const struct serve_fixture *fixture, const char *method, const char *path,
    const char *body, struct serve_reply *reply)
{
	struct serve_call call;

	memset(reply, 0, sizeof *reply);
	return serve_call_open(&call, fixture, method, path, body) && serve_call_finish(&call, reply);
}

void serve_reply_deinit(struct serve_reply *reply)
{
	json_decref(reply->json);
	free(reply->head);
	memset(reply, 0, sizeof *reply);
}

static void add_event(struct serve_stream *stream, const char *line, size_t length)
{
	json_t *event = json_loadb(line, length, JSON_ALLOW_NUL, NULL);
	const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
	const json_t *delta = json_object_get(choice, "delta");
	const json_t *text =
	    delta != NULL ? json_object_get(delta, "content") : json_object_get(choice, "text");
	const char *sequence =
	    json_string_value(json_object_get(json_object_get(event, "clusterkv"), "sequence"));
	char *grown;

	if (event == NULL) return;
	if (stream->events++ == 0 && sequence != NULL)
		snprintf(stream->sequence, sizeof stream->sequence, "%s", sequence);
	grown = realloc(stream->text, stream->text_length + json_string_length(text) + 1);
	if (grown != NULL) {
		if (text != NULL)
			memcpy(grown + stream->text_length, json_string_value(text), json_string_length(text));
		stream->text = grown;
		stream->text_length += json_string_length(text);
		grown[stream->text_length] = '\0';
	}
	json_decref(stream->last);
	stream->last = event;
}

bool serve_stream_parse(const struct serve_reply *reply, struct serve_stream *stream)
{
	memset(stream, 0, sizeof *stream);
	stream->text = calloc(1, 1);
	if (stream->text == NULL || strstr(reply->head, "text/event-stream") == NULL) return false;
	for (const char *line = reply->body; *line != '\0';) {
		const char *end = strchr(line, '\n');

		if (end == NULL) return false;
		stream->done = strncmp(line, "data: [DONE]\n", 13) == 0 || (stream->done && end == line);
		if (line[0] == ':') stream->comments++;
		if (strncmp(line, "data: {", 7) == 0) add_event(stream, line + 6, (size_t)(end - line - 6));
		line = end + 1;
	}
	return true;
}

void serve_stream_deinit(struct serve_stream *stream)
{
	json_decref(stream->last);
	free(stream->text);
	memset(stream, 0, sizeof *stream);
}

static bool wait_health(
    const struct serve_fixture *fixture, const char *name, const char *word, int value)
{
	for (int i = 0; i < WAIT_STEPS; i++) {
		struct serve_reply reply;
		const json_t *field;
		bool same = false;

		if (serve_ask(fixture, "GET", "/health", NULL, &reply)) {
			field = json_object_get(reply.json, name);
			same = word != NULL ? json_is_string(field) && !strcmp(json_string_value(field), word)
			                    : json_is_integer(field) && json_integer_value(field) == value;
		}
		serve_reply_deinit(&reply);
		if (same) return true;
		nap();
	}
	fprintf(stderr, "health never said %s %s %d\n", name, word != NULL ? word : "", value);
	return false;
}

bool serve_wait_number(const struct serve_fixture *fixture, const char *name, int value)
{
	return wait_health(fixture, name, NULL, value);
}

bool serve_wait_status(const struct serve_fixture *fixture, const char *word)
{
	return wait_health(fixture, "status", word, 0);
}

char *serve_long_answer(const struct serve_fixture *fixture, long *hit_tokens)
{
	return serve_answer_to(fixture,
	    "you and the one that is in the box of a hat on the hill to be at sea you "
	    "and the one that is in the box of a hat on the hill to be at sea you and the one that is "
	    "in the box of a hat on the hill to be at sea",
	    hit_tokens);
}

char *serve_answer_to(const struct serve_fixture *fixture, const char *prompt, long *hit_tokens)
{
	char body[1024];
	int steps = 20000 / STEP_MS;
	struct serve_reply reply = {0};
	const json_t *choice;
	char *text = NULL;

	snprintf(body, sizeof body,
	    "{\"prompt\":\"%s\",\"temperature\":0,\"ignore_end\":true,\"max_tokens\":40}", prompt);
	while (serve_ask(fixture, "POST", "/v1/completions", body, &reply) && reply.code != 200 &&
	       steps-- > 0) {
		serve_reply_deinit(&reply);
		nap();
	}
	choice = json_array_get(json_object_get(reply.json, "choices"), 0);
	if (reply.code == 200 && json_object_get(choice, "text"))
		text = strdup(json_string_value(json_object_get(choice, "text")));
	*hit_tokens = (long)json_integer_value(
	    json_object_get(json_object_get(reply.json, "clusterkv"), "prefix_hit_tokens"));
	serve_reply_deinit(&reply);
	return text;
}
