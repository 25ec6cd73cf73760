/* Prefill attention on CUDA: against double precision and the cpu backend, and what its bits depend
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

enum { MAX_KV_HEADS = 4 };

struct dense_case {
	uint32_t context, before, count, kv_heads, group, head_dim;
	enum kn_kv_type type;
};

struct fixture {
	struct dense_case c;
	size_t bytes, width;                /* of a row; floats of a query */
	uint8_t *rows[MAX_KV_HEADS];        /* context, then own */
	uint8_t *device_rows[MAX_KV_HEADS]; /* the same */
	float *q, *device_q, *device_out;
	float scale;
};

static uint32_t row_count(const struct dense_case *c)
{
	return c->context + c->before + c->count;
}

static void fixture_create(struct fixture *f, struct dense_case c, uint64_t seed)
{
	struct kv_random random;

	kv_random_seed(&random, seed);
	memset(f, 0, sizeof *f);
	f->c = c;
	f->bytes = kn_kv_row_bytes(c.type, c.head_dim);
	f->width = (size_t)c.kv_heads * c.group * c.head_dim;
	f->scale = 1.0f / sqrtf((float)c.head_dim);
	f->q = kvt_alloc(c.count * f->width, sizeof *f->q);
	kvt_fill_peaky(&random, f->q, c.count * f->width, 1.5f);
	f->device_q = dev_upload(f->q, c.count * f->width * sizeof *f->q);
	f->device_out = dev_alloc(c.count * f->width * sizeof *f->q);
	for (uint32_t h = 0; h < c.kv_heads; h++) {
		f->rows[h] = kvt_make_rows(&random, row_count(&c), c.head_dim, c.type);
		f->device_rows[h] = dev_upload(f->rows[h], row_count(&c) * f->bytes);
	}
}

static void fixture_destroy(struct fixture *f)
{
	for (uint32_t h = 0; h < f->c.kv_heads; h++) {
		kvt_free(f->rows[h]);
		dev_free(f->device_rows[h]);
	}
	kvt_free(f->q);
	dev_free(f->device_q);
	dev_free(f->device_out);
}

/* A chunk's arguments but for q, out, context and own. */
static struct kn_attend_dense_arguments arguments_of(
    const struct fixture *f, uint32_t own_before, uint32_t count)
{
	return (struct kn_attend_dense_arguments){.q_stride = f->width,
	    .out_stride = f->width,
	    .own_before = own_before,
	    .count = count,
	    .heads = f->c.kv_heads * f->c.group,
	    .kv_heads = f->c.kv_heads,
	    .head_dim = f->c.head_dim,
	    .kv_type = f->c.type,
	    .scale = f->scale};
}

/* Attend the queries first … end as one chunk: `context` rows, cut at random to `spans` spans, are
 * context, the others before them are own ones. Results go to the same rows of device_out. */
static void attend(const struct fixture *f, uint32_t first, uint32_t end, uint32_t context,
    uint32_t spans, struct kv_random *random)
{
	uint32_t kv_heads = f->c.kv_heads;
	struct kn_span *list = kvt_alloc((size_t)kv_heads * spans + 1, sizeof *list);
	const uint8_t *own[MAX_KV_HEADS];
	struct kn_attend_dense_arguments a =
	    arguments_of(f, f->c.context + f->c.before + first - context, end - first);

	for (uint32_t h = 0; h < kv_heads; h++) {
		uint32_t at = 0;

		for (uint32_t i = 0; i < spans; i++) {
			uint32_t take = (uint32_t)kv_random_below(random, 2 * context / spans + 2);

			if (i % 7 == 5) take = 0;
			if (take > context - at || i + 1 == spans) take = context - at;
			list[h * spans + i] = (struct kn_span){f->device_rows[h] + at * f->bytes, take};
			at += take;
		}
		own[h] = f->device_rows[h] + context * f->bytes;
	}
	a.q = f->device_q + first * f->width;
	a.out = f->device_out + first * f->width;
	a.context_spans = spans;
	struct kn_span *device_list = dev_upload(list, (kv_heads * spans + 1) * sizeof *list);
	const uint8_t **device_own = dev_upload(own, sizeof own);

	a.context = device_list;
	a.own = device_own;
	void *scratch = dev_alloc(kn_cuda_attend_dense_scratch_bytes(&a));

	DEV_OK(kn_cuda_attend_dense(&a, scratch, NULL));
	dev_wait();
	dev_free(scratch);
	dev_free(device_own);
	dev_free(device_list);
	kvt_free(list);
}

static void reference_row(const struct fixture *f, uint32_t query, uint32_t head, double *out)
{
	const struct dense_case *c = &f->c;
	const uint8_t *rows = f->rows[head / c->group];
	const float *q = f->q + query * f->width + (size_t)head * c->head_dim;
	uint32_t n = c->context + c->before + query + 1;
	double *w = kvt_alloc(n, sizeof *w), max = -INFINITY, sum = 0;

	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t d = 0; d < c->head_dim; d++)
			w[i] += (double)q[d] * kvt_row_element(rows + i * f->bytes, c->type, d);
		w[i] *= (double)f->scale;
		max = fmax(max, w[i]);
	}
	for (uint32_t i = 0; i < n; i++) {
		double e = exp(w[i] - max);

		sum += e;
		for (uint32_t d = 0; d < c->head_dim; d++)
			out[d] += e * kvt_row_element(rows + i * f->bytes, c->type, c->head_dim + d);
	}
	for (uint32_t d = 0; d < c->head_dim; d++)
		out[d] /= sum;
	kvt_free(w);
}

/* The cpu backend on the same chunk. */
static void attend_cpu(const struct fixture *f, double *out)
{
	struct kn_attend_dense_arguments a = arguments_of(f, f->c.before, f->c.count);
	struct kn_span context[MAX_KV_HEADS];
	const uint8_t *own[MAX_KV_HEADS];
	size_t size = f->c.count * f->width;
	float *got = kvt_alloc(size, sizeof *got);
	struct kvt_backend cpu;

	for (uint32_t h = 0; h < f->c.kv_heads; h++) {
		context[h] = (struct kn_span){f->rows[h], f->c.context};
		own[h] = f->rows[h] + f->c.context * f->bytes;
	}
	a.q = f->q;
	a.out = got;
	a.context = context;
	a.context_spans = 1;
	a.own = own;
	assert_true(kvt_backend_open(&cpu, KN_CPU_PLAIN, 1));
	assert_int_equal(cpu.ops->attend_dense(cpu.backend, NULL, &a), KV_OK);
	kvt_backend_close(&cpu);
	for (size_t i = 0; i < size; i++)
		out[i] = (double)got[i];
	kvt_free(got);
}

static const struct dense_case cases[] = {
    {0, 0, 1, 1, 1, 64, KN_KV_F16},
    {0, 0, 25, 2, 3, 64, KN_KV_F16},
    {63, 1, 12, 2, 7, 64, KN_KV_BF16},
    {90, 17, 9, 1, 4, 80, KN_KV_F16},
    {60, 0, 5, 1, 5, 96, KN_KV_F32},
    {65, 5, 9, 2, 2, 128, KN_KV_F16},
    {30, 5, 5, 1, 16, 256, KN_KV_F16},
    {10, 5, 6, 1, 3, 8, KN_KV_F32},
    {64, 3, 6, 1, 9, 200, KN_KV_F32},
    {130, 0, 3, 3, 1, 40, KN_KV_BF16},
};

static void check_case(const struct dense_case *c, uint64_t seed)
{
	struct kv_random random;
	struct fixture f;
	char what[96];

	fixture_create(&f, *c, seed);
	size_t size = c->count * f.width;
	double *want = kvt_alloc(size, sizeof *want);

	kv_random_seed(&random, seed);
	attend(&f, 0, c->count, c->context, c->context > 0 ? 9 : 0, &random);
	float *got = dev_fetch(f.device_out, size * sizeof *got);

	for (uint32_t query = 0; query < c->count; query++)
		for (uint32_t head = 0; head < c->kv_heads * c->group; head++)
			reference_row(&f, query, head, want + query * f.width + (size_t)head * c->head_dim);
	snprintf(what, sizeof what, "%u + %u + %u rows, %u x %u", c->context, c->before, c->count,
	    c->group, c->head_dim);
	kvt_assert_close(what, got, want, size, 5e-5, 3e-6);
	if (c->type != KN_KV_BF16) {
		attend_cpu(&f, want);
		kvt_assert_close("against cpu", got, want, size, 5e-5, 3e-6);
	}
	kvt_free(got);
	kvt_free(want);
	fixture_destroy(&f);
}

static void agrees_with_double_precision_and_cpu(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		check_case(&cases[i], 10 + i);
	if (dev_scale() > 1)
		check_case(
		    &(struct dense_case){50 * (uint32_t)dev_scale(), 7, 70, 2, 7, 128, KN_KV_F16}, 9);
}

/* The same queries in chunks of other lengths, other shares of what is before them being context,
 * cut in other ways: the same bits. */
static void bits_depend_on_rows_alone(void **state)
{
	static const uint32_t steps[] = {3, 23};
	struct kv_random random;
	struct fixture f;

	(void)state;
	fixture_create(&f, (struct dense_case){70, 10, 24, 1, 3, 64, KN_KV_F16}, 77);
	size_t bytes = f.c.count * f.width * sizeof(float);

	kv_random_seed(&random, 5);
	attend(&f, 0, f.c.count, f.c.context, 1, &random);
	float *kept = dev_fetch(f.device_out, bytes);

	for (uint32_t i = 0; i < sizeof steps / sizeof *steps; i++) {
		DEV_OK(cudaMemset(f.device_out, 0, bytes));
		for (uint32_t first = 0; first < f.c.count; first += steps[i]) {
			uint32_t end = first + steps[i] < f.c.count ? first + steps[i] : f.c.count;
			uint32_t before = f.c.context + f.c.before + first;
			uint32_t context = (uint32_t)kv_random_below(&random, before + 1);

			attend(&f, first, end, context, 1 + (uint32_t)kv_random_below(&random, 300), &random);
		}
		float *got = dev_fetch(f.device_out, bytes);

		kvt_assert_same_bits("chunk cuts", got, kept, bytes);
		kvt_free(got);
	}
	kvt_free(kept);
	fixture_destroy(&f);
}

/* Zeros, and products that leave the range: no NaN, no sign of zero that depends on the chunk. */
static void zeros_do_not_show_the_chunk(void **state)
{
	struct kv_random random;
	struct fixture f;

	(void)state;
	fixture_create(&f, (struct dense_case){0, 0, 9, 1, 3, 64, KN_KV_F16}, 3);
	size_t size = f.c.count * f.width;

	for (uint32_t i = 0; i < 9; i++)
		for (uint32_t d = 0; d < 128; d++) {
			float value = d < 64 ? (i % 3 == 0 ? 60000.0f : 0.0f) : i % 2 == 0 ? -0.0f : -6e-8f;

			kvt_set_element(f.rows[0] + i * f.bytes, KN_KV_F16, d, value);
		}
	dev_write(f.device_rows[0], f.rows[0], 9 * f.bytes);
	kv_random_seed(&random, 6);
	attend(&f, 0, 9, 0, 0, &random);
	float *got = dev_fetch(f.device_out, size * sizeof *got);

	for (uint32_t i = 0; i < 9; i++)
		attend(&f, i, i + 1, i / 2, 2, &random);
	float *alone = dev_fetch(f.device_out, size * sizeof *alone);

	kvt_assert_same_bits("zeros", got, alone, size * sizeof *alone);
	for (size_t i = 0; i < size; i++)
		assert_true(fabsf(got[i]) < 1e-7f);
	kvt_free(alone);
	kvt_free(got);
	fixture_destroy(&f);
}

static void refuses_what_it_cannot(void **state)
{
	struct kn_attend_dense_arguments a = {
	    .count = 1, .heads = 17, .kv_heads = 1, .head_dim = 64, .kv_type = KN_KV_F16};

	(void)state;
	assert_int_equal(kn_cuda_attend_dense(&a, NULL, NULL), cudaErrorInvalidValue);
	a.heads = 1;
	a.head_dim = 264;
	assert_int_equal(kn_cuda_attend_dense(&a, NULL, NULL), cudaErrorInvalidValue);
	a.count = 0;
	DEV_OK(kn_cuda_attend_dense(&a, NULL, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(agrees_with_double_precision_and_cpu),
	    cmocka_unit_test(bits_depend_on_rows_alone),
	    cmocka_unit_test(zeros_do_not_show_the_chunk),
	    cmocka_unit_test(refuses_what_it_cannot),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
