/* An allocator that counts, can be limited, and can be made to fail.
 *
 * Every allocation of the project goes through one: a library gets it from its owner, tests hand in
 * one with `fail_at` set to walk through every failure. Thread-safe. Blocks are aligned to 64
 * bytes. Freeing NULL is allowed. A block must go back to the allocator that it came from.
 */
#ifndef KV_COMMON_MEMORY_ALLOCATOR_H
#define KV_COMMON_MEMORY_ALLOCATOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kv_allocator;

struct kv_allocator_stats {
	uint64_t allocations;   /* successful calls since creation; a test asserts that it stays put */
	uint64_t failures;      /* refused calls: limit, injected, or the system's */
	uint64_t blocks;        /* blocks in use */
	uint64_t bytes;         /* bytes in use, as asked for */
	uint64_t peak_bytes;
};

/* Create an allocator over the C heap. `limit` in bytes, 0 for none. NULL when the heap is
 * exhausted. */
struct kv_allocator *kv_allocator_create(const char *name, uint64_t limit);

/* The same, and what it hands out counts against `parent`'s limit, too. The parent outlives it. */
struct kv_allocator *kv_allocator_create_within(
    struct kv_allocator *parent, const char *name, uint64_t limit);

/* Destroy. Blocks still in use are a bug: logged, and an abort in debug builds. NULL is allowed. */
void kv_allocator_destroy(struct kv_allocator *allocator);

/* The process-wide allocator without a limit; never NULL, never destroyed. */
struct kv_allocator *kv_heap(void);

/* Fail the n-th allocation from now (1 = the next one), once; 0 switches it off. */
void kv_allocator_fail_at(struct kv_allocator *allocator, uint64_t n);

/* NULL on failure, with kv_fail(KV_NO_MEMORY) naming the allocator, what was asked and its limit.
 * A size of 0 gives a valid block. kv_alloc_array checks count * size for overflow. */
void *kv_alloc(struct kv_allocator *allocator, size_t size);
void *kv_alloc_zero(struct kv_allocator *allocator, size_t size);
void *kv_alloc_array(struct kv_allocator *allocator, size_t count, size_t size);
void *kv_alloc_array_zero(struct kv_allocator *allocator, size_t count, size_t size);

/* Grow or shrink; on failure NULL and the old block stays as it is. NULL block: as kv_alloc. */
void *kv_realloc(struct kv_allocator *allocator, void *block, size_t size);
char *kv_strdup(struct kv_allocator *allocator, const char *text);
void kv_free(struct kv_allocator *allocator, void *block);

struct kv_allocator_stats kv_allocator_stats(struct kv_allocator *allocator);

#ifdef __cplusplus
}
#endif
#endif
