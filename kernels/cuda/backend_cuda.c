#include "kernels/cuda/backend_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define KN_CUDA_NVTX 1
#endif
#endif

#include "kernels/cuda/gemm_cublas.h"
#include "kernels/plugin_services.h"

/* Left to the driver, cuBLAS's kernels and other programs where no limit is given. */
static const uint64_t left_free = (uint64_t)512 << 20;

enum { MAX_ROWS = 1 << 16, MAX_COLUMNS = 1 << 20 };

enum kv_status kn_cuda_check(cudaError_t error, const char *what)
{
	if (error == cudaSuccess) return KV_OK;
	/* An error of this call is not the next one's. */
	(void)cudaGetLastError();
	return kv_fail(error == cudaErrorMemoryAllocation ? KV_NO_MEMORY : KV_INTERNAL,
	    "cuda: %s: %s (%d)", what, cudaGetErrorString(error), (int)error);
}

static enum kv_status check_cublas(cublasStatus_t status, const char *what)
{
	if (status == CUBLAS_STATUS_SUCCESS) return KV_OK;
	return kv_fail(status == CUBLAS_STATUS_ALLOC_FAILED ? KV_NO_MEMORY : KV_INTERNAL,
	    "cuda: %s: cuBLAS error %d", what, (int)status);
}

void kn_cuda_range_begin(const char *name)
{
#if defined(KN_CUDA_NVTX)
	nvtxRangePushA(name);
#else
	(void)name;
#endif
}

void kn_cuda_range_end(void)
{
#if defined(KN_CUDA_NVTX)
	nvtxRangePop();
#endif
}

/* Whatever is missing, the machine has no device that this process can use. */
static enum kv_status cuda_probe(const struct kn_host_services *services)
{
	int count = 0;
	cudaError_t error;

	kn_plugin_services_set(services);
	error = cudaGetDeviceCount(&count);
	if (error == cudaErrorInsufficientDriver || error == cudaErrorStubLibrary)
		return kv_fail(KV_UNSUPPORTED,
		    "no NVIDIA driver for CUDA %d.%d (error %d); install one, or use --backend=cpu",
		    CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, (int)error);
	if (error != cudaSuccess || count == 0)
		return kv_fail(
		    KV_UNSUPPORTED, "no CUDA device: %s (error %d)", cudaGetErrorString(error), (int)error);
	return KV_OK;
}

static enum kv_status choose_limit(struct kn_backend *backend, uint64_t wanted)
{
	size_t available = 0, total = 0;

	KV_TRY(kn_cuda_check(cudaMemGetInfo(&available, &total), "asking for free memory"));
	if (wanted > available)
		return kv_fail(KV_NO_MEMORY,
		    "--device-memory %llu bytes: the device has %llu, of which %llu are free",
		    (unsigned long long)wanted, (unsigned long long)total, (unsigned long long)available);
	backend->limit = wanted > 0              ? wanted
	                 : available > left_free ? available - left_free
	                                         : available;
	return KV_OK;
}

static enum kv_status open_device(
    struct kn_backend *backend, const struct kn_backend_options *options)
{
	struct cudaDeviceProp device;

	KV_TRY(kn_cuda_check(cudaSetDevice(0), "opening the device"));
	KV_TRY(kn_cuda_check(cudaGetDeviceProperties(&device, 0), "asking the device for itself"));
	KV_TRY(kn_cuda_check(
	    cudaDeviceGetStreamPriorityRange(&backend->lowest_priority, &backend->highest_priority),
	    "asking for priorities"));
	KV_TRY(choose_limit(backend, options->device_memory));
	snprintf(backend->device, sizeof backend->device, "cuda %.40s sm_%d%d, %d multiprocessors",
	    device.name, device.major, device.minor, device.multiProcessorCount);
	return KV_OK;
}

static void cuda_close(struct kn_backend *backend)
{
	const struct kn_cuda_step_counts *steps;

	if (backend == NULL) return;
	steps = &backend->steps;
	if (steps->launched > 0)
		kv_log(KV_LOG_DEBUG, "kernels", "cuda: %llu graphs launched, %llu executables made",
		    (unsigned long long)steps->launched, (unsigned long long)steps->made);
	if (backend->cublas != NULL) (void)cublasDestroy(backend->cublas);
	while (backend->blocks != NULL) {
		struct kn_cuda_block *block = backend->blocks;

		kv_log(KV_LOG_ERROR, "kernels", "cuda: %zu bytes are left when the backend is closed",
		    block->bytes);
		backend->blocks = block->next;
		kv_free(backend->allocator, block);
	}
	kv_free(backend->allocator, backend);
}

static enum kv_status cuda_open(
    const struct kn_backend_options *options, struct kn_backend **backend)
{
	/* For comparisons. */
	const char *graphs = getenv("CLUSTERKV_CUDA_GRAPHS");
	struct kn_backend *made;
	enum kv_status status;

	if (options->max_rows > MAX_ROWS || options->max_columns > MAX_COLUMNS)
		return kv_fail(KV_INVALID, "%u rows of %u columns: the cuda backend takes %d of %d at most",
		    options->max_rows, options->max_columns, MAX_ROWS, MAX_COLUMNS);
	made = kv_alloc_zero(options->allocator, sizeof *made);
	if (made == NULL) return KV_NO_MEMORY;
	made->allocator = options->allocator;
	made->max_rows =
	    options->max_rows > KN_MAX_DECODE_ROWS ? options->max_rows : (uint32_t)KN_MAX_DECODE_ROWS;
	made->max_columns = options->max_columns;
	made->graphs_off = graphs != NULL && strcmp(graphs, "0") == 0;
	KV_TRY_GOTO(status, open_device(made, options), fail);
	KV_TRY_GOTO(status, check_cublas(cublasCreate(&made->cublas), "opening cuBLAS"), fail);
	*backend = made;
	return KV_OK;
fail:
	cuda_close(made);
	return status;
}

static unsigned long long mebibytes(uint64_t bytes)
{
	return (unsigned long long)((bytes + (1 << 20) - 1) >> 20);
}

/* What takes the memory now, and what became of steps. */
static const char *cuda_describe(struct kn_backend *backend)
{
	const struct kn_cuda_step_counts *steps = &backend->steps;
	const uint64_t *used = backend->used;

	snprintf(backend->description, sizeof backend->description,
	    "%s; of %llu MiB weights take %llu, key/values, clusters and activations %llu, scratch "
	    "%llu; graphs: %llu launched, %llu updated, %llu made",
	    backend->device, mebibytes(backend->limit), mebibytes(used[KN_CUDA_WEIGHTS]),
	    mebibytes(used[KN_CUDA_BUFFERS]), mebibytes(used[KN_CUDA_SCRATCH]),
	    (unsigned long long)steps->launched, (unsigned long long)steps->updated,
	    (unsigned long long)steps->made);
	return backend->description;
}

static const struct kn_backend_ops cuda_ops = {.abi = KN_BACKEND_ABI,
    .unified = 0,
    .kv_types = 1u << KN_KV_F16 | 1u << KN_KV_F32 | 1u << KN_KV_BF16,
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .buffer_create = kn_cuda_buffer_create,
    .buffer_destroy = kn_cuda_buffer_destroy,
    .memory_register = kn_cuda_memory_register,
    .memory_unregister = kn_cuda_memory_unregister,
    .upload = kn_cuda_upload,
    .download = kn_cuda_download,
    .fill = kn_cuda_fill,
    .stream_create = kn_cuda_stream_create,
    .stream_destroy = kn_cuda_stream_destroy,
    .stream_order = kn_cuda_stream_order,
    .stream_wait = kn_cuda_stream_wait,
    .step_begin = kn_cuda_step_begin,
    .step_end = kn_cuda_step_end,
    .weight_pack = kn_cuda_weight_pack,
    .weight_destroy = kn_cuda_weight_destroy,
    .weight_bytes = kn_cuda_weight_bytes,
    .memory_use = kn_cuda_memory_use,
    .scratch_bytes = kn_cuda_scratch_bytes,
    .stream_reserve = kn_cuda_stream_reserve,
#define CUDA_ENTRY(op, arguments) .op = kn_cuda_op_##op,
    KN_BACKEND_OPS(CUDA_ENTRY)
#undef CUDA_ENTRY
};

__attribute__((visibility("default"))) extern const struct kn_backend_entry kn_backend_entry;
const struct kn_backend_entry kn_backend_entry = {
    .abi = KN_BACKEND_ABI,
    .entry_bytes = sizeof(struct kn_backend_entry),
    .name = "cuda",
    .probe = cuda_probe,
    .ops = &cuda_ops,
};
