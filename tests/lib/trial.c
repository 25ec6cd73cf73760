#include "tests/lib/trial.h"

enum { TINY_TEXT = 20000, WAIT_MS = 60000, REAL_WAIT_MS = 900000, ID_BYTES = 12 };

/* What rounding may do to a logit, with default precision and with fp32. */
#define MARGIN      0.7
#define MARGIN_FP32 0.05

static void choose(struct trial *trial, const char *name)
{
	memset(trial, 0, sizeof *trial);
	trial->name = name;
	trial->real = strncmp(name, "tiny", 4) != 0;
	trial->limit_ms = trial->real ? REAL_WAIT_MS : WAIT_MS;
	trial->answer_tokens = trial->real ? 64 : TRIAL_SANITIZED ? 60 : 100;
	trial->prompt_tokens = trial->real ? 4000 : TRIAL_SANITIZED ? 700 : 1300;
	if (strcmp(name, "qwen") == 0) trial->prompt_tokens = 8000;
	trial->budget = trial->real ? 512 : 96;
	trial->window = trial->real ? 128 : 32;
	trial->fold = trial->real ? 320 : 32;
	trial->segment = trial->real ? 4096 : TRIAL_SANITIZED ? 256 : 512;
	/* The small one holds a few clusters of some heads, the large one everything. */
	trial->small_cache = trial->real ? "1MiB" : "8KiB";
	trial->large_cache = "1GiB";
	trial->memory = trial->real ? "--memory=384MiB" : "--memory=64MiB";
}

static const char *write_number(struct trial *trial, unsigned at, uint32_t number)
{
	snprintf(trial->numbers[at], sizeof trial->numbers[at], "%u", number);
	return trial->numbers[at];
}

static void write_options(struct trial *trial)
{
	const char *const options[] = {"--model", trial->model, "--log-level", "info", "--budget",
	    write_number(trial, 0, trial->budget), "--window", write_number(trial, 1, trial->window),
	    "--fold", write_number(trial, 2, trial->fold), "--segment",
	    write_number(trial, 3, trial->segment), "--cluster-tokens", trial->real ? "32" : "8",
	    "--sinks", trial->real ? "16" : "4", "--dense-layers", trial->real ? "2" : "1", NULL};

	memcpy(trial->options, options, sizeof options);
}

static bool find_model(struct trial *trial)
{
	const char *variable =
	    strcmp(trial->name, "qwen") == 0 ? "CLUSTERKV_MODEL_QWEN" : "CLUSTERKV_MODEL_SMOLLM2";
	const char *path = getenv(variable);

	if (!trial->real) {
		snprintf(trial->model, sizeof trial->model, "%s/%s.gguf", KV_TINY_MODELS, trial->name);
		return true;
	}
	if (path && *path && strlen(path) < sizeof trial->model) {
		snprintf(trial->model, sizeof trial->model, "%s", path);
		return true;
	}
	printf("skipped: no path of the model in %s\n", variable);
	return false;
}

/* What a process reports; NULL after printing what it said instead. */
static json_t *finish(
    struct process *process, const struct trial *trial, const char *what, char **errors)
{
	int code = process_wait(process, trial->limit_ms);
	char *output = process_output(process), *said = process_errors(process);
	json_t *report = code == 0 && output ? json_loads(output, JSON_ALLOW_NUL, NULL) : NULL;

	if (!report) fprintf(stderr, "%s: exit code %d\n%s\n", what, code, said);
	free(output);
	if (errors)
		*errors = said;
	else
		free(said);
	process_deinit(process);
	return report;
}

static json_t *run_json(const struct trial *trial, const char *const *arguments, const char *input)
{
	struct process process;

	if (!process_start(&process, arguments, input)) return NULL;
	return finish(&process, trial, arguments[1], NULL);
}

static int32_t *take_ids(const json_t *list, uint32_t *count)
{
	size_t size = json_array_size(list), i;
	int32_t *ids = calloc(size + 1, sizeof *ids);
	json_t *id;

	json_array_foreach(list, i, id)
	{
		if (ids) ids[i] = (int32_t)json_integer_value(id);
	}
	*count = ids ? (uint32_t)size : 0;
	return ids;
}

static bool read_novel(struct trial *trial)
{
	const char *shared = getenv("CLUSTERKV_SHARED");
	char path[1024];
	const char *const arguments[] = {
	    KV_GPU_WORKER, "tokenize", "--model", trial->model, "--file", path, "--json", NULL};
	json_t *object;
	FILE *file;

	snprintf(path, sizeof path, "%s/data/novel.txt", shared && *shared ? shared : "../shared");
	file = fopen(path, "r");
	if (!file) {
		printf("skipped: no text in %s\n", path);
		return false;
	}
	fclose(file);
	object = run_json(trial, arguments, NULL);
	trial->text = take_ids(json_object_get(object, "tokens"), &trial->text_tokens);
	json_decref(object);
	return trial->text_tokens > 0;
}

/* Any token but the special ones, of which there are three, and those of the last bytes. */
static bool write_text(struct trial *trial)
{
	uint32_t state = 1;

	trial->text = calloc(TINY_TEXT, sizeof *trial->text);
	if (!trial->text) return false;
	for (uint32_t i = 0; i < TINY_TEXT; i++) {
		state = state * 1664525U + 1013904223U;
		trial->text[i] = (int32_t)(3 + (state >> 16) % 290);
	}
	trial->text_tokens = TINY_TEXT;
	return true;
}

bool trial_init(struct trial *trial, const char *name)
{
	choose(trial, name);
	if (!find_model(trial)) return false;
	write_options(trial);
	return trial->real ? read_novel(trial) : write_text(trial);
}

void trial_deinit(struct trial *trial)
{
	free(trial->text);
	memset(trial, 0, sizeof *trial);
}

int32_t *trial_prompt(const struct trial *trial, unsigned seed, uint32_t tokens)
{
	int32_t *ids = malloc(tokens * sizeof *ids);

	assert_non_null(ids);
	for (uint32_t i = 0; i < tokens; i++)
		ids[i] = trial->text[(seed * 4567 + i) % trial->text_tokens];
	return ids;
}

void trial_add(struct trial_arguments *arguments, const char *const *more)
{
	for (unsigned i = 0; more && more[i]; i++) {
		assert_true(arguments->count + 1 < PROCESS_ARGUMENTS);
		arguments->all[arguments->count++] = more[i];
	}
	arguments->all[arguments->count] = NULL;
}

void trial_command(
    struct trial_arguments *arguments, const struct trial *trial, const char *command)
{
	const char *const first[] = {KV_GPU_WORKER, command, NULL};

	arguments->count = 0;
	trial_add(arguments, first);
	trial_add(arguments, trial->options);
}

char *trial_ids(const int32_t *ids, uint32_t count, const char *between)
{
	char *text = malloc((size_t)count * ID_BYTES + 1);
	size_t used = 0;

	assert_non_null(text);
	text[0] = '\0';
	for (uint32_t i = 0; i < count; i++)
		used += (size_t)sprintf(text + used, "%s%d", i ? between : "", (int)ids[i]);
	return text;
}

void trial_generate_start(struct process *process, const struct trial *trial, const int32_t *prompt,
    uint32_t tokens, const char *const *more)
{
	struct trial_arguments arguments;
	const char *const given[] = {"--tokens-file", "-", "--max-tokens", NULL, NULL};
	const char *const always[] = {"--ignore-end", "--logits-digest", "--json", NULL};
	char *input = prompt ? trial_ids(prompt, tokens, " ") : NULL;
	char answer[16];

	trial_command(&arguments, trial, "generate");
	snprintf(answer, sizeof answer, "%u", trial->answer_tokens);
	if (prompt) {
		const char *const length[] = {answer, NULL};

		trial_add(&arguments, given);
		trial_add(&arguments, length);
	}
	trial_add(&arguments, always);
	trial_add(&arguments, more);
	assert_true(process_start(process, arguments.all, input));
	free(input);
}

json_t *trial_run(const struct trial *trial, const char *what,
    const struct trial_arguments *arguments, const int32_t *ids, uint32_t count, char **errors)
{
	char *input = trial_ids(ids, count, " ");
	struct process process = {0};
	json_t *report;

	assert_true(process_start(&process, arguments->all, input));
	free(input);
	report = finish(&process, trial, what, errors);
	if (!report) fail_msg("%s: no report", what);
	return report;
}

json_t *trial_generate_finish(struct process *process, const struct trial *trial)
{
	json_t *report = finish(process, trial, "generate", NULL);

	if (!report) fail_msg("generate: no report");
	return report;
}

json_t *trial_generate(
    const struct trial *trial, const int32_t *prompt, uint32_t tokens, const char *const *more)
{
	struct process process;

	trial_generate_start(&process, trial, prompt, tokens, more);
	return trial_generate_finish(&process, trial);
}

void trial_serve(struct serve_fixture *worker, const struct trial *trial, const char *const *more)
{
	struct trial_arguments arguments = {0};

	trial_add(&arguments, trial->options);
	trial_add(&arguments, more);
	serve_answer_limit(trial->limit_ms / 1000);
	assert_true(serve_fixture_start(worker, arguments.all, true));
}

char *trial_body(const int32_t *prompt, uint32_t tokens, uint32_t max_tokens, const char *more)
{
	char *ids = trial_ids(prompt, tokens, ",");
	size_t size = strlen(ids) + strlen(more) + 256;
	char *body = malloc(size);

	assert_non_null(body);
	snprintf(body, size,
	    "{\"prompt\":[%s],\"max_tokens\":%u,%s\"ignore_end\":true,\"logits_digest\":true%s%s}", ids,
	    max_tokens, strstr(more, "temperature") ? "" : "\"temperature\":0,", more[0] ? "," : "",
	    more);
	free(ids);
	return body;
}

json_t *trial_finish(struct serve_call *call)
{
	struct serve_reply reply;
	json_t *answer;

	assert_true(serve_call_finish(call, &reply));
	if (reply.code != 200 || !reply.json) fail_msg("%d: %s", reply.code, reply.body);
	answer = json_incref(reply.json);
	serve_reply_deinit(&reply);
	return answer;
}

json_t *trial_ask(const struct serve_fixture *worker, const char *body)
{
	struct serve_call call;

	assert_true(serve_call_open(&call, worker, "POST", "/v1/completions", body));
	return trial_finish(&call);
}

json_t *trial_own(const json_t *answer)
{
	return json_object_get(answer, "clusterkv");
}

double trial_number(const json_t *report, const char *name)
{
	json_t *value = json_object_get(report, name);

	if (!json_is_number(value)) fail_msg("the report has no number %s", name);
	return json_number_value(value);
}

double trial_cache(const json_t *report, const char *name)
{
	return json_number_value(json_object_get(json_object_get(report, "cache"), name));
}

/* How many leading tokens are the same. */
static size_t common(const json_t *expected, const json_t *found)
{
	const json_t *a = json_object_get(expected, "tokens"), *b = json_object_get(found, "tokens");
	size_t count = 0;

	while (count < json_array_size(a) && count < json_array_size(b) &&
	       json_equal(json_array_get(a, count), json_array_get(b, count)))
		count++;
	return count;
}

static bool same_tokens(const json_t *expected, const json_t *found)
{
	return json_equal(json_object_get(expected, "tokens"), json_object_get(found, "tokens"));
}

void trial_same_bits(const json_t *expected, const json_t *found, const char *what)
{
	const char *one = json_string_value(json_object_get(expected, "logits_digest"));
	const char *two = json_string_value(json_object_get(found, "logits_digest"));

	if (!one || !two) fail_msg("%s: no digest of the logits", what);
	if (!same_tokens(expected, found))
		fail_msg("%s: tokens differ after %zu", what, common(expected, found));
	if (strcmp(one, two) != 0) fail_msg("%s: digests of the logits differ", what);
}

/* How far the best logit was from the next where token `at` was picked. */
static double margin_at(const json_t *answer, size_t at)
{
	const json_t *margin = json_array_get(json_object_get(answer, "margins"), at);

	if (!json_is_number(margin)) fail_msg("no margin of token %zu is reported", at);
	return json_number_value(margin);
}

void trial_same_to_rounding(
    const json_t *expected, const json_t *found, bool fp32, const char *what)
{
	size_t kept = common(expected, found);
	double margin;

	if (same_tokens(expected, found)) return;
	if (json_array_size(json_object_get(expected, "tokens")) !=
	    json_array_size(json_object_get(found, "tokens")))
		fail_msg("%s: answers have different lengths", what);
	margin = margin_at(expected, kept);
	printf("%s: tokens part after %zu, where the margin is %.4f\n", what, kept, margin);
	if (margin >= (fp32 ? MARGIN_FP32 : MARGIN))
		fail_msg("%s: tokens part after %zu with a margin of %.4f", what, kept, margin);
}
