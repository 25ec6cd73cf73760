/* rms_norm: a block for each row. The row is read twice, the second time from the cache: a row that
 * is kept in registers would bound the width.
 *
 * 256 threads, 64 bytes of shared memory, about 30 registers: eight blocks to a multiprocessor, so
 * that prefill runs at memory speed. Doubles are slow on small GPUs (1/64), but there is one fused
 * multiply-add of them for eight bytes of traffic, and decode has a handful of rows. The square of
 * a float is exact in double, so the sum differs from the cpu backend's by its order alone, and the
 * factor, rounded to float, is nearly always the same.
 */
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/launch_plain.h"

namespace
{
constexpr int threads = 256;

__global__ void __launch_bounds__(threads) rms_norm_kernel(kn_rms_norm_arguments a)
{
	__shared__ double warps[threads / 32];
	const float *x = a.x + a.x_stride * blockIdx.x;
	float *out = a.out + a.out_stride * blockIdx.x;
	double squares = 0.0;

	for (uint32_t k = threadIdx.x; k < a.width; k += threads) {
		double value = static_cast<double>(x[k]);

		squares = fma(value, value, squares);
	}
	double mean = kn_block_sum<threads>(squares, warps) / static_cast<double>(a.width);
	float factor = static_cast<float>(1.0 / sqrt(mean + static_cast<double>(a.epsilon)));

	for (uint32_t k = threadIdx.x; k < a.width; k += threads)
		out[k] = x[k] * factor * a.weight[k];
}
} // namespace

extern "C" cudaError_t kn_cuda_rms_norm(const struct kn_rms_norm_arguments *a, cudaStream_t stream)
{
	if (a->count == 0 || a->width == 0) return cudaSuccess;
	LAUNCH(rms_norm_kernel, a->count, threads, 0, stream, *a);
	return cudaGetLastError();
}
