/* Text and vocabularies that mean harm, through the tokenizer and the stream decoder.
 *
 * The first byte of an input chooses the pre-tokenizer. If the second is 'V', a vocabulary follows:
 * lines of a type digit and a token, an empty line, lines of merges, an empty line; the rest is
 * text. Any other second byte: the rest is text for a vocabulary of all bytes and a few special
 * tokens.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu-worker/text/byte_alphabet.h"
#include "gpu-worker/text/stream_decoder.h"
#include "gpu-worker/text/tokenizer.h"
#include "gpu-worker/text/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_LINES = 512, BYTES = 256, EXTRA = 9 };

static const char *const PRE[] = {"smollm", "qwen2", "llama-bpe", "glm4", "gpt-2"};
static const char *const TEXTS[EXTRA] = {"he", "ll", "hell", "\xc4\xa0\xc4\xa0", "<|im_start|>",
    "<|im_end|>", "<|im", "<tool>", "\xc3\xa9\xe2\x82\xac"};
static const int32_t TYPES[EXTRA] = {1, 1, 1, 1, 3, 3, 3, 4, 4};
static const char *const MERGES[] = {"h e", "l l", "he ll", "\xc4\xa0 \xc4\xa0", "q u", "qu x"};
enum { MERGE_COUNT = sizeof MERGES / sizeof MERGES[0], PRE_COUNT = sizeof PRE / sizeof PRE[0] };

static void require(int holds, const char *what)
{
	if (holds) return;
	fprintf(stderr, "broken: %s\n", what);
	abort();
}

static const struct gw_tokenizer *fixed_tokenizer(unsigned pre)
{
	static struct gw_tokenizer *tokenizers[PRE_COUNT];
	static char letters[BYTES][4];
	struct gw_text_slice tokens[BYTES + EXTRA], merges[MERGE_COUNT];
	int32_t types[BYTES + EXTRA];

	if (tokenizers[pre]) return tokenizers[pre];
	for (unsigned i = 0; i < BYTES; i++) {
		tokens[i].bytes = letters[i];
		tokens[i].length = gw_utf8_encode(gw_byte_letter((uint8_t)i), letters[i]);
		types[i] = GW_TOKEN_NORMAL;
	}
	for (unsigned i = 0; i < EXTRA; i++) {
		tokens[BYTES + i].bytes = TEXTS[i];
		tokens[BYTES + i].length = strlen(TEXTS[i]);
		types[BYTES + i] = TYPES[i];
	}
	for (unsigned i = 0; i < MERGE_COUNT; i++) {
		merges[i].bytes = MERGES[i];
		merges[i].length = strlen(MERGES[i]);
	}
	const struct gw_vocabulary vocabulary = {.model = "gpt2",
	    .pre = PRE[pre],
	    .tokens = tokens,
	    .types = types,
	    .count = BYTES + EXTRA,
	    .merges = merges,
	    .merge_count = MERGE_COUNT,
	    .bos = -1,
	    .eos = BYTES + 5};
	require(gw_tokenizer_create(kv_heap(), &vocabulary, &tokenizers[pre]) == KV_OK, "creation");
	return tokenizers[pre];
}

/* Show the ids as a server does: whatever they are, the text is valid UTF-8. */
static void check_stream(const struct gw_tokenizer *tokenizer, const int32_t *ids, uint32_t count)
{
	static const char *const stops[] = {"\n\n", "hell", "\xe2\x82\xac"};
	struct gw_stream_decoder *decoder;
	struct gw_text_slice piece;
	const char *text;
	size_t length;
	int stopped = 0;

	require(gw_stream_decoder_create(kv_heap(), stops, 3, 512, &decoder) == KV_OK, "decoder");
	for (uint32_t i = 0; i < count && !stopped; i++) {
		require(gw_tokenizer_piece(tokenizer, ids[i], 1, &piece) == KV_OK, "piece");
		if (gw_stream_decoder_push(decoder, piece.bytes, piece.length, &stopped) != KV_OK) break;
		text = gw_stream_decoder_take(decoder, 0, &length);
		require(gw_utf8_valid(text, length), "a take is valid UTF-8");
	}
	(void)gw_stream_decoder_take(decoder, 1, &length);
	text = gw_stream_decoder_text(decoder, &length);
	require(gw_utf8_valid(text, length) && text[length] == 0, "the text is valid UTF-8");
	for (unsigned i = 0; i < 3; i++)
		require(!strstr(text, stops[i]), "no stop text is shown");
	gw_stream_decoder_destroy(decoder);
}

static void check_text(
    const struct gw_tokenizer *tokenizer, const char *text, size_t length, int all_bytes)
{
	for (int parse = GW_PARSE_NOTHING; parse <= GW_PARSE_SPECIAL; parse++) {
		int32_t *ids;
		uint32_t count;
		char *back;
		size_t back_length;

		if (gw_tokenizer_encode(tokenizer, kv_heap(), text, length, parse, 1, &ids, &count) !=
		    KV_OK)
			return;
		for (uint32_t i = 0; i < count; i++) {
			require(ids[i] >= 0 && (uint32_t)ids[i] < gw_tokenizer_vocabulary(tokenizer), "range");
			if (all_bytes && parse == GW_PARSE_NOTHING)
				require(ids[i] < BYTES + 4, "plain text has no special tokens");
		}
		require(
		    gw_tokenizer_decode(tokenizer, kv_heap(), ids, count, 1, &back, &back_length) == KV_OK,
		    "decoding");
		if (all_bytes && gw_utf8_valid(text, length))
			require(back_length == length && memcmp(back, text, length) == 0, "round trip");
		check_stream(tokenizer, ids, count);
		kv_free(kv_heap(), back);
		kv_free(kv_heap(), ids);
	}
}

/* Lines up to an empty one; returns how many, and moves *at behind them. */
static uint32_t read_lines(const char *data, size_t size, size_t *at, struct gw_text_slice *lines)
{
	uint32_t count = 0;

	while (*at < size && count < MAX_LINES) {
		const char *end = memchr(data + *at, '\n', size - *at);
		size_t length = end ? (size_t)(end - data) - *at : size - *at;
		lines[count].bytes = data + *at;
		lines[count].length = length;
		*at += length + (end != NULL);
		if (length == 0) break;
		count++;
	}
	return count;
}

static void check_vocabulary(unsigned pre, const char *data, size_t size)
{
	struct gw_text_slice tokens[MAX_LINES], merges[MAX_LINES];
	int32_t types[MAX_LINES];
	struct gw_tokenizer *tokenizer;
	size_t at = 0;
	struct gw_vocabulary vocabulary = {.model = "gpt2",
	    .pre = PRE[pre],
	    .tokens = tokens,
	    .types = types,
	    .merges = merges,
	    .bos = 0,
	    .eos = -1,
	    .add_bos = 1};

	vocabulary.count = read_lines(data, size, &at, tokens);
	vocabulary.merge_count = read_lines(data, size, &at, merges);
	for (uint32_t i = 0; i < vocabulary.count; i++) {
		types[i] = tokens[i].bytes[0] - '0';
		tokens[i].bytes++;
		tokens[i].length--;
	}
	if (gw_tokenizer_create(kv_heap(), &vocabulary, &tokenizer) != KV_OK) return;
	check_text(tokenizer, data + at, size - at, 0);
	gw_tokenizer_destroy(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data;

	if (size < 2) return 0;
	unsigned pre = data[0] % PRE_COUNT;
	if (data[1] == 'V')
		check_vocabulary(pre, text + 2, size - 2);
	else
		check_text(fixed_tokenizer(pre), text + 2, size - 2, 1);
	return 0;
}
