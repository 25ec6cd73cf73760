#include "tests/unit/gpu-worker/text/small_vocabulary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/text/byte_alphabet.h"
#include "gpu-worker/text/utf8.h"

static const char *const MERGES[] = {
    "l l",
    "h e",
    "he ll",
    "hell o",
    "\xc4\xa0 w",
    "a a",
    "aa aa",
    "x y",
    "xy z",
};
static const struct {
	const char *text;
	int32_t type;
} EXTRA[] = {
    {"ll", GW_TOKEN_NORMAL},
    {"he", GW_TOKEN_NORMAL},
    {"hell", GW_TOKEN_NORMAL},
    {"hello", GW_TOKEN_NORMAL},
    {"\xc4\xa0w", GW_TOKEN_NORMAL},
    {"aa", GW_TOKEN_NORMAL},
    {"aaaa", GW_TOKEN_NORMAL},
    {"xyz", GW_TOKEN_NORMAL},
    {"qux", GW_TOKEN_NORMAL},
    {"<|im_start|>", GW_TOKEN_CONTROL},
    {"<|im_end|>", GW_TOKEN_CONTROL},
    {"<|im", GW_TOKEN_CONTROL},
    {"<tool>", GW_TOKEN_USER_DEFINED},
    {"</s>", GW_TOKEN_NORMAL},
    {"[PAD]", GW_TOKEN_UNUSED},
    {"<unk>", GW_TOKEN_UNKNOWN},
    {"EOT", GW_TOKEN_CONTROL},
};
enum { MERGE_COUNT = sizeof MERGES / sizeof MERGES[0] };

static struct gw_text_slice tokens[SMALL_COUNT], merges[MERGE_COUNT];
static int32_t types[SMALL_COUNT];
static char letters[256][4];

static void fill(void)
{
	for (unsigned i = 0; i < 256; i++) {
		tokens[i].bytes = letters[i];
		tokens[i].length = gw_utf8_encode(gw_byte_letter((uint8_t)i), letters[i]);
		types[i] = GW_TOKEN_NORMAL;
	}
	for (unsigned i = 256; i < SMALL_COUNT; i++) {
		tokens[i].bytes = EXTRA[i - 256].text;
		tokens[i].length = strlen(tokens[i].bytes);
		types[i] = EXTRA[i - 256].type;
	}
	for (unsigned i = 0; i < MERGE_COUNT; i++) {
		merges[i].bytes = MERGES[i];
		merges[i].length = strlen(MERGES[i]);
	}
}

const struct gw_text_slice *small_tokens(void)
{
	fill();
	return tokens;
}

const int32_t *small_types(void)
{
	fill();
	return types;
}

void small_vocabulary(struct gw_vocabulary *vocabulary)
{
	fill();
	memset(vocabulary, 0, sizeof *vocabulary);
	vocabulary->model = "gpt2";
	vocabulary->pre = "smollm";
	vocabulary->tokens = tokens;
	vocabulary->types = types;
	vocabulary->count = SMALL_COUNT;
	vocabulary->merges = merges;
	vocabulary->merge_count = MERGE_COUNT;
	vocabulary->bos = SMALL_START;
	vocabulary->eos = SMALL_END;
}

struct gw_tokenizer *small_tokenizer(struct kv_allocator *allocator, const char *pre)
{
	struct gw_vocabulary vocabulary;
	struct gw_tokenizer *tokenizer = NULL;
	small_vocabulary(&vocabulary);
	vocabulary.pre = pre;
	assert_int_equal(gw_tokenizer_create(allocator, &vocabulary, &tokenizer), KV_OK);
	return tokenizer;
}
