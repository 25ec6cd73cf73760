#include "kvstore/server/rate_window.h"

enum { SLOTS = KVS_WINDOW_SECONDS + 1 };

void kvs_window_start(struct kvs_window *window, uint64_t now_ms, const struct kvs_figures *figures)
{
	window->start_ms = now_ms;
	window->seconds = 0;
	window->samples[0] = *figures;
}

static uint64_t seconds_at(const struct kvs_window *window, uint64_t now_ms)
{
	return now_ms > window->start_ms ? (now_ms - window->start_ms) / 1000 : 0;
}

void kvs_window_tick(struct kvs_window *window, uint64_t now_ms, const struct kvs_figures *figures)
{
	uint64_t due = seconds_at(window, now_ms);

	/* After a long pause only the last minute can still be asked for. */
	if (due > window->seconds + SLOTS) {
		struct kvs_figures last = window->samples[window->seconds % SLOTS];

		window->seconds = due - SLOTS;
		window->samples[window->seconds % SLOTS] = last;
	}
	while (window->seconds < due) {
		const struct kvs_figures *before = &window->samples[window->seconds % SLOTS];

		window->seconds++;
		/* Seconds that were missed saw nothing; what came meanwhile counts for the last one. */
		window->samples[window->seconds % SLOTS] = window->seconds < due ? *before : *figures;
	}
}

double kvs_window_gain(const struct kvs_window *window, uint64_t now_ms, uint32_t seconds,
    const struct kvs_figures *figures, struct kvs_figures *gain)
{
	uint64_t from = window->seconds > seconds ? window->seconds - seconds : 0;
	const struct kvs_figures *base = &window->samples[from % SLOTS];
	uint64_t from_ms = window->start_ms + from * 1000;

	for (int i = 0; i < KVS_FIGURE_COUNT; i++) {
		double gained = figures->value[i] - base->value[i];

		gain->value[i] = gained > 0 ? gained : 0;
	}
	return now_ms > from_ms ? (double)(now_ms - from_ms) / 1000.0 : 0;
}
