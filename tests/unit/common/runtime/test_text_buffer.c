#include "common/runtime/text_buffer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void text_grows_to_its_limit(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	struct kv_text_buffer text;

	(void)state;
	kv_text_init(&text, allocator, 1000);
	assert_string_equal(kv_text(&text), "");
	for (int i = 0; i < 99; i++)
		kv_text_printf(&text, "%010d", i);
	kv_text_repeat(&text, 'x', 10);
	assert_int_equal(text.length, 1000);
	assert_int_equal(kv_text_status(&text), KV_OK);
	assert_memory_equal(kv_text(&text) + 980, "0000000098xxxxxxxxxx", 21);
	kv_text_put(&text, "y");
	assert_int_equal(kv_text_status(&text), KV_LIMIT);
	/* The status stays, and so does the text. */
	kv_text_append(&text, "", 0);
	assert_int_equal(kv_text_status(&text), KV_LIMIT);
	assert_int_equal(strlen(kv_text(&text)), 1000);
	kv_text_reset(&text);
	assert_string_equal(kv_text(&text), "");
	assert_int_equal(kv_text_status(&text), KV_OK);
	kv_text_put(&text, "again");
	assert_string_equal(kv_text(&text), "again");
	kv_text_deinit(&text);
	kv_allocator_destroy(allocator);
}

static void long_formats_are_whole(void **state)
{
	struct kv_text_buffer text;
	char words[2000];

	(void)state;
	memset(words, 'w', sizeof words - 1);
	words[sizeof words - 1] = '\0';
	kv_text_init(&text, kv_heap(), SIZE_MAX);
	kv_text_printf(&text, "<%s>", words);
	assert_int_equal(text.length, 2001);
	assert_int_equal(kv_text(&text)[2000], '>');
	kv_text_deinit(&text);
	kv_text_init(&text, kv_heap(), 2000);
	kv_text_printf(&text, "<%s>", words);
	assert_int_equal(kv_text_status(&text), KV_LIMIT);
	assert_string_equal(kv_text(&text), "");
	kv_text_deinit(&text);
}

static void memory_failure_is_kept(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	struct kv_text_buffer text;

	(void)state;
	kv_text_init(&text, allocator, 100000);
	kv_allocator_fail_at(allocator, 1);
	kv_text_put(&text, "a");
	kv_text_put(&text, "b");
	assert_int_equal(kv_text_status(&text), KV_NO_MEMORY);
	assert_string_equal(kv_text(&text), "");
	kv_text_reset(&text);
	kv_text_put(&text, "c");
	kv_allocator_fail_at(allocator, 1);
	kv_text_repeat(&text, 'd', 5000);
	assert_int_equal(kv_text_status(&text), KV_NO_MEMORY);
	assert_string_equal(kv_text(&text), "c");
	kv_text_deinit(&text);
	kv_allocator_destroy(allocator);
}

static void json_strings_are_escaped(void **state)
{
	static const struct {
		const char *from;
		const char *to;
	} cases[] = {
	    {"plain", "\"plain\""},
	    {"a\"b\\c/\n\t\r\b\f", "\"a\\\"b\\\\c/\\n\\t\\r\\b\\f\""},
	    {"\x01\x1f\x7f", "\"\\u0001\\u001f\\u007f\""},
	    {"h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\"h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\""},
	    /* A lone continuation, an overlong slash, a surrogate, one beyond U+10FFFF, a cut end. */
	    {"\x80", "\"\xef\xbf\xbd\""},
	    {"\xc0\xaf", "\"\xef\xbf\xbd\xef\xbf\xbd\""},
	    {"\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
	    {"\xf4\x90\x80\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
	    {"a\xe2\x82", "\"a\xef\xbf\xbd\xef\xbf\xbd\""},
	};
	struct kv_text_buffer text;

	(void)state;
	kv_text_init(&text, kv_heap(), 1000);
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		kv_text_reset(&text);
		kv_text_put_json(&text, cases[i].from);
		assert_string_equal(kv_text(&text), cases[i].to);
	}
	kv_text_deinit(&text);
}

static void numbers_are_short_and_exact(void **state)
{
	static const double values[] = {0.1, 1.0 / 3.0, 1e300, -2.5e-308, 123456789.123, 5e-324};
	struct kv_text_buffer text;

	(void)state;
	kv_text_init(&text, kv_heap(), 1000);
	for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
		kv_text_reset(&text);
		kv_text_put_double(&text, values[i], "null");
		assert_true(strtod(kv_text(&text), NULL) == values[i]);
	}
	kv_text_reset(&text);
	kv_text_put_double(&text, 0.1, "null");
	kv_text_put(&text, " ");
	kv_text_put_double(&text, (double)NAN, "null");
	kv_text_put(&text, " ");
	kv_text_put_double(&text, -(double)INFINITY, "NaN");
	kv_text_put(&text, " ");
	kv_text_put_double(&text, 141368320, "null");
	assert_string_equal(kv_text(&text), "0.1 null NaN 141368320");
	kv_text_deinit(&text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(text_grows_to_its_limit),
	    cmocka_unit_test(long_formats_are_whole),
	    cmocka_unit_test(memory_failure_is_kept),
	    cmocka_unit_test(json_strings_are_escaped),
	    cmocka_unit_test(numbers_are_short_and_exact),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
