/* perplexity and logits: the measuring commands. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "gpu-worker/commands/commands.h"
#include "gpu-worker/commands/output.h"
#include "gpu-worker/commands/report.h"
#include "gpu-worker/commands/worker.h"
#include "gpu-worker/server/session.h"
#include "gpu-worker/text/sampler.h"

/* Prefill under a progress display. */
static enum kv_status run_prompt(const struct gw_settings *s, struct gw_worker *worker,
	struct gw_sequence *sequence, float *logits, double *mean_nll)
{
	struct gw_prefill_display display = {0};
	enum kv_status status;

	KV_TRY(gw_prefill_display(s, worker, sequence, &display));
	status = gw_run_prompt(sequence, logits, mean_nll, gw_show_prefill, &display);
	kv_progress_finish(display.progress);
	return status;
}

/* tokens: prefill of `prefill` tokens, then `steps` steps that are each given the right token. */
static enum kv_status teach(const struct gw_settings *s, struct gw_worker *worker,
	struct gw_sequence *sequence, const int32_t *tokens, float *logits, double *nll)
{
	struct kv_progress_settings shown = {.title = "decode", .unit = "tokens", .fd = 2};
	uint32_t vocabulary = gw_model_shape(worker->model)->vocabulary;
	struct kv_progress *progress = NULL;
	enum kv_status status = KV_OK, failure = KV_OK;

	KV_TRY(run_prompt(s, worker, sequence, logits, NULL));
	shown.total = s->decode;
	shown.mode = s->json ? KV_PROGRESS_OFF : KV_PROGRESS_AUTO;
	KV_TRY(kv_progress_create(worker->allocator, &shown, &progress));
	*nll = 0.0;
	for (uint32_t i = 0; i < s->decode; i++) {
		const int32_t *next = tokens + s->prefill + i;

		KV_TRY_GOTO(status, gw_sequence_accept(sequence, next[0], NULL, 0), done);
		KV_TRY_GOTO(status, gw_run_token(worker->pipeline, &sequence, 1, logits, &failure), done);
		KV_TRY_GOTO(status, failure, done);
		*nll += gw_token_nll(logits, vocabulary, next[1]);
		kv_progress_update(progress, i + 1);
	}
done:
	kv_progress_finish(progress);
	gw_worker_report(worker, sequence, 0);
	return status;
}

static enum kv_status print_perplexity(const struct gw_settings *s, const struct gw_worker *worker,
	const struct gw_sequence *sequence, double nll)
{
	json_t *report = gw_report_json(worker->pipeline, gw_sequence_report(sequence));
	double mean = nll / s->decode;

	if (report == NULL) return gw_print_json(NULL);
	json_object_set_new(report, "nll_mean", json_real(mean));
	json_object_set_new(report, "perplexity", json_real(exp(mean)));
	json_object_set_new(report, "prompt_tokens", json_integer(s->prefill));
	json_object_set_new(report, "prefix_hit_tokens",
		json_integer(gw_sequence_prefix_hit(sequence)));
	json_object_set_new(report, "decoded_tokens", json_integer(s->decode));
	json_object_set_new(report, "sequence", json_string(gw_sequence_id(sequence)));
	gw_report_model(report, worker);
	if (s->json) return gw_print_json(report);
	printf("perplexity %.4f (mean NLL %.5f) over %u tokens after %u\n", exp(mean), mean, s->decode,
		s->prefill);
	gw_print_report(stdout, report);
	if (s->audit)
		printf("audit: lost mass %.4f, output error %.4f, recall %.3f\n",
			json_number_value(json_object_get(report, "lost_mass_mean")),
			json_number_value(json_object_get(report, "output_error_mean")),
			json_number_value(json_object_get(report, "recall_mean")));
	json_decref(report);
	return KV_OK;
}

enum kv_status gw_command_perplexity(const struct gw_settings *s, struct kv_allocator *allocator)
{
	struct gw_worker worker;
	struct gw_sequence *sequence = NULL;
	struct gw_sequence_request request = {0};
	struct gw_worker_input input = {
		.text_file = s->file, .prompt = s->prefill, .room = s->decode};
	float *logits = NULL;
	double nll = 0.0;
	enum kv_status status;

	status = gw_worker_open(s, allocator, NULL, &input, &worker);
	if (status != KV_OK) {
		kv_free(allocator, input.ids);
		return status;
	}
	if (input.count < (uint64_t)s->prefill + s->decode + 1) {
		status = kv_fail(KV_INVALID,
			"the text has %u tokens; --prefill %u and --decode %u need %llu", input.count,
			s->prefill, s->decode, (unsigned long long)s->prefill + s->decode + 1);
		goto done;
	}
	logits = kv_alloc_array(allocator, gw_model_shape(worker.model)->vocabulary, sizeof *logits);
	if (logits == NULL) {
		status = KV_NO_MEMORY;
		goto done;
	}
	request.tokens = input.ids;
	request.token_count = s->prefill;
	request.max_tokens = s->decode;
	KV_TRY_GOTO(status, gw_sequence_open(worker.pipeline, &request, &sequence), done);
	KV_TRY_GOTO(status, teach(s, &worker, sequence, input.ids, logits, &nll), done);
	KV_TRY_GOTO(status, gw_check_logit(nll), done);
	status = print_perplexity(s, &worker, sequence, nll);
done:
	gw_sequence_close(sequence, 0);
	kv_free(allocator, input.ids);
	kv_free(allocator, logits);
	gw_worker_close(&worker);
	return status;
}

static double greatest(const float *logits, uint32_t vocabulary)
{
	float best = -INFINITY;

	for (uint32_t i = 0; i < vocabulary; i++)
		if (logits[i] > best) best = logits[i];
	return (double)best;
}

/* Top k by falling logit, ties to the lower id. */
static json_t *top_of(const float *logits, uint32_t vocabulary, uint32_t k)
{
	json_t *list = json_array();
	float bound = INFINITY;
	int32_t last = -1;

	for (uint32_t n = 0; n < k && n < vocabulary; n++) {
		int32_t best = -1;

		for (uint32_t i = 0; i < vocabulary; i++) {
			if (isnan(logits[i])) continue;
			if (logits[i] > bound || (logits[i] == bound && (int32_t)i <= last)) continue;
			if (best < 0 || logits[i] > logits[best]) best = (int32_t)i;
		}
		if (best < 0) break;
		bound = logits[best];
		last = best;
		json_array_append_new(list, json_pack("{s:i, s:f}", "id", best, "logit", (double)bound));
	}
	return list;
}

static enum kv_status print_logits(const struct gw_settings *s, const struct gw_worker *worker,
	const float *logits, uint32_t prompt_tokens, double mean_nll)
{
	uint32_t vocabulary = gw_model_shape(worker->model)->vocabulary;
	json_t *list = top_of(logits, vocabulary, s->top);
	json_t *item, *report;
	size_t i;

	if (s->json) {
		report = json_pack("{s:o, s:o, s:i}", "top", list, "mean_nll",
			prompt_tokens > 1 ? json_real(mean_nll) : json_null(), "prompt_tokens",
			(int)prompt_tokens);
		if (report != NULL) gw_report_model(report, worker);
		return gw_print_json(report);
	}
	json_array_foreach(list, i, item)
		printf("%8d %10.4f\n", (int)json_integer_value(json_object_get(item, "id")),
			json_real_value(json_object_get(item, "logit")));
	if (prompt_tokens > 1) printf("mean NLL %.5f over %u tokens\n", mean_nll, prompt_tokens - 1);
	json_decref(list);
	return KV_OK;
}

enum kv_status gw_command_logits(const struct gw_settings *s, struct kv_allocator *allocator)
{
	struct gw_worker worker;
	struct gw_sequence *sequence = NULL;
	struct gw_sequence_request request = {0};
	struct gw_worker_input input = {.text_file = s->prompt_file};
	float *logits = NULL;
	double mean_nll = 0.0;
	enum kv_status status;

	status = gw_worker_open(s, allocator, "full", &input, &worker);
	if (status != KV_OK) {
		kv_free(allocator, input.ids);
		return status;
	}
	logits = kv_alloc_array(allocator, gw_model_shape(worker.model)->vocabulary, sizeof *logits);
	if (logits == NULL) {
		status = KV_NO_MEMORY;
		goto done;
	}
	request.tokens = input.ids;
	request.token_count = input.count;
	KV_TRY_GOTO(status, gw_sequence_open(worker.pipeline, &request, &sequence), done);
	KV_TRY_GOTO(status, run_prompt(s, &worker, sequence, logits,
		request.token_count > 1 ? &mean_nll : NULL), done);
	KV_TRY_GOTO(status, gw_check_logit(greatest(logits, gw_model_shape(worker.model)->vocabulary)),
		done);
	KV_TRY_GOTO(status, gw_check_logit(mean_nll), done);
	status = print_logits(s, &worker, logits, request.token_count, mean_nll);
done:
	gw_sequence_close(sequence, 0);
	kv_free(allocator, input.ids);
	kv_free(allocator, logits);
	gw_worker_close(&worker);
	return status;
}
