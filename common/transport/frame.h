/* Frames on a stream socket: a 4-byte little-endian length, then that many bytes of payload.
 *
 * For non-blocking descriptors (a Unix socket, or TCP without descriptors). Nothing here waits and
 * nothing knows an event loop: the caller polls, and every deadline is the caller's. A file
 * descriptor passed by SCM_RIGHTS belongs to the frame whose bytes it came with.
 */
#ifndef KV_COMMON_TRANSPORT_FRAME_H
#define KV_COMMON_TRANSPORT_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "common/transport/secure_channel.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
	KV_FRAME_HEADER_BYTES = 4,
	KV_FRAME_MAX_BYTES = 8 << 20,   /* of a payload, when the reader or writer is given 0 */
	KV_FRAME_MAX_QUEUED = 16 << 20, /* of a writer's queue, when it is given 0 */
	KV_FRAME_MAX_DESCRIPTORS = 253  /* the kernel's own limit for one message */
};

/* ---- reading ---- */

struct kv_frame_reader;

struct kv_frame {
	const uint8_t *payload; /* borrowed until the next read of the same reader */
	uint32_t length;        /* at least 1 */
	uint32_t descriptors;   /* how many came with it, see kv_frame_take_descriptor */
};

enum kv_frame_event {
	KV_FRAME_NONE,  /* nothing more for now: poll for readability */
	KV_FRAME_READY, /* one whole frame: read again at once, there may be more */
	KV_FRAME_END    /* the peer closed between two frames */
};

/* max_bytes: the longest payload that is taken, 0 for KV_FRAME_MAX_BYTES. max_descriptors: how many
 * a frame may carry, at most KV_FRAME_MAX_DESCRIPTORS; 0 refuses any. */
enum kv_status kv_frame_reader_create(struct kv_allocator *allocator, uint32_t max_bytes,
    uint32_t max_descriptors, struct kv_frame_reader **reader);
/* Closes the descriptors that nobody took; the socket stays the caller's. NULL is allowed. */
void kv_frame_reader_destroy(struct kv_frame_reader *reader);

/* Read from `socket` until a frame is whole or nothing is there. Descriptors of the frame before
 * that were not taken are closed first. Memory grows with what has arrived, never with what was
 * announced. KV_PROTOCOL: a length of 0 or above the limit, or more descriptors than allowed (all
 * are closed); KV_LIMIT: descriptors were lost because this process may open no more files;
 * KV_DISCONNECTED: reset, or closed inside a frame; KV_NO_MEMORY; KV_IO. After an error, close the
 * connection: each later call returns KV_PROTOCOL. */
enum kv_status kv_frame_read(
    struct kv_frame_reader *reader, int socket, enum kv_frame_event *event, struct kv_frame *frame);

/* The next descriptor of the frame just read, in the order in which they were sent; the caller
 * closes it. -1 when there is none left. */
int kv_frame_take_descriptor(struct kv_frame_reader *reader);

/* Read through an established channel (secure_channel.h) instead of from the socket itself; it
 * stays the caller's and outlives the reader's last use. No descriptors come then. A frame may be
 * there that no poll of the socket tells of: kv_secure_pending. KV_FRAME_END means that the peer
 * ended the stream; a connection that was cut is KV_DISCONNECTED. */
void kv_frame_reader_secure(struct kv_frame_reader *reader, struct kv_secure *secure);

/* 1 while a frame has begun to arrive and is not whole: the caller's deadline for slow peers runs.
 */
int kv_frame_reader_inside(const struct kv_frame_reader *reader);

/* ---- writing ---- */

struct kv_frame_writer;

/* max_queued: bytes that may wait, headers included; 0 for KV_FRAME_MAX_QUEUED. */
enum kv_status kv_frame_writer_create(
    struct kv_allocator *allocator, uint32_t max_queued, struct kv_frame_writer **writer);
void kv_frame_writer_destroy(struct kv_frame_writer *writer);

/* The other half of kv_frame_reader_secure. */
void kv_frame_writer_secure(struct kv_frame_writer *writer, struct kv_secure *secure);

/* Queue one frame. Copies the payload and duplicates the descriptors: both stay the caller's.
 * KV_LIMIT when the queue would exceed its bound (a peer that does not read); KV_INVALID for a
 * length of 0 or above KV_FRAME_MAX_BYTES or too many descriptors; KV_NO_MEMORY; nothing is queued
 * then. */
enum kv_status kv_frame_push(struct kv_frame_writer *writer, const void *payload, size_t length,
    const int *descriptors, uint32_t descriptor_count);

/* Send what the socket takes now. *idle becomes 1 when the queue is empty, 0 when the caller must
 * poll for writability. Never raises SIGPIPE. KV_DISCONNECTED: the peer is gone; KV_IO. */
enum kv_status kv_frame_write(struct kv_frame_writer *writer, int socket, int *idle);

/* Bytes that wait. */
size_t kv_frame_writer_queued(const struct kv_frame_writer *writer);

#ifdef __cplusplus
}
#endif
#endif
