#include "common/runtime/sd_notify.h"

#include "common/base/clock.h"
#include "common/base/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE_SIZE = 512, FIRST_LISTEN_FD = 3, LISTEN_FD_LIMIT = 1024, RETRY_MS = 2 };

struct kv_sd_notify {
	struct kv_allocator *allocator;
	int socket; /* -1 without a manager */
	struct sockaddr_un address;
	socklen_t address_length;
	uint64_t watchdog_ms;
};

static enum kv_status read_address(const char *path, struct kv_sd_notify *notify)
{
	size_t length = strlen(path);

	if ((path[0] != '/' && path[0] != '@') || length < 2 ||
	    length >= sizeof notify->address.sun_path)
		return kv_fail(KV_INVALID,
		    "NOTIFY_SOCKET '%s' is neither an absolute path nor an abstract name (@…) of less than "
		    "%zu bytes",
		    path, sizeof notify->address.sun_path);
	notify->address.sun_family = AF_UNIX;
	memcpy(notify->address.sun_path, path, length);
	/* An abstract name begins with a NUL and ends with its length. */
	if (path[0] == '@') notify->address.sun_path[0] = '\0';
	notify->address_length =
	    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + (path[0] == '/' ? 1 : 0));
	return KV_OK;
}

/* Is the variable absent, or this process's id? */
static enum kv_status meant_for_us(const char *variable, bool *ours)
{
	const char *text = getenv(variable);
	uint64_t pid = 0;

	if (text && kv_parse_u64(text, &pid) != KV_OK)
		return kv_fail_prefix(KV_INVALID, "%s", variable);
	*ours = !text || pid == (uint64_t)getpid();
	return KV_OK;
}

static enum kv_status read_watchdog(uint64_t *milliseconds)
{
	const char *text = getenv("WATCHDOG_USEC");
	uint64_t microseconds = 0;
	bool ours = false;

	KV_TRY(meant_for_us("WATCHDOG_PID", &ours));
	if (text && kv_parse_u64(text, &microseconds) != KV_OK)
		return kv_fail_prefix(KV_INVALID, "WATCHDOG_USEC");
	*milliseconds = ours ? microseconds / 1000 : 0;
	return KV_OK;
}

enum kv_status kv_sd_open(struct kv_allocator *allocator, struct kv_sd_notify **notify)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct kv_sd_notify *made = kv_alloc_zero(allocator, sizeof *made);
	enum kv_status status;

	if (!made) return KV_NO_MEMORY;
	made->allocator = allocator;
	made->socket = -1;
	if (path && path[0]) {
		KV_TRY_GOTO(status, read_address(path, made), free_object);
		KV_TRY_GOTO(status, read_watchdog(&made->watchdog_ms), free_object);
		made->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (made->socket < 0) {
			status = kv_fail(KV_IO, "cannot make a socket for NOTIFY_SOCKET: %s", strerror(errno));
			goto free_object;
		}
	}
	*notify = made;
	return KV_OK;

free_object:
	kv_free(allocator, made);
	return status;
}

void kv_sd_close(struct kv_sd_notify *notify)
{
	if (!notify) return;
	if (notify->socket >= 0) close(notify->socket);
	kv_free(notify->allocator, notify);
}

bool kv_sd_enabled(const struct kv_sd_notify *notify)
{
	return notify && notify->socket >= 0;
}

/* Send a message, with a descriptor unless `fd` is -1. */
static int send_message(struct kv_sd_notify *notify, const char *message, int fd)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec data = {.iov_base = (void *)(uintptr_t)message, .iov_len = strlen(message)};
	struct msghdr header = {.msg_name = &notify->address,
	    .msg_namelen = notify->address_length,
	    .msg_iov = &data,
	    .msg_iovlen = 1};

	if (fd >= 0) {
		struct cmsghdr *part;

		memset(&control, 0, sizeof control);
		header.msg_control = control.bytes;
		header.msg_controllen = sizeof control.bytes;
		part = CMSG_FIRSTHDR(&header);
		part->cmsg_level = SOL_SOCKET;
		part->cmsg_type = SCM_RIGHTS;
		part->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(part), &fd, sizeof fd);
	}
	return sendmsg(notify->socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -1 : 0;
}

static void tell(struct kv_sd_notify *notify, const char *message)
{
	/* A manager that does not listen misses a message; the service goes on all the same. */
	if (kv_sd_enabled(notify)) (void)send_message(notify, message, -1);
}

void kv_sd_ready(struct kv_sd_notify *notify)
{
	tell(notify, "READY=1");
}

void kv_sd_stopping(struct kv_sd_notify *notify)
{
	tell(notify, "STOPPING=1");
}

void kv_sd_reloading(struct kv_sd_notify *notify)
{
	char message[MESSAGE_SIZE];

	snprintf(message, sizeof message, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, kv_now_ns() / 1000);
	tell(notify, message);
}

void kv_sd_watchdog(struct kv_sd_notify *notify)
{
	tell(notify, "WATCHDOG=1");
}

void kv_sd_extend_timeout(struct kv_sd_notify *notify, uint64_t milliseconds)
{
	char message[MESSAGE_SIZE];

	snprintf(message, sizeof message, "EXTEND_TIMEOUT_USEC=%" PRIu64, milliseconds * 1000);
	tell(notify, message);
}

void kv_sd_status(struct kv_sd_notify *notify, const char *format, ...)
{
	char message[MESSAGE_SIZE] = "STATUS=";
	va_list arguments;

	if (!kv_sd_enabled(notify)) return;
	va_start(arguments, format);
	vsnprintf(message + 7, sizeof message - 7, format, arguments);
	va_end(arguments);
	/* A newline would begin another assignment. */
	for (char *c = message; *c; c++) {
		if (*c == '\n') *c = ' ';
	}
	tell(notify, message);
}

uint64_t kv_sd_watchdog_ms(const struct kv_sd_notify *notify)
{
	return notify ? notify->watchdog_ms : 0;
}

static enum kv_status send_fd_message(
    struct kv_sd_notify *notify, const char *head, const char *name, int fd, uint64_t deadline_ms)
{
	static const char allowed[] =
	    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
	const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000L};
	char message[MESSAGE_SIZE];
	int sent;

	if (!kv_sd_enabled(notify))
		return kv_fail(
		    KV_UNSUPPORTED, "no service manager keeps descriptors (NOTIFY_SOCKET is unset)");
	if (name[0] == '\0' || name[strspn(name, allowed)] || strlen(name) > 255)
		return kv_fail(
		    KV_INVALID, "'%s' cannot name a stored descriptor; use letters, digits, - and _", name);
	snprintf(message, sizeof message, "%s=1\nFDNAME=%s", head, name);
	/* The queue holds few messages, and there may be a descriptor for each of many regions. */
	while ((sent = send_message(notify, message, fd)) < 0 &&
	       (errno == EAGAIN || errno == ENOBUFS) && kv_now_ms() < deadline_ms)
		nanosleep(&pause, NULL);
	if (sent < 0)
		return kv_fail(
		    KV_IO, "the service manager did not take descriptor %s: %s", name, strerror(errno));
	return KV_OK;
}

enum kv_status kv_sd_store_fd(
    struct kv_sd_notify *notify, const char *name, int fd, uint64_t deadline_ms)
{
	if (fd < 0) return kv_fail(KV_INVALID, "%d is not a descriptor", fd);
	return send_fd_message(notify, "FDSTORE", name, fd, deadline_ms);
}

enum kv_status kv_sd_remove_fd(struct kv_sd_notify *notify, const char *name, uint64_t deadline_ms)
{
	return send_fd_message(notify, "FDSTOREREMOVE", name, -1, deadline_ms);
}

/* How many descriptors are passed to this process; 0 where none or too many are. */
static uint64_t passed_fds(void)
{
	const char *text = getenv("LISTEN_FDS");
	uint64_t count = 0;
	bool ours = false;

	if (!text || meant_for_us("LISTEN_PID", &ours) != KV_OK || !ours ||
	    kv_parse_u64(text, &count) != KV_OK || count > LISTEN_FD_LIMIT)
		return 0;
	return count;
}

uint64_t kv_sd_passed_bytes(void)
{
	uint64_t bytes = 0;
	struct stat status;

	for (uint64_t i = 0, count = passed_fds(); i < count; i++)
		if (fstat(FIRST_LISTEN_FD + (int)i, &status) == 0 && S_ISREG(status.st_mode))
			bytes += (uint64_t)status.st_blocks * 512;
	return bytes;
}

unsigned kv_sd_take_fds(kv_sd_take_fd take, void *context)
{
	const char *names = getenv("LISTEN_FDNAMES");
	uint64_t count = passed_fds();
	char name[256];

	if (count == 0) return 0;
	for (uint64_t i = 0; i < count; i++) {
		int fd = FIRST_LISTEN_FD + (int)i;
		size_t length = names ? strcspn(names, ":") : 0;

		snprintf(name, sizeof name, "%.*s", (int)length, length ? names : "");
		if (names) names += length + (names[length] == ':');
		fcntl(fd, F_SETFD, FD_CLOEXEC);
		take(context, length ? name : "unknown", fd);
	}
	/* They are taken: neither a second call nor a child may take them again. */
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
	unsetenv("LISTEN_PID");
	return (unsigned)count;
}
