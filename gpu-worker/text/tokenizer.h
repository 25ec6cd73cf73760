/* Byte-level BPE: text to token ids and back.
 *
 * Pre-tokenisation by the expression that the model file names (libpcre2), then merges by rank.
 * Special tokens are recognised in text only where the caller asks. Thread-safe after creation.
 */
#ifndef GW_TEXT_TOKENIZER_H
#define GW_TEXT_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_tokenizer;

struct gw_text_slice {
	const char *bytes;
	size_t length;
};

/* GGUF's tokenizer.ggml.token_type numbers. */
enum gw_token_type {
	GW_TOKEN_NORMAL = 1,
	GW_TOKEN_UNKNOWN = 2,
	GW_TOKEN_CONTROL = 3,
	GW_TOKEN_USER_DEFINED = 4,
	GW_TOKEN_UNUSED = 5,
	GW_TOKEN_BYTE = 6
};

/* What a model file says about its tokenizer. Everything is borrowed during creation only. */
struct gw_vocabulary {
	const char *model;                  /* "gpt2" for byte-level BPE; others are KV_UNSUPPORTED */
	const char *pre;                    /* "smollm", "qwen2", "llama-bpe", "gpt-2", … */
	const struct gw_text_slice *tokens; /* [count], in the printable byte alphabet of GPT-2 */
	const int32_t *types;               /* [count] or NULL */
	uint32_t count;
	const struct gw_text_slice *merges; /* [merge_count] "left right", by rank */
	uint32_t merge_count;
	int32_t bos, eos; /* -1: none */
	int add_bos;
};

enum kv_status gw_tokenizer_create(struct kv_allocator *allocator,
    const struct gw_vocabulary *vocabulary, struct gw_tokenizer **tokenizer);
void gw_tokenizer_destroy(struct gw_tokenizer *tokenizer);

/* What text may become a token other than through the merges. The last two are what llama.cpp does
 * for parse_special = false and true: a file's user-defined tokens ("<tool_call>") count as text
 * that is always kept whole. GW_PARSE_NOTHING is for what a user wrote inside a conversation. */
enum gw_parse_special {
	GW_PARSE_NOTHING = -1,     /* all text is plain */
	GW_PARSE_USER_DEFINED = 0, /* user-defined tokens only */
	GW_PARSE_SPECIAL = 1       /* control tokens too */
};

/* Encode. *ids is allocated with `allocator` and owned by the caller. Invalid UTF-8 is encoded as
 * llama.cpp does: each byte that belongs to no sequence becomes U+FFFD. `parse_special`: one of
 * enum gw_parse_special; the longest token wins where several start at one place.
 * `add_bos`: put the BOS token first where the vocabulary asks for it. KV_LIMIT over 256 MiB. */
enum kv_status gw_tokenizer_encode(const struct gw_tokenizer *tokenizer,
    struct kv_allocator *allocator, const char *text, size_t length, int parse_special, int add_bos,
    int32_t **ids, uint32_t *count);

/* The bytes of one token, borrowed. Control tokens give their text only with `show_special`, else
 * "". KV_INVALID for an id outside the vocabulary. */
enum kv_status gw_tokenizer_piece(const struct gw_tokenizer *tokenizer, int32_t id,
    int show_special, struct gw_text_slice *piece);

/* Concatenated pieces; *text is allocated with `allocator`, terminated, owned by the caller. */
enum kv_status gw_tokenizer_decode(const struct gw_tokenizer *tokenizer,
    struct kv_allocator *allocator, const int32_t *ids, uint32_t count, int show_special,
    char **text, size_t *length);

uint32_t gw_tokenizer_vocabulary(const struct gw_tokenizer *tokenizer);
int32_t gw_tokenizer_eos(const struct gw_tokenizer *tokenizer);
/* 1 when `id` ends an answer: EOS, or a control token that closes a turn ("<|im_end|>", …). */
int gw_tokenizer_is_end(const struct gw_tokenizer *tokenizer, int32_t id);

#ifdef __cplusplus
}
#endif
#endif
