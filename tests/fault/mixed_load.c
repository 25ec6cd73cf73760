/* An hour's mixed load in minutes: a kvstored whose memory is always too little, store clients with
 * made-up key/values, two gpu-workers, long and short prompts, clients that are killed, that end
 * without a word, that hang up. What must hold: every byte that comes back is right, memory and
 * descriptors level off, nothing is left of those who went, and no error that is not asked for.
 *
 *     mixed_load [--seconds N] [--seed N] [--transport map|ucx] [--record FILE] [--json]
 */
#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/random.h"
#include "tests/fault/mixed_load.h"
#include "tests/fault/mixed_trace.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum {
	CLIENTS = 4,
	HTTP_CLIENTS = 3,
	PLACES = CLIENTS + HTTP_CLIENTS,
	WATCHED = 1 + MIXED_WORKERS, /* the store and the workers */
	MOST_SAMPLES = 4096,
	STATS_BYTES = 256 << 10,
	TICK_MS = 20,
	GONE_MS = 60000, /* until nothing is left of the dead, on a busy machine */
	FIRST_LOGGED_MS = 100
};

/* What may still grow between the middle and the last third of the time. */
#define GROWTH_KIB         4096.0
#define GROWTH_PART        0.05
#define GROWTH_DESCRIPTORS 8.0

struct process_sample {
	double resident_kib, shared_kib, descriptors; /* shared_kib: its part of shared memory */
};

struct sample {
	double second;
	struct process_sample processes[WATCHED];
	double free, reserved, leased, cached, quarantined, regions, sequences, workers, evictions;
};

struct place {
	pid_t pid; /* 0: none */
	unsigned started;
	uint64_t kill_ms; /* 0: it ends by itself */
};

struct load {
	unsigned seconds, seed;
	const char *record;
	bool json;
	struct mixed_plan plan;
	struct store_fixture store;
	struct serve_fixture workers[MIXED_WORKERS];
	struct kv_random random;
	struct mixed_tally *tallies; /* [PLACES], shared with the processes */
	struct place places[PLACES];
	unsigned clients_started, killed, failures;
	struct sample *samples, before, after;
	unsigned sample_count;
};

static struct load load = {.seconds = 8, .seed = 1, .plan = {.transport = "map", .record = -1}};

uint64_t mixed_hash(uint64_t value)
{
	value += UINT64_C(0x9e3779b97f4a7c15);
	value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
	return value ^ value >> 31;
}

void mixed_error(struct mixed_tally *tally, const char *what, const char *text)
{
	if (tally->errors++ == 0)
		snprintf(tally->first_error, sizeof tally->first_error, "%s: %.200s", what, text);
}

static void expect(bool holds, const char *what, double found, double wanted)
{
	if (holds) return;
	load.failures++;
	fprintf(stderr, "mixed_load: %s: %g, wanted %g\n", what, found, wanted);
}

/* ---- samples ---- */

static double descriptors_of(pid_t pid)
{
	char path[64];
	DIR *directory;
	double count = 0;

	snprintf(path, sizeof path, "/proc/%ld/fd", (long)pid);
	directory = opendir(path);
	if (!directory) return -1;
	while (readdir(directory))
		count++;
	closedir(directory);
	return count - 2;
}

static struct process_sample look_at(pid_t pid)
{
	struct process_sample sample = {.descriptors = descriptors_of(pid)};
	char path[64], line[256];
	double number;
	FILE *file;

	snprintf(path, sizeof path, "/proc/%ld/smaps_rollup", (long)pid);
	file = fopen(path, "r");
	while (file && fgets(line, sizeof line, file)) {
		if (sscanf(line, "Rss: %lf", &number) == 1) sample.resident_kib = number;
		if (sscanf(line, "Pss_Shmem: %lf", &number) == 1) sample.shared_kib = number;
	}
	if (file) fclose(file);
	return sample;
}

static double number_in(const char *stats, const char *name)
{
	char wanted[128];
	const char *found;

	snprintf(wanted, sizeof wanted, "STAT %s ", name);
	found = strstr(stats, wanted);
	return found ? strtod(found + strlen(wanted), NULL) : -1;
}

static struct sample take_sample(double second)
{
	static char stats[STATS_BYTES];
	struct sample sample = {.second = second};

	sample.processes[0] = look_at(load.store.pid);
	for (int i = 0; i < MIXED_WORKERS; i++)
		sample.processes[1 + i] = look_at(load.workers[i].pid);
	if (!store_fixture_ask(&load.store, "stats", stats, sizeof stats)) {
		expect(false, "the stats socket answers", 0, 1);
		return sample;
	}
	sample.free = number_in(stats, "arena_bytes{state=\"free\"}");
	sample.reserved = number_in(stats, "arena_bytes{state=\"reserved\"}");
	sample.leased = number_in(stats, "arena_bytes{state=\"leased\"}");
	sample.cached = number_in(stats, "arena_bytes{state=\"cached\"}");
	sample.quarantined = number_in(stats, "arena_bytes{state=\"quarantined\"}");
	sample.regions = number_in(stats, "regions_bytes");
	sample.sequences = number_in(stats, "sequences{state=\"active\"}");
	sample.workers = number_in(stats, "workers{state=\"connected\"}");
	sample.evictions = number_in(stats, "evictions_total");
	/* One answer is one moment: its parts are the whole. */
	const double parts =
	    sample.free + sample.reserved + sample.leased + sample.cached + sample.quarantined;

	expect(parts >= sample.regions && parts <= sample.regions, "the arena's parts", parts,
	    sample.regions);
	return sample;
}

static void print_sample(const struct sample *sample)
{
	const double mib = 1 << 20;

	if (load.json) return;
	printf("%5.0f", sample->second);
	for (int i = 0; i < WATCHED; i++)
		printf(" %7.1f %4.0f", sample->processes[i].resident_kib / 1024,
		    sample->processes[i].descriptors);
	printf(" %7.1f %7.1f %7.1f %7.1f %5.0f %4.0f %9.0f\n", sample->processes[0].shared_kib / 1024,
	    sample->leased / mib, sample->cached / mib, sample->quarantined / mib, sample->sequences,
	    sample->workers, sample->evictions);
	fflush(stdout);
}

static void print_head(void)
{
	if (load.json) return;
	printf("mixed load, %u s, %s, seed %u (MiB; fds: open descriptors)\n", load.seconds,
	    load.plan.transport, load.seed);
	printf("%5s %7s %4s %7s %4s %7s %4s %7s %7s %7s %7s %5s %4s %9s\n", "s", "store", "fds",
	    "worker", "fds", "worker", "fds", "shared", "leased", "cached", "quarant", "seqs", "conn",
	    "evictions");
}

/* ---- processes ---- */

static void start_place(unsigned number)
{
	struct place *place = &load.places[number];
	const pid_t parent = getpid();
	const unsigned seed = load.seed * 100000 + number * 1000 + place->started;
	/* The first stays, two are killed, one leaves or ends without a word. */
	const enum mixed_way way = number != CLIENTS - 1 ? MIXED_STAYS
	                           : place->started % 2  ? MIXED_RUDE
	                                                 : MIXED_LEAVES;

	fflush(stdout);
	place->pid = fork();
	if (place->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent) _exit(1);
		if (number < CLIENTS)
			mixed_client_run(&load.plan, way, seed, &load.tallies[number]);
		else
			mixed_http_run(&load.plan, seed, &load.tallies[number]);
		_exit(0);
	}
	place->started++;
	load.clients_started += number < CLIENTS;
	place->kill_ms = number == 1 || number == 2 ? store_fixture_now() + FIRST_LOGGED_MS +
	                                                  kv_random_below(&load.random, 2000)
	                                            : 0;
}

static void look_after(unsigned number)
{
	struct place *place = &load.places[number];
	const uint64_t now = store_fixture_now();
	int status;

	if (place->pid > 0 && place->kill_ms && now >= place->kill_ms) {
		kill(place->pid, SIGKILL);
		load.killed++;
		place->kill_ms = 0;
		waitpid(place->pid, &status, 0);
		place->pid = 0;
	} else if (place->pid > 0 && waitpid(place->pid, &status, WNOHANG) == place->pid) {
		place->pid = 0;
		expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a client's end", status, 0);
	}
	if (place->pid <= 0 && now < load.plan.end_ms) start_place(number);
}

static bool any_left(void)
{
	for (unsigned i = 0; i < PLACES; i++)
		if (load.places[i].pid > 0) return true;
	return false;
}

static void run_load(void)
{
	const uint64_t start = store_fixture_now();
	uint64_t next = start + 1000;

	load.plan.end_ms = start + load.seconds * UINT64_C(1000);
	do {
		for (unsigned i = 0; i < PLACES; i++)
			look_after(i);
		if (store_fixture_now() >= next && load.sample_count < MOST_SAMPLES &&
		    next <= load.plan.end_ms) {
			struct sample *sample = &load.samples[load.sample_count++];

			*sample = take_sample((double)(store_fixture_now() - start) / 1000);
			print_sample(sample);
			next += 1000;
		}
		store_fixture_sleep(TICK_MS);
	} while (any_left() || store_fixture_now() < load.plan.end_ms);
}

/* ---- verdict ---- */

static struct mixed_tally sum_tallies(void)
{
	struct mixed_tally sum = {0};

	for (unsigned i = 0; i < PLACES; i++) {
		const struct mixed_tally *one = &load.tallies[i];

		sum.rounds += one->rounds;
		sum.opened += one->opened;
		sum.asked_tokens += one->asked_tokens;
		sum.shared_tokens += one->shared_tokens;
		sum.stored_segments += one->stored_segments;
		sum.compared_bytes += one->compared_bytes;
		sum.wrong_units += one->wrong_units;
		sum.full += one->full;
		sum.kept += one->kept;
		sum.resumed += one->resumed;
		sum.not_there += one->not_there;
		sum.taken += one->taken;
		sum.answers += one->answers;
		sum.answers_full += one->answers_full;
		sum.hung_up += one->hung_up;
		sum.errors += one->errors;
		if (one->errors) fprintf(stderr, "mixed_load: place %u: %s\n", i, one->first_error);
	}
	return sum;
}

static double most(unsigned process, unsigned from, unsigned to, bool descriptors)
{
	double found = 0;

	for (unsigned i = from; i < to; i++) {
		const struct process_sample *sample = &load.samples[i].processes[process];
		const double value = descriptors ? sample->descriptors : sample->resident_kib;

		if (value > found) found = value;
	}
	return found;
}

/* The most of the last third is not above the most of the middle third, but for a margin. */
static void check_levels(void)
{
	static const char *const names[WATCHED] = {"store", "worker", "second worker"};
	const unsigned third = load.sample_count / 3;

	expect(load.sample_count * 2 >= load.seconds, "samples", load.sample_count, load.seconds);
	for (unsigned i = 0; i < WATCHED && third > 0; i++) {
		const double middle = most(i, third, 2 * third, false);
		const double last = most(i, 2 * third, load.sample_count, false);
		const double middle_open = most(i, third, 2 * third, true);
		const double last_open = most(i, 2 * third, load.sample_count, true);
		char text[64];

		snprintf(text, sizeof text, "resident KiB of the %s level off", names[i]);
		/* A sanitizer keeps what was freed. */
		if (!SANITIZED) expect(last <= middle * (1 + GROWTH_PART) + GROWTH_KIB, text, last, middle);
		snprintf(text, sizeof text, "descriptors of the %s level off", names[i]);
		expect(last_open <= middle_open + GROWTH_DESCRIPTORS, text, last_open, middle_open);
	}
}

static void settles(const char *name, double value)
{
	expect(store_fixture_wait_stat(&load.store, name, value, GONE_MS), name,
	    store_fixture_stat(&load.store, name), value);
}

/* Nothing is left of the clients; then nothing at all, once the store is told to evict. */
static void check_left(void)
{
	char answer[256];

	settles("workers{state=\"connected\"}", MIXED_WORKERS);
	settles("sequences{state=\"active\"}", 0);
	settles("sequences{state=\"orphaned\"}", 0);
	settles("segment_references", 0);
	settles("segments{state=\"reserved\"}", 0);
	settles("segments{state=\"quarantined\"}", 0);
	settles("arena_bytes{state=\"leased\"}", 0);
	settles("arena_bytes{state=\"quarantined\"}", 0);
	expect(store_fixture_ask(&load.store, "evict", answer, sizeof answer), "evict answers", 0, 1);
	settles("segments{state=\"committed\"}", 0);
	settles("arena_bytes{state=\"cached\"}", 0);
	settles("regions_bytes", 0);
	load.after = take_sample(0);
	for (unsigned i = 0; i < WATCHED; i++)
		expect(load.after.processes[i].descriptors <= load.before.processes[i].descriptors,
		    i ? "a worker's descriptors at the end" : "the store's descriptors at the end",
		    load.after.processes[i].descriptors, load.before.processes[i].descriptors);
}

static void check_counters(const struct mixed_tally *sum)
{
	static char stats[STATS_BYTES];
	double ended;

	if (!store_fixture_ask(&load.store, "stats", stats, sizeof stats)) stats[0] = '\0';
	ended = number_in(stats, "worker_disconnects_total{reason=\"closed\"}") +
	        number_in(stats, "worker_disconnects_total{reason=\"died\"}");
	expect(ended <= load.clients_started && ended + load.killed >= load.clients_started,
	    "connections that ended", ended, load.clients_started);
#define NONE(name) expect(!(number_in(stats, name) > 0), name, number_in(stats, name), 0)
	NONE("worker_disconnects_total{reason=\"protocol\"}");
	NONE("worker_disconnects_total{reason=\"timeout\"}");
	NONE("checksum_mismatches_total");
	NONE("commits_total{result=\"corrupt\"}");
	NONE("lease_expiries_total");
#undef NONE
	/* A commit that its worker's death overtook. */
	ended = number_in(stats, "commits_total{result=\"stale\"}");
	expect(ended <= load.killed, "stale commits", ended, load.killed);
#define AT_LEAST(name, least)                                                                      \
	expect(number_in(stats, name) >= (double)(least), name, number_in(stats, name), (double)(least))
	AT_LEAST("sequences_opened_total", sum->opened);
	AT_LEAST("sequences_resumed_total", sum->resumed);
	AT_LEAST("prefix_lookup_tokens_total", sum->asked_tokens);
	AT_LEAST("prefix_hit_tokens_total{how=\"shared\"}", sum->shared_tokens);
	AT_LEAST("reserve_failures_total", sum->full);
	AT_LEAST("evictions_total", 1);
#undef AT_LEAST
}

static void print_sum(const struct mixed_tally *sum)
{
	if (load.json) {
		printf("{\"seconds\":%u,\"transport\":\"%s\",\"seed\":%u,\"failures\":%u,"
		       "\"clients\":%u,\"killed\":%u,\"opened\":%" PRIu64 ",\"asked_tokens\":%" PRIu64
		       ",\"shared_tokens\":%" PRIu64 ",\"compared_bytes\":%" PRIu64
		       ",\"wrong_units\":%" PRIu64 ",\"full\":%" PRIu64 ",\"kept\":%" PRIu64
		       ",\"resumed\":%" PRIu64 ",\"answers\":%" PRIu64 ",\"answers_full\":%" PRIu64
		       ",\"hung_up\":%" PRIu64 ",\"errors\":%" PRIu64 "}\n",
		    load.seconds, load.plan.transport, load.seed, load.failures, load.clients_started,
		    load.killed, sum->opened, sum->asked_tokens, sum->shared_tokens, sum->compared_bytes,
		    sum->wrong_units, sum->full, sum->kept, sum->resumed, sum->answers, sum->answers_full,
		    sum->hung_up, sum->errors);
		return;
	}
	printf("store clients: %u, %u killed; %" PRIu64 " prompts of %" PRIu64 " tokens, %" PRIu64
	       " found; %" PRIu64 " MiB compared, %" PRIu64 " units wrong\n",
	    load.clients_started, load.killed, sum->opened, sum->asked_tokens, sum->shared_tokens,
	    sum->compared_bytes >> 20, sum->wrong_units);
	printf("refused for memory: %" PRIu64 "; kept %" PRIu64 ", resumed %" PRIu64
	       ", not there %" PRIu64 ", taken %" PRIu64 "\n",
	    sum->full, sum->kept, sum->resumed, sum->not_there, sum->taken);
	printf("HTTP: %" PRIu64 " answers, %" PRIu64 " refused for memory, %" PRIu64 " hung up\n",
	    sum->answers, sum->answers_full, sum->hung_up);
	printf(
	    "errors that nothing asked for: %" PRIu64 "; failures: %u\n", sum->errors, load.failures);
}

static void judge(void)
{
	const struct mixed_tally sum = sum_tallies();

	check_levels();
	check_left();
	check_counters(&sum);
	expect(sum.errors == 0, "errors", (double)sum.errors, 0);
	expect(sum.wrong_units == 0, "wrong units", (double)sum.wrong_units, 0);
	expect(sum.compared_bytes > 0 && sum.shared_tokens > 0, "prompts found again",
	    (double)sum.shared_tokens, 1);
	expect(sum.answers > 0, "answers", (double)sum.answers, 1);
	expect(load.killed > 0, "killed", load.killed, 1);
	print_sum(&sum);
}

/* ---- all of it ---- */

static bool set_up(void)
{
	char transport[32];
	const char *const store[] = {transport, "--memory=16MiB", "--region=4MiB", "--lease=30s",
	    "--heartbeat=500ms", "--orphan-timeout=2s", "--release-idle=1s", "--log-level=warning",
	    NULL};
	const char *const worker[] = {"--model", KV_TINY_MODELS "/tiny_llama.gguf", "--store",
	    load.store.address, "--transport", load.plan.transport, "--budget", "48", "--sinks", "4",
	    "--window", "32", "--fold", "32", "--segment", "256", "--cluster-tokens", "8",
	    "--call-timeout", "20s", "--fetch-timeout", "20s", NULL};
	FILE *shared = tmpfile();
	const size_t bytes = PLACES * sizeof *load.tallies;

	snprintf(transport, sizeof transport, "--transport=%s", load.plan.transport);
	kv_random_seed(&load.random, load.seed);
	load.samples = calloc(MOST_SAMPLES, sizeof *load.samples);
	if (!load.samples || !shared || ftruncate(fileno(shared), (off_t)bytes) != 0) return false;
	load.tallies = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(shared), 0);
	fclose(shared);
	if (load.tallies == MAP_FAILED || !store_fixture_init(&load.store) ||
	    !store_fixture_start(&load.store, store))
		return false;
	for (int i = 0; i < MIXED_WORKERS; i++)
		if (!serve_fixture_start(&load.workers[i], worker, true)) return false;
	load.plan.store = &load.store;
	load.plan.workers = load.workers;
	return !load.record || mixed_trace_open(&load.plan.record);
}

static void tear_down(bool started)
{
	for (int i = 0; i < MIXED_WORKERS; i++)
		if (!serve_fixture_stop(&load.workers[i], !started)) load.failures++;
	if (!store_fixture_deinit(&load.store, !started || load.failures > 0)) load.failures++;
	if (load.record && started && !mixed_trace_write(load.plan.record, load.record))
		load.failures++;
	free(load.samples);
}

static bool parse(int count, char **arguments)
{
	for (int i = 1; i < count; i++) {
		const bool more = i + 1 < count;

		if (strcmp(arguments[i], "--json") == 0)
			load.json = true;
		else if (more && strcmp(arguments[i], "--seconds") == 0)
			load.seconds = (unsigned)strtoul(arguments[++i], NULL, 10);
		else if (more && strcmp(arguments[i], "--seed") == 0)
			load.seed = (unsigned)strtoul(arguments[++i], NULL, 10);
		else if (more && strcmp(arguments[i], "--transport") == 0)
			load.plan.transport = arguments[++i];
		else if (more && strcmp(arguments[i], "--record") == 0)
			load.record = arguments[++i];
		else
			return false;
	}
	return load.seconds >= 3 && load.seconds <= MOST_SAMPLES;
}

int main(int count, char **arguments)
{
	bool started;

	if (!parse(count, arguments)) {
		fprintf(stderr, "usage: mixed_load [--seconds 3...] [--seed N] [--transport map|ucx] "
		                "[--record FILE] [--json]\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	kv_log_set_level(KV_LOG_ERROR);
	started = set_up();
	if (started) {
		load.before = take_sample(0);
		print_head();
		run_load();
		judge();
	}
	tear_down(started);
	return started && load.failures == 0 ? 0 : 1;
}
