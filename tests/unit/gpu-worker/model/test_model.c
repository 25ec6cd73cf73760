/* gw_model on tiny models: the same logits as an independent forward pass, and refusal of files
 * that do not hold the model that they claim to. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/model/model.h"
#include "tests/lib/reference_forward.h"

enum { PROMPT = 40, MAX_ROWS = 16, MAX_COLUMNS = 512 };

/* A backend with everything that a model is opened with. */
struct bench {
	struct kv_allocator *allocator;
	const struct kn_backend_ops *ops;
	struct kn_backend *backend;
	struct kn_stream *stream;
};

static void bench_open(struct bench *bench)
{
	struct kn_backend_options options = {
	    .threads = 2, .max_rows = MAX_ROWS, .max_columns = MAX_COLUMNS};

	bench->allocator = kv_allocator_create("model test", 0);
	options.allocator = bench->allocator;
	assert_int_equal(kn_backend_open("cpu", &options, &bench->ops, &bench->backend), KV_OK);
	assert_int_equal(
	    bench->ops->stream_create(bench->backend, KN_STREAM_COMPUTE, &bench->stream), KV_OK);
}

static void bench_close(struct bench *bench)
{
	bench->ops->stream_destroy(bench->backend, bench->stream);
	bench->ops->close(bench->backend);
	assert_int_equal(kv_allocator_stats(bench->allocator).blocks, 0);
	kv_allocator_destroy(bench->allocator);
}

static struct gw_model_options model_options(const struct bench *bench)
{
	return (struct gw_model_options){
	    .allocator = bench->allocator,
	    .ops = bench->ops,
	    .backend = bench->backend,
	    .stream = bench->stream,
	    .precision = KN_PRECISION_FP32,
	    .max_rows = MAX_ROWS,
	};
}

static void make_prompt(int32_t *ids, uint32_t count, uint32_t vocabulary)
{
	for (uint32_t i = 0; i < count; i++)
		ids[i] = (int32_t)((i * 37 + i * i * 11 + 5) % vocabulary);
}

/* Both passes over one file, every position's logits. The kernels multiply in float, in another
 * order. */
static void compare_with_reference(const char *path)
{
	struct bench bench;
	struct gw_model_options options;
	struct kvt_reference *reference;
	struct gw_gguf *file;
	struct gw_model *model;
	uint32_t vocabulary;
	int32_t ids[PROMPT];
	float *expected, *actual, worst = 0;

	bench_open(&bench);
	options = model_options(&bench);
	assert_int_equal(gw_gguf_open(bench.allocator, path, &file), KV_OK);
	assert_int_equal(kvt_reference_open(bench.allocator, file, &reference), KV_OK);
	vocabulary = kvt_reference_vocabulary(reference);
	make_prompt(ids, PROMPT, vocabulary);
	expected = kv_alloc_array(bench.allocator, (size_t)PROMPT * vocabulary, sizeof *expected);
	actual = kv_alloc_array(bench.allocator, (size_t)PROMPT * vocabulary, sizeof *actual);
	assert_true(expected && actual);
	assert_int_equal(kvt_reference_logits(reference, ids, PROMPT, expected), KV_OK);
	kvt_reference_close(reference);
	if (gw_model_open(file, &options, &model) != KV_OK) fail_msg("%s", kv_error_message());
	gw_gguf_close(file);
	assert_int_equal(gw_model_shape(model)->vocabulary, vocabulary);
	assert_int_equal(
	    kvt_model_logits(model, bench.allocator, MAX_ROWS, ids, PROMPT, actual), KV_OK);
	for (size_t i = 0; i < (size_t)PROMPT * vocabulary; i++)
		worst = fmaxf(worst, fabsf(actual[i] - expected[i]));
	print_message("%s: largest difference %.2e\n", path, (double)worst);
	assert_true(worst < 1e-3f);
	kv_free(bench.allocator, expected);
	kv_free(bench.allocator, actual);
	gw_model_close(model);
	bench_close(&bench);
}

static void test_llama(void **state)
{
	(void)state;
	compare_with_reference(KV_TINY_MODELS "/tiny_llama.gguf");
}

static void test_qwen2(void **state)
{
	(void)state;
	compare_with_reference(KV_TINY_MODELS "/tiny_qwen2.gguf");
}

static void test_tied_and_scaled(void **state)
{
	(void)state;
	compare_with_reference(KV_TINY_MODELS "/tiny_llama_tied.gguf");
}

static void test_shape(void **state)
{
	struct gw_model_shape shape;
	struct gw_gguf *file;

	(void)state;
	assert_int_equal(gw_gguf_open(kv_heap(), KV_TINY_MODELS "/tiny_llama.gguf", &file), KV_OK);
	assert_int_equal(gw_model_read_shape(file, &shape), KV_OK);
	assert_int_equal(shape.layers, 4);
	assert_int_equal(shape.heads, 4);
	assert_int_equal(shape.kv_heads, 2);
	assert_int_equal(gw_shape_group(&shape), 2);
	assert_int_equal(shape.head_dim, 32);
	assert_int_equal(shape.rotary_dim, 32);
	assert_int_equal(shape.hidden, 128);
	assert_int_equal(shape.feed_forward, 256);
	assert_int_equal(shape.context, 16384);
	assert_true(shape.rope_base == 100000.0);
	assert_true(fabsf(shape.attention_scale - 0.17677669f) < 1e-7f);
	assert_true(fabsf(shape.norm_epsilon - 1e-5f) < 1e-10f);
	gw_gguf_close(file);
}

/* Rows in one call give the same bits as rows one by one, and nothing is allocated. */
static void test_rows_are_independent(void **state)
{
	struct bench bench;
	struct gw_model_options options;
	struct gw_gguf *file;
	struct gw_model *model;
	const struct gw_model_shape *shape;
	int32_t ids[MAX_ROWS];
	uint32_t positions[MAX_ROWS], width;
	float *x, *together, *alone;
	uint64_t allocations;

	(void)state;
	bench_open(&bench);
	options = model_options(&bench);
	options.precision = KN_PRECISION_DEFAULT;
	assert_int_equal(gw_gguf_open(kv_heap(), KV_TINY_MODELS "/tiny_qwen2.gguf", &file), KV_OK);
	assert_int_equal(gw_model_open(file, &options, &model), KV_OK);
	gw_gguf_close(file);
	shape = gw_model_shape(model);
	width = gw_model_qkv_width(model);
	assert_int_equal(width, 8 * 32);
	x = kv_alloc_array_zero(kv_heap(), (size_t)MAX_ROWS * shape->hidden, sizeof *x);
	together = kv_alloc_array_zero(kv_heap(), (size_t)MAX_ROWS * width, sizeof *together);
	alone = kv_alloc_array_zero(kv_heap(), width, sizeof *alone);
	assert_true(x && together && alone);
	make_prompt(ids, MAX_ROWS, shape->vocabulary);
	for (uint32_t i = 0; i < MAX_ROWS; i++)
		positions[i] = 1000 + 77 * i;
	allocations = kv_allocator_stats(bench.allocator).allocations;
	assert_int_equal(gw_model_embed(model, ids, MAX_ROWS, x), KV_OK);
	assert_int_equal(gw_model_project(model, 1, x, positions, MAX_ROWS, together), KV_OK);
	for (uint32_t i = 0; i < MAX_ROWS; i++) {
		assert_int_equal(
		    gw_model_project(model, 1, x + (size_t)i * shape->hidden, positions + i, 1, alone),
		    KV_OK);
		assert_memory_equal(alone, together + (size_t)i * width, width * sizeof *alone);
	}
	assert_int_equal(kv_allocator_stats(bench.allocator).allocations, allocations);
	kv_free(kv_heap(), x);
	kv_free(kv_heap(), together);
	kv_free(kv_heap(), alone);
	gw_model_close(model);
	bench_close(&bench);
}

static void test_call_bounds(void **state)
{
	struct bench bench;
	struct gw_model_options options;
	struct gw_gguf *file;
	struct gw_model *model;
	const int32_t ids[1] = {0};
	const uint32_t positions[1] = {0};
	float cells[512] = {0};

	(void)state;
	bench_open(&bench);
	options = model_options(&bench);
	assert_int_equal(gw_gguf_open(kv_heap(), KV_TINY_MODELS "/tiny_tiny.gguf", &file), KV_OK);
	options.max_rows = 0;
	assert_int_equal(gw_model_open(file, &options, &model), KV_INVALID);
	options.max_rows = MAX_ROWS;
	assert_int_equal(gw_model_open(file, &options, &model), KV_OK);
	gw_gguf_close(file);
	assert_string_equal(gw_model_architecture(model), "qwen2");
	assert_int_equal(gw_model_embed(model, ids, 0, cells), KV_INVALID);
	assert_int_equal(gw_model_embed(model, ids, MAX_ROWS + 1, cells), KV_INVALID);
	assert_int_equal(gw_model_project(model, 1, cells, positions, 1, cells + 128), KV_INVALID);
	assert_int_equal(gw_model_finish(model, 7, cells, 1, cells + 128), KV_INVALID);
	assert_int_equal(gw_model_logits(model, cells, MAX_ROWS + 1, cells + 128), KV_INVALID);
	assert_int_equal(gw_model_project(model, 0, cells, positions, 1, cells + 128), KV_OK);
	gw_model_close(model);
	bench_close(&bench);
}

struct progress {
	uint64_t done, total;
	uint32_t calls;
};

static void on_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
	struct progress *progress = context;

	assert_true(done_bytes >= progress->done && done_bytes <= total_bytes);
	progress->done = done_bytes;
	progress->total = total_bytes;
	progress->calls++;
}

static void test_progress(void **state)
{
	struct progress progress = {0};
	struct bench bench;
	struct gw_model_options options;
	struct gw_gguf *file;
	struct gw_model *model;

	(void)state;
	bench_open(&bench);
	options = model_options(&bench);
	options.progress = on_progress;
	options.progress_context = &progress;
	assert_int_equal(gw_gguf_open(kv_heap(), KV_TINY_MODELS "/tiny_llama.gguf", &file), KV_OK);
	assert_int_equal(gw_model_open(file, &options, &model), KV_OK);
	gw_gguf_close(file);
	assert_true(progress.calls > 10);
	assert_int_equal(progress.done, progress.total);
	assert_true(gw_model_weight_bytes(model) > 600000);
	gw_model_close(model);
	bench_close(&bench);
}

static void test_allocation_failures(void **state)
{
	struct bench bench;
	struct gw_model_options options;
	struct gw_gguf *file;
	struct gw_model *model = NULL;
	uint64_t blocks, failed = 0;

	(void)state;
	bench_open(&bench);
	options = model_options(&bench);
	assert_int_equal(gw_gguf_open(kv_heap(), KV_TINY_MODELS "/tiny_tiny.gguf", &file), KV_OK);
	blocks = kv_allocator_stats(bench.allocator).blocks;
	for (uint64_t n = 1; n < 1000; n++) {
		enum kv_status status;

		kv_allocator_fail_at(bench.allocator, n);
		status = gw_model_open(file, &options, &model);
		if (status == KV_OK) break;
		assert_int_equal(status, KV_NO_MEMORY);
		assert_null(model);
		assert_int_equal(kv_allocator_stats(bench.allocator).blocks, blocks);
		failed++;
	}
	kv_allocator_fail_at(bench.allocator, 0);
	assert_non_null(model);
	assert_true(failed > 15);
	gw_gguf_close(file);
	gw_model_close(model);
	bench_close(&bench);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_llama),
	    cmocka_unit_test(test_qwen2),
	    cmocka_unit_test(test_tied_and_scaled),
	    cmocka_unit_test(test_shape),
	    cmocka_unit_test(test_rows_are_independent),
	    cmocka_unit_test(test_call_bounds),
	    cmocka_unit_test(test_progress),
	    cmocka_unit_test(test_allocation_failures),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
