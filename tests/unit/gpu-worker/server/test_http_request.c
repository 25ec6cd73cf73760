/* What gpu-worker/server/http_request.c makes of bodies, good and bad. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/server/http_completion.h"
#include "gpu-worker/server/http_request.h"
#include "tests/unit/gpu-worker/text/small_vocabulary.h"

enum { CONTEXT = 100 };

static struct gw_tokenizer *tokenizer;

static struct gw_http_model a_model(enum gw_chat_format format)
{
	struct gw_http_model model = {"small", 5, tokenizer, format, SMALL_COUNT, CONTEXT};

	return model;
}

static enum kv_status parse_as(struct gw_http_request *request, int chat, const char *body)
{
	struct gw_http_model model = a_model(GW_CHAT_CHATML);

	return gw_http_request_parse(request, kv_heap(), &model, chat, body, strlen(body));
}

static enum kv_status parse(struct gw_http_request *request, const char *body)
{
	return parse_as(request, 0, body);
}

static void refused(int chat, const char *body, enum kv_status expected, const char *named)
{
	struct gw_http_request request;
	enum kv_status status = parse_as(&request, chat, body);

	if (status != expected || strstr(kv_error_message(), named) == NULL)
		fail_msg("%s: %s \"%s\", expected %s naming \"%s\"", body, kv_status_text(status),
		    kv_error_message(), kv_status_text(expected), named);
}

/* `field` NULL: none is at fault. */
static void blames(int chat, const char *body, const char *field)
{
	char param[GW_PARAM_BYTES] = "";
	struct gw_http_request request;
	enum kv_status status = parse_as(&request, chat, body);
	const struct gw_http_error error = gw_http_error_of(status, 0);

	if (status == KV_OK) fail_msg("%s is taken", body);
	if (gw_error_param(&error, kv_error_message(), param) != (field != NULL) ||
	    strcmp(param, field != NULL ? field : "") != 0)
		fail_msg("%s: \"%s\" blames %s, not %s", body, kv_error_message(), param,
		    field != NULL ? field : "nothing");
}

static void the_field_that_is_wrong_is_named(void **state)
{
	(void)state;
	blames(0, "{", NULL);
	blames(0, "[]", NULL);
	blames(0, "{}", "prompt");
	blames(0, "{\"prompt\":5}", "prompt");
	blames(0, "{\"prompt\":[99999]}", "prompt");
	blames(0, "{\"prompt\":\"a\",\"temperature\":101}", "temperature");
	blames(0, "{\"prompt\":\"a\",\"temperature\":\"a: b\"}", "temperature");
	blames(0, "{\"prompt\":\"a\",\"top_p\":2}", "top_p");
	blames(0, "{\"prompt\":\"a\",\"min_p\":-1}", "min_p");
	blames(0, "{\"prompt\":\"a\",\"presence_penalty\":9}", "presence_penalty");
	blames(0, "{\"prompt\":\"hello hello\",\"max_tokens\":99}", "max_tokens");
	blames(0, "{\"prompt\":\"a\",\"n\":0}", "n");
	blames(0, "{\"prompt\":\"a\",\"stop\":[7]}", "stop");
	blames(0, "{\"prompt\":\"a\",\"logprobs\":21}", "logprobs");
	blames(0, "{\"prompt\":\"a\",\"have_tokens\":3}", "have_tokens");
	blames(0, "{\"prompt\":\"a\",\"sequence\":\"a b\"}", "sequence");
	blames(0, "{\"prompt\":\"a\",\"stream_options\":1}", "stream_options");
	blames(0, "{\"prompt\":\"a\",\"model\":\"b\"}", "model");
	blames(0, "{\"prompt\":\"a\",\"foo\":3}", "foo");
	blames(0, "{\"prompt\":\"a\",\"f o: o\":3}", "f?o:?o");
	blames(1, "{\"messages\":[]}", "messages");
	blames(1, "{\"messages\":[{\"role\":\"x\",\"content\":\"a\"}]}", "messages");
	blames(1, "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages");
	blames(1, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[1]}", "tools");
}

static void fills_every_field(void **state)
{
	static const char body[] = "{\"model\":\"small\",\"prompt\":\"hello\",\"max_tokens\":7,"
	                           "\"temperature\":0.5,\"top_p\":0.25,\"top_k\":3,\"seed\":-1,"
	                           "\"stop\":[\"a\",\"bc\"],\"stream\":true,\"sequence\":\"id-1\","
	                           "\"logits_digest\":true,\"ignore_end\":true,\"n\":1,\"echo\":false}";
	struct gw_http_request request;
	const struct gw_session_request *asked = &request.session;

	(void)state;
	assert_int_equal(parse(&request, body), KV_OK);
	assert_int_equal(request.stream, 1);
	assert_int_equal(asked->max_tokens, 7);
	assert_true(asked->sampling.temperature == 0.5F);
	assert_true(asked->sampling.top_p == 0.25F);
	assert_int_equal(asked->sampling.top_k, 3);
	assert_true(asked->sampling.seed == UINT64_MAX);
	assert_int_equal(asked->stop_count, 2);
	assert_string_equal(asked->stops[0], "a");
	assert_string_equal(asked->stops[1], "bc");
	assert_string_equal(asked->sequence_id, "id-1");
	assert_null(asked->resume_id);
	assert_int_equal(asked->digest, 1);
	assert_int_equal(asked->ignore_end, 1);
	assert_int_equal(asked->token_count, 1);
	assert_int_equal(asked->tokens[0], SMALL_HELLO);
	gw_http_request_deinit(&request);
}

static void has_defaults(void **state)
{
	struct gw_http_request request, other;

	(void)state;
	assert_int_equal(parse(&request, "{\"prompt\":\"hello\",\"seed\":null,\"stop\":null}"), KV_OK);
	assert_int_equal(parse(&other, "{\"prompt\":\"hello\"}"), KV_OK);
	assert_int_equal(request.stream, 0);
	/* What the context leaves is less than the default. */
	assert_int_equal(request.session.max_tokens, CONTEXT - 1);
	assert_true(request.session.sampling.temperature == 1.0F);
	assert_true(request.session.sampling.top_p == 1.0F);
	assert_int_equal(request.session.stop_count, 0);
	assert_true(request.session.sampling.seed != other.session.sampling.seed);
	gw_http_request_deinit(&request);
	gw_http_request_deinit(&other);
}

static void takes_token_ids_and_one_stop(void **state)
{
	struct gw_http_request request;

	(void)state;
	assert_int_equal(
	    parse(&request, "{\"prompt\":[1,256,0],\"stop\":\"end\",\"max_tokens\":97}"), KV_OK);
	assert_int_equal(request.session.token_count, 3);
	assert_int_equal(request.session.tokens[1], 256);
	assert_int_equal(request.session.stop_count, 1);
	assert_string_equal(request.session.stops[0], "end");
	gw_http_request_deinit(&request);
}

static void takes_a_list_of_prompts(void **state)
{
	struct gw_http_request request;

	(void)state;
	assert_int_equal(parse(&request, "{\"prompt\":[\"<|im_end|>\",[1,2,3]],\"n\":2,"
	                                 "\"parse_special\":true}"),
	    KV_OK);
	assert_int_equal(request.prompt_count, 2);
	assert_int_equal(request.choices, 2);
	assert_int_equal(request.prompts[0].count, 1);
	assert_int_equal(request.prompts[0].tokens[0], SMALL_END);
	assert_int_equal(request.prompts[1].count, 3);
	assert_int_equal(request.prompts[1].tokens[2], 3);
	/* What fits behind each. */
	assert_int_equal(request.prompts[0].max_tokens, request.prompts[1].max_tokens + 2);
	gw_http_request_deinit(&request);
	assert_int_equal(parse(&request, "{\"prompt\":[[1,2]]}"), KV_OK);
	assert_int_equal(request.prompt_count, 1);
	assert_null(request.prompts);
	assert_int_equal(request.session.token_count, 2);
	gw_http_request_deinit(&request);
}

static void marks_are_special_only_where_asked(void **state)
{
	struct gw_http_request request;

	(void)state;
	assert_int_equal(parse(&request, "{\"prompt\":\"<|im_end|>\",\"parse_special\":true}"), KV_OK);
	assert_int_equal(request.session.token_count, 1);
	assert_int_equal(request.session.tokens[0], SMALL_END);
	gw_http_request_deinit(&request);
	assert_int_equal(parse(&request, "{\"prompt\":\"<|im_end|>\"}"), KV_OK);
	assert_true(request.session.token_count > 1);
	gw_http_request_deinit(&request);
}

static void resume_needs_no_prompt(void **state)
{
	struct gw_http_request request;

	(void)state;
	assert_int_equal(parse(&request, "{\"resume\":\"abc\",\"have_tokens\":4}"), KV_OK);
	assert_string_equal(request.session.resume_id, "abc");
	assert_int_equal(request.session.have_tokens, 4);
	assert_int_equal(request.session.token_count, 0);
	gw_http_request_deinit(&request);
	refused(0, "{\"resume\":\"abc\",\"sequence\":\"d\"}", KV_INVALID, "sequence");
	refused(0, "{\"prompt\":\"a\",\"have_tokens\":4}", KV_INVALID, "have_tokens");
}

static void names_the_wrong_field(void **state)
{
	static const char *const bad[][2] = {
	    {"{\"prompt\":5}", "prompt"},
	    {"{}", "prompt"},
	    {"{\"prompt\":\"\"}", "prompt"},
	    {"{\"prompt\":[]}", "prompt"},
	    {"{\"prompt\":[\"a\",\"\"]}", "empty"},
	    {"{\"prompt\":[[1],[]]}", "empty"},
	    {"{\"prompt\":[\"a\",[\"b\"]]}", "prompt"},
	    {"{\"prompt\":[[1],2]}", "prompt"},
	    {"{\"prompt\":[[1],[2]],\"sequence\":\"x\"}", "2 prompts cannot share"},
	    {"{\"prompt\":[[1],[2],[3],[4],[5],[6],[7],[8],[9]],\"n\":15}", "9 prompts with 15"},
	    {"{\"prompt\":[[[1]]]}", "prompt"},
	    {"{\"prompt\":[1,\"a\"]}", "prompt"},
	    {"{\"prompt\":[true]}", "prompt"},
	    {"{\"prompt\":[1.5]}", "prompt"},
	    {"{\"prompt\":[-1]}", "-1"},
	    {"{\"prompt\":[99999]}", "99999"},
	    {"{\"prompt\":\"a\",\"model\":1}", "model"},
	    {"{\"prompt\":\"a\",\"max_tokens\":\"1\"}", "max_tokens"},
	    {"{\"prompt\":\"a\",\"max_tokens\":1.5}", "max_tokens"},
	    {"{\"prompt\":\"a\",\"max_tokens\":0}", "max_tokens"},
	    {"{\"prompt\":\"a\",\"max_tokens\":-1}", "max_tokens"},
	    {"{\"prompt\":\"a\",\"temperature\":\"hot\"}", "temperature"},
	    {"{\"prompt\":\"a\",\"temperature\":-1}", "temperature"},
	    {"{\"prompt\":\"a\",\"temperature\":1e9}", "temperature"},
	    {"{\"prompt\":\"a\",\"temperature\":1e300}", "temperature: 1e+300"},
	    {"{\"prompt\":\"a\",\"top_p\":true}", "top_p"},
	    {"{\"prompt\":\"a\",\"top_p\":0}", "top_p"},
	    {"{\"prompt\":\"a\",\"top_k\":-1}", "top_k"},
	    {"{\"prompt\":\"a\",\"seed\":\"x\"}", "seed"},
	    {"{\"prompt\":\"a\",\"stop\":5}", "stop"},
	    {"{\"prompt\":\"a\",\"stop\":[5]}", "stop"},
	    {"{\"prompt\":\"a\",\"stop\":\"\"}", "stop"},
	    {"{\"prompt\":\"a\",\"stream\":\"yes\"}", "stream"},
	    {"{\"prompt\":\"a\",\"sequence\":7}", "sequence"},
	    {"{\"prompt\":\"a\",\"sequence\":\"\"}", "sequence"},
	    {"{\"prompt\":\"a\",\"sequence\":\"a b\"}", "sequence"},
	    {"{\"prompt\":\"a\",\"resume\":false}", "resume"},
	    {"{\"prompt\":\"a\",\"parse_special\":1}", "parse_special"},
	    {"{\"prompt\":\"a\",\"logits_digest\":1}", "logits_digest"},
	    {"{\"prompt\":\"a\",\"ignore_end\":1}", "ignore_end"},
	    {"{\"prompt\":\"a\",\"have_tokens\":-1}", "have_tokens"},
	    {"{\"prompt\":\"a\",\"n\":0}", "n:"},
	    {"[1]", "object"},
	    {"", "JSON"},
	    {"{\"prompt\":\"a\"", "JSON"},
	    {"{\"prompt\":\"a\"} x", "JSON"},
	    {"{\"prompt\":\"a\",\"prompt\":\"b\"}", "JSON"},
	    {"{\"prompt\":\"\\u0000\"}", "JSON"},
	    {"{\"prompt\":\"\xff\"}", "JSON"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		refused(0, bad[i][0], KV_INVALID, bad[i][1]);
}

static void takes_a_list_with_one_prompt(void **state)
{
	struct gw_http_request request;

	(void)state;
	assert_int_equal(parse(&request, "{\"prompt\":[\"hello\"]}"), KV_OK);
	assert_int_equal(request.session.token_count, 1);
	assert_int_equal(request.session.tokens[0], SMALL_HELLO);
	gw_http_request_deinit(&request);
	assert_int_equal(parse(&request, "{\"prompt\":[[1,256,0]]}"), KV_OK);
	assert_int_equal(request.session.token_count, 3);
	gw_http_request_deinit(&request);
}

static void only_the_served_model_is_found(void **state)
{
	(void)state;
	refused(0, "{\"prompt\":\"a\",\"model\":\"gpt-5\"}", KV_NOT_FOUND, "small");
	refused(0, "{\"prompt\":\"a\",\"model\":\"\"}", KV_NOT_FOUND, "small");
}

/* A field with a value, in a body that is good without it. */
static const char *body_with(int chat, const char *name, const char *value)
{
	static char body[512];

	snprintf(body, sizeof body, "{%s,\"%s\":%s}",
	    chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]" : "\"prompt\":\"hello\"",
	    name, value);
	return body;
}

static void takes_fields_that_change_nothing(void **state)
{
	static const struct {
		int completion, chat;
		const char *name, *value;
	} fields[] = {
	    {1, 1, "n", "1"},
	    {1, 0, "best_of", "1"},
	    {1, 0, "echo", "false"},
	    {1, 0, "suffix", "null"},
	    {1, 0, "suffix", "\"\""},
	    {1, 1, "logprobs", "null"},
	    {1, 1, "logprobs", "false"},
	    {0, 1, "top_logprobs", "0"},
	    {1, 1, "logit_bias", "{}"},
	    {1, 1, "frequency_penalty", "0"},
	    {1, 1, "frequency_penalty", "0.0"},
	    {1, 1, "presence_penalty", "-0.0"},
	    {1, 1, "user", "\"u\""},
	    {1, 1, "metadata", "{\"a\":\"b\"}"},
	    {1, 1, "store", "false"},
	    {1, 1, "service_tier", "\"auto\""},
	    {0, 1, "tools", "[]"},
	    {0, 1, "tools", "null"},
	    {0, 1, "tool_choice", "\"none\""},
	    {0, 1, "parallel_tool_calls", "true"},
	    {0, 1, "response_format", "{\"type\":\"text\"}"},
	    {0, 1, "modalities", "[\"text\"]"},
	    {0, 1, "audio", "null"},
	    {1, 1, "stream_options", "null"},
	    {1, 1, "stream_options", "{\"include_usage\":true,\"include_obfuscation\":false}"},
	};
	struct gw_http_request request;

	(void)state;
	for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
		for (int chat = 0; chat <= 1; chat++) {
			const char *body = body_with(chat, fields[i].name, fields[i].value);

			if (chat ? !fields[i].chat : !fields[i].completion) continue;
			if (parse_as(&request, chat, body) != KV_OK)
				fail_msg("%s: %s", body, kv_error_message());
			gw_http_request_deinit(&request);
		}
}

static void refuses_fields_that_it_would_ignore(void **state)
{
	static const struct {
		int chat;
		const char *name, *value, *named;
	} fields[] = {
	    {0, "foo", "3", "foo"},
	    {1, "foo", "null", "foo"},
	    {0, "messages", "[]", "messages: is not a field of /v1/completions"},
	    {1, "prompt", "\"a\"", "prompt: is not a field of /v1/chat/completions"},
	    {0, "max_completion_tokens", "3", "max_completion_tokens"},
	    {0, "logprobs", "21", "logprobs: 21"},
	    {0, "logprobs", "-1", "logprobs: -1"},
	    {0, "logprobs", "true", "logprobs: must be an integer"},
	    {1, "logprobs", "1", "logprobs: must be true or false"},
	    {1, "top_logprobs", "5", "top_logprobs: goes with logprobs"},
	    {1, "top_logprobs", "21", "top_logprobs: 21"},
	    {0, "echo", "true", "echo: true"},
	    {0, "best_of", "2", "best_of: 2"},
	    {1, "n", "17", "n: 17"},
	    {1, "n", "\"1\"", "n: must be an integer"},
	    {1, "n", "1.5", "n: must be an integer"},
	    {0, "suffix", "\"x\"", "suffix: \"x\""},
	    {0, "logit_bias", "{\"5\":1}", "logit_bias: {\"5\":1}"},
	    {1, "frequency_penalty", "2.5", "frequency_penalty: 2.5"},
	    {1, "frequency_penalty", "false", "frequency_penalty: must be a number"},
	    {0, "presence_penalty", "-2.1", "presence_penalty: -2.1"},
	    {0, "min_p", "1.5", "min_p: 1.5"},
	    {1, "tools", "[{\"type\":\"function\"}]", "tools: [{"},
	    {1, "tool_choice", "\"required\"", "tool_choice: \"required\""},
	    {1, "response_format", "{\"type\":\"json_object\"}", "response_format: {"},
	    {1, "response_format", "{\"type\":\"text\",\"a\":1}", "response_format: {"},
	    {1, "modalities", "[\"text\",\"audio\"]", "modalities: ["},
	    {1, "audio", "{}", "audio: {}"},
	    {1, "store", "true", "store: true"},
	    {1, "service_tier", "\"priority\"", "service_tier: \"priority\""},
	    {1, "stream_options", "true", "stream_options"},
	    {1, "stream_options", "{\"include_usage\":1}", "include_usage"},
	    {1, "stream_options", "{\"include_obfuscation\":true}", "include_obfuscation: true"},
	    {1, "stream_options", "{\"foo\":1}", "foo: is not a field of stream_options"},
	    {0, "\u00e4\\n", "1", "??"},
	};
	char body[512];

	(void)state;
	for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
		refused(fields[i].chat, body_with(fields[i].chat, fields[i].name, fields[i].value),
		    KV_INVALID, fields[i].named);
	/* Long names and values are cut. */
	snprintf(body, sizeof body, "{\"prompt\":\"a\",\"suffix\":\"%0200d\"}", 0);
	refused(0, body, KV_INVALID, "00... is not supported");
	snprintf(body, sizeof body, "{\"prompt\":\"a\",\"%0200d\":1}", 0);
	refused(0, body, KV_INVALID, "00...: is not a field");
}

static void takes_what_shapes_an_answer(void **state)
{
	struct gw_http_request request;

	(void)state;
	assert_int_equal(parse(&request, "{\"prompt\":\"a\",\"n\":3,\"logprobs\":2,\"min_p\":0.25,"
	                                 "\"frequency_penalty\":-0.5,\"presence_penalty\":2}"),
	    KV_OK);
	assert_int_equal(request.choices, 3);
	assert_int_equal(request.logprobs, 1);
	assert_int_equal(request.session.top_logprobs, 2);
	assert_true(request.session.sampling.min_p == 0.25F);
	assert_true(request.session.sampling.frequency_penalty == -0.5F);
	assert_true(request.session.sampling.presence_penalty == 2.0F);
	gw_http_request_deinit(&request);
	/* 0 asks for the answer's own tokens, and no others. */
	assert_int_equal(parse(&request, "{\"prompt\":\"a\",\"logprobs\":0}"), KV_OK);
	assert_int_equal(request.logprobs, 1);
	assert_int_equal(request.choices, 1);
	gw_http_request_deinit(&request);
	assert_int_equal(parse_as(&request, 1,
	                     "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
	                     "\"logprobs\":true,\"top_logprobs\":20}"),
	    KV_OK);
	assert_int_equal(request.logprobs, 1);
	assert_int_equal(request.session.top_logprobs, 20);
	gw_http_request_deinit(&request);
	refused(0, "{\"prompt\":\"a\",\"n\":2,\"sequence\":\"s\"}", KV_INVALID, "leave sequence out");
	refused(0, "{\"resume\":\"s\",\"n\":2}", KV_INVALID, "leave resume out");
	refused(0, "{\"resume\":\"s\",\"logprobs\":2}", KV_INVALID, "logprobs");
}

/* Before anything is computed: what the answer would be built of. */
static void refuses_more_log_probabilities_than_an_answer_holds(void **state)
{
	static const struct {
		const char *body;
		enum kv_status status;
	} bodies[] = {
	    {"\"max_tokens\":12483,\"logprobs\":20", KV_OK},
	    {"\"max_tokens\":12484,\"logprobs\":20", KV_INVALID},
	    {"\"max_tokens\":12484,\"logprobs\":20,\"stream\":true", KV_OK},
	    {"\"max_tokens\":12484", KV_OK},
	    {"\"max_tokens\":16384,\"logprobs\":0,\"n\":16", KV_OK},
	    {"\"max_tokens\":16385,\"logprobs\":0,\"n\":16", KV_INVALID},
	    {"\"logprobs\":20,\"n\":16", KV_OK},
	    {"\"max_tokens\":3999999999,\"logprobs\":20,\"n\":16", KV_INVALID},
	};
	struct gw_http_model model = a_model(GW_CHAT_CHATML);
	struct gw_http_request request;
	char body[256];

	(void)state;
	model.context = UINT32_MAX;
	for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
		int length = snprintf(body, sizeof body, "{\"prompt\":\"a\",%s}", bodies[i].body);

		assert_int_equal(
		    gw_http_request_parse(&request, kv_heap(), &model, 0, body, (size_t)length),
		    bodies[i].status);
		if (bodies[i].status == KV_OK)
			gw_http_request_deinit(&request);
		else
			assert_non_null(strstr(kv_error_message(), "take a stream"));
	}
}

/* What a request keeps while it waits and runs is what it needs. */
static void keeps_nothing_else_of_a_body(void **state)
{
	static const char body[] = "{\"prompt\":\"hello\",\"metadata\":{\"a\":[[],[]]},\"user\":\"u\","
	                           "\"stop\":[\"a\",\"bc\"],\"sequence\":\"id-1\",\"top_k\":3}";
	struct gw_http_request request;

	(void)state;
	assert_int_equal(parse(&request, body), KV_OK);
	assert_int_equal(json_object_size(request.body), 2);
	assert_string_equal(request.session.stops[1], "bc");
	assert_string_equal(request.session.sequence_id, "id-1");
	gw_http_request_deinit(&request);
	assert_int_equal(parse(&request, "{\"resume\":\"id-2\",\"metadata\":{}}"), KV_OK);
	assert_int_equal(json_object_size(request.body), 1);
	assert_string_equal(request.session.resume_id, "id-2");
	gw_http_request_deinit(&request);
}

static void messages_have_the_fields_of_answers(void **state)
{
	static const char good[] =
	    "{\"messages\":[{\"role\":\"assistant\",\"content\":\"hello\",\"refusal\":null,"
	    "\"annotations\":[],\"audio\":null,\"function_call\":null,\"tool_calls\":null}]}";
	struct gw_http_request request;

	(void)state;
	assert_int_equal(parse_as(&request, 1, good), KV_OK);
	gw_http_request_deinit(&request);
	refused(1, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"name\":\"b\"}]}", KV_INVALID,
	    "name: \"b\"");
	refused(1, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"foo\":1}]}", KV_INVALID,
	    "foo: is not a field of a message");
	refused(1,
	    "{\"messages\":[{\"role\":\"user\",\"content\":"
	    "[{\"type\":\"text\",\"text\":\"a\",\"foo\":1}]}]}",
	    KV_INVALID, "foo: is not a field of a part");
}

static void refuses_what_does_not_fit(void **state)
{
	char body[2048];
	size_t used = 0;

	(void)state;
	refused(0, "{\"prompt\":\"hello\",\"max_tokens\":100}", KV_LIMIT, "context is 100");
	refused(0, "{\"prompt\":\"hello\",\"max_tokens\":-1}", KV_INVALID, "1 to 100 less");
	refused(0, "{\"prompt\":\"hello\",\"max_tokens\":9999999999}", KV_LIMIT, "1 to 100 less");
	refused(0, "{\"prompt\":[1,1,1],\"max_tokens\":98}", KV_LIMIT, "at most 97");
	used += (size_t)snprintf(body, sizeof body, "{\"prompt\":[1");
	for (int i = 1; i < CONTEXT; i++)
		used += (size_t)snprintf(body + used, sizeof body - used, ",1");
	snprintf(body + used, sizeof body - used, "]}");
	refused(0, body, KV_LIMIT, "context is 100");
	used += (size_t)snprintf(body + used, sizeof body - used, ",1");
	snprintf(body + used, sizeof body - used, "]}");
	refused(0, body, KV_LIMIT, "context is 100");
}

static void refuses_too_many_and_too_long_stops(void **state)
{
	char body[1024];
	size_t used = (size_t)snprintf(body, sizeof body, "{\"prompt\":\"a\",\"stop\":[\"a\"");

	(void)state;
	for (int i = 0; i < GW_MAX_STOPS; i++)
		used += (size_t)snprintf(body + used, sizeof body - used, ",\"a\"");
	snprintf(body + used, sizeof body - used, "]}");
	refused(0, body, KV_INVALID, "stop");
	snprintf(body, sizeof body, "{\"prompt\":\"a\",\"stop\":\"%0*d\"}", GW_MAX_STOP_BYTES + 1, 0);
	refused(0, body, KV_INVALID, "stop");
	snprintf(body, sizeof body, "{\"prompt\":\"a\",\"sequence\":\"%064d\"}", 0);
	refused(0, body, KV_INVALID, "sequence");
}

static void refuses_deep_nesting(void **state)
{
	enum { DEPTH = 100000 };
	char *body = malloc(DEPTH + 1);

	(void)state;
	assert_non_null(body);
	memset(body, '[', DEPTH);
	body[DEPTH] = '\0';
	refused(0, body, KV_INVALID, "JSON");
	free(body);
}

static void renders_messages(void **state)
{
	static const char plain[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}";
	static const char parts[] =
	    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hel\"},"
	    "{\"type\":\"text\",\"text\":\"lo\"}]}],\"max_completion_tokens\":3,\"max_tokens\":4}";
	struct gw_http_request request, other;

	(void)state;
	assert_int_equal(parse_as(&request, 1, plain), KV_OK);
	assert_int_equal(request.chat, 1);
	assert_int_equal(request.session.tokens[0], SMALL_START);
	assert_int_equal(parse_as(&other, 1, parts), KV_OK);
	assert_int_equal(other.session.max_tokens, 3);
	assert_int_equal(other.session.token_count, request.session.token_count);
	assert_memory_equal(other.session.tokens, request.session.tokens,
	    request.session.token_count * sizeof *request.session.tokens);
	gw_http_request_deinit(&request);
	gw_http_request_deinit(&other);
}

static void refuses_bad_messages(void **state)
{
	static const char *const bad[] = {
	    "{}",
	    "{\"messages\":\"a\"}",
	    "{\"messages\":[]}",
	    "{\"messages\":[5]}",
	    "{\"messages\":[{\"content\":\"a\"}]}",
	    "{\"messages\":[{\"role\":\"user\"}]}",
	    "{\"messages\":[{\"role\":\"user\",\"content\":5}]}",
	    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
	    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
	};
	struct gw_http_request request;
	struct gw_http_model model = a_model(GW_CHAT_UNKNOWN);
	static const char good[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}";

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		refused(1, bad[i], KV_INVALID, "message");
	refused(1, "{\"messages\":[{\"role\":\"<|im_end|>\",\"content\":\"a\"}]}", KV_INVALID, "role");
	assert_int_equal(
	    gw_http_request_parse(&request, kv_heap(), &model, 1, good, strlen(good)), KV_UNSUPPORTED);
}

static void survives_every_failed_allocation(void **state)
{
	static const char *const bodies[] = {
	    "{\"prompt\":\"hello hello\",\"stop\":[\"a\"]}",
	    "{\"prompt\":[1,2,3]}",
	    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]}",
	};
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	struct gw_http_model model = a_model(GW_CHAT_CHATML);

	(void)state;
	for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
		enum kv_status status = KV_NO_MEMORY;
		uint64_t n = 0;

		while (status != KV_OK) {
			struct gw_http_request request;

			kv_allocator_fail_at(allocator, ++n);
			status = gw_http_request_parse(
			    &request, allocator, &model, i == 2, bodies[i], strlen(bodies[i]));
			if (status == KV_OK)
				gw_http_request_deinit(&request);
			else
				assert_int_equal(status, KV_NO_MEMORY);
			kv_allocator_fail_at(allocator, 0);
			assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
		}
		assert_true(n > 1);
	}
	kv_allocator_destroy(allocator);
}

static int create_tokenizer(void **state)
{
	(void)state;
	tokenizer = small_tokenizer(kv_heap(), "gpt-2");
	return 0;
}

static int destroy_tokenizer(void **state)
{
	(void)state;
	gw_tokenizer_destroy(tokenizer);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_field_that_is_wrong_is_named),
	    cmocka_unit_test(fills_every_field),
	    cmocka_unit_test(has_defaults),
	    cmocka_unit_test(takes_token_ids_and_one_stop),
	    cmocka_unit_test(takes_a_list_of_prompts),
	    cmocka_unit_test(marks_are_special_only_where_asked),
	    cmocka_unit_test(resume_needs_no_prompt),
	    cmocka_unit_test(names_the_wrong_field),
	    cmocka_unit_test(takes_a_list_with_one_prompt),
	    cmocka_unit_test(only_the_served_model_is_found),
	    cmocka_unit_test(takes_fields_that_change_nothing),
	    cmocka_unit_test(takes_what_shapes_an_answer),
	    cmocka_unit_test(refuses_fields_that_it_would_ignore),
	    cmocka_unit_test(refuses_more_log_probabilities_than_an_answer_holds),
	    cmocka_unit_test(keeps_nothing_else_of_a_body),
	    cmocka_unit_test(messages_have_the_fields_of_answers),
	    cmocka_unit_test(refuses_what_does_not_fit),
	    cmocka_unit_test(refuses_too_many_and_too_long_stops),
	    cmocka_unit_test(refuses_deep_nesting),
	    cmocka_unit_test(renders_messages),
	    cmocka_unit_test(refuses_bad_messages),
	    cmocka_unit_test(survives_every_failed_allocation),
	};

	return cmocka_run_group_tests(tests, create_tokenizer, destroy_tokenizer);
}
