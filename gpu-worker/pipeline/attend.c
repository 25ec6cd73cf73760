/* The sparse half of a decode layer: select, then lookup → fetch → attend. */
#include "common/base/clock.h"
#include "gpu-worker/pipeline/step.h"

static const struct gw_selection nothing;

/* The rows of a clustered layer; `counts` as in gw_select_row, for all of them. */
static void describe_rows(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, uint32_t layer, struct kn_select_counts *counts)
{
	uint32_t kv_heads = pipeline->shape->kv_heads;
	size_t width = gw_model_qkv_width(pipeline->options.model);

	for (uint32_t i = 0; i < count; i++) {
		const struct gw_layer_state *state = &batch[i]->layers[layer];
		uint32_t budget = pipeline->options.policy.budget, sinks = state->sinks.count;

		pipeline->rows[i].index = state->index;
		pipeline->rows[i].q = pipeline->qkv + i * width;
		pipeline->rows[i].budget = budget > sinks ? budget - sinks : 0;
		pipeline->rows[i].out = pipeline->selections + (size_t)i * kv_heads;
		pipeline->rows[i].counts = counts != NULL ? counts + (size_t)i * kv_heads : NULL;
	}
}

static struct gw_policy_context context_of(const struct gw_pipeline *pipeline)
{
	return (struct gw_policy_context){&pipeline->options.policy, pipeline->shape,
		pipeline->device, pipeline->select_scratch};
}

enum kv_status gw_select_batch(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, uint32_t layer)
{
	const struct gw_policy_context context = context_of(pipeline);
	const struct gw_layer_ops *ops = batch[0]->layers[layer].ops;

	for (uint32_t i = 0; i < count * pipeline->shape->kv_heads; i++)
		pipeline->selections[i] = nothing;
	if (ops->select == NULL) return KV_OK;
	describe_rows(pipeline, batch, count, layer, NULL);
	return gw_select_rows(ops, &context, pipeline->rows, count);
}

enum kv_status gw_select_queue(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, uint32_t layer, struct kn_select_counts *counts)
{
	const struct gw_policy_context context = context_of(pipeline);

	describe_rows(pipeline, batch, count, layer, counts);
	return batch[0]->layers[layer].ops->select(&context, pipeline->rows, count);
}

void gw_report_selection(struct gw_sequence *sequence, uint32_t layer, uint32_t selected,
	const float *exact_mass)
{
	const struct gw_pipeline *pipeline = sequence->pipeline;
	const struct gw_layer_state *state = &sequence->layers[layer];
	uint32_t group = gw_shape_group(pipeline->shape);
	size_t cluster_bytes = (size_t)4 * pipeline->shape->head_dim + 8;
	uint32_t budget = state->sinks.count + selected;
	struct gw_report *report = &sequence->report;

	report->selections++;
	report->budget_tokens += budget;
	report->window_tokens += state->recent.count;
	report->bytes_touched += (double)((budget + state->recent.count) * pipeline->row_bytes +
		state->index->clusters * cluster_bytes);
	for (uint32_t g = 0; exact_mass != NULL && g < group; g++) {
		report->estimates++;
		report->lost_mass_estimated += 1.0 - (double)exact_mass[g];
	}
}

static void report_row(struct gw_pipeline *pipeline, struct gw_sequence *sequence, uint32_t layer,
	uint32_t first_job, const struct gw_selection *selections)
{
	const struct gw_round *round = &pipeline->round;

	if (!sequence->layers[layer].ops->clustered) return;
	for (uint32_t head = 0; head < pipeline->shape->kv_heads; head++)
		gw_report_selection(sequence, layer, selections[head].tokens,
			round->jobs[first_job + head].exact_mass);
}

static enum kv_status finish_round(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t layer)
{
	struct gw_round *round = &pipeline->round;
	uint32_t kv_heads = pipeline->shape->kv_heads;
	struct kn_attend_sparse_arguments a = {0};
	uint64_t start = kv_now_ns();
	enum kv_status status;
	double seconds;

	if (round->job_count == 0) return KV_OK;
	status = gw_round_fetch(pipeline);
	/* Late is what can be estimated. Wrong bytes are an error, and a store that is gone ends its
	 * sequences anyway. */
	if (status == KV_TIMEOUT && pipeline->options.estimate_misses &&
		kvc_check(pipeline->options.store) == KV_OK) {
		if (kv_log_allows(&pipeline->degrade_log, "pipeline"))
			kv_warning("pipeline", "a step estimates what the store did not bring in time");
		status = gw_round_degrade(pipeline, batch, layer);
	}
	KV_TRY(status);
	seconds = kv_seconds_since(start);
	a.jobs = round->jobs;
	a.job_count = round->job_count;
	a.group = gw_shape_group(pipeline->shape);
	a.head_dim = pipeline->shape->head_dim;
	a.kv_type = pipeline->options.kv_type;
	a.scale = pipeline->shape->attention_scale;
	KV_TRY(pipeline->options.ops->attend_sparse(pipeline->options.backend,
		pipeline->options.stream, &a));
	KV_TRY(pipeline->options.ops->stream_wait(pipeline->options.backend, pipeline->options.stream));
	for (uint32_t i = 0; i < round->row_count; i++) {
		uint32_t row = round->rows[i];

		batch[row]->report.fetch_seconds += seconds / round->row_count;
		report_row(pipeline, batch[row], layer, i * kv_heads,
			pipeline->selections + (size_t)row * kv_heads);
	}
	return KV_OK;
}

enum kv_status gw_attend_batch(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count, uint32_t layer)
{
	uint32_t kv_heads = pipeline->shape->kv_heads;

	gw_round_begin(pipeline);
	for (uint32_t row = 0; row < count; row++) {
		const struct gw_selection *selections = pipeline->selections + (size_t)row * kv_heads;

		if (!gw_round_has_room(pipeline, selections)) {
			KV_TRY(finish_round(pipeline, batch, layer));
			gw_round_begin(pipeline);
		}
		KV_TRY(gw_round_add_row(pipeline, batch[row], layer, row, selections));
	}
	return finish_round(pipeline, batch, layer);
}
