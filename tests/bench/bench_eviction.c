/* bench_eviction: replays one mixed trace of prompts against the engine for each way of eviction,
 * and prints which part of the prompts' tokens was found.
 *
 *     bench_eviction [TRACE]
 *
 * A recorded trace is a file of lines, one for each prompt: "NUMBER:TOKENS …" for its segments in
 * order, where the same number is the same segment; the mixed load writes such (--record). Without
 * one the trace is made up, deterministically: conversations that come back with one turn more, a
 * few documents that many ask about (Zipf), and now and then a long scan of prompts that nobody
 * repeats.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/random.h"
#include "kvstore/engine/engine.h"

enum {
	BLOCK = 64, /* tokens of a segment of the trace that is made up */
	MOST_SEGMENTS = 64,
	MOST_TOKENS = 4096, /* of a segment */
	MOST_NUMBERS = 1 << 20,
	CONVERSATIONS = 64,
	DOCUMENTS = 40,
	REQUESTS = 6000
};

struct request {
	uint32_t numbers[MOST_SEGMENTS], tokens[MOST_SEGMENTS];
	uint32_t count;
};

struct trace {
	struct request *requests;
	uint32_t count, room;
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

static bool add_segment(struct request *request, uint32_t number, uint32_t tokens)
{
	if (request->count == MOST_SEGMENTS) return false;
	request->numbers[request->count] = number;
	request->tokens[request->count++] = tokens;
	return true;
}

static void add_blocks(struct request *request, uint32_t count, uint32_t first)
{
	while (count-- > 0 && add_segment(request, first++, BLOCK))
		;
}

static struct request *new_request(struct trace *trace)
{
	if (trace->count == trace->room) {
		const uint32_t room = trace->room ? 2 * trace->room : 1024;
		struct request *requests = realloc(trace->requests, room * sizeof *requests);

		if (!requests) return NULL;
		trace->requests = requests;
		trace->room = room;
	}
	trace->requests[trace->count] = (struct request){.count = 0};
	return &trace->requests[trace->count++];
}

static bool make_trace(struct trace *trace)
{
	struct request talks[CONVERSATIONS] = {{.count = 0}};
	struct kv_random random;
	uint32_t fresh = 10000;

	kv_random_seed(&random, 4);
	for (uint32_t i = 0; i < REQUESTS; i++) {
		const uint32_t kind = (uint32_t)kv_random_below(&random, 10);
		struct request *request = new_request(trace);

		if (!request) return false;
		if (i % 1000 >= 850) { /* a scan */
			add_blocks(request, 24, fresh);
			fresh += 24;
		} else if (kind < 5) { /* a question about a document */
			const double unit = kv_random_unit(&random);
			const uint32_t document = (uint32_t)(unit * unit * unit * DOCUMENTS);

			add_blocks(request, 16 + document % 16, 1 + document * 64);
			add_blocks(request, 2, fresh);
			fresh += 2;
		} else { /* the next turn of a conversation, or a new one */
			struct request *talk = &talks[kv_random_below(&random, CONVERSATIONS)];

			if (talk->count > 40 || kv_random_below(&random, 8) == 0) talk->count = 0;
			add_blocks(talk, talk->count ? 3 : 8, fresh);
			fresh += 8;
			*request = *talk;
		}
	}
	return true;
}

static bool read_line(const char *line, struct request *request)
{
	const char *at = line;
	char *end;

	for (;; at = end) {
		const unsigned long number = strtoul(at, &end, 10);
		unsigned long tokens;

		if (end == at) return *at == '\n' || *at == '\0';
		if (*end != ':') return false;
		at = end + 1;
		tokens = strtoul(at, &end, 10);
		if (end == at || number >= MOST_NUMBERS || tokens < 1 || tokens > MOST_TOKENS ||
		    !add_segment(request, (uint32_t)number, (uint32_t)tokens))
			return false;
	}
}

/* False after printing why. */
static bool read_trace(const char *path, struct trace *trace)
{
	FILE *file = fopen(path, "r");
	char line[4096];

	if (!file) {
		fprintf(stderr, "bench_eviction: cannot open %s\n", path);
		return false;
	}
	while (fgets(line, sizeof line, file)) {
		struct request *request = new_request(trace);

		if (request && read_line(line, request) && request->count) continue;
		fprintf(stderr, "bench_eviction: %s: line %u is no prompt: NUMBER:TOKENS … is wanted\n",
		    path, trace->count);
		fclose(file);
		return false;
	}
	fclose(file);
	if (!trace->count) fprintf(stderr, "bench_eviction: %s is empty\n", path);
	return trace->count > 0;
}

/* ---- one request ---- */

static void must(enum kv_status status)
{
	if (status == KV_OK) return;
	fprintf(stderr, "bench_eviction: %s\n", kv_error_message());
	exit(1);
}

static const struct kvs_peer_request peer_request = {
    .model_id = (const uint8_t[KVW_MODEL_ID_BYTES]){1},
    .layout = {.layers = 1, .kv_heads = 1, .head_dim = 8, .cluster_tokens = 16}};

static uint64_t segment_bytes(uint32_t start, uint32_t tokens)
{
	uint64_t bytes = 0;

	must(kvw_segment_bytes(&peer_request.layout, KVW_CLUSTERED, start, tokens, &bytes));
	return bytes;
}

/* Bytes of all segments, each once, and of the largest prompt. */
static uint64_t working_set(const struct trace *trace, uint64_t *largest)
{
	uint8_t *seen = calloc(MOST_NUMBERS, 1);
	uint64_t all = 0;

	if (!seen) must(KV_NO_MEMORY);
	*largest = 0;
	for (uint32_t i = 0; i < trace->count; i++) {
		const struct request *request = &trace->requests[i];
		uint64_t prompt = 0;

		for (uint32_t k = 0, start = 0; k < request->count; start += request->tokens[k++]) {
			const uint64_t bytes = segment_bytes(start, request->tokens[k]);

			prompt += bytes;
			if (!seen[request->numbers[k]]) all += bytes;
			seen[request->numbers[k]] = 1;
		}
		if (prompt > *largest) *largest = prompt;
	}
	free(seen);
	return all;
}

static void serve(struct bench *bench, const struct request *request)
{
	static uint32_t tokens[MOST_TOKENS * MOST_SEGMENTS];
	struct kvs_cut cuts[MOST_SEGMENTS];
	struct kvs_new_segment shapes[MOST_SEGMENTS];
	uint64_t ids[MOST_SEGMENTS];
	struct kvs_open_request open = {.prompt = tokens, .cuts = cuts, .cut_count = request->count};
	struct kvs_open_result opened;
	uint32_t fresh = 0;

	for (uint32_t k = 0; k < request->count; k++) {
		for (uint32_t i = 0; i < request->tokens[k]; i++)
			tokens[open.prompt_tokens++] = request->numbers[k] * MOST_TOKENS + i;
		cuts[k] = (struct kvs_cut){open.prompt_tokens, KVW_CLUSTERED};
	}
	must(kvs_sequence_open(bench->engine, bench->peer, &open, &opened));
	bench->asked += open.prompt_tokens;
	if (opened.shared) bench->found += cuts[opened.shared - 1].end;
	for (uint32_t k = opened.shared; k < request->count; k++)
		shapes[fresh++] = (struct kvs_new_segment){
		    cuts[k].end - request->tokens[k], request->tokens[k], KVW_CLUSTERED, KVW_EXACT};
	if (fresh > 0) {
		const struct kvs_commit_request commit = {
		    .sequence = opened.sequence, .segment_ids = ids, .segment_count = fresh};
		struct kvs_commit_result committed;

		must(kvs_reserve(bench->engine, bench->peer, opened.sequence, shapes, fresh, ids));
		must(kvs_commit_now(bench->engine, bench->peer, &commit, &committed));
	}
	must(kvs_sequence_close(bench->engine, bench->peer, opened.sequence, 0));
}

static double replay(const struct trace *trace, enum kvs_eviction eviction, uint64_t memory)
{
	struct bench bench = {.now = 1};
	const struct kvs_environment environment = {.context = &bench,
	    .now_ms = now_ms,
	    .random64 = random64,
	    .region_create = region_create,
	    .region_destroy = region_destroy,
	    .lease_changed = lease_changed};
	const struct kvs_options options = {
	    .eviction = eviction, .max_peers = 4, .memory = memory, .region_bytes = memory};
	uint64_t epoch;

	kv_random_seed(&bench.random, 1);
	must(kvs_engine_create(kv_heap(), &options, &environment, &bench.engine));
	must(kvs_peer_add(bench.engine, &peer_request, &bench.peer, &epoch));
	for (uint32_t i = 0; i < trace->count; i++) {
		bench.now += 10;
		must(kvs_peer_heartbeat(bench.engine, bench.peer, epoch));
		serve(&bench, &trace->requests[i]);
	}
	kvs_engine_destroy(bench.engine);
	return (double)bench.found / (double)bench.asked;
}

int main(int argument_count, char **arguments)
{
	static const uint64_t parts[] = {256, 128, 64, 32, 16, 8, 4, 2, 1};
	struct trace trace = {.count = 0};
	uint64_t all, largest;

	if (argument_count > 2 || (argument_count == 2 && arguments[1][0] == '-')) {
		fprintf(stderr, "usage: bench_eviction [TRACE]\n");
		return 2;
	}
	if (argument_count == 2 ? !read_trace(arguments[1], &trace) : !make_trace(&trace)) return 1;
	all = working_set(&trace, &largest);
	printf(
	    "%u prompts, %.1f MiB of segments in the tests' small layout; part of the prompts' tokens "
	    "that was found\n",
	    trace.count, (double)all / (1 << 20));
	printf("%10s %10s %10s\n", "memory", "lru", "s3fifo");
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		/* One that is asked for next to one that is in use. */
		if (all / parts[i] < 2 * largest) continue;
		printf("%8s1/%-3" PRIu64 "%8.4f %10.4f\n", "", parts[i],
		    replay(&trace, KVS_EVICT_LRU, all / parts[i]),
		    replay(&trace, KVS_EVICT_S3FIFO, all / parts[i]));
	}
	free(trace.requests);
	return 0;
}
