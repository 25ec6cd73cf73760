/* The window is full: its oldest tokens become a segment of their own, clustered and offloaded,
 * in one message with the tokens that stay. */
#include <string.h>

#include "common/base/clock.h"
#include "gpu-worker/pipeline/step.h"

int gw_fold_due(const struct gw_sequence *sequence)
{
	const struct gw_policy_options *policy = &sequence->pipeline->options.policy;

	return sequence->kv_count - sequence->window_start >= policy->window + policy->fold;
}

struct fold {
	struct gw_sequence *sequence;
	struct kvc_new_segment wanted[2];       /* the segment, then what stays (if anything) */
	const struct kvc_segment *reserved[2];
	uint64_t ids[2];
	const struct kvc_segment *replaced;     /* the tail or the last fold's window, or NULL */
	uint32_t count, list_base;
	int committed;
};

static enum kv_status plan(struct fold *fold, struct gw_sequence *sequence)
{
	const struct gw_policy_options *policy = &sequence->pipeline->options.policy;
	const struct kvc_segment *last = NULL;

	fold->sequence = sequence;
	fold->wanted[0].start = sequence->window_start;
	fold->wanted[0].tokens = policy->fold;
	fold->wanted[0].kind = KVW_CLUSTERED;
	fold->wanted[0].provenance = KVW_APPROXIMATE;
	fold->wanted[1].start = sequence->window_start + policy->fold;
	fold->wanted[1].tokens = sequence->kv_count - fold->wanted[1].start;
	fold->wanted[1].kind = KVW_PLAIN;
	fold->wanted[1].provenance = KVW_APPROXIMATE;
	fold->count = fold->wanted[1].tokens > 0 ? 2 : 1;
	if (sequence->segment_count > 0) last = sequence->segments[sequence->segment_count - 1];
	if (last != NULL && last->kind == KVW_PLAIN) fold->replaced = last;
	fold->list_base = sequence->segment_count - (fold->replaced != NULL ? 1 : 0);
	KV_TRY(kvc_reserve(sequence->stored, fold->wanted, fold->count, fold->reserved));
	for (uint32_t i = 0; i < fold->count; i++)
		fold->ids[i] = fold->reserved[i]->id;
	return KV_OK;
}

/* In a dense layer the rows lie behind all others, in a clustered one they are the window. */
static enum kv_status write_layers(const struct fold *fold)
{
	struct gw_sequence *sequence = fold->sequence;
	const struct gw_pipeline *pipeline = sequence->pipeline;

	for (uint32_t layer = 0; layer < pipeline->shape->layers; layer++) {
		struct gw_layer_state *state = &sequence->layers[layer];
		uint32_t first = state->ops->clustered ? 0 : sequence->window_start;
		struct gw_offload_work work = {.sequence = sequence,
			.segments = fold->reserved,
			.layer = layer,
			.count = fold->count,
			.list_base = fold->list_base};

		work.source.rows = gw_token_rows_at(&state->recent, 0, first);
		work.source.head_stride = state->recent.capacity * pipeline->row_bytes;
		work.source.start = sequence->window_start;
		work.source.count = sequence->kv_count - sequence->window_start;
		if (state->ops->clustered) gw_cluster_index_truncate(state->index, fold->list_base);
		KV_TRY(gw_offload_fold(&work));
	}
	return KV_OK;
}

static enum kv_status commit(struct fold *fold)
{
	struct gw_sequence *sequence = fold->sequence;
	const struct gw_policy_options *policy = &sequence->pipeline->options.policy;

	/* The store knows the tokens before it sees segments of them. */
	KV_TRY(kvc_flush(sequence->stored));
	KV_TRY(kvc_commit(sequence->stored, fold->reserved, fold->count,
		sequence->tokens + sequence->window_start, sequence->kv_count - sequence->window_start,
		&fold->replaced, fold->replaced != NULL ? 1 : 0));
	fold->committed = 1;
	KV_TRY(gw_offload_adopt(sequence, fold->ids, fold->count, fold->list_base));
	for (uint32_t layer = 0; layer < sequence->pipeline->shape->layers; layer++) {
		struct gw_layer_state *state = &sequence->layers[layer];

		if (state->ops->clustered) KV_TRY(gw_token_rows_drop(&state->recent, policy->fold));
	}
	sequence->window_start += policy->fold;
	return KV_OK;
}

enum kv_status gw_fold(struct gw_sequence *sequence)
{
	struct fold fold = {0};
	enum kv_status status;
	uint64_t start;

	status = plan(&fold, sequence);
	sequence->refused = status == KV_LIMIT;
	if (status != KV_OK) return status;
	status = write_layers(&fold);
	start = kv_now_ns();
	if (status == KV_OK) status = commit(&fold);
	sequence->report.offload_seconds += kv_seconds_since(start);
	/* Nothing that is queued may write to units that the store has back. */
	if (status != KV_OK) gw_pipeline_settle(sequence->pipeline);
	/* Clusters were replaced on the way: a sequence that failed to fold cannot go on. */
	if (status != KV_OK && !fold.committed)
		kvc_release(sequence->stored, fold.reserved, fold.count);
	return status;
}
