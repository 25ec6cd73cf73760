#include "common/runtime/state_machine.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum door_state { DOOR_OPEN, DOOR_CLOSED, DOOR_LOCKED, DOOR_GONE, DOOR_STATES };

struct door {
	struct kv_state_machine machine;
	bool key_turned;
	int checks;
};

static const char *check_door(const void *object, unsigned state)
{
	struct door *door = (struct door *)(uintptr_t)object;

	door->checks++;
	return state == DOOR_LOCKED && !door->key_turned ? "locked without a key" : NULL;
}

static const char *const names[] = {"open", "closed", "locked", "gone"};
static const uint32_t allowed[] = {
    KV_STATE_BIT(DOOR_CLOSED) | KV_STATE_BIT(DOOR_GONE),
    KV_STATE_BIT(DOOR_OPEN) | KV_STATE_BIT(DOOR_CLOSED) | KV_STATE_BIT(DOOR_LOCKED),
    KV_STATE_BIT(DOOR_CLOSED),
    0,
};
static const struct kv_state_table table = {"door", names, allowed, DOOR_STATES, check_door};

static void only_the_table_s_moves_are_made(void **state)
{
	struct door door = {.key_turned = true};

	(void)state;
	kv_state_init(&door.machine, &table, DOOR_OPEN);
	assert_string_equal(kv_state_name(&door.machine), "open");
	assert_int_equal(kv_state_move(&door.machine, DOOR_LOCKED, &door), KV_INTERNAL);
	assert_non_null(strstr(kv_error_message(), "door: no way from state open to locked"));
	assert_int_equal(door.machine.state, DOOR_OPEN);
	assert_int_equal(kv_state_move(&door.machine, DOOR_OPEN, &door), KV_INTERNAL);
	assert_int_equal(kv_state_move(&door.machine, 99, &door), KV_INTERNAL);
	assert_int_equal(door.checks, 0);
	assert_int_equal(kv_state_move(&door.machine, DOOR_CLOSED, &door), KV_OK);
	assert_int_equal(kv_state_move(&door.machine, DOOR_CLOSED, &door), KV_OK);
	assert_int_equal(kv_state_move(&door.machine, DOOR_LOCKED, &door), KV_OK);
	assert_int_equal(door.checks, 3);
	assert_false(kv_state_allowed(&door.machine, DOOR_GONE));
	assert_true(kv_state_allowed(&door.machine, DOOR_CLOSED));
	assert_false(kv_state_final(&door.machine));
}

static void the_invariant_is_checked(void **state)
{
	struct door door = {.key_turned = false};

	(void)state;
	kv_state_init(&door.machine, &table, DOOR_CLOSED);
	assert_int_equal(kv_state_move(&door.machine, DOOR_LOCKED, &door), KV_INTERNAL);
	assert_non_null(strstr(kv_error_message(), "in state locked: locked without a key"));
	assert_int_equal(door.machine.state, DOOR_LOCKED);
	kv_state_init(&door.machine, &table, DOOR_OPEN);
	assert_int_equal(kv_state_move(&door.machine, DOOR_GONE, &door), KV_OK);
	assert_true(kv_state_final(&door.machine));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(only_the_table_s_moves_are_made),
	    cmocka_unit_test(the_invariant_is_checked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
