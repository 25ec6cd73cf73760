/* Metrics, declared once in an X-macro table and stored as relaxed atomics.
 *
 *   #define KVS_METRICS(X)                                                              \
 *       X(KVS_COMMITS, "commits", COUNTER, "result=\"ok\"", "", "Segments committed.")   \
 *       X(KVS_COMMITS_FAILED, "commits", COUNTER, "result=\"failed\"", "", "")           \
 *       X(KVS_ARENA_BYTES, "arena", GAUGE, "", "bytes", "Memory that holds segments.")
 *   enum kvs_metric { KVS_METRICS(KV_METRIC_ENUM) KVS_METRIC_COUNT };
 *   static const struct kv_metric table[] = {KVS_METRICS(KV_METRIC_ROW)};
 *
 * The exported name is prefix + name + _unit + (for counters) _total: do not write those parts into
 * the name. Rows of one name with other labels follow each other and share kind, unit and the first
 * row's help. Adding and reading are safe from any thread; numbers read together may differ by what
 * happens meanwhile.
 */
#ifndef KV_COMMON_RUNTIME_METRICS_H
#define KV_COMMON_RUNTIME_METRICS_H

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "common/runtime/text_buffer.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kv_metric_kind {
	KV_METRIC_COUNTER,      /* whole, only rises */
	KV_METRIC_GAUGE,        /* whole, rises and falls */
	KV_METRIC_REAL_COUNTER, /* such as seconds spent */
	KV_METRIC_REAL_GAUGE,
	KV_METRIC_HISTOGRAM /* of seconds; see kv_metric_bounds */
};

struct kv_metric {
	const char *name;
	enum kv_metric_kind kind;
	const char *labels; /* as Prometheus writes them, without braces; "" for none */
	const char *unit;   /* base unit in plural: "bytes", "seconds", or "" */
	const char *help;
};

#define KV_METRIC_ENUM(id, name, kind, labels, unit, help) id,
#define KV_METRIC_ROW(id, name, kind, labels, unit, help)                                          \
	{name, KV_METRIC_##kind, labels, unit, help},

/* Upper bounds of a histogram's buckets, in seconds; one more bucket holds the rest. */
enum { KV_METRIC_BOUNDS = 16 };
extern const double kv_metric_bounds[KV_METRIC_BOUNDS];

struct kv_metrics;

/* `table` is borrowed for the life of the metrics. All start at 0. */
enum kv_status kv_metrics_create(struct kv_allocator *allocator, const struct kv_metric *table,
    size_t count, struct kv_metrics **metrics);
void kv_metrics_destroy(struct kv_metrics *metrics); /* NULL is allowed */

/* Counters and gauges by index (the enum). An index or kind that does not fit is a programming
 * error. For a gauge that falls, add a negative number. NULL metrics are allowed and do nothing. */
void kv_metrics_add(struct kv_metrics *metrics, size_t index, int64_t amount);
void kv_metrics_set(struct kv_metrics *metrics, size_t index, int64_t value);
int64_t kv_metrics_get(const struct kv_metrics *metrics, size_t index);

/* Real counters and gauges. */
void kv_metrics_add_real(struct kv_metrics *metrics, size_t index, double amount);
void kv_metrics_set_real(struct kv_metrics *metrics, size_t index, double value);
double kv_metrics_get_real(const struct kv_metrics *metrics, size_t index);

/* Histograms: one value in seconds; how many there were; and the bound below which `fraction` (0 to
 * 1) of them lie, linear inside a bucket, 0 when there were none. */
void kv_metrics_observe(struct kv_metrics *metrics, size_t index, double seconds);
uint64_t kv_metrics_observed(const struct kv_metrics *metrics, size_t index);
double kv_metrics_quantile(const struct kv_metrics *metrics, size_t index, double fraction);

/* Counters and histograms back to 0; gauges stay. */
void kv_metrics_reset(struct kv_metrics *metrics);

/* The raw numbers, to be sent to another process that has the same table. */
size_t kv_metrics_slot_count(const struct kv_metrics *metrics);
void kv_metrics_read_slots(const struct kv_metrics *metrics, uint64_t *slots, size_t count);
enum kv_status kv_metrics_write_slots(
    struct kv_metrics *metrics, const uint64_t *slots, size_t count);

/* `STAT name value` lines as memcached's, ended by \r\n; labels become `name{labels}`. A histogram
 * gives name_count, name_sum, name_p50, name_p99. No END line. */
void kv_metrics_render_stat(
    const struct kv_metrics *metrics, const char *prefix, struct kv_text_buffer *text);

/* One JSON object, keys as above. */
void kv_metrics_render_json(
    const struct kv_metrics *metrics, const char *prefix, struct kv_text_buffer *text);

/* One instance of a table and the labels that tell it from the others ("" for none). */
struct kv_metrics_instance {
	const struct kv_metrics *metrics;
	const char *labels;
};

/* Prometheus text format 0.0.4; all instances share a table, so each family appears once. */
void kv_metrics_render_prometheus(const struct kv_metrics_instance *instances, size_t count,
    const char *prefix, struct kv_text_buffer *text);

/* Append `name="value"` with the value escaped. */
void kv_metrics_put_label(struct kv_text_buffer *text, const char *name, const char *value);

#ifdef __cplusplus
}
#endif
#endif
