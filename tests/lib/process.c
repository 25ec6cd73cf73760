#include "tests/lib/process.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STEP_MS = 5, NOT_ENDED = -1000, FIRST_OTHER = 3, LAST_OTHER = 256, LINE_BYTES = 1 << 16 };

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void nap(void)
{
	const struct timespec pause = {0, STEP_MS * 1000000L};

	nanosleep(&pause, NULL);
}

static void run_child(
    const char *const *arguments, FILE *input, const struct process *process, pid_t parent)
{
	char *copy[PROCESS_ARGUMENTS + 1] = {0};

	for (int i = 0; i < PROCESS_ARGUMENTS && arguments[i]; i++)
		copy[i] = (char *)(uintptr_t)arguments[i];
	dup2(fileno(input), 0);
	dup2(fileno(process->output), 1);
	dup2(fileno(process->errors), 2);
	for (int i = FIRST_OTHER; i < LAST_OTHER; i++)
		close(i);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent) _exit(126);
	execv(copy[0], copy);
	_exit(127);
}

static bool start(struct process *process, const char *const *arguments, FILE *input)
{
	pid_t parent = getpid();

	fflush(stdout);
	fflush(stderr);
	process->pid = fork();
	if (process->pid == 0) run_child(arguments, input, process, parent);
	if (process->pid > 0) return true;
	process->pid = 0;
	return false;
}

bool process_start(struct process *process, const char *const *arguments, const char *input)
{
	FILE *file = tmpfile();
	bool started = false;

	memset(process, 0, sizeof *process);
	process->name = arguments[0];
	process->output = tmpfile();
	process->errors = tmpfile();
	if (file && process->output && process->errors && (!input || fputs(input, file) >= 0)) {
		rewind(file);
		started = start(process, arguments, file);
	}
	if (!started) fprintf(stderr, "cannot start %s: %s\n", arguments[0], strerror(errno));
	if (file) fclose(file);
	if (!started) process_deinit(process);
	return started;
}

void process_signal(const struct process *process, int number)
{
	if (process->pid > 0) kill(process->pid, number);
}

static size_t size_of(FILE *file)
{
	struct stat facts;

	return file && fstat(fileno(file), &facts) == 0 ? (size_t)facts.st_size : 0;
}

/* The offset is shared with the writing process, so it is not touched. */
static char *contents(FILE *file)
{
	size_t size = size_of(file), used = 0;
	char *text = malloc(size + 1);

	while (text && used < size) {
		ssize_t got = pread(fileno(file), text + used, size - used, (off_t)used);

		if (got <= 0) break;
		used += (size_t)got;
	}
	if (text) text[used] = '\0';
	return text;
}

char *process_output(const struct process *process)
{
	return contents(process->output);
}

char *process_errors(const struct process *process)
{
	return contents(process->errors);
}

size_t process_output_bytes(const struct process *process)
{
	return size_of(process->output);
}

static bool has_ended(struct process *process)
{
	int status;

	if (process->pid <= 0) return true;
	if (waitpid(process->pid, &status, WNOHANG) != process->pid) return false;
	process->pid = 0;
	process->code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
	return true;
}

int process_wait(struct process *process, unsigned wait_ms)
{
	uint64_t deadline = now_ms() + wait_ms;
	char *errors;

	while (!has_ended(process)) {
		if (now_ms() < deadline) {
			nap();
			continue;
		}
		errors = process_errors(process);
		fprintf(stderr, "%s still runs after %u ms; it wrote:\n%s\n", process->name, wait_ms,
		    errors ? errors : "");
		free(errors);
		kill(process->pid, SIGKILL);
		waitpid(process->pid, NULL, 0);
		process->pid = 0;
		process->code = NOT_ENDED;
	}
	return process->code;
}

bool process_wait_error(struct process *process, const char *word, unsigned wait_ms)
{
	uint64_t deadline = now_ms() + wait_ms;
	char *errors = NULL;
	bool found = false;

	for (;;) {
		bool ended = has_ended(process);

		free(errors);
		errors = process_errors(process);
		found = errors && strstr(errors, word);
		if (found || ended || now_ms() >= deadline) break;
		nap();
	}
	if (!found) fprintf(stderr, "%s never wrote \"%s\":\n%s\n", process->name, word, errors);
	free(errors);
	return found;
}

void process_deinit(struct process *process)
{
	if (process->pid > 0) {
		kill(process->pid, SIGKILL);
		waitpid(process->pid, NULL, 0);
	}
	if (process->output) fclose(process->output);
	if (process->errors) fclose(process->errors);
	memset(process, 0, sizeof *process);
}

static bool has_argument(const char *pid, const char *word)
{
	char path[300], line[LINE_BYTES];
	size_t length;
	FILE *file;

	snprintf(path, sizeof path, "/proc/%.200s/cmdline", pid);
	file = fopen(path, "rb");
	if (!file) return false;
	length = fread(line, 1, sizeof line - 1, file);
	fclose(file);
	line[length] = '\0';
	for (size_t at = 0; at < length; at += strlen(line + at) + 1)
		if (strstr(line + at, word)) return true;
	return false;
}

unsigned process_count(const char *word)
{
	DIR *directory = opendir("/proc");
	struct dirent *entry;
	unsigned count = 0;

	if (!directory) return 0;
	while ((entry = readdir(directory)))
		if (isdigit((unsigned char)entry->d_name[0]) && has_argument(entry->d_name, word)) count++;
	closedir(directory);
	return count;
}

static bool is_child(const char *pid, pid_t parent, const char *name)
{
	char path[300], found[32] = "";
	int started_by = 0;
	bool read;
	FILE *file;

	snprintf(path, sizeof path, "/proc/%.200s/stat", pid);
	file = fopen(path, "r");
	if (!file) return false;
	read = fscanf(file, "%*d (%31[^)]) %*c %d", found, &started_by) == 2;
	fclose(file);
	return read && started_by == parent && strcmp(found, name) == 0;
}

pid_t process_child(pid_t parent, const char *name)
{
	DIR *directory = opendir("/proc");
	struct dirent *entry;
	pid_t found = 0;

	if (!directory) return -1;
	while (!found && (entry = readdir(directory)))
		if (isdigit((unsigned char)entry->d_name[0]) && is_child(entry->d_name, parent, name))
			found = (pid_t)atoi(entry->d_name);
	closedir(directory);
	return found;
}
