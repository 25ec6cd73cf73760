/* Attention, scoring, selection, indexing: operations whose jobs are sent ahead. */
#include <string.h>

#include "kernels/cuda/backend_cuda.h"
#include "kernels/cuda/launch_attention.h"
#include "kernels/cuda/launch_clusters.h"
#include "kernels/lookup_check.h"

/* Of a gather over the bus: enough for extents of different lengths to even out. */
static const uint32_t gather_blocks = 64;

static enum kv_status check_shape(const char *op, uint32_t group, uint32_t head_dim)
{
	if (group >= 1 && group <= KN_MAX_GROUP && head_dim >= KN_HEAD_DIM_STEP &&
	    head_dim <= KN_MAX_HEAD_DIM && head_dim % KN_HEAD_DIM_STEP == 0)
		return KV_OK;
	return kv_fail(KV_INVALID,
	    "%s: group %u and head_dim %u; use 1 to %d and a multiple of %d up to %d", op, group,
	    head_dim, KN_MAX_GROUP, KN_HEAD_DIM_STEP, KN_MAX_HEAD_DIM);
}

static enum kv_status check_jobs(const char *op, const void *jobs, uint32_t count)
{
	if (jobs == NULL) return kv_fail(KV_INVALID, "%s: %u jobs but no list of them", op, count);
	if (count > KN_CUDA_MAX_JOBS)
		return kv_fail(KV_LIMIT, "%s: %u jobs, at most %d", op, count, KN_CUDA_MAX_JOBS);
	return KV_OK;
}

static enum kv_status check_kv_type(const char *op, enum kn_kv_type type)
{
	if ((unsigned)type <= KN_KV_BF16) return KV_OK;
	return kv_fail(KV_INVALID, "%s: KV type %d is unknown", op, (int)type);
}

/* Descriptors as they are, with no pointers among them that have to be followed. */
static enum kv_status send_jobs(
    struct kn_stream *stream, const void *jobs, size_t bytes, void **device)
{
	struct kn_cuda_descriptors sent;

	KV_TRY(kn_cuda_describe(stream, bytes, &sent));
	memcpy(sent.host, jobs, bytes);
	KV_TRY(kn_cuda_send(stream, &sent));
	*device = sent.device;
	return KV_OK;
}

/* ---- attention ---- */

static enum kv_status check_dense(const struct kn_attend_dense_arguments *a)
{
	if (a->kv_heads == 0 || a->heads % a->kv_heads != 0)
		return kv_fail(
		    KV_INVALID, "attend_dense: %u heads over %u KV heads", a->heads, a->kv_heads);
	KV_TRY(check_shape("attend_dense", a->heads / a->kv_heads, a->head_dim));
	KV_TRY(check_kv_type("attend_dense", a->kv_type));
	if (!a->q || !a->out || !a->own || (a->context_spans != 0 && !a->context))
		return kv_fail(KV_INVALID, "attend_dense: q, out, own or context is missing");
	for (uint32_t head = 0; head < a->kv_heads; head++) {
		uint64_t tokens = (uint64_t)a->own_before + a->count;

		for (uint32_t i = 0; i < a->context_spans; i++)
			tokens += a->context[(size_t)head * a->context_spans + i].count;
		if (tokens > KN_CUDA_MAX_TOKENS)
			return kv_fail(KV_LIMIT, "attend_dense: %llu tokens of context; at most %d",
			    (unsigned long long)tokens, KN_CUDA_MAX_TOKENS);
	}
	return KV_OK;
}

enum kv_status kn_cuda_op_attend_dense(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_attend_dense_arguments *a)
{
	struct kn_attend_dense_arguments device = *a;
	struct kn_cuda_descriptors sent;
	size_t own = a->kv_heads * sizeof *a->own, spans;
	enum kv_status status;

	(void)backend;
	if (a->count == 0) return KV_OK;
	KV_TRY(check_dense(a));
	spans = (size_t)a->kv_heads * a->context_spans * sizeof *a->context;
	KV_TRY(kn_cuda_describe(stream, spans + own, &sent));
	if (spans > 0) memcpy(sent.host, a->context, spans);
	memcpy(sent.host + spans, (const void *)a->own, own);
	KV_TRY(kn_cuda_send(stream, &sent));
	device.context = (const struct kn_span *)(const void *)sent.device;
	device.own = (const uint8_t *const *)(const void *)(sent.device + spans);
	KV_TRY(kn_cuda_reserve(stream, &stream->scratch, kn_cuda_attend_dense_scratch_bytes(a)));
	kn_cuda_range_begin("attend_dense");
	status = kn_cuda_check(
	    kn_cuda_attend_dense(&device, stream->scratch.memory, stream->compute), "attend_dense");
	kn_cuda_range_end();
	return status;
}

static enum kv_status check_attend_job(const struct kn_attend_job *job, uint32_t i)
{
	const struct kn_estimate *e = &job->estimate;

	if (!job->q || !job->out || (job->span_count != 0 && !job->spans))
		return kv_fail(KV_INVALID, "attend_sparse: job %u lacks q, out or spans", i);
	if (e->clusters != 0 && (!e->logits || !e->rest || !e->value_means))
		return kv_fail(KV_INVALID, "attend_sparse: job %u has an incomplete estimate", i);
	return KV_OK;
}

/* Spans that the host has listed. */
static uint32_t spans_of_host(const struct kn_attend_job *job)
{
	return job->spans_written ? 0 : job->span_count;
}

/* What no job exceeds, and how many spans the host has listed in all. */
static enum kv_status bound_jobs(
    const struct kn_attend_sparse_arguments *a, struct kn_cuda_attend_bounds *bounds, size_t *spans)
{
	*bounds = (struct kn_cuda_attend_bounds){0};
	*spans = 0;
	for (uint32_t i = 0; i < a->job_count; i++) {
		const struct kn_attend_job *job = &a->jobs[i];
		uint64_t rows = 0;

		KV_TRY(check_attend_job(job, i));
		if (job->spans_written) rows = job->row_bound;
		for (uint32_t s = 0; s < spans_of_host(job); s++)
			rows += job->spans[s].count;
		if (rows > KN_CUDA_MAX_TOKENS)
			return kv_fail(KV_LIMIT, "attend_sparse: job %u attends to %llu rows; at most %d", i,
			    (unsigned long long)rows, KN_CUDA_MAX_TOKENS);
		if (rows > bounds->max_rows) bounds->max_rows = (uint32_t)rows;
		if (job->span_count > bounds->max_spans) bounds->max_spans = job->span_count;
		if (job->estimate.clusters > bounds->max_clusters)
			bounds->max_clusters = job->estimate.clusters;
		*spans += spans_of_host(job);
	}
	return KV_OK;
}

/* Jobs, then the spans of all that the host has listed. */
static enum kv_status send_attend_jobs(struct kn_stream *stream,
    const struct kn_attend_sparse_arguments *a, size_t spans, const struct kn_attend_job **jobs)
{
	size_t head = (a->job_count * sizeof *a->jobs + 63) & ~(size_t)63;
	struct kn_cuda_descriptors sent;
	struct kn_attend_job *job;
	uint8_t *host, *device;

	KV_TRY(kn_cuda_describe(stream, head + spans * sizeof(struct kn_span), &sent));
	job = (struct kn_attend_job *)(void *)sent.host;
	memcpy(job, a->jobs, a->job_count * sizeof *job);
	host = sent.host + head;
	device = sent.device + head;
	for (uint32_t i = 0; i < a->job_count; i++) {
		size_t bytes = spans_of_host(&a->jobs[i]) * sizeof(struct kn_span);

		if (a->jobs[i].spans_written) continue;
		if (bytes > 0) memcpy(host, a->jobs[i].spans, bytes);
		job[i].spans = (const struct kn_span *)(const void *)device;
		host += bytes;
		device += bytes;
	}
	KV_TRY(kn_cuda_send(stream, &sent));
	*jobs = (const struct kn_attend_job *)(const void *)sent.device;
	return KV_OK;
}

enum kv_status kn_cuda_op_attend_sparse(struct kn_backend *backend, struct kn_stream *stream,
    const struct kn_attend_sparse_arguments *a)
{
	struct kn_attend_sparse_arguments device = *a;
	struct kn_cuda_attend_bounds bounds;
	enum kv_status status;
	size_t spans;

	(void)backend;
	if (a->job_count == 0) return KV_OK;
	KV_TRY(check_shape("attend_sparse", a->group, a->head_dim));
	KV_TRY(check_kv_type("attend_sparse", a->kv_type));
	KV_TRY(check_jobs("attend_sparse", a->jobs, a->job_count));
	KV_TRY(bound_jobs(a, &bounds, &spans));
	KV_TRY(
	    kn_cuda_reserve(stream, &stream->scratch, kn_cuda_attend_sparse_scratch_bytes(a, &bounds)));
	KV_TRY(send_attend_jobs(stream, a, spans, &device.jobs));
	kn_cuda_range_begin("attend");
	status = kn_cuda_check(
	    kn_cuda_attend_sparse(&device, &bounds, stream->scratch.memory, stream->compute), "attend");
	kn_cuda_range_end();
	return status;
}

/* ---- clusters ---- */

enum kv_status kn_cuda_op_score(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_score_arguments *a)
{
	struct kn_score_arguments device = *a;
	uint32_t most = 0;
	void *jobs = NULL;
	enum kv_status status;

	(void)backend;
	KV_TRY(check_shape("score", a->group, a->head_dim));
	if (a->job_count == 0) return KV_OK;
	KV_TRY(check_jobs("score", a->jobs, a->job_count));
	for (uint32_t i = 0; i < a->job_count; i++) {
		const struct kn_score_job *job = &a->jobs[i];

		if (job->clusters != 0 && (!job->q || !job->centroids || !job->log_sizes || !job->logits ||
		                              !job->votes || job->logits_stride < job->clusters))
			return kv_fail(
			    KV_INVALID, "score: job %u of %u clusters lacks an array", i, job->clusters);
		if (job->clusters > most) most = job->clusters;
	}
	KV_TRY(kn_cuda_reserve(
	    stream, &stream->scratch, kn_cuda_score_scratch_bytes(a->job_count, most, a->group)));
	KV_TRY(send_jobs(stream, a->jobs, a->job_count * sizeof *a->jobs, &jobs));
	device.jobs = jobs;
	kn_cuda_range_begin("score");
	status = kn_cuda_check(
	    kn_cuda_score(&device, most, stream->scratch.memory, stream->compute), "score");
	kn_cuda_range_end();
	return status;
}

enum kv_status kn_cuda_op_select(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_select_arguments *a)
{
	struct kn_select_arguments device = *a;
	void *jobs = NULL;
	enum kv_status status;

	(void)backend;
	if (a->job_count == 0) return KV_OK;
	KV_TRY(check_jobs("select", a->jobs, a->job_count));
	for (uint32_t i = 0; i < a->job_count; i++) {
		const struct kn_select_job *job = &a->jobs[i];

		if (!job->counts) return kv_fail(KV_INVALID, "select: job %u lacks its counts", i);
		if (job->clusters != 0 &&
		    (!job->votes || !job->sizes || !job->extents || !job->rest || !job->scratch))
			return kv_fail(
			    KV_INVALID, "select: job %u of %u clusters lacks an array", i, job->clusters);
	}
	KV_TRY(send_jobs(stream, a->jobs, a->job_count * sizeof *a->jobs, &jobs));
	device.jobs = jobs;
	kn_cuda_range_begin("select");
	status = kn_cuda_check(kn_cuda_select(&device, stream->compute), "select");
	kn_cuda_range_end();
	return status;
}

enum kv_status kn_cuda_op_lookup(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_lookup_arguments *a)
{
	struct kn_lookup_arguments device = *a;
	void *jobs = NULL;
	enum kv_status status;

	(void)backend;
	KV_TRY(kn_lookup_check(a));
	if (a->job_count > 0) KV_TRY(check_jobs("lookup", a->jobs, a->job_count));
	if (a->job_count > 0) KV_TRY(send_jobs(stream, a->jobs, a->job_count * sizeof *a->jobs, &jobs));
	device.jobs = jobs;
	kn_cuda_range_begin("lookup");
	status = kn_cuda_check(kn_cuda_lookup(&device, stream->compute), "lookup");
	kn_cuda_range_end();
	return status;
}

enum kv_status kn_cuda_op_gather_extents(struct kn_backend *backend, struct kn_stream *stream,
    const struct kn_gather_extents_arguments *a)
{
	enum kv_status status;

	(void)backend;
	if (!a->count || !a->failed || (a->max_copies != 0 && !a->copies))
		return kv_fail(KV_INVALID, "gather_extents: copies, count or failed is missing");
	kn_cuda_range_begin("gather");
	status =
	    kn_cuda_check(kn_cuda_gather_extents(a, gather_blocks, stream->compute), "gather_extents");
	kn_cuda_range_end();
	return status;
}

static enum kv_status check_index(const struct kn_index_arguments *a)
{
	KV_TRY(check_shape("index", 1, a->head_dim));
	KV_TRY(check_kv_type("index", a->kv_type));
	if (a->iterations == 0) return kv_fail(KV_INVALID, "index: no iterations; use at least one");
	if ((unsigned)a->update > KN_INDEX_PAPER)
		return kv_fail(KV_INVALID, "index: update %d is unknown", (int)a->update);
	if (a->job_count != 0 && !a->jobs)
		return kv_fail(KV_INVALID, "index: %u jobs but no list of them", a->job_count);
	for (uint32_t i = 0; i < a->job_count; i++) {
		const struct kn_index_job *job = &a->jobs[i];

		if (job->clusters == 0 || job->clusters > job->n ||
		    job->row_stride < kn_kv_row_bytes(a->kv_type, a->head_dim))
			return kv_fail(KV_INVALID,
			    "index: job %u has %u clusters for %u rows, %zu bytes apart; use 1 to n clusters",
			    i, job->clusters, job->n, job->row_stride);
		if (!job->rows || !job->order || !job->sizes || !job->centroids || !job->value_means)
			return kv_fail(KV_INVALID, "index: job %u lacks an array", i);
	}
	return KV_OK;
}

/* How many of the first jobs share a round of scratch memory, and their bounds. */
static uint32_t index_round(
    const struct kn_index_arguments *a, uint32_t first, struct kn_cuda_index_bounds *bounds)
{
	uint32_t count = 0;

	*bounds = (struct kn_cuda_index_bounds){.head_dim = a->head_dim};
	while (first + count < a->job_count && count < KN_CUDA_MAX_JOBS) {
		const struct kn_index_job *job = &a->jobs[first + count];
		struct kn_cuda_index_bounds more = *bounds;

		more.jobs = count + 1;
		if (job->n > more.rows) more.rows = job->n;
		if (job->clusters > more.clusters) more.clusters = job->clusters;
		if (count > 0 && kn_cuda_index_scratch_bytes(&more) > KN_CUDA_INDEX_SCRATCH_BYTES) break;
		*bounds = more;
		count++;
	}
	return count;
}

/* What was asked for, and in the log, once, what it came to. */
static enum kv_status choose_update(struct kn_backend *backend, const struct kn_index_arguments *a,
    const struct kn_cuda_index_bounds *bounds, enum kn_cuda_update *update)
{
	int told;

	*update = KN_CUDA_UPDATE_ORDERED;
	if (a->update != KN_INDEX_PAPER) return KV_OK;
	KV_TRY(kn_cuda_check(kn_cuda_choose_update(bounds, update), "index"));
	told = *update == KN_CUDA_UPDATE_ORDERED ? 2 : 1;
	if ((backend->told_update & told) != 0) return KV_OK;
	backend->told_update |= told;
	if (told == 1)
		kv_log(KV_LOG_INFO, "kernels",
		    "cuda: centroids are summed by the paper's kernel, %d partitions", (int)*update);
	else
		kv_log(KV_LOG_INFO, "kernels",
		    "cuda: %u clusters are too many for the paper's kernel: they are summed in order",
		    bounds->clusters);
	return KV_OK;
}

static enum kv_status run_index_round(struct kn_stream *stream, const struct kn_index_arguments *a,
    uint32_t first, const struct kn_cuda_index_bounds *bounds)
{
	struct kn_index_arguments device = *a;
	enum kn_cuda_update update;
	void *jobs = NULL;

	KV_TRY(choose_update(stream->backend, a, bounds, &update));
	KV_TRY(kn_cuda_reserve(stream, &stream->scratch, kn_cuda_index_scratch_bytes(bounds)));
	KV_TRY(send_jobs(stream, a->jobs + first, bounds->jobs * sizeof *a->jobs, &jobs));
	device.jobs = jobs;
	device.job_count = bounds->jobs;
	return kn_cuda_check(
	    kn_cuda_index(&device, bounds, update, stream->scratch.memory, stream->compute), "index");
}

enum kv_status kn_cuda_op_index(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_index_arguments *a)
{
	struct kn_cuda_index_bounds bounds;
	enum kv_status status = KV_OK;

	(void)backend;
	KV_TRY(check_index(a));
	kn_cuda_range_begin("index");
	for (uint32_t first = 0; first < a->job_count && status == KV_OK; first += bounds.jobs) {
		(void)index_round(a, first, &bounds);
		status = run_index_round(stream, a, first, &bounds);
	}
	kn_cuda_range_end();
	return status;
}
