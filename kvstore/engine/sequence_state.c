/* What a sequence carries besides its list, and how it is read. */
#include "kvstore/engine/engine_internal.h"

static enum kv_status find(
    const struct kvs_engine *engine, uint64_t handle, const struct kvs_sequence **sequence)
{
	*sequence =
	    (struct kvs_sequence *)kv_hash_map_find_pointer(engine->sequences_by_handle, &handle);
	if (!*sequence) return kv_fail(KV_NOT_FOUND, "no peer holds a sequence %" PRIu64, handle);
	return KV_OK;
}

enum kv_status kvs_sequence_segment(const struct kvs_engine *engine, uint64_t sequence,
    uint32_t index, struct kvs_segment_view *view)
{
	const struct kvs_sequence *found = NULL;

	KV_TRY(find(engine, sequence, &found));
	if (index >= found->length)
		return kv_fail(
		    KV_NOT_FOUND, "entry %u is not there, the list has %u", index, found->length);
	kvs_segment_show(found->list[index].segment, view);
	return KV_OK;
}

enum kv_status kvs_sequence_length(
    const struct kvs_engine *engine, uint64_t sequence, uint32_t *entries)
{
	const struct kvs_sequence *found = NULL;

	KV_TRY(find(engine, sequence, &found));
	*entries = found->length;
	return KV_OK;
}

enum kv_status kvs_sequence_piece(const struct kvs_engine *engine, uint64_t sequence,
    uint32_t index, struct kvs_segment_view *view, uint32_t *tokens)
{
	const struct kvs_sequence *found = NULL;

	KV_TRY(find(engine, sequence, &found));
	if (index >= found->piece_count)
		return kv_fail(
		    KV_NOT_FOUND, "piece %u is not there, the sequence has %u", index, found->piece_count);
	kvs_segment_show(found->pieces[index].segment, view);
	*tokens = found->pieces[index].tokens;
	return KV_OK;
}

static enum kv_status check_push(const struct kvs_sequence *sequence, uint32_t decoded_before,
    const uint32_t *tokens, uint32_t count, size_t sampler_bytes)
{
	const uint32_t *held = sequence->tokens + sequence->prompt_tokens;
	const uint32_t room = KVW_MAX_SEQUENCE_TOKENS - sequence->prompt_tokens;
	uint32_t both;

	if (decoded_before > sequence->decoded_tokens)
		return kv_fail(KV_INVALID, "tokens after %u decoded ones are pushed, only %u are known",
		    decoded_before, sequence->decoded_tokens);
	if (count > room || decoded_before > room - count)
		return kv_fail(KV_LIMIT,
		    "a prompt of %u tokens and %" PRIu64 " decoded ones, the limit is %u together",
		    sequence->prompt_tokens, (uint64_t)decoded_before + count,
		    (unsigned)KVW_MAX_SEQUENCE_TOKENS);
	if (sampler_bytes > KVS_MAX_SAMPLER_BYTES)
		return kv_fail(KV_LIMIT, "a sampler state of %zu bytes, the limit is %u", sampler_bytes,
		    (unsigned)KVS_MAX_SAMPLER_BYTES);
	both = sequence->decoded_tokens - decoded_before;
	if (both > count) both = count;
	for (uint32_t i = 0; i < both; i++) {
		if (held[decoded_before + i] != tokens[i])
			return kv_fail(KV_INVALID, "decoded token %u is pushed as %u, it was %u before",
			    decoded_before + i, tokens[i], held[decoded_before + i]);
	}
	return KV_OK;
}

static enum kv_status make_room(struct kvs_engine *engine, struct kvs_sequence *sequence,
    uint32_t new_tokens, size_t sampler_bytes)
{
	const uint32_t needed = sequence->prompt_tokens + sequence->decoded_tokens + new_tokens;

	if (new_tokens > 0) {
		KV_TRY(kvs_tenant_token_room(engine, sequence->peer, new_tokens));
		KV_TRY(kvs_token_room(engine, new_tokens));
	}
	if (needed > sequence->token_capacity) {
		const uint32_t capacity = needed + needed / 4 + 256;
		uint32_t *grown = kv_realloc(engine->allocator, sequence->tokens, capacity * sizeof *grown);

		if (!grown) return KV_NO_MEMORY;
		sequence->tokens = grown;
		sequence->token_capacity = capacity;
	}
	if (!sequence->sampler && sampler_bytes > 0) {
		sequence->sampler = kv_alloc_zero(engine->allocator, KVS_MAX_SAMPLER_BYTES);
		if (!sequence->sampler) return KV_NO_MEMORY;
	}
	return KV_OK;
}

enum kv_status kvs_sequence_push(struct kvs_engine *engine, uint32_t peer, uint64_t sequence,
    uint32_t decoded_before, const uint32_t *tokens, uint32_t token_count,
    const void *sampler_state, size_t sampler_bytes)
{
	struct kvs_sequence *found = NULL;
	uint32_t known, fresh;

	KV_TRY(kvs_sequence_require(engine, peer, sequence, &found));
	KV_TRY(check_push(found, decoded_before, tokens, token_count, sampler_bytes));
	engine->counters.pushes++;
	known = found->decoded_tokens - decoded_before;
	if (known > token_count) return KV_OK; /* an old push that came again */
	fresh = token_count - known;
	KV_TRY(make_room(engine, found, fresh, sampler_bytes));
	if (fresh > 0)
		memcpy(found->tokens + found->prompt_tokens + found->decoded_tokens, tokens + known,
		    fresh * sizeof *tokens);
	found->decoded_tokens += fresh;
	engine->token_count += fresh;
	if (sampler_bytes > 0) memcpy(found->sampler, sampler_state, sampler_bytes);
	found->sampler_bytes = sampler_bytes;
	return KV_OK;
}
