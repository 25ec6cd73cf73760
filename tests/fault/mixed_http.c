/* A client of the workers' HTTP in the mixed load: turns of conversations over shared documents,
 * whole or streamed, and some that hang up. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/random.h"
#include "tests/fault/mixed_load.h"

enum { TALKS = 16, DOCUMENTS = 4, TURNS = 5, BODY_BYTES = 16384, ANSWER_SECONDS = 60 };

static const char *const words[] = {"you", "and", "the", "one", "that", "is", "in", "box", "of",
    "a", "hat", "on", "hill", "to", "be", "at", "sea", "it", "was", "for"};

enum { WORDS = sizeof words / sizeof words[0] };

static size_t add_words(char *body, size_t at, uint64_t stream, uint32_t count)
{
	for (uint32_t i = 0; i < count && at + 64 < BODY_BYTES; i++)
		at += (size_t)snprintf(
		    body + at, BODY_BYTES - at, "%s ", words[mixed_hash(stream << 32 | i) % WORDS]);
	return at;
}

static void make_body(char *body, uint32_t talk, uint32_t turn, uint32_t tokens, bool stream)
{
	const uint32_t document = talk % DOCUMENTS;
	size_t at = (size_t)snprintf(body, BODY_BYTES, "{\"prompt\":\"");

	at = add_words(body, at, document, 30 + document * 250);
	at = add_words(body, at, 100 + talk, 12 + 40 * turn);
	snprintf(body + at, BODY_BYTES - at,
	    "\",\"temperature\":0,\"ignore_end\":true,\"max_tokens\":%u,\"stream\":%s}", tokens,
	    stream ? "true" : "false");
}

/* A refusal that says that the store is full is asked for here; nothing else is. */
static void judge(struct mixed_tally *tally, const struct serve_reply *reply)
{
	const char *broken = strstr(reply->body, "\"error\"");

	if (reply->code == 200 && !broken)
		tally->answers++;
	else if (strstr(reply->body, "store_full") || strstr(reply->body, "store_too_small"))
		tally->answers_full++;
	else
		mixed_error(tally, "answer", reply->body);
}

static void hang_up(struct serve_call *call, bool at_once, struct mixed_tally *tally)
{
	if (!at_once) serve_call_read(call, "\"tokens\":");
	serve_call_close(call);
	tally->hung_up++;
}

void mixed_http_run(const struct mixed_plan *plan, unsigned number, struct mixed_tally *tally)
{
	static char body[BODY_BYTES];
	struct kv_random random;
	uint32_t turn[TALKS] = {0};

	kv_random_seed(&random, number);
	serve_answer_limit(ANSWER_SECONDS);
	while (store_fixture_now() < plan->end_ms) {
		const struct serve_fixture *worker =
		    &plan->workers[kv_random_below(&random, MIXED_WORKERS)];
		const uint32_t talk = (uint32_t)kv_random_below(&random, TALKS);
		const uint64_t way = kv_random_below(&random, 10);
		const uint32_t tokens = 1 + (uint32_t)kv_random_below(&random, way < 3 ? 150 : 40);
		struct serve_call call;
		struct serve_reply reply;

		make_body(body, talk, turn[talk]++ % TURNS, tokens, way < 5);
		tally->rounds++;
		if (!serve_call_open(&call, worker, "POST", "/v1/completions", body)) {
			mixed_error(tally, "request", "no connection to a worker");
			return;
		}
		if (way < 2) {
			hang_up(&call, way == 0, tally);
			continue;
		}
		if (!serve_call_finish(&call, &reply)) {
			mixed_error(tally, "answer", "it did not come whole");
			continue;
		}
		judge(tally, &reply);
		serve_reply_deinit(&reply);
	}
}
