/* Workers and the store killed or stopped at any moment: no pin, lease or reservation stays,
 * nothing is ever read wrong, and what was committed is there.
 *
 * The moments are chosen by a seeded generator; a failure names its round.
 */
#include "tests/lib/store_client_test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/random.h"

const char *test_transport;
const char *test_program;

static struct store_fixture fixture;

enum { ROUNDS = 12, MOMENTS_MS = 60, SEEDS = 5 };

static const char *const *store_arguments(void)
{
	static char transport[32];
	static const char *arguments[] = {
	    transport, "--lease=600ms", "--heartbeat=100ms", "--memory=6MiB", NULL};

	snprintf(transport, sizeof transport, "--transport=%s", test_transport);
	return arguments;
}

static int set_up(void **state)
{
	(void)state;
	return store_fixture_init(&fixture) && store_fixture_start(&fixture, store_arguments()) ? 0
	                                                                                        : -1;
}

static int tear_down(void **state)
{
	(void)state;
	return store_fixture_deinit(&fixture, false) ? 0 : -1;
}

struct child {
	pid_t pid;
	int output;
};

static struct child start_child(const char *mode, unsigned seed)
{
	struct child child = {0};
	char number[16];
	char byte = 0;
	int ends[2];

	snprintf(number, sizeof number, "%u", seed);
	assert_int_equal(pipe(ends), 0);
	child.pid = fork();
	assert_true(child.pid >= 0);
	if (child.pid == 0) {
		dup2(ends[1], 1);
		for (int i = 3; i < 256; i++)
			close(i);
		execl(
		    test_program, test_program, test_transport, mode, fixture.socket, number, (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	child.output = ends[0];
	while (byte != '\n')
		assert_int_equal(read(child.output, &byte, 1), 1);
	return child;
}

static int end_child(struct child *child, int number)
{
	int status = 0;

	if (number) kill(child->pid, number);
	assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
	close(child->output);
	return status;
}

/* All seeds that are stored are stored right, and those that are missing can be stored: that takes
 * more memory than there is, so that memory is used again. */
static void check_contents(void)
{
	struct kvc_options options = test_options(&fixture, "checker");
	struct kvc_store *store = NULL;

	options.connect_ms = 10000;
	assert_ok(kvc_open(&options, &store));
	for (int32_t seed = 0; seed < SEEDS; seed++) {
		struct kvc_sequence *sequence = NULL;

		assert_ok(test_open(store, NULL, seed, &sequence));
		assert_int_equal(test_compare(store, sequence, seed), 0);
		assert_ok(test_write(store, sequence, seed));
		assert_int_equal(test_compare(store, sequence, seed), 0);
		kvc_sequence_close(sequence, 0);
	}
	kvc_close(store);
}

static void check_nothing_held(void)
{
	assert_true(store_fixture_wait_stat(&fixture, "workers{state=\"connected\"}", 0, 5000));
	assert_true(store_fixture_wait_stat(&fixture, "workers{state=\"lapsed\"}", 0, 5000));
	assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"reserved\"}", 0, 5000));
	assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"quarantined\"}", 0, 5000));
	assert_true(store_fixture_wait_stat(&fixture, "sequences{state=\"active\"}", 0, 5000));
	assert_true(store_fixture_wait_stat(&fixture, "arena_bytes{state=\"leased\"}", 0, 5000));
	assert_true(store_fixture_wait_stat(&fixture, "checksum_mismatches_total", 0, 0));
}

static void test_kill_workers(void **state)
{
	struct kv_random random;

	(void)state;
	kv_random_seed(&random, 1);
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct child first = start_child("write", round);
		struct child second = start_child("write", round + 100);

		store_fixture_sleep((unsigned)kv_random_below(&random, MOMENTS_MS));
		end_child(&first, SIGKILL);
		store_fixture_sleep((unsigned)kv_random_below(&random, MOMENTS_MS));
		end_child(&second, SIGKILL);
		check_nothing_held();
		check_contents();
	}
	/* The arena is too small for all prompts, so that memory was reused meanwhile. */
	assert_true(store_fixture_stat(&fixture, "evictions_total") > 0);
}

/* Stopped while writing, reclaimed or quarantined, refilled by another, and then awake again. */
static void test_stop_workers(void **state)
{
	struct kv_random random;

	(void)state;
	kv_random_seed(&random, 2);
	for (unsigned round = 0; round < 4; round++) {
		struct child sleeper = start_child("write", round);
		struct child writer;
		int status;

		store_fixture_sleep((unsigned)kv_random_below(&random, MOMENTS_MS));
		kill(sleeper.pid, SIGSTOP);
		assert_true(store_fixture_wait_stat(&fixture, "workers{state=\"lapsed\"}", 1, 5000));
		writer = start_child("write", round + 100);
		store_fixture_sleep(200);
		kill(sleeper.pid, SIGCONT);
		store_fixture_sleep(200);
		status = end_child(&writer, SIGTERM);
		assert_int_equal(status, 0);
		status = end_child(&sleeper, SIGTERM);
		assert_int_equal(status, 0);
		check_nothing_held();
		check_contents();
	}
}

/* A worker that is stopped for good and then killed: with ucx its reservation is quarantined until
 * the process is gone, with map it could not write anyway. */
static void test_quarantine(void **state)
{
	struct child child = start_child("hold", 1);
	bool ucx = strcmp(test_transport, "ucx") == 0;

	(void)state;
	kill(child.pid, SIGSTOP);
	assert_true(store_fixture_wait_stat(&fixture, "workers{state=\"lapsed\"}", 1, 5000));
	assert_true(
	    store_fixture_wait_stat(&fixture, "segments{state=\"quarantined\"}", ucx ? 1 : 0, 1000));
	assert_true(store_fixture_wait_stat(&fixture, "zombie_reservations_total", 1, 0));
	end_child(&child, SIGKILL);
	check_nothing_held();
}

/* A worker that lost its connection, lives and comes again: what it had reserved is quarantined
 * until it has let go of the memory, not until its end. With map it could not write anyway. */
static void test_quarantine_of_the_living(void **state)
{
	struct kvc_options options = test_options(&fixture, "comes again");
	struct kvc_new_segment more = {0, 64, KVW_CLUSTERED, KVW_EXACT};
	const struct kvc_segment *reserved = NULL;
	struct kvc_sequence *sequence = NULL, *other = NULL;
	struct kvc_store *store = NULL;
	bool ucx = strcmp(test_transport, "ucx") == 0;

	(void)state;
	options.call_ms = 500;
	assert_ok(kvc_open(&options, &store));
	assert_ok(test_open(store, NULL, 9, &sequence));
	assert_ok(kvc_reserve(sequence, &more, 1, &reserved));
	store_fixture_signal(&fixture, SIGSTOP);
	assert_true(test_open(store, NULL, 10, &other) != KV_OK);
	store_fixture_signal(&fixture, SIGCONT);
	assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"reserved\"}", 0, 5000));
	while (test_open(store, NULL, 10, &other) != KV_OK)
		store_fixture_sleep(20);
	/* The old sequence may still be written to. */
	assert_true(
	    store_fixture_wait_stat(&fixture, "segments{state=\"quarantined\"}", ucx ? 1 : 0, 0));
	kvc_sequence_close(sequence, 0);
	assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"quarantined\"}", 0, 5000));
	kvc_sequence_close(other, 0);
	kvc_close(store);
}

static void test_kill_store(void **state)
{
	struct kv_random random;

	(void)state;
	kv_random_seed(&random, 3);
	for (unsigned round = 0; round < ROUNDS / 2; round++) {
		struct child first = start_child("write", round);
		struct child second = start_child("write", round + 100);
		int status;

		store_fixture_sleep((unsigned)kv_random_below(&random, MOMENTS_MS));
		store_fixture_kill(&fixture);
		store_fixture_sleep((unsigned)kv_random_below(&random, MOMENTS_MS));
		assert_true(store_fixture_start(&fixture, store_arguments()));
		store_fixture_sleep(300);
		status = end_child(&first, SIGTERM);
		assert_int_equal(status, 0);
		status = end_child(&second, SIGTERM);
		assert_int_equal(status, 0);
		check_nothing_held();
		check_contents();
	}
}

static void test_stop_store(void **state)
{
	struct child child = start_child("write", 7);
	int status;

	(void)state;
	for (int round = 0; round < 3; round++) {
		store_fixture_signal(&fixture, SIGSTOP);
		store_fixture_sleep(round == 1 ? 1500 : 200);
		store_fixture_signal(&fixture, SIGCONT);
		store_fixture_sleep(300);
	}
	status = end_child(&child, SIGTERM);
	assert_int_equal(status, 0);
	check_nothing_held();
	check_contents();
}

/* ---- the worker ---- */

static volatile sig_atomic_t ends;

static void on_term(int number)
{
	(void)number;
	ends = 1;
}

/* One prompt: open, write what is missing, read, close. A doubt is a miss, wrong bytes are not. */
static bool work_once(struct kvc_store *store, int32_t seed, int keep)
{
	struct kvc_sequence *sequence = NULL;
	uint64_t start = store_fixture_now();
	int wrong = 0;

	if (test_open(store, NULL, seed, &sequence) == KV_OK) {
		if (test_write(store, sequence, seed) == KV_OK)
			wrong = test_compare(store, sequence, seed) > 0;
		kvc_sequence_close(sequence, keep);
	} else {
		store_fixture_sleep(5);
	}
	/* Nothing takes longer than the deadlines of its calls. */
	return !wrong && store_fixture_now() - start < 20000;
}

static int be_worker(const char *mode, const char *socket, unsigned seed)
{
	struct kvc_new_segment wanted = {0, CUT_ONE, KVW_CLUSTERED, KVW_EXACT};
	const struct kvc_segment *reserved = NULL;
	struct kvc_store *store = NULL;
	struct kvc_sequence *sequence = NULL;
	struct kvc_options options;
	struct kv_random random;

	signal(SIGTERM, on_term);
	kv_random_seed(&random, seed);
	snprintf(fixture.address, sizeof fixture.address, "unix:%s", socket);
	options = test_options(&fixture, "worker");
	options.call_ms = 2000;
	if (kvc_open(&options, &store) != KV_OK) {
		fprintf(stderr, "worker: %s\n", kv_error_message());
		return 10;
	}
	if (strcmp(mode, "hold") == 0 && (test_open(store, NULL, 1, &sequence) != KV_OK ||
	                                     kvc_reserve(sequence, &wanted, 1, &reserved) != KV_OK))
		return 12;
	if (write(1, "ready\n", 6) != 6) return 11;
	while (sequence && !ends)
		pause();
	while (!ends) {
		if (!work_once(
		        store, (int32_t)kv_random_below(&random, SEEDS), (int)kv_random_below(&random, 2)))
			return 13;
	}
	kvc_close(store);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_kill_workers, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_stop_workers, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_quarantine, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_quarantine_of_the_living, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_kill_store, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_stop_store, set_up, tear_down),
	};

	signal(SIGPIPE, SIG_IGN);
	test_program = argv[0];
	test_transport = argc > 1 ? argv[1] : "map";
	if (argc > 4) return be_worker(argv[2], argv[3], (unsigned)strtoul(argv[4], NULL, 10));
	if (argc > 2) cmocka_set_test_filter(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
