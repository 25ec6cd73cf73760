/* Clients that want a `gpu-worker serve` to fail others: each attack runs while another client is
 * answered, its memory stays bounded, and afterwards it has as many descriptors as before. */
#define _GNU_SOURCE /* prlimit */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/process.h"
#include "tests/lib/raw_http.h"

#define MODEL KV_TINY_MODELS "/tiny_llama.gguf"

enum {
	PLACES = 32, /* --max-connections of most tests */
	MANY = 3 * PLACES,
	THOUSAND = 1000,
	ANSWER_SECONDS = 20
};

/* Of resident memory, in any test: sanitizers keep what was freed. And they are slow. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { GROWTH_KIB = 1 << 20, STREAM_TOKENS = 200 };
#else
enum { GROWTH_KIB = 64 << 10, STREAM_TOKENS = 1000 };
#endif

static struct serve_fixture worker;
static long resident;
static int descriptors;
static char out[1 << 16];

/* Another client: it looks how the worker does, and asks it something. */
static void others_are_answered(void)
{
	struct serve_reply reply;

	assert_true(serve_ask(&worker, "GET", "/health", NULL, &reply));
	assert_int_equal(reply.code, 200);
	serve_reply_deinit(&reply);
	assert_true(serve_ask(
	    &worker, "POST", "/v1/completions", "{\"prompt\":\"the in on\",\"max_tokens\":2}", &reply));
	if (reply.code != 200) fail_msg("%d: %s", reply.code, reply.body);
	serve_reply_deinit(&reply);
}

static void open_all(int *fds, int count, const char *from, const char *text)
{
	for (int i = 0; i < count; i++) {
		fds[i] = raw_connect(&worker, from, 0);
		assert_true(fds[i] >= 0);
		if (text != NULL) raw_put(fds[i], text);
	}
}

static void close_all(const int *fds, int count)
{
	for (int i = 0; i < count; i++)
		close(fds[i]);
}

static int count_ended(const int *fds, int count)
{
	int ended = 0;

	for (int i = 0; i < count; i++)
		ended += raw_ended(fds[i]);
	return ended;
}

/* Nothing of an attack is left. */
static int check_left(void **state)
{
	int now = 0;

	(void)state;
	for (int i = 0; i < 200; i++) {
		now = process_descriptors(worker.pid);
		if (now <= descriptors) break;
		raw_pause(50);
	}
	if (now > descriptors) print_error("%d descriptors, %d before\n", now, descriptors);
	if (process_resident_kib(worker.pid) > resident + GROWTH_KIB)
		print_error("%ld KiB, %ld before\n", process_resident_kib(worker.pid), resident);
	return now <= descriptors && process_resident_kib(worker.pid) <= resident + GROWTH_KIB ? 0 : -1;
}

/* What each sends a byte of, again and again, and never to its end. */
static void trickle(const char *text, const char *byte)
{
	int fds[MANY], ended = 0;

	open_all(fds, MANY, NULL, text);
	for (int turn = 0; turn < 200 && ended < MANY; turn++) {
		for (int i = 0; i < MANY; i++)
			raw_put(fds[i], byte);
		if (turn % 5 == 0) others_are_answered();
		raw_pause(50);
		ended = count_ended(fds, MANY);
	}
	/* The deadline is not put off by a byte more. */
	assert_int_equal(ended, MANY);
	close_all(fds, MANY);
}

static void slow_heads_shut_nobody_out(void **state)
{
	(void)state;
	trickle("GET /health HTTP/1.1\r\nHost: test\r\nX-Long: ", "x");
}

static void slow_first_lines_shut_nobody_out(void **state)
{
	(void)state;
	trickle("G", "E");
}

static void slow_bodies_shut_nobody_out(void **state)
{
	(void)state;
	trickle("POST /tokenize HTTP/1.1\r\nHost: test\r\nContent-Length: 60000\r\n\r\n{\"", "x");
	trickle("POST /tokenize HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
	        "fffffffffffffff\r\n",
	    "x");
	trickle("POST /tokenize HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
	        "0\r\nX-Trailer: ",
	    "x");
}

/* Whose chunks were read to their end is no longer heard, though it keeps its side open: the places
 * for those who still send are theirs. */
static void whole_chunks_leave_nothing(void **state)
{
	int fds[8];

	(void)state;
	open_all(fds, 8, NULL,
	    "POST /tokenize HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
	    "10\r\n{\"prompt\":\"the\"}\r\n0\r\n\r\n");
	for (int i = 0; i < 8; i++) {
		assert_true(raw_read(fds[i], NULL, out, sizeof out));
		assert_non_null(strstr(out, "\"tokens\""));
	}
	for (int i = 0; i < 40 && process_descriptors(worker.pid) > descriptors; i++)
		raw_pause(50);
	assert_true(process_descriptors(worker.pid) <= descriptors);
	close_all(fds, 8);
}

/* Who is too slow is told so, when it is not only in others' way. */
static void slow_clients_are_told(void **state)
{
	static const char *const texts[] = {"GET /health HTTP/1.1\r\nHost: ",
	    "POST /tokenize HTTP/1.1\r\nHost: test\r\nContent-Length: 60000\r\n\r\n{"};

	(void)state;
	for (int i = 0; i < 2; i++) {
		int fd = raw_connect(&worker, NULL, 0);

		assert_true(raw_put(fd, texts[i]));
		assert_true(raw_read(fd, NULL, out, sizeof out));
		assert_non_null(strstr(out, "HTTP/1.1 408"));
		assert_non_null(strstr(out, "\"request_timeout\""));
		close(fd);
	}
}

static long ended_for(const char *reason)
{
	struct serve_reply reply;
	char name[128];
	const char *at;
	long number = -1;

	snprintf(
	    name, sizeof name, "clusterkv_worker_http_connections_ended_total{reason=\"%s\"} ", reason);
	assert_true(serve_ask(&worker, "GET", "/metrics", NULL, &reply));
	at = strstr(reply.body, name);
	if (at != NULL) number = strtol(at + strlen(name), NULL, 10);
	serve_reply_deinit(&reply);
	return number;
}

static void a_thousand_idle_connections_shut_nobody_out(void **state)
{
	static int fds[THOUSAND];

	(void)state;
	for (int i = 0; i < THOUSAND; i++) {
		fds[i] = raw_connect(&worker, NULL, 0);
		assert_true(fds[i] >= 0);
		if (i % 100 == 99) others_are_answered();
	}
	/* The oldest have made room, and one can see it. */
	assert_true(ended_for("room") >= THOUSAND - PLACES);
	assert_true(count_ended(fds, THOUSAND) >= THOUSAND - PLACES);
	assert_true(raw_ended(fds[0]));
	assert_true(process_descriptors(worker.pid) <= descriptors + PLACES + 16);
	others_are_answered();
	close_all(fds, THOUSAND);
}

/* Kept connections that wait for their next request make room for those who come. */
static void kept_connections_make_room(void **state)
{
	int fds[MANY];

	(void)state;
	for (int i = 0; i < MANY; i++) {
		fds[i] = raw_connect(&worker, NULL, 0);
		assert_true(raw_put(fds[i], "GET /v1/models HTTP/1.1\r\nHost: test\r\n\r\n"));
		assert_true(raw_read(fds[i], "tiny_llama", out, sizeof out));
	}
	assert_true(count_ended(fds, MANY) >= MANY - PLACES);
	others_are_answered();
	close_all(fds, MANY);
}

/* Those of the address with the most connections go first. */
static void others_keep_their_connections(void **state)
{
	int kept = raw_connect(&worker, "127.0.0.9", 0), fds[MANY];

	(void)state;
	assert_true(raw_put(kept, "GET /v1/models HTTP/1.1\r\nHost: test\r\n\r\n"));
	assert_true(raw_read(kept, "tiny_llama", out, sizeof out));
	for (int i = 0; i < MANY; i += 4)
		open_all(fds + i, 4, "127.0.0.2", "GET /health HT");
	/* Who asks now came after all of them. */
	others_are_answered();
	assert_true(raw_put(kept, "GET /health HTTP/1.1\r\nHost: test\r\n\r\n"));
	assert_true(raw_read(kept, "\"ok\"", out, sizeof out));
	others_are_answered();
	close_all(fds, MANY);
	close(kept);
}

/* Many bodies of the largest size are more than the worker holds of all. */
static void large_bodies_are_bounded(void **state)
{
	static char part[60 << 10];
	const long before = process_resident_kib(worker.pid);
	int fds[PLACES];

	(void)state;
	memset(part, ' ', sizeof part);
	for (int round = 0; round < 3; round++) {
		open_all(fds, PLACES, NULL,
		    "POST /tokenize HTTP/1.1\r\nHost: test\r\nContent-Length: 65000\r\n\r\n");
		for (int i = 0; i < PLACES; i++)
			raw_send(fds[i], part, sizeof part);
		others_are_answered();
		close_all(fds, PLACES);
	}
	assert_true(process_resident_kib(worker.pid) < before + GROWTH_KIB);
}

/* Bodies of 7 MiB from sixteen, none of them whole: all together are more than may be held, and
 * what went is not counted for ever. */
static void bodies_together_are_bounded(void **state)
{
	enum { SENDERS = 16, BODY = 7 << 20 };
	static char part[1 << 20], large[BODY];
	struct serve_reply reply;
	int fds[SENDERS];
	long grown;

	(void)state;
	memset(part, ' ', sizeof part);
	memset(large, ' ', sizeof large - 1);
	memcpy(large, "{\"prompt\":\"the\"}", 16);
	for (int round = 0; round < 2; round++) {
		open_all(fds, SENDERS, "127.0.0.2",
		    "POST /tokenize HTTP/1.1\r\nHost: test\r\nContent-Length: 8000000\r\n\r\n");
		for (int sent = 0; sent < BODY; sent += (int)sizeof part)
			for (int i = 0; i < SENDERS; i++)
				raw_send(fds[i], part, sizeof part);
		others_are_answered();
		assert_true(count_ended(fds, SENDERS) > 0);
		grown = process_resident_kib(worker.pid) - resident;
		if (grown > 3 * GROWTH_KIB) fail_msg("%ld KiB more", grown);
		close_all(fds, SENDERS);
		assert_int_equal(check_left(state), 0);
		assert_true(serve_ask(&worker, "POST", "/tokenize", large, &reply));
		assert_int_equal(reply.code, 200);
		serve_reply_deinit(&reply);
	}
}

static void ask_long(int fd, unsigned tokens)
{
	char head[128], body[256];

	snprintf(body, sizeof body,
	    "{\"prompt\":\"the in on\",\"ignore_end\":true,\"max_tokens\":%u,\"stream\":true,"
	    "\"logprobs\":20}",
	    tokens);
	snprintf(head, sizeof head,
	    "POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: %zu\r\n\r\n", strlen(body));
	assert_true(raw_put(fd, head));
	assert_true(raw_put(fd, body));
	assert_true(raw_read(fd, "data: ", out, sizeof out));
}

static bool log_says(const char *word)
{
	char line[1024];
	bool found = false;
	FILE *file = fopen(worker.log, "r");

	while (file != NULL && !found && fgets(line, sizeof line, file) != NULL)
		found = strstr(line, word) != NULL;
	if (file != NULL) fclose(file);
	return found;
}

/* It asks for much, and takes the first of it. */
static void who_does_not_read_is_ended(void **state)
{
	const long before = process_resident_kib(worker.pid);
	int fds[2];

	(void)state;
	for (int i = 0; i < 2; i++) {
		fds[i] = raw_connect(&worker, NULL, 4096);
		ask_long(fds[i], 4000);
	}
	for (int i = 0; i < 400 && !log_says("more than --stream-backlog"); i++) {
		if (i % 10 == 0) others_are_answered();
		raw_pause(50);
	}
	assert_true(log_says("more than --stream-backlog"));
	assert_true(serve_wait_number(&worker, "running", 0));
	assert_true(process_resident_kib(worker.pid) < before + GROWTH_KIB);
	close_all(fds, 2);
}

/* Not even when all places are theirs: then one can see how the worker does, and is told to come
 * back for more. */
static void running_requests_are_never_ended(void **state)
{
	int streams[4], fds[MANY];
	struct serve_reply reply;

	(void)state;
	for (int i = 0; i < 4; i++) {
		streams[i] = raw_connect(&worker, NULL, 0);
		ask_long(streams[i], STREAM_TOKENS);
	}
	assert_true(serve_ask(&worker, "GET", "/v1/models", NULL, &reply));
	assert_int_equal(reply.code, 503);
	assert_non_null(strstr(reply.body, "too_many_connections"));
	serve_reply_deinit(&reply);
	for (int i = 0; i < MANY; i += 8) {
		open_all(fds + i, 8, NULL, "GET /health HTTP/1.1\r\nHost: ");
		assert_true(serve_ask(&worker, "GET", "/health", NULL, &reply));
		assert_int_equal(reply.code, 200);
		serve_reply_deinit(&reply);
	}
	close_all(fds, MANY);
	for (int i = 0; i < 4; i++) {
		static char all[64 << 20];

		assert_true(raw_read(streams[i], "data: [DONE]", all, sizeof all));
		close(streams[i]);
	}
}

static void limit_descriptors(rlim_t most, struct rlimit *before)
{
	struct rlimit low;

	assert_int_equal(prlimit(worker.pid, RLIMIT_NOFILE, NULL, before), 0);
	low = *before;
	low.rlim_cur = most;
	assert_int_equal(prlimit(worker.pid, RLIMIT_NOFILE, &low, NULL), 0);
}

/* Without a descriptor for another connection one that waits goes; where there is none, it waits
 * itself, and does not spin. */
static void descriptors_that_run_out_do_not_stop_it(void **state)
{
	struct rlimit limit;
	int fds[PLACES];
	long used;

	(void)state;
	limit_descriptors((rlim_t)descriptors + 4, &limit);
	open_all(fds, PLACES, NULL, NULL);
	others_are_answered();
	close_all(fds, PLACES);
	assert_int_equal(prlimit(worker.pid, RLIMIT_NOFILE, &limit, NULL), 0);
	assert_int_equal(check_left(state), 0);
	limit_descriptors(3, &limit);
	used = process_cpu_ms(worker.pid);
	open_all(fds, 4, NULL, NULL);
	raw_pause(1000);
	assert_true(process_cpu_ms(worker.pid) - used < 150);
	assert_true(log_says("Too many open files"));
	assert_int_equal(prlimit(worker.pid, RLIMIT_NOFILE, &limit, NULL), 0);
	others_are_answered();
	close_all(fds, 4);
}

/* What `from` is answered, to the end, is in `out`, and has `word`. */
static void ask_as(const char *from, const char *text, const char *word)
{
	int fd = raw_connect(&worker, from, 0);

	assert_true(fd >= 0);
	assert_true(raw_put(fd, text));
	assert_true(raw_read(fd, NULL, out, sizeof out));
	if (strstr(out, word) == NULL) fail_msg("no %s: %s", word, out);
	close(fd);
}

static void an_address_has_its_limit(void **state)
{
	int fds[8], streams[4];

	(void)state;
	open_all(fds, 8, "127.0.0.2", NULL);
	for (int i = 0; i < 100 && count_ended(fds, 8) < 4; i++)
		raw_pause(50);
	assert_int_equal(count_ended(fds, 8), 4);
	others_are_answered();
	for (int i = 0; i < 4; i++) {
		streams[i] = raw_connect(&worker, "127.0.0.3", 0);
		ask_long(streams[i], 4000);
	}
	close_all(fds, 8);
	/* Who has them all running is told so, but for how the worker does. */
	ask_as("127.0.0.3", "GET /v1/models HTTP/1.1\r\nHost: test\r\n\r\n", "HTTP/1.1 429");
	assert_non_null(strstr(out, "--address-connections"));
	assert_non_null(strstr(out, "Connection: close"));
	for (int i = 0; i < 4; i++) {
		ask_as("127.0.0.3", "GET /health HTTP/1.1\r\nHost: test\r\n\r\n", "HTTP/1.1 200");
		ask_as("127.0.0.3", "GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n", "HTTP/1.1 200");
	}
	/* Nor do many that ask nothing keep it from that. */
	open_all(fds, 8, "127.0.0.3", NULL);
	ask_as("127.0.0.3", "GET /health HTTP/1.1\r\nHost: test\r\n\r\n", "HTTP/1.1 200");
	for (int i = 0; i < 100 && count_ended(fds, 8) < 7; i++)
		raw_pause(50);
	assert_in_range(count_ended(fds, 8), 7, 8);
	others_are_answered();
	close_all(fds, 8);
	close_all(streams, 4);
}

/* Told before anything is served. */
static void too_few_descriptors_are_an_error(void **state)
{
	const char *const arguments[] = {"/bin/sh", "-c",
	    "ulimit -n 300; exec \"$0\" serve --model " MODEL " --store none --local-memory 16MiB "
	    "--listen 127.0.0.1:0 --max-connections 1000",
	    KV_GPU_WORKER, NULL};
	struct process process;
	char *errors;

	(void)state;
	assert_true(process_start(&process, arguments, NULL));
	assert_int_equal(process_wait(&process, 20000), 2);
	errors = process_errors(&process);
	assert_non_null(strstr(errors, "max-connections: 1000 connections need"));
	assert_non_null(strstr(errors, "ulimit -n"));
	free(errors);
	process_deinit(&process);
}

/* ---- workers ---- */

static int start_with(const char *const *arguments)
{
	serve_answer_limit(ANSWER_SECONDS);
	if (!serve_fixture_start(&worker, arguments, true)) return -1;
	others_are_answered();
	raw_pause(100);
	resident = process_resident_kib(worker.pid);
	descriptors = process_descriptors(worker.pid);
	return 0;
}

#define WORKER "--model", MODEL, "--store", "none", "--local-memory", "64MiB"

static int start(void **state)
{
	static const char *const arguments[] = {WORKER, "--max-connections", "32", "--client-timeout",
	    "1s", "--client-rate", "64KiB", "--max-body", "64KiB", "--stream-backlog", "64KiB", NULL};

	(void)state;
	return start_with(arguments);
}

static int start_narrow(void **state)
{
	static const char *const arguments[] = {
	    WORKER, "--max-connections", "4", "--max-sequences", "4", NULL};

	(void)state;
	return start_with(arguments);
}

static int start_roomy(void **state)
{
	static const char *const arguments[] = {WORKER, "--max-body", "8MiB", NULL};

	(void)state;
	return start_with(arguments);
}

static int start_limited(void **state)
{
	static const char *const arguments[] = {
	    WORKER, "--address-connections", "4", "--max-sequences", "8", NULL};

	(void)state;
	return start_with(arguments);
}

static int stop(void **state)
{
	int left = check_left(state);

	return serve_fixture_stop(&worker, left != 0) ? left : -1;
}

int main(void)
{
	const struct CMUnitTest shared[] = {
	    cmocka_unit_test_teardown(slow_heads_shut_nobody_out, check_left),
	    cmocka_unit_test_teardown(slow_first_lines_shut_nobody_out, check_left),
	    cmocka_unit_test_teardown(slow_bodies_shut_nobody_out, check_left),
	    cmocka_unit_test_teardown(whole_chunks_leave_nothing, check_left),
	    cmocka_unit_test_teardown(slow_clients_are_told, check_left),
	    cmocka_unit_test_teardown(a_thousand_idle_connections_shut_nobody_out, check_left),
	    cmocka_unit_test_teardown(kept_connections_make_room, check_left),
	    cmocka_unit_test_teardown(others_keep_their_connections, check_left),
	    cmocka_unit_test_teardown(large_bodies_are_bounded, check_left),
	    cmocka_unit_test_teardown(who_does_not_read_is_ended, check_left),
	    cmocka_unit_test_teardown(descriptors_that_run_out_do_not_stop_it, check_left),
	};
	const struct CMUnitTest own_worker[] = {
	    cmocka_unit_test_setup_teardown(running_requests_are_never_ended, start_narrow, stop),
	    cmocka_unit_test_setup_teardown(bodies_together_are_bounded, start_roomy, stop),
	    cmocka_unit_test_setup_teardown(an_address_has_its_limit, start_limited, stop),
	    cmocka_unit_test(too_few_descriptors_are_an_error),
	};
	struct rlimit limit;

	/* A thousand connections are a thousand descriptors here, too. */
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 2 * THOUSAND) {
		limit.rlim_cur = limit.rlim_max < 2 * THOUSAND ? limit.rlim_max : 2 * THOUSAND;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	if (limit.rlim_cur < THOUSAND + 100) {
		print_message("1,000 connections need 1,100 descriptors: raise ulimit -n\n");
		return 77;
	}
	return cmocka_run_group_tests(shared, start, stop) +
	       cmocka_run_group_tests(own_worker, NULL, NULL);
}
