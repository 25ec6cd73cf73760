/* Operations: arguments are checked here, descriptors sent ahead, kernels launched. This file has
 * those that are no attention and no clustering. */
#include <string.h>

#include "kernels/cuda/backend_cuda.h"
#include "kernels/cuda/gemm_cublas.h"
#include "kernels/cuda/launch_attention.h"
#include "kernels/cuda/launch_plain.h"

/* Products of many rows, where reading the weights once pays for making them halves. */
static enum kv_status gemm(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_matmul_arguments *a)
{
	struct kn_cuda_gemm gemm = {.handle = backend->cublas,
	    .workspace_bytes = KN_CUDA_WORKSPACE_BYTES,
	    .max_rows = backend->max_rows,
	    .max_columns = backend->max_columns};

	KV_TRY(kn_cuda_reserve(stream, &stream->workspace, KN_CUDA_WORKSPACE_BYTES));
	KV_TRY(kn_cuda_reserve(
	    stream, &stream->scratch, kn_cuda_gemm_scratch_bytes(gemm.max_rows, gemm.max_columns)));
	gemm.workspace = stream->workspace.memory;
	gemm.scratch = stream->scratch.memory;
	return kn_cuda_gemm(&gemm, &a->weight->cuda, a, stream->compute);
}

enum kv_status kn_cuda_op_matmul(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_matmul_arguments *a)
{
	enum kv_status status;

	if (a->count == 0) return KV_OK;
	if (!a->weight || !a->x || !a->y)
		return kv_fail(KV_INVALID, "matmul without weight, input or output");
	kn_cuda_range_begin("matmul");
	if (a->count <= KN_MAX_DECODE_ROWS || a->weight->cuda.columns > backend->max_columns)
		status = kn_cuda_check(kn_cuda_gemv(&a->weight->cuda, a, stream->compute), "matmul");
	else
		status = gemm(backend, stream, a);
	kn_cuda_range_end();
	return status;
}

enum kv_status kn_cuda_op_embed(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_embed_arguments *a)
{
	(void)backend;
	if (a->count == 0) return KV_OK;
	if (!a->table || !a->ids || !a->out)
		return kv_fail(KV_INVALID, "embed without table, ids or output");
	return kn_cuda_check(kn_cuda_embed(&a->table->cuda, a, stream->compute), "embed");
}

enum kv_status kn_cuda_op_rms_norm(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_rms_norm_arguments *a)
{
	(void)backend;
	if (a->count == 0) return KV_OK;
	if (!a->x || !a->weight || !a->out || a->width == 0)
		return kv_fail(KV_INVALID, "rms_norm without input, weight, output or width");
	return kn_cuda_check(kn_cuda_rms_norm(a, stream->compute), "rms_norm");
}

enum kv_status kn_cuda_op_rotate(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_rotate_arguments *a)
{
	(void)backend;
	if (a->count == 0 || a->heads == 0 || a->rotary_dim == 0) return KV_OK;
	if (!a->x || !a->positions || !a->inverse_frequency)
		return kv_fail(KV_INVALID, "rotate without input, positions or frequencies");
	if (a->rotary_dim % 2 != 0 || a->rotary_dim > a->head_dim || a->head_dim > KN_MAX_HEAD_DIM)
		return kv_fail(KV_INVALID, "rotate %u of %u channels: even and at most %d", a->rotary_dim,
		    a->head_dim, KN_MAX_HEAD_DIM);
	return kn_cuda_check(kn_cuda_rotate(a, stream->compute), "rotate");
}

enum kv_status kn_cuda_op_silu_mul(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_silu_mul_arguments *a)
{
	(void)backend;
	if (a->count == 0 || a->width == 0) return KV_OK;
	if (!a->gate || !a->up || !a->out)
		return kv_fail(KV_INVALID, "silu_mul without gate, up or output");
	return kn_cuda_check(kn_cuda_silu_mul(a, stream->compute), "silu_mul");
}

enum kv_status kn_cuda_op_store_kv(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_store_kv_arguments *a)
{
	(void)backend;
	if (a->count == 0 || a->kv_heads == 0) return KV_OK;
	if (!a->k || !a->v || !a->rows || a->head_dim == 0 || a->head_dim > KN_MAX_HEAD_DIM ||
	    a->head_dim % KN_HEAD_DIM_STEP != 0 || (unsigned)a->kv_type > KN_KV_BF16)
		return kv_fail(KV_INVALID,
		    "store_kv: head_dim %u with k, v or rows missing; use a multiple of %d up to %d",
		    a->head_dim, KN_HEAD_DIM_STEP, KN_MAX_HEAD_DIM);
	return kn_cuda_check(kn_cuda_store_kv(a, stream->compute), "store_kv");
}

enum kv_status kn_cuda_op_copy(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_copy_arguments *a)
{
	struct kn_cuda_descriptors sent;
	struct kn_copy_arguments device = *a;
	uint64_t most = 0;
	size_t bytes = a->job_count * sizeof *a->jobs;

	(void)backend;
	if (a->job_count == 0) return KV_OK;
	if (!a->jobs) return kv_fail(KV_INVALID, "copy without jobs");
	for (uint32_t i = 0; i < a->job_count; i++) {
		if (a->jobs[i].bytes > 0 && (!a->jobs[i].source || !a->jobs[i].destination))
			return kv_fail(KV_INVALID, "copy job %u has no source or destination", i);
		if (a->jobs[i].bytes > most) most = a->jobs[i].bytes;
	}
	if (most == 0) return KV_OK;
	KV_TRY(kn_cuda_describe(stream, bytes, &sent));
	memcpy(sent.host, a->jobs, bytes);
	KV_TRY(kn_cuda_send(stream, &sent));
	device.jobs = (const struct kn_copy_job *)(const void *)sent.device;
	return kn_cuda_check(kn_cuda_copy(&device, most, stream->compute), "copy");
}

enum kv_status kn_cuda_op_gather_rows(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_gather_rows_arguments *a)
{
	(void)backend;
	if (a->count == 0 || a->row_bytes == 0) return KV_OK;
	if (!a->source || !a->order || !a->destination)
		return kv_fail(
		    KV_INVALID, "gather_rows of %u rows without source, order or destination", a->count);
	return kn_cuda_check(kn_cuda_gather_rows(a, stream->compute), "gather_rows");
}
