/* Atomics and fences of the kernel language: relaxed, as on the device, so that ThreadSanitizer
 * takes no order from them; __threadfence gives order. */
#ifndef KVT_CUDA_ON_CPU_ATOMICS_H
#define KVT_CUDA_ON_CPU_ATOMICS_H

#include <type_traits>

#include "tests/lib/cuda_on_cpu/emulator.h"
#include "tests/lib/cuda_on_cpu/warp.h"

namespace emu
{
template <class T, class F> inline T change(T *at, F f)
{
	static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomics are of 4 or 8 bytes");
	using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
	emu_atomic_hook(at, sizeof(T));
	U *word = reinterpret_cast<U *>(at), old = __atomic_load_n(word, __ATOMIC_RELAXED), changed;
	do
		changed = static_cast<U>(bits(static_cast<T>(f(from_bits<T>(old)))));
	while (!__atomic_compare_exchange_n(
	    word, &old, changed, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	return from_bits<T>(old);
}

/* The type of an argument that is not deduced: atomicAdd(&unsigned, 1) is right. */
template <class T> struct exactly {
	using type = T;
};
template <class T> using same = typename exactly<T>::type;
} // namespace emu

template <class T> inline T atomicAdd(T *at, emu::same<T> value)
{
	return emu::change(at, [value](T old) { return old + value; });
}

template <class T> inline T atomicSub(T *at, emu::same<T> value)
{
	return emu::change(at, [value](T old) { return old - value; });
}

template <class T> inline T atomicMax(T *at, emu::same<T> value)
{
	return emu::change(at, [value](T old) { return old > value ? old : value; });
}

template <class T> inline T atomicMin(T *at, emu::same<T> value)
{
	return emu::change(at, [value](T old) { return old < value ? old : value; });
}

template <class T> inline T atomicOr(T *at, emu::same<T> value)
{
	return emu::change(at, [value](T old) { return old | value; });
}

template <class T> inline T atomicAnd(T *at, emu::same<T> value)
{
	return emu::change(at, [value](T old) { return old & value; });
}

template <class T> inline T atomicXor(T *at, emu::same<T> value)
{
	return emu::change(at, [value](T old) { return old ^ value; });
}

template <class T> inline T atomicExch(T *at, emu::same<T> value)
{
	return emu::change(at, [value](T) { return value; });
}

template <class T> inline T atomicCAS(T *at, emu::same<T> expected, emu::same<T> value)
{
	return emu::change(at, [expected, value](T old) {
		return emu::bits(old) == emu::bits(static_cast<T>(expected)) ? value : old;
	});
}

inline void __threadfence()
{
	emu_fence();
}

inline void __threadfence_block()
{
	emu_fence();
}

inline void __threadfence_system()
{
	emu_fence();
}

inline void __nanosleep(unsigned)
{
	emu_atomic_hook(nullptr, 0);
}

/* One accumulator for the block; the barriers round it are those of the device's one barrier. */
inline int emu_count_block(int predicate)
{
	__shared__ int count;
	__syncthreads();
	if (emu_thread->rank == 0) count = 0;
	__syncthreads();
	if (predicate) atomicAdd(&count, 1);
	__syncthreads();
	return count;
}

inline int __syncthreads_count(int predicate)
{
	return emu_count_block(predicate);
}

inline int __syncthreads_or(int predicate)
{
	return emu_count_block(predicate) != 0;
}

inline int __syncthreads_and(int predicate)
{
	return emu_count_block(!predicate) == 0;
}

#endif
