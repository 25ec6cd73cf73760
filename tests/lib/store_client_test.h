/* What the store client's integration tests share. */
#ifndef TESTS_LIB_STORE_CLIENT_TEST_H
#define TESTS_LIB_STORE_CLIENT_TEST_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kvstore/client/store_client.h"
#include "tests/lib/store_fixture.h"

enum { PROMPT_TOKENS = 1100, CUT_ONE = 512, CUT_TWO = 1024, CUTS = 3, DECODED = 7 };

extern const char *test_transport; /* "ucx", "map", "stream" or "local" */
extern const char *test_program;   /* to run as another worker */

/* What the store is started with. */
const char *test_store_transport(void);

/* Assert KV_OK, with the error's text when it is not. */
#define assert_ok(expression)                                                                      \
	do {                                                                                           \
		enum kv_status assert_status = (expression);                                               \
		if (assert_status != KV_OK)                                                                \
			fail_msg(                                                                              \
			    "%s: %s: %s", #expression, kv_status_text(assert_status), kv_error_message());     \
	} while (0)

struct kvw_model_layout test_layout(void);
struct kvc_options test_options(const struct store_fixture *fixture, const char *name);
/* Connect to it as `name`; asserts that it works. */
struct kvc_store *test_connect(const struct store_fixture *fixture, const char *name);
void test_prompt(int32_t prompt[PROMPT_TOKENS], int32_t seed);
enum kv_status test_open(
    struct kvc_store *store, const char *id, int32_t seed, struct kvc_sequence **sequence);

/* Fill every unit of a reserved segment with the bytes that it has for this seed. */
enum kv_status test_write_segment(
    struct kvc_sequence *sequence, const struct kvc_segment *segment, int32_t seed);

/* Reserve the cuts that are not shared, fill every unit with bytes that depend on segment, layer
 * and seed, and commit them. */
enum kv_status test_write(struct kvc_store *store, struct kvc_sequence *sequence, int32_t seed);

/* Fetch every byte of the sequence's list and compare. The number of wrong units, or -1 when a
 * fetch failed. */
int test_compare(struct kvc_store *store, struct kvc_sequence *sequence, int32_t seed);
/* The same for the segments of its pieces. */
int test_compare_pieces(struct kvc_store *store, struct kvc_sequence *sequence, int32_t seed);

/* Open the prompt of this seed, write and compare what is not shared (1.7 MB), and close it, so
 * that nobody uses it; asserts that it works. */
void test_store_prompt(struct kvc_store *store, int32_t seed);

uint64_t test_unit_bytes(
    uint32_t start, uint32_t tokens, enum kvw_segment_kind kind, uint32_t layer);

#endif
