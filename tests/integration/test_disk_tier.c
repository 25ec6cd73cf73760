/* Segments in files: a working set larger than memory, restarts, damage, a full disk, a folder that
 * is taken or gone, and a store that is killed while it writes. */
#include "tests/lib/service_manager.h"
#include "tests/lib/store_client_test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

const char *test_transport;
const char *test_program;

enum { PATIENCE_MS = 20000, PROMPTS = 11, FRONT = 4096 };

static struct store_fixture fixture;
static char folder[160], disk_option[192], transport_option[64];
static struct kvc_store *store;

static const char *const *arguments(const char *memory, const char *size, const char *more)
{
	static const char *all[8];

	all[0] = transport_option;
	all[1] = disk_option;
	all[2] = memory;
	all[3] = size;
	all[4] = more;
	all[5] = NULL;
	return all;
}

static void start(const char *more)
{
	assert_true(store_fixture_start_with_disk(
	    &fixture, arguments("--memory=6MiB", "--disk-size=64MiB", more)));
	store = test_connect(&fixture, "worker");
}

static void stop(void)
{
	kvc_close(store);
	store = NULL;
	assert_true(store_fixture_stop(&fixture));
}

static int set_up(void **state)
{
	(void)state;
	if (!store_fixture_init(&fixture)) return -1;
	snprintf(folder, sizeof folder, "%s/disk", fixture.directory);
	snprintf(disk_option, sizeof disk_option, "--disk=%s", folder);
	snprintf(transport_option, sizeof transport_option, "--transport=%s", test_transport);
	return 0;
}

/* How many names in the folder end so; the last one's path. Removed, if it is asked for. */
static unsigned names(const char *ending, char path[512], bool remove)
{
	DIR *entries = opendir(folder);
	const struct dirent *entry;
	unsigned count = 0;

	while (entries && (entry = readdir(entries))) {
		const size_t length = strlen(entry->d_name), end = strlen(ending);
		char found[512];

		if (entry->d_name[0] == '.' || length < end ||
		    strcmp(entry->d_name + length - end, ending) != 0)
			continue;
		count++;
		snprintf(found, sizeof found, "%s/%s", folder, entry->d_name);
		if (path) memcpy(path, found, sizeof found);
		if (remove) unlink(found);
	}
	if (entries) closedir(entries);
	return count;
}

static int tear_down(void **state)
{
	bool stopped;

	(void)state;
	kvc_close(store);
	store = NULL;
	stopped = store_fixture_stop(&fixture);
	umount2(folder, MNT_DETACH);
	names("", NULL, true);
	rmdir(folder);
	return store_fixture_deinit(&fixture, !stopped) && stopped ? 0 : -1;
}

static double stat_of(const char *name)
{
	return store_fixture_stat(&fixture, name);
}

/* Until as many segments have files. */
static void wait_files(double segments)
{
	assert_true(store_fixture_wait_stat(&fixture, "disk_segments", segments, PATIENCE_MS));
}

static void store_prompts(int first, int count)
{
	const double before = stat_of("disk_segments");

	for (int i = 0; i < count; i++) {
		test_store_prompt(store, first + i);
		wait_files(before + CUTS * (i + 1));
	}
}

/* Open the prompt of this seed: how many of its cuts are found, whose bytes are then right. */
static uint32_t hits(int32_t seed)
{
	struct kvc_sequence *sequence = NULL;
	uint32_t shared = 0;

	assert_ok(test_open(store, NULL, seed, &sequence));
	kvc_sequence_segments(sequence, &shared);
	assert_int_equal(test_compare(store, sequence, seed), 0);
	kvc_sequence_close(sequence, 0);
	return shared;
}

static void test_three_times_the_memory(void **state)
{
	(void)state;
	start(NULL);
	store_prompts(0, PROMPTS);
	assert_true(stat_of("disk_bytes") > 3 * stat_of("arena_limit_bytes") - (1 << 20));
	for (int round = 0; round < 2; round++)
		for (int seed = 0; seed < PROMPTS; seed++)
			assert_int_equal(hits(seed), CUTS);
	printf("%s: %.0f MB of files over %.0f MB of memory: promoted segments=%.0f tokens=%.0f "
	       "bytes=%.0f\n",
	    test_transport, stat_of("disk_bytes") / 1e6, stat_of("arena_limit_bytes") / 1e6,
	    stat_of("disk_promoted_segments_total"), stat_of("disk_promoted_tokens_total"),
	    stat_of("disk_read_bytes_total"));
	/* What is read in order of age is never there still. */
	assert_true(stat_of("disk_promoted_segments_total") >= 2 * CUTS * (PROMPTS - 4));
	assert_int_equal((int)stat_of("disk_writes_total"), PROMPTS * CUTS);
	assert_int_equal((int)stat_of("disk_errors_total"), 0);
	assert_int_equal((int)stat_of("disk_set_aside_total"), 0);
	assert_int_equal((int)stat_of("arena_bytes{state=\"leased\"}"), 0);
}

static void test_restart(void **state)
{
	(void)state;
	start(NULL);
	/* What still waits to be written at the end is written then. */
	for (int seed = 0; seed < 3; seed++)
		test_store_prompt(store, seed);
	stop();
	start(NULL);
	for (int seed = 0; seed < 3; seed++)
		assert_int_equal(hits(seed), CUTS);
	printf("%s: after a restart promoted segments=%.0f\n", test_transport,
	    stat_of("disk_promoted_segments_total"));
	assert_int_equal((int)stat_of("disk_promoted_segments_total"), 3 * CUTS);
	/* The same user under another name is another tenant, and finds nothing. */
	stop();
	assert_true(store_fixture_start_with_disk(
	    &fixture, arguments("--memory=6MiB", "--disk-size=64MiB", "--tenants=*=other")));
	store = test_connect(&fixture, "worker");
	assert_int_equal(hits(0), 0);
}

static void flip(const char *path, off_t at)
{
	int descriptor = open(path, O_RDWR | O_CLOEXEC);
	uint8_t byte = 0;

	assert_true(descriptor >= 0);
	assert_int_equal(pread(descriptor, &byte, 1, at), 1);
	byte ^= 0x40;
	assert_int_equal(pwrite(descriptor, &byte, 1, at), 1);
	close(descriptor);
}

static void evict_all(void)
{
	char text[256];

	assert_true(store_fixture_ask(&fixture, "evict", text, sizeof text));
	assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"committed\"}", 0, PATIENCE_MS));
}

/* Resume: how many segments there are, whose bytes are then right. */
static uint32_t resumed(const char *id, int32_t seed)
{
	struct kvc_sequence *sequence = NULL;
	struct kvc_resume_state state;
	uint32_t segments = 0;
	uint8_t policy[32];

	memset(policy, 3, sizeof policy);
	assert_ok(kvc_sequence_resume(store, id, policy, &sequence, &state));
	assert_int_equal(state.prompt_tokens, PROMPT_TOKENS);
	kvc_sequence_segments(sequence, &segments);
	assert_int_equal(test_compare(store, sequence, seed), 0);
	kvc_sequence_close(sequence, 1);
	return segments;
}

static void test_resumed_sequence(void **state)
{
	struct kvc_sequence *sequence = NULL;
	char path[512];

	(void)state;
	start(NULL);
	assert_ok(test_open(store, "s", 1, &sequence));
	assert_ok(test_write(store, sequence, 1));
	wait_files(CUTS);
	kvc_sequence_close(sequence, 1);
	assert_int_equal(resumed("s", 1), CUTS);
	assert_int_equal((int)stat_of("disk_promoted_segments_total"), 0);
	for (int round = 1; round <= 2; round++) {
		evict_all();
		assert_int_equal(resumed("s", 1), CUTS);
		assert_int_equal((int)stat_of("disk_promoted_segments_total"), round * CUTS);
	}
	/* What is damaged is not there, and nobody is held up for it. */
	assert_int_equal(names(".segment", path, false), CUTS);
	flip(path, FRONT + 12345);
	evict_all();
	assert_true(resumed("s", 1) < CUTS);
	assert_int_equal((int)stat_of("disk_set_aside_total"), 1);
	assert_int_equal((int)stat_of("requests_failed_total"), 0);
	assert_int_equal((int)stat_of("arena_bytes{state=\"leased\"}"), 0);
}

struct found {
	uint32_t segments, pieces, tokens; /* tokens: of the pieces */
};

/* Open a prompt that begins as this seed's and has other tokens from `same` on, cut as those are or
 * otherwise: what is found, whose bytes are right. */
static struct found begins_as(int32_t seed, uint32_t same, bool cut_otherwise)
{
	static const struct kvc_cut as_those[] = {
	    {CUT_ONE, KVW_CLUSTERED}, {CUT_TWO, KVW_CLUSTERED}, {PROMPT_TOKENS, KVW_PLAIN}};
	static const struct kvc_cut other[] = {{700, KVW_CLUSTERED}, {PROMPT_TOKENS, KVW_PLAIN}};
	int32_t prompt[PROMPT_TOKENS];
	const struct kvc_open_request request = {.prompt = prompt,
	    .prompt_tokens = PROMPT_TOKENS,
	    .cuts = cut_otherwise ? other : as_those,
	    .cut_count = cut_otherwise ? 2 : 3};
	struct kvc_sequence *sequence = NULL;
	const struct kvc_piece *pieces;
	struct found found = {0};

	test_prompt(prompt, seed);
	for (uint32_t i = same; i < PROMPT_TOKENS; i++)
		prompt[i] = 50000 + (int32_t)i;
	assert_ok(kvc_sequence_open(store, &request, &sequence));
	kvc_sequence_segments(sequence, &found.segments);
	pieces = kvc_sequence_pieces(sequence, &found.pieces);
	for (uint32_t i = 0; i < found.pieces; i++)
		found.tokens += pieces[i].tokens;
	assert_int_equal(test_compare(store, sequence, seed), 0);
	assert_int_equal(test_compare_pieces(store, sequence, seed), 0);
	kvc_sequence_close(sequence, 0);
	return found;
}

static void test_pieces(void **state)
{
	static const struct {
		uint32_t same;
		bool cut_otherwise;
		struct found found;
		int promoted;
	} cases[] = {
	    {300, false, {0, 1, 300}, 1},
	    {700, false, {1, 1, 700 - CUT_ONE}, 2},
	    {1060, false, {2, 1, 1060 - CUT_TWO}, 3},
	    /* Whole segments, that are none of this prompt, and what comes behind them. */
	    {PROMPT_TOKENS, true, {0, 3, PROMPT_TOKENS}, 3},
	    {800, true, {0, 2, 800}, 2},
	    /* Less than an eighth of a segment is computed. */
	    {60, false, {0, 0, 0}, 0},
	    {0, false, {0, 0, 0}, 0},
	};

	(void)state;
	start(NULL);
	store_prompts(0, 3);
	/* What is known of the files, and then what is read of them at the start. */
	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
			struct found found;
			double before;

			evict_all();
			before = stat_of("disk_promoted_segments_total");
			found = begins_as(1, cases[i].same, cases[i].cut_otherwise);
			assert_memory_equal(&found, &cases[i].found, sizeof found);
			assert_int_equal(
			    (int)(stat_of("disk_promoted_segments_total") - before), cases[i].promoted);
		}
		stop();
		start(NULL);
		wait_files(3 * CUTS);
	}
	/* What is in memory is used from there. */
	assert_int_equal(begins_as(1, 700, false).tokens, 700 - CUT_ONE);
	assert_int_equal(begins_as(1, 690, false).tokens, 690 - CUT_ONE);
	assert_int_equal((int)stat_of("disk_promoted_segments_total"), 2);
	assert_int_equal((int)stat_of("disk_set_aside_total"), 0);
	assert_int_equal((int)stat_of("requests_failed_total"), 0);
	assert_int_equal((int)stat_of("arena_bytes{state=\"leased\"}"), 0);
}

static void flip_all(off_t at)
{
	DIR *entries = opendir(folder);
	const struct dirent *entry;

	assert_non_null(entries);
	while ((entry = readdir(entries))) {
		char path[512];

		if (!strstr(entry->d_name, ".segment")) continue;
		snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
		flip(path, at);
	}
	closedir(entries);
}

/* A piece whose tokens or bytes are damaged is none, and nobody else's are. */
static void test_damaged_piece(void **state)
{
	static const off_t places[] = {600, FRONT + 12345};

	(void)state;
	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
		start(NULL);
		store_prompts(1, 1);
		stop();
		flip_all(places[i]);
		start(NULL);
		wait_files(CUTS);
		assert_int_equal(begins_as(1, 300, false).pieces, 0);
		assert_int_equal((int)stat_of("disk_set_aside_total"), 1);
		assert_int_equal((int)stat_of("disk_promoted_segments_total"), 0);
		stop();
		names("", NULL, true);
	}
	start(NULL);
	store_prompts(1, 1);
	stop();
	/* Another tenant finds nothing of it. */
	assert_true(store_fixture_start_with_disk(
	    &fixture, arguments("--memory=6MiB", "--disk-size=64MiB", "--tenants=*=other")));
	store = test_connect(&fixture, "worker");
	wait_files(CUTS);
	assert_int_equal(begins_as(1, 300, false).pieces, 0);
	assert_int_equal((int)stat_of("disk_promoted_segments_total"), 0);
	assert_int_equal((int)stat_of("disk_set_aside_total"), 0);
}

static void test_damage(void **state)
{
	static const off_t places[] = {20, 600, FRONT + 12345};
	char path[512];

	(void)state;
	/* In the header it is seen at the start, behind it when it is read. */
	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
		const unsigned bad = names(".bad", NULL, false);
		uint32_t found;

		start(NULL);
		if (hits(1) < CUTS) test_store_prompt(store, 1);
		stop();
		assert_int_equal(names(".segment", path, false), CUTS);
		flip(path, places[i]);
		start(NULL);
		found = hits(1);
		assert_true(found < CUTS);
		assert_true(store_fixture_wait_stat(&fixture, "disk_set_aside_total", 1, PATIENCE_MS));
		assert_int_equal(names(".bad", NULL, false), bad + 1);
		printf("%s: byte %lld flipped: %u of %d cuts found, set aside %.0f\n", test_transport,
		    (long long)places[i], found, (int)CUTS, stat_of("disk_set_aside_total"));
		test_store_prompt(store, 1);
		assert_int_equal(hits(1), CUTS);
		wait_files(CUTS);
		/* It is named by its content, so the next one may be the same. */
		names(".bad", NULL, true);
		stop();
	}
}

/* Links, pipes and other things under names of segments. */
static void test_foreign_files(void **state)
{
	char path[512], other[512];

	(void)state;
	start(NULL);
	test_store_prompt(store, 1);
	stop();
	assert_int_equal(names(".segment", path, false), CUTS);
	snprintf(other, sizeof other, "%s/target", fixture.directory);
	assert_int_equal(rename(path, other), 0);
	assert_int_equal(symlink(other, path), 0);
	assert_int_equal(names(".segment", path, false), CUTS);
	memset(strrchr(path, '/') + 1, 'a', 64);
	assert_int_equal(mkfifo(path, 0600), 0);
	memset(strrchr(path, '/') + 1, 'b', 64);
	close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	snprintf(path, sizeof path, "%s/notes.txt", folder);
	close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	start(NULL);
	assert_true(store_fixture_wait_stat(&fixture, "disk_set_aside_total", 3, PATIENCE_MS));
	assert_int_equal(access(path, F_OK), 0);
	assert_int_equal(names(".bad", NULL, false), 3);
	assert_true(hits(1) < CUTS);
	assert_int_equal(unlink(other), 0);
}

static void fill(int count)
{
	for (int seed = 0; seed < count; seed++) {
		test_store_prompt(store, seed);
		assert_int_equal(hits(seed), CUTS);
	}
}

static void test_full_disk(void **state)
{
	(void)state;
	start("--faults=disk.full=always");
	fill(4);
	assert_true(store_fixture_wait_stat(&fixture, "disk_segments", 0, PATIENCE_MS));
	while (stat_of("disk_errors_total") < 1)
		store_fixture_sleep(20);
	assert_int_equal((int)stat_of("requests_failed_total"), 0);
	stop();
	/* A medium that is smaller than --disk-size, where one may be mounted. */
	if (mount("none", folder, "tmpfs", MS_NOSUID | MS_NODEV, "size=3m,mode=0700") != 0) {
		printf("skipped: a small file system cannot be mounted: %s\n", strerror(errno));
		return;
	}
	start(NULL);
	fill(6);
	while (stat_of("disk_errors_total") < 1)
		store_fixture_sleep(20);
	assert_int_equal((int)stat_of("requests_failed_total"), 0);
	/* After a while it lives with the room that there is. */
	test_store_prompt(store, 7);
	while (stat_of("disk_evictions_total") < 1)
		store_fixture_sleep(20);
	assert_int_equal(hits(7), CUTS);
	printf("%s: 3 MiB of disk: errors=%.0f evictions=%.0f segments=%.0f failed requests=%.0f\n",
	    test_transport, stat_of("disk_errors_total"), stat_of("disk_evictions_total"),
	    stat_of("disk_segments"), stat_of("requests_failed_total"));
	stop();
}

static void test_disk_size(void **state)
{
	(void)state;
	assert_true(store_fixture_start_with_disk(
	    &fixture, arguments("--memory=6MiB", "--disk-size=4MiB", NULL)));
	store = test_connect(&fixture, "worker");
	for (int seed = 0; seed < 6; seed++) {
		test_store_prompt(store, seed);
		assert_true(
		    store_fixture_wait_stat(&fixture, "disk_writes_total", CUTS * (seed + 1), PATIENCE_MS));
		assert_true(stat_of("disk_bytes") <= 4 << 20);
	}
	assert_true(stat_of("disk_evictions_total") > 0);
	/* Files go before they are counted out. */
	assert_int_equal((int)names(".segment", NULL, false), (int)stat_of("disk_segments"));
	assert_int_equal(hits(5), CUTS);
}

static void test_two_on_one_folder(void **state)
{
	char socket[192], output[4096];
	const char *const second[] = {"kvstored", socket,
	    "--stats-socket=", "--config=", "--memory=6MiB", transport_option, disk_option,
	    "--disk-size=64MiB", NULL};

	(void)state;
	snprintf(socket, sizeof socket, "--socket=%s/second.sock", fixture.directory);
	start(NULL);
	assert_int_equal(store_fixture_run(&fixture, second, output, sizeof output), 1);
	assert_non_null(strstr(output, "another kvstored has "));
	test_store_prompt(store, 1);
	assert_int_equal(hits(1), CUTS);
	assert_int_equal(chmod(folder, 0777), 0);
	stop();
	assert_int_equal(store_fixture_run(&fixture, second, output, sizeof output), 1);
	assert_non_null(strstr(output, "others may write to "));
	assert_int_equal(chmod(folder, 0700), 0);
}

static void wait_stopped(void)
{
	int status = 0;

	assert_int_equal(waitpid(fixture.pid, &status, WUNTRACED), fixture.pid);
	assert_true(WIFSTOPPED(status));
}

static void test_killed_while_writing(void **state)
{
	struct kvc_sequence *sequence = NULL;

	(void)state;
	/* A file is written in two pieces at least: the store stops in the middle of the fifth. */
	start("--faults=disk.write=1@8");
	test_store_prompt(store, 1);
	wait_files(CUTS);
	/* The commit is answered before its first file is begun. */
	assert_ok(test_open(store, NULL, 2, &sequence));
	assert_ok(test_write(store, sequence, 2));
	wait_stopped();
	assert_int_equal(names(".part", NULL, false), 1);
	store_fixture_kill(&fixture);
	kvc_sequence_close(sequence, 0);
	kvc_close(store);
	store = NULL;
	/* The sockets of a killed store are taken over. */
	start(NULL);
	assert_int_equal(hits(1), CUTS);
	assert_true(hits(2) < CUTS);
	assert_int_equal(names(".part", NULL, false), 0);
	assert_int_equal((int)stat_of("disk_set_aside_total"), 0);
	test_store_prompt(store, 2);
	assert_int_equal(hits(2), CUTS);
}

/* Its folder is removed while it runs. */
static void test_folder_gone(void **state)
{
	(void)state;
	start(NULL);
	store_prompts(0, 1);
	names("", NULL, true);
	assert_int_equal(rmdir(folder), 0);
	fill(5);
	while (stat_of("disk_errors_total") < 1)
		store_fixture_sleep(20);
	/* Others were evicted meanwhile, and of the first the files are gone. */
	hits(0);
	assert_int_equal((int)stat_of("requests_failed_total"), 0);
	/* It is made anew after a while. */
	for (int i = 0; i < 200 && access(folder, F_OK) != 0; i++)
		store_fixture_sleep(50);
	assert_int_equal(access(folder, F_OK), 0);
	test_store_prompt(store, 20);
	assert_true(store_fixture_wait_stat(&fixture, "disk_limit_bytes", 64 << 20, PATIENCE_MS));
	while (names(".segment", NULL, false) < CUTS)
		store_fixture_sleep(20);
}

/* Reads fail: what is asked for is computed anew, and nothing is asked of the disk for a while. */
static void test_read_errors(void **state)
{
	(void)state;
	start(NULL);
	store_prompts(0, 2);
	stop();
	start("--faults=disk.error=always");
	assert_int_equal(hits(0), 0);
	assert_int_equal((int)stat_of("disk_errors_total"), 1);
	assert_int_equal(hits(1), 0);
	assert_int_equal((int)stat_of("disk_promoted_segments_total"), 0);
	assert_int_equal((int)stat_of("requests_failed_total"), 0);
}

/* The whole process is stopped while it reads; its worker dies; it goes on. */
static void test_peer_gone_while_it_waits(void **state)
{
	pid_t child;

	(void)state;
	start(NULL);
	store_prompts(0, 1);
	stop();
	start("--faults=disk.read=1@1");
	fflush(NULL);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		execl(test_program, test_program, test_transport, "open", fixture.address, NULL);
		_exit(127);
	}
	wait_stopped();
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	store_fixture_signal(&fixture, SIGCONT);
	assert_true(store_fixture_wait_stat(&fixture, "workers{state=\"connected\"}", 1, PATIENCE_MS));
	assert_true(store_fixture_wait_stat(&fixture, "arena_bytes{state=\"leased\"}", 0, PATIENCE_MS));
	assert_true(
	    store_fixture_wait_stat(&fixture, "arena_bytes{state=\"reserved\"}", 0, PATIENCE_MS));
	kvc_close(store);
	store = test_connect(&fixture, "again");
	assert_int_equal(hits(0), CUTS);
	assert_int_equal((int)stat_of("sequences{state=\"active\"}"), 0);
}

/* Memory is full of what is in use: the prompt is opened without. */
static void test_memory_in_use(void **state)
{
	struct kvc_sequence *held[3] = {0};

	(void)state;
	start(NULL);
	store_prompts(0, 4);
	stop();
	start(NULL);
	for (int i = 0; i < 3; i++)
		assert_ok(test_open(store, NULL, i, &held[i]));
	assert_true(hits(3) < CUTS);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(test_compare(store, held[i], i), 0);
		kvc_sequence_close(held[i], 0);
	}
	assert_int_equal(hits(3), CUTS);
	assert_int_equal((int)stat_of("disk_errors_total"), 0);
}

/* Hardly any time: prompts are opened with what is there, and what comes late is found later. */
static void test_deadline(void **state)
{
	uint32_t found = 0;

	(void)state;
	start(NULL);
	store_prompts(0, 2);
	stop();
	start("--disk-wait=1ms");
	for (int i = 0; i < 1000 && found < CUTS; i++)
		found = hits(0);
	assert_int_equal(found, CUTS);
	assert_int_equal((int)stat_of("disk_errors_total"), 0);
}

/* Regions of each user apart. */
static void test_isolation(void **state)
{
	(void)state;
	start("--isolation");
	store_prompts(0, 6);
	for (int seed = 0; seed < 6; seed++)
		assert_int_equal(hits(seed), CUTS);
	assert_true(stat_of("disk_promoted_segments_total") >= CUTS * 3);
}

/* As another process: open a prompt and wait. */
static int open_only(const char *address)
{
	struct kvc_options options = test_options(NULL, "other");
	struct kvc_sequence *sequence = NULL;

	options.address = address;
	if (kvc_open(&options, &store) != KV_OK) return 2;
	return test_open(store, NULL, 0, &sequence) != KV_OK;
}

/* How the store ended that was told to; -1: it did not, and is killed. */
static int end_of_store(unsigned wait_ms)
{
	const uint64_t deadline = store_fixture_now() + wait_ms;
	int status = 0;

	store_fixture_signal(&fixture, SIGTERM);
	while (waitpid(fixture.pid, &status, WNOHANG) == 0) {
		if (store_fixture_now() < deadline) {
			store_fixture_sleep(10);
			continue;
		}
		store_fixture_kill(&fixture);
		return -1;
	}
	fixture.pid = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool log_says(const char *words)
{
	static char text[1 << 16];
	FILE *file = fopen(fixture.log, "r");

	assert_non_null(file);
	text[fread(text, 1, sizeof text - 1, file)] = '\0';
	fclose(file);
	return strstr(text, words) != NULL;
}

/* A disk that hangs, in a write or in a read, does not keep the store from ending. It fails then,
 * leaves no socket, and the next one has the folder and what was whole in it. */
static void test_hanging_disk(void **state)
{
	const char *const hangs[] = {"--faults=disk.hang=1@3", "--faults=disk.hang=1"};

	(void)state;
	for (int reads = 0; reads < 2; reads++) {
		const char *all[9] = {transport_option, disk_option, "--memory=6MiB", "--disk-size=64MiB",
		    "--end-wait=600ms", "--disk-wait=300ms", hangs[reads]};
		const uint64_t start = store_fixture_now();

		assert_true(store_fixture_start_with_disk(&fixture, all));
		store = test_connect(&fixture, "worker");
		if (reads) {
			/* Whoever asked waits for its time. */
			assert_true(hits(1) < CUTS);
		} else {
			test_store_prompt(store, 1);
			wait_files(CUTS);
			test_store_prompt(store, 2);
		}
		kvc_close(store);
		store = NULL;
		assert_int_equal(end_of_store(PATIENCE_MS), 1);
		assert_true(store_fixture_now() < start + PATIENCE_MS / 2);
		assert_true(log_says("reads or writes did not end within 600 ms"));
		assert_int_equal(access(fixture.socket, F_OK), -1);
		assert_int_equal(access(fixture.stats, F_OK), -1);
	}
	start(NULL);
	assert_int_equal(hits(1), CUTS);
	assert_int_equal((int)stat_of("disk_set_aside_total"), 0);
	test_store_prompt(store, 2);
	assert_int_equal(hits(2), CUTS);
}

/* What is in memory is handed over all the same. */
static void test_hanging_disk_and_warm_restart(void **state)
{
	const char *const usual[] = {transport_option, "--memory=6MiB", NULL};
	const char *const hanging[] = {transport_option, disk_option, "--memory=6MiB",
	    "--disk-size=64MiB", "--end-wait=600ms", "--faults=disk.hang=1", NULL};
	static struct service_manager manager;

	(void)state;
	assert_true(service_manager_init(&manager, &fixture));
	assert_true(service_manager_start(&manager, &fixture, hanging));
	store = test_connect(&fixture, "worker");
	test_store_prompt(store, 1);
	kvc_close(store);
	store = NULL;
	/* It ended with 1. */
	assert_false(service_manager_stop(&manager, &fixture));
	assert_int_equal(fixture.pid, 0);
	assert_true(log_says("arena kept for the next start"));
	assert_true(service_manager_start(&manager, &fixture, usual));
	store = test_connect(&fixture, "worker");
	assert_int_equal(hits(1), CUTS);
	kvc_close(store);
	store = NULL;
	assert_true(service_manager_stop(&manager, &fixture));
	service_manager_deinit(&manager);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_three_times_the_memory, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_restart, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_resumed_sequence, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_pieces, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_damaged_piece, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_damage, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_foreign_files, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_full_disk, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_disk_size, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_two_on_one_folder, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_killed_while_writing, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_folder_gone, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_read_errors, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_peer_gone_while_it_waits, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_memory_in_use, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_deadline, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_isolation, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_hanging_disk, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_hanging_disk_and_warm_restart, set_up, tear_down),
	};

	const struct CMUnitTest over_ucx[] = {tests[0], tests[1], tests[2]};

	if (argc < 2) return 2;
	test_program = argv[0];
	test_transport = argv[1];
	if (argc > 3) return open_only(argv[3]);
	/* What comes first is where the transport matters. */
	if (strcmp(test_transport, "ucx") == 0) return cmocka_run_group_tests(over_ucx, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
