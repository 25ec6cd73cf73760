/* Making the unpacking of a key safe against the sudden end of the memory's owner.
 *
 * The key of a region in posix shared memory holds three little-endian words in a row: flags, a
 * descriptor and the process that has it; the region's address; its length. Unpacking opens that
 * descriptor under /proc, and where this fails UCX 1.13 frees what it never made, and crashes. So
 * it is opened here first, where failing is an error like others, and the key is made to name this
 * process's own descriptor, which nobody else can close.
 */
#include "common/transport/transport_ucx.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NUMBER_BITS = 30, PATH_SIZE = 64 };

static const uint64_t number_mask = (UINT64_C(1) << NUMBER_BITS) - 1;
static const uint64_t in_proc_flag = UINT64_C(1) << 63;

/* Where in the key the three words are; false when it is of another kind. */
static bool find_words(
    const struct kv_ucx_region_blob *head, const uint8_t *key, size_t *at, uint64_t *place)
{
	uint64_t words[3];

	for (size_t i = 0; i + sizeof words <= head->key_bytes; i++) {
		memcpy(words, key + i, sizeof words);
		if (words[1] != head->base || words[2] < head->bytes || !(words[0] & in_proc_flag))
			continue;
		*at = i;
		*place = words[0];
		return true;
	}
	return false;
}

static void proc_path(char path[PATH_SIZE], uint64_t process, uint64_t descriptor)
{
	snprintf(path, PATH_SIZE, "/proc/%llu/fd/%llu", (unsigned long long)process,
	    (unsigned long long)descriptor);
}

/* Does /proc show this process, under this number, with that file? */
static bool seen_in_proc(int descriptor, const struct stat *file)
{
	char path[PATH_SIZE];
	struct stat seen;

	proc_path(path, (uint64_t)getpid(), (uint64_t)descriptor);
	return stat(path, &seen) == 0 && seen.st_dev == file->st_dev && seen.st_ino == file->st_ino;
}

enum kv_status kv_ucx_key_hold(const struct kv_ucx_region_blob *head, uint8_t *key, int *descriptor)
{
	char path[PATH_SIZE];
	struct stat file;
	uint64_t place;
	size_t at;
	int held;

	*descriptor = -1;
	if (!find_words(head, key, &at, &place)) return KV_OK;
	proc_path(path, place & number_mask, place >> NUMBER_BITS & number_mask);
	held = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (held < 0 && (errno == EACCES || errno == EPERM)) {
		return kv_fail(KV_REFUSED,
		    "the store's memory cannot be opened (%s): both must run as one user; else use "
		    "--transport=map",
		    strerror(errno));
	}
	if (held < 0) return kv_fail(KV_DISCONNECTED, "the store has ended, or has taken memory back");
	if (fstat(held, &file) < 0 || !S_ISREG(file.st_mode) || file.st_size < 0 ||
	    (uint64_t)file.st_size < head->bytes) {
		close(held);
		return kv_fail(KV_DISCONNECTED, "the store has taken memory back");
	}
	if (!seen_in_proc(held, &file)) {
		close(held);
		return KV_OK;
	}
	place &= ~(number_mask | number_mask << NUMBER_BITS);
	place |= (uint64_t)getpid() | (uint64_t)held << NUMBER_BITS;
	memcpy(key + at, &place, sizeof place);
	*descriptor = held;
	return KV_OK;
}
