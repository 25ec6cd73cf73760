/* Inside the emulator's runtime: what its .cpp files share.
 *
 * The runtime is compiled without any -fsanitize, also for the sanitized flavours: its own state
 * must be invisible to ThreadSanitizer. The sanitizers' entry points are weak, so one object
 * serves every flavour. Nothing is allocated on a fiber.
 */
#ifndef KVT_CUDA_ON_CPU_RUNTIME_H
#define KVT_CUDA_ON_CPU_RUNTIME_H

#include <pthread.h>
#include <cuda_runtime.h>
#include <cstddef>
#include <cstdint>

#include "tests/lib/cuda_on_cpu/emulator.h"

namespace emu
{
/* ---- settings, from the environment ---- */

struct settings {
	size_t seed;    /* EMU_SEED: 0 ascending threads, 1 descending, else a random order */
	size_t workers; /* EMU_WORKERS: blocks that run at a time, plain flavour */
	size_t stack;   /* EMU_STACK: bytes of a fiber's stack */
};
extern const struct settings settings;
size_t environment_number(const char *name, size_t otherwise);

/* ---- sanitizers (sanitizers.cpp) ---- */

extern const bool under_tsan, under_asan;
/* Happens-before edges between fibers, through an address. */
void order_release(void *token);
void order_acquire(void *token);

/* ---- fibers (fibers.cpp) ---- */

enum fiber_state { FIBER_READY, FIBER_BARRIER, FIBER_GRID, FIBER_WARP, FIBER_DONE };

struct block;

struct fiber : emu_cuda_thread {
	struct block *block;
	uint3 index;
	void *stack_pointer;
	char *stack;
	void *tsan, *asan_fake_stack;
	enum fiber_state state;
	const char *file; /* of the barrier that it waits at */
	int line;
	unsigned warp_mask, atomics;
};

struct stack {
	char *memory;
	void *tsan; /* ThreadSanitizer's fiber */
};

/* Take `count` stacks for the fibers of a block and give them back. `set` 0 or 1: under
 * ThreadSanitizer what ran on one fiber is ordered; two sets keep neighbouring blocks apart. */
void stacks_take(struct fiber *fibers, unsigned count, unsigned set);
void stacks_return(struct fiber *fibers, unsigned count, unsigned set);
/* Make the fiber start in `entry` when it is next switched to. */
void fiber_prepare(struct fiber *f, void (*entry)(void));
void fiber_entered(struct fiber *f);
void fiber_switch_to(struct block *b, struct fiber *f);
void fiber_to_scheduler(struct fiber *f, bool for_good);

/* ---- blocks (block.cpp) ---- */

struct warp_group {
	unsigned mask, arrived, generation, orders_memory;
	uint64_t values[2][32];
};

enum { MAX_WARP_MASKS = 32 };

struct launch {
	const char *name;
	const void *kernel;
	struct emu_shape shape;
	void (*call)(void *argument);
	void *argument;
	pthread_barrier_t *grid_barrier; /* of a cooperative launch */
	char done_token, grid_tokens[2];
};

struct block {
	struct launch *launch;
	uint3 index;
	struct fiber *fibers;
	struct warp_group (*warps)[MAX_WARP_MASKS];
	unsigned count, alive, at_barrier, at_grid_barrier, barrier_generation, grid_generation, set;
	uint64_t random;
	void *scheduler_stack_pointer, *scheduler_tsan, *scheduler_fake_stack;
	const void *scheduler_bottom;
	size_t scheduler_size;
	char start_token, barrier_tokens[2];
};

void block_run(struct launch *launch, uint3 index);

/* ---- grids (grid.cpp) ---- */

/* Is this a launch that the device would take? */
cudaError_t launch_check(const struct launch *launch);
void launch_run(struct launch *launch);
/* Most dynamic shared memory of a kernel: 48 KiB until cudaFuncSetAttribute says more. */
cudaError_t kernel_allow_shared(const void *kernel, int bytes);

/* ---- device memory (memory.cpp) ---- */

/* Device memory can be touched between these two; they nest. */
void device_open(void);
void device_close(void);
bool on_device(const void *at, size_t bytes);

/* Print the message with the launch's and block's place, and abort. */
[[noreturn]] void die(const struct block *b, const char *why);

/* Keep for cudaGetLastError. */
cudaError_t failed(cudaError_t error);
} // namespace emu

#endif
