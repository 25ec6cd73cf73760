/* A prompt, layer by layer over all of its tokens:
 *
 *     attach known prefix → per layer: project → attend (dense) → finish → index, offload → commit
 *
 * Only one layer's key/values and the residual stream are in worker memory; two layers', where one
 * is indexed beside the next (offload.c). What the store already holds is attended to where it
 * lies, in stored order: keys carry their position. Between two units of this, a chunk of a layer
 * or its end, others may decode. */
#include "gpu-worker/pipeline/run_prompt.h"

#include "common/base/clock.h"

/* Behind the last layer only the row that the logits come from is wanted; all when measuring. */
static int goes_on(const struct gw_prompt_run *run, uint32_t layer, uint32_t end)
{
	return layer + 1 < run->shape->layers || run->mean_nll != NULL ||
		end == run->sequence->prompt_tokens;
}

static enum kv_status bring_context(struct gw_prompt_run *run, uint32_t layer)
{
	uint64_t start = kv_now_ns();
	enum kv_status status = gw_prompt_context(run, layer);

	run->sequence->report.attach_seconds += kv_seconds_since(start);
	return status;
}

/* The next chunk of a layer: compute what is not stored. */
static enum kv_status run_chunk(struct gw_prompt_run *run)
{
	struct gw_sequence *sequence = run->sequence;
	uint32_t layer = run->layer, at = run->at, count = gw_prompt_chunk_end(run, at) - at;
	float *x = gw_prompt_residual(run, at);

	if (at == run->first) KV_TRY(bring_context(run, layer));
	KV_TRY(gw_model_project(run->model, layer, x, gw_prompt_positions(run, at), count, run->qkv));
	KV_TRY(gw_prompt_append(run, at, count));
	if (goes_on(run, layer, at + count)) {
		KV_TRY(gw_prompt_attend(run, at, count));
		KV_TRY(gw_model_finish(run->model, layer, run->attention, count, x));
	}
	run->at += count;
	gw_prompt_progress(run, layer, run->at);
	if (sequence->cancelled) return kv_fail(KV_CANCELLED, "the prompt was given up");
	/* What the store has taken back cannot be committed: rather fail now than at the end. */
	return sequence->stored != NULL ? kvc_sequence_check(sequence->stored) : KV_OK;
}

/* Bring in what is stored, hand the new segments to the store. */
static enum kv_status end_layer(struct gw_prompt_run *run)
{
	struct gw_sequence *sequence = run->sequence;
	uint32_t layer = run->layer++;
	uint64_t start;

	run->at = run->first;
	sequence->report.prefill_layers++;
	if (sequence->stored == NULL) return gw_prompt_keep(run, layer);
	/* The layer before. */
	KV_TRY(gw_offload_finish(sequence));
	start = kv_now_ns();
	/* The sequence's own memory, which nothing that computes now touches. */
	KV_TRY(gw_attach_layer(sequence, &sequence->pipeline->background, layer, run->buffer));
	sequence->report.attach_seconds += kv_seconds_since(start);
	return gw_prompt_offload(run, layer);
}

static enum kv_status commit(struct gw_prompt_run *run)
{
	enum kv_status status;
	uint64_t start;

	if (run->sequence->stored != NULL) KV_TRY(gw_offload_finish(run->sequence));
	start = kv_now_ns();
	status = gw_prompt_commit(run);
	run->sequence->report.offload_seconds += kv_seconds_since(start);
	return status;
}

static enum kv_status step(struct gw_prompt_run *run, float *logits, int *done)
{
	if (!run->embedded) {
		KV_TRY(gw_prompt_embed(run));
		run->embedded = 1;
	}
	if (run->layer == run->shape->layers) {
		KV_TRY(commit(run));
		KV_TRY(gw_prompt_logits(run, logits, run->mean_nll));
		*done = 1;
		return KV_OK;
	}
	return run->at < run->sequence->prompt_tokens ? run_chunk(run) : end_layer(run);
}

enum kv_status gw_prompt_open(struct gw_sequence *sequence, double *mean_nll,
	gw_progress *progress, void *progress_context, struct gw_prompt_run **prompt)
{
	struct gw_prompt_run *run =
		kv_alloc_zero(sequence->pipeline->options.allocator, sizeof *run);
	uint64_t start = kv_now_ns();
	enum kv_status status;

	if (run == NULL) {
		gw_sequence_fail(sequence, KV_NO_MEMORY);
		return KV_NO_MEMORY;
	}
	run->mean_nll = mean_nll;
	run->progress = progress;
	run->progress_context = progress_context;
	status = gw_prompt_begin(run, sequence);
	sequence->report.prefill_seconds += kv_seconds_since(start);
	run->at = run->first;
	if (status == KV_OK) {
		*prompt = run;
		return KV_OK;
	}
	gw_prompt_close(run);
	gw_sequence_fail(sequence, status);
	return status;
}

enum kv_status gw_prompt_step(struct gw_prompt_run *run, float *logits, int *done)
{
	struct gw_sequence *sequence = run->sequence;
	uint64_t start = kv_now_ns();
	enum kv_status status;

	*done = 0;
	if (run->ended) return kv_fail(KV_INVALID, "the prompt's run has ended");
	status = step(run, logits, done);
	run->ended = status != KV_OK || *done;
	run->whole = *done;
	if (status != KV_OK) gw_sequence_fail(sequence, status);
	sequence->report.prefill_seconds += kv_seconds_since(start);
	return status;
}

void gw_prompt_close(struct gw_prompt_run *run)
{
	if (run == NULL) return;
	gw_prompt_end(run);
	kv_free(run->sequence->pipeline->options.allocator, run);
}

enum kv_status gw_run_prompt(struct gw_sequence *sequence, float *logits, double *mean_nll,
	gw_progress *progress, void *progress_context)
{
	struct gw_prompt_run *run;
	enum kv_status status;
	int done = 0;

	KV_TRY(gw_prompt_open(sequence, mean_nll, progress, progress_context, &run));
	do
		status = gw_prompt_step(run, logits, &done);
	while (status == KV_OK && !done);
	gw_prompt_close(run);
	return status;
}
