/* Stream capture and graphs. */
#include <pthread.h>
#include <algorithm>
#include <set>

#include "tests/lib/cuda_on_cpu/streams.h"

namespace emu
{
struct graph_exec {
	std::shared_ptr<const struct graph> graph;
	operations last; /* of its last launch: launches of one graph follow each other */
};
enum { EXEC_BYTES = 64 << 10 }; /* of the device, that an executable graph takes */

static std::set<std::shared_ptr<struct graph>> *const graphs =
    new std::set<std::shared_ptr<struct graph>>;
static std::set<struct graph_exec *> *const execs = new std::set<struct graph_exec *>;

static std::shared_ptr<struct graph> graph_find(cudaGraph_t handle)
{
	for (const std::shared_ptr<struct graph> &g : *graphs)
		if (g.get() == reinterpret_cast<struct graph *>(handle)) return g;
	return nullptr;
}

static struct graph_exec *exec_find(cudaGraphExec_t handle)
{
	struct graph_exec *exec = reinterpret_cast<struct graph_exec *>(handle);
	return execs->count(exec) ? exec : nullptr;
}

cudaError_t capture_break(const capture_ref &capture, cudaError_t error)
{
	capture->invalid = true;
	return error;
}

cudaError_t capture_submit(struct stream *s, work_ref work)
{
	if (s->capture->invalid) return cudaErrorStreamCaptureInvalidated;
	std::vector<struct graph_node> &nodes = s->capture->graph->nodes;
	nodes.push_back({std::move(work), s->capture_tail});
	s->capture_tail = {nodes.size() - 1};
	return cudaSuccess;
}

/* A stream joins the capture when it waits for an event of it; nothing else may cross. */
cudaError_t capture_wait_event(struct stream *s, const struct event *e)
{
	if (!e->capture) return capture_break(s->capture, cudaErrorStreamCaptureIsolation);
	if (e->capture->invalid) return cudaErrorStreamCaptureInvalidated;
	if (!e->capture->origin) return cudaErrorCapturedEvent; /* that capture has ended */
	if (stream_captures(s) && s->capture != e->capture) {
		capture_break(s->capture, cudaErrorStreamCaptureMerge);
		return capture_break(e->capture, cudaErrorStreamCaptureMerge);
	}
	cudaError_t error = cudaSuccess;
	if (s == stream_find(nullptr, &error))
		return capture_break(e->capture, cudaErrorStreamCaptureImplicit);
	if (!stream_captures(s)) s->capture_tail.clear();
	s->capture = e->capture;
	for (size_t node : e->nodes)
		if (std::find(s->capture_tail.begin(), s->capture_tail.end(), node) ==
		    s->capture_tail.end())
			s->capture_tail.push_back(node);
	return cudaSuccess;
}

cudaError_t capture_forbids(void)
{
	for (const struct stream *s : all_streams()) {
		if (!stream_captures(s) || s->capture->mode == cudaStreamCaptureModeRelaxed) continue;
		if (s->capture->mode == cudaStreamCaptureModeGlobal ||
		    pthread_equal(s->capture->thread, pthread_self()))
			return capture_break(s->capture, cudaErrorStreamCaptureUnsupported);
	}
	return cudaSuccess;
}

/* The legacy stream would wait for the captured one. */
cudaError_t capture_forbids_legacy(void)
{
	for (const struct stream *s : all_streams())
		if (stream_captures(s) && s->blocking)
			return capture_break(s->capture, cudaErrorStreamCaptureImplicit);
	return cudaSuccess;
}

/* Is every node before the end of the stream that the capture began on? */
static bool is_joined(const struct stream *origin)
{
	const std::vector<struct graph_node> &nodes = origin->capture->graph->nodes;
	std::vector<bool> reached(nodes.size());
	std::vector<size_t> open = origin->capture_tail;
	while (!open.empty()) {
		size_t node = open.back();
		open.pop_back();
		if (reached[node]) continue;
		reached[node] = true;
		open.insert(open.end(), nodes[node].after.begin(), nodes[node].after.end());
	}
	return std::all_of(reached.begin(), reached.end(), [](bool r) { return r; });
}

static void end_capture(const capture_ref &capture)
{
	for (struct stream *s : all_streams())
		if (s->capture == capture) {
			s->capture = nullptr;
			s->capture_tail.clear();
		}
	capture->origin = nullptr;
}

static cudaError_t check_end(const struct stream *s)
{
	if (!stream_captures(s)) return cudaErrorIllegalState;
	if (s->capture->origin != s) return capture_break(s->capture, cudaErrorStreamCaptureUnmatched);
	if (s->capture->mode != cudaStreamCaptureModeRelaxed &&
	    !pthread_equal(s->capture->thread, pthread_self()))
		return cudaErrorStreamCaptureWrongThread;
	return cudaSuccess;
}
/* May an executable of `old` become one of `now`? Nodes are paired in the order of their capture.
 * A kernel may become another one, its shape and arguments may change, and so may addresses and
 * sizes of copies and fills. */
static cudaGraphExecUpdateResult compare(const struct graph &old, const struct graph &now)
{
	if (old.nodes.size() != now.nodes.size()) return cudaGraphExecUpdateErrorTopologyChanged;
	for (size_t i = 0; i < now.nodes.size(); i++) {
		const struct graph_node &from = old.nodes[i], &to = now.nodes[i];
		if (from.after != to.after) return cudaGraphExecUpdateErrorTopologyChanged;
		if (from.work->type != to.work->type) return cudaGraphExecUpdateErrorNodeTypeChanged;
		if (to.work->type == NODE_MEMORY) return cudaGraphExecUpdateErrorNotSupported;
		if (from.work->memory != to.work->memory)
			return cudaGraphExecUpdateErrorParametersChanged;
	}
	return cudaGraphExecUpdateSuccess;
}
} // namespace emu

using namespace emu;

extern "C" {
cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode)
{
	api_call call;
	cudaError_t error = call.refused, none = cudaSuccess;
	struct stream *s = stream_find(handle, &error);
	if (error) return failed(error);
	if (s == stream_find(nullptr, &none)) return failed(cudaErrorStreamCaptureUnsupported);
	if (stream_captures(s)) return failed(capture_break(s->capture, cudaErrorIllegalState));
	s->capture = std::make_shared<struct capture>();
	s->capture->origin = s;
	s->capture->mode = mode;
	s->capture->thread = pthread_self();
	s->capture_tail.clear();
	return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph)
{
	api_call call;
	cudaError_t error = call.refused;
	struct stream *s = stream_find(handle, &error);
	*graph = nullptr;
	if (error || (error = check_end(s)) != cudaSuccess) return failed(error);
	capture_ref capture = s->capture;
	if (capture->invalid)
		error = cudaErrorStreamCaptureInvalidated;
	else if (!is_joined(s))
		error = cudaErrorStreamCaptureUnjoined;
	end_capture(capture);
	if (error) return failed(error);
	graphs->insert(capture->graph);
	*graph = reinterpret_cast<cudaGraph_t>(capture->graph.get());
	return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *status)
{
	api_call call;
	cudaError_t error = call.refused;
	struct stream *s = stream_find(handle, &error);
	if (error) return failed(error);
	*status = cudaStreamCaptureStatusNone;
	if (stream_captures(s))
		*status = s->capture->invalid ? cudaStreamCaptureStatusInvalidated
		                              : cudaStreamCaptureStatusActive;
	return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *handle, cudaGraph_t graph, unsigned long long)
{
	api_call call;
	std::shared_ptr<struct graph> g = graph_find(graph);
	if (call.refused || !g) return failed(call.refused ? call.refused : cudaErrorInvalidValue);
	if (!device_take(EXEC_BYTES)) return failed(cudaErrorMemoryAllocation);
	struct graph_exec *exec = new graph_exec{g, {}};
	execs->insert(exec);
	*handle = reinterpret_cast<cudaGraphExec_t>(exec);
	return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
	api_call call;
	std::shared_ptr<struct graph> g = graph_find(graph);
	if (!g || nodes) return failed(cudaErrorInvalidValue); /* only their number can be had here */
	*count = g->nodes.size();
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	api_call call;
	std::shared_ptr<struct graph> g = graph_find(graph);
	if (!g) return failed(cudaErrorInvalidValue);
	graphs->erase(g);
	return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle)
{
	api_call call;
	struct graph_exec *exec = exec_find(handle);
	if (!exec) return failed(cudaErrorInvalidValue);
	if (!std::all_of(exec->last.begin(), exec->last.end(),
	        [](const operation_ref &op) { return op->done; }))
		die_plainly("an executable graph is destroyed that may still run");
	execs->erase(exec);
	delete exec;
	device_give(EXEC_BYTES);
	return cudaSuccess;
}

cudaError_t cudaGraphExecUpdate(
    cudaGraphExec_t handle, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *info)
{
	api_call call;
	struct graph_exec *exec = exec_find(handle);
	std::shared_ptr<struct graph> g = graph_find(graph);
	*info = {cudaGraphExecUpdateError, nullptr, nullptr};
	if (call.refused || !exec || !g)
		return failed(call.refused ? call.refused : cudaErrorInvalidValue);
	info->result = compare(*exec->graph, *g);
	if (info->result != cudaGraphExecUpdateSuccess) return failed(cudaErrorGraphExecUpdateFailure);
	exec->graph = g; /* launches that are queued keep what they are */
	return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t)
{
	api_call call;
	return failed(exec_find(handle) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream)
{
	api_call call;
	cudaError_t error = call.refused, none = cudaSuccess;
	struct graph_exec *exec = exec_find(handle);
	struct stream *s = stream_find(stream, &error);
	if (error || !exec) return failed(error ? error : cudaErrorInvalidValue);
	if (stream_captures(s)) /* a graph in a graph is more than is needed */
		return failed(capture_break(s->capture, cudaErrorStreamCaptureUnsupported));
	if (s == stream_find(nullptr, &none) && (error = capture_forbids_legacy()) != cudaSuccess)
		return failed(error);
	operations before = stream_dependencies(s), queued, last;
	before.insert(before.end(), exec->last.begin(), exec->last.end());
	const std::vector<struct graph_node> &nodes = exec->graph->nodes;
	std::vector<bool> followed(nodes.size());
	for (const struct graph_node &node : nodes) {
		operations after = node.after.empty() ? before : operations();
		for (size_t i : node.after) {
			after.push_back(queued[i]);
			followed[i] = true;
		}
		queued.push_back(device_queue(node.work, std::move(after)));
	}
	for (size_t i = 0; i < nodes.size(); i++)
		if (!followed[i]) last.push_back(queued[i]);
	if (!last.empty()) s->tail = exec->last = last;
	return cudaSuccess;
}
}
