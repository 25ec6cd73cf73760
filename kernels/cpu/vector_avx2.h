/* The vectors of AVX2 with FMA and F16C under the names that the *_loop.h files use. Private to
 * kernels/cpu. */
#ifndef KN_CPU_VECTOR_AVX2_H
#define KN_CPU_VECTOR_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/attend_common.h"

#define V_INLINE static inline __attribute__((always_inline))

enum {
	VEC = 8,
	V_SUMS = 12 /* registers for sums in an inner loop */,
	V_HEADS = 4 /* query heads at a time, twice as many sums */
};
typedef __m256 vec;
typedef __m256i veci;
typedef __m256 vmask;

#define v_zero()              _mm256_setzero_ps()
#define v_set(x)              _mm256_set1_ps(x)
#define v_load(p)             _mm256_load_ps(p)
#define v_loadu(p)            _mm256_loadu_ps(p)
#define v_store(p, a)         _mm256_store_ps(p, a)
#define v_storeu(p, a)        _mm256_storeu_ps(p, a)
#define v_add(a, b)           _mm256_add_ps(a, b)
#define v_sub(a, b)           _mm256_sub_ps(a, b)
#define v_mul(a, b)           _mm256_mul_ps(a, b)
#define v_div(a, b)           _mm256_div_ps(a, b)
#define v_sqrt(a)             _mm256_sqrt_ps(a)
#define v_fma(a, b, c)        _mm256_fmadd_ps(a, b, c)
#define v_max(a, b)           _mm256_max_ps(a, b) /* b where either is NaN */
#define v_greater(a, b)       _mm256_cmp_ps(a, b, _CMP_GT_OQ)
#define v_equal(a, b)         _mm256_cmp_ps(a, b, _CMP_EQ_OQ)
#define v_select(m, yes, no)  _mm256_blendv_ps(no, yes, m)
#define vi_zero()             _mm256_setzero_si256()
#define vi_set(x)             _mm256_set1_epi32(x)
#define vi_loadu(p)           _mm256_loadu_si256((const void *)(p))
#define vi_less(a, b)         _mm256_castsi256_ps(_mm256_cmpgt_epi32(b, a))
#define vi_select(m, yes, no) _mm256_blendv_epi8(no, yes, _mm256_castps_si256(m))

static inline __m256i v_lanes(uint32_t n)
{
	return _mm256_cmpgt_epi32(
	    _mm256_set1_epi32(n < 8 ? (int)n : 8), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The first n lanes (all when n ≥ VEC); the others read as `other` and are not written. */
V_INLINE vec v_load_part(const float *p, uint32_t n, vec other)
{
	return _mm256_blendv_ps(
	    other, _mm256_maskload_ps(p, v_lanes(n)), _mm256_castsi256_ps(v_lanes(n)));
}
#define v_store_part(p, n, a)  _mm256_maskstore_ps(p, v_lanes(n), a)
#define vi_store_part(p, n, a) _mm256_maskstore_epi32((int *)(void *)(p), v_lanes(n), a)

V_INLINE float v_sum(vec a)
{
	__m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
	s = _mm_add_ps(s, _mm_movehl_ps(s, s));
	return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

V_INLINE float v_most(vec a)
{
	__m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
	s = _mm_max_ps(s, _mm_movehl_ps(s, s));
	return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}

/* 2^x for x ≤ 0 or a little above, about 1 ulp; 0 below KN_EXP2_LEAST; NaN stays NaN. */
V_INLINE vec v_exp2(vec x)
{
	vec least = v_set(KN_EXP2_LEAST);
	vec kept = _mm256_cmp_ps(x, least, _CMP_NLT_UQ);
	x = v_max(least, x); /* x where it is NaN */
	vec n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
	vec f = v_sub(x, n), p = v_set(KN_EXP2_6);
	p = v_fma(p, f, v_set(KN_EXP2_5));
	p = v_fma(p, f, v_set(KN_EXP2_4));
	p = v_fma(p, f, v_set(KN_EXP2_3));
	p = v_fma(p, f, v_set(KN_EXP2_2));
	p = v_fma(p, f, v_set(KN_EXP2_1));
	p = v_fma(p, f, v_set(1.0f));
	__m256i power = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
	power = _mm256_add_epi32(power, _mm256_set1_epi32(0x3f800000));
	return _mm256_and_ps(kept, v_mul(p, _mm256_castsi256_ps(power)));
}

/* Elements d to d + 7 of a row. */
V_INLINE vec v_row(const uint8_t *row, uint32_t d, int f32)
{
	if (f32) return _mm256_loadu_ps((const void *)(row + (size_t)d * 4));
	return _mm256_cvtph_ps(_mm_loadu_si128((const void *)(row + (size_t)d * 2)));
}
#define v_row_8(row, d, f32) v_row(row, d, f32)

/* Two registers to one with half sums of both, two such to one with half sums of four rows, and two
 * of those at s to the 8 rows' sums. */
V_INLINE vec v_fold_2(vec a, vec b)
{
	return v_add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
}

V_INLINE vec v_fold_4(vec ab, vec cd)
{
	__m256d x = _mm256_castps_pd(ab), y = _mm256_castps_pd(cd);
	return v_add(
	    _mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
}

V_INLINE vec v_fold_all(const float *s)
{
	vec r0 = v_load(s), r1 = v_load(s + 8);
	return v_add(_mm256_permute2f128_ps(r0, r1, 0x20), _mm256_permute2f128_ps(r0, r1, 0x31));
}

/* A square of 8 registers, rows to columns. */
V_INLINE void v_transpose(vec *r)
{
	vec t[8];
	for (int i = 0; i < 8; i += 2) {
		t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
		t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
	}
	for (int i = 0; i < 8; i += 4) {
		r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
		r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
		r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
		r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
	}
	for (int j = 0; j < 4; j++) {
		vec low = r[j], high = r[4 + j];
		r[j] = _mm256_permute2f128_ps(low, high, 0x20);
		r[4 + j] = _mm256_permute2f128_ps(low, high, 0x31);
	}
}

#endif
