/* Inner loops of prefill attention for AVX2. */
#include "kernels/cpu/vector_avx2.h"

enum { VECTORS = 2 };
#include "kernels/cpu/attend_dense_loop.h"

const struct kn_dense_level kn_dense_avx2 = {LANES, widen, block};
