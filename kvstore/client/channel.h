/* The connection of a worker to its store, kept by a thread of its own.
 *
 * The thread owns the control socket: it connects and says hello, reconnects with backoff, sends
 * heartbeats, pushes and counters, and hands answers to those who wait. Everything else, the
 * arena's memory above all, is the calling thread's. Each connection that was agreed on is a
 * session, counted from 1; nothing of an earlier session holds in a later one.
 */
#ifndef KVC_CHANNEL_H
#define KVC_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/transport/transport.h"
#include "kvstore/client/store_client.h"
#include "proto/codec.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvc_channel;
struct kvc_pusher;

struct kvc_channel_settings {
	struct kv_allocator *allocator;
	const char *path;                     /* of a socket, or HOST:PORT where there is a secret */
	const uint8_t *secret;                /* copied; NULL: a Unix socket */
	const char *name, *kind, *model_name; /* copied */
	const uint8_t *model_id;              /* NULL: none, as kvctl */
	struct kvw_model_layout layout;
	const char *transport;  /* what is asked for */
	int staging_descriptor; /* borrowed for the channel's life; -1: none */
	uint64_t staging_bytes;
};

/* Start the thread; it connects at once. */
enum kv_status kvc_channel_create(
    const struct kvc_channel_settings *settings, struct kvc_channel **channel);
/* Sends the last counters (waits for half a second at most), ends the thread and closes. */
void kvc_channel_destroy(struct kvc_channel *channel);

/* Wait for a session. After `wait_ms` the error of the last attempt: KV_DISCONNECTED, KV_PROTOCOL
 * or KV_REFUSED; the latter two at once. wait_ms 0: the first attempt's result. */
enum kv_status kvc_channel_wait_session(struct kvc_channel *channel, uint32_t wait_ms);

/* The session that stands now, 0 for none. Any thread, no lock. */
uint64_t kvc_channel_session(const struct kvc_channel *channel);

/* 1 while the session stands and the control page shows its lease. Any thread. */
int kvc_channel_alive(struct kvc_channel *channel);
/* 1 when the store said last that it takes in nothing new. Any thread. */
int kvc_channel_draining(struct kvc_channel *channel);

/* Has this session ended, or does it within `wait_ms`? A store that stops takes its memory away a
 * moment before its connections. */
bool kvc_channel_ends(struct kvc_channel *channel, uint64_t session, uint32_t wait_ms);

/* Give the session up, as if the connection had broken. */
void kvc_channel_drop(struct kvc_channel *channel);

/* All memory that was reached in an earlier session is let go of: the store is told with each
 * heartbeat from now on (the last KVC_MAX_LET_GO of them), as long as it is of that generation. */
void kvc_channel_let_go(struct kvc_channel *channel, uint64_t generation, uint64_t epoch);

/* What the store said in its hello. */
struct kvc_welcome {
	uint64_t session, generation, epoch;
	uint32_t slot, lease_ms, heartbeat_ms;
	char transport[16];
	char build[64];
	struct kv_transport_blob address;
	int page_descriptor; /* the caller's own; -1 when there is no page */
};

/* KV_DISCONNECTED when no session stands. */
enum kv_status kvc_channel_welcome(struct kvc_channel *channel, struct kvc_welcome *welcome);

/* News of a region that the store told of; `descriptor` is then the caller's (-1: none). */
struct kvc_announced {
	uint64_t session, bytes;
	uint32_t index;
	bool gone; /* it is no more: let go of it; what follows is not set */
	int descriptor;
	struct kv_transport_blob blob;
};

/* Take the oldest announced region; false when there is none. */
bool kvc_channel_take_region(struct kvc_channel *channel, struct kvc_announced *announced);

/* Send a request (its id is set here) under `session` and wait for the answer. A status in the
 * answer becomes the call's, with the store's sentence; `response` may be NULL. After KV_TIMEOUT
 * the connection is given up, because store and worker no longer agree on what holds;
 * KV_DISCONNECTED when it breaks, KV_STALE when `session` is over. Free with kvc_channel_free. */
enum kv_status kvc_channel_call(struct kvc_channel *channel, uint64_t session, Kv__Request *request,
    uint32_t deadline_ms, Kv__Response **response);
void kvc_channel_free(struct kvc_channel *channel, Kv__Response *response);

/* The two halves of a call whose answer holds only a status. Every started ticket must be waited
 * for; at most KVC_CHANNEL_TICKETS at a time (KV_BUSY). kvc_channel_done: has the answer come? */
enum { KVC_CHANNEL_TICKETS = 96 };
enum kv_status kvc_channel_start(
    struct kvc_channel *channel, uint64_t session, Kv__Request *request, uint32_t *ticket);
bool kvc_channel_done(struct kvc_channel *channel, uint32_t ticket);
/* Its answer is wanted no more; the connection stays. */
void kvc_channel_abandon(struct kvc_channel *channel, uint32_t ticket);
/* KV_TIMEOUT when the answer has not come by then; the ticket is still to be finished. */
enum kv_status kvc_channel_await(struct kvc_channel *channel, uint32_t ticket, uint64_t until_ms);
enum kv_status kvc_channel_finish(
    struct kvc_channel *channel, uint32_t ticket, uint32_t deadline_ms, Kv__Response **response);

/* ---- what the thread sends by itself ---- */

/* Decoded tokens of one sequence, sent at most 100 ms after kvc_pusher_add. */
enum kv_status kvc_pusher_create(struct kvc_channel *channel, uint64_t session, uint64_t sequence,
    uint32_t decoded_so_far, struct kvc_pusher **pusher);
void kvc_pusher_destroy(struct kvc_pusher *pusher); /* drops what is pending; NULL is allowed */
/* All decoded tokens so far, and the sampler's state after them. Returns a push's failure, once it
 * is known, from then on. */
enum kv_status kvc_pusher_add(struct kvc_pusher *pusher, const int32_t *decoded, uint32_t count,
    const void *sampler_state, size_t sampler_bytes);
/* Send what is pending now and wait. */
enum kv_status kvc_pusher_flush(struct kvc_pusher *pusher, uint32_t deadline_ms);

void kvc_channel_report(
    struct kvc_channel *channel, const struct kvc_counter *counters, uint32_t count);
/* Shown beside the counters. Copied, cut to 63 bytes. */
void kvc_channel_set_lanes(struct kvc_channel *channel, const char *lanes);

#ifdef __cplusplus
}
#endif
#endif
