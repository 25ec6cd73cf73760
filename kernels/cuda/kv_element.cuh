/* Elements of KV rows on the device: eight at a time, as loaded and as floats. Part of the
 * attention kernels and of store_kv.cu. Conversions are the CPU backend's (kernels/cpu/half.h). */
#ifndef KN_CUDA_KV_ELEMENT_CUH
#define KN_CUDA_KV_ELEMENT_CUH

#include <cuda_fp16.h>
#include <stdint.h>

#include "kernels/cuda/compat.h"
#include "kernels/op_arguments.h"

__host__ __device__ constexpr uint32_t kn_element_bytes(enum kn_kv_type type)
{
	return type == KN_KV_F32 ? 4 : 2;
}

/* Eight elements as they are in memory. */
template <enum kn_kv_type TYPE> struct kn_eight {
	uint4 words[TYPE == KN_KV_F32 ? 2 : 1];
};

/* Elements from `at` on, which is 16-byte aligned. */
template <enum kn_kv_type TYPE>
__device__ __forceinline__ struct kn_eight<TYPE> kn_load_eight(const uint8_t *at) {
	struct kn_eight<TYPE> eight;
	eight.words[0] = ((const uint4 *)at)[0];
	if constexpr (TYPE == KN_KV_F32) eight.words[1] = ((const uint4 *)at)[1];
	return eight;
}

template <enum kn_kv_type TYPE>
__device__ __forceinline__ struct kn_eight<TYPE> kn_zero_eight() {
	struct kn_eight<TYPE> eight;
	eight.words[0] = make_uint4(0, 0, 0, 0);
	if constexpr (TYPE == KN_KV_F32) eight.words[1] = make_uint4(0, 0, 0, 0);
	return eight;
}

/* Two elements of 16 bits in a word, the lower one first. */
template <enum kn_kv_type TYPE>
__device__ __forceinline__ void kn_widen_word(uint32_t word, float *low, float *high)
{
	if constexpr (TYPE == KN_KV_BF16) {
		*low = __uint_as_float(word << 16);
		*high = __uint_as_float(word & 0xffff0000u);
	} else {
		*low = __half2float(__ushort_as_half((unsigned short)(word & 0xffffu)));
		*high = __half2float(__ushort_as_half((unsigned short)(word >> 16)));
	}
}

template <enum kn_kv_type TYPE>
__device__ __forceinline__ void kn_widen_eight(const struct kn_eight<TYPE> &eight, float *x)
{
	uint4 a = eight.words[0];
	if constexpr (TYPE == KN_KV_F32) {
		uint4 b = eight.words[1];
		x[0] = __uint_as_float(a.x), x[1] = __uint_as_float(a.y);
		x[2] = __uint_as_float(a.z), x[3] = __uint_as_float(a.w);
		x[4] = __uint_as_float(b.x), x[5] = __uint_as_float(b.y);
		x[6] = __uint_as_float(b.z), x[7] = __uint_as_float(b.w);
	} else {
		kn_widen_word<TYPE>(a.x, x, x + 1);
		kn_widen_word<TYPE>(a.y, x + 2, x + 3);
		kn_widen_word<TYPE>(a.z, x + 4, x + 5);
		kn_widen_word<TYPE>(a.w, x + 6, x + 7);
	}
}

/* To fp16: nearest, ties to even, beyond ±65,504 saturated; a NaN keeps the top of its payload. */
__device__ __forceinline__ uint32_t kn_narrow_f16(float value)
{
	uint32_t bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u;
	uint32_t magnitude = bits & 0x7fffffffu;
	if (magnitude > 0x7f800000u) return sign | 0x7e00u | (magnitude >> 13 & 0x3ffu);
	if (magnitude > 0x477fe000u) magnitude = 0x477fe000u;
	if (magnitude < 0x38800000u) {
		/* One half's last place is 2^-24, the last place of a subnormal fp16: the sum rounds. */
		return sign | (__float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u);
	}
	return sign | (((magnitude + 0xfffu + (magnitude >> 13 & 1u)) >> 13) - 0x1c000u);
}

/* To bf16: nearest, ties to even, beyond the largest finite value saturated; NaN stays NaN. */
__device__ __forceinline__ uint32_t kn_narrow_bf16(float value)
{
	uint32_t bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u;
	uint32_t magnitude = bits & 0x7fffffffu;
	if (magnitude > 0x7f800000u) return sign | magnitude >> 16 | 0x40u;
	if (magnitude > 0x7f7f0000u) magnitude = 0x7f7f0000u;
	return sign | (magnitude + 0x7fffu + (magnitude >> 16 & 1u)) >> 16;
}

/* Two floats to one word of 16-bit elements. */
template <enum kn_kv_type TYPE>
__device__ __forceinline__ uint32_t kn_narrow_pair(float low, float high)
{
	if constexpr (TYPE == KN_KV_BF16) return kn_narrow_bf16(low) | kn_narrow_bf16(high) << 16;
	return kn_narrow_f16(low) | kn_narrow_f16(high) << 16;
}

#endif
