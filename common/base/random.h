/* Deterministic random numbers (xoshiro256**, seeded by splitmix64; Blackman and Vigna, 2018).
 * The whole state is in the struct: copy it to store it, compare it to test it. */
#ifndef KV_COMMON_BASE_RANDOM_H
#define KV_COMMON_BASE_RANDOM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kv_random {
	uint64_t state[4];
};

void kv_random_seed(struct kv_random *random, uint64_t seed);
uint64_t kv_random_next(struct kv_random *random);
uint64_t kv_random_below(struct kv_random *random, uint64_t bound); /* bound > 0 */
double kv_random_unit(struct kv_random *random);                    /* [0, 1) */
float kv_random_normal(struct kv_random *random);                   /* mean 0, variance 1 */

/* 64 bits from the operating system, for generations and identifiers. */
uint64_t kv_random_entropy(void);

#ifdef __cplusplus
}
#endif
#endif
