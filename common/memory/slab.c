#include "common/memory/slab.h"

#include "common/base/check.h"

#include <string.h>

#define TAKEN    UINT32_MAX
#define NO_INDEX (UINT32_MAX - 1)

struct kv_slab {
	struct kv_allocator *allocator;
	unsigned char *objects;
	uint32_t *next_free; /* of each object: the free one behind it, NO_INDEX, or TAKEN */
	size_t stride;
	size_t object_size;
	uint32_t count;
	uint32_t taken;
	uint32_t first_free;
};

enum kv_status kv_slab_create(
    struct kv_allocator *allocator, size_t object_size, uint32_t count, struct kv_slab **slab)
{
	struct kv_slab *made;
	size_t stride;

	if (object_size == 0 || count == 0 || count >= NO_INDEX ||
	    !kv_align_size(object_size, 16, &stride))
		return kv_fail(
		    KV_INVALID, "a slab of %u objects of %zu bytes is out of range", count, object_size);
	made = kv_alloc_zero(allocator, sizeof *made);
	if (!made) return KV_NO_MEMORY;
	made->allocator = allocator;
	made->objects = kv_alloc_array(allocator, count, stride);
	made->next_free = kv_alloc_array(allocator, count, sizeof *made->next_free);
	if (!made->objects || !made->next_free) {
		kv_slab_destroy(made);
		return KV_NO_MEMORY;
	}
	made->stride = stride;
	made->object_size = object_size;
	made->count = count;
	for (uint32_t i = 0; i < count; i++)
		made->next_free[i] = i + 1 < count ? i + 1 : NO_INDEX;
	*slab = made;
	return KV_OK;
}

void kv_slab_destroy(struct kv_slab *slab)
{
	if (!slab) return;
	kv_free(slab->allocator, slab->objects);
	kv_free(slab->allocator, slab->next_free);
	kv_free(slab->allocator, slab);
}

void *kv_slab_take(struct kv_slab *slab)
{
	uint32_t index = slab->first_free;
	unsigned char *object;

	if (index == NO_INDEX) return NULL;
	slab->first_free = slab->next_free[index];
	slab->next_free[index] = TAKEN;
	slab->taken++;
	object = slab->objects + index * slab->stride;
	memset(object, 0, slab->object_size);
	return object;
}

void kv_slab_give(struct kv_slab *slab, void *object)
{
	uint32_t index;
	bool taken;

	if (!object) return;
	index = kv_slab_index(slab, object);
	taken = index < slab->count && slab->next_free[index] == TAKEN;
	KV_CHECK(taken);
	if (!taken) return;
	slab->next_free[index] = slab->first_free;
	slab->first_free = index;
	slab->taken--;
}

uint32_t kv_slab_index(const struct kv_slab *slab, const void *object)
{
	uintptr_t offset = (uintptr_t)object - (uintptr_t)slab->objects;

	if (offset % slab->stride || offset / slab->stride >= slab->count) return UINT32_MAX;
	return (uint32_t)(offset / slab->stride);
}

void *kv_slab_at(const struct kv_slab *slab, uint32_t index)
{
	if (index >= slab->count || slab->next_free[index] != TAKEN) return NULL;
	return slab->objects + index * slab->stride;
}

uint32_t kv_slab_taken(const struct kv_slab *slab)
{
	return slab->taken;
}

uint32_t kv_slab_capacity(const struct kv_slab *slab)
{
	return slab->count;
}
