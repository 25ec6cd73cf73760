/* Logits, greedy text and likelihoods of the real gpu-worker on a real model, against goldens of a
 * float32 forward pass that rounds nothing.
 *
 *     test_golden_model MODEL PRECISION WHAT
 *
 * MODEL: smollm2 or qwen. PRECISION: fp32 or default. WHAT: all; quick (without the likelihood of
 * 2,048 tokens); ppl (that alone); short (prompts of at most 64 tokens, few steps: for sanitizers);
 * own (the project's own goldens, which need no ../shared); brief (the first of these, few steps:
 * for sanitizers that slow a worker down by tens). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "tests/golden/worker_command.h"

enum { PATH_BYTES = 4096, SHORT_TOKENS = 64, SHORT_STEPS = 8, EXIT_SKIPPED = 77 };

/* How far a precision may be from float32. llama.cpp's distance from it is of the default's size.
 */
struct tolerance {
	const char *precision;
	double top_logit, rms_logit; /* of the oracle's ten largest logits */
	double top1_margin;          /* the largest is the oracle's where its margin is over this */
	double mean_nll;             /* of 2,048 tokens */
	double greedy_margin; /* the oracle's token is taken where its margin is not under this */
};

static const struct tolerance tolerances[] = {
    {"fp32", 0.03, 0.03, -1.0, 0.001, 0.05},
    {"default", 1.0, 0.3, 0.3, 0.006, 0.7},
};

static const struct model {
	const char *name, *variable;
} models[] = {
    {"smollm2", "CLUSTERKV_MODEL_SMOLLM2"},
    {"qwen", "CLUSTERKV_MODEL_QWEN"},
};

static const struct model *model;
static const struct tolerance *tolerance;
static const char *model_path;
static int only_short, own, brief, skipped;

/* A golden file, or a skipped test. The caller owns the reference. */
static json_t *load_golden(const char *kind)
{
	char path[PATH_BYTES];
	json_error_t error;
	json_t *root;

	if (own)
		snprintf(path, sizeof path, "%s/%s.json", KV_OWN_GOLDENS, model->name);
	else
		snprintf(path, sizeof path, "%s/golden/%s_%s_dev.json", worker_shared(), kind, model->name);
	FILE *file = fopen(path, "rb");
	if (!file) {
		printf("skipped: there is no golden file %s\n", path);
		skipped = 1;
		skip();
	}
	root = json_loadf(file, 0, &error);
	fclose(file);
	if (!root) fail_msg("%s:%d: %s", path, error.line, error.text);
	return root;
}

static json_t *items_of(const json_t *root, const char *kind)
{
	json_t *items = json_object_get(root, own ? kind : "items");

	if (json_array_size(items) == 0) fail_msg("the golden file has no items of %s", kind);
	return items;
}

static double number(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);

	if (!json_is_number(value)) fail_msg("there is no number %s", key);
	return json_number_value(value);
}

static json_int_t id_at(const json_t *ids, size_t index)
{
	const json_t *id = json_array_get(ids, index);

	if (!json_is_integer(id)) fail_msg("there is no id %zu", index);
	return json_integer_value(id);
}

/* Run one command on token ids; the caller owns the reference. */
static json_t *run(const char *command, const json_t *ids, const char *const *more)
{
	const char *arguments[WORKER_ARGUMENTS] = {
	    command, "--model", model_path, "--precision", tolerance->precision, "--tokens-file", "-"};
	char *text = worker_ids(ids);
	json_t *report;
	int count = 7;

	for (int i = 0; more[i]; i++)
		arguments[count++] = more[i];
	assert_non_null(text);
	report = worker_command(arguments, text);
	free(text);
	if (!report) fail_msg("gpu-worker %s failed", command);
	return report;
}

static double logit_of(const json_t *top, json_int_t id)
{
	const json_t *entry;
	size_t index;

	json_array_foreach(top, index, entry)
	{
		if (json_integer_value(json_object_get(entry, "id")) == id) return number(entry, "logit");
	}
	fail_msg("token %lld, of the oracle's top ten, is not of the worker's top 200", (long long)id);
	return 0.0;
}

static void check_logits(const json_t *item)
{
	static const char *const more[] = {"--top", "200", NULL};
	const json_t *oracle = json_object_get(json_object_get(item, "f32_oracle"), "top10"), *entry;
	const char *name = json_string_value(json_object_get(item, "name"));
	json_t *report = run("logits", json_object_get(item, "ids"), more);
	const json_t *top = json_object_get(report, "top");
	double most = 0.0, squares = 0.0;
	size_t index;

	assert_int_equal(json_array_size(oracle), 10);
	json_array_foreach(oracle, index, entry)
	{
		double difference = fabs(logit_of(top, json_integer_value(json_object_get(entry, "id"))) -
		                         number(entry, "logit"));
		most = fmax(most, difference);
		squares += difference * difference;
	}
	double rms = sqrt(squares / 10.0);
	double margin =
	    number(json_array_get(oracle, 0), "logit") - number(json_array_get(oracle, 1), "logit");
	json_int_t first = json_integer_value(json_object_get(json_array_get(top, 0), "id"));
	json_int_t wanted = json_integer_value(json_object_get(json_array_get(oracle, 0), "id"));

	printf("%s: logits differ by at most %.4f, rms %.4f\n", name, most, rms);
	if (!(most <= tolerance->top_logit && rms <= tolerance->rms_logit))
		fail_msg("%s: logits differ by %.4f, rms %.4f; allowed are %g and %g", name, most, rms,
		    tolerance->top_logit, tolerance->rms_logit);
	if (first != wanted && margin > tolerance->top1_margin)
		fail_msg("%s: the likeliest token is %lld, not %lld (margin %.3f)", name, (long long)first,
		    (long long)wanted, margin);
	json_decref(report);
}

static void test_logits(void **state)
{
	json_t *root = load_golden("logits"), *item;
	size_t index, checked = 0;

	(void)state;
	json_array_foreach(items_of(root, "logits"), index, item)
	{
		if (only_short && json_array_size(json_object_get(item, "ids")) > SHORT_TOKENS) continue;
		if (brief && checked > 0) break;
		check_logits(item);
		checked++;
	}
	assert_true(checked > 0);
	json_decref(root);
}

/* The oracle was given `forced` and says, at each step, what follows and by which margin. As long
 * as the worker has taken the same tokens it must say the same, unless the margin is small. */
static void compare_greedy(const json_t *item, const json_t *got, size_t steps, const char *what)
{
	const json_t *oracle = json_object_get(item, "f32_oracle");
	const json_t *ids = json_object_get(oracle, "ids");
	const json_t *margins = json_object_get(oracle, "margins");
	const json_t *forced = json_object_get(item, "ids");
	size_t step;

	assert_int_equal(json_array_size(got), steps);
	for (step = 0; step < steps; step++) {
		json_int_t token = id_at(got, step), wanted = id_at(ids, step);
		double margin = json_number_value(json_array_get(margins, step));

		if (token != wanted && !(margin < tolerance->greedy_margin))
			fail_msg("%s: token %zu is %lld, not %lld, whose margin is %.4f", what, step,
			    (long long)token, (long long)wanted, margin);
		if (token != id_at(forced, step)) break;
	}
	printf("%s: %zu of %zu steps compared\n", what, step < steps ? step + 1 : steps, steps);
}

static void check_greedy(const json_t *item, size_t index, const char *policy)
{
	const json_t *prompt = json_object_get(item, "prompt_ids");
	size_t steps = json_array_size(json_object_get(item, "ids"));
	char limit[24], what[128];

	if (only_short && steps > SHORT_STEPS) steps = SHORT_STEPS;
	assert_true(steps > 0);
	snprintf(limit, sizeof limit, "%zu", steps);
	snprintf(what, sizeof what, "prompt %zu of %zu tokens, policy %s", index,
	    json_array_size(prompt), policy);
	const char *const more[] = {"--policy", policy, "--max-tokens", limit, "--ignore-end", NULL};
	json_t *report = run("generate", prompt, more);

	compare_greedy(item, json_object_get(report, "tokens"), steps, what);
	json_decref(report);
}

static void test_greedy(void **state)
{
	json_t *root = load_golden("greedy"), *item;
	size_t index, checked = 0;

	json_array_foreach(items_of(root, "greedy"), index, item)
	{
		size_t tokens = json_array_size(json_object_get(item, "prompt_ids"));

		if (only_short && tokens > SHORT_TOKENS) continue;
		if (brief && checked > 0) break;
		check_greedy(item, index, *state);
		checked++;
	}
	assert_true(checked > 0);
	json_decref(root);
}

static void test_ppl(void **state)
{
	static const char *const more[] = {NULL};
	json_t *root = load_golden("ppl");
	json_t *report = run("logits", json_object_get(root, "ids"), more);
	double got = number(report, "mean_nll"), wanted = number(root, "f32_oracle_mean_nll");

	(void)state;
	printf("mean NLL %.6f, float32 %.6f\n", got, wanted);
	if (!(fabs(got - wanted) <= tolerance->mean_nll))
		fail_msg(
		    "mean NLL is %.6f, float32 has %.6f: over %g apart", got, wanted, tolerance->mean_nll);
	json_decref(report);
	json_decref(root);
}

static char policy_full[] = "full", policy_clusterkv[] = "clusterkv";

static int run_quick(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_logits),
	    cmocka_unit_test_prestate(test_greedy, policy_full),
	    cmocka_unit_test_prestate(test_greedy, policy_clusterkv),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

static int run_brief(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_logits),
	    cmocka_unit_test_prestate(test_greedy, policy_clusterkv),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

static int run_ppl(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_ppl)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Read the arguments; 0 when one is wrong. */
static int choose(int argc, char **argv)
{
	static const char *const parts[] = {"all", "quick", "ppl", "short", "own", "brief"};
	int known = 0;

	for (size_t i = 0; argc == 4 && i < 2; i++) {
		if (strcmp(argv[1], models[i].name) == 0) model = &models[i];
		if (strcmp(argv[2], tolerances[i].precision) == 0) tolerance = &tolerances[i];
	}
	for (size_t i = 0; argc == 4 && i < sizeof parts / sizeof parts[0]; i++)
		known |= strcmp(argv[3], parts[i]) == 0;
	return model && tolerance && known;
}

int main(int argc, char **argv)
{
	int failed = 0;

	if (!choose(argc, argv)) {
		fprintf(stderr, "usage: test_golden_model smollm2|qwen fp32|default "
		                "all|quick|ppl|short|own|brief\n");
		return 2;
	}
	model_path = worker_environment(model->variable, "a model");
	if (!model_path) return EXIT_SKIPPED;
	brief = strcmp(argv[3], "brief") == 0;
	own = brief || strcmp(argv[3], "own") == 0;
	only_short = brief || strcmp(argv[3], "short") == 0;
	if (brief)
		failed += run_brief();
	else if (strcmp(argv[3], "ppl") != 0)
		failed += run_quick();
	if (strcmp(argv[3], "ppl") == 0 || strcmp(argv[3], "all") == 0) failed += run_ppl();
	return failed ? 1 : skipped ? EXIT_SKIPPED : 0;
}
