/* Sequences taken over when the store does not have all that they once had: their worker ended in
 * the middle of the prompt, or segments were evicted meanwhile. They go on from what is there, and
 * say what they would have said. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/pipeline_check.h"
#include "tests/lib/pipeline_fixture.h"

static const char *model_name = "tiny_llama";

enum { MOST = 1200, PROMPT = 600, ANSWER = 200 };

struct interruption {
	struct gw_sequence *sequence;
	uint32_t calls, last;
};

static void interrupt(void *context, uint64_t done, uint64_t total)
{
	struct interruption *interruption = context;

	(void)done;
	(void)total;
	if (++interruption->calls == interruption->last) gw_sequence_cancel(interruption->sequence);
}

/* Open a sequence and end its prompt after some chunks, as the death of a worker would. */
static void begin_only(struct gw_pipeline *pipeline, const int32_t *ids, const char *id,
    uint32_t chunks, float *logits)
{
	struct gw_sequence_request request = {.id = id,
	    .tokens = ids,
	    .token_count = PROMPT,
	    .max_tokens = ANSWER,
	    .parameters = "parameters",
	    .parameter_bytes = 11};
	struct interruption interruption = {.last = chunks};

	assert_int_equal(gw_sequence_open(pipeline, &request, &interruption.sequence), KV_OK);
	assert_int_equal(
	    gw_run_prompt(interruption.sequence, logits, NULL, interrupt, &interruption), KV_CANCELLED);
	gw_sequence_close(interruption.sequence, 1);
}

static void a_prompt_that_was_not_finished_is_run_again(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk whole, resumed, other, *batch[1] = {&resumed};
	int32_t ids[MOST];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = PROMPT, .room = ANSWER};
	struct kvt_question half = {.prompt = ids, .prompt_tokens = 400, .room = 1};

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	kvt_make_prompt(&worker, 1, ids, MOST);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	kvt_talk_run(&whole, pipeline, &question, 20);
	kvt_talk_close(&whole, 0);
	gw_pipeline_destroy(pipeline);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	begin_only(pipeline, ids, "begun", 7, whole.logits + 20 * (size_t)whole.vocabulary);
	kvt_talk_resume(&resumed, pipeline, &question, "begun");
	assert_int_equal(gw_sequence_prefix_hit(resumed.sequence), 0);
	while (resumed.count < 20)
		kvt_talk_step(batch, 1);
	kvt_assert_same(&whole, &resumed, 0, 20);
	kvt_check_sequence(resumed.sequence);
	kvt_talk_end(&resumed);
	gw_pipeline_destroy(pipeline);
	/* What it had attached is not computed again. */
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	kvt_talk_begin(&other, pipeline, &half);
	kvt_talk_end(&other);
	begin_only(pipeline, ids, "begun", 3, whole.logits + 20 * (size_t)whole.vocabulary);
	kvt_talk_resume(&resumed, pipeline, &question, "begun");
	assert_int_equal(gw_sequence_prefix_hit(resumed.sequence), 256);
	while (resumed.count < 20)
		kvt_talk_step(batch, 1);
	kvt_assert_greedy(&whole, &resumed, 20, 0.01);
	kvt_check_sequence(resumed.sequence);
	kvt_talk_end(&resumed);
	kvt_talk_end(&whole);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

/* How far two logits of row `row` are apart, at most. */
static double difference(const struct kvt_talk *a, const struct kvt_talk *b, uint32_t row)
{
	const float *x = kvt_talk_logits(a, row), *y = kvt_talk_logits(b, row);
	double most = 0.0;

	for (uint32_t i = 0; i < a->vocabulary; i++)
		most = fmax(most, fabs((double)x[i] - (double)y[i]));
	return most;
}

/* Another prompt of `tokens` tokens pushes out what nobody uses. */
static void crowd(struct kvt_worker *worker, struct gw_pipeline *pipeline, uint32_t tokens)
{
	int32_t ids[MOST];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = tokens, .room = 1};
	struct kvt_talk talk;

	kvt_make_prompt(worker, 99, ids, MOST);
	kvt_talk_begin(&talk, pipeline, &question);
	kvt_talk_end(&talk);
}

static void what_was_evicted_is_computed_again(void **state)
{
	static const uint32_t crowds[] = {300, 480, 500, 600, 900};
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk whole, begun, resumed, *batch[1] = {&resumed};
	int32_t ids[MOST];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = PROMPT, .room = ANSWER};
	uint32_t parts = 0, wholes = 0;

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	kvt_make_prompt(&worker, 2, ids, MOST);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	kvt_talk_run(&whole, pipeline, &question, 180);
	kvt_talk_close(&whole, 0);
	gw_pipeline_destroy(pipeline);
	question.teacher = whole.tokens;
	for (uint32_t i = 0; i < sizeof crowds / sizeof crowds[0]; i++) {
		uint32_t hit;

		/* A token takes 4 layers × 2 heads × 256 bytes, and some for clusters and positions. */
		kvt_store_open(&worker, (uint64_t)1000 * 2400);
		pipeline = kvt_pipeline_open(&worker);
		kvt_talk_run(&begun, pipeline, &question, 150);
		kvt_talk_close(&begun, 1);
		crowd(&worker, pipeline, crowds[i]);
		kvt_talk_resume(&resumed, pipeline, &question, begun.id);
		hit = gw_sequence_prefix_hit(resumed.sequence);
		print_message("crowd %u: found %u\n", crowds[i], hit);
		parts += hit > 0 && hit < PROMPT;
		wholes += hit == 0;
		while (resumed.count < 180)
			kvt_talk_step(batch, 1);
		assert_memory_equal(whole.tokens, resumed.tokens, 180 * sizeof *whole.tokens);
		for (uint32_t row = resumed.count - 30; row < 180; row++)
			if (difference(&whole, &resumed, row) > 2e-3)
				fail_msg("row %u differs by %g after a prompt of %u", row,
				    difference(&whole, &resumed, row), crowds[i]);
		kvt_check_sequence(resumed.sequence);
		kvt_talk_end(&begun);
		kvt_talk_end(&resumed);
		gw_pipeline_destroy(pipeline);
	}
	assert_true(parts > 0 && wholes > 0);
	kvt_talk_end(&whole);
	kvt_worker_close(&worker);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_prompt_that_was_not_finished_is_run_again),
	    cmocka_unit_test(what_was_evicted_is_computed_again),
	};

	if (argc > 1) model_name = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
