/* Connections of a `gpu-worker serve` that bring no request, more than it takes at once. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/serve_fixture.h"

enum { CONNECTIONS = 300 }; /* above the server's limit */

static struct serve_fixture worker;

static int connect_one(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)worker.port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
	return fd;
}

static void pause_ms(long ms)
{
	const struct timespec time = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&time, NULL);
}

/* Those that wait are as many as the server's limit lets wait. */
static void connect_many(int *fds, const char *text)
{
	for (int i = 0; i < CONNECTIONS; i++) {
		fds[i] = connect_one();
		if (text != NULL) {
			assert_int_equal(send(fds[i], text, strlen(text), MSG_NOSIGNAL), strlen(text));
			shutdown(fds[i], SHUT_WR);
		}
	}
	pause_ms(200);
	for (int i = 0; i < CONNECTIONS; i++)
		close(fds[i]);
}

static void it_listens_again_when_idle_connections_have_gone(void **state)
{
	int fds[CONNECTIONS];

	(void)state;
	connect_many(fds, NULL);
	serve_answer_limit(10);
	assert_true(serve_wait_status(&worker, "ok"));
}

static void half_a_body_is_not_waited_for(void **state)
{
	int fds[CONNECTIONS];

	(void)state;
	connect_many(fds,
	    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"prompt");
	serve_answer_limit(10);
	assert_true(serve_wait_status(&worker, "ok"));
}

static int start(void **state)
{
	static const char *const arguments[] = {"--model", KV_TINY_MODELS "/tiny_llama.gguf", "--store",
	    "none", "--local-memory", "16MiB", "--idle-timeout", "300s", NULL};

	(void)state;
	return serve_fixture_start(&worker, arguments, true) ? 0 : -1;
}

static int stop(void **state)
{
	(void)state;
	return serve_fixture_stop(&worker, false) ? 0 : -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(it_listens_again_when_idle_connections_have_gone),
	    cmocka_unit_test(half_a_body_is_not_waited_for),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
