/* Lookup in the cluster cache on the device, and what follows it there: against rows that are found
 * one by one, and the cpu backend. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/cuda/launch_attention.h"
#include "kernels/cuda/launch_clusters.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/lookup_world.h"

enum {
	JOBS = KVT_LOOKUP_JOBS,
	CLUSTERS = KVT_LOOKUP_CLUSTERS,
	GROUP = KVT_LOOKUP_GROUP,
	HEAD_DIM = KVT_LOOKUP_HEAD_DIM,
	WIDTH = GROUP * HEAD_DIM,
	BUDGET = 500,
	MOST_ROWS = 2 * KVT_LOOKUP_OWN + KVT_LOOKUP_EXTENTS * KVT_LOOKUP_ROWS
};

static const struct kvt_lookup_memory memory = {dev_upload, dev_fetch, dev_free};

/* Queue a lookup; returned is what is to be freed when it is done. */
static void *queue_lookup(const struct kvt_lookup_placed *p)
{
	struct kn_lookup_arguments a = p->a;
	struct kn_lookup_job *jobs = dev_upload(a.jobs, sizeof p->jobs);

	a.jobs = jobs;
	DEV_OK(kn_cuda_lookup(&a, NULL));
	return jobs;
}

static void *copy_of(const void *from, size_t bytes)
{
	void *copy = kvt_alloc(bytes + 1, 1);

	memcpy(copy, from, bytes);
	return copy;
}

/* What the cpu backend makes of it. */
static uint64_t look_up_on_cpu(struct kvt_lookup_world *w, uint32_t failed)
{
	static const struct kvt_lookup_memory host = {copy_of, copy_of, kvt_free};
	struct kvt_lookup_placed p;
	struct kvt_backend cpu;

	assert_true(kvt_backend_open(&cpu, KN_CPU_PLAIN, 1));
	kvt_lookup_place(w, &host, &p);
	assert_int_equal(cpu.ops->lookup(cpu.backend, NULL, &p.a), KV_OK);
	uint64_t digest = kvt_lookup_check(w, &p, failed);

	kvt_lookup_remove(&p);
	kvt_backend_close(&cpu);
	return digest;
}

static void check_world(struct kvt_lookup_world *w, uint32_t failed, int with_steps)
{
	struct kvt_lookup_placed p;
	void *jobs;

	kvt_lookup_place(w, &memory, &p);
	if (!with_steps) p.a.cache.used_step = NULL;
	jobs = queue_lookup(&p);
	dev_wait();
	assert_true(kvt_lookup_check(w, &p, failed) == look_up_on_cpu(w, failed));
	dev_free(jobs);
	kvt_lookup_remove(&p);
}

static void finds_hits_and_misses(void **state)
{
	struct kvt_lookup_world *w = kvt_lookup_world_create(1);
	struct kvt_lookup_missed missed = kvt_lookup_missed(w);

	(void)state;
	assert_true(missed.extents > 10);
	check_world(w, 0, 1);
	kvt_free(w);
	w = kvt_lookup_world_create(2);
	check_world(w, 0, 0);
	kvt_free(w);
}

static void fills_staging_to_the_last_row(void **state)
{
	struct kvt_lookup_world *w = kvt_lookup_world_create(3);
	struct kvt_lookup_missed missed = kvt_lookup_missed(w);

	(void)state;
	w->staging_rows = missed.rows;
	w->copy_capacity = missed.extents;
	check_world(w, 0, 1);
	w->staging_rows--;
	check_world(w, KN_STEP_STAGING_FULL, 1);
	w->staging_rows++;
	w->copy_capacity--;
	check_world(w, KN_STEP_STAGING_FULL, 1);
	w->staging_rows = w->copy_capacity = 0;
	check_world(w, KN_STEP_STAGING_FULL, 1);
	kvt_free(w);
}

static void knows_what_cannot_be_reached(void **state)
{
	struct kvt_lookup_world *w = kvt_lookup_world_create(7);

	(void)state;
	w->heads[3].unreachable[1] = 1;
	check_world(w, KN_STEP_UNREACHABLE, 1);
	w->staging_rows = 100;
	check_world(w, KN_STEP_UNREACHABLE | KN_STEP_STAGING_FULL, 1);
	/* Where nothing is missed, nothing has to be reached. */
	kvt_lookup_world_heal(w);
	w->staging_rows = w->copy_capacity = 0;
	check_world(w, 0, 1);
	kvt_free(w);
}

static uint32_t word_at(const uint32_t *device)
{
	uint32_t word;

	dev_download(&word, device, sizeof word);
	return word;
}

/* Lookups of a step add up in staging, each with copies of its own; without jobs there are none. */
static void lookups_share_staging(void **state)
{
	struct kvt_lookup_world *w = kvt_lookup_world_create(8);
	struct kvt_lookup_missed missed = kvt_lookup_missed(w);
	struct kvt_lookup_placed p;
	void *jobs[2];

	(void)state;
	kvt_lookup_place(w, &memory, &p);
	for (uint32_t i = 0; i < 2; i++)
		jobs[i] = queue_lookup(&p);
	dev_wait();
	assert_int_equal(word_at(p.a.staging.used), 2 * missed.rows);
	assert_int_equal(word_at(p.a.staging.copy_count), missed.extents);
	struct kn_copy_job *copies = dev_fetch(p.a.staging.copies, missed.extents * sizeof *copies);

	for (uint32_t i = 0; i < missed.extents; i++)
		assert_true(copies[i].destination >=
		            p.a.staging.memory + (size_t)missed.rows * KVT_LOOKUP_ROW_BYTES);
	kvt_free(copies);
	p.a.job_count = 0;
	DEV_OK(kn_cuda_lookup(&p.a, NULL));
	dev_wait();
	assert_int_equal(word_at(p.a.staging.used), 2 * missed.rows);
	assert_int_equal(word_at(p.a.staging.copy_count), 0);
	for (uint32_t i = 0; i < 2; i++)
		dev_free(jobs[i]);
	kvt_lookup_remove(&p);
	kvt_free(w);
}

/* ---- a whole step ---- */

/* Inputs and results of score and select for one job, on the device. */
struct choice {
	struct kn_score_job score;
	struct kn_select_job select;
};

static struct choice upload_choice(
    const struct kvt_lookup_world *w, uint32_t job, struct kv_random *random)
{
	float q[WIDTH], log_sizes[CLUSTERS];
	uint16_t centroids[CLUSTERS * HEAD_DIM];
	const uint32_t *sizes = w->heads[job].sizes;
	struct choice c = {0};

	kvt_fill_peaky(random, q, WIDTH, 1.0f);
	for (uint32_t i = 0; i < CLUSTERS; i++)
		log_sizes[i] = logf((float)sizes[i]);
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
	    .sizes = dev_upload(sizes, CLUSTERS * sizeof *sizes),
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
	    .job_count = JOBS, .group = GROUP, .head_dim = HEAD_DIM, .scale = 0.35f, .size_term = 1};
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

/* What attention needs besides the spans. */
struct attention {
	struct kn_attend_job jobs[JOBS];
	float *out;
	void *device_jobs, *scratch;
};

/* Attention over spans in device memory, whose number is there, too. */
static void queue_attention(
    struct attention *t, const struct choice *choices, const struct kn_lookup_job *lookups)
{
	struct kn_attend_sparse_arguments a = {.job_count = JOBS,
	    .group = GROUP,
	    .head_dim = HEAD_DIM,
	    .kv_type = KN_KV_F16,
	    .scale = 0.35f};
	struct kn_cuda_attend_bounds bounds = {MOST_ROWS, KVT_LOOKUP_SPANS, CLUSTERS};

	t->out = dev_alloc(JOBS * WIDTH * sizeof *t->out);
	for (uint32_t i = 0; i < JOBS; i++) {
		const struct choice *c = &choices[i];

		t->jobs[i] = (struct kn_attend_job){.q = c->score.q,
		    .out = t->out + (size_t)i * WIDTH,
		    .spans = lookups[i].spans,
		    .span_count = KVT_LOOKUP_SPANS,
		    .estimate = {c->score.logits, CLUSTERS, c->select.rest, c->score.centroids, CLUSTERS},
		    .spans_written = lookups[i].span_count,
		    .row_bound = MOST_ROWS};
	}
	a.jobs = t->device_jobs = dev_upload(t->jobs, sizeof t->jobs);
	t->scratch = dev_alloc(kn_cuda_attend_sparse_scratch_bytes(&a, &bounds));
	DEV_OK(kn_cuda_attend_sparse(&a, &bounds, t->scratch, NULL));
}

static void attention_destroy(struct attention *t)
{
	dev_free(t->scratch);
	dev_free(t->device_jobs);
	dev_free(t->out);
}

/* The same attention over the host's rows in one span each has the same bits. */
static void check_attention(
    struct kvt_lookup_world *w, const struct attention *t, const struct choice *choices)
{
	struct kn_lookup_job lookups[JOBS];
	struct attention whole = {0};
	const uint32_t one = 1;
	void *rows[JOBS], *number = (void *)dev_upload(&one, sizeof one);

	for (uint32_t i = 0; i < JOBS; i++) {
		struct kn_span span = {0};
		uint8_t *host = kvt_lookup_rows(w, i, &span.count);

		span.rows = rows[i] = dev_upload(host, (size_t)span.count * KVT_LOOKUP_ROW_BYTES);
		lookups[i].spans = dev_upload(&span, sizeof span);
		lookups[i].span_count = number;
		kvt_free(host);
	}
	queue_attention(&whole, choices, lookups);
	dev_wait();
	float *got = dev_fetch(t->out, JOBS * WIDTH * sizeof *got);
	float *want = dev_fetch(whole.out, JOBS * WIDTH * sizeof *want);

	kvt_assert_same_bits("attention", got, want, JOBS * WIDTH * sizeof *got);
	kvt_free(want);
	kvt_free(got);
	attention_destroy(&whole);
	for (uint32_t i = 0; i < JOBS; i++) {
		dev_free(lookups[i].spans);
		dev_free(rows[i]);
	}
	dev_free(number);
}

/* From queries to attention without the host; what was selected is fetched afterwards, to say what
 * should have been found. */
static void check_step(struct kvt_lookup_world *w)
{
	struct choice choices[JOBS];
	struct attention attention;
	struct kvt_lookup_placed p;
	struct kv_random random;
	uint64_t now = 1234, *generation = dev_upload(&now, sizeof now);
	void *scratch[4];

	kv_random_seed(&random, 3);
	kvt_lookup_place(w, &memory, &p);
	for (uint32_t i = 0; i < JOBS; i++) {
		choices[i] = upload_choice(w, i, &random);
		p.jobs[i].extents = choices[i].select.extents;
		p.jobs[i].selected = choices[i].select.counts;
	}
	struct kn_gather_extents_arguments gather = {p.a.staging.copies, p.a.staging.copy_count,
	    p.a.staging.copy_capacity, generation, now, p.a.staging.failed};

	queue_choices(choices, scratch);
	scratch[3] = queue_lookup(&p);
	DEV_OK(kn_cuda_gather_extents(&gather, 5, NULL));
	queue_attention(&attention, choices, p.jobs);
	dev_wait();
	for (uint32_t i = 0; i < JOBS; i++) {
		struct kvt_lookup_head *h = &w->heads[i];

		dev_download(&h->selected, p.jobs[i].selected, sizeof h->selected);
		assert_true(h->selected.extents > 1 && h->selected.extents <= KVT_LOOKUP_EXTENTS);
		assert_int_equal(h->selected.tokens, BUDGET);
		dev_download(h->extents, p.jobs[i].extents, h->selected.extents * sizeof *h->extents);
	}
	assert_true(kvt_lookup_check(w, &p, 0) == look_up_on_cpu(w, 0));
	check_attention(w, &attention, choices);
	attention_destroy(&attention);
	for (uint32_t i = 0; i < JOBS; i++)
		free_choice(&choices[i]);
	for (size_t i = 0; i < 4; i++)
		dev_free(scratch[i]);
	dev_free(generation);
	kvt_lookup_remove(&p);
}

static void a_step_needs_no_host(void **state)
{
	struct kvt_lookup_world *w = kvt_lookup_world_create(4);

	(void)state;
	/* Slots may be wrong, but what they say to hold is there. */
	for (uint32_t i = 0; i < KVT_LOOKUP_SLOTS; i++)
		if (w->slots[i].held == UINT32_MAX) w->slots[i].held = 1;
	for (uint32_t i = 0; i < KVT_LOOKUP_PAGES; i++)
		if (w->next_page[i] == i) w->next_page[i] = UINT32_MAX;
	check_step(w);
	assert_true(kvt_lookup_missed(w).extents > 5);
	kvt_lookup_world_heal(w);
	check_step(w);
	assert_int_equal(kvt_lookup_missed(w).extents, 0);
	kvt_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(finds_hits_and_misses),
	    cmocka_unit_test(fills_staging_to_the_last_row),
	    cmocka_unit_test(knows_what_cannot_be_reached),
	    cmocka_unit_test(lookups_share_staging),
	    cmocka_unit_test(a_step_needs_no_host),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
