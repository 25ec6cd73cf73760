/* The ring of traces and what is told of it, with made-up moments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/server/stats_socket.h"

enum { LAYERS = 3, MS = 1000000 };

static struct gw_traces *traces;
static struct kv_text_buffer out;

static int open(void **state)
{
	(void)state;
	kv_text_init(&out, kv_heap(), 1 << 20);
	return gw_traces_create(kv_heap(), LAYERS, &traces) == KV_OK ? 0 : -1;
}

static int close(void **state)
{
	(void)state;
	gw_traces_destroy(traces);
	kv_text_deinit(&out);
	return 0;
}

static json_t *ask_json(const char *line, uint64_t now_ns)
{
	json_error_t error;
	json_t *object;

	kv_text_reset(&out);
	assert_true(gw_stats_answer(traces, line, now_ns, &out));
	object = json_loads(kv_text(&out), 0, &error);
	if (object == NULL) fail_msg("%s: %s", kv_text(&out), error.text);
	return object;
}

static const json_t *choice_of(const json_t *object, size_t index)
{
	return json_array_get(json_object_get(object, "choices"), index);
}

static const json_t *span_in(const json_t *object, const char *name)
{
	const json_t *spans = json_object_get(object, "spans");

	for (size_t i = 0; i < json_array_size(spans); i++) {
		const json_t *span = json_array_get(spans, i);

		if (strcmp(json_string_value(json_object_get(span, "name")), name) == 0) return span;
	}
	return NULL;
}

static json_int_t number(const json_t *object, const char *name)
{
	if (!json_is_integer(json_object_get(object, name))) fail_msg("there is no %s", name);
	return json_integer_value(json_object_get(object, name));
}

static json_int_t us(const json_t *object, const char *outer, const char *inner)
{
	const json_t *span = span_in(object, outer);

	if (span != NULL && inner != NULL) span = span_in(span, inner);
	if (span == NULL) fail_msg("there is no span %s %s", outer, inner != NULL ? inner : "");
	return number(span, "us");
}

/* Of spans beside each other; where they have inner ones, these add up as well. */
static json_int_t sum_of(const json_t *object)
{
	const json_t *spans = json_object_get(object, "spans");
	json_int_t sum = 0;

	for (size_t i = 0; i < json_array_size(spans); i++) {
		const json_t *span = json_array_get(spans, i);

		if (json_object_get(span, "spans") != NULL)
			assert_int_equal(sum_of(span), number(span, "us"));
		sum += number(span, "us");
	}
	return sum;
}

/* What the engine tells when a choice has run from `begun` on: 1 ms to open, 10 of prefill, 20 of
 * decoding, some of them spent on others. */
static struct gw_engine_event finished(struct gw_engine_result *result, uint64_t begun)
{
	struct gw_engine_event event = {.kind = GW_EVENT_FINISHED, .result = result};

	event.times.begun_ns = begun;
	event.times.opened_ns = begun + 1 * MS;
	event.times.ready_ns = begun + 11 * MS;
	event.times.ended_ns = begun + 31 * MS;
	event.times.prompt = (struct gw_stage_work){
	    .all_ns = 8 * MS + 1700, .index_ns = 1999, .offload_ns = 2 * MS + 999, .fetch_ns = 999};
	event.times.answer = (struct gw_stage_work){
	    .all_ns = 15 * MS, .select_ns = 3 * MS, .fetch_ns = 2 * MS + 1, .steps = 7};
	event.times.prompt_tokens = 100;
	event.times.found_tokens = 40;
	event.times.tokens = 8;
	return event;
}

static void spans_add_up(void **state)
{
	struct gw_engine_result result = {.status = KV_OK, .finish = GW_FINISH_LENGTH};
	const uint64_t start = 77 * (uint64_t)MS + 123;
	struct gw_trace_ref ref = gw_traces_begin(traces, "mine", "chat", start);
	struct gw_engine_event event = finished(&result, start + 5 * MS + 700), layer = event;
	const json_t *choice;
	json_t *object;

	(void)state;
	gw_traces_submitted(traces, &ref, "chatcmpl-1", 1, start + 2 * MS + 400);
	layer.kind = GW_EVENT_LAYER;
	for (layer.done = 0; layer.done <= LAYERS; layer.done++) {
		layer.total = (layer.done + 1) * MS;
		gw_traces_event(traces, &ref, 0, &layer);
	}
	gw_traces_event(traces, &ref, 0, &event);
	gw_traces_end(traces, &ref, 200, start + 40 * MS + 999);
	object = ask_json("trace json mine", start + 100 * MS);
	choice = choice_of(object, 0);
	assert_string_equal(json_string_value(json_object_get(object, "state")), "done");
	assert_string_equal(json_string_value(json_object_get(choice, "end")), "length");
	assert_int_equal(number(object, "wall_us"), 40000);
	assert_int_equal(number(object, "age_us"), 100000);
	assert_int_equal(sum_of(choice), 40000);
	assert_int_equal(us(choice, "receive", NULL), 2000);
	assert_int_equal(us(choice, "queue", NULL), 3000);
	assert_int_equal(us(choice, "open", NULL), 1000);
	assert_int_equal(us(choice, "prefill", NULL), 10000);
	assert_int_equal(us(choice, "prefill", "offload"), 2000);
	assert_int_equal(us(choice, "prefill", "index"), 1);
	assert_int_equal(us(choice, "prefill", "fetch"), 0);
	assert_null(span_in(span_in(choice, "prefill"), "select"));
	assert_int_equal(us(choice, "prefill", "wait"), 10000 - 8001);
	assert_int_equal(us(choice, "decode", NULL), 20000);
	assert_int_equal(us(choice, "decode", "select"), 3000);
	assert_int_equal(us(choice, "decode", "compute"), 10000);
	assert_int_equal(us(choice, "decode", "wait"), 5000);
	assert_int_equal(us(choice, "send", NULL), 4000);
	assert_int_equal(number(choice, "steps"), 7);
	/* A layer that the model has not is nowhere. */
	assert_int_equal(json_array_size(json_object_get(object, "layers_us")), LAYERS);
	assert_int_equal(
	    json_integer_value(json_array_get(json_object_get(object, "layers_us"), 2)), 3000);
	json_decref(object);
	/* By the answer's name as well, and in lines. */
	kv_text_reset(&out);
	assert_true(gw_stats_answer(traces, "trace chatcmpl-1", start + 100 * MS, &out));
	assert_non_null(strstr(kv_text(&out), "STAT request mine\r\n"));
	assert_non_null(strstr(kv_text(&out), "STAT choice:0:span:decode.select_us 3000\r\n"));
	assert_non_null(strstr(kv_text(&out), "STAT layer:1_us 2000\r\n"));
}

static void each_choice_adds_up(void **state)
{
	struct gw_engine_result good = {.status = KV_OK, .finish = GW_FINISH_STOP};
	struct gw_trace_ref ref = gw_traces_begin(traces, "both", "completion", 5);
	struct gw_engine_event first = finished(&good, 3 * MS), second = finished(&good, 20 * MS);
	json_t *object;

	(void)state;
	gw_traces_submitted(traces, &ref, "cmpl-2", 2, 2 * MS);
	gw_traces_event(traces, &ref, 0, &first);
	gw_traces_event(traces, &ref, 1, &second);
	gw_traces_event(traces, &ref, 2, &second); /* there is no such choice */
	gw_traces_end(traces, &ref, 200, 60 * MS);
	object = ask_json("trace json both", 61 * MS);
	assert_int_equal(json_array_size(json_object_get(object, "choices")), 2);
	assert_int_equal(number(object, "tokens"), 16);
	assert_int_equal(number(object, "prompt_tokens"), 100);
	for (size_t i = 0; i < 2; i++)
		assert_int_equal(sum_of(choice_of(object, i)), number(object, "wall_us"));
	assert_int_equal(us(choice_of(object, 0), "queue", NULL), 1000);
	assert_int_equal(us(choice_of(object, 1), "queue", NULL), 18000);
	json_decref(object);
}

/* Of more choices than have places it is told how many, and their tokens and layers count. */
static void choices_that_are_left_out_are_told(void **state)
{
	struct gw_engine_result good = {.status = KV_OK, .finish = GW_FINISH_STOP};
	struct gw_trace_ref ref = gw_traces_begin(traces, "many", "completion", 5);
	struct gw_engine_event end = finished(&good, 3 * MS), layer = end;
	json_t *object;

	(void)state;
	layer.kind = GW_EVENT_LAYER;
	layer.done = 0;
	layer.total = 2 * MS;
	gw_traces_submitted(traces, &ref, "cmpl-3", GW_TRACE_CHOICES + 3, 2 * MS);
	for (uint32_t i = 0; i < GW_TRACE_CHOICES + 4; i++) {
		gw_traces_event(traces, &ref, i, &layer);
		gw_traces_event(traces, &ref, i, &end);
	}
	gw_traces_end(traces, &ref, 200, 60 * MS);
	object = ask_json("trace json many", 61 * MS);
	assert_int_equal(json_array_size(json_object_get(object, "choices")), GW_TRACE_CHOICES);
	assert_int_equal(number(object, "choices_left_out"), 3);
	assert_int_equal(number(object, "tokens"), 8 * (GW_TRACE_CHOICES + 3));
	assert_int_equal(
	    json_integer_value(json_array_get(json_object_get(object, "layers_us"), 0)), 2000 * 19);
	json_decref(object);
	kv_text_reset(&out);
	assert_true(gw_traces_put(traces, "many", false, 0, &out));
	assert_non_null(strstr(kv_text(&out), "STAT choices 16\r\nSTAT choices_left_out 3\r\n"));
}

/* What runs goes up to now; what broke off has the stages that it came to. */
static void stages_end_where_the_request_is(void **state)
{
	struct gw_engine_result cancelled = {.status = KV_CANCELLED, .finish = GW_FINISH_ERROR};
	struct gw_trace_ref ref = gw_traces_begin(traces, "runs", "chat", 10);
	struct gw_engine_event event = {.kind = GW_EVENT_PREFILL};
	const json_t *choice;
	json_t *object;

	(void)state;
	object = ask_json("trace json runs", 10 + 3 * MS);
	assert_int_equal(us(choice_of(object, 0), "receive", NULL), 3000);
	assert_int_equal(sum_of(choice_of(object, 0)), 3000);
	json_decref(object);
	gw_traces_submitted(traces, &ref, "chatcmpl-3", 1, 10 + 4 * MS);
	event.times.begun_ns = 10 + 5 * MS;
	event.times.opened_ns = 10 + 6 * MS;
	event.times.prompt.all_ns = 2 * MS;
	gw_traces_event(traces, &ref, 0, &event);
	object = ask_json("trace json runs", 10 + 16 * MS);
	choice = choice_of(object, 0);
	assert_string_equal(json_string_value(json_object_get(object, "state")), "running");
	assert_int_equal(us(choice, "prefill", NULL), 10000);
	assert_int_equal(us(choice, "prefill", "wait"), 8000);
	assert_int_equal(sum_of(choice), 16000);
	assert_null(span_in(choice, "decode"));
	json_decref(object);
	event.kind = GW_EVENT_FINISHED;
	event.result = &cancelled;
	event.times.ended_ns = 10 + 20 * MS;
	gw_traces_event(traces, &ref, 0, &event);
	gw_traces_end(traces, &ref, 0, 10 + 21 * MS);
	object = ask_json("trace json runs", 10 + 50 * MS);
	choice = choice_of(object, 0);
	assert_string_equal(json_string_value(json_object_get(object, "state")), "gone");
	assert_string_equal(json_string_value(json_object_get(choice, "end")), "cancelled");
	assert_int_equal(us(choice, "prefill", NULL), 14000);
	assert_int_equal(us(choice, "send", NULL), 1000);
	assert_int_equal(sum_of(choice), 21000);
	json_decref(object);
}

/* The ring goes round: what ended first goes first, what runs stays, and of two that go by one name
 * the newer is told. */
static void the_ring_keeps_what_runs(void **state)
{
	struct gw_trace_ref runs = gw_traces_begin(traces, "stays", "chat", 1), first = {0}, ref;
	char id[KV_REQUEST_ID_BYTES];
	json_t *object;

	(void)state;
	for (unsigned i = 0; i < GW_TRACES + 40; i++) {
		snprintf(id, sizeof id, "r%u", i);
		ref = gw_traces_begin(traces, id, "chat", (i + 2) * (uint64_t)MS);
		if (i == 0) first = ref;
		gw_traces_end(traces, &ref, 200, (i + 3) * (uint64_t)MS);
	}
	/* The place of one that is gone is another's. */
	gw_traces_end(traces, &first, 503, 1);
	kv_text_reset(&out);
	assert_false(gw_traces_put(traces, "r0", false, 0, &out));
	assert_false(gw_traces_put(traces, "r40", false, 0, &out));
	assert_int_equal(out.length, 0);
	assert_true(gw_traces_put(traces, "r41", false, 0, &out));
	assert_true(gw_traces_put(traces, "stays", false, 0, &out));
	gw_traces_end(traces, &runs, 200, 5);
	ref = gw_traces_begin(traces, "r100", "completion", 999 * (uint64_t)MS);
	object = ask_json("trace json r100", 999 * (uint64_t)MS);
	assert_string_equal(json_string_value(json_object_get(object, "kind")), "completion");
	json_decref(object);
	object = ask_json("traces json", 1000 * (uint64_t)MS);
	assert_int_equal(json_array_size(json_object_get(object, "requests")), GW_TRACES);
	assert_string_equal(json_string_value(json_object_get(
	                        json_array_get(json_object_get(object, "requests"), 0), "request")),
	    "r100");
	json_decref(object);
}

static void a_full_ring_of_running_ones_gives_the_oldest_up(void **state)
{
	struct gw_trace_ref first = gw_traces_begin(traces, "first", "chat", 1);

	(void)state;
	for (unsigned i = 0; i < GW_TRACES; i++)
		gw_traces_begin(traces, "another", "chat", i + 2);
	kv_text_reset(&out);
	assert_false(gw_traces_put(traces, "first", false, 0, &out));
	/* Nothing is written for it into the place that is another's. */
	gw_traces_end(traces, &first, 503, 1);
	assert_true(gw_traces_put(traces, "another", false, 0, &out));
	assert_null(strstr(kv_text(&out), "503"));
}

static void says(const char *line, const char *answer)
{
	kv_text_reset(&out);
	assert_true(gw_stats_answer(traces, line, 1, &out));
	assert_string_equal(kv_text(&out), answer);
}

static void hostile_questions_get_short_answers(void **state)
{
	static char line[4096] = "trace ";

	(void)state;
	says("", "");
	says("traces", "END\r\n");
	says("traces json", "{\"requests\":[]}\n");
	says("trace nobody", "NOT_FOUND\r\n");
	says("trace json nobody", "NOT_FOUND\r\n");
	says("trace json", "NOT_FOUND\r\n");
	says("trace", "ERROR unknown command, try help\r\n");
	says("traces ", "ERROR unknown command, try help\r\n");
	says("TRACES", "ERROR unknown command, try help\r\n");
	says("trace ", "ERROR a request's id has 1 to 64 characters, not none\r\n");
	says("trace a b",
	    "ERROR a request's id is made of visible ASCII characters, and byte 2 is 0x20\r\n");
	says("trace \x1b[2J",
	    "ERROR a request's id is made of visible ASCII characters, and byte 1 is 0x1b\r\n");
	memset(line + 6, 'x', sizeof line - 7);
	says(line, "ERROR a request's id has 1 to 64 characters, not more\r\n");
	kv_text_reset(&out);
	assert_false(gw_stats_answer(traces, "quit", 1, &out));
	/* Without a ring all is empty. */
	assert_false(gw_traces_put(NULL, "a", false, 1, &out));
	gw_traces_put_list(NULL, true, 1, &out);
	assert_string_equal(kv_text(&out), "{\"requests\":[]}\n");
	assert_int_equal(gw_traces_begin(NULL, "a", "chat", 1).serial, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(spans_add_up, open, close),
	    cmocka_unit_test_setup_teardown(each_choice_adds_up, open, close),
	    cmocka_unit_test_setup_teardown(choices_that_are_left_out_are_told, open, close),
	    cmocka_unit_test_setup_teardown(stages_end_where_the_request_is, open, close),
	    cmocka_unit_test_setup_teardown(the_ring_keeps_what_runs, open, close),
	    cmocka_unit_test_setup_teardown(
	        a_full_ring_of_running_ones_gives_the_oldest_up, open, close),
	    cmocka_unit_test_setup_teardown(hostile_questions_get_short_answers, open, close),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
