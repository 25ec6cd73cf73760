/* What the kernel language (cuda_on_cpu.h) calls in the emulator's runtime. Not for tests. */
#ifndef KVT_CUDA_ON_CPU_EMULATOR_H
#define KVT_CUDA_ON_CPU_EMULATOR_H

#include <cuda_runtime.h>
#include <cstddef>
#include <cstdint>

/* What a kernel may see of the CUDA thread that it is. */
struct emu_cuda_thread {
	unsigned rank; /* in its block */
	void *dynamic_shared;
};

struct emu_shape {
	dim3 grid, block;
	size_t shared_bytes;
};

extern "C" {
extern __thread emu_cuda_thread *emu_thread;
extern __thread uint3 threadIdx, blockIdx, blockDim, gridDim; /* set when a fiber is switched to */

void emu_barrier(const char *file, int line);
/* A warp collective: waits for all lanes of the mask and returns the values that they brought, by
 * lane; they stay until the thread's next collective. Only `orders_memory` (__syncwarp) does so. */
const uint64_t *emu_warp(unsigned mask, uint64_t value, int orders_memory);
/* At each atomic, of `bytes` at `at` (0: none): may let other threads run first, so that spins end
 * and orders mix. */
void emu_atomic_hook(const volatile void *at, size_t bytes);
void emu_fence(void);

/* Queue a kernel: `call(argument)` runs one CUDA thread of it, and `release(argument)` follows
 * when it will run no more. `kernel` is the function's address, for its attributes. */
cudaError_t emu_launch(const char *name, const void *kernel, const emu_shape *shape,
    cudaStream_t stream, void (*call)(void *), void (*release)(void *), void *argument,
    size_t argument_bytes);
/* End the process if an argument of a launch points to neither device nor pinned memory. */
void emu_check_pointer(const char *kernel, unsigned argument, const volatile void *pointer);
}

#endif
