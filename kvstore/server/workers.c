/* Workers as the statistics show them: their counters outlive the connection by ten minutes. */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "kvstore/server/server_internal.h"

static struct kvs_worker *find_worker(struct kvs_server *server, const char *name)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &server->workers)
	{
		struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);

		if (strcmp(worker->name, name) == 0) return worker;
	}
	return NULL;
}

static void forget(struct kvs_server *server, struct kvs_worker *worker)
{
	kv_list_remove(&worker->node);
	server->worker_count--;
	kv_free(server->allocator, worker);
}

/* At the limit the one that left first makes room. */
static void make_room(struct kvs_server *server)
{
	struct kvs_worker *oldest = NULL;
	struct kv_list *node;

	if (server->worker_count < KVS_MAX_WORKERS_KEPT) return;
	KV_LIST_EACH(node, &server->workers)
	{
		struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);

		if (!worker->peer && (!oldest || worker->left_ms < oldest->left_ms)) oldest = worker;
	}
	if (oldest) forget(server, oldest);
}

struct kvs_worker *kvs_worker_arrived(
    struct kvs_server *server, struct kvs_peer *peer, const char *name, const char *model)
{
	char unique[KVS_WORKER_NAME + 12];
	struct kvs_worker *worker = NULL;

	snprintf(unique, sizeof unique, "%s", name);
	for (unsigned number = 2; number < 1000; number++) {
		worker = find_worker(server, unique);
		if (!worker || !worker->peer) break;
		snprintf(unique, sizeof unique, "%.*s-%u", KVS_WORKER_NAME - 8, name, number);
	}
	if (worker && worker->peer) return NULL;
	if (!worker) {
		make_room(server);
		worker = kv_alloc_zero(server->allocator, sizeof *worker);
		if (!worker) return NULL;
		snprintf(worker->name, sizeof worker->name, "%.*s", KVS_WORKER_NAME - 1, unique);
		kv_list_push_back(&server->workers, &worker->node);
		server->worker_count++;
	}
	worker->peer = peer;
	worker->pid = (uint32_t)peer->credentials.pid;
	worker->uid = peer->credentials.uid;
	worker->counter_count = 0;
	worker->lanes[0] = '\0';
	snprintf(worker->model, sizeof worker->model, "%.*s", KVS_WORKER_NAME - 1, model);
	return worker;
}

void kvs_worker_left(struct kvs_worker *worker, uint64_t now)
{
	worker->peer = NULL;
	worker->left_ms = now;
}

/* A name must stay one word of a line and one key of an object. */
static void copy_word(char *to, size_t size, const char *from)
{
	size_t length = 0;

	for (; from[length] && length + 1 < size; length++) {
		unsigned char c = (unsigned char)from[length];

		to[length] = c > 0x20 && c < 0x7f ? (char)c : '_';
	}
	to[length] = '\0';
}

void kvs_worker_counters(struct kvs_worker *worker, const Kv__CountersRequest *counters)
{
	uint32_t count = 0;

	for (size_t i = 0; i < counters->n_names && count < KV_CODEC_MAX_COUNTERS; i++) {
		struct kvs_counter *counter = &worker->counters[count];

		if (!counters->names[i][0]) continue;
		copy_word(counter->name, sizeof counter->name, counters->names[i]);
		counter->value = counters->values[i];
		count++;
	}
	worker->counter_count = count;
	copy_word(worker->lanes, sizeof worker->lanes, counters->lanes);
}

bool kvs_worker_counter(const struct kvs_worker *worker, const char *name, double *value)
{
	for (uint32_t i = 0; i < worker->counter_count; i++) {
		if (strcmp(worker->counters[i].name, name) != 0) continue;
		*value = worker->counters[i].value;
		return true;
	}
	return false;
}

void kvs_worker_hits(const struct kvs_worker *worker, double *hit, double *total)
{
	double found = 0;
	double missed = 0;

	if (!kvs_worker_counter(worker, "cache_hit_bytes_total", &found))
		kvs_worker_counter(worker, "cache_hit_bytes", &found);
	if (!kvs_worker_counter(worker, "cache_miss_bytes_total", &missed))
		kvs_worker_counter(worker, "cache_miss_bytes", &missed);
	*hit = found;
	*total = found + missed;
}

void kvs_workers_tick(struct kvs_server *server, uint64_t now)
{
	struct kv_list *node;
	struct kv_list *following;

	KV_LIST_EACH_SAFE(node, following, &server->workers)
	{
		struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);

		if (!worker->peer && now - worker->left_ms >= KVS_WORKER_KEPT_MS) forget(server, worker);
	}
}

void kvs_workers_stop(struct kvs_server *server)
{
	struct kv_list *node;

	while ((node = kv_list_first(&server->workers)))
		forget(server, KV_CONTAINER_OF(node, struct kvs_worker, node));
}
