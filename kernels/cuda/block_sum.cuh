/* Sums over a warp and over a block, in one order: for kernels alone. */
#ifndef KN_CUDA_BLOCK_SUM_CUH
#define KN_CUDA_BLOCK_SUM_CUH

#include "kernels/cuda/compat.h"

/* The sum over the 32 lanes of a full warp, in all of them: pairs 16 apart, then 8, 4, 2, 1. */
static __device__ inline double kn_warp_sum(double value)
{
#pragma unroll
	for (int offset = 16; offset > 0; offset >>= 1)
		value += __shfl_xor_sync(0xffffffffu, value, offset);
	return value;
}

/* The sum over a block of THREADS threads, in all of them: each warp's, then the warps in order.
 * `warps` is shared memory; a barrier before the first use and between two is in here. */
template <int THREADS>
static __device__ inline double kn_block_sum(double value, double (&warps)[THREADS / 32])
{
	value = kn_warp_sum(value);
	__syncthreads();
	if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = value;
	__syncthreads();
	double sum = 0.0;

#pragma unroll
	for (int i = 0; i < THREADS / 32; i++)
		sum += warps[i];
	return sum;
}

#endif
