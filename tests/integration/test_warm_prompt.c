/* What one worker has computed, another need not: whole prompts and beginnings of prompts, found in
 * the store by another process. The first argument is the trial's name, the second the transport.
 */
#include "tests/lib/trial.h"

enum { SLACK = 16 }; /* tokens before the parting that may be computed again */

/* Of the first worker's time to the first token, what the second may take. */
#define MOST_TIME 0.1

static struct trial trial;
static struct store_fixture store;
static struct serve_fixture first, second;
static const char *transport;
static uint32_t part_at, whole;
static int32_t *prompt, *other;

static void start_store(void)
{
	const char *const arguments[] = {"--transport", transport, trial.memory, NULL};

	assert_true(store_fixture_init(&store));
	assert_true(store_fixture_start(&store, arguments));
}

static const char *precision = "default";

static json_t *generate(const int32_t *ids, uint32_t tokens)
{
	const char *const arguments[] = {
	    "--store", store.address, "--transport", transport, "--precision", precision, NULL};

	return trial_generate(&trial, ids, tokens, arguments);
}

static void the_same_prompt(void **state)
{
	json_t *cold, *warm, *again;

	(void)state;
	cold = generate(prompt, trial.prompt_tokens);
	warm = generate(prompt, trial.prompt_tokens);
	again = generate(prompt, trial.prompt_tokens);
	assert_int_equal(trial_number(cold, "prefix_hit_tokens"), 0);
	assert_int_equal(trial_number(warm, "prefix_hit_tokens"), trial.prompt_tokens - 1);
	assert_int_equal(trial_number(again, "prefix_hit_tokens"), trial.prompt_tokens - 1);
	trial_same_to_rounding(cold, warm, false, "warm");
	/* Both attached the same segments. */
	trial_same_bits(warm, again, "warm twice");
	json_decref(cold);
	json_decref(warm);
	json_decref(again);
}

/* From the request's first byte to the first text, as a client sees it. */
static double first_token(const struct serve_fixture *worker, const char *body, json_t **answer)
{
	struct serve_call call;
	struct serve_reply reply;
	struct serve_stream stream;
	uint64_t start = store_fixture_now(), end;

	assert_true(serve_call_open(&call, worker, "POST", "/v1/completions", body));
	assert_true(serve_call_read(&call, "\"tokens\":"));
	end = store_fixture_now();
	assert_true(serve_call_finish(&call, &reply));
	assert_true(serve_stream_parse(&reply, &stream));
	*answer = json_incref(stream.last);
	serve_stream_deinit(&stream);
	serve_reply_deinit(&reply);
	return (double)(end - start);
}

static void the_first_token_comes_soon(void **state)
{
	const char *const arguments[] = {"--store", store.address, "--transport", transport, NULL};
	char *body = trial_body(prompt, trial.prompt_tokens, trial.answer_tokens, "\"stream\":true");
	json_t *cold, *warm;
	double slow, fast;

	(void)state;
	trial_serve(&first, &trial, arguments);
	trial_serve(&second, &trial, arguments);
	slow = first_token(&first, body, &cold);
	fast = first_token(&second, body, &warm);
	printf("first token after %.0f ms cold, %.0f ms warm: %.3f\n", slow, fast, fast / slow);
	assert_int_equal(trial_number(trial_own(cold), "prefix_hit_tokens"), 0);
	assert_int_equal(trial_number(trial_own(warm), "prefix_hit_tokens"), trial.prompt_tokens - 1);
	trial_same_to_rounding(trial_own(cold), trial_own(warm), false, "streamed");
	/* Tiny models take no longer than what else happens. */
	if (trial.real) assert_true(fast <= MOST_TIME * slow);
	json_decref(cold);
	json_decref(warm);
	free(body);
}

static void part(bool fp32)
{
	json_t *cold, *warm, *before;

	precision = fp32 ? "fp32" : "default";
	cold = generate(other, whole);
	assert_true(store_fixture_deinit(&store, false));
	start_store();
	before = generate(prompt, whole);
	warm = generate(other, whole);
	assert_int_equal(trial_number(cold, "prefix_hit_tokens"), 0);
	assert_true(trial_number(warm, "prefix_hit_tokens") >= part_at - SLACK);
	assert_true(trial_number(warm, "prefix_hit_tokens") <= part_at);
	trial_same_to_rounding(cold, warm, fp32, precision);
	assert_false(json_equal(json_object_get(before, "tokens"), json_object_get(warm, "tokens")));
	json_decref(cold);
	json_decref(before);
	json_decref(warm);
	precision = "default";
}

static void prompts_that_part(void **state)
{
	(void)state;
	part(false);
}

static void prompts_that_part_in_fp32(void **state)
{
	(void)state;
	part(true);
}

/* What is added to a prompt is all that a longer one costs. */
static void a_prompt_that_goes_on(void **state)
{
	uint32_t tokens = part_at;
	json_t *before, *warm;

	(void)state;
	before = generate(prompt, tokens);
	warm = generate(prompt, whole);
	assert_true(trial_number(warm, "prefix_hit_tokens") >= tokens - SLACK);
	json_decref(before);
	json_decref(warm);
}

static int set_up(void **state)
{
	int32_t *rest;

	(void)state;
	/* Two segments and a rest, as 5,000 tokens are with segments of 4,096. */
	part_at = trial.real ? 5000 : trial.segment * 2 + 290;
	whole = part_at + (trial.real ? 600 : 150);
	prompt = trial_prompt(&trial, 0, whole > trial.prompt_tokens ? whole : trial.prompt_tokens);
	other = trial_prompt(&trial, 0, whole);
	rest = trial_prompt(&trial, 3, whole);
	memcpy(other + part_at, rest + part_at, (whole - part_at) * sizeof *other);
	if (other[part_at] == prompt[part_at]) other[part_at] ^= 1;
	free(rest);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	free(prompt);
	free(other);
	trial_deinit(&trial);
	return 0;
}

static int begin(void **state)
{
	(void)state;
	memset(&first, 0, sizeof first);
	memset(&second, 0, sizeof second);
	start_store();
	return 0;
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
	    cmocka_unit_test_setup_teardown(the_same_prompt, begin, end),
	    cmocka_unit_test_setup_teardown(the_first_token_comes_soon, begin, end),
	    cmocka_unit_test_setup_teardown(prompts_that_part, begin, end),
	    cmocka_unit_test_setup_teardown(prompts_that_part_in_fp32, begin, end),
	    cmocka_unit_test_setup_teardown(a_prompt_that_goes_on, begin, end),
	};

	if (!trial_init(&trial, argc > 1 ? argv[1] : "tiny_llama")) return 77;
	transport = argc > 2 ? argv[2] : "map";
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
