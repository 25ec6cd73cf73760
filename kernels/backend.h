/* A compute backend: buffers, streams and one function for each operation.
 *
 * `cpu` is always there. Operations are queued on a stream in order; results may be read by the
 * host after stream_wait. The cpu backend runs each operation at once, on its thread pool, before
 * the call returns; code written for the contract works on both. Operations return KV_OK or
 * KV_INVALID for arguments outside the documented range; nothing is allocated by any of them.
 */
#ifndef KN_BACKEND_H
#define KN_BACKEND_H

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "kernels/op_arguments.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
	KN_BACKEND_ABI = 1,
	KN_MAX_DECODE_ROWS = 16,
	KN_MAX_HEAD_DIM = 256,
	KN_HEAD_DIM_STEP = 8, /* channels of a head are a multiple of it */
	KN_MAX_GROUP = 16,
	/* An index job of so many rows, whose clusters × head_dim is so much, suits every backend. */
	KN_MAX_INDEX_ROWS = 65536,
	KN_MAX_INDEX_CHANNELS = 1 << 18
};

struct kn_backend;
struct kn_stream;

enum kn_cpu_level { KN_CPU_AUTO, KN_CPU_PLAIN, KN_CPU_AVX2, KN_CPU_AVX512 };

struct kn_backend_options {
	struct kv_allocator *allocator; /* borrowed for the backend's life */
	uint32_t threads;               /* 0: one for each CPU that the process may run on */
	enum kn_cpu_level cpu_level;    /* AUTO: the best that this machine has */
	uint32_t max_rows;              /* most rows of one matmul (the prefill chunk) */
	uint32_t max_columns;           /* widest matmul input, for its scratch memory */
};

/* X(op, argument struct): the operation table, used for the struct and for the check at open. */
#define KN_BACKEND_OPS(X)                                                                          \
	X(matmul, kn_matmul_arguments)                                                                 \
	X(embed, kn_embed_arguments)                                                                   \
	X(rms_norm, kn_rms_norm_arguments)                                                             \
	X(rotate, kn_rotate_arguments)                                                                 \
	X(silu_mul, kn_silu_mul_arguments)                                                             \
	X(store_kv, kn_store_kv_arguments)                                                             \
	X(attend_dense, kn_attend_dense_arguments)                                                     \
	X(attend_sparse, kn_attend_sparse_arguments)                                                   \
	X(score, kn_score_arguments)                                                                   \
	X(select, kn_select_arguments)                                                                 \
	X(index, kn_index_arguments)                                                                   \
	X(copy, kn_copy_arguments)                                                                     \
	X(gather_rows, kn_gather_rows_arguments)

struct kn_backend_ops {
	uint32_t abi;     /* KN_BACKEND_ABI */
	const char *name; /* "cpu" */
	enum kv_status (*open)(const struct kn_backend_options *options, struct kn_backend **backend);
	void (*close)(struct kn_backend *backend);
	/* One line for people, e.g. "cpu avx512 threads=2"; borrowed for the backend's life. */
	const char *(*describe)(struct kn_backend *backend);

	/* Device memory, 64-byte aligned (2 MiB and on huge pages where large). */
	enum kv_status (*buffer_create)(struct kn_backend *backend, size_t bytes, void **buffer);
	void (*buffer_destroy)(struct kn_backend *backend, void *buffer);
	enum kv_status (*upload)(struct kn_backend *backend, struct kn_stream *stream, void *device,
	    const void *host, size_t bytes);
	enum kv_status (*download)(struct kn_backend *backend, struct kn_stream *stream, void *host,
	    const void *device, size_t bytes);
	enum kv_status (*stream_create)(struct kn_backend *backend, struct kn_stream **stream);
	void (*stream_destroy)(struct kn_backend *backend, struct kn_stream *stream);
	enum kv_status (*stream_wait)(struct kn_backend *backend, struct kn_stream *stream);

	/* Pack `part_count` matrices of `columns` columns, stacked, into the backend's own layout.
	 * KV_UNSUPPORTED for a type or shape that it cannot take. */
	enum kv_status (*weight_pack)(struct kn_backend *backend, const struct kn_weight_part *parts,
	    uint32_t part_count, uint32_t columns, enum kn_precision precision,
	    struct kn_weight **weight);
	void (*weight_destroy)(struct kn_backend *backend, struct kn_weight *weight);
	uint64_t (*weight_bytes)(const struct kn_weight *weight);

#define KN_OP_POINTER(op, arguments)                                                               \
	enum kv_status (*op)(                                                                          \
	    struct kn_backend * backend, struct kn_stream * stream, const struct arguments *a);
	KN_BACKEND_OPS(KN_OP_POINTER)
#undef KN_OP_POINTER
};

extern const struct kn_backend_ops kn_cpu_ops;

/* Check the table (ABI, no NULL) and open. `name`: "auto", "cpu" or "cuda". "cuda" where this build
 * or machine has none is KV_UNSUPPORTED with the reason; "auto" falls back to cpu with one log
 * line. */
enum kv_status kn_backend_open(const char *name, const struct kn_backend_options *options,
    const struct kn_backend_ops **ops, struct kn_backend **backend);

/* Bytes of one row of `columns` elements of a weight type; 0 when the type is unknown or the block
 * size does not divide columns. */
uint64_t kn_weight_row_bytes(enum kn_weight_type type, uint32_t columns);

/* Dequantise one row to float: the reference that everything else is tested against. */
enum kv_status kn_dequantise_row(
    enum kn_weight_type type, const void *row, float *out, uint32_t columns);

#ifdef __cplusplus
}
#endif
#endif
