/* Segments on their way back: a prompt whose leading cuts lie in files waits until they are in
 * memory again, or its time is up; then it is opened with what is there. So does a sequence that is
 * resumed, for what was evicted of its prompt.
 *
 * Behind the last cut that there is come pieces: segments of other prompts that begin as the rest
 * of this one does. Marks tell which file has the most of it; only its tokens say how much, so its
 * front is read first. One that is the prompt's as a whole may have others behind it. Each time the
 * closest one is taken; where another way would have led farther, that costs reuse only.
 *
 * What a load has, besides the peer and the message that wait: the anchor, the last segment that is
 * in memory, pinned so that making room for the next one does not take it; and the segment that a
 * pool thread reads into memory of its own. That outlives the peer, and the deadline. */
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
	bool cuts_only;   /* no pieces: nobody could use them */
	bool piece;       /* what `target` says is one */
	bool last;        /* and nothing comes behind it */
	uint32_t reached; /* tokens of the prompt that are in memory, up to the anchor */
	uint8_t anchor_key[KVW_KEY_BYTES]; /* if anything was reached */
	bool busy;                         /* a job is under way */
	struct kvs_wanted target;          /* what is to be read, with its key; of a piece token_ids */
	uint32_t *piece_tokens;
	uint64_t segment;           /* that is being read, 0: none */
	uint8_t key[KVW_KEY_BYTES]; /* of the target */
	struct kvs_saved wanted;
	uint8_t *units[KVW_MAX_LAYERS];
	uint64_t unit_bytes[KVW_MAX_LAYERS];
	uint32_t checksums[KVW_MAX_LAYERS];
	uint8_t *front;
	uint64_t front_bytes, file_bytes;
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

/* After a failure: keep the reason, put aside what is damaged. */
static void note_failure(struct kvs_load *load)
{
	char name[KVS_DISK_NAME];

	if (load->status == KV_OK) return;
	snprintf(load->text, sizeof load->text, "%s", kv_error_message());
	if (load->status != KV_CORRUPT) return;
	kvs_disk_name(load->key, name);
	(void)kvs_disk_set_aside(&load->disk->folder, name, load->keep_bad);
}

static void read_tokens(void *context)
{
	struct kvs_load *load = context;
	const struct kvs_disk_peek peek = {.key = load->key,
	    .front = load->front,
	    .front_bytes = load->front_bytes,
	    .tokens = load->target.tokens,
	    .token_ids = load->piece_tokens};

	load->status = kvs_disk_look(&load->disk->folder, &peek);
	note_failure(load);
}

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
	note_failure(load);
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

/* A segment of so many tokens that are the prompt's is in memory, under this id: go on behind it.
 */
static bool move_anchor(
    struct kvs_load *load, uint64_t id, const uint8_t key[KVW_KEY_BYTES], uint32_t tokens)
{
	if (kvs_segment_pin(engine_of(load), id) != KV_OK) return false;
	load->disk->pins++;
	drop_anchor(load);
	load->anchor = id;
	load->reached += tokens;
	memcpy(load->anchor_key, key, sizeof load->anchor_key);
	return true;
}

static const uint8_t *parent_key(const struct kvs_load *load)
{
	return load->reached ? load->anchor_key : NULL;
}

/* What was to be had is there: False when nothing can follow. */
static bool reach_target(struct kvs_load *load, uint64_t id)
{
	const bool last = load->piece && load->last;

	if (!load->piece) load->next++;
	load->piece = false;
	return move_anchor(load, id, load->key, load->target.tokens) && !last;
}

/* ---- one segment after the other ---- */

static void free_load(struct kvs_load *load)
{
	struct kv_allocator *allocator = load->disk->server->allocator;

	kv_free(allocator, load->front);
	kv_free(allocator, load->piece_tokens);
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
	KV_CHECK(!load->busy);
	kv_list_remove(&load->node);
	load->disk->load_count--;
	serve(load);
	drop_anchor(load);
	free_load(load);
}

static void segment_read(void *context);
static void tokens_read(void *context);

/* A pool thread reads for it. False: there is none. */
static bool start_job(struct kvs_load *load, kv_loop_callback work, kv_loop_callback done)
{
	struct kvs_disk *disk = load->disk;

	load->keep_bad = disk->kept_bad < KVS_DISK_KEPT_BAD;
	if (!load->front || kvs_disk_job(disk, work, done, load) != KV_OK) return false;
	disk->readers++;
	load->busy = true;
	return true;
}

/* Memory for the front of a segment. */
static void make_front(struct kvs_load *load, const struct kvs_saved *saved)
{
	struct kv_allocator *allocator = load->disk->server->allocator;
	const enum kv_status status = kvs_disk_sizes(saved, &load->front_bytes, &load->file_bytes);

	kv_free(allocator, load->front);
	load->front = status == KV_OK ? kv_alloc(allocator, (size_t)load->front_bytes) : NULL;
}

/* Ask for the memory, and start to read the target. False: that was all. */
static bool start_reading(struct kvs_load *load)
{
	if (kvs_load_begin(engine_of(load), load->peer->slot, &load->target, load->anchor,
	        &load->segment) != KV_OK) {
		kv_debug(KVS_MODULE, "disk tier: not loaded: %s", kv_error_message());
		load->segment = 0;
		return false;
	}
	kvs_load_show(engine_of(load), load->segment, &load->wanted);
	for (uint32_t layer = 0; layer < load->wanted.layers; layer++) {
		load->units[layer] = kvs_unit_memory(engine_of(load), &load->wanted.units[layer]);
		load->unit_bytes[layer] = load->wanted.units[layer].bytes;
	}
	make_front(load, &load->wanted);
	if (start_job(load, read_segment, segment_read)) {
		load->disk->pins++;
		return true;
	}
	kvs_load_finish(engine_of(load), load->segment, KV_NO_MEMORY, NULL);
	load->segment = 0;
	return false;
}

/* Is the target being read for another prompt? */
static bool read_by_another(const struct kvs_load *load)
{
	const struct kv_list *node;

	KV_LIST_EACH(node, &load->disk->loads)
	{
		const struct kvs_load *other = load_at((struct kv_list *)(uintptr_t)node);

		if (other != load && other->segment && memcmp(other->key, load->key, KVW_KEY_BYTES) == 0)
			return true;
	}
	return false;
}

/* Read the target as soon as there is somebody, and memory, for it. False: it is not to be had. */
static bool read_target(struct kvs_load *load)
{
	struct kvs_disk *disk = load->disk;
	uint64_t bytes;

	if (disk->readers >= KVS_DISK_READERS || read_by_another(load)) return true;
	bytes = kvs_disk_index_bytes_of(disk->index, load->key);
	if (!bytes) return false;
	if (kvs_growth_needed(disk->server, bytes)) {
		load->waits_for = bytes;
		kvs_growth_start(disk->server);
		return true;
	}
	return start_reading(load);
}

/* ---- pieces ---- */

/* The marks of so many tokens behind those that were reached. */
static bool mark_rest(const struct kvs_load *load, uint32_t tokens, struct kvs_disk_marks *marks)
{
	const struct kvs_wanted rest = {.start = load->reached,
	    .tokens = tokens,
	    .kind = KVW_PLAIN,
	    .token_ids = load->open.prompt + load->reached};
	struct kvs_saved saved;

	return kvs_wanted_show(engine_of(load), load->peer->slot, &rest, parent_key(load), &saved) ==
	           KV_OK &&
	       kvs_disk_marks(&saved, marks) == KV_OK;
}

/* The file that has the most of the rest of the prompt. How many tokens those are; 0 where reading
 * it would cost more than it saves. No more of the rest is summed up than a file can have. */
static uint32_t closest_file(
    const struct kvs_load *load, uint8_t key[KVW_KEY_BYTES], struct kvs_disk_marks *marks)
{
	const uint32_t *rest = load->open.prompt + load->reached;
	const struct kvs_disk_index *index = load->disk->index;
	struct kvs_disk_marks prompt;
	uint32_t common, tokens;

	if (!mark_rest(load, 1, &prompt)) return 0;
	tokens = kvs_disk_index_longest(index, &prompt);
	if (tokens > load->open.prompt_tokens - load->reached)
		tokens = load->open.prompt_tokens - load->reached;
	if (!tokens || !mark_rest(load, tokens, &prompt)) return 0;
	common = kvs_disk_index_closest(index, &prompt, rest, key, marks);
	return common && common >= marks->tokens / KVS_DISK_WORTH ? common : 0;
}

/* Begin with the front of this file. */
static bool look_at(
    struct kvs_load *load, const uint8_t key[KVW_KEY_BYTES], const struct kvs_disk_marks *marks)
{
	struct kv_allocator *allocator = load->disk->server->allocator;
	struct kvs_saved saved;

	kv_free(allocator, load->piece_tokens);
	load->piece_tokens = kv_alloc_array(allocator, marks->tokens, sizeof *load->piece_tokens);
	load->target = (struct kvs_wanted){.start = marks->start,
	    .tokens = marks->tokens,
	    .kind = (enum kvw_segment_kind)marks->kind,
	    .token_ids = load->piece_tokens};
	memcpy(load->key, key, sizeof load->key);
	if (!load->piece_tokens || kvs_wanted_show(engine_of(load), load->peer->slot, &load->target,
	                               parent_key(load), &saved) != KV_OK)
		return false;
	make_front(load, &saved);
	return start_job(load, read_tokens, tokens_read);
}

/* Go on to the next piece, in memory or in a file. False when there is none in a file. */
static bool next_piece(struct kvs_load *load)
{
	const struct kvs_open_request *open = &load->open;

	while (!load->cuts_only && load->reached < open->prompt_tokens) {
		uint8_t key[KVW_KEY_BYTES];
		struct kvs_disk_marks marks;
		struct kvs_child child;

		if (kvs_prompt_child(engine_of(load), load->peer->slot, load->anchor, open->prompt,
		        open->prompt_tokens, &child) != KV_OK)
			return false;
		if (closest_file(load, key, &marks) > child.common) {
			if (load->disk->readers >= KVS_DISK_READERS) return true;
			return look_at(load, key, &marks);
		}
		if (!child.id || child.common < child.tokens) return false;
		kvs_disk_index_touch(load->disk->index, child.key);
		if (!move_anchor(load, child.id, child.key, child.tokens)) return false;
	}
	return false;
}

/* The tokens of a piece are there: is it what its name says, and how much of it is the prompt's? */
static bool take_piece(struct kvs_load *load)
{
	const struct kvs_open_request *open = &load->open;
	const uint32_t left = open->prompt_tokens - load->reached;
	uint32_t common = 0;
	uint8_t key[KVW_KEY_BYTES];
	uint64_t id = 0;

	if (kvs_wanted_key(engine_of(load), load->peer->slot, &load->target, parent_key(load), key,
	        &id) != KV_OK ||
	    memcmp(key, load->key, sizeof key) != 0)
		return false;
	while (common < left && common < load->target.tokens &&
	       load->piece_tokens[common] == open->prompt[load->reached + common])
		common++;
	load->piece = true;
	load->last = common < load->target.tokens;
	return common > 0;
}

static void judge_failure(struct kvs_load *load);

static void tokens_read(void *context)
{
	struct kvs_load *load = context;
	struct kvs_disk *disk = load->disk;

	kvs_disk_job_done(disk);
	disk->readers--;
	load->busy = false;
	if (load->status != KV_OK) judge_failure(load);
	if (load->status != KV_OK || !load->peer || !take_piece(load)) end_load(load);
	kvs_disk_loads_step(disk);
}

/* ---- one after the other ---- */

/* False when there is nothing more to wait for. */
static bool step(struct kvs_load *load)
{
	struct kvs_disk *disk = load->disk;
	const uint64_t now = kv_now_ms();
	uint64_t id;

	if (load->busy) return true;
	load->waits_for = 0;
	if (!load->peer || disk->stopping || disk->lost || now >= load->deadline_ms ||
	    now < disk->read_again_ms)
		return false;
	while (load->piece || load->next < load->end) {
		if (!load->piece) {
			if (kvs_wanted_cut(&load->open, load->next, &load->target) != KV_OK) return false;
			memcpy(load->key, load->keys[load->next], sizeof load->key);
		}
		/* Somebody may have stored it, or loaded it, meanwhile. */
		id = kvs_segment_of_key(engine_of(load), load->key);
		if (!id) return read_target(load);
		if (!reach_target(load, id)) return false;
	}
	return next_piece(load);
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
	load->busy = false;
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
	if (!id || !reach_target(load, id)) end_load(load);
	kvs_disk_loads_step(disk);
}

/* ---- a prompt comes ---- */

/* How far the prompt's cuts are in memory, which the anchor then is at the end of, and how far they
 * are to be had beyond that. */
static void look(struct kvs_load *load)
{
	struct kvs_disk *disk = load->disk;
	const struct kvs_open_request *open = &load->open;

	for (uint32_t i = 0; i < open->cut_count; i++) {
		uint64_t id = 0;

		if (kvs_wanted_cut(open, i, &load->target) != KV_OK ||
		    kvs_wanted_key(engine_of(load), load->peer->slot, &load->target,
		        i ? load->keys[i - 1] : NULL, load->keys[i], &id) != KV_OK)
			return;
		if (id && load->next == i) {
			if (!move_anchor(load, id, load->keys[i], load->target.tokens)) return;
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
	load->cuts_only = copies_prompt;
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

	look(load);
	kv_list_push_back(&disk->loads, &load->node);
	disk->load_count++;
	if (step(load)) {
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
	if (!load->busy) end_load(load);
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
