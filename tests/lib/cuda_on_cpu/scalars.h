/* Scalar intrinsics of the kernel language. */
#ifndef KVT_CUDA_ON_CPU_SCALARS_H
#define KVT_CUDA_ON_CPU_SCALARS_H

#include <cmath>
#include <type_traits>

#include "tests/lib/cuda_on_cpu/atomics.h"
#include "tests/lib/cuda_on_cpu/warp.h"

/* Loads and stores with cache hints. */
template <class T> inline T __ldg(const T *at)
{
	return *at;
}
template <class T> inline T __ldcs(const T *at)
{
	return *at;
}
template <class T> inline T __ldcg(const T *at)
{
	return *at;
}
template <class T> inline void __stcs(T *at, emu::same<T> value)
{
	*at = value;
}
template <class T> inline void __stcg(T *at, emu::same<T> value)
{
	*at = value;
}

/* Of two floats the one that is a number, as on the device. */
template <class A, class B> inline std::common_type_t<A, B> max(A a, B b)
{
	using C = std::common_type_t<A, B>;
	C x = static_cast<C>(a), y = static_cast<C>(b);
	return x > y || y != y ? x : y;
}
template <class A, class B> inline std::common_type_t<A, B> min(A a, B b)
{
	using C = std::common_type_t<A, B>;
	C x = static_cast<C>(a), y = static_cast<C>(b);
	return x < y || y != y ? x : y;
}

inline float emu_rsqrtf(float x)
{
	return 1.0f / sqrtf(x);
}
#define rsqrtf emu_rsqrtf

inline float __expf(float x)
{
	return expf(x);
}
inline float __logf(float x)
{
	return logf(x);
}
inline float __fdividef(float a, float b)
{
	return a / b;
}
inline float __frcp_rn(float x)
{
	return 1.0f / x;
}
inline float __fsqrt_rn(float x)
{
	return sqrtf(x);
}
inline float __fdiv_rn(float a, float b)
{
	return a / b;
}
inline float __fadd_rn(float a, float b)
{
	return a + b;
}
inline float __fsub_rn(float a, float b)
{
	return a - b;
}
inline float __fmul_rn(float a, float b)
{
	return a * b;
}
inline float __fmaf_rn(float a, float b, float c)
{
	return fmaf(a, b, c);
}
inline float __saturatef(float x)
{
	return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}
inline int __float2int_rn(float x)
{
	return static_cast<int>(lrintf(x));
}
inline int __float2int_rz(float x)
{
	return static_cast<int>(x);
}
inline int __float_as_int(float x)
{
	return emu::from_bits<int>(emu::bits(x));
}
inline unsigned __float_as_uint(float x)
{
	return emu::from_bits<unsigned>(emu::bits(x));
}
inline float __int_as_float(int x)
{
	return emu::from_bits<float>(emu::bits(x));
}
inline float __uint_as_float(unsigned x)
{
	return emu::from_bits<float>(emu::bits(x));
}

inline int __popc(unsigned x)
{
	return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x)
{
	return __builtin_popcountll(x);
}
inline int __clz(int x)
{
	return x ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}
inline int __clzll(long long x)
{
	return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}
inline int __ffs(int x)
{
	return __builtin_ffs(x);
}
inline unsigned __brev(unsigned x)
{
	unsigned reversed = 0;
	for (int i = 0; i < 32; i++)
		reversed |= (x >> i & 1) << (31 - i);
	return reversed;
}
inline unsigned __umulhi(unsigned a, unsigned b)
{
	return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
	return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __dp4a(int a, int b, int c)
{
	for (int i = 0; i < 4; i++)
		c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
	return c;
}

#endif
