/* One launch: all blocks of a grid, several at a time where the flavour allows. */
#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/lib/cuda_on_cpu/sanitizers.h"

namespace emu
{
enum { DEFAULT_SHARED = 48 << 10, MOST_SHARED = 227 << 10 };

static std::mutex attributes_lock;
static std::map<const void *, size_t> allowed_shared;

cudaError_t kernel_allow_shared(const void *kernel, int bytes)
{
	if (bytes < 0 || bytes > MOST_SHARED)
		return cudaErrorInvalidValue;
	std::lock_guard<std::mutex> guard(attributes_lock);
	allowed_shared[kernel] = static_cast<size_t>(bytes);
	return cudaSuccess;
}

static size_t most_shared(const void *kernel)
{
	std::lock_guard<std::mutex> guard(attributes_lock);
	auto found = allowed_shared.find(kernel);
	return found == allowed_shared.end() ? size_t{DEFAULT_SHARED} : found->second;
}

static size_t count_blocks(const struct launch *launch)
{
	const dim3 *grid = &launch->shape.grid;
	return size_t{grid->x} * grid->y * grid->z;
}

cudaError_t launch_check(const struct launch *launch)
{
	const dim3 *grid = &launch->shape.grid, *block = &launch->shape.block;
	size_t blocks = count_blocks(launch), threads = size_t{block->x} * block->y * block->z;
	if (blocks == 0 || threads == 0 || threads > 1024 || block->z > 64 || grid->y > 65535 ||
	    grid->z > 65535 || grid->x > 0x7fffffff)
		return cudaErrorInvalidConfiguration;
	if (launch->shape.shared_bytes > most_shared(launch->kernel))
		return cudaErrorInvalidValue;
	if (launch->shape.cooperative && blocks > (under_asan ? 1u : 256u))
		return cudaErrorCooperativeLaunchTooLarge;
	return cudaSuccess;
}

static void run_block_number(struct launch *launch, size_t i)
{
	const dim3 *grid = &launch->shape.grid;
	block_run(launch,
	    {static_cast<unsigned>(i % grid->x), static_cast<unsigned>(i / grid->x % grid->y),
	        static_cast<unsigned>(i / grid->x / grid->y)});
}

static void run_cooperative(struct launch *launch, size_t blocks)
{
	pthread_barrier_t barrier;
	pthread_barrier_init(&barrier, nullptr, static_cast<unsigned>(blocks));
	launch->grid_barrier = &barrier;
	std::vector<std::thread> threads;
	for (size_t i = 0; i < blocks; i++)
		threads.emplace_back(run_block_number, launch, i);
	for (std::thread &t : threads)
		t.join();
	pthread_barrier_destroy(&barrier);
}

/* Under ThreadSanitizer an OS thread for each block: fresh shared memory, and no order between
 * blocks. Never the caller's thread: its thread-local data would be poisoned. */
static void run_one_by_one(struct launch *launch, size_t blocks)
{
	for (size_t i = 0; i < blocks; i++)
		std::thread(run_block_number, launch, i).join();
}

static void run_side_by_side(struct launch *launch, size_t blocks)
{
	std::atomic<size_t> next{0};
	auto work = [&] {
		for (size_t i; (i = next++) < blocks;)
			run_block_number(launch, i);
	};
	size_t workers = under_asan ? 1 : settings.workers;
	std::vector<std::thread> threads;
	for (size_t i = 0; i < workers && i < blocks; i++)
		threads.emplace_back(work);
	for (std::thread &t : threads)
		t.join();
}

void launch_run(struct launch *launch)
{
	size_t blocks = count_blocks(launch);
	device_open();
	if (launch->shape.cooperative)
		run_cooperative(launch, blocks);
	else if (under_tsan)
		run_one_by_one(launch, blocks);
	else
		run_side_by_side(launch, blocks);
	order_acquire(&launch->done_token);
	device_close();
}
} // namespace emu
