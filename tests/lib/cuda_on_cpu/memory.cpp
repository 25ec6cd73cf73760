/* Device memory: one mapping each, which only the device may touch. */
#include <sys/mman.h>
#include <cstring>
#include <map>
#include <mutex>

#include "tests/lib/cuda_on_cpu/sanitizers.h"

namespace emu
{
struct allocation {
	size_t bytes, mapped;
};

static std::recursive_mutex lock;
static std::map<char *, struct allocation> heap;
static unsigned opened;

static void protect_all(int protection)
{
	for (auto &a : heap)
		mprotect(a.first, a.second.mapped, protection);
}

void device_open(void)
{
	std::lock_guard<std::recursive_mutex> guard(lock);
	if (opened++ == 0)
		protect_all(PROT_READ | PROT_WRITE);
}

void device_close(void)
{
	std::lock_guard<std::recursive_mutex> guard(lock);
	if (--opened == 0)
		protect_all(PROT_NONE);
}

bool on_device(const void *at, size_t bytes)
{
	std::lock_guard<std::recursive_mutex> guard(lock);
	char *address = static_cast<char *>(const_cast<void *>(at));
	auto found = heap.upper_bound(address);
	if (found == heap.begin())
		return false;
	--found;
	return address + bytes <= found->first + found->second.bytes;
}
} // namespace emu

using namespace emu;

extern "C" {
cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
	std::lock_guard<std::recursive_mutex> guard(lock);
	size_t pages = (bytes + 4095) & ~size_t{4095};
	void *memory = mmap(
	    nullptr, pages + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return failed(cudaErrorMemoryAllocation);
	char *start = static_cast<char *>(memory);
	memset(start, 0xff, pages);
	mprotect(start + pages, 4096, PROT_NONE);
	if (under_asan)
		__asan_poison_memory_region(start + bytes, pages - bytes);
	heap[start] = {bytes, pages};
	if (!opened)
		mprotect(start, pages, PROT_NONE);
	*pointer = start;
	return cudaSuccess;
}

cudaError_t cudaFree(void *pointer)
{
	std::lock_guard<std::recursive_mutex> guard(lock);
	if (!pointer)
		return cudaSuccess;
	auto found = heap.find(static_cast<char *>(pointer));
	if (found == heap.end())
		return failed(cudaErrorInvalidValue);
	if (under_asan)
		__asan_unpoison_memory_region(pointer, found->second.mapped);
	munmap(pointer, found->second.mapped + 4096);
	heap.erase(found);
	return cudaSuccess;
}
}
