/* Matrix products with many rows (prefill): cuBLAS, and the kernels around it.
 *
 * The weight is taken in tiles of rows, a fixed number for each shape of weight. A tile is
 * dequantised into scratch memory, unless the part is already of the type that the GEMM takes, and
 * multiplied with all activations, which were copied there, too. The product goes to scratch memory
 * and from there, with bias and residual, to y. So cuBLAS sees the same addresses, strides and
 * shapes whatever x and y are: the same call gives the same bits.
 *
 *   precision   activations         weights   sums                path
 *   default     f16, rows scaled    f16       float               cublasGemmEx, COMPUTE_32F
 *   fp32        float               float     float, never TF32   cublasSgemm, PEDANTIC_MATH
 * Weights beyond ±65,504 are held there at default precision.
 *
 * A row's bits do depend on the number of rows: cuBLAS chooses a kernel by shape. Prefill chunks
 * end at absolute multiples of the chunk length, so that a prompt meets the same shapes every time;
 * what must not depend on its neighbours, decode, goes through kn_cuda_gemv.
 */
#ifndef KN_CUDA_GEMM_CUBLAS_H
#define KN_CUDA_GEMM_CUBLAS_H

#include <cublas_v2.h>

#include "common/base/status.h"
#include "kernels/cuda/launch_plain.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kn_cuda_gemm {
	/* The caller's. Each call binds it to its stream, which takes the workspace away, and gives it
	 * this one: products of several streams may share a handle, and can be captured. */
	cublasHandle_t handle;
	/* Device memory, 256-byte aligned, for the calls of one stream. A workspace of always the same
	 * size makes for the same bits each time; NULL: cuBLAS's own, which a capture cannot use. */
	void *workspace;
	size_t workspace_bytes;
	void *scratch; /* likewise */
	uint32_t max_rows, max_columns; /* what the scratch memory was sized for */
};

/* Bytes of scratch memory for calls of up to max_rows rows (more are done in several GEMMs) with
 * weights of up to max_columns columns, at either precision. */
size_t kn_cuda_gemm_scratch_bytes(uint32_t max_rows, uint32_t max_columns);

/* kn_matmul_arguments with this weight (the struct's own is not read), queued on `stream`.
 * KV_INVALID: the weight has more than max_columns columns. KV_INTERNAL: CUDA's or cuBLAS's error
 * is in the text. */
enum kv_status kn_cuda_gemm(const struct kn_cuda_gemm *gemm, const struct kn_cuda_weight *weight,
    const struct kn_matmul_arguments *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
