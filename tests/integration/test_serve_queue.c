/* Whose turn it is in `gpu-worker serve`: prompts that share the time, sequences that share memory
 * and the store. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "tests/lib/serve_fixture.h"
#include "tests/lib/store_fixture.h"

#define MODEL KV_TINY_MODELS "/tiny_llama.gguf"

enum { ANSWERS = 4, ANSWER_TOKENS = 600, SMALL_PROMPT = 60, LARGE_PROMPT = 2600 };

/* More than are tried again after an end. */
enum { MANY = 9, LARGER_PROMPT = 4200 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LONG_PROMPT = 2500, SHORTER_PROMPT = 500 };
#else
enum { LONG_PROMPT = 6000, SHORTER_PROMPT = 1000 };
#endif

static struct serve_fixture worker;
static struct store_fixture store;

/* A prompt of `count` token ids that no other number of `kind` begins like. */
static char *prompt_of(uint32_t kind, uint32_t count)
{
	size_t capacity = (size_t)count * 8 + 8, length = 0;
	char *ids = malloc(capacity);
	uint32_t id = kind * 7919 + 1;

	assert_non_null(ids);
	for (uint32_t i = 0; i < count; i++) {
		id = id * 1103515245 + 12345;
		length += (size_t)snprintf(
		    ids + length, capacity - length, "%c%u", i > 0 ? ',' : '[', 20 + (id >> 16) % 200);
	}
	snprintf(ids + length, capacity - length, "]");
	return ids;
}

static char *body_of(uint32_t kind, uint32_t count, const char *more)
{
	char *ids = prompt_of(kind, count), *body = malloc(strlen(ids) + 512);

	assert_non_null(body);
	sprintf(body, "{\"prompt\":%s,\"temperature\":0,\"ignore_end\":true,%s}", ids, more);
	free(ids);
	return body;
}

static void open_call(struct serve_call *call, uint32_t kind, uint32_t count, const char *more)
{
	char *body = body_of(kind, count, more);

	assert_true(serve_call_open(call, &worker, "POST", "/v1/completions", body));
	free(body);
}

static void start(const char *const *more)
{
	const char *arguments[40] = {"--model", MODEL, "--budget", "48", "--sinks", "4", "--window",
	    "32", "--fold", "32", "--segment", "256", "--cluster-tokens", "8", "--threads", "1"};
	size_t count = 16;

	while (*more != NULL)
		arguments[count++] = *more++;
	assert_true(serve_fixture_start(&worker, arguments, true));
}

static int stop(void **state)
{
	(void)state;
	return serve_fixture_stop(&worker, false) ? 0 : -1;
}

/* Where the log says that the answer to a prompt of this length has ended. */
static long end_in_log(uint32_t prompt)
{
	char line[2048], word[32];
	FILE *log = fopen(worker.log, "r");
	long at = -1;

	assert_non_null(log);
	snprintf(word, sizeof word, " prompt=%u ", prompt);
	while (fgets(line, sizeof line, log) != NULL)
		if (strstr(line, "answer ") != NULL && strstr(line, word) != NULL) at = ftell(log);
	fclose(log);
	assert_true(at >= 0);
	return at;
}

/* A short prompt has its answer before a long one that came first is through; so has one that comes
 * when two are open. */
static void a_short_prompt_overtakes_a_long_one(void **state)
{
	static const char STREAM[] = "\"stream\":true,\"max_tokens\":4";
	const char *const small_chunks[] = {"--chunk", "16", NULL};
	struct serve_call calls[3];

	(void)state;
	start(small_chunks);
	open_call(&calls[0], 1, LONG_PROMPT, STREAM);
	assert_true(serve_call_read(&calls[0], ": prefill"));
	open_call(&calls[1], 2, SHORTER_PROMPT, STREAM);
	open_call(&calls[2], 3, 100, STREAM);
	for (int i = 0; i < 3; i++) {
		assert_true(serve_call_read(&calls[i], "[DONE]"));
		serve_call_close(&calls[i]);
	}
	assert_true(end_in_log(100) < end_in_log(SHORTER_PROMPT));
	assert_true(end_in_log(SHORTER_PROMPT) < end_in_log(LONG_PROMPT));
}

static json_int_t found_in(const struct serve_reply *reply)
{
	return json_integer_value(
	    json_object_get(json_object_get(reply->json, "clusterkv"), "prefix_hit_tokens"));
}

static json_int_t cached_in(const struct serve_reply *reply)
{
	const json_t *usage = json_object_get(reply->json, "usage");

	return json_integer_value(
	    json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
}

/* What another one is about to store is not computed twice. */
static void the_same_prompt_waits_and_is_found(void **state)
{
	const char *const small_chunks[] = {"--chunk", "16", NULL};
	struct serve_call first, second;
	struct serve_reply one, two;

	(void)state;
	start(small_chunks);
	open_call(&first, 1, 1500, "\"max_tokens\":4");
	open_call(&second, 1, 1500, "\"max_tokens\":4");
	assert_true(serve_call_finish(&first, &one));
	assert_true(serve_call_finish(&second, &two));
	assert_int_equal(one.code, 200);
	assert_int_equal(two.code, 200);
	assert_int_equal(found_in(&one) + found_in(&two), 1499);
	serve_reply_deinit(&one);
	serve_reply_deinit(&two);
}

static int stop_both(void **state)
{
	int failed = stop(state);

	return store_fixture_deinit(&store, failed) && !failed ? 0 : -1;
}

static void start_with_options(const char *const *store_options)
{
	const char *worker_options[] = {"--store", NULL, NULL};

	assert_true(store_fixture_init(&store));
	assert_true(store_fixture_start(&store, store_options));
	worker_options[1] = store.address;
	start(worker_options);
}

static void start_with_store(const char *memory)
{
	const char *const options[] = {"--memory", memory, NULL};

	start_with_options(options);
}

/* Unlike of all its memory, of a quota the store's user finds each byte. */
static void start_with_quota(const char *quota)
{
	const char *const options[] = {"--memory", "8MiB", "--tenant-quota", quota, NULL};

	start_with_options(options);
}

static void finish_calls(struct serve_call *calls, struct serve_reply *replies, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		assert_true(serve_call_finish(&calls[i], &replies[i]));
}

static const char *text_of(const struct serve_reply *reply)
{
	if (reply->code != 200) fail_msg("%d: %s", reply->code, reply->body);
	return json_string_value(
	    json_object_get(json_array_get(json_object_get(reply->json, "choices"), 0), "text"));
}

/* The same prompts alone, on a worker with memory enough, and then beside each other. */
static void answers_alone(uint32_t count, uint32_t prompt, const char *more, char *texts[])
{
	const char *const nothing[] = {NULL};
	struct serve_reply reply;
	struct serve_call call;

	start(nothing);
	for (uint32_t i = 0; i < count; i++) {
		open_call(&call, i, prompt, more);
		assert_true(serve_call_finish(&call, &reply));
		texts[i] = strdup(text_of(&reply));
		serve_reply_deinit(&reply);
	}
	assert_int_equal(stop(NULL), 0);
}

static void are_the_same_together(uint32_t count, uint32_t prompt, const char *more)
{
	struct serve_reply replies[ANSWERS];
	struct serve_call calls[ANSWERS];
	char *texts[ANSWERS];

	answers_alone(count, prompt, more, texts);
	start_with_store("1MiB");
	for (uint32_t i = 0; i < count; i++)
		open_call(&calls[i], i, prompt, more);
	finish_calls(calls, replies, count);
	for (uint32_t i = 0; i < count; i++) {
		assert_string_equal(text_of(&replies[i]), texts[i]);
		serve_reply_deinit(&replies[i]);
		free(texts[i]);
	}
}

static long metric(const char *name)
{
	struct serve_reply reply;
	const char *line;
	char start_of[96];
	long value;

	snprintf(start_of, sizeof start_of, "\n%s ", name);
	assert_true(serve_ask(&worker, "GET", "/metrics", NULL, &reply));
	line = strstr(reply.body, start_of);
	assert_non_null(line);
	value = strtol(line + strlen(start_of), NULL, 10);
	serve_reply_deinit(&reply);
	return value;
}

/* Figures are told four times a second. */
static void wait_until_counted(uint32_t answers)
{
	const struct timespec nap = {0, 50000000};

	for (int i = 0; i < 200 && metric("clusterkv_worker_requests_total") < (long)answers; i++)
		nanosleep(&nap, NULL);
	assert_int_equal(metric("clusterkv_worker_requests_total"), answers);
}

/* What waited or was put back is counted once. */
static void assert_counted(uint32_t answers, uint32_t prompt, uint32_t tokens)
{
	wait_until_counted(answers);
	assert_int_equal(metric("clusterkv_worker_prompt_tokens_total"), answers * prompt);
	assert_int_equal(metric("clusterkv_worker_decode_tokens_total"), answers * tokens);
}

/* The worker has memory for one of two: the second begins when the first has ended. What is larger
 * than all memory is refused. */
static void sequences_that_do_not_fit_together_wait(void **state)
{
	static const char MORE[] = "\"max_tokens\":50";
	const char *const one_of_two[] = {"--sequence-memory", "4MiB", NULL};
	struct serve_call running, waiting;
	struct serve_reply reply;
	char *texts[2];

	(void)state;
	answers_alone(2, 1500, MORE, texts);
	start(one_of_two);
	open_call(&running, 0, 1500, "\"max_tokens\":3000,\"stream\":true");
	assert_true(serve_call_tokens(&running, 1));
	open_call(&waiting, 1, 1500, MORE);
	assert_true(serve_wait_number(&worker, "waiting", 1));
	assert_true(serve_call_tokens(&running, 100));
	assert_true(serve_wait_number(&worker, "waiting", 1));
	serve_call_close(&running);
	assert_true(serve_call_finish(&waiting, &reply));
	assert_string_equal(text_of(&reply), texts[1]);
	serve_reply_deinit(&reply);
	open_call(&waiting, 2, 12000, MORE);
	assert_true(serve_call_finish(&waiting, &reply));
	assert_int_equal(reply.code, 503);
	assert_non_null(strstr(reply.body, "--sequence-memory"));
	serve_reply_deinit(&reply);
	free(texts[0]);
	free(texts[1]);
}

/* Small prompts at once, each with an answer of 4 tokens. */
static void ask_small(uint32_t first, uint32_t count)
{
	struct serve_call calls[16];
	struct serve_reply reply;

	for (uint32_t i = 0; i < count; i++)
		open_call(&calls[i], first + i, SMALL_PROMPT, "\"max_tokens\":4");
	for (uint32_t i = 0; i < count; i++) {
		assert_true(serve_call_finish(&calls[i], &reply));
		text_of(&reply);
		serve_reply_deinit(&reply);
	}
}

/* What fits passes what does not, but not for ever: the 17th waits. */
static void who_lacks_memory_is_passed_by_sixteen(void **state)
{
	const char *const one_of_two[] = {"--sequence-memory", "4MiB", NULL};
	struct serve_call running, waiting, late;
	struct serve_reply reply;

	(void)state;
	start(one_of_two);
	open_call(&running, 0, 1500, "\"max_tokens\":3000,\"stream\":true");
	assert_true(serve_call_tokens(&running, 1));
	open_call(&waiting, 1, 1500, "\"max_tokens\":50");
	assert_true(serve_wait_number(&worker, "waiting", 1));
	ask_small(10, 16);
	assert_false(serve_call_ended(&running));
	open_call(&late, 9, SMALL_PROMPT, "\"max_tokens\":4");
	assert_true(serve_wait_number(&worker, "waiting", 2));
	/* So many turns later, too. */
	assert_true(serve_call_tokens(&running, 2000));
	assert_true(serve_wait_number(&worker, "waiting", 2));
	serve_call_close(&running);
	assert_true(serve_call_finish(&waiting, &reply));
	text_of(&reply);
	serve_reply_deinit(&reply);
	assert_true(serve_call_finish(&late, &reply));
	text_of(&reply);
	serve_reply_deinit(&reply);
}

/* Prompts that do not fit into the store together are computed one after the other. */
static void prompts_that_do_not_fit_together_wait(void **state)
{
	(void)state;
	are_the_same_together(2, 700, "\"max_tokens\":20");
	assert_counted(2, 700, 20);
}

/* The worker's memory is counted for what it takes over, too, and what has no room stays in the
 * store. */
static void a_resume_waits_for_memory(void **state)
{
	static const char RESUME[] = "{\"resume\":\"big\"}";
	const char *too_small[] = {"--store", NULL, "--sequence-memory", "1MiB", NULL};
	const char *one_of_two[] = {"--store", NULL, "--sequence-memory", "4MiB", NULL};
	struct serve_call running, resumed;
	struct serve_reply reply;

	(void)state;
	start_with_store("64MiB");
	too_small[1] = one_of_two[1] = store.address;
	open_call(&running, 0, 1500, "\"max_tokens\":900,\"stream\":true,\"sequence\":\"big\"");
	assert_true(serve_call_tokens(&running, 1));
	serve_fixture_signal(&worker, SIGKILL);
	serve_fixture_wait(&worker);
	serve_call_close(&running);

	start(too_small);
	assert_true(serve_ask(&worker, "POST", "/v1/completions", RESUME, &reply));
	assert_int_equal(reply.code, 503);
	assert_non_null(strstr(reply.body, "--sequence-memory is 1048576"));
	serve_reply_deinit(&reply);
	assert_int_equal(stop(NULL), 0);

	start(one_of_two);
	open_call(&running, 1, 1500, "\"max_tokens\":3000,\"stream\":true");
	assert_true(serve_call_tokens(&running, 1));
	assert_true(serve_call_open(&resumed, &worker, "POST", "/v1/completions", RESUME));
	assert_true(serve_wait_number(&worker, "waiting", 1));
	ask_small(10, 2);
	assert_true(serve_wait_number(&worker, "waiting", 1));
	serve_call_close(&running);
	assert_true(serve_call_finish(&resumed, &reply));
	text_of(&reply);
	serve_reply_deinit(&reply);
}

/* The store is full of answers that grow: the youngest is put back and goes on later. */
static void answers_that_do_not_fit_together_are_put_back(void **state)
{
	(void)state;
	are_the_same_together(ANSWERS, 200, "\"max_tokens\":600");
	assert_counted(ANSWERS, 200, ANSWER_TOKENS);
	assert_true(metric("clusterkv_worker_put_back_total") > 0);
}

/* What an answer that was put back finds is its own: none of what was stored when it was asked for.
 */
static void what_was_put_back_has_found_nothing(void **state)
{
	char *small = prompt_of(1, 100), *large = prompt_of(2, 600), body[8192];
	struct serve_reply reply;

	(void)state;
	snprintf(body, sizeof body,
	    "{\"prompt\":[%s,%s],\"temperature\":0,\"ignore_end\":true,\"max_tokens\":200}", small,
	    large);
	start_with_store("1MiB");
	assert_true(serve_ask(&worker, "POST", "/v1/completions", body, &reply));
	text_of(&reply);
	wait_until_counted(2);
	assert_true(metric("clusterkv_worker_put_back_total") > 0);
	assert_int_equal(cached_in(&reply), 0);
	serve_reply_deinit(&reply);
	free(small);
	free(large);
}

/* What never fits is refused with 400, and the store has as many sequences afterwards. */
static void assert_never_fits(const char *body, double orphans)
{
	struct serve_reply reply;

	assert_true(serve_ask(&worker, "POST", "/v1/completions", body, &reply));
	if (reply.code != 400) fail_msg("%d: %s", reply.code, reply.body);
	assert_non_null(strstr(reply.body, "\"store_too_small\""));
	serve_reply_deinit(&reply);
	assert_true(store_fixture_wait_stat(&store, "sequences{state=\"active\"}", 0, 3000));
	assert_true(store_fixture_wait_stat(&store, "sequences{state=\"orphaned\"}", orphans, 3000));
}

/* An answer that was put back, went on alone and came to more than the store has room for: nobody
 * is to find it there. */
static void what_was_put_back_and_never_fits_is_discarded(void **state)
{
	char *small = prompt_of(1, 100), *large = prompt_of(2, 400), body[8192];

	(void)state;
	snprintf(body, sizeof body,
	    "{\"prompt\":[%s,%s],\"temperature\":0,\"ignore_end\":true,\"max_tokens\":700}", small,
	    large);
	start_with_quota("1MiB");
	assert_never_fits(body, 0);
	wait_until_counted(2);
	assert_true(metric("clusterkv_worker_put_back_total") > 0);
	free(small);
	free(large);
}

/* Who resumes what others began, and is told that it never fits, leaves it to them. */
static void what_others_began_and_never_fits_stays(void **state)
{
	const char *options[] = {"--store", NULL, NULL};
	struct serve_call begun;

	(void)state;
	start_with_quota("2MiB");
	options[1] = store.address;
	open_call(&begun, 0, 300, "\"max_tokens\":3000,\"stream\":true,\"sequence\":\"theirs\"");
	assert_true(serve_call_tokens(&begun, 1));
	serve_fixture_signal(&worker, SIGKILL);
	serve_fixture_wait(&worker);
	serve_call_close(&begun);
	assert_true(store_fixture_wait_stat(&store, "sequences{state=\"orphaned\"}", 1, 3000));
	start(options);
	assert_never_fits("{\"resume\":\"theirs\"}", 1);
}

static char *streamed_text(struct serve_call *call)
{
	struct serve_stream stream;
	struct serve_reply reply;
	char *text;

	assert_true(serve_call_finish(call, &reply));
	assert_true(serve_stream_parse(&reply, &stream));
	if (stream.text_length == 0) fail_msg("%s", reply.body);
	text = strdup(stream.text);
	serve_stream_deinit(&stream);
	serve_reply_deinit(&reply);
	return text;
}

/* A prompt for which the store has no room beside one that runs: smaller ones have it. */
static void what_fits_passes_what_does_not(void **state)
{
	struct serve_call running, large;
	char *texts[1], *text;

	(void)state;
	answers_alone(1, LARGE_PROMPT, "\"max_tokens\":4", texts);
	start_with_store("4MiB");
	open_call(&running, 5, 1200, "\"max_tokens\":2500,\"stream\":true");
	assert_true(serve_call_tokens(&running, 1));
	open_call(&large, 0, LARGE_PROMPT, "\"max_tokens\":4,\"stream\":true");
	assert_true(serve_call_read(&large, "sequence"));
	ask_small(10, 2);
	assert_false(serve_call_ended(&running));
	assert_false(serve_call_ended(&large));
	serve_call_close(&running);
	text = streamed_text(&large);
	assert_string_equal(text, texts[0]);
	free(texts[0]);
	free(text);
}

/* However many wait for room, those behind them that fit have it. */
static void what_fits_passes_many_that_do_not(void **state)
{
	struct serve_call running, large[MANY];

	(void)state;
	start_with_store("6MiB");
	open_call(&running, 5, 1500, "\"max_tokens\":4000,\"stream\":true");
	assert_true(serve_call_tokens(&running, 1));
	for (uint32_t i = 0; i < MANY; i++) {
		open_call(&large[i], 20 + i, LARGER_PROMPT, "\"max_tokens\":4,\"stream\":true");
		assert_true(serve_call_read(&large[i], "sequence"));
	}
	ask_small(10, 1);
	assert_false(serve_call_ended(&running));
	for (uint32_t i = 0; i < MANY; i++) {
		assert_false(serve_call_ended(&large[i]));
		serve_call_close(&large[i]);
	}
	serve_call_close(&running);
}

/* What never fits is told so at once, and what fits goes on beside it. */
static void what_never_fits_is_refused(void **state)
{
	struct serve_call running, call;
	struct serve_reply reply;

	(void)state;
	start_with_store("4MiB");
	open_call(&running, 1, 100, "\"max_tokens\":3000,\"stream\":true");
	assert_true(serve_call_tokens(&running, 1));
	open_call(&call, 2, 5000, "\"max_tokens\":20");
	assert_true(serve_call_finish(&call, &reply));
	assert_false(serve_call_ended(&running));
	assert_int_equal(reply.code, 400);
	assert_non_null(strstr(reply.body, "\"store_too_small\""));
	assert_non_null(strstr(reply.body, "a prompt of 5000 tokens"));
	assert_non_null(strstr(reply.body, "its limit is 4194304: raise the store's --memory"));
	serve_reply_deinit(&reply);
	serve_call_close(&running);
}

/* What would fit, in a store that others hold: tried again for a while, as they may end. The other
 * worker stands still meanwhile, and keeps what it has for a lease. */
static void what_finds_the_store_full_is_told_so(void **state)
{
	const char *const options[] = {"--store", store.address, NULL};
	struct serve_fixture first;
	struct serve_call running, call;
	struct serve_reply reply;

	(void)state;
	start_with_store("4MiB");
	open_call(&running, 1, LARGE_PROMPT, "\"max_tokens\":3000,\"stream\":true");
	assert_true(serve_call_tokens(&running, 1));
	first = worker;
	start(options);
	assert_int_equal(kill(first.pid, SIGSTOP), 0);
	open_call(&call, 2, LARGE_PROMPT, "\"max_tokens\":20");
	assert_true(serve_call_finish(&call, &reply));
	assert_int_equal(reply.code, 503);
	assert_non_null(strstr(reply.body, "\"store_full\""));
	serve_reply_deinit(&reply);
	assert_int_equal(kill(first.pid, SIGCONT), 0);
	serve_call_close(&running);
	assert_true(serve_fixture_stop(&first, false));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_teardown(a_short_prompt_overtakes_a_long_one, stop),
	    cmocka_unit_test_teardown(the_same_prompt_waits_and_is_found, stop),
	    cmocka_unit_test_teardown(sequences_that_do_not_fit_together_wait, stop),
	    cmocka_unit_test_teardown(who_lacks_memory_is_passed_by_sixteen, stop),
	    cmocka_unit_test_teardown(a_resume_waits_for_memory, stop_both),
	    cmocka_unit_test_teardown(prompts_that_do_not_fit_together_wait, stop_both),
	    cmocka_unit_test_teardown(answers_that_do_not_fit_together_are_put_back, stop_both),
	    cmocka_unit_test_teardown(what_was_put_back_has_found_nothing, stop_both),
	    cmocka_unit_test_teardown(what_was_put_back_and_never_fits_is_discarded, stop_both),
	    cmocka_unit_test_teardown(what_others_began_and_never_fits_stays, stop_both),
	    cmocka_unit_test_teardown(what_fits_passes_what_does_not, stop_both),
	    cmocka_unit_test_teardown(what_fits_passes_many_that_do_not, stop_both),
	    cmocka_unit_test_teardown(what_never_fits_is_refused, stop_both),
	    cmocka_unit_test_teardown(what_finds_the_store_full_is_told_so, stop_both),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
