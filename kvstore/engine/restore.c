/* Segments over a restart: what is worth keeping, and taking it in again. */
#include "kvstore/engine/engine_internal.h"

/* ---- saving ---- */

static struct kvs_segment *child_at(struct kv_list *node)
{
	return KV_CONTAINER_OF(node, struct kvs_segment, sibling);
}

static bool worth_saving(const struct kvs_segment *segment)
{
	return segment->state == KVS_COMMITTED && segment->provenance == KVW_EXACT &&
	       segment->checksums;
}

static struct kv_list *children_of(struct kvs_root *root, struct kvs_segment *parent)
{
	return parent ? &parent->children : &root->children;
}

/* The first one worth saving from `node` on, among the children of `parent`. */
static struct kvs_segment *next_of(
    struct kvs_root *root, struct kvs_segment *parent, struct kv_list *node)
{
	struct kv_list *all = children_of(root, parent);

	for (; node != all; node = node->next)
		if (worth_saving(child_at(node))) return child_at(node);
	return NULL;
}

void kvs_saved_show(const struct kvs_segment *segment, struct kvs_saved *saved)
{
	const struct kvs_root *root = segment->root;

	*saved = (struct kvs_saved){.tenant = root->tenant,
	    .model_name = root->model->name,
	    .model_id = root->model->id,
	    .layout = root->model->layout,
	    .id = segment->id,
	    .parent = segment->parent ? segment->parent->id : 0,
	    .used = segment->last_used,
	    .start = segment->start,
	    .tokens = segment->tokens,
	    .layers = segment->layers,
	    .kind = segment->kind,
	    .token_ids = segment->token_ids,
	    .checksums = segment->checksums,
	    .units = segment->units,
	    .key = segment->key,
	    .parent_key = segment->parent ? segment->parent->key : NULL};
}

/* Down to the first child, else on to the next sibling, else up: no recursion, chains are long. */
static enum kv_status save_root(struct kvs_root *root, kvs_save_visit visit, void *context)
{
	struct kvs_segment *segment = next_of(root, NULL, root->children.next);

	while (segment) {
		struct kvs_segment *following;
		struct kvs_saved saved;

		kvs_saved_show(segment, &saved);
		KV_TRY(visit(context, &saved));
		following = next_of(root, segment, segment->children.next);
		while (!following && segment) {
			following = next_of(root, segment->parent, segment->sibling.next);
			if (!following) segment = segment->parent;
		}
		segment = following;
	}
	return KV_OK;
}

enum kv_status kvs_engine_save(const struct kvs_engine *engine, kvs_save_visit visit, void *context)
{
	const struct kv_list *node;

	for (node = engine->roots.next; node != &engine->roots; node = node->next) {
		struct kvs_root *root =
		    KV_CONTAINER_OF((struct kv_list *)(uintptr_t)node, struct kvs_root, link);

		KV_TRY(save_root(root, visit, context));
	}
	return KV_OK;
}

/* ---- restoring ---- */

enum kv_status kvs_restore_region(
    struct kvs_engine *engine, const char *tenant, uint64_t bytes, uint8_t *base, uint32_t *index)
{
	if (strlen(tenant) >= KVS_MAX_TENANT)
		return kv_fail(KV_INVALID, "a tenant's name has %zu bytes", strlen(tenant));
	return kvs_pool_adopt(
	    &engine->pool, engine->options.separate_tenants ? tenant : "", bytes, base, index);
}

static enum kv_status check_saved(
    const struct kvs_engine *engine, const struct kvs_saved *saved, struct kvs_segment **parent)
{
	uint64_t end = (uint64_t)saved->start + saved->tokens;

	*parent = saved->parent ? kvs_segment_by_id(engine, saved->parent) : NULL;
	if (saved->parent &&
	    (!*parent || (*parent)->state != KVS_COMMITTED || (*parent)->provenance != KVW_EXACT))
		return kv_fail(KV_INVALID, "the segment's parent is not there");
	if (saved->start != (*parent ? (*parent)->start + (*parent)->tokens : 0))
		return kv_fail(KV_INVALID, "the segment does not start where its parent ends");
	if (saved->tokens == 0 || saved->tokens > KVW_MAX_SEGMENT_TOKENS ||
	    end > KVW_MAX_SEQUENCE_TOKENS || saved->layers != saved->layout.layers ||
	    (saved->kind != KVW_CLUSTERED && saved->kind != KVW_PLAIN) ||
	    strlen(saved->tenant) >= KVS_MAX_TENANT)
		return kv_fail(KV_INVALID, "the segment's numbers are out of range");
	if (saved->used > UINT64_MAX / 2)
		return kv_fail(KV_INVALID, "the segment's use is out of range");
	if (engine->segment_count >= engine->options.max_segments ||
	    saved->tokens > engine->options.max_tokens ||
	    engine->token_count > engine->options.max_tokens - saved->tokens)
		return kv_fail(KV_LIMIT,
		    "%u segments and %" PRIu64 " token ids are held, that is the limit",
		    engine->segment_count, engine->token_count);
	return KV_OK;
}

static enum kv_status take_units(
    struct kvs_engine *engine, const struct kvs_saved *saved, struct kvs_segment *segment)
{
	const char *owner = kvs_region_owner(engine, segment->root);

	for (uint32_t layer = 0; layer < segment->layers; layer++) {
		struct kvs_unit *unit = &segment->units[layer];

		if (saved->units[layer].bytes != unit->bytes)
			return kv_fail(KV_INVALID,
			    "layer %u has %" PRIu64 " bytes, the model's layout makes it %" PRIu64, layer,
			    saved->units[layer].bytes, unit->bytes);
		KV_TRY(kvs_pool_take_at(&engine->pool, owner, saved->units[layer].region,
		    saved->units[layer].offset, unit->bytes, &segment->extents[layer]));
		unit->region = saved->units[layer].region;
		unit->offset = saved->units[layer].offset;
	}
	return KV_OK;
}

/* Token ids, and the checksums behind them, as a commit lays them out. */
static enum kv_status take_tokens(
    struct kvs_engine *engine, const struct kvs_saved *saved, struct kvs_segment *segment)
{
	uint32_t *block =
	    kv_alloc_array(engine->allocator, (size_t)saved->tokens + saved->layers, sizeof *block);

	if (!block) return KV_NO_MEMORY;
	memcpy(block, saved->token_ids, saved->tokens * sizeof *block);
	memcpy(block + saved->tokens, saved->checksums, saved->layers * sizeof *block);
	segment->token_ids = block;
	segment->checksums = block + saved->tokens;
	engine->token_count += saved->tokens;
	return KV_OK;
}

static enum kv_status fill(struct kvs_engine *engine, const struct kvs_saved *saved,
    const struct kvs_segment *parent, struct kvs_segment *segment)
{
	const struct kvs_new_segment shape = {.start = saved->start,
	    .tokens = saved->tokens,
	    .kind = saved->kind,
	    .provenance = KVW_EXACT};

	if (parent && parent->root != segment->root)
		return kv_fail(KV_INVALID, "the segment's parent is of another model or tenant");
	KV_TRY(take_units(engine, saved, segment));
	KV_TRY(take_tokens(engine, saved, segment));
	kvs_segment_key(
	    segment->root, &shape, parent ? parent->key : NULL, NULL, segment->token_ids, segment->key);
	if (kv_hash_map_find_pointer(engine->segments_by_key, segment->key))
		return kv_fail(KV_EXISTS, "the segment is there already");
	return KV_OK;
}

enum kv_status kvs_restore_segment(
    struct kvs_engine *engine, const struct kvs_saved *saved, uint64_t *id)
{
	const struct kvs_peer_request whose = {
	    .model_id = saved->model_id, .model_name = saved->model_name, .layout = saved->layout};
	const struct kvs_new_segment shape = {.start = saved->start,
	    .tokens = saved->tokens,
	    .kind = saved->kind,
	    .provenance = KVW_EXACT};
	struct kvs_segment *segment = NULL, *parent = NULL;
	struct kvs_root *root = NULL;
	enum kv_status status;

	KV_TRY(check_saved(engine, saved, &parent));
	KV_TRY(kvs_root_hold(engine, &whose, saved->tenant, &root));
	status = kvs_segment_create(engine, root, &shape, &segment);
	if (status == KV_OK) {
		status = fill(engine, saved, parent, segment);
		if (status != KV_OK) kvs_segment_destroy(engine, segment);
	}
	if (status == KV_OK) {
		segment->last_used = saved->used;
		if (engine->use_clock < saved->used) engine->use_clock = saved->used;
		kvs_segment_enter(engine, segment, parent);
		kvs_segment_settle(engine, segment);
		*id = segment->id;
	}
	kvs_root_drop(engine, root);
	return status;
}

void kvs_restore_end(struct kvs_engine *engine)
{
	engine->pool.adopting = false;
	kvs_idle_sort(engine);
	kvs_pool_trim(&engine->pool);
}
