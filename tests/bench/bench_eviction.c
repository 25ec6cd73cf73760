/* bench_eviction: replays one mixed trace of prompts against the engine for each way of eviction,
 * and prints which part of the prompts' bytes was found.
 *
 * The trace is made up, deterministically: conversations that come back with one turn more, a few
 * documents that many ask about (Zipf), and now and then a long scan of prompts that nobody
 * repeats. Or it is recorded: a file of lines, each the prompt of one request as numbers of
 * 64-token blocks.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/random.h"
#include "kvstore/engine/engine.h"

enum { BLOCK = 64, MOST_BLOCKS = 64, CONVERSATIONS = 64, DOCUMENTS = 40, REQUESTS = 6000 };

struct request {
	uint32_t blocks[MOST_BLOCKS];
	uint32_t count;
};

struct bench {
	struct kvs_engine *engine;
	struct kv_random random;
	uint64_t now;
	uint32_t peer;
	uint64_t asked, found;
};

static uint64_t now_ms(void *context)
{
	return ((struct bench *)context)->now;
}

static uint64_t random64(void *context)
{
	return kv_random_next(&((struct bench *)context)->random);
}

static enum kv_status region_create(void *context, uint32_t index, uint64_t bytes, uint8_t **base)
{
	(void)context;
	(void)index;
	(void)bytes;
	*base = NULL; /* nobody reads or writes */
	return KV_OK;
}

static void region_destroy(void *context, uint32_t index)
{
	(void)context;
	(void)index;
}

static void lease_changed(void *context, uint32_t slot, uint64_t epoch)
{
	(void)context;
	(void)slot;
	(void)epoch;
}

/* ---- the trace ---- */

static void add_blocks(struct request *request, uint32_t count, uint32_t first)
{
	while (count-- > 0 && request->count < MOST_BLOCKS)
		request->blocks[request->count++] = first++;
}

static struct request *make_trace(uint32_t *count)
{
	struct request *trace = calloc(REQUESTS, sizeof *trace);
	struct request talks[CONVERSATIONS] = {{.count = 0}};
	struct kv_random random;
	uint32_t fresh = 1000000;

	if (!trace) return NULL;
	kv_random_seed(&random, 4);
	for (uint32_t i = 0; i < REQUESTS; i++) {
		const uint32_t kind = (uint32_t)kv_random_below(&random, 10);

		if (i % 1000 >= 850) { /* a scan */
			add_blocks(&trace[i], 24, fresh);
			fresh += 24;
		} else if (kind < 5) { /* a question about a document */
			const double unit = kv_random_unit(&random);
			const uint32_t document = (uint32_t)(unit * unit * unit * DOCUMENTS);

			add_blocks(&trace[i], 16 + document % 16, 1 + document * 64);
			add_blocks(&trace[i], 2, fresh);
			fresh += 2;
		} else { /* the next turn of a conversation, or a new one */
			struct request *talk = &talks[kv_random_below(&random, CONVERSATIONS)];

			if (talk->count > 40 || kv_random_below(&random, 8) == 0) talk->count = 0;
			add_blocks(talk, talk->count ? 3 : 8, fresh);
			fresh += 8;
			trace[i] = *talk;
		}
	}
	*count = REQUESTS;
	return trace;
}

static struct request *read_trace(const char *path, uint32_t *count)
{
	struct request *trace = calloc(REQUESTS, sizeof *trace);
	FILE *file = fopen(path, "r");
	char line[4096];

	*count = 0;
	while (trace && file && *count < REQUESTS && fgets(line, sizeof line, file)) {
		struct request *request = &trace[*count];
		char *at = line, *end;

		for (;; at = end) {
			const unsigned long block = strtoul(at, &end, 10);

			if (end == at || request->count == MOST_BLOCKS) break;
			request->blocks[request->count++] = (uint32_t)block;
		}
		if (request->count > 0) (*count)++;
	}
	if (file) fclose(file);
	return trace;
}

/* ---- one request ---- */

static void must(enum kv_status status)
{
	if (status == KV_OK) return;
	fprintf(stderr, "bench_eviction: %s\n", kv_error_message());
	exit(1);
}

static void serve(struct bench *bench, const struct request *request)
{
	static uint32_t tokens[BLOCK * MOST_BLOCKS];
	struct kvs_cut cuts[MOST_BLOCKS];
	struct kvs_new_segment shapes[MOST_BLOCKS];
	uint64_t ids[MOST_BLOCKS];
	const uint32_t prompt = request->count * BLOCK;
	const struct kvs_open_request open = {
	    .prompt = tokens, .prompt_tokens = prompt, .cuts = cuts, .cut_count = request->count};
	struct kvs_open_result opened;
	uint32_t fresh = 0;

	for (uint32_t i = 0; i < prompt; i++)
		tokens[i] = request->blocks[i / BLOCK] * BLOCK + i % BLOCK;
	for (uint32_t i = 0; i < request->count; i++)
		cuts[i] = (struct kvs_cut){(i + 1) * BLOCK, KVW_CLUSTERED};
	must(kvs_sequence_open(bench->engine, bench->peer, &open, &opened));
	bench->asked += request->count;
	bench->found += opened.shared;
	for (uint32_t i = opened.shared; i < request->count; i++)
		shapes[fresh++] = (struct kvs_new_segment){i * BLOCK, BLOCK, KVW_CLUSTERED, KVW_EXACT};
	if (fresh > 0) {
		const struct kvs_commit_request commit = {
		    .sequence = opened.sequence, .segment_ids = ids, .segment_count = fresh};
		struct kvs_commit_result committed;

		must(kvs_reserve(bench->engine, bench->peer, opened.sequence, shapes, fresh, ids));
		must(kvs_commit_now(bench->engine, bench->peer, &commit, &committed));
	}
	must(kvs_sequence_close(bench->engine, bench->peer, opened.sequence, 0));
}

static double replay(
    const struct request *trace, uint32_t count, enum kvs_eviction eviction, uint64_t blocks)
{
	struct bench bench = {.now = 1};
	const struct kvs_environment environment = {.context = &bench,
	    .now_ms = now_ms,
	    .random64 = random64,
	    .region_create = region_create,
	    .region_destroy = region_destroy,
	    .lease_changed = lease_changed};
	const struct kvs_peer_request peer = {.model_id = (const uint8_t[KVW_MODEL_ID_BYTES]){1},
	    .layout = {.layers = 1, .kv_heads = 1, .head_dim = 8, .cluster_tokens = 16}};
	uint64_t bytes = 0, epoch;
	struct kvs_options options = {.eviction = eviction, .max_peers = 4};

	must(kvw_segment_bytes(&peer.layout, KVW_CLUSTERED, 0, BLOCK, &bytes));
	options.memory = options.region_bytes = bytes * blocks;
	kv_random_seed(&bench.random, 1);
	must(kvs_engine_create(kv_heap(), &options, &environment, &bench.engine));
	must(kvs_peer_add(bench.engine, &peer, &bench.peer, &epoch));
	for (uint32_t i = 0; i < count; i++) {
		bench.now += 10;
		must(kvs_peer_heartbeat(bench.engine, bench.peer, epoch));
		serve(&bench, &trace[i]);
	}
	kvs_engine_destroy(bench.engine);
	return (double)bench.found / (double)bench.asked;
}

int main(int argument_count, char **arguments)
{
	static const uint64_t sizes[] = {250, 500, 1000, 2000, 4000};
	uint32_t count = 0;
	struct request *trace =
	    argument_count > 1 ? read_trace(arguments[1], &count) : make_trace(&count);

	if (!trace || !count) {
		fprintf(stderr, "usage: bench_eviction [TRACE]\n");
		return 2;
	}
	printf("%u requests; part of the prompts' bytes that was found stored\n", count);
	printf("%10s %10s %10s\n", "blocks", "lru", "s3fifo");
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		printf("%10" PRIu64 " %10.4f %10.4f\n", sizes[i],
		    replay(trace, count, KVS_EVICT_LRU, sizes[i]),
		    replay(trace, count, KVS_EVICT_S3FIFO, sizes[i]));
	free(trace);
	return 0;
}
