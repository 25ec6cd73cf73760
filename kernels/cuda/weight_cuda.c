/* Packed weights: the file's blocks as they are, in device memory. */
#include <inttypes.h>

#include "kernels/cuda/backend_cuda.h"

enum { ALIGNMENT = 256, COLUMN_STEP = 32 };

static uint64_t aligned(uint64_t bytes)
{
	return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Bytes of all parts on the device. */
static enum kv_status check_parts(const struct kn_weight_part *parts, uint32_t part_count,
    uint32_t columns, uint64_t *bytes, uint64_t *rows)
{
	*bytes = *rows = 0;
	if (part_count == 0 || columns == 0 || columns % COLUMN_STEP != 0)
		return kv_fail(KV_UNSUPPORTED,
		    "a matrix of %" PRIu32 " columns: the cuda backend takes multiples of %d", columns,
		    COLUMN_STEP);
	for (uint32_t i = 0; i < part_count; i++) {
		uint64_t row = kn_weight_row_bytes(parts[i].type, columns);

		if (row == 0)
			return kv_fail(KV_UNSUPPORTED,
			    "a matrix of type %d with %" PRIu32 " columns: its blocks do not divide them",
			    (int)parts[i].type, columns);
		if (parts[i].rows == 0 || parts[i].data == NULL || parts[i].bytes != row * parts[i].rows)
			return kv_fail(KV_INVALID,
			    "a matrix of %" PRIu32 " rows of %" PRIu64 " bytes is given as %" PRIu64 " bytes",
			    parts[i].rows, row, parts[i].bytes);
		*bytes += aligned(parts[i].bytes);
		*rows += parts[i].rows;
	}
	if (*rows > INT32_MAX)
		return kv_fail(KV_UNSUPPORTED, "a matrix of %" PRIu64 " rows is too large", *rows);
	return KV_OK;
}

static enum kv_status fill(struct kn_weight *weight, const struct kn_weight_part *parts)
{
	uint8_t *at = weight->memory;
	uint32_t row = 0;

	for (uint32_t i = 0; i < weight->cuda.part_count; i++) {
		struct kn_cuda_weight_part *part = &weight->parts[i];

		part->type = parts[i].type;
		part->first_row = row;
		part->rows = parts[i].rows;
		part->data = at;
		KV_TRY(kn_cuda_check(cudaMemcpy(at, parts[i].data, parts[i].bytes, cudaMemcpyHostToDevice),
		    "uploading a weight"));
		at += aligned(parts[i].bytes);
		row += parts[i].rows;
	}
	/* A copy from pageable memory returns when that has been read, not when the device has it, and
	 * the streams of operations do not wait for the default one. */
	return kn_cuda_check(cudaStreamSynchronize(NULL), "uploading a weight");
}

enum kv_status kn_cuda_weight_pack(struct kn_backend *backend, const struct kn_weight_part *parts,
    uint32_t part_count, uint32_t columns, enum kn_precision precision, struct kn_weight **weight)
{
	uint64_t bytes = 0, rows = 0;
	struct kn_weight *made;
	enum kv_status status;

	KV_TRY(check_parts(parts, part_count, columns, &bytes, &rows));
	made = kv_alloc_zero(backend->allocator, sizeof *made + part_count * sizeof *made->parts);
	if (made == NULL) return KV_NO_MEMORY;
	made->parts = (struct kn_cuda_weight_part *)(void *)(made + 1);
	made->cuda.rows = (uint32_t)rows;
	made->cuda.columns = columns;
	made->cuda.precision = precision;
	made->cuda.part_count = part_count;
	made->cuda.parts = made->parts;
	status = kn_cuda_take(backend, KN_CUDA_WEIGHTS, bytes, &made->memory);
	if (status == KV_OK) {
		made->bytes = bytes;
		status = fill(made, parts);
	}
	if (status != KV_OK) {
		kn_cuda_weight_destroy(backend, made);
		return status;
	}
	*weight = made;
	return KV_OK;
}

void kn_cuda_weight_destroy(struct kn_backend *backend, struct kn_weight *weight)
{
	if (weight == NULL) return;
	kn_cuda_give(backend, KN_CUDA_WEIGHTS, weight->bytes, weight->memory);
	kv_free(backend->allocator, weight);
}

uint64_t kn_cuda_weight_bytes(const struct kn_weight *weight)
{
	return weight->bytes;
}
