#include "tests/lib/memory_device.h"

#include <string.h>

/* The allocator stands for the backend. */
static struct kv_allocator *allocator_of(struct kn_backend *backend)
{
	return (struct kv_allocator *)(void *)backend;
}

static enum kv_status buffer_create(
    struct kn_backend *backend, enum kn_memory kind, size_t bytes, void **buffer)
{
	void *memory = kv_alloc(allocator_of(backend), bytes);

	(void)kind;
	if (memory == NULL) return KV_NO_MEMORY;
	*buffer = memory;
	return KV_OK;
}

static void buffer_destroy(struct kn_backend *backend, void *buffer)
{
	kv_free(allocator_of(backend), buffer);
}

static enum kv_status transfer(
    struct kn_backend *backend, struct kn_stream *stream, void *to, const void *from, size_t bytes)
{
	(void)backend;
	(void)stream;
	if (bytes > 0) memcpy(to, from, bytes);
	return KV_OK;
}

static enum kv_status fill(
    struct kn_backend *backend, struct kn_stream *stream, void *memory, uint8_t value, size_t bytes)
{
	(void)backend;
	(void)stream;
	if (bytes > 0) memset(memory, value, bytes);
	return KV_OK;
}

static enum kv_status copy(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_copy_arguments *a)
{
	for (uint32_t i = 0; i < a->job_count; i++) {
		const struct kn_copy_job *job = &a->jobs[i];

		if (job->destination < job->source + job->bytes &&
		    job->source < job->destination + job->bytes)
			return kv_fail(KV_INVALID, "copy job %u overlaps itself", i);
		KV_TRY(transfer(backend, stream, job->destination, job->source, job->bytes));
	}
	return KV_OK;
}

static enum kv_status stream_wait(struct kn_backend *backend, struct kn_stream *stream)
{
	(void)backend;
	(void)stream;
	return KV_OK;
}

#define OPS(one)                                                                                   \
	{                                                                                              \
		.abi = KN_BACKEND_ABI, .unified = (one), .name = "memory", .buffer_create = buffer_create, \
		.buffer_destroy = buffer_destroy, .upload = transfer, .download = transfer, .fill = fill,  \
		.stream_wait = stream_wait, .copy = copy                                                   \
	}
static const struct kn_backend_ops ops[2] = {OPS(0), OPS(1)};

struct kn_device kvt_memory_device(struct kv_allocator *allocator, int unified)
{
	struct kn_device device = {&ops[unified != 0], (struct kn_backend *)(void *)allocator, NULL};

	return device;
}
