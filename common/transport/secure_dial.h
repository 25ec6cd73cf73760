/* Connect to a store on another host: TCP, then the handshake, with one deadline for all of it. */
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
	uint64_t deadline_ms; /* as kv_now_ms */
	uint32_t silence_ms;  /* tcp_socket.h */
	uint32_t attempt;     /* which of a name's addresses comes first */
	/* Asked ten times a second; true gives up. NULL: never. */
	bool (*cancelled)(void *context);
	void *context;
};

/* Both are the caller's then. Errors: those of kv_tcp_connect and kv_secure_handshake, with the
 * address; KV_DISCONNECTED also after the deadline; KV_CANCELLED. */
enum kv_status kv_secure_dial(
    const struct kv_secure_dial *dial, int *socket, struct kv_secure **secure);

#ifdef __cplusplus
}
#endif
#endif
