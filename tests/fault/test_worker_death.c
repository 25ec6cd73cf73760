/* Workers that are killed while they answer: what they held goes back, and others give the rest of
 * the answer, to the token. The first argument is the trial's name, the second the transport. */
#include "tests/lib/trial.h"

#include <signal.h>

enum { REQUESTS = 3, LEASE_MS = 3000, SLACK_MS = 1000, TEXT_MS = 60000 };

static struct trial trial;
static struct store_fixture store;
static struct serve_fixture first, second;
static struct process process;
static const char *transport;
static uint32_t prompt_tokens;

/* Requests beside each other; the last one samples. */
static const struct request {
	const char *id, *sampling;
	const char *arguments[7];
} requests[REQUESTS] = {
    {"one", "\"temperature\":0", {NULL}},
    {"two", "\"temperature\":0", {NULL}},
    {"three", "\"temperature\":0.9,\"top_k\":40,\"seed\":7",
        {"--temperature", "0.9", "--top-k", "40", "--seed", "7", NULL}},
};

/* When it is killed, of what length of answer, and how the answer is folded until then. */
struct moment {
	const char *fold, *length;
	uint32_t at;
};

static const char *tiny_length(void)
{
	return TRIAL_SANITIZED ? "450" : "2500";
}

static struct moment before_the_first_fold(void)
{
	return trial.real ? (struct moment){"320", "120", 40}
	                  : (struct moment){"8192", tiny_length(), 60};
}

static struct moment after_a_fold(void)
{
	return trial.real ? (struct moment){"64", "320", 220}
	                  : (struct moment){"32", tiny_length(), 100};
}

static json_t *undisturbed(unsigned number, const struct moment *moment)
{
	struct trial_arguments arguments = {0};
	const char *const own[] = {"--store", "none", "--local-memory", "1GiB", "--fold", moment->fold,
	    "--max-tokens", moment->length, NULL};
	int32_t *prompt = trial_prompt(&trial, number, prompt_tokens);
	json_t *report;

	trial_add(&arguments, own);
	trial_add(&arguments, requests[number].arguments);
	report = trial_generate(&trial, prompt, prompt_tokens, arguments.all);
	free(prompt);
	return report;
}

static void serve(struct serve_fixture *worker, const struct moment *moment)
{
	const char *const arguments[] = {
	    "--store", store.address, "--transport", transport, "--fold", moment->fold, NULL};

	trial_serve(worker, &trial, arguments);
}

static void open_request(struct serve_call *call, unsigned number, const struct moment *moment)
{
	int32_t *prompt = trial_prompt(&trial, number, prompt_tokens);
	char more[200], *body;

	snprintf(more, sizeof more, "\"stream\":true,\"sequence\":\"%s\",%s", requests[number].id,
	    requests[number].sampling);
	body = trial_body(prompt, prompt_tokens, (uint32_t)strtoul(moment->length, NULL, 10), more);
	assert_true(serve_call_open(call, &first, "POST", "/v1/completions", body));
	free(body);
	free(prompt);
}

static const char died[] = "worker_disconnects_total{reason=\"died\"}";
static const char closed[] = "worker_disconnects_total{reason=\"closed\"}";

static void wait_orphans(unsigned count, uint64_t killed)
{
	assert_true(store_fixture_wait_stat(&store, "sequences{state=\"active\"}", 0, LEASE_MS));
	assert_true(store_fixture_wait_stat(&store, "sequences{state=\"orphaned\"}", count, LEASE_MS));
	assert_true(store_fixture_wait_stat(&store, "segments{state=\"reserved\"}", 0, LEASE_MS));
	printf("lease dropped after %llu ms\n", (unsigned long long)(store_fixture_now() - killed));
	assert_true(store_fixture_now() - killed <= LEASE_MS);
}

/* The tokens from `have` on. */
static void check_tokens(const json_t *expected, const json_t *found, size_t have, const char *id)
{
	const json_t *all = json_object_get(expected, "tokens");
	const json_t *rest = json_object_get(found, "tokens");

	assert_int_equal(json_array_size(rest), json_array_size(all) - have);
	for (size_t i = 0; i < json_array_size(rest); i++)
		if (!json_equal(json_array_get(all, have + i), json_array_get(rest, i)))
			fail_msg("%s: tokens of %zu differ after %zu", id, json_array_size(all), have + i);
}

static void check_text(const json_t *expected, const json_t *answer)
{
	const json_t *choice = json_array_get(json_object_get(answer, "choices"), 0);

	assert_true(json_equal(json_object_get(expected, "text"), json_object_get(choice, "text")));
}

static void resume_all(json_t *const *expected, const struct moment *moment)
{
	struct serve_call calls[REQUESTS];

	for (unsigned i = 0; i < REQUESTS; i++) {
		/* One client has something already, and wants the rest. */
		uint32_t have = i == 1 ? moment->at : 0;
		char body[128];

		snprintf(body, sizeof body, "{\"resume\":\"%s\",\"have_tokens\":%u}", requests[i].id, have);
		assert_true(serve_call_open(&calls[i], &second, "POST", "/v1/completions", body));
	}
	for (unsigned i = 0; i < REQUESTS; i++) {
		json_t *answer = trial_finish(&calls[i]);

		check_tokens(expected[i], trial_own(answer), i == 1 ? moment->at : 0, requests[i].id);
		if (i != 1) check_text(expected[i], answer);
		json_decref(answer);
	}
}

/* Who asks anew, without the id, gets the answer too: the prompt is there. */
static void ask_anew(const json_t *expected, const struct moment *moment)
{
	int32_t *prompt = trial_prompt(&trial, 0, prompt_tokens);
	char *body = trial_body(prompt, prompt_tokens, (uint32_t)strtoul(moment->length, NULL, 10), "");
	json_t *answer = trial_ask(&second, body);

	assert_int_equal(trial_number(trial_own(answer), "prefix_hit_tokens"), prompt_tokens - 1);
	trial_same_to_rounding(expected, trial_own(answer), false, "asked anew");
	json_decref(answer);
	free(body);
	free(prompt);
}

static void kill_and_resume(struct moment moment)
{
	struct serve_call calls[REQUESTS];
	json_t *expected[REQUESTS];
	double deaths = store_fixture_stat(&store, died), leavers = store_fixture_stat(&store, closed);
	uint64_t killed;

	for (unsigned i = 0; i < REQUESTS; i++)
		expected[i] = undisturbed(i, &moment);
	serve(&first, &moment);
	serve(&second, &moment);
	for (unsigned i = 0; i < REQUESTS; i++)
		open_request(&calls[i], i, &moment);
	for (unsigned i = 0; i < REQUESTS; i++)
		assert_true(serve_call_tokens(&calls[i], moment.at));
	killed = store_fixture_now();
	serve_fixture_signal(&first, SIGKILL);
	serve_fixture_wait(&first);
	wait_orphans(REQUESTS, killed);
	assert_int_equal(store_fixture_stat(&store, died), deaths + 1);
	assert_int_equal(store_fixture_stat(&store, closed), leavers);
	assert_true(store_fixture_wait_stat(&store, "workers{state=\"connected\"}", 1, 0));

	resume_all(expected, &moment);
	ask_anew(expected[0], &moment);
	assert_true(store_fixture_wait_stat(&store, "sequences{state=\"orphaned\"}", 0, LEASE_MS));
	assert_true(store_fixture_wait_stat(&store, "arena_bytes{state=\"leased\"}", 0, LEASE_MS));
	/* Who stops says so, and does not count as dead. */
	serve_fixture_signal(&second, SIGTERM);
	serve_fixture_wait(&second);
	assert_true(store_fixture_wait_stat(&store, closed, leavers + 1, LEASE_MS));
	assert_int_equal(store_fixture_stat(&store, died), deaths + 1);
	for (unsigned i = 0; i < REQUESTS; i++) {
		serve_call_close(&calls[i]);
		json_decref(expected[i]);
	}
}

static void requests_killed_before_the_first_fold(void **state)
{
	(void)state;
	kill_and_resume(before_the_first_fold());
}

static void requests_killed_after_a_fold(void **state)
{
	(void)state;
	kill_and_resume(after_a_fold());
}

/* ---- one answer at the command line ---- */

static void start_generate(unsigned number, const struct moment *moment, const char *id)
{
	struct trial_arguments arguments;
	const char *const own[] = {"--store", store.address, "--transport", transport, "--fold",
	    moment->fold, "--max-tokens", moment->length, "--tokens-file", "-", "--ignore-end", NULL};
	const char *const named[] = {"--sequence", id, NULL};
	int32_t *prompt = trial_prompt(&trial, number, prompt_tokens);
	char *ids = trial_ids(prompt, prompt_tokens, " ");

	trial_command(&arguments, &trial, "generate");
	trial_add(&arguments, own);
	trial_add(&arguments, requests[number].arguments);
	if (id) trial_add(&arguments, named);
	assert_true(process_start(&process, arguments.all, ids));
	free(ids);
	free(prompt);
}

/* Most tokens are some bytes; that it is running still is seen when it is killed. */
static void wait_text(size_t bytes)
{
	uint64_t deadline = store_fixture_now() + TEXT_MS;

	while (process_output_bytes(&process) < bytes && store_fixture_now() < deadline)
		store_fixture_sleep(5);
	assert_true(process_output_bytes(&process) >= bytes);
}

/* It was said before the prompt was computed. */
static void read_id(char *id, size_t size)
{
	static const char mark[] = "generate: sequence ";
	char *errors = process_errors(&process);
	const char *at = strstr(errors, mark);

	assert_non_null(at);
	snprintf(id, size, "%.*s", (int)strcspn(at + strlen(mark), " \n"), at + strlen(mark));
	free(errors);
}

static void kill_generate(unsigned number, struct moment moment, const char *id)
{
	const char *const resume[] = {"--store", store.address, "--transport", transport, "--fold",
	    moment.fold, "--resume", NULL};
	json_t *expected = undisturbed(number, &moment), *found;
	struct trial_arguments arguments = {0};
	char printed[64];
	uint64_t killed;

	start_generate(number, &moment, id);
	wait_text(moment.at * 2);
	read_id(printed, sizeof printed);
	if (id) assert_string_equal(printed, id);
	killed = store_fixture_now();
	process_signal(&process, SIGKILL);
	assert_int_equal(process_wait(&process, TEXT_MS), -SIGKILL);
	process_deinit(&process);
	wait_orphans(1, killed);

	const char *const which[] = {printed, NULL};

	trial_add(&arguments, resume);
	trial_add(&arguments, which);
	found = trial_generate(&trial, NULL, 0, arguments.all);
	assert_int_equal(trial_number(found, "prefix_hit_tokens"), prompt_tokens);
	check_tokens(expected, found, 0, printed);
	assert_true(json_equal(json_object_get(expected, "text"), json_object_get(found, "text")));
	json_decref(expected);
	json_decref(found);
}

/* Nothing of it was committed: the other one computes the prompt, too. */
static void generate_is_killed_while_it_computes_the_prompt(void **state)
{
	struct moment moment = before_the_first_fold();
	const char *const resume[] = {"--store", store.address, "--transport", transport, "--fold",
	    moment.fold, "--resume", "early", NULL};
	uint32_t usual = prompt_tokens;
	json_t *expected, *found;
	uint64_t killed;

	(void)state;
	prompt_tokens = trial.real ? 3000 : TRIAL_SANITIZED ? 1500 : 6000;
	expected = undisturbed(0, &moment);
	start_generate(0, &moment, "early");
	assert_true(process_wait_error(&process, "sequence early", TEXT_MS));
	store_fixture_sleep(50);
	assert_int_equal(process_output_bytes(&process), 0);
	killed = store_fixture_now();
	process_signal(&process, SIGKILL);
	assert_int_equal(process_wait(&process, TEXT_MS), -SIGKILL);
	process_deinit(&process);
	wait_orphans(1, killed);
	found = trial_generate(&trial, NULL, 0, resume);
	check_tokens(expected, found, 0, "early");
	json_decref(expected);
	json_decref(found);
	prompt_tokens = usual;
}

static void generate_is_resumed_by_its_name(void **state)
{
	(void)state;
	kill_generate(0, after_a_fold(), "mine");
}

static void generate_is_resumed_by_the_printed_id(void **state)
{
	(void)state;
	kill_generate(2, before_the_first_fold(), NULL);
	kill_generate(2, after_a_fold(), NULL);
}

/* Clients are told to come again until it has found the store. */
static void ask_until_served(const struct moment *moment)
{
	uint64_t deadline = store_fixture_now() + TEXT_MS;
	bool served;

	do {
		struct serve_call call;

		open_request(&call, 1, moment);
		served = serve_call_tokens(&call, moment->at);
		if (!served && !strstr(call.raw, "Retry-After: ")) fail_msg("asked again: %s", call.raw);
		serve_call_close(&call);
		store_fixture_sleep(20);
	} while (!served && store_fixture_now() < deadline);
	assert_true(served);
}

/* One that sleeps past its lease has lost the sequence when it wakes, says so, and goes on. */
static void a_sleeping_worker_loses_its_answer(void **state)
{
	struct moment moment = after_a_fold();
	struct serve_call call;
	struct serve_reply reply;
	struct serve_stream stream;
	json_t *expected = undisturbed(0, &moment), *answer;
	uint64_t stopped;

	(void)state;
	serve(&first, &moment);
	serve(&second, &moment);
	open_request(&call, 0, &moment);
	assert_true(serve_call_tokens(&call, moment.at));
	stopped = store_fixture_now();
	serve_fixture_signal(&first, SIGSTOP);
	assert_true(
	    store_fixture_wait_stat(&store, "sequences{state=\"orphaned\"}", 1, LEASE_MS + SLACK_MS));
	printf("lease dropped after %llu ms\n", (unsigned long long)(store_fixture_now() - stopped));
	answer = trial_ask(&second, "{\"resume\":\"one\"}");
	check_tokens(expected, trial_own(answer), 0, "one");
	json_decref(answer);

	serve_fixture_signal(&first, SIGCONT);
	assert_true(serve_call_finish(&call, &reply));
	assert_true(serve_stream_parse(&reply, &stream));
	assert_true(stream.done);
	assert_non_null(json_object_get(stream.last, "error"));
	serve_stream_deinit(&stream);
	serve_reply_deinit(&reply);
	ask_until_served(&moment);
	json_decref(expected);
}

static int begin(void **state)
{
	const char *const arguments[] = {"--transport", transport, trial.memory, NULL};

	(void)state;
	memset(&first, 0, sizeof first);
	memset(&second, 0, sizeof second);
	return store_fixture_init(&store) && store_fixture_start(&store, arguments) ? 0 : -1;
}

static int end(void **state)
{
	bool clean = serve_fixture_stop(&first, false);

	(void)state;
	clean = serve_fixture_stop(&second, false) && clean;
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
	    cmocka_unit_test_setup_teardown(requests_killed_before_the_first_fold, begin, end),
	    cmocka_unit_test_setup_teardown(requests_killed_after_a_fold, begin, end),
	    cmocka_unit_test_setup_teardown(a_sleeping_worker_loses_its_answer, begin, end),
	    cmocka_unit_test_setup_teardown(
	        generate_is_killed_while_it_computes_the_prompt, begin, end),
	    cmocka_unit_test_setup_teardown(generate_is_resumed_by_its_name, begin, end),
	    cmocka_unit_test_setup_teardown(generate_is_resumed_by_the_printed_id, begin, end),
	};

	if (!trial_init(&trial, argc > 1 ? argv[1] : "tiny_llama")) return 77;
	transport = argc > 2 ? argv[2] : "map";
	prompt_tokens = trial.real ? 1500 : TRIAL_SANITIZED ? 300 : 600;
	if (argc > 3) cmocka_set_test_filter(argv[3]);
	return cmocka_run_group_tests(tests, NULL, tear_down);
}
