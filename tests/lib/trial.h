/* A model, prompts for it, and whole worker processes that answer them: what end-to-end tests
 * share.
 *
 * Tiny models give the same paths in milliseconds; real ones (labelled slow) are named by
 * CLUSTERKV_MODEL_SMOLLM2 and CLUSTERKV_MODEL_QWEN.
 */
#ifndef TESTS_LIB_TRIAL_H
#define TESTS_LIB_TRIAL_H

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/process.h"
#include "tests/lib/serve_fixture.h"
#include "tests/lib/store_fixture.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TRIAL_OPTIONS = 40 };

/* Answers that are interrupted must last until the test has seen that they run: under a sanitizer
 * fewer tokens do. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TRIAL_SANITIZED 1
#else
#define TRIAL_SANITIZED 0
#endif

struct trial {
	const char *name;       /* tiny_llama, tiny_qwen2, smollm2 or qwen */
	char model[512];        /* path of the GGUF file */
	bool real;              /* slow, with a text of people's words */
	uint32_t prompt_tokens; /* of a long prompt */
	uint32_t answer_tokens;
	uint32_t budget, window, fold, segment;
	const char *small_cache, *large_cache, *memory;
	const char *options[TRIAL_OPTIONS]; /* model and policy, NULL-terminated: all runs have them */
	char numbers[6][16];
	unsigned limit_ms; /* for one answer, whatever else this machine does */
	int32_t *text;     /* ids to take prompts from */
	uint32_t text_tokens;
};

/* Look the trial up. False (and why is printed) when its model or text is not there: then the test
 * program ends with 77. */
bool trial_init(struct trial *trial, const char *name);
void trial_deinit(struct trial *trial);

/* `tokens` ids that nothing else shares with another `seed`; the caller frees them. */
int32_t *trial_prompt(const struct trial *trial, unsigned seed, uint32_t tokens);

/* Ids as text; the caller frees it. */
char *trial_ids(const int32_t *ids, uint32_t count, const char *between);

/* Options for one command, added to those of the trial; a NULL ends each list. */
struct trial_arguments {
	const char *all[PROCESS_ARGUMENTS];
	unsigned count;
};

void trial_command(
    struct trial_arguments *arguments, const struct trial *trial, const char *command);
void trial_add(struct trial_arguments *arguments, const char *const *more);

/* Run a program with these ids on its standard input. Its report, owned by the caller; fails the
 * test, naming `what`, when there is none. *errors: what else it said, to be freed; or NULL. */
json_t *trial_run(const struct trial *trial, const char *what,
    const struct trial_arguments *arguments, const int32_t *ids, uint32_t count, char **errors);

/* gpu-worker generate on these ids, greedy, past end tokens, with a digest; `more` may override.
 * The report, owned by the caller; fails the test when the worker fails. prompt NULL: none. */
json_t *trial_generate(
    const struct trial *trial, const int32_t *prompt, uint32_t tokens, const char *const *more);
/* The same, only started. */
void trial_generate_start(struct process *process, const struct trial *trial, const int32_t *prompt,
    uint32_t tokens, const char *const *more);
/* Wait for its report. */
json_t *trial_generate_finish(struct process *process, const struct trial *trial);

/* gpu-worker serve against this store address. */
void trial_serve(struct serve_fixture *worker, const struct trial *trial, const char *const *more);

/* The body of a completion on these ids: past end tokens, with a digest, greedy unless `more` (JSON
 * members) names a temperature. The caller frees it. */
char *trial_body(const int32_t *prompt, uint32_t tokens, uint32_t max_tokens, const char *more);

/* Send it and take the whole answer; fails the test unless the code is 200. */
json_t *trial_ask(const struct serve_fixture *worker, const char *body);
/* The same for a call that was opened before. */
json_t *trial_finish(struct serve_call *call);

/* "clusterkv" of an answer: what `generate` reports itself. Borrowed. */
json_t *trial_own(const json_t *answer);

/* Tokens and digest are the same; fails the test otherwise, naming `what`. */
void trial_same_bits(const json_t *expected, const json_t *found, const char *what);

/* Tokens are the same, or part where the best two logits of `expected` were nearer than rounding
 * may tell apart. */
void trial_same_to_rounding(
    const json_t *expected, const json_t *found, bool fp32, const char *what);

double trial_number(const json_t *report, const char *name);
double trial_cache(const json_t *report, const char *name);

#ifdef __cplusplus
}
#endif
#endif
