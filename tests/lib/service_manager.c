#define _GNU_SOURCE /* memfd_create, seals */
#include "tests/lib/service_manager.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { WAIT_MS = 20000, FIRST_DESCRIPTOR = 3, SAFE_DESCRIPTOR = 300 };

bool service_manager_init(struct service_manager *manager, const struct store_fixture *fixture)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	memset(manager, 0, sizeof *manager);
	snprintf(manager->path, sizeof manager->path, "%s/notify", fixture->directory);
	if (strlen(manager->path) >= sizeof address.sun_path) return false;
	memcpy(address.sun_path, manager->path, strlen(manager->path));
	manager->socket = socket(AF_UNIX, SOCK_DGRAM, 0);
	if (manager->socket < 0 ||
	    bind(manager->socket, (const struct sockaddr *)&address, sizeof address) != 0) {
		fprintf(stderr, "cannot listen at %s: %s\n", manager->path, strerror(errno));
		return false;
	}
	fcntl(manager->socket, F_SETFD, FD_CLOEXEC);
	return true;
}

static void forget(struct service_manager *manager, uint32_t at)
{
	close(manager->kept[at].descriptor);
	manager->kept[at] = manager->kept[--manager->count];
}

void service_manager_deinit(struct service_manager *manager)
{
	while (manager->count)
		forget(manager, 0);
	close(manager->socket);
	unlink(manager->path);
}

static void take_message(struct service_manager *manager, const char *text, int descriptor)
{
	const char *name = strstr(text, "FDNAME=");

	if (strstr(text, "READY=1")) manager->ready++;
	if (strstr(text, "STOPPING=1")) manager->stopping++;
	name = name ? name + strlen("FDNAME=") : "";
	if (strstr(text, "FDSTOREREMOVE=1")) {
		for (uint32_t i = manager->count; i-- > 0;)
			if (strcmp(manager->kept[i].name, name) == 0) forget(manager, i);
	} else if (strstr(text, "FDSTORE=1") && descriptor >= 0 &&
	           manager->count < MANAGER_DESCRIPTORS) {
		snprintf(manager->kept[manager->count].name, sizeof manager->kept[0].name, "%s", name);
		manager->kept[manager->count++].descriptor = descriptor;
		return;
	}
	if (descriptor >= 0) close(descriptor);
}

/* One message, waiting at most `wait_ms`; false when none came. */
static bool listen_once(struct service_manager *manager, int wait_ms)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	char text[1024];
	struct iovec data = {.iov_base = text, .iov_len = sizeof text - 1};
	struct msghdr message = {.msg_iov = &data,
	    .msg_iovlen = 1,
	    .msg_control = control.bytes,
	    .msg_controllen = sizeof control.bytes};
	struct pollfd one = {.fd = manager->socket, .events = POLLIN};
	int descriptor = -1;
	ssize_t length;

	if (poll(&one, 1, wait_ms) != 1) return false;
	length = recvmsg(manager->socket, &message, 0);
	if (length < 0) return false;
	text[length] = '\0';
	if (CMSG_FIRSTHDR(&message)) {
		memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
		fcntl(descriptor, F_SETFD, FD_CLOEXEC);
	}
	take_message(manager, text, descriptor);
	return true;
}

/* In the child: what is kept as 3, 4, …, and what the environment says of them. */
static void pass_descriptors(const struct service_manager *manager)
{
	char names[MANAGER_DESCRIPTORS * 64] = "";
	char number[16];
	size_t length = 0;

	for (uint32_t i = 0; i < manager->count; i++)
		dup2(manager->kept[i].descriptor, SAFE_DESCRIPTOR + (int)i);
	for (int fd = FIRST_DESCRIPTOR; fd < SAFE_DESCRIPTOR; fd++)
		close(fd);
	for (uint32_t i = 0; i < manager->count; i++) {
		dup2(SAFE_DESCRIPTOR + (int)i, FIRST_DESCRIPTOR + (int)i);
		close(SAFE_DESCRIPTOR + (int)i);
		length += (size_t)snprintf(
		    names + length, sizeof names - length, "%s%s", i ? ":" : "", manager->kept[i].name);
	}
	setenv("NOTIFY_SOCKET", manager->path, 1);
	if (!manager->count) return;
	snprintf(number, sizeof number, "%u", manager->count);
	setenv("LISTEN_FDS", number, 1);
	setenv("LISTEN_FDNAMES", names, 1);
	snprintf(number, sizeof number, "%ld", (long)getpid());
	setenv("LISTEN_PID", number, 1);
}

bool service_manager_start(
    struct service_manager *manager, struct store_fixture *fixture, const char *const *arguments)
{
	uint64_t deadline = store_fixture_now() + WAIT_MS;
	char socket_option[160], stats_option[160];
	char *all[STORE_FIXTURE_ARGUMENTS + 1] = {(char *)(uintptr_t) "kvstored", socket_option,
	    stats_option, (char *)(uintptr_t) "--config=", (char *)(uintptr_t) "--memory=64MiB"};
	uint32_t before = manager->ready;
	int count = 5, status, output;

	snprintf(socket_option, sizeof socket_option, "--socket=%s", fixture->socket);
	snprintf(stats_option, sizeof stats_option, "--stats-socket=%s", fixture->stats);
	while (arguments && *arguments && count < STORE_FIXTURE_ARGUMENTS)
		all[count++] = (char *)(uintptr_t)*arguments++;
	fixture->pid = fork();
	if (fixture->pid == 0) {
		output = open(fixture->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
		dup2(output, 1);
		dup2(output, 2);
		pass_descriptors(manager);
		execv(KVSTORED_PATH, all);
		_exit(127);
	}
	while (manager->ready == before && store_fixture_now() < deadline) {
		listen_once(manager, 20);
		if (waitpid(fixture->pid, &status, WNOHANG) != fixture->pid) continue;
		fixture->pid = 0;
		return false;
	}
	return manager->ready != before;
}

bool service_manager_stop(struct service_manager *manager, struct store_fixture *fixture)
{
	uint64_t deadline = store_fixture_now() + WAIT_MS;
	int status = 0;

	store_fixture_signal(fixture, SIGTERM);
	while (store_fixture_now() < deadline) {
		listen_once(manager, 5);
		if (waitpid(fixture->pid, &status, WNOHANG) != fixture->pid) continue;
		while (listen_once(manager, 0)) {
		}
		fixture->pid = 0;
		return WIFEXITED(status) && WEXITSTATUS(status) == 0;
	}
	store_fixture_kill(fixture);
	return false;
}

int service_manager_find(const struct service_manager *manager, const char *name)
{
	for (uint32_t i = 0; i < manager->count; i++)
		if (strncmp(manager->kept[i].name, name, strlen(name)) == 0)
			return manager->kept[i].descriptor;
	return -1;
}

void service_manager_replace(struct service_manager *manager, const char *name, int descriptor)
{
	for (uint32_t i = 0; i < manager->count; i++) {
		if (strncmp(manager->kept[i].name, name, strlen(name)) != 0) continue;
		close(manager->kept[i].descriptor);
		manager->kept[i].descriptor = descriptor;
		return;
	}
	close(descriptor);
}

bool service_manager_damage(struct service_manager *manager, const char *name, size_t at)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
	int kept = service_manager_find(manager, name);
	int made = memfd_create("damaged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct stat file;
	uint8_t *from, *to;

	if (kept < 0 || made < 0 || fstat(kept, &file) != 0 || ftruncate(made, file.st_size) != 0)
		return false;
	from = mmap(NULL, (size_t)file.st_size, PROT_READ, MAP_SHARED, kept, 0);
	to = mmap(NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
	if (from == MAP_FAILED || to == MAP_FAILED) return false;
	memcpy(to, from, (size_t)file.st_size);
	to[at] ^= 0x10;
	munmap(to, (size_t)file.st_size);
	munmap(from, (size_t)file.st_size);
	if (fcntl(made, F_ADD_SEALS, seals) != 0) return false;
	service_manager_replace(manager, name, made);
	return true;
}
