/* Scoring against double precision; selection against a full sort. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/kernels/kv_rows.h"

struct score_case {
	uint32_t clusters, group, head_dim;
	int size_term;
};

struct fixture {
	struct score_case c;
	float *q, *log_sizes, *logits, *votes;
	uint16_t *centroids;
	double *want_logits, *want_votes;
	struct kn_score_job job;
	float scale;
};

static void fixture_create(struct fixture *f, struct score_case c, uint64_t seed)
{
	struct kv_random random;
	uint32_t stride = c.clusters + 5;

	kv_random_seed(&random, seed);
	memset(f, 0, sizeof *f);
	f->c = c;
	f->scale = 1.0f / sqrtf((float)c.head_dim);
	f->q = kvt_alloc((size_t)c.group * c.head_dim, 4);
	f->log_sizes = kvt_alloc(c.clusters, 4);
	f->logits = kvt_alloc((size_t)c.group * stride, 4);
	f->votes = kvt_alloc(c.clusters, 4);
	f->centroids = kvt_alloc((size_t)c.clusters * c.head_dim, 2);
	f->want_logits = kvt_alloc((size_t)c.group * stride, 8);
	f->want_votes = kvt_alloc(c.clusters, 8);
	kvt_fill_peaky(&random, f->q, (size_t)c.group * c.head_dim, 1.5f);
	for (size_t i = 0; i < (size_t)c.clusters * c.head_dim; i++)
		f->centroids[i] = kn_half_from_float(kv_random_normal(&random));
	for (uint32_t i = 0; i < c.clusters; i++)
		f->log_sizes[i] =
		    i % 11 == 5 ? -INFINITY : logf(1.0f + (float)kv_random_below(&random, 99));
	f->job = (struct kn_score_job){.q = f->q,
	    .centroids = f->centroids,
	    .log_sizes = f->log_sizes,
	    .clusters = c.clusters,
	    .logits = f->logits,
	    .logits_stride = stride,
	    .votes = f->votes};
}

static void fixture_destroy(struct fixture *f)
{
	void *blocks[] = {
	    f->q, f->log_sizes, f->logits, f->votes, f->centroids, f->want_logits, f->want_votes};

	for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
		kvt_free(blocks[i]);
}

static void score_reference(struct fixture *f)
{
	const struct score_case *c = &f->c;
	double *x = kvt_alloc(c->clusters, sizeof *x);

	for (uint32_t g = 0; g < c->group; g++) {
		double max = -INFINITY, sum = 0;

		for (uint32_t i = 0; i < c->clusters; i++) {
			double logit = 0, size = (double)f->log_sizes[i];

			for (uint32_t d = 0; d < c->head_dim; d++)
				logit += (double)f->q[g * c->head_dim + d] *
				         (double)kn_half_to_float(f->centroids[i * c->head_dim + d]);
			logit *= (double)f->scale;
			f->want_logits[g * f->job.logits_stride + i] = logit;
			x[i] = c->size_term || isinf(size) ? logit + size : logit;
			max = fmax(max, x[i]);
		}
		for (uint32_t i = 0; i < c->clusters; i++)
			sum += exp(x[i] - max);
		for (uint32_t i = 0; i < c->clusters; i++)
			f->want_votes[i] += exp(x[i] - max) / sum;
	}
	kvt_free(x);
}

static void score(const struct kvt_backend *b, const struct fixture *f,
    const struct kn_score_job *jobs, uint32_t count)
{
	struct kn_score_arguments a = {.jobs = jobs,
	    .job_count = count,
	    .group = f->c.group,
	    .head_dim = f->c.head_dim,
	    .scale = f->scale,
	    .size_term = f->c.size_term};

	assert_int_equal(b->ops->score(b->backend, NULL, &a), KV_OK);
}

static const struct score_case score_cases[] = {
    {1, 1, 64, 1},
    {15, 3, 64, 1},
    {240, 3, 64, 1},
    {257, 7, 64, 0},
    {944, 7, 64, 1},
    {100, 2, 80, 1},
    {100, 5, 96, 0},
    {100, 4, 128, 1},
    {100, 16, 256, 1},
    {33, 9, 8, 1},
};

static void check_scores(const struct kvt_backend *b, void *context)
{
	(void)context;
	for (size_t i = 0; i < sizeof score_cases / sizeof *score_cases; i++) {
		struct fixture f;
		char what[64];

		fixture_create(&f, score_cases[i], 40 + i);
		score_reference(&f);
		score(b, &f, &f.job, 1);
		snprintf(what, sizeof what, "%s, case %zu", b->name, i);
		kvt_assert_close(
		    what, f.logits, f.want_logits, (size_t)f.c.group * f.job.logits_stride, 1e-5, 1e-6);
		kvt_assert_close(what, f.votes, f.want_votes, f.c.clusters, 5e-5, 1e-5);
		for (uint32_t c = 5; c < f.c.clusters; c += 11)
			assert_true(f.votes[c] == 0.0f);
		fixture_destroy(&f);
	}
}

static void scores_agree_with_double_precision(void **state)
{
	(void)state;
	kvt_each_backend(check_scores, NULL);
}

struct kept {
	enum kn_cpu_level level;
	float votes[700], logits[3 * 705];
};

/* More jobs than one round holds, of several lengths, some of them empty. */
static void check_score_bits(const struct kvt_backend *b, void *context)
{
	enum { JOBS = 150 };
	struct kept *kept = context;
	struct kn_score_job jobs[JOBS];
	struct fixture f;
	float *spare = kvt_alloc((size_t)JOBS * 700, 4),
	      *spare_logits = kvt_alloc((size_t)JOBS * 2115, 4);

	fixture_create(&f, (struct score_case){700, 3, 64, 1}, 8);
	score(b, &f, &f.job, 1);
	if (kept->level != b->level) {
		kept->level = b->level;
		memcpy(kept->votes, f.votes, sizeof kept->votes);
		memcpy(kept->logits, f.logits, sizeof kept->logits);
	}
	kvt_assert_same_bits("threads", f.votes, kept->votes, sizeof kept->votes);
	kvt_assert_same_bits("threads", f.logits, kept->logits, sizeof kept->logits);
	for (uint32_t i = 0; i < JOBS; i++) {
		jobs[i] = f.job;
		jobs[i].votes = spare + (size_t)i * 700;
		jobs[i].logits = spare_logits + (size_t)i * 2115;
		if (i % 3 == 1) jobs[i].clusters = i % 2 == 0 ? 0 : i;
	}
	score(b, &f, jobs, JOBS);
	for (uint32_t i = 0; i < JOBS; i++) {
		if (jobs[i].clusters != 700) continue;
		kvt_assert_same_bits("neighbours", jobs[i].votes, kept->votes, sizeof kept->votes);
	}
	kvt_free(spare);
	kvt_free(spare_logits);
	fixture_destroy(&f);
}

static void score_bits_depend_on_the_job_alone(void **state)
{
	static struct kept kept;

	(void)state;
	kept.level = KN_CPU_AUTO;
	kvt_each_backend(check_score_bits, &kept);
}

/* Lists of votes that are hard to sort. */
static float vote_of(struct kv_random *random, uint32_t kind)
{
	uint32_t x = (uint32_t)kv_random_below(random, 8);

	switch (kind) {
	case 0:
		return (float)kv_random_unit(random) * 1e-3f;
	case 1:
		return (float)x; /* many ties */
	case 2:
		return x < 2 ? 0.0f : x < 4 ? -0.0f : -(float)x;
	case 3:
		return x == 0 ? NAN : x == 1 ? -INFINITY : x == 2 ? INFINITY : 1e-42f * (float)x;
	default:
		return expf(-20.0f * (float)kv_random_unit(random));
	}
}

/* Whether a comes before b. */
static int comes_first(const float *votes, uint32_t a, uint32_t b)
{
	float x = votes[a], y = votes[b];

	if (isnan(x) || isnan(y)) return isnan(x) && isnan(y) ? a < b : isnan(y);
	return x != y ? x > y : a < b;
}

static void check_selection(const struct kn_select_job *job)
{
	uint32_t *order = kvt_alloc(job->clusters + 1, 4), n = 0, left = job->budget, at = 0;

	for (uint32_t c = 0; c < job->clusters; c++) {
		if (job->sizes[c] == 0) continue;
		uint32_t j = n++;

		for (; j > 0 && comes_first(job->votes, c, order[j - 1]); j--)
			order[j] = order[j - 1];
		order[j] = c;
	}
	uint32_t *taken = kvt_alloc(job->clusters + 1, 4);

	for (; at < n && left != 0; at++) {
		uint32_t c = order[at], take = job->sizes[c] < left ? job->sizes[c] : left;

		assert_true(at < job->counts->extents);
		assert_int_equal(job->extents[at].cluster, c);
		assert_int_equal(job->extents[at].count, take);
		taken[c] = take;
		left -= take;
	}
	assert_int_equal(job->counts->extents, at);
	assert_int_equal(job->counts->tokens, job->budget - left);
	for (uint32_t c = 0; c < job->clusters; c++)
		assert_int_equal(job->rest[c], job->sizes[c] - taken[c]);
	kvt_free(order);
	kvt_free(taken);
}

static void check_select(const struct kvt_backend *b, void *context)
{
	enum { JOBS = 60, MOST = 1000 };
	static float votes[JOBS][MOST];
	static uint32_t sizes[JOBS][MOST], rest[JOBS][MOST], scratch[JOBS][MOST];
	static struct kn_extent extents[JOBS][MOST];
	static struct kn_select_counts counts[JOBS];
	struct kn_select_job jobs[JOBS];
	struct kv_random random;

	(void)context;
	kv_random_seed(&random, 4);
	for (uint32_t i = 0; i < JOBS; i++) {
		uint32_t clusters = i == 0 ? 0 : i < 10 ? i : (uint32_t)kv_random_below(&random, MOST);

		for (uint32_t c = 0; c < clusters; c++) {
			votes[i][c] = vote_of(&random, i % 5);
			sizes[i][c] = (uint32_t)kv_random_below(&random, 64);
			if (kv_random_below(&random, 9) == 0) sizes[i][c] = 0;
		}
		jobs[i] = (struct kn_select_job){.votes = votes[i],
		    .sizes = sizes[i],
		    .clusters = clusters,
		    .budget = i % 7 == 0    ? 0
		              : i % 11 == 0 ? UINT32_MAX
		                            : 16 * i,
		    .extents = extents[i],
		    .rest = rest[i],
		    .counts = &counts[i],
		    .scratch = scratch[i]};
	}
	struct kn_select_arguments a = {.jobs = jobs, .job_count = JOBS};

	assert_int_equal(b->ops->select(b->backend, NULL, &a), KV_OK);
	for (uint32_t i = 0; i < JOBS; i++)
		check_selection(&jobs[i]);
}

static void selection_equals_a_full_sort(void **state)
{
	(void)state;
	kvt_each_backend(check_select, NULL);
}

static void check_refusals(const struct kvt_backend *b, void *context)
{
	struct fixture f;

	(void)context;
	fixture_create(&f, (struct score_case){20, 3, 64, 1}, 1);
	struct kn_score_arguments good = {
	    .jobs = &f.job, .job_count = 1, .group = 3, .head_dim = 64, .scale = 1.0f};
	struct kn_score_arguments bad[] = {good, good, good, good};
	struct kn_score_job job = f.job;

	bad[0].group = 17;
	bad[1].head_dim = 100;
	bad[2].jobs = NULL;
	bad[3].jobs = &job;
	job.logits_stride = 19;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(b->ops->score(b->backend, NULL, &bad[i]), KV_INVALID);
	job = f.job;
	job.clusters = 1u << 30;
	job.logits_stride = job.clusters;
	assert_int_equal(b->ops->score(b->backend, NULL, &bad[3]), KV_LIMIT);
	struct kn_select_job selection = {.clusters = 3};
	struct kn_select_arguments a = {.jobs = &selection, .job_count = 1};

	assert_int_equal(b->ops->select(b->backend, NULL, &a), KV_INVALID);
	struct kn_select_counts counts;

	selection.counts = &counts;
	assert_int_equal(b->ops->select(b->backend, NULL, &a), KV_INVALID);
	selection = (struct kn_select_job){0};
	assert_int_equal(b->ops->select(b->backend, NULL, &a), KV_INVALID);
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
	    cmocka_unit_test(scores_agree_with_double_precision),
	    cmocka_unit_test(score_bits_depend_on_the_job_alone),
	    cmocka_unit_test(selection_equals_a_full_sort),
	    cmocka_unit_test(refuses_bad_arguments),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
