/* Chat templates: recognised by content, rendered by our own code. */
#ifndef GW_TEXT_CHAT_TEMPLATE_H
#define GW_TEXT_CHAT_TEMPLATE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "gpu-worker/text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum gw_chat_format { GW_CHAT_UNKNOWN, GW_CHAT_CHATML, GW_CHAT_CHATML_SMOLLM, GW_CHAT_CHATML_QWEN };

struct gw_chat_message {
	const char *role;    /* "system", "user", "assistant" */
	const char *content; /* UTF-8, terminated */
};

/* The format of a model file's template text (NULL or unknown: GW_CHAT_UNKNOWN). */
enum gw_chat_format gw_chat_detect(const char *template_text, size_t length);

/* Render as text (to be compared with goldens). *text is allocated, owned by the caller. */
enum kv_status gw_chat_render(enum gw_chat_format format, struct kv_allocator *allocator,
    const struct gw_chat_message *messages, unsigned count, int generation_prompt, char **text,
    size_t *length);

/* Render straight to ids: the template's own special tokens are special, those inside a message's
 * content never are. *ids is allocated, owned by the caller. */
enum kv_status gw_chat_encode(enum gw_chat_format format, const struct gw_tokenizer *tokenizer,
    struct kv_allocator *allocator, const struct gw_chat_message *messages, unsigned count,
    int generation_prompt, int32_t **ids, uint32_t *id_count);

#ifdef __cplusplus
}
#endif
#endif
