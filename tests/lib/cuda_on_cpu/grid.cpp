/* Launches: all blocks of a grid, several at a time where the flavour allows. */
#include <pthread.h>
#include <map>

#include "tests/lib/cuda_on_cpu/sanitizers.h"
#include "tests/lib/cuda_on_cpu/streams.h"

namespace emu
{
static std::map<const void *, size_t> *const allowed_shared = new std::map<const void *, size_t>;

static size_t count_blocks(const struct launch *launch)
{
	const dim3 *grid = &launch->shape.grid;
	return size_t{grid->x} * grid->y * grid->z;
}

cudaError_t launch_check(const struct launch *launch)
{
	const dim3 *grid = &launch->shape.grid, *block = &launch->shape.block;
	size_t threads = size_t{block->x} * block->y * block->z;
	if (count_blocks(launch) == 0 || threads == 0 || threads > 1024 || block->z > 64 ||
	    grid->y > 65535 || grid->z > 65535 || grid->x > 0x7fffffff)
		return cudaErrorInvalidConfiguration;
	auto allowed = allowed_shared->find(launch->kernel);
	size_t most = allowed == allowed_shared->end() ? size_t{EMU_DEFAULT_SHARED} : allowed->second;
	return launch->shape.shared_bytes > most ? cudaErrorInvalidValue : cudaSuccess;
}

static void run_block_number(const struct launch *launch, size_t i)
{
	const dim3 *grid = &launch->shape.grid;
	block_run(
	    launch, {static_cast<unsigned>(i % grid->x), static_cast<unsigned>(i / grid->x % grid->y),
	                static_cast<unsigned>(i / grid->x / grid->y)});
}

/* ---- ThreadSanitizer: an OS thread for each block ----
 * Its shared memory is fresh to TSAN, and it knows of no block before. Not joined, as that would
 * be an order, too. */

struct lone_block {
	const struct launch *launch;
	size_t number;
	int done;
};

static void *lone_block_main(void *argument)
{
	struct lone_block *lone = static_cast<struct lone_block *>(argument);
	tsan_ignore();
	faults_prepare_thread();
	run_block_number(lone->launch, lone->number);
	tsan_heed();
	__atomic_store_n(&lone->done, 1, __ATOMIC_RELEASE);
	quiet_wake(&lone->done);
	return nullptr;
}

static void run_apart(const struct launch *launch, size_t blocks)
{
	for (size_t i = 0; i < blocks; i++) {
		struct lone_block lone = {launch, i, 0};
		pthread_t thread;
		if (pthread_create(&thread, nullptr, lone_block_main, &lone) != 0)
			die_plainly("no thread for a block");
		pthread_detach(thread);
		quiet_wait(&lone.done, 0);
	}
}

/* ---- otherwise: the device thread and its helpers share the blocks ---- */

static struct {
	const struct launch *launch;
	size_t blocks, next;
	int round, busy; /* futexes */
	bool started;
} crew;

static void share_blocks(void)
{
	for (;;) {
		size_t i = __atomic_fetch_add(&crew.next, 1, __ATOMIC_RELAXED);
		if (i >= crew.blocks) return;
		run_block_number(crew.launch, i);
	}
}

static void *helper_main(void *)
{
	faults_prepare_thread();
	for (int seen = 0;; seen++) {
		quiet_wait(&crew.round, seen);
		share_blocks();
		if (__atomic_sub_fetch(&crew.busy, 1, __ATOMIC_ACQ_REL) == 0) quiet_wake(&crew.busy);
	}
	return nullptr;
}

static void run_shared(const struct launch *launch, size_t blocks, size_t helpers)
{
	pthread_t thread;
	crew.launch = launch;
	crew.blocks = blocks;
	crew.next = 0;
	for (size_t i = 0; !crew.started && i < helpers; i++)
		if (pthread_create(&thread, nullptr, helper_main, nullptr) != 0 ||
		    pthread_detach(thread) != 0)
			die_plainly("no thread for blocks");
	crew.started = true;
	crew.busy = static_cast<int>(helpers);
	__atomic_add_fetch(&crew.round, 1, __ATOMIC_RELEASE);
	quiet_wake(&crew.round);
	share_blocks();
	for (int busy; (busy = __atomic_load_n(&crew.busy, __ATOMIC_ACQUIRE)) != 0;)
		quiet_wait(&crew.busy, busy);
}

void launch_run(const struct launch *launch)
{
	size_t blocks = count_blocks(launch);
	if (under_tsan)
		run_apart(launch, blocks);
	else if (under_asan || settings.workers < 2 || blocks == 1)
		for (size_t i = 0; i < blocks; i++)
			run_block_number(launch, i);
	else
		run_shared(launch, blocks, settings.workers - 1);
}
} // namespace emu

namespace
{
using namespace emu;

struct kernel_work : emu::work {
	struct launch launch;
	void (*release)(void *argument);

	kernel_work(const struct launch &what, void (*free_argument)(void *))
	    : work(what.name), launch(what), release(free_argument)
	{
		orders_threads = true;
	}
	~kernel_work() override
	{
		release(launch.argument);
	}
	void run(struct operation *op) override
	{
		struct launch mine = launch;
		mine.operation = op;
		mine.first_set = static_cast<unsigned>(op->number);
		launch_run(&mine);
	}
};
} // namespace

extern "C" {
cudaError_t emu_launch(const char *name, const void *kernel, const emu_shape *shape,
    cudaStream_t stream, void (*call)(void *), void (*release)(void *), void *argument,
    size_t argument_bytes)
{
	api_call api;
	auto work = std::make_shared<kernel_work>(
	    (struct launch){name, kernel, *shape, call, argument, argument_bytes, nullptr, 0}, release);
	cudaError_t error = api.refused ? api.refused : launch_check(&work->launch);
	return failed(error ? error : stream_submit(stream, std::move(work)));
}

void emu_check_pointer(const char *kernel, unsigned argument, const volatile void *pointer)
{
	const void *at = const_cast<const void *>(pointer);
	if (at && memory_kind(at, 0) != MEMORY_DEVICE && memory_kind(at, 0) != MEMORY_PINNED)
		die_plainly(
		    "argument %u of %s points to memory that the device cannot read", argument, kernel);
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
	api_call call;
	if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
	if (value < 0 || value > EMU_MOST_SHARED) return failed(cudaErrorInvalidValue);
	(*allowed_shared)[kernel] = static_cast<size_t>(value);
	return cudaSuccess;
}
}
