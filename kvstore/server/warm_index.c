#include "kvstore/server/warm_index.h"

#include <stdio.h>
#include <string.h>

#include "common/base/crc32c.h"
#include "proto/codec.h"
#include "proto/wire_layout.h"

#define MAGIC UINT64_C(0x58444e49564b4c43) /* "CLKVINDX" */

enum { FIRST_CAPACITY = 64 << 10, HEADER_CHECKED = 56 };

/* ---- writing ---- */

static uint8_t *append(struct kvs_index_writer *writer, size_t size)
{
	uint8_t *place;

	if (writer->status != KV_OK) return NULL;
	if (size > writer->capacity - writer->length) {
		size_t capacity = 2 * writer->capacity + size;
		uint8_t *grown = kv_realloc(writer->allocator, writer->bytes, capacity);

		if (!grown) {
			writer->status = KV_NO_MEMORY;
			return NULL;
		}
		writer->bytes = grown;
		writer->capacity = capacity;
	}
	place = writer->bytes + writer->length;
	writer->length += size;
	return place;
}

static void store(uint8_t *place, uint64_t value, unsigned size)
{
	for (unsigned i = 0; i < size; i++)
		place[i] = (uint8_t)(value >> (8 * i));
}

static void put(struct kvs_index_writer *writer, uint64_t value, unsigned size)
{
	uint8_t *place = append(writer, size);

	if (place) store(place, value, size);
}

static void put_bytes(struct kvs_index_writer *writer, const void *bytes, size_t size)
{
	uint8_t *place = append(writer, size);

	if (place) memcpy(place, bytes, size);
}

/* Padded with zeros, of which there is at least one. */
static void put_text(struct kvs_index_writer *writer, const char *text, size_t size)
{
	uint8_t *place = append(writer, size);
	size_t length = strlen(text);

	if (!place) return;
	memset(place, 0, size);
	memcpy(place, text, length < size ? length : size - 1);
}

void kvs_index_begin(struct kvs_index_writer *writer, struct kv_allocator *allocator)
{
	*writer = (struct kvs_index_writer){.allocator = allocator};
	writer->bytes = kv_alloc(allocator, FIRST_CAPACITY);
	writer->capacity = FIRST_CAPACITY;
	writer->status = writer->bytes ? KV_OK : KV_NO_MEMORY;
	append(writer, KVS_INDEX_HEADER);
}

void kvs_index_region(
    struct kvs_index_writer *writer, uint32_t number, uint64_t bytes, const char *tenant)
{
	put(writer, number, 4);
	put(writer, bytes, 8);
	put_text(writer, tenant, KVS_MAX_TENANT);
	writer->regions++;
}

void kvs_index_segment(struct kvs_index_writer *writer, const struct kvs_saved *saved)
{
	const struct kvw_model_layout *layout = &saved->layout;

	put_text(writer, saved->tenant, KVS_MAX_TENANT);
	put_text(writer, saved->model_name, KVS_MAX_NAME);
	put_bytes(writer, saved->model_id, KVW_MODEL_ID_BYTES);
	put(writer, layout->layers, 4);
	put(writer, layout->kv_heads, 4);
	put(writer, layout->head_dim, 4);
	put(writer, layout->kv_type, 4);
	put(writer, layout->dense_layers, 4);
	put(writer, layout->sinks, 4);
	put(writer, layout->cluster_tokens, 4);
	put_bytes(writer, layout->index_digest, sizeof layout->index_digest);
	put(writer, saved->parent, 4);
	put(writer, saved->used, 8);
	put(writer, saved->start, 4);
	put(writer, saved->tokens, 4);
	put(writer, (uint64_t)saved->kind, 4);
	for (uint32_t layer = 0; layer < saved->layers; layer++) {
		put(writer, saved->units[layer].region, 4);
		put(writer, saved->units[layer].offset, 8);
		put(writer, saved->units[layer].bytes, 8);
		put(writer, saved->checksums[layer], 4);
	}
	for (uint32_t i = 0; i < saved->tokens; i++)
		put(writer, saved->token_ids[i], 4);
	writer->segments++;
}

enum kv_status kvs_index_end(
    struct kvs_index_writer *writer, uint64_t generation, bool separate_tenants)
{
	uint8_t *header = writer->bytes;

	if (writer->status != KV_OK) return writer->status;
	memset(header, 0, KVS_INDEX_HEADER);
	store(header, MAGIC, 8);
	store(header + 8, KVS_INDEX_VERSION, 4);
	store(header + 12, separate_tenants, 4);
	store(header + 16, writer->length, 8);
	store(header + 24, generation, 8);
	store(header + 32, writer->regions, 4);
	store(header + 36, writer->segments, 4);
	store(
	    header + 40, kv_crc32c(0, header + KVS_INDEX_HEADER, writer->length - KVS_INDEX_HEADER), 4);
	store(header + 44, KVW_DATA_VERSION, 4);
	store(header + 48, KV_PROTOCOL_VERSION, 4);
	store(header + HEADER_CHECKED, kv_crc32c(0, header, HEADER_CHECKED), 4);
	return KV_OK;
}

void kvs_index_free(struct kvs_index_writer *writer)
{
	kv_free(writer->allocator, writer->bytes);
	writer->bytes = NULL;
}

/* ---- reading ---- */

static uint64_t load(const uint8_t *place, unsigned size)
{
	uint64_t value = 0;

	for (unsigned i = size; i-- > 0;)
		value = value << 8 | place[i];
	return value;
}

static bool has(const struct kvs_index_reader *reader, uint64_t size)
{
	return size <= reader->length - reader->at;
}

/* The caller has asked has(). */
static uint64_t get(struct kvs_index_reader *reader, unsigned size)
{
	uint64_t value = load(reader->bytes + reader->at, size);

	reader->at += size;
	return value;
}

static uint32_t get32(struct kvs_index_reader *reader)
{
	return (uint32_t)get(reader, 4);
}

static void get_bytes(struct kvs_index_reader *reader, void *bytes, size_t size)
{
	memcpy(bytes, reader->bytes + reader->at, size);
	reader->at += size;
}

static void get_text(struct kvs_index_reader *reader, char *text, size_t size)
{
	get_bytes(reader, text, size);
	text[size - 1] = '\0';
}

static enum kv_status cut_off(void)
{
	return kv_fail(KV_CORRUPT, "the index ends inside an entry");
}

enum kv_status kvs_index_open(struct kvs_index_reader *reader, const uint8_t *bytes, size_t length)
{
	uint32_t version;

	if (length < KVS_INDEX_HEADER || load(bytes, 8) != MAGIC)
		return kv_fail(KV_CORRUPT, "%zu bytes that are no index", length);
	if (load(bytes + HEADER_CHECKED, 4) != kv_crc32c(0, bytes, HEADER_CHECKED))
		return kv_fail(KV_CORRUPT, "the index's header is damaged: its checksum differs");
	version = (uint32_t)load(bytes + 8, 4);
	if (version != KVS_INDEX_VERSION)
		return kv_fail(KV_CORRUPT, "the index has version %u, this store reads %d", version,
		    (int)KVS_INDEX_VERSION);
	if (load(bytes + 44, 4) != KVW_DATA_VERSION || load(bytes + 48, 4) != KV_PROTOCOL_VERSION)
		return kv_fail(KV_CORRUPT, "the index is of another release: data version %u, protocol %u",
		    (unsigned)load(bytes + 44, 4), (unsigned)load(bytes + 48, 4));
	if (load(bytes + 16, 8) > length || load(bytes + 16, 8) < KVS_INDEX_HEADER)
		return kv_fail(KV_CORRUPT, "the index is cut off: %llu bytes were written, %zu are there",
		    (unsigned long long)load(bytes + 16, 8), length);
	length = (size_t)load(bytes + 16, 8);
	if (load(bytes + 40, 4) != kv_crc32c(0, bytes + KVS_INDEX_HEADER, length - KVS_INDEX_HEADER))
		return kv_fail(KV_CORRUPT, "the index is damaged: its checksum differs");
	*reader = (struct kvs_index_reader){.bytes = bytes,
	    .length = length,
	    .at = KVS_INDEX_HEADER,
	    .separate_tenants = load(bytes + 12, 4) != 0,
	    .generation = load(bytes + 24, 8),
	    .regions = (uint32_t)load(bytes + 32, 4),
	    .segments = (uint32_t)load(bytes + 36, 4)};
	if (reader->regions > KVS_INDEX_MAX_REGIONS || reader->segments > KVS_INDEX_MAX_SEGMENTS)
		return kv_fail(KV_CORRUPT, "the index tells of %u regions and %u segments, too many",
		    reader->regions, reader->segments);
	return KV_OK;
}

enum kv_status kvs_index_next_region(
    struct kvs_index_reader *reader, struct kvs_index_region *region)
{
	if (!has(reader, 12 + KVS_MAX_TENANT)) return cut_off();
	region->number = get32(reader);
	region->bytes = get(reader, 8);
	get_text(reader, region->tenant, sizeof region->tenant);
	reader->regions--;
	return KV_OK;
}

/* What comes before the units. */
static void get_shape(struct kvs_index_reader *reader, struct kvs_index_segment *segment)
{
	struct kvs_saved *saved = &segment->saved;
	struct kvw_model_layout *layout = &saved->layout;

	get_text(reader, segment->tenant, sizeof segment->tenant);
	get_text(reader, segment->model_name, sizeof segment->model_name);
	get_bytes(reader, segment->model_id, sizeof segment->model_id);
	layout->layers = get32(reader);
	layout->kv_heads = get32(reader);
	layout->head_dim = get32(reader);
	layout->kv_type = get32(reader);
	layout->dense_layers = get32(reader);
	layout->sinks = get32(reader);
	layout->cluster_tokens = get32(reader);
	get_bytes(reader, layout->index_digest, sizeof layout->index_digest);
	saved->parent = get32(reader);
	saved->used = get(reader, 8);
	saved->start = get32(reader);
	saved->tokens = get32(reader);
}

enum kv_status kvs_index_next_segment(
    struct kvs_index_reader *reader, struct kvs_index_segment *segment)
{
	struct kvs_saved *saved = &segment->saved;
	uint32_t kind;

	memset(saved, 0, sizeof *saved);
	if (!has(reader, KVS_MAX_TENANT + KVS_MAX_NAME + KVW_MODEL_ID_BYTES + 7 * 4 + 8 + 8 + 4 * 4))
		return cut_off();
	get_shape(reader, segment);
	kind = get32(reader);
	saved->layers = saved->layout.layers;
	if (saved->layers == 0 || saved->layers > KVW_MAX_LAYERS || saved->tokens == 0 ||
	    saved->tokens > KVW_MAX_SEGMENT_TOKENS || kind > KVW_PLAIN)
		return kv_fail(KV_CORRUPT, "a segment of %u layers, %u tokens and kind %u in the index",
		    saved->layers, saved->tokens, kind);
	if (!has(reader, (uint64_t)saved->layers * 24 + (uint64_t)saved->tokens * 4)) return cut_off();
	saved->kind = (enum kvw_segment_kind)kind;
	for (uint32_t layer = 0; layer < saved->layers; layer++) {
		segment->units[layer].region = get32(reader);
		segment->units[layer].offset = get(reader, 8);
		segment->units[layer].bytes = get(reader, 8);
		segment->checksums[layer] = get32(reader);
	}
	for (uint32_t i = 0; i < saved->tokens; i++)
		segment->token_ids[i] = get32(reader);
	saved->tenant = segment->tenant;
	saved->model_name = segment->model_name;
	saved->model_id = segment->model_id;
	saved->units = segment->units;
	saved->checksums = segment->checksums;
	saved->token_ids = segment->token_ids;
	reader->segments--;
	return KV_OK;
}
