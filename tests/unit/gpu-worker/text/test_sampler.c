#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/text/sampler.h"

enum { SMALL = 4, LARGE = 3000, DRAWS = 40000 };

/* Probabilities 1/2, 1/4, 1/8, 1/8 at temperature 1, in an order that is not sorted. */
static const float LOGITS[SMALL] = {-2.0794415f, -0.6931472f, -2.0794415f, -1.3862944f};

static struct gw_sampler make(float temperature, uint32_t top_k, float top_p, uint64_t seed)
{
	struct gw_sampler sampler;
	const struct gw_sampler_options options = {
	    .temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = seed};
	assert_int_equal(gw_sampler_init(&sampler, &options), KV_OK);
	return sampler;
}

static int32_t pick(struct gw_sampler *sampler, const float *logits, uint32_t vocabulary)
{
	void *scratch = kv_alloc(kv_heap(), gw_sampler_scratch_bytes(vocabulary));
	int32_t id = gw_sampler_pick(sampler, logits, vocabulary, scratch);
	kv_free(kv_heap(), scratch);
	assert_in_range(id, 0, vocabulary - 1);
	return id;
}

/* Draw often and compare the shares; the seed is fixed, so the outcome is too. */
static void check_shares(struct gw_sampler sampler, const double *expected)
{
	unsigned counts[SMALL] = {0};
	for (int i = 0; i < DRAWS; i++)
		counts[pick(&sampler, LOGITS, SMALL)]++;
	for (int i = 0; i < SMALL; i++) {
		double share = counts[i] / (double)DRAWS;
		if (expected[i] <= 0)
			assert_int_equal(counts[i], 0);
		else
			assert_true(fabs(share - expected[i]) < 0.01);
	}
}

static void test_shares(void **state)
{
	(void)state;
	check_shares(make(1, 0, 1, 7), (const double[]){0.125, 0.5, 0.125, 0.25});
	/* Temperature 2 takes the square roots: 0.354, 0.707, 0.354, 0.5 of 1.914. */
	check_shares(make(2, 0, 1, 8), (const double[]){0.1847, 0.3694, 0.1847, 0.2612});
	check_shares(make(1, 2, 1, 9), (const double[]){0, 2.0 / 3, 0, 1.0 / 3});
	check_shares(make(1, 0, 0.6f, 10), (const double[]){0, 2.0 / 3, 0, 1.0 / 3});
	check_shares(make(1, 0, 0.45f, 11), (const double[]){0, 1, 0, 0});
	/* Two tie for the third place: the lower id has it. */
	check_shares(make(1, 3, 1, 12), (const double[]){1.0 / 7, 4.0 / 7, 0, 2.0 / 7});
	check_shares(make(1, 0, 0.8f, 13), (const double[]){1.0 / 7, 4.0 / 7, 0, 2.0 / 7});
	/* top_p is a share of what top_k has left: 2/3 of the mass of the two best is the best alone.
	 */
	check_shares(make(1, 2, 0.6f, 14), (const double[]){0, 1, 0, 0});
	check_shares(make(1, 100, 1, 15), (const double[]){0.125, 0.5, 0.125, 0.25});
	check_shares(make(1, 1, 1, 16), (const double[]){0, 1, 0, 0});
}

static void test_min_p(void **state)
{
	(void)state;
	struct gw_sampler sampler = make(1, 0, 1, 21);
	sampler.options.min_p = 0.3f;
	check_shares(sampler, (const double[]){0, 2.0 / 3, 0, 1.0 / 3});
	sampler.options.min_p = 0.2f;
	check_shares(sampler, (const double[]){0.125, 0.5, 0.125, 0.25});
	sampler.options.min_p = 1;
	check_shares(sampler, (const double[]){0, 1, 0, 0});
	/* A share of the rest, as top_p is. */
	sampler.options.min_p = 0.3f;
	sampler.options.top_p = 0.6f;
	check_shares(sampler, (const double[]){0, 1, 0, 0});
}

static void test_penalties(void **state)
{
	(void)state;
	static const float logits[SMALL] = {1, 4, 2, 3};
	static const uint32_t counts[SMALL] = {0, 3, 1, 0};
	struct gw_sampler_options options = {.top_p = 1};
	float out[SMALL];

	assert_false(gw_sampler_penalises(&options));
	options.frequency_penalty = 0.5f;
	assert_true(gw_sampler_penalises(&options));
	options.presence_penalty = 1;
	gw_sampler_penalise(&options, logits, counts, SMALL, out);
	assert_memory_equal(out, ((const float[]){1, 1.5f, 0.5f, 3}), sizeof out);
	/* Penalties under 0 make what is there more likely. */
	options = (struct gw_sampler_options){.top_p = 1, .presence_penalty = -2};
	assert_true(gw_sampler_penalises(&options));
	gw_sampler_penalise(&options, logits, counts, SMALL, out);
	assert_memory_equal(out, ((const float[]){1, 6, 4, 3}), sizeof out);
}

static void test_greedy(void **state)
{
	(void)state;
	const float ties[] = {1, 3, 3, 2}, odd[] = {NAN, -1, NAN, -0.5f}, none[] = {NAN, NAN};
	struct gw_sampler sampler = make(0, 0, 1, 1);
	struct gw_sampler before = sampler;
	assert_int_equal(pick(&sampler, ties, 4), 1);
	assert_int_equal(pick(&sampler, odd, 4), 3);
	assert_int_equal(pick(&sampler, none, 2), 0);
	assert_memory_equal(&sampler.random, &before.random, sizeof before.random);
}

static void test_extreme_logits(void **state)
{
	(void)state;
	const float low[] = {-INFINITY, -INFINITY}, high[] = {0, INFINITY, INFINITY};
	const float odd[] = {NAN, 1, -INFINITY, NAN}, wide[] = {-3e38f, 3e38f};
	struct gw_sampler sampler = make(1, 0, 0.9f, 1);
	for (int i = 0; i < 50; i++) {
		assert_int_equal(pick(&sampler, low, 2), 0);
		assert_int_equal(pick(&sampler, high, 3), 1);
		assert_int_equal(pick(&sampler, odd, 4), 1);
		assert_int_equal(pick(&sampler, wide, 2), 1);
	}
	sampler = make(1e-30f, 0, 1, 1);
	assert_int_equal(pick(&sampler, LOGITS, SMALL), 1);
}

static void test_repeatable(void **state)
{
	(void)state;
	struct gw_sampler one = make(1, 0, 0.95f, 42), two = make(1, 0, 0.95f, 42);
	struct gw_sampler other = make(1, 0, 0.95f, 43);
	int differs = 0;
	for (int i = 0; i < 100; i++) {
		int32_t id = pick(&one, LOGITS, SMALL);
		assert_int_equal(pick(&two, LOGITS, SMALL), id);
		differs |= pick(&other, LOGITS, SMALL) != id;
	}
	assert_true(differs);
	/* A copy goes on where the original stands, as a worker that takes over does. */
	struct gw_sampler copy = one;
	for (int i = 0; i < 100; i++)
		assert_int_equal(pick(&copy, LOGITS, SMALL), pick(&one, LOGITS, SMALL));
}

static const float *sorted_logits;

static int by_logit(const void *a, const void *b)
{
	int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;
	if (sorted_logits[left] > sorted_logits[right]) return -1;
	if (sorted_logits[left] < sorted_logits[right]) return 1;
	return left < right ? -1 : left > right;
}

/* The same by sorting everything. */
static int32_t plain_pick(struct gw_sampler *sampler, const float *logits, uint32_t vocabulary)
{
	static int32_t order[LARGE];
	static double weights[LARGE];
	double temperature = (double)sampler->options.temperature, total = 0, sum = 0;
	uint32_t kept = vocabulary, nucleus = 0;
	for (uint32_t i = 0; i < vocabulary; i++)
		order[i] = (int32_t)i;
	sorted_logits = logits;
	qsort(order, vocabulary, sizeof order[0], by_logit);
	if (sampler->options.top_k > 0 && sampler->options.top_k < kept) kept = sampler->options.top_k;
	for (uint32_t i = 0; i < kept; i++) {
		weights[i] = exp(((double)logits[order[i]] - (double)logits[order[0]]) / temperature);
		total += weights[i];
	}
	while (nucleus < kept &&
	       (sampler->options.top_p >= 1.0f || sum < (double)sampler->options.top_p * total))
		sum += weights[nucleus++];
	double left = kv_random_unit(&sampler->random) * sum;
	for (uint32_t i = 0; i + 1 < nucleus; i++) {
		left -= weights[i];
		if (left < 0) return order[i];
	}
	return order[nucleus - 1];
}

static void test_against_sorting(void **state)
{
	(void)state;
	static float logits[LARGE];
	static const struct {
		uint32_t top_k;
		float top_p;
	} cases[] = {{0, 0.9f}, {0, 0.999f}, {40, 1}, {40, 0.9f}, {LARGE, 0.5f}, {LARGE - 1, 1}};
	struct kv_random random;
	kv_random_seed(&random, 5);
	for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
		struct gw_sampler sampler = make(0.8f, cases[c].top_k, cases[c].top_p, c), plain = sampler;
		for (int round = 0; round < 40; round++) {
			/* Rounded, so that there are ties. */
			for (uint32_t i = 0; i < LARGE; i++)
				logits[i] = rintf(kv_random_normal(&random) * 20) / 8;
			assert_int_equal(pick(&sampler, logits, LARGE), plain_pick(&plain, logits, LARGE));
		}
	}
}

static void test_refused_options(void **state)
{
	(void)state;
	static const struct gw_sampler_options bad[] = {
	    {.temperature = -0.1f, .top_p = 1},
	    {.temperature = 100.5f, .top_p = 1},
	    {.temperature = NAN, .top_p = 1},
	    {.temperature = INFINITY, .top_p = 1},
	    {.temperature = 1, .top_p = 0},
	    {.temperature = 1, .top_p = 1.01f},
	    {.temperature = 1, .top_p = -1},
	    {.temperature = 1, .top_p = NAN},
	    {.temperature = 1, .top_p = 1, .min_p = -0.1f},
	    {.temperature = 1, .top_p = 1, .min_p = 1.1f},
	    {.temperature = 1, .top_p = 1, .min_p = NAN},
	    {.temperature = 1, .top_p = 1, .frequency_penalty = 2.1f},
	    {.temperature = 1, .top_p = 1, .frequency_penalty = NAN},
	    {.temperature = 1, .top_p = 1, .presence_penalty = -2.1f},
	};
	struct gw_sampler sampler = make(1, 5, 0.5f, 3), before = sampler;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		kv_error_clear();
		assert_int_equal(gw_sampler_init(&sampler, &bad[i]), KV_INVALID);
		assert_true(strlen(kv_error_message()) > 10);
		assert_memory_equal(&sampler, &before, sizeof before);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_shares),
	    cmocka_unit_test(test_min_p),
	    cmocka_unit_test(test_penalties),
	    cmocka_unit_test(test_greedy),
	    cmocka_unit_test(test_extreme_logits),
	    cmocka_unit_test(test_repeatable),
	    cmocka_unit_test(test_against_sorting),
	    cmocka_unit_test(test_refused_options),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
