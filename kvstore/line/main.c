/* Started by kvstored and gpu-worker, with a socket and memory (common/transport/line.h); ends when
 * the socket does. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kvstore/line/kvline.h"

enum {
	COMES_UP_MS = 2000,
	AGAIN_MS = 50,
	IDLE_MS = 1000,
	PROGRESS_A_TURN = 64,
	MOST_DESCRIPTORS = 1024
};

#define MEMORY_BYTES ((size_t)KV_LINE_SLOTS * KV_LINE_SLOT_BYTES)
#define HEAD_BYTES   offsetof(struct kv_line_message, text)

static void say(struct kvline *line, const struct kv_line_message *message)
{
	const size_t size = HEAD_BYTES + message->length;

	if (send(KV_LINE_SOCKET, message, size, MSG_NOSIGNAL) != (ssize_t)size) line->ended = true;
}

void kvline_say(struct kvline *line, enum kv_line_kind kind, uint32_t slot, uint64_t number)
{
	struct kv_line_message message = {.kind = kind, .slot = slot, .number = number};

	say(line, &message);
}

void kvline_say_text(struct kvline *line, enum kv_line_kind kind, const void *text, size_t length)
{
	struct kv_line_message message = {.kind = kind, .length = (uint32_t)length};

	memcpy(message.text, text, length);
	say(line, &message);
}

/* Nobody on another network may get in: whatever listens here does so at the one address. */
static enum kv_status check_listeners(const char *address)
{
	for (int i = KV_LINE_MEMORY + 1; i < MOST_DESCRIPTORS; i++) {
		struct sockaddr_in bound = {0};
		socklen_t size = sizeof bound;
		char text[INET_ADDRSTRLEN] = "another address";
		socklen_t length = sizeof(int);
		int listens = 0;

		if (getsockopt(i, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || !listens) continue;
		if (getsockname(i, (struct sockaddr *)&bound, &size) == 0 && bound.sin_family == AF_INET)
			inet_ntop(AF_INET, &bound.sin_addr, text, sizeof text);
		if (strcmp(text, address) == 0) continue;
		return kv_fail(KV_REFUSED, "UCX listens at %s and not at %s, the trusted network's address",
		    text, address);
	}
	return KV_OK;
}

enum kv_status kvline_hear(struct kvline *line)
{
	struct kv_line_message message;
	ssize_t size;

	while (!line->ended) {
		size = recv(KV_LINE_SOCKET, &message, sizeof message, MSG_DONTWAIT);
		if (size < 0 && (errno == EAGAIN || errno == EINTR)) return KV_OK;
		if (size < (ssize_t)HEAD_BYTES || message.length != (size_t)size - HEAD_BYTES ||
		    message.slot >= KV_LINE_SLOTS) {
			line->ended = true;
			break;
		}
		KV_TRY(line->receives ? kvline_receiver_told(line, &message)
		                      : kvline_sender_told(line, &message));
	}
	return KV_OK;
}

static enum kv_status serve(struct kvline *line)
{
	while (!line->ended) {
		struct pollfd polls[2] = {
		    {.fd = KV_LINE_SOCKET, .events = POLLIN}, {.fd = line->ucx.event, .events = POLLIN}};
		int turns = 0;
		bool idle;

		while (turns < PROGRESS_A_TURN && kv_ucx.ucp_worker_progress(line->ucx.worker))
			turns++;
		if (!line->receives) KV_TRY(kvline_sender_check());
		idle = turns < PROGRESS_A_TURN && kv_ucx.ucp_worker_arm(line->ucx.worker) == UCS_OK;
		(void)poll(polls, 2, idle ? IDLE_MS : 0);
		KV_TRY(kvline_hear(line));
	}
	return KV_OK;
}

/* An interface that has just come up, or whose cable is in again, is not one to UCX for a second.
 */
static enum kv_status open_device(struct kvline *line, const char *device, bool rdma)
{
	const uint64_t until = kv_now_ms() + COMES_UP_MS;
	enum kv_status status;

	KV_TRY(kv_ucx_load());
	while ((status = kv_ucx_open_device(&line->ucx, device, rdma)) != KV_OK && kv_now_ms() < until)
		(void)poll(NULL, 0, AGAIN_MS);
	return status;
}

static enum kv_status run(struct kvline *line, const char *device, const char *address)
{
	const bool rdma = strcmp(address, "rdma") == 0;
	void *memory = mmap(NULL, MEMORY_BYTES, line->receives ? PROT_READ | PROT_WRITE : PROT_READ,
	    MAP_SHARED, KV_LINE_MEMORY, 0);

	if (memory == MAP_FAILED) return kv_fail(KV_IO, "cannot map the slots: %s", strerror(errno));
	line->memory = memory;
	KV_TRY(open_device(line, device, rdma));
	if (!rdma) KV_TRY(check_listeners(address));
	if (line->receives) KV_TRY(kvline_receiver_start(line));
	return serve(line);
}

static int usage(void)
{
	fprintf(stderr, "kvline is started by kvstored and gpu-worker, for --trusted-network\n");
	return 2;
}

int main(int argc, char **argv)
{
	struct kvline line = {0};
	struct stat memory;
	int type = 0;
	socklen_t length = sizeof type;

	if (argc != 4 || getsockopt(KV_LINE_SOCKET, SOL_SOCKET, SO_TYPE, &type, &length) != 0 ||
	    type != SOCK_SEQPACKET || fstat(KV_LINE_MEMORY, &memory) != 0 ||
	    memory.st_size != (off_t)MEMORY_BYTES)
		return usage();
	line.receives = strcmp(argv[1], "receives") == 0;
	/* Where UCX aborts, that is the end of a line and not worth a file. */
	setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
	/* The program ends it; what a service manager or a terminal sends is for the program. */
	signal(SIGTERM, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	if (run(&line, argv[2], argv[3]) != KV_OK) {
		const char *why = kv_error_message();

		kvline_say_text(&line, KV_LINE_FAILED, why, strlen(why));
	}
	/* UCX is not closed: what it holds goes with the process, and it can hang. */
	_exit(line.ended ? 0 : 1);
}
