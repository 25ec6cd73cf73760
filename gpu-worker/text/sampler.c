#include "gpu-worker/text/sampler.h"

#include <math.h>

/* A token so far under the best that its probability is lost in the rounding of the sum. */
#define NEGLIGIBLE (-60.0)

struct choice {
	float logit;
	int32_t id;
};

/* Written so that a NaN fails too. */
static enum kv_status check_penalty(const char *name, float value)
{
	if (value >= -2.0f && value <= 2.0f) return KV_OK;
	return kv_fail(
	    KV_INVALID, "%s: %g is out of range; use a value from -2 to 2", name, (double)value);
}

enum kv_status gw_sampler_init(struct gw_sampler *sampler, const struct gw_sampler_options *options)
{
	if (!(options->temperature >= 0.0f && options->temperature <= 100.0f))
		return kv_fail(KV_INVALID, "temperature: %g is out of range; use a value from 0 to 100",
		    (double)options->temperature);
	if (!(options->top_p > 0.0f && options->top_p <= 1.0f))
		return kv_fail(KV_INVALID, "top_p: %g is out of range; use a value over 0 and at most 1",
		    (double)options->top_p);
	if (!(options->min_p >= 0.0f && options->min_p <= 1.0f))
		return kv_fail(KV_INVALID, "min_p: %g is out of range; use a value from 0 to 1",
		    (double)options->min_p);
	KV_TRY(check_penalty("frequency_penalty", options->frequency_penalty));
	KV_TRY(check_penalty("presence_penalty", options->presence_penalty));
	sampler->options = *options;
	kv_random_seed(&sampler->random, options->seed);
	return KV_OK;
}

size_t gw_sampler_scratch_bytes(uint32_t vocabulary)
{
	return (size_t)vocabulary * sizeof(struct choice);
}

static int32_t best_token(const float *logits, uint32_t vocabulary)
{
	float best = -INFINITY;
	int32_t id = 0;
	for (uint32_t i = 0; i < vocabulary; i++) {
		if (logits[i] > best) {
			best = logits[i];
			id = (int32_t)i;
		}
	}
	return id;
}

static int better(struct choice a, struct choice b)
{
	return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift_down(struct choice *heap, uint32_t count, uint32_t at)
{
	struct choice entry = heap[at];
	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= count) break;
		if (child + 1 < count && better(heap[child + 1], heap[child])) child++;
		if (!better(heap[child], entry)) break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = entry;
}

/* Move the best of heap[count] behind the heap's end. */
static struct choice pop_best(struct choice *heap, uint32_t *count)
{
	struct choice best = heap[0];
	uint32_t last = --*count;
	heap[0] = heap[last];
	if (last > 0) sift_down(heap, last, 0);
	heap[last] = best;
	return best;
}

static double weight(struct choice choice, float best, double temperature)
{
	return exp(((double)choice.logit - (double)best) / temperature);
}

/* Turn choices[*count] to the kept ones, the best first, and return the sum of their weights. */
static double keep_best(
    const struct gw_sampler_options *options, struct choice *choices, uint32_t *count, float best)
{
	double temperature = (double)options->temperature;
	uint32_t all = *count, rest = all, most = options->top_k > 0 ? options->top_k : all;
	if (most > all) most = all;
	for (uint32_t i = all / 2; i-- > 0;)
		sift_down(choices, all, i);

	/* Without top_k the share is of everything; with it, of the k best, which are popped first. */
	double total = 0;
	if (options->top_k > 0) {
		while (all - rest < most)
			total += weight(pop_best(choices, &rest), best, temperature);
	} else {
		for (uint32_t i = 0; i < all; i++)
			total += weight(choices[i], best, temperature);
	}
	double wanted = options->top_p < 1.0f ? (double)options->top_p * total : HUGE_VAL, sum = 0;
	uint32_t kept = 0;
	while (kept < most && sum < wanted) {
		if (all - rest == kept) (void)pop_best(choices, &rest);
		sum += weight(choices[all - 1 - kept], best, temperature);
		kept++;
	}
	/* Popped choices stand at the end, the best last; bring them to the front in order. */
	for (uint32_t i = 0, j = all - 1; i < j; i++, j--) {
		struct choice swap = choices[i];
		choices[i] = choices[j];
		choices[j] = swap;
	}
	*count = kept;
	return sum;
}

int32_t gw_sampler_pick(
    struct gw_sampler *sampler, const float *logits, uint32_t vocabulary, void *scratch)
{
	const struct gw_sampler_options *options = &sampler->options;
	int32_t greedy = best_token(logits, vocabulary);
	if (options->temperature <= 0.0f) return greedy;

	/* One draw for each pick, whatever the logits, so that the state after n tokens is known. */
	double draw = kv_random_unit(&sampler->random);
	float best = logits[greedy];
	if (!isfinite(best)) return greedy;

	struct choice *choices = scratch;
	double temperature = (double)options->temperature, sum = 0, least = NEGLIGIBLE;
	uint32_t count = 0;
	if (options->min_p > 0.0f && log((double)options->min_p) > least)
		least = log((double)options->min_p);
	for (uint32_t i = 0; i < vocabulary; i++) {
		struct choice choice = {logits[i], (int32_t)i};
		if (((double)choice.logit - (double)best) / temperature >= least) choices[count++] = choice;
	}
	if (options->top_k > 0 || options->top_p < 1.0f) {
		sum = keep_best(options, choices, &count, best);
	} else {
		for (uint32_t i = 0; i < count; i++)
			sum += weight(choices[i], best, temperature);
	}
	double left = draw * sum;
	for (uint32_t i = 0; i + 1 < count; i++) {
		left -= weight(choices[i], best, temperature);
		if (left < 0) return choices[i].id;
	}
	return choices[count - 1].id;
}

int gw_sampler_penalises(const struct gw_sampler_options *options)
{
	float size = fabsf(options->frequency_penalty) + fabsf(options->presence_penalty);

	return size > 0.0f;
}

void gw_sampler_penalise(const struct gw_sampler_options *options, const float *logits,
    const uint32_t *counts, uint32_t vocabulary, float *out)
{
	for (uint32_t i = 0; i < vocabulary; i++) {
		float times = (float)counts[i];

		out[i] = counts[i] == 0
		             ? logits[i]
		             : logits[i] - options->presence_penalty - times * options->frequency_penalty;
	}
}

enum kv_status gw_check_logit(double logit)
{
	if (isfinite(logit)) return KV_OK;
	return kv_fail(KV_CORRUPT,
	    "the model's logits are not finite: its file is damaged, fetch it again (or its keys and "
	    "values are too large for f16, try --kv-type f32)");
}
