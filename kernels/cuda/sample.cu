/* Sampling of the next token, as gpu-worker/text/sampler.c does it, for each row of logits.
 *
 * The sampler sorts by logit (ties: the lowest id first), keeps a prefix of that order and draws
 * from it. Nothing is sorted here: a token's weight, its probability over the best one's, is a
 * whole number of 2^-42, so that sums are exact in any order, and all that is asked is which token
 * lies at a certain offset of the running sum, of weights or of tokens. In the order of logits that
 * is a search for a logit's bits, three at a time from the top: eleven passes of sums over what is
 * larger (`find`). Tokens of that logit have the same weight, which leaves a count among them, by
 * id.
 *
 * Three launches: the best token of each 4,096; the weights, whose exponentials are doubles and so
 * want many blocks; the choice, a block of 256 threads for each row, whose passes read 12 bytes a
 * token from the L2 cache, for each of top_k, top_p and the draw. Its registers are the seven
 * 64-bit sums of a pass and what the loop needs, at most 64, with 14 KiB of shared memory: a batch
 * has too few rows to fill a GPU anyway. Histograms in shared memory would be fewer passes, but
 * logits share their upper bits, and the lanes of a warp would add one by one.
 */
#include "kernels/cuda/compat.h"
#include "kernels/cuda/launch_plain.h"

namespace
{
constexpr int slice_threads = 256, threads = 256, warps = threads / 32;
constexpr uint32_t slice = 4096;
constexpr double one = 4398046511104.0; /* 2^42: the best token's weight */
constexpr double negligible = -30.0;    /* one * e^-30 rounds to 0 */

using weight_t = unsigned long long;

/* One row's memory behind `scratch`: the best of each slice, then the weights. */
struct sample_run {
	kn_cuda_sample_arguments a;
	uint32_t slices;
	weight_t *best;   /* [count][slices] */
	weight_t *weight; /* [count][vocabulary] */
};

/* Floats as numbers of the same order; -0 as 0, NaN as minus infinity. */
__device__ inline uint32_t order_of(float logit)
{
	uint32_t bits = __float_as_uint(logit);

	if (logit == 0.0f) bits = 0;
	if (logit != logit) bits = 0xff800000u;
	return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ inline float logit_of(uint32_t order)
{
	return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

/* 0 for logits whose distance to the best is below `least`, ln min_p, and for NaN. */
__device__ inline weight_t weight_of(
    float logit, float best, float temperature, double least = negligible)
{
	double distance =
	    (static_cast<double>(logit) - static_cast<double>(best)) / static_cast<double>(temperature);

	return distance >= least ? static_cast<weight_t>(exp(distance) * one + 0.5) : 0;
}

/* The larger is the better token: its logit's order, then the lower id. */
__device__ inline weight_t rank_of(float logit, uint32_t id)
{
	return static_cast<weight_t>(order_of(logit)) << 32 | (0xffffffffu - id);
}

/* The largest of the block's values, in all its threads; to be called once. */
template <int THREADS> __device__ inline weight_t block_max(weight_t value)
{
	__shared__ weight_t largest[THREADS / 32];

#pragma unroll
	for (int offset = 16; offset > 0; offset >>= 1) {
		weight_t other = __shfl_xor_sync(0xffffffffu, value, offset);

		value = other > value ? other : value;
	}
	if ((threadIdx.x & 31) == 0) largest[threadIdx.x >> 5] = value;
	__syncthreads();
#pragma unroll
	for (int i = 0; i < THREADS / 32; i++)
		value = largest[i] > value ? largest[i] : value;
	return value;
}

__global__ void __launch_bounds__(slice_threads) best_kernel(sample_run run)
{
	const float *logits = run.a.logits + run.a.logits_stride * blockIdx.y;
	uint32_t first = blockIdx.x * slice;
	weight_t best = 0;

	for (uint32_t i = threadIdx.x; i < slice && first + i < run.a.vocabulary; i += slice_threads) {
		weight_t rank = rank_of(logits[first + i], first + i);

		best = rank > best ? rank : best;
	}
	best = block_max<slice_threads>(best);
	if (threadIdx.x == 0)
		run.best[static_cast<size_t>(run.slices) * blockIdx.y + blockIdx.x] = best;
}

/* The rank of the row's best token: there are at most 256 slices. */
template <int THREADS> __device__ inline weight_t best_of_row(const sample_run &run, uint32_t row)
{
	const weight_t *best = run.best + static_cast<size_t>(run.slices) * row;

	return block_max<THREADS>(threadIdx.x < run.slices ? best[threadIdx.x] : 0);
}

/* 0 where the best token is the answer: no temperature, or no distance to it. */
__device__ inline int is_drawn(const kn_cuda_sample_options &o, float best)
{
	return o.temperature > 0.0f && best - best == 0.0f;
}

__global__ void __launch_bounds__(slice_threads) weigh_kernel(sample_run run)
{
	const kn_cuda_sample_options &o = run.a.options[blockIdx.y];
	const float *logits = run.a.logits + run.a.logits_stride * blockIdx.y;
	weight_t *weight = run.weight + static_cast<size_t>(run.a.vocabulary) * blockIdx.y;
	uint32_t first = blockIdx.x * slice;
	float best = logit_of(static_cast<uint32_t>(best_of_row<slice_threads>(run, blockIdx.y) >> 32));

	if (!is_drawn(o, best)) return;
	double least = o.min_p > 0.0f ? log(static_cast<double>(o.min_p)) : negligible;

	if (least < negligible) least = negligible;
	for (uint32_t i = threadIdx.x; i < slice && first + i < run.a.vocabulary; i += slice_threads)
		weight[first + i] = weight_of(logits[first + i], best, o.temperature, least);
}

/* One row in the third launch. */
struct row_view {
	const float *logits;
	const weight_t *weight;
	uint32_t vocabulary;
	float best, temperature;
	weight_t *sums; /* shared memory of block_sums: [7][threads] */
};

/* Sums over the block of COUNT ≤ warps values of each thread, in all threads: warp i adds up value
 * i, a lane every 32nd thread's. A tree of shuffles for each value in each warp would be 35 of them
 * for `find`. */
template <int COUNT>
__device__ inline void block_sums(const row_view &row, weight_t (&value)[COUNT])
{
	uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;

#pragma unroll
	for (int i = 0; i < COUNT; i++)
		row.sums[i * threads + threadIdx.x] = value[i];
	__syncthreads();
	if (warp < COUNT) {
		weight_t sum = 0;

		for (uint32_t i = lane; i < threads; i += 32)
			sum += row.sums[warp * threads + i];
#pragma unroll
		for (int offset = 16; offset > 0; offset >>= 1)
			sum += __shfl_xor_sync(0xffffffffu, sum, offset);
		/* Which no other lane has read. */
		if (lane == 0) row.sums[warp * threads] = sum;
	}
	__syncthreads();
#pragma unroll
	for (int i = 0; i < COUNT; i++)
		value[i] = row.sums[i * threads];
	__syncthreads(); /* the next call writes there */
}

/* What is counted along the order: weight, or tokens that have any. */
__device__ inline weight_t measure(weight_t weight, int is_count)
{
	return is_count ? weight > 0 : weight;
}

/* The order of the logit at which the running measure, from the best token down, passes `offset`;
 * *above is the measure of the logits over it. `offset` is less than the measure of all. */
__device__ inline uint32_t find(const row_view &row, int is_count, weight_t offset, weight_t *above)
{
	uint32_t found = 0;
	weight_t over = 0; /* measure above the range of logits that start with `found` */

	for (int shift = 30; shift >= 0; shift -= 3) {
		weight_t from[7] = {}; /* of the digits from 1, 2, … on */

		for (uint32_t i = threadIdx.x; i < row.vocabulary; i += threads) {
			uint32_t digits = order_of(row.logits[i]) >> shift;

			if (shift < 30 && digits >> 3 != found) continue;
			weight_t here = measure(row.weight[i], is_count);

			digits &= 7u;
#pragma unroll
			for (uint32_t d = 1; d < 8; d++)
				from[d - 1] += digits >= d ? here : 0;
		}
		block_sums<7>(row, from);
		uint32_t digit = 0;
		weight_t passed = 0;

#pragma unroll
		for (uint32_t d = 1; d < 8; d++) {
			/* What starts with a larger digit comes first. */
			if (over + from[d - 1] > offset)
				digit = d;
			else if (from[d - 1] > passed)
				passed = from[d - 1];
		}
		over += passed;
		found = found << 3 | digit;
	}
	*above = over;
	return found;
}

/* The weight of all, and the number of tokens that have any. */
__device__ inline void measure_all(const row_view &row, weight_t *weight, weight_t *count)
{
	weight_t sum[2] = {0, 0};

	for (uint32_t i = threadIdx.x; i < row.vocabulary; i += threads) {
		sum[0] += row.weight[i];
		sum[1] += row.weight[i] > 0;
	}
	block_sums<2>(row, sum);
	*weight = sum[0];
	*count = sum[1];
}

/* The weight of tokens of a logit over that of `order`. */
__device__ inline weight_t weight_over(const row_view &row, uint32_t order)
{
	weight_t sum[1] = {0};

	for (uint32_t i = threadIdx.x; i < row.vocabulary; i += threads)
		if (order_of(row.logits[i]) > order) sum[0] += row.weight[i];
	block_sums<1>(row, sum);
	return sum[0];
}

/* The weight of the prefix that top_k and top_p keep of what min_p has left. */
__device__ inline weight_t kept_weight(const row_view &row, const kn_cuda_sample_options &o)
{
	weight_t kept, count, above;

	measure_all(row, &kept, &count);
	if (o.top_k > 0 && o.top_k < count) {
		uint32_t order = find(row, 1, o.top_k - 1, &above);

		kept = weight_over(row, order) +
		       (o.top_k - above) * weight_of(logit_of(order), row.best, row.temperature);
	}
	if (o.top_p < 1.0f) {
		double share = ceil(static_cast<double>(o.top_p) * static_cast<double>(kept));
		weight_t wanted = share < 1.0 ? 1 : static_cast<weight_t>(share);

		if (wanted > kept) wanted = kept;
		uint32_t order = find(row, 0, wanted - 1, &above);
		weight_t each = weight_of(logit_of(order), row.best, row.temperature);

		kept = above + (wanted - above + each - 1) / each * each;
	}
	return kept;
}

/* What token i counts in a walk by id: its weight, or 1 where its logit is of `order`. */
__device__ inline weight_t step_of(const row_view &row, uint32_t i, int is_tie, uint32_t order)
{
	return is_tie ? order_of(row.logits[i]) == order : row.weight[i];
}

/* Write the id at which the sum of steps by rising id passes `offset`. Each thread has a run of
 * ids, and the one in whose run that is walks it. */
__device__ inline void walk(
    const row_view &row, int is_tie, uint32_t order, weight_t offset, int32_t *id)
{
	__shared__ weight_t sums[warps];
	uint32_t run = (row.vocabulary + threads - 1) / threads;
	uint32_t first = threadIdx.x * run, last = first + run, lane = threadIdx.x & 31;
	weight_t own = 0;

	if (last > row.vocabulary) last = row.vocabulary;
	for (uint32_t i = first; i < last; i++)
		own += step_of(row, i, is_tie, order);
	weight_t until = own; /* the sum of this warp's threads up to this one */

#pragma unroll
	for (int offset_of_lane = 1; offset_of_lane < 32; offset_of_lane <<= 1) {
		weight_t other = __shfl_up_sync(0xffffffffu, until, offset_of_lane);

		if (lane >= static_cast<uint32_t>(offset_of_lane)) until += other;
	}
	if (lane == 31) sums[threadIdx.x >> 5] = until;
	__syncthreads();
	for (uint32_t w = 0; w < threadIdx.x >> 5; w++)
		until += sums[w];
	if (offset >= until || offset < until - own) return;
	weight_t at = until - own;

	for (uint32_t i = first; i < last; i++) {
		at += step_of(row, i, is_tie, order);
		if (at > offset) {
			*id = static_cast<int32_t>(i);
			return;
		}
	}
}

__global__ void __launch_bounds__(threads, 1) pick_kernel(sample_run run)
{
	const kn_cuda_sample_options o = run.a.options[blockIdx.x];
	weight_t rank = best_of_row<threads>(run, blockIdx.x);
	int32_t *id = run.a.ids + blockIdx.x;
	__shared__ weight_t sums[7 * threads];
	row_view row;

	row.logits = run.a.logits + run.a.logits_stride * blockIdx.x;
	row.weight = run.weight + static_cast<size_t>(run.a.vocabulary) * blockIdx.x;
	row.vocabulary = run.a.vocabulary;
	row.best = logit_of(static_cast<uint32_t>(rank >> 32));
	row.temperature = o.temperature;
	row.sums = sums;
	if (!is_drawn(o, row.best)) {
		if (threadIdx.x == 0) *id = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(rank));
		return;
	}
	weight_t kept = kept_weight(row, o);
	weight_t offset = static_cast<weight_t>(o.draw * static_cast<double>(kept));

	if (offset >= kept) offset = kept - 1;
	/* What is not sorted is drawn by rising id, as in the sampler. */
	if (o.top_k == 0 && !(o.top_p < 1.0f)) {
		walk(row, 0, 0, offset, id);
		return;
	}
	weight_t above;
	uint32_t order = find(row, 0, offset, &above);
	weight_t each = weight_of(logit_of(order), row.best, row.temperature);

	walk(row, 1, order, (offset - above) / each, id);
}

uint32_t slices_of(uint32_t vocabulary)
{
	return (vocabulary + slice - 1) / slice;
}
} // namespace

extern "C" size_t kn_cuda_sample_scratch_bytes(uint32_t count, uint32_t vocabulary)
{
	return static_cast<size_t>(count) * (slices_of(vocabulary) + vocabulary) * sizeof(weight_t);
}

extern "C" cudaError_t kn_cuda_sample(
    const struct kn_cuda_sample_arguments *a, void *scratch, cudaStream_t stream)
{
	sample_run run = {};

	if (a->count == 0) return cudaSuccess;
	run.a = *a;
	run.slices = slices_of(a->vocabulary);
	run.best = static_cast<weight_t *>(scratch);
	run.weight = run.best + static_cast<size_t>(a->count) * run.slices;
	dim3 grid(run.slices, a->count);

	LAUNCH(best_kernel, grid, slice_threads, 0, stream, run);
	LAUNCH(weigh_kernel, grid, slice_threads, 0, stream, run);
	LAUNCH(pick_kernel, a->count, threads, 0, stream, run);
	return cudaGetLastError();
}
