/* From reserved to visible, in two steps: everything that can fail happens in the first. */
#include "kvstore/engine/engine_internal.h"

static void commit_free(struct kvs_engine *engine, struct kvs_commit *commit)
{
	kv_free(engine->allocator, commit->removed);
	kv_free(engine->allocator, commit->ids);
	kv_free(engine->allocator, commit->segments);
	kv_free(engine->allocator, commit);
}

static enum kv_status commit_create(
    struct kvs_engine *engine, const struct kvs_commit_request *request, struct kvs_commit **commit)
{
	const uint32_t count = request->segment_count;
	struct kvs_commit *made = kv_alloc_zero(engine->allocator, sizeof *made);

	if (!made) return KV_NO_MEMORY;
	made->segments = kv_alloc_array_zero(engine->allocator, count, sizeof *made->segments);
	made->ids = kv_alloc_array(engine->allocator, count, sizeof *made->ids);
	made->removed =
	    kv_alloc_array(engine->allocator, request->replaced_count, sizeof *made->removed);
	if (!made->segments || !made->ids || !made->removed) {
		commit_free(engine, made);
		return KV_NO_MEMORY;
	}
	memcpy(made->ids, request->segment_ids, count * sizeof *made->ids);
	*commit = made;
	return KV_OK;
}

static bool is_repeated(
    const struct kvs_sequence *sequence, const struct kvs_commit_request *request)
{
	return request->segment_count > 0 && request->segment_count == sequence->last_count &&
	       memcmp(request->segment_ids, sequence->last_ids,
	           request->segment_count * sizeof *request->segment_ids) == 0;
}

/* Find the reserved segments and mark them; the caller unmarks them when anything fails. */
static enum kv_status mark_segments(struct kvs_engine *engine, struct kvs_sequence *sequence,
    const struct kvs_commit_request *request, struct kvs_commit *commit)
{
	for (uint32_t i = 0; i < request->segment_count; i++) {
		const uint64_t id = request->segment_ids[i];
		struct kvs_segment *segment = kvs_segment_by_id(engine, id);

		if (!segment || segment->state != KVS_RESERVED || segment->sequence != sequence)
			return kv_fail(KV_NOT_FOUND, "sequence %s has no segment %" PRIu64 " reserved",
			    sequence->name.id, id);
		if (segment->commit)
			return kv_fail(KV_INVALID, "segment %" PRIu64 " is named twice in one commit", id);
		segment->commit = commit;
		commit->segments[commit->count++] = segment;
	}
	return KV_OK;
}

static void unmark_segments(struct kvs_engine *engine, struct kvs_commit *commit)
{
	for (uint32_t i = 0; i < commit->count; i++) {
		struct kvs_segment *segment = commit->segments[i];

		segment->commit = NULL;
		if (!segment->token_ids) continue;
		kv_free(engine->allocator, segment->token_ids);
		segment->token_ids = NULL;
		segment->checksums = NULL;
		engine->token_count -= segment->tokens;
	}
}

/* Where in the list the new segments go: over a run of entries, or at the end. */
static enum kv_status find_place(const struct kvs_sequence *sequence,
    const struct kvs_commit_request *request, struct kvs_commit *commit)
{
	uint32_t first = 0;

	commit->replaced = request->replaced_count;
	commit->first = sequence->length;
	if (request->replaced_count == 0) return KV_OK;
	while (first < sequence->length && sequence->list[first].id != request->replaced_ids[0])
		first++;
	for (uint32_t i = 0; i < request->replaced_count; i++) {
		if (first + i < sequence->length &&
		    sequence->list[first + i].id == request->replaced_ids[i])
			continue;
		return kv_fail(KV_INVALID,
		    "segment %" PRIu64 " is to be replaced, but is not entry %u of the list of %u",
		    request->replaced_ids[i], first + i, sequence->length);
	}
	commit->first = first;
	return KV_OK;
}

static const struct kvs_segment *entry_before(
    const struct kvs_sequence *sequence, const struct kvs_commit *commit)
{
	return commit->first > 0 ? sequence->list[commit->first - 1].segment : NULL;
}

/* No gap before, inside or behind the new run, and no exact segment after an approximate one. */
static enum kv_status check_run(
    const struct kvs_sequence *sequence, const struct kvs_commit *commit)
{
	const struct kvs_segment *before = entry_before(sequence, commit);
	const uint32_t behind = commit->first + commit->replaced;
	uint32_t position = before ? before->start + before->tokens : 0;
	enum kvw_provenance provenance = before ? before->provenance : KVW_EXACT;

	for (uint32_t i = 0; i < commit->count; i++) {
		const struct kvs_segment *segment = commit->segments[i];

		if (segment->start != position)
			return kv_fail(KV_INVALID, "segment %" PRIu64 " starts at %u, the list goes on at %u",
			    segment->id, segment->start, position);
		if (segment->provenance == KVW_EXACT && provenance != KVW_EXACT)
			return kv_fail(KV_INVALID,
			    "segment %" PRIu64 " claims to be exact, but follows an approximate one",
			    segment->id);
		position += segment->tokens;
		if (segment->provenance == KVW_EXACT && position > sequence->prompt_tokens)
			return kv_fail(KV_INVALID,
			    "segment %" PRIu64
			    " claims to be exact, but ends at %u, after the prompt's %u tokens",
			    segment->id, position, sequence->prompt_tokens);
		provenance = segment->provenance;
	}
	if (behind < sequence->length) {
		const struct kvs_segment *next = sequence->list[behind].segment;

		if (next->start != position || (next->provenance == KVW_EXACT && provenance != KVW_EXACT))
			return kv_fail(KV_INVALID,
			    "the new segments end at %u (provenance %u), the list goes on at %u (%u)", position,
			    (unsigned)provenance, next->start, (unsigned)next->provenance);
	}
	return KV_OK;
}

static enum kv_status check_counts(const struct kvs_sequence *sequence,
    const struct kvs_commit_request *request, const struct kvs_commit *commit, uint64_t *tokens)
{
	uint64_t units = 0;
	uint32_t end = 0;

	*tokens = 0;
	for (uint32_t i = 0; i < commit->count; i++) {
		*tokens += commit->segments[i]->tokens;
		units += commit->segments[i]->layers;
		end = commit->segments[i]->start + commit->segments[i]->tokens;
	}
	if (request->checksum_count != 0 && request->checksum_count != units)
		return kv_fail(KV_INVALID, "%u checksums are given for %" PRIu64 " units",
		    request->checksum_count, units);
	if (request->token_count != 0 && request->token_count != *tokens)
		return kv_fail(KV_INVALID, "%u token ids are given for segments of %" PRIu64 " tokens",
		    request->token_count, *tokens);
	if (request->token_count == 0 && end > sequence->prompt_tokens)
		return kv_fail(KV_INVALID,
		    "the segments end at %u, after the prompt's %u tokens: their token ids are needed", end,
		    sequence->prompt_tokens);
	return KV_OK;
}

/* Token ids must agree with the prompt and with what was pushed. */
static enum kv_status check_tokens(const struct kvs_sequence *sequence,
    const struct kvs_segment *segment, const uint32_t *token_ids)
{
	const uint32_t known = sequence->prompt_tokens + sequence->decoded_tokens;

	for (uint32_t i = 0; i < segment->tokens && segment->start + i < known; i++) {
		if (token_ids[i] != sequence->tokens[segment->start + i])
			return kv_fail(KV_INVALID,
			    "segment %" PRIu64 " has token %u at position %u, the sequence has %u", segment->id,
			    token_ids[i], segment->start + i, sequence->tokens[segment->start + i]);
	}
	return KV_OK;
}

/* Give a segment its token ids and checksums: one block, the checksums behind. */
static enum kv_status fill_segment(struct kvs_engine *engine, struct kvs_segment *segment,
    const uint32_t *token_ids, const uint32_t *checksums)
{
	const size_t words = (size_t)segment->tokens + (checksums ? segment->layers : 0);
	uint32_t *block = kv_alloc_array(engine->allocator, words, sizeof *block);

	if (!block) return KV_NO_MEMORY;
	memcpy(block, token_ids, segment->tokens * sizeof *block);
	segment->token_ids = block;
	engine->token_count += segment->tokens;
	if (!checksums) return KV_OK;
	segment->checksums = block + segment->tokens;
	memcpy(segment->checksums, checksums, segment->layers * sizeof *checksums);
	return KV_OK;
}

static enum kv_status fill_segments(struct kvs_engine *engine, struct kvs_sequence *sequence,
    const struct kvs_commit_request *request, struct kvs_commit *commit)
{
	const uint32_t *tokens = request->tokens;
	const uint32_t *checksums = request->checksum_count > 0 ? request->checksums : NULL;
	const struct kvs_segment *before = entry_before(sequence, commit);
	const uint8_t *parent_key = before ? before->key : NULL;

	for (uint32_t i = 0; i < commit->count; i++) {
		struct kvs_segment *segment = commit->segments[i];
		const uint32_t *own = request->token_count > 0 ? tokens : sequence->tokens + segment->start;
		const bool exact = segment->provenance == KVW_EXACT;
		const struct kvs_new_segment shape = {
		    .start = segment->start,
		    .tokens = segment->tokens,
		    .kind = segment->kind,
		    .provenance = segment->provenance,
		};

		if (request->own_only && exact)
			return kv_fail(KV_INVALID,
			    "segment %" PRIu64 " is exact: only approximate ones are a sequence's own",
			    segment->id);
		segment->own_only = request->own_only != 0;
		KV_TRY(check_tokens(sequence, segment, own));
		KV_TRY(fill_segment(engine, segment, own, checksums));
		kvs_segment_key(
		    segment->root, &shape, parent_key, exact ? NULL : sequence, own, segment->key);
		parent_key = segment->key;
		if (request->token_count > 0) tokens += segment->tokens;
		if (checksums) checksums += segment->layers;
	}
	return KV_OK;
}

static enum kv_status prepare(struct kvs_engine *engine, struct kvs_sequence *sequence,
    const struct kvs_commit_request *request, struct kvs_commit *commit)
{
	const uint32_t length = sequence->length - request->replaced_count;
	uint64_t tokens = 0;

	KV_TRY(find_place(sequence, request, commit));
	KV_TRY(mark_segments(engine, sequence, request, commit));
	KV_TRY(check_run(sequence, commit));
	KV_TRY(check_counts(sequence, request, commit, &tokens));
	KV_TRY(kvs_token_room(engine, tokens));
	KV_TRY(kvs_list_reserve(engine, sequence, length + commit->count));
	return fill_segments(engine, sequence, request, commit);
}

static enum kv_status begin(struct kvs_engine *engine, uint32_t peer,
    const struct kvs_commit_request *request, struct kvs_commit **commit)
{
	struct kvs_sequence *sequence = NULL;
	struct kvs_commit *made = NULL;
	enum kv_status status;
	bool repeated;

	KV_TRY(kvs_sequence_require(engine, peer, request->sequence, &sequence));
	if (request->segment_count == 0 || request->segment_count > KVS_MAX_COMMIT_SEGMENTS)
		return kv_fail(KV_INVALID, "%u segments are committed, allowed are 1 to %u",
		    request->segment_count, (unsigned)KVS_MAX_COMMIT_SEGMENTS);
	/* What a repeated one replaced is not in the list any more. */
	repeated = is_repeated(sequence, request);
	if (!repeated && request->replaced_count > sequence->length)
		return kv_fail(KV_INVALID, "%u segments are to be replaced, the list has %u",
		    request->replaced_count, sequence->length);
	if (sequence->commit)
		return kv_fail(KV_BUSY, "a commit of sequence %s is in flight", sequence->name.id);
	KV_TRY(commit_create(engine, request, &made));
	if (repeated) {
		made->repeated = true;
		made->first = sequence->last_first;
	} else {
		status = prepare(engine, sequence, request, made);
		if (status != KV_OK) {
			unmark_segments(engine, made);
			commit_free(engine, made);
			return status;
		}
	}
	made->sequence = sequence;
	sequence->commit = made;
	engine->commits_in_flight++;
	*commit = made;
	return KV_OK;
}

uint32_t kvs_commit_segments(const struct kvs_commit *commit)
{
	return commit->count;
}

void kvs_commit_segment(
    const struct kvs_commit *commit, uint32_t index, struct kvs_segment_view *view)
{
	kvs_segment_show(commit->segments[index], view);
}

/* The sequence has gone: its segments are in quarantine, those that nobody writes to become free.
 */
static enum kv_status finish_stale(struct kvs_engine *engine, struct kvs_commit *commit)
{
	for (uint32_t i = 0; i < commit->count; i++) {
		struct kvs_segment *segment = commit->segments[i];

		segment->commit = NULL;
		if (segment->abandoned) kvs_segment_destroy(engine, segment);
	}
	engine->counters.commits_stale++;
	return kv_fail(
	    KV_STALE, "the sequence was closed, or its lease lapsed, while its commit was in flight");
}

static enum kv_status finish_refused(
    struct kvs_engine *engine, struct kvs_commit *commit, enum kv_status verified)
{
	for (uint32_t i = 0; i < commit->count; i++) {
		commit->segments[i]->commit = NULL;
		kvs_segment_destroy(engine, commit->segments[i]);
	}
	if (verified == KV_CORRUPT)
		engine->counters.commits_corrupt++;
	else
		engine->counters.commits_refused++;
	return verified;
}

/* Put one segment, or the stored one of its key, into the list at `index`. */
static bool enter_list(struct kvs_engine *engine, struct kvs_sequence *sequence,
    struct kvs_segment *segment, uint32_t index)
{
	struct kvs_segment *parent = index > 0 ? sequence->list[index - 1].segment : NULL;
	struct kvs_segment *stored =
	    (struct kvs_segment *)kv_hash_map_find_pointer(engine->segments_by_key, segment->key);

	if (stored) {
		segment->commit = NULL;
		kvs_segment_destroy(engine, segment);
	} else {
		kvs_segment_publish(engine, segment, parent);
	}
	sequence->list[index].segment = stored ? stored : segment;
	sequence->list[index].id = sequence->list[index].segment->id;
	if (stored)
		kvs_segment_found(engine, stored);
	else
		kvs_segment_reference(engine, segment);
	sequence->list[index].segment->listed++;
	return stored != NULL;
}

static void finish_list(
    struct kvs_engine *engine, struct kvs_commit *commit, struct kvs_commit_result *result)
{
	struct kvs_sequence *sequence = commit->sequence;
	struct kvs_entry *place = sequence->list + commit->first;
	const uint32_t behind = sequence->length - commit->first - commit->replaced;

	result->duplicates = 0;
	memcpy(commit->removed, place, commit->replaced * sizeof *place);
	memmove(place + commit->count, place + commit->replaced, behind * sizeof *place);
	for (uint32_t i = 0; i < commit->count; i++) {
		if (enter_list(engine, sequence, commit->segments[i], commit->first + i))
			result->duplicates++;
	}
	sequence->length = sequence->length - commit->replaced + commit->count;
	for (uint32_t i = commit->replaced; i-- > 0;)
		kvs_segment_unreference(engine, commit->removed[i].segment);
	kvs_list_forget(engine, commit->removed, commit->replaced);
	kv_free(engine->allocator, sequence->last_ids);
	sequence->last_ids = commit->ids;
	sequence->last_count = commit->count;
	sequence->last_first = commit->first;
	commit->ids = NULL;
}

/* The planted fault: visible at once, whatever the checksums will say. */
static void publish_early(struct kvs_engine *engine, struct kvs_commit *commit)
{
	finish_list(engine, commit, &commit->early_result);
	commit->early_result.count = commit->count;
	commit->early = true;
	commit->count = 0;
}

enum kv_status kvs_commit_begin(struct kvs_engine *engine, uint32_t peer,
    const struct kvs_commit_request *request, struct kvs_commit **commit)
{
	enum kv_status status = begin(engine, peer, request, commit);

	if (status != KV_OK) engine->counters.commits_refused++;
	if (status == KV_OK && !(*commit)->repeated && KVS_FAULT("commit-before-checksum"))
		publish_early(engine, *commit);
	return status;
}

enum kv_status kvs_commit_finish(struct kvs_engine *engine, struct kvs_commit *commit,
    enum kv_status verified, struct kvs_commit_result *result)
{
	struct kvs_sequence *sequence = commit->sequence;
	struct kvs_commit_result done = {.repeated = commit->repeated};
	enum kv_status status = KV_OK;

	engine->commits_in_flight--;
	if (sequence) sequence->commit = NULL;
	if (commit->early) {
		done = commit->early_result;
		status = verified;
	} else if (!sequence) {
		status = finish_stale(engine, commit);
	} else if (commit->repeated) {
		done.count = sequence->last_count;
		engine->counters.commits_repeated++;
	} else if (verified != KV_OK) {
		status = finish_refused(engine, commit, verified);
	} else {
		finish_list(engine, commit, &done);
		done.count = commit->count;
		engine->counters.commits++;
		engine->counters.commits_duplicate += done.duplicates;
	}
	done.first = commit->first;
	commit_free(engine, commit);
	if (status == KV_OK) *result = done;
	return status;
}

enum kv_status kvs_commit_now(struct kvs_engine *engine, uint32_t peer,
    const struct kvs_commit_request *request, struct kvs_commit_result *result)
{
	struct kvs_commit *commit = NULL;

	KV_TRY(kvs_commit_begin(engine, peer, request, &commit));
	return kvs_commit_finish(engine, commit, KV_OK, result);
}
