/* Runs a measuring command of the real gpu-worker and reads the JSON object that it prints. */
#ifndef TESTS_GOLDEN_WORKER_COMMAND_H
#define TESTS_GOLDEN_WORKER_COMMAND_H

#include <jansson.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { WORKER_ARGUMENTS = 40 };

/* Run gpu-worker with these arguments (NULL at the end, the program's name left out; --json and a
 * quiet log are added) and `input` on its standard input (NULL: none). It is ended after half an
 * hour. The caller owns the reference. NULL after printing what it wrote, when it failed or printed
 * no object. */
json_t *worker_command(const char *const *arguments, const char *input);

/* Token ids (a JSON array) as a text for --tokens-file; the caller frees it. */
char *worker_ids(const json_t *ids);

/* The value of an environment variable, or NULL after printing that tests are skipped for lack of
 * it. */
const char *worker_environment(const char *variable, const char *what);

/* ../shared, or where CLUSTERKV_SHARED says that it is. */
const char *worker_shared(void);

#ifdef __cplusplus
}
#endif
#endif
