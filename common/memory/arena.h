/* A bump allocator: many small blocks with one lifetime, freed together.
 *
 * Not thread-safe. Blocks come from the kv_allocator in chunks; a reset keeps the chunks, so that a
 * user who resets each round stops allocating after the largest round.
 */
#ifndef KV_COMMON_MEMORY_ARENA_H
#define KV_COMMON_MEMORY_ARENA_H

#include "common/base/status.h"
#include "common/memory/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kv_arena;

/* `chunk_size` in bytes: what is asked of the allocator at a time, at least 256; a block that is
 * larger gets a chunk of its own. The first chunk is taken at once. */
enum kv_status kv_arena_create(
    struct kv_allocator *allocator, size_t chunk_size, struct kv_arena **arena);
void kv_arena_destroy(struct kv_arena *arena); /* NULL is allowed */

/* Aligned to 16 bytes, or to `alignment`, a power of two up to 64. Valid until reset or destroy.
 * NULL on failure, with the allocator's error text. */
void *kv_arena_alloc(struct kv_arena *arena, size_t size);
void *kv_arena_alloc_aligned(struct kv_arena *arena, size_t size, size_t alignment);
void *kv_arena_alloc_array(struct kv_arena *arena, size_t count, size_t size);
void *kv_arena_copy(struct kv_arena *arena, const void *bytes, size_t size);
char *kv_arena_strdup(struct kv_arena *arena, const char *text);

/* Forget every block and keep the memory. */
void kv_arena_reset(struct kv_arena *arena);

/* Bytes handed out since the last reset, padding included. */
size_t kv_arena_used(const struct kv_arena *arena);

#ifdef __cplusplus
}
#endif
#endif
