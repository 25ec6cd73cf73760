/* Host memory that the device may touch: cudaHostAlloc and cudaHostRegister. */
#include <sys/mman.h>
#include <cstdio>
#include <cstring>
#include <map>

#include "tests/lib/cuda_on_cpu/sanitizers.h"
#include "tests/lib/cuda_on_cpu/streams.h"

namespace emu
{
struct pinned {
	size_t bytes;
	unsigned flags;
	bool allocated; /* by cudaHostAlloc, not registered */
};

static quiet_lock lock;
static std::map<char *, struct pinned> *const pinned = new std::map<char *, struct pinned>;

/* The pinned memory at or below an address that reaches beyond it or ends there, or the end. */
static std::map<char *, struct pinned>::iterator holder(const void *at)
{
	char *address = static_cast<char *>(const_cast<void *>(at));
	auto found = pinned->upper_bound(address);
	if (found == pinned->begin()) return pinned->end();
	--found;
	return address <= found->first + found->second.bytes ? found : pinned->end();
}

/* Does [at, at + bytes) touch any? */
static bool overlaps(const void *at, size_t bytes)
{
	char *start = static_cast<char *>(const_cast<void *>(at));
	auto next = pinned->lower_bound(start);
	if (next != pinned->end() && next->first < start + bytes) return true;
	auto found = holder(at);
	return found != pinned->end() && start < found->first + found->second.bytes;
}

enum memory_kind pinned_kind(const void *at, size_t bytes)
{
	lock.lock();
	enum memory_kind kind = MEMORY_PAGEABLE;
	const char *start = static_cast<const char *>(at);
	auto found = holder(at);
	if (found != pinned->end() && start + bytes <= found->first + found->second.bytes)
		kind = MEMORY_PINNED;
	else if (overlaps(at, bytes))
		kind = MEMORY_BROKEN;
	lock.unlock();
	return kind;
}

bool pinned_place(const void *at, struct place *found)
{
	lock.lock();
	auto p = holder(at);
	bool is_pinned = p != pinned->end() && at < p->first + p->second.bytes;
	if (is_pinned)
		*found = {p->first, p->first + p->second.bytes,
		    p->second.allocated || !(p->second.flags & cudaHostRegisterReadOnly)};
	lock.unlock();
	return is_pinned;
}

/* Is all of the range mapped, and readable, or writable too? */
static bool is_mapped(const void *at, size_t bytes, bool writable)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	if (!maps) return false;
	uintptr_t need = reinterpret_cast<uintptr_t>(at), end = need + bytes, from, to;
	char line[512], mode[8];
	while (need < end && fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) != 3 || to <= need) continue;
		if (from > need || mode[0] != 'r' || (writable && mode[1] != 'w')) break;
		need = to;
	}
	fclose(maps);
	return need >= end;
}

static cudaError_t add_registered(void *at, size_t bytes, unsigned flags)
{
	lock.lock();
	bool taken = overlaps(at, bytes);
	if (!taken) (*pinned)[static_cast<char *>(at)] = {bytes, flags, false};
	memory_changed();
	lock.unlock();
	return taken ? cudaErrorHostMemoryAlreadyRegistered : cudaSuccess;
}

/* Forget the memory that starts at `at` and was pinned in this way. */
static bool remove_pinned(void *at, bool allocated, size_t *bytes)
{
	lock.lock();
	auto found = pinned->find(static_cast<char *>(at));
	bool mine = found != pinned->end() && found->second.allocated == allocated;
	if (mine) {
		*bytes = found->second.bytes;
		pinned->erase(found);
		memory_changed();
	}
	lock.unlock();
	return mine;
}
} // namespace emu

using namespace emu;

extern "C" {
/* Page-aligned and zero, as it is; an unmapped page follows. */
cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
	api_call call(true);
	unsigned known = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
	if (call.refused || !pointer || (flags & ~known))
		return failed(call.refused ? call.refused : cudaErrorInvalidValue);
	*pointer = nullptr;
	if (bytes == 0) return cudaSuccess;
	size_t pages = (bytes + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
	void *memory = mmap(nullptr, pages + GUARD_BYTES, PROT_READ | PROT_WRITE,
	    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
	char *start = static_cast<char *>(memory);
	mprotect(start + pages, GUARD_BYTES, PROT_NONE);
	if (under_asan) __asan_poison_memory_region(start + bytes, pages - bytes);
	lock.lock();
	(*pinned)[start] = {bytes, flags, true};
	memory_changed();
	lock.unlock();
	*pointer = start;
	return cudaSuccess;
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes)
{
	return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *pointer)
{
	api_call call(true);
	if (call.refused || !pointer) return failed(call.refused);
	device_wait_all();
	size_t bytes;
	if (!remove_pinned(pointer, true, &bytes)) return failed(cudaErrorInvalidValue);
	size_t pages = (bytes + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
	if (under_asan) __asan_unpoison_memory_region(pointer, pages);
	munmap(pointer, pages + GUARD_BYTES);
	return cudaSuccess;
}

cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned flags)
{
	api_call call(true);
	unsigned known = cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly;
	if (call.refused || !at || bytes == 0 || (flags & ~known))
		return failed(call.refused ? call.refused : cudaErrorInvalidValue);
	if (!is_mapped(at, bytes, !(flags & cudaHostRegisterReadOnly)))
		return failed(cudaErrorInvalidValue);
	return failed(add_registered(at, bytes, flags));
}

cudaError_t cudaHostUnregister(void *at)
{
	api_call call(true);
	size_t bytes;
	if (call.refused) return failed(call.refused);
	device_wait_all();
	return failed(
	    remove_pinned(at, false, &bytes) ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

/* All addresses are one space, as on every 64-bit system. */
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
	api_call call;
	if (call.refused || flags || pinned_kind(host, 1) != MEMORY_PINNED)
		return failed(call.refused ? call.refused : cudaErrorInvalidValue);
	*device = host;
	return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer)
{
	api_call call;
	if (call.refused) return failed(call.refused);
	enum memory_kind kind = memory_kind(pointer, 1);
	void *address = const_cast<void *>(pointer);
	memset(attributes, 0, sizeof *attributes);
	attributes->type = cudaMemoryTypeUnregistered;
	attributes->device = -2; /* cudaInvalidDeviceId: of none */
	if (kind == MEMORY_DEVICE || kind == MEMORY_PINNED) {
		attributes->type = kind == MEMORY_DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
		attributes->device = 0;
		attributes->devicePointer = address;
	}
	if (kind == MEMORY_PINNED) attributes->hostPointer = address;
	return cudaSuccess;
}
}
