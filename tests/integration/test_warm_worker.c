/* `gpu-worker serve` over a restart of the store that keeps the arena: the next request finds as
 * much of its prompt as before; what was damaged meanwhile is dropped and counted, and the answer
 * is right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/serve_fixture.h"
#include "tests/lib/service_manager.h"

#define MODEL KV_TINY_MODELS "/tiny_llama.gguf"

enum { CORRUPT_AT = 100 };

static const char *const store_options[] = {"--transport=map", "--heartbeat=100ms", NULL};
static struct store_fixture store;
static struct service_manager manager;
static struct serve_fixture worker;

static int init(void **state)
{
	const char *const options[] = {"--model", MODEL, "--store", store.address, "--transport", "map",
	    "--policy", "clusterkv", "--budget", "48", "--sinks", "4", "--window", "32", "--fold", "32",
	    "--segment", "64", "--cluster-tokens", "8", "--drain-timeout", "100ms", NULL};

	(void)state;
	memset(&worker, 0, sizeof worker);
	return store_fixture_init(&store) && service_manager_init(&manager, &store) &&
	               service_manager_start(&manager, &store, store_options) &&
	               serve_fixture_start(&worker, options, true)
	           ? 0
	           : -1;
}

static int deinit(void **state)
{
	bool worked = serve_fixture_stop(&worker, false);
	bool stopped = !store.pid || service_manager_stop(&manager, &store);

	(void)state;
	service_manager_deinit(&manager);
	return store_fixture_deinit(&store, !stopped) && stopped && worked ? 0 : -1;
}

static char *answer(long *hit_tokens)
{
	char *text = serve_long_answer(&worker, hit_tokens);

	assert_non_null(text);
	return text;
}

static void the_prompt_is_found_as_before(void **state)
{
	long cold, before, after, damaged;
	char *first, *second, *third, *fourth;

	(void)state;
	first = answer(&cold);
	second = answer(&before);
	assert_int_equal(cold, 0);
	assert_true(before > 64);
	assert_true(service_manager_stop(&manager, &store));
	assert_true(service_manager_start(&manager, &store, store_options));
	third = answer(&after);
	assert_int_equal(after, before);
	assert_string_equal(third, second);

	assert_true(service_manager_stop(&manager, &store));
	assert_true(service_manager_damage(&manager, "clusterkv-region-", CORRUPT_AT));
	assert_true(service_manager_start(&manager, &store, store_options));
	assert_int_equal(
	    (int)store_fixture_stat(&store, "restore_dropped_segments_total{reason=\"checksum\"}"), 1);
	fourth = answer(&damaged);
	assert_true(damaged < before);
	/* What was dropped was computed again, as the first time. */
	assert_string_equal(fourth, first);
	free(first);
	free(second);
	free(third);
	free(fourth);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(the_prompt_is_found_as_before, init, deinit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
