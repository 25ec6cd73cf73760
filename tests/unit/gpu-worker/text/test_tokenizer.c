#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/text/byte_alphabet.h"
#include "tests/unit/gpu-worker/text/small_vocabulary.h"

struct fixture {
	struct kv_allocator *allocator;
	struct gw_tokenizer *smollm, *llama;
};

static int set_up(void **state)
{
	static struct fixture fixture;
	fixture.allocator = kv_allocator_create("test", 0);
	fixture.smollm = small_tokenizer(fixture.allocator, "smollm");
	fixture.llama = small_tokenizer(fixture.allocator, "llama-bpe");
	*state = &fixture;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *fixture = *state;
	gw_tokenizer_destroy(fixture->smollm);
	gw_tokenizer_destroy(fixture->llama);
	int leaked = kv_allocator_stats(fixture->allocator).blocks != 0;
	kv_allocator_destroy(fixture->allocator);
	return leaked;
}

static void check_bytes(const struct gw_tokenizer *tokenizer, const char *text, size_t length,
    int parse, const int32_t *expected, size_t expected_count)
{
	int32_t *ids;
	uint32_t count;
	assert_int_equal(
	    gw_tokenizer_encode(tokenizer, kv_heap(), text, length, parse, 0, &ids, &count), KV_OK);
	assert_int_equal(count, expected_count);
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(ids[i], expected[i]);
	kv_free(kv_heap(), ids);
}

#define CHECK(tokenizer, text, parse, ...)                                                         \
	do {                                                                                           \
		const int32_t check_ids[] = {__VA_ARGS__};                                                 \
		check_bytes(tokenizer, text, sizeof(text) - 1, parse, check_ids,                           \
		    sizeof check_ids / sizeof check_ids[0]);                                               \
	} while (0)

static void test_merges(void **state)
{
	const struct fixture *fixture = *state;
	CHECK(fixture->smollm, "hello", 0, SMALL_HELLO);
	CHECK(fixture->smollm, "hell", 0, SMALL_HELL);
	/* "l l" ranks before "h e": the pair in the middle goes first, then both halves meet. */
	CHECK(fixture->smollm, "helll", 0, SMALL_HELL, 'l');
	CHECK(fixture->smollm, "hhello", 0, 'h', SMALL_HELLO);
	CHECK(fixture->smollm, "hello w", 0, SMALL_HELLO, SMALL_SPACE_W);
	/* Of equal pairs the leftmost goes first. */
	CHECK(fixture->smollm, "aaa", 0, SMALL_AA, 'a');
	CHECK(fixture->smollm, "aaaaaaa", 0, SMALL_AAAA, SMALL_AA, 'a');
	/* A merge may go over a text that is no token; left alone, that text is its bytes. */
	CHECK(fixture->smollm, "xyz", 0, SMALL_XYZ);
	CHECK(fixture->smollm, "xya", 0, 'x', 'y', 'a');
}

static void test_words_bound_merges(void **state)
{
	const struct fixture *fixture = *state;
	CHECK(fixture->smollm, "he1llo", 0, SMALL_HE, '1', SMALL_LL, 'o');
	CHECK(fixture->smollm, "a'a", 0, 'a', '\'', 'a');
	CHECK(fixture->smollm, "aa\naa", 0, SMALL_AA, '\n', SMALL_AA);
	check_bytes(fixture->smollm, "", 0, 0, NULL, 0);
}

static void test_whole_words_before_merges(void **state)
{
	const struct fixture *fixture = *state;
	CHECK(fixture->smollm, "qux", 0, 'q', 'u', 'x');
	CHECK(fixture->llama, "qux", 0, SMALL_QUX);
	/* A control token is no word, even where its text is one. */
	CHECK(fixture->llama, "EOT", 0, 'E', 'O', 'T');
	CHECK(fixture->llama, "EOT", GW_PARSE_SPECIAL, SMALL_WORD);
}

static void test_special(void **state)
{
	const struct fixture *fixture = *state;
	CHECK(
	    fixture->smollm, "<|im_start|>a<|im_end|>", GW_PARSE_SPECIAL, SMALL_START, 'a', SMALL_END);
	/* The longest wins, and a shorter one that starts there wins over none. */
	CHECK(fixture->smollm, "<|im_sta", GW_PARSE_SPECIAL, SMALL_SHORT, '_', 's', 't', 'a');
	CHECK(fixture->smollm, "<<|im", GW_PARSE_SPECIAL, '<', SMALL_SHORT);
	CHECK(fixture->smollm, "<unk>", GW_PARSE_SPECIAL, SMALL_UNKNOWN);
	CHECK(fixture->smollm, "</s>", GW_PARSE_SPECIAL, SMALL_CLOSE);
	CHECK(fixture->smollm, "[PAD]", GW_PARSE_SPECIAL, '[', 'P', 'A', 'D', ']');
	CHECK(fixture->smollm, "</s>", GW_PARSE_USER_DEFINED, '<', '/', 's', '>');
	CHECK(fixture->smollm, "<|im", GW_PARSE_USER_DEFINED, '<', '|', 'i', 'm');
	CHECK(fixture->smollm, "<tool>", GW_PARSE_USER_DEFINED, SMALL_TOOL);
	CHECK(fixture->smollm, "<tool>", GW_PARSE_NOTHING, '<', 't', 'o', 'o', 'l', '>');
}

static void test_invalid_utf8(void **state)
{
	const struct fixture *fixture = *state;
	CHECK(fixture->smollm, "a\xff", 0, 'a', 0xef, 0xbf, 0xbd);
	CHECK(fixture->smollm, "\xe2\x82 a", 0, 0xef, 0xbf, 0xbd, 0xef, 0xbf, 0xbd, ' ', 'a');
	CHECK(fixture->smollm, "\xed\xa0\x80", 0, 0xed, 0xa0, 0x80);
	CHECK(fixture->smollm, "\xf7\xbf\xbf\xbf", 0, 0xef, 0xbf, 0xbd, 0xef, 0xbf, 0xbd, 0xef, 0xbf,
	    0xbd, 0xef, 0xbf, 0xbd);
	/* An overlong '<' becomes one, but too late to start a special token. */
	CHECK(fixture->smollm, "\xc0\xbc|im_end|>", GW_PARSE_SPECIAL, '<', '|', 'i', 'm', '_', 'e', 'n',
	    'd', '|', '>');
	CHECK(fixture->smollm, "\xff<|im_end|>", GW_PARSE_SPECIAL, 0xef, 0xbf, 0xbd, SMALL_END);
}

/* A special token may be half a character: what is left of it is no valid text either. */
static void test_half_characters(void **state)
{
	struct gw_text_slice tokens[SMALL_COUNT];
	struct gw_vocabulary vocabulary;
	struct gw_tokenizer *tokenizer;

	(void)state;
	small_vocabulary(&vocabulary);
	memcpy(tokens, small_tokens(), sizeof tokens);
	tokens[SMALL_TOOL].bytes = "\xa0";
	tokens[SMALL_TOOL].length = 1;
	vocabulary.tokens = tokens;
	vocabulary.pre = "llama-bpe";
	assert_int_equal(gw_tokenizer_create(kv_heap(), &vocabulary, &tokenizer), KV_OK);
	CHECK(tokenizer, "1\xc4\xa0", GW_PARSE_USER_DEFINED, '1', 0xef, 0xbf, 0xbd, SMALL_TOOL);
	CHECK(tokenizer, "\xe2\xa0\x80q", GW_PARSE_USER_DEFINED, 0xef, 0xbf, 0xbd, SMALL_TOOL, 0xef,
	    0xbf, 0xbd, 'q');
	CHECK(tokenizer, "1\xc4\xa0", GW_PARSE_NOTHING, '1', 0xc4, 0xa0);
	gw_tokenizer_destroy(tokenizer);
}

static void test_bos(void **state)
{
	const struct fixture *fixture = *state;
	struct gw_vocabulary vocabulary;
	struct gw_tokenizer *tokenizer;
	int32_t *ids;
	uint32_t count;
	(void)fixture;
	small_vocabulary(&vocabulary);
	vocabulary.add_bos = 1;
	assert_int_equal(gw_tokenizer_create(kv_heap(), &vocabulary, &tokenizer), KV_OK);
	assert_int_equal(gw_tokenizer_encode(tokenizer, kv_heap(), "a", 1, 0, 1, &ids, &count), KV_OK);
	assert_int_equal(count, 2);
	assert_int_equal(ids[0], SMALL_START);
	kv_free(kv_heap(), ids);
	CHECK(tokenizer, "a", 0, 'a');
	gw_tokenizer_destroy(tokenizer);

	assert_int_equal(
	    gw_tokenizer_encode(fixture->smollm, kv_heap(), "a", 1, 0, 1, &ids, &count), KV_OK);
	assert_int_equal(count, 1);
	kv_free(kv_heap(), ids);
}

static void test_pieces(void **state)
{
	const struct fixture *fixture = *state;
	struct gw_text_slice piece;
	for (int32_t byte = 0; byte < 256; byte++) {
		assert_int_equal(gw_tokenizer_piece(fixture->smollm, byte, 0, &piece), KV_OK);
		assert_int_equal(piece.length, 1);
		assert_int_equal((unsigned char)piece.bytes[0], byte);
	}
	assert_int_equal(gw_tokenizer_piece(fixture->smollm, SMALL_SPACE_W, 0, &piece), KV_OK);
	assert_int_equal(piece.length, 2);
	assert_memory_equal(piece.bytes, " w", 2);
	assert_int_equal(gw_tokenizer_piece(fixture->smollm, -1, 0, &piece), KV_INVALID);
	assert_int_equal(gw_tokenizer_piece(fixture->smollm, SMALL_COUNT, 0, &piece), KV_INVALID);
	assert_int_equal(piece.length, 2);
}

static void test_decode(void **state)
{
	const struct fixture *fixture = *state;
	const int32_t ids[] = {SMALL_START, SMALL_HELLO, SMALL_TOOL, SMALL_CLOSE, SMALL_UNUSED,
	    SMALL_UNKNOWN, 0, SMALL_END};
	static const char shown[] = "<|im_start|>hello<tool></s><unk>\0<|im_end|>";
	static const char hidden[] = "hello<tool>\0";
	char *text;
	size_t length;
	assert_int_equal(
	    gw_tokenizer_decode(fixture->smollm, kv_heap(), ids, 8, 1, &text, &length), KV_OK);
	assert_int_equal(length, sizeof shown - 1);
	assert_memory_equal(text, shown, sizeof shown);
	kv_free(kv_heap(), text);
	assert_int_equal(
	    gw_tokenizer_decode(fixture->smollm, kv_heap(), ids, 8, 0, &text, &length), KV_OK);
	assert_int_equal(length, sizeof hidden - 1);
	assert_memory_equal(text, hidden, sizeof hidden);
	kv_free(kv_heap(), text);
	const int32_t wrong[] = {1, SMALL_COUNT};
	assert_int_equal(
	    gw_tokenizer_decode(fixture->smollm, kv_heap(), wrong, 2, 1, &text, &length), KV_INVALID);
}

static void test_ends(void **state)
{
	const struct fixture *fixture = *state;
	for (int32_t id = -1; id <= SMALL_COUNT; id++)
		assert_int_equal(
		    gw_tokenizer_is_end(fixture->smollm, id), id == SMALL_END || id == SMALL_CLOSE);
	assert_int_equal(gw_tokenizer_eos(fixture->smollm), SMALL_END);
	assert_int_equal(gw_tokenizer_vocabulary(fixture->smollm), SMALL_COUNT);
}

/* One word of many bytes: the scratch grows, and the heap keeps it fast. */
static void test_long_word(void **state)
{
	const struct fixture *fixture = *state;
	enum { BYTES = 400003 };
	char *text = kv_alloc(kv_heap(), BYTES);
	int32_t *ids;
	uint32_t count;
	memset(text, 'a', BYTES);
	assert_int_equal(
	    gw_tokenizer_encode(fixture->smollm, kv_heap(), text, BYTES, 0, 0, &ids, &count), KV_OK);
	assert_int_equal(count, BYTES / 4 + 2);
	for (uint32_t i = 0; i < BYTES / 4; i++)
		assert_int_equal(ids[i], SMALL_AAAA);
	assert_int_equal(ids[count - 2], SMALL_AA);
	assert_int_equal(ids[count - 1], 'a');
	kv_free(kv_heap(), ids);
	kv_free(kv_heap(), text);
}

static void test_missing_bytes(void **state)
{
	(void)state;
	/* A vocabulary of one byte, and a merge of two texts that are no tokens. */
	const struct gw_text_slice tokens[] = {{"a", 1}}, merges[] = {{"b c", 3}, {"a bc", 4}};
	struct gw_vocabulary vocabulary;
	struct gw_tokenizer *tokenizer;
	small_vocabulary(&vocabulary);
	vocabulary.tokens = tokens;
	vocabulary.count = 1;
	vocabulary.types = NULL;
	vocabulary.merges = merges;
	vocabulary.merge_count = 2;
	vocabulary.bos = vocabulary.eos = -1;
	assert_int_equal(gw_tokenizer_create(kv_heap(), &vocabulary, &tokenizer), KV_OK);
	CHECK(tokenizer, "abc", 0, 0);
	CHECK(tokenizer, "dad", 0, 0);
	gw_tokenizer_destroy(tokenizer);
}

static void check_refused(const struct gw_vocabulary *vocabulary, enum kv_status expected)
{
	struct gw_tokenizer *tokenizer = NULL;
	kv_error_clear();
	assert_int_equal(gw_tokenizer_create(kv_heap(), vocabulary, &tokenizer), expected);
	assert_null(tokenizer);
	assert_true(strlen(kv_error_message()) > 10);
}

static void test_refused_vocabularies(void **state)
{
	(void)state;
	const struct gw_text_slice merges[] = {{"ab", 2}, {" ab", 3}, {"ab ", 3}, {"", 0}, {" ", 1}};
	struct gw_vocabulary good, bad;
	int32_t types[SMALL_COUNT];
	small_vocabulary(&good);
	bad = good, bad.model = "llama", check_refused(&bad, KV_UNSUPPORTED);
	bad = good, bad.model = NULL, check_refused(&bad, KV_UNSUPPORTED);
	bad = good, bad.pre = "nobody", check_refused(&bad, KV_UNSUPPORTED);
	bad = good, bad.pre = NULL, check_refused(&bad, KV_UNSUPPORTED);
	bad = good, bad.bos = SMALL_COUNT, check_refused(&bad, KV_CORRUPT);
	bad = good, bad.bos = -2, check_refused(&bad, KV_CORRUPT);
	bad = good, bad.eos = SMALL_COUNT, check_refused(&bad, KV_CORRUPT);
	bad = good, bad.count = 0, check_refused(&bad, KV_CORRUPT);
	bad = good, bad.count = UINT32_MAX, check_refused(&bad, KV_CORRUPT);
	bad = good, bad.merge_count = UINT32_MAX, check_refused(&bad, KV_CORRUPT);
	bad = good, bad.merge_count = 1;
	for (size_t i = 0; i < sizeof merges / sizeof merges[0]; i++) {
		bad.merges = merges + i;
		check_refused(&bad, KV_CORRUPT);
	}
	memcpy(types, small_types(), sizeof types);
	bad = good, bad.types = types;
	types[3] = 7;
	check_refused(&bad, KV_CORRUPT);
	types[3] = 0;
	check_refused(&bad, KV_CORRUPT);
}

static void test_text_too_long(void **state)
{
	const struct fixture *fixture = *state;
	int32_t *ids = NULL;
	uint32_t count = 7;
	assert_int_equal(
	    gw_tokenizer_encode(fixture->smollm, kv_heap(), "", (size_t)1 << 40, 0, 0, &ids, &count),
	    KV_LIMIT);
	assert_null(ids);
	assert_int_equal(count, 7);
}

/* Each allocation of creation fails once: nothing leaks, and what works without it still works. */
static void test_create_without_memory(void **state)
{
	(void)state;
	struct kv_allocator *allocator = kv_allocator_create("walk", 0);
	struct gw_vocabulary vocabulary;
	small_vocabulary(&vocabulary);
	for (uint64_t n = 1;; n++) {
		struct gw_tokenizer *tokenizer = NULL;
		uint64_t failures = kv_allocator_stats(allocator).failures;
		kv_allocator_fail_at(allocator, n);
		enum kv_status status = gw_tokenizer_create(allocator, &vocabulary, &tokenizer);
		kv_allocator_fail_at(allocator, 0);
		if (status == KV_OK) {
			CHECK(tokenizer, "hello", 0, SMALL_HELLO);
			gw_tokenizer_destroy(tokenizer);
		} else {
			assert_int_equal(status, KV_NO_MEMORY);
			assert_null(tokenizer);
		}
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
		if (kv_allocator_stats(allocator).failures == failures) break;
		assert_true(n < 1000);
	}
	kv_allocator_destroy(allocator);
}

static void walk_encode(const struct gw_tokenizer *tokenizer, const char *text, size_t length)
{
	struct kv_allocator *allocator = kv_allocator_create("walk", 0);
	int refused = 0;
	for (uint64_t n = 1;; n++) {
		int32_t *ids = NULL;
		uint32_t count = 77;
		uint64_t failures = kv_allocator_stats(allocator).failures;
		kv_allocator_fail_at(allocator, n);
		enum kv_status status =
		    gw_tokenizer_encode(tokenizer, allocator, text, length, 1, 0, &ids, &count);
		kv_allocator_fail_at(allocator, 0);
		if (status != KV_OK) {
			assert_int_equal(status, KV_NO_MEMORY);
			assert_null(ids);
			assert_int_equal(count, 77);
			refused++;
		}
		kv_free(allocator, ids);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
		if (kv_allocator_stats(allocator).failures == failures) break;
		assert_true(n < 1000);
	}
	assert_true(refused > 3);
	kv_allocator_destroy(allocator);
}

static void test_encode_without_memory(void **state)
{
	const struct fixture *fixture = *state;
	char text[600];
	memset(text, 'a', sizeof text);
	memcpy(text, "hello ", 6);
	walk_encode(fixture->smollm, text, sizeof text);
	text[3] = (char)0xff;
	walk_encode(fixture->smollm, text, sizeof text);
}

static void test_decode_without_memory(void **state)
{
	const struct fixture *fixture = *state;
	const int32_t id = SMALL_HELLO;
	char *text = NULL;
	size_t length = 5;
	kv_allocator_fail_at(fixture->allocator, 1);
	assert_int_equal(
	    gw_tokenizer_decode(fixture->smollm, fixture->allocator, &id, 1, 0, &text, &length),
	    KV_NO_MEMORY);
	assert_null(text);
	assert_int_equal(length, 5);
}

static const char THREAD_TEXT[] = "hello w <|im_start|> aaaa 12 xyz, it's \xe4\xbd\xa0\xe5\xa5\xbd";

static void *encode_often(void *context)
{
	const struct fixture *fixture = context;
	int32_t *first, *ids;
	uint32_t first_count, count;
	intptr_t wrong = gw_tokenizer_encode(fixture->smollm, fixture->allocator, THREAD_TEXT,
	    sizeof THREAD_TEXT - 1, 1, 0, &first, &first_count);
	for (int i = 0; i < 200 && !wrong; i++) {
		wrong = gw_tokenizer_encode(fixture->smollm, fixture->allocator, THREAD_TEXT,
		    sizeof THREAD_TEXT - 1, 1, 0, &ids, &count);
		if (wrong) break;
		wrong = count != first_count || memcmp(ids, first, count * sizeof *ids) != 0;
		kv_free(fixture->allocator, ids);
	}
	kv_free(fixture->allocator, first);
	return (void *)wrong; // NOLINT: a flag, not an address
}

static void test_threads(void **state)
{
	pthread_t threads[4];
	void *wrong;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, encode_often, *state), 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(threads[i], &wrong), 0);
		assert_null(wrong);
	}
}

static void test_byte_alphabet(void **state)
{
	(void)state;
	char out[16];
	size_t length;
	assert_int_equal(gw_byte_letter('A'), 'A');
	assert_int_equal(gw_byte_letter(' '), 0x120);
	assert_int_equal(gw_byte_letter('\n'), 0x10a);
	assert_int_equal(gw_byte_letter(0xad), 0x143);
	assert_int_equal(gw_byte_alphabet_decode("\xc4\xa0"
	                                         "a\xc3\xa9",
	                     5, out, &length),
	    1);
	assert_int_equal(length, 3);
	assert_memory_equal(out, " a\xe9", 3);
	/* A space, a letter after the last one, and half a letter are none of the alphabet. */
	assert_int_equal(gw_byte_alphabet_decode(" ", 1, out, &length), 0);
	assert_int_equal(gw_byte_alphabet_decode("\xc5\x84", 2, out, &length), 0);
	assert_int_equal(gw_byte_alphabet_decode("\xc4", 1, out, &length), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_byte_alphabet),
	    cmocka_unit_test(test_merges),
	    cmocka_unit_test(test_words_bound_merges),
	    cmocka_unit_test(test_whole_words_before_merges),
	    cmocka_unit_test(test_special),
	    cmocka_unit_test(test_invalid_utf8),
	    cmocka_unit_test(test_half_characters),
	    cmocka_unit_test(test_bos),
	    cmocka_unit_test(test_pieces),
	    cmocka_unit_test(test_decode),
	    cmocka_unit_test(test_ends),
	    cmocka_unit_test(test_long_word),
	    cmocka_unit_test(test_missing_bytes),
	    cmocka_unit_test(test_refused_vocabularies),
	    cmocka_unit_test(test_text_too_long),
	    cmocka_unit_test(test_create_without_memory),
	    cmocka_unit_test(test_encode_without_memory),
	    cmocka_unit_test(test_decode_without_memory),
	    cmocka_unit_test(test_threads),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
