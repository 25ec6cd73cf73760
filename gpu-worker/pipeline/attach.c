/* From stored units to what decoding reads: sinks, window, dense rows, clusters. */
#include "gpu-worker/pipeline/step.h"

enum kv_status gw_attach_unit(struct gw_sequence *sequence, uint32_t layer, uint32_t ordinal,
	const struct kvc_segment *segment, const struct gw_unit *unit, const uint8_t *memory)
{
	struct gw_layer_state *state = &sequence->layers[layer];
	const uint8_t *rows = gw_unit_row(unit, memory, 0, 0);
	size_t stride = unit->layout.head_bytes;

	if (!state->ops->clustered)
		return gw_token_rows_append(&state->recent, rows, stride, unit->shape.tokens);
	if (segment->kind == KVW_PLAIN)
		KV_TRY(gw_token_rows_append(&state->recent, rows, stride, unit->shape.tokens));
	else
		KV_TRY(gw_token_rows_append(&state->sinks, rows, stride, unit->shape.plain));
	return gw_unit_attach(state, unit, memory, ordinal);
}

enum kv_status gw_attach_layer(struct gw_sequence *sequence, uint32_t layer, uint8_t *buffer)
{
	for (uint32_t i = 0; i < sequence->segment_count; i++) {
		const struct kvc_segment *segment = sequence->segments[i];
		const uint8_t *memory;
		struct gw_unit unit;

		KV_TRY(gw_unit_describe(sequence->pipeline, segment, layer, &unit));
		KV_TRY(gw_unit_read(sequence->pipeline, segment, layer, &unit, buffer, &memory));
		KV_TRY(gw_attach_unit(sequence, layer, i, segment, &unit, memory));
	}
	return KV_OK;
}

/* Layers differ in clusters only, and a unit with clusters is the larger one. */
static size_t unit_bytes(const struct gw_sequence *sequence, const struct kvc_segment *segment)
{
	size_t most = 0;
	struct gw_unit unit;

	for (uint32_t layer = 0; layer < sequence->pipeline->shape->layers; layer++)
		if (gw_unit_describe(sequence->pipeline, segment, layer, &unit) == KV_OK &&
			unit.layout.bytes > most)
			most = unit.layout.bytes;
	return most;
}

size_t gw_attach_buffer_bytes(const struct gw_sequence *sequence)
{
	uint32_t pieces = 0;
	const struct kvc_piece *piece;
	size_t most = 0, bytes;

	if (sequence->stored == NULL) return 0;
	piece = kvc_sequence_pieces(sequence->stored, &pieces);
	for (uint32_t i = 0; i < sequence->segment_count; i++) {
		bytes = unit_bytes(sequence, sequence->segments[i]);
		if (bytes > most) most = bytes;
	}
	for (uint32_t i = 0; i < pieces; i++) {
		bytes = unit_bytes(sequence, piece[i].segment);
		if (bytes > most) most = bytes;
	}
	return most;
}

enum kv_status gw_attach_list(struct gw_sequence *sequence)
{
	const struct gw_pipeline *pipeline = sequence->pipeline;
	uint32_t count = 0;
	const struct kvc_segment *const *list = kvc_sequence_segments(sequence->stored, &count);

	if (count > sequence->segment_capacity)
		return kv_fail(KV_LIMIT, "sequence %s has %u segments, room for %u",
			kvc_sequence_id(sequence->stored), count, sequence->segment_capacity);
	for (uint32_t i = 0; i < count; i++)
		KV_TRY(gw_unit_describe(pipeline, list[i], pipeline->shape->layers - 1,
			&sequence->units[i]));
	sequence->segments = list;
	sequence->segment_count = count;
	return KV_OK;
}
