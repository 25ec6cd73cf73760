/* The loop's side of the engine: messages go in, events come out. The other side is
 * engine_thread.c, with engine_queue.c and engine_events.c. */
#include <string.h>
#include <time.h>

#include "gpu-worker/server/engine_internal.h"

enum { EVENT_CAPACITY = 2048 };

static void wake_engine(struct gw_engine *engine)
{
	pthread_mutex_lock(&engine->mutex);
	engine->pending = true;
	pthread_cond_signal(&engine->wake);
	pthread_mutex_unlock(&engine->mutex);
}

/* The ring has room for all that can be outstanding: see gw_engine_create. */
static bool send(struct gw_engine *engine, enum gw_message_kind kind, uint64_t id,
    struct gw_engine_request *request)
{
	struct gw_message message = {kind, id, request};

	if (!kv_ring_push(engine->in, &message)) return false;
	wake_engine(engine);
	return true;
}

static void deliver(struct gw_engine *engine, const struct gw_engine_event *raw)
{
	struct gw_engine_request *request = raw->request;
	struct gw_engine_event event = *raw;

	if (event.kind == GW_EVENT_STATE) {
		engine->ended = engine->ended || event.state == GW_ENGINE_ENDED;
		engine->options.on_event(engine->options.event_context, &event);
		return;
	}
	event.request = request->owner;
	if (!request->begun) {
		request->begun = true;
		engine->waiting--;
	}
	if (event.kind == GW_EVENT_FINISHED) engine->unfinished--;
	engine->options.on_event(engine->options.event_context, &event);
	if (event.kind == GW_EVENT_FINISHED) {
		json_decref(request->result.report);
		kv_free(engine->options.allocator, request);
	}
}

static void receive(void *context)
{
	struct gw_engine *engine = context;
	struct gw_engine_event event;

	while (kv_ring_pop(engine->out, &event))
		deliver(engine, &event);
}

/* Waits of the engine thread are measured by the monotonic clock. */
static enum kv_status create_condition(struct gw_engine *engine)
{
	pthread_condattr_t attributes;
	int failed;

	if (pthread_mutex_init(&engine->mutex, NULL) != 0)
		return kv_fail(KV_INTERNAL, "the engine's mutex cannot be made");
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	failed = pthread_cond_init(&engine->wake, &attributes);
	pthread_condattr_destroy(&attributes);
	if (failed == 0) return KV_OK;
	pthread_mutex_destroy(&engine->mutex);
	return kv_fail(KV_INTERNAL, "the engine's condition cannot be made");
}

enum kv_status gw_engine_create(const struct gw_engine_options *options, struct gw_engine **engine)
{
	size_t outstanding = (size_t)options->max_sequences + options->max_requests;
	struct gw_engine *made;
	enum kv_status status;

	if (options->max_sequences == 0 || options->max_sequences > KN_MAX_DECODE_ROWS)
		return kv_fail(KV_INVALID, "%u sequences at once: must be 1 to %d", options->max_sequences,
		    KN_MAX_DECODE_ROWS);
	made = kv_alloc_zero(options->allocator, sizeof *made);
	if (made == NULL) return KV_NO_MEMORY;
	made->options = *options;
	status = create_condition(made);
	if (status != KV_OK) {
		kv_free(options->allocator, made);
		return status;
	}
	/* A submit and a cancel of each, twice: some may be of requests that have just ended. */
	KV_TRY_GOTO(status,
	    kv_ring_create(
	        options->allocator, outstanding * 4 + 8, sizeof(struct gw_message), &made->in),
	    fail);
	KV_TRY_GOTO(status,
	    kv_ring_create(
	        options->allocator, EVENT_CAPACITY, sizeof(struct gw_engine_event), &made->out),
	    fail);
	KV_TRY_GOTO(status, kv_loop_waker(options->loop, receive, made, &made->waker), fail);
	if (pthread_create(&made->thread, NULL, gw_engine_main, made) != 0) {
		status = kv_fail(KV_INTERNAL, "the engine thread cannot be started");
		goto fail;
	}
	made->thread_runs = true;
	*engine = made;
	return KV_OK;
fail:
	gw_engine_destroy(made);
	return status;
}

void gw_engine_destroy(struct gw_engine *engine)
{
	const struct timespec nap = {0, 1000000};

	if (engine == NULL) return;
	if (engine->thread_runs) {
		for (;;) {
			/* Again while the ring has no room for it. */
			gw_engine_stop(engine);
			receive(engine);
			if (engine->ended) break;
			nanosleep(&nap, NULL);
		}
		pthread_join(engine->thread, NULL);
	}
	kv_waker_close(engine->waker);
	kv_ring_destroy(engine->in);
	kv_ring_destroy(engine->out);
	pthread_cond_destroy(&engine->wake);
	pthread_mutex_destroy(&engine->mutex);
	kv_free(engine->options.allocator, engine);
}

enum kv_status gw_engine_submit(
    struct gw_engine *engine, const struct gw_session_request *asked, void *owner, uint64_t *id)
{
	const struct gw_engine_options *o = &engine->options;
	struct gw_engine_request *request;

	if (engine->stop_sent) return kv_fail(KV_CANCELLED, "the worker is stopping");
	if (engine->unfinished >= gw_engine_capacity(engine))
		return kv_fail(KV_BUSY, "%u requests run and %u wait, as many as --max-requests allows",
		    o->max_sequences, o->max_requests);
	request = kv_alloc_zero(o->allocator, sizeof *request);
	if (request == NULL) return KV_NO_MEMORY;
	request->engine = engine;
	request->id = engine->last_id + 1;
	request->owner = owner;
	request->asked = *asked;
	request->others_began = asked->resume_id != NULL;
	if (!send(engine, GW_MESSAGE_SUBMIT, request->id, request)) {
		kv_free(o->allocator, request);
		return kv_fail(KV_BUSY, "the engine has not read its last messages yet");
	}
	engine->last_id++;
	engine->unfinished++;
	engine->waiting++;
	*id = engine->last_id;
	return KV_OK;
}

void gw_engine_cancel(struct gw_engine *engine, uint64_t id)
{
	send(engine, GW_MESSAGE_CANCEL, id, NULL);
}

void gw_engine_drain(struct gw_engine *engine)
{
	send(engine, GW_MESSAGE_DRAIN, 0, NULL);
}

void gw_engine_stop(struct gw_engine *engine)
{
	if (!engine->stop_sent) engine->stop_sent = send(engine, GW_MESSAGE_STOP, 0, NULL);
}

uint32_t gw_engine_capacity(const struct gw_engine *engine)
{
	return engine->options.max_sequences + engine->options.max_requests;
}

uint32_t gw_engine_unfinished(const struct gw_engine *engine)
{
	return engine->unfinished;
}

uint32_t gw_engine_waiting(const struct gw_engine *engine)
{
	return engine->waiting;
}
