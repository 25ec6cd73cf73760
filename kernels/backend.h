/* A compute backend: buffers, streams and one function for each operation.
 *
 * `cpu` is always there; others are plug-ins (struct kn_backend_entry). Operations are queued on a
 * stream in order and may run at any time until stream_wait returns; what comes after what on two
 * streams is up to stream_order alone. The cpu backend runs each at once, on its thread pool,
 * before the call returns; code written for the contract works on all. Operations return KV_OK or
 * KV_INVALID for arguments outside the documented range; nothing is allocated by any of them. What
 * goes wrong only when an operation runs is what stream_wait returns, then and ever after: the
 * stream's results are lost.
 *
 * Who may touch what:
 * - KN_DEVICE memory: operations, upload, download and fill. The host may compute addresses in it
 *   and pass them, never read or write through them.
 * - KN_SHARED memory: the same, and the host, as long as nothing that is queued and not yet waited
 *   for writes it (for reading), or uses it at all (for writing).
 * - Registered memory (memory_register): as KN_SHARED, within what `access` says.
 * - Argument structs, and the arrays in them that describe work (`jobs`, `spans`, `context`,
 *   `own`), are the host's: read during the call only (spans that lookup writes are backend
 *   memory, kn_attend_job). All that they point at is backend memory of either kind, and stays
 *   there and unchanged by the host until stream_wait.
 * - upload and download: any host memory on the host's side; it must stay, and the host may not
 *   write (upload) or touch (download) it until stream_wait.
 * - On a `unified` backend all of it is ordinary memory of the process, and every kind may be
 *   touched by the host as if it were KN_SHARED. The worker uses that to fetch straight into place.
 */
#ifndef KN_BACKEND_H
#define KN_BACKEND_H

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "kernels/op_arguments.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
	KN_BACKEND_ABI = 3,
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

/* Kinds of backend memory, see above. */
enum kn_memory {
	KN_DEVICE, /* the backend's fastest */
	KN_SHARED  /* page-locked memory of the host that operations reach, too */
};

/* Where a device cannot do all at once, it prefers what is queued on a compute stream. */
enum kn_stream_priority { KN_STREAM_COMPUTE, KN_STREAM_BACKGROUND };

/* What operations do with registered memory. */
enum kn_access { KN_READ_ONLY, KN_READ_WRITE };

enum kn_cpu_level { KN_CPU_AUTO, KN_CPU_PLAIN, KN_CPU_AVX2, KN_CPU_AVX512 };

struct kn_backend_options {
	struct kv_allocator *allocator; /* borrowed for the backend's life */
	uint32_t threads;               /* 0: one for each CPU that the process may run on */
	enum kn_cpu_level cpu_level;    /* AUTO: the best that this machine has */
	uint32_t max_rows;              /* most rows of one matmul (the prefill chunk) */
	uint32_t max_columns;           /* widest matmul input, for its scratch memory */
	const char *plugin_folder;      /* of plug-ins (plugin.h); NULL: the usual ones */
	uint64_t device_memory;         /* most bytes of a device to use; 0: what is free */
};

/* What the operations queued on one stream will not exceed, for scratch_bytes. */
struct kn_bounds {
	int matmul; /* there are any */
	uint32_t heads, kv_heads, head_dim;
	uint32_t decode_rows;                /* sequences of a decode step: jobs are rows × kv_heads */
	uint32_t dense_rows;                 /* KV rows that a query attends to where all are kept */
	uint32_t sparse_rows, sparse_spans;  /* the same of a selection, for each job */
	uint32_t clusters;                   /* of a score or attention job */
	uint32_t context_spans;              /* of prefill attention, for each KV head */
	uint32_t index_jobs;                 /* of one call; 0: nothing is clustered */
	uint32_t index_rows, index_clusters; /* of each of them */
};

/* A device's own memory, in bytes. Memory of the host (KN_SHARED, registered) is not in it. */
struct kn_memory_use {
	uint64_t limit;                     /* that may be taken in all; 0: unknown, or the host's */
	uint64_t weights, buffers, scratch; /* taken now */
	uint64_t most;                      /* most that these ever were together */
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
	X(gather_rows, kn_gather_rows_arguments)                                                       \
	X(lookup, kn_lookup_arguments)                                                                 \
	X(gather_extents, kn_gather_extents_arguments)

struct kn_backend_ops {
	uint32_t abi;     /* KN_BACKEND_ABI */
	uint32_t unified; /* 1: backend memory is ordinary memory of the process */
	uint32_t kv_types; /* 1 << enum kn_kv_type, for each that it takes */
	const char *name;  /* "cpu" */
	enum kv_status (*open)(const struct kn_backend_options *options, struct kn_backend **backend);
	void (*close)(struct kn_backend *backend);
	/* One line for people, e.g. "cpu avx512 threads=2"; borrowed for the backend's life. */
	const char *(*describe)(struct kn_backend *backend);

	/* Memory, 64-byte aligned (2 MiB and on huge pages where large); its contents are undefined.
	 * Nothing that uses it may be queued when it is destroyed. */
	enum kv_status (*buffer_create)(
	    struct kn_backend *backend, enum kn_memory kind, size_t bytes, void **buffer);
	void (*buffer_destroy)(struct kn_backend *backend, void *buffer);
	/* Page-lock memory of the host, such as the store's, so that operations reach it at its own
	 * address. KV_UNSUPPORTED: they cannot, copy it with upload. Never needed on a unified backend,
	 * where it does nothing. The same `host` goes to memory_unregister, before it is unmapped. */
	enum kv_status (*memory_register)(
	    struct kn_backend *backend, void *host, size_t bytes, enum kn_access access);
	void (*memory_unregister)(struct kn_backend *backend, void *host);
	enum kv_status (*upload)(struct kn_backend *backend, struct kn_stream *stream, void *device,
	    const void *host, size_t bytes);
	enum kv_status (*download)(struct kn_backend *backend, struct kn_stream *stream, void *host,
	    const void *device, size_t bytes);
	/* Set every byte of backend memory. */
	enum kv_status (*fill)(struct kn_backend *backend, struct kn_stream *stream, void *device,
	    uint8_t value, size_t bytes);
	/* destroy waits for what is queued. */
	enum kv_status (*stream_create)(
	    struct kn_backend *backend, enum kn_stream_priority priority, struct kn_stream **stream);
	void (*stream_destroy)(struct kn_backend *backend, struct kn_stream *stream);
	/* What is queued on `later` from now on runs after what has been queued on `earlier` until now.
	 * Neither is within a step (KV_INVALID). cpu: nothing to do. */
	enum kv_status (*stream_order)(
	    struct kn_backend *backend, struct kn_stream *earlier, struct kn_stream *later);
	enum kv_status (*stream_wait)(struct kn_backend *backend, struct kn_stream *stream);

	/* What is queued between step_begin and step_end comes again and again in nearly the same form,
	 * a decode step: the backend may put it off and start it all at once. CUDA captures it as a
	 * graph. Steps of one `shape`, a number that the caller chooses, have most in common; any may
	 * differ from those before it. All rules above hold within a step as well, and no buffer,
	 * registered memory, weight or stream comes or goes there. stream_wait is allowed: it starts
	 * what is queued so far, waits for it, and the step goes on.
	 * step_end starts the rest and does not wait. It ends each step that was begun, one that failed
	 * as well; steps of a stream do not nest (KV_INVALID). What a step that cannot be started has
	 * queued is lost: step_end or stream_wait says so, then and ever after. cpu: nothing to do. */
	enum kv_status (*step_begin)(
	    struct kn_backend *backend, struct kn_stream *stream, uint32_t shape);
	enum kv_status (*step_end)(struct kn_backend *backend, struct kn_stream *stream);

	/* Pack `part_count` matrices of `columns` columns, stacked, into the backend's own layout.
	 * KV_UNSUPPORTED for a type or shape that it cannot take. */
	enum kv_status (*weight_pack)(struct kn_backend *backend, const struct kn_weight_part *parts,
	    uint32_t part_count, uint32_t columns, enum kn_precision precision,
	    struct kn_weight **weight);
	void (*weight_destroy)(struct kn_backend *backend, struct kn_weight *weight);
	uint64_t (*weight_bytes)(const struct kn_weight *weight);

	/* What there is and what is taken: all zeros where memory is the host's. */
	struct kn_memory_use (*memory_use)(struct kn_backend *backend);
	/* What a stream takes for itself, beyond buffers and weights, on which a matmul has max_rows
	 * rows of max_columns columns (kn_backend_options) at most and other operations are within
	 * `bounds`; and have it take that now, when nothing is queued: then none of them takes any. */
	uint64_t (*scratch_bytes)(struct kn_backend *backend, const struct kn_bounds *bounds);
	enum kv_status (*stream_reserve)(
	    struct kn_backend *backend, struct kn_stream *stream, const struct kn_bounds *bounds);

#define KN_OP_POINTER(op, arguments)                                                               \
	enum kv_status (*op)(                                                                          \
	    struct kn_backend * backend, struct kn_stream * stream, const struct arguments *a);
	KN_BACKEND_OPS(KN_OP_POINTER)
#undef KN_OP_POINTER
};

extern const struct kn_backend_ops kn_cpu_ops;

/* What a program lends to a plug-in, which has no copy of its libraries: a failure described there
 * is read here. All of it may be called from any thread. */
struct kn_host_services {
	void *(*alloc)(struct kv_allocator *allocator, size_t size);
	void (*free)(struct kv_allocator *allocator, void *block);
	enum kv_status (*fail)(enum kv_status status, const char *text);
	void (*log)(enum kv_log_level level, const char *module, const char *text);
};

/* The one symbol of a plug-in, KN_BACKEND_ENTRY_SYMBOL. `abi` and `entry_bytes` are read before
 * anything else of it. */
struct kn_backend_entry {
	uint32_t abi;         /* KN_BACKEND_ABI */
	uint32_t entry_bytes; /* sizeof(struct kn_backend_entry) */
	const char *name;     /* "cuda" */
	/* Is there a device? Not KV_OK: there is none, with a sentence that says why. Called once,
	 * before anything in `ops`; `services` live as long as the process. */
	enum kv_status (*probe)(const struct kn_host_services *services);
	const struct kn_backend_ops *ops;
};
#define KN_BACKEND_ENTRY_SYMBOL "kn_backend_entry"

/* Check the table (ABI, no NULL) and open. `name`: "auto", "cpu" or "cuda". "cuda" where there is
 * no plug-in or no device is KV_UNSUPPORTED with the reason; "auto" takes cpu then, and logs a
 * line. KV_INVALID: an option or the name is wrong. */
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
