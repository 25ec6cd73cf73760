#include "gpu-worker/cache/token_rows.h"

#include <string.h>

enum { COPIES = 32 };

enum kv_status gw_token_rows_init(struct gw_token_rows *rows, const struct kn_device *device,
	uint32_t kv_heads, uint32_t capacity, size_t row_bytes)
{
	void *memory = NULL;

	if (capacity > 0)
		KV_TRY(kn_device_alloc(device, KN_DEVICE,
			gw_token_rows_bytes(kv_heads, capacity, row_bytes), &memory));
	gw_token_rows_init_at(rows, device, memory, kv_heads, capacity, row_bytes);
	rows->owned = 1;
	return KV_OK;
}

void gw_token_rows_init_at(struct gw_token_rows *rows, const struct kn_device *device,
	void *memory, uint32_t kv_heads, uint32_t capacity, size_t row_bytes)
{
	*rows = (struct gw_token_rows){.rows = memory,
		.kv_heads = kv_heads,
		.capacity = capacity,
		.row_bytes = row_bytes,
		.device = *device};
}

void gw_token_rows_deinit(struct gw_token_rows *rows)
{
	if (rows->owned) kn_device_free(&rows->device, rows->rows);
	rows->rows = NULL;
	rows->capacity = rows->count = 0;
}

static enum kv_status check_room(const struct gw_token_rows *rows, uint32_t count)
{
	if (count > rows->capacity - rows->count)
		return kv_fail(KV_LIMIT, "%u KV rows appended to %u of %u", count, rows->count,
			rows->capacity);
	return KV_OK;
}

/* `count` rows of every head to index `to` on. */
static enum kv_status copy(struct gw_token_rows *rows, uint32_t to, const uint8_t *source,
	size_t head_stride, uint32_t count)
{
	const struct kn_device *device = &rows->device;
	struct kn_copy_job jobs[COPIES];
	struct kn_copy_arguments a = {jobs, 0};

	for (uint32_t head = 0; head < rows->kv_heads; head++) {
		struct kn_copy_job *job = &jobs[a.job_count++];

		job->source = source + head * head_stride;
		job->destination = gw_token_rows_at(rows, head, to);
		job->bytes = count * rows->row_bytes;
		if (a.job_count < COPIES && head + 1 < rows->kv_heads) continue;
		KV_TRY(device->ops->copy(device->backend, device->stream, &a));
		a.job_count = 0;
	}
	return KV_OK;
}

enum kv_status gw_token_rows_append(struct gw_token_rows *rows, const uint8_t *source,
	size_t head_stride, uint32_t count)
{
	KV_TRY(check_room(rows, count));
	if (count == 0) return KV_OK;
	KV_TRY(copy(rows, rows->count, source, head_stride, count));
	rows->count += count;
	return KV_OK;
}

enum kv_status gw_token_rows_upload(struct gw_token_rows *rows, const struct kn_device *device,
	const uint8_t *source, size_t head_stride, uint32_t count)
{
	KV_TRY(check_room(rows, count));
	if (count == 0) return KV_OK;
	for (uint32_t head = 0; head < rows->kv_heads; head++)
		KV_TRY(kn_device_upload(device, gw_token_rows_at(rows, head, rows->count),
			source + head * head_stride, count * rows->row_bytes));
	rows->count += count;
	return KV_OK;
}

/* Jobs of a copy do not overlap: where what stays is longer than what goes, it moves in pieces of
 * that length, each into what the one before has left. */
enum kv_status gw_token_rows_drop(struct gw_token_rows *rows, uint32_t count)
{
	uint32_t left = rows->count - count, piece;
	size_t head_stride = rows->capacity * rows->row_bytes;

	if (count == 0) return KV_OK;
	if (rows->device.ops->unified) {
		for (uint32_t head = 0; head < rows->kv_heads; head++)
			memmove(gw_token_rows_at(rows, head, 0), gw_token_rows_at(rows, head, count),
				left * rows->row_bytes);
		rows->count = left;
		return KV_OK;
	}
	for (uint32_t done = 0; done < left; done += piece) {
		piece = left - done < count ? left - done : count;
		KV_TRY(copy(rows, done, gw_token_rows_at(rows, 0, done + count), head_stride, piece));
	}
	rows->count = left;
	return KV_OK;
}
