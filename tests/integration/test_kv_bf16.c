/* Keys and values in bf16, on the CUDA backend run by the emulator: what is computed is near to
 * what the cpu backend computes in float, and the store shares nothing of it with f16. */
#include "tests/lib/trial.h"

#include <math.h>

enum { PROMPT = 150, STEPS = 6, TOP = 10 };

/* Of the mean negative log likelihood, where other clusters may be selected, and of a logit with
 * full attention: bf16 has 8 bits of a key or value, and these logits are around 15. */
static const double most_nll = 0.05, most_logit = 0.2;

static const char *folder = KVT_PLUGINS "/emulated";
static struct trial trial;
static int32_t *prompt;

static json_t *run(const char *command, const char *const *more)
{
	static const char *const always[] = {"--tokens-file", "-", "--json", NULL};
	/* Without the options of a policy: it is full. */
	const char *const logits[] = {KV_GPU_WORKER, "logits", "--model", trial.model, NULL};
	struct trial_arguments arguments = {0};

	if (strcmp(command, "logits") == 0)
		trial_add(&arguments, logits);
	else
		trial_command(&arguments, &trial, command);
	trial_add(&arguments, always);
	trial_add(&arguments, more);
	return trial_run(&trial, command, &arguments, prompt, PROMPT + STEPS + 1, NULL);
}

static void near_to_float(void **state)
{
	static const char *const lengths[] = {"--prefill", "150", "--decode", "6", NULL};
	const char *const bf16[] = {
	    "--backend", "cuda", "--backend-path", folder, "--kv-type", "bf16", NULL};
	static const char *const f32[] = {"--backend", "cpu", "--precision", "fp32", NULL};
	struct trial_arguments ours = {0}, theirs = {0};
	json_t *found, *expected;
	double difference;

	(void)state;
	trial_add(&ours, lengths);
	trial_add(&ours, bf16);
	trial_add(&theirs, lengths);
	trial_add(&theirs, f32);
	found = run("perplexity", ours.all);
	expected = run("perplexity", theirs.all);
	assert_string_equal(json_string_value(json_object_get(found, "kv_type")), "bf16");
	assert_string_equal(json_string_value(json_object_get(expected, "kv_type")), "f32");
	difference = fabs(trial_number(found, "nll_mean") - trial_number(expected, "nll_mean"));
	printf("the mean NLL differs by %.5f\n", difference);
	assert_true(difference <= most_nll);
	/* It is not f32 under another name. */
	assert_true(difference > 0.0);
	json_decref(found);
	json_decref(expected);
}

/* The best logits with full attention. */
static void logits_are_near(void **state)
{
	const char *const bf16[] = {
	    "--backend", "cuda", "--backend-path", folder, "--kv-type", "bf16", NULL};
	static const char *const f32[] = {"--backend", "cpu", "--precision", "fp32", NULL};
	json_t *found = run("logits", bf16), *expected = run("logits", f32), *logit;
	double worst = 0.0;
	size_t i;

	(void)state;
	json_array_foreach(json_object_get(expected, "top"), i, logit)
	{
		double one = trial_number(logit, "logit");
		double two = trial_number(json_array_get(json_object_get(found, "top"), i), "logit");

		if (fabs(one - two) > worst) worst = fabs(one - two);
	}
	assert_int_equal(i, TOP);
	printf("a logit differs by %.5f\n", worst);
	assert_true(worst <= most_logit);
	json_decref(found);
	json_decref(expected);
}

static uint32_t prefix_hit(const struct store_fixture *store, const char *type)
{
	const char *const options[] = {"--backend", "cuda", "--backend-path", folder, "--kv-type", type,
	    "--store", store->address, "--transport", "map", NULL};
	json_t *report = trial_generate(&trial, prompt, PROMPT, options);
	uint32_t hit = (uint32_t)trial_number(report, "prefix_hit_tokens");

	json_decref(report);
	return hit;
}

static void nothing_is_shared_with_f16(void **state)
{
	static const char *const listen[] = {"--transport", "map", "--memory=16MiB", NULL};
	struct store_fixture store = {0};

	(void)state;
	assert_true(store_fixture_init(&store));
	assert_true(store_fixture_start(&store, listen));
	assert_int_equal(prefix_hit(&store, "f16"), 0);
	assert_int_equal(prefix_hit(&store, "bf16"), 0);
	assert_int_equal(prefix_hit(&store, "bf16"), PROMPT - 1);
	assert_true(store_fixture_deinit(&store, false));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(near_to_float),
	    cmocka_unit_test(logits_are_near),
	    cmocka_unit_test(nothing_is_shared_with_f16),
	};
	int failed;

	if (!trial_init(&trial, "tiny_llama")) return 77;
	trial.answer_tokens = 2;
	prompt = trial_prompt(&trial, 1, PROMPT + STEPS + 1);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	free(prompt);
	trial_deinit(&trial);
	return failed;
}
