#include "gpu-worker/commands/output.h"

enum kv_status gw_print_json(json_t *object)
{
	int failed;

	if (object == NULL) return kv_fail(KV_NO_MEMORY, "no memory for the JSON output");
	failed = json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
	json_decref(object);
	if (failed != 0 || fputc('\n', stdout) == EOF || fflush(stdout) != 0)
		return kv_fail(KV_IO, "standard output cannot be written");
	return KV_OK;
}

/* What was planned, and what it came to. */
static json_t *device_memory(const struct gw_worker *worker)
{
	const struct gw_memory_plan *plan = &worker->plan;
	struct kn_memory_use use = worker->ops->memory_use(worker->backend);
	json_t *made = json_pack("{s:I, s:i, s:i, s:{s:I, s:I, s:I, s:I}}", "limit_bytes",
		(json_int_t)plan->limit, "sequences", (int)plan->sequences, "context", (int)plan->context,
		"taken", "weights", (json_int_t)use.weights, "buffers", (json_int_t)use.buffers, "scratch",
		(json_int_t)use.scratch, "peak", (json_int_t)use.most);
	json_t *parts = json_object();

	for (int i = 0; i < GW_MEMORY_PART_COUNT; i++)
		json_object_set_new(parts, gw_memory_part_keys[i],
			json_integer((json_int_t)plan->parts[i]));
	json_object_set_new(made, "planned", parts);
	return made;
}

void gw_report_model(json_t *report, const struct gw_worker *worker)
{
	json_object_set_new(report, "model", json_string(worker->model_name));
	if (worker->synthetic) json_object_set_new(report, "weights", json_string("random"));
	if (!worker->ops->unified) json_object_set_new(report, "device_memory", device_memory(worker));
}

static double number(const json_t *report, const char *name)
{
	return json_number_value(json_object_get(report, name));
}

/* The full policy keeps nothing in a store: it has no sequence there. */
static void print_names(FILE *file, const json_t *report)
{
	const char *sequence = json_string_value(json_object_get(report, "sequence"));

	if (sequence != NULL && sequence[0] != '\0') fprintf(file, "sequence %s, ", sequence);
	fprintf(file, "policy %s, transport %s\n",
		json_string_value(json_object_get(report, "policy")),
		json_string_value(json_object_get(report, "transport")));
}

/* What decode steps over clusters attended to. */
static void print_attended(FILE *file, const json_t *report)
{
	const json_t *cache = json_object_get(report, "cache");

	fprintf(file, "attended %.0f budget + %.0f window tokens", number(report, "budget_tokens_mean"),
		number(report, "window_tokens_mean"));
	if (json_is_number(json_object_get(report, "lost_mass_estimated_mean")))
		fprintf(file, ", estimated lost mass %.4f", number(report, "lost_mass_estimated_mean"));
	if (json_is_number(json_object_get(cache, "hit_rate")))
		fprintf(file, ", cluster cache hit rate %.1f %%", 100.0 * number(cache, "hit_rate"));
	fputc('\n', file);
}

void gw_print_report(FILE *file, const json_t *report)
{
	double prompt = number(report, "prompt_tokens"), hit = number(report, "prefix_hit_tokens");
	double prefill = number(report, "prefill_seconds"), per_token = number(report, "ms_per_token");

	fprintf(file, "prompt %.0f tokens, %.0f of them found in the store; prefill %.2f s", prompt,
		hit, prefill);
	if (prefill > 0.0) fprintf(file, " (%.0f tokens/s)", (prompt - hit) / prefill);
	if (per_token > 0.0)
		fprintf(file, "; decode %.2f ms/token (%.1f tokens/s)", per_token, 1e3 / per_token);
	fputc('\n', file);
	if (json_is_number(json_object_get(report, "budget_tokens_mean"))) print_attended(file, report);
	print_names(file, report);
}

void gw_show_progress(void *progress, uint64_t done, uint64_t total)
{
	(void)total;
	kv_progress_update(progress, done);
}

void gw_show_prefill(void *context, uint64_t done, uint64_t total)
{
	const struct gw_prefill_display *display = context;

	(void)total;
	kv_progress_update(display->progress, done / display->layers);
}

enum kv_status gw_prefill_display(const struct gw_settings *s, const struct gw_worker *worker,
	const struct gw_sequence *sequence, struct gw_prefill_display *display)
{
	uint32_t tokens = gw_sequence_prompt_tokens(sequence) - gw_sequence_prefix_hit(sequence);
	struct kv_progress_settings shown = {.title = "prefill", .unit = "tokens", .fd = 2};

	shown.total = tokens;
	shown.mode = s->json || tokens < s->chunk ? KV_PROGRESS_OFF : KV_PROGRESS_AUTO;
	display->layers = gw_model_shape(worker->model)->layers;
	return kv_progress_create(worker->allocator, &shown, &display->progress);
}
