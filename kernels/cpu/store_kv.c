/* Rounding new keys and values to KV rows, a run of tokens a task. */
#include <string.h>

#include "kernels/cpu/backend_cpu.h"
#include "kernels/cpu/half.h"

enum { RUN = 32 };

/* memcpy of a pair of halves a time would keep the loop from vectorising: rows are at least
 * two-byte aligned, because their strides and starts are. */
static void to_halves(const float *from, uint16_t *restrict to, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		to[i] = kn_half_from_float(from[i]);
}

static void store_row(const struct kn_store_kv_arguments *a, uint32_t token, uint32_t head)
{
	const float *k = a->k + token * a->k_stride + (size_t)head * a->head_dim;
	const float *v = a->v + token * a->v_stride + (size_t)head * a->head_dim;
	uint8_t *row = a->rows + token * a->token_stride + head * a->head_stride;
	if (a->kv_type == KN_KV_F32) {
		memcpy(row, k, (size_t)a->head_dim * 4);
		memcpy(row + (size_t)a->head_dim * 4, v, (size_t)a->head_dim * 4);
		return;
	}
	to_halves(k, (uint16_t *)(void *)row, a->head_dim);
	to_halves(v, (uint16_t *)(void *)row + a->head_dim, a->head_dim);
}

static void store_task(void *context, uint32_t task, uint32_t thread)
{
	(void)thread;
	const struct kn_store_kv_arguments *a = context;
	uint32_t first = task * RUN, left = a->count - first;
	uint32_t end = first + (left < RUN ? left : RUN);
	for (uint32_t i = first; i < end; i++)
		for (uint32_t h = 0; h < a->kv_heads; h++)
			store_row(a, i, h);
}

enum kv_status kn_cpu_store_kv(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_store_kv_arguments *a)
{
	(void)stream;
	if (a->count == 0 || a->kv_heads == 0) return KV_OK;
	if (a->k == NULL || a->v == NULL || a->rows == NULL || a->head_dim == 0 ||
	    a->head_dim > KN_MAX_HEAD_DIM || a->head_dim % 8 != 0)
		return kv_fail(KV_INVALID,
		    "store_kv: head_dim %u with k, v or rows missing; use a multiple of 8 up to %d",
		    a->head_dim, KN_MAX_HEAD_DIM);
	KV_TRY(kn_cpu_check_kv_type("store_kv", a->kv_type));
	if (((uintptr_t)a->rows | a->token_stride | a->head_stride) % 4 != 0)
		return kv_fail(KV_INVALID, "store_kv: rows or strides are not multiples of 4 bytes");
	struct kn_store_kv_arguments arguments = *a;
	kn_pool_run(backend->pool, store_task, &arguments, (a->count - 1) / RUN + 1);
	return KV_OK;
}
