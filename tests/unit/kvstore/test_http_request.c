#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

#include "kvstore/server/http_listen.h"
#include "kvstore/server/http_request.h"

static struct kvs_http_request request;

static int parse(const char *text)
{
	memset(&request, 'x', sizeof request);
	return kvs_http_parse(text, strlen(text), &request);
}

static void test_begins(void **state)
{
	(void)state;
	assert_true(kvs_http_begins("G", 1));
	assert_true(kvs_http_begins("GET ", 4));
	assert_true(kvs_http_begins("GET /metrics", 12));
	assert_true(kvs_http_begins("H", 1));
	assert_true(kvs_http_begins("HEAD /", 6));
	assert_false(kvs_http_begins("HEALTH", 6));
	assert_false(kvs_http_begins("GEAD", 4));
	assert_true(kvs_http_is_head("HEAD / HTTP/1.1"));
	assert_false(kvs_http_is_head("GET / HTTP/1.1"));
	assert_false(kvs_http_begins("g", 1));
	assert_false(kvs_http_begins("GETS", 4));
	assert_false(kvs_http_begins("stats", 5));
}

static void test_whole(void **state)
{
	(void)state;
	assert_int_equal(parse("GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n"), 200);
	assert_string_equal(request.path, "/metrics");
	assert_int_equal(parse("GET / HTTP/1.0\n\n"), 200);
	assert_string_equal(request.path, "/");
	assert_int_equal(parse("GET /a?b=c HTTP/1.1\r\n\r\nmore"), 200);
	assert_string_equal(request.path, "/a");
	assert_int_equal(parse("HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), 200);
	assert_string_equal(request.path, "/metrics");
}

/* Every beginning of a request asks for more, and sets nothing. */
static void test_parts(void **state)
{
	static const char whole[] = "GET /stats.json HTTP/1.1\r\nHost: here\r\n\r\n";

	(void)state;
	memset(&request, 'x', sizeof request);
	for (size_t i = 4; i < sizeof whole - 1; i++) {
		assert_int_equal(kvs_http_parse(whole, i, &request), 0);
		assert_int_equal(request.path[0], 'x');
	}
	assert_int_equal(kvs_http_parse(whole, sizeof whole - 1, &request), 200);
}

static void test_refused(void **state)
{
	static char large[KVS_HTTP_MAX_HEAD + 1] = "GET / HTTP/1.1\r\nA: ";
	static char path[KVS_HTTP_MAX_PATH + 32] = "GET /";
	static const struct {
		const char *text;
		int status;
	} bad[] = {
	    {"GET\n", 400},
	    {"GET /\r\n\r\n", 400},
	    {"GET metrics HTTP/1.1\r\n\r\n", 400},
	    {"GET / HTTP/1.1 \r\n\r\n", 400},
	    {"GET /a b HTTP/1.1\r\n\r\n", 400},
	    {"GET /\x01 HTTP/1.1\r\n\r\n", 400},
	    {"GET / HTTP/2.0\r\n\r\n", 505},
	    {"GET / HTTP/1.12\r\n\r\n", 400},
	    {"POST / HTTP/1.1\r\n\r\n", 400},
	    {"HEAD/ HTTP/1.1\r\n\r\n", 400},
	    {"HEAD / HTTP/2.0\r\n\r\n", 505},
	    {"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400},
	    {"GET / HTTP/1.1\r\n: empty\r\n\r\n", 400},
	    {"GET / HTTP/1.1\r\nA : b\r\n\r\n", 400},
	    {"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400},
	    {"GET / HTTP/1.1\r\nA: \x02\r\n\r\n", 400},
	};

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		assert_int_equal(parse(bad[i].text), bad[i].status);
	memset(large + 19, 'b', sizeof large - 20);
	assert_int_equal(kvs_http_parse(large, KVS_HTTP_MAX_HEAD, &request), 431);
	memset(path + 5, 'p', KVS_HTTP_MAX_PATH - 1);
	memcpy(path + 4 + KVS_HTTP_MAX_PATH, " HTTP/1.1\r\n\r\n", 14);
	assert_int_equal(parse(path), 414);
	/* One less fits. */
	memcpy(path + 3 + KVS_HTTP_MAX_PATH, " HTTP/1.1\r\n\r\n", 14);
	assert_int_equal(parse(path), 200);
	assert_int_equal(strlen(request.path), KVS_HTTP_MAX_PATH - 1);
}

static void test_nul(void **state)
{
	static const char text[] = "GET /\0 HTTP/1.1\r\n\r\n";

	(void)state;
	assert_int_equal(kvs_http_parse(text, sizeof text - 1, &request), 400);
}

static void test_address(void **state)
{
	static const char *const good[] = {"", "127.0.0.1:1", "0.0.0.0:65535", "[::1]:9432"};
	static const char *const bad[] = {"127.0.0.1", ":80", "127.0.0.1:", "127.0.0.1:0",
	    "127.0.0.1:65536", "127.0.0.1:99999999999", "127.0.0.1:8x", "localhost:80", "[]:80",
	    "[::1]", "1.2.3.4.5:80"};

	(void)state;
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
		assert_int_equal(kvs_http_address_check(good[i]), KV_OK);
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		assert_int_equal(kvs_http_address_check(bad[i]), KV_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_begins),
	    cmocka_unit_test(test_whole),
	    cmocka_unit_test(test_parts),
	    cmocka_unit_test(test_refused),
	    cmocka_unit_test(test_nul),
	    cmocka_unit_test(test_address),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
