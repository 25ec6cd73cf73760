/* Connect to a store on another host: TCP, to one of its name's addresses after the other until one
 * takes the connection, then the handshake, with one deadline for all of it. Its time begins after
 * the name's look-up: that is the system resolver's, and takes as long as it does. It cannot be
 * interrupted: where it may be given up it runs in a thread of its own, which is left behind. */
#ifndef KV_COMMON_TRANSPORT_SECURE_DIAL_H
#define KV_COMMON_TRANSPORT_SECURE_DIAL_H

#include "common/transport/secure_channel.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kv_secure_dial {
	struct kv_allocator *allocator;
	const char *address; /* HOST:PORT */
	const uint8_t *secret;
	uint32_t timeout_ms;
	uint32_t silence_ms; /* tcp_socket.h */
	uint32_t attempt;    /* which of a name's addresses comes first */
	/* Asked ten times a second; true gives up. NULL: never. */
	bool (*cancelled)(void *context);
	/* The name is looked up; this is the deadline (kv_now_ms). NULL: nobody asks. */
	void (*found)(void *context, uint64_t deadline_ms);
	void *context;
};

/* Both are the caller's then. Errors: those of kv_tcp_look_up, kv_tcp_connect and
 * kv_secure_handshake, with the address; KV_DISCONNECTED also after the deadline; KV_CANCELLED. */
enum kv_status kv_secure_dial(
    const struct kv_secure_dial *dial, int *socket, struct kv_secure **secure);

#ifdef __cplusplus
}
#endif
#endif
