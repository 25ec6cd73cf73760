/* What is planned of a device's memory is what comes to be taken: never more, and not much less,
 * with several sequences of the greatest length. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/pipeline/device_step.h"
#include "gpu-worker/pipeline/memory_plan.h"
#include "tests/lib/pipeline_fixture.h"
#include "tests/lib/store_fixture.h"

enum { SEQUENCES = 3, PROMPT = 560, ROOM = 40, CONTEXT = PROMPT + ROOM, STEPS = 35 };

static const char *model_name = "tiny_llama";

/* A store of this host, whose memory a device's own steps may read; not running: one in the
 * process. */
static struct store_fixture fixture;

static void start_store(void)
{
	static const char *const arguments[] = {"--transport", "map", "--memory", "64MiB", NULL};

	assert_true(store_fixture_init(&fixture));
	assert_true(store_fixture_start(&fixture, arguments));
}

static void end_store(void)
{
	assert_true(store_fixture_deinit(&fixture, false));
	memset(&fixture, 0, sizeof fixture);
}

static const char *store_address(void)
{
	return fixture.pid != 0 ? fixture.address : "none";
}

static void open_store(struct kvt_worker *worker)
{
	if (fixture.pid != 0)
		kvt_store_connect(worker, fixture.address, "map");
	else
		kvt_store_open(worker, 0);
}

static void plan(const struct kvt_worker *worker, struct gw_memory_plan *planned)
{
	const struct gw_pipeline_options *o = &worker->options;
	struct gw_memory_request request = {.ops = worker->ops,
	    .backend = worker->backend,
	    .kv_type = o->kv_type,
	    .policy = o->policy,
	    .max_rows = KVT_MAX_ROWS_OF_A_CALL,
	    .chunk = o->chunk,
	    .max_batch = o->max_batch,
	    .sequences = SEQUENCES,
	    .context = CONTEXT,
	    .prompt = PROMPT,
	    .cache_bytes = o->cache_bytes,
	    .own_steps = kvc_shows_memory(store_address())};
	struct gw_gguf *file = NULL;
	char path[512];

	snprintf(path, sizeof path, "%s/%s.gguf", KV_TINY_MODELS, model_name);
	assert_int_equal(gw_gguf_open(kv_heap(), path, &file), KV_OK);
	request.file = file;
	assert_int_equal(gw_memory_plan_make(&request, planned), KV_OK);
	gw_gguf_close(file);
}

static void must(enum kv_status status)
{
	if (status != KV_OK) fail_msg("%s", kv_error_message());
}

/* All prompts are open before the first is run. */
static void run_prompts(struct kvt_worker *worker, struct gw_pipeline *pipeline,
    struct gw_sequence **sequences, float *logits)
{
	struct gw_prompt_run *prompts[SEQUENCES];
	int32_t ids[PROMPT];

	for (uint32_t i = 0; i < SEQUENCES; i++) {
		struct gw_sequence_request request = {
		    .tokens = ids, .token_count = PROMPT, .max_tokens = ROOM};

		kvt_make_prompt(worker, i + 1, ids, PROMPT);
		must(gw_sequence_open(pipeline, &request, &sequences[i]));
		must(gw_prompt_open(sequences[i], NULL, NULL, NULL, &prompts[i]));
	}
	for (uint32_t i = 0; i < SEQUENCES; i++) {
		int done = 0;

		while (!done)
			must(gw_prompt_step(prompts[i], logits, &done));
	}
	for (uint32_t i = 0; i < SEQUENCES; i++)
		gw_prompt_close(prompts[i]);
}

/* Sequences that share nothing, all of the greatest length, decoded together. */
static void converse(struct kvt_worker *worker)
{
	struct gw_pipeline *pipeline = kvt_pipeline_open(worker);
	size_t vocabulary = worker->shape->vocabulary;
	float *logits = kv_alloc_array(kv_heap(), SEQUENCES * vocabulary, sizeof *logits);
	struct gw_sequence *sequences[SEQUENCES];
	enum kv_status failures[SEQUENCES];

	assert_non_null(logits);
	run_prompts(worker, pipeline, sequences, logits);
	for (uint32_t step = 1; step < STEPS; step++) {
		for (uint32_t i = 0; i < SEQUENCES; i++)
			must(gw_sequence_accept(sequences[i], (int32_t)(step + 7 * i), NULL, 0));
		must(gw_run_token(pipeline, sequences, SEQUENCES, logits, failures));
		for (uint32_t i = 0; i < SEQUENCES; i++)
			must(failures[i]);
	}
	for (uint32_t i = 0; i < SEQUENCES; i++)
		gw_sequence_close(sequences[i], 0);
	kv_free(kv_heap(), logits);
	gw_pipeline_destroy(pipeline);
}

static void compare(const char *policy, uint32_t dense_layers, enum kn_kv_type kv_type,
    void (*store)(void))
{
	struct kvt_worker worker;
	const struct gw_policy_ops *ops;
	struct gw_memory_plan planned;
	struct kn_memory_use use;
	uint64_t sum;

	assert_int_equal(gw_policy_find(policy, &ops), KV_OK);
	if (store != NULL) store();
	kvt_worker_open(&worker, model_name, 1);
	worker.options.policy.name = policy;
	worker.options.policy.dense_layers = dense_layers;
	ops->adjust(&worker.options.policy);
	worker.options.kv_type = kv_type;
	worker.options.cache_bytes = 200000;
	worker.options.max_batch = SEQUENCES;
	worker.options.context = CONTEXT;
	worker.options.reserve = 1;
	plan(&worker, &planned);
	open_store(&worker);
	converse(&worker);
	use = worker.ops->memory_use(worker.backend);
	sum = gw_memory_plan_sum(&planned);
	assert_int_equal(planned.parts[GW_MEMORY_STEPS] > 0, store != NULL);
	if (use.most > sum || (double)sum > 1.1 * (double)use.most) {
		char text[GW_MEMORY_TEXT];

		fail_msg("%s, %u dense layers, store %s: %llu bytes taken, %llu planned (MiB: %s); who "
		         "takes device memory tells gw_memory_plan_make of it", policy, dense_layers,
		    store_address(), (unsigned long long)use.most, (unsigned long long)sum,
		    gw_memory_plan_text(&planned, text));
	}
	printf("%s, %u dense layers: %llu bytes taken, %llu planned\n", policy, dense_layers,
	    (unsigned long long)use.most, (unsigned long long)sum);
	kvt_worker_close(&worker);
	if (store != NULL) end_store();
}

static void what_is_taken_was_planned(void **state)
{
	(void)state;
	compare("clusterkv", 1, KN_KV_F32, start_store);
	compare("clusterkv", 0, KN_KV_F16, start_store);
	compare("clusterkv-paper", 2, KN_KV_F16, start_store);
	compare("full", 0, KN_KV_F16, NULL);
}

/* The device has no steps of its own then, and nothing is kept for them. */
static void so_it_is_with_a_store_in_the_process(void **state)
{
	(void)state;
	compare("clusterkv", 0, KN_KV_F16, NULL);
}

/* No sequence that opens later, however long, makes steps take more. */
static void what_steps_need_is_there_from_the_start(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct gw_sequence *sequence = NULL;
	struct gw_step_room room;
	int32_t ids[PROMPT];
	struct gw_sequence_request request = {.tokens = ids, .token_count = PROMPT,
	    .max_tokens = ROOM};

	(void)state;
	start_store();
	kvt_worker_open(&worker, model_name, 1);
	worker.options.context = CONTEXT;
	worker.options.reserve = 1;
	open_store(&worker);
	pipeline = kvt_pipeline_open(&worker);
	room = pipeline->device_step->room;
	assert_non_null(room.staging);
	assert_non_null(room.misses);
	kvt_make_prompt(&worker, 1, ids, PROMPT);
	must(gw_sequence_open(pipeline, &request, &sequence));
	assert_memory_equal(&pipeline->device_step->room, &room, sizeof room);
	gw_sequence_close(sequence, 0);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
	end_store();
}

/* Without --cache the cluster cache gets what is left, as far as it is of use. */
static void the_rest_is_the_cache(void **state)
{
	struct kvt_worker worker;
	struct gw_memory_plan planned;
	uint64_t rows;

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	rows = (uint64_t)worker.shape->kv_heads * (worker.shape->layers - 1) *
	       kn_kv_row_bytes(worker.options.kv_type, worker.shape->head_dim);
	plan(&worker, &planned);
	/* No limit is known: twice what a step selects. */
	assert_int_equal(planned.limit, 0);
	assert_int_equal(planned.parts[GW_MEMORY_CACHE],
	    2 * worker.options.max_batch * worker.options.policy.budget * rows);
	kvt_worker_close(&worker);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(what_is_taken_was_planned),
	    cmocka_unit_test(so_it_is_with_a_store_in_the_process),
	    cmocka_unit_test(what_steps_need_is_there_from_the_start),
	    cmocka_unit_test(the_rest_is_the_cache),
	};

	if (argc > 1) model_name = argv[1];
	if (setenv("CLUSTERKV_TEST_BACKEND", "discrete", 1) != 0) return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
