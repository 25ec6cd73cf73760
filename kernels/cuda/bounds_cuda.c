/* What there is of a device's memory, and what operations within bounds come to take of it. */
#include "kernels/cuda/backend_cuda.h"
#include "kernels/cuda/gemm_cublas.h"
#include "kernels/cuda/launch_attention.h"
#include "kernels/cuda/launch_clusters.h"

struct kn_memory_use kn_cuda_memory_use(struct kn_backend *backend)
{
	const uint64_t *used = backend->used;

	return (struct kn_memory_use){.limit = backend->limit,
	    .weights = used[KN_CUDA_WEIGHTS],
	    .buffers = used[KN_CUDA_BUFFERS],
	    .scratch = used[KN_CUDA_SCRATCH],
	    .most = backend->most_used};
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint32_t decode_jobs(const struct kn_bounds *b)
{
	return b->decode_rows * b->kv_heads;
}

/* Of attention over all rows of a layer, and over what a selection takes. */
static uint64_t attention_bytes(const struct kn_bounds *b)
{
	const struct kn_attend_sparse_arguments a = {.job_count = decode_jobs(b),
	    .group = b->heads / b->kv_heads,
	    .head_dim = b->head_dim};
	const struct kn_cuda_attend_bounds dense = {.max_rows = b->dense_rows, .max_spans = 2};
	const struct kn_cuda_attend_bounds sparse = {.max_rows = b->sparse_rows,
	    .max_spans = b->sparse_spans,
	    .max_clusters = b->clusters};
	const struct kn_attend_dense_arguments prefill = {
	    .kv_heads = b->kv_heads, .context_spans = b->context_spans};
	uint64_t most = larger(kn_cuda_attend_sparse_scratch_bytes(&a, &dense),
	    kn_cuda_attend_dense_scratch_bytes(&prefill));

	return larger(most, kn_cuda_attend_sparse_scratch_bytes(&a, &sparse));
}

static uint64_t index_bytes(const struct kn_bounds *b)
{
	struct kn_cuda_index_bounds one = {
	    .jobs = 1, .rows = b->index_rows, .clusters = b->index_clusters, .head_dim = b->head_dim};
	uint64_t each = kn_cuda_index_scratch_bytes(&one), all = each * b->index_jobs;

	if (b->index_jobs == 0) return 0;
	return all < KN_CUDA_INDEX_SCRATCH_BYTES ? all : larger(each, KN_CUDA_INDEX_SCRATCH_BYTES);
}

/* Of the largest call's descriptors. */
static uint64_t part_bytes(const struct kn_bounds *b)
{
	uint64_t spans = (uint64_t)decode_jobs(b) * larger(b->sparse_spans, 1);
	uint64_t attend =
	    decode_jobs(b) * sizeof(struct kn_attend_job) + 64 + spans * sizeof(struct kn_span);
	uint64_t prefill = (uint64_t)b->kv_heads *
	                   (b->context_spans * sizeof(struct kn_span) + sizeof(const uint8_t *));
	uint64_t index = (uint64_t)b->index_jobs * sizeof(struct kn_index_job);
	uint64_t copies = spans * sizeof(struct kn_copy_job);
	uint64_t lookup = decode_jobs(b) * sizeof(struct kn_lookup_job);
	uint64_t most = larger(larger(attend, prefill), larger(larger(index, lookup), copies));
	uint64_t part = b->decode_rows > 0 ? KN_CUDA_STEP_PART_BYTES : KN_CUDA_FIRST_PART_BYTES;

	while (part < most)
		part *= 2;
	return part;
}

/* Of what runs on the stream, one at a time. */
static uint64_t operation_bytes(const struct kn_backend *backend, const struct kn_bounds *b)
{
	uint64_t gemm =
	    b->matmul ? kn_cuda_gemm_scratch_bytes(backend->max_rows, backend->max_columns) : 0;
	uint64_t score =
	    kn_cuda_score_scratch_bytes(decode_jobs(b), b->clusters, b->heads / b->kv_heads);

	return larger(larger(gemm, score), larger(attention_bytes(b), index_bytes(b)));
}

uint64_t kn_cuda_scratch_bytes(struct kn_backend *backend, const struct kn_bounds *bounds)
{
	uint64_t workspace = bounds->matmul ? KN_CUDA_WORKSPACE_BYTES : 0;

	return workspace + part_bytes(bounds) * KN_CUDA_RING_PARTS + operation_bytes(backend, bounds);
}

enum kv_status kn_cuda_stream_reserve(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_bounds *bounds)
{
	KV_TRY(kn_cuda_stream_wait(backend, stream));
	if (bounds->matmul)
		KV_TRY(kn_cuda_reserve(stream, &stream->workspace, KN_CUDA_WORKSPACE_BYTES));
	KV_TRY(kn_cuda_reserve_ring(stream, part_bytes(bounds)));
	return kn_cuda_reserve(stream, &stream->scratch, operation_bytes(backend, bounds));
}
