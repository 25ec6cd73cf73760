#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include <cmocka.h>

#include "common/base/random.h"
#include "kvstore/client/staging.h"

enum { SIZE = 64 * 100, HELD = 40 };

static void test_order(void **state)
{
	static struct kvc_staging staging;
	uint64_t a, b, c;

	(void)state;
	kvc_staging_init(&staging, 1024);
	assert_true(kvc_staging_take(&staging, 512, &a));
	assert_true(kvc_staging_take(&staging, 448, &b));
	assert_int_equal(a, 0);
	assert_int_equal(b, 512);
	assert_false(kvc_staging_take(&staging, 128, &c));
	/* The younger block gives no room while the older one is held. */
	kvc_staging_give(&staging, b);
	assert_false(kvc_staging_take(&staging, 128, &c));
	kvc_staging_give(&staging, a);
	assert_true(kvc_staging_take(&staging, 1024, &c));
	assert_int_equal(c, 0);
	assert_false(kvc_staging_take(&staging, 64, &a));
	kvc_staging_give(&staging, c);
	assert_false(kvc_staging_take(&staging, 1088, &c));
}

static void test_wrap(void **state)
{
	static struct kvc_staging staging;
	uint64_t a, b, c, d;

	(void)state;
	kvc_staging_init(&staging, 1024);
	assert_true(kvc_staging_take(&staging, 640, &a));
	assert_true(kvc_staging_take(&staging, 256, &b));
	kvc_staging_give(&staging, a);
	/* 128 bytes are left at the end, 640 at the start. */
	assert_true(kvc_staging_take(&staging, 512, &c));
	assert_int_equal(c, 0);
	assert_false(kvc_staging_take(&staging, 192, &d));
	kvc_staging_give(&staging, b);
	kvc_staging_give(&staging, c);
	assert_true(kvc_staging_take(&staging, 1024, &d));
}

/* Blocks that are held never overlap and never leave the memory. */
static void test_random(void **state)
{
	static struct kvc_staging staging;
	static uint8_t owner[SIZE];
	struct kv_random random;
	uint64_t offset[HELD], bytes[HELD];
	int held[HELD] = {0};
	unsigned taken = 0;

	(void)state;
	kv_random_seed(&random, 11);
	kvc_staging_init(&staging, SIZE);
	for (int step = 0; step < 100000; step++) {
		uint64_t slot = kv_random_below(&random, HELD);

		if (held[slot]) {
			for (uint64_t i = 0; i < bytes[slot]; i++) {
				assert_int_equal(owner[offset[slot] + i], slot + 1);
				owner[offset[slot] + i] = 0;
			}
			kvc_staging_give(&staging, offset[slot]);
			held[slot] = 0;
			continue;
		}
		bytes[slot] = 64 * (1 + kv_random_below(&random, 30));
		if (!kvc_staging_take(&staging, bytes[slot], &offset[slot])) continue;
		taken++;
		held[slot] = 1;
		assert_true(offset[slot] + bytes[slot] <= SIZE);
		for (uint64_t i = 0; i < bytes[slot]; i++) {
			assert_int_equal(owner[offset[slot] + i], 0);
			owner[offset[slot] + i] = (uint8_t)(slot + 1);
		}
	}
	assert_true(taken > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_order),
	    cmocka_unit_test(test_wrap),
	    cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
