/* A round: the attention jobs of some rows of a batch, the cluster cache's slots that they read,
 * and one fetch for what the cache does not hold. */
#include <string.h>

#include "common/base/clock.h"
#include "gpu-worker/pipeline/step.h"

/* Rounds need staging for one row at least; beyond this they are split. */
static const size_t staging_limit = (size_t)96 << 20;

void gw_round_destroy(struct gw_pipeline *pipeline)
{
	struct kv_allocator *allocator = pipeline->options.allocator;
	struct gw_round *round = &pipeline->round;

	kv_free(allocator, round->jobs);
	kv_free(allocator, round->spans);
	kv_free(allocator, round->reads);
	kv_free(allocator, round->missed);
	kv_free(allocator, round->copies);
	kn_device_free(&pipeline->device, round->exact_mass);
	kn_device_free(&pipeline->device, round->staging);
	kn_device_free(&pipeline->device, round->arrival);
	*round = (struct gw_round){0};
}

static enum kv_status create_buffers(struct gw_pipeline *pipeline, size_t staging)
{
	const struct kn_device *device = &pipeline->device;
	struct gw_round *round = &pipeline->round;
	void *memory = NULL;

	KV_TRY(kn_device_alloc(device, KN_SHARED,
		(size_t)pipeline->options.max_batch * pipeline->shape->heads * sizeof(float), &memory));
	round->exact_mass = memory;
	if (staging == 0) return KV_OK;
	KV_TRY(kn_device_alloc(device, KN_DEVICE, staging, &memory));
	round->staging = memory;
	round->staging_bytes = staging;
	if (device->ops->unified) return KV_OK;
	round->copies = kv_alloc_array(pipeline->options.allocator, round->read_capacity,
		sizeof *round->copies);
	if (round->copies == NULL) return KV_NO_MEMORY;
	KV_TRY(kn_device_alloc(device, KN_SHARED, staging, &memory));
	round->arrival = memory;
	return KV_OK;
}

static enum kv_status round_create(struct gw_pipeline *pipeline, uint32_t spans, size_t staging)
{
	struct kv_allocator *allocator = pipeline->options.allocator;
	struct gw_round *round = &pipeline->round;
	size_t rows = pipeline->options.max_batch;

	round->span_capacity = round->read_capacity = spans;
	round->jobs = kv_alloc_array(allocator, rows * pipeline->shape->kv_heads, sizeof *round->jobs);
	round->spans = kv_alloc_array(allocator, round->span_capacity, sizeof *round->spans);
	round->reads = kv_alloc_array(allocator, round->read_capacity, sizeof *round->reads);
	round->missed = kv_alloc_array(allocator, round->span_capacity, sizeof *round->missed);
	if (!round->jobs || !round->spans || !round->reads || !round->missed) return KV_NO_MEMORY;
	return create_buffers(pipeline, staging);
}

/* Sinks, window, and for each extent its pages, which may all lie apart. */
uint64_t gw_round_spans(uint32_t clusters, uint32_t tokens)
{
	return (uint64_t)2 * clusters + tokens / GW_CACHE_PAGE_ROWS + 3;
}

size_t gw_round_staging_bytes(const struct gw_model_shape *shape, size_t row_bytes,
	uint32_t max_batch, uint32_t max_tokens)
{
	size_t row = (size_t)shape->kv_heads * max_tokens * row_bytes;

	if (row * max_batch <= staging_limit) return row * max_batch;
	return row > staging_limit ? row : staging_limit;
}

enum kv_status gw_round_reserve(struct gw_pipeline *pipeline, uint32_t max_clusters,
	uint32_t max_tokens)
{
	struct gw_round *round = &pipeline->round;
	uint64_t spans = gw_round_spans(max_clusters, max_tokens) * pipeline->shape->kv_heads *
		pipeline->options.max_batch;
	size_t staging = gw_round_staging_bytes(pipeline->shape, pipeline->row_bytes,
		pipeline->options.max_batch, max_tokens);
	struct gw_round old, made;
	enum kv_status status;

	if (spans > UINT32_MAX)
		return kv_fail(KV_LIMIT, "attention to %u clusters by %u sequences at once is too much; "
			"raise --cluster-tokens or lower --max-batch", max_clusters,
			pipeline->options.max_batch);
	if (pipeline->cache == NULL) staging = 0;
	/* It only grows: sequences that were opened before count on what is there. */
	if (spans < round->span_capacity) spans = round->span_capacity;
	if (staging < round->staging_bytes) staging = round->staging_bytes;
	if (round->jobs != NULL && round->span_capacity == spans && round->staging_bytes == staging)
		return KV_OK;
	/* Other sequences go on with the old one where this fails. */
	old = *round;
	*round = (struct gw_round){0};
	status = round_create(pipeline, (uint32_t)spans, staging);
	made = *round;
	*round = status == KV_OK ? old : made;
	gw_round_destroy(pipeline);
	*round = status == KV_OK ? made : old;
	return status;
}

void gw_round_begin(struct gw_pipeline *pipeline)
{
	struct gw_round *round = &pipeline->round;

	round->job_count = round->span_count = round->read_count = round->row_count = 0;
	round->missed_count = 0;
	round->staging_used = round->arrival_used = 0;
	if (pipeline->cache != NULL) gw_cluster_cache_begin(pipeline->cache);
}

int gw_round_has_room(const struct gw_pipeline *pipeline, const struct gw_selection *selections)
{
	const struct gw_round *round = &pipeline->round;
	size_t used = round->arrival != NULL ? round->arrival_used : round->staging_used;
	uint32_t spans = 0;
	size_t staging = 0;

	for (uint32_t head = 0; head < pipeline->shape->kv_heads; head++) {
		spans += 3 + 2 * selections[head].extent_count +
			selections[head].tokens / GW_CACHE_PAGE_ROWS;
		staging += selections[head].tokens * pipeline->row_bytes;
	}
	return spans <= round->span_capacity - round->span_count &&
		spans <= round->read_capacity - round->read_count &&
		staging <= round->staging_bytes - used;
}

struct extent_place {
	const struct kvc_segment *segment;
	uint64_t offset;            /* of the extent's first row in the unit */
	struct gw_cache_key key;
	uint32_t layer, count;
	uint32_t *hint;
};

static void add_read(struct gw_pipeline *pipeline, const struct extent_place *place, uint32_t from,
	uint32_t rows, uint8_t *destination)
{
	struct gw_round *round = &pipeline->round;
	struct kvc_read *read = &round->reads[round->read_count];

	read->segment = place->segment;
	read->layer = place->layer;
	read->offset = place->offset + (uint64_t)from * pipeline->row_bytes;
	read->bytes = (uint64_t)rows * pipeline->row_bytes;
	read->destination = destination;
	if (round->arrival != NULL) {
		struct kn_copy_job *copy = &round->copies[round->read_count];

		read->destination = round->arrival + round->arrival_used;
		copy->source = round->arrival + round->arrival_used;
		copy->destination = destination;
		copy->bytes = read->bytes;
		round->arrival_used += read->bytes;
	}
	round->read_count++;
}

static void add_span(struct gw_round *round, const uint8_t *rows, uint32_t count)
{
	if (count == 0) return;
	round->spans[round->span_count].rows = rows;
	round->spans[round->span_count].count = count;
	round->span_count++;
}

static uint32_t *hint_of(const struct gw_sequence *sequence, uint32_t layer, uint32_t head,
	const struct kn_extent *extent)
{
	const struct gw_layer_state *state = &sequence->layers[layer];

	return state->slot_hints + (size_t)head * state->index->capacity + extent->cluster;
}

static void locate(const struct gw_sequence *sequence, uint32_t layer, uint32_t head,
	const struct kn_extent *extent, struct extent_place *place)
{
	const struct gw_cluster_index *index = sequence->layers[layer].index;
	uint32_t ordinal = index->segment_of[extent->cluster];
	const struct gw_unit *unit = &sequence->units[ordinal];
	uint32_t first = index->first_row[(size_t)head * index->capacity + extent->cluster];

	place->segment = sequence->segments[ordinal];
	place->offset = head * unit->layout.head_bytes + unit->layout.rows +
		(uint64_t)first * unit->shape.row_bytes;
	place->key = gw_cluster_key(sequence, layer, head, extent->cluster);
	place->layer = layer;
	place->count = extent->count;
	place->hint = hint_of(sequence, layer, head, extent);
}

/* Look an extent up; note what is to be read, and where attention will find it. True when it waits
 * for the fetch. */
static int add_extent(struct gw_pipeline *pipeline, const struct extent_place *place)
{
	struct gw_round *round = &pipeline->round;
	struct gw_cache_grant grant =
		gw_cluster_cache_acquire(pipeline->cache, &place->key, place->count, place->hint);
	struct kn_span *missing = round->spans + round->span_count;
	uint32_t runs, from = grant.held;

	if (grant.slot == UINT32_MAX) {
		uint8_t *staged = round->staging + round->staging_used;

		round->staging_used += place->count * pipeline->row_bytes;
		add_read(pipeline, place, 0, place->count, staged);
		add_span(round, staged, place->count);
		return 1;
	}
	if (from < place->count) {
		runs = gw_cluster_cache_spans(pipeline->cache, grant.slot, from, place->count, missing);
		for (uint32_t i = 0; i < runs; i++) {
			add_read(pipeline, place, from, missing[i].count,
				(uint8_t *)(uintptr_t)missing[i].rows);
			from += missing[i].count;
		}
	}
	round->span_count += gw_cluster_cache_spans(pipeline->cache, grant.slot, 0, place->count,
		round->spans + round->span_count);
	return (int)grant.pending;
}

/* Extent `number` of the job that is being made. */
static void add_selected(struct gw_pipeline *pipeline, const struct extent_place *place,
	uint32_t number)
{
	struct gw_round *round = &pipeline->round;
	uint32_t before = round->span_count;
	struct gw_missed *missed;

	if (!add_extent(pipeline, place)) return;
	missed = &round->missed[round->missed_count++];
	missed->job = round->job_count;
	missed->extent = number;
	missed->span = before;
	missed->span_count = round->span_count - before;
}

enum kv_status gw_round_add_row(struct gw_pipeline *pipeline, struct gw_sequence *sequence,
	uint32_t layer, uint32_t row, const struct gw_selection *selections)
{
	const struct gw_model_shape *shape = pipeline->shape;
	struct gw_layer_state *state = &sequence->layers[layer];
	struct gw_round *round = &pipeline->round;
	uint32_t group = gw_shape_group(shape);
	struct gw_cache_stats before = {0}, after;

	if (pipeline->cache != NULL) before = gw_cluster_cache_stats(pipeline->cache);
	for (uint32_t head = 0; head < shape->kv_heads; head++) {
		struct kn_attend_job *job = &round->jobs[round->job_count];
		size_t first_head = (size_t)head * group * shape->head_dim;
		uint32_t first_span = round->span_count;

		add_span(round, gw_token_rows_at(&state->sinks, head, 0), state->sinks.count);
		for (uint32_t i = 0; i < selections[head].extent_count; i++)
			gw_cluster_cache_prefetch(pipeline->cache,
				*hint_of(sequence, layer, head, &selections[head].extents[i]));
		for (uint32_t i = 0; i < selections[head].extent_count; i++) {
			struct extent_place place;

			locate(sequence, layer, head, &selections[head].extents[i], &place);
			add_selected(pipeline, &place, i);
		}
		add_span(round, gw_token_rows_at(&state->recent, head, 0), state->recent.count);
		*job = (struct kn_attend_job){0};
		job->q = pipeline->qkv + (size_t)row * gw_model_qkv_width(pipeline->options.model) +
			first_head;
		job->out = pipeline->attention + (size_t)row * shape->heads * shape->head_dim + first_head;
		job->spans = round->spans + first_span;
		job->span_count = round->span_count - first_span;
		job->estimate = selections[head].estimate;
		job->exact_mass = job->estimate.clusters > 0
			? round->exact_mass + (size_t)round->job_count * group
			: NULL;
		round->job_count++;
	}
	round->rows[round->row_count++] = row;
	if (pipeline->cache != NULL) {
		after = gw_cluster_cache_stats(pipeline->cache);
		gw_cache_stats_add(&sequence->report.cache, &before, &after);
	}
	return KV_OK;
}

static void leave_out(struct gw_round *round, const struct gw_missed *missed,
	struct gw_selection *selection)
{
	struct kn_attend_job *job = &round->jobs[missed->job];
	struct kn_span *spans = round->spans + missed->span;
	const struct kn_span *next = spans + missed->span_count;
	struct kn_extent *extent = selection->extents + missed->extent;

	selection->tokens -= extent->count;
	memmove(spans, next, (size_t)(job->spans + job->span_count - next) * sizeof *spans);
	job->span_count -= missed->span_count;
	memmove(extent, extent + 1,
		(selection->extent_count - missed->extent - 1) * sizeof *extent);
	selection->extent_count--;
}

enum kv_status gw_round_degrade(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t layer)
{
	struct gw_round *round = &pipeline->round;
	uint32_t kv_heads = pipeline->shape->kv_heads;

	/* From the end, so that the numbers of those before stay right. */
	for (uint32_t i = round->missed_count; i-- > 0;) {
		const struct gw_missed *missed = &round->missed[i];
		uint32_t row = round->rows[missed->job / kv_heads], head = missed->job % kv_heads;
		struct gw_selection *selection = pipeline->selections + (size_t)row * kv_heads + head;
		const struct gw_cluster_index *index = batch[row]->layers[layer].index;
		uint32_t cluster = selection->extents[missed->extent].cluster;
		uint64_t step = batch[row]->report.decode_steps + 1;
		const uint32_t *size = &index->sizes[(size_t)head * index->capacity + cluster];

		KV_TRY(kn_device_upload(&pipeline->device, &selection->rest[cluster], size,
			sizeof *size));
		leave_out(round, missed, selection);
		batch[row]->report.degraded_steps += batch[row]->degraded_at != step;
		batch[row]->degraded_at = step;
		if (batch[row]->stored != NULL) kvc_sequence_keep_own(batch[row]->stored);
	}
	round->missed_count = 0;
	return KV_OK;
}

/* What arrived is put into place before anything that is queued from now on reads it. */
static enum kv_status place_arrivals(struct gw_pipeline *pipeline)
{
	const struct kn_device *device = &pipeline->device;
	const struct kn_copy_arguments a = {pipeline->round.copies, pipeline->round.read_count};

	if (pipeline->round.arrival == NULL) return KV_OK;
	return device->ops->copy(device->backend, device->stream, &a);
}

enum kv_status gw_round_fetch(struct gw_pipeline *pipeline)
{
	struct gw_round *round = &pipeline->round;
	enum kv_status status;

	if (pipeline->cache == NULL) return KV_OK;
	if (round->read_count > 0) {
		status = kvc_fetch_start(pipeline->options.store, round->reads, round->read_count);
		if (status == KV_OK) status = kvc_fetch_wait(pipeline->options.store);
		if (status == KV_OK) status = place_arrivals(pipeline);
		if (status != KV_OK) {
			gw_cluster_cache_abandon(pipeline->cache);
			return status;
		}
	}
	gw_cluster_cache_commit(pipeline->cache);
	return KV_OK;
}
