/* Inner loops of decode attention for AVX2. */
#include "kernels/cpu/vector_avx2.h"

#include "kernels/cpu/attend_sparse_loop.h"

const struct kn_rows_level kn_rows_avx2 = {scores, softmax, values};
