#include "gpu-worker/pipeline/pipeline.h"

#include <sodium.h>
#include <string.h>

#include "gpu-worker/pipeline/device_step.h"
#include "gpu-worker/pipeline/step.h"

/* Cache memory that is touched at the start, at most. */
static const uint64_t warm_limit = (uint64_t)256 << 20;

void gw_pipeline_layout(const struct gw_model_shape *shape, const struct gw_policy_options *policy,
	enum kn_kv_type kv_type, struct kvw_model_layout *layout)
{
	uint32_t index[2] = {
		policy->iterations, (policy->center != 0) | (uint32_t)policy->update << 1};

	memset(layout, 0, sizeof *layout);
	layout->layers = shape->layers;
	layout->kv_heads = shape->kv_heads;
	layout->head_dim = shape->head_dim;
	layout->kv_type = kv_type == KN_KV_F32    ? KVW_KV_F32
	                  : kv_type == KN_KV_BF16 ? KVW_KV_BF16
	                                          : KVW_KV_F16;
	layout->dense_layers = policy->dense_layers < shape->layers ? policy->dense_layers
	                                                             : shape->layers;
	layout->sinks = policy->sinks;
	layout->cluster_tokens = policy->cluster_tokens;
	/* Segment and window shape only where prompts are cut, not what a segment holds. */
	memcpy(layout->index_digest, index, sizeof layout->index_digest);
}

void gw_pipeline_model_id(const uint8_t file[32], enum kn_precision precision,
	const struct kvw_model_layout *layout, uint8_t id[32])
{
	uint32_t words[] = {(uint32_t)precision, layout->layers, layout->kv_heads, layout->head_dim,
		layout->kv_type, layout->dense_layers, layout->sinks, layout->cluster_tokens};
	crypto_generichash_state state;

	crypto_generichash_init(&state, NULL, 0, 32);
	crypto_generichash_update(&state, file, 32);
	crypto_generichash_update(&state, (const unsigned char *)words, sizeof words);
	crypto_generichash_update(&state, layout->index_digest, sizeof layout->index_digest);
	crypto_generichash_final(&state, id, 32);
}

/* Everything that changes the bits of approximate key/values. */
static void digest_policy(struct gw_pipeline *pipeline)
{
	const struct gw_policy_options *p = &pipeline->options.policy;
	uint32_t words[] = {p->budget, p->sinks, p->window, p->fold, p->segment, p->cluster_tokens,
		p->dense_layers, p->iterations, (uint32_t)p->size_term, (uint32_t)p->estimate,
		(uint32_t)p->center, (uint32_t)pipeline->options.kv_type};
	crypto_generichash_state state;

	crypto_generichash_init(&state, NULL, 0, sizeof pipeline->policy_digest);
	crypto_generichash_update(&state, (const unsigned char *)pipeline->policy->name,
		strlen(pipeline->policy->name));
	crypto_generichash_update(&state, (const unsigned char *)words, sizeof words);
	crypto_generichash_final(&state, pipeline->policy_digest, sizeof pipeline->policy_digest);
}

uint64_t gw_selected_bytes(const struct gw_model_shape *shape,
	const struct gw_policy_options *policy, size_t row_bytes, uint32_t sequences)
{
	uint32_t tokens = policy->budget < shape->context ? policy->budget : shape->context;

	return (uint64_t)tokens * row_bytes * shape->kv_heads * sequences;
}

uint32_t gw_clustered_layers(const struct gw_model_shape *shape, const struct gw_policy_ops *policy,
	const struct gw_policy_options *options)
{
	uint32_t clustered = 0;

	for (uint32_t layer = 0; layer < shape->layers; layer++)
		clustered += policy->layer(options, layer)->clustered ? 1u : 0u;
	return clustered;
}

static enum kv_status create_cache(struct gw_pipeline *pipeline)
{
	const struct gw_pipeline_options *o = &pipeline->options;
	uint32_t clustered = gw_clustered_layers(pipeline->shape, pipeline->policy, &o->policy);
	uint64_t selected = clustered * gw_selected_bytes(pipeline->shape, &o->policy,
		pipeline->row_bytes, o->max_batch);
	struct gw_cache_options cache = {0};

	if (clustered == 0) return KV_OK;
	cache.allocator = o->allocator;
	cache.device = pipeline->device;
	cache.row_bytes = pipeline->row_bytes;
	cache.recency = o->cache_recency;
	cache.warm_bytes = selected < warm_limit ? selected : warm_limit;
	cache.capacity_bytes = o->cache_bytes > 0 ? o->cache_bytes : 2 * selected;
	/* Twice a tiny budget can be less than what a cache is made of. */
	if (o->cache_bytes == 0 && cache.capacity_bytes < GW_CACHE_PAGE_ROWS * pipeline->row_bytes)
		cache.capacity_bytes = GW_CACHE_PAGE_ROWS * pipeline->row_bytes;
	return gw_cluster_cache_create(&cache, &pipeline->cache);
}

static enum kv_status create_floats(struct gw_pipeline *pipeline, size_t rows, size_t width,
	float **floats)
{
	void *memory = NULL;

	KV_TRY(kn_device_alloc(&pipeline->device, KN_DEVICE, rows * width * sizeof(float), &memory));
	*floats = memory;
	return KV_OK;
}

static enum kv_status create_rows(struct gw_pipeline *pipeline)
{
	const struct gw_pipeline_options *o = &pipeline->options;
	const struct gw_model_shape *shape = pipeline->shape;
	size_t rows = o->chunk > o->max_batch ? o->chunk : o->max_batch;
	void *memory = NULL;

	KV_TRY(create_floats(pipeline, rows, shape->hidden, &pipeline->x));
	KV_TRY(create_floats(pipeline, rows, gw_model_qkv_width(o->model), &pipeline->qkv));
	KV_TRY(create_floats(pipeline, rows, (size_t)shape->heads * shape->head_dim,
		&pipeline->attention));
	if (!o->ops->unified)
		KV_TRY(create_floats(pipeline, o->max_batch, shape->vocabulary, &pipeline->logits));
	KV_TRY(kn_device_alloc(&pipeline->device, KN_SHARED,
		o->max_batch * sizeof *pipeline->positions, &memory));
	pipeline->positions = memory;
	pipeline->ids = kv_alloc_array(o->allocator, o->max_batch, sizeof *pipeline->ids);
	pipeline->selections = kv_alloc_array_zero(o->allocator,
		(size_t)o->max_batch * shape->kv_heads, sizeof *pipeline->selections);
	pipeline->rows = kv_alloc_array_zero(o->allocator, o->max_batch, sizeof *pipeline->rows);
	if (!pipeline->ids || !pipeline->selections || !pipeline->rows)
		return KV_NO_MEMORY;
	return KV_OK;
}

/* --audit reads all key/values and adds up what it computes from them: on memory of the host. */
static enum kv_status open_audit(struct gw_pipeline *pipeline)
{
	const struct gw_pipeline_options *o = &pipeline->options;
	struct kn_backend_options cpu = {.allocator = o->allocator};
	struct kn_device *device = &pipeline->audit_device;

	if (!o->audit || o->ops->unified) {
		*device = pipeline->device;
		return KV_OK;
	}
	KV_TRY(kn_backend_open("cpu", &cpu, &device->ops, &device->backend));
	return device->ops->stream_create(device->backend, KN_STREAM_COMPUTE, &device->stream);
}

static void close_audit(struct gw_pipeline *pipeline)
{
	struct kn_device *device = &pipeline->audit_device;

	if (device->backend == NULL || device->backend == pipeline->device.backend) return;
	if (device->stream != NULL) device->ops->stream_destroy(device->backend, device->stream);
	device->ops->close(device->backend);
}

static enum kv_status open_background(struct gw_pipeline *pipeline)
{
	struct kn_device *background = &pipeline->background;
	struct kn_stream *stream = NULL;

	*background = pipeline->device;
	if (background->ops->unified || !pipeline->policy->offloads) return KV_OK;
	KV_TRY(background->ops->stream_create(background->backend, KN_STREAM_BACKGROUND, &stream));
	background->stream = stream;
	return KV_OK;
}

static void close_background(struct gw_pipeline *pipeline)
{
	struct kn_device *background = &pipeline->background;

	if (background->backend == NULL || background->stream == pipeline->device.stream) return;
	background->ops->stream_destroy(background->backend, background->stream);
}

/* What becomes a segment of its own must be one that a store takes. */
static enum kv_status check_segment(const char *option, uint32_t tokens)
{
	if (tokens <= KVW_MAX_SEGMENT_TOKENS) return KV_OK;
	return kv_fail(KV_INVALID, "--%s %u: a segment has at most %d tokens", option, tokens,
		(int)KVW_MAX_SEGMENT_TOKENS);
}

static enum kv_status check_options(const struct gw_pipeline_options *o,
	const struct gw_policy_ops *policy)
{
	KV_TRY(gw_policy_options_check(&o->policy));
	KV_TRY(check_segment("segment", o->policy.segment));
	KV_TRY(check_segment("window", o->policy.window));
	KV_TRY(check_segment("fold", o->policy.fold));
	if (o->chunk < 1) return kv_fail(KV_INVALID, "--chunk 0: must be at least 1 row");
	if (o->max_batch < 1 || o->max_batch > KN_MAX_DECODE_ROWS)
		return kv_fail(KV_INVALID, "--max-batch %u: must be 1 to %d", o->max_batch,
			KN_MAX_DECODE_ROWS);
	if (policy->offloads && o->store == NULL)
		return kv_fail(KV_INVALID, "policy %s offloads key/values and has no store", policy->name);
	return KV_OK;
}

/* For the longest sequence that there can be. */
static enum kv_status reserve(struct gw_pipeline *pipeline)
{
	const struct gw_policy_options *policy = &pipeline->options.policy;
	uint32_t tokens = pipeline->options.context;
	uint32_t segments = gw_segment_bound(tokens, tokens, policy);

	KV_TRY(gw_step_reserve(pipeline, tokens, gw_cluster_bound(tokens, segments, policy)));
	if (pipeline->background.stream == pipeline->device.stream) return KV_OK;
	return pipeline->background.ops->stream_reserve(pipeline->background.backend,
		pipeline->background.stream, &pipeline->options.background);
}

enum kv_status gw_pipeline_create(const struct gw_pipeline_options *options,
	struct gw_pipeline **pipeline)
{
	const struct gw_policy_ops *policy;
	struct gw_pipeline *made;
	enum kv_status status;

	KV_TRY(gw_policy_find(options->policy.name, &policy));
	made = kv_alloc_zero(options->allocator, sizeof *made);
	if (made == NULL) return KV_NO_MEMORY;
	made->options = *options;
	made->device = (struct kn_device){options->ops, options->backend, options->stream};
	made->policy = policy;
	policy->adjust(&made->options.policy);
	made->shape = gw_model_shape(options->model);
	if (options->context == 0 || options->context > made->shape->context)
		made->options.context = made->shape->context;
	made->row_bytes = kn_kv_row_bytes(options->kv_type, made->shape->head_dim);
	gw_pipeline_layout(made->shape, &made->options.policy, options->kv_type, &made->layout);
	KV_TRY_GOTO(status, check_options(&made->options, policy), fail);
	KV_TRY_GOTO(status, kvw_model_layout_check(&made->layout), fail);
	digest_policy(made);
	KV_TRY_GOTO(status, open_background(made), fail);
	KV_TRY_GOTO(status, create_cache(made), fail);
	KV_TRY_GOTO(status, create_rows(made), fail);
	KV_TRY_GOTO(status, open_audit(made), fail);
	if (options->store != NULL) made->generation = kvc_generation(options->store);
	KV_TRY_GOTO(status, gw_device_step_create(made), fail);
	if (options->reserve) KV_TRY_GOTO(status, reserve(made), fail);
	*pipeline = made;
	return KV_OK;
fail:
	gw_pipeline_destroy(made);
	return status;
}

void gw_pipeline_destroy(struct gw_pipeline *pipeline)
{
	const struct gw_pipeline_options *o;

	if (pipeline == NULL) return;
	o = &pipeline->options;
	gw_device_step_destroy(pipeline);
	gw_round_destroy(pipeline);
	gw_offload_destroy(pipeline);
	gw_select_scratch_destroy(pipeline->select_scratch);
	gw_cluster_cache_destroy(pipeline->cache);
	kn_device_free(&pipeline->device, pipeline->x);
	kn_device_free(&pipeline->device, pipeline->qkv);
	kn_device_free(&pipeline->device, pipeline->attention);
	kn_device_free(&pipeline->device, pipeline->logits);
	kn_device_free(&pipeline->device, pipeline->positions);
	close_audit(pipeline);
	close_background(pipeline);
	kv_free(o->allocator, pipeline->ids);
	kv_free(o->allocator, pipeline->selections);
	kv_free(o->allocator, pipeline->rows);
	kv_free(o->allocator, pipeline);
}

struct gw_cache_stats gw_pipeline_cache_stats(const struct gw_pipeline *pipeline)
{
	const struct gw_cache_stats none = {0};

	return pipeline->cache != NULL ? gw_cluster_cache_stats(pipeline->cache) : none;
}

const struct gw_pipeline_options *gw_pipeline_options(const struct gw_pipeline *pipeline)
{
	return &pipeline->options;
}
