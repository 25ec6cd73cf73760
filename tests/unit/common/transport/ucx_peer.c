#include "ucx_peer.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
/* UCX itself leaks a hundred bytes when it cannot attach another user's memory. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
	return "leak:libuct.so\n";
}
#endif

uint8_t ucx_pattern(uint32_t seed, uint64_t offset)
{
	uint64_t mixed = (offset / 8 + 1) * UINT64_C(0x9e3779b97f4a7c15) + seed * UINT64_C(0x1234567);

	return (uint8_t)(mixed >> (8 * (offset % 8)));
}

static void fail(const char *what)
{
	fprintf(stderr, "peer: %s: %s (%s)\n", what, kv_error_message(), strerror(errno));
	exit(3);
}

static void send_all(int control, const void *data, size_t size)
{
	const char *at = data;

	while (size > 0) {
		ssize_t sent = send(control, at, size, MSG_NOSIGNAL);

		if (sent <= 0) fail("send");
		at += sent;
		size -= (size_t)sent;
	}
}

/* 0 when the other side is gone. */
static int receive_all(int control, void *data, size_t size)
{
	char *at = data;

	while (size > 0) {
		ssize_t got = recv(control, at, size, 0);

		if (got < 0 && errno == EINTR) continue;
		if (got <= 0) return 0;
		at += got;
		size -= (size_t)got;
	}
	return 1;
}

/* ---- the store process ---- */

struct store {
	struct kv_transport_server *server;
	struct kv_region *region;
	uint8_t *base;
	uint64_t bytes;
};

static uint64_t count_differences(
    const uint8_t *base, uint32_t seed, uint64_t offset, uint64_t bytes)
{
	uint64_t different = 0, i;

	for (i = offset; i < offset + bytes; i++)
		different += base[i] != ucx_pattern(seed, i);
	return different;
}

static void fill(uint8_t *base, uint32_t seed, uint64_t offset, uint64_t bytes)
{
	uint64_t i;

	for (i = offset; i < offset + bytes; i++)
		base[i] = ucx_pattern(seed, i);
}

static void store_open(struct store *store, int control)
{
	static struct kv_transport_blob address, blob;
	uint64_t i;
	int descriptor;

	if (kv_transport_ucx.server_create(kv_heap(), &store->server) != KV_OK) fail("server_create");
	if (kv_transport_ucx.region_create(store->server, store->bytes, &store->region, &store->base) !=
	    KV_OK)
		fail("region_create");
	for (i = 0; i < store->bytes; i++) {
		if (store->base[i] != 0) fail("a new region is not zeroed");
	}
	fill(store->base, 1, 0, store->bytes);
	if (kv_transport_ucx.server_address(store->server, &address) != KV_OK) fail("server_address");
	if (kv_transport_ucx.region_export(store->server, store->region, &blob, &descriptor) != KV_OK)
		fail("region_export");
	send_all(control, &address, sizeof address);
	send_all(control, &blob, sizeof blob);
}

static void store_obey(struct store *store, int control)
{
	struct ucx_peer_command command;
	uint64_t answer = 0;

	if (!receive_all(control, &command, sizeof command)) _exit(4);
	if (command.verb == PEER_CHECK)
		answer = count_differences(store->base, command.seed, command.offset, command.bytes);
	if (command.verb == PEER_FILL) fill(store->base, command.seed, command.offset, command.bytes);
	if (command.verb == PEER_DROP) {
		kv_transport_ucx.region_destroy(store->server, store->region);
		store->region = NULL;
	}
	send_all(control, &answer, sizeof answer);
	if (command.verb != PEER_QUIT) return;
	kv_transport_ucx.region_destroy(store->server, store->region);
	kv_transport_ucx.server_destroy(store->server);
	exit(0);
}

/* The event loop as the store has it: progress until idle, arm, sleep. */
static void store_main(int control, uint64_t bytes)
{
	struct store store = {.bytes = bytes};

	store_open(&store, control);
	for (;;) {
		struct pollfd events[2] = {{.fd = control, .events = POLLIN},
		    {.fd = kv_transport_ucx.server_descriptor(store.server), .events = POLLIN}};
		int busy;

		while (kv_transport_ucx.server_progress(store.server) > 0)
			;
		busy = kv_transport_ucx.server_arm(store.server);
		if (poll(events, 2, busy ? 0 : 10000) < 0 && errno != EINTR) fail("poll");
		if (events[0].revents) store_obey(&store, control);
	}
}

/* ---- a client process ---- */

/* Die with a get just started, by UCX's own means. */
static void die_in_get(struct kv_transport_client *client, struct kv_remote *remote)
{
	static uint8_t buffer[1 << 20];
	struct kv_transfer transfer = {remote, 0, sizeof buffer, buffer};

	(void)kv_transport_ucx.get(client, &transfer, 1);
	raise(SIGKILL);
}

static void client_main(int control, uint64_t bytes, const char *mode)
{
	static struct kv_transport_blob address, blob;
	struct kv_transport_client *client;
	struct kv_remote *remote;
	enum kv_status status;
	const uint8_t *memory;

	if (!receive_all(control, &address, sizeof address) ||
	    !receive_all(control, &blob, sizeof blob))
		fail("blobs");
	if (strcmp(mode, "refused") == 0 && (setgid(65534) < 0 || setuid(65534) < 0)) exit(77);
	if (strcmp(mode, "die-get") == 0) setenv("CLUSTERKV_UCX_NO_DIRECT", "1", 1);
	status = kv_transport_ucx.client_create(kv_heap(), &address, &client);
	if (status == KV_OK) status = kv_transport_ucx.region_attach(client, &blob, -1, bytes, &remote);
	if (strcmp(mode, "refused") == 0) exit(status == KV_REFUSED ? 0 : 1);
	if (status != KV_OK) fail("attach");
	if (strcmp(mode, "die-get") == 0) die_in_get(client, remote);
	memory = kv_transport_ucx.direct_read(remote, 0, bytes);
	if (!memory || count_differences(memory, 1, 0, bytes) > 0) exit(1);
	if (strcmp(mode, "die") == 0) raise(SIGKILL);
	kv_transport_ucx.client_destroy(client);
	exit(0);
}

void ucx_peer_main(int count, char **arguments)
{
	if (count < 4) return;
	if (strcmp(arguments[1], "--store") == 0)
		store_main(atoi(arguments[2]), strtoull(arguments[3], NULL, 10));
	if (strcmp(arguments[1], "--client") == 0 && count == 5)
		client_main(atoi(arguments[2]), strtoull(arguments[3], NULL, 10), arguments[4]);
}

/* ---- the test's side ---- */

static pid_t start(const char *role, uint64_t bytes, const char *mode, int *control)
{
	char descriptor[16], size[32];
	int pair[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) fail("socketpair");
	snprintf(size, sizeof size, "%llu", (unsigned long long)bytes);
	pid = fork();
	if (pid < 0) fail("fork");
	if (pid == 0) {
		int own = dup(pair[1]); /* without close-on-exec */

		snprintf(descriptor, sizeof descriptor, "%d", own);
		execl("/proc/self/exe", "test-ucx-peer", role, descriptor, size, mode, (char *)NULL);
		_exit(5);
	}
	close(pair[1]);
	*control = pair[0];
	return pid;
}

void ucx_peer_start(struct ucx_peer *peer, uint64_t bytes)
{
	memset(peer, 0, sizeof *peer);
	peer->bytes = bytes;
	peer->pid = start("--store", bytes, NULL, &peer->control);
	if (!receive_all(peer->control, &peer->address, sizeof peer->address) ||
	    !receive_all(peer->control, &peer->region, sizeof peer->region))
		fail("the store process did not start");
}

uint64_t ucx_peer_ask(
    struct ucx_peer *peer, enum ucx_peer_verb verb, uint32_t seed, uint64_t offset, uint64_t bytes)
{
	struct ucx_peer_command command = {(uint32_t)verb, seed, offset, bytes};
	uint64_t answer = UINT64_MAX;

	send_all(peer->control, &command, sizeof command);
	if (!receive_all(peer->control, &answer, sizeof answer)) fail("the store process died");
	return answer;
}

static int collect(pid_t pid)
{
	int status = -1;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

int ucx_peer_stop(struct ucx_peer *peer)
{
	int status;

	ucx_peer_ask(peer, PEER_QUIT, 0, 0, 0);
	status = collect(peer->pid);
	close(peer->control);
	return status;
}

int ucx_peer_kill(struct ucx_peer *peer)
{
	int status;

	kill(peer->pid, SIGKILL);
	status = collect(peer->pid);
	close(peer->control);
	return status;
}

int ucx_client_run(const struct ucx_peer *peer, const char *mode)
{
	int control, status;
	pid_t pid = start("--client", peer->bytes, mode, &control);

	send_all(control, &peer->address, sizeof peer->address);
	send_all(control, &peer->region, sizeof peer->region);
	status = collect(pid);
	close(control);
	return status;
}
