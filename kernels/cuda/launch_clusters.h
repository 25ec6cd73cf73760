/* Launchers of the cluster kernels: index, score, select, lookup.
 *
 * Common to all of them: the argument struct itself is read on the host during the call; every
 * pointer in it, `jobs` too, is memory that the device may read and write as documented in
 * kernels/op_arguments.h, and is not read on the host. Everything is queued on `stream`, nothing is
 * allocated and nothing waits. Arguments must have passed the backend's checks: group up to
 * KN_MAX_GROUP, head_dim a multiple of KN_HEAD_DIM_STEP up to KN_MAX_HEAD_DIM, at most
 * KN_CUDA_MAX_JOBS jobs. No job at all is right and queues nothing. Bounds are on the host and hold
 * for each job of the list; scratch is device memory, 16-byte aligned, its contents arbitrary; it
 * may be used again by what is queued behind on the same stream. Returned is the first error of the
 * launches.
 */
#ifndef KN_CUDA_LAUNCH_CLUSTERS_H
#define KN_CUDA_LAUNCH_CLUSTERS_H

#include <cuda_runtime_api.h>

#include "kernels/op_arguments.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
	KN_CUDA_MAX_JOBS = 65535,    /* the grid's second dimension */
	KN_CUDA_CACHE_PAGE_ROWS = 16 /* KV rows of one page of the cluster cache */
};

/* How the rounds of k-means sum their members. Published centroids and value means are summed in
 * order in any case. */
enum kn_cuda_update {
	/* In ascending position: the bits of every other backend. The default. */
	KN_CUDA_UPDATE_ORDERED = 0,
	/* The paper's kernel with 16 or 32 channel partitions: fp32 atomics in shared memory, so bits
	 * differ from run to run. For `clusterkv-paper`. cudaErrorInvalidConfiguration above about
	 * 3,400 clusters a job (1,500 where a block has 99 KiB of shared memory) with 16, half as many
	 * with 32. */
	KN_CUDA_UPDATE_PAPER_16 = 16,
	KN_CUDA_UPDATE_PAPER_32 = 32
};

struct kn_cuda_index_bounds {
	uint32_t jobs;           /* ≥ job_count */
	uint32_t rows, clusters; /* ≥ n and ≥ clusters of each job */
	uint32_t head_dim;       /* ≥ head_dim */
};

/* About jobs × (4 × clusters × head_dim + 24 × rows + 20 × clusters) bytes. */
size_t kn_cuda_index_scratch_bytes(const struct kn_cuda_index_bounds *bounds);

/* The index operation, with the CPU backend's bits for f16 and f32 rows: start, then for each
 * iteration assign, refill and update, then the published arrays. When to stop is decided on the
 * device: the launches of later iterations find that and end at once. */
cudaError_t kn_cuda_index(const struct kn_index_arguments *a,
    const struct kn_cuda_index_bounds *bounds, enum kn_cuda_update update, void *scratch,
    cudaStream_t stream);

size_t kn_cuda_score_scratch_bytes(uint32_t jobs, uint32_t max_clusters, uint32_t group);

/* The score operation: logits and partial softmax sums by tiles of clusters, then votes. Jobs
 * without clusters are right. Centroids are read 16 bytes at a time: they start at a multiple. */
cudaError_t kn_cuda_score(
    const struct kn_score_arguments *a, uint32_t max_clusters, void *scratch, cudaStream_t stream);

/* The select operation: one block a job, any number of clusters; its scratch is the jobs'. */
cudaError_t kn_cuda_select(const struct kn_select_arguments *a, cudaStream_t stream);

/* A slot of the cluster cache as the device sees it. */
struct kn_cache_slot {
	uint64_t generation;           /* the store's boot generation; 0: the slot is free */
	uint64_t segment;              /* never reused within a generation */
	uint32_t layer, head, cluster; /* the cluster's number in its segment */
	uint32_t held;                 /* leading rows that are valid */
	uint32_t first_page;           /* of its chain */
	uint32_t unused;
};

/* The cluster cache, shared by all sequences of a worker. Written by the host (or copies queued by
 * it), never while a lookup may run. */
struct kn_cache_table {
	const struct kn_cache_slot *slots; /* [slot_count] */
	const uint32_t *next_page;         /* [pages]: chains of a slot's pages in row order */
	const uint8_t *memory;             /* [pages][KN_CUDA_CACHE_PAGE_ROWS][row_bytes] */
	uint32_t *used_step;               /* [slot_count] or NULL: raised to `step` where looked up */
	size_t row_bytes;
	uint64_t generation; /* the current one, not 0 */
	uint32_t slot_count;
	uint32_t step; /* of the worker, ascending */
};

/* An extent that is not, or not whole, in the cache. */
struct kn_lookup_miss {
	uint32_t extent; /* its number in the job's list */
	uint32_t slot;   /* the slot that holds its leading rows; UINT32_MAX: none */
	uint32_t held;   /* those rows, below the extent's count; 0 without a slot */
};

struct kn_lookup_counts {
	uint32_t spans;  /* written, `before` and `after` among them */
	uint32_t misses; /* entries of the miss list */
	uint32_t hit_tokens, miss_tokens;
};

/* One (sequence, KV head) of a lookup. Clusters are numbered across the sequence's segments, as in
 * selection; hints[c] says where cluster c may be, any value is allowed: a hint counts only where
 * the slot's generation, segment, layer, head and cluster are the wanted ones. */
struct kn_lookup_job {
	const struct kn_extent *extents;         /* of the selection */
	const struct kn_select_counts *selected; /* its extent count */
	const uint32_t *hints;                   /* [clusters]: slots */
	const uint32_t *segment_of;              /* [clusters]: the list entry that it belongs to */
	const uint32_t *segment_first;           /* [entries]: first cluster of a list entry */
	const uint64_t *segment_ids;             /* [entries] */
	uint32_t layer, head;
	struct kn_span before, after; /* sinks and window: first and last span; count 0: none */
	/* Out: where attention finds the extents' rows, in order; adjoining pages of an extent are one
	 * span. Room for 2 + extents + tokens / KN_CUDA_CACHE_PAGE_ROWS. An extent that is missed has
	 * none: the job may be attended to only when its misses are filled and it was looked up anew,
	 * or when the user allows that what is missed is estimated. */
	struct kn_span *spans;
	uint32_t *span_count;            /* out, e.g. in the device's copy of the attention job */
	struct kn_lookup_miss *misses;   /* out, in order of extents; room for all */
	struct kn_lookup_counts *counts; /* out */
};
struct kn_lookup_arguments {
	const struct kn_lookup_job *jobs;
	uint32_t job_count;
	struct kn_cache_table cache;
	/* Out: misses of all jobs. 0: the step needs no fetch, and what is queued behind may go on
	 * without the host. In memory that the host sees it is what the host waits for. */
	uint32_t *missed;
};

/* cluster → slot → spans for each selected extent, one block a job. */
cudaError_t kn_cuda_lookup(const struct kn_lookup_arguments *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
