/* What the files of the CUDA backend's host side share. Private to kernels/cuda.
 *
 * backend_cuda.c opens a device and has the table; memory_cuda.c buffers and transfers;
 * stream_cuda.c streams, descriptors and scratch memory; step_cuda.c steps, as graphs; ops_cuda.c
 * operations; weight_cuda.c packed weights; bounds_cuda.c what all of them take. Used by one thread
 * at a time; the device is the process's first (CUDA_VISIBLE_DEVICES).
 */
#ifndef KN_CUDA_BACKEND_CUDA_H
#define KN_CUDA_BACKEND_CUDA_H

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "kernels/backend.h"
#include "kernels/cuda/launch_plain.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What device memory is for, for the report when it ends. */
enum kn_cuda_use { KN_CUDA_WEIGHTS, KN_CUDA_BUFFERS, KN_CUDA_SCRATCH, KN_CUDA_USES };

/* Memory for cuBLAS to work in, of each stream. */
enum { KN_CUDA_WORKSPACE_BYTES = 32 << 20 };

/* Of one round of index jobs; more jobs are done in several. */
enum { KN_CUDA_INDEX_SCRATCH_BYTES = 256 << 20 };

/* A buffer, or host memory that was registered in pieces. */
struct kn_cuda_block {
	void *memory;
	size_t bytes;
	enum kn_memory kind;
	int registered;
	struct kn_cuda_block *next;
};

/* What became of steps, in all streams. */
struct kn_cuda_step_counts {
	uint64_t launched; /* pieces, each one graph */
	uint64_t updated;  /* of them by an executable of an earlier piece */
	uint64_t made;     /* executables; launched = updated + made */
};

struct kn_backend {
	struct kv_allocator *allocator;
	cublasHandle_t cublas;
	uint64_t limit;              /* bytes of device memory to use */
	uint64_t used[KN_CUDA_USES]; /* of it */
	uint64_t most_used;          /* of all uses together, ever */
	struct kn_cuda_block *blocks;
	uint32_t max_rows, max_columns;        /* of a matmul that goes to cuBLAS */
	int lowest_priority, highest_priority; /* of streams */
	int told_update;                       /* 1: the paper's was logged, 2: that it was not taken */
	int graphs_off;                        /* steps are queued as they come */
	struct kn_cuda_step_counts steps;
	char device[96]; /* its name and size, for people */
	char description[384];
};

/* Pinned memory that descriptors are written to, and where they are copied to on the device: parts
 * are used in turn, each only when the copies out of it that were queued before are done. Copies
 * that are captured are not queued yet: their event is recorded when the piece is launched. */
enum {
	KN_CUDA_RING_PARTS = 8,
	KN_CUDA_FIRST_PART_BYTES = 64 << 10,
	KN_CUDA_STEP_PART_BYTES = 256 << 10 /* for steps a ring grows to this, if it has to */
};
enum kn_cuda_part { KN_CUDA_PART_FREE, KN_CUDA_PART_QUEUED, KN_CUDA_PART_CAPTURED };
struct kn_cuda_ring {
	uint8_t *host, *device;
	size_t part_bytes, used; /* used: of the current part */
	uint32_t part;
	enum kn_cuda_part state[KN_CUDA_RING_PARTS]; /* of those before the current one */
	cudaEvent_t passed[KN_CUDA_RING_PARTS];      /* QUEUED: the last copy out of the part */
	int too_small;                               /* a piece had to end as it found no part free */
};

/* Device memory that one operation uses at a time. */
struct kn_cuda_scratch {
	void *memory;
	size_t bytes;
};

/* An executable graph that a stream keeps. */
struct kn_cuda_graph {
	cudaGraphExec_t exec; /* NULL: this place is free */
	uint32_t shape;       /* of its step */
	size_t nodes;
	uint64_t launch; /* number of its last one */
};

enum { KN_CUDA_GRAPHS = 32 };
struct kn_cuda_step {
	int open;      /* between step_begin and step_end */
	int capturing; /* what is queued on `compute` becomes part of a piece */
	int direct;    /* the rest of the step does not */
	uint32_t shape;
	size_t nodes;              /* of the last piece */
	uint64_t launched, waited; /* number of the last launch; of the last one that is done */
	struct kn_cuda_graph graphs[KN_CUDA_GRAPHS];
};

struct kn_stream {
	struct kn_backend *backend;
	cudaStream_t compute;
	cudaEvent_t reached; /* how far it was when another was last ordered after it */
	struct kn_cuda_ring ring;
	struct kn_cuda_scratch scratch, workspace;
	struct kn_cuda_step step;
	enum kv_status failed; /* what the stream ended with */
	char failure[256];
};

struct kn_weight {
	struct kn_cuda_weight cuda;
	uint64_t bytes;
	void *memory;
	struct kn_cuda_weight_part *parts; /* [cuda.part_count], behind the struct */
};

/* ---- backend_cuda.c ---- */

/* KV_OK for cudaSuccess; else a sentence with CUDA's words for it. Out of memory is KV_NO_MEMORY.
 */
enum kv_status kn_cuda_check(cudaError_t error, const char *what);

/* Stages as a profiler shows them. */
void kn_cuda_range_begin(const char *name);
void kn_cuda_range_end(void);

/* ---- memory_cuda.c ---- */

/* Device memory, 256-byte aligned, within the limit; the failure tells what the rest is used for.
 */
enum kv_status kn_cuda_take(
    struct kn_backend *backend, enum kn_cuda_use use, size_t bytes, void **memory);
void kn_cuda_give(struct kn_backend *backend, enum kn_cuda_use use, size_t bytes, void *memory);

enum kv_status kn_cuda_buffer_create(
    struct kn_backend *backend, enum kn_memory kind, size_t bytes, void **buffer);
void kn_cuda_buffer_destroy(struct kn_backend *backend, void *buffer);
enum kv_status kn_cuda_memory_register(
    struct kn_backend *backend, void *host, size_t bytes, enum kn_access access);
void kn_cuda_memory_unregister(struct kn_backend *backend, void *host);
enum kv_status kn_cuda_upload(struct kn_backend *backend, struct kn_stream *stream, void *device,
    const void *host, size_t bytes);
enum kv_status kn_cuda_download(struct kn_backend *backend, struct kn_stream *stream, void *host,
    const void *device, size_t bytes);
enum kv_status kn_cuda_fill(struct kn_backend *backend, struct kn_stream *stream, void *device,
    uint8_t value, size_t bytes);

/* ---- bounds_cuda.c ---- */

struct kn_memory_use kn_cuda_memory_use(struct kn_backend *backend);
uint64_t kn_cuda_scratch_bytes(struct kn_backend *backend, const struct kn_bounds *bounds);
enum kv_status kn_cuda_stream_reserve(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_bounds *bounds);

/* ---- stream_cuda.c ---- */

enum kv_status kn_cuda_stream_create(
    struct kn_backend *backend, enum kn_stream_priority priority, struct kn_stream **stream);
void kn_cuda_stream_destroy(struct kn_backend *backend, struct kn_stream *stream);
enum kv_status kn_cuda_stream_order(
    struct kn_backend *backend, struct kn_stream *earlier, struct kn_stream *later);
enum kv_status kn_cuda_stream_wait(struct kn_backend *backend, struct kn_stream *stream);

/* Start what is captured, wait for all that is queued; nothing is captured then until
 * kn_cuda_resume. */
enum kv_status kn_cuda_drain(struct kn_stream *stream);
/* From now on kn_cuda_drain and stream_wait fail with this. */
void kn_cuda_stream_fail(struct kn_stream *stream, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* All copies out of this part of the ring are queued. */
enum kv_status kn_cuda_part_queued(struct kn_stream *stream, uint32_t part);
/* Before a step: a larger ring, if the last one found it too small. */
enum kv_status kn_cuda_fit_ring(struct kn_stream *stream);

/* Room for `bytes` of descriptors: where the host writes them, and where the device will have them
 * after kn_cuda_send, which comes before anything else is described. Both are 64-byte aligned. */
struct kn_cuda_descriptors {
	uint8_t *host, *device;
	size_t bytes;
};
enum kv_status kn_cuda_describe(
    struct kn_stream *stream, size_t bytes, struct kn_cuda_descriptors *descriptors);
/* Parts of at least so many bytes. Nothing may be queued that reads the ring. */
enum kv_status kn_cuda_reserve_ring(struct kn_stream *stream, size_t part_bytes);
/* Queue their copy. */
enum kv_status kn_cuda_send(
    struct kn_stream *stream, const struct kn_cuda_descriptors *descriptors);

/* At least so many bytes of scratch memory for what is queued next. */
enum kv_status kn_cuda_reserve(
    struct kn_stream *stream, struct kn_cuda_scratch *scratch, size_t bytes);

/* ---- step_cuda.c ---- */

enum kv_status kn_cuda_step_begin(
    struct kn_backend *backend, struct kn_stream *stream, uint32_t shape);
enum kv_status kn_cuda_step_end(struct kn_backend *backend, struct kn_stream *stream);

/* Launch what is captured, so that calls which a capture forbids, and work that must not be in the
 * same graph, can follow: they come after it on the stream. Nothing to do where nothing is
 * captured. On failure what was captured is lost, and so is the stream. */
enum kv_status kn_cuda_pause(struct kn_stream *stream);
/* Within a step, capture again. It need not follow a pause: what is not captured is queued. */
void kn_cuda_resume(struct kn_stream *stream);
/* The host has waited within a step; was anything captured until then? */
void kn_cuda_step_waited(struct kn_stream *stream, int captured);
/* All executables. */
void kn_cuda_graphs_destroy(struct kn_stream *stream);

/* ---- weight_cuda.c ---- */

enum kv_status kn_cuda_weight_pack(struct kn_backend *backend, const struct kn_weight_part *parts,
    uint32_t part_count, uint32_t columns, enum kn_precision precision, struct kn_weight **weight);
void kn_cuda_weight_destroy(struct kn_backend *backend, struct kn_weight *weight);
uint64_t kn_cuda_weight_bytes(const struct kn_weight *weight);

/* ---- ops_cuda.c, ops_cuda_attention.c ---- */

#define KN_CUDA_DECLARE(op, arguments)                                                             \
	enum kv_status kn_cuda_op_##op(                                                                \
	    struct kn_backend *backend, struct kn_stream *stream, const struct arguments *a);
KN_BACKEND_OPS(KN_CUDA_DECLARE)
#undef KN_CUDA_DECLARE

#ifdef __cplusplus
}
#endif
#endif
