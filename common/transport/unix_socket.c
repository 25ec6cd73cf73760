#define _GNU_SOURCE /* accept4, struct ucred */
#include "common/transport/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { LOCK_TRIES = 100, LOCK_PAUSE_NS = 10 * 1000 * 1000 };

enum kv_status kv_unix_path_check(const char *path)
{
	size_t length = strlen(path), most = sizeof((struct sockaddr_un){0}).sun_path - 1;

	if (length == 0) return kv_fail(KV_INVALID, "a socket's path is empty: give one");
	if (length <= most) return KV_OK;
	return kv_fail(KV_INVALID,
	    "socket path \"%.128s\" has %zu bytes, 1 to %zu are possible: choose a shorter one", path,
	    length, most);
}

static enum kv_status fill_address(const char *path, struct sockaddr_un *address)
{
	KV_TRY(kv_unix_path_check(path));
	memset(address, 0, sizeof *address);
	address->sun_family = AF_UNIX;
	memcpy(address->sun_path, path, strlen(path) + 1);
	return KV_OK;
}

static int open_socket(void)
{
	return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Hold the socket's directory locked, so that two processes do not both find the old socket dead
 * and remove each other's new one. Only a courtesy: after a second, or where the directory cannot
 * be opened, go on without it. -1 is then returned. */
static int lock_directory(const char *path)
{
	char directory[sizeof((struct sockaddr_un){0}).sun_path + 2];
	const struct timespec pause = {.tv_nsec = LOCK_PAUSE_NS};
	const char *slash = strrchr(path, '/');
	int descriptor, i;

	if (slash)
		snprintf(directory, sizeof directory, "%.*s", (int)(slash - path + 1), path);
	else
		snprintf(directory, sizeof directory, ".");
	descriptor = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (descriptor < 0) return -1;
	for (i = 0; i < LOCK_TRIES; i++) {
		if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) return descriptor;
		if (errno != EWOULDBLOCK && errno != EINTR) break;
		nanosleep(&pause, NULL);
	}
	close(descriptor);
	return -1;
}

static void unlock_directory(int descriptor)
{
	if (descriptor >= 0) close(descriptor);
}

/* True when there is a socket at the path and nobody listens on it. The probe is a socket without
 * an address, and still is one when this is true; opening one here could fail where descriptors
 * are scarce, and a dead socket would pass for a live one. */
static bool is_dead(int probe, const struct sockaddr_un *address)
{
	struct stat status;

	if (lstat(address->sun_path, &status) < 0 || !S_ISSOCK(status.st_mode)) return false;
	return connect(probe, (const struct sockaddr *)address, sizeof *address) < 0 &&
	       errno == ECONNREFUSED;
}

static enum kv_status bind_socket(int descriptor, const struct sockaddr_un *address)
{
	const struct sockaddr *generic = (const struct sockaddr *)address;

	if (bind(descriptor, generic, sizeof *address) == 0) return KV_OK;
	if (errno == EADDRINUSE) {
		if (!is_dead(descriptor, address)) {
			return kv_fail(KV_EXISTS,
			    "%s exists and is in use (or is no socket): stop what listens there, or choose "
			    "another path",
			    address->sun_path);
		}
		if (unlink(address->sun_path) == 0 && bind(descriptor, generic, sizeof *address) == 0)
			return KV_OK;
	}
	if (errno == ENOENT)
		return kv_fail(KV_IO,
		    "cannot make the socket %s: its directory is not there: make it, or choose another "
		    "path",
		    address->sun_path);
	return kv_fail(errno == EACCES || errno == EPERM ? KV_REFUSED : KV_IO,
	    "cannot make the socket %s: %s", address->sun_path, strerror(errno));
}

enum kv_status kv_unix_listen_check(const char *path)
{
	struct sockaddr_un address, folder;
	struct stat facts;
	char *slash;

	KV_TRY(fill_address(path, &address));
	folder = address;
	slash = strrchr(folder.sun_path, '/');
	if (slash)
		slash[slash == folder.sun_path] = '\0';
	else
		strcpy(folder.sun_path, ".");
	if (stat(folder.sun_path, &facts) != 0 || !S_ISDIR(facts.st_mode))
		return kv_fail(KV_IO,
		    "the socket %s cannot be made: its directory is not there: make it, or choose another "
		    "path",
		    path);
	if (faccessat(AT_FDCWD, folder.sun_path, W_OK | X_OK, AT_EACCESS) != 0)
		return kv_fail(
		    KV_REFUSED, "the socket %s cannot be made: its directory: %s", path, strerror(errno));
	if (lstat(address.sun_path, &facts) == 0 && !S_ISSOCK(facts.st_mode))
		return kv_fail(KV_EXISTS, "%s exists and is no socket: choose another path", path);
	return KV_OK;
}

enum kv_status kv_unix_listen(const char *path, uint32_t mode, int *socket)
{
	struct sockaddr_un address;
	enum kv_status status;
	int descriptor, lock;

	KV_TRY(fill_address(path, &address));
	descriptor = open_socket();
	if (descriptor < 0) return kv_fail(KV_IO, "cannot open a socket: %s", strerror(errno));
	lock = lock_directory(path);
	KV_TRY_GOTO(status, bind_socket(descriptor, &address), close_socket);
	/* Nobody connects before listen, so the mode is right for the first one who does. */
	if (chmod(path, (mode_t)mode) < 0 || listen(descriptor, KV_UNIX_BACKLOG) < 0) {
		status = kv_fail(KV_IO, "cannot listen at %s: %s", path, strerror(errno));
		unlink(path);
		goto close_socket;
	}
	unlock_directory(lock);
	*socket = descriptor;
	return KV_OK;

close_socket:
	unlock_directory(lock);
	close(descriptor);
	return status;
}

void kv_unix_unlisten(int socket, const char *path)
{
	struct sockaddr_un address;
	int lock, probe;

	/* Once closed, our own socket is a dead one; a successor's that took its place is not. The
	 * probe comes before the lock, which is a courtesy, for the descriptor that has just become
	 * free. */
	close(socket);
	if (fill_address(path, &address) != KV_OK) return;
	probe = open_socket();
	lock = lock_directory(path);
	if (probe >= 0 && is_dead(probe, &address)) unlink(path);
	unlock_directory(lock);
	if (probe >= 0) close(probe);
}

enum kv_status kv_unix_accept(int listener, int *socket)
{
	int descriptor = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (descriptor >= 0) {
		*socket = descriptor;
		return KV_OK;
	}
	switch (errno) {
	case EAGAIN:
	case ECONNABORTED:
	case EINTR:
		*socket = -1;
		return KV_OK;
	case EMFILE:
	case ENFILE:
	case ENOBUFS:
	case ENOMEM:
		return kv_fail(KV_LIMIT, "cannot accept a connection: %s", strerror(errno));
	default:
		return kv_fail(KV_IO, "cannot accept a connection: %s", strerror(errno));
	}
}

enum kv_status kv_unix_connect(const char *path, int *socket)
{
	struct sockaddr_un address;
	struct stat found;
	int descriptor, error;

	KV_TRY(fill_address(path, &address));
	descriptor = open_socket();
	if (descriptor < 0) return kv_fail(KV_IO, "cannot open a socket: %s", strerror(errno));
	if (connect(descriptor, (const struct sockaddr *)&address, sizeof address) == 0) {
		*socket = descriptor;
		return KV_OK;
	}
	error = errno;
	close(descriptor);
	switch (error) {
	case ENOENT:
		return kv_fail(KV_DISCONNECTED, "there is no socket %s: is the store running?", path);
	case ECONNREFUSED:
		if (stat(path, &found) == 0 && !S_ISSOCK(found.st_mode))
			return kv_fail(KV_INVALID, "%s is no socket", path);
		return kv_fail(KV_DISCONNECTED, "nobody listens at %s: start the store", path);
	case EAGAIN:
	case EINTR:
		return kv_fail(KV_BUSY, "too many wait to be accepted at %s: try again", path);
	case EACCES:
	case EPERM:
		return kv_fail(KV_REFUSED, "no permission to connect to %s: join its group", path);
	default:
		return kv_fail(KV_IO, "cannot connect to %s: %s", path, strerror(error));
	}
}

enum kv_status kv_unix_peer(int socket, struct kv_unix_peer *peer)
{
	struct ucred credentials;
	socklen_t length = sizeof credentials;

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) < 0)
		return kv_fail(KV_IO, "cannot learn who connected: %s", strerror(errno));
	peer->pid = credentials.pid;
	peer->uid = credentials.uid;
	peer->gid = credentials.gid;
	return KV_OK;
}
