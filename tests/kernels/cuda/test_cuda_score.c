/* Scoring on the device against double precision and the CPU's operation. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/cuda/launch_clusters.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/kv_rows.h"

enum { MOST_JOBS = 4, PAD = 5 };

/* Jobs of one call, by their numbers of clusters. */
struct score_case {
	uint32_t group, head_dim;
	int size_term;
	uint32_t count, clusters[MOST_JOBS];
};

#ifdef __SANITIZE_THREAD__
static const struct score_case cases[] = {
    {3, 64, 1, 2, {130, 7}},
    {16, 16, 0, 1, {9}},
};
#else
static const struct score_case cases[] = {
    {1, 64, 1, 4, {1, 0, 129, 257}}, {3, 64, 1, 2, {944, 15}}, {7, 64, 0, 3, {257, 300, 64}},
    {2, 80, 1, 1, {100}}, {5, 96, 0, 1, {100}}, {4, 128, 1, 2, {200, 128}}, {16, 256, 1, 1, {50}},
    {9, 8, 1, 2, {33, 32}}, {8, 40, 1, 1, {70}},
    {1, 8, 1, 1, {5000}}, /* more tiles than a warp has lanes */
};
#endif

/* One job: its arrays on the host, and the same on the device. */
struct job {
	uint32_t clusters;
	size_t logits; /* in all */
	float *q, *log_sizes, *got_logits, *got_votes, *cpu_logits, *cpu_votes;
	uint16_t *centroids;
	double *logits_want, *votes_want;
	struct kn_score_job device;
};

static void fill(struct job *j, const struct score_case *c, uint64_t seed)
{
	struct kv_random random;

	kv_random_seed(&random, seed);
	kvt_fill_peaky(&random, j->q, (size_t)c->group * c->head_dim, 1.5f);
	for (size_t i = 0; i < (size_t)j->clusters * c->head_dim; i++)
		j->centroids[i] = kn_half_from_float(kv_random_normal(&random));
	for (uint32_t i = 0; i < j->clusters; i++)
		j->log_sizes[i] =
		    i % 11 == 5 ? -INFINITY : logf(1.0f + (float)kv_random_below(&random, 99));
}

static void job_create(struct job *j, const struct score_case *c, uint32_t number)
{
	size_t centroids = (size_t)c->clusters[number] * c->head_dim;

	j->clusters = c->clusters[number];
	j->logits = (size_t)c->group * (j->clusters + PAD);
	j->q = kvt_alloc((size_t)c->group * c->head_dim, sizeof(float));
	j->log_sizes = kvt_alloc(j->clusters + 1, sizeof(float));
	j->centroids = kvt_alloc(centroids + 1, sizeof(uint16_t));
	j->cpu_logits = kvt_alloc(j->logits, sizeof(float));
	j->cpu_votes = kvt_alloc(j->clusters + 1, sizeof(float));
	j->logits_want = kvt_alloc(j->logits, sizeof(double));
	j->votes_want = kvt_alloc(j->clusters + 1, sizeof(double));
	fill(j, c, 40 + number);
	j->device =
	    (struct kn_score_job){.q = dev_upload(j->q, (size_t)c->group * c->head_dim * sizeof(float)),
	        .centroids = dev_upload(j->centroids, (centroids + 1) * sizeof(uint16_t)),
	        .log_sizes = dev_upload(j->log_sizes, (j->clusters + 1) * sizeof(float)),
	        .clusters = j->clusters,
	        .logits = dev_upload(j->cpu_logits, j->logits * sizeof(float)), /* zeros */
	        .logits_stride = j->clusters + PAD,
	        .votes = dev_alloc((j->clusters + 1) * sizeof(float))};
}

static void job_destroy(struct job *j)
{
	void *host[] = {j->q, j->log_sizes, j->centroids, j->cpu_logits, j->cpu_votes, j->logits_want,
	    j->votes_want, j->got_logits, j->got_votes};
	const void *device[] = {
	    j->device.q, j->device.centroids, j->device.log_sizes, j->device.logits, j->device.votes};

	for (size_t i = 0; i < sizeof host / sizeof *host; i++)
		kvt_free(host[i]);
	for (size_t i = 0; i < sizeof device / sizeof *device; i++)
		dev_free((void *)(uintptr_t)device[i]);
}

static float scale_of(const struct score_case *c)
{
	return 1.0f / sqrtf((float)c->head_dim);
}

static void reference(const struct score_case *c, struct job *j)
{
	double *x = kvt_alloc(j->clusters + 1, sizeof *x);

	for (uint32_t g = 0; g < c->group; g++) {
		double max = -INFINITY, sum = 0;

		for (uint32_t i = 0; i < j->clusters; i++) {
			double logit = 0, size = (double)j->log_sizes[i];

			for (uint32_t d = 0; d < c->head_dim; d++)
				logit += (double)j->q[g * c->head_dim + d] *
				         (double)kn_half_to_float(j->centroids[i * c->head_dim + d]);
			logit *= (double)scale_of(c);
			j->logits_want[g * j->device.logits_stride + i] = logit;
			x[i] = c->size_term || isinf(size) ? logit + size : logit;
			max = fmax(max, x[i]);
		}
		for (uint32_t i = 0; i < j->clusters; i++)
			sum += exp(x[i] - max);
		for (uint32_t i = 0; i < j->clusters; i++)
			j->votes_want[i] += exp(x[i] - max) / sum;
	}
	kvt_free(x);
}

static void run_cpu(const struct kvt_backend *b, const struct score_case *c, struct job *j)
{
	struct kn_score_job job = {.q = j->q,
	    .centroids = j->centroids,
	    .log_sizes = j->log_sizes,
	    .clusters = j->clusters,
	    .logits = j->cpu_logits,
	    .logits_stride = j->clusters + PAD,
	    .votes = j->cpu_votes};
	struct kn_score_arguments a = {.jobs = &job,
	    .job_count = 1,
	    .group = c->group,
	    .head_dim = c->head_dim,
	    .scale = scale_of(c),
	    .size_term = c->size_term};

	assert_int_equal(b->ops->score(b->backend, NULL, &a), KV_OK);
}

static void run_device(const struct score_case *c, struct job *jobs, uint32_t count)
{
	struct kn_score_job host[MOST_JOBS];
	uint32_t most = 0;

	for (uint32_t i = 0; i < count; i++) {
		host[i] = jobs[i].device;
		if (jobs[i].clusters > most) most = jobs[i].clusters;
	}
	struct kn_score_arguments a = {.jobs = dev_upload(host, count * sizeof *host),
	    .job_count = count,
	    .group = c->group,
	    .head_dim = c->head_dim,
	    .scale = scale_of(c),
	    .size_term = c->size_term};
	void *scratch = dev_alloc(kn_cuda_score_scratch_bytes(count, most, c->group) + 1);

	DEV_OK(kn_cuda_score(&a, most, scratch, NULL));
	dev_wait();
	for (uint32_t i = 0; i < count; i++) {
		kvt_free(jobs[i].got_logits);
		kvt_free(jobs[i].got_votes);
		jobs[i].got_logits = dev_fetch(jobs[i].device.logits, jobs[i].logits * sizeof(float));
		jobs[i].got_votes = dev_fetch(jobs[i].device.votes, jobs[i].clusters * sizeof(float) + 1);
	}
	dev_free(scratch);
	dev_free((void *)(uintptr_t)a.jobs);
}

/* Against double precision; and as near to the CPU's as both are to that. */
static void check_job(const char *what, const struct job *j)
{
	double *votes = kvt_alloc(j->clusters, sizeof *votes);
	double *logits = kvt_alloc(j->logits, sizeof *logits);

	kvt_assert_close(what, j->got_logits, j->logits_want, j->logits, 1e-5, 1e-6);
	kvt_assert_close(what, j->got_votes, j->votes_want, j->clusters, 5e-5, 1e-5);
	for (uint32_t i = 0; i < j->clusters; i++)
		votes[i] = (double)j->cpu_votes[i];
	for (size_t i = 0; i < j->logits; i++)
		logits[i] = (double)j->cpu_logits[i];
	kvt_assert_close(what, j->got_logits, logits, j->logits, 1e-5, 1e-6);
	kvt_assert_close(what, j->got_votes, votes, j->clusters, 1e-4, 2e-5);
	for (uint32_t i = 5; i < j->clusters; i += 11)
		assert_true(j->got_votes[i] == 0.0f);
	kvt_free(votes);
	kvt_free(logits);
}

static void agrees_with_double_precision(void **state)
{
	struct kvt_backend b;

	(void)state;
	assert_true(kvt_backend_open(&b, KN_CPU_PLAIN, 1));
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const struct score_case *c = &cases[i];
		struct job jobs[MOST_JOBS] = {0};
		char what[64];

		for (uint32_t n = 0; n < c->count; n++) {
			job_create(&jobs[n], c, n);
			reference(c, &jobs[n]);
			run_cpu(&b, c, &jobs[n]);
		}
		run_device(c, jobs, c->count);
		for (uint32_t n = 0; n < c->count; n++) {
			snprintf(what, sizeof what, "case %zu, job %u", i, n);
			if (jobs[n].clusters != 0) check_job(what, &jobs[n]);
			job_destroy(&jobs[n]);
		}
	}
	kvt_backend_close(&b);
}

/* Alone, beside others, or first in a longer list: the same bits. */
static void bits_depend_on_the_job_alone(void **state)
{
	const struct score_case both = {3, 64, 1, 2, {40, 130}};
	struct job jobs[MOST_JOBS] = {0};

	(void)state;
	for (uint32_t n = 0; n < 2; n++)
		job_create(&jobs[n], &both, n);
	run_device(&both, jobs, 2);
	float *logits = dev_fetch(jobs[0].device.logits, jobs[0].logits * sizeof(float));
	float *votes = dev_fetch(jobs[0].device.votes, 40 * sizeof(float));

	run_device(&both, jobs, 1);
	kvt_assert_same_bits("logits", jobs[0].got_logits, logits, jobs[0].logits * sizeof(float));
	kvt_assert_same_bits("votes", jobs[0].got_votes, votes, 40 * sizeof(float));
	kvt_free(logits);
	kvt_free(votes);
	for (uint32_t n = 0; n < 2; n++)
		job_destroy(&jobs[n]);
}

/* Nothing but empty clusters: nobody votes. */
static void empty_clusters_get_no_votes(void **state)
{
	const struct score_case c = {2, 64, 0, 1, {20}};
	struct job job = {0};

	(void)state;
	job_create(&job, &c, 0);
	for (uint32_t i = 0; i < 20; i++)
		job.log_sizes[i] = -INFINITY;
	dev_write((void *)(uintptr_t)job.device.log_sizes, job.log_sizes, 20 * sizeof(float));
	run_device(&c, &job, 1);
	for (uint32_t i = 0; i < 20; i++)
		assert_true(job.got_votes[i] == 0.0f);
	job_destroy(&job);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(agrees_with_double_precision),
	    cmocka_unit_test(bits_depend_on_the_job_alone),
	    cmocka_unit_test(empty_clusters_get_no_votes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
