/* From token-order rows of one layer to stored units: cluster, order, write. */
#include <string.h>

#include "common/base/clock.h"
#include "gpu-worker/pipeline/step.h"

struct offload {
	struct gw_sequence *sequence;
	struct gw_pipeline *pipeline;
	const struct gw_source_rows *source;
	uint32_t layer;
	struct gw_unit units[GW_OFFLOAD_UNITS];
	uint8_t *memory[GW_OFFLOAD_UNITS]; /* of the host, to be written */
	/* Unless unified: backend memory laid out as head blocks are, up to the positions. */
	uint8_t *metadata[GW_OFFLOAD_UNITS];
	size_t metadata_used;
	struct kn_index_job *jobs;  /* [count × kv_heads] */
	uint32_t *order;            /* [kv_heads][tokens of the source] */
};

void gw_offload_destroy(struct gw_pipeline *pipeline)
{
	kv_free(pipeline->options.allocator, pipeline->offload.jobs);
	kn_device_free(&pipeline->device, pipeline->offload.order);
	kn_device_free(&pipeline->device, pipeline->offload.metadata);
	kn_device_free(&pipeline->device, pipeline->offload.rows);
	pipeline->offload = (struct gw_offload_scratch){0};
}

static uint32_t larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* Metadata of as many units as are begun together, of `tokens` tokens in all. */
static size_t metadata_bound(const struct gw_model_shape *shape,
	const struct gw_policy_options *policy, uint32_t tokens)
{
	size_t clusters = tokens / policy->cluster_tokens + GW_OFFLOAD_UNITS;
	size_t cluster_bytes = 4 * (size_t)shape->head_dim + 4;

	return shape->kv_heads * (clusters * cluster_bytes + (size_t)3 * 64 * GW_OFFLOAD_UNITS);
}

uint32_t gw_offload_row_bound(const struct gw_policy_options *policy, uint32_t tokens)
{
	uint32_t rows = larger(policy->segment, larger(policy->window, policy->fold));

	return rows < tokens ? rows : tokens;
}

size_t gw_offload_device_bytes(const struct gw_model_shape *shape,
	const struct gw_policy_options *policy, size_t row_bytes, uint32_t tokens)
{
	return metadata_bound(shape, policy, tokens) + gw_offload_row_bound(policy, tokens) * row_bytes;
}

/* What units are made in before the host has them. */
static enum kv_status reserve_unit_memory(struct gw_pipeline *pipeline, uint32_t tokens)
{
	const struct gw_policy_options *policy = &pipeline->options.policy;
	struct gw_offload_scratch *scratch = &pipeline->offload;
	size_t metadata_bytes = metadata_bound(pipeline->shape, policy, tokens);
	uint32_t row_room = gw_offload_row_bound(policy, tokens);
	void *metadata = NULL, *rows = NULL;
	enum kv_status status;

	KV_TRY(kn_device_alloc(&pipeline->device, KN_DEVICE, metadata_bytes, &metadata));
	status = kn_device_alloc(&pipeline->device, KN_DEVICE, row_room * pipeline->row_bytes, &rows);
	if (status != KV_OK) {
		kn_device_free(&pipeline->device, metadata);
		return status;
	}
	kn_device_free(&pipeline->device, scratch->metadata);
	kn_device_free(&pipeline->device, scratch->rows);
	scratch->metadata = metadata;
	scratch->metadata_bytes = metadata_bytes;
	scratch->rows = rows;
	scratch->row_room = row_room;
	return KV_OK;
}

enum kv_status gw_offload_reserve(struct gw_pipeline *pipeline, uint32_t tokens)
{
	struct kv_allocator *allocator = pipeline->options.allocator;
	uint32_t kv_heads = pipeline->shape->kv_heads;
	struct gw_offload_scratch *scratch = &pipeline->offload;
	void *order = NULL;

	if (scratch->jobs == NULL)
		scratch->jobs =
			kv_alloc_array(allocator, (size_t)GW_OFFLOAD_UNITS * kv_heads, sizeof *scratch->jobs);
	if (scratch->jobs == NULL) return KV_NO_MEMORY;
	if (tokens <= scratch->tokens) return KV_OK;
	if (!pipeline->device.ops->unified) KV_TRY(reserve_unit_memory(pipeline, tokens));
	KV_TRY(kn_device_alloc(&pipeline->device, KN_SHARED,
		(size_t)kv_heads * tokens * sizeof *scratch->order, &order));
	kn_device_free(&pipeline->device, scratch->order);
	scratch->order = order;
	scratch->tokens = tokens;
	return KV_OK;
}

static const uint8_t *source_row(const struct offload *o, uint32_t head, uint32_t position)
{
	return o->source->rows + head * o->source->head_stride +
		(size_t)(position - o->source->start) * o->pipeline->row_bytes;
}

static uint32_t *order_of(const struct offload *o, uint32_t head, uint32_t position)
{
	return o->order + (size_t)head * o->source->count + (position - o->source->start);
}

/* Where the index operation puts what belongs into head block `head` of unit i at `offset`. */
static void *output_of(const struct offload *o, uint32_t i, uint32_t head, uint64_t offset)
{
	const struct kvw_unit_layout *layout = &o->units[i].layout;

	if (o->pipeline->device.ops->unified)
		return o->memory[i] + head * layout->head_bytes + offset;
	return o->metadata[i] + head * layout->positions + offset;
}

static enum kv_status take_metadata(struct offload *o, uint32_t i)
{
	const struct gw_offload_scratch *scratch = &o->pipeline->offload;
	const struct gw_unit *unit = &o->units[i];
	size_t bytes = unit->layout.positions * unit->shape.kv_heads;

	if (o->pipeline->device.ops->unified) return KV_OK;
	if (bytes > scratch->metadata_bytes - o->metadata_used ||
		unit->shape.tokens - unit->shape.plain > scratch->row_room)
		return kv_fail(KV_INTERNAL, "a unit of %u tokens and %u clusters is more than there is "
			"device memory for", unit->shape.tokens, unit->shape.clusters);
	o->metadata[i] = scratch->metadata + o->metadata_used;
	o->metadata_used += bytes;
	return KV_OK;
}

static enum kv_status begin_unit(struct offload *o, const struct kvc_segment *segment, uint32_t i)
{
	struct gw_unit *unit = &o->units[i];
	uint64_t bytes;

	KV_TRY(gw_unit_describe(o->pipeline, segment, o->layer, unit));
	KV_TRY(take_metadata(o, i));
	KV_TRY(kvc_unit_begin(o->sequence->stored, segment, o->layer, &o->memory[i], &bytes));
	if (bytes != unit->layout.bytes)
		return kv_fail(KV_PROTOCOL, "store gave %llu bytes for a unit of %llu",
			(unsigned long long)bytes, (unsigned long long)unit->layout.bytes);
	return KV_OK;
}

static void index_job(const struct offload *o, const struct kvc_segment *segment, uint32_t i,
	uint32_t head, struct kn_index_job *job)
{
	const struct gw_unit *unit = &o->units[i];
	uint32_t first = segment->start + unit->shape.plain;

	job->rows = source_row(o, head, first);
	job->row_stride = o->pipeline->row_bytes;
	job->n = unit->shape.tokens - unit->shape.plain;
	job->clusters = unit->shape.clusters;
	job->order = order_of(o, head, first);
	job->sizes = output_of(o, i, head, unit->layout.sizes);
	job->centroids = output_of(o, i, head, unit->layout.centroids);
	job->value_means = output_of(o, i, head, unit->layout.value_means);
}

/* To the host's unit, where the operation could not write there. */
static enum kv_status bring_metadata(const struct offload *o, uint32_t i, uint32_t head)
{
	const struct kn_device *device = &o->pipeline->device;
	const struct gw_unit *unit = &o->units[i];
	uint8_t *block = o->memory[i] + head * unit->layout.head_bytes;
	size_t matrix = (size_t)unit->shape.clusters * o->pipeline->shape->head_dim * sizeof(uint16_t);

	KV_TRY(kn_device_download(device, block + unit->layout.centroids,
		output_of(o, i, head, unit->layout.centroids), matrix));
	KV_TRY(kn_device_download(device, block + unit->layout.value_means,
		output_of(o, i, head, unit->layout.value_means), matrix));
	return kn_device_download(device, block + unit->layout.sizes,
		output_of(o, i, head, unit->layout.sizes), unit->shape.clusters * sizeof(uint32_t));
}

/* Cluster all heads of all units in one call, so that it fills the backend. */
static enum kv_status run_index(struct offload *o, const struct kvc_segment *const *segments,
	uint32_t count)
{
	struct gw_pipeline *pipeline = o->pipeline;
	const struct kn_device *device = &pipeline->device;
	uint32_t kv_heads = pipeline->shape->kv_heads;
	struct kn_index_arguments a = {0};

	for (uint32_t i = 0; i < count; i++)
		for (uint32_t head = 0; o->units[i].shape.clusters > 0 && head < kv_heads; head++)
			index_job(o, segments[i], i, head, &o->jobs[a.job_count++]);
	if (a.job_count == 0) return KV_OK;
	a.jobs = o->jobs;
	a.head_dim = pipeline->shape->head_dim;
	a.iterations = pipeline->options.policy.iterations;
	a.kv_type = pipeline->options.kv_type;
	a.center = pipeline->options.policy.center;
	a.update = pipeline->options.policy.update;
	KV_TRY(device->ops->index(device->backend, device->stream, &a));
	for (uint32_t i = 0; !device->ops->unified && i < count; i++)
		for (uint32_t head = 0; o->units[i].shape.clusters > 0 && head < kv_heads; head++)
			KV_TRY(bring_metadata(o, i, head));
	return kn_device_wait(device);
}

static enum kv_status write_head(struct offload *o, const struct kvc_segment *segment, uint32_t i,
	uint32_t head)
{
	const struct gw_pipeline *pipeline = o->pipeline;
	const struct kn_device *device = &pipeline->device;
	const struct gw_unit *unit = &o->units[i];
	uint32_t plain = unit->shape.plain, first = segment->start + plain;
	uint8_t *block = o->memory[i] + head * unit->layout.head_bytes;
	uint32_t *positions = (uint32_t *)(void *)(block + unit->layout.positions);
	uint8_t *rows = block + unit->layout.rows;
	struct kn_gather_rows_arguments a = {0};

	for (uint32_t j = 0; j < plain; j++)
		positions[j] = segment->start + j;
	KV_TRY(kn_device_download(device, rows, source_row(o, head, segment->start),
		plain * pipeline->row_bytes));
	if (plain == unit->shape.tokens) return KV_OK;
	a.source = source_row(o, head, first);
	a.source_stride = a.destination_stride = a.row_bytes = pipeline->row_bytes;
	a.order = order_of(o, head, first);
	rows += plain * pipeline->row_bytes;
	a.destination = device->ops->unified ? rows : pipeline->offload.rows;
	a.count = unit->shape.tokens - plain;
	for (uint32_t j = 0; j < a.count; j++)
		positions[plain + j] = first + a.order[j];
	KV_TRY(device->ops->gather_rows(device->backend, device->stream, &a));
	if (device->ops->unified) return KV_OK;
	return kn_device_download(device, rows, a.destination, a.count * pipeline->row_bytes);
}

/* A fold's rows are in the worker already; its clusters and what became sinks are not. */
static enum kv_status place_unit(struct offload *o, const struct kvc_segment *segment, uint32_t i,
	uint32_t ordinal, int place)
{
	struct gw_layer_state *state = &o->sequence->layers[o->layer];
	const struct gw_unit *unit = &o->units[i];

	if (place)
		return gw_attach_unit(o->sequence, o->layer, ordinal, segment, unit, o->memory[i]);
	if (!state->ops->clustered) return KV_OK;
	if (segment->kind == KVW_CLUSTERED)
		KV_TRY(gw_token_rows_upload(&state->sinks, gw_unit_row(unit, o->memory[i], 0, 0),
			unit->layout.head_bytes, unit->shape.plain));
	return gw_unit_attach(state, unit, o->memory[i], ordinal);
}

/* Begin units as long as there is memory to write them to. How many make no bit of them. */
static enum kv_status begin_units(struct offload *o, const struct kvc_segment *const *segments,
	uint32_t most, uint32_t *begun)
{
	enum kv_status status = KV_OK;
	uint32_t count = 0;

	o->metadata_used = 0;
	while (count < most && status == KV_OK) {
		status = begin_unit(o, segments[count], count);
		if (status == KV_OK) count++;
	}
	if (status != KV_OK && (status != KV_BUSY || count == 0)) return status;
	*begun = count;
	return KV_OK;
}

/* The first segments of `segments`, as many as can be begun together. */
static enum kv_status offload_group(struct offload *o, const struct kvc_segment *const *segments,
	uint32_t most, uint32_t list_base, int place, uint32_t *done)
{
	const struct kn_device *device = &o->pipeline->device;
	uint32_t count = 0;
	uint64_t start;

	KV_TRY(begin_units(o, segments, most, &count));
	start = kv_now_ns();
	KV_TRY(run_index(o, segments, count));
	o->sequence->report.index_seconds += kv_seconds_since(start);
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t head = 0; head < o->pipeline->shape->kv_heads; head++)
			KV_TRY(write_head(o, segments[i], i, head));
	KV_TRY(kn_device_wait(device));
	for (uint32_t i = 0; i < count; i++)
		KV_TRY(place_unit(o, segments[i], i, list_base + i, place));
	KV_TRY(kn_device_wait(device));
	for (uint32_t i = 0; i < count; i++)
		KV_TRY(kvc_unit_end(o->sequence->stored, segments[i], o->layer));
	*done = count;
	return KV_OK;
}

static enum kv_status offload_layer(struct gw_sequence *sequence, uint32_t layer,
	const struct gw_source_rows *source, const struct kvc_segment *const *segments,
	uint32_t count, uint32_t list_base, int place)
{
	struct gw_offload_scratch *scratch = &sequence->pipeline->offload;
	struct offload o = {.sequence = sequence,
		.pipeline = sequence->pipeline,
		.source = source,
		.layer = layer};
	uint32_t done = 0;

	if (source->count > scratch->tokens)
		return kv_fail(KV_INTERNAL, "%u tokens to be indexed, room for %u", source->count,
			scratch->tokens);
	o.jobs = scratch->jobs;
	o.order = scratch->order;
	for (uint32_t i = 0; i < count; i += done) {
		uint32_t most = count - i < GW_OFFLOAD_UNITS ? count - i : (uint32_t)GW_OFFLOAD_UNITS;

		KV_TRY(offload_group(&o, segments + i, most, list_base + i, place, &done));
	}
	return KV_OK;
}

enum kv_status gw_offload_layer(struct gw_sequence *sequence, uint32_t layer,
	const struct gw_source_rows *source, const struct kvc_segment *const *segments,
	uint32_t count, uint32_t list_base, int place)
{
	struct gw_report *report = &sequence->report;
	uint64_t start = kv_now_ns();
	double indexed = report->index_seconds;
	enum kv_status status =
		offload_layer(sequence, layer, source, segments, count, list_base, place);

	report->offload_seconds += kv_seconds_since(start) - (report->index_seconds - indexed);
	return status;
}

enum kv_status gw_offload_adopt(struct gw_sequence *sequence, const uint64_t *reserved_ids,
	uint32_t count, uint32_t list_base)
{
	struct gw_pipeline *pipeline = sequence->pipeline;
	uint8_t *buffer = NULL;
	enum kv_status status = KV_OK;

	KV_TRY(gw_attach_list(sequence));
	for (uint32_t i = 0; i < count && status == KV_OK; i++) {
		const struct kvc_segment *segment = sequence->segments[list_base + i];

		if (segment->id == reserved_ids[i]) continue;
		if (buffer == NULL)
			buffer = kv_alloc(pipeline->options.allocator, gw_attach_buffer_bytes(sequence));
		if (buffer == NULL) return KV_NO_MEMORY;
		for (uint32_t layer = 0; layer < pipeline->shape->layers && status == KV_OK; layer++) {
			const uint8_t *memory;
			struct gw_unit unit;

			if (!sequence->layers[layer].ops->clustered) continue;
			KV_TRY_GOTO(status, gw_unit_describe(pipeline, segment, layer, &unit), done);
			KV_TRY_GOTO(status,
				gw_unit_read(pipeline, segment, layer, &unit, buffer, &memory), done);
			KV_TRY_GOTO(status,
				gw_unit_attach(&sequence->layers[layer], &unit, memory, list_base + i), done);
			KV_TRY_GOTO(status, kn_device_wait(&pipeline->device), done);
		}
	}
done:
	if (status != KV_OK) gw_pipeline_settle(pipeline);
	kv_free(pipeline->options.allocator, buffer);
	return status == KV_OK ? kvc_sequence_check(sequence->stored) : status;
}
