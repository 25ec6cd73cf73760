/* A queue of fixed-size items between exactly one pushing and one popping thread, without locks.
 *
 * A pop sees everything that the pusher wrote before the push. Nobody waits here: the owner pairs
 * the ring with a waker or a condition.
 */
#ifndef KV_COMMON_COLLECT_RING_H
#define KV_COMMON_COLLECT_RING_H

#include "common/base/status.h"
#include "common/memory/allocator.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kv_ring;

/* `capacity` items of `item_size` bytes, both at least 1. */
enum kv_status kv_ring_create(
    struct kv_allocator *allocator, size_t capacity, size_t item_size, struct kv_ring **ring);
void kv_ring_destroy(struct kv_ring *ring); /* NULL is allowed */

/* Copy an item in; false when the ring is full. Pushing thread only. */
bool kv_ring_push(struct kv_ring *ring, const void *item);

/* Copy the oldest item out; false when the ring is empty. Popping thread only. */
bool kv_ring_pop(struct kv_ring *ring, void *item);

/* Items held; exact for the two threads in the sense that room or items cannot get less for the one
 * that asks. */
size_t kv_ring_count(const struct kv_ring *ring);
size_t kv_ring_capacity(const struct kv_ring *ring);

#ifdef __cplusplus
}
#endif
#endif
