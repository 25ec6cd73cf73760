/* Who of a queue is looked at, and when there is something to look for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "gpu-worker/pipeline/step.h"
#include "gpu-worker/server/engine_internal.h"

enum { TRIED = 8, PASSES = 16, WAITING = 12, FAR_MS = 60000 };

struct queue {
	struct gw_engine engine;
	struct gw_engine_request requests[WAITING], running;
	uint32_t count;
	struct gw_pipeline pipeline;
};

/* An engine with no limit of memory and no store, and nothing in it. */
static int begin(void **state)
{
	struct queue *queue = calloc(1, sizeof *queue);

	assert_non_null(queue);
	queue->engine.pipeline = &queue->pipeline;
	queue->engine.options.max_sequences = 4;
	*state = queue;
	return 0;
}

static int end(void **state)
{
	free(*state);
	return 0;
}

static struct gw_engine_request *append(struct queue *queue)
{
	struct gw_engine_request *request = &queue->requests[queue->count++];

	request->id = queue->count;
	gw_queue_append(&queue->engine, request);
	return request;
}

/* Refused, to be tried again after an end, or at this time when there is none that could end. */
static struct gw_engine_request *append_held(struct queue *queue, uint64_t retry_ms)
{
	struct gw_engine_request *request = append(queue);

	request->lacks_memory = request->held = true;
	request->after_ends = queue->engine.ends + 1;
	request->retry_ms = retry_ms;
	return request;
}

static void run_one(struct queue *queue)
{
	queue->engine.running[queue->engine.running_count++] = &queue->running;
}

static void who_comes_behind_many_refused_is_seen(void **state)
{
	struct queue *queue = *state;

	run_one(queue);
	for (uint32_t i = 0; i < TRIED + 2; i++)
		append_held(queue, 0);
	assert_true(gw_queue_look_ms(&queue->engine) == UINT64_MAX);
	append(queue);
	assert_int_equal(gw_queue_look_ms(&queue->engine), 0);
}

/* One that was passed often enough is passed by nobody, wherever it waits. */
static void nobody_is_seen_behind_one_that_was_passed(void **state)
{
	struct queue *queue = *state;

	run_one(queue);
	for (uint32_t i = 0; i < TRIED + 2; i++)
		append_held(queue, 0);
	append(queue);
	for (uint32_t i = 0; i < TRIED + 2; i++) {
		queue->requests[i].passes = PASSES;
		assert_true(gw_queue_look_ms(&queue->engine) == UINT64_MAX);
		queue->requests[i].passes = PASSES - 1;
	}
	assert_int_equal(gw_queue_look_ms(&queue->engine), 0);
}

/* An end lets the oldest eight be tried, and no others. */
static void the_oldest_are_tried_after_an_end(void **state)
{
	struct queue *queue = *state;

	run_one(queue);
	for (uint32_t i = 0; i < TRIED + 1; i++)
		append_held(queue, 0);
	queue->engine.ends++;
	for (uint32_t i = 0; i < TRIED; i++) {
		assert_int_equal(gw_queue_look_ms(&queue->engine), 0);
		queue->requests[i].after_ends++;
	}
	assert_true(gw_queue_look_ms(&queue->engine) == UINT64_MAX);
}

/* When nothing runs, who cannot be opened yet does not wake the engine, late as it may be. */
static void only_who_may_be_tried_is_waited_for(void **state)
{
	struct queue *queue = *state;
	const uint64_t now = kv_now_ms(), late = now - 1;

	for (uint32_t i = 0; i < TRIED; i++)
		append_held(queue, now + FAR_MS - i);
	append_held(queue, late);
	assert_true(gw_queue_look_ms(&queue->engine) == now + FAR_MS - (TRIED - 1));
	queue->requests[2].passes = PASSES;
	queue->requests[5].retry_ms = late;
	assert_true(gw_queue_look_ms(&queue->engine) == now + FAR_MS - 2);
	queue->requests[2].passes = 0;
	assert_int_equal(gw_queue_look_ms(&queue->engine), 0);
}

/* Who waits for what an open prompt stores is judged again when one is closed, not before. */
static void who_waits_for_a_prompt_is_judged_at_its_end(void **state)
{
	struct queue *queue = *state;
	struct gw_engine_request *request = append(queue);

	run_one(queue);
	queue->pipeline.options.store = (void *)queue;
	request->finds_until = queue->engine.prompts_closed + 1;
	assert_true(gw_queue_look_ms(&queue->engine) == UINT64_MAX);
	queue->engine.prompts_closed++;
	assert_int_equal(gw_queue_look_ms(&queue->engine), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(who_comes_behind_many_refused_is_seen, begin, end),
	    cmocka_unit_test_setup_teardown(nobody_is_seen_behind_one_that_was_passed, begin, end),
	    cmocka_unit_test_setup_teardown(the_oldest_are_tried_after_an_end, begin, end),
	    cmocka_unit_test_setup_teardown(only_who_may_be_tried_is_waited_for, begin, end),
	    cmocka_unit_test_setup_teardown(
	        who_waits_for_a_prompt_is_judged_at_its_end, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
