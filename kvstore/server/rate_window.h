/* What some rising figures did over the last seconds: one sample a second, a minute of them.
 *
 * Pure: time comes in as milliseconds of one monotonic clock. Figures only rise; one that falls
 * means that another process counts now, and its window starts anew (kvs_window_start).
 */
#ifndef KVS_SERVER_RATE_WINDOW_H
#define KVS_SERVER_RATE_WINDOW_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kvs_figure {
	KVS_HIT_BYTES,
	KVS_MISS_BYTES,
	KVS_HIT_CLUSTERS,
	KVS_MISS_CLUSTERS,
	KVS_HIT_TOKENS,
	KVS_MISS_TOKENS,
	KVS_DECODED,
	KVS_FIGURE_COUNT
};

enum { KVS_WINDOW_SECONDS = 60 };

struct kvs_figures {
	double value[KVS_FIGURE_COUNT];
};

struct kvs_window {
	uint64_t start_ms;
	uint64_t seconds; /* whole ones since start that have a sample; sample 0 is the start's */
	struct kvs_figures samples[KVS_WINDOW_SECONDS + 1]; /* of second s at s % (SECONDS + 1) */
};

/* Begin: what was counted before `now_ms` belongs to no window. */
void kvs_window_start(
    struct kvs_window *window, uint64_t now_ms, const struct kvs_figures *figures);

/* Take the samples that are due; more often than once a second does no harm. */
void kvs_window_tick(struct kvs_window *window, uint64_t now_ms, const struct kvs_figures *figures);

/* What `figures` gained over the last `seconds` (1 to KVS_WINDOW_SECONDS), or since the start if
 * that is less. Returns the length of that time in seconds, 0 when it has just begun. */
double kvs_window_gain(const struct kvs_window *window, uint64_t now_ms, uint32_t seconds,
    const struct kvs_figures *figures, struct kvs_figures *gain);

#ifdef __cplusplus
}
#endif
#endif
