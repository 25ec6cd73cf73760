/* Units of a store: described, written, read back, and put where decoding needs them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/pipeline_check.h"
#include "tests/lib/pipeline_fixture.h"

enum { PROMPT = 400 };

struct bench {
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk talk;
	int32_t ids[PROMPT];
};

/* A sequence with the list "256 336 | 400" in a store. */
static void bench_open(struct bench *bench)
{
	struct kvt_question question = {.prompt = bench->ids, .prompt_tokens = PROMPT, .room = 4};

	kvt_worker_open(&bench->worker, "tiny_llama", 1);
	kvt_make_prompt(&bench->worker, 1, bench->ids, PROMPT);
	kvt_store_open(&bench->worker, 0);
	bench->pipeline = kvt_pipeline_open(&bench->worker);
	kvt_talk_run(&bench->talk, bench->pipeline, &question, 1);
	assert_string_equal(kvt_list_text(bench->talk.sequence), "256 336 | 400");
}

static void bench_close(struct bench *bench)
{
	kvt_talk_end(&bench->talk);
	gw_pipeline_destroy(bench->pipeline);
	kvt_worker_close(&bench->worker);
}

static void units_are_described_by_layer_and_kind(void **state)
{
	struct bench bench;
	struct gw_unit unit;
	const struct kvc_segment *const *segments;

	(void)state;
	bench_open(&bench);
	segments = bench.talk.sequence->segments;
	assert_int_equal(gw_unit_describe(bench.pipeline, segments[0], 0, &unit), KV_OK);
	assert_int_equal(unit.shape.plain, 256); /* a dense layer */
	assert_int_equal(unit.shape.clusters, 0);
	assert_int_equal(gw_unit_describe(bench.pipeline, segments[0], 1, &unit), KV_OK);
	assert_int_equal(unit.shape.plain, 16);
	assert_int_equal(unit.shape.clusters, 15);
	assert_int_equal(unit.shape.row_bytes, bench.pipeline->row_bytes);
	assert_int_equal(gw_unit_describe(bench.pipeline, segments[1], 3, &unit), KV_OK);
	assert_int_equal(unit.shape.plain, 0);
	assert_int_equal(unit.shape.clusters, 5);
	assert_int_equal(gw_unit_describe(bench.pipeline, segments[2], 3, &unit), KV_OK);
	assert_int_equal(unit.shape.plain, 64);
	assert_int_equal(unit.shape.clusters, 0);
	assert_int_equal(gw_unit_describe(bench.pipeline, segments[0], 4, &unit), KV_INVALID);
	assert_int_equal(unit.shape.plain, 64);
	bench_close(&bench);
}

static void units_are_read_where_they_lie(void **state)
{
	struct bench bench;
	const struct gw_sequence *sequence;
	const uint8_t *memory = NULL;
	struct gw_unit unit;

	(void)state;
	bench_open(&bench);
	sequence = bench.talk.sequence;
	for (uint32_t i = 0; i < sequence->segment_count; i++)
		for (uint32_t layer = 0; layer < bench.worker.shape->layers; layer++) {
			assert_int_equal(
			    gw_unit_describe(bench.pipeline, sequence->segments[i], layer, &unit), KV_OK);
			assert_int_equal(
			    gw_unit_read(bench.pipeline, sequence->segments[i], layer, &unit, NULL, &memory),
			    KV_OK);
			assert_ptr_equal(memory, kvc_direct(bench.worker.store, sequence->segments[i], layer));
			assert_true(unit.layout.bytes <= gw_attach_buffer_bytes(sequence));
			assert_ptr_equal(gw_unit_row(&unit, memory, 1, 3),
			    memory + unit.layout.head_bytes + unit.layout.rows + 3 * unit.shape.row_bytes);
		}
	bench_close(&bench);
}

/* Attaching the list anew gives what the prompt's own run had left, and no more room is taken. */
static void attaching_gives_what_writing_left(void **state)
{
	struct bench bench;
	struct gw_sequence *sequence;
	const struct kn_device *device;
	uint8_t *buffer;

	(void)state;
	bench_open(&bench);
	sequence = bench.talk.sequence;
	device = &bench.pipeline->device;
	kvt_check_sequence(sequence);
	buffer = kv_alloc(kv_heap(), gw_attach_buffer_bytes(sequence));
	assert_non_null(buffer);
	for (uint32_t layer = 0; layer < bench.worker.shape->layers; layer++) {
		struct gw_layer_state *held = &sequence->layers[layer];

		/* Twice is too much for every layer, and says so. */
		assert_int_equal(gw_attach_layer(sequence, device, layer, buffer), KV_LIMIT);
		assert_int_equal(gw_token_rows_drop(&held->recent, held->recent.count), KV_OK);
		assert_int_equal(gw_token_rows_drop(&held->sinks, held->sinks.count), KV_OK);
		if (held->index != NULL) gw_cluster_index_truncate(held->index, 0);
		assert_int_equal(gw_attach_layer(sequence, device, layer, buffer), KV_OK);
	}
	kvt_check_sequence(sequence);
	kv_free(kv_heap(), buffer);
	bench_close(&bench);
}

static void a_unit_with_wrong_sizes_is_corrupt(void **state)
{
	struct bench bench;
	struct gw_sequence *sequence;
	const struct kn_device *device;
	struct gw_unit unit;
	uint8_t *copy;
	const uint8_t *memory;

	(void)state;
	bench_open(&bench);
	sequence = bench.talk.sequence;
	device = &bench.pipeline->device;
	assert_int_equal(gw_unit_describe(bench.pipeline, sequence->segments[1], 2, &unit), KV_OK);
	memory = kvc_direct(bench.worker.store, sequence->segments[1], 2);
	copy = kv_alloc(kv_heap(), unit.layout.bytes);
	assert_non_null(copy);
	memcpy(copy, memory, unit.layout.bytes);
	assert_int_equal(gw_unit_attach(&sequence->layers[2], device, &unit, copy, 1), KV_OK);
	copy[unit.layout.head_bytes + unit.layout.sizes] ^= 1;
	assert_int_equal(gw_unit_attach(&sequence->layers[2], device, &unit, copy, 1), KV_CORRUPT);
	kvt_check_sequence(sequence);
	kv_free(kv_heap(), copy);
	bench_close(&bench);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(units_are_described_by_layer_and_kind),
	    cmocka_unit_test(units_are_read_where_they_lie),
	    cmocka_unit_test(attaching_gives_what_writing_left),
	    cmocka_unit_test(a_unit_with_wrong_sizes_is_corrupt),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
