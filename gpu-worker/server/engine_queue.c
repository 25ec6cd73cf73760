/* The queue: which waiting request is opened next, and what waits again because there was no memory
 * for it. */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "gpu-worker/server/engine_internal.h"

/* What does not fit is tried again so often while this worker has nothing else in the store: at
 * most 1.5 s, then others have the memory, or it never fits. */
enum { MOST_ALONE = 4, FIRST_RETRY_MS = 100 };

/* So many may begin before an older one that lacks memory, then nobody: those that run end, and it
 * has the memory. Of those that were refused so many, the oldest, are tried again at each end; what
 * was not refused yet is tried wherever it is. */
enum { MOST_PASSES = 16, MOST_HELD = 8 };

void gw_queue_append(struct gw_engine *engine, struct gw_engine_request *request)
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

void gw_queue_refuse(struct gw_engine *engine)
{
	struct gw_engine_request *request = engine->first, *next;

	engine->first = engine->last = NULL;
	for (; request != NULL; request = next) {
		next = request->next;
		/* Who drains finishes what has begun. */
		if (engine->stopping || request->cancelled || (engine->draining && !request->told_opened))
			gw_engine_finish(engine, request, gw_engine_why_cancelled(engine));
		else if (engine->state == GW_ENGINE_WAITING || engine->state == GW_ENGINE_FAILED)
			gw_engine_finish(engine, request,
			    kv_fail(KV_DISCONNECTED, "waiting for the store: %s", engine->reason));
		else
			gw_queue_append(engine, request);
	}
}

static enum kv_status open_session(struct gw_engine *engine, struct gw_engine_request *request)
{
	/* A replay of what was answered already is part of answering. */
	if (request->times.ready_ns == 0) request->times.begun_ns = kv_now_ns();
	return gw_session_open(
	    engine->pipeline, engine->options.tokenizer, &request->asked, &request->session);
}

static void tell_opened(struct gw_engine *engine, struct gw_engine_request *request)
{
	struct gw_engine_event event = {.kind = GW_EVENT_OPENED};
	const struct gw_sequence *sequence = gw_session_sequence(request->session);

	snprintf(event.text, sizeof event.text, "%s", gw_session_id(request->session));
	event.text_length = (uint32_t)strlen(event.text);
	event.prompt_tokens = gw_sequence_prompt_tokens(sequence);
	event.prefix_hit = gw_sequence_prefix_hit(sequence);
	if (request->times.ready_ns == 0) request->times.opened_ns = kv_now_ns();
	if (!request->told_opened) gw_engine_tell(engine, request, &event);
	request->told_opened = true;
}

static bool has_others(const struct gw_engine *engine)
{
	return engine->running_count + engine->open_count > 0;
}

/* Older ones first, those that have run too. */
static void insert(struct gw_engine *engine, struct gw_engine_request *request)
{
	struct gw_engine_request **at = &engine->first;

	while (*at != NULL && (*at)->id < request->id)
		at = &(*at)->next;
	request->next = *at;
	*at = request;
	if (request->next == NULL) engine->last = request;
}

/* Close the session and have its request wait. What it is to go on with is in `asked`. */
static void wait_again(struct gw_engine *engine, struct gw_engine_request *request)
{
	/* The log's subject names the session. */
	gw_log_subject(NULL);
	gw_session_close(request->session);
	request->session = NULL;
	request->begun_prompt = request->stalled = false;
	request->told_layers = 0;
	request->layer_ns = 0;
	request->lacks_memory = true;
	insert(engine, request);
}

/* The same, until somebody ends. */
static void hold(struct gw_engine *engine, struct gw_engine_request *request)
{
	wait_again(engine, request);
	request->held = true;
	if (!has_others(engine)) request->refusals_alone++;
	request->after_ends = engine->ends + 1;
	request->retry_ms = kv_now_ms() + ((uint64_t)FIRST_RETRY_MS << request->refusals_alone) / 2;
}

/* That ends: while it waits with others running, each refusal follows an end, those older than it
 * are no more than there are, and of younger ones MOST_PASSES begin. */
static bool may_wait(const struct gw_engine *engine, const struct gw_engine_request *request)
{
	return !request->cancelled && !engine->stopping &&
	       (has_others(engine) || request->refusals_alone < MOST_ALONE);
}

static bool is_held(const struct gw_engine *engine, const struct gw_engine_request *request)
{
	if (!request->held) return false;
	return has_others(engine) ? engine->ends < request->after_ends
	                          : kv_now_ms() < request->retry_ms;
}

void gw_queue_begun(struct gw_engine *engine, const struct gw_engine_request *request)
{
	for (struct gw_engine_request *r = engine->first; r != NULL; r = r->next)
		if (r->lacks_memory && r->id < request->id) r->passes++;
	for (uint32_t i = 0; i < engine->open_count; i++) {
		struct gw_engine_request *r = engine->open[i];

		if (r->lacks_memory && !r->begun_prompt && r->id < request->id) r->passes++;
	}
}

void gw_queue_ready(struct gw_engine_request *request)
{
	request->lacks_memory = request->held = false;
	request->passes = request->refusals_alone = 0;
}

bool gw_queue_postpone(
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
	hold(engine, request);
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
	gw_engine_remove_at(engine->running, &engine->running_count, index);
	if (!may_wait(engine, request)) {
		gw_engine_finish(engine, request, kv_fail(KV_LIMIT, "%s", request->result.message));
		return true;
	}
	gw_log_subject(request);
	kv_info("engine", "put back: %s", request->result.message);
	engine->options.hooks.put_back(
	    engine->options.hooks.context, gw_session_sequence(request->session));
	snprintf(
	    request->sequence_id, sizeof request->sequence_id, "%s", gw_session_id(request->session));
	request->asked.resume_id = request->sequence_id;
	request->asked.sequence_id = NULL;
	gw_session_tokens(request->session, &told);
	/* Who resumed it may have more than it has come to. */
	if (told > request->asked.have_tokens) request->asked.have_tokens = told;
	hold(engine, request);
	request->put_back = true;
	return true;
}

/* The store forgot a sequence that made room, or somebody else resumed it: no mistake of who waits
 * for the answer. */
static enum kv_status explain_loss(const struct gw_engine_request *request, enum kv_status status)
{
	if (!request->put_back || (status != KV_NOT_FOUND && status != KV_BUSY && status != KV_EXISTS &&
	                              status != KV_REFUSED))
		return status;
	return kv_fail_prefix(KV_LIMIT, "the answer made room in a full store and cannot go on");
}

void gw_queue_relieve(struct gw_engine *engine)
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

void gw_queue_describe_open(const struct gw_engine *engine, struct gw_open_prompt *prompts)
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

/* How much of the worker's memory it takes, which is known once. KV_NO_MEMORY: more than there may
 * be. */
static enum kv_status measure(const struct gw_engine *engine, struct gw_engine_request *request,
    uint32_t prompt_tokens, uint32_t max_tokens)
{
	request->bytes = gw_sequence_bytes(engine->pipeline, prompt_tokens, max_tokens);
	if (request->bytes <= engine->options.sequence_bytes) return KV_OK;
	return kv_fail(KV_NO_MEMORY,
	    "a prompt of %u tokens with %u to generate takes %llu bytes of the worker's memory, "
	    "--sequence-memory is %llu; shorten the prompt or lower max_tokens",
	    prompt_tokens, max_tokens, (unsigned long long)request->bytes,
	    (unsigned long long)engine->options.sequence_bytes);
}

/* What sequences take that are there. */
static uint64_t taken_bytes(const struct gw_engine *engine)
{
	uint64_t taken = 0;

	for (uint32_t i = 0; i < engine->running_count; i++)
		taken += engine->running[i]->bytes;
	for (uint32_t i = 0; i < engine->open_count; i++)
		taken += engine->open[i]->bytes;
	return taken;
}

/* Does it fit beside the others? KV_BUSY: not before some end. */
static enum kv_status check_room(
    const struct gw_engine *engine, struct gw_engine_request *request, uint64_t taken)
{
	const struct gw_session_request *asked = &request->asked;

	if (engine->options.sequence_bytes == 0) return KV_OK;
	if (request->bytes == 0) {
		/* Of a sequence that others began it is not known how long it is before it was opened. */
		if (request->others_began) return KV_OK;
		KV_TRY(measure(engine, request, asked->token_count, asked->max_tokens));
	}
	return taken + request->bytes <= engine->options.sequence_bytes ? KV_OK : KV_BUSY;
}

/* Now it is. */
static enum kv_status check_resumed(
    const struct gw_engine *engine, struct gw_engine_request *request)
{
	const struct gw_sequence *sequence = gw_session_sequence(request->session);
	uint32_t prompt = gw_sequence_prompt_tokens(sequence);

	if (engine->options.sequence_bytes == 0 || request->bytes > 0) return KV_OK;
	KV_TRY(measure(engine, request, prompt, gw_sequence_capacity(sequence) - prompt));
	return check_room(engine, request, taken_bytes(engine));
}

/* Would it find in the store what an open prompt is about to put there? While that is open it
 * would, so many that wait for one prompt are not compared with it in each turn. */
static bool will_find(const struct gw_engine *engine, struct gw_engine_request *request)
{
	struct gw_open_prompt prompts[KN_MAX_DECODE_ROWS];

	if (gw_pipeline_options(engine->pipeline)->store == NULL) return false;
	if (request->finds_until > engine->prompts_closed) return true;
	gw_queue_describe_open(engine, prompts);
	if (!gw_prefill_will_find(
	        prompts, engine->open_count, request->asked.tokens, request->asked.token_count))
		return false;
	request->finds_until = engine->prompts_closed + 1;
	return true;
}

/* Has one that is open, and not begun, been passed by as many as may? */
static bool is_closed(const struct gw_engine *engine)
{
	for (uint32_t i = 0; i < engine->open_count; i++)
		if (!engine->open[i]->begun_prompt && engine->open[i]->passes >= MOST_PASSES) return true;
	return false;
}

/* Who follows `before` (NULL: the first) among those that may be tried: of those that were refused
 * only MOST_HELD, all others, but nobody behind one that as many as may have passed. */
static struct gw_engine_request *following(
    const struct gw_engine *engine, struct gw_engine_request *before, uint32_t *held)
{
	struct gw_engine_request *request = before != NULL ? before->next : engine->first;

	if (before != NULL && before->passes >= MOST_PASSES) return NULL;
	for (; request != NULL; request = request->next) {
		if (!request->held || ++*held <= MOST_HELD) return request;
		if (request->passes >= MOST_PASSES) return NULL;
	}
	return NULL;
}

/* The first that has nothing to wait for; *room: what check_room says of it. */
static struct gw_engine_request *find_next(struct gw_engine *engine, enum kv_status *room)
{
	struct gw_engine_request *request = NULL;
	uint64_t taken = taken_bytes(engine);
	uint32_t held = 0;

	if (is_closed(engine)) return NULL;
	while ((request = following(engine, request, &held)) != NULL) {
		if (is_held(engine, request)) continue;
		*room = check_room(engine, request, taken);
		if (*room == KV_BUSY)
			request->lacks_memory = true;
		else if (*room != KV_OK || !will_find(engine, request))
			return request;
	}
	return NULL;
}

uint64_t gw_queue_look_ms(struct gw_engine *engine)
{
	struct gw_engine_request *request = NULL;
	uint64_t look_ms = UINT64_MAX;
	uint32_t held = 0;
	enum kv_status room;

	if (engine->pipeline == NULL) return look_ms;
	if (find_next(engine, &room) != NULL) return 0;
	/* Who waits for an end, or for somebody's prompt, waits for no time. */
	if (has_others(engine)) return look_ms;
	while ((request = following(engine, request, &held)) != NULL)
		if (request->held && request->retry_ms < look_ms) look_ms = request->retry_ms;
	return look_ms;
}

void gw_queue_open_one(struct gw_engine *engine)
{
	struct gw_engine_request *request;
	const struct gw_sequence *sequence;
	enum kv_status status;

	if (engine->pipeline == NULL ||
	    engine->running_count + engine->open_count == engine->options.max_sequences)
		return;
	request = find_next(engine, &status);
	if (request == NULL) return;
	take(engine, request);
	gw_log_subject(request);
	if (status != KV_OK) {
		gw_engine_finish(engine, request, status);
		return;
	}
	status = open_session(engine, request);
	if (status != KV_OK) {
		if (!gw_queue_postpone(engine, request, status))
			gw_engine_finish(engine, request, explain_loss(request, status));
		return;
	}
	status = check_resumed(engine, request);
	if (status == KV_BUSY) {
		/* Others may resume it meanwhile. */
		gw_session_give_up(request->session);
		wait_again(engine, request);
		return;
	}
	tell_opened(engine, request);
	if (status != KV_OK) {
		gw_engine_finish(engine, request, status);
		return;
	}
	request->put_back = false;
	gw_log_subject(request);
	sequence = gw_session_sequence(request->session);
	request->prompt_left = gw_sequence_prompt_tokens(sequence) - gw_sequence_prefix_hit(sequence);
	request->progress_ms = kv_now_ms();
	engine->open[engine->open_count++] = request;
}
