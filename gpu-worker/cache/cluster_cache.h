/* The cluster cache: KV rows of selected clusters, kept in the worker up to a number of bytes.
 *
 * A slot holds the leading rows of one cluster of one KV head, in pages of GW_CACHE_PAGE_ROWS
 * rows. Slots are looked up by (segment id, layer, KV head, cluster); segment ids are never
 * reused within a boot generation, and the cache is emptied when the generation changes. A decode
 * step asks for thousands of clusters, most of which it asked for in the step before: a caller may
 * keep a hint for each, with which a slot is found without a search. A hint is never trusted.
 * Eviction is CLOCK over slots; what the current round uses is pinned. With `recency` R > 0 a
 * slot also leaves when it was not used in the last R steps (the paper's rule).
 *
 * A round: begin → acquire for each extent → the caller fills the missing rows → commit (or
 * abandon, which forgets the rows that were to be filled and keeps those that were held: extents of
 * this round that are not pending may still be read).
 */
#ifndef GW_CACHE_CLUSTER_CACHE_H
#define GW_CACHE_CLUSTER_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GW_CACHE_PAGE_ROWS = KN_CACHE_PAGE_ROWS };

struct gw_cluster_cache;

struct gw_cache_key {
	uint64_t segment;
	uint32_t layer, head, cluster;
};

struct gw_cache_options {
	struct kv_allocator *allocator;
	struct kn_device device;   /* the rows are KN_DEVICE memory of it */
	uint64_t capacity_bytes;   /* rounded down to pages */
	size_t row_bytes;
	uint64_t warm_bytes;       /* written at creation, so that first steps do not wait for pages */
	uint32_t recency;          /* 0: by bytes alone */
};

struct gw_cache_stats {
	uint64_t hit_bytes, miss_bytes;
	uint64_t hit_tokens, miss_tokens;
	uint64_t hit_clusters, miss_clusters; /* a partly held extent is a miss by clusters */
	uint64_t evictions;
	uint64_t used_bytes, capacity_bytes;
};

/* Add the hits and misses between two states of figures; `from` NULL: all of `to`. */
void gw_cache_stats_add(struct gw_cache_stats *sum, const struct gw_cache_stats *from,
	const struct gw_cache_stats *to);

/* Where an extent's rows are (or are to be put). The pages are chained. */
struct gw_cache_grant {
	uint32_t slot;             /* UINT32_MAX: not cached, the caller stages the whole extent */
	uint32_t held;             /* leading rows that are valid */
	uint32_t pending;          /* 1: some are filled in this round, if by an earlier extent */
};

enum kv_status gw_cluster_cache_create(const struct gw_cache_options *options,
	struct gw_cluster_cache **cache);
void gw_cluster_cache_destroy(struct gw_cluster_cache *cache);

/* A new decode step (for recency); a new round of pins. */
void gw_cluster_cache_step(struct gw_cluster_cache *cache);
void gw_cluster_cache_begin(struct gw_cluster_cache *cache);

/* Find or make room for the leading `count` rows of a cluster, and pin it for this round.
 * hint: NULL, or where the slot may be (any value is allowed); the slot that was found is put there
 * for the next time. */
struct gw_cache_grant gw_cluster_cache_acquire(struct gw_cluster_cache *cache,
	const struct gw_cache_key *key, uint32_t count, uint32_t *hint);

/* The same for rows that a device has used already, and lies where they can be copied from: it is
 * no access, gw_cluster_cache_count tells of those. */
struct gw_cache_grant gw_cluster_cache_admit(struct gw_cluster_cache *cache,
	const struct gw_cache_key *key, uint32_t count, uint32_t *hint);
/* Add what a device's own lookups found (hits and misses) to the figures. */
void gw_cluster_cache_count(struct gw_cluster_cache *cache, const struct gw_cache_stats *found);

/* Where a cluster is, without use of it: *hint becomes its slot; where it has none, it stays. */
void gw_cluster_cache_find(const struct gw_cluster_cache *cache, const struct gw_cache_key *key,
	uint32_t *hint);

/* Start to load what acquire will read for a hint. */
void gw_cluster_cache_prefetch(const struct gw_cluster_cache *cache, uint32_t hint);

/* The memory of rows [from, to) of a granted slot, as runs of contiguous rows. Returns how many
 * spans were written; `spans` has room for (to - from + 30) / 16 + 1. */
uint32_t gw_cluster_cache_spans(const struct gw_cluster_cache *cache, uint32_t slot, uint32_t from,
	uint32_t to, struct kn_span *spans);

/* The rows granted in this round are filled and valid / will not be filled. */
void gw_cluster_cache_commit(struct gw_cluster_cache *cache);
void gw_cluster_cache_abandon(struct gw_cluster_cache *cache);

/* Forget everything (another boot generation). */
void gw_cluster_cache_clear(struct gw_cluster_cache *cache);

struct gw_cache_stats gw_cluster_cache_stats(const struct gw_cluster_cache *cache);

#ifdef __cplusplus
}
#endif
#endif
