/* What the stats socket says of two workers, beside what they say themselves. The first argument is
 * the trial's name, the second the transport. */
#include "tests/lib/trial.h"

enum { PUSH_MS = 5000, ANSWER_BYTES = 1 << 18, ASKED = 2 };

static struct trial trial;
static struct store_fixture store;
static struct serve_fixture first, second;
static const char *transport;
static int32_t *prompt;

/* Sums over the answers that one worker gave. */
struct sums {
	double hit, miss, prompt, prefix, answers, decoded, steps;
};

static void add(struct sums *sums, const json_t *report)
{
	sums->hit += trial_cache(report, "hit_bytes");
	sums->miss += trial_cache(report, "miss_bytes");
	sums->prompt += trial_number(report, "prompt_tokens");
	sums->prefix += trial_number(report, "prefix_hit_tokens");
	sums->decoded += (double)json_array_size(json_object_get(report, "tokens"));
	/* The first token of each answer comes from the prefill. */
	sums->steps += (double)json_array_size(json_object_get(report, "tokens")) - 1;
	sums->answers++;
}

static double rate(double hit, double miss)
{
	return hit / (hit + miss);
}

static json_t *stats(void)
{
	char *text = malloc(ANSWER_BYTES);
	json_t *object;

	assert_non_null(text);
	assert_true(store_fixture_ask(&store, "stats json", text, ANSWER_BYTES));
	object = json_loads(text, 0, NULL);
	free(text);
	assert_non_null(object);
	return object;
}

static json_t *worker_of(const json_t *all, const char *name)
{
	json_t *worker = json_object_get(json_object_get(all, "workers"), name);

	if (!worker) fail_msg("stats json does not know worker %s", name);
	return worker;
}

static void same(const char *worker, const char *name, double value)
{
	char full[128];

	snprintf(full, sizeof full, "worker:%s:%s", worker, name);
	assert_true(store_fixture_wait_stat(&store, full, value, PUSH_MS));
}

static void near(double found, double expected)
{
	if (found < expected - 1e-6 || found > expected + 1e-6)
		fail_msg("%.9f is not %.9f", found, expected);
}

/* The text and the JSON say the same, and that is what the worker's answers said. */
static void agrees(const char *name, const struct sums *sums)
{
	json_t *all, *worker;

	same(name, "requests_total", sums->answers);
	same(name, "cache_hit_bytes_total", sums->hit);
	same(name, "cache_miss_bytes_total", sums->miss);
	same(name, "prompt_tokens_total", sums->prompt);
	same(name, "prefix_hit_tokens_total", sums->prefix);
	same(name, "decode_tokens_total", sums->decoded);
	same(name, "decode_steps_total", sums->steps);
	same(name, "active_sequences", 0);
	same(name, "failures_total", 0);
	all = stats();
	worker = worker_of(all, name);
	assert_true(trial_number(worker, "cache_hit_bytes_total") == sums->hit);
	near(trial_number(worker, "cache_hit_rate"), rate(sums->hit, sums->miss));
	json_decref(all);
}

static void check_connected(const char *name)
{
	json_t *all = stats(), *worker = worker_of(all, name);
	const char *lanes = json_string_value(json_object_get(worker, "lanes"));

	assert_string_equal(json_string_value(json_object_get(worker, "state")), "connected");
	if (!lanes || !lanes[0] || strcmp(lanes, "-") == 0) fail_msg("%s has no lanes", name);
	printf("%s: lanes %s\n", name, lanes);
	assert_string_equal(
	    json_string_value(json_object_get(worker, "model")), strrchr(trial.model, '/') + 1);
	assert_true(trial_number(worker, "heartbeat_age_seconds") < 3.0);
	json_decref(all);
}

static void serve(struct serve_fixture *worker, const char *name)
{
	const char *const arguments[] = {"--store", store.address, "--transport", transport, "--name",
	    name, "--cache", trial.real ? "16MiB" : "256KiB", NULL};

	trial_serve(worker, &trial, arguments);
}

static void both_workers_are_counted(void **state)
{
	char *body = trial_body(prompt, trial.prompt_tokens, trial.answer_tokens, "");
	struct sums one = {0}, two = {0};
	json_t *answer;
	double prompt_bytes;

	(void)state;
	serve(&first, "left");
	serve(&second, "right");
	for (unsigned i = 0; i < ASKED; i++) {
		answer = trial_ask(&first, body);
		add(&one, trial_own(answer));
		near(json_number_value(
		         json_object_get(json_object_get(trial_own(answer), "cache"), "hit_rate")),
		    rate(trial_cache(trial_own(answer), "hit_bytes"),
		        trial_cache(trial_own(answer), "miss_bytes")));
		json_decref(answer);
	}
	answer = trial_ask(&second, body);
	add(&two, trial_own(answer));
	json_decref(answer);
	free(body);

	agrees("left", &one);
	agrees("right", &two);
	assert_true(one.hit > 0 && one.miss > 0 && two.miss > 0);
	check_connected("left");
	check_connected("right");
	near(
	    store_fixture_stat(&store, "cache_hit_rate"), rate(one.hit + two.hit, one.miss + two.miss));

	assert_true(store_fixture_wait_stat(&store, "workers{state=\"connected\"}", 2, 0));
	assert_true(store_fixture_wait_stat(&store, "sequences{state=\"active\"}", 0, 1000));
	assert_true(store_fixture_wait_stat(&store, "sequences_opened_total", ASKED + 1, 0));
	/* What is kept is the prompt's: exact segments, at least its keys and values. */
	assert_true(store_fixture_stat(&store, "segments{state=\"committed\"}") >= 2);
	prompt_bytes = store_fixture_stat(&store, "arena_bytes{state=\"cached\"}");
	assert_true(prompt_bytes > 0);
	assert_true(store_fixture_stat(&store, "arena_bytes{state=\"leased\"}") == 0);
	assert_true(store_fixture_stat(&store, "arena_bytes{state=\"free\"}") + prompt_bytes <=
	            store_fixture_stat(&store, "arena_limit_bytes"));
}

/* While it decodes, its sequence holds what it reads. */
static void a_running_answer_is_seen(void **state)
{
	char *body =
	    trial_body(prompt, trial.prompt_tokens, trial.real ? 1000 : 12000, "\"stream\":true");
	struct serve_call call;

	(void)state;
	serve(&first, "left");
	assert_true(serve_call_open(&call, &first, "POST", "/v1/completions", body));
	assert_true(serve_call_read(&call, "\"tokens\":"));
	same("left", "active_sequences", 1);
	assert_true(store_fixture_wait_stat(&store, "sequences{state=\"active\"}", 1, 0));
	assert_true(store_fixture_stat(&store, "arena_bytes{state=\"leased\"}") > 0);
	serve_call_close(&call);
	assert_true(store_fixture_wait_stat(&store, "sequences{state=\"active\"}", 0, PUSH_MS));
	assert_true(store_fixture_wait_stat(&store, "arena_bytes{state=\"leased\"}", 0, PUSH_MS));
	free(body);
}

/* The last figures of a worker that has ended stay, as its own report had them. */
static void what_generate_says_stays(void **state)
{
	const char *const arguments[] = {"--store", store.address, "--transport", transport, "--name",
	    "once", "--cache", trial.real ? "16MiB" : "256KiB", NULL};
	struct sums sums = {0};
	json_t *report, *all;

	(void)state;
	report = trial_generate(&trial, prompt, trial.prompt_tokens, arguments);
	add(&sums, report);
	agrees("once", &sums);
	all = stats();
	assert_string_equal(
	    json_string_value(json_object_get(worker_of(all, "once"), "state")), "left");
	json_decref(all);
	json_decref(report);
}

static int set_up(void **state)
{
	(void)state;
	prompt = trial_prompt(&trial, 0, trial.prompt_tokens);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	free(prompt);
	trial_deinit(&trial);
	return 0;
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
	return store_fixture_deinit(&store, !clean) && clean ? 0 : -1;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(both_workers_are_counted, begin, end),
	    cmocka_unit_test_setup_teardown(a_running_answer_is_seen, begin, end),
	    cmocka_unit_test_setup_teardown(what_generate_says_stays, begin, end),
	};

	if (!trial_init(&trial, argc > 1 ? argv[1] : "tiny_llama")) return 77;
	transport = argc > 2 ? argv[2] : "map";
	if (argc > 3) cmocka_set_test_filter(argv[3]);
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
