/* Inner loops of indexing, for the vectors of the file that includes it. Keys are the lanes, so
 * each dot product is one chain of fused multiply-adds over ascending channels, as at every level.
 */
#include <math.h>

enum { LANES = VEC * VECTORS, TILE = 6 };

struct best {
	vec value[VECTORS];
	veci label[VECTORS];
};

/* Keys from key `first` on, less the mean, to tile[channel][key]; keys behind the last one are 0.
 */
static void load_tile(
    const struct kn_index_rows *rows, const struct kn_index_pass *pass, uint32_t first)
{
	int f32 = rows->type == KN_KV_F32;
	for (uint32_t d = 0; d < rows->head_dim; d += VEC) {
		uint32_t channels = rows->head_dim - d < VEC ? rows->head_dim - d : VEC;
		vec mean = v_load_part(pass->mean + d, channels, v_zero());
		for (uint32_t j = 0; j < LANES; j += VEC) {
			vec r[VEC];
			for (uint32_t i = 0; i < VEC; i++) {
				uint32_t key = first + j + i;
				r[i] = v_zero();
				if (key >= rows->n) continue;
				const uint8_t *row = rows->rows + key * rows->stride;
				r[i] = channels == VEC ? v_row(row, d, f32) : v_row_8(row, d, f32);
				r[i] = v_sub(r[i], mean);
			}
			v_transpose(r);
			for (uint32_t i = 0; i < channels; i++)
				v_store(pass->tile + (size_t)(d + i) * LANES + j, r[i]);
		}
	}
}

V_INLINE void compare(const struct kn_index_pass *pass, uint32_t first, uint32_t clusters,
    uint32_t head_dim, struct best *best)
{
	vec sums[TILE][VECTORS];
	const float *centroid = pass->centroids + (size_t)first * head_dim, *x = pass->tile;
	for (uint32_t i = 0; i < clusters; i++)
		for (uint32_t j = 0; j < VECTORS; j++)
			sums[i][j] = v_zero();
	for (uint32_t d = 0; d < head_dim; d++, x += LANES) {
		vec keys[VECTORS];
		for (uint32_t j = 0; j < VECTORS; j++)
			keys[j] = v_load(x + VEC * j);
		for (uint32_t i = 0; i < clusters; i++) {
			vec c = v_set(centroid[(size_t)i * head_dim + d]);
			for (uint32_t j = 0; j < VECTORS; j++)
				sums[i][j] = v_fma(c, keys[j], sums[i][j]);
		}
	}
	for (uint32_t i = 0; i < clusters; i++) {
		vec norm = v_set(pass->norms[first + i]);
		veci label = vi_set((int)(first + i));
		for (uint32_t j = 0; j < VECTORS; j++) {
			vec value = v_div(sums[i][j], norm);
			vmask better = v_greater(value, best->value[j]);
			best->value[j] = v_select(better, value, best->value[j]);
			best->label[j] = vi_select(better, label, best->label[j]);
		}
	}
}

static void compare_6(
    const struct kn_index_pass *pass, uint32_t first, uint32_t head_dim, struct best *best)
{
	compare(pass, first, 6, head_dim, best);
}

static void compare_1(
    const struct kn_index_pass *pass, uint32_t first, uint32_t head_dim, struct best *best)
{
	compare(pass, first, 1, head_dim, best);
}

static void store_best(const struct kn_index_rows *rows, const struct kn_index_pass *pass,
    uint32_t first, const struct best *best)
{
	for (uint32_t j = 0; j < VECTORS && first + VEC * j < rows->n; j++) {
		uint32_t at = first + VEC * j, left = rows->n - at;
		vec square = v_zero();
		for (uint32_t d = 0; d < rows->head_dim; d++) {
			vec x = v_load(pass->tile + (size_t)d * LANES + VEC * j);
			square = v_fma(x, x, square);
		}
		vec norm = v_sqrt(square);
		norm = v_select(v_equal(norm, v_zero()), v_set(1.0f), norm);
		v_store_part(pass->cosines + at, left, v_div(best->value[j], norm));
		vi_store_part(pass->labels + at, left, best->label[j]);
	}
}

static void assign(const struct kn_index_rows *rows, const struct kn_index_pass *pass)
{
	for (uint32_t first = 0; first < rows->n; first += LANES) {
		struct best best;
		load_tile(rows, pass, first);
		for (uint32_t j = 0; j < VECTORS; j++) {
			best.value[j] = v_set(-INFINITY);
			best.label[j] = vi_zero();
		}
		uint32_t c = 0;
		for (; c + TILE <= pass->clusters; c += TILE)
			compare_6(pass, c, rows->head_dim, &best);
		for (; c < pass->clusters; c++)
			compare_1(pass, c, rows->head_dim, &best);
		store_best(rows, pass, first, &best);
	}
}

static void sum(
    const struct kn_index_rows *rows, size_t offset, const uint32_t *labels, float *sums)
{
	int f32 = rows->type == KN_KV_F32;
	const uint8_t *row = rows->rows + offset;
	for (uint32_t i = 0; i < rows->n; i++, row += rows->stride) {
		float *to = sums + (labels != NULL ? (size_t)labels[i] * rows->head_dim : 0);
		uint32_t d = 0;
		for (; d + VEC <= rows->head_dim; d += VEC)
			v_storeu(to + d, v_add(v_loadu(to + d), v_row(row, d, f32)));
		if (d < rows->head_dim)
			v_store_part(to + d, 8, v_add(v_load_part(to + d, 8, v_zero()), v_row_8(row, d, f32)));
	}
}
