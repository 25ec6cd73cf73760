/* A file of the disk tier whose first bytes are arbitrary: what is taken for a header fits together
 * and can be written again, and only the very segment is taken for itself.
 *
 * The header's checksum is put right, so that what lies behind it is met, too. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/crc32c.h"
#include "kvstore/disk/disk_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CHECKSUM_AT = 16, CHECKED_FROM = 20, FILE_BYTES_AT = 24, MOST = 65536 };

static void require(int condition, const char *what)
{
	if (condition) return;
	fprintf(stderr, "disk header: %s: %s\n", what, kv_error_message());
	abort();
}

static void put32(uint8_t *place, uint32_t value)
{
	for (unsigned i = 0; i < 4; i++)
		place[i] = (uint8_t)(value >> (8 * i));
}

/* What the header says, as the engine would say it. */
static struct kvs_saved saved_of(const struct kvs_disk_header *header, const uint32_t *token_ids)
{
	return (struct kvs_saved){.tenant = header->tenant,
	    .model_id = header->model_id,
	    .layout = header->layout,
	    .start = header->start,
	    .tokens = header->tokens,
	    .layers = header->layout.layers,
	    .kind = (enum kvw_segment_kind)header->kind,
	    .token_ids = token_ids,
	    .key = header->key,
	    .parent_key = header->has_parent ? header->parent_key : NULL};
}

static void check(const uint8_t *front, size_t length, const struct kvs_disk_header *header)
{
	static uint32_t token_ids[KVW_MAX_SEGMENT_TOKENS], checksums[KVW_MAX_LAYERS];
	uint64_t front_bytes = 0, file_bytes = 0;
	struct kvs_saved saved = saved_of(header, token_ids);
	struct kvs_disk_sums sums = {0};

	require(header->tokens > 0 && header->tokens <= KVW_MAX_SEGMENT_TOKENS, "tokens");
	require(header->layout.layers > 0 && header->layout.layers <= KVW_MAX_LAYERS, "layers");
	require(memchr(header->tenant, 0, sizeof header->tenant) != NULL, "the tenant's name");
	require(kvs_disk_sizes(&saved, &front_bytes, &file_bytes) == KV_OK, "sizes");
	require(front_bytes == header->front_bytes && file_bytes == header->file_bytes, "sizes differ");
	require(front_bytes <= KVS_DISK_MAX_FRONT, "the front is too long");
	(void)kvs_disk_match(front, length, header, &saved, header->key, checksums);
	require(kvs_disk_common(&header->marks, &header->marks, token_ids, &sums) <= header->tokens,
	    "more in common than there is");
	if (length >= front_bytes && kvs_disk_tokens(front, length, header, token_ids) == KV_OK) {
		struct kvs_disk_marks marks;

		/* They are those of some segment, whatever the marks say. */
		require(kvs_disk_marks(&saved, &marks) == KV_OK && marks.tokens == header->tokens, "marks");
		require(!header->has_parent ||
		            memcmp(marks.parent, header->marks.parent, sizeof marks.parent) == 0,
		    "parent");
	}
	memset(token_ids, 0, sizeof token_ids);
	saved.tokens++;
	require(kvs_disk_match(front, length, header, &saved, header->key, checksums) != KV_OK,
	    "another segment");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvs_disk_header header;
	uint64_t file_bytes = 0;
	uint8_t *copy;

	if (size > MOST) return 0;
	copy = malloc(size + 1);
	if (!copy) return 0;
	memcpy(copy, data, size);
	if (kvs_disk_parse(copy, size, size, &header) == KV_OK) check(copy, size, &header);
	if (size >= KVS_DISK_HEADER) {
		for (unsigned i = 8; i-- > 0;)
			file_bytes = file_bytes << 8 | copy[FILE_BYTES_AT + i];
		put32(
		    copy + CHECKSUM_AT, kv_crc32c(0, copy + CHECKED_FROM, KVS_DISK_HEADER - CHECKED_FROM));
		if (kvs_disk_parse(copy, size, file_bytes, &header) == KV_OK) check(copy, size, &header);
	}
	free(copy);
	return 0;
}
