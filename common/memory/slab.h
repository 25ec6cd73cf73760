/* A fixed number of objects of one size, allocated once; taking and giving back is O(1).
 *
 * Not thread-safe. Objects have indices, so that a peer can be given a number instead of a pointer.
 */
#ifndef KV_COMMON_MEMORY_SLAB_H
#define KV_COMMON_MEMORY_SLAB_H

#include "common/base/status.h"
#include "common/memory/allocator.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kv_slab;

/* Objects are aligned to 16 bytes (to 64 where object_size is a multiple of 64). */
enum kv_status kv_slab_create(
    struct kv_allocator *allocator, size_t object_size, uint32_t count, struct kv_slab **slab);

/* Objects still taken are the owner's business: they go with the slab. NULL is allowed. */
void kv_slab_destroy(struct kv_slab *slab);

/* A zeroed object, or NULL when all are taken (no error text: the caller knows its limit's name).
 */
void *kv_slab_take(struct kv_slab *slab);
void kv_slab_give(struct kv_slab *slab, void *object); /* NULL is allowed */

/* UINT32_MAX for a pointer that is not one of its objects. */
uint32_t kv_slab_index(const struct kv_slab *slab, const void *object);

/* The object of an index, NULL when out of range or not taken: an index from a peer may be passed.
 */
void *kv_slab_at(const struct kv_slab *slab, uint32_t index);

uint32_t kv_slab_taken(const struct kv_slab *slab);
uint32_t kv_slab_capacity(const struct kv_slab *slab);

#ifdef __cplusplus
}
#endif
#endif
