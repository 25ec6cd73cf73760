/* Streams, events, host functions, captures and graphs of the emulator: programs that are right
 * give the right results whatever order it chooses, and calls that CUDA refuses are refused.
 * Programs that are wrong are in planted_bugs.c. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/kernels/cuda/device.h"
#include "tests/kernels/cuda/emulator_kernels.h"

enum { COUNT = 200 };

struct fixture {
	cudaStream_t a, b; /* neither waits for the legacy stream */
	cudaEvent_t a_done, b_done;
	float *pinned, *x, *y; /* x, y: on the device */
};

static int set_up(void **state)
{
	static struct fixture f;
	DEV_OK(cudaStreamCreateWithFlags(&f.a, cudaStreamNonBlocking));
	DEV_OK(cudaStreamCreateWithPriority(&f.b, cudaStreamNonBlocking, -1));
	DEV_OK(cudaEventCreateWithFlags(&f.a_done, cudaEventDisableTiming));
	DEV_OK(cudaEventCreateWithFlags(&f.b_done, cudaEventDisableTiming));
	DEV_OK(cudaHostAlloc((void **)&f.pinned, COUNT * sizeof(float), cudaHostAllocMapped));
	f.x = dev_alloc(COUNT * sizeof(float));
	f.y = dev_alloc(COUNT * sizeof(float));
	*state = &f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;
	DEV_OK(cudaStreamDestroy(f->a));
	DEV_OK(cudaStreamDestroy(f->b));
	DEV_OK(cudaEventDestroy(f->a_done));
	DEV_OK(cudaEventDestroy(f->b_done));
	DEV_OK(cudaFreeHost(f->pinned));
	dev_free(f->x);
	dev_free(f->y);
	return 0;
}

static void set_all(float *x, float value)
{
	for (int i = 0; i < COUNT; i++)
		x[i] = value;
}

static void assert_all(const float *x, float value)
{
	for (int i = 0; i < COUNT; i++)
		assert_true(x[i] == value);
}

/* Copy in on a, compute on b, copy out on a, with an event at each change of stream. */
static void queue_round_trip(struct fixture *f)
{
	const size_t bytes = COUNT * sizeof(float);
	DEV_OK(cudaMemcpyAsync(f->x, f->pinned, bytes, cudaMemcpyHostToDevice, f->a));
	DEV_OK(cudaEventRecord(f->a_done, f->a));
	DEV_OK(cudaStreamWaitEvent(f->b, f->a_done, 0));
	DEV_OK(cudaMemsetAsync(f->y, 0, bytes, f->b));
	DEV_OK(emk_saxpy(2.0f, f->x, f->y, COUNT, f->b));
	DEV_OK(cudaEventRecord(f->b_done, f->b));
	DEV_OK(cudaStreamWaitEvent(f->a, f->b_done, 0));
	DEV_OK(cudaMemcpyAsync(f->pinned, f->y, bytes, cudaMemcpyDeviceToHost, f->a));
}

static void test_events_order_streams(void **state)
{
	struct fixture *f = *state;
	set_all(f->pinned, 1.5f);
	for (int round = 0; round < 3; round++)
		queue_round_trip(f);
	DEV_OK(cudaStreamSynchronize(f->a));
	assert_all(f->pinned, 12.0f);
}

/* A never recorded event is no reason to wait; one that is recorded again means the last. */
static void test_event_states(void **state)
{
	struct fixture *f = *state;
	DEV_OK(cudaStreamWaitEvent(f->a, f->b_done, 0));
	DEV_OK(cudaEventQuery(f->b_done));
	DEV_OK(emk_fill(f->x, 1.0f, COUNT, f->b));
	DEV_OK(cudaEventRecord(f->b_done, f->b));
	DEV_OK(emk_fill(f->x, 2.0f, COUNT, f->b));
	DEV_OK(cudaEventRecord(f->b_done, f->b));
	DEV_OK(cudaStreamWaitEvent(f->a, f->b_done, 0));
	DEV_OK(emk_saxpy(1.0f, f->x, f->x, COUNT, f->a));
	DEV_OK(cudaMemcpyAsync(f->pinned, f->x, COUNT * sizeof(float), cudaMemcpyDeviceToHost, f->a));
	while (cudaStreamQuery(f->a) == cudaErrorNotReady)
		continue;
	assert_all(f->pinned, 4.0f);
	DEV_OK(cudaEventSynchronize(f->b_done));
	cudaGetLastError();
}

/* Pageable memory may change as soon as the copy was called. */
static void test_pageable_is_staged(void **state)
{
	struct fixture *f = *state;
	float host[COUNT], got[COUNT];
	set_all(host, 3.0f);
	DEV_OK(cudaMemcpyAsync(f->x, host, sizeof host, cudaMemcpyHostToDevice, f->a));
	set_all(host, 4.0f);
	DEV_OK(cudaMemcpyAsync(got, f->x, sizeof got, cudaMemcpyDeviceToHost, f->a));
	assert_all(got, 3.0f);
}

/* Streams that block wait for the legacy stream and that for them. */
static void test_legacy_stream(void **state)
{
	struct fixture *f = *state;
	cudaStream_t one, two;
	DEV_OK(cudaStreamCreate(&one));
	DEV_OK(cudaStreamCreate(&two));
	DEV_OK(emk_fill(f->x, 1.0f, COUNT, one));
	DEV_OK(emk_saxpy(1.0f, f->x, f->x, COUNT, NULL));
	DEV_OK(emk_saxpy(1.0f, f->x, f->x, COUNT, two));
	DEV_OK(cudaStreamDestroy(two));
	float got[COUNT];
	DEV_OK(cudaMemcpy(got, f->x, sizeof got, cudaMemcpyDeviceToHost));
	assert_all(got, 4.0f);
	DEV_OK(cudaStreamDestroy(one));
}

struct called {
	const float *seen;
	float value;
	cudaError_t of_call;
};

static void look(void *argument)
{
	struct called *c = argument;
	c->value = c->seen[COUNT - 1];
	c->of_call = cudaDeviceSynchronize();
}

static void test_host_function(void **state)
{
	struct fixture *f = *state;
	struct called called = {f->pinned, 0.0f, cudaSuccess};
	DEV_OK(emk_fill(f->pinned, 7.0f, COUNT, f->a));
	DEV_OK(cudaLaunchHostFunc(f->a, look, &called));
	DEV_OK(emk_fill(f->pinned, 8.0f, COUNT, f->a));
	DEV_OK(cudaStreamSynchronize(f->a));
	assert_true(called.value == 7.0f);
	assert_int_equal(called.of_call, cudaErrorNotPermitted);
	assert_all(f->pinned, 8.0f);
}

/* Two host threads, each with a stream and memory of its own. */
static void *add_up(void *argument)
{
	float *sum = argument, *pinned, *x;
	const size_t bytes = COUNT * sizeof(float);
	cudaStream_t stream;
	cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
	error |= cudaHostAlloc((void **)&pinned, bytes, cudaHostAllocDefault);
	error |= cudaMalloc((void **)&x, bytes);
	set_all(pinned, 1.0f);
	for (int i = 0; i < 5; i++) {
		error |= cudaMemcpyAsync(x, pinned, bytes, cudaMemcpyHostToDevice, stream);
		error |= emk_saxpy(1.0f, x, x, COUNT, stream);
		error |= cudaMemcpyAsync(pinned, x, bytes, cudaMemcpyDeviceToHost, stream);
		if (i % 2) error |= cudaStreamSynchronize(stream);
	}
	error |= cudaStreamSynchronize(stream);
	*sum = error ? -1.0f : pinned[COUNT - 1];
	cudaStreamDestroy(stream);
	cudaFreeHost(pinned);
	cudaFree(x);
	return NULL;
}

static void test_two_host_threads(void **state)
{
	(void)state;
	pthread_t threads[2];
	float sums[2];
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, add_up, &sums[i]), 0);
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], NULL);
		assert_true(sums[i] == 32.0f);
	}
}

static cudaGraphExec_t capture_round_trip(struct fixture *f, size_t *nodes)
{
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	enum cudaStreamCaptureStatus status;
	DEV_OK(cudaStreamBeginCapture(f->a, cudaStreamCaptureModeThreadLocal));
	/* b joins here: all that it does is captured as well. */
	DEV_OK(cudaEventRecord(f->a_done, f->a));
	DEV_OK(cudaStreamWaitEvent(f->b, f->a_done, 0));
	queue_round_trip(f);
	DEV_OK(cudaStreamIsCapturing(f->b, &status));
	assert_int_equal(status, cudaStreamCaptureStatusActive);
	DEV_OK(cudaStreamEndCapture(f->a, &graph));
	DEV_OK(cudaGraphGetNodes(graph, NULL, nodes));
	DEV_OK(cudaGraphInstantiate(&exec, graph, 0));
	DEV_OK(cudaGraphDestroy(graph));
	return exec;
}

static void test_graph(void **state)
{
	struct fixture *f = *state;
	size_t nodes;
	set_all(f->pinned, 1.0f);
	cudaGraphExec_t exec = capture_round_trip(f, &nodes);
	assert_int_equal(nodes, 4);
	assert_all(f->pinned, 1.0f); /* nothing ran yet */
	DEV_OK(cudaGraphLaunch(exec, f->a));
	DEV_OK(cudaGraphLaunch(exec, f->b)); /* after the first, on whatever stream */
	DEV_OK(cudaEventRecord(f->b_done, f->b));
	DEV_OK(cudaStreamWaitEvent(f->a, f->b_done, 0));
	DEV_OK(emk_saxpy(1.0f, f->pinned, f->pinned, COUNT, f->a));
	DEV_OK(cudaStreamSynchronize(f->a));
	assert_all(f->pinned, 8.0f);
	DEV_OK(cudaGraphExecDestroy(exec));
}

/* x = value, and out again, as a graph of its own. */
static cudaGraph_t capture_fill(struct fixture *f, float value, float *to)
{
	cudaGraph_t graph;
	DEV_OK(cudaStreamBeginCapture(f->a, cudaStreamCaptureModeThreadLocal));
	DEV_OK(emk_fill(f->x, value, COUNT, f->a));
	DEV_OK(cudaMemcpyAsync(to, f->x, COUNT * sizeof(float), cudaMemcpyDefault, f->a));
	DEV_OK(cudaStreamEndCapture(f->a, &graph));
	return graph;
}

/* What was launched before an update stays what it was. */
static void test_graph_update(void **state)
{
	struct fixture *f = *state;
	cudaGraphExecUpdateResultInfo info;
	cudaGraphExec_t exec;
	cudaGraph_t one = capture_fill(f, 1.0f, f->pinned), two, graph;
	DEV_OK(cudaGraphInstantiate(&exec, one, 0));
	DEV_OK(cudaGraphLaunch(exec, f->a));
	DEV_OK(emk_saxpy(1.0f, f->pinned, f->pinned, COUNT, f->a));
	DEV_OK(emk_fill(f->y, 0.0f, COUNT, f->a));
	DEV_OK(emk_saxpy(1.0f, f->pinned, f->y, COUNT, f->a));
	two = capture_fill(f, 5.0f, f->pinned);
	DEV_OK(cudaGraphExecUpdate(exec, two, &info));
	assert_int_equal(info.result, cudaGraphExecUpdateSuccess);
	DEV_OK(cudaGraphDestroy(two));
	DEV_OK(cudaGraphLaunch(exec, f->a));
	DEV_OK(emk_saxpy(1.0f, f->pinned, f->y, COUNT, f->a));
	DEV_OK(cudaMemcpyAsync(f->pinned, f->y, COUNT * sizeof(float), cudaMemcpyDefault, f->a));
	DEV_OK(cudaStreamSynchronize(f->a));
	assert_all(f->pinned, 7.0f);
	/* Another kind of memory; one more node; another type of node. */
	struct {
		cudaGraph_t graph;
		enum cudaGraphExecUpdateResult why;
	} others[3] = {{capture_fill(f, 5.0f, f->y), cudaGraphExecUpdateErrorParametersChanged}};
	for (int i = 1; i < 3; i++) {
		DEV_OK(cudaStreamBeginCapture(f->a, cudaStreamCaptureModeThreadLocal));
		if (i != 2) DEV_OK(emk_fill(f->x, 1.0f, COUNT, f->a));
		if (i == 2) DEV_OK(cudaMemsetAsync(f->x, 0, 4, f->a));
		DEV_OK(cudaMemcpyAsync(f->pinned, f->x, 4, cudaMemcpyDefault, f->a));
		if (i == 1) DEV_OK(emk_fill(f->x, 1.0f, COUNT, f->a));
		DEV_OK(cudaStreamEndCapture(f->a, &others[i].graph));
	}
	others[1].why = cudaGraphExecUpdateErrorTopologyChanged;
	others[2].why = cudaGraphExecUpdateErrorNodeTypeChanged;
	for (int i = 0; i < 3; i++) {
		assert_int_equal(
		    cudaGraphExecUpdate(exec, others[i].graph, &info), cudaErrorGraphExecUpdateFailure);
		assert_int_equal(info.result, others[i].why);
	}
	cudaGetLastError(); /* which launches ask for */
	/* The same nodes, but the second does not wait for the first. */
	DEV_OK(cudaStreamBeginCapture(f->a, cudaStreamCaptureModeThreadLocal));
	DEV_OK(cudaEventRecord(f->a_done, f->a));
	DEV_OK(cudaStreamWaitEvent(f->b, f->a_done, 0));
	DEV_OK(emk_fill(f->x, 1.0f, COUNT, f->a));
	DEV_OK(cudaMemcpyAsync(f->pinned, f->y, 4, cudaMemcpyDefault, f->b));
	DEV_OK(cudaEventRecord(f->b_done, f->b));
	DEV_OK(cudaStreamWaitEvent(f->a, f->b_done, 0));
	DEV_OK(cudaStreamEndCapture(f->a, &graph));
	assert_int_equal(cudaGraphExecUpdate(exec, graph, &info), cudaErrorGraphExecUpdateFailure);
	assert_int_equal(info.result, cudaGraphExecUpdateErrorTopologyChanged);
	DEV_OK(cudaGraphDestroy(graph));
	for (int i = 0; i < 3; i++)
		DEV_OK(cudaGraphDestroy(others[i].graph));
	DEV_OK(cudaGraphDestroy(one));
	DEV_OK(cudaGraphExecDestroy(exec));
	cudaGetLastError();
}

#define REFUSED(call, why) assert_int_equal((call), (why))

static void begin(struct fixture *f)
{
	DEV_OK(cudaStreamBeginCapture(f->a, cudaStreamCaptureModeGlobal));
	DEV_OK(emk_fill(f->x, 1.0f, COUNT, f->a));
}

static void end_lost(struct fixture *f)
{
	cudaGraph_t graph;
	REFUSED(emk_fill(f->x, 1.0f, COUNT, f->a), cudaErrorStreamCaptureInvalidated);
	REFUSED(cudaStreamEndCapture(f->a, &graph), cudaErrorStreamCaptureInvalidated);
	assert_null(graph);
	cudaGetLastError();
}

static void test_refused_in_capture(void **state)
{
	struct fixture *f = *state;
	void *memory;
	float pageable[COUNT] = {0};
	begin(f);
	REFUSED(cudaStreamSynchronize(f->a), cudaErrorStreamCaptureUnsupported);
	end_lost(f);
	begin(f);
	REFUSED(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
	end_lost(f);
	begin(f);
	REFUSED(cudaStreamQuery(f->a), cudaErrorStreamCaptureUnsupported);
	end_lost(f);
	begin(f);
	REFUSED(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
	end_lost(f);
	begin(f);
	REFUSED(
	    cudaMemcpy(f->y, f->pinned, 16, cudaMemcpyHostToDevice), cudaErrorStreamCaptureUnsupported);
	end_lost(f);
	begin(f);
	REFUSED(cudaMemcpyAsync(f->x, pageable, sizeof pageable, cudaMemcpyHostToDevice, f->a),
	    cudaErrorStreamCaptureUnsupported);
	end_lost(f);
	begin(f);
	DEV_OK(cudaEventRecord(f->a_done, f->a));
	REFUSED(cudaEventSynchronize(f->a_done), cudaErrorCapturedEvent);
	end_lost(f);
	begin(f);
	REFUSED(cudaStreamBeginCapture(f->a, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
	end_lost(f);
}

/* Captured work and other work may not wait for each other; all of it must be joined. */
static void test_refused_dependencies(void **state)
{
	struct fixture *f = *state;
	cudaGraph_t graph;
	cudaStream_t blocking;
	DEV_OK(emk_fill(f->y, 1.0f, COUNT, f->b));
	DEV_OK(cudaEventRecord(f->b_done, f->b));
	begin(f);
	REFUSED(cudaStreamWaitEvent(f->a, f->b_done, 0), cudaErrorStreamCaptureIsolation);
	end_lost(f);
	begin(f);
	DEV_OK(cudaEventRecord(f->a_done, f->a));
	DEV_OK(cudaStreamWaitEvent(f->b, f->a_done, 0));
	DEV_OK(emk_fill(f->y, 2.0f, COUNT, f->b));
	REFUSED(cudaStreamEndCapture(f->b, &graph), cudaErrorStreamCaptureUnmatched);
	end_lost(f);
	begin(f);
	DEV_OK(cudaEventRecord(f->a_done, f->a));
	DEV_OK(cudaStreamWaitEvent(f->b, f->a_done, 0));
	DEV_OK(emk_fill(f->y, 2.0f, COUNT, f->b));
	REFUSED(cudaStreamEndCapture(f->a, &graph), cudaErrorStreamCaptureUnjoined);
	DEV_OK(cudaStreamCreate(&blocking));
	DEV_OK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
	REFUSED(emk_fill(f->x, 1.0f, COUNT, NULL), cudaErrorStreamCaptureImplicit);
	REFUSED(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
	DEV_OK(cudaStreamDestroy(blocking));
	REFUSED(cudaStreamEndCapture(f->a, &graph), cudaErrorIllegalState);
	REFUSED(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeGlobal),
	    cudaErrorStreamCaptureUnsupported);
	cudaGetLastError();
}

static void test_refused_handles(void **state)
{
	struct fixture *f = *state;
	cudaStream_t gone;
	DEV_OK(cudaStreamCreate(&gone));
	DEV_OK(cudaStreamDestroy(gone));
	REFUSED(cudaStreamSynchronize(gone), cudaErrorInvalidResourceHandle);
	REFUSED(emk_fill(f->x, 1.0f, COUNT, gone), cudaErrorInvalidResourceHandle);
	REFUSED(cudaEventRecord(f->a_done, gone), cudaErrorInvalidResourceHandle);
	cudaGetLastError();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
	    TEST(test_events_order_streams),
	    TEST(test_event_states),
	    TEST(test_pageable_is_staged),
	    TEST(test_legacy_stream),
	    TEST(test_host_function),
	    TEST(test_two_host_threads),
	    TEST(test_graph),
	    TEST(test_graph_update),
	    TEST(test_refused_in_capture),
	    TEST(test_refused_dependencies),
	    TEST(test_refused_handles),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
