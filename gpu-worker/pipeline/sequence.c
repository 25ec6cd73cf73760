/* A sequence's life: opened (memory is taken, the known prefix attached), resumed, closed. */
#include <stdio.h>
#include <string.h>

#include "gpu-worker/pipeline/device_step.h"
#include "gpu-worker/pipeline/step.h"

enum { ROOM_BYTES = sizeof(uint32_t) };

void gw_sequence_fail(struct gw_sequence *sequence, enum kv_status status)
{
	sequence->failed = status;
	snprintf(sequence->failure, sizeof sequence->failure, "%s", kv_error_message());
}

const char *gw_sequence_failure(const struct gw_sequence *sequence)
{
	return sequence->failure;
}

int gw_sequence_refused(const struct gw_sequence *sequence)
{
	return sequence->refused;
}

/* Most clusters that a head of a clustered layer can come to have. */
static uint32_t cluster_bound(const struct gw_sequence *sequence)
{
	return gw_cluster_bound(sequence->token_capacity, sequence->segment_capacity,
		&sequence->pipeline->options.policy);
}

static enum kv_status create_index(struct gw_sequence *sequence, struct gw_layer_state *state)
{
	struct gw_pipeline *pipeline = sequence->pipeline;
	struct kv_allocator *allocator = pipeline->options.allocator;
	uint32_t kv_heads = pipeline->shape->kv_heads, clusters = cluster_bound(sequence);

	KV_TRY(gw_cluster_index_create(allocator, &pipeline->device, kv_heads,
		pipeline->shape->head_dim, clusters, sequence->segment_capacity, &state->index));
	state->slot_hints =
		kv_alloc_array_zero(allocator, (size_t)kv_heads * clusters, sizeof *state->slot_hints);
	return state->slot_hints != NULL ? KV_OK : KV_NO_MEMORY;
}

/* Sinks and windows of all clustered layers are one buffer, large enough for large pages: a step
 * reads all of it. */
static enum kv_status keep_rows(struct gw_sequence *sequence)
{
	struct gw_pipeline *pipeline = sequence->pipeline;
	const struct gw_pipeline_options *o = &pipeline->options;
	uint32_t kv_heads = pipeline->shape->kv_heads, window = o->policy.window + o->policy.fold;
	size_t sink_bytes = gw_token_rows_bytes(kv_heads, o->policy.sinks, pipeline->row_bytes);
	size_t layer_bytes = sink_bytes + gw_token_rows_bytes(kv_heads, window, pipeline->row_bytes);
	uint32_t clustered = 0;
	uint8_t *at;

	for (uint32_t layer = 0; layer < pipeline->shape->layers; layer++)
		clustered += sequence->layers[layer].index != NULL;
	if (clustered == 0) return KV_OK;
	KV_TRY(kn_device_alloc(&pipeline->device, KN_DEVICE, clustered * layer_bytes,
		&sequence->kept_rows));
	at = sequence->kept_rows;
	for (uint32_t layer = 0; layer < pipeline->shape->layers; layer++) {
		struct gw_layer_state *state = &sequence->layers[layer];

		if (state->index == NULL) continue;
		gw_token_rows_init_at(&state->sinks, &pipeline->device, at, kv_heads, o->policy.sinks,
			pipeline->row_bytes);
		gw_token_rows_init_at(&state->recent, &pipeline->device, at + sink_bytes, kv_heads, window,
			pipeline->row_bytes);
		at += layer_bytes;
	}
	return KV_OK;
}

static enum kv_status create_layers(struct gw_sequence *sequence)
{
	struct gw_pipeline *pipeline = sequence->pipeline;
	const struct gw_pipeline_options *o = &pipeline->options;

	sequence->layers = kv_alloc_array_zero(o->allocator, pipeline->shape->layers,
		sizeof *sequence->layers);
	if (sequence->layers == NULL) return KV_NO_MEMORY;
	for (uint32_t layer = 0; layer < pipeline->shape->layers; layer++) {
		struct gw_layer_state *state = &sequence->layers[layer];

		state->ops = pipeline->policy->layer(&o->policy, layer);
		if (state->ops->clustered)
			KV_TRY(create_index(sequence, state));
		else
			KV_TRY(gw_token_rows_init(&state->recent, &pipeline->device,
				pipeline->shape->kv_heads, sequence->token_capacity, pipeline->row_bytes));
	}
	return keep_rows(sequence);
}

/* The pipeline's own memory follows the longest sequence. */
enum kv_status gw_step_reserve(struct gw_pipeline *pipeline, uint32_t tokens, uint32_t clusters)
{
	const struct gw_pipeline_options *o = &pipeline->options;
	uint32_t selected = o->policy.budget < tokens ? o->policy.budget : tokens;

	if (pipeline->cache != NULL &&
		(pipeline->select_scratch == NULL || clusters > pipeline->max_clusters)) {
		struct gw_select_scratch *scratch;

		KV_TRY(gw_select_scratch_create(o->allocator, &pipeline->device, o->max_batch,
			pipeline->shape, clusters, &scratch));
		gw_select_scratch_destroy(pipeline->select_scratch);
		pipeline->select_scratch = scratch;
		pipeline->max_clusters = clusters;
	}
	if (pipeline->policy->offloads) KV_TRY(gw_offload_reserve(pipeline, tokens));
	KV_TRY(gw_round_reserve(pipeline, pipeline->cache != NULL ? pipeline->max_clusters : 0,
		selected));
	return gw_device_step_reserve(pipeline, pipeline->max_clusters, selected);
}

static enum kv_status create(struct gw_pipeline *pipeline, uint32_t prompt_tokens,
	uint32_t max_tokens, struct gw_sequence **sequence)
{
	const struct gw_pipeline_options *o = &pipeline->options;
	uint64_t capacity = (uint64_t)prompt_tokens + max_tokens;
	struct gw_sequence *made;

	if (prompt_tokens == 0)
		return kv_fail(KV_INVALID, "the prompt is empty; give at least one token");
	if (capacity > o->context)
		return kv_fail(KV_LIMIT,
			"prompt of %u tokens and %u to generate need %llu, the %s context is %u; "
			"shorten the prompt or lower the number of tokens to generate",
			prompt_tokens, max_tokens, (unsigned long long)capacity,
			o->context < pipeline->shape->context ? "worker's" : "model's", o->context);
	made = kv_alloc_zero(o->allocator, sizeof *made);
	if (made == NULL) return KV_NO_MEMORY;
	*sequence = made;
	made->pipeline = pipeline;
	made->prompt_tokens = prompt_tokens;
	made->token_capacity = (uint32_t)capacity;
	made->segment_capacity = gw_segment_bound(prompt_tokens, made->token_capacity, &o->policy);
	made->tokens = kv_alloc_array(o->allocator, made->token_capacity, sizeof *made->tokens);
	made->units = kv_alloc_array(o->allocator, made->segment_capacity, sizeof *made->units);
	made->cuts = kv_alloc_array(o->allocator, made->segment_capacity, sizeof *made->cuts);
	if (!made->tokens || !made->units || !made->cuts) return KV_NO_MEMORY;
	KV_TRY(create_layers(made));
	KV_TRY(gw_step_map_create(made));
	return gw_step_reserve(pipeline, made->token_capacity, cluster_bound(made));
}

uint64_t gw_sequence_bytes(const struct gw_pipeline *pipeline, uint32_t prompt_tokens,
	uint32_t max_tokens)
{
	const struct gw_policy_options *policy = &pipeline->options.policy;
	const struct gw_model_shape *shape = pipeline->shape;
	uint64_t clustered = gw_clustered_layers(shape, pipeline->policy, policy);
	uint64_t row = shape->kv_heads * pipeline->row_bytes;
	uint32_t capacity = prompt_tokens + max_tokens;
	uint32_t segments = gw_segmentation_bound(prompt_tokens, policy) + capacity / policy->fold + 2;
	uint32_t clusters = capacity / policy->cluster_tokens + segments;
	uint64_t layer = row * (policy->sinks + policy->window + policy->fold) +
		gw_cluster_index_bytes(shape->kv_heads, shape->head_dim, clusters) +
		(uint64_t)shape->kv_heads * clusters * sizeof(uint32_t);

	return (shape->layers - clustered) * capacity * row + clustered * layer +
		prompt_tokens * (shape->hidden * sizeof(float) + row);
}

static enum kv_status check_tokens(const struct gw_pipeline *pipeline, const int32_t *tokens,
	uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (tokens[i] < 0 || (uint32_t)tokens[i] >= pipeline->shape->vocabulary)
			return kv_fail(KV_INVALID, "token %d at position %u is outside the vocabulary of %u",
				(int)tokens[i], i, pipeline->shape->vocabulary);
	return KV_OK;
}

/* The store keeps the room for decoded tokens before the caller's parameters: who resumes the
 * sequence must take as much. */
static enum kv_status pack_parameters(struct kv_allocator *allocator,
	const struct gw_sequence_request *request, uint8_t **packed)
{
	uint8_t *made = kv_alloc(allocator, ROOM_BYTES + request->parameter_bytes);

	if (made == NULL) return KV_NO_MEMORY;
	memcpy(made, &request->max_tokens, ROOM_BYTES);
	if (request->parameter_bytes > 0)
		memcpy(made + ROOM_BYTES, request->parameters, request->parameter_bytes);
	*packed = made;
	return KV_OK;
}

static enum kv_status unpack_parameters(struct kvc_resume_state *state, uint32_t *max_tokens)
{
	if (state->parameter_bytes < ROOM_BYTES)
		return kv_fail(KV_CORRUPT, "stored parameters have %zu bytes", state->parameter_bytes);
	memcpy(max_tokens, state->parameters, ROOM_BYTES);
	state->parameters = (const uint8_t *)state->parameters + ROOM_BYTES;
	state->parameter_bytes -= ROOM_BYTES;
	return KV_OK;
}

static enum kv_status open_stored(struct gw_sequence *sequence,
	const struct gw_sequence_request *request)
{
	struct gw_pipeline *pipeline = sequence->pipeline;
	const struct gw_pipeline_options *o = &pipeline->options;
	struct kvc_open_request open = {0};
	uint8_t *parameters = NULL;
	enum kv_status status;
	uint32_t hit = 0;

	open.sequence_id = request->id;
	open.prompt = sequence->tokens;
	open.prompt_tokens = sequence->prompt_tokens;
	open.cuts = sequence->cuts;
	open.cut_count = sequence->cut_count;
	memcpy(open.policy_digest, pipeline->policy_digest, sizeof open.policy_digest);
	KV_TRY(pack_parameters(o->allocator, request, &parameters));
	open.parameters = parameters;
	open.parameter_bytes = ROOM_BYTES + request->parameter_bytes;
	status = kvc_sequence_open(o->store, &open, &sequence->stored);
	kv_free(o->allocator, parameters);
	KV_TRY(status);
	KV_TRY(gw_attach_list(sequence));
	KV_TRY(gw_attach_known(sequence, &hit));
	/* The last token is always run: its logits are not stored. */
	sequence->prefix_hit = hit < sequence->prompt_tokens ? hit : sequence->prompt_tokens - 1;
	return KV_OK;
}

enum kv_status gw_sequence_open(struct gw_pipeline *pipeline,
	const struct gw_sequence_request *request, struct gw_sequence **sequence)
{
	struct gw_sequence *made = NULL;
	enum kv_status status;

	KV_TRY(check_tokens(pipeline, request->tokens, request->token_count));
	KV_TRY_GOTO(status, create(pipeline, request->token_count, request->max_tokens, &made), fail);
	memcpy(made->tokens, request->tokens, request->token_count * sizeof *made->tokens);
	made->token_count = request->token_count;
	made->cut_count = gw_segmentation(request->token_count, &pipeline->options.policy, made->cuts,
		made->segment_capacity);
	if (pipeline->policy->offloads) KV_TRY_GOTO(status, open_stored(made, request), fail);
	*sequence = made;
	return KV_OK;
fail:
	gw_sequence_close(made, 0);
	return status;
}

static enum kv_status resume_tokens(struct gw_sequence *sequence,
	const struct kvc_resume_state *state)
{
	memcpy(sequence->tokens, state->prompt, state->prompt_tokens * sizeof *state->prompt);
	memcpy(sequence->tokens + state->prompt_tokens, state->decoded,
		state->decoded_tokens * sizeof *state->decoded);
	sequence->token_count = state->prompt_tokens + state->decoded_tokens;
	sequence->resumed_tokens = sequence->token_count;
	KV_TRY(check_tokens(sequence->pipeline, sequence->tokens, sequence->token_count));
	KV_TRY(gw_attach_list(sequence));
	sequence->cut_count = gw_segmentation(sequence->prompt_tokens,
		&sequence->pipeline->options.policy, sequence->cuts, sequence->segment_capacity);
	sequence->prefix_hit = sequence->prompt_tokens;
	if (gw_attach_whole(sequence)) return KV_OK;
	gw_attach_prompt_only(sequence);
	return gw_attach_known(sequence, &sequence->prefix_hit);
}

enum kv_status gw_sequence_resume(struct gw_pipeline *pipeline, const char *id, uint32_t max_tokens,
	struct gw_sequence **sequence, struct kvc_resume_state *state)
{
	struct kvc_sequence *stored = NULL;
	struct gw_sequence *made = NULL;
	uint32_t stored_room = 0;
	enum kv_status status;

	if (!pipeline->policy->offloads)
		return kv_fail(KV_UNSUPPORTED,
			"policy %s keeps its key/values in the worker: sequence %s cannot be resumed",
			pipeline->policy->name, id);
	KV_TRY(kvc_sequence_resume(pipeline->options.store, id, pipeline->policy_digest, &stored,
		state));
	status = unpack_parameters(state, &stored_room);
	if (max_tokens < stored_room) max_tokens = stored_room;
	if (max_tokens < state->decoded_tokens) max_tokens = state->decoded_tokens;
	if (status == KV_OK) status = create(pipeline, state->prompt_tokens, max_tokens, &made);
	if (made != NULL)
		made->stored = stored;
	else
		kvc_sequence_close(stored, 1);
	if (status == KV_OK) status = resume_tokens(made, state);
	if (status != KV_OK) {
		gw_sequence_close(made, 1);
		return status;
	}
	*sequence = made;
	return KV_OK;
}

void gw_sequence_close(struct gw_sequence *sequence, int keep)
{
	const struct gw_pipeline_options *o;
	struct kv_allocator *allocator;

	if (sequence == NULL) return;
	o = &sequence->pipeline->options;
	allocator = o->allocator;
	if (sequence->stored != NULL) kvc_sequence_close(sequence->stored, keep);
	for (uint32_t layer = 0;
		sequence->layers != NULL && layer < sequence->pipeline->shape->layers; layer++) {
		gw_cluster_index_destroy(sequence->layers[layer].index);
		kv_free(allocator, sequence->layers[layer].slot_hints);
		gw_token_rows_deinit(&sequence->layers[layer].sinks);
		gw_token_rows_deinit(&sequence->layers[layer].recent);
	}
	kn_device_free(&sequence->pipeline->device, sequence->kept_rows);
	gw_step_map_destroy(sequence);
	gw_audit_destroy(sequence);
	kv_free(allocator, sequence->layers);
	kv_free(allocator, sequence->tokens);
	kv_free(allocator, sequence->units);
	kv_free(allocator, sequence->cuts);
	kv_free(allocator, sequence);
}

enum kv_status gw_sequence_accept(struct gw_sequence *sequence, int32_t token,
	const void *sampler_state, size_t sampler_bytes)
{
	if (sequence->token_count == sequence->token_capacity)
		return kv_fail(KV_LIMIT, "sequence of %u tokens is full", sequence->token_count);
	KV_TRY(check_tokens(sequence->pipeline, &token, 1));
	sequence->tokens[sequence->token_count++] = token;
	if (sequence->stored == NULL) return KV_OK;
	return kvc_push(sequence->stored, sequence->tokens + sequence->prompt_tokens,
		sequence->token_count - sequence->prompt_tokens, sampler_state, sampler_bytes);
}

enum kv_status gw_sequence_flush(struct gw_sequence *sequence)
{
	if (sequence->stored == NULL)
		return kv_fail(KV_UNSUPPORTED, "the sequence is in no store");
	if (sequence->degraded_at > 0)
		return kv_fail(KV_UNSUPPORTED, "sequence %s has folds that nobody else may use",
			gw_sequence_id(sequence));
	return kvc_flush(sequence->stored);
}

void gw_sequence_cancel(struct gw_sequence *sequence)
{
	sequence->cancelled = 1;
}

const char *gw_sequence_id(const struct gw_sequence *sequence)
{
	return sequence->stored != NULL ? kvc_sequence_id(sequence->stored) : "";
}

const int32_t *gw_sequence_tokens(const struct gw_sequence *sequence, uint32_t *count)
{
	*count = sequence->token_count;
	return sequence->tokens;
}

uint32_t gw_sequence_prompt_tokens(const struct gw_sequence *sequence)
{
	return sequence->prompt_tokens;
}

uint32_t gw_sequence_resumed_tokens(const struct gw_sequence *sequence)
{
	return sequence->resumed_tokens;
}

uint32_t gw_sequence_capacity(const struct gw_sequence *sequence)
{
	return sequence->token_capacity;
}

uint32_t gw_sequence_prefix_hit(const struct gw_sequence *sequence)
{
	return sequence->prefix_hit;
}

const struct gw_report *gw_sequence_report(const struct gw_sequence *sequence)
{
	return &sequence->report;
}
