/* What a kernel file includes besides its launch header: CUDA, and the two words of CUDA that a
 * plain C++ compiler cannot parse, as macros. The same file is compiled by nvcc for a GPU and by
 * g++ for the emulator of the tests (tests/lib/cuda_on_cpu), which brings its own two macros.
 *
 * LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...): kernel<<<...>>>(arguments).
 * A template's instance needs parentheses: LAUNCH((kernel<64>), ...). Errors are had with
 * cudaGetLastError() right after it.
 *
 * DYN_SHARED(type, name): declares `type *name`, the dynamic shared memory of the block, aligned to
 * 16 bytes; its size is the launch's shared_bytes. All uses in one kernel are the same memory.
 */
#ifndef KN_CUDA_COMPAT_H
#define KN_CUDA_COMPAT_H

#include <cuda_runtime.h>

#ifndef LAUNCH
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                     \
	kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
#define DYN_SHARED(type, name)                                                                     \
	extern __shared__ __align__(16) unsigned char kn_dynamic_shared_[];                            \
	type *name = reinterpret_cast<type *>(kn_dynamic_shared_)
#endif

#endif
