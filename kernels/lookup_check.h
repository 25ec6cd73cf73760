/* What every backend checks of a lookup's arguments: nothing that it would follow is missing. */
#ifndef KN_LOOKUP_CHECK_H
#define KN_LOOKUP_CHECK_H

#include "common/base/status.h"
#include "kernels/op_arguments.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline enum kv_status kn_lookup_check_cache(const struct kn_cache_table *cache)
{
	if (cache->generation == 0 || cache->row_bytes == 0)
		return kv_fail(KV_INVALID, "lookup: a cache of generation 0, or with rows of 0 bytes");
	if ((cache->slot_count == 0 || cache->slots) &&
	    (cache->page_count == 0 || (cache->next_page && cache->memory)))
		return KV_OK;
	return kv_fail(KV_INVALID, "lookup: %u slots and %u pages with an array missing",
	    cache->slot_count, cache->page_count);
}

static inline enum kv_status kn_lookup_check_staging(const struct kn_staging *staging)
{
	if (staging->used && staging->copy_count && staging->failed &&
	    (staging->rows == 0 || staging->memory) && (staging->copy_capacity == 0 || staging->copies))
		return KV_OK;
	return kv_fail(KV_INVALID, "lookup: staging of %u rows and %u copies lacks an array",
	    staging->rows, staging->copy_capacity);
}

static inline enum kv_status kn_lookup_check(const struct kn_lookup_arguments *a)
{
	KV_TRY(kn_lookup_check_cache(&a->cache));
	KV_TRY(kn_lookup_check_staging(&a->staging));
	if (a->job_count != 0 && !a->jobs)
		return kv_fail(KV_INVALID, "lookup: %u jobs but no list of them", a->job_count);
	for (uint32_t i = 0; i < a->job_count; i++) {
		const struct kn_lookup_job *job = &a->jobs[i];

		if (!job->extents || !job->selected || !job->hints || !job->segment_of ||
		    !job->segment_first || !job->segment_ids || !job->first_row || !job->unit_rows ||
		    !job->spans || !job->span_count || !job->misses || !job->counts)
			return kv_fail(KV_INVALID, "lookup: job %u lacks an array", i);
	}
	return KV_OK;
}

#ifdef __cplusplus
}
#endif
#endif
