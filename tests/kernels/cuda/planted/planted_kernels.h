/* Kernels with one bug each, that the emulator must find (see planted_bugs.c). */
#ifndef KVT_PLANTED_KERNELS_H
#define KVT_PLANTED_KERNELS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PLANTED_THREADS = 128 };

/* All: one block of PLANTED_THREADS, but where it is said otherwise; n values of x. */

/* out[0] = the sum of x[0 … 128): the barrier before the last step is missing. */
cudaError_t planted_sum(const float *x, float *out);
/* counts[x[i]]++ for n values < 128: the barrier after zeroing the block's counters is missing. */
cudaError_t planted_count(const int *x, int *counts, int n);
/* out[0] += 1 from each of `blocks` blocks of 32 threads, not atomic. */
cudaError_t planted_add(float *out, int blocks);
/* Reverses x within each warp through shared memory: __syncwarp is missing. */
cudaError_t planted_reverse(float *x);
/* out[i] = x[i] through `n` floats of shared memory, of which the last one used is the n-th too
 * many: dynamic, or static (n is 128). */
cudaError_t planted_overrun_dynamic(const float *x, float *out, int n);
cudaError_t planted_overrun_static(const float *x, float *out);
/* out[i] = a word of shared memory that nobody wrote. */
cudaError_t planted_uninitialised(float *out);
/* out[0 … 4) = x[0 … 4), as one vector. */
cudaError_t planted_vector(const float *x, float *out);
/* Half of the threads meet at one barrier, half at another. */
cudaError_t planted_divergent_barrier(float *out);
/* A shuffle of all lanes that one never comes to. */
cudaError_t planted_missing_lane(float *out);
/* out[i] = 1 for i < n, in blocks of `threads` threads with `shared_bytes` of shared memory. */
cudaError_t planted_fill(
    float *out, int n, unsigned threads, unsigned shared_bytes, cudaStream_t stream);
/* The same to the address that the device memory at `indirect` holds. */
cudaError_t planted_fill_indirect(float **indirect, int n);
/* out[i] = x[i] + 1. */
cudaError_t planted_increment(const float *x, float *out, int n, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
