#include "gpu-worker/commands/worker.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/transport/secret.h"
#include "gpu-worker/commands/load_text.h"
#include "gpu-worker/commands/output.h"
#include "gpu-worker/model/synthetic.h"

enum { INPUT_LIMIT = 64 << 20, USUAL_STAGING = 64 << 20 };

static uint32_t larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static enum kv_status open_backend(struct gw_worker *worker, const struct gw_gguf *file)
{
	const struct gw_settings *s = worker->settings;
	struct kn_backend_options options = {0};
	struct gw_model_shape shape;
	enum kv_status status;

	options.allocator = worker->allocator;
	options.threads = s->threads;
	options.cpu_level = (enum kn_cpu_level)s->cpu_level;
	options.plugin_folder = s->backend_path[0] != '\0' ? s->backend_path : NULL;
	options.device_memory = s->device_memory;
	KV_TRY(gw_model_read_shape(file, &shape));
	options.max_rows = larger(s->chunk, KN_MAX_DECODE_ROWS);
	options.max_columns =
		larger(larger(shape.hidden, shape.feed_forward), shape.heads * shape.head_dim);
	status = kn_backend_open(s->backend, &options, &worker->ops, &worker->backend);
	if (status == KV_UNSUPPORTED && s->cpu_level != KN_CPU_AUTO && strcmp(s->backend, "cuda") != 0)
		return kv_fail_prefix(KV_USAGE, "--cpu-level");
	KV_TRY(status);
	if (worker->ops->unified && s->device_memory > 0)
		return kv_fail(KV_USAGE, "--device-memory %llu on the %s backend, which has no memory of "
			"its own: leave it out", (unsigned long long)s->device_memory, worker->ops->name);
	if ((worker->ops->kv_types & 1u << worker->kv_type) == 0)
		return kv_fail(KV_USAGE, "--kv-type %s: the %s backend does not have it; use f16 or f32",
			kn_kv_type_name(worker->kv_type), worker->ops->name);
	return KV_OK;
}

/* Before anything is taken. */
static enum kv_status plan_memory(struct gw_worker *worker, const struct gw_gguf *file)
{
	const struct gw_settings *s = worker->settings;
	struct gw_memory_request request = {.ops = worker->ops,
		.backend = worker->backend,
		.file = file,
		.kv_type = worker->kv_type,
		.policy = worker->policy,
		.max_rows = larger(s->chunk, KN_MAX_DECODE_ROWS),
		.chunk = s->chunk,
		.max_batch = worker->max_batch,
		.sequences = worker->sequences,
		.context = worker->context,
		.prompt = worker->prompt,
		.cache_bytes = s->cache,
		.own_steps = worker->offloads && !s->audit && kvc_shows_memory(s->store),
		.limit_given = s->device_memory > 0};
	char text[GW_MEMORY_TEXT];

	if (worker->ops->unified) return KV_OK;
	KV_TRY(gw_settings_recency(s->cache_policy, &request.cache_recency));
	KV_TRY(gw_memory_plan_make(&request, &worker->plan));
	kv_info("worker", "device memory in MiB, %.1f of %.1f, for %u sequence%s of %u tokens: %s",
		(double)gw_memory_plan_sum(&worker->plan) / (1 << 20),
		(double)worker->plan.limit / (1 << 20), worker->sequences,
		worker->sequences == 1 ? "" : "s", worker->context,
		gw_memory_plan_text(&worker->plan, text));
	return KV_OK;
}

/* A stream takes memory, too. */
static enum kv_status open_stream(struct gw_worker *worker)
{
	KV_TRY(worker->ops->stream_create(worker->backend, KN_STREAM_COMPUTE, &worker->stream));
	if (worker->ops->unified) return KV_OK;
	return worker->ops->stream_reserve(worker->backend, worker->stream, &worker->plan.bounds);
}

static enum kv_status open_model(struct gw_worker *worker, const struct gw_gguf *file)
{
	const struct gw_settings *s = worker->settings;
	struct gw_model_options options = {0};
	struct kv_progress_settings shown = {.title = "packing weights", .unit = "bytes", .fd = 2};
	struct kv_progress *progress = NULL;
	enum kv_status status;

	KV_TRY(gw_gguf_digest(file, worker->file_digest));
	shown.mode = isatty(2) ? KV_PROGRESS_BAR : KV_PROGRESS_OFF;
	KV_TRY(kv_progress_create(worker->allocator, &shown, &progress));
	options.allocator = worker->allocator;
	options.ops = worker->ops;
	options.backend = worker->backend;
	options.stream = worker->stream;
	options.precision = s->precision == 1 ? KN_PRECISION_FP32 : KN_PRECISION_DEFAULT;
	options.max_rows = larger(s->chunk, KN_MAX_DECODE_ROWS);
	options.progress = gw_show_progress;
	options.progress_context = progress;
	status = gw_model_open(file, &options, &worker->model);
	kv_progress_finish(progress);
	return status;
}

/* The staging memory must hold the largest unit that the options make: all of a segment, or of what
 * a window and a fold leave, with the most clusters. */
static enum kv_status staging_bytes(const struct gw_worker *worker,
	const struct kvw_model_layout *layout, uint64_t *bytes)
{
	const struct gw_policy_options *p = &worker->policy;
	uint32_t context = gw_model_shape(worker->model)->context;
	uint32_t tokens = larger(p->segment, larger(p->window, p->fold));
	uint64_t most = USUAL_STAGING;

	if (tokens > context) tokens = context;
	for (uint32_t layer = 0; layer < layout->layers; layer++) {
		struct kvw_unit_shape shape;
		struct kvw_unit_layout unit;

		KV_TRY(kvw_unit_shape(layout, KVW_CLUSTERED, layout->sinks, tokens, layer, &shape));
		KV_TRY(kvw_unit_layout(&shape, &unit));
		if (unit.bytes > most) most = unit.bytes;
	}
	*bytes = most;
	return KV_OK;
}

static enum kv_status open_store(struct gw_worker *worker, uint64_t wait_ms)
{
	const struct gw_settings *s = worker->settings;
	struct kvc_options options = {0};
	uint8_t secret[KV_SECRET_BYTES];
	enum kv_status status;

	options.allocator = worker->allocator;
	options.address = s->store;
	options.transport = s->transport;
	options.trusted_network = s->trusted_network;
	options.name = worker->name;
	options.model_name = worker->model_name;
	gw_pipeline_layout(gw_model_shape(worker->model), &worker->policy, worker->kv_type,
		&options.layout);
	gw_pipeline_model_id(worker->file_digest,
		s->precision == 1 ? KN_PRECISION_FP32 : KN_PRECISION_DEFAULT, &options.layout,
		options.model_id);
	KV_TRY(staging_bytes(worker, &options.layout, &options.staging_bytes));
	options.local_memory = s->local_memory;
	options.connect_ms = (uint32_t)wait_ms;
	options.call_ms = (uint32_t)s->call_ms;
	options.fetch_ms = (uint32_t)s->fetch_ms;
	if (strncmp(s->store, "tcp:", 4) == 0) {
		KV_TRY(kv_secret_read(s->store_secret, secret));
		options.secret = secret;
	}
	status = kvc_open(&options, &worker->store);
	kv_secret_wipe(secret);
	return status;
}

static enum kv_status open_pipeline(struct gw_worker *worker)
{
	const struct gw_settings *s = worker->settings;
	struct gw_pipeline_options options = {0};

	KV_TRY(gw_settings_recency(s->cache_policy, &options.cache_recency));
	options.allocator = worker->allocator;
	options.ops = worker->ops;
	options.backend = worker->backend;
	options.stream = worker->stream;
	options.model = worker->model;
	options.store = worker->store;
	options.policy = worker->policy;
	options.kv_type = worker->kv_type;
	options.cache_bytes = worker->ops->unified ? s->cache : worker->plan.parts[GW_MEMORY_CACHE];
	options.context = worker->context;
	options.reserve = !worker->ops->unified;
	options.background = worker->plan.background;
	options.chunk = s->chunk;
	options.max_batch = worker->max_batch;
	options.audit = s->audit;
	options.estimate_misses = s->on_miss == 1;
	KV_TRY(gw_pipeline_create(&options, &worker->pipeline));
	/* On a device of its own memory is what there is not enough of. */
	if (!worker->ops->unified)
		kv_info("worker", "%s; cluster cache %llu MiB of it",
			worker->ops->describe(worker->backend),
			(unsigned long long)(gw_pipeline_cache_stats(worker->pipeline).capacity_bytes >> 20));
	return KV_OK;
}

static void name_worker(struct gw_worker *worker, const struct gw_settings *s)
{
	const char *slash = strrchr(s->model, '/');

	snprintf(worker->model_name, sizeof worker->model_name, "%s", slash ? slash + 1 : s->model);
	if (s->name != NULL && s->name[0] != '\0')
		snprintf(worker->name, sizeof worker->name, "%s", s->name);
	else
		snprintf(worker->name, sizeof worker->name, "worker-%ld", (long)getpid());
}

/* What can be wrong with the options is found before anything large is read. */
static enum kv_status check_policy(struct gw_worker *worker, const char *name)
{
	const struct gw_policy_ops *policy;

	KV_TRY(gw_settings_policy(worker->settings, name, &policy, &worker->policy));
	worker->offloads = policy->offloads != 0;
	return KV_OK;
}

/* Options that go with some models only. */
static enum kv_status check_shape(struct gw_worker *worker, const struct gw_gguf *file)
{
	uint64_t cache = worker->settings->cache, page;
	struct gw_model_shape shape;

	KV_TRY(gw_model_read_shape(file, &shape));
	if (worker->context > shape.context)
		return kv_fail(KV_USAGE, "--context %u: the context of %s is %u", worker->context,
			worker->settings->model, shape.context);
	if (worker->context == 0) worker->context = shape.context;
	worker->prompt = worker->context;
	if (!worker->offloads) return KV_OK;
	if (gw_policy_shape_check(&worker->policy, &shape) != KV_OK)
		return kv_fail_prefix(KV_USAGE, "%s", worker->settings->model);
	page = kn_kv_row_bytes(worker->kv_type, shape.head_dim) * GW_CACHE_PAGE_ROWS;
	if (cache > 0 && cache < page)
		return kv_fail(KV_USAGE,
			"--cache %llu bytes: a page of this model's rows has %llu; give at least that, or 0 "
			"for twice the budget", (unsigned long long)cache, (unsigned long long)page);
	return KV_OK;
}

static void begin(struct gw_worker *worker, const struct gw_settings *settings,
	struct kv_allocator *allocator)
{
	memset(worker, 0, sizeof *worker);
	worker->settings = settings;
	worker->allocator = allocator;
	worker->max_batch = settings->max_batch;
	worker->sequences = settings->max_sequences;
	worker->context = settings->context;
	name_worker(worker, settings);
	worker->synthetic = gw_is_synthetic(settings->model);
	worker->kv_type = settings->kv_type == GW_KV_F32 || settings->precision == 1 ? KN_KV_F32
	                  : settings->kv_type == GW_KV_BF16                         ? KN_KV_BF16
	                                                                             : KN_KV_F16;
}

/* As short a sequence as a command runs: what that has no room for, none has. */
static uint32_t shortest(const struct gw_settings *s, uint32_t command)
{
	return command == GW_GENERATE     ? s->max_tokens + 1
	       : command == GW_PERPLEXITY ? s->prefill + s->decode
	                                  : 1;
}

static void fit_one(struct gw_worker *worker, uint32_t prompt, uint64_t tokens)
{
	worker->max_batch = worker->sequences = 1;
	if (tokens < worker->context) worker->context = (uint32_t)tokens;
	worker->prompt = prompt < worker->context ? prompt : worker->context;
}

static enum kv_status look_at_device(struct gw_worker *worker, const struct gw_gguf *file,
	uint32_t command)
{
	enum kv_status status;

	if (strcmp(worker->settings->backend, "cpu") == 0) return KV_OK;
	if (command != GW_SERVE) fit_one(worker, 1, shortest(worker->settings, command));
	status = open_backend(worker, file);
	return status == KV_OK ? plan_memory(worker, file) : status;
}

enum kv_status gw_worker_look(const struct gw_settings *settings, struct kv_allocator *allocator,
	uint32_t command)
{
	struct gw_gguf *file = NULL;
	struct gw_worker worker;
	bool computes = (command & GW_MODEL_COMMANDS) != 0;
	enum kv_status status;

	begin(&worker, settings, allocator);
	if (computes) KV_TRY(check_policy(&worker, command == GW_LOGITS ? "full" : NULL));
	KV_TRY(gw_model_file_open(allocator, settings->model, &file));
	status = computes ? check_shape(&worker, file) : KV_OK;
	if (status == KV_OK) status = gw_load_tokenizer(file, allocator, &worker.tokenizer);
	if (status == KV_OK && computes) status = look_at_device(&worker, file, command);
	gw_gguf_close(file);
	gw_worker_close(&worker);
	return status;
}

/* Read the input of a command with one sequence, which is then no longer than that. */
static enum kv_status take_input(struct gw_worker *worker, struct gw_worker_input *input)
{
	uint32_t prompt;

	if (input == NULL) {
		fit_one(worker, worker->prompt, worker->context);
		return KV_OK;
	}
	KV_TRY(gw_worker_prompt(worker, input->text_file, &input->ids, &input->count));
	prompt = input->prompt > 0 ? input->prompt : input->count;
	fit_one(worker, prompt, (uint64_t)prompt + input->room);
	return KV_OK;
}

static enum kv_status prepare(struct gw_worker *worker, const char *policy, bool one,
	struct gw_worker_input *input)
{
	const struct gw_settings *settings = worker->settings;
	struct gw_gguf *file = NULL;
	enum kv_status status;

	KV_TRY_GOTO(status, check_policy(worker, policy), done);
	KV_TRY_GOTO(status, gw_model_file_open(worker->allocator, settings->model, &file), done);
	if (worker->synthetic)
		kv_warning("worker", "%s: the weights are random; answers mean nothing", settings->model);
	KV_TRY_GOTO(status, check_shape(worker, file), done);
	KV_TRY_GOTO(status, gw_load_tokenizer(file, worker->allocator, &worker->tokenizer), done);
	KV_TRY_GOTO(status, gw_load_chat_format(file, &worker->chat_format), done);
	if (one) KV_TRY_GOTO(status, take_input(worker, input), done);
	KV_TRY_GOTO(status, open_backend(worker, file), done);
	KV_TRY_GOTO(status, plan_memory(worker, file), done);
	KV_TRY_GOTO(status, open_stream(worker), done);
	KV_TRY_GOTO(status, open_model(worker, file), done);
	if (gw_tokenizer_vocabulary(worker->tokenizer) != gw_model_shape(worker->model)->vocabulary)
		kv_debug("worker", "the tokenizer has %u tokens, the model %u",
			gw_tokenizer_vocabulary(worker->tokenizer), gw_model_shape(worker->model)->vocabulary);
done:
	gw_gguf_close(file);
	if (status != KV_OK) gw_worker_close(worker);
	return status;
}

enum kv_status gw_worker_prepare(const struct gw_settings *settings,
	struct kv_allocator *allocator, const char *policy, struct gw_worker *worker)
{
	begin(worker, settings, allocator);
	return prepare(worker, policy, false, NULL);
}

void gw_worker_disconnect(struct gw_worker *worker)
{
	gw_pipeline_destroy(worker->pipeline);
	worker->pipeline = NULL;
	if (worker->store != NULL) kvc_close(worker->store);
	worker->store = NULL;
}

enum kv_status gw_worker_connect(struct gw_worker *worker, uint64_t wait_ms)
{
	enum kv_status status = worker->offloads ? open_store(worker, wait_ms) : KV_OK;

	if (status == KV_OK) status = open_pipeline(worker);
	if (status != KV_OK) gw_worker_disconnect(worker);
	return status;
}

enum kv_status gw_worker_open(const struct gw_settings *settings, struct kv_allocator *allocator,
	const char *policy, struct gw_worker_input *input, struct gw_worker *worker)
{
	enum kv_status status;

	begin(worker, settings, allocator);
	KV_TRY(prepare(worker, policy, true, input));
	status = gw_worker_connect(worker, settings->store_wait_ms);
	if (status != KV_OK) gw_worker_close(worker);
	return status;
}

enum kv_status gw_worker_open_text(const struct gw_settings *settings,
	struct kv_allocator *allocator, struct gw_worker *worker)
{
	struct gw_gguf *file = NULL;
	enum kv_status status;

	memset(worker, 0, sizeof *worker);
	worker->settings = settings;
	worker->allocator = allocator;
	KV_TRY(gw_model_file_open(allocator, settings->model, &file));
	status = gw_load_tokenizer(file, allocator, &worker->tokenizer);
	gw_gguf_close(file);
	return status;
}

void gw_worker_close(struct gw_worker *worker)
{
	gw_worker_disconnect(worker);
	gw_model_close(worker->model);
	gw_tokenizer_destroy(worker->tokenizer);
	if (worker->stream != NULL) worker->ops->stream_destroy(worker->backend, worker->stream);
	if (worker->backend != NULL) worker->ops->close(worker->backend);
	memset(worker, 0, sizeof *worker);
}

enum kv_status gw_read_file(struct kv_allocator *allocator, const char *path, size_t limit,
	char **text, size_t *length)
{
	FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
	size_t used = 0, capacity = 65536;
	char *buffer, *grown;
	enum kv_status status = KV_OK;

	if (file == NULL) return kv_fail(KV_IO, "%s: %s", path, strerror(errno));
	buffer = kv_alloc(allocator, capacity + 1);
	if (buffer == NULL) status = KV_NO_MEMORY;
	while (status == KV_OK &&
		(used += fread(buffer + used, 1, capacity - used, file)) == capacity) {
		if (capacity >= limit) {
			status = kv_fail(KV_LIMIT, "%s: larger than %zu bytes", path, limit);
			break;
		}
		grown = kv_realloc(allocator, buffer, capacity * 2 + 1);
		if (grown == NULL) {
			status = KV_NO_MEMORY;
			break;
		}
		buffer = grown;
		capacity *= 2;
	}
	if (status == KV_OK && ferror(file)) status = kv_fail(KV_IO, "%s: %s", path, strerror(errno));
	if (file != stdin) fclose(file);
	if (status != KV_OK) {
		kv_free(allocator, buffer);
		return status;
	}
	buffer[used] = '\0';
	*text = buffer;
	*length = used;
	return KV_OK;
}

enum kv_status gw_parse_ids(struct kv_allocator *allocator, const char *text, size_t length,
	const char *path, int32_t **ids, uint32_t *count)
{
	int32_t *made = kv_alloc_array(allocator, length / 2 + 1, sizeof *made);
	const char *at = text, *end = text + length;
	uint32_t used = 0;

	if (made == NULL) return KV_NO_MEMORY;
	for (;;) {
		char *after = NULL;
		long value;

		while (at < end && strchr(" \t\r\n,[]", *at) != NULL && *at != '\0')
			at++;
		if (at >= end) break;
		errno = 0;
		value = strtol(at, &after, 10);
		if (after == at || errno != 0 || value < 0 || value > INT32_MAX) {
			kv_free(allocator, made);
			return kv_fail(KV_INVALID, "%s: byte %zu (\"%.16s\") is not a token id; give numbers "
				"separated by spaces, commas or newlines", path, (size_t)(at - text), at);
		}
		made[used++] = (int32_t)value;
		at = after;
	}
	*ids = made;
	*count = used;
	return KV_OK;
}

enum kv_status gw_worker_prompt(const struct gw_worker *worker, const char *text_file,
	int32_t **ids, uint32_t *count)
{
	const struct gw_settings *s = worker->settings;
	const char *path = text_file != NULL ? text_file : s->tokens_file;
	char *text = NULL;
	size_t length = 0;
	enum kv_status status;

	if (text_file == NULL && s->prompt != NULL)
		return gw_tokenizer_encode(worker->tokenizer, worker->allocator, s->prompt,
			strlen(s->prompt), s->parse_special, 1, ids, count);
	if (path == NULL) return kv_fail(KV_INTERNAL, "no input, and nobody has said so");
	KV_TRY(gw_read_file(worker->allocator, path, INPUT_LIMIT, &text, &length));
	status = text_file != NULL
		? gw_tokenizer_encode(worker->tokenizer, worker->allocator, text, length, s->parse_special,
			  1, ids, count)
		: gw_parse_ids(worker->allocator, text, length, path, ids, count);
	kv_free(worker->allocator, text);
	return status;
}
