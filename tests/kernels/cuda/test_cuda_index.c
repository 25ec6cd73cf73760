/* The index kernels: the CPU backend's bits; centroids, value means and order against double
 * precision; the paper's update against the one in order. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/cuda/index_work.h"
#include "kernels/cuda/launch_clusters.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/kv_rows.h"

enum kind { PLANTED, NOISE, FEW_DISTINCT, HALF_ZERO, ALL_EQUAL, ALL_ZERO, BIASED, WITH_NAN };

enum { MOST_JOBS = 8 };

struct shape {
	uint32_t n, clusters;
	enum kind kind;
};

/* Jobs of one call. */
struct list {
	uint32_t head_dim, iterations;
	enum kn_kv_type type;
	int center;
	uint32_t count;
	struct shape shapes[MOST_JOBS];
};

#ifdef __SANITIZE_THREAD__
/* Slow, and a race shows in few rows as in many. */
static const struct list lists[] = {
    {16, 2, KN_KV_F16, 1, 2, {{70, 12, FEW_DISTINCT}, {33, 7, NOISE}}},
    {8, 1, KN_KV_F32, 1, 1, {{300, 260, FEW_DISTINCT}}},
    {16, 1, KN_KV_BF16, 1, 1, {{70, 5, NOISE}}},
};
static const struct list updates[] = {{32, 9, KN_KV_F16, 1, 1, {{90, 9, PLANTED}}}};
#else
static const struct list lists[] = {
    {64, 5, KN_KV_F16, 1, 8,
        {{1, 1, NOISE}, {2, 2, NOISE}, {65, 65, NOISE}, {320, 10, PLANTED}, {100, 12, FEW_DISTINCT},
            {100, 12, ALL_EQUAL}, {100, 12, ALL_ZERO}, {130, 70, PLANTED}}},
    {80, 4, KN_KV_F32, 0, 2, {{190, 19, PLANTED}, {33, 7, BIASED}}},
    {128, 3, KN_KV_BF16, 1, 2, {{129, 13, BIASED}, {40, 3, NOISE}}},
    {96, 2, KN_KV_F16, 0, 1, {{64, 6, NOISE}}},
    {256, 1, KN_KV_F16, 1, 1, {{70, 5, NOISE}}},
    {64, 1, KN_KV_F16, 0, 1, {{66, 9, NOISE}}},
    /* Under 1 % changed ends it long before that. */
    {8, 30, KN_KV_F16, 1, 2, {{777, 24, NOISE}, {300, 3, NOISE}}},
    /* Clusters of zeros are empty and refilled in every round. */
    {8, 30, KN_KV_F16, 0, 1, {{900, 40, HALF_ZERO}}},
    /* Labels of two digits, most clusters empty at first. */
    {8, 2, KN_KV_F32, 1, 2, {{700, 300, FEW_DISTINCT}, {601, 600, NOISE}}},
};
/* The third's clusters do not fit shared memory with all channels, whatever the device. */
static const struct list updates[] = {
    {64, 9, KN_KV_F16, 1, 2, {{200, 9, PLANTED}, {70, 11, NOISE}}},
    {80, 9, KN_KV_BF16, 0, 1, {{100, 5, PLANTED}}},
    {256, 9, KN_KV_F32, 1, 1, {{330, 300, NOISE}}},
};
#endif

struct result {
	uint32_t *order, *sizes;
	uint16_t *centroids, *means;
};

static void result_create(struct result *r, const struct list *l, const struct shape *s)
{
	r->order = kvt_alloc(s->n, 4);
	r->sizes = kvt_alloc(s->clusters, 4);
	r->centroids = kvt_alloc((size_t)s->clusters * l->head_dim, 2);
	r->means = kvt_alloc((size_t)s->clusters * l->head_dim, 2);
}

static void result_destroy(struct result *r)
{
	kvt_free(r->order);
	kvt_free(r->sizes);
	kvt_free(r->centroids);
	kvt_free(r->means);
}

static float planted(uint32_t cluster, uint32_t d)
{
	struct kv_random random;

	kv_random_seed(&random, (uint64_t)cluster * 1000 + d);
	return 2.0f * kv_random_normal(&random);
}

static float value_of(
    struct kv_random *random, const struct list *l, const struct shape *s, uint32_t i, uint32_t d)
{
	float x = kv_random_normal(random);

	if (s->kind == WITH_NAN && i % 10 == 0 && d == 3) return NAN;
	if (s->kind == FEW_DISTINCT) return planted(i % 5, d);
	if (s->kind == ALL_EQUAL) return planted(0, d);
	if (s->kind == ALL_ZERO || (s->kind == HALF_ZERO && i % 2 == 0)) return 0.0f;
	if (d < l->head_dim && s->kind == PLANTED) x += planted(i * 7 % 20, d);
	if (d < l->head_dim && s->kind == BIASED) x += d % 16 == 3 ? 60.0f : 0.0f;
	return x;
}

/* As float rows, of values that the type has; and the same in the type. */
static void fill_rows(
    const struct list *l, const struct shape *s, float *wide, uint8_t *rows, size_t stride)
{
	struct kv_random random;

	kv_random_seed(&random, s->n * 31 + s->clusters);
	for (uint32_t i = 0; i < s->n; i++)
		for (uint32_t d = 0; d < 2 * l->head_dim; d++) {
			float x = value_of(&random, l, s, i, d);
			uint8_t *row = rows + i * stride;

			if (l->type == KN_KV_BF16) {
				uint32_t bits = kn_float_bits(x) & 0xffff0000u;
				uint16_t upper = (uint16_t)(bits >> 16);

				memcpy(row + (size_t)d * 2, &upper, 2);
				x = kn_bits_float(bits);
			} else {
				kvt_set_element(row, l->type, d, x);
				x = (float)kvt_row_element(row, l->type, d);
			}
			wide[(size_t)i * 2 * l->head_dim + d] = x;
		}
}

/* One job on both sides. */
struct job {
	float *wide;
	uint8_t *rows, *device_rows;
	size_t stride;
	struct result want, got;
	struct kn_index_job device;
};

static void job_create(struct job *j, const struct list *l, uint32_t number)
{
	const struct shape *s = &l->shapes[number];
	size_t matrix = (size_t)s->clusters * l->head_dim * 2;

	j->stride = kn_kv_row_bytes(l->type, l->head_dim) + (number % 3) * 16;
	j->wide = kvt_alloc((size_t)s->n * 2 * l->head_dim, sizeof(float));
	j->rows = kvt_alloc(s->n, j->stride);
	fill_rows(l, s, j->wide, j->rows, j->stride);
	result_create(&j->want, l, s);
	result_create(&j->got, l, s);
	j->device_rows = dev_upload(j->rows, s->n * j->stride);
	j->device = (struct kn_index_job){.rows = j->device_rows,
	    .row_stride = j->stride,
	    .n = s->n,
	    .clusters = s->clusters,
	    .order = dev_alloc((size_t)s->n * 4),
	    .sizes = dev_alloc((size_t)s->clusters * 4),
	    .centroids = dev_alloc(matrix),
	    .value_means = dev_alloc(matrix)};
}

static void job_destroy(struct job *j)
{
	dev_free(j->device_rows);
	dev_free(j->device.order);
	dev_free(j->device.sizes);
	dev_free(j->device.centroids);
	dev_free(j->device.value_means);
	result_destroy(&j->want);
	result_destroy(&j->got);
	kvt_free(j->wide);
	kvt_free(j->rows);
}

static void job_fetch(struct job *j, const struct list *l, const struct shape *s)
{
	size_t matrix = (size_t)s->clusters * l->head_dim * 2;

	dev_download(j->got.order, j->device.order, (size_t)s->n * 4);
	dev_download(j->got.sizes, j->device.sizes, (size_t)s->clusters * 4);
	dev_download(j->got.centroids, j->device.centroids, matrix);
	dev_download(j->got.means, j->device.value_means, matrix);
}

/* The float rows on the CPU: its fp16 rows give the same, and it has no bf16. */
static void run_cpu(const struct kvt_backend *b, const struct list *l, struct job *jobs)
{
	for (uint32_t i = 0; i < l->count; i++) {
		struct kn_index_job job = {.rows = (const uint8_t *)jobs[i].wide,
		    .row_stride = (size_t)2 * l->head_dim * sizeof(float),
		    .n = l->shapes[i].n,
		    .clusters = l->shapes[i].clusters,
		    .order = jobs[i].want.order,
		    .sizes = jobs[i].want.sizes,
		    .centroids = jobs[i].want.centroids,
		    .value_means = jobs[i].want.means};
		struct kn_index_arguments a = {.jobs = &job,
		    .job_count = 1,
		    .head_dim = l->head_dim,
		    .iterations = l->iterations,
		    .kv_type = KN_KV_F32,
		    .center = l->center};

		assert_int_equal(b->ops->index(b->backend, NULL, &a), KV_OK);
	}
}

static struct kn_cuda_index_bounds bounds_of(const struct list *l)
{
	struct kn_cuda_index_bounds bounds = {.jobs = l->count, .head_dim = l->head_dim};

	for (uint32_t i = 0; i < l->count; i++) {
		if (l->shapes[i].n > bounds.rows) bounds.rows = l->shapes[i].n;
		if (l->shapes[i].clusters > bounds.clusters) bounds.clusters = l->shapes[i].clusters;
	}
	return bounds;
}

static struct kn_index_job *upload_jobs(const struct list *l, const struct job *jobs)
{
	struct kn_index_job host[MOST_JOBS];

	for (uint32_t i = 0; i < l->count; i++)
		host[i] = jobs[i].device;
	return dev_upload(host, l->count * sizeof *host);
}

static void run_device(const struct list *l, struct job *jobs)
{
	struct kn_cuda_index_bounds bounds = bounds_of(l);
	struct kn_index_job *list = upload_jobs(l, jobs);
	struct kn_index_arguments a = {.jobs = list,
	    .job_count = l->count,
	    .head_dim = l->head_dim,
	    .iterations = l->iterations,
	    .kv_type = l->type,
	    .center = l->center};
	void *scratch = dev_alloc(kn_cuda_index_scratch_bytes(&bounds));

	DEV_OK(kn_cuda_index(&a, &bounds, KN_CUDA_UPDATE_ORDERED, scratch, NULL));
	dev_wait();
	for (uint32_t i = 0; i < l->count; i++)
		job_fetch(&jobs[i], l, &l->shapes[i]);
	dev_free(scratch);
	dev_free(list);
}

/* The means of what the result calls members. */
static void check_double(const struct list *l, const struct shape *s, const struct job *j)
{
	uint32_t at = 0, width = 2 * l->head_dim;
	double *mean = kvt_alloc(width, sizeof *mean);
	float *got = kvt_alloc(width, sizeof *got);

	for (uint32_t c = 0; c < s->clusters; c++) {
		memset(mean, 0, width * sizeof *mean);
		assert_true(j->got.sizes[c] >= 1 && j->got.sizes[c] <= s->n - at);
		for (uint32_t i = 0; i < j->got.sizes[c]; i++, at++)
			for (uint32_t d = 0; d < width; d++)
				mean[d] += (double)j->wide[(size_t)j->got.order[at] * width + d] / j->got.sizes[c];
		for (uint32_t d = 0; d < width; d++)
			got[d] = kn_half_to_float(
			    d < l->head_dim ? j->got.centroids[(size_t)c * l->head_dim + d]
			                    : j->got.means[(size_t)c * l->head_dim + d - l->head_dim]);
		kvt_assert_close("means", got, mean, width, 3e-2, 1e-3);
	}
	assert_int_equal(at, s->n);
	kvt_free(mean);
	kvt_free(got);
}

/* One key less the mean, and its cosine to another one less the mean. */
static double cosine_of(
    const struct list *l, const struct job *j, const double *mean, size_t a, size_t b)
{
	double dot = 0, square_a = 0, square_b = 0;

	for (uint32_t d = 0; d < l->head_dim; d++) {
		double x = (double)j->wide[a * 2 * l->head_dim + d] - mean[d];
		double y = (double)j->wide[b * 2 * l->head_dim + d] - mean[d];

		dot += x * y;
		square_a += x * x;
		square_b += y * y;
	}
	return dot / sqrt(square_a * square_b);
}

/* After one round: each key is with the first centroid that is nearest to it, which is a key; and
 * clusters are in falling cosine. */
static void check_nearest(const struct list *l, const struct shape *s, const struct job *j)
{
	double *mean = kvt_alloc(l->head_dim, sizeof *mean), before = 2;
	uint32_t at = 0;

	for (size_t i = 0; i < (size_t)s->n * l->head_dim && l->center; i++)
		mean[i % l->head_dim] +=
		    (double)j->wide[i / l->head_dim * 2 * l->head_dim + i % l->head_dim] / s->n;
	for (uint32_t c = 0; c < s->clusters; c++, before = 2)
		for (uint32_t i = 0; i < j->got.sizes[c]; i++, at++) {
			uint32_t key = j->got.order[at];
			double own = cosine_of(l, j, mean, key, (size_t)c * s->n / s->clusters);

			for (uint32_t k = 0; k < s->clusters; k++)
				assert_true(
				    cosine_of(l, j, mean, key, (size_t)k * s->n / s->clusters) < own + 1e-5);
			assert_true(own < before + 1e-5);
			before = own;
		}
	kvt_free(mean);
}

static void check_same(const struct list *l, const struct shape *s, const struct job *j)
{
	size_t matrix = (size_t)s->clusters * l->head_dim * 2;
	char what[80];

	snprintf(what, sizeof what, "head_dim %u, n %u, clusters %u", l->head_dim, s->n, s->clusters);
	kvt_assert_same_bits(what, j->got.sizes, j->want.sizes, (size_t)s->clusters * 4);
	kvt_assert_same_bits(what, j->got.order, j->want.order, (size_t)s->n * 4);
	if (s->kind == WITH_NAN) return;
	kvt_assert_same_bits(what, j->got.centroids, j->want.centroids, matrix);
	kvt_assert_same_bits(what, j->got.means, j->want.means, matrix);
}

static void check_list(const struct list *l)
{
	struct kvt_backend b;
	struct job jobs[MOST_JOBS];

	assert_true(kvt_backend_open(&b, KN_CPU_PLAIN, 1));
	for (uint32_t i = 0; i < l->count; i++)
		job_create(&jobs[i], l, i);
	run_cpu(&b, l, jobs);
	run_device(l, jobs);
	for (uint32_t i = 0; i < l->count; i++) {
		check_same(l, &l->shapes[i], &jobs[i]);
		if (l->shapes[i].kind != WITH_NAN) check_double(l, &l->shapes[i], &jobs[i]);
		if (l->iterations == 1 && l->shapes[i].kind == NOISE)
			check_nearest(l, &l->shapes[i], &jobs[i]);
		job_destroy(&jobs[i]);
	}
	kvt_backend_close(&b);
}

static void has_the_bits_of_the_cpu(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
		check_list(&lists[i]);
}

static void survives_nan(void **state)
{
	const struct list list = {16, 2, KN_KV_F16, 0, 1, {{90, 7, WITH_NAN}}};

	(void)state;
	check_list(&list);
}

/* A segment as large as those of a prompt, more of them on a GPU. */
static void indexes_segments(void **state)
{
	const struct list list = {128, 5, KN_KV_F16, 1, 2,
	    {{(uint32_t)(4096 * dev_scale() / 16), (uint32_t)(128 * dev_scale() / 16), PLANTED},
	        {4000, 125, NOISE}}};

	(void)state;
	if (dev_scale() < 16) skip();
	check_list(&list);
}

/* What the ordered update and the paper's make of the same labels. */
struct centroids {
	float *values, *norms;
};

static struct centroids fetch_centroids(
    const struct kn_index_arrays *s, uint32_t clusters, uint32_t head_dim)
{
	return (struct centroids){
	    .values = dev_fetch(s->centroids, (size_t)clusters * head_dim * sizeof(float)),
	    .norms = dev_fetch(s->norms, clusters * sizeof(float))};
}

static void compare_updates(const struct list *l, const struct kn_index_work *w, uint32_t job)
{
	uint32_t clusters = l->shapes[job].clusters;
	size_t matrix = (size_t)clusters * l->head_dim;
	struct kn_index_arrays s = kn_index_arrays_of(w, job);
	double *want = kvt_alloc(matrix, sizeof *want), *norms = kvt_alloc(clusters, sizeof *norms);

	DEV_OK(kn_cuda_update_centroids(w, NULL));
	struct centroids ordered = fetch_centroids(&s, clusters, l->head_dim);

	for (size_t i = 0; i < matrix; i++) {
		want[i] = (double)ordered.values[i];
		norms[i / l->head_dim] += want[i] * want[i];
	}
	for (uint32_t c = 0; c < clusters; c++)
		norms[c] = norms[c] == 0.0 ? 1.0 : sqrt(norms[c]);
	for (uint32_t partitions = 16; partitions <= 32; partitions += 16) {
		DEV_OK(cudaMemset(s.centroids, 0xff, matrix * sizeof(float)));
		DEV_OK(cudaMemset(s.norms, 0xff, clusters * sizeof(float)));
		DEV_OK(kn_cuda_update_centroids_paper(w, partitions, NULL));
		struct centroids paper = fetch_centroids(&s, clusters, l->head_dim);

		kvt_assert_close("the paper's centroids", paper.values, want, matrix, 1e-5, 1e-6);
		kvt_assert_close("their norms", paper.norms, norms, clusters, 1e-5, 1e-6);
		kvt_free(paper.values);
		kvt_free(paper.norms);
	}
	kvt_free(ordered.values);
	kvt_free(ordered.norms);
	kvt_free(want);
	kvt_free(norms);
}

static void the_papers_update_sums_the_same(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof updates / sizeof *updates; i++) {
		const struct list *l = &updates[i];
		struct kn_cuda_index_bounds bounds = bounds_of(l);
		struct job jobs[MOST_JOBS];

		for (uint32_t j = 0; j < l->count; j++)
			job_create(&jobs[j], l, j);
		struct kn_index_job *list = upload_jobs(l, jobs);
		void *scratch = dev_alloc(kn_cuda_index_scratch_bytes(&bounds));
		struct kn_index_work w = {list, scratch, l->count, bounds.rows, bounds.clusters,
		    l->head_dim, l->iterations, l->type, l->center};

		DEV_OK(kn_cuda_start_index(&w, NULL));
		DEV_OK(kn_cuda_assign_keys(&w, 0, NULL));
		DEV_OK(kn_cuda_order_members(&w, 0, NULL));
		for (uint32_t j = 0; j < l->count; j++)
			compare_updates(l, &w, j);
		dev_free(scratch);
		dev_free(list);
		for (uint32_t j = 0; j < l->count; j++)
			job_destroy(&jobs[j]);
	}
}

/* Whole runs of the paper's kernel end with every row in one cluster, and means of members. */
static void the_papers_index_is_one(void **state)
{
	const struct list list = {64, 2, KN_KV_F16, 0, 1, {{120, 3, PLANTED}}};
	struct kn_cuda_index_bounds bounds = bounds_of(&list);
	struct job job;

	(void)state;
	job_create(&job, &list, 0);
	for (int how = KN_CUDA_UPDATE_PAPER_16; how <= KN_CUDA_UPDATE_PAPER_32; how += 16) {
		struct kn_index_job *jobs = upload_jobs(&list, &job);
		void *scratch = dev_alloc(kn_cuda_index_scratch_bytes(&bounds));
		struct kn_index_arguments a = {
		    .jobs = jobs, .job_count = 1, .head_dim = 64, .iterations = 2, .kv_type = KN_KV_F16};
		uint8_t seen[120] = {0};

		DEV_OK(kn_cuda_index(&a, &bounds, (enum kn_cuda_update)how, scratch, NULL));
		job_fetch(&job, &list, &list.shapes[0]);
		for (uint32_t i = 0; i < 120; i++)
			assert_true(job.got.order[i] < 120 && !seen[job.got.order[i]]++);
		check_double(&list, &list.shapes[0], &job);
		dev_free(scratch);
		dev_free(jobs);
	}
	job_destroy(&job);
}

/* 32 partitions where heads are whole multiples and the clusters fit, else 16, else none. */
static void the_kernel_is_chosen_by_size(void **state)
{
	static const struct {
		uint32_t clusters, head_dim;
		enum kn_cuda_update update;
	} cases[] = {{128, 128, KN_CUDA_UPDATE_PAPER_32}, {700, 64, KN_CUDA_UPDATE_PAPER_32},
	    {128, 80, KN_CUDA_UPDATE_PAPER_16}, {1400, 64, KN_CUDA_UPDATE_PAPER_16},
	    {4000, 64, KN_CUDA_UPDATE_ORDERED}};
	int limit, device;

	(void)state;
	DEV_OK(cudaGetDevice(&device));
	DEV_OK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct kn_cuda_index_bounds bounds = {
		    .jobs = 1, .clusters = cases[i].clusters, .head_dim = cases[i].head_dim};
		enum kn_cuda_update update = KN_CUDA_UPDATE_ORDERED;

		/* A device with more shared memory has room for 32 partitions of 1,400. */
		if (cases[i].clusters == 1400 && limit >= 1400 * 33 * 4) continue;
		DEV_OK(kn_cuda_choose_update(&bounds, &update));
		assert_int_equal(update, cases[i].update);
	}
}

static void refuses_what_does_not_fit(void **state)
{
	const struct kn_index_work w = {.job_count = 1, .rows = 9000, .clusters = 8192, .head_dim = 64};
	const struct kn_index_arguments none = {.head_dim = 64, .iterations = 1};
	const struct kn_cuda_index_bounds bounds = {0};

	(void)state;
	assert_int_equal(kn_cuda_update_centroids_paper(&w, 16, NULL), cudaErrorInvalidConfiguration);
	DEV_OK(kn_cuda_index(&none, &bounds, KN_CUDA_UPDATE_ORDERED, NULL, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(has_the_bits_of_the_cpu),
	    cmocka_unit_test(survives_nan),
	    cmocka_unit_test(indexes_segments),
	    cmocka_unit_test(the_papers_update_sums_the_same),
	    cmocka_unit_test(the_papers_index_is_one),
	    cmocka_unit_test(the_kernel_is_chosen_by_size),
	    cmocka_unit_test(refuses_what_does_not_fit),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
