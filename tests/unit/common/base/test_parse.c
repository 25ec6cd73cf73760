#include "common/base/parse.h"

#include <math.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void integers_are_read_whole(void **state)
{
	uint64_t u64 = 7;
	uint32_t u32 = 7;
	int64_t i64 = 7;

	(void)state;
	assert_int_equal(kv_parse_u64("18446744073709551615", &u64), KV_OK);
	assert_true(u64 == UINT64_MAX);
	assert_int_equal(kv_parse_u64("0xFf", &u64), KV_OK);
	assert_int_equal(u64, 255);
	assert_int_equal(kv_parse_u32("4294967295", &u32), KV_OK);
	assert_true(u32 == UINT32_MAX);
	assert_int_equal(kv_parse_i64("-9223372036854775808", &i64), KV_OK);
	assert_true(i64 == INT64_MIN);
	assert_int_equal(kv_parse_i64("9223372036854775807", &i64), KV_OK);
	assert_true(i64 == INT64_MAX);
}

static void wrong_integers_leave_the_output(void **state)
{
	static const char *const wrong[] = {"", " 1", "1 ", "+1", "1x", "0x", "x", "-", "--1", "1.0",
	    "18446744073709551616", "99999999999999999999999"};
	uint64_t u64 = 7;
	uint32_t u32 = 7;
	int64_t i64 = 7;

	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		kv_error_clear();
		assert_int_equal(kv_parse_u64(wrong[i], &u64), KV_INVALID);
		assert_non_null(strstr(kv_error_message(), wrong[i]));
		assert_int_equal(kv_parse_u32(wrong[i], &u32), KV_INVALID);
		assert_int_equal(kv_parse_i64(wrong[i], &i64), KV_INVALID);
	}
	assert_int_equal(kv_parse_u64("-1", &u64), KV_INVALID);
	assert_int_equal(kv_parse_u32("4294967296", &u32), KV_INVALID);
	assert_int_equal(kv_parse_i64("9223372036854775808", &i64), KV_INVALID);
	assert_int_equal(kv_parse_i64("-9223372036854775809", &i64), KV_INVALID);
	assert_int_equal(u64, 7);
	assert_int_equal(u32, 7);
	assert_int_equal(i64, 7);
}

static void numbers_are_finite_decimals(void **state)
{
	static const char *const wrong[] = {
	    "", "nan", "inf", "0x1p3", "1e", "1e+", ".", "-", "1,5", " 1", "1 ", "1e999", "1.5f"};
	double value = 7.0;

	(void)state;
	assert_int_equal(kv_parse_double("-1.5e2", &value), KV_OK);
	assert_true(value == -150.0);
	assert_int_equal(kv_parse_double(".5", &value), KV_OK);
	assert_true(value == 0.5);
	value = 7.0;
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
		assert_int_equal(kv_parse_double(wrong[i], &value), KV_INVALID);
	assert_true(value == 7.0);
}

static void booleans_have_words(void **state)
{
	bool value = false;

	(void)state;
	assert_int_equal(kv_parse_bool("on", &value), KV_OK);
	assert_true(value);
	assert_int_equal(kv_parse_bool("false", &value), KV_OK);
	assert_false(value);
	assert_int_equal(kv_parse_bool("Yes", &value), KV_INVALID);
	assert_int_equal(kv_parse_bool("2", &value), KV_INVALID);
}

static void sizes_have_units(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} right[] = {{"0", 0}, {"4096", 4096}, {"4096B", 4096}, {"512k", 524288}, {"512KiB", 524288},
	    {"64MiB", UINT64_C(64) << 20}, {"4GiB", UINT64_C(4) << 30}, {"1.5GiB", UINT64_C(3) << 29},
	    {"2T", UINT64_C(2) << 40}, {"1kB", 1000}, {"2.5MB", 2500000}, {"0.125KiB", 128},
	    {"16777215TiB", UINT64_C(16777215) << 40}};
	static const char *const wrong[] = {"", "k", "1 k", "1kb", "-1", "1.0001k", "1.", "0.3", "0.3k",
	    "1KIB", "16777216TiB", "18446744073709551616", "1e3"};
	uint64_t bytes;

	(void)state;
	for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
		assert_int_equal(kv_parse_size(right[i].text, &bytes), KV_OK);
		assert_int_equal(bytes, right[i].bytes);
	}
	bytes = 7;
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
		assert_int_equal(kv_parse_size(wrong[i], &bytes), KV_INVALID);
	assert_int_equal(bytes, 7);
	assert_non_null(strstr(kv_error_message(), "64MiB"));
}

static void durations_need_a_unit(void **state)
{
	static const struct {
		const char *text;
		uint64_t milliseconds;
	} right[] = {{"0", 0}, {"500ms", 500}, {"3s", 3000}, {"1.5s", 1500}, {"2min", 120000},
	    {"1h", 3600000}, {"1d", 86400000}, {"2000us", 2}, {"0.5s", 500}, {"0s", 0}};
	static const char *const wrong[] = {
	    "", "3", "3 s", "1m", "1us", "1.5ms", "0.0001s", "-1s", "s", "99999999999999999999d"};
	uint64_t milliseconds;

	(void)state;
	for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
		assert_int_equal(kv_parse_duration_ms(right[i].text, &milliseconds), KV_OK);
		assert_int_equal(milliseconds, right[i].milliseconds);
	}
	milliseconds = 7;
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
		assert_int_equal(kv_parse_duration_ms(wrong[i], &milliseconds), KV_INVALID);
	assert_int_equal(milliseconds, 7);
}

static void formats_are_read_back(void **state)
{
	static const uint64_t values[] = {0, 1, 1000, 1023, 1024, 1025, 60000, 86400000, 1 << 20,
	    UINT64_C(3) << 29, UINT64_C(1) << 50, UINT64_MAX};
	char text[KV_PARSE_TEXT_SIZE];
	uint64_t back;

	(void)state;
	for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
		assert_int_equal(kv_parse_size(kv_format_size(values[i], text), &back), KV_OK);
		assert_true(back == values[i]);
		/* A duration is counted in microseconds on the way. */
		if (values[i] > UINT64_MAX / 1000) continue;
		assert_int_equal(
		    kv_parse_duration_ms(kv_format_duration_ms(values[i], text), &back), KV_OK);
		assert_true(back == values[i]);
	}
	assert_string_equal(kv_format_size(UINT64_C(4) << 30, text), "4GiB");
	assert_string_equal(kv_format_duration_ms(1500, text), "1500ms");
	assert_string_equal(kv_format_duration_ms(3000, text), "3s");
}

static void hexadecimal_goes_both_ways(void **state)
{
	static const unsigned char bytes[] = {0x00, 0x0f, 0xa5, 0xff};
	unsigned char back[4] = {9, 9, 9, 9};
	char text[9];

	(void)state;
	kv_hex_encode(bytes, 4, text);
	assert_string_equal(text, "000fa5ff");
	assert_int_equal(kv_hex_decode("000fA5fF", back, 4), KV_OK);
	assert_memory_equal(back, bytes, 4);
	assert_int_equal(kv_hex_decode("000fa5f", back, 4), KV_INVALID);
	assert_int_equal(kv_hex_decode("000fa5ff00", back, 4), KV_INVALID);
	assert_int_equal(kv_hex_decode("110fa5fg", back, 4), KV_INVALID);
	assert_memory_equal(back, bytes, 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(integers_are_read_whole),
	    cmocka_unit_test(wrong_integers_leave_the_output),
	    cmocka_unit_test(numbers_are_finite_decimals),
	    cmocka_unit_test(booleans_have_words),
	    cmocka_unit_test(sizes_have_units),
	    cmocka_unit_test(durations_need_a_unit),
	    cmocka_unit_test(formats_are_read_back),
	    cmocka_unit_test(hexadecimal_goes_both_ways),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
