/* Lookup in the cluster cache on the device, against rows that are found one by one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/cuda/launch_clusters.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/kv_rows.h"

#ifdef __SANITIZE_THREAD__
enum { JOBS = 3, CLUSTERS = 60, MOST_EXTENTS = 50 };
#else
enum { JOBS = 7, CLUSTERS = 700, MOST_EXTENTS = 600 };
#endif
enum {
	ENTRIES = 5, /* of a sequence's list of segments */
	PAGE = KN_CUDA_CACHE_PAGE_ROWS,
	MOST_ROWS = 90, /* of a slot */
	SLOTS = JOBS * CLUSTERS,
	PAGES = SLOTS * ((MOST_ROWS + PAGE - 1) / PAGE),
	ROW_BYTES = 48, /* nobody reads the rows */
	STEP = 17,
	MOST_SPANS = 2 + MOST_EXTENTS * (1 + MOST_ROWS / PAGE)
};

static const uint64_t generation = 0x1234567800000001;
static const uint8_t *const memory = (const uint8_t *)0x100000; /* nor where they are */

/* One (sequence, KV head). */
struct head {
	struct kn_extent extents[MOST_EXTENTS];
	struct kn_select_counts selected;
	uint32_t hints[CLUSTERS], segment_of[CLUSTERS], segment_first[ENTRIES];
	uint64_t segment_ids[ENTRIES];
	uint32_t layer, head;
	struct kn_span before, after;
};

struct world {
	struct head heads[JOBS];
	struct kn_cache_slot slots[SLOTS];
	uint32_t next_page[PAGES], used_step[SLOTS];
	uint32_t pages; /* handed out */
};

/* What came back of one job. */
struct result {
	struct kn_span spans[MOST_SPANS];
	struct kn_lookup_miss misses[MOST_EXTENTS];
	struct kn_lookup_counts counts;
	uint32_t span_count;
};

/* A chain for a slot: pages that adjoin as a rule, now and then with one left out. */
static void take_pages(struct world *w, struct kv_random *random, struct kn_cache_slot *slot)
{
	uint32_t last = UINT32_MAX;

	for (uint32_t row = 0; row < slot->held; row += PAGE) {
		if (w->pages + 2 < PAGES && kv_random_below(random, 3) == 0) w->pages++;
		assert_true(w->pages < PAGES);
		if (last == UINT32_MAX)
			slot->first_page = w->pages;
		else
			w->next_page[last] = w->pages;
		last = w->pages++;
		w->next_page[last] = UINT32_MAX;
	}
}

/* Slot `at` for a cluster: the right one, or one in which a single thing is wrong. */
static void fill_slot(struct world *w, struct kv_random *random, uint32_t at, uint32_t cluster)
{
	struct head *h = &w->heads[at / CLUSTERS];
	uint32_t entry = h->segment_of[cluster];
	struct kn_cache_slot *slot = &w->slots[at];

	*slot = (struct kn_cache_slot){.generation = generation,
	    .segment = h->segment_ids[entry],
	    .layer = h->layer,
	    .head = h->head,
	    .cluster = cluster - h->segment_first[entry],
	    .held = 1 + (uint32_t)kv_random_below(random, MOST_ROWS)};
	take_pages(w, random, slot);
	h->hints[cluster] = at;
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
		h->hints[cluster] = kv_random_below(random, 2) ? UINT32_MAX : SLOTS;
		break;
	case 6:
		slot->held = 0;
		break;
	default:
		break;
	}
}

static void fill_head(struct head *h, struct kv_random *random, uint32_t number)
{
	h->layer = 3;
	h->head = number;
	for (uint32_t e = 0; e < ENTRIES; e++) {
		h->segment_ids[e] = ((uint64_t)number << 40) + e + 1;
		h->segment_first[e] = e * (CLUSTERS / ENTRIES);
	}
	for (uint32_t c = 0; c < CLUSTERS; c++)
		h->segment_of[c] = c / (CLUSTERS / ENTRIES);
	/* Every cluster at most once; the first job has none. */
	h->selected.extents = number == 0 ? 0 : (uint32_t)kv_random_below(random, MOST_EXTENTS + 1);
	for (uint32_t i = 0; i < h->selected.extents; i++)
		h->extents[i] = (struct kn_extent){.cluster = (i * 11 + number) % CLUSTERS,
		    .count = 1 + (uint32_t)kv_random_below(random, MOST_ROWS)};
	h->before = (struct kn_span){memory - 4096, number % 2 == 0 ? 16 : 0};
	h->after = (struct kn_span){memory - 2048, number % 3 == 0 ? 0 : 30};
}

static struct world *world_create(uint64_t seed)
{
	struct world *w = kvt_alloc(1, sizeof *w);
	struct kv_random random;

	kv_random_seed(&random, seed);
	for (uint32_t i = 0; i < JOBS; i++) {
		fill_head(&w->heads[i], &random, i);
		for (uint32_t c = 0; c < CLUSTERS; c++)
			fill_slot(w, &random, i * CLUSTERS + c, c);
	}
	return w;
}

/* Every extent is held: no slot is wrong or short. */
static void heal(struct world *w)
{
	for (uint32_t i = 0; i < JOBS; i++) {
		struct head *h = &w->heads[i];

		for (uint32_t c = 0; c < CLUSTERS; c++) {
			struct kn_cache_slot *slot = &w->slots[i * CLUSTERS + c];

			h->hints[c] = i * CLUSTERS + c;
			slot->generation = generation;
			slot->segment = h->segment_ids[h->segment_of[c]];
			slot->layer = h->layer;
			slot->head = h->head;
			slot->cluster = c - h->segment_first[h->segment_of[c]];
		}
		for (uint32_t e = 0; e < h->selected.extents; e++) {
			struct kn_cache_slot *slot = &w->slots[i * CLUSTERS + h->extents[e].cluster];

			if (slot->held == 0) slot->held = 1;
			if (h->extents[e].count > slot->held) h->extents[e].count = slot->held;
		}
	}
}

/* The rows of a hit, one by one: a new span where the next row does not adjoin. */
static uint32_t expect_spans(
    const struct world *w, const struct kn_cache_slot *slot, uint32_t count, struct kn_span *spans)
{
	uint32_t n = 0, page = slot->first_page;

	for (uint32_t row = 0; row < count; row++) {
		if (row % PAGE == 0 && row != 0) page = w->next_page[page];
		const uint8_t *at = memory + ((size_t)page * PAGE + row % PAGE) * ROW_BYTES;

		if (n == 0 || spans[n - 1].rows + (size_t)spans[n - 1].count * ROW_BYTES != at)
			spans[n++] = (struct kn_span){.rows = at, .count = 0};
		spans[n - 1].count++;
	}
	return n;
}

static int is_wanted(const struct head *h, const struct kn_cache_slot *slot, uint32_t cluster)
{
	uint32_t entry = h->segment_of[cluster];

	return slot->generation == generation && slot->segment == h->segment_ids[entry] &&
	       slot->layer == h->layer && slot->head == h->head &&
	       slot->cluster + h->segment_first[entry] == cluster;
}

static void expect(struct world *w, const struct head *h, struct result *r)
{
	if (h->before.count != 0) r->spans[r->span_count++] = h->before;
	for (uint32_t i = 0; i < h->selected.extents; i++) {
		uint32_t cluster = h->extents[i].cluster, count = h->extents[i].count, held = 0;
		uint32_t slot = h->hints[cluster];

		if (slot >= SLOTS || !is_wanted(h, &w->slots[slot], cluster))
			slot = UINT32_MAX;
		else
			held = w->slots[slot].held < count ? w->slots[slot].held : count;
		if (slot != UINT32_MAX) w->used_step[slot] = STEP;
		if (held == count)
			r->span_count += expect_spans(w, &w->slots[slot], count, r->spans + r->span_count);
		else
			r->misses[r->counts.misses++] = (struct kn_lookup_miss){i, slot, held};
		r->counts.hit_tokens += held;
		r->counts.miss_tokens += count - held;
	}
	if (h->after.count != 0) r->spans[r->span_count++] = h->after;
	r->counts.spans = r->span_count;
}

static struct kn_lookup_job upload_job(const struct head *h)
{
	return (struct kn_lookup_job){.extents = dev_upload(h->extents, sizeof h->extents),
	    .selected = dev_upload(&h->selected, sizeof h->selected),
	    .hints = dev_upload(h->hints, sizeof h->hints),
	    .segment_of = dev_upload(h->segment_of, sizeof h->segment_of),
	    .segment_first = dev_upload(h->segment_first, sizeof h->segment_first),
	    .segment_ids = dev_upload(h->segment_ids, sizeof h->segment_ids),
	    .layer = h->layer,
	    .head = h->head,
	    .before = h->before,
	    .after = h->after,
	    .spans = dev_alloc(MOST_SPANS * sizeof(struct kn_span)),
	    .span_count = dev_alloc(sizeof(uint32_t)),
	    .misses = dev_alloc(MOST_EXTENTS * sizeof(struct kn_lookup_miss)),
	    .counts = dev_alloc(sizeof(struct kn_lookup_counts))};
}

static void free_job(const struct kn_lookup_job *j)
{
	const void *blocks[] = {j->extents, j->selected, j->hints, j->segment_of, j->segment_first,
	    j->segment_ids, j->spans, j->span_count, j->misses, j->counts};

	for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
		dev_free((void *)(uintptr_t)blocks[i]);
}

static void check_job(const struct kn_lookup_job *j, const struct result *want)
{
	struct kn_lookup_counts counts;
	uint32_t span_count;

	dev_download(&counts, j->counts, sizeof counts);
	dev_download(&span_count, j->span_count, sizeof span_count);
	kvt_assert_same_bits("counts", &counts, &want->counts, sizeof counts);
	assert_int_equal(span_count, want->span_count);
	struct kn_span *spans = dev_fetch(j->spans, MOST_SPANS * sizeof *spans);
	struct kn_lookup_miss *misses = dev_fetch(j->misses, MOST_EXTENTS * sizeof *misses);

	for (uint32_t i = 0; i < span_count; i++) {
		assert_ptr_equal(spans[i].rows, want->spans[i].rows);
		assert_int_equal(spans[i].count, want->spans[i].count);
	}
	kvt_assert_same_bits("misses", misses, want->misses, counts.misses * sizeof *misses);
	kvt_free(spans);
	kvt_free(misses);
}

/* Inputs and results of score and select for one job, on the device. */
struct choice {
	struct kn_score_job score;
	struct kn_select_job select;
};

enum { GROUP = 2, HEAD_DIM = 16, BUDGET = 500 };

/* Cluster c has as many tokens as its slot holds. */
static struct choice upload_choice(const struct world *w, uint32_t job, struct kv_random *random)
{
	float q[GROUP * HEAD_DIM], log_sizes[CLUSTERS];
	uint16_t centroids[CLUSTERS * HEAD_DIM];
	uint32_t sizes[CLUSTERS];
	struct choice c = {0};

	kvt_fill_peaky(random, q, GROUP * HEAD_DIM, 1.0f);
	for (uint32_t i = 0; i < CLUSTERS; i++) {
		sizes[i] = w->slots[job * CLUSTERS + i].held;
		log_sizes[i] = logf((float)sizes[i]);
	}
	for (uint32_t i = 0; i < CLUSTERS * HEAD_DIM; i++)
		centroids[i] = kn_half_from_float(kv_random_normal(random));
	c.score = (struct kn_score_job){.q = dev_upload(q, sizeof q),
	    .centroids = dev_upload(centroids, sizeof centroids),
	    .log_sizes = dev_upload(log_sizes, sizeof log_sizes),
	    .clusters = CLUSTERS,
	    .logits = dev_alloc(GROUP * CLUSTERS * sizeof(float)),
	    .logits_stride = CLUSTERS,
	    .votes = dev_alloc(CLUSTERS * sizeof(float))};
	c.select = (struct kn_select_job){.votes = c.score.votes,
	    .sizes = dev_upload(sizes, sizeof sizes),
	    .clusters = CLUSTERS,
	    .budget = BUDGET,
	    .extents = dev_alloc(CLUSTERS * sizeof(struct kn_extent)),
	    .rest = dev_alloc(CLUSTERS * sizeof(uint32_t)),
	    .counts = dev_alloc(sizeof(struct kn_select_counts)),
	    .scratch = dev_alloc(CLUSTERS * sizeof(uint32_t))};
	return c;
}

static void free_choice(const struct choice *c)
{
	const void *blocks[] = {c->score.q, c->score.centroids, c->score.log_sizes, c->score.logits,
	    c->score.votes, c->select.sizes, c->select.extents, c->select.rest, c->select.counts,
	    c->select.scratch};

	for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
		dev_free((void *)(uintptr_t)blocks[i]);
}

/* Score and select, queued on the stream that the lookup comes behind. */
static void queue_choices(const struct choice *choices, void **scratch)
{
	struct kn_score_job score_jobs[JOBS];
	struct kn_select_job select_jobs[JOBS];
	struct kn_score_arguments score = {
	    .job_count = JOBS, .group = GROUP, .head_dim = HEAD_DIM, .scale = 0.25f, .size_term = 1};
	struct kn_select_arguments select = {.job_count = JOBS};

	for (uint32_t i = 0; i < JOBS; i++) {
		score_jobs[i] = choices[i].score;
		select_jobs[i] = choices[i].select;
	}
	score.jobs = scratch[0] = dev_upload(score_jobs, sizeof score_jobs);
	select.jobs = scratch[1] = dev_upload(select_jobs, sizeof select_jobs);
	scratch[2] = dev_alloc(kn_cuda_score_scratch_bytes(JOBS, CLUSTERS, GROUP));
	DEV_OK(kn_cuda_score(&score, CLUSTERS, scratch[2], NULL));
	DEV_OK(kn_cuda_select(&select, NULL));
}

/* What was selected on the device is looked up there, and fetched to say what should be found. */
static void use_choice(struct kn_lookup_job *job, const struct choice *choice)
{
	dev_free((void *)(uintptr_t)job->extents);
	dev_free((void *)(uintptr_t)job->selected);
	job->extents = choice->select.extents;
	job->selected = choice->select.counts;
}

static void fetch_choice(struct head *h, struct kn_lookup_job *job)
{
	dev_download(&h->selected, job->selected, sizeof h->selected);
	assert_true(h->selected.extents <= MOST_EXTENTS);
	dev_download(h->extents, job->extents, h->selected.extents * sizeof *h->extents);
	job->extents = NULL;
	job->selected = NULL;
}

/* Returns the misses of all jobs. choices: NULL, or what replaces the heads' selections. */
static uint32_t check_world(struct world *w, int with_steps, const struct choice *choices)
{
	struct kn_lookup_job jobs[JOBS];
	struct result *want = kvt_alloc(JOBS, sizeof *want);
	uint32_t missed = 0, got;
	struct kn_lookup_arguments a = {.job_count = JOBS, .missed = dev_alloc(sizeof(uint32_t))};

	for (uint32_t i = 0; i < JOBS; i++) {
		jobs[i] = upload_job(&w->heads[i]);
		if (choices != NULL) use_choice(&jobs[i], &choices[i]);
	}
	a.cache = (struct kn_cache_table){.slots = dev_upload(w->slots, sizeof w->slots),
	    .next_page = dev_upload(w->next_page, sizeof w->next_page),
	    .memory = memory,
	    .used_step = with_steps ? dev_upload(w->used_step, sizeof w->used_step) : NULL,
	    .row_bytes = ROW_BYTES,
	    .generation = generation,
	    .slot_count = SLOTS,
	    .step = STEP};
	a.jobs = dev_upload(jobs, sizeof jobs);
	DEV_OK(kn_cuda_lookup(&a, NULL));
	dev_wait();
	for (uint32_t i = 0; i < JOBS; i++) {
		if (choices != NULL) fetch_choice(&w->heads[i], &jobs[i]);
		expect(w, &w->heads[i], &want[i]);
		check_job(&jobs[i], &want[i]);
		missed += want[i].counts.misses;
		free_job(&jobs[i]);
	}
	dev_download(&got, a.missed, sizeof got);
	assert_int_equal(got, missed);
	if (with_steps) {
		uint32_t *steps = dev_fetch(a.cache.used_step, sizeof w->used_step);

		kvt_assert_same_bits("steps", steps, w->used_step, sizeof w->used_step);
		kvt_free(steps);
		dev_free(a.cache.used_step);
	}
	dev_free((void *)(uintptr_t)a.cache.slots);
	dev_free((void *)(uintptr_t)a.cache.next_page);
	dev_free((void *)(uintptr_t)a.jobs);
	dev_free(a.missed);
	kvt_free(want);
	return missed;
}

static void finds_hits_and_misses(void **state)
{
	struct world *w = world_create(1);

	(void)state;
	assert_true(check_world(w, 1, NULL) > 0);
	assert_true(check_world(w, 0, NULL) > 0);
	kvt_free(w);
}

/* A step without a miss says so on the device. */
static void knows_when_nothing_is_missed(void **state)
{
	struct world *w = world_create(2);

	(void)state;
	heal(w);
	assert_int_equal(check_world(w, 1, NULL), 0);
	kvt_free(w);
}

/* From queries to spans without the host, where everything is held. */
static void a_step_needs_no_host(void **state)
{
	struct world *w = world_create(3);
	struct choice choices[JOBS];
	struct kv_random random;
	void *scratch[3];

	(void)state;
	kv_random_seed(&random, 3);
	heal(w);
	for (uint32_t i = 0; i < SLOTS; i++)
		if (w->slots[i].held == 0) w->slots[i].held = 1;
	for (uint32_t i = 0; i < JOBS; i++)
		choices[i] = upload_choice(w, i, &random);
	queue_choices(choices, scratch);
	assert_int_equal(check_world(w, 1, choices), 0);
	for (uint32_t i = 0; i < JOBS; i++) {
		assert_true(w->heads[i].selected.extents > 1);
		assert_int_equal(w->heads[i].selected.tokens, BUDGET);
		free_choice(&choices[i]);
	}
	for (size_t i = 0; i < 3; i++)
		dev_free(scratch[i]);
	kvt_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(finds_hits_and_misses),
	    cmocka_unit_test(knows_when_nothing_is_missed),
	    cmocka_unit_test(a_step_needs_no_host),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
