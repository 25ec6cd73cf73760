#include "gpu-worker/model/weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum kv_status gw_loader_init(
    struct gw_loader *loader, const struct gw_gguf *file, const struct gw_model_options *options)
{
	uint64_t count = gw_gguf_tensor_count(file);
	struct gw_gguf_tensor tensor;

	memset(loader, 0, sizeof *loader);
	loader->file = file;
	loader->options = options;
	loader->used = kv_alloc_array_zero(options->allocator, (size_t)count, sizeof *loader->used);
	if (!loader->used) return KV_NO_MEMORY;
	for (uint64_t i = 0; i < count; i++) {
		gw_gguf_tensor_at(file, i, &tensor);
		loader->total_bytes += tensor.bytes;
	}
	return KV_OK;
}

void gw_loader_deinit(struct gw_loader *loader)
{
	kv_free(loader->options->allocator, loader->used);
	loader->used = NULL;
}

int gw_loader_has(const struct gw_loader *loader, const char *name)
{
	struct gw_gguf_tensor tensor;

	return gw_gguf_tensor(loader->file, name, &tensor) == KV_OK;
}

struct gw_part gw_layer_part(uint32_t layer, const char *name, uint32_t rows)
{
	struct gw_part part;

	snprintf(part.name, sizeof part.name, "blk.%" PRIu32 ".%s", layer, name);
	part.rows = rows;
	return part;
}

/* The tensor, if it has this shape and a type that the kernels know. */
static enum kv_status take_tensor(struct gw_loader *loader, const char *name, uint32_t columns,
    uint32_t rows, struct gw_gguf_tensor *tensor)
{
	const char *path = gw_gguf_path(loader->file);

	if (gw_gguf_tensor(loader->file, name, tensor) != KV_OK)
		return kv_fail(KV_CORRUPT, "%s: tensor %s is missing", path, name);
	if (tensor->shape[0] != columns || tensor->shape[1] != rows || tensor->shape[2] != 1 ||
	    tensor->shape[3] != 1) {
		return kv_fail(KV_CORRUPT,
		    "%s: tensor %s has shape %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
		    ", this model needs %" PRIu32 " x %" PRIu32,
		    path, name, tensor->shape[0], tensor->shape[1], tensor->shape[2], tensor->shape[3],
		    columns, rows);
	}
	if (!tensor->data) {
		return kv_fail(KV_UNSUPPORTED,
		    "%s: tensor %s has type number %" PRIu32
		    ", which is not supported; use F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, "
		    "Q5_K or Q6_K",
		    path, name, tensor->type);
	}
	if (loader->used_count == gw_gguf_tensor_count(loader->file))
		return kv_fail(KV_INTERNAL, "%s: tensor %s was taken twice", path, name);
	loader->used[loader->used_count++] = tensor->name.bytes;
	return KV_OK;
}

static void report_progress(struct gw_loader *loader, uint64_t bytes)
{
	const struct gw_model_options *options = loader->options;

	loader->done_bytes += bytes;
	if (options->progress)
		options->progress(options->progress_context, loader->done_bytes, loader->total_bytes);
}

enum kv_status gw_load_matrix(struct gw_loader *loader, const struct gw_part *parts, uint32_t count,
    uint32_t columns, struct kn_weight **weight)
{
	const struct gw_model_options *options = loader->options;
	struct kn_weight_part packed[GW_MAX_PARTS];
	struct gw_gguf_tensor tensor, taken[GW_MAX_PARTS];
	struct kn_weight *made;
	uint64_t bytes = 0;
	enum kv_status status;

	if (count < 1 || count > GW_MAX_PARTS) return kv_fail(KV_INTERNAL, "stack of %" PRIu32, count);
	for (uint32_t i = 0; i < count; i++) {
		KV_TRY(take_tensor(loader, parts[i].name, columns, parts[i].rows, &tensor));
		packed[i].type = (enum kn_weight_type)tensor.type;
		packed[i].rows = parts[i].rows;
		packed[i].data = tensor.data;
		packed[i].bytes = tensor.bytes;
		bytes += tensor.bytes;
		taken[i] = tensor;
	}
	for (uint32_t i = 0; i < count; i++)
		gw_gguf_fetch(loader->file, &taken[i]);
	status = options->ops->weight_pack(
	    options->backend, packed, count, columns, options->precision, &made);
	for (uint32_t i = 0; i < count; i++)
		gw_gguf_drop(loader->file, &taken[i]);
	if (status != KV_OK) {
		return kv_fail_prefix(
		    status, "%s: packing tensor %s", gw_gguf_path(loader->file), parts[0].name);
	}
	loader->weight_bytes += options->ops->weight_bytes(made);
	report_progress(loader, bytes);
	*weight = made;
	return KV_OK;
}

enum kv_status gw_read_vector(
    struct gw_loader *loader, const char *name, uint32_t length, float *out)
{
	struct gw_gguf_tensor tensor;
	enum kv_status status;

	KV_TRY(take_tensor(loader, name, length, 1, &tensor));
	gw_gguf_fetch(loader->file, &tensor);
	status = kn_dequantise_row((enum kn_weight_type)tensor.type, tensor.data, out, length);
	gw_gguf_drop(loader->file, &tensor);
	if (status != KV_OK)
		return kv_fail_prefix(status, "%s: reading tensor %s", gw_gguf_path(loader->file), name);
	report_progress(loader, tensor.bytes);
	return KV_OK;
}

enum kv_status gw_upload_floats(
    const struct gw_model_options *options, const float *host, uint32_t count, float **buffer)
{
	const struct kn_backend_ops *ops = options->ops;
	size_t bytes = (size_t)count * sizeof *host;
	enum kv_status status;
	void *made;

	KV_TRY(ops->buffer_create(options->backend, KN_DEVICE, bytes, &made));
	status = ops->upload(options->backend, options->stream, made, host, bytes);
	/* The host memory is the caller's to free when we return. */
	if (status == KV_OK) status = ops->stream_wait(options->backend, options->stream);
	if (status != KV_OK) {
		ops->buffer_destroy(options->backend, made);
		return status;
	}
	*buffer = made;
	return KV_OK;
}

enum kv_status gw_load_vector(
    struct gw_loader *loader, const struct gw_part *parts, uint32_t count, float **vector)
{
	struct kv_allocator *allocator = loader->options->allocator;
	uint32_t length = 0, at = 0;
	enum kv_status status = KV_OK;
	float *host;

	for (uint32_t i = 0; i < count; i++)
		length += parts[i].rows;
	host = kv_alloc_array(allocator, length, sizeof *host);
	if (!host) return KV_NO_MEMORY;
	for (uint32_t i = 0; i < count; i++) {
		KV_TRY_GOTO(status, gw_read_vector(loader, parts[i].name, parts[i].rows, host + at), done);
		at += parts[i].rows;
	}
	KV_TRY_GOTO(status, gw_upload_floats(loader->options, host, length, vector), done);
	loader->weight_bytes += (uint64_t)length * sizeof *host;

done:
	kv_free(allocator, host);
	return status;
}

enum kv_status gw_loader_check_all_used(const struct gw_loader *loader)
{
	uint64_t count = gw_gguf_tensor_count(loader->file);
	char name[GW_GGUF_PRINTABLE];
	struct gw_gguf_tensor tensor;

	if (loader->used_count == count) return KV_OK;
	for (uint64_t i = 0; i < count; i++) {
		uint64_t at = 0;

		gw_gguf_tensor_at(loader->file, i, &tensor);
		while (at < loader->used_count && loader->used[at] != tensor.name.bytes)
			at++;
		if (at == loader->used_count) {
			return kv_fail(KV_UNSUPPORTED,
			    "%s: tensor %s is not part of this architecture as it is supported; "
			    "running without it would give wrong answers",
			    gw_gguf_path(loader->file), gw_gguf_printable(tensor.name, name));
		}
	}
	return kv_fail(KV_INTERNAL, "%s: a tensor was taken twice", gw_gguf_path(loader->file));
}
