#include "tests/lib/store_client_test.h"

#include <stdlib.h>

static const struct kvc_cut cuts[CUTS] = {
    {CUT_ONE, KVW_CLUSTERED}, {CUT_TWO, KVW_CLUSTERED}, {PROMPT_TOKENS, KVW_PLAIN}};

const char *test_store_transport(void)
{
	return strcmp(test_transport, "stream") == 0 ? "map" : test_transport;
}

struct kvw_model_layout test_layout(void)
{
	return (struct kvw_model_layout){.layers = 3,
	    .kv_heads = 2,
	    .head_dim = 64,
	    .kv_type = KVW_KV_F16,
	    .dense_layers = 1,
	    .sinks = 4,
	    .cluster_tokens = 16,
	    .index_digest = {1, 2, 3, 4, 5, 6, 7, 8}};
}

struct kvc_options test_options(const struct store_fixture *fixture, const char *name)
{
	struct kvc_options options = {.allocator = kv_heap(),
	    .address = fixture ? fixture->address : "none",
	    .transport = test_transport,
	    .name = name,
	    .model_name = "test-model",
	    .layout = test_layout(),
	    .local_memory = UINT64_C(32) << 20,
	    .connect_ms = 3000,
	    .staging_bytes = 2 << 20};

	if (strncmp(options.address, "tcp:", 4) == 0) options.secret = store_fixture_secret;
	memset(options.model_id, 7, sizeof options.model_id);
	return options;
}

struct kvc_store *test_connect(const struct store_fixture *fixture, const char *name)
{
	struct kvc_options options = test_options(fixture, name);
	struct kvc_store *store = NULL;

	assert_ok(kvc_open(&options, &store));
	return store;
}

void test_prompt(int32_t prompt[PROMPT_TOKENS], int32_t seed)
{
	for (int32_t i = 0; i < PROMPT_TOKENS; i++)
		prompt[i] = (i * 31 + seed * 1009) % 50000;
}

enum kv_status test_open(
    struct kvc_store *store, const char *id, int32_t seed, struct kvc_sequence **sequence)
{
	int32_t prompt[PROMPT_TOKENS];
	struct kvc_open_request request = {.sequence_id = id,
	    .prompt = prompt,
	    .prompt_tokens = PROMPT_TOKENS,
	    .cuts = cuts,
	    .cut_count = CUTS,
	    .parameters = "temperature=0",
	    .parameter_bytes = 13};

	test_prompt(prompt, seed);
	memset(request.policy_digest, 3, sizeof request.policy_digest);
	return kvc_sequence_open(store, &request, sequence);
}

static uint8_t byte_at(const struct kvc_segment *segment, uint32_t layer, int32_t seed, uint64_t i)
{
	return (uint8_t)(segment->start * 7 + layer * 13 + (uint32_t)seed * 3 + i + i / 251);
}

uint64_t test_unit_bytes(
    uint32_t start, uint32_t tokens, enum kvw_segment_kind kind, uint32_t layer)
{
	struct kvw_model_layout layout = test_layout();
	struct kvw_unit_shape shape;
	struct kvw_unit_layout unit;

	if (kvw_unit_shape(&layout, kind, start, tokens, layer, &shape) != KV_OK) return 0;
	if (kvw_unit_layout(&shape, &unit) != KV_OK) return 0;
	return unit.bytes;
}

enum kv_status test_write_segment(
    struct kvc_sequence *sequence, const struct kvc_segment *segment, int32_t seed)
{
	for (uint32_t layer = 0; layer < 3; layer++) {
		uint8_t *memory = NULL;
		uint64_t bytes = 0;

		KV_TRY(kvc_unit_begin(sequence, segment, layer, &memory, &bytes));
		if (bytes != test_unit_bytes(segment->start, segment->tokens, segment->kind, layer))
			return kv_fail(KV_INTERNAL, "a unit has %llu bytes", (unsigned long long)bytes);
		for (uint64_t i = 0; i < bytes; i++)
			memory[i] = byte_at(segment, layer, seed, i);
		KV_TRY(kvc_unit_end(sequence, segment, layer));
	}
	return KV_OK;
}

enum kv_status test_write(struct kvc_store *store, struct kvc_sequence *sequence, int32_t seed)
{
	struct kvc_new_segment wanted[CUTS];
	const struct kvc_segment *segments[CUTS];
	uint32_t shared;
	uint32_t count = 0;

	(void)store;
	kvc_sequence_segments(sequence, &shared);
	for (uint32_t i = shared; i < CUTS; i++) {
		uint32_t start = i ? cuts[i - 1].end : 0;

		wanted[count++] = (struct kvc_new_segment){.start = start,
		    .tokens = cuts[i].end - start,
		    .kind = cuts[i].kind,
		    .provenance = KVW_EXACT};
	}
	if (!count) return KV_OK;
	KV_TRY(kvc_reserve(sequence, wanted, count, segments));
	for (uint32_t i = 0; i < count; i++)
		KV_TRY(test_write_segment(sequence, segments[i], seed));
	return kvc_commit(sequence, segments, count, NULL, 0, NULL, 0);
}

static int compare_unit(
    struct kvc_store *store, const struct kvc_segment *segment, uint32_t layer, int32_t seed)
{
	uint64_t bytes = test_unit_bytes(segment->start, segment->tokens, segment->kind, layer);
	uint8_t *copy = malloc(bytes);
	/* Two reads: the batch, and the parts of a unit, must fit together. */
	struct kvc_read reads[2] = {
	    {segment, layer, 0, 4096, copy}, {segment, layer, 4096, bytes - 4096, copy + 4096}};
	const uint8_t *direct = kvc_direct(store, segment, layer);
	int wrong = 0;

	if (kvc_fetch_start(store, reads, 2) != KV_OK || kvc_fetch_wait(store) != KV_OK) {
		fprintf(stderr, "fetch: %s\n", kv_error_message());
		free(copy);
		return -1;
	}
	for (uint64_t i = 0; i < bytes && !wrong; i++)
		wrong = copy[i] != byte_at(segment, layer, seed, i);
	if (direct) wrong |= memcmp(direct, copy, bytes) != 0;
	free(copy);
	/* What was read in place counts only when this holds afterwards. */
	return direct && kvc_check(store) != KV_OK ? -1 : wrong;
}

static int compare_segment(
    struct kvc_store *store, const struct kvc_segment *segment, int32_t seed, int *wrong)
{
	for (uint32_t layer = 0; layer < 3; layer++) {
		int found = compare_unit(store, segment, layer, seed);

		if (found < 0) return -1;
		*wrong += found;
	}
	return 0;
}

int test_compare(struct kvc_store *store, struct kvc_sequence *sequence, int32_t seed)
{
	uint32_t count;
	const struct kvc_segment *const *segments = kvc_sequence_segments(sequence, &count);
	int wrong = 0;

	for (uint32_t i = 0; i < count; i++)
		if (compare_segment(store, segments[i], seed, &wrong) < 0) return -1;
	return wrong;
}

int test_compare_pieces(struct kvc_store *store, struct kvc_sequence *sequence, int32_t seed)
{
	uint32_t count;
	const struct kvc_piece *pieces = kvc_sequence_pieces(sequence, &count);
	int wrong = 0;

	for (uint32_t i = 0; i < count; i++)
		if (compare_segment(store, pieces[i].segment, seed, &wrong) < 0) return -1;
	return wrong;
}

void test_store_prompt(struct kvc_store *store, int32_t seed)
{
	struct kvc_sequence *sequence = NULL;

	assert_ok(test_open(store, NULL, seed, &sequence));
	assert_ok(test_write(store, sequence, seed));
	assert_int_equal(test_compare(store, sequence, seed), 0);
	kvc_sequence_close(sequence, 0);
}
