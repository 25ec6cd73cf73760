/* Another tier below the store: segments are pinned for a copy, and prompts get back what was
 * evicted, read into memory that no worker has. */
#include <string.h>

#include "tests/simulation/simulation.h"

static struct sim_load *free_load(struct sim *sim)
{
	for (uint32_t i = 0; i < SIM_LOADS; i++)
		if (!sim->loads[i].id) return &sim->loads[i];
	return NULL;
}

bool sim_tier_holds(const struct sim *sim, uint64_t id)
{
	for (uint32_t i = 0; i < SIM_PINS; i++)
		if (sim->pins[i] == id) return true;
	for (uint32_t i = 0; i < SIM_LOADS; i++)
		if (sim->loads[i].id && sim->loads[i].parent == id) return true;
	return false;
}

/* ---- out ---- */

static void pin(struct sim *sim)
{
	uint64_t *place = &sim->pins[sim_below(sim, SIM_PINS)];
	const struct sim_truth *truth;
	enum kv_status status;

	if (*place) {
		sim->operation = "unpin";
		kvs_segment_unpin(sim->engine, *place);
		*place = 0;
		return;
	}
	sim->operation = "pin";
	if (!sim->truth_count) return;
	truth = &sim->truths[sim_below(sim, sim->truth_count)];
	status = kvs_segment_pin(sim->engine, truth->id);
	SIM_REQUIRE(sim, status == (truth->owner ? KV_INVALID : KV_OK), "pin of segment %llu: %s",
	    (unsigned long long)truth->id, kv_error_message());
	if (status != KV_OK) return;
	*place = truth->id;
	sim->counts.pins++;
}

/* ---- in ---- */

/* The first cut of the load's prompt that is not stored; its parent is what comes before it. The
 * engine must see it the same way. */
static bool find_missing(struct sim *sim, struct sim_load *load, uint32_t slot,
    const struct kvs_open_request *request, uint32_t *index)
{
	uint8_t key[KVW_KEY_BYTES], before[KVW_KEY_BYTES];
	uint32_t start = 0;

	load->parent = 0;
	for (uint32_t i = 0; i < request->cut_count; i++) {
		const struct kvs_new_segment shape = {
		    start, request->cuts[i].end - start, request->cuts[i].kind, KVW_EXACT};
		const struct sim_truth *truth =
		    sim_truth_same(sim, load->tenant, load->parent, 0, &shape, load->chain);
		uint64_t id = 0;

		SIM_REQUIRE(sim,
		    kvs_prompt_key(sim->engine, slot, request, i, i ? before : NULL, key, &id) == KV_OK,
		    "key: %s", kv_error_message());
		SIM_REQUIRE(sim, id == (truth ? truth->id : 0), "cut %u is stored as %llu", i,
		    (unsigned long long)id);
		load->shape = shape;
		*index = i;
		if (!truth) return true;
		load->parent = id;
		start = request->cuts[i].end;
		memcpy(before, key, sizeof before);
	}
	return false;
}

static void read_units(struct sim *sim, struct sim_load *load)
{
	struct kvs_saved saved;

	kvs_load_show(sim->engine, load->id, &saved);
	SIM_REQUIRE(sim,
	    saved.start == load->shape.start && saved.tokens == load->shape.tokens &&
	        memcmp(saved.token_ids, load->chain + saved.start, saved.tokens * 4) == 0,
	    "a load has another shape");
	for (uint32_t layer = 0; layer < SIM_LAYERS; layer++) {
		uint8_t *memory = sim_memory(sim, &saved.units[layer]);

		SIM_REQUIRE(sim, memory, "the memory of a load is gone");
		sim_fill(memory, saved.units[layer].bytes,
		    sim_content(load->tenant, &load->shape, load->chain, 0, layer));
	}
}

static void begin_load(struct sim *sim)
{
	struct sim_load *load = free_load(sim);
	const uint32_t number = sim_below(sim, SIM_WORKERS), prompt = 1 + sim_below(sim, 64);
	const struct sim_worker *worker = &sim->workers[number];
	struct kvs_cut cuts[SIM_ENTRIES];
	struct kvs_open_request request = {.cuts = cuts, .prompt_tokens = prompt};
	uint32_t index = 0;
	enum kv_status status;

	sim->operation = "load";
	if (!load || worker->stopped || worker->lapsed || worker->removed) return;
	load->tenant = worker->tenant;
	memcpy(load->chain, sim->documents[sim_below(sim, SIM_DOCUMENTS)], sizeof load->chain);
	request.prompt = load->chain;
	request.cut_count = sim_cut_prompt(prompt, cuts);
	if (!find_missing(sim, load, worker->slot, &request, &index)) return;
	sim->may_evict = true;
	sim_arm(sim);
	status = kvs_load_begin(sim->engine, worker->slot, &request, index, load->parent, &load->id);
	if (status != KV_OK) load->id = 0;
	if (sim_disarm(sim, status)) return;
	if (status == KV_LIMIT) {
		SIM_REQUIRE(sim, sim->memory_short || sim->world.refuse_regions || sim->quota[load->tenant],
		    "load: %s", kv_error_message());
		sim->counts.loads_refused++;
		return;
	}
	SIM_REQUIRE(sim, status == KV_OK, "load: %s", kv_error_message());
	read_units(sim, load);
}

static void end_load(struct sim *sim, struct sim_load *load)
{
	const uint32_t checksums[SIM_LAYERS] = {0};
	const struct sim_truth *stored =
	    sim_truth_same(sim, load->tenant, load->parent, 0, &load->shape, load->chain);
	const bool wrong = sim_once_in(sim, 8);
	const uint64_t expected = wrong ? 0 : stored ? stored->id : load->id;
	uint64_t id;

	sim->operation = "end of a load";
	id = kvs_load_finish(sim->engine, load->id, wrong ? KV_CORRUPT : KV_OK, checksums);
	load->id = 0;
	SIM_REQUIRE(sim, id == expected, "a load is stored as %llu, it should be %llu",
	    (unsigned long long)id, (unsigned long long)expected);
	if (wrong)
		sim->counts.loads_wrong++;
	else if (stored)
		sim->counts.loads_duplicate++;
	else
		sim->counts.loads++;
	if (id && !stored)
		sim_truth_add(sim, id, load->parent, 0, load->tenant, &load->shape, load->chain);
}

void sim_tier(struct sim *sim)
{
	const uint32_t kind = sim_below(sim, 4);
	struct sim_load *load = &sim->loads[sim_below(sim, SIM_LOADS)];

	if (kind == 0)
		pin(sim);
	else if (kind < 3)
		begin_load(sim);
	else if (load->id)
		end_load(sim, load);
}

void sim_tier_end(struct sim *sim)
{
	for (uint32_t i = 0; i < SIM_LOADS; i++)
		if (sim->loads[i].id) end_load(sim, &sim->loads[i]);
	for (uint32_t i = 0; i < SIM_PINS; i++) {
		if (sim->pins[i]) kvs_segment_unpin(sim->engine, sim->pins[i]);
		sim->pins[i] = 0;
	}
}
