/* The clusters of one layer of one sequence, for all its KV heads: what selection reads.
 *
 * Clusters are numbered across segments in list order. All memory is taken at creation; segments
 * are attached from the metadata of their stored units. The index never holds key/values. What
 * operations read is backend memory; what the worker looks up is its own.
 */
#ifndef GW_POLICY_CLUSTER_INDEX_H
#define GW_POLICY_CLUSTER_INDEX_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_cluster_index {
	struct kv_allocator *allocator;
	struct kn_device device;
	uint32_t kv_heads, head_dim;
	uint32_t capacity;        /* clusters for each head */
	uint32_t segment_capacity;
	uint32_t clusters;        /* attached so far, the same for every head */
	uint32_t segments;        /* list entries attached so far */
	uint64_t changes;         /* how often entries were attached or forgotten */
	/* KN_DEVICE, in one buffer that starts with the centroids: */
	uint16_t *centroids;      /* fp16 [kv_heads][capacity][head_dim] */
	uint16_t *value_means;    /* fp16 [kv_heads][capacity][head_dim] */
	uint32_t *device_sizes;   /* [kv_heads][capacity] */
	float *device_log_sizes;  /* [kv_heads][capacity]: ln(size) */
	/* The host's: */
	uint32_t *sizes;          /* [kv_heads][capacity] */
	float *log_sizes;         /* [kv_heads][capacity] */
	uint32_t *first_row;      /* [kv_heads][capacity]: where it starts in its unit's rows */
	uint32_t *segment_of;     /* [capacity]: list entry that the cluster belongs to */
	uint32_t *segment_first;  /* [segment_capacity]: first cluster of a list entry */
};

/* One head block's metadata of a stored unit, read where it lies (64-byte aligned). */
struct gw_unit_metadata {
	const uint16_t *centroids, *value_means;
	const uint32_t *sizes;
};

enum kv_status gw_cluster_index_create(struct kv_allocator *allocator,
	const struct kn_device *device, uint32_t kv_heads, uint32_t head_dim, uint32_t capacity,
	uint32_t segment_capacity, struct gw_cluster_index **index);
/* What one takes of a device's memory. */
size_t gw_cluster_index_bytes(uint32_t kv_heads, uint32_t head_dim, uint32_t capacity);
void gw_cluster_index_destroy(struct gw_cluster_index *index);

/* Attach list entry `segment`: the next one, or one that is attached (it is replaced by another
 * of the same number of clusters). heads[kv_heads]; `plain` rows come before the clusters,
 * `tokens` in all. What `heads` points at is memory of the host, which stays as it is until the
 * stream of `device`, which it is queued on, was waited for. KV_CORRUPT when sizes do not add up to
 * tokens - plain; KV_LIMIT when the index is full. */
enum kv_status gw_cluster_index_attach(struct gw_cluster_index *index,
	const struct kn_device *device, uint32_t segment, const struct gw_unit_metadata *heads,
	uint32_t clusters, uint32_t plain, uint32_t tokens);

/* Forget list entries from `segment` on. */
void gw_cluster_index_truncate(struct gw_cluster_index *index, uint32_t segment);

#ifdef __cplusplus
}
#endif
#endif
