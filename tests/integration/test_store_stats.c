/* What kvstored says of itself over the stats socket: HTTP, hit rates of the last seconds in every
 * view, and the commands that change it; kvctl's top, evict, drain and bench. */
#include "tests/lib/store_client_test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/process.h"

enum { ANSWER_BYTES = 1 << 18 };

const char *test_transport = "map";
const char *test_program;

static struct store_fixture fixture;
static char answer[ANSWER_BYTES];

static int set_up(void **state)
{
	static const char *const arguments[] = {"--transport=map", "--memory=256MiB", NULL};

	(void)state;
	return store_fixture_init(&fixture) && store_fixture_start(&fixture, arguments) ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	return store_fixture_deinit(&fixture, false) ? 0 : -1;
}

static int set_up_remote(void **state)
{
	static const char *const arguments[] = {"--transport=map", "--memory=256MiB", NULL};

	(void)state;
	if (!store_fixture_init(&fixture)) return -1;
	fixture.remote = true;
	test_transport = "stream";
	return store_fixture_start(&fixture, arguments) ? 0 : -1;
}

static int tear_down_remote(void **state)
{
	test_transport = "map";
	return tear_down(state);
}

static int connect_stats(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int descriptor = socket(AF_UNIX, SOCK_STREAM, 0);

	assert_true(strlen(fixture.stats) < sizeof address.sun_path);
	memcpy(address.sun_path, fixture.stats, strlen(fixture.stats) + 1);
	assert_int_equal(connect(descriptor, (const struct sockaddr *)&address, sizeof address), 0);
	return descriptor;
}

static void put(int descriptor, const char *text)
{
	assert_int_equal(send(descriptor, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* All that comes until the store closes; fails when it does not within `wait_ms`. */
static const char *read_all(int descriptor, unsigned wait_ms)
{
	uint64_t deadline = store_fixture_now() + wait_ms;
	size_t length = 0;

	for (;;) {
		struct pollfd one = {.fd = descriptor, .events = POLLIN};
		uint64_t now = store_fixture_now();
		ssize_t n;

		if (now >= deadline) fail_msg("the store keeps the connection");
		if (poll(&one, 1, (int)(deadline - now)) <= 0) continue;
		n = recv(descriptor, answer + length, sizeof answer - 1 - length, 0);
		if (n <= 0) break;
		length += (size_t)n;
	}
	answer[length] = '\0';
	close(descriptor);
	return answer;
}

static const char *request_by(const char *method, const char *path)
{
	char request[256];
	int descriptor = connect_stats();

	snprintf(request, sizeof request, "%s %s HTTP/1.1\r\nHost: localhost\r\n\r\n", method, path);
	put(descriptor, request);
	return read_all(descriptor, 5000);
}

static const char *get(const char *path)
{
	return request_by("GET", path);
}

static const char *ask(const char *command)
{
	assert_true(store_fixture_ask(&fixture, command, answer, sizeof answer));
	return answer;
}

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

/* ---- HTTP ---- */

static const char *body_of(const char *response)
{
	const char *end = strstr(response, "\r\n\r\n");

	assert_non_null(end);
	return end + 4;
}

static void test_http(void **state)
{
	static const char *const pages[] = {"/", "/metrics", "/healthz", "/readyz", "/stats.json"};
	char length[64];
	int descriptor;

	(void)state;
	for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
		assert_true(begins(get(pages[i]), "HTTP/1.1 200 OK\r\n"));
		snprintf(length, sizeof length, "Content-Length: %zu\r\n", strlen(body_of(answer)));
		assert_non_null(strstr(answer, length));
	}
	assert_true(begins(body_of(get("/metrics?x=1")), "# HELP clusterkv_store_build_info "));
	assert_true(begins(body_of(get("/stats.json")), "{\"version\":"));
	assert_true(begins(body_of(get("/")), "<!DOCTYPE html>"));
	/* A browser runs what the page has, by its hash, and nothing of the other answers. */
	assert_non_null(strstr(answer, "script-src 'sha256-"));
	assert_null(strstr(answer, "unsafe-inline"));
	assert_non_null(strstr(get("/stats.json"), "Content-Security-Policy: default-src 'none';"));
	assert_null(strstr(answer, "script-src"));
	assert_true(begins(get("/nothing"), "HTTP/1.1 404 "));
	/* In pieces, and with the sending side closed. */
	descriptor = connect_stats();
	put(descriptor, "GE");
	store_fixture_sleep(20);
	put(descriptor, "T /healthz HTTP/1.0\r\n");
	store_fixture_sleep(20);
	put(descriptor, "\r\n");
	shutdown(descriptor, SHUT_WR);
	assert_true(begins(read_all(descriptor, 5000), "HTTP/1.1 200 OK\r\n"));
	/* A line of text that was served makes what follows text, too. */
	descriptor = connect_stats();
	put(descriptor, "version\nGET / HTTP/1.1\nquit\n");
	assert_true(begins(read_all(descriptor, 5000), "VERSION "));
	assert_non_null(strstr(answer, "ERROR unknown command"));
	/* A zero byte is no end of a command. */
	descriptor = connect_stats();
	assert_int_equal(send(descriptor, "drain\0 off\nquit\n", 16, MSG_NOSIGNAL), 16);
	assert_true(begins(read_all(descriptor, 5000), "ERROR unknown command \"drain? off\""));
}

/* HEAD is told what GET is told, but the body: also how long that would be. */
static void test_head(void **state)
{
	static const char *const pages[] = {"/", "/healthz", "/readyz", "/nothing", "no path"};
	static char whole[1 << 16];

	(void)state;
	for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
		const char *body = body_of(get(pages[i]));
		const size_t head = (size_t)(body - answer);

		assert_true(strlen(body) > 0 && head < sizeof whole);
		memcpy(whole, answer, head);
		whole[head] = '\0';
		assert_string_equal(request_by("HEAD", pages[i]), whole);
	}
	/* Numbers change meanwhile, and with them the length. */
	assert_true(begins(request_by("HEAD", "/metrics"), "HTTP/1.1 200 OK\r\n"));
	assert_string_equal(body_of(answer), "");
}

/* More than is read at a time, from one that closes its sending side at once. */
static void test_half_closed(void **state)
{
	int descriptor = connect_stats();
	unsigned count = 0;

	(void)state;
	for (int i = 0; i < 100; i++)
		put(descriptor, i % 10 ? "version\n" : "stats\n");
	shutdown(descriptor, SHUT_WR);
	read_all(descriptor, 10000);
	for (const char *at = answer; (at = strstr(at, "VERSION ")); at++)
		count++;
	assert_int_equal(count, 90);
}

static unsigned port;

static int connect_tcp(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int descriptor = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(connect(descriptor, (const struct sockaddr *)&address, sizeof address), 0);
	return descriptor;
}

/* A port that was free a moment ago. */
static int take_port(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t length = sizeof address;
	int descriptor = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(descriptor, (const struct sockaddr *)&address, sizeof address), 0);
	assert_int_equal(listen(descriptor, 1), 0);
	assert_int_equal(getsockname(descriptor, (struct sockaddr *)&address, &length), 0);
	port = ntohs(address.sin_port);
	return descriptor;
}

static const char *ask_tcp(const char *request)
{
	int descriptor = connect_tcp();

	put(descriptor, request);
	return read_all(descriptor, 5000);
}

/* More readers over TCP than there are places, who begin to ask and go on by a byte: they take none
 * of the operator's, and make room for one that asks. */
static void crowd_tcp(void)
{
	int readers[40];

	for (size_t i = 0; i < sizeof readers / sizeof readers[0]; i++) {
		readers[i] = connect_tcp();
		put(readers[i], "GET /");
	}
	assert_true(store_fixture_wait_stat(&fixture, "stats_dropped_total", 8, 5000));
	assert_true(begins(ask("health"), "OK ready "));
	put(readers[38], "x");
	assert_true(begins(ask_tcp("GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n"), "HTTP/1.1 200 OK\r\n"));
	for (size_t i = 0; i < sizeof readers / sizeof readers[0]; i++)
		close(readers[i]);
}

/* Over TCP there is HTTP only; an address in use is a warning. */
static void test_tcp(void **state)
{
	char option[64];
	const char *const arguments[] = {"--transport=map", option, NULL};
	int taken = take_port();
	int descriptor;

	(void)state;
	snprintf(option, sizeof option, "--http-listen=127.0.0.1:%u", port);
	assert_true(store_fixture_init(&fixture));
	assert_true(store_fixture_start(&fixture, arguments));
	assert_true(begins(ask("health"), "OK ready "));
	assert_true(store_fixture_stop(&fixture));
	close(taken);
	assert_true(store_fixture_start(&fixture, arguments));
	descriptor = connect_tcp();
	put(descriptor, "GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_true(begins(read_all(descriptor, 5000), "HTTP/1.1 200 OK\r\n"));
	descriptor = connect_tcp();
	put(descriptor, "drain\n");
	assert_true(begins(read_all(descriptor, 5000), "HTTP/1.1 400 "));
	assert_true(begins(ask("ready"), "OK ready "));
	assert_true(begins(ask_tcp("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"),
	    "HTTP/1.1 405 "));
	assert_non_null(strstr(answer, "Allow: GET, HEAD\r\n"));
	assert_true(begins(ask_tcp("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"), "HTTP/1.1 405 "));
	assert_true(begins(ask_tcp("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), "HTTP/1.1 400 "));
	crowd_tcp();
	assert_true(store_fixture_deinit(&fixture, false));
}

/* Requests that are too long, wrong or never end: each costs its own connection, and in bounds. */
static void test_http_hostile(void **state)
{
	int half = connect_stats();
	int line = connect_stats();
	uint64_t begun = store_fixture_now();
	int descriptor;

	(void)state;
	put(half, "GET /metrics HTTP/1.1\r\nHost:");
	put(line, "sta");
	descriptor = connect_stats();
	put(descriptor, "GET / HTTP/1.1\r\n");
	for (int i = 0; i < 200; i++)
		if (send(descriptor, "A: 0123456789012345678901234567\r\n", 33, MSG_NOSIGNAL) < 0) break;
	assert_true(begins(read_all(descriptor, 5000), "HTTP/1.1 431 "));
	descriptor = connect_stats();
	put(descriptor, "GET nothing\r\n\r\n");
	assert_true(begins(read_all(descriptor, 5000), "HTTP/1.1 400 "));
	/* Bytes that trickle in do not make the time longer. */
	for (int i = 0; i < 12; i++) {
		store_fixture_sleep(200);
		put(half, "x");
	}
	assert_true(begins(read_all(half, 8000), "HTTP/1.1 408 "));
	assert_string_equal(read_all(line, 8000), "");
	assert_true(store_fixture_now() - begun < 9000);
	assert_true(store_fixture_stat(&fixture, "stats_dropped_total") >= 2);
}

/* ---- what changes the store ---- */

static void test_reset_and_evict(void **state)
{
	struct kvc_store *store = test_connect(&fixture, "a");
	struct kvc_sequence *sequence = NULL;

	(void)state;
	assert_ok(test_open(store, NULL, 1, &sequence));
	assert_ok(test_write(store, sequence, 1));
	assert_true(store_fixture_stat(&fixture, "commits_total{result=\"ok\"}") == 1);
	assert_true(store_fixture_stat(&fixture, "connections_total") >= 1);
	assert_string_equal(ask("reset"), "OK reset\r\n");
	/* Counters of the server and of the engine, not the gauges. */
	assert_true(store_fixture_stat(&fixture, "commits_total{result=\"ok\"}") == 0);
	assert_true(store_fixture_stat(&fixture, "connections_total") == 0);
	assert_true(store_fixture_stat(&fixture, "segments{state=\"committed\"}") == CUTS);
	/* What a worker uses stays. */
	assert_string_equal(ask("evict"), "OK evicted 0 bytes\r\n");
	assert_int_equal(test_compare(store, sequence, 1), 0);
	kvc_sequence_close(sequence, 0);
	assert_ok(test_open(store, NULL, 2, &sequence));
	assert_ok(test_write(store, sequence, 2));
	assert_true(store_fixture_stat(&fixture, "commits_total{result=\"ok\"}") == 1);
	assert_true(begins(ask("evict"), "OK evicted "));
	assert_true(strtoull(answer + 11, NULL, 10) > 0);
	assert_true(store_fixture_stat(&fixture, "segments{state=\"committed\"}") == CUTS);
	assert_int_equal(test_compare(store, sequence, 2), 0);
	kvc_sequence_close(sequence, 0);
	kvc_close(store);
}

static void test_drain(void **state)
{
	struct kvc_store *store = test_connect(&fixture, "a");
	struct kvc_options options = test_options(&fixture, "late");
	struct kvc_store *late = NULL;
	struct kvc_sequence *sequence = NULL;
	struct kvc_sequence *second = NULL;
	struct kvc_resume_state resumed;
	uint8_t digest[32];

	(void)state;
	options.connect_ms = 0;
	memset(digest, 3, sizeof digest);
	assert_ok(test_open(store, NULL, 1, &sequence));
	assert_ok(test_open(store, "begun", 3, &second));
	kvc_sequence_close(second, 1);
	assert_true(begins(ask("drain"), "OK draining "));
	assert_true(begins(ask("ready"), "ERROR draining "));
	assert_true(begins(ask("health"), "OK draining "));
	assert_true(begins(get("/readyz"), "HTTP/1.1 503 "));
	assert_true(begins(get("/healthz"), "HTTP/1.1 200 "));
	/* What is open or was begun goes on, nothing else begins. */
	assert_ok(kvc_sequence_resume(store, "begun", digest, &second, &resumed));
	kvc_sequence_close(second, 0);
	second = NULL;
	assert_ok(test_write(store, sequence, 1));
	assert_int_equal(test_compare(store, sequence, 1), 0);
	assert_int_equal(test_open(store, NULL, 2, &second), KV_DRAINING);
	assert_int_not_equal(kvc_open(&options, &late), KV_OK);
	assert_true(begins(ask("drain off"), "OK ready "));
	assert_true(begins(get("/readyz"), "HTTP/1.1 200 "));
	assert_ok(test_open(store, NULL, 2, &second));
	assert_ok(kvc_open(&options, &late));
	kvc_sequence_close(second, 0);
	kvc_sequence_close(sequence, 0);
	kvc_close(late);
	kvc_close(store);
}

/* Root and the store's own user may change it; another user must not, even where the socket lets
 * him in. */
static void test_other_user(void **state)
{
	static const char *const commands[] = {"reset\n", "evict\n", "drain\n", "drain off\n"};

	(void)state;
	if (geteuid() != 0) {
		fprintf(stderr, "skipped: only root can ask as another user\n");
		skip();
	}
	assert_int_equal(chmod(fixture.directory, 0755), 0);
	assert_int_equal(chmod(fixture.stats, 0666), 0);
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
		int descriptor;

		assert_int_equal(seteuid(65534), 0);
		descriptor = connect_stats();
		assert_int_equal(seteuid(0), 0);
		put(descriptor, commands[i]);
		put(descriptor, "version\nquit\n");
		assert_true(
		    begins(read_all(descriptor, 5000), "ERROR reset, evict and drain are for root"));
		assert_non_null(strstr(answer, "\r\nVERSION "));
	}
	assert_true(begins(ask("ready"), "OK ready "));
}

/* ---- every view says the same ---- */

static const struct kvc_counter counters[2][7] = {
    {{"cache_hit_bytes_total", 300}, {"cache_miss_bytes_total", 100},
        {"cache_hit_clusters_total", 1}, {"cache_miss_clusters_total", 3},
        {"cache_hit_tokens_total", 10}, {"cache_miss_tokens_total", 10},
        {"decode_tokens_total", 50}},
    {{"cache_hit_bytes_total", 400}, {"cache_miss_bytes_total", 400},
        {"cache_hit_clusters_total", 2}, {"cache_miss_clusters_total", 6},
        {"cache_hit_tokens_total", 60}, {"cache_miss_tokens_total", 20},
        {"decode_tokens_total", 70}},
};

struct view {
	const char *text, *of, *window;
	double value;
};

static double number_after(const char *text, const char *name)
{
	const char *found = strstr(text, name);

	if (!found) fail_msg("there is no %s", name);
	return strtod(found + strlen(name), NULL);
}

static void near(double value, double expected)
{
	if (value < expected - 1e-9 || value > expected + 1e-9)
		fail_msg("%.9f, not %.9f", value, expected);
}

static void agree(const char *worker, const struct view *view)
{
	char name[160];

	if (worker)
		snprintf(name, sizeof name, "worker:%s:%s", worker, view->text);
	else
		snprintf(name, sizeof name, "%s", view->text);
	near(store_fixture_stat(&fixture, name), view->value);
	if (worker)
		snprintf(name, sizeof name,
		    "clusterkv_worker_cache_hit_rate{worker=\"%s\",of=\"%s\",window=\"%s\"} ", worker,
		    view->of, view->window);
	else
		snprintf(name, sizeof name, "clusterkv_store_cache_hit_rate{of=\"%s\",window=\"%s\"} ",
		    view->of, view->window);
	near(number_after(ask("metrics"), name), view->value);
	ask("stats json");
	snprintf(name, sizeof name, "\"%s\":{", worker ? worker : "store");
	snprintf(name + 80, sizeof name - 80, "\"%s\":", view->text);
	near(number_after(worker ? strstr(answer, name) : answer, name + 80), view->value);
}

static char *run_kvctl(int code, const char *command, const char *first, const char *second)
{
	char stats[160];
	char control[160];
	bool bench = strcmp(command, "bench") == 0;
	const char *const arguments[] = {
	    KVCTL_PATH, command, bench ? control : stats, first, second, NULL};
	struct process process = {0};
	char *output;

	snprintf(stats, sizeof stats, "--stats-socket=%s", fixture.stats);
	snprintf(control, sizeof control, "--socket=%s", fixture.socket);
	assert_true(process_start(&process, arguments, NULL));
	if (process_wait(&process, 60000) != code)
		fail_msg("kvctl %s ended with %d: %s", command, process.code, process_errors(&process));
	output = process_output(&process);
	process_deinit(&process);
	return output;
}

static void report_both(struct kvc_store *one, struct kvc_store *two)
{
	/* Each begins with nothing, as a worker that has just started does. */
	assert_true(store_fixture_wait_stat(&fixture, "workers{state=\"connected\"}", 2, 5000));
	store_fixture_sleep(200);
	kvc_report(one, counters[0], 7);
	kvc_report(two, counters[1], 7);
	assert_true(store_fixture_wait_stat(&fixture, "worker:one:decode_tokens_total", 50, 5000));
	assert_true(store_fixture_wait_stat(&fixture, "worker:two:decode_tokens_total", 70, 5000));
}

static void test_views(void **state)
{
	static const struct view one[] = {{"cache_hit_rate", "bytes", "start", 0.75},
	    {"cache_hit_rate_10s", "bytes", "10s", 0.75}, {"cache_hit_rate_60s", "bytes", "60s", 0.75},
	    {"cluster_hit_rate_10s", "clusters", "10s", 0.25},
	    {"token_hit_rate", "tokens", "start", 0.5}};
	static const struct view all[] = {{"cache_hit_rate", "bytes", "start", 700.0 / 1200},
	    {"cache_hit_rate_10s", "bytes", "10s", 700.0 / 1200},
	    {"cluster_hit_rate_60s", "clusters", "60s", 0.25},
	    {"token_hit_rate_10s", "tokens", "10s", 0.7}};
	struct kvc_store *first = test_connect(&fixture, "one");
	struct kvc_store *second = test_connect(&fixture, "two");
	char *top;

	(void)state;
	report_both(first, second);
	for (size_t i = 0; i < sizeof one / sizeof one[0]; i++)
		agree("one", &one[i]);
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		agree(NULL, &all[i]);
	top = run_kvctl(0, "top", "--json", "--once");
	near(number_after(strstr(top, "\"name\":\"one\""), "\"cache_hit_rate_10s\":"), 0.75);
	near(number_after(strstr(top, "\"all\":{"), "\"cache_hit_rate\":"), 700.0 / 1200);
	free(top);
	top = run_kvctl(0, "top", "--once", NULL);
	assert_non_null(strstr(top, "ready: 2 workers, 0 sequences"));
	assert_non_null(strstr(top, "one                   connected         0   75.0 %"));
	assert_non_null(strstr(top, "58.3 %"));
	free(top);
	kvc_close(second);
	/* One that left stays, and so do the sums; another process of its name adds to them. */
	assert_true(store_fixture_wait_stat(&fixture, "workers{state=\"connected\"}", 1, 5000));
	agree("two", &(struct view){"cache_hit_rate", "bytes", "start", 0.5});
	agree(NULL, &all[0]);
	second = test_connect(&fixture, "two");
	assert_true(store_fixture_wait_stat(&fixture, "workers{state=\"connected\"}", 2, 5000));
	store_fixture_sleep(200);
	kvc_report(second, counters[0], 7);
	assert_true(store_fixture_wait_stat(&fixture, "worker:two:decode_tokens_total", 50, 5000));
	agree("two", &(struct view){"cache_hit_rate", "bytes", "start", 0.75});
	agree(NULL, &(struct view){"cache_hit_rate", "bytes", "start", 1000.0 / 1600});
	kvc_close(second);
	kvc_close(first);
}

/* The format, as its own tool judges it. */
static void count_bytes(struct kvc_store *store, const char *name, double hit, double miss)
{
	const struct kvc_counter now[] = {
	    {"cache_hit_bytes_total", hit}, {"cache_miss_bytes_total", miss}};
	char full[96];

	kvc_report(store, now, 2);
	snprintf(full, sizeof full, "worker:%s:cache_miss_bytes_total", name);
	assert_true(store_fixture_wait_stat(&fixture, full, miss, 5000));
}

/* Counters are a process's: one that connects anew, while its earlier connection is not seen to
 * have ended, counts once; two processes of one name count both, whatever the second one begins
 * with. */
static void test_sums(void **state)
{
	const pid_t child = fork();
	struct kvc_store *first, *again;
	int status = 0;

	(void)state;
	assert_true(child >= 0);
	if (child == 0) {
		first = test_connect(&fixture, "heir");
		count_bytes(first, "heir", 100, 100);
		kvc_close(first);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	first = test_connect(&fixture, "heir");
	count_bytes(first, "heir", 300, 101);
	assert_true(store_fixture_wait_stat(&fixture, "worker:heir:cache_hit_bytes_total", 300, 0));
	agree(NULL, &(struct view){"cache_hit_rate", "bytes", "start", 400.0 / 601});
	again = test_connect(&fixture, "heir");
	count_bytes(again, "heir", 300, 500);
	agree(NULL, &(struct view){"cache_hit_rate", "bytes", "start", 400.0 / 1000});
	kvc_close(first);
	agree(NULL, &(struct view){"cache_hit_rate", "bytes", "start", 400.0 / 1000});
	kvc_close(again);
}

/* Which process it is, one on another host says itself. */
static void test_sums_remote(void **state)
{
	struct kvc_store *again;

	test_sums(state);
	/* A line that was seen to end, and is made anew. */
	assert_true(store_fixture_wait_stat(&fixture, "workers{state=\"connected\"}", 0, 5000));
	again = test_connect(&fixture, "heir");
	count_bytes(again, "heir", 300, 600);
	agree(NULL, &(struct view){"cache_hit_rate", "bytes", "start", 400.0 / 1100});
	kvc_close(again);
}

static void test_promtool(void **state)
{
	static const char *const arguments[] = {
	    "/bin/sh", "-c", "command -v promtool >/dev/null || exit 77; promtool check metrics", NULL};
	struct kvc_store *first = test_connect(&fixture, "one");
	struct kvc_store *second = test_connect(&fixture, "two");
	struct process process = {0};
	int code;

	(void)state;
	report_both(first, second);
	kvc_close(second);
	get("/metrics");
	assert_true(process_start(&process, arguments, body_of(answer)));
	code = process_wait(&process, 20000);
	if (code == 0) {
		char *errors = process_errors(&process);
		char *output = process_output(&process);

		assert_string_equal(errors, "");
		assert_string_equal(output, "");
		free(errors);
		free(output);
	}
	process_deinit(&process);
	kvc_close(first);
	if (code == 77) {
		fprintf(stderr, "skipped: there is no promtool (Debian: prometheus)\n");
		skip();
	}
	assert_int_equal(code, 0);
}

/* ---- kvctl ---- */

static void test_kvctl(void **state)
{
	struct kvc_store *store = test_connect(&fixture, "a");
	struct kvc_sequence *sequence = NULL;
	char *output;

	(void)state;
	assert_ok(test_open(store, NULL, 1, &sequence));
	assert_ok(test_write(store, sequence, 1));
	free(run_kvctl(1, "drain", "--wait=0.3", NULL));
	free(run_kvctl(1, "ready", NULL, NULL));
	kvc_sequence_close(sequence, 0);
	output = run_kvctl(0, "drain", "--wait=5", "--json");
	assert_string_equal(output, "{\"draining\":true,\"sequences\":0}\n");
	free(output);
	output = run_kvctl(0, "evict", "--json", NULL);
	assert_true(begins(output, "{\"evicted_bytes\":"));
	assert_true(strtoull(output + 17, NULL, 10) > 0);
	free(output);
	output = run_kvctl(0, "drain", "--off", NULL);
	assert_string_equal(output, "ready, 0 sequences are active\n");
	free(output);
	free(run_kvctl(0, "ready", NULL, NULL));
	kvc_close(store);
}

/* Right bytes, for two clients at once; the figures themselves are nobody's verdict here. */
static void test_bench(void **state)
{
	char seconds[] = "--seconds=0.01";
	char size[] = "--working-set=16MiB";
	char control[160];
	const char *const arguments[] = {
	    KVCTL_PATH, "bench", control, seconds, size, "--verify", "--json", "--clients=2", NULL};
	struct process process = {0};
	char *output;

	(void)state;
	snprintf(control, sizeof control, "--socket=%s", fixture.socket);
	assert_true(process_start(&process, arguments, NULL));
	assert_int_equal(process_wait(&process, 100000), 0);
	output = process_output(&process);
	assert_true(begins(output, "{\"transport\":\"map\",\"lanes\":\"memfd\""));
	assert_non_null(
	    strstr(output, "{\"what\":\"fetch\",\"bytes\":8192,\"reads\":64,\"mixed\":false,"
	                   "\"clients\":1,\"bytes_per_second\":"));
	assert_non_null(strstr(output, "{\"what\":\"commit\",\"bytes\":16777216,\"reads\":1,"
	                               "\"mixed\":false,\"clients\":2,"));
	free(output);
	process_deinit(&process);
	assert_true(store_fixture_wait_stat(&fixture, "sequences{state=\"active\"}", 0, 2000));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_http, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_head, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_half_closed, set_up, tear_down),
	    cmocka_unit_test(test_tcp),
	    cmocka_unit_test_setup_teardown(test_http_hostile, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_reset_and_evict, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_drain, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_other_user, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_views, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_sums, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_sums_remote, set_up_remote, tear_down_remote),
	    cmocka_unit_test_setup_teardown(test_promtool, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_kvctl, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_bench, set_up, tear_down),
	};

	signal(SIGPIPE, SIG_IGN);
	test_program = argv[0];
	if (argc > 1) cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
