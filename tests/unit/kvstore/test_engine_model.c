/* Random operations of several peers, compared after each one with a simple model: what every list
 * holds, which bytes every segment must have, and what a prompt must find. Peers that fell silent
 * go on writing to what they had reserved, which must disturb nobody. */
#include "tests/unit/kvstore/engine_fixture.h"

enum {
	SEEDS = 200,
	STEPS = 200,
	PEERS = 4,
	SEQUENCES = 8,
	TOKENS = 160,
	ENTRIES = 48,
	KNOWN = 4096,
	SEGMENT = 16,
	WINDOW = 8,
	FOLD = 6,
	DOCUMENTS = 3
};

struct known {
	uint64_t id, parent; /* parent 0: the root */
	uint64_t owner;      /* 0 for exact ones */
	struct kvs_new_segment shape;
	uint32_t chain[TOKENS]; /* from position 0 */
};

struct live {
	bool used, orphan;
	uint32_t peer;
	uint64_t handle, owner;
	char id[8];
	uint32_t tokens[TOKENS], prompt, decoded;
	uint64_t list[ENTRIES];
	uint32_t length;
	uint64_t pieces[ENTRIES];
	uint32_t piece_count;
	uint64_t reserved[ENTRIES];
	uint32_t reserved_count;
};

struct zombie {
	uint64_t id, epoch;
};

struct world {
	struct store store;
	struct kv_random random;
	uint32_t documents[DOCUMENTS][TOKENS];
	struct known *known;
	uint32_t known_count;
	struct live sequences[SEQUENCES];
	uint32_t peers[PEERS];
	uint64_t epochs[PEERS];
	struct zombie zombies[KNOWN];
	uint32_t zombie_count;
	uint64_t next_owner;
	bool evicts; /* memory is short: segments go by themselves */
	uint32_t folds;
};

/* What all seeds together did: a walk that avoids something tests nothing of it. */
struct done {
	uint64_t evictions, commits, duplicates, shared, copied, resumed, expiries, zombies, folds,
	    refused;
};

static uint32_t below(struct world *world, uint32_t bound)
{
	return (uint32_t)kv_random_below(&world->random, bound);
}

/* ---- which bytes a segment has ---- */

static uint64_t content_seed(
    const struct kvs_new_segment *shape, const uint32_t *chain, uint64_t owner, uint32_t layer)
{
	uint64_t hash = 1469598103934665603u + owner * 31 + layer;

	for (uint32_t i = 0; i < shape->start + shape->tokens; i++)
		hash = (hash ^ chain[i]) * 1099511628211u;
	hash = (hash ^ shape->start) * 1099511628211u;
	return (hash ^ (uint64_t)shape->kind) * 1099511628211u;
}

static void write_segment(struct world *world, uint64_t id, const uint32_t *chain, uint64_t owner)
{
	struct kvs_segment_view view;

	assert_ok(kvs_segment_find(world->store.engine, id, &view));
	for (uint32_t layer = 0; layer < view.layers; layer++) {
		const struct kvs_new_segment shape = {view.start, view.tokens, view.kind, view.provenance};
		uint8_t *memory = kvs_unit_memory(world->store.engine, &view.units[layer]);
		struct kv_random bytes;

		assert_non_null(memory);
		kv_random_seed(&bytes, content_seed(&shape, chain, owner, layer));
		for (uint64_t at = 0; at < view.units[layer].bytes; at += 8) {
			uint64_t word = kv_random_next(&bytes);

			memcpy(memory + at, &word, 8);
		}
	}
}

static void assert_content(struct world *world, const struct known *known)
{
	struct kvs_segment_view view;

	assert_ok(kvs_segment_find(world->store.engine, known->id, &view));
	assert_true(view.committed);
	assert_int_equal(view.start, known->shape.start);
	assert_int_equal(view.tokens, known->shape.tokens);
	assert_int_equal(view.kind, known->shape.kind);
	assert_int_equal(view.provenance, known->shape.provenance);
	assert_memory_equal(
	    view.token_ids, known->chain + view.start, view.tokens * sizeof *known->chain);
	for (uint32_t layer = 0; layer < view.layers; layer++) {
		const uint8_t *memory = kvs_unit_memory(world->store.engine, &view.units[layer]);
		struct kv_random bytes;

		kv_random_seed(&bytes, content_seed(&known->shape, known->chain, known->owner, layer));
		for (uint64_t at = 0; at < view.units[layer].bytes; at += 8) {
			uint64_t word = kv_random_next(&bytes);

			assert_memory_equal(memory + at, &word, 8);
		}
	}
}

/* ---- what is known to be stored ---- */

static struct known *find_known(struct world *world, uint64_t id)
{
	for (uint32_t i = 0; i < world->known_count; i++) {
		if (world->known[i].id == id) return &world->known[i];
	}
	return NULL;
}

static void forget_gone(struct world *world)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < world->known_count; i++) {
		if (!store_has(&world->store, world->known[i].id)) continue;
		if (kept != i) world->known[kept] = world->known[i];
		kept++;
	}
	world->known_count = kept;
}

static void learn(struct world *world, uint64_t id, uint64_t parent,
    const struct kvs_new_segment *shape, const struct live *sequence)
{
	struct known *known = find_known(world, id);

	if (!known) {
		assert_true(world->known_count < KNOWN);
		known = &world->known[world->known_count++];
		known->id = id;
		known->parent = parent;
		known->shape = *shape;
		known->owner = shape->provenance == KVW_EXACT ? 0 : sequence->owner;
		memcpy(known->chain, sequence->tokens, sizeof known->chain);
	}
	/* Stored before: it must be the same thing. */
	assert_int_equal(known->parent, parent);
	assert_memory_equal(&known->shape, shape, sizeof *shape);
	assert_memory_equal(known->chain, sequence->tokens, (shape->start + shape->tokens) * 4);
}

static uint32_t common(const struct known *known, const struct live *sequence)
{
	const uint32_t end = known->shape.start + known->shape.tokens;
	uint32_t i = known->shape.start;

	while (i < end && i < sequence->prompt && known->chain[i] == sequence->tokens[i])
		i++;
	return i;
}

/* How far the prompt's match reaches below the segment `parent`, which ends at `end`. */
static uint32_t best_reach(
    struct world *world, const struct live *sequence, uint64_t parent, uint32_t end)
{
	uint32_t best = end;

	for (uint32_t i = 0; i < world->known_count; i++) {
		const struct known *known = &world->known[i];
		uint32_t reach;

		if (known->parent != parent || known->owner != 0 || known->shape.start != end) continue;
		reach = common(known, sequence);
		if (reach == end + known->shape.tokens)
			reach = best_reach(world, sequence, known->id, reach);
		if (reach > best) best = reach;
	}
	return best;
}

static const struct known *known_cut(struct world *world, const struct live *sequence,
    uint64_t parent, uint32_t start, const struct kvs_cut *cut)
{
	for (uint32_t i = 0; i < world->known_count; i++) {
		const struct known *known = &world->known[i];

		if (known->parent == parent && known->owner == 0 && known->shape.start == start &&
		    start + known->shape.tokens == cut->end && known->shape.kind == cut->kind &&
		    common(known, sequence) == cut->end)
			return known;
	}
	return NULL;
}

/* ---- the state as it should be ---- */

static void check_sequence(struct world *world, const struct live *sequence)
{
	struct kvs_segment_view view;
	uint32_t length = 0;

	assert_ok(kvs_sequence_length(world->store.engine, sequence->handle, &length));
	assert_int_equal(length, sequence->length);
	for (uint32_t i = 0; i < length; i++) {
		struct known *known = find_known(world, sequence->list[i]);

		assert_ok(kvs_sequence_segment(world->store.engine, sequence->handle, i, &view));
		assert_int_equal(view.id, sequence->list[i]);
		assert_non_null(known);
		assert_true(known->owner == 0 || known->owner == sequence->owner);
		assert_memory_equal(known->chain, sequence->tokens, (view.start + view.tokens) * 4);
		assert_content(world, known);
	}
	for (uint32_t i = 0; i < sequence->piece_count; i++) {
		struct known *known = find_known(world, sequence->pieces[i]);

		assert_non_null(known);
		assert_content(world, known);
	}
}

static void check_world(struct world *world)
{
	assert_sound(&world->store);
	forget_gone(world);
	for (uint32_t i = 0; i < world->zombie_count; i++) {
		struct kvs_segment_view view;
		uint8_t *memory;

		assert_ok(kvs_segment_find(world->store.engine, world->zombies[i].id, &view));
		memory = kvs_unit_memory(world->store.engine, &view.units[1]);
		memset(memory, (int)below(world, 256), view.units[1].bytes);
	}
	for (uint32_t i = 0; i < SEQUENCES; i++) {
		if (world->sequences[i].used && !world->sequences[i].orphan)
			check_sequence(world, &world->sequences[i]);
	}
}

/* ---- operations ---- */

static uint32_t cut_prompt(uint32_t prompt, struct kvs_cut *cuts)
{
	uint32_t count = 0, at = 0;

	while (prompt > WINDOW && at + SEGMENT <= prompt - WINDOW) {
		at += SEGMENT;
		cuts[count++] = (struct kvs_cut){at, KVW_CLUSTERED};
	}
	if (prompt > WINDOW && at < prompt - WINDOW)
		cuts[count++] = (struct kvs_cut){prompt - WINDOW, KVW_CLUSTERED};
	cuts[count++] = (struct kvs_cut){prompt, KVW_PLAIN};
	return count;
}

static void check_opened(struct world *world, struct live *sequence,
    const struct kvs_open_result *result, const struct kvs_cut *cuts, uint32_t cut_count)
{
	uint64_t parent = 0;
	uint32_t end = 0, reach, counted;
	struct kvs_segment_view view;

	sequence->length = 0;
	for (uint32_t i = 0; i < cut_count; i++) {
		const struct known *known = known_cut(world, sequence, parent, end, &cuts[i]);

		if (!known) break;
		parent = sequence->list[sequence->length++] = known->id;
		end = cuts[i].end;
	}
	assert_int_equal(result->shared, sequence->length);
	reach = best_reach(world, sequence, parent, end);
	for (uint32_t i = 0; i < result->pieces; i++) {
		assert_ok(kvs_sequence_piece(world->store.engine, result->sequence, i, &view, &counted));
		assert_int_equal(view.start, end);
		assert_true(counted == view.tokens || i + 1 == result->pieces);
		assert_memory_equal(view.token_ids, sequence->tokens + end, counted * 4);
		assert_int_equal(view.provenance, KVW_EXACT);
		sequence->pieces[i] = view.id;
		end += counted;
	}
	sequence->piece_count = result->pieces;
	assert_int_equal(end, reach);
}

static struct live *pick(struct world *world, bool orphan)
{
	struct live *sequence = &world->sequences[below(world, SEQUENCES)];

	return sequence->used && sequence->orphan == orphan ? sequence : NULL;
}

static void do_open(struct world *world)
{
	struct live *sequence = &world->sequences[below(world, SEQUENCES)];
	uint32_t peer = below(world, PEERS), cut_count;
	struct kvs_cut cuts[ENTRIES];
	struct kvs_open_request request = {.cuts = cuts};
	struct kvs_open_result result;

	if (sequence->used && !sequence->orphan) return;
	memset(sequence, 0, sizeof *sequence);
	sequence->prompt = 1 + below(world, 100);
	memcpy(sequence->tokens, world->documents[below(world, DOCUMENTS)], sizeof sequence->tokens);
	if (below(world, 2)) sequence->tokens[below(world, sequence->prompt)] = below(world, 3);
	snprintf(sequence->id, sizeof sequence->id, "s%u", (unsigned)(sequence - world->sequences));
	cut_count = cut_prompt(sequence->prompt, cuts);
	request.sequence_id = sequence->id;
	request.prompt = sequence->tokens;
	request.prompt_tokens = sequence->prompt;
	request.cut_count = cut_count;
	memcpy(request.policy_digest, store_policy, 32);
	assert_ok(kvs_sequence_open(world->store.engine, world->peers[peer], &request, &result));
	sequence->used = true;
	sequence->peer = peer;
	sequence->handle = result.sequence;
	sequence->owner = world->next_owner++;
	check_opened(world, sequence, &result, cuts, cut_count);
}

static uint32_t list_end(struct world *world, const struct live *sequence)
{
	const struct known *last;

	if (sequence->length == 0) return 0;
	last = find_known(world, sequence->list[sequence->length - 1]);
	return last->shape.start + last->shape.tokens;
}

static bool reserve(struct world *world, struct live *sequence,
    const struct kvs_new_segment *shapes, uint32_t count, uint64_t *ids)
{
	enum kv_status status = kvs_reserve(
	    world->store.engine, world->peers[sequence->peer], sequence->handle, shapes, count, ids);

	if (status == KV_LIMIT || status == KV_TOO_LARGE) {
		assert_true(world->evicts);
		assert_int_equal(
		    status == KV_LIMIT, engine_world_fits_alone(world->store.engine, sequence->list,
		                            sequence->length, engine_world_bytes(shapes, count), 0));
	} else {
		assert_ok(status);
	}
	return status == KV_OK;
}

static void model_replace(
    struct live *sequence, uint32_t replaced, const uint64_t *ids, uint32_t count)
{
	sequence->length -= replaced;
	memcpy(sequence->list + sequence->length, ids, count * sizeof *ids);
	sequence->length += count;
	assert_true(sequence->length < ENTRIES);
}

/* Write, commit, and learn what the list holds then. */
static void commit(struct world *world, struct live *sequence, const struct kvs_new_segment *shapes,
    uint32_t count, uint64_t *ids, uint32_t replaced)
{
	const struct kvs_commit_request request = {
	    .sequence = sequence->handle,
	    .segment_ids = ids,
	    .segment_count = count,
	    .tokens = sequence->tokens + shapes[0].start,
	    .token_count = shapes[count - 1].start + shapes[count - 1].tokens - shapes[0].start,
	    .replaced_ids = sequence->list + sequence->length - replaced,
	    .replaced_count = replaced,
	};
	struct kvs_commit_result result;
	uint64_t parent =
	    sequence->length > replaced ? sequence->list[sequence->length - replaced - 1] : 0;
	struct kvs_commit *started = NULL;

	for (uint32_t i = 0; i < count; i++)
		write_segment(world, ids[i], sequence->tokens,
		    shapes[i].provenance == KVW_EXACT ? 0 : sequence->owner);
	assert_ok(
	    kvs_commit_begin(world->store.engine, world->peers[sequence->peer], &request, &started));
	if (below(world, 10) == 0) {
		assert_int_equal(
		    kvs_commit_finish(world->store.engine, started, KV_CORRUPT, &result), KV_CORRUPT);
		return;
	}
	assert_ok(kvs_commit_finish(world->store.engine, started, KV_OK, &result));
	assert_int_equal(result.first, sequence->length - replaced);
	assert_int_equal(result.count, count);
	for (uint32_t i = 0; i < count; i++) {
		uint64_t id = store_entry(&world->store, sequence->handle, result.first + i);

		learn(world, id, parent, &shapes[i], sequence);
		parent = ids[i] = id;
	}
	model_replace(sequence, replaced, ids, count);
}

static void do_fill(struct world *world)
{
	struct live *sequence = pick(world, false);
	struct kvs_cut cuts[ENTRIES];
	struct kvs_new_segment shapes[ENTRIES];
	uint64_t ids[ENTRIES];
	uint32_t cut_count, count = 0, start;

	if (!sequence) return;
	cut_count = cut_prompt(sequence->prompt, cuts);
	start = list_end(world, sequence);
	for (uint32_t i = 0; i < cut_count; i++) {
		if (cuts[i].end <= start) continue;
		shapes[count++] =
		    (struct kvs_new_segment){start, cuts[i].end - start, cuts[i].kind, KVW_EXACT};
		start = cuts[i].end;
		if (below(world, 4) == 0) break;
	}
	if (count == 0 || !reserve(world, sequence, shapes, count, ids)) return;
	commit(world, sequence, shapes, count, ids, 0);
}

static void do_fold(struct world *world)
{
	struct live *sequence = pick(world, false);
	const uint32_t known = sequence ? sequence->prompt + sequence->decoded : 0;
	const struct known *last;
	uint64_t ids[2];
	uint32_t start;

	if (!sequence || list_end(world, sequence) < sequence->prompt) return;
	last = find_known(world, sequence->list[sequence->length - 1]);
	start = last->shape.start;
	if (known < start + FOLD + WINDOW || sequence->length + 2 >= ENTRIES) return;
	{
		const struct kvs_new_segment shapes[] = {{start, FOLD, KVW_CLUSTERED, KVW_APPROXIMATE},
		    {start + FOLD, known - start - FOLD, KVW_PLAIN, KVW_APPROXIMATE}};

		if (!reserve(world, sequence, shapes, 2, ids)) return;
		commit(world, sequence, shapes, 2, ids, 1);
		world->folds++;
	}
}

static void do_push(struct world *world)
{
	struct live *sequence = pick(world, false);
	uint32_t count = 1 + below(world, 8), again, *place;

	if (!sequence || sequence->prompt + sequence->decoded + count > TOKENS) return;
	again = below(world, sequence->decoded + 1);
	place = sequence->tokens + sequence->prompt + sequence->decoded;
	for (uint32_t i = 0; i < count; i++)
		place[i] = below(world, 1000);
	assert_ok(kvs_sequence_push(world->store.engine, world->peers[sequence->peer], sequence->handle,
	    sequence->decoded - again, place - again, again + count, "s", 1));
	sequence->decoded += count;
}

static void do_reserve_only(struct world *world)
{
	struct live *sequence = pick(world, false);
	struct kvs_new_segment shape = {0, 1 + below(world, 40), KVW_PLAIN, KVW_EXACT};
	uint64_t id;

	if (!sequence || sequence->reserved_count + 1 >= ENTRIES) return;
	if (reserve(world, sequence, &shape, 1, &id))
		sequence->reserved[sequence->reserved_count++] = id;
}

static void do_release(struct world *world)
{
	struct live *sequence = pick(world, false);

	if (!sequence) return;
	assert_ok(kvs_release(world->store.engine, world->peers[sequence->peer], sequence->handle,
	    sequence->pieces, sequence->piece_count));
	sequence->piece_count = 0;
	if (sequence->reserved_count == 0) return;
	sequence->reserved_count--;
	assert_ok(kvs_release(world->store.engine, world->peers[sequence->peer], sequence->handle,
	    &sequence->reserved[sequence->reserved_count], 1));
	assert_false(store_has(&world->store, sequence->reserved[sequence->reserved_count]));
}

static void do_close(struct world *world)
{
	struct live *sequence = pick(world, false);
	bool keep = below(world, 3) > 0;

	if (!sequence || below(world, 2) == 0) return;
	assert_ok(kvs_sequence_close(
	    world->store.engine, world->peers[sequence->peer], sequence->handle, keep));
	sequence->used = keep;
	sequence->orphan = true;
	sequence->piece_count = sequence->reserved_count = 0;
}

/* What is left of the list, and the cuts that are stored behind it. Returns how many are left. */
static uint32_t list_at_resume(struct world *world, struct live *sequence)
{
	struct kvs_cut cuts[ENTRIES];
	const uint32_t cut_count = cut_prompt(sequence->prompt, cuts);
	uint32_t usable = 0, end = 0;
	bool exact = true;

	while (usable < sequence->length && store_has(&world->store, sequence->list[usable])) {
		const struct known *known = find_known(world, sequence->list[usable++]);

		exact = exact && !known->owner;
		end = known->shape.start + known->shape.tokens;
	}
	sequence->length = usable;
	while (exact && sequence->length < cut_count) {
		const struct kvs_cut *cut = &cuts[sequence->length];
		const struct known *known = known_cut(
		    world, sequence, sequence->length ? sequence->list[sequence->length - 1] : 0, end, cut);

		if (!known) break;
		sequence->list[sequence->length++] = known->id;
		end = cut->end;
	}
	return usable;
}

static void do_resume(struct world *world)
{
	struct live *sequence = pick(world, true);
	struct kvs_resume_result result;
	uint32_t had;

	if (!sequence) return;
	sequence->peer = below(world, PEERS);
	had = sequence->length;
	assert_true(list_at_resume(world, sequence) == had || world->evicts);
	assert_ok(kvs_sequence_resume(
	    world->store.engine, world->peers[sequence->peer], sequence->id, store_policy, &result));
	assert_int_equal(result.segments, sequence->length);
	assert_int_equal(result.prompt_tokens, sequence->prompt);
	assert_int_equal(result.decoded_tokens, sequence->decoded);
	assert_memory_equal(
	    result.prompt, sequence->tokens, (sequence->prompt + sequence->decoded) * 4);
	sequence->handle = result.sequence;
	sequence->orphan = false;
}

static void bury(struct world *world, uint64_t epoch)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < world->zombie_count; i++) {
		if (world->zombies[i].epoch == epoch)
			assert_false(store_has(&world->store, world->zombies[i].id));
		else
			world->zombies[kept++] = world->zombies[i];
	}
	world->zombie_count = kept;
}

/* A peer goes: 0 dead, 1 its connection broke, 2 it fell silent. A new one takes its place. */
static void do_peer(struct world *world)
{
	uint32_t peer = below(world, PEERS), how = below(world, 3);
	uint32_t slot = world->peers[peer];

	if (below(world, 4) > 0) return;
	for (uint32_t i = 0; i < SEQUENCES; i++) {
		struct live *sequence = &world->sequences[i];

		if (!sequence->used || sequence->orphan || sequence->peer != peer) continue;
		for (uint32_t j = 0; j < sequence->reserved_count && how > 0; j++)
			world->zombies[world->zombie_count++] =
			    (struct zombie){sequence->reserved[j], world->epochs[peer]};
		sequence->orphan = true;
		sequence->piece_count = sequence->reserved_count = 0;
	}
	if (how == 2) {
		world->store.world.now += 3000;
		for (uint32_t i = 0; i < PEERS; i++) {
			if (i != peer)
				assert_ok(
				    kvs_peer_heartbeat(world->store.engine, world->peers[i], world->epochs[i]));
		}
		kvs_engine_tick(world->store.engine);
		assert_int_equal(world->store.world.page.lease[slot], 0);
	}
	kvs_peer_remove(world->store.engine, slot, how == 0);
	if (how > 0 && below(world, 2)) {
		kvs_peer_proven_dead(world->store.engine, world->epochs[peer]);
		bury(world, world->epochs[peer]);
	}
	world->peers[peer] = store_peer(&world->store, "p");
	world->epochs[peer] = store_epoch(&world->store, world->peers[peer]);
}

static void do_evict(struct world *world)
{
	if (!world->evicts) return;
	kvs_engine_evict(world->store.engine);
	assert_int_equal(store_statistics(&world->store).cached_bytes, 0);
}

static void add_up(struct world *world, struct done *done)
{
	const struct kvs_statistics statistics = store_statistics(&world->store);

	done->evictions += statistics.evictions;
	done->commits += statistics.commits;
	done->duplicates += statistics.commits_duplicate;
	done->shared += statistics.prefix_shared_tokens;
	done->copied += statistics.prefix_copied_tokens;
	done->resumed += statistics.sequences_resumed;
	done->expiries += statistics.lease_expiries;
	done->zombies += statistics.zombie_reservations;
	done->refused += statistics.reserve_failures;
	done->folds += world->folds;
}

typedef void (*operation)(struct world *world);

static void run_seed(struct world *world, uint64_t seed, struct done *done)
{
	static const operation operations[] = {do_open, do_open, do_open, do_fill, do_fill, do_fill,
	    do_fill, do_fold, do_fold, do_push, do_push, do_push, do_reserve_only, do_release, do_close,
	    do_resume, do_resume, do_peer, do_evict};
	struct known *known = world->known;
	struct kvs_options options = {.max_segments = 512, .max_sequences = 16, .max_peers = 8};

	memset(world, 0, sizeof *world);
	world->known = known;
	world->next_owner = 1;
	kv_random_seed(&world->random, seed);
	world->evicts = seed % 3 != 0;
	options.memory = world->evicts ? 8192 + 4096 * below(world, 16) : 4 << 20;
	options.region_bytes = 1024u << below(world, 5);
	store_start(&world->store, &options);
	for (uint32_t i = 0; i < DOCUMENTS; i++) {
		for (uint32_t j = 0; j < TOKENS; j++)
			world->documents[i][j] = i > 0 && j < 40 ? world->documents[0][j] : below(world, 3);
	}
	for (uint32_t i = 0; i < PEERS; i++) {
		world->peers[i] = store_peer(&world->store, "p");
		world->epochs[i] = store_epoch(&world->store, world->peers[i]);
	}
	for (uint32_t step = 0; step < STEPS; step++) {
		operations[below(world, sizeof operations / sizeof *operations)](world);
		check_world(world);
	}
	add_up(world, done);
	store_stop(&world->store);
}

static void test_random_operations(void **state)
{
	struct world *world = calloc(1, sizeof *world);
	struct done done = {0};

	(void)state;
	assert_non_null(world);
	world->known = calloc(KNOWN, sizeof *world->known);
	assert_non_null(world->known);
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		run_seed(world, seed, &done);
	print_message("%u seeds: %u commits, %u folds, %u duplicates, %u tokens shared, %u copied, %u "
	              "evictions, %u refusals, %u resumed, %u leases lapsed, %u zombies\n",
	    (unsigned)SEEDS, (unsigned)done.commits, (unsigned)done.folds, (unsigned)done.duplicates,
	    (unsigned)done.shared, (unsigned)done.copied, (unsigned)done.evictions,
	    (unsigned)done.refused, (unsigned)done.resumed, (unsigned)done.expiries,
	    (unsigned)done.zombies);
	assert_true(done.commits > SEEDS && done.folds > SEEDS / 4 && done.duplicates > SEEDS / 4);
	assert_true(done.shared > SEEDS && done.copied > SEEDS && done.evictions > SEEDS);
	assert_true(done.refused > 0 && done.resumed > SEEDS && done.expiries > 0 && done.zombies > 0);
	free(world->known);
	free(world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_random_operations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
