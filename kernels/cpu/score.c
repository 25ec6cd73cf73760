/* Scoring: logits of all centroids in blocks over the pool; whoever finishes the last block of a
 * job turns that job's logits into votes. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/attend_plain.h"
#include "kernels/cpu/backend_cpu.h"

enum {
	BLOCK = 256,     /* clusters of one task; each logit stands for itself, so any cut is right */
	ROUND_JOBS = 128 /* jobs of one pool run, for the counters below */
};

struct round {
	const struct kn_score_arguments *arguments;
	const struct kn_score_job *jobs;
	const struct kn_rows_level *level;
	void (*votes)(const struct kn_votes *);
	struct kn_pool *pool;
	uint32_t blocks;                   /* tasks for each job */
	_Atomic uint32_t open[ROUND_JOBS]; /* blocks of the job not finished */
};

struct thread_scratch {
	_Alignas(64) float q[KN_MAX_GROUP * KN_MAX_HEAD_DIM];
	_Alignas(64) float weights[BLOCK * KN_MAX_GROUP];
	const uint8_t *rows[BLOCK + KN_ROWS_AHEAD];
};

static uint32_t blocks_of(const struct kn_score_job *job)
{
	return job->clusters / BLOCK + (job->clusters % BLOCK != 0);
}

static void score_block(
    const struct round *r, const struct kn_score_job *job, uint32_t first, struct thread_scratch *t)
{
	uint32_t group = r->arguments->group, head_dim = r->arguments->head_dim;
	uint32_t count = job->clusters - first < BLOCK ? job->clusters - first : BLOCK;
	for (uint32_t i = 0; i < group * head_dim; i++)
		t->q[i] = job->q[i] * r->arguments->scale;
	/* The rows behind the block are prefetched too: the next block is likely to be ours. */
	for (uint32_t i = 0; i < count + KN_ROWS_AHEAD; i++) {
		uint32_t c = first + i < job->clusters ? first + i : job->clusters - 1;
		t->rows[i] = (const uint8_t *)(job->centroids + (size_t)c * head_dim);
	}
	struct kn_rows_block block = {.rows = t->rows,
	    .q = t->q,
	    .weights = t->weights,
	    .count = count,
	    .group = group,
	    .head_dim = head_dim,
	    .type = KN_KV_F16};
	r->level->scores(&block);
	for (uint32_t g = 0; g < group; g++) {
		float *logits = job->logits + g * job->logits_stride + first;
		for (uint32_t i = 0; i < count; i += KN_WEIGHT_CHUNK) {
			uint32_t n = count - i < KN_WEIGHT_CHUNK ? count - i : KN_WEIGHT_CHUNK;
			memcpy(logits + i, t->weights + (size_t)i * group + (size_t)g * KN_WEIGHT_CHUNK,
			    n * sizeof *logits);
		}
	}
}

static void score_task(void *context, uint32_t task, uint32_t thread)
{
	struct round *r = context;
	uint32_t index = task / r->blocks, block = task % r->blocks;
	const struct kn_score_job *job = &r->jobs[index];
	if (block >= blocks_of(job)) return;
	void *scratch = kn_pool_scratch(r->pool, thread);
	score_block(r, job, block * BLOCK, scratch);
	if (atomic_fetch_sub_explicit(&r->open[index], 1, memory_order_acq_rel) != 1) return;
	struct kn_votes votes = {.logits = job->logits,
	    .log_sizes = job->log_sizes,
	    .weights = scratch,
	    .votes = job->votes,
	    .stride = job->logits_stride,
	    .clusters = job->clusters,
	    .group = r->arguments->group,
	    .size_term = r->arguments->size_term};
	r->votes(&votes);
}

static enum kv_status check(const struct kn_backend *backend, const struct kn_score_arguments *a)
{
	if (a->group == 0 || a->group > KN_MAX_GROUP || a->head_dim == 0 ||
	    a->head_dim > KN_MAX_HEAD_DIM || a->head_dim % 8 != 0)
		return kv_fail(KV_INVALID,
		    "score: group %u and head_dim %u; use 1 to %d and a multiple of 8 up to %d", a->group,
		    a->head_dim, KN_MAX_GROUP, KN_MAX_HEAD_DIM);
	if (a->job_count != 0 && a->jobs == NULL)
		return kv_fail(KV_INVALID, "score: %u jobs but no list of them", a->job_count);
	size_t scratch = kn_pool_scratch_bytes(backend->pool);
	if (scratch < sizeof(struct thread_scratch))
		return kv_fail(KV_LIMIT, "score: %zu bytes of scratch memory a thread, %zu needed", scratch,
		    sizeof(struct thread_scratch));
	for (uint32_t i = 0; i < a->job_count; i++) {
		const struct kn_score_job *job = &a->jobs[i];
		if (job->clusters == 0) continue;
		if (job->q == NULL || job->centroids == NULL || job->log_sizes == NULL ||
		    job->logits == NULL || job->votes == NULL || job->logits_stride < job->clusters)
			return kv_fail(
			    KV_INVALID, "score: job %u of %u clusters lacks an array", i, job->clusters);
		if (job->clusters > scratch / sizeof(float) - KN_WEIGHT_CHUNK)
			return kv_fail(KV_LIMIT, "score: job %u has %u clusters; use larger clusters, %zu fit",
			    i, job->clusters, scratch / sizeof(float) - KN_WEIGHT_CHUNK);
	}
	return KV_OK;
}

enum kv_status kn_cpu_score(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_score_arguments *a)
{
	(void)stream;
	KV_TRY(check(backend, a));
	struct round r = {.arguments = a,
	    .level = kn_rows_level(backend->level),
	    .votes = kn_votes_level(backend->level),
	    .pool = backend->pool};
	for (uint32_t first = 0; first < a->job_count; first += ROUND_JOBS) {
		uint32_t jobs = a->job_count - first < ROUND_JOBS ? a->job_count - first : ROUND_JOBS;
		r.jobs = a->jobs + first;
		r.blocks = 0;
		for (uint32_t i = 0; i < jobs; i++) {
			uint32_t blocks = blocks_of(&r.jobs[i]);
			atomic_store_explicit(&r.open[i], blocks, memory_order_relaxed);
			if (blocks > r.blocks) r.blocks = blocks;
		}
		if (r.blocks != 0) kn_pool_run(backend->pool, score_task, &r, jobs * r.blocks);
	}
	return KV_OK;
}

void kn_votes_plain(const struct kn_votes *v)
{
	memset(v->votes, 0, v->clusters * sizeof *v->votes);
	for (uint32_t g = 0; g < v->group; g++) {
		const float *logits = v->logits + g * v->stride;
		float max = -INFINITY, sum = 0.0f;
		for (uint32_t c = 0; c < v->clusters; c++) {
			float size = v->log_sizes[c];
			float x = v->size_term || size == -INFINITY ? logits[c] + size : logits[c];
			v->weights[c] = x;
			max = x > max ? x : max;
		}
		if (max == -INFINITY) continue;
		for (uint32_t c = 0; c < v->clusters; c++) {
			v->weights[c] = kn_exp2_plain((v->weights[c] - max) * KN_LOG2E);
			sum += v->weights[c];
		}
		float inverse = 1.0f / sum;
		for (uint32_t c = 0; c < v->clusters; c++)
			v->votes[c] += v->weights[c] * inverse;
	}
}

void (*kn_votes_level(enum kn_cpu_level level))(const struct kn_votes *)
{
#if KN_CPU_VECTORS
	if (level == KN_CPU_AVX512) return kn_votes_avx512;
	if (level == KN_CPU_AVX2) return kn_votes_avx2;
#endif
	(void)level;
	return kn_votes_plain;
}
