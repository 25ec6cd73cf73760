/* Lookup in the cluster cache: which selected extents are there, and where their rows lie.
 *
 * One block of 256 threads a job, one thread an extent: it reads the extent's hint, compares the
 * slot that it names with what is wanted, and walks the chain of pages twice, once to count its
 * runs of adjoining pages and once to write them. Two sums over the block give each extent its
 * place among the spans and the misses, so that both lists are in the order of the selection. A
 * chain has two pages as a rule, and an extent reads three cache lines of other memory: the kernel
 * is bounded by that latency, which its threads wait for side by side. Shared memory 64 bytes;
 * registers 46, with which five blocks run on a multiprocessor.
 */
#include "kernels/cuda/cluster_common.cuh"
#include "kernels/cuda/launch_clusters.h"

enum { THREADS = 256 };

typedef unsigned long long wide;

static const uint32_t none = UINT32_MAX;

/* What a thread knows of its extent. */
struct found {
	uint32_t count; /* wanted rows; 0: it has no extent */
	uint32_t slot;  /* or none */
	uint32_t held;  /* rows of them that are there */
	uint32_t page;  /* the first one of the slot */
};

static __device__ found look_up(
    const kn_cache_table *cache, const kn_lookup_job *job, kn_extent extent)
{
	uint32_t slot = job->hints[extent.cluster], entry = job->segment_of[extent.cluster];
	found f = {extent.count, none, 0, 0};

	if (slot >= cache->slot_count) return f;
	const kn_cache_slot *s = &cache->slots[slot];

	if (s->generation != cache->generation || s->segment != job->segment_ids[entry] ||
	    s->layer != job->layer || s->head != job->head ||
	    s->cluster != extent.cluster - job->segment_first[entry])
		return f;
	f.slot = slot;
	f.held = s->held < extent.count ? s->held : extent.count;
	f.page = s->first_page;
	if (cache->used_step != nullptr) atomicMax(&cache->used_step[slot], cache->step);
	return f;
}

/* The runs of adjoining pages that hold an extent, to `spans` where there is one; their number. */
static __device__ uint32_t walk(const kn_cache_table *cache, const found *f, kn_span *spans)
{
	const uint32_t rows = KN_CUDA_CACHE_PAGE_ROWS;
	uint32_t page = f->page, runs = 0, row = 0, first = page, start = 0;

	while (row < f->count) {
		row = f->count - row > rows ? row + rows : f->count;
		uint32_t next = row < f->count ? cache->next_page[page] : none;

		if (next != page + 1 || row == f->count) {
			if (spans != nullptr) {
				spans[runs].rows = cache->memory + (size_t)first * rows * cache->row_bytes;
				spans[runs].count = row - start;
			}
			runs++;
			first = next;
			start = row;
		}
		page = next;
	}
	return runs;
}

/* One span for `rows` if there are any; returns how many spans that is. */
static __device__ uint32_t add_span(kn_span *spans, uint32_t at, kn_span rows)
{
	if (rows.count == 0) return 0;
	if (threadIdx.x == 0) spans[at] = rows;
	return 1;
}

static __global__ void __launch_bounds__(THREADS) lookup_kernel(kn_lookup_arguments a)
{
	__shared__ wide partial[THREADS / KN_WARP];
	const kn_lookup_job *job = &a.jobs[blockIdx.x];
	uint32_t extents = job->selected->extents;
	uint32_t spans = add_span(job->spans, 0, job->before), misses = 0;
	wide tokens = 0, total; /* hit ones above, missed ones below */

	for (uint32_t base = 0; base < extents; base += THREADS) {
		uint32_t at = base + threadIdx.x, runs = 0;
		found f = {0, none, 0, 0};

		if (at < extents) f = look_up(&a.cache, job, job->extents[at]);
		uint32_t missed = f.held < f.count;

		if (!missed) runs = walk(&a.cache, &f, nullptr);
		wide before = kn_sum_before((wide)runs << 32 | missed, partial, &total);

		if (!missed) walk(&a.cache, &f, job->spans + spans + (uint32_t)(before >> 32));
		if (missed) job->misses[misses + (uint32_t)before] = kn_lookup_miss{at, f.slot, f.held};
		tokens += (wide)f.held << 32 | (f.count - f.held);
		spans += (uint32_t)(total >> 32);
		misses += (uint32_t)total;
	}
	spans += add_span(job->spans, spans, job->after);
	kn_sum_before(tokens, partial, &total);
	if (threadIdx.x != 0) return;
	*job->span_count = spans;
	*job->counts = kn_lookup_counts{spans, misses, (uint32_t)(total >> 32), (uint32_t)total};
	if (misses != 0) atomicAdd(a.missed, misses);
}

extern "C" cudaError_t kn_cuda_lookup(const struct kn_lookup_arguments *a, cudaStream_t stream)
{
	cudaError_t status = cudaMemsetAsync(a->missed, 0, sizeof *a->missed, stream);

	if (status != cudaSuccess || a->job_count == 0) return status;
	LAUNCH(lookup_kernel, a->job_count, THREADS, 0, stream, *a);
	return cudaGetLastError();
}
