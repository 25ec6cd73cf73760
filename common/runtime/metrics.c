#include "common/runtime/metrics.h"

#include "common/base/check.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

/* A histogram's slots: its buckets, not cumulated, then the sum as a double. */
enum { BUCKETS = KV_METRIC_BOUNDS + 1, HISTOGRAM_SLOTS = BUCKETS + 1 };

const double kv_metric_bounds[KV_METRIC_BOUNDS] = {
    1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0};

struct kv_metrics {
	struct kv_allocator *allocator;
	const struct kv_metric *table;
	size_t count;
	size_t slot_count;
	size_t *first_slot; /* of each metric */
	atomic_uint_fast64_t *slots;
};

static size_t slots_of(const struct kv_metric *metric)
{
	return metric->kind == KV_METRIC_HISTOGRAM ? HISTOGRAM_SLOTS : 1;
}

enum kv_status kv_metrics_create(struct kv_allocator *allocator, const struct kv_metric *table,
    size_t count, struct kv_metrics **metrics)
{
	struct kv_metrics *made = kv_alloc_zero(allocator, sizeof *made);

	if (!made) return KV_NO_MEMORY;
	made->allocator = allocator;
	made->table = table;
	made->count = count;
	made->first_slot = kv_alloc_array(allocator, count, sizeof *made->first_slot);
	if (made->first_slot) {
		for (size_t i = 0; i < count; i++) {
			made->first_slot[i] = made->slot_count;
			made->slot_count += slots_of(&table[i]);
		}
		made->slots = kv_alloc_array(allocator, made->slot_count, sizeof *made->slots);
	}
	if (!made->slots) {
		kv_metrics_destroy(made);
		return KV_NO_MEMORY;
	}
	for (size_t i = 0; i < made->slot_count; i++)
		atomic_init(&made->slots[i], 0);
	*metrics = made;
	return KV_OK;
}

void kv_metrics_destroy(struct kv_metrics *metrics)
{
	if (!metrics) return;
	kv_free(metrics->allocator, metrics->first_slot);
	kv_free(metrics->allocator, metrics->slots);
	kv_free(metrics->allocator, metrics);
}

static double to_real(uint64_t bits)
{
	double real;

	memcpy(&real, &bits, sizeof real);
	return real;
}

static uint64_t from_real(double real)
{
	uint64_t bits;

	memcpy(&bits, &real, sizeof bits);
	return bits;
}

/* The slot of a metric of one of two kinds, NULL for a caller's mistake. */
static atomic_uint_fast64_t *slot_of(const struct kv_metrics *metrics, size_t index,
    enum kv_metric_kind kind, enum kv_metric_kind other)
{
	bool fits;

	if (!metrics) return NULL;
	fits = index < metrics->count &&
	       (metrics->table[index].kind == kind || metrics->table[index].kind == other);
	KV_CHECK(fits);
	return fits ? &metrics->slots[metrics->first_slot[index]] : NULL;
}

static uint64_t load(const atomic_uint_fast64_t *slot)
{
	return atomic_load_explicit(slot, memory_order_relaxed);
}

static void add_real(atomic_uint_fast64_t *slot, double amount)
{
	uint_fast64_t before = atomic_load_explicit(slot, memory_order_relaxed);

	while (!atomic_compare_exchange_weak_explicit(slot, &before,
	    from_real(to_real(before) + amount), memory_order_relaxed, memory_order_relaxed))
		;
}

void kv_metrics_add(struct kv_metrics *metrics, size_t index, int64_t amount)
{
	atomic_uint_fast64_t *slot = slot_of(metrics, index, KV_METRIC_COUNTER, KV_METRIC_GAUGE);

	if (slot) atomic_fetch_add_explicit(slot, (uint64_t)amount, memory_order_relaxed);
}

void kv_metrics_set(struct kv_metrics *metrics, size_t index, int64_t value)
{
	atomic_uint_fast64_t *slot = slot_of(metrics, index, KV_METRIC_COUNTER, KV_METRIC_GAUGE);

	if (slot) atomic_store_explicit(slot, (uint64_t)value, memory_order_relaxed);
}

int64_t kv_metrics_get(const struct kv_metrics *metrics, size_t index)
{
	const atomic_uint_fast64_t *slot = slot_of(metrics, index, KV_METRIC_COUNTER, KV_METRIC_GAUGE);

	return slot ? (int64_t)load(slot) : 0;
}

void kv_metrics_add_real(struct kv_metrics *metrics, size_t index, double amount)
{
	atomic_uint_fast64_t *slot =
	    slot_of(metrics, index, KV_METRIC_REAL_COUNTER, KV_METRIC_REAL_GAUGE);

	if (slot) add_real(slot, amount);
}

void kv_metrics_set_real(struct kv_metrics *metrics, size_t index, double value)
{
	atomic_uint_fast64_t *slot =
	    slot_of(metrics, index, KV_METRIC_REAL_COUNTER, KV_METRIC_REAL_GAUGE);

	if (slot) atomic_store_explicit(slot, from_real(value), memory_order_relaxed);
}

double kv_metrics_get_real(const struct kv_metrics *metrics, size_t index)
{
	const atomic_uint_fast64_t *slot =
	    slot_of(metrics, index, KV_METRIC_REAL_COUNTER, KV_METRIC_REAL_GAUGE);

	return slot ? to_real(load(slot)) : 0.0;
}

void kv_metrics_observe(struct kv_metrics *metrics, size_t index, double seconds)
{
	atomic_uint_fast64_t *slot = slot_of(metrics, index, KV_METRIC_HISTOGRAM, KV_METRIC_HISTOGRAM);
	size_t bucket = 0;

	if (!slot) return;
	while (bucket < KV_METRIC_BOUNDS && seconds > kv_metric_bounds[bucket])
		bucket++;
	atomic_fetch_add_explicit(&slot[bucket], 1, memory_order_relaxed);
	add_real(&slot[BUCKETS], seconds);
}

/* Read the buckets once, so that the total agrees with them. */
static uint64_t read_buckets(const atomic_uint_fast64_t *slot, uint64_t buckets[BUCKETS])
{
	uint64_t total = 0;

	for (size_t i = 0; i < BUCKETS; i++) {
		buckets[i] = load(&slot[i]);
		total += buckets[i];
	}
	return total;
}

static double quantile(const uint64_t buckets[BUCKETS], uint64_t total, double fraction)
{
	double wanted = fraction * (double)total;
	double below = 0.0;

	if (total == 0) return 0.0;
	for (size_t i = 0; i < KV_METRIC_BOUNDS; i++) {
		double low = i ? kv_metric_bounds[i - 1] : 0.0;
		double inside = (double)buckets[i];

		if (inside > 0.0 && below + inside >= wanted)
			return low + (kv_metric_bounds[i] - low) * (wanted - below) / inside;
		below += inside;
	}
	/* The rest has no upper bound; its lower one is all that is known. */
	return kv_metric_bounds[KV_METRIC_BOUNDS - 1];
}

uint64_t kv_metrics_observed(const struct kv_metrics *metrics, size_t index)
{
	const atomic_uint_fast64_t *slot =
	    slot_of(metrics, index, KV_METRIC_HISTOGRAM, KV_METRIC_HISTOGRAM);
	uint64_t buckets[BUCKETS];

	return slot ? read_buckets(slot, buckets) : 0;
}

double kv_metrics_quantile(const struct kv_metrics *metrics, size_t index, double fraction)
{
	const atomic_uint_fast64_t *slot =
	    slot_of(metrics, index, KV_METRIC_HISTOGRAM, KV_METRIC_HISTOGRAM);
	uint64_t buckets[BUCKETS];
	uint64_t total;

	if (!slot) return 0.0;
	total = read_buckets(slot, buckets);
	return quantile(buckets, total, fraction);
}

void kv_metrics_reset(struct kv_metrics *metrics)
{
	if (!metrics) return;
	for (size_t i = 0; i < metrics->count; i++) {
		enum kv_metric_kind kind = metrics->table[i].kind;

		if (kind == KV_METRIC_GAUGE || kind == KV_METRIC_REAL_GAUGE) continue;
		for (size_t j = 0; j < slots_of(&metrics->table[i]); j++)
			atomic_store_explicit(
			    &metrics->slots[metrics->first_slot[i] + j], 0, memory_order_relaxed);
	}
}

size_t kv_metrics_slot_count(const struct kv_metrics *metrics)
{
	return metrics->slot_count;
}

void kv_metrics_read_slots(const struct kv_metrics *metrics, uint64_t *slots, size_t count)
{
	for (size_t i = 0; i < count && i < metrics->slot_count; i++)
		slots[i] = load(&metrics->slots[i]);
}

enum kv_status kv_metrics_write_slots(
    struct kv_metrics *metrics, const uint64_t *slots, size_t count)
{
	if (count != metrics->slot_count)
		return kv_fail(KV_PROTOCOL,
		    "%zu metric values were sent where this version has %zu; run the same version on both "
		    "sides",
		    count, metrics->slot_count);
	for (size_t i = 0; i < count; i++)
		atomic_store_explicit(&metrics->slots[i], slots[i], memory_order_relaxed);
	return KV_OK;
}

static bool is_counter(enum kv_metric_kind kind)
{
	return kind == KV_METRIC_COUNTER || kind == KV_METRIC_REAL_COUNTER;
}

static void put_name(
    const struct kv_metric *metric, const char *prefix, struct kv_text_buffer *text)
{
	kv_text_put(text, prefix);
	kv_text_put(text, metric->name);
	if (metric->unit[0]) kv_text_printf(text, "_%s", metric->unit);
	if (is_counter(metric->kind)) kv_text_put(text, "_total");
}

static void put_value(
    enum kv_metric_kind kind, uint64_t bits, const char *null_text, struct kv_text_buffer *text)
{
	if (kind == KV_METRIC_COUNTER)
		kv_text_printf(text, "%" PRIu64, bits);
	else if (kind == KV_METRIC_GAUGE)
		kv_text_printf(text, "%" PRId64, (int64_t)bits);
	else
		kv_text_put_double(text, to_real(bits), null_text);
}

/* One flat number of a metric: histograms have four of them. */
struct flat {
	const struct kv_metric *metric;
	const char *prefix;
	const char *suffix;
	enum kv_metric_kind kind;
	uint64_t bits;
};

typedef void (*flat_writer)(const struct flat *flat, bool first, struct kv_text_buffer *text);

static void put_flat_name(const struct flat *flat, struct kv_text_buffer *text)
{
	put_name(flat->metric, flat->prefix, text);
	kv_text_put(text, flat->suffix);
	if (flat->metric->labels[0]) kv_text_printf(text, "{%s}", flat->metric->labels);
}

static void write_stat(const struct flat *flat, bool first, struct kv_text_buffer *text)
{
	(void)first;
	kv_text_put(text, "STAT ");
	put_flat_name(flat, text);
	kv_text_put(text, " ");
	put_value(flat->kind, flat->bits, "nan", text);
	kv_text_put(text, "\r\n");
}

static void write_json(const struct flat *flat, bool first, struct kv_text_buffer *text)
{
	struct kv_text_buffer name;

	kv_text_init(&name, text->allocator, 1024);
	put_flat_name(flat, &name);
	kv_text_put(text, first ? "" : ",");
	kv_text_put_json(text, kv_text(&name));
	kv_text_put(text, ":");
	put_value(flat->kind, flat->bits, "null", text);
	if (name.status != KV_OK && text->status == KV_OK) text->status = name.status;
	kv_text_deinit(&name);
}

static void each_flat(const struct kv_metrics *metrics, const char *prefix, flat_writer writer,
    struct kv_text_buffer *text)
{
	uint64_t buckets[BUCKETS];
	bool first = true;

	for (size_t i = 0; i < metrics->count; i++) {
		const atomic_uint_fast64_t *slot = &metrics->slots[metrics->first_slot[i]];
		struct flat flat = {&metrics->table[i], prefix, "", metrics->table[i].kind, 0};

		if (flat.kind != KV_METRIC_HISTOGRAM) {
			flat.bits = load(slot);
			writer(&flat, first, text);
		} else {
			uint64_t total = read_buckets(slot, buckets);
			struct flat parts[] = {
			    {flat.metric, prefix, "_count", KV_METRIC_COUNTER, total},
			    {flat.metric, prefix, "_sum", KV_METRIC_REAL_GAUGE, load(&slot[BUCKETS])},
			    {flat.metric, prefix, "_p50", KV_METRIC_REAL_GAUGE,
			        from_real(quantile(buckets, total, 0.5))},
			    {flat.metric, prefix, "_p99", KV_METRIC_REAL_GAUGE,
			        from_real(quantile(buckets, total, 0.99))},
			};

			for (size_t part = 0; part < 4; part++)
				writer(&parts[part], first && part == 0, text);
		}
		first = false;
	}
}

void kv_metrics_render_stat(
    const struct kv_metrics *metrics, const char *prefix, struct kv_text_buffer *text)
{
	each_flat(metrics, prefix, write_stat, text);
}

void kv_metrics_render_json(
    const struct kv_metrics *metrics, const char *prefix, struct kv_text_buffer *text)
{
	kv_text_put(text, "{");
	each_flat(metrics, prefix, write_json, text);
	kv_text_put(text, "}");
}

/* "{a,b,le="x"}" of up to three label lists, nothing when all are empty. */
static void put_labels(
    const char *row, const char *instance, const char *bucket, struct kv_text_buffer *text)
{
	const char *parts[] = {instance, row, bucket};
	bool open = false;

	for (size_t i = 0; i < 3; i++) {
		if (!parts[i][0]) continue;
		kv_text_put(text, open ? "," : "{");
		kv_text_put(text, parts[i]);
		open = true;
	}
	if (open) kv_text_put(text, "}");
}

static void put_histogram(const struct kv_metric *metric, const atomic_uint_fast64_t *slot,
    const char *prefix, const char *labels, struct kv_text_buffer *text)
{
	uint64_t buckets[BUCKETS];
	uint64_t total = read_buckets(slot, buckets);
	uint64_t below = 0;
	struct kv_text_buffer bucket;

	kv_text_init(&bucket, text->allocator, 64);
	for (size_t i = 0; i < BUCKETS; i++) {
		kv_text_reset(&bucket);
		if (i < KV_METRIC_BOUNDS)
			kv_text_printf(&bucket, "le=\"%g\"", kv_metric_bounds[i]);
		else
			kv_text_put(&bucket, "le=\"+Inf\"");
		if (bucket.status != KV_OK && text->status == KV_OK) text->status = bucket.status;
		below += buckets[i];
		put_name(metric, prefix, text);
		kv_text_put(text, "_bucket");
		put_labels(metric->labels, labels, kv_text(&bucket), text);
		kv_text_printf(text, " %" PRIu64 "\n", below);
	}
	kv_text_deinit(&bucket);
	put_name(metric, prefix, text);
	kv_text_put(text, "_sum");
	put_labels(metric->labels, labels, "", text);
	kv_text_put(text, " ");
	kv_text_put_double(text, to_real(load(&slot[BUCKETS])), "NaN");
	kv_text_put(text, "\n");
	put_name(metric, prefix, text);
	kv_text_put(text, "_count");
	put_labels(metric->labels, labels, "", text);
	kv_text_printf(text, " %" PRIu64 "\n", total);
}

static void put_sample(const struct kv_metrics_instance *instance, size_t index, const char *prefix,
    struct kv_text_buffer *text)
{
	const struct kv_metrics *metrics = instance->metrics;
	const struct kv_metric *metric = &metrics->table[index];
	const atomic_uint_fast64_t *slot = &metrics->slots[metrics->first_slot[index]];

	if (metric->kind == KV_METRIC_HISTOGRAM) {
		put_histogram(metric, slot, prefix, instance->labels, text);
		return;
	}
	put_name(metric, prefix, text);
	put_labels(metric->labels, instance->labels, "", text);
	kv_text_put(text, " ");
	put_value(metric->kind, load(slot), "NaN", text);
	kv_text_put(text, "\n");
}

static void put_family_head(
    const struct kv_metric *metric, const char *prefix, struct kv_text_buffer *text)
{
	const char *type = is_counter(metric->kind)              ? "counter"
	                   : metric->kind == KV_METRIC_HISTOGRAM ? "histogram"
	                                                         : "gauge";

	kv_text_put(text, "# HELP ");
	put_name(metric, prefix, text);
	kv_text_put(text, " ");
	for (const char *c = metric->help; *c; c++) {
		if (*c == '\\' || *c == '\n')
			kv_text_put(text, *c == '\n' ? "\\n" : "\\\\");
		else
			kv_text_append(text, c, 1);
	}
	kv_text_put(text, "\n# TYPE ");
	put_name(metric, prefix, text);
	kv_text_printf(text, " %s\n", type);
}

void kv_metrics_render_prometheus(const struct kv_metrics_instance *instances, size_t count,
    const char *prefix, struct kv_text_buffer *text)
{
	const struct kv_metrics *metrics;
	size_t end;

	if (count == 0) return;
	metrics = instances[0].metrics;
	for (size_t start = 0; start < metrics->count; start = end) {
		const char *name = metrics->table[start].name;

		for (end = start + 1; end < metrics->count; end++) {
			if (strcmp(metrics->table[end].name, name) != 0 ||
			    strcmp(metrics->table[end].unit, metrics->table[start].unit) != 0)
				break;
		}
		put_family_head(&metrics->table[start], prefix, text);
		for (size_t i = 0; i < count; i++) {
			KV_CHECK(instances[i].metrics->table == metrics->table);
			for (size_t row = start; row < end; row++)
				put_sample(&instances[i], row, prefix, text);
		}
	}
}

void kv_metrics_put_label(struct kv_text_buffer *text, const char *name, const char *value)
{
	kv_text_printf(text, "%s=\"", name);
	for (const char *c = value; *c; c++) {
		if (*c == '\\' || *c == '"') kv_text_append(text, "\\", 1);
		if (*c == '\n')
			kv_text_put(text, "\\n");
		else
			kv_text_append(text, c, 1);
	}
	kv_text_put(text, "\"");
}
