/* A prompt, layer by layer over all of its tokens:
 *
 *     attach known prefix → per layer: project → attend (dense) → finish → index, offload → commit
 *
 * Only one layer's key/values and the residual stream are in worker memory. What the store already
 * holds is attended to where it lies, in stored order: keys carry their position. */
#include "gpu-worker/pipeline/run_prompt.h"

#include "common/base/clock.h"

/* Behind the last layer only the row that the logits come from is wanted; all when measuring. */
static int goes_on(const struct gw_prompt_run *run, uint32_t layer, uint32_t end)
{
	return layer + 1 < run->shape->layers || run->every_row || end == run->sequence->prompt_tokens;
}

/* One layer: bring in what is stored, compute what is not, hand the new segments to the store. */
static enum kv_status run_layer(struct gw_prompt_run *run, uint32_t layer)
{
	struct gw_sequence *sequence = run->sequence;

	KV_TRY(gw_prompt_context(run, layer));
	for (uint32_t at = run->first, count; at < sequence->prompt_tokens; at += count) {
		float *x = gw_prompt_residual(run, at);

		count = gw_prompt_chunk_end(run, at) - at;
		KV_TRY(gw_model_project(run->model, layer, x, gw_prompt_positions(run, at), count,
			run->qkv));
		KV_TRY(gw_prompt_append(run, at, count));
		if (goes_on(run, layer, at + count)) {
			KV_TRY(gw_prompt_attend(run, at, count));
			KV_TRY(gw_model_finish(run->model, layer, run->attention, count, x));
		}
		gw_prompt_progress(run, layer, at + count);
		if (sequence->cancelled) return kv_fail(KV_CANCELLED, "the prompt was given up");
		/* What the store has taken back cannot be committed: rather fail now than at the end. */
		if (sequence->stored != NULL) KV_TRY(kvc_sequence_check(sequence->stored));
	}
	if (sequence->stored == NULL) return gw_prompt_keep(run, layer);
	KV_TRY(gw_attach_layer(sequence, layer, run->buffer));
	return gw_offload_layer(sequence, layer, &run->source, run->reserved, run->new_count,
		run->shared_count, 1);
}

static enum kv_status run_prompt(struct gw_prompt_run *run, float *logits, double *mean_nll)
{
	KV_TRY(gw_prompt_embed(run));
	for (uint32_t layer = 0; layer < run->shape->layers; layer++)
		KV_TRY(run_layer(run, layer));
	KV_TRY(gw_prompt_commit(run));
	return gw_prompt_logits(run, logits, mean_nll);
}

enum kv_status gw_run_prompt(struct gw_sequence *sequence, float *logits, double *mean_nll,
	gw_progress *progress, void *progress_context)
{
	uint64_t start = kv_now_ns();
	struct gw_prompt_run run = {0};
	enum kv_status status;

	run.every_row = mean_nll != NULL;
	run.progress = progress;
	run.progress_context = progress_context;
	status = gw_prompt_begin(&run, sequence);
	if (status == KV_OK) status = run_prompt(&run, logits, mean_nll);
	gw_prompt_end(&run, status);
	sequence->report.prefill_seconds += kv_seconds_since(start);
	if (status != KV_OK) gw_sequence_fail(sequence, status);
	return status;
}
