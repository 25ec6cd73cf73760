#include "tests/lib/kernel_harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/half.h"

int kvt_backend_open(struct kvt_backend *b, enum kn_cpu_level level, uint32_t threads)
{
	static const char *const names[] = {"auto", "plain", "avx2", "avx512"};

	memset(b, 0, sizeof *b);
	b->allocator = kv_allocator_create("kernel test", 0);
	assert_non_null(b->allocator);
	struct kn_backend_options options = {
	    .allocator = b->allocator,
	    .threads = threads,
	    .cpu_level = level,
	    .max_rows = KVT_MAX_ROWS,
	    .max_columns = KVT_MAX_COLUMNS,
	};
	enum kv_status status = kn_backend_open("cpu", &options, &b->ops, &b->backend);

	if (status == KV_UNSUPPORTED) {
		kv_allocator_destroy(b->allocator);
		return 0;
	}
	if (status != KV_OK) fail_msg("cannot open the cpu backend: %s", kv_error_message());
	b->level = level;
	b->threads = threads;
	snprintf(b->name, sizeof b->name, "%s x %u", names[level], threads);
	return 1;
}

void kvt_backend_close(struct kvt_backend *b)
{
	b->ops->close(b->backend);
	assert_int_equal(kv_allocator_stats(b->allocator).blocks, 0);
	kv_allocator_destroy(b->allocator);
	memset(b, 0, sizeof *b);
}

void kvt_each_backend(kvt_backend_test *test, void *context)
{
	for (enum kn_cpu_level level = KN_CPU_PLAIN; level <= KN_CPU_AVX512; level++)
		for (uint32_t threads = 1; threads <= 3; threads++) {
			struct kvt_backend b;

			if (!kvt_backend_open(&b, level, threads)) {
				if (threads == 1)
					print_message("skipped level %d: %s\n", (int)level, kv_error_message());
				continue;
			}
			test(&b, context);
			kvt_backend_close(&b);
		}
}

void *kvt_alloc(size_t count, size_t size)
{
	void *block = kv_alloc_array_zero(kv_heap(), count, size);

	if (!block) fail_msg("no memory for %zu elements of %zu bytes", count, size);
	return block;
}

void kvt_free(void *block)
{
	kv_free(kv_heap(), block);
}

void kvt_fill_peaky(struct kv_random *random, float *x, size_t count, float scale)
{
	for (size_t i = 0; i < count; i++) {
		x[i] = scale * kv_random_normal(random);
		if (kv_random_below(random, 37) == 0) x[i] *= 20.0f;
	}
}

const enum kn_weight_type kvt_weight_types[11] = {KN_F32, KN_F16, KN_BF16, KN_Q4_0, KN_Q4_1,
    KN_Q5_0, KN_Q5_1, KN_Q8_0, KN_Q4_K, KN_Q5_K, KN_Q6_K};

const char *kvt_weight_type_name(enum kn_weight_type type)
{
	static const char *const names[11] = {
	    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};

	for (size_t i = 0; i < 11; i++)
		if (kvt_weight_types[i] == type) return names[i];
	return "?";
}

static void put_u16(uint8_t *p, uint16_t value)
{
	p[0] = (uint8_t)value;
	p[1] = (uint8_t)(value >> 8);
}

/* Where a block keeps its f16 scale and minimum (-1: none), and the sizes of these. */
struct block_fields {
	enum kn_weight_type type;
	uint32_t bytes;
	int scale, minimum;
	float scale_size, minimum_size;
};

static void fill_block(struct kv_random *random, const struct block_fields *fields, uint8_t *p)
{
	for (uint32_t i = 0; i < fields->bytes; i++)
		p[i] = (uint8_t)kv_random_next(random);
	float scale = fields->scale_size * (0.5f + (float)kv_random_unit(random));

	/* Rows without a sign bit would hide an error of the offset. */
	if (kv_random_below(random, 4) == 0) scale = -scale;
	put_u16(p + fields->scale, kn_half_from_float(scale));
	if (fields->minimum >= 0)
		put_u16(p + fields->minimum,
		    kn_half_from_float(fields->minimum_size * kv_random_normal(random)));
}

static void fill_float(struct kv_random *random, enum kn_weight_type type, uint8_t *p, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		float value;

		kvt_fill_peaky(random, &value, 1, 0.05f);
		uint32_t bits = kn_float_bits(value);

		if (type == KN_F32)
			memcpy(p + 4 * i, &value, sizeof value);
		else
			put_u16(p + 2 * i, type == KN_F16 ? kn_half_from_float(value) : (uint16_t)(bits >> 16));
	}
}

void kvt_fill_weights(struct kv_random *random, enum kn_weight_type type, uint8_t *data,
    uint32_t rows, uint32_t columns)
{
	static const struct block_fields blocks[] = {
	    {KN_Q4_0, 18, 0, -1, 0.02f, 0.0f},
	    {KN_Q4_1, 20, 0, 2, 0.02f, 0.1f},
	    {KN_Q5_0, 22, 0, -1, 0.01f, 0.0f},
	    {KN_Q5_1, 24, 0, 2, 0.01f, 0.1f},
	    {KN_Q8_0, 34, 0, -1, 0.002f, 0.0f},
	    {KN_Q4_K, 144, 0, 2, 0.0005f, 0.002f},
	    {KN_Q5_K, 176, 0, 2, 0.0003f, 0.002f},
	    {KN_Q6_K, 210, 208, -1, 0.0001f, 0.0f},
	};
	uint64_t bytes = kn_weight_row_bytes(type, columns) * rows;

	for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
		if (blocks[i].type == type) {
			for (uint64_t at = 0; at < bytes; at += blocks[i].bytes)
				fill_block(random, &blocks[i], data + at);
			return;
		}
	fill_float(random, type, data, (size_t)rows * columns);
}

struct kvt_error kvt_compare(const float *got, const double *want, size_t count)
{
	struct kvt_error error = {0.0, 0.0, 0};
	double squares = 0.0, norm = 0.0;

	for (size_t i = 0; i < count; i++) {
		double difference = fabs((double)got[i] - want[i]);

		norm += want[i] * want[i];
		squares += difference * difference;
		if (!(difference <= error.max)) {
			error.max = difference;
			error.worst = i;
		}
	}
	double scale = sqrt(norm / (double)(count ? count : 1));

	if (scale > 0.0) {
		error.max /= scale;
		error.rms = sqrt(squares / norm);
	} else {
		error.rms = sqrt(squares);
	}
	return error;
}

void kvt_assert_close(
    const char *what, const float *got, const double *want, size_t count, double max, double rms)
{
	struct kvt_error error = kvt_compare(got, want, count);

	for (size_t i = 0; i < count; i++)
		if (!isfinite(got[i])) fail_msg("%s: element %zu is %g", what, i, (double)got[i]);
	if (!(error.max <= max) || !(error.rms <= rms))
		fail_msg(
		    "%s: max error %.3g (limit %.3g), rms %.3g (limit %.3g); element %zu of %zu is %.9g "
		    "and should be %.9g",
		    what, error.max, max, error.rms, rms, error.worst, count, (double)got[error.worst],
		    want[error.worst]);
}

void kvt_assert_same_bits(const char *what, const void *a, const void *b, size_t bytes)
{
	const uint8_t *p = a, *q = b;

	for (size_t i = 0; i < bytes; i++)
		if (p[i] != q[i])
			fail_msg("%s: byte %zu of %zu differs: %02x and %02x", what, i, bytes, p[i], q[i]);
}
