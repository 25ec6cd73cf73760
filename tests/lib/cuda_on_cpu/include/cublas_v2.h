/* The part of cuBLAS's interface that blas.cpp stands in for, where NVIDIA's own header is missing:
 * it comes with a library of 400 MB that the emulator has no use for. Searched last. Names and
 * numbers are cuBLAS's; its enums are ints here. */
#ifndef KVT_CUDA_ON_CPU_CUBLAS_V2_H
#define KVT_CUDA_ON_CPU_CUBLAS_V2_H

#include <cuda_runtime_api.h>
#include <library_types.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUBLAS_VERSION 130000

typedef void *cublasHandle_t;
typedef int cublasStatus_t, cublasOperation_t, cublasMath_t, cublasComputeType_t, cublasGemmAlgo_t;

enum {
	CUBLAS_STATUS_SUCCESS = 0,
	CUBLAS_STATUS_NOT_INITIALIZED = 1,
	CUBLAS_STATUS_ALLOC_FAILED = 3,
	CUBLAS_STATUS_INVALID_VALUE = 7,
	CUBLAS_STATUS_EXECUTION_FAILED = 13,
	CUBLAS_STATUS_INTERNAL_ERROR = 14,
	CUBLAS_STATUS_NOT_SUPPORTED = 15
};
enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2 };
enum { CUBLAS_DEFAULT_MATH = 0, CUBLAS_PEDANTIC_MATH = 2, CUBLAS_TF32_TENSOR_OP_MATH = 3 };
enum { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_PEDANTIC = 69 };
enum { CUBLAS_GEMM_DEFAULT = -1 };

#define cublasCreate       cublasCreate_v2
#define cublasDestroy      cublasDestroy_v2
#define cublasGetVersion   cublasGetVersion_v2
#define cublasSetStream    cublasSetStream_v2
#define cublasGetStream    cublasGetStream_v2
#define cublasSetWorkspace cublasSetWorkspace_v2
#define cublasSgemm        cublasSgemm_v2

cublasStatus_t cublasCreate(cublasHandle_t *handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasGetVersion(cublasHandle_t handle, int *version);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t *stream);
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode);
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t bytes);
const char *cublasGetStatusString(cublasStatus_t status);

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t a_operation,
    cublasOperation_t b_operation, int m, int n, int k, const void *alpha, const void *a,
    cudaDataType a_type, int a_leading, const void *b, cudaDataType b_type, int b_leading,
    const void *beta, void *c, cudaDataType c_type, int c_leading, cublasComputeType_t compute,
    cublasGemmAlgo_t algorithm);
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t a_operation,
    cublasOperation_t b_operation, int m, int n, int k, const void *alpha, const void *a,
    cudaDataType a_type, int a_leading, long long a_stride, const void *b, cudaDataType b_type,
    int b_leading, long long b_stride, const void *beta, void *c, cudaDataType c_type,
    int c_leading, long long c_stride, int batch, cublasComputeType_t compute,
    cublasGemmAlgo_t algorithm);
cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t a_operation,
    cublasOperation_t b_operation, int m, int n, int k, const float *alpha, const float *a,
    int a_leading, const float *b, int b_leading, const float *beta, float *c, int c_leading);

#ifdef __cplusplus
}
#endif
#endif
