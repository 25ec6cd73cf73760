#include "common/memory/arena.h"

#include "common/base/check.h"

#include <string.h>

enum { HEAD_SIZE = 64, MINIMUM_CHUNK = 256, DEFAULT_ALIGNMENT = 16, MAXIMUM_ALIGNMENT = 64 };

/* Its memory starts HEAD_SIZE bytes behind the chunk, as aligned as the allocator's blocks are. */
struct chunk {
	struct chunk *next;
	size_t size;
	size_t used;
};

_Static_assert(sizeof(struct chunk) <= HEAD_SIZE, "the head must fit");

struct kv_arena {
	struct kv_allocator *allocator;
	struct chunk *first;
	struct chunk *current; /* those behind it are empty */
	size_t chunk_size;
};

static struct chunk *new_chunk(struct kv_allocator *allocator, size_t size)
{
	struct chunk *chunk;
	size_t total;

	if (!kv_add_size(size, HEAD_SIZE, &total)) total = SIZE_MAX; /* which the allocator refuses */
	chunk = kv_alloc(allocator, total);
	if (!chunk) return NULL;
	chunk->next = NULL;
	chunk->size = size;
	chunk->used = 0;
	return chunk;
}

enum kv_status kv_arena_create(
    struct kv_allocator *allocator, size_t chunk_size, struct kv_arena **arena)
{
	struct kv_arena *made;

	if (chunk_size < MINIMUM_CHUNK)
		return kv_fail(KV_INVALID, "an arena's chunk of %zu bytes is too small: at least %d",
		    chunk_size, (int)MINIMUM_CHUNK);
	made = kv_alloc_zero(allocator, sizeof *made);
	if (!made) return KV_NO_MEMORY;
	made->allocator = allocator;
	made->chunk_size = chunk_size;
	made->first = new_chunk(allocator, chunk_size);
	if (!made->first) {
		kv_free(allocator, made);
		return KV_NO_MEMORY;
	}
	made->current = made->first;
	*arena = made;
	return KV_OK;
}

void kv_arena_destroy(struct kv_arena *arena)
{
	struct chunk *next;

	if (!arena) return;
	for (struct chunk *chunk = arena->first; chunk; chunk = next) {
		next = chunk->next;
		kv_free(arena->allocator, chunk);
	}
	kv_free(arena->allocator, arena);
}

static void *take(struct chunk *chunk, size_t size, size_t alignment)
{
	size_t start;
	size_t end;

	if (!kv_align_size(chunk->used, alignment, &start) || !kv_add_size(start, size, &end) ||
	    end > chunk->size)
		return NULL;
	chunk->used = end;
	return (char *)chunk + HEAD_SIZE + start;
}

void *kv_arena_alloc_aligned(struct kv_arena *arena, size_t size, size_t alignment)
{
	struct chunk *chunk;
	void *block;

	if (alignment == 0 || alignment > MAXIMUM_ALIGNMENT || (alignment & (alignment - 1))) {
		kv_fail(KV_INVALID, "alignment %zu is not a power of two up to %d", alignment,
		    (int)MAXIMUM_ALIGNMENT);
		return NULL;
	}
	for (;;) {
		block = take(arena->current, size, alignment);
		if (block) return block;
		if (!arena->current->next || arena->current->next->size < size) break;
		arena->current = arena->current->next;
	}
	chunk = new_chunk(arena->allocator, size > arena->chunk_size ? size : arena->chunk_size);
	if (!chunk) return NULL;
	chunk->next = arena->current->next;
	arena->current->next = chunk;
	arena->current = chunk;
	return take(chunk, size, alignment);
}

void *kv_arena_alloc(struct kv_arena *arena, size_t size)
{
	return kv_arena_alloc_aligned(arena, size, DEFAULT_ALIGNMENT);
}

void *kv_arena_alloc_array(struct kv_arena *arena, size_t count, size_t size)
{
	size_t total;

	if (!kv_mul_size(count, size, &total)) {
		kv_fail(
		    KV_NO_MEMORY, "%zu elements of %zu bytes are more than an address space", count, size);
		return NULL;
	}
	return kv_arena_alloc(arena, total);
}

void *kv_arena_copy(struct kv_arena *arena, const void *bytes, size_t size)
{
	void *block = kv_arena_alloc(arena, size);

	if (block && size) memcpy(block, bytes, size);
	return block;
}

char *kv_arena_strdup(struct kv_arena *arena, const char *text)
{
	size_t size = strlen(text) + 1;
	char *copy = kv_arena_alloc_aligned(arena, size, 1);

	if (copy) memcpy(copy, text, size);
	return copy;
}

void kv_arena_reset(struct kv_arena *arena)
{
	for (struct chunk *chunk = arena->first; chunk; chunk = chunk->next)
		chunk->used = 0;
	arena->current = arena->first;
}

size_t kv_arena_used(const struct kv_arena *arena)
{
	size_t used = 0;

	for (const struct chunk *chunk = arena->first; chunk; chunk = chunk->next)
		used += chunk->used;
	return used;
}
