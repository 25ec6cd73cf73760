/* A peer that speaks the store's protocol by hand, for tests that mean it harm. */
#ifndef TESTS_FAULT_HOSTILE_PEER_H
#define TESTS_FAULT_HOSTILE_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/codec.h"
#include "tests/lib/store_fixture.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { HOSTILE_DESCRIPTORS = 64, HOSTILE_STAGING = 1 << 20 };

struct hostile_peer {
	int socket;
	struct kv_frame_reader *reader;
	struct kv_frame_writer *writer;
	uint64_t id; /* of the last request */
	int staging;
	uint8_t *memory; /* its staging memory */
	/* Everything that the store passed: the control page first, then regions. */
	int descriptors[HOSTILE_DESCRIPTORS];
	uint64_t bytes[HOSTILE_DESCRIPTORS]; /* 0: the control page */
	uint32_t descriptor_count;
};

/* False after printing why. */
bool hostile_connect(struct hostile_peer *peer, const char *path);
void hostile_close(struct hostile_peer *peer);

/* Send a request's bytes and do not read. False when the socket takes no more or is closed. */
bool hostile_write(struct hostile_peer *peer, const uint8_t *bytes, size_t length, int descriptor);
/* Take one answer, which the caller frees; NULL when none has come. KV_DISCONNECTED when the
 * connection ended, another error when the answer is none. */
enum kv_status hostile_read(struct hostile_peer *peer, Kv__Response **response);

/* Send a request and wait for its answer, which the caller frees (kv_codec_response_free with
 * kv_heap). NULL when the connection ended. */
Kv__Response *hostile_call(struct hostile_peer *peer, Kv__Request *request, int descriptor);
/* Send and do not read. False when the socket takes no more or is closed. */
bool hostile_send(struct hostile_peer *peer, Kv__Request *request, int descriptor);

/* The greeting of a worker of the tests' model with HOSTILE_STAGING bytes of staging memory. The
 * request points to it. */
struct hostile_greeting {
	Kv__HelloRequest hello;
	Kv__ModelLayout layout;
	struct kvw_model_layout model_layout; /* `layout` points to its digest */
	uint8_t model[32];
};
void hostile_greet(struct hostile_greeting *greeting, Kv__Request *request);

/* Greet as a worker of the tests' model, with this staging memory (-1: its own). The status. */
uint32_t hostile_hello(struct hostile_peer *peer, int staging, uint64_t staging_bytes);
/* Open a sequence with the tests' prompt of this seed; 0 when it was refused, *status says why. */
uint64_t hostile_open(struct hostile_peer *peer, int32_t seed, uint32_t *status);
/* Reserve its first cut. The segment, 0 when it was refused. */
uint64_t hostile_reserve(struct hostile_peer *peer, uint64_t sequence);
/* Put `bytes` from the staging memory. The status. */
uint32_t hostile_put(struct hostile_peer *peer, uint64_t segment, uint64_t bytes);

/* Whether this process can be other users; prints that the test is skipped if not. */
bool hostile_may_run(void);
/* Start a store whose socket other users reach; who comes in is its list's business. */
bool hostile_store_start(struct store_fixture *fixture, const char *const *arguments);
/* Become another user, in a child process; ends it with 100 when that fails. */
void hostile_become(uid_t user);
/* Run `attack` in a child process as another user. The number of breaches that it returns (and has
 * printed), -1 when it did not end by itself within `wait_ms`. */
int hostile_run(uid_t user, int (*attack)(void *context), void *context, unsigned wait_ms);

#ifdef __cplusplus
}
#endif
#endif
