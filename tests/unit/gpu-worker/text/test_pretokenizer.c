#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/text/pretokenizer.h"
#include "gpu-worker/text/utf8.h"

/* Words of the text, joined by '#', which no case uses. */
struct words {
	const char *text;
	char joined[256];
	size_t length, end;
	unsigned stop_after;
};

static enum kv_status add_word(void *context, size_t start, size_t length)
{
	struct words *words = context;
	assert_true(length > 0);
	assert_int_equal(start, words->end);
	assert_true(words->length + length + 2 < sizeof words->joined);
	if (start > 0) words->joined[words->length++] = '#';
	memcpy(words->joined + words->length, words->text + start, length);
	words->length += length;
	words->joined[words->length] = 0;
	words->end = start + length;
	if (words->stop_after > 0 && --words->stop_after == 0) return KV_CANCELLED;
	return KV_OK;
}

static void check_words(const char *name, const char *text, const char *expected)
{
	struct gw_pretokenizer *pretokenizer;
	struct gw_word_matcher *matcher;
	struct words words = {.text = text};
	assert_int_equal(gw_pretokenizer_create(kv_heap(), name, &pretokenizer), KV_OK);
	assert_int_equal(gw_word_matcher_create(kv_heap(), &matcher), KV_OK);
	assert_int_equal(
	    gw_pretokenizer_split(pretokenizer, matcher, text, strlen(text), add_word, &words), KV_OK);
	assert_string_equal(words.joined, expected);
	assert_int_equal(words.end, strlen(text));
	gw_word_matcher_destroy(matcher);
	gw_pretokenizer_destroy(pretokenizer);
}

static void test_smollm(void **state)
{
	(void)state;
	check_words("smollm", "", "");
	check_words("smollm", "Hello, world!", "Hello#,# world#!");
	check_words("smollm", "in 1984!", "in# #1#9#8#4#!");
	check_words("smollm", "a  b\n c  ", "a# # b#\n# c#  ");
	check_words("smollm", "it's IT'S we'll", "it#'s# IT#'#S# we#'ll");
	check_words("smollm", "x \xc2\xbd y", "x# #\xc2\xbd# y");
}

static void test_gpt2(void **state)
{
	(void)state;
	check_words("gpt-2", "in 1984!", "in# 1984#!");
	check_words("gpt-2", "a\n\nb", "a#\n#\n#b");
	check_words("gpt-2", "f(x)==2", "f#(#x#)==#2");
}

static void test_qwen2(void **state)
{
	(void)state;
	check_words("qwen2", "in 1984!", "in# #1#9#8#4#!");
	check_words("qwen2", "IT'S (yes)\n\n x", "IT#'S# (#yes#)\n\n# x");
	check_words("qwen2", "a \n \n  b", "a# \n \n# # b");
	check_words("qwen2", "\tx.y", "\tx#.y");
	/* U+017F is no 's', although a caseless match takes it for one. */
	check_words("qwen2", "it'\xc5\xbfx", "it#'\xc5\xbfx");
}

static void test_llama(void **state)
{
	(void)state;
	check_words("llama-bpe", "in 1984567!", "in# #198#456#7#!");
	check_words("glm4", "a 12345", "a# #123#45");
}

static void test_white_space(void **state)
{
	(void)state;
	/* U+0085 and U+3000 are white space, U+180E and U+200B are not. */
	check_words("gpt-2", "a\xc2\x85\xe3\x80\x80", "a#\xc2\x85\xe3\x80\x80");
	check_words("gpt-2", " \xe1\xa0\x8e \xe2\x80\x8b", " \xe1\xa0\x8e# \xe2\x80\x8b");
}

static void test_stop(void **state)
{
	(void)state;
	struct gw_pretokenizer *pretokenizer;
	struct gw_word_matcher *matcher;
	struct words words = {.text = "one two three", .stop_after = 2};
	assert_int_equal(gw_pretokenizer_create(kv_heap(), "gpt-2", &pretokenizer), KV_OK);
	assert_int_equal(gw_word_matcher_create(kv_heap(), &matcher), KV_OK);
	assert_int_equal(gw_pretokenizer_split(
	                     pretokenizer, matcher, words.text, strlen(words.text), add_word, &words),
	    KV_CANCELLED);
	assert_string_equal(words.joined, "one# two");
	gw_word_matcher_destroy(matcher);
	gw_pretokenizer_destroy(pretokenizer);
}

static void test_names(void **state)
{
	(void)state;
	struct gw_pretokenizer *pretokenizer = NULL;
	assert_int_equal(gw_pretokenizer_create(kv_heap(), "default", &pretokenizer), KV_UNSUPPORTED);
	assert_null(pretokenizer);
	assert_int_equal(gw_pretokenizer_create(kv_heap(), "qwen2", &pretokenizer), KV_OK);
	assert_false(gw_pretokenizer_ignores_merges(pretokenizer));
	gw_pretokenizer_destroy(pretokenizer);
	assert_int_equal(gw_pretokenizer_create(kv_heap(), "llama-bpe", &pretokenizer), KV_OK);
	assert_true(gw_pretokenizer_ignores_merges(pretokenizer));
	gw_pretokenizer_destroy(pretokenizer);
	gw_pretokenizer_destroy(NULL);
	gw_word_matcher_destroy(NULL);
}

static void test_utf8_characters(void **state)
{
	(void)state;
	for (uint32_t codepoint = 0; codepoint <= 0x10ffff; codepoint++) {
		char bytes[4];
		size_t used, length = gw_utf8_encode(codepoint, bytes);
		uint32_t loose;
		int surrogate = codepoint >= 0xd800 && codepoint <= 0xdfff;
		assert_int_equal(gw_utf8_decode_loose(bytes, length, &loose), length);
		assert_int_equal(loose, codepoint);
		assert_int_equal(gw_utf8_valid(bytes, length), !surrogate);
		if (surrogate) continue;
		assert_int_equal(gw_utf8_scan(bytes, length, &used), GW_UTF8_WHOLE);
		assert_int_equal(used, length);
		for (size_t part = 1; part < length; part++) {
			assert_int_equal(gw_utf8_scan(bytes, part, &used), GW_UTF8_PART);
			assert_int_equal(used, part);
			assert_int_equal(gw_utf8_decode_loose(bytes, part, &loose), 0);
		}
	}
}

static void test_utf8_broken(void **state)
{
	(void)state;
	static const struct {
		const char *bytes;
		size_t used;
	} cases[] = {
	    {"\x80", 1},
	    {"\xc0\x80", 1},
	    {"\xc1\xbf", 1},
	    {"\xc3(", 1},
	    {"\xe0\x80\x80", 1},
	    {"\xed\xa0\x80", 1},
	    {"\xe2\x82(", 2},
	    {"\xf0\x80\x80\x80", 1},
	    {"\xf0\x9f\x98(", 3},
	    {"\xf4\x90\x80\x80", 1},
	    {"\xf5\x80\x80\x80", 1},
	    {"\xff", 1},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		size_t used;
		assert_int_equal(
		    gw_utf8_scan(cases[i].bytes, strlen(cases[i].bytes), &used), GW_UTF8_BROKEN);
		assert_int_equal(used, cases[i].used);
		assert_false(gw_utf8_valid(cases[i].bytes, strlen(cases[i].bytes)));
	}
	uint32_t codepoint;
	assert_int_equal(gw_utf8_decode_loose("", 0, &codepoint), 0);
	assert_int_equal(gw_utf8_decode_loose("\xc0\xbc", 2, &codepoint), 2);
	assert_int_equal(codepoint, '<');
	assert_int_equal(gw_utf8_decode_loose("\xf4\x90\x80\x80", 4, &codepoint), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_smollm),
	    cmocka_unit_test(test_gpt2),
	    cmocka_unit_test(test_qwen2),
	    cmocka_unit_test(test_llama),
	    cmocka_unit_test(test_white_space),
	    cmocka_unit_test(test_stop),
	    cmocka_unit_test(test_names),
	    cmocka_unit_test(test_utf8_characters),
	    cmocka_unit_test(test_utf8_broken),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
