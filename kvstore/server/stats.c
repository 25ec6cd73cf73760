/* What the store says of itself and of its workers: as text, JSON and for Prometheus. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kvstore/server/server_internal.h"

enum { MAX_FAMILIES = 4 * KV_CODEC_MAX_COUNTERS }; /* of workers' counters */

const struct kv_metric kvs_metric_table[] = {KVS_METRICS(KV_METRIC_ROW)};

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
	kv_metrics_set(metrics, KVS_ZOMBIES, (int64_t)s->zombie_reservations);
	kv_metrics_set(metrics, KVS_LEASE_EXPIRIES, (int64_t)s->lease_expiries);
	kv_metrics_set(metrics, KVS_PREFIX_LOOKUP, (int64_t)s->prefix_lookup_tokens);
	kv_metrics_set(metrics, KVS_PREFIX_SHARED, (int64_t)s->prefix_shared_tokens);
	kv_metrics_set(metrics, KVS_PREFIX_COPIED, (int64_t)s->prefix_copied_tokens);
}

void kvs_stats_refresh(struct kvs_server *server)
{
	struct kvs_statistics statistics;

	kvs_engine_statistics(server->engine, &statistics);
	refresh_gauges(server->metrics, &statistics);
	refresh_counters(server->metrics, &statistics);
	kv_metrics_set_real(
	    server->metrics, KVS_UPTIME, (double)(kv_now_ms() - server->started_ms) / 1000.0);
}

static double ratio(double hit, double total)
{
	return total > 0 ? hit / total : (double)NAN;
}

double kvs_stats_hit_rate(struct kvs_server *server)
{
	double hits = 0;
	double totals = 0;
	struct kv_list *node;

	KV_LIST_EACH(node, &server->workers)
	{
		double hit;
		double total;

		kvs_worker_hits(KV_CONTAINER_OF(node, struct kvs_worker, node), &hit, &total);
		hits += hit;
		totals += total;
	}
	return ratio(hits, totals);
}

/* ---- one worker, however it is written ---- */

/* Receives one fact at a time: a number, or a word when `word` is not NULL. */
typedef void (*fact_sink)(void *context, const char *name, const char *word, double value);

static const char *state_word(const struct kvs_worker *worker)
{
	if (!worker->peer) return "left";
	return worker->peer->state.state == KVS_LAPSED ? "lapsed" : "connected";
}

static void worker_facts(
    struct kvs_server *server, const struct kvs_worker *worker, fact_sink sink, void *context)
{
	struct kvs_peer_info info = {0};
	double hit;
	double total;

	sink(context, "state", state_word(worker), 0);
	sink(context, "pid", NULL, worker->pid);
	sink(context, "uid", NULL, worker->uid);
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
	for (uint32_t i = 0; i < worker->counter_count; i++)
		sink(context, worker->counters[i].name, NULL, worker->counters[i].value);
	kvs_worker_hits(worker, &hit, &total);
	if (total > 0) sink(context, "cache_hit_rate", NULL, hit / total);
}

/* ---- memcached's text ---- */

struct text_sink {
	struct kv_text_buffer *text;
	const char *worker;
};

static void put_line(void *context, const char *name, const char *word, double value)
{
	const struct text_sink *sink = context;

	kv_text_printf(sink->text, "STAT worker:%s:%s ", sink->worker, name);
	if (word)
		kv_text_put(sink->text, word[0] ? word : "-");
	else
		kv_text_put_double(sink->text, value, "NaN");
	kv_text_put(sink->text, "\r\n");
}

static void put_rate(struct kv_text_buffer *text, double rate)
{
	if (isnan(rate)) return;
	kv_text_put(text, "STAT cache_hit_rate ");
	kv_text_put_double(text, rate, "NaN");
	kv_text_put(text, "\r\n");
}

void kvs_stats_text(struct kvs_server *server, struct kv_text_buffer *text)
{
	struct kv_list *node;

	kvs_stats_refresh(server);
	kv_text_printf(text, "STAT version %s\r\n", KV_VERSION);
	kv_text_printf(text, "STAT pid %ld\r\n", (long)getpid());
	kv_text_printf(text, "STAT protocol_version %d\r\n", (int)KV_PROTOCOL_VERSION);
	kv_text_printf(text, "STAT boot_generation %016llx\r\n",
	    (unsigned long long)kvs_engine_generation(server->engine));
	kv_text_printf(text, "STAT transport %s\r\n", server->transport->name);
	kv_text_printf(text, "STAT socket %s\r\n", server->settings->socket);
	kv_metrics_render_stat(server->metrics, "", text);
	put_rate(text, kvs_stats_hit_rate(server));
	KV_LIST_EACH(node, &server->workers)
	{
		const struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);
		struct text_sink sink = {.text = text, .worker = worker->name};

		worker_facts(server, worker, put_line, &sink);
	}
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
	char generation[24];
	struct kv_list *node;
	bool more = false;

	kvs_stats_refresh(server);
	snprintf(generation, sizeof generation, "%016llx",
	    (unsigned long long)kvs_engine_generation(server->engine));
	kv_text_put(text, "{");
	put_member(&sink, "version", KV_VERSION, 0);
	put_member(&sink, "pid", NULL, (double)getpid());
	put_member(&sink, "protocol_version", NULL, KV_PROTOCOL_VERSION);
	put_member(&sink, "boot_generation", generation, 0);
	put_member(&sink, "transport", server->transport->name, 0);
	put_member(&sink, "socket", server->settings->socket, 0);
	put_member(&sink, "cache_hit_rate", NULL, kvs_stats_hit_rate(server));
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
		worker_facts(server, worker, put_member, &sink);
		kv_text_put(text, "}");
	}
	kv_text_put(text, "}}\r\n");
}

/* ---- Prometheus ---- */

struct prometheus_sink {
	struct kv_text_buffer *text;
	const char *worker, *family;
};

/* The samples of one family must stand together, so each family walks all workers again. */
static void put_sample(void *context, const char *name, const char *word, double value)
{
	const struct prometheus_sink *sink = context;

	if (word || strcmp(name, sink->family) != 0) return;
	kv_text_printf(sink->text, "clusterkv_worker_%s{", name);
	kv_metrics_put_label(sink->text, "worker", sink->worker);
	kv_text_put(sink->text, "} ");
	kv_text_put_double(sink->text, value, "NaN");
	kv_text_put(sink->text, "\n");
}

static bool plain_name(const char *name)
{
	return name[0] && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_") > 0 &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") ==
	           strlen(name);
}

static void put_family(struct kvs_server *server, const char *family, struct kv_text_buffer *text)
{
	size_t length = strlen(family);
	bool counter = length > 6 && strcmp(family + length - 6, "_total") == 0;
	struct kv_list *node;

	kv_text_printf(text, "# TYPE clusterkv_worker_%s %s\n", family, counter ? "counter" : "gauge");
	KV_LIST_EACH(node, &server->workers)
	{
		const struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);
		struct prometheus_sink sink = {.text = text, .worker = worker->name, .family = family};

		worker_facts(server, worker, put_sample, &sink);
	}
}

/* Was this family written for an earlier worker? */
static bool seen_before(struct kvs_server *server, const struct kvs_worker *until, const char *name)
{
	struct kv_list *node;
	double value;

	KV_LIST_EACH(node, &server->workers)
	{
		const struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);

		if (worker == until) return false;
		if (kvs_worker_counter(worker, name, &value)) return true;
	}
	return false;
}

void kvs_stats_prometheus(struct kvs_server *server, struct kv_text_buffer *text)
{
	struct kv_metrics_instance instance = {.metrics = server->metrics, .labels = ""};
	struct kv_list *node;
	uint32_t families = 0;

	kvs_stats_refresh(server);
	kv_metrics_render_prometheus(&instance, 1, "clusterkv_store_", text);
	if (server->worker_count) {
		put_family(server, "heartbeat_age_seconds", text);
		put_family(server, "sequences", text);
		put_family(server, "cache_hit_rate", text);
	}
	KV_LIST_EACH(node, &server->workers)
	{
		const struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);

		for (uint32_t i = 0; i < worker->counter_count; i++) {
			const char *name = worker->counters[i].name;

			if (!plain_name(name) || seen_before(server, worker, name)) continue;
			/* Names that workers make up must not keep the loop busy. */
			if (++families > MAX_FAMILIES) return;
			put_family(server, name, text);
		}
	}
}
