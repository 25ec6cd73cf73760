/* Sequences: open, resume, close, push; reserve and release. */
#include <string.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "kvstore/server/server_internal.h"

static uint32_t layers_of(const struct kvs_segment_view *view)
{
	return view->layers;
}

/* The sequence's list from `first` on, as messages. */
static enum kv_status collect_list(struct kvs_peer *peer, uint64_t sequence, uint32_t first,
    uint32_t count, struct kvs_segment_set *set)
{
	struct kvs_engine *engine = peer->server->engine;
	struct kvs_segment_view view;

	for (uint32_t i = 0; i < count; i++) {
		KV_TRY(kvs_sequence_segment(engine, sequence, first + i, &view));
		if (!set->pointers)
			KV_TRY(kvs_segment_set_create(set, peer->server, count, layers_of(&view)));
		kvs_segment_set_add(set, &view);
	}
	return KV_OK;
}

static enum kv_status collect_pieces(
    struct kvs_peer *peer, const struct kvs_open_result *opened, struct kvs_answer *answer)
{
	struct kvs_segment_view view;

	if (!opened->pieces) return KV_OK;
	answer->piece_tokens =
	    kv_alloc_array(peer->server->allocator, opened->pieces, sizeof *answer->piece_tokens);
	if (!answer->piece_tokens) return KV_NO_MEMORY;
	for (uint32_t i = 0; i < opened->pieces; i++) {
		KV_TRY(kvs_sequence_piece(
		    peer->server->engine, opened->sequence, i, &view, &answer->piece_tokens[i]));
		if (!answer->pieces.pointers)
			KV_TRY(kvs_segment_set_create(
			    &answer->pieces, peer->server, opened->pieces, layers_of(&view)));
		kvs_segment_set_add(&answer->pieces, &view);
	}
	return KV_OK;
}

static void fill_open(
    const Kv__OpenRequest *message, const struct kvs_cut *cuts, struct kvs_open_request *request)
{
	*request = (struct kvs_open_request){.sequence_id = message->sequence_id,
	    .prompt = (const uint32_t *)(const void *)message->prompt.data,
	    .prompt_tokens = (uint32_t)(message->prompt.len / sizeof(uint32_t)),
	    .cuts = cuts,
	    .cut_count = (uint32_t)message->n_cuts,
	    .parameters = message->parameters.data,
	    .parameter_bytes = message->parameters.len};

	if (message->policy_digest.len == sizeof request->policy_digest)
		memcpy(request->policy_digest, message->policy_digest.data, sizeof request->policy_digest);
}

static enum kv_status read_cuts(const Kv__OpenRequest *message, struct kvs_cut *cuts)
{
	for (size_t i = 0; i < message->n_cuts; i++) {
		if (message->cuts[i]->kind > KVW_PLAIN)
			return kv_fail(KV_INVALID, "cut %zu is of unknown kind %u", i, message->cuts[i]->kind);
		cuts[i].end = message->cuts[i]->end;
		cuts[i].kind = (enum kvw_segment_kind)message->cuts[i]->kind;
	}
	return KV_OK;
}

/* *loads: it waits for the disk tier, and nothing was opened. */
static enum kv_status open_with_cuts(struct kvs_peer *peer, const Kv__OpenRequest *message,
    struct kvs_open_result *result, bool *loads)
{
	struct kv_allocator *allocator = peer->server->allocator;
	struct kvs_cut *cuts = kv_alloc_array(allocator, message->n_cuts, sizeof *cuts);
	struct kvs_open_request request;
	enum kv_status status;

	if (!cuts) return KV_NO_MEMORY;
	status = read_cuts(message, cuts);
	if (status == KV_OK) {
		fill_open(message, cuts, &request);
		*loads = !peer->loaded && kvs_disk_load_prompt(peer, &request);
		if (!*loads) status = kvs_sequence_open(peer->server->engine, peer->slot, &request, result);
	}
	kv_free(allocator, cuts);
	return status;
}

enum kv_status kvs_handle_open(
    struct kvs_peer *peer, const Kv__Request *request, struct kvs_answer *answer)
{
	const Kv__OpenRequest *message = request->open;
	Kv__OpenResponse *open = &answer->body.open;
	struct kvs_open_result opened;
	enum kv_status status;

	KV_TRY(kvs_check_draining(peer->server));
	KV_TRY(open_with_cuts(peer, message, &opened, &answer->loads));
	if (answer->loads) return KV_OK;
	status = collect_list(peer, opened.sequence, 0, opened.shared, &answer->segments);
	if (status == KV_OK) status = collect_pieces(peer, &opened, answer);
	if (status != KV_OK) {
		kvs_sequence_close(peer->server->engine, peer->slot, opened.sequence, 0);
		return status;
	}
	kv__open_response__init(open);
	open->sequence = opened.sequence;
	open->sequence_id = (char *)(uintptr_t)opened.sequence_id;
	open->shared = answer->segments.pointers;
	open->n_shared = answer->segments.count;
	open->pieces = answer->pieces.pointers;
	open->n_pieces = answer->pieces.count;
	open->piece_tokens = answer->piece_tokens;
	open->n_piece_tokens = answer->pieces.count;
	answer->response.body_case = KV__RESPONSE__BODY_OPEN;
	answer->response.open = open;
	answer->regions = true;
	return KV_OK;
}

enum kv_status kvs_handle_resume(
    struct kvs_peer *peer, const Kv__Request *request, struct kvs_answer *answer)
{
	const Kv__ResumeRequest *message = request->resume;
	Kv__ResumeResponse *resume = &answer->body.resume;
	struct kvs_resume_result resumed;
	enum kv_status status;

	if (message->policy_digest.len != KV_CODEC_DIGEST_BYTES)
		return kv_fail(KV_INVALID, "resume takes a policy digest of 32 bytes");
	/* What was begun goes on, also in a store that is being drained. */
	answer->loads = !peer->loaded &&
	                kvs_disk_load_orphan(peer, message->sequence_id, message->policy_digest.data);
	if (answer->loads) return KV_OK;
	KV_TRY(kvs_sequence_resume(peer->server->engine, peer->slot, message->sequence_id,
	    message->policy_digest.data, &resumed));
	status = collect_list(peer, resumed.sequence, 0, resumed.segments, &answer->segments);
	if (status != KV_OK) {
		kvs_sequence_close(peer->server->engine, peer->slot, resumed.sequence, 1);
		return status;
	}
	kv__resume_response__init(resume);
	resume->sequence = resumed.sequence;
	resume->prompt.data = (uint8_t *)(uintptr_t)resumed.prompt;
	resume->prompt.len = resumed.prompt_tokens * sizeof(uint32_t);
	resume->decoded.data = (uint8_t *)(uintptr_t)resumed.decoded;
	resume->decoded.len = resumed.decoded_tokens * sizeof(uint32_t);
	resume->sampler_state.data = (uint8_t *)(uintptr_t)resumed.sampler_state;
	resume->sampler_state.len = resumed.sampler_bytes;
	resume->parameters.data = (uint8_t *)(uintptr_t)resumed.parameters;
	resume->parameters.len = resumed.parameter_bytes;
	resume->segments = answer->segments.pointers;
	resume->n_segments = answer->segments.count;
	answer->response.body_case = KV__RESPONSE__BODY_RESUME;
	answer->response.resume = resume;
	answer->regions = true;
	return KV_OK;
}

enum kv_status kvs_handle_close(
    struct kvs_peer *peer, const Kv__Request *request, struct kvs_answer *answer)
{
	(void)answer;
	return kvs_sequence_close(
	    peer->server->engine, peer->slot, request->close->sequence, request->close->keep);
}

enum kv_status kvs_handle_push(
    struct kvs_peer *peer, const Kv__Request *request, struct kvs_answer *answer)
{
	const Kv__PushRequest *push = request->push;

	(void)answer;
	return kvs_sequence_push(peer->server->engine, peer->slot, push->sequence, push->decoded_before,
	    (const uint32_t *)(const void *)push->tokens.data,
	    (uint32_t)(push->tokens.len / sizeof(uint32_t)), push->sampler_state.data,
	    push->sampler_state.len);
}

static enum kv_status read_new_segments(
    const Kv__ReserveRequest *message, struct kvs_new_segment *segments)
{
	for (size_t i = 0; i < message->n_segments; i++) {
		const Kv__NewSegment *from = message->segments[i];

		if (from->kind > KVW_PLAIN || from->provenance > KVW_APPROXIMATE)
			return kv_fail(KV_INVALID, "segment %zu is of unknown kind %u or provenance %u", i,
			    from->kind, from->provenance);
		segments[i] = (struct kvs_new_segment){.start = from->start,
		    .tokens = from->tokens,
		    .kind = (enum kvw_segment_kind)from->kind,
		    .provenance = (enum kvw_provenance)from->provenance};
	}
	return KV_OK;
}

/* What has to be waited for before the engine is asked. What it would refuse makes no memory. */
static uint64_t bytes_to_grow(struct kvs_peer *peer, const Kv__ReserveRequest *message,
    const struct kvs_new_segment *segments, uint32_t count)
{
	uint64_t bytes = 0;

	if (peer->grown || peer->growing) return 0;
	if (kvs_reserve_check(
	        peer->server->engine, peer->slot, message->sequence, segments, count, &bytes) != KV_OK)
		return 0;
	return kvs_growth_needed(peer->server, bytes) ? bytes : 0;
}

/* At the limit the disk tier may have in use what would have gone otherwise, for the moment of a
 * copy: that is waited for. */
static bool waits_for_disk(struct kvs_peer *peer, enum kv_status status, struct kvs_answer *answer)
{
	if (status != KV_LIMIT || peer->grown || peer->growing || !kvs_disk_holds(peer->server))
		return false;
	answer->grow_bytes = 1;
	peer->growing_until_ms = kv_now_ms() + KVS_DISK_HOLDS_MS;
	return true;
}

static enum kv_status collect_ids(
    struct kvs_peer *peer, const uint64_t *ids, uint32_t count, struct kvs_segment_set *set)
{
	struct kvs_segment_view view;

	for (uint32_t i = 0; i < count; i++) {
		KV_TRY(kvs_segment_find(peer->server->engine, ids[i], &view));
		if (!set->pointers)
			KV_TRY(kvs_segment_set_create(set, peer->server, count, layers_of(&view)));
		kvs_segment_set_add(set, &view);
	}
	return KV_OK;
}

enum kv_status kvs_handle_reserve(
    struct kvs_peer *peer, const Kv__Request *request, struct kvs_answer *answer)
{
	const Kv__ReserveRequest *message = request->reserve;
	struct kvs_engine *engine = peer->server->engine;
	Kv__ReserveResponse *reserve = &answer->body.reserve;
	uint32_t count = (uint32_t)message->n_segments;
	struct kvs_new_segment *segments;
	uint64_t *ids;
	enum kv_status status;

	if (!count) return kv_fail(KV_INVALID, "reserve names no segment");
	ids = kv_alloc_array(peer->server->allocator, count, sizeof *ids + sizeof *segments);
	if (!ids) return KV_NO_MEMORY;
	segments = (struct kvs_new_segment *)(void *)(ids + count);
	KV_TRY_GOTO(status, read_new_segments(message, segments), out);
	answer->grow_bytes = bytes_to_grow(peer, message, segments, count);
	if (answer->grow_bytes) peer->growing_until_ms = 0;
	if (answer->grow_bytes) goto out;
	status = kvs_reserve(engine, peer->slot, message->sequence, segments, count, ids);
	if (waits_for_disk(peer, status, answer)) status = KV_OK;
	if (status != KV_OK || answer->grow_bytes) goto out;
	status = collect_ids(peer, ids, count, &answer->segments);
	if (status != KV_OK) {
		kvs_release(engine, peer->slot, message->sequence, ids, count);
		goto out;
	}
	kv__reserve_response__init(reserve);
	reserve->segments = answer->segments.pointers;
	reserve->n_segments = answer->segments.count;
	answer->response.body_case = KV__RESPONSE__BODY_RESERVE;
	answer->response.reserve = reserve;
	answer->regions = true;
out:
	kv_free(peer->server->allocator, ids);
	return status;
}

enum kv_status kvs_handle_release(
    struct kvs_peer *peer, const Kv__Request *request, struct kvs_answer *answer)
{
	const Kv__ReleaseRequest *release = request->release;

	(void)answer;
	return kvs_release(peer->server->engine, peer->slot, release->sequence, release->segment_ids,
	    (uint32_t)release->n_segment_ids);
}
