#include "gpu-worker/commands/report.h"

#include <string.h>

void gw_totals_add(struct gw_totals *totals, const struct gw_sequence *sequence)
{
	gw_totals_add_work(totals, sequence);
	/* What was known when it was resumed, the worker before has counted. */
	if (gw_sequence_resumed_tokens(sequence) > 0) return;
	totals->prompt_tokens += gw_sequence_prompt_tokens(sequence);
	totals->prefix_hit_tokens += gw_sequence_prefix_hit(sequence);
}

void gw_totals_add_work(struct gw_totals *totals, const struct gw_sequence *sequence)
{
	const struct gw_report *report = gw_sequence_report(sequence);
	uint32_t prompt = gw_sequence_prompt_tokens(sequence);
	uint32_t resumed = gw_sequence_resumed_tokens(sequence), tokens = 0;

	gw_sequence_tokens(sequence, &tokens);
	totals->decode_tokens += tokens - (resumed > 0 ? resumed : prompt);
	totals->decode_steps += report->decode_steps;
	totals->degraded_steps += report->degraded_steps;
	totals->device_steps += report->device_steps;
	totals->repeated_steps += report->repeated_steps;
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

static const struct kv_worker_counter_row rows[] = {KV_WORKER_COUNTERS(KV_WORKER_COUNTER_ROW)};

void gw_totals_values(const struct gw_worker *worker, const struct gw_totals *t,
	double values[KV_WORKER_COUNTER_COUNT])
{
	struct gw_cache_stats cache = gw_pipeline_cache_stats(worker->pipeline);
	const double all[KV_WORKER_COUNTER_COUNT] = {
		[KV_WORKER_CACHE_HIT_BYTES] = (double)cache.hit_bytes,
		[KV_WORKER_CACHE_MISS_BYTES] = (double)cache.miss_bytes,
		[KV_WORKER_CACHE_HIT_TOKENS] = (double)cache.hit_tokens,
		[KV_WORKER_CACHE_MISS_TOKENS] = (double)cache.miss_tokens,
		[KV_WORKER_CACHE_HIT_CLUSTERS] = (double)cache.hit_clusters,
		[KV_WORKER_CACHE_MISS_CLUSTERS] = (double)cache.miss_clusters,
		[KV_WORKER_CACHE_BYTES] = (double)cache.used_bytes,
		[KV_WORKER_CACHE_CAPACITY] = (double)cache.capacity_bytes,
		[KV_WORKER_CACHE_EVICTIONS] = (double)cache.evictions,
		[KV_WORKER_REQUESTS] = (double)t->requests,
		[KV_WORKER_FAILURES] = (double)t->failures,
		[KV_WORKER_ACTIVE_SEQUENCES] = (double)t->active_sequences,
		[KV_WORKER_PROMPT_TOKENS] = (double)t->prompt_tokens,
		[KV_WORKER_PREFIX_HIT_TOKENS] = (double)t->prefix_hit_tokens,
		[KV_WORKER_DECODE_TOKENS] = (double)t->decode_tokens,
		[KV_WORKER_DECODE_STEPS] = (double)t->decode_steps,
		[KV_WORKER_DEGRADED_STEPS] = (double)t->degraded_steps,
		[KV_WORKER_DEVICE_STEPS] = (double)t->device_steps,
		[KV_WORKER_REPEATED_STEPS] = (double)t->repeated_steps,
		[KV_WORKER_PREFILL_SECONDS] = t->prefill_seconds,
		[KV_WORKER_PUT_BACK] = (double)t->put_back,
		[KV_WORKER_PREFILL_UNIT_SECONDS] = t->longest_unit_seconds,
		[KV_WORKER_DECODE_SECONDS] = t->decode_seconds,
		[KV_WORKER_CLUSTERING_SECONDS] = t->index_seconds,
		[KV_WORKER_SELECTION_SECONDS] = t->select_seconds,
		[KV_WORKER_FETCH_SECONDS] = t->fetch_seconds,
		[KV_WORKER_ATTENDED_TOKENS] = mean(t->budget_tokens + t->window_tokens, t->selections),
		[KV_WORKER_LOST_MASS] = mean(t->lost_mass_estimated, t->estimates),
	};

	memcpy(values, all, sizeof all);
}

void gw_worker_push(struct gw_worker *worker, const double values[KV_WORKER_COUNTER_COUNT])
{
	struct kvc_counter counters[KV_WORKER_COUNTER_COUNT];

	if (worker->store == NULL) return;
	for (int i = 0; i < KV_WORKER_COUNTER_COUNT; i++)
		counters[i] = (struct kvc_counter){rows[i].name, values[i]};
	kvc_report(worker->store, counters, KV_WORKER_COUNTER_COUNT);
}

static int only_rises(const char *name)
{
	static const char suffix[] = "_total";
	size_t length = strlen(name), end = sizeof suffix - 1;

	return length > end && strcmp(name + length - end, suffix) == 0;
}

void gw_put_metrics(const double values[KV_WORKER_COUNTER_COUNT], struct kv_text_buffer *out)
{
	for (int i = 0; i < KV_WORKER_COUNTER_COUNT; i++) {
		const char *name = rows[i].name;

		kv_text_printf(out, "# HELP clusterkv_worker_%s %s\n# TYPE clusterkv_worker_%s %s\n"
			"clusterkv_worker_%s ", name, rows[i].help, name,
			only_rises(name) ? "counter" : "gauge", name);
		kv_text_put_double(out, values[i], "NaN");
		kv_text_put(out, "\n");
	}
}

void gw_worker_report(struct gw_worker *worker, const struct gw_sequence *sequence, int active)
{
	struct gw_totals totals = {0};
	double values[KV_WORKER_COUNTER_COUNT];

	gw_totals_add(&totals, sequence);
	totals.requests = active ? 0 : 1;
	totals.active_sequences = active ? 1 : 0;
	gw_totals_values(worker, &totals, values);
	gw_worker_push(worker, values);
}
