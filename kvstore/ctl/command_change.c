/* kvctl evict and drain: for root and the store's own user. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "kvstore/ctl/ctl.h"

enum { ANSWER_LIMIT = 1 << 16 };

static void print_evicted(const struct ctl_settings *settings, const char *answer)
{
	static const char head[] = "OK evicted ";
	unsigned long long bytes = 0;

	if (strncmp(answer, head, sizeof head - 1) == 0)
		bytes = strtoull(answer + sizeof head - 1, NULL, 10);
	if (settings->json)
		printf("{\"evicted_bytes\":%llu}\n", bytes);
	else
		printf("evicted %.1f MiB\n", (double)bytes / 1048576.0);
}

enum kv_status ctl_evict(const struct ctl_settings *settings)
{
	struct kv_text_buffer answer;
	enum kv_status status;

	kv_text_init(&answer, kv_heap(), ANSWER_LIMIT);
	status = ctl_ask(settings, "evict", &answer);
	if (status == KV_OK) print_evicted(settings, kv_text(&answer));
	kv_text_deinit(&answer);
	return status;
}

/* What the store still holds for its workers. */
static enum kv_status ask_active(
    const struct ctl_settings *settings, struct kv_text_buffer *answer, double *active)
{
	KV_TRY(ctl_ask(settings, "stats store", answer));
	*active = ctl_find_number(kv_text(answer), "sequences{state=\"active\"}");
	return KV_OK;
}

static enum kv_status wait_empty(
    const struct ctl_settings *settings, struct kv_text_buffer *answer, double *active)
{
	uint64_t deadline = kv_now_ms() + (uint64_t)(settings->wait * 1000.0);

	for (;;) {
		KV_TRY(ask_active(settings, answer, active));
		if (*active <= 0 || settings->wait <= 0) return KV_OK;
		if (kv_now_ms() >= deadline)
			return kv_fail(KV_TIMEOUT,
			    "%.0f sequences are still active after %.3f s; the store goes on draining", *active,
			    settings->wait);
		ctl_pause(0.1);
	}
}

enum kv_status ctl_drain(const struct ctl_settings *settings)
{
	struct kv_text_buffer answer;
	double active = 0;
	enum kv_status status;

	kv_text_init(&answer, kv_heap(), ANSWER_LIMIT);
	status = ctl_ask(settings, settings->off ? "drain off" : "drain", &answer);
	if (status == KV_OK && settings->off) status = ask_active(settings, &answer, &active);
	if (status == KV_OK && !settings->off) status = wait_empty(settings, &answer, &active);
	if (status == KV_OK && settings->json)
		printf("{\"draining\":%s,\"sequences\":%.0f}\n", settings->off ? "false" : "true", active);
	else if (status == KV_OK)
		printf("%s, %.0f sequences are active\n", settings->off ? "ready" : "draining", active);
	kv_text_deinit(&answer);
	return status;
}
