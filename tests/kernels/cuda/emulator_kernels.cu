#include "tests/kernels/cuda/emulator_kernels.h"

#include "kernels/cuda/compat.h"

static __global__ void saxpy_kernel(float a, const float *x, float *y, int n)
{
	int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
	if (i < n)
		y[i] += a * x[i];
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
	if ((threadIdx.x & 31) == 0)
		of_warp[threadIdx.x >> 5] = v;
	__syncthreads();
	if (threadIdx.x < 32) {
		v = warp_sum(threadIdx.x < 8 ? of_warp[threadIdx.x] : 0.0f);
		if (threadIdx.x == 0)
			out[blockIdx.x] = v;
	}
}

cudaError_t emk_sum_rows(const float *x, float *out, int rows, int n, cudaStream_t stream)
{
	LAUNCH(sum_rows_kernel, rows, 256, n * sizeof(float), stream, x, out, n);
	return cudaGetLastError();
}
