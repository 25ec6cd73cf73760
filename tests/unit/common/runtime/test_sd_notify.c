#include "common/runtime/sd_notify.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/base/clock.h"

static int manager = -1;
static char received[1024];
static int received_fd;

/* The manager's end, bound to an address that is `length` bytes long. */
static void listen_at(const char *path, size_t length)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	assert_true(manager >= 0);
	memcpy(address.sun_path, path, length);
	assert_int_equal(bind(manager, (const struct sockaddr *)&address,
	                     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)),
	    0);
}

static const char *receive(void)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec data = {received, sizeof received - 1};
	struct msghdr header = {.msg_iov = &data,
	    .msg_iovlen = 1,
	    .msg_control = control.bytes,
	    .msg_controllen = sizeof control.bytes};
	ssize_t length = recvmsg(manager, &header, 0);

	received_fd = -1;
	if (length < 0) return "(nothing)";
	received[length] = '\0';
	if (CMSG_FIRSTHDR(&header))
		memcpy(&received_fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof received_fd);
	return received;
}

static int teardown(void **state)
{
	(void)state;
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDNAMES");
	if (manager >= 0) close(manager);
	manager = -1;
	return 0;
}

static struct kv_sd_notify *open_notify(void)
{
	struct kv_sd_notify *notify = NULL;

	assert_int_equal(kv_sd_open(kv_heap(), &notify), KV_OK);
	return notify;
}

static void without_a_manager_nothing_happens(void **state)
{
	struct kv_sd_notify *notify = open_notify();

	(void)state;
	assert_false(kv_sd_enabled(notify));
	kv_sd_ready(notify);
	kv_sd_status(notify, "x");
	assert_int_equal(kv_sd_watchdog_ms(notify), 0);
	assert_int_equal(kv_sd_store_fd(notify, "arena", 0, kv_now_ms()), KV_UNSUPPORTED);
	kv_sd_close(notify);
	kv_sd_close(NULL);
	kv_sd_ready(NULL);
	assert_false(kv_sd_enabled(NULL));
	assert_int_equal(kv_sd_watchdog_ms(NULL), 0);
}

static void messages_are_systemd_s(void **state)
{
	char path[64] = "/tmp/kv-test-notify-XXXXXX";
	char socket_path[80];
	struct kv_sd_notify *notify;

	(void)state;
	assert_non_null(mkdtemp(path));
	snprintf(socket_path, sizeof socket_path, "%s/s", path);
	listen_at(socket_path, strlen(socket_path) + 1);
	setenv("NOTIFY_SOCKET", socket_path, 1);
	setenv("WATCHDOG_USEC", "10000000", 1);
	notify = open_notify();
	assert_true(kv_sd_enabled(notify));
	assert_int_equal(kv_sd_watchdog_ms(notify), 10000);
	kv_sd_ready(notify);
	assert_string_equal(receive(), "READY=1");
	kv_sd_status(notify, "%d workers\nREADY=1", 3);
	assert_string_equal(receive(), "STATUS=3 workers READY=1");
	kv_sd_watchdog(notify);
	assert_string_equal(receive(), "WATCHDOG=1");
	kv_sd_extend_timeout(notify, 1500);
	assert_string_equal(receive(), "EXTEND_TIMEOUT_USEC=1500000");
	kv_sd_reloading(notify);
	assert_int_equal(strncmp(receive(), "RELOADING=1\nMONOTONIC_USEC=", 27), 0);
	kv_sd_stopping(notify);
	assert_string_equal(receive(), "STOPPING=1");
	assert_string_equal(receive(), "(nothing)");
	unlink(socket_path);
	rmdir(path);
	/* The manager is gone: nothing breaks. */
	kv_sd_watchdog(notify);
	kv_sd_close(notify);
}

static void abstract_sockets_and_descriptors_work(void **state)
{
	char name[64];
	struct kv_sd_notify *notify;
	int ends[2];
	char byte = 0;
	size_t length = (size_t)snprintf(name, sizeof name, "@kv-test-notify-%d", (int)getpid());

	(void)state;
	setenv("NOTIFY_SOCKET", name, 1);
	name[0] = '\0';
	listen_at(name, length);
	notify = open_notify();
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(kv_sd_store_fd(notify, "arena-0", ends[0], kv_now_ms()), KV_OK);
	assert_string_equal(receive(), "FDSTORE=1\nFDNAME=arena-0");
	assert_true(received_fd >= 0);
	assert_int_equal(write(ends[1], "x", 1), 1);
	assert_int_equal(read(received_fd, &byte, 1), 1);
	assert_int_equal(byte, 'x');
	close(received_fd);
	assert_int_equal(kv_sd_remove_fd(notify, "arena-0", kv_now_ms()), KV_OK);
	assert_string_equal(receive(), "FDSTOREREMOVE=1\nFDNAME=arena-0");
	assert_int_equal(kv_sd_store_fd(notify, "a:b", ends[0], kv_now_ms()), KV_INVALID);
	assert_int_equal(kv_sd_store_fd(notify, "", ends[0], kv_now_ms()), KV_INVALID);
	assert_int_equal(kv_sd_store_fd(notify, "a", -1, kv_now_ms()), KV_INVALID);
	assert_string_equal(receive(), "(nothing)");
	close(ends[0]);
	close(ends[1]);
	kv_sd_close(notify);
}

/* A manager that takes nothing: a whole row of removals waits once, not each of them. */
static void a_row_has_one_deadline(void **state)
{
	char name[64];
	struct kv_sd_notify *notify;
	const uint64_t start = kv_now_ms();
	uint64_t deadline;
	unsigned refused = 0;
	size_t length = (size_t)snprintf(name, sizeof name, "@kv-test-notify-%d", (int)getpid());

	(void)state;
	setenv("NOTIFY_SOCKET", name, 1);
	name[0] = '\0';
	listen_at(name, length);
	notify = open_notify();
	deadline = start + 300;
	for (int i = 0; i < 3000; i++)
		refused += kv_sd_remove_fd(notify, "arena-0", deadline) == KV_IO;
	assert_true(refused > 1000);
	assert_true(kv_now_ms() >= deadline && kv_now_ms() < start + 5000);
	kv_sd_close(notify);
}

static void malformed_variables_are_refused(void **state)
{
	static const char *const wrong[] = {"relative", "/", "@", "vsock:2:3"};
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	struct kv_sd_notify *notify = NULL;
	char long_path[300];

	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		setenv("NOTIFY_SOCKET", wrong[i], 1);
		assert_int_equal(kv_sd_open(allocator, &notify), KV_INVALID);
	}
	memset(long_path, '/', sizeof long_path - 1);
	long_path[sizeof long_path - 1] = '\0';
	setenv("NOTIFY_SOCKET", long_path, 1);
	assert_int_equal(kv_sd_open(allocator, &notify), KV_INVALID);
	setenv("NOTIFY_SOCKET", "/x", 1);
	setenv("WATCHDOG_USEC", "soon", 1);
	assert_int_equal(kv_sd_open(allocator, &notify), KV_INVALID);
	setenv("WATCHDOG_USEC", "5000000", 1);
	setenv("WATCHDOG_PID", "1", 1);
	kv_allocator_fail_at(allocator, 1);
	assert_int_equal(kv_sd_open(allocator, &notify), KV_NO_MEMORY);
	assert_null(notify);
	/* A watchdog of another process is not ours. */
	assert_int_equal(kv_sd_open(allocator, &notify), KV_OK);
	assert_int_equal(kv_sd_watchdog_ms(notify), 0);
	kv_sd_close(notify);
	kv_allocator_destroy(allocator);
}

static void note(void *context, const char *name, int fd)
{
	char *notes = context;

	sprintf(notes + strlen(notes), "%s=%d ", name, fd);
}

/* Two pages at descriptor 3, which whatever was there gets back. */
static void passed_memory_is_counted(void **state)
{
	FILE *file = tmpfile();
	int saved = dup(3), flags = fcntl(3, F_GETFD);
	char bytes[8192] = {1}, pid[32];

	(void)state;
	assert_non_null(file);
	assert_int_equal(write(fileno(file), bytes, sizeof bytes), sizeof bytes);
	assert_int_equal(fsync(fileno(file)), 0);
	if (fileno(file) != 3) assert_int_equal(dup2(fileno(file), 3), 3);
	snprintf(pid, sizeof pid, "%d", (int)getpid());
	setenv("LISTEN_FDS", "1", 1);
	setenv("LISTEN_PID", "1", 1);
	assert_int_equal(kv_sd_passed_bytes(), 0);
	setenv("LISTEN_PID", pid, 1);
	assert_true(kv_sd_passed_bytes() >= sizeof bytes);
	assert_true(kv_sd_passed_bytes() < 64 * sizeof bytes);
	unsetenv("LISTEN_FDS");
	assert_int_equal(kv_sd_passed_bytes(), 0);
	unsetenv("LISTEN_PID");
	if (fileno(file) != 3) {
		if (saved >= 0) {
			dup2(saved, 3);
			fcntl(3, F_SETFD, flags);
		} else {
			close(3);
		}
	}
	if (saved >= 0) close(saved);
	fclose(file);
}

static void descriptors_are_taken_once(void **state)
{
	char notes[256] = "";
	char pid[32];
	int flags[2] = {fcntl(3, F_GETFD), fcntl(4, F_GETFD)};

	(void)state;
	snprintf(pid, sizeof pid, "%d", (int)getpid());
	setenv("LISTEN_FDS", "2", 1);
	setenv("LISTEN_FDNAMES", "control:", 1);
	setenv("LISTEN_PID", "1", 1);
	assert_int_equal(kv_sd_take_fds(note, notes), 0);
	setenv("LISTEN_PID", pid, 1);
	assert_int_equal(kv_sd_take_fds(note, notes), 2);
	assert_string_equal(notes, "control=3 unknown=4 ");
	assert_int_equal(kv_sd_take_fds(note, notes), 0);
	setenv("LISTEN_FDS", "99999999", 1);
	assert_int_equal(kv_sd_take_fds(note, notes), 0);
	for (int i = 0; i < 2; i++) {
		if (flags[i] >= 0) fcntl(3 + i, F_SETFD, flags[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_teardown(without_a_manager_nothing_happens, teardown),
	    cmocka_unit_test_teardown(messages_are_systemd_s, teardown),
	    cmocka_unit_test_teardown(abstract_sockets_and_descriptors_work, teardown),
	    cmocka_unit_test_teardown(a_row_has_one_deadline, teardown),
	    cmocka_unit_test_teardown(malformed_variables_are_refused, teardown),
	    cmocka_unit_test_teardown(passed_memory_is_counted, teardown),
	    cmocka_unit_test_teardown(descriptors_are_taken_once, teardown),
	};

	teardown(NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
