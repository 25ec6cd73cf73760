/* Segments on their way back: a prompt whose leading cuts lie in files waits until they are in
 * memory again, or its time is up; then it is opened with what is there. So does a sequence that is
 * resumed, for what was evicted of its prompt.
 *
 * What a load has, besides the peer and the message that wait: the anchor, the last cut that is in
 * memory, pinned so that making room for the next one does not take it; and the segment that a pool
 * thread reads into memory of its own. That outlives the peer, and the deadline. */
#include <stdio.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "kvstore/server/disk_internal.h"

struct kvs_load {
	struct kv_list node;
	struct kvs_disk *disk;
	struct kvs_peer *peer; /* NULL: nobody waits */
	Kv__Request *request;
	struct kvs_cut *cuts;
	uint32_t *prompt;               /* a copy, where the request has none */
	struct kvs_open_request open;   /* points into all three */
	uint8_t (*keys)[KVW_KEY_BYTES]; /* of all cuts up to `end` */
	uint32_t next, end;             /* cuts that are still to be had */
	uint64_t anchor;                /* 0: none */
	uint64_t waits_for;             /* bytes of memory that are to be made first */
	uint64_t deadline_ms;
	uint64_t segment;           /* that is being read, 0: none */
	uint8_t key[KVW_KEY_BYTES]; /* of it */
	struct kvs_saved wanted;
	uint8_t *units[KVW_MAX_LAYERS];
	uint64_t unit_bytes[KVW_MAX_LAYERS];
	uint32_t checksums[KVW_MAX_LAYERS];
	uint8_t *front;
	uint64_t file_bytes;
	bool keep_bad;
	enum kv_status status;
	char text[KVS_DISK_TEXT];
};

static struct kvs_load *load_at(struct kv_list *node)
{
	return KV_CONTAINER_OF(node, struct kvs_load, node);
}

static struct kvs_engine *engine_of(const struct kvs_load *load)
{
	return load->disk->server->engine;
}

/* ---- on a pool thread ---- */

static void read_segment(void *context)
{
	struct kvs_load *load = context;
	const struct kvs_disk_read read = {.key = load->key,
	    .wanted = &load->wanted,
	    .units = load->units,
	    .unit_bytes = load->unit_bytes,
	    .checksums = load->checksums,
	    .front = load->front};

	load->status = kvs_disk_load(&load->disk->folder, &read);
	if (load->status == KV_OK) return;
	snprintf(load->text, sizeof load->text, "%s", kv_error_message());
	if (load->status == KV_CORRUPT) {
		char name[KVS_DISK_NAME];

		kvs_disk_name(load->key, name);
		(void)kvs_disk_set_aside(&load->disk->folder, name, load->keep_bad);
	}
}

/* ---- the anchor ---- */

static void drop_anchor(struct kvs_load *load)
{
	if (!load->anchor) return;
	kvs_segment_unpin(engine_of(load), load->anchor);
	load->anchor = 0;
	load->disk->pins--;
	kvs_growth_start(load->disk->server);
}

/* The next cut is in memory, under this id: go on behind it. */
static bool move_anchor(struct kvs_load *load, uint64_t id)
{
	if (kvs_segment_pin(engine_of(load), id) != KV_OK) return false;
	load->disk->pins++;
	drop_anchor(load);
	load->anchor = id;
	load->next++;
	return true;
}

/* ---- one segment after the other ---- */

static void free_load(struct kvs_load *load)
{
	struct kv_allocator *allocator = load->disk->server->allocator;

	kv_free(allocator, load->front);
	kv_free(allocator, load->keys);
	kv_free(allocator, load->cuts);
	kv_free(allocator, load->prompt);
	kv_free(allocator, load);
}

/* Serve the peer with what there is; whatever is being read goes on. */
static void serve(struct kvs_load *load)
{
	struct kvs_peer *peer = load->peer;
	Kv__Request *request = load->request;

	load->peer = NULL;
	load->request = NULL;
	if (!peer) return;
	peer->load = NULL;
	kvs_peer_loaded(peer, request);
}

static void end_load(struct kvs_load *load)
{
	KV_CHECK(!load->segment);
	kv_list_remove(&load->node);
	load->disk->load_count--;
	serve(load);
	drop_anchor(load);
	free_load(load);
}

static void segment_read(void *context);

/* Ask for the memory, and start to read. False: that was all. */
static bool start_reading(struct kvs_load *load)
{
	struct kvs_disk *disk = load->disk;
	struct kv_allocator *allocator = disk->server->allocator;
	uint64_t front_bytes = 0;

	if (kvs_load_begin(engine_of(load), load->peer->slot, &load->open, load->next, load->anchor,
	        &load->segment) != KV_OK) {
		kv_debug(KVS_MODULE, "disk tier: not loaded: %s", kv_error_message());
		load->segment = 0;
		return false;
	}
	kvs_load_show(engine_of(load), load->segment, &load->wanted);
	memcpy(load->key, load->keys[load->next], sizeof load->key);
	for (uint32_t layer = 0; layer < load->wanted.layers; layer++) {
		load->units[layer] = kvs_unit_memory(engine_of(load), &load->wanted.units[layer]);
		load->unit_bytes[layer] = load->wanted.units[layer].bytes;
	}
	load->status = kvs_disk_sizes(&load->wanted, &front_bytes, &load->file_bytes);
	kv_free(allocator, load->front);
	load->front = load->status == KV_OK ? kv_alloc(allocator, (size_t)front_bytes) : NULL;
	load->keep_bad = disk->kept_bad < KVS_DISK_KEPT_BAD;
	if (load->front && kvs_disk_job(disk, read_segment, segment_read, load) == KV_OK) {
		disk->readers++;
		disk->pins++;
		return true;
	}
	kvs_load_finish(engine_of(load), load->segment, KV_NO_MEMORY, NULL);
	load->segment = 0;
	return false;
}

/* Is this key being read for another prompt? */
static bool read_by_another(const struct kvs_load *load)
{
	const struct kv_list *node;

	KV_LIST_EACH(node, &load->disk->loads)
	{
		const struct kvs_load *other = load_at((struct kv_list *)(uintptr_t)node);

		if (other != load && other->segment &&
		    memcmp(other->key, load->keys[load->next], KVW_KEY_BYTES) == 0)
			return true;
	}
	return false;
}

/* False when there is nothing more to wait for. */
static bool step(struct kvs_load *load)
{
	struct kvs_disk *disk = load->disk;
	const uint64_t now = kv_now_ms();
	uint64_t id, bytes;

	if (load->segment) return true;
	load->waits_for = 0;
	if (!load->peer || disk->stopping || disk->lost || now >= load->deadline_ms ||
	    now < disk->read_again_ms)
		return false;
	/* Somebody may have stored it, or loaded it, meanwhile. */
	while (load->next < load->end &&
	       (id = kvs_segment_of_key(engine_of(load), load->keys[load->next])) != 0)
		if (!move_anchor(load, id)) return false;
	if (load->next == load->end) return false;
	if (disk->readers >= KVS_DISK_READERS || read_by_another(load)) return true;
	bytes = kvs_disk_index_bytes_of(disk->index, load->keys[load->next]);
	if (!bytes) return false;
	if (kvs_growth_needed(disk->server, bytes)) {
		load->waits_for = bytes;
		kvs_growth_start(disk->server);
		return true;
	}
	return start_reading(load);
}

void kvs_disk_loads_step(struct kvs_disk *disk)
{
	const uint64_t now = kv_now_ms();
	struct kv_list *node, *following;

	KV_LIST_EACH_SAFE(node, following, &disk->loads)
	{
		struct kvs_load *load = load_at(node);

		if (!step(load))
			end_load(load);
		else if (load->peer && now >= load->deadline_ms)
			serve(load);
	}
}

static void judge_failure(struct kvs_load *load)
{
	struct kvs_disk *disk = load->disk;
	const bool gone = load->status == KV_NOT_FOUND || load->status == KV_CORRUPT;
	const bool known = gone && kvs_disk_index_remove(disk->index, load->key);

	/* It had to go meanwhile, to make room. */
	if (load->status == KV_NOT_FOUND && !known) return;
	if (load->status == KV_CORRUPT) {
		char name[KVS_DISK_NAME];

		kvs_disk_name(load->key, name);
		kvs_disk_note_aside(disk, name, load->text);
		return;
	}
	kvs_disk_complain(disk, "a segment is not read", load->text);
	if (load->status != KV_NOT_FOUND) disk->read_again_ms = kvs_disk_later(&disk->read_pause_ms);
}

static void segment_read(void *context)
{
	struct kvs_load *load = context;
	struct kvs_disk *disk = load->disk;
	struct kv_metrics *metrics = disk->server->metrics;
	const uint32_t tokens = load->wanted.tokens;
	uint64_t id;

	kvs_disk_job_done(disk);
	disk->readers--;
	disk->pins--;
	id = kvs_load_finish(engine_of(load), load->segment, load->status, load->checksums);
	load->segment = 0;
	kvs_growth_start(disk->server);
	if (id) {
		disk->read_pause_ms = 0;
		kv_metrics_add(metrics, KVS_DISK_PROMOTED, 1);
		kv_metrics_add(metrics, KVS_DISK_PROMOTED_TOKENS, tokens);
		kv_metrics_add(metrics, KVS_DISK_READ, (int64_t)load->file_bytes);
		kvs_disk_index_touch(disk->index, load->key);
	} else {
		judge_failure(load);
	}
	/* Others that wait have their turn before this one has its next. */
	kv_list_move_back(&disk->loads, &load->node);
	if (!id || !move_anchor(load, id)) end_load(load);
	kvs_disk_loads_step(disk);
}

/* ---- a prompt comes ---- */

/* How far the prompt's cuts are in memory, and how far they are to be had beyond that. */
static void look(struct kvs_load *load, uint64_t *last)
{
	struct kvs_disk *disk = load->disk;
	const struct kvs_open_request *open = &load->open;

	*last = 0;
	for (uint32_t i = 0; i < open->cut_count; i++) {
		uint64_t id = 0;

		if (kvs_prompt_key(engine_of(load), load->peer->slot, open, i, i ? load->keys[i - 1] : NULL,
		        load->keys[i], &id) != KV_OK)
			return;
		if (id && load->next == i) {
			*last = id;
			load->next = load->end = i + 1;
			/* What is used is not the next to go; what has no file (any more) gets one. */
			if (kvs_disk_index_has(disk->index, load->keys[i]))
				kvs_disk_index_touch(disk->index, load->keys[i]);
			else
				kvs_disk_queue(disk, id);
			continue;
		}
		if (!kvs_disk_index_has(disk->index, load->keys[i])) return;
		load->end = i + 1;
	}
}

/* NULL when no more can wait, or nothing is to be won. Takes a copy of the cuts, and of the prompt
 * if it is to. */
static struct kvs_load *make_load(
    struct kvs_peer *peer, const struct kvs_open_request *open, bool copies_prompt)
{
	struct kv_allocator *allocator = peer->server->allocator;
	struct kvs_disk *disk = peer->server->disk;
	struct kvs_load *load;

	if (!disk || disk->lost || peer->load || !open->cut_count ||
	    open->cut_count > KVS_MAX_COMMIT_SEGMENTS || disk->load_count >= KVS_DISK_LOADS)
		return NULL;
	load = kv_alloc_zero(allocator, sizeof *load);
	if (!load) return NULL;
	kv_list_init(&load->node);
	load->disk = disk;
	load->peer = peer;
	load->open = *open;
	load->deadline_ms = kv_now_ms() + peer->server->settings->disk_wait_ms;
	load->keys = kv_alloc_array(allocator, open->cut_count, sizeof *load->keys);
	load->cuts = kv_alloc_array(allocator, open->cut_count, sizeof *load->cuts);
	if (copies_prompt)
		load->prompt = kv_alloc_array(allocator, open->prompt_tokens, sizeof *load->prompt);
	if (!load->keys || !load->cuts || (copies_prompt && !load->prompt)) {
		free_load(load);
		return NULL;
	}
	memcpy(load->cuts, open->cuts, open->cut_count * sizeof *load->cuts);
	load->open.cuts = load->cuts;
	if (!copies_prompt) return load;
	memcpy(load->prompt, open->prompt, open->prompt_tokens * sizeof *load->prompt);
	load->open.prompt = load->prompt;
	return load;
}

/* False when nothing is to be waited for: then the load is gone. */
static bool begin_load(struct kvs_load *load)
{
	struct kvs_disk *disk = load->disk;
	uint64_t last = 0;

	look(load, &last);
	if (load->next < load->end && last && kvs_segment_pin(disk->server->engine, last) == KV_OK) {
		load->anchor = last;
		disk->pins++;
	}
	kv_list_push_back(&disk->loads, &load->node);
	disk->load_count++;
	if (load->next < load->end && step(load)) {
		load->peer->load = load;
		return true;
	}
	kv_list_remove(&load->node);
	disk->load_count--;
	drop_anchor(load);
	free_load(load);
	return false;
}

bool kvs_disk_load_prompt(struct kvs_peer *peer, const struct kvs_open_request *open)
{
	struct kvs_load *load = make_load(peer, open, false);

	return load && begin_load(load);
}

bool kvs_disk_load_orphan(
    struct kvs_peer *peer, const char *sequence_id, const uint8_t policy_digest[32])
{
	struct kvs_open_request missing;
	struct kvs_load *load;

	if (!peer->server->disk || kvs_sequence_missing(peer->server->engine, peer->slot, sequence_id,
	                               policy_digest, &missing) != KV_OK)
		return false;
	/* The orphan may be gone while it is read for. */
	load = make_load(peer, &missing, true);
	return load && begin_load(load);
}

void kvs_disk_load_waits(struct kvs_peer *peer, Kv__Request *request)
{
	peer->load->request = request;
}

void kvs_disk_forget(struct kvs_peer *peer)
{
	struct kvs_load *load = peer->load;

	if (!load) return;
	peer->load = NULL;
	kv_codec_request_free(peer->frames, load->request);
	load->request = NULL;
	load->peer = NULL;
	if (!load->segment) end_load(load);
}

/* ---- memory ---- */

uint64_t kvs_disk_wished_bytes(const struct kvs_server *server)
{
	const struct kv_list *node;
	uint64_t most = 0;

	if (!server->disk) return 0;
	KV_LIST_EACH(node, &server->disk->loads)
	{
		const struct kvs_load *load = load_at((struct kv_list *)(uintptr_t)node);

		if (load->waits_for > most) most = load->waits_for;
	}
	return most;
}

void kvs_disk_grown(struct kvs_server *server)
{
	if (kvs_disk_wished_bytes(server)) kvs_disk_loads_step(server->disk);
}
