/* Phases and deadlines of connections, and how they end before their time. */
#define _GNU_SOURCE /* POLLRDHUP, F_DUPFD_CLOEXEC */
#include "gpu-worker/server/http_connections.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpu-worker/server/http_internal.h"

enum {
	TICK_MS = 250,
	MAX_URL = 4096,
	MOST_LINGER = 32,
	LINGER_MS = 5000,
	LINGER_READ = 64 << 10,
	LINGER_READS = 16 /* in one turn of the loop */
};

#define LEAST_BODIES (UINT64_C(64) << 20)  /* bytes of all bodies, or four of the largest */
#define MOST_UNREAD  (UINT64_C(256) << 20) /* bytes of all answers that wait to be read */

/* ---- phases ---- */

static bool waits(enum gw_phase phase)
{
	return phase < GW_PHASE_ANSWER;
}

void gw_connection_phase(struct gw_connection *connection, enum gw_phase phase)
{
	struct gw_connections *all = &connection->server->connections;
	struct gw_share *share = connection->share;

	if (connection->phase == GW_PHASE_ENDING || connection->phase == phase) return;
	share->waiting += (uint32_t)waits(phase);
	share->waiting -= (uint32_t)waits(connection->phase);
	if (phase == GW_PHASE_ENDING) {
		share->connections--;
		all->count--;
	}
	connection->phase = phase;
	connection->since_ms = kv_loop_now_ms(connection->server->options.loop);
	connection->told_ms = 0;
	connection->moved = 0;
	kv_list_remove(&connection->node);
	kv_list_push_back(waits(phase)               ? &all->waiting
	                  : phase == GW_PHASE_ANSWER ? &all->busy
	                                             : &all->ending,
	    &connection->node);
}

/* A path with a NUL would be another one behind it, and what is too long is nobody's. */
static bool is_bad_url(const char *url)
{
	size_t length = strlen(url);

	for (size_t i = 0; i < length; i++) {
		unsigned char c = (unsigned char)url[i];

		if (c <= ' ' || c == 0x7f || strncmp(url + i, "%00", 3) == 0) return true;
	}
	return length > MAX_URL;
}

void *gw_connection_url(void *context, const char *url, struct MHD_Connection *daemon_side)
{
	struct gw_connection *connection = gw_connection_of(daemon_side);

	(void)context;
	if (connection == NULL) return NULL;
	/* A first request's head has been waited for since the connection came. */
	if (connection->phase == GW_PHASE_IDLE) gw_connection_phase(connection, GW_PHASE_HEAD);
	connection->bad_url = url == NULL || is_bad_url(url);
	connection->url = url;
	connection->url_end = url == NULL ? NULL : url + strlen(url);
	return NULL;
}

/* ---- ends ---- */

static const char *reason(unsigned code)
{
	switch (code) {
	case 408:
		return "Request Timeout";
	case 413:
		return "Content Too Large";
	case 429:
		return "Too Many Requests";
	default:
		return "Service Unavailable";
	}
}

void gw_connection_tell(
    struct gw_http_server *server, int fd, const struct gw_http_error *error, const char *message)
{
	struct kv_text_buffer body, whole;
	char id[KV_REQUEST_ID_BYTES];

	kv_request_id_make("req", id);
	gw_http_log_refusal(server, id, error->code, message);
	kv_text_init(&body, server->options.allocator, 4096);
	kv_text_init(&whole, server->options.allocator, 8192);
	gw_error_body(&body, error, message, "", 0);
	kv_text_printf(&whole,
	    "HTTP/1.1 %u %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
	    "Connection: close\r\nX-Request-Id: %s\r\n%s\r\n",
	    error->code, reason(error->code), body.length, id,
	    error->code == 429 || error->code == 503 ? "Retry-After: 1\r\n" : "");
	kv_text_append(&whole, kv_text(&body), body.length);
	if (kv_text_status(&body) == KV_OK && kv_text_status(&whole) == KV_OK &&
	    send(fd, kv_text(&whole), whole.length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		errno = 0;
	kv_text_deinit(&body);
	kv_text_deinit(&whole);
}

void gw_connection_end(
    struct gw_connection *connection, const struct gw_http_error *error, const char *message)
{
	struct gw_http_server *server = connection->server;

	if (connection->phase == GW_PHASE_ENDING) return;
	if (error != NULL) gw_connection_tell(server, connection->fd, error, message);
	gw_connection_phase(connection, GW_PHASE_ENDING);
	if (connection->exchange != NULL) gw_exchange_give_up(connection->exchange);
	/* The daemon sees that both directions are closed, whatever it is doing with the connection. */
	shutdown(connection->fd, SHUT_RDWR);
	server->kick = true;
}

static void stop_lingering(struct gw_linger *linger)
{
	kv_list_remove(&linger->node);
	linger->server->connections.lingering--;
	kv_watch_close(linger->watch);
	close(linger->fd);
	kv_free(linger->server->options.allocator, linger);
}

static void on_linger(void *context, struct kv_watch *watch, unsigned events)
{
	static char discarded[LINGER_READ];
	struct gw_linger *linger = context;

	(void)watch;
	(void)events;
	for (int i = 0; i < LINGER_READS; i++) {
		ssize_t got = recv(linger->fd, discarded, sizeof discarded, MSG_DONTWAIT);

		if (got > 0) continue;
		if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
		stop_lingering(linger);
		return;
	}
}

void gw_connection_linger(struct gw_connection *connection)
{
	struct gw_http_server *server = connection->server;
	struct gw_linger *made;
	int fd;

	if (connection->phase == GW_PHASE_ENDING || server->connections.listener == NULL ||
	    server->connections.lingering >= MOST_LINGER)
		return;
	fd = fcntl(connection->fd, F_DUPFD_CLOEXEC, 0);
	made = fd >= 0 ? kv_alloc_zero(server->options.allocator, sizeof *made) : NULL;
	if (made != NULL) {
		made->server = server;
		made->fd = fd;
		made->until_ms = kv_loop_now_ms(server->options.loop) + LINGER_MS;
		if (kv_loop_watch_fd(server->options.loop, fd, KV_LOOP_READABLE, on_linger, made,
		        &made->watch) == KV_OK) {
			kv_list_push_back(&server->connections.lingers, &made->node);
			server->connections.lingering++;
			return;
		}
	}
	kv_free(server->options.allocator, made);
	if (fd >= 0) close(fd);
}

/* ---- deadlines ---- */

/* What a client has to do has so long: a fixed time, and beyond that what it moves at the least. */
static bool overdue(
    const struct gw_http_options *options, uint64_t since_ms, uint64_t moved, uint64_t now)
{
	uint64_t allowed = options->client_ms;

	if (options->client_rate > 0) allowed += moved * 1000 / options->client_rate;
	return now > since_ms && now - since_ms > allowed;
}

static void too_slow(struct gw_connection *connection, const char *what)
{
	const struct gw_http_error error = {408, "invalid_request_error", "request_timeout"};
	struct gw_http_server *server = connection->server;

	server->connections.too_slow++;
	gw_connection_end(connection, &error, what);
}

/* A client that ended its half, of which the daemon may hear nothing when it came with the last
 * bytes: nothing comes any more. */
static bool has_left(const struct gw_connection *connection)
{
	struct pollfd one = {.fd = connection->fd, .events = POLLRDHUP};
	int unread = 0;

	if (poll(&one, 1, 0) != 1 || (one.revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0) return false;
	return ioctl(connection->fd, FIONREAD, &unread) != 0 || unread == 0;
}

static void look_at_waiting(struct gw_connection *connection, uint64_t now)
{
	const struct gw_http_options *options = &connection->server->options;

	if (has_left(connection)) {
		gw_connection_end(connection, NULL, NULL);
		return;
	}
	switch (connection->phase) {
	case GW_PHASE_IDLE:
		if (now - connection->since_ms > options->idle_ms)
			gw_connection_end(connection, NULL, NULL);
		break;
	case GW_PHASE_HEAD:
		if (overdue(options, connection->since_ms, 0, now))
			too_slow(connection, "the request's head did not come in time (--client-timeout)");
		break;
	case GW_PHASE_BODY:
		if (overdue(options, connection->since_ms, connection->moved, now))
			too_slow(connection,
			    "the request's body did not come in time (--client-timeout, --client-rate)");
		break;
	case GW_PHASE_ANSWER:
	case GW_PHASE_ENDING:
		break;
	}
}

static void stop_writing(struct gw_connection *connection, const char *why)
{
	struct gw_http_server *server = connection->server;
	const struct linger now = {.l_onoff = 1};

	server->connections.too_slow++;
	/* What the system still holds for it goes, too. */
	setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
	kv_warning_limited(&server->connections.unread_log, "http",
	    "a client does not read its answer (%zu bytes wait): %s",
	    gw_exchange_unread(connection->exchange), why);
	gw_connection_end(connection, NULL, NULL);
}

static void look_at_answer(struct gw_connection *connection, uint64_t now)
{
	const struct gw_http_options *options = &connection->server->options;
	const struct gw_exchange *exchange = connection->exchange;

	if (connection->told_ms == 0 && (exchange == NULL || exchange->complete)) {
		connection->told_ms = now;
		connection->moved = 0;
	}
	if (connection->told_ms > 0 && overdue(options, connection->told_ms, connection->moved, now))
		stop_writing(connection, "--client-timeout and --client-rate are over");
	else if (exchange != NULL && exchange->streaming &&
	         gw_exchange_unread(exchange) > options->stream_backlog)
		stop_writing(connection, "more than --stream-backlog of its stream waits");
}

/* All answers together have a bound; who has most of what waits goes first. */
static void bound_unread(struct gw_http_server *server)
{
	for (;;) {
		struct gw_connection *largest = NULL;
		struct kv_list *node;
		uint64_t all = 0;

		KV_LIST_EACH(node, &server->connections.busy)
		{
			struct gw_connection *one = KV_CONTAINER_OF(node, struct gw_connection, node);

			all += gw_exchange_unread(one->exchange);
			if (largest == NULL ||
			    gw_exchange_unread(one->exchange) > gw_exchange_unread(largest->exchange))
				largest = one;
		}
		if (all <= MOST_UNREAD) return;
		stop_writing(largest, "all answers together wait with more than 256 MiB");
	}
}

static void on_tick(void *context)
{
	struct gw_http_server *server = context;
	const uint64_t now = kv_loop_now_ms(server->options.loop);
	struct kv_list *node, *next;

	gw_connections_listen_again(server);
	KV_LIST_EACH_SAFE(node, next, &server->connections.waiting)
	look_at_waiting(KV_CONTAINER_OF(node, struct gw_connection, node), now);
	KV_LIST_EACH_SAFE(node, next, &server->connections.busy)
	look_at_answer(KV_CONTAINER_OF(node, struct gw_connection, node), now);
	bound_unread(server);
	KV_LIST_EACH_SAFE(node, next, &server->connections.lingers)
	{
		struct gw_linger *linger = KV_CONTAINER_OF(node, struct gw_linger, node);

		if (now >= linger->until_ms) stop_lingering(linger);
	}
}

/* ---- bodies ---- */

static const struct gw_http_error too_many_bodies = {503, "server_error", "too_many_bodies"};
static const char TOO_MANY_BODIES[] =
    "requests of all clients together are more than this worker holds; try again";

/* Who holds most of what is being received: of the address with the most that wait. */
static struct gw_connection *largest_body(
    struct gw_http_server *server, const struct gw_connection *but)
{
	struct gw_connection *found = NULL;
	struct kv_list *node;

	KV_LIST_EACH(node, &server->connections.waiting)
	{
		struct gw_connection *one = KV_CONTAINER_OF(node, struct gw_connection, node);

		if (one == but || one->phase != GW_PHASE_BODY || one->moved == 0) continue;
		if (found == NULL || one->share->waiting > found->share->waiting ||
		    (one->share->waiting == found->share->waiting && one->moved > found->moved))
			found = one;
	}
	return found;
}

bool gw_connection_body(struct gw_connection *connection, size_t bytes)
{
	struct gw_http_server *server = connection->server;
	uint64_t most = 4 * server->options.max_body;

	if (most < LEAST_BODIES) most = LEAST_BODIES;
	while (server->connections.body_bytes + bytes > most) {
		struct gw_connection *victim = largest_body(server, connection);

		if (victim == NULL) {
			gw_connection_tell(server, connection->fd, &too_many_bodies, TOO_MANY_BODIES);
			return false;
		}
		server->connections.made_room++;
		kv_warning_limited(&server->connections.log, "http",
		    "a request was given up before its body was whole: the bodies of all together have "
		    "%" PRIu64 " bytes",
		    server->connections.body_bytes);
		gw_connection_end(victim, &too_many_bodies, TOO_MANY_BODIES);
	}
	server->connections.body_bytes += bytes;
	connection->moved += bytes;
	return true;
}

/* ---- all of them ---- */

void gw_connections_init(struct gw_http_server *server)
{
	struct gw_connections *all = &server->connections;

	kv_list_init(&all->waiting);
	kv_list_init(&all->busy);
	kv_list_init(&all->ending);
	kv_list_init(&all->shares);
	kv_list_init(&all->lingers);
}

enum kv_status gw_connections_open(struct gw_http_server *server)
{
	struct gw_connections *all = &server->connections;

	KV_TRY(kv_loop_timer(server->options.loop, TICK_MS, TICK_MS, on_tick, server, &all->timer));
	return gw_connections_listen(server);
}

void gw_connections_close(struct gw_http_server *server)
{
	struct kv_list *node, *next;

	kv_watch_close(server->connections.listener);
	server->connections.listener = NULL;
	kv_timer_close(server->connections.timer);
	KV_LIST_EACH_SAFE(node, next, &server->connections.lingers)
	stop_lingering(KV_CONTAINER_OF(node, struct gw_linger, node));
}
