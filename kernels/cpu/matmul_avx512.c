#include "kernels/cpu/matmul_kernels.h"

#include <immintrin.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Four consecutive activations in every lane; becomes a broadcast memory operand. */
ALWAYS_INLINE __m512i spread(const int8_t *q)
{
	int32_t four;

	memcpy(&four, q, sizeof four);
	return _mm512_set1_epi32(four);
}

ALWAYS_INLINE __m512 load_f16(const uint8_t *p)
{
	return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)p));
}

ALWAYS_INLINE __m512i load_codes(const uint8_t *p)
{
	return _mm512_load_si512((const void *)p);
}

/* code | (bits & mask) */
ALWAYS_INLINE __m512i merge(__m512i code, __m512i bits, __m512i mask)
{
	return _mm512_ternarylogic_epi32(code, bits, mask, 0xf8);
}

ALWAYS_INLINE void add_fifth_bits(__m512i *c, __m512i h)
{
	const __m512i mask = _mm512_set1_epi8(0x10);

	c[0] = merge(c[0], _mm512_slli_epi16(h, 4), mask);
	c[1] = merge(c[1], _mm512_slli_epi16(h, 3), mask);
	c[2] = merge(c[2], _mm512_slli_epi16(h, 2), mask);
	c[3] = merge(c[3], _mm512_slli_epi16(h, 1), mask);
	c[4] = merge(c[4], h, mask);
	c[5] = merge(c[5], _mm512_srli_epi16(h, 1), mask);
	c[6] = merge(c[6], _mm512_srli_epi16(h, 2), mask);
	c[7] = merge(c[7], _mm512_srli_epi16(h, 3), mask);
}

ALWAYS_INLINE void add_two_bits(__m512i *c, __m512i h)
{
	const __m512i mask = _mm512_set1_epi8(0x30);

	c[0] = merge(c[0], _mm512_slli_epi16(h, 4), mask);
	c[1] = merge(c[1], _mm512_slli_epi16(h, 2), mask);
	c[2] = merge(c[2], h, mask);
	c[3] = merge(c[3], _mm512_srli_epi16(h, 2), mask);
}

/* The eight code registers of a block. */
ALWAYS_INLINE void unpack(enum kn_tile_format format, const uint8_t *codes, __m512i *c)
{
	const __m512i low = _mm512_set1_epi8(15);

	if (format == KN_TILE_P8S) {
		for (int j = 0; j < 8; j++)
			c[j] = load_codes(codes + 64 * j);
		return;
	}
	for (int i = 0; i < 4; i++) {
		__m512i v = load_codes(codes + 64 * i);

		c[i] = _mm512_and_si512(v, low);
		c[i + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
	}
	if (format == KN_TILE_P5S || format == KN_TILE_P5M) add_fifth_bits(c, load_codes(codes + 256));
	if (format == KN_TILE_P6S) {
		add_two_bits(c, load_codes(codes + 256));
		add_two_bits(c + 4, load_codes(codes + 320));
	}
}

/* The two half dots of row n: columns 0 to 15 start at `low`, 16 to 31 at `high`. */
ALWAYS_INLINE void dots(const __m512i *c, const int8_t *q, __m512i *low, __m512i *high)
{
	for (int j = 0; j < 4; j++) {
		*low = _mm512_dpbusd_epi32(*low, c[j], spread(q + 4 * j));
		*high = _mm512_dpbusd_epi32(*high, c[j + 4], spread(q + 16 + 4 * j));
	}
}

ALWAYS_INLINE int offset_shift(enum kn_tile_format format)
{
	return format == KN_TILE_P4S ? 3 : format == KN_TILE_P5S ? 4 : format == KN_TILE_P6S ? 5 : 7;
}

/* One block against row n: the new partial sum. */
ALWAYS_INLINE __m512 add_block(enum kn_tile_format format, const __m512i *c, __m512 scale,
    __m512 second, const struct kn_panel_block *x, int n, __m512 sum)
{
	__m512i low = _mm512_setzero_si512(), high = low;

	if (kn_tile_offset(format) != 0) {
		low =
		    _mm512_slli_epi32(_mm512_set1_epi32(x[n].negative[0]), (unsigned)offset_shift(format));
		high =
		    _mm512_slli_epi32(_mm512_set1_epi32(x[n].negative[1]), (unsigned)offset_shift(format));
	}
	dots(c, x[n].q, &low, &high);
	__m512 a = _mm512_mul_ps(_mm512_cvtepi32_ps(low), _mm512_set1_ps(x[n].scale[0]));

	if (format == KN_TILE_P6S) {
		__m512 b = _mm512_mul_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(x[n].scale[1]));

		return _mm512_fmadd_ps(b, second, _mm512_fmadd_ps(a, scale, sum));
	}
	a = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(x[n].scale[1]), a);
	sum = _mm512_fmadd_ps(a, scale, sum);
	if (!kn_tile_is_paired(format)) sum = _mm512_fmadd_ps(second, _mm512_set1_ps(x[n].sum), sum);
	return sum;
}

ALWAYS_INLINE void prefetch(const uint8_t *p, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i += 64)
		_mm_prefetch((const char *)p + KN_PREFETCH_BYTES + i, _MM_HINT_T1);
}

ALWAYS_INLINE void run_tile(enum kn_tile_format format, int rows, const uint8_t *tile,
    uint32_t blocks, const struct kn_panel_block *x, float *out)
{
	const uint32_t code_bytes = kn_tile_code_bytes(format);
	const uint8_t *scales = tile;
	__m512 sum[KN_PANEL_ROWS], second = _mm512_setzero_ps();

	for (int n = 0; n < rows; n++)
		sum[n] = _mm512_setzero_ps();
	for (uint32_t b = 0; b < blocks; b++, x += rows) {
		__m512i c[8];
		__m512 scale;

		if (kn_tile_is_paired(format)) {
			if ((b & 1) == 0) {
				scales = tile;
				tile += 64;
				prefetch(tile + 2 * code_bytes, 64);
			}
			scale = load_f16(scales + 32 * (b & 1));
		} else {
			scale = load_f16(tile);
			second = load_f16(tile + 32);
			prefetch(tile, 64);
			tile += 64;
		}
		prefetch(tile, code_bytes);
		unpack(format, tile, c);
		tile += code_bytes;
		for (int n = 0; n < rows; n++)
			sum[n] = add_block(format, c, scale, second, x, n, sum[n]);
	}
	for (int n = 0; n < rows; n++)
		_mm512_storeu_ps(out + KN_TILE_ROWS * n, sum[n]);
}

ALWAYS_INLINE void run_tile_f32(
    int rows, const float *tile, uint32_t columns, const float *x, size_t x_stride, float *out)
{
	__m512 sum[KN_PANEL_ROWS];

	for (int n = 0; n < rows; n++)
		sum[n] = _mm512_setzero_ps();
	for (uint32_t k = 0; k < columns; k++) {
		__m512 w = _mm512_load_ps(tile + (size_t)KN_TILE_ROWS * k);

		for (int n = 0; n < rows; n++)
			sum[n] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[x_stride * (size_t)n + k]), sum[n]);
	}
	for (int n = 0; n < rows; n++)
		_mm512_storeu_ps(out + KN_TILE_ROWS * n, sum[n]);
}

/* Quantise 16 floats, as quantise_half of matmul_plain.c; returns the sum of scale * code. */
ALWAYS_INLINE float quantise_half(const float *x, struct kn_panel_block *block, int half)
{
	__m512 v = _mm512_loadu_ps(x);
	float largest = _mm512_reduce_max_ps(_mm512_abs_ps(v));
	float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f, scale = largest / 127.0f;
	__m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(v, _mm512_set1_ps(inverse)));
	/* No number converts to the least int, whose sums would overflow; its scale says NaN. */
	q = _mm512_max_epi32(q, _mm512_set1_epi32(-127));
	int32_t sum = _mm512_reduce_add_epi32(q);

	_mm_storeu_si128((__m128i *)(void *)(block->q + 16 * half), _mm512_cvtepi32_epi8(q));
	block->scale[half] = scale;
	block->negative[half] = -sum;
	return scale * (float)sum;
}

ALWAYS_INLINE void quantise_block(const float *x, struct kn_panel_block *block)
{
	float low = quantise_half(x, block, 0), high = quantise_half(x + 16, block, 1);

	block->sum = low + high;
}

#define KERNELS kn_matmul_avx512
#include "kernels/cpu/matmul_table.h"
