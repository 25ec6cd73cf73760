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
    const struct kvs_open_request *request, struct kvs_wanted *wanted)
{
	uint8_t key[KVW_KEY_BYTES], before[KVW_KEY_BYTES];

	load->parent = 0;
	for (uint32_t i = 0; i < request->cut_count; i++) {
		const struct sim_truth *truth;
		uint64_t id = 0;

		SIM_REQUIRE(
		    sim, kvs_wanted_cut(request, i, wanted) == KV_OK, "cut %u: %s", i, kv_error_message());
		load->shape =
		    (struct kvs_new_segment){wanted->start, wanted->tokens, wanted->kind, KVW_EXACT};
		truth = sim_truth_same(sim, load->tenant, load->parent, 0, &load->shape, load->chain);
		SIM_REQUIRE(sim,
		    kvs_wanted_key(sim->engine, slot, wanted, i ? before : NULL, key, &id) == KV_OK,
		    "key: %s", kv_error_message());
		SIM_REQUIRE(sim, id == (truth ? truth->id : 0), "cut %u is stored as %llu", i,
		    (unsigned long long)id);
		if (!truth) return true;
		load->parent = id;
		memcpy(before, key, sizeof before);
	}
	return false;
}

/* Instead of the cut a segment of another prompt, that begins as this one does, or not. */
static void make_piece(struct sim *sim, struct sim_load *load, struct kvs_wanted *wanted)
{
	const uint32_t most = SIM_TOKENS - wanted->start;

	wanted->tokens = 1 + sim_below(sim, most < SIM_SEGMENT ? most : SIM_SEGMENT);
	wanted->kind = sim_once_in(sim, 2) ? KVW_PLAIN : KVW_CLUSTERED;
	if (sim_once_in(sim, 2))
		load->chain[wanted->start + sim_below(sim, wanted->tokens)] = sim_below(sim, 3);
	load->shape = (struct kvs_new_segment){wanted->start, wanted->tokens, wanted->kind, KVW_EXACT};
	sim->counts.loads_of_pieces++;
}

/* What of the prompt comes right below the parent, by the model and by the engine. */
static void check_child(struct sim *sim, const struct sim_load *load, uint32_t slot,
    const struct kvs_open_request *request, uint32_t start)
{
	struct kvs_child child;
	uint32_t most = 0;

	for (uint32_t i = 0; i < sim->truth_count; i++) {
		const struct sim_truth *truth = &sim->truths[i];
		uint32_t at = start;

		if (truth->parent != load->parent || truth->owner != 0 || truth->tenant != load->tenant)
			continue;
		while (at < start + truth->shape.tokens && at < request->prompt_tokens &&
		       truth->chain[at] == load->chain[at])
			at++;
		if (at - start > most) most = at - start;
	}
	SIM_REQUIRE(sim,
	    kvs_prompt_child(sim->engine, slot, load->parent, request->prompt, request->prompt_tokens,
	        &child) == KV_OK,
	    "child: %s", kv_error_message());
	SIM_REQUIRE(sim, child.common == most && !child.id == !most,
	    "below segment %llu %u tokens are the prompt's, it should be %u",
	    (unsigned long long)load->parent, child.common, most);
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
	struct kvs_wanted wanted;
	enum kv_status status;

	sim->operation = "load";
	if (!load || worker->stopped || worker->lapsed || worker->removed) return;
	load->tenant = worker->tenant;
	memcpy(load->chain, sim->documents[sim_below(sim, SIM_DOCUMENTS)], sizeof load->chain);
	request.prompt = load->chain;
	request.cut_count = sim_cut_prompt(prompt, cuts);
	if (!find_missing(sim, load, worker->slot, &request, &wanted)) return;
	check_child(sim, load, worker->slot, &request, wanted.start);
	if (sim_once_in(sim, 3)) make_piece(sim, load, &wanted);
	sim->may_evict = true;
	sim_arm(sim);
	status = kvs_load_begin(sim->engine, worker->slot, &wanted, load->parent, &load->id);
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
