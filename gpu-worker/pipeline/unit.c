#include "gpu-worker/pipeline/step.h"

enum { MAX_KV_HEADS = 256 };

enum kv_status gw_unit_describe(const struct gw_pipeline *pipeline,
	const struct kvc_segment *segment, uint32_t layer, struct gw_unit *unit)
{
	struct gw_unit made;

	KV_TRY(kvw_unit_shape(&pipeline->layout, segment->kind, segment->start, segment->tokens, layer,
		&made.shape));
	KV_TRY(kvw_unit_layout(&made.shape, &made.layout));
	*unit = made;
	return KV_OK;
}

enum kv_status gw_unit_read(struct gw_pipeline *pipeline, const struct kvc_segment *segment,
	uint32_t layer, const struct gw_unit *unit, uint8_t *buffer, const uint8_t **memory)
{
	struct kvc_store *store = pipeline->options.store;
	const uint8_t *direct = kvc_direct(store, segment, layer);
	struct kvc_read read;

	if (direct != NULL) {
		*memory = direct;
		return KV_OK;
	}
	read.segment = segment;
	read.layer = layer;
	read.offset = 0;
	read.bytes = unit->layout.bytes;
	read.destination = buffer;
	KV_TRY(kvc_fetch_start(store, &read, 1));
	KV_TRY(kvc_fetch_wait(store));
	*memory = buffer;
	return KV_OK;
}

enum kv_status gw_unit_attach(struct gw_layer_state *state, const struct kn_device *device,
	const struct gw_unit *unit, const uint8_t *memory, uint32_t ordinal)
{
	struct gw_unit_metadata heads[MAX_KV_HEADS];

	for (uint32_t head = 0; head < unit->shape.kv_heads; head++) {
		const uint8_t *block = memory + head * unit->layout.head_bytes;

		heads[head].centroids = (const uint16_t *)(const void *)(block + unit->layout.centroids);
		heads[head].value_means =
			(const uint16_t *)(const void *)(block + unit->layout.value_means);
		heads[head].sizes = (const uint32_t *)(const void *)(block + unit->layout.sizes);
	}
	return gw_cluster_index_attach(state->index, device, ordinal, heads, unit->shape.clusters,
		unit->shape.plain, unit->shape.tokens);
}
