/* Steps. What is queued within one is captured, and launched as one graph: hundreds of launches
 * become one. A step is a single piece unless something comes between that must not wait, or that
 * a capture forbids: stream_wait, memory that grows, host memory that is not page-locked.
 *
 * A piece mostly has the form of an earlier one: then that one's executable takes over the new
 * parameters (cudaGraphExecUpdate), else a new one is made. Nothing is kept of a piece but its
 * executable, and that is never launched without having been updated from, or made of, what was
 * captured just before: no parameter can be stale.
 *
 * Captures are relaxed: in the other modes a capture breaks, and with it the stream, when this
 * thread calls cudaMalloc and its like, which say nothing against the piece, and which a library
 * may call that loads a kernel when it is launched for the first time. What the mode would guard is
 * guarded by kn_cuda_pause: memory that a piece is to use goes when the piece is done. */
#include "kernels/cuda/backend_cuda.h"

enum {
	/* A piece that ends because the host waits, and is so short, costs more as a graph than its
	 * launches do, which start at once: capture, update and launch are some 30 µs before the first
	 * kernel begins. A host that waits once in a step does so in each layer; what follows is not
	 * captured. */
	SHORT_PIECE = 64,
	/* Executables of as many nodes that are tried; more than two forms of one length are rare. */
	MOST_TRIES = 4
};

static enum kv_status lose(struct kn_stream *stream, cudaError_t error, const char *what)
{
	(void)cudaGetLastError();
	kn_cuda_stream_fail(stream,
	    "cuda: what a step queued is lost, %s: %s (%d); start the worker again, with "
	    "CLUSTERKV_CUDA_GRAPHS=0 if it happens again",
	    what, cudaGetErrorString(error), (int)error);
	return kv_fail(stream->failed, "%s", stream->failure);
}

/* An executable goes only when it does not run. */
static void drop(struct kn_stream *stream, struct kn_cuda_graph *graph)
{
	struct kn_cuda_step *step = &stream->step;

	if (graph->exec == NULL) return;
	if (graph->launch > step->waited) {
		(void)cudaStreamSynchronize(stream->compute);
		step->waited = step->launched;
	}
	(void)cudaGraphExecDestroy(graph->exec);
	*graph = (struct kn_cuda_graph){0};
}

void kn_cuda_graphs_destroy(struct kn_stream *stream)
{
	for (int i = 0; i < KN_CUDA_GRAPHS; i++)
		drop(stream, &stream->step.graphs[i]);
}

/* An executable that has taken over what was captured, or NULL. Those used last come first. */
static struct kn_cuda_graph *update(struct kn_stream *stream, cudaGraph_t captured, size_t nodes)
{
	struct kn_cuda_step *step = &stream->step;
	uint64_t before = UINT64_MAX;

	for (int tries = 0; tries < MOST_TRIES; tries++) {
		struct kn_cuda_graph *best = NULL;
		cudaGraphExecUpdateResultInfo result;

		for (int i = 0; i < KN_CUDA_GRAPHS; i++) {
			struct kn_cuda_graph *graph = &step->graphs[i];

			if (graph->exec == NULL || graph->shape != step->shape || graph->nodes != nodes ||
			    graph->launch >= before)
				continue;
			if (best == NULL || graph->launch > best->launch) best = graph;
		}
		if (best == NULL) return NULL;
		if (cudaGraphExecUpdate(best->exec, captured, &result) == cudaSuccess) {
			stream->backend->steps.updated++;
			return best;
		}
		/* Another form: no error of the next call. */
		(void)cudaGetLastError();
		before = best->launch;
	}
	return NULL;
}

/* A new one, in the place of the one that was not used for longest if there is none free. */
static enum kv_status make(
    struct kn_stream *stream, cudaGraph_t captured, size_t nodes, struct kn_cuda_graph **made)
{
	struct kn_cuda_step *step = &stream->step;
	struct kn_cuda_graph *graph = &step->graphs[0];
	cudaError_t error;

	for (int i = 1; i < KN_CUDA_GRAPHS && graph->exec != NULL; i++)
		if (step->graphs[i].exec == NULL || step->graphs[i].launch < graph->launch)
			graph = &step->graphs[i];
	drop(stream, graph);
	error = cudaGraphInstantiate(&graph->exec, captured, 0);
	if (error == cudaErrorMemoryAllocation) {
		(void)cudaGetLastError();
		graph->exec = NULL;
		kn_cuda_graphs_destroy(stream);
		error = cudaGraphInstantiate(&graph->exec, captured, 0);
	}
	if (error != cudaSuccess) {
		graph->exec = NULL;
		return lose(stream, error, "no executable graph can be made of it");
	}
	graph->shape = step->shape;
	graph->nodes = nodes;
	stream->backend->steps.made++;
	*made = graph;
	return KV_OK;
}

static enum kv_status launch(struct kn_stream *stream, cudaGraph_t captured)
{
	struct kn_cuda_step *step = &stream->step;
	struct kn_cuda_graph *graph;
	cudaError_t error = cudaGraphGetNodes(captured, NULL, &step->nodes);

	if (error != cudaSuccess) return lose(stream, error, "its graph cannot be read");
	if (step->nodes == 0) return KV_OK;
	graph = update(stream, captured, step->nodes);
	if (graph == NULL) KV_TRY(make(stream, captured, step->nodes, &graph));
	error = cudaGraphLaunch(graph->exec, stream->compute);
	if (error != cudaSuccess) return lose(stream, error, "its graph cannot be launched");
	graph->launch = ++step->launched;
	stream->backend->steps.launched++;
	return KV_OK;
}

/* The copies out of the ring are queued now, and its parts come free behind them. */
static enum kv_status record_parts(struct kn_stream *stream)
{
	for (uint32_t i = 0; i < KN_CUDA_RING_PARTS; i++)
		if (stream->ring.state[i] == KN_CUDA_PART_CAPTURED)
			KV_TRY(kn_cuda_part_queued(stream, i));
	return KV_OK;
}

enum kv_status kn_cuda_pause(struct kn_stream *stream)
{
	cudaGraph_t captured = NULL;
	enum kv_status status;
	cudaError_t error;

	if (!stream->step.capturing) return KV_OK;
	stream->step.capturing = 0;
	error = cudaStreamEndCapture(stream->compute, &captured);
	if (error != cudaSuccess || captured == NULL)
		return lose(stream, error, "a call broke its capture");
	status = launch(stream, captured);
	(void)cudaGraphDestroy(captured);
	KV_TRY(status);
	return record_parts(stream);
}

/* What cannot be captured is queued as it comes: slower, and right. */
void kn_cuda_resume(struct kn_stream *stream)
{
	struct kn_cuda_step *step = &stream->step;
	cudaError_t error;

	if (!step->open || step->direct || step->capturing || stream->failed != KV_OK) return;
	error = cudaStreamBeginCapture(stream->compute, cudaStreamCaptureModeRelaxed);
	step->capturing = error == cudaSuccess;
	if (step->capturing) return;
	(void)cudaGetLastError();
	step->direct = 1;
	stream->backend->graphs_off = 1;
	kv_log(KV_LOG_WARNING, "kernels", "cuda: steps are not captured, as that fails: %s (%d)",
	    cudaGetErrorString(error), (int)error);
}

void kn_cuda_step_waited(struct kn_stream *stream, int captured)
{
	struct kn_cuda_step *step = &stream->step;

	if (captured && step->nodes < SHORT_PIECE) step->direct = 1;
	kn_cuda_resume(stream);
}

enum kv_status kn_cuda_step_begin(
    struct kn_backend *backend, struct kn_stream *stream, uint32_t shape)
{
	struct kn_cuda_step *step = &stream->step;

	if (step->open) return kv_fail(KV_INVALID, "a step begins within a step");
	if (stream->failed != KV_OK) return kv_fail(stream->failed, "%s", stream->failure);
	step->shape = shape;
	step->direct = backend->graphs_off;
	if (!step->direct) KV_TRY(kn_cuda_fit_ring(stream));
	step->open = 1;
	kn_cuda_resume(stream);
	return KV_OK;
}

enum kv_status kn_cuda_step_end(struct kn_backend *backend, struct kn_stream *stream)
{
	(void)backend;
	if (!stream->step.open) return kv_fail(KV_INVALID, "a step ends that was not begun");
	stream->step.open = 0;
	KV_TRY(kn_cuda_pause(stream));
	if (stream->failed != KV_OK) return kv_fail(stream->failed, "%s", stream->failure);
	return KV_OK;
}
