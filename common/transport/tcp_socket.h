/* TCP stream sockets: addresses, listen, accept, connect.
 *
 * All descriptors are close-on-exec and non-blocking, do not wait to fill packets, and give up a
 * peer that has been silent, or has acknowledged nothing, for the time they are given.
 */
#ifndef KV_COMMON_TRANSPORT_TCP_SOCKET_H
#define KV_COMMON_TRANSPORT_TCP_SOCKET_H

#include <stdint.h>

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KV_TCP_TEXT = 80, KV_TCP_BACKLOG = 64, KV_TCP_HOST = 256 };

/* HOST:PORT, where HOST is a name, an IPv4 address or an IPv6 address in brackets, and PORT a
 * number up to 65535 (0 only to listen, where the system then chooses). KV_INVALID. Nobody is
 * asked. */
enum kv_status kv_tcp_address_check(const char *address, int port_zero);
/* The same where HOST has to be an address. KV_INVALID, KV_USAGE. */
enum kv_status kv_tcp_numeric_check(const char *address, int port_zero);

/* Listen at the first of the host's addresses that is one of this machine; `where` (KV_TCP_TEXT
 * bytes) is filled with what it became. KV_USAGE: no such host; KV_EXISTS: the address is in use;
 * KV_IO. */
enum kv_status kv_tcp_listen(const char *address, int backlog, int *socket, char *where);

/* Whether kv_tcp_listen can have that address, which may be in use by somebody else. KV_USAGE: no
 * such host; KV_IO: not this machine's address, or not for this user. */
enum kv_status kv_tcp_listen_check(const char *address);

/* Take one connection. *socket becomes -1 when none is waiting. `from` (KV_TCP_TEXT bytes) says
 * whence. KV_LIMIT: out of descriptors: stop polling for a while. */
enum kv_status kv_tcp_accept(int listener, uint32_t silence_ms, int *socket, char *from);

/* The host's addresses, with the port. A name is looked up by the system's resolver, and that takes
 * as long as it does. Free them. KV_DISCONNECTED; KV_INVALID. */
struct addrinfo;
enum kv_status kv_tcp_look_up(const char *address, struct addrinfo **found, uint32_t *count);
void kv_tcp_forget(struct addrinfo *found);

/* Begin to connect to one of them. Poll for writability, then kv_tcp_connected. KV_DISCONNECTED,
 * with `address` as it was given; KV_LIMIT: out of descriptors. */
enum kv_status kv_tcp_connect(const char *address, const struct addrinfo *found, uint32_t which,
    uint32_t silence_ms, int *socket);
/* What came of it: KV_OK or KV_DISCONNECTED. */
enum kv_status kv_tcp_connected(int socket, const char *address);

#ifdef __cplusplus
}
#endif
#endif
