/* A deterministic simulation of the store's engine and of the workers that use it.
 *
 * One seed is one run: workers open, resume, write, commit, fold, read, fork, fall silent, die,
 * wake up and go on with what they believe is theirs; the store evicts, fails to grow, runs out of
 * memory for bookkeeping, lets leases lapse, and is started anew over the same memory. Time, random
 * numbers and memory are made up, so a seed repeats itself to the last bit. Beside the engine runs
 * a model that knows the right bytes of every committed segment, who may see it, and which handles
 * must be refused. The first difference ends the process with the seed and how to run it again.
 */
#ifndef TESTS_SIMULATION_SIMULATION_H
#define TESTS_SIMULATION_SIMULATION_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/lib/engine_world.h"

enum {
	SIM_WORKERS = 4,
	SIM_TENANTS = 2,
	SIM_SEQUENCES = 8,
	SIM_TOKENS = 96,
	SIM_ENTRIES = 32,
	SIM_BATCH = 8, /* segments of one commit */
	SIM_LAYERS = 2,
	SIM_DOCUMENTS = 3,
	SIM_TRUTHS = 512,
	SIM_ZOMBIES = 512,
	SIM_FLIGHTS = 16,
	SIM_GRAVES = 16,
	SIM_PINS = 3,
	SIM_LOADS = 3,
	SIM_REGIONS = 1024,
	SIM_SEGMENT = 16,
	SIM_WINDOW = 8,
	SIM_FOLD = 6,
	SIM_STEPS = 400,
	SIM_LEASE_MS = 1000,
	SIM_ORPHAN_MS = 20000
};

/* A committed segment as the model knows it. */
struct sim_truth {
	uint64_t id, parent; /* parent 0: the root */
	uint64_t owner;      /* 0 for exact ones, else of the one sequence that may see it */
	uint32_t tenant;
	struct kvs_new_segment shape;
	uint32_t chain[SIM_TOKENS]; /* all tokens from position 0 */
	struct kvs_unit units[SIM_LAYERS];
};

/* What a worker has reserved and writes to. */
struct sim_write {
	bool active;
	uint64_t ids[SIM_BATCH];
	struct kvs_new_segment shapes[SIM_BATCH];
	struct kvs_unit units[SIM_BATCH * SIM_LAYERS];
	uint32_t count, replaced, written;
	bool spoiled; /* a byte went wrong on the way */
};

/* A sequence as the store must know it. The slot in the table is its name. */
struct sim_sequence {
	bool used, orphan;
	uint32_t worker;
	uint64_t handle, owner, expires_ms;
	char id[8];
	uint32_t tokens[SIM_TOKENS], prompt, decoded;
	uint64_t list[SIM_ENTRIES];
	uint32_t length;
	uint64_t pieces[SIM_ENTRIES];
	uint32_t piece_count;
	struct sim_write write;
};

/* One copy out of the arena that a worker has begun and not ended. */
struct sim_read {
	bool active;
	uint32_t slot, sequence;
	uint64_t epoch, generation, handle;
	struct kvs_unit unit;
	uint64_t content; /* the seed of the bytes that must be there */
	uint64_t copied;
	uint8_t bytes[8192];
};

struct sim_worker {
	bool stopped; /* SIGSTOP */
	bool lapsed, removed;
	uint32_t tenant, slot;
	uint64_t epoch, generation, renewed_ms;
	struct sim_read read;
};

/* A commit between begin and finish: its checksums are being verified on another thread. */
struct sim_flight {
	bool active;
	struct kvs_commit *commit;
	uint32_t sequence;
	uint64_t handle;
	struct sim_write write;
};

/* Memory that a silent worker may still write to. */
struct sim_zombie {
	uint64_t id, epoch;
	struct kvs_unit units[SIM_LAYERS];
};

/* What a worker still believes to hold, and must be refused. */
struct sim_grave {
	bool used;
	uint32_t slot;
	uint64_t epoch, handle, id;
};

/* A segment that is being read from another tier. */
struct sim_load {
	uint64_t id, parent; /* id 0: none */
	uint32_t tenant;
	struct kvs_new_segment shape;
	uint32_t chain[SIM_TOKENS];
};

struct sim_counts {
	uint64_t steps, commits, duplicates, repeated, corrupt, stale, folds, shared, copied, evictions,
	    refused, no_memory, resumed, found_again, expiries, zombies, reads, reads_refused, restarts,
	    haunted, quota_refusals, quota_evictions, released, growth_failures, pins, loads,
	    loads_wrong, loads_duplicate, loads_refused, loads_of_pieces;
};

struct sim {
	uint64_t seed, digest;
	uint32_t step;
	bool trace;
	const char *operation;
	struct engine_world world; /* keeps memory */
	struct kv_allocator *allocator;
	struct kvs_engine *engine;

	bool memory_short, armed;
	bool may_evict;              /* the operation under way may evict */
	int32_t only_tenant;         /* if not -1: only this tenant's segments */
	uint64_t quota[SIM_TENANTS]; /* 0: none */
	struct kvs_tenant_quota quotas[1];
	bool tidies; /* the tick evicts */

	uint32_t documents[SIM_DOCUMENTS][SIM_TOKENS];
	struct sim_truth truths[SIM_TRUTHS];
	uint32_t truth_count;
	struct sim_sequence sequences[SIM_SEQUENCES];
	struct sim_worker workers[SIM_WORKERS];
	struct sim_flight flights[SIM_FLIGHTS];
	struct sim_zombie zombies[SIM_ZOMBIES];
	uint32_t zombie_count;
	struct sim_grave graves[SIM_GRAVES];
	uint32_t grave_next;
	uint64_t pins[SIM_PINS];
	struct sim_load loads[SIM_LOADS];
	uint64_t next_owner;
	struct sim_counts counts;
};

extern const uint8_t sim_policy[32];

/* ---- simulate.c ---- */

/* Print what is wrong, the seed and how to run it again; ends the process with 1. */
void sim_fail(const struct sim *sim, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3), noreturn))
#endif
    ;
#define SIM_REQUIRE(sim, condition, ...)                                                           \
	do {                                                                                           \
		if (!(condition)) sim_fail((sim), __VA_ARGS__);                                            \
	} while (0)
void sim_trace(const struct sim *sim, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
uint32_t sim_below(struct sim *sim, uint32_t bound);
/* True once in `of` times. */
bool sim_once_in(struct sim *sim, uint32_t of);

/* ---- environment.c ---- */

/* A world of this seed with a running store and connected workers. The regions' memory of an
 * earlier seed is used again. */
void sim_start(struct sim *sim, uint64_t seed);
/* End everything in order; checks that nothing is left. */
void sim_stop(struct sim *sim);
/* The store's process ends and another serves the same memory. */
void sim_restart(struct sim *sim);
void sim_free_memory(struct sim *sim);
uint8_t *sim_memory(struct sim *sim, const struct kvs_unit *unit);
/* Before and after an operation that may fail for lack of bookkeeping memory. sim_disarm: true
 * when `status` is that failure. */
void sim_arm(struct sim *sim);
bool sim_disarm(struct sim *sim, enum kv_status status);

/* ---- truth.c ---- */

/* The seed of a unit's bytes. */
uint64_t sim_content(uint32_t tenant, const struct kvs_new_segment *shape, const uint32_t *chain,
    uint64_t owner, uint32_t layer);
void sim_fill(uint8_t *memory, uint64_t bytes, uint64_t content);
bool sim_filled(const uint8_t *memory, uint64_t bytes, uint64_t content);
struct sim_truth *sim_truth_find(struct sim *sim, uint64_t id);
/* What is stored under this key, or NULL. */
struct sim_truth *sim_truth_same(struct sim *sim, uint32_t tenant, uint64_t parent, uint64_t owner,
    const struct kvs_new_segment *shape, const uint32_t *chain);
void sim_truth_add(struct sim *sim, uint64_t id, uint64_t parent, uint64_t owner, uint32_t tenant,
    const struct kvs_new_segment *shape, const uint32_t *chain);
/* How far a prompt's match reaches below `parent`, which ends at `end`. */
uint32_t sim_truth_reach(struct sim *sim, const struct sim_sequence *sequence, uint32_t tenant,
    uint64_t parent, uint32_t end);
/* Forget what has been evicted, and check that it might have been. */
void sim_check_gone(struct sim *sim);
/* A live sequence's list and pieces: ids, tokens, bytes. */
void sim_check_sequence(struct sim *sim, const struct sim_sequence *sequence);
/* Everything. */
void sim_check_all(struct sim *sim);

/* ---- workers.c ---- */

void sim_connect(struct sim *sim, uint32_t worker);
/* One of time, silence, death, broken connection, waking up, a dead handle tried. */
void sim_life(struct sim *sim);
/* The store removes a worker's connection; `dead`: the process has exited. */
void sim_worker_goes(struct sim *sim, uint32_t worker, bool dead);
/* The process of that epoch is dead, or writes no more: its quarantined memory is free. */
void sim_bury(struct sim *sim, uint64_t epoch);
/* Garbage into everything that somebody silent may write to. */
void sim_haunt_memory(struct sim *sim);
/* A worker that does not know yet that its lease is gone finds out. */
void sim_reconnect(struct sim *sim, uint32_t worker);
void sim_remember(struct sim *sim, const struct sim_worker *worker, uint64_t handle, uint64_t id);

/* ---- writes.c ---- */

/* One step of a worker: open, resume, reserve, write, begin a commit, fold, push, release, close.
 */
void sim_work(struct sim *sim);
/* A verification ends. */
void sim_finish(struct sim *sim);
void sim_finish_flight(struct sim *sim, struct sim_flight *flight);

uint32_t sim_cut_prompt(uint32_t prompt, struct kvs_cut *cuts);

/* ---- tier.c ---- */

/* Pin or unpin something, begin or end a load. */
void sim_tier(struct sim *sim);
/* End all of it. */
void sim_tier_end(struct sim *sim);
/* Its memory must stay. */
bool sim_tier_holds(const struct sim *sim, uint64_t id);

/* ---- reads.c ---- */

void sim_read_step(struct sim *sim);
/* The worker gives up its references: its reads of this sequence end. */
void sim_read_cancel(struct sim *sim, uint32_t sequence);

#endif
