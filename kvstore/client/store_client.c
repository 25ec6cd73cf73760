/* The public calls: check the arguments, keep the lists, let the backend do the rest. */
#include "kvstore/client/store_client.h"

#include <string.h>

#include "common/runtime/fault_point.h"
#include "common/transport/tcp_socket.h"
#include "common/transport/trusted_network.h"
#include "common/transport/unix_socket.h"
#include "kvstore/client/store_internal.h"

/* ---- the store ---- */

enum kv_status kvc_address_check(const char *address)
{
	if (strcmp(address, "none") == 0) return KV_OK;
	if (strncmp(address, "unix:", 5) == 0) return kv_unix_path_check(address + 5);
	if (strncmp(address, "tcp:", 4) == 0) return kv_tcp_address_check(address + 4, 0);
	return kv_fail(KV_INVALID,
	    "store address \"%s\" is not understood: write unix:PATH, tcp:HOST:PORT, or none for an "
	    "own one",
	    address);
}

/* An own store serves tests and single answers, and is read by the host. */
int kvc_shows_memory(const char *address)
{
	return strncmp(address, "unix:", 5) == 0;
}

static enum kv_status check_remote(const struct kvc_options *options)
{
	const char *transport = options->transport ? options->transport : "auto";
	const bool remote = strncmp(options->address, "tcp:", 4) == 0;

	if (remote != (options->secret != NULL))
		return kv_fail(KV_INVALID, "store address \"%s\" %s", options->address,
		    remote ? "takes a secret: name its file" : "takes no secret");
	if (!remote || strcmp(transport, "auto") == 0 || strcmp(transport, KVC_STREAM) == 0)
		return KV_OK;
	if (strcmp(transport, KVC_BY_UCX) != 0)
		return kv_fail(KV_UNSUPPORTED,
		    "transport=%s to a store on another host is not there: use auto, stream or ucx",
		    transport);
	if (options->trusted_network && *options->trusted_network)
		return kv_trusted_network_check(options->trusted_network);
	return kv_fail(KV_UNSUPPORTED,
	    "transport=ucx to a store on another host is neither encrypted nor authenticated: name the "
	    "network that you trust with --trusted-network, or use stream, which is encrypted");
}

enum kv_status kvc_open(const struct kvc_options *options, struct kvc_store **store)
{
	if (!options->allocator || !options->address)
		return kv_fail(KV_INVALID, "opening a store takes an allocator and an address");
	KV_TRY(kvc_address_check(options->address));
	KV_TRY(check_remote(options));
	KV_TRY(kvw_model_layout_check(&options->layout));
	if (strcmp(options->address, "none") == 0)
		KV_TRY(kvc_local_open(options, store));
	else
		KV_TRY(kvc_remote_open(options, store));
	(*store)->shows_memory = kvc_shows_memory(options->address);
	return KV_OK;
}

void kvc_close(struct kvc_store *store)
{
	struct kv_list *node;

	if (!store) return;
	while ((node = kv_list_first(&store->sequences)))
		kvc_sequence_close(KV_CONTAINER_OF(node, struct kvc_sequence, node), 0);
	store->backend->destroy(store);
}

int kvc_connected(struct kvc_store *store)
{
	return store->backend->connected(store);
}

int kvc_draining(struct kvc_store *store)
{
	return store->backend->draining ? store->backend->draining(store) : 0;
}

uint64_t kvc_generation(struct kvc_store *store)
{
	return store->backend->generation(store);
}

const char *kvc_transport(struct kvc_store *store)
{
	return store->backend->transport(store);
}

const char *kvc_lanes(struct kvc_store *store)
{
	return store->backend->lanes(store);
}

enum kv_status kvc_check(struct kvc_store *store)
{
	return store->backend->check_store(store);
}

enum kv_status kvc_watch_memory(struct kvc_store *store, const struct kvc_memory_watch *watch)
{
	if (watch && !store->shows_memory)
		return kv_fail(KV_UNSUPPORTED, "the memory of this store is not told of");
	if (watch && store->watch)
		return kv_fail(KV_BUSY, "the memory of this connection is watched by somebody else");
	store->watch = watch;
	if (watch) store->backend->show_memory(store);
	return KV_OK;
}

void kvc_report(struct kvc_store *store, const struct kvc_counter *counters, uint32_t count)
{
	store->backend->report(store, counters, count);
}

/* ---- sequences ---- */

static enum kv_status check_open(const struct kvc_open_request *request)
{
	uint32_t last = 0;

	if (!request->prompt || !request->prompt_tokens ||
	    request->prompt_tokens > KVW_MAX_SEQUENCE_TOKENS)
		return kv_fail(KV_INVALID, "a prompt has 1 to %d tokens, not %u",
		    (int)KVW_MAX_SEQUENCE_TOKENS, request->prompt_tokens);
	if (request->cut_count > KVC_MAX_CALL_SEGMENTS || (request->cut_count && !request->cuts))
		return kv_fail(KV_INVALID, "a prompt has at most %d cuts, not %u",
		    (int)KVC_MAX_CALL_SEGMENTS, request->cut_count);
	for (uint32_t i = 0; i < request->cut_count; i++) {
		if (request->cuts[i].end <= last)
			return kv_fail(
			    KV_INVALID, "cut %u ends at %u, not after %u", i, request->cuts[i].end, last);
		last = request->cuts[i].end;
	}
	if (request->cut_count && last != request->prompt_tokens)
		return kv_fail(
		    KV_INVALID, "the last cut ends at %u, the prompt at %u", last, request->prompt_tokens);
	if (request->sequence_id && strlen(request->sequence_id) >= KVW_MAX_SEQUENCE_ID)
		return kv_fail(
		    KV_INVALID, "a sequence id has at most %d characters", (int)KVW_MAX_SEQUENCE_ID - 1);
	if (request->parameter_bytes > KVC_MAX_PARAMETERS)
		return kv_fail(KV_INVALID, "parameters have at most %d bytes, not %zu",
		    (int)KVC_MAX_PARAMETERS, request->parameter_bytes);
	return KV_OK;
}

static enum kv_status finish_opening(struct kvc_sequence *created, struct kvc_sequence **sequence)
{
	kv_list_push_back(&created->store->sequences, &created->node);
	*sequence = created;
	return KV_OK;
}

/* Give a half-opened sequence up without losing the text of the failure that led there. `keep`: it
 * was there before, and others may still resume it. */
static enum kv_status fail_opening(struct kvc_sequence *created, bool keep, enum kv_status status)
{
	char text[512];

	strncpy(text, kv_error_message(), sizeof text - 1);
	text[sizeof text - 1] = '\0';
	created->store->backend->close(created, keep);
	kvc_sequence_destroy(created);
	return kv_fail(status, "%s", text);
}

enum kv_status kvc_sequence_open(
    struct kvc_store *store, const struct kvc_open_request *request, struct kvc_sequence **sequence)
{
	struct kvc_sequence *created = NULL;
	enum kv_status status;

	KV_TRY(check_open(request));
	KV_TRY(kvc_sequence_create(store, &created));
	status = store->backend->open(created, request);
	if (status != KV_OK) return fail_opening(created, false, status);
	return finish_opening(created, sequence);
}

enum kv_status kvc_sequence_resume(struct kvc_store *store, const char *sequence_id,
    const uint8_t policy_digest[32], struct kvc_sequence **sequence, struct kvc_resume_state *state)
{
	struct kvc_resume_state found;
	struct kvc_sequence *created = NULL;
	enum kv_status status;

	if (!sequence_id || !*sequence_id || strlen(sequence_id) >= KVW_MAX_SEQUENCE_ID)
		return kv_fail(KV_INVALID, "a sequence to resume is named by its id");
	KV_TRY(kvc_sequence_create(store, &created));
	status = store->backend->resume(created, sequence_id, policy_digest, &found);
	if (status != KV_OK) return fail_opening(created, true, status);
	*state = found;
	return finish_opening(created, sequence);
}

static void drop_units(struct kvc_entry *entry)
{
	const struct kvc_store *store = entry->sequence->store;

	for (uint32_t layer = 0; layer < store->layout.layers; layer++) {
		if (entry->units[layer].state == KVC_UNIT_BEGUN) store->backend->unit_drop(entry, layer);
		entry->units[layer].state = KVC_UNIT_EMPTY;
	}
}

void kvc_sequence_close(struct kvc_sequence *sequence, int keep)
{
	struct kv_list *node;

	if (!sequence) return;
	KV_LIST_EACH(node, &sequence->entries)
	{
		struct kvc_entry *entry = KV_CONTAINER_OF(node, struct kvc_entry, node);

		if (entry->reserved) drop_units(entry);
	}
	sequence->store->backend->close(sequence, keep != 0);
	kvc_sequence_destroy(sequence);
}

const char *kvc_sequence_id(const struct kvc_sequence *sequence)
{
	return sequence->id;
}

const struct kvc_segment *const *kvc_sequence_segments(
    const struct kvc_sequence *sequence, uint32_t *count)
{
	*count = sequence->list.count;
	/* A record begins with its view, so a pointer to the one is a pointer to the other. */
	return (const struct kvc_segment *const *)(const void *)sequence->list.items;
}

const struct kvc_piece *kvc_sequence_pieces(const struct kvc_sequence *sequence, uint32_t *count)
{
	*count = sequence->piece_count;
	return sequence->pieces;
}

void kvc_sequence_release_pieces(struct kvc_sequence *sequence)
{
	uint64_t ids[64];
	uint32_t count = 0;

	for (uint32_t i = 0; i < sequence->piece_count; i++) {
		struct kvc_entry *entry = kvc_entry_of(sequence->pieces[i].segment);

		ids[count++] = entry->view.id;
		kvc_entry_destroy(entry);
		if (count < sizeof ids / sizeof ids[0] && i + 1 < sequence->piece_count) continue;
		sequence->store->backend->release(sequence, ids, count);
		count = 0;
	}
	kv_free(sequence->store->allocator, sequence->pieces);
	sequence->pieces = NULL;
	sequence->piece_count = 0;
}

void kvc_sequence_keep_own(struct kvc_sequence *sequence)
{
	sequence->own_only = true;
}

enum kv_status kvc_sequence_check(const struct kvc_sequence *sequence)
{
	return sequence->store->backend->check(sequence);
}

/* ---- writing ---- */

static enum kv_status own_reserved(
    struct kvc_sequence *sequence, const struct kvc_segment *segment, struct kvc_entry **entry)
{
	struct kvc_entry *found = segment ? kvc_entry_of(segment) : NULL;

	if (!found || found->sequence != sequence || !found->reserved)
		return kv_fail(KV_INVALID, "that segment is not one that this sequence has reserved");
	*entry = found;
	return KV_OK;
}

enum kv_status kvc_reserve(struct kvc_sequence *sequence, const struct kvc_new_segment *segments,
    uint32_t count, const struct kvc_segment **out)
{
	struct kvc_entry **entries;
	enum kv_status status;

	if (!count || count > KVC_MAX_CALL_SEGMENTS)
		return kv_fail(KV_INVALID, "1 to %d segments are reserved at a time, not %u",
		    (int)KVC_MAX_CALL_SEGMENTS, count);
	KV_TRY(kvc_sequence_check(sequence));
	entries = kv_alloc_array(sequence->store->allocator, count, sizeof *entries);
	if (!entries) return KV_NO_MEMORY;
	status = sequence->store->backend->reserve(sequence, segments, count, entries);
	if (status == KV_OK) kv_fault_stop("client.reserve");
	for (uint32_t i = 0; status == KV_OK && i < count; i++)
		out[i] = &entries[i]->view;
	kv_free(sequence->store->allocator, entries);
	return status;
}

enum kv_status kvc_unit_begin(struct kvc_sequence *sequence, const struct kvc_segment *segment,
    uint32_t layer, uint8_t **memory, uint64_t *bytes)
{
	struct kvc_entry *entry = NULL;
	struct kvc_unit *unit;

	KV_TRY(own_reserved(sequence, segment, &entry));
	if (layer >= sequence->store->layout.layers)
		return kv_fail(KV_INVALID, "layer %u does not exist", layer);
	unit = &entry->units[layer];
	if (unit->state != KVC_UNIT_EMPTY)
		return kv_fail(KV_INVALID, "layer %u of segment %llu was begun already", layer,
		    (unsigned long long)segment->id);
	KV_TRY(kvc_sequence_check(sequence));
	KV_TRY(sequence->store->backend->unit_begin(entry, layer));
	unit->state = KVC_UNIT_BEGUN;
	*memory = unit->write;
	*bytes = unit->bytes;
	kv_fault_stop("client.write");
	return KV_OK;
}

enum kv_status kvc_unit_end(
    struct kvc_sequence *sequence, const struct kvc_segment *segment, uint32_t layer)
{
	struct kvc_entry *entry = NULL;
	enum kv_status status;

	KV_TRY(own_reserved(sequence, segment, &entry));
	if (layer >= sequence->store->layout.layers || entry->units[layer].state != KVC_UNIT_BEGUN)
		return kv_fail(KV_INVALID, "layer %u of segment %llu was not begun", layer,
		    (unsigned long long)segment->id);
	status = sequence->store->backend->unit_end(entry, layer);
	entry->units[layer].write = NULL;
	if (status == KV_OK) {
		entry->units[layer].state = KVC_UNIT_ENDED;
		return KV_OK;
	}
	sequence->store->backend->unit_drop(entry, layer);
	entry->units[layer].state = KVC_UNIT_EMPTY;
	return status;
}

static enum kv_status check_ended(const struct kvc_entry *entry)
{
	for (uint32_t layer = 0; layer < entry->sequence->store->layout.layers; layer++) {
		if (entry->units[layer].state != KVC_UNIT_ENDED)
			return kv_fail(KV_INVALID, "segment %llu is committed before its layer %u is written",
			    (unsigned long long)entry->view.id, layer);
	}
	return KV_OK;
}

/* Where in the list the run of replaced entries begins; the list's end when there are none. */
static enum kv_status find_replaced(const struct kvc_sequence *sequence,
    const struct kvc_segment *const *replaced, uint32_t count, uint32_t *first)
{
	const struct kvc_entry_list *list = &sequence->list;
	uint32_t at = 0;

	if (!count) {
		*first = list->count;
		return KV_OK;
	}
	while (at < list->count && &list->items[at]->view != replaced[0])
		at++;
	if (count > list->count - at)
		return kv_fail(KV_INVALID, "the replaced segments are not in the sequence's list");
	for (uint32_t i = 0; i < count; i++) {
		if (&list->items[at + i]->view != replaced[i])
			return kv_fail(
			    KV_INVALID, "the replaced segments do not follow each other in the list");
	}
	*first = at;
	return KV_OK;
}

/* Put results in place of `removed` entries at `first`; the list has room. */
static void splice(struct kvc_sequence *sequence, uint32_t first, uint32_t removed,
    struct kvc_entry *const *entries, struct kvc_entry *const *results, uint32_t count)
{
	struct kvc_entry_list *list = &sequence->list;
	uint32_t behind = list->count - first - removed;

	for (uint32_t i = 0; i < removed; i++)
		kvc_entry_destroy(list->items[first + i]);
	memmove(list->items + first + count, list->items + first + removed,
	    behind * sizeof(struct kvc_entry *));
	for (uint32_t i = 0; i < count; i++) {
		results[i]->reserved = false;
		list->items[first + i] = results[i];
		if (results[i] != entries[i]) kvc_entry_destroy(entries[i]);
	}
	list->count = list->count - removed + count;
}

static enum kv_status make_room(struct kvc_sequence *sequence, uint32_t count)
{
	struct kvc_entry_list *list = &sequence->list;
	uint32_t before = list->count;
	enum kv_status status = KV_OK;

	for (uint32_t i = 0; i < count && status == KV_OK; i++)
		status = kvc_list_append(sequence->store->allocator, list, NULL);
	list->count = before;
	return status;
}

enum kv_status kvc_commit(struct kvc_sequence *sequence, const struct kvc_segment *const *segments,
    uint32_t count, const int32_t *tokens, uint32_t token_count,
    const struct kvc_segment *const *replaced, uint32_t replaced_count)
{
	struct kv_allocator *allocator = sequence->store->allocator;
	struct kvc_entry **entries;
	struct kvc_entry **results;
	struct kvc_commit commit;
	uint32_t first = 0;
	enum kv_status status;

	if (!count || count > KVC_MAX_CALL_SEGMENTS || replaced_count > KVC_MAX_CALL_SEGMENTS)
		return kv_fail(KV_INVALID, "1 to %d segments are committed at a time, not %u",
		    (int)KVC_MAX_CALL_SEGMENTS, count);
	KV_TRY(find_replaced(sequence, replaced, replaced_count, &first));
	KV_TRY(kvc_sequence_check(sequence));
	KV_TRY(make_room(sequence, count));
	entries = kv_alloc_array(allocator, 2 * (size_t)count, sizeof *entries);
	if (!entries) return KV_NO_MEMORY;
	results = entries + count;
	status = KV_OK;
	for (uint32_t i = 0; status == KV_OK && i < count; i++) {
		status = own_reserved(sequence, segments[i], &entries[i]);
		if (status == KV_OK) status = check_ended(entries[i]);
	}
	if (status != KV_OK) goto out;
	commit = (struct kvc_commit){.entries = entries,
	    .count = count,
	    .tokens = tokens,
	    .token_count = token_count,
	    .replaced = sequence->list.items ? sequence->list.items + first : NULL,
	    .replaced_count = replaced_count};
	kv_fault_stop("client.commit");
	KV_TRY_GOTO(status, sequence->store->backend->commit(sequence, &commit, results), out);
	splice(sequence, first, replaced_count, entries, results, count);
out:
	kv_free(allocator, entries);
	return status;
}

void kvc_release(
    struct kvc_sequence *sequence, const struct kvc_segment *const *segments, uint32_t count)
{
	struct kvc_entry *entry = NULL;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t id;

		if (own_reserved(sequence, segments[i], &entry) != KV_OK) continue;
		id = entry->view.id;
		drop_units(entry);
		kvc_entry_destroy(entry);
		sequence->store->backend->release(sequence, &id, 1);
	}
}

/* ---- reading ---- */

const uint8_t *kvc_direct(
    struct kvc_store *store, const struct kvc_segment *segment, uint32_t layer)
{
	const struct kvc_entry *entry = kvc_entry_of(segment);

	/* What is verified is copied first. */
	if (entry->verified || layer >= store->layout.layers) return NULL;
	return entry->units[layer].read;
}

enum kv_status kvc_fetch_start(
    struct kvc_store *store, const struct kvc_read *reads, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct kvc_entry *entry = kvc_entry_of(reads[i].segment);
		const struct kvc_unit *unit;

		if (reads[i].layer >= store->layout.layers)
			return kv_fail(KV_INVALID, "layer %u does not exist", reads[i].layer);
		unit = &entry->units[reads[i].layer];
		if (reads[i].offset > unit->bytes || reads[i].bytes > unit->bytes - reads[i].offset)
			return kv_fail(KV_INVALID, "a read of %llu bytes at %llu leaves its unit of %llu",
			    (unsigned long long)reads[i].bytes, (unsigned long long)reads[i].offset,
			    (unsigned long long)unit->bytes);
	}
	kv_fault_stop("client.fetch");
	return store->backend->fetch_start(store, reads, count);
}

enum kv_status kvc_fetch_wait(struct kvc_store *store)
{
	enum kv_status status = store->backend->fetch_wait(store);

	if (status == KV_OK && kv_fault_fires("client.late"))
		return kv_fail(KV_TIMEOUT, "a fetch took too long (fault client.late)");
	return status;
}

/* ---- decoded tokens ---- */

enum kv_status kvc_push(struct kvc_sequence *sequence, const int32_t *decoded,
    uint32_t decoded_tokens, const void *sampler_state, size_t sampler_bytes)
{
	return sequence->store->backend->push(
	    sequence, decoded, decoded_tokens, sampler_state, sampler_bytes);
}

enum kv_status kvc_flush(struct kvc_sequence *sequence)
{
	return sequence->store->backend->flush(sequence);
}
