/* KV rows for the tests of attention, scoring and indexing. Include the cmocka headers first. */
#ifndef KVT_KV_ROWS_H
#define KVT_KV_ROWS_H

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/half.h"
#include "tests/lib/kernel_harness.h"

/* Element i of a KV row: keys first, then values. */
static inline double kvt_row_element(const uint8_t *row, enum kn_kv_type type, uint32_t i)
{
	if (type == KN_KV_F32) {
		float value;
		memcpy(&value, row + (size_t)i * 4, 4);
		return (double)value;
	}
	uint16_t half;
	memcpy(&half, row + (size_t)i * 2, 2);
	if (type == KN_KV_BF16) return (double)kn_bits_float((uint32_t)half << 16);
	return (double)kn_half_to_float(half);
}

static inline void kvt_set_element(uint8_t *row, enum kn_kv_type type, uint32_t i, float value)
{
	uint16_t half = kn_half_from_float(value);

	if (type == KN_KV_BF16) half = (uint16_t)(kn_float_bits(value) >> 16);
	if (type == KN_KV_F32)
		memcpy(row + (size_t)i * 4, &value, 4);
	else
		memcpy(row + (size_t)i * 2, &half, 2);
}

/* `count` rows of normal values; freed with kvt_free. */
static inline uint8_t *kvt_make_rows(
    struct kv_random *random, uint32_t count, uint32_t head_dim, enum kn_kv_type type)
{
	size_t bytes = kn_kv_row_bytes(type, head_dim);
	uint8_t *rows = (uint8_t *)kvt_alloc(count, bytes);

	for (uint32_t i = 0; i < count; i++)
		for (uint32_t d = 0; d < 2 * head_dim; d++)
			kvt_set_element(rows + i * bytes, type, d, kv_random_normal(random));
	return rows;
}

/* `count` contiguous rows cut into spans at random, every eighth of them empty; returns how many
 * spans: `spans` has room for count * 2 + 1. */
static inline uint32_t kvt_cut_spans(struct kv_random *random, const uint8_t *rows,
    size_t row_bytes, uint32_t count, uint32_t longest, struct kn_span *spans)
{
	uint32_t n = 0, at = 0;

	while (at < count) {
		uint32_t take = n % 8 == 0 ? 0 : 1 + (uint32_t)kv_random_below(random, longest);

		if (take > count - at) take = count - at;
		spans[n++] = (struct kn_span){.rows = rows + at * row_bytes, .count = take};
		at += take;
	}
	return n;
}

#endif
