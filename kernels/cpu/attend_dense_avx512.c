/* Inner loops of prefill attention for AVX-512. */
#include "kernels/cpu/vector_avx512.h"

enum { VECTORS = 4 };
#include "kernels/cpu/attend_dense_loop.h"

const struct kn_dense_level kn_dense_avx512 = {LANES, widen, block};
