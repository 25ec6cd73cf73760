#include "tests/unit/kvstore/engine_fixture.h"

static const uint32_t ends[] = {16, 32, 40};
static uint32_t tokens[256];

static uint32_t start(struct store *store)
{
	store_start(store, NULL);
	numbers(tokens, 256, 1000);
	return store_peer(store, "w");
}

static uint64_t open_filled(struct store *store, uint32_t peer, const char *id)
{
	struct kvs_open_result opened = store_open(store, peer, id, tokens, 40, ends, 3);

	if (opened.shared < 3) store_fill(store, peer, opened.sequence, ends, 3);
	return opened.sequence;
}

static void test_put_target(void **state)
{
	struct kvs_segment_view view;
	struct store store;
	uint32_t peer = start(&store), other;
	uint64_t id, sequence;
	uint8_t *memory = NULL;

	(void)state;
	other = store_peer(&store, "other");
	sequence = store_open(&store, peer, "s", tokens, 40, NULL, 0).sequence;
	id = store_reserve(&store, peer, sequence, 0, 16, KVW_CLUSTERED, KVW_EXACT);
	assert_ok(kvs_segment_find(store.engine, id, &view));
	assert_false(view.committed);
	assert_null(view.token_ids);
	for (uint32_t layer = 0; layer < 2; layer++) {
		uint64_t bytes = view.units[layer].bytes;

		assert_ok(kvs_put_target(store.engine, peer, id, layer, bytes, &memory));
		assert_ptr_equal(memory, kvs_unit_memory(store.engine, &view.units[layer]));
		memset(memory, 1, bytes);
		assert_fails(kvs_put_target(store.engine, peer, id, layer, bytes - 1, &memory), KV_INVALID,
		    "bytes are put into a unit of");
	}
	assert_true(view.units[1].bytes != view.units[0].bytes);
	assert_fails(kvs_put_target(store.engine, peer, id, 2, 64, &memory), KV_INVALID, "layer 2");
	assert_fails(kvs_put_target(store.engine, other, id, 0, view.units[0].bytes, &memory),
	    KV_NOT_FOUND, "no segment");
	assert_fails(
	    kvs_put_target(store.engine, peer, id + 1, 0, 64, &memory), KV_NOT_FOUND, "reserved");
	assert_ok(store_commit(&store, peer, sequence, &id, 1, NULL, 0, NULL, 0));
	assert_fails(kvs_put_target(store.engine, peer, id, 0, view.units[0].bytes, &memory),
	    KV_NOT_FOUND, "reserved");
	store_stop(&store);
}

/* What the store summed of a unit stands until the unit is written again. */
static void test_sums(void **state)
{
	struct kvs_segment_view view;
	struct store store;
	uint32_t peer = start(&store);
	uint64_t id, sequence;
	uint8_t *memory = NULL;

	(void)state;
	sequence = store_open(&store, peer, "s", tokens, 40, NULL, 0).sequence;
	id = store_reserve(&store, peer, sequence, 0, 16, KVW_CLUSTERED, KVW_EXACT);
	assert_ok(kvs_segment_find(store.engine, id, &view));
	assert_null(view.sums);
	kvs_unit_summed(store.engine, id, 2, 7); /* no such layer */
	kvs_unit_summed(store.engine, id + 1, 0, 7);
	assert_ok(kvs_segment_find(store.engine, id, &view));
	assert_null(view.sums);
	kvs_unit_summed(store.engine, id, 1, 7);
	assert_ok(kvs_segment_find(store.engine, id, &view));
	assert_false(view.sums[0].known);
	assert_true(view.sums[1].known);
	assert_int_equal(view.sums[1].crc, 7);
	assert_ok(kvs_put_target(store.engine, peer, id, 1, view.units[1].bytes, &memory));
	assert_false(view.sums[1].known);
	kvs_unit_summed(store.engine, id, 0, 9);
	assert_ok(store_commit(&store, peer, sequence, &id, 1, NULL, 0, NULL, 0));
	assert_ok(kvs_segment_find(store.engine, id, &view));
	assert_null(view.sums);
	/* One that is never committed leaves nothing. */
	id = store_reserve(&store, peer, sequence, 16, 8, KVW_CLUSTERED, KVW_EXACT);
	kvs_unit_summed(store.engine, id, 0, 9);
	store_stop(&store);
}

static void test_rules_of_a_commit(void **state)
{
	struct store store;
	uint32_t peer = start(&store), other;
	uint64_t s, a, gap, beyond, approximate, exact, twice[2], unknown = 999;

	(void)state;
	other = store_peer(&store, "other");
	s = store_open(&store, peer, "s", tokens, 40, NULL, 0).sequence;
	a = store_reserve(&store, peer, s, 0, 16, KVW_CLUSTERED, KVW_EXACT);
	gap = store_reserve(&store, peer, s, 17, 4, KVW_CLUSTERED, KVW_EXACT);
	assert_fails(store_commit(&store, peer, s, &gap, 1, NULL, 0, NULL, 0), KV_INVALID,
	    "starts at 17, the list goes on at 0");
	assert_fails(store_commit(&store, peer, s, &a, 0, NULL, 0, NULL, 0), KV_INVALID, "0 segments");
	assert_fails(store_commit(&store, peer, s, &unknown, 1, NULL, 0, NULL, 0), KV_NOT_FOUND, "999");
	assert_fails(
	    store_commit(&store, other, s, &a, 1, NULL, 0, NULL, 0), KV_NOT_FOUND, "no sequence");
	twice[0] = twice[1] = a;
	assert_fails(store_commit(&store, peer, s, twice, 2, NULL, 0, NULL, 0), KV_INVALID, "twice");
	assert_fails(
	    store_commit(&store, peer, s, &a, 1, tokens, 15, NULL, 0), KV_INVALID, "15 token ids");
	assert_fails(
	    store_commit(&store, peer, s, &a, 1, tokens + 1, 16, NULL, 0), KV_INVALID, "position 0");
	assert_fails(
	    store_commit(&store, peer, s, &a, 1, NULL, 0, &unknown, 1), KV_INVALID, "list has 0");
	assert_ok(store_commit(&store, peer, s, &a, 1, tokens, 16, NULL, 0));
	/* Exact segments hold prompt tokens and follow exact ones. */
	beyond = store_reserve(&store, peer, s, 16, 25, KVW_PLAIN, KVW_EXACT);
	assert_fails(store_commit(&store, peer, s, &beyond, 1, tokens + 16, 25, NULL, 0), KV_INVALID,
	    "ends at 41, after the prompt's 40");
	approximate = store_reserve(&store, peer, s, 16, 8, KVW_PLAIN, KVW_APPROXIMATE);
	exact = store_reserve(&store, peer, s, 24, 8, KVW_PLAIN, KVW_EXACT);
	assert_ok(store_commit(&store, peer, s, &approximate, 1, NULL, 0, NULL, 0));
	assert_fails(store_commit(&store, peer, s, &exact, 1, NULL, 0, NULL, 0), KV_INVALID,
	    "follows an approximate one");
	/* Token ids beyond the prompt must be given, and agree with what was pushed. */
	approximate = store_reserve(&store, peer, s, 24, 24, KVW_PLAIN, KVW_APPROXIMATE);
	assert_fails(store_commit(&store, peer, s, &approximate, 1, NULL, 0, NULL, 0), KV_INVALID,
	    "their token ids are needed");
	assert_ok(kvs_sequence_push(store.engine, peer, s, 0, tokens, 4, NULL, 0));
	assert_fails(store_commit(&store, peer, s, &approximate, 1, tokens + 24, 24, NULL, 0),
	    KV_INVALID, "position 40");
	/* Everything refused is still reserved, and goes when the sequence does. */
	assert_int_equal(store_statistics(&store).segments_reserved, 4);
	assert_int_equal(store_statistics(&store).commits, 2);
	assert_ok(kvs_sequence_close(store.engine, peer, s, 0));
	assert_int_equal(store_statistics(&store).segments_reserved, 0);
	store_stop(&store);
}

static void test_checksums(void **state)
{
	const uint32_t checksums[] = {11, 22};
	struct kvs_commit_request request = {.segment_count = 1, .checksums = checksums};
	struct kvs_commit_result result;
	struct kvs_segment_view view;
	struct store store;
	uint32_t peer = start(&store);
	uint64_t id;

	(void)state;
	request.sequence = store_open(&store, peer, "s", tokens, 40, NULL, 0).sequence;
	id = store_reserve(&store, peer, request.sequence, 0, 16, KVW_CLUSTERED, KVW_EXACT);
	request.segment_ids = &id;
	request.checksum_count = 1;
	assert_fails(kvs_commit_now(store.engine, peer, &request, &result), KV_INVALID,
	    "1 checksums are given for 2 units");
	request.checksum_count = 2;
	assert_ok(kvs_commit_now(store.engine, peer, &request, &result));
	assert_ok(kvs_segment_find(store.engine, id, &view));
	assert_int_equal(view.checksums[0], 11);
	assert_int_equal(view.checksums[1], 22);
	store_stop(&store);
}

static void test_corrupt(void **state)
{
	struct kvs_commit_result result;
	struct kvs_commit *commit = NULL;
	struct kvs_commit_request request = {.segment_count = 1};
	struct store store;
	uint32_t peer = start(&store);
	uint64_t id;

	(void)state;
	request.sequence = store_open(&store, peer, "s", tokens, 40, NULL, 0).sequence;
	id = store_reserve(&store, peer, request.sequence, 0, 16, KVW_CLUSTERED, KVW_EXACT);
	request.segment_ids = &id;
	assert_ok(kvs_commit_begin(store.engine, peer, &request, &commit));
	assert_sound(&store);
	assert_int_equal(kvs_commit_segments(commit), 1);
	assert_int_equal(store_statistics(&store).segments_committed, 0);
	assert_int_equal(kvs_commit_finish(store.engine, commit, KV_CORRUPT, &result), KV_CORRUPT);
	assert_sound(&store);
	assert_false(store_has(&store, id));
	assert_int_equal(store_statistics(&store).commits_corrupt, 1);
	assert_int_equal(store_statistics(&store).reserved_bytes, 0);
	store_stop(&store);
}

static void test_two_peers_write_the_same(void **state)
{
	struct store store;
	uint32_t first = start(&store), second = store_peer(&store, "second");
	struct kvs_segment_view view;
	uint64_t a, b, ids[3], bytes;

	(void)state;
	a = store_open(&store, first, "a", tokens, 40, ends, 3).sequence;
	b = store_open(&store, second, "b", tokens, 40, ends, 3).sequence;
	assert_int_equal(store_fill(&store, first, a, ends, 3), 0);
	bytes = store_statistics(&store).leased_bytes;
	assert_int_equal(store_fill(&store, second, b, ends, 3), 3);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(store_entry(&store, a, i), store_entry(&store, b, i));
	assert_int_equal(store_statistics(&store).leased_bytes, bytes);
	assert_int_equal(store_statistics(&store).reserved_bytes, 0);
	assert_int_equal(store_statistics(&store).references, 6);
	assert_int_equal(store_statistics(&store).commits_duplicate, 3);
	/* Only a part is stored already. */
	ids[0] = store_entry(&store, a, 2);
	assert_ok(kvs_sequence_close(store.engine, first, a, 0));
	assert_ok(kvs_sequence_close(store.engine, second, b, 0));
	tokens[39]++;
	a = store_open(&store, first, "c", tokens, 40, NULL, 0).sequence;
	assert_int_equal(store_fill(&store, first, a, ends, 3), 2);
	assert_int_not_equal(store_entry(&store, a, 2), ids[0]);
	assert_ok(kvs_sequence_segment(store.engine, a, 2, &view));
	assert_int_equal(view.token_ids[7], tokens[39]);
	store_stop(&store);
}

static void test_repeated(void **state)
{
	struct kvs_commit_request request = {.segment_count = 2};
	struct kvs_commit_result result;
	struct store store;
	uint32_t peer = start(&store);
	uint64_t ids[2];

	(void)state;
	open_filled(&store, peer, "other");
	request.sequence = store_open(&store, peer, "s", tokens, 40, NULL, 0).sequence;
	ids[0] = store_reserve(&store, peer, request.sequence, 0, 16, KVW_CLUSTERED, KVW_EXACT);
	ids[1] = store_reserve(&store, peer, request.sequence, 16, 4, KVW_PLAIN, KVW_EXACT);
	request.segment_ids = ids;
	assert_ok(kvs_commit_now(store.engine, peer, &request, &result));
	assert_int_equal(result.duplicates, 1);
	assert_false(result.repeated);
	/* The first id is gone by now, and yet the answer is the same. */
	assert_false(store_has(&store, ids[0]));
	assert_ok(kvs_commit_now(store.engine, peer, &request, &result));
	assert_true(result.repeated);
	assert_int_equal(result.first, 0);
	assert_int_equal(result.count, 2);
	assert_int_equal(store_statistics(&store).commits_repeated, 1);
	assert_sound(&store);
	request.segment_count = 1;
	assert_fails(kvs_commit_now(store.engine, peer, &request, &result), KV_NOT_FOUND, "reserved");
	store_stop(&store);
}

/* What a fold replaces is gone when the fold comes again, and may have been the whole list. */
static void test_repeated_fold(void **state)
{
	struct kvs_commit_request request = {.segment_count = 1, .replaced_count = 3};
	struct kvs_commit_result result;
	uint64_t replaced[3], id;
	struct store store;
	uint32_t peer = start(&store);

	(void)state;
	request.sequence = open_filled(&store, peer, "s");
	for (uint32_t i = 0; i < 3; i++)
		replaced[i] = store_entry(&store, request.sequence, i);
	id = store_reserve(&store, peer, request.sequence, 0, 40, KVW_CLUSTERED, KVW_APPROXIMATE);
	request.segment_ids = &id;
	request.replaced_ids = replaced;
	for (int repeated = 0; repeated < 2; repeated++) {
		assert_ok(kvs_commit_now(store.engine, peer, &request, &result));
		assert_int_equal(result.repeated, repeated);
		assert_int_equal(result.first, 0);
		assert_int_equal(result.count, 1);
	}
	assert_sound(&store);
	store_stop(&store);
}

static void test_folds(void **state)
{
	struct store store;
	uint32_t peer = start(&store), length;
	uint64_t s = open_filled(&store, peer, "s"), tail, window, fold[2], runs[3];
	struct kvs_segment_view view;

	(void)state;
	/* The first fold: the exact tail makes place, and stays for other prompts. */
	tail = store_entry(&store, s, 2);
	assert_ok(kvs_sequence_push(store.engine, peer, s, 0, tokens + 40, 6, NULL, 0));
	fold[0] = store_reserve(&store, peer, s, 32, 6, KVW_CLUSTERED, KVW_APPROXIMATE);
	fold[1] = store_reserve(&store, peer, s, 38, 8, KVW_PLAIN, KVW_APPROXIMATE);
	assert_ok(store_commit(&store, peer, s, fold, 2, tokens + 32, 14, &tail, 1));
	assert_ok(kvs_sequence_length(store.engine, s, &length));
	assert_int_equal(length, 4);
	assert_true(store_has(&store, tail));
	assert_int_equal(store_open(&store, peer, "same", tokens, 40, ends, 3).shared, 3);
	/* The next one: the window makes place and is freed, nobody could find it. */
	window = fold[1];
	assert_ok(kvs_sequence_push(store.engine, peer, s, 6, tokens + 46, 6, NULL, 0));
	runs[0] = fold[0];
	fold[0] = store_reserve(&store, peer, s, 38, 6, KVW_CLUSTERED, KVW_APPROXIMATE);
	fold[1] = store_reserve(&store, peer, s, 44, 8, KVW_PLAIN, KVW_APPROXIMATE);
	assert_ok(store_commit(&store, peer, s, fold, 2, tokens + 38, 14, &window, 1));
	assert_false(store_has(&store, window));
	/* Two folds become one, inside the list: it must end where they did. */
	runs[1] = fold[0];
	window = store_reserve(&store, peer, s, 32, 11, KVW_CLUSTERED, KVW_APPROXIMATE);
	assert_fails(store_commit(&store, peer, s, &window, 1, tokens + 32, 11, runs, 2), KV_INVALID,
	    "the list goes on at 44");
	assert_ok(kvs_release(store.engine, peer, s, &window, 1));
	assert_false(store_has(&store, window));
	window = store_reserve(&store, peer, s, 32, 12, KVW_CLUSTERED, KVW_APPROXIMATE);
	assert_fails(store_commit(&store, peer, s, &window, 1, tokens + 32, 12, runs + 1, 2),
	    KV_INVALID, "is not entry");
	assert_ok(store_commit(&store, peer, s, &window, 1, tokens + 32, 12, runs, 2));
	assert_ok(kvs_sequence_length(store.engine, s, &length));
	assert_int_equal(length, 4);
	assert_int_equal(store_entry(&store, s, 2), window);
	assert_ok(kvs_sequence_segment(store.engine, s, 2, &view));
	assert_memory_equal(view.token_ids, tokens + 32, 12 * sizeof *tokens);
	assert_true(store_has(&store, runs[1])); /* the window's parent, as long as that stays */
	runs[2] = fold[1];
	fold[0] = store_reserve(&store, peer, s, 44, 8, KVW_PLAIN, KVW_APPROXIMATE);
	assert_ok(store_commit(&store, peer, s, fold, 1, tokens + 44, 8, runs + 2, 1));
	assert_false(store_has(&store, runs[0]));
	assert_false(store_has(&store, runs[1]));
	assert_false(store_has(&store, runs[2]));
	store_stop(&store);
}

static void test_closed_or_lapsed_in_flight(void **state)
{
	(void)state;
	/* 0: closed, 1: proven dead, 2: silent, then proven dead, 3: silent. */
	for (unsigned how = 0; how < 4; how++) {
		struct kvs_commit_request request = {.segment_count = 1};
		struct kvs_commit_result result;
		struct kvs_commit *commit = NULL;
		struct kvs_segment_view view;
		struct store store;
		uint32_t peer = start(&store);
		uint64_t id, epoch = store_epoch(&store, peer);

		request.sequence = store_open(&store, peer, "s", tokens, 40, NULL, 0).sequence;
		id = store_reserve(&store, peer, request.sequence, 0, 16, KVW_CLUSTERED, KVW_EXACT);
		request.segment_ids = &id;
		assert_ok(kvs_commit_begin(store.engine, peer, &request, &commit));
		assert_int_equal(kvs_release(store.engine, peer, request.sequence, &id, 1), KV_BUSY);
		if (how == 0)
			assert_ok(kvs_sequence_close(store.engine, peer, request.sequence, 1));
		else
			kvs_peer_remove(store.engine, peer, how == 1);
		if (how == 2) assert_true(kvs_peer_proven_dead(store.engine, epoch) > 0);
		assert_sound(&store);
		/* The memory stays put for whoever reads it, whatever happens. */
		kvs_engine_evict(store.engine);
		kvs_commit_segment(commit, 0, &view);
		assert_int_equal(view.id, id);
		assert_non_null(kvs_unit_memory(store.engine, &view.units[0]));
		assert_fails(
		    kvs_commit_finish(store.engine, commit, KV_OK, &result), KV_STALE, "in flight");
		assert_sound(&store);
		assert_int_equal(store_has(&store, id), how == 3);
		assert_int_equal(store_statistics(&store).commits_stale, 1);
		store_stop(&store);
	}
}

static void test_one_at_a_time(void **state)
{
	struct kvs_commit_request request = {.segment_count = 1};
	struct kvs_commit_result result;
	struct kvs_commit *commit = NULL, *second = NULL;
	struct store store;
	uint32_t peer = start(&store);
	uint64_t id[2];
	uint8_t *memory;

	(void)state;
	request.sequence = store_open(&store, peer, "s", tokens, 40, NULL, 0).sequence;
	id[0] = store_reserve(&store, peer, request.sequence, 0, 16, KVW_PLAIN, KVW_EXACT);
	id[1] = store_reserve(&store, peer, request.sequence, 16, 16, KVW_PLAIN, KVW_EXACT);
	request.segment_ids = id;
	assert_ok(kvs_commit_begin(store.engine, peer, &request, &commit));
	assert_int_equal(kvs_put_target(store.engine, peer, id[0], 0, 64, &memory), KV_BUSY);
	request.segment_ids = id + 1;
	assert_fails(kvs_commit_begin(store.engine, peer, &request, &second), KV_BUSY,
	    "sequence s is in flight");
	assert_ok(kvs_commit_finish(store.engine, commit, KV_OK, &result));
	assert_ok(kvs_commit_now(store.engine, peer, &request, &result));
	assert_int_equal(result.first, 1);
	store_stop(&store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_put_target),
	    cmocka_unit_test(test_sums),
	    cmocka_unit_test(test_rules_of_a_commit),
	    cmocka_unit_test(test_checksums),
	    cmocka_unit_test(test_corrupt),
	    cmocka_unit_test(test_two_peers_write_the_same),
	    cmocka_unit_test(test_repeated),
	    cmocka_unit_test(test_repeated_fold),
	    cmocka_unit_test(test_folds),
	    cmocka_unit_test(test_closed_or_lapsed_in_flight),
	    cmocka_unit_test(test_one_at_a_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
