/* What a segment looks like as a file.
 *
 * A header of KVS_DISK_HEADER bytes (magic, versions, sizes, whose it is, its content key and its
 * parent's, marks of its tokens, a CRC-32C of all that), a table (token ids, then a CRC-32C for
 * each unit), zeros up to a multiple of KVS_DISK_ALIGNMENT, then the units, layer by layer. All
 * numbers little endian.
 *
 * Header and table together are the file's front. The reader believes nothing: what it hands out is
 * in bounds and fits together, and whether it is the segment that is wanted is compared bit by bit
 * with what the engine says of that segment.
 */
#ifndef KVS_DISK_FORMAT_H
#define KVS_DISK_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "kvstore/engine/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
	KVS_DISK_VERSION = 2,
	KVS_DISK_HEADER = 512,
	KVS_DISK_ALIGNMENT = 4096,
	KVS_DISK_STEPS = 13, /* 16, 32, … 65536 tokens */
	KVS_DISK_FIRST_STEP = 16,
	KVS_DISK_MAX_FRONT =
	    (KVS_DISK_HEADER + 4 * (KVW_MAX_SEGMENT_TOKENS + KVW_MAX_LAYERS) + KVS_DISK_ALIGNMENT - 1) &
	    ~(KVS_DISK_ALIGNMENT - 1)
};

/* What can be told of a segment without reading its tokens: where it belongs, and how far they may
 * be those of a prompt. */
struct kvs_disk_marks {
	/* The parent's key; of a first segment a word for its tenant and model, which two may share. */
	uint8_t parent[KVW_KEY_BYTES];
	uint32_t start, tokens, kind;
	uint32_t steps[KVS_DISK_STEPS]; /* CRC-32C of so many leading token ids; 0: there are fewer */
	uint32_t all;                   /* and of all of them */
};

struct kvs_disk_header {
	char tenant[KVS_MAX_TENANT];
	uint8_t model_id[KVW_MODEL_ID_BYTES];
	struct kvw_model_layout layout;
	uint32_t kind, start, tokens;
	bool has_parent;
	uint8_t key[KVW_KEY_BYTES], parent_key[KVW_KEY_BYTES];
	struct kvs_disk_marks marks;
	uint64_t front_bytes, file_bytes;
	uint32_t table_checksum;
};

/* Of the front, and of the whole file. KV_INVALID when the layout is none. */
enum kv_status kvs_disk_sizes(
    const struct kvs_saved *saved, uint64_t *front_bytes, uint64_t *file_bytes);

/* The marks of a segment; checksums, units and its own key are not looked at. */
enum kv_status kvs_disk_marks(const struct kvs_saved *saved, struct kvs_disk_marks *marks);
/* Checksums of so many leading tokens of a prompt, kept through a search: thousands of files can be
 * as long as each other, and a checksum of 65,536 tokens takes 0.1 ms. Zero at first. */
enum { KVS_DISK_SUMS = 8 };
struct kvs_disk_sums {
	uint32_t count, lengths[KVS_DISK_SUMS], sums[KVS_DISK_SUMS];
};

/* How many leading tokens a segment has in common with what is left of a prompt, at least, as far
 * as marks can tell (wrongly once in 2^32). `prompt`: the marks of these `tokens` as one segment.
 * Of segments of more lengths than `sums` has room for, the steps alone are looked at. */
uint32_t kvs_disk_common(const struct kvs_disk_marks *segment, const struct kvs_disk_marks *prompt,
    const uint32_t *tokens, struct kvs_disk_sums *sums);

/* Write the front of a segment, with its key, parent key and checksums; `front` has room for as
 * many bytes as kvs_disk_sizes says. */
enum kv_status kvs_disk_encode(const struct kvs_saved *saved, uint8_t *front);

/* Read the header from the first KVS_DISK_HEADER bytes of a file that has `file_bytes`. KV_CORRUPT
 * when it is none, of another version, damaged, or fits the file's size not. */
enum kv_status kvs_disk_parse(
    const uint8_t *bytes, size_t length, uint64_t file_bytes, struct kvs_disk_header *header);

/* Is this front that of the segment `wanted` under `key`? Of `wanted`, checksums, units and keys
 * are not looked at. Sets the checksums of its units ([layers]). KV_CORRUPT says what differs. */
enum kv_status kvs_disk_match(const uint8_t *front, size_t length,
    const struct kvs_disk_header *header, const struct kvs_saved *wanted,
    const uint8_t key[KVW_KEY_BYTES], uint32_t *checksums);

/* The token ids of this front ([header->tokens]). KV_CORRUPT when its table is damaged. */
enum kv_status kvs_disk_tokens(
    const uint8_t *front, size_t length, const struct kvs_disk_header *header, uint32_t *token_ids);

#ifdef __cplusplus
}
#endif
#endif
