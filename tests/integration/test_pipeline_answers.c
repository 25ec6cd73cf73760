/* What a worker answers, on a tiny model: the same as an independent forward pass, the same with
 * clusters as without where the budget covers everything, and the same bits whatever the cache, the
 * threads, the neighbours in a batch and the chunks are. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/pipeline_fixture.h"
#include "tests/lib/reference_forward.h"

static const char *model_name = "tiny_llama";

enum { REFERENCE_PROMPT = 130, REFERENCE_STEPS = 30, LONG = 900 };

static double nll(const float *logits, uint32_t vocabulary, int32_t token)
{
	double sum = 0.0;

	for (uint32_t i = 0; i < vocabulary; i++)
		sum += exp((double)logits[i] - (double)logits[token]);
	return log(sum);
}

static void full_is_the_reference(void **state)
{
	struct kvt_worker worker;
	struct kvt_reference *reference = NULL;
	struct gw_gguf *file = NULL;
	struct gw_pipeline *pipeline;
	struct kvt_talk talk;
	int32_t ids[REFERENCE_PROMPT + REFERENCE_STEPS];
	struct kvt_question question = {
	    .prompt = ids, .prompt_tokens = REFERENCE_PROMPT, .room = REFERENCE_STEPS};
	struct gw_sequence_request request = {.tokens = ids, .token_count = REFERENCE_PROMPT};
	struct gw_sequence *sequence = NULL;
	double worst = 0.0, mean = 0.0, want = 0.0;
	float *expected;
	char path[512];
	uint32_t vocabulary;

	(void)state;
	kvt_worker_open(&worker, model_name, 2);
	worker.options.policy.name = "full";
	vocabulary = worker.shape->vocabulary;
	pipeline = kvt_pipeline_open(&worker);
	kvt_make_prompt(&worker, 1, ids, REFERENCE_PROMPT);
	kvt_talk_run(&talk, pipeline, &question, REFERENCE_STEPS);
	memcpy(ids + REFERENCE_PROMPT, talk.tokens, REFERENCE_STEPS * sizeof *ids);

	snprintf(path, sizeof path, "%s/%s.gguf", KV_TINY_MODELS, model_name);
	assert_int_equal(gw_gguf_open(kv_heap(), path, &file), KV_OK);
	assert_int_equal(kvt_reference_open(kv_heap(), file, &reference), KV_OK);
	expected = kv_alloc_array(
	    kv_heap(), (size_t)(REFERENCE_PROMPT + REFERENCE_STEPS) * vocabulary, sizeof *expected);
	assert_non_null(expected);
	assert_int_equal(
	    kvt_reference_logits(reference, ids, REFERENCE_PROMPT + REFERENCE_STEPS, expected), KV_OK);
	for (uint32_t row = 0; row < REFERENCE_STEPS; row++)
		for (uint32_t i = 0; i < vocabulary; i++) {
			double e = (double)expected[(size_t)(REFERENCE_PROMPT - 1 + row) * vocabulary + i];
			double difference = fabs((double)kvt_talk_logits(&talk, row)[i] - e);

			worst = difference > worst ? difference : worst;
		}
	print_message("largest difference of a logit: %g\n", worst);
	assert_true(worst < 1e-3);

	for (uint32_t i = 0; i + 1 < REFERENCE_PROMPT; i++)
		want += nll(expected + (size_t)i * vocabulary, vocabulary, ids[i + 1]);
	want /= REFERENCE_PROMPT - 1;
	assert_int_equal(gw_sequence_open(pipeline, &request, &sequence), KV_OK);
	assert_int_equal(gw_run_prompt(sequence, talk.logits, &mean, NULL, NULL), KV_OK);
	gw_sequence_close(sequence, 0);
	assert_true(fabs(mean - want) < 1e-3);

	kvt_reference_close(reference);
	gw_gguf_close(file);
	kv_free(kv_heap(), expected);
	kvt_talk_end(&talk);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

/* Answers of `policy` to the first `tokens` ids, in a fresh store. */
static void answer(struct kvt_worker *worker, const char *policy,
    const struct kvt_question *question, uint32_t steps, struct kvt_talk *talk)
{
	struct gw_pipeline *pipeline;

	worker->options.policy.name = policy;
	kvt_store_open(worker, 0);
	pipeline = kvt_pipeline_open(worker);
	kvt_talk_run(talk, pipeline, question, steps);
	kvt_talk_close(talk, 0);
	gw_pipeline_destroy(pipeline);
	kvt_store_close(worker);
}

static void a_budget_for_everything_is_full_attention(void **state)
{
	/* Prompts shorter than the window, around it, and of several segments; steps over folds. */
	static const struct {
		uint32_t prompt, steps, dense_layers;
		enum kn_kv_type type;
	} cases[] = {{5, 130, 1, KN_KV_F32}, {64, 120, 1, KN_KV_F32}, {70, 120, 0, KN_KV_F32},
	    {700, 310, 1, KN_KV_F32}, {576, 40, 1, KN_KV_F16}, {577, 210, 2, KN_KV_F16},
	    {300, 40, 99, KN_KV_F32}};
	struct kvt_worker worker;
	int32_t ids[LONG];

	(void)state;
	kvt_worker_open(&worker, model_name, 2);
	kvt_make_prompt(&worker, 2, ids, LONG);
	worker.options.policy.budget = 4096;
	for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i += KVT_EVERY) {
		struct kvt_question question = {
		    .prompt = ids, .prompt_tokens = cases[i].prompt, .room = cases[i].steps};
		struct kvt_talk full, clusters, free_running;
		double worst;

		worker.options.kv_type = cases[i].type;
		worker.options.policy.dense_layers = cases[i].dense_layers;
		answer(&worker, "full", &question, cases[i].steps, &full);
		answer(&worker, "clusterkv", &question, cases[i].steps, &free_running);
		kvt_assert_greedy(&full, &free_running, cases[i].steps, 0.05);
		question.teacher = full.tokens;
		answer(&worker, "clusterkv", &question, cases[i].steps, &clusters);
		/* The prompt's own attention is the same code over the same rows. */
		kvt_assert_same(&full, &clusters, 0, 1);
		worst = kvt_assert_close(
		    &full, &clusters, cases[i].steps, cases[i].type == KN_KV_F32 ? 1e-3 : 0.01);
		print_message("prompt %u, %u steps: %g\n", cases[i].prompt, cases[i].steps, worst);
		kvt_talk_end(&full);
		kvt_talk_end(&clusters);
		kvt_talk_end(&free_running);
	}
	kvt_worker_close(&worker);
}

enum { SAME_STEPS = 150 };

static struct kvt_question long_question(const int32_t *ids)
{
	return (struct kvt_question){.prompt = ids,
	    .prompt_tokens = LONG,
	    .room = SAME_STEPS,
	    .sampling = {.temperature = 1.0f, .top_p = 0.95f, .seed = 11}};
}

static void the_cache_changes_no_bit(void **state)
{
	static const uint64_t sizes[] = {4096, 3 * 4096, 20000, 200000, 4 << 20, (uint64_t)1 << 30};
	struct kvt_worker worker;
	struct kvt_talk base, other;
	int32_t ids[LONG];
	struct kvt_question question = long_question(ids);

	(void)state;
	kvt_worker_open(&worker, model_name, 2);
	kvt_make_prompt(&worker, 3, ids, LONG);
	answer(&worker, "clusterkv", &question, SAME_STEPS, &base);
	for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; i += KVT_EVERY) {
		worker.options.cache_bytes = sizes[i];
		worker.options.cache_recency = i % 2 * 2;
		answer(&worker, "clusterkv", &question, SAME_STEPS, &other);
		kvt_assert_same(&base, &other, 0, SAME_STEPS);
		kvt_talk_end(&other);
	}
	kvt_talk_end(&base);
	kvt_worker_close(&worker);
}

static void threads_and_chunks_change_no_bit(void **state)
{
	static const uint32_t chunks[] = {16, 64, 512};
	struct kvt_talk base, other;

	(void)state;
	for (uint32_t threads = 1; threads <= 3; threads++) {
		struct kvt_worker worker;
		int32_t ids[LONG];
		struct kvt_question question = long_question(ids);

		kvt_worker_open(&worker, model_name, threads);
		kvt_make_prompt(&worker, 4, ids, LONG);
		worker.options.chunk = chunks[threads % 3];
		answer(&worker, "clusterkv", &question, SAME_STEPS, threads == 1 ? &base : &other);
		kvt_worker_close(&worker);
		if (threads == 1) continue;
		kvt_assert_same(&base, &other, 0, SAME_STEPS);
		kvt_talk_end(&other);
	}
	kvt_talk_end(&base);
}

/* Four sequences of other lengths in one batch fold at other steps; each answers as if alone. */
static void neighbours_change_no_bit(void **state)
{
	static const uint32_t lengths[] = {LONG, 40, 333, 577};
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk talks[4], alone;
	struct kvt_talk *batch[4];
	int32_t ids[4][LONG];

	(void)state;
	kvt_worker_open(&worker, model_name, 2);
	kvt_store_open(&worker, 0);
	worker.options.cache_bytes = 300000;
	pipeline = kvt_pipeline_open(&worker);
	for (uint32_t i = 0; i < 4; i++) {
		struct kvt_question question = long_question(ids[i]);

		question.prompt_tokens = lengths[i];
		kvt_make_prompt(&worker, 10 + i, ids[i], lengths[i]);
		kvt_talk_begin(&talks[i], pipeline, &question);
	}
	/* They join one after the other and in changing order, and leave one after the other. */
	for (uint32_t step = 0; step < SAME_STEPS + 30; step++) {
		uint32_t count = 0;

		for (uint32_t j = 0; j < 4; j++) {
			uint32_t i = (j + step) % 4;

			if (step >= i * 7 && talks[i].count < SAME_STEPS) batch[count++] = &talks[i];
		}
		if (count > 0) kvt_talk_step(batch, count);
	}
	for (uint32_t i = 0; i < 4; i++)
		kvt_talk_close(&talks[i], 0);
	gw_pipeline_destroy(pipeline);
	worker.options.max_batch = 1;
	for (uint32_t i = 0; i < 4; i++) {
		answer(&worker, "clusterkv", &talks[i].question, SAME_STEPS, &alone);
		kvt_assert_same(&talks[i], &alone, 0, SAME_STEPS);
		kvt_talk_end(&alone);
		kvt_talk_end(&talks[i]);
	}
	kvt_worker_close(&worker);
}

/* The paper's policy takes the same way. */
static void the_papers_policy_answers(void **state)
{
	struct kvt_worker worker;
	struct kvt_talk full, paper;
	int32_t ids[LONG];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = LONG, .room = 110};

	(void)state;
	kvt_worker_open(&worker, model_name, 2);
	kvt_make_prompt(&worker, 5, ids, LONG);
	answer(&worker, "full", &question, 110, &full);
	question.teacher = full.tokens;
	worker.options.policy.budget = 4096;
	worker.options.policy.cluster_tokens = 80; /* as the policy will have it: the store is told */
	worker.options.policy.center = 0;
	answer(&worker, "clusterkv-paper", &question, 110, &paper);
	kvt_assert_close(&full, &paper, 110, 1e-3);
	kvt_talk_end(&full);
	kvt_talk_end(&paper);
	kvt_worker_close(&worker);
}

static void steps_take_no_memory(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk talks[2], *batch[2] = {&talks[0], &talks[1]};
	int32_t ids[LONG];
	uint64_t before, stored_before;

	(void)state;
	kvt_worker_open(&worker, model_name, 2);
	kvt_make_prompt(&worker, 6, ids, LONG);
	kvt_store_open(&worker, 0);
	worker.options.cache_bytes = 100000;
	pipeline = kvt_pipeline_open(&worker);
	for (uint32_t i = 0; i < 2; i++) {
		struct kvt_question question = long_question(ids);

		question.prompt_tokens = LONG - i * 400;
		kvt_talk_begin(&talks[i], pipeline, &question);
	}
	before = kv_allocator_stats(worker.allocator).allocations;
	stored_before = kv_allocator_stats(worker.store_allocator).allocations;
	for (uint32_t step = 0; step < worker.options.policy.fold - 1; step++)
		kvt_talk_step(batch, 2);
	assert_int_equal(kv_allocator_stats(worker.allocator).allocations, before);
	/* The store, as a rule another process, lengthens its list of tokens now and then. */
	assert_true(kv_allocator_stats(worker.store_allocator).allocations <= stored_before + 8);
	/* A fold takes none of the worker's either. */
	while (talks[0].count < SAME_STEPS)
		kvt_talk_step(batch, 2);
	assert_int_equal(kv_allocator_stats(worker.allocator).allocations, before);
	kvt_talk_end(&talks[0]);
	kvt_talk_end(&talks[1]);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(full_is_the_reference),
	    cmocka_unit_test(a_budget_for_everything_is_full_attention),
	    cmocka_unit_test(the_cache_changes_no_bit),
	    cmocka_unit_test(threads_and_chunks_change_no_bit),
	    cmocka_unit_test(neighbours_change_no_bit),
	    cmocka_unit_test(the_papers_policy_answers),
	    cmocka_unit_test(steps_take_no_memory),
	};

	if (argc > 1) model_name = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
