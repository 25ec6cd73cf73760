/* One client of kvctl bench: a worker that computes nothing. */
#include "kvstore/ctl/bench.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"

enum {
	HEADS = 8,
	HEAD_DIM = 128,
	TOKEN_BYTES = HEADS * HEAD_DIM * 2 * 2, /* keys and values, two bytes each */
	PROMPT_TOKENS = 16,                     /* of the sequence whose folds are committed */
	DESTINATION_BYTES = 32 << 20
};

struct bench_client {
	const struct bench_run *run;
	uint32_t index;
	struct kvc_store *store;
	struct kvc_sequence *units[BENCH_MAX_UNITS];
	const struct kvc_segment *segments[BENCH_MAX_UNITS];
	struct kvc_sequence *folds; /* each commit takes the place of the last */
	int32_t folded;
	int32_t *tokens;
	uint8_t *destination;
	uint64_t written; /* of it, by the copies that are compared with commits */
	struct kvc_read reads[BENCH_MAX_READS];
	uint64_t from[BENCH_MAX_READS]; /* where the same bytes are in the source */
	uint64_t random;
	uint32_t *samples;
	uint32_t sample_count;
};

static struct kvw_model_layout layout(void)
{
	return (struct kvw_model_layout){.layers = 1,
	    .kv_heads = HEADS,
	    .head_dim = HEAD_DIM,
	    .kv_type = KVW_KV_F16,
	    .dense_layers = 1,
	    .sinks = 16,
	    .cluster_tokens = 16};
}

static uint64_t next(struct bench_client *client)
{
	/* xorshift64*: where reads begin needs no better. */
	client->random ^= client->random >> 12;
	client->random ^= client->random << 25;
	client->random ^= client->random >> 27;
	return client->random * UINT64_C(2685821657736338717);
}

/* ---- what is there to be read ---- */

static enum kv_status open_sequence(struct bench_client *client, const int32_t *prompt,
    uint32_t tokens, struct kvc_sequence **sequence)
{
	struct kvc_cut cut = {tokens, KVW_PLAIN};
	struct kvc_open_request request = {
	    .prompt = prompt, .prompt_tokens = tokens, .cuts = &cut, .cut_count = 1};

	return kvc_sequence_open(client->store, &request, sequence);
}

static enum kv_status fill_unit(
    struct kvc_sequence *sequence, const struct kvc_segment *segment, const uint8_t *source)
{
	uint64_t size = (uint64_t)segment->tokens * TOKEN_BYTES;
	uint64_t bytes = 0;
	uint8_t *memory = NULL;

	KV_TRY(kvc_unit_begin(sequence, segment, 0, &memory, &bytes));
	/* The rest are positions, which nobody looks at here. */
	memcpy(memory, source, size);
	memset(memory + size, 0, bytes - size);
	return kvc_unit_end(sequence, segment, 0);
}

/* Segments that follow each other, filled from `source`, in the place of all that `sequence` has
 * after its first. */
static enum kv_status write_segments(struct kvc_sequence *sequence,
    const struct kvc_new_segment *wanted, uint32_t count, const uint8_t *source,
    const int32_t *tokens)
{
	const struct kvc_segment *segments[BENCH_MAX_READS] = {NULL};
	uint32_t held = 0;
	const struct kvc_segment *const *before = kvc_sequence_segments(sequence, &held);
	uint32_t total = 0;
	enum kv_status status = KV_OK;

	KV_TRY(kvc_reserve(sequence, wanted, count, segments));
	for (uint32_t i = 0; i < count && status == KV_OK; i++) {
		status = fill_unit(sequence, segments[i], source + (uint64_t)total * TOKEN_BYTES);
		total += wanted[i].tokens;
	}
	if (status != KV_OK) {
		kvc_release(sequence, segments, count);
		return status;
	}
	return kvc_commit(sequence, segments, count, tokens, tokens ? total : 0,
	    held > 1 ? before + 1 : NULL, held > 1 ? held - 1 : 0);
}

static const struct kvc_segment *segment_at(const struct kvc_sequence *sequence, uint32_t index)
{
	uint32_t count = 0;
	const struct kvc_segment *const *segments = kvc_sequence_segments(sequence, &count);

	return index < count ? segments[index] : NULL;
}

static enum kv_status open_unit(struct bench_client *client, uint32_t unit)
{
	const uint8_t *source = client->run->source + (uint64_t)unit * BENCH_UNIT_BYTES;
	struct kvc_new_segment wanted = {0, BENCH_UNIT_TOKENS, KVW_PLAIN, KVW_EXACT};

	for (int32_t i = 0; i < BENCH_UNIT_TOKENS; i++)
		client->tokens[i] = (int32_t)unit * BENCH_UNIT_TOKENS + i;
	KV_TRY(open_sequence(client, client->tokens, BENCH_UNIT_TOKENS, &client->units[unit]));
	if (!segment_at(client->units[unit], 0))
		KV_TRY(write_segments(client->units[unit], &wanted, 1, source, NULL));
	client->segments[unit] = segment_at(client->units[unit], 0);
	return client->segments[unit] ? KV_OK : kv_fail(KV_INTERNAL, "a committed unit is not listed");
}

static enum kv_status open_folds(struct bench_client *client)
{
	struct kvc_new_segment wanted = {0, PROMPT_TOKENS, KVW_PLAIN, KVW_EXACT};

	for (int32_t i = 0; i < PROMPT_TOKENS; i++)
		client->tokens[i] = (int32_t)(1000000 + client->index * 100) + i;
	KV_TRY(open_sequence(client, client->tokens, PROMPT_TOKENS, &client->folds));
	if (segment_at(client->folds, 0)) return KV_OK;
	return write_segments(client->folds, &wanted, 1, client->run->source, NULL);
}

static enum kv_status open_all(struct bench_client *client)
{
	const struct ctl_settings *settings = client->run->settings;
	char address[CTL_ADDRESS_BYTES];
	uint8_t secret[KVC_SECRET_BYTES];
	bool remote = false;
	char name[32];
	struct kvc_options options = {.allocator = kv_heap(),
	    .address = address,
	    .transport = settings->transport,
	    .trusted_network = settings->trusted_network,
	    .name = name,
	    .model_name = "bench",
	    .layout = layout(),
	    .connect_ms = (uint32_t)settings->timeout_ms,
	    .staging_bytes = UINT64_C(3) * BENCH_UNIT_BYTES};

	KV_TRY(ctl_store(settings, address, secret, &remote));
	if (remote) options.secret = secret;
	snprintf(name, sizeof name, "bench-%u", client->index);
	memcpy(options.model_id, "clusterkv bench", 15);
	client->tokens = kv_alloc_array(kv_heap(), BENCH_UNIT_TOKENS, sizeof *client->tokens);
	client->destination = kv_alloc(kv_heap(), DESTINATION_BYTES);
	client->samples = kv_alloc_array(kv_heap(), BENCH_MAX_SAMPLES, sizeof *client->samples);
	if (!client->tokens || !client->destination || !client->samples) return KV_NO_MEMORY;
	memset(client->destination, 1, DESTINATION_BYTES);
	KV_TRY(kvc_open(&options, &client->store));
	for (uint32_t unit = 0; unit < client->run->units; unit++)
		KV_TRY(open_unit(client, unit));
	return open_folds(client);
}

enum kv_status bench_client_open(
    const struct bench_run *run, uint32_t index, struct bench_client **client)
{
	struct bench_client *created = kv_alloc_zero(kv_heap(), sizeof *created);
	enum kv_status status;

	if (!created) return KV_NO_MEMORY;
	created->run = run;
	created->index = index;
	created->random = UINT64_C(0x9e3779b97f4a7c15) * (index + 1);
	status = open_all(created);
	if (status != KV_OK) {
		bench_client_close(created);
		return status;
	}
	*client = created;
	return KV_OK;
}

void bench_client_close(struct bench_client *client)
{
	if (!client) return;
	for (uint32_t i = 0; i < BENCH_MAX_UNITS; i++)
		if (client->units[i]) kvc_sequence_close(client->units[i], 0);
	if (client->folds) kvc_sequence_close(client->folds, 0);
	if (client->store) kvc_close(client->store);
	kv_free(kv_heap(), client->samples);
	kv_free(kv_heap(), client->destination);
	kv_free(kv_heap(), client->tokens);
	kv_free(kv_heap(), client);
}

const char *bench_client_lanes(const struct bench_client *client)
{
	return kvc_lanes(client->store);
}

const char *bench_client_transport(const struct bench_client *client)
{
	return kvc_transport(client->store);
}

const uint8_t *bench_client_arena(const struct bench_client *client)
{
	return kvc_direct(client->store, client->segments[0], 0);
}

/* ---- reading ---- */

static void choose_reads(struct bench_client *client, const struct bench_case *measured)
{
	uint64_t filled = 0;

	for (uint32_t i = 0; i < measured->reads; i++) {
		uint32_t unit = (uint32_t)(next(client) % client->run->units);
		uint64_t bytes = measured->bytes;
		uint64_t places, offset;

		if (measured->mixed) bytes = bytes / 2 + (next(client) % (bytes * 3 / 2)) / 64 * 64;
		places = (BENCH_UNIT_BYTES - bytes) / 64 + 1;
		offset = next(client) % places * 64;
		client->reads[i] = (struct kvc_read){.segment = client->segments[unit],
		    .layer = 0,
		    .offset = offset,
		    .bytes = bytes,
		    .destination = client->destination + filled};
		client->from[i] = (uint64_t)unit * BENCH_UNIT_BYTES + offset;
		filled += bytes;
	}
}

static enum kv_status verify_reads(
    const struct bench_client *client, const struct bench_case *measured)
{
	for (uint32_t i = 0; i < measured->reads; i++) {
		const struct kvc_read *read = &client->reads[i];

		if (memcmp(read->destination, client->run->source + client->from[i], read->bytes) != 0)
			return kv_fail(KV_CORRUPT, "a fetch of %llu bytes gave other bytes than were written",
			    (unsigned long long)read->bytes);
	}
	return KV_OK;
}

static enum kv_status read_once(struct bench_client *client, const struct bench_case *measured,
    bool plain, uint64_t *bytes, uint64_t *nanoseconds)
{
	uint64_t start;

	choose_reads(client, measured);
	*bytes = 0;
	for (uint32_t i = 0; i < measured->reads; i++)
		*bytes += client->reads[i].bytes;
	start = kv_now_ns();
	if (plain) {
		for (uint32_t i = 0; i < measured->reads; i++)
			memcpy(client->reads[i].destination, client->run->source + client->from[i],
			    client->reads[i].bytes);
	} else {
		KV_TRY(kvc_fetch_start(client->store, client->reads, measured->reads));
		KV_TRY(kvc_fetch_wait(client->store));
	}
	*nanoseconds = kv_now_ns() - start;
	return client->run->settings->verify ? verify_reads(client, measured) : KV_OK;
}

/* ---- writing ---- */

static enum kv_status verify_folds(struct bench_client *client, const uint8_t *source)
{
	uint32_t count = 0;
	const struct kvc_segment *const *segments = kvc_sequence_segments(client->folds, &count);

	for (uint32_t i = 1; i < count; i++) {
		struct kvc_read read = {.segment = segments[i],
		    .bytes = (uint64_t)segments[i]->tokens * TOKEN_BYTES,
		    .destination = client->destination};

		KV_TRY(kvc_fetch_start(client->store, &read, 1));
		KV_TRY(kvc_fetch_wait(client->store));
		if (memcmp(client->destination, source, read.bytes) != 0)
			return kv_fail(KV_CORRUPT, "a commit of %llu bytes was read back with other bytes",
			    (unsigned long long)read.bytes);
		source += read.bytes;
	}
	return KV_OK;
}

/* Segments of a fold, with other tokens each time, so that they are stored anew. */
static uint32_t choose_folds(struct bench_client *client, const struct bench_case *measured,
    struct kvc_new_segment wanted[BENCH_MAX_READS])
{
	uint32_t tokens = (measured->bytes + TOKEN_BYTES - 1) / TOKEN_BYTES;

	client->folded++;
	for (uint32_t i = 0; i < measured->reads; i++)
		wanted[i] = (struct kvc_new_segment){
		    PROMPT_TOKENS + i * tokens, tokens, KVW_PLAIN, KVW_APPROXIMATE};
	for (uint32_t i = 0; i < tokens * measured->reads; i++)
		client->tokens[i] = client->folded;
	return tokens * measured->reads;
}

/* Both come from where nothing was read lately, and go where nothing was written lately. */
static enum kv_status commit_once(struct bench_client *client, const struct bench_case *measured,
    bool plain, uint64_t *bytes, uint64_t *nanoseconds)
{
	struct kvc_new_segment wanted[BENCH_MAX_READS];
	uint64_t all = (uint64_t)client->run->units * BENCH_UNIT_BYTES;
	const uint8_t *source;
	uint64_t start;

	*bytes = (uint64_t)choose_folds(client, measured, wanted) * TOKEN_BYTES;
	source = client->run->source + next(client) % ((all - *bytes) / 64 + 1) * 64;
	if (client->written + *bytes > DESTINATION_BYTES) client->written = 0;
	start = kv_now_ns();
	if (plain)
		memcpy(client->destination + client->written, source, *bytes);
	else
		KV_TRY(write_segments(client->folds, wanted, measured->reads, source, client->tokens));
	*nanoseconds = kv_now_ns() - start;
	client->written += *bytes;
	if (plain || !client->run->settings->verify) return KV_OK;
	return verify_folds(client, source);
}

/* ---- time ---- */

void bench_client_begin(struct bench_client *client)
{
	client->sample_count = 0;
}

const uint32_t *bench_client_samples(const struct bench_client *client, uint32_t *count)
{
	*count = client->sample_count;
	return client->samples;
}

enum kv_status bench_client_slice(struct bench_client *client, const struct bench_case *measured,
    bool plain, uint64_t end_ns, struct bench_tally *tally)
{

	memset(tally, 0, sizeof *tally);
	do {
		uint64_t bytes = 0;
		uint64_t taken = 0;

		if (measured->commit)
			KV_TRY(commit_once(client, measured, plain, &bytes, &taken));
		else
			KV_TRY(read_once(client, measured, plain, &bytes, &taken));
		tally->bytes += bytes;
		tally->nanoseconds += taken;
		tally->calls++;
		if (!plain && client->sample_count < BENCH_MAX_SAMPLES)
			client->samples[client->sample_count++] =
			    taken < UINT32_MAX ? (uint32_t)taken : UINT32_MAX;
	} while (kv_now_ns() < end_ns);
	return KV_OK;
}
