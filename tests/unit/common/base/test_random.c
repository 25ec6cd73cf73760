#include "common/base/clock.h"
#include "common/base/random.h"

#include <math.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void the_generator_is_the_published_one(void **state)
{
	/* xoshiro256** from the state {1, 2, 3, 4}: the first outputs of the reference program. */
	static const uint64_t expected[] = {11520, 0, 1509978240, UINT64_C(1215971899390074240)};
	struct kv_random random = {{1, 2, 3, 4}};

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_true(kv_random_next(&random) == expected[i]);
	/* splitmix64 from the seed 0 begins with this word. */
	kv_random_seed(&random, 0);
	assert_true(random.state[0] == UINT64_C(0xe220a8397b1dcdaf));
}

static void a_copied_state_goes_on_the_same(void **state)
{
	struct kv_random first;
	struct kv_random second;

	(void)state;
	kv_random_seed(&first, 42);
	for (int i = 0; i < 5; i++)
		kv_random_normal(&first);
	second = first;
	for (int i = 0; i < 5; i++) {
		assert_true(kv_random_normal(&first) == kv_random_normal(&second));
		assert_true(kv_random_below(&first, 1000) == kv_random_below(&second, 1000));
	}
	assert_memory_equal(&first, &second, sizeof first);
}

static void below_is_even_and_bounded(void **state)
{
	struct kv_random random;
	int counts[7] = {0};

	(void)state;
	kv_random_seed(&random, 1);
	for (int i = 0; i < 70000; i++) {
		uint64_t draw = kv_random_below(&random, 7);

		assert_true(draw < 7);
		counts[draw]++;
	}
	/* Five standard deviations around 10,000. */
	for (int i = 0; i < 7; i++)
		assert_in_range(counts[i], 9540, 10460);
	assert_true(kv_random_below(&random, 1) == 0);
	assert_true(kv_random_below(&random, UINT64_C(1) << 63) < UINT64_C(1) << 63);
}

static void unit_and_normal_have_their_moments(void **state)
{
	struct kv_random random;
	double sum = 0.0;
	double squares = 0.0;
	double units = 0.0;

	(void)state;
	kv_random_seed(&random, 3);
	for (int i = 0; i < 100000; i++) {
		double unit = kv_random_unit(&random);
		double normal = (double)kv_random_normal(&random);

		assert_true(unit >= 0.0 && unit < 1.0);
		assert_true(isfinite(normal));
		units += unit;
		sum += normal;
		squares += normal * normal;
	}
	assert_true(fabs(units / 100000 - 0.5) < 0.005);
	assert_true(fabs(sum / 100000) < 0.02);
	assert_true(fabs(squares / 100000 - 1.0) < 0.03);
}

static void entropy_differs(void **state)
{
	(void)state;
	assert_true(kv_random_entropy() != kv_random_entropy());
}

static void clocks_go_forward(void **state)
{
	uint64_t start = kv_now_ns();

	(void)state;
	assert_true(kv_now_ns() >= start);
	assert_true(kv_now_ms() >= start / 1000000);
	assert_true(kv_seconds_since(start) >= 0.0);
	assert_true(kv_seconds_since(start + UINT64_C(1000000000000)) == 0.0);
	/* After 2020. */
	assert_true(kv_wall_ms() > UINT64_C(1577836800000));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_generator_is_the_published_one),
	    cmocka_unit_test(a_copied_state_goes_on_the_same),
	    cmocka_unit_test(below_is_even_and_bounded),
	    cmocka_unit_test(unit_and_normal_have_their_moments),
	    cmocka_unit_test(entropy_differs),
	    cmocka_unit_test(clocks_go_forward),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
