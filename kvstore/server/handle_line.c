/* Lines: what workers on other hosts fetch goes to them over UCX, on a network that is trusted.
 *
 * A fetch is served as in handle_stream.c, in one turn of the loop, but copied into a slot of the
 * line, whose process sends it. When all slots are under way the bytes are in the answer instead,
 * as without a line. A line that is lost is no loss to the connection: its fetches that come later
 * are refused, and the worker asks again through the encrypted stream. */
#include <string.h>

#include "common/base/log.h"
#include "common/transport/line.h"
#include "kvstore/server/server_internal.h"

struct kvs_line {
	struct kv_line *line;
	struct kv_watch *watch;
	uint32_t busy; /* slots that are being sent, a bit for each */
};

#define ALL_SLOTS ((UINT32_C(1) << KV_LINE_SLOTS) - 1)

void kvs_line_close(struct kvs_peer *peer)
{
	struct kvs_line *line = peer->line;

	if (!line) return;
	peer->line = NULL;
	kv_watch_close(line->watch);
	kv_line_close(line->line);
	kv_free(peer->server->allocator, line);
}

static void lose(struct kvs_peer *peer)
{
	/* A worker that leaves ends its line a moment before its connection. */
	if (kv_log_allows(&peer->server->worker_log, KVS_MODULE))
		kv_info(KVS_MODULE, "line ended name=%s from=%s reason=\"%s\"", peer->name, peer->from,
		    kv_error_message());
	kvs_line_close(peer);
}

/* All that its process has to say. The line may be gone then. */
static void hear(struct kvs_peer *peer)
{
	struct kv_line_message message;

	for (;;) {
		if (kv_line_hear(peer->line->line, &message) != KV_OK) {
			lose(peer);
			return;
		}
		if (message.kind == KV_LINE_NOTHING) return;
		if (message.kind == KV_LINE_SENT) peer->line->busy &= ~(UINT32_C(1) << message.slot);
	}
}

static void on_line(void *context, struct kv_watch *watch, unsigned events)
{
	(void)watch;
	(void)events;
	hear(context);
}

static enum kv_status open_line(struct kvs_peer *peer, const ProtobufCBinaryData *address)
{
	struct kvs_server *server = peer->server;
	struct kvs_line *line = kv_alloc_zero(server->allocator, sizeof *line);
	struct kv_line_message connect = {.kind = KV_LINE_CONNECT, .length = (uint32_t)address->len};

	if (!line) return KV_NO_MEMORY;
	peer->line = line;
	memcpy(connect.text, address->data, address->len);
	KV_TRY(kv_line_open(server->allocator, &server->remote.network, KV_LINE_SENDS, &line->line));
	KV_TRY(kv_loop_watch_fd(server->loop, kv_line_descriptor(line->line), KV_LOOP_READABLE, on_line,
	    peer, &line->watch));
	return kv_line_tell(line->line, &connect);
}

enum kv_status kvs_handle_line(
    struct kvs_peer *peer, const Kv__Request *request, struct kvs_answer *answer)
{
	const ProtobufCBinaryData *address = &request->line->address;
	enum kv_status status;

	(void)answer;
	if (!peer->by_ucx)
		return kv_fail(KV_PROTOCOL, "a line is for workers that have agreed on transport=ucx");
	if (!address->len || address->len > KV_LINE_TEXT)
		return kv_fail(KV_INVALID, "a line to an address of %zu bytes", address->len);
	kvs_line_close(peer); /* it has given up the one that it had */
	status = open_line(peer, address);
	if (status != KV_OK) lose(peer);
	return status;
}

/* ---- fetches ---- */

static uint32_t free_slot(const struct kvs_line *line)
{
	uint32_t slot = 0;

	while (line->busy >> slot & 1)
		slot++;
	return slot;
}

enum kv_status kvs_line_room(struct kvs_peer *peer, size_t bytes, uint8_t **room)
{
	/* A worker that asks fast is read turn after turn, before what its line says. */
	if (peer->line && peer->line->busy == ALL_SLOTS) hear(peer);
	if (!peer->line) return kv_fail(KV_UNSUPPORTED, "there is no line to this worker, or no more");
	if (peer->line->busy == ALL_SLOTS)
		return kv_fail(KV_BUSY, "all slots of the line to this worker are being sent");
	if (bytes > KV_LINE_SLOT_BYTES)
		return kv_fail(KV_LIMIT, "a fetch over a line is of %d bytes at most, not of %zu",
		    (int)KV_LINE_SLOT_BYTES, bytes);
	*room = kv_line_slot(peer->line->line, free_slot(peer->line));
	return KV_OK;
}

enum kv_status kvs_line_send(struct kvs_peer *peer, uint64_t number, size_t bytes)
{
	struct kv_line_message message = {.kind = KV_LINE_SEND,
	    .slot = free_slot(peer->line),
	    .number = number,
	    .bytes = (uint32_t)bytes};
	enum kv_status status = kv_line_tell(peer->line->line, &message);

	if (status == KV_OK) {
		peer->line->busy |= UINT32_C(1) << message.slot;
		return KV_OK;
	}
	lose(peer);
	return kv_fail(KV_UNSUPPORTED, "the line to this worker is lost");
}
