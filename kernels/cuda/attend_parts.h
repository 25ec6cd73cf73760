/* How the scratch memory of decode attention is laid out: written by attend_sparse.cu, read by
 * merge_attention.cu.
 *
 *   rows    [jobs]                 rows attended, of all spans
 *   starts  [jobs][max_spans + 1]  first row of each span
 *   parts   [jobs][pieces][part_floats]: pieces of rows first, then those of the estimate
 *
 * A part is [max][sum][head_dim sums of values] for each query head: head h's max is float 2h, its
 * sum 2h + 1, and its values are from float values + h * head_dim on.
 */
#ifndef KN_CUDA_ATTEND_PARTS_H
#define KN_CUDA_ATTEND_PARTS_H

#include "kernels/cuda/launch_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kn_parts_layout {
	size_t starts, parts, bytes;  /* offsets in the scratch memory, and its size */
	uint32_t row_pieces, pieces;  /* of one job */
	uint32_t values, part_floats; /* of one part, both multiples of 4 */
};

static inline size_t kn_round_up(size_t value, size_t unit)
{
	return (value + unit - 1) / unit * unit;
}

static inline struct kn_parts_layout kn_lay_out_parts(
    const struct kn_attend_sparse_arguments *a, const struct kn_cuda_attend_bounds *bounds)
{
	struct kn_parts_layout l;
	size_t jobs = a->job_count;
	l.row_pieces = (bounds->max_rows + KN_CUDA_PIECE_ROWS - 1) / KN_CUDA_PIECE_ROWS;
	l.pieces = l.row_pieces + (bounds->max_clusters + KN_CUDA_PIECE_ROWS - 1) / KN_CUDA_PIECE_ROWS;
	l.values = (2 * a->group + 3) / 4 * 4;
	l.part_floats = l.values + a->group * a->head_dim;
	l.starts = kn_round_up(jobs * sizeof(uint32_t), KN_CUDA_SCRATCH_ALIGN);
	l.parts = l.starts + kn_round_up(jobs * ((size_t)bounds->max_spans + 1) * sizeof(uint32_t),
	                         KN_CUDA_SCRATCH_ALIGN);
	l.bytes = l.parts + jobs * l.pieces * l.part_floats * sizeof(float);
	return l;
}

#ifdef __cplusplus
}
#endif
#endif
