/* Operations, and the streams, events, captures and graphs that order them. All state here is under
 * state_lock (see api_call), which is released while the host waits and while an operation runs. */
#ifndef KVT_CUDA_ON_CPU_STREAMS_H
#define KVT_CUDA_ON_CPU_STREAMS_H

#include <functional>
#include <memory>
#include <vector>

#include "tests/lib/cuda_on_cpu/runtime.h"

namespace emu
{
/* What an operation is as a node of a graph. What an update must leave as it is, beside that, is
 * `memory`: where a copy goes from and to. */
enum node_type { NODE_KERNEL, NODE_COPY, NODE_FILL, NODE_HOST, NODE_MEMORY };

/* What an operation does. Launches of a graph share it, so running it changes nothing in it. */
struct work {
	const char *name;
	enum node_type type = NODE_KERNEL;
	int memory = 0;
	bool of_host = false;        /* a host function: device memory stays closed */
	bool orders_threads = false; /* run() itself calls operation_begin on each of its threads */
	virtual void run(struct operation *op) = 0;
	explicit work(const char *words) : name(words)
	{
	}
	virtual ~work() = default;
};
using work_ref = std::shared_ptr<struct work>;

struct operation {
	uint64_t number = 0; /* in order of issue */
	work_ref work;
	std::vector<std::shared_ptr<struct operation>> after; /* empty once done */
	bool done = false;
	uint64_t needed_by = 0; /* number of the request that needs it */
	char queued_token = 0, done_token = 0;
};
using operation_ref = std::shared_ptr<struct operation>;
using operations = std::vector<operation_ref>;

/* Take the order that the operation was queued with: what the host did before, and what it comes
 * after. In the context of a thread that knows nothing else. */
void operation_begin(struct operation *op);

/* ---- device.cpp: the thread that runs operations ---- */

/* Queue, and run what the seed's policy runs at once. */
operation_ref device_queue(work_ref work, operations after);
/* Wait until all are done; the host then knows what they did. */
void device_wait(const operations &targets);
/* What a query does: are all done? Brings them nearer: polling ends. */
bool device_poll(const operations &targets);

/* ---- streams.cpp ---- */

struct graph_node {
	work_ref work;
	std::vector<size_t> after;
};
struct graph {
	std::vector<struct graph_node> nodes;
};

struct capture {
	std::shared_ptr<struct graph> graph = std::make_shared<struct graph>();
	struct stream *origin = nullptr;
	cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
	pthread_t thread = {};
	bool invalid = false;
};
using capture_ref = std::shared_ptr<struct capture>;

struct stream {
	bool blocking = true; /* waits for the legacy stream and that for it */
	int priority = 0;
	operations tail; /* what the next operation comes after */
	capture_ref capture;
	std::vector<size_t> capture_tail;
};

struct event {
	operations after;
	double time = 0;
	bool recorded = false, timed = true;
	capture_ref capture; /* recorded on a stream that was captured */
	std::vector<size_t> nodes;
};

/* NULL with *error set for a handle that is none. */
struct stream *stream_find(cudaStream_t handle, cudaError_t *error);
/* What an operation queued on the stream now comes after. */
operations stream_dependencies(const struct stream *s);
/* Put work on a stream: as an operation, or as a node of the graph that is captured. */
cudaError_t stream_submit(cudaStream_t handle, work_ref work);
/* Is anything captured on it? */
bool stream_captures(const struct stream *s);
/* Wait for all that was queued on a stream (blocking calls). */
cudaError_t stream_wait(cudaStream_t handle);
void device_wait_all(void);
std::vector<struct stream *> all_streams(void);
struct event *event_find(cudaEvent_t handle);

/* ---- graphs.cpp ---- */

/* An error of a call that a capture forbids: that capture is lost. */
cudaError_t capture_break(const capture_ref &capture, cudaError_t error);
cudaError_t capture_submit(struct stream *s, work_ref work);
cudaError_t capture_wait_event(struct stream *s, const struct event *e);
/* The error of an unsafe call now (cudaMalloc, …), or cudaSuccess. */
cudaError_t capture_forbids(void);
/* The error of an operation on the legacy stream now, or cudaSuccess. */
cudaError_t capture_forbids_legacy(void);
} // namespace emu

#endif
