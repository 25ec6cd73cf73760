/* Streams, the descriptors that operations send ahead, and the scratch memory that they share. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/backend_cuda.h"

enum { STEP = 64 };

static size_t aligned(size_t bytes)
{
	return (bytes + STEP - 1) / STEP * STEP;
}

static size_t ring_bytes(const struct kn_cuda_ring *ring)
{
	return ring->part_bytes * KN_CUDA_RING_PARTS;
}

static void destroy_ring(struct kn_stream *stream)
{
	struct kn_cuda_ring *ring = &stream->ring;

	if (ring->host != NULL) (void)cudaFreeHost(ring->host);
	kn_cuda_give(stream->backend, KN_CUDA_SCRATCH, ring_bytes(ring), ring->device);
	ring->host = ring->device = NULL;
	ring->part_bytes = 0;
}

/* Nothing may be queued that reads the ring. */
static enum kv_status create_ring(struct kn_stream *stream, size_t part_bytes)
{
	struct kn_cuda_ring *ring = &stream->ring;
	void *host = NULL, *device = NULL;
	size_t bytes = part_bytes * KN_CUDA_RING_PARTS;
	enum kv_status status;

	KV_TRY(kn_cuda_check(
	    cudaHostAlloc(&host, bytes, cudaHostAllocPortable), "taking page-locked memory"));
	status = kn_cuda_take(stream->backend, KN_CUDA_SCRATCH, bytes, &device);
	if (status != KV_OK) {
		(void)cudaFreeHost(host);
		return status;
	}
	destroy_ring(stream);
	ring->host = host;
	ring->device = device;
	ring->part_bytes = part_bytes;
	ring->used = 0;
	ring->part = 0;
	memset(ring->state, 0, sizeof ring->state);
	return KV_OK;
}

static enum kv_status create_events(struct kn_stream *stream)
{
	const unsigned flags = cudaEventDisableTiming;

	for (int i = 0; i < KN_CUDA_RING_PARTS; i++)
		KV_TRY(kn_cuda_check(
		    cudaEventCreateWithFlags(&stream->ring.passed[i], flags), "creating an event"));
	return kn_cuda_check(cudaEventCreateWithFlags(&stream->reached, flags), "creating an event");
}

static void give_scratch(struct kn_stream *stream, struct kn_cuda_scratch *scratch)
{
	kn_cuda_give(stream->backend, KN_CUDA_SCRATCH, scratch->bytes, scratch->memory);
	*scratch = (struct kn_cuda_scratch){0};
}

void kn_cuda_stream_destroy(struct kn_backend *backend, struct kn_stream *stream)
{
	if (stream == NULL) return;
	stream->step.open = 0;
	(void)kn_cuda_pause(stream);
	if (stream->compute != NULL) (void)cudaStreamSynchronize(stream->compute);
	kn_cuda_graphs_destroy(stream);
	destroy_ring(stream);
	give_scratch(stream, &stream->scratch);
	give_scratch(stream, &stream->workspace);
	for (int i = 0; i < KN_CUDA_RING_PARTS; i++)
		if (stream->ring.passed[i] != NULL) (void)cudaEventDestroy(stream->ring.passed[i]);
	if (stream->reached != NULL) (void)cudaEventDestroy(stream->reached);
	if (stream->compute != NULL) (void)cudaStreamDestroy(stream->compute);
	kv_free(backend->allocator, stream);
}

enum kv_status kn_cuda_stream_create(
    struct kn_backend *backend, enum kn_stream_priority priority, struct kn_stream **stream)
{
	int urgency =
	    priority == KN_STREAM_COMPUTE ? backend->highest_priority : backend->lowest_priority;
	struct kn_stream *made = kv_alloc_zero(backend->allocator, sizeof *made);
	enum kv_status status;

	if (made == NULL) return KV_NO_MEMORY;
	made->backend = backend;
	KV_TRY_GOTO(status,
	    kn_cuda_check(cudaStreamCreateWithPriority(&made->compute, cudaStreamNonBlocking, urgency),
	        "creating a stream"),
	    fail);
	KV_TRY_GOTO(status, create_events(made), fail);
	KV_TRY_GOTO(status, create_ring(made, KN_CUDA_FIRST_PART_BYTES), fail);
	/* Now, as it is known how much: not when the first prompt comes. */
	if (priority == KN_STREAM_COMPUTE)
		KV_TRY_GOTO(status, kn_cuda_reserve(made, &made->workspace, KN_CUDA_WORKSPACE_BYTES), fail);
	*stream = made;
	return KV_OK;
fail:
	kn_cuda_stream_destroy(backend, made);
	return status;
}

/* The event is the earlier stream's, and recorded anew each time: who waited for it before waits
 * for what it stood for then. */
enum kv_status kn_cuda_stream_order(
    struct kn_backend *backend, struct kn_stream *earlier, struct kn_stream *later)
{
	(void)backend;
	if (earlier == later) return KV_OK;
	if (earlier->step.open || later->step.open)
		return kv_fail(KV_INVALID, "streams are ordered outside of steps");
	KV_TRY(
	    kn_cuda_check(cudaEventRecord(earlier->reached, earlier->compute), "ordering two streams"));
	return kn_cuda_check(
	    cudaStreamWaitEvent(later->compute, earlier->reached, 0), "ordering two streams");
}

void kn_cuda_stream_fail(struct kn_stream *stream, const char *format, ...)
{
	va_list arguments;

	if (stream->failed != KV_OK) return;
	va_start(arguments, format);
	(void)vsnprintf(stream->failure, sizeof stream->failure, format, arguments);
	va_end(arguments);
	stream->failed = KV_INTERNAL;
}

/* What a stream ended with is what it ends with ever after. */
enum kv_status kn_cuda_drain(struct kn_stream *stream)
{
	cudaError_t error;

	(void)kn_cuda_pause(stream);
	/* A failed stream, too: what still runs must be over before memory goes. */
	error = cudaStreamSynchronize(stream->compute);
	if (error != cudaSuccess)
		kn_cuda_stream_fail(stream,
		    "cuda: an operation failed on the device: %s (%d); the worker has to be started again",
		    cudaGetErrorString(error), (int)error);
	if (stream->failed != KV_OK) return kv_fail(stream->failed, "%s", stream->failure);
	memset(stream->ring.state, 0, sizeof stream->ring.state);
	stream->step.waited = stream->step.launched;
	return KV_OK;
}

/* No operation is under way here, so that the ring can begin anew. */
enum kv_status kn_cuda_stream_wait(struct kn_backend *backend, struct kn_stream *stream)
{
	int captured = stream->step.capturing;

	(void)backend;
	KV_TRY(kn_cuda_drain(stream));
	stream->ring.part = 0;
	stream->ring.used = 0;
	if (stream->step.open) kn_cuda_step_waited(stream, captured);
	return KV_OK;
}

enum kv_status kn_cuda_part_queued(struct kn_stream *stream, uint32_t part)
{
	stream->ring.state[part] = KN_CUDA_PART_QUEUED;
	return kn_cuda_check(
	    cudaEventRecord(stream->ring.passed[part], stream->compute), "recording an event");
}

/* The next part, once the copies out of it are done. */
static enum kv_status next_part(struct kn_stream *stream)
{
	struct kn_cuda_ring *ring = &stream->ring;
	uint32_t next = (ring->part + 1) % KN_CUDA_RING_PARTS;

	if (stream->step.capturing)
		ring->state[ring->part] = KN_CUDA_PART_CAPTURED;
	else
		KV_TRY(kn_cuda_part_queued(stream, ring->part));
	ring->part = next;
	ring->used = 0;
	if (ring->state[next] == KN_CUDA_PART_FREE) return KV_OK;
	if (!stream->step.capturing) {
		ring->state[next] = KN_CUDA_PART_FREE;
		return kn_cuda_check(cudaEventSynchronize(ring->passed[next]), "waiting for descriptors");
	}
	/* All parts come free at once, so that there is one more piece and not one for each part. */
	ring->too_small = 1;
	KV_TRY(kn_cuda_drain(stream));
	kn_cuda_resume(stream);
	return KV_OK;
}

/* More than a part holds: a larger ring, once what is queued is done. Seldom, and never again for
 * as much. */
static enum kv_status grow_ring(struct kn_stream *stream, size_t bytes)
{
	KV_TRY(kn_cuda_drain(stream));
	KV_TRY(kn_cuda_reserve_ring(stream, bytes));
	kn_cuda_resume(stream);
	return KV_OK;
}

enum kv_status kn_cuda_reserve_ring(struct kn_stream *stream, size_t part_bytes)
{
	size_t part = stream->ring.part_bytes;

	if (part_bytes <= part) return KV_OK;
	while (part < part_bytes)
		part *= 2;
	return create_ring(stream, part);
}

/* One that does not fit on the device stays as it is: pieces end where it is full. */
enum kv_status kn_cuda_fit_ring(struct kn_stream *stream)
{
	size_t part = stream->ring.part_bytes * 2;

	if (!stream->ring.too_small) return KV_OK;
	stream->ring.too_small = 0;
	if (part > KN_CUDA_STEP_PART_BYTES) return KV_OK;
	KV_TRY(kn_cuda_drain(stream));
	(void)create_ring(stream, part);
	return KV_OK;
}

enum kv_status kn_cuda_describe(
    struct kn_stream *stream, size_t bytes, struct kn_cuda_descriptors *descriptors)
{
	struct kn_cuda_ring *ring = &stream->ring;
	size_t at;

	bytes = aligned(bytes);
	if (bytes > ring->part_bytes) KV_TRY(grow_ring(stream, bytes));
	if (bytes > ring->part_bytes - ring->used) KV_TRY(next_part(stream));
	at = ring->part * ring->part_bytes + ring->used;
	descriptors->host = ring->host + at;
	descriptors->device = ring->device + at;
	descriptors->bytes = bytes;
	ring->used += bytes;
	return KV_OK;
}

enum kv_status kn_cuda_send(struct kn_stream *stream, const struct kn_cuda_descriptors *descriptors)
{
	if (descriptors->bytes == 0) return KV_OK;
	return kn_cuda_check(cudaMemcpyAsync(descriptors->device, descriptors->host, descriptors->bytes,
	                         cudaMemcpyHostToDevice, stream->compute),
	    "sending descriptors");
}

enum kv_status kn_cuda_reserve(
    struct kn_stream *stream, struct kn_cuda_scratch *scratch, size_t bytes)
{
	struct kn_backend *backend = stream->backend;
	void *memory = NULL;

	if (bytes <= scratch->bytes) return KV_OK;
	KV_TRY(kn_cuda_drain(stream));
	/* Lists grow by the token: not each time. */
	if (scratch->bytes > 0) bytes += bytes / 4;
	/* The old one goes first: there may not be room for both. */
	give_scratch(stream, scratch);
	KV_TRY(kn_cuda_take(backend, KN_CUDA_SCRATCH, bytes, &memory));
	scratch->memory = memory;
	scratch->bytes = bytes;
	kn_cuda_resume(stream);
	return KV_OK;
}
