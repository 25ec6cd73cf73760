/* Indexing against a straightforward k-means written from the definition, to the bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/kernels/kv_rows.h"

struct index_case {
	uint32_t n, clusters, head_dim, iterations;
	enum kn_kv_type type;
	int center;
	int kind; /* of input: see fill_rows */
};

enum { PLANTED, PLAIN_NOISE, FEW_DISTINCT, ALL_EQUAL, ALL_ZERO, BIASED };

struct result {
	uint32_t *order, *sizes;
	uint16_t *centroids, *means;
};

static void result_create(struct result *r, const struct index_case *c)
{
	r->order = kvt_alloc(c->n, 4);
	r->sizes = kvt_alloc(c->clusters, 4);
	r->centroids = kvt_alloc((size_t)c->clusters * c->head_dim, 2);
	r->means = kvt_alloc((size_t)c->clusters * c->head_dim, 2);
}

static void result_destroy(struct result *r)
{
	kvt_free(r->order);
	kvt_free(r->sizes);
	kvt_free(r->centroids);
	kvt_free(r->means);
}

static void assert_same(
    const char *what, const struct index_case *c, const struct result *a, const struct result *b)
{
	kvt_assert_same_bits(what, a->sizes, b->sizes, (size_t)c->clusters * 4);
	kvt_assert_same_bits(what, a->order, b->order, (size_t)c->n * 4);
	kvt_assert_same_bits(what, a->centroids, b->centroids, (size_t)c->clusters * c->head_dim * 2);
	kvt_assert_same_bits(what, a->means, b->means, (size_t)c->clusters * c->head_dim * 2);
}

static float planted(uint32_t cluster, uint32_t d)
{
	struct kv_random random;

	kv_random_seed(&random, (uint64_t)cluster * 1000 + d);
	return 2.0f * kv_random_normal(&random);
}

static uint8_t *fill_rows(const struct index_case *c, size_t stride)
{
	struct kv_random random;
	uint8_t *rows = kvt_alloc(c->n, stride);

	kv_random_seed(&random, c->n * 31 + c->clusters);
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t d = 0; d < 2 * c->head_dim; d++) {
			float x = kv_random_normal(&random);

			if (d < c->head_dim && c->kind == PLANTED) x += planted(i * 7 % 20, d);
			if (d < c->head_dim && c->kind == BIASED) x += d % 16 == 3 ? 60.0f : 0.0f;
			if (c->kind == FEW_DISTINCT) x = planted(i % 5, d);
			if (c->kind == ALL_EQUAL) x = planted(0, d);
			if (c->kind == ALL_ZERO) x = 0.0f;
			kvt_set_element(rows + i * stride, c->type, d, x);
		}
	return rows;
}

/* The reference keeps all of it in plain arrays of floats. */
struct reference {
	const struct index_case *c;
	float *keys, *values, *centred, *centroids, *cosines;
	uint32_t *labels, *previous, *counts;
};

static float dot(const float *a, const float *b, uint32_t count)
{
	float sum = 0.0f;

	for (uint32_t d = 0; d < count; d++)
		sum = fmaf(a[d], b[d], sum);
	return sum;
}

static float norm_of(const float *a, uint32_t count)
{
	float norm = sqrtf(dot(a, a, count));

	return norm == 0.0f ? 1.0f : norm;
}

static void reference_assign(struct reference *r)
{
	uint32_t dim = r->c->head_dim;
	float *norms = kvt_alloc(r->c->clusters, sizeof *norms);

	for (uint32_t k = 0; k < r->c->clusters; k++)
		norms[k] = norm_of(r->centroids + (size_t)k * dim, dim);
	for (uint32_t i = 0; i < r->c->n; i++) {
		const float *x = r->centred + (size_t)i * dim;
		float best = -INFINITY;

		for (uint32_t k = 0; k < r->c->clusters; k++) {
			const float *centroid = r->centroids + (size_t)k * dim;
			float value = dot(x, centroid, dim) / norms[k];

			if (value > best) {
				best = value;
				r->labels[i] = k;
			}
		}
		r->cosines[i] = best / norm_of(x, dim);
	}
	kvt_free(norms);
}

static void reference_refill(struct reference *r)
{
	memset(r->counts, 0, (size_t)r->c->clusters * 4);
	for (uint32_t i = 0; i < r->c->n; i++)
		r->counts[r->labels[i]]++;
	for (uint32_t k = 0; k < r->c->clusters; k++) {
		uint32_t worst = r->c->n;

		if (r->counts[k] != 0) continue;
		for (uint32_t i = 0; i < r->c->n; i++)
			if (r->counts[r->labels[i]] > 1 &&
			    (worst == r->c->n || r->cosines[i] < r->cosines[worst]))
				worst = i;
		r->counts[r->labels[worst]]--;
		r->labels[worst] = k;
		r->counts[k] = 1;
	}
}

static void reference_means(struct reference *r, const float *rows, float *means)
{
	uint32_t dim = r->c->head_dim;

	memset(means, 0, (size_t)r->c->clusters * dim * sizeof *means);
	for (uint32_t i = 0; i < r->c->n; i++)
		for (uint32_t d = 0; d < dim; d++)
			means[(size_t)r->labels[i] * dim + d] += rows[(size_t)i * dim + d];
	for (uint32_t k = 0; k < r->c->clusters; k++)
		for (uint32_t d = 0; d < dim; d++)
			means[(size_t)k * dim + d] /= (float)r->counts[k];
}

static void reference_order(struct reference *r, uint32_t *order)
{
	uint32_t at = 0;

	for (uint32_t k = 0; k < r->c->clusters; k++) {
		uint32_t first = at;

		for (uint32_t i = 0; i < r->c->n; i++) {
			if (r->labels[i] != k) continue;
			uint32_t j = at++;

			for (; j > first && r->cosines[order[j - 1]] < r->cosines[i]; j--)
				order[j] = order[j - 1];
			order[j] = i;
		}
	}
}

static void reference_run(struct reference *r, struct result *out)
{
	const struct index_case *c = r->c;
	uint32_t dim = c->head_dim;
	size_t matrix = (size_t)c->clusters * dim;
	float *mean = kvt_alloc(dim, sizeof *mean), *means = kvt_alloc(matrix, sizeof *means);

	for (uint32_t d = 0; d < dim && c->center; d++) {
		for (uint32_t i = 0; i < c->n; i++)
			mean[d] += r->keys[(size_t)i * dim + d];
		mean[d] /= (float)c->n;
	}
	for (size_t i = 0; i < (size_t)c->n * dim; i++)
		r->centred[i] = r->keys[i] - mean[i % dim];
	for (uint32_t k = 0; k < c->clusters; k++)
		memcpy(r->centroids + (size_t)k * dim,
		    r->centred + (size_t)((uint64_t)k * c->n / c->clusters) * dim, dim * sizeof(float));
	for (uint32_t round = 0; round < c->iterations; round++) {
		uint32_t changed = 0;

		memcpy(r->previous, r->labels, (size_t)c->n * 4);
		memset(r->labels, 0, (size_t)c->n * 4);
		reference_assign(r);
		reference_refill(r);
		reference_means(r, r->keys, means);
		for (size_t i = 0; i < matrix; i++)
			r->centroids[i] = means[i] - mean[i % dim];
		for (uint32_t i = 0; i < c->n; i++)
			changed += r->labels[i] != r->previous[i];
		if (round != 0 && changed * 100 < c->n) break;
	}
	memcpy(out->sizes, r->counts, (size_t)c->clusters * 4);
	for (size_t i = 0; i < matrix; i++)
		out->centroids[i] = kn_half_from_float(means[i]);
	reference_means(r, r->values, means);
	for (size_t i = 0; i < matrix; i++)
		out->means[i] = kn_half_from_float(means[i]);
	reference_order(r, out->order);
	kvt_free(mean);
	kvt_free(means);
}

static void reference(
    const struct index_case *c, const uint8_t *rows, size_t stride, struct result *out)
{
	size_t elements = (size_t)c->n * c->head_dim;
	struct reference r = {.c = c,
	    .keys = kvt_alloc(elements, 4),
	    .values = kvt_alloc(elements, 4),
	    .centred = kvt_alloc(elements, 4),
	    .centroids = kvt_alloc((size_t)c->clusters * c->head_dim, 4),
	    .cosines = kvt_alloc(c->n, 4),
	    .labels = kvt_alloc(c->n, 4),
	    .previous = kvt_alloc(c->n, 4),
	    .counts = kvt_alloc(c->clusters, 4)};

	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t d = 0; d < c->head_dim; d++) {
			const uint8_t *row = rows + i * stride;
			size_t at = (size_t)i * c->head_dim + d;

			r.keys[at] = (float)kvt_row_element(row, c->type, d);
			r.values[at] = (float)kvt_row_element(row, c->type, c->head_dim + d);
		}
	reference_run(&r, out);
	void *blocks[] = {
	    r.keys, r.values, r.centred, r.centroids, r.cosines, r.labels, r.previous, r.counts};

	for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
		kvt_free(blocks[i]);
}

static struct kn_index_job job_of(
    const struct index_case *c, const uint8_t *rows, size_t stride, struct result *out)
{
	return (struct kn_index_job){.rows = rows,
	    .row_stride = stride,
	    .n = c->n,
	    .clusters = c->clusters,
	    .order = out->order,
	    .sizes = out->sizes,
	    .centroids = out->centroids,
	    .value_means = out->means};
}

static const struct index_case cases[] = {
    {1, 1, 64, 5, KN_KV_F16, 1, PLAIN_NOISE},
    {2, 2, 64, 5, KN_KV_F16, 1, PLAIN_NOISE},
    {65, 65, 64, 3, KN_KV_F16, 1, PLAIN_NOISE},
    {320, 10, 64, 5, KN_KV_F16, 1, PLANTED},
    {777, 24, 64, 5, KN_KV_F16, 0, PLANTED},
    {777, 23, 64, 1, KN_KV_F16, 1, PLAIN_NOISE},
    {300, 19, 80, 5, KN_KV_F16, 1, PLANTED},
    {300, 6, 96, 5, KN_KV_F16, 1, BIASED},
    {200, 13, 128, 4, KN_KV_F16, 0, BIASED},
    {150, 7, 256, 5, KN_KV_F16, 1, PLANTED},
    {150, 7, 8, 20, KN_KV_F16, 1, PLAIN_NOISE},
    {333, 11, 40, 5, KN_KV_F32, 1, PLANTED},
    {100, 12, 64, 5, KN_KV_F16, 1, FEW_DISTINCT},
    {100, 12, 64, 5, KN_KV_F16, 0, ALL_EQUAL},
    {100, 12, 64, 5, KN_KV_F16, 1, ALL_ZERO},
};

enum { CASES = sizeof cases / sizeof *cases };

/* The inputs and what the reference makes of them: the same for every backend. */
struct expected {
	size_t strides[CASES];
	uint8_t *rows[CASES];
	struct result results[CASES];
};

static void check_reference(const struct kvt_backend *b, void *context)
{
	const struct expected *expected = context;

	for (size_t i = 0; i < CASES; i++) {
		const struct index_case *c = &cases[i];
		struct result got;
		char what[64];

		result_create(&got, c);
		struct kn_index_job job = job_of(c, expected->rows[i], expected->strides[i], &got);
		struct kn_index_arguments a = {.jobs = &job,
		    .job_count = 1,
		    .head_dim = c->head_dim,
		    .iterations = c->iterations,
		    .kv_type = c->type,
		    .center = c->center};

		assert_int_equal(b->ops->index(b->backend, NULL, &a), KV_OK);
		snprintf(what, sizeof what, "%s, case %zu", b->name, i);
		assert_same(what, c, &got, &expected->results[i]);
		result_destroy(&got);
	}
}

static void equals_the_reference(void **state)
{
	struct expected expected;

	(void)state;
	for (size_t i = 0; i < CASES; i++) {
		const struct index_case *c = &cases[i];

		expected.strides[i] = kn_kv_row_bytes(c->type, c->head_dim) + (i % 3) * 16;
		expected.rows[i] = fill_rows(c, expected.strides[i]);
		result_create(&expected.results[i], c);
		reference(c, expected.rows[i], expected.strides[i], &expected.results[i]);
	}
	kvt_each_backend(check_reference, &expected);
	for (size_t i = 0; i < CASES; i++) {
		result_destroy(&expected.results[i]);
		kvt_free(expected.rows[i]);
	}
}

/* A real size, several jobs at once: the first backend that has a job is the measure. The plain
 * one is slow, most of all under a sanitizer, and has only the first. */
enum { JOBS = 5 };
struct kept {
	uint32_t filled;
	struct result results[JOBS];
};

static const struct index_case large = {2100, 64, 64, 5, KN_KV_F16, 1, PLANTED};

static void check_levels(const struct kvt_backend *b, void *context)
{
	struct kept *kept = context;
	struct result got[JOBS];
	struct kn_index_job jobs[JOBS];
	uint8_t *rows[JOBS];
	uint32_t count = b->level == KN_CPU_PLAIN ? 1 : JOBS;

	if (b->level == KN_CPU_PLAIN && b->threads != 1) return;
	for (uint32_t i = 0; i < count; i++) {
		struct index_case c = large;

		c.kind = i % 2 == 0 ? PLANTED : PLAIN_NOISE;
		rows[i] = fill_rows(&c, 256);
		result_create(&got[i], &large);
		jobs[i] = job_of(&large, rows[i], 256, &got[i]);
	}
	struct kn_index_arguments a = {.jobs = jobs,
	    .job_count = count,
	    .head_dim = 64,
	    .iterations = 5,
	    .kv_type = KN_KV_F16,
	    .center = 1};

	assert_int_equal(b->ops->index(b->backend, NULL, &a), KV_OK);
	for (uint32_t i = 0; i < count; i++) {
		kvt_free(rows[i]);
		if (i == kept->filled) {
			kept->results[kept->filled++] = got[i];
			continue;
		}
		assert_same(b->name, &large, &got[i], &kept->results[i]);
		result_destroy(&got[i]);
	}
}

static void levels_and_threads_agree(void **state)
{
	struct kept kept = {0};

	(void)state;
	kvt_each_backend(check_levels, &kept);
	for (uint32_t i = 0; i < kept.filled; i++) {
		struct result *r = &kept.results[i];
		uint32_t sum = 0;

		/* Each row once, and every cluster has some. */
		uint8_t *seen = kvt_alloc(large.n, 1);

		for (uint32_t c = 0; c < large.clusters; c++) {
			assert_true(r->sizes[c] != 0);
			sum += r->sizes[c];
		}
		assert_int_equal(sum, large.n);
		for (uint32_t j = 0; j < large.n; j++)
			assert_int_equal(seen[r->order[j]]++, 0);
		kvt_free(seen);
		result_destroy(r);
	}
}

/* Keys that cannot be compared must not break anything. */
static void check_nan(const struct kvt_backend *b, void *context)
{
	struct index_case c = {200, 9, 64, 5, KN_KV_F16, 0, PLANTED};
	uint8_t *rows = fill_rows(&c, 256), *seen = kvt_alloc(c.n, 1);
	struct result got;

	(void)context;
	for (uint32_t i = 0; i < c.n; i += 10)
		memset(rows + i * 256, 0x7e, 64);
	result_create(&got, &c);
	struct kn_index_job job = job_of(&c, rows, 256, &got);
	struct kn_index_arguments a = {
	    .jobs = &job, .job_count = 1, .head_dim = 64, .iterations = 5, .kv_type = KN_KV_F16};

	assert_int_equal(b->ops->index(b->backend, NULL, &a), KV_OK);
	for (uint32_t i = 0; i < c.n; i++) {
		assert_true(got.order[i] < c.n);
		assert_int_equal(seen[got.order[i]]++, 0);
	}
	result_destroy(&got);
	kvt_free(seen);
	kvt_free(rows);
}

static void survives_nan(void **state)
{
	(void)state;
	kvt_each_backend(check_nan, NULL);
}

static void check_refusals(const struct kvt_backend *b, void *context)
{
	struct index_case c = {20, 4, 64, 5, KN_KV_F16, 1, PLAIN_NOISE};
	uint8_t *rows = fill_rows(&c, 256);
	struct result got;

	(void)context;
	result_create(&got, &c);
	struct kn_index_job good = job_of(&c, rows, 256, &got), jobs[5];

	for (size_t i = 0; i < 5; i++)
		jobs[i] = good;
	jobs[0].clusters = 0;
	jobs[1].clusters = 21;
	jobs[2].row_stride = 255;
	jobs[3].order = NULL;
	jobs[4].n = 1u << 24;
	for (size_t i = 0; i < 5; i++) {
		struct kn_index_arguments a = {.jobs = &jobs[i],
		    .job_count = 1,
		    .head_dim = 64,
		    .iterations = 5,
		    .kv_type = KN_KV_F16};

		assert_int_equal(b->ops->index(b->backend, NULL, &a), i == 4 ? KV_LIMIT : KV_INVALID);
	}
	struct kn_index_arguments none = {.jobs = &good, .job_count = 1, .head_dim = 64};

	assert_int_equal(b->ops->index(b->backend, NULL, &none), KV_INVALID);
	none.iterations = 5;
	none.update = (enum kn_index_update)2;
	assert_int_equal(b->ops->index(b->backend, NULL, &none), KV_INVALID);
	none.update = KN_INDEX_PAPER;
	none.kv_type = KN_KV_BF16;
	assert_int_equal(b->ops->index(b->backend, NULL, &none), KV_UNSUPPORTED);
	result_destroy(&got);
	kvt_free(rows);
}

static void refuses_bad_arguments(void **state)
{
	(void)state;
	kvt_each_backend(check_refusals, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(equals_the_reference),
	    cmocka_unit_test(levels_and_threads_agree),
	    cmocka_unit_test(survives_nan),
	    cmocka_unit_test(refuses_bad_arguments),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
