/* What gpu-worker/server/http_completion.c writes: bodies, events, errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/server/http_completion.h"

static struct kv_text_buffer out;

static struct gw_answer an_answer(int chat)
{
	struct gw_answer answer = {"cmpl-1", "seq", "small", 5, chat, 0, 0};

	return answer;
}

static json_t *a_report(void)
{
	return json_pack("{s:[i,i,i], s:s, s:s, s:i, s:i, s:s}", "tokens", 7, 8, 9, "text", "abc",
	    "finish_reason", "stop", "prompt_tokens", 10, "prefix_hit_tokens", 4, "sequence", "seq");
}

static struct gw_choice_view a_choice(
    const char *text, size_t length, enum gw_finish finish, const json_t *report)
{
	return (struct gw_choice_view){
	    .text = text, .length = length, .finish = finish, .report = report};
}

static void put_whole(const struct gw_answer *answer, struct gw_choice_view choice)
{
	gw_answer_whole(&out, answer, &choice, 1, gw_answer_usage(&choice, 1, 1));
}

/* The end of a stream of one choice. */
static void put_last(const struct gw_answer *answer, enum gw_finish finish, const json_t *report)
{
	struct gw_choice_view choice = a_choice("", 0, finish, report);

	gw_answer_last(
	    &out, answer, &choice, answer->usage_event ? NULL : gw_answer_usage(&choice, 1, 1));
	gw_answer_end(&out, answer, answer->usage_event ? gw_answer_usage(&choice, 1, 1) : NULL);
}

static json_t *parse(const char *text, size_t length)
{
	json_error_t error;
	json_t *object = json_loadb(text, length, 0, &error);

	if (object == NULL) fail_msg("%.*s: %s", (int)length, text, error.text);
	return object;
}

/* The first event of the text; *rest is what follows it. */
static json_t *event(const char *text, const char **rest)
{
	const char *end = strstr(text, "\n\n");

	assert_non_null(end);
	assert_memory_equal(text, "data: ", 6);
	/* A line break inside would end the event early. */
	assert_ptr_equal(memchr(text, '\n', (size_t)(end - text)), NULL);
	*rest = end + 2;
	return parse(text + 6, (size_t)(end - text - 6));
}

static const json_t *choice(const json_t *object)
{
	assert_int_equal(json_array_size(json_object_get(object, "choices")), 1);
	return json_array_get(json_object_get(object, "choices"), 0);
}

static void text_is(const json_t *object, const char *name, const char *expected)
{
	assert_non_null(json_object_get(object, name));
	assert_string_equal(json_string_value(json_object_get(object, name)), expected);
}

static void number_is(const json_t *object, const char *name, json_int_t expected)
{
	assert_true(json_is_integer(json_object_get(object, name)));
	assert_int_equal(json_integer_value(json_object_get(object, name)), expected);
}

static void check_usage(const json_t *object)
{
	const json_t *usage = json_object_get(object, "usage");

	number_is(usage, "prompt_tokens", 10);
	number_is(usage, "completion_tokens", 3);
	number_is(usage, "total_tokens", 13);
	number_is(json_object_get(usage, "prompt_tokens_details"), "cached_tokens", 4);
}

static void a_whole_answer(void **state)
{
	static const char text[] = "a\"\n\0b";
	struct gw_answer answer = an_answer(0);
	json_t *report = a_report(), *object;
	const json_t *own;

	(void)state;
	put_whole(&answer, a_choice(text, 5, GW_FINISH_STOP, report));
	assert_int_equal(kv_text_status(&out), KV_OK);
	assert_null(strstr(kv_text(&out), "data:"));
	/* The answer's NUL is escaped, and a reader has to allow it. */
	object = json_loadb(kv_text(&out), out.length, JSON_ALLOW_NUL, NULL);
	assert_non_null(object);
	text_is(object, "id", "cmpl-1");
	text_is(object, "object", "text_completion");
	text_is(object, "model", "small");
	number_is(object, "created", 5);
	text_is(choice(object), "finish_reason", "stop");
	number_is(choice(object), "index", 0);
	assert_int_equal(json_string_length(json_object_get(choice(object), "text")), 5);
	assert_memory_equal(json_string_value(json_object_get(choice(object), "text")), text, 5);
	check_usage(object);
	own = json_object_get(object, "clusterkv");
	text_is(own, "sequence", "seq");
	assert_int_equal(json_array_size(json_object_get(own, "tokens")), 3);
	assert_null(json_object_get(own, "text"));
	/* The report is only borrowed. */
	text_is(report, "text", "abc");
	json_decref(object);
	json_decref(report);
}

static void a_whole_chat_answer(void **state)
{
	struct gw_answer answer = an_answer(1);
	json_t *report = a_report(), *object;

	(void)state;
	answer.have_tokens = 2;
	put_whole(&answer, a_choice("hi", 2, GW_FINISH_LENGTH, report));
	object = parse(kv_text(&out), out.length);
	text_is(object, "object", "chat.completion");
	text_is(json_object_get(choice(object), "message"), "role", "assistant");
	text_is(json_object_get(choice(object), "message"), "content", "hi");
	text_is(choice(object), "finish_reason", "length");
	check_usage(object);
	assert_int_equal(
	    json_array_size(json_object_get(json_object_get(object, "clusterkv"), "tokens")), 1);
	json_decref(object);
	json_decref(report);
}

/* All of a stream, in the order in which it is written. */
static void check_stream(int chat)
{
	struct gw_answer answer = an_answer(chat);
	json_t *report = a_report(), *object;
	const char *at;

	struct gw_choice_view part = a_choice("a\nb", 3, GW_RUNNING, NULL);

	gw_answer_first(&out, &answer, 0, 10, 4);
	gw_answer_progress(&out, 3, 12);
	gw_answer_text(&out, &answer, &part, 2);
	put_last(&answer, GW_FINISH_LENGTH, report);
	json_decref(report);
	assert_int_equal(kv_text_status(&out), KV_OK);

	object = event(kv_text(&out), &at);
	text_is(object, "object", chat ? "chat.completion.chunk" : "text_completion");
	text_is(json_object_get(object, "clusterkv"), "sequence", "seq");
	number_is(json_object_get(object, "clusterkv"), "prefix_hit_tokens", 4);
	if (chat) text_is(json_object_get(choice(object), "delta"), "role", "assistant");
	assert_true(json_is_null(json_object_get(choice(object), "finish_reason")));
	json_decref(object);

	assert_memory_equal(at, ": prefill 3/12\n\n", 16);
	object = event(at + 16, &at);
	text_is(chat ? json_object_get(choice(object), "delta") : choice(object),
	    chat ? "content" : "text", "a\nb");
	number_is(json_object_get(object, "clusterkv"), "tokens", 2);
	json_decref(object);

	object = event(at, &at);
	text_is(choice(object), "finish_reason", "length");
	check_usage(object);
	if (chat) assert_int_equal(json_object_size(json_object_get(choice(object), "delta")), 0);
	json_decref(object);
	assert_string_equal(at, "data: [DONE]\n\n");
}

static void a_stream(void **state)
{
	(void)state;
	check_stream(0);
}

static void a_chat_stream(void **state)
{
	(void)state;
	check_stream(1);
}

static void usage_in_an_event_of_its_own(void **state)
{
	struct gw_answer answer = an_answer(1);
	json_t *report = a_report(), *object;
	const char *at;

	(void)state;
	answer.usage_event = 1;
	put_last(&answer, GW_FINISH_STOP, report);
	json_decref(report);
	assert_int_equal(kv_text_status(&out), KV_OK);
	object = event(kv_text(&out), &at);
	text_is(choice(object), "finish_reason", "stop");
	assert_null(json_object_get(object, "usage"));
	json_decref(object);
	object = event(at, &at);
	assert_int_equal(json_array_size(json_object_get(object, "choices")), 0);
	text_is(object, "object", "chat.completion.chunk");
	check_usage(object);
	json_decref(object);
	assert_string_equal(at, "data: [DONE]\n\n");
}

/* Each choice has its own end; the prompt counts once. */
static void two_choices(void **state)
{
	struct gw_answer answer = an_answer(1);
	json_t *report = a_report(), *object;
	struct gw_choice_view both[2] = {
	    a_choice("one", 3, GW_FINISH_STOP, report), a_choice("two", 3, GW_FINISH_LENGTH, report)};
	const json_t *choices, *own;
	const char *at;

	(void)state;
	both[1].index = 1;
	both[1].logprobs = json_pack("{s:[]}", "content");
	gw_answer_whole(&out, &answer, both, 2, gw_answer_usage(both, 2, 2));
	object = parse(kv_text(&out), out.length);
	choices = json_object_get(object, "choices");
	assert_int_equal(json_array_size(choices), 2);
	number_is(json_array_get(choices, 1), "index", 1);
	text_is(json_array_get(choices, 0), "finish_reason", "stop");
	text_is(json_array_get(choices, 1), "finish_reason", "length");
	assert_true(json_is_null(json_object_get(json_array_get(choices, 0), "logprobs")));
	assert_true(json_is_object(json_object_get(json_array_get(choices, 1), "logprobs")));
	number_is(json_object_get(object, "usage"), "prompt_tokens", 10);
	number_is(json_object_get(object, "usage"), "completion_tokens", 6);
	own = json_object_get(json_object_get(object, "clusterkv"), "choices");
	assert_int_equal(json_array_size(own), 2);
	text_is(json_array_get(own, 1), "sequence", "seq");
	json_decref(object);

	kv_text_reset(&out);
	both[1].logprobs = NULL;
	gw_answer_last(&out, &answer, &both[1], NULL);
	object = event(kv_text(&out), &at);
	number_is(choice(object), "index", 1);
	assert_null(json_object_get(object, "usage"));
	assert_string_equal(at, "");
	json_decref(object);
	json_decref(report);
}

static void errors(void **state)
{
	struct gw_http_error error = gw_http_error_of(KV_NOT_FOUND, 1);
	json_t *object;
	const char *at;

	(void)state;
	gw_error_body(&out, &error, "no \"such\" thing", "", 0);
	object = parse(kv_text(&out), out.length);
	text_is(json_object_get(object, "error"), "message", "no \"such\" thing");
	text_is(json_object_get(object, "error"), "type", "invalid_request_error");
	text_is(json_object_get(object, "error"), "code", "sequence_not_found");
	assert_null(json_object_get(object, "clusterkv"));
	json_decref(object);

	kv_text_reset(&out);
	gw_error_body(&out, &error, "bad \xff bytes", "seq", 1);
	object = event(kv_text(&out), &at);
	assert_true(json_is_string(json_object_get(json_object_get(object, "error"), "message")));
	text_is(json_object_get(object, "clusterkv"), "sequence", "seq");
	json_decref(object);
	assert_string_equal(at, "data: [DONE]\n\n");
}

static void statuses(void **state)
{
	static const struct {
		enum kv_status status;
		unsigned parsed, engine;
	} expected[] = {
	    {KV_INVALID, 400, 400},
	    {KV_LIMIT, 400, 503},
	    {KV_UNSUPPORTED, 400, 400},
	    {KV_NOT_FOUND, 404, 404},
	    {KV_EXISTS, 409, 409},
	    {KV_REFUSED, 409, 409},
	    {KV_BUSY, 429, 409},
	    {KV_STALE, 503, 503},
	    {KV_DISCONNECTED, 503, 503},
	    {KV_TIMEOUT, 503, 503},
	    {KV_CANCELLED, 503, 503},
	    {KV_DRAINING, 503, 503},
	    {KV_TOO_LARGE, 400, 400},
	    {KV_NO_MEMORY, 500, 503},
	    {KV_IO, 500, 500},
	    {KV_CORRUPT, 500, 500},
	    {KV_PROTOCOL, 500, 500},
	    {KV_INTERNAL, 500, 500},
	};

	(void)state;
	for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
		assert_int_equal(gw_http_error_of(expected[i].status, 0).code, expected[i].parsed);
		assert_int_equal(gw_http_error_of(expected[i].status, 1).code, expected[i].engine);
		assert_non_null(gw_http_error_of(expected[i].status, 0).type);
	}
	assert_string_equal(gw_http_error_of(KV_NOT_FOUND, 0).name, "model_not_found");
	assert_string_equal(gw_http_error_of(KV_NOT_FOUND, 1).name, "sequence_not_found");
}

static void a_full_buffer_is_noticed(void **state)
{
	struct gw_answer answer = an_answer(0);
	struct gw_choice_view part;
	struct kv_text_buffer small;

	(void)state;
	kv_text_init(&small, kv_heap(), 20);
	part = a_choice("a", 1, GW_RUNNING, NULL);
	gw_answer_text(&small, &answer, &part, 1);
	assert_int_equal(kv_text_status(&small), KV_LIMIT);
	kv_text_deinit(&small);
}

static int init_out(void **state)
{
	(void)state;
	kv_text_init(&out, kv_heap(), 1 << 20);
	return 0;
}

static int deinit_out(void **state)
{
	(void)state;
	kv_text_deinit(&out);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_whole_answer, init_out, deinit_out),
	    cmocka_unit_test_setup_teardown(a_whole_chat_answer, init_out, deinit_out),
	    cmocka_unit_test_setup_teardown(a_stream, init_out, deinit_out),
	    cmocka_unit_test_setup_teardown(a_chat_stream, init_out, deinit_out),
	    cmocka_unit_test_setup_teardown(usage_in_an_event_of_its_own, init_out, deinit_out),
	    cmocka_unit_test_setup_teardown(two_choices, init_out, deinit_out),
	    cmocka_unit_test_setup_teardown(errors, init_out, deinit_out),
	    cmocka_unit_test(statuses),
	    cmocka_unit_test(a_full_buffer_is_noticed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
