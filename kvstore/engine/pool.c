#include "kvstore/engine/pool.h"

#include "common/base/check.h"

#include <inttypes.h>
#include <string.h>

/* Four size classes for each power of two, so that the scan of one class stays short. */
static uint32_t bin_of(uint64_t bytes)
{
	uint32_t exponent = 0;
	uint64_t rest = bytes;

	while (rest > 1) {
		rest >>= 1;
		exponent++;
	}
	if (exponent < 2) return exponent * 4;
	return exponent * 4 + (uint32_t)((bytes >> (exponent - 2)) & 3);
}

static struct kvs_extent *extent_of_bin(struct kv_list *node)
{
	return KV_CONTAINER_OF(node, struct kvs_extent, bin);
}

static struct kvs_extent *extent_of_address(struct kv_list *node)
{
	return KV_CONTAINER_OF(node, struct kvs_extent, neighbours);
}

static struct kvs_region *region_of(struct kv_list *node)
{
	return KV_CONTAINER_OF(node, struct kvs_region, link);
}

static void file_free(struct kvs_pool *pool, struct kvs_extent *extent)
{
	extent->used = false;
	if (extent->region->frozen) return;
	kv_list_push_back(&pool->bins[bin_of(extent->bytes)], &extent->bin);
}

void kvs_pool_init(struct kvs_pool *pool, struct kv_allocator *allocator,
    const struct kvs_environment *environment, uint64_t limit, uint64_t usual_region)
{
	const uint64_t mask = ~(uint64_t)(KVW_ALIGNMENT - 1);

	pool->allocator = allocator;
	pool->environment = environment;
	pool->limit = limit & mask;
	pool->usual_region = usual_region & mask;
	pool->total = 0;
	pool->used = 0;
	pool->region_count = 0;
	pool->next_index = 0;
	pool->refusals = 0;
	pool->adopting = false;
	kv_list_init(&pool->regions);
	for (uint32_t i = 0; i < KVS_POOL_BINS; i++)
		kv_list_init(&pool->bins[i]);
}

static void region_destroy(struct kvs_pool *pool, struct kvs_region *region)
{
	struct kv_list *node, *following;

	KV_LIST_EACH_SAFE(node, following, &region->extents)
	{
		struct kvs_extent *extent = extent_of_address(node);

		kv_list_remove(&extent->bin);
		kv_free(pool->allocator, extent);
	}
	pool->environment->region_destroy(pool->environment->context, region->index);
	pool->total -= region->bytes;
	pool->used -= region->used;
	pool->region_count--;
	kv_list_remove(&region->link);
	kv_free(pool->allocator, region);
}

void kvs_pool_deinit(struct kvs_pool *pool)
{
	struct kv_list *node, *following;

	KV_LIST_EACH_SAFE(node, following, &pool->regions) region_destroy(pool, region_of(node));
}

void kvs_pool_trim(struct kvs_pool *pool)
{
	struct kv_list *node, *following;

	KV_LIST_EACH_SAFE(node, following, &pool->regions)
	{
		if (region_of(node)->used == 0) region_destroy(pool, region_of(node));
	}
}

uint64_t kvs_pool_release(struct kvs_pool *pool, uint64_t now, uint64_t release_ms)
{
	struct kv_list *node, *following;
	const uint64_t before = pool->total;

	KV_LIST_EACH_SAFE(node, following, &pool->regions)
	{
		struct kvs_region *region = region_of(node);

		if (region->used > 0)
			region->empty_since_ms = 0;
		else if (region->empty_since_ms == 0)
			region->empty_since_ms = now;
		else if (now - region->empty_since_ms >= release_ms)
			region_destroy(pool, region);
	}
	return before - pool->total;
}

static uint64_t empty_bytes(const struct kvs_pool *pool)
{
	struct kv_list *node;
	uint64_t bytes = 0;

	KV_LIST_EACH(node, &pool->regions)
	{
		if (region_of(node)->used == 0) bytes += region_of(node)->bytes;
	}
	return bytes;
}

/* The owner's smallest free extent of at least `bytes`; the oldest region's where two are alike. */
static struct kvs_extent *best_fit(struct kvs_pool *pool, const char *owner, uint64_t bytes)
{
	struct kvs_extent *best = NULL;

	for (uint32_t i = bin_of(bytes); i < KVS_POOL_BINS && !best; i++) {
		struct kv_list *node;

		KV_LIST_EACH(node, &pool->bins[i])
		{
			struct kvs_extent *extent = extent_of_bin(node);

			if (extent->bytes < bytes || (best && extent->bytes >= best->bytes)) continue;
			if (strcmp(extent->region->owner, owner) != 0) continue;
			best = extent;
			if (best->bytes == bytes) break;
		}
	}
	return best;
}

/* Put a region into the pool, `whole` as its one free extent. */
static void link_region(struct kvs_pool *pool, struct kvs_region *region, struct kvs_extent *whole)
{
	pool->region_count++;
	pool->total += region->bytes;
	kv_list_init(&region->extents);
	kv_list_push_back(&pool->regions, &region->link);
	whole->region = region;
	whole->bytes = region->bytes;
	kv_list_init(&whole->bin);
	kv_list_push_back(&region->extents, &whole->neighbours);
	file_free(pool, whole);
}

static enum kv_status add_region(
    struct kvs_pool *pool, const char *owner, uint64_t bytes, struct kvs_extent **extent)
{
	const struct kvs_environment *environment = pool->environment;
	struct kvs_region *region = kv_alloc_zero(pool->allocator, sizeof *region);
	struct kvs_extent *whole = kv_alloc_zero(pool->allocator, sizeof *whole);
	enum kv_status status = KV_NO_MEMORY;

	if (!region || !whole) goto undo;
	region->index = pool->next_index;
	region->bytes = bytes;
	strncpy(region->owner, owner, sizeof region->owner - 1);
	status = environment->region_create(environment->context, region->index, bytes, &region->base);
	if (status != KV_OK) {
		pool->refusals++;
		goto undo;
	}
	if (owner[0] && environment->region_owned)
		environment->region_owned(environment->context, region->index, owner);
	pool->next_index++;
	link_region(pool, region, whole);
	*extent = whole;
	return KV_OK;
undo:
	kv_free(pool->allocator, whole);
	kv_free(pool->allocator, region);
	return status;
}

/* A region for `bytes`. Regions that are empty and too small make room for one that is large
 * enough. */
static enum kv_status grow(
    struct kvs_pool *pool, const char *owner, uint64_t bytes, struct kvs_extent **extent)
{
	uint64_t size = pool->usual_region > bytes ? pool->usual_region : bytes;

	if (bytes > pool->limit - pool->total && bytes <= pool->limit - pool->total + empty_bytes(pool))
		kvs_pool_trim(pool);
	if (size > pool->limit - pool->total) size = pool->limit - pool->total;
	if (size < bytes)
		return kv_fail(KV_LIMIT,
		    "no free extent of %" PRIu64 " bytes: %" PRIu64 " of %" PRIu64
		    " bytes are in regions, %" PRIu64 " of them in use",
		    bytes, pool->total, pool->limit, pool->used);
	return add_region(pool, owner, size, extent);
}

enum kv_status kvs_pool_take(
    struct kvs_pool *pool, uint64_t bytes, bool may_grow, struct kvs_extent **extent)
{
	return kvs_pool_take_for(pool, "", bytes, may_grow, extent);
}

enum kv_status kvs_pool_take_for(struct kvs_pool *pool, const char *owner, uint64_t bytes,
    bool may_grow, struct kvs_extent **extent)
{
	struct kvs_extent *found, *rest;
	uint64_t size;

	if (bytes == 0 || bytes > UINT64_MAX - KVW_ALIGNMENT)
		return kv_fail(KV_INVALID, "an extent of %" PRIu64 " bytes is not allowed", bytes);
	size = (bytes + KVW_ALIGNMENT - 1) & ~(uint64_t)(KVW_ALIGNMENT - 1);
	found = best_fit(pool, owner, size);
	if (!found && !may_grow)
		return kv_fail(KV_LIMIT, "no free extent of %" PRIu64 " bytes in %u regions", size,
		    pool->region_count);
	if (!found) KV_TRY(grow(pool, owner, size, &found));
	if (found->bytes > size) {
		rest = kv_alloc_zero(pool->allocator, sizeof *rest);
		if (!rest) return KV_NO_MEMORY;
		rest->region = found->region;
		rest->offset = found->offset + size;
		rest->bytes = found->bytes - size;
		kv_list_init(&rest->bin);
		kv_list_push_front(&found->neighbours, &rest->neighbours);
		kv_list_remove(&found->bin);
		found->bytes = size;
		file_free(pool, rest);
	}
	kv_list_remove(&found->bin);
	found->used = true;
	found->region->used += size;
	found->region->empty_since_ms = 0;
	pool->used += size;
	*extent = found;
	return KV_OK;
}

/* Append the extent behind `extent` to it. */
static void absorb_next(struct kvs_pool *pool, struct kvs_extent *extent)
{
	struct kvs_extent *next = extent_of_address(extent->neighbours.next);

	extent->bytes += next->bytes;
	kv_list_remove(&next->bin);
	kv_list_remove(&next->neighbours);
	kv_free(pool->allocator, next);
}

void kvs_pool_give(struct kvs_pool *pool, struct kvs_extent *extent)
{
	struct kvs_region *region = extent->region;
	struct kv_list *previous = extent->neighbours.previous;

	region->used -= extent->bytes;
	pool->used -= extent->bytes;
	extent->used = false;
	if (extent->neighbours.next != &region->extents &&
	    !extent_of_address(extent->neighbours.next)->used)
		absorb_next(pool, extent);
	if (previous != &region->extents && !extent_of_address(previous)->used) {
		extent = extent_of_address(previous);
		kv_list_remove(&extent->bin);
		absorb_next(pool, extent);
	}
	file_free(pool, extent);
	if (region->frozen && region->used == 0 && !pool->adopting) region_destroy(pool, region);
}

enum kv_status kvs_pool_adopt(
    struct kvs_pool *pool, const char *owner, uint64_t bytes, uint8_t *base, uint32_t *index)
{
	struct kvs_region *region;
	struct kvs_extent *whole;

	if (bytes == 0 || bytes > pool->limit - pool->total)
		return kv_fail(KV_LIMIT,
		    "a region of %" PRIu64 " bytes from before does not fit: %" PRIu64 " of %" PRIu64
		    " bytes are in regions",
		    bytes, pool->total, pool->limit);
	region = kv_alloc_zero(pool->allocator, sizeof *region);
	whole = kv_alloc_zero(pool->allocator, sizeof *whole);
	if (!region || !whole) {
		kv_free(pool->allocator, whole);
		kv_free(pool->allocator, region);
		return KV_NO_MEMORY;
	}
	region->index = pool->next_index++;
	region->bytes = bytes;
	region->base = base;
	region->frozen = true;
	pool->adopting = true;
	strncpy(region->owner, owner, sizeof region->owner - 1);
	link_region(pool, region, whole);
	*index = region->index;
	return KV_OK;
}

static struct kvs_region *find_region(const struct kvs_pool *pool, uint32_t index)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &pool->regions)
	if (region_of(node)->index == index) return region_of(node);
	return NULL;
}

/* Cut `extent`, which is free and in a frozen region, at `offset` of the region. */
static enum kv_status split_at(struct kvs_pool *pool, struct kvs_extent *extent, uint64_t offset)
{
	struct kvs_extent *rest;

	if (offset == extent->offset || offset == extent->offset + extent->bytes) return KV_OK;
	rest = kv_alloc_zero(pool->allocator, sizeof *rest);
	if (!rest) return KV_NO_MEMORY;
	rest->region = extent->region;
	rest->offset = offset;
	rest->bytes = extent->offset + extent->bytes - offset;
	kv_list_init(&rest->bin);
	kv_list_push_front(&extent->neighbours, &rest->neighbours);
	extent->bytes -= rest->bytes;
	return KV_OK;
}

enum kv_status kvs_pool_take_at(struct kvs_pool *pool, const char *owner, uint32_t index,
    uint64_t offset, uint64_t bytes, struct kvs_extent **extent)
{
	struct kvs_region *region = find_region(pool, index);
	struct kv_list *node;

	if (!region || !region->frozen || strcmp(region->owner, owner) != 0 ||
	    offset % KVW_ALIGNMENT != 0 || bytes == 0 || bytes % KVW_ALIGNMENT != 0)
		return kv_fail(KV_INVALID, "no extent can lie at %" PRIu64 " of region %u", offset, index);
	KV_LIST_EACH(node, &region->extents)
	{
		struct kvs_extent *found = extent_of_address(node);

		if (found->used || found->offset > offset || bytes > found->bytes ||
		    offset - found->offset > found->bytes - bytes)
			continue;
		KV_TRY(split_at(pool, found, offset));
		if (found->offset != offset) found = extent_of_address(found->neighbours.next);
		KV_TRY(split_at(pool, found, offset + bytes));
		found->used = true;
		region->used += bytes;
		pool->used += bytes;
		*extent = found;
		return KV_OK;
	}
	return kv_fail(KV_INVALID, "%" PRIu64 " bytes at %" PRIu64 " of region %u are not free", bytes,
	    offset, index);
}

uint8_t *kvs_pool_memory(
    const struct kvs_pool *pool, uint32_t region, uint64_t offset, uint64_t bytes)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &pool->regions)
	{
		const struct kvs_region *candidate = region_of(node);

		if (candidate->index != region) continue;
		if (offset > candidate->bytes || bytes > candidate->bytes - offset) return NULL;
		return candidate->base ? candidate->base + offset : NULL;
	}
	return NULL;
}

void kvs_pool_statistics(const struct kvs_pool *pool, struct kvs_statistics *statistics)
{
	struct kv_list *at;

	statistics->limit_bytes = pool->limit;
	statistics->region_bytes = pool->total;
	statistics->free_bytes = pool->total - pool->used;
	statistics->regions = pool->region_count;
	KV_LIST_EACH(at, &pool->regions)
	if (region_of(at)->frozen) statistics->free_bytes -= region_of(at)->bytes - region_of(at)->used;
	statistics->free_extents = 0;
	statistics->largest_free_bytes = 0;
	for (uint32_t i = 0; i < KVS_POOL_BINS; i++) {
		struct kv_list *node;

		KV_LIST_EACH(node, &pool->bins[i])
		{
			uint64_t bytes = extent_of_bin(node)->bytes;

			statistics->free_extents++;
			if (bytes > statistics->largest_free_bytes) statistics->largest_free_bytes = bytes;
		}
	}
}

static enum kv_status check_region(const struct kvs_region *region, uint64_t *free_extents)
{
	struct kv_list *node;
	uint64_t offset = 0, used = 0;
	bool previous_free = false;

	KV_LIST_EACH(node, &region->extents)
	{
		const struct kvs_extent *extent = extent_of_address(node);
		bool filed = extent->bin.next != &extent->bin;

		if (extent->region != region || extent->offset != offset || extent->bytes == 0 ||
		    offset % KVW_ALIGNMENT != 0)
			return kv_fail(KV_INTERNAL, "region %u: extent at %" PRIu64 " is expected at %" PRIu64,
			    region->index, extent->offset, offset);
		if (!extent->used && previous_free)
			return kv_fail(
			    KV_INTERNAL, "region %u: two free neighbours at %" PRIu64, region->index, offset);
		if (filed == (extent->used || region->frozen))
			return kv_fail(KV_INTERNAL,
			    "region %u: extent at %" PRIu64 " is %s a list of free ones", region->index, offset,
			    filed ? "in" : "not in");
		previous_free = !extent->used;
		if (extent->used)
			used += extent->bytes;
		else if (!region->frozen)
			(*free_extents)++;
		offset += extent->bytes;
	}
	if (offset != region->bytes || used != region->used)
		return kv_fail(KV_INTERNAL,
		    "region %u: extents end at %" PRIu64 " of %" PRIu64 ", %" PRIu64 " used, %" PRIu64
		    " counted",
		    region->index, offset, region->bytes, used, region->used);
	return KV_OK;
}

enum kv_status kvs_pool_check(const struct kvs_pool *pool)
{
	struct kvs_statistics statistics;
	struct kv_list *node;
	uint64_t total = 0, used = 0, free_extents = 0;
	uint32_t count = 0;

	KV_LIST_EACH(node, &pool->regions)
	{
		const struct kvs_region *region = region_of(node);

		KV_TRY(check_region(region, &free_extents));
		total += region->bytes;
		used += region->used;
		count++;
	}
	kvs_pool_statistics(pool, &statistics);
	if (total != pool->total || used != pool->used || count != pool->region_count ||
	    total > pool->limit || free_extents != statistics.free_extents)
		return kv_fail(KV_INTERNAL,
		    "pool: %u regions of %" PRIu64 " bytes, %" PRIu64 " used, counted %u, %" PRIu64
		    ", %" PRIu64,
		    count, total, used, pool->region_count, pool->total, pool->used);
	return KV_OK;
}
