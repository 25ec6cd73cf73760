/* kvctl bench: fetches and commits beside memcpy of the same sizes.
 *
 * Each case is measured in pairs of short slices, one of memcpy and one of the thing itself, by all
 * clients at once. The ratio is the median of the pairs' ratios, so that what the machine does
 * meanwhile meets both.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "kvstore/ctl/bench.h"

enum { SLICE_NS = 15 * 1000 * 1000, MAX_PAIRS = 1024 };

static const struct bench_case cases[] = {
    {false, 8 << 10, 1, false},
    {false, 8 << 10, 64, false},
    {false, 4 << 10, 128, true}, /* a decode step's */
    {false, 40 << 10, 64, false},
    {false, 64 << 10, 1, false},
    {false, 64 << 10, 16, false},
    {false, 256 << 10, 1, false},
    {false, 1 << 20, 1, false},
    {false, 1 << 20, 8, false},
    {false, 4 << 20, 1, false},
    {false, 16 << 20, 1, false},
    {true, 8 << 10, 1, false},
    {true, 64 << 10, 1, false},
    {true, 256 << 10, 1, false},
    {true, 1 << 20, 1, false},
    {true, 4 << 20, 1, false},
    {true, 16 << 20, 1, false},
    {true, 64 << 10, 64, false},
    {true, 1 << 20, 16, false},
};
enum { CASES = sizeof cases / sizeof cases[0] };

struct crew;

struct member {
	struct crew *crew;
	uint32_t index;
	pthread_t thread;
	struct bench_tally plain, real; /* of the last pair */
	uint64_t ended_ns;              /* its last slice */
	enum kv_status status;
	char message[512]; /* of the status; the thread's own is gone with it */
};

/* The clients of one run. They meet at the barrier before and after each slice. */
struct crew {
	const struct bench_run *run;
	bool first; /* prints the heading */
	uint32_t count, pairs;
	uint64_t slice_ns, started_ns; /* of the slice that runs */
	pthread_mutex_t start;         /* held until all threads are there */
	pthread_barrier_t barrier;
	atomic_bool failed;
	struct member members[BENCH_MAX_CLIENTS];
	struct bench_client *clients[BENCH_MAX_CLIENTS];
	double rates[MAX_PAIRS], plain_rates[MAX_PAIRS], ratios[MAX_PAIRS];
};

/* All see the same answer: nobody sets it between this barrier and the next. */
static bool meet(struct crew *crew)
{
	pthread_barrier_wait(&crew->barrier);
	return !atomic_load_explicit(&crew->failed, memory_order_acquire);
}

static void give_up(struct member *member, enum kv_status status)
{
	if (member->status == KV_OK) {
		member->status = status;
		snprintf(member->message, sizeof member->message, "%s", kv_error_message());
	}
	atomic_store_explicit(&member->crew->failed, true, memory_order_release);
}

/* One after the other: the first writes what the others find. */
static bool open_in_turn(struct member *member)
{
	struct crew *crew = member->crew;

	for (uint32_t turn = 0; turn < crew->count; turn++) {
		if (turn == member->index) {
			enum kv_status status =
			    bench_client_open(crew->run, turn, &crew->clients[member->index]);

			if (status != KV_OK) give_up(member, status);
		}
		if (!meet(crew)) return false;
	}
	return true;
}

/* Of all clients in the slice that has just ended. One client's time is that of its calls. Several
 * share processors, so that the time in which all of them did their work is what counts. */
static double slice_rate(const struct crew *crew, bool plain)
{
	uint64_t nanoseconds = 0;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < crew->count; i++) {
		const struct member *member = &crew->members[i];
		const struct bench_tally *tally = plain ? &member->plain : &member->real;
		uint64_t taken =
		    crew->count == 1 ? tally->nanoseconds : member->ended_ns - crew->started_ns;

		bytes += tally->bytes;
		if (taken > nanoseconds) nanoseconds = taken;
	}
	return nanoseconds ? (double)bytes * 1e9 / (double)nanoseconds : 0;
}

static void add_slice(struct crew *crew, uint32_t pair, bool plain, struct bench_result *result)
{
	*(plain ? &crew->plain_rates[pair] : &crew->rates[pair]) = slice_rate(crew, plain);
	for (uint32_t i = 0; i < crew->count && !plain; i++)
		result->calls += crew->members[i].real.calls;
}

static void take_slice(struct member *member, const struct bench_case *measured, bool plain)
{
	struct crew *crew = member->crew;
	enum kv_status status = bench_client_slice(crew->clients[member->index], measured, plain,
	    crew->started_ns + crew->slice_ns, plain ? &member->plain : &member->real);

	member->ended_ns = kv_now_ns();
	if (status != KV_OK) give_up(member, status);
}

/* All begin at once, and none goes on before the last has ended. */
static bool take_slice_together(
    struct member *member, const struct bench_case *measured, bool plain)
{
	struct crew *crew = member->crew;

	if (!meet(crew)) return false;
	if (member->index == 0) crew->started_ns = kv_now_ns();
	if (!meet(crew)) return false;
	take_slice(member, measured, plain);
	return meet(crew);
}

/* False when a client has failed. */
static bool run_case(struct member *member, const struct bench_case *measured)
{
	struct crew *crew = member->crew;
	struct bench_result result = {.measured = measured, .clients = crew->count};

	/* Once without counting: pages and caches are then as they will be. */
	if (!take_slice_together(member, measured, false)) return false;
	bench_client_begin(crew->clients[member->index]);
	for (uint32_t half = 0; half < 2 * crew->pairs; half++) {
		uint32_t pair = half / 2;
		bool plain = (half + pair) % 2 == 0;

		if (!take_slice_together(member, measured, plain)) return false;
		if (member->index != 0) continue;
		add_slice(crew, pair, plain, &result);
		if (half % 2 && crew->plain_rates[pair] > 0)
			crew->ratios[pair] = crew->rates[pair] / crew->plain_rates[pair];
	}
	if (member->index == 0) {
		enum kv_status status = bench_percentiles(crew->clients, crew->count, &result);

		if (status != KV_OK) give_up(member, status);
		result.rate = bench_median(crew->rates, crew->pairs);
		result.plain_rate = bench_median(crew->plain_rates, crew->pairs);
		result.ratio = bench_median(crew->ratios, crew->pairs);
		bench_print(crew->run->settings, &result);
	}
	return meet(crew);
}

static void *run_member(void *context)
{
	struct member *member = context;
	struct crew *crew = member->crew;
	bool going;

	pthread_mutex_lock(&crew->start);
	pthread_mutex_unlock(&crew->start);
	/* Without all of them the barrier would never open. */
	if (atomic_load_explicit(&crew->failed, memory_order_acquire)) return NULL;
	if (crew->count > 1) bench_pin(member->index);
	going = open_in_turn(member);
	if (going && crew->first && member->index == 0)
		bench_print_head(crew->run->settings, crew->clients[0], crew->run);
	for (int i = 0; going && i < CASES; i++)
		going = run_case(member, &cases[i]);
	bench_client_close(crew->clients[member->index]);
	return NULL;
}

static uint32_t start_members(struct crew *crew)
{
	uint32_t started = 0;

	pthread_mutex_lock(&crew->start);
	for (; started < crew->count; started++) {
		struct member *member = &crew->members[started];

		member->crew = crew;
		member->index = started;
		if (pthread_create(&member->thread, NULL, run_member, member) != 0) break;
	}
	if (started < crew->count) atomic_store_explicit(&crew->failed, true, memory_order_release);
	pthread_mutex_unlock(&crew->start);
	return started;
}

static enum kv_status run_crew(struct crew *crew)
{
	uint32_t started;
	enum kv_status status = KV_OK;

	if (pthread_barrier_init(&crew->barrier, NULL, crew->count) != 0)
		return kv_fail(KV_NO_MEMORY, "cannot make a barrier");
	pthread_mutex_init(&crew->start, NULL);
	started = start_members(crew);
	for (uint32_t i = 0; i < started; i++)
		pthread_join(crew->members[i].thread, NULL);
	if (started < crew->count)
		status = kv_fail(KV_LIMIT, "cannot start %u threads, only %u", crew->count, started);
	for (uint32_t i = 0; i < started && status == KV_OK; i++)
		if (crew->members[i].status != KV_OK)
			status = kv_fail(crew->members[i].status, "%s", crew->members[i].message);
	pthread_mutex_destroy(&crew->start);
	pthread_barrier_destroy(&crew->barrier);
	return status;
}

static uint32_t pairs_of(const struct ctl_settings *settings, uint64_t slice_ns)
{
	double pairs = settings->seconds * 1e9 / (2.0 * (double)slice_ns);

	if (pairs < 1) return 1;
	return pairs < MAX_PAIRS ? (uint32_t)pairs : MAX_PAIRS;
}

/* 1, 2, 4 and so on, the last of them what was asked for. */
static enum kv_status run_all(const struct bench_run *run)
{
	uint32_t most = run->settings->clients;
	enum kv_status status = KV_OK;

	for (uint32_t count = 1; status == KV_OK; count = count * 2 < most ? count * 2 : most) {
		struct crew *crew = kv_alloc_zero(kv_heap(), sizeof *crew);

		if (!crew) return KV_NO_MEMORY;
		crew->run = run;
		crew->first = count == 1;
		crew->count = count;
		/* Long enough for each to have its turns on two processors. */
		crew->slice_ns = SLICE_NS * (uint64_t)(count < 2 ? 1 : count / 2);
		crew->pairs = pairs_of(run->settings, crew->slice_ns);
		status = run_crew(crew);
		kv_free(kv_heap(), crew);
		if (count == most) break;
	}
	return status;
}

/* Every word differs from its neighbours and from those of other units. */
static void fill(uint8_t *source, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i += sizeof i) {
		uint64_t word = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);

		memcpy(source + i, &word, sizeof word);
	}
}

enum kv_status ctl_bench(const struct ctl_settings *settings)
{
	uint64_t units = (settings->working_set + BENCH_UNIT_BYTES - 1) / BENCH_UNIT_BYTES;
	struct bench_run run = {.settings = settings, .units = (uint32_t)units};
	uint8_t *source = NULL;
	enum kv_status status;

	KV_TRY(bench_pages_make(units * BENCH_UNIT_BYTES, &source));
	fill(source, units * BENCH_UNIT_BYTES);
	run.source = source;
	status = run_all(&run);
	bench_pages_free(source, units * BENCH_UNIT_BYTES);
	return status;
}
