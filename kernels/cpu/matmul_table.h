/* Ends the file of a CPU level: a function for each format and number of rows, and the table of
 * them. The file has defined run_tile, run_tile_f32 and quantise_block, and KERNELS, the table's
 * name. */
static void quantise_panel(const float *x, size_t x_stride, uint32_t rows, uint32_t capacity,
    uint32_t columns, struct kn_panel_block *panel)
{
	for (uint32_t b = 0; b < columns / KN_BLOCK_COLUMNS; b++, panel += capacity) {
		for (uint32_t n = 0; n < rows; n++)
			quantise_block(x + x_stride * n + KN_BLOCK_COLUMNS * (size_t)b, &panel[n]);
		memset(panel + rows, 0, (capacity - rows) * sizeof *panel);
	}
}

#define DEFINE_KERNEL(format, rows)                                                                \
	static void tile_##format##_##rows(                                                            \
	    const uint8_t *tile, uint32_t blocks, const struct kn_panel_block *panel, float *out)      \
	{                                                                                              \
		run_tile(KN_TILE_##format, rows, tile, blocks, panel, out);                                \
	}
#define DEFINE_KERNELS(format)                                                                     \
	DEFINE_KERNEL(format, 1)                                                                       \
	DEFINE_KERNEL(format, 2)                                                                       \
	DEFINE_KERNEL(format, 4)                                                                       \
	DEFINE_KERNEL(format, 8)
#define DEFINE_F32(rows)                                                                           \
	static void tile_f32_##rows(                                                                   \
	    const float *tile, uint32_t columns, const float *x, size_t x_stride, float *out)          \
	{                                                                                              \
		run_tile_f32(rows, tile, columns, x, x_stride, out);                                       \
	}
#define LIST_KERNELS(format)                                                                       \
	{                                                                                              \
		tile_##format##_1, tile_##format##_2, tile_##format##_4, tile_##format##_8                 \
	}

DEFINE_KERNELS(P4M)
DEFINE_KERNELS(P4S)
DEFINE_KERNELS(P5S)
DEFINE_KERNELS(P5M)
DEFINE_KERNELS(P6S)
DEFINE_KERNELS(P8S)
DEFINE_F32(1)
DEFINE_F32(2)
DEFINE_F32(4)
DEFINE_F32(8)

const struct kn_matmul_kernels KERNELS = {
    .tile = {LIST_KERNELS(P4M), LIST_KERNELS(P4S), LIST_KERNELS(P5S), LIST_KERNELS(P5M),
        LIST_KERNELS(P6S), LIST_KERNELS(P8S)},
    .tile_f32 = {tile_f32_1, tile_f32_2, tile_f32_4, tile_f32_8},
    .panel = quantise_panel,
};
