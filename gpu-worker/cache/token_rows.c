#include "gpu-worker/cache/token_rows.h"

#include <string.h>

enum kv_status gw_token_rows_init(struct gw_token_rows *rows, const struct kn_backend_ops *ops,
	struct kn_backend *backend, uint32_t kv_heads, uint32_t capacity, size_t row_bytes)
{
	void *memory = NULL;

	if (capacity > 0)
		KV_TRY(ops->buffer_create(backend, KN_DEVICE,
			gw_token_rows_bytes(kv_heads, capacity, row_bytes), &memory));
	gw_token_rows_init_at(rows, memory, kv_heads, capacity, row_bytes);
	rows->ops = ops;
	rows->backend = backend;
	return KV_OK;
}

void gw_token_rows_init_at(struct gw_token_rows *rows, void *memory, uint32_t kv_heads,
	uint32_t capacity, size_t row_bytes)
{
	*rows = (struct gw_token_rows){.rows = memory,
		.kv_heads = kv_heads,
		.capacity = capacity,
		.row_bytes = row_bytes};
}

void gw_token_rows_deinit(struct gw_token_rows *rows)
{
	if (rows->rows != NULL && rows->ops != NULL)
		rows->ops->buffer_destroy(rows->backend, rows->rows);
	rows->rows = NULL;
	rows->capacity = rows->count = 0;
}

enum kv_status gw_token_rows_append(struct gw_token_rows *rows, const uint8_t *source,
	size_t head_stride, uint32_t count)
{
	if (count > rows->capacity - rows->count)
		return kv_fail(KV_LIMIT, "%u KV rows appended to %u of %u", count, rows->count,
			rows->capacity);
	if (count == 0) return KV_OK;
	for (uint32_t head = 0; head < rows->kv_heads; head++)
		memcpy(gw_token_rows_at(rows, head, rows->count), source + head * head_stride,
			count * rows->row_bytes);
	rows->count += count;
	return KV_OK;
}

void gw_token_rows_drop(struct gw_token_rows *rows, uint32_t count)
{
	uint32_t left = rows->count - count;

	if (count == 0) return;
	for (uint32_t head = 0; head < rows->kv_heads; head++)
		memmove(gw_token_rows_at(rows, head, 0), gw_token_rows_at(rows, head, count),
			left * rows->row_bytes);
	rows->count = left;
}
