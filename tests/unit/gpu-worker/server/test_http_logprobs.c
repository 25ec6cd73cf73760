/* Log probabilities as JSON: every token is told, also one whose chance is no number to JSON. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpu-worker/server/http_logprobs.h"
#include "tests/unit/gpu-worker/text/small_vocabulary.h"

static struct gw_tokenizer *tokenizer;

static const struct gw_token_record records[] = {
    {SMALL_HELLO, -0.5F, 2, {SMALL_HELLO, SMALL_LL}, {-0.5F, -INFINITY}},
    {SMALL_HE, NAN, 1, {SMALL_HE}, {NAN}},
    {SMALL_LL, -INFINITY, 0, {0}, {0.0F}},
};

enum { RECORDS = sizeof records / sizeof records[0] };

static double number(const json_t *value)
{
	assert_true(json_is_number(value));
	return json_number_value(value);
}

static void a_completion_has_a_number_for_each(void **state)
{
	size_t offset = 0;
	json_t *told = gw_logprobs_json(tokenizer, 0, records, 0, RECORDS, &offset);
	const json_t *values = json_object_get(told, "token_logprobs");
	const json_t *top = json_array_get(json_object_get(told, "top_logprobs"), 0);

	(void)state;
	assert_int_equal(json_array_size(json_object_get(told, "tokens")), RECORDS);
	assert_int_equal(json_array_size(values), RECORDS);
	assert_true(number(json_array_get(values, 0)) == -0.5);
	assert_true(number(json_array_get(values, 1)) == -9999.0);
	assert_true(number(json_array_get(values, 2)) == -9999.0);
	assert_true(number(json_object_get(top, "ll")) == -9999.0);
	assert_int_equal(offset, 9);
	json_decref(told);
}

static void a_chat_has_an_entry_for_each(void **state)
{
	size_t offset = 0;
	json_t *told = gw_logprobs_json(tokenizer, 1, records, 0, RECORDS, &offset);
	const json_t *content = json_object_get(told, "content");

	(void)state;
	assert_int_equal(json_array_size(content), RECORDS);
	for (size_t i = 0; i < RECORDS; i++) {
		const json_t *entry = json_array_get(content, i);
		const json_t *top = json_object_get(entry, "top_logprobs");

		assert_true(number(json_object_get(entry, "logprob")) == (i == 0 ? -0.5 : -9999.0));
		assert_int_equal(json_array_size(top), records[i].top_count);
		for (size_t j = 0; j < records[i].top_count; j++)
			assert_true(json_is_number(json_object_get(json_array_get(top, j), "logprob")));
	}
	json_decref(told);
}

static int make(void **state)
{
	(void)state;
	tokenizer = small_tokenizer(kv_heap(), "gpt-2");
	return 0;
}

static int destroy(void **state)
{
	(void)state;
	gw_tokenizer_destroy(tokenizer);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_completion_has_a_number_for_each),
	    cmocka_unit_test(a_chat_has_an_entry_for_each),
	};

	return cmocka_run_group_tests(tests, make, destroy);
}
