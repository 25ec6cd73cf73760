/* silu_mul: a thread for each element. The exponential is the cpu backend's, operation by
 * operation, so that both give the same bits; its twelve multiply-adds are hidden behind twelve
 * bytes of traffic.
 *
 * Blocks of 256 threads along a row; no shared memory, about 20 registers. Rows are grid.y, which
 * ends at 65,535, and so go on in a loop.
 */
#include "kernels/cuda/compat.h"
#include "kernels/cuda/launch_plain.h"

namespace
{
constexpr int threads = 256;

/* exp(x) as kn_silu_exp: 2^n times a polynomial of degree 6, x held in [-87, 89]. */
__device__ inline float silu_exp(float x)
{
	const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
	float limited = x < -87.0f ? -87.0f : x;

	limited = limited > 89.0f ? 89.0f : limited;
	float shifted = fmaf(limited, 1.44269504f, magic);
	float n = shifted - magic;
	float f = fmaf(n, -0.693145752f, limited);

	f = fmaf(n, -1.42860677e-6f, f);
	float p = fmaf(f, 1.0f / 720.0f, 1.0f / 120.0f);

	p = fmaf(p, f, 1.0f / 24.0f);
	p = fmaf(p, f, 1.0f / 6.0f);
	p = fmaf(p, f, 0.5f);
	p = fmaf(p, f, 1.0f);
	p = fmaf(p, f, 1.0f);
	return p * __uint_as_float((__float_as_uint(shifted) + 127u) << 23);
}

__global__ void __launch_bounds__(threads) silu_mul_kernel(kn_silu_mul_arguments a)
{
	uint32_t k = blockIdx.x * threads + threadIdx.x;

	if (k >= a.width) return;
	for (uint32_t n = blockIdx.y; n < a.count; n += gridDim.y) {
		float gate = a.gate[a.in_stride * n + k], up = a.up[a.in_stride * n + k];

		a.out[a.out_stride * n + k] = gate / (1.0f + silu_exp(-gate)) * up;
	}
}
} // namespace

extern "C" cudaError_t kn_cuda_silu_mul(const struct kn_silu_mul_arguments *a, cudaStream_t stream)
{
	if (a->count == 0 || a->width == 0) return cudaSuccess;
	dim3 grid((a->width + threads - 1) / threads, a->count < 65535u ? a->count : 65535u);

	LAUNCH(silu_mul_kernel, grid, threads, 0, stream, *a);
	return cudaGetLastError();
}
