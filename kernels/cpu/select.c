/* Selection: the clusters in falling vote until the budget is full, one job a task.
 *
 * A histogram over the leading bits of the votes finds the bucket in which the budget ends; only
 * the clusters down to that bucket go into a heap, from which they are taken in order. So the cost
 * is linear in the clusters, with a sort of little more than those that are chosen.
 */
#include <string.h>

#include "kernels/cpu/backend_cpu.h"
#include "kernels/cpu/order_key.h"

enum { BUCKET_SHIFT = 22, BUCKETS = 1 << (32 - BUCKET_SHIFT) };

struct ranking {
	const float *votes;
	uint32_t *heap;
	uint32_t count;
};

/* Cluster a comes before b. */
static int before(const float *votes, uint32_t a, uint32_t b)
{
	uint32_t x = kn_falling_key(votes[a]), y = kn_falling_key(votes[b]);
	return x != y ? x < y : a < b;
}

static void sift_down(const struct ranking *r, uint32_t at)
{
	uint32_t moved = r->heap[at];
	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= r->count) break;
		if (child + 1 < r->count && before(r->votes, r->heap[child + 1], r->heap[child])) child++;
		if (!before(r->votes, r->heap[child], moved)) break;
		r->heap[at] = r->heap[child];
		at = child;
	}
	r->heap[at] = moved;
}

static uint32_t take_first(struct ranking *r)
{
	uint32_t first = r->heap[0];
	r->heap[0] = r->heap[--r->count];
	if (r->count > 1) sift_down(r, 0);
	return first;
}

/* The last bucket that is needed to fill the budget. */
static uint32_t last_bucket(const struct kn_select_job *job)
{
	uint64_t tokens[BUCKETS];
	memset(tokens, 0, sizeof tokens);
	for (uint32_t c = 0; c < job->clusters; c++)
		tokens[kn_falling_key(job->votes[c]) >> BUCKET_SHIFT] += job->sizes[c];
	uint64_t sum = 0;
	for (uint32_t i = 0; i < BUCKETS; i++) {
		sum += tokens[i];
		if (sum >= job->budget) return i;
	}
	return BUCKETS - 1;
}

static void select_task(void *context, uint32_t task, uint32_t thread)
{
	(void)thread;
	const struct kn_select_arguments *a = context;
	const struct kn_select_job *job = &a->jobs[task];
	struct ranking r = {.votes = job->votes, .heap = job->scratch};
	uint32_t left = job->budget;
	uint32_t extents = 0;
	if (job->clusters != 0) memcpy(job->rest, job->sizes, job->clusters * sizeof *job->rest);
	uint32_t last = left != 0 ? last_bucket(job) : 0;
	for (uint32_t c = 0; left != 0 && c < job->clusters; c++)
		if (job->sizes[c] != 0 && kn_falling_key(job->votes[c]) >> BUCKET_SHIFT <= last)
			r.heap[r.count++] = c;
	for (uint32_t i = r.count / 2; i > 0; i--)
		sift_down(&r, i - 1);
	while (left != 0 && r.count != 0) {
		uint32_t c = take_first(&r);
		uint32_t take = job->sizes[c] < left ? job->sizes[c] : left;
		job->extents[extents++] = (struct kn_extent){.cluster = c, .count = take};
		job->rest[c] -= take;
		left -= take;
	}
	job->counts->extents = extents;
	job->counts->tokens = job->budget - left;
}

enum kv_status kn_cpu_select(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_select_arguments *a)
{
	(void)stream;
	if (a->job_count != 0 && a->jobs == NULL)
		return kv_fail(KV_INVALID, "select: %u jobs but no list of them", a->job_count);
	for (uint32_t i = 0; i < a->job_count; i++) {
		const struct kn_select_job *job = &a->jobs[i];
		if (job->counts == NULL) return kv_fail(KV_INVALID, "select: job %u lacks its counts", i);
		if (job->clusters != 0 &&
		    (job->votes == NULL || job->sizes == NULL || job->extents == NULL ||
		        job->rest == NULL || job->scratch == NULL))
			return kv_fail(
			    KV_INVALID, "select: job %u of %u clusters lacks an array", i, job->clusters);
	}
	if (a->job_count != 0) {
		struct kn_select_arguments arguments = *a;
		kn_pool_run(backend->pool, select_task, &arguments, a->job_count);
	}
	return KV_OK;
}
