#include "tests/unit/kvstore/engine_fixture.h"

#include "kvstore/engine/pool.h"

struct fixture {
	struct store store;
	struct kvs_environment environment;
	struct kvs_pool pool;
};

static void start(struct fixture *fixture, uint64_t limit, uint64_t region)
{
	memset(fixture, 0, sizeof *fixture);
	fixture->store.allocator = kv_allocator_create("pool test", 0);
	fixture->environment = store_environment(&fixture->store);
	kvs_pool_init(&fixture->pool, fixture->store.allocator, &fixture->environment, limit, region);
}

static void stop(struct fixture *fixture)
{
	assert_ok(kvs_pool_check(&fixture->pool));
	kvs_pool_deinit(&fixture->pool);
	assert_int_equal(fixture->store.world.regions_live, 0);
	assert_int_equal(kv_allocator_stats(fixture->store.allocator).blocks, 0);
	kv_allocator_destroy(fixture->store.allocator);
}

static struct kvs_extent *take(struct fixture *fixture, uint64_t bytes)
{
	struct kvs_extent *extent = NULL;

	assert_ok(kvs_pool_take(&fixture->pool, bytes, true, &extent));
	assert_ok(kvs_pool_check(&fixture->pool));
	return extent;
}

static void test_best_fit_and_merging(void **state)
{
	struct fixture f;
	struct kvs_extent *a, *b, *c, *d, *e;
	struct kvs_statistics statistics = {0};

	(void)state;
	start(&f, 4096, 4096);
	a = take(&f, 1000); /* 1024 */
	b = take(&f, 64);
	c = take(&f, 512);
	d = take(&f, 64);
	assert_int_equal(a->bytes, 1024);
	kvs_pool_give(&f.pool, a);
	kvs_pool_give(&f.pool, c);
	e = take(&f, 500);
	assert_int_equal(e->offset, 1024 + 64); /* the hole of 512, not the one of 1024 */
	kvs_pool_give(&f.pool, e);
	kvs_pool_give(&f.pool, b);
	kvs_pool_statistics(&f.pool, &statistics);
	assert_int_equal(statistics.free_extents, 2);
	kvs_pool_give(&f.pool, d);
	kvs_pool_statistics(&f.pool, &statistics);
	assert_int_equal(statistics.free_extents, 1);
	assert_int_equal(statistics.largest_free_bytes, 4096);
	stop(&f);
}

static void test_regions_grow_and_go(void **state)
{
	struct fixture f;
	struct kvs_extent *small, *large, *none = NULL;

	(void)state;
	start(&f, 10000, 2048); /* the limit is rounded down to 9984 */
	small = take(&f, 64);
	assert_int_equal(f.pool.total, 2048);
	large = take(&f, 5000); /* larger than a usual region */
	assert_int_equal(f.pool.total, 2048 + 5056);
	kvs_pool_give(&f.pool, large);
	kvs_pool_give(&f.pool, small);
	/* Two empty regions go, so that one of 9000 can be made. */
	large = take(&f, 9000);
	assert_int_equal(f.pool.region_count, 1);
	assert_int_equal(large->region->index, 2);
	assert_fails(kvs_pool_take(&f.pool, 2000, true, &none), KV_LIMIT, "9984");
	small = take(&f, 900); /* what is left of the limit becomes a small region */
	assert_int_equal(f.pool.total, 9984);
	kvs_pool_give(&f.pool, small);
	kvs_pool_trim(&f.pool);
	assert_int_equal(f.pool.region_count, 1);
	assert_fails(kvs_pool_take(&f.pool, 100, false, &none), KV_LIMIT, "no free extent");
	f.store.world.refuse_regions = true;
	assert_fails(kvs_pool_take(&f.pool, 100, true, &none), KV_LIMIT, "the machine has no memory");
	assert_null(none);
	stop(&f);
}

static void test_memory_is_bounded_by_the_region(void **state)
{
	struct fixture f;
	struct kvs_extent *extent;

	(void)state;
	start(&f, 4096, 1024);
	extent = take(&f, 128);
	assert_ptr_equal(kvs_pool_memory(&f.pool, extent->region->index, extent->offset, 128),
	    f.store.world.region[0] + extent->offset);
	assert_null(kvs_pool_memory(&f.pool, 0, 1000, 25));
	assert_null(kvs_pool_memory(&f.pool, 0, UINT64_MAX, 2));
	assert_null(kvs_pool_memory(&f.pool, 1, 0, 1));
	stop(&f);
}

static void test_allocation_failure(void **state)
{
	(void)state;
	for (uint64_t n = 1; n < 8; n++) {
		struct fixture f;
		struct kvs_extent *extent = NULL;
		enum kv_status status;

		start(&f, 4096, 1024);
		kv_allocator_fail_at(f.store.allocator, n);
		status = kvs_pool_take(&f.pool, 128, true, &extent);
		kv_allocator_fail_at(f.store.allocator, 0);
		assert_ok(kvs_pool_check(&f.pool));
		assert_int_equal(status, n <= 3 ? KV_NO_MEMORY : KV_OK);
		stop(&f);
	}
}

static void test_random_use(void **state)
{
	struct fixture f;
	struct kvs_extent *held[64] = {0};
	struct kv_random random;

	(void)state;
	start(&f, 64 * 1024, 8 * 1024);
	kv_random_seed(&random, 3);
	for (unsigned i = 0; i < 5000; i++) {
		struct kvs_extent **slot = &held[kv_random_below(&random, 64)];

		if (*slot) {
			uint8_t *memory =
			    kvs_pool_memory(&f.pool, (*slot)->region->index, (*slot)->offset, (*slot)->bytes);

			assert_non_null(memory);
			for (uint64_t at = 0; at < (*slot)->bytes; at += 8)
				assert_int_equal(memory[at], (uint8_t)(slot - held));
			kvs_pool_give(&f.pool, *slot);
			*slot = NULL;
		} else if (kvs_pool_take(&f.pool, 1 + kv_random_below(&random, 3000), true, slot) ==
		           KV_OK) {
			memset(
			    kvs_pool_memory(&f.pool, (*slot)->region->index, (*slot)->offset, (*slot)->bytes),
			    (int)(slot - held), (*slot)->bytes);
		}
		assert_ok(kvs_pool_check(&f.pool));
	}
	stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_best_fit_and_merging),
	    cmocka_unit_test(test_regions_grow_and_go),
	    cmocka_unit_test(test_memory_is_bounded_by_the_region),
	    cmocka_unit_test(test_allocation_failure),
	    cmocka_unit_test(test_random_use),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
