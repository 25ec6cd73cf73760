/* From token-order rows of one layer to stored units: cluster, order, write.
 *
 * A prompt's layer is queued beside the next one: it is clustered and ordered, and brought to
 * memory of the worker; when that is done the host gives it to the store and puts what decoding
 * needs in place. On a unified backend units are made where they stay, at once. */
#include <string.h>

#include "common/base/clock.h"
#include "gpu-worker/pipeline/step.h"

/* What was begun together and is not finished. */
struct gw_offload_group {
	int begun;                  /* 0: there is none */
	struct gw_offload_work work; /* its first segment is that of the group */
	uint32_t count;
	struct gw_unit units[GW_OFFLOAD_UNITS];
	/* The host's: on a unified backend the store's, else in scratch->units. */
	uint8_t *memory[GW_OFFLOAD_UNITS];
	/* Unless unified: backend memory laid out as head blocks are, up to the positions. */
	uint8_t *metadata[GW_OFFLOAD_UNITS];
	size_t metadata_used, units_used;
};

static void destroy_scratch(struct gw_pipeline *pipeline, struct gw_offload_scratch *scratch)
{
	kv_free(pipeline->options.allocator, scratch->group);
	kv_free(pipeline->options.allocator, scratch->jobs);
	kn_device_free(&pipeline->device, scratch->order);
	kn_device_free(&pipeline->device, scratch->metadata);
	kn_device_free(&pipeline->device, scratch->rows);
	kn_device_free(&pipeline->device, scratch->units);
	*scratch = (struct gw_offload_scratch){0};
}

void gw_offload_destroy(struct gw_pipeline *pipeline)
{
	destroy_scratch(pipeline, &pipeline->offload);
	destroy_scratch(pipeline, &pipeline->fold_offload);
	kn_device_free(&pipeline->device, pipeline->spare_rows);
	pipeline->spare_rows = NULL;
	pipeline->spare_bytes = 0;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* Of as many units as are begun together, of `tokens` tokens in all. */
static size_t metadata_bound(const struct gw_model_shape *shape,
	const struct gw_policy_options *policy, uint32_t tokens)
{
	size_t clusters = tokens / policy->cluster_tokens + GW_OFFLOAD_UNITS;
	size_t cluster_bytes = 4 * (size_t)shape->head_dim + 4;

	return shape->kv_heads * (clusters * cluster_bytes + (size_t)3 * 64 * GW_OFFLOAD_UNITS);
}

/* Metadata, positions and rows. */
static size_t units_bound(const struct gw_pipeline *pipeline, uint32_t tokens)
{
	size_t positions_and_rows = (size_t)tokens * (sizeof(uint32_t) + pipeline->row_bytes) +
		(size_t)3 * 64 * GW_OFFLOAD_UNITS;

	return metadata_bound(pipeline->shape, &pipeline->options.policy, tokens) +
		pipeline->shape->kv_heads * positions_and_rows;
}

uint32_t gw_offload_row_bound(const struct gw_policy_options *policy, uint32_t tokens)
{
	uint32_t rows = larger(policy->segment, larger(policy->window, policy->fold));

	return rows < tokens ? rows : tokens;
}

/* Tokens that a fold writes. */
static uint32_t fold_tokens(const struct gw_policy_options *policy)
{
	return policy->window + policy->fold;
}

static size_t device_bytes(const struct gw_model_shape *shape,
	const struct gw_policy_options *policy, size_t row_bytes, uint32_t tokens)
{
	return metadata_bound(shape, policy, tokens) + gw_offload_row_bound(policy, tokens) * row_bytes;
}

size_t gw_offload_device_bytes(const struct gw_model_shape *shape,
	const struct gw_policy_options *policy, size_t row_bytes, uint32_t tokens)
{
	return device_bytes(shape, policy, row_bytes, tokens) +
		device_bytes(shape, policy, row_bytes, fold_tokens(policy));
}

/* What units are made in before the store has them. */
static enum kv_status reserve_units(struct gw_pipeline *pipeline,
	struct gw_offload_scratch *scratch, uint32_t tokens)
{
	const struct kn_device *device = &pipeline->device;
	size_t metadata_bytes =
		metadata_bound(pipeline->shape, &pipeline->options.policy, tokens);
	uint32_t row_room = gw_offload_row_bound(&pipeline->options.policy, tokens);
	size_t units_bytes = units_bound(pipeline, tokens);
	void *metadata = NULL, *rows = NULL, *units = NULL;
	enum kv_status status;

	KV_TRY(kn_device_alloc(device, KN_DEVICE, metadata_bytes, &metadata));
	KV_TRY_GOTO(status,
		kn_device_alloc(device, KN_DEVICE, row_room * pipeline->row_bytes, &rows), fail);
	KV_TRY_GOTO(status, kn_device_alloc(device, KN_SHARED, units_bytes, &units), fail);
	kn_device_free(device, scratch->metadata);
	kn_device_free(device, scratch->rows);
	kn_device_free(device, scratch->units);
	scratch->metadata = metadata;
	scratch->metadata_bytes = metadata_bytes;
	scratch->rows = rows;
	scratch->row_room = row_room;
	scratch->units = units;
	scratch->units_bytes = units_bytes;
	return KV_OK;
fail:
	kn_device_free(device, metadata);
	kn_device_free(device, rows);
	return status;
}

static enum kv_status finish(struct gw_pipeline *pipeline, struct gw_offload_scratch *scratch);

/* For another sequence, which needs the memory now. What came of it is told to its own at its
 * prompt's next step. */
static void finish_early(struct gw_pipeline *pipeline, struct gw_offload_scratch *scratch)
{
	struct gw_sequence *sequence = scratch->group->work.sequence;
	enum kv_status status;

	if (!scratch->group->begun) return;
	status = finish(pipeline, scratch);
	if (status == KV_OK) return;
	gw_sequence_fail(sequence, status);
	gw_pipeline_settle(pipeline);
}

static enum kv_status reserve(struct gw_pipeline *pipeline, struct gw_offload_scratch *scratch,
	const struct kn_device *device, uint32_t tokens)
{
	struct kv_allocator *allocator = pipeline->options.allocator;
	uint32_t kv_heads = pipeline->shape->kv_heads;
	void *order = NULL;

	scratch->device = *device;
	if (scratch->group == NULL) scratch->group = kv_alloc_zero(allocator, sizeof *scratch->group);
	if (scratch->jobs == NULL)
		scratch->jobs =
			kv_alloc_array(allocator, (size_t)GW_OFFLOAD_UNITS * kv_heads, sizeof *scratch->jobs);
	if (scratch->group == NULL || scratch->jobs == NULL) return KV_NO_MEMORY;
	if (tokens <= scratch->tokens) return KV_OK;
	finish_early(pipeline, scratch);
	if (!device->ops->unified) KV_TRY(reserve_units(pipeline, scratch, tokens));
	KV_TRY(kn_device_alloc(device, KN_SHARED, (size_t)kv_heads * tokens * sizeof *scratch->order,
		&order));
	kn_device_free(device, scratch->order);
	scratch->order = order;
	scratch->tokens = tokens;
	return KV_OK;
}

/* Where it is too small because it could not be changed, a prompt does without. */
static enum kv_status reserve_spare(struct gw_pipeline *pipeline, uint32_t tokens)
{
	size_t bytes = (size_t)pipeline->shape->kv_heads * tokens * pipeline->row_bytes;
	void *memory = NULL;

	if (bytes <= pipeline->spare_bytes || pipeline->spare_user != NULL) return KV_OK;
	KV_TRY(kn_device_alloc(&pipeline->device, KN_DEVICE, bytes, &memory));
	kn_device_free(&pipeline->device, pipeline->spare_rows);
	pipeline->spare_rows = memory;
	pipeline->spare_bytes = bytes;
	return KV_OK;
}

/* Folds have their own, and do not wait for a prompt's clustering. */
enum kv_status gw_offload_reserve(struct gw_pipeline *pipeline, uint32_t tokens)
{
	KV_TRY(reserve(pipeline, &pipeline->offload, &pipeline->background, tokens));
	if (pipeline->device.ops->unified) return KV_OK;
	KV_TRY(reserve_spare(pipeline, tokens));
	return reserve(pipeline, &pipeline->fold_offload, &pipeline->device,
		fold_tokens(&pipeline->options.policy));
}

static const uint8_t *source_row(const struct gw_pipeline *pipeline,
	const struct gw_source_rows *source, uint32_t head, uint32_t position)
{
	return source->rows + head * source->head_stride +
		(size_t)(position - source->start) * pipeline->row_bytes;
}

static uint32_t *order_of(const struct gw_offload_scratch *scratch, uint32_t head,
	uint32_t position)
{
	const struct gw_source_rows *source = &scratch->group->work.source;

	return scratch->order + (size_t)head * source->count + (position - source->start);
}

/* Where the index operation puts what belongs into head block `head` of unit i at `offset`. */
static void *output_of(const struct gw_offload_scratch *scratch, uint32_t i, uint32_t head,
	uint64_t offset)
{
	const struct gw_offload_group *group = scratch->group;
	const struct kvw_unit_layout *layout = &group->units[i].layout;

	if (scratch->device.ops->unified) return group->memory[i] + head * layout->head_bytes + offset;
	return group->metadata[i] + head * layout->positions + offset;
}

/* The store's memory for a unit. */
static enum kv_status begin_stored(const struct gw_offload_group *group, uint32_t i,
	uint8_t **memory)
{
	const struct gw_offload_work *work = &group->work;
	const struct gw_unit *unit = &group->units[i];
	uint64_t bytes;

	KV_TRY(kvc_unit_begin(work->sequence->stored, work->segments[i], work->layer, memory, &bytes));
	if (bytes != unit->layout.bytes)
		return kv_fail(KV_PROTOCOL, "store gave %llu bytes for a unit of %llu",
			(unsigned long long)bytes, (unsigned long long)unit->layout.bytes);
	return KV_OK;
}

static enum kv_status take_unit(struct gw_offload_scratch *scratch, uint32_t i)
{
	struct gw_offload_group *group = scratch->group;
	const struct gw_offload_work *work = &group->work;
	struct gw_unit *unit = &group->units[i];
	size_t metadata;

	KV_TRY(gw_unit_describe(work->sequence->pipeline, work->segments[i], work->layer, unit));
	if (scratch->device.ops->unified) return begin_stored(group, i, &group->memory[i]);
	metadata = unit->layout.positions * unit->shape.kv_heads;
	if (metadata > scratch->metadata_bytes - group->metadata_used ||
		unit->layout.bytes > scratch->units_bytes - group->units_used ||
		unit->shape.tokens - unit->shape.plain > scratch->row_room)
		return kv_fail(KV_INTERNAL, "a unit of %u tokens and %u clusters is more than there is "
			"memory for", unit->shape.tokens, unit->shape.clusters);
	group->metadata[i] = scratch->metadata + group->metadata_used;
	group->memory[i] = scratch->units + group->units_used;
	group->metadata_used += metadata;
	group->units_used += unit->layout.bytes;
	return KV_OK;
}

static void index_job(const struct gw_offload_scratch *scratch, uint32_t i, uint32_t head,
	struct kn_index_job *job)
{
	const struct gw_offload_group *group = scratch->group;
	const struct gw_pipeline *pipeline = group->work.sequence->pipeline;
	const struct gw_unit *unit = &group->units[i];
	uint32_t first = group->work.segments[i]->start + unit->shape.plain;

	job->rows = source_row(pipeline, &group->work.source, head, first);
	job->row_stride = pipeline->row_bytes;
	job->n = unit->shape.tokens - unit->shape.plain;
	job->clusters = unit->shape.clusters;
	job->order = order_of(scratch, head, first);
	job->sizes = output_of(scratch, i, head, unit->layout.sizes);
	job->centroids = output_of(scratch, i, head, unit->layout.centroids);
	job->value_means = output_of(scratch, i, head, unit->layout.value_means);
}

/* Cluster all heads of all units in one call, so that it fills the backend. */
static enum kv_status queue_index(struct gw_offload_scratch *scratch)
{
	const struct gw_offload_group *group = scratch->group;
	const struct gw_pipeline *pipeline = group->work.sequence->pipeline;
	const struct kn_device *device = &scratch->device;
	struct kn_index_arguments a = {0};

	for (uint32_t i = 0; i < group->count; i++)
		for (uint32_t head = 0;
			group->units[i].shape.clusters > 0 && head < pipeline->shape->kv_heads; head++)
			index_job(scratch, i, head, &scratch->jobs[a.job_count++]);
	if (a.job_count == 0) return KV_OK;
	a.jobs = scratch->jobs;
	a.head_dim = pipeline->shape->head_dim;
	a.iterations = pipeline->options.policy.iterations;
	a.kv_type = pipeline->options.kv_type;
	a.center = pipeline->options.policy.center;
	a.update = pipeline->options.policy.update;
	KV_TRY(device->ops->index(device->backend, device->stream, &a));
	return device->ops->unified ? kn_device_wait(device) : KV_OK;
}

/* To the host's unit, where the operation could not write there. */
static enum kv_status bring_metadata(const struct gw_offload_scratch *scratch, uint32_t i,
	uint32_t head)
{
	const struct kn_device *device = &scratch->device;
	const struct gw_unit *unit = &scratch->group->units[i];
	uint8_t *block = scratch->group->memory[i] + head * unit->layout.head_bytes;
	size_t matrix = (size_t)unit->shape.clusters * unit->shape.head_dim * sizeof(uint16_t);

	if (device->ops->unified || unit->shape.clusters == 0) return KV_OK;
	KV_TRY(kn_device_download(device, block + unit->layout.centroids,
		output_of(scratch, i, head, unit->layout.centroids), matrix));
	KV_TRY(kn_device_download(device, block + unit->layout.value_means,
		output_of(scratch, i, head, unit->layout.value_means), matrix));
	return kn_device_download(device, block + unit->layout.sizes,
		output_of(scratch, i, head, unit->layout.sizes), unit->shape.clusters * sizeof(uint32_t));
}

static enum kv_status queue_rows(const struct gw_offload_scratch *scratch, uint32_t i,
	uint32_t head)
{
	const struct gw_offload_group *group = scratch->group;
	const struct gw_source_rows *source = &group->work.source;
	const struct gw_pipeline *pipeline = group->work.sequence->pipeline;
	const struct kn_device *device = &scratch->device;
	const struct gw_unit *unit = &group->units[i];
	uint32_t plain = unit->shape.plain, first = group->work.segments[i]->start + plain;
	uint8_t *rows = group->memory[i] + head * unit->layout.head_bytes + unit->layout.rows;
	struct kn_gather_rows_arguments a = {0};

	KV_TRY(kn_device_download(device, rows, source_row(pipeline, source, head, first - plain),
		plain * pipeline->row_bytes));
	if (plain == unit->shape.tokens) return KV_OK;
	a.source = source_row(pipeline, source, head, first);
	a.source_stride = a.destination_stride = a.row_bytes = pipeline->row_bytes;
	a.order = order_of(scratch, head, first);
	rows += plain * pipeline->row_bytes;
	a.destination = device->ops->unified ? rows : scratch->rows;
	a.count = unit->shape.tokens - plain;
	KV_TRY(device->ops->gather_rows(device->backend, device->stream, &a));
	if (device->ops->unified) return KV_OK;
	return kn_device_download(device, rows, a.destination, a.count * pipeline->row_bytes);
}

static void write_positions(const struct gw_offload_scratch *scratch, uint32_t i, uint32_t head)
{
	const struct gw_offload_group *group = scratch->group;
	const struct gw_unit *unit = &group->units[i];
	uint32_t start = group->work.segments[i]->start, plain = unit->shape.plain;
	const uint32_t *order = order_of(scratch, head, start + plain);
	uint32_t *positions = (uint32_t *)(void *)(group->memory[i] +
		head * unit->layout.head_bytes + unit->layout.positions);

	for (uint32_t j = 0; j < plain; j++)
		positions[j] = start + j;
	for (uint32_t j = plain; j < unit->shape.tokens; j++)
		positions[j] = start + plain + order[j - plain];
}

/* A fold's rows are in the worker already; its clusters and what became sinks are not. */
static enum kv_status place_unit(const struct gw_offload_scratch *scratch, uint32_t i)
{
	const struct gw_offload_group *group = scratch->group;
	const struct gw_offload_work *work = &group->work;
	struct gw_layer_state *state = &work->sequence->layers[work->layer];
	const struct kvc_segment *segment = work->segments[i];
	const struct gw_unit *unit = &group->units[i];
	uint32_t ordinal = work->list_base + i;

	if (work->place)
		return gw_attach_unit(work->sequence, &scratch->device, work->layer, ordinal, segment, unit,
			group->memory[i]);
	if (!state->ops->clustered) return KV_OK;
	if (segment->kind == KVW_CLUSTERED)
		KV_TRY(gw_token_rows_upload(&state->sinks, &scratch->device,
			gw_unit_row(unit, group->memory[i], 0, 0), unit->layout.head_bytes,
			unit->shape.plain));
	return gw_unit_attach(state, &scratch->device, unit, group->memory[i], ordinal);
}

static enum kv_status store_unit(const struct gw_offload_scratch *scratch, uint32_t i)
{
	const struct gw_offload_group *group = scratch->group;
	uint8_t *memory;

	if (!scratch->device.ops->unified) {
		KV_TRY(begin_stored(group, i, &memory));
		memcpy(memory, group->memory[i], group->units[i].layout.bytes);
	}
	return kvc_unit_end(group->work.sequence->stored, group->work.segments[i], group->work.layer);
}

/* Take units as long as there is memory to write them to. How many make no bit of them. */
static enum kv_status take_units(struct gw_offload_scratch *scratch, uint32_t most)
{
	struct gw_offload_group *group = scratch->group;
	enum kv_status status = KV_OK;

	while (group->count < most && status == KV_OK) {
		status = take_unit(scratch, group->count);
		if (status == KV_OK) group->count++;
	}
	return status == KV_BUSY && group->count > 0 ? KV_OK : status;
}

/* What decoding on the compute stream does comes after `finish`, which waits. */
static enum kv_status queue(struct gw_pipeline *pipeline, struct gw_offload_scratch *scratch)
{
	const struct gw_offload_group *group = scratch->group;
	uint64_t start = kv_now_ns();

	KV_TRY(kn_device_order(&pipeline->device, &scratch->device));
	KV_TRY(queue_index(scratch));
	group->work.sequence->report.index_seconds += kv_seconds_since(start);
	for (uint32_t i = 0; i < group->count; i++)
		for (uint32_t head = 0; head < pipeline->shape->kv_heads; head++) {
			KV_TRY(bring_metadata(scratch, i, head));
			KV_TRY(queue_rows(scratch, i, head));
		}
	return KV_OK;
}

static enum kv_status finish_units(struct gw_pipeline *pipeline, struct gw_offload_scratch *scratch)
{
	const struct gw_offload_group *group = scratch->group;
	uint64_t start = kv_now_ns();

	KV_TRY(kn_device_wait(&scratch->device));
	group->work.sequence->report.index_seconds += kv_seconds_since(start);
	for (uint32_t i = 0; i < group->count; i++) {
		for (uint32_t head = 0; head < pipeline->shape->kv_heads; head++)
			write_positions(scratch, i, head);
		KV_TRY(place_unit(scratch, i));
	}
	KV_TRY(kn_device_wait(&scratch->device));
	for (uint32_t i = 0; i < group->count; i++)
		KV_TRY(store_unit(scratch, i));
	return KV_OK;
}

static enum kv_status finish(struct gw_pipeline *pipeline, struct gw_offload_scratch *scratch)
{
	struct gw_offload_group *group = scratch->group;
	enum kv_status status;

	if (!group->begun) return KV_OK;
	status = finish_units(pipeline, scratch);
	group->begun = 0;
	return status;
}

/* All but the last of the groups are finished, too. */
static enum kv_status begin_groups(struct gw_pipeline *pipeline,
	struct gw_offload_scratch *scratch, const struct gw_offload_work *work)
{
	struct gw_offload_group *group = scratch->group;

	if (work->source.count > scratch->tokens)
		return kv_fail(KV_INTERNAL, "%u tokens to be indexed, room for %u", work->source.count,
			scratch->tokens);
	if (group->work.sequence != work->sequence) finish_early(pipeline, scratch);
	for (uint32_t done = 0; done < work->count; done += group->count) {
		uint32_t left = work->count - done;

		KV_TRY(finish(pipeline, scratch));
		group->work = *work;
		group->work.segments += done;
		group->work.list_base += done;
		group->count = 0;
		group->metadata_used = group->units_used = 0;
		group->begun = 1;
		KV_TRY(take_units(scratch, left < GW_OFFLOAD_UNITS ? left : (uint32_t)GW_OFFLOAD_UNITS));
		KV_TRY(queue(pipeline, scratch));
	}
	return KV_OK;
}

/* On a unified backend there is nothing to go on beside: it is done at once. */
static enum kv_status run(struct gw_offload_scratch *scratch, const struct gw_offload_work *work,
	int wait)
{
	struct gw_pipeline *pipeline = work->sequence->pipeline;
	struct gw_report *report = &work->sequence->report;
	uint64_t start = kv_now_ns();
	double indexed = report->index_seconds;
	enum kv_status status = begin_groups(pipeline, scratch, work);

	if (status == KV_OK && wait) status = finish(pipeline, scratch);
	if (status != KV_OK) scratch->group->begun = 0;
	report->offload_seconds += kv_seconds_since(start) - (report->index_seconds - indexed);
	return status;
}

enum kv_status gw_offload_begin(const struct gw_offload_work *work)
{
	struct gw_pipeline *pipeline = work->sequence->pipeline;

	return run(&pipeline->offload, work, pipeline->device.ops->unified != 0);
}

enum kv_status gw_offload_finish(struct gw_sequence *sequence)
{
	struct gw_offload_scratch *scratch = &sequence->pipeline->offload;
	struct gw_report *report = &sequence->report;
	uint64_t start = kv_now_ns();
	double indexed = report->index_seconds;
	enum kv_status status;

	if (sequence->failed != KV_OK) return kv_fail(sequence->failed, "%s", sequence->failure);
	if (scratch->group->work.sequence != sequence) return KV_OK;
	status = finish(sequence->pipeline, scratch);
	report->offload_seconds += kv_seconds_since(start) - (report->index_seconds - indexed);
	return status;
}

void gw_offload_drop(struct gw_sequence *sequence)
{
	struct gw_offload_group *group = sequence->pipeline->offload.group;

	if (group != NULL && group->work.sequence == sequence) group->begun = 0;
}

enum kv_status gw_offload_fold(const struct gw_offload_work *work)
{
	struct gw_pipeline *pipeline = work->sequence->pipeline;

	return run(pipeline->device.ops->unified ? &pipeline->offload : &pipeline->fold_offload, work,
		1);
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
				gw_unit_attach(&sequence->layers[layer], &pipeline->device,
					&unit, memory, list_base + i), done);
			KV_TRY_GOTO(status, kn_device_wait(&pipeline->device), done);
		}
	}
done:
	if (status != KV_OK) gw_pipeline_settle(pipeline);
	kv_free(pipeline->options.allocator, buffer);
	return status == KV_OK ? kvc_sequence_check(sequence->stored) : status;
}
