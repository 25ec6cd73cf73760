/* Matrix products with few rows on the CUDA kernels: each weight type, against the exact product
 * and the cpu backend. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/launch_plain.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/cuda/product.h"
#include "tests/lib/kernel_harness.h"

enum { TYPES = 11, COUNT = 17 };

struct fixture {
	struct kvt_product p;
	float *x_aligned; /* the input with rows at multiples of 16 bytes */
};

static void fixture_create(struct fixture *f, uint32_t columns, uint32_t part_count,
    const enum kn_weight_type *types, const uint32_t *rows)
{
	float *aligned = kvt_alloc((size_t)COUNT * columns, sizeof(float));

	kvt_product_create(&f->p, COUNT, columns, part_count, types, rows);
	for (uint32_t n = 0; n < COUNT; n++)
		memcpy(aligned + (size_t)n * columns, f->p.host_x + (size_t)n * f->p.x_stride,
		    columns * sizeof(float));
	f->x_aligned = dev_upload(aligned, (size_t)COUNT * columns * sizeof(float));
	kvt_free(aligned);
}

static void fixture_destroy(struct fixture *f)
{
	dev_free(f->x_aligned);
	kvt_product_destroy(&f->p);
}

/* Rows first … first + count, without gaps: to be freed with kvt_free. */
static float *multiply(const struct fixture *f, int is_aligned, uint32_t first, uint32_t count)
{
	size_t bytes = (size_t)count * f->p.weight.rows * sizeof(float);
	size_t stride = is_aligned ? f->p.columns : f->p.x_stride;
	struct kn_matmul_arguments a = {
	    .x = (is_aligned ? f->x_aligned : f->p.x) + first * stride,
	    .x_stride = stride,
	    .y = dev_alloc(bytes),
	    .y_stride = f->p.weight.rows,
	    .count = count,
	};

	DEV_OK(kn_cuda_gemv(&f->p.weight, &a, NULL));
	dev_wait();
	float *y = dev_fetch(a.y, bytes);

	dev_free(a.y);
	return y;
}

/* Values near the exact product and the cpu's; the same bits for rows in smaller calls, of each
 * kind of kernel, and for other addresses. */
static void check_fixture(const struct fixture *f, const char *name)
{
	static const uint32_t windows[][2] = {{13, 1}, {11, 2}, {4, 3}, {1, 16}};
	size_t total = (size_t)COUNT * f->p.weight.rows;
	float *y = multiply(f, 0, 0, COUNT), *part;
	double *cpu = kvt_alloc(total, sizeof(double));

	for (size_t i = 0; i < total; i++)
		cpu[i] = (double)f->p.cpu[i];
	kvt_assert_close(name, y, f->p.want, total, 1e-5, 1e-6);
	kvt_assert_close("against cpu", y, cpu, total, 3e-5, 3e-6);
	for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
		part = multiply(f, 0, windows[i][0], windows[i][1]);
		kvt_assert_same_bits(name, part, y + (size_t)windows[i][0] * f->p.weight.rows,
		    (size_t)windows[i][1] * f->p.weight.rows * sizeof *y);
		kvt_free(part);
	}
	part = multiply(f, 1, 0, COUNT);
	kvt_assert_same_bits(name, part, y, total * sizeof *y);
	kvt_free(part);
	kvt_free(cpu);
	kvt_free(y);
}

/* A few blocks of columns, and more chunks than a block has threads. */
static void test_types(void **state)
{
	uint32_t rows = 5 * (uint32_t)dev_scale();

	(void)state;
	for (size_t t = 0; t < TYPES; t++) {
		enum kn_weight_type type = kvt_weight_types[t];
		int k_type = kn_weight_row_bytes(type, 32) == 0;
		uint32_t columns[] = {k_type ? 256 : 96, k_type ? 1280 : 1056};

		for (int i = 0; i < 2; i++) {
			struct fixture f;

			fixture_create(&f, columns[i] * (uint32_t)dev_scale(), 1, &type, &rows);
			check_fixture(&f, kvt_weight_type_name(type));
			fixture_destroy(&f);
		}
	}
}

/* Parts of several types, with a bias, added to what is in y, whose rows have a gap. */
static void test_parts_bias_and_add(void **state)
{
	static const enum kn_weight_type types[] = {KN_Q5_0, KN_Q8_0, KN_Q6_K};
	static const uint32_t rows[] = {6, 3, 5};
	enum { ROWS = 14, STRIDE = ROWS + 3, FEW = 3 };
	float bias[ROWS], before[FEW * STRIDE];
	struct kv_random random;
	struct fixture f;

	(void)state;
	fixture_create(&f, 256, 3, types, rows);
	check_fixture(&f, "three parts");
	kv_random_seed(&random, 3);
	kvt_fill_peaky(&random, bias, ROWS, 10.0f);
	kvt_fill_peaky(&random, before, FEW * STRIDE, 10.0f);
	struct kn_matmul_arguments a = {
	    .x = f.p.x,
	    .x_stride = f.p.x_stride,
	    .y = dev_upload(before, sizeof before),
	    .y_stride = STRIDE,
	    .bias = dev_upload(bias, sizeof bias),
	    .count = FEW,
	};
	float *plain = multiply(&f, 0, 0, FEW);

	a.add = a.y;
	DEV_OK(kn_cuda_gemv(&f.p.weight, &a, NULL));
	dev_wait();
	float *y = dev_fetch(a.y, sizeof before);

	for (uint32_t n = 0; n < FEW; n++)
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

static void test_refusals(void **state)
{
	struct kn_cuda_weight_part part = {(enum kn_weight_type)5, 0, 1, NULL};
	struct kn_cuda_weight weight = {1, 32, KN_PRECISION_FP32, 1, &part};
	struct kn_matmul_arguments a = {.count = 1};

	(void)state;
	assert_int_equal(kn_cuda_gemv(&weight, &a, NULL), cudaErrorInvalidValue);
	a.count = 0;
	DEV_OK(kn_cuda_gemv(&weight, &a, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_types),
	    cmocka_unit_test(test_parts_bias_and_add),
	    cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
