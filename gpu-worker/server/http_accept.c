/* Taking connections in, and giving up one that waits for its client for one that may not.
 *
 * Room is made rather than refused: whoever holds connections and asks nothing, or asks a byte at a
 * time, loses them to those who come, and the address with the most of them first. So nobody is
 * shut out by idle connections, however many. Only requests that run can fill the table, or what an
 * address may have of it; the places beyond that answer who asks how the worker does, and tell the
 * others to come back. */
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/process.h"
#include "common/transport/unix_socket.h"
#include "gpu-worker/server/http_internal.h"

enum {
	RESERVE = 16,     /* beyond --max-connections */
	EXTRA = 2,        /* of one address beyond --address-connections */
	MOST_AT_ONCE = 64 /* accepted before the daemon reads what the last ones sent */
};

/* Besides connections: the model, the store, logs, regions, sockets that linger, and some spare. */
enum { OTHER_DESCRIPTORS = 192 };

const struct gw_http_error gw_too_many_of_address = {
    429, "rate_limit_error", "too_many_connections"};

enum kv_status gw_connections_check(uint32_t max_connections)
{
	const uint64_t needed = (uint64_t)max_connections + RESERVE + OTHER_DESCRIPTORS;
	char user[64];

	snprintf(user, sizeof user, "max-connections: %" PRIu32 " connections need", max_connections);
	return kv_process_descriptors(needed, user, "--max-connections");
}

/* ---- shares ---- */

static void read_address(int fd, struct gw_share *share)
{
	struct sockaddr_storage peer;
	const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)&peer;
	const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)&peer;
	socklen_t length = sizeof peer;

	memset(share, 0, sizeof *share);
	memset(&peer, 0, sizeof peer);
	if (getpeername(fd, (struct sockaddr *)&peer, &length) != 0) return;
	share->family = peer.ss_family;
	if (peer.ss_family == AF_INET) memcpy(share->address, &four->sin_addr, sizeof four->sin_addr);
	if (peer.ss_family != AF_INET6) return;
	if (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
		share->family = AF_INET;
		memcpy(share->address, &six->sin6_addr.s6_addr[12], 4);
	} else {
		/* A host has all of its /64. */
		memcpy(share->address, &six->sin6_addr, 8);
	}
}

static struct gw_share *take_share(struct gw_http_server *server, int fd)
{
	struct gw_share wanted, *made;
	struct kv_list *node;

	read_address(fd, &wanted);
	KV_LIST_EACH(node, &server->connections.shares)
	{
		struct gw_share *share = KV_CONTAINER_OF(node, struct gw_share, node);

		if (share->family == wanted.family &&
		    memcmp(share->address, wanted.address, sizeof share->address) == 0)
			return share;
	}
	made = kv_alloc(server->options.allocator, sizeof *made);
	if (made == NULL) return NULL;
	*made = wanted;
	kv_list_push_back(&server->connections.shares, &made->node);
	return made;
}

static void drop_share(struct gw_http_server *server, struct gw_share *share)
{
	if (share->holders > 0) return;
	kv_list_remove(&share->node);
	kv_free(server->options.allocator, share);
}

/* ---- room ---- */

/* Which goes first: of the address with the most that wait, one between requests before one amid a
 * head, before one amid a body; of those the one that has waited longest, which is the first that
 * the list has. `share` NULL: of any. */
static struct gw_connection *find_victim(
    struct gw_http_server *server, const struct gw_share *share, bool reserved)
{
	struct gw_connection *found = NULL;
	struct kv_list *node;

	KV_LIST_EACH(node, &server->connections.waiting)
	{
		struct gw_connection *one = KV_CONTAINER_OF(node, struct gw_connection, node);

		if ((share != NULL && one->share != share) || one->reserved != reserved) continue;
		if (found == NULL || one->share->waiting > found->share->waiting ||
		    (one->share->waiting == found->share->waiting && one->phase < found->phase))
			found = one;
	}
	return found;
}

static void give_up(struct gw_http_server *server, struct gw_connection *victim, const char *why)
{
	server->connections.made_room++;
	kv_warning_limited(&server->connections.log, "http",
	    "a connection that waits for its client was closed: %s", why);
	gw_connection_end(victim, NULL, NULL);
}

/* A place for one more; `reserved`: one of those beyond the limit. False when nobody can go. */
static bool make_room(struct gw_http_server *server, bool *reserved)
{
	const uint32_t most = server->options.max_connections;
	struct gw_connection *victim;

	*reserved = false;
	if (server->connections.count < most) return true;
	victim = find_victim(server, NULL, false);
	if (victim != NULL) {
		give_up(server, victim, "all --max-connections are taken, and others come");
		return true;
	}
	*reserved = true;
	if (server->connections.count < most + RESERVE) return true;
	victim = find_victim(server, NULL, true);
	if (victim != NULL) give_up(server, victim, "all --max-connections are taken by requests");
	return victim != NULL;
}

static bool is_full(struct gw_http_server *server)
{
	return server->connections.count >= server->options.max_connections + RESERVE &&
	       kv_list_empty(&server->connections.waiting);
}

/* When an address has all that it may have, its own make room. `extra`: all of them are busy, and
 * it is one that may ask how the worker does. False when there are enough of those. */
static bool fits_share(struct gw_http_server *server, const struct gw_share *share, bool *extra)
{
	const uint32_t most = server->options.address_connections;
	struct gw_connection *victim;

	*extra = false;
	if (most == 0 || share->family == AF_UNIX || share->connections < most) return true;
	victim = find_victim(server, share, false);
	if (victim == NULL) victim = find_victim(server, share, true);
	if (victim != NULL) give_up(server, victim, "its address has --address-connections others");
	*extra = share->connections >= most;
	return share->connections < most + EXTRA;
}

/* ---- accepting ---- */

static void pause_listening(struct gw_http_server *server)
{
	server->connections.paused = true;
	kv_watch_update(server->connections.listener, 0);
}

static struct gw_connection *create(
    struct gw_http_server *server, int fd, struct gw_share *share, bool reserved)
{
	struct gw_connection *made = kv_alloc_zero(server->options.allocator, sizeof *made);

	if (made == NULL) return NULL;
	made->server = server;
	made->share = share;
	made->fd = fd;
	made->reserved = reserved;
	made->phase = GW_PHASE_HEAD;
	made->since_ms = kv_loop_now_ms(server->options.loop);
	share->holders++;
	share->connections++;
	share->waiting++;
	kv_list_push_back(&server->connections.waiting, &made->node);
	server->connections.count++;
	return made;
}

static void destroy(struct gw_connection *connection)
{
	struct gw_http_server *server = connection->server;

	/* What is counted is no longer. */
	gw_connection_phase(connection, GW_PHASE_ENDING);
	kv_list_remove(&connection->node);
	connection->share->holders--;
	drop_share(server, connection->share);
	kv_free(server->options.allocator, connection);
}

static void refuse(struct gw_http_server *server, int fd)
{
	gw_connection_tell(server, fd, &gw_too_many_of_address, GW_TOO_MANY_OF_ADDRESS);
	close(fd);
}

static void hand_over(struct gw_http_server *server, struct gw_connection *connection)
{
	struct sockaddr_storage peer;
	socklen_t length = sizeof peer;

	memset(&peer, 0, sizeof peer);
	if (getpeername(connection->fd, (struct sockaddr *)&peer, &length) != 0)
		length = sizeof(sa_family_t);
	server->connections.arriving = connection;
	if (MHD_add_connection(server->daemon, connection->fd, (struct sockaddr *)&peer, length) ==
	    MHD_YES)
		return;
	/* The daemon has closed the socket, and forgotten what it has told of. */
	if (server->connections.arriving != NULL) destroy(connection);
	server->connections.arriving = NULL;
}

static void take(struct gw_http_server *server, int fd)
{
	struct gw_share *share = take_share(server, fd);
	struct gw_connection *made = NULL;
	bool reserved = false, extra = false;
	bool fits = share != NULL && fits_share(server, share, &extra);

	if (fits && make_room(server, &reserved)) made = create(server, fd, share, reserved);
	if (made != NULL) {
		made->extra = extra;
		hand_over(server, made);
		return;
	}
	if (share != NULL) drop_share(server, share);
	if (fits || share == NULL)
		close(fd);
	else
		refuse(server, fd);
}

/* The connection still waits, so that the loop would bring us back at once. */
static void wait_for_descriptors(struct gw_http_server *server)
{
	struct gw_connection *victim = find_victim(server, NULL, false);

	kv_warning_limited(&server->connections.accept_log, "http", "%s", kv_error_message());
	if (victim != NULL) give_up(server, victim, "the process has no descriptor for another");
	pause_listening(server);
}

static void on_listener(void *context, struct kv_watch *watch, unsigned events)
{
	struct gw_http_server *server = context;
	/* Those who came last have their turn with the daemon before they make room for others. */
	const uint32_t quarter = server->options.max_connections / 4;

	(void)watch;
	(void)events;
	server->kick = true;
	for (uint32_t i = 0; i < MOST_AT_ONCE && i <= quarter; i++) {
		int fd = -1;

		if (is_full(server)) {
			pause_listening(server);
			return;
		}
		if (kv_unix_accept(server->listen_fd, &fd) != KV_OK) {
			wait_for_descriptors(server);
			return;
		}
		if (fd < 0) return;
		take(server, fd);
	}
}

enum kv_status gw_connections_listen(struct gw_http_server *server)
{
	return kv_loop_watch_fd(server->options.loop, server->listen_fd, KV_LOOP_READABLE, on_listener,
	    server, &server->connections.listener);
}

void gw_connections_listen_again(struct gw_http_server *server)
{
	if (!server->connections.paused) return;
	server->connections.paused = false;
	kv_watch_update(server->connections.listener, KV_LOOP_READABLE);
}

/* ---- for the daemon ---- */

struct gw_connection *gw_connection_of(struct MHD_Connection *daemon_side)
{
	const union MHD_ConnectionInfo *info =
	    MHD_get_connection_info(daemon_side, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

	return info != NULL ? info->socket_context : NULL;
}

void gw_connection_notify(void *context, struct MHD_Connection *daemon_side, void **slot,
    enum MHD_ConnectionNotificationCode code)
{
	struct gw_http_server *server = context;
	struct gw_connection *connection = *slot;

	if (code == MHD_CONNECTION_NOTIFY_STARTED) {
		connection = server->connections.arriving;
		server->connections.arriving = NULL;
		connection->daemon_side = daemon_side;
		*slot = connection;
		return;
	}
	if (connection == NULL) return;
	*slot = NULL;
	if (connection->unread) gw_connection_linger(connection);
	destroy(connection);
	gw_connections_listen_again(server);
}
