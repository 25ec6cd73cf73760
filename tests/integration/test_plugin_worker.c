/* A worker on a plug-in gives the cpu backend's answer, inside its process and over each transport.
 * The argument is the plug-in's name: discrete gives the same bits, others the same tokens. */
#include "tests/lib/trial.h"

/* The emulator takes a second for what a device does in a millisecond. */
static uint32_t prompt_tokens = 900, answer_tokens = 120;
static const char *plugin = "discrete";
static struct trial trial;
static struct store_fixture store;
static int32_t *prompt;
static json_t *reference;
static double told; /* by the store's statistics: steps that the device ran by itself */

static json_t *answer(const char *transport, const char *backend)
{
	char folder[512];
	struct trial_arguments arguments = {0};
	const char *const on[] = {
	    "--backend", backend, "--cache", trial.small_cache, "--precision", "fp32", NULL};
	const char *const plugins[] = {"--backend-path", folder, NULL};
	const char *const inside[] = {"--store", "none", "--local-memory", "1GiB", NULL};
	json_t *report;

	snprintf(folder, sizeof folder, "%s/%s", KVT_PLUGINS, plugin);
	trial_add(&arguments, on);
	if (strcmp(backend, "cpu") != 0) trial_add(&arguments, plugins);
	if (transport == NULL) {
		trial_add(&arguments, inside);
		return trial_generate(&trial, prompt, prompt_tokens, arguments.all);
	}
	const char *const listen[] = {"--transport", transport, trial.memory, NULL};

	assert_true(store_fixture_init(&store));
	assert_true(store_fixture_start(&store, listen));
	const char *const outside[] = {
	    "--store", store.address, "--transport", transport, "--name", "probe", NULL};

	trial_add(&arguments, outside);
	report = trial_generate(&trial, prompt, prompt_tokens, arguments.all);
	told = store_fixture_stat(&store, "worker:probe:device_steps_total");
	assert_true(store_fixture_deinit(&store, false));
	memset(&store, 0, sizeof store);
	return report;
}

static void the_answer_is_the_cpu_backends(void **state)
{
	static const char *const transports[] = {"map", "ucx", NULL};

	(void)state;
	for (unsigned i = 0; i < (strcmp(plugin, "discrete") == 0 ? 3 : 2); i++) {
		json_t *report = answer(transports[i], "cuda");
		const char *where = transports[i] != NULL ? transports[i] : "inside";

		assert_int_equal(json_array_size(json_object_get(report, "tokens")), answer_tokens);
		assert_true(trial_cache(report, "miss_bytes") > 0);
		/* Where the store's memory can be registered, every step is the device's, unless it missed
		 * more than staging holds. */
		assert_true(trial_number(report, "device_steps") >=
		            (transports[i] != NULL ? answer_tokens / 2 : 0));
		if (transports[i] == NULL) assert_true(trial_number(report, "device_steps") == 0);
		if (transports[i] != NULL) assert_true(told == trial_number(report, "device_steps"));
		assert_string_equal(json_string_value(json_object_get(report, "backend")),
		    strcmp(plugin, "discrete") == 0 ? "discrete" : "cuda");
		if (strcmp(plugin, "discrete") == 0)
			trial_same_bits(reference, report, where);
		else
			trial_same_to_rounding(reference, report, true, where);
		json_decref(report);
	}
}

/* With a plug-in and no device, auto is the cpu. */
static void without_a_device_it_is_the_cpu(void **state)
{
	json_t *report;

	(void)state;
	if (strcmp(plugin, "emulated") != 0) skip();
	assert_int_equal(setenv("EMU_DEVICES", "0", 1), 0);
	report = answer(NULL, "auto");
	assert_string_equal(json_string_value(json_object_get(report, "backend")), "cpu");
	trial_same_bits(reference, report, "without a device");
	json_decref(report);
	assert_int_equal(unsetenv("EMU_DEVICES"), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_answer_is_the_cpu_backends),
	    cmocka_unit_test(without_a_device_it_is_the_cpu),
	};
	int failed;

	if (argc > 1) plugin = argv[1];
	if (!trial_init(&trial, "tiny_llama")) return 77;
	if (strcmp(plugin, "discrete") != 0) {
		prompt_tokens = 200;
		answer_tokens = 32;
	}
	trial.answer_tokens = answer_tokens;
	prompt = trial_prompt(&trial, 1, prompt_tokens);
	reference = answer(NULL, "cpu");
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	json_decref(reference);
	free(prompt);
	trial_deinit(&trial);
	return failed;
}
