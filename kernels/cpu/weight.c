#include "kernels/cpu/weight.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/backend_cpu.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/memory.h"
#include "kernels/weight_block.h"

/* Packed weights of a model are dozens of matrices of around a megabyte: they are cut from chunks,
 * so that all of them lie on huge pages. */
static const size_t chunk_size = (size_t)8 << 20;
static const size_t own_chunk_from = (size_t)4 << 20;

enum { MAX_WEIGHT_ROWS = 1 << 22, MAX_PARTS = 64, PACK_TILES = 8 };

struct kn_weight_chunk {
	struct kn_weight_chunk *next;
	size_t used, size;
	uint32_t weights; /* cut from it and not destroyed */
	uint8_t *memory;
};

static struct kn_weight_chunk *add_chunk(struct kn_backend *backend, size_t size)
{
	struct kn_weight_chunk *chunk = kv_alloc_zero(backend->allocator, sizeof *chunk);

	if (!chunk) return NULL;
	chunk->memory = kn_memory_create(backend->allocator, size);
	if (!chunk->memory) {
		kv_free(backend->allocator, chunk);
		return NULL;
	}
	chunk->size = size;
	chunk->next = backend->weight_chunks;
	backend->weight_chunks = chunk;
	return chunk;
}

static struct kn_weight_chunk *find_chunk(struct kn_backend *backend, size_t bytes)
{
	if (bytes >= own_chunk_from) return add_chunk(backend, bytes);
	for (struct kn_weight_chunk *c = backend->weight_chunks; c; c = c->next)
		if (c->size - c->used >= bytes) return c;
	return add_chunk(backend, chunk_size);
}

static void release_chunk(struct kn_backend *backend, struct kn_weight_chunk *chunk)
{
	if (chunk->weights > 0) return;
	struct kn_weight_chunk **link = &backend->weight_chunks;

	while (*link && *link != chunk)
		link = &(*link)->next;
	if (*link) *link = chunk->next;
	kn_memory_destroy(backend->allocator, chunk->memory);
	kv_free(backend->allocator, chunk);
}

static enum kn_tile_format format_of(enum kn_weight_type type, enum kn_precision precision)
{
	if (precision == KN_PRECISION_FP32) return KN_TILE_F32;
	switch (type) {
	case KN_Q4_0:
		return KN_TILE_P4S;
	case KN_Q4_1:
	case KN_Q4_K:
		return KN_TILE_P4M;
	case KN_Q5_0:
		return KN_TILE_P5S;
	case KN_Q5_1:
	case KN_Q5_K:
		return KN_TILE_P5M;
	case KN_Q6_K:
		return KN_TILE_P6S;
	case KN_Q8_0:
	case KN_F32:
	case KN_F16:
	case KN_BF16:
		break;
	}
	return KN_TILE_P8S;
}

static size_t tile_bytes(enum kn_tile_format format, uint32_t columns)
{
	size_t blocks = columns / KN_BLOCK_COLUMNS;

	if (format == KN_TILE_F32) return (size_t)columns * KN_TILE_ROWS * sizeof(float);
	size_t scale_lines = kn_tile_is_paired(format) ? (blocks + 1) / 2 : blocks;

	return 64 * scale_lines + blocks * kn_tile_code_bytes(format);
}

void kn_tile_block(enum kn_tile_format format, const uint8_t *tile, uint32_t block,
    const uint16_t **scales, const uint16_t **minimums, const uint8_t **codes)
{
	size_t code_bytes = kn_tile_code_bytes(format);
	const uint8_t *line;

	if (kn_tile_is_paired(format)) {
		line = tile + (block / 2) * (64 + 2 * code_bytes);
		*scales = (const uint16_t *)(const void *)(line + 32 * (block & 1));
		*minimums = NULL;
		*codes = line + 64 + (block & 1) * code_bytes;
	} else {
		line = tile + block * (64 + code_bytes);
		*scales = (const uint16_t *)(const void *)line;
		*minimums = (const uint16_t *)(const void *)(line + 32);
		*codes = line + 64;
	}
}

/* Round 32 floats to 8 bits: the scale is rounded to f16 first, so that codes fit the scale in use.
 */
static void quantise_floats(const float *x, struct kn_block32 *block)
{
	float largest = 0.0f;

	for (int i = 0; i < 32; i++)
		largest = fmaxf(largest, fabsf(x[i]));
	float scale = kn_half_to_float(kn_half_from_float(largest / 127.0f));

	block->scale[0] = block->scale[1] = scale;
	block->minimum = 0.0f;
	block->offset = 128;
	for (int i = 0; i < 32; i++) {
		float code = scale > 0.0f ? rintf(x[i] / scale) : 0.0f;

		if (!(code > -127.0f)) code = -127.0f;
		if (code > 127.0f) code = 127.0f;
		block->code[i] = (uint8_t)((int32_t)code + 128);
	}
}

static void read_block(
    enum kn_weight_type type, const uint8_t *row, uint32_t b, struct kn_block32 *block)
{
	if (kn_weight_is_quantised(type)) {
		kn_block32_read(type, row, b, block);
		return;
	}
	float x[KN_BLOCK_COLUMNS];

	(void)kn_dequantise_row(
	    type, row + kn_weight_row_bytes(type, KN_BLOCK_COLUMNS) * b, x, KN_BLOCK_COLUMNS);
	quantise_floats(x, block);
}

/* Put row r of a block into its (zeroed) place in the tile. */
static void place_block(enum kn_tile_format format, uint8_t *tile, uint32_t b, uint32_t r,
    const struct kn_block32 *block)
{
	const uint16_t *read_scales, *read_minimums;
	const uint8_t *read_codes;

	kn_tile_block(format, tile, b, &read_scales, &read_minimums, &read_codes);
	/* The tile is ours to write; the helper only serves readers too. */
	uint16_t *scales = (uint16_t *)(void *)(tile + ((const uint8_t *)read_scales - tile));
	uint8_t *codes = tile + (read_codes - tile);

	scales[r] = kn_half_from_float(block->scale[0]);
	if (format == KN_TILE_P6S)
		scales[KN_TILE_ROWS + r] = kn_half_from_float(block->scale[1]);
	else if (read_minimums)
		scales[KN_TILE_ROWS + r] = kn_half_from_float(block->minimum);
	for (uint32_t k = 0; k < KN_BLOCK_COLUMNS; k++) {
		uint32_t v = block->code[k], j = k / 4, at = 4 * r + k % 4;

		if (format == KN_TILE_P8S) {
			codes[64 * j + at] = (uint8_t)v;
			continue;
		}
		uint8_t *nibble = &codes[64 * (j & 3) + at];

		*nibble = (uint8_t)(*nibble | (v & 15) << (4 * (j >> 2)));
		if (format == KN_TILE_P5S || format == KN_TILE_P5M)
			codes[256 + at] = (uint8_t)(codes[256 + at] | (v >> 4 & 1) << j);
		if (format == KN_TILE_P6S) {
			uint8_t *pair = &codes[256 + 64 * (j >> 2) + at];

			*pair = (uint8_t)(*pair | (v >> 4 & 3) << (2 * (j & 3)));
		}
	}
}

struct pack_job {
	const struct kn_weight_part *part;
	const struct kn_slab *slab;
	uint32_t columns;
	uint64_t row_bytes;
};

static void pack_float_row(const struct pack_job *job, const uint8_t *row, float *tile, uint32_t r)
{
	float x[256];
	/* 256 columns at a time where the type's block allows it, 32 otherwise. */
	uint32_t step = job->columns % 256 == 0 ? 256 : 32;

	for (uint32_t k = 0; k < job->columns; k += step) {
		(void)kn_dequantise_row(job->part->type,
		    row + kn_weight_row_bytes(job->part->type, step) * (k / step), x, step);
		for (uint32_t i = 0; i < step; i++)
			tile[(size_t)(k + i) * KN_TILE_ROWS + r] = x[i];
	}
}

static void pack_tiles(void *context, uint32_t task, uint32_t thread)
{
	const struct pack_job *job = context;
	const struct kn_slab *slab = job->slab;

	(void)thread;
	for (uint32_t t = task * PACK_TILES; t < (task + 1) * PACK_TILES && t < slab->tiles; t++) {
		uint8_t *tile = slab->tile + slab->tile_bytes * t;

		memset(tile, 0, slab->tile_bytes);
		for (uint32_t r = 0; r < KN_TILE_ROWS && KN_TILE_ROWS * t + r < slab->rows; r++) {
			const uint8_t *row =
			    (const uint8_t *)job->part->data + job->row_bytes * (KN_TILE_ROWS * t + r);

			if (slab->format == KN_TILE_F32) {
				pack_float_row(job, row, (float *)(void *)tile, r);
				continue;
			}
			for (uint32_t b = 0; b < job->columns / KN_BLOCK_COLUMNS; b++) {
				struct kn_block32 block;

				read_block(job->part->type, row, b, &block);
				place_block(slab->format, tile, b, r, &block);
			}
		}
	}
}

static enum kv_status check_parts(
    const struct kn_weight_part *parts, uint32_t part_count, uint32_t columns)
{
	uint64_t rows = 0;

	if (part_count == 0 || part_count > MAX_PARTS)
		return kv_fail(KV_UNSUPPORTED, "a weight of %u parts: give 1 to %d", part_count, MAX_PARTS);
	if (columns == 0 || columns % KN_BLOCK_COLUMNS != 0)
		return kv_fail(KV_UNSUPPORTED,
		    "a weight of %u columns: the cpu backend needs a multiple of %d", columns,
		    KN_BLOCK_COLUMNS);
	for (uint32_t i = 0; i < part_count; i++) {
		const struct kn_weight_part *part = &parts[i];
		uint64_t row_bytes = kn_weight_row_bytes(part->type, columns);

		if (row_bytes == 0)
			return kv_fail(KV_UNSUPPORTED,
			    "weight type %d with %u columns: the type is unknown or its block does not divide "
			    "the row",
			    (int)part->type, columns);
		if (part->rows == 0 || !part->data || part->bytes != row_bytes * part->rows)
			return kv_fail(KV_INVALID,
			    "weight part %u: %" PRIu64 " bytes for %u rows of %" PRIu64 " bytes", i,
			    part->bytes, part->rows, row_bytes);
		rows += part->rows;
	}
	if (rows > MAX_WEIGHT_ROWS)
		return kv_fail(
		    KV_UNSUPPORTED, "a weight of %" PRIu64 " rows: at most %d", rows, MAX_WEIGHT_ROWS);
	return KV_OK;
}

/* Fill in shapes and formats; the tiles' memory comes later. */
static void lay_out(struct kn_weight *weight, const struct kn_weight_part *parts)
{
	for (uint32_t i = 0; i < weight->slab_count; i++) {
		struct kn_slab *slab = &weight->slabs[i];

		slab->format = format_of(parts[i].type, weight->precision);
		slab->first_row = weight->rows;
		slab->rows = parts[i].rows;
		slab->tiles = (parts[i].rows + KN_TILE_ROWS - 1) / KN_TILE_ROWS;
		slab->tile_bytes = tile_bytes(slab->format, weight->columns);
		weight->rows += slab->rows;
		weight->tiles += slab->tiles;
		weight->bytes += (uint64_t)slab->tiles * slab->tile_bytes;
	}
}

enum kv_status kn_cpu_weight_pack(struct kn_backend *backend, const struct kn_weight_part *parts,
    uint32_t part_count, uint32_t columns, enum kn_precision precision, struct kn_weight **out)
{
	KV_TRY(check_parts(parts, part_count, columns));
	struct kn_weight *weight = kv_alloc_zero(backend->allocator, sizeof *weight);

	if (!weight) return KV_NO_MEMORY;
	weight->backend = backend;
	weight->precision = precision;
	weight->columns = columns;
	weight->slab_count = part_count;
	weight->slabs = kv_alloc_array_zero(backend->allocator, part_count, sizeof *weight->slabs);
	if (!weight->slabs) goto undo;
	lay_out(weight, parts);
	weight->chunk = find_chunk(backend, (size_t)weight->bytes);
	if (!weight->chunk) goto undo;
	uint8_t *memory = weight->chunk->memory + weight->chunk->used;

	weight->chunk->used += (size_t)weight->bytes;
	weight->chunk->weights++;
	for (uint32_t i = 0; i < part_count; i++) {
		struct kn_slab *slab = &weight->slabs[i];
		struct pack_job job = {
		    &parts[i], slab, columns, kn_weight_row_bytes(parts[i].type, columns)};

		slab->tile = memory;
		memory += slab->tiles * slab->tile_bytes;
		kn_pool_run(backend->pool, pack_tiles, &job, (slab->tiles + PACK_TILES - 1) / PACK_TILES);
	}
	*out = weight;
	return KV_OK;
undo:
	kn_cpu_weight_destroy(backend, weight);
	return KV_NO_MEMORY;
}

void kn_cpu_weight_destroy(struct kn_backend *backend, struct kn_weight *weight)
{
	if (!weight) return;
	if (weight->chunk) {
		weight->chunk->weights--;
		release_chunk(backend, weight->chunk);
	}
	kv_free(backend->allocator, weight->slabs);
	kv_free(backend->allocator, weight);
}

uint64_t kn_cpu_weight_bytes(const struct kn_weight *weight)
{
	return weight->bytes;
}

static void read_quantised_row(
    const struct kn_slab *slab, const uint8_t *tile, uint32_t r, uint32_t columns, float *out)
{
	int32_t offset = kn_tile_offset(slab->format);

	for (uint32_t b = 0; b < columns / KN_BLOCK_COLUMNS; b++) {
		const uint16_t *scales, *minimums;
		const uint8_t *codes;

		kn_tile_block(slab->format, tile, b, &scales, &minimums, &codes);
		float scale[2] = {kn_half_to_float(scales[r]), 0.0f}, minimum = 0.0f;

		scale[1] = scale[0];
		if (slab->format == KN_TILE_P6S)
			scale[1] = kn_half_to_float(minimums[r]);
		else if (minimums)
			minimum = kn_half_to_float(minimums[r]);
		for (uint32_t k = 0; k < KN_BLOCK_COLUMNS; k++) {
			int32_t code = (int32_t)kn_tile_code(slab->format, codes, r, k / 4, k % 4) - offset;

			out[KN_BLOCK_COLUMNS * (size_t)b + k] = scale[k / 16] * (float)code + minimum;
		}
	}
}

void kn_weight_read_row(const struct kn_weight *weight, uint32_t row, float *out)
{
	const struct kn_slab *slab = weight->slabs;

	while (row >= slab->first_row + slab->rows)
		slab++;
	uint32_t tile_row = row - slab->first_row, r = tile_row % KN_TILE_ROWS;
	const uint8_t *tile = slab->tile + slab->tile_bytes * (tile_row / KN_TILE_ROWS);

	if (slab->format != KN_TILE_F32) {
		read_quantised_row(slab, tile, r, weight->columns, out);
		return;
	}
	const float *values = (const float *)(const void *)tile;

	for (uint32_t k = 0; k < weight->columns; k++)
		out[k] = values[(size_t)k * KN_TILE_ROWS + r];
}
