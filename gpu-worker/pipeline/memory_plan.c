#include "gpu-worker/pipeline/memory_plan.h"

#include <stdio.h>

#include "gpu-worker/pipeline/device_step.h"
#include "gpu-worker/pipeline/step.h"

/* A device hands memory out in pieces: this part of it is not planned with. */
enum { ROUNDED_AWAY = 64 };

/* Prompts are begun beside others in such an order that what is left of all of them to compute is
 * no more than this many of the longest (prefill_order.h). */
enum { PROMPTS_LEFT = 3 };

#define KEY(part, key, words, help) key,
#define WORDS(part, key, words, help) words,
#define HELP(part, key, words, help) help,
const char *const gw_memory_part_keys[GW_MEMORY_PART_COUNT] = {GW_MEMORY_PARTS(KEY)};
static const char *const part_words[] = {GW_MEMORY_PARTS(WORDS)};
static const char *const part_help[] = {GW_MEMORY_PARTS(HELP)};

/* A request, and what follows from it. */
struct planning {
	const struct gw_memory_request *request;
	const struct gw_policy_ops *policy;
	struct gw_model_shape shape;
	size_t row_bytes;
	uint32_t clustered;          /* layers */
	uint32_t segments, clusters; /* of a sequence, of a head */
	uint32_t selected;           /* tokens of a KV head, sinks too */
};

static uint32_t smaller(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint64_t activation_bytes(const struct planning *p)
{
	const struct gw_memory_request *r = p->request;
	const struct gw_model_shape *shape = &p->shape;
	uint64_t rows = r->chunk > r->max_batch ? r->chunk : r->max_batch;
	uint64_t width = shape->hidden +
		(uint64_t)(2 * shape->heads + 2 * shape->kv_heads) * shape->head_dim;
	uint64_t bytes = gw_model_activation_bytes(shape, r->max_rows) +
		(rows * width + (uint64_t)r->max_batch * shape->vocabulary) * sizeof(float);

	if (p->policy->offloads)
		bytes += gw_offload_device_bytes(shape, &r->policy, p->row_bytes, r->context);
	if (p->clustered > 0)
		bytes += gw_select_scratch_bytes(r->max_batch, shape, p->clusters) +
			gw_round_staging_bytes(shape, p->row_bytes, r->max_batch, p->selected);
	return bytes;
}

/* Of one prompt: residual rows of all its tokens, and a layer's rows, computed or brought from the
 * store. */
static uint64_t prompt_bytes(const struct planning *p)
{
	return (uint64_t)p->request->prompt * (p->shape.hidden * sizeof(float) +
		p->shape.kv_heads * p->row_bytes);
}

static struct kn_bounds bounds_of(const struct planning *p)
{
	const struct gw_memory_request *r = p->request;
	uint32_t prompt_segments = gw_segmentation_bound(r->prompt, &r->policy);
	struct kn_bounds b = {.matmul = 1,
		.heads = p->shape.heads,
		.kv_heads = p->shape.kv_heads,
		.head_dim = p->shape.head_dim,
		.decode_rows = r->max_batch,
		.dense_rows = r->context,
		.context_spans = p->policy->offloads ? prompt_segments + 1 : 1};

	if (p->clustered > 0) {
		b.sparse_rows = p->selected + r->policy.window + r->policy.fold;
		b.sparse_spans = (uint32_t)gw_round_spans(smaller(p->clusters, p->selected), p->selected);
		b.clusters = p->clusters;
		/* A fold's; prompts are clustered in the background. */
		b.index_jobs = p->shape.kv_heads;
		b.index_rows = smaller(r->policy.fold, r->context);
		b.index_clusters = b.index_rows / r->policy.cluster_tokens + 1;
	}
	return b;
}

static struct kn_bounds background_bounds(const struct planning *p)
{
	const struct gw_memory_request *r = p->request;
	uint32_t segments = gw_segmentation_bound(r->prompt, &r->policy);
	struct kn_bounds b = {
		.heads = p->shape.heads, .kv_heads = p->shape.kv_heads, .head_dim = p->shape.head_dim};

	if (p->clustered > 0) {
		b.index_jobs = smaller(segments, GW_OFFLOAD_UNITS) * p->shape.kv_heads;
		b.index_rows = gw_offload_row_bound(&r->policy, r->context);
		b.index_clusters = b.index_rows / r->policy.cluster_tokens + 1;
	}
	return b;
}

/* What lets a device look clusters up by itself, but for the mirror of the cache. */
static uint64_t step_bytes(const struct planning *p)
{
	const struct gw_memory_request *r = p->request;

	if (!r->own_steps || p->clustered == 0) return 0;
	return gw_device_step_bytes(&p->shape, p->row_bytes, p->clustered, r->max_batch, p->clusters,
			p->selected) +
		r->sequences *
			gw_step_map_bytes(p->clustered, p->shape.kv_heads, p->segments, p->clusters);
}

static uint64_t mirror_bytes(const struct planning *p, uint64_t cache)
{
	if (!p->request->own_steps) return 0;
	return gw_cache_mirror_bytes(cache / (p->row_bytes * GW_CACHE_PAGE_ROWS));
}

/* A page at least. */
static uint64_t whole_pages(const struct planning *p, uint64_t bytes)
{
	uint64_t page = p->row_bytes * GW_CACHE_PAGE_ROWS;

	return bytes < page ? page : bytes / page * page;
}

/* The cluster cache that the rest makes: no more than can be of use, and a step's selection of one
 * sequence at least. */
static uint64_t cache_bytes(const struct planning *p, uint64_t limit, uint64_t others)
{
	const struct gw_memory_request *r = p->request;
	uint64_t step = p->clustered * gw_selected_bytes(&p->shape, &r->policy, p->row_bytes, 1);
	uint64_t all = (uint64_t)r->sequences * r->context * p->row_bytes * p->shape.kv_heads *
		p->clustered;
	uint64_t most = r->cache_recency > 0 ? step * r->max_batch * (r->cache_recency + 1) : all;
	uint64_t left = limit - limit / ROUNDED_AWAY, page = p->row_bytes * GW_CACHE_PAGE_ROWS;

	if (p->clustered == 0) return 0;
	if (r->cache_bytes > 0) return whole_pages(p, r->cache_bytes);
	if (most > all) most = all;
	if (step > most) step = most;
	if (limit == 0) return whole_pages(p, 2 * step * r->max_batch);
	left = left > others ? left - others : 0;
	left = left / (page + mirror_bytes(p, page)) * page;
	if (left > most) left = most;
	return whole_pages(p, left > step ? left : step);
}

/* Another layer's rows, for the prompt whose last one is being indexed. */
static uint64_t spare_bytes(const struct planning *p)
{
	return p->policy->offloads
		? (uint64_t)p->request->context * p->shape.kv_heads * p->row_bytes
		: 0;
}

/* Each sequence's prompt may be open: rows of all its tokens, residuals of those that are left. */
static uint64_t open_prompts_bytes(const struct planning *p)
{
	uint32_t sequences = p->request->sequences, full = smaller(sequences, PROMPTS_LEFT);
	uint64_t residuals = (uint64_t)p->request->prompt * p->shape.hidden * sizeof(float);

	return sequences * prompt_bytes(p) - (sequences - full) * residuals + spare_bytes(p);
}

static enum kv_status begin(const struct gw_memory_request *r, struct planning *p)
{
	p->request = r;
	KV_TRY(gw_policy_find(r->policy.name, &p->policy));
	KV_TRY(gw_model_read_shape(r->file, &p->shape));
	p->row_bytes = kn_kv_row_bytes(r->kv_type, p->shape.head_dim);
	p->clustered = gw_clustered_layers(&p->shape, p->policy, &r->policy);
	if (p->clustered == 0) return KV_OK;
	p->segments = gw_segment_bound(r->context, r->context, &r->policy);
	p->clusters = gw_cluster_bound(r->context, p->segments, &r->policy);
	p->selected = smaller(r->policy.budget, r->context);
	return KV_OK;
}

uint64_t gw_memory_plan_sum(const struct gw_memory_plan *plan)
{
	uint64_t sum = 0;

	for (int i = 0; i < GW_MEMORY_PART_COUNT; i++)
		sum += plan->parts[i];
	return sum;
}

static double mebibytes(uint64_t bytes)
{
	return (double)bytes / (1 << 20);
}

const char *gw_memory_plan_text(const struct gw_memory_plan *plan, char text[GW_MEMORY_TEXT])
{
	size_t used = 0;

	text[0] = '\0';
	for (int i = 0; i < GW_MEMORY_PART_COUNT; i++)
		if (plan->parts[i] > 0 && used < GW_MEMORY_TEXT)
			used += (size_t)snprintf(text + used, GW_MEMORY_TEXT - used, "%s%s %.1f",
				used > 0 ? ", " : "", part_words[i], mebibytes(plan->parts[i]));
	return text;
}

/* The part that can be made smaller and is the largest. */
static int largest_part(const struct gw_memory_plan *plan)
{
	int most = GW_MEMORY_WEIGHTS + 1;

	for (int i = most; i < GW_MEMORY_PART_COUNT; i++)
		if (plan->parts[i] > plan->parts[most]) most = i;
	return plan->parts[GW_MEMORY_WEIGHTS] > plan->limit ? GW_MEMORY_WEIGHTS : most;
}

static enum kv_status refuse(const struct gw_memory_request *r, const struct gw_memory_plan *plan)
{
	char text[GW_MEMORY_TEXT];

	return kv_fail(r->limit_given ? KV_USAGE : KV_NO_MEMORY,
		"%s %.1f MiB: %.1f MiB are needed for %u sequence%s of %u tokens (%s); %s, or %s",
		r->limit_given ? "--device-memory" : "the device's free memory,",
		mebibytes(plan->limit), mebibytes(gw_memory_plan_sum(plan)), plan->sequences,
		plan->sequences == 1 ? "" : "s", plan->context, gw_memory_plan_text(plan, text),
		part_help[largest_part(plan)],
		r->limit_given ? "raise --device-memory" : "use a larger device");
}

enum kv_status gw_memory_plan_make(const struct gw_memory_request *r, struct gw_memory_plan *plan)
{
	struct gw_memory_plan made = {.limit = r->ops->memory_use(r->backend).limit,
		.sequences = r->sequences,
		.context = r->context};
	struct planning p = {0};
	uint64_t rows;

	KV_TRY(begin(r, &p));
	rows = (uint64_t)r->sequences * p.shape.kv_heads * p.row_bytes;
	made.parts[GW_MEMORY_WEIGHTS] = gw_model_weight_bound(r->file);
	made.parts[GW_MEMORY_DENSE_LAYERS] = rows * (p.shape.layers - p.clustered) * r->context;
	made.parts[GW_MEMORY_WINDOW] = rows * p.clustered *
		(r->policy.sinks + r->policy.window + r->policy.fold);
	made.parts[GW_MEMORY_INDEX] = (uint64_t)r->sequences * p.clustered *
		gw_cluster_index_bytes(p.shape.kv_heads, p.shape.head_dim, p.clusters);
	made.parts[GW_MEMORY_PROMPT] = open_prompts_bytes(&p);
	made.parts[GW_MEMORY_ACTIVATIONS] = activation_bytes(&p);
	made.bounds = bounds_of(&p);
	made.background = background_bounds(&p);
	made.parts[GW_MEMORY_SCRATCH] = r->ops->scratch_bytes(r->backend, &made.bounds);
	if (p.policy->offloads)
		made.parts[GW_MEMORY_SCRATCH] += r->ops->scratch_bytes(r->backend, &made.background);
	made.parts[GW_MEMORY_STEPS] = step_bytes(&p);
	made.parts[GW_MEMORY_CACHE] = cache_bytes(&p, made.limit, gw_memory_plan_sum(&made));
	made.parts[GW_MEMORY_STEPS] += mirror_bytes(&p, made.parts[GW_MEMORY_CACHE]);
	if (made.limit > 0 && gw_memory_plan_sum(&made) > made.limit) return refuse(r, &made);
	*plan = made;
	return KV_OK;
}
