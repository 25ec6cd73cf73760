/* A stand-in for the part of cuBLAS that clusterkv calls: products of float, half and bfloat16
 * matrices with sums in float, in ascending order. Like cuBLAS it counts by columns, obeys its
 * handle's stream and captures, and refuses wrong arguments; a matrix that reaches beyond its
 * memory ends the process. Anything else of cuBLAS is a link error. */
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "tests/lib/cuda_on_cpu/sanitizers.h"
#include "tests/lib/cuda_on_cpu/streams.h"

namespace
{
using namespace emu;

struct blas_handle {
	cudaStream_t stream;
	cublasMath_t math;
	char *workspace; /* NULL: its own, which is not shown */
	size_t workspace_bytes;
};

/* A column-major matrix in device memory; `rows` × `columns` as it lies there. */
struct matrix {
	char *data;
	cudaDataType type;
	size_t rows, columns, leading;
	long long stride; /* elements between those of a batch */
};

struct product {
	matrix a, b, c;
	bool a_transposed, b_transposed;
	size_t m, n, k, batch;
	float alpha, beta;
	char *workspace;
	size_t workspace_bytes;
};

std::set<blas_handle *> *const handles = new std::set<blas_handle *>;

/* 0 for a type that is not supported. */
size_t element_bytes(cudaDataType type)
{
	return type == CUDA_R_32F ? 4 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 0;
}

const char *at(const matrix &x, size_t batch, size_t row, size_t column)
{
	long long element =
	    static_cast<long long>(batch) * x.stride + static_cast<long long>(column * x.leading + row);
	return x.data + element * static_cast<long long>(element_bytes(x.type));
}

float get(const char *from, cudaDataType type)
{
	if (type == CUDA_R_32F) return *reinterpret_cast<const float *>(from);
	if (type == CUDA_R_16F) return __half2float(*reinterpret_cast<const __half *>(from));
	return __bfloat162float(*reinterpret_cast<const __nv_bfloat16 *>(from));
}

void put(char *to, cudaDataType type, float value)
{
	if (type == CUDA_R_32F)
		*reinterpret_cast<float *>(to) = value;
	else if (type == CUDA_R_16F)
		*reinterpret_cast<__half *>(to) = __float2half_rn(value);
	else
		*reinterpret_cast<__nv_bfloat16 *>(to) = __float2bfloat16_rn(value);
}

/* ---- the work ---- */

void tell_tsan(const matrix &x, size_t batch, bool written)
{
	for (size_t column = 0; under_tsan && column < x.columns; column++) {
		void *start = const_cast<char *>(at(x, batch, 0, column));
		if (written)
			__tsan_write_range(start, x.rows * element_bytes(x.type));
		else
			__tsan_read_range(start, x.rows * element_bytes(x.type));
	}
}

/* op(x) with its first index running fastest, as floats. */
std::vector<float> unpack(const matrix &x, size_t batch, bool transposed)
{
	size_t outer = transposed ? x.rows : x.columns, inner = transposed ? x.columns : x.rows;
	std::vector<float> floats(outer * inner);
	for (size_t i = 0; i < outer; i++)
		for (size_t j = 0; j < inner; j++)
			floats[i * inner + j] =
			    get(transposed ? at(x, batch, i, j) : at(x, batch, j, i), x.type);
	return floats;
}

void multiply(const product &p, size_t batch)
{
	tell_tsan(p.a, batch, false);
	tell_tsan(p.b, batch, false);
	tell_tsan(p.c, batch, true);
	std::vector<float> a = unpack(p.a, batch, p.a_transposed); /* [k][m] */
	std::vector<float> b = unpack(p.b, batch, p.b_transposed); /* [n][k] */
	std::vector<float> sums(p.m);
	for (size_t j = 0; j < p.n; j++) {
		sums.assign(p.m, 0.0f);
		for (size_t l = 0; l < p.k; l++) {
			const float *row = &a[l * p.m], factor = b[j * p.k + l];
			for (size_t i = 0; i < p.m; i++)
				sums[i] += row[i] * factor;
		}
		for (size_t i = 0; i < p.m; i++) {
			char *to = const_cast<char *>(at(p.c, batch, i, j));
			float old = p.beta == 0.0f ? 0.0f : p.beta * get(to, p.c.type);
			put(to, p.c.type, p.alpha * sums[i] + old);
		}
	}
}

/* What the library would keep there, nobody knows. */
void use_workspace(const product &p)
{
	size_t bytes = std::min<size_t>(p.workspace_bytes, 256);
	if (under_tsan && bytes > 0) __tsan_write_range(p.workspace, bytes);
	if (bytes > 0) memset(p.workspace, 0xff, bytes);
}

struct product_work : emu::work {
	product what;
	explicit product_work(const product &p) : work("a product of cuBLAS"), what(p)
	{
	}
	void run(struct operation *) override
	{
		use_workspace(what);
		for (size_t i = 0; i < what.batch; i++)
			multiply(what, i);
	}
};

/* ---- what is refused ---- */

bool is_readable(const char *start, size_t bytes)
{
	enum memory_kind kind = memory_kind(start, bytes);
	return kind == MEMORY_DEVICE || kind == MEMORY_PINNED;
}

cublasStatus_t check_matrix(const matrix &x, size_t batch, const char *name)
{
	if (x.rows == 0 || x.columns == 0) return CUBLAS_STATUS_SUCCESS;
	size_t size = element_bytes(x.type);
	if (size == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
	if (!x.data || x.leading < x.rows || reinterpret_cast<uintptr_t>(x.data) % size)
		return CUBLAS_STATUS_INVALID_VALUE;
	for (size_t i = 0; i < batch; i++)
		if (!is_readable(at(x, i, 0, 0), ((x.columns - 1) * x.leading + x.rows) * size))
			die_plainly(
			    "matrix %s of a product of cuBLAS is not all in memory of the device", name);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_product(const product &p)
{
	cublasStatus_t a = check_matrix(p.a, p.batch, "A"), b = check_matrix(p.b, p.batch, "B");
	cublasStatus_t c = check_matrix(p.c, p.batch, "C");
	if (a || b || c) return a ? a : b ? b : c;
	return p.a.type == p.b.type ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

blas_handle *find(cublasHandle_t handle)
{
	blas_handle *h = reinterpret_cast<blas_handle *>(handle);
	return handles->count(h) ? h : nullptr;
}

/* A capture of a product without a workspace would take memory in the graph, which then cannot be
 * updated: refused here. */
cublasStatus_t submit(cublasHandle_t handle, product p)
{
	api_call call;
	const blas_handle *h = find(handle);
	if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
	cublasStatus_t status = check_product(p);
	if (status || p.m == 0 || p.n == 0) return status;
	cudaError_t error = call.refused;
	const struct stream *s = error ? nullptr : stream_find(h->stream, &error);
	if (s && stream_captures(s) && !h->workspace) return CUBLAS_STATUS_NOT_SUPPORTED;
	p.workspace = h->workspace;
	p.workspace_bytes = h->workspace_bytes;
	if (!error) error = stream_submit(h->stream, std::make_shared<product_work>(p));
	return error ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

bool is_operation(cublasOperation_t operation)
{
	return operation == CUBLAS_OP_N || operation == CUBLAS_OP_T || operation == CUBLAS_OP_C;
}

/* The matrix that op() makes one of rows × columns. */
matrix operand(const void *data, cudaDataType type, int leading, long long stride, bool transposed,
    size_t rows, size_t columns)
{
	return {static_cast<char *>(const_cast<void *>(data)), type, transposed ? columns : rows,
	    transposed ? rows : columns, static_cast<size_t>(leading < 0 ? 0 : leading), stride};
}
} // namespace

extern "C" {
cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
	api_call call;
	if (call.refused) return CUBLAS_STATUS_NOT_INITIALIZED;
	blas_handle *h = new blas_handle{nullptr, CUBLAS_DEFAULT_MATH, nullptr, 0};
	handles->insert(h);
	*handle = reinterpret_cast<cublasHandle_t>(h);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
	api_call call;
	blas_handle *h = find(handle);
	if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
	handles->erase(h);
	delete h;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
	api_call call;
	cudaError_t error = cudaSuccess;
	blas_handle *h = find(handle);
	if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
	if (!stream_find(stream, &error)) return CUBLAS_STATUS_INVALID_VALUE;
	h->stream = stream;
	h->workspace = nullptr;
	h->workspace_bytes = 0;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *stream)
{
	api_call call;
	const blas_handle *h = find(handle);
	if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
	*stream = h->stream;
	return CUBLAS_STATUS_SUCCESS;
}

/* Sums are in float, and inputs what they are, in every mode that is taken. */
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
	api_call call;
	blas_handle *h = find(handle);
	if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
	if (mode != CUBLAS_DEFAULT_MATH && mode != CUBLAS_PEDANTIC_MATH)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	h->math = mode;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode)
{
	api_call call;
	const blas_handle *h = find(handle);
	if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
	*mode = h->math;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes)
{
	api_call call;
	blas_handle *h = find(handle);
	if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
	if (reinterpret_cast<uintptr_t>(workspace) % 256 ||
	    (workspace && memory_kind(workspace, bytes) != MEMORY_DEVICE))
		return CUBLAS_STATUS_INVALID_VALUE;
	h->workspace = static_cast<char *>(workspace);
	h->workspace_bytes = workspace ? bytes : 0;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int *version)
{
	*version = CUBLAS_VERSION;
	return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusString(cublasStatus_t status)
{
	switch (status) {
	case CUBLAS_STATUS_SUCCESS:
		return "success";
	case CUBLAS_STATUS_NOT_INITIALIZED:
		return "the library was not initialized";
	case CUBLAS_STATUS_INVALID_VALUE:
		return "an unsupported value or parameter was passed to the function";
	case CUBLAS_STATUS_NOT_SUPPORTED:
		return "the functionality requested is not supported";
	case CUBLAS_STATUS_EXECUTION_FAILED:
		return "the GPU program failed to execute";
	default:
		return "an error of the emulator";
	}
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t a_operation,
    cublasOperation_t b_operation, int m, int n, int k, const void *alpha, const void *a,
    cudaDataType a_type, int a_leading, long long a_stride, const void *b, cudaDataType b_type,
    int b_leading, long long b_stride, const void *beta, void *c, cudaDataType c_type,
    int c_leading, long long c_stride, int batch, cublasComputeType_t compute, cublasGemmAlgo_t)
{
	if (m < 0 || n < 0 || k < 0 || batch < 0 || !alpha || !beta || !is_operation(a_operation) ||
	    !is_operation(b_operation))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_PEDANTIC)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	product p = {};
	p.m = static_cast<size_t>(m);
	p.n = static_cast<size_t>(n);
	p.k = static_cast<size_t>(k);
	p.batch = static_cast<size_t>(batch);
	p.a_transposed = a_operation != CUBLAS_OP_N;
	p.b_transposed = b_operation != CUBLAS_OP_N;
	p.a = operand(a, a_type, a_leading, a_stride, p.a_transposed, p.m, p.k);
	p.b = operand(b, b_type, b_leading, b_stride, p.b_transposed, p.k, p.n);
	p.c = operand(c, c_type, c_leading, c_stride, false, p.m, p.n);
	p.alpha = *static_cast<const float *>(alpha);
	p.beta = *static_cast<const float *>(beta);
	return submit(handle, p);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t a_operation,
    cublasOperation_t b_operation, int m, int n, int k, const void *alpha, const void *a,
    cudaDataType a_type, int a_leading, const void *b, cudaDataType b_type, int b_leading,
    const void *beta, void *c, cudaDataType c_type, int c_leading, cublasComputeType_t compute,
    cublasGemmAlgo_t algorithm)
{
	return cublasGemmStridedBatchedEx(handle, a_operation, b_operation, m, n, k, alpha, a, a_type,
	    a_leading, 0, b, b_type, b_leading, 0, beta, c, c_type, c_leading, 0, 1, compute,
	    algorithm);
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t a_operation,
    cublasOperation_t b_operation, int m, int n, int k, const float *alpha, const float *a,
    int a_leading, const float *b, int b_leading, const float *beta, float *c, int c_leading)
{
	return cublasGemmEx(handle, a_operation, b_operation, m, n, k, alpha, a, CUDA_R_32F, a_leading,
	    b, CUDA_R_32F, b_leading, beta, c, CUDA_R_32F, c_leading, CUBLAS_COMPUTE_32F,
	    CUBLAS_GEMM_DEFAULT);
}
}
