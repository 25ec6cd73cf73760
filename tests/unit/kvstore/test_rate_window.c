#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

#include "kvstore/server/rate_window.h"

enum { BEGIN_MS = 5000 };

static struct kvs_window window;
static struct kvs_figures figures, gain;

/* What was gained over the last seconds, as a whole number. */
static int gained(uint64_t now_ms, uint32_t seconds)
{
	kvs_window_gain(&window, now_ms, seconds, &figures, &gain);
	return (int)gain.value[KVS_HIT_BYTES];
}

static void begin(double value)
{
	memset(&figures, 0, sizeof figures);
	figures.value[KVS_HIT_BYTES] = value;
	kvs_window_start(&window, BEGIN_MS, &figures);
}

/* Ten a second, sampled with the jitter of a busy loop. */
static void count_for(unsigned seconds)
{
	for (unsigned i = 1; i <= seconds; i++) {
		figures.value[KVS_HIT_BYTES] += 10;
		kvs_window_tick(&window, BEGIN_MS + 1000 * i + i * 37 % 90, &figures);
		kvs_window_tick(&window, BEGIN_MS + 1000 * i + 500, &figures);
	}
}

static void test_young(void **state)
{
	(void)state;
	/* What was counted before it began is in no window. */
	begin(700);
	assert_int_equal(gained(BEGIN_MS, 10), 0);
	assert_true(kvs_window_gain(&window, BEGIN_MS, 10, &figures, &gain) == 0);
	count_for(3);
	assert_int_equal(gained(BEGIN_MS + 3000, 10), 30);
	assert_int_equal(gained(BEGIN_MS + 3000, 60), 30);
	assert_true(kvs_window_gain(&window, BEGIN_MS + 3000, 10, &figures, &gain) == 3.0);
	assert_int_equal(gained(BEGIN_MS + 3000, 1), 10);
}

static void test_full(void **state)
{
	(void)state;
	begin(0);
	count_for(500);
	assert_int_equal(gained(BEGIN_MS + 500000, 10), 100);
	assert_int_equal(gained(BEGIN_MS + 500000, 60), 600);
	assert_true(kvs_window_gain(&window, BEGIN_MS + 500000, 10, &figures, &gain) == 10.0);
	/* What has come since the last sample counts, too. */
	figures.value[KVS_HIT_BYTES] += 5;
	assert_int_equal(gained(BEGIN_MS + 500400, 10), 105);
}

static void test_silence(void **state)
{
	(void)state;
	begin(0);
	count_for(20);
	for (unsigned i = 21; i < 31; i++)
		kvs_window_tick(&window, BEGIN_MS + 1000 * i, &figures);
	assert_int_equal(gained(BEGIN_MS + 30000, 10), 0);
	assert_int_equal(gained(BEGIN_MS + 30000, 60), 200);
	assert_int_equal(gained(BEGIN_MS + 30000, 15), 50);
}

/* The store was stopped for a while: what came meanwhile belongs to the end of it. */
static void test_pause(void **state)
{
	static const unsigned pauses[] = {5, 59, 60, 61, 62, 63, 100, 100000};

	(void)state;
	for (size_t i = 0; i < sizeof pauses / sizeof pauses[0]; i++) {
		uint64_t now = BEGIN_MS + 1000 * (uint64_t)(20 + pauses[i]);

		begin(0);
		count_for(20);
		figures.value[KVS_HIT_BYTES] += 7;
		kvs_window_tick(&window, now, &figures);
		assert_int_equal(gained(now, 1), 7);
		assert_int_equal(gained(now, 60), pauses[i] == 5 ? 207 : pauses[i] == 59 ? 17 : 7);
		figures.value[KVS_HIT_BYTES] += 4;
		kvs_window_tick(&window, now + 1000, &figures);
		assert_int_equal(gained(now + 1000, 1), 4);
		assert_int_equal(gained(now + 1000, 2), 11);
	}
}

static void test_falling(void **state)
{
	(void)state;
	begin(50);
	figures.value[KVS_HIT_BYTES] = 20;
	assert_int_equal(gained(BEGIN_MS + 10, 10), 0);
	/* A clock that steps back is no reason to read what is not there. */
	kvs_window_tick(&window, 0, &figures);
	assert_int_equal(gained(0, 60), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_young),
	    cmocka_unit_test(test_full),
	    cmocka_unit_test(test_silence),
	    cmocka_unit_test(test_pause),
	    cmocka_unit_test(test_falling),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
