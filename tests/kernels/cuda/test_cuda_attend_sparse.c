/* Decode attention on CUDA: against double precision and the cpu backend, and what its bits depend
 * on. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/cuda/launch_attention.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/kv_rows.h"

struct sparse_case {
	uint32_t rows, clusters, group, head_dim;
	enum kn_kv_type type;
};

/* One job: on the host for the references, and on the device. */
struct fixture {
	struct sparse_case c;
	size_t bytes, width; /* of a row; floats of q and out */
	uint32_t stride;     /* of the logits */
	float scale;
	uint8_t *rows;
	float *q, *logits;
	uint16_t *means;
	uint32_t *rest;
	uint8_t *device_rows;
	struct kn_attend_job job; /* of device memory, but for the spans */
	struct kn_span *spans;    /* host memory; of device rows */
	double *want, *want_mass;
};

/* What a launch gave. */
struct result {
	float out[16 * 256], mass[16];
};

static void fixture_create(struct fixture *f, struct sparse_case c, uint64_t seed)
{
	struct kv_random random;

	kv_random_seed(&random, seed);
	memset(f, 0, sizeof *f);
	f->c = c;
	f->bytes = kn_kv_row_bytes(c.type, c.head_dim);
	f->width = (size_t)c.group * c.head_dim;
	f->stride = c.clusters + 3;
	f->scale = 1.0f / sqrtf((float)c.head_dim);
	f->rows = kvt_make_rows(&random, c.rows + 1, c.head_dim, c.type);
	f->q = kvt_alloc(f->width, sizeof *f->q);
	f->want = kvt_alloc(f->width, sizeof *f->want);
	f->want_mass = kvt_alloc(c.group, sizeof *f->want_mass);
	f->logits = kvt_alloc((size_t)c.group * f->stride, sizeof *f->logits);
	f->means = kvt_alloc((size_t)(c.clusters + 1) * c.head_dim, sizeof *f->means);
	f->rest = kvt_alloc(c.clusters + 1, sizeof *f->rest);
	f->spans = kvt_alloc((size_t)c.rows * 4 + 16, sizeof *f->spans);
	kvt_fill_peaky(&random, f->q, f->width, 1.5f);
	kvt_fill_peaky(&random, f->logits, (size_t)c.group * f->stride, 0.5f);
	for (size_t i = 0; i < (size_t)c.clusters * c.head_dim; i++)
		f->means[i] = kn_half_from_float(kv_random_normal(&random));
	for (uint32_t i = 0; i < c.clusters; i++)
		f->rest[i] = kv_random_below(&random, 3) == 0 ? 0 : (uint32_t)kv_random_below(&random, 60);
	f->device_rows = dev_upload(f->rows, (c.rows + 1) * f->bytes);
	f->job = (struct kn_attend_job){.q = dev_upload(f->q, f->width * sizeof *f->q),
	    .out = dev_alloc(f->width * sizeof(float)),
	    .exact_mass = dev_alloc(c.group * sizeof(float)),
	    .spans = f->spans,
	    .span_count = kvt_cut_spans(&random, f->device_rows, f->bytes, c.rows, 40, f->spans),
	    .estimate = {.logits = dev_upload(f->logits, (size_t)c.group * f->stride * sizeof(float)),
	        .logits_stride = f->stride,
	        .rest = dev_upload(f->rest, (c.clusters + 1) * sizeof *f->rest),
	        .value_means =
	            dev_upload(f->means, (size_t)(c.clusters + 1) * c.head_dim * sizeof *f->means),
	        .clusters = c.clusters}};
}

static void fixture_destroy(struct fixture *f)
{
	const void *device[] = {f->device_rows, f->job.q, f->job.out, f->job.exact_mass,
	    f->job.estimate.logits, f->job.estimate.rest, f->job.estimate.value_means};
	void *host[] = {f->rows, f->q, f->logits, f->means, f->rest, f->spans, f->want, f->want_mass};

	for (size_t i = 0; i < sizeof device / sizeof *device; i++)
		dev_free((void *)(uintptr_t)device[i]);
	for (size_t i = 0; i < sizeof host / sizeof *host; i++)
		kvt_free(host[i]);
}

/* The reference, from the definition. */
static void attend_reference(struct fixture *f, uint32_t g)
{
	const struct sparse_case *c = &f->c;
	double *w = kvt_alloc(c->rows + 1, sizeof *w), max = -INFINITY, exact = 0, estimated = 0;
	double *out = f->want + (size_t)g * c->head_dim;
	const float *logits = f->logits + (size_t)g * f->stride;

	for (uint32_t i = 0; i < c->rows; i++) {
		for (uint32_t d = 0; d < c->head_dim; d++)
			w[i] += (double)f->q[g * c->head_dim + d] *
			        kvt_row_element(f->rows + i * f->bytes, c->type, d);
		w[i] *= (double)f->scale;
		max = fmax(max, w[i]);
	}
	for (uint32_t i = 0; i < c->clusters; i++)
		if (f->rest[i] != 0) max = fmax(max, (double)logits[i]);
	for (uint32_t i = 0; i < c->rows; i++) {
		double e = exp(w[i] - max);

		exact += e;
		for (uint32_t d = 0; d < c->head_dim; d++)
			out[d] += e * kvt_row_element(f->rows + i * f->bytes, c->type, c->head_dim + d);
	}
	for (uint32_t i = 0; i < c->clusters; i++) {
		double e = f->rest[i] == 0 ? 0 : f->rest[i] * exp((double)logits[i] - max);

		estimated += e;
		for (uint32_t d = 0; d < c->head_dim; d++)
			out[d] += e * (double)kn_half_to_float(f->means[i * c->head_dim + d]);
	}
	double sum = exact + estimated;

	for (uint32_t d = 0; d < c->head_dim; d++)
		out[d] = sum > 0 ? out[d] / sum : 0.0;
	f->want_mass[g] = sum > 0 ? exact / sum : 1.0;
	kvt_free(w);
}

static struct kn_attend_sparse_arguments arguments_of(
    const struct fixture *f, const struct kn_attend_job *jobs, uint32_t count)
{
	return (struct kn_attend_sparse_arguments){.jobs = jobs,
	    .job_count = count,
	    .group = f->c.group,
	    .head_dim = f->c.head_dim,
	    .kv_type = f->c.type,
	    .scale = f->scale};
}

/* A device copy of jobs and their spans; *spans is to be freed, too. */
static struct kn_attend_job *upload_jobs(
    const struct kn_attend_job *jobs, uint32_t count, struct kn_span **spans)
{
	struct kn_attend_job *copy = kvt_alloc(count, sizeof *copy), *device;
	size_t total = 0;

	for (uint32_t i = 0; i < count; i++)
		total += jobs[i].span_count;
	struct kn_span *all = kvt_alloc(total + 1, sizeof *all);

	*spans = dev_alloc((total + 1) * sizeof *all);
	total = 0;
	for (uint32_t i = 0; i < count; i++) {
		copy[i] = jobs[i];
		copy[i].spans = *spans + total;
		if (jobs[i].span_count > 0)
			memcpy(all + total, jobs[i].spans, jobs[i].span_count * sizeof *all);
		total += jobs[i].span_count;
	}
	dev_write(*spans, all, total * sizeof *all);
	device = dev_upload(copy, count * sizeof *copy);
	kvt_free(all);
	kvt_free(copy);
	return device;
}

/* Attend jobs at once; `result` is the last one's. */
static void attend(const struct fixture *f, const struct kn_attend_job *jobs, uint32_t count,
    const struct kn_cuda_attend_bounds *bounds, struct result *result)
{
	const struct kn_attend_job *last = &jobs[count - 1];
	struct kn_span *spans;
	struct kn_attend_job *device = upload_jobs(jobs, count, &spans);
	struct kn_attend_sparse_arguments a = arguments_of(f, device, count);
	void *scratch = dev_alloc(kn_cuda_attend_sparse_scratch_bytes(&a, bounds));

	DEV_OK(kn_cuda_attend_sparse(&a, bounds, scratch, NULL));
	dev_wait();
	memset(result, 0, sizeof *result);
	dev_download(result->out, last->out, f->width * sizeof(float));
	if (last->exact_mass != NULL)
		dev_download(result->mass, last->exact_mass, f->c.group * sizeof(float));
	dev_free(scratch);
	dev_free(device);
	dev_free(spans);
}

static const struct sparse_case cases[] = {
    {1, 0, 1, 64, KN_KV_F16},
    {7, 3, 3, 64, KN_KV_F16},
    {129, 16, 7, 64, KN_KV_F16},
    {256, 0, 4, 64, KN_KV_F16},
    {290, 140, 5, 80, KN_KV_BF16},
    {70, 17, 9, 96, KN_KV_F32},
    {130, 9, 6, 128, KN_KV_F16},
    {150, 33, 16, 256, KN_KV_F16},
    {33, 5, 2, 8, KN_KV_F32},
    {40, 130, 12, 40, KN_KV_BF16},
    {60, 9, 8, 256, KN_KV_F32},
    {90, 7, 1, 256, KN_KV_BF16},
    {0, 50, 3, 64, KN_KV_F16},
    {0, 0, 2, 64, KN_KV_F16},
};

/* The cpu backend on the same job. */
static void attend_cpu(const struct fixture *f, struct result *result)
{
	struct kn_span whole = {f->rows, f->c.rows};
	struct kn_attend_job job = {.q = f->q,
	    .out = result->out,
	    .spans = &whole,
	    .span_count = 1,
	    .exact_mass = result->mass,
	    .estimate = {f->logits, f->stride, f->rest, f->means, f->c.clusters}};
	struct kn_attend_sparse_arguments a = arguments_of(f, &job, 1);
	struct kvt_backend cpu;

	assert_true(kvt_backend_open(&cpu, KN_CPU_PLAIN, 1));
	assert_int_equal(cpu.ops->attend_sparse(cpu.backend, NULL, &a), KV_OK);
	kvt_backend_close(&cpu);
}

static void check_case(const struct sparse_case *c, uint64_t seed)
{
	struct kn_cuda_attend_bounds bounds = {c->rows, c->rows * 2 + 8, c->clusters};
	struct result *got = kvt_alloc(1, sizeof *got), *cpu = kvt_alloc(1, sizeof *cpu);
	double *want = kvt_alloc(16 * 256, sizeof *want);
	struct fixture f;
	char what[96];

	fixture_create(&f, *c, seed);
	for (uint32_t g = 0; g < c->group; g++)
		attend_reference(&f, g);
	attend(&f, &f.job, 1, &bounds, got);
	snprintf(what, sizeof what, "%u rows, %u clusters, %u x %u", c->rows, c->clusters, c->group,
	    c->head_dim);
	if (c->rows + c->clusters > 0) kvt_assert_close(what, got->out, f.want, f.width, 3e-5, 3e-6);
	for (uint32_t g = 0; g < c->group; g++)
		assert_true(fabs((double)got->mass[g] - f.want_mass[g]) < 2e-5);
	if (c->type != KN_KV_BF16) {
		attend_cpu(&f, cpu);
		for (size_t i = 0; i < f.width; i++)
			want[i] = (double)cpu->out[i];
		if (c->rows + c->clusters > 0)
			kvt_assert_close("against cpu", got->out, want, f.width, 3e-5, 3e-6);
		else
			kvt_assert_same_bits("nothing", got->out, cpu->out, f.width * sizeof(float));
		for (uint32_t g = 0; g < c->group; g++)
			assert_true(fabsf(got->mass[g] - cpu->mass[g]) < 2e-5f);
	}
	fixture_destroy(&f);
	kvt_free(want);
	kvt_free(cpu);
	kvt_free(got);
}

static void agrees_with_double_precision_and_cpu(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		check_case(&cases[i], 100 + i);
	if (dev_scale() > 1)
		check_case(&(struct sparse_case){257 * (uint32_t)dev_scale(), 300, 7, 128, KN_KV_F16}, 9);
}

/* The whole job in one span, among neighbours of other lengths and with bounds to spare. */
static void check_neighbours(const struct fixture *f, const struct result *kept)
{
	struct kn_cuda_attend_bounds bounds = {f->c.rows * 3, 4000, f->c.clusters + 500};
	struct kn_span whole = {f->device_rows, f->c.rows};
	struct kn_attend_job jobs[4];
	struct result *got = kvt_alloc(1, sizeof *got);

	for (uint32_t i = 0; i < 4; i++) {
		jobs[i] = f->job;
		jobs[i].span_count -= 3 * i;
		if (i < 3) {
			jobs[i].out = dev_alloc(f->width * sizeof(float));
			jobs[i].exact_mass = NULL;
		}
	}
	jobs[0].span_count = 0;
	jobs[1].estimate.clusters = 0;
	jobs[3].spans = &whole;
	jobs[3].span_count = 1;
	attend(f, jobs, 4, &bounds, got);
	kvt_assert_same_bits("neighbours, one span, other bounds", got, kept, sizeof *got);
	for (uint32_t i = 0; i < 3; i++)
		dev_free(jobs[i].out);
	kvt_free(got);
}

/* Each span at an address of its own, with gaps, and cut in many ways: more spans than one scan
 * holds, and long ones. */
static void check_cuts(const struct fixture *f, const struct result *kept)
{
	size_t room = (size_t)f->c.rows * (f->bytes + 16) + 16;
	struct kn_span *spans = kvt_alloc(f->c.rows * 4 + 16, sizeof *spans);
	struct result *got = kvt_alloc(1, sizeof *got);
	uint8_t *scattered = kvt_alloc(room, 1), *device = dev_alloc(room);
	struct kv_random random;

	kv_random_seed(&random, 99);
	for (uint32_t longest = 1; longest < 400; longest *= 7) {
		struct kn_attend_job job = f->job;
		size_t at = 16;

		job.spans = spans;
		job.span_count = kvt_cut_spans(&random, f->rows, f->bytes, f->c.rows, longest, spans);
		for (uint32_t i = 0; i < job.span_count; i++) {
			memcpy(scattered + at, spans[i].rows, spans[i].count * f->bytes);
			spans[i].rows = device + at;
			at += spans[i].count * f->bytes + (spans[i].count > 0 ? 16 : 0);
		}
		dev_write(device, scattered, room);
		struct kn_cuda_attend_bounds bounds = {f->c.rows, job.span_count, f->c.clusters};

		attend(f, &job, 1, &bounds, got);
		kvt_assert_same_bits("span cuts and addresses", got, kept, sizeof *got);
	}
	dev_free(device);
	kvt_free(scattered);
	kvt_free(got);
	kvt_free(spans);
}

static void bits_depend_on_rows_alone(void **state)
{
	struct result *kept = kvt_alloc(1, sizeof *kept);
	struct fixture f;

	(void)state;
	fixture_create(&f, (struct sparse_case){400, 140, 3, 64, KN_KV_F16}, 7);
	struct kn_cuda_attend_bounds bounds = {400, f.job.span_count, 140};

	attend(&f, &f.job, 1, &bounds, kept);
	check_neighbours(&f, kept);
	check_cuts(&f, kept);
	fixture_destroy(&f);
	kvt_free(kept);
}

/* Some of the rows, then the others with the estimate, joined: attention over all of them. */
static void parts_are_joined(void **state)
{
	struct kn_cuda_attend_bounds bounds[2] = {{230, 4, 0}, {230, 4, 40}};
	struct fixture f;
	struct kn_cuda_parts sets[2];
	struct kn_attend_job *jobs[2];
	struct kn_span *spans[2];
	float out[6 * 64], mass[6];

	(void)state;
	fixture_create(&f, (struct sparse_case){230, 40, 6, 64, KN_KV_F16}, 11);
	for (uint32_t g = 0; g < f.c.group; g++)
		attend_reference(&f, g);
	for (uint32_t i = 0; i < 2; i++) {
		struct kn_span half = {f.device_rows + (i ? 131 * f.bytes : 0), i ? 99 : 131};
		struct kn_attend_job job = f.job;

		job.spans = &half;
		job.span_count = 1;
		if (i == 0) job.estimate.clusters = 0;
		jobs[i] = upload_jobs(&job, 1, &spans[i]);
		struct kn_attend_sparse_arguments a = arguments_of(&f, jobs[i], 1);
		void *scratch = dev_alloc(kn_cuda_attend_sparse_scratch_bytes(&a, &bounds[i]));

		sets[i] = (struct kn_cuda_parts){scratch, bounds[i]};
		DEV_OK(kn_cuda_attend_parts(&a, &bounds[i], scratch, NULL));
	}
	struct kn_attend_sparse_arguments a = arguments_of(&f, jobs[1], 1);

	DEV_OK(kn_cuda_merge_attention(&a, sets, 2, NULL));
	dev_wait();
	dev_download(out, f.job.out, sizeof out);
	dev_download(mass, f.job.exact_mass, sizeof mass);
	kvt_assert_close("joined", out, f.want, f.width, 3e-5, 3e-6);
	for (uint32_t g = 0; g < 6; g++)
		assert_true(fabs((double)mass[g] - f.want_mass[g]) < 2e-5);
	for (uint32_t i = 0; i < 2; i++) {
		dev_free((void *)(uintptr_t)sets[i].scratch);
		dev_free(jobs[i]);
		dev_free(spans[i]);
	}
	fixture_destroy(&f);
}

/* What is beyond a bound is left out, and nothing outside the scratch memory is touched. */
static void bounds_hold(void **state)
{
	struct result *want = kvt_alloc(1, sizeof *want), *got = kvt_alloc(1, sizeof *got);
	struct kn_span spans[3];
	struct fixture f;

	(void)state;
	fixture_create(&f, (struct sparse_case){200, 20, 2, 64, KN_KV_F16}, 13);
	spans[0] = (struct kn_span){f.device_rows, 100};
	spans[1] = (struct kn_span){f.device_rows + 100 * f.bytes, 60};
	spans[2] = (struct kn_span){f.device_rows + 160 * f.bytes, 40};
	struct kn_attend_job job = f.job, less = f.job;

	less.spans = &(struct kn_span){f.device_rows, 130};
	less.span_count = 1;
	less.estimate.clusters = 11;
	attend(&f, &less, 1, &(struct kn_cuda_attend_bounds){200, 1, 20}, want);
	job.spans = spans;
	job.span_count = 3;
	attend(&f, &job, 1, &(struct kn_cuda_attend_bounds){130, 3, 11}, got);
	kvt_assert_same_bits("max_rows and max_clusters", got, want, sizeof *got);
	less.spans = &(struct kn_span){f.device_rows, 160};
	attend(&f, &less, 1, &(struct kn_cuda_attend_bounds){200, 1, 20}, want);
	attend(&f, &job, 1, &(struct kn_cuda_attend_bounds){200, 2, 11}, got);
	kvt_assert_same_bits("max_spans", got, want, sizeof *got);
	struct kn_attend_sparse_arguments a = arguments_of(&f, NULL, 0);
	struct kn_cuda_attend_bounds none = {0, 0, 0};

	DEV_OK(kn_cuda_attend_sparse(&a, &none, NULL, NULL));
	a.job_count = 1;
	a.group = 17;
	assert_int_equal(kn_cuda_attend_sparse(&a, &none, NULL, NULL), cudaErrorInvalidValue);
	fixture_destroy(&f);
	kvt_free(got);
	kvt_free(want);
}

/* A number of spans in device memory is as good as the host's, and never above it. */
static void spans_may_be_counted_on_the_device(void **state)
{
	struct result *want = kvt_alloc(1, sizeof *want), *got = kvt_alloc(1, sizeof *got);
	struct fixture f;

	(void)state;
	fixture_create(&f, (struct sparse_case){300, 20, 2, 64, KN_KV_F16}, 19);
	const uint32_t all = f.job.span_count, written[] = {0, 1, all / 2, all, UINT32_MAX};
	uint32_t *device = dev_upload(written, sizeof written);
	struct kn_cuda_attend_bounds bounds = {300, all, 20};

	for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
		struct kn_attend_job job = f.job;

		job.span_count = written[i] < all ? written[i] : all;
		attend(&f, &job, 1, &bounds, want);
		job.span_count = all;
		job.spans_written = device + i;
		attend(&f, &job, 1, &bounds, got);
		kvt_assert_same_bits("spans written", got, want, sizeof *got);
	}
	dev_free(device);
	fixture_destroy(&f);
	kvt_free(got);
	kvt_free(want);
}

/* Clusters that are attended whole leave nothing to estimate; pieces of nothing are no NaN. */
static void an_estimate_of_nothing_changes_nothing(void **state)
{
	struct result *with = kvt_alloc(1, sizeof *with), *without = kvt_alloc(1, sizeof *without);
	struct kn_cuda_attend_bounds bounds = {140, 300, 200};
	struct fixture f;

	(void)state;
	fixture_create(&f, (struct sparse_case){140, 200, 3, 64, KN_KV_F16}, 17);
	memset(f.rest, 0, 200 * sizeof *f.rest);
	dev_write((void *)(uintptr_t)f.job.estimate.rest, f.rest, 200 * sizeof *f.rest);
	attend(&f, &f.job, 1, &bounds, with);
	struct kn_attend_job job = f.job;

	job.estimate.clusters = 0;
	attend(&f, &job, 1, &bounds, without);
	kvt_assert_same_bits("with and without", with, without, sizeof *with);
	job = f.job;
	job.span_count = 0;
	attend(&f, &job, 1, &bounds, with);
	for (uint32_t i = 0; i < f.width; i++)
		assert_true(with->out[i] == 0.0f);
	for (uint32_t g = 0; g < f.c.group; g++)
		assert_true(with->mass[g] == 1.0f);
	fixture_destroy(&f);
	kvt_free(with);
	kvt_free(without);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(agrees_with_double_precision_and_cpu),
	    cmocka_unit_test(bits_depend_on_rows_alone),
	    cmocka_unit_test(parts_are_joined),
	    cmocka_unit_test(bounds_hold),
	    cmocka_unit_test(spans_may_be_counted_on_the_device),
	    cmocka_unit_test(an_estimate_of_nothing_changes_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
