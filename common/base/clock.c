#include "common/base/clock.h"

#include <time.h>

static uint64_t read_clock(clockid_t clock)
{
	struct timespec now;

	/* Both clocks exist on every Linux; the call cannot fail with a valid pointer. */
	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

uint64_t kv_now_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

uint64_t kv_now_ms(void)
{
	return read_clock(CLOCK_MONOTONIC) / 1000000U;
}

uint64_t kv_wall_ms(void)
{
	return read_clock(CLOCK_REALTIME) / 1000000U;
}

double kv_seconds_since(uint64_t start_ns)
{
	uint64_t now = kv_now_ns();

	return now > start_ns ? (double)(now - start_ns) * 1e-9 : 0.0;
}
