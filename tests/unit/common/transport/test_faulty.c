/* The wrapper that fails by name, around the map transport. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/runtime/fault_point.h"
#include "common/transport/transport.h"

enum { REGION = 65536 };

static void test_registry(void **state)
{
	(void)state;
	assert_ptr_equal(kv_transport_find("ucx"), &kv_transport_ucx);
	assert_ptr_equal(kv_transport_find("map"), &kv_transport_map);
	assert_null(kv_transport_find("faulty"));
	assert_null(kv_transport_find(""));
}

static void test_faults(void **state)
{
	const struct kv_transport_ops *faulty = kv_transport_faulty(&kv_transport_map);
	struct kv_transport_server *server;
	struct kv_transport_client *client;
	struct kv_transport_blob blob;
	struct kv_region *region = NULL;
	struct kv_remote *remote = NULL;
	struct kv_transfer transfer;
	uint8_t *base = NULL, buffer[100];
	int descriptor;

	(void)state;
	assert_string_equal(faulty->name, "faulty");
	assert_int_equal(
	    kv_fault_configure("transport.region.fail,transport.attach.fail,transport.get.fail,"
	                       "transport.get.corrupt,transport.get.delay,transport.wait.timeout=1@1",
	        NULL),
	    KV_OK);
	assert_int_equal(faulty->server_create(kv_heap(), &server), KV_OK);
	assert_int_equal(faulty->region_create(server, REGION, &region, &base), KV_LIMIT);
	assert_null(region);
	assert_int_equal(faulty->region_create(server, REGION, &region, &base), KV_OK);
	memset(base, 7, REGION);
	assert_int_equal(faulty->server_address(server, &blob), KV_OK);
	assert_int_equal(faulty->client_create(kv_heap(), &blob, &client), KV_OK);
	assert_int_equal(faulty->region_export(server, region, &blob, &descriptor), KV_OK);
	assert_int_equal(
	    faulty->region_attach(client, &blob, dup(descriptor), REGION, &remote), KV_REFUSED);
	assert_null(remote);
	assert_int_equal(faulty->region_attach(client, &blob, dup(descriptor), REGION, &remote), KV_OK);
	assert_null(faulty->direct_read(remote, 0, 8));

	transfer = (struct kv_transfer){remote, 0, sizeof buffer, buffer};
	assert_int_equal(faulty->get(client, &transfer, 1), KV_DISCONNECTED);
	assert_int_equal(faulty->get(client, &transfer, 1), KV_OK); /* late, and damaged */
	assert_int_equal(faulty->wait(client, 100), KV_OK);
	assert_memory_not_equal(buffer, base, sizeof buffer);
	assert_int_equal(faulty->get(client, &transfer, 1), KV_OK);
	assert_int_equal(faulty->wait(client, 100), KV_TIMEOUT);
	assert_int_equal(faulty->get(client, &transfer, 1), KV_OK);
	assert_int_equal(faulty->wait(client, 100), KV_OK);
	assert_memory_equal(buffer, base, sizeof buffer);
	assert_int_equal(kv_fault_fired("transport.get.delay"), 1);
	assert_int_equal(kv_fault_configure(NULL, NULL), KV_OK);
	faulty->client_destroy(client);
	faulty->region_destroy(server, region);
	faulty->server_destroy(server);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_registry),
	    cmocka_unit_test(test_faults),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
