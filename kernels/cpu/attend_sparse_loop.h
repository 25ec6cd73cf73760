/* Inner loops of decode attention, for the vectors of the file that includes it. The query heads of
 * a group share every load of a row; the number of heads is a constant in each copy of a loop, so
 * that sums stay in registers. */
#include <math.h>

enum { MAX_HEADS = 8 };

V_INLINE void prefetch_row(const uint8_t *row, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 64)
		_mm_prefetch((const char *)row + i, _MM_HINT_T0);
}

/* Lane sums of `heads` dot products with one row, to to[head * VEC * VEC]. */
V_INLINE void dot_row(
    const uint8_t *row, const float *q, float *to, uint32_t heads, uint32_t head_dim, int f32)
{
	vec a[MAX_HEADS];
	for (uint32_t g = 0; g < heads; g++)
		a[g] = v_zero();
	uint32_t d = 0;
	for (; d + VEC <= head_dim; d += VEC) {
		vec k = v_row(row, d, f32);
		for (uint32_t g = 0; g < heads; g++)
			a[g] = v_fma(k, v_loadu(q + g * head_dim + d), a[g]);
	}
	if (d < head_dim) {
		vec k = v_row_8(row, d, f32);
		for (uint32_t g = 0; g < heads; g++)
			a[g] = v_fma(k, v_load_part(q + g * head_dim + d, 8, v_zero()), a[g]);
	}
	for (uint32_t g = 0; g < heads; g++)
		v_store(to + (size_t)g * VEC * VEC, a[g]);
}

/* `heads` query heads from head `first` on. */
V_INLINE void scores_of(
    const struct kn_rows_block *b, uint32_t first, uint32_t heads, uint32_t head_dim, int f32)
{
	_Alignas(64) float sums[MAX_HEADS * VEC * VEC];
	const float *q = b->q + (size_t)first * head_dim;
	size_t bytes = (size_t)head_dim * (f32 ? 4 : 2) + b->value_offset;
	uint32_t padded = (b->count + KN_WEIGHT_CHUNK - 1) / KN_WEIGHT_CHUNK * KN_WEIGHT_CHUNK;
	for (uint32_t i = 0; i < padded; i += VEC) {
		uint32_t n = i >= b->count ? 0 : b->count - i < VEC ? b->count - i : VEC;
		for (uint32_t t = 0; t < n; t++) {
			if (first == 0) prefetch_row(b->rows[i + t + KN_ROWS_AHEAD - 1], bytes);
			dot_row(b->rows[i + t], q, sums + t * VEC, heads, head_dim, f32);
		}
		float *to = b->weights + ((size_t)(i / 16) * b->group + first) * 16 + i % 16;
		for (uint32_t g = 0; g < heads; g++) {
			v_store(to + (size_t)g * 16, v_set(-INFINITY));
			if (n != 0) v_store_part(to + (size_t)g * 16, n, v_sums(sums + (size_t)g * VEC * VEC));
		}
	}
}

V_INLINE void scores_group(const struct kn_rows_block *b, uint32_t head_dim, int f32)
{
	for (uint32_t first = 0; first < b->group; first += MAX_HEADS) {
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
			scores_of(b, first, 5, head_dim, f32);
			break;
		case 6:
			scores_of(b, first, 6, head_dim, f32);
			break;
		case 7:
			scores_of(b, first, 7, head_dim, f32);
			break;
		default:
			scores_of(b, first, 8, head_dim, f32);
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
	vec sums[MAX_HEADS][4];
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
	for (uint32_t first = 0; first < b->group; first += MAX_HEADS) {
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
			values_heads(b, first, 5, f32);
			break;
		case 6:
			values_heads(b, first, 6, f32);
			break;
		case 7:
			values_heads(b, first, 7, f32);
			break;
		default:
			values_heads(b, first, 8, f32);
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
