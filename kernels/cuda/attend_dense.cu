/* Prefill attention: flash attention on plain float operations.
 *
 * A block has 64 rows, each a query and one of the query heads of its KV head, so that the heads of
 * a group share every key; it runs over the keys they see, 64 at a time, counted from the first
 * context row. 256 threads are 16 × 16: thread (x, y) has rows 4y … 4y + 3 and of the scores keys
 * x, x + 16, …, of the values channels 4x … 4x + 3 of each 64. Keys and values come as slices of 64
 * channels, widened to floats once in shared memory; the next slice is under way in registers while
 * one is used. Sums are chains over channels or over keys in ascending order, maxima and sums of a
 * row are folded over its 16 threads: no bit depends on what else is in the block. Later queries
 * have more to do and come first.
 *
 * Resources: scores and values take 8 loads of 16 bytes from shared memory for 64 fused operations,
 * whose lanes lie in different banks (rows are 4 floats longer than they need be), so that both
 * units are about equally busy. Shared memory is 51, 67 and 99 KiB for 64, 128 and 256 channels (99
 * is all that sm_89 has). Registers are at most 128 up to 128 channels of 16 bits: two blocks where
 * their memory fits (sm_80 and sm_90), one else; beyond that they are as many as it takes, for 64
 * hold the sums of 256 channels alone, and a thread's independent sums hide the latencies that 8
 * warps do not. No tensor cores: they would round queries or weights to 16 bits. Method:
 * FlashAttention (arXiv 2205.14135). */
#include "kernels/cuda/exponential.cuh"
#include "kernels/cuda/kv_element.cuh"
#include "kernels/cuda/launch_attention.h"
#include "kernels/cuda/spans.cuh"

namespace
{
constexpr uint32_t THREADS = 256, ROWS = 64, KEYS = 64, SLICE = 64, OWN = 4;
constexpr uint32_t PITCH = SLICE + 4; /* floats between rows in shared memory */

struct dense_arguments {
	struct kn_attend_dense_arguments a;
	const uint32_t *starts;  /* [kv_heads][context_spans + 1] */
	uint32_t group, queries; /* of a block */
	float scale;             /* with log2(e) */
};

/* The keys of one block: how many of its KV head are in the context's spans, and how many its last
 * query sees. */
struct keys {
	uint32_t context, end;
};

/* What a thread has of its four rows. */
template <uint32_t SLICES> struct tile {
	float max[OWN], sum[OWN];
	float out[SLICES][OWN][4]; /* channels 64 * slice + 4x … */
};

/* Key `first` + thread / 4 as a thread of its warp finds it. */
__device__ __forceinline__ const uint8_t *find_key(
    const struct dense_arguments &d, uint32_t context, uint32_t first, uint32_t row_bytes)
{
	uint32_t base = first + threadIdx.x / 32 * 8, key = first + threadIdx.x / 4;
	if (base < context) {
		const uint32_t *starts = d.starts + (size_t)blockIdx.y * (d.a.context_spans + 1);
		uint32_t row = key < context ? key : context - 1;
		uint32_t span = kn_find_span(starts, d.a.context_spans, base, row);
		if (key < context)
			return d.a.context[(size_t)blockIdx.y * d.a.context_spans + span].rows +
			       (size_t)(key - starts[span]) * row_bytes;
	}
	return d.a.own[blockIdx.y] + (size_t)(key - context) * row_bytes;
}

/* A thread's part of a slice, on its way: channels 8 * (x % 4) … and 32 behind. */
template <enum kn_kv_type TYPE> struct part {
	struct kn_eight<TYPE> low, high;
};

/* Channels from `channel` on of the key (or value) at `at`; zeros behind the last channel. */
template <enum kn_kv_type TYPE>
__device__ __forceinline__ struct part<TYPE> fetch(
    const uint8_t *at, bool inside, uint32_t channel, uint32_t head_dim) {
	struct part<TYPE> p = {
		kn_zero_eight<TYPE>(), kn_zero_eight<TYPE>()
	};
	channel += threadIdx.x % 4 * 8;
	at += channel * kn_element_bytes(TYPE);
	if (inside && channel < head_dim) p.low = kn_load_eight<TYPE>(at);
	if (inside && channel + 32 < head_dim)
		p.high = kn_load_eight<TYPE>(at + 32 * kn_element_bytes(TYPE));
	return p;
}

/* Widened, to the slice in shared memory: [KEYS][PITCH]. */
template <enum kn_kv_type TYPE>
__device__ __forceinline__ void put(const struct part<TYPE> &p, float *slice)
{
	float x[8];
	float4 *to = (float4 *)(slice + threadIdx.x / 4 * PITCH + threadIdx.x % 4 * 8);
	kn_widen_eight<TYPE>(p.low, x);
	to[0] = make_float4(x[0], x[1], x[2], x[3]);
	to[1] = make_float4(x[4], x[5], x[6], x[7]);
	kn_widen_eight<TYPE>(p.high, x);
	to[8] = make_float4(x[0], x[1], x[2], x[3]);
	to[9] = make_float4(x[4], x[5], x[6], x[7]);
}

/* The queries, scaled: [ROWS][pitch], zeros behind the last row and channel. */
__device__ __forceinline__ void load_queries(
    const struct dense_arguments &d, uint32_t first, uint32_t rows, float *q, uint32_t pitch)
{
	uint32_t width = pitch - 4;
	for (uint32_t i = threadIdx.x; i < ROWS * width; i += THREADS) {
		uint32_t row = i / width, channel = i % width;
		float value = 0.0f;
		if (row < rows && channel < d.a.head_dim) {
			size_t query = first + row / d.group, head = blockIdx.y * d.group + row % d.group;
			value = d.a.q[query * d.a.q_stride + head * d.a.head_dim + channel] * d.scale;
		}
		q[row * pitch + channel] = value;
	}
}

/* scores[row][key] += q · k over the channels of a slice. */
__device__ __forceinline__ void add_scores(
    const float *q, uint32_t pitch, const float *slice, float (*scores)[4])
{
	uint32_t x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll 1
	for (uint32_t c = 0; c < SLICE; c += 4) {
		float4 a[OWN];
#pragma unroll
		for (uint32_t i = 0; i < OWN; i++)
			a[i] = *(const float4 *)(q + (OWN * y + i) * pitch + c);
#pragma unroll
		for (uint32_t j = 0; j < 4; j++) {
			float4 b = *(const float4 *)(slice + (x + 16 * j) * PITCH + c);
#pragma unroll
			for (uint32_t i = 0; i < OWN; i++) {
				scores[i][j] = fmaf(a[i].x, b.x, scores[i][j]);
				scores[i][j] = fmaf(a[i].y, b.y, scores[i][j]);
				scores[i][j] = fmaf(a[i].z, b.z, scores[i][j]);
				scores[i][j] = fmaf(a[i].w, b.w, scores[i][j]);
			}
		}
	}
}

/* Weights of the keys from `first` on to shared memory, [ROWS][PITCH]; what was summed before is
 * scaled down to the new maxima. `seen` is how many keys the first query sees. */
template <uint32_t SLICES>
__device__ __forceinline__ void find_weights(struct tile<SLICES> &r, float (*scores)[4],
    uint32_t first, uint32_t seen, uint32_t group, float *weights)
{
	uint32_t x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
	for (uint32_t i = 0; i < OWN; i++) {
		/* Rows behind the last one see what they like. */
		uint32_t visible = seen + (OWN * y + i) / group;
		float max = -INFINITY, sum = 0.0f;
#pragma unroll
		for (uint32_t j = 0; j < 4; j++) {
			if (first + x + 16 * j >= visible) scores[i][j] = -INFINITY;
			max = scores[i][j] > max ? scores[i][j] : max;
		}
#pragma unroll
		for (int by = 8; by > 0; by /= 2) {
			float other = __shfl_xor_sync(0xffffffffu, max, by);
			max = other > max ? other : max;
		}
		max = r.max[i] > max ? r.max[i] : max;
#pragma unroll
		for (uint32_t j = 0; j < 4; j++) {
			float weight = kn_exp2(scores[i][j] - kn_base(max));
			weights[(OWN * y + i) * PITCH + x + 16 * j] = weight;
			sum += weight;
		}
#pragma unroll
		for (int by = 8; by > 0; by /= 2)
			sum += __shfl_xor_sync(0xffffffffu, sum, by);
		float factor = kn_exp2(r.max[i] - kn_base(max));
		r.max[i] = max;
		r.sum[i] = fmaf(r.sum[i], factor, sum);
#pragma unroll
		for (uint32_t s = 0; s < SLICES; s++)
#pragma unroll
			for (uint32_t c = 0; c < 4; c++)
				r.out[s][i][c] *= factor;
	}
}

/* out[row][channel] += weight · value over the keys of a slice. */
__device__ __forceinline__ void add_values(
    const float *weights, const float *slice, float (*out)[4])
{
	uint32_t x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll 1
	for (uint32_t key = 0; key < KEYS; key += 4) {
		float4 a[OWN];
#pragma unroll
		for (uint32_t i = 0; i < OWN; i++)
			a[i] = *(const float4 *)(weights + (OWN * y + i) * PITCH + key);
#pragma unroll
		for (uint32_t j = 0; j < 4; j++) {
			float4 v = *(const float4 *)(slice + (key + j) * PITCH + 4 * x);
#pragma unroll
			for (uint32_t i = 0; i < OWN; i++) {
				float w = j == 0 ? a[i].x : j == 1 ? a[i].y : j == 2 ? a[i].z : a[i].w;
				out[i][0] = fmaf(w, v.x, out[i][0]);
				out[i][1] = fmaf(w, v.y, out[i][1]);
				out[i][2] = fmaf(w, v.z, out[i][2]);
				out[i][3] = fmaf(w, v.w, out[i][3]);
			}
		}
	}
}

template <uint32_t SLICES> __device__ __forceinline__ void start_rows(struct tile<SLICES> &r)
{
#pragma unroll
	for (uint32_t i = 0; i < OWN; i++) {
		r.max[i] = -INFINITY;
		r.sum[i] = 0.0f;
#pragma unroll
		for (uint32_t s = 0; s < SLICES; s++)
#pragma unroll
			for (uint32_t c = 0; c < 4; c++)
				r.out[s][i][c] = 0.0f;
	}
}

template <uint32_t SLICES>
__device__ __forceinline__ void store_rows(
    const struct dense_arguments &d, uint32_t first, uint32_t rows, const struct tile<SLICES> &r)
{
	uint32_t x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
	for (uint32_t i = 0; i < OWN; i++) {
		uint32_t row = OWN * y + i;
		if (row >= rows) continue;
		size_t query = first + row / d.group, head = blockIdx.y * d.group + row % d.group;
		float *to = d.a.out + query * d.a.out_stride + head * d.a.head_dim;
		float inverse = 1.0f / r.sum[i];
#pragma unroll
		for (uint32_t s = 0; s < SLICES; s++)
#pragma unroll
			for (uint32_t c = 0; c < 4; c++) {
				uint32_t channel = s * SLICE + 4 * x + c;
				/* + 0: weights of 0 behind the last visible key may have turned -0 to 0. */
				if (channel < d.a.head_dim) to[channel] = r.out[s][i][c] * inverse + 0.0f;
			}
	}
}

__device__ __forceinline__ struct keys count_keys(
    const struct dense_arguments &d, uint32_t last_query)
{
	struct keys k;
	k.context = d.starts[(size_t)blockIdx.y * (d.a.context_spans + 1) + d.a.context_spans];
	k.end = k.context + d.a.own_before + last_query + 1;
	return k;
}

/* Block (queries, the last ones first; KV head). */
template <enum kn_kv_type TYPE, uint32_t SLICES>
__global__ void __launch_bounds__(THREADS, SLICES *kn_element_bytes(TYPE) > 4 ? 1 : 2)
    dense_kernel(const struct dense_arguments d)
{
	constexpr uint32_t Q_PITCH = SLICES * SLICE + 4;
	DYN_SHARED(float, q); /* [ROWS][Q_PITCH], then the slice and the weights */
	float *slice = q + ROWS * Q_PITCH, *weights = slice + KEYS * PITCH;
	uint32_t first = (gridDim.x - 1 - blockIdx.x) * d.queries, left = d.a.count - first;
	uint32_t queries = left < d.queries ? left : d.queries, head_dim = d.a.head_dim;
	uint32_t value_offset = head_dim * kn_element_bytes(TYPE);
	struct keys k = count_keys(d, first + queries - 1);
	struct tile<SLICES> r;
	start_rows(r);
	load_queries(d, first, queries * d.group, q, Q_PITCH);
	const uint8_t *key = find_key(d, k.context, 0, 2 * value_offset);
	struct part<TYPE> next = fetch<TYPE>(key, threadIdx.x / 4 < k.end, 0, head_dim);
	for (uint32_t at = 0; at < k.end; at += KEYS) {
		float scores[OWN][4] = {};
		bool inside = at + threadIdx.x / 4 < k.end;
#pragma unroll
		for (uint32_t s = 0; s < SLICES; s++) {
			__syncthreads();
			put(next, slice);
			next = s + 1 < SLICES ? fetch<TYPE>(key, inside, (s + 1) * SLICE, head_dim)
			                      : fetch<TYPE>(key + value_offset, inside, 0, head_dim);
			__syncthreads();
			add_scores(q + s * SLICE, Q_PITCH, slice, scores);
		}
		find_weights(r, scores, at, k.context + d.a.own_before + first + 1, d.group, weights);
#pragma unroll
		for (uint32_t s = 0; s < SLICES; s++) {
			__syncthreads();
			put(next, slice);
			if (s + 1 < SLICES) {
				next = fetch<TYPE>(key + value_offset, inside, (s + 1) * SLICE, head_dim);
			} else if (at + KEYS < k.end) {
				key = find_key(d, k.context, at + KEYS, 2 * value_offset);
				next = fetch<TYPE>(key, at + KEYS + threadIdx.x / 4 < k.end, 0, head_dim);
			}
			__syncthreads();
			add_values(weights, slice, r.out[s]);
		}
	}
	store_rows(d, first, queries * d.group, r);
}

/* Block: a KV head. */
__global__ void __launch_bounds__(KN_SPANS_THREADS)
    dense_starts_kernel(const struct kn_span *context, uint32_t spans, uint32_t *starts)
{
	kn_span_starts(context + (size_t)blockIdx.x * spans, spans, KN_CUDA_MAX_TOKENS,
	    starts + (size_t)blockIdx.x * (spans + 1));
}

template <enum kn_kv_type TYPE, uint32_t SLICES>
static cudaError_t launch_slices(const struct dense_arguments &d, cudaStream_t stream)
{
	size_t bytes = sizeof(float) * (ROWS * (SLICES * SLICE + 4) + (KEYS + ROWS) * PITCH);
	cudaError_t error = cudaFuncSetAttribute((const void *)dense_kernel<TYPE, SLICES>,
	    cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
	if (error != cudaSuccess) return error;
	dim3 grid((d.a.count - 1) / d.queries + 1, d.a.kv_heads);
	LAUNCH((dense_kernel<TYPE, SLICES>), grid, THREADS, bytes, stream, d);
	return cudaGetLastError();
}

template <enum kn_kv_type TYPE>
static cudaError_t launch_type(const struct dense_arguments &d, cudaStream_t stream)
{
	if (d.a.head_dim <= 64) return launch_slices<TYPE, 1>(d, stream);
	if (d.a.head_dim <= 128) return launch_slices<TYPE, 2>(d, stream);
	return launch_slices<TYPE, 4>(d, stream);
}
} // namespace

extern "C" size_t kn_cuda_attend_dense_scratch_bytes(const struct kn_attend_dense_arguments *a)
{
	return (size_t)a->kv_heads * ((size_t)a->context_spans + 1) * sizeof(uint32_t);
}

extern "C" cudaError_t kn_cuda_attend_dense(
    const struct kn_attend_dense_arguments *a, void *scratch, cudaStream_t stream)
{
	if (a->count == 0) return cudaSuccess;
	if (a->kv_heads == 0 || a->kv_heads > 65535 || a->heads % a->kv_heads != 0 || a->heads == 0 ||
	    a->heads / a->kv_heads > 16 || a->head_dim % 8 != 0 || a->head_dim == 0 ||
	    a->head_dim > 256 || a->context_spans >= KN_CUDA_MAX_TOKENS ||
	    (uint64_t)a->own_before + a->count > KN_CUDA_MAX_TOKENS)
		return cudaErrorInvalidValue;
	struct dense_arguments d = {};
	d.a = *a;
	d.starts = (const uint32_t *)scratch;
	d.group = a->heads / a->kv_heads;
	d.queries = ROWS / d.group;
	d.scale = a->scale * KN_CUDA_LOG2E;
	LAUNCH(dense_starts_kernel, a->kv_heads, KN_SPANS_THREADS, 0, stream, a->context,
	    a->context_spans, (uint32_t *)scratch);
	cudaError_t error = cudaGetLastError();
	if (error != cudaSuccess) return error;
	if (a->kv_type == KN_KV_F32) return launch_type<KN_KV_F32>(d, stream);
	if (a->kv_type == KN_KV_BF16) return launch_type<KN_KV_BF16>(d, stream);
	return launch_type<KN_KV_F16>(d, stream);
}
