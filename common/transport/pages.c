#define _GNU_SOURCE /* madvise, MAP_ANONYMOUS */
#include "common/transport/pages.h"

#include "common/base/check.h"

#include <errno.h>
#include <sys/mman.h>

/* Newer than the oldest C library and kernel headers that this is built with. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum kv_status kv_pages_round(uint64_t bytes, size_t *rounded)
{
	if (bytes == 0 || bytes > SIZE_MAX / 2 || !kv_align_size((size_t)bytes, KV_PAGE_BYTES, rounded))
		return kv_fail(KV_INVALID, "%llu bytes are no possible size of shared memory",
		    (unsigned long long)bytes);
	return KV_OK;
}

void *kv_pages_reserve(size_t bytes)
{
	size_t extra = bytes >= KV_HUGE_PAGE_BYTES ? KV_HUGE_PAGE_BYTES : 0, before;
	char *start;

	start =
	    mmap(NULL, bytes + extra, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (start == MAP_FAILED) return NULL;
	if (extra == 0) return start;
	before = (KV_HUGE_PAGE_BYTES - (uintptr_t)start % KV_HUGE_PAGE_BYTES) % KV_HUGE_PAGE_BYTES;
	if (before > 0) munmap(start, before);
	if (extra > before) munmap(start + before + bytes, extra - before);
	return start + before;
}

void *kv_pages_map(int descriptor, size_t bytes, int writable)
{
	void *place = kv_pages_reserve(bytes), *memory;

	if (!place) return NULL;
	memory = mmap(place, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
	    MAP_SHARED | MAP_FIXED, descriptor, 0);
	if (memory == MAP_FAILED) {
		int error = errno;

		munmap(place, bytes);
		errno = error;
		return NULL;
	}
	return memory;
}

/* For kernels before 5.14: one access for each page. */
static void touch(void *memory, size_t bytes, int writable)
{
	volatile char *at = memory;
	size_t offset;

	for (offset = 0; offset < bytes; offset += KV_PAGE_BYTES) {
		char value = at[offset];

		if (writable) at[offset] = value;
	}
}

int kv_pages_populate(void *memory, size_t bytes, int writable)
{
	int result;

	do {
		result = madvise(memory, bytes, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
	} while (result < 0 && (errno == EINTR || errno == EAGAIN));
	if (result == 0) return 0;
	if (errno != EINVAL) return -1;
	touch(memory, bytes, writable);
	return 0;
}

int kv_pages_allocate(void *memory, size_t bytes)
{
	char *start = memory;
	size_t offset;

	/* One small page in each makes the kernel see a range that can be collapsed; what it adds to
	 * fill the huge page it only has to clear. */
	for (offset = 0; offset + KV_HUGE_PAGE_BYTES <= bytes; offset += KV_HUGE_PAGE_BYTES) {
		if (kv_pages_populate(start + offset, KV_PAGE_BYTES, 1) < 0) return -1;
	}
	kv_pages_collapse(memory, bytes);
	return kv_pages_populate(memory, bytes, 1);
}

void kv_pages_collapse(void *memory, size_t bytes)
{
	uintptr_t start = (uintptr_t)memory, end = start + bytes;

	start = (start + KV_HUGE_PAGE_BYTES - 1) & ~(uintptr_t)(KV_HUGE_PAGE_BYTES - 1);
	end &= ~(uintptr_t)(KV_HUGE_PAGE_BYTES - 1);
	if (start < end)
		(void)madvise((char *)memory + (start - (uintptr_t)memory), end - start, MADV_COLLAPSE);
}
