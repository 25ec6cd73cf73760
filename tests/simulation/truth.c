/* What must be stored, with which bytes, and who may see it. */
#include <string.h>

#include "tests/simulation/simulation.h"

uint64_t sim_content(uint32_t tenant, const struct kvs_new_segment *shape, const uint32_t *chain,
    uint64_t owner, uint32_t layer)
{
	uint64_t hash = 1469598103934665603u + owner * 131 + layer + tenant * 65537;

	for (uint32_t i = 0; i < shape->start + shape->tokens; i++)
		hash = (hash ^ chain[i]) * 1099511628211u;
	hash = (hash ^ shape->start) * 1099511628211u;
	return (hash ^ (uint64_t)shape->kind) * 1099511628211u;
}

static uint64_t word_at(uint64_t content, uint64_t at)
{
	return (content + at) * UINT64_C(0x9e3779b97f4a7c15);
}

void sim_fill(uint8_t *memory, uint64_t bytes, uint64_t content)
{
	for (uint64_t at = 0; at < bytes; at += 8) {
		uint64_t word = word_at(content, at);

		memcpy(memory + at, &word, 8);
	}
}

bool sim_filled(const uint8_t *memory, uint64_t bytes, uint64_t content)
{
	for (uint64_t at = 0; at < bytes; at += 8) {
		uint64_t word = word_at(content, at);

		if (memcmp(memory + at, &word, 8) != 0) return false;
	}
	return true;
}

struct sim_truth *sim_truth_find(struct sim *sim, uint64_t id)
{
	for (uint32_t i = 0; i < sim->truth_count; i++) {
		if (sim->truths[i].id == id) return &sim->truths[i];
	}
	return NULL;
}

static uint32_t end_of(const struct sim_truth *truth)
{
	return truth->shape.start + truth->shape.tokens;
}

struct sim_truth *sim_truth_same(struct sim *sim, uint32_t tenant, uint64_t parent, uint64_t owner,
    const struct kvs_new_segment *shape, const uint32_t *chain)
{
	for (uint32_t i = 0; i < sim->truth_count; i++) {
		struct sim_truth *truth = &sim->truths[i];

		if (truth->tenant == tenant && truth->parent == parent && truth->owner == owner &&
		    memcmp(&truth->shape, shape, sizeof *shape) == 0 &&
		    memcmp(truth->chain, chain, end_of(truth) * sizeof *chain) == 0)
			return truth;
	}
	return NULL;
}

void sim_truth_add(struct sim *sim, uint64_t id, uint64_t parent, uint64_t owner, uint32_t tenant,
    const struct kvs_new_segment *shape, const uint32_t *chain)
{
	struct kvs_segment_view view;
	struct sim_truth *truth;

	SIM_REQUIRE(sim, sim->truth_count < SIM_TRUTHS, "the model is full");
	SIM_REQUIRE(
	    sim, !sim_truth_find(sim, id), "segment %llu is committed twice", (unsigned long long)id);
	truth = &sim->truths[sim->truth_count++];
	memset(truth, 0, sizeof *truth);
	truth->id = id;
	truth->parent = parent;
	truth->owner = owner;
	truth->tenant = tenant;
	truth->shape = *shape;
	memcpy(truth->chain, chain, (shape->start + shape->tokens) * sizeof *chain);
	SIM_REQUIRE(sim, kvs_segment_find(sim->engine, id, &view) == KV_OK,
	    "segment %llu is committed, but %s", (unsigned long long)id, kv_error_message());
	memcpy(truth->units, view.units, sizeof truth->units);
}

static uint32_t common(const struct sim_truth *truth, const struct sim_sequence *sequence)
{
	const uint32_t end = end_of(truth);
	uint32_t i = truth->shape.start;

	while (i < end && i < sequence->prompt && truth->chain[i] == sequence->tokens[i])
		i++;
	return i;
}

uint32_t sim_truth_reach(struct sim *sim, const struct sim_sequence *sequence, uint32_t tenant,
    uint64_t parent, uint32_t end)
{
	uint32_t best = end;

	for (uint32_t i = 0; i < sim->truth_count; i++) {
		const struct sim_truth *truth = &sim->truths[i];
		uint32_t reach;

		if (truth->parent != parent || truth->owner != 0 || truth->tenant != tenant ||
		    truth->shape.start != end)
			continue;
		reach = common(truth, sequence);
		if (reach == end_of(truth))
			reach = sim_truth_reach(sim, sequence, tenant, truth->id, reach);
		if (reach > best) best = reach;
	}
	return best;
}

/* ---- what has gone ---- */

static bool listed(const struct sim *sim, uint64_t id)
{
	for (uint32_t i = 0; i < SIM_SEQUENCES; i++) {
		const struct sim_sequence *sequence = &sim->sequences[i];

		for (uint32_t j = 0; sequence->used && j < sequence->length; j++) {
			if (sequence->list[j] == id) return true;
		}
	}
	return false;
}

static bool held(const struct sim *sim, uint64_t id)
{
	for (uint32_t i = 0; i < SIM_SEQUENCES; i++) {
		const struct sim_sequence *sequence = &sim->sequences[i];

		if (!sequence->used || sequence->orphan) continue;
		for (uint32_t j = 0; j < sequence->length; j++) {
			if (sequence->list[j] == id) return true;
		}
		for (uint32_t j = 0; j < sequence->piece_count; j++) {
			if (sequence->pieces[j] == id) return true;
		}
	}
	return false;
}

static void check_gone(struct sim *sim, const struct sim_truth *truth)
{
	const unsigned long long id = (unsigned long long)truth->id;

	SIM_REQUIRE(sim, !sim_tier_holds(sim, truth->id), "segment %llu is gone, and is pinned", id);
	SIM_REQUIRE(sim, !held(sim, truth->id), "segment %llu is gone, and a lease protects it", id);
	SIM_REQUIRE(sim, sim->may_evict || (truth->owner != 0 && !listed(sim, truth->id)),
	    "segment %llu is gone, and nothing asked for its memory", id);
	SIM_REQUIRE(sim,
	    sim->only_tenant < 0 || truth->tenant == (uint32_t)sim->only_tenant ||
	        (truth->owner != 0 && !listed(sim, truth->id)),
	    "segment %llu of tenant %u was evicted for tenant %d, which is at its limit", id,
	    truth->tenant, sim->only_tenant);
}

void sim_check_gone(struct sim *sim)
{
	uint32_t kept = 0, gone = 0;

	for (uint32_t i = 0; i < sim->truth_count; i++) {
		struct kvs_segment_view view;

		if (kvs_segment_find(sim->engine, sim->truths[i].id, &view) != KV_OK) {
			check_gone(sim, &sim->truths[i]);
			gone++;
			continue;
		}
		if (kept != i) sim->truths[kept] = sim->truths[i];
		kept++;
	}
	sim->truth_count = kept;
	for (uint32_t i = 0; i < kept && gone > 0; i++)
		SIM_REQUIRE(sim, !sim->truths[i].parent || sim_truth_find(sim, sim->truths[i].parent),
		    "segment %llu is there, its parent is not", (unsigned long long)sim->truths[i].id);
	sim->digest = sim->digest * 31 + kept;
}

/* ---- what is there ---- */

static void check_truth(struct sim *sim, const struct sim_truth *truth)
{
	const unsigned long long id = (unsigned long long)truth->id;
	struct kvs_segment_view view;

	SIM_REQUIRE(
	    sim, kvs_segment_find(sim->engine, truth->id, &view) == KV_OK, "%s", kv_error_message());
	SIM_REQUIRE(sim, view.committed, "segment %llu is not committed any more", id);
	SIM_REQUIRE(sim,
	    view.start == truth->shape.start && view.tokens == truth->shape.tokens &&
	        view.kind == truth->shape.kind && view.provenance == truth->shape.provenance,
	    "segment %llu has another shape", id);
	SIM_REQUIRE(sim,
	    memcmp(view.token_ids, truth->chain + view.start, view.tokens * sizeof *truth->chain) == 0,
	    "segment %llu has other tokens", id);
	for (uint32_t layer = 0; layer < SIM_LAYERS; layer++) {
		const uint64_t content =
		    sim_content(truth->tenant, &truth->shape, truth->chain, truth->owner, layer);
		const uint8_t *memory = sim_memory(sim, &view.units[layer]);

		SIM_REQUIRE(sim, memory && sim_filled(memory, view.units[layer].bytes, content),
		    "segment %llu has wrong bytes in layer %u", id, layer);
	}
}

static const struct sim_truth *require_known(
    struct sim *sim, const struct sim_sequence *sequence, uint64_t id)
{
	const struct sim_truth *truth = sim_truth_find(sim, id);

	SIM_REQUIRE(sim, truth, "sequence %s holds segment %llu, which was never committed",
	    sequence->id, (unsigned long long)id);
	SIM_REQUIRE(sim, truth->tenant == sim->workers[sequence->worker].tenant,
	    "sequence %s holds segment %llu of another tenant", sequence->id, (unsigned long long)id);
	SIM_REQUIRE(sim, truth->owner == 0 || truth->owner == sequence->owner,
	    "sequence %s holds segment %llu, which is another's", sequence->id, (unsigned long long)id);
	return truth;
}

void sim_check_sequence(struct sim *sim, const struct sim_sequence *sequence)
{
	uint32_t length = 0;

	SIM_REQUIRE(sim, kvs_sequence_length(sim->engine, sequence->handle, &length) == KV_OK,
	    "sequence %s is gone: %s", sequence->id, kv_error_message());
	SIM_REQUIRE(sim, length == sequence->length, "sequence %s has %u entries, it should be %u",
	    sequence->id, length, sequence->length);
	for (uint32_t i = 0; i < length; i++) {
		const struct sim_truth *truth = require_known(sim, sequence, sequence->list[i]);
		struct kvs_segment_view view = {0};

		SIM_REQUIRE(sim,
		    kvs_sequence_segment(sim->engine, sequence->handle, i, &view) == KV_OK &&
		        view.id == sequence->list[i],
		    "entry %u of %s is %llu, it should be %llu", i, sequence->id,
		    (unsigned long long)view.id, (unsigned long long)sequence->list[i]);
		SIM_REQUIRE(sim,
		    memcmp(truth->chain, sequence->tokens, end_of(truth) * sizeof *truth->chain) == 0,
		    "entry %u of %s has other tokens before it", i, sequence->id);
		check_truth(sim, truth);
	}
	for (uint32_t i = 0; i < sequence->piece_count; i++)
		check_truth(sim, require_known(sim, sequence, sequence->pieces[i]));
}

void sim_check_all(struct sim *sim)
{
	struct kvs_statistics statistics;

	SIM_REQUIRE(sim, kvs_engine_check(sim->engine) == KV_OK, "%s", kv_error_message());
	for (uint32_t i = 0; i < sim->truth_count; i++)
		check_truth(sim, &sim->truths[i]);
	for (uint32_t i = 0; i < SIM_SEQUENCES; i++) {
		if (sim->sequences[i].used && !sim->sequences[i].orphan)
			sim_check_sequence(sim, &sim->sequences[i]);
	}
	kvs_engine_statistics(sim->engine, &statistics);
	SIM_REQUIRE(sim, statistics.segments_committed == sim->truth_count,
	    "%u segments are visible, %u were committed", statistics.segments_committed,
	    sim->truth_count);
	SIM_REQUIRE(sim, statistics.limit_bytes >= statistics.region_bytes,
	    "the regions have %llu bytes, the limit is %llu",
	    (unsigned long long)statistics.region_bytes, (unsigned long long)statistics.limit_bytes);
}
