#include "tests/unit/kvstore/engine_fixture.h"

const uint8_t store_policy[32] = {9, 9, 9};

void store_assert_status(enum kv_status status, enum kv_status expected, const char *expression,
    const char *file, int line)
{
	if (status == expected) return;
	print_error("%s: %s instead of %s: %s\n", expression, kv_status_text(status),
	    kv_status_text(expected), kv_error_message());
	_fail(file, line);
}

void store_assert_text(const char *part, const char *file, int line)
{
	if (strstr(kv_error_message(), part)) return;
	print_error("\"%s\" does not say \"%s\"\n", kv_error_message(), part);
	_fail(file, line);
}

static void broken(void *context, const char *what)
{
	(void)context;
	fail_msg("%s", what);
}

struct kvs_environment store_environment(struct store *store)
{
	engine_world_begin(&store->world, 1, ENGINE_WORLD_REGIONS, broken, NULL);
	return engine_world_environment(&store->world);
}

void store_start(struct store *store, const struct kvs_options *options)
{
	const struct kvs_options usual = {
	    .memory = STORE_MEMORY, .max_sequences = 64, .max_segments = 512, .max_peers = 16};
	struct kvs_environment environment;

	memset(store, 0, sizeof *store);
	environment = store_environment(store);
	store->allocator = kv_allocator_create("engine test", 0);
	assert_non_null(store->allocator);
	assert_ok(kvs_engine_create(
	    store->allocator, options ? options : &usual, &environment, &store->engine));
}

void store_stop(struct store *store)
{
	assert_sound(store);
	kvs_engine_destroy(store->engine);
	engine_world_check_empty(&store->world);
	assert_int_equal(kv_allocator_stats(store->allocator).blocks, 0);
	kv_allocator_destroy(store->allocator);
}

uint32_t store_peer_of(struct store *store, const char *name, const char *tenant, uint8_t model)
{
	uint8_t model_id[KVW_MODEL_ID_BYTES] = {0};
	struct kvs_peer_request request = {
	    .tenant = tenant,
	    .name = name,
	    .model_id = model_id,
	    .model_name = "tiny",
	    .layout = engine_world_layout,
	};
	uint64_t epoch = 0;
	uint32_t peer = 0;

	model_id[0] = model;
	assert_ok(kvs_peer_add(store->engine, &request, &peer, &epoch));
	assert_int_equal(store->world.page.lease[peer], epoch);
	return peer;
}

uint32_t store_peer(struct store *store, const char *name)
{
	return store_peer_of(store, name, "", 1);
}

uint64_t store_epoch(struct store *store, uint32_t peer)
{
	struct kvs_peer_info info;

	assert_ok(kvs_peer_info(store->engine, peer, &info));
	return info.epoch;
}

static enum kvw_segment_kind kind_of(uint32_t index, uint32_t count)
{
	return index + 1 == count ? KVW_PLAIN : KVW_CLUSTERED;
}

struct kvs_open_result store_open(struct store *store, uint32_t peer, const char *id,
    const uint32_t *prompt, uint32_t prompt_tokens, const uint32_t *ends, uint32_t end_count)
{
	struct kvs_cut cuts[64];
	struct kvs_open_request request = {
	    .sequence_id = id,
	    .prompt = prompt,
	    .prompt_tokens = prompt_tokens,
	    .cuts = cuts,
	    .cut_count = end_count,
	};
	struct kvs_open_result result = {0};

	assert_true(end_count <= 64);
	for (uint32_t i = 0; i < end_count; i++)
		cuts[i] = (struct kvs_cut){.end = ends[i], .kind = kind_of(i, end_count)};
	memcpy(request.policy_digest, store_policy, sizeof request.policy_digest);
	assert_ok(kvs_sequence_open(store->engine, peer, &request, &result));
	assert_sound(store);
	return result;
}

uint32_t store_fill(
    struct store *store, uint32_t peer, uint64_t sequence, const uint32_t *ends, uint32_t end_count)
{
	struct kvs_new_segment segments[64];
	struct kvs_commit_result result = {0};
	uint64_t ids[64];
	uint32_t have = 0, count;

	assert_ok(kvs_sequence_length(store->engine, sequence, &have));
	count = end_count - have;
	assert_true(count >= 1 && end_count <= 64);
	for (uint32_t i = have; i < end_count; i++) {
		uint32_t start = i > 0 ? ends[i - 1] : 0;

		segments[i - have] =
		    (struct kvs_new_segment){start, ends[i] - start, kind_of(i, end_count), KVW_EXACT};
	}
	assert_ok(kvs_reserve(store->engine, peer, sequence, segments, count, ids));
	assert_sound(store);
	assert_ok(kvs_commit_now(store->engine, peer,
	    &(struct kvs_commit_request){
	        .sequence = sequence, .segment_ids = ids, .segment_count = count},
	    &result));
	assert_sound(store);
	assert_int_equal(result.first, have);
	assert_int_equal(result.count, count);
	return result.duplicates;
}

uint64_t store_reserve(struct store *store, uint32_t peer, uint64_t sequence, uint32_t start,
    uint32_t tokens, enum kvw_segment_kind kind, enum kvw_provenance provenance)
{
	const struct kvs_new_segment segment = {start, tokens, kind, provenance};
	uint64_t id = 0;

	assert_ok(kvs_reserve(store->engine, peer, sequence, &segment, 1, &id));
	assert_sound(store);
	return id;
}

enum kv_status store_commit(struct store *store, uint32_t peer, uint64_t sequence,
    const uint64_t *ids, uint32_t count, const uint32_t *tokens, uint32_t token_count,
    const uint64_t *replaced, uint32_t replaced_count)
{
	struct kvs_commit_result result;
	const struct kvs_commit_request request = {
	    .sequence = sequence,
	    .segment_ids = ids,
	    .segment_count = count,
	    .tokens = tokens,
	    .token_count = token_count,
	    .replaced_ids = replaced,
	    .replaced_count = replaced_count,
	};
	enum kv_status status = kvs_commit_now(store->engine, peer, &request, &result);
	char text[512];

	snprintf(text, sizeof text, "%s", kv_error_message());
	assert_sound(store);
	if (status != KV_OK) (void)kv_fail(status, "%s", text);
	return status;
}

uint64_t store_entry(struct store *store, uint64_t sequence, uint32_t index)
{
	struct kvs_segment_view view;

	assert_ok(kvs_sequence_segment(store->engine, sequence, index, &view));
	return view.id;
}

struct kvs_statistics store_statistics(struct store *store)
{
	struct kvs_statistics statistics;

	kvs_engine_statistics(store->engine, &statistics);
	return statistics;
}

bool store_has(struct store *store, uint64_t segment_id)
{
	struct kvs_segment_view view;

	return kvs_segment_find(store->engine, segment_id, &view) == KV_OK;
}

void numbers(uint32_t *tokens, uint32_t count, uint32_t first)
{
	for (uint32_t i = 0; i < count; i++)
		tokens[i] = first + i;
}
