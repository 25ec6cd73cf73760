/* Policies by name, their tables of layers, what they fix, and options that contradict each other.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/policy/policy.h"

static const struct gw_policy_options usual = {.name = "clusterkv",
    .budget = 1024,
    .sinks = 16,
    .window = 128,
    .fold = 320,
    .segment = 4096,
    .cluster_tokens = 32,
    .dense_layers = 2,
    .iterations = 5,
    .size_term = 1,
    .estimate = 1,
    .center = 1};

static const struct gw_policy_ops *find(const char *name)
{
	const struct gw_policy_ops *policy = NULL;

	assert_int_equal(gw_policy_find(name, &policy), KV_OK);
	assert_string_equal(policy->name, name);
	assert_true(strlen(policy->help) > 10);
	return policy;
}

static void policies_have_names(void **state)
{
	const struct gw_policy_ops *policy = NULL;

	(void)state;
	assert_int_equal(find("clusterkv")->offloads, 1);
	assert_int_equal(find("clusterkv-paper")->offloads, 1);
	assert_int_equal(find("full")->offloads, 0);
	assert_int_equal(gw_policy_find("fuller", &policy), KV_INVALID);
	assert_null(policy);
	assert_non_null(strstr(kv_error_message(), "\"fuller\""));
	assert_non_null(strstr(kv_error_message(), "clusterkv-paper"));
	for (size_t i = 0; gw_policy_words[i] != NULL; i++)
		assert_non_null(strstr(kv_error_message(), gw_policy_words[i]));
	for (size_t i = 0; gw_policy_words[i] != NULL; i++)
		assert_string_equal(find(gw_policy_words[i])->name, gw_policy_words[i]);
	assert_int_equal(gw_policy_find("", &policy), KV_INVALID);
}

static void leading_layers_are_dense(void **state)
{
	struct gw_policy_options options = usual;

	(void)state;
	for (options.dense_layers = 0; options.dense_layers < 6; options.dense_layers++)
		for (uint32_t layer = 0; layer < 5; layer++) {
			const struct gw_layer_ops *ops = find("clusterkv")->layer(&options, layer);

			assert_ptr_equal(
			    ops, layer < options.dense_layers ? &gw_layer_dense : &gw_layer_clusters);
			assert_ptr_equal(find("clusterkv-paper")->layer(&options, layer), ops);
			assert_ptr_equal(find("full")->layer(&options, layer), &gw_layer_dense);
		}
	assert_null(gw_layer_dense.select);
	assert_int_equal(gw_layer_dense.clustered, 0);
	assert_non_null(gw_layer_clusters.select);
	assert_int_equal(gw_layer_clusters.clustered, 1);
}

static void the_paper_fixes_its_rule(void **state)
{
	struct gw_policy_options options = usual;

	(void)state;
	find("clusterkv-paper")->adjust(&options);
	assert_int_equal(options.cluster_tokens, 80);
	assert_int_equal(options.size_term, 0);
	assert_int_equal(options.estimate, 0);
	assert_int_equal(options.center, 0);
	assert_int_equal(options.budget, usual.budget);
	assert_int_equal(options.window, usual.window);
	options = usual;
	find("clusterkv")->adjust(&options);
	find("full")->adjust(&options);
	assert_int_equal(options.cluster_tokens, usual.cluster_tokens);
	assert_int_equal(options.size_term, 1);
	assert_int_equal(options.estimate, 1);
	assert_int_equal(options.center, 1);
}

static void assert_refused(const struct gw_policy_options *options, const char *option)
{
	assert_int_equal(gw_policy_options_check(options), KV_INVALID);
	if (strstr(kv_error_message(), option) == NULL)
		fail_msg("\"%s\" does not name %s", kv_error_message(), option);
}

static void options_are_checked_against_each_other(void **state)
{
	struct gw_policy_options options = usual;

	(void)state;
	assert_int_equal(gw_policy_options_check(&options), KV_OK);
	options.budget = 16;
	assert_refused(&options, "--budget 16");
	options.budget = 17;
	assert_int_equal(gw_policy_options_check(&options), KV_OK);
	options.budget = options.sinks = 0;
	assert_refused(&options, "--budget 0");
	options.budget = 1;
	assert_int_equal(gw_policy_options_check(&options), KV_OK);
	options = usual;
	options.fold = 0;
	assert_refused(&options, "--fold");
	options = usual;
	options.cluster_tokens = 0;
	assert_refused(&options, "--cluster-tokens");
	options = usual;
	options.segment = 31;
	assert_refused(&options, "--segment 31");
	options.segment = 32;
	assert_int_equal(gw_policy_options_check(&options), KV_OK);
	options.sinks = 32;
	assert_refused(&options, "--sinks 32");
	options = usual;
	options.iterations = 0;
	assert_refused(&options, "iterations");
	options = usual;
	options.window = 0;
	options.dense_layers = 0;
	assert_int_equal(gw_policy_options_check(&options), KV_OK);
}

/* More clusters than a backend takes at once: known before a prompt is. */
static void options_are_checked_against_a_model(void **state)
{
	struct gw_policy_options options = usual;
	struct gw_model_shape shape = {.head_dim = 128, .context = 131072};

	(void)state;
	assert_int_equal(gw_policy_shape_check(&options, &shape), KV_OK);
	options.segment = 65536;
	assert_int_equal(gw_policy_shape_check(&options, &shape), KV_OK);
	options.cluster_tokens = 16;
	assert_int_equal(gw_policy_shape_check(&options, &shape), KV_INVALID);
	assert_non_null(strstr(kv_error_message(), "--segment 65536 with --cluster-tokens 16"));
	assert_non_null(strstr(kv_error_message(), "raise --cluster-tokens to 32"));
	assert_non_null(strstr(kv_error_message(), "lower --segment to 32768"));
	options.segment = 32768;
	assert_int_equal(gw_policy_shape_check(&options, &shape), KV_OK);
	options.fold = 32769;
	assert_int_equal(gw_policy_shape_check(&options, &shape), KV_INVALID);
	assert_non_null(strstr(kv_error_message(), "--fold 32769"));
	shape.context = 32768;
	assert_int_equal(gw_policy_shape_check(&options, &shape), KV_OK);
	options = usual;
	options.segment = 65536;
	shape = (struct gw_model_shape){.head_dim = 256, .context = 131072};
	assert_int_equal(gw_policy_shape_check(&options, &shape), KV_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(policies_have_names),
	    cmocka_unit_test(leading_layers_are_dense),
	    cmocka_unit_test(the_paper_fixes_its_rule),
	    cmocka_unit_test(options_are_checked_against_each_other),
	    cmocka_unit_test(options_are_checked_against_a_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
