/* Lookup in the cluster cache: the reference of what other backends do on a device. */
#include "kernels/cpu/backend_cpu.h"
#include "kernels/lookup_check.h"

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

enum kv_status kn_cpu_lookup(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_lookup_arguments *a)
{
	(void)backend;
	(void)stream;
	KV_TRY(kn_lookup_check(a));
	*a->staging.copy_count = 0;
	for (uint32_t i = 0; i < a->job_count; i++)
		look_up(a, &a->jobs[i]);
	return KV_OK;
}
