/* A store inside this process (--store=none): the engine over anonymous memory, by plain calls. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "kvstore/client/store_internal.h"
#include "kvstore/engine/engine.h"

enum { LOCAL_MAX_REGIONS = 64, LOCAL_SESSION = 1, LOCAL_SMALL_REGION = 256 << 20 };

/* There is no one else whose silence a lease could find. */
#define LOCAL_LEASE_MS UINT32_MAX

struct local_region {
	uint8_t *memory;
	uint64_t bytes;
	uint32_t index;
};

struct local_store {
	struct kvc_store base;
	struct kvs_engine *engine;
	uint32_t peer;
	uint64_t epoch;
	struct local_region regions[LOCAL_MAX_REGIONS];
	uint32_t region_count;
};

/* The backend's part of a sequence. */
struct local_sequence {
	uint32_t pushed;
};

static struct local_store *local_of(struct kvc_store *store)
{
	return (struct local_store *)store;
}

/* ---- the engine's environment ---- */

static uint64_t local_now(void *context)
{
	(void)context;
	return kv_now_ms();
}

static uint64_t local_random(void *context)
{
	(void)context;
	return kv_random_entropy();
}

static enum kv_status local_region_create(
    void *context, uint32_t index, uint64_t bytes, uint8_t **base)
{
	struct local_store *store = context;
	void *memory;

	if (store->region_count == LOCAL_MAX_REGIONS)
		return kv_fail(KV_LIMIT, "an own store has at most %d regions", (int)LOCAL_MAX_REGIONS);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return kv_fail(KV_NO_MEMORY, "cannot map %llu bytes of own store memory: %s",
		    (unsigned long long)bytes, strerror(errno));
	store->regions[store->region_count++] =
	    (struct local_region){.memory = memory, .bytes = bytes, .index = index};
	*base = memory;
	return KV_OK;
}

static void local_region_destroy(void *context, uint32_t index)
{
	struct local_store *store = context;

	for (uint32_t i = 0; i < store->region_count; i++) {
		if (store->regions[i].index != index) continue;
		munmap(store->regions[i].memory, store->regions[i].bytes);
		store->regions[i] = store->regions[--store->region_count];
		return;
	}
}

static void local_lease_changed(void *context, uint32_t slot, uint64_t epoch)
{
	(void)context;
	(void)slot;
	(void)epoch;
}

/* ---- records ---- */

static enum kv_status local_entry(
    struct kvc_sequence *sequence, const struct kvs_segment_view *view, struct kvc_entry **entry)
{
	struct local_store *store = local_of(sequence->store);
	uint32_t region[KVW_MAX_LAYERS];
	uint64_t offset[KVW_MAX_LAYERS];
	struct kvc_place place = {.id = view->id,
	    .start = view->start,
	    .tokens = view->tokens,
	    .kind = view->kind,
	    .provenance = view->provenance,
	    .region = region,
	    .offset = offset,
	    .units = view->layers};
	struct kvc_entry *created = NULL;

	if (view->layers > KVW_MAX_LAYERS) return kv_fail(KV_INTERNAL, "too many layers");
	for (uint32_t layer = 0; layer < view->layers; layer++) {
		region[layer] = view->units[layer].region;
		offset[layer] = view->units[layer].offset;
	}
	KV_TRY(kvc_entry_create(sequence, &place, &created));
	for (uint32_t layer = 0; layer < view->layers; layer++)
		created->units[layer].read = kvs_unit_memory(store->engine, &view->units[layer]);
	*entry = created;
	return KV_OK;
}

static enum kv_status list_entries(struct kvc_sequence *sequence, uint32_t count)
{
	struct local_store *store = local_of(sequence->store);

	for (uint32_t i = 0; i < count; i++) {
		struct kvs_segment_view view;
		struct kvc_entry *entry = NULL;

		KV_TRY(kvs_sequence_segment(store->engine, sequence->handle, i, &view));
		KV_TRY(local_entry(sequence, &view, &entry));
		KV_TRY(kvc_list_append(store->base.allocator, &sequence->list, entry));
	}
	return KV_OK;
}

static enum kv_status list_pieces(struct kvc_sequence *sequence, uint32_t count)
{
	struct local_store *store = local_of(sequence->store);

	if (!count) return KV_OK;
	sequence->pieces = kv_alloc_array(store->base.allocator, count, sizeof *sequence->pieces);
	if (!sequence->pieces) return KV_NO_MEMORY;
	for (uint32_t i = 0; i < count; i++) {
		struct kvs_segment_view view;
		struct kvc_entry *entry = NULL;
		uint32_t tokens;

		KV_TRY(kvs_sequence_piece(store->engine, sequence->handle, i, &view, &tokens));
		KV_TRY(local_entry(sequence, &view, &entry));
		sequence->pieces[sequence->piece_count++] =
		    (struct kvc_piece){.segment = &entry->view, .tokens = tokens};
	}
	return KV_OK;
}

/* ---- sequences ---- */

static enum kv_status begin_sequence(struct kvc_sequence *sequence)
{
	struct local_store *store = local_of(sequence->store);

	sequence->session = LOCAL_SESSION;
	sequence->backend = kv_alloc_zero(store->base.allocator, sizeof(struct local_sequence));
	if (!sequence->backend) return KV_NO_MEMORY;
	/* Orphans expire when somebody comes. */
	KV_TRY(kvs_peer_heartbeat(store->engine, store->peer, store->epoch));
	kvs_engine_tick(store->engine);
	return KV_OK;
}

static enum kv_status local_open(
    struct kvc_sequence *sequence, const struct kvc_open_request *request)
{
	struct local_store *store = local_of(sequence->store);
	struct kvs_open_request open = {.sequence_id = request->sequence_id,
	    .prompt = (const uint32_t *)request->prompt,
	    .prompt_tokens = request->prompt_tokens,
	    .cut_count = request->cut_count,
	    .parameters = request->parameters,
	    .parameter_bytes = request->parameter_bytes};
	struct kvs_open_result result;
	struct kvs_cut *cuts;
	enum kv_status status;

	KV_TRY(begin_sequence(sequence));
	memcpy(open.policy_digest, request->policy_digest, sizeof open.policy_digest);
	cuts = kv_alloc_array(store->base.allocator, request->cut_count, sizeof *cuts);
	if (!cuts) return KV_NO_MEMORY;
	for (uint32_t i = 0; i < request->cut_count; i++)
		cuts[i] = (struct kvs_cut){.end = request->cuts[i].end, .kind = request->cuts[i].kind};
	open.cuts = cuts;
	status = kvs_sequence_open(store->engine, store->peer, &open, &result);
	kv_free(store->base.allocator, cuts);
	if (status != KV_OK) return status;
	sequence->handle = result.sequence;
	snprintf(sequence->id, sizeof sequence->id, "%s", result.sequence_id);
	KV_TRY(list_entries(sequence, result.shared));
	return list_pieces(sequence, result.pieces);
}

static enum kv_status hold(
    struct kvc_sequence *sequence, size_t index, const void *bytes, size_t size)
{
	sequence->held[index] = kv_alloc(sequence->store->allocator, size);
	if (!sequence->held[index]) return KV_NO_MEMORY;
	if (size) memcpy(sequence->held[index], bytes, size);
	return KV_OK;
}

static enum kv_status local_resume(struct kvc_sequence *sequence, const char *id,
    const uint8_t policy_digest[32], struct kvc_resume_state *state)
{
	struct local_store *store = local_of(sequence->store);
	struct local_sequence *local;
	struct kvs_resume_result result;

	KV_TRY(begin_sequence(sequence));
	local = sequence->backend;
	KV_TRY(kvs_sequence_resume(store->engine, store->peer, id, policy_digest, &result));
	sequence->handle = result.sequence;
	local->pushed = result.decoded_tokens;
	snprintf(sequence->id, sizeof sequence->id, "%s", id);
	KV_TRY(hold(sequence, 0, result.prompt, result.prompt_tokens * sizeof(int32_t)));
	KV_TRY(hold(sequence, 1, result.decoded, result.decoded_tokens * sizeof(int32_t)));
	KV_TRY(hold(sequence, 2, result.sampler_state, result.sampler_bytes));
	KV_TRY(hold(sequence, 3, result.parameters, result.parameter_bytes));
	KV_TRY(list_entries(sequence, result.segments));
	*state = (struct kvc_resume_state){.prompt = (const int32_t *)(const void *)sequence->held[0],
	    .decoded = (const int32_t *)(const void *)sequence->held[1],
	    .prompt_tokens = result.prompt_tokens,
	    .decoded_tokens = result.decoded_tokens,
	    .sampler_state = sequence->held[2],
	    .parameters = sequence->held[3],
	    .sampler_bytes = result.sampler_bytes,
	    .parameter_bytes = result.parameter_bytes};
	return KV_OK;
}

static void local_close(struct kvc_sequence *sequence, bool keep)
{
	struct local_store *store = local_of(sequence->store);

	if (sequence->handle) kvs_sequence_close(store->engine, store->peer, sequence->handle, keep);
	kv_free(store->base.allocator, sequence->backend);
	sequence->backend = NULL;
}

static enum kv_status local_check(const struct kvc_sequence *sequence)
{
	(void)sequence;
	return KV_OK;
}

static enum kv_status local_check_store(struct kvc_store *store)
{
	(void)store;
	return KV_OK;
}

/* ---- writing ---- */

static enum kv_status local_reserve(struct kvc_sequence *sequence,
    const struct kvc_new_segment *segments, uint32_t count, struct kvc_entry **out)
{
	struct local_store *store = local_of(sequence->store);
	struct kvs_new_segment *wanted;
	uint64_t *ids;
	uint32_t made = 0;
	enum kv_status status;

	ids = kv_alloc_array(store->base.allocator, count, sizeof *ids + sizeof *wanted);
	if (!ids) return KV_NO_MEMORY;
	wanted = (struct kvs_new_segment *)(void *)(ids + count);
	for (uint32_t i = 0; i < count; i++)
		wanted[i] = (struct kvs_new_segment){.start = segments[i].start,
		    .tokens = segments[i].tokens,
		    .kind = segments[i].kind,
		    .provenance = segments[i].provenance};
	status = kvs_reserve(store->engine, store->peer, sequence->handle, wanted, count, ids);
	if (status != KV_OK) goto out;
	for (; made < count; made++) {
		struct kvs_segment_view view;

		KV_TRY_GOTO(status, kvs_segment_find(store->engine, ids[made], &view), undo);
		KV_TRY_GOTO(status, local_entry(sequence, &view, &out[made]), undo);
		out[made]->reserved = true;
	}
	goto out;
undo:
	while (made)
		kvc_entry_destroy(out[--made]);
	kvs_release(store->engine, store->peer, sequence->handle, ids, count);
out:
	kv_free(store->base.allocator, ids);
	return status;
}

static enum kv_status local_unit_begin(struct kvc_entry *entry, uint32_t layer)
{
	struct local_store *store = local_of(entry->sequence->store);

	return kvs_put_target(store->engine, store->peer, entry->view.id, layer,
	    entry->units[layer].bytes, &entry->units[layer].write);
}

static enum kv_status local_unit_end(struct kvc_entry *entry, uint32_t layer)
{
	/* Nothing lies between the writer and the store that could change a byte. */
	(void)entry;
	(void)layer;
	return KV_OK;
}

static void local_unit_drop(struct kvc_entry *entry, uint32_t layer)
{
	(void)entry;
	(void)layer;
}

static enum kv_status take_committed(struct kvc_sequence *sequence, const struct kvc_commit *commit,
    const struct kvs_commit_result *result, struct kvc_entry **results)
{
	struct local_store *store = local_of(sequence->store);

	if (result->count != commit->count)
		return kv_fail(
		    KV_INTERNAL, "a commit of %u segments ended with %u", commit->count, result->count);
	for (uint32_t i = 0; i < commit->count; i++) {
		struct kvs_segment_view view;

		KV_TRY(kvs_sequence_segment(store->engine, sequence->handle, result->first + i, &view));
		results[i] = commit->entries[i];
		if (view.id != results[i]->view.id) KV_TRY(local_entry(sequence, &view, &results[i]));
	}
	return KV_OK;
}

static enum kv_status local_commit(
    struct kvc_sequence *sequence, const struct kvc_commit *commit, struct kvc_entry **results)
{
	struct local_store *store = local_of(sequence->store);
	struct kvs_commit_request request = {.sequence = sequence->handle,
	    .segment_count = commit->count,
	    .tokens = (const uint32_t *)commit->tokens,
	    .token_count = commit->token_count,
	    .replaced_count = commit->replaced_count,
	    .own_only = sequence->own_only};
	struct kvs_commit_result result;
	uint64_t *ids;
	enum kv_status status;

	ids = kv_alloc_array(
	    store->base.allocator, (size_t)commit->count + commit->replaced_count, sizeof *ids);
	if (!ids) return KV_NO_MEMORY;
	for (uint32_t i = 0; i < commit->count; i++)
		ids[i] = commit->entries[i]->view.id;
	for (uint32_t i = 0; i < commit->replaced_count; i++)
		ids[commit->count + i] = commit->replaced[i]->view.id;
	request.segment_ids = ids;
	request.replaced_ids = commit->replaced_count ? ids + commit->count : NULL;
	status = kvs_peer_heartbeat(store->engine, store->peer, store->epoch);
	if (status == KV_OK) status = kvs_commit_now(store->engine, store->peer, &request, &result);
	kv_free(store->base.allocator, ids);
	if (status != KV_OK) return status;
	return take_committed(sequence, commit, &result, results);
}

static void local_release(struct kvc_sequence *sequence, const uint64_t *ids, uint32_t count)
{
	struct local_store *store = local_of(sequence->store);

	kvs_release(store->engine, store->peer, sequence->handle, ids, count);
}

/* ---- reading ---- */

static enum kv_status local_fetch_start(
    struct kvc_store *store, const struct kvc_read *reads, uint32_t count)
{
	(void)store;
	for (uint32_t i = 0; i < count; i++) {
		const struct kvc_entry *entry = kvc_entry_of(reads[i].segment);

		memcpy(reads[i].destination, entry->units[reads[i].layer].read + reads[i].offset,
		    reads[i].bytes);
	}
	return KV_OK;
}

/* ---- decoded tokens ---- */

static enum kv_status local_push(struct kvc_sequence *sequence, const int32_t *decoded,
    uint32_t decoded_tokens, const void *sampler_state, size_t sampler_bytes)
{
	struct local_store *store = local_of(sequence->store);
	struct local_sequence *local = sequence->backend;

	if (decoded_tokens < local->pushed)
		return kv_fail(KV_INVALID, "%u decoded tokens are reported after %u were", decoded_tokens,
		    local->pushed);
	KV_TRY(kvs_sequence_push(store->engine, store->peer, sequence->handle, local->pushed,
	    (const uint32_t *)decoded + local->pushed, decoded_tokens - local->pushed, sampler_state,
	    sampler_bytes));
	local->pushed = decoded_tokens;
	return KV_OK;
}

static enum kv_status local_flush(struct kvc_sequence *sequence)
{
	(void)sequence;
	return KV_OK;
}

static void local_report(
    struct kvc_store *store, const struct kvc_counter *counters, uint32_t count)
{
	(void)store;
	(void)counters;
	(void)count;
}

/* ---- the store ---- */

static int local_connected(struct kvc_store *store)
{
	(void)store;
	return 1;
}

static uint64_t local_generation(struct kvc_store *store)
{
	return kvs_engine_generation(local_of(store)->engine);
}

static const char *local_transport(struct kvc_store *store)
{
	(void)store;
	return "local";
}

static const char *local_lanes(struct kvc_store *store)
{
	(void)store;
	return "process";
}

static void local_destroy(struct kvc_store *base)
{
	struct local_store *store = local_of(base);

	kvs_engine_destroy(store->engine);
	kv_free(store->base.allocator, store);
}

static const struct kvc_backend local_backend = {
    .destroy = local_destroy,
    .connected = local_connected,
    .generation = local_generation,
    .transport = local_transport,
    .lanes = local_lanes,
    .open = local_open,
    .resume = local_resume,
    .close = local_close,
    .check = local_check,
    .check_store = local_check_store,
    .reserve = local_reserve,
    .unit_begin = local_unit_begin,
    .unit_end = local_unit_end,
    .commit = local_commit,
    .release = local_release,
    .unit_drop = local_unit_drop,
    .fetch_start = local_fetch_start,
    .fetch_wait = local_check_store,
    .push = local_push,
    .flush = local_flush,
    .report = local_report,
};

static enum kv_status start_engine(struct local_store *store, const struct kvc_options *options)
{
	struct kvs_options engine = {.memory = options->local_memory, .lease_ms = LOCAL_LEASE_MS};
	struct kvs_environment environment = {.context = store,
	    .now_ms = local_now,
	    .random64 = local_random,
	    .region_create = local_region_create,
	    .region_destroy = local_region_destroy,
	    .lease_changed = local_lease_changed};
	struct kvs_peer_request peer = {.name = options->name,
	    .model_id = options->model_id,
	    .model_name = options->model_name,
	    .layout = options->layout};

	/* Regions are few here: where there may be much memory they are large. */
	if (engine.memory / LOCAL_MAX_REGIONS > LOCAL_SMALL_REGION / 2)
		engine.region_bytes = 2 * (engine.memory / LOCAL_MAX_REGIONS);
	if (!engine.memory)
		return kv_fail(KV_INVALID, "an own store (none) needs to know how much memory it may use");
	KV_TRY(kvs_engine_create(store->base.allocator, &engine, &environment, &store->engine));
	return kvs_peer_add(store->engine, &peer, &store->peer, &store->epoch);
}

enum kv_status kvc_local_open(const struct kvc_options *options, struct kvc_store **store)
{
	struct local_store *created = kv_alloc_zero(options->allocator, sizeof *created);
	enum kv_status status;

	if (!created) return KV_NO_MEMORY;
	created->base.backend = &local_backend;
	created->base.allocator = options->allocator;
	created->base.layout = options->layout;
	kv_list_init(&created->base.sequences);
	status = start_engine(created, options);
	if (status != KV_OK) {
		local_destroy(&created->base);
		return status;
	}
	kv_info("store-client", "no store process: key/values are kept inside this one, memory=%llu",
	    (unsigned long long)options->local_memory);
	*store = &created->base;
	return KV_OK;
}
