/* The same bits on a device that is not the host, where every row goes through memory of its own:
 * prompts, folds, prefixes that are found whole and in pieces, a cache that is too small, a batch.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/pipeline_check.h"
#include "tests/lib/pipeline_fixture.h"

static const char *model_name = "tiny_llama";

enum { PROMPT = KVT_TALK_PROMPT, STEPS = 110 };

static void open_worker(struct kvt_worker *worker, const char *backend)
{
	assert_int_equal(setenv("CLUSTERKV_TEST_BACKEND", backend, 1), 0);
	kvt_worker_open(worker, model_name, 2);
	assert_string_equal(worker->ops->name, backend);
	worker->options.cache_bytes = 100000;
	kvt_store_open(worker, 0);
}

static void converse(struct kvt_worker *worker, struct kvt_talk *talks)
{
	struct kvt_talk *batch[KVT_TALKS];
	struct gw_pipeline *pipeline;

	kvt_talks_begin(talks, worker, STEPS);
	pipeline = talks[0].pipeline;
	for (uint32_t i = 0; i < KVT_TALKS; i++)
		batch[i] = &talks[i];
	for (uint32_t step = 1; step < STEPS; step++)
		kvt_talk_step(batch, KVT_TALKS);
	for (uint32_t i = 0; i < KVT_TALKS; i++) {
		kvt_check_sequence(talks[i].sequence);
		assert_true(gw_sequence_report(talks[i].sequence)->cache.miss_tokens > 0);
		kvt_talk_close(&talks[i], 0);
	}
	gw_pipeline_destroy(pipeline);
}

static void the_bits_are_those_of_the_cpu_backend(void **state)
{
	struct kvt_talk cpu[KVT_TALKS], discrete[KVT_TALKS];
	struct kvt_worker worker;

	(void)state;
	open_worker(&worker, "cpu");
	converse(&worker, cpu);
	kvt_worker_close(&worker);
	open_worker(&worker, "discrete");
	converse(&worker, discrete);
	kvt_worker_close(&worker);
	for (uint32_t i = 0; i < KVT_TALKS; i++) {
		kvt_assert_same(&cpu[i], &discrete[i], 0, STEPS);
		kvt_talk_end(&cpu[i]);
		kvt_talk_end(&discrete[i]);
	}
}

static float *measure(const char *backend, double *nll)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct gw_sequence *sequence = NULL;
	struct gw_sequence_request request = {.token_count = PROMPT, .max_tokens = 1};
	int32_t ids[PROMPT];
	float *logits;

	open_worker(&worker, backend);
	logits = kv_alloc_array(kv_heap(), worker.shape->vocabulary, sizeof *logits);
	assert_non_null(logits);
	kvt_make_prompt(&worker, 3, ids, PROMPT);
	request.tokens = ids;
	pipeline = kvt_pipeline_open(&worker);
	assert_int_equal(gw_sequence_open(pipeline, &request, &sequence), KV_OK);
	assert_int_equal(gw_run_prompt(sequence, logits, nll, NULL, NULL), KV_OK);
	gw_sequence_close(sequence, 0);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
	return logits;
}

static void so_are_the_measured_ones(void **state)
{
	double a = 0.0, b = 1.0;
	float *x = measure("cpu", &a), *y = measure("discrete", &b);

	(void)state;
	assert_true(a == b && a > 0.0);
	kv_free(kv_heap(), x);
	kv_free(kv_heap(), y);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_bits_are_those_of_the_cpu_backend),
	    cmocka_unit_test(so_are_the_measured_ones),
	};

	if (argc > 1) model_name = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
