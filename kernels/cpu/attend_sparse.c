/* Decode attention: blocks of rows over the pool, merged in order.
 *
 * The list of blocks is laid out before the threads start, and whoever finishes the last block of a
 * job merges that job, so one pool run is enough. Blocks that do not fit the scratch memory go in
 * further rounds; because a job's partial results are folded into its running state one by one in
 * block order, the rounds do not show in the bits.
 */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/attend_plain.h"
#include "kernels/cpu/attend_scratch.h"
#include "kernels/cpu/backend_cpu.h"

enum {
	MAX_BLOCKS = 4096,   /* of one round */
	MAX_PORTIONS = 1024, /* jobs, or parts of jobs, of one round */
	PARTIAL_FLOATS = 4 << 20,
	STATE_HEAD = 4 * KN_MAX_GROUP /* max, sum, exact max, exact sum */
};

struct block {
	const struct kn_span *span; /* NULL: a block of the estimate */
	uint32_t first;             /* row of the span, or cluster */
	uint32_t count;
	uint32_t portion;
};

/* The part of one job that is in this round. */
struct portion {
	const struct kn_attend_job *job;
	_Atomic uint32_t open; /* blocks not finished */
	uint32_t first, count; /* blocks */
	int begins, ends;      /* it holds the job's first, last block */
};

struct kn_attend_scratch {
	struct block blocks[MAX_BLOCKS];
	struct portion portions[MAX_PORTIONS];
	uint32_t block_count, portion_count;
	const struct kn_attend_sparse_arguments *arguments;
	const struct kn_rows_level *level;
	struct kn_pool *pool;
	size_t partial_floats;
	/* State of the job that a round cuts: the round reads one and writes the other, as the portions
	 * that do so end in any order. */
	_Alignas(64) float carry[2][STATE_HEAD + KN_MAX_GROUP * KN_MAX_HEAD_DIM];
	uint32_t carry_in;
	_Alignas(64) float partials[PARTIAL_FLOATS];
};

/* What one task needs beside its partial result. */
struct thread_scratch {
	_Alignas(64) float q[KN_MAX_GROUP * KN_MAX_HEAD_DIM];
	_Alignas(64) float weights[KN_ESTIMATE_ROWS * KN_MAX_GROUP];
	_Alignas(64) float multiplier[KN_ESTIMATE_ROWS];
	const uint8_t *rows[KN_ESTIMATE_ROWS + KN_ROWS_AHEAD];
};

/* How far the layout of blocks has come. */
struct cursor {
	uint32_t job, span, offset, cluster;
	int begun; /* some of the job is in an earlier round */
};

/* How many spans a job has by now. */
static uint32_t spans_of(const struct kn_attend_job *job)
{
	if (job->spans_written == NULL || *job->spans_written > job->span_count) return job->span_count;
	return *job->spans_written;
}

enum kv_status kn_cpu_attend_scratch_create(struct kn_backend *backend)
{
	if (kn_pool_scratch_bytes(backend->pool) < sizeof(struct thread_scratch))
		return kv_fail(KV_LIMIT, "attention: %zu bytes of scratch memory a thread, %zu needed",
		    kn_pool_scratch_bytes(backend->pool), sizeof(struct thread_scratch));
	struct kn_attend_scratch *scratch = kv_alloc(backend->allocator, sizeof *scratch);
	if (scratch == NULL) return KV_NO_MEMORY;
	scratch->block_count = scratch->portion_count = 0;
	for (uint32_t i = 0; i < MAX_PORTIONS; i++)
		atomic_init(&scratch->portions[i].open, 0);
	backend->attend_scratch = scratch;
	return KV_OK;
}

void kn_cpu_attend_scratch_destroy(struct kn_backend *backend)
{
	kv_free(backend->allocator, backend->attend_scratch);
	backend->attend_scratch = NULL;
}

static float *partial_of(struct kn_attend_scratch *s, uint32_t block)
{
	return s->partials + (size_t)block * s->partial_floats;
}

/* Where the first `count` rows of a block start. */
static void list_block(
    const uint8_t **rows, const struct block *block, uint32_t count, size_t row_bytes)
{
	const struct kn_span *span = block->span;
	uint32_t offset = block->first, n = 0;
	while (n < count) {
		const uint8_t *row = span->rows + (size_t)offset * row_bytes;
		uint32_t take = span->count - offset;
		if (take > count - n) take = count - n;
		for (uint32_t i = 0; i < take; i++, row += row_bytes)
			rows[n + i] = row;
		n += take;
		offset = 0;
		span++;
	}
}

/* The rows of a task, and behind them those that this thread will most likely be at next: they are
 * fetched while the last ones are worked on, for a block that starts cold costs a microsecond. */
static void list_rows(
    struct kn_attend_scratch *s, struct thread_scratch *t, uint32_t task, size_t row_bytes)
{
	const struct block *block = &s->blocks[task];
	uint32_t next = task + kn_pool_threads(s->pool), n = block->count, ahead = 0;
	list_block(t->rows, block, n, row_bytes);
	if (next < s->block_count && s->blocks[next].span != NULL) {
		ahead = s->blocks[next].count < KN_ROWS_AHEAD ? s->blocks[next].count : KN_ROWS_AHEAD;
		list_block(t->rows + n, &s->blocks[next], ahead, row_bytes);
	}
	for (; ahead < KN_ROWS_AHEAD; ahead++)
		t->rows[n + ahead] = t->rows[n - 1];
}

static void attend_rows(struct kn_attend_scratch *s, uint32_t task, struct thread_scratch *t,
    struct kn_rows_block *rows)
{
	const struct kn_attend_sparse_arguments *a = s->arguments;
	const float *q = s->portions[s->blocks[task].portion].job->q;
	float scale = a->scale * KN_LOG2E;
	for (uint32_t i = 0; i < a->group * a->head_dim; i++)
		t->q[i] = q[i] * scale;
	size_t row_bytes = kn_kv_row_bytes(a->kv_type, a->head_dim);
	list_rows(s, t, task, row_bytes);
	rows->value_offset = row_bytes / 2;
	rows->type = a->kv_type;
	s->level->scores(rows);
	s->level->softmax(rows);
	s->level->values(rows);
}

static void attend_estimate(struct kn_attend_scratch *s, const struct block *block,
    struct thread_scratch *t, struct kn_rows_block *rows)
{
	const struct kn_attend_sparse_arguments *a = s->arguments;
	const struct kn_estimate *e = &s->portions[block->portion].job->estimate;
	const uint32_t *rest = e->rest + block->first;
	uint32_t n = block->count, chunks = (n + KN_WEIGHT_CHUNK - 1) / KN_WEIGHT_CHUNK;
	for (uint32_t i = 0; i < chunks * KN_WEIGHT_CHUNK; i++)
		t->multiplier[i] = i < n ? (float)rest[i] : 0.0f;
	for (uint32_t g = 0; g < a->group; g++) {
		const float *logits = e->logits + g * e->logits_stride + block->first;
		for (uint32_t i = 0; i < chunks * KN_WEIGHT_CHUNK; i++) {
			size_t at = ((size_t)(i / 16) * a->group + g) * 16 + i % 16;
			t->weights[at] = i < n && rest[i] != 0 ? logits[i] * KN_LOG2E : -INFINITY;
		}
	}
	const uint8_t *row = (const uint8_t *)(e->value_means + (size_t)block->first * a->head_dim);
	for (uint32_t i = 0; i < n; i++, row += (size_t)a->head_dim * 2)
		t->rows[i] = row;
	for (uint32_t i = 0; i < KN_ROWS_AHEAD; i++)
		t->rows[n + i] = t->rows[n - 1];
	rows->multiplier = t->multiplier;
	rows->type = KN_KV_F16;
	s->level->softmax(rows);
	s->level->values(rows);
}

/* Add one partial result to a running state. */
static void merge(const struct kn_attend_sparse_arguments *a, float *state, const float *partial)
{
	for (uint32_t g = 0; g < a->group; g++) {
		float *sum = state + KN_MAX_GROUP + g;
		float *out = state + STATE_HEAD + (size_t)g * a->head_dim;
		const float *from = partial + STATE_HEAD + (size_t)g * a->head_dim;
		float max = state[g] > partial[g] ? state[g] : partial[g];
		/* Nothing at all so far: -inf - -inf would be NaN. */
		float x = state[g] == max ? 1.0f : exp2f(state[g] - max);
		float y = partial[g] == max ? 1.0f : exp2f(partial[g] - max);
		state[g] = max;
		*sum = *sum * x + partial[KN_MAX_GROUP + g] * y;
		for (uint32_t d = 0; d < a->head_dim; d++)
			out[d] = out[d] * x + from[d] * y;
	}
}

static void keep_exact(float *state)
{
	memcpy(state + 2 * KN_MAX_GROUP, state, 2 * KN_MAX_GROUP * sizeof *state);
}

static void publish(
    const struct kn_attend_sparse_arguments *a, const struct kn_attend_job *job, const float *state)
{
	for (uint32_t g = 0; g < a->group; g++) {
		float sum = state[KN_MAX_GROUP + g];
		float inverse = sum > 0.0f ? 1.0f / sum : sum == 0.0f ? 0.0f : sum;
		const float *from = state + STATE_HEAD + (size_t)g * a->head_dim;
		float *out = job->out + (size_t)g * a->head_dim;
		for (uint32_t d = 0; d < a->head_dim; d++)
			out[d] = from[d] * inverse;
		if (job->exact_mass == NULL) continue;
		float exact_max = state[2 * KN_MAX_GROUP + g], exact = state[3 * KN_MAX_GROUP + g];
		exact *= exact_max == state[g] ? 1.0f : exp2f(exact_max - state[g]);
		job->exact_mass[g] = sum > 0.0f ? exact * inverse : 1.0f;
	}
}

/* The state before any block. */
static void start_state(const struct kn_attend_sparse_arguments *a, float *state)
{
	for (uint32_t g = 0; g < KN_MAX_GROUP; g++) {
		state[g] = state[2 * KN_MAX_GROUP + g] = -INFINITY;
		state[KN_MAX_GROUP + g] = state[3 * KN_MAX_GROUP + g] = 0.0f;
	}
	memset(state + STATE_HEAD, 0, (size_t)a->group * a->head_dim * sizeof *state);
}

static void finish_portion(struct kn_attend_scratch *s, struct portion *p)
{
	float *state = p->begins ? partial_of(s, p->first) : s->carry[s->carry_in];
	uint32_t i = p->first, end = p->first + p->count;
	int exact = s->blocks[i].span != NULL;
	if (p->begins) {
		if (!exact) {
			/* Only the estimate: there is no exact mass. */
			for (uint32_t g = 0; g < KN_MAX_GROUP; g++) {
				state[2 * KN_MAX_GROUP + g] = -INFINITY;
				state[3 * KN_MAX_GROUP + g] = 0.0f;
			}
		} else {
			keep_exact(state);
		}
		i++;
	}
	for (; i < end; i++) {
		merge(s->arguments, state, partial_of(s, i));
		if (s->blocks[i].span != NULL) keep_exact(state);
	}
	if (p->ends)
		publish(s->arguments, p->job, state);
	else
		memcpy(s->carry[1 - s->carry_in], state, s->partial_floats * sizeof *state);
}

static void attend_task(void *context, uint32_t task, uint32_t thread)
{
	struct kn_attend_scratch *s = context;
	const struct kn_attend_sparse_arguments *a = s->arguments;
	const struct block *block = &s->blocks[task];
	struct thread_scratch *t = kn_pool_scratch(s->pool, thread);
	float *partial = partial_of(s, task);
	struct kn_rows_block rows = {.rows = t->rows,
	    .q = t->q,
	    .weights = t->weights,
	    .max = partial,
	    .sum = partial + KN_MAX_GROUP,
	    .out = partial + STATE_HEAD,
	    .count = block->count,
	    .group = a->group,
	    .head_dim = a->head_dim};
	if (block->span != NULL)
		attend_rows(s, task, t, &rows);
	else
		attend_estimate(s, block, t, &rows);
	struct portion *p = &s->portions[block->portion];
	/* The last one sees all partial results: each decrement releases, and this one acquires. */
	if (atomic_fetch_sub_explicit(&p->open, 1, memory_order_acq_rel) == 1) finish_portion(s, p);
}

/* The next block of the job at the cursor; 0 when the job has none left. */
static int next_block(const struct kn_attend_job *job, struct cursor *c, struct block *block)
{
	uint32_t spans = spans_of(job);

	while (c->span < spans && c->offset >= job->spans[c->span].count) {
		c->span++;
		c->offset = 0;
	}
	if (c->span < spans) {
		*block = (struct block){.span = &job->spans[c->span], .first = c->offset};
		while (c->span < spans && block->count < KN_SPARSE_ROWS) {
			uint32_t left = job->spans[c->span].count - c->offset;
			uint32_t take = KN_SPARSE_ROWS - block->count;
			if (take > left) take = left;
			block->count += take;
			c->offset += take;
			if (take < left) break;
			c->span++;
			c->offset = 0;
		}
		return 1;
	}
	if (c->cluster >= job->estimate.clusters) return 0;
	uint32_t left = job->estimate.clusters - c->cluster;
	*block = (struct block){
	    .first = c->cluster, .count = left < KN_ESTIMATE_ROWS ? left : KN_ESTIMATE_ROWS};
	c->cluster += block->count;
	return 1;
}

static int job_done(const struct kn_attend_job *job, const struct cursor *c)
{
	uint32_t spans = spans_of(job);

	for (uint32_t i = c->span; i < spans; i++)
		if (job->spans[i].count > (i == c->span ? c->offset : 0)) return 0;
	return c->cluster >= job->estimate.clusters;
}

/* Lay out the blocks of one round from the cursor on. */
static void fill_round(struct kn_attend_scratch *s, struct cursor *c)
{
	const struct kn_attend_sparse_arguments *a = s->arguments;
	size_t room = PARTIAL_FLOATS / s->partial_floats;
	uint32_t max_blocks = room < MAX_BLOCKS ? (uint32_t)room : MAX_BLOCKS;
	s->block_count = s->portion_count = 0;
	while (
	    c->job < a->job_count && s->block_count < max_blocks && s->portion_count < MAX_PORTIONS) {
		const struct kn_attend_job *job = &a->jobs[c->job];
		struct portion *p = &s->portions[s->portion_count];
		p->job = job;
		p->first = s->block_count;
		p->begins = !c->begun;
		while (s->block_count < max_blocks && next_block(job, c, &s->blocks[s->block_count])) {
			s->blocks[s->block_count].portion = s->portion_count;
			s->block_count++;
		}
		p->count = s->block_count - p->first;
		p->ends = job_done(job, c);
		atomic_store_explicit(&p->open, p->count, memory_order_relaxed);
		if (p->count != 0) {
			s->portion_count++;
		} else {
			/* No block has this place yet. */
			start_state(a, partial_of(s, s->block_count));
			publish(a, job, partial_of(s, s->block_count));
		}
		c->begun = !p->ends;
		if (p->ends) *c = (struct cursor){.job = c->job + 1};
	}
}

static enum kv_status check(const struct kn_attend_sparse_arguments *a)
{
	if (a->group == 0 || a->group > KN_MAX_GROUP || a->head_dim == 0 ||
	    a->head_dim > KN_MAX_HEAD_DIM || a->head_dim % 8 != 0)
		return kv_fail(KV_INVALID,
		    "attend_sparse: group %u and head_dim %u; use 1 to %d and a multiple of 8 up to %d",
		    a->group, a->head_dim, KN_MAX_GROUP, KN_MAX_HEAD_DIM);
	if (a->job_count != 0 && a->jobs == NULL)
		return kv_fail(KV_INVALID, "attend_sparse: %u jobs but no list of them", a->job_count);
	KV_TRY(kn_cpu_check_kv_type("attend_sparse", a->kv_type));
	for (uint32_t i = 0; i < a->job_count; i++) {
		const struct kn_attend_job *job = &a->jobs[i];
		const struct kn_estimate *e = &job->estimate;
		if (job->q == NULL || job->out == NULL || (job->span_count != 0 && job->spans == NULL))
			return kv_fail(KV_INVALID, "attend_sparse: job %u lacks q, out or spans", i);
		if (e->clusters != 0 && (e->logits == NULL || e->rest == NULL || e->value_means == NULL))
			return kv_fail(KV_INVALID, "attend_sparse: job %u has an incomplete estimate", i);
	}
	return KV_OK;
}

enum kv_status kn_cpu_attend_sparse(struct kn_backend *backend, struct kn_stream *stream,
    const struct kn_attend_sparse_arguments *a)
{
	(void)stream;
	KV_TRY(check(a));
	struct kn_attend_scratch *s = backend->attend_scratch;
	s->arguments = a;
	s->level = kn_rows_level(backend->level);
	s->pool = backend->pool;
	s->carry_in = 0;
	/* Whole cache lines, so that threads do not share one. */
	s->partial_floats = STATE_HEAD + (((size_t)a->group * a->head_dim + 15) & ~(size_t)15);
	struct cursor cursor = {0};
	while (cursor.job < a->job_count) {
		fill_round(s, &cursor);
		if (s->block_count != 0) kn_pool_run(backend->pool, attend_task, s, s->block_count);
		s->carry_in = 1 - s->carry_in;
	}
	return KV_OK;
}

static void scores_plain(const struct kn_rows_block *b)
{
	float row[KN_MAX_HEAD_DIM];
	uint32_t padded = (b->count + KN_WEIGHT_CHUNK - 1) / KN_WEIGHT_CHUNK * KN_WEIGHT_CHUNK;
	for (uint32_t i = 0; i < padded; i++) {
		float *w = b->weights + (size_t)(i / 16) * b->group * 16 + i % 16;
		kn_widen_plain(b->rows[i], b->type, row, b->head_dim);
		for (uint32_t g = 0; g < b->group; g++) {
			const float *q = b->q + (size_t)g * b->head_dim;
			float sums[8] = {0};
			for (uint32_t d = 0; d < b->head_dim; d += 8)
				for (uint32_t j = 0; j < 8; j++)
					sums[j] += q[d + j] * row[d + j];
			float sum = ((sums[0] + sums[4]) + (sums[1] + sums[5])) +
			            ((sums[2] + sums[6]) + (sums[3] + sums[7]));
			w[(size_t)g * 16] = i < b->count ? sum : -INFINITY;
		}
	}
}

static void softmax_plain(const struct kn_rows_block *b)
{
	uint32_t chunks = (b->count + KN_WEIGHT_CHUNK - 1) / KN_WEIGHT_CHUNK;
	for (uint32_t g = 0; g < b->group; g++) {
		float max = -INFINITY, sum = 0.0f;
		for (uint32_t i = 0; i < chunks * 16; i++) {
			float w = b->weights[((size_t)(i / 16) * b->group + g) * 16 + i % 16];
			max = w > max ? w : max;
		}
		float base = max == -INFINITY ? 0.0f : max;
		for (uint32_t i = 0; i < chunks * 16; i++) {
			float *w = b->weights + ((size_t)(i / 16) * b->group + g) * 16 + i % 16;
			*w = kn_exp2_plain(*w - base) * (b->multiplier != NULL ? b->multiplier[i] : 1.0f);
			sum += *w;
		}
		b->max[g] = max;
		b->sum[g] = sum;
	}
}

static void values_plain(const struct kn_rows_block *b)
{
	float row[KN_MAX_HEAD_DIM];
	memset(b->out, 0, (size_t)b->group * b->head_dim * sizeof *b->out);
	for (uint32_t i = 0; i < b->count; i++) {
		const float *w = b->weights + (size_t)(i / 16) * b->group * 16 + i % 16;
		kn_widen_plain(b->rows[i] + b->value_offset, b->type, row, b->head_dim);
		for (uint32_t g = 0; g < b->group; g++) {
			float *out = b->out + (size_t)g * b->head_dim, weight = w[(size_t)g * 16];
			for (uint32_t d = 0; d < b->head_dim; d++)
				out[d] += weight * row[d];
		}
	}
}

const struct kn_rows_level kn_rows_plain = {scores_plain, softmax_plain, values_plain};

const struct kn_rows_level *kn_rows_level(enum kn_cpu_level level)
{
#if KN_CPU_VECTORS
	if (level == KN_CPU_AVX512) return &kn_rows_avx512;
	if (level == KN_CPU_AVX2) return &kn_rows_avx2;
#endif
	(void)level;
	return &kn_rows_plain;
}
