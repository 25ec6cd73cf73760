/* The emulator's stand-in for cuBLAS against products counted here, and what it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include <cublas_v2.h>

#include "tests/kernels/cuda/device.h"
#include "tests/kernels/cuda/emulator_kernels.h"
#include "tests/lib/kernel_harness.h"

enum { M = 5, N = 4, K = 7, LEADING = 9, BATCH = 2, ELEMENTS = LEADING * LEADING };

static void ok(cublasStatus_t status)
{
	assert_int_equal(status, CUBLAS_STATUS_SUCCESS);
}

struct fixture {
	cublasHandle_t handle;
	cudaStream_t stream;
	float a[BATCH * ELEMENTS], b[BATCH * ELEMENTS], c[BATCH * ELEMENTS]; /* as float */
	void *device_a, *device_b, *device_c;
};

/* Quarters between -2 and 2: exact in all three types. */
static void fill(float *x, size_t count, uint64_t *seed)
{
	for (size_t i = 0; i < count; i++)
		x[i] = (float)(int)(16.0f * dev_random(seed)) / 4.0f - 2.0f;
}

static uint16_t narrow(float x, cudaDataType type)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	if (type == CUDA_R_16BF) return (uint16_t)(bits >> 16);
	if (x == 0.0f) return 0;
	return (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 0xff) - 127 + 15) << 10) |
	                  (bits >> 13 & 0x3ff));
}

static void *upload(const float *x, size_t count, cudaDataType type)
{
	uint16_t narrowed[BATCH * ELEMENTS];
	if (type == CUDA_R_32F) return dev_upload(x, count * sizeof *x);
	for (size_t i = 0; i < count; i++)
		narrowed[i] = narrow(x[i], type);
	return dev_upload(narrowed, count * sizeof *narrowed);
}

static struct fixture *set_up(cudaDataType type)
{
	static struct fixture f;
	uint64_t seed = 5;
	fill(f.a, BATCH * ELEMENTS, &seed);
	fill(f.b, BATCH * ELEMENTS, &seed);
	fill(f.c, BATCH * ELEMENTS, &seed);
	f.device_a = upload(f.a, BATCH * ELEMENTS, type);
	f.device_b = upload(f.b, BATCH * ELEMENTS, type);
	f.device_c = dev_upload(f.c, sizeof f.c);
	ok(cublasCreate(&f.handle));
	DEV_OK(cudaStreamCreate(&f.stream));
	ok(cublasSetStream(f.handle, f.stream));
	ok(cublasSetMathMode(f.handle, CUBLAS_PEDANTIC_MATH));
	return &f;
}

static void tear_down(struct fixture *f)
{
	ok(cublasDestroy(f->handle));
	DEV_OK(cudaStreamDestroy(f->stream));
	dev_free(f->device_a);
	dev_free(f->device_b);
	dev_free(f->device_c);
}

static float element(const float *x, int transposed, int row, int column)
{
	return transposed ? x[row * LEADING + column] : x[column * LEADING + row];
}

static void check(
    const struct fixture *f, const float *got, int ta, int tb, float alpha, float beta)
{
	for (int i = 0; i < ELEMENTS; i++) {
		int row = i % LEADING, column = i / LEADING;
		float want = 0.0f;
		if (row >= M || column >= N) {
			assert_true(got[i] == f->c[i]);
			continue;
		}
		for (int k = 0; k < K; k++)
			want += element(f->a, ta, row, k) * element(f->b, tb, k, column);
		assert_true(got[i] == alpha * want + beta * f->c[i]);
	}
}

/* Every sum is of multiples of 1/16 below 64: exact in whatever order. */
static void check_type(cudaDataType type)
{
	const float alpha = 2.0f, beta = 0.5f;
	for (int kind = 0; kind < 4; kind++) {
		struct fixture *f = set_up(type);
		cublasOperation_t ta = kind & 1 ? CUBLAS_OP_T : CUBLAS_OP_N;
		cublasOperation_t tb = kind & 2 ? CUBLAS_OP_T : CUBLAS_OP_N;
		ok(cublasGemmEx(f->handle, ta, tb, M, N, K, &alpha, f->device_a, type, LEADING, f->device_b,
		    type, LEADING, &beta, f->device_c, CUDA_R_32F, LEADING, CUBLAS_COMPUTE_32F,
		    CUBLAS_GEMM_DEFAULT));
		float *got = dev_fetch(f->device_c, sizeof f->c);
		check(f, got, kind & 1, kind & 2, alpha, beta);
		kvt_free(got);
		tear_down(f);
	}
}

static void test_products(void **state)
{
	(void)state;
	check_type(CUDA_R_32F);
	check_type(CUDA_R_16F);
	check_type(CUDA_R_16BF);
}

/* With a beta of 0 the old values, NaN here, are not looked at. */
static void test_batch_and_stream(void **state)
{
	(void)state;
	const float one = 1.0f, zero = 0.0f;
	struct fixture *f = set_up(CUDA_R_32F);
	DEV_OK(cudaMemsetAsync(f->device_c, 0xff, sizeof f->c, f->stream));
	ok(cublasGemmStridedBatchedEx(f->handle, CUBLAS_OP_T, CUBLAS_OP_N, M, N, K, &one, f->device_a,
	    CUDA_R_32F, LEADING, ELEMENTS, f->device_b, CUDA_R_32F, LEADING, ELEMENTS, &zero,
	    f->device_c, CUDA_R_32F, LEADING, ELEMENTS, BATCH, CUBLAS_COMPUTE_32F,
	    CUBLAS_GEMM_DEFAULT));
	DEV_OK(emk_saxpy(1.0f, f->device_c, f->device_c, BATCH * ELEMENTS, f->stream));
	float *got = dev_fetch(f->device_c, sizeof f->c);
	for (int i = 0; i < BATCH * ELEMENTS; i++) {
		int batch = i / ELEMENTS, row = i % LEADING, column = i % ELEMENTS / LEADING;
		float want = 0.0f;
		if (row >= M || column >= N) {
			assert_true(got[i] != got[i]);
			continue;
		}
		for (int k = 0; k < K; k++)
			want += element(f->a + batch * ELEMENTS, 1, row, k) *
			        element(f->b + batch * ELEMENTS, 0, k, column);
		assert_true(got[i] == 2.0f * want);
	}
	kvt_free(got);
	tear_down(f);
}

static cublasStatus_t multiply(
    struct fixture *f, int a_leading, int b_leading, int c_leading, const void *a)
{
	const float one = 1.0f, zero = 0.0f;
	return cublasSgemm(f->handle, CUBLAS_OP_T, CUBLAS_OP_N, M, N, K, &one, a, a_leading,
	    f->device_b, b_leading, &zero, f->device_c, c_leading);
}

static void test_refused(void **state)
{
	(void)state;
	struct fixture *f = set_up(CUDA_R_32F);
	ok(multiply(f, K, K, M, f->device_a));
	assert_int_equal(multiply(f, K - 1, K, M, f->device_a), CUBLAS_STATUS_INVALID_VALUE);
	assert_int_equal(multiply(f, K, K - 1, M, f->device_a), CUBLAS_STATUS_INVALID_VALUE);
	assert_int_equal(multiply(f, K, K, M - 1, f->device_a), CUBLAS_STATUS_INVALID_VALUE);
	assert_int_equal(multiply(f, K, K, M, NULL), CUBLAS_STATUS_INVALID_VALUE);
	assert_int_equal(
	    multiply(f, K, K, M, (const char *)f->device_a + 2), CUBLAS_STATUS_INVALID_VALUE);
	tear_down(f);
	assert_int_equal(multiply(f, K, K, M, NULL), CUBLAS_STATUS_NOT_INITIALIZED);
}

/* A captured product works in memory of the caller, which a new stream takes away. */
static void test_capture(void **state)
{
	(void)state;
	struct fixture *f = set_up(CUDA_R_32F);
	cudaGraph_t graph;
	void *workspace = dev_alloc(4096);
	DEV_OK(cudaStreamBeginCapture(f->stream, cudaStreamCaptureModeThreadLocal));
	assert_int_equal(multiply(f, K, K, M, f->device_a), CUBLAS_STATUS_NOT_SUPPORTED);
	ok(cublasSetWorkspace(f->handle, workspace, 4096));
	ok(multiply(f, K, K, M, f->device_a));
	ok(cublasSetStream(f->handle, f->stream));
	assert_int_equal(multiply(f, K, K, M, f->device_a), CUBLAS_STATUS_NOT_SUPPORTED);
	DEV_OK(cudaStreamEndCapture(f->stream, &graph));
	DEV_OK(cudaGraphDestroy(graph));
	dev_free(workspace);
	tear_down(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_products),
	    cmocka_unit_test(test_batch_and_stream),
	    cmocka_unit_test(test_refused),
	    cmocka_unit_test(test_capture),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
