/* The records of a sequence: segments, their units, and the list. */
#include "kvstore/client/store_internal.h"

#include <string.h>

enum kv_status kvc_sequence_create(struct kvc_store *store, struct kvc_sequence **sequence)
{
	struct kvc_sequence *created = kv_alloc_zero(store->allocator, sizeof *created);

	if (!created) return KV_NO_MEMORY;
	created->store = store;
	kv_list_init(&created->entries);
	kv_list_init(&created->node);
	*sequence = created;
	return KV_OK;
}

void kvc_sequence_destroy(struct kvc_sequence *sequence)
{
	struct kv_allocator *allocator = sequence->store->allocator;
	struct kv_list *node;

	kv_list_remove(&sequence->node);
	while ((node = kv_list_pop_front(&sequence->entries)))
		kv_free(allocator, KV_CONTAINER_OF(node, struct kvc_entry, node));
	for (size_t i = 0; i < sizeof sequence->held / sizeof sequence->held[0]; i++)
		kv_free(allocator, sequence->held[i]);
	kv_free(allocator, sequence->list.items);
	kv_free(allocator, sequence->pieces);
	kv_free(allocator, sequence);
}

static enum kv_status check_place(
    const struct kvw_model_layout *layout, const struct kvc_place *place)
{
	if (place->units != layout->layers)
		return kv_fail(KV_PROTOCOL, "segment %llu has %zu units, the model has %u layers",
		    (unsigned long long)place->id, place->units, layout->layers);
	if (place->kind > KVW_PLAIN || place->provenance > KVW_APPROXIMATE)
		return kv_fail(KV_PROTOCOL, "segment %llu is of unknown kind %u or provenance %u",
		    (unsigned long long)place->id, place->kind, place->provenance);
	if (!place->tokens || place->tokens > KVW_MAX_SEGMENT_TOKENS ||
	    place->start > KVW_MAX_SEQUENCE_TOKENS)
		return kv_fail(KV_PROTOCOL, "segment %llu has %u tokens at position %u",
		    (unsigned long long)place->id, place->tokens, place->start);
	return KV_OK;
}

static enum kv_status set_unit_bytes(
    const struct kvw_model_layout *layout, const struct kvc_place *place, struct kvc_entry *entry)
{
	struct kvw_unit_shape shape;
	struct kvw_unit_layout unit;

	for (uint32_t layer = 0; layer < layout->layers; layer++) {
		KV_TRY(kvw_unit_shape(layout, (enum kvw_segment_kind)place->kind, place->start,
		    place->tokens, layer, &shape));
		KV_TRY(kvw_unit_layout(&shape, &unit));
		entry->units[layer].bytes = unit.bytes;
	}
	return KV_OK;
}

enum kv_status kvc_entry_create(
    struct kvc_sequence *sequence, const struct kvc_place *place, struct kvc_entry **entry)
{
	const struct kvw_model_layout *layout = &sequence->store->layout;
	size_t layers = layout->layers;
	size_t head = (sizeof(struct kvc_entry) + 63) & ~(size_t)63;
	size_t size = head + layers * (sizeof(struct kvc_unit) + sizeof(uint64_t) + sizeof(uint32_t));
	struct kvc_entry *created;
	enum kv_status status;

	KV_TRY(check_place(layout, place));
	created = kv_alloc_zero(sequence->store->allocator, size);
	if (!created) return KV_NO_MEMORY;
	created->units = (struct kvc_unit *)(void *)((uint8_t *)created + head);
	created->offset = (uint64_t *)(void *)(created->units + layers);
	created->region = (uint32_t *)(void *)(created->offset + layers);
	status = set_unit_bytes(layout, place, created);
	if (status != KV_OK) {
		kv_free(sequence->store->allocator, created);
		return status;
	}
	memcpy(created->region, place->region, layers * sizeof *created->region);
	memcpy(created->offset, place->offset, layers * sizeof *created->offset);
	created->view = (struct kvc_segment){.id = place->id,
	    .start = place->start,
	    .tokens = place->tokens,
	    .kind = (enum kvw_segment_kind)place->kind,
	    .provenance = (enum kvw_provenance)place->provenance,
	    .unit_region = created->region,
	    .unit_offset = created->offset};
	created->sequence = sequence;
	created->session = sequence->session;
	kv_list_push_back(&sequence->entries, &created->node);
	*entry = created;
	return KV_OK;
}

void kvc_entry_destroy(struct kvc_entry *entry)
{
	kv_list_remove(&entry->node);
	kv_free(entry->sequence->store->allocator, entry);
}

enum kv_status kvc_list_append(
    struct kv_allocator *allocator, struct kvc_entry_list *list, struct kvc_entry *entry)
{
	if (list->count == list->capacity) {
		uint32_t capacity = list->capacity ? 2 * list->capacity : 16;
		struct kvc_entry **items;

		if (list->count >= KVC_MAX_LIST)
			return kv_fail(KV_LIMIT, "a sequence holds at most %d segments", (int)KVC_MAX_LIST);
		items = kv_realloc(allocator, list->items, capacity * sizeof(struct kvc_entry *));
		if (!items) return KV_NO_MEMORY;
		list->items = items;
		list->capacity = capacity;
	}
	list->items[list->count++] = entry;
	return KV_OK;
}
