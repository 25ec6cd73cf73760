/* Who may ask, what is told of a prompt's tokens, and the worker's own counters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/serve_fixture.h"

#define MODEL KV_TINY_MODELS "/tiny_llama.gguf"
#define KEY   "sk-0123456789abcdef"

static struct serve_fixture worker;
static char key_file[] = "/tmp/clusterkv-keys-XXXXXX";

static void ask(const char *path, const char *body, struct serve_reply *reply)
{
	assert_true(serve_ask(&worker, "POST", path, body, reply));
	if (reply->code != 200) fail_msg("%s: %d: %s", path, reply->code, reply->body);
	assert_non_null(reply->json);
}

static void fails(const char *path, const char *body, const char *named)
{
	struct serve_reply reply;

	assert_true(serve_ask(&worker, "POST", path, body, &reply));
	if (reply.code != 400 || strstr(reply.body, named) == NULL)
		fail_msg("%s %s: %d %s, expected 400 naming %s", path, body, reply.code, reply.body, named);
	serve_reply_deinit(&reply);
}

static void text_becomes_tokens_and_back(void **state)
{
	struct serve_reply tokens, text, chat;
	char *list, *body;

	(void)state;
	ask("/tokenize", "{\"prompt\":\"the in on and\\n you\"}", &tokens);
	assert_int_equal(json_integer_value(json_object_get(tokens.json, "count")),
	    json_array_size(json_object_get(tokens.json, "tokens")));
	assert_true(json_integer_value(json_object_get(tokens.json, "max_model_len")) > 0);
	list = json_dumps(json_object_get(tokens.json, "tokens"), 0);
	body = malloc(strlen(list) + 32);
	assert_non_null(body);
	sprintf(body, "{\"tokens\":%s}", list);
	assert_true(serve_ask(&worker, "POST", "/detokenize", body, &text));
	assert_int_equal(text.code, 200);
	assert_string_equal(text.body, "{\"prompt\":\"the in on and\\n you\"}\n");
	ask("/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"the in on and\"}]}", &chat);
	assert_true(json_array_size(json_object_get(chat.json, "tokens")) >
	            json_array_size(json_object_get(tokens.json, "tokens")));
	free(list);
	free(body);
	serve_reply_deinit(&tokens);
	serve_reply_deinit(&text);
	serve_reply_deinit(&chat);
}

static void says_what_is_wrong_with_tokens(void **state)
{
	struct serve_reply reply;

	(void)state;
	fails("/tokenize", "{}", "prompt: is missing");
	fails("/tokenize", "{\"prompt\":\"a\",\"n\":1}", "n: is not a field of /tokenize");
	fails("/tokenize", "{\"prompt\":\"a\",\"messages\":[]}", "leave one of them out");
	fails("/tokenize", "{\"prompt\":\"a\",\"add_special_tokens\":1}", "add_special_tokens");
	fails("/tokenize", "{\"messages\":[],\"add_special_tokens\":true}", "add_special_tokens: the");
	fails("/tokenize", "{\"messages\":[],\"parse_special\":false}", "parse_special: the chat");
	fails("/detokenize", "{\"tokens\":\"a\"}", "tokens: must be");
	fails("/detokenize", "{\"tokens\":[1,-1]}", "tokens: token -1");
	fails("/detokenize", "{\"tokens\":[1,99999999]}", "tokens: token 99999999");
	fails("/detokenize", "{\"tokens\":[1.5]}", "tokens: must be");
	ask("/detokenize", "{\"tokens\":[]}", &reply);
	assert_string_equal(json_string_value(json_object_get(reply.json, "prompt")), "");
	serve_reply_deinit(&reply);
}

static double metric(const char *body, const char *name)
{
	char line[128];
	const char *at;

	snprintf(line, sizeof line, "\n%s ", name);
	at = strstr(body, line);
	if (at == NULL) fail_msg("no %s in %s", name, body);
	return strtod(at + strlen(line), NULL);
}

/* The counters are brought up to date a few times a second. */
static void counts_what_it_did(void **state)
{
	struct serve_reply reply;
	const struct timespec nap = {0, 50000000};
	double requests = 0.0;

	(void)state;
	ask("/v1/completions", "{\"prompt\":\"the in on\",\"max_tokens\":3,\"ignore_end\":true}",
	    &reply);
	serve_reply_deinit(&reply);
	for (int i = 0; i < 100 && requests < 1.0; i++) {
		assert_true(serve_ask(&worker, "GET", "/metrics", NULL, &reply));
		assert_int_equal(reply.code, 200);
		assert_non_null(strstr(reply.head, "text/plain; version=0.0.4"));
		requests = metric(reply.body, "clusterkv_worker_requests_total");
		if (requests >= 1.0) {
			assert_true(metric(reply.body, "clusterkv_worker_decode_tokens_total") >= 3.0);
			assert_true(metric(reply.body, "clusterkv_worker_ready") >= 1.0);
			assert_non_null(strstr(reply.body, "# TYPE clusterkv_worker_cache_bytes gauge\n"));
		}
		serve_reply_deinit(&reply);
		nanosleep(&nap, NULL);
	}
	assert_true(requests >= 1.0);
}

/* Ask with a header line of one's own, as the fixture's client sends none. */
static int code_with(const char *path, const char *header)
{
	struct serve_call call;
	struct serve_reply reply;
	char method[256];
	int code;

	/* The method's place in the request line is followed by the path: a header fits in between the
	 * line and the fixture's own headers only where the line is written whole. */
	snprintf(method, sizeof method, "GET %s HTTP/1.1\r\n%s\r\nX-Rest: GET", path, header);
	assert_true(serve_call_open(&call, &worker, method, "", NULL));
	assert_true(serve_call_finish(&call, &reply));
	code = reply.code;
	if (code == 401) {
		assert_non_null(strstr(reply.head, "WWW-Authenticate: Bearer"));
		assert_non_null(strstr(reply.body, "invalid_api_key"));
		assert_null(strstr(reply.body, KEY));
	}
	serve_reply_deinit(&reply);
	return code;
}

static void without_a_key_nothing_is_told(void **state)
{
	(void)state;
	assert_int_equal(code_with("/v1/models", "X-Other: 1"), 401);
	assert_int_equal(code_with("/v1/models", "Authorization: Bearer sk-0123456789abcdeF"), 401);
	assert_int_equal(code_with("/v1/models", "Authorization: Bearer sk-0123456789abcde"), 401);
	assert_int_equal(code_with("/v1/models", "Authorization: Bearer "), 401);
	assert_int_equal(code_with("/v1/models", "Authorization: Basic " KEY), 401);
	assert_int_equal(code_with("/nothing", "X-Other: 1"), 401);
	assert_int_equal(code_with("/v1/models", "Authorization: Bearer " KEY), 200);
	assert_int_equal(code_with("/v1/models", "authorization: bearer " KEY), 200);
	assert_int_equal(
	    code_with("/v1/models", "Authorization: Bearer another-key-of-some-length"), 200);
	assert_int_equal(code_with("/health", "X-Other: 1"), 200);
	assert_int_equal(code_with("/metrics", "X-Other: 1"), 200);
}

static int start(void **state)
{
	const char *const arguments[] = {
	    "--model", MODEL, "--store", "none", "--local-memory", "64MiB", NULL};

	(void)state;
	return serve_fixture_start(&worker, arguments, true) ? 0 : -1;
}

static int start_with_keys(void **state)
{
	static const char keys[] = "# of our clients\n\n" KEY "\r\nanother-key-of-some-length";
	const char *const arguments[] = {"--model", MODEL, "--store", "none", "--local-memory", "64MiB",
	    "--api-key-file", key_file, NULL};
	int fd = mkstemp(key_file);

	(void)state;
	if (fd < 0 || write(fd, keys, sizeof keys - 1) != (ssize_t)(sizeof keys - 1)) return -1;
	close(fd);
	return serve_fixture_start(&worker, arguments, true) ? 0 : -1;
}

static int stop(void **state)
{
	(void)state;
	unlink(key_file);
	return serve_fixture_stop(&worker, false) ? 0 : -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(text_becomes_tokens_and_back),
	    cmocka_unit_test(says_what_is_wrong_with_tokens),
	    cmocka_unit_test(counts_what_it_did),
	};
	const struct CMUnitTest with_keys[] = {
	    cmocka_unit_test(without_a_key_nothing_is_told),
	};
	int failed = cmocka_run_group_tests(tests, start, stop);

	return failed + cmocka_run_group_tests(with_keys, start_with_keys, stop);
}
