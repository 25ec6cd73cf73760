#include "kernels/cuda/gemm_cublas.h"

/* A tile of the weight: as many rows as fit into so many bytes, a multiple of TILE_STEP so that
 * cuBLAS's own tiles are full, and no more than TILE_ROWS, which bound the product's memory. */
static const size_t tile_bytes = (size_t)32 << 20;

enum { TILE_STEP = 64, TILE_ROWS = 4096, ALIGNMENT = 256 };

/* One call's use of the scratch memory. */
struct gemm_run {
	const struct kn_cuda_gemm *gemm;
	const struct kn_cuda_weight *weight;
	const struct kn_matmul_arguments *a;
	cudaStream_t stream;
	enum kn_cuda_float type; /* of activations and weights */
	uint32_t first, count;   /* rows of x */
	uint8_t *x, *tile;
	float *unscale, *product;
};

static size_t aligned(size_t bytes)
{
	return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static size_t element_bytes(enum kn_cuda_float type)
{
	return type == KN_CUDA_F32 ? 4 : 2;
}

static uint32_t tile_rows(uint32_t columns, enum kn_cuda_float type)
{
	size_t rows = tile_bytes / (columns * element_bytes(type)) / TILE_STEP * TILE_STEP;

	return rows < TILE_STEP ? TILE_STEP : rows > TILE_ROWS ? TILE_ROWS : (uint32_t)rows;
}

static size_t largest_tile(uint32_t max_columns)
{
	size_t wide = (size_t)max_columns * TILE_STEP * element_bytes(KN_CUDA_F32);

	return wide > tile_bytes ? wide : tile_bytes;
}

size_t kn_cuda_gemm_scratch_bytes(uint32_t max_rows, uint32_t max_columns)
{
	return aligned((size_t)max_rows * max_columns * sizeof(float)) +
	       aligned((size_t)max_rows * sizeof(float)) + aligned(largest_tile(max_columns)) +
	       aligned((size_t)max_rows * TILE_ROWS * sizeof(float));
}

static void lay_out(struct gemm_run *run)
{
	uint32_t rows = run->gemm->max_rows, columns = run->gemm->max_columns;
	uint8_t *at = run->gemm->scratch;

	run->x = at;
	at += aligned((size_t)rows * columns * sizeof(float));
	run->unscale = (float *)(void *)at;
	at += aligned((size_t)rows * sizeof(float));
	run->tile = at;
	at += aligned(largest_tile(columns));
	run->product = (float *)(void *)at;
}

static enum kv_status check(cudaError_t error, const char *what)
{
	if (error == cudaSuccess) return KV_OK;
	return kv_fail(KV_INTERNAL, "%s: %s", what, cudaGetErrorString(error));
}

static enum kv_status check_cublas(cublasStatus_t status, const char *what)
{
	if (status == CUBLAS_STATUS_SUCCESS) return KV_OK;
	return kv_fail(
	    KV_INTERNAL, "%s: cuBLAS error %d, %s", what, (int)status, cublasGetStatusString(status));
}

static enum kv_status prepare_handle(const struct gemm_run *run)
{
	const struct kn_cuda_gemm *gemm = run->gemm;
	cublasHandle_t handle = gemm->handle;

	KV_TRY(check_cublas(cublasSetStream(handle, run->stream), "cublasSetStream"));
	if (gemm->workspace != NULL)
		KV_TRY(check_cublas(cublasSetWorkspace(handle, gemm->workspace, gemm->workspace_bytes),
		    "cublasSetWorkspace"));
	return check_cublas(cublasSetMathMode(handle,
	                        run->type == KN_CUDA_F32 ? CUBLAS_PEDANTIC_MATH : CUBLAS_DEFAULT_MATH),
	    "cublasSetMathMode");
}

static enum kv_status pack(const struct gemm_run *run)
{
	const float *x = run->a->x + run->a->x_stride * run->first;
	uint32_t columns = run->weight->columns;

	if (run->type == KN_CUDA_F32)
		return check(kn_cuda_gemm_pack_f32(x, run->a->x_stride, (float *)(void *)run->x, run->count,
		                 columns, run->stream),
		    "matmul: packing activations");
	return check(kn_cuda_gemm_pack_f16(
	                 x, run->a->x_stride, run->x, run->unscale, run->count, columns, run->stream),
	    "matmul: packing activations");
}

/* Rows first … first + rows of a part, as the GEMM takes them: the part's own or dequantised. */
static enum kv_status tile_of(const struct gemm_run *run, const struct kn_cuda_weight_part *part,
    uint32_t first, uint32_t rows, const void **tile)
{
	uint32_t columns = run->weight->columns;

	if (part->type == (run->type == KN_CUDA_F32 ? KN_F32 : KN_F16)) {
		*tile = part->data + (size_t)first * columns * element_bytes(run->type);
		return KV_OK;
	}
	*tile = run->tile;
	return check(kn_cuda_dequantise(part, columns, first, rows, run->type, run->tile, run->stream),
	    "matmul: dequantising weights");
}

/* cuBLAS counts columns first: its product[count][rows] is the transpose of the tile, read as
 * [rows][columns] there, times x. */
static enum kv_status multiply(const struct gemm_run *run, const void *tile, uint32_t rows)
{
	static const float one = 1.0f, zero = 0.0f;
	cublasHandle_t handle = run->gemm->handle;
	int m = (int)rows, n = (int)run->count, k = (int)run->weight->columns;

	if (run->type == KN_CUDA_F32)
		return check_cublas(cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &one, tile, k,
		                        (const float *)(const void *)run->x, k, &zero, run->product, m),
		    "cublasSgemm");
	return check_cublas(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &one, tile,
	                        CUDA_R_16F, k, run->x, CUDA_R_16F, k, &zero, run->product, CUDA_R_32F,
	                        m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
	    "cublasGemmEx");
}

static enum kv_status finish(const struct gemm_run *run, uint32_t first_row, uint32_t rows)
{
	const struct kn_matmul_arguments *a = run->a;
	struct kn_cuda_gemm_finish_arguments f = {
	    .product = run->product,
	    .unscale = run->type == KN_CUDA_F32 ? NULL : run->unscale,
	    .bias = a->bias,
	    .add = a->add ? a->add + a->y_stride * run->first : NULL,
	    .y = a->y + a->y_stride * run->first,
	    .y_stride = a->y_stride,
	    .first_row = first_row,
	    .rows = rows,
	    .count = run->count,
	};

	return check(kn_cuda_gemm_finish(&f, run->stream), "matmul: bias and residual");
}

static enum kv_status multiply_rows(const struct gemm_run *run)
{
	uint32_t step = tile_rows(run->weight->columns, run->type);

	KV_TRY(pack(run));
	for (uint32_t i = 0; i < run->weight->part_count; i++) {
		const struct kn_cuda_weight_part *part = &run->weight->parts[i];

		for (uint32_t first = 0; first < part->rows; first += step) {
			uint32_t rows = part->rows - first < step ? part->rows - first : step;
			const void *tile;

			KV_TRY(tile_of(run, part, first, rows, &tile));
			KV_TRY(multiply(run, tile, rows));
			KV_TRY(finish(run, part->first_row + first, rows));
		}
	}
	return KV_OK;
}

enum kv_status kn_cuda_gemm(const struct kn_cuda_gemm *gemm, const struct kn_cuda_weight *weight,
    const struct kn_matmul_arguments *a, cudaStream_t stream)
{
	struct gemm_run run = {
	    .gemm = gemm,
	    .weight = weight,
	    .a = a,
	    .stream = stream,
	    .type = weight->precision == KN_PRECISION_FP32 ? KN_CUDA_F32 : KN_CUDA_F16,
	};

	if (a->count == 0) return KV_OK;
	if (weight->columns > gemm->max_columns)
		return kv_fail(KV_INVALID, "matmul of %u columns: the backend was opened for %u",
		    weight->columns, gemm->max_columns);
	lay_out(&run);
	KV_TRY(prepare_handle(&run));
	for (; run.first < a->count; run.first += run.count) {
		uint32_t left = a->count - run.first;

		run.count = left < gemm->max_rows ? left : gemm->max_rows;
		KV_TRY(multiply_rows(&run));
	}
	return KV_OK;
}
