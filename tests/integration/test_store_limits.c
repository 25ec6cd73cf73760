/* What a running store does at a tenant's limit, and with memory that nobody uses any more. */
#include "tests/lib/store_client_test.h"

#include <unistd.h>

const char *test_transport = "map";
const char *test_program;

static struct store_fixture fixture;

static void start(const char *const *arguments)
{
	assert_true(store_fixture_init(&fixture));
	assert_true(store_fixture_start(&fixture, arguments));
}

static int stop(void **state)
{
	(void)state;
	return store_fixture_deinit(&fixture, false) ? 0 : -1;
}

static void test_quota(void **state)
{
	static const char *const arguments[] = {
	    "--transport=map", "--tenants=*=team", "--tenant-quota=50%,team=4MiB", NULL};
	struct kvc_store *store;
	char answer[128];
	double held;

	(void)state;
	start(arguments);
	store = test_connect(&fixture, "a");
	for (int32_t seed = 1; seed <= 6; seed++)
		test_store_prompt(store, seed);
	held = store_fixture_stat(&fixture, "arena_bytes{state=\"cached\"}") +
	       store_fixture_stat(&fixture, "arena_bytes{state=\"leased\"}");
	assert_true(held > (3 << 20) / 2 && held <= 4 << 20);
	assert_true(store_fixture_stat(&fixture, "evictions_for_quota_total") > 0);
	assert_true(store_fixture_stat(&fixture, "quota_refusals_total") == 0);
	assert_int_equal(store_fixture_stat(&fixture, "tenant_quota_bytes{tenant=\"team\"}"), 4 << 20);
	assert_true(store_fixture_stat(&fixture, "tenant_evictions_total{tenant=\"team\"}") > 0);
	assert_true(store_fixture_ask(&fixture, "evict tenant nobody", answer, sizeof answer));
	assert_string_equal(answer, "OK evicted 0 bytes\r\n");
	assert_true(store_fixture_ask(&fixture, "evict tenant team", answer, sizeof answer));
	assert_int_equal(strncmp(answer, "OK evicted ", 11), 0);
	assert_true(
	    store_fixture_wait_stat(&fixture, "tenant_bytes{tenant=\"team\",state=\"cached\"}", 0, 0));
	kvc_close(store);
}

static void test_memory_goes_back(void **state)
{
	static const char *const arguments[] = {"--transport=map", "--region=4MiB", "--eviction=s3fifo",
	    "--evict-unused=500ms", "--release-idle=500ms", NULL};
	struct kvc_store *store;

	(void)state;
	start(arguments);
	store = test_connect(&fixture, "a");
	for (int32_t seed = 1; seed <= 6; seed++)
		test_store_prompt(store, seed);
	assert_true(store_fixture_stat(&fixture, "regions_bytes") > 0);
	assert_true(store_fixture_wait_stat(&fixture, "regions_bytes", 0, 8000));
	assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"committed\"}", 0, 0));
	assert_true(store_fixture_stat(&fixture, "released_bytes_total") > 0);
	/* The worker is still connected, and there is memory for it again. */
	test_store_prompt(store, 1);
	kvc_close(store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_teardown(test_quota, stop),
	    cmocka_unit_test_teardown(test_memory_goes_back, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
