#include "gpu-worker/server/http_request.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "gpu-worker/server/http_json.h"

/* What is absent or null keeps the value that it has. */
static json_t *field(const json_t *body, const char *name)
{
	json_t *value = json_object_get(body, name);

	return json_is_null(value) ? NULL : value;
}

/* A message begins with the field that is wrong: error bodies name it by that. */
static enum kv_status of_field(const char *name, enum kv_status status)
{
	return status == KV_INVALID || status == KV_LIMIT ? kv_fail_prefix(status, "%s", name) : status;
}

static enum kv_status wrong_type(const char *name, const char *expected)
{
	return kv_fail(KV_INVALID, "%s: must be %s", name, expected);
}

static enum kv_status read_flag(const json_t *body, const char *name, int *flag)
{
	const json_t *value = field(body, name);

	if (value == NULL) return KV_OK;
	if (!json_is_boolean(value)) return wrong_type(name, "true or false");
	*flag = json_is_true(value);
	return KV_OK;
}

static enum kv_status read_integer(
    const json_t *body, const char *name, json_int_t least, json_int_t most, json_int_t *number)
{
	const json_t *value = field(body, name);

	if (value == NULL) return KV_OK;
	if (!json_is_integer(value)) return wrong_type(name, "an integer");
	if (json_integer_value(value) < least || json_integer_value(value) > most)
		return kv_fail(KV_INVALID, "%s: %lld is out of range, must be %lld to %lld", name,
		    (long long)json_integer_value(value), (long long)least, (long long)most);
	*number = json_integer_value(value);
	return KV_OK;
}

static enum kv_status read_u32(const json_t *body, const char *name, uint32_t least, uint32_t *out)
{
	json_int_t number = *out;

	KV_TRY(read_integer(body, name, least, UINT32_MAX, &number));
	*out = (uint32_t)number;
	return KV_OK;
}

/* `range` for the message; the sampler judges what a float can hold. */
static enum kv_status read_real(const json_t *body, const char *name, const char *range, float *out)
{
	const json_t *value = field(body, name);

	if (value == NULL) return KV_OK;
	if (!json_is_number(value)) return wrong_type(name, "a number");
	if (fabs(json_number_value(value)) > (double)FLT_MAX)
		return kv_fail(KV_INVALID, "%s: %g is out of range; use a value %s", name,
		    json_number_value(value), range);
	*out = (float)json_number_value(value);
	return KV_OK;
}

static enum kv_status read_id(const json_t *body, const char *name, const char **id)
{
	const json_t *value = field(body, name);

	if (value == NULL) return KV_OK;
	if (!json_is_string(value)) return wrong_type(name, "a string");
	if (gw_sequence_id_check(json_string_value(value), json_string_length(value)) != KV_OK)
		return kv_fail_prefix(KV_INVALID, "%s", name);
	*id = json_string_value(value);
	return KV_OK;
}

static enum kv_status add_stop(struct gw_http_request *request, const json_t *value)
{
	if (!json_is_string(value)) return wrong_type("stop", "a string or an array of strings");
	if (request->session.stop_count == GW_MAX_STOPS)
		return kv_fail(KV_INVALID, "stop: at most %d texts", GW_MAX_STOPS);
	if (json_string_length(value) == 0 || json_string_length(value) > GW_MAX_STOP_BYTES)
		return kv_fail(KV_INVALID, "stop: a text has 1 to %d bytes, not %zu", GW_MAX_STOP_BYTES,
		    json_string_length(value));
	request->stops[request->session.stop_count++] = json_string_value(value);
	return KV_OK;
}

static enum kv_status read_stops(struct gw_http_request *request)
{
	const json_t *value = field(request->body, "stop");

	if (value == NULL) return KV_OK;
	if (!json_is_array(value)) return add_stop(request, value);
	for (size_t i = 0; i < json_array_size(value); i++)
		KV_TRY(add_stop(request, json_array_get(value, i)));
	return KV_OK;
}

static enum kv_status read_sampling(const json_t *body, struct gw_sampler_options *sampling)
{
	struct gw_sampler sampler;
	json_int_t seed = 0;

	sampling->temperature = 1.0F;
	sampling->top_p = 1.0F;
	KV_TRY(read_real(body, "temperature", "from 0 to 100", &sampling->temperature));
	KV_TRY(read_real(body, "top_p", "over 0 and at most 1", &sampling->top_p));
	KV_TRY(read_u32(body, "top_k", 0, &sampling->top_k));
	KV_TRY(read_real(body, "min_p", "from 0 to 1", &sampling->min_p));
	KV_TRY(read_real(body, "frequency_penalty", "from -2 to 2", &sampling->frequency_penalty));
	KV_TRY(read_real(body, "presence_penalty", "from -2 to 2", &sampling->presence_penalty));
	KV_TRY(read_integer(body, "seed", INT64_MIN, INT64_MAX, &seed));
	sampling->seed = field(body, "seed") != NULL ? (uint64_t)seed : kv_random_entropy();
	return gw_sampler_init(&sampler, sampling);
}

/* A chat says whether, and how many others beside each; a completion says how many others. */
static enum kv_status read_logprobs(struct gw_http_request *request)
{
	const json_t *body = request->body, *value = field(body, "logprobs");
	json_int_t others = 0;

	if (request->chat) {
		KV_TRY(read_flag(body, "logprobs", &request->logprobs));
		KV_TRY(read_integer(body, "top_logprobs", 0, GW_MAX_TOP_LOGPROBS, &others));
		if (others > 0 && !request->logprobs)
			return kv_fail(KV_INVALID, "top_logprobs: goes with logprobs true only");
	} else if (!json_is_false(value)) {
		KV_TRY(read_integer(body, "logprobs", 0, GW_MAX_TOP_LOGPROBS, &others));
		request->logprobs = value != NULL;
	}
	request->session.top_logprobs = (uint32_t)others;
	if (request->logprobs && request->session.resume_id != NULL)
		return kv_fail(
		    KV_INVALID, "logprobs: those of a resumed sequence went with its worker; leave it out");
	return KV_OK;
}

static enum kv_status read_choices(struct gw_http_request *request)
{
	json_int_t choices = 1;

	KV_TRY(read_integer(request->body, "n", 1, GW_MAX_CHOICES, &choices));
	request->choices = (uint32_t)choices;
	if (choices > 1 && (request->session.sequence_id != NULL || request->session.resume_id != NULL))
		return kv_fail(KV_INVALID, "n: %lld answers cannot share a sequence; leave %s out",
		    (long long)choices, request->session.resume_id != NULL ? "resume" : "sequence");
	return KV_OK;
}

static const char PROMPT_FORMS[] = "a string, an array of token ids, or a list of these";

static enum kv_status read_token_ids(struct gw_http_request *request,
    const struct gw_http_model *model, const char *name, const json_t *prompt)
{
	size_t count = json_array_size(prompt);
	json_int_t id;

	if (count > model->context)
		return kv_fail(KV_LIMIT, "%s: %zu tokens, but this model's context is %u", name, count,
		    model->context);
	if (count == 0) return KV_OK;
	request->tokens = kv_alloc_array(request->allocator, count, sizeof *request->tokens);
	if (request->tokens == NULL) return KV_NO_MEMORY;
	for (size_t i = 0; i < count; i++) {
		const json_t *value = json_array_get(prompt, i);

		if (!json_is_integer(value))
			return wrong_type(name, "made of token ids, which are integers");
		id = json_integer_value(value);
		if (id < 0 || id >= (json_int_t)model->vocabulary)
			return kv_fail(KV_INVALID,
			    "%s: token %lld at position %zu is outside the vocabulary of %u", name,
			    (long long)id, i, model->vocabulary);
		request->tokens[i] = (int32_t)id;
	}
	request->session.token_count = (uint32_t)count;
	return KV_OK;
}

/* 0 when it is a prompt and no list of them. */
static size_t prompts_in(const json_t *prompt)
{
	const json_t *first = json_array_get(prompt, 0);

	return json_is_string(first) || json_is_array(first) ? json_array_size(prompt) : 0;
}

/* The one prompt that there is, in a list or not. */
static enum kv_status read_prompt(struct gw_http_request *request,
    const struct gw_http_model *model, const json_t *prompt, int parse_special, int bos)
{
	if (prompt == NULL) return kv_fail(KV_INVALID, "prompt: is missing");
	if (prompts_in(prompt) > 1)
		return kv_fail(KV_INVALID, "prompt: a list of %zu prompts; here goes one",
		    json_array_size(prompt));
	if (prompts_in(prompt) == 1) prompt = json_array_get(prompt, 0);
	if (json_is_array(prompt)) return read_token_ids(request, model, "prompt", prompt);
	if (!json_is_string(prompt)) return wrong_type("prompt", PROMPT_FORMS);
	return of_field("prompt",
	    gw_tokenizer_encode(model->tokenizer, request->allocator, json_string_value(prompt),
	        json_string_length(prompt), parse_special, bos, &request->tokens,
	        &request->session.token_count));
}

static enum kv_status check_list(
    const struct gw_http_request *request, const json_t *list, size_t count)
{
	if (count * request->choices > GW_MAX_ANSWERS)
		return kv_fail(KV_INVALID,
		    "prompt: %zu prompts with %u answers each are more than %d answers; send several "
		    "requests",
		    count, request->choices, (int)GW_MAX_ANSWERS);
	if (request->session.sequence_id != NULL)
		return kv_fail(KV_INVALID,
		    "sequence: %zu prompts cannot share a sequence; leave it out", count);
	for (size_t i = 0; i < count; i++)
		if (prompts_in(json_array_get(list, i)) > 0)
			return wrong_type("prompt", PROMPT_FORMS);
	return KV_OK;
}

/* One prompt, or several with an answer to each. */
static enum kv_status read_prompts(
    struct gw_http_request *request, const struct gw_http_model *model, int parse_special)
{
	const json_t *list = field(request->body, "prompt");
	size_t count = prompts_in(list);

	if (count <= 1) return read_prompt(request, model, list, parse_special, 1);
	KV_TRY(check_list(request, list, count));
	request->prompts = kv_alloc_array_zero(request->allocator, count, sizeof *request->prompts);
	if (request->prompts == NULL) return KV_NO_MEMORY;
	request->prompt_count = (uint32_t)count;
	for (size_t i = 0; i < count; i++) {
		struct gw_http_prompt *prompt = &request->prompts[i];

		request->session.token_count = 0;
		KV_TRY(read_prompt(request, model, json_array_get(list, i), parse_special, 1));
		prompt->tokens = request->tokens;
		prompt->count = request->session.token_count;
		request->tokens = NULL;
	}
	return KV_OK;
}

/* The content of a message: a text, or parts that are all text. *joined is owned by the caller. */
static enum kv_status read_content(
    struct kv_allocator *allocator, const json_t *content, size_t message, char **joined)
{
	size_t length = 0, parts = json_array_size(content);
	char *text;

	if (json_is_string(content)) {
		*joined = kv_strdup(allocator, json_string_value(content));
		return *joined != NULL ? KV_OK : KV_NO_MEMORY;
	}
	if (!json_is_array(content))
		return kv_fail(KV_INVALID, "messages: content of message %zu must be a string", message);
	for (size_t i = 0; i < parts; i++) {
		const json_t *part = json_array_get(content, i);
		const char *type = json_string_value(json_object_get(part, "type"));

		if (type == NULL || strcmp(type, "text") != 0 ||
		    !json_is_string(json_object_get(part, "text")))
			return kv_fail(KV_INVALID,
			    "messages: content of message %zu must be a string or parts of type text", message);
		KV_TRY(gw_fields_check(part, GW_FIELDS_PART, "a part of a message's content"));
		length += json_string_length(json_object_get(part, "text"));
	}
	text = kv_alloc(allocator, length + 1);
	if (text == NULL) return KV_NO_MEMORY;
	length = 0;
	for (size_t i = 0; i < parts; i++) {
		const json_t *part = json_object_get(json_array_get(content, i), "text");

		memcpy(text + length, json_string_value(part), json_string_length(part));
		length += json_string_length(part);
	}
	text[length] = '\0';
	*joined = text;
	return KV_OK;
}

static enum kv_status read_message(struct kv_allocator *allocator, const json_t *message,
    size_t number, struct gw_chat_message *out, char **content)
{
	const json_t *role = json_object_get(message, "role");

	if (!json_is_object(message) || !json_is_string(role))
		return kv_fail(KV_INVALID,
		    "messages: message %zu must be an object with a role and a content", number);
	KV_TRY(gw_fields_check(message, GW_FIELDS_MESSAGE, "a message"));
	KV_TRY(read_content(allocator, json_object_get(message, "content"), number, content));
	/* What OpenAI calls the system's role today. */
	out->role =
	    strcmp(json_string_value(role), "developer") == 0 ? "system" : json_string_value(role);
	out->content = *content;
	return KV_OK;
}

static enum kv_status read_messages(
    struct gw_http_request *request, const struct gw_http_model *model)
{
	const json_t *list = field(request->body, "messages");
	size_t count = json_array_size(list);
	struct gw_chat_message *messages;
	char **contents;
	enum kv_status status = KV_OK;

	if (list == NULL) return kv_fail(KV_INVALID, "messages: is missing");
	if (!json_is_array(list) || count == 0 || count > UINT32_MAX)
		return wrong_type("messages", "an array of at least one message");
	messages = kv_alloc_array_zero(request->allocator, count, sizeof *messages);
	contents = kv_alloc_array_zero(request->allocator, count, sizeof *contents);
	if (messages == NULL || contents == NULL) status = KV_NO_MEMORY;
	for (size_t i = 0; status == KV_OK && i < count; i++)
		status = read_message(
		    request->allocator, json_array_get(list, i), i + 1, &messages[i], &contents[i]);
	if (status == KV_OK)
		status = of_field("messages",
		    gw_chat_encode(model->chat_format, model->tokenizer, request->allocator, messages,
		        (unsigned)count, 1, &request->tokens, &request->session.token_count));
	for (size_t i = 0; contents != NULL && i < count; i++)
		kv_free(request->allocator, contents[i]);
	kv_free(request->allocator, contents);
	kv_free(request->allocator, messages);
	return status;
}

/* Does it fit? The default is what fits, up to a limit. */
static enum kv_status fit(struct gw_http_request *request, const struct gw_http_model *model)
{
	uint32_t prompt = request->session.token_count, room;

	if (prompt == 0) return kv_fail(KV_INVALID, "prompt: is empty, must be at least one token");
	if (prompt >= model->context)
		return kv_fail(KV_LIMIT,
		    "%s: %u tokens leave no room for an answer, this model's context is %u; shorten the "
		    "prompt",
		    request->chat ? "messages" : "prompt", prompt, model->context);
	room = model->context - prompt;
	if (request->session.max_tokens == 0)
		request->session.max_tokens =
		    room < GW_DEFAULT_ANSWER_TOKENS ? room : GW_DEFAULT_ANSWER_TOKENS;
	if (request->session.max_tokens > room)
		return kv_fail(KV_LIMIT,
		    "max_tokens: %u behind a prompt of %u tokens, but this model's context is %u; shorten "
		    "the prompt or lower max_tokens to at most %u",
		    request->session.max_tokens, prompt, model->context, room);
	return KV_OK;
}

/* The same for each of a list. */
static enum kv_status fit_all(struct gw_http_request *request, const struct gw_http_model *model)
{
	uint32_t asked = request->session.max_tokens;

	if (request->prompts == NULL) return fit(request, model);
	for (uint32_t i = 0; i < request->prompt_count; i++) {
		request->session.token_count = request->prompts[i].count;
		request->session.max_tokens = asked;
		KV_TRY(fit(request, model));
		request->prompts[i].max_tokens = request->session.max_tokens;
	}
	return KV_OK;
}

/* A stream tells records as they come; an answer that is told whole is built of all of them. */
static enum kv_status check_records(const struct gw_http_request *request)
{
	uint64_t tokens = request->prompts == NULL ? request->session.max_tokens : 0, entries;

	for (uint32_t i = 0; request->prompts != NULL && i < request->prompt_count; i++)
		tokens += request->prompts[i].max_tokens;
	entries = tokens * request->choices * (request->session.top_logprobs + 1);

	if (!request->logprobs || request->stream || entries <= GW_MAX_WHOLE_LOGPROBS) return KV_OK;
	return kv_fail(KV_INVALID,
	    "logprobs: %llu in one answer, at most %d; lower max_tokens, n or how many others are "
	    "shown, or take a stream",
	    (unsigned long long)entries, (int)GW_MAX_WHOLE_LOGPROBS);
}

static enum kv_status read_own_fields(const json_t *body, struct gw_session_request *session)
{
	KV_TRY(read_id(body, "sequence", &session->sequence_id));
	KV_TRY(read_id(body, "resume", &session->resume_id));
	KV_TRY(read_u32(body, "have_tokens", 0, &session->have_tokens));
	KV_TRY(read_flag(body, "logits_digest", &session->digest));
	KV_TRY(read_flag(body, "ignore_end", &session->ignore_end));
	if (session->sequence_id != NULL && session->resume_id != NULL)
		return kv_fail(KV_INVALID, "sequence: a resumed sequence keeps its id; leave it out");
	if (session->have_tokens > 0 && session->resume_id == NULL)
		return kv_fail(KV_INVALID, "have_tokens: goes with resume only");
	return KV_OK;
}

/* Every prompt has a token at least, so that the answer never has the whole context. */
static enum kv_status read_max_tokens(
    const json_t *body, const char *name, const struct gw_http_model *model, uint32_t *out)
{
	json_int_t number = *out;

	KV_TRY(read_integer(body, name, INT64_MIN, INT64_MAX, &number));
	if (field(body, name) == NULL) return KV_OK;
	if (number >= 1 && number < (json_int_t)model->context) {
		*out = (uint32_t)number;
		return KV_OK;
	}
	return kv_fail(number < 1 ? KV_INVALID : KV_LIMIT,
	    "%s: %lld is out of range, must be 1 to %u less the prompt's tokens: this model's context "
	    "is %u",
	    name, (long long)number, model->context, model->context);
}

static enum kv_status read_model(const json_t *body, const struct gw_http_model *model)
{
	const json_t *name = field(body, "model");

	if (name == NULL) return KV_OK;
	if (!json_is_string(name)) return wrong_type("model", "a string");
	if (strcmp(json_string_value(name), model->name) == 0) return KV_OK;
	return kv_fail(KV_NOT_FOUND,
	    "model: this worker serves %s and no other; name that, or leave the field out",
	    model->name);
}

static enum kv_status read_stream(struct gw_http_request *request)
{
	const json_t *options = field(request->body, "stream_options");

	KV_TRY(read_flag(request->body, "stream", &request->stream));
	if (options == NULL) return KV_OK;
	if (!json_is_object(options)) return wrong_type("stream_options", "an object");
	KV_TRY(gw_fields_check(options, GW_FIELDS_STREAM_OPTIONS, "stream_options"));
	return read_flag(options, "include_usage", &request->usage_event);
}

static enum kv_status read_fields(
    struct gw_http_request *request, const struct gw_http_model *model)
{
	const json_t *body = request->body;
	uint32_t *max_tokens = &request->session.max_tokens;
	int parse_special = 0;

	if (!json_is_object(body)) return kv_fail(KV_INVALID, "the body must be a JSON object");
	if (request->chat)
		KV_TRY(gw_fields_check(body, GW_FIELDS_CHAT, "/v1/chat/completions"));
	else
		KV_TRY(gw_fields_check(body, GW_FIELDS_COMPLETION, "/v1/completions"));
	if (field(body, "resume") != NULL) KV_TRY(gw_fields_check_resume(body));
	KV_TRY(read_model(body, model));
	KV_TRY(read_stream(request));
	KV_TRY(read_flag(body, "parse_special", &parse_special));
	KV_TRY(read_max_tokens(body, "max_tokens", model, max_tokens));
	if (request->chat) KV_TRY(read_max_tokens(body, "max_completion_tokens", model, max_tokens));
	KV_TRY(read_sampling(body, &request->session.sampling));
	request->seeded = field(body, "seed") != NULL;
	KV_TRY(read_stops(request));
	KV_TRY(read_own_fields(body, &request->session));
	KV_TRY(read_choices(request));
	KV_TRY(read_logprobs(request));
	/* A resumed sequence brings its prompt, its sampling and its end with it. */
	if (request->session.resume_id != NULL) return KV_OK;
	KV_TRY(request->chat ? read_messages(request, model)
	                     : read_prompts(request, model, parse_special));
	KV_TRY(fit_all(request, model));
	return check_records(request);
}

static enum kv_status read_tokenize(
    struct gw_http_request *request, const struct gw_http_model *model)
{
	const json_t *body = request->body;
	int parse_special = 0, bos = 1;

	KV_TRY(read_flag(body, "add_special_tokens", &bos));
	KV_TRY(read_flag(body, "parse_special", &parse_special));
	if (field(body, "messages") == NULL)
		return read_prompt(request, model, field(body, "prompt"), parse_special, bos);
	if (field(body, "prompt") != NULL)
		return kv_fail(KV_INVALID, "messages: goes without a prompt; leave one of them out");
	if (field(body, "add_special_tokens") != NULL || field(body, "parse_special") != NULL)
		return kv_fail(KV_INVALID, "%s: the chat's template decides for messages; leave it out",
		    field(body, "parse_special") != NULL ? "parse_special" : "add_special_tokens");
	return read_messages(request, model);
}

static enum kv_status read_detokenize(
    struct gw_http_request *request, const struct gw_http_model *model)
{
	const json_t *tokens = field(request->body, "tokens");

	if (!json_is_array(tokens)) return wrong_type("tokens", "an array of token ids");
	return read_token_ids(request, model, "tokens", tokens);
}

static enum kv_status load_body(struct gw_http_request *request, struct kv_allocator *allocator,
    const struct gw_http_model *model, const char *body, size_t length)
{
	memset(request, 0, sizeof *request);
	request->allocator = allocator;
	request->prompt_count = 1;
	return gw_json_load(body, length, (size_t)model->context + GW_JSON_MORE_VALUES, &request->body);
}

/* A request may wait and run for long: what was read of its body, or has no effect, goes now. A few
 * bytes of JSON are a hundred in memory. */
static void drop_what_was_read(json_t *body)
{
	static const char *const borrowed[] = {"stop", "sequence", "resume"};
	const char *name;
	json_t *value;
	void *next;

	json_object_foreach_safe(body, next, name, value)
	{
		bool keep = false;

		for (size_t i = 0; i < sizeof borrowed / sizeof borrowed[0]; i++)
			keep = keep || strcmp(name, borrowed[i]) == 0;
		if (!keep) json_object_del(body, name);
	}
}

enum kv_status gw_http_request_parse(struct gw_http_request *request,
    struct kv_allocator *allocator, const struct gw_http_model *model, int chat, const char *body,
    size_t length)
{
	enum kv_status status;

	KV_TRY(load_body(request, allocator, model, body, length));
	request->chat = chat;
	request->session.stops = request->stops;
	status = read_fields(request, model);
	request->session.tokens = request->tokens;
	if (status == KV_OK)
		drop_what_was_read(request->body);
	else
		gw_http_request_deinit(request);
	return status;
}

static enum kv_status read_tokens(
    struct gw_http_request *request, const struct gw_http_model *model, enum gw_field_place place)
{
	int encode = place == GW_FIELDS_TOKENIZE;

	if (!json_is_object(request->body))
		return kv_fail(KV_INVALID, "the body must be a JSON object");
	KV_TRY(gw_fields_check(request->body, place, encode ? "/tokenize" : "/detokenize"));
	KV_TRY(read_model(request->body, model));
	return encode ? read_tokenize(request, model) : read_detokenize(request, model);
}

enum kv_status gw_http_tokens_parse(struct gw_http_request *request, struct kv_allocator *allocator,
    const struct gw_http_model *model, enum gw_field_place place, const char *body, size_t length)
{
	enum kv_status status;

	KV_TRY(load_body(request, allocator, model, body, length));
	status = read_tokens(request, model, place);
	if (status != KV_OK) gw_http_request_deinit(request);
	return status;
}

void gw_http_request_deinit(struct gw_http_request *request)
{
	if (request->allocator == NULL) return;
	json_decref(request->body);
	kv_free(request->allocator, request->tokens);
	for (uint32_t i = 0; request->prompts != NULL && i < request->prompt_count; i++)
		kv_free(request->allocator, request->prompts[i].tokens);
	kv_free(request->allocator, request->prompts);
	request->prompts = NULL;
	request->body = NULL;
	request->tokens = NULL;
}
