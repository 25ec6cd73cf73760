/* What lies in the folder when a store starts: only headers are read. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/parse.h"
#include "kvstore/disk/disk_folder.h"

struct kvs_disk_scan {
	struct kv_allocator *allocator;
	const struct kvs_disk_folder *folder;
	DIR *entries;
};

enum kv_status kvs_disk_scan_begin(struct kv_allocator *allocator,
    const struct kvs_disk_folder *folder, struct kvs_disk_scan **scan)
{
	struct kvs_disk_scan *made = kv_alloc_zero(allocator, sizeof *made);
	int descriptor;

	if (!made) return KV_NO_MEMORY;
	made->allocator = allocator;
	made->folder = folder;
	descriptor = openat(folder->descriptor, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (descriptor >= 0) made->entries = fdopendir(descriptor);
	if (!made->entries) {
		if (descriptor >= 0) close(descriptor);
		kv_free(allocator, made);
		return kv_fail(KV_IO, "the folder of the disk tier cannot be listed: %s", strerror(errno));
	}
	*scan = made;
	return KV_OK;
}

void kvs_disk_scan_end(struct kvs_disk_scan *scan)
{
	if (!scan) return;
	closedir(scan->entries);
	kv_free(scan->allocator, scan);
}

/* False when it bears no name of ours. */
static bool judge_name(const char *name, struct kvs_disk_found *found)
{
	static const char *const endings[] = {".segment", ".part", ".segment.bad"};
	static const enum kvs_disk_kind kinds[] = {KVS_DISK_SEGMENT, KVS_DISK_PART, KVS_DISK_BAD};
	const size_t digits = 2 * KVW_KEY_BYTES;
	char hex[2 * KVW_KEY_BYTES + 1];
	char again[2 * KVW_KEY_BYTES + 1];

	if (strlen(name) <= digits || strlen(name) >= KVS_DISK_NAME) return false;
	memcpy(hex, name, digits);
	hex[digits] = '\0';
	if (kv_hex_decode(hex, found->key, KVW_KEY_BYTES) != KV_OK) return false;
	kv_hex_encode(found->key, KVW_KEY_BYTES, again);
	if (strcmp(hex, again) != 0) return false;
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
		if (strcmp(name + digits, endings[i]) != 0) continue;
		found->kind = kinds[i];
		memcpy(found->name, name, strlen(name) + 1);
		return true;
	}
	return false;
}

static enum kv_status check_segment(int descriptor, struct kvs_disk_found *found)
{
	struct kvs_disk_header header;
	uint8_t bytes[KVS_DISK_HEADER];
	struct stat facts;
	ssize_t got;

	if (fstat(descriptor, &facts) != 0)
		return kv_fail(KV_IO, "it cannot be looked at: %s", strerror(errno));
	if (!S_ISREG(facts.st_mode)) return kv_fail(KV_CORRUPT, "it is no regular file");
	got = pread(descriptor, bytes, sizeof bytes, 0);
	if (got < 0) return kv_fail(KV_IO, "it cannot be read: %s", strerror(errno));
	if (got != (ssize_t)sizeof bytes) return kv_fail(KV_CORRUPT, "it has no header");
	KV_TRY(kvs_disk_parse(bytes, sizeof bytes, (uint64_t)facts.st_size, &header));
	if (memcmp(header.key, found->key, sizeof found->key) != 0)
		return kv_fail(KV_CORRUPT, "its name is that of another segment");
	found->marks = header.marks;
	found->bytes = header.file_bytes;
	found->used =
	    (uint64_t)facts.st_mtim.tv_sec * UINT64_C(1000000000) + (uint64_t)facts.st_mtim.tv_nsec;
	return KV_OK;
}

static void judge_segment(struct kvs_disk_scan *scan, struct kvs_disk_found *found)
{
	int descriptor = openat(scan->folder->descriptor, found->name,
	    O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	enum kv_status status;

	if (descriptor < 0)
		status = kv_fail(
		    errno == ELOOP ? KV_CORRUPT : KV_IO, "it cannot be opened: %s", strerror(errno));
	else
		status = check_segment(descriptor, found);
	if (descriptor >= 0) close(descriptor);
	if (status == KV_OK) return;
	found->kind = status == KV_IO ? KVS_DISK_UNREAD : KVS_DISK_WRONG;
	snprintf(found->why, sizeof found->why, "%s", kv_error_message());
}

enum kv_status kvs_disk_scan_next(
    struct kvs_disk_scan *scan, struct kvs_disk_found *found, uint32_t most, uint32_t *count)
{
	*count = 0;
	while (*count < most) {
		const struct dirent *entry;

		errno = 0;
		entry = readdir(scan->entries);
		if (!entry && errno)
			return kv_fail(
			    KV_IO, "the folder of the disk tier cannot be listed: %s", strerror(errno));
		if (!entry) return KV_OK;
		memset(&found[*count], 0, sizeof *found);
		if (!judge_name(entry->d_name, &found[*count])) continue;
		if (found[*count].kind == KVS_DISK_SEGMENT) judge_segment(scan, &found[*count]);
		(*count)++;
	}
	return KV_OK;
}
