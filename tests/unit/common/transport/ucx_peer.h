/* A store process for the tests of the UCX transport: this test's own program, started anew.
 *
 * A process that has used UCX must not fork without exec, so the peer is always executed.
 */
#ifndef KV_TESTS_UCX_PEER_H
#define KV_TESTS_UCX_PEER_H

#include <stdint.h>
#include <sys/types.h>

#include "common/transport/transport.h"

struct ucx_peer {
	pid_t pid;
	int control; /* a socket to it */
	struct kv_transport_blob address, region;
	uint64_t bytes;
};

/* What a peer is asked to do; it answers with one uint64_t. */
enum ucx_peer_verb {
	PEER_CHECK, /* how many bytes of [offset, offset + bytes) differ from seed's pattern */
	PEER_FILL,  /* fill the range with seed's pattern; 0 */
	PEER_DROP,  /* destroy the region; 0 */
	PEER_QUIT   /* tear down in order and exit with 0 */
};

struct ucx_peer_command {
	uint32_t verb, seed;
	uint64_t offset, bytes;
};

/* The byte at `offset` of the pattern `seed`. */
uint8_t ucx_pattern(uint32_t seed, uint64_t offset);

/* Start a store with one region of `bytes`, filled with pattern 1. Exits the test on failure. */
void ucx_peer_start(struct ucx_peer *peer, uint64_t bytes);
uint64_t ucx_peer_ask(
    struct ucx_peer *peer, enum ucx_peer_verb verb, uint32_t seed, uint64_t offset, uint64_t bytes);
/* Ask it to quit (or kill it) and collect it; returns its wait status. */
int ucx_peer_stop(struct ucx_peer *peer);
int ucx_peer_kill(struct ucx_peer *peer);

/* Run this program as a client in a process of its own: attach, then `mode`: "read" exits with 0
 * when the pattern is right; "refused" with 0 when it may not connect or attach, as user 65534;
 * "die"
 * attaches, reads and is killed; "die-get" is killed with a get under way. Returns the wait status.
 */
int ucx_client_run(const struct ucx_peer *peer, const char *mode);

/* First thing in main: takes over, and does not return, when this process is such a peer. */
void ucx_peer_main(int count, char **arguments);

#endif
