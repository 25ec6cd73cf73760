#include "gpu-worker/cache/cluster_cache.h"

#include <string.h>

#include "common/base/random.h"
#include "gpu-worker/cache/cluster_cache_internal.h"

enum { NONE = UINT32_MAX, MAX_PAGES = 1 << 29 };

_Static_assert(sizeof(struct gw_cache_slot) == 64, "a slot is a cache line");

static enum kv_status take_memory(struct gw_cluster_cache *cache)
{
	struct kv_allocator *allocator = cache->options.allocator;
	const struct kn_device *device = &cache->options.device;
	size_t bytes = cache->options.row_bytes * GW_CACHE_PAGE_ROWS * cache->page_count;
	size_t warm = cache->options.warm_bytes < bytes ? cache->options.warm_bytes : bytes;
	void *memory;

	cache->next_page = kv_alloc_array(allocator, cache->page_count, sizeof *cache->next_page);
	cache->slots = kv_alloc_array_zero(allocator, cache->page_count, sizeof *cache->slots);
	cache->free_slots = kv_alloc_array(allocator, cache->page_count, sizeof *cache->free_slots);
	cache->pending = kv_alloc_array(allocator, cache->page_count, sizeof *cache->pending);
	if (!cache->next_page || !cache->slots || !cache->free_slots || !cache->pending)
		return KV_NO_MEMORY;
	KV_TRY(kv_hash_map_create(allocator, cache->page_count, sizeof(struct gw_map_key),
		kv_random_entropy(), &cache->map));
	KV_TRY(kn_device_alloc(device, KN_DEVICE, bytes, &memory));
	cache->memory = memory;
	/* Free pages are handed out in ascending order: these are the first that are used. */
	KV_TRY(device->ops->fill(device->backend, device->stream, memory, 0, warm));
	return kn_device_wait(device);
}

enum kv_status gw_cluster_cache_create(const struct gw_cache_options *options,
	struct gw_cluster_cache **cache)
{
	size_t page_bytes = options->row_bytes * GW_CACHE_PAGE_ROWS;
	uint64_t pages = options->capacity_bytes / page_bytes;
	struct gw_cluster_cache *made;
	enum kv_status status;

	if (pages < 1 || pages > MAX_PAGES)
		return kv_fail(KV_INVALID, "--cache %llu bytes: must be %zu bytes (one page) to %llu",
			(unsigned long long)options->capacity_bytes, page_bytes,
			(unsigned long long)page_bytes * MAX_PAGES);
	made = kv_alloc_zero(options->allocator, sizeof *made);
	if (made == NULL) return KV_NO_MEMORY;
	made->options = *options;
	made->page_count = (uint32_t)pages;
	KV_TRY_GOTO(status, take_memory(made), fail);
	made->stats.capacity_bytes = pages * page_bytes;
	gw_cluster_cache_clear(made);
	*cache = made;
	return KV_OK;
fail:
	gw_cluster_cache_destroy(made);
	return status;
}

void gw_cluster_cache_destroy(struct gw_cluster_cache *cache)
{
	struct kv_allocator *allocator;

	if (cache == NULL) return;
	allocator = cache->options.allocator;
	gw_cache_mirror_destroy(cache);
	kn_device_free(&cache->options.device, cache->memory);
	kv_hash_map_destroy(cache->map);
	kv_free(allocator, cache->next_page);
	kv_free(allocator, cache->slots);
	kv_free(allocator, cache->free_slots);
	kv_free(allocator, cache->pending);
	kv_free(allocator, cache);
}

void gw_cluster_cache_clear(struct gw_cluster_cache *cache)
{
	kv_hash_map_clear(cache->map);
	memset(cache->slots, 0, cache->page_count * sizeof *cache->slots);
	for (uint32_t i = 0; i < cache->page_count; i++) {
		cache->next_page[i] = i + 1 < cache->page_count ? i + 1 : (uint32_t)NONE;
		cache->free_slots[i] = cache->page_count - 1 - i;
	}
	cache->free_first = 0;
	cache->free_pages = cache->page_count;
	cache->free_slot_count = cache->page_count;
	cache->pending_count = 0;
	cache->hand = cache->used_slots = cache->pinned_pages = 0;
	cache->round = 1;
	gw_cache_mirror_cleared(cache);
}

static void drop_slot(struct gw_cluster_cache *cache, uint32_t index)
{
	struct gw_cache_slot *slot = &cache->slots[index];

	kv_hash_map_remove(cache->map, &slot->key, NULL);
	if (slot->pin_round == cache->round) cache->pinned_pages -= slot->pages;
	if (slot->pages > 0) {
		cache->next_page[slot->last_page] = cache->free_first;
		cache->free_first = slot->first_page;
		cache->free_pages += slot->pages;
	}
	memset(slot, 0, sizeof *slot);
	gw_cache_mirror_changed(cache, index);
	cache->free_slots[cache->free_slot_count++] = index;
	cache->used_slots--;
}

/* By the host's lookups or by the device's. */
static uint64_t last_use(const struct gw_cluster_cache *cache, uint32_t index)
{
	uint64_t used = cache->slots[index].used_step;
	uint32_t device = gw_cache_mirror_used_step(cache, index);

	return used > device ? used : device;
}

void gw_cluster_cache_step(struct gw_cluster_cache *cache)
{
	gw_cluster_cache_abandon(cache);
	cache->step++;
	if (cache->options.recency == 0) return;
	for (uint32_t i = 0; i < cache->page_count; i++)
		if (cache->slots[i].used && last_use(cache, i) + cache->options.recency < cache->step) {
			drop_slot(cache, i);
			cache->stats.evictions++;
		}
}

void gw_cluster_cache_begin(struct gw_cluster_cache *cache)
{
	/* Slots of a round that came to no end were not filled. */
	gw_cluster_cache_abandon(cache);
	cache->pinned_pages = 0;
	cache->round++;
}

/* Free pages until `wanted` are there. The hand passes each slot at most twice: once to clear
 * its bit. Nothing leaves for what cannot fit beside the pinned slots. */
static int make_room(struct gw_cluster_cache *cache, uint32_t wanted)
{
	uint64_t visits = (uint64_t)cache->page_count * 2;

	if (wanted > cache->page_count - cache->pinned_pages) return 0;
	while (cache->free_pages < wanted && visits-- > 0) {
		struct gw_cache_slot *slot = &cache->slots[cache->hand];
		uint32_t index = cache->hand;

		cache->hand = cache->hand + 1 < cache->page_count ? cache->hand + 1 : 0;
		if (!slot->used || slot->pin_round == cache->round) continue;
		if (slot->referenced || gw_cache_mirror_used_step(cache, index) > slot->cleared_step) {
			slot->referenced = 0;
			slot->cleared_step = (uint32_t)cache->step;
			continue;
		}
		drop_slot(cache, index);
		cache->stats.evictions++;
	}
	return cache->free_pages >= wanted;
}

static void add_pages(struct gw_cluster_cache *cache, struct gw_cache_slot *slot, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t page = cache->free_first;

		cache->free_first = cache->next_page[page];
		cache->free_pages--;
		cache->next_page[page] = NONE;
		if (slot->pages == 0)
			slot->first_page = page;
		else
			cache->next_page[slot->last_page] = page;
		slot->last_page = page;
		slot->pages++;
	}
}

static uint32_t pages_of(uint32_t rows)
{
	return (rows + GW_CACHE_PAGE_ROWS - 1) / GW_CACHE_PAGE_ROWS;
}

void gw_cache_stats_add(struct gw_cache_stats *sum, const struct gw_cache_stats *from,
	const struct gw_cache_stats *to)
{
	static const struct gw_cache_stats none;
	const struct gw_cache_stats *less = from != NULL ? from : &none;

	sum->hit_bytes += to->hit_bytes - less->hit_bytes;
	sum->miss_bytes += to->miss_bytes - less->miss_bytes;
	sum->hit_tokens += to->hit_tokens - less->hit_tokens;
	sum->miss_tokens += to->miss_tokens - less->miss_tokens;
	sum->hit_clusters += to->hit_clusters - less->hit_clusters;
	sum->miss_clusters += to->miss_clusters - less->miss_clusters;
}

static void count_access(struct gw_cluster_cache *cache, uint32_t held, uint32_t count)
{
	uint32_t hit = held < count ? held : count;
	size_t row = cache->options.row_bytes;
	const struct gw_cache_stats access = {.hit_bytes = hit * row,
		.miss_bytes = (count - hit) * row,
		.hit_tokens = hit,
		.miss_tokens = count - hit,
		.hit_clusters = hit == count,
		.miss_clusters = hit != count};

	gw_cache_stats_add(&cache->stats, NULL, &access);
}

/* A slot for a key that is not in the cache, without pages; NONE when there is no room. */
static uint32_t new_slot(struct gw_cluster_cache *cache, const struct gw_map_key *key,
	uint32_t pages)
{
	uint32_t index;

	if (!make_room(cache, pages) || cache->free_slot_count == 0) return NONE;
	index = cache->free_slots[cache->free_slot_count - 1];
	if (kv_hash_map_insert(cache->map, key, index) != KV_OK) return NONE;
	cache->free_slot_count--;
	cache->used_slots++;
	cache->slots[index].key = *key;
	cache->slots[index].used = 1;
	/* What the device used so far was another cluster. */
	cache->slots[index].cleared_step = (uint32_t)cache->step;
	return index;
}

static struct gw_map_key map_key(const struct gw_cache_key *key)
{
	return (struct gw_map_key){key->segment, key->layer, key->head, key->cluster, 0};
}

static uint32_t find(const struct gw_cluster_cache *cache, const struct gw_map_key *key,
	const uint32_t *hint)
{
	uint64_t found = NONE;

	if (hint != NULL && *hint < cache->page_count && cache->slots[*hint].used &&
		memcmp(&cache->slots[*hint].key, key, sizeof *key) == 0)
		return *hint;
	return kv_hash_map_find(cache->map, key, &found) ? (uint32_t)found : (uint32_t)NONE;
}

void gw_cluster_cache_find(const struct gw_cluster_cache *cache, const struct gw_cache_key *wanted,
	uint32_t *hint)
{
	const struct gw_map_key key = map_key(wanted);
	uint32_t index = find(cache, &key, hint);

	if (index != NONE) *hint = index;
}

void gw_cluster_cache_prefetch(const struct gw_cluster_cache *cache, uint32_t hint)
{
	if (hint < cache->page_count) __builtin_prefetch(&cache->slots[hint], 1);
}

/* Find or make room, and pin. */
static struct gw_cache_grant take(struct gw_cluster_cache *cache,
	const struct gw_cache_key *wanted, uint32_t count, uint32_t *hint)
{
	const struct gw_map_key key = map_key(wanted);
	struct gw_cache_grant grant = {NONE, 0, 1};
	uint32_t index = find(cache, &key, hint), more;
	uint64_t pinned_before;
	struct gw_cache_slot *slot;
	int fresh = index == NONE;

	if (fresh) index = new_slot(cache, &key, pages_of(count));
	if (index == NONE) return grant;
	if (hint != NULL) *hint = index;
	slot = &cache->slots[index];
	pinned_before = slot->pin_round;
	if (pinned_before != cache->round) cache->pinned_pages += slot->pages;
	slot->pin_round = cache->round;
	slot->used_step = cache->step;
	slot->referenced = !fresh;
	/* What an earlier extent of this round is about to fill is there before anybody reads. */
	if (slot->wanted < count) {
		more = pages_of(count) - slot->pages;
		if (!make_room(cache, more)) {
			if (pinned_before != cache->round) cache->pinned_pages -= slot->pages;
			slot->pin_round = pinned_before;
			return grant;
		}
		grant.held = slot->wanted;
		if (slot->wanted == slot->held) cache->pending[cache->pending_count++] = index;
		add_pages(cache, slot, more);
		cache->pinned_pages += more;
		slot->wanted = count;
	} else {
		grant.held = count;
	}
	grant.slot = index;
	grant.pending = count > slot->held;
	return grant;
}

struct gw_cache_grant gw_cluster_cache_acquire(struct gw_cluster_cache *cache,
	const struct gw_cache_key *wanted, uint32_t count, uint32_t *hint)
{
	struct gw_cache_grant grant = take(cache, wanted, count, hint);

	count_access(cache, grant.held, count);
	return grant;
}

struct gw_cache_grant gw_cluster_cache_admit(struct gw_cluster_cache *cache,
	const struct gw_cache_key *wanted, uint32_t count, uint32_t *hint)
{
	return take(cache, wanted, count, hint);
}

void gw_cluster_cache_count(struct gw_cluster_cache *cache, const struct gw_cache_stats *found)
{
	gw_cache_stats_add(&cache->stats, NULL, found);
}

uint32_t gw_cluster_cache_spans(const struct gw_cluster_cache *cache, uint32_t slot_index,
	uint32_t from, uint32_t to, struct kn_span *spans)
{
	const struct gw_cache_slot *slot = &cache->slots[slot_index];
	size_t row_bytes = cache->options.row_bytes;
	uint32_t page = slot->first_page, row = 0, written = 0;

	for (uint32_t skip = from / GW_CACHE_PAGE_ROWS; skip > 0; skip--) {
		page = cache->next_page[page];
		row += GW_CACHE_PAGE_ROWS;
	}
	while (row < to) {
		uint32_t first = from > row ? from - row : 0;
		uint32_t last = to - row < GW_CACHE_PAGE_ROWS ? to - row : GW_CACHE_PAGE_ROWS;
		const uint8_t *rows =
			cache->memory + ((size_t)page * GW_CACHE_PAGE_ROWS + first) * row_bytes;

		if (written > 0 &&
			spans[written - 1].rows + spans[written - 1].count * row_bytes == rows) {
			spans[written - 1].count += last - first;
		} else {
			spans[written].rows = rows;
			spans[written].count = last - first;
			written++;
		}
		page = cache->next_page[page];
		row += GW_CACHE_PAGE_ROWS;
	}
	return written;
}

void gw_cluster_cache_commit(struct gw_cluster_cache *cache)
{
	for (uint32_t i = 0; i < cache->pending_count; i++) {
		struct gw_cache_slot *slot = &cache->slots[cache->pending[i]];

		slot->held = slot->wanted;
		gw_cache_mirror_changed(cache, cache->pending[i]);
	}
	cache->pending_count = 0;
}

/* Give back the pages behind the rows that are valid; there is at least one such row. */
static void keep_held(struct gw_cluster_cache *cache, struct gw_cache_slot *slot)
{
	uint32_t kept = pages_of(slot->held), dropped = slot->pages - kept;
	uint32_t last = slot->first_page;

	slot->wanted = slot->held;
	if (dropped == 0) return;
	for (uint32_t i = 1; i < kept; i++)
		last = cache->next_page[last];
	cache->next_page[slot->last_page] = cache->free_first;
	cache->free_first = cache->next_page[last];
	cache->next_page[last] = NONE;
	slot->last_page = last;
	if (slot->pin_round == cache->round) cache->pinned_pages -= dropped;
	for (; slot->pages > kept; slot->pages--)
		cache->free_pages++;
}

void gw_cluster_cache_abandon(struct gw_cluster_cache *cache)
{
	for (uint32_t i = 0; i < cache->pending_count; i++) {
		struct gw_cache_slot *slot = &cache->slots[cache->pending[i]];

		if (slot->held > 0)
			keep_held(cache, slot);
		else
			drop_slot(cache, cache->pending[i]);
	}
	cache->pending_count = 0;
}

struct gw_cache_stats gw_cluster_cache_stats(const struct gw_cluster_cache *cache)
{
	struct gw_cache_stats stats = cache->stats;

	stats.used_bytes = (uint64_t)(cache->page_count - cache->free_pages) *
		cache->options.row_bytes * GW_CACHE_PAGE_ROWS;
	return stats;
}
