/* What a peer on another host may have copied out of the arena, and what finding it costs: all of
 * its lists are gone through once a request, however many reads that has. */
#include "common/base/clock.h"
#include "tests/unit/kvstore/engine_fixture.h"

enum { PROMPT = 40, CUTS = 3, MANY = 3000, READS = 3000 };

static const uint32_t ends[CUTS] = {16, 32, PROMPT};

static enum kv_status source(struct store *store, uint32_t peer, uint64_t id)
{
	const uint8_t *memory = NULL;
	struct kvs_segment_view view;
	enum kv_status status = kvs_fetch_source(store->engine, peer, id, 1, 8, 16, &memory);

	if (status != KV_OK) return status;
	assert_ok(kvs_segment_find(store->engine, id, &view));
	assert_ptr_equal(memory, kvs_unit_memory(store->engine, &view.units[1]) + 8);
	return KV_OK;
}

static uint64_t begin(struct store *store, uint32_t peer)
{
	uint64_t entries = UINT64_MAX;

	assert_ok(kvs_fetch_begin(store->engine, peer, &entries));
	assert_sound(store);
	return entries;
}

static void test_lists_and_pieces(void **state)
{
	uint32_t prompt[PROMPT], other[PROMPT];
	struct kvs_open_result first, second;
	struct kvs_segment_view piece;
	struct store store;
	uint64_t ids[CUTS];
	uint32_t peer, stranger, counted = 0;

	(void)state;
	store_start(&store, NULL);
	peer = store_peer(&store, "a");
	stranger = store_peer(&store, "b");
	numbers(prompt, PROMPT, 100);
	memcpy(other, prompt, sizeof other);
	other[20]++;
	first = store_open(&store, peer, NULL, prompt, PROMPT, ends, CUTS);
	assert_int_equal(begin(&store, peer), 1);
	store_fill(&store, peer, first.sequence, ends, CUTS);
	for (uint32_t i = 0; i < CUTS; i++)
		ids[i] = store_entry(&store, first.sequence, i);
	/* What was committed since is no part of it. */
	assert_int_equal(source(&store, peer, ids[0]), KV_NOT_FOUND);
	assert_int_equal(begin(&store, peer), 1 + CUTS);
	for (uint32_t i = 0; i < CUTS; i++)
		assert_int_equal(source(&store, peer, ids[i]), KV_OK);
	assert_int_equal(source(&store, peer, ids[2] + 1000), KV_NOT_FOUND);
	/* Somebody else's turn: what this peer refers to is not looked at. */
	assert_int_equal(begin(&store, stranger), 0);
	assert_int_equal(source(&store, stranger, ids[0]), KV_NOT_FOUND);
	/* It shares a segment, and has a piece of another. */
	second = store_open(&store, stranger, NULL, other, PROMPT, ends, CUTS);
	assert_int_equal(second.shared, 1);
	assert_int_equal(second.pieces, 1);
	assert_ok(kvs_sequence_piece(store.engine, second.sequence, 0, &piece, &counted));
	assert_int_equal(piece.id, ids[1]);
	assert_int_equal(begin(&store, stranger), 1 + 1 + 1);
	assert_int_equal(source(&store, stranger, ids[0]), KV_OK);
	assert_int_equal(source(&store, stranger, ids[1]), KV_OK);
	assert_int_equal(source(&store, stranger, ids[2]), KV_NOT_FOUND);
	/* It is given back. */
	assert_ok(kvs_release(store.engine, stranger, second.sequence, &ids[1], 1));
	assert_int_equal(begin(&store, stranger), 1 + 1);
	assert_int_equal(source(&store, stranger, ids[1]), KV_NOT_FOUND);
	/* Stored still, and nobody's. */
	assert_ok(kvs_sequence_close(store.engine, peer, first.sequence, 0));
	assert_int_equal(begin(&store, peer), 0);
	assert_int_equal(source(&store, peer, ids[2]), KV_NOT_FOUND);
	store_stop(&store);
}

static void test_refusals(void **state)
{
	uint32_t prompt[PROMPT];
	struct kvs_open_result opened;
	const uint8_t *memory = NULL;
	struct kvs_segment_view view;
	struct store store;
	uint64_t id, reserved, bytes, entries = 0;
	uint32_t peer;

	(void)state;
	store_start(&store, NULL);
	peer = store_peer(&store, "a");
	numbers(prompt, PROMPT, 100);
	opened = store_open(&store, peer, NULL, prompt, PROMPT, ends, CUTS);
	store_fill(&store, peer, opened.sequence, ends, 1);
	id = store_entry(&store, opened.sequence, 0);
	reserved = store_reserve(&store, peer, opened.sequence, 16, 16, KVW_CLUSTERED, KVW_EXACT);
	begin(&store, peer);
	assert_ok(kvs_segment_find(store.engine, id, &view));
	bytes = view.units[0].bytes;
	assert_ok(kvs_fetch_source(store.engine, peer, id, 0, 0, bytes, &memory));
	assert_ok(kvs_fetch_source(store.engine, peer, id, 0, bytes, 0, &memory));
	assert_fails(kvs_fetch_source(store.engine, peer, id, 0, 1, bytes, &memory), KV_INVALID,
	    "are asked for of a unit");
	assert_fails(kvs_fetch_source(store.engine, peer, id, 0, UINT64_MAX, 2, &memory), KV_INVALID,
	    "are asked for of a unit");
	assert_fails(kvs_fetch_source(store.engine, peer, id, view.layers, 0, 1, &memory), KV_INVALID,
	    "the segment has");
	assert_fails(kvs_fetch_source(store.engine, peer, reserved, 0, 0, 1, &memory), KV_NOT_FOUND,
	    "refers to");
	/* Its lease is over: nothing is handed out, whatever was found before. */
	store.world.now += 10 * kvs_engine_lease_ms(store.engine);
	kvs_engine_tick(store.engine);
	assert_int_equal(kvs_fetch_source(store.engine, peer, id, 0, 0, bytes, &memory), KV_STALE);
	assert_int_equal(kvs_fetch_begin(store.engine, peer, &entries), KV_STALE);
	store_stop(&store);
}

/* Nanoseconds for a request of READS reads by a peer with so many sequences; the fewest of some. */
static uint64_t cost(uint32_t sequences)
{
	const struct kvs_options options = {
	    .memory = STORE_MEMORY, .max_sequences = MANY, .max_segments = 512, .max_peers = 16};
	struct kvs_cut cuts[CUTS];
	uint32_t prompt[PROMPT];
	struct kvs_open_request request = {
	    .prompt = prompt, .prompt_tokens = PROMPT, .cuts = cuts, .cut_count = CUTS};
	struct kvs_open_result opened;
	struct store store;
	uint64_t id, least = UINT64_MAX;
	uint32_t peer;

	store_start(&store, &options);
	peer = store_peer(&store, "a");
	numbers(prompt, PROMPT, 100);
	for (uint32_t i = 0; i < CUTS; i++)
		cuts[i] = (struct kvs_cut){ends[i], i + 1 == CUTS ? KVW_PLAIN : KVW_CLUSTERED};
	opened = store_open(&store, peer, NULL, prompt, PROMPT, ends, CUTS);
	store_fill(&store, peer, opened.sequence, ends, CUTS);
	id = store_entry(&store, opened.sequence, 2);
	for (uint32_t i = 1; i < sequences; i++)
		assert_ok(kvs_sequence_open(store.engine, peer, &request, &opened));
	for (int round = 0; round < 5; round++) {
		const uint64_t start = kv_now_ns();
		const uint8_t *memory;
		uint64_t entries = 0, taken;

		assert_ok(kvs_fetch_begin(store.engine, peer, &entries));
		for (uint32_t i = 0; i < READS; i++)
			if (kvs_fetch_source(store.engine, peer, id, 0, 0, 8, &memory) != KV_OK) fail();
		taken = kv_now_ns() - start;
		if (taken < least) least = taken;
		assert_int_equal(entries, (uint64_t)sequences * (1 + CUTS));
	}
	store_stop(&store);
	return least;
}

/* Were the lists gone through for each read, this would be a thousand times as much. */
static void test_lists_are_walked_once(void **state)
{
	const uint64_t few = cost(2), many = cost(MANY);

	(void)state;
	printf("%d reads: %.0f us beside 2 sequences, %.0f us beside %d\n", (int)READS,
	    (double)few / 1e3, (double)many / 1e3, (int)MANY);
	assert_true(many < 50 * few);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_lists_and_pieces),
	    cmocka_unit_test(test_refusals),
	    cmocka_unit_test(test_lists_are_walked_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
