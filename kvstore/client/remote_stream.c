/* Reading from and writing to a store on another host: bytes in messages.
 *
 * A batch of reads is cut into requests of a quarter of a MiB, and several of them are under way,
 * so that store, line and worker have something to do at the same time. That an answer carries
 * bytes says that the lease held and the segment was there (kvstore/server/handle_stream.c). */
#include <string.h>

#include "common/base/clock.h"
#include "kvstore/client/remote_internal.h"

enum { SLOWEST_LINE = 4 << 10 }; /* bytes a millisecond */

static uint32_t slot_of(const struct kvc_stream *stream, uint32_t nth)
{
	return (stream->first_batch + nth) % KVC_STREAM_WINDOW;
}

/* The next piece of the reads from *read and *offset on, at most `most` bytes: its size; 0 when
 * there is none. */
static uint64_t piece_at(
    const struct kvc_stream *stream, uint32_t *read, uint64_t *offset, uint64_t most)
{
	uint64_t left = 0;

	while (*read < stream->count && !(left = stream->reads[*read].bytes - *offset)) {
		++*read;
		*offset = 0;
	}
	return left < most ? left : most;
}

/* Put reads into the arrays of one request, up to its limits. */
static void fill_request(
    struct kvc_stream *stream, Kv__FetchRequest *fetch, struct kvc_stream_batch *batch)
{
	uint32_t count = 0;
	uint64_t bytes;

	*batch = (struct kvc_stream_batch){.read = stream->read, .offset = stream->offset};
	while (count < KVC_STREAM_READS && (bytes = piece_at(stream, &stream->read, &stream->offset,
	                                        KVC_STREAM_BYTES - batch->bytes))) {
		const struct kvc_read *read = &stream->reads[stream->read];

		stream->segment_ids[count] = read->segment->id;
		stream->layers[count] = read->layer;
		stream->offsets[count] = read->offset + stream->offset;
		stream->sizes[count] = (uint32_t)bytes;
		stream->offset += bytes;
		batch->bytes += (uint32_t)bytes;
		count++;
	}
	fetch->segment_ids = stream->segment_ids;
	fetch->layers = stream->layers;
	fetch->offsets = stream->offsets;
	fetch->bytes = stream->sizes;
	fetch->n_segment_ids = fetch->n_layers = fetch->n_offsets = fetch->n_bytes = count;
}

/* Ask for more while there is more and the line is not full. */
static enum kv_status ask(struct kvc_remote_store *store)
{
	struct kvc_stream *stream = &store->stream;

	while (stream->batch_count < KVC_STREAM_WINDOW) {
		Kv__Request request = KV__REQUEST__INIT;
		Kv__FetchRequest fetch = KV__FETCH_REQUEST__INIT;
		struct kvc_stream_batch batch;

		fill_request(stream, &fetch, &batch);
		if (!batch.bytes) return KV_OK;
		if (store->current->line &&
		    kvc_line_expect(store, &batch, slot_of(stream, stream->batch_count)) != KV_OK)
			kvc_line_lose(store);
		fetch.line_number = batch.number;
		request.body_case = KV__REQUEST__BODY_FETCH;
		request.fetch = &fetch;
		KV_TRY(kvc_channel_start(store->channel, store->current->number, &request, &batch.ticket));
		stream->batches[slot_of(stream, stream->batch_count++)] = batch;
	}
	return KV_OK;
}

/* Where a request's bytes belong. */
static void hand_out(
    const struct kvc_stream *stream, const struct kvc_stream_batch *batch, const uint8_t *data)
{
	uint32_t read = batch->read;
	uint64_t offset = batch->offset;
	uint32_t done = 0;

	while (done < batch->bytes) {
		const uint64_t bytes = piece_at(stream, &read, &offset, batch->bytes - done);

		memcpy((uint8_t *)stream->reads[read].destination + offset, data + done, bytes);
		offset += bytes;
		done += (uint32_t)bytes;
	}
}

/* Does an answer to a fetch carry what was fetched? */
static bool has_bytes(const Kv__Response *response)
{
	return response->body_case == KV__RESPONSE__BODY_FETCH && response->fetch->data.len > 0;
}

static enum kv_status take_oldest(struct kvc_remote_store *store)
{
	struct kvc_stream *stream = &store->stream;
	const struct kvc_stream_batch batch = stream->batches[stream->first_batch];
	const uint32_t slot = stream->first_batch;
	Kv__Response *response = NULL;
	enum kv_status status;
	bool by_line;

	KV_TRY(kvc_channel_await(store->channel, batch.ticket, stream->until_ms));
	status = kvc_channel_finish(store->channel, batch.ticket, 0, &response);
	by_line = batch.number && !(status == KV_OK && has_bytes(response));
	/* The line was full: nothing will come over it. */
	if (batch.number && !by_line) kvc_line_forget(store, &batch, slot);
	/* The answer says that the bytes are right; they may still be on their way. */
	if (status == KV_OK && by_line) status = kvc_line_await(store);
	stream->line_lost = batch.number && (status == KV_UNSUPPORTED || response) && status != KV_OK;
	stream->first_batch = slot_of(stream, 1);
	stream->batch_count--;
	/* It was there when the sequence was opened. */
	if (status == KV_NOT_FOUND) status = kv_fail_prefix(KV_STALE, "the store holds it no more");
	if (status != KV_OK) goto out;
	if (response->body_case != KV__RESPONSE__BODY_FETCH ||
	    response->fetch->data.len != (by_line ? 0 : batch.bytes))
		status = kv_fail(KV_PROTOCOL, "the store answered fetch with something else");
	else
		hand_out(stream, &batch,
		    by_line ? kv_line_slot(store->current->line, slot) : response->fetch->data.data);
out:
	kvc_channel_free(store->channel, response);
	return status;
}

/* Nothing may arrive after a failure. */
static enum kv_status give_up(struct kvc_remote_store *store, enum kv_status status)
{
	struct kvc_stream *stream = &store->stream;

	while (stream->batch_count) {
		const uint32_t slot = stream->first_batch;

		kvc_channel_abandon(store->channel, stream->batches[slot].ticket);
		kvc_line_forget(store, &stream->batches[slot], slot);
		stream->first_batch = slot_of(stream, 1);
		stream->batch_count--;
	}
	return status;
}

enum kv_status kvc_stream_start(struct kvc_remote_store *store, const struct kvc_read *reads,
    uint32_t count, uint32_t deadline_ms)
{
	struct kvc_stream *stream = &store->stream;
	uint64_t total = 0;
	enum kv_status status;

	for (uint32_t i = 0; i < count; i++) {
		const struct kvc_entry *entry = kvc_entry_of(reads[i].segment);

		if (entry->session != store->current->number)
			return kv_fail(KV_STALE, "segment %llu is of an earlier connection",
			    (unsigned long long)entry->view.id);
		total += reads[i].bytes;
	}
	stream->reads = reads;
	stream->count = count;
	stream->read = 0;
	stream->offset = 0;
	stream->until_ms = kv_now_ms() + deadline_ms + total / SLOWEST_LINE;
	/* The other half is the stream's. */
	stream->line_until_ms = kv_now_ms() + (stream->until_ms - kv_now_ms()) / 2;
	status = ask(store);
	return status == KV_OK ? KV_OK : give_up(store, status);
}

static enum kv_status bring(struct kvc_remote_store *store)
{
	struct kvc_stream *stream = &store->stream;

	while (stream->batch_count) {
		enum kv_status status = take_oldest(store);

		if (status == KV_OK) status = ask(store);
		if (status != KV_OK) return give_up(store, status);
	}
	return KV_OK;
}

enum kv_status kvc_stream_wait(struct kvc_remote_store *store)
{
	struct kvc_stream *stream = &store->stream;
	enum kv_status status;

	stream->line_lost = false;
	status = bring(store);
	if (status == KV_OK || !stream->line_lost) return status;
	/* All of it once more, without the line. */
	kvc_line_lose(store);
	stream->read = 0;
	stream->offset = 0;
	status = ask(store);
	return status == KV_OK ? bring(store) : give_up(store, status);
}

enum kv_status kvc_stream_put(struct kvc_entry *entry, uint32_t layer)
{
	struct kvc_remote_store *store = kvc_remote_of(entry->sequence->store);
	const struct kvc_unit *unit = &entry->units[layer];
	uint64_t done = 0;

	while (done < unit->bytes) {
		Kv__Request request = KV__REQUEST__INIT;
		Kv__PutRequest put = KV__PUT_REQUEST__INIT;
		const uint64_t left = unit->bytes - done;
		uint32_t ticket;

		put.segment_id = entry->view.id;
		put.layer = layer;
		put.unit_offset = done;
		put.data.data = unit->write + done;
		put.data.len = left < KVC_STREAM_BYTES ? left : KVC_STREAM_BYTES;
		request.body_case = KV__REQUEST__BODY_PUT;
		request.put = &put;
		kvc_remote_put_room(store, KVC_STREAM_PUTS);
		/* The message holds a copy. */
		KV_TRY(kvc_channel_start(store->channel, entry->sequence->session, &request, &ticket));
		kvc_remote_put_begun(entry->sequence, ticket, KVC_NOT_STAGED);
		done += put.data.len;
	}
	return KV_OK;
}
