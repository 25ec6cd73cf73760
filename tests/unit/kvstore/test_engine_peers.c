#include "tests/unit/kvstore/engine_fixture.h"

static const uint32_t ends[] = {8, 16, 20};

static enum kv_status add(struct store *store, const struct kvw_model_layout *layout, uint8_t model)
{
	uint8_t model_id[KVW_MODEL_ID_BYTES] = {model};
	uint64_t epoch;
	uint32_t peer;

	return kvs_peer_add(store->engine,
	    &(struct kvs_peer_request){
	        .name = "w", .model_id = model_id, .model_name = "tiny", .layout = *layout},
	    &peer, &epoch);
}

static void test_models(void **state)
{
	struct kvw_model_layout layout = engine_world_layout;
	struct store store;

	(void)state;
	store_start(&store, NULL);
	assert_ok(add(&store, &layout, 1));
	assert_ok(add(&store, &layout, 1));
	layout.kv_heads = 2;
	assert_fails(add(&store, &layout, 1), KV_REFUSED, "kv_heads 1, this worker has 2");
	layout = engine_world_layout;
	layout.index_digest[7] ^= 1;
	assert_fails(add(&store, &layout, 1), KV_REFUSED, "index parameters");
	assert_ok(add(&store, &layout, 2));
	layout.layers = 0;
	assert_fails(add(&store, &layout, 3), KV_INVALID, "layers is 0");
	assert_int_equal(store_statistics(&store).models, 2);
	assert_int_equal(store_statistics(&store).peers, 3);
	assert_sound(&store);
	/* A model that nobody uses, and that nothing is stored of, is forgotten. */
	kvs_peer_remove(store.engine, 0, 1);
	kvs_peer_remove(store.engine, 1, 1);
	layout = engine_world_layout;
	layout.kv_heads = 2;
	assert_ok(add(&store, &layout, 1));
	store_stop(&store);
}

static void test_limits(void **state)
{
	const struct kvs_options options = {.memory = 65536, .max_peers = 2, .max_segments = 16};
	char tenant[KVS_MAX_TENANT + 1];
	struct store store;
	uint32_t peer, again;
	uint64_t epoch;

	(void)state;
	store_start(&store, &options);
	peer = store_peer(&store, "a");
	memset(tenant, 'x', sizeof tenant);
	tenant[KVS_MAX_TENANT] = 0;
	assert_fails(
	    kvs_peer_add(store.engine, &(struct kvs_peer_request){.tenant = tenant}, &again, &epoch),
	    KV_INVALID, "64 bytes, the limit is 63");
	assert_ok(
	    kvs_peer_add(store.engine, &(struct kvs_peer_request){.name = "ctl"}, &again, &epoch));
	assert_fails(
	    kvs_peer_add(store.engine, &(struct kvs_peer_request){.name = "x"}, &again, &epoch),
	    KV_LIMIT, "2 peers are connected, the limit is 2");
	assert_fails(kvs_sequence_open(store.engine, again,
	                 &(struct kvs_open_request){.prompt = ends, .prompt_tokens = 1},
	                 &(struct kvs_open_result){0}),
	    KV_INVALID, "without a model");
	/* The slot comes back, the epoch does not. */
	epoch = store_epoch(&store, peer);
	kvs_peer_remove(store.engine, peer, 1);
	kvs_peer_remove(store.engine, peer, 1);
	kvs_peer_remove(store.engine, 499, 1);
	assert_int_equal(store_peer(&store, "b"), peer);
	assert_true(store_epoch(&store, peer) > epoch);
	store_stop(&store);
}

static void test_lease(void **state)
{
	struct store store;
	struct kvs_open_result opened;
	struct kvs_peer_info info;
	uint32_t tokens[20], peer;
	uint64_t epoch;

	(void)state;
	store_start(&store, NULL);
	numbers(tokens, 20, 100);
	peer = store_peer(&store, "w");
	epoch = store_epoch(&store, peer);
	opened = store_open(&store, peer, "s", tokens, 20, ends, 3);
	store_fill(&store, peer, opened.sequence, ends, 3);
	store.world.now += 2999;
	kvs_engine_tick(store.engine);
	assert_ok(kvs_peer_heartbeat(store.engine, peer, epoch));
	assert_fails(kvs_peer_heartbeat(store.engine, peer, epoch + 1), KV_STALE, "has the lease");
	store.world.now += 2999;
	kvs_engine_tick(store.engine);
	assert_int_equal(store.world.page.lease[peer], epoch);
	assert_ok(kvs_peer_info(store.engine, peer, &info));
	assert_int_equal(info.heartbeat_age_ms, 2999);
	assert_int_equal(info.sequences, 1);
	assert_true(store_statistics(&store).leased_bytes > 0);
	store.world.now += 1;
	kvs_engine_tick(store.engine);
	assert_sound(&store);
	assert_int_equal(store.world.page.lease[peer], 0);
	assert_int_equal(store_statistics(&store).lease_expiries, 1);
	assert_int_equal(store_statistics(&store).leased_bytes, 0);
	assert_int_equal(store_statistics(&store).sequences_orphaned, 1);
	assert_fails(kvs_peer_heartbeat(store.engine, peer, epoch), KV_STALE, "lapsed");
	assert_fails(kvs_sequence_close(store.engine, peer, opened.sequence, 0), KV_STALE, "lapsed");
	/* The slot is not given to another before the connection is gone. */
	assert_int_not_equal(store_peer(&store, "x"), peer);
	kvs_peer_remove(store.engine, peer, 0);
	assert_int_equal(store_peer(&store, "y"), peer);
	store_stop(&store);
}

static uint64_t reserve_one(struct store *store, uint32_t peer, const char *id)
{
	uint32_t tokens[20];
	struct kvs_open_result opened;

	numbers(tokens, 20, 100);
	opened = store_open(store, peer, id, tokens, 20, ends, 3);
	return store_reserve(store, peer, opened.sequence, 0, 8, KVW_CLUSTERED, KVW_EXACT);
}

static void test_dead_and_silent(void **state)
{
	struct store store;
	uint32_t dead, silent;
	uint64_t reserved, bytes, epoch, other;

	(void)state;
	store_start(&store, NULL);
	dead = store_peer(&store, "dead");
	silent = store_peer(&store, "silent");
	epoch = store_epoch(&store, silent);
	reserve_one(&store, dead, "a");
	reserved = reserve_one(&store, silent, "b");
	bytes = store_statistics(&store).reserved_bytes / 2;
	kvs_peer_remove(store.engine, dead, 1);
	assert_int_equal(store_statistics(&store).reserved_bytes, bytes);
	assert_int_equal(store_statistics(&store).quarantined_bytes, 0);
	kvs_peer_remove(store.engine, silent, 0);
	assert_sound(&store);
	assert_int_equal(store_statistics(&store).reserved_bytes, 0);
	assert_int_equal(store_statistics(&store).quarantined_bytes, bytes);
	assert_int_equal(store_statistics(&store).zombie_reservations, 1);
	/* Neither eviction nor another peer gets at it. */
	kvs_engine_evict(store.engine);
	assert_true(store_has(&store, reserved));
	assert_int_equal(store_statistics(&store).regions, 1);
	other = reserve_one(&store, store_peer(&store, "new"), "c");
	{
		struct kvs_segment_view old, fresh;

		assert_ok(kvs_segment_find(store.engine, reserved, &old));
		assert_ok(kvs_segment_find(store.engine, other, &fresh));
		assert_true(fresh.units[0].offset >= old.units[1].offset + old.units[1].bytes ||
		            fresh.units[1].offset + fresh.units[1].bytes <= old.units[0].offset);
	}
	assert_int_equal(kvs_peer_quarantined(store.engine, epoch + 100), 0);
	assert_int_equal(kvs_peer_quarantined(store.engine, epoch), bytes);
	assert_int_equal(kvs_peer_proven_dead(store.engine, epoch + 100), 0);
	assert_int_equal(kvs_peer_proven_dead(store.engine, epoch), bytes);
	assert_int_equal(kvs_peer_quarantined(store.engine, epoch), 0);
	assert_false(store_has(&store, reserved));
	assert_sound(&store);
	store_stop(&store);
}

static void test_lapsed_then_dead(void **state)
{
	struct store store;
	uint32_t peer;

	(void)state;
	store_start(&store, NULL);
	peer = store_peer(&store, "w");
	reserve_one(&store, peer, "a");
	store.world.now += 3000;
	kvs_engine_tick(store.engine);
	assert_true(store_statistics(&store).quarantined_bytes > 0);
	kvs_peer_remove(store.engine, peer, 1);
	assert_int_equal(store_statistics(&store).quarantined_bytes, 0);
	store_stop(&store);
}

static void test_options(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("options", 0);
	struct store store = {0};
	struct kvs_environment environment = store_environment(&store);
	struct kvs_engine *engine = NULL;
	struct kvs_options options = {.memory = 63};

	(void)state;
	assert_fails(
	    kvs_engine_create(allocator, &options, &environment, &engine), KV_INVALID, "63 bytes");
	options = (struct kvs_options){.memory = 4096, .max_peers = 501};
	assert_fails(kvs_engine_create(allocator, &options, &environment, &engine), KV_INVALID, "501");
	options = (struct kvs_options){.memory = 4096, .max_segments = 16, .max_sequences = 16};
	assert_ok(kvs_engine_create(allocator, &options, &environment, &engine));
	assert_int_equal(kvs_engine_lease_ms(engine), 3000);
	assert_true(kvs_engine_generation(engine) != 0);
	kvs_engine_destroy(engine);
	kvs_engine_destroy(NULL);
	assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	kv_allocator_destroy(allocator);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_models),
	    cmocka_unit_test(test_limits),
	    cmocka_unit_test(test_lease),
	    cmocka_unit_test(test_dead_and_silent),
	    cmocka_unit_test(test_lapsed_then_dead),
	    cmocka_unit_test(test_options),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
