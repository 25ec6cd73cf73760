/* From stored units to what decoding reads: sinks, window, dense rows, clusters. */
#include "gpu-worker/pipeline/step.h"

enum kv_status gw_attach_unit(struct gw_sequence *sequence, const struct kn_device *device,
	uint32_t layer, uint32_t ordinal, const struct kvc_segment *segment,
	const struct gw_unit *unit, const uint8_t *memory)
{
	struct gw_layer_state *state = &sequence->layers[layer];
	const uint8_t *rows = gw_unit_row(unit, memory, 0, 0);
	size_t stride = unit->layout.head_bytes;

	if (!state->ops->clustered)
		return gw_token_rows_upload(&state->recent, device, rows, stride, unit->shape.tokens);
	if (segment->kind == KVW_PLAIN)
		KV_TRY(gw_token_rows_upload(&state->recent, device, rows, stride, unit->shape.tokens));
	else
		KV_TRY(gw_token_rows_upload(&state->sinks, device, rows, stride, unit->shape.plain));
	return gw_unit_attach(state, device, unit, memory, ordinal);
}

enum kv_status gw_attach_layer(struct gw_sequence *sequence, const struct kn_device *device,
	uint32_t layer, uint8_t *buffer)
{
	for (uint32_t i = 0; i < sequence->segment_count; i++) {
		const struct kvc_segment *segment = sequence->segments[i];
		const uint8_t *memory;
		struct gw_unit unit;

		KV_TRY(gw_unit_describe(sequence->pipeline, segment, layer, &unit));
		KV_TRY(gw_unit_read(sequence->pipeline, segment, layer, &unit, buffer, &memory));
		KV_TRY(gw_attach_unit(sequence, device, layer, i, segment, &unit, memory));
		KV_TRY(kn_device_wait(device));
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
	uint32_t count = 0, end = 0;
	const struct kvc_segment *const *list = kvc_sequence_segments(sequence->stored, &count);

	if (count > sequence->segment_capacity)
		return kv_fail(KV_LIMIT, "sequence %s has %u segments, room for %u",
			kvc_sequence_id(sequence->stored), count, sequence->segment_capacity);
	for (uint32_t i = 0; i < count; i++) {
		if (list[i]->start != end || list[i]->tokens > sequence->token_capacity - end)
			return kv_fail(KV_PROTOCOL, "sequence %s: entry %u of its list has %u tokens from %u "
				"on, the list goes on at %u of %u", kvc_sequence_id(sequence->stored), i,
				list[i]->tokens, list[i]->start, end, sequence->token_capacity);
		end += list[i]->tokens;
		KV_TRY(gw_unit_describe(pipeline, list[i], pipeline->shape->layers - 1,
			&sequence->units[i]));
	}
	sequence->segments = list;
	sequence->segment_count = count;
	sequence->list_changes++;
	return KV_OK;
}

/* Leading list entries that are segments of the prompt as it is cut, and where they end. */
static uint32_t prompt_entries(const struct gw_sequence *sequence, uint32_t *end)
{
	uint32_t count = 0;

	*end = 0;
	while (count < sequence->segment_count && count < sequence->cut_count) {
		const struct kvc_segment *segment = sequence->segments[count];
		const struct kvc_cut *cut = &sequence->cuts[count];

		if (segment->start + segment->tokens != cut->end || segment->kind != cut->kind ||
			segment->provenance != KVW_EXACT)
			break;
		*end = cut->end;
		count++;
	}
	return count;
}

enum kv_status gw_attach_known(const struct gw_sequence *sequence, uint32_t *tokens)
{
	uint32_t pieces = 0, end = 0;
	const struct kvc_piece *piece;

	*tokens = 0;
	if (sequence->stored == NULL) return KV_OK;
	if (prompt_entries(sequence, &end) != sequence->segment_count)
		return kv_fail(KV_PROTOCOL, "the store attached segments that are not this prompt's");
	piece = kvc_sequence_pieces(sequence->stored, &pieces);
	for (uint32_t i = 0; i < pieces; i++) {
		if (piece[i].segment->start != end || piece[i].segment->provenance != KVW_EXACT ||
			piece[i].tokens > sequence->prompt_tokens - end)
			return kv_fail(KV_PROTOCOL, "the store found %u tokens from %u on for a prompt of %u "
				"of which %u are known", piece[i].tokens, piece[i].segment->start,
				sequence->prompt_tokens, end);
		end += piece[i].tokens;
	}
	*tokens = end;
	return KV_OK;
}

int gw_attach_whole(const struct gw_sequence *sequence)
{
	const struct kvc_segment *last;
	uint32_t end;

	if (sequence->segment_count == 0) return 0;
	last = sequence->segments[sequence->segment_count - 1];
	end = last->start + last->tokens;
	return end >= sequence->prompt_tokens && end < sequence->token_count &&
		(last->kind == KVW_PLAIN || sequence->pipeline->options.policy.window == 0);
}

void gw_attach_prompt_only(struct gw_sequence *sequence)
{
	uint32_t end;

	sequence->segment_count = prompt_entries(sequence, &end);
	sequence->list_changes++;
}
