/* Secret files that are taken, and those that are not; TCP addresses. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/transport/secret.h"
#include "common/transport/tcp_socket.h"

static char path[] = "/tmp/clusterkv-secret-XXXXXX";

static int make_path(void **state)
{
	int descriptor = mkstemp(path);

	(void)state;
	if (descriptor < 0) return -1;
	return close(descriptor);
}

static int remove_path(void **state)
{
	(void)state;
	return unlink(path);
}

static enum kv_status judge(const char *text, mode_t mode)
{
	uint8_t secret[KV_SECRET_BYTES];
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(chmod(path, mode), 0);
	return kv_secret_read(path, secret);
}

static void a_made_one_is_taken(void **state)
{
	char text[KV_SECRET_TEXT + 1], again[KV_SECRET_TEXT], upper[KV_SECRET_TEXT];
	uint8_t secret[KV_SECRET_BYTES];

	(void)state;
	assert_int_equal(kv_secret_make(text), KV_OK);
	assert_int_equal(kv_secret_make(again), KV_OK);
	assert_string_not_equal(text, again);
	assert_int_equal(judge(text, 0600), KV_OK);
	for (size_t i = 0; i < KV_SECRET_TEXT; i++)
		upper[i] = (char)(text[i] >= 'a' && text[i] <= 'f' ? text[i] - 32 : text[i]);
	assert_int_equal(judge(upper, 0400), KV_OK);
	strcat(text, "\n");
	assert_int_equal(judge(text, 0640), KV_OK);
	assert_int_equal(kv_secret_read(path, secret), KV_OK);
	for (unsigned i = 0; i < KV_SECRET_BYTES; i++) {
		char pair[3];

		snprintf(pair, sizeof pair, "%02x", secret[i]);
		assert_memory_equal(pair, text + 2 * i, 2);
	}
	kv_secret_wipe(secret);
	assert_int_equal(secret[0] | secret[31], 0);
}

static void what_others_may_read_is_refused(void **state)
{
	static const mode_t modes[] = {0644, 0604, 0602, 0660, 0620, 0601};
	char text[KV_SECRET_TEXT];

	(void)state;
	assert_int_equal(kv_secret_make(text), KV_OK);
	for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
		assert_int_equal(judge(text, modes[i]), KV_REFUSED);
		assert_null(strstr(kv_error_message(), text));
	}
}

static void what_is_no_secret_is_refused(void **state)
{
	static const char digits[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
	char text[128];
	uint8_t secret[KV_SECRET_BYTES];

	(void)state;
	assert_int_equal(judge(digits, 0600), KV_OK);
	assert_int_equal(judge("", 0600), KV_INVALID);
	assert_int_equal(judge("a password that is easy to remember", 0600), KV_INVALID);
	assert_int_equal(judge(digits + 2, 0600), KV_INVALID);
	snprintf(text, sizeof text, "%s00", digits);
	assert_int_equal(judge(text, 0600), KV_INVALID);
	snprintf(text, sizeof text, "%.63sg", digits);
	assert_int_equal(judge(text, 0600), KV_INVALID);
	memset(text, '0', 64);
	text[64] = '\0';
	assert_int_equal(judge(text, 0600), KV_INVALID);
	assert_int_equal(kv_secret_read("/nonexistent/secret", secret), KV_NOT_FOUND);
	assert_int_equal(kv_secret_read("/dev/null", secret), KV_REFUSED);
}

static void addresses(void **state)
{
	static const char *const good[] = {
	    "127.0.0.1:1", "[::1]:65535", "store.example:4242", "[fe80::1%eth0]:9"};
	static const char *const bad[] = {"", ":", "host", "host:", ":80", "host:0", "host:65536",
	    "host:12a", "::1:80", "[::1]", "[]:80", "host:-1", "[::1:80", "host:000080"};

	(void)state;
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
		assert_int_equal(kv_tcp_address_check(good[i], 0), KV_OK);
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		assert_int_equal(kv_tcp_address_check(bad[i], 0), KV_INVALID);
	assert_int_equal(kv_tcp_address_check("127.0.0.1:0", 1), KV_OK);
}

static void a_connection_on_loopback(void **state)
{
	int listener = -1, ours = -1, theirs = -1, again = -1;
	struct addrinfo *found = NULL;
	uint32_t count = 0;
	char where[KV_TCP_TEXT], from[KV_TCP_TEXT];
	const struct timespec pause = {.tv_nsec = 1000000};

	(void)state;
	assert_int_equal(kv_tcp_listen("127.0.0.1:0", 8, &listener, where), KV_OK);
	assert_int_equal(kv_tcp_accept(listener, 3000, &theirs, from), KV_OK);
	assert_int_equal(theirs, -1);
	assert_int_equal(kv_tcp_listen(where, 8, &again, from), KV_EXISTS);
	assert_int_equal(kv_tcp_look_up(where, &found, &count), KV_OK);
	assert_int_equal(count, 1);
	assert_int_equal(kv_tcp_connect(where, found, 0, 3000, &ours), KV_OK);
	kv_tcp_forget(found);
	for (int tries = 0; theirs < 0 && tries < 1000; tries++) {
		assert_int_equal(kv_tcp_accept(listener, 3000, &theirs, from), KV_OK);
		if (theirs < 0) nanosleep(&pause, NULL);
	}
	assert_true(theirs >= 0);
	assert_int_equal(strncmp(from, "127.0.0.1:", 10), 0);
	assert_int_equal(kv_tcp_connected(ours, where), KV_OK);
	close(ours);
	close(theirs);
	close(listener);
	/* Which needs no name server to be no host. */
	assert_int_equal(kv_tcp_listen("[fe80::1%nowhere]:0", 8, &listener, where), KV_USAGE);
	assert_int_equal(kv_tcp_listen_check("[fe80::1%nowhere]:0"), KV_USAGE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_made_one_is_taken),
	    cmocka_unit_test(what_others_may_read_is_refused),
	    cmocka_unit_test(what_is_no_secret_is_refused),
	    cmocka_unit_test(addresses),
	    cmocka_unit_test(a_connection_on_loopback),
	};

	return cmocka_run_group_tests(tests, make_path, remove_path);
}
