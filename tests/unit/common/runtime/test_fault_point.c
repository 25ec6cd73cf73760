#include "common/runtime/fault_point.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static const char *const known[] = {"write", "commit", "read", NULL};

/* Ten passes of a point as a word: '1' where it fired. */
static const char *passes(const char *name)
{
	static char word[11];

	for (int i = 0; i < 10; i++)
		word[i] = kv_fault_fires(name) ? '1' : '0';
	return word;
}

static void off_never_fires(void **state)
{
	(void)state;
	assert_string_equal(passes("write"), "0000000000");
	assert_int_equal(kv_fault_configure("write", known), KV_OK);
	assert_int_equal(kv_fault_configure("", known), KV_OK);
	assert_string_equal(passes("write"), "0000000000");
	assert_int_equal(kv_fault_configure("write", known), KV_OK);
	assert_int_equal(kv_fault_configure(NULL, known), KV_OK);
	assert_string_equal(passes("write"), "0000000000");
	assert_int_equal(kv_fault_fired("write"), 0);
}

static void count_and_skip_are_kept(void **state)
{
	(void)state;
	assert_int_equal(kv_fault_configure("write=2@3,commit,read=always@1", known), KV_OK);
	assert_string_equal(passes("write"), "0001100000");
	assert_string_equal(passes("commit"), "1000000000");
	assert_string_equal(passes("read"), "0111111111");
	assert_string_equal(passes("other"), "0000000000");
	assert_int_equal(kv_fault_fired("write"), 2);
	assert_int_equal(kv_fault_fired("read"), 9);
	/* Configured anew, it starts anew. */
	assert_int_equal(kv_fault_configure("write=1", known), KV_OK);
	assert_string_equal(passes("write"), "1000000000");
	assert_string_equal(passes("read"), "0000000000");
}

static void wrong_texts_change_nothing(void **state)
{
	static const char *const wrong[] = {"wrte", "write=", "write=x", "write=1@", "write=-1", "=1",
	    "write=1,,commit", "write=1;commit", "write@x",
	    "a-name-that-is-longer-than-any-fault-point-may-ever-be"};

	(void)state;
	assert_int_equal(kv_fault_configure("write=always", known), KV_OK);
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
		assert_int_equal(kv_fault_configure(wrong[i], known), KV_INVALID);
	assert_string_equal(passes("write"), "1111111111");
	assert_int_equal(kv_fault_configure("wrte", NULL), KV_OK);
	assert_int_equal(kv_fault_configure("wrte", known), KV_INVALID);
	assert_non_null(strstr(kv_error_message(), "wrte"));
	kv_fault_configure(NULL, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(off_never_fires),
	    cmocka_unit_test(count_and_skip_are_kept),
	    cmocka_unit_test(wrong_texts_change_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
