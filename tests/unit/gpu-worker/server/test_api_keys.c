/* gpu-worker/server/api_keys.c: files that are taken and refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu-worker/server/api_keys.h"

static char path[64];

static void put(const char *text, mode_t mode)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(chmod(path, mode), 0);
}

static void refused(const char *text, mode_t mode, enum kv_status expected, const char *named)
{
	struct gw_api_keys *keys = NULL;

	put(text, mode);
	assert_int_equal(gw_api_keys_load(kv_heap(), path, &keys), expected);
	assert_null(keys);
	if (strstr(kv_error_message(), named) == NULL)
		fail_msg("\"%s\" does not name %s", kv_error_message(), named);
	assert_null(strstr(kv_error_message(), "secretsecret"));
}

static void takes_lines(void **state)
{
	struct gw_api_keys *keys;

	(void)state;
	put("\n# none of these\nfirst-key-0123456789\r\n\nsecond-key-0123456789", 0640);
	assert_int_equal(gw_api_keys_load(kv_heap(), path, &keys), KV_OK);
	assert_true(gw_api_keys_match(keys, "Bearer first-key-0123456789"));
	assert_true(gw_api_keys_match(keys, "bearer  second-key-0123456789"));
	assert_false(gw_api_keys_match(keys, NULL));
	assert_false(gw_api_keys_match(keys, ""));
	assert_false(gw_api_keys_match(keys, "Bearer"));
	assert_false(gw_api_keys_match(keys, "first-key-0123456789"));
	assert_false(gw_api_keys_match(keys, "Bearer first-key-012345678"));
	assert_false(gw_api_keys_match(keys, "Bearer first-key-01234567890"));
	assert_false(gw_api_keys_match(keys, "Bearer # none of these"));
	gw_api_keys_destroy(keys);
	gw_api_keys_destroy(NULL);
}

static void refuses_what_is_wrong(void **state)
{
	struct gw_api_keys *keys = NULL;
	static char many[1 << 17];

	(void)state;
	refused("first-key-0123456789\n", 0644, KV_REFUSED, "0644");
	refused("first-key-0123456789\n", 0620, KV_REFUSED, "0620");
	refused("", 0600, KV_INVALID, "holds no key");
	refused("# only\n\n", 0600, KV_INVALID, "holds no key");
	refused("good-key-0123456789\nsecretsecret\n", 0600, KV_INVALID, "line 2");
	refused("secretsecret secretsecret\n", 0600, KV_INVALID, "line 1");
	refused("secretsecretsecret\xff\n", 0600, KV_INVALID, "visible ASCII");
	for (size_t i = 0; i + 22 < sizeof many; i += 22)
		snprintf(many + i, 23, "%021zu\n", i);
	refused(many, 0600, KV_LIMIT, "larger");
	many[1030 * 22] = '\0';
	refused(many, 0600, KV_LIMIT, "more than 1024");
	assert_int_equal(gw_api_keys_load(kv_heap(), "/nonexistent/keys", &keys), KV_NOT_FOUND);
	assert_int_equal(gw_api_keys_load(kv_heap(), "/tmp", &keys), KV_REFUSED);
}

static void survives_every_failed_allocation(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	enum kv_status status = KV_NO_MEMORY;
	struct gw_api_keys *keys = NULL;
	uint64_t n = 0;

	(void)state;
	put("first-key-0123456789\n", 0600);
	while (status != KV_OK) {
		kv_allocator_fail_at(allocator, ++n);
		status = gw_api_keys_load(allocator, path, &keys);
		if (status == KV_OK)
			gw_api_keys_destroy(keys);
		else
			assert_int_equal(status, KV_NO_MEMORY);
		kv_allocator_fail_at(allocator, 0);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	}
	assert_true(n > 2);
	kv_allocator_destroy(allocator);
}

static int make_path(void **state)
{
	int fd;

	(void)state;
	snprintf(path, sizeof path, "/tmp/clusterkv-keys-XXXXXX");
	fd = mkstemp(path);
	if (fd >= 0) close(fd);
	return fd >= 0 ? 0 : -1;
}

static int remove_path(void **state)
{
	(void)state;
	return unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(takes_lines),
	    cmocka_unit_test(refuses_what_is_wrong),
	    cmocka_unit_test(survives_every_failed_allocation),
	};

	return cmocka_run_group_tests(tests, make_path, remove_path);
}
