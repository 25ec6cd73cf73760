/* Writing through a connection: reserve, units by pointer or by staging memory, commit. */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "kvstore/client/remote_internal.h"

enum { SLOWEST_GROWTH = 64 << 10 }; /* bytes a millisecond, of a loaded machine */

static struct kvc_remote_sequence *remote_part(const struct kvc_sequence *sequence)
{
	return sequence->backend;
}

enum kv_status kvc_remote_entry(
    struct kvc_sequence *sequence, const Kv__Segment *segment, struct kvc_entry **entry)
{
	struct kvc_place place = {.id = segment->segment_id,
	    .start = segment->start,
	    .tokens = segment->tokens,
	    .kind = segment->kind,
	    .provenance = segment->provenance,
	    .region = segment->unit_region,
	    .offset = segment->unit_offset,
	    .units = segment->n_unit_region};
	struct kvc_entry *created = NULL;
	enum kv_status status;

	if (segment->n_unit_region != segment->n_unit_offset)
		return kv_fail(KV_PROTOCOL, "segment %llu is malformed", (unsigned long long)place.id);
	KV_TRY(kvc_entry_create(sequence, &place, &created));
	created->verified = segment->n_checksums == place.units && place.units;
	for (size_t layer = 0; created->verified && layer < place.units; layer++)
		created->units[layer].checksum = segment->checksums[layer];
	status = kvc_session_resolve(remote_part(sequence)->session, created);
	if (status != KV_OK) {
		kvc_entry_destroy(created);
		return status;
	}
	*entry = created;
	return KV_OK;
}

/* ---- reserve ---- */

static enum kv_status take_reserved(struct kvc_sequence *sequence, const Kv__Response *response,
    const struct kvc_new_segment *segments, uint32_t count, struct kvc_entry **out)
{
	const Kv__ReserveResponse *reserved = response->reserve;
	enum kv_status status = KV_OK;
	uint32_t made = 0;

	if (response->body_case != KV__RESPONSE__BODY_RESERVE || reserved->n_segments != count)
		return kv_fail(KV_PROTOCOL, "the store answered reserve with something else");
	for (; made < count; made++) {
		const Kv__Segment *segment = reserved->segments[made];

		if (segment->start != segments[made].start || segment->tokens != segments[made].tokens ||
		    segment->kind != (uint32_t)segments[made].kind) {
			status = kv_fail(KV_PROTOCOL, "the store reserved another segment than was asked");
			break;
		}
		status = kvc_remote_entry(sequence, segment, &out[made]);
		if (status != KV_OK) break;
		out[made]->reserved = true;
	}
	while (status != KV_OK && made)
		kvc_entry_destroy(out[--made]);
	return status;
}

static void release_reserved(struct kvc_sequence *sequence, const Kv__Response *response)
{
	const Kv__ReserveResponse *reserved = response->reserve;

	if (response->body_case != KV__RESPONSE__BODY_RESERVE) return;
	for (size_t i = 0; i < reserved->n_segments; i++)
		kvc_remote_release(sequence, &reserved->segments[i]->segment_id, 1);
}

/* What the store may need beside a call's usual time, to make that much memory: it goes on
 * answering heartbeats meanwhile, so that its death is noticed sooner than that. */
static uint32_t growth_ms(
    const struct kvc_store *store, const struct kvc_new_segment *segments, uint32_t count)
{
	uint64_t total = 0;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t bytes;

		if (kvw_segment_bytes(&store->layout, segments[i].kind, segments[i].start,
		        segments[i].tokens, &bytes) == KV_OK &&
		    total < UINT64_C(1) << 40)
			total += bytes;
	}
	return (uint32_t)(total / SLOWEST_GROWTH);
}

enum kv_status kvc_remote_reserve(struct kvc_sequence *sequence,
    const struct kvc_new_segment *segments, uint32_t count, struct kvc_entry **out)
{
	struct kvc_remote_store *store = kvc_remote_of(sequence->store);
	Kv__Request request = KV__REQUEST__INIT;
	Kv__ReserveRequest reserve = KV__RESERVE_REQUEST__INIT;
	Kv__NewSegment *messages;
	Kv__NewSegment **pointers;
	Kv__Response *response = NULL;
	enum kv_status status;

	messages = kv_alloc_array(store->base.allocator, count, sizeof *messages + sizeof *pointers);
	if (!messages) return KV_NO_MEMORY;
	pointers = (Kv__NewSegment **)(void *)(messages + count);
	for (uint32_t i = 0; i < count; i++) {
		kv__new_segment__init(&messages[i]);
		messages[i].start = segments[i].start;
		messages[i].tokens = segments[i].tokens;
		messages[i].kind = (uint32_t)segments[i].kind;
		messages[i].provenance = (uint32_t)segments[i].provenance;
		pointers[i] = &messages[i];
	}
	reserve.sequence = sequence->handle;
	reserve.segments = pointers;
	reserve.n_segments = count;
	request.body_case = KV__REQUEST__BODY_RESERVE;
	request.reserve = &reserve;
	status = kvc_channel_call(store->channel, sequence->session, &request,
	    store->call_ms + growth_ms(&store->base, segments, count), &response);
	kv_free(store->base.allocator, messages);
	if (status != KV_OK) return status;
	status = kvc_session_attach(store);
	if (status == KV_OK) status = take_reserved(sequence, response, segments, count, out);
	if (status != KV_OK) release_reserved(sequence, response);
	kvc_channel_free(store->channel, response);
	return status;
}

void kvc_remote_release(struct kvc_sequence *sequence, const uint64_t *ids, uint32_t count)
{
	struct kvc_remote_store *store = kvc_remote_of(sequence->store);
	Kv__Request request = KV__REQUEST__INIT;
	Kv__ReleaseRequest release = KV__RELEASE_REQUEST__INIT;

	release.sequence = sequence->handle;
	release.segment_ids = (uint64_t *)(uintptr_t)ids;
	release.n_segment_ids = count;
	request.body_case = KV__REQUEST__BODY_RELEASE;
	request.release = &release;
	/* A release that is lost comes with the end of the lease. */
	kvc_channel_call(store->channel, sequence->session, &request, store->call_ms, NULL);
}

/* ---- puts ---- */

static void finish_put(struct kvc_remote_store *store, uint32_t deadline_ms)
{
	struct kvc_put *put = &store->puts[store->first_put];
	struct kvc_remote_sequence *remote = remote_part(put->sequence);
	enum kv_status status = kvc_channel_finish(store->channel, put->ticket, deadline_ms, NULL);

	if (status != KV_OK && remote->put_status == KV_OK) {
		remote->put_status = status;
		snprintf(remote->put_text, sizeof remote->put_text, "%s", kv_error_message());
	}
	if (put->staged != KVC_NOT_STAGED) kvc_staging_give(&store->staging, put->staged);
	store->first_put = (store->first_put + 1) % KVC_MAX_PUTS;
	store->put_count--;
}

static void reap_puts(struct kvc_remote_store *store)
{
	while (
	    store->put_count && kvc_channel_done(store->channel, store->puts[store->first_put].ticket))
		finish_put(store, 0);
}

void kvc_remote_put_room(struct kvc_remote_store *store, uint32_t most)
{
	reap_puts(store);
	while (store->put_count >= most)
		finish_put(store, store->call_ms);
}

void kvc_remote_put_begun(struct kvc_sequence *sequence, uint32_t ticket, uint64_t staged)
{
	struct kvc_remote_store *store = kvc_remote_of(sequence->store);

	store->puts[(store->first_put + store->put_count++) % KVC_MAX_PUTS] =
	    (struct kvc_put){.ticket = ticket, .staged = staged, .sequence = sequence};
}

void kvc_remote_drain_puts(struct kvc_remote_store *store, const struct kvc_sequence *sequence)
{
	uint32_t left = 0;

	/* Answers come in the order of the requests: waiting for the last one of the sequence costs
	 * nothing more than waiting for its own. */
	for (uint32_t i = 0; i < store->put_count; i++) {
		const struct kvc_put *put = &store->puts[(store->first_put + i) % KVC_MAX_PUTS];

		if (!sequence || put->sequence == sequence) left = i + 1;
	}
	while (left--)
		finish_put(store, store->call_ms);
}

static enum kv_status take_staging(struct kvc_remote_store *store, uint64_t bytes, uint64_t *offset)
{
	uint64_t deadline = kv_now_ms() + store->call_ms;

	if (bytes > store->staging_bytes)
		return kv_fail(KV_LIMIT,
		    "a unit of %llu bytes does not fit into %llu bytes of staging memory",
		    (unsigned long long)bytes, (unsigned long long)store->staging_bytes);
	reap_puts(store);
	while (!kvc_staging_take(&store->staging, bytes, offset)) {
		uint64_t now = kv_now_ms();

		if (!store->put_count)
			return kv_fail(KV_BUSY,
			    "all %llu bytes of staging memory are held by units that were begun and not ended",
			    (unsigned long long)store->staging_bytes);
		if (now >= deadline)
			return kv_fail(KV_TIMEOUT, "the store took no unit for %u ms", store->call_ms);
		finish_put(store, (uint32_t)(deadline - now));
	}
	return KV_OK;
}

enum kv_status kvc_remote_unit_begin(struct kvc_entry *entry, uint32_t layer)
{
	struct kvc_remote_store *store = kvc_remote_of(entry->sequence->store);
	struct kvc_session *session = remote_part(entry->sequence)->session;
	struct kvc_unit *unit = &entry->units[layer];

	unit->staged = KVC_NOT_STAGED;
	if (session->ops) {
		const struct kvc_attached *region = kvc_session_region(session, entry->region[layer]);

		unit->write = session->ops->direct_write(region->remote, entry->offset[layer], unit->bytes);
		if (unit->write) return KV_OK;
	}
	KV_TRY(take_staging(store, unit->bytes, &unit->staged));
	unit->write = store->staging_memory + unit->staged;
	return KV_OK;
}

void kvc_remote_unit_drop(struct kvc_entry *entry, uint32_t layer)
{
	struct kvc_remote_store *store = kvc_remote_of(entry->sequence->store);
	struct kvc_unit *unit = &entry->units[layer];

	if (unit->staged != KVC_NOT_STAGED) kvc_staging_give(&store->staging, unit->staged);
	unit->staged = KVC_NOT_STAGED;
}

/* The transport writes: from staging memory into the arena, done when this returns. */
static enum kv_status put_by_transport(struct kvc_entry *entry, uint32_t layer)
{
	struct kvc_remote_store *store = kvc_remote_of(entry->sequence->store);
	struct kvc_session *session = remote_part(entry->sequence)->session;
	struct kvc_unit *unit = &entry->units[layer];
	struct kv_transfer transfer = {
	    .remote = kvc_session_region(session, entry->region[layer])->remote,
	    .offset = entry->offset[layer],
	    .bytes = unit->bytes,
	    .local = unit->write};

	KV_TRY(session->ops->put(session->client, &transfer, 1));
	return session->ops->wait(session->client, store->call_ms);
}

/* The store copies: one message, several may be under way. */
static enum kv_status put_by_message(struct kvc_entry *entry, uint32_t layer)
{
	struct kvc_remote_store *store = kvc_remote_of(entry->sequence->store);
	Kv__Request request = KV__REQUEST__INIT;
	Kv__PutRequest put = KV__PUT_REQUEST__INIT;
	uint32_t ticket;

	kvc_remote_put_room(store, KVC_MAX_PUTS);
	put.segment_id = entry->view.id;
	put.layer = layer;
	put.staging_offset = entry->units[layer].staged;
	put.bytes = entry->units[layer].bytes;
	request.body_case = KV__REQUEST__BODY_PUT;
	request.put = &put;
	KV_TRY(kvc_channel_start(store->channel, entry->sequence->session, &request, &ticket));
	kvc_remote_put_begun(entry->sequence, ticket, put.staging_offset);
	/* The block now belongs to the put. */
	entry->units[layer].staged = KVC_NOT_STAGED;
	return KV_OK;
}

enum kv_status kvc_remote_unit_end(struct kvc_entry *entry, uint32_t layer)
{
	struct kvc_session *session = remote_part(entry->sequence)->session;
	struct kvc_unit *unit = &entry->units[layer];
	enum kv_status status;

	unit->checksum = kv_crc32c(0, unit->write, unit->bytes);
	if (unit->staged == KVC_NOT_STAGED) return KV_OK;
	if (strcmp(session->transport, "map") == 0) return put_by_message(entry, layer);
	status = session->ops ? put_by_transport(entry, layer) : kvc_stream_put(entry, layer);
	kvc_remote_unit_drop(entry, layer);
	return status;
}

/* ---- commit ---- */

static uint32_t *gather_checksums(const struct kvc_store *store, const struct kvc_commit *commit)
{
	uint32_t layers = store->layout.layers;
	uint32_t *checksums =
	    kv_alloc_array(store->allocator, (size_t)commit->count * layers, sizeof *checksums);

	for (uint32_t i = 0; checksums && i < commit->count; i++) {
		for (uint32_t layer = 0; layer < layers; layer++)
			checksums[i * layers + layer] = commit->entries[i]->units[layer].checksum;
	}
	return checksums;
}

static enum kv_status take_committed(struct kvc_sequence *sequence, const struct kvc_commit *commit,
    const Kv__Response *response, struct kvc_entry **results)
{
	const Kv__CommitResponse *committed = response->commit;

	if (response->body_case != KV__RESPONSE__BODY_COMMIT || committed->n_segments != commit->count)
		return kv_fail(KV_PROTOCOL, "the store answered commit with something else");
	for (uint32_t i = 0; i < commit->count; i++) {
		results[i] = commit->entries[i];
		if (committed->segments[i]->segment_id == results[i]->view.id) {
			/* The checksums are those that went with the commit. */
			results[i]->verified = committed->segments[i]->n_checksums > 0;
			continue;
		}
		/* Records made before a failure stay the sequence's and go with it. */
		KV_TRY(kvc_remote_entry(sequence, committed->segments[i], &results[i]));
	}
	return KV_OK;
}

enum kv_status kvc_remote_commit(
    struct kvc_sequence *sequence, const struct kvc_commit *commit, struct kvc_entry **results)
{
	struct kvc_remote_store *store = kvc_remote_of(sequence->store);
	struct kvc_remote_sequence *remote = remote_part(sequence);
	Kv__Request request = KV__REQUEST__INIT;
	Kv__CommitRequest message = KV__COMMIT_REQUEST__INIT;
	Kv__Response *response = NULL;
	uint32_t *checksums = NULL;
	uint64_t *ids;
	enum kv_status status = KV_NO_MEMORY;

	kvc_remote_drain_puts(store, sequence);
	if (remote->put_status != KV_OK) return kv_fail(remote->put_status, "%s", remote->put_text);
	ids = kv_alloc_array(
	    store->base.allocator, (size_t)commit->count + commit->replaced_count, sizeof *ids);
	if (!ids) return KV_NO_MEMORY;
	checksums = gather_checksums(&store->base, commit);
	if (!checksums) goto out;
	for (uint32_t i = 0; i < commit->count; i++)
		ids[i] = commit->entries[i]->view.id;
	for (uint32_t i = 0; i < commit->replaced_count; i++)
		ids[commit->count + i] = commit->replaced[i]->view.id;
	message.sequence = sequence->handle;
	message.segment_ids = ids;
	message.n_segment_ids = commit->count;
	message.checksums = checksums;
	message.n_checksums = (size_t)commit->count * store->base.layout.layers;
	message.tokens.data = (uint8_t *)(uintptr_t)commit->tokens;
	message.tokens.len = commit->token_count * sizeof(int32_t);
	message.replaced_ids = ids + commit->count;
	message.n_replaced_ids = commit->replaced_count;
	message.own_only = sequence->own_only;
	request.body_case = KV__REQUEST__BODY_COMMIT;
	request.commit = &message;
	KV_TRY_GOTO(status,
	    kvc_channel_call(store->channel, sequence->session, &request, store->call_ms, &response),
	    out);
	KV_TRY_GOTO(status, kvc_session_attach(store), out);
	status = take_committed(sequence, commit, response, results);
out:
	kvc_channel_free(store->channel, response);
	kv_free(store->base.allocator, checksums);
	kv_free(store->base.allocator, ids);
	return status;
}
