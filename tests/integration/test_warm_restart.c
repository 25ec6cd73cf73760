/* A restart that keeps the arena: what was stored is found again, what is damaged is dropped and
 * counted, and an index that is not right is refused. */
#define _GNU_SOURCE /* memfd_create, seals */
#include "tests/lib/store_client_test.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/service_manager.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

const char *test_transport = "map";
const char *test_program;

enum { RECONNECT_MS = 10000, CORRUPT_AT = 100, INDEX = 0, REGION = 1 };

static struct store_fixture fixture;
static struct service_manager manager;
static const char *const usual[] = {"--transport=map", NULL};
static const char *const names[] = {"clusterkv-index", "clusterkv-region-"};

static int set_up(void **state)
{
	(void)state;
	return store_fixture_init(&fixture) && service_manager_init(&manager, &fixture) &&
	               service_manager_start(&manager, &fixture, usual)
	           ? 0
	           : -1;
}

static int tear_down(void **state)
{
	bool stopped = !fixture.pid || service_manager_stop(&manager, &fixture);

	(void)state;
	service_manager_deinit(&manager);
	return store_fixture_deinit(&fixture, !stopped) && stopped ? 0 : -1;
}

static void restart(void)
{
	assert_true(service_manager_stop(&manager, &fixture));
	assert_true(service_manager_start(&manager, &fixture, usual));
}

/* Open the prompt of this seed: how many of its cuts are stored, which are then right. */
static uint32_t hits(struct kvc_store *store, int32_t seed)
{
	uint64_t deadline = store_fixture_now() + RECONNECT_MS;
	struct kvc_sequence *sequence = NULL;
	enum kv_status status;
	uint32_t shared = 0;

	/* A worker that was connected to the last run comes again by itself. */
	while ((status = test_open(store, NULL, seed, &sequence)) != KV_OK &&
	       store_fixture_now() < deadline)
		store_fixture_sleep(20);
	assert_ok(status);
	kvc_sequence_segments(sequence, &shared);
	assert_int_equal(test_compare(store, sequence, seed), 0);
	kvc_sequence_close(sequence, 0);
	return shared;
}

static double restored(void)
{
	return store_fixture_stat(&fixture, "restored_segments_total");
}

static double dropped(const char *reason)
{
	char name[96];

	snprintf(name, sizeof name, "restore_dropped_segments_total{reason=\"%s\"}", reason);
	return store_fixture_stat(&fixture, name);
}

static void test_hits_after_restarts(void **state)
{
	struct kvc_store *store = test_connect(&fixture, "worker");
	double tokens;

	(void)state;
	test_store_prompt(store, 1);
	assert_int_equal(hits(store, 1), CUTS);
	tokens = store_fixture_stat(&fixture, "prefix_hit_tokens_total{how=\"shared\"}");
	for (int round = 0; round < 3; round++) {
		restart();
		assert_int_equal((int)restored(), CUTS * (round + 1));
		assert_int_equal(hits(store, 1), CUTS);
		/* As many tokens of this one prompt as before. */
		assert_int_equal(
		    (int)store_fixture_stat(&fixture, "prefix_hit_tokens_total{how=\"shared\"}"),
		    (int)tokens);
		/* What is new lies beside what was kept, and is kept with it. */
		assert_int_equal(hits(store, 10 + round), 0);
		test_store_prompt(store, 10 + round);
	}
	restart();
	for (int round = 0; round < 3; round++)
		assert_int_equal(hits(store, 10 + round), CUTS);
	assert_int_equal((int)(dropped("checksum") + dropped("other")), 0);
	kvc_close(store);
}

/* The same bytes, but for what `change` did to them, under the same seals. */
static void replace(int which, size_t cut, size_t flip, int seals)
{
	int kept = service_manager_find(&manager, names[which]);
	int made = memfd_create("replaced", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct stat file;
	uint8_t *from, *to;
	size_t bytes;

	assert_true(kept >= 0 && made >= 0 && fstat(kept, &file) == 0);
	bytes = cut ? cut : (size_t)file.st_size;
	assert_int_equal(ftruncate(made, (off_t)bytes), 0);
	from = mmap(NULL, (size_t)file.st_size, PROT_READ, MAP_SHARED, kept, 0);
	to = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
	assert_true(from != MAP_FAILED && to != MAP_FAILED);
	memcpy(to, from, bytes < (size_t)file.st_size ? bytes : (size_t)file.st_size);
	if (flip) to[flip] ^= 0x10;
	munmap(to, bytes);
	munmap(from, (size_t)file.st_size);
	assert_int_equal(fcntl(made, F_ADD_SEALS, seals), 0);
	service_manager_replace(&manager, names[which], made);
}

static const int region_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
static const int index_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

static void test_flipped_byte(void **state)
{
	struct kvc_store *store = test_connect(&fixture, "worker");

	(void)state;
	test_store_prompt(store, 1);
	assert_true(service_manager_stop(&manager, &fixture));
	replace(REGION, 0, CORRUPT_AT, region_seals);
	assert_true(service_manager_start(&manager, &fixture, usual));
	/* One is damaged, and what followed it in the prompt has lost its parent. */
	assert_int_equal((int)dropped("checksum"), 1);
	assert_int_equal((int)(restored() + dropped("other")), CUTS - 1);
	assert_in_range(hits(store, 1), 0, CUTS - 1);
	test_store_prompt(store, 1);
	assert_int_equal(hits(store, 1), CUTS);
	kvc_close(store);
}

/* Memory that is full of what was kept makes room for what is new. */
static void test_memory_at_the_limit(void **state)
{
	static const char *const small[] = {"--transport=map", "--memory=4MiB", NULL};
	struct kvc_store *store;
	int kept = 0;

	(void)state;
	assert_true(service_manager_stop(&manager, &fixture));
	assert_true(service_manager_start(&manager, &fixture, small));
	store = test_connect(&fixture, "worker");
	for (int seed = 0; seed < 12; seed++)
		test_store_prompt(store, seed);
	assert_true(service_manager_stop(&manager, &fixture));
	assert_true(service_manager_start(&manager, &fixture, small));
	for (int seed = 0; seed < 12; seed++)
		kept += hits(store, seed) > 0;
	assert_true(kept > 0);
	for (int seed = 20; seed < 32; seed++) {
		test_store_prompt(store, seed);
		assert_int_equal(hits(store, seed), CUTS);
	}
	kvc_close(store);
}

struct lie {
	const char *what;
	int which;
	size_t cut, flip;
	int seals;
};

/* An index that is not right is refused in words; the store starts empty and works. */
static void test_refused(void **state)
{
	const struct lie lies[] = {
	    {"a damaged header", INDEX, 0, 20, index_seals},
	    {"a damaged segment", INDEX, 0, 600, index_seals},
	    {"another magic", INDEX, 0, 1, index_seals},
	    {"cut off", INDEX, 4096, 0, index_seals},
	    {"it can be written to", INDEX, 0, 0, F_SEAL_SHRINK | F_SEAL_GROW},
	    {"a region of another size", REGION, 1 << 20, 0, region_seals},
	    {"a region that can be written to", REGION, 0, 0, F_SEAL_SHRINK | F_SEAL_GROW},
	};

	(void)state;
	for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
		struct kvc_store *store = test_connect(&fixture, "worker");

		printf("%s\n", lies[i].what);
		test_store_prompt(store, 1);
		assert_true(service_manager_stop(&manager, &fixture));
		replace(lies[i].which, lies[i].cut, lies[i].flip, lies[i].seals);
		assert_true(service_manager_start(&manager, &fixture, usual));
		assert_int_equal((int)restored(), 0);
		assert_int_equal(
		    (int)store_fixture_stat(&fixture, "restore_refused_total"), lies[i].which == INDEX);
		assert_int_equal((int)dropped("other"), lies[i].which == REGION ? CUTS : 0);
		assert_int_equal(hits(store, 1), 0);
		kvc_close(store);
	}
}

/* Descriptors of no use, an index without its regions, regions without their index. */
static void test_parts(void **state)
{
	struct kvc_store *store = test_connect(&fixture, "worker");

	(void)state;
	test_store_prompt(store, 1);
	assert_true(service_manager_stop(&manager, &fixture));
	service_manager_replace(&manager, names[REGION], open("/dev/null", O_RDONLY | O_CLOEXEC));
	assert_true(service_manager_start(&manager, &fixture, usual));
	assert_int_equal((int)restored(), 0);
	assert_int_equal(hits(store, 1), 0);
	test_store_prompt(store, 1);
	assert_true(service_manager_stop(&manager, &fixture));
	service_manager_replace(&manager, names[INDEX], open("/dev/null", O_RDONLY | O_CLOEXEC));
	assert_true(service_manager_start(&manager, &fixture, usual));
	assert_int_equal((int)restored(), 0);
	assert_int_equal(hits(store, 1), 0);
	/* Nothing stays with the manager while the store runs. */
	store_fixture_sleep(50);
	assert_int_equal((int)manager.count, 0);
	kvc_close(store);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_hits_after_restarts, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_flipped_byte, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_memory_at_the_limit, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_refused, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_parts, set_up, tear_down),
	};

	(void)argc;
	test_program = argv[0];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
