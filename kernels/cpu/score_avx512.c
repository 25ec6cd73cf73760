/* Votes for AVX-512. */
#include "kernels/cpu/vector_avx512.h"

#include "kernels/cpu/score_loop.h"

void kn_votes_avx512(const struct kn_votes *v)
{
	votes(v);
}
