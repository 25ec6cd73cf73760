/* How a segment's key/values lie in arena memory: shared by worker and store, both only compute it.
 *
 * A segment is a run of tokens of one model; a unit is one layer of one segment and one contiguous
 * allocation. A unit holds, for each KV head, one head block:
 *
 *     centroids    fp16 [clusters][head_dim]   raw mean key of each cluster
 *     value means  fp16 [clusters][head_dim]
 *     sizes        u32  [clusters]
 *     positions    u32  [tokens]               absolute position of each stored row
 *     rows         [tokens][K head_dim][V head_dim] in the KV type
 *
 * Rows: first the `plain` ones in token order (sinks, and everything in an unclustered unit), then
 * cluster after cluster, each sorted by nearness to its centroid. Each part starts at a multiple of
 * 64 bytes; so do head blocks and units. All numbers little endian.
 */
#ifndef KV_PROTO_WIRE_LAYOUT_H
#define KV_PROTO_WIRE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
	KVW_ALIGNMENT = 64,
	KVW_KEY_BYTES = 32,
	KVW_MODEL_ID_BYTES = 32,
	KVW_MAX_LAYERS = 256,
	KVW_MAX_KV_HEADS = 256,
	KVW_MAX_HEAD_DIM = 512,
	KVW_MAX_SEGMENT_TOKENS = 65536,
	KVW_MAX_SEQUENCE_TOKENS = 1048576,
	KVW_MAX_SEQUENCE_ID = 64 /* bytes of a sequence id, terminator included */
};

enum kvw_kv_type { KVW_KV_F16 = 0, KVW_KV_F32 = 1, KVW_KV_BF16 = 2 };

/* What a model's segments look like. Equal for all workers of one model id, or HELLO is refused. */
struct kvw_model_layout {
	uint32_t layers, kv_heads, head_dim;
	uint32_t kv_type;        /* enum kvw_kv_type */
	uint32_t dense_layers;   /* layers [0, dense_layers) are stored unclustered */
	uint32_t sinks;          /* tokens at positions below this are stored plain */
	uint32_t cluster_tokens; /* mean tokens of a cluster */
	uint8_t index_digest[8]; /* other parameters that change the index (centring, iterations, …) */
};

enum kvw_segment_kind {
	KVW_CLUSTERED = 0, /* sparse layers hold clusters */
	KVW_PLAIN = 1      /* all layers in token order: a prompt's tail, a sequence's window */
};

/* KV computed by dense attention over exact parents, or by approximate attention. */
enum kvw_provenance { KVW_EXACT = 0, KVW_APPROXIMATE = 1 };

struct kvw_unit_shape {
	uint32_t kv_heads, head_dim, row_bytes;
	uint32_t tokens, plain, clusters;
};

struct kvw_unit_layout {
	uint64_t centroids, value_means, sizes, positions, rows; /* offsets inside a head block */
	uint64_t head_bytes;                                     /* stride between head blocks */
	uint64_t bytes;                                          /* of the whole unit */
};

/* KV_INVALID with a sentence when a number is zero where it must not be or above its limit. */
enum kv_status kvw_model_layout_check(const struct kvw_model_layout *model);

/* The shape of layer `layer` of a segment that starts at position `start`. Clusters of a clustered
 * unit with n clustered tokens: (n + cluster_tokens - 1) / cluster_tokens. */
enum kv_status kvw_unit_shape(const struct kvw_model_layout *model, enum kvw_segment_kind kind,
    uint32_t start, uint32_t tokens, uint32_t layer, struct kvw_unit_shape *shape);

/* Offsets of a unit; KV_LIMIT on overflow. */
enum kv_status kvw_unit_layout(const struct kvw_unit_shape *shape, struct kvw_unit_layout *layout);

/* Raised whenever bytes under the same key would mean something else: another layout of units, or
 * kernels that compute other key/values than to rounding. What outlives a process bears it. */
enum { KVW_DATA_VERSION = 1 };

/* Bytes of all units of a segment. */
enum kv_status kvw_segment_bytes(const struct kvw_model_layout *model, enum kvw_segment_kind kind,
    uint32_t start, uint32_t tokens, uint64_t *bytes);

/* The page that the store shares read-only with every worker on its host. `lease[slot]` is the
 * epoch of the lease that a peer holds, 0 once it has lapsed. The store clears a word (release)
 * before it lets anything that the lease protected be reused; a worker loads it (acquire) after its
 * copies. */
enum { KVW_CONTROL_SLOTS = 500, KVW_CONTROL_MAGIC = 0x4b56434c };
struct kvw_control_page {
	uint32_t magic, version;
	uint64_t boot_generation;
	uint64_t reserved[10];
	uint64_t lease[KVW_CONTROL_SLOTS];
};

#ifdef __cplusplus
}
static_assert(sizeof(struct kvw_control_page) == 4096, "the control page is one page");
#else
_Static_assert(sizeof(struct kvw_control_page) == 4096, "the control page is one page");
#endif
#endif
