/* Starting, restarting and ending a store. */
#include <string.h>

#include "tests/simulation/simulation.h"

const uint8_t sim_policy[32] = {7, 7, 7};

static void broken(void *context, const char *what)
{
	sim_fail(context, "%s", what);
}

static void start_engine(struct sim *sim)
{
	const struct kvs_environment environment = engine_world_environment(&sim->world);
	struct kvs_options options = {
	    .memory = sim->memory_short ? 6144 + 2048 * sim_below(sim, 16) : 2 << 20,
	    .region_bytes = 1024u << sim_below(sim, 4),
	    .lease_ms = SIM_LEASE_MS,
	    .orphan_ms = SIM_ORPHAN_MS,
	    .max_peers = 8,
	    .max_sequences = 16,
	    .max_segments = 192,
	    .separate_tenants = sim->seed % 3 == 0,
	};
	const struct kvs_tenant_quota quota = {"tenant-1", 4096 + 2048 * sim_below(sim, 6)};
	enum kv_status status;

	if (sim->seed % 5 == 0) options.eviction = KVS_EVICT_S3FIFO;
	sim->quota[1] = sim->seed % 2 ? quota.bytes : 0;
	if (sim->quota[1]) {
		options.quotas = sim->quotas;
		options.quota_count = 1;
		sim->quotas[0] = quota;
	}
	if (sim->seed % 7 == 0) {
		options.high_bytes = options.memory / 2;
		options.low_bytes = options.memory / 3;
		options.unused_ms = 2000;
		options.release_ms = 1000;
	}
	sim->tidies = options.high_bytes > 0;
	status = kvs_engine_create(sim->allocator, &options, &environment, &sim->engine);

	SIM_REQUIRE(sim, status == KV_OK, "the engine does not start: %s", kv_error_message());
	sim->world.page.boot_generation = kvs_engine_generation(sim->engine);
}

static void make_documents(struct sim *sim)
{
	for (uint32_t i = 0; i < SIM_DOCUMENTS; i++) {
		for (uint32_t j = 0; j < SIM_TOKENS; j++)
			sim->documents[i][j] = i > 0 && j < 24 ? sim->documents[0][j] : sim_below(sim, 3);
	}
}

void sim_start(struct sim *sim, uint64_t seed)
{
	static struct engine_world world;
	const bool trace = sim->trace;

	world = sim->world;
	memset(sim, 0, sizeof *sim);
	sim->world = world;
	sim->world.keeps_memory = true;
	engine_world_begin(&sim->world, seed, SIM_REGIONS, broken, sim);
	sim->trace = trace;
	sim->seed = seed;
	sim->next_owner = 1;
	sim->operation = "start";
	sim->memory_short = seed % 4 != 0;
	sim->allocator = kv_allocator_create("simulated store", 0);
	SIM_REQUIRE(sim, sim->allocator, "no memory for the simulation");
	make_documents(sim);
	start_engine(sim);
	for (uint32_t i = 0; i < SIM_WORKERS; i++) {
		sim->workers[i].tenant = i % SIM_TENANTS;
		sim_connect(sim, i);
	}
}

static void finish_flights(struct sim *sim)
{
	for (uint32_t i = 0; i < SIM_FLIGHTS; i++) {
		if (sim->flights[i].active) sim_finish_flight(sim, &sim->flights[i]);
	}
}

/* The engine goes; everything that it had is free again. */
static void end_engine(struct sim *sim)
{
	struct kvs_statistics statistics;

	finish_flights(sim);
	sim_tier_end(sim);
	kvs_engine_statistics(sim->engine, &statistics);
	sim->counts.evictions += statistics.evictions;
	sim->counts.expiries += statistics.lease_expiries;
	sim->counts.zombies += statistics.zombie_reservations;
	sim->counts.quota_refusals += statistics.quota_refusals;
	sim->counts.quota_evictions += statistics.quota_evictions;
	sim->counts.growth_failures += sim->world.regions_refused;
	sim->world.regions_refused = 0;
	sim->counts.released += statistics.released_bytes;
	sim->world.page.boot_generation = 0;
	kvs_engine_destroy(sim->engine);
	sim->engine = NULL;
	engine_world_check_empty(&sim->world);
	SIM_REQUIRE(sim, kv_allocator_stats(sim->allocator).blocks == 0, "%llu blocks are left",
	    (unsigned long long)kv_allocator_stats(sim->allocator).blocks);
}

/* Workers keep reading what they had begun to read; all else of the former store is void. */
void sim_restart(struct sim *sim)
{
	sim->operation = "restart";
	end_engine(sim);
	sim->truth_count = sim->zombie_count = 0;
	memset(sim->sequences, 0, sizeof sim->sequences);
	memset(sim->graves, 0, sizeof sim->graves);
	start_engine(sim);
	for (uint32_t i = 0; i < SIM_WORKERS; i++) {
		const struct sim_read read = sim->workers[i].read;

		sim_connect(sim, i);
		sim->workers[i].read = read;
	}
	sim->counts.restarts++;
}

void sim_stop(struct sim *sim)
{
	struct kvs_statistics statistics;

	sim->operation = "stop";
	finish_flights(sim);
	sim_tier_end(sim);
	for (uint32_t i = 0; i < SIM_WORKERS; i++)
		sim_worker_goes(sim, i, false);
	sim->world.now += SIM_ORPHAN_MS;
	kvs_engine_tick(sim->engine);
	kvs_engine_evict(sim->engine);
	SIM_REQUIRE(sim, kvs_engine_check(sim->engine) == KV_OK, "%s", kv_error_message());
	kvs_engine_statistics(sim->engine, &statistics);
	SIM_REQUIRE(sim,
	    statistics.sequences_active + statistics.sequences_orphaned == 0 &&
	        statistics.segments_committed + statistics.segments_reserved == 0,
	    "%u sequences, %u segments are left when everybody has gone",
	    statistics.sequences_active + statistics.sequences_orphaned,
	    statistics.segments_committed + statistics.segments_reserved);
	SIM_REQUIRE(sim, statistics.segments_quarantined == sim->zombie_count,
	    "%u segments are quarantined, it should be %u", statistics.segments_quarantined,
	    sim->zombie_count);
	while (sim->zombie_count > 0)
		sim_bury(sim, sim->zombies[0].epoch);
	kvs_engine_statistics(sim->engine, &statistics);
	SIM_REQUIRE(sim,
	    statistics.segments_quarantined == 0 && statistics.free_bytes == statistics.region_bytes,
	    "%u segments are quarantined when all writers are dead", statistics.segments_quarantined);
	end_engine(sim);
	kv_allocator_destroy(sim->allocator);
	sim->allocator = NULL;
}

void sim_free_memory(struct sim *sim)
{
	engine_world_free(&sim->world);
}

uint8_t *sim_memory(struct sim *sim, const struct kvs_unit *unit)
{
	if (unit->region >= SIM_REGIONS || unit->offset > sim->world.region_bytes[unit->region] ||
	    unit->bytes > sim->world.region_bytes[unit->region] - unit->offset)
		return NULL;
	return sim->world.region[unit->region] + unit->offset;
}

void sim_arm(struct sim *sim)
{
	sim->armed = sim_once_in(sim, 12);
	if (sim->armed) kv_allocator_fail_at(sim->allocator, 1 + sim_below(sim, 6));
}

bool sim_disarm(struct sim *sim, enum kv_status status)
{
	kv_allocator_fail_at(sim->allocator, 0);
	if (status != KV_NO_MEMORY) return false;
	SIM_REQUIRE(sim, sim->armed, "out of memory, but there was some: %s", kv_error_message());
	sim->counts.no_memory++;
	return true;
}
