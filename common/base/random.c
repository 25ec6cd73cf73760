#include "common/base/random.h"

#include "common/base/clock.h"

#include <math.h>
#include <sys/random.h>
#include <unistd.h>

static uint64_t rotate_left(uint64_t value, int bits)
{
	return (value << bits) | (value >> (64 - bits));
}

static uint64_t splitmix(uint64_t *state)
{
	uint64_t mixed = *state += 0x9e3779b97f4a7c15U;

	mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
	mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
	return mixed ^ (mixed >> 31);
}

void kv_random_seed(struct kv_random *random, uint64_t seed)
{
	/* Four consecutive splitmix outputs are distinct, so the state is never all zero. */
	for (int i = 0; i < 4; i++)
		random->state[i] = splitmix(&seed);
}

uint64_t kv_random_next(struct kv_random *random)
{
	uint64_t *state = random->state;
	uint64_t result = rotate_left(state[1] * 5, 7) * 9;
	uint64_t carried = state[1] << 17;

	state[2] ^= state[0];
	state[3] ^= state[1];
	state[1] ^= state[2];
	state[0] ^= state[3];
	state[2] ^= carried;
	state[3] = rotate_left(state[3], 45);
	return result;
}

uint64_t kv_random_below(struct kv_random *random, uint64_t bound)
{
	/* 2^64 modulo bound: draws under it would make the small residues too frequent. */
	uint64_t rejected = (0 - bound) % bound;
	uint64_t draw;

	do {
		draw = kv_random_next(random);
	} while (draw < rejected);
	return draw % bound;
}

double kv_random_unit(struct kv_random *random)
{
	return (double)(kv_random_next(random) >> 11) * 0x1p-53;
}

float kv_random_normal(struct kv_random *random)
{
	/* Box and Muller, one of the pair: keeping the other would hide state outside the struct. */
	double radius = sqrt(-2.0 * log(1.0 - kv_random_unit(random)));
	double angle = 6.283185307179586 * kv_random_unit(random);

	return (float)(radius * cos(angle));
}

uint64_t kv_random_entropy(void)
{
	uint64_t value;
	uint64_t mixed;

	if (getrandom(&value, sizeof value, 0) == (ssize_t)sizeof value) return value;
	/* Only a seccomp filter refuses getrandom; identifiers must still differ between processes. */
	mixed = kv_now_ns() ^ (kv_wall_ms() << 20) ^ ((uint64_t)getpid() << 44);
	return splitmix(&mixed);
}
