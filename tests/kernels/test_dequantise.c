/* Each GGUF block layout against a second reading of it, element by element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/half.h"
#include "tests/lib/kernel_harness.h"

static float f16_at(const uint8_t *p)
{
	return kn_half_to_float((uint16_t)(p[0] | p[1] << 8));
}

/* Element k of a block of 32 with nibbles at `at` and, unless 0, fifth bits at `high`. */
static uint32_t nibble_code(const uint8_t *p, int at, int high, uint32_t k)
{
	uint32_t code = k < 16 ? p[at + (int)k] & 15u : p[at + (int)k - 16] >> 4;

	if (high) code |= (uint32_t)(p[high + (int)k / 8] >> (k % 8) & 1) << 4;
	return code;
}

/* Scale (which 0) or minimum (1) of sub-block j: 6 bits in 12 bytes. */
static uint32_t k_scale(const uint8_t *q, uint32_t j, int which)
{
	uint32_t low = q[j % 4 + (which ? 4u : 0u)];

	if (j < 4) return low & 63;
	uint32_t nibble = which ? q[j + 4] >> 4 : q[j + 4] & 15u;

	return nibble | (low >> 6) << 4;
}

static float k45_element(const uint8_t *p, int five, uint32_t k)
{
	uint32_t j = k / 32, byte = p[(five ? 48 : 16) + (int)(j / 2 * 32 + k % 32)];
	uint32_t code = j % 2 ? byte >> 4 : byte & 15;

	if (five && p[16 + k % 32] & 1u << j) code += 16;
	float product = f16_at(p) * (float)k_scale(p + 4, j, 0) * (float)code;

	return product - f16_at(p + 2) * (float)k_scale(p + 4, j, 1);
}

static float k6_element(const uint8_t *p, uint32_t k)
{
	uint32_t half = k / 128, in = k % 128, l = in % 32, quarter = in / 32;
	uint32_t byte = p[half * 64 + l + (quarter % 2) * 32];
	uint32_t code = quarter < 2 ? byte & 15 : byte >> 4;

	code |= (p[128 + half * 32 + l] >> (2 * quarter) & 3u) << 4;
	float scale = f16_at(p + 208) * (float)(int8_t)p[192 + half * 8 + quarter * 2 + l / 16];

	return scale * ((float)code - 32.0f);
}

static float element(enum kn_weight_type type, const uint8_t *row, uint32_t i)
{
	const uint8_t *p;

	switch (type) {
	case KN_Q4_0:
		p = row + i / 32 * 18;
		return f16_at(p) * ((float)nibble_code(p, 2, 0, i % 32) - 8.0f);
	case KN_Q4_1:
		p = row + i / 32 * 20;
		return f16_at(p) * (float)nibble_code(p, 4, 0, i % 32) + f16_at(p + 2);
	case KN_Q5_0:
		p = row + i / 32 * 22;
		return f16_at(p) * ((float)nibble_code(p, 6, 2, i % 32) - 16.0f);
	case KN_Q5_1:
		p = row + i / 32 * 24;
		return f16_at(p) * (float)nibble_code(p, 8, 4, i % 32) + f16_at(p + 2);
	case KN_Q8_0:
		p = row + i / 32 * 34;
		return f16_at(p) * (float)(int8_t)p[2 + i % 32];
	case KN_Q4_K:
		return k45_element(row + i / 256 * 144, 0, i % 256);
	case KN_Q5_K:
		return k45_element(row + i / 256 * 176, 1, i % 256);
	case KN_Q6_K:
		return k6_element(row + i / 256 * 210, i % 256);
	case KN_F16:
		return f16_at(row + 2 * i);
	case KN_BF16:
		return kn_bits_float((uint32_t)(row[2 * i] | row[2 * i + 1] << 8) << 16);
	case KN_F32:
		break;
	}
	float value;

	memcpy(&value, row + 4 * i, sizeof value);
	return value;
}

static void test_elements(void **state)
{
	enum { COLUMNS = 768 };
	struct kv_random random;

	(void)state;
	kv_random_seed(&random, 11);
	for (size_t t = 0; t < 11; t++) {
		enum kn_weight_type type = kvt_weight_types[t];
		size_t bytes = (size_t)kn_weight_row_bytes(type, COLUMNS);
		uint8_t *row = kvt_alloc(bytes, 1);
		float out[COLUMNS];

		assert_true(bytes > 0);
		kvt_fill_weights(&random, type, row, 1, COLUMNS);
		assert_int_equal(kn_dequantise_row(type, row, out, COLUMNS), KV_OK);
		for (uint32_t i = 0; i < COLUMNS; i++)
			if (out[i] != element(type, row, i))
				fail_msg("%s element %u is %.9g, should be %.9g", kvt_weight_type_name(type), i,
				    (double)out[i], (double)element(type, row, i));
		kvt_free(row);
	}
}

static void test_row_bytes(void **state)
{
	(void)state;
	assert_int_equal(kn_weight_row_bytes(KN_F32, 7), 28);
	assert_int_equal(kn_weight_row_bytes(KN_BF16, 7), 14);
	assert_int_equal(kn_weight_row_bytes(KN_Q4_1, 576), 360);
	assert_int_equal(kn_weight_row_bytes(KN_Q4_1, 575), 0);
	assert_int_equal(kn_weight_row_bytes(KN_Q6_K, 512), 420);
	assert_int_equal(kn_weight_row_bytes(KN_Q6_K, 544), 0);
	assert_int_equal(kn_weight_row_bytes((enum kn_weight_type)99, 512), 0);
	/* 2^32 columns would overflow 32-bit arithmetic on the way. */
	assert_int_equal(kn_weight_row_bytes(KN_F32, UINT32_MAX), (uint64_t)UINT32_MAX * 4);
}

static void test_refusals(void **state)
{
	uint8_t row[64] = {0};
	float out[32] = {1.0f};

	(void)state;
	assert_int_equal(kn_dequantise_row((enum kn_weight_type)5, row, out, 32), KV_UNSUPPORTED);
	assert_int_equal(kn_dequantise_row(KN_Q4_K, row, out, 32), KV_UNSUPPORTED);
	assert_true(out[0] == 1.0f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_elements),
	    cmocka_unit_test(test_row_bytes),
	    cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
