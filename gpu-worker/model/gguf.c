#include "gpu-worker/model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu-worker/model/gguf_internal.h"

/* Larger than any model of today; keeps every sum of offsets far from the end of 64 bits. */
static const uint64_t max_file_bytes = (uint64_t)1 << 44;

static enum kv_status file_create(
    struct kv_allocator *allocator, const char *path, struct gw_gguf **file)
{
	struct gw_gguf *created = kv_alloc_zero(allocator, sizeof *created);

	if (!created) return KV_NO_MEMORY;
	created->allocator = allocator;
	created->path = kv_strdup(allocator, path);
	if (!created->path) {
		kv_free(allocator, created);
		return KV_NO_MEMORY;
	}
	*file = created;
	return KV_OK;
}

/* Map the whole file; the descriptor is not needed afterwards. */
static enum kv_status map_file(struct gw_gguf *file)
{
	struct stat info;
	void *data;
	int saved, descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (descriptor < 0) {
		return kv_fail(errno == ENOENT ? KV_NOT_FOUND : KV_IO,
		    "%s: cannot open the model file: %s; check the path", file->path, strerror(errno));
	}
	if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
		close(descriptor);
		return kv_fail(
		    KV_INVALID, "%s: not a regular file; give the path of a GGUF file", file->path);
	}
	if (info.st_size < 4 || (uint64_t)info.st_size > max_file_bytes) {
		close(descriptor);
		return kv_fail(KV_CORRUPT, "%s: %lld bytes cannot be a GGUF file", file->path,
		    (long long)info.st_size);
	}
	data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
	saved = errno;
	close(descriptor);
	if (data == MAP_FAILED) {
		return kv_fail(KV_IO, "%s: cannot map %lld bytes: %s", file->path, (long long)info.st_size,
		    strerror(saved));
	}
	file->data = data;
	file->size = (uint64_t)info.st_size;
	file->mapped = 1;
	return KV_OK;
}

enum kv_status gw_gguf_open(struct kv_allocator *allocator, const char *path, struct gw_gguf **file)
{
	struct gw_gguf *opened;
	enum kv_status status;

	KV_TRY(file_create(allocator, path, &opened));
	KV_TRY_GOTO(status, map_file(opened), failed);
	KV_TRY_GOTO(status, gw_gguf_parse(opened), failed);
	*file = opened;
	return KV_OK;

failed:
	gw_gguf_close(opened);
	return status;
}

enum kv_status gw_gguf_open_memory(struct kv_allocator *allocator, const void *data, size_t size,
    const char *name, struct gw_gguf **file)
{
	struct gw_gguf *opened;
	enum kv_status status;

	KV_TRY(file_create(allocator, name, &opened));
	opened->data = data;
	opened->size = size;
	KV_TRY_GOTO(status, gw_gguf_parse(opened), failed);
	*file = opened;
	return KV_OK;

failed:
	gw_gguf_close(opened);
	return status;
}

void gw_gguf_close(struct gw_gguf *file)
{
	union {
		const uint8_t *constant;
		void *plain;
	} data;

	if (!file) return;
	if (file->mapped) {
		/* munmap takes a pointer without const, though it writes nothing. */
		data.constant = file->data;
		munmap(data.plain, (size_t)file->size);
	}
	kv_free(file->allocator, file->values);
	kv_free(file->allocator, file->tensors);
	kv_free(file->allocator, file->path);
	kv_free(file->allocator, file);
}

const char *gw_gguf_path(const struct gw_gguf *file)
{
	return file->path;
}

uint64_t gw_gguf_tensor_count(const struct gw_gguf *file)
{
	return file->tensor_count;
}

void gw_gguf_tensor_at(const struct gw_gguf *file, uint64_t index, struct gw_gguf_tensor *tensor)
{
	*tensor = file->tensors[index];
}

enum kv_status gw_gguf_tensor(
    const struct gw_gguf *file, const char *name, struct gw_gguf_tensor *tensor)
{
	struct gw_gguf_string wanted = {name, strlen(name)};
	uint64_t low = 0, high = file->tensor_count;

	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		int order = gw_gguf_compare(file->tensors[middle].name, wanted);

		if (order == 0) {
			*tensor = file->tensors[middle];
			return KV_OK;
		}
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return kv_fail(KV_NOT_FOUND, "%s: no tensor named %s", file->path, name);
}

enum kv_status gw_gguf_digest(const struct gw_gguf *file, uint8_t digest[32])
{
	/* Chunks, so that a mapped file is read ahead and no length exceeds what the hash may take. */
	const uint64_t chunk = (uint64_t)4 << 20;
	crypto_generichash_state state;
	uint64_t offset, step, size = file->made ? file->head_bytes : file->size;

	if (sodium_init() < 0) return kv_fail(KV_INTERNAL, "libsodium cannot be initialised");
	crypto_generichash_init(&state, NULL, 0, 32);
	for (offset = 0; offset < size; offset += step) {
		step = size - offset < chunk ? size - offset : chunk;
		crypto_generichash_update(&state, file->data + offset, step);
	}
	crypto_generichash_final(&state, digest, 32);
	return KV_OK;
}
