/* Workers as processes: they connect, beat, fall silent, die, wake up, and believe old things. */
#include <stdio.h>
#include <string.h>

#include "tests/simulation/simulation.h"

void sim_connect(struct sim *sim, uint32_t worker)
{
	struct sim_worker *own = &sim->workers[worker];
	uint8_t model_id[KVW_MODEL_ID_BYTES] = {1};
	char tenant[16], name[16];
	const struct kvs_peer_request request = {
	    .tenant = tenant,
	    .name = name,
	    .model_id = model_id,
	    .model_name = "tiny",
	    .layout = engine_world_layout,
	};
	enum kv_status status;

	snprintf(tenant, sizeof tenant, "tenant-%u", own->tenant);
	snprintf(name, sizeof name, "worker-%u", worker);
	status = kvs_peer_add(sim->engine, &request, &own->slot, &own->epoch);
	SIM_REQUIRE(sim, status == KV_OK, "worker %u is refused: %s", worker, kv_error_message());
	SIM_REQUIRE(sim, sim->world.page.lease[own->slot] == own->epoch,
	    "the word of worker %u is wrong", worker);
	own->generation = sim->world.page.boot_generation;
	own->renewed_ms = sim->world.now;
	own->stopped = own->lapsed = own->removed = false;
	own->read.active = false;
	sim_trace(
	    sim, "worker %u has slot %u epoch %llu", worker, own->slot, (unsigned long long)own->epoch);
}

void sim_remember(struct sim *sim, const struct sim_worker *worker, uint64_t handle, uint64_t id)
{
	sim->graves[sim->grave_next] = (struct sim_grave){
	    .used = true, .slot = worker->slot, .epoch = worker->epoch, .handle = handle, .id = id};
	sim->grave_next = (sim->grave_next + 1) % SIM_GRAVES;
}

/* ---- leases that end ---- */

static void add_zombies(
    struct sim *sim, const struct sim_worker *worker, const struct sim_write *write)
{
	for (uint32_t i = 0; i < write->count; i++) {
		struct sim_zombie *zombie = &sim->zombies[sim->zombie_count];

		SIM_REQUIRE(sim, sim->zombie_count < SIM_ZOMBIES, "the model has no room for zombies");
		zombie->id = write->ids[i];
		zombie->epoch = worker->epoch;
		memcpy(zombie->units, write->units + i * SIM_LAYERS, sizeof zombie->units);
		sim->zombie_count++;
	}
}

/* The worker's sequences become orphans; what it was writing to is quarantined if it may live. */
static void end_lease(struct sim *sim, uint32_t worker, bool dead)
{
	struct sim_worker *own = &sim->workers[worker];

	for (uint32_t i = 0; i < SIM_SEQUENCES; i++) {
		struct sim_sequence *sequence = &sim->sequences[i];

		if (!sequence->used || sequence->orphan || sequence->worker != worker) continue;
		sim_remember(
		    sim, own, sequence->handle, sequence->write.active ? sequence->write.ids[0] : 0);
		if (sequence->write.active && !dead) add_zombies(sim, own, &sequence->write);
		for (uint32_t j = 0; j < SIM_FLIGHTS && !dead; j++) {
			if (sim->flights[j].active && sim->flights[j].handle == sequence->handle)
				add_zombies(sim, own, &sim->flights[j].write);
		}
		sequence->write.active = false;
		sequence->orphan = true;
		sequence->piece_count = 0;
		sequence->expires_ms = sim->world.now + SIM_ORPHAN_MS;
	}
}

void sim_worker_goes(struct sim *sim, uint32_t worker, bool dead)
{
	struct sim_worker *own = &sim->workers[worker];

	if (own->removed) return;
	if (!own->lapsed) end_lease(sim, worker, dead);
	kvs_peer_remove(sim->engine, own->slot, dead);
	own->removed = true;
	SIM_REQUIRE(
	    sim, sim->world.page.lease[own->slot] == 0, "the lease of a removed worker still stands");
	if (dead) sim_bury(sim, own->epoch);
}

void sim_bury(struct sim *sim, uint64_t epoch)
{
	uint32_t kept = 0;

	kvs_peer_proven_dead(sim->engine, epoch);
	for (uint32_t i = 0; i < sim->zombie_count; i++) {
		const struct sim_zombie *zombie = &sim->zombies[i];
		struct kvs_segment_view view;
		bool verifying = false;

		if (zombie->epoch != epoch) {
			sim->zombies[kept++] = *zombie;
			continue;
		}
		for (uint32_t j = 0; j < SIM_FLIGHTS; j++) {
			for (uint32_t k = 0; sim->flights[j].active && k < sim->flights[j].write.count; k++)
				verifying |= sim->flights[j].write.ids[k] == zombie->id;
		}
		SIM_REQUIRE(sim, verifying || kvs_segment_find(sim->engine, zombie->id, &view) != KV_OK,
		    "segment %llu stays quarantined, its writer is dead", (unsigned long long)zombie->id);
	}
	sim->zombie_count = kept;
}

void sim_haunt_memory(struct sim *sim)
{
	for (uint32_t i = 0; i < sim->zombie_count; i++) {
		const struct sim_zombie *zombie = &sim->zombies[i];

		for (uint32_t layer = 0; layer < SIM_LAYERS; layer++) {
			uint8_t *memory = sim_memory(sim, &zombie->units[layer]);

			SIM_REQUIRE(sim, memory, "quarantined memory is gone");
			memset(memory, (int)sim_below(sim, 256), zombie->units[layer].bytes);
		}
	}
}

void sim_reconnect(struct sim *sim, uint32_t worker)
{
	sim->operation = "reconnect";
	sim_worker_goes(sim, worker, false);
	sim_connect(sim, worker);
}

/* ---- time ---- */

static void beat(struct sim *sim, uint32_t worker)
{
	struct sim_worker *own = &sim->workers[worker];
	enum kv_status status;

	if (own->removed) return;
	status = kvs_peer_heartbeat(sim->engine, own->slot, own->epoch);
	SIM_REQUIRE(sim, (status == KV_OK) == !own->lapsed, "a heartbeat of worker %u gives %s", worker,
	    kv_status_text(status));
	if (status == KV_OK) own->renewed_ms = sim->world.now;
}

static void pass_time(struct sim *sim)
{
	sim->operation = "time";
	sim->world.now += sim_once_in(sim, 40) ? SIM_ORPHAN_MS : sim_below(sim, 500);
	for (uint32_t i = 0; i < SIM_WORKERS; i++) {
		if (!sim->workers[i].stopped && !sim_once_in(sim, 6)) beat(sim, i);
	}
	sim->may_evict = sim->tidies;
	kvs_engine_tick(sim->engine);
	for (uint32_t i = 0; i < SIM_WORKERS; i++) {
		struct sim_worker *own = &sim->workers[i];

		if (own->removed || own->lapsed) continue;
		if (sim->world.now - own->renewed_ms < SIM_LEASE_MS) continue;
		end_lease(sim, i, false);
		own->lapsed = true;
		SIM_REQUIRE(
		    sim, sim->world.page.lease[own->slot] == 0, "worker %u keeps a lapsed lease", i);
	}
	for (uint32_t i = 0; i < SIM_SEQUENCES; i++) {
		struct sim_sequence *sequence = &sim->sequences[i];

		if (sequence->used && sequence->orphan && sequence->expires_ms <= sim->world.now)
			sequence->used = false;
	}
}

/* ---- old handles ---- */

static void refuse(struct sim *sim, enum kv_status status, const char *what)
{
	SIM_REQUIRE(sim, status != KV_OK, "%s with a handle from before is accepted", what);
	sim->counts.haunted++;
}

static void try_grave(struct sim *sim, const struct sim_grave *grave)
{
	const uint32_t token = 1;
	const struct kvs_new_segment shape = {0, 1, KVW_PLAIN, KVW_EXACT};
	const struct kvs_commit_request request = {
	    .sequence = grave->handle, .segment_ids = &grave->id, .segment_count = 1};
	struct kvs_commit *commit;
	uint8_t *memory;
	uint64_t id;

	sim_trace(sim, "slot %u epoch %llu handle %llu are tried", grave->slot,
	    (unsigned long long)grave->epoch, (unsigned long long)grave->handle);
	refuse(sim, kvs_peer_heartbeat(sim->engine, grave->slot, grave->epoch), "a heartbeat");
	if (!grave->handle) return;
	refuse(sim, kvs_sequence_push(sim->engine, grave->slot, grave->handle, 0, &token, 1, NULL, 0),
	    "a push");
	refuse(sim, kvs_reserve(sim->engine, grave->slot, grave->handle, &shape, 1, &id), "a reserve");
	refuse(sim, kvs_commit_begin(sim->engine, grave->slot, &request, &commit), "a commit");
	refuse(sim, kvs_release(sim->engine, grave->slot, grave->handle, &grave->id, 1), "a release");
	refuse(sim, kvs_sequence_close(sim->engine, grave->slot, grave->handle, 0), "a close");
	if (!grave->id) return;
	for (uint32_t slot = 0; slot < 8; slot++)
		refuse(sim, kvs_put_target(sim->engine, slot, grave->id, 0, 1, &memory), "a put");
}

static void haunt(struct sim *sim)
{
	const uint32_t start = sim_below(sim, SIM_GRAVES);
	const struct sim_grave *grave = &sim->graves[start];

	sim->operation = "old handles";
	for (uint32_t i = 0; i < SIM_GRAVES && !grave->used; i++)
		grave = &sim->graves[(start + i) % SIM_GRAVES];
	if (grave->used) try_grave(sim, grave);
	sim_haunt_memory(sim);
}

/* ---- what happens to a worker ---- */

static void suffer(struct sim *sim, uint32_t worker)
{
	struct sim_worker *own = &sim->workers[worker];

	switch (sim_below(sim, 10)) {
	case 0: /* killed, and the store knows at once */
		sim->operation = "death";
		sim_worker_goes(sim, worker, true);
		sim_connect(sim, worker);
		return;
	case 1: /* killed, and the store hears of it later */
		sim->operation = "connection lost, then death";
		sim_worker_goes(sim, worker, false);
		if (sim_once_in(sim, 2)) sim_bury(sim, own->epoch);
		sim_connect(sim, worker);
		return;
	case 2:
	case 3:
		sim->operation = "silence";
		own->stopped = true;
		return;
	case 4: /* the store closes the connection of one that lapsed */
		sim->operation = "reap";
		if (own->lapsed) sim_worker_goes(sim, worker, false);
		return;
	default:
		sim->operation = "wake";
		own->stopped = false;
	}
}

void sim_life(struct sim *sim)
{
	switch (sim_below(sim, 8)) {
	case 0:
		suffer(sim, sim_below(sim, SIM_WORKERS));
		break;
	case 1:
	case 2:
		haunt(sim);
		break;
	case 3:
		sim->operation = "growth";
		sim->world.refuse_regions = sim_once_in(sim, 6);
		break;
	case 4:
		sim->operation = "evict";
		sim->may_evict = sim_once_in(sim, 8);
		if (sim->may_evict) kvs_engine_evict(sim->engine);
		break;
	case 5:
		if (sim_once_in(sim, 32)) sim_restart(sim);
		break;
	default:
		pass_time(sim);
	}
}
