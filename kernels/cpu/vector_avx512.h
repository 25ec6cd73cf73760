/* The vectors of AVX-512 under the names that the *_loop.h files use. Private to kernels/cpu. */
#ifndef KN_CPU_VECTOR_AVX512_H
#define KN_CPU_VECTOR_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/attend_common.h"

#define V_INLINE static inline __attribute__((always_inline))

enum {
	VEC = 16,
	V_SUMS = 24 /* registers for sums in an inner loop */,
	V_HEADS = 8 /* query heads at a time, twice as many sums */
};
typedef __m512 vec;
typedef __m512i veci;
typedef __mmask16 vmask;

#define v_zero()              _mm512_setzero_ps()
#define v_set(x)              _mm512_set1_ps(x)
#define v_load(p)             _mm512_load_ps(p)
#define v_loadu(p)            _mm512_loadu_ps(p)
#define v_store(p, a)         _mm512_store_ps(p, a)
#define v_storeu(p, a)        _mm512_storeu_ps(p, a)
#define v_add(a, b)           _mm512_add_ps(a, b)
#define v_sub(a, b)           _mm512_sub_ps(a, b)
#define v_mul(a, b)           _mm512_mul_ps(a, b)
#define v_div(a, b)           _mm512_div_ps(a, b)
#define v_sqrt(a)             _mm512_sqrt_ps(a)
#define v_fma(a, b, c)        _mm512_fmadd_ps(a, b, c)
#define v_max(a, b)           _mm512_max_ps(a, b) /* b where either is NaN */
#define v_greater(a, b)       _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ)
#define v_equal(a, b)         _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ)
#define v_select(m, yes, no)  _mm512_mask_mov_ps(no, m, yes)
#define v_sum(a)              _mm512_reduce_add_ps(a)
#define v_most(a)             _mm512_reduce_max_ps(a)
#define vi_zero()             _mm512_setzero_si512()
#define vi_set(x)             _mm512_set1_epi32(x)
#define vi_loadu(p)           _mm512_loadu_si512(p)
#define vi_less(a, b)         _mm512_cmplt_epi32_mask(a, b)
#define vi_select(m, yes, no) _mm512_mask_mov_epi32(no, m, yes)

static inline __mmask16 v_lanes(uint32_t n)
{
	return (__mmask16)(n < 16 ? (1u << n) - 1 : 0xffffu);
}

/* The first n lanes (all when n ≥ VEC); the others read as `other` and are not written. */
#define v_load_part(p, n, other) _mm512_mask_loadu_ps(other, v_lanes(n), p)
#define v_store_part(p, n, a)    _mm512_mask_storeu_ps(p, v_lanes(n), a)
#define vi_store_part(p, n, a)   _mm512_mask_storeu_epi32(p, v_lanes(n), a)

/* 2^x for x ≤ 0 or a little above, about 1 ulp; 0 below KN_EXP2_LEAST; NaN stays NaN. */
V_INLINE vec v_exp2(vec x)
{
	__mmask16 kept = _mm512_cmp_ps_mask(x, v_set(KN_EXP2_LEAST), _CMP_NLT_UQ);
	vec n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
	vec f = v_sub(x, n), p = v_set(KN_EXP2_6);
	p = v_fma(p, f, v_set(KN_EXP2_5));
	p = v_fma(p, f, v_set(KN_EXP2_4));
	p = v_fma(p, f, v_set(KN_EXP2_3));
	p = v_fma(p, f, v_set(KN_EXP2_2));
	p = v_fma(p, f, v_set(KN_EXP2_1));
	p = v_fma(p, f, v_set(1.0f));
	return _mm512_maskz_scalef_ps(kept, p, n);
}

/* Elements d to d + 15 of a row. */
V_INLINE vec v_row(const uint8_t *row, uint32_t d, int f32)
{
	if (f32) return _mm512_loadu_ps(row + (size_t)d * 4);
	return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(row + (size_t)d * 2)));
}

/* Elements d to d + 7, and zeros. */
V_INLINE vec v_row_8(const uint8_t *row, uint32_t d, int f32)
{
	if (f32) return _mm512_zextps256_ps512(_mm256_loadu_ps((const void *)(row + (size_t)d * 4)));
	return _mm512_zextps256_ps512(
	    _mm256_cvtph_ps(_mm_loadu_si128((const void *)(row + (size_t)d * 2))));
}

/* Two registers to one with half sums of both, two such to one with quarter sums of four rows, and
 * four of those at s to the 16 rows' sums. */
V_INLINE vec v_fold_2(vec a, vec b)
{
	return v_add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}

V_INLINE vec v_fold_4(vec ab, vec cd)
{
	__m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
	return v_add(
	    _mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}

V_INLINE vec v_fold_all(const float *s)
{
	vec r0 = v_load(s), r1 = v_load(s + 16), r2 = v_load(s + 32), r3 = v_load(s + 48);
	vec a = v_add(_mm512_shuffle_f32x4(r0, r1, 0x88), _mm512_shuffle_f32x4(r0, r1, 0xdd));
	vec b = v_add(_mm512_shuffle_f32x4(r2, r3, 0x88), _mm512_shuffle_f32x4(r2, r3, 0xdd));
	return v_add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

/* A square of 16 registers, rows to columns. */
V_INLINE void v_transpose(vec *r)
{
	vec t[16];
	for (int i = 0; i < 16; i += 2) {
		t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
		t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
	}
	for (int i = 0; i < 16; i += 4)
		for (int j = 0; j < 2; j++) {
			__m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
			r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
			r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
		}
	/* r[i + j], i a multiple of 4: columns j, 4 + j, 8 + j and 12 + j of rows i to i + 3. */
	for (int j = 0; j < 4; j++) {
		vec a = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88);
		vec b = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
		vec c = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
		vec d = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
		t[j] = _mm512_shuffle_f32x4(a, c, 0x88);
		t[8 + j] = _mm512_shuffle_f32x4(a, c, 0xdd);
		t[4 + j] = _mm512_shuffle_f32x4(b, d, 0x88);
		t[12 + j] = _mm512_shuffle_f32x4(b, d, 0xdd);
	}
	for (int i = 0; i < 16; i++)
		r[i] = t[i];
}

#endif
