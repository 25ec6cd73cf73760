/* `gpu-worker serve` with a real kvstored: one that comes late, goes away, and hands the sequences
 * of a dead worker to the next. The argument is the transport. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/serve_fixture.h"
#include "tests/lib/store_fixture.h"

#define MODEL KV_TINY_MODELS "/tiny_llama.gguf"

static const char *transport = "map";
static struct store_fixture store;
static struct serve_fixture worker, other;

static bool start_store(void)
{
	/* A process that is not given the CPU for half a second is no death: who dies here is seen to
	 * by its socket. */
	const char *const arguments[] = {
	    "--transport", transport, "--lease", "20s", "--heartbeat", "100ms", NULL};

	return store_fixture_start(&store, arguments);
}

static bool start_worker(struct serve_fixture *fixture, const char *policy, bool ready)
{
	const char *const arguments[] = {"--model", MODEL, "--store", store.address, "--transport",
	    transport, "--policy", policy, "--budget", "48", "--sinks", "4", "--window", "32", "--fold",
	    "32", "--segment", "256", "--cluster-tokens", "8", "--drain-timeout", "100ms",
	    "--call-timeout", "20s", "--fetch-timeout", "20s", NULL};

	return serve_fixture_start(fixture, arguments, ready);
}

static const json_t *own(const json_t *object, const char *name)
{
	return json_object_get(json_object_get(object, "clusterkv"), name);
}

static const char *text_of(const json_t *object)
{
	return json_string_value(
	    json_object_get(json_array_get(json_object_get(object, "choices"), 0), "text"));
}

static size_t length_of(const json_t *object)
{
	return json_string_length(
	    json_object_get(json_array_get(json_object_get(object, "choices"), 0), "text"));
}

static const char *body_of(const char *prompt, const char *more)
{
	static char body[4096];

	snprintf(body, sizeof body,
	    "{\"prompt\":\"%s%s%s%s\",\"temperature\":0,\"ignore_end\":true,%s}", prompt, prompt,
	    prompt, prompt, more);
	return body;
}

static const char prompt[] =
    "you and the one that is in the box of a hat on the hill to be at sea ";

static int ask(const struct serve_fixture *fixture, const char *body, struct serve_reply *reply)
{
	assert_true(serve_ask(fixture, "POST", "/v1/completions", body, reply));
	return reply->code;
}

/* The other worker about a sequence whose worker died: until the store has noticed the death. */
static int ask_heir(const char *body, struct serve_reply *reply)
{
	for (int i = 0; i < 400 && ask(&other, body, reply) == 409; i++) {
		serve_reply_deinit(reply);
		store_fixture_sleep(20);
	}
	return reply->code;
}

static void waits_for_a_store_that_comes_late(void **state)
{
	struct serve_reply reply;

	(void)state;
	assert_true(start_worker(&worker, "clusterkv", false));
	assert_true(serve_wait_status(&worker, "waiting for the store"));
	assert_true(serve_ask(&worker, "GET", "/health", NULL, &reply));
	assert_int_equal(reply.code, 503);
	serve_reply_deinit(&reply);
	assert_int_equal(ask(&worker, body_of(prompt, "\"max_tokens\":4"), &reply), 503);
	assert_non_null(strstr(reply.head, "Retry-After: "));
	serve_reply_deinit(&reply);

	assert_true(start_store());
	assert_true(serve_wait_status(&worker, "ok"));
	assert_int_equal(ask(&worker, body_of(prompt, "\"max_tokens\":4"), &reply), 200);
	serve_reply_deinit(&reply);
}

static void another_worker_finds_the_prompt(void **state)
{
	struct serve_reply reply, again;

	(void)state;
	assert_true(start_store());
	assert_true(start_worker(&worker, "clusterkv", true));
	assert_true(start_worker(&other, "clusterkv", true));
	assert_int_equal(ask(&worker, body_of(prompt, "\"max_tokens\":60"), &reply), 200);
	assert_int_equal(ask(&other, body_of(prompt, "\"max_tokens\":60"), &again), 200);
	assert_int_equal(json_integer_value(own(reply.json, "prefix_hit_tokens")), 0);
	assert_int_equal(json_integer_value(own(again.json, "prefix_hit_tokens")),
	    json_integer_value(own(again.json, "prompt_tokens")) - 1);
	assert_string_equal(text_of(reply.json), text_of(again.json));
	serve_reply_deinit(&reply);
	serve_reply_deinit(&again);
}

static unsigned events_of_second(const struct serve_call *call)
{
	unsigned count = 0;

	for (const char *at = call->raw; at != NULL && (at = strstr(at, "\"index\":1")) != NULL; at++)
		count++;
	return count;
}

/* Of two choices the one that was opened first fails first, and is the one that may be resumed. */
static void names_the_sequence_that_failed(const json_t *event)
{
	const char *message =
	    json_string_value(json_object_get(json_object_get(event, "error"), "message"));
	char named[96];

	snprintf(named, sizeof named, "(sequence %s)", json_string_value(own(event, "sequence")));
	if (message == NULL || strstr(message, named) == NULL)
		fail_msg("%s does not name %s", message != NULL ? message : "no error", named);
}

static void a_lost_store_ends_answers_and_comes_back(void **state)
{
	struct serve_call call;
	struct serve_reply reply, before;
	struct serve_stream stream;

	(void)state;
	assert_true(start_store());
	assert_true(start_worker(&worker, "clusterkv", true));
	assert_int_equal(ask(&worker, body_of(prompt, "\"max_tokens\":9"), &before), 200);
	assert_true(serve_call_open(&call, &worker, "POST", "/v1/completions",
	    body_of(prompt, "\"max_tokens\":15000,\"stream\":true,\"n\":2")));
	while (events_of_second(&call) < 3)
		assert_false(serve_call_ended(&call));
	store_fixture_kill(&store);
	assert_true(serve_call_finish(&call, &reply));
	assert_true(serve_stream_parse(&reply, &stream));
	assert_true(stream.done);
	assert_non_null(strstr(reply.body, "store connection lost during the answer"));
	names_the_sequence_that_failed(stream.last);
	serve_stream_deinit(&stream);
	serve_reply_deinit(&reply);
	assert_true(serve_wait_status(&worker, "waiting for the store"));
	assert_int_equal(ask(&worker, body_of(prompt, "\"max_tokens\":9"), &reply), 503);
	serve_reply_deinit(&reply);

	assert_true(start_store());
	assert_true(serve_wait_status(&worker, "ok"));
	assert_int_equal(ask(&worker, body_of(prompt, "\"max_tokens\":9"), &reply), 200);
	assert_int_equal(json_integer_value(own(reply.json, "prefix_hit_tokens")), 0);
	assert_string_equal(text_of(reply.json), text_of(before.json));
	serve_reply_deinit(&reply);
	serve_reply_deinit(&before);
}

/* The text of all whole events that have come so far, and how many tokens are behind it. */
static void take_apart(const struct serve_call *call, struct serve_stream *stream, uint32_t *tokens)
{
	struct serve_reply reply = {0};
	char copy[1 << 16], *body;
	size_t length = call->length < sizeof copy - 16 ? call->length : sizeof copy - 16;

	memcpy(copy, call->raw, length);
	copy[length] = '\0';
	body = strstr(copy, "\r\n\r\n");
	assert_non_null(body);
	*body = '\0';
	reply.head = copy;
	reply.body = body + 4;
	/* One chunk for each event, or more: what is cut off at the end is left out. */
	for (char *at = reply.body, *to = reply.body;;) {
		char *line = strstr(at, "\r\n");
		size_t size = line != NULL ? strtoul(at, NULL, 16) : 0;

		if (line == NULL || size == 0 || strlen(line + 2) < size + 2) {
			*to = '\0';
			break;
		}
		memmove(to, line + 2, size);
		to += size;
		at = line + 2 + size + 2;
	}
	assert_true(serve_stream_parse(&reply, stream));
	*tokens = (uint32_t)json_integer_value(own(stream->last, "tokens"));
}

/* `seen`, then `rest`, is `whole`; a model may say NUL bytes. */
static void texts_join(const struct serve_stream *seen, const json_t *rest, const json_t *whole)
{
	const char *expected = text_of(whole), *tail = text_of(rest);
	size_t length = length_of(whole), tail_length = length_of(rest);

	assert_int_equal(seen->text_length + tail_length, length);
	for (size_t i = 0; i < length; i++) {
		char byte = i < seen->text_length ? seen->text[i] : tail[i - seen->text_length];

		if (byte != expected[i])
			fail_msg("texts of %zu bytes differ at byte %zu; %zu were there", length, i,
			    seen->text_length);
	}
}

static void a_dead_workers_sequence_goes_on(void **state)
{
	struct serve_call call;
	struct serve_reply reference, resumed;
	struct serve_stream seen;
	char body[256];
	uint32_t have = 0;

	(void)state;
	assert_true(start_store());
	assert_true(start_worker(&worker, "clusterkv", true));
	assert_true(start_worker(&other, "clusterkv", true));
	/* The first one leaves the prompt in the store: then all runs find the same. */
	assert_int_equal(ask(&other, body_of(prompt, "\"max_tokens\":1"), &reference), 200);
	serve_reply_deinit(&reference);
	assert_int_equal(ask(&other, body_of(prompt, "\"max_tokens\":3000"), &reference), 200);
	assert_true(serve_call_open(&call, &worker, "POST", "/v1/completions",
	    body_of(prompt, "\"max_tokens\":3000,\"stream\":true,\"sequence\":\"heir\"")));
	assert_true(serve_call_read(&call, "\"tokens\":130}"));
	serve_fixture_signal(&worker, SIGKILL);
	take_apart(&call, &seen, &have);
	assert_true(have >= 130);
	assert_true(have < 3000);
	serve_call_close(&call);

	/* Who says that it has more than there can be does not make it go away. */
	if (ask_heir("{\"resume\":\"heir\",\"have_tokens\":3001}", &resumed) != 400)
		fail_msg("%d: %s", resumed.code, resumed.body);
	serve_reply_deinit(&resumed);
	snprintf(body, sizeof body, "{\"resume\":\"heir\",\"have_tokens\":%u}", have);
	if (ask_heir(body, &resumed) != 200) fail_msg("%d: %s", resumed.code, resumed.body);
	texts_join(&seen, resumed.json, reference.json);
	assert_int_equal(json_array_size(own(resumed.json, "tokens")), 3000 - have);
	serve_stream_deinit(&seen);
	serve_reply_deinit(&resumed);
	serve_reply_deinit(&reference);
	serve_fixture_wait(&worker);
}

static void expect_health(const struct serve_fixture *fixture, int code, const char *metric)
{
	struct serve_reply reply;

	assert_true(serve_ask(fixture, "GET", "/health", NULL, &reply));
	assert_int_equal(reply.code, code);
	serve_reply_deinit(&reply);
	assert_true(serve_ask(fixture, "GET", "/metrics", NULL, &reply));
	assert_non_null(strstr(reply.body, metric));
	serve_reply_deinit(&reply);
}

/* Nobody is to send it new requests; what it still takes it goes on taking. */
static void a_store_that_is_drained_is_told(void **state)
{
	struct serve_call call;
	struct serve_reply reply;
	char answer[128];

	(void)state;
	assert_true(start_store());
	assert_true(start_worker(&worker, "clusterkv", true));
	assert_true(start_worker(&other, "clusterkv", true));
	assert_true(serve_call_open(&call, &worker, "POST", "/v1/completions",
	    body_of(prompt, "\"max_tokens\":3000,\"stream\":true,\"sequence\":\"heir\"")));
	assert_true(serve_call_read(&call, "\"tokens\":20}"));
	serve_fixture_signal(&worker, SIGKILL);
	serve_fixture_wait(&worker);
	serve_call_close(&call);
	assert_true(store_fixture_ask(&store, "drain", answer, sizeof answer));
	assert_true(serve_wait_status(&other, "the store is being drained"));
	expect_health(&other, 503, "\nclusterkv_worker_ready 0\n");
	assert_int_equal(ask(&other, body_of(prompt, "\"max_tokens\":4"), &reply), 503);
	assert_non_null(strstr(reply.body, "store_draining"));
	serve_reply_deinit(&reply);
	if (ask_heir("{\"resume\":\"heir\",\"stream\":true}", &reply) != 200)
		fail_msg("%d: %s", reply.code, reply.body);
	assert_null(strstr(reply.body, "\"error\""));
	assert_non_null(strstr(reply.body, "data: [DONE]"));
	serve_reply_deinit(&reply);
	assert_true(store_fixture_ask(&store, "drain off", answer, sizeof answer));
	assert_true(serve_wait_status(&other, "ok"));
	expect_health(&other, 200, "\nclusterkv_worker_ready 1\n");
}

/* Long enough to be stopped in its middle. */
#if defined(__SANITIZE_THREAD__)
#define LONG_ANSWER 1500
#else
#define LONG_ANSWER 8000
#endif

static const char *end_of(const char *text, size_t most)
{
	size_t length = strlen(text);

	return length > most ? text + length - most : text;
}

static void a_stopped_workers_sequence_goes_on(void **state)
{
	struct serve_call call;
	struct serve_reply reply, resumed;
	struct serve_stream seen;
	char body[256], options[64];

	(void)state;
	assert_true(start_store());
	assert_true(start_worker(&worker, "clusterkv", true));
	assert_true(start_worker(&other, "clusterkv", true));
	snprintf(options, sizeof options, "\"max_tokens\":%d,\"stream\":true", LONG_ANSWER);
	assert_true(
	    serve_call_open(&call, &worker, "POST", "/v1/completions", body_of(prompt, options)));
	assert_true(serve_call_read(&call, "\"tokens\":"));
	serve_fixture_signal(&worker, SIGTERM);
	assert_true(serve_call_finish(&call, &reply));
	assert_true(serve_stream_parse(&reply, &seen));
	assert_true(seen.done);
	snprintf(body, sizeof body, "{\"resume\":\"%s\",\"stream\":true}", seen.sequence);
	serve_stream_deinit(&seen);
	serve_reply_deinit(&reply);
	assert_int_equal(serve_fixture_wait(&worker), 0);

	assert_int_equal(ask(&other, body, &resumed), 200);
	assert_true(serve_stream_parse(&resumed, &seen));
	if (json_array_size(own(seen.last, "tokens")) != LONG_ANSWER)
		fail_msg("not the whole answer: %.900s", end_of(resumed.body, 900));
	serve_stream_deinit(&seen);
	serve_reply_deinit(&resumed);
}

static void what_cannot_be_resumed(void **state)
{
	struct serve_call call;
	struct serve_reply reply;
	struct serve_stream stream;

	(void)state;
	assert_true(start_store());
	assert_true(start_worker(&worker, "clusterkv", true));
	assert_true(start_worker(&other, "clusterkv", true));
	assert_true(serve_call_open(&call, &worker, "POST", "/v1/completions",
	    body_of(prompt, "\"max_tokens\":15000,\"stream\":true,\"sequence\":\"long\"")));
	assert_true(serve_call_read(&call, "\"tokens\":"));
	/* A client that leaves takes its sequence with it. */
	serve_call_close(&call);
	assert_true(serve_wait_number(&worker, "running", 0));
	assert_int_equal(ask(&other, "{\"resume\":\"long\"}", &reply), 404);
	serve_reply_deinit(&reply);
	/* Full attention keeps nothing that could be resumed. */
	assert_true(serve_fixture_stop(&worker, false));
	assert_true(start_worker(&worker, "full", true));
	assert_int_equal(ask(&worker, "{\"resume\":\"long\"}", &reply), 400);
	serve_reply_deinit(&reply);
	assert_int_equal(
	    ask(&worker, body_of(prompt, "\"max_tokens\":5,\"stream\":true"), &reply), 200);
	assert_true(serve_stream_parse(&reply, &stream));
	assert_true(stream.done);
	serve_stream_deinit(&stream);
	serve_reply_deinit(&reply);
}

static int init(void **state)
{
	(void)state;
	memset(&worker, 0, sizeof worker);
	memset(&other, 0, sizeof other);
	return store_fixture_init(&store) ? 0 : -1;
}

static int deinit(void **state)
{
	bool first, second;

	(void)state;
	first = serve_fixture_stop(&worker, false);
	second = serve_fixture_stop(&other, false);
	return store_fixture_deinit(&store, !first || !second) && first && second ? 0 : -1;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(waits_for_a_store_that_comes_late, init, deinit),
	    cmocka_unit_test_setup_teardown(another_worker_finds_the_prompt, init, deinit),
	    cmocka_unit_test_setup_teardown(a_lost_store_ends_answers_and_comes_back, init, deinit),
	    cmocka_unit_test_setup_teardown(a_dead_workers_sequence_goes_on, init, deinit),
	    cmocka_unit_test_setup_teardown(a_store_that_is_drained_is_told, init, deinit),
	    cmocka_unit_test_setup_teardown(a_stopped_workers_sequence_goes_on, init, deinit),
	    cmocka_unit_test_setup_teardown(what_cannot_be_resumed, init, deinit),
	};

	if (argc > 1) transport = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
