/* The channel's inside: shared by its calls, its thread and its pushers. Private to channel*.c. */
#ifndef KVC_CHANNEL_INTERNAL_H
#define KVC_CHANNEL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/collect/list.h"
#include "common/transport/frame.h"
#include "common/transport/secure_channel.h"
#include "kvstore/client/channel.h"
#include "kvstore/client/store_internal.h"

enum {
	KVC_HELLO_MS = 2000,        /* a store that accepts but does not greet is taken for dead */
	KVC_REMOTE_HELLO_MS = 5000, /* the same of a store on another host, with the way there */
	KVC_SILENCE_MS = 5000,      /* after which the system gives a TCP connection up */
	KVC_BACKOFF_FIRST_MS = 100,
	KVC_BACKOFF_LAST_MS = 2000,
	KVC_PUSH_DELAY_MS = 50, /* of the 100 ms promised, the rest is for scheduling */
	KVC_COUNTERS_MS = 1000,
	KVC_LAST_WORDS_MS = 500,
	KVC_MAX_ANNOUNCED = 4096,
	KVC_MAX_LET_GO = 16,
	/* The low byte of a request id says whose it is: below KVC_CHANNEL_TICKETS a ticket. */
	KVC_ID_PUSH = 253,
	KVC_ID_HELLO = 254,
	KVC_ID_OTHER = 255
};

enum kvc_ticket_state { KVC_TICKET_FREE, KVC_TICKET_WAITING, KVC_TICKET_DONE };

struct kvc_ticket {
	enum kvc_ticket_state state;
	uint64_t id;
	Kv__Response *response; /* of a done one; NULL: the connection broke */
};

struct kvc_announcement {
	struct kv_list node;
	struct kvc_announced region;
};

struct kvc_pusher {
	struct kvc_channel *channel;
	struct kv_list node;
	uint64_t session, sequence;
	uint32_t sent;    /* decoded tokens handed to the socket */
	int32_t *pending; /* those after `sent` */
	uint32_t pending_count, pending_capacity;
	uint8_t sampler[KVC_MAX_SAMPLER];
	size_t sampler_bytes;
	bool dirty;
	uint64_t due_ms;
	uint64_t in_flight; /* request id, 0: none */
	enum kv_status failure;
	char failure_text[256];
};

struct kvc_channel {
	struct kv_allocator *allocator;
	char *path, *name, *kind, *model_name, *transport;
	bool remote; /* path is HOST:PORT, and the secret holds */
	uint8_t secret[KV_SECRET_BYTES];
	uint8_t model_id[KVW_MODEL_ID_BYTES];
	bool has_model;
	struct kvw_model_layout layout;
	int staging_descriptor;
	uint64_t staging_bytes;

	pthread_t thread;
	int wake[2];              /* a byte makes the thread look around */
	_Atomic uint64_t session; /* written under the lock */

	pthread_mutex_t lock; /* guards all that follows */
	pthread_cond_t changed;
	bool stopping;
	bool give_up;             /* a caller's deadline passed: drop the connection */
	int socket;               /* closed by the thread only */
	struct kv_secure *secure; /* of the socket, where the store is on another host */
	struct kv_frame_writer *writer;
	uint64_t sessions; /* agreed on so far */
	uint64_t next_id;
	struct kvc_ticket tickets[KVC_CHANNEL_TICKETS];
	struct kvc_welcome welcome;
	const struct kvw_control_page *page;
	struct kv_list announced;
	uint32_t announced_count;
	uint64_t let_go[KVC_MAX_LET_GO]; /* epochs of that generation */
	uint64_t let_go_generation;
	uint32_t let_go_count;
	struct kv_list pushers;
	uint64_t hello_by_ms; /* until when this attempt may take; 0: a name is being looked up */
	struct kvc_counter counters[KVC_MAX_COUNTERS];
	uint32_t counter_count;
	bool counters_new;
	bool draining; /* as the store said last */
	char lanes[64];
	uint32_t attempts; /* since the last session, or since creation */
	enum kv_status attempt_status;
	char attempt_text[512];

	/* the thread's own */
	struct kv_frame_reader *reader;
	uint64_t heard_ms;     /* when the last frame came */
	uint64_t heartbeat_ms; /* when the next heartbeat is due */
	uint64_t counters_ms;
	uint64_t counters_id; /* of the last counters sent */
	uint64_t answered_id; /* of the last answer to a heartbeat or counters */
	uint32_t backoff_ms;
};

/* ---- channel.c; the lock is held ---- */

uint64_t kvc_channel_next_id(struct kvc_channel *channel, uint8_t whose);
/* Pack, queue and try to send at once. */
enum kv_status kvc_channel_send(struct kvc_channel *channel, Kv__Request *request);
void kvc_channel_wake(struct kvc_channel *channel);
/* Wait for `changed` until `deadline_ms` (kv_now_ms); false when it has passed. */
bool kvc_channel_wait(struct kvc_channel *channel, uint64_t deadline_ms);
void kvc_channel_drop_regions(struct kvc_channel *channel);

/* ---- channel_push.c; the lock is held ---- */

/* Send what is due (or everything, when `all`); *next_ms is lowered to the next time that something
 * will be. */
enum kv_status kvc_push_due(struct kvc_channel *channel, uint64_t now, bool all, uint64_t *next_ms);
void kvc_push_answered(struct kvc_channel *channel, const Kv__Response *response);
void kvc_push_lost(struct kvc_channel *channel);
bool kvc_push_outstanding(const struct kvc_channel *channel);
enum kv_status kvc_send_counters(struct kvc_channel *channel, bool leaving);

/* ---- channel_connect.c ---- */

bool kvc_channel_stopping(struct kvc_channel *channel);
/* What a connection has, once the name is looked up, until it must be agreed on. */
uint32_t kvc_channel_hello_ms(const struct kvc_channel *channel);
/* A connected socket, and what encrypts it where the store is on another host; sets hello_by_ms.
 * The thread's own, no lock is held. */
enum kv_status kvc_channel_connect(
    struct kvc_channel *channel, int *socket, struct kv_secure **secure);

/* ---- channel_thread.c ---- */

void *kvc_channel_main(void *channel);

#endif
