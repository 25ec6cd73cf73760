/* Rotary position embedding in place.
 *
 * A block has one row and 8 of its heads; a thread has one pair of channels, takes the sine and
 * cosine of its angle once and turns that pair in each of the heads. The angle is a double product,
 * as in the CPU backend, and so are sine and cosine: CUDA's own would need local memory for
 * arguments that no position has, so they are written out here for angles up to 2^32 radians, in
 * double throughout. 60 or so double operations a thread: on GPUs with 1/64 of double rate that is
 * still below a microsecond a block. 128 threads at most (256 channels), no shared memory. */
#include <math.h>

#include "kernels/cuda/compat.h"
#include "kernels/cuda/launch_attention.h"

namespace
{
constexpr uint32_t THREADS = 128, HEADS = 8;

/* pi / 2 in three parts, each of 33 bits but the last: a multiple below 2^20 of the first two is
 * exact, larger ones are so by the fused operations. */
#define HALF_PI_1   0x1.921fb544p+0
#define HALF_PI_2   0x1.0b4611a6p-34
#define HALF_PI_3   0x1.3198a2e037073p-69
#define TWO_OVER_PI 0x1.45f306dc9c883p-1

/* sin(x) for |x| ≤ pi / 4: the series as far as x^17, 5e-18 from the end. */
__device__ __forceinline__ double sine_series(double x)
{
	double s = x * x, p = 1.0 / 355687428096000.0;
	p = fma(p, s, -1.0 / 1307674368000.0);
	p = fma(p, s, 1.0 / 6227020800.0);
	p = fma(p, s, -1.0 / 39916800.0);
	p = fma(p, s, 1.0 / 362880.0);
	p = fma(p, s, -1.0 / 5040.0);
	p = fma(p, s, 1.0 / 120.0);
	p = fma(p, s, -1.0 / 6.0);
	return fma(p * s, x, x);
}

/* cos(x) for |x| ≤ pi / 4: the series as far as x^16. */
__device__ __forceinline__ double cosine_series(double x)
{
	double s = x * x, p = 1.0 / 20922789888000.0;
	p = fma(p, s, -1.0 / 87178291200.0);
	p = fma(p, s, 1.0 / 479001600.0);
	p = fma(p, s, -1.0 / 3628800.0);
	p = fma(p, s, 1.0 / 40320.0);
	p = fma(p, s, -1.0 / 720.0);
	p = fma(p, s, 1.0 / 24.0);
	p = fma(p, s, -0.5);
	return fma(p, s, 1.0);
}

__device__ __forceinline__ void sine_cosine(double angle, float *sine, float *cosine)
{
	double turns = rint(angle * TWO_OVER_PI);
	double x = fma(-turns, HALF_PI_1, angle);
	x = fma(-turns, HALF_PI_2, x);
	x = fma(-turns, HALF_PI_3, x);
	double s = sine_series(x), c = cosine_series(x);
	long long quadrant = (long long)turns & 3;
	double y = quadrant & 1 ? c : s, z = quadrant & 1 ? s : c;
	*sine = (float)(quadrant & 2 ? -y : y);
	*cosine = (float)(quadrant == 1 || quadrant == 2 ? -z : z);
}

__global__ void __launch_bounds__(THREADS) rotate_kernel(const struct kn_rotate_arguments a)
{
	uint32_t pairs = a.rotary_dim / 2, i = threadIdx.x;
	if (i >= pairs) return;
	float sine, cosine;
	sine_cosine((double)a.positions[blockIdx.x] * (double)a.inverse_frequency[i], &sine, &cosine);
	uint32_t p = a.adjacent_pairs ? 2 * i : i, q = a.adjacent_pairs ? p + 1 : i + pairs;
	uint32_t first = blockIdx.y * HEADS, left = a.heads - first;
	float *x = a.x + blockIdx.x * a.x_stride + (size_t)first * a.head_dim;
	for (uint32_t h = 0; h < (left < HEADS ? left : HEADS); h++, x += a.head_dim) {
		float u = x[p], v = x[q];
		x[p] = u * cosine - v * sine;
		x[q] = u * sine + v * cosine;
	}
}
} // namespace

extern "C" cudaError_t kn_cuda_rotate(const struct kn_rotate_arguments *a, cudaStream_t stream)
{
	if (a->count == 0 || a->heads == 0 || a->rotary_dim < 2) return cudaSuccess;
	if (a->rotary_dim / 2 > THREADS || a->heads > 65535) return cudaErrorInvalidValue;
	unsigned threads = (a->rotary_dim / 2 + 31) / 32 * 32;
	dim3 grid(a->count, (a->heads - 1) / HEADS + 1);
	LAUNCH(rotate_kernel, grid, threads, 0, stream, *a);
	return cudaGetLastError();
}
