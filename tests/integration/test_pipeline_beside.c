/* A prompt's layer is clustered and brought to the store beside the next one, on a stream of its
 * own: the same units, bit for bit, as where it is done at once; whatever ends the prompt meanwhile
 * leaves nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/discrete_backend.h"
#include "tests/lib/pipeline_check.h"
#include "tests/lib/pipeline_fixture.h"

enum { MOST = 1500, PROMPT = 500, STEPS = 8 };

static uint32_t begun, ended, fail_begin, fail_end; /* units; which one fails, 0: none */
static enum kv_status failure = KV_DISCONNECTED;    /* with what */

enum kv_status __real_kvc_unit_begin(struct kvc_sequence *sequence,
    const struct kvc_segment *segment, uint32_t layer, uint8_t **memory, uint64_t *bytes);
enum kv_status __wrap_kvc_unit_begin(struct kvc_sequence *sequence,
    const struct kvc_segment *segment, uint32_t layer, uint8_t **memory, uint64_t *bytes);

enum kv_status __wrap_kvc_unit_begin(struct kvc_sequence *sequence,
    const struct kvc_segment *segment, uint32_t layer, uint8_t **memory, uint64_t *bytes)
{
	if (++begun == fail_begin) return kv_fail(failure, "the store is gone");
	return __real_kvc_unit_begin(sequence, segment, layer, memory, bytes);
}

enum kv_status __real_kvc_unit_end(
    struct kvc_sequence *sequence, const struct kvc_segment *segment, uint32_t layer);
enum kv_status __wrap_kvc_unit_end(
    struct kvc_sequence *sequence, const struct kvc_segment *segment, uint32_t layer);

enum kv_status __wrap_kvc_unit_end(
    struct kvc_sequence *sequence, const struct kvc_segment *segment, uint32_t layer)
{
	if (++ended == fail_end) return kv_fail(KV_DISCONNECTED, "the store is gone");
	return __real_kvc_unit_end(sequence, segment, layer);
}

static void fail_units(uint32_t begin, uint32_t end)
{
	begun = ended = 0;
	fail_begin = begin;
	fail_end = end;
}

struct bench {
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
};

static void bench_open(struct bench *bench, const char *backend, uint32_t segment)
{
	assert_int_equal(setenv("CLUSTERKV_TEST_BACKEND", backend, 1), 0);
	kvt_worker_open(&bench->worker, "tiny_llama", 1);
	bench->worker.options.policy.segment = segment;
	bench->worker.options.policy.fold = 32;
	kvt_store_open(&bench->worker, 0);
	bench->pipeline = kvt_pipeline_open(&bench->worker);
	fail_units(0, 0);
}

static void bench_close(struct bench *bench)
{
	gw_pipeline_destroy(bench->pipeline);
	kvt_worker_close(&bench->worker);
}

static int same_head(const struct gw_unit *unit, const uint8_t *a, const uint8_t *b)
{
	const struct kvw_unit_layout *at = &unit->layout;
	size_t matrix = (size_t)unit->shape.clusters * unit->shape.head_dim * sizeof(uint16_t);
	size_t tokens = unit->shape.tokens;

	return memcmp(a + at->centroids, b + at->centroids, matrix) == 0 &&
	       memcmp(a + at->value_means, b + at->value_means, matrix) == 0 &&
	       memcmp(a + at->sizes, b + at->sizes, unit->shape.clusters * sizeof(uint32_t)) == 0 &&
	       memcmp(a + at->positions, b + at->positions, tokens * sizeof(uint32_t)) == 0 &&
	       memcmp(a + at->rows, b + at->rows, tokens * unit->shape.row_bytes) == 0;
}

static const uint8_t *unit_of(
    const struct gw_sequence *sequence, uint32_t i, uint32_t layer, struct gw_unit *unit)
{
	assert_int_equal(
	    gw_unit_describe(sequence->pipeline, sequence->segments[i], layer, unit), KV_OK);
	return kvc_direct(sequence->pipeline->options.store, sequence->segments[i], layer);
}

/* Units of both lists: all that is in them but what lies between arrays. */
static int same_units(const struct gw_sequence *a, const struct gw_sequence *b)
{
	int same = 1;

	assert_int_equal(a->segment_count, b->segment_count);
	for (uint32_t i = 0; i < a->segment_count; i++)
		for (uint32_t layer = 0; layer < a->pipeline->shape->layers; layer++) {
			struct gw_unit unit, other;
			const uint8_t *x = unit_of(a, i, layer, &unit), *y = unit_of(b, i, layer, &other);

			assert_memory_equal(&unit.layout, &other.layout, sizeof unit.layout);
			for (uint32_t head = 0; head < unit.shape.kv_heads; head++)
				same &= same_head(
				    &unit, x + head * unit.layout.head_bytes, y + head * unit.layout.head_bytes);
		}
	return same;
}

/* The same prompt on both, and some tokens more. */
static void compare(struct bench *cpu, struct bench *discrete, const int32_t *ids, uint32_t count)
{
	struct kvt_question question = {.prompt = ids, .prompt_tokens = count, .room = STEPS};
	struct kvt_talk a, b;

	kvt_talk_run(&a, cpu->pipeline, &question, STEPS);
	kvt_talk_run(&b, discrete->pipeline, &question, STEPS);
	kvt_check_sequence(b.sequence);
	assert_true(same_units(a.sequence, b.sequence));
	kvt_assert_same(&a, &b, 0, STEPS);
	kvt_talk_end(&a);
	kvt_talk_end(&b);
}

/* One after another: new ones, one that is known, one that goes on from a known part, one whose
 * last known segment is known in part. */
static void units_are_the_same(void **state)
{
	struct bench cpu, discrete;
	int32_t ids[MOST], other[MOST];

	(void)state;
	bench_open(&cpu, "cpu", 256);
	bench_open(&discrete, "discrete", 256);
	kvt_make_prompt(&cpu.worker, 1, ids, MOST);
	kvt_make_prompt(&cpu.worker, 2, other, MOST);
	compare(&cpu, &discrete, ids, PROMPT);
	compare(&cpu, &discrete, other, 777);
	compare(&cpu, &discrete, ids, PROMPT);
	compare(&cpu, &discrete, ids, 900);
	memcpy(other, ids, 400 * sizeof *ids);
	compare(&cpu, &discrete, other, 700);
	compare(&cpu, &discrete, other, 10);
	bench_close(&cpu);
	bench_close(&discrete);
}

/* More units than are begun together. */
static void so_are_many_small_ones(void **state)
{
	struct bench cpu, discrete;
	int32_t ids[MOST];

	(void)state;
	bench_open(&cpu, "cpu", 32);
	bench_open(&discrete, "discrete", 32);
	kvt_make_prompt(&cpu.worker, 3, ids, MOST);
	compare(&cpu, &discrete, ids, 32 * (GW_OFFLOAD_UNITS + 9));
	bench_close(&cpu);
	bench_close(&discrete);
}

static struct gw_prompt_run *open_prompt(
    struct bench *bench, const int32_t *ids, uint32_t count, struct gw_sequence **sequence)
{
	struct gw_sequence_request request = {.tokens = ids, .token_count = count, .max_tokens = 1};
	struct gw_prompt_run *run = NULL;

	assert_int_equal(gw_sequence_open(bench->pipeline, &request, sequence), KV_OK);
	assert_int_equal(gw_prompt_open(*sequence, NULL, NULL, NULL, &run), KV_OK);
	return run;
}

/* The store hears of a layer when the next one has been queued. */
static void a_layer_waits_for_the_next(void **state)
{
	uint32_t chunks = (PROMPT + 63) / 64;
	struct bench bench;
	struct gw_sequence *sequence;
	struct gw_prompt_run *run;
	float *logits;
	int32_t ids[PROMPT];
	int done = 0;

	(void)state;
	bench_open(&bench, "discrete", 256);
	kvt_make_prompt(&bench.worker, 4, ids, PROMPT);
	logits = kv_alloc_array(kv_heap(), bench.worker.shape->vocabulary, sizeof *logits);
	assert_non_null(logits);
	run = open_prompt(&bench, ids, PROMPT, &sequence);
	for (uint32_t i = 0; i < 2 * chunks + 1; i++)
		assert_int_equal(gw_prompt_step(run, logits, &done), KV_OK);
	assert_int_equal(begun, 0);
	assert_int_equal(gw_prompt_step(run, logits, &done), KV_OK);
	assert_int_equal(ended, sequence->cut_count);
	while (!done)
		assert_int_equal(gw_prompt_step(run, logits, &done), KV_OK);
	assert_int_equal(ended, sequence->cut_count * bench.worker.shape->layers);
	gw_prompt_close(run);
	kvt_check_sequence(sequence);
	gw_sequence_close(sequence, 0);
	kv_free(kv_heap(), logits);
	bench_close(&bench);
}

/* What a prompt leaves, run after some that came to nothing. */
struct after {
	struct bench cpu, discrete;
	int32_t ids[PROMPT];
	float *logits;
};

static void after_open(struct after *after)
{
	bench_open(&after->cpu, "cpu", 256);
	bench_open(&after->discrete, "discrete", 256);
	kvt_make_prompt(&after->cpu.worker, 5, after->ids, PROMPT);
	after->logits =
	    kv_alloc_array(kv_heap(), after->cpu.worker.shape->vocabulary, sizeof *after->logits);
	assert_non_null(after->logits);
}

static void after_close(struct after *after)
{
	fail_units(0, 0);
	compare(&after->cpu, &after->discrete, after->ids, PROMPT);
	kv_free(kv_heap(), after->logits);
	bench_close(&after->cpu);
	bench_close(&after->discrete);
}

static void a_prompt_may_be_closed_anywhere(void **state)
{
	struct after after;
	struct gw_sequence *sequence;
	uint32_t steps = 0, total;

	(void)state;
	after_open(&after);
	total = after.cpu.worker.shape->layers * ((PROMPT + 63) / 64 + 1);
	for (; steps <= total; steps += steps > 18 ? 5u : 1u) {
		struct gw_prompt_run *run = open_prompt(&after.discrete, after.ids, PROMPT, &sequence);
		int done = 0;

		for (uint32_t i = 0; i < steps; i++)
			assert_int_equal(gw_prompt_step(run, after.logits, &done), KV_OK);
		assert_int_equal(done, 0);
		gw_prompt_close(run);
		gw_sequence_close(sequence, 0);
	}
	after_close(&after);
}

static void the_store_may_fail_anywhere(void **state)
{
	struct after after;
	uint32_t units = 0;

	(void)state;
	after_open(&after);
	for (uint32_t at = 1; units == 0 || at <= 2 * units; at++) {
		struct gw_sequence_request request = {
		    .tokens = after.ids, .token_count = PROMPT, .max_tokens = 1};
		struct gw_sequence *sequence = NULL;

		fail_units(at % 2 == 0 ? (at + 1) / 2 : 0, at % 2 != 0 ? (at + 1) / 2 : 0);
		assert_int_equal(gw_sequence_open(after.discrete.pipeline, &request, &sequence), KV_OK);
		units = sequence->cut_count * after.cpu.worker.shape->layers;
		assert_int_equal(gw_run_prompt(sequence, after.logits, NULL, NULL, NULL), KV_DISCONNECTED);
		assert_string_equal(gw_sequence_failure(sequence), "the store is gone");
		gw_sequence_close(sequence, 0);
	}
	after_close(&after);
}

/* Another sequence that opens meanwhile and is longer takes other memory for indexing. */
static void memory_may_grow_meanwhile(void **state)
{
	struct after after;
	int32_t longer[MOST];
	uint32_t chunks = (PROMPT + 63) / 64;

	(void)state;
	after_open(&after);
	kvt_make_prompt(&after.cpu.worker, 6, longer, MOST);
	for (int fails = 1; fails >= 0; fails--) {
		struct gw_sequence_request request = {
		    .tokens = longer, .token_count = fails ? PROMPT + 100 : MOST, .max_tokens = 1};
		struct gw_sequence *sequence, *other = NULL;
		struct gw_prompt_run *run = open_prompt(&after.discrete, after.ids, PROMPT, &sequence);
		enum kv_status status = KV_OK;
		int done = 0;

		for (uint32_t i = 0; i < chunks + 3; i++)
			assert_int_equal(gw_prompt_step(run, after.logits, &done), KV_OK);
		fail_units(fails ? 1 : 0, 0);
		assert_int_equal(gw_sequence_open(after.discrete.pipeline, &request, &other), KV_OK);
		assert_true(begun > 0);
		gw_sequence_close(other, 0);
		while (status == KV_OK && !done)
			status = gw_prompt_step(run, after.logits, &done);
		assert_int_equal(status, fails ? KV_DISCONNECTED : KV_OK);
		if (fails) assert_string_equal(gw_sequence_failure(sequence), "the store is gone");
		gw_prompt_close(run);
		if (!fails) {
			struct kvt_question question = {
			    .prompt = after.ids, .prompt_tokens = PROMPT, .room = 1};
			struct kvt_talk talk;

			kvt_check_sequence(sequence);
			kvt_talk_run(&talk, after.cpu.pipeline, &question, 1);
			assert_true(same_units(talk.sequence, sequence));
			assert_memory_equal(talk.logits, after.logits, talk.vocabulary * sizeof *talk.logits);
			kvt_talk_end(&talk);
		}
		gw_sequence_close(sequence, 0);
	}
	after_close(&after);
}

/* What one has begun is finished before the other begins: each has its own in the end, also where
 * that fails. */
static void prompts_may_take_turns(void **state)
{
	struct after after;
	int32_t other[PROMPT + 100];
	struct kvt_question question = {.prompt = other, .prompt_tokens = PROMPT + 100, .room = 1};
	struct kvt_talk talk;

	(void)state;
	after_open(&after);
	kvt_make_prompt(&after.cpu.worker, 8, other, PROMPT + 100);
	kvt_talk_run(&talk, after.cpu.pipeline, &question, 1);
	for (int fails = 1; fails >= 0; fails--) {
		struct gw_sequence *sequences[2];
		struct gw_prompt_run *runs[2] = {
		    open_prompt(&after.discrete, after.ids, PROMPT, &sequences[0]),
		    open_prompt(&after.discrete, other, PROMPT + 100, &sequences[1])};
		enum kv_status status[2] = {KV_OK, KV_OK};
		int done[2] = {0, 0};

		/* The first layer of the first is given to the store when the second's begins. */
		fail_units(fails ? 1 : 0, 0);
		while ((status[0] == KV_OK && !done[0]) || !done[1])
			for (int i = 0; i < 2; i++)
				if (status[i] == KV_OK && !done[i])
					status[i] = gw_prompt_step(runs[i], after.logits, &done[i]);
		assert_int_equal(status[0], fails ? KV_DISCONNECTED : KV_OK);
		assert_int_equal(status[1], KV_OK);
		gw_prompt_close(runs[0]);
		gw_prompt_close(runs[1]);
		kvt_check_sequence(sequences[1]);
		if (fails) assert_true(same_units(talk.sequence, sequences[1]));
		if (fails) assert_memory_equal(talk.logits, after.logits, 4 * talk.vocabulary);
		if (!fails) kvt_check_sequence(sequences[0]);
		gw_sequence_close(sequences[0], 0);
		gw_sequence_close(sequences[1], 0);
	}
	kvt_talk_end(&talk);
	question = (struct kvt_question){.prompt = after.ids, .prompt_tokens = PROMPT, .room = 1};
	kvt_talk_run(&talk, after.cpu.pipeline, &question, 1);
	kvt_talk_end(&talk);
	after_close(&after);
}

/* That the tests above would show it: without the orders between streams, what is clustered is not
 * there yet. */
static void a_missing_order_shows(void **state)
{
	struct bench cpu, discrete;
	int32_t ids[PROMPT];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = PROMPT, .room = 1};
	struct gw_sequence_request request = {.tokens = ids, .token_count = PROMPT, .max_tokens = 1};
	struct gw_sequence *sequence = NULL;
	struct kvt_talk talk;
	float *logits;

	(void)state;
	bench_open(&cpu, "cpu", 256);
	bench_open(&discrete, "discrete", 256);
	kvt_make_prompt(&cpu.worker, 7, ids, PROMPT);
	logits = kv_alloc_array(kv_heap(), cpu.worker.shape->vocabulary, sizeof *logits);
	assert_non_null(logits);
	kvt_talk_run(&talk, cpu.pipeline, &question, 1);
	kvt_discrete_forget_orders(1);
	assert_int_equal(gw_sequence_open(discrete.pipeline, &request, &sequence), KV_OK);
	if (gw_run_prompt(sequence, logits, NULL, NULL, NULL) == KV_OK)
		assert_false(same_units(talk.sequence, sequence));
	kvt_discrete_forget_orders(0);
	gw_sequence_close(sequence, 0);
	kv_free(kv_heap(), logits);
	kvt_talk_end(&talk);
	bench_close(&cpu);
	bench_close(&discrete);
}

/* A store without memory for a fold leaves the sequence as it was; a limit that is met later, when
 * clusters were replaced, does not. */
static void a_limit_within_a_fold_is_the_end(void **state)
{
	struct bench cpu;
	int32_t ids[PROMPT];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = PROMPT, .room = 200};
	struct kvt_talk talk;
	struct gw_sequence *batch[1];
	enum kv_status failed = KV_OK;
	uint32_t steps = 0;

	(void)state;
	bench_open(&cpu, "cpu", 256);
	kvt_make_prompt(&cpu.worker, 9, ids, PROMPT);
	kvt_talk_begin(&talk, cpu.pipeline, &question);
	batch[0] = talk.sequence;
	fail_units(1, 0);
	failure = KV_LIMIT;
	while (failed == KV_OK && steps++ < 200) {
		assert_int_equal(gw_sequence_accept(batch[0], 5, "", 0), KV_OK);
		assert_int_equal(gw_run_token(cpu.pipeline, batch, 1, talk.logits, &failed), KV_OK);
	}
	failure = KV_DISCONNECTED;
	assert_int_equal(begun, 1);
	assert_int_equal(failed, KV_LIMIT);
	assert_false(gw_sequence_refused(batch[0]));
	assert_int_equal(gw_run_token(cpu.pipeline, batch, 1, talk.logits, &failed), KV_OK);
	assert_int_equal(failed, KV_LIMIT);
	assert_int_equal(begun, 1);
	fail_units(0, 0);
	kvt_talk_end(&talk);
	bench_close(&cpu);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(units_are_the_same),
	    cmocka_unit_test(so_are_many_small_ones),
	    cmocka_unit_test(a_layer_waits_for_the_next),
	    cmocka_unit_test(a_prompt_may_be_closed_anywhere),
	    cmocka_unit_test(the_store_may_fail_anywhere),
	    cmocka_unit_test(memory_may_grow_meanwhile),
	    cmocka_unit_test(prompts_may_take_turns),
	    cmocka_unit_test(a_missing_order_shows),
	    cmocka_unit_test(a_limit_within_a_fold_is_the_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
