/* The worker's end of a line: bytes from a store on another host over UCX
 * (common/transport/line.h).
 *
 * Requests and answers go through the encrypted stream (remote_stream.c); an answer says that what
 * was fetched is right, and its bytes come over the line into the slot of its place in the queue. A
 * line that is lost stays lost until the next connection. */
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "kvstore/client/remote_internal.h"

#define MODULE "store-client"

enum { LINK_MS = 3000 };

_Static_assert((int)KVC_STREAM_WINDOW <= (int)KV_LINE_SLOTS, "a request has its slot");
_Static_assert((int)KVC_STREAM_BYTES <= (int)KV_LINE_SLOT_BYTES, "it fits into it");

/* What its process says until `kind`. */
static enum kv_status await_kind(
    struct kv_line *line, uint32_t kind, uint64_t until_ms, struct kv_line_message *message)
{
	do {
		KV_TRY(kv_line_await(line, until_ms, message));
	} while (message->kind != kind);
	return KV_OK;
}

static enum kv_status ask_store(struct kvc_remote_store *store, const struct kvc_session *session,
    struct kv_line_message *ready)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__LineRequest line = KV__LINE_REQUEST__INIT;

	line.address.data = ready->text;
	line.address.len = ready->length;
	request.body_case = KV__REQUEST__BODY_LINE;
	request.line = &line;
	return kvc_channel_call(store->channel, session->number, &request, store->call_ms, NULL);
}

static enum kv_status link_up(struct kvc_remote_store *store, struct kvc_session *session)
{
	struct kv_line_message message;
	enum kv_status status;

	KV_TRY(await_kind(session->line, KV_LINE_READY, kv_now_ms() + LINK_MS, &message));
	KV_TRY(ask_store(store, session, &message));
	status = await_kind(session->line, KV_LINE_LINKED, kv_now_ms() + LINK_MS, &message);
	if (status != KV_TIMEOUT) return status;
	return kv_fail(KV_TIMEOUT,
	    "the store's UCX does not reach this host at %s (%s): do both name the same network, is a "
	    "firewall between them?",
	    store->network.rdma ? "its RDMA device" : store->network.address, store->network.device);
}

enum kv_status kvc_line_open(struct kvc_remote_store *store, struct kvc_session *session)
{
	enum kv_status status;

	KV_TRY(kv_line_open(store->base.allocator, &store->network, KV_LINE_RECEIVES, &session->line));
	status = link_up(store, session);
	if (status == KV_OK) return KV_OK;
	kv_line_close(session->line);
	session->line = NULL;
	return status;
}

void kvc_line_lose(struct kvc_remote_store *store)
{
	struct kvc_session *session = store->current;

	if (!session->line) return;
	kv_warning(MODULE, "UCX to the store is lost, its stream is used: %s", kv_error_message());
	kv_line_close(session->line);
	session->line = NULL;
	kvc_session_lanes(store);
}

enum kv_status kvc_line_expect(
    struct kvc_remote_store *store, struct kvc_stream_batch *batch, uint32_t slot)
{
	struct kv_line_message message = {.kind = KV_LINE_EXPECT,
	    .slot = slot,
	    .number = store->stream.number + 1,
	    .bytes = batch->bytes};

	KV_TRY(kv_line_tell(store->current->line, &message));
	batch->number = ++store->stream.number;
	return KV_OK;
}

void kvc_line_forget(
    struct kvc_remote_store *store, const struct kvc_stream_batch *batch, uint32_t slot)
{
	struct kv_line_message message = {
	    .kind = KV_LINE_FORGET, .slot = slot, .number = batch->number};

	/* Where it fails the line is lost, and the next fetch finds that. */
	if (batch->number && store->current->line) (void)kv_line_tell(store->current->line, &message);
}

static void note_arrival(struct kvc_stream *stream, uint64_t number)
{
	for (uint32_t i = 0; i < stream->batch_count; i++) {
		struct kvc_stream_batch *batch =
		    &stream->batches[(stream->first_batch + i) % KVC_STREAM_WINDOW];

		/* Others were given up. */
		if (batch->number == number) batch->arrived = true;
	}
}

enum kv_status kvc_line_await(struct kvc_remote_store *store)
{
	struct kvc_stream *stream = &store->stream;
	const struct kvc_stream_batch *oldest = &stream->batches[stream->first_batch];
	struct kv_line_message message;

	if (!store->current->line) return kv_fail(KV_DISCONNECTED, "the line was lost before");
	while (!oldest->arrived) {
		KV_TRY(kv_line_await(store->current->line, stream->line_until_ms, &message));
		if (message.kind == KV_LINE_ARRIVED) note_arrival(stream, message.number);
	}
	return KV_OK;
}
