/* A store behind a connection: opening it, sequences, reading. */
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/transport/transport_map.h"
#include "kvstore/client/remote_internal.h"

static struct kvc_remote_sequence *remote_part(const struct kvc_sequence *sequence)
{
	return sequence->backend;
}

/* ---- sequences ---- */

static enum kv_status begin_sequence(struct kvc_sequence *sequence)
{
	struct kvc_remote_store *store = kvc_remote_of(sequence->store);
	struct kvc_remote_sequence *remote;

	KV_TRY(kvc_session_adopt(store));
	remote = kv_alloc_zero(store->base.allocator, sizeof *remote);
	if (!remote) return KV_NO_MEMORY;
	remote->session = store->current;
	remote->session->users++;
	sequence->backend = remote;
	sequence->session = store->current->number;
	return KV_OK;
}

static enum kv_status take_segments(
    struct kvc_sequence *sequence, Kv__Segment *const *segments, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct kvc_entry *entry = NULL;

		KV_TRY(kvc_remote_entry(sequence, segments[i], &entry));
		KV_TRY(kvc_list_append(sequence->store->allocator, &sequence->list, entry));
	}
	return KV_OK;
}

static enum kv_status take_pieces(struct kvc_sequence *sequence, const Kv__OpenResponse *open)
{
	if (!open->n_pieces) return KV_OK;
	if (open->n_piece_tokens != open->n_pieces)
		return kv_fail(KV_PROTOCOL, "the store's answer to open is malformed");
	sequence->pieces =
	    kv_alloc_array(sequence->store->allocator, open->n_pieces, sizeof *sequence->pieces);
	if (!sequence->pieces) return KV_NO_MEMORY;
	for (size_t i = 0; i < open->n_pieces; i++) {
		struct kvc_entry *entry = NULL;

		KV_TRY(kvc_remote_entry(sequence, open->pieces[i], &entry));
		if (open->piece_tokens[i] > entry->view.tokens)
			return kv_fail(KV_PROTOCOL, "a piece counts more tokens than its segment has");
		sequence->pieces[i] =
		    (struct kvc_piece){.segment = &entry->view, .tokens = open->piece_tokens[i]};
		sequence->piece_count++;
	}
	return KV_OK;
}

static enum kv_status take_identity(
    struct kvc_sequence *sequence, uint64_t handle, const char *id, uint32_t decoded)
{
	struct kvc_remote_store *store = kvc_remote_of(sequence->store);

	sequence->handle = handle;
	snprintf(sequence->id, sizeof sequence->id, "%s", id);
	KV_TRY(kvc_session_attach(store));
	return kvc_pusher_create(
	    store->channel, sequence->session, handle, decoded, &remote_part(sequence)->pusher);
}

static enum kv_status remote_open(
    struct kvc_sequence *sequence, const struct kvc_open_request *request)
{
	struct kvc_remote_store *store = kvc_remote_of(sequence->store);
	Kv__Request message = KV__REQUEST__INIT;
	Kv__OpenRequest open = KV__OPEN_REQUEST__INIT;
	Kv__Response *response = NULL;
	Kv__Cut *cuts;
	Kv__Cut **pointers;
	enum kv_status status;

	KV_TRY(begin_sequence(sequence));
	cuts =
	    kv_alloc_array(store->base.allocator, request->cut_count, sizeof *cuts + sizeof *pointers);
	if (!cuts) return KV_NO_MEMORY;
	pointers = (Kv__Cut **)(void *)(cuts + request->cut_count);
	for (uint32_t i = 0; i < request->cut_count; i++) {
		kv__cut__init(&cuts[i]);
		cuts[i].end = request->cuts[i].end;
		cuts[i].kind = (uint32_t)request->cuts[i].kind;
		pointers[i] = &cuts[i];
	}
	open.sequence_id = (char *)(uintptr_t)(request->sequence_id ? request->sequence_id : "");
	open.prompt.data = (uint8_t *)(uintptr_t)request->prompt;
	open.prompt.len = request->prompt_tokens * sizeof(int32_t);
	open.cuts = pointers;
	open.n_cuts = request->cut_count;
	open.policy_digest.data = (uint8_t *)(uintptr_t)request->policy_digest;
	open.policy_digest.len = sizeof request->policy_digest;
	open.parameters.data = (uint8_t *)(uintptr_t)request->parameters;
	open.parameters.len = request->parameter_bytes;
	message.body_case = KV__REQUEST__BODY_OPEN;
	message.open = &open;
	status =
	    kvc_channel_call(store->channel, sequence->session, &message, store->call_ms, &response);
	kv_free(store->base.allocator, cuts);
	if (status != KV_OK) return status;
	if (response->body_case != KV__RESPONSE__BODY_OPEN)
		KV_TRY_GOTO(
		    status, kv_fail(KV_PROTOCOL, "the store answered open with something else"), out);
	KV_TRY_GOTO(status,
	    take_identity(sequence, response->open->sequence, response->open->sequence_id, 0), out);
	KV_TRY_GOTO(
	    status, take_segments(sequence, response->open->shared, response->open->n_shared), out);
	status = take_pieces(sequence, response->open);
out:
	kvc_channel_free(store->channel, response);
	return status;
}

static enum kv_status hold(
    struct kvc_sequence *sequence, size_t index, const ProtobufCBinaryData *bytes)
{
	uint8_t *copy = kv_alloc(sequence->store->allocator, bytes->len);

	if (!copy) return KV_NO_MEMORY;
	if (bytes->len) memcpy(copy, bytes->data, bytes->len);
	sequence->held[index] = copy;
	return KV_OK;
}

static enum kv_status take_state(
    struct kvc_sequence *sequence, const Kv__ResumeResponse *resume, struct kvc_resume_state *state)
{
	KV_TRY(hold(sequence, 0, &resume->prompt));
	KV_TRY(hold(sequence, 1, &resume->decoded));
	KV_TRY(hold(sequence, 2, &resume->sampler_state));
	KV_TRY(hold(sequence, 3, &resume->parameters));
	*state = (struct kvc_resume_state){.prompt = (const int32_t *)(const void *)sequence->held[0],
	    .decoded = (const int32_t *)(const void *)sequence->held[1],
	    .prompt_tokens = (uint32_t)(resume->prompt.len / sizeof(int32_t)),
	    .decoded_tokens = (uint32_t)(resume->decoded.len / sizeof(int32_t)),
	    .sampler_state = sequence->held[2],
	    .parameters = sequence->held[3],
	    .sampler_bytes = resume->sampler_state.len,
	    .parameter_bytes = resume->parameters.len};
	return KV_OK;
}

static enum kv_status remote_resume(struct kvc_sequence *sequence, const char *id,
    const uint8_t policy_digest[32], struct kvc_resume_state *state)
{
	struct kvc_remote_store *store = kvc_remote_of(sequence->store);
	Kv__Request message = KV__REQUEST__INIT;
	Kv__ResumeRequest resume = KV__RESUME_REQUEST__INIT;
	Kv__Response *response = NULL;
	enum kv_status status;

	KV_TRY(begin_sequence(sequence));
	resume.sequence_id = (char *)(uintptr_t)id;
	resume.policy_digest.data = (uint8_t *)(uintptr_t)policy_digest;
	resume.policy_digest.len = 32;
	message.body_case = KV__REQUEST__BODY_RESUME;
	message.resume = &resume;
	KV_TRY(
	    kvc_channel_call(store->channel, sequence->session, &message, store->call_ms, &response));
	if (response->body_case != KV__RESPONSE__BODY_RESUME)
		KV_TRY_GOTO(
		    status, kv_fail(KV_PROTOCOL, "the store answered resume with something else"), out);
	KV_TRY_GOTO(status,
	    take_identity(sequence, response->resume->sequence, id,
	        (uint32_t)(response->resume->decoded.len / sizeof(int32_t))),
	    out);
	KV_TRY_GOTO(status,
	    take_segments(sequence, response->resume->segments, response->resume->n_segments), out);
	status = take_state(sequence, response->resume, state);
out:
	kvc_channel_free(store->channel, response);
	return status;
}

static void tell_closed(struct kvc_sequence *sequence, bool keep)
{
	struct kvc_remote_store *store = kvc_remote_of(sequence->store);
	struct kvc_remote_sequence *remote = remote_part(sequence);
	Kv__Request message = KV__REQUEST__INIT;
	Kv__CloseRequest request = KV__CLOSE_REQUEST__INIT;

	if (keep && remote->pusher) kvc_pusher_flush(remote->pusher, store->call_ms);
	/* While the store takes its time, the thread must send nothing of a sequence that is closed. */
	kvc_pusher_destroy(remote->pusher);
	remote->pusher = NULL;
	request.sequence = sequence->handle;
	request.keep = keep;
	message.body_case = KV__REQUEST__BODY_CLOSE;
	message.close = &request;
	/* Whatever comes of it, the store lets go of the sequence when the lease ends. */
	kvc_channel_call(store->channel, sequence->session, &message, store->call_ms, NULL);
}

static void remote_close(struct kvc_sequence *sequence, bool keep)
{
	struct kvc_remote_store *store = kvc_remote_of(sequence->store);
	struct kvc_remote_sequence *remote = remote_part(sequence);
	struct kvc_session *session;

	if (!remote) return;
	kvc_remote_drain_puts(store, sequence);
	session = remote->session;
	if (sequence->handle && kvc_channel_session(store->channel) == session->number)
		tell_closed(sequence, keep);
	kvc_pusher_destroy(remote->pusher);
	kv_free(store->base.allocator, remote);
	sequence->backend = NULL;
	session->users--;
	if (!session->users && session != store->current) kvc_session_retire(store, session);
}

static enum kv_status remote_check(const struct kvc_sequence *sequence)
{
	return kvc_session_check(kvc_remote_of(sequence->store), remote_part(sequence)->session);
}

static enum kv_status remote_check_store(struct kvc_store *base)
{
	struct kvc_remote_store *store = kvc_remote_of(base);
	struct kv_list *node;

	KV_TRY(kvc_session_check(store, store->current));
	/* What was read may have come through an earlier session: while one of its sequences is open,
	 * only kvc_sequence_check can tell. */
	KV_LIST_EACH(node, &store->sessions)
	{
		const struct kvc_session *session = KV_CONTAINER_OF(node, struct kvc_session, node);

		if (session != store->current && session->users)
			return kv_fail(
			    KV_STALE, "%u sequences of an earlier connection are still open", session->users);
	}
	return KV_OK;
}

/* ---- reading ---- */

static enum kv_status start_reads(
    struct kvc_remote_store *store, const struct kvc_read *reads, uint32_t count)
{
	struct kvc_session *session = store->current;
	uint32_t filled = 0;

	for (uint32_t i = 0; i < count; i++) {
		const struct kvc_entry *entry = kvc_entry_of(reads[i].segment);
		const struct kvc_unit *unit = &entry->units[reads[i].layer];

		if (entry->session != session->number)
			return kv_fail(KV_STALE, "segment %llu is of an earlier connection",
			    (unsigned long long)entry->view.id);
		if (unit->read) {
			memcpy(reads[i].destination, unit->read + reads[i].offset, reads[i].bytes);
			continue;
		}
		store->transfers[filled++] = (struct kv_transfer){
		    .remote = kvc_session_region(session, entry->region[reads[i].layer])->remote,
		    .offset = entry->offset[reads[i].layer] + reads[i].offset,
		    .bytes = reads[i].bytes,
		    .local = reads[i].destination};
		store->fetch_waits = true;
		if (filled < KVC_FETCH_CHUNK) continue;
		KV_TRY(session->ops->get(session->client, store->transfers, filled));
		filled = 0;
	}
	if (filled) KV_TRY(session->ops->get(session->client, store->transfers, filled));
	return KV_OK;
}

/* A transport may close a path on which something was late; the connection would stay without one,
 * and all that is asked for later would fail. */
static void note_fetch(struct kvc_remote_store *store, enum kv_status status)
{
	/* On a stream late is slow: a line that is dead is silent, and ends by that. */
	if (!store->current->ops || (status != KV_TIMEOUT && status != KV_DISCONNECTED))
		store->fetches_failed = 0;
	else if (++store->fetches_failed == KVC_FETCHES_FAIL)
		kvc_channel_drop(store->channel);
}

static enum kv_status remote_fetch_start(
    struct kvc_store *base, const struct kvc_read *reads, uint32_t count)
{
	struct kvc_remote_store *store = kvc_remote_of(base);
	struct kvc_session *session = store->current;
	enum kv_status status;

	KV_TRY(kvc_session_check(store, session));
	store->fetch_session = session->number;
	store->fetch_reads = reads;
	store->fetch_count = count;
	status = session->ops ? start_reads(store, reads, count)
	                      : kvc_stream_start(store, reads, count, store->fetch_ms);
	if (status == KV_OK) return KV_OK;
	/* The caller does not wait for what was not started: nothing may arrive after this. */
	if (store->fetch_waits && session->ops)
		(void)session->ops->wait(session->client, store->fetch_ms);
	store->fetch_waits = false;
	store->fetch_session = 0;
	note_fetch(store, status);
	return status;
}

static enum kv_status remote_fetch_wait(struct kvc_store *base)
{
	struct kvc_remote_store *store = kvc_remote_of(base);
	struct kvc_session *session = store->current;
	enum kv_status status = KV_OK;

	if (!session->ops)
		status = kvc_stream_wait(store);
	else if (store->fetch_waits)
		status = session->ops->wait(session->client, store->fetch_ms);
	store->fetch_waits = false;
	note_fetch(store, status);
	if (status == KV_OK && store->fetch_session != session->number)
		status = kv_fail(KV_STALE, "the store was connected to anew while a fetch was under way");
	store->fetch_session = 0;
	if (status != KV_OK) return status;
	status = kvc_verify_batch(store);
	/* A lapsed lease explains wrong bytes. */
	KV_TRY(kvc_session_check(store, session));
	return status;
}

/* ---- pushes and counters ---- */

static enum kv_status remote_push(struct kvc_sequence *sequence, const int32_t *decoded,
    uint32_t decoded_tokens, const void *sampler_state, size_t sampler_bytes)
{
	return kvc_pusher_add(
	    remote_part(sequence)->pusher, decoded, decoded_tokens, sampler_state, sampler_bytes);
}

static enum kv_status remote_flush(struct kvc_sequence *sequence)
{
	return kvc_pusher_flush(remote_part(sequence)->pusher, kvc_remote_of(sequence->store)->call_ms);
}

static void remote_report(
    struct kvc_store *store, const struct kvc_counter *counters, uint32_t count)
{
	kvc_channel_report(kvc_remote_of(store)->channel, counters, count);
}

/* ---- the store ---- */

static int remote_connected(struct kvc_store *store)
{
	return kvc_channel_alive(kvc_remote_of(store)->channel);
}

static int remote_draining(struct kvc_store *store)
{
	return kvc_channel_draining(kvc_remote_of(store)->channel);
}

static uint64_t remote_generation(struct kvc_store *store)
{
	return kvc_remote_of(store)->current->generation;
}

/* What is in use: a line that was lost has left the stream. */
static const char *remote_transport(struct kvc_store *base)
{
	const struct kvc_remote_store *store = kvc_remote_of(base);

	if (store->on_other_host && !store->current->line) return KVC_STREAM;
	return store->current->transport;
}

static const char *remote_lanes(struct kvc_store *store)
{
	return kvc_remote_of(store)->lanes;
}

static void remote_destroy(struct kvc_store *base)
{
	struct kvc_remote_store *store = kvc_remote_of(base);
	struct kv_list *node;

	if (store->channel) kvc_remote_drain_puts(store, NULL);
	while ((node = kv_list_first(&store->sessions)))
		kvc_session_destroy(store, KV_CONTAINER_OF(node, struct kvc_session, node));
	kvc_channel_destroy(store->channel);
	kv_free(store->base.allocator, store->verify_memory);
	if (store->staging_memory)
		kv_staging_destroy(store->staging_memory, store->staging_bytes, store->staging_descriptor);
	kv_free(store->base.allocator, store);
}

static const struct kvc_backend remote_backend = {
    .destroy = remote_destroy,
    .connected = remote_connected,
    .draining = remote_draining,
    .generation = remote_generation,
    .transport = remote_transport,
    .lanes = remote_lanes,
    .open = remote_open,
    .resume = remote_resume,
    .close = remote_close,
    .check = remote_check,
    .check_store = remote_check_store,
    .reserve = kvc_remote_reserve,
    .unit_begin = kvc_remote_unit_begin,
    .unit_end = kvc_remote_unit_end,
    .commit = kvc_remote_commit,
    .release = kvc_remote_release,
    .unit_drop = kvc_remote_unit_drop,
    .fetch_start = remote_fetch_start,
    .fetch_wait = remote_fetch_wait,
    .push = remote_push,
    .flush = remote_flush,
    .report = remote_report,
    .show_memory = kvc_session_show_memory,
};

/* The asked size in whole pages; it is not known yet whether the store wants it. */
static enum kv_status create_staging(
    struct kvc_remote_store *store, const struct kvc_options *options)
{
	uint64_t bytes = options->staging_bytes ? options->staging_bytes : KVC_STAGING_BYTES;

	if (options->staging_bytes > (UINT64_C(1) << 40))
		return kv_fail(KV_LIMIT, "staging memory of %llu bytes is above the limit of 1 TiB",
		    (unsigned long long)options->staging_bytes);
	bytes = (bytes + 4095) & ~UINT64_C(4095);
	KV_TRY(kv_staging_create(bytes, &store->staging_memory, &store->staging_descriptor));
	store->staging_bytes = bytes;
	kvc_staging_init(&store->staging, bytes);
	return KV_OK;
}

/* Before a transport's name, for tests. */
static const char faulty_prefix[] = "faulty-";

static enum kv_status start_channel(
    struct kvc_remote_store *store, const struct kvc_options *options)
{
	const char *transport = options->transport ? options->transport : "auto";
	struct kvc_channel_settings settings = {.allocator = options->allocator,
	    .path = strchr(options->address, ':') + 1,
	    .secret = options->secret,
	    .name = options->name,
	    .kind = "gpu-worker",
	    .model_name = options->model_name,
	    .model_id = options->model_id,
	    .layout = options->layout,
	    .transport = transport,
	    .staging_descriptor = options->secret ? -1 : store->staging_descriptor,
	    .staging_bytes = store->staging_bytes};

	store->faulty = strncmp(transport, faulty_prefix, sizeof faulty_prefix - 1) == 0;
	if (store->faulty) settings.transport = transport + sizeof faulty_prefix - 1;
	KV_TRY(kvc_channel_create(&settings, &store->channel));
	KV_TRY(kvc_channel_wait_session(store->channel, options->connect_ms));
	return kvc_session_adopt(store);
}

static enum kv_status find_network(
    struct kvc_remote_store *store, const struct kvc_options *options)
{
	if (!store->on_other_host || !options->transport ||
	    strcmp(options->transport, KVC_BY_UCX) != 0)
		return KV_OK;
	KV_TRY(kv_trusted_network_find(options->trusted_network, &store->network));
	kv_warning("store-client",
	    "trusted network device=%s address=%s: what is fetched from the store comes over it neither"
	    " encrypted nor authenticated",
	    store->network.device, store->network.rdma ? "rdma" : store->network.address);
	return KV_OK;
}

enum kv_status kvc_remote_open(const struct kvc_options *options, struct kvc_store **store)
{
	struct kvc_remote_store *created = kv_alloc_zero(options->allocator, sizeof *created);
	enum kv_status status;

	if (!created) return KV_NO_MEMORY;
	created->base.backend = &remote_backend;
	created->base.allocator = options->allocator;
	created->base.layout = options->layout;
	kv_list_init(&created->base.sequences);
	kv_list_init(&created->sessions);
	created->staging_descriptor = -1;
	created->call_ms = options->call_ms ? options->call_ms : KVC_CALL_MS;
	created->fetch_ms = options->fetch_ms ? options->fetch_ms : KVC_FETCH_MS;
	created->on_other_host = options->secret != NULL;
	KV_TRY_GOTO(status, find_network(created, options), fail);
	KV_TRY_GOTO(status, create_staging(created, options), fail);
	KV_TRY_GOTO(status, start_channel(created, options), fail);
	*store = &created->base;
	return KV_OK;
fail:
	remote_destroy(&created->base);
	return status;
}
