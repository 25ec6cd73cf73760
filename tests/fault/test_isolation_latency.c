/* How long an honest worker's fetches take while another user does its worst, beside how long they
 * take in peace, in turns. Prints the figures. Slow, and needs root. */
#include "tests/lib/store_client_test.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/transport/unix_socket.h"
#include "tests/fault/hostile_peer.h"

const char *test_transport = "map";
const char *test_program;

enum {
	HOSTILE_USER = 65534,
	ATTACKERS = 3,
	TURNS = 4,      /* of each kind */
	FETCHES = 1500, /* a turn */
	SEQUENCES = 32,
	READS = 24,
	READ_BYTES = 16 << 10,
	PAUSE_US = 300,
	WORST_US = 20000
};

static struct store_fixture fixture;

static int set_up(void **state)
{
	static const char *const arguments[] = {"--isolation", "--allow-uid=65534", "--memory=128MiB",
	    "--max-workers=32", "--max-sequences=512", "--frame-memory=64MiB", "--log-level=error",
	    NULL};

	(void)state;
	return hostile_store_start(&fixture, arguments) ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	return store_fixture_deinit(&fixture, false) ? 0 : -1;
}

/* ---- the attackers: each does its own thing until it is killed ---- */

static void open_without_end(void)
{
	struct hostile_peer peer;
	uint32_t status = 0;

	if (!hostile_connect(&peer, fixture.socket) || hostile_hello(&peer, -1, 0) != KV_OK) return;
	for (int32_t seed = 0; hostile_open(&peer, seed % 50, &status) || status == KV_LIMIT; seed++) {
	}
}

static void write_without_end(void)
{
	struct hostile_peer peer;
	uint32_t status = 0;
	uint64_t segment;

	if (!hostile_connect(&peer, fixture.socket) || hostile_hello(&peer, -1, 0) != KV_OK) return;
	segment = hostile_reserve(&peer, hostile_open(&peer, 1, &status));
	while (hostile_put(&peer, segment, test_unit_bytes(0, CUT_ONE, KVW_CLUSTERED, 0)) == KV_OK) {
	}
}

/* Half messages of the largest size, and answers that nobody reads. */
static void flood_without_end(void)
{
	static uint8_t block[1 << 16];
	uint32_t length = KV_CODEC_MAX_MESSAGE;

	for (;;) {
		int socket = -1;

		if (kv_unix_connect(fixture.socket, &socket) != KV_OK) continue;
		if (write(socket, &length, 4) == 4)
			for (int i = 0; i < 100 && write(socket, block, sizeof block) > 0; i++) {
			}
		close(socket);
	}
}

static pid_t start_attacker(int kind)
{
	void (*const attacks[ATTACKERS])(void) = {
	    open_without_end, write_without_end, flood_without_end};
	pid_t pid = fork();

	if (pid != 0) return pid;
	signal(SIGPIPE, SIG_IGN);
	hostile_become(HOSTILE_USER);
	for (;;)
		attacks[kind]();
}

/* ---- the honest worker ---- */

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* What an honest worker reads from: more than a cache holds. */
struct honest {
	struct kvc_store *store;
	struct kvc_sequence *sequences[SEQUENCES];
	const struct kvc_segment *segments[SEQUENCES];
	uint8_t *copy;
};

static void one_fetch(struct honest *honest, uint64_t number, uint64_t *ns)
{
	struct kvc_read reads[READS];
	uint64_t start;

	for (uint64_t i = 0; i < READS; i++) {
		const struct kvc_segment *segment = honest->segments[(number * 7 + i) % SEQUENCES];
		uint32_t layer = (uint32_t)(i % 3);
		uint64_t bytes = test_unit_bytes(segment->start, segment->tokens, segment->kind, layer);
		uint64_t offset = (number + i * 977) * 1024 % (bytes - READ_BYTES);

		reads[i] =
		    (struct kvc_read){segment, layer, offset, READ_BYTES, honest->copy + i * READ_BYTES};
	}
	start = kv_now_ns();
	assert_ok(kvc_fetch_start(honest->store, reads, READS));
	assert_ok(kvc_fetch_wait(honest->store));
	*ns = kv_now_ns() - start;
}

static void fetch_turn(struct honest *honest, uint64_t *times)
{
	const struct timespec pause = {.tv_nsec = PAUSE_US * 1000};

	for (uint64_t i = 0; i < FETCHES; i++) {
		one_fetch(honest, i, &times[i]);
		nanosleep(&pause, NULL);
	}
}

static void begin_honest(struct honest *honest)
{
	uint32_t count;

	honest->copy = malloc(READS * READ_BYTES);
	assert_non_null(honest->copy);
	honest->store = test_connect(&fixture, "honest");
	for (int32_t i = 0; i < SEQUENCES; i++) {
		assert_ok(test_open(honest->store, NULL, i, &honest->sequences[i]));
		assert_ok(test_write(honest->store, honest->sequences[i], i));
		honest->segments[i] = kvc_sequence_segments(honest->sequences[i], &count)[0];
	}
}

/* What it wrote is still what it reads. */
static void end_honest(struct honest *honest)
{
	for (int32_t i = 0; i < SEQUENCES; i++) {
		assert_int_equal(test_compare(honest->store, honest->sequences[i], i), 0);
		kvc_sequence_close(honest->sequences[i], 0);
	}
	kvc_close(honest->store);
	free(honest->copy);
}

static void attacked_turn(struct honest *honest, uint64_t *times)
{
	pid_t pids[ATTACKERS];
	int status;

	for (int i = 0; i < ATTACKERS; i++)
		pids[i] = start_attacker(i);
	store_fixture_sleep(100);
	fetch_turn(honest, times);
	for (int i = 0; i < ATTACKERS; i++) {
		/* It attacked to the end. */
		assert_int_equal(waitpid(pids[i], &status, WNOHANG), 0);
		kill(pids[i], SIGKILL);
		waitpid(pids[i], &status, 0);
	}
}

static void test_latency(void **state)
{
	enum { TOTAL = TURNS * FETCHES };
	uint64_t *quiet = calloc(TOTAL, sizeof *quiet), *attacked = calloc(TOTAL, sizeof *attacked);
	struct honest honest = {0};
	double p50[2], p99[2], worst;

	(void)state;
	begin_honest(&honest);
	for (int turn = 0; turn < TURNS; turn++) {
		fetch_turn(&honest, quiet + turn * FETCHES);
		attacked_turn(&honest, attacked + turn * FETCHES);
	}
	end_honest(&honest);
	qsort(quiet, TOTAL, sizeof *quiet, by_value);
	qsort(attacked, TOTAL, sizeof *attacked, by_value);
	p50[0] = (double)quiet[TOTAL / 2] / 1000;
	p50[1] = (double)attacked[TOTAL / 2] / 1000;
	p99[0] = (double)quiet[TOTAL / 100 * 99] / 1000;
	p99[1] = (double)attacked[TOTAL / 100 * 99] / 1000;
	printf("fetches of %d x %d KiB, microseconds: in peace p50 %.1f p99 %.1f, attacked p50 %.1f "
	       "p99 %.1f\n",
	    READS, READ_BYTES >> 10, p50[0], p99[0], p50[1], p99[1]);
	worst = 2 * p99[0] > WORST_US ? 2 * p99[0] : WORST_US;
	assert_true(p50[1] <= 2 * p50[0]);
	assert_true(p99[1] <= worst);
	free(quiet);
	free(attacked);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_latency, set_up, tear_down),
	};

	(void)argc;
	test_program = argv[0];
	if (!hostile_may_run()) return 77;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
