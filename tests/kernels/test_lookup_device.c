/* Lookup, gather and attention through the backend table, on a backend whose memory the host does
 * not see: `test_lookup_device FOLDER` takes the plug-in there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/device.h"
#include "tests/kernels/lookup_world.h"

enum { JOBS = KVT_LOOKUP_JOBS, WIDTH = KVT_LOOKUP_GROUP * KVT_LOOKUP_HEAD_DIM };

static struct kn_device device;
static char folder[4096];

static void *upload(const void *host, size_t bytes)
{
	void *memory = NULL;

	assert_int_equal(kn_device_alloc(&device, KN_DEVICE, bytes, &memory), KV_OK);
	assert_int_equal(kn_device_upload(&device, memory, host, bytes), KV_OK);
	assert_int_equal(kn_device_wait(&device), KV_OK);
	return memory;
}

static void *fetch(const void *memory, size_t bytes)
{
	void *copy = kvt_alloc(bytes + 1, 1);

	assert_int_equal(kn_device_download(&device, copy, memory, bytes), KV_OK);
	assert_int_equal(kn_device_wait(&device), KV_OK);
	return copy;
}

static void release(void *memory)
{
	kn_device_free(&device, memory);
}

static const struct kvt_lookup_memory memory = {upload, fetch, release};

static int open_device(void **state)
{
	struct kn_backend_options options = {
	    .allocator = kv_heap(), .max_rows = 16, .max_columns = 64, .plugin_folder = folder};

	(void)state;
	if (kn_backend_open("cuda", &options, &device.ops, &device.backend) != KV_OK) return -1;
	return device.ops->stream_create(device.backend, KN_STREAM_COMPUTE, &device.stream) == KV_OK
	           ? 0
	           : -1;
}

static int close_device(void **state)
{
	(void)state;
	device.ops->stream_destroy(device.backend, device.stream);
	device.ops->close(device.backend);
	return 0;
}

static void attend(const struct kn_attend_job *jobs)
{
	struct kn_attend_sparse_arguments a = {.jobs = jobs,
	    .job_count = JOBS,
	    .group = KVT_LOOKUP_GROUP,
	    .head_dim = KVT_LOOKUP_HEAD_DIM,
	    .kv_type = KN_KV_F16,
	    .scale = 0.35f};

	assert_int_equal(device.ops->attend_sparse(device.backend, device.stream, &a), KV_OK);
}

/* What the host would attend to: each job's rows in one span that it knows. Every other job has
 * what lookup wrote: both kinds may be in one call. */
static void check_attention(struct kvt_lookup_world *w, const struct kvt_lookup_placed *p)
{
	float q[JOBS * WIDTH], *device_q, *out, *got, *want;
	struct kn_attend_job jobs[JOBS], whole[JOBS];
	struct kn_span spans[JOBS];
	struct kv_random random;

	kv_random_seed(&random, 9);
	kvt_fill_peaky(&random, q, JOBS * WIDTH, 1.0f);
	device_q = upload(q, sizeof q);
	out = upload(q, sizeof q);
	for (uint32_t i = 0; i < JOBS; i++) {
		uint8_t *rows = kvt_lookup_rows(w, i, &spans[i].count);

		spans[i].rows = upload(rows, (size_t)spans[i].count * KVT_LOOKUP_ROW_BYTES + 1);
		kvt_free(rows);
		whole[i] = (struct kn_attend_job){.q = device_q + (size_t)i * WIDTH,
		    .out = out + (size_t)i * WIDTH,
		    .spans = &spans[i],
		    .span_count = 1};
		jobs[i] = whole[i];
		if (i % 2 == 0 && i > 0) continue;
		jobs[i].spans = p->jobs[i].spans;
		jobs[i].span_count = KVT_LOOKUP_SPANS;
		jobs[i].spans_written = p->jobs[i].span_count;
		jobs[i].row_bound = spans[i].count;
	}
	attend(jobs);
	got = fetch(out, sizeof q);
	attend(whole);
	want = fetch(out, sizeof q);
	kvt_assert_same_bits("attention", got, want, sizeof q);
	for (uint32_t i = 0; i < JOBS; i++)
		release((void *)(uintptr_t)spans[i].rows);
	kvt_free(want);
	kvt_free(got);
	release(device_q);
	release(out);
}

/* `now`: the generation word. Returns what is in staging.failed behind the step. */
static uint32_t run_step(struct kvt_lookup_world *w, struct kvt_lookup_placed *p, uint64_t now)
{
	uint64_t *word = upload(&now, sizeof now);
	struct kn_gather_extents_arguments gather = {p->a.staging.copies, p->a.staging.copy_count,
	    p->a.staging.copy_capacity, word, 1234, p->a.staging.failed};
	uint32_t *failed, bits;

	assert_int_equal(device.ops->lookup(device.backend, device.stream, &p->a), KV_OK);
	assert_int_equal(device.ops->gather_extents(device.backend, device.stream, &gather), KV_OK);
	if (now == gather.expected) check_attention(w, p);
	failed = fetch(p->a.staging.failed, sizeof *failed);
	bits = *failed;
	kvt_free(failed);
	release(word);
	return bits;
}

static void steps_have_the_bits_of_the_host(void **state)
{
	struct kvt_lookup_world *w = kvt_lookup_world_create(4);
	struct kvt_lookup_placed p;

	(void)state;
	for (uint32_t i = 0; i < KVT_LOOKUP_SLOTS; i++)
		if (w->slots[i].held == UINT32_MAX) w->slots[i].held = 1;
	for (uint32_t i = 0; i < KVT_LOOKUP_PAGES; i++)
		if (w->next_page[i] == i) w->next_page[i] = UINT32_MAX;
	kvt_lookup_place(w, &memory, &p);
	assert_int_equal(run_step(w, &p, 1234), 0);
	kvt_lookup_check(w, &p, 0);
	assert_int_equal(run_step(w, &p, 1235), KN_STEP_GENERATION);
	kvt_lookup_remove(&p);
	kvt_free(w);
}

/* A lookup without jobs leaves no copies to be made again. */
static void nothing_to_look_for_is_nothing_to_copy(void **state)
{
	struct kvt_lookup_world *w = kvt_lookup_world_create(5);
	struct kvt_lookup_placed p;
	uint32_t *count;

	(void)state;
	kvt_lookup_place(w, &memory, &p);
	p.a.job_count = 0;
	p.a.jobs = NULL;
	assert_int_equal(device.ops->lookup(device.backend, device.stream, &p.a), KV_OK);
	count = fetch(p.a.staging.copy_count, sizeof *count);
	assert_int_equal(*count, 0);
	kvt_free(count);
	kvt_lookup_remove(&p);
	kvt_free(w);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(steps_have_the_bits_of_the_host, open_device, close_device),
	    cmocka_unit_test_setup_teardown(
	        nothing_to_look_for_is_nothing_to_copy, open_device, close_device),
	};

	snprintf(folder, sizeof folder, "%s/%s", KVT_PLUGINS, argc > 1 ? argv[1] : "discrete");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
