/* The map transport and other sealed memory: what a hostile holder of the descriptor cannot do. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/transport/pages.h"
#include "common/transport/transport.h"
#include "common/transport/transport_map.h"

enum { REGION = 3 << 20 };

static const struct kv_transport_ops *const map = &kv_transport_map;

struct fixture {
	struct kv_allocator *allocator;
	struct kv_transport_server *server;
	struct kv_region *region;
	uint8_t *base;
	struct kv_transport_blob blob;
	int descriptor;
	struct kv_transport_client *client;
	struct kv_remote *remote;
};

static void open_fixture(struct fixture *fixture, uint64_t bytes)
{
	struct kv_transport_blob address;
	uint64_t i;

	memset(fixture, 0, sizeof *fixture);
	fixture->allocator = kv_allocator_create("map", 0);
	assert_int_equal(map->server_create(fixture->allocator, &fixture->server), KV_OK);
	assert_int_equal(
	    map->region_create(fixture->server, bytes, &fixture->region, &fixture->base), KV_OK);
	for (i = 0; i < bytes; i++) {
		assert_int_equal(fixture->base[i], 0);
		fixture->base[i] = (uint8_t)(i * 31 >> 3);
	}
	assert_int_equal(map->server_address(fixture->server, &address), KV_OK);
	assert_int_equal(
	    map->region_export(fixture->server, fixture->region, &fixture->blob, &fixture->descriptor),
	    KV_OK);
	assert_int_equal(map->client_create(fixture->allocator, &address, &fixture->client), KV_OK);
	assert_int_equal(map->region_attach(fixture->client, &fixture->blob, dup(fixture->descriptor),
	                     bytes, &fixture->remote),
	    KV_OK);
}

static void close_fixture(struct fixture *fixture)
{
	map->client_destroy(fixture->client);
	if (fixture->region) map->region_destroy(fixture->server, fixture->region);
	map->server_destroy(fixture->server);
	assert_int_equal(kv_allocator_stats(fixture->allocator).blocks, 0);
	kv_allocator_destroy(fixture->allocator);
}

static void test_reads(void **state)
{
	static uint8_t buffer[5000];
	struct kv_transfer transfers[2];
	struct fixture fixture;
	const uint8_t *memory;

	(void)state;
	open_fixture(&fixture, REGION);
	memory = map->direct_read(fixture.remote, 0, REGION);
	assert_non_null(memory);
	assert_ptr_not_equal(memory, fixture.base);
	assert_memory_equal(memory, fixture.base, REGION);
	fixture.base[77] ^= 0xff; /* the store goes on writing */
	assert_int_equal(memory[77], fixture.base[77]);
	assert_null(map->direct_read(fixture.remote, 1, REGION));
	assert_null(map->direct_read(fixture.remote, UINT64_MAX, 2));
	assert_null(map->direct_write(fixture.remote, 0, 1));
	assert_string_equal(map->lanes(fixture.client), "memfd");

	transfers[0] = (struct kv_transfer){fixture.remote, 10, 4000, buffer};
	transfers[1] = (struct kv_transfer){fixture.remote, REGION - 1000, 1000, buffer + 4000};
	assert_int_equal(map->get(fixture.client, transfers, 2), KV_OK);
	assert_int_equal(map->wait(fixture.client, 100), KV_OK);
	assert_memory_equal(buffer, fixture.base + 10, 4000);
	assert_memory_equal(buffer + 4000, fixture.base + REGION - 1000, 1000);
	transfers[1].bytes = 1001;
	assert_int_equal(map->get(fixture.client, transfers, 2), KV_INVALID);
	assert_int_equal(map->put(fixture.client, transfers, 1), KV_UNSUPPORTED);
	close_fixture(&fixture);
}

/* A size that is no whole number of pages can be used to its last byte and no further. */
static void test_odd_sizes(void **state)
{
	struct fixture fixture;

	(void)state;
	open_fixture(&fixture, 5000);
	assert_non_null(map->direct_read(fixture.remote, 4999, 1));
	assert_null(map->direct_read(fixture.remote, 4999, 2));
	close_fixture(&fixture);
}

/* Everything that somebody who holds the descriptor could try. */
static void try_to_write(int descriptor, size_t bytes)
{
	char path[64], byte = 9;
	void *memory;
	int again;

	errno = 0;
	assert_ptr_equal(
	    mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0), MAP_FAILED);
	assert_int_equal(errno, EPERM);
	memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	assert_int_equal(mprotect(memory, bytes, PROT_READ | PROT_WRITE), -1);
	assert_int_equal(pwrite(descriptor, &byte, 1, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(descriptor, 0), -1);
	assert_int_equal(ftruncate(descriptor, (off_t)bytes * 2), -1);
	assert_int_equal(
	    fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
	assert_int_equal(madvise(memory, 4096, MADV_REMOVE), -1);
	assert_int_equal(fcntl(descriptor, F_ADD_SEALS, F_SEAL_WRITE), -1);
	snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
	again = open(path, O_RDWR | O_CLOEXEC);
	if (again >= 0) {
		assert_ptr_equal(
		    mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0), MAP_FAILED);
		assert_int_equal(pwrite(again, &byte, 1, 0), -1);
		close(again);
	}
	munmap(memory, bytes);
}

static void test_seals_hold(void **state)
{
	struct fixture fixture;
	const uint8_t *memory;

	(void)state;
	open_fixture(&fixture, REGION);
	try_to_write(fixture.descriptor, REGION);
	memory = map->direct_read(fixture.remote, 0, REGION);
	assert_int_equal(mprotect((void *)(uintptr_t)memory, REGION, PROT_READ | PROT_WRITE), -1);
	assert_memory_equal(memory, fixture.base, REGION);
	close_fixture(&fixture);
}

static void test_control_page(void **state)
{
	void *page = NULL;
	const void *view = NULL;
	int descriptor = -1;

	(void)state;
	assert_int_equal(kv_control_page_create(&page, &descriptor), KV_OK);
	assert_int_equal(kv_control_page_map(dup(descriptor), &view), KV_OK);
	memcpy(page, "word", 4);
	assert_memory_equal(view, "word", 4);
	try_to_write(descriptor, KV_PAGE_BYTES);
	assert_memory_equal(view, "word", 4);
	kv_control_page_unmap(view);
	kv_control_page_destroy(page, descriptor);
}

static void test_staging(void **state)
{
	static uint8_t copy[65536];
	uint8_t *memory = NULL;
	int descriptor = -1, taken = -1;
	struct stat before, after;

	(void)state;
	assert_int_equal(kv_staging_create(0, &memory, &descriptor), KV_INVALID);
	assert_int_equal(kv_staging_create(5000, &memory, &descriptor), KV_INVALID);
	assert_int_equal(kv_staging_create(65536, &memory, &descriptor), KV_OK);
	assert_int_equal(ftruncate(descriptor, 0), -1);
	assert_int_equal(ftruncate(descriptor, 1 << 20), -1);
	assert_int_equal(kv_staging_accept(dup(descriptor), 65536 * 2, &taken), KV_REFUSED);
	assert_int_equal(kv_staging_accept(dup(descriptor), 4096, &taken), KV_REFUSED);
	assert_int_equal(kv_staging_accept(dup(descriptor), 0, &taken), KV_INVALID);
	assert_int_equal(kv_staging_accept(dup(descriptor), 65537, &taken), KV_INVALID);
	assert_int_equal(taken, -1);
	assert_int_equal(kv_staging_accept(dup(descriptor), 65536, &taken), KV_OK);
	memset(memory, 0x5a, 65536);
	assert_int_equal(kv_staging_read(taken, 0, 65536, copy), KV_OK);
	assert_memory_equal(copy, memory, 65536);
	assert_int_equal(kv_staging_read(taken, 4096, 61441, copy), KV_IO);
	/* Reading a hole gives zeros and costs no page. */
	assert_int_equal(madvise(memory, 65536, MADV_REMOVE), 0);
	assert_int_equal(fstat(descriptor, &before), 0);
	assert_int_equal(kv_staging_read(taken, 0, 65536, copy), KV_OK);
	assert_int_equal(fstat(descriptor, &after), 0);
	assert_int_equal(copy[0] | copy[65535], 0);
	assert_int_equal(after.st_blocks, before.st_blocks);
	close(taken);
	kv_staging_destroy(memory, 65536, descriptor);
}

/* Whatever could make the store fault while it copies is refused, and closed. */
static void test_hostile_staging(void **state)
{
	static const int too_few[] = {0, F_SEAL_SHRINK, F_SEAL_GROW};
	int pipes[2], descriptor, first_free, taken = -1;
	size_t i;

	(void)state;
	first_free = dup(0);
	close(first_free);
	for (i = 0; i < sizeof too_few / sizeof too_few[0]; i++) {
		descriptor = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		assert_int_equal(ftruncate(descriptor, 65536), 0);
		assert_int_equal(fcntl(descriptor, F_ADD_SEALS, too_few[i]), 0);
		assert_int_equal(kv_staging_accept(descriptor, 65536, &taken), KV_REFUSED);
	}
	descriptor = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	assert_int_equal(kv_staging_accept(descriptor, 65536, &taken), KV_REFUSED);
	descriptor = open("/tmp", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	if (descriptor >= 0) {
		assert_int_equal(ftruncate(descriptor, 65536), 0);
		assert_int_equal(kv_staging_accept(descriptor, 65536, &taken), KV_REFUSED);
	}
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(kv_staging_accept(pipes[0], 65536, &taken), KV_REFUSED);
	close(pipes[1]);
	assert_int_equal(kv_staging_accept(-1, 65536, &taken), KV_REFUSED);
	/* Huge pages may be missing when they are touched. */
	descriptor = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
	if (descriptor >= 0) {
		if (ftruncate(descriptor, 2 << 20) == 0)
			fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
		assert_int_equal(kv_staging_accept(descriptor, 2 << 20, &taken), KV_REFUSED);
	}
	assert_int_equal(taken, -1);
	assert_int_equal(dup(0), first_free); /* all were closed */
	close(first_free);
}

static void test_hostile_regions(void **state)
{
	struct fixture fixture;
	struct kv_remote *remote = NULL;
	int descriptor;

	(void)state;
	open_fixture(&fixture, REGION);
	descriptor = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(descriptor, REGION), 0);
	assert_int_equal(
	    map->region_attach(fixture.client, &fixture.blob, descriptor, REGION, &remote), KV_REFUSED);
	assert_int_equal(map->region_attach(fixture.client, &fixture.blob, dup(fixture.descriptor),
	                     REGION + 4096, &remote),
	    KV_REFUSED);
	assert_int_equal(
	    map->region_attach(fixture.client, &fixture.blob, -1, REGION, &remote), KV_REFUSED);
	assert_int_equal(
	    map->region_attach(fixture.client, &fixture.blob, dup(0), 0, &remote), KV_INVALID);
	assert_null(remote);
	fixture.blob.length = 1;
	assert_int_equal(
	    map->client_create(fixture.allocator, &fixture.blob, &(struct kv_transport_client *){NULL}),
	    KV_PROTOCOL);
	close_fixture(&fixture);
}

/* The client's view outlives the store's region. */
static void test_freed_region_stays_mapped(void **state)
{
	struct fixture fixture;
	const uint8_t *memory;
	uint8_t last;

	(void)state;
	open_fixture(&fixture, REGION);
	memory = map->direct_read(fixture.remote, 0, REGION);
	last = fixture.base[REGION - 1];
	map->region_destroy(fixture.server, fixture.region);
	fixture.region = NULL;
	assert_int_equal(memory[REGION - 1], last);
	map->region_detach(fixture.client, fixture.remote);
	close_fixture(&fixture);
}

static void test_too_large_is_refused(void **state)
{
	struct kv_region *region = NULL;
	struct fixture fixture;
	uint8_t *base = NULL;

	(void)state;
	open_fixture(&fixture, 4096);
	assert_int_equal(
	    map->region_create(fixture.server, UINT64_C(1) << 46, &region, &base), KV_LIMIT);
	assert_int_equal(map->region_create(fixture.server, 0, &region, &base), KV_INVALID);
	assert_int_equal(map->region_create(fixture.server, UINT64_MAX, &region, &base), KV_INVALID);
	assert_null(region);
	close_fixture(&fixture);
}

static void test_allocation_failures(void **state)
{
	struct kv_transport_blob address = {.length = 0};
	struct kv_transport_client *client = NULL;
	struct kv_transport_server *server = NULL;
	struct kv_region *region = NULL;
	struct kv_remote *remote = NULL;
	struct fixture fixture;
	uint8_t *base = NULL;

	(void)state;
	open_fixture(&fixture, 4096);
	kv_allocator_fail_at(fixture.allocator, 1);
	assert_int_equal(map->server_create(fixture.allocator, &server), KV_NO_MEMORY);
	kv_allocator_fail_at(fixture.allocator, 1);
	assert_int_equal(map->region_create(fixture.server, 4096, &region, &base), KV_NO_MEMORY);
	kv_allocator_fail_at(fixture.allocator, 1);
	assert_int_equal(map->client_create(fixture.allocator, &address, &client), KV_NO_MEMORY);
	kv_allocator_fail_at(fixture.allocator, 1);
	assert_int_equal(
	    map->region_attach(fixture.client, &fixture.blob, dup(fixture.descriptor), 4096, &remote),
	    KV_NO_MEMORY);
	assert_null(server);
	assert_null(region);
	assert_null(client);
	assert_null(remote);
	close_fixture(&fixture);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_reads),
	    cmocka_unit_test(test_odd_sizes),
	    cmocka_unit_test(test_seals_hold),
	    cmocka_unit_test(test_control_page),
	    cmocka_unit_test(test_staging),
	    cmocka_unit_test(test_hostile_staging),
	    cmocka_unit_test(test_hostile_regions),
	    cmocka_unit_test(test_freed_region_stays_mapped),
	    cmocka_unit_test(test_too_large_is_refused),
	    cmocka_unit_test(test_allocation_failures),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
