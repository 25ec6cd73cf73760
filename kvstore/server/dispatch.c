/* From a message to its handler, and from the handler's answer to the peer. */
#include <string.h>

#include "common/base/log.h"
#include "common/runtime/fault_point.h"
#include "kvstore/server/server_internal.h"

#define STATE(name) KV_STATE_BIT(name)

struct route {
	Kv__Request__BodyCase body;
	const char *name;
	uint32_t states; /* in which it is allowed */
	kvs_handler handler;
};

static const struct route routes[] = {
    {KV__REQUEST__BODY_HELLO, "hello", STATE(KVS_GREETING), kvs_handle_hello},
    {KV__REQUEST__BODY_HEARTBEAT, "heartbeat",
        STATE(KVS_GUEST) | STATE(KVS_WORKING) | STATE(KVS_LAPSED), kvs_handle_heartbeat},
    {KV__REQUEST__BODY_COUNTERS, "counters", STATE(KVS_WORKING) | STATE(KVS_LAPSED),
        kvs_handle_counters},
    {KV__REQUEST__BODY_OPEN, "open", STATE(KVS_WORKING), kvs_handle_open},
    {KV__REQUEST__BODY_RESUME, "resume", STATE(KVS_WORKING), kvs_handle_resume},
    {KV__REQUEST__BODY_CLOSE, "close", STATE(KVS_WORKING), kvs_handle_close},
    {KV__REQUEST__BODY_PUSH, "push", STATE(KVS_WORKING), kvs_handle_push},
    {KV__REQUEST__BODY_RESERVE, "reserve", STATE(KVS_WORKING), kvs_handle_reserve},
    {KV__REQUEST__BODY_RELEASE, "release", STATE(KVS_WORKING), kvs_handle_release},
    {KV__REQUEST__BODY_PUT, "put", STATE(KVS_WORKING), kvs_handle_put},
    {KV__REQUEST__BODY_FETCH, "fetch", STATE(KVS_WORKING), kvs_handle_fetch},
    {KV__REQUEST__BODY_LINE, "line", STATE(KVS_WORKING), kvs_handle_line},
    {KV__REQUEST__BODY_COMMIT, "commit", STATE(KVS_WORKING), kvs_handle_commit},
};

static const struct route *find_route(const Kv__Request *request)
{
	for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++)
		if (routes[i].body == request->body_case) return &routes[i];
	return NULL;
}

static enum kv_status check_state(const struct kvs_peer *peer, const struct route *route)
{
	if (route->states & KV_STATE_BIT(peer->state.state)) return KV_OK;
	if (peer->state.state == KVS_LAPSED)
		return kv_fail(KV_STALE, "the lease of %s has lapsed: connect again", peer->name);
	return kv_fail(
	    KV_PROTOCOL, "%s is not allowed while %s", route->name, kv_state_name(&peer->state));
}

/* With the moments at which tests stop this process: served, and not answered. */
static enum kv_status serve(struct kvs_peer *peer, const struct route *route, Kv__Request *request,
    struct kvs_answer *answer)
{
	const bool reserves = route->body == KV__REQUEST__BODY_RESERVE;
	const struct kvs_engine *engine = peer->server->engine;
	const uint64_t evicted = kvs_engine_evictions(engine);

	KV_TRY(route->handler(peer, request, answer));
	if (route->body == KV__REQUEST__BODY_HELLO && peer->slot_taken) kv_fault_stop("store.hello");
	if (reserves) kv_fault_stop("store.reserve");
	if (reserves && kvs_engine_evictions(engine) > evicted) kv_fault_stop("store.evict");
	return KV_OK;
}

void kvs_dispatch(struct kvs_peer *peer, Kv__Request *request)
{
	const struct route *route = find_route(request);
	struct kvs_answer answer;
	enum kv_status status;

	memset(&answer, 0, sizeof answer);
	kv__response__init(&answer.response);
	answer.response.id = request->id;
	if (!request->id)
		status = kv_fail(KV_PROTOCOL, "a request has an id other than 0");
	else if (!route)
		status = kv_fail(KV_PROTOCOL, "unknown request");
	else
		status = check_state(peer, route);
	if (status == KV_PROTOCOL) answer.close_after = true;
	if (status == KV_OK) status = serve(peer, route, request, &answer);
	if (answer.close_after) kvs_peer_finish(peer);
	if (status != KV_OK) {
		kv_debug(KVS_MODULE, "%s refused name=%s: %s", route ? route->name : "request", peer->name,
		    kv_error_message());
		kvs_peer_respond_error(peer, request->id, status);
	} else if (answer.grow_bytes) {
		peer->growing = request;
		peer->growing_bytes = answer.grow_bytes;
		kvs_growth_start(peer->server);
		return;
	} else if (answer.loads) {
		kvs_disk_load_waits(peer, request);
		return;
	} else if (!answer.later) {
		kvs_peer_respond(peer, &answer.response, answer.regions);
	}
	kvs_segment_set_destroy(&answer.segments);
	kvs_segment_set_destroy(&answer.pieces);
	kv_free(peer->server->allocator, answer.piece_tokens);
	kv_free(peer->frames, answer.data);
	kv_codec_request_free(peer->frames, request);
}

/* ---- segments in answers ---- */

enum kv_status kvs_segment_set_create(struct kvs_segment_set *set, const struct kvs_server *server,
    uint32_t capacity, uint32_t layers)
{
	size_t item = sizeof(Kv__Segment *) + sizeof(Kv__Segment) +
	              (size_t)layers * (sizeof(uint64_t) + sizeof(uint32_t));
	uint8_t *block = kv_alloc_array_zero(server->allocator, capacity, item);
	Kv__Segment *messages;
	uint64_t *offsets;
	uint32_t *regions;

	if (!block) return KV_NO_MEMORY;
	messages = (Kv__Segment *)(void *)block;
	offsets = (uint64_t *)(void *)(messages + capacity);
	set->allocator = server->allocator;
	set->pointers = (Kv__Segment **)(void *)(offsets + (size_t)capacity * layers);
	regions = (uint32_t *)(void *)(set->pointers + capacity);
	set->count = 0;
	set->capacity = capacity;
	set->layers = layers;
	set->checksums = server->settings->verify == KVS_VERIFY_FETCH;
	for (uint32_t i = 0; i < capacity; i++) {
		kv__segment__init(&messages[i]);
		messages[i].unit_offset = offsets + (size_t)i * layers;
		messages[i].unit_region = regions + (size_t)i * layers;
		set->pointers[i] = &messages[i];
	}
	return KV_OK;
}

void kvs_segment_set_add(struct kvs_segment_set *set, const struct kvs_segment_view *view)
{
	Kv__Segment *message = set->pointers[set->count++];

	message->segment_id = view->id;
	message->start = view->start;
	message->tokens = view->tokens;
	message->kind = (uint32_t)view->kind;
	message->provenance = (uint32_t)view->provenance;
	message->n_unit_region = message->n_unit_offset = set->layers;
	for (uint32_t layer = 0; layer < set->layers; layer++) {
		message->unit_region[layer] = view->units[layer].region;
		message->unit_offset[layer] = view->units[layer].offset;
	}
	if (!set->checksums || !view->checksums) return;
	/* Only read, and gone before the segment may go. */
	message->checksums = (uint32_t *)(uintptr_t)view->checksums;
	message->n_checksums = set->layers;
}

void kvs_segment_set_destroy(struct kvs_segment_set *set)
{
	/* The messages come first in the block. */
	if (set->pointers && set->capacity) kv_free(set->allocator, set->pointers[0]);
	memset(set, 0, sizeof *set);
}
