/* simulate: run seeds of the store's simulation. See simulation.h. */
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/runtime/fault_point.h"
#include "tests/simulation/simulation.h"

static const char *const plants[] = {"skip-generation-check", "skip-epoch-check",
    "forget-reference", "commit-before-checksum", NULL};

struct choice {
	uint64_t first, seeds;
	const char *plant;
	bool must_fail, trace;
};

static struct choice choice = {.first = 1, .seeds = 1000};

void sim_fail(const struct sim *sim, const char *format, ...)
{
	va_list arguments;

	printf("simulation: seed %" PRIu64 ", step %u, operation \"%s\": ", sim->seed, sim->step,
	    sim->operation);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\nto see it again: simulate --first %" PRIu64 " --seeds 1 --trace%s%s\n", sim->seed,
	    choice.plant ? " --plant " : "", choice.plant ? choice.plant : "");
	fflush(NULL);
	_Exit(1);
}

void sim_trace(const struct sim *sim, const char *format, ...)
{
	va_list arguments;

	if (!sim->trace) return;
	printf("%4u %s: ", sim->step, sim->operation);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
}

uint32_t sim_below(struct sim *sim, uint32_t bound)
{
	return (uint32_t)kv_random_below(&sim->world.random, bound);
}

bool sim_once_in(struct sim *sim, uint32_t of)
{
	return sim_below(sim, of) == 0;
}

/* ---- one seed ---- */

static void step(struct sim *sim)
{
	const uint32_t kind = sim_below(sim, 17);

	sim->may_evict = false;
	sim->only_tenant = -1;
	if (kind < 10)
		sim_work(sim);
	else if (kind < 12)
		sim_finish(sim);
	else if (kind < 14)
		sim_read_step(sim);
	else if (kind < 16)
		sim_life(sim);
	else
		sim_tier(sim);
	sim_trace(sim, "%u known, %u zombies", sim->truth_count, sim->zombie_count);
	sim_check_gone(sim);
	if (sim_once_in(sim, 8)) sim_check_all(sim);
}

static void run_seed(struct sim *sim, uint64_t seed)
{
	sim_start(sim, seed);
	for (sim->step = 1; sim->step <= SIM_STEPS; sim->step++)
		step(sim);
	sim_check_all(sim);
	sim->counts.steps += SIM_STEPS;
	sim_stop(sim);
}

static void add_counts(struct sim_counts *total, const struct sim_counts *one)
{
	uint64_t *to = (uint64_t *)total;
	const uint64_t *from = (const uint64_t *)one;

	for (size_t i = 0; i < sizeof *total / sizeof *to; i++)
		to[i] += from[i];
}

static void print_counts(const struct sim_counts *c, double seconds)
{
	printf("%" PRIu64 " seeds from %" PRIu64 " in %.1f s: %" PRIu64 " steps, %" PRIu64
	       " commits, %" PRIu64 " folds, %" PRIu64 " duplicates, %" PRIu64 " repeated, %" PRIu64
	       " corrupt, %" PRIu64 " stale\n",
	    choice.seeds, choice.first, seconds, c->steps, c->commits, c->folds, c->duplicates,
	    c->repeated, c->corrupt, c->stale);
	printf("tokens shared %" PRIu64 ", copied %" PRIu64 "; evictions %" PRIu64 ", refused %" PRIu64
	       ", growth failures %" PRIu64 ", allocation failures %" PRIu64 "\n",
	    c->shared, c->copied, c->evictions, c->refused, c->growth_failures, c->no_memory);
	printf("resumed %" PRIu64 ", entries found again %" PRIu64 ", leases lapsed %" PRIu64
	       ", zombies %" PRIu64 ", old handles refused %" PRIu64 ", reads %" PRIu64
	       ", reads refused %" PRIu64 ", restarts %" PRIu64 ", evicted for quotas %" PRIu64
	       ", refused for them %" PRIu64 "\n",
	    c->resumed, c->found_again, c->expiries, c->zombies, c->haunted, c->reads, c->reads_refused,
	    c->restarts, c->quota_evictions, c->quota_refusals);
	printf("pinned %" PRIu64 ", loaded %" PRIu64 ", loads that were wrong %" PRIu64
	       ", late %" PRIu64 ", refused %" PRIu64 ", of pieces %" PRIu64 "\n",
	    c->pins, c->loads, c->loads_wrong, c->loads_duplicate, c->loads_refused,
	    c->loads_of_pieces);
}

/* A run that avoids something tests nothing of it. */
static int judge(const struct sim_counts *c)
{
	const uint64_t *each = (const uint64_t *)c;

	if (choice.seeds < 200) return 0;
	for (size_t i = 0; i < sizeof *c / sizeof *each; i++) {
		if (each[i] > 0) continue;
		printf("something that the simulation is for never happened (count %zu)\n", i);
		return 1;
	}
	return 0;
}

static int run_seeds(void)
{
	struct sim *sim = calloc(1, sizeof *sim);
	struct sim_counts total = {0};
	const uint64_t start = kv_now_ns();
	uint64_t digest;

	if (!sim) return 1;
	sim->trace = choice.trace;
	for (uint64_t i = 0; i < choice.seeds; i++) {
		run_seed(sim, choice.first + i);
		add_counts(&total, &sim->counts);
	}
	digest = sim->digest;
	run_seed(sim, choice.first + choice.seeds - 1);
	SIM_REQUIRE(sim, sim->digest == digest, "the same seed went another way the second time");
	print_counts(&total, kv_seconds_since(start));
	sim_free_memory(sim);
	free(sim);
	return judge(&total);
}

/* A child runs the seeds with the fault planted: it must say that something is wrong. */
static int run_planted(void)
{
	pid_t child;
	int status = 0;

	fflush(NULL);
	child = fork();
	if (child < 0) return 1;
	if (child == 0) _Exit(run_seeds() == 0 ? 0 : 2);
	while (waitpid(child, &status, 0) < 0) {
	}
	/* A debug build may stop at a check of the engine's own before the model says so. */
	if ((WIFEXITED(status) && WEXITSTATUS(status) == 1) ||
	    (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT)) {
		printf("found, as it must be: %s\n", choice.plant);
		return 0;
	}
	printf("the planted fault %s was not found: status 0x%x\n", choice.plant, (unsigned)status);
	return 1;
}

static int usage(FILE *to)
{
	fprintf(to, "usage: simulate [--first N] [--seeds N] [--plant FAULT [--must-fail]] [--trace]\n"
	            "faults:");
	for (size_t i = 0; plants[i]; i++)
		fprintf(to, " %s", plants[i]);
	fprintf(to, "\n");
	return to == stdout ? 0 : 2;
}

int main(int count, char **words)
{
	char planted[96];

	for (int i = 1; i < count; i++) {
		const char *value = i + 1 < count ? words[i + 1] : "";

		if (strcmp(words[i], "--must-fail") == 0)
			choice.must_fail = true;
		else if (strcmp(words[i], "--trace") == 0)
			choice.trace = true;
		else if (strcmp(words[i], "--help") == 0)
			return usage(stdout);
		else if (strcmp(words[i], "--plant") == 0)
			choice.plant = words[++i];
		else if (strcmp(words[i], "--first") == 0 && kv_parse_u64(value, &choice.first) == KV_OK)
			i++;
		else if (strcmp(words[i], "--seeds") == 0 && kv_parse_u64(value, &choice.seeds) == KV_OK)
			i++;
		else
			return usage(stderr);
	}
	if (!choice.seeds) return usage(stderr);
	if (choice.plant) {
		snprintf(planted, sizeof planted, "%s=always", choice.plant);
		if (kv_fault_configure(planted, plants) != KV_OK) return usage(stderr);
	}
	return choice.must_fail ? run_planted() : run_seeds();
}
