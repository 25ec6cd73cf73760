/* Telling a dead process from a silent one. A process that lost its connection may still write to
 * memory that it had mapped; what it had reserved is free only when the process itself is gone, or
 * has come again and says that the mapping is. */
#define _GNU_SOURCE /* syscall */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/log.h"
#include "kvstore/server/server_internal.h"

int kvs_pidfd_open(int32_t pid)
{
	return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

bool kvs_pidfd_dead(int pidfd)
{
	struct pollfd poll_one = {.fd = pidfd, .events = POLLIN};

	return pidfd >= 0 && poll(&poll_one, 1, 0) == 1 && (poll_one.revents & POLLIN);
}

/* The text of /proc/PID/stat from the end of the name on; its fields there are counted from 0.
 * NULL: it could not be read, with errno. */
static const char *read_stat(int32_t pid, char *text, size_t size)
{
	char path[32];
	ssize_t length;
	int file;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0) return NULL;
	length = read(file, text, size - 1);
	if (length == 0) errno = EIO;
	close(file);
	if (length <= 0) return NULL;
	text[length] = '\0';
	return strrchr(text, ')');
}

static uint64_t stat_field(const char *at, int fields)
{
	for (int i = 0; at && i < fields; i++)
		at = strchr(at + 1, ' ');
	return at ? strtoull(at, NULL, 10) : 0;
}

bool kvs_process_ending(int32_t pid)
{
	enum { FLAGS = 9 - 2, EXITING = 4 }; /* PF_EXITING */
	char text[512];
	const char *at = read_stat(pid, text, sizeof text);

	if (!at) return errno == ENOENT || errno == ESRCH;
	return (stat_field(at, FLAGS) & EXITING) != 0;
}

uint64_t kvs_process_start(int32_t pid)
{
	enum { START = 22 - 2 };
	char text[512];

	return pid > 0 ? stat_field(read_stat(pid, text, sizeof text), START) : 0;
}

static void forget(struct kvs_mourned *mourned)
{
	kv_list_remove(&mourned->node);
	mourned->server->mourned_count--;
	kv_watch_close(mourned->watch);
	close(mourned->pidfd);
	kv_free(mourned->server->allocator, mourned);
}

static void lift(struct kvs_mourned *mourned, const char *why)
{
	uint64_t bytes = kvs_peer_proven_dead(mourned->server->engine, mourned->epoch);

	if (bytes)
		kv_info(KVS_MODULE, "quarantine lifted pid=%d bytes=%llu reason=\"%s\"", (int)mourned->pid,
		    (unsigned long long)bytes, why);
	forget(mourned);
}

static void on_exit_seen(void *context, struct kv_watch *watch, unsigned events)
{
	struct kvs_mourned *mourned = context;

	(void)watch;
	(void)events;
	if (kvs_pidfd_dead(mourned->pidfd)) lift(mourned, "the worker's process has ended");
}

void kvs_mourned_let_go(struct kvs_server *server, int32_t pid, uint64_t epoch)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &server->mourned)
	{
		struct kvs_mourned *mourned = KV_CONTAINER_OF(node, struct kvs_mourned, node);

		/* As long as it is watched, nobody else can have its number. */
		if (mourned->epoch != epoch || mourned->pid != pid) continue;
		lift(mourned, "the worker has let go of the memory");
		return;
	}
}

void kvs_mourn(struct kvs_server *server, int pidfd, int32_t pid, uint64_t epoch)
{
	struct kvs_mourned *mourned;

	if (pidfd < 0) return;
	mourned = server->mourned_count < KVS_MAX_MOURNED
	              ? kv_alloc_zero(server->allocator, sizeof *mourned)
	              : NULL;
	if (!mourned) {
		close(pidfd);
		return;
	}
	mourned->server = server;
	mourned->pidfd = pidfd;
	mourned->pid = pid;
	mourned->epoch = epoch;
	if (kv_loop_watch_fd(server->loop, pidfd, KV_LOOP_READABLE, on_exit_seen, mourned,
	        &mourned->watch) != KV_OK) {
		kv_warning(KVS_MODULE, "cannot watch a process: %s", kv_error_message());
		close(pidfd);
		kv_free(server->allocator, mourned);
		return;
	}
	kv_list_push_back(&server->mourned, &mourned->node);
	server->mourned_count++;
}

void kvs_mourning_stop(struct kvs_server *server)
{
	struct kv_list *node;

	while ((node = kv_list_first(&server->mourned)))
		forget(KV_CONTAINER_OF(node, struct kvs_mourned, node));
}
