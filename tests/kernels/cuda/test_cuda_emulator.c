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

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_saxpy),
	    cmocka_unit_test(test_sum_rows),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
