/* The cluster cache: what it says it holds, it holds; what a round uses stays; figures are exact.
 *
 * Rows are filled with bytes that only their key and index explain, and read back from every later
 * grant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/random.h"
#include "gpu-worker/cache/cluster_cache.h"
#include "tests/lib/memory_device.h"

enum { ROW_BYTES = 24, PAGE = GW_CACHE_PAGE_ROWS, PAGE_BYTES = PAGE * ROW_BYTES, NOT_CACHED = -1 };

static enum kv_status create(struct kv_allocator *allocator, uint32_t pages, uint32_t recency,
    struct gw_cluster_cache **cache)
{
	struct gw_cache_options options = {.allocator = allocator,
	    .device = kvt_memory_device(allocator, 1),
	    .capacity_bytes = (uint64_t)pages * PAGE_BYTES + PAGE_BYTES - 1,
	    .row_bytes = ROW_BYTES,
	    .recency = recency};

	return gw_cluster_cache_create(&options, cache);
}

static struct gw_cluster_cache *open_cache(uint32_t pages, uint32_t recency)
{
	struct gw_cluster_cache *cache = NULL;

	assert_int_equal(create(kv_heap(), pages, recency, &cache), KV_OK);
	assert_int_equal(gw_cluster_cache_stats(cache).capacity_bytes, (uint64_t)pages * PAGE_BYTES);
	assert_int_equal(gw_cluster_cache_stats(cache).used_bytes, 0);
	gw_cluster_cache_step(cache);
	gw_cluster_cache_begin(cache);
	return cache;
}

static struct gw_cache_key key_of(uint32_t number)
{
	struct gw_cache_key key = {0};

	key.segment = 1 + number / 12;
	key.layer = number / 4 % 3;
	key.head = number / 2 % 2;
	key.cluster = number % 2;
	return key;
}

static uint8_t byte_of(uint32_t number, uint32_t row, uint32_t at)
{
	return (uint8_t)((number * 131 + row * 7 + at * 3 + (number * row) / 5) ^ (row >> 4));
}

/* Write or check rows [from, to) of a grant. The spans must give them all, in order. */
static void visit_rows(const struct gw_cluster_cache *cache, uint32_t slot, uint32_t number,
    uint32_t from, uint32_t to, int write)
{
	struct kn_span spans[64];
	uint32_t count = gw_cluster_cache_spans(cache, slot, from, to, spans), row = from;

	assert_true(count <= (to - from + 30) / PAGE + 1);
	for (uint32_t i = 0; i < count; i++) {
		assert_true(spans[i].count > 0);
		for (uint32_t r = 0; r < spans[i].count; r++, row++) {
			uint8_t *bytes = (uint8_t *)(uintptr_t)spans[i].rows + (size_t)r * ROW_BYTES;

			for (uint32_t at = 0; at < ROW_BYTES; at++) {
				if (write)
					bytes[at] = byte_of(number, row, at);
				else if (bytes[at] != byte_of(number, row, at))
					fail_msg("key %u row %u byte %u is another's", number, row, at);
			}
		}
	}
	assert_int_equal(row, to);
}

/* Acquire and fill what is missing. Returns how many rows were held, or NOT_CACHED. */
static int use(struct gw_cluster_cache *cache, uint32_t number, uint32_t count)
{
	struct gw_cache_key key = key_of(number);
	struct gw_cache_grant grant = gw_cluster_cache_acquire(cache, &key, count, NULL);

	if (grant.slot == UINT32_MAX) {
		assert_int_equal(grant.held, 0);
		return NOT_CACHED;
	}
	assert_true(grant.held <= count);
	if (grant.held < count) visit_rows(cache, grant.slot, number, grant.held, count, 1);
	visit_rows(cache, grant.slot, number, 0, count, 0);
	return (int)grant.held;
}

static void next_round(struct gw_cluster_cache *cache)
{
	gw_cluster_cache_commit(cache);
	gw_cluster_cache_begin(cache);
}

static void next_step(struct gw_cluster_cache *cache)
{
	gw_cluster_cache_commit(cache);
	gw_cluster_cache_step(cache);
	gw_cluster_cache_begin(cache);
}

static void a_longer_extent_is_a_hit_for_what_is_held(void **state)
{
	struct gw_cluster_cache *cache = open_cache(8, 0);
	struct gw_cache_stats stats;

	(void)state;
	assert_int_equal(use(cache, 0, 20), 0);
	next_round(cache);
	assert_int_equal(use(cache, 0, 20), 20);
	assert_int_equal(use(cache, 0, 5), 5);
	assert_int_equal(use(cache, 0, 50), 20);
	/* What an earlier extent of the same round fills is there for the next. */
	assert_int_equal(use(cache, 0, 50), 50);
	assert_int_equal(use(cache, 0, 51), 50);
	next_round(cache);
	assert_int_equal(use(cache, 0, 64), 51);
	stats = gw_cluster_cache_stats(cache);
	assert_int_equal(stats.hit_tokens, 20 + 5 + 20 + 50 + 50 + 51);
	assert_int_equal(stats.miss_tokens, 20 + 30 + 1 + 13);
	assert_int_equal(stats.hit_bytes, stats.hit_tokens * ROW_BYTES);
	assert_int_equal(stats.miss_bytes, stats.miss_tokens * ROW_BYTES);
	assert_int_equal(stats.hit_clusters, 3);
	assert_int_equal(stats.miss_clusters, 4);
	assert_int_equal(stats.used_bytes, 4 * PAGE_BYTES);
	assert_int_equal(stats.evictions, 0);
	gw_cluster_cache_destroy(cache);
}

static void keys_are_compared_by_their_numbers(void **state)
{
	struct gw_cluster_cache *cache = open_cache(4, 0);
	struct gw_cache_key one, same;

	(void)state;
	/* What lies between and behind the numbers is not part of a key. */
	memset(&one, 0xaa, sizeof one);
	memset(&same, 0x55, sizeof same);
	one.segment = same.segment = 7;
	one.layer = same.layer = 1;
	one.head = same.head = 2;
	one.cluster = same.cluster = 3;
	assert_int_equal(gw_cluster_cache_acquire(cache, &one, 10, NULL).held, 0);
	next_round(cache);
	assert_int_equal(gw_cluster_cache_acquire(cache, &same, 10, NULL).held, 10);
	for (int i = 0; i < 4; i++) {
		struct gw_cache_key other = same;

		if (i == 0) other.segment++;
		if (i == 1) other.layer++;
		if (i == 2) other.head++;
		if (i == 3) other.cluster++;
		assert_int_equal(gw_cluster_cache_acquire(cache, &other, 1, NULL).held, 0);
	}
	gw_cluster_cache_destroy(cache);
}

/* Nothing of the cache changes by it: neither what it holds nor its figures. */
static void a_cluster_is_found_without_use_of_it(void **state)
{
	struct gw_cluster_cache *cache = open_cache(4, 2);
	struct gw_cache_key held = key_of(0), other = key_of(1);
	struct gw_cache_stats before, after;
	uint32_t slot = use(cache, 0, PAGE) == 0 ? 77 : 0, none = 55;

	(void)state;
	next_round(cache);
	before = gw_cluster_cache_stats(cache);
	gw_cluster_cache_find(cache, &held, &slot);
	gw_cluster_cache_find(cache, &other, &none);
	after = gw_cluster_cache_stats(cache);
	assert_memory_equal(&before, &after, sizeof before);
	assert_int_equal(none, 55);
	assert_int_equal(gw_cluster_cache_acquire(cache, &held, PAGE, NULL).slot, slot);
	next_round(cache);
	/* It leaves as if nobody had asked. */
	for (int i = 0; i < 3; i++) {
		gw_cluster_cache_find(cache, &held, &slot);
		gw_cluster_cache_step(cache);
	}
	assert_int_equal(gw_cluster_cache_stats(cache).evictions, 1);
	slot = 77;
	gw_cluster_cache_find(cache, &held, &slot);
	assert_int_equal(slot, 77);
	gw_cluster_cache_destroy(cache);
}

static void a_hint_is_never_trusted(void **state)
{
	struct gw_cluster_cache *cache = open_cache(4, 0);
	struct gw_cache_key first = key_of(0), second = key_of(1);
	uint32_t hint = 0, far = UINT32_MAX, own;

	(void)state;
	/* An unused slot, which is all zeros. */
	assert_int_equal(gw_cluster_cache_acquire(cache, &first, PAGE, &hint).held, 0);
	next_round(cache);
	own = hint;
	assert_int_equal(gw_cluster_cache_acquire(cache, &first, PAGE, &hint).held, PAGE);
	assert_int_equal(hint, own);
	/* Beyond the table, and a slot of another key. */
	gw_cluster_cache_prefetch(cache, far);
	assert_int_equal(gw_cluster_cache_acquire(cache, &first, PAGE, &far).slot, own);
	assert_int_equal(far, own);
	assert_int_equal(gw_cluster_cache_acquire(cache, &second, PAGE, &hint).held, 0);
	assert_int_not_equal(hint, own);
	next_round(cache);
	/* The slot was given to others meanwhile. */
	for (uint32_t i = 2; i < 10; i++) {
		assert_int_equal(use(cache, i, PAGE), 0);
		next_round(cache);
	}
	assert_int_equal(gw_cluster_cache_acquire(cache, &first, PAGE, &own).held, 0);
	/* Where there is no room the hint stays. */
	next_round(cache);
	hint = 3;
	assert_int_equal(gw_cluster_cache_acquire(cache, &second, 5 * PAGE, &hint).slot, UINT32_MAX);
	assert_int_equal(hint, 3);
	gw_cluster_cache_destroy(cache);
}

static void the_clock_passes_over_what_was_used_again(void **state)
{
	struct gw_cluster_cache *cache = open_cache(4, 0);

	(void)state;
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(use(cache, i, PAGE), 0);
	next_round(cache);
	assert_int_equal(use(cache, 0, PAGE), PAGE);
	next_round(cache);
	assert_int_equal(use(cache, 4, PAGE), 0);
	assert_int_equal(gw_cluster_cache_stats(cache).evictions, 1);
	next_round(cache);
	assert_int_equal(use(cache, 0, PAGE), PAGE);
	assert_int_equal(use(cache, 4, PAGE), PAGE);
	assert_int_equal(use(cache, 2, PAGE), PAGE);
	assert_int_equal(use(cache, 3, PAGE), PAGE);
	assert_int_equal(use(cache, 1, PAGE), NOT_CACHED);
	gw_cluster_cache_destroy(cache);
}

static void what_a_round_uses_stays_and_the_rest_is_staged(void **state)
{
	struct gw_cluster_cache *cache = open_cache(3, 0);
	struct gw_cache_grant first, second;
	struct gw_cache_key key = key_of(0);
	struct gw_cache_stats stats;

	(void)state;
	first = gw_cluster_cache_acquire(cache, &key, PAGE, NULL);
	visit_rows(cache, first.slot, 0, 0, PAGE, 1);
	assert_int_equal(use(cache, 1, 2 * PAGE), 0);
	assert_int_equal(use(cache, 2, 1), NOT_CACHED);
	assert_int_equal(use(cache, 0, PAGE + 1), NOT_CACHED);
	/* A grant that could not grow is what it was. */
	second = gw_cluster_cache_acquire(cache, &key, PAGE, NULL);
	assert_int_equal(second.slot, first.slot);
	assert_int_equal(second.held, PAGE);
	visit_rows(cache, first.slot, 0, 0, PAGE, 0);
	stats = gw_cluster_cache_stats(cache);
	assert_int_equal(stats.evictions, 0);
	assert_int_equal(stats.miss_tokens, PAGE + 2 * PAGE + 1 + PAGE + 1);
	assert_int_equal(stats.hit_tokens, PAGE);
	next_round(cache);
	/* The next round may have the room. */
	assert_int_equal(use(cache, 2, 3 * PAGE), 0);
	assert_int_equal(gw_cluster_cache_stats(cache).evictions, 2);
	assert_int_equal(use(cache, 0, 1), NOT_CACHED);
	assert_int_equal(use(cache, 3, 4 * PAGE), NOT_CACHED);
	gw_cluster_cache_destroy(cache);
}

static void a_page_is_the_smallest_cache(void **state)
{
	struct gw_cluster_cache *cache = open_cache(1, 0);
	struct gw_cache_options options = {.allocator = kv_heap(),
	    .device = kvt_memory_device(kv_heap(), 1),
	    .capacity_bytes = PAGE_BYTES - 1,
	    .row_bytes = ROW_BYTES};
	struct gw_cluster_cache *none = NULL;

	(void)state;
	assert_int_equal(use(cache, 0, 7), 0);
	assert_int_equal(use(cache, 1, 1), NOT_CACHED);
	next_round(cache);
	assert_int_equal(use(cache, 0, PAGE), 7);
	next_round(cache);
	assert_int_equal(use(cache, 1, PAGE), 0);
	assert_int_equal(use(cache, 2, PAGE + 1), NOT_CACHED);
	next_round(cache);
	assert_int_equal(use(cache, 0, 1), 0);
	gw_cluster_cache_destroy(cache);

	assert_int_equal(gw_cluster_cache_create(&options, &none), KV_INVALID);
	assert_null(none);
	assert_non_null(strstr(kv_error_message(), "--cache"));
	options.capacity_bytes = UINT64_MAX;
	assert_int_equal(gw_cluster_cache_create(&options, &none), KV_INVALID);
}

static void an_abandoned_round_leaves_what_was_held(void **state)
{
	struct gw_cluster_cache *cache = open_cache(8, 0);

	(void)state;
	assert_int_equal(use(cache, 0, 20), 0);
	assert_int_equal(use(cache, 1, 20), 0);
	next_round(cache);
	assert_int_equal(use(cache, 0, 20), 20);
	assert_int_equal(use(cache, 1, 30), 20);
	assert_int_equal(use(cache, 2, 5), 0);
	gw_cluster_cache_abandon(cache);
	gw_cluster_cache_begin(cache);
	assert_int_equal(gw_cluster_cache_stats(cache).used_bytes, 4 * PAGE_BYTES);
	assert_int_equal(use(cache, 0, 20), 20);
	assert_int_equal(use(cache, 1, 30), 20);
	assert_int_equal(use(cache, 2, 5), 0);
	next_round(cache);
	/* A round that was neither committed nor abandoned counts as abandoned. */
	assert_int_equal(use(cache, 3, 9), 0);
	assert_int_equal(use(cache, 0, 40), 20);
	gw_cluster_cache_begin(cache);
	assert_int_equal(use(cache, 3, 9), 0);
	assert_int_equal(use(cache, 0, 40), 20);
	/* Nothing is lost on the way: all pages can be used. */
	gw_cluster_cache_begin(cache);
	assert_int_equal(use(cache, 4, 8 * PAGE), 0);
	gw_cluster_cache_destroy(cache);
}

/* A neighbour in the round reads rows that are held: another's failure is none of its own. */
static void rows_that_are_held_wait_for_nothing(void **state)
{
	struct gw_cluster_cache *cache = open_cache(6, 0);
	struct gw_cache_key key = key_of(0);
	struct gw_cache_grant longer, shorter, fresh;

	(void)state;
	assert_int_equal(use(cache, 0, 20), 0);
	next_round(cache);
	longer = gw_cluster_cache_acquire(cache, &key, 3 * PAGE, NULL);
	assert_int_equal(longer.pending, 1);
	shorter = gw_cluster_cache_acquire(cache, &key, 20, NULL);
	assert_int_equal(shorter.pending, 0);
	assert_int_equal(gw_cluster_cache_acquire(cache, &key, 21, NULL).pending, 1);
	gw_cluster_cache_abandon(cache);
	/* Its pages are given to nobody else in this round. */
	key = key_of(1);
	fresh = gw_cluster_cache_acquire(cache, &key, 4 * PAGE, NULL);
	assert_int_not_equal(fresh.slot, UINT32_MAX);
	visit_rows(cache, fresh.slot, 1, 0, 4 * PAGE, 1);
	visit_rows(cache, shorter.slot, 0, 0, 20, 0);
	assert_int_equal(use(cache, 2, 1), NOT_CACHED);
	gw_cluster_cache_destroy(cache);
}

static void what_cannot_fit_drives_nothing_out(void **state)
{
	struct gw_cluster_cache *cache = open_cache(4, 0);

	(void)state;
	assert_int_equal(use(cache, 0, PAGE), 0);
	assert_int_equal(use(cache, 1, 2 * PAGE), 0);
	next_round(cache);
	assert_int_equal(use(cache, 2, 5 * PAGE), NOT_CACHED);
	assert_int_equal(use(cache, 1, 5 * PAGE), NOT_CACHED);
	assert_int_equal(use(cache, 0, PAGE), PAGE);
	assert_int_equal(use(cache, 1, 4 * PAGE), NOT_CACHED);
	assert_int_equal(gw_cluster_cache_stats(cache).evictions, 0);
	assert_int_equal(use(cache, 2, 3 * PAGE), 0);
	assert_int_equal(gw_cluster_cache_stats(cache).evictions, 1);
	gw_cluster_cache_destroy(cache);
}

static void recency_forgets_what_the_last_steps_did_not_use(void **state)
{
	struct gw_cluster_cache *cache = open_cache(16, 2);

	(void)state;
	assert_int_equal(use(cache, 0, 10), 0);
	assert_int_equal(use(cache, 1, 10), 0);
	next_step(cache);
	assert_int_equal(use(cache, 1, 10), 10);
	next_step(cache);
	/* Used two steps ago. */
	assert_int_equal(use(cache, 0, 10), 10);
	next_step(cache);
	next_step(cache);
	assert_int_equal(gw_cluster_cache_stats(cache).evictions, 1);
	assert_int_equal(use(cache, 1, 10), 0);
	assert_int_equal(use(cache, 0, 10), 10);
	gw_cluster_cache_destroy(cache);
	cache = open_cache(16, 0);
	assert_int_equal(use(cache, 0, 10), 0);
	for (int i = 0; i < 100; i++)
		next_step(cache);
	assert_int_equal(use(cache, 0, 10), 10);
	gw_cluster_cache_destroy(cache);
}

static void a_cleared_cache_is_empty(void **state)
{
	struct gw_cluster_cache *cache = open_cache(4, 0);
	struct gw_cache_stats before, after;

	(void)state;
	assert_int_equal(use(cache, 0, 40), 0);
	next_round(cache);
	assert_int_equal(use(cache, 1, 3), 0);
	before = gw_cluster_cache_stats(cache);
	gw_cluster_cache_clear(cache);
	after = gw_cluster_cache_stats(cache);
	assert_int_equal(after.used_bytes, 0);
	assert_int_equal(after.miss_bytes, before.miss_bytes);
	gw_cluster_cache_begin(cache);
	assert_int_equal(use(cache, 0, 40), 0);
	assert_int_equal(use(cache, 1, 16), 0);
	next_round(cache);
	assert_int_equal(use(cache, 0, 40), 40);
	gw_cluster_cache_destroy(cache);
}

/* ---- long random use against a model ---- */

enum { KEYS = 48, ROUNDS = 4000 };

struct model {
	struct gw_cluster_cache *cache;
	uint32_t pages, recency;
	uint32_t rows[KEYS];   /* that the cache may hold: it may have evicted them */
	uint32_t pinned[KEYS]; /* pages of this round */
	int filled[KEYS];      /* to be committed */
	uint32_t before[KEYS]; /* rows that an abandoned round leaves of a filled one */
	uint64_t used[KEYS], step;
	struct gw_cache_stats stats;
};

static uint32_t pages_of(uint32_t rows)
{
	return (rows + PAGE - 1) / PAGE;
}

static uint32_t pinned_by_others(const struct model *model, uint32_t number)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < KEYS; i++)
		sum += i != number ? model->pinned[i] : 0;
	return sum;
}

static void model_use(struct model *model, uint32_t number, uint32_t count)
{
	uint32_t known = model->rows[number], most = known < count ? known : count, held;
	int fits = pinned_by_others(model, number) + pages_of(count) <= model->pages;
	int got = use(model->cache, number, count);

	if (model->pinned[number] > 0 && known >= count) fits = 1;
	held = got > 0 ? (uint32_t)got : 0;
	model->stats.hit_tokens += held;
	model->stats.miss_tokens += count - held;
	if (held == count)
		model->stats.hit_clusters++;
	else
		model->stats.miss_clusters++;
	if (got == NOT_CACHED) {
		assert_false(fits);
		/* Rows that were there were wanted, and stay. */
		model->used[number] = model->step;
		return;
	}
	/* Either evicted since, or exactly what was filled. */
	assert_true(held == 0 || held == most);
	if (model->pinned[number] > 0) assert_int_equal(held, most);
	if (model->recency > 0 && known > 0 && model->used[number] + model->recency < model->step)
		assert_int_equal(held, 0);
	if (held == 0) model->rows[number] = 0;
	if (held < count && !model->filled[number]) {
		model->filled[number] = 1;
		model->before[number] = held;
	}
	if (model->rows[number] < count) model->rows[number] = count;
	model->pinned[number] = pages_of(model->rows[number]);
	model->used[number] = model->step;
}

static void model_end_round(struct model *model, int commit)
{
	uint32_t pinned = pinned_by_others(model, UINT32_MAX);
	struct gw_cache_stats stats = gw_cluster_cache_stats(model->cache);

	assert_true(stats.used_bytes >= (uint64_t)pinned * PAGE_BYTES);
	assert_true(stats.used_bytes <= stats.capacity_bytes);
	assert_int_equal(stats.used_bytes % PAGE_BYTES, 0);
	assert_int_equal(stats.hit_tokens, model->stats.hit_tokens);
	assert_int_equal(stats.miss_tokens, model->stats.miss_tokens);
	assert_int_equal(stats.hit_bytes, model->stats.hit_tokens * ROW_BYTES);
	assert_int_equal(stats.miss_bytes, model->stats.miss_tokens * ROW_BYTES);
	assert_int_equal(stats.hit_clusters, model->stats.hit_clusters);
	assert_int_equal(stats.miss_clusters, model->stats.miss_clusters);
	if (commit)
		gw_cluster_cache_commit(model->cache);
	else
		gw_cluster_cache_abandon(model->cache);
	for (uint32_t i = 0; i < KEYS; i++) {
		if (!commit && model->filled[i]) model->rows[i] = model->before[i];
		model->filled[i] = 0;
		model->pinned[i] = 0;
	}
}

static void check_long_use(uint32_t pages, uint32_t recency, uint64_t seed)
{
	struct model model = {.cache = open_cache(pages, recency), .pages = pages, .recency = recency};
	struct kv_random random;

	kv_random_seed(&random, seed);
	model.step = 1;
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t extents = 1 + (uint32_t)kv_random_below(&random, 12);

		if (kv_random_below(&random, 3) == 0) {
			gw_cluster_cache_step(model.cache);
			model.step++;
		}
		gw_cluster_cache_begin(model.cache);
		for (uint32_t i = 0; i < extents; i++) {
			/* Some keys are liked better than others. */
			uint32_t number =
			    (uint32_t)kv_random_below(&random, 1 + kv_random_below(&random, KEYS));
			uint32_t most = number % 5 == 0 ? 90 : 40;

			model_use(&model, number, 1 + (uint32_t)kv_random_below(&random, most));
		}
		model_end_round(&model, kv_random_below(&random, 8) != 0);
		if (kv_random_below(&random, 400) == 0) {
			gw_cluster_cache_clear(model.cache);
			memset(model.rows, 0, sizeof model.rows);
			assert_int_equal(gw_cluster_cache_stats(model.cache).used_bytes, 0);
		}
	}
	assert_true(model.stats.hit_tokens > 0 && model.stats.miss_tokens > 0);
	gw_cluster_cache_destroy(model.cache);
}

static void long_use_agrees_with_a_model(void **state)
{
	static const uint32_t pages[] = {1, 2, 3, 7, 16, 40, 400};

	(void)state;
	for (uint32_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
		check_long_use(pages[i], 0, 100 + i);
		check_long_use(pages[i], 1 + i % 3, 200 + i);
	}
}

/* Where everything fits, nothing is ever evicted: held is what was asked for at most. */
static void nothing_is_evicted_without_need(void **state)
{
	struct gw_cluster_cache *cache = open_cache(KEYS * 4, 0);
	uint32_t most[KEYS] = {0};
	struct kv_random random;

	(void)state;
	kv_random_seed(&random, 3);
	for (uint32_t i = 0; i < 5000; i++) {
		uint32_t number = (uint32_t)kv_random_below(&random, KEYS);
		uint32_t count = 1 + (uint32_t)kv_random_below(&random, 4 * PAGE);

		assert_int_equal(use(cache, number, count), count < most[number] ? count : most[number]);
		if (count > most[number]) most[number] = count;
		if (i % 7 == 0) next_step(cache);
	}
	assert_int_equal(gw_cluster_cache_stats(cache).evictions, 0);
	gw_cluster_cache_destroy(cache);
}

static void every_allocation_may_fail(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("cache", 0);
	struct gw_cluster_cache *cache = NULL;
	enum kv_status status = KV_NO_MEMORY;
	uint32_t walked = 0;

	(void)state;
	while (status != KV_OK) {
		assert_true(walked < 100);
		kv_allocator_fail_at(allocator, ++walked);
		status = create(allocator, 5, 0, &cache);
		kv_allocator_fail_at(allocator, 0);
		if (status == KV_OK) break;
		assert_int_equal(status, KV_NO_MEMORY);
		assert_null(cache);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	}
	assert_true(walked > 5);
	gw_cluster_cache_destroy(cache);
	gw_cluster_cache_destroy(NULL);
	assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	kv_allocator_destroy(allocator);
}

static void use_takes_no_memory(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("cache", 0);
	struct gw_cluster_cache *cache = NULL;
	uint64_t allocations;

	(void)state;
	assert_int_equal(create(allocator, 9, 1, &cache), KV_OK);
	allocations = kv_allocator_stats(allocator).allocations;
	gw_cluster_cache_step(cache);
	gw_cluster_cache_begin(cache);
	for (uint32_t i = 0; i < 300; i++) {
		use(cache, i % KEYS, 1 + i % 50);
		if (i % 3 == 0) next_step(cache);
	}
	assert_int_equal(kv_allocator_stats(allocator).allocations, allocations);
	gw_cluster_cache_destroy(cache);
	kv_allocator_destroy(allocator);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_longer_extent_is_a_hit_for_what_is_held),
	    cmocka_unit_test(keys_are_compared_by_their_numbers),
	    cmocka_unit_test(a_hint_is_never_trusted),
	    cmocka_unit_test(a_cluster_is_found_without_use_of_it),
	    cmocka_unit_test(the_clock_passes_over_what_was_used_again),
	    cmocka_unit_test(what_a_round_uses_stays_and_the_rest_is_staged),
	    cmocka_unit_test(a_page_is_the_smallest_cache),
	    cmocka_unit_test(an_abandoned_round_leaves_what_was_held),
	    cmocka_unit_test(rows_that_are_held_wait_for_nothing),
	    cmocka_unit_test(what_cannot_fit_drives_nothing_out),
	    cmocka_unit_test(recency_forgets_what_the_last_steps_did_not_use),
	    cmocka_unit_test(a_cleared_cache_is_empty),
	    cmocka_unit_test(long_use_agrees_with_a_model),
	    cmocka_unit_test(nothing_is_evicted_without_need),
	    cmocka_unit_test(every_allocation_may_fail),
	    cmocka_unit_test(use_takes_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
