/* Anonymous maps and page advice are outside POSIX. */
#define _GNU_SOURCE
#include "tests/lib/discrete_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/lib/discrete_internal.h"

enum { PAGE = 4096, NAN_BYTE = 0xff };
static const size_t arena_bytes = (size_t)64 << 30;

static void die(const char *why)
{
	fprintf(stderr, "discrete backend: %s\n", why);
	abort();
}

static void *must(void *memory)
{
	if (memory == NULL) die("out of memory");
	return memory;
}

void *discrete_clone(const void *from, size_t count, size_t size)
{
	void *clone = must(calloc(count + 1, size));

	if (from != NULL && count > 0) memcpy(clone, from, count * size);
	return clone;
}

/* To take megabytes of pages away thousands of times a second is most of the time: after the first
 * ones, it is done after some waits only. What touches device memory does so step after step. */
enum { ALWAYS = 60, EVERY = 100 };

static void protect(struct discrete *d, int protection)
{
	d->open = protection != PROT_NONE;
	if (d->used > 0 && mprotect(d->arena, d->used, protection) != 0) die("mprotect failed");
}

void discrete_open_memory(struct discrete *d)
{
	if (!d->open) protect(d, PROT_READ | PROT_WRITE);
}

void discrete_close_memory(struct discrete *d)
{
	if (d->waits++ < ALWAYS || d->waits % EVERY == 0) protect(d, PROT_NONE);
}

static struct discrete_block *block_of(const struct discrete *d, const void *pointer)
{
	const uint8_t *at = pointer;

	for (struct discrete_block *block = d->blocks; block != NULL; block = block->next)
		if (at >= block->start && at < block->start + block->bytes) return block;
	return NULL;
}

enum kv_status discrete_check(
    const struct discrete *d, const char *op, const char *what, const void *pointer)
{
	struct discrete_block *block = pointer != NULL ? block_of(d, pointer) : NULL;

	if (block != NULL) block->named = 1;
	if (pointer == NULL || block != NULL) return KV_OK;
	return kv_fail(KV_INTERNAL, "%s: %s is not memory of the backend", op, what);
}

static enum kv_status discrete_open(
    const struct kn_backend_options *options, struct kn_backend **backend)
{
	struct discrete *d = discrete_clone(NULL, 1, sizeof *d);
	enum kv_status status = kn_cpu_ops.open(options, &d->cpu);

	if (status != KV_OK) {
		free(d);
		return status;
	}
	d->allocator = options->allocator;
	d->use.limit = options->device_memory;
	d->arena =
	    mmap(NULL, arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (d->arena == MAP_FAILED) die("no address space");
	snprintf(d->description, sizeof d->description, "discrete on %s", kn_cpu_ops.describe(d->cpu));
	*backend = (struct kn_backend *)(void *)d;
	return KV_OK;
}

static void discrete_close(struct kn_backend *backend)
{
	struct discrete *d = discrete_of(backend);

	if (backend == NULL) return;
	if (discrete_uses(d, NULL)) die("work is left when the backend is closed");
	if (d->blocks != NULL) die("memory is left when the backend is closed");
	munmap(d->arena, arena_bytes);
	kn_cpu_ops.close(d->cpu);
	free(d);
}

static const char *discrete_describe(struct kn_backend *backend)
{
	return discrete_of(backend)->description;
}

static void add_block(struct discrete *d, uint8_t *start, size_t bytes, enum kn_memory kind,
    int registered, void *token)
{
	struct discrete_block *block = discrete_clone(NULL, 1, sizeof *block);

	if (d->stepping) die("memory comes within a step");
	*block = (struct discrete_block){.start = start,
	    .bytes = bytes,
	    .kind = kind,
	    .registered = registered,
	    .token = token,
	    .next = d->blocks};
	d->blocks = block;
}

static enum kv_status take(struct discrete *d, uint64_t *part, uint64_t bytes)
{
	uint64_t sum = d->use.weights + d->use.buffers;

	if (d->use.limit > 0 && bytes > d->use.limit - sum)
		return kv_fail(KV_NO_MEMORY,
		    "discrete: %llu bytes of device memory: of %llu, %llu are taken",
		    (unsigned long long)bytes, (unsigned long long)d->use.limit, (unsigned long long)sum);
	*part += bytes;
	if (sum + bytes > d->use.most) d->use.most = sum + bytes;
	return KV_OK;
}

/* Address space is never used twice. */
static enum kv_status discrete_buffer_create(
    struct kn_backend *backend, enum kn_memory kind, size_t bytes, void **buffer)
{
	struct discrete *d = discrete_of(backend);
	size_t taken = (bytes / PAGE + 2) * PAGE;
	uint8_t *start;
	void *token;

	if (taken < bytes || taken > arena_bytes - d->used)
		return kv_fail(KV_NO_MEMORY, "%zu bytes of device memory", bytes);
	token = kv_alloc(d->allocator, 1);
	if (token == NULL) return KV_NO_MEMORY;
	if (kind == KN_DEVICE && take(d, &d->use.buffers, bytes) != KV_OK) {
		kv_free(d->allocator, token);
		return KV_NO_MEMORY;
	}
	if (kind == KN_SHARED) {
		start = must(aligned_alloc(64, (bytes / 64 + 1) * 64));
		memset(start, NAN_BYTE, bytes);
	} else {
		start = d->arena + d->used;
		d->used += taken;
		if (mprotect(start, taken, PROT_READ | PROT_WRITE) != 0) die("mprotect failed");
		memset(start, NAN_BYTE, bytes);
		if (!d->open && mprotect(start, taken, PROT_NONE) != 0) die("mprotect failed");
	}
	add_block(d, start, bytes + (bytes == 0), kind, 0, token);
	d->blocks->counted = kind == KN_DEVICE ? bytes : 0;
	*buffer = start;
	return KV_OK;
}

static void remove_block(struct discrete *d, const void *start, int registered)
{
	struct discrete_block **at = &d->blocks, *block;

	if (d->stepping) die("memory goes within a step");
	while (*at != NULL && ((*at)->start != start || (*at)->registered != registered))
		at = &(*at)->next;
	block = *at;
	if (block == NULL) {
		die("memory goes that was never there");
		return;
	}
	if (discrete_uses(d, block)) die("memory goes while operations are queued");
	*at = block->next;
	kv_free(d->allocator, block->token);
	d->use.buffers -= block->counted;
	if (registered) {
		free(block);
		return;
	}
	if (block->kind == KN_SHARED)
		free(block->start);
	else if (madvise(block->start, block->bytes, MADV_DONTNEED) != 0)
		die("madvise failed");
	free(block);
}

static void discrete_buffer_destroy(struct kn_backend *backend, void *buffer)
{
	if (buffer != NULL) remove_block(discrete_of(backend), buffer, 0);
}

static enum kv_status discrete_memory_register(
    struct kn_backend *backend, void *host, size_t bytes, enum kn_access access)
{
	(void)access;
	add_block(discrete_of(backend), host, bytes, KN_SHARED, 1, NULL);
	return KV_OK;
}

static void discrete_memory_unregister(struct kn_backend *backend, void *host)
{
	remove_block(discrete_of(backend), host, 1);
}

static enum kv_status run_move(struct kn_backend *cpu, const struct discrete_entry *entry)
{
	return kn_cpu_ops.upload(cpu, NULL, entry->a.move.to, entry->a.move.from, entry->a.move.bytes);
}

static enum kv_status run_fill(struct kn_backend *cpu, const struct discrete_entry *entry)
{
	return kn_cpu_ops.fill(cpu, NULL, entry->a.move.to, entry->a.move.value, entry->a.move.bytes);
}

static void queue_move(
    struct discrete *d, struct kn_stream *stream, void *to, const void *from, size_t bytes)
{
	struct discrete_entry *entry = discrete_queue(d, stream, run_move);

	entry->a.move.to = to;
	entry->a.move.from = from;
	entry->a.move.bytes = bytes;
}

/* The host's side is the host's: device memory there is a mix-up. */
static enum kv_status check_host(const struct discrete *d, const char *op, const void *host)
{
	struct discrete_block *block = block_of(d, host);

	if (block != NULL) block->named = 1;
	if (block == NULL || block->kind == KN_SHARED) return KV_OK;
	return kv_fail(KV_INTERNAL, "%s: device memory on the host's side", op);
}

static enum kv_status discrete_upload(struct kn_backend *backend, struct kn_stream *stream,
    void *device, const void *host, size_t bytes)
{
	struct discrete *d = discrete_of(backend);

	if (bytes == 0) return KV_OK;
	KV_TRY(discrete_check(d, "upload", "device", device));
	KV_TRY(check_host(d, "upload", host));
	queue_move(d, stream, device, host, bytes);
	return KV_OK;
}

static enum kv_status discrete_download(struct kn_backend *backend, struct kn_stream *stream,
    void *host, const void *device, size_t bytes)
{
	struct discrete *d = discrete_of(backend);

	if (bytes == 0) return KV_OK;
	KV_TRY(discrete_check(d, "download", "device", device));
	KV_TRY(check_host(d, "download", host));
	queue_move(d, stream, host, device, bytes);
	return KV_OK;
}

static enum kv_status discrete_fill(
    struct kn_backend *backend, struct kn_stream *stream, void *device, uint8_t value, size_t bytes)
{
	struct discrete *d = discrete_of(backend);
	struct discrete_entry *entry;

	KV_TRY(discrete_check(d, "fill", "device", device));
	entry = discrete_queue(d, stream, run_fill);
	entry->a.move.to = device;
	entry->a.move.value = value;
	entry->a.move.bytes = bytes;
	return KV_OK;
}

/* How many bytes each weight counts for. */
struct discrete_weight {
	struct kn_weight *weight;
	uint64_t bytes;
	struct discrete_weight *next;
};

static enum kv_status discrete_weight_pack(struct kn_backend *backend,
    const struct kn_weight_part *parts, uint32_t part_count, uint32_t columns,
    enum kn_precision precision, struct kn_weight **weight)
{
	struct discrete *d = discrete_of(backend);
	struct discrete_weight *counted;
	enum kv_status status;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < part_count; i++)
		bytes += parts[i].bytes;
	KV_TRY(take(d, &d->use.weights, bytes));
	status = kn_cpu_ops.weight_pack(d->cpu, parts, part_count, columns, precision, weight);
	if (status != KV_OK) {
		d->use.weights -= bytes;
		return status;
	}
	counted = discrete_clone(NULL, 1, sizeof *counted);
	*counted = (struct discrete_weight){*weight, bytes, d->weights};
	d->weights = counted;
	return KV_OK;
}

static void discrete_weight_destroy(struct kn_backend *backend, struct kn_weight *weight)
{
	struct discrete *d = discrete_of(backend);
	struct discrete_weight **at = &d->weights, *counted;

	if (weight == NULL) return;
	if (discrete_uses(d, NULL)) die("a weight goes while operations are queued");
	while (*at != NULL && (*at)->weight != weight)
		at = &(*at)->next;
	counted = *at;
	if (counted == NULL) {
		die("a weight goes that was never there");
		return;
	}
	*at = counted->next;
	d->use.weights -= counted->bytes;
	free(counted);
	kn_cpu_ops.weight_destroy(d->cpu, weight);
}

static struct kn_memory_use discrete_memory_use(struct kn_backend *backend)
{
	return discrete_of(backend)->use;
}

/* It has none of its own. */
static uint64_t discrete_scratch_bytes(struct kn_backend *backend, const struct kn_bounds *bounds)
{
	(void)backend;
	(void)bounds;
	return 0;
}

static enum kv_status discrete_stream_reserve(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_bounds *bounds)
{
	(void)stream;
	(void)bounds;
	if (discrete_uses(discrete_of(backend), NULL)) die("memory comes while operations are queued");
	return KV_OK;
}

static uint64_t discrete_weight_bytes(const struct kn_weight *weight)
{
	return kn_cpu_ops.weight_bytes(weight);
}

void kvt_discrete_show(const struct kn_backend_ops *ops, struct kn_backend *backend)
{
	if (ops == &kvt_discrete_ops) protect(discrete_of(backend), PROT_READ | PROT_WRITE);
}

void kvt_discrete_hide(const struct kn_backend_ops *ops, struct kn_backend *backend)
{
	if (ops == &kvt_discrete_ops) protect(discrete_of(backend), PROT_NONE);
}

/* A step is queued as anything else is; what a backend that puts it off relies on is checked. */
static enum kv_status discrete_step_begin(
    struct kn_backend *backend, struct kn_stream *stream, uint32_t shape)
{
	struct discrete *d = discrete_of(backend);

	(void)stream;
	(void)shape;
	if (d->stepping) return kv_fail(KV_INVALID, "a step begins within a step");
	d->stepping = 1;
	return KV_OK;
}

static enum kv_status discrete_step_end(struct kn_backend *backend, struct kn_stream *stream)
{
	struct discrete *d = discrete_of(backend);

	(void)stream;
	if (!d->stepping) return kv_fail(KV_INVALID, "a step ends that was not begun");
	d->stepping = 0;
	return KV_OK;
}

const struct kn_backend_ops kvt_discrete_ops = {.abi = KN_BACKEND_ABI,
    .unified = 0,
    .kv_types = 1u << KN_KV_F16 | 1u << KN_KV_F32,
    .name = "discrete",
    .open = discrete_open,
    .close = discrete_close,
    .describe = discrete_describe,
    .buffer_create = discrete_buffer_create,
    .buffer_destroy = discrete_buffer_destroy,
    .memory_register = discrete_memory_register,
    .memory_unregister = discrete_memory_unregister,
    .upload = discrete_upload,
    .download = discrete_download,
    .fill = discrete_fill,
    .stream_create = discrete_stream_create,
    .stream_destroy = discrete_stream_destroy,
    .stream_order = discrete_stream_order,
    .stream_wait = discrete_stream_wait,
    .step_begin = discrete_step_begin,
    .step_end = discrete_step_end,
    .weight_pack = discrete_weight_pack,
    .weight_destroy = discrete_weight_destroy,
    .weight_bytes = discrete_weight_bytes,
    .memory_use = discrete_memory_use,
    .scratch_bytes = discrete_scratch_bytes,
    .stream_reserve = discrete_stream_reserve,
#define DISCRETE_ENTRY(op, arguments) .op = discrete_op_##op,
    KN_BACKEND_OPS(DISCRETE_ENTRY)
#undef DISCRETE_ENTRY
};
