/* A prompt through gw_model with plain attention between project and finish. */
#include <math.h>

#include "tests/lib/reference_forward.h"

/* All memory of one prompt. */
struct prompt {
	struct gw_model *model;
	const struct gw_model_shape *shape;
	uint32_t count, max_rows;
	uint32_t *positions; /* [count] */
	float *x;            /* [count][hidden] */
	float *qkv;          /* [count][qkv width] */
	float *attention;    /* [count][heads][head_dim] */
	float *scores;       /* [count] */
};

static void attend_head(const struct prompt *prompt, uint32_t i, uint32_t head)
{
	const struct gw_model_shape *shape = prompt->shape;
	size_t width = gw_model_qkv_width(prompt->model), d = shape->head_dim;
	size_t k_at = ((size_t)shape->heads + head / gw_shape_group(shape)) * d;
	size_t v_at = k_at + (size_t)shape->kv_heads * d;
	const float *q = prompt->qkv + i * width + head * d;
	float *out = prompt->attention + ((size_t)i * shape->heads + head) * d;
	float top = -INFINITY, sum = 0;

	for (size_t j = 0; j <= i; j++) {
		const float *k = prompt->qkv + j * width + k_at;
		float dot = 0;

		for (size_t c = 0; c < d; c++)
			dot += q[c] * k[c];
		prompt->scores[j] = dot * shape->attention_scale;
		top = fmaxf(top, prompt->scores[j]);
	}
	for (size_t c = 0; c < d; c++)
		out[c] = 0;
	for (size_t j = 0; j <= i; j++) {
		const float *v = prompt->qkv + j * width + v_at;
		float weight = expf(prompt->scores[j] - top);

		sum += weight;
		for (size_t c = 0; c < d; c++)
			out[c] += weight * v[c];
	}
	for (size_t c = 0; c < d; c++)
		out[c] /= sum;
}

static enum kv_status run_layer(const struct prompt *prompt, uint32_t layer)
{
	const struct gw_model_shape *shape = prompt->shape;
	size_t width = gw_model_qkv_width(prompt->model),
	       q_width = (size_t)shape->heads * shape->head_dim;
	uint32_t rows;

	for (uint32_t at = 0; at < prompt->count; at += rows) {
		rows = prompt->count - at < prompt->max_rows ? prompt->count - at : prompt->max_rows;
		KV_TRY(gw_model_project(prompt->model, layer, prompt->x + (size_t)at * shape->hidden,
		    prompt->positions + at, rows, prompt->qkv + at * width));
	}
	for (uint32_t i = 0; i < prompt->count; i++) {
		for (uint32_t head = 0; head < shape->heads; head++)
			attend_head(prompt, i, head);
	}
	for (uint32_t at = 0; at < prompt->count; at += rows) {
		rows = prompt->count - at < prompt->max_rows ? prompt->count - at : prompt->max_rows;
		KV_TRY(gw_model_finish(prompt->model, layer, prompt->attention + at * q_width, rows,
		    prompt->x + (size_t)at * shape->hidden));
	}
	return KV_OK;
}

static enum kv_status run(const struct prompt *prompt, const int32_t *ids, float *logits)
{
	const struct gw_model_shape *shape = prompt->shape;
	uint32_t rows;

	for (uint32_t at = 0; at < prompt->count; at += rows) {
		rows = prompt->count - at < prompt->max_rows ? prompt->count - at : prompt->max_rows;
		KV_TRY(
		    gw_model_embed(prompt->model, ids + at, rows, prompt->x + (size_t)at * shape->hidden));
	}
	for (uint32_t layer = 0; layer < shape->layers; layer++)
		KV_TRY(run_layer(prompt, layer));
	for (uint32_t at = 0; at < prompt->count; at += rows) {
		rows = prompt->count - at < prompt->max_rows ? prompt->count - at : prompt->max_rows;
		KV_TRY(gw_model_logits(prompt->model, prompt->x + (size_t)at * shape->hidden, rows,
		    logits + (size_t)at * shape->vocabulary));
	}
	return KV_OK;
}

enum kv_status kvt_model_logits(struct gw_model *model, struct kv_allocator *allocator,
    uint32_t max_rows, const int32_t *ids, uint32_t count, float *logits)
{
	const struct gw_model_shape *shape = gw_model_shape(model);
	struct prompt prompt = {.model = model, .shape = shape, .count = count, .max_rows = max_rows};
	enum kv_status status = KV_NO_MEMORY;

	prompt.positions = kv_alloc_array(allocator, count, sizeof *prompt.positions);
	prompt.x = kv_alloc_array(allocator, (size_t)count * shape->hidden, sizeof(float));
	prompt.qkv =
	    kv_alloc_array(allocator, (size_t)count * gw_model_qkv_width(model), sizeof(float));
	prompt.attention =
	    kv_alloc_array(allocator, (size_t)count * shape->heads * shape->head_dim, sizeof(float));
	prompt.scores = kv_alloc_array(allocator, count, sizeof(float));
	if (prompt.positions && prompt.x && prompt.qkv && prompt.attention && prompt.scores) {
		for (uint32_t i = 0; i < count; i++)
			prompt.positions[i] = i;
		status = run(&prompt, ids, logits);
	}
	kv_free(allocator, prompt.positions);
	kv_free(allocator, prompt.x);
	kv_free(allocator, prompt.qkv);
	kv_free(allocator, prompt.attention);
	kv_free(allocator, prompt.scores);
	return status;
}
