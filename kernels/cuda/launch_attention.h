/* Launchers of the attention kernels and of those that move KV rows.
 *
 * Each queues its kernels on `stream` and returns cudaGetLastError(): an error of the launch, not
 * of the run. cudaErrorInvalidValue where a bound below is broken. Argument structs are read during
 * the call; every pointer in them is memory that the device reaches and is never followed on the
 * host, descriptors (jobs, spans, context, own) included. Nothing is allocated, and what the
 * argument structs ask for is checked by the caller. No jobs or no rows launch nothing and succeed.
 *
 * KV rows that attention reads are 16-byte aligned (their size is a multiple of 32 bytes, so a span
 * is when its first row is), and so are value means; everything else has the alignment of its type.
 * All KV types of kn_kv_type; head_dim is a multiple of 8 up to 256, the group 1 to 16.
 *
 * A row's bits depend on its own inputs in order: not on neighbours, on how spans are cut, on
 * addresses, or on the bounds.
 */
#ifndef KN_CUDA_LAUNCH_ATTENTION_H
#define KN_CUDA_LAUNCH_ATTENTION_H

#include <cuda_runtime_api.h>

#include "kernels/op_arguments.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- decode attention ---- */

enum {
	KN_CUDA_PIECE_ROWS = 128,     /* rows, or clusters, of one partial result: part of the bits */
	KN_CUDA_MAX_ATTENDED = 65535, /* of one launch */
	KN_CUDA_MAX_SETS = 4,         /* of one merge */
	KN_CUDA_MAX_TOKENS = 1 << 30, /* of one job, and of a prefill's context and own rows */
	KN_CUDA_SCRATCH_ALIGN = 256   /* of scratch memory */
};

/* What no job of the launch exceeds. The device knows the true numbers: a bound sizes the grid and
 * the scratch memory, and a generous one costs blocks that end at once. What a job has beyond a
 * bound is left out. */
struct kn_cuda_attend_bounds {
	uint32_t max_rows;     /* of all spans of a job together */
	uint32_t max_spans;    /* span_count, of which spans_written may use fewer */
	uint32_t max_clusters; /* estimate.clusters */
};

/* Device memory that one launch needs for its partial results, KN_CUDA_SCRATCH_ALIGN aligned: about
 * (max_rows + max_clusters) / 128 × group × head_dim floats for each job. It is free again when
 * what the launch queued is done. */
size_t kn_cuda_attend_sparse_scratch_bytes(
    const struct kn_attend_sparse_arguments *a, const struct kn_cuda_attend_bounds *bounds);

/* kn_attend_sparse_arguments whole: kn_cuda_attend_parts, then kn_cuda_merge_attention of it. */
cudaError_t kn_cuda_attend_sparse(const struct kn_attend_sparse_arguments *a,
    const struct kn_cuda_attend_bounds *bounds, void *scratch, cudaStream_t stream);

/* Partial results only; out and exact_mass are not touched. Two kernels: a prefix sum of the span
 * lengths (one block of 256 threads a job), then (pieces of max_rows + pieces of max_clusters) ×
 * jobs blocks of 128 threads. */
cudaError_t kn_cuda_attend_parts(const struct kn_attend_sparse_arguments *a,
    const struct kn_cuda_attend_bounds *bounds, void *scratch, cudaStream_t stream);

/* The partial results of one kn_cuda_attend_parts with the same jobs, group and head_dim; its spans
 * may be others. So the clusters that are in the cache can be attended while the missing ones are
 * still copied, and be joined with those afterwards. */
struct kn_cuda_parts {
	const void *scratch;
	struct kn_cuda_attend_bounds bounds;
};

/* out and exact_mass of each job from its parts: rows of the sets in order, then estimates in
 * order. `a` names the jobs for out, exact_mass and estimate.clusters; give the estimate to one set
 * alone (estimate.clusters is that of `a` where bounds.max_clusters is not 0, and 0 elsewhere).
 * One block of 128 threads for each job and query head. */
cudaError_t kn_cuda_merge_attention(const struct kn_attend_sparse_arguments *a,
    const struct kn_cuda_parts *sets, uint32_t set_count, cudaStream_t stream);

/* ---- prefill attention ---- */

/* Prefix sums of the context spans. */
size_t kn_cuda_attend_dense_scratch_bytes(const struct kn_attend_dense_arguments *a);

/* kn_attend_dense_arguments. `context` and `own` are device-visible arrays; the span lengths need
 * not be known to the host. No sliding window: the struct has none. A prefix sum (one block a KV
 * head), then one block of 256 threads for each 64 / group queries of a KV head. */
cudaError_t kn_cuda_attend_dense(
    const struct kn_attend_dense_arguments *a, void *scratch, cudaStream_t stream);

/* ---- rows ---- */

/* kn_store_kv_arguments: the bits of the cpu backend. BF16 rounds to nearest even and saturates at
 * the largest finite value, as F16 does. One thread for eight elements. */
cudaError_t kn_cuda_store_kv(const struct kn_store_kv_arguments *a, cudaStream_t stream);

/* kn_rotate_arguments. Angles, sines and cosines in double, rounded to float, as the cpu backend:
 * the bits are its own but where the two double sines round to different floats (about 1 in 10^8).
 */
cudaError_t kn_cuda_rotate(const struct kn_rotate_arguments *a, cudaStream_t stream);

/* kn_gather_rows_arguments. Any alignment; 16 bytes a thread where pointers, strides and row_bytes
 * are multiples of 16, fewer elsewhere. `order` must lie inside the source. */
cudaError_t kn_cuda_gather_rows(const struct kn_gather_rows_arguments *a, cudaStream_t stream);

/* kn_copy_arguments: bytes of each job are at most max_bytes (what is beyond is left out). Any
 * alignment; 16 bytes a thread where source and destination are equally aligned. */
cudaError_t kn_cuda_copy(
    const struct kn_copy_arguments *a, uint64_t max_bytes, cudaStream_t stream);

/* kn_gather_extents_arguments; sources are the device addresses of mapped host memory. `blocks`
 * blocks of 256 threads, at most 65,535: 32 fill a PCIe 5 link (16 bytes a thread in flight, four
 * times over). Any alignment, 16 bytes a thread where source and destination are equally aligned.
 */
cudaError_t kn_cuda_gather_extents(
    const struct kn_gather_extents_arguments *a, uint32_t blocks, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
