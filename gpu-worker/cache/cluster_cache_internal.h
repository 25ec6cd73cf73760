/* What cluster_cache.c and cache_mirror.c share. Private to this folder. */
#ifndef GW_CACHE_CLUSTER_CACHE_INTERNAL_H
#define GW_CACHE_CLUSTER_CACHE_INTERNAL_H

#include "common/collect/hash_map.h"
#include "gpu-worker/cache/cache_mirror.h"
#include "gpu-worker/cache/cluster_cache.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A key without padding, as the map compares bytes. */
struct gw_map_key {
	uint64_t segment;
	uint32_t layer, head, cluster, zero;
};

/* One cache line. */
struct gw_cache_slot {
	struct gw_map_key key;
	uint32_t first_page, last_page; /* chain, in row order */
	uint32_t held;      /* leading rows that are valid */
	uint32_t wanted;    /* after this round's commit; ≥ held */
	uint64_t pin_round; /* == cache->round: may not be evicted */
	uint64_t used_step;
	uint32_t pages : 30;
	uint32_t referenced : 1; /* CLOCK's bit */
	uint32_t used : 1;       /* in use */
	uint32_t cleared_step; /* when that bit was cleared: what the device used later, counts */
};

struct gw_cache_mirror;

struct gw_cluster_cache {
	struct gw_cache_options options;
	uint8_t *memory;            /* [page_count][GW_CACHE_PAGE_ROWS][row_bytes] */
	uint32_t page_count, free_pages, free_first;
	uint32_t *next_page;        /* [page_count]: chains of slots and of free pages */
	struct gw_cache_slot *slots;/* [page_count], aligned: a slot has at least one page */
	uint32_t *free_slots;       /* stack */
	uint32_t free_slot_count, hand, used_slots;
	uint32_t *pending;          /* slots to be filled this round */
	uint32_t pending_count;
	uint32_t pinned_pages;      /* of slots that this round uses */
	struct kv_hash_map *map;
	uint64_t round, step;
	struct gw_cache_stats stats;
	struct gw_cache_mirror *mirror; /* NULL: no device looks up by itself */
};

/* cache_mirror.c; all of them do nothing without a mirror. */
void gw_cache_mirror_destroy(struct gw_cluster_cache *cache);
/* What the device knows of a slot is not so any more. */
void gw_cache_mirror_changed(struct gw_cluster_cache *cache, uint32_t slot);
/* Nothing of it is. */
void gw_cache_mirror_cleared(struct gw_cluster_cache *cache);
/* The last step in which the device used a slot, as far as was heard of; 0: none. */
uint32_t gw_cache_mirror_used_step(const struct gw_cluster_cache *cache, uint32_t slot);

#ifdef __cplusplus
}
#endif
#endif
