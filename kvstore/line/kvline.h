/* kvline: one end of a line (common/transport/line.h), with UCX in it. */
#ifndef KVSTORE_LINE_KVLINE_H
#define KVSTORE_LINE_KVLINE_H

#include "common/transport/line_message.h"
#include "common/transport/transport_ucx.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvline {
	uint8_t *memory; /* the slots */
	struct kv_ucx_endpoint_set ucx;
	bool receives;
	bool ended; /* the program is gone */
};

static inline uint8_t *kvline_slot(struct kvline *line, uint32_t slot)
{
	return line->memory + (size_t)slot * KV_LINE_SLOT_BYTES;
}

static inline uint32_t kvline_pieces(uint32_t bytes)
{
	return (bytes + KV_LINE_PIECE - 1) / KV_LINE_PIECE;
}

/* Of the piece at this offset. */
static inline uint32_t kvline_piece_bytes(uint32_t bytes, uint32_t offset)
{
	const uint32_t whole = KV_LINE_PIECE;

	return bytes - offset < whole ? bytes - offset : whole;
}

/* Take what the program has said so far. */
enum kv_status kvline_hear(struct kvline *line);

/* Say something to the program; a program that is gone ends this one, too. */
void kvline_say(struct kvline *line, enum kv_line_kind kind, uint32_t slot, uint64_t number);
void kvline_say_text(struct kvline *line, enum kv_line_kind kind, const void *text, size_t length);

/* ---- sender.c, receiver.c: what the program tells; an error ends the line ---- */

enum kv_status kvline_sender_told(struct kvline *line, const struct kv_line_message *message);
/* KV_DISCONNECTED once the other side is lost. */
enum kv_status kvline_sender_check(void);
enum kv_status kvline_receiver_start(struct kvline *line);
enum kv_status kvline_receiver_told(struct kvline *line, const struct kv_line_message *message);

#ifdef __cplusplus
}
#endif
#endif
