/* Frames over socket pairs: every split of the bytes, descriptors, limits, peers that misbehave. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/transport/frame.h"

struct link {
	struct kv_allocator *allocator;
	int ours, theirs; /* theirs is the reader's */
	struct kv_frame_reader *reader;
	struct kv_frame_writer *writer;
};

static void open_link(struct link *link, uint32_t max_bytes, uint32_t descriptors, uint32_t queued)
{
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
	link->allocator = kv_allocator_create("frames", 0);
	link->ours = pair[0];
	link->theirs = pair[1];
	assert_int_equal(
	    kv_frame_reader_create(link->allocator, max_bytes, descriptors, &link->reader), KV_OK);
	assert_int_equal(kv_frame_writer_create(link->allocator, queued, &link->writer), KV_OK);
}

static void close_link(struct link *link)
{
	kv_frame_reader_destroy(link->reader);
	kv_frame_writer_destroy(link->writer);
	if (link->ours >= 0) close(link->ours);
	close(link->theirs);
	assert_int_equal(kv_allocator_stats(link->allocator).blocks, 0);
	kv_allocator_destroy(link->allocator);
}

static void send_raw(struct link *link, const void *bytes, size_t size)
{
	assert_int_equal(send(link->ours, bytes, size, MSG_NOSIGNAL), (ssize_t)size);
}

static void expect_event(struct link *link, enum kv_frame_event expected, struct kv_frame *frame)
{
	enum kv_frame_event event = KV_FRAME_END;

	assert_int_equal(kv_frame_read(link->reader, link->theirs, &event, frame), KV_OK);
	assert_int_equal(event, expected);
}

static void expect_payload(struct link *link, const void *payload, uint32_t length)
{
	struct kv_frame frame;

	expect_event(link, KV_FRAME_READY, &frame);
	assert_int_equal(frame.length, length);
	assert_memory_equal(frame.payload, payload, length);
}

static void expect_failure(struct link *link, enum kv_status expected)
{
	enum kv_frame_event event = KV_FRAME_END;
	struct kv_frame frame;

	assert_int_equal(kv_frame_read(link->reader, link->theirs, &event, &frame), expected);
	assert_int_equal(event, KV_FRAME_END);
	assert_int_equal(kv_frame_read(link->reader, link->theirs, &event, &frame), KV_PROTOCOL);
}

static void push(struct link *link, const void *payload, size_t length)
{
	assert_int_equal(kv_frame_push(link->writer, payload, length, NULL, 0), KV_OK);
}

static int flush(struct link *link)
{
	int idle = -1;

	assert_int_equal(kv_frame_write(link->writer, link->ours, &idle), KV_OK);
	return idle;
}

static int open_descriptors(void)
{
	int count = 0, i;

	for (i = 0; i < 1024; i++)
		count += fcntl(i, F_GETFD) >= 0;
	return count;
}

static int inode_of(int descriptor)
{
	struct stat status;

	assert_int_equal(fstat(descriptor, &status), 0);
	return (int)status.st_ino;
}

/* Two frames, cut in two at every byte. */
static void test_every_split(void **state)
{
	static const uint8_t bytes[] = {5, 0, 0, 0, 'h', 'e', 'l', 'l', 'o', 1, 0, 0, 0, 'x'};
	size_t cut;

	(void)state;
	for (cut = 0; cut <= sizeof bytes; cut++) {
		struct kv_frame frame;
		struct link link;

		open_link(&link, 0, 0, 0);
		expect_event(&link, KV_FRAME_NONE, &frame);
		assert_false(kv_frame_reader_inside(link.reader));
		send_raw(&link, bytes, cut);
		if (cut >= 9) expect_payload(&link, "hello", 5);
		if (cut == 14) expect_payload(&link, "x", 1);
		expect_event(&link, KV_FRAME_NONE, &frame);
		assert_int_equal(kv_frame_reader_inside(link.reader), cut != 0 && cut != 9 && cut != 14);
		send_raw(&link, bytes + cut, sizeof bytes - cut);
		if (cut < 9) expect_payload(&link, "hello", 5);
		if (cut < 14) expect_payload(&link, "x", 1);
		expect_event(&link, KV_FRAME_NONE, &frame);
		close(link.ours);
		link.ours = -1;
		expect_event(&link, KV_FRAME_END, &frame);
		close_link(&link);
	}
}

static void test_byte_by_byte(void **state)
{
	uint8_t bytes[4 + 300] = {44, 1};
	struct kv_frame frame;
	struct link link;
	size_t i;

	(void)state;
	open_link(&link, 0, 0, 0);
	for (i = 4; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)(i * 7);
	for (i = 0; i + 1 < sizeof bytes; i++) {
		send_raw(&link, bytes + i, 1);
		expect_event(&link, KV_FRAME_NONE, &frame);
		assert_true(kv_frame_reader_inside(link.reader));
	}
	send_raw(&link, bytes + i, 1);
	expect_payload(&link, bytes + 4, 300);
	assert_false(kv_frame_reader_inside(link.reader));
	close_link(&link);
}

static void test_lengths_that_are_refused(void **state)
{
	static const uint8_t zero[] = {0, 0, 0, 0}, above[] = {101, 0, 0, 0},
	                     huge[] = {255, 255, 255, 255}, most[] = {100, 0, 0, 0};
	const uint8_t *const refused[] = {zero, above, huge};
	struct kv_frame frame;
	struct link link;
	uint64_t before;
	size_t i;

	(void)state;
	for (i = 0; i < 3; i++) {
		open_link(&link, 100, 0, 0);
		before = kv_allocator_stats(link.allocator).allocations;
		send_raw(&link, refused[i], 4);
		expect_failure(&link, KV_PROTOCOL);
		assert_int_equal(kv_allocator_stats(link.allocator).allocations, before);
		close_link(&link);
	}
	open_link(&link, 100, 0, 0);
	send_raw(&link, most, 4);
	expect_event(&link, KV_FRAME_NONE, &frame);
	close_link(&link);
}

/* A peer that announces much and sends little costs little. */
static void test_memory_follows_what_arrived(void **state)
{
	static const uint8_t announcement[] = {0, 0, 128, 0};
	static uint8_t block[65536];
	struct kv_frame frame;
	struct link link;

	(void)state;
	open_link(&link, 0, 0, 0);
	send_raw(&link, announcement, 4);
	expect_event(&link, KV_FRAME_NONE, &frame);
	assert_true(kv_allocator_stats(link.allocator).bytes < 64 << 10);
	send_raw(&link, block, sizeof block);
	expect_event(&link, KV_FRAME_NONE, &frame);
	assert_true(kv_allocator_stats(link.allocator).bytes < 256 << 10);
	close_link(&link);
}

static void test_end_inside_a_frame(void **state)
{
	static const uint8_t bytes[] = {3, 0, 0, 0, 'a', 'b'};
	size_t sent;

	(void)state;
	for (sent = 1; sent <= sizeof bytes; sent++) {
		struct link link;

		open_link(&link, 0, 0, 0);
		send_raw(&link, bytes, sent);
		close(link.ours);
		link.ours = -1;
		expect_failure(&link, KV_DISCONNECTED);
		close_link(&link);
	}
}

/* Frames much larger than the socket's buffer, both ways of reading and writing in turns. */
static void test_large_frames(void **state)
{
	enum { LARGE = 3 << 20 };
	uint8_t *payload = malloc(LARGE);
	struct kv_frame frame;
	struct link link;
	int turns = 0;
	size_t i;

	(void)state;
	assert_non_null(payload);
	for (i = 0; i < LARGE; i++)
		payload[i] = (uint8_t)(i * 2654435761u >> 13);
	open_link(&link, 0, 0, 0);
	push(&link, payload, LARGE);
	push(&link, "after", 5);
	for (;;) {
		enum kv_frame_event event = KV_FRAME_END;

		flush(&link);
		assert_int_equal(kv_frame_read(link.reader, link.theirs, &event, &frame), KV_OK);
		if (event == KV_FRAME_READY) break;
		assert_int_equal(event, KV_FRAME_NONE);
		turns++;
	}
	assert_true(turns > 1);
	assert_int_equal(frame.length, LARGE);
	assert_memory_equal(frame.payload, payload, LARGE);
	assert_int_equal(flush(&link), 1);
	expect_payload(&link, "after", 5);
	/* The large buffer is not kept. */
	assert_true(kv_allocator_stats(link.allocator).bytes < 64 << 10);
	close_link(&link);
	free(payload);
}

static void test_slow_reader_is_bounded(void **state)
{
	static uint8_t payload[10000];
	struct link link;
	int pushed = 0;

	(void)state;
	open_link(&link, 0, 0, 100000);
	while (flush(&link) == 1)
		push(&link, payload, sizeof payload);
	while (kv_frame_push(link.writer, payload, sizeof payload, NULL, 0) == KV_OK)
		pushed++;
	assert_in_range(pushed, 1, 10);
	assert_true(kv_frame_writer_queued(link.writer) <= 100000);
	assert_int_equal(kv_frame_push(link.writer, payload, sizeof payload, NULL, 0), KV_LIMIT);
	close_link(&link);
}

static void test_writing_to_a_gone_peer(void **state)
{
	struct link link;
	int idle = -1;

	(void)state;
	open_link(&link, 0, 0, 0);
	push(&link, "x", 1);
	shutdown(link.theirs, SHUT_RDWR);
	assert_int_equal(kv_frame_write(link.writer, link.ours, &idle), KV_DISCONNECTED);
	assert_int_equal(idle, -1);
	close_link(&link);
}

static void test_invalid_pushes(void **state)
{
	static uint8_t payload[KV_FRAME_MAX_BYTES + 1];
	int descriptors[KV_FRAME_MAX_DESCRIPTORS + 1] = {0}, bad = 1000000;
	struct link link;

	(void)state;
	open_link(&link, 0, 0, 0);
	assert_int_equal(kv_frame_push(link.writer, payload, 0, NULL, 0), KV_INVALID);
	assert_int_equal(kv_frame_push(link.writer, payload, sizeof payload, NULL, 0), KV_INVALID);
	assert_int_equal(
	    kv_frame_push(link.writer, payload, 1, descriptors, KV_FRAME_MAX_DESCRIPTORS + 1),
	    KV_INVALID);
	assert_int_equal(kv_frame_push(link.writer, payload, 1, &bad, 1), KV_IO);
	assert_int_equal(kv_frame_writer_queued(link.writer), 0);
	assert_int_equal(flush(&link), 1);
	push(&link, payload, KV_FRAME_MAX_BYTES);
	close_link(&link);
}

/* Each frame gets its own descriptors, in order, whatever was read together. */
static void test_descriptors(void **state)
{
	int descriptors[3], before = open_descriptors(), i, taken;
	struct kv_frame frame;
	struct link link;

	(void)state;
	open_link(&link, 0, 3, 0);
	for (i = 0; i < 3; i++) {
		char name[] = "/tmp/kv-frame-XXXXXX";

		descriptors[i] = mkstemp(name);
		assert_true(descriptors[i] >= 0);
		unlink(name);
	}
	push(&link, "plain", 5);
	assert_int_equal(kv_frame_push(link.writer, "one", 3, descriptors, 1), KV_OK);
	push(&link, "none", 4);
	assert_int_equal(kv_frame_push(link.writer, "three", 5, descriptors, 3), KV_OK);
	assert_int_equal(kv_frame_push(link.writer, "left", 4, descriptors, 2), KV_OK);
	push(&link, "end", 3);
	assert_int_equal(flush(&link), 1);

	expect_payload(&link, "plain", 5);
	assert_int_equal(kv_frame_take_descriptor(link.reader), -1);
	expect_event(&link, KV_FRAME_READY, &frame);
	assert_int_equal(frame.descriptors, 1);
	taken = kv_frame_take_descriptor(link.reader);
	assert_int_equal(inode_of(taken), inode_of(descriptors[0]));
	assert_true(fcntl(taken, F_GETFD) & FD_CLOEXEC);
	close(taken);
	assert_int_equal(kv_frame_take_descriptor(link.reader), -1);
	expect_payload(&link, "none", 4);
	assert_int_equal(kv_frame_take_descriptor(link.reader), -1);
	expect_event(&link, KV_FRAME_READY, &frame);
	assert_int_equal(frame.descriptors, 3);
	for (i = 0; i < 3; i++) {
		taken = kv_frame_take_descriptor(link.reader);
		assert_int_equal(inode_of(taken), inode_of(descriptors[i]));
		close(taken);
	}
	expect_payload(&link, "left", 4); /* nobody takes its two */
	expect_payload(&link, "end", 3);
	for (i = 0; i < 3; i++)
		close(descriptors[i]);
	close_link(&link);
	assert_int_equal(open_descriptors(), before);
}

static void test_most_descriptors(void **state)
{
	int descriptors[KV_FRAME_MAX_DESCRIPTORS], before = open_descriptors(), i;
	struct kv_frame frame;
	struct link link;

	(void)state;
	open_link(&link, 0, KV_FRAME_MAX_DESCRIPTORS, 0);
	for (i = 0; i < KV_FRAME_MAX_DESCRIPTORS; i++)
		descriptors[i] = link.ours;
	assert_int_equal(
	    kv_frame_push(link.writer, "all", 3, descriptors, KV_FRAME_MAX_DESCRIPTORS), KV_OK);
	assert_int_equal(flush(&link), 1);
	expect_event(&link, KV_FRAME_READY, &frame);
	assert_int_equal(frame.descriptors, KV_FRAME_MAX_DESCRIPTORS);
	close_link(&link); /* closes them all */
	assert_int_equal(open_descriptors(), before);
}

static void test_unexpected_descriptors(void **state)
{
	int before = open_descriptors(), pair[2];
	uint32_t allowed;

	(void)state;
	for (allowed = 0; allowed < 2; allowed++) {
		struct link link;

		open_link(&link, 0, allowed, 0);
		pair[0] = link.ours;
		pair[1] = link.theirs;
		assert_int_equal(kv_frame_push(link.writer, "bad", 3, pair, allowed + 1), KV_OK);
		assert_int_equal(flush(&link), 1);
		expect_failure(&link, KV_PROTOCOL);
		close_link(&link);
	}
	assert_int_equal(open_descriptors(), before);
}

/* Queued descriptors are the writer's own copies, and end with it. */
static void test_descriptors_in_the_queue(void **state)
{
	int before = open_descriptors(), copy;
	struct link link;

	(void)state;
	open_link(&link, 0, 1, 0);
	copy = dup(link.ours);
	assert_int_equal(kv_frame_push(link.writer, "x", 1, &copy, 1), KV_OK);
	close(copy);
	assert_int_equal(flush(&link), 1);
	expect_payload(&link, "x", 1);
	copy = kv_frame_take_descriptor(link.reader);
	assert_true(copy >= 0);
	assert_int_equal(kv_frame_push(link.writer, "x", 1, &copy, 1), KV_OK);
	close(copy);
	close_link(&link);
	assert_int_equal(open_descriptors(), before);
}

static void test_allocation_failures(void **state)
{
	static const uint8_t bytes[] = {2, 0, 0, 0, 'o', 'k'};
	struct kv_allocator *allocator = kv_allocator_create("frames", 0);
	struct kv_frame_reader *reader = NULL;
	struct kv_frame_writer *writer = NULL;
	struct link link;

	(void)state;
	kv_allocator_fail_at(allocator, 1);
	assert_int_equal(kv_frame_reader_create(allocator, 0, 0, &reader), KV_NO_MEMORY);
	kv_allocator_fail_at(allocator, 1);
	assert_int_equal(kv_frame_writer_create(allocator, 0, &writer), KV_NO_MEMORY);
	assert_null(reader);
	assert_null(writer);
	assert_int_equal(kv_frame_reader_create(allocator, 0, 254, &reader), KV_INVALID);
	kv_allocator_destroy(allocator);

	open_link(&link, 0, 0, 0);
	kv_allocator_fail_at(link.allocator, 1);
	assert_int_equal(kv_frame_push(link.writer, "x", 1, NULL, 0), KV_NO_MEMORY);
	assert_int_equal(kv_frame_writer_queued(link.writer), 0);
	send_raw(&link, bytes, sizeof bytes);
	kv_allocator_fail_at(link.allocator, 1);
	expect_failure(&link, KV_NO_MEMORY);
	close_link(&link);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_every_split),
	    cmocka_unit_test(test_byte_by_byte),
	    cmocka_unit_test(test_lengths_that_are_refused),
	    cmocka_unit_test(test_memory_follows_what_arrived),
	    cmocka_unit_test(test_end_inside_a_frame),
	    cmocka_unit_test(test_large_frames),
	    cmocka_unit_test(test_slow_reader_is_bounded),
	    cmocka_unit_test(test_writing_to_a_gone_peer),
	    cmocka_unit_test(test_invalid_pushes),
	    cmocka_unit_test(test_descriptors),
	    cmocka_unit_test(test_most_descriptors),
	    cmocka_unit_test(test_unexpected_descriptors),
	    cmocka_unit_test(test_descriptors_in_the_queue),
	    cmocka_unit_test(test_allocation_failures),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
