/* Lookup in the cluster cache: which selected extents are there, and where the rows of all lie.
 *
 * One block of 256 threads a job, one thread an extent: it reads the extent's hint, compares the
 * slot that it names with what is wanted, and walks the chain of pages twice, once to count its
 * runs of adjoining pages and once to write them. What is missing gets rows of staging: a sum over
 * the block says how many are wanted, one thread takes them for all, and each extent has its place
 * among them. Two more sums give it its place among the spans and the misses, so that both lists
 * are in the order of the selection. A chain has two pages as a rule, and an extent reads three
 * cache lines of other memory: the kernel is bounded by that latency, which its threads wait for
 * side by side. Shared memory 72 bytes; registers 48, with which five blocks run on a
 * multiprocessor.
 */
#include "kernels/cuda/cluster_common.cuh"
#include "kernels/cuda/launch_clusters.h"

enum { THREADS = 256, COUNT_BITS = 16 }; /* of a sum's lower half, where it counts extents */

typedef unsigned long long wide;

static const uint32_t none = UINT32_MAX;

/* What a thread knows of its extent. */
struct found {
	uint32_t cluster;
	uint32_t count; /* wanted rows; 0: it has no extent */
	uint32_t held;  /* rows of them that are there */
	uint32_t page;  /* the first one of the slot */
	uint32_t runs;  /* of adjoining pages; 0: it is missed */
};

/* The runs of adjoining pages that hold an extent, to `spans` where there is one; their number. 0:
 * the chain leaves the cache, and spans has not been touched. */
static __device__ uint32_t walk(
    const kn_cache_table *cache, uint32_t page, uint32_t count, kn_span *spans)
{
	const uint32_t rows = KN_CACHE_PAGE_ROWS;
	uint32_t runs = 0, row = 0, first = page, start = 0;

	while (row < count) {
		if (page >= cache->page_count) return 0;
		row = count - row > rows ? row + rows : count;
		uint32_t next = row < count ? cache->next_page[page] : none;

		if (next != page + 1 || row == count) {
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

static __device__ found look_up(
    const kn_cache_table *cache, const kn_lookup_job *job, kn_extent extent)
{
	uint32_t slot = job->hints[extent.cluster], entry = job->segment_of[extent.cluster];
	found f = {extent.cluster, extent.count, 0, 0, 0};

	if (slot >= cache->slot_count) return f;
	const kn_cache_slot *s = &cache->slots[slot];

	if (s->generation != cache->generation || s->segment != job->segment_ids[entry] ||
	    s->layer != job->layer || s->head != job->head ||
	    s->cluster != extent.cluster - job->segment_first[entry])
		return f;
	if (cache->used_step != nullptr) atomicMax(&cache->used_step[slot], cache->step);
	f.held = s->held < extent.count ? s->held : extent.count;
	f.page = s->first_page;
	if (f.held == f.count) f.runs = walk(cache, f.page, f.count, nullptr);
	if (f.held == f.count && f.runs == 0) f.held = 0;
	return f;
}

/* Take `wanted` of what is counted at `used`: the first of them, or none where there are fewer. */
static __device__ uint32_t take(uint32_t *used, uint32_t room, wide wanted)
{
	uint32_t seen = atomicAdd(used, 0u), before;

	do {
		if (seen > room || wanted > room - seen) return none;
		before = seen;
		seen = atomicCAS(used, before, before + (uint32_t)wanted);
	} while (seen != before);
	return before;
}

/* The first row of each thread's extent in staging, and the copy that fills it; KN_NOT_STAGED for
 * who has no extent that is missed (`missed`), or finds no room. For all threads of the block. */
static __device__ uint32_t stage(const kn_lookup_arguments *a, const kn_lookup_job *job,
    const found *f, bool missed, wide *partial)
{
	__shared__ uint32_t first_row, first_copy;
	const kn_staging *s = &a->staging;
	const uint8_t *unit = missed ? job->unit_rows[job->segment_of[f->cluster]] : nullptr;
	bool wanted = unit != nullptr;
	wide total, before = kn_sum_before(
	                wanted ? (wide)f->count << COUNT_BITS | 1 : (wide)0, partial, &total);

	if (missed && !wanted) atomicOr(s->failed, (uint32_t)KN_STEP_UNREACHABLE);
	if (total == 0) return KN_NOT_STAGED;
	if (threadIdx.x == 0) {
		first_row = take(s->used, s->rows, total >> COUNT_BITS);
		first_copy = first_row == none
		                 ? none
		                 : take(s->copy_count, s->copy_capacity, total & ((1 << COUNT_BITS) - 1));
		if (first_copy == none) atomicOr(s->failed, (uint32_t)KN_STEP_STAGING_FULL);
	}
	__syncthreads();
	if (!wanted || first_copy == none) return KN_NOT_STAGED;
	uint32_t row = first_row + (uint32_t)(before >> COUNT_BITS);
	kn_copy_job *copy = &s->copies[first_copy + (uint32_t)(before & ((1 << COUNT_BITS) - 1))];

	copy->source = unit + (size_t)job->first_row[f->cluster] * a->cache.row_bytes;
	copy->destination = s->memory + (size_t)row * a->cache.row_bytes;
	copy->bytes = (size_t)f->count * a->cache.row_bytes;
	return row;
}

/* One span for `rows` if there are any; returns how many spans that is. */
static __device__ uint32_t add_span(kn_span *spans, uint32_t at, kn_span rows)
{
	if (rows.count == 0) return 0;
	if (threadIdx.x == 0) spans[at] = rows;
	return 1;
}

static __global__ void __launch_bounds__(THREADS) lookup_kernel(const kn_lookup_arguments a)
{
	__shared__ wide partial[THREADS / KN_WARP];
	const kn_lookup_job *job = &a.jobs[blockIdx.x];
	uint32_t extents = job->selected->extents;
	uint32_t spans = add_span(job->spans, 0, job->before), misses = 0;
	wide tokens = 0, total; /* hit ones above, missed ones below */

	for (uint32_t base = 0; base < extents; base += THREADS) {
		uint32_t at = base + threadIdx.x;
		found f = {0, 0, 0, 0, 0};

		if (at < extents) f = look_up(&a.cache, job, job->extents[at]);
		bool missed = f.runs == 0 && f.count != 0;
		uint32_t row = stage(&a, job, &f, missed, partial);
		uint32_t mine = row == KN_NOT_STAGED ? f.runs : 1;
		wide before = kn_sum_before((wide)mine << 32 | (missed ? 1 : 0), partial, &total);
		kn_span *to = job->spans + spans + (uint32_t)(before >> 32);

		if (f.runs != 0) walk(&a.cache, f.page, f.count, to);
		if (row != KN_NOT_STAGED)
			*to = kn_span{a.staging.memory + (size_t)row * a.cache.row_bytes, f.count};
		if (missed)
			job->misses[misses + (uint32_t)before] =
			    kn_lookup_miss{f.cluster, f.count, f.held, row};
		tokens += (wide)f.held << 32 | (f.count - f.held);
		spans += (uint32_t)(total >> 32);
		misses += (uint32_t)total;
	}
	spans += add_span(job->spans, spans, job->after);
	kn_sum_before(tokens, partial, &total);
	if (threadIdx.x != 0) return;
	*job->span_count = spans;
	*job->counts = kn_lookup_counts{spans, misses, (uint32_t)(total >> 32), (uint32_t)total};
}

extern "C" cudaError_t kn_cuda_lookup(const struct kn_lookup_arguments *a, cudaStream_t stream)
{
	cudaError_t status =
	    cudaMemsetAsync(a->staging.copy_count, 0, sizeof *a->staging.copy_count, stream);

	if (status != cudaSuccess || a->job_count == 0) return status;
	LAUNCH(lookup_kernel, a->job_count, THREADS, 0, stream, *a);
	return cudaGetLastError();
}
