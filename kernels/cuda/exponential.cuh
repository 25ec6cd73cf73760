/* Powers of two for softmax, with the same bits on every device and under the emulator. Part of the
 * attention kernels. */
#ifndef KN_CUDA_EXPONENTIAL_CUH
#define KN_CUDA_EXPONENTIAL_CUH

#include <math.h>
#include <stdint.h>

#include "kernels/cuda/compat.h"

#define KN_CUDA_LOG2E 1.44269504088896340736f

/* 2^x for x ≤ 0 or a little above, about 1 ulp; 0 below -115; NaN stays NaN. The polynomial and the
 * bound are the CPU backend's (kernels/cpu/attend_common.h); its cost, ten operations for each
 * weight beside 2 × head_dim, does not show. */
__device__ __forceinline__ float kn_exp2(float x)
{
	float bounded = x < -115.0f ? -115.0f : x;
	/* Adding 1.5 * 2^23 rounds to an integer, which then is the sum's low mantissa bits. */
	float shifted = bounded + 12582912.0f;
	float f = bounded - (shifted - 12582912.0f);
	float p = 0.0001534581201f;
	p = fmaf(p, f, 0.001339993122f);
	p = fmaf(p, f, 0.009618488957f);
	p = fmaf(p, f, 0.05550328777f);
	p = fmaf(p, f, 0.2402264689f);
	p = fmaf(p, f, 0.6931472057f);
	p = fmaf(p, f, 1.0f);
	float power = __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000u);
	return x < -115.0f ? 0.0f : p * power;
}

/* What to take from logits before kn_exp2: their maximum, or 0 where there are none. */
__device__ __forceinline__ float kn_base(float max)
{
	return max == -INFINITY ? 0.0f : max;
}

#endif
