#include "common/base/private_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum kv_status check(int descriptor, const char *what, const char *path)
{
	struct stat facts;

	if (fstat(descriptor, &facts) != 0)
		return kv_fail(KV_IO, "cannot look at %s %s: %s", what, path, strerror(errno));
	if (!S_ISREG(facts.st_mode)) return kv_fail(KV_REFUSED, "%s %s is no regular file", what, path);
	if (facts.st_mode & (S_IRWXO | S_IWGRP))
		return kv_fail(KV_REFUSED,
		    "%s %s has mode %04o: others may read or change it; chmod it to 0600 or 0640", what,
		    path, (unsigned)(facts.st_mode & 07777));
	if (facts.st_uid != 0 && facts.st_uid != geteuid())
		return kv_fail(KV_REFUSED, "%s %s belongs to user %u, neither root nor this one", what,
		    path, (unsigned)facts.st_uid);
	return KV_OK;
}

static enum kv_status read_all(
    int descriptor, const char *what, const char *path, char *bytes, size_t size, size_t *length)
{
	size_t there = 0;

	while (there < size) {
		ssize_t got = read(descriptor, bytes + there, size - there);

		if (got < 0 && errno == EINTR) continue;
		if (got < 0) return kv_fail(KV_IO, "cannot read %s %s: %s", what, path, strerror(errno));
		if (got == 0) break;
		there += (size_t)got;
	}
	*length = there;
	return KV_OK;
}

enum kv_status kv_private_file_read(
    const char *what, const char *path, char *bytes, size_t size, size_t *length)
{
	int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	enum kv_status status;

	if (descriptor < 0)
		return kv_fail(errno == ENOENT ? KV_NOT_FOUND : KV_IO, "cannot open %s %s: %s", what, path,
		    strerror(errno));
	status = check(descriptor, what, path);
	if (status == KV_OK) status = read_all(descriptor, what, path, bytes, size, length);
	close(descriptor);
	return status;
}
