/* Floats as unsigned integers in falling order, for sorting votes and cosines. */
#ifndef KN_CPU_ORDER_KEY_H
#define KN_CPU_ORDER_KEY_H

#include "kernels/cpu/half.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A greater value has a smaller key; -0 equals +0; NaN has the greatest key of all. */
static inline uint32_t kn_falling_key(float value)
{
	uint32_t bits = kn_float_bits(value + 0.0f);
	uint32_t flip = (bits >> 31) != 0 ? 0u : 0x7fffffffu;
	return value != value ? 0xffffffffu : bits ^ flip;
}

#ifdef __cplusplus
}
#endif
#endif
