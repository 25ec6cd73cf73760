#include "kvstore/disk/disk_format.h"

#include <string.h>

#include "common/base/check.h"
#include "common/base/crc32c.h"

#define MAGIC UINT64_C(0x31474553564b4c43) /* "CLKVSEG1" */

/* Where in the header a field begins. What lies between AT_TABLE_CHECKSUM and its end is covered by
 * the header's checksum. */
enum {
	AT_VERSION = 8,
	AT_DATA_VERSION = 12,
	AT_CHECKSUM = 16,
	AT_TABLE_CHECKSUM = 20,
	AT_FILE_BYTES = 24,
	AT_FRONT_BYTES = 32,
	AT_TENANT = 40,
	AT_MODEL_ID = 104,
	AT_LAYOUT = 136,
	AT_INDEX_DIGEST = 164,
	AT_KIND = 172,
	AT_START = 176,
	AT_TOKENS = 180,
	AT_HAS_PARENT = 184,
	AT_KEY = 188,
	AT_PARENT_KEY = 220,
	AT_STEPS = 252,
	AT_ALL = AT_STEPS + 4 * KVS_DISK_STEPS
};

static void store(uint8_t *place, uint64_t value, unsigned size)
{
	for (unsigned i = 0; i < size; i++)
		place[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t load(const uint8_t *place, unsigned size)
{
	uint64_t value = 0;

	for (unsigned i = size; i-- > 0;)
		value = value << 8 | place[i];
	return value;
}

static uint32_t load32(const uint8_t *place)
{
	return (uint32_t)load(place, 4);
}

static enum kv_status sizes_of(const struct kvw_model_layout *layout, uint32_t kind, uint32_t start,
    uint32_t tokens, uint64_t *front_bytes, uint64_t *file_bytes)
{
	uint64_t table, data = 0;

	KV_TRY(kvw_model_layout_check(layout));
	if (kind > KVW_PLAIN || tokens == 0 || tokens > KVW_MAX_SEGMENT_TOKENS ||
	    start > KVW_MAX_SEQUENCE_TOKENS - tokens)
		return kv_fail(
		    KV_INVALID, "a segment of kind %u, %u tokens at %u is none", kind, tokens, start);
	KV_TRY(kvw_segment_bytes(layout, (enum kvw_segment_kind)kind, start, tokens, &data));
	table = 4 * ((uint64_t)tokens + layout->layers);
	*front_bytes =
	    (KVS_DISK_HEADER + table + KVS_DISK_ALIGNMENT - 1) & ~(uint64_t)(KVS_DISK_ALIGNMENT - 1);
	if (!kv_add_u64(*front_bytes, data, file_bytes) || *file_bytes > (uint64_t)INT64_MAX)
		return kv_fail(KV_LIMIT, "a segment of %u tokens is too large for a file", tokens);
	return KV_OK;
}

enum kv_status kvs_disk_sizes(
    const struct kvs_saved *saved, uint64_t *front_bytes, uint64_t *file_bytes)
{
	return sizes_of(&saved->layout, (uint32_t)saved->kind, saved->start, saved->tokens, front_bytes,
	    file_bytes);
}

static void put_layout(const struct kvw_model_layout *layout, uint8_t *header)
{
	const uint32_t numbers[] = {layout->layers, layout->kv_heads, layout->head_dim, layout->kv_type,
	    layout->dense_layers, layout->sinks, layout->cluster_tokens};

	for (unsigned i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
		store(header + AT_LAYOUT + 4 * i, numbers[i], 4);
	memcpy(header + AT_INDEX_DIGEST, layout->index_digest, sizeof layout->index_digest);
}

/* ---- marks ---- */

/* Goes on from the checksum of the tokens before. */
static uint32_t tokens_checksum(uint32_t checksum, const uint32_t *tokens, uint32_t count)
{
	uint8_t bytes[1024];

	while (count > 0) {
		const uint32_t some = count < sizeof bytes / 4 ? count : (uint32_t)(sizeof bytes / 4);

		for (uint32_t i = 0; i < some; i++)
			store(bytes + 4 * i, tokens[i], 4);
		checksum = kv_crc32c(checksum, bytes, 4 * (size_t)some);
		tokens += some;
		count -= some;
	}
	return checksum;
}

static void put_marks(const uint32_t *tokens, uint32_t count, uint8_t *header)
{
	uint32_t checksum = 0, done = 0, length = KVS_DISK_FIRST_STEP;

	for (uint32_t step = 0; step < KVS_DISK_STEPS && length <= count; step++, length *= 2) {
		checksum = tokens_checksum(checksum, tokens + done, length - done);
		done = length;
		store(header + AT_STEPS + 4 * step, checksum, 4);
	}
	store(header + AT_ALL, tokens_checksum(checksum, tokens + done, count - done), 4);
}

static void get_marks(const uint8_t *header, struct kvs_disk_marks *marks)
{
	memset(marks, 0, sizeof *marks);
	if (load32(header + AT_HAS_PARENT))
		memcpy(marks->parent, header + AT_PARENT_KEY, KVW_KEY_BYTES);
	else
		store(marks->parent, kv_crc32c(0, header + AT_TENANT, AT_KIND - AT_TENANT), 4);
	marks->kind = load32(header + AT_KIND);
	marks->start = load32(header + AT_START);
	marks->tokens = load32(header + AT_TOKENS);
	for (uint32_t step = 0; step < KVS_DISK_STEPS; step++)
		marks->steps[step] = load32(header + AT_STEPS + 4 * step);
	marks->all = load32(header + AT_ALL);
}

/* Whether this is the checksum of so many tokens; false, too, when there is no room to know. */
static bool is_sum(
    struct kvs_disk_sums *sums, const uint32_t *tokens, uint32_t length, uint32_t checksum)
{
	uint32_t at = 0;

	while (at < sums->count && sums->lengths[at] != length)
		at++;
	if (at == KVS_DISK_SUMS) return false;
	if (at == sums->count) {
		sums->lengths[at] = length;
		sums->sums[at] = tokens_checksum(0, tokens, length);
		sums->count++;
	}
	return sums->sums[at] == checksum;
}

uint32_t kvs_disk_common(const struct kvs_disk_marks *segment, const struct kvs_disk_marks *prompt,
    const uint32_t *tokens, struct kvs_disk_sums *sums)
{
	uint32_t common = 0, length = KVS_DISK_FIRST_STEP;
	uint32_t limit = segment->tokens < prompt->tokens ? segment->tokens : prompt->tokens;

	for (uint32_t step = 0; step < KVS_DISK_STEPS && length <= limit; step++, length *= 2) {
		if (segment->steps[step] != prompt->steps[step]) return common;
		common = length;
	}
	/* All steps are the same: are all tokens? */
	if (common < limit && segment->tokens == limit && is_sum(sums, tokens, limit, segment->all))
		common = limit;
	return common;
}

/* ---- writing ---- */

/* The header, all but its two checksums and its key. */
static enum kv_status put_header(
    const struct kvs_saved *saved, const uint8_t *parent_key, uint8_t *header)
{
	uint64_t front_bytes = 0, file_bytes = 0;

	KV_TRY(kvs_disk_sizes(saved, &front_bytes, &file_bytes));
	if (strlen(saved->tenant) >= KVS_MAX_TENANT)
		return kv_fail(KV_INVALID, "a tenant's name has %zu bytes", strlen(saved->tenant));
	memset(header, 0, KVS_DISK_HEADER);
	store(header, MAGIC, 8);
	store(header + AT_VERSION, KVS_DISK_VERSION, 4);
	store(header + AT_DATA_VERSION, KVW_DATA_VERSION, 4);
	store(header + AT_FILE_BYTES, file_bytes, 8);
	store(header + AT_FRONT_BYTES, front_bytes, 8);
	memcpy(header + AT_TENANT, saved->tenant, strlen(saved->tenant));
	memcpy(header + AT_MODEL_ID, saved->model_id, KVW_MODEL_ID_BYTES);
	put_layout(&saved->layout, header);
	store(header + AT_KIND, (uint64_t)saved->kind, 4);
	store(header + AT_START, saved->start, 4);
	store(header + AT_TOKENS, saved->tokens, 4);
	store(header + AT_HAS_PARENT, parent_key != NULL, 4);
	if (parent_key) memcpy(header + AT_PARENT_KEY, parent_key, KVW_KEY_BYTES);
	put_marks(saved->token_ids, saved->tokens, header);
	return KV_OK;
}

enum kv_status kvs_disk_marks(const struct kvs_saved *saved, struct kvs_disk_marks *marks)
{
	uint8_t header[KVS_DISK_HEADER];

	KV_TRY(put_header(saved, saved->parent_key, header));
	get_marks(header, marks);
	return KV_OK;
}

static uint32_t header_checksum(const uint8_t *header)
{
	return kv_crc32c(0, header + AT_TABLE_CHECKSUM, KVS_DISK_HEADER - AT_TABLE_CHECKSUM);
}

enum kv_status kvs_disk_encode(const struct kvs_saved *saved, uint8_t *front)
{
	uint64_t front_bytes = 0, file_bytes = 0;
	uint8_t *table = front + KVS_DISK_HEADER;
	const size_t words = (size_t)saved->tokens + saved->layout.layers;

	KV_TRY(put_header(saved, saved->parent_key, front));
	KV_TRY(kvs_disk_sizes(saved, &front_bytes, &file_bytes));
	memset(table, 0, (size_t)front_bytes - KVS_DISK_HEADER);
	for (uint32_t i = 0; i < saved->tokens; i++)
		store(table + 4 * (size_t)i, saved->token_ids[i], 4);
	for (uint32_t i = 0; i < saved->layout.layers; i++)
		store(table + 4 * ((size_t)saved->tokens + i), saved->checksums[i], 4);
	memcpy(front + AT_KEY, saved->key, KVW_KEY_BYTES);
	store(front + AT_TABLE_CHECKSUM, kv_crc32c(0, table, 4 * words), 4);
	store(front + AT_CHECKSUM, header_checksum(front), 4);
	return KV_OK;
}

/* ---- reading ---- */

static void get_layout(const uint8_t *header, struct kvw_model_layout *layout)
{
	uint32_t *const numbers[] = {&layout->layers, &layout->kv_heads, &layout->head_dim,
	    &layout->kv_type, &layout->dense_layers, &layout->sinks, &layout->cluster_tokens};

	for (unsigned i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
		*numbers[i] = load32(header + AT_LAYOUT + 4 * i);
	memcpy(layout->index_digest, header + AT_INDEX_DIGEST, sizeof layout->index_digest);
}

static enum kv_status check_versions(const uint8_t *bytes, size_t length)
{
	if (length < KVS_DISK_HEADER || load(bytes, 8) != MAGIC)
		return kv_fail(KV_CORRUPT, "it is no segment");
	if (load32(bytes + AT_VERSION) != KVS_DISK_VERSION ||
	    load32(bytes + AT_DATA_VERSION) != KVW_DATA_VERSION)
		return kv_fail(KV_CORRUPT, "it is of another release: file version %u, data version %u",
		    load32(bytes + AT_VERSION), load32(bytes + AT_DATA_VERSION));
	if (load32(bytes + AT_CHECKSUM) != header_checksum(bytes))
		return kv_fail(KV_CORRUPT, "its header is damaged: the checksum differs");
	return KV_OK;
}

enum kv_status kvs_disk_parse(
    const uint8_t *bytes, size_t length, uint64_t file_bytes, struct kvs_disk_header *header)
{
	struct kvs_disk_header parsed;
	uint64_t front = 0, whole = 0;

	memset(&parsed, 0, sizeof parsed);
	KV_TRY(check_versions(bytes, length));
	memcpy(parsed.tenant, bytes + AT_TENANT, sizeof parsed.tenant);
	memcpy(parsed.model_id, bytes + AT_MODEL_ID, sizeof parsed.model_id);
	get_layout(bytes, &parsed.layout);
	parsed.kind = load32(bytes + AT_KIND);
	parsed.start = load32(bytes + AT_START);
	parsed.tokens = load32(bytes + AT_TOKENS);
	parsed.has_parent = load32(bytes + AT_HAS_PARENT) != 0;
	memcpy(parsed.key, bytes + AT_KEY, sizeof parsed.key);
	memcpy(parsed.parent_key, bytes + AT_PARENT_KEY, sizeof parsed.parent_key);
	parsed.front_bytes = load(bytes + AT_FRONT_BYTES, 8);
	parsed.file_bytes = load(bytes + AT_FILE_BYTES, 8);
	parsed.table_checksum = load32(bytes + AT_TABLE_CHECKSUM);
	get_marks(bytes, &parsed.marks);
	if (parsed.tenant[sizeof parsed.tenant - 1])
		return kv_fail(KV_CORRUPT, "its tenant's name has no end");
	if (sizes_of(&parsed.layout, parsed.kind, parsed.start, parsed.tokens, &front, &whole) != KV_OK)
		return kv_fail_prefix(KV_CORRUPT, "its header is none");
	if (parsed.front_bytes != front || parsed.file_bytes != whole || file_bytes != whole)
		return kv_fail(KV_CORRUPT, "it has %llu bytes, its segment makes it %llu",
		    (unsigned long long)file_bytes, (unsigned long long)whole);
	*header = parsed;
	return KV_OK;
}

enum kv_status kvs_disk_match(const uint8_t *front, size_t length,
    const struct kvs_disk_header *header, const struct kvs_saved *wanted,
    const uint8_t key[KVW_KEY_BYTES], uint32_t *checksums)
{
	uint8_t expected[KVS_DISK_HEADER];
	const uint8_t *table = front + KVS_DISK_HEADER;
	const size_t words = (size_t)header->tokens + header->layout.layers;

	if (length < header->front_bytes) return kv_fail(KV_CORRUPT, "its front is cut off");
	KV_TRY(put_header(wanted, wanted->parent_key, expected));
	memcpy(expected + AT_KEY, key, KVW_KEY_BYTES);
	store(expected + AT_TABLE_CHECKSUM, header->table_checksum, 4);
	store(expected + AT_CHECKSUM, header_checksum(expected), 4);
	if (memcmp(front, expected, sizeof expected) != 0)
		return kv_fail(KV_CORRUPT, "its header is that of another segment");
	if (kv_crc32c(0, table, 4 * words) != header->table_checksum)
		return kv_fail(KV_CORRUPT, "its table is damaged: the checksum differs");
	for (uint32_t i = 0; i < wanted->tokens; i++) {
		if (load32(table + 4 * (size_t)i) != wanted->token_ids[i])
			return kv_fail(KV_CORRUPT, "token %u is another one", i);
	}
	for (uint32_t i = 0; i < wanted->layout.layers; i++)
		checksums[i] = load32(table + 4 * ((size_t)wanted->tokens + i));
	return KV_OK;
}

enum kv_status kvs_disk_tokens(
    const uint8_t *front, size_t length, const struct kvs_disk_header *header, uint32_t *token_ids)
{
	const uint8_t *table = front + KVS_DISK_HEADER;
	const size_t words = (size_t)header->tokens + header->layout.layers;

	if (length < header->front_bytes) return kv_fail(KV_CORRUPT, "its front is cut off");
	if (kv_crc32c(0, table, 4 * words) != header->table_checksum)
		return kv_fail(KV_CORRUPT, "its table is damaged: the checksum differs");
	for (uint32_t i = 0; i < header->tokens; i++)
		token_ids[i] = load32(table + 4 * (size_t)i);
	return KV_OK;
}
