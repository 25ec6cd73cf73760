/* --audit: what the approximation lost, measured with the run's own queries at the price of full
 * attention. Prefix tokens are all that are clustered, the sinks, and the prompt's tokens in the
 * window.
 *
 * Keys of the prefix are packed once for each layer, as fp16, so that the score kernel can read
 * them like centroids: each token is a cluster of one. With f32 key/values the audit's own
 * logits are therefore rounded to fp16 keys.
 *
 * All of it is computed on memory of the host, by the cpu backend where the pipeline's cannot use
 * that memory: queries, output and window of a row are brought here then. */
#include <math.h>
#include <string.h>

#include "gpu-worker/pipeline/step.h"
#include "kernels/cpu/half.h"

struct gw_audit_layer {
	uint16_t *keys;      /* fp16 [kv_heads][capacity][head_dim]: rows of entries in list order */
	uint32_t *entry_at;  /* [segment_capacity]: first packed token of a list entry */
	uint32_t entries, tokens;
};

struct gw_audit {
	struct gw_audit_layer *layers;
	uint32_t capacity;   /* tokens */
	float *logits;       /* [group][capacity] */
	float *votes, *zeros;
	uint32_t *ones, *order, *rest;
	struct kn_extent *best;
	uint8_t *attended;   /* [capacity] */
	struct kn_span *spans;
	float *full;         /* [group][head_dim] */
	/* Of the row and layer that is audited; NULL where the pipeline's memory is the host's. */
	float *q, *attention; /* [heads][head_dim] */
	uint8_t *window;     /* [kv_heads][window_room][row_bytes] */
	uint32_t window_room;
};

void gw_audit_destroy(struct gw_sequence *sequence)
{
	struct kv_allocator *allocator = sequence->pipeline->options.allocator;
	struct gw_audit *audit = sequence->audit;

	if (audit == NULL) return;
	for (uint32_t i = 0; audit->layers != NULL && i < sequence->pipeline->shape->layers; i++) {
		kv_free(allocator, audit->layers[i].keys);
		kv_free(allocator, audit->layers[i].entry_at);
	}
	kv_free(allocator, audit->layers);
	kv_free(allocator, audit->logits);
	kv_free(allocator, audit->votes);
	kv_free(allocator, audit->zeros);
	kv_free(allocator, audit->ones);
	kv_free(allocator, audit->order);
	kv_free(allocator, audit->rest);
	kv_free(allocator, audit->best);
	kv_free(allocator, audit->attended);
	kv_free(allocator, audit->spans);
	kv_free(allocator, audit->full);
	kv_free(allocator, audit->q);
	kv_free(allocator, audit->attention);
	kv_free(allocator, audit->window);
	kv_free(allocator, audit);
	sequence->audit = NULL;
}

static enum kv_status create_row(struct gw_sequence *sequence)
{
	const struct gw_pipeline *pipeline = sequence->pipeline;
	struct kv_allocator *allocator = pipeline->options.allocator;
	const struct gw_policy_options *policy = &pipeline->options.policy;
	size_t width = (size_t)pipeline->shape->heads * pipeline->shape->head_dim;
	struct gw_audit *audit = sequence->audit;

	if (pipeline->device.ops->unified) return KV_OK;
	audit->window_room = policy->window + policy->fold;
	audit->q = kv_alloc_array(allocator, width, sizeof *audit->q);
	audit->attention = kv_alloc_array(allocator, width, sizeof *audit->attention);
	audit->window = kv_alloc_array(allocator, (size_t)pipeline->shape->kv_heads *
		audit->window_room, pipeline->row_bytes);
	return audit->q && audit->attention && audit->window ? KV_OK : KV_NO_MEMORY;
}

static enum kv_status create(struct gw_sequence *sequence)
{
	const struct gw_model_shape *shape = sequence->pipeline->shape;
	struct kv_allocator *allocator = sequence->pipeline->options.allocator;
	uint32_t n = sequence->token_capacity, group = gw_shape_group(shape);
	struct gw_audit *audit = kv_alloc_zero(allocator, sizeof *audit);

	if (audit == NULL) return KV_NO_MEMORY;
	sequence->audit = audit;
	audit->capacity = n;
	audit->layers = kv_alloc_array_zero(allocator, shape->layers, sizeof *audit->layers);
	audit->logits = kv_alloc_array(allocator, (size_t)n * group, sizeof *audit->logits);
	audit->votes = kv_alloc_array(allocator, n, sizeof *audit->votes);
	audit->zeros = kv_alloc_array_zero(allocator, n, sizeof *audit->zeros);
	audit->ones = kv_alloc_array(allocator, n, sizeof *audit->ones);
	audit->order = kv_alloc_array(allocator, n, sizeof *audit->order);
	audit->rest = kv_alloc_array(allocator, n, sizeof *audit->rest);
	audit->best = kv_alloc_array(allocator, n, sizeof *audit->best);
	audit->attended = kv_alloc(allocator, n);
	audit->spans = kv_alloc_array(allocator, sequence->segment_capacity + 2, sizeof *audit->spans);
	audit->full = kv_alloc_array(allocator, (size_t)group * shape->head_dim, sizeof *audit->full);
	if (!audit->layers || !audit->logits || !audit->votes || !audit->zeros || !audit->ones ||
		!audit->order || !audit->rest || !audit->best || !audit->attended || !audit->spans ||
		!audit->full)
		return KV_NO_MEMORY;
	for (uint32_t i = 0; i < n; i++)
		audit->ones[i] = 1;
	return create_row(sequence);
}

/* What the host cannot read where it is. */
static enum kv_status bring_row(struct gw_sequence *sequence, const struct gw_token_rows *recent,
	const float **q, const float **attention)
{
	const struct gw_pipeline *pipeline = sequence->pipeline;
	const struct kn_device *device = &pipeline->device;
	struct gw_audit *audit = sequence->audit;
	size_t bytes = (size_t)pipeline->shape->heads * pipeline->shape->head_dim * sizeof(float);

	if (device->ops->unified) return KV_OK;
	KV_TRY(kn_device_download(device, audit->q, *q, bytes));
	KV_TRY(kn_device_download(device, audit->attention, *attention, bytes));
	for (uint32_t head = 0; head < recent->kv_heads; head++)
		KV_TRY(kn_device_download(device,
			audit->window + (size_t)head * audit->window_room * recent->row_bytes,
			gw_token_rows_at(recent, head, 0), recent->count * recent->row_bytes));
	KV_TRY(kn_device_wait(device));
	*q = audit->q;
	*attention = audit->attention;
	return KV_OK;
}

/* The window's rows of a head, readable by the host. */
static const uint8_t *window_rows(const struct gw_sequence *sequence,
	const struct gw_token_rows *recent, uint32_t head)
{
	const struct gw_audit *audit = sequence->audit;

	if (audit->window == NULL) return gw_token_rows_at(recent, head, 0);
	return audit->window + (size_t)head * audit->window_room * recent->row_bytes;
}

static void pack_row(const struct gw_pipeline *pipeline, const uint8_t *row, uint16_t *key)
{
	uint32_t head_dim = pipeline->shape->head_dim;
	const float *values = (const float *)(const void *)row;

	if (pipeline->options.kv_type == KN_KV_F16) {
		memcpy(key, row, head_dim * sizeof *key);
		return;
	}
	for (uint32_t i = 0; i < head_dim; i++)
		key[i] = kn_half_from_float(values[i]);
}

static uint16_t *packed_key(const struct gw_sequence *sequence, uint32_t layer, uint32_t head,
	uint32_t token)
{
	const struct gw_audit *audit = sequence->audit;

	return audit->layers[layer].keys +
		((size_t)head * audit->capacity + token) * sequence->pipeline->shape->head_dim;
}

static void pack_rows(struct gw_sequence *sequence, uint32_t layer, uint32_t head, uint32_t at,
	const uint8_t *rows, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		pack_row(sequence->pipeline, rows + i * sequence->pipeline->row_bytes,
			packed_key(sequence, layer, head, at + i));
}

/* Pack list entries that came since the last row. */
static enum kv_status pack_entries(struct gw_sequence *sequence, uint32_t layer)
{
	struct gw_pipeline *pipeline = sequence->pipeline;
	struct gw_audit_layer *packed = &sequence->audit->layers[layer];
	uint32_t kv_heads = pipeline->shape->kv_heads;

	if (packed->keys == NULL) {
		packed->keys = kv_alloc_array(pipeline->options.allocator,
			(size_t)kv_heads * sequence->audit->capacity,
			sizeof *packed->keys * pipeline->shape->head_dim);
		packed->entry_at = kv_alloc_array(pipeline->options.allocator, sequence->segment_capacity,
			sizeof *packed->entry_at);
		if (packed->keys == NULL || packed->entry_at == NULL) return KV_NO_MEMORY;
	}
	while (packed->entries < sequence->segment_count &&
		sequence->segments[packed->entries]->kind == KVW_CLUSTERED) {
		const struct gw_unit *unit = &sequence->units[packed->entries];
		const uint8_t *memory =
			kvc_direct(pipeline->options.store, sequence->segments[packed->entries], layer);

		if (memory == NULL)
			return kv_fail(KV_UNSUPPORTED,
				"--audit reads the whole arena and needs shared memory; this transport has none");
		for (uint32_t head = 0; head < kv_heads; head++)
			pack_rows(sequence, layer, head, packed->tokens,
				gw_unit_row(unit, memory, head, 0), unit->shape.tokens);
		packed->entry_at[packed->entries++] = packed->tokens;
		packed->tokens += unit->shape.tokens;
	}
	return KV_OK;
}

static uint32_t prompt_rows_in_window(const struct gw_sequence *sequence)
{
	return sequence->prompt_tokens > sequence->window_start
		? sequence->prompt_tokens - sequence->window_start
		: 0;
}

/* Mark what was attended of the packed prefix. */
static void mark_attended(struct gw_sequence *sequence, uint32_t layer, uint32_t head,
	const struct gw_selection *selection, uint32_t prefix)
{
	struct gw_audit *audit = sequence->audit;
	const struct gw_audit_layer *packed = &audit->layers[layer];
	const struct gw_cluster_index *index = sequence->layers[layer].index;

	memset(audit->attended, 0, prefix);
	/* Rows before the clusters are sinks. */
	for (uint32_t i = 0; i < packed->entries; i++)
		memset(audit->attended + packed->entry_at[i], 1, sequence->units[i].shape.plain);
	memset(audit->attended + packed->tokens, 1, prefix - packed->tokens);
	for (uint32_t i = 0; i < selection->extent_count; i++) {
		uint32_t cluster = selection->extents[i].cluster;
		uint32_t ordinal = index->segment_of[cluster];
		uint32_t row = index->first_row[(size_t)head * index->capacity + cluster];

		memset(audit->attended + packed->entry_at[ordinal] + row, 1, selection->extents[i].count);
	}
}

static void add_lost_mass(struct gw_sequence *sequence, uint32_t prefix, uint32_t group)
{
	const struct gw_audit *audit = sequence->audit;

	for (uint32_t g = 0; g < group; g++) {
		const float *logits = audit->logits + (size_t)g * audit->capacity;
		double all = 0.0, attended = 0.0;
		float most = logits[0];

		for (uint32_t i = 1; i < prefix; i++)
			most = logits[i] > most ? logits[i] : most;
		for (uint32_t i = 0; i < prefix; i++) {
			double mass = (double)expf(logits[i] - most);

			all += mass;
			attended += audit->attended[i] ? mass : 0.0;
		}
		sequence->report.lost_mass += 1.0 - attended / all;
		sequence->report.audits++;
	}
}

static enum kv_status score_prefix(struct gw_sequence *sequence, uint32_t layer, uint32_t head,
	const float *q, uint32_t prefix)
{
	struct gw_pipeline *pipeline = sequence->pipeline;
	const struct kn_device *device = &pipeline->audit_device;
	struct gw_audit *audit = sequence->audit;
	struct kn_score_job job = {0};
	struct kn_score_arguments a = {0};

	job.q = q;
	job.centroids = packed_key(sequence, layer, head, 0);
	job.log_sizes = audit->zeros;
	job.clusters = prefix;
	job.logits = audit->logits;
	job.logits_stride = audit->capacity;
	job.votes = audit->votes;
	a.jobs = &job;
	a.job_count = 1;
	a.group = gw_shape_group(pipeline->shape);
	a.head_dim = pipeline->shape->head_dim;
	a.scale = pipeline->shape->attention_scale;
	return device->ops->score(device->backend, device->stream, &a);
}

/* The tokens with the most probability, summed over the group: how many of them were attended? */
static enum kv_status add_recall(struct gw_sequence *sequence, uint32_t prefix, uint32_t budget)
{
	const struct kn_device *device = &sequence->pipeline->audit_device;
	struct gw_audit *audit = sequence->audit;
	struct kn_select_job job = {0};
	struct kn_select_counts counts = {0};
	struct kn_select_arguments a = {&job, 1};
	uint32_t found = 0;

	job.votes = audit->votes;
	job.sizes = audit->ones;
	job.clusters = prefix;
	job.budget = budget;
	job.extents = audit->best;
	job.rest = audit->rest;
	job.counts = &counts;
	job.scratch = audit->order;
	KV_TRY(device->ops->select(device->backend, device->stream, &a));
	for (uint32_t i = 0; i < counts.extents; i++)
		found += audit->attended[audit->best[i].cluster];
	if (counts.extents > 0) {
		sequence->report.recall += (double)found / counts.extents;
		sequence->report.recalls++;
	}
	return KV_OK;
}

/* Full attention over everything, with the same kernel and rows. */
static enum kv_status attend_fully(struct gw_sequence *sequence, uint32_t layer, uint32_t head,
	const float *q)
{
	struct gw_pipeline *pipeline = sequence->pipeline;
	const struct gw_pipeline_options *o = &pipeline->options;
	const struct kn_device *device = &pipeline->audit_device;
	const struct gw_layer_state *state = &sequence->layers[layer];
	struct gw_audit *audit = sequence->audit;
	struct kn_attend_job job = {0};
	struct kn_attend_sparse_arguments a = {0};

	for (uint32_t i = 0; i < audit->layers[layer].entries; i++) {
		const struct gw_unit *unit = &sequence->units[i];
		const uint8_t *memory = kvc_direct(o->store, sequence->segments[i], layer);

		if (memory == NULL) return kv_fail(KV_STALE, "segment left during an audit");
		audit->spans[job.span_count].rows = gw_unit_row(unit, memory, head, 0);
		audit->spans[job.span_count++].count = unit->shape.tokens;
	}
	audit->spans[job.span_count].rows = window_rows(sequence, &state->recent, head);
	audit->spans[job.span_count++].count = state->recent.count;
	job.q = q;
	job.out = audit->full;
	job.spans = audit->spans;
	a.jobs = &job;
	a.job_count = 1;
	a.group = gw_shape_group(pipeline->shape);
	a.head_dim = pipeline->shape->head_dim;
	a.kv_type = o->kv_type;
	a.scale = pipeline->shape->attention_scale;
	return device->ops->attend_sparse(device->backend, device->stream, &a);
}

static void add_output_error(struct gw_sequence *sequence, const float *attention)
{
	uint32_t head_dim = sequence->pipeline->shape->head_dim;
	uint32_t group = gw_shape_group(sequence->pipeline->shape);
	const float *full = sequence->audit->full;

	for (uint32_t g = 0; g < group; g++) {
		double difference = 0.0, norm = 0.0;

		for (uint32_t i = g * head_dim; i < (g + 1) * head_dim; i++) {
			double d = (double)attention[i] - (double)full[i];

			difference += d * d;
			norm += (double)full[i] * (double)full[i];
		}
		sequence->report.output_error += norm > 0.0 ? sqrt(difference / norm) : 0.0;
	}
}

enum kv_status gw_audit_row(struct gw_sequence *sequence, uint32_t layer, const float *q,
	const float *attention, const struct gw_selection *selections)
{
	const struct gw_model_shape *shape = sequence->pipeline->shape;
	const struct gw_layer_state *state = &sequence->layers[layer];
	uint32_t group = gw_shape_group(shape), window = prompt_rows_in_window(sequence);
	uint32_t prefix;

	if (!state->ops->clustered) return KV_OK;
	if (sequence->audit == NULL) KV_TRY(create(sequence));
	KV_TRY(pack_entries(sequence, layer));
	prefix = sequence->audit->layers[layer].tokens + window;
	if (prefix == 0) return KV_OK;
	KV_TRY(bring_row(sequence, &state->recent, &q, &attention));
	for (uint32_t head = 0; head < shape->kv_heads; head++) {
		size_t first = (size_t)head * group * shape->head_dim;

		pack_rows(sequence, layer, head, prefix - window,
			window_rows(sequence, &state->recent, head), window);
		KV_TRY(score_prefix(sequence, layer, head, q + first, prefix));
		mark_attended(sequence, layer, head, &selections[head], prefix);
		add_lost_mass(sequence, prefix, group);
		KV_TRY(add_recall(sequence, prefix, state->sinks.count + selections[head].tokens));
		KV_TRY(attend_fully(sequence, layer, head, q + first));
		add_output_error(sequence, attention + first);
	}
	return kvc_sequence_check(sequence->stored);
}
