/* Workers as the statistics show them: their counters outlive the connection by ten minutes. */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "kvstore/server/server_internal.h"
#include "proto/worker_counters.h"

static const struct kv_worker_counter_row counter_rows[] = {
    KV_WORKER_COUNTERS(KV_WORKER_COUNTER_ROW)};

static const enum kv_worker_counter figure_counters[KVS_FIGURE_COUNT] = {
    [KVS_HIT_BYTES] = KV_WORKER_CACHE_HIT_BYTES,
    [KVS_MISS_BYTES] = KV_WORKER_CACHE_MISS_BYTES,
    [KVS_HIT_CLUSTERS] = KV_WORKER_CACHE_HIT_CLUSTERS,
    [KVS_MISS_CLUSTERS] = KV_WORKER_CACHE_MISS_CLUSTERS,
    [KVS_HIT_TOKENS] = KV_WORKER_CACHE_HIT_TOKENS,
    [KVS_MISS_TOKENS] = KV_WORKER_CACHE_MISS_TOKENS,
    [KVS_DECODED] = KV_WORKER_DECODE_TOKENS};

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

/* What a process counted stays in the sums when another one counts from 0 in its place. */
static void keep_sums(struct kvs_server *server, const struct kvs_worker *worker)
{
	for (int i = 0; i < KVS_FIGURE_COUNT; i++)
		server->departed.value[i] += worker->figures.value[i];
}

static void forget(struct kvs_server *server, struct kvs_worker *worker)
{
	keep_sums(server, worker);
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

/* Counters are absolute, those of one process under one name. So one that connects anew goes on
 * with its record, though its earlier connection may not have been seen to end. */
static struct kvs_worker *find_process(
    struct kvs_server *server, const char *asked, const struct kv_unix_peer *who, uint64_t process)
{
	struct kv_list *node;

	if (!process) return NULL;
	KV_LIST_EACH(node, &server->workers)
	{
		struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);

		if (worker->pid == (uint32_t)who->pid && worker->process == process &&
		    worker->uid == who->uid && strncmp(worker->asked, asked, sizeof worker->asked - 1) == 0)
			return worker;
	}
	return NULL;
}

/* A record for a process that has none: that of one that left, or a new one. */
static struct kvs_worker *take_record(struct kvs_server *server, const char *name)
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
	/* Another process counts from 0, whatever it is when its first counters come. */
	keep_sums(server, worker);
	memset(&worker->figures, 0, sizeof worker->figures);
	worker->counter_count = 0;
	snprintf(worker->asked, sizeof worker->asked, "%s", name);
	return worker;
}

struct kvs_worker *kvs_worker_arrived(
    struct kvs_server *server, struct kvs_peer *peer, const Kv__HelloRequest *hello)
{
	/* What the kernel says of a process here, nobody can forge. */
	const uint64_t process =
	    peer->secure ? hello->process_id : kvs_process_start(peer->credentials.pid);
	const char *name = peer->name;
	struct kvs_worker *worker = find_process(server, name, &peer->credentials, process);

	if (!worker) worker = take_record(server, name);
	if (!worker) return NULL;
	if (worker->peer) worker->peer->worker = NULL;
	worker->peer = peer;
	worker->pid = (uint32_t)peer->credentials.pid;
	worker->uid = peer->credentials.uid;
	worker->process = process;
	memcpy(worker->from, peer->from, sizeof worker->from);
	worker->greeted = true;
	worker->lanes[0] = '\0';
	snprintf(worker->model, sizeof worker->model, "%.*s", KVS_WORKER_NAME - 1, hello->model_name);
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

static double reported(const struct kvs_worker *worker, enum kv_worker_counter counter)
{
	double value = 0;

	return kvs_worker_counter(worker, counter_rows[counter].name, &value) && value > 0 ? value : 0;
}

static bool fell(const struct kvs_figures *now, const struct kvs_figures *before)
{
	for (int i = 0; i < KVS_FIGURE_COUNT; i++)
		if (now->value[i] < before->value[i]) return true;
	return false;
}

/* A worker's first message after its hello tells where it stands: 0 for a new process, more for one
 * that lost its store. What was counted before is no part of the last seconds. */
static void take_figures(struct kvs_server *server, struct kvs_worker *worker)
{
	uint64_t now = kv_now_ms();
	struct kvs_figures figures;

	for (int i = 0; i < KVS_FIGURE_COUNT; i++)
		figures.value[i] = reported(worker, figure_counters[i]);
	if (fell(&figures, &worker->figures)) {
		keep_sums(server, worker);
		worker->greeted = true;
	}
	if (worker->greeted) kvs_window_start(&worker->window, now, &figures);
	worker->greeted = false;
	worker->figures = figures;
}

void kvs_worker_counters(
    struct kvs_server *server, struct kvs_worker *worker, const Kv__CountersRequest *counters)
{
	uint32_t count = 0;

	copy_word(worker->lanes, sizeof worker->lanes, counters->lanes);
	/* One that has counted says nothing yet. */
	if (!counters->n_names && worker->counter_count) return;
	for (size_t i = 0; i < counters->n_names && count < KV_CODEC_MAX_COUNTERS; i++) {
		struct kvs_counter *counter = &worker->counters[count];

		if (!counters->names[i][0]) continue;
		copy_word(counter->name, sizeof counter->name, counters->names[i]);
		counter->value = counters->values[i];
		count++;
	}
	worker->counter_count = count;
	take_figures(server, worker);
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

double kvs_worker_gain(const struct kvs_worker *worker, uint32_t seconds, struct kvs_figures *gain)
{
	if (!seconds) {
		*gain = worker->figures;
		return 0;
	}
	return kvs_window_gain(&worker->window, kv_now_ms(), seconds, &worker->figures, gain);
}

void kvs_workers_gain(struct kvs_server *server, uint32_t seconds, struct kvs_figures *gain)
{
	struct kv_list *node;

	memset(gain, 0, sizeof *gain);
	if (!seconds) *gain = server->departed;
	KV_LIST_EACH(node, &server->workers)
	{
		struct kvs_figures one;

		kvs_worker_gain(KV_CONTAINER_OF(node, struct kvs_worker, node), seconds, &one);
		for (int i = 0; i < KVS_FIGURE_COUNT; i++)
			gain->value[i] += one.value[i];
	}
}

void kvs_workers_tick(struct kvs_server *server, uint64_t now)
{
	struct kv_list *node;
	struct kv_list *following;

	KV_LIST_EACH_SAFE(node, following, &server->workers)
	{
		struct kvs_worker *worker = KV_CONTAINER_OF(node, struct kvs_worker, node);

		kvs_window_tick(&worker->window, now, &worker->figures);
		if (!worker->peer && now - worker->left_ms >= KVS_WORKER_KEPT_MS) forget(server, worker);
	}
}

void kvs_workers_stop(struct kvs_server *server)
{
	struct kv_list *node;

	while ((node = kv_list_first(&server->workers)))
		forget(server, KV_CONTAINER_OF(node, struct kvs_worker, node));
}
