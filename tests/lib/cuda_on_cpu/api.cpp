/* The part of the CUDA runtime that clusterkv calls. */
#include <cstdlib>
#include <cstring>

#include "tests/lib/cuda_on_cpu/runtime.h"

namespace emu
{
static thread_local cudaError_t last_error;

cudaError_t failed(cudaError_t error)
{
	if (error != cudaSuccess)
		last_error = error;
	return error;
}
} // namespace emu

using namespace emu;

extern "C" {
cudaError_t emu_launch(const char *name, const void *kernel, const emu_shape *shape, cudaStream_t,
    void (*call)(void *), void (*release)(void *), void *argument)
{
	struct launch launch = {name, kernel, *shape, call, argument, nullptr, 0, {0, 0}};
	cudaError_t error = launch_check(&launch);
	if (error == cudaSuccess)
		launch_run(&launch);
	release(argument);
	return failed(error);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
	bool to_device = on_device(to, bytes), from_device = on_device(from, bytes);
	bool to_right =
	    to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice);
	bool from_right =
	    from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice);
	if (kind != cudaMemcpyDefault && (!to_right || !from_right))
		return failed(cudaErrorInvalidValue);
	device_open();
	memmove(to, from, bytes);
	device_close();
	return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(
    void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t)
{
	return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemset(void *at, int value, size_t bytes)
{
	if (!on_device(at, bytes))
		return failed(cudaErrorInvalidValue);
	device_open();
	memset(at, value, bytes);
	device_close();
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t)
{
	return cudaMemset(at, value, bytes);
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t error = last_error;
	last_error = cudaSuccess;
	return error;
}

cudaError_t cudaPeekAtLastError(void)
{
	return last_error;
}

const char *cudaGetErrorString(cudaError_t error)
{
	return error == cudaSuccess ? "no error" : "an error of the emulator";
}

cudaError_t cudaDeviceSynchronize(void)
{
	return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
	*count = 1;
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int)
{
	return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
	*device = 0;
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
	*stream = static_cast<cudaStream_t>(malloc(1));
	return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	free(stream);
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t)
{
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
	switch (attribute) {
	case cudaDevAttrMultiProcessorCount:
		*value = 8;
		return cudaSuccess;
	case cudaDevAttrMaxSharedMemoryPerBlockOptin:
		*value = 227 << 10;
		return cudaSuccess;
	case cudaDevAttrWarpSize:
		*value = 32;
		return cudaSuccess;
	case cudaDevAttrCooperativeLaunch:
		*value = 1;
		return cudaSuccess;
	default:
		return failed(cudaErrorInvalidValue);
	}
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
	if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
		return cudaSuccess;
	return failed(kernel_allow_shared(kernel, value));
}
}
