#include "common/base/status.h"
#include "common/memory/allocator.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void blocks_are_counted_and_aligned(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	struct kv_allocator_stats stats;
	unsigned char *blocks[3];

	(void)state;
	blocks[0] = kv_alloc(allocator, 0);
	blocks[1] = kv_alloc(allocator, 100);
	blocks[2] = kv_alloc_array_zero(allocator, 50, 4);
	for (int i = 0; i < 3; i++) {
		assert_non_null(blocks[i]);
		assert_int_equal((uintptr_t)blocks[i] % 64, 0);
	}
	for (int i = 0; i < 200; i++)
		assert_int_equal(blocks[2][i], 0);
	stats = kv_allocator_stats(allocator);
	assert_int_equal(stats.allocations, 3);
	assert_int_equal(stats.blocks, 3);
	assert_int_equal(stats.bytes, 300);
	for (int i = 0; i < 3; i++)
		kv_free(allocator, blocks[i]);
	kv_free(allocator, NULL);
	stats = kv_allocator_stats(allocator);
	assert_int_equal(stats.blocks, 0);
	assert_int_equal(stats.bytes, 0);
	assert_int_equal(stats.peak_bytes, 300);
	kv_allocator_destroy(allocator);
	kv_allocator_destroy(NULL);
}

static void a_part_counts_in_the_whole(void **state)
{
	struct kv_allocator *whole = kv_allocator_create("whole", 1000);
	struct kv_allocator *one = kv_allocator_create_within(whole, "one", 800);
	struct kv_allocator *other = kv_allocator_create_within(whole, "other", 800);
	void *first = kv_alloc(one, 700);
	void *second;

	(void)state;
	assert_non_null(first);
	assert_null(kv_alloc(one, 101));   /* above its own limit */
	assert_null(kv_alloc(other, 301)); /* above what the whole has left */
	assert_int_equal(kv_allocator_stats(other).bytes, 0);
	second = kv_alloc(other, 300);
	assert_non_null(second);
	assert_int_equal(kv_allocator_stats(whole).bytes, 1000);
	second = kv_realloc(other, second, 100);
	assert_int_equal(kv_allocator_stats(whole).bytes, 800);
	kv_free(one, first);
	kv_free(other, second);
	assert_int_equal(kv_allocator_stats(whole).bytes, 0);
	kv_allocator_destroy(one);
	kv_allocator_destroy(other);
	kv_allocator_destroy(whole);
}

static void the_limit_holds(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("small", 1000);
	void *first;
	char *second;

	(void)state;
	first = kv_alloc(allocator, 900);
	assert_non_null(first);
	assert_null(kv_alloc(allocator, 101));
	assert_non_null(strstr(kv_error_message(), "small"));
	assert_non_null(strstr(kv_error_message(), "101"));
	assert_non_null(strstr(kv_error_message(), "1000"));
	second = kv_alloc(allocator, 100);
	assert_non_null(second);
	/* Inside its own padding a block grows in place, but the limit counts bytes as asked for. */
	assert_null(kv_realloc(allocator, second, 101));
	kv_free(allocator, first);
	second[99] = 'z';
	second = kv_realloc(allocator, second, 400);
	assert_non_null(second);
	assert_int_equal(second[99], 'z');
	assert_int_equal(kv_allocator_stats(allocator).bytes, 400);
	second = kv_realloc(allocator, second, 10);
	assert_int_equal(kv_allocator_stats(allocator).bytes, 10);
	assert_int_equal(kv_allocator_stats(allocator).failures, 2);
	kv_free(allocator, second);
	kv_allocator_destroy(allocator);
}

static void sizes_that_overflow_are_refused(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);

	(void)state;
	assert_null(kv_alloc_array(allocator, SIZE_MAX / 2, 3));
	assert_null(kv_alloc_array_zero(allocator, SIZE_MAX, SIZE_MAX));
	assert_null(kv_alloc(allocator, SIZE_MAX));
	assert_null(kv_alloc(allocator, SIZE_MAX - 100));
	assert_int_equal(kv_allocator_stats(allocator).failures, 4);
	assert_int_equal(kv_allocator_stats(allocator).bytes, 0);
	kv_allocator_destroy(allocator);
}

static void the_nth_call_fails_once(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	void *block;

	(void)state;
	kv_allocator_fail_at(allocator, 2);
	block = kv_alloc(allocator, 1);
	assert_non_null(block);
	assert_null(kv_strdup(allocator, "x"));
	assert_non_null(strstr(kv_error_message(), "injected"));
	/* A realloc that must move is an allocation; the old block survives its failure. */
	kv_allocator_fail_at(allocator, 1);
	assert_null(kv_realloc(allocator, block, 5000));
	block = kv_realloc(allocator, block, 5000);
	assert_non_null(block);
	kv_allocator_fail_at(allocator, 1);
	kv_allocator_fail_at(allocator, 0);
	kv_free(allocator, block);
	block = kv_realloc(allocator, NULL, 3);
	assert_non_null(block);
	kv_free(allocator, block);
	kv_allocator_destroy(allocator);
}

static void the_heap_is_always_there(void **state)
{
	char *copy = kv_strdup(kv_heap(), "text");

	(void)state;
	assert_string_equal(copy, "text");
	kv_free(kv_heap(), copy);
	kv_allocator_destroy(kv_heap());
	assert_non_null(kv_heap());
}

static void *churn(void *allocator)
{
	for (int i = 0; i < 2000; i++) {
		void *block = kv_alloc(allocator, (size_t)(i % 300));

		if (block) memset(block, i, (size_t)(i % 300));
		kv_free(allocator, block);
	}
	return NULL;
}

static void threads_keep_the_books(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("shared", 500);
	struct kv_allocator_stats stats;
	pthread_t threads[4];

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, churn, allocator), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	stats = kv_allocator_stats(allocator);
	assert_int_equal(stats.bytes, 0);
	assert_int_equal(stats.blocks, 0);
	assert_true(stats.peak_bytes <= 500);
	assert_int_equal(stats.allocations + stats.failures, 8000);
	kv_allocator_destroy(allocator);
}

/* What a mistake does in a child: debug and sanitizer builds abort, release builds log and go on.
 */
static void expect_report(void (*mistake)(void), const char *words)
{
	char text[4096] = "";
	size_t length = 0;
	ssize_t got;
	int ends[2];
	int status;
	pid_t child;

	assert_int_equal(pipe(ends), 0);
	child = fork();
	if (child == 0) {
		dup2(ends[1], STDERR_FILENO);
		mistake();
		_exit(0);
	}
	close(ends[1]);
	while ((got = read(ends[0], text + length, sizeof text - 1 - length)) > 0)
		length += (size_t)got;
	close(ends[0]);
	waitpid(child, &status, 0);
	assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
	assert_non_null(strstr(text, words));
}

static void leak(void)
{
	struct kv_allocator *allocator = kv_allocator_create("leaky", 0);

	(void)kv_alloc(allocator, 5);
	kv_allocator_destroy(allocator);
}

static void give_to_another(void)
{
	struct kv_allocator *allocator = kv_allocator_create("other", 0);

	kv_free(allocator, kv_alloc(kv_heap(), 5));
}

static void mistakes_are_reported(void **state)
{
	(void)state;
	expect_report(leak, "leaky");
	expect_report(give_to_another, "of another allocator");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(blocks_are_counted_and_aligned),
	    cmocka_unit_test(a_part_counts_in_the_whole),
	    cmocka_unit_test(the_limit_holds),
	    cmocka_unit_test(sizes_that_overflow_are_refused),
	    cmocka_unit_test(the_nth_call_fails_once),
	    cmocka_unit_test(the_heap_is_always_there),
	    cmocka_unit_test(threads_keep_the_books),
	    cmocka_unit_test(mistakes_are_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
