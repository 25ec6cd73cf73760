#include "kvstore/engine/engine_internal.h"

static void count_state(struct kvs_engine *engine, const struct kvs_segment *segment, bool add)
{
	struct kvs_tenant *account = segment->root->account;

	if (add) {
		account->state_bytes[segment->state] += segment->bytes;
		engine->state_bytes[segment->state] += segment->bytes;
		engine->state_count[segment->state]++;
	} else {
		account->state_bytes[segment->state] -= segment->bytes;
		engine->state_bytes[segment->state] -= segment->bytes;
		engine->state_count[segment->state]--;
	}
}

static enum kv_status size_units(const struct kvw_model_layout *layout, struct kvs_segment *segment)
{
	segment->bytes = 0;
	segment->clusters = 0;
	for (uint32_t layer = 0; layer < segment->layers; layer++) {
		struct kvw_unit_shape shape;
		struct kvw_unit_layout unit;

		KV_TRY(
		    kvw_unit_shape(layout, segment->kind, segment->start, segment->tokens, layer, &shape));
		KV_TRY(kvw_unit_layout(&shape, &unit));
		segment->units[layer].bytes = unit.bytes;
		segment->clusters += shape.clusters;
		if (!kv_add_u64(segment->bytes, unit.bytes, &segment->bytes))
			return kv_fail(
			    KV_LIMIT, "a segment of %u tokens exceeds 64 bits of bytes", segment->tokens);
	}
	return KV_OK;
}

enum kv_status kvs_segment_create(struct kvs_engine *engine, struct kvs_root *root,
    const struct kvs_new_segment *request, struct kvs_segment **segment)
{
	const uint32_t layers = root->model->layout.layers;
	struct kvs_segment *made = kv_alloc_zero(
	    engine->allocator, sizeof *made + layers * (sizeof *made->units + sizeof *made->extents));
	enum kv_status status;

	if (!made) return KV_NO_MEMORY;
	made->units = (struct kvs_unit *)(void *)(made + 1);
	made->extents = (struct kvs_extent **)(void *)(made->units + layers);
	made->state = KVS_RESERVED;
	made->kind = request->kind;
	made->provenance = request->provenance;
	made->start = request->start;
	made->tokens = request->tokens;
	made->layers = layers;
	kv_list_init(&made->place);
	kv_list_init(&made->children);
	kv_list_init(&made->sibling);
	KV_TRY_GOTO(status, size_units(&root->model->layout, made), undo);
	made->id = engine->next_segment;
	KV_TRY_GOTO(
	    status, kv_hash_map_insert(engine->segments_by_id, &made->id, kv_hash_pointer(made)), undo);
	engine->next_segment++;
	engine->segment_count++;
	made->root = root;
	root->references++;
	count_state(engine, made, true);
	*segment = made;
	return KV_OK;
undo:
	kv_free(engine->allocator, made);
	return status;
}

/* Take a committed leaf out of the tree and of what is counted; its parent is not settled. */
static void unpublish(struct kvs_engine *engine, struct kvs_segment *segment)
{
	KV_CHECK(segment->references == 0 && segment->child_count == 0);
	engine->eviction->gone(engine, segment);
	kv_hash_map_remove(engine->segments_by_key, segment->key, NULL);
	kv_list_remove(&segment->sibling);
	if (segment->parent) segment->parent->child_count--;
	engine->committed_tokens -= segment->tokens;
	engine->committed_clusters -= segment->clusters;
}

void kvs_segment_destroy(struct kvs_engine *engine, struct kvs_segment *segment)
{
	KV_CHECK(segment->commit == NULL);
	if (segment->state == KVS_COMMITTED) unpublish(engine, segment);
	if (segment->state == KVS_RESERVED && segment->sequence && segment->sequence->peer) {
		segment->sequence->peer->reserved_bytes -= segment->bytes;
		segment->sequence->peer->reserved_count--;
	}
	kv_list_remove(&segment->place);
	count_state(engine, segment, false);
	kv_hash_map_remove(engine->segments_by_id, &segment->id, NULL);
	engine->segment_count--;
	for (uint32_t layer = 0; layer < segment->layers; layer++) {
		if (segment->extents[layer]) kvs_pool_give(&engine->pool, segment->extents[layer]);
	}
	if (segment->token_ids) engine->token_count -= segment->tokens;
	kv_free(engine->allocator, segment->token_ids);
	kv_free(engine->allocator, segment->sums);
	kvs_root_drop(engine, segment->root);
	kv_free(engine->allocator, segment);
}

void kvs_segment_quarantine(struct kvs_engine *engine, struct kvs_segment *segment)
{
	if (segment->sequence && segment->sequence->peer) {
		segment->sequence->peer->reserved_bytes -= segment->bytes;
		segment->sequence->peer->reserved_count--;
	}
	count_state(engine, segment, false);
	segment->state = KVS_QUARANTINED;
	segment->sequence = NULL;
	count_state(engine, segment, true);
	kv_list_move_back(&engine->quarantined, &segment->place);
}

void kvs_segment_publish(
    struct kvs_engine *engine, struct kvs_segment *segment, struct kvs_segment *parent)
{
	segment->sequence->peer->reserved_bytes -= segment->bytes;
	segment->sequence->peer->reserved_count--;
	kv_free(engine->allocator, segment->sums);
	segment->sums = NULL;
	kvs_segment_enter(engine, segment, parent);
}

void kvs_segment_enter(
    struct kvs_engine *engine, struct kvs_segment *segment, struct kvs_segment *parent)
{
	enum kv_status status;

	count_state(engine, segment, false);
	segment->state = KVS_COMMITTED;
	count_state(engine, segment, true);
	kv_list_remove(&segment->place);
	segment->sequence = NULL;
	segment->commit = NULL;
	segment->parent = parent;
	if (parent) {
		parent->child_count++;
		kv_list_remove(&parent->place);
	}
	kv_list_push_back(parent ? &parent->children : &segment->root->children, &segment->sibling);
	engine->committed_tokens += segment->tokens;
	engine->committed_clusters += segment->clusters;
	/* The map has room for every segment, so this cannot fail. */
	status = kv_hash_map_insert(engine->segments_by_key, segment->key, kv_hash_pointer(segment));
	KV_CHECK(status == KV_OK);
	segment->used_ms = engine->environment.now_ms(engine->environment.context);
	engine->eviction->stored(engine, segment);
}

void kvs_segment_reference(struct kvs_engine *engine, struct kvs_segment *segment)
{
	if (segment->references++ == 0) {
		engine->referenced_bytes += segment->bytes;
		segment->root->account->referenced_bytes += segment->bytes;
	}
	engine->references++;
	kv_list_remove(&segment->place);
}

void kvs_segment_found(struct kvs_engine *engine, struct kvs_segment *segment)
{
	kvs_segment_reference(engine, segment);
	engine->eviction->found(engine, segment);
}

void kvs_segment_unreference(struct kvs_engine *engine, struct kvs_segment *segment)
{
	KV_CHECK(segment->references > 0);
	engine->references--;
	segment->last_used = ++engine->use_clock;
	segment->used_ms = engine->environment.now_ms(engine->environment.context);
	if (--segment->references > 0) return;
	engine->referenced_bytes -= segment->bytes;
	segment->root->account->referenced_bytes -= segment->bytes;
	kvs_segment_settle(engine, segment);
}

void kvs_segment_settle(struct kvs_engine *engine, struct kvs_segment *segment)
{
	while (segment && segment->state == KVS_COMMITTED && segment->references == 0 &&
	       segment->child_count == 0) {
		struct kvs_segment *parent = segment->parent;

		if (segment->provenance == KVW_EXACT || segment->listed > 0) {
			engine->eviction->idle(engine, segment);
			kvs_idle_file(engine, segment);
			return;
		}
		/* Approximate and in no list: no prompt and no sequence can find it any more. */
		kvs_segment_destroy(engine, segment);
		segment = parent;
	}
}

struct kvs_segment *kvs_segment_by_id(const struct kvs_engine *engine, uint64_t id)
{
	return (struct kvs_segment *)kv_hash_map_find_pointer(engine->segments_by_id, &id);
}

enum kv_status kvs_token_room(struct kvs_engine *engine, uint64_t tokens)
{
	const uint64_t limit = engine->options.max_tokens;

	while (engine->token_count > limit || tokens > limit - engine->token_count) {
		struct kv_list *node = kv_list_first(&engine->orphans);

		if (tokens <= limit && kvs_evict_one(engine, NULL)) continue;
		if (tokens > limit || !node)
			return kv_fail(KV_LIMIT,
			    "%" PRIu64 " token ids are asked for, %" PRIu64
			    " are held and in use, the limit is "
			    "%" PRIu64 ": close sequences or raise it",
			    tokens, engine->token_count, limit);
		kvs_sequence_destroy(
		    engine, KV_CONTAINER_OF(node, struct kvs_sequence, link), KVS_WRITER_DONE);
		engine->counters.orphans_dropped++;
	}
	return KV_OK;
}

void kvs_segment_show(const struct kvs_segment *segment, struct kvs_segment_view *view)
{
	view->id = segment->id;
	view->start = segment->start;
	view->tokens = segment->tokens;
	view->layers = segment->layers;
	view->kind = segment->kind;
	view->provenance = segment->provenance;
	view->committed = segment->state == KVS_COMMITTED;
	view->units = segment->units;
	view->token_ids = segment->token_ids;
	view->checksums = segment->checksums;
	view->sums = segment->sums;
}

enum kv_status kvs_segment_find(
    const struct kvs_engine *engine, uint64_t segment_id, struct kvs_segment_view *view)
{
	const struct kvs_segment *segment = kvs_segment_by_id(engine, segment_id);

	if (!segment)
		return kv_fail(KV_NOT_FOUND, "segment %" PRIu64 " is not in the store", segment_id);
	kvs_segment_show(segment, view);
	return KV_OK;
}

uint8_t *kvs_unit_memory(const struct kvs_engine *engine, const struct kvs_unit *unit)
{
	return kvs_pool_memory(&engine->pool, unit->region, unit->offset, unit->bytes);
}
