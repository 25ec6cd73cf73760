/* Room on the machine, out of made-up /proc and /sys trees, and the sweep of /dev/shm leftovers. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/transport/machine_memory.h"
#include "common/transport/shm_leftovers.h"

static char root[] = "/tmp/kv-room-XXXXXX";

static void make_file(const char *name, const char *text)
{
	char path[512], *slash;
	FILE *file;

	snprintf(path, sizeof path, "%s/%s", root, name);
	for (slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(path, 0700);
		*slash = '/';
	}
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void remove_tree(void)
{
	char command[64];

	snprintf(command, sizeof command, "rm -rf '%s'/*", root);
	assert_int_equal(system(command), 0);
}

static int make_root(void **state)
{
	(void)state;
	return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
	(void)state;
	remove_tree();
	return rmdir(root);
}

static void test_no_limits(void **state)
{
	struct kv_machine_memory memory = {1, 2, 3, 4, 5};

	(void)state;
	assert_int_equal(kv_machine_memory_read(root, &memory), KV_IO);
	assert_int_equal(memory.available, 1);
	make_file("proc/meminfo", "MemTotal: 2000 kB\nMemAvailable:   1600 kB\n");
	assert_int_equal(kv_machine_memory_read(root, &memory), KV_OK);
	assert_int_equal(memory.available, 1600 * 1024);
	assert_int_equal(memory.total, 2000 * 1024);
	assert_true(memory.cgroup_room == UINT64_MAX && memory.cgroup_limit == UINT64_MAX);
	assert_int_equal(memory.shm_room, 0);
	remove_tree();
}

static void test_cgroup_version_2(void **state)
{
	struct kv_machine_memory memory;

	(void)state;
	make_file("proc/meminfo", "MemAvailable: 1000000 kB\n");
	make_file("proc/self/cgroup", "0::/system.slice/kvstored.service\n");
	make_file("sys/fs/cgroup/system.slice/kvstored.service/memory.max", "max\n");
	make_file("sys/fs/cgroup/system.slice/memory.max", "1000000\n");
	make_file("sys/fs/cgroup/system.slice/memory.current", "700000\n");
	make_file("sys/fs/cgroup/system.slice/memory.stat",
	    "anon 5\ninactive_file 30000\nactive_file 20000\nfile 9999\n");
	assert_int_equal(kv_machine_memory_read(root, &memory), KV_OK);
	assert_int_equal(memory.cgroup_limit, 1000000);
	assert_int_equal(memory.cgroup_room, 350000);

	/* The tightest counts, wherever it is. */
	make_file("sys/fs/cgroup/system.slice/kvstored.service/memory.max", "400000\n");
	make_file("sys/fs/cgroup/system.slice/kvstored.service/memory.current", "399999\n");
	assert_int_equal(kv_machine_memory_read(root, &memory), KV_OK);
	assert_int_equal(memory.cgroup_limit, 400000);
	assert_int_equal(memory.cgroup_room, 1);
	remove_tree();
}

static void test_cgroup_version_1(void **state)
{
	struct kv_machine_memory memory;

	(void)state;
	make_file("proc/meminfo", "MemAvailable: 1000000 kB\n");
	make_file("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/a\n0::/\n");
	make_file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	make_file("sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes", "5000\n");
	make_file("sys/fs/cgroup/memory/docker/a/memory.usage_in_bytes", "7000\n");
	assert_int_equal(kv_machine_memory_read(root, &memory), KV_OK);
	assert_int_equal(memory.cgroup_limit, 5000);
	assert_int_equal(memory.cgroup_room, 0);
	remove_tree();
}

static void test_this_machine(void **state)
{
	struct kv_machine_memory memory;

	(void)state;
	assert_int_equal(kv_machine_memory_read("", &memory), KV_OK);
	assert_true(memory.available > 1 << 20);
	assert_true(memory.total >= memory.available);
	assert_int_equal(kv_machine_memory_check(&memory, 4096, 0), KV_OK);
}

static void test_check(void **state)
{
	struct kv_machine_memory memory = {1600, UINT64_MAX, UINT64_MAX, 500, 2000};

	(void)state;
	assert_int_equal(kv_machine_memory_check(&memory, 1500, 0), KV_OK);
	assert_int_equal(kv_machine_memory_check(&memory, 1501, 0), KV_LIMIT);
	assert_non_null(strstr(kv_error_message(), "1501"));
	assert_int_equal(kv_machine_memory_check(&memory, 500, 1), KV_OK);
	assert_int_equal(kv_machine_memory_check(&memory, 501, 1), KV_LIMIT);
	assert_non_null(strstr(kv_error_message(), "/dev/shm"));
	memory.cgroup_room = 100;
	memory.cgroup_limit = 900;
	assert_int_equal(kv_machine_memory_check(&memory, 100, 0), KV_OK);
	assert_int_equal(kv_machine_memory_check(&memory, 101, 0), KV_LIMIT);
	assert_non_null(strstr(kv_error_message(), "900"));
}

static int exists(const char *name)
{
	char path[512];

	snprintf(path, sizeof path, "%s/%s", root, name);
	return access(path, F_OK) == 0;
}

static int open_file(const char *name, int flags)
{
	char path[512];

	snprintf(path, sizeof path, "%s/%s", root, name);
	return open(path, flags | O_CLOEXEC);
}

/* Some file systems give no leases: then nothing is ever removed, and there is nothing to test. */
static int leases_work(void)
{
	int removed;

	make_file("kvtest_probe", "x");
	removed = kv_shm_leftovers_remove(root, "kvtest_probe");
	remove_tree();
	return removed == 1;
}

static void test_leftovers(void **state)
{
	int writer, reader, mapped;
	void *memory;
	char path[512];

	(void)state;
	if (!leases_work()) {
		print_message("skipped: %s has no leases\n", root);
		skip();
	}
	make_file("kvtest_left", "x");
	make_file("kvtest_writer", "x");
	make_file("kvtest_reader", "x");
	make_file("kvtest_mapped", "x");
	make_file("other_left", "x");
	make_file("kvtest_directory/inside", "x");
	snprintf(path, sizeof path, "%s/kvtest_link", root);
	assert_int_equal(symlink("other_left", path), 0);
	writer = open_file("kvtest_writer", O_RDWR);
	reader = open_file("kvtest_reader", O_RDONLY);
	mapped = open_file("kvtest_mapped", O_RDWR);
	memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	close(mapped);

	assert_int_equal(kv_shm_leftovers_remove(root, "kvtest_"), 1);
	assert_false(exists("kvtest_left"));
	assert_true(exists("kvtest_writer"));
	assert_true(exists("kvtest_reader"));
	assert_true(exists("kvtest_mapped"));
	assert_true(exists("other_left"));
	assert_true(exists("kvtest_directory/inside"));

	close(writer);
	close(reader);
	munmap(memory, 4096);
	assert_int_equal(kv_shm_leftovers_remove(root, "kvtest_"), 3);
	assert_true(exists("other_left"));
	assert_true(exists("kvtest_directory/inside"));
	assert_int_equal(kv_shm_leftovers_remove("/nonexistent-kv", "kvtest_"), 0);
	remove_tree();
}

/* Held by another process. */
static void test_leftovers_of_a_living_process(void **state)
{
	int ready[2], end[2], status;
	char byte = 0;
	pid_t pid;

	(void)state;
	if (!leases_work()) skip();
	make_file("kvtest_held", "x");
	assert_int_equal(pipe(ready), 0);
	assert_int_equal(pipe(end), 0);
	pid = fork();
	if (pid == 0) {
		int held = open_file("kvtest_held", O_RDWR);

		close(end[1]);
		if (held < 0 || write(ready[1], &byte, 1) != 1) _exit(1);
		_exit(read(end[0], &byte, 1) == 0 ? 0 : 1);
	}
	close(end[0]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	assert_int_equal(kv_shm_leftovers_remove(root, "kvtest_"), 0);
	close(end[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(kv_shm_leftovers_remove(root, "kvtest_"), 1);
	close(ready[0]);
	close(ready[1]);
	remove_tree();
}

/* Another user's file is not ours to remove, even for root. */
static void test_leftovers_of_another_user(void **state)
{
	char path[512];

	(void)state;
	if (geteuid() != 0 || !leases_work()) skip();
	make_file("kvtest_theirs", "x");
	snprintf(path, sizeof path, "%s/kvtest_theirs", root);
	assert_int_equal(chown(path, 65534, 65534), 0);
	assert_int_equal(kv_shm_leftovers_remove(root, "kvtest_"), 0);
	assert_true(exists("kvtest_theirs"));
	remove_tree();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_no_limits),
	    cmocka_unit_test(test_cgroup_version_2),
	    cmocka_unit_test(test_cgroup_version_1),
	    cmocka_unit_test(test_this_machine),
	    cmocka_unit_test(test_check),
	    cmocka_unit_test(test_leftovers),
	    cmocka_unit_test(test_leftovers_of_a_living_process),
	    cmocka_unit_test(test_leftovers_of_another_user),
	};

	return cmocka_run_group_tests(tests, make_root, remove_root);
}
