/* Steps that the device runs by itself give the host's bits, whatever it missed, evicted or had to
 * give up on the way; and what cannot be believed is not. On the discrete backend, whose bits are
 * the cpu backend's, with a store of its own over map or ucx (the argument). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/pipeline/device_step.h"
#include "tests/lib/discrete_backend.h"
#include "tests/lib/pipeline_check.h"
#include "tests/lib/pipeline_fixture.h"
#include "tests/lib/store_fixture.h"

static const char *transport = "map";

enum { PROMPT = KVT_TALK_PROMPT, STEPS = 110, SMALL_CACHE = 400000, LARGE_CACHE = 64 << 20,
	TIGHT = 12 };

static struct store_fixture fixture;
static struct kn_backend_ops ops; /* the discrete backend's, with what a test puts in its way */

/* ---- the store, and workers on it ---- */

static void start_store(const char *const *more)
{
	const char *arguments[8] = {"--transport", transport, "--region", "1MiB", "--memory", "64MiB"};

	for (int i = 0; more != NULL && more[i] != NULL && i < 1; i++)
		arguments[6 + i] = more[i];
	assert_true(store_fixture_init(&fixture));
	assert_true(store_fixture_start(&fixture, arguments));
}

static void end_store(void)
{
	assert_true(store_fixture_deinit(&fixture, false));
}

static void open_worker(struct kvt_worker *worker, const char *backend, uint64_t cache)
{
	assert_int_equal(setenv("CLUSTERKV_TEST_BACKEND", backend, 1), 0);
	kvt_worker_open(worker, "tiny_llama", 2);
	assert_string_equal(worker->ops->name, backend);
	worker->options.cache_bytes = cache;
	ops = kvt_discrete_ops;
	if (strcmp(backend, "discrete") == 0) worker->options.ops = &ops;
}

/* The cpu backend with a store inside the process: what everything is compared with. */
static void open_reference(struct kvt_worker *worker, uint64_t cache)
{
	open_worker(worker, "cpu", cache);
	kvt_store_open(worker, 0);
}

static void open_device(struct kvt_worker *worker, uint64_t cache)
{
	open_worker(worker, "discrete", cache);
	kvt_store_connect(worker, fixture.address, transport);
}

static const struct gw_report *report_of(const struct kvt_talk *talk)
{
	return gw_sequence_report(talk->sequence);
}

/* ---- the same bits ---- */

/* Rows of staging that a step finds: all, or so few that it overflows. */
static void set_staging(struct gw_pipeline *pipeline, int tight)
{
	static uint32_t whole;
	struct gw_step_room *room = &pipeline->device_step->room;

	if (whole == 0) whole = room->staging_rows;
	room->staging_rows = tight ? TIGHT : whole;
	if (!tight) whole = 0;
}

/* All of them decode together, and fold. */
static void converse(struct kvt_worker *worker, struct kvt_talk *talks, uint32_t tight_every)
{
	struct kvt_talk *batch[KVT_TALKS];

	kvt_talks_begin(talks, worker, STEPS);
	for (uint32_t i = 0; i < KVT_TALKS; i++)
		batch[i] = &talks[i];
	for (uint32_t step = 1; step < STEPS; step++) {
		if (tight_every > 0) set_staging(talks[0].pipeline, step % tight_every == 0);
		kvt_talk_step(batch, KVT_TALKS);
	}
}

static void end_talks(struct kvt_worker *worker, struct kvt_talk *talks, uint32_t count)
{
	struct gw_pipeline *pipeline = talks[0].pipeline;

	for (uint32_t i = 0; i < count; i++)
		kvt_talk_close(&talks[i], 0);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(worker);
}

static void same_bits(uint64_t cache, uint32_t budget, uint32_t tight_every)
{
	struct kvt_talk host[KVT_TALKS], device[KVT_TALKS];
	struct kvt_worker worker;

	open_reference(&worker, cache);
	worker.options.policy.budget = budget;
	converse(&worker, host, 0);
	end_talks(&worker, host, KVT_TALKS);
	start_store(NULL);
	open_device(&worker, cache);
	worker.options.policy.budget = budget;
	converse(&worker, device, tight_every);
	for (uint32_t i = 0; i < KVT_TALKS; i++) {
		const struct gw_report *report = report_of(&device[i]);

		kvt_assert_same(&host[i], &device[i], 0, STEPS);
		assert_int_equal(report->decode_steps, STEPS - 1);
		if (tight_every == 0) assert_int_equal(report->device_steps, STEPS - 1);
		assert_true(report->device_steps > 32);
		assert_true(tight_every == 0 || report->repeated_steps > 10);
		/* What the device gave up is the host's, and so is the step after it. */
		assert_true(report->device_steps + 2 * report->repeated_steps >= STEPS - 1);
		assert_true(report->cache.miss_tokens > 0 && report->cache.hit_tokens > 0);
	}
	assert_true(device[0].pipeline->device_step->memory.count > 0);
	if (cache == SMALL_CACHE)
		assert_true(gw_pipeline_cache_stats(device[0].pipeline).evictions > 100);
	end_talks(&worker, device, KVT_TALKS);
	end_store();
	for (uint32_t i = 0; i < KVT_TALKS; i++) {
		kvt_talk_end(&host[i]);
		kvt_talk_end(&device[i]);
	}
}

static void the_bits_are_the_hosts(void **state)
{
	(void)state;
	/* So much is selected that the first step's rows are taken over in several copies. */
	same_bits(LARGE_CACHE, 512, 0);
}

static void so_they_are_with_evictions_and_full_staging(void **state)
{
	(void)state;
	same_bits(SMALL_CACHE, 128, 4);
}

/* ---- the same figures ---- */

static void talk_alone(struct kvt_worker *worker, struct kvt_talk *talk, uint64_t seed,
    uint32_t tokens)
{
	int32_t ids[PROMPT];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = PROMPT, .room = STEPS};

	kvt_make_prompt(worker, seed, ids, PROMPT);
	kvt_talk_run(talk, kvt_pipeline_open(worker), &question, tokens);
}

static void same_figures(uint32_t tight_every)
{
	const struct gw_report *a, *b;
	struct gw_cache_stats x, y;
	struct kvt_talk host, device;
	struct kvt_talk *talk = &device;
	struct kvt_worker worker, other;

	open_reference(&worker, LARGE_CACHE);
	talk_alone(&worker, &host, 3, STEPS);
	start_store(NULL);
	open_device(&other, LARGE_CACHE);
	talk_alone(&other, &device, 3, 1);
	while (device.count < STEPS) {
		if (tight_every > 0) set_staging(device.pipeline, device.count % tight_every == 0);
		kvt_talk_step(&talk, 1);
	}
	kvt_assert_same(&host, &device, 0, STEPS);
	a = report_of(&host);
	b = report_of(&device);
	assert_int_equal(a->device_steps + a->repeated_steps, 0);
	if (tight_every == 0) assert_int_equal(b->device_steps, STEPS - 1);
	assert_true(tight_every == 0 || b->repeated_steps > 2);
	assert_int_equal(a->selections, b->selections);
	assert_int_equal(a->estimates, b->estimates);
	assert_true(a->estimates > 0);
	assert_true(a->budget_tokens == b->budget_tokens && a->window_tokens == b->window_tokens);
	assert_true(a->bytes_touched == b->bytes_touched);
	assert_true(a->lost_mass_estimated == b->lost_mass_estimated);
	assert_memory_equal(&a->cache, &b->cache, sizeof a->cache);
	x = gw_pipeline_cache_stats(host.pipeline);
	y = gw_pipeline_cache_stats(device.pipeline);
	assert_memory_equal(&x, &y, sizeof x);
	end_talks(&worker, &host, 1);
	end_talks(&other, &device, 1);
	end_store();
	kvt_talk_end(&host);
	kvt_talk_end(&device);
}

static void the_figures_are_the_hosts(void **state)
{
	(void)state;
	same_figures(0);
}

/* What the host found in between, the device finds in the next step. */
static void so_they_are_when_the_host_takes_turns(void **state)
{
	(void)state;
	same_figures(3);
}

/* One after the other over one prompt: the second finds what the first brought over, and folds. */
static void join(struct kvt_worker *worker, struct kvt_talk *talks)
{
	struct gw_pipeline *pipeline = kvt_pipeline_open(worker);
	struct kvt_question question = {.prompt_tokens = PROMPT, .room = STEPS};
	int32_t ids[PROMPT];

	kvt_make_prompt(worker, 5, ids, PROMPT);
	question.prompt = ids;
	for (uint32_t i = 0; i < 2; i++)
		kvt_talk_run(&talks[i], pipeline, &question, STEPS);
}

static void what_another_brought_over_is_found(void **state)
{
	struct kvt_talk host[2], device[2];
	struct kvt_worker worker, other;

	(void)state;
	open_reference(&worker, LARGE_CACHE);
	join(&worker, host);
	start_store(NULL);
	open_device(&other, LARGE_CACHE);
	join(&other, device);
	for (uint32_t i = 0; i < 2; i++) {
		const struct gw_report *a = report_of(&host[i]), *b = report_of(&device[i]);

		kvt_assert_same(&host[i], &device[i], 0, STEPS);
		assert_int_equal(b->device_steps, STEPS - 1);
		assert_memory_equal(&a->cache, &b->cache, sizeof a->cache);
	}
	assert_true(report_of(&device[1])->cache.miss_tokens <
	    report_of(&device[0])->cache.miss_tokens / 2);
	end_talks(&worker, host, 2);
	end_talks(&other, device, 2);
	end_store();
	for (uint32_t i = 0; i < 2; i++) {
		kvt_talk_end(&host[i]);
		kvt_talk_end(&device[i]);
	}
}

/* ---- what the device cannot reach ---- */

static uint32_t registered, refusals;

static enum kv_status refuse_memory(
    struct kn_backend *backend, void *host, size_t bytes, enum kn_access access)
{
	(void)backend, (void)host, (void)bytes, (void)access;
	refusals++;
	return kv_fail(KV_UNSUPPORTED, "not this memory");
}

/* Some regions only: segments lie in both kinds. */
static enum kv_status take_some(
    struct kn_backend *backend, void *host, size_t bytes, enum kn_access access)
{
	if (registered++ % 2 != 0) return refuse_memory(backend, host, bytes, access);
	return kvt_discrete_ops.memory_register(backend, host, bytes, access);
}

static void is_the_hosts(const char *const *store, enum kv_status (*take)(struct kn_backend *,
    void *, size_t, enum kn_access))
{
	struct kvt_talk host, device;
	struct kvt_worker worker, other;

	registered = refusals = 0;
	open_reference(&worker, SMALL_CACHE);
	talk_alone(&worker, &host, 3, 40);
	start_store(store);
	open_device(&other, SMALL_CACHE);
	if (take != NULL) ops.memory_register = take;
	talk_alone(&other, &device, 3, 40);
	kvt_assert_same(&host, &device, 0, 40);
	assert_int_equal(report_of(&device)->device_steps, 0);
	assert_int_equal(report_of(&device)->repeated_steps, 0);
	assert_true(take == NULL || refusals > 0);
	end_talks(&worker, &host, 1);
	end_talks(&other, &device, 1);
	end_store();
	kvt_talk_end(&host);
	kvt_talk_end(&device);
}

static void memory_that_is_refused_is_the_hosts_to_read(void **state)
{
	(void)state;
	is_the_hosts(NULL, refuse_memory);
	is_the_hosts(NULL, take_some);
}

static void so_is_what_must_be_verified(void **state)
{
	static const char *const verify[] = {"--verify=fetch", NULL};

	(void)state;
	is_the_hosts(verify, NULL);
}

/* ---- memory that comes and goes ---- */

/* Regions that operations may read, as the backend was told; ends the test where one is let go of
 * twice, or never was there. */
static int32_t held_regions;

static enum kv_status count_region(
    struct kn_backend *backend, void *host, size_t bytes, enum kn_access access)
{
	held_regions++;
	registered++;
	/* What is mapped for reading only is registered for that: a device writes nothing there. */
	assert_int_equal(access, strcmp(transport, "map") == 0 ? KN_READ_ONLY : KN_READ_WRITE);
	return kvt_discrete_ops.memory_register(backend, host, bytes, access);
}

static void uncount_region(struct kn_backend *backend, void *host)
{
	held_regions--;
	kvt_discrete_ops.memory_unregister(backend, host);
}

static void answer(struct kvt_worker *worker, struct gw_pipeline *pipeline, struct kvt_talk *talk,
    uint64_t seed, uint32_t tokens)
{
	int32_t ids[PROMPT];
	struct kvt_question question = {.prompt = ids, .prompt_tokens = PROMPT, .room = STEPS};

	kvt_make_prompt(worker, seed, ids, PROMPT);
	kvt_talk_run(talk, pipeline, &question, tokens);
}

/* Prompts one after the other in an arena that has no room for all: it grows by regions, memory of
 * old segments becomes that of new ones, and between the rounds the store lets go of what is not in
 * use. All of it while one pipeline goes on with its cache. */
static void memory_comes_and_goes(void **state)
{
	enum { PROMPTS = 7, ANSWER = 12 };
	const char *arguments[] = {
	    "--transport", transport, "--region", "1MiB", "--memory", "4MiB", NULL};
	struct kvt_talk host[PROMPTS], device;
	struct kvt_worker worker, other;
	struct gw_pipeline *pipeline;
	uint32_t rounds = 2;
	char text[512];

	(void)state;
	registered = 0;
	held_regions = 0;
	open_reference(&worker, LARGE_CACHE);
	pipeline = kvt_pipeline_open(&worker);
	for (uint32_t i = 0; i < PROMPTS; i++)
		answer(&worker, pipeline, &host[i], 10 + i, ANSWER);
	assert_true(store_fixture_init(&fixture));
	assert_true(store_fixture_start(&fixture, arguments));
	open_device(&other, LARGE_CACHE);
	ops.memory_register = count_region;
	ops.memory_unregister = uncount_region;
	pipeline = kvt_pipeline_open(&other);
	for (uint32_t i = 0; i < rounds * PROMPTS; i++) {
		answer(&other, pipeline, &device, 10 + i % PROMPTS, ANSWER);
		kvt_assert_same(&host[i % PROMPTS], &device, 0, ANSWER);
		assert_int_equal(report_of(&device)->device_steps, ANSWER - 1);
		assert_int_equal(pipeline->device_step->memory.count, held_regions);
		kvt_talk_end(&device);
		if (i % PROMPTS == PROMPTS - 1)
			assert_true(store_fixture_ask(&fixture, "evict", text, sizeof text));
	}
	assert_true(store_fixture_stat(&fixture, "evictions_total") > PROMPTS);
	assert_true(registered > (uint32_t)held_regions);
	gw_pipeline_destroy(pipeline);
	assert_int_equal(held_regions, 0);
	kvt_worker_close(&other);
	end_store();
	pipeline = host[0].pipeline;
	for (uint32_t i = 0; i < PROMPTS; i++)
		kvt_talk_end(&host[i]);
	gw_pipeline_destroy(pipeline);
	kvt_worker_close(&worker);
}

/* Only one can be told of what comes and goes. */
static void a_second_pipeline_is_the_hosts(void **state)
{
	struct kvt_worker worker;
	struct gw_pipeline *first, *second;
	struct kvt_talk a, b;

	(void)state;
	start_store(NULL);
	open_device(&worker, SMALL_CACHE);
	first = kvt_pipeline_open(&worker);
	second = kvt_pipeline_open(&worker);
	answer(&worker, first, &a, 3, 12);
	answer(&worker, second, &b, 3, 12);
	assert_int_equal(report_of(&a)->device_steps, 11);
	assert_int_equal(report_of(&b)->device_steps, 0);
	kvt_talk_end(&a);
	kvt_talk_end(&b);
	gw_pipeline_destroy(first);
	gw_pipeline_destroy(second);
	kvt_worker_close(&worker);
	end_store();
}

/* ---- a store that is gone ---- */

/* In the middle of a step: before its operations run. */
static int kill_at_wait;
static struct kvc_store *watched;

static enum kv_status wait_and_kill(struct kn_backend *backend, struct kn_stream *stream)
{
	if (kill_at_wait > 0 && --kill_at_wait == 0) {
		store_fixture_kill(&fixture);
		for (int i = 0; i < 500 && kvc_connected(watched); i++)
			store_fixture_sleep(10);
		assert_false(kvc_connected(watched));
	}
	return kvt_discrete_ops.stream_wait(backend, stream);
}

/* The step that was on its way is not believed: neither its logits, nor the rows it staged. */
static void a_step_without_its_store_is_not_believed(void **state)
{
	struct kvt_worker worker;
	struct gw_sequence *batch[1];
	struct gw_cache_stats before, after;
	enum kv_status failure = KV_OK;
	struct kvt_talk talk;
	float *logits;

	(void)state;
	start_store(NULL);
	open_device(&worker, SMALL_CACHE);
	ops.stream_wait = wait_and_kill;
	watched = worker.store;
	talk_alone(&worker, &talk, 3, 40);
	assert_int_equal(report_of(&talk)->device_steps, 39);
	before = gw_pipeline_cache_stats(talk.pipeline);
	logits = kv_alloc_array(kv_heap(), talk.vocabulary, sizeof *logits);
	assert_non_null(logits);
	assert_int_equal(gw_sequence_accept(talk.sequence, talk.tokens[39], NULL, 0), KV_OK);
	batch[0] = talk.sequence;
	kill_at_wait = 1;
	assert_int_equal(gw_run_token(talk.pipeline, batch, 1, logits, &failure), KV_OK);
	assert_int_equal(kill_at_wait, 0);
	assert_int_not_equal(failure, KV_OK);
	assert_int_equal(report_of(&talk)->device_steps, 39);
	assert_int_equal(report_of(&talk)->repeated_steps, 1);
	after = gw_pipeline_cache_stats(talk.pipeline);
	assert_true(after.used_bytes <= before.used_bytes);
	/* And so it stays. */
	assert_int_equal(gw_run_token(talk.pipeline, batch, 1, logits, &failure), KV_OK);
	assert_int_not_equal(failure, KV_OK);
	kv_free(kv_heap(), logits);
	end_talks(&worker, &talk, 1);
	end_store();
	kvt_talk_end(&talk);
}

/* Nothing of the first life is taken for a segment of the second. */
static void another_life_of_the_store_is_another_store(void **state)
{
	static const char *const none[] = {NULL};
	struct kvt_talk host, first, second;
	struct kvt_worker worker, other;
	struct kvt_question question = {.prompt_tokens = PROMPT, .room = STEPS};
	int32_t ids[PROMPT];

	(void)state;
	open_reference(&other, LARGE_CACHE);
	talk_alone(&other, &host, 4, 60);
	start_store(none);
	open_device(&worker, LARGE_CACHE);
	talk_alone(&worker, &first, 3, 60);
	store_fixture_kill(&fixture);
	kvt_talk_close(&first, 0);
	{
		const char *arguments[] = {
		    "--transport", transport, "--region", "1MiB", "--memory", "64MiB", NULL};

		assert_true(store_fixture_start(&fixture, arguments));
	}
	for (int i = 0; i < 500 && !kvc_connected(worker.store); i++)
		store_fixture_sleep(10);
	assert_true(kvc_connected(worker.store));
	kvt_make_prompt(&worker, 4, ids, PROMPT);
	question.prompt = ids;
	kvt_talk_run(&second, first.pipeline, &question, 60);
	kvt_assert_same(&host, &second, 0, 60);
	assert_int_equal(report_of(&second)->device_steps, 59);
	/* The first one's regions were let go of before they were unmapped. */
	assert_int_equal(first.pipeline->device_step->memory.count,
	    (uint32_t)store_fixture_stat(&fixture, "regions"));
	end_talks(&other, &host, 1);
	end_talks(&worker, &second, 1);
	end_store();
	kvt_talk_end(&host);
	kvt_talk_end(&first);
	kvt_talk_end(&second);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_bits_are_the_hosts),
	    cmocka_unit_test(so_they_are_with_evictions_and_full_staging),
	    cmocka_unit_test(the_figures_are_the_hosts),
	    cmocka_unit_test(so_they_are_when_the_host_takes_turns),
	    cmocka_unit_test(what_another_brought_over_is_found),
	    cmocka_unit_test(memory_that_is_refused_is_the_hosts_to_read),
	    cmocka_unit_test(so_is_what_must_be_verified),
	    cmocka_unit_test(memory_comes_and_goes),
	    cmocka_unit_test(a_second_pipeline_is_the_hosts),
	    cmocka_unit_test(a_step_without_its_store_is_not_believed),
	    cmocka_unit_test(another_life_of_the_store_is_another_store),
	};

	if (argc > 1) transport = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
