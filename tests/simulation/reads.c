/* Workers copy out of the arena in pieces, while the store goes on, and check afterwards. */
#include <string.h>

#include "kvstore/client/page_check.h"
#include "tests/simulation/simulation.h"

void sim_read_cancel(struct sim *sim, uint32_t sequence)
{
	for (uint32_t i = 0; i < SIM_WORKERS; i++) {
		if (sim->workers[i].read.sequence == sequence) sim->workers[i].read.active = false;
	}
}

static bool readable(const struct sim_sequence *sequence, uint32_t worker)
{
	return sequence->used && !sequence->orphan && sequence->worker == worker &&
	       sequence->length + sequence->piece_count > 0;
}

static void begin(struct sim *sim, uint32_t worker)
{
	const struct sim_worker *own = &sim->workers[worker];
	struct sim_read *read = &sim->workers[worker].read;
	uint32_t index = sim_below(sim, SIM_SEQUENCES);
	const uint32_t start = index, layer = sim_below(sim, SIM_LAYERS);
	const struct sim_sequence *sequence = &sim->sequences[index];
	const struct sim_truth *truth;
	uint32_t entry;

	for (uint32_t i = 0; i < SIM_SEQUENCES && !readable(sequence, worker); i++) {
		index = (start + i) % SIM_SEQUENCES;
		sequence = &sim->sequences[index];
	}
	if (!readable(sequence, worker)) return;
	entry = sim_below(sim, sequence->length + sequence->piece_count);
	truth =
	    sim_truth_find(sim, entry < sequence->length ? sequence->list[entry]
	                                                 : sequence->pieces[entry - sequence->length]);
	SIM_REQUIRE(sim, truth, "sequence %s holds what is not known", sequence->id);
	SIM_REQUIRE(sim, truth->units[layer].bytes <= sizeof read->bytes, "a unit is too large");
	*read = (struct sim_read){
	    .active = true,
	    .slot = own->slot,
	    .sequence = index,
	    .epoch = own->epoch,
	    .generation = own->generation,
	    .unit = truth->units[layer],
	    .content = sim_content(truth->tenant, &truth->shape, truth->chain, truth->owner, layer),
	};
}

/* The copy is whole: it may be used only if the page says so, and then it must be right. */
static void end(struct sim *sim, struct sim_read *read)
{
	enum kv_status status =
	    kvc_page_check(&sim->world.page, read->slot, read->epoch, read->generation);

	read->active = false;
	if (status != KV_OK) {
		sim->counts.reads_refused++;
		return;
	}
	sim->counts.reads++;
	SIM_REQUIRE(sim, read->generation == sim->world.page.boot_generation,
	    "bytes of another boot are taken for good");
	SIM_REQUIRE(sim, sim_filled(read->bytes, read->unit.bytes, read->content),
	    "a worker was told that its copy holds, and it has wrong bytes");
}

void sim_read_step(struct sim *sim)
{
	const uint32_t worker = sim_below(sim, SIM_WORKERS);
	struct sim_read *read = &sim->workers[worker].read;
	const uint8_t *memory;
	uint64_t some;

	sim->operation = "read";
	if (sim->workers[worker].stopped) return;
	if (!read->active) begin(sim, worker);
	if (!read->active) return;
	memory = sim_memory(sim, &read->unit);
	some = read->unit.bytes / 2 + 8;
	if (some > read->unit.bytes - read->copied) some = read->unit.bytes - read->copied;
	if (memory) memcpy(read->bytes + read->copied, memory + read->copied, some);
	read->copied += some;
	if (read->copied == read->unit.bytes) end(sim, read);
}
