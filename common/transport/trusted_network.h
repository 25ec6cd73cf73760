/* A network between hosts that its owner declares trusted, and this host's interface to it.
 *
 * What goes over it is neither encrypted nor authenticated, so it is never guessed: somebody names
 * it, as an interface (eth1), as an address with its network (10.0.0.0/24, or 10.0.0.1 alone), or
 * as an RDMA device and its port (mlx5_0:1).
 */
#ifndef KV_COMMON_TRANSPORT_TRUSTED_NETWORK_H
#define KV_COMMON_TRANSPORT_TRUSTED_NETWORK_H

#include <stdbool.h>

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kv_trusted_network {
	char device[48];  /* as UCX names it */
	char address[16]; /* the interface's first IPv4 address, which UCX binds to; "": RDMA */
	bool rdma;
};

/* Is it well formed? "" is none. KV_INVALID. Nothing is looked at. */
enum kv_status kv_trusted_network_check(const char *text);

/* Find the interface on this host. KV_INVALID when there is none, it is down, or has no address of
 * that network at its first place. */
enum kv_status kv_trusted_network_find(const char *text, struct kv_trusted_network *network);

#ifdef __cplusplus
}
#endif
#endif
