/* Prefix reuse: how much of a prompt is found, that what follows is the same as without, and that
 * the store ends the same. */
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

enum { MOST = 1100, STEPS = 12 };

/* A first prompt of `first` tokens, then one of `second` that has `common` leading tokens of it. */
struct reuse {
	uint32_t first, second, common, window;
	const char *list; /* of the second prompt; ends of clustered segments | the tail's */
};

static const struct reuse reuses[] = {
    {700, 700, 700, 64, "256 512 636 | 700"}, /* the same again */
    {700, 700, 600, 64, "256 512 636 | 700"}, /* parting inside the rest */
    {700, 700, 300, 64, "256 512 636 | 700"}, /* inside a full segment */
    {700, 700, 660, 64, "256 512 636 | 700"}, /* in the tail */
    {700, 700, 699, 64, "256 512 636 | 700"}, /* at the last token */
    {700, 700, 636, 64, "256 512 636 | 700"}, /* between rest and tail */
    {700, 700, 512, 64, "256 512 636 | 700"}, /* between two segments */
    {700, 700, 1, 64, "256 512 636 | 700"},   /* one token */
    {700, 700, 0, 64, "256 512 636 | 700"},   /* none */
    {700, 500, 500, 64, "256 436 | 500"},     /* the start of an earlier one */
    {500, 700, 500, 64, "256 512 636 | 700"}, /* an earlier one and more */
    {700, 576, 576, 64, "256 512 | 576"},     /* body of exactly two segments */
    {576, 576, 576, 64, "256 512 | 576"},     /* and again */
    {576, 577, 576, 64, "256 512 513 | 577"}, /* and a token more: a rest of one */
    {1000, 320, 320, 64, "256 | 320"},        /* body of one segment */
    {40, 40, 40, 64, "| 40"},                 /* shorter than the window */
    {64, 64, 64, 64, "| 64"},                 /* as long as the window */
    {40, 50, 40, 64, "| 50"},
    {50, 40, 40, 64, "| 40"},
    {40, 400, 40, 64, "256 336 | 400"},
    {400, 40, 40, 64, "| 40"},
    {400, 10, 10, 64, "| 10"},         /* shorter than the sinks */
    {70, 75, 70, 64, "11 | 75"},       /* the body ends inside the sinks */
    {600, 600, 600, 0, "256 512 600"}, /* no window: the last token is in a cluster */
    {600, 600, 599, 0, "256 512 600"},
    {600, 550, 550, 0, "256 512 550"},
    {512, 512, 512, 0, "256 512"},
    {512, 600, 512, 0, "256 512 600"},
    {1, 1, 1, 64, "| 1"},
    {1, 1, 1, 0, "1"},
};

static void run_reuse(struct kvt_worker *worker, const struct reuse *reuse)
{
	int32_t first[MOST], second[MOST];
	struct kvt_question one = {.prompt = first, .prompt_tokens = reuse->first, .room = STEPS};
	struct kvt_question two = {.prompt = second, .prompt_tokens = reuse->second, .room = STEPS};
	struct gw_pipeline *pipeline;
	struct kvt_talk earlier, warm, again, cold;
	uint32_t most = reuse->second - 1;
	struct gw_pipeline *other;
	struct kvt_worker other_store = *worker;

	print_message("first %u, second %u, common %u, window %u\n", reuse->first, reuse->second,
	    reuse->common, reuse->window);
	worker->options.policy.window = other_store.options.policy.window = reuse->window;
	kvt_make_prompt(worker, 1, first, reuse->first);
	kvt_make_prompt(worker, 2, second, reuse->second);
	memcpy(second, first, reuse->common * sizeof *second);
	/* A token that is another, also where chance would have made it the same. */
	if (reuse->common < reuse->second && reuse->common < reuse->first &&
	    second[reuse->common] == first[reuse->common])
		second[reuse->common] = 3 + (second[reuse->common] - 2) % 100;

	other_store.store = NULL;
	other_store.store_allocator = NULL;
	kvt_store_open(&other_store, 0);
	other = kvt_pipeline_open(&other_store);
	kvt_talk_run(&cold, other, &two, STEPS);
	assert_int_equal(gw_sequence_prefix_hit(cold.sequence), 0);
	two.teacher = cold.tokens;

	kvt_store_open(worker, 0);
	pipeline = kvt_pipeline_open(worker);
	kvt_talk_run(&earlier, pipeline, &one, 1);
	kvt_talk_close(&earlier, 0);
	kvt_talk_run(&warm, pipeline, &two, STEPS);
	assert_int_equal(
	    gw_sequence_prefix_hit(warm.sequence), reuse->common < most ? reuse->common : most);
	assert_string_equal(kvt_list_text(warm.sequence), reuse->list);
	kvt_check_sequence(warm.sequence);
	kvt_check_same_store(cold.sequence, warm.sequence, 1e-3);
	kvt_assert_close(&cold, &warm, STEPS, 1e-3);
	kvt_talk_run(&again, pipeline, &two, STEPS);
	assert_int_equal(gw_sequence_prefix_hit(again.sequence), most);
	kvt_check_sequence(again.sequence);
	kvt_assert_close(&cold, &again, STEPS, 1e-3);

	kvt_talk_end(&earlier);
	kvt_talk_end(&warm);
	kvt_talk_end(&again);
	kvt_talk_end(&cold);
	gw_pipeline_destroy(pipeline);
	gw_pipeline_destroy(other);
	kvt_store_close(worker);
	kvt_store_close(&other_store);
}

static void what_is_known_is_not_computed_again(void **state)
{
	struct kvt_worker worker;

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	worker.options.policy.budget = 4096;
	for (uint32_t i = 0; i < sizeof reuses / sizeof reuses[0]; i += KVT_EVERY)
		run_reuse(&worker, &reuses[i]);
	kvt_worker_close(&worker);
}

/* A small budget, where rounding could choose other clusters: runs that attached the same prefix.
 */
static void equal_prefixes_give_equal_bits(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk talks[4];
	int32_t ids[MOST];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = 900, .room = 130};

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	kvt_make_prompt(&worker, 4, ids, MOST);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	for (uint32_t i = 0; i < 4; i++) {
		kvt_talk_run(&talks[i], pipeline, &question, 130);
		kvt_check_sequence(talks[i].sequence);
		if (i > 1) kvt_talk_close(&talks[i], 0);
	}
	/* The first row of the first run was computed beside its neighbours, not from stored rows; all
	 * others read the same stored rows. */
	kvt_assert_same(&talks[0], &talks[1], 1, 129);
	kvt_assert_same(&talks[1], &talks[2], 0, 130);
	kvt_assert_same(&talks[1], &talks[3], 0, 130);
	for (uint32_t i = 0; i < 4; i++)
		kvt_talk_end(&talks[i]);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

/* An answer is approximate: the next turn finds the prompt, and computes the answer anew. */
static void answers_are_not_taken_for_prompts(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk first, next;
	int32_t ids[MOST];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = 400, .room = 300};

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	kvt_make_prompt(&worker, 5, ids, MOST);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	kvt_talk_run(&first, pipeline, &question, 250);
	assert_string_equal(kvt_list_text(first.sequence), "256 336 432~ 528~ | 592~");
	memcpy(ids + 400, first.tokens, 250 * sizeof *ids);
	question.prompt_tokens = 700;
	kvt_talk_run(&next, pipeline, &question, 2);
	assert_int_equal(gw_sequence_prefix_hit(next.sequence), 400);
	assert_string_equal(kvt_list_text(next.sequence), "256 512 636 | 700");
	kvt_check_sequence(next.sequence);
	kvt_check_sequence(first.sequence);
	kvt_talk_end(&next);
	/* The first prompt's tail was folded away from its sequence, and stays for others. */
	question.prompt_tokens = 400;
	kvt_talk_run(&next, pipeline, &question, 2);
	assert_int_equal(gw_sequence_prefix_hit(next.sequence), 399);
	assert_string_equal(kvt_list_text(next.sequence), "256 336 | 400");
	kvt_talk_end(&next);
	kvt_talk_end(&first);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

/* Two workers compute the same prompt at once: the later one ends with the earlier one's segments.
 */
static void the_same_prompt_twice_at_once_is_stored_once(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipelines[2];
	struct gw_sequence *sequences[2];
	int32_t ids[MOST];
	struct gw_sequence_request request = {.tokens = ids, .token_count = 500, .max_tokens = 4};
	float *logits;

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	kvt_make_prompt(&worker, 6, ids, MOST);
	kvt_store_open(&worker, 0);
	logits = kv_alloc_array(kv_heap(), 2 * worker.shape->vocabulary, sizeof *logits);
	assert_non_null(logits);
	for (uint32_t i = 0; i < 2; i++) {
		pipelines[i] = kvt_pipeline_open(&worker);
		assert_int_equal(gw_sequence_open(pipelines[i], &request, &sequences[i]), KV_OK);
		assert_int_equal(gw_sequence_prefix_hit(sequences[i]), 0);
	}
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(
		    gw_run_prompt(sequences[i], logits + i * worker.shape->vocabulary, NULL, NULL, NULL),
		    KV_OK);
		kvt_check_sequence(sequences[i]);
	}
	assert_memory_equal(
	    logits, logits + worker.shape->vocabulary, worker.shape->vocabulary * sizeof *logits);
	assert_int_equal(sequences[0]->segment_count, sequences[1]->segment_count);
	for (uint32_t i = 0; i < sequences[0]->segment_count; i++)
		assert_true(sequences[0]->segments[i]->id == sequences[1]->segments[i]->id);
	for (uint32_t i = 0; i < 2; i++) {
		gw_sequence_close(sequences[i], 0);
		gw_pipeline_destroy(pipelines[i]);
	}
	kv_free(kv_heap(), logits);
	kvt_worker_close(&worker);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(what_is_known_is_not_computed_again),
	    cmocka_unit_test(equal_prefixes_give_equal_bits),
	    cmocka_unit_test(answers_are_not_taken_for_prompts),
	    cmocka_unit_test(the_same_prompt_twice_at_once_is_stored_once),
	};

	if (argc > 1) model_name = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
