/* A store behind a connection: what client_remote.c, remote_session.c and remote_write.c share. */
#ifndef KVC_REMOTE_INTERNAL_H
#define KVC_REMOTE_INTERNAL_H

#include "common/transport/line.h"
#include "kvstore/client/channel.h"
#include "kvstore/client/staging.h"
#include "kvstore/client/store_internal.h"

enum {
	KVC_MAX_PUTS = 64,
	KVC_FETCH_CHUNK = 256,
	KVC_STREAM_WINDOW = 16,        /* fetch requests under way */
	KVC_STREAM_READS = 1024,       /* of one request */
	KVC_STREAM_BYTES = 256 << 10,  /* of one request or put */
	KVC_STREAM_PUTS = 16,          /* under way */
	KVC_FETCHES_FAIL = 2 /* in a row: the connection is given up */
};

#define KVC_NOT_STAGED UINT64_MAX

/* One agreed connection as the calling thread uses it. It stays while sequences of it are open, so
 * that pointers into its memory stay mapped, also when a later session has taken over. */
struct kvc_session {
	struct kv_list node;
	struct kv_line *line; /* to another host over UCX: what is fetched; NULL: none, or lost */
	uint64_t number, generation, epoch;
	uint32_t slot;
	uint32_t users; /* open sequences */
	char transport[16];
	const struct kv_transport_ops *ops; /* NULL: stream, all bytes pass in messages */
	struct kv_transport_client *client;
	const struct kvw_control_page *page; /* NULL: no page, the connection alone tells */
	struct kvc_attached *regions;        /* by ascending index */
	uint32_t region_count, region_capacity;
};

/* One fetch request under way: `bytes` from `offset` of read `read` on. */
struct kvc_stream_batch {
	uint32_t ticket, read;
	uint64_t offset;
	uint32_t bytes;
	uint64_t number; /* its bytes come over the line, under this; 0: in the answer */
	bool arrived;    /* they have */
};

/* A batch of reads cut into requests, as many of them under way as fill the line. */
struct kvc_stream {
	const struct kvc_read *reads;
	uint32_t count;
	uint32_t read; /* what the next request begins with */
	uint64_t offset;
	uint64_t until_ms, line_until_ms; /* after the latter the line is given up */
	uint64_t number;                  /* the last one on a line */
	bool line_lost;
	struct kvc_stream_batch batches[KVC_STREAM_WINDOW]; /* a queue, oldest first */
	uint32_t first_batch, batch_count;
	uint64_t segment_ids[KVC_STREAM_READS], offsets[KVC_STREAM_READS];
	uint32_t layers[KVC_STREAM_READS], sizes[KVC_STREAM_READS];
};

struct kvc_attached {
	uint32_t index;
	uint64_t bytes;
	struct kv_remote *remote;
};

struct kvc_put {
	uint32_t ticket;
	uint64_t staged;
	struct kvc_sequence *sequence;
};

struct kvc_remote_sequence {
	struct kvc_session *session;
	struct kvc_pusher *pusher;
	enum kv_status put_status; /* of the first put that failed */
	char put_text[256];
};

struct kvc_remote_store {
	struct kvc_store base;
	struct kvc_channel *channel;
	struct kvc_session *current; /* the last one adopted; NULL only while opening */
	struct kv_list sessions;
	uint32_t call_ms, fetch_ms;
	bool on_other_host;
	struct kv_trusted_network network; /* device "": none */
	bool faulty; /* for tests: the transport is wrapped with fault points */
	char lanes[64];

	uint8_t *staging_memory;
	uint64_t staging_bytes;
	int staging_descriptor;
	struct kvc_staging staging;
	struct kvc_put puts[KVC_MAX_PUTS]; /* a queue, oldest first */
	uint32_t first_put, put_count;

	uint64_t fetch_session; /* of the batch in flight, 0: none */
	bool fetch_waits;       /* the transport has transfers of it */
	uint32_t fetches_failed; /* one after the other */
	const struct kvc_read *fetch_reads; /* the batch: the caller's */
	uint32_t fetch_count;
	struct kvc_stream stream;
	uint8_t *verify_memory; /* a unit, where reads are verified */
	uint64_t verify_bytes;
	struct kv_transfer transfers[KVC_FETCH_CHUNK];
};

static inline struct kvc_remote_store *kvc_remote_of(struct kvc_store *store)
{
	return (struct kvc_remote_store *)store;
}

/* ---- remote_session.c ---- */

/* Make the channel's session the current one, if it is not. */
enum kv_status kvc_session_adopt(struct kvc_remote_store *store);
void kvc_session_destroy(struct kvc_remote_store *store, struct kvc_session *session);
/* Destroy one that another has taken the place of, and tell the store that its memory is let go. */
void kvc_session_retire(struct kvc_remote_store *store, struct kvc_session *session);
/* Attach what the store told of since the last call. */
enum kv_status kvc_session_attach(struct kvc_remote_store *store);
/* KV_DISCONNECTED or KV_STALE when what this session attached may no longer be used. */
enum kv_status kvc_session_check(
    const struct kvc_remote_store *store, const struct kvc_session *session);
/* Find an entry's units in memory: all of them lie inside attached regions. */
enum kv_status kvc_session_resolve(struct kvc_session *session, struct kvc_entry *entry);
/* The attached region, NULL when there is none of that index. */
struct kvc_attached *kvc_session_region(struct kvc_session *session, uint32_t index);
/* Tell who watches of every session's regions that are shared memory. */
void kvc_session_show_memory(struct kvc_store *store);
void kvc_session_lanes(struct kvc_remote_store *store);

/* ---- remote_write.c ---- */

enum kv_status kvc_remote_reserve(struct kvc_sequence *sequence,
    const struct kvc_new_segment *segments, uint32_t count, struct kvc_entry **out);
enum kv_status kvc_remote_unit_begin(struct kvc_entry *entry, uint32_t layer);
enum kv_status kvc_remote_unit_end(struct kvc_entry *entry, uint32_t layer);
void kvc_remote_unit_drop(struct kvc_entry *entry, uint32_t layer);
enum kv_status kvc_remote_commit(
    struct kvc_sequence *sequence, const struct kvc_commit *commit, struct kvc_entry **results);
void kvc_remote_release(struct kvc_sequence *sequence, const uint64_t *ids, uint32_t count);
/* Wait for the oldest puts until less than `most` are under way. */
void kvc_remote_put_room(struct kvc_remote_store *store, uint32_t most);
/* Remember one. The block at `staged` goes back when it is done (KVC_NOT_STAGED: none). */
void kvc_remote_put_begun(struct kvc_sequence *sequence, uint32_t ticket, uint64_t staged);
/* Wait for every put of this sequence (NULL: of all). */
void kvc_remote_drain_puts(struct kvc_remote_store *store, const struct kvc_sequence *sequence);

/* ---- remote_stream.c: to a store on another host ---- */

/* Ask for the first bytes of the reads; kvc_stream_wait brings them all, within `deadline_ms` and
 * what a slow line may need. Neither leaves a request behind when it fails. */
enum kv_status kvc_stream_start(struct kvc_remote_store *store, const struct kvc_read *reads,
    uint32_t count, uint32_t deadline_ms);
enum kv_status kvc_stream_wait(struct kvc_remote_store *store);
/* Send what unit_begin gave out; its staging memory is free then. */
enum kv_status kvc_stream_put(struct kvc_entry *entry, uint32_t layer);

/* ---- remote_line.c: the same over UCX, on a trusted network ---- */

/* Make the session's line, by which the store reaches this process; it takes some seconds at most.
 */
enum kv_status kvc_line_open(struct kvc_remote_store *store, struct kvc_session *session);
/* Close the current session's line, with a warning that says why: the stream does the rest. */
void kvc_line_lose(struct kvc_remote_store *store);
/* The bytes of this batch, which is the queue's entry `slot`, will come over the line. */
enum kv_status kvc_line_expect(
    struct kvc_remote_store *store, struct kvc_stream_batch *batch, uint32_t slot);
void kvc_line_forget(
    struct kvc_remote_store *store, const struct kvc_stream_batch *batch, uint32_t slot);
/* Wait until the bytes of the oldest batch are there. */
enum kv_status kvc_line_await(struct kvc_remote_store *store);

/* ---- remote_verify.c ---- */

/* Read the units of the batch in flight whole, check their checksums, and compare what the batch
 * brought. KV_CORRUPT, naming the unit; only units that are to be verified are looked at. */
enum kv_status kvc_verify_batch(struct kvc_remote_store *store);

/* A record of a segment in a message, with its units found. */
enum kv_status kvc_remote_entry(
    struct kvc_sequence *sequence, const Kv__Segment *segment, struct kvc_entry **entry);

#endif
