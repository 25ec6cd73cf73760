/* Continuations of one prefix by two workers, and turns of one conversation: the arena grows by
 * what is new only. The argument is the transport. */
#include "tests/lib/store_client_test.h"

#include <signal.h>

enum { SEED = 7, FORKS = 4 };

const char *test_transport;

static struct store_fixture fixture;
static const struct kvc_cut cuts[CUTS] = {
    {CUT_ONE, KVW_CLUSTERED}, {CUT_TWO, KVW_CLUSTERED}, {PROMPT_TOKENS, KVW_PLAIN}};

static int set_up(void **state)
{
	char transport[32];
	const char *const arguments[] = {transport, NULL};

	(void)state;
	snprintf(transport, sizeof transport, "--transport=%s", test_transport);
	return store_fixture_init(&fixture) && store_fixture_start(&fixture, arguments) ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	return store_fixture_deinit(&fixture, false) ? 0 : -1;
}

/* In use by somebody, or kept. */
static double held(void)
{
	return store_fixture_stat(&fixture, "arena_bytes{state=\"cached\"}") +
	       store_fixture_stat(&fixture, "arena_bytes{state=\"leased\"}");
}

/* The first `count` cuts; tokens from `from` on are those of `fork`. */
static void open_fork(struct kvc_store *store, uint32_t count, uint32_t from, int32_t fork,
    uint32_t shared, struct kvc_sequence **sequence)
{
	int32_t prompt[PROMPT_TOKENS], other[PROMPT_TOKENS];
	struct kvc_open_request request = {
	    .prompt = prompt, .prompt_tokens = cuts[count - 1].end, .cuts = cuts, .cut_count = count};
	uint32_t found;

	test_prompt(prompt, SEED);
	test_prompt(other, SEED + fork);
	for (uint32_t i = from; i < PROMPT_TOKENS; i++)
		prompt[i] = other[i];
	assert_ok(kvc_sequence_open(store, &request, sequence));
	kvc_sequence_segments(*sequence, &found);
	assert_int_equal(found, shared);
}

/* Write the segments from cut `first` up to `count`; the bytes of all are those of SEED. */
static void write_cuts(struct kvc_sequence *sequence, uint32_t first, uint32_t count)
{
	for (uint32_t i = first; i < count; i++) {
		uint32_t start = i ? cuts[i - 1].end : 0;
		struct kvc_new_segment wanted = {start, cuts[i].end - start, cuts[i].kind, KVW_EXACT};
		const struct kvc_segment *segment = NULL;

		assert_ok(kvc_reserve(sequence, &wanted, 1, &segment));
		assert_ok(test_write_segment(sequence, segment, SEED));
		assert_ok(kvc_commit(sequence, &segment, 1, NULL, 0, NULL, 0));
	}
}

static void test_forks(void **state)
{
	struct kvc_store *workers[2] = {test_connect(&fixture, "a"), test_connect(&fixture, "b")};
	struct kvc_sequence *trunk = NULL, *forks[FORKS] = {NULL};
	double before, grown = 0;

	(void)state;
	open_fork(workers[0], 2, PROMPT_TOKENS, 0, 0, &trunk);
	write_cuts(trunk, 0, 2);
	for (int i = 0; i < FORKS; i++) {
		before = held();
		open_fork(workers[i % 2], CUTS, CUT_TWO, i, 2, &forks[i]);
		assert_true(held() == before);
		write_cuts(forks[i], 2, CUTS);
		if (i == 0) grown = held() - before;
		/* Each adds its own tail, which is far less than the trunk. */
		assert_true(grown > 0 && held() - before == grown);
		assert_true(grown * 4 < before);
	}
	for (int i = 0; i < FORKS; i++) {
		assert_int_equal(test_compare(workers[i % 2], forks[i], SEED), 0);
		kvc_sequence_close(forks[i], 0);
	}
	kvc_sequence_close(trunk, 0);
	kvc_close(workers[1]);
	kvc_close(workers[0]);
}

/* Each turn is asked of the other worker, and writes what the turn before did not have. */
static void test_turns(void **state)
{
	struct kvc_store *workers[2] = {test_connect(&fixture, "a"), test_connect(&fixture, "b")};
	struct kvc_sequence *turn = NULL;
	double before;

	(void)state;
	for (uint32_t count = 1; count <= CUTS; count++) {
		open_fork(workers[count % 2], count, PROMPT_TOKENS, 0, count - 1, &turn);
		write_cuts(turn, count - 1, count);
		assert_int_equal(test_compare(workers[count % 2], turn, SEED), 0);
		kvc_sequence_close(turn, 0);
	}
	before = held();
	open_fork(workers[0], CUTS, PROMPT_TOKENS, 0, CUTS, &turn);
	assert_int_equal(test_compare(workers[0], turn, SEED), 0);
	assert_true(held() == before);
	assert_true(store_fixture_wait_stat(&fixture, "segments{state=\"committed\"}", CUTS, 0));
	kvc_sequence_close(turn, 0);
	kvc_close(workers[1]);
	kvc_close(workers[0]);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_forks, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(test_turns, set_up, tear_down),
	};

	signal(SIGPIPE, SIG_IGN);
	test_transport = argc > 1 ? argv[1] : "map";
	return cmocka_run_group_tests(tests, NULL, NULL);
}
