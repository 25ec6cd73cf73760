/* Votes for AVX2. */
#include "kernels/cpu/vector_avx2.h"

#include "kernels/cpu/score_loop.h"

void kn_votes_avx2(const struct kn_votes *v)
{
	votes(v);
}
