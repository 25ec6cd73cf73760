/* What the cluster kernels share: elements of KV rows, orders of floats, sums over a block and a
 * stable sort in one block. Private to kernels/cuda. */
#ifndef KN_CUDA_CLUSTER_COMMON_CUH
#define KN_CUDA_CLUSTER_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "kernels/cuda/compat.h"
#include "kernels/op_arguments.h"

enum {
	KN_WARP = 32,
	KN_SORT_THREADS = 512, /* of each block that sorts */
	KN_SORT_WARPS = KN_SORT_THREADS / KN_WARP,
	KN_SORT_BITS = 8,
	KN_SORT_DIGITS = 1 << KN_SORT_BITS
};

static const uint32_t kn_all_lanes = 0xffffffffu;

__device__ inline float kn_to_float(float x)
{
	return x;
}
__device__ inline float kn_to_float(__half x)
{
	return __half2float(x);
}
__device__ inline float kn_to_float(__nv_bfloat16 x)
{
	return __bfloat162float(x);
}

/* Element `d` of a run of elements of the KV type T. */
template <typename T> __device__ inline float kn_element(const uint8_t *row, uint32_t d)
{
	return kn_to_float(reinterpret_cast<const T *>(row)[d]);
}

/* launch(element) with a value of the element type of KV rows; the error of what it launched. */
template <typename Launch> inline cudaError_t kn_launch_typed(enum kn_kv_type type, Launch launch)
{
	if (type == KN_KV_F32)
		launch(float());
	else if (type == KN_KV_BF16)
		launch(__nv_bfloat16());
	else
		launch(__half());
	return cudaGetLastError();
}

/* A greater value has a smaller key; -0 equals +0; NaN has the greatest key of all. */
__device__ inline uint32_t kn_falling_order(float value)
{
	uint32_t bits = __float_as_uint(value + 0.0f);

	if (value != value) return 0xffffffffu;
	return bits ^ ((bits >> 31) != 0 ? 0u : 0x7fffffffu);
}

/* The sum of the values of all threads before this one, and of all. For whole warps, and for all
 * threads of the block at once. partial: shared memory, one element a warp; it may be used again
 * after the call. */
template <typename T> __device__ inline T kn_sum_before(T value, T *partial, T *total)
{
	uint32_t lane = threadIdx.x % KN_WARP, warp = threadIdx.x / KN_WARP;
	T sum = value, before = 0, all = 0;

	for (uint32_t step = 1; step < KN_WARP; step *= 2) {
		T other = __shfl_up_sync(kn_all_lanes, sum, step);

		if (lane >= step) sum += other;
	}
	if (lane == KN_WARP - 1) partial[warp] = sum;
	__syncthreads();
	for (uint32_t i = 0; i < blockDim.x / KN_WARP; i++) {
		if (i < warp) before += partial[i];
		all += partial[i];
	}
	__syncthreads();
	*total = all;
	return before + sum - value;
}

/* Shared memory of a sort: 16 KiB and a little. */
struct kn_sort_memory {
	uint32_t counts[KN_SORT_WARPS][KN_SORT_DIGITS];
	uint32_t partial[KN_SORT_WARPS];
};

/* The lanes of this warp's step that have the same digit. */
struct kn_sort_step {
	uint32_t item, digit, lanes, peers;
	bool there;
};

template <typename Digit>
__device__ inline kn_sort_step kn_sort_look(
    const uint32_t *from, uint32_t base, uint32_t last, Digit digit)
{
	uint32_t at = base + threadIdx.x % KN_WARP;
	kn_sort_step step = {0, 0, 0, 0, at < last};

	step.lanes = __ballot_sync(kn_all_lanes, step.there);
	if (!step.there) return step;
	step.item = from != nullptr ? from[at] : at;
	step.digit = digit(step.item);
	step.peers = __match_any_sync(step.lanes, step.digit);
	return step;
}

/* Counts of each warp's digits to where its first item of that digit goes. */
__device__ inline void kn_sort_place(kn_sort_memory *memory)
{
	uint32_t digit = threadIdx.x, sum = 0, total;

	__syncthreads();
	for (uint32_t warp = 0; warp < KN_SORT_WARPS && digit < KN_SORT_DIGITS; warp++)
		sum += memory->counts[warp][digit];
	uint32_t at = kn_sum_before(sum, memory->partial, &total);

	for (uint32_t warp = 0; warp < KN_SORT_WARPS && digit < KN_SORT_DIGITS; warp++) {
		uint32_t count = memory->counts[warp][digit];

		memory->counts[warp][digit] = at;
		at += count;
	}
	__syncthreads();
}

/* One stable pass of a radix sort by a block of KN_SORT_THREADS threads: the n items of `from`
 * (nullptr: 0 … n - 1) to `to`, by digit(item) < KN_SORT_DIGITS. Each warp counts, then moves a run
 * of its own, so that it needs no barrier within. What other threads wrote to `from` must be behind
 * a barrier; all threads may read `to` after the call. */
template <typename Digit>
__device__ inline void kn_sort_pass(
    kn_sort_memory *memory, const uint32_t *from, uint32_t *to, uint32_t n, Digit digit)
{
	uint32_t lane = threadIdx.x % KN_WARP, warp = threadIdx.x / KN_WARP;
	uint32_t run = (n + KN_SORT_THREADS - 1) / KN_SORT_THREADS * KN_WARP;
	uint32_t first = warp * run, last = first + run < n ? first + run : n;
	uint32_t *mine = memory->counts[warp], below = (1u << lane) - 1;

	for (uint32_t i = lane; i < KN_SORT_DIGITS; i += KN_WARP)
		mine[i] = 0;
	__syncwarp();
	for (uint32_t base = first; base < last; base += KN_WARP) {
		kn_sort_step step = kn_sort_look(from, base, last, digit);

		if (step.there && (step.peers & below) == 0) mine[step.digit] += __popc(step.peers);
		__syncwarp();
	}
	kn_sort_place(memory);
	for (uint32_t base = first; base < last; base += KN_WARP) {
		kn_sort_step step = kn_sort_look(from, base, last, digit);
		uint32_t at = step.there ? mine[step.digit] + __popc(step.peers & below) : 0;

		__syncwarp();
		if (step.there && (step.peers & below) == 0) mine[step.digit] = at + __popc(step.peers);
		if (step.there) to[at] = step.item;
		__syncwarp();
	}
	__syncthreads();
}

#endif
