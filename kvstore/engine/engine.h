/* The store's engine: which segments exist, where they lie, who may read, write and remove them.
 *
 * Pure: it does no I/O, starts no thread and takes no lock. Time, randomness and memory regions
 * come in through struct kvs_environment, so a run is a function of its calls. One thread calls it.
 *
 * Words. A model is an id with a layout. A peer is a connection with a lease (slot and epoch). A
 * sequence is opened or resumed by one peer under a handle, and owns a list of segments that covers
 * the positions from 0 without a gap. A segment is reserved by a sequence, written by its peer,
 * then committed under its content key, and never changes afterwards. A unit is one layer of one
 * segment.
 *
 * Nothing that a live lease protects is reused: segments in the list, or among the pieces, of a
 * sequence that a peer holds are referenced; the others may be evicted. When a lease ends,
 * environment.lease_changed(slot, 0) is called before any of its references goes.
 *
 * Every refusal leaves the engine as it was (a reserve may have evicted), and its text (kv_fail)
 * names what was asked, what is there and the limit. Common errors: KV_STALE (the peer's lease has
 * lapsed, or the handle is from before), KV_NOT_FOUND (no such handle or id), KV_INVALID, KV_LIMIT,
 * KV_NO_MEMORY. Views are borrowed until the next call that is not an accessor.
 */
#ifndef KVS_ENGINE_ENGINE_H
#define KVS_ENGINE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "proto/wire_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvs_engine;
struct kvs_commit;

enum {
	KVS_MAX_PARAMETER_BYTES = 16384,
	KVS_MAX_SAMPLER_BYTES = 4096,
	KVS_MAX_TENANT = 64, /* bytes, terminator included */
	KVS_MAX_NAME = 64,   /* of a peer or a model; longer ones are cut */
	KVS_MAX_MODELS = 64,
	KVS_MAX_COMMIT_SEGMENTS = 4096 /* also told of in one answer */
};

struct kvs_environment {
	void *context;
	uint64_t (*now_ms)(void *context); /* monotonic */
	uint64_t (*random64)(void *context);
	/* Memory of a new region; `index` is the engine's choice and is never used again. Errors are
	 * passed on by the reserve that needed it, after eviction did not help. */
	enum kv_status (*region_create)(void *context, uint32_t index, uint64_t bytes, uint8_t **base);
	/* The region is empty: nothing in it is reserved, stored or quarantined. */
	void (*region_destroy)(void *context, uint32_t index);
	/* With separate_tenants: the region just created holds what this tenant stores and nothing
	 * else. May be NULL. */
	void (*region_owned)(void *context, uint32_t index, const char *tenant);
	/* The word of the control page: a new epoch, or 0 (store with release order before returning).
	 */
	void (*lease_changed)(void *context, uint32_t slot, uint64_t epoch);
};

enum kvs_eviction { KVS_EVICT_LRU, KVS_EVICT_S3FIFO };

/* The most that a tenant's segments may take, in whatever state they are. */
struct kvs_tenant_quota {
	const char *tenant;
	uint64_t bytes;
};

/* Zero means the default in brackets. */
struct kvs_options {
	uint64_t memory; /* limit of all regions together, bytes; must be given */
	uint64_t
	    region_bytes;   /* a usual region [min(memory / 4, 256 MiB)]; grows to the largest unit */
	uint32_t lease_ms;  /* [3000] */
	uint32_t orphan_ms; /* [600000] */
	uint32_t max_peers; /* [KVW_CONTROL_SLOTS] */
	uint32_t max_sequences; /* active and orphaned together [4096]; the oldest orphan makes room */
	uint32_t max_segments;  /* reserved and committed together [65536]; eviction makes room */
	uint64_t max_tokens;    /* token ids kept, of segments and sequences [64 Mi] */
	/* Not 0: no region holds segments of two tenants, and what a tenant says of a model binds no
	 * other one. */
	int separate_tenants;
	/* What one tenant may take of max_sequences and, for the sequences that it has open, of
	 * max_tokens. 0: as much as there is. */
	uint32_t tenant_sequences;
	uint64_t tenant_tokens;
	enum kvs_eviction eviction; /* [KVS_EVICT_LRU] */
	/* A tenant at its quota evicts its own segments and nobody else's. Of a tenant that is not
	 * named: tenant_quota [none]. The array must outlive the engine. */
	uint64_t tenant_quota;
	const struct kvs_tenant_quota *quotas;
	uint32_t quota_count;
	/* When more than high_bytes are in use, the tick evicts down to low_bytes [never]. */
	uint64_t high_bytes, low_bytes;
	uint64_t unused_ms;  /* the tick evicts what nobody has used for so long [never] */
	uint64_t release_ms; /* the tick gives back regions that have been empty so long [never] */
};

enum kv_status kvs_engine_create(struct kv_allocator *allocator, const struct kvs_options *options,
    const struct kvs_environment *environment, struct kvs_engine **engine);
/* Ends every lease, gives every region back. No commit or load may be in flight, nothing pinned.
 * NULL is allowed. */
void kvs_engine_destroy(struct kvs_engine *engine);

uint64_t kvs_engine_generation(const struct kvs_engine *engine); /* random, not 0 */
uint32_t kvs_engine_lease_ms(const struct kvs_engine *engine);

/* Verify every invariant (bytes add up, references and the tree are consistent, lists have no gap):
 * KV_INTERNAL naming the first that does not hold. Linear in everything; for tests and debugging.
 */
enum kv_status kvs_engine_check(const struct kvs_engine *engine);

/* Expire leases (references go, reservations are quarantined, sequences are orphaned) and orphans.
 * Call it at least each quarter of a lease. */
void kvs_engine_tick(struct kvs_engine *engine);

/* Evict everything that no lease holds and give empty regions back. Returns the bytes evicted. */
uint64_t kvs_engine_evict(struct kvs_engine *engine);

struct kvs_evict_request {
	uint64_t bytes;     /* at least so many, if there are; 0: all */
	const char *tenant; /* this one's only; NULL: of all */
	uint64_t unused_ms; /* only what nobody has used for so long; 0: whatever goes first */
};
/* Evict some of what no lease holds and give empty regions back. Returns the bytes evicted. */
uint64_t kvs_engine_evict_some(struct kvs_engine *engine, const struct kvs_evict_request *request);

struct kvs_tenant_info {
	const char *name;
	uint64_t quota; /* 0: none */
	uint64_t bytes; /* of its segments in all states */
	uint64_t leased_bytes, cached_bytes;
	uint64_t refusals, evictions; /* because of its quota */
};
/* KV_NOT_FOUND when there are no more. Loop from 0; a tenant is known while it has a peer, a
 * sequence or a segment. */
enum kv_status kvs_tenant_info(
    const struct kvs_engine *engine, uint32_t index, struct kvs_tenant_info *info);

/* ---- peers ---- */

struct kvs_peer_request {
	const char *tenant; /* "" or NULL: the common one; separates segments and sequence ids */
	const char *name;
	const uint8_t
	    *model_id; /* KVW_MODEL_ID_BYTES, NULL for a peer that opens no sequence (kvctl) */
	const char *model_name;
	struct kvw_model_layout layout;
};

/* Register a peer, and its model when it is new. `peer` is its slot; the lease starts now. Errors:
 * KV_REFUSED (the model is known with another layout: says which field), KV_LIMIT (peers, models).
 */
enum kv_status kvs_peer_add(struct kvs_engine *engine, const struct kvs_peer_request *request,
    uint32_t *peer, uint64_t *epoch);

/* Renew the lease. KV_STALE when it has lapsed or `epoch` is another: the peer must start anew. */
enum kv_status kvs_peer_heartbeat(struct kvs_engine *engine, uint32_t peer, uint64_t epoch);

/* The connection is gone: the lease ends, sequences are orphaned, the slot is free. Reservations
 * are freed when proven_dead (the process has exited), else quarantined. A peer whose lease lapsed
 * must be removed too. Unknown slots are ignored. */
void kvs_peer_remove(struct kvs_engine *engine, uint32_t peer, int proven_dead);

/* The process that held this epoch has exited: what is quarantined of it is freed. Returns the
 * bytes. */
uint64_t kvs_peer_proven_dead(struct kvs_engine *engine, uint64_t epoch);
/* The bytes that it would free. */
uint64_t kvs_peer_quarantined(const struct kvs_engine *engine, uint64_t epoch);

struct kvs_peer_info {
	uint64_t epoch;
	int lapsed;
	uint64_t heartbeat_age_ms;
	const char *name, *tenant, *model_name; /* "" when there is none */
	uint32_t sequences, reserved_segments;
	uint64_t reserved_bytes;
};
/* KV_NOT_FOUND for a free slot. Loop over [0, KVW_CONTROL_SLOTS). */
enum kv_status kvs_peer_info(
    const struct kvs_engine *engine, uint32_t peer, struct kvs_peer_info *info);

/* ---- segments as seen from outside ---- */

struct kvs_unit {
	uint64_t offset, bytes;
	uint32_t region;
};

/* What the store itself computed of a unit's bytes. */
struct kvs_sum {
	uint32_t crc; /* CRC-32C */
	uint32_t known;
};

struct kvs_segment_view {
	uint64_t id; /* never reused within a generation */
	uint32_t start, tokens, layers;
	enum kvw_segment_kind kind;
	enum kvw_provenance provenance;
	int committed;
	const struct kvs_unit *units; /* [layers] */
	const uint32_t *token_ids;    /* [tokens], NULL until committed */
	const uint32_t *checksums;    /* [layers] CRC-32C, NULL when none were given */
	const struct kvs_sum *sums;   /* [layers] NULL when none are known, and once committed */
};

/* Any segment by its id, reserved or committed. */
enum kv_status kvs_segment_find(
    const struct kvs_engine *engine, uint64_t segment_id, struct kvs_segment_view *view);

/* The memory of a unit (as region_create gave it), NULL when the region is not there. */
uint8_t *kvs_unit_memory(const struct kvs_engine *engine, const struct kvs_unit *unit);

/* ---- sequences ---- */

struct kvs_cut {
	uint32_t end;
	enum kvw_segment_kind kind;
};

struct kvs_open_request {
	const char *sequence_id; /* NULL or "": the engine chooses; else [A-Za-z0-9._:-]{1,63} */
	const uint32_t *prompt;
	uint32_t prompt_tokens; /* 1 to KVW_MAX_SEQUENCE_TOKENS */
	const struct kvs_cut
	    *cuts; /* ascending, the last end = prompt_tokens; none: nothing is looked up */
	uint32_t cut_count;
	uint8_t policy_digest[32];
	const void *parameters;
	size_t parameter_bytes;
};

struct kvs_open_result {
	uint64_t sequence;       /* handle, valid for this peer until closed */
	const char *sequence_id; /* borrowed from the sequence */
	uint32_t shared;         /* entries of the list: the leading cuts that are stored */
	uint32_t pieces;
};

/* Open a sequence and reference what is stored of its prompt: first the leading cuts of its own
 * segmentation, then, below the last of them, the run of exact segments that shares the most
 * tokens. KV_EXISTS when a live peer of the tenant holds the id; an orphan of that id is dropped.
 */
enum kv_status kvs_sequence_open(struct kvs_engine *engine, uint32_t peer,
    const struct kvs_open_request *request, struct kvs_open_result *result);

struct kvs_resume_result {
	uint64_t sequence;
	const uint32_t *prompt, *decoded; /* borrowed from the sequence */
	uint32_t prompt_tokens, decoded_tokens;
	const void *sampler_state, *parameters;
	size_t sampler_bytes, parameter_bytes;
	uint32_t segments; /* entries of the list */
};

/* Take over an orphan. The list ends before the first segment that was evicted, or that covers
 * tokens which were never pushed (the sampler's state would not fit), and has at most
 * KVS_MAX_COMMIT_SEGMENTS entries; where it ends in the prompt it goes on with what is stored of
 * the prompt's next cuts by now. KV_NOT_FOUND, KV_BUSY (a live peer holds it), KV_REFUSED (other
 * policy digest or model). */
enum kv_status kvs_sequence_resume(struct kvs_engine *engine, uint32_t peer,
    const char *sequence_id, const uint8_t policy_digest[32], struct kvs_resume_result *result);

/* What would be lost to who resumes an orphan: its prompt and all of its cuts, when the list ends
 * before the last of them and they could follow (borrowed from the sequence); no cuts when nothing
 * can be won. Of `prompt` nothing else is set. Refuses as kvs_sequence_resume does. */
enum kv_status kvs_sequence_missing(struct kvs_engine *engine, uint32_t peer,
    const char *sequence_id, const uint8_t policy_digest[32], struct kvs_open_request *prompt);

/* keep: orphaned, to be resumed until it expires. Else gone; its exact segments stay in the store.
 * Reservations that were not committed are freed: the peer says that it writes no more. */
enum kv_status kvs_sequence_close(
    struct kvs_engine *engine, uint32_t peer, uint64_t sequence, int keep);

/* Entry `index` of the list (0 <= index < shared / segments / kvs_sequence_length). */
enum kv_status kvs_sequence_segment(const struct kvs_engine *engine, uint64_t sequence,
    uint32_t index, struct kvs_segment_view *view);
enum kv_status kvs_sequence_length(
    const struct kvs_engine *engine, uint64_t sequence, uint32_t *entries);
/* Piece `index`: its leading `tokens` positions are the prompt's. */
enum kv_status kvs_sequence_piece(const struct kvs_engine *engine, uint64_t sequence,
    uint32_t index, struct kvs_segment_view *view, uint32_t *tokens);

/* Add decoded tokens. `decoded_before` at most the count held (else KV_INVALID: a push was lost);
 * what is held already is compared (KV_INVALID when it differs) and skipped. The sampler's state is
 * taken when the push ends at or after the tokens held. */
enum kv_status kvs_sequence_push(struct kvs_engine *engine, uint32_t peer, uint64_t sequence,
    uint32_t decoded_before, const uint32_t *tokens, uint32_t token_count,
    const void *sampler_state, size_t sampler_bytes);

/* ---- writing ---- */

struct kvs_new_segment {
	uint32_t start, tokens;
	enum kvw_segment_kind kind;
	enum kvw_provenance provenance;
};

/* Reserve memory, all or nothing. segment_ids[count] is filled; kvs_segment_find shows the units.
 * Evicts unreferenced segments as options.eviction says, a child before its parent. KV_LIMIT
 * with what was asked, used, referenced and quarantined, and the limit; KV_TOO_LARGE where it would
 * not fit beside what the sequence has if nobody else had anything. */
enum kv_status kvs_reserve(struct kvs_engine *engine, uint32_t peer, uint64_t sequence,
    const struct kvs_new_segment *segments, uint32_t count, uint64_t *segment_ids);

/* What kvs_reserve would refuse at once, for its reasons; else the bytes that it would take.
 * Changes and counts nothing. It may still be refused: where too little of what nobody uses can
 * go. */
enum kv_status kvs_reserve_check(struct kvs_engine *engine, uint32_t peer, uint64_t sequence,
    const struct kvs_new_segment *segments, uint32_t count, uint64_t *bytes);

/* Where the peer may put `bytes` (the whole unit): only its own reservation, only before commit. */
enum kv_status kvs_put_target(struct kvs_engine *engine, uint32_t peer, uint64_t segment_id,
    uint32_t layer, uint64_t bytes, uint8_t **memory);

/* The reserved unit was read after it had been written: its sum stands until kvs_put_target is
 * asked for it again, so that a commit does not have to read it. Without memory for it, or where
 * there is no such reservation any more, nothing is kept. */
void kvs_unit_summed(struct kvs_engine *engine, uint64_t segment_id, uint32_t layer, uint32_t crc);

/* Find what the peer's sequences refer to, once for a request of many reads: kvs_fetch_source holds
 * for this peer and until the next call of anything else. `entries` is how many were gone
 * through. */
enum kv_status kvs_fetch_begin(struct kvs_engine *engine, uint32_t peer, uint64_t *entries);
/* Where the peer may read bytes of a unit: of a committed segment that one of its sequences refers
 * to, as long as its lease holds; KV_NOT_FOUND else. For a copy before the next call. */
enum kv_status kvs_fetch_source(struct kvs_engine *engine, uint32_t peer, uint64_t segment_id,
    uint32_t layer, uint64_t offset, uint64_t bytes, const uint8_t **memory);

/* Give up reservations, or references to pieces. Ids that are neither are ignored (a repeated
 * call). A segment whose commit is in flight is KV_BUSY. */
enum kv_status kvs_release(struct kvs_engine *engine, uint32_t peer, uint64_t sequence,
    const uint64_t *segment_ids, uint32_t count);

struct kvs_commit_request {
	uint64_t sequence;
	const uint64_t *segment_ids;
	uint32_t segment_count;
	const uint32_t *checksums; /* layer by layer, in order; NULL with count 0: none */
	uint32_t checksum_count;
	const uint32_t *tokens; /* of the new segments, concatenated; NULL with count 0: the prompt's */
	uint32_t token_count;
	const uint64_t *replaced_ids; /* a run of list entries, in order; none: append */
	uint32_t replaced_count;
	int own_only; /* approximate ones: in the list only as long as the peer has the sequence */
};

struct kvs_commit_result {
	uint32_t first, count; /* the list entries that the new segments became */
	uint32_t duplicates;   /* of them, how many were stored already */
	int repeated;          /* the request had been carried out before */
};

/* Begin: everything is checked and allocated, nothing is visible. Then the caller may verify
 * checksums on another thread (kvs_commit_segment shows what to read; that memory stays put until
 * finish), and finishes exactly once, whatever happened to the peer meanwhile. One commit of a
 * sequence at a time (KV_BUSY).
 *
 * Finish with `verified` = KV_OK makes the segments visible and cannot fail, unless the sequence
 * was closed or its lease lapsed meanwhile (KV_STALE). With another status the reservations are
 * given up and that status is returned. A segment whose key was stored meanwhile, or before, is
 * dropped: its memory is free at once and the list holds the stored one under another id, so the
 * answer to the peer must tell it the entries [first, first + count).
 *
 * Rules: a run of new segments follows the list (or what it replaces) without a gap; exact ones
 * hold prompt tokens only and follow exact ones; tokens agree with the prompt. */
enum kv_status kvs_commit_begin(struct kvs_engine *engine, uint32_t peer,
    const struct kvs_commit_request *request, struct kvs_commit **commit);
/* Segments to verify: 0 when the request had been carried out before. */
uint32_t kvs_commit_segments(const struct kvs_commit *commit);
void kvs_commit_segment(
    const struct kvs_commit *commit, uint32_t index, struct kvs_segment_view *view);
enum kv_status kvs_commit_finish(struct kvs_engine *engine, struct kvs_commit *commit,
    enum kv_status verified, struct kvs_commit_result *result);

/* Begin and finish in one, without verification. */
enum kv_status kvs_commit_now(struct kvs_engine *engine, uint32_t peer,
    const struct kvs_commit_request *request, struct kvs_commit_result *result);

/* ---- over a restart ---- */

/* A committed exact segment with all that another engine needs to hold it. */
struct kvs_saved {
	const char *tenant, *model_name;
	const uint8_t *model_id;
	struct kvw_model_layout layout;
	uint64_t id, parent; /* of this engine; parent 0: none */
	uint64_t used;       /* the higher the later it was used */
	uint32_t start, tokens, layers;
	enum kvw_segment_kind kind;
	const uint32_t *token_ids;    /* [tokens] */
	const uint32_t *checksums;    /* [layers] */
	const struct kvs_unit *units; /* [layers] */
	const uint8_t *key,
	    *parent_key; /* KVW_KEY_BYTES; parent_key NULL: none. Not looked at by restore. */
};

/* Show every committed exact segment that has checksums and so has each of its parents, a parent
 * before its children. Stops at the first status that is not KV_OK, and returns it. */
typedef enum kv_status (*kvs_save_visit)(void *context, const struct kvs_saved *saved);
enum kv_status kvs_engine_save(
    const struct kvs_engine *engine, kvs_save_visit visit, void *context);

/* Memory that an earlier engine filled: nothing new is put there, and region_destroy is called when
 * the last of its segments goes. `tenant` as for region_owned, "" where tenants share. KV_LIMIT
 * when it does not fit into the limit. */
enum kv_status kvs_restore_region(
    struct kvs_engine *engine, const char *tenant, uint64_t bytes, uint8_t *base, uint32_t *index);
/* A segment in such memory; units name regions by this engine's indices, `parent` a segment that
 * was restored before (this engine's id), `id` is not looked at. Everything is checked; the bytes
 * are not. KV_INVALID for what cannot be, KV_EXISTS when its key is there. */
enum kv_status kvs_restore_segment(
    struct kvs_engine *engine, const struct kvs_saved *saved, uint64_t *id);
/* All has been restored: what was used longest ago is the next to go, and regions that hold no
 * segment are given back. Until then they stay. */
void kvs_restore_end(struct kvs_engine *engine);

/* ---- another tier below this one ---- */

/* Keep a committed exact segment, and with it its parents, until it has been unpinned as often as
 * it was pinned: it is counted as leased, and its memory may be read by any thread. KV_NOT_FOUND
 * when it is no more, KV_INVALID for others. Unpinning does not count as a use. */
enum kv_status kvs_segment_pin(struct kvs_engine *engine, uint64_t segment_id);
void kvs_segment_unpin(struct kvs_engine *engine, uint64_t segment_id);
/* All of a pinned segment. KV_INVALID when it has no checksums. */
enum kv_status kvs_segment_saved(
    const struct kvs_engine *engine, uint64_t segment_id, struct kvs_saved *saved);

/* An exact segment of a peer's model that may be stored elsewhere. */
struct kvs_wanted {
	uint32_t start, tokens;
	enum kvw_segment_kind kind;
	const uint32_t *token_ids; /* [tokens] */
};

/* Cut `index` of a prompt; of the request only prompt and cuts are looked at. KV_INVALID when it
 * has none that could be stored. */
enum kv_status kvs_wanted_cut(
    const struct kvs_open_request *request, uint32_t index, struct kvs_wanted *wanted);
/* Its key below a parent's key (NULL: none), and what is stored under it (0: nothing). */
enum kv_status kvs_wanted_key(struct kvs_engine *engine, uint32_t peer,
    const struct kvs_wanted *wanted, const uint8_t *parent_key, uint8_t key[KVW_KEY_BYTES],
    uint64_t *segment_id);
/* It as it would be saved, but for key, checksums and units. */
enum kv_status kvs_wanted_show(struct kvs_engine *engine, uint32_t peer,
    const struct kvs_wanted *wanted, const uint8_t *parent_key, struct kvs_saved *saved);

struct kvs_child {
	uint64_t id; /* 0: none */
	uint32_t tokens, common;
	uint8_t key[KVW_KEY_BYTES];
};
/* Of the exact segments right below `parent` (0: the first ones) that which has the most leading
 * tokens in common with the prompt. */
enum kv_status kvs_prompt_child(struct kvs_engine *engine, uint32_t peer, uint64_t parent,
    const uint32_t *prompt, uint32_t prompt_tokens, struct kvs_child *child);

/* What is stored under a key, 0: nothing. */
uint64_t kvs_segment_of_key(const struct kvs_engine *engine, const uint8_t key[KVW_KEY_BYTES]);

/* Reserve memory for a segment that is stored elsewhere, below `parent` (an id, which must be
 * stored and end where it starts; 0: none), by the rules of kvs_reserve. It belongs to nobody's
 * sequence and outlives the peer; the caller fills its units, and finishes exactly once. The parent
 * is pinned until then. `saved` shows it without checksums. */
enum kv_status kvs_load_begin(struct kvs_engine *engine, uint32_t peer,
    const struct kvs_wanted *wanted, uint64_t parent, uint64_t *segment_id);
void kvs_load_show(const struct kvs_engine *engine, uint64_t segment_id, struct kvs_saved *saved);
/* KV_OK: the bytes are right by these checksums ([layers]), make it visible; nobody uses it yet.
 * Returns the id under which it is stored, which is another one when somebody was faster. With any
 * other status its memory is free again, and 0 is returned. */
uint64_t kvs_load_finish(struct kvs_engine *engine, uint64_t segment_id, enum kv_status status,
    const uint32_t *checksums);

/* ---- statistics: gauges as of now, counters since creation ---- */

struct kvs_statistics {
	uint64_t limit_bytes, region_bytes;
	uint64_t free_bytes;     /* in regions, allocatable */
	uint64_t reserved_bytes; /* reserved, not committed */
	uint64_t leased_bytes;   /* committed and referenced by a live peer */
	uint64_t cached_bytes;   /* committed, not referenced */
	uint64_t quarantined_bytes;
	uint64_t free_extents, largest_free_bytes;
	uint32_t regions, models, peers, peers_lapsed;
	uint32_t sequences_active, sequences_orphaned;
	uint32_t segments_reserved, segments_committed, segments_quarantined;
	uint64_t clusters, tokens; /* of committed segments; clusters of all layers, one KV head */
	uint64_t references;       /* of sequences to segments */
	uint64_t evictions, evicted_bytes;
	uint64_t lease_expiries, orphan_expiries, orphans_dropped;
	uint64_t prefix_lookup_tokens, prefix_shared_tokens, prefix_copied_tokens;
	uint64_t commits, commits_duplicate, commits_repeated, commits_corrupt, commits_stale,
	    commits_refused; /* requests; commits_duplicate counts segments */
	uint64_t reserves, reserve_failures;
	uint64_t quota_refusals, quota_evictions; /* of the failures and evictions: for a quota */
	uint64_t watermark_evicted_bytes, released_bytes; /* by the tick */
	uint64_t zombie_reservations;                     /* ever quarantined */
	uint64_t sequences_opened, sequences_resumed, pushes;
};
void kvs_engine_statistics(const struct kvs_engine *engine, struct kvs_statistics *statistics);
/* The one of them that is asked for at every reservation: it costs nothing. */
uint64_t kvs_engine_evictions(const struct kvs_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
