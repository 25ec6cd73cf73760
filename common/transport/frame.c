#define _GNU_SOURCE /* MSG_CMSG_CLOEXEC */
#include "common/transport/frame.h"

#include "common/base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
	FIRST_BYTES = 16 << 10, /* of a payload's buffer, before more has arrived */
	KEEP_BYTES = 256 << 10  /* a buffer above this is not kept for a small frame */
};

struct kv_frame_reader {
	struct kv_allocator *allocator;
	struct kv_secure *secure; /* NULL: the socket itself */
	uint32_t max_bytes, max_descriptors;
	uint8_t header[KV_FRAME_HEADER_BYTES];
	uint32_t header_have;
	uint32_t length, have; /* of the payload */
	uint8_t *buffer;
	size_t capacity;
	bool complete, broken;
	uint32_t descriptor_count, descriptor_next;
	int descriptors[KV_FRAME_MAX_DESCRIPTORS];
};

/* Room for one control message of descriptors, aligned as the macros want it. */
union control_buffer {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(KV_FRAME_MAX_DESCRIPTORS * sizeof(int))];
};

enum kv_status kv_frame_reader_create(struct kv_allocator *allocator, uint32_t max_bytes,
    uint32_t max_descriptors, struct kv_frame_reader **reader)
{
	struct kv_frame_reader *created;

	if (max_descriptors > KV_FRAME_MAX_DESCRIPTORS) {
		return kv_fail(KV_INVALID, "%u descriptors for a frame, at most %d pass in one message",
		    max_descriptors, KV_FRAME_MAX_DESCRIPTORS);
	}
	created = kv_alloc_zero(allocator, sizeof *created);
	if (!created) return KV_NO_MEMORY;
	created->allocator = allocator;
	created->max_bytes = max_bytes ? max_bytes : KV_FRAME_MAX_BYTES;
	created->max_descriptors = max_descriptors;
	*reader = created;
	return KV_OK;
}

static void close_descriptors(struct kv_frame_reader *reader)
{
	while (reader->descriptor_next < reader->descriptor_count)
		close(reader->descriptors[reader->descriptor_next++]);
	reader->descriptor_next = 0;
	reader->descriptor_count = 0;
}

void kv_frame_reader_destroy(struct kv_frame_reader *reader)
{
	if (!reader) return;
	close_descriptors(reader);
	kv_free(reader->allocator, reader->buffer);
	kv_free(reader->allocator, reader);
}

void kv_frame_reader_secure(struct kv_frame_reader *reader, struct kv_secure *secure)
{
	reader->secure = secure;
	reader->max_descriptors = 0;
}

int kv_frame_take_descriptor(struct kv_frame_reader *reader)
{
	if (!reader->complete || reader->descriptor_next == reader->descriptor_count) return -1;
	return reader->descriptors[reader->descriptor_next++];
}

int kv_frame_reader_inside(const struct kv_frame_reader *reader)
{
	return !reader->complete && (reader->header_have > 0 || reader->descriptor_count > 0);
}

/* Keep the descriptors of one received message, as far as the frame may carry them; the rest is
 * closed and counted in *refused. */
static void collect_descriptors(
    struct kv_frame_reader *reader, struct msghdr *message, uint32_t *refused)
{
	struct cmsghdr *control;

	for (control = CMSG_FIRSTHDR(message); control; control = CMSG_NXTHDR(message, control)) {
		size_t count, i;

		if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
		count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (i = 0; i < count; i++) {
			int descriptor;

			memcpy(&descriptor, CMSG_DATA(control) + i * sizeof descriptor, sizeof descriptor);
			if (reader->descriptor_count < reader->max_descriptors) {
				reader->descriptors[reader->descriptor_count++] = descriptor;
			} else {
				close(descriptor);
				++*refused;
			}
		}
	}
}

/* One recvmsg of at most `room` bytes: *taken is what came, 0 when nothing is there. Reads never
 * cross the end of a frame, which is what ties descriptors to the frame that they came with. */
static enum kv_status receive(struct kv_frame_reader *reader, int socket, uint8_t *bytes,
    size_t room, size_t *taken, bool *ended)
{
	union control_buffer control;
	struct iovec vector = {.iov_base = bytes, .iov_len = room};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
	uint32_t refused = 0;
	ssize_t got;

	if (reader->secure) return kv_secure_read(reader->secure, socket, bytes, room, taken, ended);
	do {
		message.msg_control = control.bytes;
		message.msg_controllen = sizeof control.bytes;
		got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	} while (got < 0 && errno == EINTR);
	*taken = 0;
	*ended = false;
	if (got < 0) {
		if (errno == EAGAIN || errno == EWOULDBLOCK) return KV_OK;
		if (errno == ECONNRESET || errno == EPIPE || errno == ETIMEDOUT)
			return kv_fail(KV_DISCONNECTED, "the peer reset the connection");
		return kv_fail(KV_IO, "cannot receive: %s", strerror(errno));
	}
	collect_descriptors(reader, &message, &refused);
	if (refused > 0) {
		return kv_fail(KV_PROTOCOL,
		    "a frame came with %u descriptors too many, at most %u are expected", refused,
		    reader->max_descriptors);
	}
	if (message.msg_flags & MSG_CTRUNC) {
		return kv_fail(KV_LIMIT,
		    "descriptors that came with a frame were lost: this process may open no more files; "
		    "raise its limit of open files");
	}
	*taken = (size_t)got;
	*ended = got == 0;
	return KV_OK;
}

static enum kv_status begin_payload(struct kv_frame_reader *reader)
{
	const uint8_t *header = reader->header;
	uint32_t length = (uint32_t)header[0] | (uint32_t)header[1] << 8 | (uint32_t)header[2] << 16 |
	                  (uint32_t)header[3] << 24;

	if (length == 0) return kv_fail(KV_PROTOCOL, "the peer announces a frame of 0 bytes");
	if (length > reader->max_bytes) {
		return kv_fail(KV_PROTOCOL, "the peer announces a frame of %u bytes, at most %u are taken",
		    length, reader->max_bytes);
	}
	reader->length = length;
	reader->have = 0;
	if (reader->capacity > KEEP_BYTES && length <= KEEP_BYTES) {
		kv_free(reader->allocator, reader->buffer);
		reader->buffer = NULL;
		reader->capacity = 0;
	}
	return KV_OK;
}

/* Make room for more of the payload: at most twice what has arrived. */
static enum kv_status grow(struct kv_frame_reader *reader)
{
	size_t capacity = reader->capacity ? reader->capacity * 2 : FIRST_BYTES;
	uint8_t *buffer;

	if (reader->have < reader->capacity) return KV_OK;
	if (capacity > reader->length && reader->length > reader->capacity) capacity = reader->length;
	buffer = kv_realloc(reader->allocator, reader->buffer, capacity);
	if (!buffer) return KV_NO_MEMORY;
	reader->buffer = buffer;
	reader->capacity = capacity;
	return KV_OK;
}

/* Receive the next piece of header or payload. */
static enum kv_status advance(
    struct kv_frame_reader *reader, int socket, size_t *taken, bool *ended)
{
	size_t room;

	if (reader->header_have < KV_FRAME_HEADER_BYTES) {
		KV_TRY(receive(reader, socket, reader->header + reader->header_have,
		    KV_FRAME_HEADER_BYTES - reader->header_have, taken, ended));
		reader->header_have += (uint32_t)*taken;
		if (*taken && reader->header_have == KV_FRAME_HEADER_BYTES) return begin_payload(reader);
		return KV_OK;
	}
	KV_TRY(grow(reader));
	room = reader->capacity - reader->have;
	if (room > reader->length - reader->have) room = reader->length - reader->have;
	KV_TRY(receive(reader, socket, reader->buffer + reader->have, room, taken, ended));
	reader->have += (uint32_t)*taken;
	reader->complete = reader->have == reader->length;
	return KV_OK;
}

static enum kv_status read_frame(
    struct kv_frame_reader *reader, int socket, enum kv_frame_event *event)
{
	size_t taken = 0;
	bool ended = false;

	while (!reader->complete) {
		KV_TRY(advance(reader, socket, &taken, &ended));
		if (ended) {
			if (kv_frame_reader_inside(reader))
				return kv_fail(KV_DISCONNECTED, "the peer closed the connection inside a frame");
			*event = KV_FRAME_END;
			return KV_OK;
		}
		if (taken == 0) {
			*event = KV_FRAME_NONE;
			return KV_OK;
		}
	}
	*event = KV_FRAME_READY;
	return KV_OK;
}

enum kv_status kv_frame_read(
    struct kv_frame_reader *reader, int socket, enum kv_frame_event *event, struct kv_frame *frame)
{
	enum kv_status status;

	if (reader->broken)
		return kv_fail(KV_PROTOCOL, "the connection has failed before and cannot be read on");
	if (reader->complete) {
		close_descriptors(reader);
		reader->header_have = 0;
		reader->length = 0;
		reader->have = 0;
		reader->complete = false;
	}
	status = read_frame(reader, socket, event);
	if (status != KV_OK) {
		close_descriptors(reader);
		reader->broken = true;
		return status;
	}
	if (*event == KV_FRAME_READY) {
		frame->payload = reader->buffer;
		frame->length = reader->length;
		frame->descriptors = reader->descriptor_count;
	}
	return KV_OK;
}

/* ---- writing ---- */

/* One frame that waits: this, its descriptors, then header and payload, in one block. */
struct waiting_frame {
	struct waiting_frame *next;
	size_t length, sent; /* header included */
	int *descriptors;
	uint8_t *bytes;
	uint32_t descriptor_count;
};

struct kv_frame_writer {
	struct kv_allocator *allocator;
	struct kv_secure *secure; /* NULL: the socket itself */
	size_t max_queued, queued;
	struct waiting_frame *first, **last;
};

enum kv_status kv_frame_writer_create(
    struct kv_allocator *allocator, uint32_t max_queued, struct kv_frame_writer **writer)
{
	struct kv_frame_writer *created = kv_alloc_zero(allocator, sizeof *created);

	if (!created) return KV_NO_MEMORY;
	created->allocator = allocator;
	created->max_queued = max_queued ? max_queued : KV_FRAME_MAX_QUEUED;
	created->last = &created->first;
	*writer = created;
	return KV_OK;
}

static void close_waiting(struct waiting_frame *waiting)
{
	uint32_t i;

	for (i = 0; i < waiting->descriptor_count; i++)
		close(waiting->descriptors[i]);
	waiting->descriptor_count = 0;
}

static void drop_first(struct kv_frame_writer *writer)
{
	struct waiting_frame *waiting = writer->first;

	writer->first = waiting->next;
	if (!writer->first) writer->last = &writer->first;
	writer->queued -= waiting->length - waiting->sent;
	close_waiting(waiting);
	kv_free(writer->allocator, waiting);
}

void kv_frame_writer_destroy(struct kv_frame_writer *writer)
{
	if (!writer) return;
	while (writer->first)
		drop_first(writer);
	kv_free(writer->allocator, writer);
}

void kv_frame_writer_secure(struct kv_frame_writer *writer, struct kv_secure *secure)
{
	writer->secure = secure;
}

size_t kv_frame_writer_queued(const struct kv_frame_writer *writer)
{
	return writer->queued + (writer->secure ? kv_secure_unsent(writer->secure) : 0);
}

/* A block for one frame, filled except for its descriptors. */
static enum kv_status make_waiting(struct kv_frame_writer *writer, const void *payload,
    size_t length, uint32_t descriptor_count, struct waiting_frame **waiting)
{
	size_t block =
	    sizeof **waiting + descriptor_count * sizeof(int) + KV_FRAME_HEADER_BYTES + length;
	struct waiting_frame *made = kv_alloc(writer->allocator, block);

	if (!made) return KV_NO_MEMORY;
	memset(made, 0, sizeof *made);
	made->length = KV_FRAME_HEADER_BYTES + length;
	made->descriptors = (int *)(void *)(made + 1);
	made->bytes = (uint8_t *)(made->descriptors + descriptor_count);
	made->bytes[0] = (uint8_t)length;
	made->bytes[1] = (uint8_t)(length >> 8);
	made->bytes[2] = (uint8_t)(length >> 16);
	made->bytes[3] = (uint8_t)(length >> 24);
	memcpy(made->bytes + KV_FRAME_HEADER_BYTES, payload, length);
	*waiting = made;
	return KV_OK;
}

enum kv_status kv_frame_push(struct kv_frame_writer *writer, const void *payload, size_t length,
    const int *descriptors, uint32_t descriptor_count)
{
	struct waiting_frame *waiting = NULL;
	uint32_t i;

	if (length == 0 || length > KV_FRAME_MAX_BYTES || descriptor_count > KV_FRAME_MAX_DESCRIPTORS ||
	    (descriptor_count && writer->secure)) {
		return kv_fail(KV_INVALID,
		    "a frame of %zu bytes and %u descriptors: 1 to %d bytes and at most %d are allowed",
		    length, descriptor_count, KV_FRAME_MAX_BYTES, KV_FRAME_MAX_DESCRIPTORS);
	}
	if (KV_FRAME_HEADER_BYTES + length > writer->max_queued - writer->queued) {
		return kv_fail(KV_LIMIT,
		    "a frame of %zu bytes does not fit: %zu of %zu bytes wait for a peer that does not "
		    "read",
		    length, writer->queued, writer->max_queued);
	}
	KV_TRY(make_waiting(writer, payload, length, descriptor_count, &waiting));
	for (i = 0; i < descriptor_count; i++) {
		int copy = fcntl(descriptors[i], F_DUPFD_CLOEXEC, 0);

		if (copy < 0) {
			int error = errno;

			close_waiting(waiting);
			kv_free(writer->allocator, waiting);
			return kv_fail(error == EMFILE ? KV_LIMIT : KV_IO, "cannot duplicate descriptor %d: %s",
			    descriptors[i], strerror(error));
		}
		waiting->descriptors[waiting->descriptor_count++] = copy;
	}
	*writer->last = waiting;
	writer->last = &waiting->next;
	writer->queued += waiting->length;
	return KV_OK;
}

/* sendmsg of what is left of a frame; descriptors go with its first byte. */
static ssize_t send_waiting(const struct waiting_frame *waiting, int socket)
{
	union control_buffer control;
	struct iovec vector = {
	    .iov_base = waiting->bytes + waiting->sent, .iov_len = waiting->length - waiting->sent};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
	size_t bytes = waiting->descriptor_count * sizeof(int);
	ssize_t sent;

	if (waiting->descriptor_count > 0) {
		struct cmsghdr *header;

		memset(&control, 0, sizeof control);
		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(bytes);
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(bytes);
		memcpy(CMSG_DATA(header), waiting->descriptors, bytes);
	}
	do {
		sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
	} while (sent < 0 && errno == EINTR);
	return sent;
}

static enum kv_status send_error(void)
{
	if (errno == EPIPE || errno == ECONNRESET || errno == ETIMEDOUT)
		return kv_fail(KV_DISCONNECTED, "the peer has closed the connection");
	if (errno == ETOOMANYREFS)
		return kv_fail(KV_LIMIT, "too many descriptors are in flight to peers that do not read");
	return kv_fail(KV_IO, "cannot send: %s", strerror(errno));
}

static enum kv_status write_secure(struct kv_frame_writer *writer, int socket, int *idle)
{
	while (writer->first) {
		struct waiting_frame *waiting = writer->first;
		size_t taken = 0;

		KV_TRY(kv_secure_write(writer->secure, socket, waiting->bytes + waiting->sent,
		    waiting->length - waiting->sent, &taken));
		if (!taken) {
			*idle = 0;
			return KV_OK;
		}
		waiting->sent += taken;
		writer->queued -= taken;
		if (waiting->sent == waiting->length) drop_first(writer);
	}
	return kv_secure_flush(writer->secure, socket, idle);
}

enum kv_status kv_frame_write(struct kv_frame_writer *writer, int socket, int *idle)
{
	if (writer->secure) return write_secure(writer, socket, idle);
	while (writer->first) {
		struct waiting_frame *waiting = writer->first;
		ssize_t sent = send_waiting(waiting, socket);

		if (sent < 0) {
			if (errno != EAGAIN && errno != EWOULDBLOCK) return send_error();
			*idle = 0;
			return KV_OK;
		}
		close_waiting(waiting);
		waiting->sent += (size_t)sent;
		writer->queued -= (size_t)sent;
		if (waiting->sent == waiting->length) drop_first(writer);
	}
	*idle = 1;
	return KV_OK;
}
