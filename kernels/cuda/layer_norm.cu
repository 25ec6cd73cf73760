/* layer_norm: a block for each row, as in rms_norm.cu, with a third pass over the cached row for
 * the variance: taken from differences, it does not cancel where the mean is large.
 *
 * 256 threads, 64 bytes of shared memory, about 32 registers.
 */
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/launch_plain.h"

namespace
{
constexpr int threads = 256;

__global__ void __launch_bounds__(threads) layer_norm_kernel(kn_cuda_layer_norm_arguments a)
{
	__shared__ double warps[threads / 32];
	const float *x = a.x + a.x_stride * blockIdx.x;
	float *out = a.out + a.out_stride * blockIdx.x;
	double sum = 0.0, squares = 0.0;

	for (uint32_t k = threadIdx.x; k < a.width; k += threads)
		sum += static_cast<double>(x[k]);
	double mean = kn_block_sum<threads>(sum, warps) / static_cast<double>(a.width);

	for (uint32_t k = threadIdx.x; k < a.width; k += threads) {
		double difference = static_cast<double>(x[k]) - mean;

		squares = fma(difference, difference, squares);
	}
	double variance = kn_block_sum<threads>(squares, warps) / static_cast<double>(a.width);
	double factor = 1.0 / sqrt(variance + static_cast<double>(a.epsilon));

	for (uint32_t k = threadIdx.x; k < a.width; k += threads) {
		float normal = static_cast<float>((static_cast<double>(x[k]) - mean) * factor);

		out[k] = normal * a.weight[k] + (a.bias ? a.bias[k] : 0.0f);
	}
}
} // namespace

extern "C" cudaError_t kn_cuda_layer_norm(
    const struct kn_cuda_layer_norm_arguments *a, cudaStream_t stream)
{
	if (a->count == 0 || a->width == 0) return cudaSuccess;
	LAUNCH(layer_norm_kernel, a->count, threads, 0, stream, *a);
	return cudaGetLastError();
}
