#include "kvstore/engine/engine_internal.h"

uint32_t kvs_list_end(const struct kvs_sequence *sequence)
{
	const struct kvs_segment *last;

	if (sequence->length == 0) return 0;
	last = sequence->list[sequence->length - 1].segment;
	return last->start + last->tokens;
}

enum kv_status kvs_list_reserve(
    struct kvs_engine *engine, struct kvs_sequence *sequence, uint32_t capacity)
{
	struct kvs_entry *grown;

	if (capacity <= sequence->capacity) return KV_OK;
	grown =
	    kv_realloc(engine->allocator, sequence->list, (capacity + KVS_LIST_SPARE) * sizeof *grown);
	if (!grown) return KV_NO_MEMORY;
	sequence->list = grown;
	sequence->capacity = capacity + KVS_LIST_SPARE;
	return KV_OK;
}

void kvs_pieces_drop(struct kvs_engine *engine, struct kvs_sequence *sequence)
{
	while (sequence->piece_count > 0)
		kvs_segment_unreference(engine, sequence->pieces[--sequence->piece_count].segment);
	kv_free(engine->allocator, sequence->pieces);
	sequence->pieces = NULL;
}

void kvs_list_forget(struct kvs_engine *engine, const struct kvs_entry *entries, uint32_t count)
{
	while (count-- > 0) {
		struct kvs_segment *segment = kvs_segment_by_id(engine, entries[count].id);

		if (!segment) continue;
		segment->listed--;
		kvs_segment_settle(engine, segment);
	}
}

void kvs_reservations_end(
    struct kvs_engine *engine, struct kvs_sequence *sequence, enum kvs_writer writer)
{
	struct kv_list *node;

	while ((node = kv_list_first(&sequence->reserved)) != NULL) {
		struct kvs_segment *segment = KV_CONTAINER_OF(node, struct kvs_segment, place);

		if (!segment->commit && writer != KVS_WRITER_SILENT) {
			kvs_segment_destroy(engine, segment);
			continue;
		}
		/* Somebody may write to it, or is reading it to verify: its memory must not move on. */
		segment->abandoned = writer != KVS_WRITER_SILENT;
		if (!segment->abandoned) engine->counters.zombie_reservations++;
		kvs_segment_quarantine(engine, segment);
	}
	if (sequence->commit) sequence->commit->sequence = NULL;
	sequence->commit = NULL;
}

/* Who resumes it must not find what only its worker was to read, nor what follows that. */
static void drop_own(struct kvs_engine *engine, struct kvs_sequence *sequence)
{
	uint32_t kept = 0;

	while (kept < sequence->length && !sequence->list[kept].segment->own_only)
		kept++;
	kvs_list_forget(engine, sequence->list + kept, sequence->length - kept);
	sequence->length = kept;
}

void kvs_sequence_orphan(
    struct kvs_engine *engine, struct kvs_sequence *sequence, enum kvs_writer writer)
{
	kvs_reservations_end(engine, sequence, writer);
	kvs_pieces_drop(engine, sequence);
	/* From the end, so that a parent was used later than its child. */
	for (uint32_t i = sequence->length; i-- > 0;)
		kvs_segment_unreference(engine, sequence->list[i].segment);
	drop_own(engine, sequence);
	kv_hash_map_remove(engine->sequences_by_handle, &sequence->handle, NULL);
	sequence->peer->sequence_count--;
	sequence->peer = NULL;
	sequence->expires_ms =
	    engine->environment.now_ms(engine->environment.context) + engine->options.orphan_ms;
	kv_list_move_back(&engine->orphans, &sequence->link);
	engine->orphan_count++;
}

static void sequence_free(struct kvs_engine *engine, struct kvs_sequence *sequence)
{
	kv_free(engine->allocator, sequence->last_ids);
	kv_free(engine->allocator, sequence->pieces);
	kv_free(engine->allocator, sequence->cuts);
	kv_free(engine->allocator, sequence->list);
	kv_free(engine->allocator, sequence->parameters);
	kv_free(engine->allocator, sequence->sampler);
	kv_free(engine->allocator, sequence->tokens);
	kv_free(engine->allocator, sequence);
}

void kvs_sequence_destroy(
    struct kvs_engine *engine, struct kvs_sequence *sequence, enum kvs_writer writer)
{
	if (sequence->peer) kvs_sequence_orphan(engine, sequence, writer);
	kvs_list_forget(engine, sequence->list, sequence->length);
	kv_list_remove(&sequence->link);
	engine->orphan_count--;
	engine->sequence_count--;
	engine->token_count -= sequence->prompt_tokens + sequence->decoded_tokens;
	kv_hash_map_remove(engine->sequences_by_name, &sequence->name, NULL);
	kvs_root_drop(engine, sequence->root);
	sequence_free(engine, sequence);
}

static bool allowed_in_id(char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
	       c == '_' || c == ':' || c == '-';
}

static enum kv_status name_of(
    const struct kvs_peer *peer, const char *id, struct kvs_sequence_name *name)
{
	size_t length = strlen(id);

	memset(name, 0, sizeof *name);
	if (length == 0 || length >= KVW_MAX_SEQUENCE_ID)
		return kv_fail(KV_INVALID, "a sequence id has %zu bytes, allowed are 1 to %u", length,
		    (unsigned)KVW_MAX_SEQUENCE_ID - 1);
	for (size_t i = 0; i < length; i++) {
		if (!allowed_in_id(id[i]))
			return kv_fail(KV_INVALID,
			    "byte %zu of the sequence id is 0x%02x, allowed are letters, digits and . _ : -", i,
			    (unsigned)(unsigned char)id[i]);
	}
	memcpy(name->id, id, length);
	memcpy(name->tenant, peer->tenant, sizeof name->tenant);
	return KV_OK;
}

static struct kvs_sequence *find_by_name(
    const struct kvs_engine *engine, const struct kvs_sequence_name *name)
{
	return (struct kvs_sequence *)kv_hash_map_find_pointer(engine->sequences_by_name, name);
}

/* 128 random bits: an id that nobody was told cannot be guessed. */
static void choose_name(
    struct kvs_engine *engine, const struct kvs_peer *peer, struct kvs_sequence_name *name)
{
	static const char digits[] = "0123456789abcdef";

	memset(name, 0, sizeof *name);
	memcpy(name->tenant, peer->tenant, sizeof name->tenant);
	do {
		for (unsigned i = 0; i < 32; i += 16) {
			uint64_t bits = engine->environment.random64(engine->environment.context);

			for (unsigned j = 0; j < 16; j++)
				name->id[i + j] = digits[(bits >> (4 * j)) & 15];
		}
	} while (find_by_name(engine, name));
}

static enum kv_status check_cuts(const struct kvs_open_request *request)
{
	uint32_t end = 0;

	if (request->cut_count > KVS_MAX_COMMIT_SEGMENTS)
		return kv_fail(KV_LIMIT, "a prompt of %u cuts, the limit is %u", request->cut_count,
		    (unsigned)KVS_MAX_COMMIT_SEGMENTS);
	for (uint32_t i = 0; i < request->cut_count; i++) {
		const struct kvs_cut *cut = &request->cuts[i];

		if (cut->kind != KVW_CLUSTERED && cut->kind != KVW_PLAIN)
			return kv_fail(KV_INVALID, "cut %u has the unknown kind %u", i, (unsigned)cut->kind);
		if (cut->end <= end || cut->end - end > KVW_MAX_SEGMENT_TOKENS)
			return kv_fail(KV_INVALID, "cut %u ends at %u, allowed are %u to %u", i, cut->end,
			    end + 1, end + (unsigned)KVW_MAX_SEGMENT_TOKENS);
		end = cut->end;
	}
	if (request->cut_count > 0 && end != request->prompt_tokens)
		return kv_fail(
		    KV_INVALID, "the last cut ends at %u, the prompt at %u", end, request->prompt_tokens);
	return KV_OK;
}

/* What a tenant has: sequences that are open, orphans, token ids of those that are open. */
struct holdings {
	uint32_t open, orphans;
	uint64_t tokens;
	struct kvs_sequence *oldest; /* orphan */
};

static struct holdings holdings_of(const struct kvs_engine *engine, const char *tenant)
{
	struct holdings held = {0};
	struct kv_list *node;

	for (uint32_t slot = 0; slot < engine->options.max_peers; slot++) {
		const struct kvs_peer *peer = &engine->peers[slot];

		if (!peer->used || strcmp(peer->tenant, tenant) != 0) continue;
		held.open += peer->sequence_count;
		KV_LIST_EACH(node, &peer->sequences)
		{
			const struct kvs_sequence *open = KV_CONTAINER_OF(node, struct kvs_sequence, link);

			held.tokens += open->prompt_tokens + open->decoded_tokens;
		}
	}
	KV_LIST_EACH(node, &engine->orphans)
	{
		struct kvs_sequence *orphan = KV_CONTAINER_OF(node, struct kvs_sequence, link);

		if (strcmp(orphan->name.tenant, tenant) != 0) continue;
		if (!held.orphans++) held.oldest = orphan;
	}
	return held;
}

enum kv_status kvs_tenant_token_room(
    const struct kvs_engine *engine, const struct kvs_peer *peer, uint64_t tokens)
{
	const uint64_t limit = engine->options.tenant_tokens;
	uint64_t held;

	if (!limit) return KV_OK;
	held = holdings_of(engine, peer->tenant).tokens;
	if (held <= limit && tokens <= limit - held) return KV_OK;
	return kv_fail(KV_LIMIT,
	    "the open sequences of %s have %" PRIu64 " tokens, the limit of one user is %" PRIu64
	    ": close one",
	    peer->tenant, held, limit);
}

/* A tenant at its limit gets no more; its own oldest orphan makes room, and nobody else's. */
static enum kv_status check_share(
    struct kvs_engine *engine, const struct kvs_peer *peer, uint32_t prompt_tokens)
{
	const struct kvs_options *options = &engine->options;
	struct holdings held;

	if (!options->tenant_sequences && !options->tenant_tokens) return KV_OK;
	held = holdings_of(engine, peer->tenant);
	if (options->tenant_sequences && held.open >= options->tenant_sequences)
		return kv_fail(KV_LIMIT,
		    "%u sequences of %s are open, that is the limit of one user: "
		    "close one",
		    held.open, peer->tenant);
	KV_TRY(kvs_tenant_token_room(engine, peer, prompt_tokens));
	if (held.oldest && options->tenant_sequences &&
	    held.open + held.orphans >= options->tenant_sequences) {
		kvs_sequence_destroy(engine, held.oldest, KVS_WRITER_DONE);
		engine->counters.orphans_dropped++;
	}
	return KV_OK;
}

static enum kv_status check_open(const struct kvs_engine *engine, const struct kvs_peer *peer,
    const struct kvs_open_request *request)
{
	uint32_t active = engine->sequence_count - engine->orphan_count;

	if (!peer->root) return kv_fail(KV_INVALID, "a peer without a model cannot open a sequence");
	if (request->prompt_tokens == 0 || request->prompt_tokens > KVW_MAX_SEQUENCE_TOKENS)
		return kv_fail(KV_INVALID, "a prompt of %u tokens is not allowed, only 1 to %u",
		    request->prompt_tokens, (unsigned)KVW_MAX_SEQUENCE_TOKENS);
	if (request->parameter_bytes > KVS_MAX_PARAMETER_BYTES)
		return kv_fail(KV_LIMIT, "parameters of %zu bytes, the limit is %u",
		    request->parameter_bytes, (unsigned)KVS_MAX_PARAMETER_BYTES);
	KV_TRY(check_cuts(request));
	if (active >= engine->options.max_sequences)
		return kv_fail(KV_LIMIT, "%u sequences are open, the limit is %u: close one", active,
		    engine->options.max_sequences);
	return KV_OK;
}

static enum kv_status sequence_create(struct kvs_engine *engine,
    const struct kvs_open_request *request, struct kvs_sequence **sequence)
{
	struct kvs_sequence *made = kv_alloc_zero(engine->allocator, sizeof *made);

	if (!made) return KV_NO_MEMORY;
	kv_list_init(&made->link);
	kv_list_init(&made->reserved);
	made->tokens = kv_alloc_array(engine->allocator, request->prompt_tokens, sizeof *made->tokens);
	made->parameters = kv_alloc(engine->allocator, request->parameter_bytes);
	made->cuts = kv_alloc_array(engine->allocator, request->cut_count, sizeof *made->cuts);
	if (!made->tokens || !made->parameters || !made->cuts) {
		sequence_free(engine, made);
		return KV_NO_MEMORY;
	}
	if (request->cut_count > 0)
		memcpy(made->cuts, request->cuts, request->cut_count * sizeof *made->cuts);
	made->cut_count = request->cut_count;
	memcpy(made->tokens, request->prompt, request->prompt_tokens * sizeof *made->tokens);
	if (request->parameter_bytes > 0)
		memcpy(made->parameters, request->parameters, request->parameter_bytes);
	made->parameter_bytes = request->parameter_bytes;
	made->prompt_tokens = request->prompt_tokens;
	made->token_capacity = request->prompt_tokens;
	memcpy(made->policy_digest, request->policy_digest, sizeof made->policy_digest);
	*sequence = made;
	return KV_OK;
}

static void attach(struct kvs_engine *engine, struct kvs_peer *peer, struct kvs_sequence *sequence)
{
	enum kv_status status;

	sequence->handle = engine->next_sequence++;
	sequence->peer = peer;
	kv_list_move_back(&peer->sequences, &sequence->link);
	peer->sequence_count++;
	status = kv_hash_map_insert(
	    engine->sequences_by_handle, &sequence->handle, kv_hash_pointer(sequence));
	KV_CHECK(status == KV_OK); /* the map has room for max_sequences */
}

/* Make the new sequence known. An orphan of its name, or the oldest one, makes room; cannot fail.
 */
static void enter(struct kvs_engine *engine, struct kvs_peer *peer, struct kvs_sequence *sequence)
{
	struct kvs_sequence *old = find_by_name(engine, &sequence->name);
	enum kv_status status;

	if (old) {
		kvs_sequence_destroy(engine, old, KVS_WRITER_DONE);
	} else if (engine->sequence_count >= engine->options.max_sequences) {
		struct kv_list *oldest = kv_list_first(&engine->orphans);

		kvs_sequence_destroy(
		    engine, KV_CONTAINER_OF(oldest, struct kvs_sequence, link), KVS_WRITER_DONE);
		engine->counters.orphans_dropped++;
	}
	attach(engine, peer, sequence);
	sequence->serial = sequence->handle;
	sequence->root->references++;
	status =
	    kv_hash_map_insert(engine->sequences_by_name, &sequence->name, kv_hash_pointer(sequence));
	KV_CHECK(status == KV_OK);
	engine->sequence_count++;
	engine->token_count += sequence->prompt_tokens;
	for (uint32_t i = 0; i < sequence->length; i++)
		sequence->list[i].segment->listed++;
}

static void count_open(
    struct kvs_engine *engine, const struct kvs_sequence *sequence, bool looked_up)
{
	engine->counters.sequences_opened++;
	if (looked_up) engine->counters.prefix_lookup_tokens += sequence->prompt_tokens;
	engine->counters.prefix_shared_tokens += kvs_list_end(sequence);
	for (uint32_t i = 0; i < sequence->piece_count; i++)
		engine->counters.prefix_copied_tokens += sequence->pieces[i].tokens;
}

enum kv_status kvs_sequence_open(struct kvs_engine *engine, uint32_t peer,
    const struct kvs_open_request *request, struct kvs_open_result *result)
{
	struct kvs_peer *owner = NULL;
	struct kvs_sequence *sequence = NULL, *old;
	struct kvs_sequence_name name;
	enum kv_status status;

	KV_TRY(kvs_peer_require(engine, peer, &owner));
	KV_TRY(check_open(engine, owner, request));
	KV_TRY(check_share(engine, owner, request->prompt_tokens));
	if (request->sequence_id && request->sequence_id[0]) {
		KV_TRY(name_of(owner, request->sequence_id, &name));
		old = find_by_name(engine, &name);
		if (old && old->peer)
			return kv_fail(KV_EXISTS, "sequence %s is held by %s: choose another id", name.id,
			    old->peer->name);
	} else {
		choose_name(engine, owner, &name);
	}
	KV_TRY(kvs_token_room(engine, request->prompt_tokens));
	KV_TRY(sequence_create(engine, request, &sequence));
	sequence->name = name;
	sequence->root = owner->root;
	KV_TRY_GOTO(status, kvs_prefix_share(engine, sequence), undo);
	if (request->cut_count > 0) KV_TRY_GOTO(status, kvs_prefix_pieces(engine, sequence), undo);
	enter(engine, owner, sequence);
	count_open(engine, sequence, request->cut_count > 0);
	result->sequence = sequence->handle;
	result->sequence_id = sequence->name.id;
	result->shared = sequence->length;
	result->pieces = sequence->piece_count;
	return KV_OK;
undo:
	while (sequence->length > 0)
		kvs_segment_unreference(engine, sequence->list[--sequence->length].segment);
	sequence_free(engine, sequence);
	return status;
}

enum kv_status kvs_sequence_close(
    struct kvs_engine *engine, uint32_t peer, uint64_t sequence, int keep)
{
	struct kvs_sequence *found = NULL;

	KV_TRY(kvs_sequence_require(engine, peer, sequence, &found));
	if (keep)
		kvs_sequence_orphan(engine, found, KVS_WRITER_DONE);
	else
		kvs_sequence_destroy(engine, found, KVS_WRITER_DONE);
	return KV_OK;
}

/* How many leading entries of an orphan's list are still stored and hold tokens that were pushed.
 */
static uint32_t usable_entries(const struct kvs_engine *engine, struct kvs_sequence *sequence)
{
	const uint32_t known = sequence->prompt_tokens + sequence->decoded_tokens;
	uint32_t usable = 0;

	for (; usable < sequence->length && usable < KVS_MAX_COMMIT_SEGMENTS; usable++) {
		struct kvs_entry *entry = &sequence->list[usable];

		entry->segment = kvs_segment_by_id(engine, entry->id);
		if (!entry->segment || entry->segment->start + entry->segment->tokens > known) break;
		if (memcmp(entry->segment->token_ids, sequence->tokens + entry->segment->start,
		        entry->segment->tokens * sizeof *sequence->tokens) != 0)
			break;
	}
	return usable;
}

/* Do the leading entries follow the prompt's cuts, so that what was lost behind them, or was not
 * there at the time, can be looked up by its key? Nothing exact comes behind what is one sequence's
 * own. */
static bool follows_cuts(const struct kvs_sequence *sequence, uint32_t entries)
{
	if (entries > sequence->cut_count) return false;
	for (uint32_t i = 0; i < entries; i++) {
		const struct kvs_segment *segment = sequence->list[i].segment;

		if (segment->provenance != KVW_EXACT || segment->kind != sequence->cuts[i].kind ||
		    segment->start + segment->tokens != sequence->cuts[i].end)
			return false;
	}
	return true;
}

/* The orphan of this name, for this peer. */
static enum kv_status find_orphan(const struct kvs_engine *engine, const struct kvs_peer *owner,
    const char *sequence_id, const uint8_t policy_digest[32], struct kvs_sequence **orphan)
{
	struct kvs_sequence_name name;
	struct kvs_sequence *found;

	KV_TRY(name_of(owner, sequence_id, &name));
	found = find_by_name(engine, &name);
	if (!found)
		return kv_fail(KV_NOT_FOUND,
		    "sequence %s is not in the store: it was closed, has expired, or never was", name.id);
	if (found->peer)
		return kv_fail(KV_BUSY, "sequence %s is held by %s", name.id, found->peer->name);
	if (found->root != owner->root)
		return kv_fail(KV_REFUSED, "sequence %s is of model %s, this worker runs %s", name.id,
		    found->root->model->name, owner->root ? owner->root->model->name : "none");
	if (memcmp(found->policy_digest, policy_digest, sizeof found->policy_digest) != 0)
		return kv_fail(KV_REFUSED,
		    "sequence %s was made under another policy: resume it with the same options", name.id);
	*orphan = found;
	return KV_OK;
}

enum kv_status kvs_sequence_missing(struct kvs_engine *engine, uint32_t peer,
    const char *sequence_id, const uint8_t policy_digest[32], struct kvs_open_request *prompt)
{
	struct kvs_peer *owner = NULL;
	struct kvs_sequence *found = NULL;
	uint32_t usable;

	KV_TRY(kvs_peer_require(engine, peer, &owner));
	KV_TRY(find_orphan(engine, owner, sequence_id, policy_digest, &found));
	usable = usable_entries(engine, found);
	*prompt =
	    (struct kvs_open_request){.prompt = found->tokens, .prompt_tokens = found->prompt_tokens};
	if (usable == found->cut_count || !follows_cuts(found, usable)) return KV_OK;
	prompt->cuts = found->cuts;
	prompt->cut_count = found->cut_count;
	return KV_OK;
}

/* The list of an orphan becomes what is still there of it, and what of its prompt is stored anew.
 */
static enum kv_status take_list(struct kvs_engine *engine, struct kvs_sequence *orphan)
{
	const uint32_t usable = usable_entries(engine, orphan);
	const bool goes_on = follows_cuts(orphan, usable);
	enum kv_status status;

	KV_TRY(kvs_list_reserve(engine, orphan, orphan->cut_count));
	for (uint32_t i = 0; i < usable; i++)
		kvs_segment_found(engine, orphan->list[i].segment);
	kvs_list_forget(engine, orphan->list + usable, orphan->length - usable);
	orphan->length = usable;
	orphan->last_count = 0;
	if (!goes_on) return KV_OK;
	status = kvs_prefix_share(engine, orphan);
	KV_CHECK(status == KV_OK); /* the list has room */
	for (uint32_t i = usable; i < orphan->length; i++)
		orphan->list[i].segment->listed++;
	return KV_OK;
}

enum kv_status kvs_sequence_resume(struct kvs_engine *engine, uint32_t peer,
    const char *sequence_id, const uint8_t policy_digest[32], struct kvs_resume_result *result)
{
	struct kvs_peer *owner = NULL;
	struct kvs_sequence *found = NULL;

	KV_TRY(kvs_peer_require(engine, peer, &owner));
	KV_TRY(find_orphan(engine, owner, sequence_id, policy_digest, &found));
	KV_TRY(take_list(engine, found));
	engine->orphan_count--;
	engine->counters.sequences_resumed++;
	attach(engine, owner, found);
	*result = (struct kvs_resume_result){
	    .sequence = found->handle,
	    .prompt = found->tokens,
	    .decoded = found->tokens + found->prompt_tokens,
	    .prompt_tokens = found->prompt_tokens,
	    .decoded_tokens = found->decoded_tokens,
	    .sampler_state = found->sampler,
	    .sampler_bytes = found->sampler_bytes,
	    .parameters = found->parameters,
	    .parameter_bytes = found->parameter_bytes,
	    .segments = found->length,
	};
	return KV_OK;
}
