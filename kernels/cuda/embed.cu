/* embed: dequantised rows of the table, one launch for each of its parts (one, as a rule), which
 * does the ids that are in the part. Each id is read by all threads of its row and checked there: a
 * row that the table does not have becomes NaN, which the first part's launch writes.
 *
 * A thread for each chunk of eight elements, blocks of 256 threads along a row, ids are grid.y in a
 * loop; no shared memory, at most 40 registers. `out` may lie at any multiple of 4 bytes, hence
 * scalar stores: a decode step has a few rows.
 */
#include "kernels/cuda/launch_plain.h"
#include "kernels/cuda/weight_chunk.cuh"

namespace
{
constexpr int threads = 256;

struct embed_run {
	const uint8_t *data;
	uint32_t first_row, rows; /* of the part */
	uint32_t all_rows, columns, count;
	const int32_t *ids;
	float *out;
};

template <int TYPE> __global__ void __launch_bounds__(threads) embed_kernel(embed_run run)
{
	uint32_t chunk = blockIdx.x * threads + threadIdx.x;

	if (chunk >= run.columns / 8) return;
	for (uint32_t n = blockIdx.y; n < run.count; n += gridDim.y) {
		/* A negative id is above all rows; below first_row it wraps to above the part's. */
		uint32_t id = static_cast<uint32_t>(run.ids[n]), r = id - run.first_row;
		int missing = id >= run.all_rows;
		float *to = run.out + static_cast<size_t>(run.columns) * n + kn_chunk_column<TYPE>(chunk);
		kn_chunk read;

		if (missing ? run.first_row != 0 : r >= run.rows) continue;
		if (!missing)
			kn_chunk_read<TYPE>(&read, kn_chunk_row<TYPE>(run.data, run.columns, r), chunk);
#pragma unroll
		for (int i = 0; i < 8; i++)
			to[i < 4 ? i : kn_chunk_shape<TYPE>::gap + i - 4] =
			    missing ? __uint_as_float(0x7fc00000u) : kn_chunk_element<TYPE>(&read, i);
	}
}
} // namespace

extern "C" cudaError_t kn_cuda_embed(
    const struct kn_cuda_weight *table, const struct kn_embed_arguments *a, cudaStream_t stream)
{
	if (a->count == 0) return cudaSuccess;
	for (uint32_t i = 0; i < table->part_count; i++) {
		const struct kn_cuda_weight_part *part = &table->parts[i];
		embed_run run = {part->data, part->first_row, part->rows, table->rows, table->columns,
		    a->count, a->ids, a->out};
		dim3 grid(
		    (table->columns / 8 + threads - 1) / threads, a->count < 65535u ? a->count : 65535u);

		switch (part->type) {
#define CASE(TYPE)                                                                                 \
	case TYPE:                                                                                     \
		LAUNCH((embed_kernel<TYPE>), grid, threads, 0, stream, run);                               \
		break;
			KN_WEIGHT_TYPES(CASE)
#undef CASE
		default:
			return cudaErrorInvalidValue;
		}
		cudaError_t error = cudaGetLastError();

		if (error != cudaSuccess) return error;
	}
	return cudaSuccess;
}
