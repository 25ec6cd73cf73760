#include "tests/unit/kvstore/engine_fixture.h"

/* A prompt of 40 tokens: two segments of 16, no rest, a tail of 8; stored by `warm`. */
static const uint32_t ends[] = {16, 32, 40};
static uint32_t tokens[64];

static uint32_t warm(struct store *store)
{
	uint32_t peer;
	struct kvs_open_result opened;

	store_start(store, NULL);
	numbers(tokens, 64, 1000);
	peer = store_peer(store, "w");
	opened = store_open(store, peer, "warm", tokens, 40, ends, 3);
	assert_int_equal(opened.shared, 0);
	assert_int_equal(opened.pieces, 0);
	assert_int_equal(store_fill(store, peer, opened.sequence, ends, 3), 0);
	assert_ok(kvs_sequence_close(store->engine, peer, opened.sequence, 0));
	return peer;
}

static void assert_piece(struct store *store, uint64_t sequence, uint32_t index, uint32_t start,
    uint32_t count, uint32_t of)
{
	struct kvs_segment_view view;
	uint32_t counted = 0;

	assert_ok(kvs_sequence_piece(store->engine, sequence, index, &view, &counted));
	assert_int_equal(view.start, start);
	assert_int_equal(counted, count);
	assert_int_equal(view.tokens, of);
	assert_memory_equal(view.token_ids, tokens + start, count * sizeof *tokens);
}

static void test_same_prompt(void **state)
{
	struct store store;
	uint32_t peer = warm(&store);
	struct kvs_open_result opened = store_open(&store, peer, "s", tokens, 40, ends, 3);

	(void)state;
	assert_int_equal(opened.shared, 3);
	assert_int_equal(opened.pieces, 0);
	assert_int_equal(store_statistics(&store).prefix_shared_tokens, 40);
	assert_int_equal(store_statistics(&store).prefix_lookup_tokens, 80);
	assert_int_equal(store_statistics(&store).references, 3);
	assert_int_equal(store_statistics(&store).cached_bytes, 0);
	store_stop(&store);
}

static void test_prompt_goes_on(void **state)
{
	static const uint32_t longer[] = {16, 32, 40, 48};
	struct store store;
	uint32_t peer = warm(&store);
	struct kvs_open_result opened = store_open(&store, peer, "s", tokens, 48, longer, 4);

	(void)state;
	/* The old tail is plain, the new rest of the same tokens is clustered: copied, not shared. */
	assert_int_equal(opened.shared, 2);
	assert_int_equal(opened.pieces, 1);
	assert_piece(&store, opened.sequence, 0, 32, 8, 8);
	assert_int_equal(store_statistics(&store).prefix_copied_tokens, 8);
	store_fill(&store, peer, opened.sequence, longer, 4);
	assert_ok(kvs_sequence_close(store.engine, peer, opened.sequence, 0));
	/* And the first prompt is a prefix of the longer one, and found whole as it was stored. */
	opened = store_open(&store, peer, "t", tokens, 40, ends, 3);
	assert_int_equal(opened.shared, 3);
	store_stop(&store);
}

static void test_prefix_of_a_longer_one(void **state)
{
	static const uint32_t shorter[] = {16, 24, 28};
	struct store store;
	uint32_t peer = warm(&store);
	struct kvs_open_result opened = store_open(&store, peer, "s", tokens, 28, shorter, 3);

	(void)state;
	assert_int_equal(opened.shared, 1);
	assert_int_equal(opened.pieces, 1);
	assert_piece(&store, opened.sequence, 0, 16, 12, 16);
	store_stop(&store);
}

static void test_divergence(void **state)
{
	struct store store;
	uint32_t peer = warm(&store);
	struct kvs_open_result opened;
	uint32_t old = tokens[35];

	(void)state;
	/* Inside the tail. */
	tokens[35] = 7;
	opened = store_open(&store, peer, "tail", tokens, 40, ends, 3);
	tokens[35] = old;
	assert_int_equal(opened.shared, 2);
	assert_int_equal(opened.pieces, 1);
	assert_piece(&store, opened.sequence, 0, 32, 3, 8);
	/* Inside a whole segment: what follows is lost, though it is the same. */
	old = tokens[20];
	tokens[20] = 7;
	opened = store_open(&store, peer, "segment", tokens, 40, ends, 3);
	tokens[20] = old;
	assert_int_equal(opened.shared, 1);
	assert_int_equal(opened.pieces, 1);
	assert_piece(&store, opened.sequence, 0, 16, 4, 16);
	/* At once. */
	old = tokens[0];
	tokens[0] = 7;
	opened = store_open(&store, peer, "first", tokens, 40, ends, 3);
	tokens[0] = old;
	assert_int_equal(opened.shared, 0);
	assert_int_equal(opened.pieces, 0);
	store_stop(&store);
}

static void test_other_cuts(void **state)
{
	static const uint32_t other[] = {12, 24, 36, 40};
	struct store store;
	uint32_t peer = warm(&store);
	struct kvs_open_result opened = store_open(&store, peer, "s", tokens, 40, other, 4);

	(void)state;
	/* Nothing is shared, everything is copied: the whole prompt is a hit. */
	assert_int_equal(opened.shared, 0);
	assert_int_equal(opened.pieces, 3);
	assert_piece(&store, opened.sequence, 0, 0, 16, 16);
	assert_piece(&store, opened.sequence, 1, 16, 16, 16);
	assert_piece(&store, opened.sequence, 2, 32, 8, 8);
	/* Pieces are referenced until they are released. */
	kvs_engine_evict(store.engine);
	assert_int_equal(store_statistics(&store).segments_committed, 3);
	{
		struct kvs_segment_view view;
		uint32_t counted;
		uint64_t id[2];

		assert_ok(kvs_sequence_piece(store.engine, opened.sequence, 2, &view, &counted));
		id[0] = view.id;
		id[1] = 12345;
		assert_ok(kvs_release(store.engine, peer, opened.sequence, id, 2));
		assert_ok(kvs_release(store.engine, peer, opened.sequence, id, 2));
		kvs_engine_evict(store.engine);
		assert_false(store_has(&store, id[0]));
	}
	assert_int_equal(store_statistics(&store).segments_committed, 2);
	store_stop(&store);
}

static void test_a_short_match_that_goes_on_wins(void **state)
{
	static const uint32_t one[] = {16, 32}, two[] = {16, 20, 40}, asked[] = {16, 60, 64};
	struct store store;
	uint32_t peer, other[64];
	struct kvs_open_result opened;

	(void)state;
	store_start(&store, NULL);
	numbers(tokens, 64, 1000);
	peer = store_peer(&store, "w");
	/* A child of 16 tokens that agrees with 10, and one of 4 with a child that agrees with 20. */
	memcpy(other, tokens, sizeof other);
	other[26] = 1;
	opened = store_open(&store, peer, "one", other, 32, one, 2);
	store_fill(&store, peer, opened.sequence, one, 2);
	opened = store_open(&store, peer, "two", tokens, 40, two, 3);
	store_fill(&store, peer, opened.sequence, two, 3);
	opened = store_open(&store, peer, "asked", tokens, 64, asked, 3);
	assert_int_equal(opened.shared, 1);
	assert_int_equal(opened.pieces, 2);
	assert_piece(&store, opened.sequence, 0, 16, 4, 4);
	assert_piece(&store, opened.sequence, 1, 20, 20, 20);
	store_stop(&store);
}

static void test_tenants_and_models_are_apart(void **state)
{
	struct store store;
	uint32_t tenant, model;
	struct kvs_open_result opened;

	(void)state;
	(void)warm(&store);
	tenant = store_peer_of(&store, "t", "other", 1);
	model = store_peer_of(&store, "m", "", 2);
	opened = store_open(&store, tenant, "s", tokens, 40, ends, 3);
	assert_int_equal(opened.shared + opened.pieces, 0);
	assert_int_equal(store_fill(&store, tenant, opened.sequence, ends, 3), 0);
	opened = store_open(&store, model, "s", tokens, 40, ends, 3);
	assert_int_equal(opened.shared + opened.pieces, 0);
	assert_int_equal(store_fill(&store, model, opened.sequence, ends, 3), 0);
	store_stop(&store);
}

static void test_many_cuts(void **state)
{
	struct store store;
	struct kvs_open_result opened;
	uint32_t peer, many[60];

	(void)state;
	store_start(&store, NULL);
	numbers(tokens, 64, 1000);
	numbers(many, 60, 1);
	peer = store_peer(&store, "w");
	opened = store_open(&store, peer, "a", tokens, 60, many, 60);
	store_fill(&store, peer, opened.sequence, many, 60);
	opened = store_open(&store, peer, "b", tokens, 60, many, 60);
	assert_int_equal(opened.shared, 60);
	/* All of them are copied by a prompt that is cut otherwise. */
	many[0] = 62;
	opened = store_open(&store, peer, "c", tokens, 62, many, 1);
	assert_int_equal(opened.pieces, 60);
	assert_int_equal(store_statistics(&store).references, 180);
	store_stop(&store);
}

static void test_approximate_is_never_found(void **state)
{
	static const uint32_t longer[] = {16, 32, 48};
	const enum kvw_provenance approximate = KVW_APPROXIMATE;
	struct store store;
	uint32_t peer = warm(&store);
	struct kvs_open_result opened = store_open(&store, peer, "s", tokens, 40, ends, 3);
	struct kvs_open_result other;
	uint64_t id = store_reserve(&store, peer, opened.sequence, 40, 8, KVW_PLAIN, approximate);

	(void)state;
	assert_ok(store_commit(&store, peer, opened.sequence, &id, 1, tokens + 40, 8, NULL, 0));
	other = store_open(&store, peer, "t", tokens, 48, longer, 3);
	assert_int_equal(other.shared, 2);
	assert_int_equal(other.pieces, 1);
	assert_piece(&store, other.sequence, 0, 32, 8, 8);
	store_stop(&store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_same_prompt),
	    cmocka_unit_test(test_prompt_goes_on),
	    cmocka_unit_test(test_prefix_of_a_longer_one),
	    cmocka_unit_test(test_divergence),
	    cmocka_unit_test(test_other_cuts),
	    cmocka_unit_test(test_a_short_match_that_goes_on_wins),
	    cmocka_unit_test(test_tenants_and_models_are_apart),
	    cmocka_unit_test(test_many_cuts),
	    cmocka_unit_test(test_approximate_is_never_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
