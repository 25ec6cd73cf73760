/* What every call of the API shares, and what is known of the device. */
#include <cstdio>
#include <cstring>

#include "tests/lib/cuda_on_cpu/sanitizers.h"
#include "tests/lib/cuda_on_cpu/streams.h"

namespace emu
{
quiet_lock state_lock;
static __thread cudaError_t last_error;

api_call::api_call(bool unsafe_in_capture)
{
	faults_watch();
	refused = in_host_function ? cudaErrorNotPermitted : cudaSuccess;
	tsan_ignore();
	state_lock.lock();
	if (!refused && settings.devices == 0) refused = cudaErrorNoDevice;
	if (!refused && unsafe_in_capture) refused = capture_forbids();
}

api_call::~api_call()
{
	state_lock.unlock();
	tsan_heed();
}

cudaError_t failed(cudaError_t error)
{
	if (error != cudaSuccess) last_error = error;
	return error;
}

/* X(error, what it says) */
#define EMU_ERRORS(X)                                                                              \
	X(cudaSuccess, "no error")                                                                     \
	X(cudaErrorInvalidValue, "invalid argument")                                                   \
	X(cudaErrorMemoryAllocation, "out of memory")                                                  \
	X(cudaErrorInitializationError, "initialization error")                                        \
	X(cudaErrorInvalidConfiguration, "invalid configuration argument")                             \
	X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version") \
	X(cudaErrorStubLibrary, "CUDA driver is a stub library")                                       \
	X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                     \
	X(cudaErrorInvalidDevice, "invalid device ordinal")                                            \
	X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                   \
	X(cudaErrorIllegalState, "the operation cannot be performed in the present state")             \
	X(cudaErrorNotReady, "device not ready")                                                       \
	X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                         \
	X(cudaErrorHostMemoryAlreadyRegistered, "host memory range is already registered")             \
	X(cudaErrorHostMemoryNotRegistered, "host memory range is not registered")                     \
	X(cudaErrorNotPermitted, "operation not permitted")                                            \
	X(cudaErrorNotSupported, "operation not supported")                                            \
	X(cudaErrorSystemNotReady, "system not yet initialized")                                       \
	X(cudaErrorSystemDriverMismatch, "driver mismatch")                                            \
	X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")       \
	X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error in capture")    \
	X(cudaErrorStreamCaptureMerge, "two captures would be merged")                                 \
	X(cudaErrorStreamCaptureUnmatched, "the capture did not begin on this stream")                 \
	X(cudaErrorStreamCaptureUnjoined, "capture has work that its stream does not wait for")        \
	X(cudaErrorStreamCaptureIsolation, "dependency on work that is not captured")                  \
	X(cudaErrorStreamCaptureImplicit, "the legacy stream would wait for captured work")            \
	X(cudaErrorCapturedEvent, "the event was last recorded in a capturing stream")                 \
	X(cudaErrorStreamCaptureWrongThread, "the capture began on another thread")                    \
	X(cudaErrorGraphExecUpdateFailure, "the graph update violates the rules of updates")           \
	X(cudaErrorUnknown, "unknown error")
} // namespace emu

using namespace emu;

extern "C" {
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

const char *cudaGetErrorName(cudaError_t error)
{
	switch (error) {
#define EMU_NAME(name, words)                                                                      \
	case name:                                                                                     \
		return #name;
		EMU_ERRORS(EMU_NAME)
	default:
		return "unrecognized error code";
	}
}

const char *cudaGetErrorString(cudaError_t error)
{
	switch (error) {
#define EMU_WORDS(name, words)                                                                     \
	case name:                                                                                     \
		return words;
		EMU_ERRORS(EMU_WORDS)
	default:
		return "unrecognized error code";
	}
}

cudaError_t cudaGetDeviceCount(int *count)
{
	*count = 0;
	if (settings.device_error) return failed(static_cast<cudaError_t>(settings.device_error));
	if (settings.devices == 0) return failed(cudaErrorNoDevice);
	*count = 1;
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
	return failed(device == 0 && settings.devices ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int *device)
{
	*device = 0;
	return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned)
{
	return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = settings.device_error ? 0 : CUDART_VERSION;
	return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
	*version = CUDART_VERSION;
	return cudaSuccess;
}

/* X(attribute, value): of an imaginary device; what is not listed is an error. */
#define EMU_ATTRIBUTES(X)                                                                          \
	X(cudaDevAttrComputeCapabilityMajor, static_cast<int>(settings.capability / 10))               \
	X(cudaDevAttrComputeCapabilityMinor, static_cast<int>(settings.capability % 10))               \
	X(cudaDevAttrMultiProcessorCount, 4)                                                           \
	X(cudaDevAttrWarpSize, 32)                                                                     \
	X(cudaDevAttrMaxThreadsPerBlock, 1024)                                                         \
	X(cudaDevAttrMaxSharedMemoryPerBlock, EMU_DEFAULT_SHARED)                                      \
	X(cudaDevAttrMaxSharedMemoryPerBlockOptin, EMU_MOST_SHARED)                                    \
	X(cudaDevAttrMaxSharedMemoryPerMultiprocessor, EMU_MOST_SHARED + 1024)                         \
	X(cudaDevAttrL2CacheSize, 40 << 20)                                                            \
	X(cudaDevAttrMaxGridDimX, 0x7fffffff)                                                          \
	X(cudaDevAttrMaxGridDimY, 65535)                                                               \
	X(cudaDevAttrMaxGridDimZ, 65535)                                                               \
	X(cudaDevAttrCanMapHostMemory, 1)                                                              \
	X(cudaDevAttrUnifiedAddressing, 1)                                                             \
	X(cudaDevAttrIntegrated, 0)                                                                    \
	X(cudaDevAttrConcurrentKernels, 1)                                                             \
	X(cudaDevAttrAsyncEngineCount, 2)                                                              \
	X(cudaDevAttrStreamPrioritiesSupported, 1)                                                     \
	X(cudaDevAttrHostRegisterSupported, 1)                                                         \
	X(cudaDevAttrHostRegisterReadOnlySupported, 1)                                                 \
	X(cudaDevAttrCanUseHostPointerForRegisteredMem, 1)                                             \
	X(cudaDevAttrMemoryPoolsSupported, 1)                                                          \
	X(cudaDevAttrCooperativeLaunch, 0)

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
	if (device != 0) return failed(cudaErrorInvalidDevice);
	switch (attribute) {
#define EMU_ATTRIBUTE(name, number)                                                                \
	case name:                                                                                     \
		*value = number;                                                                           \
		return cudaSuccess;
		EMU_ATTRIBUTES(EMU_ATTRIBUTE)
	default:
		return failed(cudaErrorInvalidValue);
	}
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
	if (device != 0 || settings.devices == 0) return failed(cudaErrorInvalidDevice);
	memset(properties, 0, sizeof *properties);
	snprintf(properties->name, sizeof properties->name, "cuda_on_cpu");
	properties->totalGlobalMem = settings.memory;
	properties->sharedMemPerBlock = EMU_DEFAULT_SHARED;
	properties->sharedMemPerBlockOptin = EMU_MOST_SHARED;
	properties->sharedMemPerMultiprocessor = EMU_MOST_SHARED + 1024;
	properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
	properties->warpSize = 32;
	properties->maxThreadsPerBlock = 1024;
	properties->maxThreadsPerMultiProcessor = 2048;
	properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
	properties->maxThreadsDim[2] = 64;
	properties->maxGridSize[0] = 0x7fffffff;
	properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
	properties->major = static_cast<int>(settings.capability / 10);
	properties->minor = static_cast<int>(settings.capability % 10);
	properties->multiProcessorCount = 4;
	properties->canMapHostMemory = properties->unifiedAddressing = 1;
	properties->concurrentKernels = properties->streamPrioritiesSupported = 1;
	properties->asyncEngineCount = 2;
	properties->hostRegisterSupported = properties->hostRegisterReadOnlySupported = 1;
	return cudaSuccess;
}

cudaError_t cudaDeviceReset(void)
{
	return cudaDeviceSynchronize();
}
}
