/* The worker's counters, as the store's statistics show them. */
#ifndef GW_COMMANDS_REPORT_H
#define GW_COMMANDS_REPORT_H

#include "common/runtime/text_buffer.h"
#include "gpu-worker/commands/worker.h"
#include "proto/worker_counters.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Totals of all sequences of this worker; the engine thread adds to them. */
struct gw_totals {
	uint64_t prompt_tokens, prefix_hit_tokens, requests, failures;
	uint64_t decode_tokens; /* of answers */
	uint64_t decode_steps;
	double prefill_seconds, decode_seconds, index_seconds, select_seconds, fetch_seconds;
	double budget_tokens, window_tokens, lost_mass_estimated;
	uint64_t selections, estimates, active_sequences, degraded_steps;
	uint64_t device_steps, repeated_steps;
	double longest_unit_seconds;
	uint64_t put_back;
};

/* What a sequence has taken so far: all of it, or, while its prompt is open or when it is to be
 * begun again, all but the prompt's tokens, so that those are counted once. */
void gw_totals_add(struct gw_totals *totals, const struct gw_sequence *sequence);
void gw_totals_add_work(struct gw_totals *totals, const struct gw_sequence *sequence);

/* All counters, by enum kv_worker_counter. On the thread that uses the pipeline. */
void gw_totals_values(const struct gw_worker *worker, const struct gw_totals *totals,
	double values[KV_WORKER_COUNTER_COUNT]);

/* Hand them to the store client, which pushes them each second. */
void gw_worker_push(struct gw_worker *worker, const double values[KV_WORKER_COUNTER_COUNT]);

/* The same for Prometheus (text format 0.0.4), under the names that the store gives them. */
void gw_put_metrics(const double values[KV_WORKER_COUNTER_COUNT], struct kv_text_buffer *out);

/* The same for a process with one sequence. `active`: it is still running. */
void gw_worker_report(struct gw_worker *worker, const struct gw_sequence *sequence, int active);

#ifdef __cplusplus
}
#endif
#endif
