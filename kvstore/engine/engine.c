#include "kvstore/engine/engine_internal.h"

#include <sodium.h>

static const uint64_t usual_region_limit = (uint64_t)256 << 20;

static void set_default(uint32_t *value, uint32_t usual)
{
	if (*value == 0) *value = usual;
}

static enum kv_status complete_options(struct kvs_options *options)
{
	if (options->memory < KVW_ALIGNMENT)
		return kv_fail(KV_INVALID,
		    "a store with %" PRIu64 " bytes of memory holds nothing: raise it", options->memory);
	if (options->region_bytes == 0) {
		options->region_bytes = options->memory / 4;
		if (options->region_bytes > usual_region_limit) options->region_bytes = usual_region_limit;
	}
	set_default(&options->lease_ms, 3000);
	set_default(&options->orphan_ms, 600000);
	set_default(&options->max_peers, KVW_CONTROL_SLOTS);
	set_default(&options->max_sequences, 4096);
	set_default(&options->max_segments, 65536);
	if (options->low_bytes > options->high_bytes) options->low_bytes = options->high_bytes;
	if (options->max_tokens == 0) options->max_tokens = (uint64_t)64 << 20;
	if (options->max_peers > KVW_CONTROL_SLOTS)
		return kv_fail(KV_INVALID, "max_peers is %u, the control page has room for %u",
		    options->max_peers, (unsigned)KVW_CONTROL_SLOTS);
	return KV_OK;
}

static enum kv_status create_maps(struct kvs_engine *engine)
{
	const struct kvs_options *options = &engine->options;
	uint64_t seed = engine->environment.random64(engine->environment.context);

	KV_TRY(kv_hash_map_create(
	    engine->allocator, options->max_segments, sizeof(uint64_t), seed, &engine->segments_by_id));
	KV_TRY(kv_hash_map_create(
	    engine->allocator, options->max_segments, KVW_KEY_BYTES, seed, &engine->segments_by_key));
	KV_TRY(kv_hash_map_create(engine->allocator, options->max_sequences, sizeof(uint64_t), seed,
	    &engine->sequences_by_handle));
	return kv_hash_map_create(engine->allocator, options->max_sequences,
	    sizeof(struct kvs_sequence_name), seed, &engine->sequences_by_name);
}

static void engine_free(struct kvs_engine *engine)
{
	struct kv_allocator *allocator = engine->allocator;

	kv_hash_map_destroy(engine->segments_by_id);
	kv_hash_map_destroy(engine->segments_by_key);
	kv_hash_map_destroy(engine->sequences_by_handle);
	kv_hash_map_destroy(engine->sequences_by_name);
	if (engine->eviction) engine->eviction->destroy(engine);
	kv_free(allocator, engine->walk);
	kv_free(allocator, engine->peers);
	kv_free(allocator, engine);
}

enum kv_status kvs_engine_create(struct kv_allocator *allocator, const struct kvs_options *options,
    const struct kvs_environment *environment, struct kvs_engine **engine)
{
	struct kvs_options complete = *options;
	struct kvs_engine *made;
	enum kv_status status;

	KV_TRY(complete_options(&complete));
	if (sodium_init() < 0) return kv_fail(KV_INTERNAL, "libsodium cannot be initialised");
	made = kv_alloc_zero(allocator, sizeof *made);
	if (!made) return KV_NO_MEMORY;
	made->allocator = allocator;
	made->environment = *environment;
	made->options = complete;
	made->next_segment = made->next_sequence = made->next_epoch = 1;
	kv_list_init(&made->models);
	kv_list_init(&made->roots);
	kv_list_init(&made->orphans);
	kv_list_init(&made->tenants);
	for (uint32_t queue = 0; queue < KVS_IDLE_QUEUES; queue++)
		kv_list_init(&made->idle[queue]);
	made->eviction = kvs_eviction_find(complete.eviction);
	kv_list_init(&made->quarantined);
	kv_list_init(&made->loading);
	kvs_pool_init(
	    &made->pool, allocator, &made->environment, complete.memory, complete.region_bytes);
	status = KV_NO_MEMORY;
	made->walk = kv_alloc_array(allocator, KVS_WALK_NODES, sizeof *made->walk);
	made->peers = kv_alloc_array_zero(allocator, complete.max_peers, sizeof *made->peers);
	if (!made->walk || !made->peers) goto undo;
	KV_TRY_GOTO(status, create_maps(made), undo);
	KV_TRY_GOTO(status, made->eviction->create(made), undo);
	do {
		made->generation = environment->random64(environment->context);
	} while (made->generation == 0);
	*engine = made;
	return KV_OK;
undo:
	engine_free(made);
	return status;
}

static struct kv_list *first_orphan(struct kvs_engine *engine)
{
	return kv_list_first(&engine->orphans);
}

void kvs_engine_destroy(struct kvs_engine *engine)
{
	struct kv_list *node;

	if (!engine) return;
	KV_CHECK(engine->commits_in_flight == 0 && kv_list_empty(&engine->loading));
	for (uint32_t slot = 0; slot < engine->options.max_peers; slot++)
		kvs_peer_remove(engine, slot, 1);
	while ((node = first_orphan(engine)) != NULL)
		kvs_sequence_destroy(
		    engine, KV_CONTAINER_OF(node, struct kvs_sequence, link), KVS_WRITER_DONE);
	while (kvs_evict_one(engine, NULL)) {
	}
	/* The regions go now, whoever may still write to them. */
	while ((node = kv_list_first(&engine->quarantined)) != NULL)
		kvs_segment_destroy(engine, KV_CONTAINER_OF(node, struct kvs_segment, place));
	kvs_pool_deinit(&engine->pool);
	engine_free(engine);
}

uint64_t kvs_engine_generation(const struct kvs_engine *engine)
{
	return engine->generation;
}

uint32_t kvs_engine_lease_ms(const struct kvs_engine *engine)
{
	return engine->options.lease_ms;
}

void kvs_engine_statistics(const struct kvs_engine *engine, struct kvs_statistics *statistics)
{
	*statistics = engine->counters;
	kvs_pool_statistics(&engine->pool, statistics);
	statistics->reserved_bytes = engine->state_bytes[KVS_RESERVED];
	statistics->leased_bytes = engine->referenced_bytes;
	statistics->cached_bytes = engine->state_bytes[KVS_COMMITTED] - engine->referenced_bytes;
	statistics->quarantined_bytes = engine->state_bytes[KVS_QUARANTINED];
	statistics->segments_reserved = engine->state_count[KVS_RESERVED];
	statistics->segments_committed = engine->state_count[KVS_COMMITTED];
	statistics->segments_quarantined = engine->state_count[KVS_QUARANTINED];
	statistics->models = engine->model_count;
	for (uint32_t slot = 0; slot < engine->options.max_peers; slot++) {
		if (!engine->peers[slot].used) continue;
		statistics->peers++;
		if (engine->peers[slot].lapsed) statistics->peers_lapsed++;
	}
	statistics->sequences_active = engine->sequence_count - engine->orphan_count;
	statistics->sequences_orphaned = engine->orphan_count;
	statistics->clusters = engine->committed_clusters;
	statistics->tokens = engine->committed_tokens;
	statistics->references = engine->references;
}

uint64_t kvs_engine_evictions(const struct kvs_engine *engine)
{
	return engine->counters.evictions;
}

enum kv_status kvs_tenant_info(
    const struct kvs_engine *engine, uint32_t index, struct kvs_tenant_info *info)
{
	const struct kv_list *node;

	KV_LIST_EACH(node, &engine->tenants)
	{
		const struct kvs_tenant *tenant = KV_CONTAINER_OF(node, const struct kvs_tenant, link);

		if (index-- > 0) continue;
		*info = (struct kvs_tenant_info){
		    .name = tenant->name,
		    .quota = tenant->quota == UINT64_MAX ? 0 : tenant->quota,
		    .bytes = kvs_tenant_bytes(tenant),
		    .leased_bytes = tenant->referenced_bytes,
		    .cached_bytes = tenant->state_bytes[KVS_COMMITTED] - tenant->referenced_bytes,
		    .refusals = tenant->refusals,
		    .evictions = tenant->evictions,
		};
		return KV_OK;
	}
	return kv_fail(KV_NOT_FOUND, "there are no more tenants");
}
