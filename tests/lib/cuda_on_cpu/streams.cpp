/* Streams and events: what comes after what. */
#include <pthread.h>
#include <algorithm>
#include <ctime>
#include <set>
#include <utility>

#include "tests/lib/cuda_on_cpu/sanitizers.h"
#include "tests/lib/cuda_on_cpu/streams.h"

namespace emu
{
/* Never destroyed: other threads may still be at it while the process ends. */
static struct stream *const legacy = new struct stream;
static std::set<struct stream *> *const streams = new std::set<struct stream *>;
static std::set<struct event *> *const events = new std::set<struct event *>;
static operations *const orphans = new operations; /* what destroyed streams still had to do */

static void add(operations *to, const operations &more)
{
	for (const operation_ref &op : more)
		if (std::find(to->begin(), to->end(), op) == to->end()) to->push_back(op);
}

struct stream *stream_find(cudaStream_t handle, cudaError_t *error)
{
	struct stream *s = reinterpret_cast<struct stream *>(handle);
	if (handle == nullptr || handle == cudaStreamLegacy) return legacy;
	if (handle != cudaStreamPerThread && streams->count(s)) return s;
	*error = cudaErrorInvalidResourceHandle;
	return nullptr;
}

struct event *event_find(cudaEvent_t handle)
{
	struct event *e = reinterpret_cast<struct event *>(handle);
	return events->count(e) ? e : nullptr;
}

std::vector<struct stream *> all_streams(void)
{
	std::vector<struct stream *> all(streams->begin(), streams->end());
	all.push_back(legacy);
	return all;
}

operations stream_dependencies(const struct stream *s)
{
	operations after = s->tail;
	if (s != legacy && s->blocking) add(&after, legacy->tail);
	if (s == legacy) {
		add(&after, *orphans);
		for (const struct stream *other : *streams)
			if (other->blocking && !stream_captures(other)) add(&after, other->tail);
	}
	return after;
}

cudaError_t stream_submit(cudaStream_t handle, work_ref work)
{
	cudaError_t error = cudaSuccess;
	struct stream *s = stream_find(handle, &error);
	if (!s) return error;
	if (stream_captures(s)) return capture_submit(s, std::move(work));
	if (s == legacy && (error = capture_forbids_legacy()) != cudaSuccess) return error;
	operations after = stream_dependencies(s);
	s->tail = {device_queue(std::move(work), std::move(after))};
	return cudaSuccess;
}

bool stream_captures(const struct stream *s)
{
	return s->capture != nullptr;
}

cudaError_t stream_wait(cudaStream_t handle)
{
	cudaError_t error = cudaSuccess;
	struct stream *s = stream_find(handle, &error);
	if (!s) return error;
	if (stream_captures(s)) return capture_break(s->capture, cudaErrorStreamCaptureUnsupported);
	if (s == legacy && (error = capture_forbids_legacy()) != cudaSuccess) return error;
	device_wait(stream_dependencies(s));
	return cudaSuccess;
}

void device_wait_all(void)
{
	operations all = *orphans;
	for (const struct stream *s : all_streams())
		if (!stream_captures(s)) add(&all, s->tail);
	device_wait(all);
	orphans->clear();
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

static void record(struct event *e, const struct stream *s)
{
	e->recorded = true;
	e->time = seconds();
	e->capture = s->capture;
	e->nodes = s->capture_tail;
	e->after = stream_captures(s) ? operations() : stream_dependencies(s);
}
} // namespace emu

using namespace emu;

extern "C" {
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *handle, unsigned flags, int priority)
{
	api_call call;
	if (call.refused) return failed(call.refused);
	if (!handle || (flags & ~static_cast<unsigned>(cudaStreamNonBlocking)))
		return failed(cudaErrorInvalidValue);
	struct stream *s = new struct stream;
	s->blocking = !(flags & cudaStreamNonBlocking);
	s->priority = std::clamp(priority, -5, 0);
	streams->insert(s);
	*handle = reinterpret_cast<cudaStream_t>(s);
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *handle, unsigned flags)
{
	return cudaStreamCreateWithPriority(handle, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *handle)
{
	return cudaStreamCreateWithPriority(handle, cudaStreamDefault, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority)
{
	api_call call;
	cudaError_t error = cudaSuccess;
	struct stream *s = stream_find(handle, &error);
	if (s) *priority = s->priority;
	return failed(error);
}

/* What is queued still runs. */
cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
	api_call call;
	cudaError_t error = cudaSuccess;
	struct stream *s = stream_find(handle, &error);
	if (call.refused || !s || s == legacy)
		return failed(call.refused ? call.refused : cudaErrorInvalidResourceHandle);
	if (stream_captures(s)) capture_break(s->capture, cudaErrorStreamCaptureInvalidated);
	add(orphans, s->tail);
	streams->erase(s);
	delete s;
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
	api_call call;
	return failed(call.refused ? call.refused : stream_wait(handle));
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
	api_call call;
	cudaError_t error = call.refused;
	struct stream *s = error ? nullptr : stream_find(handle, &error);
	if (!s) return failed(error);
	if (stream_captures(s))
		return failed(capture_break(s->capture, cudaErrorStreamCaptureUnsupported));
	return failed(device_poll(stream_dependencies(s)) ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaDeviceSynchronize(void)
{
	api_call call(true);
	if (call.refused) return failed(call.refused);
	device_wait_all();
	return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *handle, unsigned flags)
{
	api_call call;
	if (call.refused) return failed(call.refused);
	struct event *e = new struct event;
	e->timed = !(flags & cudaEventDisableTiming);
	events->insert(e);
	*handle = reinterpret_cast<cudaEvent_t>(e);
	return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *handle)
{
	return cudaEventCreateWithFlags(handle, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
	api_call call;
	struct event *e = event_find(handle);
	if (!e) return failed(cudaErrorInvalidResourceHandle);
	events->erase(e);
	delete e;
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream)
{
	api_call call;
	cudaError_t error = call.refused;
	struct event *e = event_find(handle);
	struct stream *s = stream_find(stream, &error);
	if (!error && s == legacy) error = capture_forbids_legacy();
	if (error || !e) return failed(error ? error : cudaErrorInvalidResourceHandle);
	if (stream_captures(s) && s->capture->invalid) return failed(cudaErrorStreamCaptureInvalidated);
	record(e, s);
	return cudaSuccess;
}

/* An event that was never recorded is no reason to wait. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned flags)
{
	api_call call;
	cudaError_t error = call.refused;
	struct event *e = event_find(handle);
	struct stream *s = stream_find(stream, &error);
	if (!error && !e) error = cudaErrorInvalidResourceHandle;
	if (!error && flags) error = cudaErrorInvalidValue;
	if (error) return failed(error);
	if (e->capture || stream_captures(s)) return failed(capture_wait_event(s, e));
	/* The stream's own operations stay before: waiting adds. */
	add(&s->tail, e->after);
	return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
	api_call call;
	struct event *e = event_find(handle);
	if (call.refused || !e)
		return failed(call.refused ? call.refused : cudaErrorInvalidResourceHandle);
	if (e->capture) return failed(capture_break(e->capture, cudaErrorCapturedEvent));
	device_wait(operations(e->after));
	return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t handle)
{
	api_call call;
	struct event *e = event_find(handle);
	if (call.refused || !e)
		return failed(call.refused ? call.refused : cudaErrorInvalidResourceHandle);
	if (e->capture) return failed(capture_break(e->capture, cudaErrorCapturedEvent));
	return failed(device_poll(operations(e->after)) ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
	api_call call;
	struct event *from = event_find(start), *to = event_find(end);
	if (!from || !to || !from->recorded || !to->recorded || !from->timed || !to->timed)
		return failed(cudaErrorInvalidResourceHandle);
	if (!device_poll(operations(from->after)) || !device_poll(operations(to->after)))
		return failed(cudaErrorNotReady);
	*milliseconds = static_cast<float>(1e3 * (to->time - from->time));
	return cudaSuccess;
}

} /* extern "C" */

namespace
{
struct host_function_work : emu::work {
	cudaHostFn_t function;
	void *data;
	host_function_work(cudaHostFn_t f, void *argument)
	    : work("a host function"), function(f), data(argument)
	{
		type = NODE_HOST;
		of_host = true;
	}
	void run(struct emu::operation *) override
	{
		function(data);
	}
};
} // namespace

extern "C" cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
	api_call call;
	if (call.refused || !function)
		return failed(call.refused ? call.refused : cudaErrorInvalidValue);
	return failed(stream_submit(stream, std::make_shared<host_function_work>(function, data)));
}
