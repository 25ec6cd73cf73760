#include <string.h>

#include "gpu-worker/text/tokenizer_internal.h"

enum kv_status gw_tokenizer_piece(
    const struct gw_tokenizer *tokenizer, int32_t id, int show_special, struct gw_text_slice *piece)
{
	if (id < 0 || (uint32_t)id >= tokenizer->count)
		return kv_fail(KV_INVALID, "token %d is outside the vocabulary of %u tokens", (int)id,
		    tokenizer->count);
	uint8_t type = tokenizer->types[id];
	int hidden = type == GW_TOKEN_UNUSED ||
	             (!show_special && (type == GW_TOKEN_CONTROL || type == GW_TOKEN_UNKNOWN));
	piece->bytes = hidden ? "" : tokenizer->pool + tokenizer->symbols[id].offset;
	piece->length = hidden ? 0 : tokenizer->symbols[id].length;
	return KV_OK;
}

enum kv_status gw_tokenizer_decode(const struct gw_tokenizer *tokenizer,
    struct kv_allocator *allocator, const int32_t *ids, uint32_t count, int show_special,
    char **text, size_t *length)
{
	struct gw_text_slice piece;
	size_t total = 0;
	for (uint32_t i = 0; i < count; i++) {
		KV_TRY(gw_tokenizer_piece(tokenizer, ids[i], show_special, &piece));
		total += piece.length;
	}
	char *out = kv_alloc(allocator, total + 1);
	if (!out) return KV_NO_MEMORY;
	size_t at = 0;
	for (uint32_t i = 0; i < count; i++) {
		(void)gw_tokenizer_piece(tokenizer, ids[i], show_special, &piece);
		memcpy(out + at, piece.bytes, piece.length);
		at += piece.length;
	}
	out[at] = 0;
	*text = out;
	*length = total;
	return KV_OK;
}

uint32_t gw_tokenizer_vocabulary(const struct gw_tokenizer *tokenizer)
{
	return tokenizer->count;
}

int32_t gw_tokenizer_eos(const struct gw_tokenizer *tokenizer)
{
	return tokenizer->eos;
}

int gw_tokenizer_is_end(const struct gw_tokenizer *tokenizer, int32_t id)
{
	return id >= 0 && (uint32_t)id < tokenizer->count && tokenizer->ends[id];
}
