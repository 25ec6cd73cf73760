/* All that a worker sees of the store.
 *
 * One struct kvc_store is a connection (unix:PATH, or tcp:HOST:PORT to a store on another host,
 * where all that passes is encrypted) or an in-process store (none). Calls are
 * synchronous with a deadline and are made by one thread, the engine's; a thread inside keeps the
 * control socket: heartbeats, lease, counters, noticing that the store is gone, reconnecting with
 * backoff. After a reconnection, or a lapsed lease, everything attached before is stale: calls on
 * old sequences return KV_STALE or KV_DISCONNECTED and the caller opens anew.
 *
 * The order of use: open sequence (attaches the known prefix) → reserve → unit_begin/unit_end for
 * each layer → commit → fetch … → commit of folds → close. Reads are valid only if kvc_check() says
 * KV_OK after them: fetch_wait does that by itself, users of kvc_direct do it once after their
 * reads.
 */
#ifndef KVC_STORE_CLIENT_H
#define KVC_STORE_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "proto/wire_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvc_store;
struct kvc_sequence;

enum { KVC_SECRET_BYTES = 32 };

struct kvc_options {
	struct kv_allocator *allocator;
	const char *address; /* "unix:PATH", "tcp:HOST:PORT" or "none"; copied */
	/* tcp: what the store's secret file holds, KVC_SECRET_BYTES (common/transport/secret.h);
	 * copied. NULL for the others. */
	const uint8_t *secret;
	/* "auto", "ucx" or "map", "stream" for tcp ("faulty-NAME" in tests); unused for "none" */
	const char *transport;
	/* tcp with "ucx": the network between the hosts that is trusted, as it is named on this one
	 * (common/transport/trusted_network.h); else NULL or "". */
	const char *trusted_network;
	const char *name;      /* the worker's name in the store's statistics */
	uint8_t model_id[KVW_MODEL_ID_BYTES];
	const char *model_name;
	struct kvw_model_layout layout;
	uint64_t local_memory;  /* arena limit of an in-process store, bytes */
	uint32_t connect_ms;    /* how long open keeps trying to connect; 0: one attempt */
	uint32_t call_ms;       /* deadline of a control call, 5000 by default (0) */
	uint32_t fetch_ms;      /* deadline of a fetch, 2000 by default (0) */
	uint64_t staging_bytes; /* map: staging memory, at least one unit; 0: 64 MiB */
};

/* KV_OK when `address` has one of its forms; else KV_INVALID. Nothing is opened. */
enum kv_status kvc_address_check(const char *address);
/* 1 when a store at such an address can tell of its memory (kvc_watch_memory): one of this host. */
int kvc_shows_memory(const char *address);

/* Connect and agree. Errors: KV_DISCONNECTED (no such socket, nobody listening: names the path),
 * KV_PROTOCOL (other protocol version), KV_REFUSED (same model id with another layout; another
 * secret), KV_UNSUPPORTED (tcp with a transport that needs the same host). */
enum kv_status kvc_open(const struct kvc_options *options, struct kvc_store **store);
void kvc_close(struct kvc_store *store);

/* 1 while the connection stands and the lease holds. Any thread. */
int kvc_connected(struct kvc_store *store);
/* 1 when the store said last that it takes in no new sequences (a heartbeat ago at most); those
 * that are open go on, and others can be resumed. Any thread. */
int kvc_draining(struct kvc_store *store);
uint64_t kvc_generation(struct kvc_store *store);
const char *kvc_transport(struct kvc_store *store); /* "ucx", "map", "stream", "local" */
const char *kvc_lanes(struct kvc_store *store);     /* e.g. "posix/rkey_ptr", "memfd", "process" */

/* A stored segment as this worker reaches it. Owned by its sequence. */
struct kvc_segment {
	uint64_t id; /* never reused within a boot generation */
	uint32_t start, tokens;
	enum kvw_segment_kind kind;
	enum kvw_provenance provenance;
	const uint32_t *unit_region; /* [layers] */
	const uint64_t *unit_offset; /* [layers] */
};

struct kvc_cut {
	uint32_t end;
	enum kvw_segment_kind kind;
};

struct kvc_open_request {
	const char *sequence_id; /* NULL: the store chooses */
	const int32_t *prompt;
	uint32_t prompt_tokens;
	const struct kvc_cut *cuts;
	uint32_t cut_count;
	uint8_t policy_digest[32];
	const void *parameters; /* handed back by resume, at most 16 KiB */
	size_t parameter_bytes;
};

struct kvc_piece {
	const struct kvc_segment *segment;
	uint32_t tokens; /* positions [segment->start, segment->start + tokens) are the prompt's */
};

/* Open a sequence. KV_EXISTS when the id is in use by a live worker. */
enum kv_status kvc_sequence_open(struct kvc_store *store, const struct kvc_open_request *request,
    struct kvc_sequence **sequence);

struct kvc_resume_state {
	const int32_t *prompt, *decoded; /* borrowed from the sequence */
	uint32_t prompt_tokens, decoded_tokens;
	const void *sampler_state, *parameters;
	size_t sampler_bytes, parameter_bytes;
};

/* Take over an orphaned sequence. KV_NOT_FOUND, KV_BUSY (another worker holds it), KV_REFUSED
 * (another policy digest or model). Its list is then in kvc_sequence_segments. */
enum kv_status kvc_sequence_resume(struct kvc_store *store, const char *sequence_id,
    const uint8_t policy_digest[32], struct kvc_sequence **sequence,
    struct kvc_resume_state *state);

/* Close and free. keep: the store lets others resume it until it expires. Never fails: without a
 * connection it only frees. */
void kvc_sequence_close(struct kvc_sequence *sequence, int keep);

const char *kvc_sequence_id(const struct kvc_sequence *sequence);

/* The committed segments in order (after open: the shared prefix). Borrowed until the next commit.
 */
const struct kvc_segment *const *kvc_sequence_segments(
    const struct kvc_sequence *sequence, uint32_t *count);
/* Segments to copy from, in position order, following the shared prefix without a gap. */
const struct kvc_piece *kvc_sequence_pieces(const struct kvc_sequence *sequence, uint32_t *count);
/* The pieces have been copied: their references go back. */
void kvc_sequence_release_pieces(struct kvc_sequence *sequence);

struct kvc_new_segment {
	uint32_t start, tokens;
	enum kvw_segment_kind kind;
	enum kvw_provenance provenance;
};

/* Reserve memory for new segments. All or nothing; KV_LIMIT with the store's reason when it is
 * full, KV_TOO_LARGE where that would never end. out[count] are borrowed from the sequence until
 * committed or released. */
enum kv_status kvc_reserve(struct kvc_sequence *sequence, const struct kvc_new_segment *segments,
    uint32_t count, const struct kvc_segment **out);

/* Memory to write layer `layer` of a reserved segment into: the arena itself or staging memory.
 * `bytes` is the unit's size by wire_layout.h. May wait for staging memory. Several units may be
 * begun before they are ended (at most 64). */
enum kv_status kvc_unit_begin(struct kvc_sequence *sequence, const struct kvc_segment *segment,
    uint32_t layer, uint8_t **memory, uint64_t *bytes);
enum kv_status kvc_unit_end(
    struct kvc_sequence *sequence, const struct kvc_segment *segment, uint32_t layer);

/* Commit: every unit of every segment has been ended. The segments take the place of the `replaced`
 * list entries (a fold: the tail or the old window), else are appended. tokens: the ids of the new
 * segments, concatenated; NULL where they are the prompt's own. A commit of a segment whose key is
 * already stored ends with the stored one; the sequence's list shows which. */
enum kv_status kvc_commit(struct kvc_sequence *sequence, const struct kvc_segment *const *segments,
    uint32_t count, const int32_t *tokens, uint32_t token_count,
    const struct kvc_segment *const *replaced, uint32_t replaced_count);

/* From now on, what is committed to this sequence is its own: dropped when it is closed or when
 * this worker loses it, so that nobody resumes from it. Exact segments cannot be committed any
 * more. */
void kvc_sequence_keep_own(struct kvc_sequence *sequence);

/* Give up reserved segments. */
void kvc_release(
    struct kvc_sequence *sequence, const struct kvc_segment *const *segments, uint32_t count);

/* The unit's memory where it can be read in place, else NULL; NULL also from a store that wants
 * every read verified, and from one on another host. */
const uint8_t *kvc_direct(
    struct kvc_store *store, const struct kvc_segment *segment, uint32_t layer);

/* The memory that kvc_direct's pointers lie in, for a device that reads only what it was told of.
 * Calls come on the caller's own thread, from within the calls that attach memory and let go of it
 * (open, resume, reserve, commit, close). */
struct kvc_memory_watch {
	void *context;
	/* The whole region; writable: mapped for writing, too. */
	void (*attached)(void *context, uint8_t *memory, uint64_t bytes, int writable);
	/* It is unmapped when this returns: nothing may read it any more. */
	void (*detached)(void *context, uint8_t *memory);
};

/* From now on, and `attached` at once for what there is. Borrowed until another call with NULL,
 * which ends it without a word of what is still attached. KV_BUSY: somebody else watches;
 * KV_UNSUPPORTED: it is not told of, as kvc_shows_memory says. */
enum kv_status kvc_watch_memory(struct kvc_store *store, const struct kvc_memory_watch *watch);

struct kvc_read {
	const struct kvc_segment *segment;
	uint32_t layer;
	uint64_t offset, bytes; /* inside the unit */
	void *destination;
};

/* Read many ranges. start may complete some at once; wait returns when all are there and have been
 * checked: KV_STALE, KV_TIMEOUT, KV_DISCONNECTED or KV_CORRUPT (a store with verify = fetch) mean
 * that none may be used. One batch in flight; `reads` stays until the wait is over. */
enum kv_status kvc_fetch_start(
    struct kvc_store *store, const struct kvc_read *reads, uint32_t count);
enum kv_status kvc_fetch_wait(struct kvc_store *store);

/* KV_OK while generation and lease hold: what was read before this call is right. */
enum kv_status kvc_check(struct kvc_store *store);
enum kv_status kvc_sequence_check(const struct kvc_sequence *sequence);

/* Report decoded tokens (all since the prompt's end so far) and the sampler's state; sent at most
 * 100 ms later by the inner thread. Copies; never waits. */
enum kv_status kvc_push(struct kvc_sequence *sequence, const int32_t *decoded,
    uint32_t decoded_tokens, const void *sampler_state, size_t sampler_bytes);

/* Send what is pending now and wait for the answer. */
enum kv_status kvc_flush(struct kvc_sequence *sequence);

/* The worker's counters (absolute), pushed each second and once at close. Copies; any thread. */
enum { KVC_MAX_COUNTERS = 64 };
struct kvc_counter {
	const char *name; /* static */
	double value;
};
void kvc_report(struct kvc_store *store, const struct kvc_counter *counters, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
