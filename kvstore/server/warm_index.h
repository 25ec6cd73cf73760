/* The index of the arena that is kept over a restart, as bytes: which regions there are, which
 * segments lie where, and whose they are.
 *
 * A header (magic, version, sizes, two CRC-32C), the regions, then the segments, a parent before
 * its children; all numbers little endian. The reader believes nothing: what it hands out is in
 * bounds, and what it means is for the engine to judge.
 */
#ifndef KVS_SERVER_WARM_INDEX_H
#define KVS_SERVER_WARM_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "kvstore/engine/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
	KVS_INDEX_VERSION = 2,
	KVS_INDEX_HEADER = 64,
	KVS_INDEX_MAX_REGIONS = 1000, /* as many descriptors as a start takes, less the index */
	KVS_INDEX_MAX_SEGMENTS = 1 << 20
};
#define KVS_INDEX_MAX_BYTES (UINT64_C(1) << 32)

/* ---- writing ---- */

struct kvs_index_writer {
	struct kv_allocator *allocator;
	uint8_t *bytes; /* the whole, valid after kvs_index_end; freed by kvs_index_free */
	size_t length, capacity;
	uint32_t regions, segments;
	enum kv_status status; /* of the first append that failed; what follows it is ignored */
};

void kvs_index_begin(struct kvs_index_writer *writer, struct kv_allocator *allocator);
/* All regions come before the first segment. `number` names the region. */
void kvs_index_region(
    struct kvs_index_writer *writer, uint32_t number, uint64_t bytes, const char *tenant);
/* `saved` with regions as the numbers above, and `parent` as one more than the place of that
 * segment in the index, 0 for none. */
void kvs_index_segment(struct kvs_index_writer *writer, const struct kvs_saved *saved);
enum kv_status kvs_index_end(
    struct kvs_index_writer *writer, uint64_t generation, bool separate_tenants);
void kvs_index_free(struct kvs_index_writer *writer);

/* ---- reading ---- */

struct kvs_index_reader {
	const uint8_t *bytes;
	size_t length, at;
	uint64_t generation;
	bool separate_tenants;
	uint32_t regions, segments; /* that are still to be read */
};

struct kvs_index_region {
	uint32_t number;
	uint64_t bytes;
	char tenant[KVS_MAX_TENANT];
};

/* Room for one segment. */
struct kvs_index_segment {
	struct kvs_saved saved; /* points into the rest */
	char tenant[KVS_MAX_TENANT], model_name[KVS_MAX_NAME];
	uint8_t model_id[KVW_MODEL_ID_BYTES];
	struct kvs_unit units[KVW_MAX_LAYERS];
	uint32_t checksums[KVW_MAX_LAYERS];
	uint32_t token_ids[KVW_MAX_SEGMENT_TOKENS];
};

/* KV_CORRUPT: no index, of another version, cut off, or damaged; says which. `bytes` are borrowed
 * as long as the reader is used. */
enum kv_status kvs_index_open(struct kvs_index_reader *reader, const uint8_t *bytes, size_t length);
/* The regions, then the segments, each as often as was said. KV_CORRUPT: the rest is of no use. */
enum kv_status kvs_index_next_region(
    struct kvs_index_reader *reader, struct kvs_index_region *region);
enum kv_status kvs_index_next_segment(
    struct kvs_index_reader *reader, struct kvs_index_segment *segment);

#ifdef __cplusplus
}
#endif
#endif
