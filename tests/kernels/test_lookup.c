/* Lookup in the cluster cache, gathering what is missing, and attention over both: the cpu backend,
 * against rows that are found one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/kernels/lookup_world.h"

enum { JOBS = KVT_LOOKUP_JOBS, WIDTH = KVT_LOOKUP_GROUP * KVT_LOOKUP_HEAD_DIM };

static void *copy_of(const void *from, size_t bytes)
{
	void *copy = kvt_alloc(bytes + 1, 1);

	memcpy(copy, from, bytes);
	return copy;
}

static const struct kvt_lookup_memory memory = {copy_of, copy_of, kvt_free};

static void look_up(const struct kvt_backend *b, const struct kvt_lookup_placed *p)
{
	assert_int_equal(b->ops->lookup(b->backend, NULL, &p->a), KV_OK);
}

/* Look up in a world; `failed` is what must be set then. */
static void check_world(const struct kvt_backend *b, struct kvt_lookup_world *w, uint32_t failed)
{
	struct kvt_lookup_placed p;

	kvt_lookup_place(w, &memory, &p);
	look_up(b, &p);
	kvt_lookup_check(w, &p, failed);
	kvt_lookup_remove(&p);
}

static void each_world(const struct kvt_backend *b, void *context)
{
	(void)context;
	for (uint64_t seed = 1; seed < 4; seed++) {
		struct kvt_lookup_world *w = kvt_lookup_world_create(seed);
		struct kvt_lookup_missed missed = kvt_lookup_missed(w);

		assert_true(missed.extents > 10);
		check_world(b, w, 0);
		/* Exactly full is not too full. */
		w->staging_rows = missed.rows;
		w->copy_capacity = missed.extents;
		check_world(b, w, 0);
		w->staging_rows--;
		check_world(b, w, KN_STEP_STAGING_FULL);
		w->staging_rows++;
		w->copy_capacity--;
		check_world(b, w, KN_STEP_STAGING_FULL);
		w->staging_rows = w->copy_capacity = 0;
		check_world(b, w, KN_STEP_STAGING_FULL);
		kvt_free(w);
	}
}

static void finds_hits_and_misses(void **state)
{
	(void)state;
	kvt_each_backend(each_world, NULL);
}

static void knows_what_cannot_be_reached(void **state)
{
	struct kvt_lookup_world *w = kvt_lookup_world_create(7);
	struct kvt_backend b;

	(void)state;
	assert_true(kvt_backend_open(&b, KN_CPU_PLAIN, 1));
	w->heads[3].unreachable[1] = 1;
	check_world(&b, w, KN_STEP_UNREACHABLE);
	w->staging_rows = 100;
	check_world(&b, w, KN_STEP_UNREACHABLE | KN_STEP_STAGING_FULL);
	kvt_lookup_world_heal(w);
	w->staging_rows = w->copy_capacity = 0;
	check_world(&b, w, 0);
	kvt_backend_close(&b);
	kvt_free(w);
}

/* Lookups of a step add up in staging, each with copies of its own; without jobs there are none. */
static void lookups_share_staging(void **state)
{
	struct kvt_lookup_world *w = kvt_lookup_world_create(8);
	struct kvt_lookup_missed missed = kvt_lookup_missed(w);
	struct kvt_lookup_placed p;
	struct kvt_backend b;

	(void)state;
	assert_true(kvt_backend_open(&b, KN_CPU_PLAIN, 1));
	kvt_lookup_place(w, &memory, &p);
	look_up(&b, &p);
	look_up(&b, &p);
	assert_int_equal(*p.a.staging.used, 2 * missed.rows);
	assert_int_equal(*p.a.staging.copy_count, missed.extents);
	for (uint32_t i = 0; i < missed.extents; i++)
		assert_true(p.a.staging.copies[i].destination >=
		            p.a.staging.memory + (size_t)missed.rows * KVT_LOOKUP_ROW_BYTES);
	p.a.job_count = 0;
	p.a.jobs = NULL;
	look_up(&b, &p);
	assert_int_equal(*p.a.staging.used, 2 * missed.rows);
	assert_int_equal(*p.a.staging.copy_count, 0);
	kvt_lookup_remove(&p);
	kvt_backend_close(&b);
	kvt_free(w);
}

static void attend(const struct kvt_backend *b, const struct kn_attend_job *jobs, uint32_t count)
{
	struct kn_attend_sparse_arguments a = {.jobs = jobs,
	    .job_count = count,
	    .group = KVT_LOOKUP_GROUP,
	    .head_dim = KVT_LOOKUP_HEAD_DIM,
	    .kv_type = KN_KV_F16,
	    .scale = 0.35f};

	assert_int_equal(b->ops->attend_sparse(b->backend, NULL, &a), KV_OK);
}

/* Lookup, gather and attention in a row have the bits of attention over the host's rows. */
static void check_step(const struct kvt_backend *b, struct kvt_lookup_world *w)
{
	uint64_t now = 77;
	float q[JOBS * WIDTH], got[JOBS * WIDTH], want[JOBS * WIDTH];
	struct kn_attend_job jobs[JOBS];
	struct kvt_lookup_placed p;
	struct kv_random random;

	kv_random_seed(&random, 9);
	kvt_fill_peaky(&random, q, JOBS * WIDTH, 1.0f);
	kvt_lookup_place(w, &memory, &p);
	look_up(b, &p);
	struct kn_gather_extents_arguments gather = {p.a.staging.copies, p.a.staging.copy_count,
	    p.a.staging.copy_capacity, &now, now, p.a.staging.failed};

	assert_int_equal(b->ops->gather_extents(b->backend, NULL, &gather), KV_OK);
	assert_int_equal(*p.a.staging.failed, 0);
	for (uint32_t i = 0; i < JOBS; i++) {
		uint32_t count;
		uint8_t *rows = kvt_lookup_rows(w, i, &count);
		struct kn_span all = {rows, count};

		jobs[i] = (struct kn_attend_job){
		    .q = q + i * WIDTH, .out = want + i * WIDTH, .spans = &all, .span_count = 1};
		attend(b, &jobs[i], 1);
		jobs[i].out = got + i * WIDTH;
		jobs[i].spans = p.jobs[i].spans;
		jobs[i].span_count = KVT_LOOKUP_SPANS;
		jobs[i].spans_written = p.jobs[i].span_count;
		jobs[i].row_bound = count;
		kvt_free(rows);
	}
	attend(b, jobs, JOBS);
	kvt_assert_same_bits(b->name, got, want, sizeof got);
	kvt_lookup_remove(&p);
}

static void each_step(const struct kvt_backend *b, void *context)
{
	(void)context;
	struct kvt_lookup_world *w = kvt_lookup_world_create(4);

	for (uint32_t i = 0; i < KVT_LOOKUP_SLOTS; i++)
		if (w->slots[i].held == UINT32_MAX) w->slots[i].held = 1;
	for (uint32_t i = 0; i < KVT_LOOKUP_PAGES; i++)
		if (w->next_page[i] == i) w->next_page[i] = UINT32_MAX;
	assert_true(kvt_lookup_missed(w).extents > 10);
	check_step(b, w);
	kvt_lookup_world_heal(w);
	assert_int_equal(kvt_lookup_missed(w).extents, 0);
	check_step(b, w);
	kvt_free(w);
}

static void steps_have_the_bits_of_the_host(void **state)
{
	(void)state;
	kvt_each_backend(each_step, NULL);
}

static void gathers_and_looks(void **state)
{
	uint8_t from[40], to[40] = {0};
	uint64_t now = 5;
	uint32_t count = 2, failed = 0;
	struct kn_copy_job copies[2] = {{from, to, 17}, {from + 20, to + 20, 8}};
	struct kn_gather_extents_arguments a = {copies, &count, 2, &now, 5, &failed};
	struct kvt_backend b;

	(void)state;
	for (uint8_t i = 0; i < 40; i++)
		from[i] = (uint8_t)(i + 1);
	assert_true(kvt_backend_open(&b, KN_CPU_PLAIN, 1));
	assert_int_equal(b.ops->gather_extents(b.backend, NULL, &a), KV_OK);
	assert_int_equal(failed, 0);
	assert_memory_equal(to, from, 17);
	assert_memory_equal(to + 20, from + 20, 8);
	assert_int_equal(to[17], 0);
	/* A copy that changes the word: only a look behind the copies sees it. */
	copies[1] = (struct kn_copy_job){from, (uint8_t *)&now, 8};
	assert_int_equal(b.ops->gather_extents(b.backend, NULL, &a), KV_OK);
	assert_int_equal(failed, KN_STEP_GENERATION);
	count = 3;
	assert_int_equal(b.ops->gather_extents(b.backend, NULL, &a), KV_OK);
	assert_int_equal(failed, KN_STEP_GENERATION | KN_STEP_STAGING_FULL);
	/* What was set stays; no copies, no look. */
	count = 0;
	assert_int_equal(b.ops->gather_extents(b.backend, NULL, &a), KV_OK);
	assert_int_equal(failed, KN_STEP_GENERATION | KN_STEP_STAGING_FULL);
	failed = 0;
	a.generation = NULL;
	count = 1;
	assert_int_equal(b.ops->gather_extents(b.backend, NULL, &a), KV_OK);
	assert_int_equal(failed, 0);
	a.count = NULL;
	assert_int_equal(b.ops->gather_extents(b.backend, NULL, &a), KV_INVALID);
	kvt_backend_close(&b);
}

static void refuses_what_is_incomplete(void **state)
{
	struct kvt_lookup_world *w = kvt_lookup_world_create(1);
	struct kvt_lookup_placed p;
	struct kvt_backend b;

	(void)state;
	assert_true(kvt_backend_open(&b, KN_CPU_PLAIN, 1));
	kvt_lookup_place(w, &memory, &p);
	struct kn_lookup_arguments bad[6];

	for (uint32_t i = 0; i < 6; i++)
		bad[i] = p.a;
	bad[0].jobs = NULL;
	bad[1].cache.generation = 0;
	bad[2].cache.next_page = NULL;
	bad[3].staging.failed = NULL;
	bad[4].staging.copies = NULL;
	bad[5].cache.slots = NULL;
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(b.ops->lookup(b.backend, NULL, &bad[i]), KV_INVALID);
	p.jobs[2].unit_rows = NULL;
	assert_int_equal(b.ops->lookup(b.backend, NULL, &p.a), KV_INVALID);
	kvt_lookup_remove(&p);
	kvt_backend_close(&b);
	kvt_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(finds_hits_and_misses),
	    cmocka_unit_test(knows_what_cannot_be_reached),
	    cmocka_unit_test(lookups_share_staging),
	    cmocka_unit_test(steps_have_the_bits_of_the_host),
	    cmocka_unit_test(gathers_and_looks),
	    cmocka_unit_test(refuses_what_is_incomplete),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
