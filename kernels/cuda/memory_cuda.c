/* Buffers, registered memory of the host, transfers. */
#include <string.h>

#include "kernels/cuda/backend_cuda.h"

/* Memory is page-locked in pieces: the driver holds a lock while it does. */
static const size_t register_piece = (size_t)1 << 30;

/* An upload of so little within a step goes through the ring of descriptors. */
enum { STAGED_BYTES = 4096 };

enum kv_status kn_cuda_take(
    struct kn_backend *backend, enum kn_cuda_use use, size_t bytes, void **memory)
{
	const uint64_t *used = backend->used;
	uint64_t sum = used[KN_CUDA_WEIGHTS] + used[KN_CUDA_BUFFERS] + used[KN_CUDA_SCRATCH];
	void *taken = NULL;
	enum kv_status status = KV_NO_MEMORY;

	if (bytes <= backend->limit - sum)
		status = kn_cuda_check(cudaMalloc(&taken, bytes > 0 ? bytes : 1), "taking memory");
	if (status == KV_NO_MEMORY)
		return kv_fail(KV_NO_MEMORY,
		    "cuda: %zu bytes of device memory: of %llu, weights take %llu, key/values, clusters "
		    "and activations %llu, scratch %llu; lower --cache, --max-batch, --chunk or "
		    "--max-sequences, or raise --device-memory",
		    bytes, (unsigned long long)backend->limit, (unsigned long long)used[KN_CUDA_WEIGHTS],
		    (unsigned long long)used[KN_CUDA_BUFFERS], (unsigned long long)used[KN_CUDA_SCRATCH]);
	KV_TRY(status);
	backend->used[use] += bytes;
	if (sum + bytes > backend->most_used) backend->most_used = sum + bytes;
	*memory = taken;
	return KV_OK;
}

void kn_cuda_give(struct kn_backend *backend, enum kn_cuda_use use, size_t bytes, void *memory)
{
	if (memory == NULL) return;
	(void)cudaFree(memory);
	backend->used[use] -= bytes;
}

static enum kv_status add_block(
    struct kn_backend *backend, enum kn_memory kind, size_t bytes, struct kn_cuda_block **block)
{
	struct kn_cuda_block *made = kv_alloc_zero(backend->allocator, sizeof *made);

	if (made == NULL) return KV_NO_MEMORY;
	made->bytes = bytes;
	made->kind = kind;
	*block = made;
	return KV_OK;
}

static void link_block(struct kn_backend *backend, struct kn_cuda_block *block)
{
	block->next = backend->blocks;
	backend->blocks = block;
}

/* Taken out of the list; NULL when there is none. */
static struct kn_cuda_block *unlink_block(
    struct kn_backend *backend, const void *memory, int registered)
{
	for (struct kn_cuda_block **at = &backend->blocks; *at != NULL; at = &(*at)->next) {
		struct kn_cuda_block *block = *at;

		if (block->memory != memory || block->registered != registered) continue;
		*at = block->next;
		return block;
	}
	return NULL;
}

enum kv_status kn_cuda_buffer_create(
    struct kn_backend *backend, enum kn_memory kind, size_t bytes, void **buffer)
{
	struct kn_cuda_block *block = NULL;
	enum kv_status status;

	KV_TRY(add_block(backend, kind, bytes, &block));
	if (kind == KN_DEVICE)
		status = kn_cuda_take(backend, KN_CUDA_BUFFERS, bytes, &block->memory);
	else
		status = kn_cuda_check(cudaHostAlloc(&block->memory, bytes > 0 ? bytes : 1,
		                           cudaHostAllocPortable | cudaHostAllocMapped),
		    "taking page-locked memory");
	if (status != KV_OK) {
		kv_free(backend->allocator, block);
		return status;
	}
	link_block(backend, block);
	*buffer = block->memory;
	return KV_OK;
}

void kn_cuda_buffer_destroy(struct kn_backend *backend, void *buffer)
{
	struct kn_cuda_block *block = buffer != NULL ? unlink_block(backend, buffer, 0) : NULL;

	if (block == NULL) return;
	if (block->kind == KN_DEVICE)
		kn_cuda_give(backend, KN_CUDA_BUFFERS, block->bytes, block->memory);
	else
		(void)cudaFreeHost(block->memory);
	kv_free(backend->allocator, block);
}

static size_t piece_of(size_t bytes, size_t at)
{
	return bytes - at < register_piece ? bytes - at : register_piece;
}

static void unregister(uint8_t *host, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += register_piece)
		(void)cudaHostUnregister(host + at);
}

/* The device must reach it at the host's own address. */
static enum kv_status check_address(void *host)
{
	void *device = NULL;

	KV_TRY(kn_cuda_check(
	    cudaHostGetDevicePointer(&device, host, 0), "asking where the device sees memory"));
	if (device == host) return KV_OK;
	return kv_fail(KV_UNSUPPORTED, "cuda: the device sees registered memory elsewhere");
}

enum kv_status kn_cuda_memory_register(
    struct kn_backend *backend, void *host, size_t bytes, enum kn_access access)
{
	unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
	struct kn_cuda_block *block = NULL;
	uint8_t *start = host;
	enum kv_status status = KV_OK;
	size_t done = 0;

	if (access == KN_READ_ONLY) flags |= cudaHostRegisterReadOnly;
	KV_TRY(add_block(backend, KN_SHARED, bytes, &block));
	block->memory = host;
	block->registered = 1;
	while (done < bytes && status == KV_OK) {
		status = kn_cuda_check(cudaHostRegister(start + done, piece_of(bytes, done), flags),
		    "page-locking memory of the host");
		if (status == KV_OK) done += piece_of(bytes, done);
	}
	if (status == KV_OK && bytes > 0) status = check_address(host);
	if (status != KV_OK) {
		unregister(start, done);
		kv_free(backend->allocator, block);
		return KV_UNSUPPORTED;
	}
	link_block(backend, block);
	return KV_OK;
}

void kn_cuda_memory_unregister(struct kn_backend *backend, void *host)
{
	struct kn_cuda_block *block = unlink_block(backend, host, 1);

	if (block == NULL) return;
	unregister(block->memory, block->bytes);
	kv_free(backend->allocator, block);
}

/* What the backend has given out or registered; the driver is not asked while it captures. */
static const struct kn_cuda_block *block_of(
    const struct kn_backend *backend, const void *memory, size_t bytes)
{
	uintptr_t at = (uintptr_t)memory;

	for (const struct kn_cuda_block *block = backend->blocks; block != NULL; block = block->next) {
		uintptr_t start = (uintptr_t)block->memory;

		if (at >= start && bytes <= block->bytes && at - start <= block->bytes - bytes)
			return block;
	}
	return NULL;
}

/* A graph's copies are between the device and page-locked memory, or on the device. `staged`: the
 * source is the ring. */
static int suits_graph(
    const struct kn_stream *stream, const void *to, const void *from, size_t bytes, int staged)
{
	const struct kn_cuda_block *target = block_of(stream->backend, to, bytes);
	const struct kn_cuda_block *source = block_of(stream->backend, from, bytes);

	if (target == NULL || (source == NULL && !staged)) return 0;
	return target->kind == KN_DEVICE || (source != NULL && source->kind == KN_DEVICE);
}

/* Either side may be either kind of memory: the driver knows by the address. */
static enum kv_status move(struct kn_stream *stream, void *to, const void *from, size_t bytes,
    const char *what, int staged)
{
	if (bytes == 0) return KV_OK;
	if (stream->step.capturing && !suits_graph(stream, to, from, bytes, staged))
		KV_TRY(kn_cuda_pause(stream));
	KV_TRY(kn_cuda_check(
	    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream->compute), what));
	kn_cuda_resume(stream);
	return KV_OK;
}

enum kv_status kn_cuda_upload(struct kn_backend *backend, struct kn_stream *stream, void *device,
    const void *host, size_t bytes)
{
	struct kn_cuda_descriptors staged;

	(void)backend;
	if (!stream->step.capturing || bytes == 0 || bytes > STAGED_BYTES)
		return move(stream, device, host, bytes, "upload", 0);
	/* A step's ids and the like: the ring is page-locked, whatever their memory is. */
	KV_TRY(kn_cuda_describe(stream, bytes, &staged));
	memcpy(staged.host, host, bytes);
	return move(stream, device, staged.host, bytes, "upload", 1);
}

enum kv_status kn_cuda_download(struct kn_backend *backend, struct kn_stream *stream, void *host,
    const void *device, size_t bytes)
{
	(void)backend;
	return move(stream, host, device, bytes, "download", 0);
}

enum kv_status kn_cuda_fill(
    struct kn_backend *backend, struct kn_stream *stream, void *device, uint8_t value, size_t bytes)
{
	(void)backend;
	if (bytes == 0) return KV_OK;
	return kn_cuda_check(cudaMemsetAsync(device, value, bytes, stream->compute), "fill");
}
