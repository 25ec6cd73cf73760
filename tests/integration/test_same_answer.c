/* The same answer, to the bit, wherever the key/values are, however much of them is cached, by
 * whichever command it is asked for, and beside whom it is computed. Every run here is cold: that
 * is, none finds a prefix. The argument is the trial's name. */
#include "tests/lib/trial.h"

enum { NEIGHBOURS = 3, NEIGHBOUR_PROMPT = 600 };

static struct trial trial;
static struct store_fixture store;
static struct serve_fixture worker;
static int32_t *prompt;
static json_t *reference; /* in the process, with the small cache */

static void start_store(const char *transport)
{
	const char *const arguments[] = {"--transport", transport, trial.memory, NULL};

	assert_true(store_fixture_init(&store));
	assert_true(store_fixture_start(&store, arguments));
}

static void stop_store(void)
{
	assert_true(store_fixture_deinit(&store, false));
	memset(&store, 0, sizeof store);
}

static json_t *generate(const char *transport, const char *cache, const char *const *more)
{
	struct trial_arguments arguments = {0};
	const char *const inside[] = {"--store", "none", "--local-memory", "1GiB", NULL};
	const char *const always[] = {"--cache", cache, NULL};
	json_t *report;

	trial_add(&arguments, always);
	if (transport) {
		start_store(transport);
		const char *const outside[] = {"--store", store.address, "--transport", transport, NULL};

		trial_add(&arguments, outside);
	} else {
		trial_add(&arguments, inside);
	}
	trial_add(&arguments, more);
	report = trial_generate(&trial, prompt, trial.prompt_tokens, arguments.all);
	if (transport) stop_store();
	assert_string_equal(
	    json_string_value(json_object_get(report, "transport")), transport ? transport : "local");
	return report;
}

static void check_selection(const json_t *report)
{
	assert_int_equal(trial_number(report, "prompt_tokens"), trial.prompt_tokens);
	assert_int_equal(trial_number(report, "prefix_hit_tokens"), 0);
	assert_int_equal(json_array_size(json_object_get(report, "tokens")), trial.answer_tokens);
	/* To the token: neither less nor more than was asked. */
	assert_true(trial_number(report, "budget_tokens_mean") == trial.budget);
	assert_true(trial_number(report, "lost_mass_estimated_mean") > 0);
	assert_true(trial_cache(report, "miss_bytes") > 0);
}

static void over_every_transport_with_every_cache(void **state)
{
	static const char *const transports[] = {NULL, "map", "ucx"};
	char what[64];

	(void)state;
	check_selection(reference);
	for (unsigned i = 0; i < 3; i++) {
		for (unsigned large = 0; large < 2; large++) {
			const char *cache = large ? trial.large_cache : trial.small_cache;
			json_t *report = generate(transports[i], cache, NULL);

			snprintf(what, sizeof what, "%s with a cache of %s",
			    transports[i] ? transports[i] : "inside", cache);
			check_selection(report);
			trial_same_bits(reference, report, what);
			/* The caches do differ. */
			if (large)
				assert_true(
				    trial_cache(report, "miss_bytes") < trial_cache(reference, "miss_bytes"));
			json_decref(report);
		}
	}
}

static void over_http(void **state)
{
	char *body = trial_body(prompt, trial.prompt_tokens, trial.answer_tokens, "");
	json_t *answer;

	(void)state;
	start_store("ucx");
	const char *const arguments[] = {"--store", store.address, "--transport", "ucx", NULL};

	trial_serve(&worker, &trial, arguments);
	answer = trial_ask(&worker, body);
	check_selection(trial_own(answer));
	trial_same_bits(reference, trial_own(answer), "over HTTP");
	json_decref(answer);
	free(body);
	assert_true(serve_fixture_stop(&worker, false));
	stop_store();
}

/* Two are there before it, one comes while it runs; all decode on after it has ended. */
static void beside_three_others(void **state)
{
	char *body = trial_body(prompt, trial.prompt_tokens, trial.answer_tokens, "");
	struct serve_call calls[NEIGHBOURS], call;
	json_t *answer;

	(void)state;
	start_store("map");
	const char *const arguments[] = {
	    "--store", store.address, "--transport", "map", "--drain-timeout", "100ms", NULL};

	trial_serve(&worker, &trial, arguments);
	for (unsigned i = 0; i < NEIGHBOURS; i++) {
		int32_t *other = trial_prompt(&trial, i + 1, NEIGHBOUR_PROMPT);
		char *long_body =
		    trial_body(other, NEIGHBOUR_PROMPT, trial.real ? 1000 : 12000, "\"stream\":true");

		if (i + 1 == NEIGHBOURS) {
			assert_true(serve_wait_number(&worker, "running", NEIGHBOURS - 1));
			assert_true(serve_call_open(&call, &worker, "POST", "/v1/completions", body));
		}
		assert_true(serve_call_open(&calls[i], &worker, "POST", "/v1/completions", long_body));
		free(long_body);
		free(other);
	}
	answer = trial_finish(&call);
	assert_true(serve_wait_number(&worker, "running", NEIGHBOURS));
	check_selection(trial_own(answer));
	trial_same_bits(reference, trial_own(answer), "beside three others");
	for (unsigned i = 0; i < NEIGHBOURS; i++)
		serve_call_close(&calls[i]);
	json_decref(answer);
	free(body);
	assert_true(serve_fixture_stop(&worker, false));
	stop_store();
}

static void a_budget_over_the_context_is_full_attention(void **state)
{
	static const char *const precisions[] = {"default", "fp32"};

	(void)state;
	for (unsigned fp32 = 0; fp32 < 2; fp32++) {
		const char *const all[] = {"--precision", precisions[fp32], "--budget", "16384", NULL};
		const char *const full[] = {"--precision", precisions[fp32], "--policy", "full", NULL};
		json_t *expected = generate(NULL, trial.large_cache, all), *found;

		found = trial_generate(&trial, prompt, trial.prompt_tokens, full);
		assert_string_equal(json_string_value(json_object_get(found, "policy")), "full");
		/* Its keys and values are the worker's own. */
		assert_string_equal(json_string_value(json_object_get(found, "transport")), "none");
		trial_same_to_rounding(found, expected, fp32, precisions[fp32]);
		json_decref(found);
		json_decref(expected);
	}
}

static void a_small_budget_changes_the_answer(void **state)
{
	const char *const full[] = {"--policy", "full", NULL};
	json_t *found = trial_generate(&trial, prompt, trial.prompt_tokens, full);

	(void)state;
	assert_string_not_equal(json_string_value(json_object_get(found, "logits_digest")),
	    json_string_value(json_object_get(reference, "logits_digest")));
	json_decref(found);
}

static int set_up(void **state)
{
	(void)state;
	prompt = trial_prompt(&trial, 0, trial.prompt_tokens);
	reference = generate(NULL, trial.small_cache, NULL);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	json_decref(reference);
	free(prompt);
	trial_deinit(&trial);
	return 0;
}

/* What a failed test leaves running. */
static int clean(void **state)
{
	(void)state;
	if (worker.pid > 0) serve_fixture_stop(&worker, true);
	if (store.directory[0]) store_fixture_deinit(&store, true);
	memset(&store, 0, sizeof store);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_teardown(over_every_transport_with_every_cache, clean),
	    cmocka_unit_test_teardown(over_http, clean),
	    cmocka_unit_test_teardown(beside_three_others, clean),
	    cmocka_unit_test_teardown(a_budget_over_the_context_is_full_attention, clean),
	    cmocka_unit_test_teardown(a_small_budget_changes_the_answer, clean),
	};

	if (!trial_init(&trial, argc > 1 ? argv[1] : "tiny_llama")) return 77;
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
