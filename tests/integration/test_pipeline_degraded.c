/* --on-miss estimate: what a fetch does not bring is estimated in that step, the sequence goes on,
 * and what it folds from then on is nobody else's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/runtime/fault_point.h"
#include "tests/lib/pipeline_check.h"
#include "tests/lib/pipeline_fixture.h"

static const char *model_name = "tiny_llama";

enum { PROMPT = 600, ANSWER = 200, SHORT = 30, LONG = 160 };

static struct kvt_worker worker;
static int32_t ids[PROMPT];
static struct kvt_question question = {.prompt = ids, .prompt_tokens = PROMPT, .room = ANSWER};

static int begin(void **state)
{
	(void)state;
	question.teacher = NULL;
	kvt_worker_open(&worker, model_name, 1);
	kvt_make_prompt(&worker, 1, ids, PROMPT);
	kvt_store_open(&worker, 0);
	worker.options.estimate_misses = 1;
	return 0;
}

static int end(void **state)
{
	(void)state;
	kv_fault_configure(NULL, NULL);
	kvt_store_close(&worker);
	kvt_worker_close(&worker);
	return 0;
}

/* Where every fetch comes in time, nothing differs from waiting. */
static void nothing_changes_without_a_failure(void **state)
{
	struct gw_pipeline *pipeline;
	struct kvt_talk waiting, estimating;

	(void)state;
	worker.options.estimate_misses = 0;
	pipeline = kvt_pipeline_open(&worker);
	kvt_talk_run(&waiting, pipeline, &question, LONG);
	kvt_talk_close(&waiting, 0);
	gw_pipeline_destroy(pipeline);
	kvt_store_close(&worker);
	kvt_store_open(&worker, 0);
	worker.options.estimate_misses = 1;
	pipeline = kvt_pipeline_open(&worker);
	kvt_talk_run(&estimating, pipeline, &question, LONG);
	kvt_assert_same(&waiting, &estimating, 0, LONG);
	assert_int_equal(gw_sequence_report(estimating.sequence)->degraded_steps, 0);
	kvt_talk_end(&estimating);
	kvt_talk_end(&waiting);
	gw_pipeline_destroy(pipeline);
}

static void step_times(struct kvt_talk *talk, uint32_t steps)
{
	struct kvt_talk *batch[1] = {talk};

	while (steps-- > 0)
		kvt_talk_step(batch, 1);
}

/* A step is degraded where a fetch failed, and gives other logits; the next ones fetch again. */
static void a_late_fetch_is_estimated(void **state)
{
	struct gw_pipeline *pipeline = kvt_pipeline_open(&worker);
	const struct gw_report *report;
	struct kvt_talk talk, whole;
	uint32_t tokens;

	(void)state;
	kvt_talk_run(&whole, pipeline, &question, SHORT + 1);
	kvt_talk_close(&whole, 0);
	gw_pipeline_destroy(pipeline);

	kvt_store_close(&worker);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	question.teacher = whole.tokens;
	kvt_talk_begin(&talk, pipeline, &question);
	assert_int_equal(kv_fault_configure("client.late", NULL), KV_OK);
	step_times(&talk, SHORT);
	report = gw_sequence_report(talk.sequence);
	assert_int_equal(kv_fault_fired("client.late"), 1);
	assert_int_equal(report->degraded_steps, 1);
	assert_int_equal(report->decode_steps, SHORT);
	/* Less was attended to than what the budget allows, and the window still was. */
	tokens = (uint32_t)(report->budget_tokens / (double)report->selections);
	assert_true(tokens < worker.options.policy.budget);
	kvt_assert_same(&whole, &talk, 0, 1);
	assert_memory_not_equal(
	    kvt_talk_logits(&whole, 1), kvt_talk_logits(&talk, 1), whole.vocabulary * sizeof(float));
	kvt_talk_end(&talk);
	kvt_talk_end(&whole);
	gw_pipeline_destroy(pipeline);
}

/* Rows of a batch that miss nothing are not touched by another's failure. */
static void a_neighbour_that_holds_all_is_not_degraded(void **state)
{
	struct gw_pipeline *pipeline;
	struct kvt_talk alone, first, second, *both[2] = {&first, &second};
	struct kvt_question other = question;
	int32_t more[PROMPT];

	(void)state;
	kvt_make_prompt(&worker, 2, more, PROMPT);
	other.prompt = more;
	worker.options.cache_bytes = 64 << 20;
	worker.options.policy.budget = 1024;
	pipeline = kvt_pipeline_open(&worker);
	kvt_talk_run(&alone, pipeline, &question, SHORT);
	kvt_talk_close(&alone, 0);

	/* With a budget for everything, one step brings all. */
	kvt_talk_run(&first, pipeline, &question, 2);
	kvt_talk_begin(&second, pipeline, &other);
	assert_int_equal(kv_fault_configure("client.late=always", NULL), KV_OK);
	for (uint32_t i = 2; i < SHORT; i++)
		kvt_talk_step(both, 2);
	assert_int_equal(gw_sequence_report(first.sequence)->degraded_steps, 0);
	assert_int_equal(gw_sequence_report(second.sequence)->degraded_steps, SHORT - 2);
	kvt_assert_greedy(&alone, &first, SHORT, 0.05);
	kvt_talk_end(&first);
	kvt_talk_end(&second);
	kvt_talk_end(&alone);
	gw_pipeline_destroy(pipeline);
}

static uint32_t approximate_segments(const struct gw_sequence *sequence)
{
	uint32_t count = 0;

	for (const char *at = kvt_list_text(sequence); *at; at++)
		count += *at == '~';
	return count;
}

/* How far the logits of the last row are apart, at most. */
static double difference(const struct kvt_talk *a, const struct kvt_talk *b)
{
	const float *x = kvt_talk_logits(a, LONG - 1), *y = kvt_talk_logits(b, LONG - 1);
	double most = 0.0;

	for (uint32_t i = 0; i < a->vocabulary; i++)
		most = fmax(most, fabs((double)x[i] - (double)y[i]));
	return most;
}

/* Who takes the sequence over finds none of the folds: it computes its own, from the tokens. */
static void folds_of_a_degraded_sequence_are_its_own(void **state)
{
	struct gw_pipeline *pipeline = kvt_pipeline_open(&worker);
	struct kvt_talk degraded, resumed, taught;
	struct kvt_question same = question;

	(void)state;
	kvt_talk_begin(&degraded, pipeline, &question);
	assert_int_equal(kv_fault_configure("client.late=always", NULL), KV_OK);
	step_times(&degraded, LONG - 1);
	assert_int_equal(kv_fault_configure(NULL, NULL), KV_OK);
	assert_true(gw_sequence_report(degraded.sequence)->degraded_steps > 0);
	assert_true(approximate_segments(degraded.sequence) > 0);
	kvt_check_sequence(degraded.sequence);
	kvt_talk_close(&degraded, 1);

	/* The same tokens, undisturbed: what the prefix was attached from is the same, too. */
	same.teacher = degraded.tokens;
	kvt_talk_run(&taught, pipeline, &same, LONG);
	kvt_talk_resume(&resumed, pipeline, &question, degraded.id);
	kvt_check_sequence(resumed.sequence);
	assert_true(difference(&taught, &resumed) < 2e-3);
	assert_true(difference(&taught, &degraded) > 0.1);
	kvt_talk_end(&resumed);
	kvt_talk_end(&taught);
	kvt_talk_end(&degraded);
	gw_pipeline_destroy(pipeline);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(nothing_changes_without_a_failure, begin, end),
	    cmocka_unit_test_setup_teardown(a_late_fetch_is_estimated, begin, end),
	    cmocka_unit_test_setup_teardown(a_neighbour_that_holds_all_is_not_degraded, begin, end),
	    cmocka_unit_test_setup_teardown(folds_of_a_degraded_sequence_are_its_own, begin, end),
	};

	if (argc > 1) model_name = argv[1];
	if (argc > 2) cmocka_set_test_filter(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
