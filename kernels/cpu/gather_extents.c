/* Missing extents into staging, and whether the memory that they came from was the same all along.
 */
#include <stdatomic.h>

#include "kernels/cpu/backend_cpu.h"

enum kv_status kn_cpu_gather_extents(struct kn_backend *backend, struct kn_stream *stream,
    const struct kn_gather_extents_arguments *a)
{
	struct kn_copy_arguments copy = {.jobs = a->copies};

	if (!a->count || !a->failed || (a->max_copies != 0 && !a->copies))
		return kv_fail(KV_INVALID, "gather_extents: copies, count or failed is missing");
	copy.job_count = *a->count < a->max_copies ? *a->count : a->max_copies;
	if (copy.job_count < *a->count) *a->failed |= KN_STEP_STAGING_FULL;
	if (copy.job_count == 0) return KV_OK;
	KV_TRY(kn_cpu_copy(backend, stream, &copy));
	if (!a->generation) return KV_OK;
	/* What was read before the fence was read before the word. */
	atomic_thread_fence(memory_order_acquire);
	if (*(const volatile uint64_t *)a->generation != a->expected) *a->failed |= KN_STEP_GENERATION;
	return KV_OK;
}
