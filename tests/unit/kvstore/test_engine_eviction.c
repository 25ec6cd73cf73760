#include "tests/unit/kvstore/engine_fixture.h"

/* A plain segment of 8 tokens has two units of 192 bytes; 4096 bytes hold ten of them. */
enum { SEGMENT = 384 };
static const uint32_t one[] = {8}, two[] = {8, 16};
static uint32_t tokens[64];

static uint32_t start(struct store *store, uint64_t memory)
{
	const struct kvs_options options = {
	    .memory = memory, .region_bytes = memory, .max_segments = 32, .max_sequences = 32};

	store_start(store, &options);
	return store_peer(store, "w");
}

/* A stored prompt of one plain segment that nobody uses. */
static uint64_t store_one(struct store *store, uint32_t peer, uint32_t first)
{
	uint64_t sequence, id;

	numbers(tokens, 8, first);
	sequence = store_open(store, peer, NULL, tokens, 8, NULL, 0).sequence;
	store_fill(store, peer, sequence, one, 1);
	id = store_entry(store, sequence, 0);
	assert_ok(kvs_sequence_close(store->engine, peer, sequence, 0));
	return id;
}

static enum kv_status reserve(
    struct store *store, uint32_t peer, uint64_t sequence, uint32_t count, uint32_t size)
{
	struct kvs_new_segment segments[32];
	uint64_t ids[32] = {0};
	enum kv_status status;

	for (uint32_t i = 0; i < count; i++)
		segments[i] = (struct kvs_new_segment){i * size, size, KVW_PLAIN, KVW_EXACT};
	status = kvs_reserve(store->engine, peer, sequence, segments, count, ids);
	assert_int_equal(ids[0] != 0, status == KV_OK);
	return status;
}

static void test_longest_unused_first(void **state)
{
	struct store store;
	uint32_t peer = start(&store, 4096);
	uint64_t id[10], sequence;

	(void)state;
	for (uint32_t i = 0; i < 10; i++)
		id[i] = store_one(&store, peer, 100 * i);
	assert_int_equal(store_statistics(&store).cached_bytes, 10 * SEGMENT);
	/* The first one is used again, so the second is the oldest. */
	numbers(tokens, 8, 0);
	sequence = store_open(&store, peer, NULL, tokens, 8, one, 1).sequence;
	assert_ok(kvs_sequence_close(store.engine, peer, sequence, 0));
	sequence = store_open(&store, peer, NULL, tokens, 8, NULL, 0).sequence;
	assert_ok(reserve(&store, peer, sequence, 2, 8));
	assert_sound(&store);
	assert_true(store_has(&store, id[0]));
	assert_false(store_has(&store, id[1]));
	assert_false(store_has(&store, id[2]));
	assert_true(store_has(&store, id[3]));
	assert_int_equal(store_statistics(&store).evictions, 2);
	assert_int_equal(store_statistics(&store).evicted_bytes, 2 * SEGMENT);
	store_stop(&store);
}

static void test_child_before_parent(void **state)
{
	struct store store;
	uint32_t peer = start(&store, 4096);
	uint64_t parent, child, sequence;

	(void)state;
	numbers(tokens, 16, 1);
	sequence = store_open(&store, peer, NULL, tokens, 16, NULL, 0).sequence;
	store_fill(&store, peer, sequence, two, 2);
	parent = store_entry(&store, sequence, 0);
	child = store_entry(&store, sequence, 1);
	assert_ok(kvs_sequence_close(store.engine, peer, sequence, 0));
	for (uint32_t i = 1; i < 8; i++)
		store_one(&store, peer, 100 * i);
	sequence = store_open(&store, peer, NULL, tokens, 8, NULL, 0).sequence;
	while (store_has(&store, child)) {
		assert_true(store_has(&store, parent));
		assert_ok(reserve(&store, peer, sequence, 1, 8));
	}
	assert_true(store_has(&store, parent));
	/* The parent is next, before the ones that were used later. */
	assert_int_equal(store_statistics(&store).evictions, 1);
	while (store_has(&store, parent))
		assert_ok(reserve(&store, peer, sequence, 1, 8));
	assert_int_equal(store_statistics(&store).evictions, 2);
	store_stop(&store);
}

static void test_leased_stay_and_refusal_says_why(void **state)
{
	struct store store;
	uint32_t peer = start(&store, 4096);
	uint64_t sequence, leased, cached;

	(void)state;
	cached = store_one(&store, peer, 500);
	numbers(tokens, 16, 1);
	sequence = store_open(&store, peer, "s", tokens, 16, NULL, 0).sequence;
	store_fill(&store, peer, sequence, two, 2);
	leased = store_entry(&store, sequence, 1);
	/* What cannot succeed evicts nothing, and says what is there. */
	assert_fails(reserve(&store, peer, sequence, 9, 8), KV_TOO_LARGE,
	    "3456 bytes are asked for beside 960 of the same sequence, its limit is 4096");
	assert_true(store_has(&store, cached));
	assert_int_equal(store_statistics(&store).evictions, 0);
	assert_int_equal(store_statistics(&store).reserve_failures, 1);
	assert_int_equal(store_statistics(&store).reserved_bytes, 0);
	assert_sound(&store);
	assert_ok(reserve(&store, peer, sequence, 8, 8));
	assert_false(store_has(&store, cached));
	assert_true(store_has(&store, leased));
	assert_fails(reserve(&store, peer, sequence, 1, 8), KV_LIMIT, "3072 reserved");
	assert_int_equal(kvs_engine_evict(store.engine), 0);
	assert_true(store_has(&store, leased));
	store_stop(&store);
}

static void test_quarantine_is_never_reused(void **state)
{
	struct store store;
	uint32_t peer = start(&store, 4096), second;
	uint64_t sequence;

	(void)state;
	numbers(tokens, 8, 1);
	sequence = store_open(&store, peer, "s", tokens, 8, NULL, 0).sequence;
	assert_ok(reserve(&store, peer, sequence, 6, 8));
	kvs_peer_remove(store.engine, peer, 0);
	second = store_peer(&store, "second");
	sequence = store_open(&store, second, "t", tokens, 8, NULL, 0).sequence;
	assert_fails(reserve(&store, second, sequence, 5, 8), KV_LIMIT, "2304 quarantined");
	assert_ok(reserve(&store, second, sequence, 4, 8));
	assert_sound(&store);
	store_stop(&store);
}

static void test_segment_limit(void **state)
{
	struct store store;
	uint32_t peer = start(&store, 65536);
	uint64_t sequence;

	(void)state;
	for (uint32_t i = 0; i < 40; i++)
		store_one(&store, peer, 100 * i); /* the oldest make room */
	assert_int_equal(store_statistics(&store).segments_committed, 32);
	sequence = store_open(&store, peer, "s", tokens, 8, NULL, 0).sequence;
	assert_ok(reserve(&store, peer, sequence, 32, 1));
	assert_fails(reserve(&store, peer, sequence, 1, 1), KV_LIMIT, "32 segments are held");
	assert_sound(&store);
	store_stop(&store);
}

static void test_the_machine_has_no_memory(void **state)
{
	const struct kvs_options options = {
	    .memory = 8192, .region_bytes = 1024, .max_segments = 32, .max_sequences = 32};
	struct store store;
	uint32_t peer;
	uint64_t sequence, first;

	(void)state;
	store_start(&store, &options);
	peer = store_peer(&store, "w");
	first = store_one(&store, peer, 1);
	store_one(&store, peer, 100);
	store.world.refuse_regions = true;
	sequence = store_open(&store, peer, "s", tokens, 8, NULL, 0).sequence;
	/* Eviction helps where the machine does not. */
	assert_ok(reserve(&store, peer, sequence, 1, 8));
	assert_false(store_has(&store, first));
	assert_fails(reserve(&store, peer, sequence, 3, 8), KV_LIMIT, "the machine has no memory");
	assert_sound(&store);
	store.world.refuse_regions = false;
	assert_ok(reserve(&store, peer, sequence, 3, 8));
	store_stop(&store);
}

static void test_bad_requests(void **state)
{
	const struct kvs_new_segment wrong = {0, 8, KVW_PLAIN, (enum kvw_provenance)7};
	struct store store;
	uint32_t peer = start(&store, 4096);
	uint64_t sequence, id;

	(void)state;
	numbers(tokens, 8, 1);
	sequence = store_open(&store, peer, "s", tokens, 8, NULL, 0).sequence;
	assert_fails(reserve(&store, peer, sequence, 0, 8), KV_INVALID, "0 segments");
	assert_fails(reserve(&store, peer, sequence, 1, 0), KV_INVALID, "0 tokens");
	assert_fails(
	    kvs_reserve(store.engine, peer, sequence, &wrong, 1, &id), KV_INVALID, "provenance 7");
	assert_fails(reserve(&store, peer, sequence + 1, 1, 8), KV_NOT_FOUND, "no sequence");
	assert_sound(&store);
	store_stop(&store);
}

static void test_evict_everything(void **state)
{
	struct store store;
	uint32_t peer = start(&store, 4096);

	(void)state;
	for (uint32_t i = 0; i < 3; i++)
		store_one(&store, peer, 100 * i);
	assert_int_equal(kvs_engine_evict(store.engine), 3 * SEGMENT);
	assert_int_equal(store.world.regions_live, 0);
	assert_int_equal(store_statistics(&store).region_bytes, 0);
	store_one(&store, peer, 1);
	assert_int_equal(store.world.regions_made, 2);
	store_stop(&store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_longest_unused_first),
	    cmocka_unit_test(test_child_before_parent),
	    cmocka_unit_test(test_leased_stay_and_refusal_says_why),
	    cmocka_unit_test(test_quarantine_is_never_reused),
	    cmocka_unit_test(test_segment_limit),
	    cmocka_unit_test(test_the_machine_has_no_memory),
	    cmocka_unit_test(test_bad_requests),
	    cmocka_unit_test(test_evict_everything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
