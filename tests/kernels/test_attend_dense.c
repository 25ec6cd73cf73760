/* Prefill attention against double precision, and the promises about its bits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/kernels/kv_rows.h"

struct dense_case {
	uint32_t context, before, count, kv_heads, group, head_dim;
	enum kn_kv_type type;
};

struct fixture {
	struct dense_case c;
	uint8_t *rows[8]; /* of each KV head: context, then own */
	const uint8_t *own[8];
	float *q, *out;
	struct kn_span *context;
	struct kn_attend_dense_arguments a;
	double *want;
};

static void fixture_create(struct fixture *f, struct dense_case c, uint64_t seed)
{
	struct kv_random random;
	uint32_t heads = c.kv_heads * c.group, own = c.before + c.count;
	size_t width = (size_t)heads * c.head_dim;

	kv_random_seed(&random, seed);
	memset(f, 0, sizeof *f);
	f->c = c;
	f->q = kvt_alloc(c.count * width, sizeof *f->q);
	f->out = kvt_alloc(c.count * width, sizeof *f->out);
	f->want = kvt_alloc(c.count * width, sizeof *f->want);
	f->context = kvt_alloc(c.kv_heads, sizeof *f->context);
	kvt_fill_peaky(&random, f->q, c.count * width, 1.5f);
	for (uint32_t h = 0; h < c.kv_heads; h++) {
		f->rows[h] = kvt_make_rows(&random, c.context + own, c.head_dim, c.type);
		f->own[h] = f->rows[h] + c.context * kn_kv_row_bytes(c.type, c.head_dim);
		f->context[h] = (struct kn_span){.rows = f->rows[h], .count = c.context};
	}
	f->a = (struct kn_attend_dense_arguments){.q = f->q,
	    .q_stride = width,
	    .out = f->out,
	    .out_stride = width,
	    .context = f->context,
	    .context_spans = 1,
	    .own = f->own,
	    .own_before = c.before,
	    .count = c.count,
	    .heads = heads,
	    .kv_heads = c.kv_heads,
	    .head_dim = c.head_dim,
	    .kv_type = c.type,
	    .scale = 1.0f / sqrtf((float)c.head_dim)};
}

static void fixture_destroy(struct fixture *f)
{
	for (uint32_t h = 0; h < f->c.kv_heads; h++)
		kvt_free(f->rows[h]);
	kvt_free(f->q);
	kvt_free(f->out);
	kvt_free(f->want);
	kvt_free(f->context);
}

static void reference_row(struct fixture *f, uint32_t query, uint32_t head)
{
	const struct dense_case *c = &f->c;
	size_t bytes = kn_kv_row_bytes(c->type, c->head_dim);
	const uint8_t *rows = f->rows[head / c->group];
	size_t at = (size_t)query * f->a.q_stride + (size_t)head * c->head_dim;
	uint32_t n = c->context + c->before + query + 1;
	double *w = kvt_alloc(n, sizeof *w), max = -INFINITY, sum = 0;

	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t d = 0; d < c->head_dim; d++)
			w[i] += (double)f->q[at + d] * kvt_row_element(rows + i * bytes, c->type, d);
		w[i] *= (double)f->a.scale;
		max = fmax(max, w[i]);
	}
	for (uint32_t i = 0; i < n; i++) {
		double e = exp(w[i] - max);

		sum += e;
		for (uint32_t d = 0; d < c->head_dim; d++)
			f->want[at + d] += e * kvt_row_element(rows + i * bytes, c->type, c->head_dim + d);
	}
	for (uint32_t d = 0; d < c->head_dim; d++)
		f->want[at + d] /= sum;
	kvt_free(w);
}

static const struct dense_case cases[] = {
    {0, 0, 1, 1, 1, 64, KN_KV_F16},
    {0, 0, 130, 3, 3, 64, KN_KV_F16},
    {63, 1, 65, 2, 7, 64, KN_KV_F16},
    {200, 17, 33, 1, 4, 80, KN_KV_F16},
    {100, 0, 20, 1, 5, 96, KN_KV_F16},
    {100, 5, 20, 2, 2, 128, KN_KV_F16},
    {70, 5, 20, 1, 16, 256, KN_KV_F16},
    {70, 5, 20, 1, 3, 8, KN_KV_F16},
    {70, 5, 40, 1, 3, 40, KN_KV_F32},
    {1000, 0, 9, 1, 3, 64, KN_KV_F16},
};

static void check_accuracy(const struct kvt_backend *b, void *context)
{
	(void)context;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct fixture f;
		char what[96];

		fixture_create(&f, cases[i], 10 + i);
		for (uint32_t query = 0; query < f.c.count; query++)
			for (uint32_t head = 0; head < f.a.heads; head++)
				reference_row(&f, query, head);
		assert_int_equal(b->ops->attend_dense(b->backend, NULL, &f.a), KV_OK);
		snprintf(what, sizeof what, "%s, case %zu", b->name, i);
		kvt_assert_close(what, f.out, f.want, f.c.count * f.a.out_stride, 5e-5, 3e-6);
		fixture_destroy(&f);
	}
}

static void agrees_with_double_precision(void **state)
{
	(void)state;
	kvt_each_backend(check_accuracy, NULL);
}

struct kept {
	enum kn_cpu_level level;
	float *out;
};

/* Attend the queries from `first` to `end` as a chunk of their own: what is before them is context
 * as far as `context` rows, and rows of its own behind that. */
static void attend_part(const struct kvt_backend *b, const struct fixture *f, uint32_t first,
    uint32_t end, uint32_t context, struct kv_random *random, float *out)
{
	struct kn_attend_dense_arguments a = f->a;
	size_t bytes = kn_kv_row_bytes(f->c.type, f->c.head_dim);
	uint32_t spans = 0, kv_heads = f->c.kv_heads;
	struct kn_span *list = kvt_alloc((size_t)kv_heads * (context * 2 + 64), sizeof *list);
	const uint8_t *own[8];

	/* The heads' lists are cut differently, but have the same number of spans. */
	for (uint32_t h = 0; h < kv_heads; h++) {
		uint32_t n = kvt_cut_spans(random, f->rows[h], bytes, context, 50, list);

		if (n > spans) spans = n;
	}
	spans += 40;
	memset(list, 0, (size_t)kv_heads * spans * sizeof *list);
	for (uint32_t h = 0; h < kv_heads; h++) {
		struct kn_span *to = list + (size_t)h * spans;
		uint32_t at = 0;

		for (uint32_t i = 0; i < spans; i++) {
			uint32_t take = (uint32_t)kv_random_below(random, 50);

			if (take > context - at || i + 1 == spans) take = context - at;
			to[i] = (struct kn_span){.rows = f->rows[h] + at * bytes, .count = take};
			at += take;
		}
		own[h] = f->rows[h] + context * bytes;
	}
	a.q += first * a.q_stride;
	a.out = out + first * a.out_stride;
	a.context = list;
	a.context_spans = spans;
	a.own = own;
	a.own_before = f->c.context + f->c.before + first - context;
	a.count = end - first;
	assert_int_equal(b->ops->attend_dense(b->backend, NULL, &a), KV_OK);
	kvt_free(list);
}

static void check_bits(const struct kvt_backend *b, void *context)
{
	struct kept *kept = context;
	struct fixture f;
	struct kv_random random;

	fixture_create(&f, (struct dense_case){150, 30, 170, 2, 3, 64, KN_KV_F16}, 77);
	size_t size = f.c.count * f.a.out_stride;

	assert_int_equal(b->ops->attend_dense(b->backend, NULL, &f.a), KV_OK);
	if (kept->level != b->level) {
		kept->level = b->level;
		memcpy(kept->out, f.out, size * sizeof *kept->out);
	}
	kvt_assert_same_bits("threads", f.out, kept->out, size * sizeof *f.out);
	kv_random_seed(&random, 5);
	for (uint32_t step = 1; step <= 170; step = step * 5 + 2) {
		memset(f.out, 0, size * sizeof *f.out);
		for (uint32_t first = 0; first < f.c.count; first += step) {
			uint32_t end = first + step < f.c.count ? first + step : f.c.count;
			uint32_t before = f.c.context + f.c.before + first;
			uint32_t rows = (uint32_t)kv_random_below(&random, before + 1);

			attend_part(b, &f, first, end, rows, &random, f.out);
		}
		kvt_assert_same_bits("chunk cuts", f.out, kept->out, size * sizeof *f.out);
	}
	fixture_destroy(&f);
}

static void bits_depend_on_rows_alone(void **state)
{
	struct kept kept = {.level = KN_CPU_AUTO, .out = kvt_alloc(170 * 6 * 64, sizeof(float))};

	(void)state;
	kvt_each_backend(check_bits, &kept);
	kvt_free(kept.out);
}

/* Zeros, and products that leave the range: no NaN, no sign of zero that depends on the chunk. */
static void check_zeros(const struct kvt_backend *b, void *context)
{
	struct fixture f;
	float *alone;

	(void)context;
	fixture_create(&f, (struct dense_case){0, 0, 70, 1, 3, 64, KN_KV_F16}, 3);
	size_t size = f.c.count * f.a.out_stride;

	for (uint32_t i = 0; i < 70; i++)
		for (uint32_t d = 0; d < 128; d++) {
			float value = d < 64 ? (i % 3 == 0 ? 60000.0f : 0.0f) : i % 2 == 0 ? -0.0f : -6e-8f;

			kvt_set_element(f.rows[0] + i * 256, KN_KV_F16, d, value);
		}
	alone = kvt_alloc(size, sizeof *alone);
	assert_int_equal(b->ops->attend_dense(b->backend, NULL, &f.a), KV_OK);
	struct kv_random random;

	kv_random_seed(&random, 6);
	for (uint32_t i = 0; i < 70; i++)
		attend_part(b, &f, i, i + 1, i / 2, &random, alone);
	kvt_assert_same_bits("zeros", f.out, alone, size * sizeof *alone);
	for (size_t i = 0; i < size; i++)
		assert_true(fabsf(f.out[i]) < 1e-7f);
	kvt_free(alone);
	fixture_destroy(&f);
}

static void zeros_do_not_show_the_chunk(void **state)
{
	(void)state;
	kvt_each_backend(check_zeros, NULL);
}

static void check_refusals(const struct kvt_backend *b, void *context)
{
	struct fixture f;

	(void)context;
	fixture_create(&f, (struct dense_case){10, 0, 3, 2, 3, 64, KN_KV_F16}, 1);
	struct kn_attend_dense_arguments bad[] = {f.a, f.a, f.a, f.a, f.a};

	bad[0].head_dim = 12;
	bad[1].heads = 5;
	bad[2].kv_heads = 0;
	bad[3].own = NULL;
	bad[4].context = NULL;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(b->ops->attend_dense(b->backend, NULL, &bad[i]), KV_INVALID);
	bad[0] = f.a;
	bad[0].kv_type = KN_KV_BF16;
	assert_int_equal(b->ops->attend_dense(b->backend, NULL, &bad[0]), KV_UNSUPPORTED);
	f.context[0].count = UINT32_MAX;
	assert_int_equal(b->ops->attend_dense(b->backend, NULL, &f.a), KV_LIMIT);
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
	    cmocka_unit_test(zeros_do_not_show_the_chunk),
	    cmocka_unit_test(refuses_bad_arguments),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
