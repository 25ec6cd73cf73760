#include "kernels/cpu/backend_cpu.h"
#include "kernels/cpu/weight.h"

static void embed_row(void *context, uint32_t task, uint32_t thread)
{
	const struct kn_embed_arguments *a = context;

	(void)thread;
	kn_weight_read_row(a->table, (uint32_t)a->ids[task], a->out + (size_t)a->table->columns * task);
}

enum kv_status kn_cpu_embed(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_embed_arguments *a)
{
	(void)stream;
	if (a->count == 0) return KV_OK;
	if (!a->table || !a->ids || !a->out)
		return kv_fail(KV_INVALID, "embed without table, ids or output");
	for (uint32_t i = 0; i < a->count; i++)
		if (a->ids[i] < 0 || (uint32_t)a->ids[i] >= a->table->rows)
			return kv_fail(
			    KV_INVALID, "token id %d: the table has %u rows", a->ids[i], a->table->rows);
	struct kn_embed_arguments copy = *a;

	kn_pool_run(backend->pool, embed_row, &copy, a->count);
	return KV_OK;
}
