/* Block layouts as in GGUF. An element is scale * (code - offset) + minimum, rounded once for the
 * product and once for the sum. */
#include <string.h>

#include "kernels/backend.h"
#include "kernels/cpu/half.h"
#include "kernels/weight_block.h"

static uint16_t read_u16(const uint8_t *p)
{
	return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t read_u32(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

struct type_layout {
	enum kn_weight_type type;
	uint32_t elements, bytes; /* of a block */
};

static const struct type_layout layouts[] = {
    {KN_F32, 1, 4},
    {KN_F16, 1, 2},
    {KN_BF16, 1, 2},
    {KN_Q4_0, 32, 18},
    {KN_Q4_1, 32, 20},
    {KN_Q5_0, 32, 22},
    {KN_Q5_1, 32, 24},
    {KN_Q8_0, 32, 34},
    {KN_Q4_K, 256, 144},
    {KN_Q5_K, 256, 176},
    {KN_Q6_K, 256, 210},
};

uint64_t kn_weight_row_bytes(enum kn_weight_type type, uint32_t columns)
{
	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
		const struct type_layout *layout = &layouts[i];

		if (layout->type != type) continue;
		if (columns % layout->elements != 0) return 0;
		return (uint64_t)(columns / layout->elements) * layout->bytes;
	}
	return 0;
}

int kn_weight_is_quantised(enum kn_weight_type type)
{
	return type != KN_F32 && type != KN_F16 && type != KN_BF16;
}

/* 16 bytes of nibbles: the low ones are elements 0 to 15, the high ones 16 to 31. */
static void read_nibbles(const uint8_t *p, uint8_t *code)
{
	for (int i = 0; i < 16; i++) {
		code[i] = p[i] & 15;
		code[i + 16] = p[i] >> 4;
	}
}

static void add_fifth_bits(const uint8_t *p, uint8_t *code)
{
	uint32_t bits = read_u32(p);

	for (int i = 0; i < 32; i++)
		code[i] = (uint8_t)(code[i] | (bits >> i & 1) << 4);
}

static void set_scale(struct kn_block32 *block, float scale, float minimum, int32_t offset)
{
	block->scale[0] = block->scale[1] = scale;
	block->minimum = minimum;
	block->offset = offset;
}

/* The 6-bit scale and minimum of sub-block `j` of Q4_K and Q5_K, from their 12 packed bytes. */
static void read_k_scale(const uint8_t *q, uint32_t j, uint32_t *scale, uint32_t *minimum)
{
	if (j < 4) {
		*scale = q[j] & 63u;
		*minimum = q[j + 4] & 63u;
	} else {
		*scale = (q[j + 4] & 15u) | (uint32_t)(q[j - 4] >> 6) << 4;
		*minimum = (uint32_t)(q[j + 4] >> 4) | (uint32_t)(q[j] >> 6) << 4;
	}
}

/* Q4_K (144 bytes: d, dmin, scales[12], nibbles[128]) and Q5_K (176: with high bits[32] between).
 */
static void read_k45(const uint8_t *p, int five, uint32_t j, struct kn_block32 *block)
{
	const uint8_t *nibbles = p + (five ? 48 : 16) + 32 * (j / 2), *high = p + 16;
	uint32_t scale, minimum;

	read_k_scale(p + 4, j, &scale, &minimum);
	for (int i = 0; i < 32; i++) {
		uint32_t code = nibbles[i] >> (4 * (j & 1)) & 15u;

		if (five) code |= (uint32_t)(high[i] >> j & 1) << 4;
		block->code[i] = (uint8_t)code;
	}
	set_scale(block, kn_half_to_float(read_u16(p)) * (float)scale,
	    -(kn_half_to_float(read_u16(p + 2)) * (float)minimum), 0);
}

/* Q6_K (210 bytes): low nibbles[128], pairs of high bits[64], int8 scales[16], d. */
static void read_k6(const uint8_t *p, uint32_t j, struct kn_block32 *block)
{
	uint32_t half = j / 4, k = j % 4;
	const uint8_t *low = p + 64 * half + 32 * (k & 1), *high = p + 128 + 32 * half;
	const uint8_t *scales = p + 192 + 8 * half + 2 * k;
	float d = kn_half_to_float(read_u16(p + 208));

	for (int i = 0; i < 32; i++)
		block->code[i] = (uint8_t)((low[i] >> (4 * (k >> 1)) & 15) | (high[i] >> (2 * k) & 3) << 4);
	set_scale(block, 0.0f, 0.0f, 32);
	block->scale[0] = d * (float)(int8_t)scales[0];
	block->scale[1] = d * (float)(int8_t)scales[1];
}

void kn_block32_read(
    enum kn_weight_type type, const void *row, uint32_t index, struct kn_block32 *block)
{
	const uint8_t *p = row;

	switch (type) {
	case KN_Q4_0:
		p += (size_t)index * 18;
		read_nibbles(p + 2, block->code);
		set_scale(block, kn_half_to_float(read_u16(p)), 0.0f, 8);
		return;
	case KN_Q4_1:
		p += (size_t)index * 20;
		read_nibbles(p + 4, block->code);
		set_scale(block, kn_half_to_float(read_u16(p)), kn_half_to_float(read_u16(p + 2)), 0);
		return;
	case KN_Q5_0:
		p += (size_t)index * 22;
		read_nibbles(p + 6, block->code);
		add_fifth_bits(p + 2, block->code);
		set_scale(block, kn_half_to_float(read_u16(p)), 0.0f, 16);
		return;
	case KN_Q5_1:
		p += (size_t)index * 24;
		read_nibbles(p + 8, block->code);
		add_fifth_bits(p + 4, block->code);
		set_scale(block, kn_half_to_float(read_u16(p)), kn_half_to_float(read_u16(p + 2)), 0);
		return;
	case KN_Q8_0:
		p += (size_t)index * 34;
		for (int i = 0; i < 32; i++)
			block->code[i] = p[2 + i] ^ 0x80;
		set_scale(block, kn_half_to_float(read_u16(p)), 0.0f, 128);
		return;
	case KN_Q4_K:
		read_k45(p + (size_t)(index / 8) * 144, 0, index % 8, block);
		return;
	case KN_Q5_K:
		read_k45(p + (size_t)(index / 8) * 176, 1, index % 8, block);
		return;
	case KN_Q6_K:
		read_k6(p + (size_t)(index / 8) * 210, index % 8, block);
		return;
	case KN_F32:
	case KN_F16:
	case KN_BF16:
		break;
	}
	memset(block, 0, sizeof *block);
}

static void dequantise_floats(enum kn_weight_type type, const uint8_t *p, float *out, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (type == KN_F32)
			out[i] = kn_bits_float(read_u32(p + 4 * (size_t)i));
		else if (type == KN_F16)
			out[i] = kn_half_to_float(read_u16(p + 2 * (size_t)i));
		else
			out[i] = kn_bits_float((uint32_t)read_u16(p + 2 * (size_t)i) << 16);
	}
}

enum kv_status kn_dequantise_row(
    enum kn_weight_type type, const void *row, float *out, uint32_t columns)
{
	if (kn_weight_row_bytes(type, columns) == 0)
		return kv_fail(KV_UNSUPPORTED,
		    "weight type %d with %u columns: the type is unknown or its block does not divide the "
		    "row",
		    (int)type, columns);
	if (!kn_weight_is_quantised(type)) {
		dequantise_floats(type, row, out, columns);
		return KV_OK;
	}
	for (uint32_t b = 0; b < columns / 32; b++) {
		struct kn_block32 block;

		kn_block32_read(type, row, b, &block);
		for (int i = 0; i < 32; i++) {
			float product = block.scale[i / 16] * (float)((int32_t)block.code[i] - block.offset);

			out[32 * (size_t)b + (size_t)i] = product + block.minimum;
		}
	}
	return KV_OK;
}
