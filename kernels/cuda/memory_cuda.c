/* Buffers, registered memory of the host, transfers. */
#include "kernels/cuda/backend_cuda.h"

/* Memory is page-locked in pieces: the driver holds a lock while it does. */
static const size_t register_piece = (size_t)1 << 30;

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

/* Either side may be either kind of memory: the driver knows by the address. */
static enum kv_status move(
    struct kn_stream *stream, void *to, const void *from, size_t bytes, const char *what)
{
	if (bytes == 0) return KV_OK;
	return kn_cuda_check(
	    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream->compute), what);
}

enum kv_status kn_cuda_upload(struct kn_backend *backend, struct kn_stream *stream, void *device,
    const void *host, size_t bytes)
{
	(void)backend;
	return move(stream, device, host, bytes, "upload");
}

enum kv_status kn_cuda_download(struct kn_backend *backend, struct kn_stream *stream, void *host,
    const void *device, size_t bytes)
{
	(void)backend;
	return move(stream, host, device, bytes, "download");
}

enum kv_status kn_cuda_fill(
    struct kn_backend *backend, struct kn_stream *stream, void *device, uint8_t value, size_t bytes)
{
	(void)backend;
	if (bytes == 0) return KV_OK;
	return kn_cuda_check(cudaMemsetAsync(device, value, bytes, stream->compute), "fill");
}
