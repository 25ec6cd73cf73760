/* Segments on their way to and from another tier: kept in place while they are copied out, and
 * loaded into memory of their own. */
#include "kvstore/engine/engine_internal.h"

/* ---- pins ---- */

static enum kv_status find_stored(
    const struct kvs_engine *engine, uint64_t id, struct kvs_segment **segment)
{
	*segment = kvs_segment_by_id(engine, id);
	if (!*segment || (*segment)->state != KVS_COMMITTED)
		return kv_fail(KV_NOT_FOUND, "segment %" PRIu64 " is not stored", id);
	if ((*segment)->provenance != KVW_EXACT)
		return kv_fail(KV_INVALID, "segment %" PRIu64 " is one sequence's own", id);
	return KV_OK;
}

static void pin(struct kvs_engine *engine, struct kvs_segment *segment)
{
	kvs_segment_reference(engine, segment);
	segment->pins++;
}

/* As the end of a reference, but not a use: what is copied in the background gets no younger. */
static void unpin(struct kvs_engine *engine, struct kvs_segment *segment)
{
	KV_CHECK(segment->pins > 0);
	segment->pins--;
	engine->references--;
	if (--segment->references > 0) return;
	engine->referenced_bytes -= segment->bytes;
	segment->root->account->referenced_bytes -= segment->bytes;
	kvs_segment_settle(engine, segment);
}

enum kv_status kvs_segment_pin(struct kvs_engine *engine, uint64_t segment_id)
{
	struct kvs_segment *segment = NULL;

	KV_TRY(find_stored(engine, segment_id, &segment));
	pin(engine, segment);
	return KV_OK;
}

void kvs_segment_unpin(struct kvs_engine *engine, uint64_t segment_id)
{
	struct kvs_segment *segment = kvs_segment_by_id(engine, segment_id);

	if (segment && segment->pins > 0) unpin(engine, segment);
}

enum kv_status kvs_segment_saved(
    const struct kvs_engine *engine, uint64_t segment_id, struct kvs_saved *saved)
{
	struct kvs_segment *segment = NULL;

	KV_TRY(find_stored(engine, segment_id, &segment));
	if (!segment->checksums)
		return kv_fail(KV_INVALID, "segment %" PRIu64 " has no checksums", segment_id);
	kvs_saved_show(segment, saved);
	return KV_OK;
}

/* ---- loads ---- */

enum kv_status kvs_wanted_cut(
    const struct kvs_open_request *request, uint32_t index, struct kvs_wanted *wanted)
{
	const struct kvs_cut *cut;
	uint32_t start;

	if (index >= request->cut_count)
		return kv_fail(KV_INVALID, "the prompt has %u cuts", request->cut_count);
	cut = &request->cuts[index];
	start = index > 0 ? request->cuts[index - 1].end : 0;
	if (cut->end <= start || cut->end > request->prompt_tokens ||
	    cut->end > KVW_MAX_SEQUENCE_TOKENS || cut->end - start > KVW_MAX_SEGMENT_TOKENS ||
	    (cut->kind != KVW_CLUSTERED && cut->kind != KVW_PLAIN))
		return kv_fail(KV_INVALID, "the prompt has no cut %u that could be stored", index);
	*wanted = (struct kvs_wanted){.start = start,
	    .tokens = cut->end - start,
	    .kind = cut->kind,
	    .token_ids = request->prompt + start};
	return KV_OK;
}

static enum kv_status shape_of(const struct kvs_wanted *wanted, struct kvs_new_segment *shape)
{
	if (wanted->tokens == 0 || wanted->tokens > KVW_MAX_SEGMENT_TOKENS ||
	    wanted->start > KVW_MAX_SEQUENCE_TOKENS - wanted->tokens ||
	    (wanted->kind != KVW_CLUSTERED && wanted->kind != KVW_PLAIN))
		return kv_fail(KV_INVALID, "no segment of %u tokens at %u could be stored", wanted->tokens,
		    wanted->start);
	*shape = (struct kvs_new_segment){.start = wanted->start,
	    .tokens = wanted->tokens,
	    .kind = wanted->kind,
	    .provenance = KVW_EXACT};
	return KV_OK;
}

static enum kv_status root_of_peer(struct kvs_engine *engine, uint32_t peer, struct kvs_root **root)
{
	struct kvs_peer *found = NULL;

	KV_TRY(kvs_peer_require(engine, peer, &found));
	if (!found->root) return kv_fail(KV_INVALID, "a peer without a model has no segments");
	*root = found->root;
	return KV_OK;
}

enum kv_status kvs_wanted_key(struct kvs_engine *engine, uint32_t peer,
    const struct kvs_wanted *wanted, const uint8_t *parent_key, uint8_t key[KVW_KEY_BYTES],
    uint64_t *segment_id)
{
	struct kvs_new_segment shape;
	struct kvs_root *root = NULL;

	KV_TRY(root_of_peer(engine, peer, &root));
	KV_TRY(shape_of(wanted, &shape));
	kvs_segment_key(root, &shape, parent_key, NULL, wanted->token_ids, key);
	*segment_id = kvs_segment_of_key(engine, key);
	return KV_OK;
}

enum kv_status kvs_wanted_show(struct kvs_engine *engine, uint32_t peer,
    const struct kvs_wanted *wanted, const uint8_t *parent_key, struct kvs_saved *saved)
{
	struct kvs_root *root = NULL;

	KV_TRY(root_of_peer(engine, peer, &root));
	*saved = (struct kvs_saved){.tenant = root->tenant,
	    .model_name = root->model->name,
	    .model_id = root->model->id,
	    .layout = root->model->layout,
	    .start = wanted->start,
	    .tokens = wanted->tokens,
	    .layers = root->model->layout.layers,
	    .kind = wanted->kind,
	    .token_ids = wanted->token_ids,
	    .parent_key = parent_key};
	return KV_OK;
}

enum kv_status kvs_prompt_child(struct kvs_engine *engine, uint32_t peer, uint64_t parent,
    const uint32_t *prompt, uint32_t prompt_tokens, struct kvs_child *child)
{
	struct kvs_segment *before = NULL, *closest;
	struct kvs_root *root = NULL;
	uint32_t common = 0;

	KV_TRY(root_of_peer(engine, peer, &root));
	if (parent) KV_TRY(find_stored(engine, parent, &before));
	if (before && before->root != root)
		return kv_fail(KV_INVALID, "segment %" PRIu64 " is of another model or tenant", parent);
	memset(child, 0, sizeof *child);
	closest = kvs_prefix_child(root, before, prompt, prompt_tokens, &common);
	if (!closest) return KV_OK;
	child->id = closest->id;
	child->tokens = closest->tokens;
	child->common = common;
	memcpy(child->key, closest->key, sizeof child->key);
	return KV_OK;
}

uint64_t kvs_segment_of_key(const struct kvs_engine *engine, const uint8_t key[KVW_KEY_BYTES])
{
	const struct kvs_segment *stored =
	    (const struct kvs_segment *)kv_hash_map_find_pointer(engine->segments_by_key, key);

	return stored ? stored->id : 0;
}

/* Token ids, and room for the checksums behind them. */
static enum kv_status take_tokens(
    struct kvs_engine *engine, struct kvs_segment *segment, const uint32_t *token_ids)
{
	uint32_t *block = kv_alloc_array_zero(
	    engine->allocator, (size_t)segment->tokens + segment->layers, sizeof *block);

	if (!block) return KV_NO_MEMORY;
	memcpy(block, token_ids, segment->tokens * sizeof *block);
	segment->token_ids = block;
	engine->token_count += segment->tokens;
	return KV_OK;
}

static enum kv_status load(struct kvs_engine *engine, struct kvs_root *root,
    const struct kvs_new_segment *shape, const uint32_t *token_ids, struct kvs_segment **segment)
{
	enum kv_status status;

	KV_TRY(kvs_token_room(engine, shape->tokens));
	KV_TRY(kvs_reserve_load(engine, root, shape, segment));
	status = take_tokens(engine, *segment, token_ids);
	if (status != KV_OK) kvs_segment_destroy(engine, *segment);
	return status;
}

enum kv_status kvs_load_begin(struct kvs_engine *engine, uint32_t peer,
    const struct kvs_wanted *wanted, uint64_t parent, uint64_t *segment_id)
{
	struct kvs_segment *before = NULL, *segment = NULL;
	struct kvs_new_segment shape;
	struct kvs_root *root = NULL;
	enum kv_status status;

	KV_TRY(root_of_peer(engine, peer, &root));
	KV_TRY(shape_of(wanted, &shape));
	if (parent) KV_TRY(find_stored(engine, parent, &before));
	if (before ? before->root != root || before->start + before->tokens != shape.start
	           : shape.start != 0)
		return kv_fail(
		    KV_INVALID, "a segment at %u does not follow segment %" PRIu64, shape.start, parent);
	/* Making room must not take what it is to hang on. */
	if (before) pin(engine, before);
	status = load(engine, root, &shape, wanted->token_ids, &segment);
	if (status != KV_OK) {
		if (before) unpin(engine, before);
		return status;
	}
	segment->loading = true;
	segment->parent = before;
	kv_list_push_back(&engine->loading, &segment->place);
	*segment_id = segment->id;
	return KV_OK;
}

void kvs_load_show(const struct kvs_engine *engine, uint64_t segment_id, struct kvs_saved *saved)
{
	kvs_saved_show(kvs_segment_by_id(engine, segment_id), saved);
}

uint64_t kvs_load_finish(struct kvs_engine *engine, uint64_t segment_id, enum kv_status status,
    const uint32_t *checksums)
{
	struct kvs_segment *segment = kvs_segment_by_id(engine, segment_id), *parent, *stored = NULL;
	uint64_t id = 0;

	KV_CHECK(segment && segment->loading);
	parent = segment->parent;
	segment->loading = false;
	if (status == KV_OK) {
		const struct kvs_new_segment shape = {.start = segment->start,
		    .tokens = segment->tokens,
		    .kind = segment->kind,
		    .provenance = KVW_EXACT};

		kvs_segment_key(segment->root, &shape, parent ? parent->key : NULL, NULL,
		    segment->token_ids, segment->key);
		stored =
		    (struct kvs_segment *)kv_hash_map_find_pointer(engine->segments_by_key, segment->key);
		id = stored ? stored->id : segment->id;
	}
	if (!id || stored) {
		segment->parent = NULL;
		kvs_segment_destroy(engine, segment);
	} else {
		segment->checksums = segment->token_ids + segment->tokens;
		memcpy(segment->checksums, checksums, segment->layers * sizeof *checksums);
		segment->last_used = ++engine->use_clock;
		kvs_segment_enter(engine, segment, parent);
		kvs_segment_settle(engine, segment);
	}
	if (parent) unpin(engine, parent);
	return id;
}
