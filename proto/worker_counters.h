/* What a worker tells the store of itself, each figure declared once with its help.
 *
 * The names are those of the statistics: with unit, and with _total where the figure only rises
 * since the worker started. Prometheus sees them as clusterkv_worker_NAME. A worker may send others;
 * the store passes them on without a help of their own.
 */
#ifndef KV_PROTO_WORKER_COUNTERS_H
#define KV_PROTO_WORKER_COUNTERS_H

/* clang-format off */
#define KV_WORKER_COUNTERS(X) \
	X(CACHE_HIT_BYTES, "cache_hit_bytes_total", "Selected bytes that were found in the cluster cache.") \
	X(CACHE_MISS_BYTES, "cache_miss_bytes_total", "Selected bytes that were fetched from the store.") \
	X(CACHE_HIT_TOKENS, "cache_hit_tokens_total", "Selected tokens of one KV head that were found in the cluster cache.") \
	X(CACHE_MISS_TOKENS, "cache_miss_tokens_total", "Selected tokens of one KV head that were fetched from the store.") \
	X(CACHE_HIT_CLUSTERS, "cache_hit_clusters_total", "Selected clusters that were found in the cluster cache.") \
	X(CACHE_MISS_CLUSTERS, "cache_miss_clusters_total", "Selected clusters that were fetched from the store.") \
	X(CACHE_BYTES, "cache_bytes", "Bytes that the cluster cache holds.") \
	X(CACHE_CAPACITY, "cache_capacity_bytes", "Bytes that the cluster cache has room for.") \
	X(CACHE_EVICTIONS, "cache_evictions_total", "Clusters that made room for others in the cluster cache.") \
	X(REQUESTS, "requests_total", "Requests that have ended.") \
	X(FAILURES, "failures_total", "Requests that ended with an error.") \
	X(PUT_BACK, "put_back_total", "Running answers that waited in the queue again, as the store was full.") \
	X(ACTIVE_SEQUENCES, "active_sequences", "Sequences that are being computed.") \
	X(PROMPT_TOKENS, "prompt_tokens_total", "Tokens of all prompts.") \
	X(PREFIX_HIT_TOKENS, "prefix_hit_tokens_total", "Prompt tokens that were found in the store and not computed.") \
	X(DECODE_TOKENS, "decode_tokens_total", "Tokens of all answers.") \
	X(DECODE_STEPS, "decode_steps_total", "Decode steps; an answer's first token takes none.") \
	X(DEGRADED_STEPS, "degraded_steps_total", "Decode steps in which selected clusters were estimated, as fetches failed.") \
	X(DEVICE_STEPS, "device_steps_total", "Decode steps that the device ran through without the host.") \
	X(REPEATED_STEPS, "repeated_steps_total", "Decode steps that the device began and the host ran again.") \
	X(PREFILL_SECONDS, "prefill_seconds_total", "Time spent on prompts.") \
	X(PREFILL_UNIT_SECONDS, "prefill_unit_seconds_max", "Longest unit of a prompt so far: running answers get no token within one.") \
	X(DECODE_SECONDS, "decode_seconds_total", "Time spent on decode steps.") \
	X(CLUSTERING_SECONDS, "clustering_seconds_total", "Time spent on clustering.") \
	X(SELECTION_SECONDS, "selection_seconds_total", "Time spent on scoring and selecting clusters.") \
	X(FETCH_SECONDS, "fetch_seconds_total", "Time spent on waiting for fetches.") \
	X(ATTENDED_TOKENS, "attended_tokens", "Tokens that a KV head attended to, mean of all steps.") \
	X(LOST_MASS, "lost_mass_estimated", "Estimated share of attention that was not attended to, mean.")
/* clang-format on */

#define KV_WORKER_COUNTER_ENUM(id, name, help) KV_WORKER_##id,
enum kv_worker_counter { KV_WORKER_COUNTERS(KV_WORKER_COUNTER_ENUM) KV_WORKER_COUNTER_COUNT };

struct kv_worker_counter_row {
	const char *name, *help;
};
/* { … } of a table that is indexed by the enum. */
#define KV_WORKER_COUNTER_ROW(id, name, help) {name, help},

#endif
