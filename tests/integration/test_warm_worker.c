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

enum { PATIENCE_MS = 20000, CORRUPT_AT = 100 };

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

/* The answer, which the caller frees; asked again while the worker has no store. */
static char *answer(long *hit_tokens)
{
	static const char body[] =
	    "{\"prompt\":\"you and the one that is in the box of a hat on the hill to be at sea you "
	    "and "
	    "the one that is in the box of a hat on the hill to be at sea you and the one that is in "
	    "the box of a hat on the hill to be at sea\",\"temperature\":0,\"ignore_end\":true,"
	    "\"max_tokens\":40}";
	uint64_t deadline = store_fixture_now() + PATIENCE_MS;
	struct serve_reply reply = {0};
	const json_t *choice;
	char *text;

	for (;;) {
		assert_true(serve_ask(&worker, "POST", "/v1/completions", body, &reply));
		if (reply.code == 200 || store_fixture_now() > deadline) break;
		serve_reply_deinit(&reply);
		store_fixture_sleep(50);
	}
	assert_int_equal(reply.code, 200);
	choice = json_array_get(json_object_get(reply.json, "choices"), 0);
	text = strdup(json_string_value(json_object_get(choice, "text")));
	*hit_tokens = (long)json_integer_value(
	    json_object_get(json_object_get(reply.json, "clusterkv"), "prefix_hit_tokens"));
	serve_reply_deinit(&reply);
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
