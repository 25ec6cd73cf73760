/* From a row's number to its place in a list of spans whose lengths only the device knows. Part of
 * the attention kernels.
 *
 * A list of n spans has starts[n + 1]: where each begins, and the rows of all, none above `limit`.
 */
#ifndef KN_CUDA_SPANS_CUH
#define KN_CUDA_SPANS_CUH

#include <stdint.h>

#include "kernels/cuda/compat.h"
#include "kernels/op_arguments.h"

enum { KN_SPANS_THREADS = 256 };

/* Sums stop at the limit, which is at most 2^30: so they are right in any order. */
__device__ __forceinline__ uint32_t kn_add_to_limit(uint32_t a, uint32_t b, uint32_t limit)
{
	return a + b < limit ? a + b : limit;
}

/* Starts of a list, by a block of KN_SPANS_THREADS: a scan of 256 lengths at a time. */
__device__ __forceinline__ void kn_span_starts(
    const struct kn_span *spans, uint32_t count, uint32_t limit, uint32_t *starts)
{
	__shared__ uint32_t warp_sums[KN_SPANS_THREADS / 32];
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, before = 0;
	for (uint32_t first = 0; first < count; first += KN_SPANS_THREADS) {
		uint32_t i = first + threadIdx.x, length = i < count ? spans[i].count : 0;
		uint32_t sum = length < limit ? length : limit;
		for (uint32_t by = 1; by < 32; by *= 2) {
			uint32_t other = __shfl_up_sync(0xffffffffu, sum, by);
			if (lane >= by) sum = kn_add_to_limit(sum, other, limit);
		}
		if (lane == 31) warp_sums[warp] = sum;
		__syncthreads();
		uint32_t all = before;
		for (uint32_t w = 0; w < KN_SPANS_THREADS / 32; w++) {
			if (w == warp) sum = kn_add_to_limit(sum, all, limit);
			all = kn_add_to_limit(all, warp_sums[w], limit);
		}
		if (i < count) starts[i + 1] = sum;
		before = all;
		__syncthreads();
	}
	if (threadIdx.x == 0) starts[0] = 0;
}

/* The span of row `row`, by a whole warp whose rows are `first` + lane or lie between `first` and
 * the last row: rows ≥ first, below starts[count]. The first one's span is searched for by 32
 * probes at a time, the others' are counted in the 32 starts behind it. */
__device__ __forceinline__ uint32_t kn_find_span(
    const uint32_t *starts, uint32_t count, uint32_t first, uint32_t row)
{
	uint32_t lane = threadIdx.x % 32, low = 0, high = count;
	while (high - low > 32) {
		uint32_t step = (high - low + 31) / 32, probe = low + (lane + 1) * step;
		uint32_t below = probe < high && starts[probe] <= first;
		low += step * (uint32_t)__popc(__ballot_sync(0xffffffffu, (int)below));
		high = low + step < high ? low + step : high;
	}
	uint32_t span = 0;
	for (bool found = false; !__all_sync(0xffffffffu, found); low += 32) {
		uint32_t i = low + 1 + lane, edge = starts[i < count ? i : count], below = 0;
		for (uint32_t half = 16; half > 0; half /= 2) {
			uint32_t middle = __shfl_sync(0xffffffffu, edge, (int)(below + half - 1));
			if (middle <= row) below += half;
		}
		below += __shfl_sync(0xffffffffu, edge, (int)below) <= row;
		if (!found && below < 32) {
			span = low + below;
			found = true;
		}
	}
	return span;
}

#endif
