/* kvctl describe: what the store is and who works with it, for people. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/parse.h"
#include "kvstore/ctl/ctl.h"

enum { ANSWER_LIMIT = 8 << 20 };

static const char *const facts[] = {
    "version", "pid", "protocol_version", "boot_generation", "transport", "socket"};

static void print_memory(const char *answer)
{
	static const char *const states[] = {"leased", "cached", "reserved", "quarantined", "free"};
	char name[64];

	printf("arena            %.1f MiB at most, %.1f MiB taken in %.0f regions\n",
	    ctl_find_number(answer, "arena_limit_bytes") / 1048576.0,
	    ctl_find_number(answer, "regions_bytes") / 1048576.0, ctl_find_number(answer, "regions"));
	for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
		snprintf(name, sizeof name, "arena_bytes{state=\"%s\"}", states[i]);
		printf("  %-14s %.1f MiB\n", states[i], ctl_find_number(answer, name) / 1048576.0);
	}
}

static void print_disk(const char *answer)
{
	const double limit = ctl_find_number(answer, "disk_limit_bytes");

	if (!(limit > 0)) return;
	printf("disk             %.1f of %.1f MiB in %.0f files, %.0f segments read back\n",
	    ctl_find_number(answer, "disk_bytes") / 1048576.0, limit / 1048576.0,
	    ctl_find_number(answer, "disk_segments"),
	    ctl_find_number(answer, "disk_promoted_segments_total"));
}

static void worker_value(
    const char *answer, const char *worker, const char *fact, char *value, size_t size)
{
	ctl_find_worker(answer, worker, fact, value, size);
	if (!value[0]) snprintf(value, size, "-");
}

static void print_worker(const char *answer, const char *worker)
{
	char state[32];
	char model[64];
	char lanes[64];
	char sequences[32];
	char rate[32];

	worker_value(answer, worker, "state", state, sizeof state);
	worker_value(answer, worker, "model", model, sizeof model);
	worker_value(answer, worker, "lanes", lanes, sizeof lanes);
	worker_value(answer, worker, "sequences", sequences, sizeof sequences);
	worker_value(answer, worker, "cache_hit_rate", rate, sizeof rate);
	if (rate[0] != '-') snprintf(rate, sizeof rate, "%.1f %%", 100.0 * strtod(rate, NULL));
	printf("%-20s %-10s %-20s %-20s %9s %8s\n", worker, state, model, lanes, sequences, rate);
}

static void print_workers(const char *answer)
{
	char name[CTL_NAME_BYTES];
	const char *cursor = answer;
	bool heading = false;

	while (ctl_next_worker(&cursor, name)) {
		if (!heading)
			printf("\n%-20s %-10s %-20s %-20s %9s %8s\n", "worker", "state", "model", "lanes",
			    "sequences", "hit");
		heading = true;
		print_worker(answer, name);
	}
	if (!heading) printf("\nno worker has been here in the last ten minutes\n");
}

static void print_text(const char *answer)
{
	char value[128];

	for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
		ctl_find_stat(answer, facts[i], value, sizeof value);
		printf("%-16s %s\n", facts[i], value);
	}
	print_memory(answer);
	print_disk(answer);
	printf("sequences        %.0f active, %.0f orphaned\n",
	    ctl_find_number(answer, "sequences{state=\"active\"}"),
	    ctl_find_number(answer, "sequences{state=\"orphaned\"}"));
	printf("segments         %.0f with %.0f tokens of %.0f models\n",
	    ctl_find_number(answer, "segments{state=\"committed\"}"), ctl_find_number(answer, "tokens"),
	    ctl_find_number(answer, "models"));
	print_workers(answer);
}

enum kv_status ctl_describe(const struct ctl_settings *settings)
{
	struct kv_text_buffer answer;
	enum kv_status status;

	kv_text_init(&answer, kv_heap(), ANSWER_LIMIT);
	status = ctl_ask(settings, settings->json ? "stats json" : "stats", &answer);
	if (status == KV_OK && settings->json) fputs(kv_text(&answer), stdout);
	if (status == KV_OK && !settings->json) print_text(kv_text(&answer));
	kv_text_deinit(&answer);
	return status;
}
