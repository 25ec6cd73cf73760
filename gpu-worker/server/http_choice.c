/* The engine's half of an exchange: as many answers to each of its prompts as were asked for. The
 * first to a prompt prefills; the others find it in the store. */
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "gpu-worker/server/http_internal.h"
#include "gpu-worker/server/http_logprobs.h"

static enum kv_status prepare(struct gw_exchange *exchange, struct gw_choice *choice)
{
	const struct gw_http_request *request = &exchange->request;

	choice->exchange = exchange;
	choice->index = (uint32_t)(choice - exchange->choices);
	choice->asked = request->session;
	choice->asked.request_id = exchange->id;
	/* A seed gives the same answers to a prompt again, but not the same one for each. Without one,
	 * prompts that are alike have answers of their own, too. */
	choice->asked.sampling.seed +=
	    request->seeded ? choice->index % request->choices : choice->index;
	if (request->prompts != NULL) {
		const struct gw_http_prompt *prompt = &request->prompts[choice->index / request->choices];

		choice->asked.tokens = prompt->tokens;
		choice->asked.token_count = prompt->count;
		choice->asked.max_tokens = prompt->max_tokens;
	}
	kv_text_init(&choice->text, exchange->allocator, GW_OUT_LIMIT);
	if (!request->logprobs) return KV_OK;
	choice->records =
	    kv_alloc_array(exchange->allocator, choice->asked.max_tokens, sizeof *choice->records);
	choice->asked.records = choice->records;
	return choice->records != NULL ? KV_OK : KV_NO_MEMORY;
}

enum kv_status gw_choices_submit(struct gw_exchange *exchange)
{
	uint32_t count = exchange->request.prompt_count * exchange->request.choices;
	uint32_t most = gw_engine_capacity(exchange->server->options.engine);

	if (count > most)
		return kv_fail(KV_INVALID,
		    "%s: %u answers are more than the %u requests that this worker takes "
		    "(--max-sequences and --max-requests); ask for fewer",
		    exchange->request.choices > 1 ? "n" : "prompt", count, most);
	exchange->choices = kv_alloc_array_zero(exchange->allocator, count, sizeof *exchange->choices);
	if (exchange->choices == NULL) return KV_NO_MEMORY;
	exchange->choice_count = count;
	for (uint32_t i = 0; i < count; i++)
		KV_TRY(prepare(exchange, &exchange->choices[i]));
	gw_traces_submitted(exchange->server->options.traces, &exchange->trace, exchange->answer.id,
	    count, kv_now_ns());
	for (uint32_t i = 0; i < count; i++) {
		struct gw_choice *choice = &exchange->choices[i];

		KV_TRY(gw_engine_submit(
		    exchange->server->options.engine, &choice->asked, choice, &choice->engine_id));
		choice->in_engine = true;
		exchange->in_engine++;
	}
	return KV_OK;
}

void gw_choices_cancel(struct gw_exchange *exchange)
{
	for (uint32_t i = 0; i < exchange->choice_count && exchange->in_engine > 0; i++)
		if (exchange->choices[i].in_engine)
			gw_engine_cancel(exchange->server->options.engine, exchange->choices[i].engine_id);
}

void gw_choices_deinit(struct gw_exchange *exchange)
{
	for (uint32_t i = 0; i < exchange->choice_count; i++) {
		struct gw_choice *choice = &exchange->choices[i];

		json_decref(choice->report);
		kv_text_deinit(&choice->text);
		kv_free(exchange->allocator, choice->records);
	}
	kv_free(exchange->allocator, exchange->choices);
	exchange->choices = NULL;
	exchange->choice_count = 0;
}

static struct gw_choice_view view_of(const struct gw_choice *choice)
{
	return (struct gw_choice_view){.index = choice->index,
	    .text = kv_text(&choice->text),
	    .length = choice->text.length,
	    .finish = choice->finish,
	    .report = choice->report};
}

/* The records up to `tokens` that were not told yet, or NULL when nobody asked for them. */
static json_t *take_logprobs(struct gw_choice *choice, uint32_t tokens)
{
	uint32_t from = choice->told;

	if (choice->records == NULL) return NULL;
	choice->told = tokens;
	return gw_logprobs_json(choice->exchange->model.tokenizer, choice->exchange->request.chat,
	    choice->records, from, tokens, &choice->text_offset);
}

static uint32_t answer_tokens(const struct gw_choice *choice)
{
	return (uint32_t)json_array_size(json_object_get(choice->report, "tokens"));
}

static json_t *usage_of(const struct gw_exchange *exchange)
{
	struct gw_choice_view views[GW_MAX_ANSWERS];

	for (uint32_t i = 0; i < exchange->choice_count; i++)
		views[i] = view_of(&exchange->choices[i]);
	return gw_answer_usage(views, exchange->choice_count, exchange->request.choices);
}

static bool all_ended(const struct gw_exchange *exchange)
{
	for (uint32_t i = 0; i < exchange->choice_count; i++)
		if (!exchange->choices[i].ended) return false;
	return true;
}

static void stream_end(struct gw_choice *choice)
{
	struct gw_exchange *exchange = choice->exchange;
	struct gw_choice_view view = view_of(choice);
	bool last = all_ended(exchange), own_event = exchange->answer.usage_event != 0;

	view.logprobs = take_logprobs(choice, answer_tokens(choice));
	gw_answer_last(
	    &exchange->out, &exchange->answer, &view, last && !own_event ? usage_of(exchange) : NULL);
	if (last)
		gw_answer_end(&exchange->out, &exchange->answer, own_event ? usage_of(exchange) : NULL);
	exchange->complete = last;
}

static void tell_whole(struct gw_exchange *exchange)
{
	struct gw_choice_view views[GW_MAX_ANSWERS];

	for (uint32_t i = 0; i < exchange->choice_count; i++) {
		struct gw_choice *choice = &exchange->choices[i];

		views[i] = view_of(choice);
		views[i].logprobs = take_logprobs(choice, answer_tokens(choice));
		/* A text that was cut short must not pass for the answer. */
		if (kv_text_status(&choice->text) != KV_OK) exchange->out.status = choice->text.status;
	}
	gw_answer_whole(&exchange->out, &exchange->answer, views, exchange->choice_count,
	    gw_answer_usage(views, exchange->choice_count, exchange->request.choices));
	exchange->code = 200;
	exchange->complete = true;
}

static void log_end(const struct gw_choice *choice, const struct gw_engine_result *result)
{
	const struct gw_exchange *exchange = choice->exchange;
	const json_t *report = result->report;
	const char *sequence = json_string_value(json_object_get(report, "sequence"));
	const struct kv_log_subject subject = {exchange->id, sequence};

	kv_log_set_subject(subject);
	kv_info("http", "answer %s id=%s prompt=%lld found=%lld tokens=%zu ms=%llu%s%s",
	    result->status == KV_OK ? gw_finish_text(result->finish) : kv_status_text(result->status),
	    exchange->answer.id,
	    (long long)json_integer_value(json_object_get(report, "prompt_tokens")),
	    (long long)json_integer_value(json_object_get(report, "prefix_hit_tokens")),
	    json_array_size(json_object_get(report, "tokens")),
	    (unsigned long long)(kv_now_ms() - exchange->start_ms), result->status == KV_OK ? "" : ": ",
	    result->status == KV_OK ? "" : result->message);
	kv_log_set_subject((struct kv_log_subject){0});
}

/* The sequence that the client may resume is that of the choice that failed, which is not always
 * the one that was opened last. */
static void fail(struct gw_choice *choice, const struct gw_engine_result *result)
{
	struct gw_exchange *exchange = choice->exchange;
	const char *sequence = json_string_value(json_object_get(result->report, "sequence"));

	snprintf(exchange->answer.sequence, sizeof exchange->answer.sequence, "%.63s",
	    sequence != NULL ? sequence : "");
	gw_exchange_fail(exchange, result->status, 1, result->message);
}

static void finish(struct gw_choice *choice, const struct gw_engine_result *result)
{
	struct gw_exchange *exchange = choice->exchange;

	choice->ended = true;
	choice->finish = result->finish;
	choice->report = json_incref(result->report);
	if (exchange->complete) return;
	if (result->status != KV_OK) {
		fail(choice, result);
		return;
	}
	if (exchange->streaming)
		stream_end(choice);
	else if (all_ended(exchange))
		tell_whole(exchange);
	if (exchange->streaming || exchange->complete) gw_exchange_resume(exchange);
}

static void opened(struct gw_choice *choice, const struct gw_engine_event *event)
{
	struct gw_exchange *exchange = choice->exchange;

	snprintf(exchange->answer.sequence, sizeof exchange->answer.sequence, "%.63s", event->text);
	if (!exchange->request.stream) return;
	exchange->streaming = true;
	gw_answer_first(
	    &exchange->out, &exchange->answer, choice->index, event->prompt_tokens, event->prefix_hit);
	gw_exchange_resume(exchange);
}

static void add_text(struct gw_choice *choice, const struct gw_engine_event *event)
{
	struct gw_exchange *exchange = choice->exchange;
	struct gw_choice_view view = view_of(choice);

	if (!exchange->streaming) {
		kv_text_append(&choice->text, event->text, event->text_length);
		return;
	}
	view.text = event->text;
	view.length = event->text_length;
	view.logprobs = take_logprobs(choice, event->tokens);
	gw_answer_text(&exchange->out, &exchange->answer, &view, event->tokens);
	gw_exchange_resume(exchange);
}

void gw_choice_event(struct gw_choice *choice, const struct gw_engine_event *event)
{
	struct gw_exchange *exchange = choice->exchange;

	if (exchange->server != NULL)
		gw_traces_event(
		    exchange->server->options.traces, &exchange->trace, choice->index, event);
	if (event->kind == GW_EVENT_FINISHED) {
		choice->in_engine = false;
		exchange->in_engine--;
		log_end(choice, event->result);
		if (exchange->connection != NULL) finish(choice, event->result);
		gw_exchange_release(exchange);
		return;
	}
	/* What comes after the end was told, of answers that are being given up, is for nobody. */
	if (exchange->complete) return;
	switch (event->kind) {
	case GW_EVENT_OPENED:
		opened(choice, event);
		break;
	case GW_EVENT_PREFILL:
		if (!exchange->streaming) break;
		gw_answer_progress(&exchange->out, event->done, event->total);
		gw_exchange_resume(exchange);
		break;
	case GW_EVENT_TEXT:
		add_text(choice, event);
		break;
	case GW_EVENT_LAYER:
	case GW_EVENT_STATE:
	case GW_EVENT_FINISHED:
		break;
	}
}
