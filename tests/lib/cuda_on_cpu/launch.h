/* Kernel launches: LAUNCH (see cuda_on_cpu.h). */
#ifndef KVT_CUDA_ON_CPU_LAUNCH_H
#define KVT_CUDA_ON_CPU_LAUNCH_H

#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/lib/cuda_on_cpu/emulator.h"

namespace emu
{
/* A kernel with its arguments, converted as a call would and copied as a launch does. */
template <class... P> struct call {
	void (*kernel)(P...);
	std::tuple<std::decay_t<P>...> arguments;

	static void run(void *self)
	{
		call *c = static_cast<call *>(self);
		std::apply(c->kernel, c->arguments);
	}
	static void release(void *self)
	{
		delete static_cast<call *>(self);
	}
};

template <class T> void check_argument(const char *name, unsigned number, const T &argument)
{
	if constexpr (std::is_pointer_v<T>)
		if constexpr (!std::is_function_v<std::remove_pointer_t<T>>)
			emu_check_pointer(name, number, argument);
}

template <class... P, class... A>
cudaError_t launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
    size_t shared_bytes, cudaStream_t stream, A &&...a)
{
	static_assert(sizeof(std::tuple<std::decay_t<P>...>) <= 4096, "a launch takes 4 KiB at most");
	emu_shape shape{grid, block, shared_bytes};
	auto *c = new call<P...>{kernel, {static_cast<P>(std::forward<A>(a))...}};
	std::apply(
	    [name](const auto &...argument) {
		    unsigned number = 0;
		    (check_argument(name, ++number, argument), ...);
		    (void)number;
	    },
	    c->arguments);
	return emu_launch(name, reinterpret_cast<const void *>(kernel), &shape, stream, call<P...>::run,
	    call<P...>::release, c, sizeof *c);
}
} // namespace emu

#endif
