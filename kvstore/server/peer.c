/* Connections on the control socket: accepting, reading, answering, ending. */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/transport/transport_map.h"
#include "kvstore/server/server_internal.h"

static const char *const state_names[] = {"greeting", "guest", "working", "lapsed", "closed"};

static const uint32_t allowed_moves[] = {
    [KVS_GREETING] = KV_STATE_BIT(KVS_GUEST) | KV_STATE_BIT(KVS_WORKING) | KV_STATE_BIT(KVS_CLOSED),
    [KVS_GUEST] = KV_STATE_BIT(KVS_CLOSED),
    [KVS_WORKING] = KV_STATE_BIT(KVS_LAPSED) | KV_STATE_BIT(KVS_CLOSED),
    [KVS_LAPSED] = KV_STATE_BIT(KVS_CLOSED),
    [KVS_CLOSED] = 0,
};

static const char *check_state(const void *object, unsigned state)
{
	const struct kvs_peer *peer = object;

	if (state == KVS_WORKING && !peer->slot_taken) return "a working peer has a lease";
	if (state == KVS_GUEST && peer->slot_taken) return "a guest has no lease";
	return NULL;
}

static const struct kv_state_table peer_states = {.name = "peer",
    .state_names = state_names,
    .allowed = allowed_moves,
    .state_count = 5,
    .invariant = check_state};

/* ---- ending ---- */

static void free_peer(struct kvs_peer *peer)
{
	if (peer->staging >= 0) close(peer->staging);
	kv_codec_request_free(peer->frames, peer->waiting);
	kv_codec_request_free(peer->frames, peer->growing);
	kvs_tenant_drop(peer->tenant);
	kv_secure_destroy(peer->secure);
	kv_free(peer->server->allocator, peer->gone);
	kv_free(peer->server->allocator, peer);
}

static enum kvs_metric lost_metric(enum kvs_reason reason, bool killed)
{
	if (reason == KVS_BY_PROTOCOL) return KVS_LOST_PROTOCOL;
	if (reason == KVS_BY_TIMEOUT) return KVS_LOST_TIMEOUT;
	return killed ? KVS_LOST_DIED : KVS_LOST_CLOSED;
}

/* Nothing that this process does can change the arena any more. With map it never could; the copies
 * that the store makes for it are waited for. */
static bool writes_no_more(const struct kvs_peer *peer, bool died)
{
	if (peer->puts) return false;
	return died || peer->secure || peer->server->transport == &kv_transport_map;
}

static void end_lease(struct kvs_peer *peer, enum kvs_reason reason, const char *why)
{
	struct kvs_server *server = peer->server;
	bool died = kvs_pidfd_dead(peer->pidfd);
	/* Of a process on another host there is only this sign. */
	bool ended =
	    peer->secure ? reason == KVS_BY_PEER : died || kvs_process_ending(peer->credentials.pid);
	bool killed = ended && !peer->leaving;

	kvs_peer_remove(server->engine, peer->slot, writes_no_more(peer, died));
	/* Only what its process may still write to waits for the process's end. With map that is
	 * nothing, and a process that connects again and again must not cost a descriptor each time. */
	if (!died && !peer->secure && server->transport != &kv_transport_map &&
	    kvs_peer_quarantined(server->engine, peer->epoch)) {
		kvs_mourn(server, peer->pidfd, peer->credentials.pid, peer->epoch);
		peer->pidfd = -1;
	}
	if (peer->worker) kvs_worker_left(peer->worker, kv_now_ms());
	peer->worker = NULL;
	kv_metrics_add(server->metrics, lost_metric(reason, killed), 1);
	if (kv_log_allows(&server->worker_log, KVS_MODULE))
		kv_info(KVS_MODULE, "worker left name=%s slot=%u pid=%d process=%s from=%s reason=\"%s\"",
		    peer->name, peer->slot, (int)peer->credentials.pid, ended ? "ended" : "alive",
		    peer->secure ? peer->from : "here", why);
}

void kvs_peer_close(struct kvs_peer *peer, enum kvs_reason reason, const char *why)
{
	struct kvs_server *server = peer->server;
	char text[256];

	if (peer->state.state == KVS_CLOSED) return;
	/* It may be this thread's error text, and more can fail here. */
	snprintf(text, sizeof text, "%s", why);
	why = text;
	if (reason != KVS_BY_PEER && reason != KVS_BY_STORE)
		kv_warning_limited(&server->peer_log, KVS_MODULE,
		    "connection closed name=%s pid=%d uid=%u from=%s reason=\"%s\"",
		    peer->name[0] ? peer->name : "-", (int)peer->credentials.pid, peer->credentials.uid,
		    peer->secure ? peer->from : "here", why);
	kvs_disk_forget(peer);
	kvs_line_close(peer);
	if (peer->slot_taken) end_lease(peer, reason, why);
	kv_state_move(&peer->state, KVS_CLOSED, peer);
	kv_watch_close(peer->watch);
	peer->watch = NULL;
	kv_timer_close(peer->pending);
	peer->pending = NULL;
	if (peer->secure) kv_secure_finish(peer->secure, peer->socket);
	close(peer->socket);
	if (peer->pidfd >= 0) close(peer->pidfd);
	kv_frame_reader_destroy(peer->reader);
	kv_frame_writer_destroy(peer->writer);
	peer->reader = NULL;
	peer->writer = NULL;
	kv_list_remove(&peer->node);
	server->peer_count--;
	peer->tenant->connections--;
	/* Pool threads may still read its staging memory; the last job frees the rest. */
	if (!peer->jobs) free_peer(peer);
}

void kvs_peers_close_all(struct kvs_server *server)
{
	struct kv_list *node;

	while ((node = kv_list_first(&server->peers)))
		kvs_peer_close(KV_CONTAINER_OF(node, struct kvs_peer, node), KVS_BY_STORE, "store stops");
}

void kvs_peer_finish(struct kvs_peer *peer)
{
	peer->closing_ms = kv_now_ms() + KVS_CLOSING_MS;
}

/* ---- answering ---- */

/* A remote peer asks for more than it takes: it is read no more until it has taken some. */
static bool is_read(const struct kvs_peer *peer)
{
	return !peer->waiting && !peer->closing_ms &&
	       !(peer->secure && kv_frame_writer_queued(peer->writer) >= KVS_REMOTE_QUEUED);
}

static void watch_what_is_wanted(struct kvs_peer *peer)
{
	bool reads = is_read(peer);
	bool writes = kv_frame_writer_queued(peer->writer) > 0;

	/* HANGUP is always wanted: a peer that is gone while it waits for copies must be seen. */
	kv_watch_update(peer->watch,
	    (reads ? KV_LOOP_READABLE : 0u) | (writes ? KV_LOOP_WRITABLE : 0u) | KV_LOOP_HANGUP);
	if (reads && peer->secure && kv_secure_pending(peer->secure))
		kv_timer_start(peer->pending, 0, 0);
}

/* Send what the socket takes; false when the peer was closed over it. */
static bool send_answers(struct kvs_peer *peer)
{
	int idle = 0;

	if (kv_frame_write(peer->writer, peer->socket, &idle) != KV_OK) {
		kvs_peer_close(peer, KVS_BY_PEER, kv_error_message());
		return false;
	}
	if (idle && peer->closing_ms) {
		kvs_peer_close(peer, KVS_BY_STORE, "answered for the last time");
		return false;
	}
	watch_what_is_wanted(peer);
	return true;
}

/* What one answer tells of regions: messages, blobs and the descriptors that travel along. */
struct news {
	Kv__Region messages[KV_CODEC_MAX_REGIONS];
	Kv__Region *pointers[KV_CODEC_MAX_REGIONS];
	struct kv_transport_blob blobs[KV_CODEC_MAX_REGIONS];
	int descriptors[KV_FRAME_MAX_DESCRIPTORS];
	uint32_t count, descriptor_count;
	uint64_t serial;
};

static enum kv_status add_news(
    struct kvs_server *server, const struct kvs_region *region, struct news *news)
{
	Kv__Region *message = &news->messages[news->count];
	struct kv_transport_blob *blob = &news->blobs[news->count];
	int descriptor = -1;

	KV_TRY(server->transport->region_export(
	    server->transport_server, region->region, blob, &descriptor));
	kv__region__init(message);
	message->index = region->index;
	message->bytes = region->bytes;
	message->descriptor_blob.data = blob->bytes;
	message->descriptor_blob.len = blob->length;
	message->has_descriptor = descriptor >= 0;
	if (descriptor >= 0) news->descriptors[news->descriptor_count++] = descriptor;
	news->pointers[news->count++] = message;
	news->serial = region->serial;
	return KV_OK;
}

static bool may_see(const struct kvs_peer *peer, const struct kvs_region *region)
{
	return !region->tenant[0] || strcmp(region->tenant, peer->tenant->name) == 0;
}

/* NULL with *status KV_OK when there is nothing new. */
static struct news *gather_news(struct kvs_peer *peer, enum kv_status *status)
{
	struct kvs_server *server = peer->server;
	struct news *news = NULL;
	struct kv_list *node;

	*status = KV_OK;
	KV_LIST_EACH(node, &server->regions)
	{
		const struct kvs_region *region = KV_CONTAINER_OF(node, struct kvs_region, node);

		if (region->serial <= peer->told_serial || !may_see(peer, region)) continue;
		if (!news) {
			news = kv_alloc_zero(server->allocator, sizeof *news);
			if (!news) *status = KV_NO_MEMORY;
		}
		/* The rest comes with the next message. */
		if (*status == KV_OK && news->count == KVS_NEWS_REGIONS) break;
		if (*status == KV_OK) *status = add_news(server, region, news);
		if (*status != KV_OK) break;
	}
	return news;
}

static void add_gone(struct kvs_peer *peer, uint32_t index)
{
	if (peer->gone_count == peer->gone_capacity) {
		uint32_t capacity = peer->gone_capacity ? 2 * peer->gone_capacity : 16;
		uint32_t *gone = kv_realloc(peer->server->allocator, peer->gone, capacity * sizeof *gone);

		/* It then keeps the mapping of memory that nobody uses until it connects anew. */
		if (!gone) return;
		peer->gone = gone;
		peer->gone_capacity = capacity;
	}
	peer->gone[peer->gone_count++] = index;
}

void kvs_peers_region_gone(struct kvs_server *server, const struct kvs_region *region)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &server->peers)
	{
		struct kvs_peer *peer = KV_CONTAINER_OF(node, struct kvs_peer, node);

		if (peer->told_serial >= region->serial && may_see(peer, region))
			add_gone(peer, region->index);
	}
}

/* More regions than one message can tell of go ahead in messages of their own, which answer
 * nothing. */
static bool more_news(const struct kvs_peer *peer)
{
	uint32_t count = 0;
	const struct kv_list *node;

	KV_LIST_EACH(node, &peer->server->regions)
	{
		const struct kvs_region *region =
		    KV_CONTAINER_OF((struct kv_list *)(uintptr_t)node, struct kvs_region, node);

		if (region->serial > peer->told_serial && may_see(peer, region)) count++;
	}
	return count > KVS_NEWS_REGIONS;
}

static enum kv_status queue_message(struct kvs_peer *peer, Kv__Response *response, bool regions)
{
	struct kv_allocator *allocator = peer->frames;
	enum kv_status status = KV_OK;
	struct news *news = regions && !peer->secure ? gather_news(peer, &status) : NULL;
	int page = kvs_tenant_page_descriptor(peer->tenant);
	bool with_page =
	    response->body_case == KV__RESPONSE__BODY_HELLO && response->hello->has_control_page;
	uint8_t *bytes = NULL;
	size_t length = 0;

	if (status != KV_OK) goto out;
	if (news) {
		response->new_regions = news->pointers;
		response->n_new_regions = news->count;
	}
	response->draining = peer->server->draining;
	response->gone_regions = peer->gone;
	response->n_gone_regions = peer->gone_count;
	KV_TRY_GOTO(status, kv_codec_response_pack(allocator, response, &bytes, &length), out);
	if (with_page)
		status = kv_frame_push(peer->writer, bytes, length, &page, 1);
	else
		status = kv_frame_push(peer->writer, bytes, length, news ? news->descriptors : NULL,
		    news ? news->descriptor_count : 0);
	if (status == KV_OK && news) peer->told_serial = news->serial;
	if (status == KV_OK) peer->gone_count = 0;
out:
	kv_free(allocator, bytes);
	kv_free(peer->server->allocator, news);
	return status;
}

static enum kv_status queue_answer(struct kvs_peer *peer, Kv__Response *response, bool regions)
{
	while (regions && !peer->secure && more_news(peer)) {
		Kv__Response ahead = KV__RESPONSE__INIT;

		KV_TRY(queue_message(peer, &ahead, true));
	}
	return queue_message(peer, response, regions);
}

void kvs_peer_respond(struct kvs_peer *peer, Kv__Response *response, bool regions)
{
	if (peer->state.state == KVS_CLOSED) return;
	if (queue_answer(peer, response, regions) != KV_OK) {
		kvs_peer_close(peer, KVS_BY_PROTOCOL, kv_error_message());
		return;
	}
	send_answers(peer);
}

void kvs_peer_respond_error(struct kvs_peer *peer, uint64_t id, enum kv_status status)
{
	Kv__Response response = KV__RESPONSE__INIT;
	char message[KV_CODEC_MAX_MESSAGE_TEXT + 1];

	snprintf(message, sizeof message, "%s", kv_error_message());
	for (char *at = message; *at; at++)
		if ((unsigned char)*at < 0x20 || (unsigned char)*at > 0x7e) *at = ' ';
	response.id = id;
	response.never = status == KV_TOO_LARGE;
	response.status = (uint32_t)(response.never ? KV_LIMIT : status);
	response.message = message;
	kv_metrics_add(peer->server->metrics, KVS_REQUESTS_FAILED, 1);
	kvs_peer_respond(peer, &response, false);
}

/* ---- reading ---- */

/* May this be served while copies of the peer are under way? The others could free their target. */
static bool must_wait(const struct kvs_peer *peer, const Kv__Request *request)
{
	if (!peer->puts) return false;
	if (request->body_case == KV__REQUEST__BODY_PUT)
		return peer->server->settings->isolation && peer->put_bytes > KVS_MAX_PUT_BYTES;
	return request->body_case == KV__REQUEST__BODY_COMMIT ||
	       request->body_case == KV__REQUEST__BODY_RELEASE ||
	       request->body_case == KV__REQUEST__BODY_CLOSE;
}

enum take { TAKE_MORE, TAKE_LATER, TAKE_GONE };

/* Serve one frame. TAKE_GONE: the peer was closed over it and may not be there any more. */
static enum take take_frame(struct kvs_peer *peer, const struct kv_frame *frame)
{
	struct kvs_server *server = peer->server;
	Kv__Request *request = NULL;
	enum kv_status status =
	    kv_codec_request_unpack(peer->frames, frame->payload, frame->length, &request);

	if (status != KV_OK) {
		kvs_peer_close(peer, KVS_BY_PROTOCOL, kv_error_message());
		return TAKE_GONE;
	}
	kv_metrics_add(server->metrics, KVS_REQUESTS, 1);
	/* Its heartbeats come behind its bytes. */
	if (peer->secure && peer->state.state == KVS_WORKING)
		kvs_peer_heartbeat(server->engine, peer->slot, peer->epoch);
	if (must_wait(peer, request)) {
		peer->waiting = request;
		return TAKE_LATER;
	}
	/* The peer may be closed and freed by what it asks for: jobs keeps it until we have looked. */
	peer->jobs++;
	kvs_dispatch(peer, request);
	peer->jobs--;
	if (peer->state.state != KVS_CLOSED)
		return is_read(peer) && peer->turn_bytes < KVS_REMOTE_TURN_BYTES ? TAKE_MORE : TAKE_LATER;
	if (!peer->jobs) free_peer(peer);
	return TAKE_GONE;
}

static void read_requests(struct kvs_peer *peer)
{
	peer->turn_bytes = 0;
	for (int turn = 0; turn < KVS_FRAMES_A_TURN; turn++) {
		enum kv_frame_event event = KV_FRAME_NONE;
		enum kv_status status;
		struct kv_frame frame;

		status = kv_frame_read(peer->reader, peer->socket, &event, &frame);
		if (status != KV_OK || event == KV_FRAME_END) {
			bool gone = status == KV_OK || status == KV_DISCONNECTED;

			kvs_peer_close(peer, gone ? KVS_BY_PEER : KVS_BY_PROTOCOL,
			    status == KV_OK ? "closed by the peer" : kv_error_message());
			return;
		}
		if (event == KV_FRAME_NONE) {
			if (!kv_frame_reader_inside(peer->reader))
				peer->inside_ms = 0;
			else if (!peer->inside_ms)
				peer->inside_ms = kv_now_ms();
			return;
		}
		peer->inside_ms = 0;
		switch (take_frame(peer, &frame)) {
		case TAKE_GONE:
			return;
		case TAKE_LATER:
			watch_what_is_wanted(peer);
			return;
		default:
			break;
		}
	}
	watch_what_is_wanted(peer);
}

static void on_pending(void *context)
{
	struct kvs_peer *peer = context;

	if (is_read(peer)) read_requests(peer);
}

static void on_peer(void *context, struct kv_watch *watch, unsigned events)
{
	struct kvs_peer *peer = context;
	bool reads = is_read(peer);

	(void)watch;
	if ((events & KV_LOOP_WRITABLE) && !send_answers(peer)) return;
	if ((events & KV_LOOP_HANGUP) && !reads) {
		kvs_peer_close(peer, KVS_BY_PEER, "hung up");
		return;
	}
	if (events & (KV_LOOP_READABLE | KV_LOOP_HANGUP)) read_requests(peer);
}

void kvs_peer_job_begin(struct kvs_peer *peer)
{
	peer->jobs++;
	peer->server->jobs++;
}

void kvs_peer_job_done(struct kvs_peer *peer)
{
	Kv__Request *request = peer->waiting;

	peer->jobs--;
	peer->server->jobs--;
	if (peer->state.state == KVS_CLOSED) {
		if (!peer->jobs) free_peer(peer);
		return;
	}
	if (!request || peer->puts) return;
	peer->waiting = NULL;
	peer->jobs++;
	kvs_dispatch(peer, request);
	peer->jobs--;
	if (peer->state.state != KVS_CLOSED)
		watch_what_is_wanted(peer);
	else if (!peer->jobs)
		free_peer(peer);
}

static void serve_again(struct kvs_peer *peer, Kv__Request *request)
{
	peer->jobs++;
	kvs_dispatch(peer, request);
	peer->jobs--;
	peer->grown = peer->loaded = false;
	if (peer->state.state == KVS_CLOSED && !peer->jobs) free_peer(peer);
}

void kvs_peer_grown(struct kvs_peer *peer)
{
	Kv__Request *request = peer->growing;

	peer->growing = NULL;
	peer->grown = true;
	serve_again(peer, request);
}

void kvs_peer_loaded(struct kvs_peer *peer, Kv__Request *request)
{
	peer->loaded = true;
	serve_again(peer, request);
}

/* ---- accepting ---- */

/* A connection that wants to become a peer. */
struct arrival {
	int socket;
	struct kv_secure *secure; /* NULL: on the Unix socket */
	const char *from;
};

static enum kv_status identify(struct kvs_peer *peer, const struct arrival *arrival)
{
	if (!arrival->secure) return kv_unix_peer(arrival->socket, &peer->credentials);
	peer->credentials.uid = peer->credentials.gid = KVS_REMOTE_UID;
	snprintf(peer->from, sizeof peer->from, "%s", arrival->from);
	return kv_loop_timer(peer->server->loop, 0, 0, on_pending, peer, &peer->pending);
}

static enum kv_status create_reader_and_writer(struct kvs_peer *peer)
{
	KV_TRY(kv_frame_reader_create(peer->frames, KV_CODEC_MAX_MESSAGE, 1, &peer->reader));
	KV_TRY(kv_frame_writer_create(peer->frames, KVS_MAX_QUEUED, &peer->writer));
	if (!peer->secure) return KV_OK;
	kv_frame_reader_secure(peer->reader, peer->secure);
	kv_frame_writer_secure(peer->writer, peer->secure);
	return KV_OK;
}

static enum kv_status create_peer(struct kvs_server *server, const struct arrival *arrival)
{
	struct kvs_peer *peer = kv_alloc_zero(server->allocator, sizeof *peer);
	enum kv_status status;

	if (!peer) return KV_NO_MEMORY;
	peer->server = server;
	peer->socket = arrival->socket;
	peer->secure = arrival->secure;
	peer->connected_ms = kv_now_ms();
	kv_state_init(&peer->state, &peer_states, KVS_GREETING);
	peer->staging = -1;
	KV_TRY_GOTO(status, identify(peer, arrival), fail);
	KV_TRY_GOTO(status, kvs_tenant_connect(server, &peer->credentials, &peer->tenant), fail);
	peer->frames = peer->tenant->frames;
	KV_TRY_GOTO(status, create_reader_and_writer(peer), fail);
	KV_TRY_GOTO(status,
	    kv_loop_watch_fd(server->loop, peer->socket, KV_LOOP_READABLE | KV_LOOP_HANGUP, on_peer,
	        peer, &peer->watch),
	    fail);
	peer->pidfd = kvs_pidfd_open(peer->credentials.pid);
	kv_list_push_back(&server->peers, &peer->node);
	server->peer_count++;
	return KV_OK;
fail:
	kv_timer_close(peer->pending);
	kv_frame_reader_destroy(peer->reader);
	kv_frame_writer_destroy(peer->writer);
	if (peer->tenant) peer->tenant->connections--;
	kvs_tenant_drop(peer->tenant);
	kv_free(server->allocator, peer);
	return status;
}

/* One word to a peer that cannot come in; an empty socket takes it at once. */
static void refuse(struct kvs_server *server, const struct arrival *arrival, enum kv_status status)
{
	struct kv_frame_writer *writer = NULL;
	Kv__Response response = KV__RESPONSE__INIT;
	uint8_t *bytes = NULL;
	char message[256];
	size_t length = 0;
	int idle = 0;

	kv_metrics_add(server->metrics, status == KV_REFUSED ? KVS_REFUSED_USER : KVS_REFUSED_LIMIT, 1);
	kv_warning_limited(&server->peer_log, KVS_MODULE, "connection refused: %s", kv_error_message());
	snprintf(message, sizeof message, "%s", kv_error_message());
	response.status = (uint32_t)status;
	response.message = message;
	if (kv_frame_writer_create(server->allocator, 0, &writer) == KV_OK &&
	    kv_codec_response_pack(server->allocator, &response, &bytes, &length) == KV_OK) {
		if (arrival->secure) kv_frame_writer_secure(writer, arrival->secure);
		if (kv_frame_push(writer, bytes, length, NULL, 0) == KV_OK)
			kv_frame_write(writer, arrival->socket, &idle);
	}
	kv_free(server->allocator, bytes);
	kv_frame_writer_destroy(writer);
	if (arrival->secure) kv_secure_finish(arrival->secure, arrival->socket);
	kv_secure_destroy(arrival->secure);
	close(arrival->socket);
}

/* Takes it, or refuses it. */
static void admit(struct kvs_server *server, const struct arrival *arrival)
{
	const uint32_t limit = server->settings->max_workers + KVS_EXTRA_PEERS;
	enum kv_status status = KV_OK;

	if (server->peer_count >= limit) kvs_peers_make_room(server);
	if (server->peer_count >= limit)
		status = kv_fail(KV_LIMIT, "%u connections are open, that is the limit (max-workers=%u)",
		    server->peer_count, server->settings->max_workers);
	if (status == KV_OK) status = create_peer(server, arrival);
	if (status != KV_OK) refuse(server, arrival, status);
}

void kvs_peer_arrived(
    struct kvs_server *server, int socket, struct kv_secure *secure, const char *from)
{
	admit(server, &(struct arrival){.socket = socket, .secure = secure, .from = from});
}

bool kvs_peers_make_room(struct kvs_server *server)
{
	struct kvs_peer *oldest = NULL;
	struct kv_list *node;

	KV_LIST_EACH(node, &server->peers)
	{
		struct kvs_peer *peer = KV_CONTAINER_OF(node, struct kvs_peer, node);

		if (peer->state.state != KVS_LAPSED) continue;
		if (!oldest || peer->lapsed_ms < oldest->lapsed_ms) oldest = peer;
	}
	if (oldest) kvs_peer_close(oldest, KVS_BY_TIMEOUT, "its lease lapsed and others want in");
	return oldest != NULL;
}

static void on_listener(void *context, struct kv_watch *watch, unsigned events)
{
	struct kvs_server *server = context;

	(void)events;
	for (int turn = 0; turn < KVS_FRAMES_A_TURN; turn++) {
		int socket = -1;
		enum kv_status status = kv_unix_accept(server->listener, &socket);

		if (status != KV_OK) {
			kv_warning(KVS_MODULE, "cannot accept a connection: %s", kv_error_message());
			server->listen_again_ms = kv_now_ms() + 1000;
			kv_watch_update(watch, 0);
			return;
		}
		if (socket < 0) return;
		kv_metrics_add(server->metrics, KVS_CONNECTIONS, 1);
		admit(server, &(struct arrival){.socket = socket});
	}
}

enum kv_status kvs_listen(struct kvs_server *server)
{
	/* With isolation the list decides, and not the file's mode. */
	uint32_t mode = server->settings->isolation ? 0666 : KV_UNIX_MODE;

	KV_TRY(kv_unix_listen(server->settings->socket, mode, &server->listener));
	return kv_loop_watch_fd(server->loop, server->listener, KV_LOOP_READABLE, on_listener, server,
	    &server->listener_watch);
}

void kvs_unlisten(struct kvs_server *server)
{
	kv_watch_close(server->listener_watch);
	server->listener_watch = NULL;
	if (server->listener >= 0) kv_unix_unlisten(server->listener, server->settings->socket);
	server->listener = -1;
}

/* ---- time ---- */

/* NULL, or why this peer's time is up. */
static const char *overdue(const struct kvs_peer *peer, uint64_t now)
{
	if (peer->closing_ms && now >= peer->closing_ms) return "does not take its last answer";
	if (peer->state.state == KVS_GREETING && now - peer->connected_ms >= KVS_GREETING_MS)
		return "sent no hello";
	if (peer->state.state == KVS_LAPSED &&
	    now - peer->lapsed_ms >= KVS_LAPSED_LEASES * kvs_engine_lease_ms(peer->server->engine))
		return "its lease lapsed long ago";
	if (peer->inside_ms && now - peer->inside_ms >= KVS_HALF_MESSAGE_MS)
		return "sent half a message and no more";
	return NULL;
}

static void tick_lease(struct kvs_peer *peer)
{
	struct kvs_server *server = peer->server;
	struct kvs_peer_info info;

	if (peer->state.state != KVS_WORKING ||
	    kvs_peer_info(server->engine, peer->slot, &info) != KV_OK || !info.lapsed)
		return;
	kv_state_move(&peer->state, KVS_LAPSED, peer);
	peer->lapsed_ms = kv_now_ms();
	kv_warning_limited(&server->worker_log, KVS_MODULE,
	    "lease lapsed name=%s slot=%u pid=%d from=%s", peer->name, peer->slot,
	    (int)peer->credentials.pid, peer->from);
	if (writes_no_more(peer, kvs_pidfd_dead(peer->pidfd)))
		kvs_peer_proven_dead(server->engine, peer->epoch);
}

void kvs_peers_tick(struct kvs_server *server, uint64_t now)
{
	struct kv_list *node;
	struct kv_list *following;

	KV_LIST_EACH_SAFE(node, following, &server->peers)
	{
		struct kvs_peer *peer = KV_CONTAINER_OF(node, struct kvs_peer, node);
		const char *why = overdue(peer, now);

		/* Its own work on the pool must not cost a peer its lease. */
		if (peer->state.state == KVS_WORKING && peer->jobs)
			kvs_peer_heartbeat(server->engine, peer->slot, peer->epoch);
		tick_lease(peer);
		/* A cable was cut, or it would have said something; what it had is free. */
		if (!why && peer->secure && peer->state.state == KVS_LAPSED) why = "its lease lapsed";
		if (why) kvs_peer_close(peer, KVS_BY_TIMEOUT, why);
	}
	if (server->listen_again_ms && now >= server->listen_again_ms) {
		server->listen_again_ms = 0;
		kv_watch_update(server->listener_watch, KV_LOOP_READABLE);
	}
}
