#include <math.h>
#include <string.h>

#include "gpu-worker/pipeline/run_prompt.h"

enum { NLL_ROWS = 16 };

/* Rows of stored segments and pieces come through memory of the run's own where operations cannot
 * read the store's. */
static enum kv_status take_context_memory(struct gw_prompt_run *run)
{
	struct gw_pipeline *pipeline = run->sequence->pipeline;
	const struct kvc_piece *piece;
	uint32_t tokens = 0, longest = 0, pieces = 0;
	void *memory = NULL;

	if (pipeline->device.ops->unified || run->sequence->stored == NULL) return KV_OK;
	for (uint32_t i = 0; i < run->shared_count; i++)
		tokens += run->sequence->segments[i]->tokens;
	run->context_bytes = (size_t)tokens * run->shape->kv_heads * pipeline->row_bytes;
	if (tokens > 0)
		KV_TRY(kn_device_alloc(&pipeline->device, KN_DEVICE, run->context_bytes, &memory));
	run->context = memory;
	piece = kvc_sequence_pieces(run->sequence->stored, &pieces);
	for (uint32_t i = 0; i < pieces; i++)
		if (piece[i].tokens > longest) longest = piece[i].tokens;
	run->piece_rows = kv_alloc_array(pipeline->options.allocator, longest, pipeline->row_bytes);
	return run->piece_rows != NULL ? KV_OK : KV_NO_MEMORY;
}

static enum kv_status take_own_rows(struct gw_prompt_run *run)
{
	const struct gw_pipeline *pipeline = run->sequence->pipeline;
	void *memory = NULL;

	run->own_tokens = run->sequence->prompt_tokens - run->own_start;
	run->own_stride = run->own_tokens * pipeline->row_bytes;
	if (run->own_tokens == 0) return KV_OK;
	KV_TRY(kn_device_alloc(&pipeline->device, KN_DEVICE, run->own_stride * run->shape->kv_heads,
		&memory));
	run->own = run->own_memory = memory;
	return KV_OK;
}

static enum kv_status take_backend_memory(struct gw_prompt_run *run)
{
	struct gw_pipeline *pipeline = run->sequence->pipeline;
	const struct kn_device *device = &pipeline->device;
	uint32_t tokens = run->sequence->prompt_tokens - run->first;
	void *memory = NULL;

	KV_TRY(kn_device_alloc(device, KN_DEVICE, (size_t)tokens * run->shape->hidden * sizeof(float),
		&memory));
	run->x = memory;
	KV_TRY(kn_device_alloc(device, KN_SHARED, tokens * sizeof *run->positions, &memory));
	run->positions = memory;
	for (uint32_t i = 0; i < tokens; i++)
		run->positions[i] = run->first + i;
	KV_TRY(take_own_rows(run));
	return take_context_memory(run);
}

static enum kv_status take_memory(struct gw_prompt_run *run)
{
	struct gw_pipeline *pipeline = run->sequence->pipeline;
	const struct gw_pipeline_options *o = &pipeline->options;

	KV_TRY(take_backend_memory(run));
	run->span_capacity = run->shared_count + 1;
	run->spans = kv_alloc_array(o->allocator, (size_t)run->shape->kv_heads * run->span_capacity,
		sizeof *run->spans);
	run->own_rows = kv_alloc_array(o->allocator, run->shape->kv_heads, sizeof *run->own_rows);
	run->reserved =
		kv_alloc_array_zero(o->allocator, run->new_count, sizeof *run->reserved);
	run->shared_units =
		kv_alloc_array_zero(o->allocator, run->shared_count, sizeof *run->shared_units);
	run->buffer = kv_alloc(o->allocator, gw_attach_buffer_bytes(run->sequence));
	if (!run->spans || !run->own_rows || !run->reserved || !run->shared_units || !run->buffer)
		return KV_NO_MEMORY;
	return KV_OK;
}

static enum kv_status reserve(struct gw_prompt_run *run)
{
	struct gw_sequence *sequence = run->sequence;
	struct kv_allocator *allocator = sequence->pipeline->options.allocator;
	struct kvc_new_segment *wanted;
	enum kv_status status;
	uint32_t start = run->own_start;

	if (sequence->stored == NULL || run->new_count == 0) return KV_OK;
	wanted = kv_alloc_array(allocator, run->new_count, sizeof *wanted);
	if (wanted == NULL) return KV_NO_MEMORY;
	for (uint32_t i = 0; i < run->new_count; i++) {
		const struct kvc_cut *cut = &sequence->cuts[run->shared_count + i];

		wanted[i].start = start;
		wanted[i].tokens = cut->end - start;
		wanted[i].kind = cut->kind;
		wanted[i].provenance = KVW_EXACT;
		start = cut->end;
	}
	status = kvc_reserve(sequence->stored, wanted, run->new_count, run->reserved);
	kv_free(allocator, wanted);
	return status;
}

enum kv_status gw_prompt_begin(struct gw_prompt_run *run, struct gw_sequence *sequence)
{
	struct gw_pipeline *pipeline = sequence->pipeline;

	run->sequence = sequence;
	run->model = pipeline->options.model;
	run->shape = pipeline->shape;
	run->qkv = pipeline->qkv;
	run->attention = pipeline->attention;
	run->shared_count = sequence->segment_count;
	if (run->shared_count > 0) {
		const struct kvc_segment *last = sequence->segments[run->shared_count - 1];

		run->own_start = last->start + last->tokens;
	}
	KV_TRY(gw_attach_known(sequence, &run->hit));
	/* The last token is always run: its logits are not stored. */
	run->first = run->hit < sequence->prompt_tokens ? run->hit : sequence->prompt_tokens - 1;
	run->new_count = sequence->stored != NULL ? sequence->cut_count - run->shared_count : 0;
	KV_TRY(take_memory(run));
	return reserve(run);
}

void gw_prompt_end(struct gw_prompt_run *run)
{
	struct gw_sequence *sequence = run->sequence;
	const struct gw_pipeline_options *o = &sequence->pipeline->options;
	const struct kn_device *device = &sequence->pipeline->device;

	if (!run->whole) {
		gw_pipeline_settle(sequence->pipeline);
		gw_offload_drop(sequence);
	}
	if (!run->whole && run->reserved != NULL && run->new_count > 0 &&
		run->reserved[0] != NULL)
		kvc_release(sequence->stored, run->reserved, run->new_count);
	if (sequence->stored != NULL) kvc_sequence_release_pieces(sequence->stored);
	for (uint32_t i = 0; run->shared_units != NULL && i < run->shared_count; i++)
		kv_free(o->allocator, run->shared_units[i]);
	kn_device_free(device, run->x);
	kn_device_free(device, run->positions);
	kn_device_free(device, run->own_memory);
	if (sequence->pipeline->spare_user == sequence) sequence->pipeline->spare_user = NULL;
	kn_device_free(device, run->context);
	kn_device_free(device, run->logits);
	kv_free(o->allocator, run->piece_rows);
	kv_free(o->allocator, run->spans);
	kv_free(o->allocator, (void *)(uintptr_t)run->own_rows);
	kv_free(o->allocator, (void *)(uintptr_t)run->reserved);
	kv_free(o->allocator, run->shared_units);
	kv_free(o->allocator, run->buffer);
}

uint32_t gw_prompt_chunk_end(const struct gw_prompt_run *run, uint32_t at)
{
	uint32_t chunk = run->sequence->pipeline->options.chunk;
	uint32_t end = (at / chunk + 1) * chunk;

	return end < run->sequence->prompt_tokens ? end : run->sequence->prompt_tokens;
}

float *gw_prompt_residual(const struct gw_prompt_run *run, uint32_t at)
{
	return run->x + (size_t)(at - run->first) * run->shape->hidden;
}

const uint32_t *gw_prompt_positions(const struct gw_prompt_run *run, uint32_t at)
{
	return run->positions + (at - run->first);
}

enum kv_status gw_prompt_embed(struct gw_prompt_run *run)
{
	uint32_t end = run->sequence->prompt_tokens;

	for (uint32_t at = run->first; at < end; at = gw_prompt_chunk_end(run, at))
		KV_TRY(gw_model_embed(run->model, run->sequence->tokens + at,
			gw_prompt_chunk_end(run, at) - at, gw_prompt_residual(run, at)));
	return KV_OK;
}

static void add_span(struct gw_prompt_run *run, uint32_t head, uint32_t at, const uint8_t *rows,
	uint32_t count)
{
	struct kn_span *span = &run->spans[(size_t)head * run->span_capacity + at];

	span->rows = rows;
	span->count = count;
}

/* The unit of list entry i where it can be read for the whole layer. */
static enum kv_status shared_unit(struct gw_prompt_run *run, uint32_t i, uint32_t layer,
	const struct gw_unit *unit, const uint8_t **memory)
{
	struct gw_pipeline *pipeline = run->sequence->pipeline;
	const struct kvc_segment *segment = run->sequence->segments[i];

	if (run->context != NULL)
		return gw_unit_read(pipeline, segment, layer, unit, run->buffer, memory);
	if (kvc_direct(pipeline->options.store, segment, layer) == NULL) {
		kv_free(pipeline->options.allocator, run->shared_units[i]);
		run->shared_units[i] = kv_alloc(pipeline->options.allocator, unit->layout.bytes);
		if (run->shared_units[i] == NULL) return KV_NO_MEMORY;
	}
	return gw_unit_read(pipeline, segment, layer, unit, run->shared_units[i], memory);
}

/* One head's rows of a shared unit, where operations can read them. */
static enum kv_status shared_rows(struct gw_prompt_run *run, uint32_t head,
	const struct gw_unit *unit, const uint8_t *memory, const uint8_t **rows)
{
	const struct gw_pipeline *pipeline = run->sequence->pipeline;
	size_t bytes = unit->shape.tokens * pipeline->row_bytes;
	uint8_t *to = run->context + run->context_used;

	*rows = gw_unit_row(unit, memory, head, 0);
	if (run->context == NULL) return KV_OK;
	if (bytes > run->context_bytes - run->context_used)
		return kv_fail(KV_INTERNAL, "shared rows of %zu bytes, room for %zu",
			run->context_used + bytes, run->context_bytes);
	KV_TRY(kn_device_upload(&pipeline->device, to, *rows, bytes));
	run->context_used += bytes;
	*rows = to;
	return KV_OK;
}

/* The last prompt token is run though its KV is stored: it attends to its own stored row, the one
 * with its position, and to all others. */
static enum kv_status split_last(struct gw_prompt_run *run, uint32_t head, uint32_t at,
	const struct gw_unit *unit, const uint8_t *memory)
{
	const uint32_t *positions = gw_unit_positions(unit, memory, head);
	size_t row_bytes = run->sequence->pipeline->row_bytes;
	const uint8_t *rows;
	uint32_t wanted = run->sequence->prompt_tokens - 1, row = 0, tokens = unit->shape.tokens;

	while (row < tokens && positions[row] != wanted)
		row++;
	if (row == tokens)
		return kv_fail(KV_CORRUPT, "stored segment has no row of position %u", wanted);
	KV_TRY(shared_rows(run, head, unit, memory, &rows));
	add_span(run, head, at, rows, row);
	add_span(run, head, at + 1, rows + (row + 1) * row_bytes, tokens - row - 1);
	run->own_rows[head] = rows + row * row_bytes;
	return KV_OK;
}

static enum kv_status attach_shared_unit(struct gw_prompt_run *run, uint32_t i, uint32_t layer,
	int split)
{
	const struct kn_device *device = &run->sequence->pipeline->device;
	const uint8_t *memory, *rows;
	struct gw_unit unit;

	KV_TRY(gw_unit_describe(run->sequence->pipeline, run->sequence->segments[i], layer, &unit));
	KV_TRY(shared_unit(run, i, layer, &unit, &memory));
	for (uint32_t head = 0; head < run->shape->kv_heads; head++) {
		if (split) {
			KV_TRY(split_last(run, head, i, &unit, memory));
			continue;
		}
		KV_TRY(shared_rows(run, head, &unit, memory, &rows));
		add_span(run, head, i, rows, unit.shape.tokens);
	}
	/* The buffer is the next unit's. */
	return memory == run->buffer ? kn_device_wait(device) : KV_OK;
}

static enum kv_status attach_shared(struct gw_prompt_run *run, uint32_t layer)
{
	uint32_t kv_heads = run->shape->kv_heads;
	int stored_last = run->shared_count > 0 && run->own_start == run->sequence->prompt_tokens;

	run->span_count = run->shared_count + (stored_last ? 1 : 0);
	run->own_before = run->first - (stored_last ? run->first : run->own_start);
	for (uint32_t head = 0; head < kv_heads; head++)
		run->own_rows[head] = run->own + head * run->own_stride;
	run->context_used = 0;
	for (uint32_t i = 0; i < run->shared_count; i++)
		KV_TRY(attach_shared_unit(run, i, layer, stored_last && i + 1 == run->shared_count));
	/* Spans are read as [kv_heads][span_count]. */
	for (uint32_t head = 1; run->span_count < run->span_capacity && head < kv_heads; head++)
		memmove(run->spans + (size_t)head * run->span_count,
			run->spans + (size_t)head * run->span_capacity, run->span_count * sizeof *run->spans);
	return KV_OK;
}

/* Rows [start, end) of one head, in token order. */
static enum kv_status gather_piece(const struct gw_pipeline *pipeline, const struct gw_unit *unit,
	const uint8_t *memory, uint32_t head, uint32_t start, uint32_t end, uint8_t *to)
{
	const uint32_t *positions = gw_unit_positions(unit, memory, head);
	uint32_t copied = 0;

	for (uint32_t row = 0; row < unit->shape.tokens; row++) {
		uint32_t position = positions[row];

		if (position < start || position >= end) continue;
		memcpy(to + (size_t)(position - start) * pipeline->row_bytes,
			gw_unit_row(unit, memory, head, row), pipeline->row_bytes);
		copied++;
	}
	if (copied != end - start)
		return kv_fail(KV_CORRUPT, "stored segment holds %u of %u positions from %u on", copied,
			end - start, start);
	return KV_OK;
}

/* Put a piece's rows into the layer buffer. */
static enum kv_status copy_piece(struct gw_prompt_run *run, uint32_t layer,
	const struct kvc_piece *piece)
{
	struct gw_pipeline *pipeline = run->sequence->pipeline;
	uint32_t start = piece->segment->start, end = start + piece->tokens;
	const uint8_t *memory;
	struct gw_unit unit;

	KV_TRY(gw_unit_describe(pipeline, piece->segment, layer, &unit));
	KV_TRY(gw_unit_read(pipeline, piece->segment, layer, &unit, run->buffer, &memory));
	for (uint32_t head = 0; head < run->shape->kv_heads; head++) {
		uint8_t *own = run->own + head * run->own_stride +
			(size_t)(start - run->own_start) * pipeline->row_bytes;
		uint8_t *to = run->piece_rows != NULL ? run->piece_rows : own;

		KV_TRY(gather_piece(pipeline, &unit, memory, head, start, end, to));
		if (to == own) continue;
		KV_TRY(kn_device_upload(&pipeline->device, own, to, piece->tokens * pipeline->row_bytes));
		KV_TRY(kn_device_wait(&pipeline->device));
	}
	return KV_OK;
}

enum kv_status gw_prompt_context(struct gw_prompt_run *run, uint32_t layer)
{
	struct gw_sequence *sequence = run->sequence;
	const struct kvc_piece *piece;
	uint32_t pieces = 0;

	KV_TRY(attach_shared(run, layer));
	if (sequence->stored == NULL) return KV_OK;
	piece = kvc_sequence_pieces(sequence->stored, &pieces);
	for (uint32_t i = 0; i < pieces; i++)
		KV_TRY(copy_piece(run, layer, &piece[i]));
	return KV_OK;
}

enum kv_status gw_prompt_append(struct gw_prompt_run *run, uint32_t at, uint32_t count)
{
	struct gw_pipeline *pipeline = run->sequence->pipeline;
	const struct gw_model_shape *shape = run->shape;
	struct kn_store_kv_arguments a = {0};
	uint32_t skip = at < run->hit ? run->hit - at : 0;

	if (skip >= count) return KV_OK;
	a.k_stride = a.v_stride = gw_model_qkv_width(run->model);
	a.k = run->qkv + skip * a.k_stride + (size_t)shape->heads * shape->head_dim;
	a.v = a.k + (size_t)shape->kv_heads * shape->head_dim;
	a.rows = run->own + (size_t)(at + skip - run->own_start) * pipeline->row_bytes;
	a.token_stride = pipeline->row_bytes;
	a.head_stride = run->own_stride;
	a.kv_type = pipeline->options.kv_type;
	a.count = count - skip;
	a.kv_heads = shape->kv_heads;
	a.head_dim = shape->head_dim;
	return pipeline->options.ops->store_kv(pipeline->options.backend, pipeline->options.stream, &a);
}

enum kv_status gw_prompt_attend(struct gw_prompt_run *run, uint32_t at, uint32_t count)
{
	struct gw_pipeline *pipeline = run->sequence->pipeline;
	const struct gw_model_shape *shape = run->shape;
	struct kn_attend_dense_arguments a = {0};

	a.q = run->qkv;
	a.q_stride = gw_model_qkv_width(run->model);
	a.out = run->attention;
	a.out_stride = (size_t)shape->heads * shape->head_dim;
	a.context = run->spans;
	a.context_spans = run->span_count;
	a.own = run->own_rows;
	a.own_before = run->own_before + (at - run->first);
	a.count = count;
	a.heads = shape->heads;
	a.kv_heads = shape->kv_heads;
	a.head_dim = shape->head_dim;
	a.kv_type = pipeline->options.kv_type;
	a.scale = shape->attention_scale;
	return pipeline->options.ops->attend_dense(pipeline->options.backend, pipeline->options.stream,
		&a);
}

void gw_prompt_progress(struct gw_prompt_run *run, uint32_t layer, uint32_t done)
{
	uint64_t tokens = run->sequence->prompt_tokens - run->first;

	if (run->progress != NULL)
		run->progress(run->progress_context, layer * tokens + (done - run->first),
			tokens * run->shape->layers);
}

enum kv_status gw_prompt_keep(struct gw_prompt_run *run, uint32_t layer)
{
	return gw_token_rows_append(&run->sequence->layers[layer].recent, run->own, run->own_stride,
		run->own_tokens);
}

/* One prompt at a time goes on beside its last layer's indexing. */
static void take_spare(struct gw_prompt_run *run)
{
	struct gw_pipeline *pipeline = run->sequence->pipeline;

	if (run->other_own != NULL || pipeline->spare_user != NULL || run->new_count == 0) return;
	if (run->own_stride * run->shape->kv_heads > pipeline->spare_bytes) return;
	pipeline->spare_user = run->sequence;
	run->other_own = pipeline->spare_rows;
}

enum kv_status gw_prompt_offload(struct gw_prompt_run *run, uint32_t layer)
{
	const struct gw_offload_work work = {.sequence = run->sequence,
		.segments = run->reserved,
		.source = {run->own, run->own_stride, run->own_start, run->own_tokens},
		.layer = layer,
		.count = run->new_count,
		.list_base = run->shared_count,
		.place = 1};
	uint8_t *own = run->own;

	KV_TRY(gw_offload_begin(&work));
	take_spare(run);
	if (run->other_own == NULL) return gw_offload_finish(run->sequence);
	run->own = run->other_own;
	run->other_own = own;
	return KV_OK;
}

enum kv_status gw_prompt_commit(struct gw_prompt_run *run)
{
	struct gw_sequence *sequence = run->sequence;
	struct kv_allocator *allocator = sequence->pipeline->options.allocator;
	const struct kvc_segment *const *list;
	uint64_t *ids;
	uint32_t listed = 0;
	enum kv_status status = KV_OK;

	sequence->kv_count = sequence->prompt_tokens;
	if (sequence->stored == NULL) return KV_OK;
	KV_TRY(kn_device_wait(&sequence->pipeline->device));
	/* What was read in place is right only if the lease held until now. */
	KV_TRY(kvc_sequence_check(sequence->stored));
	sequence->window_start = sequence->cuts[sequence->cut_count - 1].kind == KVW_PLAIN &&
			sequence->cut_count > 1
		? sequence->cuts[sequence->cut_count - 2].end
		: sequence->cuts[sequence->cut_count - 1].kind == KVW_PLAIN ? 0 : sequence->prompt_tokens;
	if (run->new_count == 0) return KV_OK;
	ids = kv_alloc_array(allocator, run->new_count, sizeof *ids);
	if (ids == NULL) return KV_NO_MEMORY;
	for (uint32_t i = 0; i < run->new_count; i++)
		ids[i] = run->reserved[i]->id;
	/* A resumed sequence that goes on from its prompt still has what came behind it. */
	list = kvc_sequence_segments(sequence->stored, &listed);
	status = kvc_commit(sequence->stored, run->reserved, run->new_count, NULL, 0,
		listed > run->shared_count ? list + run->shared_count : NULL, listed - run->shared_count);
	if (status == KV_OK) {
		run->reserved[0] = NULL;
		status = gw_offload_adopt(sequence, ids, run->new_count, run->shared_count);
	}
	kv_free(allocator, ids);
	return status;
}

double gw_token_nll(const float *logits, uint32_t vocabulary, int32_t token)
{
	double sum = 0.0, most = (double)logits[0];

	for (uint32_t i = 1; i < vocabulary; i++)
		if ((double)logits[i] > most) most = (double)logits[i];
	for (uint32_t i = 0; i < vocabulary; i++)
		sum += exp((double)logits[i] - most);
	return most + log(sum) - (double)logits[token];
}

/* Logits of every row, a few at a time: only for measuring. */
static enum kv_status mean_nll_of(struct gw_prompt_run *run, double *mean_nll)
{
	struct gw_sequence *sequence = run->sequence;
	const struct gw_pipeline_options *o = &sequence->pipeline->options;
	uint32_t rows = o->chunk < NLL_ROWS ? o->chunk : (uint32_t)NLL_ROWS;
	uint32_t last = sequence->prompt_tokens - 1;
	double sum = 0.0;
	void *memory;

	if (run->first != 0 || last == 0)
		return kv_fail(KV_INVALID, "mean NLL needs a whole prompt of at least two tokens");
	KV_TRY(kn_device_alloc(&sequence->pipeline->device, KN_SHARED,
		(size_t)rows * run->shape->vocabulary * sizeof(float), &memory));
	run->logits = memory;
	for (uint32_t at = 0; at < last; at += rows) {
		uint32_t count = last - at < rows ? last - at : rows;

		KV_TRY(gw_model_logits(run->model, gw_prompt_residual(run, at), count, run->logits));
		KV_TRY(kn_device_wait(&sequence->pipeline->device));
		for (uint32_t i = 0; i < count; i++)
			sum += gw_token_nll(run->logits + (size_t)i * run->shape->vocabulary,
				run->shape->vocabulary, sequence->tokens[at + i + 1]);
	}
	*mean_nll = sum / last;
	return KV_OK;
}

enum kv_status gw_prompt_logits(struct gw_prompt_run *run, float *logits, double *mean_nll)
{
	struct gw_pipeline *pipeline = run->sequence->pipeline;
	float *last = gw_prompt_residual(run, run->sequence->prompt_tokens - 1);
	float *out = pipeline->logits != NULL ? pipeline->logits : logits;

	if (mean_nll != NULL) KV_TRY(mean_nll_of(run, mean_nll));
	KV_TRY(gw_model_logits(run->model, last, 1, out));
	if (out != logits)
		KV_TRY(kn_device_download(&pipeline->device, logits, out,
			run->shape->vocabulary * sizeof *logits));
	return kn_device_wait(&pipeline->device);
}
