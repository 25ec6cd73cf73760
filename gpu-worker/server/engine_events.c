/* What the engine tells the loop: events of requests, the last one of each, and its own state. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "gpu-worker/server/engine_internal.h"

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

void gw_engine_tell(
    struct gw_engine *engine, struct gw_engine_request *request, struct gw_engine_event *event)
{
	gw_times_update(request);
	event->request = request;
	event->times = request->times;
	push(engine, event);
}

void gw_engine_tell_state(struct gw_engine *engine, enum gw_engine_state state, const char *reason)
{
	struct gw_engine_event event = {.kind = GW_EVENT_STATE, .state = state};

	if (engine->state == state && strcmp(engine->reason, reason) == 0) return;
	engine->state = state;
	snprintf(engine->reason, sizeof engine->reason, "%s", reason);
	snprintf(event.text, sizeof event.text, "%s", reason);
	event.text_length = (uint32_t)strlen(event.text);
	push(engine, &event);
}

void gw_engine_remove_at(struct gw_engine_request **list, uint32_t *count, uint32_t index)
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

void gw_engine_finish(
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
		/* What broke here, or was interrupted, may go on elsewhere; what nobody wants may not, nor
		 * what the store has too little room for. What others began is theirs, and stays. */
		if (status == KV_TOO_LARGE && !request->others_began)
			gw_session_discard(request->session);
		else if (status != KV_OK && !(request->cancelled && !engine->stopping))
			gw_session_keep(request->session);
		result->report = gw_session_report(request->session);
		json_object_set_new(
		    result->report, "prefix_hit_tokens", json_integer(request->times.found_tokens));
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
	gw_engine_tell(engine, request, &event);
}

enum kv_status gw_engine_why_cancelled(const struct gw_engine *engine)
{
	return engine->stopping || engine->draining ? kv_fail(KV_CANCELLED, "the worker is stopping")
	                                            : kv_fail(KV_CANCELLED, "the client went away");
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

void gw_engine_tell_text(struct gw_engine *engine, struct gw_engine_request *request)
{
	struct gw_engine_event event = {.kind = GW_EVENT_TEXT};
	size_t length = 0;
	const char *text = gw_session_take(request->session, &length);

	gw_session_tokens(request->session, &event.tokens);
	while (length > 0) {
		size_t piece = whole_characters(text, length, sizeof event.text);

		memcpy(event.text, text, piece);
		event.text_length = (uint32_t)piece;
		gw_engine_tell(engine, request, &event);
		text += piece;
		length -= piece;
	}
}
