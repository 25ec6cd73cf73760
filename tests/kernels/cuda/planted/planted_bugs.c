/* Bugs that the emulator must find: `planted_bugs NAME` runs the one of that name and fails. ctest
 * runs them with the words of the message that must come (kv_cuda_planted in CMakeLists.txt), so
 * that another failure does not pass; here a wrong result is found by its test as ever.
 *
 * No cmocka: it would print more, and a program of one fault is what is tested.
 */
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/cuda/planted/planted_kernels.h"

enum { COUNT = 128, BYTES = COUNT * sizeof(float) };

static void ok(cudaError_t error)
{
	if (error == cudaSuccess) return;
	printf("refused: %s\n", cudaGetErrorString(error));
	exit(1);
}

static void same(const float *got, const float *want)
{
	for (int i = 0; i < COUNT; i++)
		if (got[i] != want[i]) {
			printf("wrong result: [%d] is %g, not %g\n", i, (double)got[i], (double)want[i]);
			exit(1);
		}
}

/* Device memory of COUNT floats 0, 1, 2 …, or all `value`. */
static float *iota(void)
{
	float host[COUNT], *device;
	for (int i = 0; i < COUNT; i++)
		host[i] = (float)i;
	ok(cudaMalloc((void **)&device, BYTES));
	ok(cudaMemcpy(device, host, BYTES, cudaMemcpyHostToDevice));
	return device;
}

static float *filled(float value)
{
	float host[COUNT], *device;
	for (int i = 0; i < COUNT; i++)
		host[i] = value;
	ok(cudaMalloc((void **)&device, BYTES));
	ok(cudaMemcpy(device, host, BYTES, cudaMemcpyHostToDevice));
	return device;
}

static void device_is(const float *device, const float *want)
{
	float got[COUNT];
	ok(cudaMemcpy(got, device, BYTES, cudaMemcpyDeviceToHost));
	same(got, want);
}

static void device_is_all(const float *device, float value)
{
	float want[COUNT];
	for (int i = 0; i < COUNT; i++)
		want[i] = value;
	device_is(device, want);
}

/* ---- kernels ---- */

static void reduction_barrier(void)
{
	float *out = filled(0.0f), want[COUNT] = {COUNT * (COUNT - 1) / 2};
	ok(planted_sum(iota(), out));
	device_is(out, want);
}

static void zeroing_barrier(void)
{
	int x[COUNT], got[COUNT], *device, *counts;
	for (int i = 0; i < COUNT; i++)
		x[i] = (i * 37 + 5) % COUNT;
	ok(cudaMalloc((void **)&device, sizeof x));
	ok(cudaMalloc((void **)&counts, sizeof x));
	ok(cudaMemcpy(device, x, sizeof x, cudaMemcpyHostToDevice));
	ok(planted_count(device, counts, COUNT));
	ok(cudaMemcpy(got, counts, sizeof got, cudaMemcpyDeviceToHost));
	for (int i = 0; i < COUNT; i++)
		if (got[i] != 1) {
			printf("wrong result: [%d] is %d, not 1\n", i, got[i]);
			exit(1);
		}
}

static void plain_add(void)
{
	float *out = filled(0.0f), want[COUNT] = {2};
	ok(planted_add(out, 2));
	device_is(out, want);
}

static void warp_barrier(void)
{
	float *x = iota(), want[COUNT];
	for (int i = 0; i < COUNT; i++)
		want[i] = (float)(i ^ 31);
	ok(planted_reverse(x));
	device_is(x, want);
}

static void dynamic_overrun(void)
{
	ok(planted_overrun_dynamic(iota(), filled(0.0f), COUNT - 4));
	ok(cudaDeviceSynchronize());
}

static void static_overrun(void)
{
	ok(planted_overrun_static(iota(), filled(0.0f)));
	ok(cudaDeviceSynchronize());
}

static void uninitialised_shared(void)
{
	float *out = filled(0.0f);
	ok(planted_uninitialised(out));
	device_is_all(out, 1.0f);
}

static void uninitialised_device(void)
{
	float *x, *out = filled(0.0f);
	ok(cudaMalloc((void **)&x, BYTES));
	ok(planted_increment(x, out, COUNT, NULL));
	device_is_all(out, 1.0f);
}

static void unaligned_vector(void)
{
	ok(planted_vector(iota() + 1, filled(0.0f)));
	ok(cudaDeviceSynchronize());
}

static void divergent_barrier(void)
{
	ok(planted_divergent_barrier(filled(0.0f)));
	ok(cudaDeviceSynchronize());
}

static void missing_lane(void)
{
	ok(planted_missing_lane(filled(0.0f)));
	ok(cudaDeviceSynchronize());
}

static void too_many_threads(void)
{
	ok(planted_fill(filled(0.0f), COUNT, 1025, 0, NULL));
}

static void too_much_shared(void)
{
	ok(planted_fill(filled(0.0f), COUNT, 64, 64 << 10, NULL));
}

/* ---- memory ---- */

static void host_reads_device(void)
{
	float *x = iota();
	printf("%g\n", (double)x[1]);
}

static void use_after_free(void)
{
	float *x = iota(), **indirect;
	ok(cudaMalloc((void **)&indirect, sizeof x));
	ok(cudaMemcpy(indirect, &x, sizeof x, cudaMemcpyHostToDevice));
	ok(cudaFree(x));
	ok(planted_fill_indirect(indirect, 1));
	ok(cudaDeviceSynchronize());
}

static void freed_argument(void)
{
	float *x = iota();
	ok(cudaFree(x));
	ok(planted_fill(x, 1, 32, 0, NULL));
}

static void pageable_argument(void)
{
	float *x = malloc(BYTES);
	ok(planted_fill(x, COUNT, 32, 0, NULL));
}

/* What the launch cannot see: an address in memory of the device. */
static void pageable_indirect(void)
{
	float *x = malloc(BYTES), **indirect;
	ok(cudaMalloc((void **)&indirect, sizeof x));
	ok(cudaMemcpy(indirect, &x, sizeof x, cudaMemcpyHostToDevice));
	ok(planted_fill_indirect(indirect, 1));
	ok(cudaDeviceSynchronize());
}

static void write_to_read_only(void)
{
	float *x = malloc(BYTES);
	ok(cudaHostRegister(x, BYTES, cudaHostRegisterMapped | cudaHostRegisterReadOnly));
	ok(planted_fill(x, COUNT, 32, 0, NULL));
	ok(cudaDeviceSynchronize());
}

/* A page after the end, and a word after it. */
static void device_overrun(void)
{
	float *x = iota();
	ok(planted_fill(x, 4096, 32, 0, NULL));
	ok(cudaDeviceSynchronize());
}

static void device_overrun_by_one(void)
{
	float *x = iota();
	ok(planted_fill(x, COUNT + 1, 32, 0, NULL));
	ok(cudaFree(x));
}

static void copy_too_long(void)
{
	char host[2 * BYTES];
	ok(cudaMemcpy(host, iota(), sizeof host, cudaMemcpyDeviceToHost));
}

static void out_of_memory(void)
{
	void *memory;
	ok(cudaMalloc(&memory, (size_t)1 << 40));
}

/* ---- streams: work on one that uses what another one does, without an event ---- */

struct two_streams {
	cudaStream_t a, b;
	float *pinned;
};

static struct two_streams two_streams(void)
{
	struct two_streams s;
	ok(cudaStreamCreateWithFlags(&s.a, cudaStreamNonBlocking));
	ok(cudaStreamCreateWithFlags(&s.b, cudaStreamNonBlocking));
	ok(cudaHostAlloc((void **)&s.pinned, BYTES, cudaHostAllocMapped));
	return s;
}

static void kernel_before_kernel(void)
{
	struct two_streams s = two_streams();
	float *x = filled(0.0f), *y = filled(0.0f);
	ok(cudaDeviceSynchronize());
	ok(planted_fill(x, COUNT, 32, 0, s.a));
	ok(planted_increment(x, y, COUNT, s.b));
	ok(cudaDeviceSynchronize());
	device_is_all(y, 2.0f);
}

static void copy_before_kernel(void)
{
	struct two_streams s = two_streams();
	float *x = filled(0.0f), *y = filled(0.0f);
	for (int i = 0; i < COUNT; i++)
		s.pinned[i] = 1.0f;
	ok(cudaDeviceSynchronize());
	ok(cudaMemcpyAsync(x, s.pinned, BYTES, cudaMemcpyHostToDevice, s.a));
	ok(planted_increment(x, y, COUNT, s.b));
	ok(cudaStreamSynchronize(s.b));
	device_is_all(y, 2.0f);
}

static void kernel_before_copy(void)
{
	struct two_streams s = two_streams();
	float *x = filled(0.0f), want[COUNT];
	ok(cudaDeviceSynchronize());
	ok(planted_fill(x, COUNT, 32, 0, s.a));
	ok(cudaMemcpyAsync(s.pinned, x, BYTES, cudaMemcpyDeviceToHost, s.b));
	ok(cudaStreamSynchronize(s.b));
	for (int i = 0; i < COUNT; i++)
		want[i] = 1.0f;
	same(s.pinned, want);
}

/* y = xᵀ · x, of a row of COUNT by itself, with cuBLAS. */
static void multiply(const float *x, float *y, int count, cudaStream_t stream)
{
	const float one = 1.0f, zero = 0.0f;
	cublasHandle_t handle;
	if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS ||
	    cublasSetStream(handle, stream) != CUBLAS_STATUS_SUCCESS ||
	    cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, 1, 1, count, &one, x, count, x, count, &zero,
	        y, 1) != CUBLAS_STATUS_SUCCESS) {
		printf("refused by cuBLAS\n");
		exit(1);
	}
}

static void kernel_before_product(void)
{
	struct two_streams s = two_streams();
	float *x = filled(0.0f), *y = filled(0.0f), want[COUNT] = {COUNT};
	ok(cudaDeviceSynchronize());
	ok(planted_fill(x, COUNT, 32, 0, s.a));
	multiply(x, y, COUNT, s.b);
	ok(cudaDeviceSynchronize());
	device_is(y, want);
}

/* Products of two streams that work in the same memory. */
static void shared_workspace(void)
{
	const float one = 1.0f, zero = 0.0f;
	struct two_streams s = two_streams();
	float *x = filled(1.0f), *y = filled(0.0f), *workspace;
	cublasHandle_t handle;
	cublasStatus_t status = cublasCreate(&handle);
	ok(cudaMalloc((void **)&workspace, 4096));
	ok(cudaDeviceSynchronize());
	for (int i = 0; i < 2 && !status; i++) {
		status = cublasSetStream(handle, i ? s.b : s.a);
		if (!status) status = cublasSetWorkspace(handle, workspace, 4096);
		if (!status)
			status = cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, 1, 1, COUNT, &one, x, COUNT, x,
			    COUNT, &zero, y + i, 1);
	}
	if (status) printf("refused by cuBLAS\n");
	ok(cudaDeviceSynchronize());
}

static void product_overrun(void)
{
	multiply(filled(0.0f), filled(0.0f), COUNT + 1, NULL);
}

/* The host reads what a kernel writes to mapped memory. */
static void kernel_before_host(void)
{
	struct two_streams s = two_streams();
	float want[COUNT];
	ok(planted_fill(s.pinned, COUNT, 32, 0, s.a));
	for (int i = 0; i < COUNT; i++)
		want[i] = 1.0f;
	same(s.pinned, want);
}

/* The host fills a buffer again that a copy still reads. */
static void copy_before_host(void)
{
	struct two_streams s = two_streams();
	float *x = filled(0.0f), *y = filled(0.0f);
	ok(cudaDeviceSynchronize());
	for (int i = 0; i < COUNT; i++)
		s.pinned[i] = 1.0f;
	ok(cudaMemcpyAsync(x, s.pinned, BYTES, cudaMemcpyHostToDevice, s.a));
	for (int i = 0; i < COUNT; i++)
		s.pinned[i] = 2.0f;
	ok(cudaMemcpyAsync(y, s.pinned, BYTES, cudaMemcpyHostToDevice, s.a));
	ok(cudaDeviceSynchronize());
	device_is_all(y, 2.0f);
	device_is_all(x, 1.0f);
}

/* The host's values come too late for a copy that was queued before. */
static void host_after_copy(void)
{
	struct two_streams s = two_streams();
	float *x = filled(0.0f);
	ok(cudaDeviceSynchronize());
	memset(s.pinned, 0, BYTES);
	ok(cudaMemcpyAsync(x, s.pinned, BYTES, cudaMemcpyHostToDevice, s.a));
	for (int i = 0; i < COUNT; i++)
		s.pinned[i] = 2.0f;
	ok(cudaStreamSynchronize(s.a));
	device_is_all(x, 2.0f);
}

/* A blocking copy of pageable memory may still be on its way, and this stream does not wait. */
static void blocking_copy_before_kernel(void)
{
	struct two_streams s = two_streams();
	float *x = iota(), *y = filled(0.0f), host[COUNT] = {0};
	ok(cudaDeviceSynchronize());
	ok(cudaMemcpy(x, host, BYTES, cudaMemcpyHostToDevice));
	ok(planted_increment(x, y, COUNT, s.a));
	ok(cudaStreamSynchronize(s.a));
	device_is_all(y, 1.0f);
}

/* In a graph: the branches are joined, but one reads what the other writes. */
static void branches_of_a_graph(void)
{
	struct two_streams s = two_streams();
	float *x = filled(0.0f), *y = filled(0.0f);
	cudaEvent_t fork, join;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	ok(cudaDeviceSynchronize());
	ok(cudaEventCreate(&fork));
	ok(cudaEventCreate(&join));
	ok(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeGlobal));
	ok(cudaEventRecord(fork, s.a));
	ok(cudaStreamWaitEvent(s.b, fork, 0));
	ok(planted_fill(x, COUNT, 32, 0, s.a));
	ok(planted_increment(x, y, COUNT, s.b));
	ok(cudaEventRecord(join, s.b));
	ok(cudaStreamWaitEvent(s.a, join, 0));
	ok(cudaStreamEndCapture(s.a, &graph));
	ok(cudaGraphInstantiate(&exec, graph, 0));
	ok(cudaGraphLaunch(exec, s.a));
	ok(cudaStreamSynchronize(s.a));
	device_is_all(y, 2.0f);
}

/* x = pinned, as a graph. */
static cudaGraph_t captured_copy(float *x, const struct two_streams *s)
{
	cudaGraph_t graph;
	ok(cudaStreamBeginCapture(s->a, cudaStreamCaptureModeThreadLocal));
	ok(cudaMemcpyAsync(x, s->pinned, BYTES, cudaMemcpyHostToDevice, s->a));
	ok(cudaStreamEndCapture(s->a, &graph));
	return graph;
}

/* What a graph reads is read when it runs: the host has filled the buffer again. */
static void refilled_before_graph(void)
{
	struct two_streams s = two_streams();
	float *x = filled(0.0f), *y = filled(0.0f);
	cudaGraphExec_t first, second;
	ok(cudaDeviceSynchronize());
	for (int i = 0; i < COUNT; i++)
		s.pinned[i] = 1.0f;
	ok(cudaGraphInstantiate(&first, captured_copy(x, &s), 0));
	ok(cudaGraphLaunch(first, s.a));
	for (int i = 0; i < COUNT; i++)
		s.pinned[i] = 2.0f;
	ok(cudaGraphInstantiate(&second, captured_copy(y, &s), 0));
	ok(cudaGraphLaunch(second, s.a));
	ok(cudaDeviceSynchronize());
	device_is_all(y, 2.0f);
	device_is_all(x, 1.0f);
}

/* Launched without the update: it does what it did before. */
static void graph_not_updated(void)
{
	struct two_streams s = two_streams();
	float *x = filled(0.0f), *y = filled(0.0f);
	cudaGraphExec_t exec;
	ok(cudaDeviceSynchronize());
	for (int i = 0; i < COUNT; i++)
		s.pinned[i] = 1.0f;
	ok(cudaGraphInstantiate(&exec, captured_copy(x, &s), 0));
	ok(cudaGraphLaunch(exec, s.a));
	ok(cudaStreamSynchronize(s.a));
	ok(cudaGraphDestroy(captured_copy(y, &s)));
	ok(cudaGraphLaunch(exec, s.a));
	ok(cudaStreamSynchronize(s.a));
	device_is_all(x, 1.0f);
	device_is_all(y, 1.0f);
}

static void graph_destroyed_too_early(void)
{
	struct two_streams s = two_streams();
	float *x = filled(0.0f);
	cudaGraphExec_t exec;
	ok(cudaDeviceSynchronize());
	ok(cudaGraphInstantiate(&exec, captured_copy(x, &s), 0));
	ok(cudaGraphLaunch(exec, s.a));
	ok(cudaGraphExecDestroy(exec));
	ok(cudaStreamSynchronize(s.a));
}

#define BUGS(X)                                                                                    \
	X(reduction_barrier)                                                                           \
	X(zeroing_barrier)                                                                             \
	X(plain_add)                                                                                   \
	X(warp_barrier)                                                                                \
	X(dynamic_overrun)                                                                             \
	X(static_overrun)                                                                              \
	X(uninitialised_shared)                                                                        \
	X(uninitialised_device)                                                                        \
	X(unaligned_vector)                                                                            \
	X(divergent_barrier)                                                                           \
	X(missing_lane)                                                                                \
	X(too_many_threads)                                                                            \
	X(too_much_shared)                                                                             \
	X(host_reads_device)                                                                           \
	X(use_after_free)                                                                              \
	X(freed_argument)                                                                              \
	X(pageable_argument)                                                                           \
	X(pageable_indirect)                                                                           \
	X(write_to_read_only)                                                                          \
	X(device_overrun)                                                                              \
	X(device_overrun_by_one)                                                                       \
	X(copy_too_long)                                                                               \
	X(out_of_memory)                                                                               \
	X(kernel_before_kernel)                                                                        \
	X(copy_before_kernel)                                                                          \
	X(kernel_before_copy)                                                                          \
	X(kernel_before_product)                                                                       \
	X(shared_workspace)                                                                            \
	X(product_overrun)                                                                             \
	X(kernel_before_host)                                                                          \
	X(copy_before_host)                                                                            \
	X(host_after_copy)                                                                             \
	X(blocking_copy_before_kernel)                                                                 \
	X(branches_of_a_graph)                                                                         \
	X(refilled_before_graph)                                                                       \
	X(graph_not_updated)                                                                           \
	X(graph_destroyed_too_early)

int main(int count, char **arguments)
{
#define RUN(name)                                                                                  \
	if (count == 2 && strcmp(arguments[1], #name) == 0) {                                          \
		name();                                                                                    \
		printf("%s was not found\n", #name);                                                       \
		return 0;                                                                                  \
	}
	BUGS(RUN)
	fprintf(stderr, "usage: planted_bugs NAME\n");
	return 0;
}
