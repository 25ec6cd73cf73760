/* What commands print. */
#ifndef GW_COMMANDS_OUTPUT_H
#define GW_COMMANDS_OUTPUT_H

#include <jansson.h>
#include <stdio.h>

#include "common/runtime/progress.h"
#include "gpu-worker/commands/worker.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One object on one line of standard output; takes the reference. NULL is KV_NO_MEMORY. KV_IO when
 * standard output cannot be written. */
enum kv_status gw_print_json(json_t *object);

/* A report for people: two or three lines. */
void gw_print_report(FILE *file, const json_t *report);

/* A display on standard error of what is to be computed of a sequence's prompt; the caller finishes
 * it. Silent with --json and where it is little. */
enum kv_status gw_prefill_progress(const struct gw_settings *settings,
	const struct gw_worker *worker, const struct gw_sequence *sequence,
	struct kv_progress **progress);

/* A gw_progress whose context is a struct kv_progress. */
void gw_show_progress(void *progress, uint64_t done, uint64_t total);

#ifdef __cplusplus
}
#endif
#endif
