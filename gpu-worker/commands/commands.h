/* The commands of gpu-worker. Each returns when its work is done; the caller makes the exit
 * code. */
#ifndef GW_COMMANDS_COMMANDS_H
#define GW_COMMANDS_COMMANDS_H

#include "common/memory/allocator.h"
#include "gpu-worker/commands/settings.h"

#ifdef __cplusplus
extern "C" {
#endif

enum kv_status gw_command_generate(const struct gw_settings *settings,
	struct kv_allocator *allocator);
enum kv_status gw_command_perplexity(const struct gw_settings *settings,
	struct kv_allocator *allocator);
enum kv_status gw_command_logits(const struct gw_settings *settings,
	struct kv_allocator *allocator);
enum kv_status gw_command_tokenize(const struct gw_settings *settings,
	struct kv_allocator *allocator);
enum kv_status gw_command_detokenize(const struct gw_settings *settings,
	struct kv_allocator *allocator);
enum kv_status gw_command_serve(const struct gw_settings *settings,
	struct kv_allocator *allocator);

#ifdef __cplusplus
}
#endif
#endif
