/* silu(gate) * up over a row. Included by one file for each CPU level: the same operations in the
 * same order, so the same bits, in vectors as wide as that file's flags allow. */
#ifndef KN_CPU_SILU_MUL_LOOP_H
#define KN_CPU_SILU_MUL_LOOP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef void kn_silu_row(const float *gate, const float *up, float *out, uint32_t width);

kn_silu_row kn_silu_row_plain, kn_silu_row_avx2, kn_silu_row_avx512;

/* exp(x) by 2^n times a polynomial of degree 6 on [-ln 2 / 2, ln 2 / 2]; relative error about 1e-7.
 * Below -87 it stays at exp(-87), from 88.4 on (n = 128) it is infinite. */
static inline float kn_silu_exp(float x)
{
	const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
	float limited = x < -87.0f ? -87.0f : x;

	limited = limited > 89.0f ? 89.0f : limited;
	float shifted = fmaf(limited, 1.44269504f, magic);
	float n = shifted - magic;
	float f = fmaf(n, -0.693145752f, limited);

	f = fmaf(n, -1.42860677e-6f, f);
	float p = fmaf(f, 1.0f / 720.0f, 1.0f / 120.0f);

	p = fmaf(p, f, 1.0f / 24.0f);
	p = fmaf(p, f, 1.0f / 6.0f);
	p = fmaf(p, f, 0.5f);
	p = fmaf(p, f, 1.0f);
	p = fmaf(p, f, 1.0f);
	uint32_t bits;
	float power;

	memcpy(&bits, &shifted, sizeof bits);
	bits = (bits + 127u) << 23;
	memcpy(&power, &bits, sizeof power);
	return p * power;
}

static inline void kn_silu_loop(const float *gate, const float *up, float *out, uint32_t width)
{
	for (uint32_t k = 0; k < width; k++) {
		float g = gate[k];

		out[k] = g / (1.0f + kn_silu_exp(-g)) * up[k];
	}
}

#endif
