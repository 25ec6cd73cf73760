/* A store that is killed or stopped while workers answer: no request hangs, every failure says what
 * happened, and workers answer again when the store is back. The first argument is the trial's
 * name, the second the transport. */
#include "tests/lib/trial.h"

#include <signal.h>
#include <unistd.h>

enum {
	REQUESTS = 3,
	BACK_MS = 20000,
	/* A call's deadline and a fetch's, and the lease: longer waits nobody. The rest is what a
	 * loaded machine adds. */
	FAIL_MS = 5000 + 2000 + 3000 + 5000
};

static struct trial trial;
static struct store_fixture store;
static struct serve_fixture worker;
static struct process process;
static const char *transport;
static uint32_t prompt_tokens, answer_tokens;

static bool start_store(void)
{
	const char *const arguments[] = {"--transport", transport, trial.memory, NULL};

	return store_fixture_start(&store, arguments);
}

static void serve(void)
{
	const char *const arguments[] = {"--store", store.address, "--transport", transport, NULL};

	trial_serve(&worker, &trial, arguments);
}

static char *body_of(unsigned number, uint32_t tokens, const char *more)
{
	int32_t *prompt = trial_prompt(&trial, number, prompt_tokens);
	char *body = trial_body(prompt, prompt_tokens, tokens, more);

	free(prompt);
	return body;
}

static void open_streams(struct serve_call calls[REQUESTS])
{
	for (unsigned i = 0; i < REQUESTS; i++) {
		char *body = body_of(i, answer_tokens, "\"stream\":true");

		assert_true(serve_call_open(&calls[i], &worker, "POST", "/v1/completions", body));
		free(body);
	}
	for (unsigned i = 0; i < REQUESTS; i++)
		assert_true(serve_call_tokens(&calls[i], trial.real ? 10 : 60));
}

/* Each stream ends, whole or with an error that names the store. */
static void check_streams(struct serve_call calls[REQUESTS], uint64_t since)
{
	for (unsigned i = 0; i < REQUESTS; i++) {
		struct serve_reply reply;
		struct serve_stream stream;
		const char *message;

		assert_true(serve_call_finish(&calls[i], &reply));
		assert_true(serve_stream_parse(&reply, &stream));
		assert_true(stream.done);
		message =
		    json_string_value(json_object_get(json_object_get(stream.last, "error"), "message"));
		if (message) {
			printf(
			    "after %llu ms: %s\n", (unsigned long long)(store_fixture_now() - since), message);
			assert_non_null(strstr(message, "store"));
			/* Where it can be resumed. */
			assert_non_null(json_object_get(trial_own(stream.last), "sequence"));
		} else {
			assert_int_equal(
			    json_array_size(json_object_get(trial_own(stream.last), "tokens")), answer_tokens);
		}
		serve_stream_deinit(&stream);
		serve_reply_deinit(&reply);
	}
	if (store_fixture_now() - since > FAIL_MS)
		fail_msg("it took %llu ms", (unsigned long long)(store_fixture_now() - since));
}

/* It is told at once that there is no store, however often it is asked. */
static void refuses_meanwhile(void)
{
	char *body = body_of(7, 4, "");
	struct serve_reply reply;
	uint64_t start = store_fixture_now();

	assert_true(serve_ask(&worker, "POST", "/v1/completions", body, &reply));
	assert_int_equal(reply.code, 503);
	assert_non_null(strstr(reply.body, "store"));
	assert_non_null(strstr(reply.head, "Retry-After: "));
	serve_reply_deinit(&reply);
	assert_true(store_fixture_now() - start < FAIL_MS);
	free(body);
}

static json_t *answer_again(void)
{
	char *body = body_of(0, trial.answer_tokens, "");
	uint64_t deadline = store_fixture_now() + BACK_MS;
	struct serve_reply reply;
	json_t *answer = NULL;

	while (!answer) {
		assert_true(serve_ask(&worker, "POST", "/v1/completions", body, &reply));
		if (reply.code == 200) answer = json_incref(reply.json);
		if (reply.code != 200 && reply.code != 503) fail_msg("%d: %s", reply.code, reply.body);
		serve_reply_deinit(&reply);
		if (!answer && store_fixture_now() > deadline) fail_msg("it never answers again");
		if (!answer) store_fixture_sleep(20);
	}
	free(body);
	return answer;
}

static void a_killed_store(void **state)
{
	struct serve_call calls[REQUESTS];
	json_t *before, *after;
	uint64_t killed;

	(void)state;
	serve();
	before = answer_again();
	open_streams(calls);
	killed = store_fixture_now();
	store_fixture_kill(&store);
	check_streams(calls, killed);
	assert_true(serve_wait_status(&worker, "waiting for the store"));
	refuses_meanwhile();

	assert_true(start_store());
	after = answer_again();
	/* Nothing was left of it: a cold run like the first. */
	assert_int_equal(trial_number(trial_own(after), "prefix_hit_tokens"), 0);
	trial_same_bits(trial_own(before), trial_own(after), "after a store's death");
	json_decref(before);
	json_decref(after);
}

static void a_store_that_is_there_again_at_once(void **state)
{
	struct serve_call calls[REQUESTS];
	json_t *before, *after;
	uint64_t killed;

	(void)state;
	serve();
	before = answer_again();
	open_streams(calls);
	killed = store_fixture_now();
	store_fixture_kill(&store);
	assert_true(start_store());
	check_streams(calls, killed);
	after = answer_again();
	trial_same_bits(trial_own(before), trial_own(after), "with the next store");
	json_decref(before);
	json_decref(after);
}

static void a_stopped_store(void **state)
{
	struct serve_call calls[REQUESTS];
	json_t *before, *after;
	uint64_t stopped;

	(void)state;
	serve();
	before = answer_again();
	open_streams(calls);
	stopped = store_fixture_now();
	store_fixture_signal(&store, SIGSTOP);
	check_streams(calls, stopped);
	refuses_meanwhile();

	store_fixture_signal(&store, SIGCONT);
	after = answer_again();
	/* It kept what it had. */
	assert_int_equal(trial_number(trial_own(after), "prefix_hit_tokens"), prompt_tokens - 1);
	trial_same_to_rounding(trial_own(before), trial_own(after), false, "after a stop");
	json_decref(before);
	json_decref(after);
	assert_true(store_fixture_wait_stat(&store, "sequences{state=\"active\"}", 0, BACK_MS));
}

/* A worker that connects to a stopped store: serve waits, generate gives up. */
static void a_store_that_does_not_answer(void **state)
{
	const char *const arguments[] = {
	    "--store", store.address, "--transport", transport, "--call-timeout", "1s", NULL};
	int32_t *prompt = trial_prompt(&trial, 0, 100);
	char *errors;

	(void)state;
	store_fixture_signal(&store, SIGSTOP);
	trial_generate_start(&process, &trial, prompt, 100, arguments);
	assert_int_equal(process_wait(&process, FAIL_MS), 1);
	errors = process_errors(&process);
	assert_non_null(strstr(errors, store.socket));
	printf("%s", strrchr(errors, 'Z') ? strrchr(errors, 'Z') : errors);
	free(errors);
	process_deinit(&process);
	store_fixture_signal(&store, SIGCONT);
	free(prompt);
}

static void generate_and_the_store(int number)
{
	const char *const arguments[] = {"--store", store.address, "--transport", transport, NULL};
	struct trial_arguments all;
	int32_t *prompt = trial_prompt(&trial, 0, prompt_tokens);
	char *ids = trial_ids(prompt, prompt_tokens, " "), *errors;
	char length[16];
	const char *const more[] = {"--tokens-file", "-", "--ignore-end", "--max-tokens", length, NULL};
	uint64_t start;
	int code;

	snprintf(length, sizeof length, "%u", answer_tokens);
	trial_command(&all, &trial, "generate");
	trial_add(&all, arguments);
	trial_add(&all, more);
	assert_true(process_start(&process, all.all, ids));
	for (start = store_fixture_now(); process_output_bytes(&process) < 20;) {
		assert_true(store_fixture_now() - start < trial.limit_ms);
		store_fixture_sleep(5);
	}
	if (number == SIGKILL)
		store_fixture_kill(&store);
	else
		store_fixture_signal(&store, number);
	code = process_wait(&process, trial.real ? trial.limit_ms : 2 * FAIL_MS);
	errors = process_errors(&process);
	if (code == 1) {
		const char *last = strstr(errors, "error gpu-worker: ");

		if (!last || !strstr(last, "store")) fail_msg("it does not name the store: %s", errors);
		printf("%s", last);
	} else {
		assert_int_equal(code, 0);
	}
	process_deinit(&process);
	free(errors);
	free(ids);
	free(prompt);
}

static void generate_and_a_killed_store(void **state)
{
	(void)state;
	generate_and_the_store(SIGKILL);
}

static void generate_and_a_stopped_store(void **state)
{
	(void)state;
	generate_and_the_store(SIGSTOP);
	store_fixture_signal(&store, SIGCONT);
}

static int begin(void **state)
{
	(void)state;
	memset(&worker, 0, sizeof worker);
	return store_fixture_init(&store) && start_store() ? 0 : -1;
}

static int end(void **state)
{
	bool clean;

	(void)state;
	store_fixture_signal(&store, SIGCONT);
	clean = serve_fixture_stop(&worker, false);
	process_deinit(&process);
	clean = store_fixture_deinit(&store, !clean) && clean;
	return clean && process_count(store.directory) == 0 ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	trial_deinit(&trial);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_killed_store, begin, end),
	    cmocka_unit_test_setup_teardown(a_store_that_is_there_again_at_once, begin, end),
	    cmocka_unit_test_setup_teardown(a_stopped_store, begin, end),
	    cmocka_unit_test_setup_teardown(a_store_that_does_not_answer, begin, end),
	    cmocka_unit_test_setup_teardown(generate_and_a_killed_store, begin, end),
	    cmocka_unit_test_setup_teardown(generate_and_a_stopped_store, begin, end),
	};

	if (!trial_init(&trial, argc > 1 ? argv[1] : "tiny_llama")) return 77;
	transport = argc > 2 ? argv[2] : "map";
	prompt_tokens = trial.real ? 1500 : 600;
	answer_tokens = trial.real ? 600 : 12000;
	if (argc > 3) cmocka_set_test_filter(argv[3]);
	return cmocka_run_group_tests(tests, NULL, tear_down);
}
