#include "gpu-worker/commands/report.h"

void gw_totals_add(struct gw_totals *totals, const struct gw_sequence *sequence, int failed)
{
	const struct gw_report *report = gw_sequence_report(sequence);
	uint32_t prompt = gw_sequence_prompt_tokens(sequence);
	uint32_t resumed = gw_sequence_resumed_tokens(sequence), tokens = 0;

	totals->requests++;
	totals->failures += failed ? 1 : 0;
	gw_sequence_tokens(sequence, &tokens);
	/* What was known when it was resumed, the worker before has counted. */
	if (resumed == 0) {
		totals->prompt_tokens += prompt;
		totals->prefix_hit_tokens += gw_sequence_prefix_hit(sequence);
	}
	totals->decode_tokens += tokens - (resumed > 0 ? resumed : prompt);
	totals->decode_steps += report->decode_steps;
	totals->degraded_steps += report->degraded_steps;
	totals->prefill_seconds += report->prefill_seconds;
	totals->decode_seconds += report->decode_seconds;
	totals->index_seconds += report->index_seconds;
	totals->select_seconds += report->select_seconds;
	totals->fetch_seconds += report->fetch_seconds;
	totals->budget_tokens += report->budget_tokens;
	totals->window_tokens += report->window_tokens;
	totals->selections += report->selections;
	totals->lost_mass_estimated += report->lost_mass_estimated;
	totals->estimates += report->estimates;
}

static double mean(double sum, uint64_t count)
{
	return count > 0 ? sum / (double)count : 0.0;
}

void gw_worker_push(struct gw_worker *worker, const struct gw_totals *t)
{
	struct gw_cache_stats cache = gw_pipeline_cache_stats(worker->pipeline);
	const struct kvc_counter counters[] = {
		{"cache_hit_bytes_total", (double)cache.hit_bytes},
		{"cache_miss_bytes_total", (double)cache.miss_bytes},
		{"cache_hit_tokens_total", (double)cache.hit_tokens},
		{"cache_miss_tokens_total", (double)cache.miss_tokens},
		{"cache_hit_clusters_total", (double)cache.hit_clusters},
		{"cache_miss_clusters_total", (double)cache.miss_clusters},
		{"cache_bytes", (double)cache.used_bytes},
		{"cache_capacity_bytes", (double)cache.capacity_bytes},
		{"cache_evictions_total", (double)cache.evictions},
		{"requests_total", (double)t->requests},
		{"failures_total", (double)t->failures},
		{"active_sequences", (double)t->active_sequences},
		{"prompt_tokens_total", (double)t->prompt_tokens},
		{"prefix_hit_tokens_total", (double)t->prefix_hit_tokens},
		{"decode_tokens_total", (double)t->decode_tokens},
		{"decode_steps_total", (double)t->decode_steps},
		{"degraded_steps_total", (double)t->degraded_steps},
		{"prefill_seconds_total", t->prefill_seconds},
		{"decode_seconds_total", t->decode_seconds},
		{"clustering_seconds_total", t->index_seconds},
		{"selection_seconds_total", t->select_seconds},
		{"fetch_seconds_total", t->fetch_seconds},
		{"attended_tokens", mean(t->budget_tokens + t->window_tokens, t->selections)},
		{"lost_mass_estimated", mean(t->lost_mass_estimated, t->estimates)},
	};

	if (worker->store != NULL)
		kvc_report(worker->store, counters, sizeof counters / sizeof counters[0]);
}

void gw_worker_report(struct gw_worker *worker, const struct gw_sequence *sequence, int active)
{
	struct gw_totals totals = {0};

	gw_totals_add(&totals, sequence, 0);
	totals.active_sequences = active ? 1 : 0;
	gw_worker_push(worker, &totals);
}
