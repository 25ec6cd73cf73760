/* The cluster cache as a device sees it that looks clusters up by itself (the lookup operation):
 * slots, chains of pages, and which slots its lookups used.
 *
 * Kernels trust the mirror, so it follows the cache strictly: each change of a slot is remembered,
 * and gw_cache_mirror_update queues all that is remembered before the lookups behind it. A slot
 * shows the rows that are valid (committed), never those that a round is about to fill; rows are
 * where their copies, queued earlier on the same stream, have put them. To empty the cache is one
 * number: slots carry the count of the times that it was emptied, which lookups compare.
 *
 * Changes go from one buffer that operations reach straight into place, by one copy operation as a
 * rule; by several where there are many (after a step that missed all, or that the host looked up).
 *
 * Which slots were used comes back as an array, downloaded with the step and read where the hand of
 * CLOCK passes: to have it in memory of the host would cost every lookup a write over the bus.
 */
#ifndef GW_CACHE_CACHE_MIRROR_H
#define GW_CACHE_CACHE_MIRROR_H

#include "gpu-worker/cache/cluster_cache.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copies that go with one operation, at most: their descriptors fit into what a stream has for them
 * from the start (64 KiB on CUDA), so that no update makes it take more. */
enum { GW_CACHE_MIRROR_COPIES = 2048 };

/* Device memory of the mirror of a cache of so many pages. */
size_t gw_cache_mirror_bytes(size_t pages);

/* Give a cache its mirror, on its own device, before it is used. Takes all memory. */
enum kv_status gw_cache_mirror_create(struct gw_cluster_cache *cache);

/* Queue what changed; *table is right for lookups that are queued behind, until the cache changes
 * again. May wait for the stream. Not while lookups that were queued before are not waited for. */
enum kv_status gw_cache_mirror_update(
    struct gw_cluster_cache *cache, struct kn_cache_table *table);

/* Behind the lookups of a step: bring back which slots they used, unless there is so much room that
 * nothing will have to leave soon. The next change of the cache must come after stream_wait. */
enum kv_status gw_cache_mirror_fetch_used(struct gw_cluster_cache *cache);

/* The stream was waited for since the last update: its buffer may be written again. */
void gw_cache_mirror_waited(struct gw_cluster_cache *cache);

/* Where lookups will find a cluster: `hint`, memory of the device, becomes `slot` with the next
 * update. Forgotten where there is no room, or before gw_cache_mirror_waited: any hint is right.
 */
void gw_cache_mirror_hint(struct gw_cluster_cache *cache, uint32_t *hint, uint32_t slot);
/* Memory of hints that is about to go. */
void gw_cache_mirror_forget_hints(struct gw_cluster_cache *cache, const void *start, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
