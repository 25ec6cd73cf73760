#include "tests/lib/pipeline_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/discrete_backend.h"

static void unit_of(const struct gw_sequence *sequence, uint32_t i, uint32_t layer,
    struct gw_unit *unit, const uint8_t **memory)
{
	assert_int_equal(
	    gw_unit_describe(sequence->pipeline, sequence->segments[i], layer, unit), KV_OK);
	*memory = kvc_direct(sequence->pipeline->options.store, sequence->segments[i], layer);
	assert_non_null(*memory);
}

const uint8_t *kvt_stored_row(
    const struct gw_sequence *sequence, uint32_t layer, uint32_t head, uint32_t position)
{
	for (uint32_t i = 0; i < sequence->segment_count; i++) {
		const struct kvc_segment *segment = sequence->segments[i];
		const uint32_t *positions;
		const uint8_t *memory;
		struct gw_unit unit;

		if (position < segment->start || position >= segment->start + segment->tokens) continue;
		unit_of(sequence, i, layer, &unit, &memory);
		positions = gw_unit_positions(&unit, memory, head);
		for (uint32_t row = 0; row < segment->tokens; row++)
			if (positions[row] == position) return gw_unit_row(&unit, memory, head, row);
		fail_msg("position %u is not in its segment", position);
	}
	return NULL;
}

static void check_positions(
    const struct kvc_segment *segment, const struct gw_unit *unit, const uint8_t *memory)
{
	static uint8_t seen[KVW_MAX_SEGMENT_TOKENS];

	for (uint32_t head = 0; head < unit->shape.kv_heads; head++) {
		const uint32_t *positions = gw_unit_positions(unit, memory, head);

		memset(seen, 0, segment->tokens);
		for (uint32_t row = 0; row < segment->tokens; row++) {
			uint32_t at = positions[row] - segment->start;

			assert_true(at < segment->tokens);
			assert_int_equal(seen[at], 0);
			seen[at] = 1;
			if (row < unit->shape.plain) assert_int_equal(at, row);
		}
	}
}

static const uint32_t *sizes_of(const struct gw_unit *unit, const uint8_t *memory, uint32_t head)
{
	return (const uint32_t *)(const void *)(memory + head * unit->layout.head_bytes +
	                                        unit->layout.sizes);
}

static void check_index(const struct gw_layer_state *state, uint32_t ordinal,
    const struct gw_unit *unit, const uint8_t *memory, uint32_t first)
{
	const struct gw_cluster_index *index = state->index;
	size_t bytes = sizeof(uint16_t) * index->head_dim;

	assert_int_equal(index->segment_first[ordinal], first);
	for (uint32_t head = 0; head < unit->shape.kv_heads; head++) {
		const uint8_t *block = memory + head * unit->layout.head_bytes;
		size_t slot = (size_t)head * index->capacity + first;
		uint32_t row = unit->shape.plain;

		assert_memory_equal(index->centroids + slot * index->head_dim,
		    block + unit->layout.centroids, unit->shape.clusters * bytes);
		assert_memory_equal(index->value_means + slot * index->head_dim,
		    block + unit->layout.value_means, unit->shape.clusters * bytes);
		for (uint32_t c = 0; c < unit->shape.clusters; c++) {
			assert_int_equal(index->segment_of[first + c], ordinal);
			assert_int_equal(index->first_row[slot + c], row);
			assert_int_equal(index->sizes[slot + c], sizes_of(unit, memory, head)[c]);
			row += index->sizes[slot + c];
		}
		assert_int_equal(row, unit->shape.tokens);
	}
}

static void check_rows(const struct gw_sequence *sequence, uint32_t layer,
    const struct gw_token_rows *rows, uint32_t first, uint32_t end)
{
	for (uint32_t head = 0; head < rows->kv_heads; head++)
		for (uint32_t position = first; position < end; position++) {
			const uint8_t *stored = kvt_stored_row(sequence, layer, head, position);

			if (stored == NULL) continue;
			if (memcmp(stored, gw_token_rows_at(rows, head, position - first), rows->row_bytes) !=
			    0)
				fail_msg("layer %u head %u: the worker's row of position %u is not the store's",
				    layer, head, position);
		}
}

static void check_list(const struct gw_sequence *sequence)
{
	uint32_t end = 0;

	for (uint32_t i = 0; i < sequence->segment_count; i++) {
		assert_int_equal(sequence->segments[i]->start, end);
		end += sequence->segments[i]->tokens;
		if (i + 1 < sequence->segment_count)
			assert_int_equal(sequence->segments[i]->kind, KVW_CLUSTERED);
	}
	assert_true(end <= sequence->kv_count);
	assert_true(sequence->kv_count <= sequence->token_count);
	if (sequence->segment_count > 0 &&
	    sequence->segments[sequence->segment_count - 1]->kind == KVW_PLAIN)
		end = sequence->segments[sequence->segment_count - 1]->start;
	assert_int_equal(sequence->window_start, end);
}

void kvt_check_sequence(const struct gw_sequence *sequence)
{
	const struct gw_policy_options *policy = &sequence->pipeline->options.policy;
	const struct kn_device *device = &sequence->pipeline->device;
	uint32_t start = sequence->window_start;

	check_list(sequence);
	kvt_discrete_show(device->ops, device->backend);
	for (uint32_t layer = 0; layer < sequence->pipeline->shape->layers; layer++) {
		const struct gw_layer_state *state = &sequence->layers[layer];
		uint32_t clusters = 0;

		for (uint32_t i = 0; i < sequence->segment_count; i++) {
			const uint8_t *memory;
			struct gw_unit unit;

			unit_of(sequence, i, layer, &unit, &memory);
			check_positions(sequence->segments[i], &unit, memory);
			if (state->ops->clustered) check_index(state, i, &unit, memory, clusters);
			clusters += unit.shape.clusters;
		}
		if (!state->ops->clustered) {
			assert_int_equal(state->recent.count, sequence->kv_count);
			check_rows(sequence, layer, &state->recent, 0, sequence->kv_count);
			continue;
		}
		assert_int_equal(state->index->clusters, clusters);
		assert_int_equal(state->index->segments, sequence->segment_count);
		assert_int_equal(state->sinks.count, start < policy->sinks ? start : policy->sinks);
		check_rows(sequence, layer, &state->sinks, 0, state->sinks.count);
		assert_int_equal(state->recent.count, sequence->kv_count - start);
		check_rows(sequence, layer, &state->recent, start, sequence->kv_count);
	}
	kvt_discrete_hide(device->ops, device->backend);
}

static void compare_rows(const uint8_t *a, const uint8_t *b, uint32_t numbers, double most)
{
	const float *x = (const float *)(const void *)a, *y = (const float *)(const void *)b;

	for (uint32_t i = 0; i < numbers; i++)
		if (!(fabs((double)x[i] - (double)y[i]) <= most))
			fail_msg("number %u of a row: %g and %g", i, (double)x[i], (double)y[i]);
}

void kvt_check_same_store(const struct gw_sequence *a, const struct gw_sequence *b, double most)
{
	const struct gw_model_shape *shape = a->pipeline->shape;

	assert_int_equal(a->segment_count, b->segment_count);
	for (uint32_t i = 0; i < a->segment_count; i++) {
		assert_int_equal(a->segments[i]->start, b->segments[i]->start);
		assert_int_equal(a->segments[i]->tokens, b->segments[i]->tokens);
		assert_int_equal(a->segments[i]->kind, b->segments[i]->kind);
		assert_int_equal(a->segments[i]->provenance, b->segments[i]->provenance);
	}
	for (uint32_t layer = 0; layer < shape->layers; layer++)
		for (uint32_t head = 0; head < shape->kv_heads; head++)
			for (uint32_t position = 0; position < a->kv_count; position++) {
				const uint8_t *x = kvt_stored_row(a, layer, head, position);
				const uint8_t *y = kvt_stored_row(b, layer, head, position);

				assert_int_equal(x == NULL, y == NULL);
				if (x != NULL) compare_rows(x, y, 2 * shape->head_dim, most);
			}
}

const char *kvt_list_text(const struct gw_sequence *sequence)
{
	static char text[512];
	size_t used = 0;

	text[0] = '\0';
	for (uint32_t i = 0; i < sequence->segment_count && used < sizeof text; i++) {
		const struct kvc_segment *segment = sequence->segments[i];

		used += (size_t)snprintf(text + used, sizeof text - used, "%s%s%u%s", i > 0 ? " " : "",
		    segment->kind == KVW_PLAIN ? "| " : "", segment->start + segment->tokens,
		    segment->provenance == KVW_APPROXIMATE ? "~" : "");
	}
	return text;
}
