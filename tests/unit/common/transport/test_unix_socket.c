#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/transport/unix_socket.h"

static char directory[] = "/tmp/kv-socket-XXXXXX";
static char path[64];

static int make_directory(void **state)
{
	(void)state;
	if (!mkdtemp(directory)) return -1;
	snprintf(path, sizeof path, "%s/store.sock", directory);
	return 0;
}

static int remove_directory(void **state)
{
	(void)state;
	return rmdir(directory); /* fails when a test left a file */
}

static void test_connect_and_accept(void **state)
{
	struct kv_unix_peer peer = {0};
	int listener = -1, client = -1, server = -1;
	struct stat status;

	(void)state;
	assert_int_equal(kv_unix_listen(path, KV_UNIX_MODE, &listener), KV_OK);
	assert_int_equal(stat(path, &status), 0);
	assert_int_equal(status.st_mode & 0777, 0660);
	assert_int_equal(kv_unix_accept(listener, &server), KV_OK);
	assert_int_equal(server, -1);
	assert_int_equal(kv_unix_connect(path, &client), KV_OK);
	assert_int_equal(kv_unix_accept(listener, &server), KV_OK);
	assert_true(server >= 0);
	assert_true(fcntl(client, F_GETFD) & FD_CLOEXEC);
	assert_true(fcntl(server, F_GETFD) & FD_CLOEXEC);
	assert_true(fcntl(server, F_GETFL) & O_NONBLOCK);
	assert_int_equal(kv_unix_peer(server, &peer), KV_OK);
	assert_int_equal(peer.pid, getpid());
	assert_int_equal(peer.uid, geteuid());
	assert_int_equal(peer.gid, getegid());
	close(client);
	close(server);
	kv_unix_unlisten(listener, path);
	assert_int_equal(access(path, F_OK), -1);
}

static void test_a_live_socket_is_left_alone(void **state)
{
	int first = -1, second = -1, client = -1;

	(void)state;
	assert_int_equal(kv_unix_listen(path, KV_UNIX_MODE, &first), KV_OK);
	assert_int_equal(kv_unix_listen(path, KV_UNIX_MODE, &second), KV_EXISTS);
	assert_int_equal(second, -1);
	assert_non_null(strstr(kv_error_message(), path));
	assert_int_equal(kv_unix_connect(path, &client), KV_OK);
	close(client);
	kv_unix_unlisten(first, path);
}

static void test_a_dead_socket_is_replaced(void **state)
{
	int first = -1, second = -1, client = -1;

	(void)state;
	assert_int_equal(kv_unix_listen(path, KV_UNIX_MODE, &first), KV_OK);
	close(first); /* as a killed process leaves it */
	assert_int_equal(kv_unix_connect(path, &client), KV_DISCONNECTED);
	assert_non_null(strstr(kv_error_message(), path));
	assert_int_equal(kv_unix_listen(path, 0600, &second), KV_OK);
	assert_int_equal(kv_unix_connect(path, &client), KV_OK);
	close(client);
	kv_unix_unlisten(second, path);
}

/* A predecessor that ends late does not take its successor's socket away. */
static void test_unlisten_spares_a_successor(void **state)
{
	int first = -1, second = -1, client = -1;

	(void)state;
	assert_int_equal(kv_unix_listen(path, KV_UNIX_MODE, &first), KV_OK);
	unlink(path);
	assert_int_equal(kv_unix_listen(path, KV_UNIX_MODE, &second), KV_OK);
	kv_unix_unlisten(first, path);
	assert_int_equal(kv_unix_connect(path, &client), KV_OK);
	close(client);
	kv_unix_unlisten(second, path);
}

static void test_what_is_no_socket_is_kept(void **state)
{
	int descriptor = open(path, O_CREAT | O_WRONLY, 0600), listener = -1;

	(void)state;
	assert_true(descriptor >= 0);
	close(descriptor);
	assert_int_equal(kv_unix_listen(path, KV_UNIX_MODE, &listener), KV_EXISTS);
	assert_int_equal(access(path, F_OK), 0);
	unlink(path);
}

enum { SPARE_DESCRIPTORS = 64 };

/* With one descriptor left, a dead socket is still told from a live one, and ours is removed. */
static void test_few_descriptors(void **state)
{
	struct rlimit limit, low;
	int spare[SPARE_DESCRIPTORS];
	int listener = -1, count = 0;

	(void)state;
	assert_int_equal(kv_unix_listen(path, KV_UNIX_MODE, &listener), KV_OK);
	close(listener); /* killed: the socket stays, dead */
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	low = (struct rlimit){SPARE_DESCRIPTORS, limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	while (count < SPARE_DESCRIPTORS && (spare[count] = dup(0)) >= 0)
		count++;
	assert_true(count > 0);
	close(spare[--count]);
	assert_int_equal(kv_unix_listen(path, KV_UNIX_MODE, &listener), KV_OK);
	kv_unix_unlisten(listener, path);
	while (count > 0)
		close(spare[--count]);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(access(path, F_OK), -1);
}

static void test_paths(void **state)
{
	char longest[200];
	int socket = -1;

	(void)state;
	memset(longest, 'x', sizeof longest);
	memcpy(longest, "/tmp/", 5);
	longest[108] = '\0';
	assert_int_equal(kv_unix_listen(longest, KV_UNIX_MODE, &socket), KV_INVALID);
	assert_int_equal(kv_unix_connect(longest, &socket), KV_INVALID);
	longest[107] = '\0';
	assert_int_equal(kv_unix_connect(longest, &socket), KV_DISCONNECTED);
	assert_int_equal(kv_unix_listen("", KV_UNIX_MODE, &socket), KV_INVALID);
	assert_int_equal(kv_unix_connect("", &socket), KV_INVALID);
	assert_int_equal(kv_unix_connect(path, &socket), KV_DISCONNECTED);
	assert_int_equal(kv_unix_listen("/nonexistent-kv/x", KV_UNIX_MODE, &socket), KV_IO);
	assert_non_null(strstr(kv_error_message(), "/nonexistent-kv/x: its directory is not there"));
	assert_int_equal(socket, -1);
}

static void test_full_backlog(void **state)
{
	int clients[KV_UNIX_BACKLOG + 8], count = 0, listener = -1;
	enum kv_status status = KV_OK;

	(void)state;
	assert_int_equal(kv_unix_listen(path, KV_UNIX_MODE, &listener), KV_OK);
	while (count < KV_UNIX_BACKLOG + 8) {
		status = kv_unix_connect(path, &clients[count]);
		if (status != KV_OK) break;
		count++;
	}
	assert_int_equal(status, KV_BUSY);
	while (count > 0)
		close(clients[--count]);
	kv_unix_unlisten(listener, path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_connect_and_accept),
	    cmocka_unit_test(test_a_live_socket_is_left_alone),
	    cmocka_unit_test(test_a_dead_socket_is_replaced),
	    cmocka_unit_test(test_unlisten_spares_a_successor),
	    cmocka_unit_test(test_what_is_no_socket_is_kept),
	    cmocka_unit_test(test_few_descriptors),
	    cmocka_unit_test(test_paths),
	    cmocka_unit_test(test_full_backlog),
	};

	return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
