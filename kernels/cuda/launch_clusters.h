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

enum { KN_CUDA_MAX_JOBS = 65535 }; /* the grid's second dimension */

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

/* The paper's kernel with as many channel partitions as suit the head and leave room for the
 * clusters in shared memory; ORDERED where there is none for them. */
cudaError_t kn_cuda_choose_update(
    const struct kn_cuda_index_bounds *bounds, enum kn_cuda_update *update);

size_t kn_cuda_score_scratch_bytes(uint32_t jobs, uint32_t max_clusters, uint32_t group);

/* The score operation: logits and partial softmax sums by tiles of clusters, then votes. Jobs
 * without clusters are right. Centroids are read 16 bytes at a time: they start at a multiple. */
cudaError_t kn_cuda_score(
    const struct kn_score_arguments *a, uint32_t max_clusters, void *scratch, cudaStream_t stream);

/* The select operation: one block a job, any number of clusters; its scratch is the jobs'. */
cudaError_t kn_cuda_select(const struct kn_select_arguments *a, cudaStream_t stream);

/* The lookup operation, one block a job; copy_count is zeroed even without a job. */
cudaError_t kn_cuda_lookup(const struct kn_lookup_arguments *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
