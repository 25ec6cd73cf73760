#include "tests/lib/pipeline_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "tests/lib/discrete_backend.h"

static const struct gw_policy_options usual_policy = {.name = "clusterkv",
    .budget = 128,
    .sinks = 16,
    .window = 64,
    .fold = 96,
    .segment = 256,
    .cluster_tokens = 16,
    .dense_layers = 1,
    .iterations = 5,
    .size_term = 1,
    .estimate = 1,
    .center = 1};

/* Every step of a fixture has to work: say why when it does not. */
static void must(enum kv_status status, const char *what)
{
	if (status != KV_OK) fail_msg("%s: %s", what, kv_error_message());
}

static uint32_t larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* CLUSTERKV_TEST_BACKEND=discrete: all tests of the data path on a device that is not the host. */
static void open_backend(struct kvt_worker *worker, const struct kn_backend_options *options)
{
	const char *name = getenv("CLUSTERKV_TEST_BACKEND");

	if (name == NULL || strcmp(name, "discrete") != 0) {
		must(kn_backend_open("cpu", options, &worker->ops, &worker->backend), "open the backend");
		return;
	}
	worker->ops = &kvt_discrete_ops;
	must(worker->ops->open(options, &worker->backend), "open the discrete backend");
}

void kvt_worker_open(struct kvt_worker *worker, const char *model, uint32_t threads)
{
	struct kn_backend_options backend = {.threads = threads, .max_rows = KVT_MAX_ROWS_OF_A_CALL};
	struct gw_model_options options = {
	    .precision = KN_PRECISION_FP32, .max_rows = KVT_MAX_ROWS_OF_A_CALL};
	struct gw_model_shape shape;
	struct gw_gguf *file = NULL;
	char path[512];

	memset(worker, 0, sizeof *worker);
	worker->model_allocator = kv_allocator_create("model", 0);
	worker->allocator = kv_allocator_create("pipeline", 0);
	worker->store_allocator = kv_allocator_create("store", 0);
	backend.allocator = options.allocator = worker->model_allocator;
	snprintf(path, sizeof path, "%s/%s.gguf", KV_TINY_MODELS, model);
	must(gw_gguf_open(worker->model_allocator, path, &file), "open the model's file");
	must(gw_model_read_shape(file, &shape), "read the model's shape");
	backend.max_columns =
	    larger(larger(shape.hidden, shape.feed_forward), shape.heads * shape.head_dim);
	open_backend(worker, &backend);
	must(worker->ops->stream_create(worker->backend, KN_STREAM_COMPUTE, &worker->stream),
	    "create a stream");
	options.ops = worker->ops;
	options.backend = worker->backend;
	options.stream = worker->stream;
	must(gw_model_open(file, &options, &worker->model), "open the model");
	gw_gguf_close(file);
	worker->shape = gw_model_shape(worker->model);
	worker->options = (struct gw_pipeline_options){.allocator = worker->allocator,
	    .ops = worker->ops,
	    .backend = worker->backend,
	    .stream = worker->stream,
	    .model = worker->model,
	    .policy = usual_policy,
	    .kv_type = KN_KV_F32,
	    .chunk = 64,
	    .max_batch = 4};
}

static void end_allocator(struct kv_allocator *allocator, const char *name)
{
	if (kv_allocator_stats(allocator).blocks != 0)
		fail_msg("%llu blocks of the %s are left",
		    (unsigned long long)kv_allocator_stats(allocator).blocks, name);
	kv_allocator_destroy(allocator);
}

void kvt_worker_close(struct kvt_worker *worker)
{
	kvt_store_close(worker);
	gw_model_close(worker->model);
	worker->ops->stream_destroy(worker->backend, worker->stream);
	worker->ops->close(worker->backend);
	end_allocator(worker->allocator, "pipeline");
	end_allocator(worker->model_allocator, "model");
}

static void open_store(struct kvt_worker *worker, const struct kvc_options *asked)
{
	struct kvc_options options = *asked;

	kvt_store_close(worker);
	worker->store_allocator = kv_allocator_create("store", 0);
	options.allocator = worker->store_allocator;
	options.name = "test";
	options.model_name = "tiny";
	gw_pipeline_layout(
	    worker->shape, &worker->options.policy, worker->options.kv_type, &options.layout);
	kv_log_set_level(KV_LOG_WARNING);
	must(kvc_open(&options, &worker->store), "open the store");
	worker->options.store = worker->store;
}

void kvt_store_open(struct kvt_worker *worker, uint64_t memory)
{
	const struct kvc_options options = {
	    .address = "none", .local_memory = memory > 0 ? memory : (uint64_t)256 << 20};

	open_store(worker, &options);
}

void kvt_store_connect(struct kvt_worker *worker, const char *address, const char *transport)
{
	const struct kvc_options options = {
	    .address = address, .transport = transport, .connect_ms = 5000};

	open_store(worker, &options);
}

void kvt_store_close(struct kvt_worker *worker)
{
	if (worker->store != NULL) kvc_close(worker->store);
	worker->store = worker->options.store = NULL;
	if (worker->store_allocator != NULL) end_allocator(worker->store_allocator, "store");
	worker->store_allocator = NULL;
}

struct gw_pipeline *kvt_pipeline_open(struct kvt_worker *worker)
{
	struct gw_pipeline *pipeline = NULL;

	must(gw_pipeline_create(&worker->options, &pipeline), "create the pipeline");
	return pipeline;
}

void kvt_make_prompt(const struct kvt_worker *worker, uint64_t seed, int32_t *ids, uint32_t count)
{
	struct kv_random random;

	kv_random_seed(&random, seed);
	for (uint32_t i = 0; i < count; i++)
		ids[i] = (int32_t)(3 + kv_random_below(&random, worker->shape->vocabulary - 3));
}

static void prepare(
    struct kvt_talk *talk, struct gw_pipeline *pipeline, const struct kvt_question *question)
{
	memset(talk, 0, sizeof *talk);
	talk->pipeline = pipeline;
	talk->question = *question;
	if (question->sampling.temperature == 0.0f) talk->question.sampling.top_p = 1.0f;
	talk->vocabulary = gw_model_shape(gw_pipeline_options(pipeline)->model)->vocabulary;
	talk->logits =
	    kv_alloc_array_zero(kv_heap(), (size_t)KVT_MAX_ANSWER * talk->vocabulary, sizeof(float));
	talk->scratch = kv_alloc(kv_heap(), gw_sampler_scratch_bytes(talk->vocabulary));
	assert_non_null(talk->logits);
	assert_non_null(talk->scratch);
	must(gw_sampler_init(&talk->sampler, &talk->question.sampling), "set the sampler up");
}

static void pick(struct kvt_talk *talk)
{
	uint32_t row = talk->count++;

	assert_true(talk->count < KVT_MAX_ANSWER);
	talk->tokens[row] = talk->question.teacher != NULL
	                        ? talk->question.teacher[row]
	                        : gw_sampler_pick(&talk->sampler, kvt_talk_logits(talk, row),
	                              talk->vocabulary, talk->scratch);
}

void kvt_talk_begin(
    struct kvt_talk *talk, struct gw_pipeline *pipeline, const struct kvt_question *question)
{
	struct gw_sequence_request request = {.id = question->id,
	    .tokens = question->prompt,
	    .token_count = question->prompt_tokens,
	    .max_tokens = question->room,
	    .parameters = "parameters",
	    .parameter_bytes = 11};

	prepare(talk, pipeline, question);
	must(gw_sequence_open(pipeline, &request, &talk->sequence), "open a sequence");
	snprintf(talk->id, sizeof talk->id, "%s", gw_sequence_id(talk->sequence));
	must(gw_run_prompt(talk->sequence, talk->logits, NULL, NULL, NULL), "run a prompt");
	pick(talk);
}

void kvt_talk_resume(struct kvt_talk *talk, struct gw_pipeline *pipeline,
    const struct kvt_question *question, const char *id)
{
	struct kvc_resume_state state = {0};

	prepare(talk, pipeline, question);
	must(gw_sequence_resume(pipeline, id, 0, &talk->sequence, &state), "resume a sequence");
	snprintf(talk->id, sizeof talk->id, "%s", gw_sequence_id(talk->sequence));
	assert_int_equal(state.prompt_tokens, question->prompt_tokens);
	assert_memory_equal(
	    state.prompt, question->prompt, question->prompt_tokens * sizeof *question->prompt);
	assert_int_equal(state.parameter_bytes, 11);
	assert_string_equal(state.parameters, "parameters");
	talk->count = talk->accepted = state.decoded_tokens;
	memcpy(talk->tokens, state.decoded, state.decoded_tokens * sizeof *talk->tokens);
	if (state.decoded_tokens > 0) {
		assert_int_equal(state.sampler_bytes, sizeof talk->sampler.random);
		memcpy(&talk->sampler.random, state.sampler_state, sizeof talk->sampler.random);
	}
	must(gw_sequence_replay(
	         talk->sequence, kvt_talk_logits(talk, talk->count), NULL, NULL),
	    "replay");
	pick(talk);
}

void kvt_talk_step(struct kvt_talk *const *talks, uint32_t count)
{
	struct gw_sequence *batch[KN_MAX_DECODE_ROWS];
	enum kv_status failures[KN_MAX_DECODE_ROWS];
	uint32_t vocabulary = talks[0]->vocabulary;
	float *logits = kv_alloc_array(kv_heap(), (size_t)count * vocabulary, sizeof *logits);

	assert_non_null(logits);
	for (uint32_t i = 0; i < count; i++) {
		struct kvt_talk *talk = talks[i];

		must(gw_sequence_accept(talk->sequence, talk->tokens[talk->count - 1],
		         &talk->sampler.random, sizeof talk->sampler.random),
		    "accept a token");
		talk->accepted++;
		batch[i] = talk->sequence;
	}
	must(gw_run_token(talks[0]->pipeline, batch, count, logits, failures), "run a step");
	for (uint32_t i = 0; i < count; i++) {
		must(failures[i], gw_sequence_failure(batch[i]));
		memcpy(kvt_talk_logits(talks[i], talks[i]->count), logits + (size_t)i * vocabulary,
		    vocabulary * sizeof *logits);
		pick(talks[i]);
	}
	kv_free(kv_heap(), logits);
}

void kvt_talk_run(struct kvt_talk *talk, struct gw_pipeline *pipeline,
    const struct kvt_question *question, uint32_t count)
{
	kvt_talk_begin(talk, pipeline, question);
	while (talk->count < count)
		kvt_talk_step(&talk, 1);
}

void kvt_talks_begin(struct kvt_talk talks[KVT_TALKS], struct kvt_worker *worker, uint32_t room)
{
	static const uint32_t lengths[KVT_TALKS] = {KVT_TALK_PROMPT, KVT_TALK_PROMPT, 450, 300};
	struct gw_pipeline *pipeline = kvt_pipeline_open(worker);
	int32_t ids[KVT_TALK_PROMPT], other[KVT_TALK_PROMPT];

	kvt_make_prompt(worker, 1, ids, KVT_TALK_PROMPT);
	kvt_make_prompt(worker, 2, other, KVT_TALK_PROMPT);
	for (uint32_t i = 0; i < KVT_TALKS; i++) {
		struct kvt_question question = {
		    .prompt = i == 3 ? other : ids, .prompt_tokens = lengths[i], .room = room};

		kvt_talk_begin(&talks[i], pipeline, &question);
	}
	assert_int_equal(gw_sequence_prefix_hit(talks[1].sequence), lengths[1] - 1);
	assert_int_equal(gw_sequence_prefix_hit(talks[2].sequence), lengths[2] - 1);
	assert_int_equal(gw_sequence_prefix_hit(talks[3].sequence), 0);
}

void kvt_talk_close(struct kvt_talk *talk, int keep)
{
	gw_sequence_close(talk->sequence, keep);
	talk->sequence = NULL;
}

void kvt_talk_end(struct kvt_talk *talk)
{
	if (talk->sequence != NULL) kvt_talk_close(talk, 0);
	kv_free(kv_heap(), talk->logits);
	kv_free(kv_heap(), talk->scratch);
	talk->logits = NULL;
	talk->scratch = NULL;
}

void kvt_assert_same(
    const struct kvt_talk *a, const struct kvt_talk *b, uint32_t first, uint32_t count)
{
	assert_true(first + count <= a->count && first + count <= b->count);
	for (uint32_t row = first; row < first + count; row++) {
		const float *x = kvt_talk_logits(a, row), *y = kvt_talk_logits(b, row);

		if (memcmp(x, y, a->vocabulary * sizeof *x) != 0)
			fail_msg("row %u of the logits is not the same, first %.9g and %.9g", row, (double)x[0],
			    (double)y[0]);
		if (a->tokens[row] != b->tokens[row])
			fail_msg("token %u is %d and %d", row, (int)a->tokens[row], (int)b->tokens[row]);
	}
}

double kvt_assert_close(
    const struct kvt_talk *a, const struct kvt_talk *b, uint32_t count, double most)
{
	double worst = 0.0;

	assert_true(count <= a->count && count <= b->count);
	for (uint32_t row = 0; row < count; row++) {
		const float *x = kvt_talk_logits(a, row), *y = kvt_talk_logits(b, row);

		if (a->tokens[row] != b->tokens[row]) fail_msg("token %u is another", row);
		for (uint32_t i = 0; i < a->vocabulary; i++) {
			double difference = fabs((double)x[i] - (double)y[i]);

			if (!(difference <= most))
				fail_msg("logit %u of row %u: %g and %g", i, row, (double)x[i], (double)y[i]);
			if (difference > worst) worst = difference;
		}
	}
	return worst;
}

static double margin_of(const struct kvt_talk *talk, uint32_t row)
{
	const float *x = kvt_talk_logits(talk, row);
	double best = -HUGE_VAL, second = -HUGE_VAL;

	for (uint32_t i = 0; i < talk->vocabulary; i++) {
		double value = (double)x[i];

		if (value > best) {
			second = best;
			best = value;
		} else if (value > second) {
			second = value;
		}
	}
	return best - second;
}

void kvt_assert_greedy(
    const struct kvt_talk *a, const struct kvt_talk *b, uint32_t count, double margin)
{
	for (uint32_t row = 0; row < count; row++) {
		if (margin_of(a, row) < margin) return;
		if (a->tokens[row] != b->tokens[row])
			fail_msg("token %u is %d and %d, at a margin of %g", row, (int)a->tokens[row],
			    (int)b->tokens[row], margin_of(a, row));
	}
}
