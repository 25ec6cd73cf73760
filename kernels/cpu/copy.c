#include <string.h>

#include "kernels/cpu/backend_cpu.h"

/* Below this a hand-over to another thread costs more than the copy. */
enum { SERIAL_BYTES = 1 << 16, JOBS_OF_TASK = 16 };

static void copy_jobs(void *context, uint32_t task, uint32_t thread)
{
	const struct kn_copy_arguments *a = context;
	uint32_t first = task * JOBS_OF_TASK;

	(void)thread;
	for (uint32_t i = first; i < a->job_count && i - first < JOBS_OF_TASK; i++)
		if (a->jobs[i].bytes > 0)
			memcpy(a->jobs[i].destination, a->jobs[i].source, a->jobs[i].bytes);
}

enum kv_status kn_cpu_copy(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_copy_arguments *a)
{
	uint64_t bytes = 0;
	uint32_t tasks = a->job_count / JOBS_OF_TASK + (a->job_count % JOBS_OF_TASK != 0);
	struct kn_copy_arguments copy = *a;

	(void)stream;
	if (a->job_count > 0 && !a->jobs) return kv_fail(KV_INVALID, "copy without jobs");
	for (uint32_t i = 0; i < a->job_count; i++) {
		if (a->jobs[i].bytes > 0 && (!a->jobs[i].source || !a->jobs[i].destination))
			return kv_fail(KV_INVALID, "copy job %u has no source or destination", i);
		bytes += a->jobs[i].bytes;
	}
	if (bytes <= SERIAL_BYTES) {
		for (uint32_t i = 0; i < tasks; i++)
			copy_jobs(&copy, i, 0);
	} else {
		kn_pool_run(backend->pool, copy_jobs, &copy, tasks);
	}
	return KV_OK;
}
