/* Turns of open prompts: who is next, who ends when, and who waits for what another one stores. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpu-worker/server/prefill_order.h"

enum { UNIT = 100, MS = 1000000 };

/* Units of UNIT tokens until prompt `wanted` has ended, each of a millisecond. */
static uint32_t units_until(struct gw_open_prompt *prompts, uint32_t count, uint32_t wanted)
{
	int64_t owed = 0;
	uint32_t units = 0;

	while (prompts[wanted].left > 0) {
		uint32_t next = gw_prefill_next(prompts, count, owed);

		assert_true(next < count && prompts[next].left > 0);
		prompts[next].begun = 1;
		prompts[next].left -= UNIT;
		owed = gw_prefill_account(owed, next, MS);
		units++;
		/* The oldest has ended. */
		if (next == 0 && prompts[0].left == 0 && wanted != 0) {
			prompts++;
			count--;
			wanted--;
			owed = 0;
		}
	}
	return units;
}

static void a_short_prompt_overtakes(void **state)
{
	struct gw_open_prompt prompts[] = {{.left = 7000, .begun = 1}, {.left = 300}};

	(void)state;
	assert_true(units_until(prompts, 2, 1) <= 4);
}

/* Whatever is open beside it, it has a quarter of the time. */
static void the_oldest_goes_on(void **state)
{
	struct gw_open_prompt prompts[] = {{.left = 60000, .begun = 1}, {.left = 100}};
	int64_t owed = 0;
	uint32_t mine = 0;

	(void)state;
	for (uint32_t unit = 0; unit < 4000; unit++) {
		uint32_t next;

		/* A new short one each time. */
		prompts[1].left = 100;
		prompts[1].begun = 0;
		next = gw_prefill_next(prompts, 2, owed);
		mine += next == 0 ? 1u : 0u;
		owed = gw_prefill_account(owed, next, MS);
	}
	assert_in_range(mine, 990, 1010);
}

/* One that was opened first and not begun, too. */
static void the_oldest_begins(void **state)
{
	struct gw_open_prompt prompts[] = {{.left = 7000}, {.left = 300, .begun = 1}};

	(void)state;
	assert_int_equal(gw_prefill_next(prompts, 2, 0), 1);
	assert_int_equal(gw_prefill_next(prompts, 2, 1), 0);
}

/* Memory: another one is begun only where half as much is left of it. */
static void those_of_a_length_take_turns_in_order(void **state)
{
	struct gw_open_prompt prompts[] = {
	    {.left = 1000}, {.left = 1000}, {.left = 501}, {.left = 500}};

	(void)state;
	assert_int_equal(gw_prefill_next(prompts, 2, 0), 0);
	prompts[0].begun = 1;
	assert_int_equal(gw_prefill_next(prompts, 3, 0), 0);
	assert_int_equal(gw_prefill_next(prompts, 4, 0), 3);
	prompts[3].begun = 1;
	assert_int_equal(gw_prefill_next(prompts, 4, 0), 3);
}

static void who_will_find_it_waits(void **state)
{
	int32_t tokens[2000], other[2000];
	struct gw_open_prompt open = {.tokens = tokens, .count = 1000, .left = 1000, .begun = 1};
	struct gw_open_prompt resumed = {.count = 1000, .left = 1000};

	(void)state;
	for (int32_t i = 0; i < 2000; i++)
		tokens[i] = other[i] = i;
	other[900] = 5000;
	assert_true(gw_prefill_will_find(&open, 1, tokens, 1000));
	assert_true(gw_prefill_will_find(&open, 1, other, 1000));
	assert_true(gw_prefill_will_find(&open, 1, other, 1800));
	/* Most of it would be to compute, anyway. */
	assert_false(gw_prefill_will_find(&open, 1, other, 1802));
	/* It is computed sooner than it would be found. */
	assert_false(gw_prefill_will_find(&open, 1, tokens, 200));
	open.left = 300;
	assert_true(gw_prefill_will_find(&open, 1, tokens, 200));
	/* All that they share is stored. */
	open.found = 900;
	assert_false(gw_prefill_will_find(&open, 1, other, 1000));
	open.found = 0;
	other[0] = 7;
	assert_false(gw_prefill_will_find(&open, 1, other, 1000));
	assert_false(gw_prefill_will_find(&open, 1, NULL, 0));
	assert_false(gw_prefill_will_find(&resumed, 1, tokens, 1000));
	assert_false(gw_prefill_will_find(&open, 0, tokens, 1000));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_short_prompt_overtakes),
	    cmocka_unit_test(the_oldest_goes_on),
	    cmocka_unit_test(the_oldest_begins),
	    cmocka_unit_test(those_of_a_length_take_turns_in_order),
	    cmocka_unit_test(who_will_find_it_waits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
