/* Inner loops of decode attention, for the vectors of the file that includes it. The query heads of
 * a group share every load of a row; the number of heads is a constant in each copy of a loop, so
 * that sums stay in registers. */
#include <math.h>

/* As many of n heads as go into one pass. */
#define FEW(n) ((n) < V_HEADS ? (n) : V_HEADS)

/* Into the second-level cache, which bears many more misses at once than the first. */
V_INLINE void prefetch_row(const uint8_t *row, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 64)
		_mm_prefetch((const char *)row + i, _MM_HINT_T1);
}

/* Dot products of two rows with `heads` queries, folded into one register for each head. */
V_INLINE void dot_pair(const uint8_t *const *rows, const float *q, vec *folded, uint32_t heads,
    uint32_t head_dim, int f32)
{
	vec a[V_HEADS], b[V_HEADS];
	for (uint32_t g = 0; g < heads; g++)
		a[g] = b[g] = v_zero();
	uint32_t d = 0;
	for (; d + VEC <= head_dim; d += VEC) {
		vec k = v_row(rows[0], d, f32), l = v_row(rows[1], d, f32);
		for (uint32_t g = 0; g < heads; g++) {
			vec x = v_loadu(q + g * head_dim + d);
			a[g] = v_fma(k, x, a[g]);
			b[g] = v_fma(l, x, b[g]);
		}
	}
	if (d < head_dim) {
		vec k = v_row_8(rows[0], d, f32), l = v_row_8(rows[1], d, f32);
		for (uint32_t g = 0; g < heads; g++) {
			vec x = v_load_part(q + g * head_dim + d, 8, v_zero());
			a[g] = v_fma(k, x, a[g]);
			b[g] = v_fma(l, x, b[g]);
		}
	}
	for (uint32_t g = 0; g < heads; g++)
		folded[g] = v_fold_2(a[g], b[g]);
}

/* `heads` query heads from head `first` on. Rows behind the last one are read, for they are in the
 * list, and then masked. */
V_INLINE void scores_of(
    const struct kn_rows_block *b, uint32_t first, uint32_t heads, uint32_t head_dim, int f32)
{
	_Alignas(64) float sums[V_HEADS * VEC / 4 * VEC];
	const float *q = b->q + (size_t)first * head_dim;
	size_t bytes = (size_t)head_dim * (f32 ? 4 : 2) + b->value_offset;
	uint32_t padded = (b->count + KN_WEIGHT_CHUNK - 1) / KN_WEIGHT_CHUNK * KN_WEIGHT_CHUNK;
	for (uint32_t i = 0; i < padded; i += VEC) {
		for (uint32_t t = 0; t < VEC; t += 4) {
			const uint8_t *const *rows = b->rows + i + t;
			vec low[V_HEADS], high[V_HEADS];
			for (uint32_t j = 0; first == 0 && j < 4; j++)
				prefetch_row(rows[j + KN_ROWS_AHEAD - KN_WEIGHT_CHUNK], bytes);
			dot_pair(rows, q, low, heads, head_dim, f32);
			dot_pair(rows + 2, q, high, heads, head_dim, f32);
			for (uint32_t g = 0; g < heads; g++)
				v_store(sums + ((size_t)g * VEC + t) / 4 * VEC, v_fold_4(low[g], high[g]));
		}
		uint32_t left = i < b->count ? b->count - i : 0;
		float *to = b->weights + ((size_t)(i / 16) * b->group + first) * 16 + i % 16;
		for (uint32_t g = 0; g < heads; g++) {
			v_store(to + (size_t)g * 16, v_set(-INFINITY));
			v_store_part(to + (size_t)g * 16, left, v_fold_all(sums + (size_t)g * VEC / 4 * VEC));
		}
	}
}

V_INLINE void scores_group(const struct kn_rows_block *b, uint32_t head_dim, int f32)
{
	for (uint32_t first = 0; first < b->group; first += V_HEADS) {
		switch (b->group - first) {
		case 1:
			scores_of(b, first, 1, head_dim, f32);
			break;
		case 2:
			scores_of(b, first, 2, head_dim, f32);
			break;
		case 3:
			scores_of(b, first, 3, head_dim, f32);
			break;
		case 4:
			scores_of(b, first, 4, head_dim, f32);
			break;
		case 5:
			scores_of(b, first, FEW(5), head_dim, f32);
			break;
		case 6:
			scores_of(b, first, FEW(6), head_dim, f32);
			break;
		case 7:
			scores_of(b, first, FEW(7), head_dim, f32);
			break;
		default:
			scores_of(b, first, FEW(8), head_dim, f32);
			break;
		}
	}
}

static void scores(const struct kn_rows_block *b)
{
	if (b->type == KN_KV_F32)
		scores_group(b, b->head_dim, 1);
	else if (b->head_dim == 64)
		scores_group(b, 64, 0);
	else if (b->head_dim == 128)
		scores_group(b, 128, 0);
	else
		scores_group(b, b->head_dim, 0);
}

static void softmax(const struct kn_rows_block *b)
{
	uint32_t padded = (b->count + KN_WEIGHT_CHUNK - 1) / KN_WEIGHT_CHUNK * KN_WEIGHT_CHUNK;
	for (uint32_t g = 0; g < b->group; g++) {
		float *weights = b->weights + (size_t)g * 16;
		vec most = v_set(-INFINITY), sum = v_zero();
		for (uint32_t i = 0; i < padded; i += VEC)
			most = v_max(v_load(weights + (size_t)(i / 16) * b->group * 16 + i % 16), most);
		float max = v_most(most);
		vec base = v_set(max == -INFINITY ? 0.0f : max);
		for (uint32_t i = 0; i < padded; i += VEC) {
			float *w = weights + (size_t)(i / 16) * b->group * 16 + i % 16;
			vec e = v_exp2(v_sub(v_load(w), base));
			if (b->multiplier != NULL) e = v_mul(e, v_load(b->multiplier + i));
			v_store(w, e);
			sum = v_add(sum, e);
		}
		b->max[g] = max;
		b->sum[g] = v_sum(sum);
	}
}

/* `columns` registers of channels from channel `d` on (of 8 channels when `eight`), of `heads`
 * heads from head `first` on. */
V_INLINE void values_of(const struct kn_rows_block *b, uint32_t first, uint32_t heads, uint32_t d,
    uint32_t columns, int eight, int f32)
{
	vec sums[V_HEADS][4];
	for (uint32_t g = 0; g < heads; g++)
		for (uint32_t j = 0; j < columns; j++)
			sums[g][j] = v_zero();
	for (uint32_t i = 0; i < b->count; i++) {
		const uint8_t *row = b->rows[i] + b->value_offset;
		const float *w = b->weights + ((size_t)(i / 16) * b->group + first) * 16 + i % 16;
		vec v[4];
		for (uint32_t j = 0; j < columns; j++)
			v[j] = eight ? v_row_8(row, d, f32) : v_row(row, d + VEC * j, f32);
		for (uint32_t g = 0; g < heads; g++) {
			vec weight = v_set(w[(size_t)g * 16]);
			for (uint32_t j = 0; j < columns; j++)
				sums[g][j] = v_fma(weight, v[j], sums[g][j]);
		}
	}
	for (uint32_t g = 0; g < heads; g++)
		for (uint32_t j = 0; j < columns; j++)
			v_store_part(b->out + (size_t)(first + g) * b->head_dim + d + VEC * j, eight ? 8 : VEC,
			    sums[g][j]);
}

/* All channels of a few heads, as many at a time as there are registers for. */
V_INLINE void values_heads(const struct kn_rows_block *b, uint32_t first, uint32_t heads, int f32)
{
	uint32_t d = 0, wide = heads * 4 <= V_SUMS ? 4 : heads * 2 <= V_SUMS ? 2 : 1;
	for (; d + VEC * wide <= b->head_dim; d += VEC * wide)
		values_of(b, first, heads, d, wide, 0, f32);
	for (; d + VEC <= b->head_dim; d += VEC)
		values_of(b, first, heads, d, 1, 0, f32);
	if (d < b->head_dim) values_of(b, first, heads, d, 1, 1, f32);
}

V_INLINE void values_group(const struct kn_rows_block *b, int f32)
{
	for (uint32_t first = 0; first < b->group; first += V_HEADS) {
		switch (b->group - first) {
		case 1:
			values_heads(b, first, 1, f32);
			break;
		case 2:
			values_heads(b, first, 2, f32);
			break;
		case 3:
			values_heads(b, first, 3, f32);
			break;
		case 4:
			values_heads(b, first, 4, f32);
			break;
		case 5:
			values_heads(b, first, FEW(5), f32);
			break;
		case 6:
			values_heads(b, first, FEW(6), f32);
			break;
		case 7:
			values_heads(b, first, FEW(7), f32);
			break;
		default:
			values_heads(b, first, FEW(8), f32);
			break;
		}
	}
}

static void values(const struct kn_rows_block *b)
{
	if (b->type == KN_KV_F32)
		values_group(b, 1);
	else
		values_group(b, 0);
}
