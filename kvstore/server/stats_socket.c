/* The stats socket: one command a line, any number on a connection, answers in memcached's manner;
 * or one HTTP request, when the first bytes are those of a GET or a HEAD.
 *
 * A reader that is slow costs its own connection and nothing else: while an answer waits no command
 * of it is read, and an answer that waits too long ends it, as does a question that stays half
 * asked.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "kvstore/server/http_listen.h"
#include "kvstore/server/http_request.h"
#include "kvstore/server/server_internal.h"
#include "kvstore/server/stats_answer.h"

enum {
	MAX_READERS = 32, /* of the Unix socket, and as many over TCP */
	MAX_LINE = 256,
	MAX_ANSWER = 4 << 20,
	SLOW_MS = 5000,    /* without taking a byte of its answer */
	ANSWER_MS = 30000, /* to take all of it */
	HALF_MS = 5000,    /* from a question's first byte to its last */
	ROOM_MS = 1000,    /* one that has been silent for so long makes room for another */
	PAUSE_MS = 1000,   /* before accepting again, after a failure */
	IDLE_MS = 300000,
	COMMANDS_A_TURN = 16,
	DISCARDS = 16
};

struct reader {
	struct kv_list node;
	struct kvs_stats_socket *owner;
	int socket;
	struct kv_watch *watch;
	struct kvs_asker asker;
	char input[KVS_HTTP_MAX_HEAD];
	size_t length;
	struct kv_text_buffer answer;
	size_t sent;
	uint64_t active_ms;  /* when it last sent a command or took bytes */
	uint64_t begun_ms;   /* since when it has been asking, 0: it is not */
	uint64_t answers_ms; /* since when it has had an answer to take, 0: it has none */
	bool quits;          /* nothing more is read */
	bool hung_up;        /* it has closed its sending side, perhaps with more to be read */
	bool ended;          /* all that it sent was read; it takes what it has asked for */
	bool http_only;      /* it came over TCP */
	bool served;         /* a line of it was: it speaks no HTTP */
};

struct kvs_stats_socket {
	struct kvs_server *server;
	int listener, http_listener;
	struct kv_watch *watch, *http_watch;
	struct kv_list readers;
	uint32_t reader_count[2]; /* of the Unix socket; over TCP: neither takes the other's places */
	uint64_t listen_again_ms; /* 0: listening */
	struct kv_log_limit log;  /* of what readers do wrong */
};

/* Closing a socket with bytes that nobody has read takes its answer back. */
static void discard(const struct reader *reader)
{
	char some[4096];

	for (int i = 0; i < DISCARDS; i++)
		if (recv(reader->socket, some, sizeof some, MSG_DONTWAIT) <= 0) break;
}

static void drop(struct reader *reader, const char *why)
{
	struct kvs_stats_socket *owner = reader->owner;

	if (why) {
		kv_metrics_add(owner->server->metrics, KVS_STATS_DROPPED, 1);
		kv_warning_limited(&owner->log, KVS_MODULE, "stats reader dropped reason=\"%s\"", why);
	}
	kv_list_remove(&reader->node);
	owner->reader_count[reader->http_only]--;
	kv_watch_close(reader->watch);
	if (reader->quits) discard(reader);
	close(reader->socket);
	kv_text_deinit(&reader->answer);
	kv_free(owner->server->allocator, reader);
}

/* ---- questions ---- */

static bool speaks_http(const struct reader *reader)
{
	return !reader->served && reader->length && kvs_http_begins(reader->input, reader->length);
}

static bool has_line(const struct reader *reader)
{
	return memchr(reader->input, '\n', reader->length) != NULL;
}

static void take_input(struct reader *reader, size_t taken)
{
	reader->length -= taken;
	memmove(reader->input, reader->input + taken, reader->length);
	reader->begun_ms = reader->length ? kv_now_ms() : 0;
	reader->answers_ms = kv_now_ms();
}

/* Answer the first whole line that is there; false when there is none. */
static bool run_line(struct reader *reader)
{
	char *end = memchr(reader->input, '\n', reader->length);
	struct kvs_server *server = reader->owner->server;

	if (!end) return false;
	/* A line ends where it does, not at a zero byte. */
	for (char *at = reader->input; at < end; at++)
		if (*at == '\0') *at = '?';
	*end = '\0';
	if (end > reader->input && end[-1] == '\r') end[-1] = '\0';
	reader->served = true;
	if (!kvs_answer_line(server, &reader->asker, reader->input, &reader->answer))
		reader->quits = true;
	take_input(reader, (size_t)(end - reader->input) + 1);
	return true;
}

/* HEAD asks for what GET would be told before the body. */
static void cut_body(struct kv_text_buffer *answer)
{
	const char *body = strstr(kv_text(answer), "\r\n\r\n");

	if (body) kv_text_cut(answer, (size_t)(body + 4 - kv_text(answer)));
}

/* The same for an HTTP request, which is the only one of its connection. */
static bool run_get(struct reader *reader)
{
	struct kvs_http_request request;
	int status = kvs_http_parse(reader->input, reader->length, &request);

	if (!status) return false;
	if (status == 200)
		kvs_answer_get(reader->owner->server, request.path, &reader->answer);
	else
		kvs_answer_refusal(status, &reader->answer);
	if (kvs_http_is_head(reader->input)) cut_body(&reader->answer);
	reader->quits = true;
	take_input(reader, reader->length);
	return true;
}

static bool run_question(struct reader *reader)
{
	if (!reader->length || reader->quits) return false;
	if (reader->http_only && !speaks_http(reader)) {
		const int method = kvs_http_other_method(reader->input, reader->length);

		if (method == 1) return false;
		kvs_answer_refusal(method == 2 ? 405 : 400, &reader->answer);
		reader->quits = true;
		take_input(reader, reader->length);
		return true;
	}
	return speaks_http(reader) ? run_get(reader) : run_line(reader);
}

/* ---- bytes ---- */

/* 1: all is sent; 0: the socket takes no more now; -1: the reader is gone. */
static int send_answer(struct reader *reader)
{
	while (reader->sent < reader->answer.length) {
		ssize_t n = send(reader->socket, reader->answer.data + reader->sent,
		    reader->answer.length - reader->sent, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR) continue;
		if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
		reader->sent += (size_t)n;
		reader->active_ms = kv_now_ms();
	}
	kv_text_reset(&reader->answer);
	reader->sent = 0;
	reader->answers_ms = 0;
	return 1;
}

/* Best effort: the reader is dropped in any case. */
static void say_last(struct reader *reader, const char *words)
{
	if (send(reader->socket, words, strlen(words), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) errno = 0;
}

/* Serve questions while answers go out at once. False when the reader was dropped. */
static bool serve(struct reader *reader)
{
	for (int turn = 0;; turn++) {
		int sent = send_answer(reader);

		if (sent < 0 || (sent > 0 && reader->quits)) {
			drop(reader, NULL);
			return false;
		}
		if (!sent || turn == COMMANDS_A_TURN || !run_question(reader)) break;
		if (kv_text_status(&reader->answer) != KV_OK) {
			drop(reader, "its answer does not fit into memory");
			return false;
		}
	}
	if (reader->length >= MAX_LINE && !has_line(reader) && !speaks_http(reader)) {
		say_last(reader, "ERROR line too long, try help\r\n");
		drop(reader, "sent a line that is too long");
		return false;
	}
	return true;
}

/* It has an answer to take, or a line that waits for its turn. */
static bool behind(const struct reader *reader)
{
	return reader->answer.length > 0 || (has_line(reader) && !speaks_http(reader));
}

/* It has asked its last, and has all that it asked for. */
static bool finished(const struct reader *reader)
{
	return reader->ended && !behind(reader);
}

static void watch_reader(struct reader *reader)
{
	/* Writability brings us back to the lines that wait. */
	unsigned events = behind(reader) ? KV_LOOP_WRITABLE : KV_LOOP_READABLE;

	kv_watch_update(reader->watch, reader->hung_up ? events : events | KV_LOOP_HANGUP);
}

/* False when the reader was dropped. */
static bool receive(struct reader *reader)
{
	/* A line has less room than a request's head. */
	size_t room = speaks_http(reader) ? sizeof reader->input : MAX_LINE;
	ssize_t n;

	if (reader->length >= room) return true;
	n = recv(reader->socket, reader->input + reader->length, room - reader->length, MSG_DONTWAIT);
	if (n < 0 && errno != EAGAIN && errno != EINTR) {
		drop(reader, NULL);
		return false;
	}
	if (n == 0) reader->hung_up = reader->ended = true;
	if (n > 0) {
		reader->length += (size_t)n;
		reader->active_ms = kv_now_ms();
		if (!reader->begun_ms) reader->begun_ms = reader->active_ms;
	}
	return true;
}

static void on_reader(void *context, struct kv_watch *watch, unsigned events)
{
	struct reader *reader = context;

	(void)watch;
	if (events & KV_LOOP_READABLE) {
		if (!receive(reader)) return;
	} else if (events & KV_LOOP_HANGUP) {
		/* If it is gone altogether, sending will tell. */
		reader->hung_up = true;
	}
	if (!serve(reader)) return;
	if (finished(reader)) {
		drop(reader, NULL);
		return;
	}
	watch_reader(reader);
}

/* ---- connections ---- */

/* Over TCP a connection has one request, which comes with it: the oldest of those that have not
 * asked goes at once, however often it sends a byte. */
static struct reader *oldest_tcp(struct kvs_stats_socket *owner)
{
	struct kv_list *node;

	KV_LIST_EACH(node, &owner->readers)
	{
		struct reader *reader = KV_CONTAINER_OF(node, struct reader, node);

		if (reader->http_only && !behind(reader)) return reader;
	}
	return NULL;
}

/* Whoever holds connections and asks nothing must not keep others out. */
static void make_room(struct kvs_stats_socket *owner, bool http_only)
{
	struct reader *idlest = NULL;
	struct kv_list *node;

	if (owner->reader_count[http_only] < MAX_READERS) return;
	if (http_only) {
		idlest = oldest_tcp(owner);
		if (idlest) drop(idlest, "asks nothing, and others wait");
		return;
	}
	KV_LIST_EACH(node, &owner->readers)
	{
		struct reader *reader = KV_CONTAINER_OF(node, struct reader, node);

		if (reader->http_only || behind(reader)) continue;
		if (!idlest || reader->active_ms < idlest->active_ms) idlest = reader;
	}
	if (idlest && kv_now_ms() - idlest->active_ms >= ROOM_MS)
		drop(idlest, "asks nothing, and others wait");
}

static void identify(struct reader *reader)
{
	struct kv_unix_peer peer;

	if (kv_unix_peer(reader->socket, &peer) != KV_OK) return;
	reader->asker.pid = peer.pid;
	reader->asker.uid = peer.uid;
	reader->asker.trusted = peer.uid == 0 || peer.uid == (uint32_t)geteuid();
}

static enum kv_status create_reader(struct kvs_stats_socket *owner, int socket, bool http_only)
{
	struct kvs_server *server = owner->server;
	struct reader *reader;
	enum kv_status status;

	make_room(owner, http_only);
	if (owner->reader_count[http_only] >= MAX_READERS)
		return kv_fail(KV_LIMIT, "%d stats readers are connected%s, that is the limit",
		    (int)MAX_READERS, http_only ? " over TCP" : "");
	reader = kv_alloc_zero(server->allocator, sizeof *reader);
	if (!reader) return KV_NO_MEMORY;
	reader->owner = owner;
	reader->socket = socket;
	reader->active_ms = kv_now_ms();
	reader->http_only = http_only;
	if (!http_only) identify(reader);
	kv_text_init(&reader->answer, server->allocator, MAX_ANSWER);
	status = kv_loop_watch_fd(
	    server->loop, socket, KV_LOOP_READABLE | KV_LOOP_HANGUP, on_reader, reader, &reader->watch);
	if (status != KV_OK) {
		kv_free(server->allocator, reader);
		return status;
	}
	kv_list_push_back(&owner->readers, &reader->node);
	owner->reader_count[http_only]++;
	return KV_OK;
}

static void accept_readers(struct kvs_stats_socket *owner, int listener)
{
	for (int turn = 0; turn < COMMANDS_A_TURN; turn++) {
		int socket = -1;

		if (kv_unix_accept(listener, &socket) != KV_OK) {
			/* The connection still waits, so that the loop would bring us back at once. */
			kv_warning(KVS_MODULE, "stats socket: %s", kv_error_message());
			owner->listen_again_ms = kv_now_ms() + PAUSE_MS;
			kv_watch_update(owner->watch, 0);
			if (owner->http_watch) kv_watch_update(owner->http_watch, 0);
			return;
		}
		if (socket < 0) return;
		if (create_reader(owner, socket, listener == owner->http_listener) == KV_OK) continue;
		kv_metrics_add(owner->server->metrics, KVS_STATS_DROPPED, 1);
		kv_warning_limited(&owner->log, KVS_MODULE, "stats reader refused: %s", kv_error_message());
		close(socket);
	}
}

static void on_listener(void *context, struct kv_watch *watch, unsigned events)
{
	struct kvs_stats_socket *owner = context;

	(void)events;
	accept_readers(owner, watch == owner->watch ? owner->listener : owner->http_listener);
}

/* An address that cannot be had must not keep the store from serving. */
static void listen_http(struct kvs_stats_socket *owner)
{
	const char *address = owner->server->settings->http_listen;
	enum kv_status status;

	if (!address || !*address) return;
	status = kvs_http_listen(address, &owner->http_listener);
	if (status == KV_OK)
		status = kv_loop_watch_fd(owner->server->loop, owner->http_listener, KV_LOOP_READABLE,
		    on_listener, owner, &owner->http_watch);
	if (status == KV_OK) {
		kv_info(KVS_MODULE, "statistics at http://%s/", address);
		return;
	}
	kv_warning(KVS_MODULE, "no HTTP: %s", kv_error_message());
	if (owner->http_listener >= 0) close(owner->http_listener);
	owner->http_listener = -1;
}

enum kv_status kvs_stats_listen(struct kvs_server *server)
{
	const char *path = server->settings->stats_socket;
	struct kvs_stats_socket *created;
	enum kv_status status;

	if (!path || !*path) return KV_OK;
	created = kv_alloc_zero(server->allocator, sizeof *created);
	if (!created) return KV_NO_MEMORY;
	created->server = server;
	created->listener = -1;
	created->http_listener = -1;
	kv_list_init(&created->readers);
	status = kv_unix_listen(path, KV_UNIX_MODE, &created->listener);
	if (status == KV_OK) {
		status = kv_loop_watch_fd(server->loop, created->listener, KV_LOOP_READABLE, on_listener,
		    created, &created->watch);
		if (status != KV_OK) kv_unix_unlisten(created->listener, path);
	}
	if (status != KV_OK) {
		kv_free(server->allocator, created);
		return status;
	}
	listen_http(created);
	server->stats = created;
	return KV_OK;
}

/* Why a reader has to go, "" when nobody needs to be told, NULL when it may stay. */
static const char *overdue(const struct reader *reader, uint64_t now)
{
	if (now < reader->active_ms) return NULL;
	/* A socket that has taken much and passed on little is not writable, though a send would
	 * succeed: commands that wait behind it count as an answer that is not read. */
	if (behind(reader)) {
		if (now - reader->active_ms >= SLOW_MS) return "does not read its answers";
		if (reader->answers_ms && now >= reader->answers_ms + ANSWER_MS)
			return "takes too long to read its answer";
		return NULL;
	}
	if (reader->begun_ms && now >= reader->begun_ms + HALF_MS) return "asks half a question";
	return now - reader->active_ms >= IDLE_MS ? "" : NULL;
}

void kvs_stats_tick(struct kvs_server *server, uint64_t now)
{
	struct kv_list *node;
	struct kv_list *following;

	if (!server->stats) return;
	if (server->stats->listen_again_ms && now >= server->stats->listen_again_ms) {
		server->stats->listen_again_ms = 0;
		kv_watch_update(server->stats->watch, KV_LOOP_READABLE);
		if (server->stats->http_watch) kv_watch_update(server->stats->http_watch, KV_LOOP_READABLE);
	}
	KV_LIST_EACH_SAFE(node, following, &server->stats->readers)
	{
		struct reader *reader = KV_CONTAINER_OF(node, struct reader, node);
		const char *why = overdue(reader, now);

		if (!why) continue;
		if (!behind(reader) && speaks_http(reader))
			say_last(reader, "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n");
		drop(reader, *why ? why : NULL);
	}
}

void kvs_stats_stop(struct kvs_server *server)
{
	struct kvs_stats_socket *stats = server->stats;
	struct kv_list *node;

	if (!stats) return;
	while ((node = kv_list_first(&stats->readers)))
		drop(KV_CONTAINER_OF(node, struct reader, node), NULL);
	kv_watch_close(stats->http_watch);
	if (stats->http_listener >= 0) close(stats->http_listener);
	kv_watch_close(stats->watch);
	kv_unix_unlisten(stats->listener, server->settings->stats_socket);
	kv_free(server->allocator, stats);
	server->stats = NULL;
}
