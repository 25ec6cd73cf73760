/* What a running store does at a tenant's limit, and with memory that nobody uses any more. */
#include "tests/lib/store_client_test.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
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
	assert_string_equal(answer, "ERROR no tenant nobody stores anything here\r\n");
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

/* What a quota refuses makes no memory. */
static void test_refused_makes_no_memory(void **state)
{
	static const char *const arguments[] = {
	    "--transport=map", "--tenant-quota=1MiB", "--region=1MiB", NULL};
	struct kvc_sequence *sequence = NULL;
	struct kvc_store *store;

	(void)state;
	start(arguments);
	store = test_connect(&fixture, "a");
	assert_ok(test_open(store, NULL, 1, &sequence));
	assert_int_equal(test_write(store, sequence, 1), KV_TOO_LARGE);
	kvc_sequence_close(sequence, 0);
	kvc_close(store);
	/* The one that is always kept ahead. */
	assert_true(store_fixture_logged(&fixture, "memory made") <= 1);
}

/* A region is made in one turn of the loop: it must not take as long as workers wait for a word. */
static void test_regions_are_small(void **state)
{
	static const char *const arguments[] = {"--transport=map", "--memory=1GiB", NULL};

	(void)state;
	start(arguments);
	for (int i = 0; i < 100 && store_fixture_logged(&fixture, "memory made") == 0; i++)
		nanosleep(&(const struct timespec){0, 50000000}, NULL);
	assert_int_equal(store_fixture_logged(&fixture, "memory made bytes=67108864 "),
	    store_fixture_logged(&fixture, "memory made"));
	assert_true(store_fixture_logged(&fixture, "memory made") > 0);
}

/* The only place is a stopped worker's: once its lease has lapsed, it is for the next. */
static void test_place_of_a_lapsed_worker(void **state)
{
	static const char *const arguments[] = {
	    "--transport=map", "--max-workers=1", "--lease=1s", "--heartbeat=250ms", NULL};
	pid_t child;
	int status;

	(void)state;
	start(arguments);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct kvc_options options = test_options(&fixture, "stopped");
		struct kvc_store *store = NULL;

		if (kvc_open(&options, &store) == KV_OK) raise(SIGSTOP);
		_exit(1);
	}
	assert_int_equal(waitpid(child, &status, WUNTRACED), child);
	assert_true(WIFSTOPPED(status));
	assert_true(store_fixture_wait_stat(&fixture, "workers{state=\"lapsed\"}", 1, 5000));
	kvc_close(test_connect(&fixture, "next"));
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
}

/* Workers that come and go without end do not fill the log. */
static void test_log_of_many_workers(void **state)
{
	static const char *const arguments[] = {"--transport=map", NULL};

	(void)state;
	start(arguments);
	for (int i = 0; i < 30; i++)
		kvc_close(test_connect(&fixture, "a"));
	assert_true(store_fixture_logged(&fixture, "worker joined") > 0);
	assert_true(store_fixture_logged(&fixture, "worker joined") < 30);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_teardown(test_quota, stop),
	    cmocka_unit_test_teardown(test_memory_goes_back, stop),
	    cmocka_unit_test_teardown(test_refused_makes_no_memory, stop),
	    cmocka_unit_test_teardown(test_regions_are_small, stop),
	    cmocka_unit_test_teardown(test_place_of_a_lapsed_worker, stop),
	    cmocka_unit_test_teardown(test_log_of_many_workers, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
