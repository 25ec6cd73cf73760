/* kvctl top: the workers at a glance, again and again. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kvstore/ctl/ctl.h"

enum { ANSWER_LIMIT = 8 << 20, VALUE_BYTES = 32 };

/* The columns: what stats calls them, and how they are shown. */
enum form { AS_IS, PERCENT, MEGABYTES, MEBIBYTES, TENTHS };

struct column {
	const char *fact, *title;
	enum form form;
	int width;
};

static const struct column columns[] = {
    {"state", "state", AS_IS, 10},
    {"sequences", "sequences", AS_IS, 9},
    {"cache_hit_rate_10s", "hit 10s", PERCENT, 8},
    {"cache_hit_rate_60s", "hit 60s", PERCENT, 8},
    {"cache_hit_rate", "hit all", PERCENT, 8},
    {"hit_bytes_per_second", "hit MB/s", MEGABYTES, 9},
    {"fetch_bytes_per_second", "fetch MB/s", MEGABYTES, 10},
    {"decode_tokens_per_second", "tokens/s", TENTHS, 8},
    {"cache_bytes", "cache MiB", MEBIBYTES, 9},
};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

static void shown(const struct column *column, const char *value, char text[VALUE_BYTES])
{
	double number = strtod(value, NULL);

	if (!value[0])
		snprintf(text, VALUE_BYTES, "-");
	else if (column->form == PERCENT)
		snprintf(text, VALUE_BYTES, "%.1f %%", 100.0 * number);
	else if (column->form == MEGABYTES)
		snprintf(text, VALUE_BYTES, "%.1f", number / 1e6);
	else if (column->form == MEBIBYTES)
		snprintf(text, VALUE_BYTES, "%.1f", number / 1048576.0);
	else if (column->form == TENTHS)
		snprintf(text, VALUE_BYTES, "%.1f", number);
	else
		snprintf(text, VALUE_BYTES, "%.31s", value);
}

/* A worker's fact, or the sum of all with NULL. */
static void find(
    const char *answer, const char *worker, const struct column *column, char value[VALUE_BYTES])
{
	if (worker)
		ctl_find_worker(answer, worker, column->fact, value, VALUE_BYTES);
	else
		ctl_find_stat(answer, column->fact, value, VALUE_BYTES);
}

static void print_row(const char *answer, const char *worker, const char *title)
{
	char value[VALUE_BYTES];
	char text[VALUE_BYTES];

	printf("%-20.20s", title);
	for (int i = 0; i < COLUMNS; i++) {
		value[0] = '\0';
		find(answer, worker, &columns[i], value);
		shown(&columns[i], value, text);
		printf(" %*s", columns[i].width, text);
	}
	printf("\n");
}

static void print_table(const char *answer)
{
	char name[CTL_NAME_BYTES];
	const char *cursor = answer;

	printf("%s: %.0f workers, %.0f sequences, %.1f of %.0f MiB, up %.0f s\n\n",
	    ctl_find_number(answer, "draining") > 0 ? "draining" : "ready",
	    ctl_find_number(answer, "workers{state=\"connected\"}"),
	    ctl_find_number(answer, "sequences{state=\"active\"}"), ctl_find_used(answer) / 1048576.0,
	    ctl_find_number(answer, "arena_limit_bytes") / 1048576.0,
	    ctl_find_number(answer, "uptime_seconds"));
	printf("%-20s", "worker");
	for (int i = 0; i < COLUMNS; i++)
		printf(" %*s", columns[i].width, columns[i].title);
	printf("\n");
	while (ctl_next_worker(&cursor, name))
		print_row(answer, name, name);
	print_row(answer, NULL, "all");
}

static void put_fact(
    struct kv_text_buffer *text, const struct column *column, const char *value, bool more)
{
	if (more) kv_text_put(text, ",");
	kv_text_put_json(text, column->fact);
	kv_text_put(text, ":");
	if (column == columns)
		kv_text_put_json(text, value);
	else
		kv_text_put(text, value[0] ? value : "null");
}

static void put_row(struct kv_text_buffer *text, const char *answer, const char *worker)
{
	char value[VALUE_BYTES];

	/* The state is a worker's alone. */
	for (int i = worker ? 0 : 1; i < COLUMNS; i++) {
		value[0] = '\0';
		find(answer, worker, &columns[i], value);
		put_fact(text, &columns[i], value, worker || i > 1);
	}
}

static void print_json(const char *answer)
{
	struct kv_text_buffer text;
	char name[CTL_NAME_BYTES];
	const char *cursor = answer;
	bool more = false;

	kv_text_init(&text, kv_heap(), ANSWER_LIMIT);
	kv_text_printf(&text, "{\"draining\":%s,\"used_bytes\":%.0f,\"limit_bytes\":%.0f,\"all\":{",
	    ctl_find_number(answer, "draining") > 0 ? "true" : "false", ctl_find_used(answer),
	    ctl_find_number(answer, "arena_limit_bytes"));
	put_row(&text, answer, NULL);
	kv_text_put(&text, "},\"workers\":[");
	while (ctl_next_worker(&cursor, name)) {
		kv_text_put(&text, more ? ",{\"name\":" : "{\"name\":");
		kv_text_put_json(&text, name);
		put_row(&text, answer, name);
		kv_text_put(&text, "}");
		more = true;
	}
	printf("%s]}\n", kv_text(&text));
	kv_text_deinit(&text);
}

static enum kv_status show(const struct ctl_settings *settings, struct kv_text_buffer *answer)
{
	static const char clear[] = "\033[H\033[2J";

	KV_TRY(ctl_ask(settings, "stats", answer));
	if (settings->json) {
		print_json(kv_text(answer));
	} else {
		if (!settings->once && isatty(STDOUT_FILENO)) fputs(clear, stdout);
		print_table(kv_text(answer));
	}
	return KV_OK;
}

enum kv_status ctl_top(const struct ctl_settings *settings)
{
	double interval = settings->interval > 0 ? settings->interval : 2.0;
	uint32_t count = settings->once ? 1 : settings->count;
	struct kv_text_buffer answer;
	enum kv_status status;

	kv_text_init(&answer, kv_heap(), ANSWER_LIMIT);
	for (uint32_t shows = 1;; shows++) {
		status = show(settings, &answer);
		if (status != KV_OK || shows == count) break;
		if (fflush(stdout) != 0) {
			/* A reader that is gone ends us, and is no error. */
			if (errno == EPIPE) clearerr(stdout);
			break;
		}
		ctl_pause(interval);
		if (!settings->json && !isatty(STDOUT_FILENO)) printf("\n");
	}
	kv_text_deinit(&answer);
	return status;
}
