/* Small kernels that show the emulator (tests/lib/cuda_on_cpu) at work. */
#ifndef KVT_EMULATOR_KERNELS_H
#define KVT_EMULATOR_KERNELS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y[i] += a * x[i] for i < n; blocks of 128 threads. */
cudaError_t emk_saxpy(float a, const float *x, float *y, int n, cudaStream_t stream);
/* x[i] = value for i < n; blocks of 64 threads. */
cudaError_t emk_fill(float *x, float value, int n, cudaStream_t stream);
/* out[r] = the sum of row r of x [rows][n]; a block of 256 threads for each row. */
cudaError_t emk_sum_rows(const float *x, float *out, int rows, int n, cudaStream_t stream);
/* counts[k] += how many of x[0 … n) are k, for k < 32; one block of `threads` for each 100 of x. */
cudaError_t emk_count(const int *x, int *counts, int n, int threads, cudaStream_t stream);

/* Warp collectives, one block of 80 threads (the last warp is partial): out [8][80]. */
enum {
	EMK_DOWN, /* shfl_down by 1 */
	EMK_XOR,  /* shfl_xor by 3, sections of 16 */
	EMK_SUM,  /* reduce_add of the warp */
	EMK_ODD,  /* ballot of odd threads */
	EMK_SAME, /* match_any of thread / 5 */
	EMK_ANY,  /* any, of the last thread of all */
	EMK_HALF, /* the sum of a half warp, each half with its own mask */
	EMK_COUNT /* syncthreads_count of those with thread % 3 == 0 */
};
cudaError_t emk_collectives(int *out, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
