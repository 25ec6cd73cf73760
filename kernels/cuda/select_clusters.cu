/* Selection: clusters by falling vote, ties by lower index, until the budget is full.
 *
 * One block of 512 threads a job, any number of clusters. A histogram of the clusters' tokens over
 * the leading 10 bits of the votes finds the bucket in which the budget ends; the clusters down to
 * that one, in ascending order, are sorted: some 50 of thousands as a rule. Where attention is
 * spread evenly there are thousands, as a bucket's votes differ by a half: then a second histogram
 * of that bucket's next 10 bits leaves those that are needed and a few, and only votes that are
 * equal stay many. Up to one a thread each counts those before it, in one step; more go through a
 * stable radix sort of four passes, in which the memory of `rest` is the second list. Sums of their
 * sizes say how much of each is taken. Extents and counts are written once and never read: as a
 * rule they are memory of the host, where a read takes longer than all the rest.
 *
 * Shared memory: 16 KiB of the sort and 4 of the histogram; registers 40. So three blocks of them
 * run on a multiprocessor, but there are rarely as many jobs as multiprocessors: the time is that
 * of one block, which is bounded by its barriers.
 */
#include "kernels/cuda/cluster_common.cuh"
#include "kernels/cuda/launch_clusters.h"

enum {
	BUCKET_BITS = 10,
	BUCKETS = 1 << BUCKET_BITS,
	EACH = BUCKETS / KN_SORT_THREADS /* of a thread */
};

typedef unsigned long long wide;

struct select_memory {
	kn_sort_memory sort;
	uint32_t tokens[BUCKETS];
	wide partial[KN_SORT_WARPS];
	uint32_t last;
};

/* The bucket in which the budget ends, or one behind it: order >> shift of its votes. */
struct cut {
	uint32_t last, shift;
};

/* The next bits of the cut; rest becomes the sizes. The whole budget is looked for in the bucket,
 * what the ones before it take included: so a few too many come through, never too few, and all
 * where it is not filled. Nor are there too few where a bucket has 2^32 tokens and its count starts
 * again: 32 bits are what shared memory adds by itself, and when all clusters are in one bucket, as
 * they may be, a loop of exchanges would cost more than all the rest. */
static __device__ void narrow(select_memory *memory, const kn_select_job *job, cut *cut)
{
	uint32_t shift = cut->shift - BUCKET_BITS;
	wide sum = 0, total;

	for (uint32_t i = threadIdx.x; i < BUCKETS; i += KN_SORT_THREADS)
		memory->tokens[i] = 0;
	if (threadIdx.x == 0) memory->last = BUCKETS - 1;
	__syncthreads();
	for (uint32_t c = threadIdx.x; c < job->clusters; c += KN_SORT_THREADS) {
		uint32_t size = job->sizes[c], order = kn_falling_order(job->votes[c]);

		job->rest[c] = size;
		if ((wide)order >> cut->shift == cut->last)
			atomicAdd(&memory->tokens[(order >> shift) % BUCKETS], size);
	}
	__syncthreads();
	for (uint32_t i = 0; i < EACH; i++)
		sum += memory->tokens[threadIdx.x * EACH + i];
	wide before = kn_sum_before(sum, memory->partial, &total);

	for (uint32_t i = 0; i < EACH; i++) {
		wide with = before + memory->tokens[threadIdx.x * EACH + i];

		if (before < job->budget && with >= job->budget) memory->last = threadIdx.x * EACH + i;
		before = with;
	}
	__syncthreads();
	cut->last = cut->last << BUCKET_BITS | memory->last;
	cut->shift = shift;
}

/* The clusters up to that bucket to the scratch, in ascending order; returns how many. */
static __device__ uint32_t find_candidates(
    select_memory *memory, const kn_select_job *job, const cut *cut)
{
	uint32_t found = 0, total;

	for (uint32_t base = 0; base < job->clusters; base += KN_SORT_THREADS) {
		uint32_t c = base + threadIdx.x, wanted = 0;

		if (c < job->clusters)
			wanted =
			    job->sizes[c] != 0 && kn_falling_order(job->votes[c]) >> cut->shift <= cut->last;
		uint32_t at = kn_sum_before(wanted, memory->sort.partial, &total);

		if (wanted) job->scratch[found + at] = c;
		found += total;
	}
	__syncthreads();
	return found;
}

/* The candidates in the scratch by vote: at most one a thread. */
static __device__ void rank(select_memory *memory, const kn_select_job *job, uint32_t count)
{
	uint32_t *orders = &memory->sort.counts[0][0], at = threadIdx.x;
	uint32_t c = at < count ? job->scratch[at] : 0, own = 0, before = 0;

	if (at < count) orders[at] = own = kn_falling_order(job->votes[c]);
	__syncthreads();
	for (uint32_t i = 0; at < count && i < count; i++)
		before += orders[i] < own || (orders[i] == own && i < at);
	if (at < count) job->scratch[before] = c;
	__syncthreads();
}

/* The same for any number of them; rest becomes the sizes again. */
static __device__ void sort(select_memory *memory, const kn_select_job *job, uint32_t count)
{
	uint32_t *from = job->scratch, *to = job->rest;
	const float *votes = job->votes;

	for (uint32_t shift = 0; shift < 32; shift += KN_SORT_BITS) {
		uint32_t *swap = from;

		kn_sort_pass(&memory->sort, from, to, count,
		    [=](uint32_t c) { return (kn_falling_order(votes[c]) >> shift) % KN_SORT_DIGITS; });
		from = to;
		to = swap;
	}
	for (uint32_t c = threadIdx.x; c < job->clusters; c += KN_SORT_THREADS)
		job->rest[c] = job->sizes[c];
	__syncthreads();
}

/* Extents until the budget is full, and what they leave. */
static __device__ void take(select_memory *memory, const kn_select_job *job, uint32_t count)
{
	uint32_t extents = 0;
	wide taken = 0, total, budget = job->budget;

	for (uint32_t base = 0; base < count && taken < budget; base += KN_SORT_THREADS) {
		uint32_t at = base + threadIdx.x, c = at < count ? job->scratch[at] : 0;
		wide size = at < count ? job->sizes[c] : 0;
		wide before = taken + kn_sum_before(size, memory->partial, &total);
		bool wanted = size != 0 && before < budget;

		if (wanted) {
			uint32_t tokens = (uint32_t)(size < budget - before ? size : budget - before);

			job->extents[at].cluster = c;
			job->extents[at].count = tokens;
			job->rest[c] = (uint32_t)size - tokens;
		}
		extents += (uint32_t)__syncthreads_count(wanted);
		taken += total;
	}
	if (threadIdx.x != 0) return;
	job->counts->extents = extents;
	job->counts->tokens = (uint32_t)(taken < budget ? taken : budget);
}

static __global__ void __launch_bounds__(KN_SORT_THREADS) select_kernel(const kn_select_job *jobs)
{
	__shared__ select_memory memory;
	const kn_select_job *job = &jobs[blockIdx.x];
	uint32_t count = 0;
	cut end = {0, 32};

	narrow(&memory, job, &end);
	if (job->budget != 0) count = find_candidates(&memory, job, &end);
	if (count > KN_SORT_THREADS) {
		narrow(&memory, job, &end);
		count = find_candidates(&memory, job, &end);
	}
	if (count <= KN_SORT_THREADS)
		rank(&memory, job, count);
	else
		sort(&memory, job, count);
	take(&memory, job, count);
}

extern "C" cudaError_t kn_cuda_select(const struct kn_select_arguments *a, cudaStream_t stream)
{
	if (a->job_count == 0) return cudaSuccess;
	LAUNCH(select_kernel, a->job_count, KN_SORT_THREADS, 0, stream, a->jobs);
	return cudaGetLastError();
}
