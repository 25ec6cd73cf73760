/* The data path where no memory is shared with the store: the linker puts a kvc_direct in its place
 * that finds nothing, so that every unit has to be fetched, and there is staging memory for two
 * units at a time. The same bits as with shared memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/pipeline_check.h"
#include "tests/lib/pipeline_fixture.h"

static const char *model_name = "tiny_llama";
static int distant;
static uint32_t begun, refused; /* units */

enum { MOST = 800, STEPS = 130, STAGED = 2 };

const uint8_t *__real_kvc_direct(
    struct kvc_store *store, const struct kvc_segment *segment, uint32_t layer);
const uint8_t *__wrap_kvc_direct(
    struct kvc_store *store, const struct kvc_segment *segment, uint32_t layer);

const uint8_t *__wrap_kvc_direct(
    struct kvc_store *store, const struct kvc_segment *segment, uint32_t layer)
{
	return distant ? NULL : __real_kvc_direct(store, segment, layer);
}

enum kv_status __real_kvc_unit_begin(struct kvc_sequence *sequence,
    const struct kvc_segment *segment, uint32_t layer, uint8_t **memory, uint64_t *bytes);
enum kv_status __wrap_kvc_unit_begin(struct kvc_sequence *sequence,
    const struct kvc_segment *segment, uint32_t layer, uint8_t **memory, uint64_t *bytes);

enum kv_status __wrap_kvc_unit_begin(struct kvc_sequence *sequence,
    const struct kvc_segment *segment, uint32_t layer, uint8_t **memory, uint64_t *bytes)
{
	if (distant && begun == STAGED) {
		refused++;
		return kv_fail(KV_BUSY, "%u units were begun and not ended", begun);
	}
	KV_TRY(__real_kvc_unit_begin(sequence, segment, layer, memory, bytes));
	begun++;
	return KV_OK;
}

enum kv_status __real_kvc_unit_end(
    struct kvc_sequence *sequence, const struct kvc_segment *segment, uint32_t layer);
enum kv_status __wrap_kvc_unit_end(
    struct kvc_sequence *sequence, const struct kvc_segment *segment, uint32_t layer);

enum kv_status __wrap_kvc_unit_end(
    struct kvc_sequence *sequence, const struct kvc_segment *segment, uint32_t layer)
{
	begun--;
	return __real_kvc_unit_end(sequence, segment, layer);
}

/* A first prompt, then a second with a common start, the same again, and a part of its answer by
 * another pipeline. */
static void converse(struct kvt_worker *worker, uint32_t common, struct kvt_talk talks[4])
{
	int32_t first[MOST], second[MOST];
	struct kvt_question question = {.prompt = first,
	    .prompt_tokens = 700,
	    .room = STEPS,
	    .sampling = {.temperature = 1.0f, .top_p = 1.0f, .seed = 3}};
	struct gw_pipeline *pipelines[2];
	struct kvt_talk *resumed = &talks[3];

	kvt_make_prompt(worker, 1, first, MOST);
	kvt_make_prompt(worker, 2, second, MOST);
	memcpy(second, first, common * sizeof *second);
	kvt_store_open(worker, 0);
	pipelines[0] = kvt_pipeline_open(worker);
	pipelines[1] = kvt_pipeline_open(worker);
	kvt_talk_run(&talks[0], pipelines[0], &question, STEPS);
	question.prompt = second;
	kvt_talk_run(&talks[1], pipelines[0], &question, STEPS);
	kvt_talk_run(&talks[2], pipelines[1], &question, 112);
	assert_int_equal(gw_sequence_prefix_hit(talks[1].sequence), common);
	assert_int_equal(gw_sequence_prefix_hit(talks[2].sequence), 699);
	kvt_talk_close(&talks[2], 1);
	kvt_talk_resume(resumed, pipelines[0], &question, talks[2].id);
	while (resumed->count < STEPS)
		kvt_talk_step(&resumed, 1);
	kvt_assert_same(&talks[1], resumed, 112, STEPS - 112);
	distant = 0;
	for (uint32_t i = 0; i < 4; i++) {
		if (i != 2) kvt_check_sequence(talks[i].sequence);
		if (i != 2) kvt_talk_close(&talks[i], 0);
	}
	gw_pipeline_destroy(pipelines[0]);
	gw_pipeline_destroy(pipelines[1]);
	kvt_store_close(worker);
}

static void fetched_units_are_those_in_shared_memory(void **state)
{
	static const uint32_t commons[] = {300, 512, 636, 660};
	struct kvt_worker worker;
	struct kvt_talk near[4], far[4];

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	for (uint32_t i = 0; i < 5; i += KVT_EVERY) {
		uint32_t common = commons[i % 4];

		worker.options.policy.window = i < 4 ? 64 : 0;
		converse(&worker, common, near);
		distant = 1;
		converse(&worker, common, far);
		for (uint32_t t = 0; t < 2; t++)
			kvt_assert_same(&near[t], &far[t], 0, STEPS);
		kvt_assert_same(&near[2], &far[2], 0, 112);
		for (uint32_t t = 0; t < 4; t++) {
			kvt_talk_end(&near[t]);
			kvt_talk_end(&far[t]);
		}
	}
	/* Where units are made in other memory, the store has one at a time. */
	assert_int_equal(refused > 0, worker.ops->unified);
	assert_int_equal(begun, 0);
	kvt_worker_close(&worker);
}

static void an_audit_needs_shared_memory(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *pipeline;
	struct kvt_talk talk;
	int32_t ids[MOST];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = 300, .room = 4};
	enum kv_status failure = KV_OK;

	(void)state;
	kvt_worker_open(&worker, model_name, 1);
	kvt_make_prompt(&worker, 1, ids, MOST);
	worker.options.audit = 1;
	kvt_store_open(&worker, 0);
	pipeline = kvt_pipeline_open(&worker);
	kvt_talk_begin(&talk, pipeline, &question);
	assert_int_equal(gw_sequence_accept(talk.sequence, 5, "", 0), KV_OK);
	distant = 1;
	assert_int_equal(gw_run_token(pipeline, &talk.sequence, 1, talk.logits, &failure), KV_OK);
	distant = 0;
	assert_int_equal(failure, KV_UNSUPPORTED);
	assert_non_null(strstr(gw_sequence_failure(talk.sequence), "--audit"));
	kvt_talk_end(&talk);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(fetched_units_are_those_in_shared_memory),
	    cmocka_unit_test(an_audit_needs_shared_memory),
	};

	if (argc > 1) model_name = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
