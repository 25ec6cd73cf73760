/* Inner loops of indexing for AVX2. */
#include "kernels/cpu/vector_avx2.h"

#include "kernels/cpu/index_common.h"

enum { VECTORS = 2 };
#include "kernels/cpu/index_loop.h"

const struct kn_index_level kn_index_avx2 = {assign, sum};
