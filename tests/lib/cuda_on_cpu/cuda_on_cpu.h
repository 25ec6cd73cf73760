/* CUDA kernels on the CPU: the language.
 *
 *     g++ -std=c++17 -x c++ -include tests/lib/cuda_on_cpu/cuda_on_cpu.h kernel.cu
 *
 * compiles a kernel's own source so that one fiber runs each CUDA thread and one OS thread each
 * running block. NVIDIA's own headers are included, so types, half and bfloat16 arithmetic are
 * theirs. What the emulator finds and what it cannot is in HACKING.md; the runtime behind it is in
 * the .cpp files here, its interface to this header in emulator.h. Extend what is missing as
 * kernels need it: an unknown intrinsic is a compile error, an unknown call a link error.
 */
#ifndef KVT_CUDA_ON_CPU_H
#define KVT_CUDA_ON_CPU_H

#define CUDA_ON_CPU 1

#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)

/* Blocks that run at the same time need their own copy: one for each OS thread. AddressSanitizer
 * puts redzones round plain statics only; there blocks run one after the other. */
#ifdef __SANITIZE_ADDRESS__
#define __shared__ static
#else
#define __shared__ static thread_local
#endif

#define warpSize 32

#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                     \
	emu::launch(#kernel, kernel, grid, block, shared_bytes, stream, ##__VA_ARGS__)
#define DYN_SHARED(type, name) type *name = reinterpret_cast<type *>(emu_thread->dynamic_shared)

#include "tests/lib/cuda_on_cpu/emulator.h"
#include "tests/lib/cuda_on_cpu/launch.h"
#include "tests/lib/cuda_on_cpu/warp.h"
#include "tests/lib/cuda_on_cpu/atomics.h"
#include "tests/lib/cuda_on_cpu/scalars.h"

#endif
