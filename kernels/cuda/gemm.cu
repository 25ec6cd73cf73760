/* What is around the GEMM of prefill (gemm_cublas.h): activations into it, products out of it.
 *
 * Both are bound by memory. A block of 256 threads takes a row of activations, which it reads twice
 * for f16, the second time from the cache; products are a thread each, rows in grid.y in a loop. At
 * most 32 registers, 32 bytes of shared memory.
 */
#include <cuda_fp16.h>

#include "kernels/cuda/compat.h"
#include "kernels/cuda/launch_plain.h"

namespace
{
constexpr int threads = 256;

__global__ void __launch_bounds__(threads)
    pack_f32_kernel(const float *x, size_t x_stride, float *to, uint32_t columns)
{
	const float *from = x + x_stride * blockIdx.x;

	to += static_cast<size_t>(columns) * blockIdx.x;
	for (uint32_t k = threadIdx.x; k < columns; k += threads)
		to[k] = from[k];
}

/* The largest of the block's values, in all its threads. */
__device__ inline uint32_t block_max(uint32_t value, uint32_t (&warps)[threads / 32])
{
#pragma unroll
	for (int offset = 16; offset > 0; offset >>= 1) {
		uint32_t other = __shfl_xor_sync(0xffffffffu, value, offset);

		value = other > value ? other : value;
	}
	if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = value;
	__syncthreads();
#pragma unroll
	for (int i = 0; i < threads / 32; i++)
		value = warps[i] > value ? warps[i] : value;
	return value;
}

/* Magnitudes are compared as bits: in the order of the floats, infinity and NaN above all. */
__global__ void __launch_bounds__(threads)
    pack_f16_kernel(const float *x, size_t x_stride, __half *to, float *unscale, uint32_t columns)
{
	__shared__ uint32_t warps[threads / 32];
	const float *from = x + x_stride * blockIdx.x;
	uint32_t largest = 0;

	to += static_cast<size_t>(columns) * blockIdx.x;
	for (uint32_t k = threadIdx.x; k < columns; k += threads) {
		uint32_t magnitude = __float_as_uint(from[k]) & 0x7fffffffu;

		largest = magnitude > largest ? magnitude : largest;
	}
	largest = block_max(largest, warps);
	/* The exponent of the factor: 14 less that of the largest, both with 127 added. */
	int exponent = 127 + 14 - (static_cast<int>(largest >> 23) - 127);

	if (exponent > 127 + 100) exponent = 127 + 100;
	if (largest >= 0x7f800000u) exponent = 127;
	float scale = __uint_as_float(static_cast<uint32_t>(exponent) << 23);

	for (uint32_t k = threadIdx.x; k < columns; k += threads)
		to[k] = __float2half_rn(from[k] * scale);
	if (threadIdx.x == 0)
		unscale[blockIdx.x] = __uint_as_float(static_cast<uint32_t>(254 - exponent) << 23);
}

__global__ void __launch_bounds__(threads) finish_kernel(kn_cuda_gemm_finish_arguments a)
{
	uint32_t r = blockIdx.x * threads + threadIdx.x, row = a.first_row + r;

	if (r >= a.rows) return;
	for (uint32_t n = blockIdx.y; n < a.count; n += gridDim.y) {
		size_t place = a.y_stride * n + row;
		float value = a.product[static_cast<size_t>(a.rows) * n + r];

		if (a.unscale) value *= a.unscale[n];
		if (a.bias) value += a.bias[row];
		if (a.add) value += a.add[place];
		a.y[place] = value;
	}
}
} // namespace

extern "C" cudaError_t kn_cuda_gemm_pack_f32(const float *x, size_t x_stride, float *to,
    uint32_t count, uint32_t columns, cudaStream_t stream)
{
	if (count == 0 || columns == 0) return cudaSuccess;
	LAUNCH(pack_f32_kernel, count, threads, 0, stream, x, x_stride, to, columns);
	return cudaGetLastError();
}

extern "C" cudaError_t kn_cuda_gemm_pack_f16(const float *x, size_t x_stride, void *to,
    float *unscale, uint32_t count, uint32_t columns, cudaStream_t stream)
{
	if (count == 0 || columns == 0) return cudaSuccess;
	LAUNCH(pack_f16_kernel, count, threads, 0, stream, x, x_stride, static_cast<__half *>(to),
	    unscale, columns);
	return cudaGetLastError();
}

extern "C" cudaError_t kn_cuda_gemm_finish(
    const struct kn_cuda_gemm_finish_arguments *a, cudaStream_t stream)
{
	if (a->count == 0 || a->rows == 0) return cudaSuccess;
	dim3 grid((a->rows + threads - 1) / threads, a->count < 65535u ? a->count : 65535u);

	LAUNCH(finish_kernel, grid, threads, 0, stream, *a);
	return cudaGetLastError();
}
