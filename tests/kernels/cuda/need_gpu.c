/* Linked into the tests of kernels on a GPU: without one they are skipped before they begin. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <unistd.h>

__attribute__((constructor)) static void need_gpu(void)
{
	int count = 0;
	cudaError_t error = cudaGetDeviceCount(&count);

	if (error == cudaSuccess && count > 0) return;
	printf("skipped: no GPU: %s\n", error != cudaSuccess ? cudaGetErrorString(error) : "none here");
	fflush(stdout);
	_exit(77);
}
