/* What is around the GEMM of prefill: activations into it, products out of it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/half.h"
#include "kernels/cuda/launch_plain.h"
#include "tests/kernels/cuda/device.h"
#include "tests/lib/kernel_harness.h"

enum { COUNT = 17, STRIDE_GAP = 3 };

/* Rows of all sizes: peaks, zeros, what is subnormal as a float, the largest floats, and rows that
 * are no numbers in part. */
static float *make_rows(uint32_t columns)
{
	uint32_t stride = columns + STRIDE_GAP;
	float *x = kvt_alloc((size_t)COUNT * stride, sizeof(float));
	struct kv_random random;

	kv_random_seed(&random, columns);
	kvt_fill_peaky(&random, x, (size_t)COUNT * stride, 1.0f);
	for (uint32_t k = 0; k < columns; k++) {
		x[k] = 0.0f;
		x[stride + k] *= 1e-40f;
		x[2 * stride + k] *= 1e35f;
		x[3 * stride + k] *= 1e4f;
		x[4 * stride + k] *= 1e-6f;
		x[9 * stride + k] *= 1e-33f;
	}
	x[2 * stride] = 3.4028235e38f;
	x[5 * stride + columns / 2] = -INFINITY;
	x[6 * stride + columns - 1] = NAN;
	/* The largest is a power of two, and the float below one. */
	for (uint32_t k = 0; k < columns; k++) {
		x[7 * stride + k] = k == 1 ? -64.0f : 1.0f;
		x[8 * stride + k] = k == 2 ? 63.999996f : 1.0f;
	}
	return x;
}

/* The power of two that brings the largest into [2^14, 2^15). */
static float scale_of(const float *row, uint32_t columns)
{
	float largest = 0.0f;
	int exponent;

	for (uint32_t k = 0; k < columns; k++) {
		if (!isfinite(row[k])) return 1.0f;
		largest = fmaxf(largest, fabsf(row[k]));
	}
	frexpf(largest, &exponent); /* largest = [0.5, 1) * 2^exponent */
	return ldexpf(1.0f, largest > 0.0f && 15 - exponent < 100 ? 15 - exponent : 100);
}

static void check_f16_row(
    const float *row, const uint16_t *got, float unscale, uint32_t columns, uint32_t n)
{
	float scale = scale_of(row, columns), largest = 0.0f;

	if (!(unscale * scale == 1.0f))
		fail_msg("row %u: unscale %g for scale %g", n, (double)unscale, (double)scale);
	for (uint32_t k = 0; k < columns; k++) {
		uint16_t want =
		    isinf(row[k]) ? (row[k] > 0.0f ? 0x7c00 : 0xfc00) : kn_half_from_float(row[k] * scale);

		if (isnan(row[k]) ? !isnan(kn_half_to_float(got[k])) : got[k] != want)
			fail_msg(
			    "row %u element %u: %g became %04x, not %04x", n, k, (double)row[k], got[k], want);
		largest = fmaxf(largest, fabsf(kn_half_to_float(got[k])));
	}
	/* All but tiny rows, and those that keep their values as they have none to scale by. */
	if (scale < 1e30f && (scale < 1.0f || scale > 1.0f))
		assert_true(largest >= 16384.0f && largest <= 32768.0f);
}

static void check_pack(uint32_t columns, uint32_t first, uint32_t count)
{
	uint32_t stride = columns + STRIDE_GAP;
	size_t total = (size_t)count * columns;
	float *host = make_rows(columns);
	float *x = dev_upload(host, (size_t)COUNT * stride * sizeof(float));
	float *floats = dev_alloc(total * sizeof(float)), *unscale = dev_alloc(count * sizeof(float));
	uint16_t *halves = dev_alloc(total * sizeof(uint16_t));

	DEV_OK(kn_cuda_gemm_pack_f32(x + (size_t)first * stride, stride, floats, count, columns, NULL));
	DEV_OK(kn_cuda_gemm_pack_f16(
	    x + (size_t)first * stride, stride, halves, unscale, count, columns, NULL));
	dev_wait();
	float *got = dev_fetch(floats, total * sizeof(float));
	float *got_unscale = dev_fetch(unscale, count * sizeof(float));
	uint16_t *got_halves = dev_fetch(halves, total * sizeof(uint16_t));

	for (uint32_t n = 0; n < count; n++) {
		const float *row = host + (size_t)(first + n) * stride;

		kvt_assert_same_bits("f32", got + (size_t)n * columns, row, columns * sizeof(float));
		check_f16_row(row, got_halves + (size_t)n * columns, got_unscale[n], columns, first + n);
	}
	kvt_free(got_halves);
	kvt_free(got_unscale);
	kvt_free(got);
	dev_free(halves);
	dev_free(unscale);
	dev_free(floats);
	dev_free(x);
	kvt_free(host);
}

static void test_pack(void **state)
{
	(void)state;
	check_pack(96, 0, COUNT);
	check_pack(544, 0, COUNT);
	check_pack(288, 3, 1);
	check_pack(32, 1, 3);
	check_pack(32, 1, 16);
}

/* A tile in the middle of wider rows, which are left as they are beside it. */
static void check_finish(uint32_t rows, int has_unscale, int has_bias, int adds)
{
	enum { FIRST = 5, AFTER = 2 };
	uint32_t stride = FIRST + rows + AFTER;
	size_t total = (size_t)COUNT * stride;
	float *product = kvt_alloc((size_t)COUNT * rows, sizeof(float));
	float *y = kvt_alloc(total, sizeof(float)), *bias = kvt_alloc(stride, sizeof(float));
	float unscale[COUNT];
	struct kv_random random;

	kv_random_seed(&random, rows);
	kvt_fill_peaky(&random, product, (size_t)COUNT * rows, 1000.0f);
	kvt_fill_peaky(&random, y, total, 1.0f);
	kvt_fill_peaky(&random, bias, stride, 1.0f);
	for (int n = 0; n < COUNT; n++)
		unscale[n] = ldexpf(1.0f, n - 12);
	struct kn_cuda_gemm_finish_arguments a = {
	    .product = dev_upload(product, (size_t)COUNT * rows * sizeof(float)),
	    .unscale = has_unscale ? dev_upload(unscale, sizeof unscale) : NULL,
	    .bias = has_bias ? dev_upload(bias, stride * sizeof(float)) : NULL,
	    .y = dev_upload(y, total * sizeof(float)),
	    .y_stride = stride,
	    .first_row = FIRST,
	    .rows = rows,
	    .count = COUNT,
	};

	if (adds) a.add = a.y;
	DEV_OK(kn_cuda_gemm_finish(&a, NULL));
	dev_wait();
	float *got = dev_fetch(a.y, total * sizeof(float));

	for (uint32_t n = 0; n < COUNT; n++)
		for (uint32_t r = 0; r < rows; r++) {
			float value = product[(size_t)n * rows + r] * (has_unscale ? unscale[n] : 1.0f);
			float *at = &y[(size_t)n * stride + FIRST + r];

			if (has_bias) value += bias[FIRST + r];
			*at = adds ? value + *at : value;
		}
	kvt_assert_same_bits("finish", got, y, total * sizeof(float));
	kvt_free(got);
	dev_free((void *)(uintptr_t)a.product);
	if (has_unscale) dev_free((void *)(uintptr_t)a.unscale);
	if (has_bias) dev_free((void *)(uintptr_t)a.bias);
	dev_free(a.y);
	kvt_free(bias);
	kvt_free(y);
	kvt_free(product);
}

static void test_finish(void **state)
{
	(void)state;
	check_finish(300, 1, 1, 1);
	check_finish(7, 1, 0, 0);
	check_finish(64, 0, 1, 0);
	check_finish(1, 0, 0, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_pack),
	    cmocka_unit_test(test_finish),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
