/* What shapes an answer beyond its text: several choices, log probabilities, penalties. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/serve_fixture.h"

#define MODEL KV_TINY_MODELS "/tiny_llama.gguf"
#define PROMPT                                                                                     \
	"the in on and you is to of a b c d f h m p w the in on and you is to of a b c d f h m p w "   \
	"is to of a b c the in on and you is to of a b c d f h m p w the in on and you is to of a "

static struct serve_fixture worker;

static const json_t *choice_at(const json_t *object, size_t index)
{
	return json_array_get(json_object_get(object, "choices"), index);
}

static const char *text_at(const json_t *object, size_t index)
{
	return json_string_value(json_object_get(choice_at(object, index), "text"));
}

static void ask(const char *more, struct serve_reply *reply)
{
	char body[2048];

	snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"ignore_end\":true,\"max_tokens\":12,%s}",
	    PROMPT, more);
	assert_true(serve_ask(&worker, "POST", "/v1/completions", body, reply));
	if (reply->code != 200) fail_msg("%d: %s", reply->code, reply->body);
}

/* An answer goes by one name: in its body, its header and the log. */
static void an_answer_has_a_name(void **state)
{
	char header[160], line[2048];
	struct serve_reply reply;
	const char *id;
	bool logged = false;
	FILE *log;

	(void)state;
	ask("\"temperature\":0", &reply);
	id = json_string_value(json_object_get(reply.json, "id"));
	assert_non_null(id);
	snprintf(header, sizeof header, "X-Request-Id: %s\r\n", id);
	assert_non_null(strstr(reply.head, header));
	snprintf(header, sizeof header, "request=%s ", id);
	log = fopen(worker.log, "r");
	assert_non_null(log);
	while (!logged && fgets(line, sizeof line, log) != NULL)
		logged = strstr(line, header) != NULL;
	fclose(log);
	assert_true(logged);
	serve_reply_deinit(&reply);
}

static json_int_t usage_of(const json_t *object, const char *name)
{
	return json_integer_value(json_object_get(json_object_get(object, "usage"), name));
}

/* The prompt is computed once: the others find all but its last token. */
static void greedy_choices_are_alike(void **state)
{
	struct serve_reply reply;
	const json_t *own;
	json_int_t prompt;

	(void)state;
	ask("\"temperature\":0,\"n\":3", &reply);
	assert_int_equal(json_array_size(json_object_get(reply.json, "choices")), 3);
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(json_integer_value(json_object_get(choice_at(reply.json, i), "index")), i);
		assert_string_equal(text_at(reply.json, i), text_at(reply.json, 0));
	}
	prompt = usage_of(reply.json, "prompt_tokens");
	assert_int_equal(usage_of(reply.json, "completion_tokens"), 36);
	assert_int_equal(usage_of(reply.json, "total_tokens"), prompt + 36);
	own = json_object_get(json_object_get(reply.json, "clusterkv"), "choices");
	assert_int_equal(json_array_size(own), 3);
	for (size_t i = 1; i < 3; i++)
		assert_int_equal(
		    json_integer_value(json_object_get(json_array_get(own, i), "prefix_hit_tokens")),
		    prompt - 1);
	serve_reply_deinit(&reply);
}

static void a_seed_gives_the_same_choices(void **state)
{
	struct serve_reply first, second, one;

	(void)state;
	ask("\"temperature\":1.5,\"seed\":7,\"n\":2", &first);
	ask("\"temperature\":1.5,\"seed\":7,\"n\":2", &second);
	ask("\"temperature\":1.5,\"seed\":7", &one);
	assert_string_equal(text_at(first.json, 0), text_at(second.json, 0));
	assert_string_equal(text_at(first.json, 1), text_at(second.json, 1));
	assert_string_equal(text_at(first.json, 0), text_at(one.json, 0));
	assert_string_not_equal(text_at(first.json, 0), text_at(first.json, 1));
	serve_reply_deinit(&first);
	serve_reply_deinit(&second);
	serve_reply_deinit(&one);
}

static void alike_prompts_are_answered_each(void **state)
{
	static const char BODY[] = "{\"prompt\":[\"" PROMPT "\",\"" PROMPT "\"],\"ignore_end\":true,"
	                           "\"max_tokens\":12,\"temperature\":1.5}";
	struct serve_reply reply;

	(void)state;
	assert_true(serve_ask(&worker, "POST", "/v1/completions", BODY, &reply));
	if (reply.code != 200) fail_msg("%d: %s", reply.code, reply.body);
	assert_string_not_equal(text_at(reply.json, 0), text_at(reply.json, 1));
	serve_reply_deinit(&reply);
}

static double real_at(const json_t *list, size_t index)
{
	return json_number_value(json_array_get(list, index));
}

/* Of a greedy answer each token is the likeliest, and the shown chances fall and are no more than
 * one together. */
static void log_probabilities_of_a_completion(void **state)
{
	struct serve_reply reply;
	const json_t *logprobs, *tokens, *values, *offsets;
	size_t offset = 0;

	(void)state;
	ask("\"temperature\":0,\"logprobs\":3", &reply);
	logprobs = json_object_get(choice_at(reply.json, 0), "logprobs");
	tokens = json_object_get(logprobs, "tokens");
	values = json_object_get(logprobs, "token_logprobs");
	offsets = json_object_get(logprobs, "text_offset");
	assert_int_equal(json_array_size(tokens), 12);
	assert_int_equal(json_array_size(values), 12);
	for (size_t i = 0; i < 12; i++) {
		const json_t *top = json_array_get(json_object_get(logprobs, "top_logprobs"), i);
		const char *token = json_string_value(json_array_get(tokens, i)), *name;
		double sum = 0.0;
		json_t *value;

		assert_true(real_at(values, i) < 0.0);
		assert_true(json_object_size(top) >= 1 && json_object_size(top) <= 3);
		json_object_foreach((json_t *)(uintptr_t)top, name, value)
		{
			assert_true(json_number_value(value) <= real_at(values, i) + 1e-6);
			sum += exp(json_number_value(value));
		}
		assert_true(sum <= 1.0 + 1e-6);
		assert_true(
		    fabs(json_number_value(json_object_get(top, token)) - real_at(values, i)) < 1e-6);
		if (offset != SIZE_MAX) assert_int_equal(real_at(offsets, i), offset);
		/* From bytes that are no character on, the shown text is longer. */
		offset =
		    offset == SIZE_MAX || strstr(token, "\xef\xbf\xbd") ? SIZE_MAX : offset + strlen(token);
	}
	serve_reply_deinit(&reply);
}

static void log_probabilities_of_a_chat(void **state)
{
	static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"the in on\"}],"
	                           "\"temperature\":0,\"max_tokens\":5,\"ignore_end\":true,"
	                           "\"logprobs\":true,\"top_logprobs\":2}";
	struct serve_reply reply;
	const json_t *content;

	(void)state;
	assert_true(serve_ask(&worker, "POST", "/v1/chat/completions", body, &reply));
	if (reply.code != 200) fail_msg("%d: %s", reply.code, reply.body);
	content = json_object_get(json_object_get(choice_at(reply.json, 0), "logprobs"), "content");
	assert_int_equal(json_array_size(content), 5);
	for (size_t i = 0; i < 5; i++) {
		const json_t *entry = json_array_get(content, i);
		const json_t *top = json_object_get(entry, "top_logprobs");

		assert_int_equal(json_array_size(top), 2);
		assert_true(json_equal(
		    json_object_get(entry, "logprob"), json_object_get(json_array_get(top, 0), "logprob")));
		assert_true(json_is_array(json_object_get(entry, "bytes")));
	}
	serve_reply_deinit(&reply);
}

/* Events of both choices come mixed; each has all of its tokens, told once, and one end. */
static void choices_are_streamed(void **state)
{
	size_t records[2] = {0}, ends[2] = {0};
	struct serve_stream stream;
	struct serve_reply reply;

	(void)state;
	ask("\"temperature\":0,\"n\":2,\"stream\":true,\"logprobs\":1,"
	    "\"stream_options\":{\"include_usage\":true}",
	    &reply);
	assert_true(serve_stream_parse(&reply, &stream));
	assert_true(stream.done);
	assert_int_equal(usage_of(stream.last, "completion_tokens"), 24);
	for (const char *at = reply.body; (at = strstr(at, "data: {")) != NULL; at++) {
		json_t *object = json_loads(at + 6, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL);
		const json_t *one = choice_at(object, 0);
		size_t index = (size_t)json_integer_value(json_object_get(one, "index"));

		assert_non_null(object);
		if (one != NULL) {
			assert_true(index < 2);
			records[index] +=
			    json_array_size(json_object_get(json_object_get(one, "logprobs"), "tokens"));
			if (json_is_string(json_object_get(one, "finish_reason"))) ends[index]++;
		}
		json_decref(object);
	}
	for (int i = 0; i < 2; i++) {
		assert_int_equal(records[i], 12);
		assert_int_equal(ends[i], 1);
	}
	serve_stream_deinit(&stream);
	serve_reply_deinit(&reply);
}

static size_t different_tokens(const json_t *object)
{
	const json_t *tokens = json_object_get(json_object_get(object, "clusterkv"), "tokens");
	size_t count = 0;

	for (size_t i = 0; i < json_array_size(tokens); i++) {
		size_t before = 0;

		while (before < i && !json_equal(json_array_get(tokens, before), json_array_get(tokens, i)))
			before++;
		count += before == i;
	}
	return count;
}

static void penalties_keep_tokens_from_coming_again(void **state)
{
	struct serve_reply plain, penalised, favoured;

	(void)state;
	ask("\"temperature\":0", &plain);
	ask("\"temperature\":0,\"frequency_penalty\":2,\"presence_penalty\":2", &penalised);
	ask("\"temperature\":0,\"frequency_penalty\":-2,\"presence_penalty\":-2", &favoured);
	assert_true(different_tokens(penalised.json) >= different_tokens(plain.json));
	assert_true(different_tokens(favoured.json) < different_tokens(penalised.json));
	serve_reply_deinit(&plain);
	serve_reply_deinit(&penalised);
	serve_reply_deinit(&favoured);
}

/* Who leaves leaves all of them. */
static void a_client_that_leaves_ends_all_choices(void **state)
{
	struct serve_call call;

	(void)state;
	assert_true(serve_call_open(&call, &worker, "POST", "/v1/completions",
	    "{\"prompt\":\"the in on and\",\"max_tokens\":8000,\"ignore_end\":true,\"stream\":true,"
	    "\"n\":3}"));
	assert_true(serve_call_tokens(&call, 3));
	assert_true(serve_wait_number(&worker, "running", 3));
	serve_call_close(&call);
	assert_true(serve_wait_number(&worker, "running", 0));
}

static uint32_t tokens_told(const struct serve_call *call)
{
	const char *last = NULL;

	for (const char *at = call->raw; at != NULL && (at = strstr(at, "{\"tokens\":")) != NULL; at++)
		last = at;
	return last != NULL ? (uint32_t)strtoul(last + 10, NULL, 10) : 0;
}

/* With a latency target of 1 ms each unit of the long prompt, four layers of some ten chunks, is
 * followed by a token of the answer that runs. */
static void an_answer_goes_on_while_a_prompt_is_computed(void **state)
{
	static char body[40000];
	struct serve_call running, waiting;
	uint32_t before;
	size_t length;

	(void)state;
	assert_true(serve_call_open(&running, &worker, "POST", "/v1/completions",
	    "{\"prompt\":\"the in on and\",\"max_tokens\":8000,\"ignore_end\":true,\"stream\":true}"));
	assert_true(serve_call_tokens(&running, 3));
	length = (size_t)snprintf(body, sizeof body, "{\"max_tokens\":1,\"stream\":true,\"prompt\":[");
	for (unsigned i = 0; i < 5000; i++)
		length += (size_t)snprintf(body + length, sizeof body - length, "%u,", 40 + i * i % 61);
	snprintf(body + length - 1, sizeof body - length, "]}");
	assert_true(serve_call_open(&waiting, &worker, "POST", "/v1/completions", body));
	assert_true(serve_call_read(&waiting, ": prefill "));
	while (!serve_call_ended(&running) && tokens_told(&running) < 3)
		;
	before = tokens_told(&running);
	assert_true(serve_call_tokens(&waiting, 1));
	(void)serve_call_ended(&running);
	print_message("%u tokens while 5,000 were prefilled\n", tokens_told(&running) - before);
	assert_true(tokens_told(&running) >= before + 10);
	serve_call_close(&running);
	serve_call_close(&waiting);
	assert_true(serve_wait_number(&worker, "running", 0));
}

/* More than the worker takes is refused whole: for good, or while it has others. */
static void too_many_choices_are_refused(void **state)
{
	struct serve_reply reply;
	struct serve_call call;

	(void)state;
	assert_true(serve_ask(&worker, "POST", "/v1/completions",
	    "{\"prompt\":\"the in on\",\"max_tokens\":4,\"n\":13}", &reply));
	assert_int_equal(reply.code, 400);
	assert_non_null(strstr(reply.body, "n: 13 answers"));
	serve_reply_deinit(&reply);
	assert_true(serve_call_open(&call, &worker, "POST", "/v1/completions",
	    "{\"prompt\":\"the in on and\",\"max_tokens\":8000,\"ignore_end\":true,\"stream\":true}"));
	assert_true(serve_call_tokens(&call, 3));
	assert_true(serve_ask(&worker, "POST", "/v1/completions",
	    "{\"prompt\":\"the in on\",\"max_tokens\":4,\"n\":12}", &reply));
	assert_int_equal(reply.code, 429);
	assert_non_null(strstr(reply.head, "Retry-After: "));
	serve_reply_deinit(&reply);
	serve_call_close(&call);
	assert_true(serve_wait_number(&worker, "running", 0));
	assert_true(serve_wait_number(&worker, "waiting", 0));
}

static int start(void **state)
{
	const char *const arguments[] = {"--model", MODEL, "--store", "none", "--local-memory", "64MiB",
	    "--budget", "48", "--sinks", "4", "--window", "32", "--fold", "32", "--segment", "64",
	    "--cluster-tokens", "8", "--dense-layers", "1", "--max-requests", "8",
	    "--decode-latency-target", "1ms", NULL};

	(void)state;
	return serve_fixture_start(&worker, arguments, true) ? 0 : -1;
}

static int stop(void **state)
{
	(void)state;
	return serve_fixture_stop(&worker, false) ? 0 : -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_answer_has_a_name),
	    cmocka_unit_test(greedy_choices_are_alike),
	    cmocka_unit_test(a_seed_gives_the_same_choices),
	    cmocka_unit_test(alike_prompts_are_answered_each),
	    cmocka_unit_test(log_probabilities_of_a_completion),
	    cmocka_unit_test(log_probabilities_of_a_chat),
	    cmocka_unit_test(choices_are_streamed),
	    cmocka_unit_test(penalties_keep_tokens_from_coming_again),
	    cmocka_unit_test(a_client_that_leaves_ends_all_choices),
	    cmocka_unit_test(an_answer_goes_on_while_a_prompt_is_computed),
	    cmocka_unit_test(too_many_choices_are_refused),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
