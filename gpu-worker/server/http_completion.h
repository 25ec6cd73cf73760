/* What a client is told: bodies in OpenAI's shape, whole or as server-sent events. */
#ifndef GW_SERVER_HTTP_COMPLETION_H
#define GW_SERVER_HTTP_COMPLETION_H

#include "common/base/request_id.h"
#include "common/runtime/text_buffer.h"
#include "gpu-worker/server/session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What all parts of one answer repeat. */
struct gw_answer {
	char id[KV_REQUEST_ID_BYTES]; /* "cmpl-…" */
	char sequence[64]; /* "" until it is known */
	const char *model;
	int64_t created; /* seconds since 1970 */
	int chat;
	uint32_t have_tokens; /* left out of the answer's tokens */
	int usage_event;      /* usage comes in an event of its own, and not in the last one */
};

/* One of the answers to a prompt. */
struct gw_choice_view {
	uint32_t index;
	const char *text;
	size_t length;
	enum gw_finish finish;
	const json_t *report; /* gw_session_report */
	json_t *logprobs;     /* NULL: not asked for */
};

/* All append to `out`, whose status tells whether that worked. References of `logprobs` and `usage`
 * are taken, NULL is allowed; everything else is borrowed. */

/* A choice's first event: its sequence's id, and how much of the prompt was found. */
void gw_answer_first(struct kv_text_buffer *out, const struct gw_answer *answer, uint32_t index,
    uint32_t prompt_tokens, uint32_t prefix_hit);
/* A comment line that clients ignore unless they draw a bar. */
void gw_answer_progress(struct kv_text_buffer *out, uint64_t done, uint64_t total);
/* New text of a choice; `tokens` of its answer are behind it. */
void gw_answer_text(struct kv_text_buffer *out, const struct gw_answer *answer,
    const struct gw_choice_view *choice, uint32_t tokens);
/* A choice's last event; `text` is not looked at. `usage`: in the last of all, without usage_event.
 */
void gw_answer_last(struct kv_text_buffer *out, const struct gw_answer *answer,
    const struct gw_choice_view *choice, json_t *usage);
/* The end mark, with usage_event behind an event that has the usage only. */
void gw_answer_end(struct kv_text_buffer *out, const struct gw_answer *answer, json_t *usage);
/* The whole answer as one body. */
void gw_answer_whole(struct kv_text_buffer *out, const struct gw_answer *answer,
    const struct gw_choice_view *choices, uint32_t count, json_t *usage);

/* The usage of all choices, `each` to a prompt, a new reference: a prompt counts once. */
json_t *gw_answer_usage(const struct gw_choice_view *choices, uint32_t count, uint32_t each);

struct gw_http_error {
	unsigned code;    /* HTTP status */
	const char *type; /* OpenAI's error type */
	const char *name; /* OpenAI's error code, or NULL */
};

/* How a status is told. Limits mean another thing where the engine met them: `by_engine`. */
struct gw_http_error gw_http_error_of(enum kv_status status, int by_engine);
/* The field that is at fault, for `param` of a body: "top_p" where the message is "top_p: 2 is …",
 * or what the error's name says. False when there is none. */
enum { GW_PARAM_BYTES = 64 };
int gw_error_param(
    const struct gw_http_error *error, const char *message, char param[GW_PARAM_BYTES]);
/* A body, or with `event` an event and the end mark. `sequence` may be "". */
void gw_error_body(struct kv_text_buffer *out, const struct gw_http_error *error,
    const char *message, const char *sequence, int event);

#ifdef __cplusplus
}
#endif
#endif
