/* The layers of a step that the device runs by itself:
 *
 *     project → append → score, select → lookup → gather what is missing → attend → finish
 *
 * queued for all layers, and waited for once. Until then nothing of it is believed: the rows were
 * read from the store's memory as it was, so the lease and the generation are looked at behind the
 * step, and what the device could not do (staging is full) makes it nothing. The host then runs the
 * same step its own way, which also fills the cache.
 */
#include "gpu-worker/pipeline/device_step.h"

/* Staging for all that a step selects, as far as that is no more than this: a step that misses more
 * is the host's. So are the next ones, which are likely to be like it, twice as many each time. */
static const size_t staging_limit = (size_t)256 << 20;
enum { MAX_PAUSE = 64 };

enum kv_status gw_device_step_create(struct gw_pipeline *pipeline)
{
	const struct gw_pipeline_options *o = &pipeline->options;
	struct gw_device_step *made;

	if (o->ops->unified || o->store == NULL || pipeline->cache == NULL || o->audit) return KV_OK;
	made = pipeline->device_step = kv_alloc_zero(o->allocator, sizeof *made);
	if (made == NULL) return KV_NO_MEMORY;
	if (!gw_store_memory_open(pipeline, &made->memory)) {
		gw_device_step_destroy(pipeline);
		return KV_OK;
	}
	return gw_cache_mirror_create(pipeline->cache);
}

static void room_destroy(const struct gw_pipeline *pipeline, struct gw_step_room *room)
{
	struct kv_allocator *allocator = pipeline->options.allocator;

	kn_device_free(&pipeline->device, room->staging);
	kn_device_free(&pipeline->device, room->misses);
	kv_free(allocator, room->lookups);
	kv_free(allocator, room->attends);
	kv_free(allocator, room->dense);
	*room = (struct gw_step_room){0};
}

void gw_device_step_destroy(struct gw_pipeline *pipeline)
{
	struct gw_device_step *step = pipeline->device_step;

	if (step == NULL) return;
	gw_store_memory_close(&step->memory);
	room_destroy(pipeline, &step->room);
	kv_free(pipeline->options.allocator, step);
	pipeline->device_step = NULL;
}

/* ---- memory ---- */

/* The next part of a buffer, 64-byte aligned; `base` NULL only measures. */
static void *take(uint8_t *base, size_t *used, size_t count, size_t size)
{
	size_t at = *used;

	*used = (at + count * size + 63) & ~(size_t)63;
	return base != NULL ? base + at : NULL;
}

static size_t lay_out_device(struct gw_step_room *room, size_t row_bytes, uint8_t *base)
{
	size_t used = 0, spans = (size_t)room->jobs * room->span_capacity;

	room->staging = take(base, &used, room->staging_rows, row_bytes);
	room->spans = take(base, &used, spans, sizeof *room->spans);
	room->copies = take(base, &used, room->copy_capacity, sizeof *room->copies);
	room->span_counts = take(base, &used, room->jobs, sizeof *room->span_counts);
	room->words = take(base, &used, 1, sizeof *room->words);
	return used;
}

static size_t lay_out_shared(struct gw_step_room *room, const struct gw_model_shape *shape,
	uint8_t *base)
{
	size_t used = 0, jobs = (size_t)shape->layers * room->jobs;

	room->misses = take(base, &used, jobs * room->extents, sizeof *room->misses);
	room->selected = take(base, &used, jobs, sizeof *room->selected);
	room->found = take(base, &used, jobs, sizeof *room->found);
	room->exact_mass = take(base, &used, jobs * gw_shape_group(shape), sizeof *room->exact_mass);
	room->seen = take(base, &used, 1, sizeof *room->seen);
	return used;
}

static enum kv_status room_create(const struct gw_pipeline *pipeline, struct gw_step_room *room)
{
	const struct kn_device *device = &pipeline->device;
	struct kv_allocator *allocator = pipeline->options.allocator;
	void *memory = NULL;

	room->lookups = kv_alloc_array(allocator, room->jobs, sizeof *room->lookups);
	room->attends = kv_alloc_array(allocator, room->jobs, sizeof *room->attends);
	room->dense = kv_alloc_array(allocator, room->jobs, sizeof *room->dense);
	if (!room->lookups || !room->attends || !room->dense) return KV_NO_MEMORY;
	KV_TRY(kn_device_alloc(device, KN_DEVICE, lay_out_device(room, pipeline->row_bytes, NULL),
		&memory));
	lay_out_device(room, pipeline->row_bytes, memory);
	KV_TRY(kn_device_alloc(device, KN_SHARED, lay_out_shared(room, pipeline->shape, NULL),
		&memory));
	lay_out_shared(room, pipeline->shape, memory);
	return KV_OK;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static uint32_t smaller(uint64_t a, uint64_t b)
{
	uint64_t least = a < b ? a : b;

	return least < UINT32_MAX ? (uint32_t)least : UINT32_MAX;
}

/* How much there has to be of everything, for `layers` clustered layers. */
static struct gw_step_room measure(size_t row_bytes, uint32_t layers, uint32_t max_batch,
	uint32_t kv_heads, uint32_t clusters, uint32_t tokens)
{
	struct gw_step_room room = {.jobs = max_batch * kv_heads, .tokens = tokens};
	uint64_t all = (uint64_t)room.jobs * tokens * layers;

	room.extents = smaller(clusters, tokens);
	room.span_capacity = 2 + room.extents + tokens / KN_CACHE_PAGE_ROWS;
	room.staging_rows = smaller(all, staging_limit / row_bytes);
	room.copy_capacity = smaller((uint64_t)room.jobs * room.extents, room.staging_rows);
	return room;
}

size_t gw_device_step_bytes(const struct gw_model_shape *shape, size_t row_bytes, uint32_t layers,
	uint32_t max_batch, uint32_t max_clusters, uint32_t max_tokens)
{
	struct gw_step_room room =
		measure(row_bytes, layers, max_batch, shape->kv_heads, max_clusters, max_tokens);

	return lay_out_device(&room, row_bytes, NULL);
}

enum kv_status gw_device_step_reserve(struct gw_pipeline *pipeline, uint32_t max_clusters,
	uint32_t max_tokens)
{
	struct gw_device_step *step = pipeline->device_step;
	struct gw_step_room made;
	enum kv_status status;

	if (step == NULL) return KV_OK;
	/* It only grows. */
	made = measure(pipeline->row_bytes,
		gw_clustered_layers(pipeline->shape, pipeline->policy, &pipeline->options.policy),
		pipeline->options.max_batch, pipeline->shape->kv_heads, max_clusters,
		larger(max_tokens, step->room.tokens));
	if (step->room.staging != NULL && made.tokens == step->room.tokens &&
		made.extents == step->room.extents)
		return KV_OK;
	/* Other sequences go on with the old one where this fails. */
	status = room_create(pipeline, &made);
	if (status != KV_OK) {
		room_destroy(pipeline, &made);
		return status;
	}
	room_destroy(pipeline, &step->room);
	step->room = made;
	return KV_OK;
}

/* ---- the step ---- */

struct run {
	struct gw_pipeline *pipeline;
	struct gw_device_step *step;
	struct gw_sequence *const *batch;
	uint32_t count, jobs;  /* rows; rows × KV heads */
	uint32_t appended;     /* layers whose rows were appended */
	struct kn_cache_table table;
};

/* Every job of a layer, in memory of [layers][jobs]. */
static size_t of_layer(const struct run *run, uint32_t layer)
{
	return (size_t)layer * run->step->room.jobs;
}

static void lookup_job(const struct run *run, uint32_t layer, uint32_t row, uint32_t head)
{
	const struct gw_step_room *room = &run->step->room;
	const struct gw_sequence *sequence = run->batch[row];
	const struct gw_layer_state *state = &sequence->layers[layer];
	const struct gw_step_map *map = sequence->map;
	const struct gw_layer_map *lists = &map->layers[layer];
	uint32_t number = row * run->pipeline->shape->kv_heads + head;
	size_t clusters = (size_t)head * map->clusters, at = of_layer(run, layer) + number;
	const struct gw_selection *selection = &run->pipeline->selections[number];

	room->lookups[number] = (struct kn_lookup_job){.extents = selection->extents,
		.selected = selection->counts,
		.hints = lists->hints + clusters,
		.segment_of = lists->segment_of,
		.segment_first = lists->segment_first,
		.segment_ids = map->segment_ids,
		.first_row = lists->first_row + clusters,
		.unit_rows = lists->unit_rows + (size_t)head * map->segments,
		.layer = layer,
		.head = head,
		.before = {gw_token_rows_at(&state->sinks, head, 0), state->sinks.count},
		.after = {gw_token_rows_at(&state->recent, head, 0), state->recent.count},
		.spans = room->spans + (size_t)number * room->span_capacity,
		.span_count = room->span_counts + number,
		.misses = room->misses + at * room->extents,
		.counts = room->found + at};
}

static enum kv_status queue_lookup(struct run *run, uint32_t layer)
{
	struct gw_pipeline *pipeline = run->pipeline;
	struct gw_step_room *room = &run->step->room;
	const struct kn_device *device = &pipeline->device;
	struct kn_lookup_arguments look = {room->lookups, run->jobs, run->table,
		{room->staging, room->staging_rows, &room->words->staged, room->copies,
			room->copy_capacity, &room->words->copies, &room->words->failed}};
	/* The generation is looked at by the host, behind all layers. */
	struct kn_gather_extents_arguments gather = {room->copies, &room->words->copies,
		room->copy_capacity, NULL, 0, &room->words->failed};

	KV_TRY(gw_select_queue(pipeline, run->batch, run->count, layer,
		room->selected + of_layer(run, layer)));
	for (uint32_t row = 0; row < run->count; row++)
		for (uint32_t head = 0; head < pipeline->shape->kv_heads; head++)
			lookup_job(run, layer, row, head);
	KV_TRY(device->ops->lookup(device->backend, device->stream, &look));
	return device->ops->gather_extents(device->backend, device->stream, &gather);
}

/* Over the spans that the lookup writes, or all the rows of a dense layer. */
static void attend_job(const struct run *run, uint32_t layer, uint32_t row, uint32_t head)
{
	const struct gw_pipeline *pipeline = run->pipeline;
	const struct gw_model_shape *shape = pipeline->shape;
	const struct gw_layer_state *state = &run->batch[row]->layers[layer];
	const struct gw_step_room *room = &run->step->room;
	uint32_t group = gw_shape_group(shape), number = row * shape->kv_heads + head;
	size_t first = (size_t)head * group * shape->head_dim;
	struct kn_attend_job *job = &room->attends[number];

	*job = (struct kn_attend_job){0};
	job->q = pipeline->qkv + (size_t)row * gw_model_qkv_width(pipeline->options.model) + first;
	job->out = pipeline->attention + (size_t)row * shape->heads * shape->head_dim + first;
	if (!state->ops->clustered) {
		room->dense[number] = (struct kn_span){gw_token_rows_at(&state->recent, head, 0),
			state->recent.count};
		job->spans = room->dense + number;
		job->span_count = 1;
		return;
	}
	job->spans = room->lookups[number].spans;
	job->spans_written = room->span_counts + number;
	job->span_count = room->span_capacity;
	/* Sinks are among the tokens of the budget. */
	job->row_bound = room->tokens + state->recent.count;
	job->estimate = pipeline->selections[number].estimate;
	if (job->estimate.clusters > 0)
		job->exact_mass = room->exact_mass + (of_layer(run, layer) + number) * group;
}

static enum kv_status queue_attention(struct run *run, uint32_t layer)
{
	struct gw_pipeline *pipeline = run->pipeline;
	const struct kn_device *device = &pipeline->device;
	struct kn_attend_sparse_arguments a = {0};

	for (uint32_t row = 0; row < run->count; row++)
		for (uint32_t head = 0; head < pipeline->shape->kv_heads; head++)
			attend_job(run, layer, row, head);
	a.jobs = run->step->room.attends;
	a.job_count = run->jobs;
	a.group = gw_shape_group(pipeline->shape);
	a.head_dim = pipeline->shape->head_dim;
	a.kv_type = pipeline->options.kv_type;
	a.scale = pipeline->shape->attention_scale;
	return device->ops->attend_sparse(device->backend, device->stream, &a);
}

static enum kv_status queue_layer(struct run *run, uint32_t layer)
{
	struct gw_pipeline *pipeline = run->pipeline;
	struct gw_model *model = pipeline->options.model;

	KV_TRY(gw_model_project(model, layer, pipeline->x, pipeline->positions, run->count,
		pipeline->qkv));
	KV_TRY(gw_append_batch(pipeline, run->batch, run->count, layer));
	run->appended++;
	if (run->batch[0]->layers[layer].ops->clustered) KV_TRY(queue_lookup(run, layer));
	KV_TRY(queue_attention(run, layer));
	return gw_model_finish(model, layer, pipeline->attention, run->count, pipeline->x);
}

static enum kv_status queue_step(struct run *run, float *logits)
{
	struct gw_pipeline *pipeline = run->pipeline;
	struct gw_step_room *room = &run->step->room;
	const struct kn_device *device = &pipeline->device;

	KV_TRY(device->ops->fill(device->backend, device->stream, room->words, 0,
		sizeof *room->words));
	KV_TRY(gw_model_embed(pipeline->options.model, pipeline->ids, run->count, pipeline->x));
	for (uint32_t layer = 0; layer < pipeline->shape->layers; layer++)
		KV_TRY(queue_layer(run, layer));
	KV_TRY(gw_queue_logits(pipeline, run->count, logits));
	KV_TRY(gw_cache_mirror_fetch_used(pipeline->cache));
	return kn_device_download(device, room->seen, room->words, sizeof *room->seen);
}

/* What lookups read is brought up to date. *may: they can find everything. */
static enum kv_status prepare(struct run *run, int *may)
{
	struct gw_pipeline *pipeline = run->pipeline;

	*may = run->step->memory.count > 0 && run->step->pause == 0;
	if (run->step->pause > 0) run->step->pause--;
	for (uint32_t i = 0; *may && i < run->count; i++)
		*may = run->batch[i]->stored != NULL && run->batch[i]->map != NULL;
	if (!*may) return KV_OK;
	/* Hints that are behind go before those that are uploaded whole. */
	KV_TRY(gw_cache_mirror_update(pipeline->cache, &run->table));
	for (uint32_t i = 0; *may && i < run->count; i++)
		KV_TRY(gw_step_map_update(run->batch[i], may));
	return KV_OK;
}

static enum kv_status run_step(struct run *run, float *logits)
{
	const struct kn_device *device = &run->pipeline->device;
	enum kv_status queued, ended;

	/* Another shape than the host's step of as many rows. */
	KV_TRY(device->ops->step_begin(device->backend, device->stream,
		KN_MAX_DECODE_ROWS + run->count));
	queued = queue_step(run, logits);
	ended = device->ops->step_end(device->backend, device->stream);
	KV_TRY(queued);
	KV_TRY(ended);
	KV_TRY(kn_device_wait(device));
	gw_cache_mirror_waited(run->pipeline->cache);
	return KV_OK;
}

/* Was all found, and was the store's memory what it seemed while it was read? */
static int believed(const struct run *run)
{
	if (run->step->room.seen->failed != 0 ||
		kvc_generation(run->pipeline->options.store) != run->pipeline->generation)
		return 0;
	for (uint32_t i = 0; i < run->count; i++)
		if (kvc_sequence_check(run->batch[i]->stored) != KV_OK) return 0;
	return 1;
}

static void take_back(const struct run *run)
{
	struct gw_device_step *step = run->step;

	if (step->room.seen->failed & KN_STEP_STAGING_FULL) {
		step->pause_after = step->pause_after > 0 ? 2 * step->pause_after : 1;
		if (step->pause_after > MAX_PAUSE) step->pause_after = MAX_PAUSE;
		step->pause = step->pause_after;
	}
	for (uint32_t i = 0; i < run->count; i++) {
		for (uint32_t layer = 0; layer < run->appended; layer++)
			run->batch[i]->layers[layer].recent.count--;
		run->batch[i]->report.repeated_steps++;
	}
}

enum kv_status gw_device_step(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, float *logits, int *done)
{
	struct run run = {pipeline, pipeline->device_step, batch, count,
		count * pipeline->shape->kv_heads, 0, {0}};
	int may = 0;

	*done = 0;
	if (run.step == NULL) return KV_OK;
	KV_TRY(prepare(&run, &may));
	if (may) {
		KV_TRY(run_step(&run, logits));
		*done = believed(&run);
		if (!*done) take_back(&run);
	}
	/* The host will find slots that the device has no hints for. */
	for (uint32_t i = 0; !*done && i < count; i++)
		if (batch[i]->map != NULL) batch[i]->map->hints_stale = 1;
	if (!*done) return KV_OK;
	run.step->pause_after = 0;
	for (uint32_t i = 0; i < count; i++)
		batch[i]->report.device_steps++;
	return gw_device_admit(pipeline, batch, count);
}
