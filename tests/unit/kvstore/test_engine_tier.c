/* Segments on their way to and from another tier: pinned ones stay, loaded ones are found like any
 * other, and whoever is refused has changed nothing. */
#include "tests/unit/kvstore/engine_fixture.h"

enum { PROMPT = 40, CUTS = 3 };

static const uint32_t ends[CUTS] = {16, 32, PROMPT};
static const uint32_t checksums[2] = {11, 12};

/* A prompt as a request; the cuts live as long as the struct. */
struct asked {
	uint32_t prompt[PROMPT];
	struct kvs_cut cuts[CUTS];
	struct kvs_open_request request;
	uint8_t keys[CUTS][KVW_KEY_BYTES];
	uint64_t ids[CUTS];
};

static void ask(struct asked *asked, uint32_t first)
{
	memset(asked, 0, sizeof *asked);
	numbers(asked->prompt, PROMPT, first);
	for (uint32_t i = 0; i < CUTS; i++)
		asked->cuts[i] = (struct kvs_cut){ends[i], i + 1 == CUTS ? KVW_PLAIN : KVW_CLUSTERED};
	asked->request = (struct kvs_open_request){
	    .prompt = asked->prompt, .prompt_tokens = PROMPT, .cuts = asked->cuts, .cut_count = CUTS};
}

/* Keys and ids of all cuts; how many are stored. */
static uint32_t look(struct store *store, uint32_t peer, struct asked *asked)
{
	uint32_t stored = 0;

	for (uint32_t i = 0; i < CUTS; i++) {
		struct kvs_wanted wanted;

		assert_ok(kvs_wanted_cut(&asked->request, i, &wanted));
		assert_ok(kvs_wanted_key(store->engine, peer, &wanted, i ? asked->keys[i - 1] : NULL,
		    asked->keys[i], &asked->ids[i]));
		stored += asked->ids[i] != 0;
	}
	return stored;
}

static enum kv_status load_one(struct store *store, uint32_t peer, const struct asked *asked,
    uint32_t index, enum kv_status verdict, uint64_t *id)
{
	struct kvs_wanted wanted;
	struct kvs_saved saved;

	assert_ok(kvs_wanted_cut(&asked->request, index, &wanted));
	KV_TRY(kvs_load_begin(store->engine, peer, &wanted, index ? asked->ids[index - 1] : 0, id));
	assert_sound(store);
	kvs_load_show(store->engine, *id, &saved);
	assert_int_equal(saved.tokens, ends[index] - (index ? ends[index - 1] : 0));
	assert_memory_equal(saved.token_ids, asked->prompt + saved.start, 4 * saved.tokens);
	for (uint32_t layer = 0; layer < saved.layers; layer++)
		memset(kvs_unit_memory(store->engine, &saved.units[layer]), 7, saved.units[layer].bytes);
	*id = kvs_load_finish(store->engine, *id, verdict, checksums);
	assert_sound(store);
	return KV_OK;
}

static void load_all(struct store *store, uint32_t peer, struct asked *asked)
{
	for (uint32_t i = 0; i < CUTS; i++) {
		assert_ok(load_one(store, peer, asked, i, KV_OK, &asked->ids[i]));
		assert_true(asked->ids[i] != 0);
	}
}

static void test_loaded_is_found(void **state)
{
	struct kvs_open_result opened;
	struct kvs_wanted wanted;
	struct kvs_child child;
	struct kvs_saved saved;
	struct store store;
	struct asked asked;
	uint64_t again = 0;
	uint32_t peer;

	(void)state;
	store_start(&store, NULL);
	peer = store_peer(&store, "a");
	ask(&asked, 100);
	assert_int_equal(look(&store, peer, &asked), 0);
	/* Bytes that are not right leave nothing. */
	assert_ok(load_one(&store, peer, &asked, 0, KV_CORRUPT, &again));
	assert_int_equal(again, 0);
	assert_int_equal(store_statistics(&store).segments_committed, 0);
	load_all(&store, peer, &asked);
	assert_int_equal(look(&store, peer, &asked), CUTS);
	assert_int_equal(kvs_segment_of_key(store.engine, asked.keys[1]), asked.ids[1]);
	assert_ok(kvs_segment_saved(store.engine, asked.ids[1], &saved));
	assert_memory_equal(saved.key, asked.keys[1], KVW_KEY_BYTES);
	assert_memory_equal(saved.parent_key, asked.keys[0], KVW_KEY_BYTES);
	assert_memory_equal(saved.checksums, checksums, sizeof checksums);
	/* Twice is once. */
	assert_ok(load_one(&store, peer, &asked, 1, KV_OK, &again));
	assert_int_equal(again, asked.ids[1]);
	assert_int_equal(store_statistics(&store).segments_committed, CUTS);
	opened = store_open(&store, peer, NULL, asked.prompt, PROMPT, ends, CUTS);
	assert_int_equal(opened.shared, CUTS);
	assert_sound(&store);
	/* Another tenant's prompt has other keys. */
	peer = store_peer_of(&store, "b", "other", 1);
	assert_int_equal(look(&store, peer, &asked), 0);
	assert_ok(kvs_wanted_cut(&asked.request, 1, &wanted));
	assert_fails(kvs_load_begin(store.engine, peer, &wanted, saved.id, &again), KV_INVALID,
	    "does not follow");
	assert_fails(kvs_wanted_cut(&asked.request, CUTS, &wanted), KV_INVALID, "3 cuts");
	assert_fails(kvs_prompt_child(store.engine, peer, saved.id, asked.prompt, PROMPT, &child),
	    KV_INVALID, "another model or tenant");
	store_stop(&store);
}

/* Another prompt's segment, of which this one has a part, is a piece of it. */
static void test_loaded_piece(void **state)
{
	const uint32_t other_ends[2] = {30, PROMPT};
	struct kvs_segment_view view;
	struct kvs_open_result opened;
	struct kvs_wanted wanted;
	struct kvs_child child;
	struct kvs_saved saved;
	struct store store;
	struct asked asked;
	uint32_t peer, tokens = 0;
	uint64_t id = 0;

	(void)state;
	store_start(&store, NULL);
	peer = store_peer(&store, "a");
	ask(&asked, 100);
	assert_ok(load_one(&store, peer, &asked, 0, KV_OK, &asked.ids[0]));
	assert_ok(kvs_prompt_child(store.engine, peer, 0, asked.prompt, 10, &child));
	assert_true(child.id == asked.ids[0] && child.tokens == 16 && child.common == 10);
	assert_ok(kvs_prompt_child(store.engine, peer, asked.ids[0], asked.prompt, PROMPT, &child));
	assert_int_equal(child.id, 0);
	/* Nine tokens of the prompt, then others. */
	asked.prompt[16 + 9]++;
	wanted = (struct kvs_wanted){
	    .start = 16, .tokens = 20, .kind = KVW_PLAIN, .token_ids = asked.prompt + 16};
	assert_ok(kvs_wanted_show(store.engine, peer, &wanted, asked.keys[0], &saved));
	assert_true(saved.tokens == 20 && saved.layers == saved.layout.layers);
	assert_ok(kvs_load_begin(store.engine, peer, &wanted, asked.ids[0], &id));
	id = kvs_load_finish(store.engine, id, KV_OK, checksums);
	assert_true(id != 0);
	assert_sound(&store);
	asked.prompt[16 + 9]--;
	assert_ok(kvs_prompt_child(store.engine, peer, asked.ids[0], asked.prompt, PROMPT, &child));
	assert_true(child.id == id && child.tokens == 20 && child.common == 9);
	opened = store_open(&store, peer, NULL, asked.prompt, PROMPT, ends, CUTS);
	assert_int_equal(opened.shared, 1);
	assert_int_equal(opened.pieces, 1);
	assert_ok(kvs_sequence_piece(store.engine, opened.sequence, 0, &view, &tokens));
	assert_true(view.id == id && tokens == 9);
	/* Cut otherwise, the first segment is a piece of it as a whole. */
	opened = store_open(&store, peer, NULL, asked.prompt, PROMPT, other_ends, 2);
	assert_int_equal(opened.shared, 0);
	assert_int_equal(opened.pieces, 2);
	wanted.tokens = 0;
	assert_fails(kvs_load_begin(store.engine, peer, &wanted, asked.ids[0], &id), KV_INVALID,
	    "could be stored");
	store_stop(&store);
}

/* The prompt of a sequence was evicted: what is there again when it is resumed is in its list. */
static void test_resumed_from_loaded(void **state)
{
	struct kvs_resume_result resumed;
	struct kvs_open_request missing;
	struct kvs_open_result opened;
	struct store store;
	struct asked asked;
	uint32_t peer;

	(void)state;
	store_start(&store, NULL);
	peer = store_peer(&store, "a");
	ask(&asked, 100);
	opened = store_open(&store, peer, "s", asked.prompt, PROMPT, ends, CUTS);
	store_fill(&store, peer, opened.sequence, ends, CUTS);
	for (uint32_t loaded = 0; loaded <= CUTS; loaded++) {
		assert_ok(kvs_sequence_close(store.engine, peer, opened.sequence, 1));
		assert_ok(kvs_sequence_missing(store.engine, peer, "s", store_policy, &missing));
		/* The first time nothing is; after one that came back short, the rest of it. */
		assert_int_equal(missing.cut_count, loaded ? CUTS : 0);
		kvs_engine_evict(store.engine);
		assert_sound(&store);
		assert_int_equal(look(&store, peer, &asked), 0);
		assert_ok(kvs_sequence_missing(store.engine, peer, "s", store_policy, &missing));
		assert_int_equal(missing.prompt_tokens, PROMPT);
		assert_memory_equal(missing.prompt, asked.prompt, sizeof asked.prompt);
		assert_int_equal(missing.cut_count, CUTS);
		assert_memory_equal(missing.cuts, asked.cuts, sizeof asked.cuts);
		for (uint32_t i = 0; i < loaded; i++)
			assert_ok(load_one(&store, peer, &asked, i, KV_OK, &asked.ids[i]));
		assert_ok(kvs_sequence_resume(store.engine, peer, "s", store_policy, &resumed));
		assert_sound(&store);
		assert_int_equal(resumed.segments, loaded);
		for (uint32_t i = 0; i < loaded; i++)
			assert_int_equal(store_entry(&store, resumed.sequence, i), asked.ids[i]);
		opened.sequence = resumed.sequence;
	}
	assert_fails(kvs_sequence_missing(store.engine, peer, "s", store_policy, &missing), KV_BUSY,
	    "held by a");
	assert_fails(kvs_sequence_missing(store.engine, peer, "t", store_policy, &missing),
	    KV_NOT_FOUND, "sequence t");
	store_stop(&store);
}

static void test_pins(void **state)
{
	struct store store;
	struct asked asked;
	uint32_t peer;

	(void)state;
	store_start(&store, NULL);
	peer = store_peer(&store, "a");
	ask(&asked, 100);
	load_all(&store, peer, &asked);
	assert_ok(kvs_segment_pin(store.engine, asked.ids[1]));
	assert_ok(kvs_segment_pin(store.engine, asked.ids[1]));
	assert_sound(&store);
	assert_true(store_statistics(&store).leased_bytes > 0);
	kvs_engine_evict(store.engine);
	assert_false(store_has(&store, asked.ids[2]));
	assert_true(store_has(&store, asked.ids[1]) && store_has(&store, asked.ids[0]));
	kvs_segment_unpin(store.engine, asked.ids[1]);
	kvs_engine_evict(store.engine);
	assert_true(store_has(&store, asked.ids[1]));
	kvs_segment_unpin(store.engine, asked.ids[1]);
	assert_int_equal(store_statistics(&store).leased_bytes, 0);
	kvs_segment_unpin(store.engine, asked.ids[1]);
	assert_sound(&store);
	kvs_engine_evict(store.engine);
	assert_false(store_has(&store, asked.ids[0]));
	assert_fails(kvs_segment_pin(store.engine, asked.ids[0]), KV_NOT_FOUND, "not stored");
	store_stop(&store);
}

/* What is pinned and unpinned in the background is no younger for it. */
static void test_unpinning_is_no_use(void **state)
{
	const struct kvs_evict_request one = {.bytes = 1};
	struct asked old, young;
	struct store store;
	uint32_t peer;

	(void)state;
	store_start(&store, NULL);
	peer = store_peer(&store, "a");
	ask(&old, 100);
	ask(&young, 900);
	load_all(&store, peer, &old);
	load_all(&store, peer, &young);
	assert_ok(kvs_segment_pin(store.engine, old.ids[2]));
	kvs_segment_unpin(store.engine, old.ids[2]);
	kvs_engine_evict_some(store.engine, &one);
	assert_false(store_has(&store, old.ids[2]));
	assert_true(store_has(&store, young.ids[2]));
	store_stop(&store);
}

/* A load is nobody's: no peer can write to it, and none takes it along when it goes. */
static void test_a_load_outlives_its_peer(void **state)
{
	uint8_t *memory = NULL;
	struct kvs_wanted wanted;
	struct kvs_saved saved;
	struct store store;
	struct asked asked;
	uint64_t id = 0;
	uint32_t peer, other;

	(void)state;
	store_start(&store, NULL);
	peer = store_peer(&store, "a");
	other = store_peer(&store, "b");
	ask(&asked, 100);
	assert_ok(load_one(&store, peer, &asked, 0, KV_OK, &asked.ids[0]));
	assert_ok(kvs_wanted_cut(&asked.request, 1, &wanted));
	assert_ok(kvs_load_begin(store.engine, peer, &wanted, asked.ids[0], &id));
	kvs_load_show(store.engine, id, &saved);
	assert_fails(kvs_put_target(store.engine, peer, id, 0, saved.units[0].bytes, &memory),
	    KV_NOT_FOUND, "reserved");
	kvs_peer_remove(store.engine, peer, 1);
	kvs_engine_evict(store.engine);
	assert_sound(&store);
	/* Its parent waits for it. */
	assert_true(store_has(&store, asked.ids[0]));
	assert_int_equal(store_statistics(&store).segments_reserved, 1);
	asked.ids[1] = kvs_load_finish(store.engine, id, KV_OK, checksums);
	assert_sound(&store);
	assert_int_equal(look(&store, other, &asked), 2);
	store_stop(&store);
}

static void test_no_room(void **state)
{
	static const struct kvs_tenant_quota quotas[] = {{"small", 4096}};
	const struct kvs_options tight = {.memory = 16384,
	    .region_bytes = 4096,
	    .max_sequences = 8,
	    .max_segments = 8,
	    .max_peers = 4,
	    .quotas = quotas,
	    .quota_count = 1};
	struct asked held, wanted;
	struct store store;
	uint64_t id = 77;
	uint32_t peer, small, loaded = 0;

	(void)state;
	store_start(&store, &tight);
	peer = store_peer(&store, "a");
	ask(&held, 100);
	for (; loaded < CUTS; loaded++) {
		if (load_one(&store, peer, &held, loaded, KV_OK, &held.ids[loaded]) != KV_OK) break;
		assert_ok(kvs_segment_pin(store.engine, held.ids[loaded]));
	}
	assert_true(loaded > 0);
	ask(&wanted, 900);
	while (loaded == CUTS && load_one(&store, peer, &wanted, 0, KV_OK, &id) == KV_OK) {
		assert_ok(kvs_segment_pin(store.engine, id));
		ask(&wanted, wanted.prompt[0] + 1000);
	}
	assert_sound(&store);
	assert_int_equal(store_statistics(&store).reserve_failures, 0);
	small = store_peer_of(&store, "s", "small", 1);
	ask(&wanted, 5);
	(void)load_one(&store, small, &wanted, 0, KV_OK, &id);
	assert_sound(&store);
	/* Everything that was pinned goes, whatever it was. */
	for (uint64_t any = 1; any < 64; any++)
		kvs_segment_unpin(store.engine, any);
	assert_sound(&store);
	store_stop(&store);
}

/* Each allocation fails once; then it works. */
static void test_allocations(void **state)
{
	unsigned failures = 0;
	struct store store;
	struct asked asked;
	uint32_t peer;

	(void)state;
	store_start(&store, NULL);
	peer = store_peer(&store, "a");
	ask(&asked, 100);
	for (uint32_t i = 0; i < CUTS; i++) {
		enum kv_status status = KV_NO_MEMORY;

		for (uint64_t n = 1; status == KV_NO_MEMORY; n++) {
			const uint64_t blocks = kv_allocator_stats(store.allocator).blocks;

			kv_allocator_fail_at(store.allocator, n);
			status = load_one(&store, peer, &asked, i, KV_OK, &asked.ids[i]);
			kv_allocator_fail_at(store.allocator, 0);
			if (status != KV_NO_MEMORY) break;
			failures++;
			assert_sound(&store);
			/* A region that was made stays. */
			assert_in_range(kv_allocator_stats(store.allocator).blocks, blocks, blocks + 2);
		}
		assert_ok(status);
	}
	assert_true(failures >= 3);
	assert_int_equal(look(&store, peer, &asked), CUTS);
	store_stop(&store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_loaded_is_found),
	    cmocka_unit_test(test_loaded_piece),
	    cmocka_unit_test(test_resumed_from_loaded),
	    cmocka_unit_test(test_pins),
	    cmocka_unit_test(test_unpinning_is_no_use),
	    cmocka_unit_test(test_a_load_outlives_its_peer),
	    cmocka_unit_test(test_no_room),
	    cmocka_unit_test(test_allocations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
