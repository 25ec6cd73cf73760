/* Joining partial results of decode attention by log-sum-exp, in a fixed order: the row pieces of
 * each set, then the estimates.
 *
 * A block has one query head of one job. First the maximum of all parts, then, 128 parts at a time,
 * each thread turns one part's maximum into its weight and all threads run over the 128 with a
 * channel (two above 128 channels) each: neighbours read neighbours, 16 loads are under way, and
 * sums are chains in the order of the parts. A step of 1,024 tokens has 8 parts of rows, but an
 * estimate of 8,000 clusters 63 more, and one sequence keeps few multiprocessors busy: the time is
 * that of five round trips to the second-level cache. At most 64 registers and 1.6 KiB of shared
 * memory. */
#include "kernels/cuda/attend_parts.h"
#include "kernels/cuda/exponential.cuh"

namespace
{
constexpr uint32_t THREADS = 128, CHUNK = THREADS, BATCH = 16, MAX_RUNS = 2 * KN_CUDA_MAX_SETS;

/* Parts of each job that lie one after the other: the rows or the estimate of one set. */
struct run {
	const float *parts;   /* [jobs][stride] floats, from the run's first part on */
	const uint32_t *rows; /* [jobs], or NULL: the estimate's clusters */
	size_t stride;        /* floats between jobs */
	uint32_t limit;       /* rows or clusters at most */
};

struct merge_arguments {
	const struct kn_attend_job *jobs;
	struct run runs[MAX_RUNS];
	uint32_t run_count, row_runs; /* the first ones are of rows */
	uint32_t head_dim, values, part_floats;
};

struct state {
	float sum, exact, out[2];
};

__device__ __forceinline__ uint32_t parts_of(const struct merge_arguments &a, const struct run &run)
{
	uint32_t rows = run.rows != NULL ? run.rows[blockIdx.y] : a.jobs[blockIdx.y].estimate.clusters;
	if (rows > run.limit) rows = run.limit;
	return (rows + KN_CUDA_PIECE_ROWS - 1) / KN_CUDA_PIECE_ROWS;
}

/* The largest maximum of this job and head. */
__device__ __forceinline__ float find_max(const struct merge_arguments &a)
{
	__shared__ float maxima[THREADS / 32];
	float max = -INFINITY;
	for (uint32_t r = 0; r < a.run_count; r++) {
		const float *part = a.runs[r].parts + blockIdx.y * a.runs[r].stride + 2 * blockIdx.x;
		uint32_t count = parts_of(a, a.runs[r]);
		for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
			float x = part[(size_t)i * a.part_floats];
			max = x > max ? x : max;
		}
	}
	for (int by = 16; by > 0; by /= 2) {
		float other = __shfl_xor_sync(0xffffffffu, max, by);
		max = other > max ? other : max;
	}
	if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = max;
	__syncthreads();
	for (uint32_t w = 0; w < THREADS / 32; w++)
		max = maxima[w] > max ? maxima[w] : max;
	return max;
}

/* The next `count` parts, at most BATCH, onto the state in order; all are loaded before the first
 * is added. */
__device__ __forceinline__ void add_batch(const float *values, size_t pitch, bool one, bool two,
    uint32_t count, const float *weights, const float *sums, struct state *state)
{
	float x[BATCH], y[BATCH];
#pragma unroll
	for (uint32_t k = 0; k < BATCH; k++) {
		x[k] = one && k < count ? values[k * pitch] : 0.0f;
		y[k] = two && k < count ? values[k * pitch + THREADS] : 0.0f;
	}
#pragma unroll
	for (uint32_t k = 0; k < BATCH; k++) {
		if (k >= count) continue;
		state->sum = fmaf(weights[k], sums[k], state->sum);
		state->out[0] = fmaf(weights[k], x[k], state->out[0]);
		state->out[1] = fmaf(weights[k], y[k], state->out[1]);
	}
}

/* Add one run's parts to the state. */
__device__ __forceinline__ void add_run(
    const struct merge_arguments &a, const struct run &run, float base, struct state *state)
{
	__shared__ float weights[CHUNK], sums[CHUNK];
	uint32_t count = parts_of(a, run), channel = threadIdx.x;
	const float *part = run.parts + blockIdx.y * run.stride;
	const float *values = part + a.values + blockIdx.x * a.head_dim + channel;
	bool one = channel < a.head_dim, two = channel + THREADS < a.head_dim;
	for (uint32_t first = 0; first < count; first += CHUNK) {
		uint32_t left = count - first, n = left < CHUNK ? left : CHUNK;
		__syncthreads();
		if (threadIdx.x < n) {
			const float *mine = part + (size_t)(first + threadIdx.x) * a.part_floats;
			weights[threadIdx.x] = kn_exp2(mine[2 * blockIdx.x] - base);
			sums[threadIdx.x] = mine[2 * blockIdx.x + 1];
		}
		__syncthreads();
		for (uint32_t i = 0; i < n; i += BATCH)
			add_batch(values + (size_t)(first + i) * a.part_floats, a.part_floats, one, two, n - i,
			    weights + i, sums + i, state);
	}
}

/* Block (query head of the group, job). */
__global__ void __launch_bounds__(THREADS) merge_kernel(const struct merge_arguments a)
{
	const struct kn_attend_job &job = a.jobs[blockIdx.y];
	float base = kn_base(find_max(a));
	struct state state = {};
	for (uint32_t r = 0; r < a.run_count; r++) {
		if (r == a.row_runs) state.exact = state.sum;
		add_run(a, a.runs[r], base, &state);
	}
	if (a.row_runs == a.run_count) state.exact = state.sum;
	float sum = state.sum, inverse = sum > 0.0f ? 1.0f / sum : sum == 0.0f ? 0.0f : sum;
	float *out = job.out + blockIdx.x * a.head_dim;
	for (uint32_t i = 0; i < 2; i++)
		if (threadIdx.x + i * THREADS < a.head_dim)
			out[threadIdx.x + i * THREADS] = state.out[i] * inverse;
	if (threadIdx.x == 0 && job.exact_mass != NULL)
		job.exact_mass[blockIdx.x] = sum > 0.0f ? state.exact * inverse : 1.0f;
}

static void add_runs(struct merge_arguments *m, const struct kn_attend_sparse_arguments *a,
    const struct kn_cuda_parts *sets, uint32_t set_count, bool rows)
{
	for (uint32_t i = 0; i < set_count; i++) {
		struct kn_parts_layout layout = kn_lay_out_parts(a, &sets[i].bounds);
		const uint8_t *scratch = (const uint8_t *)sets[i].scratch;
		const float *parts = (const float *)(scratch + layout.parts);
		size_t stride = (size_t)layout.pieces * layout.part_floats;
		m->values = layout.values;
		m->part_floats = layout.part_floats;
		if (rows && layout.row_pieces > 0)
			m->runs[m->run_count++] = {
			    parts, (const uint32_t *)scratch, stride, sets[i].bounds.max_rows};
		if (!rows && layout.pieces > layout.row_pieces)
			m->runs[m->run_count++] = {parts + (size_t)layout.row_pieces * layout.part_floats, NULL,
			    stride, sets[i].bounds.max_clusters};
	}
}
} // namespace

extern "C" cudaError_t kn_cuda_merge_attention(const struct kn_attend_sparse_arguments *a,
    const struct kn_cuda_parts *sets, uint32_t set_count, cudaStream_t stream)
{
	if (a->job_count == 0) return cudaSuccess;
	if (set_count > KN_CUDA_MAX_SETS || a->job_count > KN_CUDA_MAX_ATTENDED)
		return cudaErrorInvalidValue;
	struct merge_arguments m = {};
	m.jobs = a->jobs;
	m.head_dim = a->head_dim;
	add_runs(&m, a, sets, set_count, true);
	m.row_runs = m.run_count;
	add_runs(&m, a, sets, set_count, false);
	LAUNCH(merge_kernel, dim3(a->group, a->job_count), THREADS, 0, stream, m);
	return cudaGetLastError();
}
