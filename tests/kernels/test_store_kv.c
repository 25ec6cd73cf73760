/* Rounding to fp16, storing and gathering KV rows. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/kernels/kv_rows.h"

/* The value of a finite fp16, from the definition. */
static double half_value(uint16_t half)
{
	int exponent = (half >> 10) & 31, mantissa = half & 1023;
	double value = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);

	return half & 0x8000 ? -value : value;
}

static void every_half_survives_the_round_trip(void **state)
{
	(void)state;
	for (uint32_t h = 0; h < 65536; h++) {
		float value = kn_half_to_float((uint16_t)h);

		if ((h & 0x7c00) == 0x7c00) {
			if ((h & 0x3ff) != 0) {
				assert_true(isnan(value));
				assert_int_equal(kn_half_from_float(value), h | 0x200);
			} else {
				assert_true(isinf(value));
				assert_int_equal(kn_half_from_float(value), (h & 0x8000) | 0x7bff);
			}
			continue;
		}
		assert_true((double)value == half_value((uint16_t)h));
		assert_true((signbit(value) != 0) == ((h & 0x8000) != 0));
		assert_int_equal(kn_half_from_float(value), h);
	}
}

/* Between two neighbours: the nearer one, and the even one in the middle. */
static void rounds_to_nearest_even(void **state)
{
	(void)state;
	for (uint32_t h = 0; h < 0x7bff; h++) {
		double low = half_value((uint16_t)h), high = half_value((uint16_t)(h + 1));
		float middle = (float)((low + high) / 2);

		assert_true((double)middle == (low + high) / 2);
		assert_int_equal(kn_half_from_float(middle), h + (h & 1));
		assert_int_equal(kn_half_from_float(nextafterf(middle, 0.0f)), h);
		assert_int_equal(kn_half_from_float(nextafterf(middle, INFINITY)), h + 1);
		assert_int_equal(kn_half_from_float(-middle), 0x8000 | (h + (h & 1)));
	}
	assert_int_equal(kn_half_from_float(65519.0f), 0x7bff);
	assert_int_equal(kn_half_from_float(1e30f), 0x7bff);
	assert_int_equal(kn_half_from_float(-1e30f), 0xfbff);
	assert_int_equal(kn_half_from_float(1e-30f), 0);
}

struct store_case {
	uint32_t count, kv_heads, head_dim;
	enum kn_kv_type type;
};

static const struct store_case cases[] = {
    {1, 1, 64, KN_KV_F16},
    {37, 3, 64, KN_KV_F16},
    {65, 2, 80, KN_KV_F16},
    {5, 2, 8, KN_KV_F32},
    {33, 1, 256, KN_KV_F16},
};

static void check_store(const struct kvt_backend *b, void *context)
{
	struct kv_random random;

	(void)context;
	kv_random_seed(&random, 2);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const struct store_case *c = &cases[i];
		size_t bytes = kn_kv_row_bytes(c->type, c->head_dim),
		       width = (size_t)c->kv_heads * c->head_dim;
		size_t stride = 3 * width + 7, token = bytes * c->kv_heads + 64;
		float *x = kvt_alloc(c->count * stride, 4);
		uint8_t *rows = kvt_alloc(c->count, token);

		memset(rows, 0xa5, c->count * token);
		kvt_fill_peaky(&random, x, c->count * stride, 3000.0f);
		x[3] = NAN;
		struct kn_store_kv_arguments a = {.k = x,
		    .v = x + width,
		    .k_stride = stride,
		    .v_stride = stride,
		    .rows = rows,
		    .token_stride = token,
		    .head_stride = bytes,
		    .kv_type = c->type,
		    .count = c->count,
		    .kv_heads = c->kv_heads,
		    .head_dim = c->head_dim};

		assert_int_equal(b->ops->store_kv(b->backend, NULL, &a), KV_OK);
		uint8_t *want = kvt_alloc(1, bytes);

		for (uint32_t t = 0; t < c->count; t++) {
			for (uint32_t h = 0; h < c->kv_heads; h++) {
				const float *k = x + t * stride + (size_t)h * c->head_dim;

				for (uint32_t d = 0; d < c->head_dim; d++) {
					kvt_set_element(want, c->type, d, k[d]);
					kvt_set_element(want, c->type, c->head_dim + d, k[width + d]);
				}
				kvt_assert_same_bits("row", rows + t * token + h * bytes, want, bytes);
			}
			for (size_t p = bytes * c->kv_heads; p < token; p++)
				assert_int_equal(rows[t * token + p], 0xa5);
		}
		kvt_free(want);
		kvt_free(x);
		kvt_free(rows);
	}
}

static void stores_rows(void **state)
{
	(void)state;
	kvt_each_backend(check_store, NULL);
}

static void check_gather(const struct kvt_backend *b, void *context)
{
	enum { COUNT = 300, BYTES = 40, FROM = 48, TO = 56 };
	static uint8_t source[COUNT * FROM], destination[COUNT * TO];
	uint32_t order[COUNT];

	(void)context;
	for (uint32_t i = 0; i < sizeof source; i++)
		source[i] = (uint8_t)(i * 7 + i / 256);
	memset(destination, 0, sizeof destination);
	for (uint32_t i = 0; i < COUNT; i++)
		order[i] = i * 77 % COUNT;
	struct kn_gather_rows_arguments a = {.source = source,
	    .source_stride = FROM,
	    .order = order,
	    .destination = destination,
	    .destination_stride = TO,
	    .row_bytes = BYTES,
	    .count = COUNT};

	assert_int_equal(b->ops->gather_rows(b->backend, NULL, &a), KV_OK);
	for (uint32_t i = 0; i < COUNT; i++) {
		kvt_assert_same_bits("row", destination + i * TO, source + order[i] * FROM, BYTES);
		for (uint32_t p = BYTES; p < TO; p++)
			assert_int_equal(destination[i * TO + p], 0);
	}
	a.order = NULL;
	assert_int_equal(b->ops->gather_rows(b->backend, NULL, &a), KV_INVALID);
	a.count = 0;
	assert_int_equal(b->ops->gather_rows(b->backend, NULL, &a), KV_OK);
}

static void gathers_rows(void **state)
{
	(void)state;
	kvt_each_backend(check_gather, NULL);
}

static void check_bf16(const struct kvt_backend *b, void *context)
{
	float x[8] = {1};
	uint8_t row[64] = {0};
	struct kn_store_kv_arguments a = {.k = x,
	    .v = x,
	    .rows = row,
	    .kv_type = KN_KV_BF16,
	    .count = 1,
	    .kv_heads = 1,
	    .head_dim = 8};

	(void)context;
	assert_int_equal(b->ops->store_kv(b->backend, NULL, &a), KV_UNSUPPORTED);
	assert_int_equal(row[0] | row[1], 0);
}

static void refuses_bf16(void **state)
{
	(void)state;
	kvt_each_backend(check_bf16, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_half_survives_the_round_trip),
	    cmocka_unit_test(rounds_to_nearest_even),
	    cmocka_unit_test(stores_rows),
	    cmocka_unit_test(gathers_rows),
	    cmocka_unit_test(refuses_bf16),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
