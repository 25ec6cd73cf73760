#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

#include "common/transport/machine_memory.h"
#include "kvstore/server/settings.h"

static enum kv_status load(const char *const *arguments, int count, struct kvs_settings *settings)
{
	char *copy[8];
	struct kv_config *config = NULL;
	enum kv_status status;

	copy[0] = (char *)(uintptr_t) "--config=";
	for (int i = 0; i < count; i++)
		copy[i + 1] = (char *)(uintptr_t)arguments[i];
	status = kv_config_load(&kvs_program, NULL, count + 1, copy, kv_heap(), settings, &config);
	/* Strings of the settings go with it; these tests look at the numbers. */
	kv_config_destroy(config);
	return status;
}

static void test_defaults(void **state)
{
	struct kvs_settings settings;

	(void)state;
	assert_int_equal(load(NULL, 0, &settings), KV_OK);
	assert_int_equal(settings.transport, KVS_TRANSPORT_AUTO);
	assert_int_equal(settings.verify, KVS_VERIFY_COMMIT);
	assert_int_equal(settings.lease_ms, 3000);
	assert_int_equal(settings.heartbeat_ms, 500);
	assert_int_equal(settings.orphan_ms, 600000);
	assert_int_equal(settings.memory, 0);
	assert_int_equal(kvs_settings_complete(&settings), KV_OK);
	assert_true(settings.memory >= UINT64_C(1) << 20);
	assert_true(settings.memory <= UINT64_C(4) << 30);
}

static void test_refusals(void **state)
{
	static const char *const wrong[][2] = {{"--memory=lots", "memory"}, {"--memory=4KiB", "1MiB"},
	    {"--lease=900ms", "heartbeat"}, {"--transport=tcp", "transport"},
	    {"--max-workers=501", "max-workers"}, {"--socket=", "socket"}, {"--leese=3s", "lease"},
	    {"--tenant-quota=team=1GiB", "\"team\""}, {"--disk-size=1GiB", "name a folder"},
	    {"--disk=/tmp/a", "disk-size"}};
	struct kvs_settings settings;

	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		assert_int_equal(load(&wrong[i][0], 1, &settings), KV_INVALID);
		assert_non_null(strstr(kv_error_message(), wrong[i][1]));
	}
}

/* It is for remote workers, of a store without isolation. */
static void test_trusted_network(void **state)
{
	static const char *const fine[] = {
	    "--listen=127.0.0.1:0", "--secret-file=/secret", "--trusted-network=10.0.0.0/24"};
	static const char *const isolated[] = {"--listen=127.0.0.1:0", "--secret-file=/secret",
	    "--trusted-network=10.0.0.0/24", "--isolation"};
	static const char *const wrong[] = {
	    "--listen=127.0.0.1:0", "--secret-file=/secret", "--trusted-network=10.0.0.0/33"};
	struct kvs_settings settings;

	(void)state;
	assert_int_equal(load(fine, 3, &settings), KV_OK);
	assert_int_equal(load(&fine[2], 1, &settings), KV_INVALID);
	assert_non_null(strstr(kv_error_message(), "without listen"));
	assert_int_equal(load(isolated, 4, &settings), KV_INVALID);
	assert_non_null(strstr(kv_error_message(), "isolation"));
	assert_int_equal(load(wrong, 3, &settings), KV_INVALID);
	assert_non_null(strstr(kv_error_message(), "10.0.0.0/33"));
}

static void test_same_socket(void **state)
{
	static const char *const arguments[] = {"--socket=/tmp/a", "--stats-socket=/tmp/a"};
	struct kvs_settings settings;

	(void)state;
	assert_int_equal(load(arguments, 2, &settings), KV_INVALID);
}

/* HTTP is the stats socket's: without one there would be none, and nobody would be told. */
static void test_http_without_stats(void **state)
{
	static const char *const arguments[] = {"--stats-socket=", "--http-listen=127.0.0.1:9432"};
	struct kvs_settings settings;

	(void)state;
	assert_int_equal(load(arguments, 1, &settings), KV_OK);
	assert_int_equal(load(arguments, 2, &settings), KV_INVALID);
	assert_non_null(strstr(kv_error_message(), "stats-socket"));
}

/* More than the machine has is refused with both numbers, before anything is allocated. */
static void test_too_much_memory(void **state)
{
	static const char *const arguments[] = {"--memory=5000TiB"};
	struct kvs_settings settings;

	(void)state;
	assert_int_equal(load(arguments, 1, &settings), KV_OK);
	assert_int_equal(kvs_settings_complete(&settings), KV_LIMIT);
	assert_non_null(strstr(kv_error_message(), "5000TiB"));
	assert_non_null(strstr(kv_error_message(), "--memory"));
}

#define GIB (UINT64_C(1) << 30)

/* What is free does not count, as a store that runs has what another would. */
static void test_memory_of_the_machine(void **state)
{
	struct kv_machine_memory machine = {0, 8 * GIB, 0, 0, 16 * GIB};
	struct kvs_settings settings = {.memory = 17 * GIB};

	(void)state;
	assert_int_equal(kvs_settings_memory(&settings, &machine), KV_LIMIT);
	assert_non_null(
	    strstr(kv_error_message(), "memory=17GiB is more than this machine has (16GiB)"));
	settings.memory = 8 * GIB;
	assert_int_equal(kvs_settings_memory(&settings, &machine), KV_LIMIT);
	assert_non_null(strstr(kv_error_message(), "the cgroup's limit (8GiB)"));
	settings.memory = 7 * GIB;
	assert_int_equal(kvs_settings_memory(&settings, &machine), KV_OK);
	machine.cgroup_limit = UINT64_MAX;
	settings.memory = 16 * GIB;
	assert_int_equal(kvs_settings_memory(&settings, &machine), KV_OK);
	settings.memory = 0;
	machine.total = machine.cgroup_limit = 0;
	assert_int_equal(kvs_settings_memory(&settings, &machine), KV_OK);
}

/* The larger part of what needs descriptors is named, as lowering the other would not help. */
static void test_descriptors(void **state)
{
	struct kvs_settings settings = {.memory = UINT64_C(1) << 60, .max_workers = 64};

	(void)state;
	assert_int_equal(kvs_settings_descriptors(&settings), KV_USAGE);
	assert_non_null(strstr(kv_error_message(), "in regions of 256MiB, and 64 workers, need"));
	assert_non_null(strstr(kv_error_message(), "lower --memory"));
	settings.memory = GIB;
	settings.max_workers = UINT32_MAX;
	assert_int_equal(kvs_settings_descriptors(&settings), KV_USAGE);
	assert_non_null(strstr(kv_error_message(), "max-workers: 4294967295 workers"));
	assert_non_null(strstr(kv_error_message(), "lower --max-workers"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_defaults),
	    cmocka_unit_test(test_refusals),
	    cmocka_unit_test(test_trusted_network),
	    cmocka_unit_test(test_same_socket),
	    cmocka_unit_test(test_http_without_stats),
	    cmocka_unit_test(test_too_much_memory),
	    cmocka_unit_test(test_memory_of_the_machine),
	    cmocka_unit_test(test_descriptors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
