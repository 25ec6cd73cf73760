#include "tests/unit/kvstore/engine_fixture.h"

static const uint32_t ends[] = {16, 32, 40};
static uint32_t tokens[256];

static uint32_t start(struct store *store, const struct kvs_options *options)
{
	store_start(store, options);
	numbers(tokens, 256, 1000);
	return store_peer(store, "first");
}

static enum kv_status open_with(
    struct store *store, uint32_t peer, const struct kvs_open_request *request)
{
	struct kvs_open_result result;

	return kvs_sequence_open(store->engine, peer, request, &result);
}

static enum kv_status resume(
    struct store *store, uint32_t peer, const char *id, struct kvs_resume_result *result)
{
	return kvs_sequence_resume(store->engine, peer, id, store_policy, result);
}

static void test_ids(void **state)
{
	static const char *const bad[] = {"a b", "a/b", "\xc3\xa4", "a\n",
	    "1234567890123456789012345678901234567890123456789012345678901234"};
	static const char longest[] = "123456789012345678901234567890123456789012345678901234567890123";
	struct kvs_open_request request = {.prompt = tokens, .prompt_tokens = 4};
	struct kvs_open_result one, two;
	struct store store;
	uint32_t peer = start(&store, NULL), other;

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		request.sequence_id = bad[i];
		assert_fails(open_with(&store, peer, &request), KV_INVALID, "sequence id");
	}
	request.sequence_id = longest;
	assert_ok(open_with(&store, peer, &request));
	assert_fails(open_with(&store, peer, &request), KV_EXISTS, "is held by first");
	request.sequence_id = "A-z.0_9:x";
	assert_ok(open_with(&store, peer, &request));
	one = store_open(&store, peer, NULL, tokens, 4, NULL, 0);
	two = store_open(&store, peer, "", tokens, 4, NULL, 0);
	assert_string_not_equal(one.sequence_id, two.sequence_id);
	assert_int_equal(strlen(one.sequence_id), 32);
	/* Another tenant has its own ids. */
	other = store_peer_of(&store, "t", "tenant", 1);
	assert_ok(open_with(&store, other, &request));
	assert_fails(
	    kvs_sequence_close(store.engine, other, one.sequence, 0), KV_NOT_FOUND, "no sequence");
	store_stop(&store);
}

static void test_open_refusals(void **state)
{
	static uint8_t parameters[KVS_MAX_PARAMETER_BYTES + 1];
	const struct kvs_options options = {
	    .memory = STORE_MEMORY, .max_sequences = 2, .max_segments = 64, .max_tokens = 100};
	struct kvs_cut cuts[] = {{4, KVW_PLAIN}, {4, KVW_PLAIN}};
	struct kvs_open_request request = {.prompt = tokens, .prompt_tokens = 0};
	struct store store;
	uint32_t peer = start(&store, &options);

	(void)state;
	assert_fails(open_with(&store, peer, &request), KV_INVALID, "prompt of 0 tokens");
	request.prompt_tokens = KVW_MAX_SEQUENCE_TOKENS + 1;
	assert_fails(open_with(&store, peer, &request), KV_INVALID, "1048577");
	request.prompt_tokens = 101;
	assert_fails(open_with(&store, peer, &request), KV_LIMIT, "the limit is 100");
	request.prompt_tokens = 8;
	request.cuts = cuts;
	request.cut_count = 2;
	assert_fails(open_with(&store, peer, &request), KV_INVALID, "cut 1 ends at 4");
	cuts[1].end = 7;
	assert_fails(open_with(&store, peer, &request), KV_INVALID, "last cut ends at 7");
	cuts[1] = (struct kvs_cut){8, (enum kvw_segment_kind)5};
	assert_fails(open_with(&store, peer, &request), KV_INVALID, "kind 5");
	request.cut_count = 5000;
	assert_fails(open_with(&store, peer, &request), KV_LIMIT, "5000 cuts");
	request.cut_count = 0;
	request.parameters = parameters;
	request.parameter_bytes = sizeof parameters;
	assert_fails(open_with(&store, peer, &request), KV_LIMIT, "16385");
	request.parameter_bytes--;
	assert_ok(open_with(&store, peer, &request));
	assert_ok(open_with(&store, peer, &request));
	assert_fails(open_with(&store, peer, &request), KV_LIMIT, "2 sequences are open");
	assert_fails(open_with(&store, 5, &request), KV_NOT_FOUND, "peer 5");
	assert_int_equal(store_statistics(&store).sequences_opened, 2);
	store_stop(&store);
}

static void test_resume(void **state)
{
	static const char parameters[] = "{\"temperature\": 0.5}";
	const struct kvs_cut cuts[] = {{16, KVW_CLUSTERED}, {32, KVW_CLUSTERED}, {40, KVW_PLAIN}};
	struct kvs_open_request request = {.sequence_id = "s",
	    .prompt = tokens,
	    .prompt_tokens = 40,
	    .cuts = cuts,
	    .cut_count = 3,
	    .parameters = parameters,
	    .parameter_bytes = sizeof parameters};
	uint8_t policy[32] = {1};
	struct kvs_resume_result resumed;
	struct kvs_open_result opened;
	struct store store;
	uint32_t first = start(&store, NULL), second, third;

	(void)state;
	memcpy(request.policy_digest, store_policy, 32);
	assert_ok(kvs_sequence_open(store.engine, first, &request, &opened));
	store_fill(&store, first, opened.sequence, ends, 3);
	assert_ok(kvs_sequence_push(store.engine, first, opened.sequence, 0, tokens + 40, 5, "rng", 3));
	second = store_peer(&store, "second");
	assert_fails(resume(&store, second, "s", &resumed), KV_BUSY, "held by first");
	assert_fails(resume(&store, second, "t", &resumed), KV_NOT_FOUND, "sequence t");
	kvs_peer_remove(store.engine, first, 1);
	assert_sound(&store);
	assert_int_equal(store_statistics(&store).sequences_orphaned, 1);
	assert_fails(
	    kvs_sequence_resume(store.engine, second, "s", policy, &resumed), KV_REFUSED, "policy");
	third = store_peer_of(&store, "third", "", 2);
	assert_fails(resume(&store, third, "s", &resumed), KV_REFUSED, "is of model tiny");
	assert_ok(resume(&store, second, "s", &resumed));
	assert_sound(&store);
	assert_int_not_equal(resumed.sequence, opened.sequence);
	assert_int_equal(resumed.segments, 3);
	assert_int_equal(resumed.prompt_tokens, 40);
	assert_int_equal(resumed.decoded_tokens, 5);
	assert_memory_equal(resumed.prompt, tokens, 40 * sizeof *tokens);
	assert_memory_equal(resumed.decoded, tokens + 40, 5 * sizeof *tokens);
	assert_int_equal(resumed.sampler_bytes, 3);
	assert_memory_equal(resumed.sampler_state, "rng", 3);
	assert_int_equal(resumed.parameter_bytes, sizeof parameters);
	assert_memory_equal(resumed.parameters, parameters, sizeof parameters);
	assert_int_equal(store_statistics(&store).sequences_resumed, 1);
	assert_int_equal(store_statistics(&store).references, 3);
	/* Kept on close, it can be resumed again, also by the same peer. */
	assert_ok(kvs_sequence_close(store.engine, second, resumed.sequence, 1));
	assert_ok(resume(&store, second, "s", &resumed));
	assert_ok(kvs_sequence_close(store.engine, second, resumed.sequence, 0));
	assert_fails(resume(&store, second, "s", &resumed), KV_NOT_FOUND, "sequence s");
	store_stop(&store);
}

static void test_expiry(void **state)
{
	struct kvs_resume_result resumed;
	struct kvs_open_result opened;
	struct store store;
	uint32_t peer = start(&store, NULL);
	uint64_t epoch = store_epoch(&store, peer);

	(void)state;
	opened = store_open(&store, peer, "s", tokens, 40, ends, 3);
	assert_ok(kvs_sequence_close(store.engine, peer, opened.sequence, 1));
	for (unsigned i = 0; i < 599; i++) {
		store.world.now += 1000;
		assert_ok(kvs_peer_heartbeat(store.engine, peer, epoch));
		kvs_engine_tick(store.engine);
	}
	assert_int_equal(store_statistics(&store).sequences_orphaned, 1);
	store.world.now += 1000;
	kvs_engine_tick(store.engine);
	assert_int_equal(store_statistics(&store).sequences_orphaned, 0);
	assert_int_equal(store_statistics(&store).orphan_expiries, 1);
	assert_fails(resume(&store, peer, "s", &resumed), KV_NOT_FOUND, "expired");
	store_stop(&store);
}

static void test_resume_after_eviction(void **state)
{
	struct kvs_resume_result resumed;
	struct kvs_open_result opened;
	struct store store;
	uint32_t peer = start(&store, NULL);
	uint64_t fold, first;

	(void)state;
	opened = store_open(&store, peer, "s", tokens, 40, ends, 3);
	store_fill(&store, peer, opened.sequence, ends, 3);
	assert_ok(kvs_sequence_push(store.engine, peer, opened.sequence, 0, tokens + 40, 8, NULL, 0));
	fold = store_reserve(&store, peer, opened.sequence, 40, 8, KVW_PLAIN, KVW_APPROXIMATE);
	assert_ok(store_commit(&store, peer, opened.sequence, &fold, 1, tokens + 40, 8, NULL, 0));
	first = store_entry(&store, opened.sequence, 0);
	assert_ok(kvs_sequence_close(store.engine, peer, opened.sequence, 1));
	/* Another sequence keeps the first entry; everything else goes. */
	opened = store_open(&store, peer, "t", tokens, 16, ends, 1);
	assert_int_equal(opened.pieces, 1);
	kvs_engine_evict(store.engine);
	assert_sound(&store);
	assert_true(store_has(&store, first));
	assert_false(store_has(&store, fold));
	assert_ok(resume(&store, peer, "s", &resumed));
	assert_sound(&store);
	assert_int_equal(resumed.segments, 1);
	assert_int_equal(resumed.decoded_tokens, 8);
	store_stop(&store);
}

static void test_resume_stops_at_unpushed_tokens(void **state)
{
	struct kvs_resume_result resumed;
	struct kvs_open_result opened;
	struct store store;
	uint32_t peer = start(&store, NULL);
	uint64_t fold[2];

	(void)state;
	opened = store_open(&store, peer, "s", tokens, 40, ends, 3);
	store_fill(&store, peer, opened.sequence, ends, 3);
	assert_ok(kvs_sequence_push(store.engine, peer, opened.sequence, 0, tokens + 40, 7, "x", 1));
	fold[0] = store_reserve(&store, peer, opened.sequence, 40, 4, KVW_PLAIN, KVW_APPROXIMATE);
	fold[1] = store_reserve(&store, peer, opened.sequence, 44, 4, KVW_PLAIN, KVW_APPROXIMATE);
	assert_ok(store_commit(&store, peer, opened.sequence, fold, 2, tokens + 40, 8, NULL, 0));
	assert_ok(kvs_sequence_close(store.engine, peer, opened.sequence, 1));
	assert_ok(resume(&store, peer, "s", &resumed));
	assert_int_equal(resumed.segments, 4);
	assert_int_equal(resumed.decoded_tokens, 7);
	/* What the sampler's state does not reach is gone with the list entry. */
	assert_false(store_has(&store, fold[1]));
	assert_sound(&store);
	store_stop(&store);
}

static void test_resume_without_any_push(void **state)
{
	struct kvs_resume_result resumed;
	struct kvs_open_result opened;
	struct store store;
	uint32_t peer = start(&store, NULL);
	uint64_t fold;

	(void)state;
	opened = store_open(&store, peer, "s", tokens, 40, ends, 3);
	store_fill(&store, peer, opened.sequence, ends, 3);
	fold = store_reserve(&store, peer, opened.sequence, 40, 200, KVW_PLAIN, KVW_APPROXIMATE);
	assert_ok(store_commit(&store, peer, opened.sequence, &fold, 1, tokens + 40, 200, NULL, 0));
	assert_ok(kvs_sequence_close(store.engine, peer, opened.sequence, 1));
	assert_ok(resume(&store, peer, "s", &resumed));
	assert_int_equal(resumed.segments, 3);
	store_stop(&store);
}

/* What is a sequence's own goes with the worker that had it; what stands before it stays. */
static void test_own_segments_are_not_resumed(void **state)
{
	struct kvs_resume_result resumed;
	struct kvs_open_result opened;
	struct kvs_commit_result result;
	struct store store;
	uint32_t peer = start(&store, NULL);
	uint64_t folds[2];
	struct kvs_commit_request own = {
	    .segment_ids = &folds[1], .segment_count = 1, .tokens = tokens + 44, .token_count = 4};

	(void)state;
	opened = store_open(&store, peer, "s", tokens, 40, ends, 3);
	store_fill(&store, peer, opened.sequence, ends, 3);
	assert_ok(kvs_sequence_push(store.engine, peer, opened.sequence, 0, tokens + 40, 8, NULL, 0));
	folds[0] = store_reserve(&store, peer, opened.sequence, 40, 4, KVW_PLAIN, KVW_APPROXIMATE);
	assert_ok(store_commit(&store, peer, opened.sequence, folds, 1, tokens + 40, 4, NULL, 0));
	folds[1] = store_reserve(&store, peer, opened.sequence, 44, 4, KVW_PLAIN, KVW_APPROXIMATE);
	own.sequence = opened.sequence;
	own.own_only = 1;
	assert_ok(kvs_commit_now(store.engine, peer, &own, &result));
	assert_int_equal(store_entry(&store, opened.sequence, 4), folds[1]);
	assert_ok(kvs_sequence_close(store.engine, peer, opened.sequence, 1));
	assert_sound(&store);
	assert_true(store_has(&store, folds[0]));
	assert_false(store_has(&store, folds[1]));
	assert_ok(resume(&store, peer, "s", &resumed));
	assert_int_equal(resumed.segments, 4);
	assert_int_equal(resumed.decoded_tokens, 8);
	assert_sound(&store);
	store_stop(&store);
}

static void test_reopening_drops_the_orphan(void **state)
{
	struct kvs_open_result opened;
	struct store store;
	uint32_t peer = start(&store, NULL);
	uint64_t fold;

	(void)state;
	opened = store_open(&store, peer, "s", tokens, 40, ends, 3);
	store_fill(&store, peer, opened.sequence, ends, 3);
	fold = store_reserve(&store, peer, opened.sequence, 40, 8, KVW_PLAIN, KVW_APPROXIMATE);
	assert_ok(store_commit(&store, peer, opened.sequence, &fold, 1, tokens + 40, 8, NULL, 0));
	assert_ok(kvs_sequence_close(store.engine, peer, opened.sequence, 1));
	assert_true(store_has(&store, fold));
	opened = store_open(&store, peer, "s", tokens, 40, ends, 3);
	assert_false(store_has(&store, fold)); /* nobody else can find it */
	assert_int_equal(opened.shared, 3);
	assert_int_equal(store_statistics(&store).sequences_orphaned, 0);
	assert_int_equal(store_statistics(&store).sequences_active, 1);
	store_stop(&store);
}

static void test_oldest_orphan_makes_room(void **state)
{
	const struct kvs_options options = {
	    .memory = STORE_MEMORY, .max_sequences = 3, .max_segments = 64, .max_tokens = 150};
	struct kvs_resume_result resumed;
	struct kvs_open_result opened;
	struct store store;
	uint32_t peer = start(&store, &options);
	char id[2] = "a";

	(void)state;
	for (; id[0] <= 'd'; id[0]++) {
		opened = store_open(&store, peer, id, tokens, 40, NULL, 0);
		store.world.now++;
		assert_ok(kvs_sequence_close(store.engine, peer, opened.sequence, 1));
	}
	assert_int_equal(store_statistics(&store).orphans_dropped, 1);
	assert_fails(resume(&store, peer, "a", &resumed), KV_NOT_FOUND, "sequence a");
	/* Also when there are too many token ids: three times 40 of 150 are held. */
	opened = store_open(&store, peer, "e", tokens, 100, NULL, 0);
	assert_int_equal(store_statistics(&store).orphans_dropped, 3);
	assert_fails(resume(&store, peer, "c", &resumed), KV_NOT_FOUND, "sequence c");
	assert_ok(resume(&store, peer, "d", &resumed));
	assert_fails(kvs_sequence_push(store.engine, peer, opened.sequence, 0, tokens, 11, NULL, 0),
	    KV_LIMIT, "11 token ids are asked for, 140 are held");
	store_stop(&store);
}

static enum kv_status push(struct store *store, uint32_t peer, uint64_t sequence, uint32_t before,
    const uint32_t *values, uint32_t count, const char *sampler)
{
	return kvs_sequence_push(
	    store->engine, peer, sequence, before, values, count, sampler, strlen(sampler));
}

static void test_push(void **state)
{
	static char huge[KVS_MAX_SAMPLER_BYTES + 2];
	struct kvs_resume_result resumed;
	struct kvs_open_result opened;
	struct store store;
	uint32_t peer = start(&store, NULL);
	uint64_t s;

	(void)state;
	opened = store_open(&store, peer, "s", tokens, 40, NULL, 0);
	s = opened.sequence;
	assert_fails(push(&store, peer, s, 1, tokens, 1, ""), KV_INVALID, "only 0 are known");
	assert_ok(push(&store, peer, s, 0, tokens, 3, "one"));
	assert_ok(push(&store, peer, s, 0, tokens, 3, "one"));
	assert_ok(push(&store, peer, s, 2, tokens + 2, 4, "two"));
	assert_ok(push(&store, peer, s, 0, tokens, 2, "old")); /* late: changes nothing */
	assert_fails(push(&store, peer, s, 5, tokens, 2, ""), KV_INVALID, "decoded token 5 is pushed");
	assert_ok(push(&store, peer, s, 6, tokens + 6, 200, "three"));
	assert_ok(push(&store, peer, s, 206, NULL, 0, "after")); /* only the sampler went on */
	memset(huge, 'x', sizeof huge - 1);
	assert_fails(push(&store, peer, s, 206, tokens, 1, huge), KV_LIMIT, "4097");
	assert_fails(
	    kvs_sequence_push(store.engine, peer, s, 206, tokens, KVW_MAX_SEQUENCE_TOKENS, NULL, 0),
	    KV_LIMIT, "1048576 together");
	assert_fails(push(&store, peer, s + 1, 0, tokens, 1, ""), KV_NOT_FOUND, "no sequence");
	assert_sound(&store);
	assert_ok(kvs_sequence_close(store.engine, peer, s, 1));
	assert_fails(push(&store, peer, s, 206, tokens, 1, ""), KV_NOT_FOUND, "no sequence");
	assert_ok(resume(&store, peer, "s", &resumed));
	assert_int_equal(resumed.decoded_tokens, 206);
	assert_memory_equal(resumed.decoded, tokens, 206 * sizeof *tokens);
	assert_int_equal(resumed.sampler_bytes, 5);
	assert_memory_equal(resumed.sampler_state, "after", 5);
	store_stop(&store);
}

static void test_accessors(void **state)
{
	struct kvs_segment_view view;
	struct kvs_open_result opened;
	struct store store;
	uint32_t peer = start(&store, NULL), count;

	(void)state;
	opened = store_open(&store, peer, "s", tokens, 40, ends, 3);
	store_fill(&store, peer, opened.sequence, ends, 3);
	assert_ok(kvs_sequence_length(store.engine, opened.sequence, &count));
	assert_int_equal(count, 3);
	assert_ok(kvs_sequence_segment(store.engine, opened.sequence, 1, &view));
	assert_int_equal(view.start, 16);
	assert_int_equal(view.tokens, 16);
	assert_int_equal(view.layers, 2);
	assert_int_equal(view.kind, KVW_CLUSTERED);
	assert_true(view.committed);
	assert_null(view.checksums);
	assert_memory_equal(view.token_ids, tokens + 16, 64);
	assert_fails(
	    kvs_sequence_segment(store.engine, opened.sequence, 3, &view), KV_NOT_FOUND, "has 3");
	assert_fails(
	    kvs_sequence_piece(store.engine, opened.sequence, 0, &view, &count), KV_NOT_FOUND, "has 0");
	assert_fails(kvs_sequence_length(store.engine, 99, &count), KV_NOT_FOUND, "sequence 99");
	assert_fails(kvs_segment_find(store.engine, 99, &view), KV_NOT_FOUND, "segment 99");
	store_stop(&store);
}

/* One answer tells of so many segments: more are left out, whether they are a list or pieces. */
static void test_more_than_one_answer_holds(void **state)
{
	enum { LIMIT = KVS_MAX_COMMIT_SEGMENTS, MANY = LIMIT + 4 };
	static uint32_t prompt[MANY];
	static uint64_t ids[MANY];
	static struct kvs_new_segment shapes[MANY];
	const struct kvs_options options = {.memory = 16 << 20, .max_segments = 2 * LIMIT};
	const uint32_t end = MANY;
	struct kvs_resume_result resumed;
	struct kvs_open_result opened;
	struct store store;
	uint32_t peer = start(&store, &options);

	(void)state;
	numbers(prompt, MANY, 7);
	for (uint32_t i = 0; i < MANY; i++)
		shapes[i] = (struct kvs_new_segment){
		    .start = i, .tokens = 1, .kind = KVW_PLAIN, .provenance = KVW_EXACT};
	opened = store_open(&store, peer, "long", prompt, MANY, NULL, 0);
	for (uint32_t at = 0; at < MANY; at += LIMIT) {
		uint32_t count = MANY - at < LIMIT ? MANY - at : LIMIT;

		assert_ok(kvs_reserve(store.engine, peer, opened.sequence, shapes + at, count, ids + at));
		assert_ok(store_commit(&store, peer, opened.sequence, ids + at, count, NULL, 0, NULL, 0));
	}
	assert_ok(kvs_sequence_close(store.engine, peer, opened.sequence, 1));
	opened = store_open(&store, peer, "other", prompt, MANY, &end, 1);
	assert_int_equal(opened.shared, 0);
	assert_int_equal(opened.pieces, LIMIT);
	assert_sound(&store);
	assert_ok(resume(&store, peer, "long", &resumed));
	assert_int_equal(resumed.segments, LIMIT);
	assert_sound(&store);
	store_stop(&store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_ids),
	    cmocka_unit_test(test_open_refusals),
	    cmocka_unit_test(test_resume),
	    cmocka_unit_test(test_expiry),
	    cmocka_unit_test(test_resume_after_eviction),
	    cmocka_unit_test(test_resume_stops_at_unpushed_tokens),
	    cmocka_unit_test(test_resume_without_any_push),
	    cmocka_unit_test(test_own_segments_are_not_resumed),
	    cmocka_unit_test(test_reopening_drops_the_orphan),
	    cmocka_unit_test(test_oldest_orphan_makes_room),
	    cmocka_unit_test(test_push),
	    cmocka_unit_test(test_accessors),
	    cmocka_unit_test(test_more_than_one_answer_holds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
