/* The index operation: which kernels in which order. */
#include "kernels/cuda/compat.h"
#include "kernels/cuda/index_work.h"
#include "kernels/cuda/launch_clusters.h"

extern "C" size_t kn_cuda_index_scratch_bytes(const struct kn_cuda_index_bounds *bounds)
{
	struct kn_index_work w = {};

	w.rows = bounds->rows;
	w.clusters = bounds->clusters;
	w.head_dim = bounds->head_dim;
	return bounds->jobs * kn_index_job_bytes(&w);
}

static cudaError_t update(const kn_index_work *w, enum kn_cuda_update how, cudaStream_t stream)
{
	if (how == KN_CUDA_UPDATE_ORDERED) return kn_cuda_update_centroids(w, stream);
	return kn_cuda_update_centroids_paper(w, (uint32_t)how, stream);
}

extern "C" cudaError_t kn_cuda_index(const struct kn_index_arguments *a,
    const struct kn_cuda_index_bounds *bounds, enum kn_cuda_update how, void *scratch,
    cudaStream_t stream)
{
	const struct kn_index_work w = {a->jobs, (uint8_t *)scratch, a->job_count, bounds->rows,
	    bounds->clusters, a->head_dim, a->iterations, a->kv_type, a->center};

	if (a->job_count == 0) return cudaSuccess;
	cudaError_t status = kn_cuda_start_index(&w, stream);

	for (uint32_t round = 0; round < a->iterations && status == cudaSuccess; round++) {
		status = kn_cuda_assign_keys(&w, round, stream);
		if (status == cudaSuccess) status = kn_cuda_order_members(&w, round, stream);
		if (status == cudaSuccess && round + 1 < a->iterations) status = update(&w, how, stream);
	}
	if (status == cudaSuccess) status = kn_cuda_publish_means(&w, stream);
	if (status == cudaSuccess) status = kn_cuda_order_rows(&w, stream);
	return status;
}
