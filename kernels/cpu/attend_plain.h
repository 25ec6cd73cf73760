/* exp2 in plain C, for loops that the compiler may vectorise. Private to kernels/cpu. */
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

#endif
