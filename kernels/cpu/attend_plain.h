/* exp2 and the widening of rows in plain C, for loops that the compiler may vectorise. Private to
 * kernels/cpu. */
#ifndef KN_CPU_ATTEND_PLAIN_H
#define KN_CPU_ATTEND_PLAIN_H

#include "kernels/cpu/attend_common.h"
#include "kernels/cpu/half.h"

/* 2^x for x ≤ 0 or a little above, under 2 ulp; 0 below KN_EXP2_LEAST; NaN stays NaN. */
static inline float kn_exp2_plain(float x)
{
	float bounded = x < KN_EXP2_LEAST ? KN_EXP2_LEAST : x;
	/* Adding 1.5 * 2^23 rounds to an integer, which then is the sum's low mantissa bits. */
	float shifted = bounded + 12582912.0f;
	float f = bounded - (shifted - 12582912.0f);
	float p = KN_EXP2_6;
	p = p * f + KN_EXP2_5;
	p = p * f + KN_EXP2_4;
	p = p * f + KN_EXP2_3;
	p = p * f + KN_EXP2_2;
	p = p * f + KN_EXP2_1;
	p = p * f + 1.0f;
	float power = kn_bits_float((kn_float_bits(shifted) << 23) + 0x3f800000u);
	return x < KN_EXP2_LEAST ? 0.0f : p * power;
}

/* `count` elements (at most 2 * KN_MAX_HEAD_DIM) of a row, to floats. */
static inline void kn_widen_plain(
    const uint8_t *row, enum kn_kv_type type, float *out, uint32_t count)
{
	uint16_t halves[2 * KN_MAX_HEAD_DIM];
	if (type == KN_KV_F32) {
		memcpy(out, row, (size_t)count * 4);
		return;
	}
	memcpy(halves, row, (size_t)count * 2);
	for (uint32_t d = 0; d < count; d++)
		out[d] = kn_half_to_float(halves[d]);
}

#endif
