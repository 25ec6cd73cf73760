/* `gpu-worker serve` over the disk tier: a prompt whose key/values were evicted from memory, or
 * whose store was killed, is found in files and answered with the same tokens; what is damaged
 * there is computed again. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/serve_fixture.h"
#include "tests/lib/store_fixture.h"

#define MODEL KV_TINY_MODELS "/tiny_llama.gguf"

enum { PATIENCE_MS = 20000, DATA_AT = 4096 + 100 };

static struct store_fixture store;
static struct serve_fixture worker;
static char folder[160], disk_option[192];
static const char *const store_options[] = {
    "--transport=map", "--heartbeat=100ms", "--disk-size=64MiB", disk_option, NULL};

static int init(void **state)
{
	const char *const options[] = {"--model", MODEL, "--store", store.address, "--transport", "map",
	    "--policy", "clusterkv", "--budget", "48", "--sinks", "4", "--window", "32", "--fold", "32",
	    "--segment", "64", "--cluster-tokens", "8", "--drain-timeout", "100ms", NULL};

	(void)state;
	memset(&worker, 0, sizeof worker);
	if (!store_fixture_init(&store)) return -1;
	snprintf(folder, sizeof folder, "%s/disk", store.directory);
	snprintf(disk_option, sizeof disk_option, "--disk=%s", folder);
	return store_fixture_start_with_disk(&store, store_options) &&
	               serve_fixture_start(&worker, options, true)
	           ? 0
	           : -1;
}

/* Visit the segments' files; `flip`: change a byte of their units. All are removed without. */
static unsigned files(bool flip)
{
	DIR *entries = opendir(folder);
	const struct dirent *entry;
	unsigned count = 0;

	while (entries && (entry = readdir(entries))) {
		char path[512];
		uint8_t byte = 0;
		int descriptor;

		snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
		if (entry->d_name[0] == '.') continue;
		if (!flip) unlink(path);
		if (!flip || !strstr(entry->d_name, ".segment")) continue;
		descriptor = open(path, O_RDWR | O_CLOEXEC);
		assert_int_equal(pread(descriptor, &byte, 1, DATA_AT), 1);
		byte ^= 0x10;
		assert_int_equal(pwrite(descriptor, &byte, 1, DATA_AT), 1);
		close(descriptor);
		count++;
	}
	if (entries) closedir(entries);
	return count;
}

static int deinit(void **state)
{
	bool worked = serve_fixture_stop(&worker, false);
	bool stopped = store_fixture_stop(&store);

	(void)state;
	files(false);
	rmdir(folder);
	return store_fixture_deinit(&store, !stopped) && stopped && worked ? 0 : -1;
}

static char *answer(long *hit_tokens)
{
	char *text = serve_long_answer(&worker, hit_tokens);

	assert_non_null(text);
	return text;
}

/* Until nothing is in memory; files stay. */
static void evict(void)
{
	char text[256];

	assert_true(store_fixture_ask(&store, "evict", text, sizeof text));
	assert_true(store_fixture_wait_stat(&store, "segments{state=\"committed\"}", 0, PATIENCE_MS));
}

static void the_answer_is_the_same(void **state)
{
	long cold, memory, disk, again, damaged;
	char *first, *second, *third, *fourth, *fifth;
	double promoted, files_then;

	(void)state;
	first = answer(&cold);
	second = answer(&memory);
	assert_int_equal(cold, 0);
	assert_true(memory > 64);
	files_then = store_fixture_stat(&store, "segments{state=\"committed\"}");
	while (store_fixture_stat(&store, "disk_segments") < 2)
		store_fixture_sleep(20);
	evict();
	third = answer(&disk);
	promoted = store_fixture_stat(&store, "disk_promoted_segments_total");
	printf("%.0f segments, hit tokens: memory %ld, disk %ld, promoted %.0f segments, %.0f tokens\n",
	    files_then, memory, disk, promoted,
	    store_fixture_stat(&store, "disk_promoted_tokens_total"));
	assert_true(promoted > 0);
	assert_int_equal(disk, memory);
	assert_string_equal(third, second);
	assert_string_equal(third, first);

	store_fixture_kill(&store);
	assert_true(store_fixture_start_with_disk(&store, store_options));
	fourth = answer(&again);
	assert_int_equal(again, memory);
	assert_string_equal(fourth, second);

	store_fixture_kill(&store);
	assert_true(files(true) > 0);
	assert_true(store_fixture_start_with_disk(&store, store_options));
	fifth = answer(&damaged);
	assert_int_equal(damaged, 0);
	assert_int_equal((int)store_fixture_stat(&store, "disk_set_aside_total"), 1);
	assert_string_equal(fifth, first);
	free(first);
	free(second);
	free(third);
	free(fourth);
	free(fifth);
}

/* Another end of a prompt: what both begin with comes from a file of the first, in the middle of a
 * segment, and the answer is that of a worker that found nothing. */
static void a_common_beginning_is_found(void **state)
{
#define BEGINNING                                                                                  \
	"you and the one that is in the box of a hat on the hill to be at sea you and the "
	static const char first[] =
	    BEGINNING "one that is in the box of a hat on the hill to be at sea";
	static const char other[] =
	    BEGINNING "hill that is at sea in a hat to be on the box of the one";
	long cold, unused, found;
	char *expected, *of_first, *answered;

	(void)state;
	expected = serve_answer_to(&worker, other, &cold);
	assert_non_null(expected);
	assert_int_equal(cold, 0);
	store_fixture_kill(&store);
	files(false);
	assert_true(store_fixture_start_with_disk(&store, store_options));
	of_first = serve_answer_to(&worker, first, &unused);
	assert_non_null(of_first);
	assert_int_equal(unused, 0);
	while (store_fixture_stat(&store, "disk_segments") < 2)
		store_fixture_sleep(20);
	evict();
	answered = serve_answer_to(&worker, other, &found);
	assert_non_null(answered);
	printf("%ld tokens found, promoted %.0f segments\n", found,
	    store_fixture_stat(&store, "disk_promoted_segments_total"));
	assert_true(found >= 16);
	assert_true(store_fixture_stat(&store, "disk_promoted_segments_total") > 0);
	assert_string_equal(answered, expected);
	assert_string_not_equal(answered, of_first);
	free(expected);
	free(of_first);
	free(answered);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(the_answer_is_the_same, init, deinit),
	    cmocka_unit_test_setup_teardown(a_common_beginning_is_found, init, deinit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
