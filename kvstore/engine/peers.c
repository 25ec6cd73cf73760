#include "kvstore/engine/engine_internal.h"

static struct kvs_sequence *sequence_of(struct kv_list *node)
{
	return KV_CONTAINER_OF(node, struct kvs_sequence, link);
}

enum kv_status kvs_peer_require(struct kvs_engine *engine, uint32_t peer, struct kvs_peer **found)
{
	if (peer >= engine->options.max_peers || !engine->peers[peer].used)
		return kv_fail(KV_NOT_FOUND, "peer %u is not registered", peer);
	if (engine->peers[peer].lapsed)
		return kv_fail(KV_STALE,
		    "the lease of peer %u lapsed after %u ms without a heartbeat: connect again", peer,
		    engine->options.lease_ms);
	*found = &engine->peers[peer];
	return KV_OK;
}

enum kv_status kvs_sequence_require(
    struct kvs_engine *engine, uint32_t peer, uint64_t handle, struct kvs_sequence **sequence)
{
	struct kvs_peer *owner = NULL;
	struct kvs_sequence *found;

	KV_TRY(kvs_peer_require(engine, peer, &owner));
	found = (struct kvs_sequence *)kv_hash_map_find_pointer(engine->sequences_by_handle, &handle);
	if (!found || found->peer != owner)
		return kv_fail(KV_NOT_FOUND, "peer %u holds no sequence %" PRIu64, peer, handle);
	*sequence = found;
	return KV_OK;
}

static uint32_t free_slot(const struct kvs_engine *engine)
{
	uint32_t slot = 0;

	while (slot < engine->options.max_peers && engine->peers[slot].used)
		slot++;
	return slot;
}

enum kv_status kvs_peer_add(struct kvs_engine *engine, const struct kvs_peer_request *request,
    uint32_t *peer, uint64_t *epoch)
{
	const char *tenant = request->tenant ? request->tenant : "";
	const char *name = request->name ? request->name : "";
	uint32_t slot = free_slot(engine);
	struct kvs_root *root = NULL;
	struct kvs_peer *added;

	if (slot == engine->options.max_peers)
		return kv_fail(KV_LIMIT, "%u peers are connected, the limit is %u: disconnect one", slot,
		    engine->options.max_peers);
	if (strlen(tenant) >= KVS_MAX_TENANT)
		return kv_fail(KV_INVALID, "a tenant's name has %zu bytes, the limit is %u", strlen(tenant),
		    (unsigned)KVS_MAX_TENANT - 1);
	if (request->model_id) KV_TRY(kvs_root_hold(engine, request, tenant, &root));
	added = &engine->peers[slot];
	memset(added, 0, sizeof *added);
	kv_list_init(&added->sequences);
	memcpy(added->tenant, tenant, strlen(tenant));
	strncpy(added->name, name, sizeof added->name - 1);
	added->root = root;
	added->used = true;
	added->epoch = engine->next_epoch++;
	added->renewed_ms = engine->environment.now_ms(engine->environment.context);
	engine->environment.lease_changed(engine->environment.context, slot, added->epoch);
	*peer = slot;
	*epoch = added->epoch;
	return KV_OK;
}

enum kv_status kvs_peer_heartbeat(struct kvs_engine *engine, uint32_t peer, uint64_t epoch)
{
	struct kvs_peer *found = NULL;

	KV_TRY(kvs_peer_require(engine, peer, &found));
	if (found->epoch != epoch && !KVS_FAULT("skip-epoch-check"))
		return kv_fail(
		    KV_STALE, "peer %u has the lease %" PRIu64 ", not %" PRIu64, peer, found->epoch, epoch);
	found->renewed_ms = engine->environment.now_ms(engine->environment.context);
	return KV_OK;
}

/* The word goes first, so that a reader that still copies finds out. */
static void end_lease(struct kvs_engine *engine, uint32_t slot, enum kvs_writer writer)
{
	struct kvs_peer *peer = &engine->peers[slot];
	struct kv_list *node;

	if (!peer->lapsed) engine->environment.lease_changed(engine->environment.context, slot, 0);
	while ((node = kv_list_first(&peer->sequences)) != NULL)
		kvs_sequence_orphan(engine, sequence_of(node), writer);
}

void kvs_peer_remove(struct kvs_engine *engine, uint32_t peer, int proven_dead)
{
	struct kvs_peer *removed;

	if (peer >= engine->options.max_peers || !engine->peers[peer].used) return;
	removed = &engine->peers[peer];
	end_lease(engine, peer, proven_dead ? KVS_WRITER_DEAD : KVS_WRITER_SILENT);
	if (proven_dead) kvs_peer_proven_dead(engine, removed->epoch);
	if (removed->root) kvs_root_drop(engine, removed->root);
	memset(removed, 0, sizeof *removed);
}

uint64_t kvs_peer_proven_dead(struct kvs_engine *engine, uint64_t epoch)
{
	struct kv_list *node, *following;
	uint64_t bytes = 0;

	KV_LIST_EACH_SAFE(node, following, &engine->quarantined)
	{
		struct kvs_segment *segment = KV_CONTAINER_OF(node, struct kvs_segment, place);

		if (segment->epoch != epoch) continue;
		bytes += segment->bytes;
		if (segment->commit)
			segment->abandoned = true;
		else
			kvs_segment_destroy(engine, segment);
	}
	return bytes;
}

uint64_t kvs_peer_quarantined(const struct kvs_engine *engine, uint64_t epoch)
{
	const struct kv_list *node;
	uint64_t bytes = 0;

	KV_LIST_EACH(node, &engine->quarantined)
	{
		const struct kvs_segment *segment = KV_CONTAINER_OF(node, const struct kvs_segment, place);

		if (segment->epoch == epoch) bytes += segment->bytes;
	}
	return bytes;
}

static void expire_orphans(struct kvs_engine *engine, uint64_t now)
{
	struct kv_list *node;

	while ((node = kv_list_first(&engine->orphans)) != NULL) {
		if (sequence_of(node)->expires_ms > now) return;
		kvs_sequence_destroy(engine, sequence_of(node), KVS_WRITER_DONE);
		engine->counters.orphan_expiries++;
	}
}

void kvs_engine_tick(struct kvs_engine *engine)
{
	uint64_t now = engine->environment.now_ms(engine->environment.context);

	for (uint32_t slot = 0; slot < engine->options.max_peers; slot++) {
		struct kvs_peer *peer = &engine->peers[slot];

		if (!peer->used || peer->lapsed || now - peer->renewed_ms < engine->options.lease_ms)
			continue;
		end_lease(engine, slot, KVS_WRITER_SILENT);
		peer->lapsed = true;
		engine->counters.lease_expiries++;
	}
	expire_orphans(engine, now);
	kvs_eviction_tick(engine, now);
}

enum kv_status kvs_peer_info(
    const struct kvs_engine *engine, uint32_t peer, struct kvs_peer_info *info)
{
	const struct kvs_peer *found;

	if (peer >= engine->options.max_peers || !engine->peers[peer].used)
		return kv_fail(KV_NOT_FOUND, "peer %u is not registered", peer);
	found = &engine->peers[peer];
	info->epoch = found->epoch;
	info->lapsed = found->lapsed;
	info->heartbeat_age_ms =
	    engine->environment.now_ms(engine->environment.context) - found->renewed_ms;
	info->name = found->name;
	info->tenant = found->tenant;
	info->model_name = found->root ? found->root->model->name : "";
	info->sequences = found->sequence_count;
	info->reserved_segments = found->reserved_count;
	info->reserved_bytes = found->reserved_bytes;
	return KV_OK;
}
