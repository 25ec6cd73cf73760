/* Quotas of tenants, the order of eviction, and memory that is given back. */
#include "tests/unit/kvstore/engine_fixture.h"

/* A plain segment of 8 tokens has two units of 192 bytes. */
enum { SEGMENT = 384 };
static const uint32_t one[] = {8};
static uint32_t tokens[64];

static void start(struct store *store, struct kvs_options options)
{
	options.max_segments = 64;
	options.max_sequences = 32;
	options.max_peers = 8;
	if (!options.memory) options.memory = 1 << 16;
	if (!options.region_bytes) options.region_bytes = options.memory;
	store_start(store, &options);
}

/* Store a prompt of one plain segment that nobody uses then; 0 when the reserve is refused. */
static uint64_t store_one(struct store *store, uint32_t peer, uint32_t first)
{
	const struct kvs_new_segment shape = {0, 8, KVW_PLAIN, KVW_EXACT};
	uint64_t sequence, id = 0;

	numbers(tokens, 8, first);
	sequence = store_open(store, peer, NULL, tokens, 8, NULL, 0).sequence;
	if (kvs_reserve(store->engine, peer, sequence, &shape, 1, &id) == KV_OK)
		assert_ok(store_commit(store, peer, sequence, &id, 1, NULL, 0, NULL, 0));
	assert_ok(kvs_sequence_close(store->engine, peer, sequence, 0));
	assert_sound(store);
	return id;
}

/* Find it as a prompt does; keeps it referenced when `handle` is given. */
static bool find(struct store *store, uint32_t peer, uint32_t first, uint64_t *handle)
{
	struct kvs_open_result opened;

	numbers(tokens, 8, first);
	opened = store_open(store, peer, NULL, tokens, 8, one, 1);
	if (handle)
		*handle = opened.sequence;
	else
		assert_ok(kvs_sequence_close(store->engine, peer, opened.sequence, 0));
	return opened.shared == 1;
}

static struct kvs_tenant_info info_of(struct store *store, const char *name)
{
	struct kvs_tenant_info info = {0};
	uint32_t index = 0;

	while (kvs_tenant_info(store->engine, index++, &info) == KV_OK) {
		if (strcmp(info.name, name) == 0) return info;
	}
	fail_msg("there is no tenant %s", name);
	return info;
}

static void test_only_its_own(void **state)
{
	static const struct kvs_tenant_quota quotas[] = {{"small", 3 * SEGMENT}};
	struct store store;
	uint32_t small, other;
	uint64_t others[4];

	(void)state;
	start(&store, (struct kvs_options){.quotas = quotas, .quota_count = 1});
	small = store_peer_of(&store, "a", "small", 1);
	other = store_peer_of(&store, "b", "other", 1);
	for (uint32_t i = 0; i < 4; i++)
		others[i] = store_one(&store, other, 100 * i);
	for (uint32_t i = 0; i < 10; i++)
		assert_int_not_equal(store_one(&store, small, 10000 + 100 * i), 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_true(store_has(&store, others[i]));
	assert_int_equal(info_of(&store, "small").bytes, 3 * SEGMENT);
	assert_int_equal(info_of(&store, "small").evictions, 7);
	assert_int_equal(info_of(&store, "other").bytes, 4 * SEGMENT);
	assert_int_equal(info_of(&store, "other").quota, 0);
	assert_int_equal(store_statistics(&store).quota_evictions, 7);
	assert_int_equal(store_statistics(&store).evictions, 7);
	assert_int_equal(kvs_engine_evictions(store.engine), 7);
	store_stop(&store);
}

static void test_refused_at_quota(void **state)
{
	const struct kvs_new_segment shapes[] = {
	    {0, 8, KVW_PLAIN, KVW_EXACT}, {8, 8, KVW_PLAIN, KVW_EXACT}};
	struct store store;
	uint64_t held[2], sequence, ids[2];
	uint32_t peer;

	(void)state;
	start(&store, (struct kvs_options){.tenant_quota = 2 * SEGMENT});
	peer = store_peer_of(&store, "a", "t", 1);
	for (uint32_t i = 0; i < 2; i++) {
		store_one(&store, peer, 100 * i);
		assert_true(find(&store, peer, 100 * i, &held[i]));
	}
	sequence = store_open(&store, peer, NULL, tokens, 8, NULL, 0).sequence;
	assert_fails(kvs_reserve(store.engine, peer, sequence, shapes, 1, ids), KV_LIMIT,
	    "tenant t is at its quota");
	assert_int_equal(store_statistics(&store).quota_refusals, 1);
	assert_int_equal(store_statistics(&store).evictions, 0);
	/* All or nothing: for two, one would have to go that is used. */
	assert_ok(kvs_sequence_close(store.engine, peer, held[0], 0));
	assert_fails(
	    kvs_reserve(store.engine, peer, sequence, shapes, 2, ids), KV_LIMIT, "at its quota");
	assert_ok(kvs_reserve(store.engine, peer, sequence, shapes, 1, ids));
	assert_int_equal(info_of(&store, "t").bytes, 2 * SEGMENT);
	assert_sound(&store);
	store_stop(&store);
}

/* A parent that nobody uses stays below a child that is used: it is no room for its tenant. */
static void test_refused_below_what_is_used(void **state)
{
	const struct kvs_new_segment shapes[] = {
	    {0, 8, KVW_PLAIN, KVW_EXACT}, {8, 8, KVW_PLAIN, KVW_EXACT}};
	static const uint32_t all[] = {16};
	struct store store;
	struct kvs_segment_view view;
	struct kvs_open_result opened;
	uint64_t sequence, ids[2];
	uint32_t peer, shared;

	(void)state;
	start(&store, (struct kvs_options){.tenant_quota = 2 * SEGMENT});
	peer = store_peer_of(&store, "a", "t", 1);
	numbers(tokens, 16, 0);
	sequence = store_open(&store, peer, NULL, tokens, 16, NULL, 0).sequence;
	assert_ok(kvs_reserve(store.engine, peer, sequence, shapes, 2, ids));
	assert_ok(store_commit(&store, peer, sequence, ids, 2, NULL, 0, NULL, 0));
	opened = store_open(&store, peer, NULL, tokens, 16, all, 1);
	assert_int_equal(opened.pieces, 2);
	assert_ok(kvs_sequence_piece(store.engine, opened.sequence, 0, &view, &shared));
	assert_ok(kvs_sequence_close(store.engine, peer, sequence, 0));
	assert_ok(kvs_release(store.engine, peer, opened.sequence, &view.id, 1));
	assert_int_equal(info_of(&store, "t").cached_bytes, SEGMENT);

	numbers(tokens, 8, 1000);
	sequence = store_open(&store, peer, NULL, tokens, 8, NULL, 0).sequence;
	assert_fails(kvs_reserve(store.engine, peer, sequence, shapes, 1, ids), KV_LIMIT,
	    "tenant t is at its quota");
	assert_int_equal(info_of(&store, "t").bytes, 2 * SEGMENT);
	assert_int_equal(info_of(&store, "t").refusals, 1);
	assert_int_equal(store_statistics(&store).quota_refusals, 1);
	assert_int_equal(store_statistics(&store).reserve_failures, 1);
	assert_sound(&store);
	/* Once the child is not used either, there is room. */
	assert_ok(kvs_sequence_close(store.engine, peer, opened.sequence, 0));
	assert_ok(kvs_reserve(store.engine, peer, sequence, shapes, 1, ids));
	store_stop(&store);
}

/* What would not fit beside its own if all others ended is another refusal, and the quota's. */
static void test_what_never_fits_the_quota(void **state)
{
	const struct kvs_new_segment shapes[] = {
	    {0, 8, KVW_PLAIN, KVW_EXACT}, {8, 8, KVW_PLAIN, KVW_EXACT}};
	struct store store;
	uint64_t sequence, ids[2];
	uint32_t peer;

	(void)state;
	start(&store, (struct kvs_options){.tenant_quota = 2 * SEGMENT});
	peer = store_peer_of(&store, "a", "t", 1);
	numbers(tokens, 16, 0);
	sequence = store_open(&store, peer, NULL, tokens, 16, NULL, 0).sequence;
	assert_ok(kvs_reserve(store.engine, peer, sequence, shapes, 1, ids));
	/* What is reserved may be given up, what is in its list may not. */
	assert_fails(
	    kvs_reserve(store.engine, peer, sequence, shapes, 2, ids), KV_LIMIT, "at its quota");
	assert_ok(store_commit(&store, peer, sequence, ids, 1, NULL, 0, NULL, 0));
	assert_fails(kvs_reserve(store.engine, peer, sequence, shapes, 2, ids), KV_TOO_LARGE,
	    "the quota of tenant t is too small: 768 bytes are asked for beside 384");
	assert_int_equal(info_of(&store, "t").refusals, 2);
	assert_int_equal(store_statistics(&store).quota_refusals, 2);
	assert_int_equal(store_statistics(&store).reserve_failures, 2);
	assert_sound(&store);
	store_stop(&store);
}

/* The check says what a reservation would, and leaves no trace. */
static void test_check_changes_nothing(void **state)
{
	const struct kvs_new_segment shapes[] = {
	    {0, 8, KVW_PLAIN, KVW_EXACT}, {8, 8, KVW_PLAIN, KVW_EXACT}};
	struct store store;
	struct kvs_statistics before, after;
	uint64_t sequence, bytes = 7;
	uint32_t peer;

	(void)state;
	start(&store, (struct kvs_options){.tenant_quota = SEGMENT});
	peer = store_peer_of(&store, "a", "t", 1);
	store_one(&store, peer, 100);
	sequence = store_open(&store, peer, NULL, tokens, 8, NULL, 0).sequence;
	before = store_statistics(&store);
	assert_fails(kvs_reserve_check(store.engine, peer, sequence, shapes, 2, &bytes), KV_TOO_LARGE,
	    "the quota of tenant t is too small");
	assert_fails(kvs_reserve_check(store.engine, peer, sequence + 1, shapes, 1, &bytes),
	    KV_NOT_FOUND, "holds no sequence");
	assert_int_equal(bytes, 7);
	assert_ok(kvs_reserve_check(store.engine, peer, sequence, shapes, 1, &bytes));
	assert_int_equal(bytes, SEGMENT);
	after = store_statistics(&store);
	assert_memory_equal(&before, &after, sizeof before);
	assert_int_equal(info_of(&store, "t").refusals, 0);
	store_stop(&store);
}

static void test_a_scan_keeps_what_is_used(void **state)
{
	static const enum kvs_eviction each[] = {KVS_EVICT_LRU, KVS_EVICT_S3FIFO};

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		struct store store;
		uint32_t peer;

		start(&store, (struct kvs_options){.memory = 20 * SEGMENT, .eviction = each[i]});
		peer = store_peer(&store, "w");
		store_one(&store, peer, 1);
		assert_true(find(&store, peer, 1, NULL));
		for (uint32_t scan = 0; scan < 60; scan++)
			store_one(&store, peer, 1000 + 100 * scan);
		assert_int_equal(find(&store, peer, 1, NULL), each[i] == KVS_EVICT_S3FIFO);
		store_stop(&store);
	}
}

static void test_what_comes_back_stays(void **state)
{
	struct store store;
	uint32_t peer;

	(void)state;
	start(&store, (struct kvs_options){.memory = 20 * SEGMENT, .eviction = KVS_EVICT_S3FIFO});
	peer = store_peer(&store, "w");
	for (uint32_t i = 0; i < 30; i++)
		store_one(&store, peer, 1000 + 100 * i);
	assert_false(find(&store, peer, 1000, NULL));
	/* Its key is remembered, so it is not new any more. */
	store_one(&store, peer, 1000);
	for (uint32_t i = 30; i < 60; i++)
		store_one(&store, peer, 1000 + 100 * i);
	assert_true(find(&store, peer, 1000, NULL));
	store_stop(&store);
}

static void test_watermarks(void **state)
{
	struct store store;
	uint32_t peer;

	(void)state;
	start(
	    &store, (struct kvs_options){
	                .memory = 20 * SEGMENT, .high_bytes = 10 * SEGMENT, .low_bytes = 4 * SEGMENT});
	peer = store_peer(&store, "w");
	for (uint32_t i = 0; i < 10; i++)
		store_one(&store, peer, 100 * i);
	kvs_engine_tick(store.engine);
	assert_int_equal(store_statistics(&store).evictions, 0);
	store_one(&store, peer, 5000);
	kvs_engine_tick(store.engine);
	assert_int_equal(store_statistics(&store).cached_bytes, 4 * SEGMENT);
	assert_int_equal(store_statistics(&store).watermark_evicted_bytes, 7 * SEGMENT);
	assert_true(find(&store, peer, 5000, NULL));
	store_stop(&store);
}

/* Time passes for a peer that lives. */
static void wait(struct store *store, uint32_t peer, uint64_t ms)
{
	for (uint64_t passed = 0; passed < ms; passed += 500) {
		store->world.now += 500;
		assert_ok(kvs_peer_heartbeat(store->engine, peer, store_epoch(store, peer)));
		kvs_engine_tick(store->engine);
		assert_sound(store);
	}
}

static void test_memory_goes_back(void **state)
{
	struct store store;
	uint64_t used;
	uint32_t peer;

	(void)state;
	start(&store, (struct kvs_options){.memory = 1 << 16,
	                  .region_bytes = 4 * SEGMENT,
	                  .unused_ms = 10000,
	                  .release_ms = 5000});
	peer = store_peer(&store, "w");
	for (uint32_t i = 0; i < 16; i++)
		store_one(&store, peer, 100 * i);
	assert_int_equal(store.world.regions_live, 4);
	assert_true(find(&store, peer, 0, &used));
	wait(&store, peer, 9000);
	assert_int_equal(store_statistics(&store).evictions, 0);
	wait(&store, peer, 3000);
	/* Only what is in use is left, and its region. */
	assert_int_equal(store_statistics(&store).evictions, 15);
	assert_int_equal(store.world.regions_live, 4);
	wait(&store, peer, 6000);
	assert_int_equal(store.world.regions_live, 1);
	assert_int_equal(store_statistics(&store).released_bytes, 3 * 4 * SEGMENT);
	/* And it is taken again when it is needed. */
	for (uint32_t i = 0; i < 8; i++)
		store_one(&store, peer, 100 * i);
	assert_true(store.world.regions_live > 1);
	store_stop(&store);
}

static void test_operators_evict(void **state)
{
	struct store store;
	uint32_t a, b;

	(void)state;
	start(&store, (struct kvs_options){.memory = 1 << 16});
	a = store_peer_of(&store, "a", "a", 1);
	b = store_peer_of(&store, "b", "b", 1);
	for (uint32_t i = 0; i < 4; i++) {
		store_one(&store, a, 100 * i);
		store_one(&store, b, 100 * i);
	}
	assert_int_equal(kvs_engine_evict_some(store.engine,
	                     &(struct kvs_evict_request){.bytes = SEGMENT + 1, .tenant = "a"}),
	    2 * SEGMENT);
	assert_int_equal(info_of(&store, "a").cached_bytes, 2 * SEGMENT);
	assert_int_equal(info_of(&store, "b").cached_bytes, 4 * SEGMENT);
	assert_int_equal(
	    kvs_engine_evict_some(store.engine, &(struct kvs_evict_request){.tenant = "nobody"}), 0);
	store.world.now += 1000;
	assert_true(find(&store, b, 100, NULL));
	assert_int_equal(
	    kvs_engine_evict_some(store.engine, &(struct kvs_evict_request){.unused_ms = 1000}),
	    5 * SEGMENT);
	assert_true(find(&store, b, 100, NULL));
	assert_int_equal(kvs_engine_evict(store.engine), SEGMENT);
	assert_int_equal(store.world.regions_live, 0);
	store_stop(&store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_only_its_own),
	    cmocka_unit_test(test_refused_at_quota),
	    cmocka_unit_test(test_refused_below_what_is_used),
	    cmocka_unit_test(test_what_never_fits_the_quota),
	    cmocka_unit_test(test_check_changes_nothing),
	    cmocka_unit_test(test_a_scan_keeps_what_is_used),
	    cmocka_unit_test(test_what_comes_back_stays),
	    cmocka_unit_test(test_watermarks),
	    cmocka_unit_test(test_memory_goes_back),
	    cmocka_unit_test(test_operators_evict),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
