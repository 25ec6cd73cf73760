/* The stats socket: one command a line, any number on a connection, answers in memcached's manner.
 *
 * A reader that is slow costs its own connection and nothing else: while an answer waits no command
 * of it is read, and an answer that waits too long ends it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "kvstore/server/server_internal.h"
#include "kvstore/server/stats_command.h"

enum {
	MAX_READERS = 32,
	MAX_LINE = 256,
	MAX_ANSWER = 4 << 20,
	SLOW_MS = 5000,
	ROOM_MS = 1000,  /* one that has been silent for so long makes room for another */
	PAUSE_MS = 1000, /* before accepting again, after a failure */
	IDLE_MS = 300000,
	COMMANDS_A_TURN = 16
};

struct reader {
	struct kv_list node;
	struct kvs_stats_socket *owner;
	int socket;
	struct kv_watch *watch;
	char line[MAX_LINE];
	size_t length;
	struct kv_text_buffer answer;
	size_t sent;
	uint64_t active_ms; /* when it last sent a command or took bytes */
	bool quits;
};

struct kvs_stats_socket {
	struct kvs_server *server;
	int listener;
	struct kv_watch *watch;
	struct kv_list readers;
	uint32_t reader_count;
	uint64_t listen_again_ms; /* 0: listening */
};

static void drop(struct reader *reader, const char *why)
{
	struct kvs_stats_socket *owner = reader->owner;

	if (why) {
		kv_metrics_add(owner->server->metrics, KVS_STATS_DROPPED, 1);
		kv_warning(KVS_MODULE, "stats reader dropped reason=\"%s\"", why);
	}
	kv_list_remove(&reader->node);
	owner->reader_count--;
	kv_watch_close(reader->watch);
	close(reader->socket);
	kv_text_deinit(&reader->answer);
	kv_free(owner->server->allocator, reader);
}

/* ---- commands ---- */

static void put_health(struct kvs_server *server, struct kv_text_buffer *text)
{
	struct kvs_statistics statistics;

	kvs_engine_statistics(server->engine, &statistics);
	kv_text_printf(text, "OK ready generation=%016llx workers=%u transport=%s\r\n",
	    (unsigned long long)kvs_engine_generation(server->engine),
	    statistics.peers - statistics.peers_lapsed, server->transport->name);
}

static void put_help(struct kv_text_buffer *text)
{
	kv_text_put(text, "stats       all numbers, one STAT line each, then END\r\n"
	                  "stats json  the same as one JSON object on one line\r\n"
	                  "metrics     the same for Prometheus, then # EOF\r\n"
	                  "health      OK and what the store is, while it serves\r\n"
	                  "version     VERSION and the release\r\n"
	                  "help        this list, then END\r\n"
	                  "quit        close the connection\r\n"
	                  "END\r\n");
}

static void run_command(struct reader *reader, const char *line)
{
	struct kvs_server *server = reader->owner->server;
	struct kv_text_buffer *text = &reader->answer;

	kv_metrics_add(server->metrics, KVS_STATS_REQUESTS, 1);
	switch (kvs_stats_parse(line)) {
	case KVS_COMMAND_NONE:
		break;
	case KVS_COMMAND_STATS:
		kvs_stats_text(server, text);
		break;
	case KVS_COMMAND_JSON:
		kvs_stats_json(server, text);
		break;
	case KVS_COMMAND_METRICS:
		kvs_stats_prometheus(server, text);
		kv_text_put(text, "# EOF\n");
		break;
	case KVS_COMMAND_HEALTH:
		put_health(server, text);
		break;
	case KVS_COMMAND_VERSION:
		kv_text_printf(text, "VERSION %s\r\n", KV_VERSION);
		break;
	case KVS_COMMAND_HELP:
		put_help(text);
		break;
	case KVS_COMMAND_QUIT:
		reader->quits = true;
		break;
	case KVS_COMMAND_UNKNOWN:
		kvs_stats_unknown(line, text);
		break;
	}
}

/* Run the first whole line that is there; false when there is none. */
static bool run_line(struct reader *reader)
{
	char *end = memchr(reader->line, '\n', reader->length);
	size_t taken;

	if (!end) return false;
	taken = (size_t)(end - reader->line) + 1;
	*end = '\0';
	if (end > reader->line && end[-1] == '\r') end[-1] = '\0';
	run_command(reader, reader->line);
	reader->length -= taken;
	memmove(reader->line, reader->line + taken, reader->length);
	return true;
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
	return 1;
}

/* Serve lines while answers go out at once. False when the reader was dropped. */
static bool serve_lines(struct reader *reader)
{
	for (int turn = 0;; turn++) {
		int sent = send_answer(reader);

		if (sent < 0 || (sent > 0 && reader->quits)) {
			drop(reader, NULL);
			return false;
		}
		if (!sent || turn == COMMANDS_A_TURN || !run_line(reader)) break;
		if (kv_text_status(&reader->answer) != KV_OK) {
			drop(reader, "its answer does not fit into memory");
			return false;
		}
	}
	if (reader->length == MAX_LINE && !memchr(reader->line, '\n', MAX_LINE)) {
		static const char too_long[] = "ERROR line too long, try help\r\n";

		/* Best effort: it is dropped in any case. */
		if (send(reader->socket, too_long, sizeof too_long - 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
			errno = 0;
		drop(reader, "sent a line that is too long");
		return false;
	}
	return true;
}

/* It has an answer to take, or a line that waits for its turn. */
static bool behind(const struct reader *reader)
{
	return reader->answer.length > 0 || memchr(reader->line, '\n', reader->length) != NULL;
}

static void watch_reader(struct reader *reader)
{
	/* Writability brings us back to the lines that wait. */
	kv_watch_update(
	    reader->watch, (behind(reader) ? KV_LOOP_WRITABLE : KV_LOOP_READABLE) | KV_LOOP_HANGUP);
}

static void on_reader(void *context, struct kv_watch *watch, unsigned events)
{
	struct reader *reader = context;

	(void)watch;
	if ((events & KV_LOOP_READABLE) && reader->length < MAX_LINE) {
		ssize_t n = recv(
		    reader->socket, reader->line + reader->length, MAX_LINE - reader->length, MSG_DONTWAIT);

		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
			drop(reader, NULL);
			return;
		}
		if (n > 0) {
			reader->length += (size_t)n;
			reader->active_ms = kv_now_ms();
		}
	} else if ((events & KV_LOOP_HANGUP) && !(events & KV_LOOP_READABLE)) {
		drop(reader, NULL);
		return;
	}
	if (serve_lines(reader)) watch_reader(reader);
}

/* ---- connections ---- */

/* Whoever holds connections and asks nothing must not keep others out. */
static void make_room(struct kvs_stats_socket *owner)
{
	struct reader *idlest = NULL;
	struct kv_list *node;

	if (owner->reader_count < MAX_READERS) return;
	KV_LIST_EACH(node, &owner->readers)
	{
		struct reader *reader = KV_CONTAINER_OF(node, struct reader, node);

		if (!behind(reader) && (!idlest || reader->active_ms < idlest->active_ms)) idlest = reader;
	}
	if (idlest && kv_now_ms() - idlest->active_ms >= ROOM_MS)
		drop(idlest, "asks nothing, and others wait");
}

static enum kv_status create_reader(struct kvs_stats_socket *owner, int socket)
{
	struct kvs_server *server = owner->server;
	struct reader *reader;
	enum kv_status status;

	make_room(owner);
	if (owner->reader_count >= MAX_READERS)
		return kv_fail(
		    KV_LIMIT, "%d stats readers are connected, that is the limit", (int)MAX_READERS);
	reader = kv_alloc_zero(server->allocator, sizeof *reader);
	if (!reader) return KV_NO_MEMORY;
	reader->owner = owner;
	reader->socket = socket;
	reader->active_ms = kv_now_ms();
	kv_text_init(&reader->answer, server->allocator, MAX_ANSWER);
	status = kv_loop_watch_fd(
	    server->loop, socket, KV_LOOP_READABLE | KV_LOOP_HANGUP, on_reader, reader, &reader->watch);
	if (status != KV_OK) {
		kv_free(server->allocator, reader);
		return status;
	}
	kv_list_push_back(&owner->readers, &reader->node);
	owner->reader_count++;
	return KV_OK;
}

static void on_listener(void *context, struct kv_watch *watch, unsigned events)
{
	struct kvs_stats_socket *owner = context;

	(void)events;
	for (int turn = 0; turn < COMMANDS_A_TURN; turn++) {
		int socket = -1;

		if (kv_unix_accept(owner->listener, &socket) != KV_OK) {
			/* The connection still waits, so that the loop would bring us back at once. */
			kv_warning(KVS_MODULE, "stats socket: %s", kv_error_message());
			owner->listen_again_ms = kv_now_ms() + PAUSE_MS;
			kv_watch_update(watch, 0);
			return;
		}
		if (socket < 0) return;
		if (create_reader(owner, socket) == KV_OK) continue;
		kv_metrics_add(owner->server->metrics, KVS_STATS_DROPPED, 1);
		kv_warning(KVS_MODULE, "stats reader refused: %s", kv_error_message());
		close(socket);
	}
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
	server->stats = created;
	return KV_OK;
}

void kvs_stats_tick(struct kvs_server *server, uint64_t now)
{
	struct kv_list *node;
	struct kv_list *following;

	if (!server->stats) return;
	if (server->stats->listen_again_ms && now >= server->stats->listen_again_ms) {
		server->stats->listen_again_ms = 0;
		kv_watch_update(server->stats->watch, KV_LOOP_READABLE);
	}
	KV_LIST_EACH_SAFE(node, following, &server->stats->readers)
	{
		struct reader *reader = KV_CONTAINER_OF(node, struct reader, node);

		if (now < reader->active_ms) continue;
		/* A socket that has taken much and passed on little is not writable, though a send would
		 * succeed: commands that wait behind it count as an answer that is not read. */
		if (behind(reader) && now - reader->active_ms >= SLOW_MS)
			drop(reader, "does not read its answers");
		else if (now - reader->active_ms >= IDLE_MS)
			drop(reader, NULL);
	}
}

void kvs_stats_stop(struct kvs_server *server)
{
	struct kvs_stats_socket *stats = server->stats;
	struct kv_list *node;

	if (!stats) return;
	while ((node = kv_list_first(&stats->readers)))
		drop(KV_CONTAINER_OF(node, struct reader, node), NULL);
	kv_watch_close(stats->watch);
	kv_unix_unlisten(stats->listener, server->settings->stats_socket);
	kv_free(server->allocator, stats);
	server->stats = NULL;
}
