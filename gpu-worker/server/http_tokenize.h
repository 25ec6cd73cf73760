/* POST /tokenize and /detokenize: a prompt as the model reads it, and back. */
#ifndef GW_SERVER_HTTP_TOKENIZE_H
#define GW_SERVER_HTTP_TOKENIZE_H

#include "common/runtime/text_buffer.h"
#include "gpu-worker/server/http_request.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The answer to a body, appended to `out`: {"tokens": […], "count", "max_model_len"} of a prompt or
 * of messages, or {"prompt": "…"} of tokens, where bytes that are no whole character become U+FFFD.
 * Errors as gw_http_request_parse. Thread-safe. */
enum kv_status gw_http_tokenize(const struct gw_http_model *model, struct kv_allocator *allocator,
    const char *body, size_t length, struct kv_text_buffer *out);
enum kv_status gw_http_detokenize(const struct gw_http_model *model, struct kv_allocator *allocator,
    const char *body, size_t length, struct kv_text_buffer *out);

#ifdef __cplusplus
}
#endif
#endif
