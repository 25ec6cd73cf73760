/* The clusters of a layer: numbered across segments, replaced in place, refused when they cannot
 * be. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/policy/cluster_index.h"
#include "tests/lib/memory_device.h"

enum { HEADS = 2, DIM = 8, CAPACITY = 10, SEGMENTS = 4, UNIT_MOST = 8 };

/* The metadata of a stored unit whose numbers follow from `mark`. */
struct unit {
	struct gw_unit_metadata heads[HEADS];
	uint16_t centroids[HEADS][UNIT_MOST * DIM], value_means[HEADS][UNIT_MOST * DIM];
	uint32_t sizes[HEADS][UNIT_MOST];
	uint32_t clusters, plain, tokens;
};

static void fill(struct unit *unit, uint32_t mark, uint32_t clusters, uint32_t plain)
{
	memset(unit, 0, sizeof *unit);
	unit->clusters = clusters;
	unit->plain = plain;
	for (uint32_t head = 0; head < HEADS; head++) {
		unit->tokens = plain;
		for (uint32_t c = 0; c < clusters; c++) {
			/* The sums of both heads are equal, the sizes are not. */
			unit->sizes[head][c] = 3 + (head == 0 ? c : clusters - 1 - c);
			unit->tokens += unit->sizes[head][c];
			for (uint32_t i = 0; i < DIM; i++) {
				unit->centroids[head][c * DIM + i] = (uint16_t)(mark + 100 * head + 8 * c + i);
				unit->value_means[head][c * DIM + i] = (uint16_t)(mark + 5000 + 8 * c + i + head);
			}
		}
		unit->heads[head] = (struct gw_unit_metadata){
		    unit->centroids[head], unit->value_means[head], unit->sizes[head]};
	}
}

static enum kv_status attach(
    struct gw_cluster_index *index, uint32_t segment, const struct unit *unit)
{
	return gw_cluster_index_attach(
	    index, &index->device, segment, unit->heads, unit->clusters, unit->plain, unit->tokens);
}

static void check(
    const struct gw_cluster_index *index, uint32_t segment, uint32_t first, const struct unit *unit)
{
	assert_int_equal(index->segment_first[segment], first);
	for (uint32_t head = 0; head < HEADS; head++) {
		size_t slot = (size_t)head * CAPACITY + first;
		uint32_t row = unit->plain;

		assert_memory_equal(index->centroids + slot * DIM, unit->centroids[head],
		    unit->clusters * DIM * sizeof(uint16_t));
		assert_memory_equal(index->value_means + slot * DIM, unit->value_means[head],
		    unit->clusters * DIM * sizeof(uint16_t));
		for (uint32_t c = 0; c < unit->clusters; c++) {
			uint32_t size = unit->sizes[head][c];

			assert_int_equal(index->sizes[slot + c], size);
			assert_int_equal(index->first_row[slot + c], row);
			assert_int_equal(index->segment_of[first + c], segment);
			assert_int_equal(index->device_sizes[slot + c], size);
			assert_memory_equal(
			    &index->device_log_sizes[slot + c], &index->log_sizes[slot + c], sizeof(float));
			if (size == 0)
				assert_true(isinf(index->log_sizes[slot + c]));
			else
				assert_true(fabsf(index->log_sizes[slot + c] - logf((float)size)) < 1e-6f);
			row += size;
		}
	}
}

static struct gw_cluster_index *create(void)
{
	struct kn_device device = kvt_memory_device(kv_heap(), 0);
	struct gw_cluster_index *index = NULL;

	assert_int_equal(
	    gw_cluster_index_create(kv_heap(), &device, HEADS, DIM, CAPACITY, SEGMENTS, &index), KV_OK);
	assert_int_equal(index->clusters, 0);
	assert_int_equal(index->segments, 0);
	return index;
}

static void clusters_are_numbered_across_segments(void **state)
{
	struct gw_cluster_index *index = create();
	struct unit a, b, tail, d, e;

	(void)state;
	fill(&a, 0, 3, 16);
	fill(&b, 1000, 2, 0);
	fill(&tail, 0, 0, 64);
	fill(&d, 3000, 5, 0);
	assert_int_equal(attach(index, 0, &a), KV_OK);
	assert_int_equal(attach(index, 1, &b), KV_OK);
	assert_int_equal(attach(index, 2, &tail), KV_OK);
	assert_int_equal(index->clusters, 5);
	assert_int_equal(index->segments, 3);
	/* A fold takes the tail's place, and as many clusters as fit exactly. */
	gw_cluster_index_truncate(index, 2);
	assert_int_equal(index->clusters, 5);
	assert_int_equal(attach(index, 2, &d), KV_OK);
	assert_int_equal(index->clusters, CAPACITY);
	check(index, 0, 0, &a);
	check(index, 1, 3, &b);
	check(index, 2, 5, &d);
	assert_int_equal(attach(index, 3, &tail), KV_OK);
	check(index, 2, 5, &d);
	/* Another copy of a segment takes the place of the first. */
	fill(&e, 7000, 2, 0);
	e.sizes[0][0] = e.tokens;
	e.sizes[0][1] = 0;
	assert_int_equal(attach(index, 1, &e), KV_OK);
	check(index, 0, 0, &a);
	check(index, 1, 3, &e);
	check(index, 2, 5, &d);
	assert_int_equal(index->clusters, CAPACITY);
	assert_int_equal(index->segments, 4);
	gw_cluster_index_truncate(index, 4);
	gw_cluster_index_truncate(index, 99);
	assert_int_equal(index->segments, 4);
	gw_cluster_index_truncate(index, 1);
	assert_int_equal(index->clusters, 3);
	assert_int_equal(index->segments, 1);
	assert_int_equal(attach(index, 1, &b), KV_OK);
	check(index, 1, 3, &b);
	gw_cluster_index_truncate(index, 0);
	assert_int_equal(index->clusters, 0);
	assert_int_equal(attach(index, 0, &d), KV_OK);
	check(index, 0, 0, &d);
	gw_cluster_index_destroy(index);
}

static void what_does_not_fit_changes_nothing(void **state)
{
	struct gw_cluster_index *index = create();
	struct unit a, large, tail, three;

	(void)state;
	fill(&a, 0, 5, 16);
	fill(&large, 1000, 6, 0);
	fill(&three, 2000, 3, 0);
	fill(&tail, 0, 0, 9);
	assert_int_equal(attach(index, 1, &a), KV_INVALID); /* the first is missing */
	assert_int_equal(attach(index, 0, &a), KV_OK);
	assert_int_equal(attach(index, 2, &three), KV_INVALID);
	assert_int_equal(attach(index, 1, &large), KV_LIMIT);
	assert_int_equal(attach(index, 0, &three), KV_INVALID); /* another number of clusters */
	assert_int_equal(attach(index, 1, &three), KV_OK);
	assert_int_equal(attach(index, 2, &tail), KV_OK);
	assert_int_equal(attach(index, 3, &tail), KV_OK);
	assert_int_equal(attach(index, 4, &tail), KV_LIMIT);
	assert_int_equal(index->clusters, 8);
	assert_int_equal(index->segments, 4);
	check(index, 0, 0, &a);
	check(index, 1, 5, &three);
	gw_cluster_index_destroy(index);
}

static void sizes_that_do_not_add_up_are_corrupt(void **state)
{
	struct gw_cluster_index *index = create();
	struct unit good, bad;

	(void)state;
	fill(&good, 0, 3, 16);
	assert_int_equal(attach(index, 0, &good), KV_OK);
	for (int i = 0; i < 6; i++) {
		fill(&bad, 9000, 3, 16);
		if (i == 0) bad.sizes[1][2]++;
		if (i == 1) bad.sizes[0][0]--;
		if (i == 2) bad.tokens++;
		if (i == 3) bad.plain--;
		/* Sums that only a narrow type would take for right. */
		if (i == 4) bad.sizes[1][0] += 0x80000000u, bad.sizes[1][1] += 0x80000000u;
		if (i == 5) bad.sizes[0][0] = UINT32_MAX;
		assert_int_equal(attach(index, 1, &bad), KV_CORRUPT);
		assert_int_equal(attach(index, 0, &bad), KV_CORRUPT);
		assert_int_equal(index->segments, 1);
		assert_int_equal(index->clusters, 3);
		check(index, 0, 0, &good);
	}
	gw_cluster_index_destroy(index);
}

static void every_allocation_may_fail(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("index", 0);
	struct kn_device device = kvt_memory_device(allocator, 0);
	struct gw_cluster_index *index = NULL;
	enum kv_status status = KV_NO_MEMORY;
	uint64_t n = 0;

	(void)state;
	while (status != KV_OK) {
		kv_allocator_fail_at(allocator, ++n);
		status = gw_cluster_index_create(
		    allocator, &device, HEADS, DIM, CAPACITY, SEGMENTS, &index);
		kv_allocator_fail_at(allocator, 0);
		if (status == KV_OK) break;
		assert_int_equal(status, KV_NO_MEMORY);
		assert_null(index);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
		assert_true(n < 50);
	}
	assert_int_equal(n, 8);
	gw_cluster_index_destroy(index);
	gw_cluster_index_destroy(NULL);
	kv_allocator_destroy(allocator);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(clusters_are_numbered_across_segments),
	    cmocka_unit_test(what_does_not_fit_changes_nothing),
	    cmocka_unit_test(sizes_that_do_not_add_up_are_corrupt),
	    cmocka_unit_test(every_allocation_may_fail),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
