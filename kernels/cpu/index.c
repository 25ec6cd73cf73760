/* Indexing: deterministic cosine k-means of one segment and KV head a task, as op_arguments.h
 * defines it. What that leaves open is fixed here, for every backend to follow:
 *
 * - means and centroids are sums divided by the count; |centroid'| is the square root of a chain of
 *   fused multiply-adds; a centroid' or key of norm 0 has cosine 0;
 * - after each assignment the empty clusters, in ascending order, each take the key with the lowest
 *   cosine (the lowest position on a tie) among the clusters that still have two or more keys. As
 *   clusters ≤ n there always is one, so no cluster ends empty;
 * - changes are counted after that, against the assignment of the iteration before; the first
 *   iteration changes everything;
 * - the storing order takes the cosines of the last assignment, from before keys were moved.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attend_plain.h"
#include "kernels/cpu/backend_cpu.h"
#include "kernels/cpu/index_common.h"
#include "kernels/cpu/order_key.h"

enum { RADIX_BITS = 11, RADIX = 1 << RADIX_BITS };

struct work {
	const struct kn_index_arguments *a;
	const struct kn_index_level *level;
	struct kn_pool *pool;
};

/* The arrays of one job, in the thread's scratch memory. */
struct arrays {
	float *tile, *mean, *norms;
	float *sums, *centroids;     /* [clusters][head_dim] */
	float *cosines;              /* [n] */
	uint32_t *labels, *previous; /* [n] */
	uint32_t *counts;            /* [clusters] */
	uint32_t *histogram;         /* [RADIX] */
};

/* Hand out `count` four-byte elements on a whole cache line. */
static void *carve(size_t *at, uint8_t *scratch, size_t count)
{
	void *block = scratch != NULL ? scratch + *at : NULL;
	*at += (count * 4 + 63) & ~(size_t)63;
	return block;
}

/* Returns the bytes that the arrays take; sets them when there is a scratch. */
static size_t place(
    uint8_t *scratch, uint32_t n, uint32_t clusters, uint32_t head_dim, struct arrays *s)
{
	size_t at = 0, matrix = (size_t)clusters * head_dim;
	s->tile = carve(&at, scratch, (size_t)head_dim * KN_INDEX_TILE_KEYS);
	s->mean = carve(&at, scratch, head_dim);
	s->norms = carve(&at, scratch, clusters);
	s->sums = carve(&at, scratch, matrix);
	s->centroids = carve(&at, scratch, matrix);
	s->cosines = carve(&at, scratch, n);
	s->labels = carve(&at, scratch, n);
	s->previous = carve(&at, scratch, n);
	s->counts = carve(&at, scratch, clusters);
	s->histogram = carve(&at, scratch, RADIX);
	return at;
}

/* What every backend takes fits: two matrices, two words a cluster of at least KN_HEAD_DIM_STEP
 * channels, three words a row, and a cache line's rest of each array. */
_Static_assert(4 * (2 * (size_t)KN_MAX_INDEX_CHANNELS +
                       2 * (KN_MAX_INDEX_CHANNELS / KN_HEAD_DIM_STEP) + 3 * KN_MAX_INDEX_ROWS +
                       KN_MAX_HEAD_DIM * (KN_INDEX_TILE_KEYS + 1) + RADIX) +
                       64 * 10 <=
                   KN_CPU_SCRATCH_BYTES,
    "the scratch memory of a thread is too small for the index");

/* The norms of centroids that already have the mean taken off. */
static void take_norms(const struct arrays *s, uint32_t clusters, uint32_t head_dim)
{
	for (uint32_t c = 0; c < clusters; c++) {
		const float *centroid = s->centroids + (size_t)c * head_dim;
		float square = 0.0f;
		for (uint32_t d = 0; d < head_dim; d++)
			square = fmaf(centroid[d], centroid[d], square);
		float norm = sqrtf(square);
		s->norms[c] = norm == 0.0f ? 1.0f : norm;
	}
}

static void start(const struct kn_index_job *job, const struct kn_index_rows *rows,
    const struct kn_index_level *level, int center, const struct arrays *s)
{
	uint32_t head_dim = rows->head_dim;
	memset(s->mean, 0, head_dim * sizeof *s->mean);
	if (center) {
		level->sum(rows, 0, NULL, s->mean);
		for (uint32_t d = 0; d < head_dim; d++)
			s->mean[d] /= (float)job->n;
	}
	for (uint32_t c = 0; c < job->clusters; c++) {
		float *centroid = s->centroids + (size_t)c * head_dim;
		size_t key = (size_t)((uint64_t)c * job->n / job->clusters);
		kn_widen_plain(job->rows + key * job->row_stride, rows->type, centroid, head_dim);
		for (uint32_t d = 0; d < head_dim; d++)
			centroid[d] -= s->mean[d];
	}
	take_norms(s, job->clusters, head_dim);
}

static uint32_t worst_key(const struct kn_index_job *job, const struct arrays *s)
{
	uint32_t worst = UINT32_MAX, worst_order = 0;
	for (uint32_t i = 0; i < job->n; i++) {
		uint32_t key = kn_falling_key(s->cosines[i]);
		if (s->counts[s->labels[i]] < 2 || (worst != UINT32_MAX && key <= worst_order)) continue;
		worst = i;
		worst_order = key;
	}
	return worst;
}

static void fill_empty(const struct kn_index_job *job, const struct arrays *s)
{
	memset(s->counts, 0, job->clusters * sizeof *s->counts);
	for (uint32_t i = 0; i < job->n; i++)
		s->counts[s->labels[i]]++;
	for (uint32_t c = 0; c < job->clusters; c++) {
		if (s->counts[c] != 0) continue;
		uint32_t key = worst_key(job, s);
		s->counts[s->labels[key]]--;
		s->labels[key] = c;
		s->counts[c] = 1;
	}
}

/* The means of the members, in sums. */
static void average(const struct kn_index_rows *rows, const struct kn_index_level *level,
    size_t offset, uint32_t clusters, const struct arrays *s)
{
	size_t matrix = (size_t)clusters * rows->head_dim;
	memset(s->sums, 0, matrix * sizeof *s->sums);
	level->sum(rows, offset, s->labels, s->sums);
	for (uint32_t c = 0; c < clusters; c++) {
		float *sum = s->sums + (size_t)c * rows->head_dim, count = (float)s->counts[c];
		for (uint32_t d = 0; d < rows->head_dim; d++)
			sum[d] /= count;
	}
}

static void move_centroids(
    const struct kn_index_job *job, uint32_t head_dim, const struct arrays *s)
{
	for (uint32_t c = 0; c < job->clusters; c++)
		for (uint32_t d = 0; d < head_dim; d++)
			s->centroids[(size_t)c * head_dim + d] = s->sums[(size_t)c * head_dim + d] - s->mean[d];
	take_norms(s, job->clusters, head_dim);
}

/* One stable counting pass over 11 bits of the keys; `from` NULL means ascending positions. */
static void radix_pass(
    const struct arrays *s, const uint32_t *from, uint32_t *to, uint32_t n, uint32_t shift)
{
	memset(s->histogram, 0, RADIX * sizeof *s->histogram);
	for (uint32_t i = 0; i < n; i++)
		s->histogram[(kn_falling_key(s->cosines[i]) >> shift) % RADIX]++;
	uint32_t sum = 0;
	for (uint32_t i = 0; i < RADIX; i++) {
		uint32_t count = s->histogram[i];
		s->histogram[i] = sum;
		sum += count;
	}
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = from != NULL ? from[i] : i;
		to[s->histogram[(kn_falling_key(s->cosines[at]) >> shift) % RADIX]++] = at;
	}
}

/* By cluster, then falling cosine, then ascending position: stable passes from the last key on. */
static void sort_rows(const struct kn_index_job *job, const struct arrays *s)
{
	radix_pass(s, NULL, job->order, job->n, 0);
	radix_pass(s, job->order, s->previous, job->n, RADIX_BITS);
	radix_pass(s, s->previous, job->order, job->n, 2 * RADIX_BITS);
	memcpy(s->previous, job->order, job->n * sizeof *job->order);
	uint32_t sum = 0;
	for (uint32_t c = 0; c < job->clusters; c++) {
		uint32_t count = s->counts[c];
		job->sizes[c] = count;
		s->counts[c] = sum;
		sum += count;
	}
	for (uint32_t i = 0; i < job->n; i++) {
		uint32_t row = s->previous[i];
		job->order[s->counts[s->labels[row]]++] = row;
	}
}

static void publish(const struct arrays *s, uint16_t *out, size_t count)
{
	for (size_t i = 0; i < count; i++)
		out[i] = kn_half_from_float(s->sums[i]);
}

/* Under 1 % of the labels changed. */
static int settled(const struct arrays *s, uint32_t n)
{
	uint32_t changed = 0;
	for (uint32_t i = 0; i < n; i++)
		changed += s->labels[i] != s->previous[i];
	return (uint64_t)changed * 100 < n;
}

static void index_task(void *context, uint32_t task, uint32_t thread)
{
	const struct work *w = context;
	const struct kn_index_job *job = &w->a->jobs[task];
	uint32_t head_dim = w->a->head_dim;
	struct arrays s;
	place(kn_pool_scratch(w->pool, thread), job->n, job->clusters, head_dim, &s);
	struct kn_index_rows rows = {.rows = job->rows,
	    .stride = job->row_stride,
	    .n = job->n,
	    .head_dim = head_dim,
	    .type = w->a->kv_type};
	struct kn_index_pass pass = {.mean = s.mean,
	    .centroids = s.centroids,
	    .norms = s.norms,
	    .clusters = job->clusters,
	    .tile = s.tile,
	    .labels = s.labels,
	    .cosines = s.cosines};
	size_t matrix = (size_t)job->clusters * head_dim;
	start(job, &rows, w->level, w->a->center, &s);
	for (uint32_t round = 0; round < w->a->iterations; round++) {
		w->level->assign(&rows, &pass);
		fill_empty(job, &s);
		if (round + 1 == w->a->iterations) break;
		if (round != 0 && settled(&s, job->n)) break;
		average(&rows, w->level, 0, job->clusters, &s);
		move_centroids(job, head_dim, &s);
		memcpy(s.previous, s.labels, job->n * sizeof *s.labels);
	}
	average(&rows, w->level, 0, job->clusters, &s);
	publish(&s, job->centroids, matrix);
	average(&rows, w->level, kn_kv_row_bytes(rows.type, head_dim) / 2, job->clusters, &s);
	publish(&s, job->value_means, matrix);
	sort_rows(job, &s);
}

static enum kv_status check(const struct kn_backend *backend, const struct kn_index_arguments *a)
{
	if (a->head_dim == 0 || a->head_dim > KN_MAX_HEAD_DIM || a->head_dim % 8 != 0 ||
	    a->iterations == 0)
		return kv_fail(KV_INVALID,
		    "index: head_dim %u, %u iterations; use a multiple of 8 up to %d, and at least one",
		    a->head_dim, a->iterations, KN_MAX_HEAD_DIM);
	if (a->job_count != 0 && a->jobs == NULL)
		return kv_fail(KV_INVALID, "index: %u jobs but no list of them", a->job_count);
	/* Sums in order are one of those that either kind may give. */
	if ((unsigned)a->update > KN_INDEX_PAPER)
		return kv_fail(KV_INVALID, "index: update %d is unknown", (int)a->update);
	KV_TRY(kn_cpu_check_kv_type("index", a->kv_type));
	for (uint32_t i = 0; i < a->job_count; i++) {
		const struct kn_index_job *job = &a->jobs[i];
		if (job->clusters == 0 || job->clusters > job->n ||
		    job->row_stride < kn_kv_row_bytes(a->kv_type, a->head_dim))
			return kv_fail(KV_INVALID,
			    "index: job %u has %u clusters for %u rows, %zu bytes apart; use 1 to n clusters",
			    i, job->clusters, job->n, job->row_stride);
		if (job->rows == NULL || job->order == NULL || job->sizes == NULL ||
		    job->centroids == NULL || job->value_means == NULL)
			return kv_fail(KV_INVALID, "index: job %u lacks an array", i);
		struct arrays s;
		size_t needed = place(NULL, job->n, job->clusters, a->head_dim, &s);
		if (needed > kn_pool_scratch_bytes(backend->pool))
			return kv_fail(KV_LIMIT,
			    "index: job %u (%u rows, %u clusters of %u channels) needs %zu bytes of scratch "
			    "memory, a thread has %zu; use shorter segments or fewer clusters",
			    i, job->n, job->clusters, a->head_dim, needed,
			    kn_pool_scratch_bytes(backend->pool));
	}
	return KV_OK;
}

static const struct kn_index_level *index_level(enum kn_cpu_level level)
{
#if KN_CPU_VECTORS
	if (level == KN_CPU_AVX512) return &kn_index_avx512;
	if (level == KN_CPU_AVX2) return &kn_index_avx2;
#endif
	(void)level;
	return &kn_index_plain;
}

enum kv_status kn_cpu_index(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_index_arguments *a)
{
	(void)stream;
	KV_TRY(check(backend, a));
	struct work w = {.a = a, .level = index_level(backend->level), .pool = backend->pool};
	if (a->job_count != 0) kn_pool_run(backend->pool, index_task, &w, a->job_count);
	return KV_OK;
}

static void assign_plain(const struct kn_index_rows *rows, const struct kn_index_pass *pass)
{
	float x[KN_MAX_HEAD_DIM];
	for (uint32_t i = 0; i < rows->n; i++) {
		kn_widen_plain(rows->rows + i * rows->stride, rows->type, x, rows->head_dim);
		float square = 0.0f, best = -INFINITY;
		uint32_t label = 0;
		for (uint32_t d = 0; d < rows->head_dim; d++) {
			x[d] -= pass->mean[d];
			square = fmaf(x[d], x[d], square);
		}
		for (uint32_t c = 0; c < pass->clusters; c++) {
			const float *centroid = pass->centroids + (size_t)c * rows->head_dim;
			float dot = 0.0f;
			for (uint32_t d = 0; d < rows->head_dim; d++)
				dot = fmaf(x[d], centroid[d], dot);
			dot /= pass->norms[c];
			if (dot > best) {
				best = dot;
				label = c;
			}
		}
		float norm = sqrtf(square);
		pass->labels[i] = label;
		pass->cosines[i] = best / (norm == 0.0f ? 1.0f : norm);
	}
}

static void sum_plain(
    const struct kn_index_rows *rows, size_t offset, const uint32_t *labels, float *sums)
{
	float x[KN_MAX_HEAD_DIM];
	for (uint32_t i = 0; i < rows->n; i++) {
		kn_widen_plain(rows->rows + i * rows->stride + offset, rows->type, x, rows->head_dim);
		float *sum = sums + (labels != NULL ? (size_t)labels[i] * rows->head_dim : 0);
		for (uint32_t d = 0; d < rows->head_dim; d++)
			sum[d] += x[d];
	}
}

const struct kn_index_level kn_index_plain = {assign_plain, sum_plain};
