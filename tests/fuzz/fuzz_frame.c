/* A stream of arbitrary bytes, arriving in arbitrary pieces, against the plainest reading of it.
 *
 * The first byte seeds the sizes of the pieces; the rest is the stream. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/transport/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 65536, MAX_FRAME = 1000 };

/* What is left of the stream, for the plain reading. */
struct stream {
	const uint8_t *bytes;
	size_t size;
	int failed;
};

static void require(int condition, const char *what)
{
	if (condition) return;
	fprintf(stderr, "frame: %s\n", what);
	abort();
}

/* The next frame that must come: 1, or 0 when the stream's rest is none or is wrong. */
static int next_expected(struct stream *stream, const uint8_t **payload, uint32_t *length)
{
	uint32_t announced;

	if (stream->size < 4) return 0;
	announced = (uint32_t)stream->bytes[0] | (uint32_t)stream->bytes[1] << 8 |
	            (uint32_t)stream->bytes[2] << 16 | (uint32_t)stream->bytes[3] << 24;
	stream->failed = announced == 0 || announced > MAX_FRAME;
	if (stream->failed || stream->size - 4 < announced) return 0;
	*payload = stream->bytes + 4;
	*length = announced;
	stream->bytes += 4 + announced;
	stream->size -= 4 + announced;
	return 1;
}

/* Read what has arrived. 0 when the reader has given up. */
static int read_all(struct kv_frame_reader *reader, int socket, struct stream *plain, int *ended)
{
	enum kv_frame_event event = KV_FRAME_NONE;
	struct kv_frame frame;

	do {
		const uint8_t *payload = NULL;
		uint32_t length = 0;

		if (kv_frame_read(reader, socket, &event, &frame) != KV_OK) return 0;
		if (event != KV_FRAME_READY) break;
		require(next_expected(plain, &payload, &length), "a frame that was not sent");
		require(frame.length == length && memcmp(frame.payload, payload, length) == 0,
		    "a frame with other bytes");
	} while (1);
	*ended = event == KV_FRAME_END;
	return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kv_frame_reader *reader = NULL;
	struct stream plain;
	int pair[2], alive = 1, ended = 0;
	uint32_t seed;
	size_t at = 1;
	const uint8_t *payload;
	uint32_t length;

	if (size < 2 || size > MOST) return 0;
	seed = data[0];
	plain.bytes = data + 1;
	plain.size = size - 1;
	plain.failed = 0;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0) return 0;
	if (kv_frame_reader_create(kv_heap(), MAX_FRAME, 0, &reader) != KV_OK) abort();
	while (alive && at < size) {
		size_t piece;

		seed = seed * 1664525u + 1013904223u;
		piece = 1 + (seed >> 16) % 700;
		if (piece > size - at) piece = size - at;
		require(send(pair[0], data + at, piece, MSG_NOSIGNAL) == (ssize_t)piece, "send");
		at += piece;
		alive = read_all(reader, pair[1], &plain, &ended);
	}
	close(pair[0]);
	if (alive) alive = read_all(reader, pair[1], &plain, &ended);
	require(!next_expected(&plain, &payload, &length), "a frame that did not come");
	require(alive == (plain.size == 0), "the end is judged wrongly");
	require(!alive || ended, "no end");
	kv_frame_reader_destroy(reader);
	close(pair[1]);
	return 0;
}
