/* A token for each of some sequences:
 *
 *     fold → embed → per layer: project → append → score, select → lookup → fetch → attend → finish
 *     → logits
 *
 * Where a device can look clusters up by itself, it does all of it (device_step.c).
 * A sequence that cannot go on drops out before the step; the others do not notice. */
#include <string.h>

#include "common/base/clock.h"
#include "gpu-worker/pipeline/device_step.h"
#include "gpu-worker/pipeline/step.h"

enum kv_status gw_append_batch(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, uint32_t layer)
{
	const struct gw_model_shape *shape = pipeline->shape;
	size_t width = gw_model_qkv_width(pipeline->options.model);

	for (uint32_t i = 0; i < count; i++) {
		struct gw_token_rows *recent = &batch[i]->layers[layer].recent;
		struct kn_store_kv_arguments a = {0};

		if (recent->count == recent->capacity)
			return kv_fail(KV_INTERNAL, "layer %u has no room for token %u", layer,
				batch[i]->kv_count);
		a.k = pipeline->qkv + i * width + (size_t)shape->heads * shape->head_dim;
		a.v = a.k + (size_t)shape->kv_heads * shape->head_dim;
		a.k_stride = a.v_stride = width;
		a.rows = gw_token_rows_at(recent, 0, recent->count);
		a.token_stride = pipeline->row_bytes;
		a.head_stride = recent->capacity * pipeline->row_bytes;
		a.kv_type = pipeline->options.kv_type;
		a.count = 1;
		a.kv_heads = shape->kv_heads;
		a.head_dim = shape->head_dim;
		KV_TRY(pipeline->options.ops->store_kv(pipeline->options.backend,
			pipeline->options.stream, &a));
		recent->count++;
	}
	return KV_OK;
}

static enum kv_status audit(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, uint32_t layer)
{
	size_t width = gw_model_qkv_width(pipeline->options.model);
	size_t out = (size_t)pipeline->shape->heads * pipeline->shape->head_dim;

	for (uint32_t i = 0; pipeline->options.audit && i < count; i++)
		KV_TRY(gw_audit_row(batch[i], layer, pipeline->qkv + i * width,
			pipeline->attention + i * out,
			pipeline->selections + (size_t)i * pipeline->shape->kv_heads));
	return KV_OK;
}

static enum kv_status run_layer(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, uint32_t layer)
{
	struct gw_model *model = pipeline->options.model;
	uint64_t start;

	KV_TRY(gw_model_project(model, layer, pipeline->x, pipeline->positions, count, pipeline->qkv));
	KV_TRY(gw_append_batch(pipeline, batch, count, layer));
	start = kv_now_ns();
	KV_TRY(gw_select_batch(pipeline, batch, count, layer));
	for (uint32_t i = 0; i < count; i++)
		batch[i]->report.select_seconds += kv_seconds_since(start) / count;
	KV_TRY(gw_attend_batch(pipeline, batch, count, layer));
	KV_TRY(audit(pipeline, batch, count, layer));
	return gw_model_finish(model, layer, pipeline->attention, count, pipeline->x);
}

/* Straight to the caller where the backend can write there. */
enum kv_status gw_queue_logits(struct gw_pipeline *pipeline, uint32_t count, float *logits)
{
	struct gw_model *model = pipeline->options.model;
	size_t bytes = (size_t)count * pipeline->shape->vocabulary * sizeof *logits;

	if (pipeline->logits == NULL) return gw_model_logits(model, pipeline->x, count, logits);
	KV_TRY(gw_model_logits(model, pipeline->x, count, pipeline->logits));
	return kn_device_download(&pipeline->device, logits, pipeline->logits, bytes);
}

static enum kv_status queue_layers(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, float *logits)
{
	KV_TRY(gw_model_embed(pipeline->options.model, pipeline->ids, count, pipeline->x));
	for (uint32_t layer = 0; layer < pipeline->shape->layers; layer++)
		KV_TRY(run_layer(pipeline, batch, count, layer));
	return gw_queue_logits(pipeline, count, logits);
}

/* The host looks clusters up and fetches them, layer by layer. */
static enum kv_status host_step(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, float *logits)
{
	const struct kn_device *device = &pipeline->device;
	enum kv_status queued, ended;

	KV_TRY(device->ops->step_begin(device->backend, device->stream, count));
	queued = queue_layers(pipeline, batch, count, logits);
	ended = device->ops->step_end(device->backend, device->stream);
	KV_TRY(queued);
	KV_TRY(ended);
	return kn_device_wait(device);
}

static enum kv_status run_step(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, float *logits)
{
	int done = 0;

	for (uint32_t i = 0; i < count; i++) {
		pipeline->ids[i] = batch[i]->tokens[batch[i]->kv_count];
		pipeline->positions[i] = batch[i]->kv_count;
	}
	KV_TRY(gw_device_step(pipeline, batch, count, logits, &done));
	if (!done) KV_TRY(host_step(pipeline, batch, count, logits));
	for (uint32_t i = 0; i < count; i++)
		batch[i]->kv_count++;
	return KV_OK;
}

/* May this sequence take part? Its lease must hold, and its window must have room. */
static enum kv_status prepare(struct gw_sequence *sequence)
{
	sequence->refused = 0;
	if (sequence->failed != KV_OK) {
		kv_fail(sequence->failed, "%s", sequence->failure);
		return sequence->failed;
	}
	if (sequence->kv_count >= sequence->token_count)
		return kv_fail(KV_INVALID, "no token was accepted since the last step");
	if (sequence->stored == NULL) return KV_OK;
	KV_TRY(kvc_sequence_check(sequence->stored));
	return gw_fold_due(sequence) ? gw_fold(sequence) : KV_OK;
}

/* Segment ids are unique within one life of the store only. */
static void follow_generation(struct gw_pipeline *pipeline)
{
	uint64_t generation;

	if (pipeline->cache == NULL) return;
	generation = kvc_generation(pipeline->options.store);
	if (generation != pipeline->generation) gw_cluster_cache_clear(pipeline->cache);
	pipeline->generation = generation;
	gw_cluster_cache_step(pipeline->cache);
}

enum kv_status gw_run_token(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, float *logits, enum kv_status *failures)
{
	struct gw_sequence *ready[KN_MAX_DECODE_ROWS];
	uint32_t place[KN_MAX_DECODE_ROWS], ready_count = 0;
	uint64_t start = kv_now_ns();
	enum kv_status status;

	if (count == 0 || count > pipeline->options.max_batch)
		return kv_fail(KV_INVALID, "step of %u sequences: must be 1 to %u", count,
			pipeline->options.max_batch);
	follow_generation(pipeline);
	for (uint32_t i = 0; i < count; i++) {
		failures[i] = prepare(batch[i]);
		if (failures[i] != KV_OK) {
			gw_pipeline_settle(pipeline);
			gw_sequence_fail(batch[i], failures[i]);
			/* Nothing was changed by it. */
			if (batch[i]->refused) batch[i]->failed = KV_OK;
			continue;
		}
		place[ready_count] = i;
		ready[ready_count++] = batch[i];
	}
	if (ready_count == 0) return KV_OK;
	status = run_step(pipeline, ready, ready_count, logits);
	if (status != KV_OK) gw_pipeline_settle(pipeline);
	for (uint32_t j = 0; j < ready_count; j++) {
		failures[place[j]] = status;
		ready[j]->report.decode_seconds += kv_seconds_since(start);
		ready[j]->report.decode_steps++;
		if (status != KV_OK) gw_sequence_fail(ready[j], status);
	}
	/* Rows of logits follow the batch, not those that were ready. */
	for (uint32_t j = ready_count; status == KV_OK && j-- > 0;)
		if (place[j] != j)
			memmove(logits + (size_t)place[j] * pipeline->shape->vocabulary,
				logits + (size_t)j * pipeline->shape->vocabulary,
				pipeline->shape->vocabulary * sizeof *logits);
	return KV_OK;
}

/* Put what the list holds where decoding needs it. */
static enum kv_status attach(struct gw_sequence *sequence)
{
	struct gw_pipeline *pipeline = sequence->pipeline;
	const struct kvc_segment *last = sequence->segments[sequence->segment_count - 1];
	uint8_t *buffer = kv_alloc(pipeline->options.allocator, gw_attach_buffer_bytes(sequence));
	enum kv_status status = KV_OK;

	if (buffer == NULL) return KV_NO_MEMORY;
	for (uint32_t layer = 0; layer < pipeline->shape->layers && status == KV_OK; layer++)
		status = gw_attach_layer(sequence, &pipeline->device, layer, buffer);
	if (status != KV_OK) gw_pipeline_settle(pipeline);
	kv_free(pipeline->options.allocator, buffer);
	KV_TRY(status);
	sequence->kv_count = last->start + last->tokens;
	sequence->window_start = last->kind == KVW_PLAIN ? last->start : sequence->kv_count;
	return kvc_sequence_check(sequence->stored);
}

/* From the list where it is whole, else from the prompt; folds come at the same counts. */
enum kv_status gw_sequence_replay_step(struct gw_sequence *sequence, float *logits,
	gw_progress *progress, void *progress_context, int *done)
{
	struct gw_sequence *batch[1] = {sequence};
	enum kv_status failure = KV_OK;

	if (!sequence->replaying) {
		if (gw_attach_whole(sequence))
			KV_TRY(attach(sequence));
		else
			KV_TRY(gw_run_prompt(sequence, logits, NULL, progress, progress_context));
		sequence->replaying = 1;
	} else {
		KV_TRY(gw_run_token(sequence->pipeline, batch, 1, logits, &failure));
		KV_TRY(failure);
	}
	*done = sequence->kv_count >= sequence->token_count;
	return KV_OK;
}

enum kv_status gw_sequence_replay(struct gw_sequence *sequence, float *logits,
	gw_progress *progress, void *progress_context)
{
	int done = 0;

	while (!done)
		KV_TRY(gw_sequence_replay_step(sequence, logits, progress, progress_context, &done));
	return KV_OK;
}
