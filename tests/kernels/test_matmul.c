#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/kernel_harness.h"

enum { TYPES = 11, MAX_PARTS = 3, COUNT = 21 };

/* A weight, an input, and what comes out of them at the reference level. */
struct fixture {
	uint32_t part_count, columns, rows;
	struct kn_weight_part parts[MAX_PARTS];
	uint8_t *data[MAX_PARTS];
	enum kn_precision precision;
	float *x;           /* [COUNT][columns + 3] */
	float *dequantised; /* [rows][columns], of the file's blocks */
	float *reference;   /* [COUNT][rows], from the first backend of that kind */
	int have_reference, have_avx_reference;
};

static void fixture_create(struct fixture *f, uint64_t seed, uint32_t columns, uint32_t part_count,
    const enum kn_weight_type *types, const uint32_t *rows)
{
	struct kv_random random;

	memset(f, 0, sizeof *f);
	kv_random_seed(&random, seed);
	f->columns = columns;
	f->part_count = part_count;
	for (uint32_t i = 0; i < part_count; i++) {
		uint64_t bytes = kn_weight_row_bytes(types[i], columns) * rows[i];

		f->data[i] = kvt_alloc(bytes, 1);
		kvt_fill_weights(&random, types[i], f->data[i], rows[i], columns);
		f->parts[i] = (struct kn_weight_part){types[i], rows[i], f->data[i], bytes};
		f->rows += rows[i];
	}
	f->x = kvt_alloc((size_t)COUNT * (columns + 3), sizeof(float));
	kvt_fill_peaky(&random, f->x, (size_t)COUNT * (columns + 3), 1.0f);
	/* A block of zeros, a block of denormals and a huge block are all legal. */
	memset(f->x, 0, 32 * sizeof(float));
	for (uint32_t k = 0; k < 32; k++) {
		f->x[columns + 3 + k] = 1e-38f;
		f->x[2 * (columns + 3) + k] *= 1e4f;
	}
	f->dequantised = kvt_alloc((size_t)f->rows * columns, sizeof(float));
	float *out = f->dequantised;

	for (uint32_t i = 0; i < part_count; i++)
		for (uint32_t r = 0; r < rows[i]; r++, out += columns)
			assert_int_equal(
			    kn_dequantise_row(types[i], f->data[i] + kn_weight_row_bytes(types[i], columns) * r,
			        out, columns),
			    KV_OK);
	f->reference = kvt_alloc((size_t)COUNT * f->rows, sizeof(float));
}

static void fixture_destroy(struct fixture *f)
{
	for (uint32_t i = 0; i < f->part_count; i++)
		kvt_free(f->data[i]);
	kvt_free(f->x);
	kvt_free(f->dequantised);
	kvt_free(f->reference);
}

static struct kn_weight *pack(const struct kvt_backend *b, const struct fixture *f)
{
	struct kn_weight *weight = NULL;

	if (b->ops->weight_pack(b->backend, f->parts, f->part_count, f->columns, f->precision, &weight))
		fail_msg("weight_pack: %s", kv_error_message());
	return weight;
}

static void multiply(const struct kvt_backend *b, const struct fixture *f,
    const struct kn_weight *weight, uint32_t first, uint32_t count, float *y)
{
	struct kn_matmul_arguments a = {
	    .weight = weight,
	    .x = f->x + (size_t)first * (f->columns + 3),
	    .x_stride = f->columns + 3,
	    .y = y,
	    .y_stride = f->rows,
	    .count = count,
	};

	if (b->ops->matmul(b->backend, NULL, &a)) fail_msg("matmul: %s", kv_error_message());
}

/* The exact product of the weights as packed (read back through embed) and the activations, rounded
 * to 8 bits by half blocks of 16 at default precision. */
static void exact_product(const struct kvt_backend *b, const struct fixture *f,
    const struct kn_weight *weight, double *want)
{
	uint32_t padded = f->columns + 3;
	float *w = kvt_alloc(f->columns, sizeof(float));
	double *x = kvt_alloc((size_t)COUNT * padded, sizeof(double));

	for (uint32_t n = 0; n < COUNT; n++)
		for (uint32_t k = 0; k < f->columns; k += 16) {
			const float *from = f->x + (size_t)n * padded + k;
			float largest = 0.0f;

			for (uint32_t i = 0; i < 16; i++)
				largest = fmaxf(largest, fabsf(from[i]));
			float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;

			for (uint32_t i = 0; i < 16; i++)
				x[(size_t)n * padded + k + i] =
				    f->precision == KN_PRECISION_FP32
				        ? (double)from[i]
				        : (double)rintf(from[i] * inverse) * (double)(largest / 127.0f);
		}
	for (uint32_t r = 0; r < f->rows; r++) {
		int32_t id = (int32_t)r;
		struct kn_embed_arguments a = {weight, &id, w, 1};

		assert_int_equal(b->ops->embed(b->backend, NULL, &a), KV_OK);
		for (uint32_t n = 0; n < COUNT; n++) {
			double sum = 0.0;

			for (uint32_t k = 0; k < f->columns; k++)
				sum += (double)w[k] * x[(size_t)n * padded + k];
			want[(size_t)n * f->rows + r] = sum;
		}
	}
	kvt_free(x);
	kvt_free(w);
}

/* Values: near the exact product. Bits: the same for every cut of the batch, for every thread
 * count, and for every level (fp32: for every level with fma). */
static void check_fixture(const struct kvt_backend *b, void *context)
{
	struct fixture *f = context;
	struct kn_weight *weight = pack(b, f);
	size_t total = (size_t)COUNT * f->rows;
	float *y = kvt_alloc(total, sizeof(float)), *part = kvt_alloc(total, sizeof(float));
	static const uint32_t cuts[] = {1, 2, 3, 4, 5, 8, 9, 16, 17};
	int fma_changes =
	    f->precision == KN_PRECISION_FP32 && b->level != KN_CPU_PLAIN && !f->have_avx_reference;

	multiply(b, f, weight, 0, COUNT, y);
	if (!f->have_reference || fma_changes) {
		double *want = kvt_alloc(total, sizeof(double));

		exact_product(b, f, weight, want);
		/* The partial sums may be much larger than the result, which is why rms is the gate. */
		kvt_assert_close(b->name, y, want, total, 1e-4, 1e-5);
		kvt_free(want);
		memcpy(f->reference, y, total * sizeof *y);
		f->have_avx_reference = f->have_reference;
		f->have_reference = 1;
	}
	kvt_assert_same_bits(b->name, y, f->reference, total * sizeof *y);
	for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
		memset(part, 0xff, total * sizeof *part);
		for (uint32_t n = 0; n < COUNT; n += cuts[i])
			multiply(b, f, weight, n, COUNT - n < cuts[i] ? COUNT - n : cuts[i],
			    part + (size_t)n * f->rows);
		kvt_assert_same_bits(b->name, part, y, total * sizeof *y);
	}
	kvt_free(part);
	kvt_free(y);
	b->ops->weight_destroy(b->backend, weight);
}

static void check_shape(
    uint32_t columns, uint32_t part_count, const enum kn_weight_type *types, const uint32_t *rows)
{
	for (int precision = KN_PRECISION_DEFAULT; precision <= KN_PRECISION_FP32; precision++) {
		struct fixture f;

		fixture_create(&f, columns * 131u + rows[0], columns, part_count, types, rows);
		f.precision = (enum kn_precision)precision;
		kvt_each_backend(check_fixture, &f);
		fixture_destroy(&f);
	}
}

static void test_types(void **state)
{
	static const uint32_t rows[] = {1, 16, 39};

	(void)state;
	for (size_t t = 0; t < TYPES; t++) {
		enum kn_weight_type type = kvt_weight_types[t];
		int k_type = kn_weight_row_bytes(type, 32) == 0;

		for (size_t i = 0; i < 3; i++)
			check_shape(k_type ? 256 : 96, 1, &type, &rows[i]);
		check_shape(k_type ? 512 : 32, 1, &type, &rows[2]);
	}
}

static void test_stacked_parts(void **state)
{
	static const enum kn_weight_type types[] = {KN_Q5_0, KN_Q8_0, KN_Q6_K};
	static const uint32_t rows[] = {48, 19, 16};

	(void)state;
	check_shape(256, 3, types, rows);
}

/* Weights as read back from the packed form: exact for most types, rounded for some. */
static void check_read_back(const struct kvt_backend *b, void *context)
{
	struct fixture *f = context;
	struct kn_weight *weight = pack(b, f);
	size_t total = (size_t)f->rows * f->columns;
	float *got = kvt_alloc(total, sizeof(float));
	int32_t *ids = kvt_alloc(f->rows, sizeof(int32_t));

	/* Backwards, so that order matters. */
	for (uint32_t r = 0; r < f->rows; r++)
		ids[r] = (int32_t)(f->rows - 1 - r);
	struct kn_embed_arguments a = {weight, ids, got, f->rows};

	assert_int_equal(b->ops->embed(b->backend, NULL, &a), KV_OK);
	for (uint32_t r = 0; r < f->rows; r++) {
		const float *row = got + (size_t)r * f->columns;
		const float *from = f->dequantised + (size_t)(f->rows - 1 - r) * f->columns;
		enum kn_weight_type type = f->parts[0].type;
		double want[1024];

		for (uint32_t k = 0; k < f->columns; k++)
			want[k] = (double)from[k];
		if (f->precision == KN_PRECISION_FP32 ||
		    (kn_weight_row_bytes(type, 32) > 0 && type != KN_F32 && type != KN_F16 &&
		        type != KN_BF16))
			kvt_assert_same_bits(kvt_weight_type_name(type), row, from, f->columns * sizeof *row);
		else
			kvt_assert_close(kvt_weight_type_name(type), row, want, f->columns, 0.2, 0.02);
	}
	kvt_free(ids);
	kvt_free(got);
	b->ops->weight_destroy(b->backend, weight);
}

static void test_embed(void **state)
{
	static const uint32_t rows = 37;

	(void)state;
	for (size_t t = 0; t < TYPES; t++)
		for (int precision = 0; precision < 2; precision++) {
			struct fixture f;

			fixture_create(&f, t + 77, 512, 1, &kvt_weight_types[t], &rows);
			f.precision = (enum kn_precision)precision;
			kvt_each_backend(check_read_back, &f);
			fixture_destroy(&f);
		}
}

/* All codes and activations at their extremes: 16-bit sums would saturate first here. */
static void check_extremes(const struct kvt_backend *b, void *context)
{
	enum { COLUMNS = 256, ROWS = 16 };

	(void)context;
	for (size_t t = 3; t < TYPES; t++)
		for (int fill = 0; fill < 3; fill++) {
			enum kn_weight_type type = kvt_weight_types[t];
			struct fixture f;
			uint32_t rows = ROWS;

			fixture_create(&f, t, COLUMNS, 1, &type, &rows);
			uint64_t row_bytes = kn_weight_row_bytes(type, COLUMNS);

			/* The last 16 bytes of a block are codes in most types; scales are kept. */
			for (uint32_t r = 0; r < ROWS && fill < 2; r++) {
				uint32_t block = type == KN_Q4_K || type == KN_Q5_K || type == KN_Q6_K ? 256 : 32;
				uint64_t size = row_bytes / (COLUMNS / block);

				for (uint64_t at = 0; at < row_bytes; at += size) {
					uint8_t *p = f.data[0] + row_bytes * r + at;
					uint64_t from = block == 256 ? 16 : size - (type == KN_Q8_0 ? 32 : 16);

					if (type == KN_Q5_0 || type == KN_Q5_1) from -= 4;
					memset(p + (type == KN_Q6_K ? 0 : from), type == KN_Q8_0 && fill ? 0x80 : 0xff,
					    type == KN_Q6_K ? 192 : size - from);
				}
			}
			for (uint32_t i = 0; i < COUNT * (COLUMNS + 3); i++)
				f.x[i] = fill == 1 || i % 2 == 0 ? 3.0f : -3.0f;
			struct kn_weight *weight = pack(b, &f);
			float y[COUNT * ROWS];
			double *want = kvt_alloc(COUNT * ROWS, sizeof(double));

			multiply(b, &f, weight, 0, COUNT, y);
			exact_product(b, &f, weight, want);
			double largest = 0.0, norm = 0.0;

			for (uint32_t i = 0; i < COUNT * ROWS; i++) {
				largest = fmax(largest, fabs((double)y[i] - want[i]));
				norm = fmax(norm, fabs(want[i]));
			}
			/* Alternating signs cancel to near zero; the terms themselves are of order 100. */
			if (largest > 1e-4 * (norm + 10.0))
				fail_msg("%s %s fill %d: off by %g of %g", b->name, kvt_weight_type_name(type),
				    fill, largest, norm);
			kvt_free(want);
			b->ops->weight_destroy(b->backend, weight);
			fixture_destroy(&f);
		}
}

static void test_extremes(void **state)
{
	(void)state;
	kvt_each_backend(check_extremes, NULL);
}

/* Bias and residual, the residual in place, a gap in the rows of y, more rows than the backend's
 * chunk. */
static void check_epilogue(const struct kvt_backend *b, void *context)
{
	enum { COLUMNS = 64, ROWS = 20, STRIDE = 23, MANY = 2 * KVT_MAX_ROWS + 5 };
	struct kv_random random;
	enum kn_weight_type type = KN_Q4_1;
	uint64_t bytes = kn_weight_row_bytes(type, COLUMNS) * ROWS;
	uint8_t *data = kvt_alloc(bytes, 1);
	float *x = kvt_alloc(MANY * COLUMNS, sizeof(float)), bias[ROWS];
	float *plain = kvt_alloc(MANY * STRIDE, sizeof(float));
	float *y = kvt_alloc(MANY * STRIDE, sizeof(float)),
	      *old = kvt_alloc(MANY * STRIDE, sizeof(float));
	struct kn_weight *weight;

	(void)context;
	kv_random_seed(&random, 5);
	kvt_fill_weights(&random, type, data, ROWS, COLUMNS);
	kvt_fill_peaky(&random, x, MANY * COLUMNS, 1.0f);
	kvt_fill_peaky(&random, bias, ROWS, 1.0f);
	kvt_fill_peaky(&random, old, MANY * STRIDE, 1.0f);
	memcpy(y, old, MANY * STRIDE * sizeof *y);
	struct kn_weight_part part = {type, ROWS, data, bytes};

	assert_int_equal(
	    b->ops->weight_pack(b->backend, &part, 1, COLUMNS, KN_PRECISION_DEFAULT, &weight), KV_OK);
	assert_int_equal(b->ops->weight_bytes(weight), 2 * 2 * 320);
	struct kn_matmul_arguments a = {weight, x, COLUMNS, plain, STRIDE, NULL, NULL, MANY};

	assert_int_equal(b->ops->matmul(b->backend, NULL, &a), KV_OK);
	a.y = y;
	a.bias = bias;
	a.add = y;
	assert_int_equal(b->ops->matmul(b->backend, NULL, &a), KV_OK);
	for (uint32_t n = 0; n < MANY; n++)
		for (uint32_t r = 0; r < STRIDE; r++) {
			size_t i = (size_t)n * STRIDE + r;
			float want = r < ROWS ? (plain[i] + bias[r]) + old[i] : old[i];

			if (y[i] != want) fail_msg("%s: row %u column %u", b->name, n, r);
		}
	b->ops->weight_destroy(b->backend, weight);
	kvt_free(old);
	kvt_free(y);
	kvt_free(plain);
	kvt_free(x);
	kvt_free(data);
}

static void test_epilogue(void **state)
{
	(void)state;
	kvt_each_backend(check_epilogue, NULL);
}

static void test_refusals(void **state)
{
	struct kvt_backend b;
	uint8_t data[2048] = {0};
	float x[64] = {0}, y[64];
	int32_t id = 16;
	struct kn_weight *weight = NULL;
	struct kn_weight_part part = {KN_Q8_0, 16, data, 16 * 34};

	(void)state;
	assert_true(kvt_backend_open(&b, KN_CPU_PLAIN, 1));
#define PACK(columns)                                                                              \
	b.ops->weight_pack(b.backend, &part, 1, columns, KN_PRECISION_DEFAULT, &weight)
	assert_int_equal(PACK(48), KV_UNSUPPORTED);
	assert_int_equal(PACK(64), KV_INVALID);
	part.type = (enum kn_weight_type)9;
	assert_int_equal(PACK(32), KV_UNSUPPORTED);
	part.type = KN_Q8_0;
	part.rows = 0;
	assert_int_equal(PACK(32), KV_INVALID);
	part.rows = 16;
	assert_null(weight);
	assert_int_equal(
	    b.ops->weight_pack(b.backend, &part, 0, 32, KN_PRECISION_DEFAULT, &weight), KV_UNSUPPORTED);
	assert_int_equal(PACK(32), KV_OK);
#undef PACK
	struct kn_matmul_arguments a = {weight, x, 31, y, 16, NULL, NULL, 1};

	assert_int_equal(b.ops->matmul(b.backend, NULL, &a), KV_INVALID);
	a.x_stride = 32;
	a.y_stride = 15;
	assert_int_equal(b.ops->matmul(b.backend, NULL, &a), KV_INVALID);
	a.count = 0;
	assert_int_equal(b.ops->matmul(b.backend, NULL, &a), KV_OK);
	struct kn_embed_arguments e = {weight, &id, y, 1};

	assert_int_equal(b.ops->embed(b.backend, NULL, &e), KV_INVALID);
	id = -1;
	assert_int_equal(b.ops->embed(b.backend, NULL, &e), KV_INVALID);
	b.ops->weight_destroy(b.backend, weight);
	b.ops->weight_destroy(b.backend, NULL);
	kvt_backend_close(&b);
}

/* Every allocation of a pack fails in turn, and nothing is left behind. */
static void test_pack_without_memory(void **state)
{
	struct kvt_backend b;
	uint8_t data[16 * 34] = {0};
	struct kn_weight_part part = {KN_Q8_0, 16, data, sizeof data};
	struct kn_weight *weight = NULL;
	enum kv_status status = KV_NO_MEMORY;
	uint64_t n = 0;

	(void)state;
	assert_true(kvt_backend_open(&b, KN_CPU_PLAIN, 2));
	uint64_t blocks = kv_allocator_stats(b.allocator).blocks;

	while (status != KV_OK) {
		kv_allocator_fail_at(b.allocator, ++n);
		status = b.ops->weight_pack(b.backend, &part, 1, 32, KN_PRECISION_DEFAULT, &weight);
		if (status == KV_OK) break;
		assert_int_equal(status, KV_NO_MEMORY);
		assert_null(weight);
		assert_int_equal(kv_allocator_stats(b.allocator).blocks, blocks);
	}
	kv_allocator_fail_at(b.allocator, 0);
	assert_true(n > 3);
	b.ops->weight_destroy(b.backend, weight);
	assert_int_equal(kv_allocator_stats(b.allocator).blocks, blocks);
	kvt_backend_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_types),
	    cmocka_unit_test(test_stacked_parts),
	    cmocka_unit_test(test_embed),
	    cmocka_unit_test(test_extremes),
	    cmocka_unit_test(test_epilogue),
	    cmocka_unit_test(test_refusals),
	    cmocka_unit_test(test_pack_without_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
