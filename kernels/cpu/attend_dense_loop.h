/* Inner loops of prefill attention, for the vectors of the file that includes it, which says how
 * many of them the lanes are (VECTORS). Both products keep 6 × VECTORS sums in registers, so that a
 * fused multiply-add needs less than half a load. */
#include <math.h>

enum { LANES = VEC * VECTORS, TILE = 6 };

static void widen(const uint8_t *row, enum kn_kv_type type, uint32_t head_dim, float *k, float *v)
{
	int f32 = type == KN_KV_F32;
	for (uint32_t d = 0; d < head_dim; d += 8) {
		v_store_part(k + d, 8, v_row_8(row, d, f32));
		v_store_part(v + d, 8, v_row_8(row, head_dim + d, f32));
	}
}

/* Scores of `keys` keys from key `first` on; the maxima go down with them. */
V_INLINE void scores_of(const struct kn_dense_tile *t, uint32_t first, uint32_t keys, vec *max)
{
	vec sums[TILE][VECTORS];
	const float *k = t->k + (size_t)first * t->head_dim, *q = t->q;
	for (uint32_t i = 0; i < keys; i++)
		for (uint32_t j = 0; j < VECTORS; j++)
			sums[i][j] = v_zero();
	for (uint32_t d = 0; d < t->head_dim; d++, q += LANES) {
		vec lanes[VECTORS];
		for (uint32_t j = 0; j < VECTORS; j++)
			lanes[j] = v_load(q + VEC * j);
		for (uint32_t i = 0; i < keys; i++) {
			vec x = v_set(k[(size_t)i * t->head_dim + d]);
			for (uint32_t j = 0; j < VECTORS; j++)
				sums[i][j] = v_fma(x, lanes[j], sums[i][j]);
		}
	}
	for (uint32_t i = 0; i < keys; i++) {
		veci token = vi_set(t->first + (int32_t)(first + i));
		for (uint32_t j = 0; j < VECTORS; j++) {
			if (t->masked)
				sums[i][j] = v_select(
				    vi_less(token, vi_loadu(t->visible + VEC * j)), sums[i][j], v_set(-INFINITY));
			max[j] = v_max(sums[i][j], max[j]);
			v_store(t->weights + (size_t)(first + i) * LANES + VEC * j, sums[i][j]);
		}
	}
}

static void scores_6(const struct kn_dense_tile *t, uint32_t first, vec *max)
{
	scores_of(t, first, 6, max);
}

static void scores_4(const struct kn_dense_tile *t, uint32_t first, vec *max)
{
	scores_of(t, first, 4, max);
}

static void scores_1(const struct kn_dense_tile *t, uint32_t first, vec *max)
{
	scores_of(t, first, 1, max);
}

/* Weights from scores; returns in `factor` what earlier sums are to be scaled by. */
static void softmax(const struct kn_dense_tile *t, const vec *max, vec *factor)
{
	vec base[VECTORS], sum[VECTORS];
	for (uint32_t j = 0; j < VECTORS; j++) {
		base[j] = v_select(v_equal(max[j], v_set(-INFINITY)), v_zero(), max[j]);
		factor[j] = v_exp2(v_sub(v_loadu(t->max + VEC * j), base[j]));
		v_storeu(t->max + VEC * j, max[j]);
		sum[j] = v_mul(v_loadu(t->sum + VEC * j), factor[j]);
	}
	for (uint32_t i = 0; i < t->keys; i++) {
		float *w = t->weights + (size_t)i * LANES;
		for (uint32_t j = 0; j < VECTORS; j++) {
			vec e = v_exp2(v_sub(v_load(w + VEC * j), base[j]));
			v_store(w + VEC * j, e);
			sum[j] = v_add(sum[j], e);
		}
	}
	for (uint32_t j = 0; j < VECTORS; j++)
		v_storeu(t->sum + VEC * j, sum[j]);
}

/* `channels` channels from channel `first` on. */
V_INLINE void values_of(
    const struct kn_dense_tile *t, uint32_t first, uint32_t channels, const vec *factor)
{
	vec sums[TILE][VECTORS];
	float *out = t->out + (size_t)first * LANES;
	const float *v = t->v + first, *w = t->weights;
	for (uint32_t i = 0; i < channels; i++)
		for (uint32_t j = 0; j < VECTORS; j++)
			sums[i][j] = v_mul(v_load(out + (size_t)i * LANES + VEC * j), factor[j]);
	for (uint32_t key = 0; key < t->keys; key++, w += LANES, v += t->head_dim) {
		vec lanes[VECTORS];
		for (uint32_t j = 0; j < VECTORS; j++)
			lanes[j] = v_load(w + VEC * j);
		for (uint32_t i = 0; i < channels; i++) {
			vec x = v_set(v[i]);
			for (uint32_t j = 0; j < VECTORS; j++)
				sums[i][j] = v_fma(x, lanes[j], sums[i][j]);
		}
	}
	for (uint32_t i = 0; i < channels; i++)
		for (uint32_t j = 0; j < VECTORS; j++)
			v_store(out + (size_t)i * LANES + VEC * j, sums[i][j]);
}

static void values_6(const struct kn_dense_tile *t, uint32_t first, const vec *factor)
{
	values_of(t, first, 6, factor);
}

static void values_4(const struct kn_dense_tile *t, uint32_t first, const vec *factor)
{
	values_of(t, first, 4, factor);
}

static void values_2(const struct kn_dense_tile *t, uint32_t first, const vec *factor)
{
	values_of(t, first, 2, factor);
}

static void block(const struct kn_dense_tile *t)
{
	vec max[VECTORS], factor[VECTORS];
	for (uint32_t j = 0; j < VECTORS; j++)
		max[j] = v_loadu(t->max + VEC * j);
	uint32_t i = 0;
	for (; i + 6 <= t->keys; i += 6)
		scores_6(t, i, max);
	if (i + 4 <= t->keys) {
		scores_4(t, i, max);
		i += 4;
	}
	for (; i < t->keys; i++)
		scores_1(t, i, max);
	softmax(t, max, factor);
	uint32_t d = 0;
	for (; d + 6 <= t->head_dim; d += 6)
		values_6(t, d, factor);
	if (d + 4 <= t->head_dim) {
		values_4(t, d, factor);
		d += 4;
	}
	if (d < t->head_dim) values_2(t, d, factor);
}
