#define _GNU_SOURCE /* F_SETLEASE, F_SETSIG */
#include "common/transport/shm_leftovers.h"

#include "common/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* True when the kernel vouches that this descriptor is the only one in existence for its file. A
 * mapping keeps its open file alive and so counts too. */
static bool held_by_nobody_else(int descriptor)
{
	/* Should somebody open the file just now, the notice must not be SIGIO, which would end us. */
	if (fcntl(descriptor, F_SETSIG, SIGURG) < 0) return false;
	if (fcntl(descriptor, F_SETLEASE, F_WRLCK) < 0) return false;
	return fcntl(descriptor, F_SETLEASE, F_UNLCK) == 0;
}

static bool remove_if_left(int directory, const char *name)
{
	struct stat status, now;
	bool removed = false;
	int descriptor;

	descriptor = openat(directory, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (descriptor < 0) return false;
	if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
	    held_by_nobody_else(descriptor) &&
	    fstatat(directory, name, &now, AT_SYMLINK_NOFOLLOW) == 0 && now.st_dev == status.st_dev &&
	    now.st_ino == status.st_ino) {
		removed = unlinkat(directory, name, 0) == 0;
		if (removed) {
			kv_info("transport",
			    "removed shared memory that a killed process left name=%s bytes=%lld", name,
			    (long long)status.st_size);
		}
	}
	close(descriptor);
	return removed;
}

int kv_shm_leftovers_remove(const char *directory, const char *prefix)
{
	DIR *stream = opendir(directory);
	struct dirent *entry;
	int removed = 0;

	if (!stream) return 0;
	while ((entry = readdir(stream)) != NULL) {
		if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0) continue;
		if (remove_if_left(dirfd(stream), entry->d_name)) removed++;
	}
	closedir(stream);
	return removed;
}
