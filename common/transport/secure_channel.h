/* An authenticated, encrypted byte stream over a connected socket, for two that share a secret.
 *
 * The handshake is that of Noise's pattern NNpsk0 in the clothes of libsodium: X25519 between keys
 * made for this connection, and a secret of 32 random bytes that keys everything derived from it.
 *
 *     worker → store   hello   magic, version, ephemeral key, nonce                    72 bytes
 *     store → worker   answer  the same of the store; stream header, proof            128 bytes
 *     worker → store   finish  stream header, proof                                    56 bytes
 *
 *     master = BLAKE2b-512(key = secret,  "…keys" | X25519 | hello | first 72 bytes of answer)
 *     proof  = BLAKE2b-256(key = master,  "…store proof" or "…worker proof" | stream header)
 *     key    = BLAKE2b-256(key = master,  "…to worker" or "…to store")
 *
 * Everything sent is part of what is proven, the version too. The store proves itself first, so a
 * worker with another secret finds out and says so. A recorded handshake does not fit a later one:
 * both sides put fresh random bytes into it. An eavesdropper who learns the secret later reads
 * nothing that was sent before. Who knows only that a store listens can try secrets offline against
 * its proof: that is why a secret is 32 random bytes and no password.
 *
 * After it, records: a length (4 bytes, little endian), then a message of libsodium's
 * crypto_secretstream_xchacha20poly1305, whose counter refuses what is left out, repeated or
 * reordered, and which changes its key by itself. An empty record with the tag FINAL ends the
 * stream; a connection that ends without it was cut.
 *
 * Non-blocking, as frame.h: the caller polls, and deadlines are the caller's. Reading and writing
 * share nothing: two threads may do one each.
 */
#ifndef KV_COMMON_TRANSPORT_SECURE_CHANNEL_H
#define KV_COMMON_TRANSPORT_SECURE_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
	KV_SECRET_BYTES = 32,
	KV_SECURE_VERSION = 1,
	KV_SECURE_HELLO_BYTES = 72,
	KV_SECURE_FINISH_BYTES = 56,
	KV_SECURE_RECORD_BYTES = 64 << 10, /* of a record's content, at most */
	KV_SECURE_RECORD_OVERHEAD = 4 + 17
};

struct kv_secure;

enum kv_secure_role { KV_SECURE_STORE, KV_SECURE_WORKER };

/* What a handshake waits for. */
enum kv_secure_event { KV_SECURE_READS, KV_SECURE_WRITES, KV_SECURE_DONE };

/* Copies the secret; it and all that is derived from it is wiped as soon as it is of no more use.
 * Less than 2 KiB until the handshake is done, then the records' buffers (200 KiB). KV_NO_MEMORY;
 * KV_INTERNAL when the system has no random numbers. */
enum kv_status kv_secure_create(struct kv_allocator *allocator, enum kv_secure_role role,
    const uint8_t secret[KV_SECRET_BYTES], struct kv_secure **secure);
void kv_secure_destroy(struct kv_secure *secure); /* the socket stays; NULL is allowed */

/* Go on with the handshake as far as the socket allows. KV_REFUSED: the other side has another
 * secret (or a handshake was replayed, or changed on its way; or it left when it saw the proof);
 * KV_PROTOCOL: it speaks something else; KV_DISCONNECTED: it closed the connection; KV_NO_MEMORY;
 * KV_IO. Close the connection after an error. */
enum kv_status kv_secure_handshake(
    struct kv_secure *secure, int socket, enum kv_secure_event *event);

/* Bytes that have arrived and are authentic, at most `room`: *taken, 0 when none are there now.
 * *ended: the peer ended the stream. KV_PROTOCOL: a record was changed, left out or repeated;
 * KV_DISCONNECTED: the connection was cut. After an error every call fails. */
enum kv_status kv_secure_read(
    struct kv_secure *secure, int socket, uint8_t *bytes, size_t room, size_t *taken, bool *ended);

/* True when bytes wait that no poll of the socket tells of. */
bool kv_secure_pending(const struct kv_secure *secure);

/* Encrypt and send: *taken of the bytes belong to the channel now, 0 when the socket takes no more.
 * KV_DISCONNECTED, KV_IO. */
enum kv_status kv_secure_write(
    struct kv_secure *secure, int socket, const uint8_t *bytes, size_t length, size_t *taken);
/* Send what is left of the last record; *idle: nothing is. */
enum kv_status kv_secure_flush(struct kv_secure *secure, int socket, int *idle);
/* Bytes of a record that the socket has not taken yet. */
size_t kv_secure_unsent(const struct kv_secure *secure);

/* End the stream, if the socket takes it at once. Nothing is written afterwards. */
void kv_secure_finish(struct kv_secure *secure, int socket);

#ifdef __cplusplus
}
#endif
#endif
