/* kvctl stat: everything once, or what happened in each interval. */
#include <errno.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "kvstore/ctl/ctl.h"

enum { ANSWER_LIMIT = 8 << 20, HEADING_EVERY = 20, ERROR_TEXT = 512 };

/* What one line of `stat --interval` shows: rates are differences, the others as they are. */
struct sample {
	double workers, sequences, used, limit;
	double commits, verified, put, lookup, found, hit, looked;
	uint64_t taken_ns;
};

static void take_sample(char *answer, struct sample *sample)
{
	*sample = (struct sample){.workers = ctl_find_number(answer, "workers{state=\"connected\"}"),
	    .sequences = ctl_find_number(answer, "sequences{state=\"active\"}"),
	    .used = ctl_find_used(answer),
	    .limit = ctl_find_number(answer, "arena_limit_bytes"),
	    .commits = ctl_find_number(answer, "commits_total{result=\"ok\"}"),
	    .verified = ctl_find_number(answer, "verified_bytes_total"),
	    .put = ctl_find_number(answer, "put_bytes_total"),
	    .lookup = ctl_find_number(answer, "prefix_lookup_tokens_total"),
	    .found = ctl_find_number(answer, "prefix_hit_tokens_total{how=\"shared\"}") +
	             ctl_find_number(answer, "prefix_hit_tokens_total{how=\"copied\"}"),
	    .hit = ctl_find_number(answer, "cache_hit_rate"),
	    .taken_ns = kv_now_ns()};
}

static void print_heading(void)
{
	printf("%7s %9s %10s %9s %9s %11s %11s %11s %6s\n", "workers", "sequences", "used MiB",
	    "limit MiB", "commits/s", "written MB/s", "lookup tok/s", "found tok/s", "hit %");
}

static void print_text(const struct sample *now, const struct sample *before)
{
	double seconds = (double)(now->taken_ns - before->taken_ns) / 1e9;

	if (seconds <= 0) seconds = 1;
	printf("%7.0f %9.0f %10.1f %9.0f %9.1f %11.1f %11.0f %11.0f %6.1f\n", now->workers,
	    now->sequences, now->used / 1048576.0, now->limit / 1048576.0,
	    (now->commits - before->commits) / seconds,
	    (now->verified - before->verified) / seconds / 1e6,
	    (now->lookup - before->lookup) / seconds, (now->found - before->found) / seconds,
	    100.0 * now->hit);
}

static void print_all(struct kv_text_buffer *answer)
{
	const char *name;
	const char *value;
	char *cursor = answer->data;

	while (ctl_next_stat(&cursor, &name, &value))
		printf("%-48s %s\n", name, value);
}

static enum kv_status repeat(const struct ctl_settings *settings, struct kv_text_buffer *answer)
{
	struct sample before;
	struct sample now;

	KV_TRY(ctl_ask(settings, "stats", answer));
	take_sample(answer->data, &before);
	for (uint32_t line = 0; !settings->count || line < settings->count; line++) {
		ctl_pause(settings->interval);
		KV_TRY(ctl_ask(settings, settings->json ? "stats json" : "stats", answer));
		if (settings->json) {
			fputs(kv_text(answer), stdout);
		} else {
			take_sample(answer->data, &now);
			if (line % HEADING_EVERY == 0) print_heading();
			print_text(&now, &before);
			before = now;
		}
		if (fflush(stdout) != 0) {
			/* A reader that is gone ends us, and is no error. */
			if (errno == EPIPE) clearerr(stdout);
			return KV_OK;
		}
	}
	return KV_OK;
}

enum kv_status ctl_stat(const struct ctl_settings *settings)
{
	struct kv_text_buffer answer;
	enum kv_status status;

	kv_text_init(&answer, kv_heap(), ANSWER_LIMIT);
	if (settings->interval > 0) {
		status = repeat(settings, &answer);
	} else {
		status = ctl_ask(settings, settings->json ? "stats json" : "stats", &answer);
		if (status == KV_OK && settings->json) fputs(kv_text(&answer), stdout);
		if (status == KV_OK && !settings->json) print_all(&answer);
	}
	kv_text_deinit(&answer);
	return status;
}

/* Ask until it is ready, or the time is up: then the last real answer stands. One that was waited
 * for only as long as there was time says nothing. */
static enum kv_status ask_until_ready(
    const struct ctl_settings *settings, struct kv_text_buffer *answer)
{
	uint64_t deadline = kv_now_ms() + (uint64_t)(settings->wait * 1000.0);
	struct ctl_settings once = *settings;
	enum kv_status last = KV_OK, status;
	char text[ERROR_TEXT] = "";

	for (;;) {
		uint64_t now = kv_now_ms();

		/* A store that hangs must not make this longer than was asked for, if anything was. */
		if (settings->wait > 0 && deadline < now + settings->timeout_ms)
			once.timeout_ms = deadline > now ? deadline - now : 1;
		status = ctl_ask(&once, "ready", answer);
		if (status == KV_OK) return KV_OK;
		if (status != KV_TIMEOUT || once.timeout_ms == settings->timeout_ms || last == KV_OK) {
			last = status;
			snprintf(text, sizeof text, "%s", kv_error_message());
		}
		if (kv_now_ms() >= deadline) return kv_fail(last, "%s", text);
		ctl_pause(0.05);
	}
}

enum kv_status ctl_ready(const struct ctl_settings *settings)
{
	struct kv_text_buffer answer;
	enum kv_status status;

	kv_text_init(&answer, kv_heap(), ANSWER_LIMIT);
	status = ask_until_ready(settings, &answer);
	if (settings->json) {
		kv_text_reset(&answer);
		kv_text_printf(&answer, "{\"ready\":%s", status == KV_OK ? "true" : "false");
		if (status != KV_OK) {
			kv_text_put(&answer, ",\"reason\":");
			kv_text_put_json(&answer, kv_error_message());
		}
		printf("%s}\n", kv_text(&answer));
	} else if (status == KV_OK) {
		fputs(kv_text(&answer), stdout);
	}
	kv_text_deinit(&answer);
	return status;
}
