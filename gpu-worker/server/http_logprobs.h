/* What the model thought of an answer's tokens, in OpenAI's two shapes. */
#ifndef GW_SERVER_HTTP_LOGPROBS_H
#define GW_SERVER_HTTP_LOGPROBS_H

#include "gpu-worker/server/session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* records[from, to) as the `logprobs` of a choice, a new reference; NULL when out of memory.
 * *text_offset: characters of the answer before them, moved on by theirs. A token's text is shown
 * with U+FFFD for bytes that are no whole character; a chat's has the bytes beside it. */
json_t *gw_logprobs_json(const struct gw_tokenizer *tokenizer, int chat,
    const struct gw_token_record *records, uint32_t from, uint32_t to, size_t *text_offset);

#ifdef __cplusplus
}
#endif
#endif
