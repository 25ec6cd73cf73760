/* What a client asks for: the JSON body of a completion, checked field by field. */
#ifndef GW_SERVER_HTTP_REQUEST_H
#define GW_SERVER_HTTP_REQUEST_H

#include "gpu-worker/server/http_fields.h"
#include "gpu-worker/server/session.h"
#include "gpu-worker/text/chat_template.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
	GW_DEFAULT_ANSWER_TOKENS = 512,
	GW_MAX_CHOICES = 16,
	GW_MAX_ANSWERS = 128, /* of one request: prompts × choices */
	GW_MAX_WHOLE_LOGPROBS = 1 << 18 /* of an answer that is no stream: some 700 bytes each */
};

/* What is served. Borrowed by all who get it. */
struct gw_http_model {
	const char *name;
	int64_t created; /* when its file was changed last: seconds since 1970 */
	const struct gw_tokenizer *tokenizer;
	enum gw_chat_format chat_format;
	uint32_t vocabulary, context;
};

/* One of a list of prompts. */
struct gw_http_prompt {
	int32_t *tokens; /* owned */
	uint32_t count, max_tokens;
};

struct gw_http_request {
	struct kv_allocator *allocator;
	json_t *body;    /* the fields whose texts `session` borrows */
	int32_t *tokens; /* the prompt, owned; NULL with resume, and with a list of prompts */
	struct gw_http_prompt *prompts; /* [prompt_count], of a list of several; else NULL */
	uint32_t prompt_count;          /* at least 1 */
	const char *stops[GW_MAX_STOPS];
	struct gw_session_request session;
	uint32_t choices; /* answers to each prompt, 1 to GW_MAX_CHOICES */
	int logprobs;     /* records are wanted; how many others beside each: session.top_logprobs */
	int chat, stream;
	int seeded;      /* the client chose the seed */
	int usage_event; /* stream_options.include_usage: usage comes in an event of its own */
};

/* Parse and tokenize. `chat`: the body has messages, else a prompt. KV_INVALID names the field that
 * is wrong, unknown, or asks for what there is not (http_fields.h): the message begins with it and
 * a colon; KV_NOT_FOUND: a model that is
 * not the served one; KV_LIMIT: prompt and answer do not fit into the context; KV_UNSUPPORTED:
 * messages for a model whose chat template is not known. Thread-safe. On success the caller calls
 * gw_http_request_deinit; `request` must not be moved. */
enum kv_status gw_http_request_parse(struct gw_http_request *request,
    struct kv_allocator *allocator, const struct gw_http_model *model, int chat, const char *body,
    size_t length);
/* The same for bodies that are about tokens alone: `place` is GW_FIELDS_TOKENIZE (a prompt or
 * messages) or GW_FIELDS_DETOKENIZE (tokens). Of `request` body, tokens and session.token_count are
 * set. */
enum kv_status gw_http_tokens_parse(struct gw_http_request *request, struct kv_allocator *allocator,
    const struct gw_http_model *model, enum gw_field_place place, const char *body, size_t length);
void gw_http_request_deinit(struct gw_http_request *request); /* zeroed is allowed */

#ifdef __cplusplus
}
#endif
#endif
