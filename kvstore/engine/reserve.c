#include "kvstore/engine/engine_internal.h"

static enum kv_status no_room(const struct kvs_engine *engine, uint64_t asked)
{
	const uint64_t cached = engine->state_bytes[KVS_COMMITTED] - engine->referenced_bytes;

	return kv_fail(KV_LIMIT,
	    "the store is full: %" PRIu64 " bytes are asked for; of the limit of %" PRIu64 ", %" PRIu64
	    " are leased, %" PRIu64 " reserved, %" PRIu64 " quarantined and %" PRIu64
	    " cached: close sequences or raise the store's memory",
	    asked, engine->pool.limit, engine->referenced_bytes, engine->state_bytes[KVS_RESERVED],
	    engine->state_bytes[KVS_QUARANTINED], cached);
}

static enum kv_status quota_full(const struct kvs_tenant *tenant, uint64_t asked)
{
	return kv_fail(KV_LIMIT,
	    "tenant %s is at its quota: %" PRIu64 " bytes are asked for; of the quota of %" PRIu64
	    ", %" PRIu64 " are leased, %" PRIu64 " reserved and %" PRIu64
	    " quarantined: close sequences or raise its quota",
	    tenant->name[0] ? tenant->name : "(common)", asked, tenant->quota, tenant->referenced_bytes,
	    tenant->state_bytes[KVS_RESERVED], tenant->state_bytes[KVS_QUARANTINED]);
}

/* What the sequence's list holds stays while it gets more, whoever else ends. */
static uint64_t own_bytes(const struct kvs_sequence *sequence)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < sequence->length; i++)
		bytes += sequence->list[i].segment->bytes;
	return bytes;
}

/* It would not fit if it were alone; at_quota as below. */
static enum kv_status never_fits(const struct kvs_engine *engine, const struct kvs_tenant *tenant,
    uint64_t own, uint64_t asked, bool *at_quota)
{
	if (own > engine->pool.limit || asked > engine->pool.limit - own)
		return kv_fail(KV_TOO_LARGE,
		    "the store is too small: %" PRIu64 " bytes are asked for beside %" PRIu64
		    " of the same sequence, its limit is %" PRIu64
		    ": raise the store's --memory (--local-memory without a store)",
		    asked, own, engine->pool.limit);
	*at_quota = own > tenant->quota || asked > tenant->quota - own;
	if (*at_quota)
		return kv_fail(KV_TOO_LARGE,
		    "the quota of tenant %s is too small: %" PRIu64 " bytes are asked for beside %" PRIu64
		    " of the same sequence, it is %" PRIu64 ": raise the store's --tenant-quota",
		    tenant->name[0] ? tenant->name : "(common)", asked, own, tenant->quota);
	return KV_OK;
}

/* Has the tenant's quota room when it holds so much? */
static bool fits_quota(const struct kvs_tenant *tenant, uint64_t held, uint64_t asked)
{
	return held <= tenant->quota && asked <= tenant->quota - held;
}

/* What can be told without changing anything; at_quota: it is the quota that refuses. What nobody
 * uses counts as room, though a part of it may have children that are used and stay. sequence: NULL
 * for a load. */
static enum kv_status check_request(const struct kvs_engine *engine, const struct kvs_root *root,
    const struct kvs_sequence *sequence, const struct kvs_new_segment *segments, uint32_t count,
    uint64_t *bytes, bool *at_quota)
{
	const struct kvs_tenant *tenant = root->account;
	const uint64_t held = engine->state_bytes[KVS_RESERVED] + engine->state_bytes[KVS_QUARANTINED] +
	                      engine->referenced_bytes;
	const uint64_t cached = tenant->state_bytes[KVS_COMMITTED] - tenant->referenced_bytes;
	bool full;

	*bytes = 0;
	*at_quota = false;
	if (count == 0 || count > KVS_MAX_COMMIT_SEGMENTS)
		return kv_fail(KV_INVALID, "%u segments are asked for, allowed are 1 to %u", count,
		    (unsigned)KVS_MAX_COMMIT_SEGMENTS);
	for (uint32_t i = 0; i < count; i++) {
		const struct kvs_new_segment *segment = &segments[i];
		uint64_t part;

		if (segment->provenance != KVW_EXACT && segment->provenance != KVW_APPROXIMATE)
			return kv_fail(KV_INVALID, "segment %u has the unknown provenance %u", i,
			    (unsigned)segment->provenance);
		KV_TRY(kvw_segment_bytes(
		    &root->model->layout, segment->kind, segment->start, segment->tokens, &part));
		if (!kv_add_u64(*bytes, part, bytes)) *bytes = UINT64_MAX;
	}
	/* Nothing is evicted for what cannot succeed. What would not fit alone does not fit now: a
	 * sequence's list is a part of what is held. */
	full = held > engine->pool.limit || *bytes > engine->pool.limit - held;
	if (!full && fits_quota(tenant, kvs_tenant_bytes(tenant) - cached, *bytes)) return KV_OK;
	if (sequence) KV_TRY(never_fits(engine, tenant, own_bytes(sequence), *bytes, at_quota));
	*at_quota = !full;
	return full ? no_room(engine, *bytes) : quota_full(tenant, *bytes);
}

enum kv_status kvs_reserve_check(struct kvs_engine *engine, uint32_t peer, uint64_t sequence,
    const struct kvs_new_segment *segments, uint32_t count, uint64_t *bytes)
{
	struct kvs_sequence *found = NULL;
	uint64_t asked = 0;
	bool at_quota;

	KV_TRY(kvs_sequence_require(engine, peer, sequence, &found));
	KV_TRY(check_request(engine, found->root, found, segments, count, &asked, &at_quota));
	*bytes = asked;
	return KV_OK;
}

/* What one call of kvs_reserve works on. */
struct reservation {
	struct kvs_engine *engine;
	struct kvs_root *root;
	struct kvs_sequence *sequence; /* NULL: of a load */
	const char *owner;             /* of the regions that it may use */
	uint64_t bytes;
	struct kvs_tenant *at_quota; /* only its segments may go; NULL: anybody's */
	bool may_grow;               /* false once the environment had no memory for a region */
};

/* An extent, evicting as long as that may help. Where the environment has no memory only eviction
 * is tried, and at last it is asked again, for its reason. */
static enum kv_status take_extent(
    struct reservation *reservation, uint64_t bytes, struct kvs_extent **extent)
{
	struct kvs_pool *pool = &reservation->engine->pool;

	for (;;) {
		const uint64_t refusals = pool->refusals;
		enum kv_status status =
		    kvs_pool_take_for(pool, reservation->owner, bytes, reservation->may_grow, extent);

		if (status == KV_OK || status == KV_NO_MEMORY) return status;
		if (pool->refusals != refusals) reservation->may_grow = false;
		if (kvs_evict_one(reservation->engine, reservation->at_quota)) continue;
		if (pool->refusals != refusals) return status;
		if (!reservation->may_grow)
			return kvs_pool_take_for(pool, reservation->owner, bytes, true, extent);
		return no_room(reservation->engine, reservation->bytes);
	}
}

static enum kv_status fill_units(struct reservation *reservation, struct kvs_segment *segment)
{
	for (uint32_t layer = 0; layer < segment->layers; layer++) {
		struct kvs_unit *unit = &segment->units[layer];
		struct kvs_extent *extent = NULL;

		KV_TRY(take_extent(reservation, unit->bytes, &extent));
		segment->extents[layer] = extent;
		unit->region = extent->region->index;
		unit->offset = extent->offset;
	}
	return KV_OK;
}

static enum kv_status make_segment(struct reservation *reservation,
    const struct kvs_new_segment *request, struct kvs_segment **made)
{
	struct kvs_engine *engine = reservation->engine;
	struct kvs_segment *segment = NULL;
	enum kv_status status;

	while (engine->segment_count >= engine->options.max_segments) {
		if (!kvs_evict_one(engine, reservation->at_quota))
			return kv_fail(KV_LIMIT, "%u segments are held and in use, the limit is %u",
			    engine->segment_count, engine->options.max_segments);
	}
	KV_TRY(kvs_segment_create(engine, reservation->root, request, &segment));
	status = fill_units(reservation, segment);
	if (status != KV_OK) {
		kvs_segment_destroy(engine, segment);
		return status;
	}
	*made = segment;
	return KV_OK;
}

static enum kv_status reserve_one(
    struct reservation *reservation, const struct kvs_new_segment *request)
{
	struct kvs_sequence *sequence = reservation->sequence;
	struct kvs_segment *segment = NULL;

	KV_TRY(make_segment(reservation, request, &segment));
	segment->sequence = sequence;
	segment->epoch = sequence->peer->epoch;
	sequence->peer->reserved_bytes += segment->bytes;
	sequence->peer->reserved_count++;
	kv_list_push_back(&sequence->reserved, &segment->place);
	return KV_OK;
}

/* Make room below the tenant's quota out of what it has itself, or be refused as by the check. */
static enum kv_status make_quota(struct reservation *reservation, bool *at_quota)
{
	struct kvs_tenant *tenant = reservation->root->account;

	while (!fits_quota(tenant, kvs_tenant_bytes(tenant), reservation->bytes)) {
		reservation->at_quota = tenant;
		if (!kvs_evict_one(reservation->engine, tenant)) {
			*at_quota = true;
			return quota_full(tenant, reservation->bytes);
		}
		tenant->evictions++;
		reservation->engine->counters.quota_evictions++;
	}
	return KV_OK;
}

enum kv_status kvs_reserve(struct kvs_engine *engine, uint32_t peer, uint64_t sequence,
    const struct kvs_new_segment *segments, uint32_t count, uint64_t *segment_ids)
{
	struct reservation reservation = {.engine = engine, .may_grow = true};
	const uint64_t first_id = engine->next_segment;
	bool at_quota = false;
	enum kv_status status;

	KV_TRY(kvs_sequence_require(engine, peer, sequence, &reservation.sequence));
	reservation.root = reservation.sequence->root;
	reservation.owner = kvs_region_owner(engine, reservation.root);
	engine->counters.reserves++;
	KV_TRY_GOTO(status,
	    check_request(engine, reservation.root, reservation.sequence, segments, count,
	        &reservation.bytes, &at_quota),
	    refused);
	KV_TRY_GOTO(status, make_quota(&reservation, &at_quota), refused);
	for (uint32_t i = 0; i < count; i++)
		KV_TRY_GOTO(status, reserve_one(&reservation, &segments[i]), undo);
	/* Ids are given in order, and nothing else took one meanwhile. */
	for (uint32_t i = 0; i < count; i++)
		segment_ids[i] = first_id + i;
	return KV_OK;
undo:
	for (uint64_t id = first_id; id < engine->next_segment; id++) {
		struct kvs_segment *made = kvs_segment_by_id(engine, id);

		if (made) kvs_segment_destroy(engine, made);
	}
refused:
	engine->counters.reserve_failures++;
	if (at_quota) {
		reservation.root->account->refusals++;
		engine->counters.quota_refusals++;
	}
	return status;
}

enum kv_status kvs_reserve_load(struct kvs_engine *engine, struct kvs_root *root,
    const struct kvs_new_segment *shape, struct kvs_segment **segment)
{
	struct reservation reservation = {
	    .engine = engine, .root = root, .owner = kvs_region_owner(engine, root), .may_grow = true};
	bool at_quota = false;

	KV_TRY(check_request(engine, root, NULL, shape, 1, &reservation.bytes, &at_quota));
	KV_TRY(make_quota(&reservation, &at_quota));
	return make_segment(&reservation, shape, segment);
}

enum kv_status kvs_put_target(struct kvs_engine *engine, uint32_t peer, uint64_t segment_id,
    uint32_t layer, uint64_t bytes, uint8_t **memory)
{
	struct kvs_peer *writer = NULL;
	struct kvs_segment *segment;
	uint8_t *target;

	KV_TRY(kvs_peer_require(engine, peer, &writer));
	segment = kvs_segment_by_id(engine, segment_id);
	if (!segment || segment->state != KVS_RESERVED || !segment->sequence ||
	    segment->sequence->peer != writer)
		return kv_fail(
		    KV_NOT_FOUND, "peer %u has no segment %" PRIu64 " reserved", peer, segment_id);
	if (segment->commit)
		return kv_fail(KV_BUSY, "segment %" PRIu64 " is being committed", segment_id);
	if (layer >= segment->layers)
		return kv_fail(
		    KV_INVALID, "layer %u is not there, the segment has %u", layer, segment->layers);
	if (bytes != segment->units[layer].bytes)
		return kv_fail(KV_INVALID, "%" PRIu64 " bytes are put into a unit of %" PRIu64, bytes,
		    segment->units[layer].bytes);
	target = kvs_unit_memory(engine, &segment->units[layer]);
	if (!target)
		return kv_fail(
		    KV_UNSUPPORTED, "region %u has no address here", segment->units[layer].region);
	if (segment->sums) segment->sums[layer].known = 0;
	*memory = target;
	return KV_OK;
}

void kvs_unit_summed(struct kvs_engine *engine, uint64_t segment_id, uint32_t layer, uint32_t crc)
{
	struct kvs_segment *segment = kvs_segment_by_id(engine, segment_id);

	if (!segment || segment->state != KVS_RESERVED || segment->commit || layer >= segment->layers)
		return;
	if (!segment->sums)
		segment->sums =
		    kv_alloc_array_zero(engine->allocator, segment->layers, sizeof *segment->sums);
	if (segment->sums) segment->sums[layer] = (struct kvs_sum){crc, 1};
}

static bool drop_piece(
    struct kvs_engine *engine, struct kvs_sequence *sequence, uint64_t segment_id)
{
	for (uint32_t i = 0; i < sequence->piece_count; i++) {
		struct kvs_segment *segment = sequence->pieces[i].segment;

		if (segment->id != segment_id) continue;
		sequence->piece_count--;
		memmove(&sequence->pieces[i], &sequence->pieces[i + 1],
		    (sequence->piece_count - i) * sizeof *sequence->pieces);
		kvs_segment_unreference(engine, segment);
		return true;
	}
	return false;
}

enum kv_status kvs_release(struct kvs_engine *engine, uint32_t peer, uint64_t sequence,
    const uint64_t *segment_ids, uint32_t count)
{
	struct kvs_sequence *found = NULL;

	KV_TRY(kvs_sequence_require(engine, peer, sequence, &found));
	for (uint32_t i = 0; i < count; i++) {
		const struct kvs_segment *segment = kvs_segment_by_id(engine, segment_ids[i]);

		if (segment && segment->commit && segment->sequence == found)
			return kv_fail(KV_BUSY, "segment %" PRIu64 " is being committed", segment_ids[i]);
	}
	for (uint32_t i = 0; i < count; i++) {
		struct kvs_segment *segment;

		if (drop_piece(engine, found, segment_ids[i])) continue;
		segment = kvs_segment_by_id(engine, segment_ids[i]);
		if (segment && segment->state == KVS_RESERVED && segment->sequence == found)
			kvs_segment_destroy(engine, segment);
	}
	return KV_OK;
}
