#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/kernels/cuda/device.h"
#include "tests/lib/kernel_harness.h"

void dev_check(cudaError_t error, const char *call, const char *file, int line)
{
	if (error == cudaSuccess) return;
	print_error("%s:%d: %s: %s (%d)\n", file, line, call, cudaGetErrorString(error), (int)error);
	_fail(file, line);
}

void *dev_alloc(size_t bytes)
{
	void *memory = NULL;
	DEV_OK(cudaMalloc(&memory, bytes));
	return memory;
}

void dev_free(void *memory)
{
	DEV_OK(cudaFree(memory));
}

void dev_write(void *device, const void *host, size_t bytes)
{
	DEV_OK(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}

void *dev_upload(const void *host, size_t bytes)
{
	void *memory = dev_alloc(bytes);
	dev_write(memory, host, bytes);
	return memory;
}

void dev_download(void *host, const void *device, size_t bytes)
{
	DEV_OK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

void *dev_fetch(const void *device, size_t bytes)
{
	void *host = kvt_alloc(bytes, 1);
	dev_download(host, device, bytes);
	return host;
}

void dev_wait(void)
{
	DEV_OK(cudaStreamSynchronize(NULL));
	DEV_OK(cudaGetLastError());
}

size_t dev_scale(void)
{
	const char *text = getenv("KV_CUDA_TEST_SCALE");
	unsigned long scale = text ? strtoul(text, NULL, 10) : 1;
	return scale ? scale : 1;
}

float dev_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (float)(*state >> 40) * 0x1p-24f;
}
