/* Inside the emulator's runtime: what its .cpp files share.
 *
 * The host only queues: kernels, copies and host functions become operations (streams.h) that the
 * emulator's own device thread runs (device.cpp), as late or as early as is legal, by the seed.
 *
 * The runtime is compiled without any -fsanitize, also for the sanitized flavours, and uses no lock
 * that ThreadSanitizer knows: the only order that it sees between fibers, operations and the host
 * is the one that CUDA promises, told to it with order_release and order_acquire. The sanitizers'
 * entry points are weak, so one object serves every flavour. Nothing is allocated on a fiber.
 */
#ifndef KVT_CUDA_ON_CPU_RUNTIME_H
#define KVT_CUDA_ON_CPU_RUNTIME_H

#include <cuda_runtime.h>
#include <cstddef>
#include <cstdint>

#include "tests/lib/cuda_on_cpu/emulator.h"

struct dl_phdr_info;

namespace emu
{
/* ---- settings, from the environment (settings.cpp) ---- */

struct settings {
	/* EMU_SEED. 0: threads ascending; operations as late as possible, the last one first.
	 * 1: threads descending; operations as early as possible. Else: any legal order. */
	size_t seed;
	size_t workers; /* EMU_WORKERS: blocks that run at a time, plain flavour */
	size_t stack;   /* EMU_STACK: bytes of a CUDA thread's stack */
	size_t memory;  /* EMU_MEMORY: bytes of the device */
	size_t devices; /* EMU_DEVICES: how many there are, 0 or 1 */
	/* EMU_DEVICE_ERROR: what cudaGetDeviceCount fails with, as a machine without a driver's does */
	size_t device_error;
	size_t capability; /* EMU_CAPABILITY: 80 for 8.0 */
};
extern const struct settings settings;

/* A generator for orders; every user has its own state. */
uint64_t next_random(uint64_t *state);

/* ---- sanitizers (settings.cpp) ---- */

extern const bool under_tsan, under_asan;
/* Happens-before edges, through an address. A token must lie in memory that was mapped or allocated
 * for it: at an address that is used again older orders would live on. */
void order_release(void *token);
void order_acquire(void *token);

/* ---- locks that ThreadSanitizer does not see (quiet.cpp) ---- */

void quiet_wait(int *word, int while_value);
void quiet_wake(int *word);

class quiet_lock
{
	int word = 0; /* 0 free, 1 held, 2 held and waited for */

  public:
	void lock();
	void unlock();
};

/* ---- fibers (fibers.cpp) ---- */

enum fiber_state { FIBER_READY, FIBER_BARRIER, FIBER_WARP, FIBER_DONE };

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

enum { GUARD_BYTES = 4096 };

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
	size_t argument_bytes;
	struct operation *operation; /* that it is run for: gives the order */
	unsigned first_set;
};

/* Memory that a kernel may touch. */
struct place {
	const char *start, *end;
	bool writable;
};
enum { MAX_PLACES = 24, MAX_KNOWN = 8 };

struct block {
	const struct launch *launch;
	uint3 index;
	struct fiber *fibers;
	struct warp_group (*warps)[MAX_WARP_MASKS];
	unsigned count, alive, at_barrier, barrier_generation, set;
	uint64_t random;
	char *shared_end; /* of the dynamic shared memory */
	void *scheduler_stack_pointer, *scheduler_tsan, *scheduler_fake_stack;
	const void *scheduler_bottom;
	size_t scheduler_size;
	char start_token, barrier_tokens[2];
	/* For access_check: the block's own memory, and what it met of the device's. */
	struct place places[MAX_PLACES], known[MAX_KNOWN];
	unsigned place_count, known_count;
	uint64_t memory_generation;
};

/* ---- accesses (accesses.cpp), tsan flavour ---- */

/* End the process if the CUDA thread that runs here may not touch these bytes. */
void access_check(const volatile void *address, size_t bytes, bool written);
void block_add_place(struct block *b, const void *start, size_t bytes, bool writable);
/* The constants of the kernel's module, and its shared variables of this thread. */
void block_add_module(struct block *b, const struct dl_phdr_info *module);

/* Run one block on this thread, which must be one of the emulator's own. */
void block_run(const struct launch *launch, uint3 index);

/* ---- grids (grid.cpp) ---- */

/* Dynamic shared memory of a block: without asking, and after cudaFuncSetAttribute. */
enum { EMU_DEFAULT_SHARED = 48 << 10, EMU_MOST_SHARED = 227 << 10 };

/* Is this a launch that the device would take? */
cudaError_t launch_check(const struct launch *launch);
/* Run all blocks; on the device thread. */
void launch_run(const struct launch *launch);

/* ---- faults (faults.cpp) ---- */

/* Explain a fault by the device's memory, a fiber's stack or a CUDA thread's doing. Called at each
 * call of the API, as test frameworks put their own handlers. */
void faults_watch(void);
/* On each of the emulator's own threads: a stack for the handler, as a fiber's own may be what is
 * full, and no signals of the process. */
void faults_prepare_thread(void);

/* What lies at an address that a CUDA thread may not touch, if it is of its stack or its block. */
const char *fiber_explain(const struct fiber *f, const char *at);
/* "cuda_on_cpu: WHY in KERNEL, block (x,y,z)" with what each thread waits for; ends the process. */
[[noreturn]] void die(const struct block *b, const char *why);
/* "cuda_on_cpu: …"; ends the process. */
[[noreturn]] void die_plainly(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- memory (memory.cpp, host_memory.cpp) ---- */

/* The device thread may touch device memory between these two; nobody else ever may. */
void device_memory_open(void);
void device_memory_close(void);

enum memory_kind { MEMORY_PAGEABLE, MEMORY_PINNED, MEMORY_DEVICE, MEMORY_BROKEN };
/* What [at, at + bytes) is; MEMORY_BROKEN where it is partly one, partly another. */
enum memory_kind memory_kind(const void *at, size_t bytes);
enum memory_kind pinned_kind(const void *at, size_t bytes);
/* The device or pinned memory that holds an address; false if there is none. */
bool memory_place(const void *at, struct place *found);
bool pinned_place(const void *at, struct place *found);
/* Memory of the device that has no address: false if there is not so much. */
bool device_take(size_t bytes);
void device_give(size_t bytes);
/* Changes with each allocation and each release. */
uint64_t memory_generation(void);
void memory_changed(void);
/* Words for what a device address is, or false: for the fault handler, which takes no lock. */
bool memory_explain(const void *at, char *words, size_t size);

/* ---- the API (api.cpp) ---- */

/* One call of the API: holds the lock of all of the emulator's state. `refused` says why the call
 * must not go on: from a host function, or (unsafe calls) while a stream is captured. */
class api_call
{
  public:
	cudaError_t refused;
	explicit api_call(bool unsafe_in_capture = false);
	~api_call();
};
extern quiet_lock state_lock;
/* Set on the device thread while it runs a host function. */
extern __thread int in_host_function;

/* Keep for cudaGetLastError. */
cudaError_t failed(cudaError_t error);
} // namespace emu

#endif
