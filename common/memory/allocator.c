#include "common/memory/allocator.h"

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64, NAME_SIZE = 32 };

#define HEADER_MAGIC UINT64_C(0x6b766d656d6f7279)
#define HEADER_FREED UINT64_C(0x6b766d656d667265)

struct kv_allocator {
	struct kv_allocator *parent; /* NULL, or whose limit holds, too */
	char name[NAME_SIZE];
	uint64_t limit;
	atomic_uint_fast64_t allocations;
	atomic_uint_fast64_t failures;
	atomic_uint_fast64_t blocks;
	atomic_uint_fast64_t bytes;
	atomic_uint_fast64_t peak_bytes;
	atomic_uint_fast64_t fail_countdown;
};

/* Sits in the 64 bytes before each block, so that a free needs no size and can be checked. */
struct block_header {
	uint64_t magic;
	struct kv_allocator *owner;
	size_t size;     /* as asked for */
	size_t capacity; /* what fits without moving */
};

_Static_assert(sizeof(struct block_header) <= ALIGNMENT, "the header must fit before a block");

static struct kv_allocator heap = {.name = "heap"};

struct kv_allocator *kv_allocator_create(const char *name, uint64_t limit)
{
	struct kv_allocator *allocator = calloc(1, sizeof *allocator);

	if (!allocator) return NULL;
	strncpy(allocator->name, name, sizeof allocator->name - 1);
	allocator->limit = limit;
	return allocator;
}

struct kv_allocator *kv_allocator_create_within(
    struct kv_allocator *parent, const char *name, uint64_t limit)
{
	struct kv_allocator *allocator = kv_allocator_create(name, limit);

	if (allocator) allocator->parent = parent;
	return allocator;
}

void kv_allocator_destroy(struct kv_allocator *allocator)
{
	uint64_t blocks;

	if (!allocator || allocator == &heap) return;
	blocks = atomic_load(&allocator->blocks);
	if (blocks) {
		kv_error("memory",
		    "allocator %s destroyed with blocks in use blocks=%" PRIu64 " bytes=%" PRIu64,
		    allocator->name, blocks, (uint64_t)atomic_load(&allocator->bytes));
		kv_check_failed("every block is freed before its allocator", __FILE__, __LINE__);
		/* Those who still hold the blocks will free them through the header: leave it valid. */
		return;
	}
	free(allocator);
}

struct kv_allocator *kv_heap(void)
{
	return &heap;
}

void kv_allocator_fail_at(struct kv_allocator *allocator, uint64_t n)
{
	atomic_store(&allocator->fail_countdown, n);
}

/* True for the one call that reaches the end of the countdown. */
static bool injected_failure(struct kv_allocator *allocator)
{
	uint_fast64_t left = atomic_load_explicit(&allocator->fail_countdown, memory_order_relaxed);

	while (left) {
		if (atomic_compare_exchange_weak(&allocator->fail_countdown, &left, left - 1))
			return left == 1;
	}
	return false;
}

static void give_bytes(struct kv_allocator *allocator, uint64_t size)
{
	for (; allocator; allocator = allocator->parent)
		atomic_fetch_sub(&allocator->bytes, size);
}

/* Count `size` bytes as used, unless that would pass the limit. */
static bool take_bytes(struct kv_allocator *allocator, uint64_t size)
{
	uint_fast64_t used = atomic_load_explicit(&allocator->bytes, memory_order_relaxed);
	uint_fast64_t peak;

	do {
		if (size > UINT64_MAX - used) return false;
		if (allocator->limit && used + size > allocator->limit) return false;
	} while (!atomic_compare_exchange_weak(&allocator->bytes, &used, used + size));
	peak = atomic_load_explicit(&allocator->peak_bytes, memory_order_relaxed);
	while (used + size > peak &&
	       !atomic_compare_exchange_weak(&allocator->peak_bytes, &peak, used + size))
		;
	if (!allocator->parent || take_bytes(allocator->parent, size)) return true;
	atomic_fetch_sub(&allocator->bytes, size);
	return false;
}

static void *refuse(struct kv_allocator *allocator, size_t size, const char *reason)
{
	uint64_t used = atomic_load(&allocator->bytes);

	atomic_fetch_add(&allocator->failures, 1);
	if (allocator->limit) {
		kv_fail(KV_NO_MEMORY,
		    "allocator %s refuses %zu bytes (%s): %" PRIu64 " of its limit of %" PRIu64
		    " bytes are in use",
		    allocator->name, size, reason, used, allocator->limit);
	} else {
		kv_fail(KV_NO_MEMORY,
		    "allocator %s refuses %zu bytes (%s): %" PRIu64 " bytes are in use, no limit is set",
		    allocator->name, size, reason, used);
	}
	return NULL;
}

static struct block_header *header_of(void *block)
{
	return (struct block_header *)(void *)((char *)block - ALIGNMENT);
}

void *kv_alloc(struct kv_allocator *allocator, size_t size)
{
	size_t capacity;
	size_t total;
	struct block_header *header;

	if (injected_failure(allocator)) return refuse(allocator, size, "injected failure");
	if (!kv_align_size(size ? size : 1, ALIGNMENT, &capacity) ||
	    !kv_add_size(capacity, ALIGNMENT, &total))
		return refuse(allocator, size, "more than an address space");
	if (!take_bytes(allocator, size)) return refuse(allocator, size, "over the limit");
	header = aligned_alloc(ALIGNMENT, total);
	if (!header) {
		give_bytes(allocator, size);
		return refuse(allocator, size, "the system has no more");
	}
	header->magic = HEADER_MAGIC;
	header->owner = allocator;
	header->size = size;
	header->capacity = capacity;
	atomic_fetch_add(&allocator->allocations, 1);
	atomic_fetch_add(&allocator->blocks, 1);
	return (char *)header + ALIGNMENT;
}

void *kv_alloc_zero(struct kv_allocator *allocator, size_t size)
{
	void *block = kv_alloc(allocator, size);

	if (block) memset(block, 0, size);
	return block;
}

void *kv_alloc_array(struct kv_allocator *allocator, size_t count, size_t size)
{
	size_t total;

	if (!kv_mul_size(count, size, &total))
		return refuse(allocator, SIZE_MAX, "count times size overflows");
	return kv_alloc(allocator, total);
}

void *kv_alloc_array_zero(struct kv_allocator *allocator, size_t count, size_t size)
{
	void *block = kv_alloc_array(allocator, count, size);

	if (block) memset(block, 0, count * size);
	return block;
}

/* A block in use of this allocator? Otherwise a double free, a foreign block or an overwrite. */
static bool owned(struct kv_allocator *allocator, const struct block_header *header)
{
	if (header->magic == HEADER_MAGIC && header->owner == allocator) return true;
	kv_error("memory", "allocator %s is given a block that is %s", allocator->name,
	    header->magic == HEADER_FREED   ? "already free"
	    : header->magic == HEADER_MAGIC ? "of another allocator"
	                                    : "not from any allocator");
	kv_check_failed("a block goes back to its own allocator, once", __FILE__, __LINE__);
	return false;
}

void *kv_realloc(struct kv_allocator *allocator, void *block, size_t size)
{
	struct block_header *header;
	size_t old_size;
	void *moved;

	if (!block) return kv_alloc(allocator, size);
	header = header_of(block);
	if (!owned(allocator, header)) return NULL;
	old_size = header->size;
	if (size <= header->capacity) {
		if (size > old_size && !take_bytes(allocator, size - old_size))
			return refuse(allocator, size, "over the limit");
		if (size < old_size) give_bytes(allocator, old_size - size);
		header->size = size;
		return block;
	}
	moved = kv_alloc(allocator, size);
	if (!moved) return NULL;
	memcpy(moved, block, old_size);
	kv_free(allocator, block);
	return moved;
}

char *kv_strdup(struct kv_allocator *allocator, const char *text)
{
	size_t size = strlen(text) + 1;
	char *copy = kv_alloc(allocator, size);

	if (copy) memcpy(copy, text, size);
	return copy;
}

void kv_free(struct kv_allocator *allocator, void *block)
{
	struct block_header *header;

	if (!block) return;
	header = header_of(block);
	if (!owned(allocator, header)) return;
	header->magic = HEADER_FREED;
	give_bytes(allocator, header->size);
	atomic_fetch_sub(&allocator->blocks, 1);
	free(header);
}

struct kv_allocator_stats kv_allocator_stats(struct kv_allocator *allocator)
{
	struct kv_allocator_stats stats = {
	    .allocations = atomic_load(&allocator->allocations),
	    .failures = atomic_load(&allocator->failures),
	    .blocks = atomic_load(&allocator->blocks),
	    .bytes = atomic_load(&allocator->bytes),
	    .peak_bytes = atomic_load(&allocator->peak_bytes),
	};

	return stats;
}
