/* Sampling on the device against the worker's sampler, and against a plain one in this file. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/text/sampler.h"
#include "kernels/cuda/launch_plain.h"
#include "tests/kernels/cuda/device.h"
#include "tests/lib/kernel_harness.h"

/* What is tried on each row of logits, in one call. ThreadSanitizer looks at which threads meet,
 * for which three will do. */
static const struct kn_cuda_sample_options trials[] = {
    {0.7f, 0, 1.0f, 0.0f, 0.93},
    {1.0f, 20, 0.8f, 0.0f, 0.77},
    {1.3f, 50, 0.95f, 0.02f, 0.97},
#ifndef __SANITIZE_THREAD__
    {0.0f, 0, 1.0f, 0.0f, 0.5},
    {1.0f, 0, 1.0f, 0.0f, 0.0},
    {1.0f, 0, 1.0f, 0.0f, 0.37},
    {1.5f, 0, 1.0f, 0.0f, 0.9999999},
    {0.8f, 1, 1.0f, 0.0f, 0.7},
    {0.8f, 7, 1.0f, 0.0f, 0.61},
    {1.0f, 40, 1.0f, 0.0f, 0.98},
    {1.0f, 100000, 1.0f, 0.0f, 0.45},
    {1.0f, 0, 0.9f, 0.0f, 0.99999},
    {1.0f, 0, 1e-6f, 0.0f, 0.99},
    {2.0f, 0, 0.999f, 0.0f, 0.996},
    {1.0f, 0, 1.0f, 0.1f, 0.88},
    {1.0f, 0, 1.0f, 1.0f, 0.6},
    {0.01f, 0, 1.0f, 0.0f, 0.999},
#endif
};

enum { TRIALS = sizeof trials / sizeof *trials, MAX_VOCABULARY = 40000 };

struct candidate {
	float logit;
	uint32_t id;
	double weight;
};

static int by_rank(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
	return x->id < y->id ? -1 : 1;
}

static int by_id(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	return x->id < y->id ? -1 : 1;
}

/* The whole of it, sorted, in doubles. */
static int32_t plain_pick(
    const struct kn_cuda_sample_options *o, const float *logits, uint32_t vocabulary)
{
	struct candidate *all = kvt_alloc(vocabulary, sizeof *all);
	int is_sorted = o->top_k > 0 || o->top_p < 1.0f;
	uint32_t kept = vocabulary, id = 0;
	double sum = 0.0, total = 0.0;

	for (uint32_t i = 0; i < vocabulary; i++)
		all[i] = (struct candidate){isnan(logits[i]) ? -INFINITY : logits[i], i, 0.0};
	qsort(all, vocabulary, sizeof *all, by_rank);
	float best = all[0].logit;
	uint32_t best_id = all[0].id;

	if (o->temperature <= 0.0f || !isfinite(best)) {
		kvt_free(all);
		return (int32_t)best_id;
	}
	for (uint32_t i = 0; i < vocabulary; i++)
		all[i].weight = exp(((double)all[i].logit - (double)best) / (double)o->temperature);
	while (kept > 1 && all[kept - 1].weight < (double)o->min_p)
		kept--;
	if (o->top_k > 0 && o->top_k < kept) kept = o->top_k;
	for (uint32_t i = 0; i < kept; i++)
		total += all[i].weight;
	if (o->top_p < 1.0f) {
		uint32_t least = 0;

		while (least < kept && sum < (double)o->top_p * total)
			sum += all[least++].weight;
		kept = least;
	}
	if (!is_sorted) qsort(all, kept, sizeof *all, by_id);
	sum = 0.0;
	for (uint32_t i = 0; i < kept; i++)
		sum += all[i].weight;
	double left = o->draw * sum;

	for (uint32_t i = 0; i < kept && left >= 0; i++) {
		left -= all[i].weight;
		id = all[i].id;
	}
	kvt_free(all);
	return (int32_t)id;
}

/* The worker's sampler; o->draw becomes the number that it drew. */
static int32_t worker_pick(
    struct kn_cuda_sample_options *o, uint64_t seed, const float *logits, uint32_t vocabulary)
{
	struct gw_sampler_options options = {
	    .temperature = o->temperature,
	    .top_k = o->top_k,
	    .top_p = o->top_p,
	    .min_p = o->min_p,
	    .seed = seed,
	};
	struct gw_sampler sampler;

	assert_int_equal(gw_sampler_init(&sampler, &options), KV_OK);
	struct kv_random random = sampler.random;
	void *scratch = kvt_alloc(1, gw_sampler_scratch_bytes(vocabulary));
	int32_t id = gw_sampler_pick(&sampler, logits, vocabulary, scratch);

	o->draw = kv_random_unit(&random);
	kvt_free(scratch);
	return id;
}

/* Each of `count` options on its own copy of the same logits, rows `gap` apart. */
static void device_pick(const float *logits, uint32_t vocabulary, uint32_t gap,
    const struct kn_cuda_sample_options *options, uint32_t count, int32_t *ids)
{
	size_t stride = vocabulary + gap;
	float *rows = kvt_alloc(count * stride, sizeof(float));

	for (uint32_t n = 0; n < count; n++) {
		memcpy(rows + n * stride, logits, vocabulary * sizeof(float));
		/* What is between the rows is better than all. */
		for (uint32_t i = 0; i < gap; i++)
			rows[n * stride + vocabulary + i] = 1e9f;
	}
	struct kn_cuda_sample_arguments a = {
	    .logits = dev_upload(rows, count * stride * sizeof(float)),
	    .logits_stride = stride,
	    .options = dev_upload(options, count * sizeof *options),
	    .ids = dev_alloc(count * sizeof *ids),
	    .count = count,
	    .vocabulary = vocabulary,
	};
	void *scratch = dev_alloc(kn_cuda_sample_scratch_bytes(count, vocabulary));

	DEV_OK(kn_cuda_sample(&a, scratch, NULL));
	dev_wait();
	dev_download(ids, a.ids, count * sizeof *ids);
	dev_free(scratch);
	dev_free(a.ids);
	dev_free((void *)(uintptr_t)a.options);
	dev_free((void *)(uintptr_t)a.logits);
	kvt_free(rows);
}

static void check_ids(const char *what, const struct kn_cuda_sample_options *o, const int32_t *got,
    const int32_t *want, uint32_t vocabulary)
{
	for (uint32_t n = 0; n < TRIALS; n++)
		if (got[n] != want[n])
			fail_msg("%s: %u tokens, temperature %g top_k %u top_p %g min_p %g draw %g: token %d, "
			         "not %d",
			    what, vocabulary, (double)o[n].temperature, o[n].top_k, (double)o[n].top_p,
			    (double)o[n].min_p, o[n].draw, got[n], want[n]);
}

/* All options at once, and one of them alone. */
static void check_logits(const float *logits, uint32_t vocabulary)
{
	int32_t want[TRIALS], got[TRIALS], alone;

	for (uint32_t n = 0; n < TRIALS; n++)
		want[n] = plain_pick(&trials[n], logits, vocabulary);
	device_pick(logits, vocabulary, 3, trials, TRIALS, got);
	check_ids("plain", trials, got, want, vocabulary);
	device_pick(logits, vocabulary, 0, &trials[1], 1, &alone);
	assert_int_equal(alone, got[1]);
}

/* The same against the worker's sampler, with the draws that it makes. */
static void check_against_worker(const float *logits, uint32_t vocabulary)
{
	struct kn_cuda_sample_options options[TRIALS];
	int32_t want[TRIALS], got[TRIALS];

	memcpy(options, trials, sizeof options);
	for (uint32_t n = 0; n < TRIALS; n++)
		want[n] = worker_pick(&options[n], 77 + n, logits, vocabulary);
	device_pick(logits, vocabulary, 1, options, TRIALS, got);
	check_ids("worker", options, got, want, vocabulary);
}

static void fill_logits(float *logits, uint32_t vocabulary, float scale, int is_coarse)
{
	struct kv_random random;

	kv_random_seed(&random, vocabulary + (is_coarse ? 1 : 0));
	for (uint32_t i = 0; i < vocabulary; i++) {
		logits[i] = scale * (float)(kv_random_unit(&random) + kv_random_unit(&random) - 1.0);
		/* Few values, so that most tokens tie, and both zeros. */
		if (is_coarse) logits[i] = rintf(logits[i]);
	}
}

static void test_vocabularies(void **state)
{
	static const uint32_t sizes[] = {1, 31, 5003};
	float *logits = kvt_alloc(MAX_VOCABULARY, sizeof(float));

	(void)state;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		uint32_t size = dev_scale() > 1 ? sizes[i] * 7 : sizes[i];

		fill_logits(logits, size, 9.0f, 0);
		check_logits(logits, size);
		if (size < 100) check_against_worker(logits, size);
	}
	kvt_free(logits);
}

static void test_ties(void **state)
{
	float *logits = kvt_alloc(600, sizeof(float));

	(void)state;
	fill_logits(logits, 600, 3.0f, 1);
	check_logits(logits, 600);
	check_against_worker(logits, 600);
	kvt_free(logits);
}

/* NaN counts as minus infinity; an infinite best is taken at once; distances may overflow. */
static void test_odd_logits(void **state)
{
	float *logits = kvt_alloc(100, sizeof(float));

	(void)state;
	fill_logits(logits, 100, 5.0f, 0);
	for (uint32_t i = 0; i < 100; i += 3)
		logits[i] = i % 2 ? NAN : -INFINITY;
	logits[1] = -3e38f;
	check_logits(logits, 100);
	logits[50] = INFINITY;
	logits[60] = INFINITY;
	check_logits(logits, 100);
	for (uint32_t i = 0; i < 100; i++)
		logits[i] = i % 2 ? NAN : -INFINITY;
	check_logits(logits, 100);
	kvt_free(logits);
}

/* Many draws from few tokens come as often as they should. */
static void test_frequencies(void **state)
{
	enum { DRAWS = 64, TOKENS = 4 };
	static const float logits[TOKENS] = {0.0f, 1.0f, 2.0f, -1.0f};
	struct kn_cuda_sample_options options[DRAWS];
	int32_t ids[DRAWS];
	double total = 0.0, edge = 0.0;

	(void)state;
	for (uint32_t n = 0; n < DRAWS; n++)
		options[n] =
		    (struct kn_cuda_sample_options){1.0f, 0, 1.0f, 0.0f, ((double)n + 0.5) / DRAWS};
	device_pick(logits, TOKENS, 0, options, DRAWS, ids);
	for (uint32_t i = 0; i < TOKENS; i++)
		total += exp((double)logits[i]);
	for (uint32_t i = 0; i < TOKENS; i++) {
		double share = exp((double)logits[i]) / total;

		for (uint32_t n = 0; n < DRAWS; n++)
			if (options[n].draw >= edge && options[n].draw < edge + share)
				assert_int_equal(ids[n], i);
		edge += share;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_vocabularies),
	    cmocka_unit_test(test_ties),
	    cmocka_unit_test(test_odd_logits),
	    cmocka_unit_test(test_frequencies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
