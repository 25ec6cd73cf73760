/* What the files of kvstore/server share. Private to this folder. */
#ifndef KVS_SERVER_INTERNAL_H
#define KVS_SERVER_INTERNAL_H

#include <stdbool.h>

#include "common/base/log.h"
#include "common/collect/list.h"
#include "common/runtime/metrics.h"
#include "common/runtime/state_machine.h"
#include "common/transport/frame.h"
#include "common/transport/secure_channel.h"
#include "common/transport/tcp_socket.h"
#include "common/transport/transport.h"
#include "common/transport/trusted_network.h"
#include "common/transport/unix_socket.h"
#include "kvstore/engine/engine.h"
#include "kvstore/server/metrics_table.h"
#include "kvstore/server/quota.h"
#include "kvstore/server/rate_window.h"
#include "kvstore/server/server.h"
#include "proto/codec.h"

#define KVS_MODULE "kvstored"

enum {
	KVS_TICK_MS = 100,
	KVS_STATUS_MS = 2000,
	KVS_GREETING_MS = 5000,     /* from connecting to hello */
	KVS_HALF_MESSAGE_MS = 5000, /* from a message's first byte to its last */
	KVS_CLOSING_MS = 1000,      /* to take the last answer */
	KVS_EXTRA_PEERS = 16,       /* connections beyond max-workers: kvctl and the not yet greeted */
	KVS_MAX_GUESTS = 8,         /* of them kvctl's and the like, so that a worker finds room */
	KVS_MAX_GUESTS_OF_ONE = 4,  /* with isolation, of one user */
	KVS_LEAST_CONNECTIONS = 4,  /* of one user with isolation */
	KVS_SHARES_OF_EVERYBODY = 8,
	KVS_LAPSED_LEASES = 10,       /* a lapsed peer is closed after so many of them */
	KVS_MAX_PUTS = 128,           /* copies of one peer under way */
	KVS_MAX_PUT_BYTES = 32 << 20, /* of one peer with isolation, before it waits */
	KVS_MAX_QUEUED = 24 << 20,    /* answers that wait for one peer */
	KVS_FRAMES_A_TURN = 32,       /* of one peer before others have theirs */
	KVS_INLINE_BYTES = 128 << 10, /* less is copied or checked on the loop itself */
	KVS_MAX_TOKENS = 64 << 20,    /* token ids kept */
	KVS_INDEX_MAX_KEPT = 65536,   /* segments, as many as the engine holds */
	KVS_MAX_MOURNED = 1024,
	KVS_DISK_HOLDS_MS = 2500,        /* a reservation waits for what the disk tier keeps */
	KVS_MAX_ARRIVING = 32,           /* TCP connections that have not shown the secret */
	KVS_REMOTE_QUEUED = 4 << 20,     /* of a remote peer's answers; then it is read no more */
	KVS_REMOTE_TURN_BYTES = 2 << 20, /* moved for a remote peer before others have their turn */
	KVS_REMOTE_READ_COST = 256,      /* bytes that a read counts as, besides its own */
	KVS_NEWS_REGIONS = 200,          /* one message tells of */
	KVS_WORKER_NAME = 48,
	KVS_COUNTER_NAME = 64,
	KVS_MAX_WORKERS_KEPT = 512,
	KVS_WORKER_KEPT_MS = 600000
};

/* Stands for all workers on other hosts; no user has it. */
#define KVS_REMOTE_UID UINT32_MAX
#define KVS_STREAM     "stream" /* their transport */
#define KVS_BY_UCX     "ucx"    /* the same, and fetches over a line */

#define KVS_MAX_STAGING (UINT64_C(8) << 30)

/* ---- the arena ---- */

struct kvs_region {
	struct kv_list node;
	char tenant[KVS_MAX_TENANT]; /* whom it is told to; "": everybody */
	uint32_t index;
	uint64_t bytes;
	bool kept;       /* it goes to the service manager */
	uint64_t serial; /* regions in the order in which the engine took them, from 1 */
	struct kv_region *region;
	uint8_t *base;
};

/* ---- workers as the statistics know them: longer than a connection ---- */

struct kvs_counter {
	char name[KVS_COUNTER_NAME];
	double value;
};

struct kvs_worker {
	struct kv_list node;
	char name[KVS_WORKER_NAME];
	char asked[KVS_WORKER_NAME]; /* the name that it gave itself; others may have it, too */
	char lanes[64];
	char model[KVS_WORKER_NAME];
	struct kvs_peer *peer; /* NULL: has left */
	uint64_t left_ms;
	uint32_t pid, uid;
	/* With pid and uid it names the process: when that started, or what one on another host says of
	 * itself. 0: not known. */
	uint64_t process;
	char from[KV_TCP_TEXT]; /* of one on another host, else "" */
	uint32_t counter_count;
	struct kvs_counter counters[KV_CODEC_MAX_COUNTERS];
	bool greeted;               /* no counters have come since its hello */
	struct kvs_figures figures; /* of the counters */
	struct kvs_window window;
};

/* ---- tenants ---- */

struct kvs_tenant {
	struct kv_list node;
	struct kvs_server *server;
	uint32_t uid;
	char name[KVS_MAX_TENANT];   /* as the engine knows it; users may share one */
	uint32_t holds;              /* connections, and closed ones whose jobs run */
	uint32_t connections;        /* open */
	struct kv_allocator *frames; /* messages of its connections */
	void *page;                  /* its own struct kvw_control_page, NULL: the common one */
	int page_descriptor;
};

/* ---- peers ---- */

enum kvs_peer_state { KVS_GREETING, KVS_GUEST, KVS_WORKING, KVS_LAPSED, KVS_CLOSED };

enum kvs_reason { KVS_BY_PEER, KVS_BY_PROTOCOL, KVS_BY_TIMEOUT, KVS_BY_STORE };

struct kvs_peer {
	struct kv_list node;
	struct kvs_server *server;
	struct kv_state_machine state;
	int socket;
	struct kv_watch *watch;
	struct kv_frame_reader *reader;
	struct kv_frame_writer *writer;
	struct kv_unix_peer credentials;
	/* Of one on another host; NULL: it came over the Unix socket. Its bytes pass in messages, read
	 * and written on the loop: nothing that it does outlasts its connection. */
	struct kv_secure *secure;
	char from[KV_TCP_TEXT];   /* its address, else "" */
	struct kv_timer *pending; /* serves what no poll tells of */
	uint64_t turn_bytes;      /* moved in this turn */
	struct kvs_tenant *tenant;
	struct kv_allocator *frames; /* the tenant's */
	int pidfd;                   /* -1: the process cannot be watched */
	uint64_t connected_ms;
	uint64_t inside_ms;  /* since when a frame has been half there, 0: it has not */
	uint64_t closing_ms; /* close after the last answer, at this time at the latest; 0: no */
	bool slot_taken;     /* slot and epoch hold */
	uint32_t slot;
	uint64_t epoch;
	char name[KVS_WORKER_NAME];
	struct kvs_worker *worker;
	uint64_t told_serial; /* regions up to this one have been told of */
	uint32_t *gone;       /* regions it knows and has to be told are no more */
	uint32_t gone_count, gone_capacity;
	int staging; /* memory that it writes to, -1: none */
	uint64_t staging_bytes;
	uint64_t put_bytes;   /* that are being copied */
	uint64_t lapsed_ms;   /* when its lease lapsed */
	bool leaving;         /* it said that it would close the connection */
	uint32_t puts, jobs;  /* copies under way; all work on pool threads */
	Kv__Request *waiting; /* a request that waits for the copies; reading has stopped */
	Kv__Request *growing; /* a reservation that waits for memory; reading goes on */
	uint64_t growing_bytes;
	bool grown;                /* it is being served now: it waits no more */
	uint64_t growing_until_ms; /* for memory that the disk tier keeps for a moment */
	struct kvs_load *load;     /* a prompt that waits for segments from files */
	bool loaded;               /* it is being served now */
	bool by_ucx;               /* agreed on: its bytes may go over a line */
	struct kvs_line *line;     /* NULL: none, or lost */
};

/* Processes whose connection is gone and whose death would free what is quarantined of them. */
struct kvs_mourned {
	struct kv_list node;
	struct kvs_server *server;
	int pidfd;
	int32_t pid;
	struct kv_watch *watch;
	uint64_t epoch;
};

struct kvs_stats_socket;
struct kvs_disk;
struct kvs_load;
struct kvs_line;

/* Workers on other hosts, until they have shown that they know the secret. */
struct kvs_remote {
	int listener; /* -1: none */
	struct kv_watch *watch;
	char where[KV_TCP_TEXT];
	bool trusts; /* the network below holds */
	struct kv_trusted_network network;
	uint8_t secret[KV_SECRET_BYTES];
	struct kv_list arriving; /* the oldest first */
	uint32_t arriving_count;
	uint64_t listen_again_ms; /* 0: listening */
};

struct kvs_server {
	struct kv_allocator *allocator;
	const struct kvs_settings *settings;
	struct kv_loop *loop;
	struct kv_sd_notify *notify;
	struct kvs_engine *engine;
	struct kv_metrics *metrics;
	int64_t counted_from[KVS_METRIC_COUNT]; /* the engine's counters at the last reset */
	uint64_t started_ms;

	const struct kv_transport_ops *transport;
	struct kv_transport_server *transport_server;
	struct kv_transport_blob address;
	struct kv_watch *transport_watch;
	struct kv_list regions;
	uint64_t region_serial;
	struct kv_list spares; /* regions that the engine has not asked for yet */
	uint64_t spare_bytes, usual_region;
	uint64_t reserves_seen, reserved_ms; /* when the last new reservation was noticed */
	uint64_t grow_again_ms;              /* after a failure, not before this time */
	struct kv_timer *growth;
	uint64_t progressed; /* rounds of the transport's progress */

	void *page; /* struct kvw_control_page */
	int page_descriptor;
	void *slot_page[KVW_CONTROL_SLOTS]; /* where the word of a lease is */
	void *joining_page;                 /* of the peer that is being added */

	struct kvs_allow allow;
	struct kv_allocator *frames; /* all messages on their way */
	struct kv_list tenants;
	struct kvs_quotas quotas;

	int listener;
	struct kv_watch *listener_watch;
	uint64_t listen_again_ms; /* 0: listening */
	struct kvs_remote remote;
	struct kv_log_limit peer_log;   /* of what peers do wrong */
	struct kv_log_limit worker_log; /* of their coming and going, which has no end either */
	struct kv_list peers;
	uint32_t peer_count;
	uint32_t jobs; /* work on pool threads, of all peers */
	struct kv_list mourned;
	uint32_t mourned_count;
	struct kv_list workers;
	uint32_t worker_count;
	struct kvs_figures departed; /* of workers that are forgotten */
	bool draining;               /* no new worker and no new sequence comes in */

	struct kvs_disk *disk; /* NULL: none */
	struct kvs_stats_socket *stats;
	struct kv_timer *tick, *status;
	uint64_t ticked_ms;
	uint64_t watched_progress;
	bool running; /* it was started to the end */
};

/* ---- arena.c ---- */

/* Choose the transport and start it; one log line says which and why. */
enum kv_status kvs_arena_start(struct kvs_server *server);
void kvs_arena_stop(struct kvs_server *server);
/* The engine's environment. */
struct kvs_environment kvs_arena_environment(struct kvs_server *server);
enum kv_status kvs_control_page_start(struct kvs_server *server);
/* Once the engine has its generation. */
void kvs_control_page_fill(struct kvs_server *server);
void kvs_control_page_write(const struct kvs_server *server, void *page);
/* Before the peers are closed: tells the workers that the store stops. */
void kvs_control_page_end(struct kvs_server *server);
void kvs_control_page_stop(struct kvs_server *server);

/* ---- growth.c ---- */

enum kv_status kvs_region_make(
    struct kvs_server *server, uint64_t bytes, struct kvs_region **region);
void kvs_region_free(struct kvs_server *server, struct kvs_region *region);
/* A spare of exactly this size, or NULL. */
struct kvs_region *kvs_spare_take(struct kvs_server *server, uint64_t bytes);
void kvs_spares_free(struct kvs_server *server);
/* Would a reservation of `bytes` make the engine wait for memory that there can be? */
bool kvs_growth_needed(struct kvs_server *server, uint64_t bytes);
/* Make memory from the next turn of the loop on, and serve the peers that wait for it. */
void kvs_growth_start(struct kvs_server *server);
enum kv_status kvs_growth_open(struct kvs_server *server);
void kvs_growth_tick(struct kvs_server *server);

/* ---- warm_restart.c ---- */

/* Take what the last run kept, if anything; once the engine is there and before anybody is served.
 */
void kvs_warm_start(struct kvs_server *server);
/* Hand the arena to the service manager: nobody writes any more, and the engine is still there. */
void kvs_warm_keep(struct kvs_server *server);

/* ---- disk_tier.c, disk_write.c, disk_load.c: segments in files; nothing where there is none ----
 */

enum kv_status kvs_disk_start(struct kvs_server *server);
void kvs_disk_tick(struct kvs_server *server, uint64_t now);
/* The peers are closed: write what waits, for some seconds, and begin nothing more. */
void kvs_disk_flush(struct kvs_server *server);
/* No job runs any more. */
void kvs_disk_stop(struct kvs_server *server);
/* It is stored now: it gets a file. */
void kvs_disk_note(struct kvs_server *server, const struct kvs_segment_view *view);
/* True: cuts of this prompt come from files; the request, which holds the prompt, waits. Give it to
 * kvs_disk_load_waits before the next turn of the loop. */
bool kvs_disk_load_prompt(struct kvs_peer *peer, const struct kvs_open_request *open);
/* The same for what was evicted of the prompt of an orphan that is to be resumed. */
bool kvs_disk_load_orphan(
    struct kvs_peer *peer, const char *sequence_id, const uint8_t policy_digest[32]);
void kvs_disk_load_waits(struct kvs_peer *peer, Kv__Request *request);
/* The peer is closed: its request waits no more. */
void kvs_disk_forget(struct kvs_peer *peer);
/* Some memory stays for the moment of a copy, and will be free. */
bool kvs_disk_holds(const struct kvs_server *server);
/* Memory that loads wait for, and that there is some. */
uint64_t kvs_disk_wished_bytes(const struct kvs_server *server);
void kvs_disk_grown(struct kvs_server *server);
/* While the index is being read: files so far, and one more; else 0. */
uint32_t kvs_disk_listed(const struct kvs_server *server);
void kvs_disk_refresh(struct kvs_server *server);

/* ---- tenant.c ---- */

/* Count a connection of this user in. KV_REFUSED: it is not allowed; KV_LIMIT. */
enum kv_status kvs_tenant_connect(
    struct kvs_server *server, const struct kv_unix_peer *credentials, struct kvs_tenant **tenant);
/* The connection is counted out (connections) where it closes; its record goes with the last. */
void kvs_tenant_drop(struct kvs_tenant *tenant);
/* One tenant's part of what there is. */
uint32_t kvs_tenant_share(const struct kvs_server *server, uint64_t whole, uint64_t least);
/* With isolation: have a control page of its own. */
enum kv_status kvs_tenant_page(struct kvs_tenant *tenant);
int kvs_tenant_page_descriptor(const struct kvs_tenant *tenant);
enum kv_status kvs_tenant_check_guests(const struct kvs_tenant *tenant);
void kvs_tenants_stop(struct kvs_server *server);

/* ---- peer.c ---- */

enum kv_status kvs_listen(struct kvs_server *server);
void kvs_unlisten(struct kvs_server *server);
void kvs_peer_close(struct kvs_peer *peer, enum kvs_reason reason, const char *why);
/* Close the peer that lapsed first: the place of one that will not come back is for whoever wants
 * in. False when there is none. */
bool kvs_peers_make_room(struct kvs_server *server);
/* Deadlines of all peers. */
void kvs_peers_tick(struct kvs_server *server, uint64_t now);
void kvs_peers_close_all(struct kvs_server *server);
/* Queue an answer; regions: tell of those that are new to the peer. Closes the peer on failure. */
void kvs_peer_respond(struct kvs_peer *peer, Kv__Response *response, bool regions);
void kvs_peer_respond_error(struct kvs_peer *peer, uint64_t id, enum kv_status status);
/* A region is no more: tell those who know it. */
void kvs_peers_region_gone(struct kvs_server *server, const struct kvs_region *region);
/* A job of this peer goes to the pool. */
void kvs_peer_job_begin(struct kvs_peer *peer);
/* It has ended: go on reading, or free what is left of a closed one. */
void kvs_peer_job_done(struct kvs_peer *peer);
/* There is memory for the reservation that waits, or there will be none. */
void kvs_peer_grown(struct kvs_peer *peer);
/* The same of a prompt that waited for the disk tier. */
void kvs_peer_loaded(struct kvs_peer *peer, Kv__Request *request);
/* Stop reading, send what is queued, close. */
void kvs_peer_finish(struct kvs_peer *peer);

/* One that has shown the secret: takes socket and channel, also on failure. */
void kvs_peer_arrived(
    struct kvs_server *server, int socket, struct kv_secure *secure, const char *from);

/* ---- remote.c ---- */

/* Nothing to do where no address is configured. */
enum kv_status kvs_remote_listen(struct kvs_server *server);
void kvs_remote_tick(struct kvs_server *server, uint64_t now);
void kvs_remote_stop(struct kvs_server *server);

/* ---- mourning.c ---- */

/* Watch for the end of a process; takes the descriptor. */
void kvs_mourn(struct kvs_server *server, int pidfd, int32_t pid, uint64_t epoch);
/* The process lives, and says that it writes no more to what it had under that epoch. Ignored when
 * another process says so, or nothing is quarantined. */
void kvs_mourned_let_go(struct kvs_server *server, int32_t pid, uint64_t epoch);
void kvs_mourning_stop(struct kvs_server *server);
int kvs_pidfd_open(int32_t pid);
bool kvs_pidfd_dead(int pidfd);
/* It is on its way out, or gone: a process loses its connections before it counts as dead. For
 * people and counters only; it may still write to memory that it had mapped. */
bool kvs_process_ending(int32_t pid);
/* When it was started, in the kernel's ticks: with the pid it names a process. 0: not known. */
uint64_t kvs_process_start(int32_t pid);

/* ---- dispatch.c ---- */

/* Serve one request, which it frees. */
void kvs_dispatch(struct kvs_peer *peer, Kv__Request *request);

/* Room for the segments of an answer. */
struct kvs_segment_set {
	struct kv_allocator *allocator;
	Kv__Segment **pointers;
	uint32_t count, capacity, layers;
	bool checksums; /* the client is to verify what it reads */
};
enum kv_status kvs_segment_set_create(struct kvs_segment_set *set, const struct kvs_server *server,
    uint32_t capacity, uint32_t layers);
void kvs_segment_set_add(struct kvs_segment_set *set, const struct kvs_segment_view *view);
void kvs_segment_set_destroy(struct kvs_segment_set *set);

struct kvs_answer {
	Kv__Response response;
	union {
		Kv__HelloResponse hello;
		Kv__OpenResponse open;
		Kv__ReserveResponse reserve;
		Kv__ResumeResponse resume;
		Kv__FetchResponse fetch;
	} body;
	struct kvs_segment_set segments, pieces;
	uint32_t *piece_tokens;
	uint8_t *data;       /* of a fetch, of the peer's frames */
	bool regions;        /* names segments: tell of new regions */
	bool later;          /* a job answers */
	uint64_t grow_bytes; /* the request waits for so much memory and is served again */
	bool loads;          /* it waits for the disk tier and is served again */
	bool close_after;
};

typedef enum kv_status (*kvs_handler)(
    struct kvs_peer *peer, const Kv__Request *request, struct kvs_answer *answer);

/* handle_hello.c: KV_DRAINING while the store takes in no new work. */
enum kv_status kvs_check_draining(const struct kvs_server *server);

enum kv_status kvs_handle_hello(struct kvs_peer *, const Kv__Request *, struct kvs_answer *);
enum kv_status kvs_handle_open(struct kvs_peer *, const Kv__Request *, struct kvs_answer *);
enum kv_status kvs_handle_resume(struct kvs_peer *, const Kv__Request *, struct kvs_answer *);
enum kv_status kvs_handle_close(struct kvs_peer *, const Kv__Request *, struct kvs_answer *);
enum kv_status kvs_handle_push(struct kvs_peer *, const Kv__Request *, struct kvs_answer *);
enum kv_status kvs_handle_heartbeat(struct kvs_peer *, const Kv__Request *, struct kvs_answer *);
enum kv_status kvs_handle_counters(struct kvs_peer *, const Kv__Request *, struct kvs_answer *);
enum kv_status kvs_handle_reserve(struct kvs_peer *, const Kv__Request *, struct kvs_answer *);
enum kv_status kvs_handle_release(struct kvs_peer *, const Kv__Request *, struct kvs_answer *);
enum kv_status kvs_handle_put(struct kvs_peer *, const Kv__Request *, struct kvs_answer *);
enum kv_status kvs_handle_commit(struct kvs_peer *, const Kv__Request *, struct kvs_answer *);

/* handle_stream.c: bytes in messages, of peers on other hosts. */
enum kv_status kvs_handle_fetch(struct kvs_peer *, const Kv__Request *, struct kvs_answer *);
enum kv_status kvs_put_inline(struct kvs_peer *peer, const Kv__PutRequest *put);

/* ---- handle_line.c: the same over UCX, on a trusted network ---- */

enum kv_status kvs_handle_line(struct kvs_peer *, const Kv__Request *, struct kvs_answer *);
/* Where the bytes of one fetch go to. KV_UNSUPPORTED: the peer has no line, or it takes nothing;
 * KV_LIMIT. */
enum kv_status kvs_line_room(struct kvs_peer *peer, size_t bytes, uint8_t **room);
/* Send them. */
enum kv_status kvs_line_send(struct kvs_peer *peer, uint64_t number, size_t bytes);
void kvs_line_close(struct kvs_peer *peer);

/* ---- workers.c ---- */

/* The record of a worker that has just greeted: its old one, or a new one. Two that live under one
 * name get different records. NULL when there is no memory. */
struct kvs_worker *kvs_worker_arrived(
    struct kvs_server *server, struct kvs_peer *peer, const Kv__HelloRequest *hello);
void kvs_worker_left(struct kvs_worker *worker, uint64_t now);
void kvs_worker_counters(
    struct kvs_server *server, struct kvs_worker *worker, const Kv__CountersRequest *counters);
/* False when the worker reported no such counter. */
bool kvs_worker_counter(const struct kvs_worker *worker, const char *name, double *value);
/* What a worker did in the last seconds; 0: since it started. Returns the seconds looked at. */
double kvs_worker_gain(const struct kvs_worker *worker, uint32_t seconds, struct kvs_figures *gain);
/* The same of all; with 0 of those that were forgotten, too. */
void kvs_workers_gain(struct kvs_server *server, uint32_t seconds, struct kvs_figures *gain);
void kvs_workers_tick(struct kvs_server *server, uint64_t now);
void kvs_workers_stop(struct kvs_server *server);

/* ---- stats.c ---- */

extern const struct kv_metric kvs_metric_table[];
void kvs_stats_refresh(struct kvs_server *server);
/* The store's counters begin at 0 again; gauges and the workers' figures stay. */
void kvs_stats_reset(struct kvs_server *server);

/* What is to be told. */
enum kvs_stats_part { KVS_STATS_STORE = 1, KVS_STATS_WORKERS = 2, KVS_STATS_ALL = 3 };
void kvs_stats_text(struct kvs_server *server, unsigned parts, struct kv_text_buffer *text);
void kvs_stats_json(struct kvs_server *server, struct kv_text_buffer *text);
/* What the store is, in a few lines for people. */
void kvs_stats_info(struct kvs_server *server, struct kv_text_buffer *text);

/* hits / (hits + misses): by what, and over how many seconds; 0: since the workers started. */
struct kvs_hit_rate {
	const char *name; /* in text and JSON */
	const char *of, *window;
	enum kvs_figure hit, miss;
	uint32_t seconds;
};
enum { KVS_HIT_RATES = 9 };
extern const struct kvs_hit_rate kvs_hit_rates[KVS_HIT_RATES];
/* NaN when nothing was looked for. NULL: of all workers. */
double kvs_stats_hit_rate(
    struct kvs_server *server, const struct kvs_worker *worker, const struct kvs_hit_rate *rate);

/* Receives one fact at a time: a number, or a word when `word` is not NULL. */
typedef void (*kvs_fact_sink)(void *context, const char *name, const char *word, double value);
/* All of one worker but its counters and hit rates. */
void kvs_worker_facts(
    struct kvs_server *server, const struct kvs_worker *worker, kvs_fact_sink sink, void *context);

/* ---- stats_tenants.c: a few lines for each tenant, nothing where there is a common one ---- */

void kvs_stats_tenants_text(const struct kvs_server *server, struct kv_text_buffer *text);
void kvs_stats_tenants_prometheus(const struct kvs_server *server, struct kv_text_buffer *text);

/* ---- stats_prometheus.c ---- */

void kvs_stats_prometheus(struct kvs_server *server, struct kv_text_buffer *text);

/* ---- stats_socket.c ---- */

enum kv_status kvs_stats_listen(struct kvs_server *server);
void kvs_stats_tick(struct kvs_server *server, uint64_t now);
void kvs_stats_stop(struct kvs_server *server);

#endif
