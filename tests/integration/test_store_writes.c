/* Writing to a store: folds, corruption, staging memory, limits; and transports that fail. */
#include "tests/lib/store_client_test.h"

#include <signal.h>
#include <stdlib.h>

#include "common/runtime/fault_point.h"

const char *test_transport;
const char *test_program;

static struct store_fixture fixture;

enum { TAIL = PROMPT_TOKENS - CUT_TWO, FOLDED = 96, STAYS = 30, NEW_TOKENS = FOLDED + STAYS };

static bool is_stream(void)
{
	return strcmp(test_transport, "stream") == 0;
}

static int set_up(void **state)
{
	char transport[32];
	const char *arguments[] = {transport, "--max-workers=3", NULL};

	(void)state;
	snprintf(transport, sizeof transport, "--transport=%s", test_store_transport());
	if (!store_fixture_init(&fixture)) return -1;
	fixture.remote = is_stream();
	return store_fixture_start(&fixture, arguments) ? 0 : -1;
}

static int set_up_verified(void **state)
{
	char transport[32];
	const char *arguments[] = {transport, "--verify=fetch", NULL};

	*state = &fixture;
	snprintf(transport, sizeof transport, "--transport=%s", test_store_transport());
	if (!store_fixture_init(&fixture)) return -1;
	fixture.remote = is_stream();
	return store_fixture_start(&fixture, arguments) ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	kv_fault_configure(NULL, NULL);
	return store_fixture_deinit(&fixture, false) ? 0 : -1;
}

static void write_segment(
    struct kvc_sequence *sequence, const struct kvc_segment *segment, uint8_t value)
{
	for (uint32_t layer = 0; layer < 3; layer++) {
		uint8_t *memory = NULL;
		uint64_t bytes = 0;

		assert_ok(kvc_unit_begin(sequence, segment, layer, &memory, &bytes));
		memset(memory, value, bytes);
		assert_ok(kvc_unit_end(sequence, segment, layer));
	}
}

/* The window's oldest tokens become a segment, the others stay plain; both replace the tail. */
static void test_fold(void **state)
{
	const struct kvc_new_segment wanted[2] = {{CUT_TWO, FOLDED, KVW_CLUSTERED, KVW_APPROXIMATE},
	    {CUT_TWO + FOLDED, STAYS, KVW_PLAIN, KVW_APPROXIMATE}};
	struct kvc_store *store = test_connect(&fixture, "a");
	struct kvc_sequence *sequence = NULL;
	const struct kvc_segment *const *list;
	const struct kvc_segment *fresh[2];
	const struct kvc_segment *tail;
	int32_t prompt[PROMPT_TOKENS];
	int32_t tokens[NEW_TOKENS];
	uint32_t count;
	uint8_t byte = 0;
	struct kvc_read read = {NULL, 2, 640, 1, &byte};

	(void)state;
	test_prompt(prompt, 1);
	for (int32_t i = 0; i < NEW_TOKENS; i++)
		tokens[i] = i < TAIL ? prompt[CUT_TWO + i] : 100 + i;
	assert_ok(test_open(store, "folding", 1, &sequence));
	assert_ok(test_write(store, sequence, 1));
	assert_ok(kvc_push(sequence, tokens + TAIL, NEW_TOKENS - TAIL, NULL, 0));
	assert_ok(kvc_flush(sequence));
	list = kvc_sequence_segments(sequence, &count);
	tail = list[CUTS - 1];
	assert_ok(kvc_reserve(sequence, wanted, 2, fresh));
	write_segment(sequence, fresh[0], 11);
	/* Not all is written yet. */
	assert_int_equal(kvc_commit(sequence, fresh, 2, tokens, NEW_TOKENS, &tail, 1), KV_INVALID);
	write_segment(sequence, fresh[1], 22);
	assert_ok(kvc_commit(sequence, fresh, 2, tokens, NEW_TOKENS, &tail, 1));
	list = kvc_sequence_segments(sequence, &count);
	assert_int_equal(count, CUTS + 1);
	assert_int_equal(list[CUTS - 1]->tokens, FOLDED);
	assert_int_equal(list[CUTS]->start, CUT_TWO + FOLDED);
	read.segment = list[CUTS];
	assert_ok(kvc_fetch_start(store, &read, 1));
	assert_ok(kvc_fetch_wait(store));
	assert_int_equal(byte, 22);
	/* Another sequence finds the exact tail, and none of the fold. */
	kvc_sequence_close(sequence, 1);
	assert_ok(test_open(store, NULL, 1, &sequence));
	list = kvc_sequence_segments(sequence, &count);
	assert_int_equal(count, CUTS);
	assert_int_equal(list[CUTS - 1]->tokens, TAIL);
	assert_int_equal(test_compare(store, sequence, 1), 0);
	kvc_sequence_close(sequence, 0);
	kvc_close(store);
}

/* Bytes that change after they were checksummed are found at commit, and nothing becomes visible.
 */
static void test_corrupt_write(void **state)
{
	struct kvc_new_segment wanted = {0, CUT_ONE, KVW_CLUSTERED, KVW_EXACT};
	struct kvc_store *store = test_connect(&fixture, "a");
	struct kvc_sequence *sequence = NULL;
	const struct kvc_segment *segment = NULL;
	uint8_t *memory = NULL;
	uint64_t bytes = 0;
	uint32_t count;

	(void)state;
	if (strcmp(test_transport, "ucx") != 0) {
		/* With map a worker cannot reach the arena. */
		kvc_close(store);
		skip();
	}
	assert_ok(test_open(store, NULL, 1, &sequence));
	assert_ok(kvc_reserve(sequence, &wanted, 1, &segment));
	for (uint32_t layer = 0; layer < 3; layer++) {
		assert_ok(kvc_unit_begin(sequence, segment, layer, &memory, &bytes));
		memset(memory, 5, bytes);
		assert_ok(kvc_unit_end(sequence, segment, layer));
	}
	memory[bytes - 1] ^= 1;
	assert_int_equal(kvc_commit(sequence, &segment, 1, NULL, 0, NULL, 0), KV_CORRUPT);
	kvc_release(sequence, &segment, 1);
	kvc_sequence_segments(sequence, &count);
	assert_int_equal(count, 0);
	assert_true(store_fixture_wait_stat(&fixture, "checksum_mismatches_total", 1, 0));
	assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"committed\"}", 0, 0));
	assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"reserved\"}", 0, 0));
	/* And the same again goes well. */
	assert_ok(test_write(store, sequence, 1));
	assert_int_equal(test_compare(store, sequence, 1), 0);
	kvc_sequence_close(sequence, 0);
	kvc_close(store);
}

/* Many units through little staging memory, ended in another order than begun. */
static void test_many_units(void **state)
{
	struct kvc_new_segment wanted = {0, CUT_ONE, KVW_CLUSTERED, KVW_EXACT};
	struct kvc_options options = test_options(&fixture, "a");
	struct kvc_store *store = NULL;
	struct kvc_sequence *sequence = NULL;

	(void)state;
	options.staging_bytes = 3 * test_unit_bytes(0, CUT_ONE, KVW_CLUSTERED, 1);
	assert_ok(kvc_open(&options, &store));
	assert_ok(test_open(store, NULL, 1, &sequence));
	for (int round = 0; round < 20; round++) {
		const struct kvc_segment *segment = NULL;
		uint8_t *memory[2];
		uint64_t bytes;

		assert_ok(kvc_reserve(sequence, &wanted, 1, &segment));
		assert_ok(kvc_unit_begin(sequence, segment, 0, &memory[0], &bytes));
		assert_ok(kvc_unit_begin(sequence, segment, 1, &memory[1], &bytes));
		assert_int_equal(kvc_unit_begin(sequence, segment, 1, &memory[1], &bytes), KV_INVALID);
		memset(memory[1], round, bytes);
		assert_ok(kvc_unit_end(sequence, segment, 1));
		if (round % 2) assert_ok(kvc_unit_end(sequence, segment, 0));
		/* The other one is given up with its segment. */
		kvc_release(sequence, &segment, 1);
	}
	assert_ok(test_write(store, sequence, 1));
	assert_int_equal(test_compare(store, sequence, 1), 0);
	assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"reserved\"}", 0, 0));
	kvc_sequence_close(sequence, 0);
	kvc_close(store);
}

static void test_limits(void **state)
{
	struct kvc_store *stores[3];
	struct kvc_options options = test_options(&fixture, "fourth");
	struct kvc_sequence *sequence = NULL;
	struct kvc_sequence *same = NULL;
	struct kvc_store *fourth = NULL;

	(void)state;
	for (int i = 0; i < 3; i++)
		stores[i] = test_connect(&fixture, "same-name");
	options.connect_ms = 0;
	assert_int_equal(kvc_open(&options, &fourth), KV_LIMIT);
	assert_ok(test_open(stores[0], "taken", 1, &sequence));
	assert_int_equal(test_open(stores[1], "taken", 1, &same), KV_EXISTS);
	assert_int_equal(test_open(stores[1], "not/allowed", 1, &same), KV_INVALID);
	assert_true(store_fixture_stat(&fixture, "worker:same-name:slot") >= 0);
	/* One process is one worker. */
	assert_true(store_fixture_stat(&fixture, "worker:same-name-2:slot") < 0);
	kvc_sequence_close(sequence, 0);
	for (int i = 0; i < 3; i++)
		kvc_close(stores[i]);
}

/* ---- memory ---- */

static int set_up_regions(void **state)
{
	char transport[32];
	const char *arguments[] = {transport, "--region=64KiB", NULL};

	(void)state;
	snprintf(transport, sizeof transport, "--transport=%s", test_store_transport());
	if (!store_fixture_init(&fixture)) return -1;
	fixture.remote = is_stream();
	return store_fixture_start(&fixture, arguments) ? 0 : -1;
}

/* A region for nearly every unit: more than one message can tell of, and a newcomer hears of all.
 */
static void test_many_regions(void **state)
{
	enum { PROMPTS = 26 };
	struct kvc_store *writer = test_connect(&fixture, "writer");
	struct kvc_sequence *sequences[PROMPTS] = {0};
	struct kvc_sequence *sequence = NULL;
	struct kvc_store *reader;
	uint32_t count;

	(void)state;
	for (int32_t i = 0; i < PROMPTS; i++) {
		assert_ok(test_open(writer, NULL, i, &sequences[i]));
		assert_ok(test_write(writer, sequences[i], i));
	}
	assert_true(store_fixture_stat(&fixture, "regions") > 200);
	reader = test_connect(&fixture, "reader");
	for (int32_t i = 0; i < PROMPTS; i++) {
		assert_ok(test_open(reader, NULL, i, &sequence));
		kvc_sequence_segments(sequence, &count);
		assert_int_equal(count, CUTS);
		assert_int_equal(test_compare(reader, sequence, i), 0);
		kvc_sequence_close(sequence, 0);
	}
	for (int32_t i = 0; i < PROMPTS; i++)
		kvc_sequence_close(sequences[i], 0);
	kvc_close(reader);
	kvc_close(writer);
}

/* A reservation of more than one region waits for memory while the store goes on answering. */
static void test_growth(void **state)
{
	const struct kvc_new_segment wanted = {0, 16384, KVW_CLUSTERED, KVW_EXACT};
	struct kvc_options options = test_options(&fixture, "a");
	struct kvc_open_request request = {.prompt_tokens = 16384};
	struct kvc_store *store = NULL;
	struct kvc_sequence *sequence = NULL;
	const struct kvc_segment *segment = NULL;
	int32_t *prompt = calloc(16384, sizeof *prompt);

	(void)state;
	request.prompt = prompt;
	options.staging_bytes = 16 << 20;
	assert_ok(kvc_open(&options, &store));
	assert_ok(kvc_sequence_open(store, &request, &sequence));
	assert_ok(kvc_reserve(sequence, &wanted, 1, &segment));
	write_segment(sequence, segment, 9);
	assert_ok(kvc_commit(sequence, &segment, 1, NULL, 0, NULL, 0));
	assert_true(store_fixture_stat(&fixture, "arena_bytes{state=\"leased\"}") > 24 << 20);
	kvc_sequence_close(sequence, 0);
	kvc_close(store);
	free(prompt);
}

/* ---- a transport that fails ---- */

static struct kvc_store *open_faulty(void)
{
	static char transport[32];
	struct kvc_options options = test_options(&fixture, "faulty");
	struct kvc_store *store = NULL;

	snprintf(transport, sizeof transport, "faulty-%s", test_transport);
	options.transport = transport;
	assert_ok(kvc_open(&options, &store));
	return store;
}

/* No failed read counts as one, and the next goes well. */
static void test_failing_gets(void **state)
{
	static const struct {
		const char *fault;
		enum kv_status status;
	} cases[] = {{"transport.get.fail", KV_DISCONNECTED}, {"transport.wait.timeout", KV_TIMEOUT}};
	struct kvc_store *store = open_faulty();
	struct kvc_sequence *sequence = NULL;
	const struct kvc_segment *const *list;
	uint8_t bytes[64];
	uint32_t count;

	(void)state;
	assert_ok(test_open(store, NULL, 1, &sequence));
	assert_ok(test_write(store, sequence, 1));
	assert_int_equal(test_compare(store, sequence, 1), 0);
	list = kvc_sequence_segments(sequence, &count);
	assert_null(kvc_direct(store, list[0], 0));
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct kvc_read read = {list[0], 0, 0, sizeof bytes, bytes};
		enum kv_status status;

		assert_ok(kv_fault_configure(cases[i].fault, NULL));
		status = kvc_fetch_start(store, &read, 1);
		if (status == KV_OK) status = kvc_fetch_wait(store);
		assert_int_equal(status, cases[i].status);
		assert_ok(kv_fault_configure(NULL, NULL));
		assert_int_equal(test_compare(store, sequence, 1), 0);
	}
	kvc_sequence_close(sequence, 0);
	kvc_close(store);
}

/* A path that stays closed is not kept: the connection is made anew, by itself. */
static void test_a_path_that_stays_closed(void **state)
{
	struct kvc_store *store = open_faulty();
	struct kvc_sequence *sequence = NULL;
	const struct kvc_segment *const *list;
	uint8_t bytes[64];
	uint32_t count;
	uint64_t deadline;

	(void)state;
	assert_ok(test_open(store, NULL, 1, &sequence));
	assert_ok(test_write(store, sequence, 1));
	list = kvc_sequence_segments(sequence, &count);
	for (int i = 0; i < 2; i++) {
		struct kvc_read read = {list[0], 0, 0, sizeof bytes, bytes};

		assert_ok(kv_fault_configure("transport.get.fail", NULL));
		assert_int_equal(kvc_fetch_start(store, &read, 1), KV_DISCONNECTED);
		assert_ok(kv_fault_configure(NULL, NULL));
	}
	/* The old connection's sequence is lost with it; one of the new connection goes well. The old
	 * one may take in another sequence before its thread gives it up. */
	kvc_sequence_close(sequence, 0);
	deadline = store_fixture_now() + 10000;
	for (int whole = 0; !whole;) {
		assert_true(store_fixture_now() < deadline);
		store_fixture_sleep(20);
		if (test_open(store, NULL, 1, &sequence) != KV_OK) continue;
		whole = test_compare(store, sequence, 1) == 0;
		kvc_sequence_close(sequence, 0);
	}
	kvc_close(store);
}

/* What a read brought is compared with what was committed, where the store wants it: a byte that
 * changes on the way is found, and would not be without. */
static void test_verified_reads(void **state)
{
	const bool wanted = *state != NULL;
	struct kvc_store *store = open_faulty(), *plain = NULL;
	struct kvc_options options = test_options(&fixture, "plain");
	struct kvc_sequence *sequence = NULL;
	const struct kvc_segment *const *list;
	uint8_t byte = 0;
	struct kvc_read read = {NULL, 1, 64, 1, &byte};
	uint32_t count;
	enum kv_status status;

	assert_ok(kvc_open(&options, &plain));
	assert_ok(test_open(plain, NULL, 1, &sequence));
	assert_ok(test_write(plain, sequence, 1));
	assert_int_equal(test_compare(plain, sequence, 1), 0);
	list = kvc_sequence_segments(sequence, &count);
	if (wanted) assert_null(kvc_direct(plain, list[0], 0));
	kvc_sequence_close(sequence, 0);
	kvc_close(plain);

	/* The second one is told the checksums when it attaches. */
	assert_ok(test_open(store, NULL, 1, &sequence));
	list = kvc_sequence_segments(sequence, &count);
	assert_true(count > 0);
	read.segment = list[0];
	assert_int_equal(test_compare(store, sequence, 1), 0);
	assert_ok(kv_fault_configure("transport.get.corrupt", NULL));
	assert_ok(kvc_fetch_start(store, &read, 1));
	status = kvc_fetch_wait(store);
	assert_int_equal(kv_fault_fired("transport.get.corrupt"), 1);
	assert_int_equal(status, wanted ? KV_CORRUPT : KV_OK);
	assert_ok(kv_fault_configure(NULL, NULL));
	assert_int_equal(test_compare(store, sequence, 1), 0);
	kvc_sequence_close(sequence, 0);
	kvc_close(store);
}

/* Memory that could not be attached is had by a new connection. */
static void test_failing_attach(void **state)
{
	struct kvc_store *store = open_faulty();
	struct kvc_sequence *sequence = NULL;
	uint64_t deadline = store_fixture_now() + 10000;

	(void)state;
	assert_ok(kv_fault_configure("transport.attach.fail", NULL));
	assert_ok(test_open(store, NULL, 1, &sequence));
	assert_int_equal(test_write(store, sequence, 1), KV_REFUSED);
	assert_int_equal(kv_fault_fired("transport.attach.fail"), 1);
	kvc_sequence_close(sequence, 0);
	while (test_open(store, NULL, 1, &sequence) != KV_OK) {
		assert_true(store_fixture_now() < deadline);
		store_fixture_sleep(10);
	}
	/* That may still have been the old connection; then it ends while we write. */
	while (test_write(store, sequence, 1) != KV_OK) {
		assert_true(store_fixture_now() < deadline);
		kvc_sequence_close(sequence, 0);
		sequence = NULL;
		while (test_open(store, NULL, 1, &sequence) != KV_OK)
			store_fixture_sleep(10);
	}
	assert_int_equal(test_compare(store, sequence, 1), 0);
	kvc_sequence_close(sequence, 0);
	kvc_close(store);
	assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"reserved\"}", 0, 1000));
}

static void test_verified_from_afar(void **state)
{
	struct kvc_store *writer = test_connect(&fixture, "writer");
	struct kvc_store *reader = test_connect(&fixture, "reader");
	struct kvc_sequence *sequence = NULL;
	uint32_t count;

	(void)state;
	test_store_prompt(writer, 1);
	assert_ok(test_open(reader, NULL, 1, &sequence));
	kvc_sequence_segments(sequence, &count);
	assert_int_equal(count, CUTS);
	assert_int_equal(test_compare(reader, sequence, 1), 0);
	kvc_sequence_close(sequence, 0);
	kvc_close(reader);
	kvc_close(writer);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_fold, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_corrupt_write, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_many_units, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_limits, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_many_regions, set_up_regions, tear_down),
	    cmocka_unit_test_setup_teardown(test_growth, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_failing_gets, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_a_path_that_stays_closed, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_verified_reads, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_verified_reads, set_up_verified, tear_down),
	    cmocka_unit_test_setup_teardown(test_failing_attach, set_up, tear_down),
	};

	/* The others put faults into a transport that reaches memory. */
	const struct CMUnitTest stream[] = {
	    cmocka_unit_test_setup_teardown(test_fold, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_many_units, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_limits, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_many_regions, set_up_regions, tear_down),
	    cmocka_unit_test_setup_teardown(test_growth, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_verified_from_afar, set_up_verified, tear_down),
	};

	signal(SIGPIPE, SIG_IGN);
	test_program = argv[0];
	test_transport = argc > 1 ? argv[1] : "map";
	if (argc > 2) cmocka_set_test_filter(argv[2]);
	if (is_stream()) return cmocka_run_group_tests(stream, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
