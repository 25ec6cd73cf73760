/* The whole matmul of prefill: kn_cuda_gemm with cuBLAS, or what stands in for it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/gemm_cublas.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/cuda/product.h"
#include "tests/lib/kernel_harness.h"

enum { COUNT = 40, MAX_ROWS = 17, MAX_COLUMNS = 512 };

struct fixture {
	struct kvt_product p;
	struct kn_cuda_gemm gemm;
};

static void fixture_create(struct fixture *f, uint32_t columns, uint32_t part_count,
    const enum kn_weight_type *types, const uint32_t *rows)
{
	kvt_product_create(&f->p, COUNT, columns, part_count, types, rows);
	f->gemm = (struct kn_cuda_gemm){.max_rows = MAX_ROWS, .max_columns = MAX_COLUMNS};
	f->gemm.scratch = dev_alloc(kn_cuda_gemm_scratch_bytes(MAX_ROWS, MAX_COLUMNS));
	f->gemm.workspace_bytes = 4096;
	f->gemm.workspace = dev_alloc(f->gemm.workspace_bytes);
	assert_int_equal(cublasCreate(&f->gemm.handle), CUBLAS_STATUS_SUCCESS);
}

static void fixture_destroy(struct fixture *f)
{
	assert_int_equal(cublasDestroy(f->gemm.handle), CUBLAS_STATUS_SUCCESS);
	dev_free(f->gemm.scratch);
	dev_free(f->gemm.workspace);
	kvt_product_destroy(&f->p);
}

/* Rows 0 … count at this precision, without gaps: to be freed with kvt_free. */
static float *multiply(struct fixture *f, enum kn_precision precision, uint32_t count)
{
	size_t bytes = (size_t)count * f->p.weight.rows * sizeof(float);
	struct kn_matmul_arguments a = {
	    .x = f->p.x,
	    .x_stride = f->p.x_stride,
	    .y = dev_alloc(bytes),
	    .y_stride = f->p.weight.rows,
	    .count = count,
	};

	f->p.weight.precision = precision;
	if (kn_cuda_gemm(&f->gemm, &f->p.weight, &a, NULL)) fail_msg("gemm: %s", kv_error_message());
	dev_wait();
	float *y = dev_fetch(a.y, bytes);

	dev_free(a.y);
	return y;
}

/* At float precision what sums lose, at default precision what f16 loses: 2^-12 of each factor. */
static void check_fixture(struct fixture *f)
{
	size_t total = (size_t)COUNT * f->p.weight.rows;
	float *exact = multiply(f, KN_PRECISION_FP32, COUNT);
	float *half = multiply(f, KN_PRECISION_DEFAULT, COUNT);
	double *cpu = kvt_alloc(total, sizeof(double));

	for (size_t i = 0; i < total; i++)
		cpu[i] = (double)f->p.cpu[i];
	kvt_assert_close("fp32", exact, f->p.want, total, 2e-5, 2e-6);
	kvt_assert_close("fp32 against cpu", exact, cpu, total, 3e-5, 3e-6);
	kvt_assert_close("default", half, f->p.want, total, 4e-3, 5e-4);
	kvt_free(cpu);
	kvt_free(half);
	kvt_free(exact);
}

/* Types that are dequantised and types that are taken as they are, in parts of any number of rows.
 * 40 rows of x are three GEMMs of 17, 17 and 6. */
static void test_parts(void **state)
{
	static const enum kn_weight_type types[] = {KN_Q4_K, KN_F16, KN_F32};
	static const uint32_t rows[] = {70, 5, 9};
	static const enum kn_weight_type others[] = {KN_Q8_0, KN_BF16, KN_Q5_1};
	struct fixture f;

	(void)state;
	fixture_create(&f, 256, 3, types, rows);
	check_fixture(&f);
	fixture_destroy(&f);
	fixture_create(&f, 96, 3, others, rows);
	check_fixture(&f);
	fixture_destroy(&f);
}

/* More rows than a tile has. */
static void test_tiles(void **state)
{
	static const enum kn_weight_type type = KN_F16;
	static const uint32_t rows = 4096 + 40;
	struct fixture f;

	(void)state;
	fixture_create(&f, 32, 1, &type, &rows);
	float *y = multiply(&f, KN_PRECISION_DEFAULT, 3);

	kvt_assert_close("two tiles", y, f.p.want, 3 * (size_t)rows, 4e-3, 5e-4);
	kvt_free(y);
	fixture_destroy(&f);
}

/* Activations that f16 does not hold: rows keep their own scale. */
static void test_large_activations(void **state)
{
	static const enum kn_weight_type type = KN_Q8_0;
	static const uint32_t rows = 20;
	struct fixture f;

	(void)state;
	fixture_create(&f, 64, 1, &type, &rows);
	for (uint32_t n = 0; n < COUNT; n++)
		for (uint32_t k = 0; k < 64; k++)
			f.p.host_x[n * f.p.x_stride + k] *= n % 2 ? 1e7f : 1e-7f;
	dev_write(f.p.x, f.p.host_x, COUNT * f.p.x_stride * sizeof(float));
	kvt_product_again(&f.p);
	float *y = multiply(&f, KN_PRECISION_DEFAULT, COUNT);

	for (uint32_t n = 0; n < COUNT; n++)
		kvt_assert_close("a row", y + n * rows, f.p.want + n * rows, rows, 4e-3, 1e-3);
	kvt_free(y);
	fixture_destroy(&f);
}

/* Bias and residual, in rows with a gap, which stays; the second GEMM's rows, too. */
static void test_bias_and_add(void **state)
{
	static const enum kn_weight_type types[] = {KN_Q6_K, KN_Q4_0};
	static const uint32_t rows[] = {6, 7};
	enum { ROWS = 13, STRIDE = ROWS + 3, SOME = 19 };
	float bias[ROWS], before[SOME * STRIDE];
	struct kv_random random;
	struct fixture f;

	(void)state;
	fixture_create(&f, 256, 2, types, rows);
	kv_random_seed(&random, 3);
	kvt_fill_peaky(&random, bias, ROWS, 10.0f);
	kvt_fill_peaky(&random, before, SOME * STRIDE, 10.0f);
	struct kn_matmul_arguments a = {
	    .x = f.p.x,
	    .x_stride = f.p.x_stride,
	    .y = dev_upload(before, sizeof before),
	    .y_stride = STRIDE,
	    .bias = dev_upload(bias, sizeof bias),
	    .count = SOME,
	};
	float *plain = multiply(&f, KN_PRECISION_DEFAULT, SOME);

	a.add = a.y;
	assert_int_equal(kn_cuda_gemm(&f.gemm, &f.p.weight, &a, NULL), KV_OK);
	dev_wait();
	float *y = dev_fetch(a.y, sizeof before);

	for (uint32_t n = 0; n < SOME; n++)
		for (uint32_t r = 0; r < STRIDE; r++) {
			float want = before[n * STRIDE + r];

			if (r < ROWS) want = plain[n * ROWS + r] + bias[r] + before[n * STRIDE + r];
			kvt_assert_same_bits("bias and add", &y[n * STRIDE + r], &want, sizeof want);
		}
	kvt_free(y);
	kvt_free(plain);
	dev_free(a.y);
	dev_free((void *)(uintptr_t)a.bias);
	fixture_destroy(&f);
}

/* Two streams share a handle, one of them captured: each product uses what is its stream's. */
static void test_two_streams(void **state)
{
	static const enum kn_weight_type type = KN_F32;
	static const uint32_t rows = 4;
	struct fixture f;
	struct kn_cuda_gemm other;
	cudaStream_t streams[2];
	cudaGraph_t graph;
	cudaGraphExec_t exec;

	(void)state;
	fixture_create(&f, 64, 1, &type, &rows);
	f.p.weight.precision = KN_PRECISION_FP32;
	other = f.gemm;
	other.scratch = dev_alloc(kn_cuda_gemm_scratch_bytes(MAX_ROWS, MAX_COLUMNS));
	other.workspace = dev_alloc(other.workspace_bytes);
	struct kn_matmul_arguments a = {
	    .x = f.p.x, .x_stride = f.p.x_stride, .y_stride = rows, .count = 9};
	struct kn_matmul_arguments b = a;
	size_t bytes = 9 * rows * sizeof(float);

	a.y = dev_alloc(bytes);
	b.y = dev_alloc(bytes);
	for (int i = 0; i < 2; i++)
		DEV_OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
	dev_wait();
	DEV_OK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal));
	assert_int_equal(kn_cuda_gemm(&f.gemm, &f.p.weight, &a, streams[0]), KV_OK);
	assert_int_equal(kn_cuda_gemm(&other, &f.p.weight, &b, streams[1]), KV_OK);
	DEV_OK(cudaStreamEndCapture(streams[0], &graph));
	DEV_OK(cudaGraphInstantiate(&exec, graph, 0));
	DEV_OK(cudaGraphLaunch(exec, streams[0]));
	for (int i = 0; i < 2; i++)
		DEV_OK(cudaStreamSynchronize(streams[i]));
	float *of_graph = dev_fetch(a.y, bytes), *direct = dev_fetch(b.y, bytes);

	kvt_assert_same_bits("captured", of_graph, direct, bytes);
	kvt_assert_close("captured", of_graph, f.p.want, 9 * (size_t)rows, 2e-5, 2e-6);
	kvt_free(of_graph);
	kvt_free(direct);
	DEV_OK(cudaGraphExecDestroy(exec));
	DEV_OK(cudaGraphDestroy(graph));
	for (int i = 0; i < 2; i++)
		DEV_OK(cudaStreamDestroy(streams[i]));
	dev_free(a.y);
	dev_free(b.y);
	dev_free(other.scratch);
	dev_free(other.workspace);
	fixture_destroy(&f);
}

static void test_refusals(void **state)
{
	static const enum kn_weight_type type = KN_F32;
	static const uint32_t rows = 4;
	struct kn_matmul_arguments a = {.count = 1};
	struct fixture f;

	(void)state;
	fixture_create(&f, 64, 1, &type, &rows);
	a.x = f.p.x;
	a.x_stride = f.p.x_stride;
	a.y = f.gemm.scratch;
	a.y_stride = rows;
	f.gemm.max_columns = 32;
	assert_int_equal(kn_cuda_gemm(&f.gemm, &f.p.weight, &a, NULL), KV_INVALID);
	a.count = 0;
	assert_int_equal(kn_cuda_gemm(&f.gemm, &f.p.weight, &a, NULL), KV_OK);
	a.count = 1;
	f.gemm.max_columns = MAX_COLUMNS;
	cublasHandle_t handle = f.gemm.handle;

	f.gemm.handle = NULL;
	assert_int_equal(kn_cuda_gemm(&f.gemm, &f.p.weight, &a, NULL), KV_INTERNAL);
	assert_non_null(strstr(kv_error_message(), "cuBLAS"));
	f.gemm.handle = handle;
	fixture_destroy(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_parts),
	    cmocka_unit_test(test_tiles),
	    cmocka_unit_test(test_large_activations),
	    cmocka_unit_test(test_bias_and_add),
	    cmocka_unit_test(test_two_streams),
	    cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
