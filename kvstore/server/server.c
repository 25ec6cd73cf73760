/* The server as a whole: what is started in which order, time, and the end. */
#include "kvstore/server/server.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "kvstore/server/server_internal.h"

/* ---- time ---- */

static void renew_all(struct kvs_server *server)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &server->peers)
	{
		const struct kvs_peer *peer = KV_CONTAINER_OF(node, struct kvs_peer, node);

		if (peer->state.state == KVS_WORKING)
			kvs_peer_heartbeat(server->engine, peer->slot, peer->epoch);
	}
}

static void on_tick(void *context)
{
	struct kvs_server *server = context;
	uint64_t now = kv_now_ms();
	uint64_t late = now - server->ticked_ms - KVS_TICK_MS;

	if (now < server->ticked_ms + KVS_TICK_MS) late = 0;
	kv_metrics_observe(server->metrics, KVS_LOOP_LAG, (double)late / 1000.0);
	/* When the store itself was stopped, or stuck in the kernel while memory was made, the
	 * heartbeats are waiting unread in the sockets: that silence is not the workers'. */
	if (late > server->settings->heartbeat_ms) renew_all(server);
	server->ticked_ms = now;
	kvs_engine_tick(server->engine);
	kvs_peers_tick(server, now);
	kvs_remote_tick(server, now);
	kvs_workers_tick(server, now);
	kvs_stats_tick(server, now);
	kvs_growth_tick(server);
	kvs_disk_tick(server, now);
}

static void say_status(struct kvs_server *server)
{
	struct kvs_statistics statistics;
	char used[KV_PARSE_TEXT_SIZE];
	char limit[KV_PARSE_TEXT_SIZE];
	double rate = kvs_stats_hit_rate(server, NULL, &kvs_hit_rates[0]);
	uint64_t mib = (UINT64_C(1) << 20) - 1;
	char disk[48] = "";

	kvs_engine_statistics(server->engine, &statistics);
	kv_format_size((statistics.leased_bytes + statistics.cached_bytes + statistics.reserved_bytes +
	                   statistics.quarantined_bytes + mib) &
	                   ~mib,
	    used);
	kv_format_size(statistics.limit_bytes, limit);
	if (kvs_disk_listed(server))
		snprintf(disk, sizeof disk, ", reading disk index %u", kvs_disk_listed(server) - 1);
	if (isnan(rate))
		kv_sd_status(server->notify, "ready, %u workers, %s/%s, %s%s", statistics.peers, used,
		    limit, server->transport->name, disk);
	else
		kv_sd_status(server->notify, "ready, %u workers, %s/%s, %s, hit %.1f %%%s",
		    statistics.peers, used, limit, server->transport->name, 100.0 * rate, disk);
}

static void on_status(void *context)
{
	struct kvs_server *server = context;

	say_status(server);
	/* The loop runs, or we were not here; the transport must have had its turns, too. */
	if (server->progressed != server->watched_progress) kv_sd_watchdog(server->notify);
	server->watched_progress = server->progressed;
}

static enum kv_status start_timers(struct kvs_server *server)
{
	uint64_t watchdog = kv_sd_watchdog_ms(server->notify);
	uint64_t period = watchdog && watchdog / 3 < KVS_STATUS_MS ? watchdog / 3 : KVS_STATUS_MS;

	server->ticked_ms = kv_now_ms();
	KV_TRY(kv_loop_timer(server->loop, KVS_TICK_MS, KVS_TICK_MS, on_tick, server, &server->tick));
	return kv_loop_timer(
	    server->loop, period ? period : 1, period ? period : 1, on_status, server, &server->status);
}

/* ---- start and end ---- */

static enum kv_status start_engine(struct kvs_server *server)
{
	const struct kvs_settings *settings = server->settings;
	struct kvs_environment environment = kvs_arena_environment(server);
	struct kvs_options options = {.memory = settings->memory,
	    .lease_ms = (uint32_t)settings->lease_ms,
	    .orphan_ms = (uint32_t)settings->orphan_ms,
	    .region_bytes = server->usual_region,
	    .max_peers = settings->max_workers,
	    .max_sequences = settings->max_sequences,
	    .separate_tenants = settings->isolation,
	    .max_tokens = KVS_MAX_TOKENS,
	    .eviction = (enum kvs_eviction)settings->eviction,
	    .tenant_quota = server->quotas.others,
	    .quotas = server->quotas.quotas,
	    .quota_count = server->quotas.quota_count,
	    .high_bytes = settings->memory / 100 * settings->high_watermark,
	    .low_bytes = settings->memory / 100 * settings->low_watermark,
	    .unused_ms = settings->evict_unused_ms,
	    .release_ms = settings->release_idle_ms};

	if (settings->isolation) {
		options.tenant_sequences = kvs_tenant_share(server, settings->max_sequences, 1);
		options.tenant_tokens = kvs_tenant_share(server, KVS_MAX_TOKENS, 1);
	}
	KV_TRY(kvs_engine_create(server->allocator, &options, &environment, &server->engine));
	kvs_control_page_fill(server);
	return KV_OK;
}

enum kv_status kvs_server_create(struct kv_allocator *allocator,
    const struct kvs_settings *settings, struct kv_loop *loop, struct kv_sd_notify *notify,
    struct kvs_server **server)
{
	struct kvs_server *created = kv_alloc_zero(allocator, sizeof *created);
	enum kv_status status;

	if (!created) return KV_NO_MEMORY;
	created->allocator = allocator;
	created->settings = settings;
	created->loop = loop;
	created->notify = notify;
	created->listener = -1;
	created->remote.listener = -1;
	created->page_descriptor = -1;
	created->started_ms = kv_now_ms();
	kv_list_init(&created->regions);
	kv_list_init(&created->spares);
	created->usual_region = kvs_settings_region(settings);
	kv_list_init(&created->peers);
	kv_list_init(&created->remote.arriving);
	kv_list_init(&created->tenants);
	kv_list_init(&created->mourned);
	kv_list_init(&created->workers);
	KV_TRY_GOTO(status,
	    kv_metrics_create(allocator, kvs_metric_table, KVS_METRIC_COUNT, &created->metrics), fail);
	KV_TRY_GOTO(status,
	    kvs_quotas_parse(
	        settings->tenants, settings->tenant_quota, settings->memory, &created->quotas),
	    fail);
	KV_TRY_GOTO(status, kvs_allow_parse(settings->allow_uid, &created->allow), fail);
	created->frames = kv_allocator_create("messages", settings->frame_memory);
	status = KV_NO_MEMORY;
	if (!created->frames) goto fail;
	/* The socket first: a second store must be refused before it touches memory. */
	KV_TRY_GOTO(status, kvs_listen(created), fail);
	KV_TRY_GOTO(status, kvs_stats_listen(created), fail);
	KV_TRY_GOTO(status, kvs_disk_start(created), fail);
	KV_TRY_GOTO(status, kvs_control_page_start(created), fail);
	KV_TRY_GOTO(status, kvs_arena_start(created), fail);
	KV_TRY_GOTO(status, start_engine(created), fail);
	kvs_warm_start(created);
	KV_TRY_GOTO(status, kvs_remote_listen(created), fail);
	KV_TRY_GOTO(status, start_timers(created), fail);
	KV_TRY_GOTO(status, kvs_growth_open(created), fail);
	created->running = true;
	say_status(created);
	*server = created;
	return KV_OK;
fail:
	kvs_server_destroy(created);
	return status;
}

/* Work on pool threads reads staging memory and the arena: it ends before they do. False when it
 * does not: a disk can hang. */
static bool wait_for_jobs(struct kvs_server *server)
{
	const uint64_t wait_ms = server->settings->end_wait_ms, deadline = kv_now_ms() + wait_ms;

	while (server->jobs && kv_now_ms() < deadline && kv_loop_run_for(server->loop, 10) == KV_OK) {
	}
	if (server->jobs)
		kv_error(KVS_MODULE, "%u reads or writes did not end within %llu ms: going without them",
		    server->jobs, (unsigned long long)wait_ms);
	return !server->jobs;
}

bool kvs_server_destroy(struct kvs_server *server)
{
	if (!server) return true;
	kvs_unlisten(server);
	kvs_remote_stop(server);
	kvs_stats_stop(server);
	kv_timer_close(server->tick);
	kv_timer_close(server->status);
	kv_timer_close(server->growth);
	server->growth = NULL;
	kvs_control_page_end(server);
	kvs_peers_close_all(server);
	kvs_disk_flush(server);
	if (!wait_for_jobs(server)) {
		/* What they read or fill is no part of what is kept: it is not committed, or stays. */
		if (server->running) kvs_warm_keep(server);
		return false;
	}
	kvs_disk_stop(server);
	kvs_mourning_stop(server);
	kvs_workers_stop(server);
	if (server->running) kvs_warm_keep(server);
	kvs_engine_destroy(server->engine);
	kvs_arena_stop(server);
	kvs_control_page_stop(server);
	kvs_tenants_stop(server);
	kv_metrics_destroy(server->metrics);
	kv_free(server->allocator, server);
	return true;
}
