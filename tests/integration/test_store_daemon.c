/* kvstored as a service: the manager's socket, the stats socket, kvctl, the end with workers there.
 */
#include "tests/lib/store_client_test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

const char *test_transport = "map";
const char *test_program;

static struct store_fixture fixture;
static const char *const arguments[] = {"--transport=map", NULL};

static int set_up(void **state)
{
	(void)state;
	return store_fixture_init(&fixture) && store_fixture_start(&fixture, arguments) ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	return store_fixture_deinit(&fixture, false) ? 0 : -1;
}

static void set_path(struct sockaddr_un *address, const char *path)
{
	size_t length = strlen(path);

	assert_true(length < sizeof address->sun_path);
	memcpy(address->sun_path, path, length + 1);
}

/* ---- the service manager ---- */

static int bind_notify(char *path, size_t size)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int descriptor = socket(AF_UNIX, SOCK_DGRAM, 0);

	snprintf(path, size, "%s/notify.sock", fixture.directory);
	set_path(&address, path);
	assert_true(descriptor >= 0);
	assert_int_equal(bind(descriptor, (const struct sockaddr *)&address, sizeof address), 0);
	return descriptor;
}

/* Read messages until one holds `wanted`. */
static bool await_message(int descriptor, const char *wanted)
{
	uint64_t deadline = store_fixture_now() + 10000;

	while (store_fixture_now() < deadline) {
		struct pollfd one = {.fd = descriptor, .events = POLLIN};
		char message[1024];
		ssize_t n;

		if (poll(&one, 1, 100) <= 0) continue;
		n = recv(descriptor, message, sizeof message - 1, 0);
		if (n <= 0) continue;
		message[n] = '\0';
		if (strstr(message, wanted)) return true;
	}
	fprintf(stderr, "no message with %s\n", wanted);
	return false;
}

static void test_notify(void **state)
{
	char path[128];
	int manager;

	(void)state;
	assert_true(store_fixture_init(&fixture));
	manager = bind_notify(path, sizeof path);
	setenv("NOTIFY_SOCKET", path, 1);
	setenv("WATCHDOG_USEC", "300000", 1);
	assert_true(store_fixture_start(&fixture, arguments));
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	assert_true(await_message(manager, "READY=1"));
	assert_true(await_message(manager, "STATUS=ready, 0 workers, 0/64MiB, map"));
	assert_true(await_message(manager, "WATCHDOG=1"));
	store_fixture_signal(&fixture, SIGHUP);
	assert_true(await_message(manager, "RELOADING=1"));
	assert_true(await_message(manager, "READY=1"));
	assert_true(store_fixture_stop(&fixture));
	assert_true(await_message(manager, "STOPPING=1"));
	close(manager);
	unlink(path);
	assert_true(store_fixture_deinit(&fixture, false));
}

/* ---- the stats socket ---- */

static int connect_stats(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int descriptor = socket(AF_UNIX, SOCK_STREAM, 0);

	set_path(&address, fixture.stats);
	assert_int_equal(connect(descriptor, (const struct sockaddr *)&address, sizeof address), 0);
	return descriptor;
}

static size_t read_some(int descriptor, char *bytes, size_t size)
{
	struct pollfd one = {.fd = descriptor, .events = POLLIN};
	ssize_t n;

	if (poll(&one, 1, 5000) <= 0) return 0;
	n = recv(descriptor, bytes, size, 0);
	return n > 0 ? (size_t)n : 0;
}

static void test_stats_connection(void **state)
{
	static char answer[1 << 18];
	int descriptor = connect_stats();
	size_t length = 0;
	int ends = 0;

	(void)state;
	/* Commands in pieces, several in one piece, and an empty one. */
	assert_int_equal(send(descriptor, "ver", 3, 0), 3);
	store_fixture_sleep(20);
	assert_int_equal(send(descriptor, "sion\r\n\nstats\nstats\nbad\nhelp\n", 28, 0), 28);
	while (ends < 3 && length < sizeof answer - 1) {
		size_t n = read_some(descriptor, answer + length, sizeof answer - 1 - length);

		assert_true(n > 0);
		length += n;
		answer[length] = '\0';
		ends = 0;
		for (const char *at = answer; (at = strstr(at, "END\r\n")); at += 5)
			ends++;
	}
	assert_int_equal(strncmp(answer, "VERSION ", 8), 0);
	assert_non_null(strstr(answer, "ERROR unknown command \"bad\", try help\r\n"));
	assert_int_equal(send(descriptor, "quit\n", 5, 0), 5);
	assert_int_equal(read_some(descriptor, answer, sizeof answer), 0);
	close(descriptor);
}

/* Readers that ask and do not read, send what is no line, or are too many, cost themselves only. */
static void test_stats_hostile(void **state)
{
	char answer[256];
	char line[1024];
	int readers[40];
	int slow = connect_stats();
	int rude = connect_stats();
	uint64_t deadline;
	double dropped;

	(void)state;
	fcntl(slow, F_SETFL, O_NONBLOCK);
	for (int i = 0; i < 20000; i++)
		if (send(slow, "stats\n", 6, MSG_NOSIGNAL) != 6) break;
	memset(line, 'x', sizeof line);
	assert_int_equal(send(rude, line, sizeof line, MSG_NOSIGNAL), sizeof line);
	assert_true(read_some(rude, answer, sizeof answer) > 0);
	assert_int_equal(strncmp(answer, "ERROR line too long", 19), 0);
	close(rude);
	assert_true(store_fixture_ask(&fixture, "health", answer, sizeof answer));
	for (int i = 0; i < 40; i++)
		readers[i] = connect_stats();
	store_fixture_sleep(50);
	assert_false(store_fixture_ask(&fixture, "health", answer, sizeof answer));
	/* Those who ask nothing for a second make room. */
	store_fixture_sleep(1100);
	assert_true(store_fixture_ask(&fixture, "health", answer, sizeof answer));
	for (int i = 0; i < 40; i++)
		close(readers[i]);
	/* The slow one is dropped after five seconds of not reading. */
	dropped = store_fixture_stat(&fixture, "stats_dropped_total");
	deadline = store_fixture_now() + 15000;
	while (store_fixture_stat(&fixture, "stats_dropped_total") <= dropped) {
		assert_true(store_fixture_now() < deadline);
		store_fixture_sleep(50);
	}
	close(slow);
}

static void test_prometheus(void **state)
{
	static const struct kvc_counter counters[] = {
	    {"decode_tokens_total", 12}, {"cache_bytes", 4096}, {"odd name", 1}};
	struct kvc_options options = test_options(&fixture, "one");
	struct kvc_store *one = NULL;
	struct kvc_store *two = NULL;
	static char answer[1 << 16];
	const char *found;

	(void)state;
	assert_ok(kvc_open(&options, &one));
	options.name = "two";
	assert_ok(kvc_open(&options, &two));
	kvc_report(one, counters, 3);
	kvc_report(two, counters, 3);
	assert_true(store_fixture_wait_stat(&fixture, "worker:one:odd_name", 1, 5000));
	assert_true(store_fixture_wait_stat(&fixture, "worker:two:odd_name", 1, 5000));
	assert_true(store_fixture_ask(&fixture, "metrics", answer, sizeof answer));
	assert_non_null(strstr(answer, "clusterkv_store_arena_bytes{state=\"free\"} "));
	assert_non_null(strstr(answer, "# TYPE clusterkv_worker_decode_tokens_total counter\n"
	                               "clusterkv_worker_decode_tokens_total{worker=\"one\"} 12\n"
	                               "clusterkv_worker_decode_tokens_total{worker=\"two\"} 12\n"));
	found = strstr(answer, "# TYPE clusterkv_worker_cache_bytes gauge\n");
	assert_non_null(found);
	assert_null(strstr(found + 10, "# TYPE clusterkv_worker_cache_bytes gauge\n"));
	kvc_close(one);
	kvc_close(two);
}

/* ---- the end ---- */

/* SIGTERM with a worker connected: the store ends cleanly, the worker knows at once. */
static void test_stop_with_workers(void **state)
{
	struct kvc_options options = test_options(&fixture, "a");
	struct kvc_store *store = NULL;
	struct kvc_sequence *sequence = NULL;
	enum kv_status status;
	uint64_t deadline;

	(void)state;
	assert_ok(kvc_open(&options, &store));
	assert_ok(test_open(store, NULL, 1, &sequence));
	assert_ok(test_write(store, sequence, 1));
	store_fixture_signal(&fixture, SIGTERM);
	deadline = store_fixture_now() + 5000;
	/* The first that is seen of it must not be a lease that has lapsed. */
	while ((status = kvc_check(store)) == KV_OK)
		assert_true(store_fixture_now() < deadline);
	assert_int_equal(status, KV_DISCONNECTED);
	assert_true(store_fixture_stop(&fixture));
	while (kvc_connected(store))
		assert_true(store_fixture_now() < deadline);
	assert_int_equal(kvc_check(store), KV_DISCONNECTED);
	kvc_sequence_close(sequence, 0);
	kvc_close(store);
}

/* Started without standard streams, it serves: no socket takes their numbers, no line of the log
 * goes where it does not belong. */
static void test_closed_streams(void **state)
{
	static const char command[] = "exec \"$0\" --config= --memory=64MiB --transport=map "
	                              "--socket=\"$1\" --stats-socket=\"$2\" <&- >&- 2>&-";
	uint64_t deadline = store_fixture_now() + 10000;
	char answer[256];
	int status = 0;

	(void)state;
	assert_true(store_fixture_init(&fixture));
	fixture.pid = fork();
	if (fixture.pid == 0) {
		execl("/bin/sh", "sh", "-c", command, KVSTORED_PATH, fixture.socket, fixture.stats,
		    (char *)NULL);
		_exit(127);
	}
	while (!store_fixture_ask(&fixture, "health", answer, sizeof answer)) {
		assert_int_equal(waitpid(fixture.pid, &status, WNOHANG), 0);
		assert_true(store_fixture_now() < deadline);
		store_fixture_sleep(10);
	}
	assert_true(store_fixture_stop(&fixture));
	assert_true(store_fixture_deinit(&fixture, false));
}

/* ---- kvctl ---- */

static int run_kvctl(const char *command, const char *option, char *output, size_t size)
{
	char path[160];
	char stats[160];
	char control[160];
	int status = 0;
	FILE *file;
	pid_t pid;
	bool ping = strcmp(command, "ping") == 0;

	snprintf(path, sizeof path, "%s/kvctl.out", fixture.directory);
	snprintf(stats, sizeof stats, "--stats-socket=%s", fixture.stats);
	snprintf(control, sizeof control, "--socket=%s", fixture.socket);
	pid = fork();
	if (pid == 0) {
		int out = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

		dup2(out, 1);
		dup2(out, 2);
		execl(KVCTL_PATH, "kvctl", command, ping ? control : stats, option, (char *)NULL);
		_exit(127);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	file = fopen(path, "r");
	assert_non_null(file);
	output[fread(output, 1, size - 1, file)] = '\0';
	fclose(file);
	unlink(path);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_kvctl(void **state)
{
	static char output[1 << 16];

	(void)state;
	assert_int_equal(run_kvctl("ready", "--wait=5", output, sizeof output), 0);
	assert_int_equal(strncmp(output, "OK ready", 8), 0);
	assert_int_equal(run_kvctl("ping", NULL, output, sizeof output), 0);
	assert_non_null(strstr(output, "answers: version "));
	assert_int_equal(run_kvctl("ping", "--json", output, sizeof output), 0);
	assert_non_null(strstr(output, "\"round_trip_seconds\":"));
	assert_int_equal(run_kvctl("stat", NULL, output, sizeof output), 0);
	assert_non_null(strstr(output, "arena_limit_bytes"));
	assert_int_equal(run_kvctl("stat", "--json", output, sizeof output), 0);
	assert_int_equal(output[0], '{');
	assert_int_equal(run_kvctl("describe", NULL, output, sizeof output), 0);
	assert_non_null(strstr(output, "no worker has been here"));
	assert_int_equal(run_kvctl("stat", "--intervall=1", output, sizeof output), 2);
	assert_non_null(strstr(output, "interval"));
	assert_true(store_fixture_stop(&fixture));
	assert_int_equal(run_kvctl("ready", NULL, output, sizeof output), 1);
	assert_non_null(strstr(output, fixture.stats));
	assert_int_equal(run_kvctl("ping", NULL, output, sizeof output), 1);
	assert_non_null(strstr(output, fixture.socket));
}

/* A stats socket that says that it is not ready, and then nothing any more. */
static pid_t start_mute(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int listener = socket(AF_UNIX, SOCK_STREAM, 0), taken;
	static const char refusal[] = "ERROR draining for a while\r\n";
	char line[64];
	pid_t pid;

	set_path(&address, fixture.stats);
	assert_int_equal(bind(listener, (const struct sockaddr *)&address, sizeof address), 0);
	assert_int_equal(listen(listener, 8), 0);
	pid = fork();
	if (pid == 0) {
		taken = accept(listener, NULL, NULL);
		if (read(taken, line, sizeof line) < 0 || write(taken, refusal, strlen(refusal)) < 0)
			_exit(1);
		close(taken);
		for (;;)
			pause();
	}
	close(listener);
	return pid;
}

/* Who waited in vain is told what the store said, not that the last question came too late. */
static void test_ready_in_vain(void **state)
{
	static char output[1 << 16];
	pid_t mute;

	(void)state;
	assert_true(store_fixture_init(&fixture));
	mute = start_mute();
	assert_int_equal(run_kvctl("ready", "--wait=0.5", output, sizeof output), 1);
	assert_non_null(strstr(output, "draining for a while"));
	kill(mute, SIGKILL);
	waitpid(mute, NULL, 0);
	unlink(fixture.stats);
	assert_true(store_fixture_deinit(&fixture, false));
}

static void test_stray_signals(void **state)
{
	char answer[256], path[160];
	static char log[1 << 16];
	FILE *file;

	(void)state;
	store_fixture_signal(&fixture, SIGUSR1);
	store_fixture_signal(&fixture, SIGUSR2);
	store_fixture_sleep(50);
	assert_true(store_fixture_ask(&fixture, "health", answer, sizeof answer));
	snprintf(path, sizeof path, "%s", fixture.log);
	file = fopen(path, "r");
	assert_non_null(file);
	log[fread(log, 1, sizeof log - 1, file)] = '\0';
	fclose(file);
	assert_non_null(strstr(log, "ignored SIGUSR1"));
	assert_non_null(strstr(log, "ignored SIGUSR2"));
	assert_true(store_fixture_stop(&fixture));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_notify),
	    cmocka_unit_test(test_closed_streams),
	    cmocka_unit_test_setup_teardown(test_stats_connection, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_stats_hostile, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_prometheus, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_stop_with_workers, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_kvctl, set_up, tear_down),
	    cmocka_unit_test(test_ready_in_vain),
	    cmocka_unit_test_setup_teardown(test_stray_signals, set_up, tear_down),
	};

	signal(SIGPIPE, SIG_IGN);
	test_program = argv[0];
	if (argc > 1) cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
