#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/text/stream_decoder.h"
#include "gpu-worker/text/utf8.h"

enum { CAPACITY = 1024 };

struct run {
	struct gw_stream_decoder *decoder;
	char seen[CAPACITY + 8]; /* the takes, joined */
	size_t seen_length;
	int stopped;
};

static void start(struct run *run, const char *const *stops, unsigned count)
{
	memset(run, 0, sizeof *run);
	assert_int_equal(
	    gw_stream_decoder_create(kv_heap(), stops, count, CAPACITY, &run->decoder), KV_OK);
}

static void take(struct run *run, int finish)
{
	size_t length, whole;
	const char *text = gw_stream_decoder_take(run->decoder, finish, &length);
	assert_true(gw_utf8_valid(text, length));
	assert_int_equal(text[length], 0);
	memcpy(run->seen + run->seen_length, text, length);
	run->seen_length += length;
	text = gw_stream_decoder_text(run->decoder, &whole);
	assert_int_equal(whole, run->seen_length);
	assert_memory_equal(text, run->seen, whole);
	assert_int_equal(text[whole], 0);
}

static void push(struct run *run, const char *bytes, size_t length)
{
	assert_int_equal(gw_stream_decoder_push(run->decoder, bytes, length, &run->stopped), KV_OK);
	take(run, 0);
}

static void finish(struct run *run, const char *expected, int stopped)
{
	take(run, 1);
	assert_int_equal(run->stopped, stopped);
	assert_string_equal(run->seen, expected);
	gw_stream_decoder_destroy(run->decoder);
}

/* Push a text in three parts, for every way to cut it so, and byte by byte. */
static void check_splits(
    const char *text, const char *const *stops, unsigned count, const char *expected, int stopped)
{
	struct run run;
	size_t length = strlen(text);
	for (size_t first = 0; first <= length; first++) {
		for (size_t second = first; second <= length; second++) {
			start(&run, stops, count);
			push(&run, text, first);
			push(&run, text + first, second - first);
			push(&run, text + second, length - second);
			finish(&run, expected, stopped);
		}
	}
	start(&run, stops, count);
	for (size_t i = 0; i < length; i++) {
		push(&run, text + i, 1);
		/* Nothing is shown that is not part of the answer. */
		assert_true(run.seen_length <= strlen(expected));
		assert_memory_equal(run.seen, expected, run.seen_length);
	}
	finish(&run, expected, stopped);
}

static void test_characters(void **state)
{
	(void)state;
	static const char text[] = "na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80\xe4\xbd\xa0.";
	check_splits("", NULL, 0, "", 0);
	check_splits(text, NULL, 0, text, 0);
}

static void test_broken_characters(void **state)
{
	(void)state;
	check_splits("a\xff"
	             "b",
	    NULL, 0,
	    "a\xef\xbf\xbd"
	    "b",
	    0);
	check_splits("\xe2\x82", NULL, 0, "\xef\xbf\xbd", 0);
	check_splits("\xe2\x82"
	             "A",
	    NULL, 0,
	    "\xef\xbf\xbd"
	    "A",
	    0);
	check_splits("\xf0\x9f\x98\xe2\x82\xac", NULL, 0, "\xef\xbf\xbd\xe2\x82\xac", 0);
	check_splits("\xc0\x80z", NULL, 0, "\xef\xbf\xbd\xef\xbf\xbdz", 0);
	check_splits("\xed\xa0\x80", NULL, 0, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 0);
}

static void test_held_back(void **state)
{
	(void)state;
	static const char *const stops[] = {"\nUser:"};
	struct run run;
	start(&run, stops, 1);
	push(&run, "Hi\nUs", 5);
	assert_string_equal(run.seen, "Hi");
	/* Half a character decides nothing yet. */
	push(&run, "\xe4\xbd", 2);
	assert_string_equal(run.seen, "Hi");
	push(&run, "\xa0\n", 2);
	assert_string_equal(run.seen, "Hi\nUs\xe4\xbd\xa0");
	finish(&run, "Hi\nUs\xe4\xbd\xa0\n", 0);
}

static void test_stops(void **state)
{
	(void)state;
	static const char *const one[] = {"STOP"};
	check_splits("abcSTOPdef", one, 1, "abc", 1);
	check_splits("STOP", one, 1, "", 1);
	check_splits("abSTOxSTSTOP", one, 1, "abSTOxST", 1);
	check_splits("abSTO", one, 1, "abSTO", 0);
	static const char *const bordered[] = {"aab"};
	check_splits("aaaaab", bordered, 1, "aaa", 1);
	static const char *const wide[] = {"\xe2\x82\xac\n", "\xc3\xaf"};
	check_splits("x\xe2\x82\xac\xe2\x82\xac\ny", wide, 2, "x\xe2\x82\xac", 1);
	check_splits("x\xe2\x82\xac\xc3\xafy", wide, 2, "x\xe2\x82\xac", 1);
}

static void test_several_stops(void **state)
{
	(void)state;
	/* The stop text that is complete first ends the answer; of two that end together the longer. */
	static const char *const stops[] = {"cd", "abcd", "bx"};
	check_splits("zabcd", stops, 3, "z", 1);
	check_splits("zabx", stops, 3, "za", 1);
	check_splits("zab cd", stops, 3, "zab ", 1);
	static const char *const nested[] = {"abcde", "bc"};
	check_splits("abcde", nested, 2, "a", 1);
	/* The start of the longer stop text is shown once it cannot become one any more. */
	check_splits("abd", nested, 2, "abd", 0);
}

static void test_after_stop(void **state)
{
	(void)state;
	static const char *const stops[] = {"."};
	struct run run;
	start(&run, stops, 1);
	push(&run, "a.b\xe2", 4);
	assert_true(run.stopped);
	push(&run, "more", 4);
	assert_true(run.stopped);
	finish(&run, "a", 1);
}

static void test_capacity(void **state)
{
	(void)state;
	static const char *const stops[] = {"##"};
	struct gw_stream_decoder *decoder;
	int stopped = 5;
	size_t length;
	assert_int_equal(gw_stream_decoder_create(kv_heap(), stops, 1, 8, &decoder), KV_OK);
	assert_int_equal(gw_stream_decoder_push(decoder, "123456", 6, &stopped), KV_OK);
	stopped = 5;
	assert_int_equal(gw_stream_decoder_push(decoder, "789", 3, &stopped), KV_LIMIT);
	/* One bad byte takes the three of U+FFFD. */
	assert_int_equal(gw_stream_decoder_push(decoder, "\xff", 1, &stopped), KV_LIMIT);
	assert_int_equal(stopped, 5);
	assert_int_equal(gw_stream_decoder_push(decoder, "7#\xf0\x9f", 4, &stopped), KV_OK);
	assert_int_equal(gw_stream_decoder_push(decoder, "8", 1, &stopped), KV_LIMIT);
	assert_string_equal(gw_stream_decoder_take(decoder, 0, &length), "1234567");
	/* A broken end still fits a full text. */
	assert_string_equal(gw_stream_decoder_take(decoder, 1, &length), "#\xef\xbf\xbd");
	assert_string_equal(gw_stream_decoder_text(decoder, &length), "1234567#\xef\xbf\xbd");
	assert_int_equal(gw_stream_decoder_push(decoder, "a", 1, &stopped), KV_LIMIT);
	gw_stream_decoder_destroy(decoder);
	assert_int_equal(gw_stream_decoder_create(kv_heap(), NULL, 0, 0, &decoder), KV_OK);
	assert_int_equal(gw_stream_decoder_push(decoder, "", 0, &stopped), KV_OK);
	assert_int_equal(gw_stream_decoder_push(decoder, "a", 1, &stopped), KV_LIMIT);
	gw_stream_decoder_destroy(decoder);
	gw_stream_decoder_destroy(NULL);
}

static void test_refused_stops(void **state)
{
	(void)state;
	char longest[GW_MAX_STOP_BYTES + 2];
	const char *stops[GW_MAX_STOPS + 1];
	struct gw_stream_decoder *decoder = NULL;
	memset(longest, 'x', sizeof longest);
	longest[sizeof longest - 1] = 0;
	for (unsigned i = 0; i <= GW_MAX_STOPS; i++)
		stops[i] = longest + 1;
	assert_int_equal(
	    gw_stream_decoder_create(kv_heap(), stops, GW_MAX_STOPS + 1, 1, &decoder), KV_INVALID);
	static const char *const empty[] = {""}, *const broken[] = {"\xff"}, *const missing[] = {NULL};
	const char *const too_long[] = {longest};
	assert_int_equal(gw_stream_decoder_create(kv_heap(), empty, 1, 1, &decoder), KV_INVALID);
	assert_int_equal(gw_stream_decoder_create(kv_heap(), broken, 1, 1, &decoder), KV_INVALID);
	assert_int_equal(gw_stream_decoder_create(kv_heap(), missing, 1, 1, &decoder), KV_INVALID);
	assert_int_equal(gw_stream_decoder_create(kv_heap(), too_long, 1, 1, &decoder), KV_INVALID);
	assert_int_equal(gw_stream_decoder_create(kv_heap(), NULL, 0, SIZE_MAX, &decoder), KV_INVALID);
	assert_null(decoder);
	/* The longest of them work. */
	int stopped = 0;
	assert_int_equal(
	    gw_stream_decoder_create(kv_heap(), stops, GW_MAX_STOPS, CAPACITY, &decoder), KV_OK);
	assert_int_equal(
	    gw_stream_decoder_push(decoder, longest + 1, GW_MAX_STOP_BYTES, &stopped), KV_OK);
	assert_true(stopped);
	gw_stream_decoder_destroy(decoder);
}

static void test_without_memory(void **state)
{
	(void)state;
	struct kv_allocator *allocator = kv_allocator_create("walk", 0);
	static const char *const stops[] = {"x"};
	for (uint64_t n = 1; n <= 3; n++) {
		struct gw_stream_decoder *decoder = NULL;
		kv_allocator_fail_at(allocator, n);
		assert_int_equal(gw_stream_decoder_create(allocator, stops, 1, 10, &decoder), KV_NO_MEMORY);
		assert_null(decoder);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	}
	kv_allocator_fail_at(allocator, 0);
	/* Once made it allocates nothing. */
	struct gw_stream_decoder *decoder;
	size_t length;
	int stopped;
	assert_int_equal(gw_stream_decoder_create(allocator, stops, 1, 10, &decoder), KV_OK);
	uint64_t allocations = kv_allocator_stats(allocator).allocations;
	assert_int_equal(gw_stream_decoder_push(decoder, "ab\xff", 3, &stopped), KV_OK);
	(void)gw_stream_decoder_take(decoder, 1, &length);
	assert_int_equal(kv_allocator_stats(allocator).allocations, allocations);
	gw_stream_decoder_destroy(decoder);
	kv_allocator_destroy(allocator);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_characters),
	    cmocka_unit_test(test_broken_characters),
	    cmocka_unit_test(test_held_back),
	    cmocka_unit_test(test_stops),
	    cmocka_unit_test(test_several_stops),
	    cmocka_unit_test(test_after_stop),
	    cmocka_unit_test(test_capacity),
	    cmocka_unit_test(test_refused_stops),
	    cmocka_unit_test(test_without_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
