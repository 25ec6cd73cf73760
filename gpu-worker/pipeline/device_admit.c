/* After a device's step: what it had to bring over is taken into the cluster cache, and what its
 * lookups found is counted as if the host had looked. */
#include "gpu-worker/pipeline/device_step.h"

static enum kv_status send(struct gw_pipeline *pipeline)
{
	const struct kn_device *device = &pipeline->device;
	struct gw_device_step *step = pipeline->device_step;
	const struct kn_copy_arguments a = {step->admissions, step->admission_count};

	step->admission_count = 0;
	step->admitted = 1;
	return device->ops->copy(device->backend, device->stream, &a);
}

/* Rows of the cache's pages, from where they were staged. */
static enum kv_status add_copies(struct gw_pipeline *pipeline, uint32_t slot, uint32_t from,
	const struct kn_lookup_miss *miss)
{
	struct gw_device_step *step = pipeline->device_step;
	size_t row_bytes = pipeline->row_bytes;
	const uint8_t *source = step->room.staging + (size_t)(miss->staged + from) * row_bytes;
	struct kn_span *spans = pipeline->round.spans;
	uint32_t runs = gw_cluster_cache_spans(pipeline->cache, slot, from, miss->count, spans);

	for (uint32_t i = 0; i < runs; i++) {
		size_t bytes = spans[i].count * row_bytes;

		if (step->admission_count == GW_ADMISSIONS) KV_TRY(send(pipeline));
		step->admissions[step->admission_count++] = (struct kn_copy_job){source,
			(uint8_t *)(uintptr_t)spans[i].rows, bytes};
		source += bytes;
	}
	return KV_OK;
}

static enum kv_status check_miss(const struct gw_pipeline *pipeline,
	const struct gw_cluster_index *index, const struct kn_lookup_miss *miss)
{
	const struct gw_step_room *room = &pipeline->device_step->room;

	if (miss->cluster < index->clusters && miss->count > 0 && miss->count <= room->tokens &&
		miss->staged < room->staging_rows && miss->count <= room->staging_rows - miss->staged)
		return KV_OK;
	return kv_fail(KV_INTERNAL, "the %s backend missed %u rows of cluster %u and staged them at %u",
		pipeline->device.ops->name, miss->count, miss->cluster, miss->staged);
}

static enum kv_status admit_miss(struct gw_sequence *sequence, uint32_t layer, uint32_t head,
	const struct kn_lookup_miss *miss)
{
	struct gw_pipeline *pipeline = sequence->pipeline;
	struct gw_layer_state *state = &sequence->layers[layer];
	const struct gw_cluster_index *index = state->index;
	size_t cell = (size_t)head * index->capacity + miss->cluster;
	struct gw_cache_grant grant;
	struct gw_cache_key key;

	KV_TRY(check_miss(pipeline, index, miss));
	key = gw_cluster_key(sequence, layer, head, miss->cluster);
	grant = gw_cluster_cache_admit(pipeline->cache, &key, miss->count, &state->slot_hints[cell]);
	if (grant.slot == UINT32_MAX) return KV_OK;
	gw_cache_mirror_hint(pipeline->cache, sequence->map->layers[layer].hints + cell, grant.slot);
	return grant.held < miss->count ? add_copies(pipeline, grant.slot, grant.held, miss) : KV_OK;
}

static void count_found(struct gw_sequence *sequence, const struct kn_select_counts *selected,
	const struct kn_lookup_counts *found)
{
	size_t row_bytes = sequence->pipeline->row_bytes;
	const struct gw_cache_stats stats = {.hit_bytes = found->hit_tokens * row_bytes,
		.miss_bytes = found->miss_tokens * row_bytes,
		.hit_tokens = found->hit_tokens,
		.miss_tokens = found->miss_tokens,
		.hit_clusters = selected->extents - found->misses,
		.miss_clusters = found->misses};

	gw_cluster_cache_count(sequence->pipeline->cache, &stats);
	gw_cache_stats_add(&sequence->report.cache, NULL, &stats);
}

/* One KV head of a layer. */
static enum kv_status admit_job(struct gw_sequence *sequence, uint32_t layer, uint32_t head,
	uint32_t number)
{
	const struct gw_pipeline *pipeline = sequence->pipeline;
	const struct gw_step_room *room = &pipeline->device_step->room;
	uint32_t group = gw_shape_group(pipeline->shape);
	size_t at = (size_t)layer * room->jobs + number;
	const struct kn_lookup_miss *misses = room->misses + at * room->extents;

	gw_report_selection(sequence, layer, room->selected[at].tokens,
		pipeline->options.policy.estimate && sequence->layers[layer].index->clusters > 0
			? room->exact_mass + at * group
			: NULL);
	count_found(sequence, &room->selected[at], &room->found[at]);
	for (uint32_t i = 0; i < room->found[at].misses && i < room->extents; i++)
		KV_TRY(admit_miss(sequence, layer, head, &misses[i]));
	return KV_OK;
}

static enum kv_status admit(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count)
{
	uint32_t kv_heads = pipeline->shape->kv_heads;

	for (uint32_t layer = 0; layer < pipeline->shape->layers; layer++)
		for (uint32_t number = 0; number < count * kv_heads; number++) {
			struct gw_sequence *sequence = batch[number / kv_heads];

			if (sequence->layers[layer].ops->clustered)
				KV_TRY(admit_job(sequence, layer, number % kv_heads, number));
		}
	return pipeline->device_step->admission_count > 0 ? send(pipeline) : KV_OK;
}

enum kv_status gw_device_admit(struct gw_pipeline *pipeline, struct gw_sequence *const *batch,
	uint32_t count)
{
	enum kv_status status;

	gw_cluster_cache_begin(pipeline->cache);
	pipeline->device_step->admission_count = 0;
	pipeline->device_step->admitted = 0;
	status = admit(pipeline, batch, count);
	if (status != KV_OK) {
		gw_cluster_cache_abandon(pipeline->cache);
		return status;
	}
	gw_cluster_cache_commit(pipeline->cache);
	/* Nothing is queued between steps: memory may go. */
	return pipeline->device_step->admitted ? kn_device_wait(&pipeline->device) : KV_OK;
}
