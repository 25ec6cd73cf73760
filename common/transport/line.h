/* A line: bytes to a process on another host over UCX, on a network that was declared trusted.
 *
 * UCX runs in a process of its own, kvline, one for each line. UCX 1.13 over TCP ends the process
 * that it is in when the other side goes away at the wrong moment, and lets whoever reaches its
 * port read and write that process's memory; so it must not be the store's nor the worker's. Both
 * sides share some memory with their kvline, in slots, and nothing else. What ends kvline ends the
 * line; there is always the encrypted stream to go on with.
 *
 * The store's end sends, the worker's end receives: that bytes are right, the answer to the request
 * says, which goes through the encrypted stream. A line is used by one thread.
 */
#ifndef KV_COMMON_TRANSPORT_LINE_H
#define KV_COMMON_TRANSPORT_LINE_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "common/transport/trusted_network.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
	KV_LINE_SLOTS = 24, /* above what a worker asks for at a time: some are still being sent */
	KV_LINE_SLOT_BYTES = 256 << 10,
	KV_LINE_TEXT = 1024 /* UCX's address, or why it failed */
};

enum kv_line_kind {
	KV_LINE_NOTHING,
	/* to its process */
	KV_LINE_CONNECT, /* sends: to this address (text) */
	KV_LINE_SEND,    /* sends: `bytes` of the slot, under this number; it is lent until SENT */
	KV_LINE_EXPECT,  /* receives: `bytes` of that number belong into the slot, lent until ARRIVED */
	KV_LINE_FORGET,  /* receives: they do not any more; in the order of what is told */
	/* from its process */
	KV_LINE_READY,   /* receives: at this address (text) */
	KV_LINE_LINKED,  /* receives: the other side has got through */
	KV_LINE_SENT,    /* slot */
	KV_LINE_ARRIVED, /* number */
	KV_LINE_FAILED   /* text says why; nothing follows */
};

struct kv_line_message {
	uint32_t kind; /* enum kv_line_kind */
	uint32_t slot;
	uint64_t number; /* not 0 */
	uint32_t bytes;
	uint32_t length; /* of text */
	uint8_t text[KV_LINE_TEXT];
};

struct kv_line;

enum kv_line_end { KV_LINE_SENDS, KV_LINE_RECEIVES };

/* Start its process and wait for nothing. KV_UNSUPPORTED when kvline is not beside this program;
 * KV_NO_MEMORY, KV_IO. */
enum kv_status kv_line_open(struct kv_allocator *allocator,
    const struct kv_trusted_network *network, enum kv_line_end end, struct kv_line **line);
/* Ends its process, whose end is not waited for: on a busy machine it was seen to take 24 ms. Its
 * slots are gone. NULL is allowed. */
void kv_line_close(struct kv_line *line);
/* Take note of processes that have ended since, so that none is left as a zombie; for a timer. Any
 * thread. Opening and closing a line do it, too. */
void kv_line_reap(void);

/* Readable when there is something to hear. */
int kv_line_descriptor(const struct kv_line *line);
uint8_t *kv_line_slot(struct kv_line *line, uint32_t slot);

/* KV_DISCONNECTED when its process has ended. */
enum kv_status kv_line_tell(struct kv_line *line, const struct kv_line_message *message);
/* What it says next; kind NOTHING when it says nothing. KV_DISCONNECTED, with its reason, when it
 * has failed or ended. */
enum kv_status kv_line_hear(struct kv_line *line, struct kv_line_message *message);
/* Wait for that, until `until_ms` (kv_now_ms): then KV_TIMEOUT. */
enum kv_status kv_line_await(
    struct kv_line *line, uint64_t until_ms, struct kv_line_message *message);

#ifdef __cplusplus
}
#endif
#endif
