/* Every allocation of a script of operations fails once: the operation is refused, nothing has
 * changed for the worse, and the same operation succeeds when it is tried again. */
#include "tests/unit/kvstore/engine_fixture.h"

enum { LAST_STEP = 13 };

struct script {
	struct store store;
	uint32_t tokens[64];
	uint32_t peer, second;
	uint64_t sequence, other, fold[2], tail;
	struct kvs_resume_result resumed;
	bool reserved;
};

static const uint32_t ends[] = {16, 32, 40};

static enum kv_status add_peer(struct script *script, uint8_t model, uint32_t *peer)
{
	uint8_t model_id[KVW_MODEL_ID_BYTES] = {model};
	uint64_t epoch;

	return kvs_peer_add(script->store.engine,
	    &(struct kvs_peer_request){
	        .name = "w", .model_id = model_id, .model_name = "tiny", .layout = engine_world_layout},
	    peer, &epoch);
}

static enum kv_status open_one(struct script *script, const char *id, const uint32_t *cut_ends,
    uint32_t count, uint64_t *handle)
{
	struct kvs_cut cuts[4];
	struct kvs_open_result result;
	struct kvs_open_request request = {.sequence_id = id,
	    .prompt = script->tokens,
	    .prompt_tokens = cut_ends[count - 1],
	    .cuts = cuts,
	    .cut_count = count,
	    .parameters = "p",
	    .parameter_bytes = 1};

	for (uint32_t i = 0; i < count; i++)
		cuts[i] = (struct kvs_cut){cut_ends[i], i + 1 == count ? KVW_PLAIN : KVW_CLUSTERED};
	memcpy(request.policy_digest, store_policy, 32);
	KV_TRY(kvs_sequence_open(script->store.engine, script->peer, &request, &result));
	*handle = result.sequence;
	return KV_OK;
}

static enum kv_status fill(struct script *script)
{
	static uint64_t ids[3];
	static const struct kvs_new_segment shapes[] = {{0, 16, KVW_CLUSTERED, KVW_EXACT},
	    {16, 16, KVW_CLUSTERED, KVW_EXACT}, {32, 8, KVW_PLAIN, KVW_EXACT}};
	const uint32_t checksums[6] = {1, 2, 3, 4, 5, 6};
	struct kvs_commit_result result;
	const struct kvs_commit_request request = {.sequence = script->sequence,
	    .segment_ids = ids,
	    .segment_count = 3,
	    .checksums = checksums,
	    .checksum_count = 6};

	if (!script->reserved)
		return kvs_reserve(script->store.engine, script->peer, script->sequence, shapes, 3, ids);
	return kvs_commit_now(script->store.engine, script->peer, &request, &result);
}

static enum kv_status commit_fold(struct script *script)
{
	struct kvs_commit_result result;
	const struct kvs_commit_request request = {.sequence = script->sequence,
	    .segment_ids = script->fold,
	    .segment_count = 2,
	    .tokens = script->tokens + 32,
	    .token_count = 14,
	    .replaced_ids = &script->tail,
	    .replaced_count = 1};

	return kvs_commit_now(script->store.engine, script->peer, &request, &result);
}

static enum kv_status run_step(struct script *script, unsigned step)
{
	static const uint32_t other_ends[] = {12, 30, 38};
	static const struct kvs_new_segment fold[] = {
	    {32, 6, KVW_CLUSTERED, KVW_APPROXIMATE}, {38, 8, KVW_PLAIN, KVW_APPROXIMATE}};
	struct kvs_engine *engine = script->store.engine;
	uint32_t third;

	switch (step) {
	case 0:
		return add_peer(script, 1, &script->peer);
	case 1:
		return open_one(script, "s", ends, 3, &script->sequence);
	case 2:
		script->reserved = false;
		return fill(script);
	case 3:
		script->reserved = true;
		return fill(script);
	case 4:
		return open_one(script, "t", other_ends, 3, &script->other);
	case 5:
		return kvs_sequence_push(
		    engine, script->peer, script->sequence, 0, script->tokens + 40, 6, "rng", 3);
	case 6:
		script->tail = store_entry(&script->store, script->sequence, 2);
		return kvs_reserve(engine, script->peer, script->sequence, fold, 2, script->fold);
	case 7:
		return commit_fold(script);
	case 8:
		return commit_fold(script); /* the repeated one */
	case 9:
		return open_one(script, "u", ends, 3, &script->other);
	case 10:
		return add_peer(script, 2, &third);
	case 11:
		kvs_peer_remove(engine, script->peer, 0);
		return add_peer(script, 1, &script->second);
	case 12:
		return kvs_sequence_resume(engine, script->second, "s", store_policy, &script->resumed);
	default:
		return kvs_sequence_close(engine, script->second, script->resumed.sequence, 0);
	}
}

static void start(struct script *script)
{
	memset(script, 0, sizeof *script);
	store_start(&script->store, NULL);
	numbers(script->tokens, 64, 1000);
}

static void test_every_step_survives(void **state)
{
	unsigned failures = 0;

	(void)state;
	for (unsigned step = 0; step <= LAST_STEP; step++) {
		for (uint64_t n = 1;; n++) {
			struct script script;
			struct kvs_statistics before, after;
			enum kv_status status;

			start(&script);
			for (unsigned i = 0; i < step; i++)
				assert_ok(run_step(&script, i));
			before = store_statistics(&script.store);
			kv_allocator_fail_at(script.store.allocator, n);
			status = run_step(&script, step);
			kv_allocator_fail_at(script.store.allocator, 0);
			assert_sound(&script.store);
			if (status != KV_OK) {
				failures++;
				assert_int_equal(status, KV_NO_MEMORY);
				after = store_statistics(&script.store);
				assert_int_equal(before.reserved_bytes, after.reserved_bytes);
				assert_true(before.references >= after.references);
				assert_int_equal(before.segments_committed, after.segments_committed);
				assert_int_equal(before.commits, after.commits);
				assert_ok(run_step(&script, step));
			}
			for (unsigned i = step + 1; i <= LAST_STEP; i++)
				assert_ok(run_step(&script, i));
			assert_int_equal(script.resumed.segments, 4);
			assert_int_equal(script.resumed.decoded_tokens, 6);
			store_stop(&script.store);
			if (status == KV_OK) break;
		}
	}
	assert_true(failures > 30);
}

static void test_creation(void **state)
{
	const struct kvs_options options = {
	    .memory = 4096, .max_segments = 16, .max_sequences = 16, .max_peers = 4};
	enum kv_status status = KV_NO_MEMORY;
	unsigned failures = 0;

	(void)state;
	for (uint64_t n = 1; status != KV_OK; n++) {
		struct kv_allocator *allocator = kv_allocator_create("creation", 0);
		struct store store = {0};
		struct kvs_environment environment = store_environment(&store);
		struct kvs_engine *engine = NULL;

		kv_allocator_fail_at(allocator, n);
		status = kvs_engine_create(allocator, &options, &environment, &engine);
		kv_allocator_fail_at(allocator, 0);
		assert_true(status == KV_OK || (status == KV_NO_MEMORY && !engine));
		failures += status != KV_OK;
		kvs_engine_destroy(engine);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
		kv_allocator_destroy(allocator);
	}
	assert_true(failures >= 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_every_step_survives),
	    cmocka_unit_test(test_creation),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
