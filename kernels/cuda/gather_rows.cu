/* Rows in a new order: destination row j is source row order[j].
 *
 * A thread moves one unit of a row, so a warp writes 512 bytes in a line and reads whole rows, each
 * in one run; order[j] is one broadcast load for all the threads of a row. The unit is the largest
 * that pointers, strides and the row's length are multiples of: 16 bytes for KV rows. Under 32
 * registers and no shared memory: as many threads as a multiprocessor holds, one load of 16 bytes
 * each. */
#include "kernels/cuda/compat.h"
#include "kernels/cuda/launch_attention.h"

namespace
{
enum { THREADS = 256 };

template <class UNIT>
__global__ void __launch_bounds__(THREADS)
    gather_rows_kernel(const struct kn_gather_rows_arguments a, uint32_t units)
{
	uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x, row = i / units;
	if (row >= a.count) return;
	size_t at = (size_t)(i % units) * sizeof(UNIT);
	const uint8_t *from = a.source + (size_t)a.order[row] * a.source_stride + at;
	uint8_t *to = a.destination + (size_t)row * a.destination_stride + at;
	*(UNIT *)to = *(const UNIT *)from;
}

template <class UNIT>
static cudaError_t launch(const struct kn_gather_rows_arguments *a, cudaStream_t stream)
{
	uint64_t units = a->row_bytes / sizeof(UNIT), blocks = (a->count * units - 1) / THREADS + 1;
	if (units > UINT32_MAX || blocks > 0x7fffffffu) return cudaErrorInvalidValue;
	LAUNCH(gather_rows_kernel<UNIT>, (unsigned)blocks, THREADS, 0, stream, *a, (uint32_t)units);
	return cudaGetLastError();
}
} // namespace

extern "C" cudaError_t kn_cuda_gather_rows(
    const struct kn_gather_rows_arguments *a, cudaStream_t stream)
{
	if (a->count == 0 || a->row_bytes == 0) return cudaSuccess;
	uint64_t all = (uintptr_t)a->source | (uintptr_t)a->destination | a->source_stride |
	               a->destination_stride | a->row_bytes;
	if (all % 16 == 0) return launch<uint4>(a, stream);
	if (all % 8 == 0) return launch<uint2>(a, stream);
	if (all % 4 == 0) return launch<uint32_t>(a, stream);
	return launch<uint8_t>(a, stream);
}
