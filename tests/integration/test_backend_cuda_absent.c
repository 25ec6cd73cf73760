/* The worker with the plug-in that nvcc made, where there is no GPU, or not even CUDA's libraries:
 * one line says so and the answer is the CPU backend's; with --backend=cuda the worker ends with 1
 * and the reason. CLUSTERKV_CUDA_PLUGIN names the plug-in's folder, which is the build's otherwise.
 */
#include "tests/lib/trial.h"

#include <dlfcn.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LIMIT_MS = 60000, PATH_BYTES = 512, TEXT_BYTES = 4096 };

static const char plugin_name[] = "libclusterkv_cuda.so";
static const char *folder;
static char work[PATH_BYTES];

/* Run `generate` on a tiny model; its exit code, and what it wrote (the caller frees both). */
static int generate(const char *backend, const char *plugins, char **output, char **errors)
{
	const char *const arguments[] = {KV_GPU_WORKER, "generate", "--backend", backend,
	    "--model", "synthetic:tiny", "--prompt", "Nobody is here.", "--max-tokens", "12",
	    "--ignore-end", "--logits-digest", "--json", plugins != NULL ? "--backend-path" : NULL,
	    plugins, NULL};
	struct process process = {0};
	int code;

	assert_true(process_start(&process, arguments, NULL));
	code = process_wait(&process, LIMIT_MS);
	*output = process_output(&process);
	*errors = process_errors(&process);
	process_deinit(&process);
	return code;
}

static json_t *cpu_answer(void)
{
	char *output, *errors;
	json_t *report;

	if (generate("cpu", NULL, &output, &errors) != 0) fail_msg("%s", errors);
	report = json_loads(output, 0, NULL);
	assert_non_null(report);
	free(output);
	free(errors);
	return report;
}

/* Lines of a log in which `word` occurs. */
static unsigned lines_with(const char *text, const char *word)
{
	unsigned count = 0;

	while (*text) {
		size_t length = strcspn(text, "\n");
		char line[TEXT_BYTES];

		snprintf(line, sizeof line, "%.*s", (int)length, text);
		count += strstr(line, word) != NULL;
		text += length + (text[length] == '\n');
	}
	return count;
}

/* auto takes the CPU and says why in one line; cuda ends with the same reason. */
static void check(const char *plugins, const char *why)
{
	json_t *expected = cpu_answer(), *report;
	char *output, *errors;

	if (generate("auto", plugins, &output, &errors) != 0) fail_msg("%s", errors);
	report = json_loads(output, 0, NULL);
	assert_non_null(report);
	assert_string_equal(json_string_value(json_object_get(report, "backend")), "cpu");
	trial_same_bits(expected, report, "auto without a GPU");
	if (lines_with(errors, "cuda") + lines_with(errors, "CUDA") == 0 ||
	    lines_with(errors, why) != 1)
		fail_msg("one line with \"%s\" was expected:\n%s", why, errors);
	free(output);
	free(errors);
	json_decref(report);
	json_decref(expected);
	assert_int_equal(generate("cuda", plugins, &output, &errors), 1);
	assert_string_equal(output, "");
	if (lines_with(errors, why) != 1 || lines_with(errors, " error ") != 1)
		fail_msg("one error with \"%s\" was expected:\n%s", why, errors);
	free(output);
	free(errors);
}

/* cudart says that the driver is older than itself when there is none. */
static void no_driver(void **state)
{
	(void)state;
	check(folder, "driver");
}

/* A copy of the plug-in that asks for a cuBLAS which nobody has. */
static void copy_without_cublas(const char *target)
{
	char path[2 * PATH_BYTES];
	unsigned found = 0;
	struct stat file;
	FILE *stream;
	char *bytes;

	snprintf(path, sizeof path, "%s/%s", folder, plugin_name);
	stream = fopen(path, "rb");
	assert_non_null(stream);
	assert_int_equal(fstat(fileno(stream), &file), 0);
	bytes = malloc((size_t)file.st_size);
	assert_non_null(bytes);
	assert_int_equal(fread(bytes, 1, (size_t)file.st_size, stream), file.st_size);
	fclose(stream);
	for (off_t i = 0; i + 10 < file.st_size; i++) {
		if (memcmp(bytes + i, "libcublas.", 10) != 0) continue;
		memcpy(bytes + i, "libnoblas.", 10);
		found++;
	}
	assert_true(found > 0);
	snprintf(path, sizeof path, "%s/%s", target, plugin_name);
	stream = fopen(path, "wb");
	assert_non_null(stream);
	assert_int_equal(fwrite(bytes, 1, (size_t)file.st_size, stream), file.st_size);
	assert_int_equal(fclose(stream), 0);
	assert_int_equal(chmod(path, 0755), 0);
	free(bytes);
}

static void no_libraries(void **state)
{
	char path[2 * PATH_BYTES];

	(void)state;
	copy_without_cublas(work);
	check(work, "libnoblas.so");
	snprintf(path, sizeof path, "%s/%s", work, plugin_name);
	assert_int_equal(unlink(path), 0);
}

static void no_plugin(void **state)
{
	(void)state;
	check(work, plugin_name);
}

static int end(void **state)
{
	(void)state;
	return rmdir(work);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(no_driver),
	    cmocka_unit_test(no_libraries),
	    cmocka_unit_test(no_plugin),
	};
	char path[PATH_BYTES];
	void *driver = dlopen("libcuda.so.1", RTLD_LAZY);

	folder = getenv("CLUSTERKV_CUDA_PLUGIN");
	if (folder == NULL || *folder == '\0') folder = KV_CUDA_PLUGIN_FOLDER;
	snprintf(path, sizeof path, "%s/%s", folder, plugin_name);
	if (access(path, R_OK) != 0) {
		printf("skipped: no %s: build clusterkv_cuda in cuda-release, and name its folder in "
		       "CLUSTERKV_CUDA_PLUGIN\n", path);
		return 77;
	}
	if (driver != NULL) {
		printf("skipped: this machine has a driver for GPUs\n");
		return 77;
	}
	snprintf(work, sizeof work, "%s/clusterkv-absent.XXXXXX",
	    getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
	if (mkdtemp(work) == NULL) {
		printf("%s: %s\n", work, strerror(errno));
		return 1;
	}
	return cmocka_run_group_tests(tests, NULL, end);
}
