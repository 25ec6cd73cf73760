#include "common/collect/ring.h"

#include <pthread.h>
#include <sched.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

struct message {
	uint64_t number;
	uint64_t *payload; /* written before the push, read after the pop */
};

static void order_and_capacity_hold(void **state)
{
	struct kv_ring *ring;
	int value;

	(void)state;
	/* Five is no power of two: the capacity is what was asked for all the same. */
	assert_int_equal(kv_ring_create(kv_heap(), 5, sizeof value, &ring), KV_OK);
	assert_int_equal(kv_ring_capacity(ring), 5);
	assert_false(kv_ring_pop(ring, &value));
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 5; i++) {
			value = round * 10 + i;
			assert_true(kv_ring_push(ring, &value));
			assert_int_equal(kv_ring_count(ring), i + 1);
		}
		assert_false(kv_ring_push(ring, &value));
		for (int i = 0; i < 5; i++) {
			assert_true(kv_ring_pop(ring, &value));
			assert_int_equal(value, round * 10 + i);
		}
		assert_false(kv_ring_pop(ring, &value));
		/* Shift by one, so that the rounds begin at every place. */
		assert_true(kv_ring_push(ring, &value));
		assert_true(kv_ring_pop(ring, &value));
	}
	kv_ring_destroy(ring);
	kv_ring_destroy(NULL);
}

static void wrong_sizes_and_failures_make_nothing(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	struct kv_ring *ring = NULL;

	(void)state;
	assert_int_equal(kv_ring_create(allocator, 0, 4, &ring), KV_INVALID);
	assert_int_equal(kv_ring_create(allocator, 4, 0, &ring), KV_INVALID);
	assert_int_equal(kv_ring_create(allocator, SIZE_MAX, 4, &ring), KV_INVALID);
	assert_int_equal(kv_ring_create(allocator, SIZE_MAX / 8, 64, &ring), KV_NO_MEMORY);
	for (uint64_t n = 1; n <= 2; n++) {
		kv_allocator_fail_at(allocator, n);
		assert_int_equal(kv_ring_create(allocator, 4, 4, &ring), KV_NO_MEMORY);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	}
	assert_null(ring);
	kv_allocator_destroy(allocator);
}

enum { MESSAGES = 200000, PAYLOADS = 64 };

static uint64_t payloads[PAYLOADS];

static void *push_all(void *ring)
{
	for (uint64_t i = 0; i < MESSAGES; i++) {
		struct message message = {i, &payloads[i % PAYLOADS]};

		/* The ring holds half of the payloads at most: this one has been read long ago. */
		while (kv_ring_count(ring) >= PAYLOADS / 2)
			sched_yield();
		*message.payload = i * 3;
		while (!kv_ring_push(ring, &message))
			sched_yield();
	}
	return NULL;
}

static void two_threads_lose_nothing(void **state)
{
	struct kv_ring *ring;
	pthread_t pusher;
	struct message message;

	(void)state;
	assert_int_equal(kv_ring_create(kv_heap(), PAYLOADS / 2, sizeof message, &ring), KV_OK);
	assert_int_equal(pthread_create(&pusher, NULL, push_all, ring), 0);
	for (uint64_t i = 0; i < MESSAGES; i++) {
		while (!kv_ring_pop(ring, &message))
			sched_yield();
		assert_true(message.number == i);
		assert_true(*message.payload == i * 3);
	}
	pthread_join(pusher, NULL);
	assert_int_equal(kv_ring_count(ring), 0);
	kv_ring_destroy(ring);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(order_and_capacity_hold),
	    cmocka_unit_test(wrong_sizes_and_failures_make_nothing),
	    cmocka_unit_test(two_threads_lose_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
