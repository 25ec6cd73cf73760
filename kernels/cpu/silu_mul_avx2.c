#include "kernels/cpu/silu_mul_loop.h"

void kn_silu_row_avx2(const float *gate, const float *up, float *out, uint32_t width)
{
	kn_silu_loop(gate, up, out, width);
}
