/* Progress of something long: a bar on a terminal, a log line now and then elsewhere, and STATUS=
 * under a service manager.
 *
 * An update costs a clock reading and a comparison unless something is due to be shown. One thread.
 */
#ifndef KV_COMMON_RUNTIME_PROGRESS_H
#define KV_COMMON_RUNTIME_PROGRESS_H

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "common/runtime/sd_notify.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kv_progress_mode {
	KV_PROGRESS_AUTO, /* a bar where `fd` is a terminal, lines elsewhere */
	KV_PROGRESS_BAR,
	KV_PROGRESS_LINES,
	KV_PROGRESS_OFF
};

struct kv_progress_settings {
	const char *title; /* "loading weights"; borrowed */
	const char *unit;  /* "tokens", or "bytes", which is shown as KiB, MiB …; borrowed */
	uint64_t total;    /* 0 when not known */
	enum kv_progress_mode mode;
	int fd;                      /* of the bar, usually 2 */
	uint64_t bar_interval_ms;    /* 0: 100 */
	uint64_t line_interval_ms;   /* 0: 5000; the first line comes after one interval */
	struct kv_sd_notify *notify; /* gets STATUS= each second; may be NULL; borrowed */
};

struct kv_progress;

enum kv_status kv_progress_create(struct kv_allocator *allocator,
    const struct kv_progress_settings *settings, struct kv_progress **progress);

/* `done` of the total so far; it may pass the total. */
void kv_progress_update(struct kv_progress *progress, uint64_t done);

/* Show the end (with the mean rate) and free. A bar is ended by a newline; lines are closed only if
 * at least one was shown. NULL is allowed. */
void kv_progress_finish(struct kv_progress *progress);

#ifdef __cplusplus
}
#endif
#endif
