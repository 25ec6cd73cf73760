#include "kvstore/engine/engine_internal.h"

#include <sodium.h>

/* Numbers go into a hash in little endian, whatever the machine is. */
static void hash_u32(crypto_generichash_state *state, uint32_t value)
{
	const uint8_t bytes[4] = {
	    (uint8_t)value, (uint8_t)(value >> 8), (uint8_t)(value >> 16), (uint8_t)(value >> 24)};

	crypto_generichash_update(state, bytes, sizeof bytes);
}

static void hash_u64(crypto_generichash_state *state, uint64_t value)
{
	hash_u32(state, (uint32_t)value);
	hash_u32(state, (uint32_t)(value >> 32));
}

static void hash_tokens(crypto_generichash_state *state, const uint32_t *token_ids, uint32_t count)
{
	uint8_t block[1024];
	size_t filled = 0;

	for (uint32_t i = 0; i < count; i++) {
		for (unsigned byte = 0; byte < 4; byte++)
			block[filled++] = (uint8_t)(token_ids[i] >> (8 * byte));
		if (filled == sizeof block) {
			crypto_generichash_update(state, block, filled);
			filled = 0;
		}
	}
	crypto_generichash_update(state, block, filled);
}

void kvs_layout_digest(const uint8_t model_id[KVW_MODEL_ID_BYTES],
    const struct kvw_model_layout *layout, uint8_t digest[KVW_KEY_BYTES])
{
	crypto_generichash_state state;

	crypto_generichash_init(&state, NULL, 0, KVW_KEY_BYTES);
	crypto_generichash_update(&state, model_id, KVW_MODEL_ID_BYTES);
	hash_u32(&state, layout->layers);
	hash_u32(&state, layout->kv_heads);
	hash_u32(&state, layout->head_dim);
	hash_u32(&state, layout->kv_type);
	hash_u32(&state, layout->dense_layers);
	hash_u32(&state, layout->sinks);
	hash_u32(&state, layout->cluster_tokens);
	crypto_generichash_update(&state, layout->index_digest, sizeof layout->index_digest);
	crypto_generichash_final(&state, digest, KVW_KEY_BYTES);
}

/* Every part has a fixed size or is preceded by its count, so no two inputs run together. */
void kvs_segment_key(const struct kvs_root *root, const struct kvs_new_segment *shape,
    const uint8_t *parent_key, const struct kvs_sequence *owner, const uint32_t *token_ids,
    uint8_t key[KVW_KEY_BYTES])
{
	static const uint8_t no_parent[KVW_KEY_BYTES];
	crypto_generichash_state state;

	crypto_generichash_init(&state, NULL, 0, KVW_KEY_BYTES);
	crypto_generichash_update(&state, (const uint8_t *)root->tenant, sizeof root->tenant);
	crypto_generichash_update(&state, root->model->digest, sizeof root->model->digest);
	hash_u32(&state, (uint32_t)shape->provenance);
	hash_u32(&state, (uint32_t)shape->kind);
	hash_u32(&state, parent_key != NULL);
	crypto_generichash_update(&state, parent_key ? parent_key : no_parent, KVW_KEY_BYTES);
	if (owner) {
		crypto_generichash_update(&state, owner->policy_digest, sizeof owner->policy_digest);
		crypto_generichash_update(&state, (const uint8_t *)owner->name.id, sizeof owner->name.id);
		/* A sequence that is opened anew under an old id is another sequence. */
		hash_u64(&state, owner->serial);
	}
	hash_u32(&state, shape->start);
	hash_u32(&state, shape->tokens);
	hash_tokens(&state, token_ids, shape->tokens);
	crypto_generichash_final(&state, key, KVW_KEY_BYTES);
}
