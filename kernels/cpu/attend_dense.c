/* Prefill attention: flash attention on the transposed problem.
 *
 * Each task has some queries of one KV head with all the query heads of its group; every (query,
 * head) is a lane. Scores are computed as [key][lane] and results as [channel][lane], so that
 * maxima and sums run down the lanes and neither K nor V has to be transposed: a block of them is
 * only widened to floats, once for all the lanes of the task. Blocks of keys are cut at fixed token
 * counts from the first context row, and each lane's sums run over its keys in order, so a lane's
 * bits depend on its own query and rows alone. Source of the method: FlashAttention (arXiv
 * 2205.14135).
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attend_plain.h"
#include "kernels/cpu/backend_cpu.h"

struct work {
	const struct kn_attend_dense_arguments *a;
	const struct kn_dense_level *level;
	struct kn_pool *pool;
	uint32_t queries; /* of one task */
	uint32_t blocks;  /* tasks for each KV head */
};

/* The rows of one KV head in order: its context spans, then its own rows. */
struct cursor {
	const struct kn_span *spans;
	uint32_t span_count, span, offset;
	const uint8_t *own;
	size_t row_bytes;
};

/* Where one task keeps its lanes; each array has a tile of lanes after the other. */
struct lanes {
	float *q, *out;   /* [tiles][head_dim][lanes] */
	float *max, *sum; /* [tiles][lanes] */
	int32_t *visible; /* [tiles][lanes] */
	float *weights;   /* [KN_DENSE_KEYS][lanes] */
	float *k, *v;     /* [KN_DENSE_KEYS][head_dim] */
	uint32_t rows, tiles;
};

static size_t scratch_floats(uint32_t lanes, uint32_t rows, uint32_t head_dim)
{
	size_t padded = (rows + lanes - 1) / lanes * (size_t)lanes;
	return padded * (2 * head_dim + 3) + (size_t)KN_DENSE_KEYS * (lanes + 2 * head_dim) + 128;
}

static const uint8_t *next_row(struct cursor *c)
{
	while (c->span < c->span_count && c->offset >= c->spans[c->span].count) {
		c->span++;
		c->offset = 0;
	}
	if (c->span < c->span_count) return c->spans[c->span].rows + c->offset++ * c->row_bytes;
	const uint8_t *row = c->own;
	c->own += c->row_bytes;
	return row;
}

static void place_lanes(const struct work *w, uint32_t rows, float *scratch, struct lanes *l)
{
	uint32_t lanes = w->level->lanes, head_dim = w->a->head_dim;
	l->rows = rows;
	l->tiles = (rows + lanes - 1) / lanes;
	size_t padded = (size_t)l->tiles * lanes;
	l->q = scratch;
	l->out = l->q + padded * head_dim;
	l->weights = l->out + padded * head_dim;
	l->max = l->weights + (size_t)KN_DENSE_KEYS * lanes;
	l->sum = l->max + padded;
	l->visible = (int32_t *)(void *)(l->sum + padded);
	l->k = l->sum + 2 * padded;
	l->v = l->k + (size_t)KN_DENSE_KEYS * head_dim;
}

/* Lane r is query first + r / group, head r % group of KV head `kv_head`. */
static void load_queries(
    const struct work *w, struct lanes *l, uint32_t kv_head, uint32_t first, uint32_t before)
{
	const struct kn_attend_dense_arguments *a = w->a;
	uint32_t lanes = w->level->lanes, group = a->heads / a->kv_heads;
	float scale = a->scale * KN_LOG2E;
	memset(l->q, 0, (size_t)l->tiles * lanes * a->head_dim * sizeof *l->q);
	memset(l->out, 0, (size_t)l->tiles * lanes * a->head_dim * sizeof *l->out);
	for (uint32_t r = 0; r < l->tiles * lanes; r++) {
		uint32_t query = first + (r < l->rows ? r : l->rows - 1) / group;
		l->visible[r] = (int32_t)(before + query + 1);
		l->max[r] = -INFINITY;
		l->sum[r] = 0.0f;
		if (r >= l->rows) continue;
		const float *from =
		    a->q + query * a->q_stride + (size_t)(kv_head * group + r % group) * a->head_dim;
		float *to = l->q + (size_t)(r / lanes) * lanes * a->head_dim + r % lanes;
		for (uint32_t d = 0; d < a->head_dim; d++)
			to[(size_t)d * lanes] = from[d] * scale;
	}
}

static void store_results(
    const struct work *w, const struct lanes *l, uint32_t kv_head, uint32_t first)
{
	const struct kn_attend_dense_arguments *a = w->a;
	uint32_t lanes = w->level->lanes, group = a->heads / a->kv_heads;
	for (uint32_t r = 0; r < l->rows; r++) {
		float *to = a->out + (first + r / group) * a->out_stride +
		            (size_t)(kv_head * group + r % group) * a->head_dim;
		const float *from = l->out + (size_t)(r / lanes) * lanes * a->head_dim + r % lanes;
		float inverse = 1.0f / l->sum[r];
		/* + 0: weights of 0 behind the last visible key may have turned -0 to 0. */
		for (uint32_t d = 0; d < a->head_dim; d++)
			to[d] = from[(size_t)d * lanes] * inverse + 0.0f;
	}
}

static void attend_block(const struct work *w, const struct lanes *l, uint32_t first, uint32_t keys)
{
	uint32_t lanes = w->level->lanes, head_dim = w->a->head_dim;
	for (uint32_t t = 0; t < l->tiles; t++) {
		size_t at = (size_t)t * lanes;
		/* Lanes are in query order: the last one sees most, the first one least. */
		uint32_t most = (uint32_t)l->visible[at + lanes - 1], least = (uint32_t)l->visible[at];
		if (most <= first) continue;
		struct kn_dense_tile tile = {.q = l->q + at * head_dim,
		    .k = l->k,
		    .v = l->v,
		    .visible = l->visible + at,
		    .max = l->max + at,
		    .sum = l->sum + at,
		    .out = l->out + at * head_dim,
		    .weights = l->weights,
		    .first = (int32_t)first,
		    .keys = most - first < keys ? most - first : keys,
		    .head_dim = head_dim,
		    .masked = least < first + keys};
		w->level->block(&tile);
	}
}

static void dense_task(void *context, uint32_t task, uint32_t thread)
{
	const struct work *w = context;
	const struct kn_attend_dense_arguments *a = w->a;
	/* The later queries have more to do, so they go first. */
	uint32_t kv_head = task % a->kv_heads, block = w->blocks - 1 - task / a->kv_heads;
	uint32_t first = block * w->queries, queries = a->count - first;
	if (queries > w->queries) queries = w->queries;
	struct cursor c = {.spans = a->context + (size_t)kv_head * a->context_spans,
	    .span_count = a->context_spans,
	    .own = a->own[kv_head],
	    .row_bytes = kn_kv_row_bytes(a->kv_type, a->head_dim)};
	uint32_t before = a->own_before;
	for (uint32_t i = 0; i < c.span_count; i++)
		before += c.spans[i].count;
	struct lanes l;
	place_lanes(w, queries * (a->heads / a->kv_heads), kn_pool_scratch(w->pool, thread), &l);
	load_queries(w, &l, kv_head, first, before);
	uint32_t end = before + first + queries;
	for (uint32_t at = 0; at < end; at += KN_DENSE_KEYS) {
		uint32_t keys = end - at < KN_DENSE_KEYS ? end - at : KN_DENSE_KEYS;
		for (uint32_t j = 0; j < keys; j++)
			w->level->widen(next_row(&c), a->kv_type, a->head_dim, l.k + (size_t)j * a->head_dim,
			    l.v + (size_t)j * a->head_dim);
		attend_block(w, &l, at, keys);
	}
	store_results(w, &l, kv_head, first);
}

static enum kv_status check(const struct kn_attend_dense_arguments *a)
{
	if (a->head_dim == 0 || a->head_dim > KN_MAX_HEAD_DIM || a->head_dim % 8 != 0 ||
	    a->kv_heads == 0 || a->heads % a->kv_heads != 0 || a->heads == 0 ||
	    a->heads / a->kv_heads > KN_MAX_GROUP)
		return kv_fail(KV_INVALID,
		    "attend_dense: %u heads over %u KV heads of %u channels; use groups of up to %d and a "
		    "multiple of 8 up to %d channels",
		    a->heads, a->kv_heads, a->head_dim, KN_MAX_GROUP, KN_MAX_HEAD_DIM);
	if (a->q == NULL || a->out == NULL || a->own == NULL ||
	    (a->context_spans != 0 && a->context == NULL))
		return kv_fail(KV_INVALID, "attend_dense: q, out, own or context is missing");
	KV_TRY(kn_cpu_check_kv_type("attend_dense", a->kv_type));
	for (uint32_t h = 0; h < a->kv_heads; h++) {
		uint64_t tokens = (uint64_t)a->own_before + a->count;
		for (uint32_t i = 0; i < a->context_spans; i++)
			tokens += a->context[(size_t)h * a->context_spans + i].count;
		if (tokens > INT32_MAX / 2)
			return kv_fail(KV_LIMIT, "attend_dense: %llu tokens of context; at most %d",
			    (unsigned long long)tokens, INT32_MAX / 2);
	}
	return KV_OK;
}

static const struct kn_dense_level *dense_level(enum kn_cpu_level level)
{
#if KN_CPU_VECTORS
	if (level == KN_CPU_AVX512) return &kn_dense_avx512;
	if (level == KN_CPU_AVX2) return &kn_dense_avx2;
#endif
	(void)level;
	return &kn_dense_plain;
}

enum kv_status kn_cpu_attend_dense(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_attend_dense_arguments *a)
{
	(void)stream;
	if (a->count == 0) return KV_OK;
	KV_TRY(check(a));
	struct work w = {.a = a, .level = dense_level(backend->level), .pool = backend->pool};
	/* Many queries share the widening of a block; their lanes should stay in the L2 cache, and
	 * every thread should get some. */
	uint32_t group = a->heads / a->kv_heads, threads = kn_pool_threads(backend->pool);
	w.queries = 128;
	while (w.queries > 16 && w.queries * group * a->head_dim > 32768)
		w.queries /= 2;
	while (w.queries > 16 && ((a->count - 1) / w.queries + 1) * a->kv_heads < 2 * threads)
		w.queries /= 2;
	size_t needed = scratch_floats(w.level->lanes, w.queries * group, a->head_dim) * sizeof(float);
	if (needed > kn_pool_scratch_bytes(backend->pool))
		return kv_fail(KV_LIMIT, "attend_dense: %zu bytes of scratch memory a thread, %zu needed",
		    kn_pool_scratch_bytes(backend->pool), needed);
	w.blocks = (a->count - 1) / w.queries + 1;
	kn_pool_run(backend->pool, dense_task, &w, w.blocks * a->kv_heads);
	return KV_OK;
}

static void widen_plain(
    const uint8_t *row, enum kn_kv_type type, uint32_t head_dim, float *k, float *v)
{
	kn_widen_plain(row, type, k, head_dim);
	kn_widen_plain(row + kn_kv_row_bytes(type, head_dim) / 2, type, v, head_dim);
}

enum { PLAIN_LANES = 16 };

static void scores_plain(const struct kn_dense_tile *t, float *max)
{
	for (uint32_t j = 0; j < t->keys; j++) {
		const float *k = t->k + (size_t)j * t->head_dim;
		float sums[PLAIN_LANES] = {0};
		for (uint32_t d = 0; d < t->head_dim; d++)
			for (uint32_t i = 0; i < PLAIN_LANES; i++)
				sums[i] += k[d] * t->q[(size_t)d * PLAIN_LANES + i];
		for (uint32_t i = 0; i < PLAIN_LANES; i++) {
			sums[i] = t->first + (int32_t)j < t->visible[i] ? sums[i] : -INFINITY;
			max[i] = sums[i] > max[i] ? sums[i] : max[i];
		}
		memcpy(t->weights + (size_t)j * PLAIN_LANES, sums, sizeof sums);
	}
}

static void block_plain(const struct kn_dense_tile *t)
{
	float max[PLAIN_LANES], factor[PLAIN_LANES], base[PLAIN_LANES];
	memcpy(max, t->max, sizeof max);
	scores_plain(t, max);
	for (uint32_t i = 0; i < PLAIN_LANES; i++) {
		base[i] = max[i] == -INFINITY ? 0.0f : max[i];
		factor[i] = kn_exp2_plain(t->max[i] - base[i]);
		t->max[i] = max[i];
		t->sum[i] *= factor[i];
	}
	for (uint32_t j = 0; j < t->keys; j++) {
		float *w = t->weights + (size_t)j * PLAIN_LANES;
		for (uint32_t i = 0; i < PLAIN_LANES; i++) {
			w[i] = kn_exp2_plain(w[i] - base[i]);
			t->sum[i] += w[i];
		}
	}
	for (uint32_t d = 0; d < t->head_dim; d++) {
		float *out = t->out + (size_t)d * PLAIN_LANES, sums[PLAIN_LANES];
		for (uint32_t i = 0; i < PLAIN_LANES; i++)
			sums[i] = out[i] * factor[i];
		for (uint32_t j = 0; j < t->keys; j++)
			for (uint32_t i = 0; i < PLAIN_LANES; i++)
				sums[i] += t->v[(size_t)j * t->head_dim + d] * t->weights[j * PLAIN_LANES + i];
		memcpy(out, sums, sizeof sums);
	}
}

const struct kn_dense_level kn_dense_plain = {PLAIN_LANES, widen_plain, block_plain};
