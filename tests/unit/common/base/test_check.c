#include "common/base/check.h"
#include "common/base/status.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void size_arithmetic_notices_overflow(void **state)
{
	size_t size = 7;
	uint64_t wide = 7;

	(void)state;
	assert_true(kv_add_size(SIZE_MAX - 1, 1, &size));
	assert_true(size == SIZE_MAX);
	assert_false(kv_add_size(SIZE_MAX, 1, &size));
	assert_true(kv_mul_size(SIZE_MAX / 2, 2, &size));
	assert_false(kv_mul_size(SIZE_MAX / 2 + 1, 2, &size));
	assert_true(size == SIZE_MAX - 1);
	assert_true(kv_mul_size(0, SIZE_MAX, &size));
	assert_int_equal(size, 0);
	assert_false(kv_add_u64(UINT64_MAX, UINT64_MAX, &wide));
	assert_false(kv_mul_u64(UINT64_C(1) << 32, UINT64_C(1) << 32, &wide));
	assert_int_equal(wide, 7);
	assert_true(kv_align_size(65, 64, &size));
	assert_int_equal(size, 128);
	assert_true(kv_align_size(64, 64, &size));
	assert_int_equal(size, 64);
	assert_false(kv_align_size(SIZE_MAX - 3, 64, &size));
}

static void a_failed_check_says_where(void **state)
{
	int ends[2];
	char text[512] = "";
	size_t length = 0;
	ssize_t got;
	int status;
	pid_t child;

	(void)state;
	assert_int_equal(pipe(ends), 0);
	child = fork();
	if (child == 0) {
		dup2(ends[1], STDERR_FILENO);
		KV_CHECK(1 + 1 == 2);
		KV_CHECK(1 + 1 == 3);
		_exit(7);
	}
	close(ends[1]);
	while ((got = read(ends[0], text + length, sizeof text - 1 - length)) > 0)
		length += (size_t)got;
	close(ends[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	/* Debug builds abort there, release builds go on. */
	assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 7);
	assert_non_null(strstr(text, "1 + 1 == 3"));
	assert_null(strstr(text, "1 + 1 == 2"));
	assert_non_null(strstr(text, "test_check.c:"));
}

static enum kv_status inner(bool fails)
{
	return fails ? kv_fail(KV_LIMIT, "inner %d", 5) : KV_OK;
}

static enum kv_status outer(bool fails, int *reached)
{
	KV_TRY(inner(fails));
	*reached = 1;
	return KV_OK;
}

static void errors_carry_their_text(void **state)
{
	int reached = 0;

	(void)state;
	assert_int_equal(outer(true, &reached), KV_LIMIT);
	assert_int_equal(reached, 0);
	assert_string_equal(kv_error_message(), "inner 5");
	assert_int_equal(kv_fail_prefix(KV_LIMIT, "while %s", "testing"), KV_LIMIT);
	assert_string_equal(kv_error_message(), "while testing: inner 5");
	/* The old message as an argument of the new one. */
	kv_fail(KV_IO, "again: %s", kv_error_message());
	assert_string_equal(kv_error_message(), "again: while testing: inner 5");
	kv_error_clear();
	assert_string_equal(kv_error_message(), "");
	assert_int_equal(outer(false, &reached), KV_OK);
	assert_int_equal(reached, 1);
	assert_int_equal(kv_status_from_wire(13), KV_STALE);
	assert_int_equal(kv_status_from_wire(9999), KV_INTERNAL);
	assert_string_equal(kv_status_text((enum kv_status)999), "unknown status");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(size_arithmetic_notices_overflow),
	    cmocka_unit_test(a_failed_check_says_where),
	    cmocka_unit_test(errors_carry_their_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
