/* Decode attention: partial results of pieces of 128 rows.
 *
 * A block has one piece of one job and all the query heads of the group, so that KV rows are read
 * from memory once. Each of its 4 warps has 32 rows. A row's head_dim channels are spread over 8,
 * 16 or 32 lanes, 8 channels (16 bytes) each, so a warp's load is 512 bytes of whole rows, and four
 * of them are under way at a time. In the first half a lane multiplies its 8 channels of 4 rows
 * with 4 heads; the 16 sums are folded across lanes by exchanging halves (15 shuffles for 16 sums
 * instead of 64), in an order that does not depend on which row it is. In the second half a lane
 * keeps 8 channels of 4 or 8 heads and runs over its rows; groups above 8 take a second pass over
 * values that are still in the cache. What lanes and warps have is added up through shared memory
 * in fixed order.
 *
 * Resources: at most 128 registers, so 4 blocks of 128 threads share a multiprocessor: 16 warps
 * with 2 KiB of loads each under way, 32 KiB together, where a multiprocessor of an H100 needs
 * about 18 to draw its share of the memory's bandwidth. Shared memory is 18 KiB for 4 heads of 128
 * channels, 21 for 8, 34 for 16 of 256: it limits only sm_89 (100 KiB) and there to 2 blocks at
 * worst. Plain float operations suffice for groups up to 8: 2 × 8 fused operations for an element
 * of 2 bytes are half of what an H100 computes while it reads one.
 *
 * Method: flash-decoding; the estimate of what is not attended to is ClusterKV's (arXiv
 * 2412.03213). */
#include "kernels/cuda/attend_parts.h"
#include "kernels/cuda/exponential.cuh"
#include "kernels/cuda/kv_element.cuh"
#include "kernels/cuda/spans.cuh"

namespace
{
constexpr uint32_t THREADS = 128, WARP_ROWS = 32, ROWS = KN_CUDA_PIECE_ROWS;
constexpr uint32_t LOADS = 4;             /* of a lane under way at a time */
constexpr uint32_t SUMS_FLOATS = 4 << 10; /* the values' sums of 4 heads, of every lane */

struct parts_arguments {
	const struct kn_attend_job *jobs;
	const uint32_t *rows, *starts;
	float *parts;
	struct kn_parts_layout layout;
	uint32_t max_spans, max_clusters;
	uint32_t group, heads; /* heads: group rounded up, the others are zeros */
	uint32_t head_dim;
	float scale; /* with log2(e) */
};

/* The shared memory of a block. */
struct shared {
	const uint8_t **rows; /* [ROWS]: where each starts, the values of an estimate */
	float *factors;       /* [ROWS]: tokens that a cluster stands for */
	float *weights;       /* [ROWS][heads] */
	float *q;             /* [heads][2][lanes of a row][4] */
	float *scores;        /* [heads][ROWS] */
	float *sums; /* in the place of q and scores: [lanes of this channel][4][2][lanes][4] */
};

static __host__ __device__ size_t shared_bytes(uint32_t heads, uint32_t lanes)
{
	uint32_t both = heads * (lanes * 8 + ROWS), sums = SUMS_FLOATS;
	return ROWS * (sizeof(uint8_t *) + sizeof(float) * (1 + heads)) +
	       sizeof(float) * (both > sums ? both : sums);
}

template <uint32_t LANES> __device__ __forceinline__ struct shared place_shared(uint32_t heads)
{
	DYN_SHARED(uint8_t, memory);
	struct shared s;
	s.rows = (const uint8_t **)memory;
	s.factors = (float *)(s.rows + ROWS);
	s.weights = s.factors + ROWS;
	s.q = s.sums = s.weights + ROWS * heads;
	s.scores = s.q + heads * LANES * 8;
	return s;
}

/* Queries as far as `head_dim` and `group`, zeros behind. The first and the last four channels of
 * each lane lie apart: lanes then read 16 bytes side by side. */
template <uint32_t LANES>
__device__ void load_queries(
    const struct shared &s, const struct parts_arguments &a, const struct kn_attend_job &job)
{
	for (uint32_t i = threadIdx.x; i < a.heads * LANES * 8; i += THREADS) {
		uint32_t head = i / (LANES * 8), channel = i % (LANES * 8);
		uint32_t at = (channel / 4 % 2 * LANES + channel / 8) * 4 + channel % 4;
		bool inside = head < a.group && channel < a.head_dim;
		s.q[head * LANES * 8 + at] =
		    inside ? job.q[(size_t)head * a.head_dim + channel] * a.scale : 0.0f;
	}
}

/* How many spans a job has, which an operation before this one may have left behind. */
__device__ __forceinline__ uint32_t spans_of(const struct kn_attend_job &job, uint32_t max_spans)
{
	uint32_t count = job.span_count < max_spans ? job.span_count : max_spans;
	if (job.spans_written == NULL) return count;
	uint32_t written = *job.spans_written;
	return written < count ? written : count;
}

/* Where the piece's rows are; lanes behind the last row repeat it. */
__device__ void find_rows(const struct shared &s, const struct parts_arguments &a,
    const struct kn_attend_job &job, uint32_t first, uint32_t count, size_t row_bytes)
{
	const uint32_t *starts = a.starts + (size_t)blockIdx.y * (a.max_spans + 1);
	uint32_t spans = spans_of(job, a.max_spans);
	uint32_t warp_first = threadIdx.x / 32 * 32, last = count - 1;
	uint32_t from = first + (warp_first < last ? warp_first : last);
	uint32_t row = first + (threadIdx.x < last ? threadIdx.x : last);
	uint32_t span = kn_find_span(starts, spans, from, row);
	s.rows[threadIdx.x] = job.spans[span].rows + (size_t)(row - starts[span]) * row_bytes;
}

/* Sums of N values over the lanes that differ in the bits of DISTANCE and below, each lane ending
 * up with its share of them. */
template <uint32_t DISTANCE, uint32_t N> __device__ __forceinline__ void fold(float *v)
{
	if constexpr (N > 1) {
		bool upper = threadIdx.x & DISTANCE;
#pragma unroll
		for (uint32_t i = 0; i < N / 2; i++) {
			float kept = upper ? v[i + N / 2] : v[i], given = upper ? v[i] : v[i + N / 2];
			v[i] = kept + __shfl_xor_sync(0xffffffffu, given, DISTANCE);
		}
	} else {
		v[0] += __shfl_xor_sync(0xffffffffu, v[0], DISTANCE);
	}
	if constexpr (DISTANCE > 1) fold<DISTANCE / 2, (N > 1 ? N / 2 : 1)>(v);
}

/* Dot products of 8 channels of LOADS rows with four heads, folded, to the scores. */
template <uint32_t LANES>
__device__ __forceinline__ void score_quad(
    const struct shared &s, const float (*k)[8], uint32_t head, uint32_t row)
{
	constexpr uint32_t STRIDE = 32 / LANES, KEPT = LANES < 16 ? 16 / LANES : 1;
	uint32_t chunk = threadIdx.x % LANES;
	float sums[LOADS * 4];
#pragma unroll
	for (uint32_t h = 0; h < 4; h++) {
		const float *q = s.q + (head + h) * LANES * 8;
		float4 low = *(const float4 *)(q + chunk * 4);
		float4 high = *(const float4 *)(q + (LANES + chunk) * 4);
#pragma unroll
		for (uint32_t j = 0; j < LOADS; j++) {
			float sum = k[j][0] * low.x;
			sum = fmaf(k[j][1], low.y, sum);
			sum = fmaf(k[j][2], low.z, sum);
			sum = fmaf(k[j][3], low.w, sum);
			sum = fmaf(k[j][4], high.x, sum);
			sum = fmaf(k[j][5], high.y, sum);
			sum = fmaf(k[j][6], high.z, sum);
			sums[j * 4 + h] = fmaf(k[j][7], high.w, sum);
		}
	}
	fold<LANES / 2, LOADS * 4>(sums);
	/* Of 32 lanes two have the same sum. */
	if (LANES == 32 && chunk % 2 != 0) return;
#pragma unroll
	for (uint32_t i = 0; i < KEPT; i++) {
		uint32_t index = LANES == 32 ? chunk / 2 : chunk * KEPT + i;
		s.scores[(head + index % 4) * ROWS + row + index / 4 * STRIDE] = sums[i];
	}
}

/* scores[head][row] = q · k for the warp's rows below `count`, and some behind. */
template <enum kn_kv_type TYPE, uint32_t LANES>
__device__ __forceinline__ void score_rows(
    const struct shared &s, const struct parts_arguments &a, uint32_t count)
{
	constexpr uint32_t STRIDE = 32 / LANES;
	uint32_t lane = threadIdx.x % 32, warp_first = threadIdx.x / 32 * WARP_ROWS;
	uint32_t chunk = lane % LANES, mine = lane / LANES;
	bool inside = chunk * 8 < a.head_dim;
	for (uint32_t i = 0; i < WARP_ROWS && warp_first + i < count; i += LOADS * STRIDE) {
		struct kn_eight<TYPE> raw[LOADS];
		float k[LOADS][8];
		uint32_t row = warp_first + i + mine;
#pragma unroll
		for (uint32_t j = 0; j < LOADS; j++)
			raw[j] = inside && row + j * STRIDE < count
			             ? kn_load_eight<TYPE>(
			                   s.rows[row + j * STRIDE] + chunk * 8 * kn_element_bytes(TYPE))
			             : kn_zero_eight<TYPE>();
#pragma unroll
		for (uint32_t j = 0; j < LOADS; j++)
			kn_widen_eight<TYPE>(raw[j], k[j]);
		for (uint32_t head = 0; head < a.heads; head += 4)
			score_quad<LANES>(s, k, head, row);
	}
}

/* Logits of clusters in the place of scores, and where the mean values are. */
__device__ void load_estimate(const struct shared &s, const struct parts_arguments &a,
    const struct kn_estimate &e, uint32_t first, uint32_t count)
{
	uint32_t i = threadIdx.x, rest = i < count ? e.rest[first + i] : 0;
	uint32_t cluster = first + (i < count ? i : count - 1);
	s.rows[i] = (const uint8_t *)(e.value_means + (size_t)cluster * a.head_dim);
	s.factors[i] = (float)rest;
	for (uint32_t head = 0; head < a.heads; head++)
		s.scores[head * ROWS + i] = head < a.group && rest != 0
		                                ? e.logits[head * e.logits_stride + cluster] * KN_CUDA_LOG2E
		                                : -INFINITY;
}

/* weights[row][head] = 2^(score - max) (times the factor), max and sum to the part: a warp a head.
 */
template <bool ESTIMATE>
__device__ __forceinline__ void find_weights(
    const struct shared &s, const struct parts_arguments &a, uint32_t count, float *part)
{
	uint32_t lane = threadIdx.x % 32;
	for (uint32_t head = threadIdx.x / 32; head < a.heads; head += THREADS / 32) {
		float w[ROWS / 32], max = -INFINITY, sum = 0.0f;
#pragma unroll
		for (uint32_t i = 0; i < ROWS / 32; i++) {
			uint32_t row = lane + 32 * i;
			w[i] = row < count ? s.scores[head * ROWS + row] : -INFINITY;
			max = w[i] > max ? w[i] : max;
		}
#pragma unroll
		for (int by = 16; by > 0; by /= 2) {
			float other = __shfl_xor_sync(0xffffffffu, max, by);
			max = other > max ? other : max;
		}
#pragma unroll
		for (uint32_t i = 0; i < ROWS / 32; i++) {
			uint32_t row = lane + 32 * i;
			w[i] = kn_exp2(w[i] - kn_base(max));
			if (ESTIMATE) w[i] *= s.factors[row];
			s.weights[row * a.heads + head] = w[i];
			sum += w[i];
		}
#pragma unroll
		for (int by = 16; by > 0; by /= 2)
			sum += __shfl_xor_sync(0xffffffffu, sum, by);
		if (lane == 0 && head < a.group) *(float2 *)(part + 2 * head) = make_float2(max, sum);
	}
}

/* sums[head][channel] += weight * value over the warp's rows, of 4 × QUADS heads from `head` on. */
template <enum kn_kv_type TYPE, uint32_t LANES, uint32_t QUADS>
__device__ __forceinline__ void add_values(const struct shared &s, const struct parts_arguments &a,
    uint32_t count, size_t offset, uint32_t head, float (*sums)[8])
{
	/* What is under way counts twice where elements have 4 bytes. */
	constexpr uint32_t STRIDE = 32 / LANES, FEW = TYPE == KN_KV_F32 ? LOADS / 2 : LOADS;
	uint32_t lane = threadIdx.x % 32, warp_first = threadIdx.x / 32 * WARP_ROWS;
	uint32_t chunk = lane % LANES, mine = lane / LANES;
	bool inside = chunk * 8 < a.head_dim;
	offset += chunk * 8 * kn_element_bytes(TYPE);
	for (uint32_t i = 0; i < WARP_ROWS && warp_first + i < count; i += FEW * STRIDE) {
		struct kn_eight<TYPE> raw[FEW];
		uint32_t row = warp_first + i + mine;
#pragma unroll
		for (uint32_t j = 0; j < FEW; j++)
			raw[j] = inside && row + j * STRIDE < count
			             ? kn_load_eight<TYPE>(s.rows[row + j * STRIDE] + offset)
			             : kn_zero_eight<TYPE>();
#pragma unroll
		for (uint32_t j = 0; j < FEW; j++) {
			float v[8];
			kn_widen_eight<TYPE>(raw[j], v);
			const float *weights = s.weights + (row + j * STRIDE) * a.heads + head;
#pragma unroll
			for (uint32_t quad = 0; quad < QUADS; quad++) {
				float4 w = *(const float4 *)(weights + quad * 4);
#pragma unroll
				for (uint32_t d = 0; d < 8; d++) {
					sums[quad * 4][d] = fmaf(w.x, v[d], sums[quad * 4][d]);
					sums[quad * 4 + 1][d] = fmaf(w.y, v[d], sums[quad * 4 + 1][d]);
					sums[quad * 4 + 2][d] = fmaf(w.z, v[d], sums[quad * 4 + 2][d]);
					sums[quad * 4 + 3][d] = fmaf(w.w, v[d], sums[quad * 4 + 3][d]);
				}
			}
		}
	}
}

/* The block's sums of four heads to the part: each lane's to shared memory, then added up in order
 * of warps and, within one, of the rows of a load. */
template <uint32_t LANES>
__device__ __forceinline__ void publish_quad(const struct shared &s,
    const struct parts_arguments &a, uint32_t head, const float (*sums)[8], float *part)
{
	constexpr uint32_t SLOTS = THREADS / LANES, WIDE = LANES * 2; /* float4s of a head */
	uint32_t slot = threadIdx.x / LANES, chunk = threadIdx.x % LANES;
	float4 *to = (float4 *)s.sums + slot * 4 * WIDE + chunk;
	__syncthreads();
#pragma unroll
	for (uint32_t h = 0; h < 4; h++) {
		to[h * WIDE] = make_float4(sums[h][0], sums[h][1], sums[h][2], sums[h][3]);
		to[h * WIDE + LANES] = make_float4(sums[h][4], sums[h][5], sums[h][6], sums[h][7]);
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < 4 * WIDE; i += THREADS) {
		uint32_t h = head + i / WIDE, channel = i % LANES * 8 + i / LANES % 2 * 4;
		if (h >= a.group || channel >= a.head_dim) continue;
		float4 sum = ((const float4 *)s.sums)[i];
#pragma unroll
		for (uint32_t other = 1; other < SLOTS; other++) {
			float4 x = ((const float4 *)s.sums)[other * 4 * WIDE + i];
			sum.x += x.x;
			sum.y += x.y;
			sum.z += x.z;
			sum.w += x.w;
		}
		*(float4 *)(part + a.layout.values + h * a.head_dim + channel) = sum;
	}
}

template <enum kn_kv_type TYPE, uint32_t LANES, uint32_t QUADS>
__device__ __forceinline__ void attend_values(const struct shared &s,
    const struct parts_arguments &a, uint32_t count, size_t offset, float *part)
{
	for (uint32_t head = 0; head < a.heads; head += 4 * QUADS) {
		float sums[4 * QUADS][8];
#pragma unroll
		for (uint32_t i = 0; i < 4 * QUADS * 8; i++)
			sums[i / 8][i % 8] = 0.0f;
		add_values<TYPE, LANES, QUADS>(s, a, count, offset, head, sums);
#pragma unroll
		for (uint32_t quad = 0; quad < QUADS; quad++)
			publish_quad<LANES>(s, a, head + quad * 4, sums + quad * 4, part);
	}
}

/* Block (piece, job): first the pieces of rows, then those of the estimate. */
template <enum kn_kv_type TYPE, uint32_t LANES, uint32_t QUADS>
__global__ void __launch_bounds__(THREADS, 4) parts_kernel(const struct parts_arguments a)
{
	const struct kn_attend_job &job = a.jobs[blockIdx.y];
	bool exact = blockIdx.x < a.layout.row_pieces;
	uint32_t first = (blockIdx.x - (exact ? 0 : a.layout.row_pieces)) * ROWS, all = 0;
	if (exact) {
		all = a.rows[blockIdx.y];
	} else {
		all = job.estimate.clusters < a.max_clusters ? job.estimate.clusters : a.max_clusters;
	}
	if (first >= all) return;
	uint32_t count = all - first < ROWS ? all - first : ROWS;
	size_t half_row = (size_t)a.head_dim * kn_element_bytes(TYPE);
	float *part =
	    a.parts + ((size_t)blockIdx.y * a.layout.pieces + blockIdx.x) * a.layout.part_floats;
	struct shared s = place_shared<LANES>(a.heads);
	if (exact) {
		load_queries<LANES>(s, a, job);
		find_rows(s, a, job, first, count, 2 * half_row);
		__syncthreads();
		score_rows<TYPE, LANES>(s, a, count);
		__syncthreads();
		find_weights<false>(s, a, count, part);
		__syncthreads();
		attend_values<TYPE, LANES, QUADS>(s, a, count, half_row, part);
	} else {
		load_estimate(s, a, job.estimate, first, count);
		__syncthreads();
		find_weights<true>(s, a, count, part);
		__syncthreads();
		attend_values<KN_KV_F16, LANES, QUADS>(s, a, count, 0, part);
	}
}

/* Block: a job. */
__global__ void __launch_bounds__(KN_SPANS_THREADS) starts_kernel(const struct kn_attend_job *jobs,
    uint32_t max_spans, uint32_t max_rows, uint32_t *rows, uint32_t *starts)
{
	const struct kn_attend_job &job = jobs[blockIdx.x];
	uint32_t count = spans_of(job, max_spans);
	uint32_t *mine = starts + (size_t)blockIdx.x * (max_spans + 1);
	kn_span_starts(job.spans, count, max_rows, mine);
	__syncthreads();
	if (threadIdx.x == 0) rows[blockIdx.x] = mine[count];
}

template <enum kn_kv_type TYPE, uint32_t LANES>
static void launch_lanes(struct parts_arguments a, uint32_t jobs, cudaStream_t stream)
{
	dim3 grid(a.layout.pieces, jobs);
	if (a.group <= 4) {
		a.heads = 4;
		LAUNCH(
		    (parts_kernel<TYPE, LANES, 1>), grid, THREADS, shared_bytes(a.heads, LANES), stream, a);
	} else {
		a.heads = (a.group + 7) / 8 * 8;
		LAUNCH(
		    (parts_kernel<TYPE, LANES, 2>), grid, THREADS, shared_bytes(a.heads, LANES), stream, a);
	}
}

template <enum kn_kv_type TYPE>
static void launch_type(const struct parts_arguments &a, uint32_t jobs, cudaStream_t stream)
{
	if (a.head_dim <= 64)
		launch_lanes<TYPE, 8>(a, jobs, stream);
	else if (a.head_dim <= 128)
		launch_lanes<TYPE, 16>(a, jobs, stream);
	else
		launch_lanes<TYPE, 32>(a, jobs, stream);
}

static bool in_range(
    const struct kn_attend_sparse_arguments *a, const struct kn_cuda_attend_bounds *bounds)
{
	return a->job_count <= KN_CUDA_MAX_ATTENDED && a->group >= 1 && a->group <= 16 &&
	       a->head_dim >= 8 && a->head_dim <= 256 && a->head_dim % 8 == 0 &&
	       bounds->max_rows <= KN_CUDA_MAX_TOKENS && bounds->max_clusters <= KN_CUDA_MAX_TOKENS &&
	       bounds->max_spans < KN_CUDA_MAX_TOKENS;
}
} // namespace

extern "C" size_t kn_cuda_attend_sparse_scratch_bytes(
    const struct kn_attend_sparse_arguments *a, const struct kn_cuda_attend_bounds *bounds)
{
	return kn_lay_out_parts(a, bounds).bytes;
}

extern "C" cudaError_t kn_cuda_attend_parts(const struct kn_attend_sparse_arguments *a,
    const struct kn_cuda_attend_bounds *bounds, void *scratch, cudaStream_t stream)
{
	if (a->job_count == 0) return cudaSuccess;
	if (!in_range(a, bounds)) return cudaErrorInvalidValue;
	struct parts_arguments p = {};
	p.layout = kn_lay_out_parts(a, bounds);
	uint32_t *rows = (uint32_t *)scratch;
	uint32_t *starts = (uint32_t *)((uint8_t *)scratch + p.layout.starts);
	LAUNCH(starts_kernel, a->job_count, KN_SPANS_THREADS, 0, stream, a->jobs, bounds->max_spans,
	    bounds->max_rows, rows, starts);
	cudaError_t error = cudaGetLastError();
	if (error != cudaSuccess || p.layout.pieces == 0) return error;
	p.jobs = a->jobs;
	p.rows = rows;
	p.starts = starts;
	p.parts = (float *)((uint8_t *)scratch + p.layout.parts);
	p.max_spans = bounds->max_spans;
	p.max_clusters = bounds->max_clusters;
	p.group = a->group;
	p.head_dim = a->head_dim;
	p.scale = a->scale * KN_CUDA_LOG2E;
	if (a->kv_type == KN_KV_F32)
		launch_type<KN_KV_F32>(p, a->job_count, stream);
	else if (a->kv_type == KN_KV_BF16)
		launch_type<KN_KV_BF16>(p, a->job_count, stream);
	else
		launch_type<KN_KV_F16>(p, a->job_count, stream);
	return cudaGetLastError();
}

extern "C" cudaError_t kn_cuda_attend_sparse(const struct kn_attend_sparse_arguments *a,
    const struct kn_cuda_attend_bounds *bounds, void *scratch, cudaStream_t stream)
{
	struct kn_cuda_parts set = {scratch, *bounds};
	cudaError_t error = kn_cuda_attend_parts(a, bounds, scratch, stream);
	return error != cudaSuccess ? error : kn_cuda_merge_attention(a, &set, 1, stream);
}
