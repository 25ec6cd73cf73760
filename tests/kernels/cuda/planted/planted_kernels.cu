#include "tests/kernels/cuda/planted/planted_kernels.h"

#include "kernels/cuda/compat.h"

static __global__ void sum_kernel(const float *x, float *out)
{
	__shared__ float of_warp[PLANTED_THREADS / 32];
	float v = x[threadIdx.x];
	for (int by = 16; by > 0; by >>= 1)
		v += __shfl_down_sync(0xffffffffu, v, by);
	if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
	/* here */
	if (threadIdx.x == 0) *out = of_warp[0] + of_warp[1] + of_warp[2] + of_warp[3];
}

cudaError_t planted_sum(const float *x, float *out)
{
	LAUNCH(sum_kernel, 1, PLANTED_THREADS, 0, nullptr, x, out);
	return cudaGetLastError();
}

static __global__ void count_kernel(const int *x, int *counts, int n)
{
	__shared__ int of_block[PLANTED_THREADS];
	of_block[threadIdx.x] = 0;
	/* here */
	for (int i = static_cast<int>(threadIdx.x); i < n; i += PLANTED_THREADS)
		atomicAdd(&of_block[x[i]], 1);
	__syncthreads();
	counts[threadIdx.x] = of_block[threadIdx.x];
}

cudaError_t planted_count(const int *x, int *counts, int n)
{
	LAUNCH(count_kernel, 1, PLANTED_THREADS, 0, nullptr, x, counts, n);
	return cudaGetLastError();
}

static __global__ void add_kernel(float *out)
{
	if (threadIdx.x == 0) *out += 1.0f;
}

cudaError_t planted_add(float *out, int blocks)
{
	LAUNCH(add_kernel, blocks, 32, 0, nullptr, out);
	return cudaGetLastError();
}

static __global__ void reverse_kernel(float *x)
{
	__shared__ float row[PLANTED_THREADS];
	row[threadIdx.x] = x[threadIdx.x];
	/* here */
	x[threadIdx.x] = row[threadIdx.x ^ 31];
}

cudaError_t planted_reverse(float *x)
{
	LAUNCH(reverse_kernel, 1, PLANTED_THREADS, 0, nullptr, x);
	return cudaGetLastError();
}

static __global__ void overrun_dynamic_kernel(const float *x, float *out, int n)
{
	DYN_SHARED(float, row);
	int i = static_cast<int>(threadIdx.x);
	row[i] = i < n ? x[i] : 0.0f;
	__syncthreads();
	out[i] = row[i];
}

cudaError_t planted_overrun_dynamic(const float *x, float *out, int n)
{
	/* One thread, and one word, more than there are. */
	LAUNCH(overrun_dynamic_kernel, 1, n + 1, n * sizeof(float), nullptr, x, out, n);
	return cudaGetLastError();
}

static __global__ void overrun_static_kernel(const float *x, float *out, int past)
{
	__shared__ float row[PLANTED_THREADS];
	row[threadIdx.x] = x[threadIdx.x];
	__syncthreads();
	out[threadIdx.x] = row[threadIdx.x + past];
}

cudaError_t planted_overrun_static(const float *x, float *out)
{
	LAUNCH(overrun_static_kernel, 1, PLANTED_THREADS, 0, nullptr, x, out, 1);
	return cudaGetLastError();
}

static __global__ void uninitialised_kernel(float *out)
{
	__shared__ float row[PLANTED_THREADS];
	if (threadIdx.x > 0) row[threadIdx.x] = 1.0f;
	__syncthreads();
	out[threadIdx.x] = row[threadIdx.x];
}

cudaError_t planted_uninitialised(float *out)
{
	LAUNCH(uninitialised_kernel, 1, PLANTED_THREADS, 0, nullptr, out);
	return cudaGetLastError();
}

static __global__ void vector_kernel(const float *x, float *out)
{
	float4 v = *reinterpret_cast<const float4 *>(x);
	out[0] = v.x;
	out[1] = v.y;
	out[2] = v.z;
	out[3] = v.w;
}

cudaError_t planted_vector(const float *x, float *out)
{
	LAUNCH(vector_kernel, 1, 1, 0, nullptr, x, out);
	return cudaGetLastError();
}

static __global__ void divergent_barrier_kernel(float *out)
{
	if (threadIdx.x < 16)
		__syncthreads();
	else
		__syncthreads();
	out[threadIdx.x] = 1.0f;
}

cudaError_t planted_divergent_barrier(float *out)
{
	LAUNCH(divergent_barrier_kernel, 1, PLANTED_THREADS, 0, nullptr, out);
	return cudaGetLastError();
}

static __global__ void missing_lane_kernel(float *out)
{
	if (threadIdx.x != 5) out[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 0);
}

cudaError_t planted_missing_lane(float *out)
{
	LAUNCH(missing_lane_kernel, 1, PLANTED_THREADS, 0, nullptr, out);
	return cudaGetLastError();
}

static __global__ void fill_kernel(float *out, int n)
{
	int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
	if (i < n) out[i] = 1.0f;
}

cudaError_t planted_fill(
    float *out, int n, unsigned threads, unsigned shared_bytes, cudaStream_t stream)
{
	LAUNCH(fill_kernel, (static_cast<unsigned>(n) + threads - 1) / threads, threads, shared_bytes,
	    stream, out, n);
	return cudaGetLastError();
}

static __global__ void fill_indirect_kernel(float **indirect, int n)
{
	int i = static_cast<int>(threadIdx.x);
	if (i < n) (*indirect)[i] = 1.0f;
}

cudaError_t planted_fill_indirect(float **indirect, int n)
{
	LAUNCH(fill_indirect_kernel, 1, PLANTED_THREADS, 0, nullptr, indirect, n);
	return cudaGetLastError();
}

static __global__ void increment_kernel(const float *x, float *out, int n)
{
	int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
	if (i < n) out[i] = x[i] + 1.0f;
}

cudaError_t planted_increment(const float *x, float *out, int n, cudaStream_t stream)
{
	LAUNCH(increment_kernel, static_cast<unsigned>(n + 63) / 64, 64, 0, stream, x, out, n);
	return cudaGetLastError();
}
