#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/text/chat_template.h"
#include "tests/unit/gpu-worker/text/small_vocabulary.h"

static enum gw_chat_format detect(const char *text)
{
	return gw_chat_detect(text, text ? strlen(text) : 0);
}

static void test_detect(void **state)
{
	(void)state;
	static const char turns[] = "{{'<|im_start|>' + message['role'] + '<|im_end|>'}}";
	char text[400];
	assert_int_equal(detect(NULL), GW_CHAT_UNKNOWN);
	assert_int_equal(detect(""), GW_CHAT_UNKNOWN);
	assert_int_equal(detect("[INST] {{ content }} [/INST]"), GW_CHAT_UNKNOWN);
	assert_int_equal(detect(turns), GW_CHAT_CHATML);
	/* Cut short, the second marker is not there. */
	assert_int_equal(gw_chat_detect(turns, sizeof turns - 6), GW_CHAT_UNKNOWN);
	snprintf(text, sizeof text, "%s%s", turns,
	    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face");
	assert_int_equal(detect(text), GW_CHAT_CHATML_SMOLLM);
	snprintf(text, sizeof text, "%s%s", turns,
	    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
	assert_int_equal(detect(text), GW_CHAT_CHATML_QWEN);
	/* Another default message, or markers that are not rendered here, are no guess. */
	snprintf(text, sizeof text, "%s<|im_start|>system\nYou are a pirate.", turns);
	assert_int_equal(detect(text), GW_CHAT_UNKNOWN);
	snprintf(text, sizeof text, "%s<think>", turns);
	assert_int_equal(detect(text), GW_CHAT_UNKNOWN);
	snprintf(text, sizeof text, "%s<|im_sep|>", turns);
	assert_int_equal(detect(text), GW_CHAT_UNKNOWN);
}

static void check_render(enum gw_chat_format format, const struct gw_chat_message *messages,
    unsigned count, int prompt, const char *expected)
{
	char *text;
	size_t length;
	assert_int_equal(
	    gw_chat_render(format, kv_heap(), messages, count, prompt, &text, &length), KV_OK);
	assert_int_equal(length, strlen(expected));
	assert_string_equal(text, expected);
	kv_free(kv_heap(), text);
}

static void test_render(void **state)
{
	(void)state;
	static const struct gw_chat_message talk[] = {{"system", "Be brief."}, {"user", "Hi"},
	    {"assistant", "Ho"}, {"system", "Now sing."}, {"user", ""}};
	static const char rendered[] = "<|im_start|>system\nBe brief.<|im_end|>\n"
	                               "<|im_start|>user\nHi<|im_end|>\n"
	                               "<|im_start|>assistant\nHo<|im_end|>\n"
	                               "<|im_start|>system\nNow sing.<|im_end|>\n"
	                               "<|im_start|>user\n<|im_end|>\n";
	check_render(GW_CHAT_CHATML, talk, 5, 0, rendered);
	check_render(GW_CHAT_CHATML_SMOLLM, talk, 5, 0, rendered);
	check_render(GW_CHAT_CHATML_QWEN, talk, 5, 0, rendered);
	check_render(
	    GW_CHAT_CHATML, talk + 1, 1, 1, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
	check_render(GW_CHAT_CHATML_SMOLLM, talk + 1, 1, 1,
	    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
	    "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
	check_render(GW_CHAT_CHATML_QWEN, talk + 1, 1, 0,
	    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
	    "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
}

static void check_refused(enum gw_chat_format format, const struct gw_chat_message *messages,
    unsigned count, enum kv_status expected)
{
	char *text = NULL;
	size_t length;
	kv_error_clear();
	assert_int_equal(
	    gw_chat_render(format, kv_heap(), messages, count, 0, &text, &length), expected);
	assert_null(text);
	assert_true(strlen(kv_error_message()) > 10);
}

static void test_refused(void **state)
{
	(void)state;
	static const struct gw_chat_message good[] = {{"user", "Hi"}}, empty[] = {{"user", NULL}};
	static const struct gw_chat_message no_role[] = {{NULL, "Hi"}};
	static const struct gw_chat_message marker[] = {{"user", "Hi"}, {"user<|im_end|>", "Hi"}};
	check_refused(GW_CHAT_UNKNOWN, good, 1, KV_UNSUPPORTED);
	check_refused(GW_CHAT_CHATML, good, 0, KV_INVALID);
	check_refused(GW_CHAT_CHATML, empty, 1, KV_INVALID);
	check_refused(GW_CHAT_CHATML, no_role, 1, KV_INVALID);
	check_refused(GW_CHAT_CHATML, marker, 2, KV_INVALID);
}

static void encode(const struct gw_tokenizer *tokenizer, const struct gw_chat_message *messages,
    unsigned count, int32_t **ids, uint32_t *id_count)
{
	assert_int_equal(
	    gw_chat_encode(GW_CHAT_CHATML, tokenizer, kv_heap(), messages, count, 1, ids, id_count),
	    KV_OK);
}

static void test_encode(void **state)
{
	(void)state;
	struct gw_tokenizer *tokenizer = small_tokenizer(kv_heap(), "qwen2");
	/* The first message starts with a line feed, which joins that of the template. */
	static const struct gw_chat_message talk[] = {{"user", "\nhello"}, {"assistant", "hell"}};
	int32_t *ids, *plain;
	uint32_t count, plain_count;
	char *text;
	size_t length;
	encode(tokenizer, talk, 2, &ids, &count);
	assert_int_equal(gw_chat_render(GW_CHAT_CHATML, kv_heap(), talk, 2, 1, &text, &length), KV_OK);
	assert_int_equal(gw_tokenizer_encode(tokenizer, kv_heap(), text, length, GW_PARSE_SPECIAL, 1,
	                     &plain, &plain_count),
	    KV_OK);
	assert_int_equal(count, plain_count);
	assert_memory_equal(ids, plain, count * sizeof *ids);
	assert_int_equal(ids[0], SMALL_START);
	kv_free(kv_heap(), plain);
	kv_free(kv_heap(), text);
	kv_free(kv_heap(), ids);
	gw_tokenizer_destroy(tokenizer);
}

/* Whatever a message spells, the only tokens beyond plain text are the template's own. */
static void test_content_is_never_special(void **state)
{
	(void)state;
	struct gw_tokenizer *tokenizer = small_tokenizer(kv_heap(), "llama-bpe");
	for (int32_t id = SMALL_START; id < SMALL_COUNT; id++) {
		char content[64];
		const struct gw_text_slice *text = &small_tokens()[id];
		const struct gw_chat_message message = {"user", content};
		int32_t *ids;
		uint32_t count, starts = 0, ends = 0;
		snprintf(content, sizeof content, "%.*s %.*s", (int)text->length, text->bytes,
		    (int)text->length, text->bytes);
		encode(tokenizer, &message, 1, &ids, &count);
		for (uint32_t i = 0; i < count; i++) {
			starts += ids[i] == SMALL_START;
			ends += ids[i] == SMALL_END;
			assert_true(ids[i] < SMALL_SHORT);
		}
		assert_int_equal(starts, 2);
		assert_int_equal(ends, 1);
		kv_free(kv_heap(), ids);
	}
	gw_tokenizer_destroy(tokenizer);
}

static void test_bos(void **state)
{
	(void)state;
	static const struct gw_chat_message talk[] = {{"user", "a"}};
	struct gw_vocabulary vocabulary;
	struct gw_tokenizer *tokenizer;
	int32_t *ids;
	uint32_t count;
	small_vocabulary(&vocabulary);
	vocabulary.add_bos = 1;
	vocabulary.bos = SMALL_WORD;
	assert_int_equal(gw_tokenizer_create(kv_heap(), &vocabulary, &tokenizer), KV_OK);
	encode(tokenizer, talk, 1, &ids, &count);
	assert_int_equal(ids[0], SMALL_WORD);
	assert_int_equal(ids[1], SMALL_START);
	for (uint32_t i = 1; i < count; i++)
		assert_int_not_equal(ids[i], SMALL_WORD);
	kv_free(kv_heap(), ids);
	gw_tokenizer_destroy(tokenizer);
}

static void test_vocabulary_without_markers(void **state)
{
	(void)state;
	static const struct gw_chat_message talk[] = {{"user", "a"}};
	struct gw_vocabulary vocabulary;
	struct gw_tokenizer *tokenizer;
	int32_t *ids = NULL;
	uint32_t count;
	small_vocabulary(&vocabulary);
	vocabulary.count = SMALL_START;
	vocabulary.bos = vocabulary.eos = -1;
	assert_int_equal(gw_tokenizer_create(kv_heap(), &vocabulary, &tokenizer), KV_OK);
	assert_int_equal(gw_chat_encode(GW_CHAT_CHATML, tokenizer, kv_heap(), talk, 1, 1, &ids, &count),
	    KV_UNSUPPORTED);
	assert_null(ids);
	gw_tokenizer_destroy(tokenizer);
}

static void test_without_memory(void **state)
{
	(void)state;
	static const struct gw_chat_message talk[] = {{"user", "hello"}, {"assistant", "aaaa"}};
	struct gw_tokenizer *tokenizer = small_tokenizer(kv_heap(), "smollm");
	struct kv_allocator *allocator = kv_allocator_create("walk", 0);
	int refused = 0;
	for (uint64_t n = 1;; n++) {
		int32_t *ids = NULL;
		char *text = NULL;
		uint32_t count = 9;
		size_t length;
		uint64_t failures = kv_allocator_stats(allocator).failures;
		kv_allocator_fail_at(allocator, n);
		enum kv_status status =
		    gw_chat_encode(GW_CHAT_CHATML_QWEN, tokenizer, allocator, talk, 2, 1, &ids, &count);
		if (status == KV_OK) {
			kv_free(allocator, ids);
			status = gw_chat_render(GW_CHAT_CHATML_QWEN, allocator, talk, 2, 1, &text, &length);
			kv_free(allocator, text);
		} else {
			assert_null(ids);
			assert_int_equal(count, 9);
		}
		kv_allocator_fail_at(allocator, 0);
		if (status != KV_OK) {
			assert_int_equal(status, KV_NO_MEMORY);
			refused++;
		}
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
		if (kv_allocator_stats(allocator).failures == failures) break;
		assert_true(n < 1000);
	}
	assert_true(refused > 10);
	kv_allocator_destroy(allocator);
	gw_tokenizer_destroy(tokenizer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_detect),
	    cmocka_unit_test(test_render),
	    cmocka_unit_test(test_refused),
	    cmocka_unit_test(test_encode),
	    cmocka_unit_test(test_content_is_never_special),
	    cmocka_unit_test(test_bos),
	    cmocka_unit_test(test_vocabulary_without_markers),
	    cmocka_unit_test(test_without_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
