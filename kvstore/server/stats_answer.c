#include "kvstore/server/stats_answer.h"

#include <string.h>

#include "common/base/log.h"
#include "kvstore/server/http_request.h"
#include "kvstore/server/server_internal.h"
#include "kvstore/server/stats_command.h"

enum { MAX_BODY = 4 << 20 };

/* ---- text ---- */

static void put_state(struct kvs_server *server, struct kv_text_buffer *text)
{
	struct kvs_statistics statistics;

	kvs_engine_statistics(server->engine, &statistics);
	kv_text_printf(text, "%s generation=%016llx workers=%u sequences=%u transport=%s\r\n",
	    server->draining ? "draining" : "ready",
	    (unsigned long long)kvs_engine_generation(server->engine),
	    statistics.peers - statistics.peers_lapsed, statistics.sequences_active,
	    server->transport->name);
}

/* One that drains serves, but should get no new work. */
static void put_ready(struct kvs_server *server, struct kv_text_buffer *text)
{
	kv_text_put(text, server->draining ? "ERROR " : "OK ");
	put_state(server, text);
}

static void put_health(struct kvs_server *server, struct kv_text_buffer *text)
{
	kv_text_put(text, "OK ");
	put_state(server, text);
}

static void put_help(struct kv_text_buffer *text)
{
	kv_text_put(text, "stats          all numbers, one STAT line each, then END\r\n"
	                  "stats store    those of the store alone\r\n"
	                  "stats workers  those of the workers alone\r\n"
	                  "stats json     all as one JSON object on one line\r\n"
	                  "metrics        all for Prometheus, then # EOF\r\n"
	                  "info           what the store is, then END\r\n"
	                  "health         OK and what the store is, while it serves\r\n"
	                  "ready          OK while it takes in new work, else ERROR\r\n"
	                  "version        VERSION and the release\r\n"
	                  "help           this list, then END\r\n"
	                  "quit           close the connection\r\n");
	kv_text_put(text, "reset          the store's counters begin at 0 again\r\n"
	                  "evict          drop every segment that nobody uses\r\n"
	                  "evict SIZE     drop about so many bytes of them, evict tenant NAME one's\r\n"
	                  "drain          take in no new worker and no new sequence\r\n"
	                  "drain off      take them in again\r\n"
	                  "reset, evict and drain are for root and the store's own user;\r\n"
	                  "GET /metrics, /healthz, /readyz, /stats.json and / speak HTTP\r\n"
	                  "END\r\n");
}

/* ---- what changes the store ---- */

static bool is_tenant(const struct kvs_server *server, const char *name)
{
	struct kvs_tenant_info info;

	for (uint32_t i = 0; kvs_tenant_info(server->engine, i, &info) == KV_OK; i++)
		if (strcmp(info.name, name) == 0) return true;
	return false;
}

static void put_evicted(struct kvs_server *server, const char *line, struct kv_text_buffer *text)
{
	struct kvs_evict_target target = {0};
	struct kvs_evict_request request = {0};
	uint64_t bytes;

	kvs_stats_evict_target(line, &target);
	request.bytes = target.bytes;
	request.tenant = target.tenant[0] ? target.tenant : NULL;
	if (request.tenant && !is_tenant(server, request.tenant)) {
		kv_text_printf(text, "ERROR no tenant %s stores anything here\r\n", request.tenant);
		return;
	}
	bytes = kvs_engine_evict_some(server->engine, &request);
	kv_text_printf(text, "OK evicted %llu bytes\r\n", (unsigned long long)bytes);
}

static void set_draining(struct kvs_server *server, bool draining, struct kv_text_buffer *text)
{
	server->draining = draining;
	kv_text_put(text, "OK ");
	put_state(server, text);
}

static void change(struct kvs_server *server, const struct kvs_asker *asker, const char *line,
    enum kvs_stats_command command, struct kv_text_buffer *text)
{
	if (!asker->trusted) {
		kv_text_put(text, "ERROR reset, evict and drain are for root and the store's own user\r\n");
		return;
	}
	kv_info(KVS_MODULE, "%s asked for by pid=%d uid=%u", line, (int)asker->pid, asker->uid);
	switch (command) {
	case KVS_COMMAND_RESET:
		kvs_stats_reset(server);
		kv_text_put(text, "OK reset\r\n");
		break;
	case KVS_COMMAND_EVICT:
		put_evicted(server, line, text);
		break;
	default:
		set_draining(server, command == KVS_COMMAND_DRAIN, text);
		break;
	}
}

static void show(struct kvs_server *server, enum kvs_stats_command command, const char *line,
    struct kv_text_buffer *text)
{
	switch (command) {
	case KVS_COMMAND_STATS:
		kvs_stats_text(server, KVS_STATS_ALL, text);
		break;
	case KVS_COMMAND_STORE:
		kvs_stats_text(server, KVS_STATS_STORE, text);
		break;
	case KVS_COMMAND_WORKERS:
		kvs_stats_text(server, KVS_STATS_WORKERS, text);
		break;
	case KVS_COMMAND_JSON:
		kvs_stats_json(server, text);
		break;
	case KVS_COMMAND_METRICS:
		kvs_stats_prometheus(server, text);
		kv_text_put(text, "# EOF\n");
		break;
	case KVS_COMMAND_INFO:
		kvs_stats_info(server, text);
		break;
	case KVS_COMMAND_HEALTH:
		put_health(server, text);
		break;
	case KVS_COMMAND_READY:
		put_ready(server, text);
		break;
	case KVS_COMMAND_VERSION:
		kv_text_printf(text, "VERSION %s\r\n", KV_VERSION);
		break;
	case KVS_COMMAND_HELP:
		put_help(text);
		break;
	default:
		kvs_stats_unknown(line, text);
		break;
	}
}

bool kvs_answer_line(struct kvs_server *server, const struct kvs_asker *asker, const char *line,
    struct kv_text_buffer *text)
{
	enum kvs_stats_command command = kvs_stats_parse(line);

	kv_metrics_add(server->metrics, KVS_STATS_REQUESTS, 1);
	switch (command) {
	case KVS_COMMAND_NONE:
		return true;
	case KVS_COMMAND_QUIT:
		return false;
	case KVS_COMMAND_RESET:
	case KVS_COMMAND_EVICT:
	case KVS_COMMAND_DRAIN:
	case KVS_COMMAND_DRAIN_OFF:
		change(server, asker, line, command, text);
		return true;
	default:
		show(server, command, line, text);
		return true;
	}
}

/* ---- HTTP ---- */

static const char nothing[] = "default-src 'none'; frame-ancestors 'none'";

/* `policy`: what the answer may load and run in a browser. */
static void put_response(int status, const char *type, const char *policy,
    const struct kv_text_buffer *body, struct kv_text_buffer *text)
{
	kv_text_printf(text,
	    "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n",
	    status, kvs_http_reason(status), type, body->length);
	kv_text_printf(text,
	    "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
	    "Referrer-Policy: no-referrer\r\nContent-Security-Policy: %s\r\n%s\r\n",
	    policy, status == 405 ? "Allow: GET, HEAD\r\n" : "");
	kv_text_append(text, kv_text(body), body->length);
	/* A body that was cut short must not pass for a whole one. */
	if (kv_text_status(body) != KV_OK) text->status = kv_text_status(body);
}

static const char plain[] = "text/plain; charset=utf-8";

void kvs_answer_get(struct kvs_server *server, const char *path, struct kv_text_buffer *text)
{
	const char *type = plain, *policy = nothing;
	struct kv_text_buffer body;
	int status = 200;

	kv_metrics_add(server->metrics, KVS_STATS_REQUESTS, 1);
	kv_text_init(&body, server->allocator, MAX_BODY - 1024);
	if (strcmp(path, "/metrics") == 0) {
		type = "text/plain; version=0.0.4; charset=utf-8";
		kvs_stats_prometheus(server, &body);
	} else if (strcmp(path, "/stats.json") == 0) {
		type = "application/json";
		kvs_stats_json(server, &body);
	} else if (strcmp(path, "/healthz") == 0) {
		put_health(server, &body);
	} else if (strcmp(path, "/readyz") == 0) {
		status = server->draining ? 503 : 200;
		put_ready(server, &body);
	} else if (strcmp(path, "/") == 0) {
		type = "text/html; charset=utf-8";
		policy = kvs_stats_page_policy;
		kv_text_put(&body, kvs_stats_page);
	} else {
		status = 404;
		kv_text_put(&body, "There are /, /metrics, /healthz, /readyz and /stats.json.\r\n");
	}
	put_response(status, type, policy, &body, text);
	kv_text_deinit(&body);
}

void kvs_answer_refusal(int status, struct kv_text_buffer *text)
{
	struct kv_text_buffer body;

	kv_text_init(&body, text->allocator, 256);
	kv_text_printf(&body, "%s\r\n", kvs_http_reason(status));
	put_response(status, plain, nothing, &body, text);
	kv_text_deinit(&body);
}
