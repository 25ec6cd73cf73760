/* What lookups read of a sequence: where its clusters start, which segments they are of, where
 * those lie in the store's memory, and in which slots they were found last. */
#include "gpu-worker/pipeline/device_step.h"

/* 64-byte steps inside a buffer. */
static size_t step(size_t bytes)
{
	return (bytes + 63) & ~(size_t)63;
}

/* Each part at the next place of a buffer. */
static void *take(uint8_t **at, size_t count, size_t size)
{
	uint8_t *part = *at;

	*at += step(count * size);
	return part;
}

size_t gw_step_map_bytes(uint32_t layers, uint32_t kv_heads, uint32_t segments, uint32_t clusters)
{
	size_t rows = (size_t)kv_heads * segments, cells = (size_t)kv_heads * clusters;
	size_t layer = step(rows * sizeof(uint8_t *)) + 2 * step(cells * sizeof(uint32_t)) +
		step(clusters * sizeof(uint32_t)) + step(segments * sizeof(uint32_t));

	return step(segments * sizeof(uint64_t)) + layers * layer;
}

static void lay_out(struct gw_sequence *sequence, uint8_t *memory)
{
	struct gw_step_map *map = sequence->map;
	uint32_t kv_heads = sequence->pipeline->shape->kv_heads;

	map->segment_ids = take(&memory, map->segments, sizeof *map->segment_ids);
	for (uint32_t i = 0; i < sequence->pipeline->shape->layers; i++) {
		struct gw_layer_map *layer = &map->layers[i];
		size_t clusters = (size_t)kv_heads * map->clusters;

		if (!sequence->layers[i].ops->clustered) continue;
		layer->unit_rows =
			take(&memory, (size_t)kv_heads * map->segments, sizeof *layer->unit_rows);
		layer->hints = take(&memory, clusters, sizeof *layer->hints);
		layer->first_row = take(&memory, clusters, sizeof *layer->first_row);
		layer->segment_of = take(&memory, map->clusters, sizeof *layer->segment_of);
		layer->segment_first = take(&memory, map->segments, sizeof *layer->segment_first);
	}
}

enum kv_status gw_step_map_create(struct gw_sequence *sequence)
{
	struct gw_pipeline *pipeline = sequence->pipeline;
	struct kv_allocator *allocator = pipeline->options.allocator;
	uint32_t layers = pipeline->shape->layers, kv_heads = pipeline->shape->kv_heads, clustered = 0;
	struct gw_step_map *map;
	void *memory = NULL;

	if (pipeline->device_step == NULL) return KV_OK;
	map = sequence->map = kv_alloc_zero(allocator, sizeof *map);
	if (map == NULL) return KV_NO_MEMORY;
	map->segments = sequence->segment_capacity;
	for (uint32_t i = 0; i < layers; i++) {
		if (sequence->layers[i].index == NULL) continue;
		map->clusters = sequence->layers[i].index->capacity;
		clustered++;
	}
	map->layers = kv_alloc_array_zero(allocator, layers, sizeof *map->layers);
	map->ids = kv_alloc_array_zero(allocator, map->segments, sizeof *map->ids);
	map->unit_rows = (const uint8_t **)kv_alloc_array_zero(allocator,
		(size_t)layers * kv_heads * map->segments, sizeof *map->unit_rows);
	if (!map->layers || !map->ids || !map->unit_rows) return KV_NO_MEMORY;
	map->bytes = gw_step_map_bytes(clustered, kv_heads, map->segments, map->clusters);
	KV_TRY(kn_device_alloc(&pipeline->device, KN_DEVICE, map->bytes, &memory));
	lay_out(sequence, memory);
	return KV_OK;
}

void gw_step_map_destroy(struct gw_sequence *sequence)
{
	struct gw_pipeline *pipeline = sequence->pipeline;
	struct kv_allocator *allocator = pipeline->options.allocator;
	struct gw_step_map *map = sequence->map;

	if (map == NULL) return;
	if (map->segment_ids != NULL)
		gw_cache_mirror_forget_hints(pipeline->cache, map->segment_ids, map->bytes);
	kn_device_free(&pipeline->device, map->segment_ids);
	kv_free(allocator, map->layers);
	kv_free(allocator, map->ids);
	kv_free(allocator, (void *)map->unit_rows);
	kv_free(allocator, map);
	sequence->map = NULL;
}

/* Where a layer's units lie. False when one that has clusters is out of the device's reach. */
static int find_units(struct gw_sequence *sequence, uint32_t layer)
{
	const struct gw_device_step *step_state = sequence->pipeline->device_step;
	struct gw_step_map *map = sequence->map;
	uint32_t kv_heads = sequence->pipeline->shape->kv_heads;
	const uint8_t **rows = map->unit_rows + (size_t)layer * kv_heads * map->segments;

	for (uint32_t i = 0; i < sequence->segment_count; i++) {
		const struct gw_unit *unit = &sequence->units[i];
		const uint8_t *memory = NULL;

		if (unit->shape.clusters > 0) {
			memory = kvc_direct(sequence->pipeline->options.store, sequence->segments[i], layer);
			if (memory == NULL ||
				!gw_store_memory_has(&step_state->memory, memory, unit->layout.bytes))
				return 0;
		}
		for (uint32_t head = 0; head < kv_heads; head++)
			rows[(size_t)head * map->segments + i] =
				memory != NULL ? gw_unit_row(unit, memory, head, 0) : NULL;
	}
	return 1;
}

static enum kv_status upload_hints(struct gw_sequence *sequence, uint32_t layer)
{
	const struct gw_step_map *map = sequence->map;
	size_t clusters = (size_t)sequence->pipeline->shape->kv_heads * map->clusters;

	return kn_device_upload(&sequence->pipeline->device, map->layers[layer].hints,
		sequence->layers[layer].slot_hints, clusters * sizeof(uint32_t));
}

static enum kv_status upload_layer(struct gw_sequence *sequence, uint32_t layer)
{
	const struct kn_device *device = &sequence->pipeline->device;
	const struct gw_cluster_index *index = sequence->layers[layer].index;
	const struct gw_step_map *map = sequence->map;
	const struct gw_layer_map *to = &map->layers[layer];
	uint32_t kv_heads = sequence->pipeline->shape->kv_heads;
	size_t rows = (size_t)kv_heads * map->segments;

	KV_TRY(kn_device_upload(device, (void *)to->unit_rows, (const void *)(map->unit_rows +
		layer * rows), rows * sizeof *to->unit_rows));
	KV_TRY(kn_device_upload(device, to->first_row, index->first_row,
		(size_t)kv_heads * map->clusters * sizeof *to->first_row));
	KV_TRY(kn_device_upload(device, to->segment_of, index->segment_of,
		index->clusters * sizeof *to->segment_of));
	KV_TRY(kn_device_upload(device, to->segment_first, index->segment_first,
		index->segments * sizeof *to->segment_first));
	return upload_hints(sequence, layer);
}

/* Lookups find by hint only, and what another sequence has brought over gave this one no hint: the
 * cache is asked once for each cluster, of segments from `first` on. */
static void find_slots(struct gw_sequence *sequence, uint32_t layer, uint32_t first)
{
	const struct gw_layer_state *state = &sequence->layers[layer];
	const struct gw_cluster_index *index = state->index;
	uint32_t from = first < index->segments ? index->segment_first[first] : index->clusters;

	for (uint32_t head = 0; head < sequence->pipeline->shape->kv_heads; head++)
		for (uint32_t cluster = from; cluster < index->clusters; cluster++) {
			struct gw_cache_key key = gw_cluster_key(sequence, layer, head, cluster);

			gw_cluster_cache_find(sequence->pipeline->cache, &key,
				state->slot_hints + (size_t)head * index->capacity + cluster);
		}
}

/* Leading segments that are the same as when they were looked for. */
static uint32_t hinted(const struct gw_sequence *sequence)
{
	const struct gw_step_map *map = sequence->map;
	uint32_t same = 0;

	while (same < map->hinted && same < sequence->segment_count &&
		map->ids[same] == sequence->segments[same]->id)
		same++;
	return same;
}

static enum kv_status make(struct gw_sequence *sequence)
{
	struct gw_step_map *map = sequence->map;
	uint32_t known = hinted(sequence);

	map->reachable = 1;
	for (uint32_t layer = 0; map->reachable && layer < sequence->pipeline->shape->layers; layer++)
		if (sequence->layers[layer].ops->clustered)
			map->reachable = find_units(sequence, layer);
	if (!map->reachable) return KV_OK;
	map->hinted = known;
	for (uint32_t i = 0; i < sequence->segment_count; i++)
		map->ids[i] = sequence->segments[i]->id;
	KV_TRY(kn_device_upload(&sequence->pipeline->device, map->segment_ids, map->ids,
		sequence->segment_count * sizeof *map->ids));
	for (uint32_t layer = 0; layer < sequence->pipeline->shape->layers; layer++) {
		if (!sequence->layers[layer].ops->clustered) continue;
		find_slots(sequence, layer, known);
		KV_TRY(upload_layer(sequence, layer));
	}
	map->hinted = sequence->segment_count;
	map->hints_stale = 0;
	return KV_OK;
}

/* Is the map still that of the sequence? */
static int renew(struct gw_sequence *sequence)
{
	struct gw_step_map *map = sequence->map;
	uint64_t memory = sequence->pipeline->device_step->memory.changes, index = 0;
	int same;

	for (uint32_t layer = 0; layer < sequence->pipeline->shape->layers; layer++)
		if (sequence->layers[layer].index != NULL)
			index += sequence->layers[layer].index->changes;
	same = map->made && map->seen_list == sequence->list_changes && map->seen_index == index &&
		map->seen_memory == memory;
	map->made = 1;
	map->seen_list = sequence->list_changes;
	map->seen_index = index;
	map->seen_memory = memory;
	return !same;
}

enum kv_status gw_step_map_update(struct gw_sequence *sequence, int *reachable)
{
	struct gw_step_map *map = sequence->map;

	if (renew(sequence)) KV_TRY(make(sequence));
	for (uint32_t layer = 0; map->reachable && map->hints_stale &&
		layer < sequence->pipeline->shape->layers; layer++)
		if (sequence->layers[layer].ops->clustered) KV_TRY(upload_hints(sequence, layer));
	if (map->reachable) map->hints_stale = 0;
	*reachable = map->reachable;
	return KV_OK;
}
