/* What gpu-worker/commands/load_text.c makes of model files, good and bad. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/commands/load_text.h"
#include "tests/lib/gguf_builder.h"

enum { GGUF_I32 = 5, GGUF_STRING = 8 };

/* The keys of a file; NULL or 0 leaves a key out. */
struct contents {
	const char *model, *pre, *template_text;
	const char *tokens[4];
	uint32_t token_count, type_count, merge_count;
	uint32_t eos;
	int no_eos;
};

static const struct contents GOOD = {
    .model = "gpt2",
    .pre = "llama-bpe",
    .template_text = "<|im_start|>{{ role }}<|im_end|>",
    .tokens = {"a", "b", "ab", "<|im_end|>"},
    .token_count = 4,
    .type_count = 4,
    .merge_count = 1,
    .eos = 3,
};

static uint64_t key_count(const struct contents *contents)
{
	int count = 1 + (contents->model != NULL) + (contents->pre != NULL) +
	            (contents->template_text != NULL) + (contents->token_count > 0) +
	            (contents->type_count > 0) + (contents->merge_count > 0) + !contents->no_eos;
	return (uint64_t)count;
}

static void build(const struct contents *contents, struct kvt_bytes *bytes)
{
	static const uint32_t types[] = {1, 1, 1, 3, 1};
	bytes->size = 0;
	kvt_put_head(bytes, 0, key_count(contents));
	kvt_put_key_u32(bytes, "tokenizer.ggml.bos_token_id", 0);
	if (contents->model) kvt_put_key_string(bytes, "tokenizer.ggml.model", contents->model);
	if (contents->pre) kvt_put_key_string(bytes, "tokenizer.ggml.pre", contents->pre);
	if (contents->template_text)
		kvt_put_key_string(bytes, "tokenizer.chat_template", contents->template_text);
	if (contents->token_count > 0) {
		kvt_put_key_array(bytes, "tokenizer.ggml.tokens", GGUF_STRING, contents->token_count);
		for (uint32_t i = 0; i < contents->token_count; i++)
			kvt_put_string(bytes, contents->tokens[i]);
	}
	if (contents->type_count > 0) {
		kvt_put_key_array(bytes, "tokenizer.ggml.token_type", GGUF_I32, contents->type_count);
		for (uint32_t i = 0; i < contents->type_count; i++)
			kvt_put_u32(bytes, types[i]);
	}
	if (contents->merge_count > 0) {
		kvt_put_key_array(bytes, "tokenizer.ggml.merges", GGUF_STRING, 1);
		kvt_put_string(bytes, "a b");
	}
	if (!contents->no_eos) kvt_put_key_u32(bytes, "tokenizer.ggml.eos_token_id", contents->eos);
	kvt_put_padding(bytes, 32, 0);
}

static enum kv_status load(const struct contents *contents, struct kv_allocator *allocator,
    struct gw_tokenizer **tokenizer, enum gw_chat_format *format)
{
	static struct kvt_bytes bytes;
	struct gw_gguf *file;
	build(contents, &bytes);
	if (gw_gguf_open_memory(kv_heap(), bytes.data, bytes.size, "built", &file) != KV_OK)
		fail_msg("%s", kv_error_message());
	enum kv_status status = gw_load_tokenizer(file, allocator, tokenizer);
	if (status == KV_OK) status = gw_load_chat_format(file, format);
	gw_gguf_close(file);
	return status;
}

static void test_good(void **state)
{
	(void)state;
	struct gw_tokenizer *tokenizer = NULL;
	enum gw_chat_format format = GW_CHAT_UNKNOWN;
	int32_t *ids;
	uint32_t count;
	assert_int_equal(load(&GOOD, kv_heap(), &tokenizer, &format), KV_OK);
	assert_int_equal(format, GW_CHAT_CHATML);
	assert_int_equal(gw_tokenizer_eos(tokenizer), 3);
	/* The file is closed and says nothing of BOS: Llama 3 has one. */
	assert_int_equal(gw_tokenizer_encode(tokenizer, kv_heap(), "ab", 2, 0, 1, &ids, &count), KV_OK);
	assert_int_equal(count, 2);
	assert_int_equal(ids[0], 0);
	assert_int_equal(ids[1], 2);
	kv_free(kv_heap(), ids);
	gw_tokenizer_destroy(tokenizer);
}

static void test_optional_keys(void **state)
{
	(void)state;
	struct contents contents = GOOD;
	struct gw_tokenizer *tokenizer = NULL;
	enum gw_chat_format format = GW_CHAT_CHATML;
	int32_t *ids;
	uint32_t count;
	contents.pre = "smollm";
	contents.template_text = NULL;
	contents.type_count = 0;
	contents.no_eos = 1;
	assert_int_equal(load(&contents, kv_heap(), &tokenizer, &format), KV_OK);
	assert_int_equal(format, GW_CHAT_UNKNOWN);
	assert_int_equal(gw_tokenizer_eos(tokenizer), -1);
	assert_int_equal(gw_tokenizer_encode(tokenizer, kv_heap(), "a", 1, 0, 1, &ids, &count), KV_OK);
	assert_int_equal(count, 1);
	kv_free(kv_heap(), ids);
	gw_tokenizer_destroy(tokenizer);
}

static void check_refused(const struct contents *contents, enum kv_status expected)
{
	struct gw_tokenizer *tokenizer = NULL;
	enum gw_chat_format format;
	kv_error_clear();
	assert_int_equal(load(contents, kv_heap(), &tokenizer, &format), expected);
	assert_null(tokenizer);
	assert_true(strlen(kv_error_message()) > 10);
}

static void test_refused(void **state)
{
	(void)state;
	static const char long_name[] =
	    "a name of a tokenizer that is longer than any name of a tokenizer should ever be";
	struct contents bad = GOOD;
	bad.model = NULL;
	check_refused(&bad, KV_NOT_FOUND);
	bad = GOOD;
	bad.model = "llama";
	check_refused(&bad, KV_UNSUPPORTED);
	bad.model = long_name;
	check_refused(&bad, KV_CORRUPT);
	bad = GOOD;
	bad.pre = NULL;
	check_refused(&bad, KV_NOT_FOUND);
	bad.pre = "nobody";
	check_refused(&bad, KV_UNSUPPORTED);
	bad = GOOD;
	bad.token_count = 0;
	check_refused(&bad, KV_NOT_FOUND);
	bad = GOOD;
	bad.type_count = 5;
	check_refused(&bad, KV_CORRUPT);
	bad = GOOD;
	bad.merge_count = 0;
	check_refused(&bad, KV_NOT_FOUND);
	bad = GOOD;
	bad.eos = 4;
	check_refused(&bad, KV_CORRUPT);
	bad.eos = UINT32_MAX;
	check_refused(&bad, KV_CORRUPT);
}

static void test_without_memory(void **state)
{
	(void)state;
	struct kv_allocator *allocator = kv_allocator_create("walk", 0);
	for (uint64_t n = 1;; n++) {
		struct gw_tokenizer *tokenizer = NULL;
		enum gw_chat_format format;
		uint64_t failures = kv_allocator_stats(allocator).failures;
		kv_allocator_fail_at(allocator, n);
		enum kv_status status = load(&GOOD, allocator, &tokenizer, &format);
		kv_allocator_fail_at(allocator, 0);
		assert_true(status == KV_OK || status == KV_NO_MEMORY);
		assert_true((status == KV_OK) == (tokenizer != NULL));
		gw_tokenizer_destroy(tokenizer);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
		if (kv_allocator_stats(allocator).failures == failures) break;
		assert_true(n < 1000);
	}
	kv_allocator_destroy(allocator);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_good),
	    cmocka_unit_test(test_optional_keys),
	    cmocka_unit_test(test_refused),
	    cmocka_unit_test(test_without_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
