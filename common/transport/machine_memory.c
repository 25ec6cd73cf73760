#include "common/transport/machine_memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

enum { PATH_SIZE = 1024, LINE_SIZE = 1024 };

/* The names that one version of cgroups gives to the same things. */
struct cgroup_files {
	const char *mount, *limit, *usage;
};

static const struct cgroup_files version1 = {
    "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"};
static const struct cgroup_files version2 = {"/sys/fs/cgroup", "memory.max", "memory.current"};

/* The number in a file that holds one; false for "max" and for files that are not there. */
static bool read_number(const char *path, uint64_t *value)
{
	char line[LINE_SIZE], *end;
	FILE *file = fopen(path, "re");
	bool found = false;

	if (!file) return false;
	if (fgets(line, sizeof line, file) && line[0] >= '0' && line[0] <= '9') {
		errno = 0;
		*value = strtoull(line, &end, 10);
		found = end != line && errno == 0;
	}
	fclose(file);
	return found;
}

/* Sum of the lines `name value` whose name is one of two, in bytes times `unit`. */
static bool read_named(
    const char *path, const char *first, const char *second, uint64_t unit, uint64_t *value)
{
	char line[LINE_SIZE], name[64];
	FILE *file = fopen(path, "re");
	uint64_t number, sum = 0;
	bool found = false;

	if (!file) return false;
	while (fgets(line, sizeof line, file)) {
		if (sscanf(line, "%63s %" SCNu64, name, &number) != 2) continue;
		if (strcmp(name, first) != 0 && strcmp(name, second) != 0) continue;
		if (number > (UINT64_MAX - sum) / unit) continue;
		sum += number * unit;
		found = true;
	}
	fclose(file);
	if (found) *value = sum;
	return found;
}

/* Take one cgroup directory into account. Page cache in it can be dropped and is no use. */
static void account(
    const char *directory, const struct cgroup_files *files, struct kv_machine_memory *memory)
{
	char path[PATH_SIZE + 64];
	uint64_t limit, usage = 0, cache = 0, room;

	snprintf(path, sizeof path, "%s/%s", directory, files->limit);
	/* Version 1 writes "no limit" as a number near the largest. */
	if (!read_number(path, &limit) || limit >= UINT64_MAX / 4) return;
	snprintf(path, sizeof path, "%s/%s", directory, files->usage);
	(void)read_number(path, &usage);
	snprintf(path, sizeof path, "%s/memory.stat", directory);
	(void)read_named(path, "inactive_file", "active_file", 1, &cache);
	usage = usage > cache ? usage - cache : 0;
	room = limit > usage ? limit - usage : 0;
	if (limit < memory->cgroup_limit) memory->cgroup_limit = limit;
	if (room < memory->cgroup_room) memory->cgroup_room = room;
}

/* The process's cgroup and all above it. */
static void account_upwards(const char *root, const struct cgroup_files *files, const char *group,
    struct kv_machine_memory *memory)
{
	char directory[PATH_SIZE];
	size_t least;
	int length;

	length = snprintf(directory, sizeof directory, "%s%s%s", root, files->mount, group);
	if (length < 0 || (size_t)length >= sizeof directory) return;
	least = strlen(root) + strlen(files->mount);
	for (;;) {
		char *slash;

		account(directory, files, memory);
		if (strlen(directory) <= least) return;
		slash = strrchr(directory, '/');
		if (!slash || (size_t)(slash - directory) < least) return;
		*slash = '\0';
	}
}

/* True when the comma separated list has the word. */
static bool lists(const char *list, const char *word)
{
	size_t length = strlen(word);

	while (list && *list) {
		if (strncmp(list, word, length) == 0 && (list[length] == ',' || list[length] == '\0'))
			return true;
		list = strchr(list, ',');
		if (list) list++;
	}
	return false;
}

/* /proc/self/cgroup has lines id:controllers:path; version 2's has no controllers. */
static void read_cgroups(const char *root, struct kv_machine_memory *memory)
{
	char line[LINE_SIZE];
	FILE *file;

	snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
	file = fopen(line, "re");
	if (!file) return;
	while (fgets(line, sizeof line, file)) {
		char *controllers = strchr(line, ':'), *group;

		line[strcspn(line, "\n")] = '\0';
		if (!controllers) continue;
		*controllers++ = '\0';
		group = strchr(controllers, ':');
		if (!group) continue;
		*group++ = '\0';
		if (strstr(group, "..")) continue; /* outside this cgroup namespace */
		if (*controllers == '\0')
			account_upwards(root, &version2, group, memory);
		else if (lists(controllers, "memory"))
			account_upwards(root, &version1, group, memory);
	}
	fclose(file);
}

enum kv_status kv_machine_memory_read(const char *root, struct kv_machine_memory *memory)
{
	struct kv_machine_memory found = {0, UINT64_MAX, UINT64_MAX, 0, UINT64_MAX};
	char path[PATH_SIZE];
	struct statvfs shm;

	snprintf(path, sizeof path, "%s/proc/meminfo", root);
	if (!read_named(path, "MemAvailable:", "MemAvailable:", 1024, &found.available))
		return kv_fail(KV_IO, "%s does not say how much memory is available", path);
	(void)read_named(path, "MemTotal:", "MemTotal:", 1024, &found.total);
	read_cgroups(root, &found);
	snprintf(path, sizeof path, "%s/dev/shm", root);
	if (statvfs(path, &shm) == 0) found.shm_room = (uint64_t)shm.f_bavail * (uint64_t)shm.f_frsize;
	*memory = found;
	return KV_OK;
}

enum kv_status kv_machine_memory_check(
    const struct kv_machine_memory *memory, uint64_t bytes, int shm)
{
	uint64_t room = memory->available - memory->available / 16;

	if (bytes > room) {
		return kv_fail(KV_LIMIT,
		    "%" PRIu64 " bytes of shared memory are asked for and %" PRIu64
		    " of the machine's memory are available: set a smaller --memory or end other programs",
		    bytes, room);
	}
	if (bytes > memory->cgroup_room) {
		return kv_fail(KV_LIMIT,
		    "%" PRIu64 " bytes of shared memory are asked for and the cgroup's limit of %" PRIu64
		    " leaves %" PRIu64 ": set a smaller --memory or raise MemoryMax",
		    bytes, memory->cgroup_limit, memory->cgroup_room);
	}
	if (shm && bytes > memory->shm_room) {
		return kv_fail(KV_LIMIT,
		    "%" PRIu64 " bytes of shared memory are asked for and /dev/shm has %" PRIu64
		    " free: set a smaller --memory, enlarge /dev/shm, or use --transport=map",
		    bytes, memory->shm_room);
	}
	return KV_OK;
}
