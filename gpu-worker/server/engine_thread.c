/* The engine thread. Each turn: messages → store there? → open a waiting request → compute more of
 * the open prompts → one token for every running one → counters. It sleeps only when there is
 * nothing to run. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "gpu-worker/server/engine_internal.h"

enum { REPORT_MS = 250, PROGRESS_MS = 100, FIRST_BACKOFF_MS = 100, LAST_BACKOFF_MS = 2000 };

/* What does not fit is tried again so often, and so often while this worker has nothing else in the
 * store: at most 1.5 s, then others have the memory, or it never fits. */
enum { MOST_REFUSALS = 32, MOST_ALONE = 4, FIRST_RETRY_MS = 100 };

/* The loop always reads on, so a full ring passes. */
static void push(struct gw_engine *engine, const struct gw_engine_event *event)
{
	const struct timespec nap = {0, 1000000};

	while (!kv_ring_push(engine->out, event)) {
		kv_waker_wake(engine->waker);
		nanosleep(&nap, NULL);
	}
	kv_waker_wake(engine->waker);
}

/* An event of a request, with where its time went so far. */
static void tell(
    struct gw_engine *engine, struct gw_engine_request *request, struct gw_engine_event *event)
{
	gw_times_update(request);
	event->request = request;
	event->times = request->times;
	push(engine, event);
}

static void tell_state(struct gw_engine *engine, enum gw_engine_state state, const char *reason)
{
	struct gw_engine_event event = {.kind = GW_EVENT_STATE, .state = state};

	if (engine->state == state && strcmp(engine->reason, reason) == 0) return;
	engine->state = state;
	snprintf(engine->reason, sizeof engine->reason, "%s", reason);
	snprintf(event.text, sizeof event.text, "%s", reason);
	event.text_length = (uint32_t)strlen(event.text);
	push(engine, &event);
}

static void append(struct gw_engine *engine, struct gw_engine_request *request)
{
	request->next = NULL;
	if (engine->last != NULL)
		engine->last->next = request;
	else
		engine->first = request;
	engine->last = request;
}

static void take(struct gw_engine *engine, struct gw_engine_request *request)
{
	struct gw_engine_request **at = &engine->first, *before = NULL;

	for (; *at != request; at = &before->next)
		before = *at;
	*at = request->next;
	if (engine->last == request) engine->last = before;
}

static void remove_at(struct gw_engine_request **list, uint32_t *count, uint32_t index)
{
	--*count;
	memmove(&list[index], &list[index + 1], (*count - index) * sizeof list[0]);
}

/* A sequence that made room is still in the store: when its client has gone, nobody is to find it
 * there. */
static void take_back_unwanted(struct gw_engine *engine, struct gw_engine_request *request)
{
	if (!request->put_back || !request->cancelled || engine->stopping || !engine->pipeline) return;
	request->put_back = false;
	if (gw_session_open(engine->pipeline, engine->options.tokenizer, &request->asked,
	        &request->session) != KV_OK)
		request->session = NULL;
}

/* Closes the session and hands the request back. The thread's error text says why it failed. */
static void finish(
    struct gw_engine *engine, struct gw_engine_request *request, enum kv_status status)
{
	struct gw_engine_event event = {.kind = GW_EVENT_FINISHED};
	struct gw_engine_result *result = &request->result;

	result->status = status;
	result->finish = GW_FINISH_ERROR;
	if (status != KV_OK)
		snprintf(result->message, sizeof result->message, "%s", kv_error_message());
	take_back_unwanted(engine, request);
	gw_times_update(request);
	request->times.ended_ns = kv_now_ns();
	if (request->session != NULL) {
		if (status == KV_OK) result->finish = gw_session_finish(request->session);
		/* What broke here, or was interrupted, may go on elsewhere; what nobody wants may not. */
		if (status != KV_OK && !(request->cancelled && !engine->stopping))
			gw_session_keep(request->session);
		result->report = gw_session_report(request->session);
		engine->options.hooks.finished(
		    engine->options.hooks.context, gw_session_sequence(request->session), status != KV_OK);
		gw_session_close(request->session);
		request->session = NULL;
		engine->ends++;
	} else if (request->told_opened && request->asked.resume_id != NULL) {
		/* It may be resumed, here or elsewhere. */
		result->report = json_pack("{s:s}", "sequence", request->asked.resume_id);
	}
	gw_log_subject(NULL);
	event.result = result;
	tell(engine, request, &event);
}

static enum kv_status why_cancelled(const struct gw_engine *engine)
{
	return engine->stopping || engine->draining ? kv_fail(KV_CANCELLED, "the worker is stopping")
	                                            : kv_fail(KV_CANCELLED, "the client went away");
}

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
			append(engine, message.request);
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

/* Requests that will never begin go back at once, wherever in the queue they are. */
static void refuse_waiting(struct gw_engine *engine)
{
	struct gw_engine_request *request = engine->first, *next;

	engine->first = engine->last = NULL;
	for (; request != NULL; request = next) {
		next = request->next;
		/* Who drains finishes what has begun. */
		if (engine->stopping || request->cancelled || (engine->draining && !request->told_opened))
			finish(engine, request, why_cancelled(engine));
		else if (engine->state == GW_ENGINE_WAITING || engine->state == GW_ENGINE_FAILED)
			finish(engine, request,
			    kv_fail(KV_DISCONNECTED, "waiting for the store: %s", engine->reason));
		else
			append(engine, request);
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
		if (hooks->connected(hooks->context))
			tell_state(engine, GW_ENGINE_READY, "");
		else
			tell_state(engine, GW_ENGINE_WAITING, "the connection to the store is lost");
		return;
	}
	if (engine->state == GW_ENGINE_FAILED || kv_now_ms() < engine->connect_ms) return;
	status = hooks->connect(hooks->context, &engine->pipeline);
	if (status == KV_OK) status = create_logits(engine);
	if (status == KV_OK) {
		tell_state(engine, GW_ENGINE_READY, "");
		return;
	}
	tell_state(engine,
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

/* Bytes of at most `limit` that end at a character. */
static size_t whole_characters(const char *text, size_t length, size_t limit)
{
	size_t end = limit;

	if (length <= limit) return length;
	while (end > 0 && ((unsigned char)text[end] & 0xC0) == 0x80)
		end--;
	return end > 0 ? end : limit;
}

static void send_text(struct gw_engine *engine, struct gw_engine_request *request)
{
	struct gw_engine_event event = {.kind = GW_EVENT_TEXT};
	size_t length = 0;
	const char *text = gw_session_take(request->session, &length);

	gw_session_tokens(request->session, &event.tokens);
	while (length > 0) {
		size_t piece = whole_characters(text, length, sizeof event.text);

		memcpy(event.text, text, piece);
		event.text_length = (uint32_t)piece;
		tell(engine, request, &event);
		text += piece;
		length -= piece;
	}
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
	tell(engine, request, &event);
}

static enum kv_status open_session(struct gw_engine *engine, struct gw_engine_request *request)
{
	struct gw_engine_event event = {.kind = GW_EVENT_OPENED};
	const struct gw_sequence *sequence;

	/* A replay of what was answered already is part of answering. */
	if (request->times.ready_ns == 0) request->times.begun_ns = kv_now_ns();
	KV_TRY(gw_session_open(
	    engine->pipeline, engine->options.tokenizer, &request->asked, &request->session));
	sequence = gw_session_sequence(request->session);
	snprintf(event.text, sizeof event.text, "%s", gw_session_id(request->session));
	event.text_length = (uint32_t)strlen(event.text);
	event.prompt_tokens = gw_sequence_prompt_tokens(sequence);
	event.prefix_hit = gw_sequence_prefix_hit(sequence);
	if (request->times.ready_ns == 0) request->times.opened_ns = kv_now_ns();
	if (!request->told_opened) tell(engine, request, &event);
	request->told_opened = true;
	return KV_OK;
}

static bool has_others(const struct gw_engine *engine)
{
	return engine->running_count + engine->open_count > 0;
}

/* Close the session and have its request wait at the head of the queue until somebody ends. What it
 * is to go on with is in `asked`. */
static void wait_at_head(struct gw_engine *engine, struct gw_engine_request *request)
{
	/* The log's subject names the session. */
	gw_log_subject(NULL);
	gw_session_close(request->session);
	request->session = NULL;
	request->begun_prompt = request->stalled = false;
	request->told_layers = 0;
	request->layer_ns = 0;
	request->refusals++;
	if (!has_others(engine)) request->refusals_alone++;
	request->after_ends = engine->ends + 1;
	request->retry_ms = kv_now_ms() + ((uint64_t)FIRST_RETRY_MS << request->refusals_alone) / 2;
	request->next = engine->first;
	engine->first = request;
	if (engine->last == NULL) engine->last = request;
}

static bool may_wait(const struct gw_engine *engine, const struct gw_engine_request *request)
{
	return !request->cancelled && !engine->stopping && request->refusals < MOST_REFUSALS &&
	       (has_others(engine) || request->refusals_alone < MOST_ALONE);
}

static bool is_held(const struct gw_engine *engine)
{
	const struct gw_engine_request *request = engine->first;

	if (request == NULL || request->refusals == 0 || request->cancelled) return false;
	return has_others(engine) ? engine->ends < request->after_ends
	                          : kv_now_ms() < request->retry_ms;
}

/* Nothing was picked since it was opened, and there was no memory for it. False when it is not to
 * be tried again. */
static bool postpone(
    struct gw_engine *engine, struct gw_engine_request *request, enum kv_status status)
{
	if ((status != KV_LIMIT && status != KV_NO_MEMORY) || !may_wait(engine, request)) return false;
	kv_debug("engine", "waits for memory: %s", kv_error_message());
	if (request->session != NULL) {
		engine->options.hooks.postponed(
		    engine->options.hooks.context, gw_session_sequence(request->session));
		/* What its client was told is its id stays it. */
		if (request->asked.resume_id == NULL) {
			snprintf(request->sequence_id, sizeof request->sequence_id, "%s",
			    gw_session_id(request->session));
			if (request->sequence_id[0] != '\0') request->asked.sequence_id = request->sequence_id;
		}
		gw_session_give_up(request->session);
	}
	wait_at_head(engine, request);
	/* What was put back before still is. */
	request->put_back = request->asked.resume_id == request->sequence_id;
	return true;
}

/* A running answer makes room in the store. False when nobody could resume it. */
static bool put_back(struct gw_engine *engine, uint32_t index)
{
	struct gw_engine_request *request = engine->running[index];
	uint32_t told = 0;

	if (gw_session_put_back(request->session) != KV_OK) return false;
	remove_at(engine->running, &engine->running_count, index);
	if (!may_wait(engine, request)) {
		finish(engine, request, kv_fail(KV_LIMIT, "%s", request->result.message));
		return true;
	}
	gw_log_subject(request);
	kv_info("engine", "put back: %s", request->result.message);
	engine->options.hooks.put_back(
	    engine->options.hooks.context, gw_session_sequence(request->session));
	snprintf(request->sequence_id, sizeof request->sequence_id, "%s",
	    gw_session_id(request->session));
	request->asked.resume_id = request->sequence_id;
	request->asked.sequence_id = NULL;
	gw_session_tokens(request->session, &told);
	/* Who resumed it may have more than it has come to. */
	if (told > request->asked.have_tokens) request->asked.have_tokens = told;
	wait_at_head(engine, request);
	request->put_back = true;
	return true;
}

/* The store forgot a sequence that made room, or somebody else resumed it: no mistake of who waits
 * for the answer. */
static enum kv_status explain_loss(const struct gw_engine_request *request, enum kv_status status)
{
	if (!request->put_back || (status != KV_NOT_FOUND && status != KV_BUSY &&
	                              status != KV_EXISTS && status != KV_REFUSED))
		return status;
	return kv_fail_prefix(KV_LIMIT, "the answer made room in a full store and cannot go on");
}

/* When no running answer can go on, as the store is full, the youngest makes room. */
static void relieve(struct gw_engine *engine)
{
	uint32_t youngest = 0;

	for (uint32_t i = 0; i < engine->running_count; i++) {
		if (!engine->running[i]->stalled) return;
		if (engine->running[i]->id > engine->running[youngest]->id) youngest = i;
	}
	if (engine->running_count == 0 || put_back(engine, youngest)) return;
	for (uint32_t i = 0; i < engine->running_count; i++)
		if (i != youngest && put_back(engine, i)) return;
	engine->running[youngest]->result.status = KV_LIMIT;
}

static const char LOST[] = "store connection lost during the answer";

/* The sequence's failure in the words that its client gets. */
static enum kv_status explain(const struct gw_session *session, enum kv_status status)
{
	if (status == KV_STALE || status == KV_DISCONNECTED)
		return kv_fail_prefix(status, "%s (sequence %s)", LOST, gw_session_id(session));
	return status;
}

static void describe_open(const struct gw_engine *engine, struct gw_open_prompt *prompts)
{
	for (uint32_t i = 0; i < engine->open_count; i++) {
		const struct gw_engine_request *request = engine->open[i];

		prompts[i].tokens = request->asked.tokens;
		prompts[i].count = request->asked.token_count;
		prompts[i].found = gw_sequence_prefix_hit(gw_session_sequence(request->session));
		prompts[i].left = request->prompt_left;
		prompts[i].begun = request->begun_prompt;
	}
}

static void tell_layer(
    struct gw_engine *engine, struct gw_engine_request *request, uint64_t unit_ns)
{
	struct gw_engine_event event = {.kind = GW_EVENT_LAYER, .done = request->told_layers};

	if (gw_times_unit(request, unit_ns, &event.total)) tell(engine, request, &event);
}

/* The first that has nothing to wait for. */
static struct gw_engine_request *find_next(const struct gw_engine *engine)
{
	struct gw_open_prompt prompts[KN_MAX_DECODE_ROWS];
	bool shares = gw_pipeline_options(engine->pipeline)->store != NULL;
	struct gw_engine_request *request = engine->first;

	describe_open(engine, prompts);
	while (shares && request != NULL &&
	       gw_prefill_will_find(
	           prompts, engine->open_count, request->asked.tokens, request->asked.token_count))
		request = request->next;
	return request;
}

/* Is there memory for it? KV_BUSY: not before others end. */
static enum kv_status check_room(
    const struct gw_engine *engine, struct gw_engine_request *request)
{
	uint64_t limit = engine->options.sequence_bytes, taken = 0;
	const struct gw_session_request *asked = &request->asked;

	if (limit == 0) return KV_OK;
	/* How long a sequence is that others began is not known before it is opened. */
	request->bytes = gw_sequence_bytes(engine->pipeline, asked->token_count, asked->max_tokens);
	if (request->bytes > limit)
		return kv_fail(KV_NO_MEMORY,
		    "a prompt of %u tokens with %u to generate takes %llu bytes of the worker's memory, "
		    "--sequence-memory is %llu; shorten the prompt or lower max_tokens",
		    asked->token_count, asked->max_tokens, (unsigned long long)request->bytes,
		    (unsigned long long)limit);
	for (uint32_t i = 0; i < engine->running_count; i++)
		taken += engine->running[i]->bytes;
	for (uint32_t i = 0; i < engine->open_count; i++)
		taken += engine->open[i]->bytes;
	return taken + request->bytes <= limit ? KV_OK : KV_BUSY;
}

/* Open what waits: what is stored of a prompt says how much is left to compute. One at a time, as
 * answers that run may wait for their next token. */
static void open_one(struct gw_engine *engine)
{
	struct gw_engine_request *request;
	const struct gw_sequence *sequence;
	enum kv_status status;

	if (engine->pipeline == NULL || engine->first == NULL || is_held(engine) ||
	    engine->running_count + engine->open_count == engine->options.max_sequences)
		return;
	request = find_next(engine);
	if (request == NULL) return;
	status = check_room(engine, request);
	if (status == KV_BUSY) return;
	take(engine, request);
	gw_log_subject(request);
	if (status != KV_OK) {
		finish(engine, request, status);
		return;
	}
	status = open_session(engine, request);
	if (status != KV_OK) {
		if (!postpone(engine, request, status))
			finish(engine, request, explain_loss(request, status));
		return;
	}
	request->put_back = false;
	gw_log_subject(request);
	sequence = gw_session_sequence(request->session);
	request->prompt_left =
	    gw_sequence_prompt_tokens(sequence) - gw_sequence_prefix_hit(sequence);
	request->progress_ms = kv_now_ms();
	engine->open[engine->open_count++] = request;
}

/* A prompt's first unit begins it. */
static enum kv_status run_unit(
    struct gw_engine *engine, struct gw_engine_request *request, int *ready)
{
	gw_log_subject(request);
	if (request->cancelled || engine->stopping) return KV_CANCELLED;
	if (!request->begun_prompt) KV_TRY(gw_session_begin(request->session, show_prefill, request));
	request->begun_prompt = true;
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
	remove_at(engine->open, &engine->open_count, index);
	/* Who is the oldest now is owed nothing yet. */
	if (index == 0) engine->owed_ns = 0;
	if (status == KV_OK) {
		gw_times_update(request);
		/* What it did not have room for, it has done. */
		request->refusals = request->refusals_alone = 0;
		if (request->times.ready_ns == 0) request->times.ready_ns = kv_now_ns();
		send_text(engine, request);
		engine->running[engine->running_count++] = request;
		return;
	}
	if (postpone(engine, request, status)) return;
	if (status == KV_CANCELLED) status = why_cancelled(engine);
	finish(engine, request, explain(request->session, status));
}

static uint32_t next_prompt(const struct gw_engine *engine)
{
	struct gw_open_prompt prompts[KN_MAX_DECODE_ROWS];

	for (uint32_t i = 0; i < engine->open_count; i++)
		if (engine->open[i]->cancelled) return i;
	describe_open(engine, prompts);
	return gw_prefill_next(prompts, engine->open_count, engine->owed_ns);
}

/* As many units as the running answers' next token leaves time for, and at least one. */
static void prefill(struct gw_engine *engine)
{
	uint64_t latency_ns = engine->options.latency_ms * 1000000;

	while (engine->open_count > 0) {
		advance(engine, next_prompt(engine));
		take_messages(engine);
		open_one(engine);
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
			send_text(engine, requests[i]);
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
			status = why_cancelled(engine);
		else if (gw_session_finish(request->session) == GW_RUNNING) {
			i++;
			continue;
		}
		remove_at(engine->running, &engine->running_count, i);
		finish(engine, request, status);
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
	relieve(engine);
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

static void sleep_until(struct gw_engine *engine, uint64_t deadline_ms)
{
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
		refuse_waiting(engine);
		open_one(engine);
		prefill(engine);
		step_all(engine);
		report(engine);
		if (!engine->stopping && engine->running_count == 0 && engine->open_count == 0 &&
		    (engine->first == NULL || engine->pipeline == NULL || is_held(engine)))
			sleep_until(engine, is_held(engine) ? engine->first->retry_ms
			                                    : kv_now_ms() + REPORT_MS);
	}
	refuse_waiting(engine);
	while (engine->open_count > 0)
		advance(engine, 0);
	sweep(engine);
	engine->report_ms = 0;
	report(engine);
	disconnect(engine);
	tell_state(engine, GW_ENGINE_ENDED, "");
	return NULL;
}
