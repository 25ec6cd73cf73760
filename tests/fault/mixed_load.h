/* The mixed load: what its processes share. Store clients with made-up key/values and clients of
 * workers' HTTP each run in a process of their own until a moment that all know. */
#ifndef TESTS_FAULT_MIXED_LOAD_H
#define TESTS_FAULT_MIXED_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/lib/serve_fixture.h"
#include "tests/lib/store_fixture.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MIXED_WORKERS = 2, MIXED_RECORDED_SEGMENTS = 16, MIXED_SEGMENT_TOKENS = 512 };

/* How a store client behaves. */
enum mixed_way {
	MIXED_STAYS,  /* until the end, then closes; may be killed before */
	MIXED_LEAVES, /* after some rounds, and closes */
	MIXED_RUDE    /* stores something, reads none of it, and ends without a word */
};

/* Counted by one process at a time, in memory that the parent sees: what a killed one had counted
 * is not lost. */
struct mixed_tally {
	uint64_t rounds, opened, asked_tokens, shared_tokens;
	uint64_t stored_segments, compared_bytes, wrong_units;
	uint64_t full;             /* reservations refused for memory */
	uint64_t kept, resumed;    /* sequences left to others, taken over */
	uint64_t not_there, taken; /* resumed too late or too early */
	uint64_t answers, answers_full, hung_up;
	uint64_t errors; /* of a kind that nothing here asks for */
	char first_error[256];
};

struct mixed_plan {
	const char *transport;
	const struct store_fixture *store;
	const struct serve_fixture *workers; /* [MIXED_WORKERS] */
	uint64_t end_ms;                     /* by store_fixture_now */
	int record;                          /* descriptor that records are appended to, or -1 */
};

/* One prompt that was opened, as it is recorded: its segments' keys (a hash of all tokens to their
 * end) and tokens, in order. */
struct mixed_record {
	uint32_t count, reserved;
	struct {
		uint64_t key;
		uint32_t tokens, reserved;
	} segments[MIXED_RECORDED_SEGMENTS];
};

/* In a process of its own; `number` is its name. */
void mixed_client_run(
    const struct mixed_plan *plan, enum mixed_way way, unsigned number, struct mixed_tally *tally);
void mixed_http_run(const struct mixed_plan *plan, unsigned number, struct mixed_tally *tally);

/* Note an error that nothing asked for; the first one is kept. */
void mixed_error(struct mixed_tally *tally, const char *what, const char *text);

/* A well mixed number of a number. */
uint64_t mixed_hash(uint64_t value);

#ifdef __cplusplus
}
#endif
#endif
