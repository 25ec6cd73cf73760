#include "common/memory/arena.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void blocks_do_not_overlap(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	struct kv_arena *arena;
	unsigned char *blocks[100];

	(void)state;
	assert_int_equal(kv_arena_create(allocator, 256, &arena), KV_OK);
	for (size_t i = 0; i < 100; i++) {
		blocks[i] = kv_arena_alloc(arena, i);
		assert_non_null(blocks[i]);
		assert_int_equal((uintptr_t)blocks[i] % 16, 0);
		memset(blocks[i], (int)i, i);
	}
	for (size_t i = 0; i < 100; i++) {
		for (size_t j = 0; j < i; j++)
			assert_int_equal(blocks[i][j], i);
	}
	assert_true(kv_arena_used(arena) >= 4950);
	kv_arena_destroy(arena);
	kv_allocator_destroy(allocator);
}

static void alignment_is_kept_or_refused(void **state)
{
	struct kv_arena *arena;

	(void)state;
	assert_int_equal(kv_arena_create(kv_heap(), 512, &arena), KV_OK);
	for (int i = 0; i < 20; i++) {
		assert_non_null(kv_arena_alloc_aligned(arena, 1, 1));
		assert_int_equal((uintptr_t)kv_arena_alloc_aligned(arena, 3, 64) % 64, 0);
	}
	assert_null(kv_arena_alloc_aligned(arena, 1, 0));
	assert_null(kv_arena_alloc_aligned(arena, 1, 24));
	assert_null(kv_arena_alloc_aligned(arena, 1, 128));
	assert_null(kv_arena_alloc_array(arena, SIZE_MAX, 2));
	assert_null(kv_arena_alloc(arena, SIZE_MAX));
	kv_arena_destroy(arena);
	assert_int_equal(kv_arena_create(kv_heap(), 255, &arena), KV_INVALID);
	kv_arena_destroy(NULL);
}

static void one_round(struct kv_arena *arena)
{
	for (size_t i = 0; i < 50; i++)
		assert_non_null(kv_arena_alloc(arena, 10 + i * 13 % 700));
	assert_string_equal(kv_arena_strdup(arena, "text"), "text");
	assert_memory_equal(kv_arena_copy(arena, "ab", 3), "ab", 3);
}

static void a_second_round_allocates_nothing(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	struct kv_arena *arena;
	uint64_t before;

	(void)state;
	assert_int_equal(kv_arena_create(allocator, 512, &arena), KV_OK);
	one_round(arena);
	before = kv_allocator_stats(allocator).allocations;
	for (int i = 0; i < 3; i++) {
		kv_arena_reset(arena);
		assert_int_equal(kv_arena_used(arena), 0);
		one_round(arena);
	}
	assert_int_equal(kv_allocator_stats(allocator).allocations, before);
	kv_arena_destroy(arena);
	kv_allocator_destroy(allocator);
}

static void every_failure_is_survived(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	struct kv_arena *arena = NULL;

	(void)state;
	for (uint64_t n = 1; n <= 2; n++) {
		kv_allocator_fail_at(allocator, n);
		assert_int_equal(kv_arena_create(allocator, 256, &arena), KV_NO_MEMORY);
		assert_null(arena);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	}
	kv_allocator_fail_at(allocator, 3);
	assert_int_equal(kv_arena_create(allocator, 256, &arena), KV_OK);
	assert_null(kv_arena_alloc(arena, 300));
	/* What is there can still be used. */
	assert_non_null(kv_arena_alloc(arena, 100));
	assert_non_null(kv_arena_alloc(arena, 300));
	kv_arena_destroy(arena);
	kv_allocator_destroy(allocator);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(blocks_do_not_overlap),
	    cmocka_unit_test(alignment_is_kept_or_refused),
	    cmocka_unit_test(a_second_round_allocates_nothing),
	    cmocka_unit_test(every_failure_is_survived),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
