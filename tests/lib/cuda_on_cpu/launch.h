/* Kernel launches: LAUNCH (see cuda_on_cpu.h) and cudaLaunchKernelEx. */
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

template <class... P, class... A>
cudaError_t launch_shape(
    const char *name, void (*kernel)(P...), const emu_shape &shape, cudaStream_t stream, A &&...a)
{
	auto *c = new call<P...>{kernel, {static_cast<P>(std::forward<A>(a))...}};
	return emu_launch(name, reinterpret_cast<const void *>(kernel), &shape, stream, call<P...>::run,
	    call<P...>::release, c);
}

template <class... P, class... A>
cudaError_t launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
    size_t shared_bytes, cudaStream_t stream, A &&...a)
{
	emu_shape shape{grid, block, shared_bytes, 0};
	return launch_shape(name, kernel, shape, stream, std::forward<A>(a)...);
}

template <class... P, class... A>
cudaError_t launch_ex(const cudaLaunchConfig_t *config, void (*kernel)(P...), A &&...a)
{
	emu_shape shape{config->gridDim, config->blockDim, config->dynamicSmemBytes, 0};
	for (unsigned i = 0; i < config->numAttrs; i++)
		if (config->attrs[i].id == cudaLaunchAttributeCooperative)
			shape.cooperative = config->attrs[i].val.cooperative;
	return launch_shape("kernel", kernel, shape, config->stream, std::forward<A>(a)...);
}
} // namespace emu

#define cudaLaunchKernelEx emu::launch_ex

#endif
