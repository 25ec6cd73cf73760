/* The worker's end: pieces are copied to the slot of their number. */
#include <string.h>

#include "kvstore/line/kvline.h"

struct expected {
	uint64_t number; /* 0: nothing is expected in this slot */
	uint32_t bytes;
	uint32_t missing; /* pieces, a bit for each */
};

static struct expected slots[KV_LINE_SLOTS];
static bool linked; /* which is told once: anybody on the network can say it again and again */

static struct expected *find(uint64_t number)
{
	for (uint32_t slot = 0; slot < KV_LINE_SLOTS; slot++)
		if (slots[slot].number == number) return &slots[slot];
	return NULL;
}

/* UCX promises no order among messages. What nobody expects, or not so, is dropped. */
static void take_piece(
    struct kvline *line, const struct kv_line_header *header, const void *data, size_t bytes)
{
	struct expected *expected = find(header->number);
	uint32_t slot, piece;

	/* The program said so before it asked for it, but that may not be read yet. */
	if (!expected && kvline_hear(line) == KV_OK) expected = find(header->number);
	if (!expected || header->offset % KV_LINE_PIECE || header->offset >= expected->bytes) return;
	piece = (uint32_t)(header->offset / KV_LINE_PIECE);
	if (!(expected->missing >> piece & 1) ||
	    bytes != kvline_piece_bytes(expected->bytes, (uint32_t)header->offset))
		return;
	slot = (uint32_t)(expected - slots);
	memcpy(kvline_slot(line, slot) + header->offset, data, bytes);
	expected->missing &= ~(UINT32_C(1) << piece);
	if (expected->missing) return;
	expected->number = 0;
	kvline_say(line, KV_LINE_ARRIVED, slot, header->number);
}

static ucs_status_t on_message(void *untyped, const void *head, size_t head_bytes, void *data,
    size_t bytes, const ucp_am_recv_param_t *parameters)
{
	struct kvline *line = untyped;
	struct kv_line_header header;

	if (head_bytes != sizeof header || (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV))
		return UCS_OK;
	memcpy(&header, head, sizeof header); /* it is not aligned */
	if (header.number)
		take_piece(line, &header, data, bytes);
	else if (!linked)
		kvline_say(line, KV_LINE_LINKED, 0, 0);
	linked = linked || !header.number;
	return UCS_OK;
}

enum kv_status kvline_receiver_start(struct kvline *line)
{
	ucp_am_handler_param_t parameters;
	ucp_address_t *address;
	ucs_status_t result;
	size_t length;

	memset(&parameters, 0, sizeof parameters);
	parameters.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
	                        UCP_AM_HANDLER_PARAM_FIELD_ARG;
	parameters.id = KV_LINE_HANDLER;
	parameters.cb = on_message;
	parameters.arg = line;
	result = kv_ucx.ucp_worker_set_am_recv_handler(line->ucx.worker, &parameters);
	if (result == UCS_OK)
		result = kv_ucx.ucp_worker_get_address(line->ucx.worker, &address, &length);
	if (result != UCS_OK)
		return kv_fail(KV_UNSUPPORTED, "UCX cannot receive: %s", kv_ucx.ucs_status_string(result));
	if (length > KV_LINE_TEXT)
		return kv_fail(KV_LIMIT, "UCX's address has %zu bytes, at most %d can be told", length,
		    (int)KV_LINE_TEXT);
	kvline_say_text(line, KV_LINE_READY, address, length);
	kv_ucx.ucp_worker_release_address(line->ucx.worker, address);
	return KV_OK;
}

enum kv_status kvline_receiver_told(struct kvline *line, const struct kv_line_message *message)
{
	struct expected *expected = &slots[message->slot];

	(void)line;
	switch (message->kind) {
	case KV_LINE_EXPECT:
		if (!message->number || !message->bytes || message->bytes > KV_LINE_SLOT_BYTES) break;
		*expected = (struct expected){
		    message->number, message->bytes, (UINT32_C(1) << kvline_pieces(message->bytes)) - 1};
		return KV_OK;
	case KV_LINE_FORGET:
		if (expected->number == message->number) expected->number = 0;
		return KV_OK;
	default:
		break;
	}
	return kv_fail(KV_PROTOCOL, "kvline was told to receive what it cannot");
}
