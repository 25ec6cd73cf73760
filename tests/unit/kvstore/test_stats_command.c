#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

#include "kvstore/server/stats_command.h"

static void test_words(void **state)
{
	(void)state;
	assert_int_equal(kvs_stats_parse(""), KVS_COMMAND_NONE);
	assert_int_equal(kvs_stats_parse(" \t "), KVS_COMMAND_NONE);
	assert_int_equal(kvs_stats_parse("stats"), KVS_COMMAND_STATS);
	assert_int_equal(kvs_stats_parse("  stats   json "), KVS_COMMAND_JSON);
	assert_int_equal(kvs_stats_parse("stats json now"), KVS_COMMAND_UNKNOWN);
	assert_int_equal(kvs_stats_parse("stats jso"), KVS_COMMAND_UNKNOWN);
	assert_int_equal(kvs_stats_parse("STATS"), KVS_COMMAND_UNKNOWN);
	assert_int_equal(kvs_stats_parse("health"), KVS_COMMAND_HEALTH);
	assert_int_equal(kvs_stats_parse("health now"), KVS_COMMAND_UNKNOWN);
	assert_int_equal(kvs_stats_parse("version"), KVS_COMMAND_VERSION);
	assert_int_equal(kvs_stats_parse("help"), KVS_COMMAND_HELP);
	assert_int_equal(kvs_stats_parse("quit"), KVS_COMMAND_QUIT);
	assert_int_equal(kvs_stats_parse("metrics"), KVS_COMMAND_METRICS);
	assert_int_equal(kvs_stats_parse("stats workers"), KVS_COMMAND_WORKERS);
	assert_int_equal(kvs_stats_parse("stats store"), KVS_COMMAND_STORE);
	assert_int_equal(kvs_stats_parse("info"), KVS_COMMAND_INFO);
	assert_int_equal(kvs_stats_parse("ready"), KVS_COMMAND_READY);
	assert_int_equal(kvs_stats_parse("reset"), KVS_COMMAND_RESET);
	assert_int_equal(kvs_stats_parse("evict"), KVS_COMMAND_EVICT);
	assert_int_equal(kvs_stats_parse("evict all"), KVS_COMMAND_UNKNOWN);
	assert_int_equal(kvs_stats_parse("evict 0"), KVS_COMMAND_UNKNOWN);
	assert_int_equal(kvs_stats_parse("evict 64MiB"), KVS_COMMAND_EVICT);
	assert_int_equal(kvs_stats_parse("evict tenant uid-7"), KVS_COMMAND_EVICT);
	assert_int_equal(kvs_stats_parse("evict tenant"), KVS_COMMAND_UNKNOWN);
	assert_int_equal(kvs_stats_parse("evict tenant a b"), KVS_COMMAND_UNKNOWN);
	assert_int_equal(kvs_stats_parse("drain"), KVS_COMMAND_DRAIN);
	assert_int_equal(kvs_stats_parse("drain off"), KVS_COMMAND_DRAIN_OFF);
	assert_int_equal(kvs_stats_parse("drain on"), KVS_COMMAND_UNKNOWN);
}

static void test_unknown(void **state)
{
	struct kv_text_buffer text;
	char line[200];

	(void)state;
	kv_text_init(&text, kv_heap(), 1024);
	kvs_stats_unknown("get a", &text);
	assert_string_equal(kv_text(&text), "ERROR unknown command \"get a\", try help\r\n");
	kv_text_reset(&text);
	memset(line, 'x', sizeof line - 1);
	line[sizeof line - 1] = '\0';
	line[1] = '"';
	line[2] = '\x1b';
	kvs_stats_unknown(line, &text);
	assert_string_equal(kv_text(&text),
	    "ERROR unknown command \"x??xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\", try help\r\n");
	kv_text_deinit(&text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_words),
	    cmocka_unit_test(test_unknown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
