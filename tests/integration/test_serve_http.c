/* What `gpu-worker serve` makes of HTTP that is unusual, ambiguous or wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/raw_http.h"

enum { ANSWER = 1 << 16 };

static struct serve_fixture worker;
static char out[ANSWER];

#define HEAD(method, path) method " " path " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n"
#define POST(path)         "POST " path " HTTP/1.1\r\nHost: test\r\n"

/* The answer to `text` has this code, ends the connection, and says `word`. */
static void expect(const char *text, int code, const char *word)
{
	int got = raw_ask(&worker, text, out, sizeof out);

	if (got != code || strstr(out, word) == NULL)
		fail_msg("%.300s\n--- %d:\n%.600s\n--- expected %d and %s", text, got, out, code, word);
}

static void answers_are_json(const char *text, int code, const char *word)
{
	expect(text, code, word);
	if (strstr(out, "\"error\"") == NULL || strstr(out, "application/json") == NULL)
		fail_msg("%.300s\n---\n%.600s\n--- is no error in JSON", text, out);
}

static void methods_are_answered(void **state)
{
	(void)state;
	expect(HEAD("HEAD", "/v1/models") "\r\n", 200, "application/json");
	assert_string_equal(strstr(out, "\r\n\r\n"), "\r\n\r\n");
	expect(HEAD("OPTIONS", "/v1/models") "\r\n", 204, "Allow: GET, HEAD, OPTIONS\r\n");
	assert_null(strstr(out, "Access-Control"));
	expect(HEAD("OPTIONS", "/v1/completions") "\r\n", 204, "Allow: POST, OPTIONS\r\n");
	expect(HEAD("OPTIONS", "*") "\r\n", 204, "Allow: GET, HEAD, POST, OPTIONS\r\n");
	answers_are_json(HEAD("OPTIONS", "/nothing") "\r\n", 404, "unknown_url");
	answers_are_json(HEAD("PUT", "/health") "\r\n", 405, "Allow: GET, HEAD, OPTIONS\r\n");
	answers_are_json(HEAD("TRACE", "/health") "\r\n", 405, "Allow: GET, HEAD, OPTIONS\r\n");
	answers_are_json(HEAD("BREW", "/v1/completions") "\r\n", 405, "Allow: POST, OPTIONS\r\n");
	answers_are_json(HEAD("get", "/health") "\r\n", 405, "Allow: GET, HEAD, OPTIONS\r\n");
	expect(HEAD("HEAD", "/v1/completions") "\r\n", 405, "Allow: POST, OPTIONS\r\n");
	assert_string_equal(strstr(out, "\r\n\r\n"), "\r\n\r\n");
}

static void paths_are_what_they_say(void **state)
{
	static char text[8192];

	(void)state;
	expect(HEAD("GET", "http://any.host:80/v1/models") "\r\n", 200, "tiny_llama");
	expect(HEAD("GET", "HTTP://any.host/health") "\r\n", 200, "\"ok\"");
	answers_are_json(HEAD("GET", "http://any.host") "\r\n", 404, "unknown_url");
	answers_are_json(HEAD("GET", "/health%00/v1") "\r\n", 400, "invalid_url");
	answers_are_json(HEAD("GET", "/he alth") "\r\n", 400, "invalid_url");
	snprintf(text, sizeof text, HEAD("GET", "/%05000d") "\r\n", 0);
	answers_are_json(text, 400, "invalid_url");
	expect(HEAD("GET", "/health?a=b") "\r\n", 200, "\"ok\"");
}

/* What a proxy may read in another way is refused, and what comes behind it is not taken for the
 * next request. */
static void ambiguous_bodies_are_refused(void **state)
{
	static const char *const fields[] = {
	    "Content-Length: 4\r\nContent-Length: 4\r\n",
	    "Content-Length: 4\r\nContent-Length: 44\r\n",
	    "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
	    "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
	    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
	    "Content-Length : 4\r\n",
	    "Transfer-Encoding : chunked\r\n",
	    "Host: other\r\n",
	    "X\x01: 4\r\n",
	    "X: \x02\r\n",
	};
	char text[1024];

	(void)state;
	for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
		snprintf(text, sizeof text,
		    POST("/tokenize") "%s\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: test\r\n\r\n",
		    fields[i]);
		answers_are_json(text, 400, "invalid_request_error");
		assert_null(strstr(out, "tiny_llama"));
	}
	answers_are_json(POST("/tokenize") "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501,
	    "unsupported_encoding");
	answers_are_json(POST("/tokenize") "Content-Length: 4\r\nExpect: wonders\r\n\r\n", 417,
	    "unsupported_expectation");
	answers_are_json("GET /health HTTP/1.1\r\n\r\n", 400, "Host");
	expect("GET /health HTTP/1.0\r\n\r\n", 200, "\"ok\"");
	answers_are_json("POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
	    "ambiguous_length");
	/* The daemon's own answers are no JSON. */
	expect(POST("/tokenize") "Content-Length: -4\r\n\r\n", 400, "HTTP/1.1");
	expect(POST("/tokenize") "Content-Length: 99999999999999999999\r\n\r\n", 413, "HTTP/1.1");
}

/* A line ends in CRLF, and a field in its line; else what is behind it is another field, or none,
 * to who reads it otherwise. The daemon would join "1\r\n 0" to the field's name. */
static void lines_that_are_read_in_two_ways_are_refused(void **state)
{
	static const char *const heads[] = {
	    "POST /tokenize HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n 0\r\n\r\n",
	    "POST /tokenize HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chun\r\n\tked\r\n\r\n",
	    "POST /tokenize HTTP/1.1\r\nHost: test\r\nX: a\r\n \r\nContent-Length: 4\r\n\r\n",
	    "POST /tokenize HTTP/1.1\r\n X: a\r\nHost: test\r\nContent-Length: 4\r\n\r\n",
	    "POST /tokenize HTTP/1.1\r\nHost: test\r\nX: a\nContent-Length: 4\r\n\r\n",
	    "POST /tokenize HTTP/1.1\r\nHost: test\r\nX:\nContent-Length: 4\r\n\r\n",
	    "POST /tokenize HTTP/1.1\nHost: test\r\nContent-Length: 4\r\n\r\n",
	    "POST /tokenize HTTP/1.1\r\nHost: test\r\nContent-Length: 4\n\r\n",
	    "POST /tokenize HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\n",
	    "GET /health HTTP/1.1\nHost: test\n\n",
	    "GET /health HTTP/1.1\r\nHost: test\r\nX: a\rContent-Length: 4\r\n\r\n",
	    /* A NUL as it is, for each @. */
	    "GET /health@ HTTP/1.1\r\nHost: test\r\n\r\n",
	    "GET /health@/v1/models HTTP/1.1\r\nHost: test\r\n\r\n",
	    "GET /health?a=@b HTTP/1.1\r\nHost: test\r\n\r\n",
	    "GET@X /health HTTP/1.1\r\nHost: test\r\n\r\n",
	    "GET  /health HTTP/1.1\r\nHost: test\r\n\r\n",
	    "GET /health  HTTP/1.1\r\nHost: test\r\n\r\n",
	    "GET /health HTTP/1.1\r\nHost: test\r\nX: a@b\r\n\r\n",
	    "GET /health HTTP/1.1\r\nHost: test\r\nX: a@@Y: b\r\n\r\n",
	    "GET /health HTTP/1.1\r\nHost: test\r\nX: a@@Y@b\r\n\r\n",
	    "GET /health HTTP/1.1\r\nHost: test\r\nX: a@@@@\r\n\r\n",
	};
	static const char behind[] = "0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: test\r\n\r\n";
	char text[512];

	(void)state;
	for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
		int fd = raw_connect(&worker, NULL, 0);
		int length = snprintf(text, sizeof text, "%s%s", heads[i], behind);

		for (int at = 0; at < length; at++)
			if (text[at] == '@') text[at] = '\0';
		assert_true(raw_send(fd, text, (size_t)length));
		assert_true(raw_read(fd, NULL, out, sizeof out));
		if (strncmp(out, "HTTP/1.1 400 ", 13) != 0) fail_msg("%s: %s", heads[i], out);
		assert_null(strstr(out, "tiny_llama"));
		assert_null(strstr(out, "200 OK"));
		close(fd);
	}
	/* What looks like it, and is none. */
	expect(HEAD("GET", "/health?a%20b&c=%0a%0dd") "\r\n", 200, "\"ok\"");
	expect(HEAD("GET", "http://test/health?a=b&c") "\r\n", 200, "\"ok\"");
	expect(HEAD("GET", "/health") "Empty:\r\nBlank: \r\nCookie: a=b; c=d  \r\n\r\n", 200, "\"ok\"");
	expect("\r\n\n" HEAD("GET", "/health") "\r\n", 200, "\"ok\"");
	snprintf(text, sizeof text,
	    "POST /tokenize HTTP/1.1\r\nHost: test\r\nContent-Length: 16\r\n"
	    "\r\n{\"prompt\":\"the\"}GET /health?x HTTP/1.1\r\nHost: test\r\n"
	    "Connection: close\r\n\r\n");
	assert_int_equal(raw_ask(&worker, text, out, sizeof out), 200);
	assert_non_null(strstr(out, "\"ok\""));
}

/* How chunks are framed the daemon judges leniently, and nobody else can: behind them there is
 * nothing more to be read in two ways. */
static void chunks_are_a_connections_last(void **state)
{
	static const char stream[] = "{\"prompt\": \"the\", \"max_tokens\": 2, \"stream\": true}";
	static const char behind[] = "GET /v1/models HTTP/1.1\r\nHost: test\r\n\r\n";
	static const char *const bodies[] = {
	    "10\r\n{\"prompt\":\"the\"}\r\n0\r\n\r\n", "10;a=b\n{\"prompt\":\"the\"}\n0\n\n"};
	char text[512];

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		snprintf(text, sizeof text, POST("/tokenize") "Transfer-Encoding: chunked\r\n\r\n%s%s",
		    bodies[i], behind);
		expect(text, 200, "\"tokens\"");
		assert_non_null(strstr(out, "Connection: close\r\n"));
		assert_null(strstr(out, "tiny_llama"));
	}
	snprintf(text, sizeof text,
	    POST("/v1/completions") "Transfer-Encoding: chunked\r\n\r\n%zx\r\n%s\r\n0\r\n\r\n%s",
	    strlen(stream), stream, behind);
	expect(text, 200, "data: [DONE]");
	assert_non_null(strstr(out, "Connection: close\r\n"));
	assert_null(strstr(out, "context_length"));
}

static void large_heads_are_refused(void **state)
{
	static char text[1 << 20];
	size_t at;
	int fd;

	(void)state;
	snprintf(text, sizeof text, HEAD("GET", "/health") "X-Large: %020000d\r\n\r\n", 0);
	answers_are_json(text, 431, "headers_too_large");
	at = (size_t)snprintf(text, sizeof text, HEAD("GET", "/health"));
	for (int i = 0; i < 200; i++)
		at += (size_t)snprintf(text + at, sizeof text - at, "X-%d: 1\r\n", i);
	snprintf(text + at, sizeof text - at, "\r\n");
	answers_are_json(text, 431, "headers_too_large");
	/* More than a connection has memory for: read to the answer, as it is ended amid the rest. */
	at = (size_t)snprintf(text, sizeof text, HEAD("GET", "/health"));
	memset(text + at, 'x', sizeof text - at - 1);
	fd = raw_connect(&worker, NULL, 0);
	assert_true(fd >= 0);
	raw_put(fd, text);
	assert_true(raw_read(fd, NULL, out, sizeof out));
	if (out[0] != '\0') assert_non_null(strstr(out, "HTTP/1.1 431"));
	close(fd);
}

static void bodies_that_are_too_large_are_refused(void **state)
{
	static char chunk[65536 + 16];
	int fd;

	(void)state;
	/* Nobody is asked to go on with what is not wanted. */
	answers_are_json(POST("/v1/completions") "Content-Length: 104857600\r\n"
	                                         "Expect: 100-continue\r\n\r\n",
	    413, "--max-body");
	assert_null(strstr(out, "100 Continue"));
	/* Who sends it nevertheless can read the answer afterwards. */
	fd = raw_connect(&worker, NULL, 0);
	assert_true(raw_put(fd, POST("/v1/completions") "Content-Length: 104857600\r\n\r\n"));
	memset(chunk, ' ', sizeof chunk);
	for (int i = 0; i < 1600; i++)
		assert_true(raw_send(fd, chunk, 65536));
	assert_true(raw_read(fd, "body_too_large", out, sizeof out));
	close(fd);
	/* The same without a length. */
	fd = raw_connect(&worker, NULL, 0);
	assert_true(raw_put(fd, POST("/v1/completions") "Transfer-Encoding: chunked\r\n\r\n"));
	memcpy(chunk, "10000\r\n", 7);
	memcpy(chunk + 7 + 65536, "\r\n", 2);
	for (int i = 0; i < 1600; i++)
		assert_true(raw_send(fd, chunk, 7 + 65536 + 2));
	assert_true(raw_read(fd, "body_too_large", out, sizeof out));
	assert_null(strstr(out, "100 Continue"));
	close(fd);
}

#define CHUNKED POST("/tokenize") "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"

static void chunks_are_taken_or_refused(void **state)
{
	(void)state;
	expect(CHUNKED "b\r\n{\"prompt\":\"\r\n6;a=b\r\nthe\"}\n\r\n0\r\nX-Trailer: 1\r\n\r\n", 200,
	    "\"tokens\"");
	/* Too large for the largest number, and for the daemon: neither is waited for. */
	expect(CHUNKED "fffffffffffffffff\r\n", 413, "HTTP/1.1");
	expect(CHUNKED "-1\r\nx", 400, "HTTP/1.1");
	expect(CHUNKED "0x5\r\nabcde\r\n", 400, "HTTP/1.1");
	expect(CHUNKED "\r\nabcde\r\n", 400, "HTTP/1.1");
	expect(CHUNKED "2\r\nabcde\r\n", 400, "HTTP/1.1");
}

static void json_is_bounded(void **state)
{
	static const char *const wrong[] = {"{\"prompt\":\"\xff\xfe\"}", "{\"prompt\":\"\xc0\xaf\"}",
	    "{\"prompt\":\"\xed\xa0\x80\"}", "{\"prompt\":\"\\ud800\"}", "{\"prompt\":\"a\\u0000b\"}",
	    "\xef\xbb\xbf{\"prompt\":\"a\"}", "{\"prompt\":\"a\"}}",
	    "{\"prompt\":\"a\",\"prompt\":\"b\"}"};
	static char body[200001];
	struct serve_reply reply;
	int fd;

	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		assert_true(serve_ask(&worker, "POST", "/v1/completions", wrong[i], &reply));
		if (reply.code != 400 || reply.json == NULL || strstr(reply.body, "JSON") == NULL)
			fail_msg("%s: %d %s", wrong[i], reply.code, reply.body);
		serve_reply_deinit(&reply);
	}
	memset(body, '[', sizeof body - 1);
	assert_true(serve_ask(&worker, "POST", "/v1/completions", body, &reply));
	assert_int_equal(reply.code, 400);
	assert_non_null(strstr(reply.body, "deep"));
	serve_reply_deinit(&reply);
	/* A hundred bytes of memory for each two of the body. */
	for (size_t i = 0; i + 1 < sizeof body; i += 2)
		memcpy(body + i, i == 0 ? "[1" : ",1", 2);
	assert_true(serve_ask(&worker, "POST", "/v1/completions", body, &reply));
	assert_int_equal(reply.code, 400);
	assert_non_null(strstr(reply.body, "values"));
	serve_reply_deinit(&reply);
	/* A NUL as it is. */
	fd = raw_connect(&worker, NULL, 0);
	assert_true(raw_put(fd, POST("/v1/completions") "Content-Length: 15\r\n\r\n"));
	assert_true(raw_send(fd, "{\"prompt\":\"a\0b\"}", 15));
	assert_true(raw_read(fd, "error", out, sizeof out));
	assert_non_null(strstr(out, "HTTP/1.1 400"));
	close(fd);
}

/* Numbers that their field, or nothing at all, can hold; and what a resume leaves out of account.
 */
static void fields_that_cannot_be_meant_are_named(void **state)
{
	static const char *const bodies[][2] = {
	    {"temperature", "{\"prompt\":\"a\",\"temperature\":1e39}"},
	    {"temperature", "{\"prompt\":\"a\",\"temperature\":1e999}"},
	    {"temperature", "{\"prompt\":\"a\",\"temperature\":-1e999,\"seed\":1}"},
	    {"seed", "{\"prompt\":\"a\",\"metadata\":{\"top_p\":[1]},\"seed\":9223372036854775808}"},
	    {"max_tokens", "{\"prompt\":\"a\",\"max_tokens\":99999999999999999999}"},
	    {"top_k", "{\"prompt\":\"a\",\"top_k\":-9223372036854775809}"},
	    {"n", "{\"prompt\":\"a\",\"n\":18446744073709551616}"},
	    {"prompt", "{\"seed\":1,\"prompt\":[1,2,9223372036854775808]}"},
	    {"top_p", "{\"prompt\":\"a\",\"top_p\":1e300}"},
	    {"temperature", "{\"resume\":\"x\",\"temperature\":0.5}"},
	    {"max_tokens", "{\"resume\":\"x\",\"max_tokens\":5}"},
	    {"prompt", "{\"resume\":\"x\",\"prompt\":\"a\"}"},
	    {"stop", "{\"stop\":\"a\",\"resume\":\"x\"}"},
	    {"ignore_end", "{\"resume\":\"x\",\"ignore_end\":true}"},
	};
	struct serve_reply reply;

	(void)state;
	for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
		const json_t *param;

		assert_true(serve_ask(&worker, "POST", "/v1/completions", bodies[i][1], &reply));
		param = json_object_get(json_object_get(reply.json, "error"), "param");
		if (reply.code != 400 || param == NULL || json_string_value(param) == NULL ||
		    strcmp(json_string_value(param), bodies[i][0]) != 0)
			fail_msg("%s: %d %s", bodies[i][1], reply.code, reply.body);
		serve_reply_deinit(&reply);
	}
	/* What says nothing is left out. */
	assert_true(serve_ask(&worker, "POST", "/v1/completions",
	    "{\"resume\":\"x\",\"prompt\":\"\",\"temperature\":null,\"stream\":true,\"user\":\"u\"}",
	    &reply));
	assert_int_equal(reply.code, 404);
	serve_reply_deinit(&reply);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
	const char *models, *tokens, *health;
	int fd = raw_connect(&worker, NULL, 0);

	(void)state;
	assert_true(raw_put(fd, "GET /v1/models HTTP/1.1\r\nHost: test\r\n\r\n" POST(
	                            "/tokenize") "Content-Length: 16\r\n\r\n{\"prompt\":\"the\"}"
	                                         "GET /health HTTP/1.1\r\nHost: test\r\n"
	                                         "Connection: close\r\n\r\n"));
	assert_true(raw_read(fd, NULL, out, sizeof out));
	models = strstr(out, "context_length");
	tokens = strstr(out, "\"tokens\"");
	health = strstr(out, "\"ok\"");
	assert_non_null(models);
	assert_non_null(tokens);
	assert_non_null(health);
	assert_true(models < tokens && tokens < health);
	close(fd);
}

static void half_a_connection_is_answered(void **state)
{
	int fd = raw_connect(&worker, NULL, 0);

	(void)state;
	assert_true(raw_put(fd, "GET /health HTTP/1.1\r\nHost: test\r\n\r\n"));
	shutdown(fd, SHUT_WR);
	assert_true(raw_read(fd, NULL, out, sizeof out));
	assert_non_null(strstr(out, "\"ok\""));
	close(fd);
	fd = raw_connect(&worker, NULL, 0);
	shutdown(fd, SHUT_WR);
	assert_true(raw_read(fd, NULL, out, sizeof out));
	close(fd);
}

/* Who speaks something else finds that nobody answers, and soon. */
static void other_protocols_are_ended(void **state)
{
	static const char hello[] =
	    "\x16\x03\x01\x00\x65\x01\x00\x00\x61\x03\x03"
	    "0123456789abcdef0123456789abcdef\x00\x00\x02\x13\x01\x01\x00\x00\x36";
	int fd = raw_connect(&worker, NULL, 0);

	(void)state;
	assert_true(raw_send(fd, hello, sizeof hello - 1));
	assert_true(raw_read(fd, NULL, out, sizeof out));
	close(fd);
	fd = raw_connect(&worker, NULL, 0);
	assert_true(raw_put(fd, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
	assert_true(raw_read(fd, NULL, out, sizeof out));
	close(fd);
	fd = raw_connect(&worker, NULL, 0);
	assert_true(raw_put(fd, "\n\n\n\r\n\r\nEHLO\n"));
	assert_true(raw_read(fd, NULL, out, sizeof out));
	close(fd);
}

static int start(void **state)
{
	static const char *const arguments[] = {"--model", KV_TINY_MODELS "/tiny_llama.gguf", "--store",
	    "none", "--local-memory", "16MiB", "--max-body", "200KiB", "--client-timeout", "2s", NULL};

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
	    cmocka_unit_test(methods_are_answered),
	    cmocka_unit_test(paths_are_what_they_say),
	    cmocka_unit_test(ambiguous_bodies_are_refused),
	    cmocka_unit_test(lines_that_are_read_in_two_ways_are_refused),
	    cmocka_unit_test(chunks_are_a_connections_last),
	    cmocka_unit_test(large_heads_are_refused),
	    cmocka_unit_test(bodies_that_are_too_large_are_refused),
	    cmocka_unit_test(chunks_are_taken_or_refused),
	    cmocka_unit_test(json_is_bounded),
	    cmocka_unit_test(fields_that_cannot_be_meant_are_named),
	    cmocka_unit_test(pipelined_requests_are_answered_in_order),
	    cmocka_unit_test(half_a_connection_is_answered),
	    cmocka_unit_test(other_protocols_are_ended),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
