/* What a stranger may send to a store that listens for other hosts, and what somebody in the middle
 * may do to a stream. Nobody gets in, and nothing is delivered that was not sent.
 *
 * The first byte chooses: handshake, records, or changes to a stream that is sent; the second seeds
 * the sizes of the pieces. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/transport/secure_channel.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 65536, BEFORE = 4096, MESSAGE = 700 };

static const uint8_t secret[KV_SECRET_BYTES] = {3, 1, 4, 1, 5, 9, 2, 6};

struct ends {
	struct kv_allocator *allocator;
	struct kv_secure *worker, *store;
	int worker_socket, store_socket;
	uint32_t seed;
};

static void require(int condition, const char *what)
{
	if (condition) return;
	fprintf(stderr, "secure: %s\n", what);
	abort();
}

static void open_ends(struct ends *ends)
{
	int pair[2];

	require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0, "pair");
	ends->worker_socket = pair[0];
	ends->store_socket = pair[1];
	ends->allocator = kv_allocator_create("fuzz", 0);
	require(kv_secure_create(ends->allocator, KV_SECURE_STORE, secret, &ends->store) == KV_OK &&
	            kv_secure_create(ends->allocator, KV_SECURE_WORKER, secret, &ends->worker) == KV_OK,
	    "create");
}

static void close_ends(struct ends *ends)
{
	kv_secure_destroy(ends->worker);
	kv_secure_destroy(ends->store);
	close(ends->worker_socket);
	close(ends->store_socket);
	require(kv_allocator_stats(ends->allocator).blocks == 0, "a block is left");
	kv_allocator_destroy(ends->allocator);
}

static size_t piece_of(struct ends *ends, size_t left)
{
	size_t piece;

	ends->seed = ends->seed * 1664525u + 1013904223u;
	piece = 1 + (ends->seed >> 16) % 300;
	return piece < left ? piece : left;
}

static void stranger(struct ends *ends, const uint8_t *data, size_t size)
{
	enum kv_secure_event event = KV_SECURE_READS;
	enum kv_status status = KV_OK;

	for (size_t at = 0; at < size && status == KV_OK;) {
		const size_t piece = piece_of(ends, size - at);

		if (send(ends->worker_socket, data + at, piece, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
		at += piece;
		status = kv_secure_handshake(ends->store, ends->store_socket, &event);
		require(status != KV_OK || event != KV_SECURE_DONE, "a stranger got in");
		require(kv_allocator_stats(ends->allocator).bytes < BEFORE, "memory for a stranger");
	}
}

static void meet(struct ends *ends)
{
	enum kv_secure_event first = KV_SECURE_READS, second = KV_SECURE_READS;

	while (first != KV_SECURE_DONE || second != KV_SECURE_DONE)
		require(kv_secure_handshake(ends->worker, ends->worker_socket, &first) == KV_OK &&
		            kv_secure_handshake(ends->store, ends->store_socket, &second) == KV_OK,
		    "handshake");
}

/* Read all that is there: it goes on with `expected`, of which *done bytes have come. */
static int deliver(struct ends *ends, const uint8_t *expected, size_t length, size_t *done)
{
	uint8_t bytes[512];
	size_t taken = 1;
	bool ended = false;

	while (taken) {
		if (kv_secure_read(ends->store, ends->store_socket, bytes, sizeof bytes, &taken, &ended) !=
		    KV_OK)
			return 0;
		require(!ended, "an end that nobody marked");
		require(taken <= length - *done, "bytes that nobody sent");
		if (taken) require(memcmp(bytes, expected + *done, taken) == 0, "other bytes");
		*done += taken;
	}
	return 1;
}

static void records(struct ends *ends, const uint8_t *data, size_t size)
{
	size_t done = 0;
	int alive = 1;

	meet(ends);
	for (size_t at = 0; at < size && alive;) {
		const size_t piece = piece_of(ends, size - at);

		if (send(ends->worker_socket, data + at, piece, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
		at += piece;
		alive = deliver(ends, NULL, 0, &done);
	}
}

/* The input is laid over what the worker sends: where it is 0, nothing is changed. */
static void changes(struct ends *ends, const uint8_t *data, size_t size)
{
	static uint8_t message[MESSAGE], wire[4 * MESSAGE];
	int other[2];
	size_t have = 0, done = 0;
	ssize_t n;

	meet(ends);
	require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, other) == 0, "pair");
	for (size_t i = 0; i < MESSAGE; i++)
		message[i] = (uint8_t)(i * 3);
	while (have < MESSAGE) {
		size_t taken = 0;

		require(kv_secure_write(ends->worker, other[0], message + have,
		            piece_of(ends, MESSAGE - have), &taken) == KV_OK,
		    "write");
		have += taken;
	}
	n = recv(other[1], wire, sizeof wire, 0);
	require(n > MESSAGE, "recv");
	for (size_t i = 0; i < size && i < (size_t)n; i++)
		wire[i] ^= data[i];
	require(send(ends->worker_socket, wire, (size_t)n, MSG_NOSIGNAL) == n, "send");
	(void)deliver(ends, message, MESSAGE, &done);
	close(other[0]);
	close(other[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ends ends = {0};

	if (size < 3 || size > MOST) return 0;
	open_ends(&ends);
	ends.seed = data[1];
	if (data[0] % 3 == 0)
		stranger(&ends, data + 2, size - 2);
	else if (data[0] % 3 == 1)
		records(&ends, data + 2, size - 2);
	else
		changes(&ends, data + 2, size - 2);
	close_ends(&ends);
	return 0;
}
