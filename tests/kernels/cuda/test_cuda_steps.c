/* Steps of the CUDA backend: what is captured gives the bits of what is queued as it comes,
 * whatever changes from step to step; executables are used again; nothing is lost silently. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/backend_cuda.h"
#include "kernels/device.h"
#include "kernels/plugin_services.h"
#include "tests/kernels/cuda/device.h"
#include "tests/lib/kernel_harness.h"

extern const struct kn_backend_entry kn_backend_entry;

/* The backend is linked here, and needs nothing of another program. */
void kn_plugin_services_set(const struct kn_host_services *services)
{
	(void)services;
}

enum {
	WIDTH = 64,
	ROWS = 20, /* more than a matmul of decoding takes */
	OUT_ROWS = 48,
	CLUSTERS = 40,
	CHUNK = 4096, /* the largest upload that goes through the ring */
	CHUNKS = 150, /* more than the ring holds at first */
	SPANS = 9000, /* more than a part of it holds */
	MOST_COPIES = 200
};

/* All that steps write, to be compared whole. */
struct output {
	float rows[ROWS * WIDTH], norms[ROWS * WIDTH], product[ROWS * OUT_ROWS];
	float logits[CLUSTERS], votes[CLUSTERS], attended[WIDTH];
	uint8_t copies[MOST_COPIES * 16], chunk[CHUNK];
};

struct fixture {
	struct kn_device device;
	float *source, *norm_weight, *log_sizes;
	uint16_t *centroids;
	uint32_t *order;
	struct kn_weight *weight;
	struct output *out;    /* KN_DEVICE */
	struct output *shared; /* KN_SHARED */
	struct output zeros;
};

/* What a step consists of. */
struct form {
	uint32_t rows, copies, clusters, chunks, spans;
	int product, pageable, wait;
};

static void ok(enum kv_status status)
{
	if (status != KV_OK) fail_msg("%s", kv_error_message());
}

static void *buffer(struct fixture *f, enum kn_memory kind, const void *from, size_t bytes)
{
	void *memory = NULL;

	ok(kn_device_alloc(&f->device, kind, bytes, &memory));
	if (from != NULL) ok(kn_device_upload(&f->device, memory, from, bytes));
	ok(kn_device_wait(&f->device));
	return memory;
}

static void open_backend(struct kn_device *device, int graphs)
{
	const struct kn_backend_options options = {
	    .allocator = kv_heap(), .max_rows = ROWS, .max_columns = WIDTH};

	assert_int_equal(setenv("CLUSTERKV_CUDA_GRAPHS", graphs ? "1" : "0", 1), 0);
	device->ops = kn_backend_entry.ops;
	ok(device->ops->open(&options, &device->backend));
	ok(device->ops->stream_create(device->backend, KN_STREAM_COMPUTE, &device->stream));
}

static struct fixture *create(int graphs)
{
	static float values[OUT_ROWS * WIDTH];
	static uint16_t halves[CLUSTERS * WIDTH];
	const struct kn_weight_part part = {KN_F32, OUT_ROWS, values, sizeof values};
	struct fixture *f = kvt_alloc(1, sizeof *f);
	struct kv_random random;

	memset(f, 0, sizeof *f);
	open_backend(&f->device, graphs);
	kv_random_seed(&random, 11);
	kvt_fill_peaky(&random, values, OUT_ROWS * WIDTH, 1.0f);
	for (size_t i = 0; i < CLUSTERS * WIDTH; i++)
		halves[i] = (uint16_t)(0x3400 + i % 700);
	f->source = buffer(f, KN_DEVICE, values, ROWS * WIDTH * sizeof(float));
	f->norm_weight = buffer(f, KN_DEVICE, values, WIDTH * sizeof(float));
	f->log_sizes = buffer(f, KN_DEVICE, values, CLUSTERS * sizeof(float));
	f->centroids = buffer(f, KN_DEVICE, halves, sizeof halves);
	f->order = buffer(f, KN_DEVICE, NULL, ROWS * sizeof(uint32_t));
	f->out = buffer(f, KN_DEVICE, &f->zeros, sizeof f->zeros);
	f->shared = buffer(f, KN_SHARED, NULL, sizeof f->zeros);
	ok(f->device.ops->weight_pack(
	    f->device.backend, &part, 1, WIDTH, KN_PRECISION_FP32, &f->weight));
	return f;
}

static void close_backend(struct kn_device *device)
{
	device->ops->stream_destroy(device->backend, device->stream);
	device->ops->close(device->backend);
}

static void destroy(struct fixture *f)
{
	void *const buffers[] = {
	    f->source, f->norm_weight, f->log_sizes, f->centroids, f->order, f->out, f->shared};

	f->device.ops->weight_destroy(f->device.backend, f->weight);
	for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
		kn_device_free(&f->device, buffers[i]);
	close_backend(&f->device);
	kvt_free(f);
}

struct counts {
	unsigned long long launched, updated, made;
};

static struct counts counts_of(const struct kn_device *device)
{
	const char *at = strstr(device->ops->describe(device->backend), "graphs: ");
	struct counts c = {0, 0, 0};

	assert_non_null(at);
	assert_int_equal(sscanf(at, "graphs: %llu launched, %llu updated, %llu made", &c.launched,
	                     &c.updated, &c.made),
	    3);
	assert_int_equal(c.launched, c.updated + c.made);
	return c;
}

static void assert_counts(const struct kn_device *device, unsigned launched, unsigned made)
{
	struct counts c = counts_of(device);

	assert_int_equal(c.launched, launched);
	assert_int_equal(c.made, made);
}

/* ---- a step of many operations ---- */

static void queue_copies(struct fixture *f, uint32_t step, uint32_t count)
{
	static struct kn_copy_job jobs[MOST_COPIES];
	const struct kn_copy_arguments a = {jobs, count};

	for (uint32_t i = 0; i < count; i++)
		jobs[i] = (struct kn_copy_job){(const uint8_t *)f->source + (i * 7 + step) % 64 * 16,
		    f->out->copies + (size_t)(i + step) % MOST_COPIES * 16, 16};
	ok(f->device.ops->copy(f->device.backend, f->device.stream, &a));
	/* They are the caller's again. */
	memset(jobs, 0, sizeof jobs);
}

static void queue_score(struct fixture *f, uint32_t step, uint32_t clusters)
{
	const struct kn_score_job job = {.q = f->source + (size_t)step % ROWS * WIDTH,
	    .centroids = f->centroids,
	    .log_sizes = f->log_sizes,
	    .clusters = clusters,
	    .logits = f->out->logits,
	    .logits_stride = clusters,
	    .votes = f->out->votes};
	const struct kn_score_arguments a = {
	    .jobs = &job, .job_count = 1, .group = 1, .head_dim = WIDTH, .scale = 0.1f};

	ok(f->device.ops->score(f->device.backend, f->device.stream, &a));
}

/* Most spans are empty. */
static void queue_spans(struct fixture *f, uint32_t step, uint32_t count)
{
	static struct kn_span spans[SPANS];
	const size_t row_bytes = kn_kv_row_bytes(KN_KV_F32, WIDTH);
	const struct kn_attend_job job = {
	    .q = f->source, .out = f->out->attended, .spans = spans, .span_count = count};
	const struct kn_attend_sparse_arguments a = {.jobs = &job,
	    .job_count = 1,
	    .group = 1,
	    .head_dim = WIDTH,
	    .kv_type = KN_KV_F32,
	    .scale = 0.1f};

	for (uint32_t i = 0; i < count; i++)
		spans[i] = (struct kn_span){
		    (const uint8_t *)f->source + (i + step) % (ROWS / 2) * row_bytes, i % 1000 == 7};
	ok(f->device.ops->attend_sparse(f->device.backend, f->device.stream, &a));
	memset(spans, 0, sizeof spans);
}

static void queue_rows(struct fixture *f, uint32_t step, uint32_t rows)
{
	const struct kn_device *d = &f->device;
	uint32_t order[ROWS];
	const struct kn_gather_rows_arguments gather = {.source = (const uint8_t *)f->source,
	    .source_stride = WIDTH * sizeof(float),
	    .order = f->order,
	    .destination = (uint8_t *)f->out->rows,
	    .destination_stride = WIDTH * sizeof(float),
	    .row_bytes = WIDTH * sizeof(float),
	    .count = rows};
	const struct kn_rms_norm_arguments norm = {.x = f->out->rows,
	    .x_stride = WIDTH,
	    .weight = f->norm_weight,
	    .out = f->out->norms + (size_t)(step % 3) * WIDTH,
	    .out_stride = WIDTH,
	    .count = rows,
	    .width = WIDTH,
	    .epsilon = 1e-5f + (float)step};

	for (uint32_t i = 0; i < ROWS; i++)
		order[i] = (i * 3 + step) % ROWS;
	ok(kn_device_upload(d, f->order, order, sizeof order));
	ok(d->ops->gather_rows(d->backend, d->stream, &gather));
	ok(d->ops->rms_norm(d->backend, d->stream, &norm));
}

static void queue_product(struct fixture *f, uint32_t count)
{
	const struct kn_matmul_arguments a = {.weight = f->weight,
	    .x = f->source,
	    .x_stride = WIDTH,
	    .y = f->out->product,
	    .y_stride = OUT_ROWS,
	    .count = count};

	ok(f->device.ops->matmul(f->device.backend, f->device.stream, &a));
}

/* Each is overwritten by the next, and a part of it copied before. */
static void queue_chunks(struct fixture *f, uint32_t step, uint32_t count, uint8_t *chunks)
{
	for (uint32_t i = 0; i < count; i++) {
		uint8_t *chunk = chunks + (size_t)i * CHUNK;
		struct kn_copy_job job = {f->out->chunk, f->out->copies + (size_t)i * 16, 16};
		const struct kn_copy_arguments a = {&job, 1};

		memset(chunk, (int)(i + step), CHUNK);
		ok(kn_device_upload(&f->device, f->out->chunk, chunk, CHUNK));
		ok(f->device.ops->copy(f->device.backend, f->device.stream, &a));
	}
}

/* Run it and bring all that was written here. */
static void run(
    struct fixture *f, uint32_t step, const struct form *form, struct output *to, uint8_t *chunks)
{
	const struct kn_device *d = &f->device;

	ok(kn_device_upload(d, f->out, &f->zeros, sizeof f->zeros));
	ok(d->ops->step_begin(d->backend, d->stream, form->rows));
	if (form->copies > 0) queue_copies(f, step, form->copies);
	if (form->rows > 0) queue_rows(f, step, form->rows);
	if (form->wait) ok(kn_device_wait(d));
	if (form->clusters > 0) queue_score(f, step, form->clusters);
	if (form->product) queue_product(f, ROWS);
	if (form->spans > 0) queue_spans(f, step, form->spans);
	queue_chunks(f, step, form->chunks, chunks);
	ok(kn_device_download(d, form->pageable ? to : f->shared, f->out, sizeof *to));
	ok(d->ops->step_end(d->backend, d->stream));
	ok(kn_device_wait(d));
	if (!form->pageable) memcpy(to, f->shared, sizeof *to);
}

static void a_captured_step_has_the_same_bits(void **state)
{
	static const struct {
		unsigned pieces;
		struct form form;
	} forms[] = {
	    {1, {.rows = 3, .copies = 2}},
	    {1, {.rows = 5, .copies = 7}},
	    {2, {.rows = 4, .copies = 40, .clusters = 9}}, /* scratch memory grows */
	    {1, {.rows = 4, .copies = 5, .clusters = CLUSTERS}},
	    {2, {.rows = 4, .copies = 5, .clusters = 17, .product = 1}}, /* again */
	    {1, {.rows = ROWS, .copies = 5, .clusters = CLUSTERS, .product = 1}},
	    {2, {.rows = 1, .chunks = CHUNKS}}, /* the ring is full */
	    {1, {.rows = 1, .chunks = CHUNKS + 20, .copies = 1}},
	    {1, {.rows = 2, .copies = 9, .pageable = 1}},
	    {1, {.rows = 2, .copies = 9, .wait = 1, .clusters = 3}}, /* the second is queued */
	    {1, {.rows = 2, .spans = SPANS / 4}},
	    {2, {.rows = 2, .spans = SPANS}}, /* more than a part of the ring holds */
	    {1, {.rows = 2, .spans = SPANS}},
	};
	unsigned long long before;
	struct fixture *captured = create(1), *plain = create(0);
	static struct output ours, theirs;
	uint8_t *chunks = kvt_alloc(CHUNKS + 20, CHUNK);

	(void)state;
	for (uint32_t i = 0; i < sizeof forms / sizeof *forms; i++) {
		before = counts_of(&captured->device).launched;
		run(captured, i, &forms[i].form, &ours, chunks);
		assert_int_equal(counts_of(&captured->device).launched - before, forms[i].pieces);
		run(plain, i, &forms[i].form, &theirs, chunks);
		kvt_assert_same_bits("a step", &ours, &theirs, sizeof ours);
		assert_memory_not_equal(&ours, &captured->zeros, sizeof ours);
	}
	assert_int_equal(counts_of(&plain->device).launched, 0);
	kvt_free(chunks);
	destroy(captured);
	destroy(plain);
}

/* The ring comes round to parts that a graph, which nobody has waited for, is to read. */
static void nobody_waits_for_a_step(void **state)
{
	enum { MOST_OF_IT = 100, CALLS = 12 };
	struct fixture *both[] = {create(1), create(0)};
	static struct output outputs[2];
	uint8_t *chunks = kvt_alloc(MOST_OF_IT, CHUNK);

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct fixture *f = both[i];
		const struct kn_device *d = &f->device;

		queue_spans(f, 0, SPANS / 4); /* scratch memory is large enough now */
		ok(kn_device_wait(d));
		ok(d->ops->step_begin(d->backend, d->stream, 1));
		queue_chunks(f, 1, MOST_OF_IT, chunks);
		ok(d->ops->step_end(d->backend, d->stream));
		for (uint32_t call = 0; call < CALLS; call++)
			queue_spans(f, call, SPANS / 4);
		ok(kn_device_download(d, &outputs[i], f->out, sizeof outputs[i]));
		ok(kn_device_wait(d));
	}
	kvt_assert_same_bits("steps", &outputs[0], &outputs[1], sizeof outputs[0]);
	assert_int_equal(outputs[0].copies[16 * (MOST_OF_IT - 1)], MOST_OF_IT);
	assert_counts(&both[0]->device, 1, 1);
	kvt_free(chunks);
	destroy(both[0]);
	destroy(both[1]);
}

/* Scratch memory and the ring are as large as they have to be after the first one. */
static void executables_are_used_again(void **state)
{
	const struct form form = {.rows = 4, .copies = 30, .clusters = 20, .product = 1};
	struct form other = {.rows = 5, .copies = 3};
	struct fixture *f = create(1);
	static struct output to;
	struct counts before, after;
	size_t left[2], total;

	(void)state;
	run(f, 0, &form, &to, NULL);
	before = counts_of(&f->device);
	for (uint32_t i = 1; i < 6; i++)
		run(f, i, &form, &to, NULL);
	after = counts_of(&f->device);
	assert_int_equal(after.launched, before.launched + 5);
	assert_int_equal(after.made, before.made + 1);
	/* More of them than are kept. */
	DEV_OK(cudaMemGetInfo(&left[0], &total));
	for (uint32_t shape = 0; shape < 70; shape++) {
		const struct kn_device *d = &f->device;

		ok(d->ops->step_begin(d->backend, d->stream, 1000 + shape));
		ok(d->ops->fill(d->backend, d->stream, f->out->chunk, (uint8_t)shape, CHUNK));
		ok(d->ops->step_end(d->backend, d->stream));
	}
	ok(kn_device_download(&f->device, &to, f->out, sizeof to));
	ok(kn_device_wait(&f->device));
	assert_int_equal(to.chunk[CHUNK - 1], 69);
	DEV_OK(cudaMemGetInfo(&left[1], &total));
	assert_true(left[0] - left[1] <= 32 * ((size_t)64 << 10));
	before = counts_of(&f->device);
	assert_int_equal(before.made, after.made + 70);
	/* The first one is gone; it comes again, and stays. */
	run(f, 6, &form, &to, NULL);
	run(f, 7, &form, &to, NULL);
	run(f, 7, &other, &to, NULL);
	run(f, 8, &form, &to, NULL);
	after = counts_of(&f->device);
	assert_int_equal(after.made, before.made + 2);
	assert_int_equal(after.launched, before.launched + 4);
	destroy(f);
}

/* ---- waits ---- */

static void queue_fills(struct fixture *f, uint32_t count, uint8_t first)
{
	const struct kn_device *d = &f->device;

	for (uint32_t i = 0; i < count; i++)
		ok(d->ops->fill(d->backend, d->stream, f->shared->chunk, (uint8_t)(first + i), CHUNK));
}

static void the_host_may_wait_within_a_step(void **state)
{
	struct fixture *f = create(1);
	const struct kn_device *d = &f->device;

	(void)state;
	memset(f->shared, 0, sizeof *f->shared);
	for (uint32_t i = 0; i < 2; i++) {
		ok(d->ops->step_begin(d->backend, d->stream, 1));
		queue_fills(f, 70, 1);
		ok(kn_device_wait(d));
		assert_int_equal(f->shared->chunk[CHUNK - 1], 70);
		f->shared->chunk[0] = 1;
		queue_fills(f, 80, 100);
		ok(d->ops->step_end(d->backend, d->stream));
		ok(kn_device_wait(d));
		assert_int_equal(f->shared->chunk[0], 179);
		assert_counts(d, 2 * (i + 1), 2);
	}
	/* After a short piece the rest of a step is queued as it comes. */
	ok(d->ops->step_begin(d->backend, d->stream, 1));
	queue_fills(f, 2, 1);
	ok(kn_device_wait(d));
	assert_int_equal(f->shared->chunk[0], 2);
	queue_fills(f, 70, 1);
	ok(kn_device_wait(d));
	assert_int_equal(f->shared->chunk[0], 70);
	ok(d->ops->step_end(d->backend, d->stream));
	assert_counts(d, 5, 3);
	/* A step without anything is none. */
	ok(d->ops->step_begin(d->backend, d->stream, 1));
	ok(kn_device_wait(d));
	ok(d->ops->step_end(d->backend, d->stream));
	assert_counts(d, 5, 3);
	destroy(f);
}

/* What another stream does meanwhile is no part of it. */
static void another_stream_goes_on_beside_a_step(void **state)
{
	struct fixture *f = create(1);
	struct kn_device other = f->device;
	const struct kn_device *d = &f->device;

	(void)state;
	ok(d->ops->stream_create(d->backend, KN_STREAM_BACKGROUND, &other.stream));
	memset(f->shared, 0, sizeof *f->shared);
	ok(d->ops->step_begin(d->backend, d->stream, 1));
	queue_fills(f, 3, 1);
	ok(d->ops->fill(d->backend, other.stream, f->shared->copies, 7, 16));
	ok(kn_device_wait(&other));
	assert_int_equal(f->shared->copies[15], 7);
	assert_int_equal(f->shared->chunk[0], 0);
	assert_int_equal(d->ops->stream_order(d->backend, other.stream, d->stream), KV_INVALID);
	ok(d->ops->step_end(d->backend, d->stream));
	ok(d->ops->stream_order(d->backend, d->stream, other.stream));
	ok(d->ops->fill(d->backend, other.stream, f->shared->chunk, 9, 1));
	ok(kn_device_wait(&other));
	assert_int_equal(f->shared->chunk[0], 9);
	assert_int_equal(f->shared->chunk[1], 3);
	ok(kn_device_wait(d));
	d->ops->stream_destroy(d->backend, other.stream);
	destroy(f);
}

/* ---- failures ---- */

static void an_operation_that_is_refused_ends_no_stream(void **state)
{
	struct fixture *f = create(1);
	const struct kn_device *d = &f->device;
	const struct kn_rms_norm_arguments nothing = {.count = 1};
	const struct form form = {.rows = 4, .copies = 30};
	static struct output to;

	(void)state;
	assert_int_equal(d->ops->step_end(d->backend, d->stream), KV_INVALID);
	memset(f->shared, 0, sizeof *f->shared);
	ok(d->ops->step_begin(d->backend, d->stream, 1));
	assert_int_equal(d->ops->step_begin(d->backend, d->stream, 1), KV_INVALID);
	queue_fills(f, 3, 1);
	assert_int_equal(d->ops->rms_norm(d->backend, d->stream, &nothing), KV_INVALID);
	ok(d->ops->step_end(d->backend, d->stream));
	ok(kn_device_wait(d));
	assert_int_equal(f->shared->chunk[0], 3);
	run(f, 1, &form, &to, NULL);
	/* A stream may go in the middle of one. */
	ok(d->ops->step_begin(d->backend, d->stream, 1));
	queue_fills(f, 3, 50);
	d->ops->stream_destroy(d->backend, d->stream);
	assert_int_equal(f->shared->chunk[0], 52);
	ok(d->ops->stream_create(d->backend, KN_STREAM_COMPUTE, &f->device.stream));
	run(f, 2, &form, &to, NULL);
	destroy(f);
}

static void assert_lost(const struct kn_device *d, enum kv_status status)
{
	assert_int_equal(status, KV_INTERNAL);
	assert_non_null(strstr(kv_error_message(), "what a step queued is lost"));
	/* Ever after. */
	assert_int_equal(kn_device_wait(d), KV_INTERNAL);
	assert_int_equal(d->ops->step_begin(d->backend, d->stream, 1), KV_INTERNAL);
	assert_non_null(strstr(kv_error_message(), "what a step queued is lost"));
}

/* A call that no capture survives, after one that it does. */
static void a_broken_capture_fails_the_stream(void **state)
{
	struct fixture *f = create(1);
	const struct kn_device *d = &f->device;
	const struct form form = {.rows = 4, .copies = 30};
	static struct output to;
	void *memory = NULL;

	(void)state;
	run(f, 1, &form, &to, NULL);
	for (int within = 0; within < 2; within++) {
		ok(d->ops->step_begin(d->backend, d->stream, 1));
		queue_fills(f, 3, 1);
		DEV_OK(cudaMalloc(&memory, 16));
		assert_int_equal(
		    cudaStreamSynchronize(d->stream->compute), cudaErrorStreamCaptureUnsupported);
		if (within) assert_int_equal(kn_device_wait(d), KV_INTERNAL);
		assert_lost(d, d->ops->step_end(d->backend, d->stream));
		d->ops->stream_destroy(d->backend, d->stream);
		ok(d->ops->stream_create(d->backend, KN_STREAM_COMPUTE, &f->device.stream));
		run(f, 2, &form, &to, NULL);
		dev_free(memory);
	}
	destroy(f);
}

/* Executables take memory of the device: those that are kept make room, and then it is over. */
static void no_memory_for_an_executable_fails_the_stream(void **state)
{
	struct fixture *f = create(1);
	const struct kn_device *d = &f->device;
	struct cudaDeviceProp device;
	size_t left, total;
	void *memory;

	(void)state;
	DEV_OK(cudaGetDeviceProperties(&device, 0));
	if (strcmp(device.name, "cuda_on_cpu") != 0) {
		destroy(f);
		skip();
	}
	ok(d->ops->step_begin(d->backend, d->stream, 1));
	queue_fills(f, 3, 1);
	ok(d->ops->step_end(d->backend, d->stream));
	DEV_OK(cudaMemGetInfo(&left, &total));
	memory = dev_alloc(left / 4096 * 4096);
	ok(d->ops->step_begin(d->backend, d->stream, 2));
	queue_fills(f, 4, 10);
	ok(d->ops->step_end(d->backend, d->stream));
	ok(kn_device_wait(d));
	assert_int_equal(f->shared->chunk[0], 13);
	d->ops->stream_destroy(d->backend, d->stream);
	dev_free(memory);
	ok(d->ops->stream_create(d->backend, KN_STREAM_COMPUTE, &f->device.stream));
	DEV_OK(cudaMemGetInfo(&left, &total));
	memory = dev_alloc(left / 4096 * 4096);
	ok(d->ops->step_begin(d->backend, d->stream, 2));
	queue_fills(f, 4, 20);
	assert_lost(d, d->ops->step_end(d->backend, d->stream));
	assert_int_equal(f->shared->chunk[0], 13);
	dev_free(memory);
	destroy(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_captured_step_has_the_same_bits),
	    cmocka_unit_test(nobody_waits_for_a_step),
	    cmocka_unit_test(executables_are_used_again),
	    cmocka_unit_test(the_host_may_wait_within_a_step),
	    cmocka_unit_test(another_stream_goes_on_beside_a_step),
	    cmocka_unit_test(an_operation_that_is_refused_ends_no_stream),
	    cmocka_unit_test(a_broken_capture_fails_the_stream),
	    cmocka_unit_test(no_memory_for_an_executable_fails_the_stream),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
