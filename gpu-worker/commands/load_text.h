/* What a model file says about text: its vocabulary and its chat template. */
#ifndef GW_COMMANDS_LOAD_TEXT_H
#define GW_COMMANDS_LOAD_TEXT_H

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "gpu-worker/model/gguf.h"
#include "gpu-worker/text/chat_template.h"
#include "gpu-worker/text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Make the tokenizer of a model file. The file may be closed afterwards. KV_UNSUPPORTED for a kind
 * of vocabulary that is not byte-level BPE, KV_NOT_FOUND for a key that is missing, KV_CORRUPT for
 * keys that contradict each other. */
enum kv_status gw_load_tokenizer(
    const struct gw_gguf *file, struct kv_allocator *allocator, struct gw_tokenizer **tokenizer);

/* The format of the file's chat template; GW_CHAT_UNKNOWN when it has none, or one that is not
 * known. */
enum kv_status gw_load_chat_format(const struct gw_gguf *file, enum gw_chat_format *format);

#ifdef __cplusplus
}
#endif
#endif
