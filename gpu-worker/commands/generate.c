#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/process.h"
#include "gpu-worker/commands/commands.h"
#include "gpu-worker/commands/output.h"
#include "gpu-worker/commands/report.h"
#include "gpu-worker/commands/worker.h"
#include "gpu-worker/server/session.h"

static enum kv_status prefill(const struct gw_settings *s, struct gw_worker *worker,
	struct gw_session *session)
{
	struct gw_prefill_display display = {0};
	enum kv_status status;

	KV_TRY(gw_prefill_display(s, worker, gw_session_sequence(session), &display));
	status = gw_session_start(session, gw_show_prefill, &display);
	kv_progress_finish(display.progress);
	return status;
}

static enum kv_status print_text(const struct gw_settings *s, struct gw_session *session)
{
	size_t length = 0;
	const char *text = gw_session_take(session, &length);

	if (s->json || length == 0) return KV_OK;
	fwrite(text, 1, length, stdout);
	/* Without a reader there is no use in computing on. */
	return kv_process_finish();
}

static enum kv_status answer(const struct gw_settings *s, struct gw_worker *worker,
	struct gw_session *session)
{
	uint64_t reported = kv_now_ms();

	if (gw_session_id(session)[0] != '\0')
		kv_info("generate", "sequence %s", gw_session_id(session));
	KV_TRY(prefill(s, worker, session));
	KV_TRY(print_text(s, session));
	while (gw_session_finish(session) == GW_RUNNING) {
		KV_TRY(gw_session_step(session));
		KV_TRY(print_text(s, session));
		if (kv_now_ms() - reported >= 500) {
			reported = kv_now_ms();
			gw_worker_report(worker, gw_session_sequence(session), 1);
		}
	}
	gw_worker_report(worker, gw_session_sequence(session), 0);
	return KV_OK;
}

/* An empty answer looks like none at all. */
static void tell_empty(const struct gw_session *session)
{
	uint32_t tokens = 0;

	gw_session_tokens(session, &tokens);
	if (tokens == 0 && gw_session_finish(session) == GW_FINISH_STOP)
		kv_warning("generate", "0 tokens: the model ended at once; --ignore-end makes it go on");
}

static void print_summary(const struct gw_session *session)
{
	json_t *report = gw_session_report(session);

	if (report == NULL) return;
	fputc('\n', stdout);
	fflush(stdout);
	gw_print_report(stderr, report);
	json_decref(report);
}

/* What this process asked its allocator for; shared memory and the store's arena are not in it. */
static json_t *memory_json(const struct gw_worker *worker)
{
	struct kv_allocator_stats stats = kv_allocator_stats(worker->allocator);
	struct gw_cache_stats cache = gw_pipeline_cache_stats(worker->pipeline);

	return json_pack("{s:I, s:I, s:I, s:I}", "bytes", (json_int_t)stats.bytes, "peak_bytes",
		(json_int_t)stats.peak_bytes, "cluster_cache_bytes", (json_int_t)cache.used_bytes,
		"cluster_cache_capacity_bytes", (json_int_t)cache.capacity_bytes);
}

enum kv_status gw_command_generate(const struct gw_settings *s, struct kv_allocator *allocator)
{
	struct gw_worker worker;
	struct gw_session *session = NULL;
	struct gw_session_request request = {0};
	struct gw_worker_input input = {.text_file = s->prompt_file, .room = s->max_tokens};
	enum kv_status status;

	status = gw_worker_open(s, allocator, NULL, s->resume == NULL ? &input : NULL, &worker);
	if (status != KV_OK) {
		kv_free(allocator, input.ids);
		return status;
	}
	request.sequence_id = s->sequence;
	request.resume_id = s->resume;
	request.tokens = input.ids;
	request.token_count = input.count;
	request.max_tokens = s->max_tokens;
	request.sampling.temperature = (float)s->temperature;
	request.sampling.top_k = s->top_k;
	request.sampling.top_p = (float)s->top_p;
	request.sampling.min_p = (float)s->min_p;
	request.sampling.frequency_penalty = (float)s->frequency_penalty;
	request.sampling.presence_penalty = (float)s->presence_penalty;
	request.sampling.seed = s->seed;
	request.stops = &s->stop;
	request.stop_count = s->stop != NULL ? 1 : 0;
	request.ignore_end = s->ignore_end;
	request.digest = s->logits_digest;
	KV_TRY_GOTO(status,
		gw_session_open(worker.pipeline, worker.tokenizer, &request, &session), done);
	KV_TRY_GOTO(status, answer(s, &worker, session), done);
	tell_empty(session);
	if (s->json) {
		json_t *report = gw_session_report(session);

		if (report != NULL) {
			gw_report_model(report, &worker);
			json_object_set_new(report, "memory", memory_json(&worker));
		}
		status = gw_print_json(report);
	} else {
		print_summary(session);
	}
done:
	gw_session_close(session);
	kv_free(allocator, input.ids);
	gw_worker_close(&worker);
	return status;
}
