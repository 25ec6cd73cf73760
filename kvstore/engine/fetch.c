/* What a peer may have copied out of the arena. */
#include <inttypes.h>

#include "kvstore/engine/engine_internal.h"

static bool refers(const struct kvs_sequence *sequence, const struct kvs_segment *segment)
{
	for (uint32_t i = 0; i < sequence->length; i++)
		if (sequence->list[i].segment == segment) return true;
	for (uint32_t i = 0; i < sequence->piece_count; i++)
		if (sequence->pieces[i].segment == segment) return true;
	return false;
}

static bool held_by(const struct kvs_peer *peer, const struct kvs_segment *segment)
{
	struct kv_list *node;

	if (!segment->references) return false;
	KV_LIST_EACH(node, &peer->sequences)
	if (refers(KV_CONTAINER_OF(node, const struct kvs_sequence, link), segment)) return true;
	return false;
}

enum kv_status kvs_fetch_source(struct kvs_engine *engine, uint32_t peer, uint64_t segment_id,
    uint32_t layer, uint64_t offset, uint64_t bytes, const uint8_t **memory)
{
	struct kvs_peer *reader = NULL;
	const struct kvs_segment *segment;
	const uint8_t *unit;

	KV_TRY(kvs_peer_require(engine, peer, &reader));
	segment = kvs_segment_by_id(engine, segment_id);
	if (!segment || segment->state != KVS_COMMITTED || !held_by(reader, segment))
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
