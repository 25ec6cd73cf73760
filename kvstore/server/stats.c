/* What the store says of itself and of its workers, as text and as JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kvstore/server/server_internal.h"

enum { RATE_SECONDS = 10 }; /* that figures per second are taken over */

const struct kv_metric kvs_metric_table[] = {KVS_METRICS(KV_METRIC_ROW)};

const struct kvs_hit_rate kvs_hit_rates[KVS_HIT_RATES] = {
    {"cache_hit_rate", "bytes", "start", KVS_HIT_BYTES, KVS_MISS_BYTES, 0},
    {"cache_hit_rate_10s", "bytes", "10s", KVS_HIT_BYTES, KVS_MISS_BYTES, 10},
    {"cache_hit_rate_60s", "bytes", "60s", KVS_HIT_BYTES, KVS_MISS_BYTES, 60},
    {"cluster_hit_rate", "clusters", "start", KVS_HIT_CLUSTERS, KVS_MISS_CLUSTERS, 0},
    {"cluster_hit_rate_10s", "clusters", "10s", KVS_HIT_CLUSTERS, KVS_MISS_CLUSTERS, 10},
    {"cluster_hit_rate_60s", "clusters", "60s", KVS_HIT_CLUSTERS, KVS_MISS_CLUSTERS, 60},
    {"token_hit_rate", "tokens", "start", KVS_HIT_TOKENS, KVS_MISS_TOKENS, 0},
    {"token_hit_rate_10s", "tokens", "10s", KVS_HIT_TOKENS, KVS_MISS_TOKENS, 10},
    {"token_hit_rate_60s", "tokens", "60s", KVS_HIT_TOKENS, KVS_MISS_TOKENS, 60},
};

static void refresh_gauges(struct kv_metrics *metrics, const struct kvs_statistics *s)
{
	kv_metrics_set(metrics, KVS_ARENA_LIMIT, (int64_t)s->limit_bytes);
	kv_metrics_set(metrics, KVS_ARENA_FREE, (int64_t)s->free_bytes);
	kv_metrics_set(metrics, KVS_ARENA_RESERVED, (int64_t)s->reserved_bytes);
	kv_metrics_set(metrics, KVS_ARENA_LEASED, (int64_t)s->leased_bytes);
	kv_metrics_set(metrics, KVS_ARENA_CACHED, (int64_t)s->cached_bytes);
	kv_metrics_set(metrics, KVS_ARENA_QUARANTINED, (int64_t)s->quarantined_bytes);
	kv_metrics_set(metrics, KVS_REGIONS_BYTES, (int64_t)s->region_bytes);
	kv_metrics_set(metrics, KVS_REGIONS, s->regions);
	kv_metrics_set(metrics, KVS_LARGEST_FREE, (int64_t)s->largest_free_bytes);
	kv_metrics_set(metrics, KVS_MODELS, s->models);
	kv_metrics_set(metrics, KVS_WORKERS, (int64_t)s->peers - s->peers_lapsed);
	kv_metrics_set(metrics, KVS_WORKERS_LAPSED, s->peers_lapsed);
	kv_metrics_set(metrics, KVS_SEQUENCES, s->sequences_active);
	kv_metrics_set(metrics, KVS_SEQUENCES_ORPHANED, s->sequences_orphaned);
	kv_metrics_set(metrics, KVS_SEGMENTS, s->segments_committed);
	kv_metrics_set(metrics, KVS_SEGMENTS_RESERVED, s->segments_reserved);
	kv_metrics_set(metrics, KVS_SEGMENTS_QUARANTINED, s->segments_quarantined);
	kv_metrics_set(metrics, KVS_CLUSTERS, (int64_t)s->clusters);
	kv_metrics_set(metrics, KVS_TOKENS, (int64_t)s->tokens);
	kv_metrics_set(metrics, KVS_REFERENCES, (int64_t)s->references);
}

static void refresh_counters(struct kv_metrics *metrics, const struct kvs_statistics *s)
{
	kv_metrics_set(metrics, KVS_SEQUENCES_OPENED, (int64_t)s->sequences_opened);
	kv_metrics_set(metrics, KVS_SEQUENCES_RESUMED, (int64_t)s->sequences_resumed);
	kv_metrics_set(
	    metrics, KVS_SEQUENCES_EXPIRED, (int64_t)(s->orphan_expiries + s->orphans_dropped));
	kv_metrics_set(metrics, KVS_PUSHES, (int64_t)s->pushes);
	kv_metrics_set(metrics, KVS_COMMITS, (int64_t)s->commits);
	kv_metrics_set(metrics, KVS_COMMITS_REPEATED, (int64_t)s->commits_repeated);
	kv_metrics_set(metrics, KVS_COMMITS_CORRUPT, (int64_t)s->commits_corrupt);
	kv_metrics_set(metrics, KVS_COMMITS_STALE, (int64_t)s->commits_stale);
	kv_metrics_set(metrics, KVS_COMMITS_REFUSED, (int64_t)s->commits_refused);
	kv_metrics_set(metrics, KVS_DUPLICATES, (int64_t)s->commits_duplicate);
	kv_metrics_set(metrics, KVS_RESERVES, (int64_t)s->reserves);
	kv_metrics_set(metrics, KVS_RESERVE_FAILURES, (int64_t)s->reserve_failures);
	kv_metrics_set(metrics, KVS_EVICTIONS, (int64_t)s->evictions);
	kv_metrics_set(metrics, KVS_EVICTED, (int64_t)s->evicted_bytes);
	kv_metrics_set(metrics, KVS_EVICTED_QUOTA, (int64_t)s->quota_evictions);
	kv_metrics_set(metrics, KVS_EVICTED_AHEAD, (int64_t)s->watermark_evicted_bytes);
	kv_metrics_set(metrics, KVS_QUOTA_REFUSALS, (int64_t)s->quota_refusals);
	kv_metrics_set(metrics, KVS_RELEASED, (int64_t)s->released_bytes);
	kv_metrics_set(metrics, KVS_ZOMBIES, (int64_t)s->zombie_reservations);
	kv_metrics_set(metrics, KVS_LEASE_EXPIRIES, (int64_t)s->lease_expiries);
	kv_metrics_set(metrics, KVS_PREFIX_LOOKUP, (int64_t)s->prefix_lookup_tokens);
	kv_metrics_set(metrics, KVS_PREFIX_SHARED, (int64_t)s->prefix_shared_tokens);
	kv_metrics_set(metrics, KVS_PREFIX_COPIED, (int64_t)s->prefix_copied_tokens);
}

/* The engine counts for ever; what it had counted at the last reset is taken off. */
static void take_off(struct kv_metrics *metrics, const int64_t *counted_from)
{
	for (size_t i = 0; i < KVS_METRIC_COUNT; i++) {
		if (counted_from[i])
			kv_metrics_set(metrics, i, kv_metrics_get(metrics, i) - counted_from[i]);
	}
}

void kvs_stats_refresh(struct kvs_server *server)
{
	struct kvs_statistics statistics;

	kvs_engine_statistics(server->engine, &statistics);
	refresh_gauges(server->metrics, &statistics);
	refresh_counters(server->metrics, &statistics);
	take_off(server->metrics, server->counted_from);
	kv_metrics_set(server->metrics, KVS_DRAINING, server->draining);
	kvs_disk_refresh(server);
	kv_metrics_set_real(
	    server->metrics, KVS_UPTIME, (double)(kv_now_ms() - server->started_ms) / 1000.0);
}

void kvs_stats_reset(struct kvs_server *server)
{
	struct kvs_statistics statistics;

	/* What is not 0 after this comes from the engine. */
	kv_metrics_reset(server->metrics);
	kvs_engine_statistics(server->engine, &statistics);
	refresh_counters(server->metrics, &statistics);
	for (size_t i = 0; i < KVS_METRIC_COUNT; i++) {
		server->counted_from[i] = 0;
		if (kvs_metric_table[i].kind == KV_METRIC_COUNTER)
			server->counted_from[i] = kv_metrics_get(server->metrics, i);
	}
}

double kvs_stats_hit_rate(
    struct kvs_server *server, const struct kvs_worker *worker, const struct kvs_hit_rate *rate)
{
	struct kvs_figures gain;
	double total;

	if (worker)
		kvs_worker_gain(worker, rate->seconds, &gain);
	else
		kvs_workers_gain(server, rate->seconds, &gain);
	total = gain.value[rate->hit] + gain.value[rate->miss];
	return total > 0 ? gain.value[rate->hit] / total : (double)NAN;
}

/* ---- one worker, however it is written ---- */

static const char *state_word(const struct kvs_worker *worker)
{
	if (!worker->peer) return "left";
	return worker->peer->state.state == KVS_LAPSED ? "lapsed" : "connected";
}

void kvs_worker_facts(
    struct kvs_server *server, const struct kvs_worker *worker, kvs_fact_sink sink, void *context)
{
	struct kvs_peer_info info = {0};

	sink(context, "state", state_word(worker), 0);
	if (worker->from[0]) {
		sink(context, "from", worker->from, 0);
	} else {
		sink(context, "pid", NULL, worker->pid);
		sink(context, "uid", NULL, worker->uid);
	}
	sink(context, "model", worker->model, 0);
	sink(context, "lanes", worker->lanes, 0);
	if (worker->peer && kvs_peer_info(server->engine, worker->peer->slot, &info) == KV_OK) {
		sink(context, "slot", NULL, worker->peer->slot);
		sink(context, "heartbeat_age_seconds", NULL, (double)info.heartbeat_age_ms / 1000.0);
		sink(context, "sequences", NULL, info.sequences);
		sink(context, "reserved_segments", NULL, info.reserved_segments);
		sink(context, "reserved_bytes", NULL, (double)info.reserved_bytes);
	} else {
		sink(context, "left_seconds", NULL, (double)(kv_now_ms() - worker->left_ms) / 1000.0);
	}
}

/* Add what a worker did in one second of the last ones. */
static void add_speeds(const struct kvs_worker *worker, struct kvs_figures *speeds)
{
	struct kvs_figures gain;
	double seconds = kvs_worker_gain(worker, RATE_SECONDS, &gain);

	/* A worker that has just come would show a second's work as that of a moment. */
	if (seconds < 1) seconds = 1;
	for (int i = 0; i < KVS_FIGURE_COUNT; i++)
		speeds->value[i] += gain.value[i] / seconds;
}

/* Of one worker, or of all with NULL: hit rates, where anything was looked for, and speeds. */
static void rate_facts(
    struct kvs_server *server, const struct kvs_worker *worker, kvs_fact_sink sink, void *context)
{
	struct kvs_figures speeds = {0};
	struct kv_list *node;

	for (int i = 0; i < KVS_HIT_RATES; i++) {
		double rate = kvs_stats_hit_rate(server, worker, &kvs_hit_rates[i]);

		if (!isnan(rate)) sink(context, kvs_hit_rates[i].name, NULL, rate);
	}
	KV_LIST_EACH(node, &server->workers)
	{
		const struct kvs_worker *one = KV_CONTAINER_OF(node, struct kvs_worker, node);

		if (!worker || one == worker) add_speeds(one, &speeds);
	}
	sink(context, "hit_bytes_per_second", NULL, speeds.value[KVS_HIT_BYTES]);
	sink(context, "fetch_bytes_per_second", NULL, speeds.value[KVS_MISS_BYTES]);
	sink(context, "decode_tokens_per_second", NULL, speeds.value[KVS_DECODED]);
}

static void all_facts(
    struct kvs_server *server, const struct kvs_worker *worker, kvs_fact_sink sink, void *context)
{
	kvs_worker_facts(server, worker, sink, context);
	for (uint32_t i = 0; i < worker->counter_count; i++)
		sink(context, worker->counters[i].name, NULL, worker->counters[i].value);
	rate_facts(server, worker, sink, context);
}

/* What the store is. */
static void store_facts(struct kvs_server *server, kvs_fact_sink sink, void *context)
{
	char generation[24];

	snprintf(generation, sizeof generation, "%016llx",
	    (unsigned long long)kvs_engine_generation(server->engine));
	sink(context, "version", KV_VERSION, 0);
	sink(context, "pid", NULL, (double)getpid());
	sink(context, "protocol_version", NULL, KV_PROTOCOL_VERSION);
	sink(context, "boot_generation", generation, 0);
	sink(context, "transport", server->transport->name, 0);
	sink(context, "socket", server->settings->socket, 0);
	if (server->remote.listener >= 0) sink(context, "listen", server->remote.where, 0);
	if (server->remote.trusts) sink(context, "trusted_network", server->remote.network.device, 0);
}

/* ---- memcached's text ---- */

struct text_sink {
	struct kv_text_buffer *text;
	const char *worker; /* NULL: the store itself */
};

static void put_line(void *context, const char *name, const char *word, double value)
{
	const struct text_sink *sink = context;

	if (sink->worker)
		kv_text_printf(sink->text, "STAT worker:%s:%s ", sink->worker, name);
	else
		kv_text_printf(sink->text, "STAT %s ", name);
	if (word)
		kv_text_put(sink->text, word[0] ? word : "-");
	else
		kv_text_put_double(sink->text, value, "NaN");
	kv_text_put(sink->text, "\r\n");
}

void kvs_stats_text(struct kvs_server *server, unsigned parts, struct kv_text_buffer *text)
{
	struct text_sink sink = {.text = text};
	struct kv_list *node;

	kvs_stats_refresh(server);
	if (parts & KVS_STATS_STORE) {
		store_facts(server, put_line, &sink);
		kv_metrics_render_stat(server->metrics, "", text);
		rate_facts(server, NULL, put_line, &sink);
		kvs_stats_tenants_text(server, text);
	}
	KV_LIST_EACH(node, &server->workers)
	{
		const struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);

		if (!(parts & KVS_STATS_WORKERS)) break;
		sink.worker = worker->name;
		all_facts(server, worker, put_line, &sink);
	}
	kv_text_put(text, "END\r\n");
}

static void put_info(void *context, const char *name, const char *word, double value)
{
	struct kv_text_buffer *text = context;

	kv_text_printf(text, "%s: ", name);
	if (word)
		kv_text_put(text, word);
	else
		kv_text_put_double(text, value, "-");
	kv_text_put(text, "\r\n");
}

void kvs_stats_info(struct kvs_server *server, struct kv_text_buffer *text)
{
	struct kvs_statistics s;
	double rate = kvs_stats_hit_rate(server, NULL, &kvs_hit_rates[0]);

	kvs_engine_statistics(server->engine, &s);
	kvs_disk_refresh(server);
	store_facts(server, put_info, text);
	put_info(text, "state", server->draining ? "draining" : "ready", 0);
	put_info(text, "uptime_seconds", NULL, (double)((kv_now_ms() - server->started_ms) / 1000));
	put_info(text, "memory_limit_bytes", NULL, (double)s.limit_bytes);
	put_info(text, "memory_used_bytes", NULL,
	    (double)(s.leased_bytes + s.cached_bytes + s.reserved_bytes + s.quarantined_bytes));
	if (server->disk) {
		put_info(text, "disk_path", server->settings->disk, 0);
		put_info(text, "disk_limit_bytes", NULL, (double)server->settings->disk_size);
		put_info(text, "disk_bytes", NULL, (double)kv_metrics_get(server->metrics, KVS_DISK_BYTES));
	}
	put_info(text, "workers", NULL, s.peers - s.peers_lapsed);
	put_info(text, "sequences", NULL, s.sequences_active);
	put_info(text, "segments", NULL, s.segments_committed);
	if (!isnan(rate)) put_info(text, "cache_hit_rate", NULL, rate);
	kv_text_put(text, "END\r\n");
}

/* ---- JSON ---- */

struct json_sink {
	struct kv_text_buffer *text;
	bool more;
};

static void put_member(void *context, const char *name, const char *word, double value)
{
	struct json_sink *sink = context;

	if (sink->more) kv_text_put(sink->text, ",");
	sink->more = true;
	kv_text_put_json(sink->text, name);
	kv_text_put(sink->text, ":");
	if (word)
		kv_text_put_json(sink->text, word);
	else
		kv_text_put_double(sink->text, value, "null");
}

void kvs_stats_json(struct kvs_server *server, struct kv_text_buffer *text)
{
	struct json_sink sink = {.text = text};
	struct kv_list *node;
	bool more = false;

	kvs_stats_refresh(server);
	kv_text_put(text, "{");
	store_facts(server, put_member, &sink);
	rate_facts(server, NULL, put_member, &sink);
	kv_text_put(text, ",\"store\":");
	kv_metrics_render_json(server->metrics, "", text);
	kv_text_put(text, ",\"workers\":{");
	KV_LIST_EACH(node, &server->workers)
	{
		const struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);

		if (more) kv_text_put(text, ",");
		more = true;
		kv_text_put_json(text, worker->name);
		kv_text_put(text, ":{");
		sink.more = false;
		all_facts(server, worker, put_member, &sink);
		kv_text_put(text, "}");
	}
	kv_text_put(text, "}}\r\n");
}
