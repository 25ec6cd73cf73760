#include "kernels/cpu/backend_cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cpu/attend_scratch.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/weight.h"

enum { MAX_ROWS = 1 << 16, MAX_COLUMNS = 1 << 20 };

/* Everything runs before the call returns, so a stream holds nothing. */
struct kn_stream {
	struct kn_backend *backend;
};

static const char *const level_names[] = {
    [KN_CPU_AUTO] = "auto",
    [KN_CPU_PLAIN] = "plain",
    [KN_CPU_AVX2] = "avx2",
    [KN_CPU_AVX512] = "avx512",
};

#if defined(__x86_64__)
/* Not every compiler's __builtin_cpu_supports knows this one. */
static bool has_f16c(void)
{
	unsigned a, b, c, d;

	return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
#endif

enum kn_cpu_level kn_cpu_best_level(void)
{
#if defined(__x86_64__)
	__builtin_cpu_init();
	if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c() ||
	    !__builtin_cpu_supports("bmi2"))
		return KN_CPU_PLAIN;
	if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
	    !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
	    !__builtin_cpu_supports("avx512vnni"))
		return KN_CPU_AVX2;
	return KN_CPU_AVX512;
#else
	return KN_CPU_PLAIN;
#endif
}

static enum kv_status choose_level(enum kn_cpu_level wanted, enum kn_cpu_level *level)
{
	enum kn_cpu_level best = kn_cpu_best_level();

	if ((unsigned)wanted > KN_CPU_AVX512)
		return kv_fail(
		    KV_INVALID, "CPU level %d is unknown: use auto, plain, avx2 or avx512", (int)wanted);
	if (wanted == KN_CPU_AUTO) wanted = best;
	if (wanted > best)
		return kv_fail(KV_UNSUPPORTED, "CPU level %s: this machine has %s, use that or auto",
		    level_names[wanted], level_names[best]);
	*level = wanted;
	return KV_OK;
}

enum kv_status kn_cpu_check_kv_type(const char *op, enum kn_kv_type type)
{
	if (type == KN_KV_F16 || type == KN_KV_F32) return KV_OK;
	if (type == KN_KV_BF16)
		return kv_fail(KV_UNSUPPORTED, "%s: the cpu backend has no bf16 KV; use f16 or f32", op);
	return kv_fail(KV_INVALID, "%s: KV type %d is unknown", op, (int)type);
}

static void cpu_close(struct kn_backend *backend)
{
	if (!backend) return;
	kn_rotate_cache_destroy(backend);
	kn_matmul_scratch_destroy(backend);
	kn_cpu_attend_scratch_destroy(backend);
	kn_pool_destroy(backend->pool);
	kv_free(backend->allocator, backend);
}

static enum kv_status cpu_open(const struct kn_backend_options *options, struct kn_backend **out)
{
	enum kn_cpu_level level = KN_CPU_PLAIN;

	if (options->max_rows > MAX_ROWS || options->max_columns > MAX_COLUMNS)
		return kv_fail(KV_INVALID, "%u rows of %u columns: the cpu backend takes %d of %d at most",
		    options->max_rows, options->max_columns, MAX_ROWS, MAX_COLUMNS);
	KV_TRY(choose_level(options->cpu_level, &level));
	struct kn_backend *backend = kv_alloc_zero(options->allocator, sizeof *backend);

	if (!backend) return KV_NO_MEMORY;
	uint32_t threads = options->threads ? options->threads : kn_usable_cpus();
	enum kv_status status;

	backend->allocator = options->allocator;
	backend->level = level;
	backend->max_rows = options->max_rows ? options->max_rows : KN_MAX_DECODE_ROWS;
	backend->max_columns = options->max_columns;
	snprintf(backend->description, sizeof backend->description, "cpu %s threads=%" PRIu32,
	    level_names[level], threads);
	KV_TRY_GOTO(status,
	    kn_pool_create(options->allocator, threads, KN_CPU_SCRATCH_BYTES, &backend->pool), undo);
	KV_TRY_GOTO(status, kn_matmul_scratch_create(backend), undo);
	KV_TRY_GOTO(status, kn_cpu_attend_scratch_create(backend), undo);
	KV_TRY_GOTO(status, kn_rotate_cache_create(backend), undo);
	*out = backend;
	return KV_OK;
undo:
	cpu_close(backend);
	return status;
}

static const char *cpu_describe(struct kn_backend *backend)
{
	return backend->description;
}

/* Both kinds are ordinary memory. */
static enum kv_status cpu_buffer_create(
    struct kn_backend *backend, enum kn_memory kind, size_t bytes, void **buffer)
{
	(void)kind;
	void *memory = kn_memory_create(backend->allocator, bytes);

	if (!memory) return KV_NO_MEMORY;
	*buffer = memory;
	return KV_OK;
}

static void cpu_buffer_destroy(struct kn_backend *backend, void *buffer)
{
	kn_memory_destroy(backend->allocator, buffer);
}

static enum kv_status cpu_memory_register(
    struct kn_backend *backend, void *host, size_t bytes, enum kn_access access)
{
	(void)backend;
	(void)host;
	(void)bytes;
	(void)access;
	return KV_OK;
}

static void cpu_memory_unregister(struct kn_backend *backend, void *host)
{
	(void)backend;
	(void)host;
}

static enum kv_status cpu_upload(struct kn_backend *backend, struct kn_stream *stream, void *device,
    const void *host, size_t bytes)
{
	(void)backend;
	(void)stream;
	if (bytes > 0) memcpy(device, host, bytes);
	return KV_OK;
}

static enum kv_status cpu_download(struct kn_backend *backend, struct kn_stream *stream, void *host,
    const void *device, size_t bytes)
{
	return cpu_upload(backend, stream, host, device, bytes);
}

static enum kv_status cpu_fill(
    struct kn_backend *backend, struct kn_stream *stream, void *device, uint8_t value, size_t bytes)
{
	(void)backend;
	(void)stream;
	if (bytes > 0) memset(device, value, bytes);
	return KV_OK;
}

static enum kv_status cpu_stream_create(
    struct kn_backend *backend, enum kn_stream_priority priority, struct kn_stream **out)
{
	struct kn_stream *stream = kv_alloc(backend->allocator, sizeof *stream);

	(void)priority;
	if (!stream) return KV_NO_MEMORY;
	stream->backend = backend;
	*out = stream;
	return KV_OK;
}

static void cpu_stream_destroy(struct kn_backend *backend, struct kn_stream *stream)
{
	kv_free(backend->allocator, stream);
}

static enum kv_status cpu_stream_order(
    struct kn_backend *backend, struct kn_stream *earlier, struct kn_stream *later)
{
	(void)backend;
	(void)earlier;
	(void)later;
	return KV_OK;
}

static enum kv_status cpu_stream_wait(struct kn_backend *backend, struct kn_stream *stream)
{
	(void)backend;
	(void)stream;
	return KV_OK;
}

static enum kv_status cpu_step_begin(
    struct kn_backend *backend, struct kn_stream *stream, uint32_t shape)
{
	(void)backend;
	(void)stream;
	(void)shape;
	return KV_OK;
}

static struct kn_memory_use cpu_memory_use(struct kn_backend *backend)
{
	const struct kn_memory_use none = {0};

	(void)backend;
	return none;
}

static uint64_t cpu_scratch_bytes(struct kn_backend *backend, const struct kn_bounds *bounds)
{
	(void)backend;
	(void)bounds;
	return 0;
}

static enum kv_status cpu_stream_reserve(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_bounds *bounds)
{
	(void)backend;
	(void)stream;
	(void)bounds;
	return KV_OK;
}

const struct kn_backend_ops kn_cpu_ops = {.abi = KN_BACKEND_ABI,
    .unified = 1,
    .kv_types = 1u << KN_KV_F16 | 1u << KN_KV_F32,
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .buffer_create = cpu_buffer_create,
    .buffer_destroy = cpu_buffer_destroy,
    .memory_register = cpu_memory_register,
    .memory_unregister = cpu_memory_unregister,
    .upload = cpu_upload,
    .download = cpu_download,
    .fill = cpu_fill,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .stream_order = cpu_stream_order,
    .stream_wait = cpu_stream_wait,
    .step_begin = cpu_step_begin,
    .step_end = cpu_stream_wait,
    .weight_pack = kn_cpu_weight_pack,
    .weight_destroy = kn_cpu_weight_destroy,
    .weight_bytes = kn_cpu_weight_bytes,
    .memory_use = cpu_memory_use,
    .scratch_bytes = cpu_scratch_bytes,
    .stream_reserve = cpu_stream_reserve,
#define OP_ENTRY(op, arguments) .op = kn_cpu_##op,
    KN_BACKEND_OPS(OP_ENTRY)
#undef OP_ENTRY
};
