/* What a device would find in the mirror is what the cache holds, whatever happened in between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/random.h"
#include "gpu-worker/cache/cluster_cache_internal.h"
#include "tests/lib/memory_device.h"

enum { ROW_BYTES = 24, PAGE = GW_CACHE_PAGE_ROWS, PAGE_BYTES = PAGE * ROW_BYTES, MAX_ROWS = 400 };

static struct kn_backend_ops ops; /* the memory device's, counting */
static uint32_t most_copies;      /* of one operation */
static enum kv_status (*copy_to)(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_copy_arguments *a);

static enum kv_status count_copies(
    struct kn_backend *backend, struct kn_stream *stream, const struct kn_copy_arguments *a)
{
	if (a->job_count > most_copies) most_copies = a->job_count;
	return copy_to(backend, stream, a);
}

static struct kn_device counting_device(struct kv_allocator *allocator)
{
	struct kn_device device = kvt_memory_device(allocator, 0);

	ops = *device.ops;
	copy_to = ops.copy;
	ops.copy = count_copies;
	device.ops = &ops;
	return device;
}

static enum kv_status create(struct kv_allocator *allocator, uint32_t pages, uint32_t recency,
    struct gw_cluster_cache **cache)
{
	struct gw_cache_options options = {.allocator = allocator,
	    .device = counting_device(allocator),
	    .capacity_bytes = (uint64_t)pages * PAGE_BYTES,
	    .row_bytes = ROW_BYTES,
	    .recency = recency};
	struct gw_cluster_cache *made = NULL;
	enum kv_status status;

	KV_TRY(gw_cluster_cache_create(&options, &made));
	status = gw_cache_mirror_create(made);
	if (status != KV_OK) {
		gw_cluster_cache_destroy(made);
		return status;
	}
	*cache = made;
	return KV_OK;
}

static struct gw_cluster_cache *open_cache(uint32_t pages, uint32_t recency)
{
	struct gw_cluster_cache *cache = NULL;

	assert_int_equal(create(kv_heap(), pages, recency, &cache), KV_OK);
	gw_cluster_cache_step(cache);
	gw_cluster_cache_begin(cache);
	return cache;
}

static struct gw_cache_key key_of(uint32_t number)
{
	return (struct gw_cache_key){1 + number / 12, number / 4 % 3, number / 2 % 2, number % 2};
}

static struct kn_cache_table update(struct gw_cluster_cache *cache)
{
	struct kn_cache_table table = {0};

	assert_int_equal(gw_cache_mirror_update(cache, &table), KV_OK);
	gw_cache_mirror_waited(cache);
	return table;
}

/* The first row of page `number` of a chain as a device follows it. */
static const uint8_t *page_at(const struct kn_cache_table *table, uint32_t slot, uint32_t number)
{
	uint32_t page = table->slots[slot].first_page;

	while (number-- > 0) {
		assert_true(page < table->page_count);
		page = table->next_page[page];
	}
	assert_true(page < table->page_count);
	return table->memory + (size_t)page * PAGE_BYTES;
}

/* All rows that a slot shows lie where the cache has them. */
static void check_rows(
    const struct gw_cluster_cache *cache, const struct kn_cache_table *table, uint32_t slot)
{
	uint32_t held = table->slots[slot].held;

	for (uint32_t page = 0; page * PAGE < held; page++) {
		uint32_t from = page * PAGE, to = held - from < PAGE ? held : from + PAGE;
		struct kn_span span[2];

		assert_int_equal(gw_cluster_cache_spans(cache, slot, from, to, span), 1);
		assert_ptr_equal(span[0].rows, page_at(table, slot, page));
	}
}

static uint32_t check(struct gw_cluster_cache *cache)
{
	struct kn_cache_table table = update(cache);
	uint32_t shown = 0;

	assert_true(table.generation > 0);
	assert_int_equal(table.slot_count, cache->page_count);
	for (uint32_t i = 0; i < table.slot_count; i++) {
		const struct gw_cache_slot *is = &cache->slots[i];
		const struct kn_cache_slot *seen = &table.slots[i];
		int held = is->used && is->held > 0;

		assert_int_equal(seen->generation == table.generation, held);
		if (!held) continue;
		shown++;
		assert_int_equal(seen->segment, is->key.segment);
		assert_int_equal(seen->layer, is->key.layer);
		assert_int_equal(seen->head, is->key.head);
		assert_int_equal(seen->cluster, is->key.cluster);
		assert_int_equal(seen->held, is->held);
		check_rows(cache, &table, i);
	}
	return shown;
}

static uint32_t use(struct gw_cluster_cache *cache, uint32_t number, uint32_t count)
{
	struct gw_cache_key key = key_of(number);

	return gw_cluster_cache_acquire(cache, &key, count, NULL).slot;
}

static uint32_t below(struct kv_random *random, uint32_t bound)
{
	return (uint32_t)kv_random_below(random, bound);
}

/* Rounds of random extents, committed or abandoned; now and then another step, or an empty cache.
 * Not each round is looked at: changes pile up. */
static void the_mirror_follows_the_cache(void **state)
{
	struct kv_random random;
	uint32_t most = 0;

	(void)state;
	kv_random_seed(&random, 5);
	for (uint32_t recency = 0; recency < 4; recency += 3) {
		struct gw_cluster_cache *cache = open_cache(60, recency);

		for (uint32_t round = 0; round < 3000; round++) {
			uint32_t what = below(&random, 60), shown;

			for (uint32_t n = below(&random, 8); n > 0; n--)
				use(cache, below(&random, 40),
				    1 + below(&random, what < 5 ? MAX_ROWS : 60));
			if (what % 5 == 0)
				gw_cluster_cache_abandon(cache);
			else
				gw_cluster_cache_commit(cache);
			if (what == 7) gw_cluster_cache_clear(cache);
			if (what % 2) gw_cluster_cache_step(cache);
			gw_cluster_cache_begin(cache);
			if (what % 3) continue;
			shown = check(cache);
			if (shown > most) most = shown;
		}
		gw_cluster_cache_destroy(cache);
	}
	assert_true(most > 10);
}

/* What a round is about to fill is not there yet. */
static void rows_are_shown_when_they_are_committed(void **state)
{
	struct gw_cluster_cache *cache = open_cache(20, 0);
	uint32_t slot = use(cache, 3, 40);
	struct kn_cache_table table = update(cache);

	(void)state;
	assert_int_not_equal(table.slots[slot].generation, table.generation);
	gw_cluster_cache_commit(cache);
	table = update(cache);
	assert_int_equal(table.slots[slot].held, 40);
	gw_cluster_cache_begin(cache);
	assert_int_equal(use(cache, 3, 100), slot);
	table = update(cache);
	assert_int_equal(table.slots[slot].held, 40);
	gw_cluster_cache_commit(cache);
	table = update(cache);
	assert_int_equal(table.slots[slot].held, 100);
	gw_cluster_cache_clear(cache);
	table = update(cache);
	assert_int_not_equal(table.slots[slot].generation, table.generation);
	gw_cluster_cache_destroy(cache);
}

/* More changes at once than the buffer of changes takes, and than go with one operation. */
static void any_number_of_changes_arrives(void **state)
{
	const uint32_t pages = 40000;
	struct gw_cluster_cache *cache = open_cache(pages, 0);

	(void)state;
	most_copies = 0;
	for (uint32_t i = 0; i < pages / 2; i++)
		use(cache, i, 1 + i % 30);
	gw_cluster_cache_commit(cache);
	assert_int_equal(check(cache), pages / 2);
	assert_int_equal(most_copies, GW_CACHE_MIRROR_COPIES);
	gw_cluster_cache_destroy(cache);
}

/* As lookups do. */
static void device_uses(struct gw_cluster_cache *cache, uint32_t slot)
{
	struct kn_cache_table table = update(cache);

	table.used_step[slot] = table.step;
	assert_int_equal(gw_cache_mirror_fetch_used(cache), KV_OK);
}

static uint32_t held_of(const struct gw_cluster_cache *cache, uint32_t slot)
{
	return cache->slots[slot].used ? cache->slots[slot].held : 0;
}

static int is_of(const struct gw_cluster_cache *cache, uint32_t slot, uint32_t number)
{
	const struct gw_map_key *key = &cache->slots[slot].key;
	struct gw_cache_key wanted = key_of(number);

	return cache->slots[slot].held > 0 && key->segment == wanted.segment &&
	       key->layer == wanted.layer && key->head == wanted.head && key->cluster == wanted.cluster;
}

/* Of eight clusters that the host put there, the device goes on to use one: that one stays. */
static void what_the_device_uses_stays(void **state)
{
	struct gw_cluster_cache *cache = open_cache(8, 0);
	uint32_t slots[8];

	(void)state;
	for (uint32_t i = 0; i < 8; i++)
		slots[i] = use(cache, i, PAGE);
	gw_cluster_cache_commit(cache);
	for (uint32_t next = 20; next < 60; next++) {
		gw_cluster_cache_step(cache);
		device_uses(cache, slots[5]);
		gw_cluster_cache_begin(cache);
		assert_int_not_equal(use(cache, next, PAGE), UINT32_MAX);
		gw_cluster_cache_commit(cache);
		assert_true(is_of(cache, slots[5], 5));
	}
	/* Not for ever: when it is not used any more, it goes like others. */
	for (uint32_t next = 60; next < 80; next++) {
		gw_cluster_cache_step(cache);
		gw_cluster_cache_begin(cache);
		use(cache, next, PAGE);
		gw_cluster_cache_commit(cache);
	}
	assert_false(is_of(cache, slots[5], 5));
	gw_cluster_cache_destroy(cache);
}

static void recency_counts_what_the_device_uses(void **state)
{
	struct gw_cluster_cache *cache = open_cache(8, 2);
	uint32_t kept = use(cache, 0, PAGE), left = use(cache, 1, PAGE);

	(void)state;
	gw_cluster_cache_commit(cache);
	for (uint32_t step = 0; step < 10; step++) {
		device_uses(cache, kept);
		gw_cluster_cache_step(cache);
	}
	assert_int_equal(held_of(cache, kept), PAGE);
	assert_int_equal(held_of(cache, left), 0);
	gw_cluster_cache_destroy(cache);
}

/* A slot that is taken anew was not used by the device just because another cluster was. */
static void use_is_that_of_the_cluster(void **state)
{
	struct gw_cluster_cache *cache = open_cache(2, 0);
	uint32_t first = use(cache, 0, PAGE);

	(void)state;
	gw_cluster_cache_commit(cache);
	device_uses(cache, first);
	gw_cluster_cache_clear(cache);
	gw_cluster_cache_begin(cache);
	/* Two that were never used again, and a third: the hand takes the first at once. */
	assert_int_equal(use(cache, 1, PAGE), first);
	use(cache, 2, PAGE);
	gw_cluster_cache_commit(cache);
	gw_cluster_cache_begin(cache);
	assert_int_equal(use(cache, 3, PAGE), first);
	gw_cluster_cache_destroy(cache);
}

static void hints_arrive_with_the_next_update(void **state)
{
	struct gw_cluster_cache *cache = open_cache(8, 0);
	uint32_t hints[6] = {0};

	(void)state;
	for (uint32_t i = 0; i < 6; i++)
		gw_cache_mirror_hint(cache, &hints[i], 100 + i);
	assert_int_equal(hints[0], 0);
	/* The memory of some goes before. */
	gw_cache_mirror_forget_hints(cache, hints + 1, 2 * sizeof *hints);
	gw_cache_mirror_hint(cache, &hints[1], 7);
	update(cache);
	assert_int_equal(hints[0], 100);
	assert_int_equal(hints[1], 7);
	assert_int_equal(hints[2], 0);
	for (uint32_t i = 3; i < 6; i++)
		assert_int_equal(hints[i], 100 + i);
	gw_cluster_cache_destroy(cache);
}

/* What is admitted is no access; what the device found is one. */
static void figures_are_those_of_lookups(void **state)
{
	struct gw_cluster_cache *cache = open_cache(8, 0);
	const struct gw_cache_stats found = {.hit_bytes = 5, .miss_bytes = 6, .hit_tokens = 7,
	    .miss_tokens = 8, .hit_clusters = 9, .miss_clusters = 10};
	struct gw_cache_key key = key_of(1);
	struct gw_cache_stats stats;
	uint32_t hint = 0;

	(void)state;
	assert_int_equal(gw_cluster_cache_admit(cache, &key, 20, &hint).held, 0);
	assert_int_equal(gw_cluster_cache_admit(cache, &key, 20, &hint).held, 20);
	gw_cluster_cache_count(cache, &found);
	stats = gw_cluster_cache_stats(cache);
	assert_int_equal(stats.hit_bytes, 5);
	assert_int_equal(stats.miss_bytes, 6);
	assert_int_equal(stats.hit_tokens, 7);
	assert_int_equal(stats.miss_tokens, 8);
	assert_int_equal(stats.hit_clusters, 9);
	assert_int_equal(stats.miss_clusters, 10);
	gw_cluster_cache_destroy(cache);
}

static void every_allocation_may_fail(void **state)
{
	enum kv_status status = KV_NO_MEMORY;

	(void)state;
	for (uint64_t n = 1; status != KV_OK; n++) {
		struct kv_allocator *allocator = kv_allocator_create("mirror", 0);
		struct gw_cluster_cache *cache = NULL;

		assert_true(n < 40);
		kv_allocator_fail_at(allocator, n);
		status = create(allocator, 8, 0, &cache);
		kv_allocator_fail_at(allocator, 0);
		if (status == KV_OK) gw_cluster_cache_destroy(cache);
		else assert_int_equal(status, KV_NO_MEMORY);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
		kv_allocator_destroy(allocator);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_mirror_follows_the_cache),
	    cmocka_unit_test(rows_are_shown_when_they_are_committed),
	    cmocka_unit_test(any_number_of_changes_arrives),
	    cmocka_unit_test(what_the_device_uses_stays),
	    cmocka_unit_test(recency_counts_what_the_device_uses),
	    cmocka_unit_test(use_is_that_of_the_cluster),
	    cmocka_unit_test(hints_arrive_with_the_next_update),
	    cmocka_unit_test(figures_are_those_of_lookups),
	    cmocka_unit_test(every_allocation_may_fail),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
