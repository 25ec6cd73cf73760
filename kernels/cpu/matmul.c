#include <string.h>

#include "kernels/cpu/backend_cpu.h"
#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/memory.h"

/* A task is a run of tiles for one block of activation rows. The panels of a row block are sized to
 * stay in a core's second-level cache beside the tile that is being read. */
enum { PANEL_CACHE_BYTES = 320 << 10, SERIAL_QUANTISE = 1 << 13 };

struct matmul_run {
	const struct kn_matmul_arguments *a;
	const struct kn_weight *weight;
	const struct kn_matmul_kernels *kernels;
	/* [panel][blocks][rows of the kernel]; panels lie as far apart as if they had 8 rows. */
	struct kn_panel_block *panels;
	uint32_t first_row, rows;      /* activation rows of this run */
	uint32_t blocks;
	uint32_t rows_per_block, chunk; /* activation rows and tiles of a task */
	uint32_t chunks;                /* tasks of one row block, over all slabs */
};

enum kv_status kn_matmul_scratch_create(struct kn_backend *backend)
{
	size_t panels = (backend->max_rows + KN_PANEL_ROWS - 1) / KN_PANEL_ROWS;
	size_t blocks = (backend->max_columns + KN_BLOCK_COLUMNS - 1) / KN_BLOCK_COLUMNS;

	backend->matmul_scratch = kn_memory_create(
	    backend->allocator, panels * KN_PANEL_ROWS * blocks * sizeof(struct kn_panel_block));
	return backend->matmul_scratch ? KV_OK : KV_NO_MEMORY;
}

void kn_matmul_scratch_destroy(struct kn_backend *backend)
{
	kn_memory_destroy(backend->allocator, backend->matmul_scratch);
	backend->matmul_scratch = NULL;
}

static const struct kn_matmul_kernels *kernels_of(enum kn_cpu_level level)
{
	switch (level) {
#if defined(__x86_64__)
	case KN_CPU_AVX512:
		return &kn_matmul_avx512;
	case KN_CPU_AVX2:
		return &kn_matmul_avx2;
#endif
	default:
		return &kn_matmul_plain;
	}
}

/* Index of the kernel for up to 1, 2, 4 or 8 rows. */
static uint32_t variant_of(uint32_t rows)
{
	return rows <= 1 ? 0 : rows <= 2 ? 1 : rows <= 4 ? 2 : 3;
}

static struct kn_panel_block *panel_of(const struct matmul_run *run, uint32_t row)
{
	return run->panels + (size_t)(row / KN_PANEL_ROWS) * KN_PANEL_ROWS * run->blocks;
}

static void quantise_panel(void *context, uint32_t task, uint32_t thread)
{
	const struct matmul_run *run = context;
	uint32_t first = task * KN_PANEL_ROWS;
	uint32_t rows = run->rows - first < KN_PANEL_ROWS ? run->rows - first : KN_PANEL_ROWS;

	(void)thread;
	run->kernels->panel(run->a->x + run->a->x_stride * (run->first_row + first), run->a->x_stride,
	    rows, 1u << variant_of(rows), run->weight->columns, panel_of(run, first));
}

/* y = from + bias + add, at most 16 columns; with a constant count it becomes one vector operation
 * each. `add` may be y. */
static inline void finish_row(
    float *y, const float *from, const float *bias, const float *add, uint32_t columns)
{
	float value[KN_TILE_ROWS];

	for (uint32_t r = 0; r < columns; r++)
		value[r] = from[r];
	if (bias)
		for (uint32_t r = 0; r < columns; r++)
			value[r] += bias[r];
	if (add)
		for (uint32_t r = 0; r < columns; r++)
			value[r] += add[r];
	for (uint32_t r = 0; r < columns; r++)
		y[r] = value[r];
}

/* Add bias and residual and store the part of a 16-row result that exists. */
static void store_tile(const struct matmul_run *run, const float *out, uint32_t row, uint32_t rows,
    uint32_t column, uint32_t columns)
{
	const struct kn_matmul_arguments *a = run->a;
	const float *bias = a->bias ? a->bias + column : NULL;

	for (uint32_t n = 0; n < rows; n++, out += KN_TILE_ROWS) {
		size_t at = a->y_stride * (run->first_row + row + n) + column;
		const float *add = a->add ? a->add + at : NULL;

		if (columns == KN_TILE_ROWS)
			finish_row(a->y + at, out, bias, add, KN_TILE_ROWS);
		else
			finish_row(a->y + at, out, bias, add, columns);
	}
}

static void quantised_tile(const struct matmul_run *run, const struct kn_slab *slab,
    const uint8_t *tile, uint32_t column, uint32_t columns, uint32_t row, uint32_t row_end)
{
	_Alignas(64) float out[KN_PANEL_ROWS * KN_TILE_ROWS];

	for (; row < row_end; row += KN_PANEL_ROWS) {
		uint32_t rows = row_end - row < KN_PANEL_ROWS ? row_end - row : KN_PANEL_ROWS;

		run->kernels->tile[slab->format][variant_of(rows)](
		    tile, run->blocks, panel_of(run, row), out);
		store_tile(run, out, row, rows, column, columns);
	}
}

static void float_tile(const struct matmul_run *run, const uint8_t *tile, uint32_t column,
    uint32_t columns, uint32_t row, uint32_t row_end)
{
	_Alignas(64) float out[KN_PANEL_ROWS * KN_TILE_ROWS];
	uint32_t rows;

	for (; row < row_end; row += rows) {
		uint32_t left = row_end - row, variant = left >= 8 ? 3 : left >= 4 ? 2 : left >= 2 ? 1 : 0;

		rows = 1u << variant;
		run->kernels->tile_f32[variant]((const float *)(const void *)tile, run->weight->columns,
		    run->a->x + run->a->x_stride * (run->first_row + row), run->a->x_stride, out);
		store_tile(run, out, row, rows, column, columns);
	}
}

static void matmul_task(void *context, uint32_t task, uint32_t thread)
{
	const struct matmul_run *run = context;
	uint32_t row = task / run->chunks * run->rows_per_block, chunk = task % run->chunks;
	uint32_t row_end =
	    run->rows - row < run->rows_per_block ? run->rows : row + run->rows_per_block;
	const struct kn_slab *slab = run->weight->slabs;

	(void)thread;
	for (uint32_t here; chunk >= (here = (slab->tiles + run->chunk - 1) / run->chunk); slab++)
		chunk -= here;
	for (uint32_t t = chunk * run->chunk; t < (chunk + 1) * run->chunk && t < slab->tiles; t++) {
		uint32_t at = t * KN_TILE_ROWS;
		uint32_t columns = slab->rows - at < KN_TILE_ROWS ? slab->rows - at : KN_TILE_ROWS;
		const uint8_t *tile = slab->tile + slab->tile_bytes * t;

		if (slab->format == KN_TILE_F32)
			float_tile(run, tile, slab->first_row + at, columns, row, row_end);
		else
			quantised_tile(run, slab, tile, slab->first_row + at, columns, row, row_end);
	}
}

/* Cut into tasks: about eight for each thread, so that a thread that lags does not hold up the
 * rest, but runs of tiles long enough for the memory to stream. */
static uint32_t cut_tasks(struct matmul_run *run, uint32_t threads)
{
	uint32_t row_bytes = run->blocks * (uint32_t)sizeof(struct kn_panel_block);
	uint32_t panel_rows = PANEL_CACHE_BYTES / row_bytes / KN_PANEL_ROWS * KN_PANEL_ROWS;

	if (panel_rows == 0) panel_rows = KN_PANEL_ROWS;
	run->rows_per_block = panel_rows < run->rows ? panel_rows : run->rows;
	uint32_t row_blocks = (run->rows + run->rows_per_block - 1) / run->rows_per_block;
	uint32_t wanted = threads * 8;

	run->chunk = (run->weight->tiles + wanted - 1) / wanted;
	run->chunks = 0;
	for (uint32_t i = 0; i < run->weight->slab_count; i++)
		run->chunks += (run->weight->slabs[i].tiles + run->chunk - 1) / run->chunk;
	return row_blocks * run->chunks;
}

static void matmul_rows(struct kn_backend *backend, struct matmul_run *run)
{
	if (run->weight->precision != KN_PRECISION_FP32) {
		uint32_t panels = (run->rows + KN_PANEL_ROWS - 1) / KN_PANEL_ROWS;

		if ((uint64_t)run->rows * run->weight->columns <= SERIAL_QUANTISE) {
			for (uint32_t i = 0; i < panels; i++)
				quantise_panel(run, i, 0);
		} else {
			kn_pool_run(backend->pool, quantise_panel, run, panels);
		}
	}
	kn_pool_run(backend->pool, matmul_task, run, cut_tasks(run, kn_pool_threads(backend->pool)));
}

enum kv_status kn_cpu_matmul(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_matmul_arguments *a)
{
	(void)stream;
	if (a->count == 0) return KV_OK;
	if (!a->weight || !a->x || !a->y)
		return kv_fail(KV_INVALID, "matmul without weight, input or output");
	if (a->x_stride < a->weight->columns || a->y_stride < a->weight->rows)
		return kv_fail(KV_INVALID,
		    "matmul of a %u x %u weight: row strides %zu and %zu are too small", a->weight->rows,
		    a->weight->columns, a->x_stride, a->y_stride);
	if (a->weight->columns > backend->max_columns)
		return kv_fail(KV_INVALID, "matmul of %u columns: the backend was opened for %u",
		    a->weight->columns, backend->max_columns);
	struct matmul_run run = {
	    .a = a,
	    .weight = a->weight,
	    .kernels = kernels_of(backend->level),
	    .panels = backend->matmul_scratch,
	    .blocks = a->weight->columns / KN_BLOCK_COLUMNS,
	};

	for (; run.first_row < a->count; run.first_row += run.rows) {
		uint32_t left = a->count - run.first_row;

		run.rows = left < backend->max_rows ? left : backend->max_rows;
		matmul_rows(backend, &run);
	}
	return KV_OK;
}
