/* Isolation: another user, whom the list lets in, tries to write the arena, to see what is not its
 * own, to get at the process, and to take everything. Nothing gets in, and an honest worker goes
 * on.
 *
 * Needs root, to be other users. */
#define _GNU_SOURCE /* seals, fallocate, syscall */
#include "tests/lib/store_client_test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/transport/frame.h"
#include "common/transport/unix_socket.h"
#include "tests/fault/hostile_peer.h"

const char *test_transport = "map";
const char *test_program;

enum {
	HOSTILE_USER = 65534,
	STRANGER = 65533,
	ATTACK_MS = 60000,
	OPENS = 10000,
	FLOOD = 80,
	SLOW_REQUESTS = 4000,
	MEGABYTE = 1 << 20
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MEMORY_IS_INFLATED = 1 };
#else
enum { MEMORY_IS_INFLATED = 0 };
#endif

static struct store_fixture fixture;

static int set_up(void **state)
{
	static const char *const arguments[] = {"--isolation", "--allow-uid=65534", "--memory=64MiB",
	    "--max-workers=32", "--max-sequences=512", "--frame-memory=64MiB", NULL};

	(void)state;
	return hostile_store_start(&fixture, arguments) ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	return store_fixture_deinit(&fixture, false) ? 0 : -1;
}

/* 1 and a line when a thing that must not work worked. */
static int breach(bool worked, const char *what)
{
	if (worked) fprintf(stderr, "hostile: %s\n", what);
	return worked;
}

/* ---- descriptors that the store passed ---- */

static int try_memory(int descriptor, size_t bytes)
{
	char path[64];
	void *seen = mmap(NULL, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
	void *written = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
	int found = breach(written != MAP_FAILED, "a writable mapping of the store's memory");
	int again;

	found += breach(seen == MAP_FAILED, "the store's memory cannot be read");
	if (seen != MAP_FAILED)
		found += breach(mprotect(seen, bytes, PROT_READ | PROT_WRITE) == 0, "mprotect");
	found += breach(pwrite(descriptor, "x", 1, 0) == 1, "pwrite");
	found += breach(ftruncate(descriptor, 0) == 0, "ftruncate");
	found += breach(fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0,
	    "a hole in the store's memory");
	found += breach(fcntl(descriptor, F_ADD_SEALS, F_SEAL_WRITE) == 0, "another seal");
	snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
	again = open(path, O_RDWR | O_CLOEXEC);
	if (again >= 0) {
		written = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
		found += breach(written != MAP_FAILED, "a writable mapping of the reopened memory");
		found += breach(pwrite(again, "x", 1, 0) == 1, "pwrite to the reopened memory");
		close(again);
	}
	return found;
}

/* What the honest worker wrote is nowhere in the memory that it can read. */
static int look_for_others(const uint8_t *memory, size_t bytes)
{
	struct kvc_segment segment = {.start = 0};
	uint8_t pattern[64];

	for (uint32_t i = 0; i < sizeof pattern; i++)
		pattern[i] = (uint8_t)(segment.start * 7 + 5u * 3 + i);
	for (size_t at = 0; at + sizeof pattern <= bytes; at += 64)
		if (memcmp(memory + at, pattern, sizeof pattern) == 0)
			return breach(true, "bytes of another tenant");
	return 0;
}

static int attack_memory(void *context)
{
	struct hostile_peer peer;
	uint32_t status = 0;
	uint64_t sequence;
	int found = 0;

	(void)context;
	if (!hostile_connect(&peer, fixture.socket)) return 90;
	if (hostile_hello(&peer, -1, 0) != KV_OK) return 91;
	sequence = hostile_open(&peer, 5, &status);
	if (!sequence || !hostile_reserve(&peer, sequence)) return 92;
	/* The prompt of the honest worker: nothing of it may be shared. Regions are told of here. */
	sequence = hostile_open(&peer, 5, &status);
	if (!sequence || peer.descriptor_count < 2) return 93;
	for (uint32_t i = 0; i < peer.descriptor_count; i++) {
		size_t bytes = peer.bytes[i] ? (size_t)peer.bytes[i] : 4096;
		void *seen = mmap(NULL, bytes, PROT_READ, MAP_SHARED, peer.descriptors[i], 0);

		found += try_memory(peer.descriptors[i], bytes);
		if (seen != MAP_FAILED && peer.bytes[i]) found += look_for_others(seen, bytes);
	}
	hostile_close(&peer);
	return found;
}

/* ---- the process ---- */

static int attack_process(void *context)
{
	uint8_t byte = 0;
	struct iovec here = {.iov_base = &byte, .iov_len = 1};
	struct iovec there = {.iov_base = (void *)0x400000, .iov_len = 1};
	char path[64];
	int pidfd = (int)syscall(SYS_pidfd_open, fixture.pid, 0);
	int found = 0;

	(void)context;
	found += breach(ptrace(PTRACE_ATTACH, fixture.pid, NULL, NULL) == 0, "ptrace attach");
	found += breach(ptrace(PTRACE_SEIZE, fixture.pid, NULL, NULL) == 0, "ptrace seize");
	found += breach(
	    process_vm_readv(fixture.pid, &here, 1, &there, 1, 0) >= 0 || errno == EFAULT, "vm_readv");
#ifdef SYS_pidfd_getfd
	for (int fd = 3; pidfd >= 0 && fd < 40; fd++)
		found += breach(syscall(SYS_pidfd_getfd, pidfd, fd, 0) >= 0, "pidfd_getfd");
#endif
	for (int fd = 3; fd < 40; fd++) {
		snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)fixture.pid, fd);
		found += breach(open(path, O_RDONLY) >= 0, path);
	}
	snprintf(path, sizeof path, "/proc/%ld/mem", (long)fixture.pid);
	found += breach(open(path, O_RDONLY) >= 0, path);
	return found;
}

static int attack_as_stranger(void *context)
{
	struct hostile_peer peer;
	uint32_t status;

	(void)context;
	if (!hostile_connect(&peer, fixture.socket)) return 90;
	status = hostile_hello(&peer, -1, 0);
	return breach(status == KV_OK, "a user who is not listed") +
	       breach(
	           status != KV_REFUSED && status != KV_DISCONNECTED, "a stranger is told otherwise");
}

/* ---- taking everything ---- */

static int attack_opens(void *context)
{
	struct hostile_peer peer;
	uint32_t refused = 0, opened = 0, status = 0;

	(void)context;
	if (!hostile_connect(&peer, fixture.socket)) return 90;
	if (hostile_hello(&peer, -1, 0) != KV_OK) return 91;
	for (int i = 0; i < OPENS; i++) {
		if (hostile_open(&peer, i % 7, &status))
			opened++;
		else if (status == KV_LIMIT)
			refused++;
		else
			return breach(true, "an open was answered otherwise") + 100;
	}
	fprintf(stderr, "hostile: %u sequences opened, %u refused\n", opened, refused);
	/* Half of max-sequences: two users are listed. */
	return breach(opened > 256, "more sequences than its share") + breach(!refused, "no limit");
}

/* Sends and never reads. The store stops reading, or closes. */
static int attack_slow(void *context)
{
	Kv__Request request = KV__REQUEST__INIT;
	Kv__HeartbeatRequest heartbeat = KV__HEARTBEAT_REQUEST__INIT;
	struct hostile_peer peer;

	(void)context;
	if (!hostile_connect(&peer, fixture.socket)) return 90;
	if (hostile_hello(&peer, -1, 0) != KV_OK) return 91;
	request.body_case = KV__REQUEST__BODY_HEARTBEAT;
	request.heartbeat = &heartbeat;
	for (int i = 0; i < SLOW_REQUESTS; i++)
		if (!hostile_send(&peer, &request, -1)) break;
	store_fixture_sleep(300);
	return 0;
}

static int attack_oversized(void *context)
{
	static const uint32_t lengths[] = {0, KV_CODEC_MAX_MESSAGE + 1, UINT32_MAX};
	int found = 0;

	(void)context;
	for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
		struct pollfd one = {.events = POLLIN};
		char byte;

		if (kv_unix_connect(fixture.socket, &one.fd) != KV_OK) return 90;
		if (write(one.fd, &lengths[i], 4) != 4) return 91;
		poll(&one, 1, 5000);
		found += breach(read(one.fd, &byte, 1) > 0, "an answer to a frame of no right length");
		close(one.fd);
	}
	return found;
}

/* As many connections as it gets, each with nearly all of a frame of the largest size. */
static int attack_flood(void *context)
{
	static uint8_t block[1 << 16];
	int sockets[FLOOD];
	uint64_t deadline = store_fixture_now() + 2500;
	uint32_t length = KV_CODEC_MAX_MESSAGE;

	(void)context;
	for (int i = 0; i < FLOOD; i++) {
		sockets[i] = -1;
		while (kv_unix_connect(fixture.socket, &sockets[i]) == KV_BUSY)
			store_fixture_sleep(1);
		if (sockets[i] < 0 || write(sockets[i], &length, 4) != 4) sockets[i] = -1;
	}
	while (store_fixture_now() < deadline)
		for (int i = 0; i < FLOOD; i++)
			if (sockets[i] >= 0 && write(sockets[i], block, sizeof block) < 0 && errno != EAGAIN)
				sockets[i] = -1;
	return 0;
}

static int attack_staging(void *context)
{
	uint64_t bytes = UINT64_C(4) << 30;
	int sparse = memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int unsealed = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct hostile_peer peer;
	uint64_t sequence, segment;
	uint32_t status = 0;
	struct stat file;
	int found = 0;

	(void)context;
	if (ftruncate(sparse, (off_t)bytes) != 0 || ftruncate(unsealed, MEGABYTE) != 0) return 80;
	if (fcntl(sparse, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return 81;
	if (!hostile_connect(&peer, fixture.socket)) return 90;
	found += breach(hostile_hello(&peer, unsealed, MEGABYTE) == KV_OK, "unsealed staging memory");
	hostile_close(&peer);
	if (!hostile_connect(&peer, fixture.socket)) return 91;
	if (hostile_hello(&peer, sparse, bytes) != KV_OK) return 0; /* refused is as good */
	sequence = hostile_open(&peer, 6, &status);
	segment = hostile_reserve(&peer, sequence);
	if (!segment) return 92;
	for (int i = 0; i < 50; i++)
		if (hostile_put(&peer, segment, test_unit_bytes(0, CUT_ONE, KVW_CLUSTERED, 0)) != KV_OK)
			return 93;
	found += breach(fstat(sparse, &file) != 0 || file.st_blocks > 0, "pages that the store paid");
	return found;
}

/* ---- the honest side ---- */

static uint64_t status_kib(const char *name)
{
	char path[64], line[256];
	uint64_t value = 0;
	FILE *file;

	snprintf(path, sizeof path, "/proc/%ld/status", (long)fixture.pid);
	file = fopen(path, "r");
	if (!file) return 0;
	while (fgets(line, sizeof line, file))
		if (strncmp(line, name, strlen(name)) == 0) value = strtoull(line + strlen(name), NULL, 10);
	fclose(file);
	return value;
}

struct honest {
	struct kvc_store *store;
	struct kvc_sequence *sequence;
};

static void begin_honest(struct honest *honest)
{
	honest->store = test_connect(&fixture, "honest");
	assert_ok(test_open(honest->store, NULL, 5, &honest->sequence));
	assert_ok(test_write(honest->store, honest->sequence, 5));
	assert_int_equal(test_compare(honest->store, honest->sequence, 5), 0);
}

/* It still reads what it wrote, and opens, writes and reads more. */
static void end_honest(struct honest *honest)
{
	assert_int_equal(test_compare(honest->store, honest->sequence, 5), 0);
	test_store_prompt(honest->store, 11);
	kvc_sequence_close(honest->sequence, 0);
	kvc_close(honest->store);
}

static void attacked(uid_t user, int (*attack)(void *))
{
	struct honest honest;

	begin_honest(&honest);
	assert_int_equal(hostile_run(user, attack, NULL, ATTACK_MS), 0);
	end_honest(&honest);
}

static void test_memory(void **state)
{
	(void)state;
	attacked(HOSTILE_USER, attack_memory);
}

static void test_process(void **state)
{
	(void)state;
	attacked(HOSTILE_USER, attack_process);
	attacked(STRANGER, attack_as_stranger);
	assert_true(store_fixture_stat(&fixture, "connections_refused_total{reason=\"user\"}") >= 1);
}

static void test_greed(void **state)
{
	uint64_t before, grown;

	(void)state;
	before = status_kib("RssAnon:");
	attacked(HOSTILE_USER, attack_opens);
	attacked(HOSTILE_USER, attack_slow);
	attacked(HOSTILE_USER, attack_oversized);
	attacked(HOSTILE_USER, attack_flood);
	grown = status_kib("VmHWM:");
	printf("anonymous memory before %llu KiB, most resident %llu KiB\n", (unsigned long long)before,
	    (unsigned long long)grown);
	/* 64 MiB of arena, 32 MiB of messages, and what the process itself takes. */
	if (!MEMORY_IS_INFLATED) assert_in_range(grown, 0, (64 + 64 + 48) << 10);
	assert_true(store_fixture_wait_stat(&fixture, "workers{state=\"connected\"}", 0, 5000));
}

static void test_staging(void **state)
{
	(void)state;
	attacked(HOSTILE_USER, attack_staging);
}

static void test_no_ucx(void **state)
{
	char path[64], line[512];
	FILE *file;

	(void)state;
	snprintf(path, sizeof path, "/proc/%ld/maps", (long)fixture.pid);
	file = fopen(path, "r");
	assert_non_null(file);
	while (fgets(line, sizeof line, file))
		assert_null(strstr(line, "libuc"));
	fclose(file);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_memory, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_process, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_greed, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_staging, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_no_ucx, set_up, tear_down),
	};

	(void)argc;
	test_program = argv[0];
	if (!hostile_may_run()) return 77;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
