/* The numbers that describe a decoder-only transformer. Plain data, filled from the model file. */
#ifndef GW_MODEL_SHAPE_H
#define GW_MODEL_SHAPE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { GW_MODEL_ID_BYTES = 32 };

struct gw_model_shape {
	uint32_t layers, heads, kv_heads, head_dim;
	uint32_t hidden, feed_forward, vocabulary;
	uint32_t context;         /* longest sequence that the model was made for */
	uint32_t rotary_dim;
	double rope_base;
	float norm_epsilon;
	float attention_scale;    /* 1 / sqrt(head_dim) unless the architecture says otherwise */
};

/* Query heads that share one KV head. */
static inline uint32_t gw_shape_group(const struct gw_model_shape *shape)
{
	return shape->heads / shape->kv_heads;
}

#ifdef __cplusplus
}
#endif
#endif
