/* Units in messages, for peers on other hosts; what is fetched may go over a line.
 *
 * All of a request is done in one turn of the loop, and leases end and segments go on the same
 * loop. So an answer that carries bytes says by itself that, when they were copied, the lease held
 * and the segment was there and referred to; that it comes through this connection says of which
 * boot generation it is. There is nothing to look at again afterwards. The same holds where the
 * bytes go over a line: they are copied to it in that turn. */
#include <string.h>

#include "kvstore/server/server_internal.h"

/* Where the bytes of a fetch are copied to: a slot of the line, or, where that is full or was not
 * asked for, the answer (*data). */
static enum kv_status take_room(struct kvs_peer *peer, const Kv__FetchRequest *fetch, size_t bytes,
    uint8_t **room, uint8_t **data)
{
	enum kv_status status = KV_BUSY;

	if (fetch->line_number) status = kvs_line_room(peer, bytes, room);
	if (status != KV_BUSY) return status;
	*room = *data = kv_alloc(peer->frames, bytes);
	return *data ? KV_OK : KV_NO_MEMORY;
}

enum kv_status kvs_handle_fetch(
    struct kvs_peer *peer, const Kv__Request *request, struct kvs_answer *answer)
{
	const Kv__FetchRequest *fetch = request->fetch;
	struct kvs_server *server = peer->server;
	size_t total = 0;
	uint64_t entries = 0;
	uint8_t *target;

	if (!peer->secure)
		return kv_fail(
		    KV_UNSUPPORTED, "fetch is for workers on other hosts, this one reads itself");
	/* The codec has seen to it that this is no more than one answer may hold. */
	for (size_t i = 0; i < fetch->n_bytes; i++)
		total += fetch->bytes[i];
	KV_TRY(kvs_fetch_begin(server->engine, peer->slot, &entries));
	/* Also where it fails half way. */
	peer->turn_bytes += total + fetch->n_segment_ids * KVS_REMOTE_READ_COST +
	                    entries * sizeof(struct kvs_segment *);
	KV_TRY(take_room(peer, fetch, total, &target, &answer->data));
	total = 0;
	for (size_t i = 0; i < fetch->n_segment_ids; i++) {
		const uint8_t *source = NULL;

		KV_TRY(kvs_fetch_source(server->engine, peer->slot, fetch->segment_ids[i], fetch->layers[i],
		    fetch->offsets[i], fetch->bytes[i], &source));
		memcpy(target + total, source, fetch->bytes[i]);
		total += fetch->bytes[i];
	}
	kv_metrics_add(server->metrics, KVS_FETCHED, (int64_t)total);
	kv__fetch_response__init(&answer->body.fetch);
	if (!answer->data) {
		KV_TRY(kvs_line_send(peer, fetch->line_number, total));
		kv_metrics_add(server->metrics, KVS_FETCHED_UCX, (int64_t)total);
	} else {
		answer->body.fetch.data.data = answer->data;
		answer->body.fetch.data.len = total;
	}
	answer->response.body_case = KV__RESPONSE__BODY_FETCH;
	answer->response.fetch = &answer->body.fetch;
	return KV_OK;
}

enum kv_status kvs_put_inline(struct kvs_peer *peer, const Kv__PutRequest *put)
{
	struct kvs_server *server = peer->server;
	struct kvs_segment_view view;
	uint8_t *unit = NULL;
	uint64_t bytes;

	KV_TRY(kvs_segment_find(server->engine, put->segment_id, &view));
	if (put->layer >= view.layers)
		return kv_fail(
		    KV_INVALID, "layer %u is not there, the segment has %u", put->layer, view.layers);
	bytes = view.units[put->layer].bytes;
	if (put->unit_offset > bytes || put->data.len > bytes - put->unit_offset)
		return kv_fail(KV_INVALID, "%zu bytes at %llu leave a unit of %llu", put->data.len,
		    (unsigned long long)put->unit_offset, (unsigned long long)bytes);
	KV_TRY(kvs_put_target(server->engine, peer->slot, put->segment_id, put->layer, bytes, &unit));
	if (put->data.len) memcpy(unit + put->unit_offset, put->data.data, put->data.len);
	kv_metrics_add(server->metrics, KVS_PUT, (int64_t)put->data.len);
	peer->turn_bytes += put->data.len;
	return KV_OK;
}
