/* The encrypted channel with somebody in the middle: the test, which carries every byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/transport/frame.h"
#include "common/transport/secure_channel.h"

enum {
	HELLO = KV_SECURE_HELLO_BYTES,
	FINISH = KV_SECURE_FINISH_BYTES,
	ANSWER = HELLO + FINISH,
	SMALL = 2048, /* before the other side is known */
	MOST = 1 << 20
};

/* One side, and the test's end of its connection. */
struct side {
	struct kv_secure *secure;
	int socket, wire;
};

struct both {
	struct kv_allocator *allocator;
	struct side worker, store;
};

static const uint8_t secret[KV_SECRET_BYTES] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
static const uint8_t other_secret[KV_SECRET_BYTES] = {1, 2, 3, 4, 5, 6, 7, 8, 10};
static uint8_t sent[MOST], got[MOST];

static void open_side(struct both *both, struct side *side, enum kv_secure_role role,
    const uint8_t own_secret[KV_SECRET_BYTES])
{
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
	side->socket = pair[0];
	side->wire = pair[1];
	assert_int_equal(kv_secure_create(both->allocator, role, own_secret, &side->secure), KV_OK);
}

static void open_both(struct both *both)
{
	memset(both, 0, sizeof *both);
	both->allocator = kv_allocator_create("secure", 0);
	open_side(both, &both->worker, KV_SECURE_WORKER, secret);
	open_side(both, &both->store, KV_SECURE_STORE, secret);
}

static void close_side(struct side *side)
{
	kv_secure_destroy(side->secure);
	close(side->socket);
	if (side->wire >= 0) close(side->wire);
}

static void close_both(struct both *both)
{
	close_side(&both->worker);
	close_side(&both->store);
	assert_int_equal(kv_allocator_stats(both->allocator).blocks, 0);
	kv_allocator_destroy(both->allocator);
}

static enum kv_status shake(struct side *side, enum kv_secure_event *event)
{
	return kv_secure_handshake(side->secure, side->socket, event);
}

/* Exactly so many bytes off the wire. */
static void take(const struct side *from, uint8_t *bytes, size_t size)
{
	assert_int_equal(recv(from->wire, bytes, size, MSG_DONTWAIT), (ssize_t)size);
}

static void give(const struct side *to, const uint8_t *bytes, size_t size)
{
	assert_int_equal(send(to->wire, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT), (ssize_t)size);
}

struct messages {
	uint8_t hello[HELLO], answer[ANSWER], finish[FINISH];
};

/* One step each, all that was said. */
static void establish(struct both *both, struct messages *said)
{
	enum kv_secure_event event = KV_SECURE_WRITES;

	assert_int_equal(shake(&both->worker, &event), KV_OK);
	assert_int_equal(event, KV_SECURE_READS);
	take(&both->worker, said->hello, HELLO);
	give(&both->store, said->hello, HELLO);
	assert_int_equal(shake(&both->store, &event), KV_OK);
	assert_int_equal(event, KV_SECURE_READS);
	/* Nobody has a large buffer before he has shown who he is. */
	assert_true(kv_allocator_stats(both->allocator).bytes < 2 * SMALL);
	take(&both->store, said->answer, ANSWER);
	give(&both->worker, said->answer, ANSWER);
	assert_int_equal(shake(&both->worker, &event), KV_OK);
	assert_int_equal(event, KV_SECURE_DONE);
	take(&both->worker, said->finish, FINISH);
	give(&both->store, said->finish, FINISH);
	assert_int_equal(shake(&both->store, &event), KV_OK);
	assert_int_equal(event, KV_SECURE_DONE);
}

/* Carry what is on the wires across. */
static void carry(const struct side *from, const struct side *to)
{
	uint8_t bytes[4096];
	ssize_t n = 1;

	/* No more than a socket takes: the callers come again. */
	for (unsigned i = 0; i < 16 && n > 0; i++) {
		n = recv(from->wire, bytes, sizeof bytes, MSG_DONTWAIT);
		if (n > 0) give(to, bytes, (size_t)n);
	}
}

/* Send bytes and read all of them on the other side. */
static void transfer(struct side *from, struct side *to, size_t size)
{
	size_t out = 0, in = 0;

	while (in < size) {
		size_t taken = 0;
		bool ended = false;
		int idle = 0;

		if (out < size)
			assert_int_equal(
			    kv_secure_write(from->secure, from->socket, sent + out, size - out, &taken), KV_OK);
		out += taken;
		assert_int_equal(kv_secure_flush(from->secure, from->socket, &idle), KV_OK);
		carry(from, to);
		do {
			assert_int_equal(
			    kv_secure_read(to->secure, to->socket, got + in, sizeof got - in, &taken, &ended),
			    KV_OK);
			assert_false(ended);
			in += taken;
		} while (taken);
	}
	assert_int_equal(in, size);
	assert_memory_equal(sent, got, size);
}

static void bytes_pass_both_ways(void **state)
{
	static const size_t sizes[] = {
	    1, 17, 4096, KV_SECURE_RECORD_BYTES, KV_SECURE_RECORD_BYTES + 1, MOST};
	struct messages said;
	struct both both;

	(void)state;
	open_both(&both);
	establish(&both, &said);
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		for (size_t at = 0; at < sizes[i]; at++)
			sent[at] = (uint8_t)(at * 7 + at / 251 + i);
		transfer(&both.worker, &both.store, sizes[i]);
		transfer(&both.store, &both.worker, sizes[i]);
	}
	close_both(&both);
}

static void nothing_is_in_the_clear(void **state)
{
	static uint8_t wire[8192];
	struct messages said;
	struct both both;
	size_t taken = 0;
	ssize_t n;

	(void)state;
	open_both(&both);
	establish(&both, &said);
	memset(sent, 'K', 4096);
	assert_int_equal(
	    kv_secure_write(both.worker.secure, both.worker.socket, sent, 4096, &taken), KV_OK);
	n = recv(both.worker.wire, wire, sizeof wire, MSG_DONTWAIT);
	assert_int_equal(n, 4096 + KV_SECURE_RECORD_OVERHEAD);
	for (ssize_t at = 0; at + 8 <= n; at++)
		assert_int_not_equal(memcmp(wire + at, "KKKKKKKK", 8), 0);
	/* Nor is the secret, nor the same thing twice. */
	for (size_t at = 0; at + 8 <= ANSWER; at++)
		assert_int_not_equal(memcmp(said.answer + at, secret, 8), 0);
	assert_int_not_equal(memcmp(said.hello + 8, said.answer + 8, 32), 0);
	close_both(&both);
}

static void another_secret_is_told_in_words(void **state)
{
	enum kv_secure_event event = KV_SECURE_WRITES;
	uint8_t bytes[ANSWER];
	struct both both;

	(void)state;
	memset(&both, 0, sizeof both);
	both.allocator = kv_allocator_create("secure", 0);
	open_side(&both, &both.worker, KV_SECURE_WORKER, other_secret);
	open_side(&both, &both.store, KV_SECURE_STORE, secret);
	assert_int_equal(shake(&both.worker, &event), KV_OK);
	take(&both.worker, bytes, HELLO);
	give(&both.store, bytes, HELLO);
	assert_int_equal(shake(&both.store, &event), KV_OK);
	take(&both.store, bytes, ANSWER);
	give(&both.worker, bytes, ANSWER);
	assert_int_equal(shake(&both.worker, &event), KV_REFUSED);
	assert_non_null(strstr(kv_error_message(), "secret"));
	/* And again: it does not come back. */
	assert_int_equal(shake(&both.worker, &event), KV_PROTOCOL);
	/* A worker that does not look sends a proof that is none. */
	memset(bytes, 7, sizeof bytes);
	give(&both.store, bytes, FINISH);
	assert_int_equal(shake(&both.store, &event), KV_REFUSED);
	close_both(&both);
}

/* Change one byte of one of the three messages: whoever has to notice does. */
static void change_handshake(unsigned message, size_t at, uint8_t change)
{
	enum kv_secure_event event = KV_SECURE_WRITES;
	struct messages said;
	struct both both;
	enum kv_status status;

	open_both(&both);
	assert_int_equal(shake(&both.worker, &event), KV_OK);
	take(&both.worker, said.hello, HELLO);
	if (message == 0) said.hello[at] ^= change;
	give(&both.store, said.hello, HELLO);
	status = shake(&both.store, &event);
	if (status == KV_OK) {
		take(&both.store, said.answer, ANSWER);
		if (message == 1) said.answer[at] ^= change;
		give(&both.worker, said.answer, ANSWER);
		status = shake(&both.worker, &event);
	}
	if (status == KV_OK) {
		assert_int_equal(message, 2);
		take(&both.worker, said.finish, FINISH);
		said.finish[at] ^= change;
		give(&both.store, said.finish, FINISH);
		status = shake(&both.store, &event);
	}
	if (status != KV_REFUSED && status != KV_PROTOCOL)
		fail_msg(
		    "message %u, byte %zu, changed by %u: %s", message, at, change, kv_status_text(status));
	close_both(&both);
}

static void a_changed_byte_of_the_handshake_is_noticed(void **state)
{
	static const size_t sizes[] = {HELLO, ANSWER, FINISH};

	(void)state;
	for (unsigned message = 0; message < 3; message++) {
		for (size_t at = 0; at < sizes[message]; at++) {
			/* X25519 ignores a key's highest bit, the hash of all that was said does not. */
			change_handshake(message, at, at % 2 ? 0x80 : 0x01);
		}
	}
	change_handshake(0, 8 + 31, 0x80);
	change_handshake(1, 8 + 31, 0x80);
}

static void a_key_of_small_order_is_refused(void **state)
{
	enum kv_secure_event event = KV_SECURE_WRITES;
	uint8_t hello[HELLO];
	struct both both;

	(void)state;
	for (uint8_t first = 0; first < 2; first++) {
		open_both(&both);
		assert_int_equal(shake(&both.worker, &event), KV_OK);
		take(&both.worker, hello, HELLO);
		memset(hello + 8, 0, 32);
		hello[8] = first;
		give(&both.store, hello, HELLO);
		assert_int_equal(shake(&both.store, &event), KV_PROTOCOL);
		close_both(&both);
	}
}

static void another_version_is_told_in_words(void **state)
{
	enum kv_secure_event event = KV_SECURE_WRITES;
	uint8_t hello[HELLO];
	struct both both;

	(void)state;
	open_both(&both);
	assert_int_equal(shake(&both.worker, &event), KV_OK);
	take(&both.worker, hello, HELLO);
	hello[5] = KV_SECURE_VERSION + 1;
	/* After eight bytes already. */
	give(&both.store, hello, 8);
	assert_int_equal(shake(&both.store, &event), KV_PROTOCOL);
	assert_non_null(strstr(kv_error_message(), "version 2"));
	close_both(&both);
}

static void a_recorded_handshake_opens_nothing(void **state)
{
	enum kv_secure_event event = KV_SECURE_WRITES;
	struct messages said;
	struct both first, second;
	uint8_t answer[ANSWER];

	(void)state;
	open_both(&first);
	establish(&first, &said);
	/* To the store, as if from the same worker. */
	open_both(&second);
	give(&second.store, said.hello, HELLO);
	give(&second.store, said.finish, FINISH);
	assert_int_equal(shake(&second.store, &event), KV_REFUSED);
	take(&second.store, answer, ANSWER);
	assert_int_not_equal(memcmp(answer, said.answer, ANSWER), 0);
	/* To a worker, as if from the store. */
	give(&second.worker, said.answer, ANSWER);
	assert_int_equal(shake(&second.worker, &event), KV_REFUSED);
	close_both(&second);
	close_both(&first);
	/* A worker's own hello sent back to it. */
	open_both(&second);
	assert_int_equal(shake(&second.worker, &event), KV_OK);
	take(&second.worker, answer, HELLO);
	give(&second.worker, answer, HELLO);
	assert_int_equal(shake(&second.worker, &event), KV_PROTOCOL);
	close_both(&second);
}

static void a_handshake_that_ends_early_is_a_lost_connection(void **state)
{
	enum kv_secure_event event = KV_SECURE_WRITES;
	uint8_t bytes[HELLO];
	struct both both;

	(void)state;
	for (size_t length = 0; length < HELLO; length += 5) {
		open_both(&both);
		assert_int_equal(shake(&both.worker, &event), KV_OK);
		take(&both.worker, bytes, HELLO);
		for (size_t at = 0; at < length; at++) {
			give(&both.store, bytes + at, 1);
			assert_int_equal(shake(&both.store, &event), KV_OK);
			assert_int_equal(event, KV_SECURE_READS);
		}
		close(both.store.wire);
		both.store.wire = -1;
		assert_int_equal(shake(&both.store, &event), KV_DISCONNECTED);
		close_both(&both);
	}
}

/* ---- records ---- */

/* A record on the worker's wire. */
static size_t make_record(struct both *both, uint8_t *wire, size_t room, size_t size, uint8_t fill)
{
	size_t taken = 0;
	ssize_t n;

	memset(sent, fill, size);
	assert_int_equal(
	    kv_secure_write(both->worker.secure, both->worker.socket, sent, size, &taken), KV_OK);
	assert_int_equal(taken, size);
	n = recv(both->worker.wire, wire, room, MSG_DONTWAIT);
	assert_true(n > 0);
	return (size_t)n;
}

static enum kv_status read_once(struct both *both, size_t *taken, bool *ended)
{
	return kv_secure_read(both->store.secure, both->store.socket, got, sizeof got, taken, ended);
}

static void a_changed_byte_of_a_record_is_noticed(void **state)
{
	uint8_t wire[256];

	(void)state;
	for (size_t at = 0;; at++) {
		struct messages said;
		struct both both;
		size_t taken = 0, length;
		bool ended = false;
		enum kv_status status;

		open_both(&both);
		establish(&both, &said);
		length = make_record(&both, wire, sizeof wire, 40, 5);
		if (at == length) {
			close_both(&both);
			break;
		}
		wire[at] ^= at < 4 ? 2 : 0x10;
		give(&both.store, wire, length);
		status = read_once(&both, &taken, &ended);
		/* A length that became larger waits for what does not come. */
		if (status == KV_OK) {
			assert_true(at < 4 && !taken);
			close(both.store.wire);
			both.store.wire = -1;
			assert_int_equal(read_once(&both, &taken, &ended), KV_DISCONNECTED);
		} else {
			assert_int_equal(status, KV_PROTOCOL);
		}
		/* It stays broken. */
		assert_int_equal(read_once(&both, &taken, &ended), KV_PROTOCOL);
		close_both(&both);
	}
}

enum trick { REPEAT, SWAP, LEAVE_OUT, SEND_BACK, EMPTY, TRICKS };

static void a_record_out_of_its_place_is_noticed(void **state)
{
	(void)state;
	for (unsigned trick = 0; trick < TRICKS; trick++) {
		uint8_t first[256], second[256];
		struct messages said;
		struct both both;
		size_t taken = 0, one, two;
		bool ended = false;

		open_both(&both);
		establish(&both, &said);
		one = make_record(&both, first, sizeof first, 30, 1);
		two = make_record(&both, second, sizeof second, 30, 2);
		if (trick == SEND_BACK) {
			give(&both.worker, first, one);
			assert_int_equal(kv_secure_read(both.worker.secure, both.worker.socket, got, sizeof got,
			                     &taken, &ended),
			    KV_PROTOCOL);
			close_both(&both);
			continue;
		}
		if (trick == EMPTY) memset(first, 0, 4);
		if (trick != SWAP && trick != LEAVE_OUT) give(&both.store, first, one);
		if (trick == REPEAT) {
			assert_int_equal(read_once(&both, &taken, &ended), KV_OK);
			assert_int_equal(taken, 30);
			give(&both.store, first, one);
		}
		if (trick == SWAP || trick == LEAVE_OUT) give(&both.store, second, two);
		assert_int_equal(read_once(&both, &taken, &ended), KV_PROTOCOL);
		close_both(&both);
	}
}

static void only_an_end_mark_ends_the_stream(void **state)
{
	uint8_t wire[256];

	(void)state;
	for (int marked = 0; marked < 2; marked++) {
		for (int inside = 0; inside < 2; inside++) {
			struct messages said;
			struct both both;
			size_t taken = 0, length;
			bool ended = false;

			open_both(&both);
			establish(&both, &said);
			length = make_record(&both, wire, sizeof wire, 10, 3);
			give(&both.store, wire, length);
			if (inside) {
				length = make_record(&both, wire, sizeof wire, 10, 3);
				give(&both.store, wire, length / 2);
			}
			if (marked && !inside) {
				kv_secure_finish(both.worker.secure, both.worker.socket);
				carry(&both.worker, &both.store);
				assert_int_equal(
				    kv_secure_write(both.worker.secure, both.worker.socket, sent, 1, &taken),
				    KV_DISCONNECTED);
			}
			close(both.store.wire);
			both.store.wire = -1;
			assert_int_equal(read_once(&both, &taken, &ended), KV_OK);
			assert_int_equal(taken, 10);
			if (marked && !inside) {
				assert_int_equal(read_once(&both, &taken, &ended), KV_OK);
				assert_true(ended && !taken);
			} else {
				assert_int_equal(read_once(&both, &taken, &ended), KV_DISCONNECTED);
			}
			close_both(&both);
		}
	}
}

static void every_allocation_may_fail(void **state)
{
	enum kv_secure_event event = KV_SECURE_WRITES;
	unsigned failures = 0;

	(void)state;
	for (uint64_t n = 1; n <= 4; n++) {
		struct kv_allocator *allocator = kv_allocator_create("secure", 0);
		struct side sides[2] = {{NULL, -1, -1}, {NULL, -1, -1}};
		enum kv_status status;
		int pair[2];

		assert_int_equal(
		    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
		kv_allocator_fail_at(allocator, n);
		status = kv_secure_create(allocator, KV_SECURE_WORKER, secret, &sides[0].secure);
		if (status == KV_OK)
			status = kv_secure_create(allocator, KV_SECURE_STORE, secret, &sides[1].secure);
		for (unsigned turn = 0; status == KV_OK && turn < 6; turn++)
			status = kv_secure_handshake(sides[turn % 2].secure, pair[turn % 2], &event);
		assert_int_equal(status, KV_NO_MEMORY);
		failures++;
		kv_secure_destroy(sides[0].secure);
		kv_secure_destroy(sides[1].secure);
		close(pair[0]);
		close(pair[1]);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
		kv_allocator_destroy(allocator);
	}
	assert_int_equal(failures, 4);
}

/* ---- frames ---- */

static void frames_pass(void **state)
{
	struct kv_frame_reader *reader = NULL;
	struct kv_frame_writer *writer = NULL;
	enum kv_frame_event event = KV_FRAME_NONE;
	struct kv_frame frame;
	struct messages said;
	struct both both;
	int idle = 0, one = 1, frames = 0;

	(void)state;
	open_both(&both);
	establish(&both, &said);
	assert_int_equal(kv_frame_reader_create(both.allocator, 0, 2, &reader), KV_OK);
	assert_int_equal(kv_frame_writer_create(both.allocator, 0, &writer), KV_OK);
	kv_frame_reader_secure(reader, both.store.secure);
	kv_frame_writer_secure(writer, both.worker.secure);
	/* No descriptors. */
	assert_int_equal(kv_frame_push(writer, "abc", 3, &one, 1), KV_INVALID);
	memset(sent, 9, 300000);
	assert_int_equal(kv_frame_push(writer, "abc", 3, NULL, 0), KV_OK);
	assert_int_equal(kv_frame_push(writer, sent, 300000, NULL, 0), KV_OK);
	while (frames < 2) {
		assert_int_equal(kv_frame_write(writer, both.worker.socket, &idle), KV_OK);
		carry(&both.worker, &both.store);
		assert_int_equal(kv_frame_read(reader, both.store.socket, &event, &frame), KV_OK);
		if (event != KV_FRAME_READY) continue;
		assert_int_equal(frame.length, frames ? 300000 : 3);
		assert_memory_equal(frame.payload, frames ? (const char *)sent : "abc", frame.length);
		frames++;
	}
	assert_true(idle);
	assert_int_equal(kv_frame_writer_queued(writer), 0);
	kv_secure_finish(both.worker.secure, both.worker.socket);
	carry(&both.worker, &both.store);
	assert_int_equal(kv_frame_read(reader, both.store.socket, &event, &frame), KV_OK);
	assert_int_equal(event, KV_FRAME_END);
	kv_frame_reader_destroy(reader);
	kv_frame_writer_destroy(writer);
	close_both(&both);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(bytes_pass_both_ways),
	    cmocka_unit_test(nothing_is_in_the_clear),
	    cmocka_unit_test(another_secret_is_told_in_words),
	    cmocka_unit_test(a_changed_byte_of_the_handshake_is_noticed),
	    cmocka_unit_test(a_key_of_small_order_is_refused),
	    cmocka_unit_test(another_version_is_told_in_words),
	    cmocka_unit_test(a_recorded_handshake_opens_nothing),
	    cmocka_unit_test(a_handshake_that_ends_early_is_a_lost_connection),
	    cmocka_unit_test(a_changed_byte_of_a_record_is_noticed),
	    cmocka_unit_test(a_record_out_of_its_place_is_noticed),
	    cmocka_unit_test(only_an_end_mark_ends_the_stream),
	    cmocka_unit_test(every_allocation_may_fail),
	    cmocka_unit_test(frames_pass),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
