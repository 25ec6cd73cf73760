/* Lookup in the cluster cache: the reference of what other backends do on a device. */
#include "kernels/cpu/backend_cpu.h"

static const uint32_t none = UINT32_MAX;

/* What is found of one extent. */
struct found {
	uint32_t held; /* rows of it that its slot holds */
	uint32_t page; /* the slot's first one */
};

/* The slot that the hint names, or NULL if it is another cluster's. */
static const struct kn_cache_slot *find_slot(
    const struct kn_cache_table *cache, const struct kn_lookup_job *job, uint32_t cluster)
{
	uint32_t number = job->hints[cluster], entry = job->segment_of[cluster];

	if (number >= cache->slot_count) return NULL;
	const struct kn_cache_slot *slot = &cache->slots[number];

	if (slot->generation != cache->generation || slot->segment != job->segment_ids[entry] ||
	    slot->layer != job->layer || slot->head != job->head ||
	    slot->cluster != cluster - job->segment_first[entry])
		return NULL;
	if (cache->used_step && cache->used_step[number] < cache->step)
		cache->used_step[number] = cache->step;
	return slot;
}

/* The runs of adjoining pages that hold `count` rows from `page` on, to `spans`; their number. 0:
 * the chain leaves the cache. */
static uint32_t list_pages(
    const struct kn_cache_table *cache, uint32_t page, uint32_t count, struct kn_span *spans)
{
	const uint32_t rows = KN_CACHE_PAGE_ROWS;
	uint32_t runs = 0, last = none;

	for (uint32_t row = 0; row < count; row += rows) {
		uint32_t take = count - row < rows ? count - row : rows;

		if (page >= cache->page_count) return 0;
		if (row != 0 && page == last + 1)
			spans[runs - 1].count += take;
		else
			spans[runs++] =
			    (struct kn_span){cache->memory + (size_t)page * rows * cache->row_bytes, take};
		last = page;
		if (take < count - row) page = cache->next_page[page];
	}
	return runs;
}

/* Rows of staging for an extent and a copy that fills them: its first row, or KN_NOT_STAGED. */
static uint32_t stage(const struct kn_lookup_arguments *a, const struct kn_lookup_job *job,
    const struct kn_extent *extent)
{
	const struct kn_staging *s = &a->staging;
	const uint8_t *unit = job->unit_rows[job->segment_of[extent->cluster]];
	size_t row_bytes = a->cache.row_bytes;
	uint32_t first = *s->used;

	if (!unit) {
		*s->failed |= KN_STEP_UNREACHABLE;
		return KN_NOT_STAGED;
	}
	if (first > s->rows || extent->count > s->rows - first || *s->copy_count >= s->copy_capacity) {
		*s->failed |= KN_STEP_STAGING_FULL;
		return KN_NOT_STAGED;
	}
	s->copies[(*s->copy_count)++] =
	    (struct kn_copy_job){.source = unit + (size_t)job->first_row[extent->cluster] * row_bytes,
	        .destination = s->memory + (size_t)first * row_bytes,
	        .bytes = (size_t)extent->count * row_bytes};
	*s->used = first + extent->count;
	return first;
}

static void look_up(const struct kn_lookup_arguments *a, const struct kn_lookup_job *job)
{
	struct kn_lookup_counts counts = {0};

	if (job->before.count != 0) job->spans[counts.spans++] = job->before;
	for (uint32_t i = 0; i < job->selected->extents; i++) {
		struct kn_extent extent = job->extents[i];
		const struct kn_cache_slot *slot = find_slot(&a->cache, job, extent.cluster);
		struct found found = {0, 0};

		if (slot) found.held = slot->held < extent.count ? slot->held : extent.count;
		if (slot) found.page = slot->first_page;
		if (found.held == extent.count) {
			uint32_t runs =
			    list_pages(&a->cache, found.page, extent.count, job->spans + counts.spans);

			counts.spans += runs;
			if (runs == 0) found.held = 0;
		}
		counts.hit_tokens += found.held;
		counts.miss_tokens += extent.count - found.held;
		if (found.held == extent.count) continue;
		uint32_t first = stage(a, job, &extent);

		job->misses[counts.misses++] =
		    (struct kn_lookup_miss){extent.cluster, extent.count, found.held, first};
		if (first != KN_NOT_STAGED)
			job->spans[counts.spans++] = (struct kn_span){
			    a->staging.memory + (size_t)first * a->cache.row_bytes, extent.count};
	}
	if (job->after.count != 0) job->spans[counts.spans++] = job->after;
	*job->span_count = counts.spans;
	*job->counts = counts;
}

static enum kv_status check(const struct kn_lookup_arguments *a)
{
	const struct kn_cache_table *cache = &a->cache;
	const struct kn_staging *staging = &a->staging;

	if (a->job_count != 0 && !a->jobs)
		return kv_fail(KV_INVALID, "lookup: %u jobs but no list of them", a->job_count);
	if (cache->generation == 0 || cache->row_bytes == 0)
		return kv_fail(KV_INVALID, "lookup: a cache of generation 0, or with rows of 0 bytes");
	if ((cache->slot_count != 0 && !cache->slots) ||
	    (cache->page_count != 0 && (!cache->next_page || !cache->memory)))
		return kv_fail(KV_INVALID, "lookup: %u slots and %u pages with an array missing",
		    cache->slot_count, cache->page_count);
	if (!staging->used || !staging->copy_count || !staging->failed ||
	    (staging->rows != 0 && !staging->memory) ||
	    (staging->copy_capacity != 0 && !staging->copies))
		return kv_fail(KV_INVALID, "lookup: staging of %u rows and %u copies lacks an array",
		    staging->rows, staging->copy_capacity);
	for (uint32_t i = 0; i < a->job_count; i++) {
		const struct kn_lookup_job *job = &a->jobs[i];

		if (!job->extents || !job->selected || !job->hints || !job->segment_of ||
		    !job->segment_first || !job->segment_ids || !job->first_row || !job->unit_rows ||
		    !job->spans || !job->span_count || !job->misses || !job->counts)
			return kv_fail(KV_INVALID, "lookup: job %u lacks an array", i);
	}
	return KV_OK;
}

enum kv_status kn_cpu_lookup(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_lookup_arguments *a)
{
	(void)backend;
	(void)stream;
	KV_TRY(check(a));
	*a->staging.copy_count = 0;
	for (uint32_t i = 0; i < a->job_count; i++)
		look_up(a, &a->jobs[i]);
	return KV_OK;
}
