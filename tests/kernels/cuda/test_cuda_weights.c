/* What the CUDA kernels read out of GGUF blocks: dequantise and embed, bit for bit. */
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

enum { TYPES = 11, ROWS = 5, MAX_COLUMNS = 2304 };

/* Where f16 ends: rounding, saturation, subnormals. */
static void place_extremes(enum kn_weight_type type, uint8_t *data)
{
	static const float extremes[] = {65503.0f, 65504.0f, 65519.0f, 65520.0f, -65520.0f, 1e6f, -1e6f,
	    6.1e-5f, 5.9e-8f, 2.9e-8f, -3.1e-8f, -0.0f, 1e-30f, INFINITY, 2049.0f, 2051.0f};

	if (type == KN_F32) memcpy(data, extremes, sizeof extremes);
}

static void check_rows(enum kn_weight_type type, const uint8_t *data, const float *got,
    const uint16_t *half, uint32_t columns, uint32_t first, uint32_t rows)
{
	for (uint32_t r = 0; r < rows; r++) {
		const float *row = got + (size_t)r * columns;
		float want[MAX_COLUMNS];
		uint16_t want_half[MAX_COLUMNS];

		assert_int_equal(
		    kn_dequantise_row(
		        type, data + kn_weight_row_bytes(type, columns) * (first + r), want, columns),
		    KV_OK);
		for (uint32_t k = 0; k < columns; k++)
			want_half[k] = kn_half_from_float(want[k]);
		kvt_assert_same_bits(kvt_weight_type_name(type), row, want, columns * sizeof *row);
		kvt_assert_same_bits(kvt_weight_type_name(type), half + (size_t)r * columns, want_half,
		    columns * sizeof *half);
	}
}

static void check_dequantise(enum kn_weight_type type, uint32_t columns, uint32_t first)
{
	size_t bytes = (size_t)kn_weight_row_bytes(type, columns) * ROWS;
	uint32_t rows = ROWS - first;
	size_t total = (size_t)rows * columns;
	uint8_t *data = kvt_alloc(bytes, 1);
	struct kv_random random;

	kv_random_seed(&random, columns + first);
	kvt_fill_weights(&random, type, data, ROWS, columns);
	place_extremes(type, data);
	struct kn_cuda_weight_part part = {type, 0, ROWS, dev_upload(data, bytes)};
	float *out = dev_alloc(total * sizeof(float));
	uint16_t *out_half = dev_alloc(total * sizeof(uint16_t));

	DEV_OK(kn_cuda_dequantise(&part, columns, first, rows, KN_CUDA_F32, out, NULL));
	DEV_OK(kn_cuda_dequantise(&part, columns, first, rows, KN_CUDA_F16, out_half, NULL));
	dev_wait();
	float *got = dev_fetch(out, total * sizeof(float));
	uint16_t *half = dev_fetch(out_half, total * sizeof(uint16_t));

	check_rows(type, data, got, half, columns, first, rows);
	kvt_free(half);
	kvt_free(got);
	dev_free(out_half);
	dev_free(out);
	dev_free((void *)(uintptr_t)part.data);
	kvt_free(data);
}

/* Several rows, a row alone, and rows of more chunks than a block has threads. */
static void test_dequantise(void **state)
{
	(void)state;
	for (size_t t = 0; t < TYPES; t++) {
		enum kn_weight_type type = kvt_weight_types[t];
		int k_type = kn_weight_row_bytes(type, 32) == 0;

		check_dequantise(type, k_type ? 256 : 32, 0);
		check_dequantise(type, k_type ? 512 : 352, 3);
		check_dequantise(type, MAX_COLUMNS, 4);
	}
}

static void test_unknown_type(void **state)
{
	struct kn_cuda_weight_part part = {(enum kn_weight_type)5, 0, 1, NULL};
	struct kn_cuda_weight weight = {1, 32, KN_PRECISION_FP32, 1, &part};
	struct kn_embed_arguments embed = {.count = 1};

	(void)state;
	assert_int_equal(
	    kn_cuda_dequantise(&part, 32, 0, 1, KN_CUDA_F32, NULL, NULL), cudaErrorInvalidValue);
	assert_int_equal(kn_cuda_embed(&weight, &embed, NULL), cudaErrorInvalidValue);
}

/* A table of three parts on both sides. */
struct table {
	struct kn_weight_part parts[3];
	struct kn_cuda_weight_part cuda_parts[3];
	struct kn_cuda_weight cuda;
};

static void table_create(struct table *t, uint32_t columns)
{
	static const enum kn_weight_type types[] = {KN_Q5_0, KN_Q6_K, KN_BF16};
	static const uint32_t rows[] = {5, 3, 2};
	struct kv_random random;

	kv_random_seed(&random, columns);
	t->cuda = (struct kn_cuda_weight){0, columns, KN_PRECISION_FP32, 3, t->cuda_parts};
	for (int i = 0; i < 3; i++) {
		uint64_t bytes = kn_weight_row_bytes(types[i], columns) * rows[i];
		uint8_t *data = kvt_alloc((size_t)bytes, 1);

		kvt_fill_weights(&random, types[i], data, rows[i], columns);
		t->parts[i] = (struct kn_weight_part){types[i], rows[i], data, bytes};
		t->cuda_parts[i] = (struct kn_cuda_weight_part){
		    types[i], t->cuda.rows, rows[i], dev_upload(data, (size_t)bytes)};
		t->cuda.rows += rows[i];
	}
}

static void table_destroy(struct table *t)
{
	for (int i = 0; i < 3; i++) {
		kvt_free((void *)(uintptr_t)t->parts[i].data);
		dev_free((void *)(uintptr_t)t->cuda_parts[i].data);
	}
}

static void cpu_embed(const struct table *t, const int32_t *ids, uint32_t count, float *out)
{
	struct kvt_backend cpu;
	struct kn_weight *weight;

	assert_true(kvt_backend_open(&cpu, KN_CPU_PLAIN, 1));
	assert_int_equal(
	    cpu.ops->weight_pack(cpu.backend, t->parts, 3, t->cuda.columns, KN_PRECISION_FP32, &weight),
	    KV_OK);
	struct kn_embed_arguments a = {weight, ids, out, count};

	assert_int_equal(cpu.ops->embed(cpu.backend, NULL, &a), KV_OK);
	cpu.ops->weight_destroy(cpu.backend, weight);
	kvt_backend_close(&cpu);
}

static void test_embed(void **state)
{
	enum { COLUMNS = 512, COUNT = 17 };
	static const int32_t ids[COUNT] = {9, 0, 4, 5, 7, 8, 4, 1, 2, 3, 6, 9, 9, 0, 5, 6, 7};
	struct table t;
	float *want = kvt_alloc(COUNT * COLUMNS, sizeof(float));
	size_t bytes = (size_t)COUNT * COLUMNS * sizeof(float);

	(void)state;
	table_create(&t, COLUMNS);
	cpu_embed(&t, ids, COUNT, want);
	/* Any address of a float will do. */
	float *out = dev_alloc(bytes + sizeof(float));
	int32_t *device_ids = dev_upload(ids, sizeof ids);
	struct kn_embed_arguments a = {NULL, device_ids, out + 1, COUNT};

	DEV_OK(kn_cuda_embed(&t.cuda, &a, NULL));
	dev_wait();
	float *got = dev_fetch(out + 1, bytes);

	kvt_assert_same_bits("embed", got, want, bytes);
	kvt_free(got);
	a.count = 0;
	DEV_OK(kn_cuda_embed(&t.cuda, &a, NULL));
	dev_free(device_ids);
	dev_free(out);
	table_destroy(&t);
	kvt_free(want);
}

static void test_embed_of_missing_rows(void **state)
{
	enum { COLUMNS = 256, COUNT = 5 };
	static const int32_t ids[COUNT] = {10, 3, -1, INT32_MIN, INT32_MAX};
	static const int32_t three = 3;
	struct table t;
	float want[COLUMNS];

	(void)state;
	table_create(&t, COLUMNS);
	cpu_embed(&t, &three, 1, want);
	float *out = dev_alloc(COUNT * COLUMNS * sizeof(float));
	int32_t *device_ids = dev_upload(ids, sizeof ids);
	struct kn_embed_arguments a = {NULL, device_ids, out, COUNT};

	/* Written over, so that a row that is left out would show on a GPU, too. */
	float *zeros = kvt_alloc(COUNT * COLUMNS, sizeof(float));

	dev_write(out, zeros, COUNT * COLUMNS * sizeof(float));
	DEV_OK(kn_cuda_embed(&t.cuda, &a, NULL));
	dev_wait();
	float *got = dev_fetch(out, COUNT * COLUMNS * sizeof(float));

	kvt_assert_same_bits("embed", got + COLUMNS, want, sizeof want);
	for (uint32_t i = 0; i < COUNT * COLUMNS; i++)
		if (i / COLUMNS != 1 && !isnan(got[i]))
			fail_msg(
			    "id %d: element %u is %g, not NaN", ids[i / COLUMNS], i % COLUMNS, (double)got[i]);
	kvt_free(got);
	kvt_free(zeros);
	dev_free(device_ids);
	dev_free(out);
	table_destroy(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_dequantise),
	    cmocka_unit_test(test_unknown_type),
	    cmocka_unit_test(test_embed),
	    cmocka_unit_test(test_embed_of_missing_rows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
