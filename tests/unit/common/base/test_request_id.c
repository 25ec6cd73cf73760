#include "common/base/request_id.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void ids_are_plain(void **state)
{
	char longest[KV_REQUEST_ID_BYTES], longer[KV_REQUEST_ID_BYTES + 1];

	(void)state;
	memset(longest, 'a', sizeof longest);
	longest[sizeof longest - 1] = '\0';
	memset(longer, 'a', sizeof longer);
	longer[sizeof longer - 1] = '\0';
	assert_int_equal(kv_request_id_check("a"), KV_OK);
	assert_int_equal(kv_request_id_check("!~/%s\"\\"), KV_OK);
	assert_int_equal(kv_request_id_check(longest), KV_OK);
	assert_int_equal(kv_request_id_check(longer), KV_INVALID);
	assert_non_null(strstr(kv_error_message(), "1 to 64"));
	assert_int_equal(kv_request_id_check(""), KV_INVALID);
	assert_int_equal(kv_request_id_check("a b"), KV_INVALID);
	assert_non_null(strstr(kv_error_message(), "byte 2 is 0x20"));
	assert_int_equal(kv_request_id_check("a\nb"), KV_INVALID);
	assert_int_equal(kv_request_id_check("\x7f"), KV_INVALID);
	assert_int_equal(kv_request_id_check("\xc3\xa4"), KV_INVALID);
}

static void new_ids_differ(void **state)
{
	char one[KV_REQUEST_ID_BYTES], other[KV_REQUEST_ID_BYTES];

	(void)state;
	kv_request_id_make("cmpl", one);
	kv_request_id_make("cmpl", other);
	assert_int_equal(strlen(one), 5 + 16);
	assert_memory_equal(one, "cmpl-", 5);
	assert_string_not_equal(one, other);
	assert_int_equal(kv_request_id_check(one), KV_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(ids_are_plain),
	    cmocka_unit_test(new_ids_differ),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
