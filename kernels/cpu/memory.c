/* Affinity masks and page advice are outside POSIX. */
#define _GNU_SOURCE
#include "kernels/cpu/memory.h"

#include <sched.h>
#include <sys/mman.h>

#include "common/base/status.h"

enum { LINE = 64 };
static const size_t huge_page = (size_t)2 << 20;
static const size_t huge_from = (size_t)1 << 20;

/* What lies in the line before the memory that is handed out. */
struct memory_header {
	void *block;
};

void *kn_memory_create(struct kv_allocator *allocator, size_t bytes)
{
	int huge = bytes >= huge_from;
	size_t alignment = huge ? huge_page : LINE;
	size_t extra = alignment + LINE;

	if (bytes > SIZE_MAX / 2) {
		kv_fail(KV_NO_MEMORY, "a buffer of %zu bytes is more than the address space holds", bytes);
		return NULL;
	}
	uint8_t *block = kv_alloc(allocator, bytes + extra);

	if (!block) return NULL;
	uintptr_t start = ((uintptr_t)block + LINE + alignment - 1) & ~(uintptr_t)(alignment - 1);
	uint8_t *memory = block + (start - (uintptr_t)block);

	((struct memory_header *)(void *)(memory - LINE))->block = block;
	/* Advice only: without huge pages everything is just slower. */
	if (huge) (void)madvise(memory, bytes, MADV_HUGEPAGE);
	return memory;
}

void kn_memory_destroy(struct kv_allocator *allocator, void *memory)
{
	if (!memory) return;
	kv_free(allocator, ((struct memory_header *)(void *)((uint8_t *)memory - LINE))->block);
}

uint32_t kn_usable_cpus(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
	int count = CPU_COUNT(&set);

	return count > 0 ? (uint32_t)count : 1;
}
