/* The blocks that decoder-only architectures share: norm, projection with bias and rotation, output
 * projection, gated feed-forward. All work on float rows in backend memory and allocate nothing.
 */
#ifndef GW_MODEL_BLOCKS_H
#define GW_MODEL_BLOCKS_H

#include "gpu-worker/model/shape.h"
#include "gpu-worker/model/weights.h"
#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_layer {
	float *attention_norm;     /* [hidden] */
	struct kn_weight *qkv;     /* [(heads + 2 kv_heads) head_dim][hidden], q then k then v */
	float *qkv_bias;           /* [(heads + 2 kv_heads) head_dim] or NULL */
	struct kn_weight *output;  /* [hidden][heads head_dim] */
	float *feed_forward_norm;  /* [hidden] */
	struct kn_weight *gate_up; /* [2 feed_forward][hidden], gate then up */
	struct kn_weight *down;    /* [hidden][feed_forward] */
};

/* What the blocks need besides a layer. */
struct gw_block_context {
	const struct kn_backend_ops *ops;
	struct kn_backend *backend;
	struct kn_stream *stream;
	const struct gw_model_shape *shape;
	const float *inverse_frequency; /* [rotary_dim / 2] */
	int adjacent_pairs;
	float *normed;  /* scratch [max_rows][hidden] */
	float *gate_up; /* scratch [max_rows][2 feed_forward] */
};

/* Floats of one row [q | k | v]. */
uint32_t gw_block_qkv_width(const struct gw_model_shape *shape);

/* Load the tensors that llama, qwen2 and their like name alike. `with_bias` adds those of q, k and
 * v. */
enum kv_status gw_block_load(struct gw_loader *loader, const struct gw_model_shape *shape,
    uint32_t index, int with_bias, struct gw_layer *layer);
void gw_block_unload(
    const struct kn_backend_ops *ops, struct kn_backend *backend, struct gw_layer *layer);

/* out[count][hidden] = rms norm of x[count][hidden]. */
enum kv_status gw_block_norm(const struct gw_block_context *context, const float *x,
    const float *weight, uint32_t count, float *out);

/* qkv[count][qkv width] of x[count][hidden]: norm, projection, bias, rotation of q and k. */
enum kv_status gw_block_project(const struct gw_block_context *context,
    const struct gw_layer *layer, const float *x, const uint32_t *positions, uint32_t count,
    float *qkv);

/* x[count][hidden] += output · attention[count][heads head_dim] */
enum kv_status gw_block_attention_output(const struct gw_block_context *context,
    const struct gw_layer *layer, const float *attention, uint32_t count, float *x);

/* x[count][hidden] += down · (silu(gate · norm(x)) * up · norm(x)) */
enum kv_status gw_block_feed_forward(
    const struct gw_block_context *context, const struct gw_layer *layer, uint32_t count, float *x);

#ifdef __cplusplus
}
#endif
#endif
