#include "common/collect/list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

struct item {
	int number;
	struct kv_list link;
};

/* The numbers of a list as one decimal number, read forwards and backwards. */
static int digits(const struct kv_list *list)
{
	struct kv_list *position;
	int forwards = 0;
	int backwards = 0;
	int factor = 1;

	KV_LIST_EACH(position, list)
	{
		forwards = forwards * 10 + KV_CONTAINER_OF(position, struct item, link)->number;
	}
	for (position = list->previous; position != list; position = position->previous) {
		backwards += factor * KV_CONTAINER_OF(position, struct item, link)->number;
		factor *= 10;
	}
	assert_int_equal(forwards, backwards);
	return forwards;
}

static void nodes_come_and_go(void **state)
{
	struct item items[4] = {{.number = 1}, {.number = 2}, {.number = 3}, {.number = 4}};
	struct kv_list list;
	struct kv_list other;

	(void)state;
	kv_list_init(&list);
	kv_list_init(&other);
	assert_true(kv_list_empty(&list));
	assert_null(kv_list_first(&list));
	assert_null(kv_list_last(&list));
	assert_null(kv_list_pop_front(&list));
	kv_list_push_back(&list, &items[1].link);
	kv_list_push_back(&list, &items[2].link);
	kv_list_push_front(&list, &items[0].link);
	assert_int_equal(digits(&list), 123);
	kv_list_remove(&items[1].link);
	kv_list_remove(&items[1].link);
	assert_int_equal(digits(&list), 13);
	kv_list_push_back(&other, &items[1].link);
	kv_list_push_back(&other, &items[3].link);
	kv_list_append(&list, &other);
	assert_int_equal(digits(&list), 1324);
	assert_true(kv_list_empty(&other));
	kv_list_append(&list, &other);
	kv_list_move_back(&list, &items[2].link);
	assert_int_equal(digits(&list), 1243);
	assert_ptr_equal(kv_list_first(&list), &items[0].link);
	assert_ptr_equal(kv_list_last(&list), &items[2].link);
	assert_ptr_equal(kv_list_pop_front(&list), &items[0].link);
	assert_int_equal(digits(&list), 243);
}

static void the_safe_walk_allows_removal(void **state)
{
	struct item items[4] = {{.number = 1}, {.number = 2}, {.number = 3}, {.number = 4}};
	struct kv_list list;
	struct kv_list *position;
	struct kv_list *following;

	(void)state;
	kv_list_init(&list);
	for (int i = 0; i < 4; i++)
		kv_list_push_back(&list, &items[i].link);
	KV_LIST_EACH_SAFE(position, following, &list)
	{
		if (KV_CONTAINER_OF(position, struct item, link)->number % 2) kv_list_remove(position);
	}
	assert_int_equal(digits(&list), 24);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(nodes_come_and_go),
	    cmocka_unit_test(the_safe_walk_allows_removal),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
