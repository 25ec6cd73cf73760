/* `gpu-worker serve` as its clients see it, with a tiny model and an in-process store. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <cmocka.h>

#include "tests/lib/serve_fixture.h"

#define MODEL KV_TINY_MODELS "/tiny_llama.gguf"
/* Small enough that a prompt of some hundred tokens has clusters, folds and misses. */
#define WORKER                                                                                     \
	"--model", MODEL, "--store", "none", "--local-memory", "64MiB", "--budget", "48", "--sinks",   \
	    "4", "--window", "32", "--fold", "32", "--segment", "256", "--cluster-tokens", "8",        \
	    "--dense-layers", "1"

enum { BODY_BYTES = 8192, PROMPT_BYTES = 900, NEIGHBOURS = 4 };

static struct serve_fixture worker;

/* Text that differs from its first character on, so that prompts share nothing. */
static void write_prompt(char *text, size_t size, unsigned seed)
{
	static const char letters[] = "the in on and you is to of a b c d f h m p w ";

	for (size_t i = 0; i + 1 < size; i++) {
		seed = seed * 1103515245U + 12345U;
		text[i] = letters[(seed >> 16) % (sizeof letters - 1)];
	}
	text[size - 1] = '\0';
}

static const char *body_of(unsigned seed, const char *more)
{
	static char body[BODY_BYTES];
	char prompt[PROMPT_BYTES];

	write_prompt(prompt, sizeof prompt, seed);
	snprintf(body, sizeof body,
	    "{\"prompt\":\"%s\",\"temperature\":0,\"logits_digest\":true,\"ignore_end\":true,%s}",
	    prompt, more);
	return body;
}

static const json_t *first_choice(const json_t *object)
{
	return json_array_get(json_object_get(object, "choices"), 0);
}

static const json_t *own(const json_t *object, const char *name)
{
	return json_object_get(json_object_get(object, "clusterkv"), name);
}

static void complete(const char *body, struct serve_reply *reply)
{
	assert_true(serve_ask(&worker, "POST", "/v1/completions", body, reply));
	if (reply->code != 200) fail_msg("%d: %s", reply->code, reply->body);
	assert_non_null(reply->json);
}

static void fails(
    const char *method, const char *path, const char *body, int code, const char *named)
{
	struct serve_reply reply;
	const char *message;

	assert_true(serve_ask(&worker, method, path, body, &reply));
	message = json_string_value(json_object_get(json_object_get(reply.json, "error"), "message"));
	if (reply.code != code || message == NULL || strstr(message, named) == NULL)
		fail_msg("%s %.60s: %d %s, expected %d naming %s", path, body != NULL ? body : "",
		    reply.code, reply.body, code, named);
	assert_non_null(strstr(reply.head, "Content-Type: application/json"));
	serve_reply_deinit(&reply);
}

/* The last comment of a stream says how many tokens had to be computed: all but the known ones. */
static void tells_progress_in_tokens(const struct serve_reply *reply, const json_t *last)
{
	const json_t *usage = json_object_get(last, "usage");
	const char *comment = NULL;
	long long done = 0, total = 0;

	for (const char *at = reply->body; (at = strstr(at, ": prefill ")) != NULL; at++)
		comment = at;
	assert_non_null(comment);
	assert_int_equal(sscanf(comment, ": prefill %lld/%lld\n", &done, &total), 2);
	assert_int_equal(done, total);
	assert_int_equal(total,
	    json_integer_value(json_object_get(usage, "prompt_tokens")) -
	        json_integer_value(
	            json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens")));
}

static void answers_whole_and_streamed_alike(void **state)
{
	struct serve_reply warm, whole, streamed;
	struct serve_stream stream;
	const json_t *usage;

	(void)state;
	/* The first one leaves the prompt in the store: then both runs find it. */
	complete(body_of(1, "\"max_tokens\":40"), &warm);
	complete(body_of(1, "\"max_tokens\":40"), &whole);
	complete(body_of(2, "\"max_tokens\":1"), &streamed);
	serve_reply_deinit(&streamed);
	assert_true(serve_ask(&worker, "POST", "/v1/completions",
	    body_of(1, "\"max_tokens\":40,\"stream\":true"), &streamed));
	assert_int_equal(streamed.code, 200);
	assert_true(serve_stream_parse(&streamed, &stream));
	assert_true(stream.done);
	assert_true(stream.comments > 0);
	tells_progress_in_tokens(&streamed, stream.last);
	assert_true(stream.events > 10);
	assert_string_equal(
	    stream.text, json_string_value(json_object_get(first_choice(whole.json), "text")));
	assert_string_equal(stream.sequence, json_string_value(own(stream.last, "sequence")));
	assert_true(json_equal(own(stream.last, "tokens"), own(whole.json, "tokens")));
	assert_true(json_equal(own(stream.last, "logits_digest"), own(whole.json, "logits_digest")));
	assert_int_equal(json_array_size(own(whole.json, "tokens")), 40);
	assert_string_equal(
	    json_string_value(json_object_get(first_choice(stream.last), "finish_reason")), "length");
	/* A warm prompt gives the same answer as a cold one, and says what it found. */
	assert_true(json_equal(own(warm.json, "tokens"), own(whole.json, "tokens")));
	usage = json_object_get(whole.json, "usage");
	assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 40);
	assert_true(json_integer_value(json_object_get(
	                json_object_get(usage, "prompt_tokens_details"), "cached_tokens")) > 100);
	serve_stream_deinit(&stream);
	serve_reply_deinit(&warm);
	serve_reply_deinit(&whole);
	serve_reply_deinit(&streamed);
}

static void neighbours_change_nothing(void **state)
{
	static const char *const more[NEIGHBOURS] = {
	    "\"max_tokens\":100", "\"max_tokens\":70", "\"max_tokens\":130", "\"max_tokens\":90"};
	struct serve_reply alone[NEIGHBOURS], reply;
	struct serve_call calls[NEIGHBOURS];

	(void)state;
	for (unsigned i = 0; i < NEIGHBOURS; i++) {
		complete(body_of(100 + i, more[i]), &alone[i]);
		serve_reply_deinit(&alone[i]);
		complete(body_of(100 + i, more[i]), &alone[i]);
	}
	for (unsigned i = 0; i < NEIGHBOURS; i++)
		assert_true(serve_call_open(
		    &calls[i], &worker, "POST", "/v1/completions", body_of(100 + i, more[i])));
	for (unsigned i = 0; i < NEIGHBOURS; i++) {
		assert_true(serve_call_finish(&calls[i], &reply));
		assert_int_equal(reply.code, 200);
		assert_true(json_equal(own(reply.json, "tokens"), own(alone[i].json, "tokens")));
		assert_true(
		    json_equal(own(reply.json, "logits_digest"), own(alone[i].json, "logits_digest")));
		serve_reply_deinit(&reply);
		serve_reply_deinit(&alone[i]);
	}
}

static void answers_conversations(void **state)
{
	static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"who are you\"}],"
	                           "\"temperature\":0,\"max_tokens\":9,\"stream\":%s}";
	struct serve_reply whole, streamed;
	struct serve_stream stream;
	char text[256];
	const json_t *message;

	(void)state;
	snprintf(text, sizeof text, body, "false");
	assert_true(serve_ask(&worker, "POST", "/v1/chat/completions", text, &whole));
	assert_int_equal(whole.code, 200);
	message = json_object_get(first_choice(whole.json), "message");
	assert_string_equal(json_string_value(json_object_get(message, "role")), "assistant");
	snprintf(text, sizeof text, body, "true");
	assert_true(serve_ask(&worker, "POST", "/v1/chat/completions", text, &streamed));
	assert_true(serve_stream_parse(&streamed, &stream));
	assert_string_equal(stream.text, json_string_value(json_object_get(message, "content")));
	assert_true(stream.done);
	serve_stream_deinit(&stream);
	serve_reply_deinit(&whole);
	serve_reply_deinit(&streamed);
}

static void ends_before_a_stop_text(void **state)
{
	struct serve_reply whole, cut;
	const char *text, *shorter;
	char more[128], stop[3] = "";

	(void)state;
	complete(body_of(7, "\"max_tokens\":60"), &whole);
	text = json_string_value(json_object_get(first_choice(whole.json), "text"));
	/* Two plain characters from somewhere in the answer. */
	for (const char *at = text + strlen(text) / 3; at[0] != '\0' && at[1] != '\0'; at++)
		if (at[0] > ' ' && at[1] > ' ' && at[0] != '"' && at[1] != '"' && at[0] != '\\' &&
		    at[1] != '\\' && ((unsigned char)at[0] | (unsigned char)at[1]) < 128) {
			memcpy(stop, at, 2);
			break;
		}
	assert_int_equal(strlen(stop), 2);
	snprintf(more, sizeof more, "\"max_tokens\":60,\"stop\":[\"%s\"]", stop);
	complete(body_of(7, more), &cut);
	shorter = json_string_value(json_object_get(first_choice(cut.json), "text"));
	assert_null(strstr(shorter, stop));
	assert_int_equal(strlen(shorter), (size_t)(strstr(text, stop) - text));
	assert_string_equal(
	    json_string_value(json_object_get(first_choice(cut.json), "finish_reason")), "stop");
	serve_reply_deinit(&whole);
	serve_reply_deinit(&cut);
}

static void samples_by_the_seed(void **state)
{
	static const char body[] =
	    "{\"prompt\":\"the\",\"max_tokens\":30,\"temperature\":100,\"seed\":%d}";
	struct serve_reply replies[3];
	const int seeds[3] = {5, 5, 6};
	char text[128];

	(void)state;
	for (int i = 0; i < 3; i++) {
		snprintf(text, sizeof text, body, seeds[i]);
		complete(text, &replies[i]);
	}
	assert_true(json_equal(own(replies[0].json, "tokens"), own(replies[1].json, "tokens")));
	assert_false(json_equal(own(replies[0].json, "tokens"), own(replies[2].json, "tokens")));
	for (int i = 0; i < 3; i++)
		serve_reply_deinit(&replies[i]);
}

static void refuses_what_is_wrong(void **state)
{
	static char large[16384];
	struct serve_reply reply;
	struct stat file;

	(void)state;
	fails("POST", "/v1/completions", "{", 400, "JSON");
	fails("POST", "/v1/completions", "{\"prompt\":5}", 400, "prompt");
	fails("POST", "/v1/completions", "{\"prompt\":\"a\",\"stream\":1}", 400, "stream");
	fails("POST", "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":16384}", 400, "16384");
	fails("POST", "/v1/completions", "{\"resume\":\"nobody\"}", 404, "nobody");
	fails("POST", "/v1/completions", "{\"resume\":\"nobody\",\"stream\":true}", 404, "nobody");
	fails("POST", "/v1/chat/completions", "{\"messages\":5}", 400, "messages");
	fails("POST", "/v1/completions", "{\"prompt\":\"a\",\"logprobs\":21}", 400, "logprobs: 21");
	fails("POST", "/v1/completions", "{\"prompt\":\"a\",\"foo\":3}", 400, "foo");
	fails("POST", "/v1/chat/completions", "{\"messages\":[],\"tools\":[1]}", 400, "tools: [1]");
	fails("POST", "/v1/completions", "{\"prompt\":\"a\",\"model\":\"b\"}", 404, "tiny_llama.gguf");
	fails("GET", "/v1/completions", NULL, 405, "POST");
	fails("POST", "/health", "{}", 405, "GET");
	fails("GET", "/v2", NULL, 404, "/v2");
	/* The worker takes 8 KiB. */
	memset(large, ' ', sizeof large - 1);
	fails("POST", "/v1/completions", large, 413, "--max-body");
	assert_true(serve_ask(&worker, "HEAD", "/health", NULL, &reply));
	assert_int_equal(reply.code, 200);
	assert_string_equal(reply.body, "");
	serve_reply_deinit(&reply);
	assert_true(serve_ask(&worker, "GET", "/v1/models", NULL, &reply));
	assert_int_equal(reply.code, 200);
	assert_string_equal(json_string_value(json_object_get(
	                        json_array_get(json_object_get(reply.json, "data"), 0), "id")),
	    "tiny_llama.gguf");
	assert_int_equal(stat(MODEL, &file), 0);
	assert_int_equal(json_integer_value(json_object_get(
	                     json_array_get(json_object_get(reply.json, "data"), 0), "created")),
	    file.st_mtime);
	serve_reply_deinit(&reply);
}

/* As OpenAI's clients ask for it: usage is in the last event, which has no choice. */
static void usage_is_streamed_when_asked_for(void **state)
{
	struct serve_reply reply;
	struct serve_stream stream;

	(void)state;
	assert_true(serve_ask(&worker, "POST", "/v1/completions",
	    "{\"model\":\"tiny_llama.gguf\",\"prompt\":[\"the\"],\"max_tokens\":3,\"stream\":true,"
	    "\"ignore_end\":true,\"stream_options\":{\"include_usage\":true}}",
	    &reply));
	assert_true(serve_stream_parse(&reply, &stream));
	assert_true(stream.done);
	assert_int_equal(json_array_size(json_object_get(stream.last, "choices")), 0);
	assert_int_equal(json_integer_value(json_object_get(
	                     json_object_get(stream.last, "usage"), "completion_tokens")),
	    3);
	serve_stream_deinit(&stream);
	serve_reply_deinit(&reply);
}

/* Opens a stream that goes on for long, and waits for its first text. */
static void open_long(struct serve_call *call, const char *more)
{
	char all[256];

	snprintf(all, sizeof all, "\"max_tokens\":15000,\"stream\":true%s", more);
	assert_true(serve_call_open(call, &worker, "POST", "/v1/completions", body_of(3, all)));
	assert_true(serve_call_read(call, "\"tokens\":"));
}

static void a_client_that_leaves_ends_its_sequence(void **state)
{
	struct serve_call streamed, whole;

	(void)state;
	open_long(&streamed, "");
	assert_true(serve_call_open(
	    &whole, &worker, "POST", "/v1/completions", body_of(4, "\"max_tokens\":15000")));
	assert_true(serve_wait_number(&worker, "running", 2));
	serve_call_close(&streamed);
	assert_true(serve_wait_number(&worker, "running", 1));
	serve_call_close(&whole);
	assert_true(serve_wait_number(&worker, "running", 0));
}

static void an_id_is_used_once(void **state)
{
	struct serve_call call;

	(void)state;
	open_long(&call, ",\"sequence\":\"mine\"");
	fails("POST", "/v1/completions", "{\"prompt\":\"a\",\"sequence\":\"mine\"}", 409, "mine");
	serve_call_close(&call);
	assert_true(serve_wait_number(&worker, "running", 0));
}

static void too_many_requests_are_refused(void **state)
{
	struct serve_call running[2], waiting[2];
	struct serve_reply reply;

	(void)state;
	/* Two run and two wait. */
	open_long(&running[0], "");
	open_long(&running[1], "");
	for (int i = 0; i < 2; i++) {
		assert_true(serve_call_open(
		    &waiting[i], &worker, "POST", "/v1/completions", body_of(5, "\"max_tokens\":3")));
		assert_true(serve_wait_number(&worker, "waiting", i + 1));
	}
	assert_true(
	    serve_ask(&worker, "POST", "/v1/completions", body_of(5, "\"max_tokens\":3"), &reply));
	assert_int_equal(reply.code, 429);
	assert_non_null(strstr(reply.head, "Retry-After: "));
	serve_reply_deinit(&reply);
	/* One that waits leaves; the other gets its turn when one that runs has left. */
	serve_call_close(&waiting[0]);
	assert_true(serve_wait_number(&worker, "waiting", 1));
	serve_call_close(&running[0]);
	assert_true(serve_call_finish(&waiting[1], &reply));
	assert_int_equal(reply.code, 200);
	serve_reply_deinit(&reply);
	serve_call_close(&running[1]);
	assert_true(serve_wait_number(&worker, "running", 0));
}

static void is_stopping(const char *method, const char *path, const char *body)
{
	struct serve_reply reply;

	assert_true(serve_ask(&worker, method, path, body, &reply));
	if (reply.code != 503 || strstr(reply.head, "Retry-After: ") == NULL ||
	    (strcmp(method, "HEAD") == 0) != (reply.body[0] == '\0') ||
	    (reply.body[0] != '\0' && strstr(reply.body, "stopping") == NULL))
		fail_msg("%s %s: %d %s", method, path, reply.code, reply.body);
	serve_reply_deinit(&reply);
}

static void a_stop_lets_running_requests_end(void **state)
{
	static char large[16384];
	struct serve_call call, late;
	struct serve_reply reply;
	struct serve_stream stream;

	(void)state;
	assert_true(serve_call_open(&call, &worker, "POST", "/v1/completions",
	    body_of(3, "\"max_tokens\":4000,\"stream\":true")));
	assert_true(serve_call_read(&call, "\"tokens\":"));
	serve_fixture_signal(&worker, SIGTERM);
	/* Until it is gone it says what it does. */
	assert_true(serve_wait_status(&worker, "stopping"));
	is_stopping("GET", "/health", NULL);
	is_stopping("HEAD", "/health", NULL);
	is_stopping("POST", "/v1/completions", "{\"prompt\":\"a\"}");
	is_stopping("GET", "/v1/models", NULL);
	is_stopping("GET", "/v2", NULL);
	is_stopping("GET", "/v1/completions", NULL);
	memset(large, ' ', sizeof large - 1);
	is_stopping("POST", "/v1/completions", large);
	assert_true(serve_call_finish(&call, &reply));
	assert_true(serve_stream_parse(&reply, &stream));
	assert_true(stream.done);
	assert_int_equal(json_array_size(own(stream.last, "tokens")), 4000);
	assert_int_equal(serve_fixture_wait(&worker), 0);
	assert_false(serve_call_open(&late, &worker, "GET", "/health", NULL));
	serve_stream_deinit(&stream);
	serve_reply_deinit(&reply);
}

static void a_stop_does_not_wait_for_ever(void **state)
{
	struct serve_call call;
	struct serve_reply reply;
	struct serve_stream stream;

	(void)state;
	open_long(&call, "");
	serve_fixture_signal(&worker, SIGTERM);
	assert_true(serve_call_finish(&call, &reply));
	assert_true(serve_stream_parse(&reply, &stream));
	assert_true(stream.done);
	assert_non_null(strstr(reply.body, "the worker is stopping"));
	assert_string_equal(json_string_value(own(stream.last, "sequence")), stream.sequence);
	assert_int_equal(serve_fixture_wait(&worker), 0);
	serve_stream_deinit(&stream);
	serve_reply_deinit(&reply);
}

/* Signals that mean nothing to it are no reason to end. */
static void stray_signals_are_ignored(void **state)
{
	static const int numbers[] = {SIGHUP, SIGUSR1, SIGUSR2};
	struct serve_reply reply;

	(void)state;
	for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
		serve_fixture_signal(&worker, numbers[i]);
	assert_true(serve_ask(&worker, "GET", "/health", NULL, &reply));
	assert_int_equal(reply.code, 200);
	serve_reply_deinit(&reply);
}

static void a_second_signal_ends_at_once(void **state)
{
	/* Signals that come together are one wish; this one is another. */
	const struct timespec later = {0, 500000000};
	struct serve_call call;

	(void)state;
	open_long(&call, "");
	serve_fixture_signal(&worker, SIGTERM);
	assert_true(serve_wait_status(&worker, "stopping"));
	nanosleep(&later, NULL);
	serve_fixture_signal(&worker, SIGINT);
	assert_int_equal(serve_fixture_wait(&worker), 1);
	serve_call_close(&call);
}

static int start_with(const char *const *arguments)
{
	return serve_fixture_start(&worker, arguments, true) ? 0 : -1;
}

static int start(void **state)
{
	static const char *const arguments[] = {WORKER, "--max-body", "8KiB", NULL};

	(void)state;
	return start_with(arguments);
}

static int start_narrow(void **state)
{
	static const char *const arguments[] = {
	    WORKER, "--max-sequences", "2", "--max-requests", "2", NULL};

	(void)state;
	return start_with(arguments);
}

static int start_patient(void **state)
{
	static const char *const arguments[] = {
	    WORKER, "--drain-timeout", "60s", "--max-body", "8KiB", NULL};

	(void)state;
	return start_with(arguments);
}

static int start_hurried(void **state)
{
	static const char *const arguments[] = {WORKER, "--drain-timeout", "100ms", NULL};

	(void)state;
	return start_with(arguments);
}

static int stop(void **state)
{
	(void)state;
	return serve_fixture_stop(&worker, false) ? 0 : -1;
}

int main(void)
{
	const struct CMUnitTest shared[] = {
	    cmocka_unit_test(answers_whole_and_streamed_alike),
	    cmocka_unit_test(neighbours_change_nothing),
	    cmocka_unit_test(answers_conversations),
	    cmocka_unit_test(ends_before_a_stop_text),
	    cmocka_unit_test(samples_by_the_seed),
	    cmocka_unit_test(refuses_what_is_wrong),
	    cmocka_unit_test(usage_is_streamed_when_asked_for),
	    cmocka_unit_test(a_client_that_leaves_ends_its_sequence),
	    cmocka_unit_test(an_id_is_used_once),
	    cmocka_unit_test(stray_signals_are_ignored),
	};
	const struct CMUnitTest own_worker[] = {
	    cmocka_unit_test_setup_teardown(too_many_requests_are_refused, start_narrow, stop),
	    cmocka_unit_test_setup_teardown(a_stop_lets_running_requests_end, start_patient, stop),
	    cmocka_unit_test_setup_teardown(a_stop_does_not_wait_for_ever, start_hurried, stop),
	    cmocka_unit_test_setup_teardown(a_second_signal_ends_at_once, start_patient, stop),
	};
	int failed = cmocka_run_group_tests(shared, start, stop);

	return failed + cmocka_run_group_tests(own_worker, NULL, NULL);
}
