/* An engine in a made-up world, with assertions. */
#ifndef TESTS_UNIT_KVSTORE_ENGINE_FIXTURE_H
#define TESTS_UNIT_KVSTORE_ENGINE_FIXTURE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/engine_world.h"

struct store {
	struct kv_allocator *allocator;
	struct kvs_engine *engine;
	struct engine_world world;
};

extern const uint8_t store_policy[32];

enum { STORE_MEMORY = 1 << 20 };

/* NULL options: STORE_MEMORY and the defaults with small tables. */
void store_start(struct store *store, const struct kvs_options *options);
/* Ends the engine, and checks that nothing is left: no block, no region, no lease. */
void store_stop(struct store *store);

/* Begin the world of an all-zero `store`, for tests that start the engine themselves. */
struct kvs_environment store_environment(struct store *store);

uint32_t store_peer(struct store *store, const char *name);
uint32_t store_peer_of(struct store *store, const char *name, const char *tenant, uint8_t model);
uint64_t store_epoch(struct store *store, uint32_t peer);

/* Open with cuts of the given ends; the last is plain, the others are clustered. */
struct kvs_open_result store_open(struct store *store, uint32_t peer, const char *id,
    const uint32_t *prompt, uint32_t prompt_tokens, const uint32_t *ends, uint32_t end_count);
/* Reserve, write and commit what of the prompt's cuts is not in the list yet; returns the number of
 * segments that were stored already. */
uint32_t store_fill(struct store *store, uint32_t peer, uint64_t sequence, const uint32_t *ends,
    uint32_t end_count);
/* Reserve one segment and return its id. */
uint64_t store_reserve(struct store *store, uint32_t peer, uint64_t sequence, uint32_t start,
    uint32_t tokens, enum kvw_segment_kind kind, enum kvw_provenance provenance);
/* Commit one or two reserved segments over `replaced`. */
enum kv_status store_commit(struct store *store, uint32_t peer, uint64_t sequence,
    const uint64_t *ids, uint32_t count, const uint32_t *tokens, uint32_t token_count,
    const uint64_t *replaced, uint32_t replaced_count);
uint64_t store_entry(struct store *store, uint64_t sequence, uint32_t index);
struct kvs_statistics store_statistics(struct store *store);
bool store_has(struct store *store, uint64_t segment_id);

void numbers(uint32_t *tokens, uint32_t count, uint32_t first);

#define assert_ok(expression)                                                                      \
	store_assert_status((expression), KV_OK, #expression, __FILE__, __LINE__)
/* The status and a part of the error's text. */
#define assert_fails(expression, status, part)                                                     \
	do {                                                                                           \
		store_assert_status((expression), (status), #expression, __FILE__, __LINE__);              \
		store_assert_text((part), __FILE__, __LINE__);                                             \
	} while (0)
#define assert_sound(store) assert_ok(kvs_engine_check((store)->engine))

void store_assert_status(enum kv_status status, enum kv_status expected, const char *expression,
    const char *file, int line);
void store_assert_text(const char *part, const char *file, int line);

#endif
