/* dequantise: a thread for each chunk of eight elements (weight_chunk.cuh), which it reads with one
 * or two loads and writes with two: 16 bytes each as float, 8 as f16.
 *
 * Blocks of 256 threads along a row, rows are grid.y in a loop; no shared memory, at most 40
 * registers: three quarters of a multiprocessor's threads fit, which is enough for memory speed. A
 * switch over the type in the kernel would cost the registers of the widest type for all; hence
 * templates.
 */
#include <cuda_fp16.h>

#include "kernels/cuda/launch_plain.h"
#include "kernels/cuda/weight_chunk.cuh"

namespace
{
constexpr int threads = 256;

/* As kn_half_from_float: a NaN stays one, all else beyond the largest f16 becomes that. */
__device__ inline uint32_t half_bits(float value)
{
	float bounded = fminf(fmaxf(value, -65504.0f), 65504.0f);

	return __half_as_ushort(__float2half_rn(value != value ? value : bounded));
}

__device__ inline void store_run(float *to, const float *value)
{
	*reinterpret_cast<float4 *>(to) = make_float4(value[0], value[1], value[2], value[3]);
}

__device__ inline void store_run(uint16_t *to, const float *value)
{
	*reinterpret_cast<uint2 *>(to) = make_uint2(half_bits(value[0]) | half_bits(value[1]) << 16,
	    half_bits(value[2]) | half_bits(value[3]) << 16);
}

template <int TYPE, class OUT>
__global__ void __launch_bounds__(threads) dequantise_kernel(
    const uint8_t *data, uint32_t columns, uint32_t first, uint32_t rows, OUT *out)
{
	uint32_t chunk = blockIdx.x * threads + threadIdx.x;

	if (chunk >= columns / 8) return;
	uint32_t column = kn_chunk_column<TYPE>(chunk);

	for (uint32_t r = blockIdx.y; r < rows; r += gridDim.y) {
		kn_chunk read;
		float value[8];

		kn_chunk_read<TYPE>(&read, kn_chunk_row<TYPE>(data, columns, first + r), chunk);
#pragma unroll
		for (int i = 0; i < 8; i++)
			value[i] = kn_chunk_element<TYPE>(&read, i);
		OUT *to = out + static_cast<size_t>(columns) * r + column;

		store_run(to, value);
		store_run(to + kn_chunk_shape<TYPE>::gap, value + 4);
	}
}

template <int TYPE>
void launch(const uint8_t *data, uint32_t columns, uint32_t first, uint32_t rows,
    enum kn_cuda_float type, void *out, cudaStream_t stream)
{
	dim3 grid((columns / 8 + threads - 1) / threads, rows < 65535u ? rows : 65535u);

	if (type == KN_CUDA_F32)
		LAUNCH((dequantise_kernel<TYPE, float>), grid, threads, 0, stream, data, columns, first,
		    rows, static_cast<float *>(out));
	else
		LAUNCH((dequantise_kernel<TYPE, uint16_t>), grid, threads, 0, stream, data, columns, first,
		    rows, static_cast<uint16_t *>(out));
}
} // namespace

extern "C" cudaError_t kn_cuda_dequantise(const struct kn_cuda_weight_part *part, uint32_t columns,
    uint32_t first, uint32_t rows, enum kn_cuda_float type, void *out, cudaStream_t stream)
{
	if (rows == 0 || columns == 0) return cudaSuccess;
	switch (part->type) {
#define CASE(TYPE)                                                                                 \
	case TYPE:                                                                                     \
		launch<TYPE>(part->data, columns, first, rows, type, out, stream);                         \
		break;
		KN_WEIGHT_TYPES(CASE)
#undef CASE
	default:
		return cudaErrorInvalidValue;
	}
	return cudaGetLastError();
}
