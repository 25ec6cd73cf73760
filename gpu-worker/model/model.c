#include "gpu-worker/model/model.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "gpu-worker/model/arch.h"

enum { WEIGHT_ALIGNMENT = 256 };

struct gw_model {
	struct kv_allocator *allocator;
	const struct gw_architecture *architecture;
	struct gw_model_shape shape;
	struct gw_block_context context;
	uint32_t max_rows;
	uint64_t weight_bytes;

	struct kn_weight *embedding;
	struct kn_weight *output; /* NULL where the embedding serves (tied) */
	float *output_norm;
	float *inverse_frequency;
	int32_t *ids;            /* backend memory [max_rows] */
	struct gw_layer *layers; /* [shape.layers] */
};

static enum kv_status check_options(const struct gw_model_options *options)
{
	if (!options->allocator || !options->ops || !options->backend)
		return kv_fail(KV_INVALID, "a model needs an allocator and an open backend");
	if (options->max_rows < 1 || options->max_rows > 65536) {
		return kv_fail(
		    KV_INVALID, "%" PRIu32 " rows of one call; 1 to 65536 are possible", options->max_rows);
	}
	return KV_OK;
}

static enum kv_status load_frequencies(struct gw_model *model, struct gw_loader *loader)
{
	const struct gw_model_shape *shape = &model->shape;
	float frequencies[KN_MAX_HEAD_DIM / 2];
	uint32_t count = shape->rotary_dim / 2;

	for (uint32_t i = 0; i < count; i++) {
		frequencies[i] = (float)pow(shape->rope_base, -2.0 * (double)i / (double)shape->rotary_dim);
	}
	if (model->architecture->scale_frequencies)
		KV_TRY(model->architecture->scale_frequencies(loader, count, frequencies));
	return gw_upload_floats(loader->options, frequencies, count, &model->inverse_frequency);
}

static enum kv_status load_weights(struct gw_model *model, struct gw_loader *loader)
{
	const struct gw_model_shape *shape = &model->shape;
	const struct gw_part embedding = {"token_embd.weight", shape->vocabulary};
	const struct gw_part output = {"output.weight", shape->vocabulary};
	const struct gw_part output_norm = {"output_norm.weight", shape->hidden};

	KV_TRY(gw_load_matrix(loader, &embedding, 1, shape->hidden, &model->embedding));
	for (uint32_t i = 0; i < shape->layers; i++)
		KV_TRY(model->architecture->load_layer(loader, shape, i, &model->layers[i]));
	KV_TRY(gw_load_vector(loader, &output_norm, 1, &model->output_norm));
	if (gw_loader_has(loader, output.name))
		KV_TRY(gw_load_matrix(loader, &output, 1, shape->hidden, &model->output));
	KV_TRY(load_frequencies(model, loader));
	KV_TRY(gw_loader_check_all_used(loader));
	model->weight_bytes = loader->weight_bytes;
	return KV_OK;
}

static enum kv_status create_scratch(struct gw_model *model)
{
	struct gw_block_context *context = &model->context;
	size_t rows = model->max_rows;
	void *buffer;

	KV_TRY(context->ops->buffer_create(
	    context->backend, KN_DEVICE, rows * model->shape.hidden * sizeof(float), &buffer));
	context->normed = buffer;
	KV_TRY(context->ops->buffer_create(
	    context->backend, KN_DEVICE, rows * 2 * model->shape.feed_forward * sizeof(float),
	    &buffer));
	context->gate_up = buffer;
	KV_TRY(context->ops->buffer_create(
	    context->backend, KN_DEVICE, rows * sizeof *model->ids, &buffer));
	model->ids = buffer;
	return KV_OK;
}

static enum kv_status build(
    struct gw_model *model, const struct gw_gguf *file, const struct gw_model_options *options)
{
	struct gw_loader loader;
	enum kv_status status;

	model->layers =
	    kv_alloc_array_zero(options->allocator, model->shape.layers, sizeof *model->layers);
	if (!model->layers) return KV_NO_MEMORY;
	KV_TRY(create_scratch(model));
	KV_TRY(gw_loader_init(&loader, file, options));
	status = load_weights(model, &loader);
	gw_loader_deinit(&loader);
	model->context.inverse_frequency = model->inverse_frequency;
	return status;
}

uint64_t gw_model_weight_bound(const struct gw_gguf *file)
{
	uint64_t count = gw_gguf_tensor_count(file), bytes = 0;
	struct gw_gguf_tensor tensor;

	for (uint64_t i = 0; i < count; i++) {
		gw_gguf_tensor_at(file, i, &tensor);
		/* Vectors become floats; matrices begin at a boundary. */
		if (tensor.shape[1] > 1)
			bytes += (tensor.bytes + WEIGHT_ALIGNMENT - 1) & ~(uint64_t)(WEIGHT_ALIGNMENT - 1);
		else
			bytes += tensor.shape[0] * sizeof(float);
	}
	return bytes + KN_MAX_HEAD_DIM / 2 * sizeof(float);
}

uint64_t gw_model_activation_bytes(const struct gw_model_shape *shape, uint32_t max_rows)
{
	uint64_t width = shape->hidden + (uint64_t)2 * shape->feed_forward;

	return max_rows * (width * sizeof(float) + sizeof(int32_t));
}

enum kv_status gw_model_read_shape(const struct gw_gguf *file, struct gw_model_shape *shape)
{
	const struct gw_architecture *architecture;

	KV_TRY(gw_architecture_of(file, &architecture));
	return architecture->read_shape(file, shape);
}

enum kv_status gw_model_open(
    const struct gw_gguf *file, const struct gw_model_options *options, struct gw_model **model)
{
	struct gw_model *opened;
	enum kv_status status;

	KV_TRY(check_options(options));
	opened = kv_alloc_zero(options->allocator, sizeof *opened);
	if (!opened) return KV_NO_MEMORY;
	opened->allocator = options->allocator;
	opened->max_rows = options->max_rows;
	opened->context.ops = options->ops;
	opened->context.backend = options->backend;
	opened->context.stream = options->stream;
	opened->context.shape = &opened->shape;
	KV_TRY_GOTO(status, gw_architecture_of(file, &opened->architecture), failed);
	opened->context.adjacent_pairs = opened->architecture->adjacent_pairs;
	KV_TRY_GOTO(status, opened->architecture->read_shape(file, &opened->shape), failed);
	KV_TRY_GOTO(status, build(opened, file, options), failed);
	*model = opened;
	return KV_OK;

failed:
	gw_model_close(opened);
	return status;
}

void gw_model_close(struct gw_model *model)
{
	const struct kn_backend_ops *ops;
	struct kn_backend *backend;

	if (!model) return;
	ops = model->context.ops;
	backend = model->context.backend;
	for (uint32_t i = 0; model->layers && i < model->shape.layers; i++)
		gw_block_unload(ops, backend, &model->layers[i]);
	kv_free(model->allocator, model->layers);
	if (model->embedding) ops->weight_destroy(backend, model->embedding);
	if (model->output) ops->weight_destroy(backend, model->output);
	if (model->output_norm) ops->buffer_destroy(backend, model->output_norm);
	if (model->inverse_frequency) ops->buffer_destroy(backend, model->inverse_frequency);
	if (model->ids) ops->buffer_destroy(backend, model->ids);
	if (model->context.normed) ops->buffer_destroy(backend, model->context.normed);
	if (model->context.gate_up) ops->buffer_destroy(backend, model->context.gate_up);
	kv_free(model->allocator, model);
}

const struct gw_model_shape *gw_model_shape(const struct gw_model *model)
{
	return &model->shape;
}

const char *gw_model_architecture(const struct gw_model *model)
{
	return model->architecture->name;
}

uint64_t gw_model_weight_bytes(const struct gw_model *model)
{
	return model->weight_bytes;
}

uint32_t gw_model_qkv_width(const struct gw_model *model)
{
	return gw_block_qkv_width(&model->shape);
}

static enum kv_status check_call(const struct gw_model *model, uint32_t layer, uint32_t count)
{
	if (layer >= model->shape.layers) {
		return kv_fail(
		    KV_INVALID, "layer %" PRIu32 " of a model of %" PRIu32, layer, model->shape.layers);
	}
	if (count < 1 || count > model->max_rows) {
		return kv_fail(KV_INVALID,
		    "%" PRIu32 " rows in one call; the model was opened for 1 to %" PRIu32, count,
		    model->max_rows);
	}
	return KV_OK;
}

enum kv_status gw_model_embed(struct gw_model *model, const int32_t *ids, uint32_t count, float *x)
{
	const struct gw_block_context *context = &model->context;
	const struct kn_embed_arguments embed = {
	    .table = model->embedding,
	    .ids = model->ids,
	    .out = x,
	    .count = count,
	};

	KV_TRY(check_call(model, 0, count));
	KV_TRY(context->ops->upload(
	    context->backend, context->stream, model->ids, ids, count * sizeof *ids));
	return context->ops->embed(context->backend, context->stream, &embed);
}

enum kv_status gw_model_project(struct gw_model *model, uint32_t layer, const float *x,
    const uint32_t *positions, uint32_t count, float *qkv)
{
	KV_TRY(check_call(model, layer, count));
	return gw_block_project(&model->context, &model->layers[layer], x, positions, count, qkv);
}

enum kv_status gw_model_finish(
    struct gw_model *model, uint32_t layer, const float *attention, uint32_t count, float *x)
{
	KV_TRY(check_call(model, layer, count));
	KV_TRY(gw_block_attention_output(&model->context, &model->layers[layer], attention, count, x));
	return gw_block_feed_forward(&model->context, &model->layers[layer], count, x);
}

enum kv_status gw_model_logits(
    struct gw_model *model, const float *x, uint32_t count, float *logits)
{
	const struct gw_block_context *context = &model->context;
	const struct kn_matmul_arguments product = {
	    .weight = model->output ? model->output : model->embedding,
	    .x = context->normed,
	    .x_stride = model->shape.hidden,
	    .y = logits,
	    .y_stride = model->shape.vocabulary,
	    .count = count,
	};

	KV_TRY(check_call(model, 0, count));
	KV_TRY(gw_block_norm(context, x, model->output_norm, count, context->normed));
	return context->ops->matmul(context->backend, context->stream, &product);
}
