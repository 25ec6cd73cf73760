/* The CUDA backend's host side, its kernels run by the emulator: what it refuses, what it gives
 * back, and clusters with the cpu backend's bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/random.h"
#include "kernels/cpu/half.h"
#include "kernels/device.h"

enum { DIM = 64, ROWS = 300, CLUSTERS = 19, ROW_BYTES = 4 * DIM };

static enum kv_status open_cuda(
    struct kv_allocator *memory, uint64_t device_memory, struct kn_device *device)
{
	struct kn_backend_options options = {.allocator = memory,
	    .max_rows = 64,
	    .max_columns = 256,
	    .plugin_folder = KVT_PLUGINS "/emulated",
	    .device_memory = device_memory};

	KV_TRY(kn_backend_open("cuda", &options, &device->ops, &device->backend));
	return device->ops->stream_create(device->backend, KN_STREAM_COMPUTE, &device->stream);
}

static void close_device(struct kn_device *device)
{
	device->ops->stream_destroy(device->backend, device->stream);
	device->ops->close(device->backend);
}

/* One job's inputs and results, on the device and brought here. */
struct clustering {
	uint8_t rows[ROWS * ROW_BYTES];
	uint32_t order[ROWS], sizes[CLUSTERS];
	uint16_t centroids[CLUSTERS * DIM], value_means[CLUSTERS * DIM];
};

static void *on_device(const struct kn_device *device, const void *from, size_t bytes)
{
	void *memory = NULL;

	assert_int_equal(kn_device_alloc(device, KN_DEVICE, bytes, &memory), KV_OK);
	if (from != NULL) assert_int_equal(kn_device_upload(device, memory, from, bytes), KV_OK);
	return memory;
}

static void to_host(const struct kn_device *device, void *to, void *memory, size_t bytes)
{
	assert_int_equal(kn_device_download(device, to, memory, bytes), KV_OK);
	assert_int_equal(kn_device_wait(device), KV_OK);
	kn_device_free(device, memory);
}

static void cluster(
    const struct kn_device *device, enum kn_index_update update, struct clustering *c)
{
	struct kn_index_job job = {.rows = on_device(device, c->rows, sizeof c->rows),
	    .row_stride = ROW_BYTES,
	    .n = ROWS,
	    .clusters = CLUSTERS,
	    .order = on_device(device, NULL, sizeof c->order),
	    .sizes = on_device(device, NULL, sizeof c->sizes),
	    .centroids = on_device(device, NULL, sizeof c->centroids),
	    .value_means = on_device(device, NULL, sizeof c->value_means)};
	struct kn_index_arguments a = {.jobs = &job,
	    .job_count = 1,
	    .head_dim = DIM,
	    .iterations = 5,
	    .kv_type = KN_KV_F16,
	    .update = update,
	    .center = 1};

	assert_int_equal(device->ops->index(device->backend, device->stream, &a), KV_OK);
	to_host(device, c->order, job.order, sizeof c->order);
	to_host(device, c->sizes, job.sizes, sizeof c->sizes);
	to_host(device, c->centroids, job.centroids, sizeof c->centroids);
	to_host(device, c->value_means, job.value_means, sizeof c->value_means);
	kn_device_free(device, (void *)(uintptr_t)job.rows);
}

static void clusters_have_the_cpu_backends_bits(void **state)
{
	static struct clustering ours, theirs, paper;
	struct kn_backend_options options = {.allocator = kv_heap(), .threads = 1};
	struct kv_allocator *memory = kv_allocator_create("cuda", 0);
	struct kn_device cuda = {0}, cpu = {0};
	struct kv_random random;
	uint16_t *halves = (uint16_t *)(void *)ours.rows;

	(void)state;
	kv_random_seed(&random, 1);
	for (size_t i = 0; i < sizeof ours.rows / 2; i++)
		halves[i] = kn_half_from_float(kv_random_normal(&random) + (i / ROW_BYTES % 7 == 0));
	theirs = paper = ours;
	assert_int_equal(open_cuda(memory, 0, &cuda), KV_OK);
	cluster(&cuda, KN_INDEX_ORDERED, &ours);
	cluster(&cuda, KN_INDEX_PAPER, &paper);
	close_device(&cuda);
	assert_int_equal(kv_allocator_stats(memory).blocks, 0);
	kv_allocator_destroy(memory);
	assert_int_equal(kn_backend_open("cpu", &options, &cpu.ops, &cpu.backend), KV_OK);
	assert_int_equal(cpu.ops->stream_create(cpu.backend, KN_STREAM_COMPUTE, &cpu.stream), KV_OK);
	cluster(&cpu, KN_INDEX_PAPER, &theirs);
	close_device(&cpu);
	assert_memory_equal(&ours, &theirs, sizeof ours);
	assert_memory_not_equal(ours.order, ours.sizes, sizeof ours.sizes);
	/* Sums in another order: hardly a row is elsewhere, and means are of the same members. */
	for (uint32_t i = 0; i < CLUSTERS * DIM; i++) {
		float difference =
		    kn_half_to_float(paper.centroids[i]) - kn_half_to_float(ours.centroids[i]);

		assert_true(difference < 0.02f && difference > -0.02f);
	}
}

/* More descriptors in one call than the ring has room for at first, and several times what it has
 * in all: what is queued must still find its own. */
static void descriptors_are_not_overwritten(void **state)
{
	enum { JOBS = 3000, CALLS = 12, EACH = 16, BYTES = JOBS * EACH };
	static uint8_t from[CALLS * BYTES], to[CALLS * BYTES];
	static struct kn_copy_job jobs[JOBS];
	struct kn_copy_arguments a = {jobs, JOBS};
	struct kn_device cuda = {0};
	uint8_t *source, *target;

	(void)state;
	assert_int_equal(open_cuda(kv_heap(), 0, &cuda), KV_OK);
	for (uint32_t i = 0; i < sizeof from; i++)
		from[i] = (uint8_t)(i * 7 + i / 256);
	source = on_device(&cuda, from, sizeof from);
	target = on_device(&cuda, to, sizeof to);
	for (size_t call = 0; call < CALLS; call++) {
		for (size_t i = 0; i < JOBS; i++) {
			size_t at = call * BYTES + i * EACH;

			jobs[i] = (struct kn_copy_job){source + at, target + at, EACH};
		}
		assert_int_equal(cuda.ops->copy(cuda.backend, cuda.stream, &a), KV_OK);
	}
	to_host(&cuda, to, target, sizeof to);
	assert_memory_equal(from, to, sizeof to);
	kn_device_free(&cuda, source);
	close_device(&cuda);
}

static void memory_ends_where_it_was_said_to(void **state)
{
	const uint64_t megabyte = 1 << 20;
	struct kn_device cuda = {0};
	struct kn_weight *weight = NULL;
	static float values[64 * 64];
	struct kn_weight_part part = {KN_F32, 64, values, sizeof values};
	void *first = NULL, *second = NULL;

	(void)state;
	assert_int_equal(open_cuda(kv_heap(), 64 * megabyte, &cuda), KV_OK);
	assert_int_equal(
	    cuda.ops->weight_pack(cuda.backend, &part, 1, 64, KN_PRECISION_FP32, &weight), KV_OK);
	assert_int_equal(cuda.ops->weight_bytes(weight), sizeof values);
	assert_int_equal(kn_device_alloc(&cuda, KN_DEVICE, 20 * megabyte, &first), KV_OK);
	assert_non_null(strstr(cuda.ops->describe(cuda.backend), "of 64 MiB weights take 1, "));
	assert_non_null(strstr(cuda.ops->describe(cuda.backend), "activations 20, scratch "));
	assert_int_equal(kn_device_alloc(&cuda, KN_DEVICE, 20 * megabyte, &second), KV_NO_MEMORY);
	assert_null(second);
	assert_non_null(strstr(kv_error_message(), "weights take 16384"));
	assert_non_null(strstr(kv_error_message(), "activations 20971520"));
	/* Shared memory is the host's. */
	assert_int_equal(kn_device_alloc(&cuda, KN_SHARED, 20 * megabyte, &second), KV_OK);
	kn_device_free(&cuda, second);
	kn_device_free(&cuda, first);
	assert_int_equal(kn_device_alloc(&cuda, KN_DEVICE, 20 * megabyte, &first), KV_OK);
	kn_device_free(&cuda, first);
	part.type = KN_Q4_K;
	assert_int_equal(cuda.ops->weight_pack(cuda.backend, &part, 1, 64, KN_PRECISION_FP32, &weight),
	    KV_UNSUPPORTED);
	cuda.ops->weight_destroy(cuda.backend, weight);
	close_device(&cuda);
	assert_int_equal(open_cuda(kv_heap(), UINT64_MAX, &cuda), KV_UNSUPPORTED);
	assert_non_null(strstr(kv_error_message(), "--device-memory"));
}

/* The host's own memory, at its own address. */
static void registered_memory_is_read_where_it_is(void **state)
{
	enum { BYTES = 3 * 4096 };
	struct kn_device cuda = {0};
	uint8_t *host = aligned_alloc(4096, BYTES), back[BYTES];
	struct kn_copy_job job = {.bytes = BYTES};
	struct kn_copy_arguments a = {&job, 1};

	(void)state;
	assert_non_null(host);
	for (uint32_t i = 0; i < BYTES; i++)
		host[i] = (uint8_t)(i * 3 + i / 256);
	assert_int_equal(open_cuda(kv_heap(), 0, &cuda), KV_OK);
	assert_int_equal(cuda.ops->memory_register(cuda.backend, host, BYTES, KN_READ_ONLY), KV_OK);
	job.source = host;
	job.destination = on_device(&cuda, NULL, BYTES);
	assert_int_equal(cuda.ops->copy(cuda.backend, cuda.stream, &a), KV_OK);
	to_host(&cuda, back, job.destination, BYTES);
	assert_memory_equal(back, host, BYTES);
	cuda.ops->memory_unregister(cuda.backend, host);
	close_device(&cuda);
	free(host);
}

/* Steps of one chain by turns on two streams, each ordered after the one before; whoever waits for
 * the last has all. What runs last first (seed 0) shows an order that is missing. */
static void two_streams_come_in_the_order_they_were_given(void **state)
{
	enum { STEPS = 9, BYTES = 512 };
	struct kn_device cuda = {0}, other, *last = &cuda;
	uint8_t from[BYTES], to[BYTES];
	uint8_t *memory;

	(void)state;
	for (uint32_t i = 0; i < BYTES; i++)
		from[i] = (uint8_t)(i * 5 + 1);
	assert_int_equal(open_cuda(kv_heap(), 0, &cuda), KV_OK);
	other = cuda;
	assert_int_equal(
	    cuda.ops->stream_create(cuda.backend, KN_STREAM_BACKGROUND, &other.stream), KV_OK);
	memory = on_device(&cuda, NULL, (STEPS + 1) * BYTES);
	assert_int_equal(kn_device_upload(&cuda, memory, from, BYTES), KV_OK);
	for (uint32_t i = 0; i < STEPS; i++) {
		struct kn_device *device = i % 2 == 0 ? &other : &cuda;
		struct kn_copy_job job = {memory + i * BYTES, memory + (i + 1) * BYTES, BYTES};
		struct kn_copy_arguments a = {&job, 1};

		assert_int_equal(kn_device_order(last, device), KV_OK);
		assert_int_equal(device->ops->copy(device->backend, device->stream, &a), KV_OK);
		last = device;
	}
	assert_int_equal(kn_device_order(last, last), KV_OK);
	assert_int_equal(kn_device_download(last, to, memory + STEPS * BYTES, BYTES), KV_OK);
	assert_int_equal(kn_device_wait(last), KV_OK);
	assert_memory_equal(from, to, BYTES);
	kn_device_free(&cuda, memory);
	cuda.ops->stream_destroy(cuda.backend, other.stream);
	close_device(&cuda);
}

/* cuBLAS follows whoever uses it: products on two streams by turns, each of its own input. */
static void products_run_on_the_stream_that_they_are_given(void **state)
{
	enum { ROWS_OF_X = 32, WIDTH = 64, TURNS = 4 };
	static float weights[WIDTH * WIDTH], x[TURNS][ROWS_OF_X * WIDTH], y[TURNS][ROWS_OF_X * WIDTH];
	struct kn_weight_part part = {KN_F32, WIDTH, weights, sizeof weights};
	struct kn_device cuda = {0}, other;
	struct kn_weight *weight = NULL;

	(void)state;
	for (uint32_t i = 0; i < WIDTH; i++)
		weights[i * WIDTH + i] = 2.0f;
	assert_int_equal(open_cuda(kv_heap(), 0, &cuda), KV_OK);
	other = cuda;
	assert_int_equal(
	    cuda.ops->stream_create(cuda.backend, KN_STREAM_BACKGROUND, &other.stream), KV_OK);
	assert_int_equal(
	    cuda.ops->weight_pack(cuda.backend, &part, 1, WIDTH, KN_PRECISION_FP32, &weight), KV_OK);
	for (uint32_t turn = 0; turn < TURNS; turn++) {
		struct kn_device *device = turn % 2 == 0 ? &cuda : &other;
		struct kn_matmul_arguments a = {
		    .weight = weight, .x_stride = WIDTH, .y_stride = WIDTH, .count = ROWS_OF_X};

		for (uint32_t i = 0; i < ROWS_OF_X * WIDTH; i++)
			x[turn][i] = (float)(turn * 1000 + i % 100);
		a.x = on_device(device, x[turn], sizeof x[turn]);
		a.y = on_device(device, NULL, sizeof y[turn]);
		assert_int_equal(device->ops->matmul(device->backend, device->stream, &a), KV_OK);
		to_host(device, y[turn], a.y, sizeof y[turn]);
		kn_device_free(device, (void *)(uintptr_t)a.x);
	}
	for (uint32_t turn = 0; turn < TURNS; turn++)
		for (uint32_t i = 0; i < ROWS_OF_X * WIDTH; i++)
			assert_true(y[turn][i] == 2.0f * x[turn][i]);
	cuda.ops->weight_destroy(cuda.backend, weight);
	cuda.ops->stream_destroy(cuda.backend, other.stream);
	close_device(&cuda);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(clusters_have_the_cpu_backends_bits),
	    cmocka_unit_test(descriptors_are_not_overwritten),
	    cmocka_unit_test(memory_ends_where_it_was_said_to),
	    cmocka_unit_test(registered_memory_is_read_where_it_is),
	    cmocka_unit_test(two_streams_come_in_the_order_they_were_given),
	    cmocka_unit_test(products_run_on_the_stream_that_they_are_given),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
