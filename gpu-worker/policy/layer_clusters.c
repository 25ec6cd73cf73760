/* Selection by clusters: score all centroids against the query group, take clusters in falling
 * score until the budget is spent, trim the last one, describe the rest for the estimate. */
#include "gpu-worker/policy/policy.h"

const struct gw_layer_ops gw_layer_dense = {"dense", 0, NULL};

struct gw_select_scratch {
	struct kv_allocator *allocator;
	struct kn_device device;
	uint32_t jobs, clusters, group;
	struct kn_score_job *score_jobs;   /* [jobs] */
	struct kn_select_job *select_jobs; /* [jobs] */
	/* KN_DEVICE, in one buffer that starts with the logits: */
	float *logits;                     /* [jobs][group][clusters] */
	float *votes;                      /* [jobs][clusters] */
	uint32_t *rest, *order;            /* [jobs][clusters] */
	/* KN_SHARED, in one buffer that starts with the extents: */
	struct kn_extent *extents;         /* [jobs][clusters] */
	struct kn_select_counts *counts;   /* [jobs] */
};

/* 64-byte steps inside a buffer. */
static size_t step(size_t bytes)
{
	return (bytes + 63) & ~(size_t)63;
}

size_t gw_select_scratch_bytes(uint32_t max_rows, const struct gw_model_shape *shape,
	uint32_t max_clusters)
{
	size_t cells = (size_t)max_rows * shape->kv_heads * max_clusters;

	return step(cells * sizeof(uint32_t)) * (gw_shape_group(shape) + 3);
}

static enum kv_status take_backend_memory(struct gw_select_scratch *scratch)
{
	size_t cells = (size_t)scratch->jobs * scratch->clusters;
	size_t column = step(cells * sizeof(uint32_t)), matrix = column * scratch->group;
	size_t extents = step(cells * sizeof(struct kn_extent));
	void *memory = NULL;
	uint8_t *at;

	KV_TRY(kn_device_alloc(&scratch->device, KN_DEVICE, matrix + 3 * column, &memory));
	at = memory;
	scratch->logits = (float *)memory;
	scratch->votes = (float *)(void *)(at + matrix);
	scratch->rest = (uint32_t *)(void *)(at + matrix + column);
	scratch->order = (uint32_t *)(void *)(at + matrix + 2 * column);
	KV_TRY(kn_device_alloc(&scratch->device, KN_SHARED,
		extents + scratch->jobs * sizeof *scratch->counts, &memory));
	at = memory;
	scratch->extents = (struct kn_extent *)memory;
	scratch->counts = (struct kn_select_counts *)(void *)(at + extents);
	return KV_OK;
}

enum kv_status gw_select_scratch_create(struct kv_allocator *allocator,
	const struct kn_device *device, uint32_t max_rows, const struct gw_model_shape *shape,
	uint32_t max_clusters, struct gw_select_scratch **scratch)
{
	struct gw_select_scratch *made = kv_alloc_zero(allocator, sizeof *made);
	size_t jobs = (size_t)max_rows * shape->kv_heads;
	enum kv_status status;

	if (made == NULL) return KV_NO_MEMORY;
	made->allocator = allocator;
	made->device = *device;
	made->jobs = (uint32_t)jobs;
	made->clusters = max_clusters;
	made->group = gw_shape_group(shape);
	made->score_jobs = kv_alloc_array(allocator, jobs, sizeof *made->score_jobs);
	made->select_jobs = kv_alloc_array(allocator, jobs, sizeof *made->select_jobs);
	status = !made->score_jobs || !made->select_jobs ? KV_NO_MEMORY : take_backend_memory(made);
	if (status != KV_OK) {
		gw_select_scratch_destroy(made);
		return status;
	}
	*scratch = made;
	return KV_OK;
}

void gw_select_scratch_destroy(struct gw_select_scratch *scratch)
{
	if (scratch == NULL) return;
	kv_free(scratch->allocator, scratch->score_jobs);
	kv_free(scratch->allocator, scratch->select_jobs);
	kn_device_free(&scratch->device, scratch->logits);
	kn_device_free(&scratch->device, scratch->extents);
	kv_free(scratch->allocator, scratch);
}

static void fill_jobs(const struct gw_policy_context *context, const struct gw_select_row *row,
	uint32_t head, uint32_t job)
{
	struct gw_select_scratch *scratch = context->scratch;
	const struct gw_cluster_index *index = row->index;
	uint32_t head_dim = context->shape->head_dim;
	size_t slot = (size_t)head * index->capacity;
	size_t cell = (size_t)job * scratch->clusters;
	struct kn_score_job *score = &scratch->score_jobs[job];
	struct kn_select_job *select = &scratch->select_jobs[job];

	score->q = row->q + (size_t)head * scratch->group * head_dim;
	score->centroids = index->centroids + slot * head_dim;
	score->log_sizes = index->device_log_sizes + slot;
	score->clusters = index->clusters;
	score->logits = scratch->logits + cell * scratch->group;
	score->logits_stride = scratch->clusters;
	score->votes = scratch->votes + cell;

	select->votes = score->votes;
	select->sizes = index->device_sizes + slot;
	select->clusters = index->clusters;
	select->budget = row->budget;
	select->extents = scratch->extents + cell;
	select->rest = scratch->rest + cell;
	select->scratch = scratch->order + cell;
	select->counts = row->counts != NULL ? row->counts + head : scratch->counts + job;
}

/* Where everything will be. */
static void describe(const struct gw_policy_context *context, const struct gw_select_row *row,
	uint32_t head, uint32_t job)
{
	const struct gw_select_scratch *scratch = context->scratch;
	const struct kn_select_job *select = &scratch->select_jobs[job];
	const struct gw_cluster_index *index = row->index;
	struct gw_selection *out = &row->out[head];
	size_t slot = (size_t)head * index->capacity;

	out->extents = select->extents;
	out->counts = select->counts;
	out->estimate.logits = scratch->score_jobs[job].logits;
	out->estimate.logits_stride = scratch->clusters;
	out->rest = select->rest;
	out->estimate.rest = select->rest;
	out->estimate.value_means = index->value_means + slot * context->shape->head_dim;
	out->estimate.clusters = context->options->estimate ? index->clusters : 0;
}

static enum kv_status select_clusters(const struct gw_policy_context *context,
	const struct gw_select_row *rows, uint32_t count)
{
	struct gw_select_scratch *scratch = context->scratch;
	const struct kn_device *device = &context->device;
	uint32_t kv_heads = context->shape->kv_heads;
	uint32_t jobs = count * kv_heads;
	struct kn_score_arguments score = {0};
	struct kn_select_arguments select = {0};

	if (jobs > scratch->jobs)
		return kv_fail(KV_LIMIT, "selection of %u rows, room for %u", count,
			scratch->jobs / kv_heads);
	for (uint32_t i = 0; i < count; i++) {
		if (rows[i].index->clusters > scratch->clusters)
			return kv_fail(KV_LIMIT, "selection over %u clusters, room for %u",
				rows[i].index->clusters, scratch->clusters);
		for (uint32_t head = 0; head < kv_heads; head++)
			fill_jobs(context, &rows[i], head, i * kv_heads + head);
	}
	score.jobs = scratch->score_jobs;
	score.job_count = jobs;
	score.group = scratch->group;
	score.head_dim = context->shape->head_dim;
	score.scale = context->shape->attention_scale;
	score.size_term = context->options->size_term;
	KV_TRY(device->ops->score(device->backend, device->stream, &score));
	select.jobs = scratch->select_jobs;
	select.job_count = jobs;
	KV_TRY(device->ops->select(device->backend, device->stream, &select));
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t head = 0; head < kv_heads; head++)
			describe(context, &rows[i], head, i * kv_heads + head);
	return KV_OK;
}

enum kv_status gw_select_rows(const struct gw_layer_ops *ops,
	const struct gw_policy_context *context, const struct gw_select_row *rows, uint32_t count)
{
	KV_TRY(ops->select(context, rows, count));
	KV_TRY(kn_device_wait(&context->device));
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t head = 0; head < context->shape->kv_heads; head++) {
			struct gw_selection *out = &rows[i].out[head];

			out->extent_count = out->counts->extents;
			out->tokens = out->counts->tokens;
		}
	return KV_OK;
}

const struct gw_layer_ops gw_layer_clusters = {"clusters", 1, select_clusters};
