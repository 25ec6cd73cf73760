/* Packed weights of the CPU backend.
 *
 * A matrix is a list of slabs, one for each part; a slab is cut into tiles of 16 rows (the last one
 * filled up with zero rows), and a tile is one stream of blocks of 32 columns:
 *
 *   format    codes          bytes of a block of 32 columns × 16 rows            GGUF types
 *   P4M       u4             [16 f16 scale][16 f16 minimum][4×64 nibbles]        Q4_1, Q4_K
 *   P4S       u4 - 8         per two blocks [2×16 f16 scale], then [4×64] each   Q4_0
 *   P5S       u5 - 16        per two blocks [2×16 f16 scale], then [4×64][64]    Q5_0
 *   P5M       u5             [16 f16 scale][16 f16 minimum][4×64][64 high bits]  Q5_1, Q5_K
 *   P6S       u6 - 32        [16 f16 scale of columns 0-15][of 16-31][4×64][2×64] Q6_K
 *   P8S       u8 - 128       per two blocks [2×16 f16 scale], then [8×64] each   Q8_0, F32, F16,
 * BF16 F32       float          [columns][16 rows]                                  all, at fp32
 * precision
 *
 * Sixty-four bytes of codes are 16 rows of 4 columns: byte 4r + i is row r, column 4j + i of code
 * register j = 0…7, so that one dot product instruction against 4 broadcast activations advances 16
 * rows. Nibble line i holds register i in its low nibbles and register i + 4 in its high ones. Bit
 * j of a byte of the high-bit line is bit 4 of register j; the two-bit lines of P6S hold, in field
 * j % 4 of line j / 4, bits 4 and 5 of register j.
 *
 * The K types' scale products are rounded to f16 (relative 2^-11); F32, F16 and BF16 are rounded to
 * 8 bits by blocks of 32 columns. All other types keep their exact values.
 */
#ifndef KN_CPU_WEIGHT_H
#define KN_CPU_WEIGHT_H

#include "kernels/backend.h"

enum kn_tile_format {
	KN_TILE_P4M,
	KN_TILE_P4S,
	KN_TILE_P5S,
	KN_TILE_P5M,
	KN_TILE_P6S,
	KN_TILE_P8S,
	KN_TILE_QUANTISED_FORMATS,
	KN_TILE_F32 = KN_TILE_QUANTISED_FORMATS
};

enum { KN_TILE_ROWS = 16, KN_BLOCK_COLUMNS = 32 };

/* 1 where two blocks share a line of scales and there is no minimum. */
static inline int kn_tile_is_paired(enum kn_tile_format format)
{
	return format == KN_TILE_P4S || format == KN_TILE_P5S || format == KN_TILE_P8S;
}

/* Bytes of the codes of one block of a quantised format. */
static inline uint32_t kn_tile_code_bytes(enum kn_tile_format format)
{
	switch (format) {
	case KN_TILE_P4M:
	case KN_TILE_P4S:
		return 256;
	case KN_TILE_P5S:
	case KN_TILE_P5M:
		return 320;
	case KN_TILE_P6S:
		return 384;
	case KN_TILE_P8S:
		return 512;
	case KN_TILE_F32:
		break;
	}
	return 0;
}

/* What is taken from each code: a power of two, or 0 where there is a minimum instead. */
static inline int32_t kn_tile_offset(enum kn_tile_format format)
{
	switch (format) {
	case KN_TILE_P4S:
		return 8;
	case KN_TILE_P5S:
		return 16;
	case KN_TILE_P6S:
		return 32;
	case KN_TILE_P8S:
		return 128;
	case KN_TILE_P4M:
	case KN_TILE_P5M:
	case KN_TILE_F32:
		break;
	}
	return 0;
}

struct kn_slab {
	enum kn_tile_format format;
	uint32_t first_row, rows; /* of the whole matrix */
	uint32_t tiles;
	size_t tile_bytes;
	uint8_t *tile; /* [tiles][tile_bytes], 64-byte aligned */
};

struct kn_weight_chunk;

struct kn_weight {
	struct kn_backend *backend;
	struct kn_weight_chunk *chunk;
	enum kn_precision precision;
	uint32_t rows, columns, tiles;
	uint64_t bytes;
	uint32_t slab_count;
	struct kn_slab *slabs;
};

enum kv_status kn_cpu_weight_pack(struct kn_backend *backend, const struct kn_weight_part *parts,
    uint32_t part_count, uint32_t columns, enum kn_precision precision, struct kn_weight **weight);
void kn_cpu_weight_destroy(struct kn_backend *backend, struct kn_weight *weight);
uint64_t kn_cpu_weight_bytes(const struct kn_weight *weight);

/* Row `row` < weight->rows as floats, out [columns]. */
void kn_weight_read_row(const struct kn_weight *weight, uint32_t row, float *out);

/* The scales and codes of block `block` of a tile; *minimums is NULL for a paired format and the
 * scales of columns 16 to 31 for P6S. Arrays of 16 f16. */
void kn_tile_block(enum kn_tile_format format, const uint8_t *tile, uint32_t block,
    const uint16_t **scales, const uint16_t **minimums, const uint8_t **codes);

/* Code of column 4 * j + i of row r out of a block's codes. */
static inline uint32_t kn_tile_code(
    enum kn_tile_format format, const uint8_t *codes, uint32_t r, uint32_t j, uint32_t i)
{
	uint32_t at = 4 * r + i;

	if (format == KN_TILE_P8S) return codes[64 * j + at];
	uint32_t code = codes[64 * (j & 3) + at] >> (4 * (j >> 2)) & 15u;

	if (format == KN_TILE_P5S || format == KN_TILE_P5M)
		code |= (uint32_t)(codes[256 + at] >> j & 1) << 4;
	if (format == KN_TILE_P6S)
		code |= (uint32_t)(codes[256 + 64 * (j >> 2) + at] >> (2 * (j & 3)) & 3) << 4;
	return code;
}

#endif
