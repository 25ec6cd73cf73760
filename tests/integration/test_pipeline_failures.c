/* What goes wrong in the data path concerns one request: it is said clearly, nothing leaks, and the
 * next request and the neighbours do not notice. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/pipeline_check.h"
#include "tests/lib/pipeline_fixture.h"

static const char *model_name = "tiny_llama";

enum { MOST = 1100 };

static void assert_says(const char *words)
{
	if (strstr(kv_error_message(), words) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", kv_error_message(), words);
}

static enum kv_status try_open(
    struct gw_pipeline *pipeline, const int32_t *ids, uint32_t count, uint32_t room)
{
	struct gw_sequence_request request = {.tokens = ids, .token_count = count, .max_tokens = room};
	struct gw_sequence *sequence = NULL;
	enum kv_status status = gw_sequence_open(pipeline, &request, &sequence);

	assert_int_equal(status != KV_OK, sequence == NULL);
	gw_sequence_close(sequence, 0);
	return status;
}

static void requests_out_of_range_are_refused(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	int32_t ids[80];
	float logits[8];
	enum kv_status failures[8];

	(void)state;
	kvt_worker_open(&worker, "tiny_tiny", 1); /* a context of 64 tokens */
	worker.options.policy.window = 8;
	worker.options.policy.dense_layers = 0;
	kvt_make_prompt(&worker, 1, ids, 80);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	assert_int_equal(try_open(pipeline, ids, 0, 5), KV_INVALID);
	assert_says("empty");
	assert_int_equal(try_open(pipeline, ids, 65, 0), KV_LIMIT);
	assert_says("64");
	assert_int_equal(try_open(pipeline, ids, 60, 5), KV_LIMIT);
	assert_int_equal(try_open(pipeline, ids, 60, UINT32_MAX), KV_LIMIT);
	assert_int_equal(try_open(pipeline, ids, 64, 0), KV_OK);
	assert_int_equal(try_open(pipeline, ids, 60, 4), KV_OK);
	ids[9] = -1;
	assert_int_equal(try_open(pipeline, ids, 20, 4), KV_INVALID);
	assert_says("position 9");
	ids[9] = (int32_t)worker.shape->vocabulary;
	assert_int_equal(try_open(pipeline, ids, 20, 4), KV_INVALID);
	ids[9] = INT32_MAX;
	assert_int_equal(try_open(pipeline, ids, 20, 4), KV_INVALID);
	assert_int_equal(gw_run_token(pipeline, NULL, 0, logits, failures), KV_INVALID);
	assert_int_equal(gw_run_token(pipeline, NULL, 5, logits, failures), KV_INVALID);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

static void a_sequence_can_be_full(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk talk;
	int32_t ids[MOST];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = 100, .room = 3};

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	kvt_make_prompt(&worker, 1, ids, MOST);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	kvt_talk_run(&talk, pipeline, &question, 3);
	assert_int_equal(gw_sequence_accept(talk.sequence, -1, "", 0), KV_INVALID);
	assert_int_equal(
	    gw_sequence_accept(talk.sequence, (int32_t)talk.vocabulary, "", 0), KV_INVALID);
	assert_int_equal(gw_sequence_accept(talk.sequence, 7, "", 0), KV_OK);
	assert_int_equal(gw_sequence_accept(talk.sequence, 7, "", 0), KV_LIMIT);
	assert_says("full");
	kvt_talk_end(&talk);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

static void assert_no_pipeline(const struct gw_pipeline_options *options, const char *words)
{
	struct gw_pipeline *pipeline = NULL;

	assert_int_equal(gw_pipeline_create(options, &pipeline), KV_INVALID);
	assert_null(pipeline);
	assert_says(words);
}

static void options_out_of_range_are_refused(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline_options good, bad;

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	kvt_store_open(&worker, 0);
	good = bad = worker.options;
	bad.policy.name = "all";
	assert_no_pipeline(&bad, "clusterkv");
	bad = good;
	bad.store = NULL;
	assert_no_pipeline(&bad, "store");
	bad = good;
	bad.max_batch = 0;
	assert_no_pipeline(&bad, "--max-batch");
	bad.max_batch = KN_MAX_DECODE_ROWS + 1;
	assert_no_pipeline(&bad, "--max-batch");
	bad = good;
	bad.chunk = 0;
	assert_no_pipeline(&bad, "--chunk");
	bad = good;
	bad.cache_bytes = 1;
	assert_no_pipeline(&bad, "--cache");
	bad = good;
	bad.policy.segment = KVW_MAX_SEGMENT_TOKENS + 1;
	assert_no_pipeline(&bad, "--segment");
	bad = good;
	bad.policy.window = KVW_MAX_SEGMENT_TOKENS + 1;
	assert_no_pipeline(&bad, "--window");
	bad = good;
	bad.policy.fold = KVW_MAX_SEGMENT_TOKENS + 1;
	assert_no_pipeline(&bad, "--fold");
	kvt_worker_close(&worker);
}

/* Whoever cannot take part drops out; rows of the others' logits stay in their places. */
static void a_failed_sequence_leaves_its_batch_alone(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk talks[3], alone;
	struct gw_sequence *batch[3];
	enum kv_status failures[3] = {KV_OK, KV_OK, KV_OK};
	int32_t ids[3][MOST];
	uint32_t vocabulary;
	float *logits;

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	vocabulary = worker.shape->vocabulary;
	logits = kv_alloc_array_zero(kv_heap(), 3 * (size_t)vocabulary, sizeof *logits);
	assert_non_null(logits);
	for (uint32_t i = 0; i < 3; i++) {
		struct kvt_question question = {.prompt = ids[i], .prompt_tokens = 300 + 30 * i, .room = 8};

		kvt_make_prompt(&worker, 30 + i, ids[i], MOST);
		kvt_talk_begin(&talks[i], pipeline, &question);
		batch[i] = talks[i].sequence;
		/* The first has no token to run. */
		if (i == 0) continue;
		assert_int_equal(gw_sequence_accept(batch[i], talks[i].tokens[0], "", 0), KV_OK);
	}
	for (int round = 0; round < 2; round++) {
		assert_int_equal(gw_run_token(pipeline, batch, 3, logits, failures), KV_OK);
		assert_int_equal(failures[0], KV_INVALID);
		assert_true(strlen(gw_sequence_failure(batch[0])) > 0);
		for (uint32_t i = 1; i < 3; i++) {
			assert_int_equal(failures[i], KV_OK);
			memcpy(kvt_talk_logits(&talks[i], talks[i].count++), logits + i * vocabulary,
			    vocabulary * sizeof *logits);
			assert_int_equal(gw_sequence_accept(batch[i], 9, "", 0), KV_OK);
		}
	}
	for (uint32_t i = 1; i < 3; i++) {
		struct kvt_question question = talks[i].question;
		int32_t teacher[3] = {talks[i].tokens[0], 9, 9};

		question.teacher = teacher;
		kvt_talk_run(&alone, pipeline, &question, 3);
		talks[i].tokens[1] = talks[i].tokens[2] = 9;
		kvt_assert_same(&talks[i], &alone, 1, 2);
		kvt_talk_end(&alone);
	}
	for (uint32_t i = 0; i < 3; i++)
		kvt_talk_end(&talks[i]);
	kv_free(kv_heap(), logits);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

/* ---- a full store ---- */

static void a_full_store_is_said_and_survived(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct gw_sequence *sequence = NULL;
	struct kvt_talk talk, small;
	int32_t ids[MOST];
	struct gw_sequence_request large = {.tokens = ids, .token_count = 1000};
	struct kvt_question question = {.prompt = ids, .prompt_tokens = 200, .room = 350};
	enum kv_status failure = KV_OK;
	struct kvt_talk *batch[1] = {&talk};

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	kvt_make_prompt(&worker, 7, ids, MOST);
	/* A token takes 4 layers × 2 heads × 256 bytes, and some for clusters and positions. */
	kvt_store_open(&worker, (uint64_t)500 * 2400);
	pipeline = kvt_pipeline_open(&worker);
	kvt_talk_run(&small, pipeline, &question, 3);
	kvt_talk_close(&small, 0);
	assert_int_equal(gw_sequence_open(pipeline, &large, &sequence), KV_OK);
	assert_int_equal(gw_run_prompt(sequence, small.logits, NULL, NULL, NULL), KV_TOO_LARGE);
	assert_says("store is too small");
	assert_true(strlen(gw_sequence_failure(sequence)) > 20);
	gw_sequence_close(sequence, 0);
	/* What is smaller has room, until it grows. */
	kvt_talk_begin(&talk, pipeline, &question);
	while (talk.count < 340) {
		struct gw_sequence *sequences[1] = {talk.sequence};

		if (gw_fold_due(talk.sequence) && talk.count > 200) {
			assert_int_equal(gw_sequence_accept(talk.sequence, 5, "", 0), KV_OK);
			assert_int_equal(gw_run_token(pipeline, sequences, 1, small.logits, &failure), KV_OK);
			if (failure != KV_OK) break;
			memcpy(kvt_talk_logits(&talk, talk.count), small.logits, 4);
			talk.tokens[talk.count++] = 5;
			continue;
		}
		kvt_talk_step(batch, 1);
	}
	assert_int_equal(failure, KV_LIMIT);
	assert_non_null(strstr(gw_sequence_failure(talk.sequence), "full"));
	kvt_talk_end(&talk);
	kvt_talk_end(&small);
	kvt_talk_run(&small, pipeline, &question, 120);
	kvt_check_sequence(small.sequence);
	kvt_talk_end(&small);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

/* ---- a prompt that is given up, and one that others decode beside ---- */

struct watch {
	struct gw_sequence *sequence;
	struct kvt_talk *beside;
	uint64_t calls, last, total, cancel_at;
};

static void watch_progress(void *context, uint64_t done, uint64_t total)
{
	struct watch *watch = context;

	assert_true(done > watch->last && done <= total);
	if (watch->calls++ > 0) assert_true(watch->total == total);
	watch->last = done;
	watch->total = total;
	if (watch->calls == watch->cancel_at) gw_sequence_cancel(watch->sequence);
	if (watch->beside != NULL && watch->beside->count < 40) kvt_talk_step(&watch->beside, 1);
}

static void a_prompt_can_be_given_up(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk cold, after;
	int32_t ids[MOST];
	struct gw_sequence_request request = {.tokens = ids, .token_count = 600};
	struct kvt_question question = {.prompt = ids, .prompt_tokens = 600, .room = 5};

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	kvt_make_prompt(&worker, 8, ids, MOST);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	kvt_talk_run(&cold, pipeline, &question, 5);
	kvt_talk_close(&cold, 0);
	gw_pipeline_destroy(pipeline);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	for (uint64_t at = 1; at <= 40; at += 3) {
		struct watch watch = {.cancel_at = at};

		assert_int_equal(gw_sequence_open(pipeline, &request, &watch.sequence), KV_OK);
		assert_int_equal(gw_sequence_prefix_hit(watch.sequence), 0);
		assert_int_equal(gw_run_prompt(watch.sequence, cold.logits + 4 * cold.vocabulary, NULL,
		                     watch_progress, &watch),
		    KV_CANCELLED);
		assert_int_equal(watch.calls, at);
		assert_true(watch.total == 600 * worker.shape->layers);
		gw_sequence_close(watch.sequence, 0);
	}
	kvt_talk_run(&after, pipeline, &question, 5);
	kvt_assert_same(&cold, &after, 0, 4);
	kvt_check_sequence(after.sequence);
	kvt_talk_end(&cold);
	kvt_talk_end(&after);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

static void a_prompt_and_a_decoder_do_not_notice_each_other(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk prompt, decoder, both;
	int32_t ids[2][MOST];
	struct kvt_question one = {.prompt = ids[0], .prompt_tokens = 700, .room = 4};
	struct kvt_question two = {.prompt = ids[1], .prompt_tokens = 400, .room = 60};
	struct gw_sequence_request request = {.tokens = ids[0], .token_count = 700, .max_tokens = 4};
	struct watch watch = {.beside = &both};
	float *logits;

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	worker.options.policy.fold = 10; /* folds happen within the prompt too */
	kvt_make_prompt(&worker, 9, ids[0], MOST);
	kvt_make_prompt(&worker, 10, ids[1], MOST);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	kvt_talk_run(&prompt, pipeline, &one, 1);
	kvt_talk_run(&decoder, pipeline, &two, 40);
	kvt_talk_close(&prompt, 0);
	kvt_talk_close(&decoder, 0);
	gw_pipeline_destroy(pipeline);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	logits = kv_alloc_array(kv_heap(), worker.shape->vocabulary, sizeof *logits);
	assert_non_null(logits);
	kvt_talk_begin(&both, pipeline, &two);
	assert_int_equal(gw_sequence_open(pipeline, &request, &watch.sequence), KV_OK);
	assert_int_equal(gw_run_prompt(watch.sequence, logits, NULL, watch_progress, &watch), KV_OK);
	assert_int_equal(both.count, 40);
	assert_memory_equal(logits, prompt.logits, worker.shape->vocabulary * sizeof *logits);
	kvt_assert_same(&decoder, &both, 0, 40);
	kvt_check_sequence(watch.sequence);
	kvt_check_sequence(both.sequence);
	gw_sequence_close(watch.sequence, 0);
	kv_free(kv_heap(), logits);
	kvt_talk_end(&prompt);
	kvt_talk_end(&decoder);
	kvt_talk_end(&both);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

/* ---- another life of the store ---- */

static void another_generation_empties_the_cache(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk before, after, *batch[1] = {&after};
	int32_t ids[MOST];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = 600, .room = 40};
	struct gw_cache_stats stats[3];

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	kvt_make_prompt(&worker, 11, ids, MOST);
	kvt_store_open(&worker, 0);
	worker.options.cache_bytes = 16 << 20;
	pipeline = kvt_pipeline_open(&worker);
	kvt_talk_run(&before, pipeline, &question, 30);
	kvt_talk_run(&after, pipeline, &question, 29);
	stats[0] = gw_pipeline_cache_stats(pipeline);
	/* As if what is cached had come from a store that is gone. */
	pipeline->generation++;
	kvt_talk_step(batch, 1);
	stats[1] = gw_pipeline_cache_stats(pipeline);
	kvt_assert_same(&before, &after, 1, 29);
	assert_int_equal(stats[1].hit_bytes, stats[0].hit_bytes);
	assert_true(stats[1].miss_bytes > stats[0].miss_bytes);
	assert_true(stats[1].used_bytes < stats[0].used_bytes);
	kvt_talk_step(batch, 1);
	stats[2] = gw_pipeline_cache_stats(pipeline);
	assert_true(stats[2].hit_bytes > stats[1].hit_bytes);
	kvt_talk_end(&before);
	kvt_talk_end(&after);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

/* ---- no memory ---- */

enum { WALK_PROMPT = 150, WALK_STEPS = 5, OF_THE_STORE = 1 };

struct walk {
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk expected;
	int32_t ids[WALK_PROMPT];
	float *logits;
	int resume; /* fail from the resume on, not from the start */
};

static enum kv_status steps(struct walk *walk, struct gw_sequence *sequence, uint32_t first)
{
	for (uint32_t i = first; i < WALK_STEPS; i++) {
		struct gw_sequence *batch[1] = {sequence};
		enum kv_status failure = KV_OK;

		KV_TRY(gw_sequence_accept(sequence, walk->expected.tokens[i], "state", 6));
		KV_TRY(gw_run_token(walk->pipeline, batch, 1, walk->logits, &failure));
		KV_TRY(failure);
	}
	return KV_OK;
}

static enum kv_status whole_run(struct walk *walk)
{
	struct gw_sequence_request request = {
	    .tokens = walk->ids, .token_count = WALK_PROMPT, .max_tokens = WALK_STEPS};
	struct gw_sequence *sequence = NULL;
	enum kv_status status = gw_sequence_open(walk->pipeline, &request, &sequence);

	if (status == KV_OK) status = gw_run_prompt(sequence, walk->logits, NULL, NULL, NULL);
	if (status == KV_OK) status = steps(walk, sequence, 0);
	if (status == KV_OK) kvt_check_sequence(sequence);
	gw_sequence_close(sequence, 0);
	return status;
}

/* The first steps were run and kept as "kept"; go on with it. */
static enum kv_status resumed_run(struct walk *walk)
{
	struct kvc_resume_state found = {0};
	struct gw_sequence *sequence = NULL;
	enum kv_status status = gw_sequence_resume(walk->pipeline, "kept", 0, &sequence, &found);

	if (status == KV_OK) status = gw_sequence_replay(sequence, walk->logits, NULL, NULL);
	if (status == KV_OK) status = steps(walk, sequence, found.decoded_tokens);
	if (status == KV_OK) kvt_check_sequence(sequence);
	gw_sequence_close(sequence, 1);
	return status;
}

/* Without a failure. */
static enum kv_status again(struct walk *walk)
{
	return walk->resume ? resumed_run(walk) : whole_run(walk);
}

/* One attempt in a fresh store and pipeline, where the n-th allocation of one of the allocators
 * fails. Then once more without failure. Returns whether anything failed. */
static int attempt(struct walk *walk, uint32_t which, uint64_t n)
{
	struct kvt_question question = {.prompt = walk->ids,
	    .prompt_tokens = WALK_PROMPT,
	    .room = WALK_STEPS,
	    .teacher = walk->expected.tokens,
	    .id = "kept"};
	struct kv_allocator *allocators[3];
	struct kvt_talk kept;
	enum kv_status status;

	kvt_store_open(&walk->worker, 0);
	walk->pipeline = kvt_pipeline_open(&walk->worker);
	if (walk->resume) {
		kvt_talk_run(&kept, walk->pipeline, &question, 4);
		kvt_talk_close(&kept, 1);
		kvt_talk_end(&kept);
	}
	allocators[0] = walk->worker.allocator;
	allocators[OF_THE_STORE] = walk->worker.store_allocator;
	allocators[2] = walk->worker.model_allocator;
	kv_allocator_fail_at(allocators[which], n);
	status = walk->resume ? resumed_run(walk) : whole_run(walk);
	kv_allocator_fail_at(allocators[which], 0);
	if (status != KV_OK) {
		if (status != KV_NO_MEMORY)
			fail_msg("allocator %u at %llu: status %d, \"%s\"", which, (unsigned long long)n,
			    (int)status, kv_error_message());
		assert_int_equal(again(walk), KV_OK);
	}
	/* The last row again, to rounding: a prefix may have been stored meanwhile. */
	for (uint32_t i = 0; i < walk->expected.vocabulary; i++)
		assert_true(fabs((double)walk->logits[i] -
		                 (double)kvt_talk_logits(&walk->expected, WALK_STEPS)[i]) < 1e-3);
	gw_pipeline_destroy(walk->pipeline);
	kvt_store_close(&walk->worker);
	assert_int_equal(kv_allocator_stats(allocators[0]).blocks, 0);
	return status != KV_OK;
}

static void walk_failures(int resume)
{
	struct walk walk = {.resume = resume};
	struct kvt_question question = {
	    .prompt = walk.ids, .prompt_tokens = WALK_PROMPT, .room = WALK_STEPS};
	struct gw_pipeline *pipeline;

	kvt_worker_open(&walk.worker, model_name, 1);
	walk.worker.options.policy.window = 16;
	walk.worker.options.policy.fold = 2; /* and so two folds happen within the steps */
	walk.worker.options.policy.segment = 64;
	walk.worker.options.policy.budget = 1024;
	walk.worker.options.max_batch = 1;
	kvt_make_prompt(&walk.worker, 12, walk.ids, WALK_PROMPT);
	walk.logits = kv_alloc_array(kv_heap(), walk.worker.shape->vocabulary, sizeof(float));
	assert_non_null(walk.logits);
	kvt_store_open(&walk.worker, 0);
	pipeline = kvt_pipeline_open(&walk.worker);
	kvt_talk_run(&walk.expected, pipeline, &question, WALK_STEPS + 1);
	kvt_talk_close(&walk.expected, 0);
	gw_pipeline_destroy(pipeline);
	kvt_store_close(&walk.worker);
	for (uint32_t which = 0; which < 3; which++) {
		uint64_t n = 1;

		while (attempt(&walk, which, n))
			n += KVT_EVERY;
		print_message("allocator %u: %llu allocations\n", which, (unsigned long long)n - 1);
		assert_true(n > 1 && n < 2000);
	}
	kvt_talk_end(&walk.expected);
	kv_free(kv_heap(), walk.logits);
	kvt_worker_close(&walk.worker);
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	walk_failures(0);
}

static void every_allocation_of_a_resumption_may_fail(void **state)
{
	(void)state;
	walk_failures(1);
}

/* A request that is refused the memory that it needs more than others had must not take theirs. */
static void a_larger_request_that_fails_leaves_others_their_memory(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk alone, talk, *batch[1] = {&talk};
	int32_t ids[MOST];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = 300, .room = 20};
	struct gw_sequence_request larger = {.tokens = ids, .token_count = 1000, .max_tokens = 3000};
	enum kv_status status = KV_NO_MEMORY;

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	worker.options.policy.budget = 2048;
	kvt_make_prompt(&worker, 13, ids, MOST);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	kvt_talk_run(&alone, pipeline, &question, 20);
	kvt_talk_close(&alone, 0);
	gw_pipeline_destroy(pipeline);
	pipeline = kvt_pipeline_open(&worker);
	for (uint64_t n = 1; status == KV_NO_MEMORY; n++) {
		struct gw_sequence *sequence = NULL;

		kvt_talk_run(&talk, pipeline, &question, 2);
		kv_allocator_fail_at(worker.allocator, n);
		status = gw_sequence_open(pipeline, &larger, &sequence);
		kv_allocator_fail_at(worker.allocator, 0);
		gw_sequence_close(sequence, 0);
		while (talk.count < 20)
			kvt_talk_step(batch, 1);
		kvt_assert_same(&alone, &talk, 1, 19);
		kvt_talk_end(&talk);
	}
	assert_int_equal(status, KV_OK);
	kvt_talk_end(&alone);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(requests_out_of_range_are_refused),
	    cmocka_unit_test(a_sequence_can_be_full),
	    cmocka_unit_test(options_out_of_range_are_refused),
	    cmocka_unit_test(a_failed_sequence_leaves_its_batch_alone),
	    cmocka_unit_test(a_full_store_is_said_and_survived),
	    cmocka_unit_test(a_prompt_can_be_given_up),
	    cmocka_unit_test(a_prompt_and_a_decoder_do_not_notice_each_other),
	    cmocka_unit_test(another_generation_empties_the_cache),
	    cmocka_unit_test(every_allocation_may_fail),
	    cmocka_unit_test(every_allocation_of_a_resumption_may_fail),
	    cmocka_unit_test(a_larger_request_that_fails_leaves_others_their_memory),
	};

	if (argc > 1) model_name = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
