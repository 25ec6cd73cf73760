#include "gpu-worker/server/http_completion.h"

#include <inttypes.h>
#include <string.h>

static int append(const char *bytes, size_t size, void *context)
{
	struct kv_text_buffer *out = context;

	kv_text_append(out, bytes, size);
	return kv_text_status(out) == KV_OK ? 0 : -1;
}

/* Takes the reference. What could not be built or written makes the buffer fail. */
static void put_json(struct kv_text_buffer *out, json_t *object)
{
	if (object == NULL ||
	    json_dump_callback(object, append, out, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0)
		if (kv_text_status(out) == KV_OK)
			out->status = kv_fail(KV_NO_MEMORY, "an answer cannot be written");
	json_decref(object);
}

static void put_event(struct kv_text_buffer *out, json_t *object)
{
	kv_text_put(out, "data: ");
	put_json(out, object);
	kv_text_put(out, "\n\n");
}

static json_t *finish_reason(enum gw_finish finish)
{
	return finish == GW_RUNNING ? json_null() : json_string(gw_finish_text(finish));
}

static json_t *or_null(json_t *value)
{
	return value != NULL ? value : json_null();
}

/* `key`: where a chat's message is; `first`: its first delta names the role. */
static json_t *choice_of(
    const struct gw_answer *answer, const struct gw_choice_view *choice, const char *key, int first)
{
	json_t *content = json_stringn_nocheck(choice->text, choice->length), *part;

	if (!answer->chat)
		return json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)choice->index, "text",
		    content, "logprobs", or_null(choice->logprobs), "finish_reason",
		    finish_reason(choice->finish));
	part = first ? json_pack("{s:s, s:o}", "role", "assistant", "content", content)
	             : json_pack("{s:o}", "content", content);
	return json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)choice->index, key, part,
	    "logprobs", or_null(choice->logprobs), "finish_reason", finish_reason(choice->finish));
}

/* Takes the references of `choices`, `usage` and `own`. */
static json_t *envelope(
    const struct gw_answer *answer, const char *object, json_t *choices, json_t *usage, json_t *own)
{
	json_t *made = json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", answer->id, "object", object,
	    "created", (json_int_t)answer->created, "model", answer->model, "choices", choices);

	if (usage != NULL) json_object_set_new(made, "usage", usage);
	if (own != NULL) json_object_set_new(made, "clusterkv", own);
	return made;
}

static json_t *list_of(json_t *one)
{
	return json_pack("[o]", one);
}

static const char *chunk_name(const struct gw_answer *answer)
{
	return answer->chat ? "chat.completion.chunk" : "text_completion";
}

void gw_answer_first(struct kv_text_buffer *out, const struct gw_answer *answer, uint32_t index,
    uint32_t prompt_tokens, uint32_t prefix_hit)
{
	const struct gw_choice_view nothing = {.index = index, .text = "", .finish = GW_RUNNING};
	json_t *own = json_pack("{s:s, s:I, s:I}", "sequence", answer->sequence, "prompt_tokens",
	    (json_int_t)prompt_tokens, "prefix_hit_tokens", (json_int_t)prefix_hit);

	put_event(out, envelope(answer, chunk_name(answer),
	                   list_of(choice_of(answer, &nothing, "delta", 1)), NULL, own));
}

void gw_answer_progress(struct kv_text_buffer *out, uint64_t done, uint64_t total)
{
	kv_text_printf(out, ": prefill %" PRIu64 "/%" PRIu64 "\n\n", done, total);
}

void gw_answer_text(struct kv_text_buffer *out, const struct gw_answer *answer,
    const struct gw_choice_view *choice, uint32_t tokens)
{
	struct gw_choice_view running = *choice;
	json_t *own = json_pack("{s:I}", "tokens", (json_int_t)tokens);

	running.finish = GW_RUNNING;
	put_event(out, envelope(answer, chunk_name(answer),
	                   list_of(choice_of(answer, &running, "delta", 0)), NULL, own));
}

static json_int_t number_in(const json_t *report, const char *name)
{
	return json_integer_value(json_object_get(report, name));
}

json_t *gw_answer_usage(const struct gw_choice_view *choices, uint32_t count, uint32_t each)
{
	json_int_t prompt = 0, found = 0, answers = 0;

	for (uint32_t i = 0; i < count; i += each) {
		prompt += number_in(choices[i].report, "prompt_tokens");
		found += number_in(choices[i].report, "prefix_hit_tokens");
	}
	for (uint32_t i = 0; i < count; i++)
		answers += (json_int_t)json_array_size(json_object_get(choices[i].report, "tokens"));
	return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", prompt, "completion_tokens",
	    answers, "total_tokens", prompt + answers, "prompt_tokens_details", "cached_tokens",
	    found);
}

/* The report without what the answer says already, and without tokens that the client has. */
static json_t *own_part(const struct gw_answer *answer, const json_t *report)
{
	json_t *own = json_copy((json_t *)(uintptr_t)report), *tokens = json_array();
	const json_t *all = json_object_get(report, "tokens");

	for (size_t i = answer->have_tokens; i < json_array_size(all); i++)
		json_array_append(tokens, json_array_get(all, i));
	json_object_set_new(own, "tokens", tokens);
	json_object_del(own, "text");
	json_object_del(own, "finish_reason");
	return own;
}

static json_t *last_choice(const struct gw_answer *answer, const struct gw_choice_view *choice)
{
	struct gw_choice_view ended = *choice;

	ended.text = "";
	ended.length = 0;
	if (!answer->chat) return choice_of(answer, &ended, "text", 0);
	return json_pack("{s:I, s:{}, s:o, s:o}", "index", (json_int_t)choice->index, "delta",
	    "logprobs", or_null(choice->logprobs), "finish_reason", finish_reason(choice->finish));
}

void gw_answer_last(struct kv_text_buffer *out, const struct gw_answer *answer,
    const struct gw_choice_view *choice, json_t *usage)
{
	put_event(out, envelope(answer, chunk_name(answer), list_of(last_choice(answer, choice)), usage,
	                   own_part(answer, choice->report)));
}

void gw_answer_end(struct kv_text_buffer *out, const struct gw_answer *answer, json_t *usage)
{
	/* The one event without a choice. */
	if (usage != NULL)
		put_event(out, envelope(answer, chunk_name(answer), json_array(), usage, NULL));
	kv_text_put(out, "data: [DONE]\n\n");
}

void gw_answer_whole(struct kv_text_buffer *out, const struct gw_answer *answer,
    const struct gw_choice_view *choices, uint32_t count, json_t *usage)
{
	json_t *list = json_array(), *own = json_array();

	for (uint32_t i = 0; i < count; i++) {
		json_array_append_new(list, choice_of(answer, &choices[i], "message", 1));
		json_array_append_new(own, own_part(answer, choices[i].report));
	}
	if (count == 1) {
		json_t *one = json_incref(json_array_get(own, 0));

		json_decref(own);
		own = one;
	} else {
		own = json_pack("{s:o}", "choices", own);
	}
	put_json(out,
	    envelope(answer, answer->chat ? "chat.completion" : "text_completion", list, usage, own));
	kv_text_put(out, "\n");
}

struct gw_http_error gw_http_error_of(enum kv_status status, int by_engine)
{
	static const char bad[] = "invalid_request_error", broken[] = "server_error";
	const struct gw_http_error full = {503, broken, "store_full"};
	const struct gw_http_error large = {503, broken, "worker_memory"};
	const struct gw_http_error model = {404, bad, "model_not_found"};
	const struct gw_http_error held = {409, bad, "sequence_in_use"};
	static const struct {
		enum kv_status status;
		struct gw_http_error error;
	} table[] = {
	    {KV_INVALID, {400, bad, NULL}},
	    {KV_LIMIT, {400, bad, "context_length_exceeded"}},
	    {KV_UNSUPPORTED, {400, bad, "unsupported"}},
	    {KV_NOT_FOUND, {404, bad, "sequence_not_found"}},
	    {KV_EXISTS, {409, bad, "sequence_in_use"}},
	    {KV_REFUSED, {409, bad, "sequence_refused"}},
	    {KV_BUSY, {429, "rate_limit_error", "too_many_requests"}},
	    {KV_STALE, {503, broken, "store_lost"}},
	    {KV_DISCONNECTED, {503, broken, "store_unavailable"}},
	    {KV_TIMEOUT, {503, broken, "store_timeout"}},
	    {KV_CANCELLED, {503, broken, "stopping"}},
	    {KV_DRAINING, {503, broken, "store_draining"}},
	    {KV_TOO_LARGE, {400, bad, "store_too_small"}},
	};

	/* Before the engine only a model can be looked for. */
	if (!by_engine && status == KV_NOT_FOUND) return model;
	if (by_engine && status == KV_LIMIT) return full;
	if (by_engine && status == KV_NO_MEMORY) return large;
	if (by_engine && status == KV_BUSY) return held;
	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
		if (table[i].status == status) return table[i].error;
	return (struct gw_http_error){500, broken, NULL};
}

int gw_error_param(
    const struct gw_http_error *error, const char *message, char param[GW_PARAM_BYTES])
{
	static const struct {
		const char *name, *field;
	} named[] = {{"model_not_found", "model"}, {"sequence_not_found", "resume"},
	    {"sequence_refused", "resume"}};
	/* As names are shown in messages: those of unknown fields may be anything. */
	size_t word = strcspn(message, " ");

	for (size_t i = 0; error->name != NULL && i < sizeof named / sizeof named[0]; i++) {
		if (strcmp(error->name, named[i].name) != 0) continue;
		strcpy(param, named[i].field);
		return 1;
	}
	if (error->code != 400 || word < 2 || word > GW_PARAM_BYTES || message[word] == '\0' ||
	    message[word - 1] != ':')
		return 0;
	memcpy(param, message, word - 1);
	param[word - 1] = '\0';
	return 1;
}

void gw_error_body(struct kv_text_buffer *out, const struct gw_http_error *error,
    const char *message, const char *sequence, int event)
{
	json_t *text = json_string(message);
	char param[GW_PARAM_BYTES];
	json_t *body;

	/* A message may quote what the client sent. */
	if (text == NULL) text = json_string("the request failed");
	body = json_pack("{s:{s:o, s:s, s:s?, s:s?}}", "error", "message", text, "type", error->type,
	    "param", gw_error_param(error, message, param) ? param : NULL, "code", error->name);
	if (sequence[0] != '\0')
		json_object_set_new(body, "clusterkv", json_pack("{s:s}", "sequence", sequence));
	if (!event) {
		put_json(out, body);
		kv_text_put(out, "\n");
		return;
	}
	put_event(out, body);
	kv_text_put(out, "data: [DONE]\n\n");
}
