/* Tenants and quotas as options say them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kvstore/server/quota.h"

#define GIB (UINT64_C(1) << 30)

static void test_nothing(void **state)
{
	struct kvs_quotas quotas;
	char name[KVS_MAX_TENANT];

	(void)state;
	assert_int_equal(kvs_quotas_parse(NULL, "", GIB, &quotas), KV_OK);
	assert_false(quotas.named);
	kvs_quotas_tenant(&quotas, 1000, name);
	assert_string_equal(name, "uid-1000");
}

static void test_limits(void **state)
{
	struct kvs_quotas quotas;

	(void)state;
	assert_int_equal(kvs_quotas_parse(NULL, "25%,uid-7=64MiB,team=50%", 100 * GIB, &quotas), KV_OK);
	assert_true(quotas.named);
	assert_int_equal(quotas.others, 25 * GIB);
	assert_int_equal(quotas.quota_count, 2);
	assert_string_equal(quotas.quotas[0].tenant, "uid-7");
	assert_int_equal(quotas.quotas[0].bytes, 64 << 20);
	assert_int_equal(quotas.quotas[1].bytes, 50 * GIB);
}

static void test_names(void **state)
{
	struct kvs_quotas quotas;
	char name[KVS_MAX_TENANT];

	(void)state;
	assert_int_equal(kvs_quotas_check_chosen("uid-7"), KV_INVALID);
	assert_int_equal(kvs_quotas_check_chosen("a/b"), KV_INVALID);
	assert_int_equal(kvs_quotas_check_chosen("uid-x"), KV_OK);
	assert_int_equal(kvs_quotas_check_tenants("1=uid-x,2=uid-,3=uid-7b,4=my-uid-7"), KV_OK);
	assert_int_equal(kvs_quotas_parse("*=guests,1000=team,1001=team", NULL, GIB, &quotas), KV_OK);
	kvs_quotas_tenant(&quotas, 1001, name);
	assert_string_equal(name, "team");
	kvs_quotas_tenant(&quotas, 5, name);
	assert_string_equal(name, "guests");
}

/* A quota is for somebody. */
static void test_known(void **state)
{
	static const struct {
		const char *tenants, *limits, *remote, *wrong;
	} cases[] = {
	    {NULL, "1GiB", NULL, NULL},
	    {NULL, "uid-7=1GiB,uid-0=25%", NULL, NULL},
	    {"7=team", "team=1GiB,uid-8=1GiB", NULL, NULL},
	    {"*=guests", "guests=1GiB", NULL, NULL},
	    {NULL, "remote=1GiB", "remote", NULL},
	    {NULL, "remote=1GiB", NULL, "\"remote\""},
	    {"7=team", "teem=1GiB", NULL, "\"teem\""},
	    {"7=team", "team=1GiB,uid-7=1GiB", NULL, "\"uid-7\""},
	    {"*=guests", "uid-7=1GiB", NULL, "\"uid-7\""},
	    {NULL, "uid-07=1GiB", NULL, "\"uid-07\""},
	    {NULL, "uid-99999999999=1GiB", NULL, "\"uid-99999999999\""},
	};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct kvs_quotas quotas;

		assert_int_equal(kvs_quotas_parse(cases[i].tenants, cases[i].limits, GIB, &quotas), KV_OK);
		assert_int_equal(
		    kvs_quotas_check_known(&quotas, cases[i].remote), cases[i].wrong ? KV_INVALID : KV_OK);
		if (cases[i].wrong) assert_non_null(strstr(kv_error_message(), cases[i].wrong));
	}
}

static void test_wrong(void **state)
{
	static const char *const limits[] = {"0", "0%", "101%", "x", "a=", "=1MiB", "1MiB,2MiB",
	    "team=1MiB,b=1MiB,team=2MiB", "a b=1MiB",
	    "a234567890123456789012345678901234567890123456789012345678901234567890=1MiB"};
	static const char *const tenants[] = {"1000", "x=team", "1000=", "-1=team", "1=a/b",
	    "1000=uid-7", "*=uid-0", "5=a,6=b,5=c", "*=a,5=a,*=b"};

	(void)state;
	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
		assert_int_equal(kvs_quotas_check_limits(limits[i]), KV_INVALID);
	for (size_t i = 0; i < sizeof tenants / sizeof *tenants; i++)
		assert_int_equal(kvs_quotas_check_tenants(tenants[i]), KV_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_nothing),
	    cmocka_unit_test(test_limits),
	    cmocka_unit_test(test_names),
	    cmocka_unit_test(test_known),
	    cmocka_unit_test(test_wrong),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
