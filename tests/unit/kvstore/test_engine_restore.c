/* Segments of one engine in another one: what was stored is found, what cannot be is refused. */
#include "tests/unit/kvstore/engine_fixture.h"

enum { PROMPT = 40, SAVED = 16, REGION = 1 << 16, TOKENS = 40 };

static const uint32_t ends[] = {16, 32, PROMPT};

struct copy {
	struct kvs_saved saved;
	uint32_t tokens[TOKENS], checksums[2];
	struct kvs_unit units[2];
};

struct copies {
	struct copy list[SAVED];
	uint32_t count;
};

static enum kv_status take_down(void *context, const struct kvs_saved *saved)
{
	struct copies *copies = context;
	struct copy *copy = &copies->list[copies->count++];

	assert_in_range(copies->count, 1, SAVED);
	copy->saved = *saved;
	memcpy(copy->tokens, saved->token_ids, saved->tokens * sizeof(uint32_t));
	memcpy(copy->checksums, saved->checksums, sizeof copy->checksums);
	memcpy(copy->units, saved->units, sizeof copy->units);
	copy->saved.token_ids = copy->tokens;
	copy->saved.checksums = copy->checksums;
	copy->saved.units = copy->units;
	return KV_OK;
}

/* Commit a prompt in an engine, with checksums. Returns its sequence, open. */
static uint64_t fill(struct store *store, uint32_t peer, uint32_t first)
{
	const uint32_t checksums[6] = {1, 2, 3, 4, 5, 6};
	struct kvs_new_segment wanted[3];
	struct kvs_commit_result done;
	struct kvs_open_result opened;
	struct kvs_commit_request commit = {.segment_count = 3, .checksum_count = 6};
	uint32_t prompt[PROMPT];
	uint64_t ids[3];

	numbers(prompt, PROMPT, first);
	opened = store_open(store, peer, NULL, prompt, PROMPT, ends, 3);
	for (uint32_t i = 0; i < 3; i++)
		wanted[i] = (struct kvs_new_segment){.start = i ? ends[i - 1] : 0,
		    .tokens = ends[i] - (i ? ends[i - 1] : 0),
		    .kind = i == 2 ? KVW_PLAIN : KVW_CLUSTERED,
		    .provenance = KVW_EXACT};
	assert_ok(kvs_reserve(store->engine, peer, opened.sequence, wanted, 3, ids));
	commit.sequence = opened.sequence;
	commit.segment_ids = ids;
	commit.checksums = checksums;
	assert_ok(kvs_commit_now(store->engine, peer, &commit, &done));
	return opened.sequence;
}

/* Prompts are used in their order, only the first one last. */
static void save(uint32_t prompts, struct copies *copies)
{
	struct store store;
	uint64_t sequences[SAVED];
	uint32_t peer;

	memset(copies, 0, sizeof *copies);
	store_start(&store, NULL);
	peer = store_peer_of(&store, "a", "", 1);
	for (uint32_t i = 0; i < prompts; i++)
		sequences[i] = fill(&store, peer, 100 * i);
	for (uint32_t i = 1; i <= prompts; i++)
		assert_ok(kvs_sequence_close(store.engine, peer, sequences[i % prompts], 0));
	assert_ok(kvs_engine_save(store.engine, take_down, copies));
	assert_int_equal(copies->count, 3 * prompts);
	/* Names that belong to the engine go with it. */
	for (uint32_t i = 0; i < copies->count; i++) {
		static const uint8_t model[KVW_MODEL_ID_BYTES] = {1};

		assert_memory_equal(copies->list[i].saved.model_id, model, sizeof model);
		copies->list[i].saved.model_id = model;
		copies->list[i].saved.tenant = "";
		copies->list[i].saved.model_name = "tiny";
	}
	store_stop(&store);
}

/* Memory from before: the fixture counts and frees it like what the engine made. */
static uint32_t adopt(struct store *store, uint64_t bytes)
{
	uint32_t index = UINT32_MAX;
	uint8_t *base = calloc(1, bytes);

	assert_ok(kvs_restore_region(store->engine, "", bytes, base, &index));
	engine_world_adopt(&store->world, index, base, bytes);
	return index;
}

static void move_to(struct copies *copies, uint32_t region)
{
	for (uint32_t i = 0; i < copies->count; i++)
		for (uint32_t layer = 0; layer < 2; layer++)
			copies->list[i].units[layer].region = region;
}

static enum kv_status restore(struct store *store, struct copies *copies, uint32_t i, uint64_t *ids)
{
	struct kvs_saved saved = copies->list[i].saved;

	for (uint32_t j = 0; saved.parent && j < i; j++)
		if (copies->list[j].saved.id == copies->list[i].saved.parent) saved.parent = ids[j];
	return kvs_restore_segment(store->engine, &saved, &ids[i]);
}

static void test_found_again(void **state)
{
	struct copies copies;
	struct kvs_open_result opened;
	uint64_t ids[SAVED] = {0};
	uint32_t prompt[PROMPT], peer, made;
	struct store store;

	(void)state;
	save(3, &copies);
	store_start(&store, NULL);
	move_to(&copies, adopt(&store, REGION));
	adopt(&store, 4096); /* of no use: it goes */
	for (uint32_t i = 0; i < copies.count; i++) {
		assert_ok(restore(&store, &copies, i, ids));
		assert_sound(&store);
	}
	kvs_restore_end(store.engine);
	assert_int_equal(store.world.regions_live, 1);
	assert_fails(restore(&store, &copies, 0, ids), KV_INVALID, "not free");
	peer = store_peer_of(&store, "b", "", 1);
	numbers(prompt, PROMPT, 100);
	opened = store_open(&store, peer, NULL, prompt, PROMPT, ends, 3);
	assert_int_equal(opened.shared, 3);
	made = store.world.regions_made;
	/* New segments go to new memory, although there is room between the old ones. */
	fill(&store, peer, 777);
	assert_int_equal(store.world.regions_made, made + 1);
	assert_int_equal(store.world.regions_live, 2);
	assert_sound(&store);
	kvs_sequence_close(store.engine, peer, opened.sequence, 0);
	kvs_peer_remove(store.engine, peer, 1);
	/* With its last segment the old memory goes at once. */
	kvs_engine_evict(store.engine);
	assert_int_equal(store.world.regions_live, 0);
	assert_sound(&store);
	store_stop(&store);
}

/* How much of a prompt is stored, in segments. */
static uint32_t shared_of(struct store *store, uint32_t peer, uint32_t first)
{
	struct kvs_open_result opened;
	uint32_t prompt[PROMPT];

	numbers(prompt, PROMPT, first);
	opened = store_open(store, peer, NULL, prompt, PROMPT, ends, 3);
	assert_ok(kvs_sequence_close(store->engine, peer, opened.sequence, 0));
	return opened.shared;
}

/* Whatever the variant, what was used longest ago goes first. */
static void check_order(enum kvs_eviction eviction)
{
	const struct kvs_evict_request one = {.bytes = 1};
	const struct kvs_options options = {.memory = STORE_MEMORY,
	    .max_sequences = 64,
	    .max_segments = 512,
	    .max_peers = 16,
	    .eviction = eviction};
	struct copies copies;
	uint64_t ids[SAVED] = {0};
	struct store store;
	uint32_t peer;

	save(3, &copies);
	store_start(&store, &options);
	move_to(&copies, adopt(&store, REGION));
	for (uint32_t i = 0; i < copies.count; i++)
		assert_ok(restore(&store, &copies, i, ids));
	kvs_restore_end(store.engine);
	assert_sound(&store);
	for (uint32_t i = 0; i < 2; i++)
		assert_true(kvs_engine_evict_some(store.engine, &one) > 0);
	assert_sound(&store);
	peer = store_peer_of(&store, "b", "", 1);
	assert_int_equal(shared_of(&store, peer, 0), 3);
	assert_int_equal(shared_of(&store, peer, 200), 3);
	assert_int_equal(shared_of(&store, peer, 100), 1);
	store_stop(&store);
}

static void test_order(void **state)
{
	(void)state;
	check_order(KVS_EVICT_LRU);
	check_order(KVS_EVICT_S3FIFO);
}

static void refuse(struct copies *copies, const struct copies *right, enum kv_status status)
{
	struct store store;
	uint64_t ids[SAVED] = {0};
	uint32_t refused = 0;

	store_start(&store, NULL);
	move_to(copies, adopt(&store, REGION));
	for (uint32_t i = 0; i < copies->count; i++) {
		enum kv_status found = restore(&store, copies, i, ids);

		if (found == status) refused++;
		assert_true(found == status || found == KV_OK || found == KV_INVALID);
		assert_sound(&store);
	}
	assert_true(refused > 0);
	kvs_restore_end(store.engine);
	store_stop(&store);
	*copies = *right;
	for (uint32_t i = 0; i < copies->count; i++) {
		copies->list[i].saved.token_ids = copies->list[i].tokens;
		copies->list[i].saved.checksums = copies->list[i].checksums;
		copies->list[i].saved.units = copies->list[i].units;
	}
}

static void test_lies(void **state)
{
	struct copies right, copies;

	(void)state;
	save(2, &right);
	save(2, &copies);
	copies.list[1].units[0].offset = copies.list[0].units[0].offset;
	refuse(&copies, &right, KV_INVALID);
	copies.list[1].units[1].offset = REGION;
	refuse(&copies, &right, KV_INVALID);
	copies.list[1].units[1].offset = UINT64_MAX - 63;
	refuse(&copies, &right, KV_INVALID);
	copies.list[1].units[1].offset += 4;
	refuse(&copies, &right, KV_INVALID);
	copies.list[1].units[0].bytes *= 2;
	refuse(&copies, &right, KV_INVALID);
	copies.list[1].saved.parent = 99;
	refuse(&copies, &right, KV_INVALID);
	copies.list[1].saved.parent = 0;
	refuse(&copies, &right, KV_INVALID);
	copies.list[0].saved.start = 1;
	refuse(&copies, &right, KV_INVALID);
	copies.list[2].saved.kind = (enum kvw_segment_kind)7;
	refuse(&copies, &right, KV_INVALID);
	copies.list[2].saved.layers = 1;
	refuse(&copies, &right, KV_INVALID);
	copies.list[0].saved.layout.head_dim = 0;
	refuse(&copies, &right, KV_INVALID);
	copies.list[3].saved.layout.sinks = 1;
	refuse(&copies, &right, KV_REFUSED);
	copies.list[3] = copies.list[0];
	copies.list[3].saved.units = copies.list[3].units;
	refuse(&copies, &right, KV_INVALID);
}

static void test_memory_runs_out(void **state)
{
	struct copies copies;
	uint64_t ids[SAVED] = {0};
	struct store store;
	uint32_t fails = 0;

	(void)state;
	save(2, &copies);
	store_start(&store, NULL);
	move_to(&copies, adopt(&store, REGION));
	for (uint32_t i = 0; i < copies.count; i++) {
		for (uint64_t n = 1;; n++) {
			enum kv_status status;

			kv_allocator_fail_at(store.allocator, n);
			status = restore(&store, &copies, i, ids);
			kv_allocator_fail_at(store.allocator, 0);
			assert_sound(&store);
			if (status == KV_OK) break;
			assert_int_equal(status, KV_NO_MEMORY);
			fails++;
			/* Whoever checks what comes next still reads it. */
			assert_int_equal(store.world.regions_live, 1);
		}
	}
	assert_true(fails > 10);
	kvs_restore_end(store.engine);
	store_stop(&store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_found_again),
	    cmocka_unit_test(test_order),
	    cmocka_unit_test(test_lies),
	    cmocka_unit_test(test_memory_runs_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
