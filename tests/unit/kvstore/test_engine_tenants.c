/* With separate tenants: no region holds segments of two of them, and what one says of a model
 * binds no other. */
#include "tests/unit/kvstore/engine_fixture.h"

enum { PROMPT = 40 };

static const uint32_t ends[] = {16, 32, PROMPT};

static void start(struct store *store, int separate)
{
	const struct kvs_options options = {.memory = STORE_MEMORY,
	    .region_bytes = STORE_MEMORY / 16,
	    .max_sequences = 64,
	    .max_segments = 512,
	    .max_peers = 32,
	    .separate_tenants = separate};

	store_start(store, &options);
}

/* Store a prompt; the regions of its segments as a set of bits. */
static uint64_t fill(struct store *store, uint32_t peer, uint32_t first)
{
	struct kvs_open_result opened;
	struct kvs_segment_view view;
	uint32_t prompt[PROMPT], entries = 0;
	uint64_t regions = 0;

	numbers(prompt, PROMPT, first);
	opened = store_open(store, peer, NULL, prompt, PROMPT, ends, 3);
	store_fill(store, peer, opened.sequence, ends, 3);
	assert_ok(kvs_sequence_length(store->engine, opened.sequence, &entries));
	for (uint32_t i = 0; i < entries; i++) {
		assert_ok(kvs_sequence_segment(store->engine, opened.sequence, i, &view));
		for (uint32_t layer = 0; layer < view.layers; layer++) {
			assert_in_range(view.units[layer].region, 0, 63);
			regions |= UINT64_C(1) << view.units[layer].region;
		}
	}
	return regions;
}

static void test_regions_are_apart(void **state)
{
	uint64_t first = 0, second = 0;
	struct store store;
	uint32_t a, b;

	(void)state;
	start(&store, 1);
	a = store_peer_of(&store, "a", "uid-1", 1);
	b = store_peer_of(&store, "b", "uid-2", 1);
	for (uint32_t i = 0; i < 12; i++) {
		first |= fill(&store, a, i);
		second |= fill(&store, b, i);
		assert_sound(&store);
	}
	assert_true(first != 0 && second != 0);
	assert_int_equal(first & second, 0);
	store_stop(&store);
}

static void test_they_share_otherwise(void **state)
{
	struct store store;
	uint64_t first, second;

	(void)state;
	start(&store, 0);
	first = fill(&store, store_peer_of(&store, "a", "uid-1", 1), 0);
	second = fill(&store, store_peer_of(&store, "b", "uid-2", 1), 0);
	assert_true((first & second) != 0);
	store_stop(&store);
}

/* What one tenant stored and does not use makes room for another, by whole regions. */
static void test_memory_moves_between_them(void **state)
{
	struct store store;
	uint32_t a, b;

	(void)state;
	start(&store, 1);
	a = store_peer_of(&store, "a", "uid-1", 1);
	for (uint32_t i = 0; store_statistics(&store).evictions == 0; i++) {
		assert_in_range(i, 0, 400);
		fill(&store, a, i * 7);
		kvs_peer_remove(store.engine, a, 1);
		a = store_peer_of(&store, "a", "uid-1", 1);
	}
	b = store_peer_of(&store, "b", "uid-2", 1);
	fill(&store, b, 3);
	assert_sound(&store);
	store_stop(&store);
}

static enum kv_status add(
    struct store *store, const char *tenant, uint8_t model, uint32_t sinks, uint32_t *peer)
{
	uint8_t id[KVW_MODEL_ID_BYTES] = {0};
	struct kvs_peer_request request = {
	    .tenant = tenant, .model_id = id, .model_name = "tiny", .layout = engine_world_layout};
	uint64_t epoch;

	id[0] = model;
	request.layout.sinks = sinks;
	return kvs_peer_add(store->engine, &request, peer, &epoch);
}

static void test_models_are_apart(void **state)
{
	struct store store;
	uint32_t peer = 0;

	(void)state;
	start(&store, 1);
	assert_ok(add(&store, "uid-1", 1, 2, &peer));
	assert_ok(add(&store, "uid-2", 1, 1, &peer));
	assert_fails(add(&store, "uid-1", 1, 1, &peer), KV_REFUSED, "sinks");
	for (uint32_t i = 1; i < KVS_MAX_MODELS / 4; i++)
		assert_ok(add(&store, "uid-1", (uint8_t)(10 + i), 2, &peer));
	assert_fails(add(&store, "uid-1", 99, 2, &peer), KV_LIMIT, "one tenant");
	assert_ok(add(&store, "uid-2", 99, 2, &peer));
	store_stop(&store);
}

static enum kv_status open_one(struct store *store, uint32_t peer, uint64_t *sequence)
{
	const struct kvs_cut cut = {.end = PROMPT, .kind = KVW_PLAIN};
	struct kvs_open_result result = {0};
	uint32_t prompt[PROMPT];
	struct kvs_open_request request = {
	    .prompt = prompt, .prompt_tokens = PROMPT, .cuts = &cut, .cut_count = 1};
	enum kv_status status;

	numbers(prompt, PROMPT, 1);
	status = kvs_sequence_open(store->engine, peer, &request, &result);
	*sequence = result.sequence;
	return status;
}

/* What one tenant opens and leaves behind costs no other one its place. */
static void test_shares_of_sequences(void **state)
{
	const struct kvs_options options = {.memory = STORE_MEMORY,
	    .max_sequences = 8,
	    .max_segments = 512,
	    .max_peers = 8,
	    .tenant_sequences = 4,
	    .tenant_tokens = 3 * PROMPT};
	struct store store;
	uint64_t mine = 0, theirs[4];
	uint32_t a, b;

	(void)state;
	store_start(&store, &options);
	a = store_peer_of(&store, "a", "uid-1", 1);
	b = store_peer_of(&store, "b", "uid-2", 1);
	assert_ok(open_one(&store, a, &mine));
	assert_ok(kvs_sequence_close(store.engine, a, mine, 1));
	for (uint32_t i = 0; i < 3; i++)
		assert_ok(open_one(&store, b, &theirs[i]));
	assert_fails(open_one(&store, b, &theirs[3]), KV_LIMIT, "tokens");
	for (uint32_t i = 0; i < 40; i++) {
		assert_ok(kvs_sequence_close(store.engine, b, theirs[0], 1));
		assert_ok(open_one(&store, b, &theirs[0]));
		assert_sound(&store);
	}
	/* The other's orphan is there as before. */
	assert_int_equal(store_statistics(&store).sequences_orphaned, 2);
	store_stop(&store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_regions_are_apart),
	    cmocka_unit_test(test_they_share_otherwise),
	    cmocka_unit_test(test_memory_moves_between_them),
	    cmocka_unit_test(test_models_are_apart),
	    cmocka_unit_test(test_shares_of_sequences),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
