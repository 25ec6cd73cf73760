#include "proto/wire_layout.h"

#include "common/base/check.h"

static enum kv_status check_range(const char *name, uint32_t value, uint32_t low, uint32_t high)
{
	if (value >= low && value <= high) return KV_OK;
	return kv_fail(
	    KV_INVALID, "model layout: %s is %u, allowed are %u to %u", name, value, low, high);
}

enum kv_status kvw_model_layout_check(const struct kvw_model_layout *model)
{
	KV_TRY(check_range("layers", model->layers, 1, KVW_MAX_LAYERS));
	KV_TRY(check_range("kv_heads", model->kv_heads, 1, KVW_MAX_KV_HEADS));
	KV_TRY(check_range("head_dim", model->head_dim, 1, KVW_MAX_HEAD_DIM));
	KV_TRY(check_range("kv_type", model->kv_type, KVW_KV_F16, KVW_KV_BF16));
	KV_TRY(check_range("dense_layers", model->dense_layers, 0, model->layers));
	KV_TRY(check_range("sinks", model->sinks, 0, KVW_MAX_SEGMENT_TOKENS));
	KV_TRY(check_range("cluster_tokens", model->cluster_tokens, 1, KVW_MAX_SEGMENT_TOKENS));
	return KV_OK;
}

static enum kv_status check_run(const struct kvw_model_layout *model, enum kvw_segment_kind kind,
    uint32_t start, uint32_t tokens)
{
	KV_TRY(kvw_model_layout_check(model));
	if (kind != KVW_CLUSTERED && kind != KVW_PLAIN)
		return kv_fail(KV_INVALID, "segment kind %u is not known, use %u (clustered) or %u (plain)",
		    (unsigned)kind, (unsigned)KVW_CLUSTERED, (unsigned)KVW_PLAIN);
	if (tokens == 0 || tokens > KVW_MAX_SEGMENT_TOKENS)
		return kv_fail(KV_INVALID, "a segment of %u tokens is not allowed, only 1 to %u", tokens,
		    (unsigned)KVW_MAX_SEGMENT_TOKENS);
	if (start > KVW_MAX_SEQUENCE_TOKENS - tokens)
		return kv_fail(KV_INVALID,
		    "a segment of %u tokens at position %u ends above the limit of %u", tokens, start,
		    (unsigned)KVW_MAX_SEQUENCE_TOKENS);
	return KV_OK;
}

/* The same for layers that are treated alike; the arguments have been checked. */
static struct kvw_unit_shape shape_of(const struct kvw_model_layout *model,
    enum kvw_segment_kind kind, uint32_t start, uint32_t tokens, uint32_t layer)
{
	struct kvw_unit_shape shape = {
	    .kv_heads = model->kv_heads,
	    .head_dim = model->head_dim,
	    .row_bytes = model->head_dim * 2u * (model->kv_type == KVW_KV_F32 ? 4u : 2u),
	    .tokens = tokens,
	    .plain = tokens,
	    .clusters = 0,
	};
	uint32_t clustered;

	if (kind == KVW_PLAIN || layer < model->dense_layers) return shape;
	shape.plain = start < model->sinks ? model->sinks - start : 0;
	if (shape.plain > tokens) shape.plain = tokens;
	clustered = tokens - shape.plain;
	shape.clusters = clustered / model->cluster_tokens + (clustered % model->cluster_tokens != 0);
	return shape;
}

enum kv_status kvw_unit_shape(const struct kvw_model_layout *model, enum kvw_segment_kind kind,
    uint32_t start, uint32_t tokens, uint32_t layer, struct kvw_unit_shape *shape)
{
	KV_TRY(check_run(model, kind, start, tokens));
	if (layer >= model->layers)
		return kv_fail(KV_INVALID, "layer %u is not there, the model has %u", layer, model->layers);
	*shape = shape_of(model, kind, start, tokens, layer);
	return KV_OK;
}

/* Put a part of count * size bytes at *end, rounded up to the alignment, and move *end behind it.
 */
static bool place(uint64_t *end, uint64_t count, uint64_t size, uint64_t *offset)
{
	uint64_t start, bytes, behind;

	if (!kv_add_u64(*end, KVW_ALIGNMENT - 1, &start)) return false;
	start &= ~(uint64_t)(KVW_ALIGNMENT - 1);
	if (!kv_mul_u64(count, size, &bytes) || !kv_add_u64(start, bytes, &behind)) return false;
	*offset = start;
	*end = behind;
	return true;
}

enum kv_status kvw_unit_layout(const struct kvw_unit_shape *shape, struct kvw_unit_layout *layout)
{
	struct kvw_unit_layout result = {0};
	uint64_t end = 0;
	uint64_t centroid_bytes = (uint64_t)shape->head_dim * 2;
	bool fits = place(&end, shape->clusters, centroid_bytes, &result.centroids) &&
	            place(&end, shape->clusters, centroid_bytes, &result.value_means) &&
	            place(&end, shape->clusters, sizeof(uint32_t), &result.sizes) &&
	            place(&end, shape->tokens, sizeof(uint32_t), &result.positions) &&
	            place(&end, shape->tokens, shape->row_bytes, &result.rows) &&
	            place(&end, 0, 0, &result.head_bytes) &&
	            kv_mul_u64(result.head_bytes, shape->kv_heads, &result.bytes);

	if (!fits)
		return kv_fail(KV_LIMIT,
		    "a unit of %u KV heads, %u tokens of %u bytes and %u clusters exceeds 64 bits",
		    shape->kv_heads, shape->tokens, shape->row_bytes, shape->clusters);
	*layout = result;
	return KV_OK;
}

enum kv_status kvw_segment_bytes(const struct kvw_model_layout *model, enum kvw_segment_kind kind,
    uint32_t start, uint32_t tokens, uint64_t *bytes)
{
	struct kvw_unit_shape shape;
	struct kvw_unit_layout layout;
	uint64_t dense = 0, sparse = 0, total;
	uint32_t sparse_layers;
	bool fits;

	KV_TRY(check_run(model, kind, start, tokens));
	sparse_layers = model->layers - model->dense_layers;
	if (model->dense_layers > 0) {
		shape = shape_of(model, kind, start, tokens, 0);
		KV_TRY(kvw_unit_layout(&shape, &layout));
		dense = layout.bytes;
	}
	if (sparse_layers > 0) {
		shape = shape_of(model, kind, start, tokens, model->dense_layers);
		KV_TRY(kvw_unit_layout(&shape, &layout));
		sparse = layout.bytes;
	}
	fits = kv_mul_u64(dense, model->dense_layers, &dense) &&
	       kv_mul_u64(sparse, sparse_layers, &sparse) && kv_add_u64(dense, sparse, &total);
	if (!fits) return kv_fail(KV_LIMIT, "a segment of %u tokens exceeds 64 bits of bytes", tokens);
	*bytes = total;
	return KV_OK;
}
