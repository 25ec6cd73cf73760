/* Answers that one worker begins and another ends: what is kept for that, and what is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/commands/load_text.h"
#include "gpu-worker/commands/report.h"
#include "gpu-worker/server/session.h"
#include "tests/lib/pipeline_fixture.h"

enum { PROMPT = 300 };

struct fixture {
	struct kvt_worker worker;
	struct gw_tokenizer *tokenizer;
	struct gw_pipeline *pipeline;
	int32_t ids[PROMPT];
	struct gw_session_request request; /* of PROMPT tokens and 6 more */
};

static void fixture_open(struct fixture *f, const char *model)
{
	char path[512];
	struct gw_gguf *file = NULL;

	memset(f, 0, sizeof *f);
	kvt_worker_open(&f->worker, model, 1);
	f->worker.options.policy.window = 8;
	f->worker.options.policy.dense_layers = 0;
	snprintf(path, sizeof path, "%s/%s.gguf", KV_TINY_MODELS, model);
	assert_int_equal(gw_gguf_open(kv_heap(), path, &file), KV_OK);
	assert_int_equal(gw_load_tokenizer(file, kv_heap(), &f->tokenizer), KV_OK);
	gw_gguf_close(file);
	kvt_make_prompt(&f->worker, 1, f->ids, PROMPT);
	kvt_store_open(&f->worker, 0);
	f->pipeline = kvt_pipeline_open(&f->worker);
	f->request = (struct gw_session_request){.sequence_id = "mine",
	    .tokens = f->ids,
	    .token_count = PROMPT,
	    .max_tokens = 6,
	    .sampling = {.top_p = 1.0f},
	    .ignore_end = 1};
}

static void fixture_close(struct fixture *f)
{
	gw_pipeline_destroy(f->pipeline);
	gw_tokenizer_destroy(f->tokenizer);
	kvt_worker_close(&f->worker);
}

static enum kv_status open_session(struct fixture *f, struct gw_session **session)
{
	*session = NULL;
	return gw_session_open(f->pipeline, f->tokenizer, &f->request, session);
}

static enum kv_status resume_session(struct fixture *f, struct gw_session **session)
{
	const struct gw_session_request request = {.resume_id = "mine", .max_tokens = 128};

	*session = NULL;
	return gw_session_open(f->pipeline, f->tokenizer, &request, session);
}

static void take_steps(struct gw_session *session, uint32_t count)
{
	while (count-- > 0 && gw_session_finish(session) == GW_RUNNING)
		assert_int_equal(gw_session_step(session), KV_OK);
}

/* Begin an answer and leave it after three tokens. */
static void leave_in_the_middle(struct fixture *f)
{
	struct gw_session *session;

	assert_int_equal(open_session(f, &session), KV_OK);
	assert_int_equal(gw_session_start(session, NULL, NULL), KV_OK);
	take_steps(session, 2);
	gw_session_keep(session);
	gw_session_close(session);
}

/* Whatever makes the store refuse, the options that may be the reason are named. */
static void a_resume_with_other_options_is_explained(void **state)
{
	static const char *const named[] = {"--policy", "--budget", "--window", "--fold", "--sinks",
	    "--segment", "--cluster-tokens", "--dense-layers", "--iterations", "--score", "--estimate",
	    "--center", "--kv-type", "--precision"};
	struct fixture f;
	struct gw_session *session;

	(void)state;
	fixture_open(&f, "tiny_llama");
	leave_in_the_middle(&f);
	gw_pipeline_destroy(f.pipeline);
	f.worker.options.policy.budget--;
	f.pipeline = kvt_pipeline_open(&f.worker);
	assert_int_equal(resume_session(&f, &session), KV_REFUSED);
	assert_non_null(strstr(kv_error_message(), "mine"));
	for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
		if (strstr(kv_error_message(), named[i]) == NULL)
			fail_msg("%s is not in: %s", named[i], kv_error_message());
	gw_pipeline_destroy(f.pipeline);
	f.worker.options.policy.budget++;
	f.pipeline = kvt_pipeline_open(&f.worker);
	assert_int_equal(resume_session(&f, &session), KV_OK);
	gw_session_close(session);
	fixture_close(&f);
}

static void an_answer_up_to_the_end_of_the_context_is_taken_over(void **state)
{
	struct fixture f;
	struct gw_session *session;
	struct gw_totals totals = {0};
	int32_t whole[6];
	uint32_t count = 0;

	(void)state;
	fixture_open(&f, "tiny_tiny");
	f.request.token_count = f.worker.shape->context - 6;
	assert_int_equal(open_session(&f, &session), KV_OK);
	assert_int_equal(gw_session_start(session, NULL, NULL), KV_OK);
	take_steps(session, 6);
	memcpy(whole, gw_session_tokens(session, &count), sizeof whole);
	assert_int_equal(count, 6);
	gw_totals_add(&totals, gw_session_sequence(session));
	assert_int_equal(totals.prompt_tokens, f.request.token_count);
	assert_int_equal(totals.decode_tokens, 6);
	totals = (struct gw_totals){0};
	gw_session_close(session);
	leave_in_the_middle(&f);
	assert_int_equal(resume_session(&f, &session), KV_OK);
	assert_int_equal(gw_session_start(session, NULL, NULL), KV_OK);
	take_steps(session, 6);
	assert_int_equal(gw_session_finish(session), GW_FINISH_LENGTH);
	assert_memory_equal(gw_session_tokens(session, &count), whole, sizeof whole);
	assert_int_equal(count, 6);
	/* Prompt and three tokens were counted by who began it. */
	gw_totals_add(&totals, gw_session_sequence(session));
	assert_int_equal(totals.prompt_tokens, 0);
	assert_int_equal(totals.prefix_hit_tokens, 0);
	assert_int_equal(totals.decode_tokens, 3);
	gw_session_close(session);
	assert_int_equal(resume_session(&f, &session), KV_NOT_FOUND);
	fixture_close(&f);
}

static void a_failed_take_over_leaves_the_sequence(void **state)
{
	struct fixture f;
	struct gw_session *session = NULL;
	uint64_t n = 0;

	(void)state;
	fixture_open(&f, "tiny_llama");
	leave_in_the_middle(&f);
	while (session == NULL) {
		kv_allocator_fail_at(f.worker.allocator, ++n);
		if (resume_session(&f, &session) != KV_OK) assert_null(session);
		assert_true(n < 1000);
	}
	kv_allocator_fail_at(f.worker.allocator, 0);
	assert_true(n > 10);
	assert_int_equal(gw_session_start(session, NULL, NULL), KV_OK);
	gw_session_close(session);
	fixture_close(&f);
}

static void give_up(void *context, uint64_t done, uint64_t total)
{
	struct gw_session *const *session = context;

	(void)done;
	(void)total;
	gw_sequence_cancel(gw_session_sequence(*session));
}

static void a_prompt_that_nobody_wants_is_not_kept(void **state)
{
	struct fixture f;
	struct gw_session *session;

	(void)state;
	fixture_open(&f, "tiny_llama");
	assert_int_equal(open_session(&f, &session), KV_OK);
	assert_int_equal(gw_session_start(session, give_up, &session), KV_CANCELLED);
	gw_session_close(session);
	assert_int_equal(resume_session(&f, &session), KV_NOT_FOUND);
	/* Unless the worker, and not the client, gave it up. */
	assert_int_equal(open_session(&f, &session), KV_OK);
	assert_int_equal(gw_session_start(session, give_up, &session), KV_CANCELLED);
	gw_session_keep(session);
	gw_session_close(session);
	assert_int_equal(resume_session(&f, &session), KV_OK);
	assert_int_equal(gw_session_start(session, NULL, NULL), KV_OK);
	gw_session_close(session);
	fixture_close(&f);
}

static void parameters_that_make_no_sense_are_refused(void **state)
{
	static const struct {
		char filler; /* of the stop texts: one that fills the room of all, or empty ones */
		uint32_t version, max_tokens, stop_count;
		const char *named;
	} cases[] = {
	    {'a', 2, 6, 2, "stop texts"},
	    {'\0', 2, 6, GW_MAX_STOPS + 1, "stop texts"},
	    {'\0', 7, 6, 2, "version 7"},
	    {'\0', 2, UINT32_MAX, 2, "max_tokens 4294967295"},
	    {'\0', 2, 0, 2, "max_tokens 0"},
	};
	struct stored {
		uint32_t version, max_tokens, stop_count, ignore_end;
		struct gw_sampler_options sampling;
		char stops[GW_MAX_STOPS * (GW_MAX_STOP_BYTES + 1)];
	} stored = {.sampling = {.top_p = 1.0f}};
	struct gw_sequence_request request = {.id = "mine", .token_count = PROMPT, .max_tokens = 6};
	struct gw_sequence *sequence;
	struct gw_session *session;
	struct fixture f;

	(void)state;
	fixture_open(&f, "tiny_llama");
	request.tokens = f.ids;
	request.parameters = &stored;
	request.parameter_bytes = sizeof stored;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		memset(stored.stops, cases[i].filler, sizeof stored.stops - 1);
		stored.version = cases[i].version;
		stored.max_tokens = cases[i].max_tokens;
		stored.stop_count = cases[i].stop_count;
		sequence = NULL;
		assert_int_equal(gw_sequence_open(f.pipeline, &request, &sequence), KV_OK);
		gw_sequence_close(sequence, 1);
		assert_int_equal(resume_session(&f, &session), KV_CORRUPT);
		assert_null(session);
		if (strstr(kv_error_message(), cases[i].named) == NULL)
			fail_msg("%s, expected %s", kv_error_message(), cases[i].named);
	}
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_resume_with_other_options_is_explained),
	    cmocka_unit_test(an_answer_up_to_the_end_of_the_context_is_taken_over),
	    cmocka_unit_test(a_failed_take_over_leaves_the_sequence),
	    cmocka_unit_test(a_prompt_that_nobody_wants_is_not_kept),
	    cmocka_unit_test(parameters_that_make_no_sense_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
