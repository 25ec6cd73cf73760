/* Who is connected: how long a connection may wait for its client, who makes room for whom, and
 * what is told to those that are ended. The daemon (libmicrohttpd) reads and writes; it gets its
 * sockets from here, and a connection is ended from outside by shutting its socket down.
 *
 *     idle ⇄ head → body → answer        any of them → ending
 *
 * Idle, head and body wait for the client: such a connection has a deadline that no byte renews,
 * and is given up when another one needs its place. One whose request runs is never ended for
 * another.
 * Private to this folder; all belongs to the loop's thread. */
#ifndef GW_SERVER_HTTP_CONNECTIONS_H
#define GW_SERVER_HTTP_CONNECTIONS_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/log.h"
#include "common/collect/list.h"
#include "gpu-worker/server/http_completion.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_exchange;
struct gw_http_server;
struct kv_timer;
struct kv_watch;

enum gw_phase {
	GW_PHASE_IDLE, /* an answer was taken, no next request has begun */
	GW_PHASE_HEAD,
	GW_PHASE_BODY,
	GW_PHASE_ANSWER, /* its request runs, or its answer is on its way */
	GW_PHASE_ENDING  /* the daemon will find it closed */
};

/* All connections from one address: IPv6 by its /64, all of Unix sockets together. */
struct gw_share {
	struct kv_list node;
	uint8_t address[16];
	int family;
	uint32_t holders;
	uint32_t connections, waiting; /* not ended; of them idle, or with half a request */
};

struct gw_connection {
	struct kv_list node; /* in one of the server's lists: longest in its phase, furthest ahead */
	struct gw_http_server *server;
	struct MHD_Connection *daemon_side;
	struct gw_exchange *exchange; /* its request, once the head is there and no longer than that */
	struct gw_share *share;
	int fd; /* the daemon's */
	enum gw_phase phase;
	uint64_t since_ms; /* of the phase */
	uint64_t told_ms;  /* since when the whole answer waits to be taken; 0: it does not */
	uint64_t moved;    /* bytes of the body that came, or of the answer that went since then */
	bool reserved;     /* beyond --max-connections: only for who asks how the worker does */
	bool extra;        /* the same beyond --address-connections */
	bool bad_url;      /* its request's path cannot be meant */
	/* The URL as it came, in the daemon's memory: it ends at a NUL, or where the line says. */
	const char *url, *url_end;
	bool unread; /* was answered before it had sent all */
};

/* A socket that the daemon is done with while the client may still be sending: what comes is thrown
 * away for a while, as closing would make the kernel take the answer back. */
struct gw_linger {
	struct kv_list node;
	struct gw_http_server *server;
	struct kv_watch *watch;
	int fd;
	uint64_t until_ms;
};

struct gw_connections {
	struct kv_list waiting, busy, ending; /* idle, head and body; answer; ending */
	struct kv_list shares, lingers;
	uint32_t count, lingering;      /* not ended */
	struct gw_connection *arriving; /* is being handed to the daemon */
	struct kv_watch *listener;
	struct kv_timer *timer;
	bool paused; /* nothing is accepted until the timer */
	struct kv_log_limit log, unread_log, accept_log;
	uint64_t made_room, too_slow; /* ended since the start */
	uint64_t body_bytes;          /* of bodies that are being received or wait to be parsed */
};

/* http_accept.c */

/* What is told to who has --address-connections others. */
extern const struct gw_http_error gw_too_many_of_address;
#define GW_TOO_MANY_OF_ADDRESS                                                                     \
	"this address has as many connections as it may have (--address-connections)"

/* Room for them all: KV_USAGE when the process may not have as many descriptors. */
enum kv_status gw_connections_check(uint32_t max_connections);
enum kv_status gw_connections_listen(struct gw_http_server *server);
void gw_connections_listen_again(struct gw_http_server *server);
struct gw_connection *gw_connection_of(struct MHD_Connection *daemon_side);
/* The daemon's MHD_NotifyConnectionCallback. */
void gw_connection_notify(void *context, struct MHD_Connection *daemon_side, void **slot,
    enum MHD_ConnectionNotificationCode code);

/* http_connections.c */

void gw_connections_init(struct gw_http_server *server);
enum kv_status gw_connections_open(struct gw_http_server *server);
/* Accept nothing more; before the daemon stops, which ends what is left. */
void gw_connections_close(struct gw_http_server *server);

/* The daemon's callback for a request's first line: NULL, as nothing is kept. */
void *gw_connection_url(void *context, const char *url, struct MHD_Connection *daemon_side);
void gw_connection_phase(struct gw_connection *connection, enum gw_phase phase);
/* More of a body came. Where all bodies together are too many the largest goes for it; false when
 * it is this one, which has been told. */
bool gw_connection_body(struct gw_connection *connection, size_t bytes);
/* End it now; `error` NULL: without a word. The client is told past the daemon, which must not have
 * begun to answer. Not from the daemon's callbacks. */
void gw_connection_end(
    struct gw_connection *connection, const struct gw_http_error *error, const char *message);
/* A whole answer, to a socket that is closed then: as much of it as the socket takes. */
void gw_connection_tell(
    struct gw_http_server *server, int fd, const struct gw_http_error *error, const char *message);
/* The daemon closes it: keep a copy of its socket for what the client still sends. */
void gw_connection_linger(struct gw_connection *connection);

#ifdef __cplusplus
}
#endif
#endif
