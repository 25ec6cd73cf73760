#include "common/transport/secure_channel.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>

#define LABEL "clusterkv remote 1 "

enum {
	KEY_BYTES = crypto_scalarmult_curve25519_BYTES,
	MASTER_BYTES = 64,
	PROOF_BYTES = 32,
	STREAM_HEADER = crypto_secretstream_xchacha20poly1305_HEADERBYTES,
	STREAM_KEY = crypto_secretstream_xchacha20poly1305_KEYBYTES,
	STREAM_EXTRA = crypto_secretstream_xchacha20poly1305_ABYTES,
	LENGTH_BYTES = 4,
	KEY_AT = 8, /* in a hello: magic, role, version, 2 zeros; key; nonce */
	NONCE_AT = KEY_AT + KEY_BYTES,
	HANDSHAKE_BYTES = KV_SECURE_HELLO_BYTES + KV_SECURE_FINISH_BYTES,
	WHOLE_RECORD = LENGTH_BYTES + STREAM_EXTRA + KV_SECURE_RECORD_BYTES
};

enum step { AWAIT_HELLO, AWAIT_ANSWER, AWAIT_FINISH, FINISHING, ESTABLISHED };

struct kv_secure {
	struct kv_allocator *allocator;
	enum kv_secure_role role;
	enum step step;
	bool broken, finished; /* reading: after an error; after the end */
	bool closed;           /* writing: the end has been written, or failed */
	uint8_t secret[KV_SECRET_BYTES], own_key[KEY_BYTES], master[MASTER_BYTES];
	uint8_t hellos[2 * KV_SECURE_HELLO_BYTES]; /* the worker's, the store's */
	uint8_t in[HANDSHAKE_BYTES], out[HANDSHAKE_BYTES];
	size_t in_have, in_want, out_have, out_sent;

	crypto_secretstream_xchacha20poly1305_state pull;
	uint8_t *record, *plain; /* one block */
	size_t record_have, plain_at, plain_have;

	crypto_secretstream_xchacha20poly1305_state push;
	uint8_t *sending;
	size_t sending_have, sending_sent;
};

static void put_length(uint8_t *bytes, size_t length)
{
	for (unsigned i = 0; i < LENGTH_BYTES; i++)
		bytes[i] = (uint8_t)(length >> (8 * i));
}

static size_t get_length(const uint8_t *bytes)
{
	return (size_t)bytes[0] | (size_t)bytes[1] << 8 | (size_t)bytes[2] << 16 |
	       (size_t)bytes[3] << 24;
}

/* ---- the socket ---- */

static enum kv_status receive(int socket, uint8_t *bytes, size_t room, size_t *taken, bool *ended)
{
	ssize_t got;

	*taken = 0;
	*ended = false;
	do {
		got = recv(socket, bytes, room, MSG_DONTWAIT);
	} while (got < 0 && errno == EINTR);
	if (got < 0) {
		if (errno == EAGAIN || errno == EWOULDBLOCK) return KV_OK;
		if (errno == ECONNRESET || errno == EPIPE || errno == ETIMEDOUT || errno == EHOSTUNREACH ||
		    errno == ENETUNREACH)
			return kv_fail(KV_DISCONNECTED, "the connection broke: %s", strerror(errno));
		return kv_fail(KV_IO, "cannot receive: %s", strerror(errno));
	}
	*taken = (size_t)got;
	*ended = got == 0;
	return KV_OK;
}

static enum kv_status transmit(int socket, const uint8_t *bytes, size_t length, size_t *sent)
{
	ssize_t put;

	do {
		put = send(socket, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
	} while (put < 0 && errno == EINTR);
	*sent = put > 0 ? (size_t)put : 0;
	if (put >= 0 || errno == EAGAIN || errno == EWOULDBLOCK) return KV_OK;
	if (errno == EPIPE || errno == ECONNRESET || errno == ETIMEDOUT || errno == EHOSTUNREACH ||
	    errno == ENETUNREACH)
		return kv_fail(KV_DISCONNECTED, "the connection broke: %s", strerror(errno));
	return kv_fail(KV_IO, "cannot send: %s", strerror(errno));
}

/* ---- making and ending ---- */

static void wipe_keys(struct kv_secure *secure)
{
	sodium_memzero(secure->secret, sizeof secure->secret);
	sodium_memzero(secure->own_key, sizeof secure->own_key);
	sodium_memzero(secure->master, sizeof secure->master);
}

static void write_hello(struct kv_secure *secure, uint8_t hello[KV_SECURE_HELLO_BYTES])
{
	memcpy(hello, "clkv", 4);
	hello[4] = secure->role == KV_SECURE_STORE ? 'S' : 'W';
	hello[5] = KV_SECURE_VERSION;
	hello[6] = hello[7] = 0;
	randombytes_buf(secure->own_key, sizeof secure->own_key);
	crypto_scalarmult_curve25519_base(hello + KEY_AT, secure->own_key);
	randombytes_buf(hello + NONCE_AT, KV_SECURE_HELLO_BYTES - NONCE_AT);
}

enum kv_status kv_secure_create(struct kv_allocator *allocator, enum kv_secure_role role,
    const uint8_t secret[KV_SECRET_BYTES], struct kv_secure **secure)
{
	struct kv_secure *created;

	if (sodium_init() < 0) return kv_fail(KV_INTERNAL, "the system has no random numbers");
	created = kv_alloc_zero(allocator, sizeof *created);
	if (!created) return KV_NO_MEMORY;
	created->allocator = allocator;
	created->role = role;
	memcpy(created->secret, secret, KV_SECRET_BYTES);
	if (role == KV_SECURE_WORKER) {
		write_hello(created, created->hellos);
		memcpy(created->out, created->hellos, KV_SECURE_HELLO_BYTES);
		created->out_have = KV_SECURE_HELLO_BYTES;
		created->in_want = HANDSHAKE_BYTES;
		created->step = AWAIT_ANSWER;
	} else {
		created->in_want = KV_SECURE_HELLO_BYTES;
		created->step = AWAIT_HELLO;
	}
	*secure = created;
	return KV_OK;
}

void kv_secure_destroy(struct kv_secure *secure)
{
	struct kv_allocator *allocator;

	if (!secure) return;
	allocator = secure->allocator;
	if (secure->plain) sodium_memzero(secure->plain, KV_SECURE_RECORD_BYTES);
	kv_free(allocator, secure->record);
	sodium_memzero(secure, sizeof *secure);
	kv_free(allocator, secure);
}

/* ---- the handshake ---- */

/* Keyed BLAKE2b over a label and two parts, whose lengths never vary for one label. */
static void derive(uint8_t *result, size_t length, const uint8_t *key, size_t key_length,
    const char *label, const uint8_t *first, size_t first_length, const uint8_t *second,
    size_t second_length)
{
	crypto_generichash_state state;

	crypto_generichash_init(&state, key, key_length, length);
	crypto_generichash_update(&state, (const uint8_t *)label, strlen(label));
	if (first) crypto_generichash_update(&state, first, first_length);
	if (second) crypto_generichash_update(&state, second, second_length);
	crypto_generichash_final(&state, result, length);
	sodium_memzero(&state, sizeof state);
}

static enum kv_status check_hello(const struct kv_secure *secure, const uint8_t *hello)
{
	const uint8_t other = secure->role == KV_SECURE_STORE ? 'W' : 'S';

	if (memcmp(hello, "clkv", 4) != 0 || hello[4] != other || hello[6] || hello[7])
		return kv_fail(KV_PROTOCOL, "the other side of the connection is no %s",
		    secure->role == KV_SECURE_STORE ? "gpu-worker" : "kvstored");
	if (hello[5] != KV_SECURE_VERSION)
		return kv_fail(KV_PROTOCOL,
		    "the other side speaks version %u of the encryption, this one %d: install the same "
		    "release of both",
		    hello[5], (int)KV_SECURE_VERSION);
	return KV_OK;
}

/* From both hellos, which are there. */
static enum kv_status make_master(struct kv_secure *secure)
{
	const bool store = secure->role == KV_SECURE_STORE;
	const uint8_t *theirs = secure->hellos + (store ? 0 : KV_SECURE_HELLO_BYTES) + KEY_AT;
	uint8_t shared[KEY_BYTES];
	/* All zero for a key of small order, which proves nothing. */
	const int failed = crypto_scalarmult_curve25519(shared, secure->own_key, theirs);

	if (!failed)
		derive(secure->master, MASTER_BYTES, secure->secret, KV_SECRET_BYTES, LABEL "keys", shared,
		    sizeof shared, secure->hellos, sizeof secure->hellos);
	sodium_memzero(shared, sizeof shared);
	sodium_memzero(secure->own_key, sizeof secure->own_key);
	sodium_memzero(secure->secret, sizeof secure->secret);
	return failed ? kv_fail(KV_PROTOCOL, "the other side's key is none") : KV_OK;
}

static void make_proof(
    const struct kv_secure *secure, bool of_store, const uint8_t *header, uint8_t *proof)
{
	derive(proof, PROOF_BYTES, secure->master, MASTER_BYTES,
	    of_store ? LABEL "store proof" : LABEL "worker proof", header, STREAM_HEADER, NULL, 0);
}

static void stream_key(const struct kv_secure *secure, bool to_store, uint8_t *key)
{
	derive(key, STREAM_KEY, secure->master, MASTER_BYTES,
	    to_store ? LABEL "to store" : LABEL "to worker", NULL, 0, NULL, 0);
}

/* The own stream's header and the proof, KV_SECURE_FINISH_BYTES. */
static void write_finish(struct kv_secure *secure, uint8_t *finish)
{
	const bool store = secure->role == KV_SECURE_STORE;
	uint8_t key[STREAM_KEY];

	stream_key(secure, !store, key);
	crypto_secretstream_xchacha20poly1305_init_push(&secure->push, finish, key);
	make_proof(secure, store, finish, finish + STREAM_HEADER);
	sodium_memzero(key, sizeof key);
}

static enum kv_status read_finish(struct kv_secure *secure, const uint8_t *finish)
{
	const bool store = secure->role == KV_SECURE_STORE;
	uint8_t key[STREAM_KEY], proof[PROOF_BYTES];
	int differs;

	make_proof(secure, !store, finish, proof);
	differs = sodium_memcmp(proof, finish + STREAM_HEADER, PROOF_BYTES);
	sodium_memzero(proof, sizeof proof);
	if (differs)
		return kv_fail(KV_REFUSED,
		    "the %s has another secret than this %s: give both the same file",
		    store ? "worker" : "store", store ? "store" : "worker");
	stream_key(secure, store, key);
	crypto_secretstream_xchacha20poly1305_init_pull(&secure->pull, finish, key);
	sodium_memzero(key, sizeof key);
	return KV_OK;
}

/* The peer is known: records have their memory now. */
static enum kv_status establish(struct kv_secure *secure)
{
	uint8_t *block = kv_alloc(secure->allocator, 2 * (size_t)WHOLE_RECORD + KV_SECURE_RECORD_BYTES);

	if (!block) return KV_NO_MEMORY;
	secure->record = block;
	secure->sending = block + WHOLE_RECORD;
	secure->plain = block + 2 * (size_t)WHOLE_RECORD;
	wipe_keys(secure);
	return KV_OK;
}

/* What was waited for is whole. */
static enum kv_status take_message(struct kv_secure *secure)
{
	uint8_t *store_hello = secure->hellos + KV_SECURE_HELLO_BYTES;

	secure->in_have = 0;
	switch (secure->step) {
	case AWAIT_HELLO:
		memcpy(secure->hellos, secure->in, KV_SECURE_HELLO_BYTES);
		write_hello(secure, store_hello);
		KV_TRY(make_master(secure));
		memcpy(secure->out, store_hello, KV_SECURE_HELLO_BYTES);
		write_finish(secure, secure->out + KV_SECURE_HELLO_BYTES);
		secure->out_have = HANDSHAKE_BYTES;
		secure->in_want = KV_SECURE_FINISH_BYTES;
		secure->step = AWAIT_FINISH;
		return KV_OK;
	case AWAIT_ANSWER:
		memcpy(store_hello, secure->in, KV_SECURE_HELLO_BYTES);
		KV_TRY(make_master(secure));
		KV_TRY(read_finish(secure, secure->in + KV_SECURE_HELLO_BYTES));
		write_finish(secure, secure->out);
		secure->out_have = KV_SECURE_FINISH_BYTES;
		secure->out_sent = 0;
		secure->step = FINISHING;
		return KV_OK;
	default:
		KV_TRY(read_finish(secure, secure->in));
		KV_TRY(establish(secure));
		secure->step = ESTABLISHED;
		return KV_OK;
	}
}

/* True when all has gone out. */
static enum kv_status send_handshake(struct kv_secure *secure, int socket, bool *all)
{
	while (secure->out_sent < secure->out_have) {
		size_t sent = 0;

		KV_TRY(transmit(
		    socket, secure->out + secure->out_sent, secure->out_have - secure->out_sent, &sent));
		if (!sent) break;
		secure->out_sent += sent;
	}
	*all = secure->out_sent == secure->out_have;
	return KV_OK;
}

/* One piece of what is waited for; *taken 0: nothing is there now. */
static enum kv_status receive_handshake(struct kv_secure *secure, int socket, size_t *taken)
{
	const bool begins = secure->step != AWAIT_FINISH;
	bool ended = false;

	KV_TRY(receive(
	    socket, secure->in + secure->in_have, secure->in_want - secure->in_have, taken, &ended));
	if (ended && secure->step == AWAIT_FINISH)
		return kv_fail(KV_REFUSED,
		    "the worker left when it saw this store's proof: it has another secret");
	if (ended)
		return kv_fail(KV_DISCONNECTED, "the other side closed the connection in the handshake");
	secure->in_have += *taken;
	/* Refused as early as it can be told. */
	if (begins && *taken && secure->in_have >= KEY_AT) KV_TRY(check_hello(secure, secure->in));
	return KV_OK;
}

static enum kv_status advance(
    struct kv_secure *secure, int socket, enum kv_secure_event *event, bool *blocked)
{
	size_t taken = 0;
	bool all = false;

	*blocked = true;
	KV_TRY(send_handshake(secure, socket, &all));
	if (!all) {
		*event = KV_SECURE_WRITES;
		return KV_OK;
	}
	if (secure->step == FINISHING) {
		KV_TRY(establish(secure));
		secure->step = ESTABLISHED;
		return KV_OK;
	}
	KV_TRY(receive_handshake(secure, socket, &taken));
	*event = KV_SECURE_READS;
	*blocked = !taken;
	if (secure->in_have == secure->in_want) return take_message(secure);
	return KV_OK;
}

enum kv_status kv_secure_handshake(
    struct kv_secure *secure, int socket, enum kv_secure_event *event)
{
	bool blocked = false;

	if (secure->broken) return kv_fail(KV_PROTOCOL, "the handshake has failed before");
	while (secure->step != ESTABLISHED && !blocked) {
		enum kv_status status = advance(secure, socket, event, &blocked);

		if (status == KV_OK) continue;
		secure->broken = secure->closed = true;
		wipe_keys(secure);
		return status;
	}
	if (secure->step == ESTABLISHED) *event = KV_SECURE_DONE;
	return KV_OK;
}

/* ---- reading ---- */

static enum kv_status open_record(struct kv_secure *secure, size_t length)
{
	unsigned long long plain = 0;
	unsigned char tag = 0;

	if (crypto_secretstream_xchacha20poly1305_pull(&secure->pull, secure->plain, &plain, &tag,
	        secure->record + LENGTH_BYTES, length, NULL, 0) != 0)
		return kv_fail(KV_PROTOCOL, "a record is not authentic: it was changed on its way");
	secure->record_have = 0;
	if (tag == crypto_secretstream_xchacha20poly1305_TAG_FINAL && !plain) {
		secure->finished = true;
		return KV_OK;
	}
	/* An empty one would keep the reader busy and bring it nothing. */
	if (tag != crypto_secretstream_xchacha20poly1305_TAG_MESSAGE || !plain)
		return kv_fail(KV_PROTOCOL, "a record is of an unknown kind");
	secure->plain_at = 0;
	secure->plain_have = (size_t)plain;
	return KV_OK;
}

/* Receive of the next record what is there; *taken 0: nothing is there now. */
static enum kv_status read_record(struct kv_secure *secure, int socket, size_t *taken)
{
	size_t want = LENGTH_BYTES;
	bool ended = false;

	if (secure->record_have >= LENGTH_BYTES) want += get_length(secure->record);
	KV_TRY(receive(
	    socket, secure->record + secure->record_have, want - secure->record_have, taken, &ended));
	if (ended)
		return kv_fail(KV_DISCONNECTED, "the connection was cut: it ended without an end mark");
	secure->record_have += *taken;
	if (secure->record_have < LENGTH_BYTES) return KV_OK;
	if (want == LENGTH_BYTES) {
		const size_t length = get_length(secure->record);

		if (length < STREAM_EXTRA || length > STREAM_EXTRA + KV_SECURE_RECORD_BYTES)
			return kv_fail(KV_PROTOCOL, "a record of %zu bytes is announced, %d to %d are possible",
			    length, (int)STREAM_EXTRA, (int)STREAM_EXTRA + (int)KV_SECURE_RECORD_BYTES);
		return KV_OK;
	}
	if (secure->record_have == want) return open_record(secure, want - LENGTH_BYTES);
	return KV_OK;
}

static enum kv_status read_some(
    struct kv_secure *secure, int socket, uint8_t *bytes, size_t room, size_t *taken, bool *ended)
{
	size_t came = 1;

	*taken = 0;
	*ended = false;
	while (came && !secure->finished && secure->plain_at == secure->plain_have)
		KV_TRY(read_record(secure, socket, &came));
	*taken = secure->plain_have - secure->plain_at;
	if (*taken > room) *taken = room;
	if (*taken) memcpy(bytes, secure->plain + secure->plain_at, *taken);
	secure->plain_at += *taken;
	*ended = !*taken && room && secure->finished;
	return KV_OK;
}

enum kv_status kv_secure_read(
    struct kv_secure *secure, int socket, uint8_t *bytes, size_t room, size_t *taken, bool *ended)
{
	enum kv_status status;

	if (secure->broken || secure->step != ESTABLISHED)
		return kv_fail(KV_PROTOCOL, "the connection has failed before and cannot be read on");
	status = read_some(secure, socket, bytes, room, taken, ended);
	if (status != KV_OK) secure->broken = true;
	return status;
}

bool kv_secure_pending(const struct kv_secure *secure)
{
	return secure->plain_at < secure->plain_have;
}

/* ---- writing ---- */

/* Make one record of the bytes; nothing of an earlier one is left. */
static void seal_record(struct kv_secure *secure, const uint8_t *bytes, size_t length, uint8_t tag)
{
	unsigned long long sealed = 0;

	crypto_secretstream_xchacha20poly1305_push(
	    &secure->push, secure->sending + LENGTH_BYTES, &sealed, bytes, length, NULL, 0, tag);
	put_length(secure->sending, (size_t)sealed);
	secure->sending_have = LENGTH_BYTES + (size_t)sealed;
	secure->sending_sent = 0;
}

enum kv_status kv_secure_flush(struct kv_secure *secure, int socket, int *idle)
{
	while (secure->sending_sent < secure->sending_have) {
		size_t sent = 0;

		KV_TRY(transmit(socket, secure->sending + secure->sending_sent,
		    secure->sending_have - secure->sending_sent, &sent));
		if (!sent) break;
		secure->sending_sent += sent;
	}
	*idle = secure->sending_sent == secure->sending_have;
	return KV_OK;
}

enum kv_status kv_secure_write(
    struct kv_secure *secure, int socket, const uint8_t *bytes, size_t length, size_t *taken)
{
	int idle = 0;

	*taken = 0;
	if (secure->closed || secure->step != ESTABLISHED)
		return kv_fail(KV_DISCONNECTED, "the connection has been ended and cannot be written to");
	KV_TRY(kv_secure_flush(secure, socket, &idle));
	if (!idle || !length) return KV_OK;
	if (length > KV_SECURE_RECORD_BYTES) length = KV_SECURE_RECORD_BYTES;
	seal_record(secure, bytes, length, crypto_secretstream_xchacha20poly1305_TAG_MESSAGE);
	*taken = length;
	return kv_secure_flush(secure, socket, &idle);
}

size_t kv_secure_unsent(const struct kv_secure *secure)
{
	return secure->sending_have - secure->sending_sent;
}

void kv_secure_finish(struct kv_secure *secure, int socket)
{
	int idle = 0;

	if (secure->closed || secure->step != ESTABLISHED) return;
	if (kv_secure_flush(secure, socket, &idle) == KV_OK && idle) {
		seal_record(
		    secure, (const uint8_t *)"", 0, crypto_secretstream_xchacha20poly1305_TAG_FINAL);
		(void)kv_secure_flush(secure, socket, &idle);
	}
	secure->closed = true;
}
