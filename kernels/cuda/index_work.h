/* The kernels of the index operation one by one, and the memory that they share. kn_cuda_index
 * queues them; tests call them alone. Private to kernels/cuda and its tests.
 *
 * For each job there is a slab of scratch memory, laid out by the bounds. A round is assign →
 * order_members → update; once a job's state says done, further rounds leave it as it is.
 */
#ifndef KN_CUDA_INDEX_WORK_H
#define KN_CUDA_INDEX_WORK_H

#include <cuda_runtime_api.h>

#include "kernels/op_arguments.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kn_index_work {
	const struct kn_index_job *jobs; /* as the device sees them */
	uint8_t *scratch;
	uint32_t job_count;
	uint32_t rows, clusters, head_dim; /* bounds of n and clusters; head_dim itself */
	uint32_t iterations;
	enum kn_kv_type kv_type;
	int center;
};

struct kn_index_state {
	uint32_t changed; /* labels that differ from those of the round before */
	uint32_t done;    /* 1: labels, members and starts are the last ones */
};

/* Arrays of one job. A label is a row's cluster. */
struct kn_index_arrays {
	struct kn_index_state *state;
	float *mean;        /* [head_dim]; zeros without centring */
	float *norms;       /* [clusters], 1 for 0 */
	float *centroids;   /* [clusters][head_dim], less the mean */
	float *cosines;     /* [n] */
	uint32_t *labels;   /* [n] */
	uint32_t *previous; /* [n]: labels of the round before */
	uint32_t *members;  /* [n]: rows by label, then position */
	uint32_t *starts;   /* [clusters + 1]: of each cluster's members */
	uint32_t *counts;   /* [clusters]: rows by label, from assign to order_members; else 0 */
	unsigned long long *keeper; /* [clusters]: while clusters are refilled */
	uint32_t *sorted;           /* [n]: rows by cosine, while they are needed */
	uint32_t *spare;            /* [n]: between two passes of a sort */
};

#ifdef __CUDACC__
#define KN_INDEX_BOTH static __host__ __device__ inline
#else
#define KN_INDEX_BOTH static inline
#endif

KN_INDEX_BOTH uint8_t *kn_index_carve(uint8_t *scratch, size_t *at, size_t bytes)
{
	uint8_t *block = scratch + *at;

	*at += (bytes + 63) & ~(size_t)63;
	return block;
}

/* Set the arrays of the slab at `scratch` and return its bytes. */
KN_INDEX_BOTH size_t kn_index_place(
    uint8_t *scratch, size_t rows, size_t clusters, size_t head_dim, struct kn_index_arrays *s)
{
	size_t at = 0;

	s->state = (struct kn_index_state *)kn_index_carve(scratch, &at, sizeof *s->state);
	s->keeper = (unsigned long long *)kn_index_carve(scratch, &at, clusters * sizeof *s->keeper);
	s->mean = (float *)kn_index_carve(scratch, &at, head_dim * 4);
	s->norms = (float *)kn_index_carve(scratch, &at, clusters * 4);
	s->starts = (uint32_t *)kn_index_carve(scratch, &at, (clusters + 1) * 4);
	s->counts = (uint32_t *)kn_index_carve(scratch, &at, clusters * 4);
	s->centroids = (float *)kn_index_carve(scratch, &at, clusters * head_dim * 4);
	s->cosines = (float *)kn_index_carve(scratch, &at, rows * 4);
	s->labels = (uint32_t *)kn_index_carve(scratch, &at, rows * 4);
	s->previous = (uint32_t *)kn_index_carve(scratch, &at, rows * 4);
	s->members = (uint32_t *)kn_index_carve(scratch, &at, rows * 4);
	s->sorted = (uint32_t *)kn_index_carve(scratch, &at, rows * 4);
	s->spare = (uint32_t *)kn_index_carve(scratch, &at, rows * 4);
	return at;
}

/* Bytes of each job's slab. */
KN_INDEX_BOTH size_t kn_index_job_bytes(const struct kn_index_work *w)
{
	struct kn_index_arrays s;

	return kn_index_place(w->scratch, w->rows, w->clusters, w->head_dim, &s);
}

/* The arrays of job `job`. */
KN_INDEX_BOTH struct kn_index_arrays kn_index_arrays_of(const struct kn_index_work *w, uint32_t job)
{
	struct kn_index_arrays s;

	kn_index_place(w->scratch + job * kn_index_job_bytes(w), w->rows, w->clusters, w->head_dim, &s);
	return s;
}

/* Mean, first centroids and norms, state and counts. */
cudaError_t kn_cuda_start_index(const struct kn_index_work *w, cudaStream_t stream);

/* labels, cosines, previous, counts; adds to state.changed. In round 0 every label is changed. */
cudaError_t kn_cuda_assign_keys(const struct kn_index_work *w, uint32_t round, cudaStream_t stream);

/* Empty clusters take the worst rows; members and starts; state.done; counts and state.changed are
 * 0 again. */
cudaError_t kn_cuda_order_members(
    const struct kn_index_work *w, uint32_t round, cudaStream_t stream);

/* centroids and norms from members and starts, bits as on the CPU. */
cudaError_t kn_cuda_update_centroids(const struct kn_index_work *w, cudaStream_t stream);

/* The same from labels, by the paper's kernel with 16 or 32 partitions: sums in any order. */
cudaError_t kn_cuda_update_centroids_paper(
    const struct kn_index_work *w, uint32_t partitions, cudaStream_t stream);

/* The job's centroids and value_means. */
cudaError_t kn_cuda_publish_means(const struct kn_index_work *w, cudaStream_t stream);

/* The job's sizes and order; members become that order. */
cudaError_t kn_cuda_order_rows(const struct kn_index_work *w, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
