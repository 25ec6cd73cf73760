/* Shapes of synthetic models and how their tensors are filled. Private to synthetic*.c. */
#ifndef GW_MODEL_SYNTHETIC_INTERNAL_H
#define GW_MODEL_SYNTHETIC_INTERNAL_H

#include "gpu-worker/model/gguf_internal.h"

enum { GW_SYNTHETIC_SPECIALS = 3 }; /* the first tokens: <|endoftext|>, <|im_start|>, <|im_end|> */

/* All are of the llama architecture. */
struct gw_synthetic_shape {
	const char *name;
	uint32_t layers, hidden, heads, kv_heads, head_dim, feed_forward, vocabulary, context;
	double rope_base;
	int tied; /* the embedding is the output too */
};

/* Write the data of `tensor`, whose rows have as many columns as its type's blocks divide. */
void gw_synthetic_fill(const struct gw_synthetic_shape *shape, uint64_t seed,
    const struct gw_gguf_tensor *tensor, void *data);

#endif
