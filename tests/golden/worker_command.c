#include "tests/golden/worker_command.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEADLINE_SECONDS = 1800, ID_BYTES = 12 };

static void run_child(const char *const *arguments, FILE *input, FILE *output, FILE *errors)
{
	char *copy[WORKER_ARGUMENTS + 5] = {0};
	static const char *const added[] = {"--json", "--log-level", "error"};
	int count = 0;

	copy[count++] = (char *)(uintptr_t)KV_GPU_WORKER;
	for (int i = 0; i < WORKER_ARGUMENTS && arguments[i]; i++)
		copy[count++] = (char *)(uintptr_t)arguments[i];
	for (int i = 0; i < 3; i++)
		copy[count++] = (char *)(uintptr_t)added[i];
	dup2(fileno(input), 0);
	dup2(fileno(output), 1);
	dup2(fileno(errors), 2);
	/* It outlives exec, and then this process, should that be ended. */
	alarm(DEADLINE_SECONDS);
	execv(KV_GPU_WORKER, copy);
	perror(KV_GPU_WORKER);
	_exit(127);
}

static void complain(const char *const *arguments, int status, FILE *errors, const char *why)
{
	char bytes[4096];
	size_t n;

	fprintf(stderr, "gpu-worker");
	for (int i = 0; arguments[i]; i++)
		fprintf(stderr, " %s", arguments[i]);
	if (WIFSIGNALED(status))
		fprintf(stderr, ": ended by signal %d", WTERMSIG(status));
	else
		fprintf(stderr, ": exit code %d", WEXITSTATUS(status));
	fprintf(stderr, "; %s\n", why);
	rewind(errors);
	while ((n = fread(bytes, 1, sizeof bytes, errors)) > 0)
		fwrite(bytes, 1, n, stderr);
}

static json_t *run(
    const char *const *arguments, const char *text, FILE *input, FILE *output, FILE *errors)
{
	json_error_t error = {0};
	json_t *object = NULL;
	int status = 0;
	pid_t pid;

	if (text) fputs(text, input);
	fflush(input);
	rewind(input);
	fflush(stdout);
	pid = fork();
	if (pid < 0) {
		perror("fork");
		return NULL;
	}
	if (pid == 0) run_child(arguments, input, output, errors);
	if (waitpid(pid, &status, 0) != pid) {
		perror("waitpid");
		return NULL;
	}
	rewind(output);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0) object = json_loadf(output, 0, &error);
	if (!object) complain(arguments, status, errors, error.text);
	return object;
}

json_t *worker_command(const char *const *arguments, const char *text)
{
	FILE *input = tmpfile(), *output = tmpfile(), *errors = tmpfile();
	json_t *object = NULL;

	if (input && output && errors)
		object = run(arguments, text, input, output, errors);
	else
		perror("tmpfile");
	if (input) fclose(input);
	if (output) fclose(output);
	if (errors) fclose(errors);
	return object;
}

char *worker_ids(const json_t *ids)
{
	size_t capacity = json_array_size(ids) * ID_BYTES + 1, used = 0, index;
	char *text = calloc(1, capacity);
	json_t *id;

	json_array_foreach(ids, index, id)
	{
		if (text)
			used += (size_t)snprintf(text + used, capacity - used, "%lld ",
			    (long long)(json_integer_value(id) % 1000000000));
	}
	return text;
}

const char *worker_environment(const char *variable, const char *what)
{
	const char *value = getenv(variable);

	if (value && *value) return value;
	printf("skipped: no path of %s in %s\n", what, variable);
	return NULL;
}

const char *worker_shared(void)
{
	const char *shared = getenv("CLUSTERKV_SHARED");

	return shared && *shared ? shared : "../shared";
}
