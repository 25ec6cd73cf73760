/* Which idle segment goes first: the variants of eviction, one file each.
 *
 * Idle are committed segments that no lease refers to and that have no stored child, so a child
 * goes before its parent whatever the variant. They lie in the engine's lists idle[queue], by
 * ascending rank; a segment's queue and rank are the variant's to choose.
 */
#ifndef KVS_ENGINE_EVICTION_H
#define KVS_ENGINE_EVICTION_H

#include "common/collect/hash_map.h"
#include "kvstore/engine/engine.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvs_segment;
struct kvs_tenant;

enum { KVS_IDLE_QUEUES = 2 };

struct kvs_eviction_ops {
	const char *name;
	enum kv_status (*create)(struct kvs_engine *engine);
	void (*destroy)(struct kvs_engine *engine);
	/* It has just become visible. */
	void (*stored)(struct kvs_engine *engine, struct kvs_segment *segment);
	/* A prompt or a resumed sequence has found it. */
	void (*found)(struct kvs_engine *engine, struct kvs_segment *segment);
	/* It is about to become idle: set queue and rank. */
	void (*idle)(struct kvs_engine *engine, struct kvs_segment *segment);
	/* It is about to go. */
	void (*gone)(struct kvs_engine *engine, struct kvs_segment *segment);
	/* The next to go among the tenant's, or of all (NULL); NULL when none is idle. */
	struct kvs_segment *(*victim)(struct kvs_engine *engine, const struct kvs_tenant *tenant);
};

extern const struct kvs_eviction_ops kvs_evict_lru, kvs_evict_s3fifo;
const struct kvs_eviction_ops *kvs_eviction_find(enum kvs_eviction eviction);

/* The first of idle[queue] that is the tenant's, or of all (NULL). */
struct kvs_segment *kvs_idle_first(
    struct kvs_engine *engine, uint32_t queue, const struct kvs_tenant *tenant);
/* File an idle segment into its queue by its rank. */
void kvs_idle_file(struct kvs_engine *engine, struct kvs_segment *segment);
/* Order what was filed while memory was adopted by when it was last used; the ranks stay those that
 * they have together. */
void kvs_idle_sort(struct kvs_engine *engine);
/* Evict the next of the tenant's, or of all (NULL); false when none is idle. */
bool kvs_evict_one(struct kvs_engine *engine, struct kvs_tenant *tenant);
/* Watermarks and idle times: called by the engine's tick. */
void kvs_eviction_tick(struct kvs_engine *engine, uint64_t now);

#ifdef __cplusplus
}
#endif
#endif
