/* What workers do with sequences: each call here is one message to the store, or one unit written.
 */
#include <stdio.h>
#include <string.h>

#include "common/base/crc32c.h"
#include "tests/simulation/simulation.h"

enum wish { ANY, IDLE, WRITING, WRITTEN };

static bool in_flight(const struct sim *sim, const struct sim_sequence *sequence)
{
	for (uint32_t i = 0; i < SIM_FLIGHTS; i++) {
		if (sim->flights[i].active && sim->flights[i].handle == sequence->handle) return true;
	}
	return false;
}

static bool fits(const struct sim *sim, const struct sim_sequence *sequence, enum wish wish)
{
	const struct sim_write *write = &sequence->write;
	const bool written = write->active && write->written == write->count * SIM_LAYERS;

	if (!sequence->used || sequence->orphan || sim->workers[sequence->worker].stopped) return false;
	if (wish == IDLE) return !write->active && !in_flight(sim, sequence);
	if (wish == WRITING) return write->active && !written;
	return wish == ANY || written;
}

/* A sequence that a running worker holds; NULL when there is none. */
static struct sim_sequence *pick(struct sim *sim, enum wish wish)
{
	const uint32_t start = sim_below(sim, SIM_SEQUENCES);

	for (uint32_t i = 0; i < SIM_SEQUENCES; i++) {
		struct sim_sequence *sequence = &sim->sequences[(start + i) % SIM_SEQUENCES];

		if (fits(sim, sequence, wish)) return sequence;
	}
	return NULL;
}

static uint32_t slot_of(const struct sim *sim, const struct sim_sequence *sequence)
{
	return sim->workers[sequence->worker].slot;
}

static uint64_t owner_of(const struct sim_sequence *sequence, const struct kvs_new_segment *shape)
{
	return shape->provenance == KVW_EXACT ? 0 : sequence->owner;
}

static uint32_t list_end(struct sim *sim, const struct sim_sequence *sequence)
{
	const struct sim_truth *last;

	if (sequence->length == 0) return 0;
	last = sim_truth_find(sim, sequence->list[sequence->length - 1]);
	return last->shape.start + last->shape.tokens;
}

uint32_t sim_cut_prompt(uint32_t prompt, struct kvs_cut *cuts)
{
	uint32_t count = 0, at = 0;

	while (prompt > SIM_WINDOW && at + SIM_SEGMENT <= prompt - SIM_WINDOW) {
		at += SIM_SEGMENT;
		cuts[count++] = (struct kvs_cut){at, KVW_CLUSTERED};
	}
	if (prompt > SIM_WINDOW && at < prompt - SIM_WINDOW)
		cuts[count++] = (struct kvs_cut){prompt - SIM_WINDOW, KVW_CLUSTERED};
	cuts[count++] = (struct kvs_cut){prompt, KVW_PLAIN};
	return count;
}

/* ---- open and resume ---- */

static void check_opened(struct sim *sim, struct sim_sequence *sequence,
    const struct kvs_open_result *result, const struct kvs_cut *cuts, uint32_t cut_count)
{
	const uint32_t tenant = sim->workers[sequence->worker].tenant;
	uint64_t parent = 0;
	uint32_t end = 0, reach;

	for (uint32_t i = 0; i < cut_count; i++) {
		const struct kvs_new_segment shape = {end, cuts[i].end - end, cuts[i].kind, KVW_EXACT};
		const struct sim_truth *truth =
		    sim_truth_same(sim, tenant, parent, 0, &shape, sequence->tokens);

		if (!truth) break;
		parent = sequence->list[sequence->length++] = truth->id;
		end = cuts[i].end;
	}
	SIM_REQUIRE(sim, result->shared == sequence->length, "%s shares %u segments, it should be %u",
	    sequence->id, result->shared, sequence->length);
	sim->counts.shared += end;
	reach = sim_truth_reach(sim, sequence, tenant, parent, end);
	sequence->piece_count = result->pieces;
	SIM_REQUIRE(sim, result->pieces <= SIM_ENTRIES, "%u pieces", result->pieces);
	for (uint32_t i = 0; i < result->pieces; i++) {
		struct kvs_segment_view view = {0};
		uint32_t counted = 0;

		SIM_REQUIRE(sim,
		    kvs_sequence_piece(sim->engine, result->sequence, i, &view, &counted) == KV_OK &&
		        view.start == end &&
		        memcmp(view.token_ids, sequence->tokens + end, counted * 4) == 0,
		    "piece %u of %s does not fit", i, sequence->id);
		sequence->pieces[i] = view.id;
		end += counted;
		sim->counts.copied += counted;
	}
	SIM_REQUIRE(sim, end == reach, "the prompt of %s is found up to %u, it should be %u",
	    sequence->id, end, reach);
}

static void fill_prompt(struct sim *sim, struct sim_sequence *sequence, uint32_t index)
{
	memset(sequence, 0, sizeof *sequence);
	sequence->prompt = 1 + sim_below(sim, 64);
	memcpy(
	    sequence->tokens, sim->documents[sim_below(sim, SIM_DOCUMENTS)], sizeof sequence->tokens);
	if (sim_once_in(sim, 3)) sequence->tokens[sim_below(sim, sequence->prompt)] = sim_below(sim, 3);
	snprintf(sequence->id, sizeof sequence->id, "s%u", index);
}

static void open_sequence(struct sim *sim)
{
	const uint32_t index = sim_below(sim, SIM_SEQUENCES);
	const uint32_t worker = index % SIM_TENANTS + SIM_TENANTS * sim_below(sim, 2);
	struct sim_sequence *old = &sim->sequences[index], made;
	struct kvs_cut cuts[SIM_ENTRIES];
	struct kvs_open_request request = {.cuts = cuts};
	struct kvs_open_result result;
	enum kv_status status;

	sim->operation = "open";
	if (sim->workers[worker].stopped) return;
	/* The connection is gone: there is nobody to ask. */
	if (sim->workers[worker].removed) sim_reconnect(sim, worker);
	fill_prompt(sim, &made, index);
	made.worker = worker;
	request.sequence_id = made.id;
	request.prompt = made.tokens;
	request.prompt_tokens = made.prompt;
	request.cut_count = sim_cut_prompt(made.prompt, cuts);
	memcpy(request.policy_digest, sim_policy, sizeof request.policy_digest);
	sim_arm(sim);
	status = kvs_sequence_open(sim->engine, sim->workers[worker].slot, &request, &result);
	if (sim_disarm(sim, status)) return;
	if (sim->workers[worker].lapsed) {
		SIM_REQUIRE(sim, status == KV_STALE, "a lapsed worker opens");
		sim_reconnect(sim, worker);
		return;
	}
	if (old->used && !old->orphan) {
		SIM_REQUIRE(sim, status == KV_EXISTS, "%s is opened twice", made.id);
		return;
	}
	SIM_REQUIRE(sim, status == KV_OK, "open: %s", kv_error_message());
	made.used = true;
	made.handle = result.sequence;
	made.owner = sim->next_owner++;
	check_opened(sim, &made, &result, cuts, request.cut_count);
	*old = made;
	sim_read_cancel(sim, index);
}

static void refuse_foreign(struct sim *sim, const struct sim_sequence *sequence, uint32_t worker)
{
	struct kvs_resume_result result;
	enum kv_status status = kvs_sequence_resume(
	    sim->engine, sim->workers[worker].slot, sequence->id, sim_policy, &result);

	SIM_REQUIRE(sim, status != KV_OK, "%s is resumed by another tenant", sequence->id);
}

/* What is left of the list, and behind it what is stored of the prompt's cuts, as long as nothing
 * but cuts come before. */
static void expect_resumed(struct sim *sim, struct sim_sequence *sequence, uint32_t tenant)
{
	struct kvs_cut cuts[SIM_ENTRIES];
	const uint32_t cut_count = sim_cut_prompt(sequence->prompt, cuts);
	uint32_t usable = 0, end = 0;
	bool exact = true;

	for (; usable < sequence->length; usable++) {
		const struct sim_truth *truth = sim_truth_find(sim, sequence->list[usable]);

		if (!truth) break;
		exact = exact && truth->owner == 0;
		end = truth->shape.start + truth->shape.tokens;
	}
	sequence->length = usable;
	for (; exact && sequence->length < cut_count; sequence->length++) {
		const uint32_t i = sequence->length;
		const struct kvs_new_segment shape = {end, cuts[i].end - end, cuts[i].kind, KVW_EXACT};
		const struct sim_truth *truth =
		    sim_truth_same(sim, tenant, i ? sequence->list[i - 1] : 0, 0, &shape, sequence->tokens);

		if (!truth) break;
		sequence->list[i] = truth->id;
		end = cuts[i].end;
		sim->counts.found_again++;
	}
}

/* What another tier is asked for: all cuts, if some are missing and can follow. */
static void check_missing(struct sim *sim, const struct sim_sequence *sequence, uint32_t slot)
{
	struct kvs_cut cuts[SIM_ENTRIES];
	const uint32_t cut_count = sim_cut_prompt(sequence->prompt, cuts);
	struct kvs_open_request prompt;
	uint32_t usable = 0;
	bool exact = true;

	for (; usable < sequence->length; usable++) {
		const struct sim_truth *truth = sim_truth_find(sim, sequence->list[usable]);

		if (!truth) break;
		exact = exact && truth->owner == 0;
	}
	SIM_REQUIRE(sim,
	    kvs_sequence_missing(sim->engine, slot, sequence->id, sim_policy, &prompt) == KV_OK,
	    "missing: %s", kv_error_message());
	SIM_REQUIRE(sim, prompt.cut_count == (exact && usable < cut_count ? cut_count : 0),
	    "%s, of which %u entries are left, misses %u of %u cuts", sequence->id, usable,
	    prompt.cut_count, cut_count);
	for (uint32_t i = 0; i < prompt.cut_count; i++)
		SIM_REQUIRE(sim, prompt.cuts[i].end == cuts[i].end && prompt.cuts[i].kind == cuts[i].kind,
		    "%s has another cut %u", sequence->id, i);
}

static void resume(struct sim *sim)
{
	const uint32_t worker = sim_below(sim, SIM_WORKERS), start = sim_below(sim, SIM_SEQUENCES);
	struct sim_worker *own = &sim->workers[worker];
	struct sim_sequence *sequence = &sim->sequences[start];
	struct kvs_resume_result result;
	enum kv_status status;

	sim->operation = "resume";
	for (uint32_t i = 0; i < SIM_SEQUENCES && !(sequence->used && sequence->orphan); i++)
		sequence = &sim->sequences[(start + i) % SIM_SEQUENCES];
	if (!sequence->used || own->stopped || own->lapsed || own->removed) return;
	if (own->tenant != (uint32_t)(sequence - sim->sequences) % SIM_TENANTS) {
		refuse_foreign(sim, sequence, worker);
		return;
	}
	if (sequence->orphan) check_missing(sim, sequence, own->slot);
	sim_arm(sim);
	status = kvs_sequence_resume(sim->engine, own->slot, sequence->id, sim_policy, &result);
	if (sim_disarm(sim, status)) return;
	if (!sequence->orphan) {
		SIM_REQUIRE(sim, status == KV_BUSY, "%s is resumed while it is held", sequence->id);
		return;
	}
	SIM_REQUIRE(sim, status == KV_OK, "resume: %s", kv_error_message());
	expect_resumed(sim, sequence, own->tenant);
	SIM_REQUIRE(sim,
	    result.segments == sequence->length && result.prompt_tokens == sequence->prompt &&
	        result.decoded_tokens == sequence->decoded &&
	        memcmp(result.prompt, sequence->tokens, (sequence->prompt + sequence->decoded) * 4) ==
	            0,
	    "%s comes back with %u entries and %u tokens, it had %u and %u", sequence->id,
	    result.segments, result.decoded_tokens, sequence->length, sequence->decoded);
	sequence->worker = worker;
	sequence->handle = result.sequence;
	sequence->orphan = false;
	sim->counts.resumed++;
}

/* ---- reserve and write ---- */

static uint32_t fold_shapes(
    struct sim *sim, const struct sim_sequence *sequence, struct kvs_new_segment *shapes)
{
	const uint32_t known = sequence->prompt + sequence->decoded;
	const struct sim_truth *last;
	uint32_t start;

	if (sequence->length == 0 || sequence->length + 2 > SIM_ENTRIES) return 0;
	last = sim_truth_find(sim, sequence->list[sequence->length - 1]);
	start = last->shape.start;
	if (known < start + SIM_FOLD + SIM_WINDOW) return 0;
	shapes[0] = (struct kvs_new_segment){start, SIM_FOLD, KVW_CLUSTERED, KVW_APPROXIMATE};
	shapes[1] = (struct kvs_new_segment){
	    start + SIM_FOLD, known - start - SIM_FOLD, KVW_PLAIN, KVW_APPROXIMATE};
	return 2;
}

static uint32_t prompt_shapes(
    struct sim *sim, const struct sim_sequence *sequence, struct kvs_new_segment *shapes)
{
	struct kvs_cut cuts[SIM_ENTRIES];
	const uint32_t cut_count = sim_cut_prompt(sequence->prompt, cuts);
	uint32_t count = 0, start = list_end(sim, sequence);

	/* Resumed with half a fold: nothing exact can follow it. */
	if (start > 0 && sim_truth_find(sim, sequence->list[sequence->length - 1])->owner != 0)
		return 0;
	for (uint32_t i = 0; i < cut_count && count < SIM_BATCH; i++) {
		if (cuts[i].end <= start) continue;
		shapes[count++] =
		    (struct kvs_new_segment){start, cuts[i].end - start, cuts[i].kind, KVW_EXACT};
		start = cuts[i].end;
		if (sim_once_in(sim, 4)) break;
	}
	return count;
}

static void take_units(struct sim *sim, struct sim_write *write)
{
	for (uint32_t i = 0; i < write->count; i++) {
		struct kvs_segment_view view;

		SIM_REQUIRE(sim,
		    kvs_segment_find(sim->engine, write->ids[i], &view) == KV_OK && !view.committed,
		    "segment %llu was reserved and is not there", (unsigned long long)write->ids[i]);
		memcpy(write->units + i * SIM_LAYERS, view.units, SIM_LAYERS * sizeof *view.units);
	}
}

/* Whose segments may go for this: only its own when the tenant is at its quota. */
static void expect_evictions(
    struct sim *sim, const struct sim_sequence *sequence, const struct sim_write *write)
{
	const uint32_t tenant = sim->workers[sequence->worker].tenant;
	struct kvs_tenant_info info = {0};
	const uint64_t asked = engine_world_bytes(write->shapes, write->count);

	sim->may_evict = true;
	for (uint32_t i = 0; kvs_tenant_info(sim->engine, i, &info) == KV_OK; i++) {
		const bool own = info.name[strlen(info.name) - 1] == (char)('0' + tenant);

		SIM_REQUIRE(
		    sim, !own || info.quota == sim->quota[tenant], "%s has another quota", info.name);
		if (own && info.quota && info.bytes + asked > info.quota)
			sim->only_tenant = (int32_t)tenant;
	}
}

static void reserve(struct sim *sim)
{
	struct sim_sequence *sequence = pick(sim, IDLE);
	struct sim_write *write;
	enum kv_status status;

	sim->operation = "reserve";
	if (!sequence) return;
	write = &sequence->write;
	memset(write, 0, sizeof *write);
	if (list_end(sim, sequence) >= sequence->prompt) {
		write->count = fold_shapes(sim, sequence, write->shapes);
		write->replaced = 1;
	} else {
		write->count = prompt_shapes(sim, sequence, write->shapes);
	}
	if (write->count == 0) return;
	expect_evictions(sim, sequence, write);
	sim_arm(sim);
	status = kvs_reserve(sim->engine, slot_of(sim, sequence), sequence->handle, write->shapes,
	    write->count, write->ids);
	if (sim_disarm(sim, status)) return;
	if (status == KV_LIMIT || status == KV_TOO_LARGE) {
		SIM_REQUIRE(sim, sim->memory_short || sim->world.refuse_regions || sim->only_tenant >= 0,
		    "reserve: %s", kv_error_message());
		SIM_REQUIRE(sim,
		    (status == KV_LIMIT) == engine_world_fits_alone(sim->engine, sequence->list,
		                                sequence->length,
		                                engine_world_bytes(write->shapes, write->count),
		                                sim->quota[sim->workers[sequence->worker].tenant]),
		    "reserve: the wrong refusal: %s", kv_error_message());
		sim->counts.refused++;
		return;
	}
	SIM_REQUIRE(sim, status == KV_OK, "reserve: %s", kv_error_message());
	write->active = true;
	write->spoiled = sim_once_in(sim, 10);
	take_units(sim, write);
}

/* One unit, by a transfer that goes past the engine. The tokens are those of the sequence. */
static void write_unit(struct sim *sim, const struct sim_sequence *sequence,
    const struct sim_write *write, uint32_t index)
{
	const struct kvs_new_segment *shape = &write->shapes[index / SIM_LAYERS];
	uint8_t *memory = sim_memory(sim, &write->units[index]);

	SIM_REQUIRE(sim, memory, "reserved memory is gone");
	sim_fill(memory, write->units[index].bytes,
	    sim_content(sim->workers[sequence->worker].tenant, shape, sequence->tokens,
	        owner_of(sequence, shape), index % SIM_LAYERS));
}

static void write_some(struct sim *sim)
{
	struct sim_sequence *sequence = pick(sim, WRITING);

	sim->operation = "write";
	if (!sequence) return;
	for (uint32_t i = 1 + sim_below(sim, 6); i-- > 0;) {
		if (sequence->write.written == sequence->write.count * SIM_LAYERS) return;
		write_unit(sim, sequence, &sequence->write, sequence->write.written++);
	}
}

/* ---- commit ---- */

static void spoil(struct sim *sim, const struct sim_write *write)
{
	const struct kvs_unit *unit = &write->units[sim_below(sim, write->count * SIM_LAYERS)];

	sim_memory(sim, unit)[sim_below(sim, (uint32_t)unit->bytes)] ^= 1;
}

static struct sim_flight *free_flight(struct sim *sim)
{
	for (uint32_t i = 0; i < SIM_FLIGHTS; i++) {
		if (!sim->flights[i].active) return &sim->flights[i];
	}
	return NULL;
}

static void begin_commit(struct sim *sim)
{
	struct sim_sequence *sequence = pick(sim, WRITTEN);
	struct sim_flight *flight = free_flight(sim);
	struct sim_write *write;
	uint32_t checksums[SIM_BATCH * SIM_LAYERS], units;
	struct kvs_commit_request request = {.checksums = checksums};
	struct kvs_commit *commit = NULL;
	enum kv_status status;

	sim->operation = "commit";
	if (!sequence || !flight) return;
	write = &sequence->write;
	units = write->count * SIM_LAYERS;
	for (uint32_t i = 0; i < units; i++)
		checksums[i] = kv_crc32c(0, sim_memory(sim, &write->units[i]), write->units[i].bytes);
	if (write->spoiled) spoil(sim, write);
	request.sequence = sequence->handle;
	request.segment_ids = write->ids;
	request.segment_count = write->count;
	request.checksum_count = units;
	request.tokens = sequence->tokens + write->shapes[0].start;
	for (uint32_t i = 0; i < write->count; i++)
		request.token_count += write->shapes[i].tokens;
	request.replaced_ids = sequence->list + sequence->length - write->replaced;
	request.replaced_count = write->replaced;
	sim->may_evict = true;
	sim_arm(sim);
	status = kvs_commit_begin(sim->engine, slot_of(sim, sequence), &request, &commit);
	if (write->spoiled) sim->counts.corrupt += status == KV_OK;
	if (sim_disarm(sim, status)) {
		if (write->spoiled) write->written = 0;
		return;
	}
	/* The last commit of this sequence may still be verified. */
	if (status == KV_BUSY) return;
	SIM_REQUIRE(sim, status == KV_OK, "commit: %s", kv_error_message());
	*flight = (struct sim_flight){.active = true,
	    .commit = commit,
	    .sequence = (uint32_t)(sequence - sim->sequences),
	    .handle = sequence->handle,
	    .write = *write};
	write->active = false;
}

static enum kv_status verify(struct sim *sim, const struct kvs_commit *commit)
{
	for (uint32_t i = 0; i < kvs_commit_segments(commit); i++) {
		struct kvs_segment_view view;

		kvs_commit_segment(commit, i, &view);
		for (uint32_t layer = 0; layer < view.layers; layer++) {
			const uint8_t *memory = kvs_unit_memory(sim->engine, &view.units[layer]);

			SIM_REQUIRE(sim, memory, "the memory of a commit in flight is gone");
			if (kv_crc32c(0, memory, view.units[layer].bytes) != view.checksums[layer])
				return KV_CORRUPT;
		}
	}
	return KV_OK;
}

/* The list as it must be: an entry for each segment, the stored one where there is one. */
static void expect_list(struct sim *sim, struct sim_sequence *sequence,
    const struct sim_write *write, const struct kvs_commit_result *result)
{
	const uint32_t tenant = sim->workers[sequence->worker].tenant;
	uint64_t parent;
	uint32_t duplicates = 0;

	sequence->length -= write->replaced;
	parent = sequence->length > 0 ? sequence->list[sequence->length - 1] : 0;
	SIM_REQUIRE(sim, result->first == sequence->length && result->count == write->count,
	    "a commit fills [%u, +%u), it should be [%u, +%u)", result->first, result->count,
	    sequence->length, write->count);
	for (uint32_t i = 0; i < write->count; i++) {
		const struct kvs_new_segment *shape = &write->shapes[i];
		const uint64_t owner = owner_of(sequence, shape);
		const struct sim_truth *same =
		    sim_truth_same(sim, tenant, parent, owner, shape, sequence->tokens);

		if (!same)
			sim_truth_add(sim, write->ids[i], parent, owner, tenant, shape, sequence->tokens);
		duplicates += same != NULL;
		parent = sequence->list[sequence->length++] = same ? same->id : write->ids[i];
	}
	SIM_REQUIRE(sim, result->duplicates == duplicates, "%u duplicates, it should be %u",
	    result->duplicates, duplicates);
	sim->counts.duplicates += duplicates;
	sim->counts.folds += write->replaced;
}

/* The answer was lost: the same request comes again and must change nothing. */
static void repeat(struct sim *sim, const struct sim_sequence *sequence,
    const struct sim_write *write, const struct kvs_commit_result *first)
{
	const struct kvs_commit_request request = {
	    .sequence = sequence->handle, .segment_ids = write->ids, .segment_count = write->count};
	struct kvs_commit_result again;
	enum kv_status status = kvs_commit_now(sim->engine, slot_of(sim, sequence), &request, &again);

	SIM_REQUIRE(sim,
	    status == KV_OK && again.repeated && again.first == first->first &&
	        again.count == first->count,
	    "a repeated commit is answered otherwise: %s", kv_error_message());
	sim->counts.repeated++;
}

void sim_finish_flight(struct sim *sim, struct sim_flight *flight)
{
	struct sim_sequence *sequence = &sim->sequences[flight->sequence];
	const bool stale = !sequence->used || sequence->orphan || sequence->handle != flight->handle;
	struct kvs_commit_result result = {0};
	enum kv_status verified = verify(sim, flight->commit), status;

	flight->active = false;
	status = kvs_commit_finish(sim->engine, flight->commit, verified, &result);
	sim_trace(sim, "commit of %s: %s, %s", sequence->id, kv_status_text(verified),
	    kv_status_text(status));
	if (stale) {
		SIM_REQUIRE(sim, status == KV_STALE, "a commit of one that lost its lease: %s",
		    kv_status_text(status));
		sim->counts.stale++;
		return;
	}
	if (flight->write.spoiled) {
		SIM_REQUIRE(
		    sim, status == KV_CORRUPT, "spoiled bytes are committed: %s", kv_status_text(status));
		return;
	}
	SIM_REQUIRE(sim, status == KV_OK, "finish: %s", kv_error_message());
	if (flight->write.replaced) sim_read_cancel(sim, flight->sequence);
	expect_list(sim, sequence, &flight->write, &result);
	sim->counts.commits++;
	if (sim_once_in(sim, 4) && !sim->workers[sequence->worker].lapsed)
		repeat(sim, sequence, &flight->write, &result);
}

void sim_finish(struct sim *sim)
{
	struct sim_flight *flight = &sim->flights[sim_below(sim, SIM_FLIGHTS)];

	sim->operation = "finish";
	for (uint32_t i = 0; i < SIM_FLIGHTS && !flight->active; i++)
		flight = &sim->flights[i];
	if (flight->active) sim_finish_flight(sim, flight);
}

/* ---- the rest ---- */

static void push(struct sim *sim)
{
	struct sim_sequence *sequence = pick(sim, ANY);
	uint32_t count = 1 + sim_below(sim, 6), again, *place;
	enum kv_status status;

	sim->operation = "push";
	if (!sequence || sequence->prompt + sequence->decoded + count > SIM_TOKENS) return;
	again = sim_below(sim, sequence->decoded + 1);
	place = sequence->tokens + sequence->prompt + sequence->decoded;
	for (uint32_t i = 0; i < count; i++)
		place[i] = sim_below(sim, 1000);
	sim->may_evict = true;
	sim_arm(sim);
	status = kvs_sequence_push(sim->engine, slot_of(sim, sequence), sequence->handle,
	    sequence->decoded - again, place - again, again + count, "s", 1);
	if (sim_disarm(sim, status)) return;
	SIM_REQUIRE(sim, status == KV_OK, "push: %s", kv_error_message());
	sequence->decoded += count;
}

static void release(struct sim *sim)
{
	struct sim_sequence *sequence = pick(sim, ANY);
	struct kvs_segment_view view;
	enum kv_status status;

	sim->operation = "release";
	if (!sequence) return;
	sim_read_cancel(sim, (uint32_t)(sequence - sim->sequences));
	status = kvs_release(sim->engine, slot_of(sim, sequence), sequence->handle, sequence->pieces,
	    sequence->piece_count);
	SIM_REQUIRE(sim, status == KV_OK, "release: %s", kv_error_message());
	sequence->piece_count = 0;
	if (!sequence->write.active || !sim_once_in(sim, 3)) return;
	/* Twice: the second time the answer was lost. */
	for (uint32_t i = 0; i < 2; i++) {
		status = kvs_release(sim->engine, slot_of(sim, sequence), sequence->handle,
		    sequence->write.ids, sequence->write.count);
		SIM_REQUIRE(sim, status == KV_OK, "release: %s", kv_error_message());
	}
	SIM_REQUIRE(sim, kvs_segment_find(sim->engine, sequence->write.ids[0], &view) != KV_OK,
	    "a released reservation is still there");
	sequence->write.active = false;
}

static void close_sequence(struct sim *sim)
{
	struct sim_sequence *sequence = pick(sim, ANY);
	const bool keep = sim_once_in(sim, 2);
	enum kv_status status;

	sim->operation = "close";
	if (!sequence) return;
	sim_read_cancel(sim, (uint32_t)(sequence - sim->sequences));
	sim_remember(sim, &sim->workers[sequence->worker], sequence->handle, 0);
	sim->graves[(sim->grave_next + SIM_GRAVES - 1) % SIM_GRAVES].epoch = 0;
	status = kvs_sequence_close(sim->engine, slot_of(sim, sequence), sequence->handle, keep);
	SIM_REQUIRE(sim, status == KV_OK, "close: %s", kv_error_message());
	sequence->used = keep;
	sequence->orphan = true;
	sequence->write.active = false;
	sequence->piece_count = 0;
	sequence->expires_ms = sim->world.now + SIM_ORPHAN_MS;
}

void sim_work(struct sim *sim)
{
	static void (*const operations[])(struct sim *) = {open_sequence, open_sequence, open_sequence,
	    open_sequence, resume, resume, resume, reserve, reserve, reserve, reserve, write_some,
	    write_some, write_some, write_some, write_some, write_some, begin_commit, begin_commit,
	    begin_commit, begin_commit, push, push, push, release, close_sequence};

	operations[sim_below(sim, sizeof operations / sizeof *operations)](sim);
}
