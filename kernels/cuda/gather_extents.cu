/* Missing extents over the bus into staging, and whether they can be trusted.
 *
 * The source is the store's memory, mapped into the device: a warp's 16-byte loads make bus
 * requests as long as they can be, without the host or a copy engine having to know which extents
 * it is. A thread has four loads under way, so a block 16 KiB; a PCIe 5 link of 16 lanes needs
 * about 128 KiB (64 GB/s for 2 us), that is 8 blocks, and more of them even out extents of
 * different lengths. Registers and shared memory (none) do not matter here: the bus is the limit.
 */
#include "kernels/cuda/copy_bytes.cuh"
#include "kernels/cuda/launch_attention.h"

namespace
{
enum { THREADS = 256, MAX_BLOCKS = 65535 };

/* Blocks are dealt to extents in turn; where there are more of them, each extent gets several. */
__device__ void copy_share(const struct kn_copy_job *copies, uint32_t count)
{
	uint32_t shares = gridDim.x / count;
	if (shares == 0) shares = 1;
	uint32_t share = blockIdx.x % shares, step = gridDim.x / shares;
	for (uint32_t i = blockIdx.x / shares; i < count; i += step) {
		struct kn_copy_job copy = copies[i];
		kn_copy_bytes(copy.destination, copy.source, copy.bytes,
		    (uint64_t)share * THREADS + threadIdx.x, (uint64_t)shares * THREADS);
	}
}

__global__ void __launch_bounds__(THREADS)
    gather_extents_kernel(const struct kn_gather_extents_arguments a)
{
	uint32_t count = *a.count;
	if (count > a.max_copies) {
		if (blockIdx.x == 0 && threadIdx.x == 0) atomicOr(a.failed, (uint32_t)KN_STEP_STAGING_FULL);
		count = a.max_copies;
	}
	if (count == 0) return;
	copy_share(a.copies, count);
	/* Each block looks for itself, behind its own copies: every thread's loads are ordered before
	 * the barrier, and the barrier before the look. */
	__threadfence_system();
	__syncthreads();
	if (threadIdx.x == 0 && a.generation != NULL &&
	    *(const volatile uint64_t *)a.generation != a.expected)
		atomicOr(a.failed, (uint32_t)KN_STEP_GENERATION);
}
} // namespace

extern "C" cudaError_t kn_cuda_gather_extents(
    const struct kn_gather_extents_arguments *a, uint32_t blocks, cudaStream_t stream)
{
	if (blocks == 0 || blocks > MAX_BLOCKS) return cudaErrorInvalidValue;
	LAUNCH(gather_extents_kernel, blocks, THREADS, 0, stream, *a);
	return cudaGetLastError();
}
