/* Arena memory: regions that are made as needed up to a limit, cut into extents.
 *
 * Best fit among the free extents of all regions; a freed extent is merged with its free
 * neighbours. Extents start at multiples of KVW_ALIGNMENT. Only an allocation allocates
 * bookkeeping.
 */
#ifndef KVS_ENGINE_POOL_H
#define KVS_ENGINE_POOL_H

#include "common/base/status.h"
#include "common/collect/list.h"
#include "common/memory/allocator.h"
#include "kvstore/engine/engine.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { KVS_POOL_BINS = 256 };

struct kvs_region {
	struct kv_list link;    /* in the pool, oldest first */
	struct kv_list extents; /* by address */
	uint8_t *base;
	uint64_t bytes, used;
	uint32_t index;
	bool frozen; /* from before a restart: what becomes free in it is not used again */
	uint64_t empty_since_ms;    /* 0: it is not known to be empty */
	char owner[KVS_MAX_TENANT]; /* whose extents it holds; "" where all share */
};

struct kvs_extent {
	struct kv_list neighbours; /* in the region, by address */
	struct kv_list bin;        /* when free */
	struct kvs_region *region;
	uint64_t offset, bytes;
	bool used;
};

struct kvs_pool {
	struct kv_allocator *allocator;
	const struct kvs_environment *environment;
	uint64_t limit, usual_region;
	uint64_t total, used; /* bytes of regions, and of extents in use */
	struct kv_list regions;
	struct kv_list bins[KVS_POOL_BINS]; /* free extents by size class */
	uint32_t region_count, next_index;
	bool adopting;     /* frozen regions are being filled: empty ones stay */
	uint64_t refusals; /* regions that the environment did not make */
};

void kvs_pool_init(struct kvs_pool *pool, struct kv_allocator *allocator,
    const struct kvs_environment *environment, uint64_t limit, uint64_t usual_region);
/* Gives every region back; extents that are still in use are freed with them. */
void kvs_pool_deinit(struct kvs_pool *pool);

/* `owner`: a tenant whose extents lie in regions of their own, or "".
 * KV_LIMIT when no free extent is large enough and no region can be added; also other errors of
 * region_create, and KV_NO_MEMORY. `grow` false: only what is there. */
enum kv_status kvs_pool_take_for(struct kvs_pool *pool, const char *owner, uint64_t bytes,
    bool grow, struct kvs_extent **extent);
/* For the owner "". */
enum kv_status kvs_pool_take(
    struct kvs_pool *pool, uint64_t bytes, bool grow, struct kvs_extent **extent);
/* A frozen region goes with its last extent. */
void kvs_pool_give(struct kvs_pool *pool, struct kvs_extent *extent);

/* Add a frozen region of memory that is there already. KV_LIMIT, KV_NO_MEMORY. */
enum kv_status kvs_pool_adopt(
    struct kvs_pool *pool, const char *owner, uint64_t bytes, uint8_t *base, uint32_t *index);
/* The extent at exactly this place of a frozen region of that owner. KV_INVALID when it is not free
 * or not there. */
enum kv_status kvs_pool_take_at(struct kvs_pool *pool, const char *owner, uint32_t region,
    uint64_t offset, uint64_t bytes, struct kvs_extent **extent);

/* Give empty regions back to the environment. */
void kvs_pool_trim(struct kvs_pool *pool);

/* Give back what has been empty for `release_ms`, as far as earlier calls saw. Returns the bytes.
 */
uint64_t kvs_pool_release(struct kvs_pool *pool, uint64_t now, uint64_t release_ms);

/* NULL when no region has that index or the range is outside of it. */
uint8_t *kvs_pool_memory(
    const struct kvs_pool *pool, uint32_t region, uint64_t offset, uint64_t bytes);

void kvs_pool_statistics(const struct kvs_pool *pool, struct kvs_statistics *statistics);
enum kv_status kvs_pool_check(const struct kvs_pool *pool);

#ifdef __cplusplus
}
#endif
#endif
