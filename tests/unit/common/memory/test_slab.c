#include "common/memory/slab.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void objects_are_bounded_and_zeroed(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	struct kv_slab *slab;
	unsigned char *objects[3];
	uint64_t allocations;

	(void)state;
	assert_int_equal(kv_slab_create(allocator, 24, 3, &slab), KV_OK);
	allocations = kv_allocator_stats(allocator).allocations;
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 3; i++) {
			objects[i] = kv_slab_take(slab);
			assert_non_null(objects[i]);
			for (int j = 0; j < 24; j++)
				assert_int_equal(objects[i][j], 0);
			memset(objects[i], 0xff, 24);
		}
		assert_null(kv_slab_take(slab));
		assert_int_equal(kv_slab_taken(slab), 3);
		kv_slab_give(slab, objects[1]);
		assert_ptr_equal(kv_slab_take(slab), objects[1]);
		for (int i = 0; i < 3; i++)
			kv_slab_give(slab, objects[i]);
		kv_slab_give(slab, NULL);
		assert_int_equal(kv_slab_taken(slab), 0);
	}
	assert_int_equal(kv_allocator_stats(allocator).allocations, allocations);
	assert_int_equal(kv_slab_capacity(slab), 3);
	kv_slab_destroy(slab);
	kv_slab_destroy(NULL);
	kv_allocator_destroy(allocator);
}

static void an_index_from_a_peer_is_judged(void **state)
{
	struct kv_slab *slab;
	char *first;
	char *second;

	(void)state;
	assert_int_equal(kv_slab_create(kv_heap(), 7, 4, &slab), KV_OK);
	first = kv_slab_take(slab);
	second = kv_slab_take(slab);
	assert_ptr_equal(kv_slab_at(slab, kv_slab_index(slab, first)), first);
	assert_ptr_equal(kv_slab_at(slab, kv_slab_index(slab, second)), second);
	assert_null(kv_slab_at(slab, 4));
	assert_null(kv_slab_at(slab, UINT32_MAX));
	assert_int_equal(kv_slab_index(slab, first + 1), UINT32_MAX);
	assert_int_equal(kv_slab_index(slab, first - 16), UINT32_MAX);
	assert_int_equal(kv_slab_index(slab, first + 4096), UINT32_MAX);
	kv_slab_give(slab, second);
	assert_null(kv_slab_at(slab, kv_slab_index(slab, second)));
	kv_slab_destroy(slab);
}

static void wrong_sizes_and_failures_make_nothing(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	struct kv_slab *slab = NULL;

	(void)state;
	assert_int_equal(kv_slab_create(allocator, 0, 4, &slab), KV_INVALID);
	assert_int_equal(kv_slab_create(allocator, 4, 0, &slab), KV_INVALID);
	assert_int_equal(kv_slab_create(allocator, SIZE_MAX, 4, &slab), KV_INVALID);
	assert_int_equal(kv_slab_create(allocator, SIZE_MAX / 2, 4, &slab), KV_NO_MEMORY);
	for (uint64_t n = 1; n <= 3; n++) {
		kv_allocator_fail_at(allocator, n);
		assert_int_equal(kv_slab_create(allocator, 8, 8, &slab), KV_NO_MEMORY);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	}
	assert_null(slab);
	kv_allocator_fail_at(allocator, 0);
	kv_allocator_destroy(allocator);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(objects_are_bounded_and_zeroed),
	    cmocka_unit_test(an_index_from_a_peer_is_judged),
	    cmocka_unit_test(wrong_sizes_and_failures_make_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
