/* The orders of an index: members of clusters after each assignment, and the storing order.
 *
 * One block of 512 threads a job. All orders are stable radix sorts by digits of 8 bits within the
 * block (cluster_common.cuh): a segment has 4,096 rows as a rule, 8 for each thread, and sorts of
 * all KV heads run side by side. Shared memory: 16 KiB of counts, three blocks or more on a
 * multiprocessor; registers under 40, so that 512 threads leave room for as many. Arrays stay in
 * global memory, where a pass of 16 KiB is found in the first-level cache.
 *
 * Refilling empty clusters is sequential by definition: each takes the worst row of a cluster that
 * still has two. But every row can be taken that is not the last of its cluster in the order in
 * which they are tried: the best one, and of equals the last position (`keeper`). So empty cluster
 * number i takes row number i among the others, and all are found at once.
 */
#include "kernels/cuda/cluster_common.cuh"
#include "kernels/cuda/index_work.h"

static __device__ unsigned long long keeper_key(const kn_index_arrays *s, uint32_t row)
{
	return (unsigned long long)kn_falling_order(s->cosines[row]) << 32 | (UINT32_MAX - row);
}

/* The empty clusters in ascending order to `list`; returns how many. */
static __device__ uint32_t find_empty(
    kn_sort_memory *memory, const kn_index_arrays *s, uint32_t clusters, uint32_t *list)
{
	uint32_t found = 0, total;

	for (uint32_t base = 0; base < clusters; base += KN_SORT_THREADS) {
		uint32_t c = base + threadIdx.x;
		uint32_t empty = c < clusters && s->counts[c] == 0;
		uint32_t at = kn_sum_before(empty, memory->partial, &total);

		if (empty) list[found + at] = c;
		found += total;
	}
	return found;
}

static __device__ void find_keepers(const kn_index_arrays *s, uint32_t n, uint32_t clusters)
{
	for (uint32_t c = threadIdx.x; c < clusters; c += KN_SORT_THREADS)
		s->keeper[c] = ~0ull;
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < n; i += KN_SORT_THREADS)
		atomicMin(&s->keeper[s->labels[i]], keeper_key(s, i));
	__syncthreads();
}

/* Rows by cosine, the greatest first (`flip` 0) or the lowest first (UINT32_MAX), to `sorted`. */
static __device__ void sort_by_cosine(
    kn_sort_memory *memory, const kn_index_arrays *s, uint32_t n, uint32_t flip)
{
	const float *cosines = s->cosines;
	const uint32_t *from = nullptr;

	for (uint32_t shift = 0, pass = 0; shift < 32; shift += KN_SORT_BITS, pass++) {
		uint32_t *to = pass % 2 == 0 ? s->spare : s->sorted;

		kn_sort_pass(memory, from, to, n, [=](uint32_t row) {
			return ((kn_falling_order(cosines[row]) ^ flip) >> shift) % KN_SORT_DIGITS;
		});
		from = to;
	}
}

/* `from` (nullptr: ascending) by label, to `to`. */
static __device__ void sort_by_label(kn_sort_memory *memory, const kn_index_arrays *s, uint32_t n,
    uint32_t clusters, const uint32_t *from, uint32_t *to)
{
	const uint32_t *labels = s->labels;
	uint32_t passes = 1;

	while (passes < 32 / KN_SORT_BITS && (clusters - 1) >> (passes * KN_SORT_BITS) != 0)
		passes++;
	for (uint32_t pass = 0; pass < passes; pass++) {
		uint32_t *out = (passes - pass) % 2 == 1 ? to : s->spare;
		uint32_t shift = pass * KN_SORT_BITS;

		kn_sort_pass(memory, from, out, n,
		    [=](uint32_t row) { return (labels[row] >> shift) % KN_SORT_DIGITS; });
		from = out;
	}
}

/* A row moves to an empty cluster; what that changes in the number of changed labels. */
static __device__ void move_row(const kn_index_arrays *s, uint32_t row, uint32_t cluster)
{
	uint32_t from = s->labels[row], before = s->previous[row];

	s->labels[row] = cluster;
	atomicSub(&s->counts[from], 1u);
	s->counts[cluster] = 1;
	if (from == before) atomicAdd(&s->state->changed, 1u);
	if (cluster == before) atomicSub(&s->state->changed, 1u);
}

static __device__ void refill(
    kn_sort_memory *memory, const kn_index_arrays *s, uint32_t n, uint32_t clusters)
{
	uint32_t *empty = s->members; /* not needed until the members are sorted */
	uint32_t count = find_empty(memory, s, clusters, empty), taken = 0, total;
	const uint32_t *worst = s->sorted;

	if (count == 0) return;
	find_keepers(s, n, clusters);
	sort_by_cosine(memory, s, n, UINT32_MAX);
	for (uint32_t base = 0; base < n && taken < count; base += KN_SORT_THREADS) {
		uint32_t at = base + threadIdx.x, row = at < n ? worst[at] : 0;
		uint32_t free = at < n && s->keeper[s->labels[row]] != keeper_key(s, row);
		uint32_t number = taken + kn_sum_before(free, memory->partial, &total);

		if (free && number < count) move_row(s, row, empty[number]);
		taken += total;
	}
	__syncthreads();
}

/* starts from counts; the counts become 0. */
static __device__ void set_starts(
    kn_sort_memory *memory, const kn_index_arrays *s, uint32_t n, uint32_t clusters)
{
	uint32_t sum = 0, total;

	for (uint32_t base = 0; base < clusters; base += KN_SORT_THREADS) {
		uint32_t c = base + threadIdx.x, count = c < clusters ? s->counts[c] : 0;
		uint32_t before = kn_sum_before(count, memory->partial, &total);

		if (c < clusters) {
			s->starts[c] = sum + before;
			s->counts[c] = 0;
		}
		sum += total;
	}
	if (threadIdx.x == 0) s->starts[clusters] = n;
}

static __global__ void __launch_bounds__(KN_SORT_THREADS)
    members_kernel(kn_index_work w, uint32_t round)
{
	__shared__ kn_sort_memory memory;
	const kn_index_job *job = &w.jobs[blockIdx.x];
	const kn_index_arrays s = kn_index_arrays_of(&w, blockIdx.x);

	if (s.state->done) return;
	refill(&memory, &s, job->n, job->clusters);
	set_starts(&memory, &s, job->n, job->clusters);
	sort_by_label(&memory, &s, job->n, job->clusters, nullptr, s.members);
	if (threadIdx.x != 0) return;
	/* Under 1 % of the labels changed, or it was the last round. */
	uint64_t changed = s.state->changed;

	s.state->done = round + 1 >= w.iterations || (round != 0 && changed * 100 < job->n);
	s.state->changed = 0;
}

static __global__ void __launch_bounds__(KN_SORT_THREADS) rows_kernel(kn_index_work w)
{
	__shared__ kn_sort_memory memory;
	const kn_index_job *job = &w.jobs[blockIdx.x];
	const kn_index_arrays s = kn_index_arrays_of(&w, blockIdx.x);

	for (uint32_t c = threadIdx.x; c < job->clusters; c += KN_SORT_THREADS)
		job->sizes[c] = s.starts[c + 1] - s.starts[c];
	sort_by_cosine(&memory, &s, job->n, 0);
	sort_by_label(&memory, &s, job->n, job->clusters, s.sorted, s.members);
	/* The order may be memory of the host, which is to be written in whole lines: a sort's single
	 * numbers would each be a transfer over the bus. */
	for (uint32_t i = threadIdx.x; i < job->n; i += KN_SORT_THREADS)
		job->order[i] = s.members[i];
}

extern "C" cudaError_t kn_cuda_order_members(
    const struct kn_index_work *w, uint32_t round, cudaStream_t stream)
{
	LAUNCH(members_kernel, w->job_count, KN_SORT_THREADS, 0, stream, *w, round);
	return cudaGetLastError();
}

extern "C" cudaError_t kn_cuda_order_rows(const struct kn_index_work *w, cudaStream_t stream)
{
	LAUNCH(rows_kernel, w->job_count, KN_SORT_THREADS, 0, stream, *w);
	return cudaGetLastError();
}
