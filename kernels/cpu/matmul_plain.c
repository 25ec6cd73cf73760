/* The reference of the matmul inner loops: the others give the same bits. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/half.h"
#include "kernels/cpu/matmul_kernels.h"

/* Adding and taking away 1.5 * 2^23 rounds to an integer, half to even, for |x| < 2^22. */
static int32_t round_to_int(float x)
{
	const float magic = 12582912.0f;
	float shifted = x + magic;
	int32_t bits;

	memcpy(&bits, &shifted, sizeof bits);
	return bits - 0x4b400000;
}

static void quantise_half(const float *x, struct kn_panel_block *block, uint32_t half)
{
	float largest = 0.0f;
	int32_t sum = 0;

	for (uint32_t k = 0; k < 16; k++) {
		float magnitude = fabsf(x[k]);

		largest = magnitude > largest ? magnitude : largest;
	}
	/* Blocks too small for 127 / largest to be finite count as zero. */
	float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;

	for (uint32_t k = 0; k < 16; k++) {
		int8_t q = (int8_t)round_to_int(x[k] * inverse);

		block->q[16 * half + k] = q;
		sum += q;
	}
	block->scale[half] = largest / 127.0f;
	block->negative[half] = -sum;
}

static void quantise_block(const float *x, struct kn_panel_block *block)
{
	quantise_half(x, block, 0);
	quantise_half(x + 16, block, 1);
	float low = block->scale[0] * (float)-block->negative[0];
	float high = block->scale[1] * (float)-block->negative[1];

	block->sum = low + high;
}

/* Codes of a block as signed bytes [16][32], offset taken away. */
static void unpack_block(enum kn_tile_format format, const uint8_t *codes, int16_t *w)
{
	int32_t offset = kn_tile_offset(format);

	for (uint32_t r = 0; r < KN_TILE_ROWS; r++)
		for (uint32_t j = 0; j < 8; j++)
			for (uint32_t i = 0; i < 4; i++)
				w[32 * r + 4 * j + i] =
				    (int16_t)((int32_t)kn_tile_code(format, codes, r, j, i) - offset);
}

static int32_t dot16(const int16_t *w, const int8_t *q)
{
	int32_t sum = 0;

	for (int k = 0; k < 16; k++)
		sum += w[k] * q[k];
	return sum;
}

static void run_tile(enum kn_tile_format format, uint32_t rows, const uint8_t *tile,
    uint32_t blocks, const struct kn_panel_block *panel, float *out)
{
	memset(out, 0, rows * KN_TILE_ROWS * sizeof *out);
	for (uint32_t b = 0; b < blocks; b++) {
		const struct kn_panel_block *x = panel + (size_t)b * rows;
		const uint16_t *scales, *minimums;
		const uint8_t *codes;
		int16_t w[KN_TILE_ROWS * KN_BLOCK_COLUMNS];

		kn_tile_block(format, tile, b, &scales, &minimums, &codes);
		unpack_block(format, codes, w);
		for (uint32_t r = 0; r < KN_TILE_ROWS; r++) {
			float scale = kn_half_to_float(scales[r]);
			float second = minimums ? kn_half_to_float(minimums[r]) : 0.0f;

			for (uint32_t n = 0; n < rows; n++) {
				float *sum = &out[KN_TILE_ROWS * n + r];
				float low = (float)dot16(w + 32 * r, x[n].q);
				float high = (float)dot16(w + 32 * r + 16, x[n].q + 16);

				low *= x[n].scale[0];
				if (format == KN_TILE_P6S) {
					*sum = fmaf(low, scale, *sum);
					*sum = fmaf(high * x[n].scale[1], second, *sum);
					continue;
				}
				*sum = fmaf(fmaf(high, x[n].scale[1], low), scale, *sum);
				if (minimums) *sum = fmaf(second, x[n].sum, *sum);
			}
		}
	}
}

static void run_tile_f32(
    uint32_t rows, const float *tile, uint32_t columns, const float *x, size_t x_stride, float *out)
{
	for (uint32_t n = 0; n < rows; n++) {
		float sum[KN_TILE_ROWS] = {0};

		for (uint32_t k = 0; k < columns; k++) {
			float a = x[x_stride * n + k];

			for (int r = 0; r < KN_TILE_ROWS; r++)
				sum[r] += tile[(size_t)k * KN_TILE_ROWS + (size_t)r] * a;
		}
		memcpy(out + KN_TILE_ROWS * n, sum, sizeof sum);
	}
}

#define KERNELS kn_matmul_plain
#include "kernels/cpu/matmul_table.h"
