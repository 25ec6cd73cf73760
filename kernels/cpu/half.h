/* fp16 to fp32 and back in plain C, without branches, so that loops over them vectorise.
 *
 * Both directions give the bits of the F16C instructions, but that kn_half_from_float saturates: a
 * finite or infinite value beyond ±65,504 becomes ±65,504, so that no infinity reaches attention.
 */
#ifndef KN_CPU_HALF_H
#define KN_CPU_HALF_H

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline uint32_t kn_float_bits(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

static inline float kn_bits_float(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

/* a where the condition is 1, b where it is 0: compilers vectorise this, but not a ?: over a float
 * sum, which might trap. */
static inline uint32_t kn_pick(uint32_t condition, uint32_t a, uint32_t b)
{
	uint32_t mask = 0u - condition;
	return (a & mask) | (b & ~mask);
}

/* Exact. A signalling NaN becomes quiet. */
static inline float kn_half_to_float(uint16_t half)
{
	uint32_t sign = ((uint32_t)half & 0x8000u) << 16;
	uint32_t magnitude = ((uint32_t)half & 0x7fffu) << 13;
	uint32_t normal = magnitude + 0x38000000u;
	/* Below the smallest normal: put the mantissa under an implicit one and subtract that again. */
	float small = kn_bits_float(magnitude + 0x38800000u) - kn_bits_float(0x38800000u);
	uint32_t special = (magnitude + 0x70000000u) | kn_pick(magnitude > 0x0f800000u, 0x400000u, 0);
	uint32_t bits = kn_pick(magnitude < 0x00800000u, kn_float_bits(small), normal);
	bits = kn_pick(magnitude >= 0x0f800000u, special, bits);
	return kn_bits_float(bits | sign);
}

/* To nearest, ties to even; saturating; NaN stays NaN. */
static inline uint16_t kn_half_from_float(float value)
{
	uint32_t bits = kn_float_bits(value);
	uint32_t sign = (bits >> 16) & 0x8000u;
	uint32_t magnitude = bits & 0x7fffffffu;
	uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
	uint32_t bounded = kn_pick(magnitude > 0x477fe000u, 0x477fe000u, magnitude);
	uint32_t normal = ((bounded + 0xfffu + ((bounded >> 13) & 1u)) >> 13) - 0x1c000u;
	/* One half's last place is 2^-24, the last place of a subnormal fp16: the sum rounds there. */
	uint32_t small = kn_float_bits(kn_bits_float(bounded) + 0.5f) - 0x3f000000u;
	uint32_t half = kn_pick(bounded < 0x38800000u, small, normal);
	half = kn_pick(magnitude > 0x7f800000u, nan, half);
	return (uint16_t)(half | sign);
}

#ifdef __cplusplus
}
#endif
#endif
