#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/kernels/lookup_world.h"

enum {
	JOBS = KVT_LOOKUP_JOBS,
	CLUSTERS = KVT_LOOKUP_CLUSTERS,
	EXTENTS = KVT_LOOKUP_EXTENTS,
	ENTRIES = KVT_LOOKUP_ENTRIES,
	SLOTS = KVT_LOOKUP_SLOTS,
	PAGES = KVT_LOOKUP_PAGES,
	PAGE = KN_CACHE_PAGE_ROWS,
	ROW = KVT_LOOKUP_ROW_BYTES
};

static const uint64_t generation = 0x1234567800000001;

static uint32_t first_of(uint32_t job)
{
	return job == KVT_LOOKUP_TWIN ? job - 1 : job;
}

static const uint8_t *unit_at(const struct kvt_lookup_world *w, uint32_t job, uint32_t entry)
{
	return w->units[first_of(job)] +
	       (size_t)w->heads[job].segment_first[entry] * KVT_LOOKUP_ROWS * ROW;
}

static const uint8_t *rows_at(const struct kvt_lookup_world *w, uint32_t job, uint32_t cluster)
{
	const struct kvt_lookup_head *h = &w->heads[job];

	return unit_at(w, job, h->segment_of[cluster]) + (size_t)h->first_row[cluster] * ROW;
}

static void fill_rows(struct kv_random *random, uint8_t *rows, size_t bytes)
{
	for (size_t i = 0; i < bytes / 2; i++)
		kvt_set_element(
		    rows, KN_KV_F16, (uint32_t)i, (float)kv_random_below(random, 2001) * 0.002f - 2.0f);
}

/* ---- the world ---- */

/* A chain for a slot, with the cluster's rows: pages that adjoin as a rule, now and then with one
 * left out. */
static void take_pages(struct kvt_lookup_world *w, struct kv_random *random,
    struct kn_cache_slot *slot, const uint8_t *rows)
{
	uint32_t last = UINT32_MAX;

	for (uint32_t row = 0; row < slot->held; row += PAGE) {
		uint32_t take = slot->held - row < PAGE ? slot->held - row : PAGE;

		if (w->pages + 2 < PAGES && kv_random_below(random, 3) == 0) w->pages++;
		assert_true(w->pages < PAGES);
		if (last == UINT32_MAX)
			slot->first_page = w->pages;
		else
			w->next_page[last] = w->pages;
		last = w->pages++;
		w->next_page[last] = UINT32_MAX;
		memcpy(w->cache + (size_t)last * PAGE * ROW, rows + (size_t)row * ROW, (size_t)take * ROW);
	}
}

/* Make a single thing of a slot or of the hint to it wrong. */
static void spoil(struct kvt_lookup_world *w, struct kv_random *random, uint32_t at, uint32_t *hint)
{
	struct kn_cache_slot *slot = &w->slots[at];

	switch (kv_random_below(random, 24)) {
	case 0:
		slot->generation = kv_random_below(random, 2) ? generation + 1 : 0;
		break;
	case 1:
		slot->segment++;
		break;
	case 2:
		slot->layer++;
		break;
	case 3:
		slot->head ^= 1;
		break;
	case 4:
		slot->cluster++;
		break;
	case 5:
		*hint = kv_random_below(random, 2) ? UINT32_MAX : SLOTS;
		break;
	case 6:
		slot->held = 0;
		break;
	case 7:
		slot->first_page = kv_random_below(random, 2) ? UINT32_MAX : PAGES;
		break;
	case 8:
		w->next_page[slot->first_page] = kv_random_below(random, 2) ? UINT32_MAX : PAGES;
		break;
	case 9:
		w->next_page[slot->first_page] = slot->first_page; /* in a ring, but within */
		break;
	case 10:
		*hint = (uint32_t)kv_random_below(random, SLOTS);
		break;
	case 11:
		slot->held = UINT32_MAX;
		break;
	default:
		break;
	}
}

static void fill_slot(
    struct kvt_lookup_world *w, struct kv_random *random, uint32_t job, uint32_t cluster)
{
	struct kvt_lookup_head *h = &w->heads[job];
	uint32_t at = job * CLUSTERS + cluster, entry = h->segment_of[cluster];
	struct kn_cache_slot *slot = &w->slots[at];

	*slot = (struct kn_cache_slot){.generation = generation,
	    .segment = h->segment_ids[entry],
	    .layer = h->layer,
	    .head = h->head,
	    .cluster = cluster - h->segment_first[entry],
	    .held = h->sizes[cluster]};
	if (kv_random_below(random, 3) == 0)
		slot->held = 1 + (uint32_t)kv_random_below(random, slot->held);
	take_pages(w, random, slot, rows_at(w, job, cluster));
	h->hints[cluster] = at;
	spoil(w, random, at, &h->hints[cluster]);
}

static void fill_head(struct kvt_lookup_world *w, struct kv_random *random, uint32_t job)
{
	struct kvt_lookup_head *h = &w->heads[job];
	const struct kvt_lookup_head *first = &w->heads[first_of(job)];
	uint32_t row = 0;

	h->layer = 3;
	h->head = first_of(job);
	for (uint32_t e = 0; e < ENTRIES; e++) {
		h->segment_ids[e] = ((uint64_t)first_of(job) << 40) + e + 1;
		h->segment_first[e] = e * (CLUSTERS / ENTRIES);
	}
	for (uint32_t c = 0; c < CLUSTERS; c++) {
		h->segment_of[c] = c / (CLUSTERS / ENTRIES);
		h->sizes[c] =
		    h == first ? 1 + (uint32_t)kv_random_below(random, KVT_LOOKUP_ROWS) : first->sizes[c];
		if (c == h->segment_first[h->segment_of[c]]) row = 0;
		h->first_row[c] = row;
		row += h->sizes[c];
	}
	/* Every cluster at most once; one job has them all. */
	h->selected.extents = job == 0   ? 0
	                      : job == 3 ? EXTENTS
	                                 : 1 + (uint32_t)kv_random_below(random, EXTENTS);
	for (uint32_t i = 0; i < h->selected.extents; i++) {
		uint32_t cluster = (i * 11 + job) % CLUSTERS;
		int whole = i % 3 != 0;

		h->extents[i] = (struct kn_extent){.cluster = cluster,
		    .count = whole ? h->sizes[cluster]
		                   : 1 + (uint32_t)kv_random_below(random, h->sizes[cluster])};
		h->selected.tokens += h->extents[i].count;
	}
	h->before = job % 2 == 0 ? 16 : 0;
	h->after = job % 3 == 0 ? 0 : KVT_LOOKUP_OWN;
	fill_rows(random, w->own[job], sizeof w->own[job]);
	if (h == first) fill_rows(random, w->units[job], sizeof w->units[job]);
}

struct kvt_lookup_world *kvt_lookup_world_create(uint64_t seed)
{
	struct kvt_lookup_world *w = kvt_alloc(1, sizeof *w);
	struct kv_random random;

	kv_random_seed(&random, seed);
	for (uint32_t job = 0; job < JOBS; job++) {
		fill_head(w, &random, job);
		for (uint32_t c = 0; c < CLUSTERS; c++)
			fill_slot(w, &random, job, c);
	}
	w->staging_rows = JOBS * CLUSTERS * KVT_LOOKUP_ROWS;
	w->copy_capacity = JOBS * EXTENTS;
	return w;
}

void kvt_lookup_world_heal(struct kvt_lookup_world *w)
{
	struct kv_random random;

	kv_random_seed(&random, 5);
	w->pages = 0;
	for (uint32_t at = 0; at < SLOTS; at++) {
		struct kvt_lookup_head *h = &w->heads[at / CLUSTERS];
		uint32_t c = at % CLUSTERS, entry = h->segment_of[c];

		w->slots[at] = (struct kn_cache_slot){.generation = generation,
		    .segment = h->segment_ids[entry],
		    .layer = h->layer,
		    .head = h->head,
		    .cluster = c - h->segment_first[entry],
		    .held = h->sizes[c]};
		take_pages(w, &random, &w->slots[at], rows_at(w, at / CLUSTERS, c));
		h->hints[c] = at;
	}
}

/* ---- what is to be found ---- */

/* The slot of a cluster, or UINT32_MAX. */
static uint32_t slot_of(
    const struct kvt_lookup_world *w, const struct kvt_lookup_head *h, uint32_t cluster)
{
	uint32_t entry = h->segment_of[cluster], at = h->hints[cluster];

	if (at >= SLOTS) return UINT32_MAX;
	const struct kn_cache_slot *slot = &w->slots[at];

	return slot->generation == generation && slot->segment == h->segment_ids[entry] &&
	               slot->layer == h->layer && slot->head == h->head &&
	               slot->cluster + h->segment_first[entry] == cluster
	           ? at
	           : UINT32_MAX;
}

/* Where in the cache row `row` of a slot lies, in rows; UINT64_MAX where the chain has left it. */
static uint64_t cached_row(
    const struct kvt_lookup_world *w, const struct kn_cache_slot *slot, uint32_t row)
{
	uint32_t page = slot->first_page;

	for (uint32_t i = 0; i < row / PAGE && page < PAGES; i++)
		page = w->next_page[page];
	return page < PAGES ? (uint64_t)page * PAGE + row % PAGE : UINT64_MAX;
}

/* How many of an extent's leading rows are held. */
static uint32_t held_of(
    const struct kvt_lookup_world *w, const struct kvt_lookup_head *h, struct kn_extent extent)
{
	uint32_t at = slot_of(w, h, extent.cluster);

	if (at == UINT32_MAX) return 0;
	if (w->slots[at].held < extent.count) return w->slots[at].held;
	return cached_row(w, &w->slots[at], extent.count - 1) == UINT64_MAX ? 0 : extent.count;
}

struct kvt_lookup_missed kvt_lookup_missed(const struct kvt_lookup_world *w)
{
	struct kvt_lookup_missed missed = {0, 0};

	for (uint32_t job = 0; job < JOBS; job++)
		for (uint32_t i = 0; i < w->heads[job].selected.extents; i++) {
			struct kn_extent extent = w->heads[job].extents[i];

			if (held_of(w, &w->heads[job], extent) == extent.count) continue;
			missed.rows += extent.count;
			missed.extents++;
		}
	return missed;
}

uint8_t *kvt_lookup_rows(const struct kvt_lookup_world *w, uint32_t job, uint32_t *count)
{
	const struct kvt_lookup_head *h = &w->heads[job];
	uint8_t *rows = kvt_alloc(h->before + h->selected.tokens + h->after + 1, ROW), *at = rows;

	memcpy(at, w->own[job], (size_t)h->before * ROW);
	at += (size_t)h->before * ROW;
	for (uint32_t i = 0; i < h->selected.extents; i++) {
		size_t bytes = (size_t)h->extents[i].count * ROW;

		memcpy(at, rows_at(w, job, h->extents[i].cluster), bytes);
		at += bytes;
	}
	memcpy(at, w->own[job] + KVT_LOOKUP_OWN * ROW, (size_t)h->after * ROW);
	*count = h->before + h->selected.tokens + h->after;
	return rows;
}

/* ---- in a backend's memory ---- */

static void *put(struct kvt_lookup_placed *p, const void *from, size_t bytes)
{
	assert_true(p->block_count < KVT_LOOKUP_BLOCKS);
	return p->blocks[p->block_count++] = p->memory.upload(from, bytes);
}

/* Memory whose contents do not count. */
static void *put_room(struct kvt_lookup_placed *p, size_t bytes)
{
	uint8_t *filler = kvt_alloc(bytes + 1, 1);
	void *room;

	memset(filler, 0xdb, bytes);
	room = put(p, filler, bytes);
	kvt_free(filler);
	return room;
}

static void place_job(const struct kvt_lookup_world *w, struct kvt_lookup_placed *p, uint32_t job)
{
	const struct kvt_lookup_head *h = &w->heads[job];
	const uint8_t *own = put(p, w->own[job], sizeof w->own[job]), *unit_rows[ENTRIES];

	for (uint32_t e = 0; e < ENTRIES; e++)
		unit_rows[e] = h->unreachable[e] ? NULL : p->units + (unit_at(w, job, e) - &w->units[0][0]);
	p->jobs[job] = (struct kn_lookup_job){.extents = put(p, h->extents, sizeof h->extents),
	    .selected = put(p, &h->selected, sizeof h->selected),
	    .hints = put(p, h->hints, sizeof h->hints),
	    .segment_of = put(p, h->segment_of, sizeof h->segment_of),
	    .segment_first = put(p, h->segment_first, sizeof h->segment_first),
	    .segment_ids = put(p, h->segment_ids, sizeof h->segment_ids),
	    .first_row = put(p, h->first_row, sizeof h->first_row),
	    .unit_rows = put(p, (const void *)unit_rows, sizeof unit_rows),
	    .layer = h->layer,
	    .head = h->head,
	    .before = {own, h->before},
	    .after = {own + KVT_LOOKUP_OWN * ROW, h->after},
	    .spans = put_room(p, KVT_LOOKUP_SPANS * sizeof(struct kn_span)),
	    .span_count = put_room(p, sizeof(uint32_t)),
	    .misses = put_room(p, EXTENTS * sizeof(struct kn_lookup_miss)),
	    .counts = put_room(p, sizeof(struct kn_lookup_counts))};
}

void kvt_lookup_place(const struct kvt_lookup_world *w, const struct kvt_lookup_memory *memory,
    struct kvt_lookup_placed *p)
{
	const uint32_t zero = 0;

	*p = (struct kvt_lookup_placed){.memory = *memory};
	p->units = put(p, w->units, sizeof w->units);
	for (uint32_t job = 0; job < JOBS; job++)
		place_job(w, p, job);
	p->a = (struct kn_lookup_arguments){.jobs = p->jobs, .job_count = JOBS};
	p->a.cache = (struct kn_cache_table){.slots = put(p, w->slots, sizeof w->slots),
	    .next_page = put(p, w->next_page, sizeof w->next_page),
	    .memory = put(p, w->cache, sizeof w->cache),
	    .used_step = put(p, w->used_step, sizeof w->used_step),
	    .row_bytes = ROW,
	    .generation = generation,
	    .slot_count = SLOTS,
	    .page_count = PAGES,
	    .step = KVT_LOOKUP_STEP};
	p->a.staging = (struct kn_staging){.memory = put_room(p, (size_t)w->staging_rows * ROW),
	    .rows = w->staging_rows,
	    .used = put(p, &zero, sizeof zero),
	    .copies = put_room(p, w->copy_capacity * sizeof(struct kn_copy_job)),
	    .copy_capacity = w->copy_capacity,
	    .copy_count = put_room(p, sizeof zero),
	    .failed = put(p, &zero, sizeof zero)};
}

void kvt_lookup_remove(struct kvt_lookup_placed *p)
{
	while (p->block_count > 0)
		p->memory.free(p->blocks[--p->block_count]);
}

/* ---- what was found ---- */

/* All that a lookup wrote, on the host. */
struct outcome {
	struct kvt_lookup_world *world;
	const struct kvt_lookup_placed *placed;
	struct kn_span *spans;
	struct kn_lookup_miss *misses;
	struct kn_copy_job *copies;
	const uint8_t **units;                    /* of the job that is looked at */
	uint32_t copy_count, used, failed, taken; /* taken: rows of staging that spans are in */
	uint8_t *staged;                          /* [staging_rows]: a span has it */
	uint64_t digest;
};

static void digest(struct outcome *o, uint64_t value)
{
	o->digest = (o->digest ^ value) * 0x9e3779b97f4a7c15u;
	o->digest ^= o->digest >> 29;
}

static uint32_t fetch_word(const struct kvt_lookup_placed *p, const uint32_t *at)
{
	uint32_t *copy = p->memory.fetch(at, sizeof *at), word = *copy;

	kvt_free(copy);
	return word;
}

/* A hit's rows one by one: a new span where the next row does not adjoin. Returns the spans. */
static uint32_t check_hit(struct outcome *o, const struct kn_cache_slot *slot, uint32_t count,
    const struct kn_span *spans)
{
	const uint8_t *memory = o->placed->a.cache.memory;
	uint32_t n = 0, length = 0;
	uint64_t before = UINT64_MAX;

	for (uint32_t row = 0; row < count; row++) {
		uint64_t at = cached_row(o->world, slot, row);

		if (row == 0 || at != before + 1) {
			if (n != 0) assert_int_equal(spans[n - 1].count, length);
			assert_ptr_equal(spans[n].rows, memory + at * ROW);
			digest(o, at);
			n++;
			length = 0;
		}
		length++;
		before = at;
	}
	assert_int_equal(spans[n - 1].count, length);
	return n;
}

/* A span in rows of staging that nobody else has, which one copy fills. */
static void check_staged(struct outcome *o, const struct kvt_lookup_head *h,
    const struct kn_lookup_miss *miss, const struct kn_span *span)
{
	const struct kn_staging *s = &o->placed->a.staging;
	const uint8_t *at = s->memory + (size_t)miss->staged * ROW;
	uint32_t entry = h->segment_of[miss->cluster], found = 0;

	assert_ptr_equal(span->rows, at);
	assert_int_equal(span->count, miss->count);
	assert_true(miss->staged < s->rows && miss->count <= s->rows - miss->staged);
	for (uint32_t i = 0; i < miss->count; i++)
		assert_int_equal(o->staged[miss->staged + i]++, 0);
	o->taken += miss->count;
	for (uint32_t i = 0; i < o->copy_count; i++) {
		const struct kn_copy_job *copy = &o->copies[i];

		if (copy->destination != at) continue;
		assert_ptr_equal(copy->source, o->units[entry] + (size_t)h->first_row[miss->cluster] * ROW);
		assert_int_equal(copy->bytes, (size_t)miss->count * ROW);
		found++;
	}
	assert_int_equal(found, 1);
}

static void check_job(struct outcome *o, uint32_t number)
{
	const struct kn_lookup_job *job = &o->placed->jobs[number];
	const struct kvt_lookup_head *h = &o->world->heads[number];
	struct kn_lookup_counts want = {0}, *got = o->placed->memory.fetch(job->counts, sizeof *got);

	if (h->before != 0) assert_memory_equal(&o->spans[want.spans++], &job->before, 12);
	for (uint32_t i = 0; i < h->selected.extents; i++) {
		struct kn_extent extent = h->extents[i];
		uint32_t held = held_of(o->world, h, extent), at = slot_of(o->world, h, extent.cluster);

		if (at != UINT32_MAX) o->world->used_step[at] = KVT_LOOKUP_STEP;
		want.hit_tokens += held;
		want.miss_tokens += extent.count - held;
		digest(o, (uint64_t)held << 32 | extent.count);
		if (held == extent.count) {
			want.spans += check_hit(o, &o->world->slots[at], extent.count, o->spans + want.spans);
			continue;
		}
		const struct kn_lookup_miss *miss = &o->misses[want.misses++];

		assert_int_equal(miss->cluster, extent.cluster);
		assert_int_equal(miss->count, extent.count);
		assert_int_equal(miss->held, held);
		if (miss->staged != KN_NOT_STAGED)
			check_staged(o, h, miss, &o->spans[want.spans++]);
		else
			assert_true(h->unreachable[h->segment_of[extent.cluster]] ||
			            (o->failed & KN_STEP_STAGING_FULL) != 0);
	}
	if (h->after != 0) assert_memory_equal(&o->spans[want.spans++], &job->after, 12);
	kvt_assert_same_bits("counts", got, &want, sizeof want);
	assert_int_equal(fetch_word(o->placed, job->span_count), want.spans);
	kvt_free(got);
}

uint64_t kvt_lookup_check(
    struct kvt_lookup_world *w, const struct kvt_lookup_placed *p, uint32_t failed)
{
	const struct kn_staging *s = &p->a.staging;
	struct outcome o = {.world = w,
	    .placed = p,
	    .copies = p->memory.fetch(s->copies, s->copy_capacity * sizeof *s->copies),
	    .copy_count = fetch_word(p, s->copy_count),
	    .used = fetch_word(p, s->used),
	    .failed = fetch_word(p, s->failed),
	    .staged = kvt_alloc(s->rows + 1, 1)};

	assert_int_equal(o.failed, failed);
	assert_true(o.copy_count <= s->copy_capacity && o.used <= s->rows);
	for (uint32_t job = 0; job < JOBS; job++) {
		o.spans = p->memory.fetch(p->jobs[job].spans, KVT_LOOKUP_SPANS * sizeof *o.spans);
		o.misses = p->memory.fetch(p->jobs[job].misses, EXTENTS * sizeof *o.misses);
		o.units = p->memory.fetch(p->jobs[job].unit_rows, ENTRIES * sizeof *o.units);
		check_job(&o, job);
		kvt_free((void *)o.units);
		kvt_free(o.misses);
		kvt_free(o.spans);
	}
	if ((failed & KN_STEP_STAGING_FULL) == 0) assert_int_equal(o.used, o.taken);
	if (p->a.cache.used_step) {
		uint32_t *steps = p->memory.fetch(p->a.cache.used_step, sizeof w->used_step);

		kvt_assert_same_bits("steps", steps, w->used_step, sizeof w->used_step);
		kvt_free(steps);
	}
	kvt_free(o.staged);
	kvt_free(o.copies);
	return o.digest;
}
