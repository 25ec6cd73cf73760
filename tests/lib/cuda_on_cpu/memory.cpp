/* Device memory: one mapping each, which only the device thread may touch, while it runs kernels
 * and copies. New memory is NaN; a page that cannot be touched follows it; freed memory stays
 * unmapped for a while, so that its use shows. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "tests/lib/cuda_on_cpu/sanitizers.h"
#include "tests/lib/cuda_on_cpu/streams.h"

namespace emu
{
enum { MOST_FREED = 1024 };
const unsigned char POISON = 0xff;
const size_t PATTERN = size_t{1} << 20; /* large allocations map a file of poison over and over */

struct allocation {
	size_t bytes, mapped; /* `mapped` without the guard page */
};

struct freed {
	char *start;
	struct allocation was;
};

static quiet_lock lock; /* of the heap; the device thread takes it without state_lock */
static std::map<char *, struct allocation> *const heap = new std::map<char *, struct allocation>;
static std::deque<struct freed> *const freed_lately = new std::deque<struct freed>;
static size_t used;
static bool open_now;

static void protect_all(int protection)
{
	for (const auto &a : *heap)
		mprotect(a.first, a.second.mapped, protection);
}

void device_memory_open(void)
{
	lock.lock();
	open_now = true;
	protect_all(PROT_READ | PROT_WRITE);
	lock.unlock();
}

void device_memory_close(void)
{
	lock.lock();
	open_now = false;
	protect_all(PROT_NONE);
	lock.unlock();
}

/* The first allocation at or below an address, or the end. */
static std::map<char *, struct allocation>::iterator below(const void *at)
{
	auto found = heap->upper_bound(static_cast<char *>(const_cast<void *>(at)));
	return found == heap->begin() ? heap->end() : std::prev(found);
}

enum memory_kind memory_kind(const void *at, size_t bytes)
{
	const char *start = static_cast<const char *>(at);
	enum memory_kind kind = MEMORY_PAGEABLE;
	lock.lock();
	auto found = below(at);
	if (found != heap->end() && start <= found->first + found->second.bytes)
		kind = start + bytes <= found->first + found->second.bytes ? MEMORY_DEVICE : MEMORY_BROKEN;
	lock.unlock();
	return kind == MEMORY_PAGEABLE ? pinned_kind(at, bytes) : kind;
}

bool memory_explain(const void *at, char *words, size_t size)
{
	const char *address = static_cast<const char *>(at);
	auto found = below(at);
	if (found != heap->end() && address < found->first + found->second.mapped + GUARD_BYTES) {
		long offset = address - found->first;
		snprintf(words, size, "byte %ld of a device allocation of %zu bytes", offset,
		    found->second.bytes);
		return true;
	}
	for (const struct freed &f : *freed_lately)
		if (address >= f.start && address < f.start + f.was.mapped + GUARD_BYTES) {
			snprintf(words, size, "byte %ld of device memory that was freed (%zu bytes)",
			    static_cast<long>(address - f.start), f.was.bytes);
			return true;
		}
	return false;
}

static uint64_t generation;

uint64_t memory_generation(void)
{
	return __atomic_load_n(&generation, __ATOMIC_RELAXED);
}

void memory_changed(void)
{
	__atomic_add_fetch(&generation, 1, __ATOMIC_RELAXED);
}

bool memory_place(const void *at, struct place *found)
{
	const char *address = static_cast<const char *>(at);
	lock.lock();
	auto a = below(at);
	bool of_device = a != heap->end() && address < a->first + a->second.bytes;
	if (of_device) *found = {a->first, a->first + a->second.bytes, true};
	lock.unlock();
	return of_device || pinned_place(at, found);
}

static int pattern_file(void)
{
	static int file = -1;
	if (file >= 0) return file;
	std::vector<unsigned char> pattern(PATTERN, POISON);
	file = memfd_create("cuda_on_cpu", MFD_CLOEXEC);
	if (file < 0 || write(file, pattern.data(), PATTERN) != static_cast<ssize_t>(PATTERN))
		die_plainly("no memory file for the device's memory");
	return file;
}

static void poison(char *start, size_t pages)
{
	size_t done = 0;
	for (; pages > 4 * PATTERN && done + PATTERN <= pages; done += PATTERN)
		if (mmap(start + done, PATTERN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
		        pattern_file(), 0) == MAP_FAILED)
			die_plainly("no memory for the device");
	memset(start + done, POISON, pages - done);
}

/* With the heap's lock. */
static char *allocate(size_t bytes)
{
	size_t pages = (bytes + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
	if (pages < bytes || pages > settings.memory || used + pages > settings.memory) return nullptr;
	void *memory = mmap(nullptr, pages + GUARD_BYTES, PROT_READ | PROT_WRITE,
	    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED) return nullptr;
	char *start = static_cast<char *>(memory);
	poison(start, pages);
	mprotect(start + pages, GUARD_BYTES, PROT_NONE);
	if (under_asan) __asan_poison_memory_region(start + bytes, pages - bytes);
	(*heap)[start] = {bytes, pages};
	used += pages;
	memory_changed();
	if (!open_now) mprotect(start, pages, PROT_NONE);
	return start;
}

/* Bytes between the end of an allocation and its last page's end were poisoned, too. */
static void check_tail(const char *start, const struct allocation *a)
{
	size_t at = a->bytes;
	while (at < a->mapped && static_cast<unsigned char>(start[at]) == POISON)
		at++;
	if (at < a->mapped)
		die_plainly(
		    "something wrote to byte %zu of a device allocation of %zu bytes", at, a->bytes);
}

static void forget_oldest(void)
{
	struct freed f = freed_lately->front();
	freed_lately->pop_front();
	munmap(f.start, f.was.mapped + GUARD_BYTES);
}

/* With the heap's lock. The address space is kept, its pages are not. */
static bool release(void *pointer)
{
	char *start = static_cast<char *>(pointer);
	auto found = heap->find(start);
	if (found == heap->end()) return false;
	struct allocation a = found->second;
	mprotect(start, a.mapped, PROT_READ | PROT_WRITE);
	if (under_asan) __asan_unpoison_memory_region(start, a.mapped);
	check_tail(start, &a);
	if (mmap(start, a.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
	        -1, 0) == MAP_FAILED)
		die_plainly("device memory cannot be given back");
	heap->erase(found);
	used -= a.mapped;
	memory_changed();
	freed_lately->push_back({start, a});
	if (freed_lately->size() > MOST_FREED) forget_oldest();
	return true;
}

struct free_work : emu::work {
	void *pointer;
	explicit free_work(void *to_free) : work("cudaFreeAsync"), pointer(to_free)
	{
		type = NODE_MEMORY;
	}
	void run(struct operation *) override
	{
		lock.lock();
		release(pointer);
		lock.unlock();
	}
};

bool device_take(size_t bytes)
{
	lock.lock();
	bool enough = used + bytes <= settings.memory;
	if (enough) used += bytes;
	lock.unlock();
	return enough;
}

void device_give(size_t bytes)
{
	lock.lock();
	used -= bytes;
	lock.unlock();
}

static cudaError_t allocate_for(void **pointer, size_t bytes)
{
	if (!pointer) return cudaErrorInvalidValue;
	*pointer = nullptr;
	if (bytes == 0) return cudaSuccess;
	lock.lock();
	*pointer = allocate(bytes);
	lock.unlock();
	return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}
} // namespace emu

using namespace emu;

extern "C" {
cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
	api_call call(true);
	return failed(call.refused ? call.refused : allocate_for(pointer, bytes));
}

/* Waits for the whole device first, as cudaFree does in effect; nothing should rely on it. */
cudaError_t cudaFree(void *pointer)
{
	api_call call(true);
	if (call.refused || !pointer) return failed(call.refused);
	device_wait_all();
	lock.lock();
	bool found = release(pointer);
	lock.unlock();
	return failed(found ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream)
{
	api_call call(true);
	cudaError_t error = call.refused;
	if (!error) stream_find(stream, &error);
	return failed(error ? error : allocate_for(pointer, bytes));
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
	api_call call(true);
	if (call.refused || !pointer) return failed(call.refused);
	lock.lock();
	bool found = heap->count(static_cast<char *>(pointer)) != 0;
	lock.unlock();
	if (!found) return failed(cudaErrorInvalidValue);
	return failed(stream_submit(stream, std::make_shared<free_work>(pointer)));
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
	api_call call;
	lock.lock();
	*free = settings.memory - used;
	lock.unlock();
	*total = settings.memory;
	return failed(call.refused);
}
}
