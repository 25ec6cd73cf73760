/* The statistics for Prometheus, in its text format 0.0.4. */
#include <string.h>

#include "common/base/clock.h"
#include "kvstore/server/server_internal.h"
#include "proto/worker_counters.h"

enum { MAX_FAMILIES = 4 * KV_CODEC_MAX_COUNTERS }; /* of workers' counters */

static const struct kv_worker_counter_row known[] = {KV_WORKER_COUNTERS(KV_WORKER_COUNTER_ROW)};

static const struct kv_worker_counter_row facts[] = {
    {"heartbeat_age_seconds", "Time since the worker's last sign of life."},
    {"sequences", "Sequences that the worker holds in the store."},
    {"reserved_bytes", "Memory that the worker has reserved and not committed."},
    {"left_seconds", "Time since the worker left."},
};

struct sample_sink {
	struct kv_text_buffer *text;
	const char *worker, *family;
};

static void begin_sample(struct kv_text_buffer *text, const char *family, const char *worker)
{
	kv_text_printf(text, "clusterkv_worker_%s{", family);
	kv_metrics_put_label(text, "worker", worker);
}

static void put_sample(const struct sample_sink *sink, double value)
{
	begin_sample(sink->text, sink->family, sink->worker);
	kv_text_put(sink->text, "} ");
	kv_text_put_double(sink->text, value, "NaN");
	kv_text_put(sink->text, "\n");
}

static void put_fact(void *context, const char *name, const char *word, double value)
{
	const struct sample_sink *sink = context;

	if (!word && strcmp(name, sink->family) == 0) put_sample(sink, value);
}

static bool plain_name(const char *name)
{
	return name[0] && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_") > 0 &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") ==
	           strlen(name);
}

static void put_head(const char *family, const char *help, struct kv_text_buffer *text)
{
	size_t length = strlen(family);
	bool counter = length > 6 && strcmp(family + length - 6, "_total") == 0;

	kv_text_printf(text, "# HELP clusterkv_worker_%s %s\n", family, help);
	kv_text_printf(text, "# TYPE clusterkv_worker_%s %s\n", family, counter ? "counter" : "gauge");
}

/* The samples of one family must stand together, so each family walks all workers again. */
static void put_counter(
    struct kvs_server *server, const char *family, const char *help, struct kv_text_buffer *text)
{
	struct kv_list *node;

	put_head(family, help, text);
	KV_LIST_EACH(node, &server->workers)
	{
		const struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);
		struct sample_sink sink = {.text = text, .worker = worker->name, .family = family};
		double value;

		if (kvs_worker_counter(worker, family, &value)) put_sample(&sink, value);
	}
}

static void put_facts(struct kvs_server *server, struct kv_text_buffer *text)
{
	struct kv_list *node;

	for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
		put_head(facts[i].name, facts[i].help, text);
		KV_LIST_EACH(node, &server->workers)
		{
			const struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);
			struct sample_sink sink = {
			    .text = text, .worker = worker->name, .family = facts[i].name};

			kvs_worker_facts(server, worker, put_fact, &sink);
		}
	}
}

static void put_transport(struct kvs_server *server, struct kv_text_buffer *text)
{
	struct kv_list *node;

	put_head("transport_info", "How the worker reaches the arena, and its model; always 1.", text);
	KV_LIST_EACH(node, &server->workers)
	{
		const struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);

		begin_sample(text, "transport_info", worker->name);
		kv_text_put(text, ",");
		kv_metrics_put_label(text, "lanes", worker->lanes);
		kv_text_put(text, ",");
		kv_metrics_put_label(text, "model", worker->model);
		kv_text_put(text, "} 1\n");
	}
}

static void put_rate(const struct kvs_hit_rate *rate, double value, struct kv_text_buffer *text)
{
	kv_text_printf(text, "of=\"%s\",window=\"%s\"} ", rate->of, rate->window);
	kv_text_put_double(text, value, "NaN");
	kv_text_put(text, "\n");
}

static void put_rates(struct kvs_server *server, struct kv_text_buffer *text)
{
	struct kv_list *node;

	kv_text_put(text, "# HELP clusterkv_store_cache_hit_rate Share of what was selected that all "
	                  "workers found in their cluster caches.\n"
	                  "# TYPE clusterkv_store_cache_hit_rate gauge\n");
	for (int i = 0; i < KVS_HIT_RATES; i++) {
		kv_text_put(text, "clusterkv_store_cache_hit_rate{");
		put_rate(&kvs_hit_rates[i], kvs_stats_hit_rate(server, NULL, &kvs_hit_rates[i]), text);
	}
	if (!server->worker_count) return;
	put_head("cache_hit_rate",
	    "Share of what was selected that was found in the worker's cluster cache.", text);
	KV_LIST_EACH(node, &server->workers)
	{
		const struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);

		for (int i = 0; i < KVS_HIT_RATES; i++) {
			begin_sample(text, "cache_hit_rate", worker->name);
			kv_text_put(text, ",");
			put_rate(
			    &kvs_hit_rates[i], kvs_stats_hit_rate(server, worker, &kvs_hit_rates[i]), text);
		}
	}
}

static void put_build(struct kvs_server *server, struct kv_text_buffer *text)
{
	kv_text_put(text, "# HELP clusterkv_store_build_info The store's release; always 1.\n"
	                  "# TYPE clusterkv_store_build_info gauge\n"
	                  "clusterkv_store_build_info{version=\"" KV_VERSION "\",");
	kv_text_printf(text, "protocol=\"%d\",", (int)KV_PROTOCOL_VERSION);
	kv_metrics_put_label(text, "transport", server->transport->name);
	kv_text_put(text, "} 1\n");
	kv_text_put(text, "# HELP clusterkv_store_boot_info This start of the store; always 1.\n"
	                  "# TYPE clusterkv_store_boot_info gauge\n");
	kv_text_printf(text, "clusterkv_store_boot_info{generation=\"%016llx\"} 1\n",
	    (unsigned long long)kvs_engine_generation(server->engine));
}

/* In the table, a fact above, or written for an earlier worker. */
static bool seen_before(struct kvs_server *server, const struct kvs_worker *until, const char *name)
{
	struct kv_list *node;
	double value;

	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
		if (strcmp(known[i].name, name) == 0) return true;
	for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
		if (strcmp(facts[i].name, name) == 0) return true;
	if (strcmp(name, "transport_info") == 0 || strcmp(name, "cache_hit_rate") == 0) return true;
	KV_LIST_EACH(node, &server->workers)
	{
		const struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);

		if (worker == until) return false;
		if (kvs_worker_counter(worker, name, &value)) return true;
	}
	return false;
}

/* Names that only the workers know. */
static void put_others(struct kvs_server *server, struct kv_text_buffer *text)
{
	struct kv_list *node;
	uint32_t families = 0;

	KV_LIST_EACH(node, &server->workers)
	{
		const struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);

		for (uint32_t i = 0; i < worker->counter_count; i++) {
			const char *name = worker->counters[i].name;

			if (!plain_name(name) || seen_before(server, worker, name)) continue;
			/* Names that workers make up must not keep the loop busy. */
			if (++families > MAX_FAMILIES) return;
			put_counter(server, name, "As the worker reports it.", text);
		}
	}
}

void kvs_stats_prometheus(struct kvs_server *server, struct kv_text_buffer *text)
{
	struct kv_metrics_instance instance = {.metrics = server->metrics, .labels = ""};

	kvs_stats_refresh(server);
	put_build(server, text);
	kv_metrics_render_prometheus(&instance, 1, "clusterkv_store_", text);
	put_rates(server, text);
	kvs_stats_tenants_prometheus(server, text);
	if (!server->worker_count) return;
	put_facts(server, text);
	put_transport(server, text);
	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
		put_counter(server, known[i].name, known[i].help, text);
	put_others(server, text);
}
