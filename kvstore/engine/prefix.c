/* What of a prompt is stored: whole cuts by key, and below them the longest common run. */
#include "kvstore/engine/engine_internal.h"

static struct kvs_segment *child_at(struct kv_list *node)
{
	return KV_CONTAINER_OF(node, struct kvs_segment, sibling);
}

static struct kv_list *children_of(struct kvs_root *root, struct kvs_segment *segment)
{
	return segment ? &segment->children : &root->children;
}

static struct kvs_segment *stored_cut(const struct kvs_engine *engine,
    const struct kvs_sequence *sequence, const struct kvs_segment *parent,
    const struct kvs_new_segment *shape)
{
	const uint32_t *tokens = sequence->tokens + shape->start;
	struct kvs_segment *found;
	uint8_t key[KVW_KEY_BYTES];

	kvs_segment_key(sequence->root, shape, parent ? parent->key : NULL, NULL, tokens, key);
	found = (struct kvs_segment *)kv_hash_map_find_pointer(engine->segments_by_key, key);
	/* The key says all of this already; comparing costs little and cannot be wrong. */
	if (!found || found->parent != parent || found->root != sequence->root ||
	    found->start != shape->start || found->tokens != shape->tokens ||
	    memcmp(found->token_ids, tokens, shape->tokens * sizeof *tokens) != 0)
		return NULL;
	return found;
}

enum kv_status kvs_prefix_share(struct kvs_engine *engine, struct kvs_sequence *sequence)
{
	const struct kvs_cut *cuts = sequence->cuts;
	struct kvs_segment *parent =
	    sequence->length > 0 ? sequence->list[sequence->length - 1].segment : NULL;

	for (uint32_t i = sequence->length; i < sequence->cut_count; i++) {
		const uint32_t start = kvs_list_end(sequence);
		const struct kvs_new_segment shape = {
		    .start = start,
		    .tokens = cuts[i].end - start,
		    .kind = cuts[i].kind,
		    .provenance = KVW_EXACT,
		};
		struct kvs_segment *found = stored_cut(engine, sequence, parent, &shape);

		if (!found) break;
		KV_TRY(kvs_list_reserve(engine, sequence, sequence->length + 1));
		if (!KVS_FAULT("forget-reference")) kvs_segment_found(engine, found);
		sequence->list[sequence->length++] = (struct kvs_entry){.segment = found, .id = found->id};
		parent = found;
	}
	return KV_OK;
}

/* Leading tokens of a segment that the prompt has, too; an approximate one is no prompt's. */
static uint32_t common_tokens(
    const uint32_t *prompt, uint32_t prompt_tokens, const struct kvs_segment *segment)
{
	uint32_t limit, common = 0;

	if (segment->provenance != KVW_EXACT || segment->start >= prompt_tokens) return 0;
	limit = prompt_tokens - segment->start;
	if (limit > segment->tokens) limit = segment->tokens;
	while (common < limit && prompt[segment->start + common] == segment->token_ids[common])
		common++;
	return common;
}

struct kvs_segment *kvs_prefix_child(struct kvs_root *root, struct kvs_segment *parent,
    const uint32_t *prompt, uint32_t prompt_tokens, uint32_t *common)
{
	struct kv_list *children = children_of(root, parent), *node;
	struct kvs_segment *closest = NULL;

	*common = 0;
	KV_LIST_EACH(node, children)
	{
		const uint32_t shared = common_tokens(prompt, prompt_tokens, child_at(node));

		if (shared <= *common) continue;
		*common = shared;
		closest = child_at(node);
	}
	return closest;
}

/* The exact segment below `top` through which the prompt's match reaches farthest. Segments that
 * match whole are continued below; when more of them than the scratch holds wait to be looked at,
 * some are not, which only costs reuse. */
static struct kvs_segment *deepest_match(struct kvs_engine *engine,
    const struct kvs_sequence *sequence, struct kvs_segment *top, uint32_t *reached)
{
	struct kvs_segment *deepest = NULL, *parent;
	uint32_t waiting = 1;

	engine->walk[0] = top;
	*reached = kvs_list_end(sequence);
	while (waiting > 0) {
		struct kv_list *children, *node;

		parent = engine->walk[--waiting];
		children = children_of(sequence->root, parent);
		KV_LIST_EACH(node, children)
		{
			struct kvs_segment *child = child_at(node);
			uint32_t end;

			end = child->start + common_tokens(sequence->tokens, sequence->prompt_tokens, child);
			if (end > *reached) {
				*reached = end;
				deepest = child;
			}
			if (end == child->start + child->tokens && waiting < KVS_WALK_NODES)
				engine->walk[waiting++] = child;
		}
	}
	return deepest;
}

enum kv_status kvs_prefix_pieces(struct kvs_engine *engine, struct kvs_sequence *sequence)
{
	struct kvs_segment *top =
	    sequence->length > 0 ? sequence->list[sequence->length - 1].segment : NULL;
	struct kvs_segment *deepest, *segment;
	uint32_t reached, count = 0;

	deepest = deepest_match(engine, sequence, top, &reached);
	for (segment = deepest; segment && segment != top; segment = segment->parent)
		count++;
	/* More than that are not told of; the rest is computed. */
	for (; count > KVS_MAX_COMMIT_SEGMENTS; count--) {
		deepest = deepest->parent;
		reached = deepest->start + deepest->tokens;
	}
	if (count == 0) return KV_OK;
	sequence->pieces = kv_alloc_array(engine->allocator, count, sizeof *sequence->pieces);
	if (!sequence->pieces) return KV_NO_MEMORY;
	sequence->piece_count = count;
	for (segment = deepest; count-- > 0; segment = segment->parent) {
		sequence->pieces[count].segment = segment;
		sequence->pieces[count].tokens =
		    segment == deepest ? reached - segment->start : segment->tokens;
		kvs_segment_found(engine, segment);
	}
	return KV_OK;
}
