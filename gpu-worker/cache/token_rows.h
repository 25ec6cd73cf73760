/* KV rows in token order for all KV heads of one layer: sinks, the recent window, a dense layer.
 * A fixed capacity of backend memory, taken at init. Rows are addressed by head, then by index from
 * the oldest. What moves rows is queued on the device's stream. */
#ifndef GW_CACHE_TOKEN_ROWS_H
#define GW_CACHE_TOKEN_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_token_rows {
	uint8_t *rows;        /* KN_DEVICE [kv_heads][capacity][row_bytes] */
	uint32_t kv_heads, capacity, count;
	size_t row_bytes;
	struct kn_device device;
	int owned;            /* 0: the memory is the caller's */
};

enum kv_status gw_token_rows_init(struct gw_token_rows *rows, const struct kn_device *device,
	uint32_t kv_heads, uint32_t capacity, size_t row_bytes);
/* The same in the caller's memory of gw_token_rows_bytes bytes, which outlives the rows. */
void gw_token_rows_init_at(struct gw_token_rows *rows, const struct kn_device *device,
	void *memory, uint32_t kv_heads, uint32_t capacity, size_t row_bytes);
static inline size_t gw_token_rows_bytes(uint32_t kv_heads, uint32_t capacity, size_t row_bytes)
{
	return (size_t)kv_heads * capacity * row_bytes;
}
void gw_token_rows_deinit(struct gw_token_rows *rows);

static inline uint8_t *gw_token_rows_at(const struct gw_token_rows *rows, uint32_t head,
	uint32_t index)
{
	return rows->rows + ((size_t)head * rows->capacity + index) * rows->row_bytes;
}

/* Append `count` rows of every head from source + head * head_stride: backend memory for append,
 * memory of the host for upload, queued on the stream of `device`, which stays as it is until
 * stream_wait. KV_LIMIT when they do not fit. */
enum kv_status gw_token_rows_append(struct gw_token_rows *rows, const uint8_t *source,
	size_t head_stride, uint32_t count);
enum kv_status gw_token_rows_upload(struct gw_token_rows *rows, const struct kn_device *device,
	const uint8_t *source, size_t head_stride, uint32_t count);

/* Forget the oldest `count` rows. */
enum kv_status gw_token_rows_drop(struct gw_token_rows *rows, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
