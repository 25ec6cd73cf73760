#include "tests/kernels/cuda/emulator_kernels.h"

#include "kernels/cuda/compat.h"

static __global__ void saxpy_kernel(float a, const float *x, float *y, int n)
{
	int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
	if (i < n) y[i] += a * x[i];
}

cudaError_t emk_saxpy(float a, const float *x, float *y, int n, cudaStream_t stream)
{
	LAUNCH(saxpy_kernel, static_cast<unsigned>(n + 127) / 128, 128, 0, stream, a, x, y, n);
	return cudaGetLastError();
}

static __device__ float warp_sum(float v)
{
	for (int by = 16; by > 0; by >>= 1)
		v += __shfl_down_sync(0xffffffffu, v, by);
	return v;
}

/* Static shared memory for the sums of warps, dynamic for the row: both kinds are in use. */
static __global__ void __launch_bounds__(256) sum_rows_kernel(const float *x, float *out, int n)
{
	__shared__ float of_warp[8];
	DYN_SHARED(float, row);
	for (int i = static_cast<int>(threadIdx.x); i < n; i += 256)
		row[i] = x[static_cast<size_t>(blockIdx.x) * n + i];
	__syncthreads();
	float v = 0.0f;
	for (int i = static_cast<int>(threadIdx.x); i < n; i += 256)
		v += row[n - 1 - i];
	v = warp_sum(v);
	if ((threadIdx.x & 31) == 0) of_warp[threadIdx.x >> 5] = v;
	__syncthreads();
	if (threadIdx.x < 32) {
		v = warp_sum(threadIdx.x < 8 ? of_warp[threadIdx.x] : 0.0f);
		if (threadIdx.x == 0) out[blockIdx.x] = v;
	}
}

cudaError_t emk_sum_rows(const float *x, float *out, int rows, int n, cudaStream_t stream)
{
	LAUNCH(sum_rows_kernel, rows, 256, n * sizeof(float), stream, x, out, n);
	return cudaGetLastError();
}

static __global__ void fill_kernel(float *x, float value, int n)
{
	int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
	if (i < n) x[i] = value;
}

cudaError_t emk_fill(float *x, float value, int n, cudaStream_t stream)
{
	LAUNCH(fill_kernel, static_cast<unsigned>(n + 63) / 64, 64, 0, stream, x, value, n);
	return cudaGetLastError();
}

static __global__ void count_kernel(const int *x, int *counts, int n)
{
	__shared__ int of_block[32];
	if (threadIdx.x < 32) of_block[threadIdx.x] = 0;
	__syncthreads();
	int first = static_cast<int>(blockIdx.x) * 100, end = min(first + 100, n);
	for (int i = first + static_cast<int>(threadIdx.x); i < end; i += static_cast<int>(blockDim.x))
		atomicAdd(&of_block[x[i]], 1);
	__syncthreads();
	if (threadIdx.x < 32) atomicAdd(&counts[threadIdx.x], of_block[threadIdx.x]);
}

cudaError_t emk_count(const int *x, int *counts, int n, int threads, cudaStream_t stream)
{
	LAUNCH(count_kernel, (n + 99) / 100, threads, 0, stream, x, counts, n);
	return cudaGetLastError();
}

static __global__ void collectives_kernel(int *out)
{
	const unsigned all = 0xffffffffu, halves[2] = {0xffffu, 0xffff0000u};
	int t = static_cast<int>(threadIdx.x), n = static_cast<int>(blockDim.x);
	int half = t >> 4 & 1, sum = t;
	out[EMK_DOWN * n + t] = __shfl_down_sync(all, t, 1);
	out[EMK_XOR * n + t] = __shfl_xor_sync(all, t, 3, 16);
	/* The last warp has 16 lanes: the others are none of its mask's. */
	unsigned present = t < 64 ? all : 0xffffu;
	out[EMK_SUM * n + t] = __reduce_add_sync(present, t);
	out[EMK_ODD * n + t] = static_cast<int>(__ballot_sync(all, t & 1));
	out[EMK_SAME * n + t] = static_cast<int>(__match_any_sync(present, t / 5));
	out[EMK_ANY * n + t] = __any_sync(all, t == n - 1);
	for (int by = 8; by > 0; by >>= 1)
		sum += __shfl_xor_sync(halves[half], sum, by);
	out[EMK_HALF * n + t] = sum;
	out[EMK_COUNT * n + t] = __syncthreads_count(t % 3 == 0);
}

cudaError_t emk_collectives(int *out, cudaStream_t stream)
{
	LAUNCH(collectives_kernel, 1, 80, 0, stream, out);
	return cudaGetLastError();
}
