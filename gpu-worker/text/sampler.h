/* Sampling of the next token. The whole state is plain data: it is pushed to the store and restored
 * by a worker that takes a sequence over. */
#ifndef GW_TEXT_SAMPLER_H
#define GW_TEXT_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/random.h"
#include "common/base/status.h"
#include "common/memory/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_sampler_options {
	float temperature; /* 0: greedy, the lowest id wins a tie */
	uint32_t top_k;    /* 0: off */
	float top_p;       /* 1: off */
	uint64_t seed;
	float min_p; /* 0: off */
	/* Taken off the logit of each token that the answer has: once for every time, and once. */
	float frequency_penalty, presence_penalty;
};

struct gw_sampler {
	struct gw_sampler_options options;
	struct kv_random random;
};

/* KV_INVALID with a sentence for a value out of range (temperature in [0, 100], top_p in (0, 1],
 * min_p in [0, 1], penalties in [-2, 2]). */
enum kv_status gw_sampler_init(
    struct gw_sampler *sampler, const struct gw_sampler_options *options);

/* Pick a token from logits[vocabulary], vocabulary > 0. scratch: gw_sampler_scratch_bytes, aligned
 * as kv_alloc does. Logits are divided by the temperature, tokens less than min_p times as likely
 * as the best are left out, then all but the top_k best, then all but the smallest set of at least
 * top_p of what is left (ties: the lowest id first), and one number is drawn from `random`; greedy
 * picks draw none. Penalties are not applied: gw_sampler_penalise. A NaN counts as minus infinity.
 * Same state and logits: same token. */
size_t gw_sampler_scratch_bytes(uint32_t vocabulary);
int32_t gw_sampler_pick(
    struct gw_sampler *sampler, const float *logits, uint32_t vocabulary, void *scratch);

/* Do the options have penalties? */
int gw_sampler_penalises(const struct gw_sampler_options *options);
/* out[i] = logits[i] less the penalties for a token that the answer has counts[i] times. `out` may
 * be `logits`. */
void gw_sampler_penalise(const struct gw_sampler_options *options, const float *logits,
    const uint32_t *counts, uint32_t vocabulary, float *out);

/* KV_CORRUPT with a sentence when the logit that a token was picked by, or a mean of logits, is no
 * finite number: then all are not, and the pick says nothing. */
enum kv_status gw_check_logit(double logit);

#ifdef __cplusplus
}
#endif
#endif
