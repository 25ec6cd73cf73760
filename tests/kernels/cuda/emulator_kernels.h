/* Small kernels that show the emulator (tests/lib/cuda_on_cpu) at work. */
#ifndef KVT_EMULATOR_KERNELS_H
#define KVT_EMULATOR_KERNELS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y[i] += a * x[i] for i < n; blocks of 128 threads. */
cudaError_t emk_saxpy(float a, const float *x, float *y, int n, cudaStream_t stream);
/* out[r] = the sum of row r of x [rows][n]; a block of 256 threads for each row. */
cudaError_t emk_sum_rows(const float *x, float *out, int rows, int n, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
