/* qk_norm: rms_norm of each head, in place. A head is 64 to 256 channels, so a warp takes one: lane
 * l sums channels l, l + 32, … in double, and the lanes are summed in a tree.
 *
 * Blocks of 128 threads are four warps that share nothing: no shared memory, about 30 registers.
 * The warps of a block that reach behind the last head leave as a whole.
 */
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/launch_plain.h"

namespace
{
constexpr int threads = 128;

__global__ void __launch_bounds__(threads) qk_norm_kernel(kn_cuda_qk_norm_arguments a)
{
	uint32_t all = a.heads + a.kv_heads, lane = threadIdx.x & 31;
	uint64_t head = static_cast<uint64_t>(blockIdx.x) * (threads / 32) + (threadIdx.x >> 5);

	if (head >= static_cast<uint64_t>(a.count) * all) return;
	uint64_t row = head / all;
	uint32_t h = static_cast<uint32_t>(head % all);
	int is_q = h < a.heads;
	float *x = is_q ? a.q + a.q_stride * row + static_cast<size_t>(h) * a.head_dim
	                : a.k + a.k_stride * row + static_cast<size_t>(h - a.heads) * a.head_dim;
	const float *weight = is_q ? a.q_weight : a.k_weight;
	double squares = 0.0;

	for (uint32_t k = lane; k < a.head_dim; k += 32) {
		double value = static_cast<double>(x[k]);

		squares = fma(value, value, squares);
	}
	double mean = kn_warp_sum(squares) / static_cast<double>(a.head_dim);
	float factor = static_cast<float>(1.0 / sqrt(mean + static_cast<double>(a.epsilon)));

	for (uint32_t k = lane; k < a.head_dim; k += 32)
		x[k] = x[k] * factor * weight[k];
}
} // namespace

extern "C" cudaError_t kn_cuda_qk_norm(
    const struct kn_cuda_qk_norm_arguments *a, cudaStream_t stream)
{
	uint64_t heads = static_cast<uint64_t>(a->count) * (a->heads + a->kv_heads);
	uint64_t blocks = (heads + threads / 32 - 1) / (threads / 32);

	if (heads == 0 || a->head_dim == 0) return cudaSuccess;
	LAUNCH(qk_norm_kernel, static_cast<uint32_t>(blocks), threads, 0, stream, *a);
	return cudaGetLastError();
}
