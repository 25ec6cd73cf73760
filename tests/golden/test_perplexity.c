/* How much a budget costs, over a novel: the perplexity of steps that free-run on approximate
 * key/values against full attention, and what an audit says was lost, against the figures that the
 * algorithm was chosen by (7,680 tokens of prompt, 512 steps, no window at the prompt's end).
 *
 * Takes minutes, so it is labelled slow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>
#include <unistd.h>

#include "tests/golden/worker_command.h"

enum { PATH_BYTES = 4096, EXIT_SKIPPED = 77 };

/* How far lost mass and output error may be from the reference, as a share of it. */
static const double audit_tolerance = 0.15;

/* A row of the table of measurements. */
struct expectation {
	const char *budget;
	int paper; /* clusters of 80, the paper's score, no estimate, no centring */
	double lost_mass, output_error;
	double perplexity_share; /* over full attention's, at most; 0: not checked */
};

static struct expectation expectations[] = {
    {"512", 0, 0.111, 0.050, 0.025},
    {"1024", 0, 0.062, 0.030, 0.010},
    {"512", 1, 0.123, 0.076, 0.0},
    {"1024", 1, 0.070, 0.045, 0.0},
};

static const char *model_path;
static char text_path[PATH_BYTES];

/* Run perplexity with more arguments; the caller owns the reference. */
static json_t *perplexity(const char *const *more)
{
	const char *arguments[WORKER_ARGUMENTS] = {"perplexity", "--model", model_path, "--file",
	    text_path, "--prefill", "7680", "--decode", "512", "--window", "0", "--fold", "1024"};
	int count = 13;

	for (int i = 0; more[i]; i++)
		arguments[count++] = more[i];
	json_t *report = worker_command(arguments, NULL);

	if (!report) fail_msg("gpu-worker perplexity failed");
	return report;
}

static double number(const json_t *report, const char *key)
{
	const json_t *value = json_object_get(report, key);

	if (!json_is_number(value)) fail_msg("the report has no number %s", key);
	return json_number_value(value);
}

static double full_perplexity(void)
{
	static const char *const more[] = {"--policy", "full", NULL};
	static double value;

	if (value > 0.0) return value;
	json_t *report = perplexity(more);

	value = number(report, "perplexity");
	printf("full attention: perplexity %.3f\n", value);
	json_decref(report);
	return value;
}

static void check_near(const char *what, double value, double reference)
{
	if (!(fabs(value - reference) <= audit_tolerance * reference))
		fail_msg(
		    "%s is %.4f, over %g %% from %.3f", what, value, 100.0 * audit_tolerance, reference);
}

static void test_budget(void **state)
{
	static const char *const paper[] = {"--cluster-tokens", "80", "--segment", "8192", "--score",
	    "paper", "--estimate", "off", "--center", "off", NULL};
	const struct expectation *e = *state;
	const char *more[WORKER_ARGUMENTS] = {
	    "--policy", "clusterkv", "--budget", e->budget, "--audit"};
	double budget = strcmp(e->budget, "512") == 0 ? 512.0 : 1024.0;

	for (int i = 0; e->paper && paper[i]; i++)
		more[5 + i] = paper[i];
	json_t *report = perplexity(more);
	double value = number(report, "perplexity"), lost = number(report, "lost_mass_mean");
	double error = number(report, "output_error_mean");

	printf("%s, budget %s: perplexity %.3f, lost mass %.4f, output error %.4f, recall %.3f\n",
	    e->paper ? "the paper's clusters" : "clusterkv", e->budget, value, lost, error,
	    number(report, "recall_mean"));
	if (fabs(number(report, "budget_tokens_mean") - budget) > 1e-6)
		fail_msg("%.4f tokens were attended for a budget of %s",
		    number(report, "budget_tokens_mean"), e->budget);
	check_near("lost mass", lost, e->lost_mass);
	check_near("output error", error, e->output_error);
	json_decref(report);
	if (e->perplexity_share <= 0.0) return;
	if (!(fabs(value / full_perplexity() - 1.0) <= e->perplexity_share))
		fail_msg("perplexity %.3f is over %g %% from full attention's %.3f", value,
		    100.0 * e->perplexity_share, full_perplexity());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_prestate(test_budget, &expectations[0]),
	    cmocka_unit_test_prestate(test_budget, &expectations[1]),
	    cmocka_unit_test_prestate(test_budget, &expectations[2]),
	    cmocka_unit_test_prestate(test_budget, &expectations[3]),
	};

	model_path = worker_environment("CLUSTERKV_MODEL_SMOLLM2", "a model");
	if (!model_path) return EXIT_SKIPPED;
	snprintf(text_path, sizeof text_path, "%s/data/novel.txt", worker_shared());
	if (access(text_path, R_OK) != 0) {
		printf("skipped: there is no text %s\n", text_path);
		return EXIT_SKIPPED;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
