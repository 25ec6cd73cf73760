#include "common/collect/ring.h"

#include "common/base/check.h"

#include <stdatomic.h>
#include <string.h>

enum { CACHE_LINE = 64 };

/* The two counters only rise; their difference is the number of items. They sit on lines of their
 * own, each with a copy of the other side's counter, which is refreshed only when it seems in the
 * way: most pushes and pops touch no line that the other thread writes. */
struct kv_ring {
	struct kv_allocator *allocator;
	unsigned char *items;
	size_t item_size;
	size_t capacity;
	size_t mask; /* places minus one; places are the capacity raised to a power of two */
	_Alignas(CACHE_LINE) atomic_size_t pushed;
	size_t popped_seen;
	_Alignas(CACHE_LINE) atomic_size_t popped;
	size_t pushed_seen;
};

enum kv_status kv_ring_create(
    struct kv_allocator *allocator, size_t capacity, size_t item_size, struct kv_ring **ring)
{
	struct kv_ring *made;
	size_t places = 1;

	if (capacity == 0 || item_size == 0 || capacity > SIZE_MAX / 4)
		return kv_fail(KV_INVALID,
		    "a ring of %zu items of %zu bytes: both must be at least 1 and fit in memory", capacity,
		    item_size);
	while (places < capacity)
		places *= 2;
	made = kv_alloc_zero(allocator, sizeof *made);
	if (!made) return KV_NO_MEMORY;
	made->items = kv_alloc_array(allocator, places, item_size);
	if (!made->items) {
		kv_free(allocator, made);
		return KV_NO_MEMORY;
	}
	made->allocator = allocator;
	made->item_size = item_size;
	made->capacity = capacity;
	made->mask = places - 1;
	*ring = made;
	return KV_OK;
}

void kv_ring_destroy(struct kv_ring *ring)
{
	if (!ring) return;
	kv_free(ring->allocator, ring->items);
	kv_free(ring->allocator, ring);
}

bool kv_ring_push(struct kv_ring *ring, const void *item)
{
	size_t pushed = atomic_load_explicit(&ring->pushed, memory_order_relaxed);

	if (pushed - ring->popped_seen == ring->capacity) {
		ring->popped_seen = atomic_load_explicit(&ring->popped, memory_order_acquire);
		if (pushed - ring->popped_seen == ring->capacity) return false;
	}
	memcpy(ring->items + (pushed & ring->mask) * ring->item_size, item, ring->item_size);
	atomic_store_explicit(&ring->pushed, pushed + 1, memory_order_release);
	return true;
}

bool kv_ring_pop(struct kv_ring *ring, void *item)
{
	size_t popped = atomic_load_explicit(&ring->popped, memory_order_relaxed);

	if (popped == ring->pushed_seen) {
		ring->pushed_seen = atomic_load_explicit(&ring->pushed, memory_order_acquire);
		if (popped == ring->pushed_seen) return false;
	}
	memcpy(item, ring->items + (popped & ring->mask) * ring->item_size, ring->item_size);
	atomic_store_explicit(&ring->popped, popped + 1, memory_order_release);
	return true;
}

size_t kv_ring_count(const struct kv_ring *ring)
{
	/* Popped first: read the other way round, pops in between would make the difference negative.
	 */
	size_t popped = atomic_load_explicit(&ring->popped, memory_order_acquire);
	size_t pushed = atomic_load_explicit(&ring->pushed, memory_order_acquire);
	size_t count = pushed - popped;

	return count < ring->capacity ? count : ring->capacity;
}

size_t kv_ring_capacity(const struct kv_ring *ring)
{
	return ring->capacity;
}
