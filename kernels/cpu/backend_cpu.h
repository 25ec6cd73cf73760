/* What the files of the CPU backend share. Private to kernels/cpu and tests/kernels.
 *
 * Each op NAME has kn_cpu_NAME in NAME.c: it checks its arguments, cuts the work into tasks for the
 * pool, and calls the inner loop for backend->level: the plain C one beside it, or the one in
 * NAME_avx2.c or NAME_avx512.c.
 */
#ifndef KN_CPU_BACKEND_CPU_H
#define KN_CPU_BACKEND_CPU_H

#include "kernels/backend.h"
#include "kernels/cpu/pool.h"

struct kn_weight_chunk;
struct kn_rotate_cache;

/* Scratch memory of each pool thread, enough for every op. */
enum { KN_CPU_SCRATCH_BYTES = 4 << 20 };

struct kn_backend {
	struct kv_allocator *allocator;
	struct kn_pool *pool;
	enum kn_cpu_level level; /* resolved, never AUTO */
	uint32_t max_rows, max_columns;
	void *matmul_scratch; /* quantised activations of one matmul; owned by matmul.c */
	struct kn_weight_chunk *weight_chunks; /* memory of packed weights; owned by weight.c */
	struct kn_rotate_cache *rotate_cache;  /* owned by rotate.c */
	void *attend_scratch; /* blocks and partial results; owned by attend_sparse.c */
	char description[96];
};

/* Memory that matmul and rotate keep in the backend: made at open, freed at close (NULL allowed).
 */
enum kv_status kn_matmul_scratch_create(struct kn_backend *backend);
void kn_matmul_scratch_destroy(struct kn_backend *backend);
enum kv_status kn_rotate_cache_create(struct kn_backend *backend);
void kn_rotate_cache_destroy(struct kn_backend *backend);

/* KV_OK for a type that the cpu backend has; the sentence starts with `op`. */
enum kv_status kn_cpu_check_kv_type(const char *op, enum kn_kv_type type);

/* The best level that this machine and build have. */
enum kn_cpu_level kn_cpu_best_level(void);

#define KN_CPU_DECLARE(op, arguments)                                                              \
	enum kv_status kn_cpu_##op(                                                                    \
	    struct kn_backend *backend, struct kn_stream *stream, const struct arguments *a);
KN_BACKEND_OPS(KN_CPU_DECLARE)
#undef KN_CPU_DECLARE

#endif
