/* Memory and devices of the emulator: what is given, checked and refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/kernels/cuda/device.h"
#include "tests/kernels/cuda/emulator_kernels.h"

enum { COUNT = 300, BYTES = COUNT * sizeof(float), PAGE = 4096 };

/* The error stays for cudaGetLastError, which launchers return. */
static void refused(cudaError_t error, cudaError_t why)
{
	assert_int_equal(error, why);
	assert_int_equal(cudaGetLastError(), why);
	assert_int_equal(cudaGetLastError(), cudaSuccess);
}

static void test_new_memory_is_nan(void **state)
{
	(void)state;
	size_t large = (size_t)20 << 20; /* so much is mapped otherwise */
	float host[COUNT], *small = dev_alloc(BYTES);
	uint8_t *big = dev_alloc(large), last[16];
	dev_download(host, small, BYTES);
	for (int i = 0; i < COUNT; i++)
		assert_true(host[i] != host[i]);
	dev_download(last, big + large - sizeof last, sizeof last);
	for (size_t i = 0; i < sizeof last; i++)
		assert_int_equal(last[i], 0xff);
	assert_int_equal((uintptr_t)small % 256, 0);
	dev_free(small);
	dev_free(big);
}

static void test_out_of_memory(void **state)
{
	(void)state;
	size_t free_before, free_now, total;
	void *memory = &total, *all;
	DEV_OK(cudaMemGetInfo(&free_before, &total));
	assert_int_equal(free_before, total);
	refused(cudaMalloc(&memory, total + 1), cudaErrorMemoryAllocation);
	assert_null(memory);
	all = dev_alloc(total);
	DEV_OK(cudaMemGetInfo(&free_now, &total));
	assert_int_equal(free_now, 0);
	refused(cudaMalloc(&memory, 1), cudaErrorMemoryAllocation);
	dev_free(all);
	DEV_OK(cudaMemGetInfo(&free_now, &total));
	assert_int_equal(free_now, total);
	refused(cudaFree(all), cudaErrorInvalidValue);
	DEV_OK(cudaFree(NULL));
}

/* Both ends must be what the kind says, to the last byte. */
static void test_kinds_of_copies(void **state)
{
	(void)state;
	float host[COUNT] = {1.0f}, *device = dev_alloc(BYTES), *pinned;
	DEV_OK(cudaHostAlloc((void **)&pinned, BYTES, cudaHostAllocPortable | cudaHostAllocMapped));
	refused(cudaMemcpy(device, host, BYTES, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
	refused(cudaMemcpy(host, device, BYTES, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
	refused(cudaMemcpy(device, host, BYTES, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
	refused(cudaMemcpy(pinned, host, BYTES, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
	refused(cudaMemcpy(device + 1, host, BYTES, cudaMemcpyDefault), cudaErrorInvalidValue);
	refused(cudaMemcpy(pinned + 1, device, BYTES, cudaMemcpyDefault), cudaErrorInvalidValue);
	refused(cudaMemset(host, 0, BYTES), cudaErrorInvalidValue);
	DEV_OK(cudaMemcpy(device, host, BYTES, cudaMemcpyDefault));
	DEV_OK(cudaMemcpy(pinned, device, BYTES, cudaMemcpyDefault));
	assert_memory_equal(pinned, host, BYTES);
	DEV_OK(cudaMemset(pinned, 0, BYTES));
	assert_true(pinned[0] == 0.0f);
	DEV_OK(cudaFreeHost(pinned));
	refused(cudaFreeHost(pinned), cudaErrorInvalidValue);
	dev_free(device);
}

static enum cudaMemoryType type_of(const void *at)
{
	struct cudaPointerAttributes attributes;
	DEV_OK(cudaPointerGetAttributes(&attributes, at));
	return attributes.type;
}

static void test_registering(void **state)
{
	(void)state;
	FILE *file = tmpfile(); /* shared memory, as a store's is */
	assert_int_equal(ftruncate(fileno(file), 4 * PAGE), 0);
	uint8_t *host = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
	float *device;
	DEV_OK(cudaHostRegister(host, 2 * PAGE, cudaHostRegisterMapped));
	refused(cudaHostRegister(host + PAGE, 2 * PAGE, cudaHostRegisterMapped),
	    cudaErrorHostMemoryAlreadyRegistered);
	DEV_OK(cudaHostGetDevicePointer((void **)&device, host, 0));
	assert_int_equal(type_of(host + PAGE), cudaMemoryTypeHost);
	assert_int_equal(type_of(host + 2 * PAGE + 1), cudaMemoryTypeUnregistered);
	DEV_OK(emk_fill(device, 2.0f, COUNT, NULL));
	dev_wait();
	assert_true(((float *)(void *)host)[COUNT - 1] == 2.0f);
	refused(cudaHostUnregister(host + PAGE), cudaErrorHostMemoryNotRegistered);
	DEV_OK(cudaHostUnregister(host));
	refused(cudaHostUnregister(host), cudaErrorHostMemoryNotRegistered);
	refused(cudaHostGetDevicePointer((void **)&device, host, 0), cudaErrorInvalidValue);
	/* What the process may not write to is registered as such; a hole not at all. */
	mprotect(host, 2 * PAGE, PROT_READ);
	refused(cudaHostRegister(host, 3 * PAGE, cudaHostRegisterMapped), cudaErrorInvalidValue);
	DEV_OK(cudaHostRegister(host, 3 * PAGE, cudaHostRegisterMapped | cudaHostRegisterReadOnly));
	DEV_OK(cudaHostUnregister(host));
	munmap(host + PAGE, PAGE);
	refused(cudaHostRegister(host, 3 * PAGE, cudaHostRegisterReadOnly), cudaErrorInvalidValue);
	munmap(host, 4 * PAGE);
	fclose(file);
}

static void test_ordered_allocation(void **state)
{
	(void)state;
	cudaStream_t stream;
	float *memory, host[COUNT];
	DEV_OK(cudaStreamCreate(&stream));
	DEV_OK(cudaMallocAsync((void **)&memory, BYTES, stream));
	assert_int_equal(type_of(memory), cudaMemoryTypeDevice);
	DEV_OK(emk_fill(memory, 3.0f, COUNT, stream));
	DEV_OK(cudaMemcpyAsync(host, memory, BYTES, cudaMemcpyDeviceToHost, stream));
	DEV_OK(cudaFreeAsync(memory, stream));
	DEV_OK(cudaStreamSynchronize(stream));
	assert_true(host[COUNT - 1] == 3.0f);
	assert_int_equal(type_of(memory), cudaMemoryTypeUnregistered);
	DEV_OK(cudaStreamDestroy(stream));
}

static void test_device(void **state)
{
	(void)state;
	int count, value;
	struct cudaDeviceProp properties;
	DEV_OK(cudaGetDeviceCount(&count));
	assert_int_equal(count, 1);
	DEV_OK(cudaSetDevice(0));
	refused(cudaSetDevice(1), cudaErrorInvalidDevice);
	DEV_OK(cudaGetDeviceProperties(&properties, 0));
	DEV_OK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
	assert_int_equal(value, properties.major);
	assert_string_equal(cudaGetErrorName(cudaErrorNoDevice), "cudaErrorNoDevice");
}

/* What a program meets without a driver (35), or with one but no device. */
static int in_another_environment(const char *name, const char *value, const char *program)
{
	pid_t child = fork();
	if (child == 0) {
		setenv(name, value, 1);
		execl(program, program, "count", (char *)NULL);
		_exit(127);
	}
	int status = 0;
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_no_device(void **state)
{
	const char *program = *state;
	assert_int_equal(in_another_environment("EMU_DEVICE_ERROR", "35", program), 35);
	assert_int_equal(in_another_environment("EMU_DEVICES", "0", program), cudaErrorNoDevice);
	assert_int_equal(in_another_environment("EMU_DEVICES", "1", program), 0);
}

static int count_devices(void)
{
	int count;
	cudaError_t error = cudaGetDeviceCount(&count);
	return error == cudaSuccess && count != 1 ? 126 : (int)error;
}

int main(int count, char **arguments)
{
	if (count == 2 && strcmp(arguments[1], "count") == 0) return count_devices();
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_out_of_memory),
	    cmocka_unit_test(test_new_memory_is_nan),
	    cmocka_unit_test(test_kinds_of_copies),
	    cmocka_unit_test(test_registering),
	    cmocka_unit_test(test_ordered_allocation),
	    cmocka_unit_test(test_device),
	    cmocka_unit_test_prestate(test_no_device, arguments[0]),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
