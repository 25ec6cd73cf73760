/* Whose turn it is in `gpu-worker serve`: prompts that share the time, sequences that share memory
 * and the store. */
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

static struct serve_fixture worker;

/* A body with a prompt of `count` token ids that no other number of `kind` begins like. */
static char *body_of(uint32_t kind, uint32_t count, const char *more)
{
	size_t capacity = (size_t)count * 8 + 512, length = 0;
	char *body = malloc(capacity);
	uint32_t id = kind * 7919 + 1;

	assert_non_null(body);
	length += (size_t)snprintf(body, capacity, "{\"prompt\":[");
	for (uint32_t i = 0; i < count; i++) {
		id = id * 1103515245 + 12345;
		length += (size_t)snprintf(
		    body + length, capacity - length, "%s%u", i > 0 ? "," : "", 20 + (id >> 16) % 200);
	}
	snprintf(body + length, capacity - length, "],\"temperature\":0,\"ignore_end\":true,%s}", more);
	return body;
}

static void open_call(struct serve_call *call, uint32_t kind, uint32_t count, const char *more)
{
	char *body = body_of(kind, count, more);

	assert_true(serve_call_open(call, &worker, "POST", "/v1/completions", body));
	free(body);
}

static void start(const char *const *more)
{
	const char *arguments[40] = {"--model", MODEL, "--budget", "48", "--sinks", "4", "--window",
	    "32", "--fold", "32", "--segment", "256", "--cluster-tokens", "8", "--threads", "1"};
	size_t count = 16;

	while (*more != NULL)
		arguments[count++] = *more++;
	assert_true(serve_fixture_start(&worker, arguments, true));
}

static int stop(void **state)
{
	(void)state;
	return serve_fixture_stop(&worker, false) ? 0 : -1;
}

static bool has_text(struct serve_call *call)
{
	bool ended = serve_call_ended(call);

	return ended || strstr(call->raw, "\"tokens\":1}") != NULL;
}

/* A short prompt has its first token before a long one that came first is through; so has one that
 * comes when two are open. */
static void a_short_prompt_overtakes_a_long_one(void **state)
{
	const char *const small_chunks[] = {"--chunk", "16", NULL};
	struct serve_call long_one, longer, shorter;

	(void)state;
	start(small_chunks);
	open_call(&longer, 1, 12000, "\"stream\":true,\"max_tokens\":4");
	assert_true(serve_call_read(&longer, ": prefill"));
	open_call(&long_one, 2, 5500, "\"stream\":true,\"max_tokens\":4");
	assert_true(serve_call_read(&long_one, ": prefill"));
	open_call(&shorter, 3, 100, "\"stream\":true,\"max_tokens\":4");
	assert_true(serve_call_read(&shorter, "[DONE]"));
	assert_false(has_text(&long_one));
	assert_true(serve_call_read(&long_one, "[DONE]"));
	assert_false(has_text(&longer));
	assert_true(serve_call_read(&longer, "[DONE]"));
	serve_call_close(&shorter);
	serve_call_close(&long_one);
	serve_call_close(&longer);
}

static json_int_t found_in(const struct serve_reply *reply)
{
	return json_integer_value(
	    json_object_get(json_object_get(reply->json, "clusterkv"), "prefix_hit_tokens"));
}

/* What another one is about to store is not computed twice. */
static void the_same_prompt_waits_and_is_found(void **state)
{
	const char *const small_chunks[] = {"--chunk", "16", NULL};
	struct serve_call first, second;
	struct serve_reply one, two;

	(void)state;
	start(small_chunks);
	open_call(&first, 1, 1500, "\"max_tokens\":4");
	open_call(&second, 1, 1500, "\"max_tokens\":4");
	assert_true(serve_call_finish(&first, &one));
	assert_true(serve_call_finish(&second, &two));
	assert_int_equal(one.code, 200);
	assert_int_equal(two.code, 200);
	assert_int_equal(found_in(&one) + found_in(&two), 1499);
	serve_reply_deinit(&one);
	serve_reply_deinit(&two);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_teardown(a_short_prompt_overtakes_a_long_one, stop),
	    cmocka_unit_test_teardown(the_same_prompt_waits_and_is_found, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
