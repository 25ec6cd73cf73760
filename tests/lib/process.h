/* Other programs run by tests: started with what they read, and ended by a deadline whatever they
 * do. What they write is kept in unlinked files, so that nothing is left behind. */
#ifndef TESTS_LIB_PROCESS_H
#define TESTS_LIB_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PROCESS_ARGUMENTS = 64 };

struct process {
	const char *name; /* the program's path, borrowed */
	pid_t pid;        /* 0: not running */
	int code;         /* how it ended, for process_wait */
	FILE *output, *errors;
};

/* Start arguments[0] (a path; NULL ends the list) with `input` on its standard input (NULL: none).
 * It is killed when the test ends. False after printing why. */
bool process_start(struct process *process, const char *const *arguments, const char *input);

void process_signal(const struct process *process, int number);

/* Wait for its end: the exit code, or minus the signal that ended it. -1000 after printing what it
 * wrote when it still ran after `wait_ms`; it is killed then. */
int process_wait(struct process *process, unsigned wait_ms);

/* What it wrote so far, terminated; the caller frees it. */
char *process_output(const struct process *process);
char *process_errors(const struct process *process);

/* How many bytes it wrote to its standard output so far. */
size_t process_output_bytes(const struct process *process);

/* Wait until its standard error holds `word`. False when it has ended or `wait_ms` are over. */
bool process_wait_error(struct process *process, const char *word, unsigned wait_ms);

/* Kill it if it runs, and close the files. For one that was never started too (all zero). */
void process_deinit(struct process *process);

/* Processes that have `word` among their arguments. */
unsigned process_count(const char *word);

/* One that `parent` has started and whose program is called so; 0: none, -1: it cannot be told. */
pid_t process_child(pid_t parent, const char *name);

#ifdef __cplusplus
}
#endif
#endif
