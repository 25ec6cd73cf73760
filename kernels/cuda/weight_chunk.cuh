/* Reading GGUF blocks on the device, eight elements at a time: for kernels alone.
 *
 * A row is cut into chunks of eight elements, two runs of four: [first, first + 4) and
 * [first + gap, first + gap + 4). In the quantised types the two are the low and the high nibbles
 * of the same four bytes, so that a chunk is one 4-byte load of codes, and 32 chunks, a warp's, are
 * 256 columns:
 *
 *   types            gap   chunks    of
 *   Q4_0 to Q8_0      16        4    a block of 32
 *   Q4_K, Q5_K        32        8    a pair of sub-blocks, 64
 *   Q6_K              64       16    half a block, 128
 *   F32, F16, BF16     4        1    8
 *
 * Blocks of Q4_0, Q5_0, Q8_0 and Q6_K lie at multiples of 2 bytes only, hence loads of 16 bits; all
 * lanes of a warp together read whole sectors either way.
 *
 * Element i of a run is code[i] * scale + minimum, all of them floats and exact to the last bit as
 * kn_dequantise_row has them: code with the offset taken away, scale the product of the block's and
 * the sub-block's. A code becomes a float by lying in the mantissa of 2^23, from where a
 * multiply-add takes it: two operations, where a conversion runs at a quarter of the rate. That
 * matters: on a GPU whose memory brings 20 bytes a clock to a multiprocessor, those are 37 weights
 * of Q4_K.
 */
#ifndef KN_CUDA_WEIGHT_CHUNK_CUH
#define KN_CUDA_WEIGHT_CHUNK_CUH

#include <cuda_fp16.h>

#include "kernels/cuda/compat.h"
#include "kernels/op_arguments.h"

#define KN_WEIGHT_TYPES(X)                                                                         \
	X(KN_F32)                                                                                      \
	X(KN_F16)                                                                                      \
	X(KN_BF16)                                                                                     \
	X(KN_Q4_0)                                                                                     \
	X(KN_Q4_1)                                                                                     \
	X(KN_Q5_0)                                                                                     \
	X(KN_Q5_1)                                                                                     \
	X(KN_Q8_0)                                                                                     \
	X(KN_Q4_K)                                                                                     \
	X(KN_Q5_K)                                                                                     \
	X(KN_Q6_K)

struct kn_chunk {
	float code[8];
	float scale[2];   /* of each run; not set for F32, F16 and BF16 */
	float minimum[2]; /* set where the shape has_minimum */
};

template <int TYPE> struct kn_chunk_shape {
	static constexpr bool is_scaled = TYPE != KN_F32 && TYPE != KN_F16 && TYPE != KN_BF16;
	static constexpr bool has_minimum =
	    TYPE == KN_Q4_1 || TYPE == KN_Q5_1 || TYPE == KN_Q4_K || TYPE == KN_Q5_K;
	/* Both runs of a chunk have the same scale and minimum. */
	static constexpr bool has_one_scale =
	    is_scaled && TYPE != KN_Q4_K && TYPE != KN_Q5_K && TYPE != KN_Q6_K;
	static constexpr uint32_t gap = !is_scaled ? 4 : has_one_scale ? 16 : TYPE == KN_Q6_K ? 64 : 32;
	/* A row's, a multiple of two for every 32 columns. */
	static constexpr uint32_t bytes_of_256 = TYPE == KN_F32                       ? 1024
	                                         : TYPE == KN_F16 || TYPE == KN_BF16  ? 512
	                                         : TYPE == KN_Q4_0 || TYPE == KN_Q4_K ? 144
	                                         : TYPE == KN_Q4_1                    ? 160
	                                         : TYPE == KN_Q5_0 || TYPE == KN_Q5_K ? 176
	                                         : TYPE == KN_Q5_1                    ? 192
	                                         : TYPE == KN_Q8_0                    ? 272
	                                                                              : 210;
};

/* The row `row` of `columns` elements. */
template <int TYPE>
static __device__ inline const uint8_t *kn_chunk_row(
    const uint8_t *data, uint32_t columns, uint32_t row)
{
	return data + columns * static_cast<size_t>(kn_chunk_shape<TYPE>::bytes_of_256) / 256 * row;
}

/* First column of a chunk. */
template <int TYPE> static __device__ inline uint32_t kn_chunk_column(uint32_t chunk)
{
	constexpr uint32_t gap = kn_chunk_shape<TYPE>::gap, runs = gap / 4;

	return chunk / runs * (2 * gap) + chunk % runs * 4;
}

static __device__ inline uint32_t kn_load_u16(const uint8_t *at)
{
	return *reinterpret_cast<const uint16_t *>(at);
}

/* Four bytes at a multiple of two. */
static __device__ inline uint32_t kn_load_u32(const uint8_t *at)
{
	return kn_load_u16(at) | kn_load_u16(at + 2) << 16;
}

static __device__ inline float kn_half_bits(uint32_t bits)
{
	return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

/* The float of BITS bits at bit `at` ≤ 23 - BITS of a word, less the offset: they become the
 * mantissa where they are, and one multiply-add brings them down. */
template <int BITS>
static __device__ inline float kn_code_in_place(uint32_t word, uint32_t at, float offset)
{
	float raw = __uint_as_float(0x4b000000u | (word & (((1u << BITS) - 1) << at)));
	float down = 1.0f / static_cast<float>(1u << at);

	return fmaf(raw, down, -(8388608.0f * down + offset));
}

/* The eight nibbles of four bytes: the low ones are the first run. */
static __device__ inline void kn_chunk_nibbles(kn_chunk *chunk, uint32_t nibbles, float offset)
{
	uint32_t upper = nibbles >> 12;

#pragma unroll
	for (uint32_t i = 0; i < 8; i++)
		chunk->code[i / 2 + i % 2 * 4] = i < 5 ? kn_code_in_place<4>(nibbles, 4 * i, offset)
		                                       : kn_code_in_place<4>(upper, 4 * i - 12, offset);
}

/* A byte for each element of the two runs. */
static __device__ inline void kn_chunk_bytes(
    kn_chunk *chunk, uint32_t first, uint32_t second, float offset)
{
#pragma unroll
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t shift = i < 2 ? 0 : 16, at = 8 * i - shift;

		chunk->code[i] = kn_code_in_place<8>(first >> shift, at, offset);
		chunk->code[4 + i] = kn_code_in_place<8>(second >> shift, at, offset);
	}
}

/* Nibbles as in kn_chunk_nibbles, and bits to go above them: in the lowest bits of the bytes of
 * `first` and `second`, where `mask` has them. */
static __device__ inline void kn_chunk_nibbles_and_bits(
    kn_chunk *chunk, uint32_t nibbles, uint32_t first, uint32_t second, uint32_t mask, float offset)
{
	kn_chunk_bytes(chunk, (nibbles & 0x0f0f0f0fu) | (first & mask) << 4,
	    (nibbles >> 4 & 0x0f0f0f0fu) | (second & mask) << 4, offset);
}

/* The four lowest bits, each the lowest of a byte: copies 7 bits apart do not meet. */
static __device__ inline uint32_t kn_spread_bits(uint32_t bits)
{
	return (bits & 15u) * 0x00204081u;
}

/* Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: [f16 scale][f16 minimum][32 high bits][codes]. */
template <int TYPE>
static __device__ inline void kn_chunk_read_32(kn_chunk *chunk, const uint8_t *row, uint32_t index)
{
	constexpr bool has_minimum = kn_chunk_shape<TYPE>::has_minimum;
	constexpr bool five = TYPE == KN_Q5_0 || TYPE == KN_Q5_1, eight = TYPE == KN_Q8_0;
	constexpr uint32_t codes_at = 2 + (has_minimum ? 2 : 0) + (five ? 4 : 0);
	constexpr uint32_t bytes = codes_at + (eight ? 32 : 16);
	constexpr float offset = has_minimum ? 0.0f : eight ? 128.0f : five ? 16.0f : 8.0f;
	const uint8_t *block = row + static_cast<size_t>(index / 4) * bytes;
	uint32_t at = index % 4 * 4, codes = kn_load_u32(block + codes_at + at);

	chunk->scale[0] = chunk->scale[1] = kn_half_bits(kn_load_u16(block));
	if (has_minimum) chunk->minimum[0] = chunk->minimum[1] = kn_half_bits(kn_load_u16(block + 2));
	if (eight) {
		uint32_t more = kn_load_u32(block + codes_at + 16 + at);

		kn_chunk_bytes(chunk, codes ^ 0x80808080u, more ^ 0x80808080u, offset);
	} else if (five) {
		uint32_t high = kn_load_u32(block + codes_at - 4) >> at;

		kn_chunk_nibbles_and_bits(
		    chunk, codes, kn_spread_bits(high), kn_spread_bits(high >> 16), 0x01010101u, offset);
	} else {
		kn_chunk_nibbles(chunk, codes, offset);
	}
}

/* The 6-bit scales and minimums of sub-blocks 2 * pair and 2 * pair + 1 out of their 12 bytes: of
 * both at once, in the two lowest bytes. */
static __device__ inline void kn_chunk_k_scales(
    uint4 head, uint32_t pair, uint32_t *scales, uint32_t *minimums)
{
	uint32_t shift = 16 * (pair & 1);
	uint32_t s = head.y >> shift, m = head.z >> shift, more = head.w >> shift;
	uint32_t low_s = (more & 0x0f0fu) | (s >> 2 & 0x3030u);
	uint32_t low_m = (more >> 4 & 0x0f0fu) | (m >> 2 & 0x3030u);

	*scales = pair < 2 ? s & 0x3f3fu : low_s;
	*minimums = pair < 2 ? m & 0x3f3fu : low_m;
}

/* Q4_K: [f16 d][f16 dmin][12 bytes of scales][128 of nibbles]; Q5_K with [32 of high bits] before
 * the nibbles. Blocks are multiples of 16 bytes. */
template <int TYPE>
static __device__ inline void kn_chunk_read_k45(kn_chunk *chunk, const uint8_t *row, uint32_t index)
{
	constexpr bool five = TYPE == KN_Q5_K;
	const uint8_t *block = row + static_cast<size_t>(index / 32) * (five ? 176 : 144);
	uint32_t pair = index % 32 / 8, at = index % 8 * 4;
	uint4 head = *reinterpret_cast<const uint4 *>(block);
	uint32_t scales, minimums;
	float d = kn_half_bits(head.x & 0xffffu), least = kn_half_bits(head.x >> 16);
	uint32_t codes = *reinterpret_cast<const uint32_t *>(block + (five ? 48 : 16) + 32 * pair + at);
	uint32_t high = five ? *reinterpret_cast<const uint32_t *>(block + 16 + at) >> (2 * pair) : 0;

	kn_chunk_k_scales(head, pair, &scales, &minimums);
	chunk->scale[0] = d * kn_code_in_place<8>(scales, 0, 0.0f);
	chunk->scale[1] = d * kn_code_in_place<8>(scales, 8, 0.0f);
	chunk->minimum[0] = -(least * kn_code_in_place<8>(minimums, 0, 0.0f));
	chunk->minimum[1] = -(least * kn_code_in_place<8>(minimums, 8, 0.0f));
	if (five)
		kn_chunk_nibbles_and_bits(chunk, codes, high, high >> 1, 0x01010101u, 0.0f);
	else
		kn_chunk_nibbles(chunk, codes, 0.0f);
}

/* Q6_K: [128 of low nibbles][64 of pairs of high bits][16 int8 scales][f16 d]. */
static __device__ inline void kn_chunk_read_k6(kn_chunk *chunk, const uint8_t *row, uint32_t index)
{
	const uint8_t *block = row + static_cast<size_t>(index / 32) * 210;
	uint32_t half = index % 32 / 16, at = index % 16 * 4, quarter = at / 32;
	const uint8_t *scales = block + 192 + 8 * half + 2 * quarter + at % 32 / 16;
	float d = kn_half_bits(kn_load_u16(block + 208));
	uint32_t high = kn_load_u32(block + 128 + 32 * half + at % 32) >> (2 * quarter);

	chunk->scale[0] = d * static_cast<float>(static_cast<int8_t>(scales[0]));
	chunk->scale[1] = d * static_cast<float>(static_cast<int8_t>(scales[4]));
	kn_chunk_nibbles_and_bits(
	    chunk, kn_load_u32(block + 64 * half + at), high, high >> 4, 0x03030303u, 32.0f);
}

/* F32, F16, BF16: rows are multiples of 32 elements, so chunks are of 16 bytes at least. */
template <int TYPE>
static __device__ inline void kn_chunk_read_floats(
    kn_chunk *chunk, const uint8_t *row, uint32_t index)
{
	if (TYPE == KN_F32) {
		const float4 *from = reinterpret_cast<const float4 *>(row) + 2 * static_cast<size_t>(index);
		float4 low = from[0], high = from[1];
		float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};

#pragma unroll
		for (int i = 0; i < 8; i++)
			chunk->code[i] = values[i];
		return;
	}
	uint4 words = reinterpret_cast<const uint4 *>(row)[index];
	uint32_t pairs[4] = {words.x, words.y, words.z, words.w};

#pragma unroll
	for (int i = 0; i < 8; i++) {
		uint32_t bits = pairs[i / 2] >> (16 * (i % 2)) & 0xffffu;

		chunk->code[i] = TYPE == KN_F16 ? kn_half_bits(bits) : __uint_as_float(bits << 16);
	}
}

/* Chunk `index` of a row. `row` is 16-byte aligned for F32, F16, BF16, Q4_K and Q5_K, 2-byte for
 * the others: what whole rows after a 256-byte aligned start are. */
template <int TYPE>
static __device__ inline void kn_chunk_read(kn_chunk *chunk, const uint8_t *row, uint32_t index)
{
	if constexpr (!kn_chunk_shape<TYPE>::is_scaled)
		kn_chunk_read_floats<TYPE>(chunk, row, index);
	else if constexpr (TYPE == KN_Q6_K)
		kn_chunk_read_k6(chunk, row, index);
	else if constexpr (TYPE == KN_Q4_K || TYPE == KN_Q5_K)
		kn_chunk_read_k45<TYPE>(chunk, row, index);
	else
		kn_chunk_read_32<TYPE>(chunk, row, index);
}

/* Element i < 8 of a chunk, rounded as kn_dequantise_row rounds: product, then sum. */
template <int TYPE> static __device__ inline float kn_chunk_element(const kn_chunk *chunk, int i)
{
	if (!kn_chunk_shape<TYPE>::is_scaled) return chunk->code[i];
	float product = __fmul_rn(chunk->scale[i / 4], chunk->code[i]);

	return __fadd_rn(product, kn_chunk_shape<TYPE>::has_minimum ? chunk->minimum[i / 4] : 0.0f);
}

#endif
