/* Inner loops of decode attention for AVX-512. */
#include "kernels/cpu/vector_avx512.h"

#include "kernels/cpu/attend_sparse_loop.h"

const struct kn_rows_level kn_rows_avx512 = {scores, softmax, values};
