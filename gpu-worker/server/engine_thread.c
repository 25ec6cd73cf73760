/* The engine thread. Each turn: messages → store there? → open a waiting request → compute more of
 * the open prompts → one token for every running one → counters. It sleeps only when there is
 * nothing to run. */
#include <stdio.h>
#include <time.h>

#include "common/base/clock.h"
#include "gpu-worker/server/engine_internal.h"

enum { REPORT_MS = 250, PROGRESS_MS = 100, FIRST_BACKOFF_MS = 100, LAST_BACKOFF_MS = 2000 };

static void cancel(struct gw_engine *engine, uint64_t id)
{
	for (struct gw_engine_request *r = engine->first; r != NULL; r = r->next)
		if (r->id == id) r->cancelled = true;
	for (uint32_t i = 0; i < engine->running_count; i++)
		if (engine->running[i]->id == id) engine->running[i]->cancelled = true;
	for (uint32_t i = 0; i < engine->open_count; i++)
		if (engine->open[i]->id == id) engine->open[i]->cancelled = true;
}

static void take_messages(struct gw_engine *engine)
{
	struct gw_message message;

	while (kv_ring_pop(engine->in, &message)) {
		switch (message.kind) {
		case GW_MESSAGE_SUBMIT:
			gw_queue_append(engine, message.request);
			break;
		case GW_MESSAGE_CANCEL:
			cancel(engine, message.id);
			break;
		case GW_MESSAGE_DRAIN:
			engine->draining = true;
			break;
		case GW_MESSAGE_STOP:
			engine->stopping = true;
			break;
		}
	}
}

static const struct gw_model_shape *shape_of(const struct gw_pipeline *pipeline)
{
	return gw_model_shape(gw_pipeline_options(pipeline)->model);
}

static uint32_t vocabulary_of(const struct gw_pipeline *pipeline)
{
	return shape_of(pipeline)->vocabulary;
}

static enum kv_status create_logits(struct gw_engine *engine)
{
	const struct gw_pipeline_options *o = gw_pipeline_options(engine->pipeline);
	size_t count = (size_t)o->max_batch * vocabulary_of(engine->pipeline);
	void *memory;

	KV_TRY(o->ops->buffer_create(o->backend, KN_SHARED, count * sizeof(float), &memory));
	engine->logits = memory;
	return KV_OK;
}

static void disconnect(struct gw_engine *engine)
{
	if (engine->pipeline != NULL && engine->logits != NULL) {
		const struct gw_pipeline_options *o = gw_pipeline_options(engine->pipeline);

		o->ops->buffer_destroy(o->backend, engine->logits);
	}
	engine->logits = NULL;
	engine->pipeline = NULL;
	engine->options.hooks.disconnect(engine->options.hooks.context);
}

static void reach_store(struct gw_engine *engine)
{
	const struct gw_engine_hooks *hooks = &engine->options.hooks;
	enum kv_status status;

	if (engine->pipeline != NULL) {
		/* Once there, the store client reconnects by itself. */
		if (!hooks->connected(hooks->context))
			gw_engine_tell_state(engine, GW_ENGINE_WAITING, "the connection to the store is lost");
		else if (hooks->drained(hooks->context))
			gw_engine_tell_state(engine, GW_ENGINE_DRAINED, "the store takes in nothing new");
		else
			gw_engine_tell_state(engine, GW_ENGINE_READY, "");
		return;
	}
	if (engine->state == GW_ENGINE_FAILED || kv_now_ms() < engine->connect_ms) return;
	status = hooks->connect(hooks->context, &engine->pipeline);
	if (status == KV_OK) status = create_logits(engine);
	if (status == KV_OK) {
		gw_engine_tell_state(engine, GW_ENGINE_READY, "");
		return;
	}
	gw_engine_tell_state(engine,
	    status == KV_DISCONNECTED || status == KV_TIMEOUT || status == KV_DRAINING
	        ? GW_ENGINE_WAITING
	        : GW_ENGINE_FAILED,
	    kv_error_message());
	if (engine->pipeline != NULL) disconnect(engine);
	engine->backoff_ms = engine->backoff_ms == 0                    ? FIRST_BACKOFF_MS
	                     : engine->backoff_ms * 2 < LAST_BACKOFF_MS ? engine->backoff_ms * 2
	                                                                : LAST_BACKOFF_MS;
	engine->connect_ms = kv_now_ms() + engine->backoff_ms;
}

static void show_prefill(void *context, uint64_t done, uint64_t total)
{
	struct gw_engine_request *request = context;
	struct gw_engine *engine = request->engine;
	struct gw_engine_event event = {.kind = GW_EVENT_PREFILL};
	uint64_t now = kv_now_ms(), layers = shape_of(engine->pipeline)->layers;

	take_messages(engine);
	if (request->cancelled || engine->stopping)
		gw_sequence_cancel(gw_session_sequence(request->session));
	request->prompt_left = (uint32_t)((total - done) / layers);
	if (done < total && now - request->progress_ms < PROGRESS_MS) return;
	request->progress_ms = now;
	/* Each token is computed layer by layer; who waits thinks in tokens. */
	event.done = done / layers;
	event.total = total / layers;
	gw_engine_tell(engine, request, &event);
}

static const char LOST[] = "store connection lost during the answer";

/* The sequence's failure in the words that its client gets. */
static enum kv_status explain(struct gw_session *session, enum kv_status status)
{
	uint32_t answered = 0;

	if (status == KV_STALE || status == KV_DISCONNECTED)
		return kv_fail_prefix(status, "%s (sequence %s)", LOST, gw_session_id(session));
	if (status == KV_TOO_LARGE) {
		gw_session_tokens(session, &answered);
		return kv_fail_prefix(status, "a prompt of %u tokens with %u of its answer",
		    gw_sequence_prompt_tokens(gw_session_sequence(session)), answered);
	}
	return status;
}

static void tell_layer(
    struct gw_engine *engine, struct gw_engine_request *request, uint64_t unit_ns)
{
	struct gw_engine_event event = {.kind = GW_EVENT_LAYER, .done = request->told_layers};

	if (gw_times_unit(request, unit_ns, &event.total)) gw_engine_tell(engine, request, &event);
}

/* A prompt's first unit begins it. */
static enum kv_status run_unit(
    struct gw_engine *engine, struct gw_engine_request *request, int *ready)
{
	gw_log_subject(request);
	if (request->cancelled || engine->stopping) return KV_CANCELLED;
	if (!request->begun_prompt) {
		KV_TRY(gw_session_begin(request->session, show_prefill, request));
		request->begun_prompt = true;
		gw_queue_begun(engine, request);
	}
	return gw_session_advance(request->session, ready);
}

/* One unit of an open prompt. Its request runs when the first token is there. */
static void advance(struct gw_engine *engine, uint32_t index)
{
	struct gw_engine_request *request = engine->open[index];
	uint64_t start = kv_now_ns();
	int ready = 0;
	enum kv_status status = run_unit(engine, request, &ready);

	engine->unit_ns = kv_now_ns() - start;
	tell_layer(engine, request, engine->unit_ns);
	if (engine->unit_ns > engine->longest_ns) engine->longest_ns = engine->unit_ns;
	engine->owed_ns = gw_prefill_account(engine->owed_ns, index, engine->unit_ns);
	if (status == KV_OK && !ready) return;
	gw_engine_remove_at(engine->open, &engine->open_count, index);
	engine->prompts_closed++;
	/* Who is the oldest now is owed nothing yet. */
	if (index == 0) engine->owed_ns = 0;
	if (status == KV_OK) {
		gw_times_update(request);
		gw_queue_ready(request);
		if (request->times.ready_ns == 0) request->times.ready_ns = kv_now_ns();
		gw_engine_tell_text(engine, request);
		engine->running[engine->running_count++] = request;
		return;
	}
	if (gw_queue_postpone(engine, request, status)) return;
	if (status == KV_CANCELLED) status = gw_engine_why_cancelled(engine);
	gw_engine_finish(engine, request, explain(request->session, status));
}

static uint32_t next_prompt(const struct gw_engine *engine)
{
	struct gw_open_prompt prompts[KN_MAX_DECODE_ROWS];

	for (uint32_t i = 0; i < engine->open_count; i++)
		if (engine->open[i]->cancelled) return i;
	gw_queue_describe_open(engine, prompts);
	return gw_prefill_next(prompts, engine->open_count, engine->owed_ns);
}

/* As many units as the running answers' next token leaves time for, and at least one. */
static void prefill(struct gw_engine *engine)
{
	uint64_t latency_ns = engine->options.latency_ms * 1000000;

	while (engine->open_count > 0) {
		advance(engine, next_prompt(engine));
		take_messages(engine);
		gw_queue_open_one(engine);
		if (kv_now_ns() + engine->unit_ns > engine->stepped_ns + latency_ns) return;
	}
}

/* One token for each of some requests. Outcomes are kept in their results for sweep. */
static void step(
    struct gw_engine *engine, struct gw_engine_request *const *requests, uint32_t count)
{
	struct gw_sequence *batch[KN_MAX_DECODE_ROWS];
	enum kv_status failures[KN_MAX_DECODE_ROWS] = {KV_OK}, whole;
	uint32_t vocabulary = vocabulary_of(engine->pipeline);
	char why[sizeof requests[0]->result.message];

	for (uint32_t i = 0; i < count; i++)
		batch[i] = gw_session_sequence(requests[i]->session);
	/* What happens to several is about none of them. */
	gw_log_subject(count == 1 ? requests[0] : NULL);
	whole = gw_run_token(engine->pipeline, batch, count, engine->logits, failures);
	snprintf(why, sizeof why, "%s", kv_error_message());
	for (uint32_t i = 0; i < count; i++) {
		struct gw_session *session = requests[i]->session;
		struct gw_engine_result *result = &requests[i]->result;

		requests[i]->stalled = whole == KV_OK && gw_sequence_refused(batch[i]);
		if (requests[i]->stalled) {
			snprintf(result->message, sizeof result->message, "%s", gw_sequence_failure(batch[i]));
			continue;
		}
		if (whole != KV_OK)
			result->status = kv_fail(whole, "%s", why);
		else if (failures[i] != KV_OK)
			result->status = kv_fail(failures[i], "%s", gw_sequence_failure(batch[i]));
		else
			result->status = gw_session_pick(session, engine->logits + (size_t)i * vocabulary);
		if (result->status == KV_OK) {
			gw_engine_tell_text(engine, requests[i]);
			continue;
		}
		explain(session, result->status);
		snprintf(result->message, sizeof result->message, "%s", kv_error_message());
	}
}

/* Hand back what has ended, was cancelled, or has failed. */
static void sweep(struct gw_engine *engine)
{
	for (uint32_t i = 0; i < engine->running_count;) {
		struct gw_engine_request *request = engine->running[i];
		enum kv_status status = request->result.status;

		if (status != KV_OK)
			kv_fail(status, "%s", request->result.message);
		else if (gw_session_finish(request->session) == GW_RUNNING &&
		         (request->cancelled || engine->stopping))
			status = gw_engine_why_cancelled(engine);
		else if (gw_session_finish(request->session) == GW_RUNNING) {
			i++;
			continue;
		}
		gw_engine_remove_at(engine->running, &engine->running_count, i);
		gw_engine_finish(engine, request, status);
	}
}

static void step_all(struct gw_engine *engine)
{
	uint32_t most = engine->pipeline != NULL ? gw_pipeline_options(engine->pipeline)->max_batch : 1;

	sweep(engine);
	engine->stepped_ns = kv_now_ns();
	for (uint32_t at = 0; at < engine->running_count; at += most) {
		uint32_t left = engine->running_count - at;

		step(engine, engine->running + at, left < most ? left : most);
	}
	gw_queue_relieve(engine);
	sweep(engine);
}

static void report(struct gw_engine *engine)
{
	const struct gw_engine_hooks *hooks = &engine->options.hooks;
	struct gw_sequence *sequences[KN_MAX_DECODE_ROWS];
	uint32_t count = engine->running_count;

	if (engine->pipeline == NULL || kv_now_ms() < engine->report_ms) return;
	engine->report_ms = kv_now_ms() + REPORT_MS;
	for (uint32_t i = 0; i < count; i++)
		sequences[i] = gw_session_sequence(engine->running[i]->session);
	for (uint32_t i = 0; i < engine->open_count; i++)
		sequences[count + i] = gw_session_sequence(engine->open[i]->session);
	hooks->report(hooks->context, sequences, count, engine->open_count, engine->longest_ns);
}

/* Until there is a message, a report is due, or something in the queue is to be tried again. */
static void rest(struct gw_engine *engine)
{
	uint64_t report_ms = kv_now_ms() + REPORT_MS, look_ms = gw_queue_look_ms(engine);
	uint64_t deadline_ms = look_ms < report_ms ? look_ms : report_ms;
	struct timespec until = {(time_t)(deadline_ms / 1000), (long)(deadline_ms % 1000) * 1000000};

	pthread_mutex_lock(&engine->mutex);
	while (!engine->pending)
		if (pthread_cond_timedwait(&engine->wake, &engine->mutex, &until) != 0) break;
	engine->pending = false;
	pthread_mutex_unlock(&engine->mutex);
}

void *gw_engine_main(void *context)
{
	struct gw_engine *engine = context;

	while (!engine->stopping) {
		gw_log_subject(NULL);
		take_messages(engine);
		reach_store(engine);
		gw_queue_refuse(engine);
		gw_queue_open_one(engine);
		prefill(engine);
		step_all(engine);
		report(engine);
		if (!engine->stopping && engine->running_count == 0 && engine->open_count == 0)
			rest(engine);
	}
	gw_queue_refuse(engine);
	while (engine->open_count > 0)
		advance(engine, 0);
	sweep(engine);
	engine->report_ms = 0;
	report(engine);
	disconnect(engine);
	gw_engine_tell_state(engine, GW_ENGINE_ENDED, "");
	return NULL;
}
