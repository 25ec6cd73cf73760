/* The operations of the discrete test backend: check what they point at, copy their descriptors,
 * leave the rest for later. */
#include "tests/lib/discrete_internal.h"

#define RUN(op)                                                                                    \
	static enum kv_status run_##op(struct kn_backend *cpu, const struct discrete_entry *entry)     \
	{                                                                                              \
		return kn_cpu_ops.op(cpu, NULL, &entry->a.op);                                             \
	}
#define RUN_OP(op, arguments) RUN(op)
KN_BACKEND_OPS(RUN_OP)

/* The entry of a call whose arguments are copied as they are. */
#define QUEUE(op)                                                                                  \
	struct discrete_entry *entry = discrete_queue(discrete_of(backend), stream, run_##op);         \
	entry->a.op = *a

#define CHECK(op, pointer) KV_TRY(discrete_check(discrete_of(backend), #op, #pointer, (pointer)))

enum kv_status discrete_op_matmul(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_matmul_arguments *a)
{
	CHECK(matmul, a->x);
	CHECK(matmul, a->y);
	CHECK(matmul, a->bias);
	CHECK(matmul, a->add);
	QUEUE(matmul);
	return KV_OK;
}

enum kv_status discrete_op_embed(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_embed_arguments *a)
{
	CHECK(embed, a->ids);
	CHECK(embed, a->out);
	QUEUE(embed);
	return KV_OK;
}

enum kv_status discrete_op_rms_norm(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_rms_norm_arguments *a)
{
	CHECK(rms_norm, a->x);
	CHECK(rms_norm, a->weight);
	CHECK(rms_norm, a->out);
	QUEUE(rms_norm);
	return KV_OK;
}

enum kv_status discrete_op_rotate(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_rotate_arguments *a)
{
	CHECK(rotate, a->x);
	CHECK(rotate, a->positions);
	CHECK(rotate, a->inverse_frequency);
	QUEUE(rotate);
	return KV_OK;
}

enum kv_status discrete_op_silu_mul(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_silu_mul_arguments *a)
{
	CHECK(silu_mul, a->gate);
	CHECK(silu_mul, a->up);
	CHECK(silu_mul, a->out);
	QUEUE(silu_mul);
	return KV_OK;
}

enum kv_status discrete_op_store_kv(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_store_kv_arguments *a)
{
	CHECK(store_kv, a->k);
	CHECK(store_kv, a->v);
	CHECK(store_kv, a->rows);
	QUEUE(store_kv);
	return KV_OK;
}

enum kv_status discrete_op_attend_dense(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_attend_dense_arguments *a)
{
	size_t spans = (size_t)a->kv_heads * a->context_spans;

	CHECK(attend_dense, a->q);
	CHECK(attend_dense, a->out);
	for (size_t i = 0; i < spans; i++)
		if (a->context[i].count > 0) CHECK(attend_dense, a->context[i].rows);
	for (uint32_t head = 0; head < a->kv_heads; head++)
		CHECK(attend_dense, a->own[head]);
	QUEUE(attend_dense);
	entry->a.attend_dense.context = entry->copies[0] =
	    discrete_clone(a->context, spans, sizeof *a->context);
	entry->a.attend_dense.own = entry->copies[1] =
	    discrete_clone((const void *)a->own, a->kv_heads, sizeof *a->own);
	return KV_OK;
}

/* Spans that the host has listed. */
static uint32_t host_spans(const struct kn_attend_job *job)
{
	return job->spans_written != NULL ? 0 : job->span_count;
}

static enum kv_status check_attend_job(struct kn_backend *backend, const struct kn_attend_job *job)
{
	CHECK(attend_sparse, job->q);
	CHECK(attend_sparse, job->out);
	CHECK(attend_sparse, job->exact_mass);
	CHECK(attend_sparse, job->spans_written);
	if (job->spans_written != NULL) CHECK(attend_sparse, job->spans);
	for (uint32_t i = 0; i < host_spans(job); i++)
		CHECK(attend_sparse, job->spans[i].rows);
	if (job->estimate.clusters == 0) return KV_OK;
	CHECK(attend_sparse, job->estimate.logits);
	CHECK(attend_sparse, job->estimate.rest);
	CHECK(attend_sparse, job->estimate.value_means);
	return KV_OK;
}

enum kv_status discrete_op_attend_sparse(struct kn_backend *backend, struct kn_stream *stream,
    const struct kn_attend_sparse_arguments *a)
{
	struct kn_attend_job *jobs;
	struct kn_span *spans;
	size_t count = 0;

	for (uint32_t i = 0; i < a->job_count; i++) {
		KV_TRY(check_attend_job(backend, &a->jobs[i]));
		count += host_spans(&a->jobs[i]);
	}
	QUEUE(attend_sparse);
	jobs = entry->copies[0] = discrete_clone(a->jobs, a->job_count, sizeof *a->jobs);
	spans = entry->copies[1] = discrete_clone(NULL, count, sizeof *spans);
	for (uint32_t i = 0; i < a->job_count; i++) {
		uint32_t listed = host_spans(&jobs[i]);

		for (uint32_t j = 0; j < listed; j++)
			spans[j] = a->jobs[i].spans[j];
		if (jobs[i].spans_written == NULL) jobs[i].spans = spans;
		spans += listed;
	}
	entry->a.attend_sparse.jobs = jobs;
	return KV_OK;
}

enum kv_status discrete_op_score(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_score_arguments *a)
{
	for (uint32_t i = 0; i < a->job_count; i++) {
		CHECK(score, a->jobs[i].q);
		CHECK(score, a->jobs[i].centroids);
		CHECK(score, a->jobs[i].log_sizes);
		CHECK(score, a->jobs[i].logits);
		CHECK(score, a->jobs[i].votes);
	}
	QUEUE(score);
	entry->a.score.jobs = entry->copies[0] = discrete_clone(a->jobs, a->job_count, sizeof *a->jobs);
	return KV_OK;
}

enum kv_status discrete_op_select(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_select_arguments *a)
{
	for (uint32_t i = 0; i < a->job_count; i++) {
		CHECK(select, a->jobs[i].votes);
		CHECK(select, a->jobs[i].sizes);
		CHECK(select, a->jobs[i].extents);
		CHECK(select, a->jobs[i].rest);
		CHECK(select, a->jobs[i].counts);
		CHECK(select, a->jobs[i].scratch);
	}
	QUEUE(select);
	entry->a.select.jobs = entry->copies[0] =
	    discrete_clone(a->jobs, a->job_count, sizeof *a->jobs);
	return KV_OK;
}

enum kv_status discrete_op_index(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_index_arguments *a)
{
	for (uint32_t i = 0; i < a->job_count; i++) {
		CHECK(index, a->jobs[i].rows);
		CHECK(index, a->jobs[i].order);
		CHECK(index, a->jobs[i].sizes);
		CHECK(index, a->jobs[i].centroids);
		CHECK(index, a->jobs[i].value_means);
	}
	QUEUE(index);
	entry->a.index.jobs = entry->copies[0] = discrete_clone(a->jobs, a->job_count, sizeof *a->jobs);
	return KV_OK;
}

enum kv_status discrete_op_copy(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_copy_arguments *a)
{
	for (uint32_t i = 0; i < a->job_count; i++) {
		CHECK(copy, a->jobs[i].source);
		CHECK(copy, a->jobs[i].destination);
		if (a->jobs[i].destination < a->jobs[i].source + a->jobs[i].bytes &&
		    a->jobs[i].source < a->jobs[i].destination + a->jobs[i].bytes)
			return kv_fail(KV_INTERNAL, "copy: job %u overlaps itself", i);
	}
	QUEUE(copy);
	entry->a.copy.jobs = entry->copies[0] = discrete_clone(a->jobs, a->job_count, sizeof *a->jobs);
	return KV_OK;
}

enum kv_status discrete_op_gather_rows(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_gather_rows_arguments *a)
{
	CHECK(gather_rows, a->source);
	CHECK(gather_rows, a->order);
	CHECK(gather_rows, a->destination);
	QUEUE(gather_rows);
	return KV_OK;
}

static enum kv_status check_lookup_job(struct kn_backend *backend, const struct kn_lookup_job *job)
{
	CHECK(lookup, job->extents);
	CHECK(lookup, job->selected);
	CHECK(lookup, job->hints);
	CHECK(lookup, job->segment_of);
	CHECK(lookup, job->segment_first);
	CHECK(lookup, job->segment_ids);
	CHECK(lookup, job->first_row);
	CHECK(lookup, job->unit_rows);
	CHECK(lookup, job->spans);
	CHECK(lookup, job->span_count);
	CHECK(lookup, job->misses);
	CHECK(lookup, job->counts);
	if (job->before.count > 0) CHECK(lookup, job->before.rows);
	if (job->after.count > 0) CHECK(lookup, job->after.rows);
	return KV_OK;
}

enum kv_status discrete_op_lookup(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_lookup_arguments *a)
{
	for (uint32_t i = 0; i < a->job_count; i++)
		KV_TRY(check_lookup_job(backend, &a->jobs[i]));
	CHECK(lookup, a->cache.slots);
	CHECK(lookup, a->cache.next_page);
	CHECK(lookup, a->cache.memory);
	CHECK(lookup, a->cache.used_step);
	CHECK(lookup, a->staging.memory);
	CHECK(lookup, a->staging.used);
	CHECK(lookup, a->staging.copies);
	CHECK(lookup, a->staging.copy_count);
	CHECK(lookup, a->staging.failed);
	QUEUE(lookup);
	entry->a.lookup.jobs = entry->copies[0] =
	    discrete_clone(a->jobs, a->job_count, sizeof *a->jobs);
	return KV_OK;
}

enum kv_status discrete_op_gather_extents(struct kn_backend *backend, struct kn_stream *stream,
    const struct kn_gather_extents_arguments *a)
{
	CHECK(gather_extents, a->copies);
	CHECK(gather_extents, a->count);
	CHECK(gather_extents, a->generation);
	CHECK(gather_extents, a->failed);
	QUEUE(gather_extents);
	return KV_OK;
}
