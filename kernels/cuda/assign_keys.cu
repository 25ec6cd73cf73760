/* Assignment of keys to centroids: the greatest dot(key - mean, centroid) / |centroid|, the lowest
 * cluster on a tie.
 *
 * A block takes 64 keys of one job past all centroids, 64 of them at a time. Both tiles come to
 * shared memory in chunks of 16 channels (8 where head_dim is no multiple of 16), and each of the
 * 256 threads keeps 4 × 4 dot products in registers across the chunks: so each is one chain of
 * fused multiply-adds over ascending channels, whatever head_dim is, and the similarities of keys
 * and clusters are never stored. head_dim only counts the chunks; a kernel for each would gain
 * nothing, as the loop within a chunk is unrolled. The best of a key is reduced over the 16 threads
 * that share it, in registers.
 *
 * Shared memory: 2 × 16 × 68 × 4 bytes and the norms, under 9 KiB. Registers: 16 sums, 8 operands,
 * 8 for the best four and addresses: 48 to 64. So registers let four blocks, 32 warps, run on a
 * multiprocessor: enough to hide the loads, and each step within a chunk does 16 multiply-adds for
 * two 16-byte loads from shared memory. Rows of 68 floats keep those aligned and make the stores of
 * a transposed tile two-way conflicts only.
 */
#include <math.h>

#include "kernels/cuda/cluster_common.cuh"
#include "kernels/cuda/index_work.h"

enum {
	KEYS = 64,
	CENTROIDS = 64,
	EACH = 4,           /* keys and centroids of a thread */
	SIDE = KEYS / EACH, /* threads on each side of the tile */
	THREADS = SIDE * SIDE,
	PITCH = KEYS + 4
};

template <int CHUNK> struct __align__(16) tiles {
	float keys[CHUNK][PITCH], centroids[CHUNK][PITCH];
	float norms[KEYS];
};

/* The best cluster of each of the thread's keys. */
struct best {
	float value[EACH];
	uint32_t label[EACH];
};

struct block_keys {
	const uint8_t *rows;
	size_t stride;
	uint32_t first, n, clusters, head_dim;
};

/* Channels [d, d + CHUNK) of the block's keys, and of the centroids from `cluster` on. */
template <typename T, int CHUNK>
static __device__ void load_tiles(
    tiles<CHUNK> *t, const block_keys *k, const kn_index_arrays *s, uint32_t cluster, uint32_t d)
{
	for (uint32_t i = threadIdx.x; i < KEYS * CHUNK; i += THREADS) {
		uint32_t channel = i % CHUNK, row = i / CHUNK, at = d + channel;
		float x = 0.0f, c = 0.0f;

		if (k->first + row < k->n)
			x = kn_element<T>(k->rows + (k->first + row) * k->stride, at) - s->mean[at];
		if (cluster + row < k->clusters)
			c = s->centroids[(size_t)(cluster + row) * k->head_dim + at];
		t->keys[channel][row] = x;
		t->centroids[channel][row] = c;
	}
}

template <int CHUNK> static __device__ void multiply(const tiles<CHUNK> *t, float sums[EACH][EACH])
{
	uint32_t key = threadIdx.x / SIDE * EACH, centroid = threadIdx.x % SIDE * EACH;

#pragma unroll
	for (int channel = 0; channel < CHUNK; channel++) {
		float4 k = *reinterpret_cast<const float4 *>(&t->keys[channel][key]);
		float4 c = *reinterpret_cast<const float4 *>(&t->centroids[channel][centroid]);
		const float x[EACH] = {k.x, k.y, k.z, k.w}, y[EACH] = {c.x, c.y, c.z, c.w};

#pragma unroll
		for (int i = 0; i < EACH; i++)
#pragma unroll
			for (int j = 0; j < EACH; j++)
				sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
	}
}

/* A NaN is never the greatest. */
static __device__ void compare(
    const float sums[EACH][EACH], const float *norms, uint32_t cluster, uint32_t clusters, best *b)
{
#pragma unroll
	for (int j = 0; j < EACH; j++) {
		uint32_t label = cluster + threadIdx.x % SIDE * EACH + j;
		float norm = label < clusters ? norms[label] : 1.0f;

#pragma unroll
		for (int i = 0; i < EACH; i++) {
			float value = sums[i][j] / norm;
			bool better = label < clusters && value > b->value[i];

			b->value[i] = better ? value : b->value[i];
			b->label[i] = better ? label : b->label[i];
		}
	}
}

/* Over the SIDE threads with the same keys; all of them get it. */
static __device__ void reduce(best *b)
{
#pragma unroll
	for (int i = 0; i < EACH; i++)
#pragma unroll
		for (int step = SIDE / 2; step > 0; step /= 2) {
			float value = __shfl_xor_sync(kn_all_lanes, b->value[i], step);
			uint32_t label = __shfl_xor_sync(kn_all_lanes, b->label[i], step);
			bool better = value > b->value[i] || (value == b->value[i] && label < b->label[i]);

			b->value[i] = better ? value : b->value[i];
			b->label[i] = better ? label : b->label[i];
		}
}

/* Four of the SIDE threads store a key each. */
static __device__ void store(const block_keys *k, const kn_index_arrays *s, const best *b,
    const float *norms, uint32_t round)
{
	uint32_t side = threadIdx.x % SIDE, in_block = threadIdx.x / SIDE * EACH + side;
	uint32_t key = k->first + in_block, label = 0;
	int changed = 0;
	float value = 0.0f;

#pragma unroll
	for (uint32_t i = 0; i < EACH; i++) {
		value = side == i ? b->value[i] : value;
		label = side == i ? b->label[i] : label;
	}
	if (side < EACH && key < k->n) {
		uint32_t before = round != 0 ? s->labels[key] : UINT32_MAX;

		s->previous[key] = before;
		s->labels[key] = label;
		s->cosines[key] = value / norms[in_block];
		atomicAdd(&s->counts[label], 1u);
		changed = label != before;
	}
	changed = __syncthreads_count(changed);
	if (threadIdx.x == 0) atomicAdd(&s->state->changed, (uint32_t)changed);
}

template <typename T, int CHUNK>
static __global__ void __launch_bounds__(THREADS) assign_kernel(kn_index_work w, uint32_t round)
{
	__shared__ tiles<CHUNK> t;
	const kn_index_job *job = &w.jobs[blockIdx.y];
	const kn_index_arrays s = kn_index_arrays_of(&w, blockIdx.y);
	const block_keys k = {
	    job->rows, job->row_stride, blockIdx.x * KEYS, job->n, job->clusters, w.head_dim};
	best b;
	float square = 0.0f;

	if (s.state->done || k.first >= k.n) return;
	for (int i = 0; i < EACH; i++) {
		b.value[i] = -INFINITY;
		b.label[i] = 0;
	}
	for (uint32_t cluster = 0; cluster < k.clusters; cluster += CENTROIDS) {
		float sums[EACH][EACH] = {};

		for (uint32_t d = 0; d < k.head_dim; d += CHUNK) {
			load_tiles<T, CHUNK>(&t, &k, &s, cluster, d);
			__syncthreads();
			multiply<CHUNK>(&t, sums);
			if (cluster == 0 && threadIdx.x < KEYS)
				for (int i = 0; i < CHUNK; i++)
					square = fmaf(t.keys[i][threadIdx.x], t.keys[i][threadIdx.x], square);
			__syncthreads();
		}
		compare(sums, s.norms, cluster, k.clusters, &b);
	}
	if (threadIdx.x < KEYS) t.norms[threadIdx.x] = square == 0.0f ? 1.0f : sqrtf(square);
	__syncthreads();
	reduce(&b);
	store(&k, &s, &b, t.norms, round);
}

extern "C" cudaError_t kn_cuda_assign_keys(
    const struct kn_index_work *w, uint32_t round, cudaStream_t stream)
{
	return kn_launch_typed(w->kv_type, [=](auto element) {
		using T = decltype(element);
		dim3 grid((w->rows + KEYS - 1) / KEYS, w->job_count);

		if (w->head_dim % 16 == 0)
			LAUNCH((assign_kernel<T, 16>), grid, THREADS, 0, stream, *w, round);
		else
			LAUNCH((assign_kernel<T, 8>), grid, THREADS, 0, stream, *w, round);
	});
}
