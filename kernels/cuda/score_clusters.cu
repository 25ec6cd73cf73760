/* Scoring: logits of all centroids for a whole query group in one pass over them, and votes.
 *
 * score_kernel: a block takes 128 clusters of one job. Eight lanes share a centroid, each with 8
 * channels of every 64, which is one 16-byte load; four centroids at a time, so that a query's
 * channels are read from shared memory once for four of them. The group is rounded up to a power of
 * two for the sums in registers. A logit is each lane's chain of fused multiply-adds over its
 * channels, then the lanes' in a fixed tree: so it depends on its query and centroid alone. The
 * block then leaves the maximum and the sum of each query head's softmax over its clusters.
 * votes_kernel: each block merges those of all the job's tiles, always in the same order, and
 * writes the votes of its own tile. So both launches fill the device, whether there are many jobs
 * or many clusters.
 *
 * score_kernel reads each centroid once and is bounded by memory. Shared memory: queries and
 * logits, group × (head_dim + 128) × 4 bytes, 24 KiB for a group of 16; registers 56 to 158
 * with the group: 128 threads of them let at least three blocks, 12 warps with four 16-byte loads a
 * lane in flight, run on a multiprocessor.
 */
#include <math.h>

#include "kernels/backend.h"
#include "kernels/cuda/cluster_common.cuh"
#include "kernels/cuda/launch_clusters.h"

enum {
	TILE = 128, /* clusters of a block */
	THREADS = 128,
	WARPS = THREADS / KN_WARP,
	EIGHT = 8, /* channels of a load, and lanes of a centroid */
	EACH = 4,  /* centroids of a lane at a time */
	AT_ONCE = THREADS / EIGHT * EACH
};

/* Of one query head's softmax over a tile, or over all. */
struct part {
	float max, sum;
};

/* The queries, scaled. Of each 8 channels the first four lie in `low`, at the place of their load
 * among the row's, the others in `high`: neighbouring lanes read neighbouring 16 bytes. */
template <int GROUP> struct score_memory {
	float4 low[GROUP][KN_MAX_HEAD_DIM / EIGHT], high[GROUP][KN_MAX_HEAD_DIM / EIGHT];
	float logits[GROUP][TILE];
};

template <int GROUP>
static __device__ void load_queries(
    score_memory<GROUP> *memory, const float *q, uint32_t group, uint32_t head_dim, float scale)
{
	float *low = &memory->low[0][0].x, *high = &memory->high[0][0].x;

	for (uint32_t i = threadIdx.x; i < GROUP * head_dim; i += THREADS) {
		uint32_t head = i / head_dim, d = i % head_dim;
		float *half = d % EIGHT < 4 ? low : high;

		half[head * (KN_MAX_HEAD_DIM / 2) + d / EIGHT * 4 + d % 4] =
		    head < group ? q[i] * scale : 0.0f;
	}
}

/* x · the 8 channels, added to sum. */
static __device__ float multiply(const float *x, float4 low, float4 high, float sum)
{
	sum = fmaf(x[0], low.x, sum);
	sum = fmaf(x[1], low.y, sum);
	sum = fmaf(x[2], low.z, sum);
	sum = fmaf(x[3], low.w, sum);
	sum = fmaf(x[4], high.x, sum);
	sum = fmaf(x[5], high.y, sum);
	sum = fmaf(x[6], high.z, sum);
	return fmaf(x[7], high.w, sum);
}

static __device__ void widen(const uint16_t *centroid, uint32_t channels_8, float *x)
{
	uint4 words = reinterpret_cast<const uint4 *>(centroid)[channels_8];
	const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};

#pragma unroll
	for (int i = 0; i < 4; i++) {
		x[2 * i] = __half2float(__ushort_as_half((unsigned short)(pairs[i] & 0xffffu)));
		x[2 * i + 1] = __half2float(__ushort_as_half((unsigned short)(pairs[i] >> 16)));
	}
}

/* Logits of EACH clusters for every 8 lanes, from `first` of the tile on. */
template <int GROUP>
static __device__ void score(score_memory<GROUP> *memory, const kn_score_job *job, uint32_t tile,
    uint32_t first, uint32_t head_dim)
{
	uint32_t lane = threadIdx.x % EIGHT;
	const uint16_t *centroids[EACH];
	float sums[EACH][GROUP] = {};

#pragma unroll
	for (uint32_t i = 0; i < EACH; i++) {
		uint32_t c = tile + first + i < job->clusters ? tile + first + i : job->clusters - 1;

		centroids[i] = job->centroids + (size_t)c * head_dim;
	}
	for (uint32_t at = lane; at < head_dim / EIGHT; at += EIGHT) {
		float x[EACH][EIGHT];

#pragma unroll
		for (int i = 0; i < EACH; i++)
			widen(centroids[i], at, x[i]);
#pragma unroll
		for (int g = 0; g < GROUP; g++) {
			float4 low = memory->low[g][at], high = memory->high[g][at];

#pragma unroll
			for (int i = 0; i < EACH; i++)
				sums[i][g] = multiply(x[i], low, high, sums[i][g]);
		}
	}
#pragma unroll
	for (uint32_t i = 0; i < EACH; i++)
#pragma unroll
		for (uint32_t g = 0; g < GROUP; g++) {
			float sum = sums[i][g];

			for (int step = EIGHT / 2; step > 0; step /= 2)
				sum += __shfl_xor_sync(kn_all_lanes, sum, step);
			if ((i * GROUP + g) % EIGHT == lane) memory->logits[g][first + i] = sum;
		}
}

/* What the softmax is taken over: empty clusters have a size of -inf. */
static __device__ float with_size(float logit, float log_size, int size_term)
{
	return size_term || log_size == -INFINITY ? logit + log_size : logit;
}

static __device__ part merge(part a, part b)
{
	part both = {fmaxf(a.max, b.max), 0.0f};

	if (both.max == -INFINITY) return both;
	both.sum = a.sum * expf(a.max - both.max) + b.sum * expf(b.max - both.max);
	return both;
}

/* Over a warp, in all lanes. */
static __device__ part merge_lanes(part own)
{
	for (int step = KN_WARP / 2; step > 0; step /= 2) {
		part other = {__shfl_xor_sync(kn_all_lanes, own.max, step),
		    __shfl_xor_sync(kn_all_lanes, own.sum, step)};

		own = merge(own, other);
	}
	return own;
}

/* The logits of the tile to the job, and their parts. A warp has every fourth query head. */
template <int GROUP>
static __device__ void store_tile(const score_memory<GROUP> *memory, const kn_score_job *job,
    uint32_t tile, uint32_t group, int size_term, part *parts)
{
	uint32_t lane = threadIdx.x % KN_WARP;

	for (uint32_t g = threadIdx.x / KN_WARP; g < group; g += WARPS) {
		part own = {-INFINITY, 0.0f};

		for (uint32_t i = lane; i < TILE && tile + i < job->clusters; i += KN_WARP) {
			float logit = memory->logits[g][i];
			float x = with_size(logit, job->log_sizes[tile + i], size_term);
			part one = {x, x == -INFINITY ? 0.0f : 1.0f};

			job->logits[g * job->logits_stride + tile + i] = logit;
			own = merge(own, one);
		}
		own = merge_lanes(own);
		if (lane == 0) parts[g] = own;
	}
}

/* parts: [jobs][tiles][group]. */
template <int GROUP>
static __global__ void __launch_bounds__(THREADS, 3)
    score_kernel(kn_score_arguments a, uint32_t tiles, part *parts)
{
	__shared__ score_memory<GROUP> memory;
	const kn_score_job *job = &a.jobs[blockIdx.y];
	uint32_t tile = blockIdx.x * TILE;

	if (tile >= job->clusters) return;
	load_queries<GROUP>(&memory, job->q, a.group, a.head_dim, a.scale);
	__syncthreads();
	for (uint32_t first = 0; first < TILE; first += AT_ONCE)
		score<GROUP>(&memory, job, tile, first + threadIdx.x / EIGHT * EACH, a.head_dim);
	__syncthreads();
	store_tile<GROUP>(&memory, job, tile, a.group, a.size_term,
	    parts + ((size_t)blockIdx.y * tiles + blockIdx.x) * a.group);
}

static __global__ void __launch_bounds__(THREADS)
    votes_kernel(kn_score_arguments a, uint32_t tiles, const part *parts)
{
	__shared__ float base[KN_MAX_GROUP], inverse[KN_MAX_GROUP];
	const kn_score_job *job = &a.jobs[blockIdx.y];
	uint32_t c = blockIdx.x * TILE + threadIdx.x, lane = threadIdx.x % KN_WARP;
	uint32_t own_tiles = (job->clusters + TILE - 1) / TILE;
	float vote = 0.0f;

	if (blockIdx.x >= own_tiles) return;
	for (uint32_t g = threadIdx.x / KN_WARP; g < a.group; g += WARPS) {
		part all = {-INFINITY, 0.0f};

		for (uint32_t i = lane; i < own_tiles; i += KN_WARP)
			all = merge(all, parts[((size_t)blockIdx.y * tiles + i) * a.group + g]);
		all = merge_lanes(all);
		/* With nothing but empty clusters there are no votes. */
		if (lane == 0) {
			base[g] = all.max == -INFINITY ? 0.0f : all.max;
			inverse[g] = all.sum == 0.0f ? 0.0f : 1.0f / all.sum;
		}
	}
	__syncthreads();
	if (c >= job->clusters) return;
	for (uint32_t g = 0; g < a.group; g++) {
		float logit = job->logits[g * job->logits_stride + c];

		vote += expf(with_size(logit, job->log_sizes[c], a.size_term) - base[g]) * inverse[g];
	}
	job->votes[c] = vote;
}

static uint32_t tiles_of(uint32_t clusters)
{
	return clusters / TILE + (clusters % TILE != 0);
}

extern "C" size_t kn_cuda_score_scratch_bytes(uint32_t jobs, uint32_t max_clusters, uint32_t group)
{
	return (size_t)jobs * tiles_of(max_clusters) * group * sizeof(part);
}

extern "C" cudaError_t kn_cuda_score(
    const struct kn_score_arguments *a, uint32_t max_clusters, void *scratch, cudaStream_t stream)
{
	uint32_t tiles = tiles_of(max_clusters);
	dim3 grid(tiles, a->job_count);
	part *parts = (part *)scratch;

	if (a->job_count == 0 || tiles == 0) return cudaSuccess;
	if (a->group == 1)
		LAUNCH(score_kernel<1>, grid, THREADS, 0, stream, *a, tiles, parts);
	else if (a->group == 2)
		LAUNCH(score_kernel<2>, grid, THREADS, 0, stream, *a, tiles, parts);
	else if (a->group <= 4)
		LAUNCH(score_kernel<4>, grid, THREADS, 0, stream, *a, tiles, parts);
	else if (a->group <= 8)
		LAUNCH(score_kernel<8>, grid, THREADS, 0, stream, *a, tiles, parts);
	else
		LAUNCH(score_kernel<16>, grid, THREADS, 0, stream, *a, tiles, parts);
	LAUNCH(votes_kernel, grid, THREADS, 0, stream, *a, tiles, parts);
	return cudaGetLastError();
}
