/* gpu-worker on models without a file: answers are the same for the same name, the report and the
 * log say that weights are random, and any text goes through the vocabulary and back. */
#include "tests/lib/trial.h"

enum { LIMIT_MS = 60000 };

static const char prompt[] =
    "What is nowhere cannot be read twice, says the owl: \xc3\xa9\xe2\x82\xac.";

/* Run gpu-worker; its exit code, and what it wrote (the caller frees both). */
static int run(const char *const *options, const char *input, char **output, char **errors)
{
	struct process process = {0};
	struct trial_arguments arguments = {.all = {KV_GPU_WORKER}, .count = 1};
	int code;

	trial_add(&arguments, options);
	assert_true(process_start(&process, arguments.all, input));
	code = process_wait(&process, LIMIT_MS);
	*output = process_output(&process);
	*errors = process_errors(&process);
	process_deinit(&process);
	return code;
}

static json_t *generate(const char *model)
{
	const char *const options[] = {"generate", "--backend", "cpu", "--model", model, "--prompt",
	    prompt, "--max-tokens", "24", "--ignore-end", "--logits-digest", "--json", "--budget", "16",
	    "--sinks", "4", "--window", "16", "--fold", "16", "--cluster-tokens", "4", NULL};
	char *output, *errors;
	json_t *report;

	if (run(options, NULL, &output, &errors) != 0) fail_msg("%s: %s", model, errors);
	assert_non_null(strstr(errors, "the weights are random"));
	report = json_loads(output, 0, NULL);
	assert_non_null(report);
	free(output);
	free(errors);
	return report;
}

static void answers(void **state)
{
	json_t *first = generate("synthetic:tiny,seed=5"), *again = generate("synthetic:tiny,seed=5");
	json_t *other = generate("synthetic:tiny,seed=6");

	(void)state;
	trial_same_bits(first, again, "the same seed");
	assert_int_equal(json_array_size(json_object_get(first, "tokens")), 24);
	assert_string_not_equal(json_string_value(json_object_get(first, "logits_digest")),
	    json_string_value(json_object_get(other, "logits_digest")));
	assert_string_equal(json_string_value(json_object_get(first, "weights")), "random");
	assert_string_equal(
	    json_string_value(json_object_get(first, "model")), "synthetic:tiny,seed=5");
	/* A prompt of over a window: clusters were selected, and not everything. */
	assert_true(trial_number(first, "budget_tokens_mean") > 0.0);
	json_decref(first);
	json_decref(again);
	json_decref(other);
}

static void text_and_back(void **state)
{
	static const char *const there[] = {
	    "tokenize", "--model", "synthetic:tiny", "--file", "-", NULL};
	static const char *const back[] = {
	    "detokenize", "--model", "synthetic:tiny", "--tokens-file", "-", NULL};
	char every[256 - 0x20 + 1], *ids, *text, *errors;
	size_t length = 0;

	(void)state;
	for (unsigned byte = 0x20; byte < 0x7f; byte++)
		every[length++] = (char)byte;
	every[length] = '\0';
	assert_int_equal(run(there, every, &ids, &errors), 0);
	free(errors);
	assert_int_equal(run(back, ids, &text, &errors), 0);
	assert_string_equal(text, every);
	free(errors);
	free(text);
	free(ids);
	assert_int_equal(run(there, prompt, &ids, &errors), 0);
	free(errors);
	assert_int_equal(run(back, ids, &text, &errors), 0);
	assert_string_equal(text, prompt);
	free(errors);
	free(text);
	free(ids);
}

static void unknown(void **state)
{
	static const char *const options[] = {
	    "generate", "--model", "synthetic:llama-4", "--prompt", "x", NULL};
	static const char *const check[] = {"serve", "--model", "synthetic:llama-4", "--check", NULL};
	const char *const *both[] = {options, check};
	char *output, *errors;

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(run(both[i], NULL, &output, &errors), 2);
		assert_non_null(strstr(errors, "llama-3.1-8b, llama-3.2-1b, tiny"));
		free(output);
		free(errors);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(answers),
	    cmocka_unit_test(text_and_back),
	    cmocka_unit_test(unknown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
