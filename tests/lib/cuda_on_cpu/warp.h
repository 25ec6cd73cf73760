/* Barriers and warp collectives of the kernel language. Masks are explicit, as on the device; the
 * lanes that a partial last warp lacks may be named by the full mask. */
#ifndef KVT_CUDA_ON_CPU_WARP_H
#define KVT_CUDA_ON_CPU_WARP_H

#include <cstring>

#include "tests/lib/cuda_on_cpu/emulator.h"

namespace emu
{
template <class T> inline uint64_t bits(T value)
{
	static_assert(sizeof(T) <= 8, "a collective moves at most 8 bytes");
	uint64_t u = 0;
	memcpy(&u, &value, sizeof value);
	return u;
}

template <class T> inline T from_bits(uint64_t u)
{
	T value;
	memcpy(static_cast<void *>(&value), &u, sizeof value);
	return value;
}

inline int lane()
{
	return static_cast<int>(emu_thread->rank & 31);
}

/* The lanes that this thread's warp has: the last one of a block may be partial. */
inline unsigned present_lanes()
{
	unsigned left = blockDim.x * blockDim.y * blockDim.z - (emu_thread->rank & ~31u);
	return left >= 32 ? 0xffffffffu : (1u << left) - 1;
}

/* The value of lane `source`; one's own where it is out of the section. */
template <class T> inline T shuffle(unsigned mask, T value, int source, bool inside)
{
	const uint64_t *values = emu_warp(mask, bits(value), 0);
	return inside ? from_bits<T>(values[source & 31]) : value;
}

template <class T, class F> inline T reduce(unsigned mask, T value, F join)
{
	const uint64_t *values = emu_warp(mask, bits(value), 0);
	mask &= present_lanes();
	bool first = true;
	T sum{};
	for (int i = 0; i < 32; i++) {
		if (!(mask >> i & 1)) continue;
		T x = from_bits<T>(values[i]);
		sum = first ? x : join(sum, x);
		first = false;
	}
	return sum;
}
} // namespace emu

#define __syncthreads() emu_barrier(__FILE__, __LINE__)

inline void __syncwarp(unsigned mask = 0xffffffffu)
{
	emu_warp(mask, 0, 1);
}

template <class T> inline T __shfl_sync(unsigned mask, T value, int source, int width = 32)
{
	int section = emu::lane() & -width;
	return emu::shuffle(mask, value, section + (source & (width - 1)), true);
}

template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32)
{
	int source = emu::lane() + static_cast<int>(by), section = emu::lane() & -width;
	return emu::shuffle(mask, value, source, source < section + width);
}

template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32)
{
	int source = emu::lane() - static_cast<int>(by), section = emu::lane() & -width;
	return emu::shuffle(mask, value, source, source >= section);
}

template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32)
{
	int source = emu::lane() ^ by, section = emu::lane() & -width;
	return emu::shuffle(mask, value, source, source < section + width);
}

inline unsigned __ballot_sync(unsigned mask, int predicate)
{
	const uint64_t *values = emu_warp(mask, predicate != 0, 0);
	unsigned votes = 0;
	mask &= emu::present_lanes();
	for (int i = 0; i < 32; i++)
		if (mask >> i & 1) votes |= static_cast<unsigned>(values[i]) << i;
	return votes;
}

inline int __any_sync(unsigned mask, int predicate)
{
	return __ballot_sync(mask, predicate) != 0;
}

inline int __all_sync(unsigned mask, int predicate)
{
	return __ballot_sync(mask, !predicate) == 0;
}

template <class T> inline unsigned __match_any_sync(unsigned mask, T value)
{
	const uint64_t *values = emu_warp(mask, emu::bits(value), 0);
	unsigned same = 0;
	mask &= emu::present_lanes();
	for (int i = 0; i < 32; i++)
		if ((mask >> i & 1) && values[i] == emu::bits(value)) same |= 1u << i;
	return same;
}

template <class T> inline T __reduce_add_sync(unsigned mask, T value)
{
	return emu::reduce(mask, value, [](T a, T b) { return static_cast<T>(a + b); });
}

template <class T> inline T __reduce_max_sync(unsigned mask, T value)
{
	return emu::reduce(mask, value, [](T a, T b) { return a > b ? a : b; });
}

template <class T> inline T __reduce_min_sync(unsigned mask, T value)
{
	return emu::reduce(mask, value, [](T a, T b) { return a < b ? a : b; });
}

inline unsigned __reduce_or_sync(unsigned mask, unsigned value)
{
	return emu::reduce(mask, value, [](unsigned a, unsigned b) { return a | b; });
}

inline unsigned __reduce_and_sync(unsigned mask, unsigned value)
{
	return emu::reduce(mask, value, [](unsigned a, unsigned b) { return a & b; });
}

#endif
