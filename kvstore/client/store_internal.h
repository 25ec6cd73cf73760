/* What the files of kvstore/client share: the backends' table and the bookkeeping of sequences.
 *
 * store_client.c checks arguments and keeps each sequence's lists; a backend (client_remote.c over
 * a connection, client_local.c in this process) does what needs the store. Private to this folder.
 */
#ifndef KVC_STORE_INTERNAL_H
#define KVC_STORE_INTERNAL_H

#include <stdbool.h>

#include "common/collect/list.h"
#include "kvstore/client/store_client.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
	KVC_CALL_MS = 5000,
	KVC_FETCH_MS = 2000,
	KVC_MAX_BEGUN = 64,     /* units between begin and end */
	KVC_MAX_LIST = 65536,   /* segments of one sequence: far above what 2^20 tokens need */
	KVC_MAX_SAMPLER = 4096, /* the protocol's limits */
	KVC_MAX_PARAMETERS = 16384,
	KVC_MAX_CALL_SEGMENTS = 4096
};

#define KVC_STREAM        "stream" /* the transport to another host */
#define KVC_BY_UCX        "ucx"    /* to another host: the same, and fetches over a line */
#define KVC_STAGING_BYTES (UINT64_C(64) << 20)

enum kvc_unit_state { KVC_UNIT_EMPTY, KVC_UNIT_BEGUN, KVC_UNIT_ENDED };

struct kvc_unit {
	const uint8_t *read; /* in place, or NULL */
	uint64_t bytes;
	uint8_t *write;    /* between begin and end */
	uint64_t staged;   /* backend's: where in the staging memory */
	uint32_t checksum; /* of an ended unit, or of one that is to be verified */
	enum kvc_unit_state state;
};

/* A segment's record: what the caller sees, and what we must know. One allocation. */
struct kvc_entry {
	struct kvc_segment view;
	struct kvc_sequence *sequence;
	uint64_t session;    /* connection under which the place is valid */
	struct kv_list node; /* in the sequence's `entries`, whatever it is used for */
	bool reserved;       /* not committed */
	bool verified;       /* reads are checked against the units' checksums */
	uint32_t *region;    /* [layers], what view.unit_region points at */
	uint64_t *offset;
	struct kvc_unit *units; /* [layers] */
};

struct kvc_entry_list {
	struct kvc_entry **items;
	uint32_t count, capacity;
};

struct kvc_sequence {
	struct kvc_store *store;
	uint64_t session;
	uint64_t handle; /* the store's */
	char id[KVW_MAX_SEQUENCE_ID];
	struct kv_list entries;     /* all records that this sequence owns */
	struct kvc_entry_list list; /* committed, in order */
	struct kvc_piece *pieces;
	uint32_t piece_count;
	bool own_only; /* of what is committed */
	uint8_t *held[4];    /* prompt, decoded, sampler state, parameters of a resumed one */
	void *backend;       /* the backend's own part */
	struct kv_list node; /* in the store's `sequences` */
};

/* Where a segment is, as a backend hears it. Borrowed. */
struct kvc_place {
	uint64_t id;
	uint32_t start, tokens, kind, provenance;
	const uint32_t *region; /* [units] */
	const uint64_t *offset;
	size_t units;
};

struct kvc_commit {
	struct kvc_entry *const *entries;
	uint32_t count;
	const int32_t *tokens;
	uint32_t token_count;
	struct kvc_entry *const *replaced;
	uint32_t replaced_count;
};

struct kvc_backend {
	void (*destroy)(struct kvc_store *store);
	int (*connected)(struct kvc_store *store);
	int (*draining)(struct kvc_store *store); /* NULL: never */
	uint64_t (*generation)(struct kvc_store *store);
	const char *(*transport)(struct kvc_store *store);
	const char *(*lanes)(struct kvc_store *store);
	/* Fill a sequence made by kvc_sequence_create: handle, id, list, pieces. */
	enum kv_status (*open)(struct kvc_sequence *sequence, const struct kvc_open_request *request);
	enum kv_status (*resume)(struct kvc_sequence *sequence, const char *id,
	    const uint8_t policy_digest[32], struct kvc_resume_state *state);
	/* Tell the store, and free the backend's part; also of a sequence that open or resume left
	 * half made (handle 0). */
	void (*close)(struct kvc_sequence *sequence, bool keep);
	/* Does what was attached still hold? */
	enum kv_status (*check)(const struct kvc_sequence *sequence);
	/* May calls be made on it now? Costs no more than check. */
	enum kv_status (*check_store)(struct kvc_store *store);
	/* out[count]: new records of the sequence, marked reserved. */
	enum kv_status (*reserve)(struct kvc_sequence *sequence, const struct kvc_new_segment *segments,
	    uint32_t count, struct kvc_entry **out);
	/* Set unit->write. */
	enum kv_status (*unit_begin)(struct kvc_entry *entry, uint32_t layer);
	enum kv_status (*unit_end)(struct kvc_entry *entry, uint32_t layer);
	/* results[count]: for each segment its own record or a new one of the sequence. */
	enum kv_status (*commit)(
	    struct kvc_sequence *sequence, const struct kvc_commit *commit, struct kvc_entry **results);
	/* References or reservations go back; the records stay the caller's. */
	void (*release)(struct kvc_sequence *sequence, const uint64_t *ids, uint32_t count);
	/* Give up what a begun unit holds. */
	void (*unit_drop)(struct kvc_entry *entry, uint32_t layer);
	enum kv_status (*fetch_start)(
	    struct kvc_store *store, const struct kvc_read *reads, uint32_t count);
	enum kv_status (*fetch_wait)(struct kvc_store *store);
	enum kv_status (*push)(struct kvc_sequence *sequence, const int32_t *decoded,
	    uint32_t decoded_tokens, const void *sampler_state, size_t sampler_bytes);
	enum kv_status (*flush)(struct kvc_sequence *sequence);
	void (*report)(struct kvc_store *store, const struct kvc_counter *counters, uint32_t count);
	/* Tell store->watch of all that is attached. */
	void (*show_memory)(struct kvc_store *store); /* where shows_memory */
};

/* First member of each backend's store. */
struct kvc_store {
	const struct kvc_backend *backend;
	struct kv_allocator *allocator;
	struct kvw_model_layout layout;
	struct kv_list sequences; /* open ones */
	int shows_memory;
	const struct kvc_memory_watch *watch; /* NULL: nobody */
};

/* Checked options to a store. */
enum kv_status kvc_remote_open(const struct kvc_options *options, struct kvc_store **store);
enum kv_status kvc_local_open(const struct kvc_options *options, struct kvc_store **store);

/* ---- sequence_records.c ---- */

enum kv_status kvc_sequence_create(struct kvc_store *store, struct kvc_sequence **sequence);
/* Frees the records and the rest; the backend's part is gone already. */
void kvc_sequence_destroy(struct kvc_sequence *sequence);

/* A record of `place`, owned by the sequence; KV_PROTOCOL when the place makes no sense for the
 * store's layout. The units' bytes are set, their pointers not. */
enum kv_status kvc_entry_create(
    struct kvc_sequence *sequence, const struct kvc_place *place, struct kvc_entry **entry);
void kvc_entry_destroy(struct kvc_entry *entry);

enum kv_status kvc_list_append(
    struct kv_allocator *allocator, struct kvc_entry_list *list, struct kvc_entry *entry);

/* The record behind a segment that a caller hands in. */
static inline struct kvc_entry *kvc_entry_of(const struct kvc_segment *segment)
{
	return KV_CONTAINER_OF((struct kvc_segment *)(uintptr_t)segment, struct kvc_entry, view);
}

#ifdef __cplusplus
}
#endif
#endif
