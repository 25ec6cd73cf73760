/* gpu-worker serve: the loop with its signals and its clock; engine and HTTP server do the work. */
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/runtime/event_loop.h"
#include "common/runtime/sd_notify.h"
#include "gpu-worker/commands/commands.h"
#include "gpu-worker/commands/report.h"
#include "gpu-worker/commands/worker.h"
#include "gpu-worker/server/http_server.h"
#include "gpu-worker/server/stats_socket.h"

/* Signals within SAME_WISH_MS of the first say the same: managers send them to a process and to its
 * group, `timeout` does both. */
enum { TICK_MS = 20, GRACE_MS = 3000, SAME_WISH_MS = 300 };

struct serving {
	const struct gw_settings *settings;
	struct kv_allocator *allocator;
	struct gw_worker worker;
	struct gw_totals totals; /* engine thread */
	pthread_mutex_t values_mutex;
	double values[KV_WORKER_COUNTER_COUNT]; /* as the engine thread counted them last */
	struct gw_api_keys *keys;
	struct kv_loop *loop;
	struct gw_engine *engine;
	struct gw_http_server *server;
	struct gw_traces *traces; /* with --worker-socket */
	struct gw_stats_socket *stats;
	struct kv_sd_notify *notify;
	struct kv_timer *drain; /* looks whether the last answer is out */
	struct kv_timer *watchdog;
	bool ready, stopping, ended;
	uint64_t asked_ms; /* when the end was asked for */
	uint64_t stop_ms;  /* when running requests are ended */
	uint64_t end_ms;   /* when the process ends whatever runs */
	int listen_fd;
	enum kv_status status;
};

/* Hooks of the engine thread. */

static enum kv_status connect_worker(void *context, struct gw_pipeline **pipeline)
{
	struct serving *serving = context;

	KV_TRY(gw_worker_connect(&serving->worker, 0));
	*pipeline = serving->worker.pipeline;
	return KV_OK;
}

static void disconnect_worker(void *context)
{
	struct serving *serving = context;

	gw_worker_disconnect(&serving->worker);
}

static int is_connected(void *context)
{
	struct serving *serving = context;

	return serving->worker.store == NULL || kvc_connected(serving->worker.store);
}

static int is_drained(void *context)
{
	struct serving *serving = context;

	return serving->worker.store != NULL && kvc_draining(serving->worker.store);
}

static void count_finished(void *context, const struct gw_sequence *sequence, int failed)
{
	struct serving *serving = context;

	gw_totals_add(&serving->totals, sequence);
	serving->totals.requests++;
	serving->totals.failures += failed ? 1 : 0;
}

static void count_put_back(void *context, const struct gw_sequence *sequence)
{
	struct serving *serving = context;

	gw_totals_add(&serving->totals, sequence);
	serving->totals.put_back++;
}

static void count_postponed(void *context, const struct gw_sequence *sequence)
{
	struct serving *serving = context;

	gw_totals_add_work(&serving->totals, sequence);
}

static void push_totals(void *context, struct gw_sequence *const *running, uint32_t count,
    uint32_t open, uint64_t longest_ns)
{
	struct serving *serving = context;
	struct gw_totals totals = serving->totals;
	double values[KV_WORKER_COUNTER_COUNT];

	for (uint32_t i = 0; i < count; i++)
		gw_totals_add(&totals, running[i]);
	for (uint32_t i = 0; i < open; i++)
		gw_totals_add_work(&totals, running[count + i]);
	totals.active_sequences = count + open;
	totals.longest_unit_seconds = (double)longest_ns / 1e9;
	gw_totals_values(&serving->worker, &totals, values);
	gw_worker_push(&serving->worker, values);
	pthread_mutex_lock(&serving->values_mutex);
	memcpy(serving->values, values, sizeof values);
	pthread_mutex_unlock(&serving->values_mutex);
}

/* The loop's side. */

static void put_metrics(void *context, struct kv_text_buffer *out)
{
	struct serving *serving = context;
	double values[KV_WORKER_COUNTER_COUNT];

	pthread_mutex_lock(&serving->values_mutex);
	memcpy(values, serving->values, sizeof values);
	pthread_mutex_unlock(&serving->values_mutex);
	gw_put_metrics(values, out);
}

static void tell_ready(struct serving *serving)
{
	if (serving->ready) return;
	serving->ready = true;
	kv_sd_ready(serving->notify);
}

static void on_state(struct serving *serving, const struct gw_engine_event *event)
{
	switch (event->state) {
	case GW_ENGINE_STARTING:
		break;
	case GW_ENGINE_WAITING:
		kv_warning("serve", "waiting for the store: %s", event->text);
		kv_sd_status(serving->notify, "waiting for the store: %s", event->text);
		/* The API is there, and says so to who asks: a start that waited would time out. */
		tell_ready(serving);
		break;
	case GW_ENGINE_READY:
		kv_info("serve", "ready");
		kv_sd_status(serving->notify, "serving %s on %s", serving->worker.model_name,
		    gw_http_server_address(serving->server));
		tell_ready(serving);
		break;
	case GW_ENGINE_DRAINED:
		kv_warning("serve", "the store is being drained: what is begun goes on, and resumes");
		kv_sd_status(serving->notify, "the store is being drained");
		tell_ready(serving);
		break;
	case GW_ENGINE_FAILED:
		serving->status = kv_fail(KV_REFUSED, "the store cannot be used: %s", event->text);
		kv_loop_stop(serving->loop);
		break;
	case GW_ENGINE_ENDED:
		serving->ended = true;
		break;
	}
}

static void on_event(void *context, const struct gw_engine_event *event)
{
	struct serving *serving = context;

	if (serving->server == NULL) return;
	gw_http_server_event(serving->server, event);
	if (event->kind == GW_EVENT_STATE) on_state(serving, event);
}

static void end_at_once(int code)
{
	/* Sequences stay in the store, orphaned: others may resume them. */
	_exit(code);
}

static void on_drain_tick(void *context)
{
	struct serving *serving = context;
	uint64_t now = kv_loop_now_ms(serving->loop);
	bool idle = gw_http_server_busy(serving->server) == 0;

	if (idle || now >= serving->stop_ms) gw_engine_stop(serving->engine);
	/* The last answers are written before the loop ends, unless nobody reads them. */
	if (serving->ended && (idle || now >= serving->end_ms)) kv_loop_stop(serving->loop);
	if (serving->ended || now < serving->end_ms) return;
	kv_error("serve", "the engine did not end in time");
	end_at_once(1);
}

static void on_signal(void *context, int signal_number)
{
	struct serving *serving = context;
	uint64_t now = kv_loop_now_ms(serving->loop);

	if (signal_number == SIGHUP) {
		kv_info("serve", "ignored SIGHUP: options are read at the start");
		return;
	}
	if (serving->stopping) {
		if (now < serving->asked_ms + SAME_WISH_MS) return;
		kv_warning("serve", "second signal: ending at once");
		end_at_once(1);
	}
	serving->stopping = true;
	serving->asked_ms = now;
	serving->stop_ms = now + serving->settings->drain_ms;
	serving->end_ms = serving->stop_ms + GRACE_MS;
	kv_info("serve", "stopping: %u requests are left", gw_http_server_busy(serving->server));
	kv_sd_stopping(serving->notify);
	kv_sd_extend_timeout(serving->notify, serving->settings->drain_ms + 2 * GRACE_MS);
	kv_sd_status(
	    serving->notify, "stopping: %u requests are left", gw_http_server_busy(serving->server));
	gw_engine_drain(serving->engine);
	gw_http_server_drain(serving->server);
	if (kv_timer_start(serving->drain, 0, TICK_MS) != KV_OK) end_at_once(1);
}

static void on_watchdog(void *context)
{
	struct serving *serving = context;

	kv_sd_watchdog(serving->notify);
}

static void take_listener(void *context, const char *name, int fd)
{
	struct serving *serving = context;

	(void)name;
	if (serving->listen_fd < 0)
		serving->listen_fd = fd;
	else
		close(fd);
}

static enum kv_status open_engine(struct serving *serving)
{
	struct gw_engine_options options = {0};

	options.allocator = serving->allocator;
	options.loop = serving->loop;
	options.tokenizer = serving->worker.tokenizer;
	options.max_sequences = serving->settings->max_sequences;
	options.max_requests = serving->settings->max_requests;
	options.sequence_bytes = serving->settings->sequence_memory;
	options.latency_ms = serving->settings->latency_ms;
	options.hooks.context = serving;
	options.hooks.connect = connect_worker;
	options.hooks.disconnect = disconnect_worker;
	options.hooks.connected = is_connected;
	options.hooks.drained = is_drained;
	options.hooks.finished = count_finished;
	options.hooks.put_back = count_put_back;
	options.hooks.postponed = count_postponed;
	options.hooks.report = push_totals;
	options.on_event = on_event;
	options.event_context = serving;
	return gw_engine_create(&options, &serving->engine);
}

/* When the file was changed last; 0 when that is not known. */
static int64_t changed_at(const char *path)
{
	struct stat file;

	return stat(path, &file) == 0 ? (int64_t)file.st_mtime : 0;
}

static enum kv_status open_server(struct serving *serving)
{
	const struct gw_model_shape *shape = gw_model_shape(serving->worker.model);
	struct gw_http_options options = {0};

	options.allocator = serving->allocator;
	options.loop = serving->loop;
	options.engine = serving->engine;
	options.model.name = serving->worker.model_name;
	options.model.created = changed_at(serving->settings->model);
	options.model.tokenizer = serving->worker.tokenizer;
	options.model.chat_format = serving->worker.chat_format;
	options.model.vocabulary = shape->vocabulary;
	options.model.context = serving->worker.context;
	options.store = serving->settings->store;
	options.listen = serving->settings->listen;
	options.listen_fd = serving->listen_fd;
	options.max_body = serving->settings->max_body;
	options.idle_ms = serving->settings->idle_ms;
	options.max_connections = serving->settings->max_connections;
	options.address_connections = serving->settings->address_connections;
	options.client_ms = serving->settings->client_ms;
	options.client_rate = serving->settings->client_rate;
	options.stream_backlog = serving->settings->stream_backlog;
	options.put_metrics = put_metrics;
	options.metrics_context = serving;
	if (serving->settings->api_key_file != NULL && *serving->settings->api_key_file != '\0')
		KV_TRY(gw_api_keys_load(
		    serving->allocator, serving->settings->api_key_file, &serving->keys));
	options.keys = serving->keys;
	options.traces = serving->traces;
	return gw_http_server_create(&options, &serving->server);
}

/* What nobody can ask for is not kept. */
static enum kv_status open_stats(struct serving *serving)
{
	const char *path = serving->settings->worker_socket;

	if (path == NULL || *path == '\0') return KV_OK;
	KV_TRY(gw_traces_create(serving->allocator, gw_model_shape(serving->worker.model)->layers,
	    &serving->traces));
	return gw_stats_socket_create(
	    serving->allocator, serving->loop, path, serving->traces, &serving->stats);
}

static enum kv_status open_all(struct serving *serving)
{
	uint64_t watchdog_ms;

	kv_log_never_wait();
	KV_TRY(kv_sd_open(serving->allocator, &serving->notify));
	kv_sd_take_fds(take_listener, serving);
	kv_sd_status(serving->notify, "loading %s", serving->settings->model);
	KV_TRY(gw_worker_prepare(serving->settings, serving->allocator, NULL, &serving->worker));
	KV_TRY(kv_loop_create(serving->allocator, &serving->loop));
	KV_TRY(kv_loop_signals(serving->loop, on_signal, serving));
	KV_TRY(kv_loop_timer(serving->loop, 0, 0, on_drain_tick, serving, &serving->drain));
	kv_timer_stop(serving->drain);
	watchdog_ms = kv_sd_watchdog_ms(serving->notify);
	if (watchdog_ms > 0)
		KV_TRY(kv_loop_timer(
		    serving->loop, 0, watchdog_ms / 2 + 1, on_watchdog, serving, &serving->watchdog));
	KV_TRY(open_stats(serving));
	KV_TRY(open_engine(serving));
	KV_TRY(open_server(serving));
	kv_info("serve", "listening on http://%s", gw_http_server_address(serving->server));
	return KV_OK;
}

/* Large buffers, as of bodies, go back to the system when they are freed. Otherwise malloc would
 * come to keep those that are as large as what was freed before. */
static void return_large_buffers(void)
{
#ifdef __GLIBC__
	(void)mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
}

enum kv_status gw_command_serve(const struct gw_settings *s, struct kv_allocator *allocator)
{
	struct serving serving = {.settings = s,
	    .allocator = allocator,
	    .listen_fd = -1,
	    .values_mutex = PTHREAD_MUTEX_INITIALIZER};
	enum kv_status status;

	return_large_buffers();
	status = open_all(&serving);
	if (status == KV_OK) status = kv_loop_run(serving.loop);
	if (status == KV_OK) status = serving.status;
	gw_engine_destroy(serving.engine);
	gw_http_server_destroy(serving.server);
	gw_stats_socket_destroy(serving.stats);
	gw_traces_destroy(serving.traces);
	gw_api_keys_destroy(serving.keys);
	kv_loop_destroy(serving.loop);
	if (serving.worker.settings != NULL) gw_worker_close(&serving.worker);
	if (status == KV_OK) kv_info("serve", "stopped");
	kv_sd_close(serving.notify);
	return status;
}
