#include "common/transport/line.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/transport/line_message.h"
#include "common/transport/transport_map.h"

#define MEMORY_BYTES ((uint64_t)KV_LINE_SLOTS * KV_LINE_SLOT_BYTES)
#define HEAD_BYTES   offsetof(struct kv_line_message, text)

extern char **environ;

struct kv_line {
	struct kv_allocator *allocator;
	pid_t pid;
	int socket;
	uint8_t *memory;
	int descriptor; /* of the memory */
};

/* Processes that were told to end. They are this process's, not some line's, which is gone. */
enum { MOST_ENDING = 64 };
static struct {
	pthread_mutex_t lock;
	pid_t pids[MOST_ENDING];
	unsigned count;
} ending = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The lock is held. */
static void reap(void)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < ending.count; i++)
		if (waitpid(ending.pids[i], NULL, WNOHANG) == 0) ending.pids[kept++] = ending.pids[i];
	ending.count = kept;
}

void kv_line_reap(void)
{
	pthread_mutex_lock(&ending.lock);
	reap();
	pthread_mutex_unlock(&ending.lock);
}

static void end_process(pid_t pid)
{
	kill(pid, SIGKILL);
	pthread_mutex_lock(&ending.lock);
	reap();
	/* More of them than can be remembered are waited for. */
	if (ending.count == MOST_ENDING)
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
		}
	else
		ending.pids[ending.count++] = pid;
	pthread_mutex_unlock(&ending.lock);
}

/* kvline lies beside the program that runs, or where an installation has it. */
static enum kv_status find_program(char *path, size_t size)
{
	static const char *const places[] = {"kvline", "../libexec/clusterkv/kvline"};
	char own[400], *slash;
	ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);

	if (length < 0) return kv_fail(KV_IO, "cannot tell where this program is");
	own[length] = '\0';
	slash = strrchr(own, '/');
	if (!slash) return kv_fail(KV_IO, "cannot tell where this program is");
	slash[1] = '\0';
	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
		snprintf(path, size, "%s%s", own, places[i]);
		if (access(path, X_OK) == 0) return KV_OK;
	}
	return kv_fail(KV_UNSUPPORTED,
	    "UCX between hosts takes the program kvline, which is not in %s: install it there, or use "
	    "--transport=stream",
	    own);
}

/* Without what the user's environment says to UCX: the trusted network alone decides. */
static char **make_environment(struct kv_allocator *allocator)
{
	size_t count = 0, kept = 0;
	char **made;

	while (environ[count])
		count++;
	made = kv_alloc_array(allocator, count + 1, sizeof *made);
	for (size_t i = 0; made && i < count; i++)
		if (strncmp(environ[i], "UCX_", 4) != 0) made[kept++] = environ[i];
	if (made) made[kept] = NULL;
	return made;
}

static enum kv_status spawn_with(struct kv_line *line, char *const *arguments,
    char *const *environment, const int ends[2], posix_spawn_file_actions_t *files,
    posix_spawnattr_t *attributes)
{
	sigset_t none, all;
	int failed;

	sigemptyset(&none);
	sigfillset(&all);
	/* A group of its own: what a terminal sends to the program is not for it. */
	posix_spawnattr_setflags(
	    attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
	posix_spawnattr_setsigmask(attributes, &none);
	posix_spawnattr_setsigdefault(attributes, &all);
	posix_spawnattr_setpgroup(attributes, 0);
	/* Both lie above, so neither takes the other's place. */
	failed = posix_spawn_file_actions_adddup2(files, ends[1], KV_LINE_SOCKET);
	if (!failed) failed = posix_spawn_file_actions_adddup2(files, line->descriptor, KV_LINE_MEMORY);
	if (!failed)
		failed = posix_spawn(&line->pid, arguments[0], files, attributes, arguments, environment);
	if (!failed) return KV_OK;
	line->pid = 0;
	return kv_fail(KV_IO, "cannot start %s: %s", arguments[0], strerror(failed));
}

static enum kv_status start_process(struct kv_line *line, const struct kv_trusted_network *network,
    enum kv_line_end end, const int ends[2])
{
	char path[480], device[sizeof network->device], address[sizeof network->address + 1];
	char *const arguments[] = {path,
	    end == KV_LINE_SENDS ? (char *)(uintptr_t) "sends" : (char *)(uintptr_t) "receives", device,
	    address, NULL};
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	char **environment;
	enum kv_status status;

	KV_TRY(find_program(path, sizeof path));
	snprintf(device, sizeof device, "%s", network->device);
	snprintf(address, sizeof address, "%s", network->rdma ? "rdma" : network->address);
	environment = make_environment(line->allocator);
	if (!environment) return KV_NO_MEMORY;
	status = KV_NO_MEMORY;
	if (posix_spawn_file_actions_init(&files) != 0) goto free_environment;
	if (posix_spawnattr_init(&attributes) == 0) {
		status = spawn_with(line, arguments, environment, ends, &files, &attributes);
		posix_spawnattr_destroy(&attributes);
	}
	posix_spawn_file_actions_destroy(&files);
free_environment:
	kv_free(line->allocator, environment);
	return status;
}

/* Copied to a number above those that the new process starts with. */
static int raise_descriptor(int descriptor)
{
	int raised = descriptor < 0 ? -1 : fcntl(descriptor, F_DUPFD_CLOEXEC, KV_LINE_MEMORY + 1);

	if (descriptor >= 0) close(descriptor);
	return raised;
}

static enum kv_status start(
    struct kv_line *line, const struct kv_trusted_network *network, enum kv_line_end end)
{
	int ends[2] = {-1, -1};
	enum kv_status status;

	KV_TRY(kv_staging_create(MEMORY_BYTES, &line->memory, &line->descriptor));
	line->descriptor = raise_descriptor(line->descriptor);
	if (line->descriptor < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
		return kv_fail(KV_IO, "cannot make a line: %s", strerror(errno));
	line->socket = raise_descriptor(ends[0]);
	ends[0] = -1;
	ends[1] = raise_descriptor(ends[1]);
	if (line->socket < 0 || ends[1] < 0 || fcntl(line->socket, F_SETFL, O_NONBLOCK) != 0)
		status = kv_fail(KV_IO, "cannot make a line: %s", strerror(errno));
	else
		status = start_process(line, network, end, ends);
	if (ends[1] >= 0) close(ends[1]);
	return status;
}

enum kv_status kv_line_open(struct kv_allocator *allocator,
    const struct kv_trusted_network *network, enum kv_line_end end, struct kv_line **line)
{
	struct kv_line *created = kv_alloc_zero(allocator, sizeof *created);
	enum kv_status status;

	kv_line_reap();
	if (!created) return KV_NO_MEMORY;
	created->allocator = allocator;
	created->socket = created->descriptor = -1;
	status = start(created, network, end);
	if (status != KV_OK) {
		kv_line_close(created);
		return status;
	}
	*line = created;
	return KV_OK;
}

void kv_line_close(struct kv_line *line)
{
	if (!line) return;
	if (line->socket >= 0) close(line->socket);
	if (line->pid > 0) end_process(line->pid);
	if (line->memory) kv_staging_destroy(line->memory, MEMORY_BYTES, line->descriptor);
	kv_free(line->allocator, line);
}

int kv_line_descriptor(const struct kv_line *line)
{
	return line->socket;
}

uint8_t *kv_line_slot(struct kv_line *line, uint32_t slot)
{
	return line->memory + (size_t)slot * KV_LINE_SLOT_BYTES;
}

enum kv_status kv_line_tell(struct kv_line *line, const struct kv_line_message *message)
{
	const size_t size = HEAD_BYTES + message->length;

	if (send(line->socket, message, size, MSG_NOSIGNAL) == (ssize_t)size) return KV_OK;
	return kv_fail(KV_DISCONNECTED, "kvline takes nothing any more: %s", strerror(errno));
}

enum kv_status kv_line_hear(struct kv_line *line, struct kv_line_message *message)
{
	ssize_t size = recv(line->socket, message, sizeof *message, 0);

	if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
		message->kind = KV_LINE_NOTHING;
		return KV_OK;
	}
	if (size <= 0) return kv_fail(KV_DISCONNECTED, "kvline has ended");
	if ((size_t)size < HEAD_BYTES || message->length != (size_t)size - HEAD_BYTES ||
	    message->slot >= KV_LINE_SLOTS)
		return kv_fail(KV_DISCONNECTED, "kvline speaks another language: install one release");
	if (message->kind != KV_LINE_FAILED) return KV_OK;
	return kv_fail(KV_DISCONNECTED, "%.*s", (int)message->length, (const char *)message->text);
}

enum kv_status kv_line_await(
    struct kv_line *line, uint64_t until_ms, struct kv_line_message *message)
{
	for (;;) {
		struct pollfd one = {.fd = line->socket, .events = POLLIN};
		uint64_t now;

		KV_TRY(kv_line_hear(line, message));
		if (message->kind != KV_LINE_NOTHING) return KV_OK;
		now = kv_now_ms();
		if (now >= until_ms) return kv_fail(KV_TIMEOUT, "nothing came over UCX in time");
		(void)poll(&one, 1, (int)(until_ms - now));
	}
}
