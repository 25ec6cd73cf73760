/* Selection by clusters, against a direct computation in double: the budget to the token, the
 * order, ties, what is left for the estimate. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/policy/policy.h"
#include "kernels/cpu/half.h"
#include "tests/lib/kernel_harness.h"
#include "tests/lib/memory_device.h"

enum { DIM = 16, CAPACITY = 200, ROWS = 3, MAX_HEADS = 16, MAX_KV_HEADS = 4 };

struct bench {
	struct kvt_backend b;
	struct gw_model_shape shape;
	struct gw_policy_options options;
	struct gw_select_scratch *scratch;
	struct kn_stream *stream;
	struct gw_policy_context context;
	struct gw_cluster_index *indices[ROWS];
	struct gw_selection selections[ROWS][MAX_KV_HEADS];
	struct gw_select_row rows[ROWS];
	float q[ROWS][MAX_HEADS * DIM];
};

/* `clusters` of random size, some empty, around centroids of which every ninth is the one before.
 */
static void attach(struct gw_cluster_index *index, uint32_t clusters, struct kv_random *random)
{
	struct gw_unit_metadata heads[MAX_KV_HEADS];
	static uint16_t centroids[MAX_KV_HEADS][CAPACITY * DIM], values[MAX_KV_HEADS][CAPACITY * DIM];
	static uint32_t sizes[MAX_KV_HEADS][CAPACITY];
	uint32_t tokens = 5 + 40 * clusters;

	for (uint32_t head = 0; head < index->kv_heads; head++) {
		uint32_t left = 40 * clusters;

		for (uint32_t c = 0; c < clusters; c++) {
			uint32_t size = c % 7 == 3 ? 0 : 1 + (uint32_t)kv_random_below(random, 70);

			if (size > left || c + 1 == clusters) size = left;
			sizes[head][c] = size;
			left -= size;
			for (uint32_t i = 0; i < DIM; i++) {
				uint32_t at = c * DIM + i;

				centroids[head][at] = c % 9 == 8 ? centroids[head][at - DIM]
				                                 : kn_half_from_float(kv_random_normal(random));
				values[head][at] = kn_half_from_float(kv_random_normal(random));
			}
			/* Equal votes need equal sizes. */
			if (c % 9 == 8 && c + 1 < clusters && sizes[head][c - 1] <= left + size) {
				left += size;
				sizes[head][c] = sizes[head][c - 1];
				left -= sizes[head][c];
			}
		}
		heads[head] = (struct gw_unit_metadata){centroids[head], values[head], sizes[head]};
	}
	assert_int_equal(
	    gw_cluster_index_attach(index, &index->device, 0, heads, clusters, 5, tokens), KV_OK);
}

static void bench_open(struct bench *bench, uint32_t heads, uint32_t kv_heads)
{
	struct kn_device device;

	memset(bench, 0, sizeof *bench);
	assert_true(kvt_backend_open(&bench->b, KN_CPU_AUTO, 2));
	assert_int_equal(
	    bench->b.ops->stream_create(bench->b.backend, KN_STREAM_COMPUTE, &bench->stream), KV_OK);
	bench->shape.heads = heads;
	bench->shape.kv_heads = kv_heads;
	bench->shape.head_dim = DIM;
	bench->shape.attention_scale = 0.25f;
	bench->options.size_term = bench->options.estimate = 1;
	device = (struct kn_device){bench->b.ops, bench->b.backend, bench->stream};
	assert_int_equal(gw_select_scratch_create(
	                     kv_heap(), &device, ROWS, &bench->shape, CAPACITY, &bench->scratch),
	    KV_OK);
	bench->context =
	    (struct gw_policy_context){&bench->options, &bench->shape, device, bench->scratch};
	for (uint32_t row = 0; row < ROWS; row++) {
		assert_int_equal(gw_cluster_index_create(kv_heap(), &device, kv_heads, DIM, CAPACITY + 1,
		                     4, &bench->indices[row]),
		    KV_OK);
		bench->rows[row] =
		    (struct gw_select_row){.index = bench->indices[row], .q = bench->q[row],
		        .out = bench->selections[row]};
	}
}

static void bench_close(struct bench *bench)
{
	for (uint32_t row = 0; row < ROWS; row++)
		gw_cluster_index_destroy(bench->indices[row]);
	gw_select_scratch_destroy(bench->scratch);
	bench->b.ops->stream_destroy(bench->b.backend, bench->stream);
	kvt_backend_close(&bench->b);
}

static double logit(const struct bench *bench, uint32_t row, uint32_t head, uint32_t g, uint32_t c)
{
	const struct gw_cluster_index *index = bench->indices[row];
	uint32_t group = bench->shape.heads / bench->shape.kv_heads;
	const float *q = bench->q[row] + (head * group + g) * DIM;
	const uint16_t *centroid = index->centroids + ((size_t)head * index->capacity + c) * DIM;
	double dot = 0.0;

	for (uint32_t i = 0; i < DIM; i++)
		dot += (double)q[i] * (double)kn_half_to_float(centroid[i]);
	return dot * 0.25;
}

static const uint32_t *sizes_of(const struct bench *bench, uint32_t row, uint32_t head)
{
	return bench->indices[row]->sizes + (size_t)head * bench->indices[row]->capacity;
}

static void direct_votes(const struct bench *bench, uint32_t row, uint32_t head, double *votes)
{
	uint32_t clusters = bench->indices[row]->clusters;
	const uint32_t *sizes = sizes_of(bench, row, head);

	memset(votes, 0, CAPACITY * sizeof *votes);
	for (uint32_t g = 0; g < bench->shape.heads / bench->shape.kv_heads; g++) {
		double sum = 0.0;

		for (int pass = 0; pass < 2; pass++)
			for (uint32_t c = 0; c < clusters; c++) {
				double weight = exp(logit(bench, row, head, g, c));

				if (bench->options.size_term) weight *= sizes[c];
				if (sizes[c] == 0) weight = 0.0;
				if (pass == 0)
					sum += weight;
				else
					votes[c] += weight / sum;
			}
	}
}

static void check_head(const struct bench *bench, uint32_t row, uint32_t head)
{
	const struct gw_cluster_index *index = bench->indices[row];
	const struct gw_selection *s = &bench->selections[row][head];
	const uint32_t *sizes = sizes_of(bench, row, head);
	uint32_t budget = bench->rows[row].budget, all = 0, taken = 0, left[CAPACITY];
	double votes[CAPACITY], last = HUGE_VAL;

	direct_votes(bench, row, head, votes);
	for (uint32_t c = 0; c < index->clusters; c++) {
		left[c] = sizes[c];
		all += sizes[c];
	}
	for (uint32_t e = 0; e < s->extent_count; e++) {
		uint32_t c = s->extents[e].cluster, count = s->extents[e].count;

		assert_true(c < index->clusters);
		assert_int_equal(left[c], sizes[c]); /* each at most once */
		assert_true(count >= 1);
		if (e + 1 < s->extent_count) assert_int_equal(count, sizes[c]);
		assert_true(count <= sizes[c]);
		assert_true(votes[c] <= last * (1.0 + 1e-5));
		/* Of clusters that are alike the first goes first. */
		if (c % 9 == 8 && sizes[c] > 0 && sizes[c - 1] == sizes[c])
			assert_true(left[c - 1] < sizes[c - 1]);
		last = votes[c];
		left[c] -= count;
		taken += count;
	}
	assert_int_equal(taken, budget < all ? budget : all);
	assert_int_equal(s->tokens, taken);
	for (uint32_t c = 0; c < index->clusters; c++)
		if (left[c] == sizes[c] && sizes[c] > 0 && budget > 0)
			assert_true(votes[c] <= last * (1.0 + 1e-5));
	assert_int_equal(s->estimate.clusters, bench->options.estimate ? index->clusters : 0);
	if (!bench->options.estimate) return;
	assert_ptr_equal(
	    s->estimate.value_means, index->value_means + (size_t)head * index->capacity * DIM);
	for (uint32_t c = 0; c < index->clusters; c++) {
		assert_int_equal(s->estimate.rest[c], left[c]);
		for (uint32_t g = 0; g < bench->shape.heads / bench->shape.kv_heads; g++)
			assert_true(fabs((double)s->estimate.logits[g * s->estimate.logits_stride + c] -
			                 logit(bench, row, head, g, c)) < 1e-4);
	}
}

static void run_case(uint32_t heads, uint32_t kv_heads, int size_term, int estimate, uint64_t seed)
{
	/* More budget than there is, a budget that ends inside a cluster, none; many, few, no clusters.
	 */
	static const uint32_t clusters[] = {0, 1, 2, 10, 60, CAPACITY};
	static const uint32_t budgets[] = {0, 1, 17, 300, 1100, 40 * CAPACITY, UINT32_MAX};
	struct kv_random random;
	struct bench bench;

	kv_random_seed(&random, seed);
	for (uint32_t i = 0; i < 6 * 7; i++) {
		bench_open(&bench, heads, kv_heads);
		bench.options.size_term = size_term;
		bench.options.estimate = estimate;
		for (uint32_t row = 0; row < ROWS; row++) {
			uint32_t count = clusters[(i + row) % 6];

			if (count > 0) attach(bench.indices[row], count, &random);
			bench.rows[row].budget = budgets[(i / 6 + row) % 7];
			kvt_fill_peaky(&random, bench.q[row], heads * DIM, 1.0f);
		}
		assert_int_equal(
		    gw_select_rows(&gw_layer_clusters, &bench.context, bench.rows, ROWS), KV_OK);
		for (uint32_t row = 0; row < ROWS; row++)
			for (uint32_t head = 0; head < kv_heads; head++)
				check_head(&bench, row, head);
		bench_close(&bench);
	}
}

static void the_best_clusters_fill_the_budget(void **state)
{
	(void)state;
	run_case(4, 2, 1, 1, 1);
	run_case(3, 3, 1, 1, 2);
	run_case(14, 2, 1, 0, 3);
	run_case(8, 1, 0, 1, 4);
	run_case(16, 4, 0, 0, 5);
}

static void more_than_the_scratch_has_room_for_is_refused(void **state)
{
	struct kv_random random;
	struct bench bench;
	struct gw_select_row rows[ROWS + 1];

	(void)state;
	kv_random_seed(&random, 9);
	bench_open(&bench, 4, 2);
	for (uint32_t row = 0; row < ROWS; row++) {
		attach(bench.indices[row], 3, &random);
		bench.rows[row].budget = 10;
		rows[row] = bench.rows[row];
	}
	rows[ROWS] = rows[0];
	assert_int_equal(gw_select_rows(&gw_layer_clusters, &bench.context, rows, ROWS + 1), KV_LIMIT);
	assert_int_equal(gw_select_rows(&gw_layer_clusters, &bench.context, rows, ROWS), KV_OK);
	bench.indices[1]->clusters = CAPACITY + 1;
	assert_int_equal(gw_select_rows(&gw_layer_clusters, &bench.context, rows, ROWS), KV_LIMIT);
	bench.indices[1]->clusters = 3;
	bench_close(&bench);
}

static void every_allocation_may_fail(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("select", 0);
	struct kn_device device = kvt_memory_device(allocator, 0);
	struct gw_model_shape shape = {.heads = 4, .kv_heads = 2, .head_dim = DIM};
	struct gw_select_scratch *scratch = NULL;
	enum kv_status status = KV_NO_MEMORY;
	uint64_t n = 0;

	(void)state;
	while (status != KV_OK) {
		kv_allocator_fail_at(allocator, ++n);
		status = gw_select_scratch_create(allocator, &device, 2, &shape, 10, &scratch);
		kv_allocator_fail_at(allocator, 0);
		if (status == KV_OK) break;
		assert_int_equal(status, KV_NO_MEMORY);
		assert_null(scratch);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
		assert_true(n < 50);
	}
	gw_select_scratch_destroy(scratch);
	gw_select_scratch_destroy(NULL);
	kv_allocator_destroy(allocator);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_best_clusters_fill_the_budget),
	    cmocka_unit_test(more_than_the_scratch_has_room_for_is_refused),
	    cmocka_unit_test(every_allocation_may_fail),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
