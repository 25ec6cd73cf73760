/* Inner loops of indexing for AVX-512. */
#include "kernels/cpu/vector_avx512.h"

#include "kernels/cpu/index_common.h"

enum { VECTORS = 4 };
#include "kernels/cpu/index_loop.h"

const struct kn_index_level kn_index_avx512 = {assign, sum};
