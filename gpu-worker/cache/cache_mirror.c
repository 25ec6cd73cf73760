#include "gpu-worker/cache/cache_mirror.h"

#include <string.h>

#include "gpu-worker/cache/cluster_cache_internal.h"

/* Changes that are sent together, and the bytes of the longest: a slot, or ten pages of a chain
 * that follow each other in the array. */
enum { MAX_PATCHES = 16384, PATCH_BYTES = sizeof(struct kn_cache_slot) };

struct gw_cache_mirror {
	/* KN_DEVICE, in one buffer that starts with the slots: */
	struct kn_cache_slot *slots; /* [page_count] */
	uint32_t *next_page;         /* [page_count] */
	uint32_t *used_step;         /* [page_count] */
	uint32_t *seen_step;         /* KN_SHARED [page_count]: the same as last brought back */
	uint32_t slot_bound;         /* slots from here on were never in use */
	uint64_t generation;         /* of the contents: how often the cache was emptied */
	uint32_t *changed;           /* [page_count]: slots that the device knows otherwise */
	uint8_t *is_changed;         /* [page_count] */
	uint32_t changed_count;
	uint8_t *values;             /* KN_SHARED [MAX_PATCHES][PATCH_BYTES] */
	struct kn_copy_job *patches; /* [MAX_PATCHES], value to its place */
	uint32_t patch_count;
	int in_flight;               /* the first of them may still be read by what is queued */
};

size_t gw_cache_mirror_bytes(size_t pages)
{
	return pages * (sizeof(struct kn_cache_slot) + 2 * sizeof(uint32_t));
}

static enum kv_status take_memory(struct gw_cluster_cache *cache, struct gw_cache_mirror *mirror)
{
	const struct kn_device *device = &cache->options.device;
	struct kv_allocator *allocator = cache->options.allocator;
	size_t pages = cache->page_count, column = pages * sizeof(uint32_t);
	void *memory = NULL;

	mirror->changed = kv_alloc_array(allocator, pages, sizeof *mirror->changed);
	mirror->is_changed = kv_alloc_array_zero(allocator, pages, sizeof *mirror->is_changed);
	mirror->patches = kv_alloc_array(allocator, MAX_PATCHES, sizeof *mirror->patches);
	if (!mirror->changed || !mirror->is_changed || !mirror->patches) return KV_NO_MEMORY;
	KV_TRY(kn_device_alloc(device, KN_SHARED, column, &memory));
	mirror->seen_step = memory;
	memset(mirror->seen_step, 0, column);
	KV_TRY(kn_device_alloc(device, KN_SHARED, (size_t)MAX_PATCHES * PATCH_BYTES, &memory));
	mirror->values = memory;
	KV_TRY(kn_device_alloc(device, KN_DEVICE, gw_cache_mirror_bytes(pages), &memory));
	mirror->slots = memory;
	mirror->next_page = (uint32_t *)(void *)(mirror->slots + pages);
	mirror->used_step = mirror->next_page + pages;
	/* Generation 0 is that of no slot, step 0 is none. */
	KV_TRY(device->ops->fill(device->backend, device->stream, memory, 0,
		gw_cache_mirror_bytes(pages)));
	return kn_device_wait(device);
}

enum kv_status gw_cache_mirror_create(struct gw_cluster_cache *cache)
{
	struct gw_cache_mirror *made = kv_alloc_zero(cache->options.allocator, sizeof *made);

	if (made == NULL) return KV_NO_MEMORY;
	made->generation = 1;
	cache->mirror = made;
	return take_memory(cache, made);
}

void gw_cache_mirror_destroy(struct gw_cluster_cache *cache)
{
	struct gw_cache_mirror *mirror = cache->mirror;
	struct kv_allocator *allocator = cache->options.allocator;

	if (mirror == NULL) return;
	kn_device_free(&cache->options.device, mirror->slots);
	kn_device_free(&cache->options.device, mirror->seen_step);
	kn_device_free(&cache->options.device, mirror->values);
	kv_free(allocator, mirror->changed);
	kv_free(allocator, mirror->is_changed);
	kv_free(allocator, mirror->patches);
	kv_free(allocator, mirror);
	cache->mirror = NULL;
}

void gw_cache_mirror_changed(struct gw_cluster_cache *cache, uint32_t slot)
{
	struct gw_cache_mirror *mirror = cache->mirror;

	if (mirror == NULL) return;
	if (slot >= mirror->slot_bound) mirror->slot_bound = slot + 1;
	if (mirror->is_changed[slot]) return;
	mirror->is_changed[slot] = 1;
	mirror->changed[mirror->changed_count++] = slot;
}

void gw_cache_mirror_cleared(struct gw_cluster_cache *cache)
{
	struct gw_cache_mirror *mirror = cache->mirror;

	if (mirror == NULL) return;
	mirror->generation++;
	for (uint32_t i = 0; i < mirror->changed_count; i++)
		mirror->is_changed[mirror->changed[i]] = 0;
	mirror->changed_count = 0;
}

uint32_t gw_cache_mirror_used_step(const struct gw_cluster_cache *cache, uint32_t slot)
{
	return cache->mirror != NULL ? cache->mirror->seen_step[slot] : 0;
}

/* What was put together is on its way; the buffer is free again when it has been waited for. */
static enum kv_status send(struct gw_cluster_cache *cache)
{
	const struct kn_device *device = &cache->options.device;
	struct gw_cache_mirror *mirror = cache->mirror;
	struct kn_copy_arguments a = {mirror->patches, 0};
	uint32_t left = mirror->patch_count;

	if (left == 0) return KV_OK;
	mirror->patch_count = 0;
	mirror->in_flight = 1;
	for (; left > 0; left -= a.job_count) {
		a.jobs += a.job_count;
		a.job_count = left < GW_CACHE_MIRROR_COPIES ? left : (uint32_t)GW_CACHE_MIRROR_COPIES;
		KV_TRY(device->ops->copy(device->backend, device->stream, &a));
	}
	return KV_OK;
}

/* Before the host writes values again. */
static enum kv_status settle(struct gw_cluster_cache *cache)
{
	if (!cache->mirror->in_flight) return KV_OK;
	KV_TRY(kn_device_wait(&cache->options.device));
	cache->mirror->in_flight = 0;
	return KV_OK;
}

static void add_patch_at(struct gw_cache_mirror *mirror, uint32_t number, void *to,
	const void *value, size_t bytes)
{
	uint8_t *at = mirror->values + (size_t)number * PATCH_BYTES;

	memmove(at, value, bytes);
	mirror->patches[number] = (struct kn_copy_job){at, to, bytes};
}

static enum kv_status patch(
	struct gw_cluster_cache *cache, void *to, const void *value, size_t bytes)
{
	if (cache->mirror->patch_count == MAX_PATCHES) {
		KV_TRY(send(cache));
		KV_TRY(settle(cache));
	}
	add_patch_at(cache->mirror, cache->mirror->patch_count++, to, value, bytes);
	return KV_OK;
}

/* The links of a chain that lookups may follow. */
static enum kv_status patch_chain(struct gw_cluster_cache *cache, const struct gw_cache_slot *slot)
{
	const uint32_t most = PATCH_BYTES / sizeof(uint32_t);
	uint32_t links = (slot->held + GW_CACHE_PAGE_ROWS - 1) / GW_CACHE_PAGE_ROWS - 1;
	uint32_t page = slot->first_page;

	while (links > 0) {
		uint32_t first = page, run = 0;

		do {
			page = cache->next_page[page];
			run++;
			links--;
		} while (links > 0 && run < most && page == first + run);
		KV_TRY(patch(cache, cache->mirror->next_page + first, cache->next_page + first,
			run * sizeof(uint32_t)));
	}
	return KV_OK;
}

static enum kv_status patch_slot(struct gw_cluster_cache *cache, uint32_t index)
{
	const struct gw_cache_slot *slot = &cache->slots[index];
	struct kn_cache_slot shown = {0};

	if (slot->used && slot->held > 0) {
		shown.generation = cache->mirror->generation;
		shown.segment = slot->key.segment;
		shown.layer = slot->key.layer;
		shown.head = slot->key.head;
		shown.cluster = slot->key.cluster;
		shown.held = slot->held;
		shown.first_page = slot->first_page;
		KV_TRY(patch_chain(cache, slot));
	}
	return patch(cache, cache->mirror->slots + index, &shown, sizeof shown);
}

enum kv_status gw_cache_mirror_update(struct gw_cluster_cache *cache, struct kn_cache_table *table)
{
	struct gw_cache_mirror *mirror = cache->mirror;

	if (mirror->changed_count > 0) KV_TRY(settle(cache));
	while (mirror->changed_count > 0) {
		uint32_t slot = mirror->changed[mirror->changed_count - 1];

		KV_TRY(patch_slot(cache, slot));
		mirror->is_changed[slot] = 0;
		mirror->changed_count--;
	}
	KV_TRY(send(cache));
	*table = (struct kn_cache_table){.slots = mirror->slots,
		.next_page = mirror->next_page,
		.memory = cache->memory,
		.used_step = mirror->used_step,
		.row_bytes = cache->options.row_bytes,
		.generation = mirror->generation,
		.slot_count = cache->page_count,
		.page_count = cache->page_count,
		.step = (uint32_t)cache->step};
	return KV_OK;
}

void gw_cache_mirror_waited(struct gw_cluster_cache *cache)
{
	cache->mirror->in_flight = 0;
}

enum kv_status gw_cache_mirror_fetch_used(struct gw_cluster_cache *cache)
{
	const struct gw_cache_mirror *mirror = cache->mirror;

	if (cache->options.recency == 0 && cache->free_pages > cache->page_count / 4) return KV_OK;
	return kn_device_download(&cache->options.device, mirror->seen_step, mirror->used_step,
		mirror->slot_bound * sizeof *mirror->seen_step);
}

void gw_cache_mirror_hint(struct gw_cluster_cache *cache, uint32_t *hint, uint32_t slot)
{
	struct gw_cache_mirror *mirror = cache->mirror;

	if (mirror->in_flight || mirror->patch_count == MAX_PATCHES) return;
	add_patch_at(mirror, mirror->patch_count++, hint, &slot, sizeof slot);
}

void gw_cache_mirror_forget_hints(struct gw_cluster_cache *cache, const void *start, size_t bytes)
{
	struct gw_cache_mirror *mirror = cache->mirror;
	const uint8_t *from = start, *end = from + bytes;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < mirror->patch_count; i++) {
		struct kn_copy_job *job = &mirror->patches[i];

		if (job->destination >= from && job->destination < end) continue;
		add_patch_at(mirror, kept++, job->destination, job->source, job->bytes);
	}
	mirror->patch_count = kept;
}
