/* Centroids: the first ones, those for the next assignment, and what is published.
 *
 * update_kernel and publish_kernel sum in ascending position, as every backend does: one block a
 * cluster, one thread a channel, members in the order that order_members put them into.
 * Neighbouring threads read neighbouring channels of one row. A thread's chain of additions is as
 * long as its cluster, some 32 members as a rule, hundreds in a large one: the lanes of a warp
 * bring the numbers of 32 members at once, and 16 rows are under way before the first is added.
 * Shared memory: the centroid, 1 KiB, for its norm. Registers 40 to 59 (66 of mean_kernel, with 64
 * rows under way): 1,024 threads on a multiprocessor, whose loads hide each other.
 *
 * paper_kernel is the paper's (ClusterKV, arXiv 2412.03213, "kernel-level optimization"), for
 * `clusterkv-paper`. 512 threads, P of them (16 or 32) for the channels of a key, 512 / P keys at a
 * time; thread p of a key has channels p, p + P, … Keys that are added at the same time are a
 * stretch of n / (512 / P) rows apart in the text, as neighbours tend to be in the same cluster and
 * would meet in the same sums. Sums and counts are in shared memory, added to with atomics, in fp32
 * (the paper's own program sums in fp16, and loses small members of large clusters).
 * Shared memory: clusters × (channels + 1) × 4 bytes, which decides the occupancy. 400 clusters of
 * 128 channels take 206 KB, one block on a multiprocessor of 227 KiB. What does not fit is cut by
 * channels over several blocks, each of which reads the labels again, and as many run side by side.
 * P = 32: a warp adds one key to 32 neighbouring banks, without a conflict, but walks twice as many
 * keys one after the other; P = 16: two keys a warp, which meet where they have a cluster or a bank
 * in common. Registers 30.
 */
#include "kernels/backend.h"
#include "kernels/cuda/cluster_common.cuh"
#include "kernels/cuda/index_work.h"
#include "kernels/cuda/kv_element.cuh"
#include "kernels/cuda/launch_clusters.h"

enum {
	PAPER_THREADS = 512,
	NORM_THREADS = 128,
	MAX_THREADS = 2 * KN_MAX_HEAD_DIM,
	MEMBERS = 16, /* loaded at once by a thread: members of a cluster, */
	ROWS = 64     /* and rows for the mean of all */
};

/* One thread: the norm of a centroid, 1 for 0. */
static __device__ float norm_of(const float *centroid, uint32_t head_dim)
{
	float square = 0.0f;

#pragma unroll 8
	for (uint32_t d = 0; d < head_dim; d++)
		square = fmaf(centroid[d], centroid[d], square);
	return square == 0.0f ? 1.0f : sqrtf(square);
}

/* All threads, one a channel: centroid `c` and its norm. */
static __device__ void set_centroid(
    const kn_index_arrays *s, uint32_t c, uint32_t head_dim, float mean)
{
	__shared__ float centroid[KN_MAX_HEAD_DIM];
	uint32_t d = threadIdx.x;

	if (d < head_dim) {
		centroid[d] = mean - s->mean[d];
		s->centroids[(size_t)c * head_dim + d] = centroid[d];
	}
	__syncthreads();
	if (d == 0) s->norms[c] = norm_of(centroid, head_dim);
}

/* The sum of BATCH rows' channel `d`, onto `sum`, in order: all of them are loaded before the first
 * is added. row(k) is row number k of them, of which there are `count`. */
template <typename T, int BATCH, typename Row>
static __device__ float add_rows(
    const kn_index_job *job, uint32_t count, uint32_t d, float sum, Row row)
{
	float x[BATCH];

#pragma unroll
	for (uint32_t k = 0; k < BATCH; k++) {
		uint32_t i = row(k);

		x[k] = k < count ? kn_element<T>(job->rows + i * job->row_stride, d) : 0.0f;
	}
#pragma unroll
	for (uint32_t k = 0; k < BATCH; k++)
		sum = k < count ? sum + x[k] : sum;
	return sum;
}

/* The mean of channel `d` over the members of cluster `c`; channels from head_dim on are values.
 * For whole warps: each lane has a member of the next KN_WARP at hand. */
template <typename T>
static __device__ float mean_of(
    const kn_index_job *job, const kn_index_arrays *s, uint32_t c, uint32_t d)
{
	uint32_t first = s->starts[c], last = s->starts[c + 1];
	float sum = 0.0f;

	for (uint32_t base = first; base < last; base += KN_WARP) {
		uint32_t own = base + threadIdx.x % KN_WARP;
		uint32_t member = own < last ? s->members[own] : 0;

		for (uint32_t i = 0; i < KN_WARP && base + i < last; i += MEMBERS)
			sum = add_rows<T, MEMBERS>(job, last - base - i, d, sum,
			    [=](uint32_t k) { return __shfl_sync(kn_all_lanes, member, i + k); });
	}
	return sum / (float)(last - first);
}

/* The mean key: a chain of n additions for each channel, once a job. */
template <typename T> static __global__ void mean_kernel(kn_index_work w)
{
	const kn_index_job *job = &w.jobs[blockIdx.y];
	const kn_index_arrays s = kn_index_arrays_of(&w, blockIdx.y);
	uint32_t d = blockIdx.x * blockDim.x + threadIdx.x;
	uint32_t n = w.center ? job->n : 0;
	float sum = 0.0f;

	if (d >= w.head_dim) return;
	for (uint32_t i = 0; i < n; i += ROWS)
		sum = add_rows<T, ROWS>(job, n - i, d, sum, [=](uint32_t k) { return i + k; });
	s.mean[d] = sum / (float)job->n;
}

/* Centroid c is key floor(c * n / clusters). */
template <typename T>
static __global__ void __launch_bounds__(KN_MAX_HEAD_DIM) start_kernel(kn_index_work w)
{
	const kn_index_job *job = &w.jobs[blockIdx.y];
	const kn_index_arrays s = kn_index_arrays_of(&w, blockIdx.y);
	uint32_t c = blockIdx.x;

	if (c >= job->clusters) return;
	size_t key = (size_t)((uint64_t)c * job->n / job->clusters);
	const uint8_t *row = job->rows + key * job->row_stride;

	if (threadIdx.x == 0) {
		s.counts[c] = 0;
		if (c == 0) s.state->done = s.state->changed = 0;
	}
	set_centroid(
	    &s, c, w.head_dim, threadIdx.x < w.head_dim ? kn_element<T>(row, threadIdx.x) : 0.0f);
}

template <typename T>
static __global__ void __launch_bounds__(KN_MAX_HEAD_DIM) update_kernel(kn_index_work w)
{
	const kn_index_job *job = &w.jobs[blockIdx.y];
	const kn_index_arrays s = kn_index_arrays_of(&w, blockIdx.y);
	uint32_t c = blockIdx.x, d = min(threadIdx.x, w.head_dim - 1);

	if (c >= job->clusters || s.state->done) return;
	set_centroid(&s, c, w.head_dim, mean_of<T>(job, &s, c, d));
}

template <typename T>
static __global__ void __launch_bounds__(MAX_THREADS) publish_kernel(kn_index_work w)
{
	const kn_index_job *job = &w.jobs[blockIdx.y];
	const kn_index_arrays s = kn_index_arrays_of(&w, blockIdx.y);
	uint32_t c = blockIdx.x, d = min(threadIdx.x, 2 * w.head_dim - 1);

	if (c >= job->clusters) return;
	uint16_t mean = (uint16_t)kn_narrow_f16(mean_of<T>(job, &s, c, d));

	if (d != threadIdx.x) return;
	if (d < w.head_dim)
		job->centroids[(size_t)c * w.head_dim + d] = mean;
	else
		job->value_means[(size_t)c * w.head_dim + d - w.head_dim] = mean;
}

/* Channels [blockIdx.x * slice, …) of one job. */
template <typename T, int P>
static __global__ void __launch_bounds__(PAPER_THREADS)
    paper_kernel(kn_index_work w, uint32_t slice)
{
	DYN_SHARED(float, sums); /* [clusters][slice], then counts [clusters] */
	const kn_index_job *job = &w.jobs[blockIdx.y];
	const kn_index_arrays s = kn_index_arrays_of(&w, blockIdx.y);
	uint32_t *counts = reinterpret_cast<uint32_t *>(sums + (size_t)w.clusters * slice);
	uint32_t first = blockIdx.x * slice;
	uint32_t channels = w.head_dim - first < slice ? w.head_dim - first : slice;
	uint32_t stretch = (job->n + PAPER_THREADS / P - 1) / (PAPER_THREADS / P);
	uint32_t key = threadIdx.x / P * stretch, part = threadIdx.x % P;

	if (s.state->done) return;
	for (uint32_t i = threadIdx.x; i < job->clusters * slice; i += PAPER_THREADS)
		sums[i] = 0.0f;
	for (uint32_t i = threadIdx.x; i < job->clusters; i += PAPER_THREADS)
		counts[i] = 0;
	__syncthreads();
	for (uint32_t i = 0; i < stretch && key + i < job->n; i++) {
		const uint8_t *row = job->rows + (key + i) * job->row_stride;
		uint32_t label = s.labels[key + i];

		for (uint32_t d = part; d < channels; d += P)
			atomicAdd(&sums[label * slice + d], kn_element<T>(row, first + d));
		if (part == 0) atomicAdd(&counts[label], 1u);
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < job->clusters * slice; i += PAPER_THREADS) {
		uint32_t c = i / slice, d = first + i % slice;

		if (d < w.head_dim)
			s.centroids[(size_t)c * w.head_dim + d] = sums[i] / (float)counts[c] - s.mean[d];
	}
}

static __global__ void norms_kernel(kn_index_work w)
{
	const kn_index_arrays s = kn_index_arrays_of(&w, blockIdx.y);
	uint32_t c = blockIdx.x * NORM_THREADS + threadIdx.x;

	if (c >= w.jobs[blockIdx.y].clusters || s.state->done) return;
	s.norms[c] = norm_of(s.centroids + (size_t)c * w.head_dim, w.head_dim);
}

/* Threads for `channels`, in whole warps. */
static unsigned threads_for(uint32_t channels)
{
	return (channels + KN_WARP - 1) / KN_WARP * KN_WARP;
}

extern "C" cudaError_t kn_cuda_start_index(const struct kn_index_work *w, cudaStream_t stream)
{
	return kn_launch_typed(w->kv_type, [=](auto element) {
		using T = decltype(element);
		unsigned threads = threads_for(w->head_dim);

		LAUNCH((mean_kernel<T>), dim3(threads / KN_WARP, w->job_count), KN_WARP, 0, stream, *w);
		LAUNCH((start_kernel<T>), dim3(w->clusters, w->job_count), threads, 0, stream, *w);
	});
}

extern "C" cudaError_t kn_cuda_update_centroids(const struct kn_index_work *w, cudaStream_t stream)
{
	return kn_launch_typed(w->kv_type, [=](auto element) {
		dim3 grid(w->clusters, w->job_count);

		LAUNCH((update_kernel<decltype(element)>), grid, threads_for(w->head_dim), 0, stream, *w);
	});
}

extern "C" cudaError_t kn_cuda_publish_means(const struct kn_index_work *w, cudaStream_t stream)
{
	return kn_launch_typed(w->kv_type, [=](auto element) {
		dim3 grid(w->clusters, w->job_count);

		LAUNCH(
		    (publish_kernel<decltype(element)>), grid, threads_for(2 * w->head_dim), 0, stream, *w);
	});
}

/* As few slices of the channels as shared memory allows, each a multiple of P; 0: not even P. */
static uint32_t slice_for(const kn_index_work *w, uint32_t p, size_t shared_bytes)
{
	for (uint32_t slices = 1;; slices++) {
		uint32_t slice = (w->head_dim + slices * p - 1) / (slices * p) * p;

		if ((size_t)w->clusters * (slice + 1) * sizeof(float) <= shared_bytes) return slice;
		if (slice == p) return 0;
	}
}

/* Bytes of shared memory that a block can have. */
static cudaError_t shared_limit(int *limit)
{
	int device;
	cudaError_t status = cudaGetDevice(&device);

	if (status != cudaSuccess) return status;
	return cudaDeviceGetAttribute(limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
}

extern "C" cudaError_t kn_cuda_choose_update(
    const struct kn_cuda_index_bounds *bounds, enum kn_cuda_update *update)
{
	kn_index_work w = {};
	int limit;
	cudaError_t status = shared_limit(&limit);

	if (status != cudaSuccess) return status;
	w.clusters = bounds->clusters;
	w.head_dim = bounds->head_dim;
	*update = KN_CUDA_UPDATE_ORDERED;
	if (slice_for(&w, 16, (size_t)limit) != 0) *update = KN_CUDA_UPDATE_PAPER_16;
	if (w.head_dim % 32 == 0 && slice_for(&w, 32, (size_t)limit) != 0)
		*update = KN_CUDA_UPDATE_PAPER_32;
	return cudaSuccess;
}

template <typename T, int P>
static cudaError_t launch_paper(const kn_index_work *w, cudaStream_t stream)
{
	int limit;
	cudaError_t status = shared_limit(&limit);

	if (status != cudaSuccess) return status;
	uint32_t slice = slice_for(w, P, (size_t)limit);
	size_t bytes = (size_t)w->clusters * (slice + 1) * sizeof(float);
	dim3 grid(slice != 0 ? (w->head_dim + slice - 1) / slice : 0, w->job_count);
	dim3 norm_grid((w->clusters + NORM_THREADS - 1) / NORM_THREADS, w->job_count);

	if (slice == 0) return cudaErrorInvalidConfiguration;
	status = cudaFuncSetAttribute(
	    (const void *)paper_kernel<T, P>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
	if (status != cudaSuccess) return status;
	LAUNCH((paper_kernel<T, P>), grid, PAPER_THREADS, bytes, stream, *w, slice);
	LAUNCH(norms_kernel, norm_grid, NORM_THREADS, 0, stream, *w);
	return cudaGetLastError();
}

extern "C" cudaError_t kn_cuda_update_centroids_paper(
    const struct kn_index_work *w, uint32_t partitions, cudaStream_t stream)
{
	cudaError_t status = cudaSuccess;
	cudaError_t launched = kn_launch_typed(w->kv_type, [&](auto element) {
		using T = decltype(element);

		status = partitions == 16 ? launch_paper<T, 16>(w, stream) : launch_paper<T, 32>(w, stream);
	});

	return status != cudaSuccess ? status : launched;
}
