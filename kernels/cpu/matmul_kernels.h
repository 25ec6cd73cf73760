/* The inner loops of matmul, and the bits that they agree on.
 *
 * Activations are quantised to int8 by half blocks of 16 columns (scale = largest / 127, round to
 * nearest even) and kept in panels of 8 rows. Half blocks, because activations have peaks, and a
 * peak costs its neighbours their precision. One output element is, for blocks b in ascending
 * order, with dot = Σ (code - offset) * q of a half block,
 *
 *   one weight scale:  sum = fma(fma(float(dot1), scale_x1, float(dot0) * scale_x0), scale_w, sum)
 *   with a minimum:    then sum = fma(minimum, scale_x0 * Σ q0 + scale_x1 * Σ q1, sum)
 *   P6S:               sum = fma(float(dot0) * scale_x0, scale_w0, sum), then the same for half 1
 *
 * with exact integer dots, so all levels, row counts and thread counts give the same bits. At fp32
 * precision an element is a chain of fused multiply-adds over ascending columns (at the plain level
 * a chain of multiplications and additions, since fma without the instruction is too slow there).
 */
#ifndef KN_CPU_MATMUL_KERNELS_H
#define KN_CPU_MATMUL_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/weight.h"

enum {
	KN_PANEL_ROWS = 8,
	/* Weights are loaded this far ahead, into the second-level cache: it bears many more misses at
	 * once than the first (Zen 4, two threads: 54 GB/s against 26). */
	KN_PREFETCH_BYTES = 4096
};

/* One block of 32 columns of one activation row. Index 0 of a pair is columns 0 to 15, index 1
 * columns 16 to 31. Rows that are not there take no room, as every cache line that one core writes
 * and others read costs them a transfer: a decoded token's block takes 52 bytes. */
struct kn_panel_block {
	int8_t q[KN_BLOCK_COLUMNS];
	float scale[2];
	int32_t negative[2]; /* -sum of the codes */
	float sum;           /* sum of scale * code over the block */
};

/* out[n][16] for rows n of the panel: one tile of `blocks` blocks. A kernel for R rows reads panels
 * [blocks][R], in which rows beyond the batch are zero. */
typedef void kn_tile_kernel(
    const uint8_t *tile, uint32_t blocks, const struct kn_panel_block *panel, float *out);
/* The same for float activations, x [rows][columns], row stride x_stride floats. */
typedef void kn_tile_kernel_f32(
    const float *tile, uint32_t columns, const float *x, size_t x_stride, float *out);

/* Quantise rows [0, rows) of x into a panel [columns / 32][capacity], rows ≤ capacity ≤ 8. */
typedef void kn_panel_kernel(const float *x, size_t x_stride, uint32_t rows, uint32_t capacity,
    uint32_t columns, struct kn_panel_block *panel);

/* Kernels for 1, 2, 4 and 8 rows. */
enum { KN_ROW_VARIANTS = 4 };

struct kn_matmul_kernels {
	kn_tile_kernel *tile[KN_TILE_QUANTISED_FORMATS][KN_ROW_VARIANTS];
	kn_tile_kernel_f32 *tile_f32[KN_ROW_VARIANTS];
	kn_panel_kernel *panel;
};

extern const struct kn_matmul_kernels kn_matmul_plain, kn_matmul_avx2, kn_matmul_avx512;

#endif
