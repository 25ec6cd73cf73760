/* matmul with few rows (decode), straight from GGUF blocks.
 *
 * Memory bound up to some four rows, for a decode step reads all weights for each of them: so the
 * work is laid out for reading weights. A block of four warps makes four rows of the result for up
 * to eight rows of x; its 128 threads take the chunks of eight columns (weight_chunk.cuh) in turn,
 * a thread the same chunk of all four weight rows, so that four loads of weights are on their way
 * at once and each float of x is used four times: x, which is as large as eight columns of a 4-bit
 * weight, would otherwise be the cache's bottleneck. More rows of x than eight are slices of eight,
 * in neighbouring blocks: the second slice finds the weights in the cache.
 *
 * What is computed: float activations, sums by fused multiply-adds in float. For a type with scales
 * the chunk's codes are multiplied first, and their sum enters the thread's with one multiply-add
 * by the scale, and one for the minimum with the sum of x: cheaper than dequantising and closer to
 * the exact product. From 8 rows on the multiply-adds, not the memory, bound it: 4-bit weights
 * bring 16 of them a byte.
 *
 * The order is fixed: a thread's chunks, 128 apart; lanes 16 apart, then 8, 4, 2, 1; the four
 * warps. It does not depend on the count, so a row has the same bits in every batch.
 *
 * Registers, at eight rows: 32 sums, 32 codes, up to 16 scales and minimums, two or three runs of x
 * on their way, and addresses: 168 or fewer, so that three blocks share a multiprocessor; with
 * fewer rows 128, and four blocks. 512 bytes of shared memory at most.
 */
#include "kernels/cuda/launch_plain.h"
#include "kernels/cuda/weight_chunk.cuh"

namespace
{
constexpr int threads = 128, warps = threads / 32, block_rows = 4, slice = 8;

struct gemv_run {
	const uint8_t *data;
	uint32_t rows, columns, count, slices;
	const float *x;
	size_t x_stride;
	/* From the part's first row on; bias and add may be NULL. */
	float *y;
	const float *bias, *add;
	size_t y_stride;
	int has_vectors; /* rows of x start at multiples of 16 bytes */
};

__device__ inline float4 load_run(const gemv_run &run, const float *x)
{
	if (run.has_vectors) return *reinterpret_cast<const float4 *>(x);
	return make_float4(x[0], x[1], x[2], x[3]);
}

__device__ inline float dot_run(const float *code, float4 x)
{
	return fmaf(code[3], x.w, fmaf(code[2], x.z, fmaf(code[1], x.y, code[0] * x.x)));
}

/* sum + the chunk times x: low and high are its two runs. */
template <int TYPE>
__device__ inline float add_chunk(const kn_chunk &w, float4 low, float4 high, float sum)
{
	using shape = kn_chunk_shape<TYPE>;
	float first = dot_run(w.code, low), second = dot_run(w.code + 4, high);

	if (!shape::is_scaled) return sum + (first + second);
	if (shape::has_one_scale) {
		sum = fmaf(w.scale[0], first + second, sum);
	} else {
		sum = fmaf(w.scale[0], first, sum);
		sum = fmaf(w.scale[1], second, sum);
	}
	if (!shape::has_minimum) return sum;
	float low_x = (low.x + low.y) + (low.z + low.w), high_x = (high.x + high.y) + (high.z + high.w);

	if (shape::has_one_scale) return fmaf(w.minimum[0], low_x + high_x, sum);
	return fmaf(w.minimum[1], high_x, fmaf(w.minimum[0], low_x, sum));
}

/* Sum each of COUNT values over the warp, where lane l gets value l / (32 / COUNT): at each step a
 * lane gives half of its values away and keeps the sums of the others, as long as it has several.
 */
template <int COUNT> __device__ inline float sum_lanes(float (&value)[COUNT])
{
	uint32_t lane = threadIdx.x & 31;
	int held = COUNT;

#pragma unroll
	for (int offset = 16; offset > 0; offset >>= 1) {
		if (held == 1) {
			value[0] += __shfl_xor_sync(0xffffffffu, value[0], offset);
			continue;
		}
		int upper = (lane & offset) != 0;

		held /= 2;
#pragma unroll
		for (int i = 0; i < COUNT / 2; i++) {
			if (i >= held) break;
			float given = upper ? value[i] : value[i + held];
			float kept = upper ? value[i + held] : value[i];

			value[i] = kept + __shfl_xor_sync(0xffffffffu, given, offset);
		}
	}
	return value[0];
}

/* The block's sums of the rows [first_row, first_row + block_rows) for N rows of x from first_n on:
 * index r * N + n, as far as this thread's chunks go. */
template <int TYPE, int N>
__device__ inline void add_chunks(
    const gemv_run &run, uint32_t first_row, uint32_t first_n, float (&sum)[block_rows * N])
{
	const uint8_t *row[block_rows];
	const float *x[N];

	/* What lies behind the end reads the last row again, and is not stored. */
#pragma unroll
	for (uint32_t r = 0; r < block_rows; r++)
		row[r] = kn_chunk_row<TYPE>(
		    run.data, run.columns, first_row + r < run.rows ? first_row + r : run.rows - 1);
#pragma unroll
	for (uint32_t n = 0; n < N; n++)
		x[n] = run.x + run.x_stride * (first_n + n < run.count ? first_n + n : run.count - 1);
#pragma unroll
	for (int i = 0; i < block_rows * N; i++)
		sum[i] = 0.0f;
	for (uint32_t chunk = threadIdx.x; chunk < run.columns / 8; chunk += threads) {
		uint32_t column = kn_chunk_column<TYPE>(chunk);
		kn_chunk w[block_rows];

#pragma unroll
		for (int r = 0; r < block_rows; r++)
			kn_chunk_read<TYPE>(&w[r], row[r], chunk);
#pragma unroll
		for (int n = 0; n < N; n++) {
			float4 low = load_run(run, x[n] + column);
			float4 high = load_run(run, x[n] + column + kn_chunk_shape<TYPE>::gap);

#pragma unroll
			for (int r = 0; r < block_rows; r++)
				sum[r * N + n] = add_chunk<TYPE>(w[r], low, high, sum[r * N + n]);
		}
	}
}

template <int TYPE, int N>
__global__ void __launch_bounds__(threads, N == 8 ? 3 : 4) gemv_kernel(gemv_run run)
{
	constexpr int sums = block_rows * N, lanes_each = 32 / sums;
	__shared__ float partial[warps][sums];
	uint32_t first_n = blockIdx.x % run.slices * N;
	uint32_t first_row = blockIdx.x / run.slices * block_rows;
	uint32_t lane = threadIdx.x & 31, at = threadIdx.x;
	float sum[sums];

	add_chunks<TYPE, N>(run, first_row, first_n, sum);
	float total = sum_lanes<sums>(sum);

	if (lane % lanes_each == 0) partial[threadIdx.x >> 5][lane / lanes_each] = total;
	__syncthreads();
	if (at >= sums) return;
	uint32_t row = first_row + at / N, n = first_n + at % N;

	if (row >= run.rows || n >= run.count) return;
	size_t place = run.y_stride * n + row;
	float value = partial[0][at];

#pragma unroll
	for (int i = 1; i < warps; i++)
		value += partial[i][at];
	if (run.bias) value += run.bias[row];
	if (run.add) value += run.add[place];
	run.y[place] = value;
}

template <int TYPE> void launch(gemv_run run, cudaStream_t stream)
{
	uint32_t groups = (run.rows + block_rows - 1) / block_rows;

	run.slices = (run.count + slice - 1) / slice;
	if (run.count == 1)
		LAUNCH((gemv_kernel<TYPE, 1>), groups, threads, 0, stream, run);
	else if (run.count == 2)
		LAUNCH((gemv_kernel<TYPE, 2>), groups, threads, 0, stream, run);
	else if (run.count <= 4)
		LAUNCH((gemv_kernel<TYPE, 4>), groups, threads, 0, stream, run);
	else
		LAUNCH((gemv_kernel<TYPE, 8>), groups * run.slices, threads, 0, stream, run);
}

cudaError_t multiply_part(
    const struct kn_cuda_weight_part *part, const gemv_run &run, cudaStream_t stream)
{
	switch (part->type) {
#define CASE(TYPE)                                                                                 \
	case TYPE:                                                                                     \
		launch<TYPE>(run, stream);                                                                 \
		break;
		KN_WEIGHT_TYPES(CASE)
#undef CASE
	default:
		return cudaErrorInvalidValue;
	}
	return cudaGetLastError();
}
} // namespace

extern "C" cudaError_t kn_cuda_gemv(
    const struct kn_cuda_weight *weight, const struct kn_matmul_arguments *a, cudaStream_t stream)
{
	if (a->count == 0) return cudaSuccess;
	for (uint32_t i = 0; i < weight->part_count; i++) {
		const struct kn_cuda_weight_part *part = &weight->parts[i];
		gemv_run run = {};

		run.data = part->data;
		run.rows = part->rows;
		run.columns = weight->columns;
		run.count = a->count;
		run.x = a->x;
		run.x_stride = a->x_stride;
		run.y = a->y + part->first_row;
		run.bias = a->bias ? a->bias + part->first_row : nullptr;
		run.add = a->add ? a->add + part->first_row : nullptr;
		run.y_stride = a->y_stride;
		run.has_vectors = reinterpret_cast<uintptr_t>(a->x) % 16 == 0 && a->x_stride % 4 == 0;
		cudaError_t error = multiply_part(part, run, stream);

		if (error != cudaSuccess) return error;
	}
	return cudaSuccess;
}
