/* The engine's own structures, shared by its files only. */
#ifndef KVS_ENGINE_ENGINE_INTERNAL_H
#define KVS_ENGINE_ENGINE_INTERNAL_H

#include "common/base/check.h"
#include "common/collect/hash_map.h"
#include "common/collect/list.h"
#include "kvstore/engine/engine.h"
#include "kvstore/engine/eviction.h"
#include "kvstore/engine/pool.h"

#ifdef KV_FAULT_POINTS
#include "common/runtime/fault_point.h"
#endif

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Faults that the simulation plants, and must find. */
#ifdef KV_FAULT_POINTS
#define KVS_FAULT(name) kv_fault_fires(name)
#else
#define KVS_FAULT(name) false
#endif

enum { KVS_WALK_NODES = 1024, KVS_LIST_SPARE = 8 };

/* Known as long as a root of it is. */
struct kvs_model {
	struct kv_list link;
	uint32_t roots;
	struct kvw_model_layout layout;
	uint8_t id[KVW_MODEL_ID_BYTES];
	uint8_t digest[KVW_KEY_BYTES]; /* of id and layout */
	char name[KVS_MAX_NAME];
	char tenant[KVS_MAX_TENANT]; /* with separate_tenants: whose word it is; else "" */
};

/* What a tenant has. Known as long as a root of it is. */
struct kvs_tenant {
	struct kv_list link;
	uint32_t roots;
	uint64_t quota; /* UINT64_MAX: none */
	uint64_t state_bytes[3], referenced_bytes;
	uint64_t refusals, evictions;
	char name[KVS_MAX_TENANT];
};

/* The tree of one tenant's segments of one model. Known as long as a peer, a sequence or a segment
 * refers to it. */
struct kvs_root {
	struct kv_list link;
	struct kv_list children;
	struct kvs_model *model;
	struct kvs_tenant *account;
	uint32_t references;
	char tenant[KVS_MAX_TENANT];
};

enum kvs_segment_state { KVS_RESERVED, KVS_COMMITTED, KVS_QUARANTINED };

/* One block of memory with its units and extents. Reserved: in its sequence's `reserved` list.
 * Committed: in the tree and, while nothing refers to it, in the engine's `idle` list. Quarantined:
 * in the engine's list, also while a commit is in flight whose sequence has gone. */
struct kvs_segment {
	uint64_t id;
	struct kvs_root *root;
	enum kvs_segment_state state;
	enum kvw_segment_kind kind;
	enum kvw_provenance provenance;
	uint32_t start, tokens, layers;
	uint64_t bytes, clusters;
	struct kvs_unit *units;      /* [layers] */
	struct kvs_extent **extents; /* [layers], NULL where none was taken yet */
	struct kv_list place;        /* reserved, idle or quarantined list */

	/* until committed */
	struct kvs_sequence *sequence;
	struct kvs_commit *commit; /* in flight: the memory stays put */
	uint64_t epoch;            /* of the peer that may write */
	bool loading;              /* in the engine's list of loads, without a sequence */
	bool abandoned;            /* free it when the commit in flight ends */
	struct kvs_sum *sums;      /* [layers], NULL: none is known */

	/* from commit */
	uint8_t key[KVW_KEY_BYTES];
	struct kvs_segment *parent; /* NULL: the root's child */
	struct kv_list children, sibling;
	uint32_t child_count;
	uint32_t references; /* list entries and pieces of sequences that a peer holds, and pins */
	uint32_t pins;
	uint32_t listed; /* list entries of any sequence, orphans too */
	bool own_only;   /* leaves the list when the peer loses the sequence */
	uint64_t last_used, used_ms;
	uint64_t rank;       /* in its queue of idle ones */
	uint64_t fetch_mark; /* the engine's: the peer that fetches now refers to it */
	uint8_t queue, found;
	uint32_t *token_ids; /* [tokens], and behind them the checksums */
	uint32_t *checksums; /* NULL: none were given */
};

struct kvs_peer {
	struct kvs_root *root; /* NULL: without a model */
	struct kv_list sequences;
	uint64_t epoch, renewed_ms;
	uint64_t reserved_bytes;
	uint32_t sequence_count, reserved_count;
	bool used, lapsed;
	char name[KVS_MAX_NAME], tenant[KVS_MAX_TENANT];
};

/* `segment` may be gone while the sequence is an orphan: then only the id counts. */
struct kvs_entry {
	struct kvs_segment *segment;
	uint64_t id;
};

struct kvs_piece {
	struct kvs_segment *segment;
	uint32_t tokens;
};

/* How sequences are found by name: zero padded. */
struct kvs_sequence_name {
	char tenant[KVS_MAX_TENANT], id[KVW_MAX_SEQUENCE_ID];
};

struct kvs_sequence {
	uint64_t handle, serial; /* the handle changes at resume, the serial never */
	struct kvs_sequence_name name;
	struct kvs_root *root;
	struct kvs_peer *peer; /* NULL: an orphan */
	struct kv_list link;   /* the peer's, or the orphans, the first to expire first */
	uint64_t expires_ms;
	uint8_t policy_digest[32];
	uint32_t *tokens; /* the prompt's, then the decoded ones */
	uint32_t prompt_tokens, decoded_tokens, token_capacity;
	uint8_t *sampler, *parameters;
	size_t sampler_bytes, parameter_bytes;
	struct kvs_entry *list;
	uint32_t length, capacity;
	struct kvs_piece *pieces;
	uint32_t piece_count;
	struct kvs_cut *cuts; /* of the prompt, as it was opened; NULL: it was not looked up */
	uint32_t cut_count;
	struct kv_list reserved;
	struct kvs_commit *commit; /* in flight */
	uint64_t *last_ids;        /* of the last commit, to know a repeated one */
	uint32_t last_count, last_first;
};

struct kvs_commit {
	struct kvs_sequence *sequence; /* NULL: gone meanwhile */
	struct kvs_segment **segments;
	uint64_t *ids;
	struct kvs_entry *removed; /* room for the entries that are replaced */
	uint32_t count, first, replaced;
	bool repeated;
	bool early; /* only with a planted fault: it has been made visible at begin */
	struct kvs_commit_result early_result;
};

/* The state of evict_s3fifo.c. */
struct kvs_s3fifo {
	uint64_t clock, bytes[KVS_IDLE_QUEUES];
	uint32_t main_count;
	struct kv_hash_map *ghosts; /* key to serial */
	uint64_t *keys;             /* [capacity], a ring by serial */
	uint64_t next;
	uint32_t count, capacity;
};

struct kvs_engine {
	struct kv_allocator *allocator;
	struct kvs_environment environment;
	struct kvs_options options;
	struct kvs_pool pool;
	uint64_t generation;
	uint64_t fetch_mark;
	uint64_t next_segment, next_sequence, next_epoch, use_clock;
	struct kv_list models, roots, tenants, orphans, quarantined, loading;
	struct kv_list idle[KVS_IDLE_QUEUES];
	const struct kvs_eviction_ops *eviction;
	struct kvs_s3fifo s3fifo;
	uint64_t idle_round_ms;
	uint32_t model_count, sequence_count, orphan_count, segment_count, commits_in_flight;
	uint64_t token_count;
	uint64_t state_bytes[3]; /* by enum kvs_segment_state */
	uint32_t state_count[3];
	uint64_t referenced_bytes, references, committed_tokens, committed_clusters;
	struct kv_hash_map *segments_by_id, *segments_by_key, *sequences_by_handle, *sequences_by_name;
	struct kvs_segment **walk;      /* scratch of the prefix walk, KVS_WALK_NODES */
	struct kvs_peer *peers;         /* [max_peers] */
	struct kvs_statistics counters; /* only its counters are kept up to date */
};

/* model_table.c */
enum kv_status kvs_root_hold(struct kvs_engine *engine, const struct kvs_peer_request *request,
    const char *tenant, struct kvs_root **root);
void kvs_root_drop(struct kvs_engine *engine, struct kvs_root *root);
/* Bytes of its segments in all states. */
static inline uint64_t kvs_tenant_bytes(const struct kvs_tenant *tenant)
{
	return tenant->state_bytes[KVS_RESERVED] + tenant->state_bytes[KVS_COMMITTED] +
	       tenant->state_bytes[KVS_QUARANTINED];
}
/* Whose regions the segments of a root lie in: "" where all share them. */
const char *kvs_region_owner(const struct kvs_engine *engine, const struct kvs_root *root);

/* peers.c */
enum kv_status kvs_peer_require(struct kvs_engine *engine, uint32_t peer, struct kvs_peer **found);
enum kv_status kvs_sequence_require(
    struct kvs_engine *engine, uint32_t peer, uint64_t handle, struct kvs_sequence **sequence);

/* segment.c */
enum kv_status kvs_segment_create(struct kvs_engine *engine, struct kvs_root *root,
    const struct kvs_new_segment *request, struct kvs_segment **segment);
/* Free a segment in any state and what it holds; committed ones must be leaves without reference.
 */
void kvs_segment_destroy(struct kvs_engine *engine, struct kvs_segment *segment);
void kvs_segment_quarantine(struct kvs_engine *engine, struct kvs_segment *segment);
/* Put a reserved segment into the tree; everything it needs is there. */
void kvs_segment_publish(
    struct kvs_engine *engine, struct kvs_segment *segment, struct kvs_segment *parent);
/* The same for one that no sequence has reserved. */
void kvs_segment_enter(
    struct kvs_engine *engine, struct kvs_segment *segment, struct kvs_segment *parent);
void kvs_segment_reference(struct kvs_engine *engine, struct kvs_segment *segment);
/* As kvs_segment_reference, for one that a prompt or a resumed sequence has found. */
void kvs_segment_found(struct kvs_engine *engine, struct kvs_segment *segment);
void kvs_segment_unreference(struct kvs_engine *engine, struct kvs_segment *segment);
/* After a reference, a child or a list entry went: file it as idle, or free it where nobody can
 * find it any more. */
void kvs_segment_settle(struct kvs_engine *engine, struct kvs_segment *segment);
struct kvs_segment *kvs_segment_by_id(const struct kvs_engine *engine, uint64_t id);
void kvs_segment_show(const struct kvs_segment *segment, struct kvs_segment_view *view);
/* Make room for `tokens` more token ids: evicts, drops orphans, else KV_LIMIT. Counts nothing. */
enum kv_status kvs_token_room(struct kvs_engine *engine, uint64_t tokens);

/* reserve.c */
/* A segment in memory that nobody has yet, as kvs_reserve makes one. */
enum kv_status kvs_reserve_load(struct kvs_engine *engine, struct kvs_root *root,
    const struct kvs_new_segment *shape, struct kvs_segment **segment);

/* restore.c */
void kvs_saved_show(const struct kvs_segment *segment, struct kvs_saved *saved);

/* segment_key.c */
void kvs_layout_digest(const uint8_t model_id[KVW_MODEL_ID_BYTES],
    const struct kvw_model_layout *layout, uint8_t digest[KVW_KEY_BYTES]);
/* parent_key NULL: the root's child. `owner` NULL for exact segments. */
void kvs_segment_key(const struct kvs_root *root, const struct kvs_new_segment *shape,
    const uint8_t *parent_key, const struct kvs_sequence *owner, const uint32_t *token_ids,
    uint8_t key[KVW_KEY_BYTES]);

/* prefix.c: both fill in and reference; on failure what they did is undone by closing the sequence.
 * The list of the first one has as many of the leading cuts already. */
enum kv_status kvs_prefix_share(struct kvs_engine *engine, struct kvs_sequence *sequence);
enum kv_status kvs_prefix_pieces(struct kvs_engine *engine, struct kvs_sequence *sequence);
/* The exact one right below `parent` (NULL: the root) that shares the most leading tokens with the
 * prompt; NULL when none shares any. */
struct kvs_segment *kvs_prefix_child(struct kvs_root *root, struct kvs_segment *parent,
    const uint32_t *prompt, uint32_t prompt_tokens, uint32_t *common);

/* sequence.c */
/* KV_LIMIT when the open sequences of the peer's tenant may not have so many token ids more. */
enum kv_status kvs_tenant_token_room(
    const struct kvs_engine *engine, const struct kvs_peer *peer, uint64_t tokens);
enum kvs_writer { KVS_WRITER_DONE, KVS_WRITER_DEAD, KVS_WRITER_SILENT };
void kvs_sequence_orphan(
    struct kvs_engine *engine, struct kvs_sequence *sequence, enum kvs_writer writer);
void kvs_sequence_destroy(
    struct kvs_engine *engine, struct kvs_sequence *sequence, enum kvs_writer writer);
enum kv_status kvs_list_reserve(
    struct kvs_engine *engine, struct kvs_sequence *sequence, uint32_t capacity);
void kvs_pieces_drop(struct kvs_engine *engine, struct kvs_sequence *sequence);
/* Free (or quarantine, for a silent writer) what the sequence has reserved. */
void kvs_reservations_end(
    struct kvs_engine *engine, struct kvs_sequence *sequence, enum kvs_writer writer);
/* Forget list entries [first, first + count), the last one first; their references are gone
 * already. */
void kvs_list_forget(struct kvs_engine *engine, const struct kvs_entry *entries, uint32_t count);
/* One past the last position of the list. */
uint32_t kvs_list_end(const struct kvs_sequence *sequence);

#ifdef __cplusplus
}
#endif
#endif
