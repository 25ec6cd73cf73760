#include "kernels/cpu/matmul_kernels.h"

#include <immintrin.h>
#include <string.h>

/* Unsigned codes times signed activations give sums of two products in 16 bits, which must not
 * saturate: 4-bit codes bear adding all eight registers (8 * 2 * 15 * 127 = 30,480), 5-bit ones
 * four (31,496), 6-bit ones two (32,004). 8-bit codes would not fit at all; they go as magnitudes,
 * with their signs given to the activations (2 * 128 * 127 = 32,512). */

enum { HALF_ROWS = 8 };

#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE __m256i spread(const int8_t *q)
{
	int32_t four;

	memcpy(&four, q, sizeof four);
	return _mm256_set1_epi32(four);
}

ALWAYS_INLINE __m256 load_f16(const uint8_t *p)
{
	return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)p));
}

ALWAYS_INLINE __m256i load_codes(const uint8_t *p)
{
	return _mm256_load_si256((const __m256i *)(const void *)p);
}

ALWAYS_INLINE __m256i merge(__m256i code, __m256i bits, __m256i mask)
{
	return _mm256_or_si256(code, _mm256_and_si256(bits, mask));
}

ALWAYS_INLINE void add_fifth_bits(__m256i *c, __m256i h)
{
	const __m256i mask = _mm256_set1_epi8(0x10);

	c[0] = merge(c[0], _mm256_slli_epi16(h, 4), mask);
	c[1] = merge(c[1], _mm256_slli_epi16(h, 3), mask);
	c[2] = merge(c[2], _mm256_slli_epi16(h, 2), mask);
	c[3] = merge(c[3], _mm256_slli_epi16(h, 1), mask);
	c[4] = merge(c[4], h, mask);
	c[5] = merge(c[5], _mm256_srli_epi16(h, 1), mask);
	c[6] = merge(c[6], _mm256_srli_epi16(h, 2), mask);
	c[7] = merge(c[7], _mm256_srli_epi16(h, 3), mask);
}

ALWAYS_INLINE void add_two_bits(__m256i *c, __m256i h)
{
	const __m256i mask = _mm256_set1_epi8(0x30);

	c[0] = merge(c[0], _mm256_slli_epi16(h, 4), mask);
	c[1] = merge(c[1], _mm256_slli_epi16(h, 2), mask);
	c[2] = merge(c[2], h, mask);
	c[3] = merge(c[3], _mm256_srli_epi16(h, 2), mask);
}

/* The code registers of eight rows; P8S as signed bytes. */
ALWAYS_INLINE void unpack(enum kn_tile_format format, const uint8_t *codes, __m256i *c)
{
	const __m256i low = _mm256_set1_epi8(15);

	if (format == KN_TILE_P8S) {
		for (int j = 0; j < 8; j++)
			c[j] = _mm256_xor_si256(load_codes(codes + 64 * j), _mm256_set1_epi8((char)0x80));
		return;
	}
	for (int i = 0; i < 4; i++) {
		__m256i v = load_codes(codes + 64 * i);

		c[i] = _mm256_and_si256(v, low);
		c[i + 4] = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
	}
	if (format == KN_TILE_P5S || format == KN_TILE_P5M) add_fifth_bits(c, load_codes(codes + 256));
	if (format == KN_TILE_P6S) {
		add_two_bits(c, load_codes(codes + 256));
		add_two_bits(c + 4, load_codes(codes + 320));
	}
}

ALWAYS_INLINE __m256i pairs(__m256i code, const int8_t *q)
{
	return _mm256_maddubs_epi16(code, spread(q));
}

/* The dot of columns 16 * half to 16 * half + 15. */
ALWAYS_INLINE __m256i dot_half(enum kn_tile_format format, const __m256i *c, const int8_t *q)
{
	const __m256i one = _mm256_set1_epi16(1);

	if (format == KN_TILE_P8S) {
		__m256i sum = _mm256_setzero_si256();

		for (int j = 0; j < 4; j++) {
			__m256i x = _mm256_sign_epi8(spread(q + 4 * j), c[j]);

			sum = _mm256_add_epi32(
			    sum, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(c[j]), x), one));
		}
		return sum;
	}
	__m256i a = _mm256_add_epi16(pairs(c[0], q), pairs(c[1], q + 4));
	__m256i b = _mm256_add_epi16(pairs(c[2], q + 8), pairs(c[3], q + 12));

	if (format != KN_TILE_P6S) return _mm256_madd_epi16(_mm256_add_epi16(a, b), one);
	return _mm256_add_epi32(_mm256_madd_epi16(a, one), _mm256_madd_epi16(b, one));
}

ALWAYS_INLINE int offset_shift(enum kn_tile_format format)
{
	return format == KN_TILE_P4S ? 3 : format == KN_TILE_P5S ? 4 : 5;
}

ALWAYS_INLINE __m256 add_block(enum kn_tile_format format, const __m256i *c, __m256 scale,
    __m256 second, const struct kn_panel_block *x, int n, __m256 sum)
{
	__m256i low = dot_half(format, c, x[n].q), high = dot_half(format, c + 4, x[n].q + 16);

	if (kn_tile_offset(format) != 0 && format != KN_TILE_P8S) {
		low = _mm256_add_epi32(
		    low, _mm256_slli_epi32(_mm256_set1_epi32(x[n].negative[0]), offset_shift(format)));
		high = _mm256_add_epi32(
		    high, _mm256_slli_epi32(_mm256_set1_epi32(x[n].negative[1]), offset_shift(format)));
	}
	__m256 a = _mm256_mul_ps(_mm256_cvtepi32_ps(low), _mm256_set1_ps(x[n].scale[0]));

	if (format == KN_TILE_P6S) {
		__m256 b = _mm256_mul_ps(_mm256_cvtepi32_ps(high), _mm256_set1_ps(x[n].scale[1]));

		return _mm256_fmadd_ps(b, second, _mm256_fmadd_ps(a, scale, sum));
	}
	a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(high), _mm256_set1_ps(x[n].scale[1]), a);
	sum = _mm256_fmadd_ps(a, scale, sum);
	if (!kn_tile_is_paired(format)) sum = _mm256_fmadd_ps(second, _mm256_set1_ps(x[n].sum), sum);
	return sum;
}

ALWAYS_INLINE void prefetch(const uint8_t *p, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i += 64)
		_mm_prefetch((const char *)p + KN_PREFETCH_BYTES + i, _MM_HINT_T1);
}

/* Rows 8 * half to 8 * half + 7 of the tile against rows [first, first + rows) of a panel for
 * `capacity` rows. */
ALWAYS_INLINE void run_half(enum kn_tile_format format, int half, int first, int rows,
    int capacity, const uint8_t *tile, uint32_t blocks, const struct kn_panel_block *x, float *out)
{
	const uint32_t code_bytes = kn_tile_code_bytes(format);
	const uint8_t *scales = tile;
	__m256 sum[4], second = _mm256_setzero_ps();

	for (int n = 0; n < rows; n++)
		sum[n] = _mm256_setzero_ps();
	for (uint32_t b = 0; b < blocks; b++, x += capacity) {
		__m256i c[8];
		__m256 scale;

		if (kn_tile_is_paired(format)) {
			if ((b & 1) == 0) {
				scales = tile;
				tile += 64;
			}
			scale = load_f16(scales + 32 * (b & 1) + 16 * half);
		} else {
			scale = load_f16(tile + 16 * half);
			second = load_f16(tile + 32 + 16 * half);
			tile += 64;
		}
		if (half == 0 && first == 0) prefetch(tile, code_bytes + 64);
		unpack(format, tile + 32 * half, c);
		tile += code_bytes;
		for (int n = 0; n < rows; n++)
			sum[n] = add_block(format, c, scale, second, x, first + n, sum[n]);
	}
	for (int n = 0; n < rows; n++)
		_mm256_storeu_ps(out + KN_TILE_ROWS * (first + n) + HALF_ROWS * half, sum[n]);
}

ALWAYS_INLINE void run_tile(enum kn_tile_format format, int rows, const uint8_t *tile,
    uint32_t blocks, const struct kn_panel_block *x, float *out)
{
	const int step = rows < 4 ? rows : 4;

	for (int first = 0; first < rows; first += step) {
		run_half(format, 0, first, step, rows, tile, blocks, x, out);
		run_half(format, 1, first, step, rows, tile, blocks, x, out);
	}
}

ALWAYS_INLINE void run_tile_f32(
    int rows, const float *tile, uint32_t columns, const float *x, size_t x_stride, float *out)
{
	const int step = rows < 4 ? rows : 4;

	for (int first = 0; first < rows; first += step) {
		__m256 low[4], high[4];

		for (int n = 0; n < step; n++)
			low[n] = high[n] = _mm256_setzero_ps();
		for (uint32_t k = 0; k < columns; k++) {
			__m256 a = _mm256_load_ps(tile + (size_t)KN_TILE_ROWS * k);
			__m256 b = _mm256_load_ps(tile + (size_t)KN_TILE_ROWS * k + HALF_ROWS);

			for (int n = 0; n < step; n++) {
				__m256 v = _mm256_set1_ps(x[x_stride * (size_t)(first + n) + k]);

				low[n] = _mm256_fmadd_ps(a, v, low[n]);
				high[n] = _mm256_fmadd_ps(b, v, high[n]);
			}
		}
		for (int n = 0; n < step; n++) {
			_mm256_storeu_ps(out + KN_TILE_ROWS * (first + n), low[n]);
			_mm256_storeu_ps(out + KN_TILE_ROWS * (first + n) + HALF_ROWS, high[n]);
		}
	}
}

ALWAYS_INLINE int32_t sum_lanes(__m256i v)
{
	__m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
	return _mm_cvtsi128_si32(s);
}

ALWAYS_INLINE float largest_lane(__m256 v)
{
	__m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

	s = _mm_max_ps(s, _mm_movehl_ps(s, s));
	s = _mm_max_ss(s, _mm_shuffle_ps(s, s, 1));
	return _mm_cvtss_f32(s);
}

/* Quantise 16 floats, as quantise_half of matmul_plain.c; returns the sum of scale * code. */
ALWAYS_INLINE float quantise_half(const float *x, struct kn_panel_block *block, int half)
{
	const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
	__m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8);
	float largest =
	    largest_lane(_mm256_max_ps(_mm256_and_ps(a, magnitude), _mm256_and_ps(b, magnitude)));
	float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f, scale = largest / 127.0f;
	__m256i p = _mm256_cvtps_epi32(_mm256_mul_ps(a, _mm256_set1_ps(inverse)));
	__m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(b, _mm256_set1_ps(inverse)));
	int32_t sum = sum_lanes(_mm256_add_epi32(p, q));
	/* The pack works in 128-bit lanes: put the groups of four back in order. */
	__m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(p, q), 0xd8);

	_mm_storeu_si128((__m128i *)(void *)(block->q + 16 * half),
	    _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
	block->scale[half] = scale;
	block->negative[half] = -sum;
	return scale * (float)sum;
}

ALWAYS_INLINE void quantise_block(const float *x, struct kn_panel_block *block)
{
	float low = quantise_half(x, block, 0), high = quantise_half(x + 16, block, 1);

	block->sum = low + high;
}

#define KERNELS kn_matmul_avx2
#include "kernels/cpu/matmul_table.h"
