#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "kernels/cpu/pool.h"
#include "tests/lib/kernel_harness.h"

enum { MAX_TASKS = 2000, THREADS = 4 };

struct count_run {
	uint8_t runs[MAX_TASKS]; /* written by the one thread that has the task */
	uint32_t round;
	atomic_uint wrong;
	struct kn_pool *pool;
};

static void count_task(void *context, uint32_t task, uint32_t thread)
{
	struct count_run *run = context;

	run->runs[task]++;
	if (thread >= kn_pool_threads(run->pool)) atomic_fetch_add(&run->wrong, 1);
	/* Scratch is this thread's alone while the task runs. */
	uint32_t *scratch = kn_pool_scratch(run->pool, thread);

	*scratch = task ^ run->round;
	for (volatile int i = 0; i < 20; i++)
		;
	if (*scratch != (task ^ run->round)) atomic_fetch_add(&run->wrong, 1);
}

static void short_sleep(void)
{
	struct timespec time = {0, 300000};

	nanosleep(&time, NULL);
}

/* Every task runs exactly once, run after run, with workers that spin, and that sleep. */
static void test_each_task_once(void **state)
{
	static const uint32_t counts[] = {0, 1, 2, 3, 5, 64, MAX_TASKS};
	struct count_run *run = kvt_alloc(1, sizeof *run);

	(void)state;
	for (uint32_t threads = 1; threads <= THREADS; threads++) {
		assert_int_equal(kn_pool_create(kv_heap(), threads, 4096, &run->pool), KV_OK);
		assert_int_equal(kn_pool_threads(run->pool), threads);
		assert_true(kn_pool_scratch_bytes(run->pool) >= 4096);
		for (run->round = 0; run->round < 600; run->round++) {
			uint32_t count = counts[run->round % 7];

			memset(run->runs, 0, sizeof run->runs);
			kn_pool_run(run->pool, count_task, run, count);
			for (uint32_t i = 0; i < MAX_TASKS; i++)
				if (run->runs[i] != (i < count))
					fail_msg(
					    "round %u: task %u of %u ran %u times", run->round, i, count, run->runs[i]);
			if (run->round % 20 == 0) short_sleep();
		}
		kn_pool_destroy(run->pool);
	}
	assert_int_equal(atomic_load(&run->wrong), 0);
	kvt_free(run);
}

static void sum_task(void *context, uint32_t task, uint32_t thread)
{
	(void)thread;
	atomic_fetch_add((_Atomic uint64_t *)context, task);
}

/* More tasks than the ticket word can count. */
static void test_many_tasks(void **state)
{
	enum { MANY = (1 << 20) + 77 };
	struct kn_pool *pool;
	_Atomic uint64_t sum = 0;

	(void)state;
	assert_int_equal(kn_pool_create(kv_heap(), 2, 64, &pool), KV_OK);
	kn_pool_run(pool, sum_task, &sum, MANY);
	assert_int_equal(atomic_load(&sum), (uint64_t)MANY * (MANY - 1) / 2);
	kn_pool_destroy(pool);
}

static void test_destroy_while_asleep(void **state)
{
	struct kn_pool *pool;

	(void)state;
	for (int i = 0; i < 20; i++) {
		assert_int_equal(kn_pool_create(kv_heap(), THREADS, 64, &pool), KV_OK);
		if (i % 2) short_sleep();
		kn_pool_destroy(pool);
	}
	kn_pool_destroy(NULL);
}

static void test_refusals(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("pool test", 0);
	struct kn_pool *pool = NULL;
	uint64_t n = 0;

	(void)state;
	assert_int_equal(kn_pool_create(allocator, 0, 64, &pool), KV_INVALID);
	for (;;) {
		kv_allocator_fail_at(allocator, ++n);
		enum kv_status status = kn_pool_create(allocator, 2, 64, &pool);

		if (status == KV_OK) break;
		assert_int_equal(status, KV_NO_MEMORY);
		assert_null(pool);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	}
	assert_true(n > 2);
	kv_allocator_fail_at(allocator, 0);
	kn_pool_destroy(pool);
	assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	kv_allocator_destroy(allocator);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_each_task_once),
	    cmocka_unit_test(test_many_tasks),
	    cmocka_unit_test(test_destroy_while_asleep),
	    cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
