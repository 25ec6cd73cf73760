/* Copies within device memory: jobs in the grid's second dimension, slices of a job in its first.
 *
 * A job has one block for each 32 KiB of it, so that short ones do not spread thin; the bound
 * max_bytes sizes the grid. 256 threads with four 16-byte loads under way, at most 64 registers
 * each and no shared memory: four blocks on a multiprocessor, 64 KiB in flight, which is several
 * times what hides the latency of device memory. */
#include "kernels/cuda/copy_bytes.cuh"
#include "kernels/cuda/launch_attention.h"

namespace
{
enum { THREADS = 256, SLICE_BYTES = 32768, MAX_SLICES = 2048, MAX_GRID_JOBS = 65535 };

__global__ void __launch_bounds__(THREADS)
    copy_kernel(const struct kn_copy_job *jobs, uint32_t job_count, uint64_t max_bytes)
{
	for (uint32_t i = blockIdx.y; i < job_count; i += gridDim.y) {
		struct kn_copy_job job = jobs[i];
		uint64_t bytes = job.bytes < max_bytes ? job.bytes : max_bytes;
		uint64_t blocks = (bytes + SLICE_BYTES - 1) / SLICE_BYTES;
		if (blocks > gridDim.x) blocks = gridDim.x;
		if (blockIdx.x < blocks)
			kn_copy_bytes(job.destination, job.source, bytes,
			    (uint64_t)blockIdx.x * THREADS + threadIdx.x, blocks * THREADS);
	}
}
} // namespace

extern "C" cudaError_t kn_cuda_copy(
    const struct kn_copy_arguments *a, uint64_t max_bytes, cudaStream_t stream)
{
	if (a->job_count == 0 || max_bytes == 0) return cudaSuccess;
	uint64_t slices = (max_bytes - 1) / SLICE_BYTES + 1;
	if (slices > MAX_SLICES) slices = MAX_SLICES;
	uint32_t jobs = a->job_count;
	if (jobs > MAX_GRID_JOBS) jobs = MAX_GRID_JOBS;
	dim3 grid((unsigned)slices, jobs);
	LAUNCH(copy_kernel, grid, THREADS, 0, stream, a->jobs, a->job_count, max_bytes);
	return cudaGetLastError();
}
