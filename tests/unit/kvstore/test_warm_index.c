/* The index that is kept over a restart: what was written is read again, and whatever else the
 * bytes are, reading them ends with an error and stays inside. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/crc32c.h"
#include "common/base/random.h"
#include "kvstore/server/warm_index.h"

enum { LAYERS = 3, TOKENS = 5, SEGMENTS = 4, MUTATIONS = 20000 };

static const struct kvw_model_layout layout = {.layers = LAYERS,
    .kv_heads = 2,
    .head_dim = 8,
    .dense_layers = 1,
    .sinks = 2,
    .cluster_tokens = 4,
    .index_digest = {1, 2, 3, 4, 5, 6, 7, 8}};

static void write_sample(struct kvs_index_writer *writer)
{
	const uint32_t tokens[TOKENS] = {10, 11, 12, UINT32_MAX, 14};
	const uint32_t checksums[LAYERS] = {7, 8, UINT32_MAX};
	const uint8_t model[KVW_MODEL_ID_BYTES] = {9, 8, 7};
	struct kvs_unit units[LAYERS] = {{0, 64, 3}, {64, 128, 4}, {UINT64_C(1) << 40, 64, 3}};
	struct kvs_saved saved = {.tenant = "uid-7",
	    .model_name = "tiny",
	    .model_id = model,
	    .layout = layout,
	    .start = 0,
	    .tokens = TOKENS,
	    .layers = LAYERS,
	    .kind = KVW_PLAIN,
	    .token_ids = tokens,
	    .checksums = checksums,
	    .units = units};

	kvs_index_begin(writer, kv_heap());
	kvs_index_region(writer, 3, UINT64_C(1) << 33, "uid-7");
	kvs_index_region(writer, 4, 4096, "");
	for (uint32_t i = 0; i < SEGMENTS; i++) {
		saved.parent = i;
		saved.used = (UINT64_C(1) << 40) + i;
		kvs_index_segment(writer, &saved);
		saved.start += TOKENS;
	}
	assert_int_equal(kvs_index_end(writer, 77, true), KV_OK);
}

/* Everything that the reader gives, or the first error. */
static enum kv_status read_all(
    const uint8_t *bytes, size_t length, struct kvs_index_segment *segment, uint32_t *segments)
{
	struct kvs_index_reader reader;
	struct kvs_index_region region;

	*segments = 0;
	KV_TRY(kvs_index_open(&reader, bytes, length));
	while (reader.regions)
		KV_TRY(kvs_index_next_region(&reader, &region));
	while (reader.segments) {
		KV_TRY(kvs_index_next_segment(&reader, segment));
		assert_true(segment->saved.layers <= KVW_MAX_LAYERS);
		assert_true(segment->saved.tokens <= KVW_MAX_SEGMENT_TOKENS);
		assert_non_null(memchr(segment->tenant, 0, sizeof segment->tenant));
		++*segments;
	}
	return KV_OK;
}

static void test_round_trip(void **state)
{
	struct kvs_index_segment *segment = malloc(sizeof *segment);
	struct kvs_index_writer writer;
	struct kvs_index_region region;
	struct kvs_index_reader reader;

	(void)state;
	write_sample(&writer);
	assert_int_equal(kvs_index_open(&reader, writer.bytes, writer.length), KV_OK);
	assert_int_equal(reader.generation, 77);
	assert_true(reader.separate_tenants);
	assert_int_equal(kvs_index_next_region(&reader, &region), KV_OK);
	assert_int_equal(region.number, 3);
	assert_int_equal(region.bytes, UINT64_C(1) << 33);
	assert_string_equal(region.tenant, "uid-7");
	assert_int_equal(kvs_index_next_region(&reader, &region), KV_OK);
	assert_int_equal(reader.regions, 0);
	for (uint32_t i = 0; i < SEGMENTS; i++) {
		assert_int_equal(kvs_index_next_segment(&reader, segment), KV_OK);
		assert_int_equal(segment->saved.parent, i);
		assert_int_equal(segment->saved.used, (UINT64_C(1) << 40) + i);
		assert_int_equal(segment->saved.start, i * TOKENS);
		assert_int_equal(segment->saved.token_ids[3], UINT32_MAX);
		assert_int_equal(segment->saved.checksums[2], UINT32_MAX);
		assert_int_equal(segment->saved.units[2].offset, UINT64_C(1) << 40);
		assert_int_equal(segment->saved.units[1].region, 4);
		assert_int_equal(segment->saved.kind, KVW_PLAIN);
		assert_memory_equal(&segment->saved.layout, &layout, sizeof layout);
		assert_string_equal(segment->saved.model_name, "tiny");
		assert_int_equal(segment->saved.model_id[2], 7);
	}
	assert_int_equal(reader.segments, 0);
	kvs_index_free(&writer);
	free(segment);
}

static void test_damage(void **state)
{
	struct kvs_index_segment *segment = malloc(sizeof *segment);
	struct kvs_index_writer writer;
	uint32_t segments;

	(void)state;
	write_sample(&writer);
	for (size_t i = 0; i < writer.length; i++) {
		/* What lies between the header's checksum and its end is not used. */
		if (i >= 60 && i < KVS_INDEX_HEADER) continue;
		writer.bytes[i] ^= 1;
		assert_int_equal(read_all(writer.bytes, writer.length, segment, &segments), KV_CORRUPT);
		writer.bytes[i] ^= 1;
	}
	for (size_t length = 0; length < writer.length; length++) {
		uint8_t *copy = malloc(length ? length : 1);

		memcpy(copy, writer.bytes, length);
		assert_int_equal(read_all(copy, length, segment, &segments), KV_CORRUPT);
		free(copy);
	}
	assert_int_equal(read_all(writer.bytes, writer.length, segment, &segments), KV_OK);
	assert_int_equal(segments, SEGMENTS);
	kvs_index_free(&writer);
	free(segment);
}

static void store32(uint8_t *place, uint32_t value)
{
	for (unsigned i = 0; i < 4; i++)
		place[i] = (uint8_t)(value >> (8 * i));
}

/* Checksums that fit help a liar no further. */
static void test_lies(void **state)
{
	struct kvs_index_segment *segment = malloc(sizeof *segment);
	struct kvs_index_writer writer;
	struct kv_random random;
	uint32_t understood = 0;

	(void)state;
	kv_random_seed(&random, 9);
	write_sample(&writer);
	for (int i = 0; i < MUTATIONS; i++) {
		uint8_t *copy = malloc(writer.length);
		uint32_t segments = 0;

		memcpy(copy, writer.bytes, writer.length);
		for (uint64_t n = 1 + kv_random_below(&random, 3); n > 0; n--)
			copy[kv_random_below(&random, writer.length)] = (uint8_t)kv_random_next(&random);
		store32(copy + 40, kv_crc32c(0, copy + KVS_INDEX_HEADER, writer.length - KVS_INDEX_HEADER));
		store32(copy + 56, kv_crc32c(0, copy, 56));
		understood += read_all(copy, writer.length, segment, &segments) == KV_OK;
		free(copy);
	}
	assert_true(understood > MUTATIONS / 10 && understood < MUTATIONS);
	kvs_index_free(&writer);
	free(segment);
}

static void test_memory_runs_out(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("index", 0);
	struct kvs_index_writer writer;

	(void)state;
	kv_allocator_fail_at(allocator, 1);
	kvs_index_begin(&writer, allocator);
	kvs_index_region(&writer, 1, 4096, "");
	assert_int_equal(kvs_index_end(&writer, 1, false), KV_NO_MEMORY);
	kvs_index_free(&writer);
	kvs_index_begin(&writer, allocator);
	kv_allocator_fail_at(allocator, 1);
	for (uint32_t i = 0; i < 5000; i++)
		kvs_index_region(&writer, i, 4096, "");
	assert_int_equal(kvs_index_end(&writer, 1, false), KV_NO_MEMORY);
	kvs_index_free(&writer);
	kv_allocator_destroy(allocator);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_round_trip),
	    cmocka_unit_test(test_damage),
	    cmocka_unit_test(test_lies),
	    cmocka_unit_test(test_memory_runs_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
