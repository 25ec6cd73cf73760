/* A hand-made vocabulary: ids 0 to 255 are the bytes, then a few merges and special tokens. */
#ifndef TEST_SMALL_VOCABULARY_H
#define TEST_SMALL_VOCABULARY_H

#include "gpu-worker/text/tokenizer.h"

enum small_token {
	SMALL_LL = 256,
	SMALL_HE,
	SMALL_HELL,
	SMALL_HELLO,
	SMALL_SPACE_W,
	SMALL_AA,
	SMALL_AAAA,
	SMALL_XYZ,     /* its merge goes over "xy", which is no token */
	SMALL_QUX,     /* no merge makes it */
	SMALL_START,   /* "<|im_start|>", control */
	SMALL_END,     /* "<|im_end|>", control */
	SMALL_SHORT,   /* "<|im", control: the start of the two before */
	SMALL_TOOL,    /* "<tool>", user-defined */
	SMALL_CLOSE,   /* "</s>", which the file calls normal */
	SMALL_UNUSED,  /* "[PAD]", unused */
	SMALL_UNKNOWN, /* "<unk>", unknown */
	SMALL_WORD,    /* "EOT", control, made of letters only */
	SMALL_COUNT
};

/* Fill in a vocabulary that borrows static memory; a test may then change its fields. */
void small_vocabulary(struct gw_vocabulary *vocabulary);

/* The same texts and types, as arrays that may be copied and changed. */
const struct gw_text_slice *small_tokens(void);
const int32_t *small_types(void);

/* A tokenizer over it, for a test that only reads it; fails the test when it cannot be made. */
struct gw_tokenizer *small_tokenizer(struct kv_allocator *allocator, const char *pre);

#endif
