#include "gpu-worker/server/http_logprobs.h"

#include <math.h>
#include <string.h>

#include "gpu-worker/text/utf8.h"

enum { SHOWN_BYTES = 1024 };

/* JSON has no infinity, nor what is no number: OpenAI's word for a token without any chance. */
static double shown_logprob(float logprob)
{
	return isfinite(logprob) ? (double)logprob : -9999.0;
}

static struct gw_text_slice piece_of(const struct gw_tokenizer *tokenizer, int32_t token)
{
	struct gw_text_slice piece = {"", 0};

	if (gw_tokenizer_piece(tokenizer, token, 1, &piece) != KV_OK) piece.length = 0;
	return piece;
}

/* As valid UTF-8, and not endless. */
static size_t show(struct gw_text_slice piece, char shown[SHOWN_BYTES])
{
	static const char replacement[] = "\xef\xbf\xbd";
	size_t length = 0, used;

	for (size_t at = 0; at < piece.length && length + 4 < SHOWN_BYTES; at += used) {
		if (gw_utf8_scan(piece.bytes + at, piece.length - at, &used) == GW_UTF8_WHOLE) {
			memcpy(shown + length, piece.bytes + at, used);
			length += used;
		} else {
			memcpy(shown + length, replacement, 3);
			length += 3;
		}
	}
	shown[length] = '\0';
	return length;
}

static json_t *shown_text(struct gw_text_slice piece)
{
	char shown[SHOWN_BYTES];
	size_t length = show(piece, shown);

	return json_stringn(shown, length);
}

static json_t *bytes_of(struct gw_text_slice piece)
{
	json_t *bytes = json_array();

	for (size_t i = 0; i < piece.length; i++)
		json_array_append_new(bytes, json_integer((unsigned char)piece.bytes[i]));
	return bytes;
}

static json_t *chat_entry(const struct gw_tokenizer *tokenizer, int32_t token, float logprob)
{
	struct gw_text_slice piece = piece_of(tokenizer, token);

	return json_pack("{s:o, s:f, s:o}", "token", shown_text(piece), "logprob",
	    shown_logprob(logprob), "bytes", bytes_of(piece));
}

static json_t *chat_shape(const struct gw_tokenizer *tokenizer,
    const struct gw_token_record *records, uint32_t from, uint32_t to)
{
	json_t *content = json_array();

	for (uint32_t i = from; i < to; i++) {
		const struct gw_token_record *record = &records[i];
		json_t *entry = chat_entry(tokenizer, record->token, record->logprob);
		json_t *top = json_array();

		for (uint32_t j = 0; j < record->top_count; j++)
			json_array_append_new(
			    top, chat_entry(tokenizer, record->top_tokens[j], record->top_logprobs[j]));
		json_object_set_new(entry, "top_logprobs", top);
		json_array_append_new(content, entry);
	}
	return json_pack("{s:o, s:n}", "content", content, "refusal");
}

/* Tokens of the same text share a name: the likelier one has it. */
static json_t *top_by_text(
    const struct gw_tokenizer *tokenizer, const struct gw_token_record *record)
{
	json_t *top = json_object();
	char shown[SHOWN_BYTES];

	for (uint32_t j = 0; j < record->top_count; j++) {
		(void)show(piece_of(tokenizer, record->top_tokens[j]), shown);
		if (json_object_get(top, shown) == NULL)
			json_object_set_new(top, shown, json_real(shown_logprob(record->top_logprobs[j])));
	}
	return top;
}

/* A character that several tokens make counts with its first byte. */
static size_t characters(struct gw_text_slice piece)
{
	size_t count = 0;

	for (size_t i = 0; i < piece.length; i++)
		if (((unsigned char)piece.bytes[i] & 0xC0U) != 0x80U) count++;
	return count;
}

static json_t *completion_shape(const struct gw_tokenizer *tokenizer,
    const struct gw_token_record *records, uint32_t from, uint32_t to, size_t *text_offset)
{
	json_t *tokens = json_array(), *logprobs = json_array(), *tops = json_array();
	json_t *offsets = json_array();

	for (uint32_t i = from; i < to; i++) {
		struct gw_text_slice piece = piece_of(tokenizer, records[i].token);

		json_array_append_new(tokens, shown_text(piece));
		json_array_append_new(logprobs, json_real(shown_logprob(records[i].logprob)));
		json_array_append_new(tops, top_by_text(tokenizer, &records[i]));
		json_array_append_new(offsets, json_integer((json_int_t)*text_offset));
		*text_offset += characters(piece);
	}
	return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", logprobs,
	    "top_logprobs", tops, "text_offset", offsets);
}

json_t *gw_logprobs_json(const struct gw_tokenizer *tokenizer, int chat,
    const struct gw_token_record *records, uint32_t from, uint32_t to, size_t *text_offset)
{
	return chat ? chat_shape(tokenizer, records, from, to)
	            : completion_shape(tokenizer, records, from, to, text_offset);
}
