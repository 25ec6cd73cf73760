#include "kvstore/disk/disk_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "common/base/parse.h"
#include "common/runtime/fault_point.h"

static const char lock_name[] = "lock";

/* The pieces in which data is written: a test may stop the process between two. */
enum { PIECE = 1 << 20 };

static enum kv_status folder_failure(const char *what, const char *path)
{
	return kv_fail(
	    KV_IO, "the folder of the disk tier cannot be %s: %s: %s", what, path, strerror(errno));
}

static enum kv_status check_owner(int descriptor, const char *path)
{
	struct stat facts;

	if (fstat(descriptor, &facts) != 0) return folder_failure("looked at", path);
	if (facts.st_uid != geteuid() || (facts.st_mode & (S_IWGRP | S_IWOTH)) != 0)
		return kv_fail(KV_REFUSED,
		    "others may write to %s (owner %u, mode %04o): the disk tier wants a folder of its own "
		    "user, mode 0700",
		    path, (unsigned)facts.st_uid, (unsigned)(facts.st_mode & 07777));
	return KV_OK;
}

static enum kv_status take_lock(struct kvs_disk_folder *folder, const char *path)
{
	folder->lock = openat(folder->descriptor, lock_name,
	    O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
	if (folder->lock < 0) return folder_failure("locked", path);
	if (flock(folder->lock, LOCK_EX | LOCK_NB) == 0) return KV_OK;
	if (errno != EWOULDBLOCK) return folder_failure("locked", path);
	return kv_fail(
	    KV_BUSY, "another kvstored has %s for its disk tier: give each a folder of its own", path);
}

enum kv_status kvs_disk_open(const char *path, struct kvs_disk_folder *folder)
{
	struct kvs_disk_folder opened = {.descriptor = -1, .lock = -1};
	enum kv_status status;

	if (mkdir(path, 0700) != 0 && errno != EEXIST) return folder_failure("made", path);
	opened.descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (opened.descriptor < 0) return folder_failure("opened", path);
	status = check_owner(opened.descriptor, path);
	if (status == KV_OK) status = take_lock(&opened, path);
	if (status != KV_OK) {
		kvs_disk_close(&opened);
		return status;
	}
	*folder = opened;
	return KV_OK;
}

/* It is not there: can it be made? */
static enum kv_status check_parent(const char *path)
{
	char parent[PATH_MAX];
	char *slash;

	if (strlen(path) >= sizeof parent) {
		errno = ENAMETOOLONG;
		return folder_failure("made", path);
	}
	strcpy(parent, path);
	slash = strrchr(parent, '/');
	/* As mkdir, it forgives one at the end. */
	while (slash && slash > parent && !slash[1]) {
		*slash = '\0';
		slash = strrchr(parent, '/');
	}
	if (slash)
		slash[slash == parent] = '\0';
	else
		strcpy(parent, ".");
	if (faccessat(AT_FDCWD, parent, W_OK | X_OK, AT_EACCESS) != 0)
		return folder_failure("made", path);
	return KV_OK;
}

enum kv_status kvs_disk_check(const char *path)
{
	const int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	enum kv_status status;

	if (descriptor < 0 && errno == ENOENT) return check_parent(path);
	if (descriptor < 0) return folder_failure("opened", path);
	status = check_owner(descriptor, path);
	if (status == KV_OK && faccessat(AT_FDCWD, path, R_OK | W_OK | X_OK, AT_EACCESS) != 0)
		status = folder_failure("used", path);
	close(descriptor);
	return status;
}

void kvs_disk_close(struct kvs_disk_folder *folder)
{
	if (folder->lock >= 0) close(folder->lock);
	if (folder->descriptor >= 0) close(folder->descriptor);
	folder->lock = folder->descriptor = -1;
}

static void name_with(const uint8_t *key, const char *ending, char name[KVS_DISK_NAME])
{
	kv_hex_encode(key, KVW_KEY_BYTES, name);
	snprintf(name + 2 * KVW_KEY_BYTES, KVS_DISK_NAME - 2 * KVW_KEY_BYTES, "%s", ending);
}

void kvs_disk_name(const uint8_t key[KVW_KEY_BYTES], char name[KVS_DISK_NAME])
{
	name_with(key, ".segment", name);
}

static enum kv_status file_failure(const char *what, const char *name)
{
	enum kv_status status = KV_IO;

	if (errno == ENOSPC || errno == EDQUOT) status = KV_LIMIT;
	if (errno == EFBIG) status = KV_UNSUPPORTED;
	if (errno == ENOENT) status = KV_NOT_FOUND;
	return kv_fail(status, "%s cannot be %s: %s", name, what, strerror(errno));
}

/* A disk may hang instead of failing: this call does not come back then. */
static void hang_if_asked(void)
{
	if (!kv_fault_fires("disk.hang")) return;
	for (;;)
		pause();
}

/* ---- writing ---- */

static enum kv_status write_all(
    int descriptor, const char *name, const uint8_t *bytes, size_t size, size_t at)
{
	for (size_t done = 0; done < size;) {
		const size_t piece = size - done < PIECE ? size - done : PIECE;
		ssize_t written = pwrite(descriptor, bytes + done, piece, (off_t)(at + done));

		if (written < 0 && errno == EINTR) continue;
		if (written <= 0) return file_failure("written", name);
		done += (size_t)written;
		kv_fault_stop("disk.write");
	}
	return KV_OK;
}

static enum kv_status write_file(int descriptor, const char *name, const uint8_t *front,
    size_t front_bytes, const uint8_t *data, size_t data_bytes)
{
	hang_if_asked();
	if (kv_fault_fires("disk.full")) {
		errno = ENOSPC;
		return file_failure("written", name);
	}
	KV_TRY(write_all(descriptor, name, front, front_bytes, 0));
	return write_all(descriptor, name, data, data_bytes, front_bytes);
}

enum kv_status kvs_disk_write(const struct kvs_disk_folder *folder,
    const uint8_t key[KVW_KEY_BYTES], const uint8_t *front, size_t front_bytes, const uint8_t *data,
    size_t data_bytes)
{
	char name[KVS_DISK_NAME], part[KVS_DISK_NAME];
	enum kv_status status;
	int descriptor;

	kvs_disk_name(key, name);
	name_with(key, ".part", part);
	descriptor = openat(folder->descriptor, part,
	    O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
	if (descriptor < 0) return file_failure("made", part);
	status = write_file(descriptor, part, front, front_bytes, data, data_bytes);
	/* Some systems tell only now that there was no room. */
	if (close(descriptor) != 0 && status == KV_OK) status = file_failure("closed", part);
	if (status == KV_OK && renameat(folder->descriptor, part, folder->descriptor, name) != 0)
		/* Were it the folder that is gone, nothing could have been made in it. */
		status = errno == ENOENT ? kv_fail(KV_IO, "%s was removed while it was written", part)
		                         : file_failure("renamed", part);
	if (status != KV_OK) unlinkat(folder->descriptor, part, 0);
	return status;
}

enum kv_status kvs_disk_remove(
    const struct kvs_disk_folder *folder, const uint8_t key[KVW_KEY_BYTES])
{
	char name[KVS_DISK_NAME];

	kvs_disk_name(key, name);
	if (unlinkat(folder->descriptor, name, 0) == 0 || errno == ENOENT) return KV_OK;
	return file_failure("removed", name);
}

enum kv_status kvs_disk_set_aside(const struct kvs_disk_folder *folder, const char *name, bool keep)
{
	char aside[KVS_DISK_NAME + 8];

	snprintf(aside, sizeof aside, "%s.bad", name);
	if (keep ? renameat(folder->descriptor, name, folder->descriptor, aside) == 0
	         : unlinkat(folder->descriptor, name, 0) == 0)
		return KV_OK;
	return errno == ENOENT ? KV_OK : file_failure(keep ? "set aside" : "removed", name);
}

/* ---- reading ---- */

static enum kv_status read_all(
    int descriptor, const char *name, uint8_t *bytes, uint64_t size, uint64_t at)
{
	for (uint64_t done = 0; done < size;) {
		ssize_t got = pread(descriptor, bytes + done, (size_t)(size - done), (off_t)(at + done));

		if (got < 0 && errno == EINTR) continue;
		if (got < 0) return file_failure("read", name);
		if (got == 0) return kv_fail(KV_CORRUPT, "it ends early");
		done += (uint64_t)got;
	}
	return KV_OK;
}

static enum kv_status read_front(int descriptor, const char *name, const struct kvs_disk_read *read,
    struct kvs_disk_header *header)
{
	uint64_t front_bytes = 0, file_bytes = 0;
	struct stat facts;

	KV_TRY(kvs_disk_sizes(read->wanted, &front_bytes, &file_bytes));
	if (fstat(descriptor, &facts) != 0) return file_failure("looked at", name);
	if (!S_ISREG(facts.st_mode)) return kv_fail(KV_CORRUPT, "it is no regular file");
	if ((uint64_t)facts.st_size != file_bytes)
		return kv_fail(KV_CORRUPT, "it has %lld bytes, its segment makes it %llu",
		    (long long)facts.st_size, (unsigned long long)file_bytes);
	KV_TRY(read_all(descriptor, name, read->front, front_bytes, 0));
	KV_TRY(kvs_disk_parse(read->front, (size_t)front_bytes, file_bytes, header));
	return kvs_disk_match(
	    read->front, (size_t)front_bytes, header, read->wanted, read->key, read->checksums);
}

static enum kv_status read_units(int descriptor, const char *name, const struct kvs_disk_read *read)
{
	struct kvs_disk_header header;
	uint64_t at;

	KV_TRY(read_front(descriptor, name, read, &header));
	at = header.front_bytes;
	for (uint32_t layer = 0; layer < read->wanted->layers; layer++) {
		KV_TRY(read_all(descriptor, name, read->units[layer], read->unit_bytes[layer], at));
		if (kv_crc32c(0, read->units[layer], (size_t)read->unit_bytes[layer]) !=
		    read->checksums[layer])
			return kv_fail(KV_CORRUPT, "layer %u is damaged: its checksum differs", layer);
		at += read->unit_bytes[layer];
	}
	return KV_OK;
}

static enum kv_status open_to_read(
    const struct kvs_disk_folder *folder, const char *name, int *descriptor)
{
	kv_fault_stop("disk.read");
	hang_if_asked();
	if (kv_fault_fires("disk.error")) {
		errno = EIO;
		return file_failure("read", name);
	}
	*descriptor =
	    openat(folder->descriptor, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (*descriptor >= 0) return KV_OK;
	return errno == ELOOP ? kv_fail(KV_CORRUPT, "it is a link") : file_failure("opened", name);
}

enum kv_status kvs_disk_load(const struct kvs_disk_folder *folder, const struct kvs_disk_read *read)
{
	char name[KVS_DISK_NAME];
	enum kv_status status;
	int descriptor = -1;

	kvs_disk_name(read->key, name);
	KV_TRY(open_to_read(folder, name, &descriptor));
	status = read_units(descriptor, name, read);
	/* The order of use outlives a restart as the time of the file; that it may fail costs little.
	 */
	if (status == KV_OK) (void)futimens(descriptor, NULL);
	close(descriptor);
	return status;
}

static enum kv_status read_peek(int descriptor, const char *name, const struct kvs_disk_peek *peek)
{
	struct kvs_disk_header header;
	struct stat facts;

	if (fstat(descriptor, &facts) != 0) return file_failure("looked at", name);
	if (!S_ISREG(facts.st_mode)) return kv_fail(KV_CORRUPT, "it is no regular file");
	KV_TRY(read_all(descriptor, name, peek->front, peek->front_bytes, 0));
	KV_TRY(
	    kvs_disk_parse(peek->front, (size_t)peek->front_bytes, (uint64_t)facts.st_size, &header));
	if (memcmp(header.key, peek->key, KVW_KEY_BYTES) != 0 || header.tokens != peek->tokens ||
	    header.front_bytes != peek->front_bytes)
		return kv_fail(KV_CORRUPT, "its header is that of another segment");
	return kvs_disk_tokens(peek->front, (size_t)peek->front_bytes, &header, peek->token_ids);
}

enum kv_status kvs_disk_look(const struct kvs_disk_folder *folder, const struct kvs_disk_peek *peek)
{
	char name[KVS_DISK_NAME];
	enum kv_status status;
	int descriptor = -1;

	kvs_disk_name(peek->key, name);
	KV_TRY(open_to_read(folder, name, &descriptor));
	status = read_peek(descriptor, name, peek);
	close(descriptor);
	return status;
}
