/* A worker shares a device's memory out before it takes any: what it prints is what it keeps to,
 * exactly so much is enough, and less is refused with the reason. The argument is the plug-in's
 * name. */
#include "tests/lib/trial.h"

enum { LIMIT_MS = 60000, PROMPT = 160, PROMPT_ALONE = 8 };

static const char *plugin = "discrete";
static char folder[512];
static struct trial trial;
static int32_t *prompt;

static int run(const char *command, const char *const *more, char **errors)
{
	struct trial_arguments arguments = {0};
	const char *const on[] = {"--backend", "cuda", "--backend-path", folder, NULL};
	char *input = trial_ids(prompt, PROMPT, " ");
	struct process process = {0};
	int code;

	trial_command(&arguments, &trial, command);
	trial_add(&arguments, on);
	trial_add(&arguments, more);
	assert_true(process_start(&process, arguments.all, input));
	free(input);
	code = process_wait(&process, LIMIT_MS);
	*errors = process_errors(&process);
	process_deinit(&process);
	return code;
}

/* Run; the exit code is `code`, and what it says has the words. */
static void expect(const char *command, const char *const *more, int code, const char *const *words)
{
	char *errors;
	int found = run(command, more, &errors);

	if (found != code) fail_msg("%s: exit code %d\n%s", command, found, errors);
	for (unsigned i = 0; words[i] != NULL; i++)
		if (strstr(errors, words[i]) == NULL)
			fail_msg("%s: \"%s\" was expected:\n%s", command, words[i], errors);
	free(errors);
}

static json_t *answer(const char *memory, const char *cache)
{
	const char *const options[] = {"--backend", "cuda", "--backend-path", folder,
	    "--device-memory", memory, "--cache", cache, NULL};

	return trial_generate(&trial, prompt, PROMPT, options);
}

static double sum_of_parts(const json_t *memory)
{
	json_t *planned = json_object_get(memory, "planned"), *part;
	const char *key;
	double sum = 0.0;

	json_object_foreach(planned, key, part)
		sum += json_number_value(part);
	assert_true(json_object_size(planned) == 9);
	return sum;
}

static void so_much_is_enough_and_less_is_refused(void **state)
{
	static const char *const words[] = {"--device-memory", "are needed", "for 1 sequence of ",
	    "weights", "dense layers", "activations", "cluster cache", "lower --", NULL};
	json_t *report = answer("256MiB", "64KiB"), *memory = json_object_get(report, "device_memory");
	double sum = sum_of_parts(memory), peak;
	char bytes[32], less[32], tokens[16];
	const char *const too_little[] = {"--tokens-file", "-", "--max-tokens", tokens, "--cache",
	    "64KiB", "--device-memory", less, NULL};

	(void)state;
	peak = trial_number(json_object_get(memory, "taken"), "peak");
	printf("%s: %.0f bytes taken of %.0f planned\n", plugin, peak, sum);
	assert_true(peak <= sum);
	assert_true(sum <= 1.1 * peak);
	assert_true(trial_number(memory, "limit_bytes") == 256.0 * (1 << 20));
	assert_true(trial_number(memory, "context") == PROMPT + trial.answer_tokens);
	json_decref(report);
	/* To the byte. */
	snprintf(bytes, sizeof bytes, "%.0f", sum);
	snprintf(less, sizeof less, "%.0f", sum - 1.0);
	snprintf(tokens, sizeof tokens, "%u", trial.answer_tokens);
	report = answer(bytes, "64KiB");
	assert_true(trial_number(json_object_get(json_object_get(report, "device_memory"), "taken"),
	                "peak") == peak);
	json_decref(report);
	expect("generate", too_little, 2, words);
}

/* Sequences and their length count. */
static void a_server_is_refused_what_it_could_not_keep(void **state)
{
	static const char *const words[] = {
	    "for 16 sequences of 1500 tokens", "dense layers", "lower --", NULL};
	static const char *const fine[] = {"for 2 sequences of 100 tokens", NULL};
	const char *memory = strcmp(plugin, "discrete") == 0 ? "16MiB" : "90MiB";
	const char *const large[] = {"--check", "--max-sequences", "16", "--context", "1500",
	    "--device-memory", memory, "--dense-layers", "3", NULL};
	static const char *const none[] = {"--device-memory 1.0 MiB", "are needed", NULL};
	static const char *const tiny[] = {"--max-sequences", "2", "--device-memory", "1MiB", NULL};
	const char *const small[] = {"--check", "--max-sequences", "2", "--context", "100",
	    "--device-memory", memory, "--dense-layers", "3", NULL};

	(void)state;
	expect("serve", large, 2, words);
	expect("serve", small, 0, fine);
	/* Less than the backend itself begins with. */
	expect("serve", tiny, 2, none);
}

/* Without --cache what is left is the cache's, but no more than all rows of all sequences. */
static void the_rest_is_the_cache(void **state)
{
	const char *const options[] = {"--backend", "cuda", "--backend-path", folder,
	    "--device-memory", "120MiB", NULL};
	json_t *report = trial_generate(&trial, prompt, PROMPT_ALONE, options);
	json_t *memory = json_object_get(report, "device_memory");
	double cache = trial_number(json_object_get(memory, "planned"), "cluster_cache");

	(void)state;
	assert_true(cache > 0.0);
	assert_true(cache == json_number_value(json_object_get(
	                         json_object_get(report, "memory"), "cluster_cache_capacity_bytes")));
	assert_true(sum_of_parts(memory) < 120.0 * (1 << 20));
	json_decref(report);
}

static void a_check_opens_the_device(void **state)
{
	static const char *const told[] = {"device memory in MiB", "weights", "cluster cache", NULL};
	static const char *const no_plugin[] = {"backend cuda", "/nowhere", NULL};
	static const char *const no_device[] = {"backend cuda", "no CUDA device", NULL};
	const char *const plain[] = {"--check", NULL};
	const char *const nowhere[] = {"--check", "--backend-path", "/nowhere", NULL};

	(void)state;
	expect("serve", plain, 0, told);
	expect("serve", nowhere, 1, no_plugin);
	if (strcmp(plugin, "emulated") != 0) return;
	assert_int_equal(setenv("EMU_DEVICES", "0", 1), 0);
	expect("serve", plain, 1, no_device);
	expect("generate", plain, 1, no_device);
	assert_int_equal(unsetenv("EMU_DEVICES"), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(so_much_is_enough_and_less_is_refused),
	    cmocka_unit_test(a_server_is_refused_what_it_could_not_keep),
	    cmocka_unit_test(the_rest_is_the_cache),
	    cmocka_unit_test(a_check_opens_the_device),
	};
	int failed;

	if (argc > 1) plugin = argv[1];
	snprintf(folder, sizeof folder, "%s/%s", KVT_PLUGINS, plugin);
	if (!trial_init(&trial, "tiny_llama")) return 77;
	/* The emulator takes a second for what a device does in a millisecond. */
	trial.answer_tokens = strcmp(plugin, "discrete") == 0 ? 60 : 4;
	prompt = trial_prompt(&trial, 1, PROMPT);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	free(prompt);
	trial_deinit(&trial);
	return failed;
}
