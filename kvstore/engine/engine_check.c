/* Every invariant of the engine, counted anew from its structures. */
#include "kvstore/engine/engine_internal.h"

/* What a walk over everything adds up to. */
struct tally {
	uint64_t state_bytes[3], referenced_bytes, references, tokens, committed_tokens, clusters;
	uint32_t state_count[3];
	uint32_t sequences, orphans, commits;
};

static enum kv_status differs(const char *what, uint64_t counted, uint64_t kept)
{
	if (counted == kept) return KV_OK;
	return kv_fail(KV_INTERNAL, "%s: counted %" PRIu64 ", kept %" PRIu64, what, counted, kept);
}

static enum kv_status wrong(const struct kvs_segment *segment, const char *what)
{
	return kv_fail(KV_INTERNAL, "segment %" PRIu64 " (state %u): %s", segment->id,
	    (unsigned)segment->state, what);
}

static uint32_t list_length(const struct kv_list *list)
{
	const struct kv_list *node;
	uint32_t length = 0;

	KV_LIST_EACH(node, list) length++;
	return length;
}

static const struct kvs_segment *find(const struct kvs_engine *engine, uint64_t id)
{
	return kvs_segment_by_id(engine, id);
}

static enum kv_status check_units(
    const struct kvs_engine *engine, const struct kvs_segment *segment)
{
	const char *owner = kvs_region_owner(engine, segment->root);
	uint64_t bytes = 0;

	for (uint32_t layer = 0; layer < segment->layers; layer++) {
		const struct kvs_extent *extent = segment->extents[layer];
		const struct kvs_unit *unit = &segment->units[layer];

		if (!extent || !extent->used) return wrong(segment, "a unit has no memory");
		if (extent->bytes != unit->bytes || extent->offset != unit->offset ||
		    extent->region->index != unit->region)
			return wrong(segment, "a unit and its extent differ");
		if (strcmp(extent->region->owner, owner) != 0)
			return wrong(segment, "it lies in a region of another tenant");
		bytes += unit->bytes;
	}
	return bytes == segment->bytes ? KV_OK : wrong(segment, "its units do not add up to its bytes");
}

static enum kv_status check_tree(const struct kvs_engine *engine, const struct kvs_segment *segment)
{
	const struct kvs_segment *parent = segment->parent;
	const bool idle = !kv_list_empty(&segment->place);
	const bool leaf = segment->child_count == 0 && segment->references == 0;
	const uint32_t start = parent ? parent->start + parent->tokens : 0;

	if (kv_hash_map_find_pointer(engine->segments_by_key, segment->key) != segment)
		return wrong(segment, "its key does not lead to it");
	if (!segment->token_ids) return wrong(segment, "it has no token ids");
	if (segment->commit || segment->sequence) return wrong(segment, "it is committed and reserved");
	if (segment->start != start) return wrong(segment, "it does not start where its parent ends");
	if (parent && find(engine, parent->id) != parent) return wrong(segment, "its parent is gone");
	if (parent && parent->state != KVS_COMMITTED)
		return wrong(segment, "its parent is not committed");
	if (parent && segment->provenance == KVW_EXACT && parent->provenance != KVW_EXACT)
		return wrong(segment, "it is exact under an approximate parent");
	if (list_length(&segment->children) != segment->child_count)
		return wrong(segment, "its children are not counted right");
	if (idle != leaf) return wrong(segment, "it is idle and in use, or neither");
	if (leaf && segment->provenance != KVW_EXACT && segment->listed == 0)
		return wrong(segment, "nobody can find it, but it is kept");
	return KV_OK;
}

static enum kv_status check_segments(const struct kvs_engine *engine, struct tally *tally)
{
	size_t cursor = 0;
	uint64_t value;

	while (kv_hash_map_next(engine->segments_by_id, &cursor, NULL, &value)) {
		const struct kvs_segment *segment = (const struct kvs_segment *)(uintptr_t)value;

		tally->state_bytes[segment->state] += segment->bytes;
		tally->state_count[segment->state]++;
		if (segment->token_ids) tally->tokens += segment->tokens;
		tally->references += segment->references;
		if (segment->references > 0) tally->referenced_bytes += segment->bytes;
		KV_TRY(check_units(engine, segment));
		if (segment->state == KVS_COMMITTED) {
			tally->committed_tokens += segment->tokens;
			tally->clusters += segment->clusters;
			KV_TRY(check_tree(engine, segment));
		} else if (segment->references || segment->listed || segment->child_count) {
			return wrong(segment, "it is used before commit");
		} else if (segment->loading != (segment->state == KVS_RESERVED && !segment->sequence)) {
			return wrong(segment, "nobody has reserved it");
		}
	}
	return differs("segments with a key", tally->state_count[KVS_COMMITTED],
	    kv_hash_map_count(engine->segments_by_key));
}

static enum kv_status check_idle(const struct kvs_engine *engine)
{
	struct kv_list *node;
	uint64_t last = 0, idle = 0, leaves = 0, value;
	size_t cursor = 0;

	for (uint32_t queue = 0; queue < KVS_IDLE_QUEUES; queue++) {
		last = 0;
		KV_LIST_EACH(node, &engine->idle[queue])
		{
			const struct kvs_segment *segment = KV_CONTAINER_OF(node, struct kvs_segment, place);

			if (segment->queue != queue) return wrong(segment, "it is in another queue");
			if (segment->rank < last && !engine->pool.adopting)
				return wrong(segment, "the idle list is out of order");
			last = segment->rank;
			idle++;
		}
	}
	while (kv_hash_map_next(engine->segments_by_id, &cursor, NULL, &value)) {
		const struct kvs_segment *segment = (const struct kvs_segment *)(uintptr_t)value;

		if (segment->state == KVS_COMMITTED && segment->references == 0 &&
		    segment->child_count == 0)
			leaves++;
	}
	KV_TRY(differs("idle segments", idle, leaves));
	return differs("quarantined segments", list_length(&engine->quarantined),
	    engine->state_count[KVS_QUARANTINED]);
}

static enum kv_status check_list(
    const struct kvs_engine *engine, const struct kvs_sequence *sequence)
{
	uint32_t position = 0;

	for (uint32_t i = 0; i < sequence->length; i++) {
		const struct kvs_entry *entry = &sequence->list[i];
		const struct kvs_segment *segment = find(engine, entry->id);

		if (!segment && !sequence->peer) return KV_OK; /* evicted: an orphan's list ends here */
		if (!segment || (sequence->peer && segment != entry->segment))
			return kv_fail(KV_INTERNAL, "sequence %s: entry %u is gone", sequence->name.id, i);
		if (segment->state != KVS_COMMITTED || segment->start != position)
			return kv_fail(KV_INTERNAL, "sequence %s: entry %u starts at %u, not %u",
			    sequence->name.id, i, segment->start, position);
		if (segment->listed == 0 || (sequence->peer && segment->references == 0))
			return wrong(segment, "a sequence lists it, but it does not know");
		position += segment->tokens;
	}
	return KV_OK;
}

/* References and list entries of one segment, counted from the sequences. */
static enum kv_status count_uses(
    const struct kvs_engine *engine, struct kv_hash_map *uses, struct kv_hash_map *listings)
{
	size_t cursor = 0;
	uint64_t value;

	while (kv_hash_map_next(engine->sequences_by_name, &cursor, NULL, &value)) {
		const struct kvs_sequence *sequence = (const struct kvs_sequence *)(uintptr_t)value;

		for (uint32_t i = 0; i < sequence->length; i++) {
			uint64_t *listed = kv_hash_map_value(listings, &sequence->list[i].id);
			uint64_t *used = kv_hash_map_value(uses, &sequence->list[i].id);

			if (listed) (*listed)++;
			if (used && sequence->peer) (*used)++;
		}
		for (uint32_t i = 0; i < sequence->piece_count; i++) {
			uint64_t *used = kv_hash_map_value(uses, &sequence->pieces[i].segment->id);

			if (!used) return kv_fail(KV_INTERNAL, "a piece of %s is gone", sequence->name.id);
			(*used)++;
		}
	}
	return KV_OK;
}

static enum kv_status compare_uses(
    const struct kvs_engine *engine, struct kv_hash_map *uses, struct kv_hash_map *listings)
{
	size_t cursor = 0;
	uint64_t value, counted = 0;

	KV_TRY(count_uses(engine, uses, listings));
	while (kv_hash_map_next(engine->segments_by_id, &cursor, NULL, &value)) {
		const struct kvs_segment *segment = (const struct kvs_segment *)(uintptr_t)value;

		(void)kv_hash_map_find(uses, &segment->id, &counted);
		if (counted + segment->pins != segment->references)
			return wrong(segment, "its references are miscounted");
		(void)kv_hash_map_find(listings, &segment->id, &counted);
		if (counted != segment->listed) return wrong(segment, "its list entries are miscounted");
	}
	return KV_OK;
}

static enum kv_status check_uses(const struct kvs_engine *engine)
{
	const size_t capacity = kv_hash_map_capacity(engine->segments_by_id);
	struct kv_hash_map *uses = NULL, *listings = NULL;
	enum kv_status status;
	size_t cursor = 0;
	uint64_t value;

	KV_TRY_GOTO(status, kv_hash_map_create(kv_heap(), capacity, sizeof(uint64_t), 1, &uses), out);
	KV_TRY_GOTO(
	    status, kv_hash_map_create(kv_heap(), capacity, sizeof(uint64_t), 1, &listings), out);
	while (kv_hash_map_next(engine->segments_by_id, &cursor, NULL, &value)) {
		const uint64_t id = ((const struct kvs_segment *)(uintptr_t)value)->id;

		KV_TRY_GOTO(status, kv_hash_map_insert(uses, &id, 0), out);
		KV_TRY_GOTO(status, kv_hash_map_insert(listings, &id, 0), out);
	}
	status = compare_uses(engine, uses, listings);
out:
	kv_hash_map_destroy(listings);
	kv_hash_map_destroy(uses);
	return status;
}

static enum kv_status check_sequences(const struct kvs_engine *engine, struct tally *tally)
{
	size_t cursor = 0;
	uint64_t value, reserved = 0;

	while (kv_hash_map_next(engine->sequences_by_name, &cursor, NULL, &value)) {
		const struct kvs_sequence *sequence = (const struct kvs_sequence *)(uintptr_t)value;

		tally->sequences++;
		if (!sequence->peer) tally->orphans++;
		if (sequence->commit) tally->commits++;
		tally->tokens += sequence->prompt_tokens + sequence->decoded_tokens;
		reserved += list_length(&sequence->reserved);
		if (!sequence->peer && (sequence->piece_count || !kv_list_empty(&sequence->reserved)))
			return kv_fail(
			    KV_INTERNAL, "the orphan %s holds pieces or reservations", sequence->name.id);
		KV_TRY(check_list(engine, sequence));
	}
	KV_TRY(differs("orphans", list_length(&engine->orphans), tally->orphans));
	KV_TRY(differs("open sequences", tally->sequences - tally->orphans,
	    kv_hash_map_count(engine->sequences_by_handle)));
	reserved += list_length(&engine->loading);
	return differs("reserved segments", reserved, engine->state_count[KVS_RESERVED]);
}

/* What each tenant has, counted from the segments. */
static enum kv_status check_tenants(const struct kvs_engine *engine)
{
	const struct kv_list *node;

	KV_LIST_EACH(node, &engine->tenants)
	{
		const struct kvs_tenant *tenant = KV_CONTAINER_OF(node, const struct kvs_tenant, link);
		uint64_t bytes[3] = {0}, referenced = 0, value;
		size_t cursor = 0;

		while (kv_hash_map_next(engine->segments_by_id, &cursor, NULL, &value)) {
			const struct kvs_segment *segment = (const struct kvs_segment *)(uintptr_t)value;

			if (segment->root->account != tenant) continue;
			bytes[segment->state] += segment->bytes;
			if (segment->references > 0) referenced += segment->bytes;
		}
		for (unsigned state = 0; state < 3; state++)
			KV_TRY(differs("bytes of a tenant", bytes[state], tenant->state_bytes[state]));
		KV_TRY(differs("referenced bytes of a tenant", referenced, tenant->referenced_bytes));
		if (kvs_tenant_bytes(tenant) > tenant->quota)
			return kv_fail(KV_INTERNAL, "tenant %s is above its quota", tenant->name);
	}
	return KV_OK;
}

static enum kv_status check_peers(const struct kvs_engine *engine)
{
	const struct kv_list *node;
	uint64_t reserved_bytes = 0;
	uint32_t sequences = 0;

	KV_LIST_EACH(node, &engine->loading)
	reserved_bytes += KV_CONTAINER_OF(node, const struct kvs_segment, place)->bytes;

	for (uint32_t slot = 0; slot < engine->options.max_peers; slot++) {
		const struct kvs_peer *peer = &engine->peers[slot];

		if (!peer->used) continue;
		KV_TRY(differs("sequences of a peer", list_length(&peer->sequences), peer->sequence_count));
		if (peer->lapsed && peer->sequence_count > 0)
			return kv_fail(KV_INTERNAL, "peer %u has lapsed and holds sequences", slot);
		sequences += peer->sequence_count;
		reserved_bytes += peer->reserved_bytes;
	}
	KV_TRY(differs("reserved bytes of peers", reserved_bytes, engine->state_bytes[KVS_RESERVED]));
	return differs("sequences of peers", sequences, engine->sequence_count - engine->orphan_count);
}

static enum kv_status check_roots(const struct kvs_engine *engine)
{
	const struct kv_list *node;
	uint64_t counted = engine->segment_count + engine->sequence_count, kept = 0, roots = 0;

	for (uint32_t slot = 0; slot < engine->options.max_peers; slot++)
		counted += engine->peers[slot].used && engine->peers[slot].root;
	KV_LIST_EACH(node, &engine->roots)
	{
		kept += KV_CONTAINER_OF(node, const struct kvs_root, link)->references;
		roots++;
	}
	KV_TRY(differs("references to roots", counted, kept));
	counted = 0;
	KV_LIST_EACH(node, &engine->models)
	counted += KV_CONTAINER_OF(node, const struct kvs_model, link)->roots;
	KV_TRY(differs("roots of models", counted, roots));
	return differs("models", list_length(&engine->models), engine->model_count);
}

enum kv_status kvs_engine_check(const struct kvs_engine *engine)
{
	struct tally tally = {0};
	uint64_t used = 0;

	KV_TRY(kvs_pool_check(&engine->pool));
	KV_TRY(check_segments(engine, &tally));
	for (unsigned state = 0; state < 3; state++) {
		KV_TRY(differs("bytes of a state", tally.state_bytes[state], engine->state_bytes[state]));
		KV_TRY(
		    differs("segments of a state", tally.state_count[state], engine->state_count[state]));
		used += tally.state_bytes[state];
	}
	KV_TRY(differs("bytes used", used, engine->pool.used));
	KV_TRY(differs("segments", kv_hash_map_count(engine->segments_by_id), engine->segment_count));
	KV_TRY(differs("referenced bytes", tally.referenced_bytes, engine->referenced_bytes));
	KV_TRY(differs("references", tally.references, engine->references));
	KV_TRY(differs("committed tokens", tally.committed_tokens, engine->committed_tokens));
	KV_TRY(differs("clusters", tally.clusters, engine->committed_clusters));
	KV_TRY(check_idle(engine));
	KV_TRY(check_sequences(engine, &tally));
	KV_TRY(check_uses(engine));
	KV_TRY(differs("sequences", tally.sequences, engine->sequence_count));
	KV_TRY(differs("orphans", tally.orphans, engine->orphan_count));
	KV_TRY(differs("token ids", tally.tokens, engine->token_count));
	if (tally.commits > engine->commits_in_flight)
		return kv_fail(KV_INTERNAL, "%u sequences commit, %u commits are in flight", tally.commits,
		    engine->commits_in_flight);
	KV_TRY(check_roots(engine));
	KV_TRY(check_tenants(engine));
	return check_peers(engine);
}
