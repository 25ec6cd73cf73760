#include "gpu-worker/model/blocks.h"

uint32_t gw_block_qkv_width(const struct gw_model_shape *shape)
{
	return (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
}

enum kv_status gw_block_load(struct gw_loader *loader, const struct gw_model_shape *shape,
    uint32_t index, int with_bias, struct gw_layer *layer)
{
	const uint32_t hidden = shape->hidden, feed_forward = shape->feed_forward;
	const uint32_t q_rows = shape->heads * shape->head_dim;
	const uint32_t kv_rows = shape->kv_heads * shape->head_dim;
	const struct gw_part attention_norm = gw_layer_part(index, "attn_norm.weight", hidden);
	const struct gw_part qkv[] = {
	    gw_layer_part(index, "attn_q.weight", q_rows),
	    gw_layer_part(index, "attn_k.weight", kv_rows),
	    gw_layer_part(index, "attn_v.weight", kv_rows),
	};
	const struct gw_part qkv_bias[] = {
	    gw_layer_part(index, "attn_q.bias", q_rows),
	    gw_layer_part(index, "attn_k.bias", kv_rows),
	    gw_layer_part(index, "attn_v.bias", kv_rows),
	};
	const struct gw_part output = gw_layer_part(index, "attn_output.weight", hidden);
	const struct gw_part feed_forward_norm = gw_layer_part(index, "ffn_norm.weight", hidden);
	const struct gw_part gate_up[] = {
	    gw_layer_part(index, "ffn_gate.weight", feed_forward),
	    gw_layer_part(index, "ffn_up.weight", feed_forward),
	};
	const struct gw_part down = gw_layer_part(index, "ffn_down.weight", hidden);

	KV_TRY(gw_load_vector(loader, &attention_norm, 1, &layer->attention_norm));
	KV_TRY(gw_load_matrix(loader, qkv, 3, hidden, &layer->qkv));
	if (with_bias) KV_TRY(gw_load_vector(loader, qkv_bias, 3, &layer->qkv_bias));
	KV_TRY(gw_load_matrix(loader, &output, 1, q_rows, &layer->output));
	KV_TRY(gw_load_vector(loader, &feed_forward_norm, 1, &layer->feed_forward_norm));
	KV_TRY(gw_load_matrix(loader, gate_up, 2, hidden, &layer->gate_up));
	return gw_load_matrix(loader, &down, 1, feed_forward, &layer->down);
}

static void destroy_weight(
    const struct kn_backend_ops *ops, struct kn_backend *backend, struct kn_weight *weight)
{
	if (weight) ops->weight_destroy(backend, weight);
}

static void destroy_buffer(
    const struct kn_backend_ops *ops, struct kn_backend *backend, void *buffer)
{
	if (buffer) ops->buffer_destroy(backend, buffer);
}

void gw_block_unload(
    const struct kn_backend_ops *ops, struct kn_backend *backend, struct gw_layer *layer)
{
	destroy_buffer(ops, backend, layer->attention_norm);
	destroy_weight(ops, backend, layer->qkv);
	destroy_buffer(ops, backend, layer->qkv_bias);
	destroy_weight(ops, backend, layer->output);
	destroy_buffer(ops, backend, layer->feed_forward_norm);
	destroy_weight(ops, backend, layer->gate_up);
	destroy_weight(ops, backend, layer->down);
}

enum kv_status gw_block_norm(const struct gw_block_context *context, const float *x,
    const float *weight, uint32_t count, float *out)
{
	const struct kn_rms_norm_arguments norm = {
	    .x = x,
	    .x_stride = context->shape->hidden,
	    .weight = weight,
	    .out = out,
	    .out_stride = context->shape->hidden,
	    .count = count,
	    .width = context->shape->hidden,
	    .epsilon = context->shape->norm_epsilon,
	};

	return context->ops->rms_norm(context->backend, context->stream, &norm);
}

enum kv_status gw_block_project(const struct gw_block_context *context,
    const struct gw_layer *layer, const float *x, const uint32_t *positions, uint32_t count,
    float *qkv)
{
	const struct gw_model_shape *shape = context->shape;
	const struct kn_matmul_arguments product = {
	    .weight = layer->qkv,
	    .x = context->normed,
	    .x_stride = shape->hidden,
	    .y = qkv,
	    .y_stride = gw_block_qkv_width(shape),
	    .bias = layer->qkv_bias,
	    .count = count,
	};
	/* k follows q in a row, and both turn alike: one call over the heads of both. */
	const struct kn_rotate_arguments rotation = {
	    .x = qkv,
	    .x_stride = gw_block_qkv_width(shape),
	    .positions = positions,
	    .inverse_frequency = context->inverse_frequency,
	    .count = count,
	    .heads = shape->heads + shape->kv_heads,
	    .head_dim = shape->head_dim,
	    .rotary_dim = shape->rotary_dim,
	    .adjacent_pairs = context->adjacent_pairs,
	};

	KV_TRY(gw_block_norm(context, x, layer->attention_norm, count, context->normed));
	KV_TRY(context->ops->matmul(context->backend, context->stream, &product));
	return context->ops->rotate(context->backend, context->stream, &rotation);
}

enum kv_status gw_block_attention_output(const struct gw_block_context *context,
    const struct gw_layer *layer, const float *attention, uint32_t count, float *x)
{
	const struct kn_matmul_arguments product = {
	    .weight = layer->output,
	    .x = attention,
	    .x_stride = (size_t)context->shape->heads * context->shape->head_dim,
	    .y = x,
	    .y_stride = context->shape->hidden,
	    .add = x,
	    .count = count,
	};

	return context->ops->matmul(context->backend, context->stream, &product);
}

enum kv_status gw_block_feed_forward(
    const struct gw_block_context *context, const struct gw_layer *layer, uint32_t count, float *x)
{
	const uint32_t hidden = context->shape->hidden, width = context->shape->feed_forward;
	const struct kn_matmul_arguments spread = {
	    .weight = layer->gate_up,
	    .x = context->normed,
	    .x_stride = hidden,
	    .y = context->gate_up,
	    .y_stride = (size_t)2 * width,
	    .count = count,
	};
	/* The product replaces the gate where it lies. */
	const struct kn_silu_mul_arguments gating = {
	    .gate = context->gate_up,
	    .up = context->gate_up + width,
	    .in_stride = (size_t)2 * width,
	    .out = context->gate_up,
	    .out_stride = (size_t)2 * width,
	    .count = count,
	    .width = width,
	};
	const struct kn_matmul_arguments gather = {
	    .weight = layer->down,
	    .x = context->gate_up,
	    .x_stride = (size_t)2 * width,
	    .y = x,
	    .y_stride = hidden,
	    .add = x,
	    .count = count,
	};

	KV_TRY(gw_block_norm(context, x, layer->feed_forward_norm, count, context->normed));
	KV_TRY(context->ops->matmul(context->backend, context->stream, &spread));
	KV_TRY(context->ops->silu_mul(context->backend, context->stream, &gating));
	return context->ops->matmul(context->backend, context->stream, &gather);
}
