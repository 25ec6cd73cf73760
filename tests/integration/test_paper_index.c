/* The policy clusterkv-paper asks a backend for the paper's way of summing centroids: the CUDA
 * backend, run by the emulator, says that it does so, and what comes of it is near to the cpu
 * backend's, which sums in order. */
#include "tests/lib/trial.h"

#include <math.h>

enum { TOKENS = 330 };

/* Of the mean negative log likelihood: key/values are f32, sums differ in their order only. */
static const double most_nll = 0.02;

static struct trial trial;
static int32_t *text;

static double run(const char *policy, const char *const *on, const char *said, bool expected)
{
	static const char *const always[] = {"--tokens-file", "-", "--json", "--prefill", "320",
	    "--decode", "4", "--precision", "fp32", NULL};
	const char *const chosen[] = {"--policy", policy, NULL};
	struct trial_arguments arguments = {0};
	json_t *report;
	char *errors;
	double nll;

	trial_command(&arguments, &trial, "perplexity");
	trial_add(&arguments, always);
	trial_add(&arguments, chosen);
	trial_add(&arguments, on);
	report = trial_run(&trial, policy, &arguments, text, TOKENS, &errors);
	if ((strstr(errors, said) != NULL) != expected)
		fail_msg("%s: \"%s\" was %sexpected:\n%s", policy, said, expected ? "" : "not ", errors);
	nll = trial_number(report, "nll_mean");
	json_decref(report);
	free(errors);
	return nll;
}

static void the_policy_asks_for_the_papers_sums(void **state)
{
	static const char *const cpu[] = {"--backend", "cpu", NULL};
	static const char *const cuda[] = {
	    "--backend", "cuda", "--backend-path", KVT_PLUGINS "/emulated", NULL};
	static const char *const said = "centroids are summed by the paper's kernel";
	double ours = run("clusterkv-paper", cuda, said, true);
	double theirs = run("clusterkv-paper", cpu, said, false);

	(void)state;
	run("clusterkv", cuda, said, false);
	printf("the mean NLL differs by %.6f\n", fabs(ours - theirs));
	assert_true(fabs(ours - theirs) <= most_nll);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(the_policy_asks_for_the_papers_sums)};
	int failed;

	if (!trial_init(&trial, "tiny_llama")) return 77;
	text = trial_prompt(&trial, 1, TOKENS);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	free(text);
	trial_deinit(&trial);
	return failed;
}
