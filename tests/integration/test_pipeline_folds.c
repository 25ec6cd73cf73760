/* Folds: what the window, the sinks and the list hold after them. Resuming: another pipeline goes
 * on from any point with the same bits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/discrete_backend.h"
#include "tests/lib/pipeline_check.h"
#include "tests/lib/pipeline_fixture.h"

static const char *model_name = "tiny_llama";

enum { MOST = 1100, PROMPT = 500, ANSWER = 300 };

static void the_first_fold_takes_the_prompts_tail(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk talk, *batch[1] = {&talk};
	int32_t ids[MOST];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = 700, .room = 400};

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	kvt_make_prompt(&worker, 1, ids, MOST);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	kvt_talk_begin(&talk, pipeline, &question);
	assert_string_equal(kvt_list_text(talk.sequence), "256 512 636 | 700");
	while (talk.count < 97)
		kvt_talk_step(batch, 1);
	/* 64 + 96 tokens in the window, and the next step folds. */
	assert_string_equal(kvt_list_text(talk.sequence), "256 512 636 | 700");
	assert_int_equal(talk.sequence->layers[3].recent.count, 160);
	kvt_check_sequence(talk.sequence);
	kvt_talk_step(batch, 1);
	assert_string_equal(kvt_list_text(talk.sequence), "256 512 636 732~ | 796~");
	assert_int_equal(talk.sequence->layers[3].recent.count, 65);
	assert_int_equal(talk.sequence->window_start, 732);
	kvt_check_sequence(talk.sequence);
	while (talk.count < 194)
		kvt_talk_step(batch, 1);
	assert_string_equal(kvt_list_text(talk.sequence), "256 512 636 732~ 828~ | 892~");
	kvt_check_sequence(talk.sequence);
	while (talk.count < 390)
		kvt_talk_step(batch, 1);
	assert_string_equal(kvt_list_text(talk.sequence), "256 512 636 732~ 828~ 924~ 1020~ | 1084~");
	kvt_check_sequence(talk.sequence);
	kvt_talk_end(&talk);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

/* The rows that `full` keeps are those that clusterkv has stored, wherever they lie by now. */
static void check_against_full(const struct kvt_talk *full, const struct kvt_talk *clusters)
{
	const struct gw_sequence *a = full->sequence, *b = clusters->sequence;
	const struct gw_model_shape *shape = a->pipeline->shape;
	const struct kn_device *device = &a->pipeline->device;

	kvt_discrete_show(device->ops, device->backend);
	for (uint32_t layer = 0; layer < shape->layers; layer++)
		for (uint32_t head = 0; head < shape->kv_heads; head++)
			for (uint32_t position = 0; position < b->kv_count; position++) {
				const float *x = (const float *)(const void *)gw_token_rows_at(
				    &a->layers[layer].recent, head, position);
				const uint8_t *stored = kvt_stored_row(b, layer, head, position);
				const float *y = (const float *)(const void *)stored;

				for (uint32_t i = 0; y != NULL && i < 2 * shape->head_dim; i++)
					if (!(fabs((double)x[i] - (double)y[i]) < 1e-3))
						fail_msg("layer %u position %u: %g and %g", layer, position, (double)x[i],
						    (double)y[i]);
			}
	kvt_discrete_hide(device->ops, device->backend);
}

struct shape_case {
	uint32_t prompt, steps, window, fold, sinks, dense_layers;
	const char *list;
};

/* Prompts that end inside the window or the sinks; windows and folds of odd sizes. */
static const struct shape_case shape_cases[] = {
    {10, 160, 64, 96, 16, 1, "96~ | 160~"},
    {1, 260, 64, 96, 16, 0, "96~ 192~ | 256~"},
    {70, 110, 64, 96, 16, 0, "6 102~ | 166~"},
    {10, 60, 16, 8, 16, 1, "8~ 16~ 24~ 32~ 40~ 48~ | 64~"},
    {70, 40, 64, 7, 16, 2, "6 13~ 20~ 27~ 34~ 41~ | 105~"},
    {300, 90, 0, 32, 16, 1, "256 300 332~ 364~"},
    {5, 90, 0, 32, 16, 1, "5 37~ 69~"},
    {300, 50, 5, 1, 16, 1, NULL},
    {300, 130, 64, 96, 0, 1, "236 332~ | 396~"},
    {300, 130, 64, 96, 200, 1, "236 332~ | 396~"},
    {40, 260, 64, 96, 127, 0, "96~ 192~ | 256~"},
};

static void run_shape_case(struct kvt_worker *worker, const struct shape_case *c)
{
	int32_t ids[MOST];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = c->prompt, .room = c->steps};
	struct gw_pipeline *pipeline, *plain;
	struct kvt_talk full, clusters, *batch[1] = {&clusters};

	print_message("prompt %u, %u steps, window %u, fold %u, sinks %u\n", c->prompt, c->steps,
	    c->window, c->fold, c->sinks);
	kvt_make_prompt(worker, 2, ids, MOST);
	worker->options.policy.window = c->window;
	worker->options.policy.fold = c->fold;
	worker->options.policy.sinks = c->sinks;
	worker->options.policy.dense_layers = c->dense_layers;
	worker->options.policy.budget = 4096;
	worker->options.policy.name = "full";
	plain = kvt_pipeline_open(worker);
	kvt_talk_run(&full, plain, &question, c->steps);
	question.teacher = full.tokens;
	worker->options.policy.name = "clusterkv";
	kvt_store_open(worker, 0);
	pipeline = kvt_pipeline_open(worker);
	kvt_talk_begin(&clusters, pipeline, &question);
	while (clusters.count < c->steps) {
		kvt_talk_step(batch, 1);
		if (clusters.count % 9 == 0) kvt_check_sequence(clusters.sequence);
	}
	kvt_check_sequence(clusters.sequence);
	if (c->list != NULL) assert_string_equal(kvt_list_text(clusters.sequence), c->list);
	kvt_assert_close(&full, &clusters, c->steps, 1e-3);
	check_against_full(&full, &clusters);
	kvt_talk_end(&full);
	kvt_talk_end(&clusters);
	gw_pipeline_destroy(plain);
	gw_pipeline_destroy(pipeline);
	kvt_store_close(worker);
}

static void windows_and_sinks_of_any_size(void **state)
{
	struct kvt_worker worker;

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	for (uint32_t i = 0; i < sizeof shape_cases / sizeof shape_cases[0]; i += KVT_EVERY)
		run_shape_case(&worker, &shape_cases[i]);
	kvt_worker_close(&worker);
}

/* ---- resume ---- */

struct resume_case {
	uint32_t prompt, window;
	struct gw_sampler_options sampling;
};

/* Stop after `accepted` tokens, go on in `second`; the rest has the same bits as `whole`. */
static void stop_and_resume(struct gw_pipeline *first, struct gw_pipeline *second,
    const struct kvt_question *question, const struct kvt_talk *whole, uint32_t accepted)
{
	struct kvt_talk begun, resumed, *batch[1] = {&resumed};
	uint32_t from = accepted > 0 ? accepted : 1;

	kvt_talk_run(&begun, first, question, accepted + 1);
	assert_int_equal(begun.accepted, accepted);
	kvt_talk_close(&begun, 1);
	kvt_talk_resume(&resumed, second, question, begun.id);
	assert_string_equal(resumed.id, begun.id);
	assert_int_equal(resumed.accepted, accepted);
	assert_int_equal(gw_sequence_prompt_tokens(resumed.sequence), question->prompt_tokens);
	kvt_check_sequence(resumed.sequence);
	while (resumed.count < whole->count)
		kvt_talk_step(batch, 1);
	assert_memory_equal(whole->tokens, resumed.tokens, whole->count * sizeof *whole->tokens);
	/* The first row of a run that computed its prompt saw rows in another order. */
	kvt_assert_same(whole, &resumed, from, whole->count - from);
	kvt_check_sequence(resumed.sequence);
	kvt_talk_end(&begun);
	kvt_talk_end(&resumed);
}

static void run_resume_case(struct kvt_worker *worker, const struct resume_case *c)
{
	static const uint32_t stops[] = {0, 1, 2, 50, 95, 96, 97, 98, 150, 191, 192, 193, 194, 230};
	int32_t ids[MOST];
	struct kvt_question question = {
	    .prompt = ids, .prompt_tokens = c->prompt, .room = ANSWER, .sampling = c->sampling};
	struct gw_pipeline *pipelines[2];
	struct kvt_talk whole;

	kvt_make_prompt(worker, 3, ids, MOST);
	worker->options.policy.window = c->window;
	kvt_store_open(worker, 0);
	pipelines[0] = kvt_pipeline_open(worker);
	worker->options.cache_bytes = 60000;
	pipelines[1] = kvt_pipeline_open(worker);
	worker->options.cache_bytes = 0;
	kvt_talk_run(&whole, pipelines[0], &question, 240);
	kvt_talk_close(&whole, 0);
	for (uint32_t i = 0; i < sizeof stops / sizeof stops[0]; i += KVT_EVERY)
		stop_and_resume(pipelines[i % 2], pipelines[(i + i / 5) % 2], &question, &whole, stops[i]);
	kvt_talk_end(&whole);
	gw_pipeline_destroy(pipelines[0]);
	gw_pipeline_destroy(pipelines[1]);
	kvt_store_close(worker);
}

static void a_resumed_sequence_goes_on_as_if_nothing_had_been(void **state)
{
	static const struct resume_case cases[] = {
	    {PROMPT, 64, {.top_p = 1.0f}},
	    {PROMPT, 64, {.temperature = 1.0f, .top_p = 0.9f, .top_k = 50, .seed = 5}},
	    {PROMPT, 0, {.temperature = 1.0f, .top_p = 1.0f, .seed = 6}},
	    {30, 64, {.temperature = 1.0f, .top_p = 1.0f, .seed = 7}},
	};
	struct kvt_worker worker;

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i += KVT_EVERY)
		run_resume_case(&worker, &cases[i]);
	kvt_worker_close(&worker);
}

/* Interrupted again and again, and in a batch with others. */
static void resumed_many_times(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	int32_t ids[MOST];
	struct kvt_question question = {.prompt = ids,
	    .prompt_tokens = PROMPT,
	    .room = ANSWER,
	    .sampling = {.temperature = 1.0f, .top_p = 1.0f, .seed = 8}};
	struct kvt_question other_question;
	struct kvt_talk whole, parts, other, *batch[2] = {&parts, &other};
	char id[64];

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	kvt_make_prompt(&worker, 4, ids, MOST);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	kvt_talk_run(&whole, pipeline, &question, 240);
	other_question = question;
	other_question.prompt_tokens = 333;
	kvt_talk_begin(&other, pipeline, &other_question);
	kvt_talk_begin(&parts, pipeline, &question);
	while (parts.count < 240) {
		uint32_t from = parts.count;

		snprintf(id, sizeof id, "%s", parts.id);
		kvt_talk_step(batch, 2);
		if (from % 23 != 0) continue;
		kvt_talk_close(&parts, 1);
		kvt_talk_end(&parts);
		kvt_talk_resume(&parts, pipeline, &question, id);
		kvt_assert_same(&whole, &parts, parts.accepted, 1);
	}
	assert_memory_equal(whole.tokens, parts.tokens, 240 * sizeof *whole.tokens);
	kvt_talk_end(&whole);
	kvt_talk_end(&parts);
	kvt_talk_end(&other);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

static void what_cannot_be_resumed_is_refused(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline, *other, *full;
	int32_t ids[MOST];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = 100, .room = 8, .id = "my-own"};
	struct kvc_resume_state found = {0};
	struct gw_sequence *none = NULL;
	struct kvt_talk talk, resumed, *batch[1] = {&resumed};

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	kvt_make_prompt(&worker, 5, ids, MOST);
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	worker.options.policy.budget += 1;
	other = kvt_pipeline_open(&worker);
	worker.options.policy.name = "full";
	full = kvt_pipeline_open(&worker);
	assert_int_equal(gw_sequence_resume(pipeline, "my-own", 0, &none, &found), KV_NOT_FOUND);
	kvt_talk_run(&talk, pipeline, &question, 3);
	assert_string_equal(talk.id, "my-own");
	assert_int_equal(gw_sequence_resume(pipeline, "my-own", 0, &none, &found), KV_BUSY);
	kvt_talk_close(&talk, 1);
	assert_int_equal(gw_sequence_resume(other, "my-own", 0, &none, &found), KV_REFUSED);
	assert_int_equal(gw_sequence_resume(full, "my-own", 0, &none, &found), KV_UNSUPPORTED);
	assert_non_null(strstr(kv_error_message(), "full"));
	assert_null(none);
	/* Refusals did not harm it, and it is as long as it was opened for. */
	kvt_talk_resume(&resumed, pipeline, &question, "my-own");
	while (resumed.accepted < 8)
		kvt_talk_step(batch, 1);
	assert_int_equal(gw_sequence_accept(resumed.sequence, 5, "", 0), KV_LIMIT);
	kvt_talk_close(&resumed, 0);
	assert_int_equal(gw_sequence_resume(pipeline, "my-own", 0, &none, &found), KV_NOT_FOUND);
	kvt_talk_end(&talk);
	kvt_talk_end(&resumed);
	gw_pipeline_destroy(pipeline);
	gw_pipeline_destroy(other);
	gw_pipeline_destroy(full);
	kvt_worker_close(&worker);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_first_fold_takes_the_prompts_tail),
	    cmocka_unit_test(windows_and_sinks_of_any_size),
	    cmocka_unit_test(a_resumed_sequence_goes_on_as_if_nothing_had_been),
	    cmocka_unit_test(resumed_many_times),
	    cmocka_unit_test(what_cannot_be_resumed_is_refused),
	};

	if (argc > 1) model_name = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
