/* kvctl trace: where the time of one of a worker's requests went. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/request_id.h"
#include "kvstore/ctl/ctl.h"

enum {
	ANSWER_LIMIT = 8 << 20,
	BAR = 32,
	MAX_LAYERS = 4096,
	WORD_BYTES = 96 /* of a line's name or of one of its facts */
};

/* "end" of "choice:3:end"; NULL when the line is of something else. */
static const char *choice_fact(const char *name, unsigned choice)
{
	char head[32];
	int length = snprintf(head, sizeof head, "choice:%u:", choice);

	return strncmp(name, head, (size_t)length) == 0 ? name + length : NULL;
}

static double ms_of(const char *us)
{
	return strtod(us, NULL) / 1000.0;
}

static void print_bar(double share)
{
	static const char full[BAR + 1] = "################################";
	int length = (int)(share * BAR + 0.5);

	if (length > BAR) length = BAR;
	printf("%s%.*s\n", length > 0 ? " " : "", length, full);
}

/* "prefill_us" is an outer span, "prefill.index_us" is in it. */
static void print_span(const char *name, const char *value, double wall_ms)
{
	const char *dot = strchr(name, '.');
	double ms = ms_of(value), share = wall_ms > 0 ? ms / wall_ms : 0;
	const char *shown = dot ? dot + 1 : name;
	size_t length = strcspn(shown, "_");

	printf("%s%-*.*s %12.3f %6.1f %%", dot ? "  " : "", dot ? 10 : 12, (int)length, shown, ms,
	    100.0 * share);
	print_bar(share);
}

static double outer_span(const char *name, const char *value)
{
	return strchr(name, '.') ? 0 : ms_of(value);
}

static void print_choice_head(char *text, unsigned choice)
{
	char name[WORD_BYTES], end[WORD_BYTES], tokens[32], steps[32], found[32];

	snprintf(name, sizeof name, "choice:%u:end", choice);
	ctl_find_stat(text, name, end, sizeof end);
	snprintf(name, sizeof name, "choice:%u:tokens", choice);
	ctl_find_stat(text, name, tokens, sizeof tokens);
	snprintf(name, sizeof name, "choice:%u:steps", choice);
	ctl_find_stat(text, name, steps, sizeof steps);
	snprintf(name, sizeof name, "choice:%u:found_tokens", choice);
	ctl_find_stat(text, name, found, sizeof found);
	if (end[0])
		printf("\nchoice %u: %s, %s tokens in %s steps, %s of the prompt's found\n", choice, end,
		    tokens, steps, found);
	else
		printf("\nit did not get to the engine\n");
}

static void print_choice(struct kv_text_buffer *answer, unsigned choice, double wall_ms)
{
	const char *name, *value, *fact;
	struct kv_text_buffer copy;
	double sum = 0;
	char *cursor;

	print_choice_head(answer->data, choice);
	printf("%-12s %12s %8s\n", "span", "ms", "part");
	kv_text_init(&copy, kv_heap(), ANSWER_LIMIT);
	kv_text_put(&copy, kv_text(answer));
	cursor = copy.data;
	while (kv_text_status(&copy) == KV_OK && ctl_next_stat(&cursor, &name, &value)) {
		fact = choice_fact(name, choice);
		if (!fact || strncmp(fact, "span:", 5) != 0) continue;
		print_span(fact + 5, value, wall_ms);
		sum += outer_span(fact + 5, value);
	}
	printf("%-12s %12.3f  of the request's %.3f ms\n", "sum", sum, wall_ms);
	kv_text_deinit(&copy);
}

static int by_size(const void *a, const void *b)
{
	double one = *(const double *)a, other = *(const double *)b;

	return one < other ? -1 : one > other;
}

static void print_layers(const char *text)
{
	static double ms[MAX_LAYERS];
	char name[32], value[32];
	unsigned count = 0;
	double sum = 0;

	/* Layers that no prompt was computed in are not told. */
	for (unsigned i = 0; i < MAX_LAYERS; i++) {
		snprintf(name, sizeof name, "layer:%u_us", i);
		ctl_find_stat(text, name, value, sizeof value);
		if (!value[0]) break;
		ms[count] = ms_of(value);
		sum += ms[count++];
	}
	if (!count) return;
	qsort(ms, count, sizeof ms[0], by_size);
	printf("\nprefill by layers, of all choices: %u took %.3f ms, each %.3f to %.3f, median %.3f\n",
	    count, sum, ms[0], ms[count - 1], ms[count / 2]);
}

static void print_fact(const char *text, const char *title, const char *name)
{
	char value[WORD_BYTES];

	ctl_find_stat(text, name, value, sizeof value);
	if (value[0]) printf("%-9s %s\n", title, value);
}

static void print_trace(struct kv_text_buffer *answer)
{
	const char *text = kv_text(answer);
	double wall_ms = ctl_find_number(text, "wall_us") / 1000.0;
	double left_out = ctl_find_number(text, "choices_left_out");
	unsigned choices = (unsigned)ctl_find_number(text, "choices");
	char state[WORD_BYTES], kind[WORD_BYTES];

	print_fact(text, "request", "request");
	print_fact(text, "answer", "answer");
	ctl_find_stat(text, "state", state, sizeof state);
	ctl_find_stat(text, "kind", kind, sizeof kind);
	printf("%-9s %s, %s", "state", kind, state);
	if (ctl_find_number(text, "code") > 0) printf(" (%.0f)", ctl_find_number(text, "code"));
	printf(", came %.1f s ago\n", ctl_find_number(text, "age_us") / 1e6);
	printf("%-9s prompt %.0f, found %.0f, answer %.0f\n", "tokens",
	    ctl_find_number(text, "prompt_tokens"), ctl_find_number(text, "found_tokens"),
	    ctl_find_number(text, "tokens"));
	for (unsigned i = 0; i == 0 || i < choices; i++)
		print_choice(answer, i, wall_ms);
	if (left_out > 0) printf("\nthe times of %.0f more choices are not kept\n", left_out);
	print_layers(text);
}

/* "12" of "tokens=12 …"; "-" when it is not there. */
static void find_word(const char *line, const char *name, char value[WORD_BYTES])
{
	char wanted[32];
	size_t length = (size_t)snprintf(wanted, sizeof wanted, "%s=", name);
	const char *at = strstr(line, wanted);

	while (at && at != line && at[-1] != ' ')
		at = strstr(at + 1, wanted);
	snprintf(value, WORD_BYTES, "%.*s", at ? (int)strcspn(at + length, " ") : 1,
	    at ? at + length : "-");
}

static void print_list(struct kv_text_buffer *answer)
{
	char state[WORD_BYTES], code[WORD_BYTES], wall[WORD_BYTES], age[WORD_BYTES];
	char prompt[WORD_BYTES], found[WORD_BYTES], tokens[WORD_BYTES];
	char *cursor = answer->data;
	const char *id, *facts;
	bool any = false;

	while (ctl_next_stat(&cursor, &id, &facts)) {
		find_word(facts, "state", state);
		find_word(facts, "code", code);
		find_word(facts, "wall_us", wall);
		find_word(facts, "age_us", age);
		find_word(facts, "prompt_tokens", prompt);
		find_word(facts, "found_tokens", found);
		find_word(facts, "tokens", tokens);
		if (!any)
			printf("%-36s %-8s %4s %12s %8s %8s %8s %9s\n", "request", "state", "code", "ms",
			    "prompt", "found", "answer", "s ago");
		any = true;
		printf("%-36s %-8s %4s %12.3f %8s %8s %8s %9.1f\n", id, state,
		    strcmp(code, "0") == 0 ? "-" : code, ms_of(wall), prompt, found, tokens,
		    strtod(age, NULL) / 1e6);
	}
	if (!any) printf("this worker has had no request yet\n");
}

enum kv_status ctl_trace_check(const char *id)
{
	return kv_request_id_check(id);
}

enum kv_status ctl_trace(const struct ctl_settings *settings)
{
	const struct ctl_peer worker = {settings->worker_socket, "--worker-socket", "the worker"};
	const char *id = settings->request;
	struct kv_text_buffer answer;
	char line[KV_REQUEST_ID_BYTES + 16];
	enum kv_status status;

	if (!settings->worker_socket || !settings->worker_socket[0])
		return kv_fail(KV_USAGE, "--worker-socket PATH is missing: give the PATH that the "
		                         "worker was started with, gpu-worker serve --worker-socket PATH");
	if (id)
		snprintf(line, sizeof line, "trace %s%s", settings->json ? "json " : "", id);
	else
		snprintf(line, sizeof line, "traces%s", settings->json ? " json" : "");
	kv_text_init(&answer, kv_heap(), ANSWER_LIMIT);
	status = ctl_ask_peer(settings, &worker, line, &answer);
	if (status == KV_OK && strncmp(kv_text(&answer), "NOT_FOUND", 9) == 0)
		status = kv_fail(KV_NOT_FOUND,
		    "request %s: the worker at %s does not know it; it knows those that run and the last "
		    "that ended: kvctl trace lists them",
		    id ? id : "", settings->worker_socket);
	else if (status == KV_OK && settings->json)
		fputs(kv_text(&answer), stdout);
	else if (status == KV_OK && id)
		print_trace(&answer);
	else if (status == KV_OK)
		print_list(&answer);
	kv_text_deinit(&answer);
	return status;
}
