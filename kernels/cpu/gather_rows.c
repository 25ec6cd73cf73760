/* Rows in a new order, a run of them a task. */
#include <string.h>

#include "kernels/cpu/backend_cpu.h"

enum { RUN = 128, AHEAD = 8 };

static void gather_task(void *context, uint32_t task, uint32_t thread)
{
	(void)thread;
	const struct kn_gather_rows_arguments *a = context;
	uint32_t first = task * RUN, left = a->count - first;
	uint32_t end = first + (left < RUN ? left : RUN);
	for (uint32_t i = first; i < end; i++) {
		if (i + AHEAD < end) __builtin_prefetch(a->source + a->order[i + AHEAD] * a->source_stride);
		memcpy(a->destination + i * a->destination_stride,
		    a->source + a->order[i] * a->source_stride, a->row_bytes);
	}
}

enum kv_status kn_cpu_gather_rows(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_gather_rows_arguments *a)
{
	(void)stream;
	if (a->count == 0 || a->row_bytes == 0) return KV_OK;
	if (a->source == NULL || a->order == NULL || a->destination == NULL)
		return kv_fail(
		    KV_INVALID, "gather_rows: %u rows with source, order or destination missing", a->count);
	struct kn_gather_rows_arguments arguments = *a;
	kn_pool_run(backend->pool, gather_task, &arguments, (a->count - 1) / RUN + 1);
	return KV_OK;
}
