/* Decode attention against double precision, and the promises about its bits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/kernels/kv_rows.h"

struct sparse_case {
	uint32_t rows, clusters, group, head_dim;
	enum kn_kv_type type;
};

/* One job and what belongs to it. */
struct fixture {
	struct sparse_case c;
	uint8_t *rows;
	float *q, *out, *mass, *logits;
	uint16_t *means;
	uint32_t *rest;
	struct kn_span *spans;
	struct kn_attend_job job;
	double *want, *want_mass;
	float scale;
};

/* The reference, from the definition. */
static void attend_reference(struct fixture *f, uint32_t g)
{
	const struct sparse_case *c = &f->c;
	size_t bytes = kn_kv_row_bytes(c->type, c->head_dim);
	double *w = kvt_alloc(c->rows + c->clusters + 1, sizeof *w), max = -INFINITY;
	double exact = 0, estimated = 0;

	for (uint32_t i = 0; i < c->rows; i++) {
		for (uint32_t d = 0; d < c->head_dim; d++)
			w[i] += (double)f->q[g * c->head_dim + d] *
			        kvt_row_element(f->rows + i * bytes, c->type, d);
		w[i] *= (double)f->scale;
		max = fmax(max, w[i]);
	}
	for (uint32_t i = 0; i < c->clusters; i++)
		if (f->rest[i] != 0)
			max = fmax(max, (double)f->logits[g * f->job.estimate.logits_stride + i]);
	double *out = f->want + (size_t)g * c->head_dim;

	for (uint32_t i = 0; i < c->rows; i++) {
		double e = exp(w[i] - max);

		exact += e;
		for (uint32_t d = 0; d < c->head_dim; d++)
			out[d] += e * kvt_row_element(f->rows + i * bytes, c->type, c->head_dim + d);
	}
	for (uint32_t i = 0; i < c->clusters; i++) {
		double e = f->rest[i] * exp((double)f->logits[g * f->job.estimate.logits_stride + i] - max);

		estimated += e;
		for (uint32_t d = 0; d < c->head_dim; d++)
			out[d] += e * (double)kn_half_to_float(f->means[i * c->head_dim + d]);
	}
	for (uint32_t d = 0; d < c->head_dim; d++)
		out[d] /= exact + estimated;
	f->want_mass[g] = exact / (exact + estimated);
	kvt_free(w);
}

static void fixture_create(struct fixture *f, struct sparse_case c, uint64_t seed)
{
	struct kv_random random;
	size_t bytes = kn_kv_row_bytes(c.type, c.head_dim), width = (size_t)c.group * c.head_dim;
	uint32_t stride = c.clusters + 3;

	kv_random_seed(&random, seed);
	memset(f, 0, sizeof *f);
	f->c = c;
	f->scale = 1.0f / sqrtf((float)c.head_dim);
	f->rows = kvt_make_rows(&random, c.rows, c.head_dim, c.type);
	f->q = kvt_alloc(width, sizeof *f->q);
	f->out = kvt_alloc(width, sizeof *f->out);
	f->want = kvt_alloc(width, sizeof *f->want);
	f->mass = kvt_alloc(c.group, sizeof *f->mass);
	f->want_mass = kvt_alloc(c.group, sizeof *f->want_mass);
	f->logits = kvt_alloc((size_t)c.group * stride, sizeof *f->logits);
	f->means = kvt_alloc((size_t)(c.clusters + 1) * c.head_dim, sizeof *f->means);
	f->rest = kvt_alloc(c.clusters + 1, sizeof *f->rest);
	f->spans = kvt_alloc((size_t)c.rows * 4 + 16, sizeof *f->spans);
	kvt_fill_peaky(&random, f->q, width, 1.5f);
	kvt_fill_peaky(&random, f->logits, (size_t)c.group * stride, 0.5f);
	for (size_t i = 0; i < (size_t)c.clusters * c.head_dim; i++)
		f->means[i] = kn_half_from_float(kv_random_normal(&random));
	for (uint32_t i = 0; i < c.clusters; i++)
		f->rest[i] = kv_random_below(&random, 3) == 0 ? 0 : (uint32_t)kv_random_below(&random, 60);
	f->job = (struct kn_attend_job){.q = f->q,
	    .out = f->out,
	    .spans = f->spans,
	    .span_count = kvt_cut_spans(&random, f->rows, bytes, c.rows, 40, f->spans),
	    .exact_mass = f->mass,
	    .estimate = {.logits = f->logits,
	        .logits_stride = stride,
	        .rest = f->rest,
	        .value_means = f->means,
	        .clusters = c.clusters}};
}

static void fixture_destroy(struct fixture *f)
{
	void *blocks[] = {f->rows, f->q, f->out, f->mass, f->logits, f->means, f->rest, f->spans,
	    f->want, f->want_mass};

	for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
		kvt_free(blocks[i]);
}

static void attend(const struct kvt_backend *b, const struct fixture *f,
    const struct kn_attend_job *jobs, uint32_t count)
{
	struct kn_attend_sparse_arguments a = {.jobs = jobs,
	    .job_count = count,
	    .group = f->c.group,
	    .head_dim = f->c.head_dim,
	    .kv_type = f->c.type,
	    .scale = f->scale};

	assert_int_equal(b->ops->attend_sparse(b->backend, NULL, &a), KV_OK);
}

static const struct sparse_case cases[] = {
    {1, 0, 1, 64, KN_KV_F16},
    {7, 3, 3, 64, KN_KV_F16},
    {256, 0, 3, 64, KN_KV_F16},
    {257, 16, 7, 64, KN_KV_F16},
    {1153, 240, 3, 64, KN_KV_F16},
    {600, 530, 7, 64, KN_KV_F16},
    {300, 40, 2, 8, KN_KV_F16},
    {300, 40, 4, 80, KN_KV_F16},
    {300, 17, 5, 96, KN_KV_F16},
    {300, 17, 6, 128, KN_KV_F16},
    {300, 17, 8, 256, KN_KV_F16},
    {270, 33, 16, 256, KN_KV_F16},
    {270, 33, 9, 40, KN_KV_F16},
    {270, 33, 3, 64, KN_KV_F32},
    {270, 33, 11, 88, KN_KV_F32},
    {0, 50, 3, 64, KN_KV_F16},
};

enum { CASES = sizeof cases / sizeof *cases };

static void check_accuracy(const struct kvt_backend *b, void *context)
{
	const struct fixture *fixtures = context;

	for (size_t i = 0; i < CASES; i++) {
		const struct fixture *f = &fixtures[i];
		char what[96];

		memset(f->out, 0xff, (size_t)f->c.group * f->c.head_dim * sizeof *f->out);
		memset(f->mass, 0xff, f->c.group * sizeof *f->mass);
		attend(b, f, &f->job, 1);
		snprintf(what, sizeof what, "%s, case %zu", b->name, i);
		kvt_assert_close(what, f->out, f->want, (size_t)f->c.group * f->c.head_dim, 3e-5, 3e-6);
		for (uint32_t g = 0; g < f->c.group; g++)
			assert_true(fabs((double)f->mass[g] - f->want_mass[g]) < 2e-5);
	}
}

static void agrees_with_double_precision(void **state)
{
	struct fixture fixtures[CASES];

	(void)state;
	for (size_t i = 0; i < CASES; i++) {
		fixture_create(&fixtures[i], cases[i], 100 + i);
		for (uint32_t g = 0; g < fixtures[i].c.group; g++)
			attend_reference(&fixtures[i], g);
	}
	kvt_each_backend(check_accuracy, fixtures);
	for (size_t i = 0; i < CASES; i++)
		fixture_destroy(&fixtures[i]);
}

/* What one level must give at every thread count, span cut and neighbourhood. */
struct kept {
	enum kn_cpu_level level;
	float out[3 * 64], mass[3];
};

static void check_bits(const struct kvt_backend *b, void *context)
{
	struct kept *kept = context;
	struct fixture f;
	struct kn_attend_job jobs[5];
	float others[4][3 * 64];
	struct kn_span whole, more[2 * 1153 + 1];
	struct kv_random random;

	fixture_create(&f, (struct sparse_case){1153, 700, 3, 64, KN_KV_F16}, 7);
	attend(b, &f, &f.job, 1);
	if (kept->level != b->level) {
		kept->level = b->level;
		memcpy(kept->out, f.out, sizeof kept->out);
		memcpy(kept->mass, f.mass, sizeof kept->mass);
	}
	kvt_assert_same_bits("threads", f.out, kept->out, sizeof kept->out);
	kvt_assert_same_bits("threads, mass", f.mass, kept->mass, sizeof kept->mass);
	/* Neighbours of other lengths, the job in the middle, its rows in one span. */
	whole = (struct kn_span){.rows = f.rows, .count = f.c.rows};
	for (uint32_t i = 0; i < 5; i++) {
		jobs[i] = f.job;
		jobs[i].exact_mass = NULL;
		jobs[i].span_count -= i;
		if (i != 2) jobs[i].out = others[i < 2 ? i : i - 1];
	}
	jobs[2].spans = &whole;
	jobs[2].span_count = 1;
	memset(f.out, 0, sizeof kept->out);
	attend(b, &f, jobs, 5);
	kvt_assert_same_bits("neighbours and one span", f.out, kept->out, sizeof kept->out);
	kv_random_seed(&random, 99);
	for (uint32_t longest = 1; longest < 400; longest *= 3) {
		jobs[2].spans = more;
		jobs[2].span_count =
		    kvt_cut_spans(&random, f.rows, kn_kv_row_bytes(KN_KV_F16, 64), f.c.rows, longest, more);
		memset(f.out, 0, sizeof kept->out);
		attend(b, &f, jobs + 2, 1);
		kvt_assert_same_bits("span cuts", f.out, kept->out, sizeof kept->out);
	}
	fixture_destroy(&f);
}

static void bits_depend_on_rows_alone(void **state)
{
	struct kept kept = {.level = KN_CPU_AUTO};

	(void)state;
	kvt_each_backend(check_bits, &kept);
}

/* More blocks than one round holds: long rows, wide partial results, and an estimate behind. Every
 * fourth job attends to nothing at all: some of them follow a job that the round before began. */
static void check_rounds(const struct kvt_backend *b, void *context)
{
	enum { JOBS = 40, GROUP = 16, DIM = 256, ROWS = 700, REPEAT = 160 };
	struct fixture f;
	struct kn_attend_job jobs[JOBS];
	struct kn_span spans[REPEAT];
	float *out, *alone;

	(void)context;
	if (b->level == KN_CPU_PLAIN || b->threads != 3) return;
	fixture_create(&f, (struct sparse_case){ROWS, 100, GROUP, DIM, KN_KV_F16}, 3);
	for (uint32_t i = 0; i < REPEAT; i++)
		spans[i] = (struct kn_span){.rows = f.rows, .count = ROWS};
	out = kvt_alloc((size_t)JOBS * GROUP * DIM, sizeof *out);
	alone = kvt_alloc((size_t)GROUP * DIM, sizeof *alone);
	for (uint32_t i = 0; i < JOBS; i++) {
		jobs[i] = f.job;
		jobs[i].spans = spans;
		jobs[i].span_count = i % 7 == 0 ? REPEAT : i % 3;
		jobs[i].exact_mass = NULL;
		jobs[i].out = out + (size_t)i * GROUP * DIM;
		if (i % 4 == 3) jobs[i].span_count = jobs[i].estimate.clusters = 0;
	}
	attend(b, &f, jobs, JOBS);
	for (uint32_t i = 0; i < JOBS; i++) {
		struct kn_attend_job job = jobs[i];

		job.out = alone;
		attend(b, &f, &job, 1);
		kvt_assert_same_bits("rounds", jobs[i].out, alone, (size_t)GROUP * DIM * sizeof *alone);
		if (i % 4 == 3)
			for (uint32_t d = 0; d < GROUP * DIM; d++)
				assert_true(alone[d] == 0.0f);
	}
	kvt_free(out);
	kvt_free(alone);
	fixture_destroy(&f);
}

static void rounds_do_not_show(void **state)
{
	(void)state;
	kvt_each_backend(check_rounds, NULL);
}

/* One job that alone needs several rounds: 16 heads of 256 channels, 300,000 rows. */
static void check_long_job(const struct kvt_backend *b, void *context)
{
	enum { ROWS = 3000, REPEAT = 100, GROUP = 16, DIM = 256 };
	struct fixture f;
	struct kn_span *spans;

	(void)context;
	if (b->level == KN_CPU_PLAIN || b->threads != 2) return;
	fixture_create(&f, (struct sparse_case){ROWS, 0, GROUP, DIM, KN_KV_F16}, 5);
	for (uint32_t g = 0; g < GROUP; g++)
		attend_reference(&f, g);
	spans = kvt_alloc(REPEAT, sizeof *spans);
	for (uint32_t i = 0; i < REPEAT; i++)
		spans[i] = (struct kn_span){.rows = f.rows, .count = ROWS};
	f.job.spans = spans;
	f.job.span_count = REPEAT;
	attend(b, &f, &f.job, 1);
	/* The same rows a hundred times over have the same mean. */
	kvt_assert_close("long job", f.out, f.want, (size_t)GROUP * DIM, 2e-4, 2e-5);
	kvt_free(spans);
	fixture_destroy(&f);
}

static void a_job_may_need_many_rounds(void **state)
{
	(void)state;
	kvt_each_backend(check_long_job, NULL);
}

/* A number of spans that somebody else has written is as good as the host's, and never above it. */
static void check_written(const struct kvt_backend *b, void *context)
{
	struct fixture f;
	float want[3 * 64];

	(void)context;
	fixture_create(&f, (struct sparse_case){300, 20, 3, 64, KN_KV_F16}, 19);
	const uint32_t all = f.job.span_count, written[] = {0, 1, all / 2, all, all + 1, UINT32_MAX};

	for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
		struct kn_attend_job job = f.job;

		job.span_count = written[i] < all ? written[i] : all;
		attend(b, &f, &job, 1);
		memcpy(want, f.out, sizeof want);
		memset(f.out, 0xff, sizeof want);
		job.span_count = all;
		job.spans_written = &written[i];
		job.row_bound = f.c.rows;
		attend(b, &f, &job, 1);
		kvt_assert_same_bits("spans written", f.out, want, sizeof want);
	}
	fixture_destroy(&f);
}

static void spans_may_be_counted_by_others(void **state)
{
	(void)state;
	kvt_each_backend(check_written, NULL);
}

static void check_refusals(const struct kvt_backend *b, void *context)
{
	struct fixture f;

	(void)context;
	fixture_create(&f, (struct sparse_case){10, 0, 3, 64, KN_KV_F16}, 1);
	struct kn_attend_sparse_arguments good = {.jobs = &f.job,
	    .job_count = 1,
	    .group = 3,
	    .head_dim = 64,
	    .kv_type = KN_KV_F16,
	    .scale = 1.0f};
	struct kn_attend_sparse_arguments bad[] = {good, good, good, good, good};
	struct kn_attend_job job = f.job;

	bad[0].group = 0;
	bad[1].group = KN_MAX_GROUP + 1;
	bad[2].head_dim = 60;
	bad[3].head_dim = KN_MAX_HEAD_DIM + 8;
	job.q = NULL;
	bad[4].jobs = &job;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(b->ops->attend_sparse(b->backend, NULL, &bad[i]), KV_INVALID);
	bad[0] = good;
	bad[0].kv_type = KN_KV_BF16;
	assert_int_equal(b->ops->attend_sparse(b->backend, NULL, &bad[0]), KV_UNSUPPORTED);
	bad[0].kv_type = (enum kn_kv_type)3;
	assert_int_equal(b->ops->attend_sparse(b->backend, NULL, &bad[0]), KV_INVALID);
	good.job_count = 0;
	assert_int_equal(b->ops->attend_sparse(b->backend, NULL, &good), KV_OK);
	fixture_destroy(&f);
}

static void refuses_bad_arguments(void **state)
{
	(void)state;
	kvt_each_backend(check_refusals, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(agrees_with_double_precision),
	    cmocka_unit_test(bits_depend_on_rows_alone),
	    cmocka_unit_test(rounds_do_not_show),
	    cmocka_unit_test(a_job_may_need_many_rounds),
	    cmocka_unit_test(spans_may_be_counted_by_others),
	    cmocka_unit_test(refuses_bad_arguments),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
