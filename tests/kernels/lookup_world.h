/* A cluster cache with sequences that look for clusters in it, and what they must find: for the
 * lookup of the cpu backend and of CUDA alike. Include cmocka's headers before this one. */
#ifndef KVT_LOOKUP_WORLD_H
#define KVT_LOOKUP_WORLD_H

#include "tests/kernels/kv_rows.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __SANITIZE_THREAD__
enum { KVT_LOOKUP_CLUSTERS = 60, KVT_LOOKUP_EXTENTS = 50 };
#else
/* More extents than a block has threads. */
enum { KVT_LOOKUP_CLUSTERS = 320, KVT_LOOKUP_EXTENTS = 300 };
#endif
enum {
	KVT_LOOKUP_JOBS = 5,    /* (sequence, KV head); the first selects nothing */
	KVT_LOOKUP_TWIN = 2,    /* it has the segments of the job before it */
	KVT_LOOKUP_ENTRIES = 5, /* of a sequence's list of segments */
	KVT_LOOKUP_ROWS = 40,   /* of a cluster, at most */
	KVT_LOOKUP_OWN = 30,    /* rows of a sequence before and after the selected ones, at most */
	KVT_LOOKUP_HEAD_DIM = 8,
	KVT_LOOKUP_GROUP = 2,
	KVT_LOOKUP_ROW_BYTES = 4 * KVT_LOOKUP_HEAD_DIM, /* f16 */
	KVT_LOOKUP_SLOTS = KVT_LOOKUP_JOBS * KVT_LOOKUP_CLUSTERS,
	KVT_LOOKUP_PAGES = 4 * KVT_LOOKUP_SLOTS,
	KVT_LOOKUP_STEP = 17,
	KVT_LOOKUP_SPANS = 2 + KVT_LOOKUP_EXTENTS * (1 + KVT_LOOKUP_ROWS / KN_CACHE_PAGE_ROWS),
	KVT_LOOKUP_BLOCKS = 100
};

struct kvt_lookup_head {
	struct kn_extent extents[KVT_LOOKUP_EXTENTS];
	struct kn_select_counts selected;
	uint32_t hints[KVT_LOOKUP_CLUSTERS], segment_of[KVT_LOOKUP_CLUSTERS];
	uint32_t sizes[KVT_LOOKUP_CLUSTERS], first_row[KVT_LOOKUP_CLUSTERS];
	uint32_t segment_first[KVT_LOOKUP_ENTRIES];
	uint64_t segment_ids[KVT_LOOKUP_ENTRIES];
	int unreachable[KVT_LOOKUP_ENTRIES];
	uint32_t layer, head, before, after;
};

struct kvt_lookup_world {
	struct kvt_lookup_head heads[KVT_LOOKUP_JOBS];
	struct kn_cache_slot slots[KVT_LOOKUP_SLOTS];
	uint32_t next_page[KVT_LOOKUP_PAGES], used_step[KVT_LOOKUP_SLOTS];
	uint32_t pages; /* handed out */
	uint32_t staging_rows, copy_capacity;
	uint8_t cache[KVT_LOOKUP_PAGES * KN_CACHE_PAGE_ROWS * KVT_LOOKUP_ROW_BYTES];
	/* A job's units one after the other, each without gaps. */
	uint8_t units[KVT_LOOKUP_JOBS][KVT_LOOKUP_CLUSTERS * KVT_LOOKUP_ROWS * KVT_LOOKUP_ROW_BYTES];
	uint8_t own[KVT_LOOKUP_JOBS][2 * KVT_LOOKUP_OWN * KVT_LOOKUP_ROW_BYTES];
};

/* Where a backend's memory comes from. */
struct kvt_lookup_memory {
	void *(*upload)(const void *host, size_t bytes);
	void *(*fetch)(const void *memory, size_t bytes); /* a copy, freed with kvt_free */
	void (*free)(void *memory);
};

/* The arguments of a lookup, all in a backend's memory but for `jobs` and what is in them. */
struct kvt_lookup_placed {
	struct kn_lookup_arguments a;
	struct kn_lookup_job jobs[KVT_LOOKUP_JOBS];
	struct kvt_lookup_memory memory;
	void *blocks[KVT_LOOKUP_BLOCKS];
	uint32_t block_count;
	const uint8_t *units;
};

/* Hits, misses, slots that hold too little, slots of others, broken chains and hints of any value;
 * staging has room for all. */
struct kvt_lookup_world *kvt_lookup_world_create(uint64_t seed);
/* Every extent is held whole. */
void kvt_lookup_world_heal(struct kvt_lookup_world *world);
/* Rows and extents that are missed. */
struct kvt_lookup_missed {
	uint32_t rows, extents;
};
struct kvt_lookup_missed kvt_lookup_missed(const struct kvt_lookup_world *world);

void kvt_lookup_place(const struct kvt_lookup_world *world, const struct kvt_lookup_memory *memory,
    struct kvt_lookup_placed *placed);
void kvt_lookup_remove(struct kvt_lookup_placed *placed);

/* Fail the test unless a lookup of `placed` left what it should. Returns a digest of it, the same
 * wherever memory and staged rows are. `failed`: the bits that must be set. Where something found
 * no room, that it is left out wholly is all that is asked of it. */
uint64_t kvt_lookup_check(
    struct kvt_lookup_world *world, const struct kvt_lookup_placed *placed, uint32_t failed);

/* All rows that a job attends to, in order; freed with kvt_free. */
uint8_t *kvt_lookup_rows(const struct kvt_lookup_world *world, uint32_t job, uint32_t *count);

#ifdef __cplusplus
}
#endif
#endif
