/* Networks that are trusted, as they are named, and this host's interface to them. The loopback
 * interface stands for any: it is up everywhere, and has 127.0.0.1 first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/transport/trusted_network.h"

static void what_names_a_network(void **state)
{
	static const char *const fine[] = {
	    "", "eth1", "enp3s0f1", "mlx5_0:1", "10.0.0.1", "10.0.0.0/24", "10.0.0.0/1", "10.0.0.9/32"};
	static const char *const wrong[] = {"10.0.0.0/33", "10.0.0.0/0", "10.0.0.0/", "10.0.0",
	    "10.0.0.0.1", "10.0.0.256", "10.0.0.0/-1", "10.0.0.0/24/1", "1", "eth0,eth1", "eth0 eth1",
	    "eth0/24", "an-interface-with-a-name-that-is-longer-than-any-is"};

	(void)state;
	for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++)
		if (kv_trusted_network_check(fine[i]) != KV_OK) fail_msg("%s is refused", fine[i]);
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
		if (kv_trusted_network_check(wrong[i]) != KV_INVALID) fail_msg("%s is taken", wrong[i]);
}

static void its_interface_is_found(void **state)
{
	static const char *const names[] = {
	    "lo", "127.0.0.1", "127.0.0.1/32", "127.0.0.0/8", "127.255.0.0/8"};

	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		struct kv_trusted_network network = {0};

		assert_int_equal(kv_trusted_network_find(names[i], &network), KV_OK);
		assert_string_equal(network.device, "lo");
		assert_string_equal(network.address, "127.0.0.1");
		assert_false(network.rdma);
	}
}

static void none_is_taken_for_it(void **state)
{
	static const char *const names[] = {
	    "lo1", "127.0.0.2", "127.0.0.64/26", "203.0.113.0/24", "no_such_device:1", "10.0.0.0/33"};

	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		struct kv_trusted_network network = {.device = "untouched"};

		if (kv_trusted_network_find(names[i], &network) != KV_INVALID)
			fail_msg("%s is found", names[i]);
		assert_string_equal(network.device, "untouched");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(what_names_a_network),
	    cmocka_unit_test(its_interface_is_found),
	    cmocka_unit_test(none_is_taken_for_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
