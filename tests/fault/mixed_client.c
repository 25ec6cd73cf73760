/* A store client of the mixed load: conversations over shared documents, each turn a longer prompt,
 * with key/values that follow from the tokens before them, so that every byte that comes back is
 * known. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/random.h"
#include "kvstore/client/store_client.h"
#include "tests/fault/mixed_load.h"

enum {
	LAYERS = 3,
	DOCUMENTS = 12,
	TALKS = 40,
	TURNS = 6,
	MOST_TOKENS = 5200,
	VOCABULARY = 50000,
	HELD = 10, /* sequences that one client holds to fill the store */
	ROUNDS = 6,
	MOST_READS = LAYERS * (MOST_TOKENS / MIXED_SEGMENT_TOKENS + 1)
};

#define BUFFER_BYTES (UINT64_C(8) << 20)

struct client {
	const struct mixed_plan *plan;
	struct mixed_tally *tally;
	struct kvc_store *store;
	struct kv_random random;
	struct kvw_model_layout layout;
	uint32_t turn[TALKS];
	int32_t prompt[MOST_TOKENS];
	struct kvc_cut cuts[MIXED_RECORDED_SEGMENTS];
	uint8_t *buffer;
};

/* ---- what is asked ---- */

static uint32_t document_tokens(uint32_t document)
{
	return 128 + (uint32_t)(mixed_hash(document) % 7) * 400;
}

static int32_t token_of(uint64_t stream, uint32_t position)
{
	return (int32_t)(mixed_hash(stream << 32 | position) % VOCABULARY);
}

/* The tokens of a talk: its document's, then its own. One that is no talk of many is nobody
 * else's. */
static uint32_t make_prompt(struct client *client, uint64_t talk, uint32_t turn)
{
	const uint32_t document = (uint32_t)(talk % DOCUMENTS);
	const uint32_t common = talk < TALKS ? document_tokens(document) : 0;
	uint32_t tokens = common + 90;

	for (uint32_t i = 0; i < turn; i++)
		tokens += 100 + (uint32_t)(mixed_hash(talk * 64 + i) % 300);
	if (talk >= TALKS) tokens += 1500;
	for (uint32_t i = 0; i < tokens; i++)
		client->prompt[i] = token_of(i < common ? document : 1000 + talk, i);
	return tokens;
}

static uint32_t make_cuts(struct client *client, uint32_t tokens)
{
	uint32_t count = 0;

	for (uint32_t end = MIXED_SEGMENT_TOKENS; end < tokens; end += MIXED_SEGMENT_TOKENS)
		client->cuts[count++] = (struct kvc_cut){end, KVW_CLUSTERED};
	client->cuts[count++] = (struct kvc_cut){tokens, KVW_PLAIN};
	return count;
}

static uint64_t key_of(const int32_t *tokens, uint32_t end)
{
	uint64_t key = UINT64_C(0xcbf29ce484222325);

	for (uint32_t i = 0; i < end; i++)
		key = (key ^ (uint32_t)tokens[i]) * UINT64_C(0x100000001b3);
	return mixed_hash(key);
}

static void record(const struct client *client, uint32_t count)
{
	struct mixed_record line = {.count = count};

	if (client->plan->record < 0) return;
	for (uint32_t i = 0; i < count; i++) {
		line.segments[i].key = key_of(client->prompt, client->cuts[i].end);
		line.segments[i].tokens = client->cuts[i].end - (i ? client->cuts[i - 1].end : 0);
	}
	if (write(client->plan->record, &line, sizeof line) != (ssize_t)sizeof line)
		mixed_error(client->tally, "record", "cannot be written");
}

/* ---- bytes ---- */

static uint64_t word_at(uint64_t key, uint32_t layer, uint64_t i)
{
	return (key + layer) * UINT64_C(0x9e3779b97f4a7c15) + i * UINT64_C(0xd1342543de82ef95);
}

static uint64_t unit_bytes(
    const struct client *client, const struct kvc_segment *segment, uint32_t layer)
{
	struct kvw_unit_shape shape;
	struct kvw_unit_layout unit;

	if (kvw_unit_shape(&client->layout, segment->kind, segment->start, segment->tokens, layer,
	        &shape) != KV_OK ||
	    kvw_unit_layout(&shape, &unit) != KV_OK)
		return 0;
	return unit.bytes;
}

static void fill(uint8_t *memory, uint64_t bytes, uint64_t key, uint32_t layer)
{
	for (uint64_t i = 0; i < bytes; i += 8) {
		const uint64_t word = word_at(key, layer, i);

		memcpy(memory + i, &word, bytes - i < 8 ? (size_t)(bytes - i) : 8);
	}
}

static bool is_right(
    const uint8_t *memory, uint64_t from, uint64_t bytes, uint64_t key, uint32_t layer)
{
	for (uint64_t i = 0; i < bytes; i += 8) {
		const uint64_t word = word_at(key, layer, from + i);

		if (memcmp(memory + i, &word, bytes - i < 8 ? (size_t)(bytes - i) : 8) != 0) return false;
	}
	return true;
}

static enum kv_status write_segment(
    struct client *client, struct kvc_sequence *sequence, const struct kvc_segment *segment)
{
	const uint64_t key = key_of(client->prompt, segment->start + segment->tokens);

	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		uint8_t *memory = NULL;
		uint64_t bytes = 0;

		KV_TRY(kvc_unit_begin(sequence, segment, layer, &memory, &bytes));
		fill(memory, bytes, key, layer);
		KV_TRY(kvc_unit_end(sequence, segment, layer));
	}
	return KV_OK;
}

static enum kv_status write_rest(
    struct client *client, struct kvc_sequence *sequence, uint32_t cut_count)
{
	struct kvc_new_segment wanted[MIXED_RECORDED_SEGMENTS];
	const struct kvc_segment *segments[MIXED_RECORDED_SEGMENTS];
	uint32_t shared, count = 0;

	kvc_sequence_segments(sequence, &shared);
	for (uint32_t i = shared; i < cut_count; i++) {
		const uint32_t start = i ? client->cuts[i - 1].end : 0;

		wanted[count++] = (struct kvc_new_segment){
		    start, client->cuts[i].end - start, client->cuts[i].kind, KVW_EXACT};
	}
	if (count == 0) return KV_OK;
	KV_TRY(kvc_reserve(sequence, wanted, count, segments));
	for (uint32_t i = 0; i < count; i++)
		KV_TRY(write_segment(client, sequence, segments[i]));
	KV_TRY(kvc_commit(sequence, segments, count, NULL, 0, NULL, 0));
	client->tally->stored_segments += count;
	return KV_OK;
}

/* All units of the sequence in one batch, whole or a piece of each, and each byte compared. */
static enum kv_status read_all(
    struct client *client, const struct kvc_sequence *sequence, const int32_t *prompt)
{
	struct kvc_read reads[MOST_READS];
	const struct kvc_segment *const *segments;
	const bool whole = kv_random_below(&client->random, 2);
	uint32_t segment_count, count = 0;
	uint64_t used = 0;

	segments = kvc_sequence_segments(sequence, &segment_count);
	for (uint32_t i = 0; i < segment_count; i++) {
		for (uint32_t layer = 0; layer < LAYERS && count < MOST_READS; layer++) {
			const uint64_t all = unit_bytes(client, segments[i], layer);
			const uint64_t from = whole ? 0 : kv_random_below(&client->random, all / 8) * 8;
			const uint64_t bytes = whole ? all : 1 + kv_random_below(&client->random, all - from);

			if (used + bytes > BUFFER_BYTES) break;
			reads[count++] =
			    (struct kvc_read){segments[i], layer, from, bytes, client->buffer + used};
			used += (bytes + 7) / 8 * 8;
		}
	}
	if (count == 0) return KV_OK;
	KV_TRY(kvc_fetch_start(client->store, reads, count));
	KV_TRY(kvc_fetch_wait(client->store));
	for (uint32_t i = 0; i < count; i++) {
		const struct kvc_segment *segment = reads[i].segment;

		client->tally->compared_bytes += reads[i].bytes;
		client->tally->wrong_units += !is_right(reads[i].destination, reads[i].offset,
		    reads[i].bytes, key_of(prompt, segment->start + segment->tokens), reads[i].layer);
	}
	return KV_OK;
}

/* ---- rounds ---- */

/* True when all is well; refusals for memory are counted, all else is an error. */
static bool fine(struct client *client, const char *what, enum kv_status status)
{
	if (status == KV_OK) return true;
	if (status == KV_LIMIT || status == KV_TOO_LARGE)
		client->tally->full++;
	else
		mixed_error(client->tally, what, kv_error_message());
	return false;
}

static struct kvc_sequence *open_talk(
    struct client *client, uint64_t talk, uint32_t turn, const char *id, uint32_t *cuts)
{
	struct kvc_open_request request = {.sequence_id = id, .prompt = client->prompt};
	struct kvc_sequence *sequence = NULL;
	const struct kvc_segment *const *segments;
	uint32_t shared;
	enum kv_status status;

	request.prompt_tokens = make_prompt(client, talk, turn);
	request.cuts = client->cuts;
	request.cut_count = *cuts = make_cuts(client, request.prompt_tokens);
	status = kvc_sequence_open(client->store, &request, &sequence);
	if (status == KV_EXISTS && id) {
		client->tally->taken++;
		return NULL;
	}
	if (!fine(client, "open", status)) return NULL;
	record(client, *cuts);
	client->tally->opened++;
	client->tally->asked_tokens += request.prompt_tokens;
	segments = kvc_sequence_segments(sequence, &shared);
	for (uint32_t i = 0; i < shared; i++)
		client->tally->shared_tokens += segments[i]->tokens;
	kvc_sequence_release_pieces(sequence);
	return sequence;
}

static bool write_and_read(struct client *client, struct kvc_sequence *sequence, uint32_t cuts)
{
	return fine(client, "write", write_rest(client, sequence, cuts)) &&
	       fine(client, "read", read_all(client, sequence, client->prompt));
}

/* One turn, whose sequence may be left for another client to resume. */
static void talk_round(struct client *client)
{
	const double unit = kv_random_unit(&client->random);
	const uint32_t talk = (uint32_t)(unit * unit * TALKS);
	const bool keep = kv_random_below(&client->random, 5) == 0;
	int32_t decoded[3] = {1, 2, 3};
	struct kvc_sequence *sequence;
	uint32_t cuts;
	char id[32];

	snprintf(id, sizeof id, "talk-%u", talk);
	sequence = open_talk(client, talk, client->turn[talk]++ % TURNS, keep ? id : NULL, &cuts);
	if (!sequence) return;
	if (write_and_read(client, sequence, cuts) && keep &&
	    fine(client, "push", kvc_push(sequence, decoded, 3, "state", 5)) &&
	    fine(client, "flush", kvc_flush(sequence)))
		client->tally->kept++;
	kvc_sequence_close(sequence, keep);
}

static void resume_round(struct client *client)
{
	static const uint8_t digest[32] = {0};
	struct kvc_sequence *sequence = NULL;
	struct kvc_resume_state state;
	enum kv_status status;
	char id[32];

	snprintf(id, sizeof id, "talk-%u", (unsigned)kv_random_below(&client->random, TALKS));
	status = kvc_sequence_resume(client->store, id, digest, &sequence, &state);
	if (status == KV_NOT_FOUND || status == KV_BUSY) {
		client->tally->not_there += status == KV_NOT_FOUND;
		client->tally->taken += status == KV_BUSY;
		return;
	}
	if (!fine(client, "resume", status)) return;
	client->tally->resumed++;
	fine(client, "read resumed", read_all(client, sequence, state.prompt));
	kvc_sequence_close(sequence, 0);
}

/* Long prompts that nobody repeats, held until the store is full of them. */
static void hold_round(struct client *client)
{
	struct kvc_sequence *held[HELD];
	uint32_t count = 0, cuts;

	while (count < HELD) {
		const uint64_t talk = 100000 + kv_random_below(&client->random, 1u << 30);

		held[count] = open_talk(client, talk, 3, NULL, &cuts);
		if (!held[count]) break;
		if (!write_and_read(client, held[count++], cuts)) break;
	}
	while (count > 0)
		kvc_sequence_close(held[--count], 0);
}

/* Leaves a reservation that is half written, a sequence and a connection. */
static void rude_round(struct client *client)
{
	struct kvc_new_segment wanted = {0, MIXED_SEGMENT_TOKENS, KVW_CLUSTERED, KVW_EXACT};
	const struct kvc_segment *segment;
	struct kvc_sequence *sequence;
	uint8_t *memory;
	uint64_t bytes;
	uint32_t cuts;

	sequence =
	    open_talk(client, 100000 + kv_random_below(&client->random, 1u << 30), 0, NULL, &cuts);
	if (sequence && fine(client, "reserve", kvc_reserve(sequence, &wanted, 1, &segment)) &&
	    fine(client, "begin", kvc_unit_begin(sequence, segment, 0, &memory, &bytes)))
		fill(memory, bytes / 2, 1, 0);
}

static bool open_client(struct client *client, unsigned number)
{
	char name[32];
	struct kvc_options options = {.allocator = kv_heap(),
	    .address = client->plan->store->address,
	    .transport = client->plan->transport,
	    .name = name,
	    .model_name = "made-up",
	    .connect_ms = 20000,
	    .call_ms = 20000,
	    .fetch_ms = 20000,
	    .staging_bytes = 2 << 20};

	client->layout = (struct kvw_model_layout){.layers = LAYERS,
	    .kv_heads = 1,
	    .head_dim = 64,
	    .kv_type = KVW_KV_F16,
	    .dense_layers = 1,
	    .sinks = 4,
	    .cluster_tokens = 16,
	    .index_digest = {1}};
	options.layout = client->layout;
	options.model_id[0] = 9;
	snprintf(name, sizeof name, "client-%u", number % 8);
	client->buffer = malloc(BUFFER_BYTES);
	return client->buffer && fine(client, "connect", kvc_open(&options, &client->store));
}

void mixed_client_run(
    const struct mixed_plan *plan, enum mixed_way way, unsigned number, struct mixed_tally *tally)
{
	static struct client client;

	client = (struct client){.plan = plan, .tally = tally};
	kv_random_seed(&client.random, number);
	if (!open_client(&client, number)) return;
	for (unsigned round = 0; store_fixture_now() < plan->end_ms; round++) {
		const uint64_t kind = kv_random_below(&client.random, 40);

		if (way == MIXED_LEAVES && round == ROUNDS) break;
		tally->rounds++;
		if (way == MIXED_RUDE) {
			rude_round(&client);
			return;
		}
		if (kind == 0)
			hold_round(&client);
		else if (kind < 8)
			resume_round(&client);
		else
			talk_round(&client);
	}
	kvc_close(client.store);
	free(client.buffer);
}
