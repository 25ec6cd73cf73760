/* What the parts of the byte-level BPE tokenizer share. Private to this folder. */
#ifndef GW_TEXT_TOKENIZER_INTERNAL_H
#define GW_TEXT_TOKENIZER_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "gpu-worker/text/pretokenizer.h"
#include "gpu-worker/text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GW_NO_SYMBOL UINT32_MAX

/* The bytes of a symbol, in the tokenizer's pool. */
struct gw_bpe_symbol {
	uint32_t offset;
	uint32_t length;
};

/* One slot of the merge table; empty when left is GW_NO_SYMBOL. */
struct gw_bpe_merge {
	uint32_t left, right;
	uint32_t rank;
	uint32_t result;
};

struct gw_special {
	const char *text; /* in the pool */
	uint32_t length;
	int32_t id;
	int user_defined;
};

struct gw_tokenizer {
	struct kv_allocator *allocator;
	struct gw_pretokenizer *pretokenizer;
	int ignores_merges;

	/* Symbols 0 to count - 1 are the tokens; those after them are texts that only merges mention.
	 */
	char *pool;
	size_t pool_length, pool_capacity;
	struct gw_bpe_symbol *symbols;
	uint32_t count, symbol_count, symbol_capacity;
	uint8_t *types; /* [count] enum gw_token_type */
	uint8_t *ends;  /* [count] 1: ends an answer */

	/* Text to symbol, open addressing, slots hold symbol + 1. Only what merges can make is in it:
	 * no control token can come out of plain text. */
	uint32_t *names;
	uint32_t name_mask, name_count;

	struct gw_bpe_merge *merges; /* open addressing by (left, right) */
	uint32_t merge_mask;
	uint32_t byte_symbols[256]; /* GW_NO_SYMBOL where the vocabulary lacks the byte */

	/* Special tokens by first byte, the longest first. */
	struct gw_special *specials;
	uint32_t special_count;
	int cuts_characters; /* a special token is no valid UTF-8: it may end inside a character */
	uint32_t special_first[257];

	int32_t bos, eos;
	int add_bos;
};

/* The symbol of a text, GW_NO_SYMBOL when there is none. */
uint32_t gw_tokenizer_find_symbol(
    const struct gw_tokenizer *tokenizer, const char *text, size_t length);

/* The merge of two neighbours, NULL when there is none. */
const struct gw_bpe_merge *gw_tokenizer_find_merge(
    const struct gw_tokenizer *tokenizer, uint32_t left, uint32_t right);

/* The slot at which the search for a pair starts. */
static inline uint32_t gw_merge_slot(uint32_t left, uint32_t right, uint32_t mask)
{
	uint64_t key = ((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15);
	return (uint32_t)(key >> 32) & mask;
}

#ifdef __cplusplus
}
#endif
#endif
