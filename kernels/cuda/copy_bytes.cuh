/* Copying a run of bytes with many threads. Part of copy.cu and gather_extents.cu. */
#ifndef KN_CUDA_COPY_BYTES_CUH
#define KN_CUDA_COPY_BYTES_CUH

#include <stdint.h>

#include "kernels/cuda/compat.h"

/* Whole units from unit `thread` on, every `threads`-th one: neighbours copy neighbours, so a warp
 * moves 32 units in one go, and four loads are under way before the first is stored. */
template <class UNIT>
__device__ __forceinline__ void kn_copy_units(
    UNIT *to, const UNIT *from, uint64_t count, uint64_t thread, uint64_t threads)
{
	uint64_t i = thread;
	for (; i + 3 * threads < count; i += 4 * threads) {
		UNIT a = from[i], b = from[i + threads], c = from[i + 2 * threads],
		     d = from[i + 3 * threads];
		to[i] = a;
		to[i + threads] = b;
		to[i + 2 * threads] = c;
		to[i + 3 * threads] = d;
	}
	for (; i < count; i += threads)
		to[i] = from[i];
}

/* The part of thread `thread` of `threads` in a copy. Units of 16 bytes where source and
 * destination have the same place in 16 bytes, of 4 where they have the same in 4, else single
 * bytes; what stands out at the two ends goes byte by byte. */
__device__ __forceinline__ void kn_copy_bytes(
    uint8_t *to, const uint8_t *from, uint64_t bytes, uint64_t thread, uint64_t threads)
{
	uint64_t apart = (uint64_t)((uintptr_t)from - (uintptr_t)to);
	uint64_t unit = apart % 16 == 0 ? 16 : apart % 4 == 0 ? 4 : 1;
	uint64_t head = (unit - (uintptr_t)to % unit) % unit;
	if (head > bytes) head = bytes;
	uint64_t body = (bytes - head) / unit * unit, tail = bytes - head - body;
	if (thread < head) to[thread] = from[thread];
	if (unit == 16)
		kn_copy_units(
		    (uint4 *)(to + head), (const uint4 *)(from + head), body / 16, thread, threads);
	else if (unit == 4)
		kn_copy_units(
		    (uint32_t *)(to + head), (const uint32_t *)(from + head), body / 4, thread, threads);
	else
		kn_copy_units(to + head, from + head, body, thread, threads);
	/* The last threads have had the least to do. */
	uint64_t last = threads - 1 - thread;
	if (last < tail) to[head + body + last] = from[head + body + last];
}

#endif
