/* Bytes: copies from staging memory, and commits with their checksums. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/runtime/fault_point.h"
#include "common/transport/transport_map.h"
#include "kvstore/server/server_internal.h"

enum { MAX_PARTS = 4, PUT_BLOCK_BYTES = 128 << 10 };

/* ---- put ---- */

struct put_job {
	struct kvs_peer *peer;
	uint64_t id, segment;
	uint32_t layer;
	int source;
	bool sums;
	uint64_t offset;
	uint8_t *target;
	size_t bytes;
	uint32_t crc;
	enum kv_status status;
};

/* In blocks that are still in the cache when they are summed. What is summed is the store's copy.
 */
static void copy_put(void *context)
{
	struct put_job *job = context;

	for (size_t done = 0; done < job->bytes;) {
		size_t left = job->bytes - done;
		size_t block = left < PUT_BLOCK_BYTES ? left : PUT_BLOCK_BYTES;

		job->status = kv_staging_read(job->source, job->offset + done, block, job->target + done);
		if (job->status != KV_OK) return;
		if (job->sums) job->crc = kv_crc32c(job->crc, job->target + done, block);
		done += block;
	}
}

static void keep_sum(const struct put_job *job)
{
	struct kvs_server *server = job->peer->server;

	if (!job->sums || job->status != KV_OK) return;
	kvs_unit_summed(server->engine, job->segment, job->layer, job->crc);
}

static void end_put(void *context)
{
	struct put_job *job = context;
	struct kvs_peer *peer = job->peer;
	struct kvs_server *server = peer->server;
	Kv__Response response = KV__RESPONSE__INIT;

	const uint64_t id = response.id = job->id;
	const enum kv_status status = job->status;

	peer->puts--;
	peer->put_bytes -= job->bytes;
	keep_sum(job);
	kv_free(server->allocator, job);
	/* The peer itself never writes; when the last copy made for it has ended, nothing does. */
	if (!peer->puts && (peer->state.state == KVS_CLOSED || peer->state.state == KVS_LAPSED))
		kvs_peer_proven_dead(server->engine, peer->epoch);
	if (status == KV_OK)
		kvs_peer_respond(peer, &response, false);
	else if (peer->state.state != KVS_CLOSED)
		/* The text is of the pool's thread. */
		kvs_peer_respond_error(
		    peer, id, kv_fail(status, "the staging memory cannot be read to the end"));
	kvs_peer_job_done(peer);
}

static enum kv_status check_put(const struct kvs_peer *peer, const Kv__PutRequest *put)
{
	if (peer->staging < 0)
		return kv_fail(KV_UNSUPPORTED, "put is for the map transport, this store serves %s",
		    peer->server->transport->name);
	if (put->staging_offset > peer->staging_bytes ||
	    put->bytes > peer->staging_bytes - put->staging_offset)
		return kv_fail(KV_INVALID, "put of %llu bytes at %llu leaves the staging memory",
		    (unsigned long long)put->bytes, (unsigned long long)put->staging_offset);
	if (peer->puts >= KVS_MAX_PUTS)
		return kv_fail(KV_BUSY, "%u copies are under way, that is the limit", peer->puts);
	return KV_OK;
}

static enum kv_status put_now(struct put_job *job)
{
	copy_put(job);
	keep_sum(job);
	return job->status;
}

enum kv_status kvs_handle_put(
    struct kvs_peer *peer, const Kv__Request *request, struct kvs_answer *answer)
{
	const Kv__PutRequest *put = request->put;
	struct kvs_server *server = peer->server;
	struct put_job *job, now;
	uint8_t *target = NULL;

	if (peer->secure) return kvs_put_inline(peer, put);
	KV_TRY(check_put(peer, put));
	KV_TRY(kvs_put_target(
	    server->engine, peer->slot, put->segment_id, put->layer, put->bytes, &target));
	kv_metrics_add(server->metrics, KVS_PUT, (int64_t)put->bytes);
	now = (struct put_job){.peer = peer,
	    .id = request->id,
	    .segment = put->segment_id,
	    .layer = put->layer,
	    .source = peer->staging,
	    .sums = server->settings->verify != KVS_VERIFY_OFF,
	    .offset = put->staging_offset,
	    .target = target,
	    .bytes = put->bytes};
	/* Of a tenant that is not trusted even a small copy may have to wait for the disk (swap). */
	if (put->bytes <= KVS_INLINE_BYTES && !server->settings->isolation) return put_now(&now);
	job = kv_alloc(server->allocator, sizeof *job);
	if (!job) return KV_NO_MEMORY;
	*job = now;
	if (kv_loop_work(server->loop, copy_put, end_put, job) != KV_OK) {
		kv_free(server->allocator, job);
		return put_now(&now);
	}
	peer->puts++;
	peer->put_bytes += put->bytes;
	kvs_peer_job_begin(peer);
	answer->later = true;
	return KV_OK;
}

/* ---- commit ---- */

struct unit_check {
	const uint8_t *memory;
	uint64_t bytes, segment;
	uint32_t layer, checksum;
};

struct commit_job;

struct commit_part {
	struct commit_job *job;
	uint32_t first, stride;
	const struct unit_check *wrong; /* the first unit found wrong, or NULL */
};

struct commit_job {
	struct kvs_peer *peer;
	struct kvs_commit *commit;
	uint64_t id, sequence;
	struct unit_check *units; /* that are to be read */
	uint32_t unit_count;
	uint64_t bytes;
	uint64_t summed_bytes;     /* of those that were summed as they were written */
	struct unit_check differs; /* one of these that is not as was claimed; no memory: none */
	struct commit_part parts[MAX_PARTS];
	uint32_t part_count, parts_left;
};

static void free_job(struct commit_job *job)
{
	struct kv_allocator *allocator = job->peer->server->allocator;

	kv_free(allocator, job->units);
	kv_free(allocator, job);
}

static void check_part(void *context)
{
	struct commit_part *part = context;
	const struct commit_job *job = part->job;

	for (uint32_t i = part->first; i < job->unit_count && !part->wrong; i += part->stride) {
		const struct unit_check *unit = &job->units[i];

		if (kv_crc32c(0, unit->memory, unit->bytes) != unit->checksum) part->wrong = unit;
	}
}

static enum kv_status verdict(const struct commit_job *job)
{
	for (uint32_t i = 0; i <= job->part_count; i++) {
		const struct unit_check *wrong = i < job->part_count ? job->parts[i].wrong : &job->differs;

		if (!wrong || !wrong->memory) continue;
		kv_metrics_add(job->peer->server->metrics, KVS_CHECKSUM_MISMATCHES, 1);
		if (kv_log_allows(&job->peer->server->peer_log, KVS_MODULE))
			kv_error(KVS_MODULE, "checksum mismatch name=%s segment=%llu layer=%u", job->peer->name,
			    (unsigned long long)wrong->segment, wrong->layer);
		return kv_fail(KV_CORRUPT,
		    "layer %u of segment %llu is not what the worker wrote: its checksum differs",
		    wrong->layer, (unsigned long long)wrong->segment);
	}
	return KV_OK;
}

static enum kv_status answer_commit(struct commit_job *job, const struct kvs_commit_result *result)
{
	struct kvs_peer *peer = job->peer;
	struct kvs_engine *engine = peer->server->engine;
	struct kvs_segment_set set = {0};
	Kv__Response response = KV__RESPONSE__INIT;
	Kv__CommitResponse committed = KV__COMMIT_RESPONSE__INIT;
	enum kv_status status = KV_OK;

	for (uint32_t i = 0; i < result->count && status == KV_OK; i++) {
		struct kvs_segment_view view;

		status = kvs_sequence_segment(engine, job->sequence, result->first + i, &view);
		if (status == KV_OK && !set.pointers)
			status = kvs_segment_set_create(&set, peer->server, result->count, view.layers);
		if (status == KV_OK) kvs_segment_set_add(&set, &view);
		if (status == KV_OK) kvs_disk_note(peer->server, &view);
	}
	if (status == KV_OK) {
		committed.segments = set.pointers;
		committed.n_segments = set.count;
		response.id = job->id;
		response.body_case = KV__RESPONSE__BODY_COMMIT;
		response.commit = &committed;
		kvs_peer_respond(peer, &response, true);
	}
	kvs_segment_set_destroy(&set);
	return status;
}

/* Finish and answer; the job is freed. The peer stays, its jobs count is the caller's. */
static void finish_commit(struct commit_job *job)
{
	struct kvs_peer *peer = job->peer;
	struct kvs_commit_result result;
	enum kv_status status = verdict(job);

	kv_fault_stop("store.commit");
	kv_metrics_add(peer->server->metrics, KVS_VERIFIED, (int64_t)(job->bytes + job->summed_bytes));
	status = kvs_commit_finish(peer->server->engine, job->commit, status, &result);
	if (status == KV_OK && peer->state.state != KVS_CLOSED) status = answer_commit(job, &result);
	if (status != KV_OK) kvs_peer_respond_error(peer, job->id, status);
	free_job(job);
}

static void end_part(void *context)
{
	struct commit_part *part = context;
	struct commit_job *job = part->job;
	struct kvs_peer *peer = job->peer;

	if (--job->parts_left) return;
	finish_commit(job);
	kvs_peer_job_done(peer);
}

static void add_unit(struct commit_job *job, const struct kvs_segment_view *view, uint32_t layer)
{
	const struct kvs_unit *unit = &view->units[layer];
	struct unit_check check = {.memory = kvs_unit_memory(job->peer->server->engine, unit),
	    .bytes = unit->bytes,
	    .segment = view->id,
	    .layer = layer,
	    .checksum = view->checksums[layer]};

	if (!view->sums || !view->sums[layer].known) {
		job->units[job->unit_count++] = check;
		job->bytes += unit->bytes;
		return;
	}
	job->summed_bytes += unit->bytes;
	if (view->sums[layer].crc != check.checksum) job->differs = check;
}

/* What to read, taken down now: the pool's threads do not ask the engine. */
static enum kv_status list_units(struct commit_job *job)
{
	struct kvs_server *server = job->peer->server;
	uint32_t segments = kvs_commit_segments(job->commit);
	struct kvs_segment_view view;

	for (uint32_t i = 0; i < segments; i++) {
		kvs_commit_segment(job->commit, i, &view);
		if (!view.checksums) continue;
		if (!job->units) {
			job->units = kv_alloc_array(
			    server->allocator, (size_t)segments * view.layers, sizeof *job->units);
			if (!job->units) return KV_NO_MEMORY;
		}
		for (uint32_t layer = 0; layer < view.layers; layer++)
			add_unit(job, &view, layer);
	}
	return KV_OK;
}

/* True when pool threads have it; else everything was checked here. */
static bool start_parts(struct commit_job *job)
{
	struct kvs_server *server = job->peer->server;
	bool small = job->bytes <= KVS_INLINE_BYTES;

	job->part_count = small || job->unit_count < MAX_PARTS ? 1 : MAX_PARTS;
	for (uint32_t i = 0; i < job->part_count; i++) {
		job->parts[i] = (struct commit_part){.job = job, .first = i, .stride = job->part_count};
		if (!small && kv_loop_work(server->loop, check_part, end_part, &job->parts[i]) == KV_OK)
			job->parts_left++;
		else
			check_part(&job->parts[i]);
	}
	return job->parts_left > 0;
}

static void fill_request(const Kv__CommitRequest *message, struct kvs_commit_request *request)
{
	*request = (struct kvs_commit_request){.sequence = message->sequence,
	    .segment_ids = message->segment_ids,
	    .segment_count = (uint32_t)message->n_segment_ids,
	    .checksums = message->n_checksums ? message->checksums : NULL,
	    .checksum_count = (uint32_t)message->n_checksums,
	    .tokens = message->tokens.len ? (const uint32_t *)(const void *)message->tokens.data : NULL,
	    .token_count = (uint32_t)(message->tokens.len / sizeof(uint32_t)),
	    .replaced_ids = message->n_replaced_ids ? message->replaced_ids : NULL,
	    .replaced_count = (uint32_t)message->n_replaced_ids,
	    .own_only = message->own_only};
}

enum kv_status kvs_handle_commit(
    struct kvs_peer *peer, const Kv__Request *request, struct kvs_answer *answer)
{
	struct kvs_server *server = peer->server;
	struct commit_job *job = kv_alloc_zero(server->allocator, sizeof *job);
	struct kvs_commit_request commit;
	enum kv_status status;

	if (!job) return KV_NO_MEMORY;
	job->peer = peer;
	job->id = request->id;
	job->sequence = request->commit->sequence;
	fill_request(request->commit, &commit);
	status = kvs_commit_begin(server->engine, peer->slot, &commit, &job->commit);
	if (status != KV_OK) {
		free_job(job);
		return status;
	}
	if (server->settings->verify != KVS_VERIFY_OFF) status = list_units(job);
	if (status != KV_OK) {
		kvs_commit_finish(server->engine, job->commit, status, NULL);
		free_job(job);
		return status;
	}
	answer->later = true;
	if (start_parts(job))
		kvs_peer_job_begin(peer);
	else
		finish_commit(job);
	return KV_OK;
}
