/* What a peer may have copied out of the arena. */
#include <inttypes.h>

#include "kvstore/engine/engine_internal.h"

/* Marks are counted up, so none has to be taken away. */
enum kv_status kvs_fetch_begin(struct kvs_engine *engine, uint32_t peer, uint64_t *entries)
{
	struct kvs_peer *reader = NULL;
	struct kv_list *node;

	KV_TRY(kvs_peer_require(engine, peer, &reader));
	engine->fetch_mark++;
	*entries = 0;
	KV_LIST_EACH(node, &reader->sequences)
	{
		struct kvs_sequence *sequence = KV_CONTAINER_OF(node, struct kvs_sequence, link);

		for (uint32_t i = 0; i < sequence->length; i++)
			sequence->list[i].segment->fetch_mark = engine->fetch_mark;
		for (uint32_t i = 0; i < sequence->piece_count; i++)
			sequence->pieces[i].segment->fetch_mark = engine->fetch_mark;
		*entries += 1 + sequence->length + sequence->piece_count;
	}
	return KV_OK;
}

enum kv_status kvs_fetch_source(struct kvs_engine *engine, uint32_t peer, uint64_t segment_id,
    uint32_t layer, uint64_t offset, uint64_t bytes, const uint8_t **memory)
{
	struct kvs_peer *reader = NULL;
	const struct kvs_segment *segment;
	const uint8_t *unit;

	KV_TRY(kvs_peer_require(engine, peer, &reader));
	segment = kvs_segment_by_id(engine, segment_id);
	if (!segment || segment->state != KVS_COMMITTED || !segment->references ||
	    segment->fetch_mark != engine->fetch_mark)
		return kv_fail(KV_NOT_FOUND, "no sequence of peer %" PRIu32 " refers to segment %" PRIu64,
		    peer, segment_id);
	if (layer >= segment->layers)
		return kv_fail(
		    KV_INVALID, "layer %u is not there, the segment has %u", layer, segment->layers);
	if (offset > segment->units[layer].bytes || bytes > segment->units[layer].bytes - offset)
		return kv_fail(KV_INVALID,
		    "%" PRIu64 " bytes at %" PRIu64 " are asked for of a unit of %" PRIu64, bytes, offset,
		    segment->units[layer].bytes);
	unit = kvs_unit_memory(engine, &segment->units[layer]);
	if (!unit)
		return kv_fail(
		    KV_UNSUPPORTED, "region %u has no address here", segment->units[layer].region);
	*memory = unit + offset;
	return KV_OK;
}
