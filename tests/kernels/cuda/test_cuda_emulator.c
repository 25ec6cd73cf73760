/* The emulator runs kernels that are right, and gives their results, in every flavour. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/kernels/cuda/device.h"
#include "tests/kernels/cuda/emulator_kernels.h"
#include "tests/lib/kernel_harness.h"

enum { COUNT = 1000, ROWS = 5, COLUMNS = 777 };

static void test_saxpy(void **state)
{
	(void)state;
	uint64_t seed = 1;
	float x[COUNT], y[COUNT], got[COUNT];
	for (int i = 0; i < COUNT; i++) {
		x[i] = dev_random(&seed);
		y[i] = dev_random(&seed);
	}
	float *device_x = dev_upload(x, sizeof x), *device_y = dev_upload(y, sizeof y);
	DEV_OK(emk_saxpy(2.0f, device_x, device_y, COUNT, NULL));
	dev_download(got, device_y, sizeof got);
	for (int i = 0; i < COUNT; i++)
		assert_true(got[i] == y[i] + 2.0f * x[i]);
	dev_free(device_x);
	dev_free(device_y);
}

static void test_sum_rows(void **state)
{
	(void)state;
	uint64_t seed = 2;
	float x[ROWS * COLUMNS], got[ROWS];
	double want[ROWS] = {0};
	for (int i = 0; i < ROWS * COLUMNS; i++) {
		x[i] = dev_random(&seed);
		want[i / COLUMNS] += (double)x[i];
	}
	float *device_x = dev_upload(x, sizeof x), *out = dev_alloc(sizeof got);
	DEV_OK(emk_sum_rows(device_x, out, ROWS, COLUMNS, NULL));
	dev_download(got, out, sizeof got);
	kvt_assert_close("sums of rows", got, want, ROWS, 1e-6, 1e-6);
	dev_free(device_x);
	dev_free(out);
}

static void test_count(void **state)
{
	(void)state;
	int x[COUNT], want[32] = {0}, got[32];
	uint64_t seed = 3;
	for (int i = 0; i < COUNT; i++) {
		x[i] = (int)(32 * dev_random(&seed));
		want[x[i]]++;
	}
	int *device_x = dev_upload(x, sizeof x), *counts = dev_alloc(sizeof got);
	for (int threads = 32; threads <= 96; threads += 32) {
		DEV_OK(cudaMemset(counts, 0, sizeof got));
		DEV_OK(emk_count(device_x, counts, COUNT - 1, threads, NULL));
		dev_download(got, counts, sizeof got);
		got[x[COUNT - 1]]++;
		assert_memory_equal(got, want, sizeof got);
	}
	dev_free(device_x);
	dev_free(counts);
}

static int count_matches(int thread)
{
	int first = thread / 32 * 32, end = first + 32 < 80 ? first + 32 : 80, lanes = 0;
	for (int t = first; t < end; t++)
		lanes |= t / 5 == thread / 5 ? (int)(1u << (t & 31)) : 0;
	return lanes;
}

static void test_collectives(void **state)
{
	(void)state;
	int got[8][80];
	int *out = dev_alloc(sizeof got);
	DEV_OK(emk_collectives(out, NULL));
	dev_download(got, out, sizeof got);
	dev_free(out);
	for (int t = 0; t < 80; t++) {
		int first = t / 32 * 32, lanes = t < 64 ? 32 : 16, half = t / 16 * 16;
		if (t + 1 < first + lanes) assert_int_equal(got[EMK_DOWN][t], t + 1);
		assert_int_equal(got[EMK_XOR][t], t ^ 3);
		assert_int_equal(got[EMK_SUM][t], lanes * first + lanes * (lanes - 1) / 2);
		assert_int_equal((unsigned)got[EMK_ODD][t], lanes == 32 ? 0xaaaaaaaau : 0xaaaau);
		assert_int_equal(got[EMK_SAME][t], count_matches(t));
		assert_int_equal(got[EMK_ANY][t], t >= 64);
		assert_int_equal(got[EMK_HALF][t], 16 * half + 120);
		assert_int_equal(got[EMK_COUNT][t], 27);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_saxpy),
	    cmocka_unit_test(test_sum_rows),
	    cmocka_unit_test(test_count),
	    cmocka_unit_test(test_collectives),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
