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

/* Say in a report which model it is of, whether its weights are random, and how a device's memory
 * is shared out. */
void gw_report_model(json_t *report, const struct gw_worker *worker);

/* A report for people: two or three lines. */
void gw_print_report(FILE *file, const json_t *report);

/* A display on standard error, in tokens, of what is to be computed of a sequence's prompt. Silent
 * with --json and where it is little. */
struct gw_prefill_display {
	struct kv_progress *progress; /* the caller finishes it */
	uint32_t layers;
};

enum kv_status gw_prefill_display(const struct gw_settings *settings,
	const struct gw_worker *worker, const struct gw_sequence *sequence,
	struct gw_prefill_display *display);

/* Its gw_progress, with the display as its context. */
void gw_show_prefill(void *display, uint64_t done, uint64_t total);

/* A gw_progress whose context is a struct kv_progress of the same unit. */
void gw_show_progress(void *progress, uint64_t done, uint64_t total);

#ifdef __cplusplus
}
#endif
#endif
