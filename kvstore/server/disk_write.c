/* Segments on their way to files, one at a time.
 *
 * A segment is pinned only while a pool thread copies it (and checks it: what is wrong in memory is
 * not made to last); the file is written from that copy. So a slow disk keeps no memory of the
 * arena, at the price of one segment's copy. */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "kvstore/server/disk_internal.h"

struct kvs_disk_writing {
	struct kvs_disk *disk;
	uint64_t id; /* 0: only files go */
	uint8_t key[KVW_KEY_BYTES];
	const uint8_t *units[KVW_MAX_LAYERS];
	uint64_t unit_bytes[KVW_MAX_LAYERS];
	uint32_t checksums[KVW_MAX_LAYERS];
	uint32_t layers;
	uint8_t *front;
	struct kvs_disk_marks marks;
	uint64_t front_bytes, file_bytes;
	uint8_t victims[KVS_DISK_VICTIMS][KVW_KEY_BYTES];
	uint32_t victim_count, not_removed;
	struct kvs_disk_folder folder; /* the one that was made anew */
	enum kv_status status;
	char text[KVS_DISK_TEXT];
};

/* ---- the queue ---- */

static void count_lost(struct kvs_disk *disk)
{
	kv_metrics_add(disk->server->metrics, KVS_DISK_NOT_WRITTEN, 1);
}

void kvs_disk_queue(struct kvs_disk *disk, uint64_t segment_id)
{
	if (disk->stopping) return;
	if (kv_hash_map_insert(disk->queued, &segment_id, 0) != KV_OK) {
		/* It waits already, or there is no room for it. */
		if (!kv_hash_map_find(disk->queued, &segment_id, NULL)) count_lost(disk);
		return;
	}
	disk->queue[(disk->queue_first + disk->queue_count++) % KVS_DISK_QUEUE] = segment_id;
	kvs_disk_write_next(disk);
}

static uint64_t queue_take(struct kvs_disk *disk)
{
	const uint64_t id = disk->queue[disk->queue_first];

	disk->queue_first = (disk->queue_first + 1) % KVS_DISK_QUEUE;
	disk->queue_count--;
	kv_hash_map_remove(disk->queued, &id, NULL);
	return id;
}

/* To the front again. */
static void queue_back(struct kvs_disk *disk, uint64_t id)
{
	if (kv_hash_map_insert(disk->queued, &id, 0) != KV_OK) return;
	disk->queue_first = (disk->queue_first + KVS_DISK_QUEUE - 1) % KVS_DISK_QUEUE;
	disk->queue[disk->queue_first] = id;
	disk->queue_count++;
}

static void unpin(struct kvs_disk *disk, uint64_t id)
{
	kvs_segment_unpin(disk->server->engine, id);
	disk->pins--;
	/* Whoever waits for memory may have it now. */
	kvs_growth_start(disk->server);
}

/* ---- on a pool thread ---- */

static void keep_text(struct kvs_disk_writing *writing)
{
	if (writing->status != KV_OK)
		snprintf(writing->text, sizeof writing->text, "%s", kv_error_message());
}

static void copy_segment(void *context)
{
	struct kvs_disk_writing *writing = context;
	uint8_t *to = writing->disk->copy;

	for (uint32_t layer = 0; layer < writing->layers; layer++) {
		const size_t bytes = (size_t)writing->unit_bytes[layer];

		memcpy(to, writing->units[layer], bytes);
		if (kv_crc32c(0, to, bytes) != writing->checksums[layer]) {
			writing->status = kv_fail(KV_CORRUPT,
			    "layer %u of segment %llu is damaged in memory: its checksum differs", layer,
			    (unsigned long long)writing->id);
			break;
		}
		to += bytes;
	}
	keep_text(writing);
}

static void write_segment(void *context)
{
	struct kvs_disk_writing *writing = context;
	const struct kvs_disk *disk = writing->disk;

	for (uint32_t i = 0; i < writing->victim_count; i++) {
		if (kvs_disk_remove(&disk->folder, writing->victims[i]) == KV_OK) continue;
		writing->not_removed++;
		snprintf(writing->text, sizeof writing->text, "%s", kv_error_message());
	}
	if (!writing->id) return;
	writing->status =
	    kvs_disk_write(&disk->folder, writing->key, writing->front, (size_t)writing->front_bytes,
	        disk->copy, (size_t)(writing->file_bytes - writing->front_bytes));
	keep_text(writing);
}

static void open_again(void *context)
{
	struct kvs_disk_writing *writing = context;

	writing->status = kvs_disk_open(writing->disk->path, &writing->folder);
	keep_text(writing);
}

/* ---- on the loop ---- */

static void end_writing(struct kvs_disk_writing *writing)
{
	struct kvs_disk *disk = writing->disk;
	struct kv_allocator *allocator = disk->server->allocator;

	disk->writing = NULL;
	kv_free(allocator, writing->front);
	kv_free(allocator, writing);
	if (!disk->queue_count || disk->write_again_ms) {
		kv_free(allocator, disk->copy);
		disk->copy = NULL;
		disk->copy_bytes = 0;
	}
	kvs_disk_write_next(disk);
}

/* Try again later, with the same segment first. */
static void put_off(struct kvs_disk *disk, const struct kvs_disk_writing *writing)
{
	disk->write_again_ms = kvs_disk_later(&disk->write_pause_ms);
	if (writing->id) queue_back(disk, writing->id);
}

static void written(void *context)
{
	struct kvs_disk_writing *writing = context;
	struct kvs_disk *disk = writing->disk;
	struct kv_metrics *metrics = disk->server->metrics;
	enum kv_status status = writing->status;

	kvs_disk_job_done(disk);
	if (writing->not_removed) kvs_disk_complain(disk, "a file that was to go", writing->text);
	if (status == KV_OK && writing->id) {
		disk->write_pause_ms = 0;
		kv_metrics_add(metrics, KVS_DISK_WRITES, 1);
		kv_metrics_add(metrics, KVS_DISK_WRITTEN, (int64_t)writing->file_bytes);
		if (kvs_disk_index_add(
		        disk->index, writing->key, &writing->marks, writing->file_bytes, 0) != KV_OK)
			kvs_disk_complain(disk, "a file is not used", kv_error_message());
	} else if (status != KV_OK) {
		kvs_disk_complain(disk, "a segment is not written", writing->text);
		disk->lost = status == KV_NOT_FOUND;
		if (status == KV_LIMIT) {
			/* The medium is full below the limit: live with what is there, for a while. */
			disk->room = kvs_disk_index_bytes(disk->index);
			disk->full_until_ms = kv_now_ms() + KVS_DISK_FULL_MS;
		}
		if (status == KV_UNSUPPORTED)
			count_lost(disk);
		else
			put_off(disk, writing);
	}
	end_writing(writing);
}

static void copied(void *context)
{
	struct kvs_disk_writing *writing = context;
	struct kvs_disk *disk = writing->disk;

	kvs_disk_job_done(disk);
	unpin(disk, writing->id);
	if (writing->status != KV_OK) {
		kv_metrics_add(disk->server->metrics, KVS_CHECKSUM_MISMATCHES, 1);
		kvs_disk_complain(disk, "a segment is not written", writing->text);
		count_lost(disk);
		/* What was to make room for it goes all the same. */
		writing->status = KV_OK;
		writing->id = 0;
	}
	if (kvs_disk_job(disk, write_segment, written, writing) == KV_OK) return;
	put_off(disk, writing);
	end_writing(writing);
}

static void opened_again(void *context)
{
	struct kvs_disk_writing *writing = context;
	struct kvs_disk *disk = writing->disk;

	kvs_disk_job_done(disk);
	if (writing->status == KV_OK) {
		kvs_disk_close(&disk->folder);
		disk->folder = writing->folder;
		kvs_disk_index_clear(disk->index);
		disk->lost = false;
		kv_info(KVS_MODULE, "disk tier: the folder was made anew path=%s", disk->path);
	} else {
		kvs_disk_complain(disk, "still without a folder", writing->text);
		put_off(disk, writing);
	}
	end_writing(writing);
}

static uint64_t room(const struct kvs_disk *disk)
{
	return disk->full_until_ms && disk->room < disk->limit ? disk->room : disk->limit;
}

/* Files that have to go so that this one fits. False: it needs more than one turn. */
static bool choose_victims(struct kvs_disk_writing *writing)
{
	struct kvs_disk *disk = writing->disk;

	while (kvs_disk_index_full(disk->index) ||
	       kvs_disk_index_bytes(disk->index) > room(disk) - writing->file_bytes) {
		if (writing->victim_count == KVS_DISK_VICTIMS) return false;
		if (!kvs_disk_index_take_oldest(disk->index, writing->victims[writing->victim_count]))
			break;
		writing->victim_count++;
		kv_metrics_add(disk->server->metrics, KVS_DISK_EVICTIONS, 1);
	}
	return true;
}

static bool take_down(struct kvs_disk_writing *writing, const struct kvs_saved *saved)
{
	const struct kvs_engine *engine = writing->disk->server->engine;

	memcpy(writing->key, saved->key, sizeof writing->key);
	writing->layers = saved->layers;
	for (uint32_t layer = 0; layer < saved->layers; layer++) {
		writing->units[layer] = kvs_unit_memory(engine, &saved->units[layer]);
		writing->unit_bytes[layer] = saved->units[layer].bytes;
		writing->checksums[layer] = saved->checksums[layer];
		if (!writing->units[layer]) return false;
	}
	return true;
}

/* Room for the copy, and the front. */
static enum kv_status make_front(struct kvs_disk_writing *writing, const struct kvs_saved *saved)
{
	struct kvs_disk *disk = writing->disk;
	struct kv_allocator *allocator = disk->server->allocator;
	size_t bytes;

	KV_TRY(kvs_disk_marks(saved, &writing->marks));
	KV_TRY(kvs_disk_sizes(saved, &writing->front_bytes, &writing->file_bytes));
	if (writing->file_bytes > room(disk))
		return kv_fail(
		    KV_LIMIT, "a file of %llu bytes does not fit", (unsigned long long)writing->file_bytes);
	bytes = (size_t)(writing->file_bytes - writing->front_bytes);
	if (disk->copy_bytes < bytes) {
		kv_free(allocator, disk->copy);
		disk->copy = kv_alloc(allocator, bytes);
		disk->copy_bytes = disk->copy ? bytes : 0;
		if (!disk->copy) return KV_NO_MEMORY;
	}
	writing->front = kv_alloc(allocator, (size_t)writing->front_bytes);
	if (!writing->front) return KV_NO_MEMORY;
	return kvs_disk_encode(saved, writing->front);
}

/* Begin with a pinned segment. KV_EXISTS: it has a file; KV_BUSY: later. */
static enum kv_status begin(struct kvs_disk_writing *writing)
{
	struct kvs_disk *disk = writing->disk;
	struct kvs_saved saved;

	KV_TRY(kvs_segment_saved(disk->server->engine, writing->id, &saved));
	if (kvs_disk_index_has(disk->index, saved.key)) return KV_EXISTS;
	if (!take_down(writing, &saved)) return kv_fail(KV_UNSUPPORTED, "it has no address here");
	KV_TRY(make_front(writing, &saved));
	if (!choose_victims(writing)) {
		/* A turn that only removes; the segment comes next. */
		queue_back(disk, writing->id);
		unpin(disk, writing->id);
		writing->id = 0;
		return kvs_disk_job(disk, write_segment, written, writing);
	}
	return kvs_disk_job(disk, copy_segment, copied, writing);
}

static struct kvs_disk_writing *take_lane(struct kvs_disk *disk)
{
	struct kvs_disk_writing *writing = kv_alloc_zero(disk->server->allocator, sizeof *writing);

	if (!writing) return NULL;
	writing->disk = disk;
	disk->writing = writing;
	return writing;
}

static void free_lane(struct kvs_disk_writing *writing)
{
	struct kvs_disk *disk = writing->disk;

	disk->writing = NULL;
	kv_free(disk->server->allocator, writing->front);
	kv_free(disk->server->allocator, writing);
}

/* True when the lane is taken, or nothing more is to be tried now. */
static bool write_one(struct kvs_disk *disk, uint64_t id)
{
	struct kvs_disk_writing *writing;
	enum kv_status status;

	if (kvs_segment_pin(disk->server->engine, id) != KV_OK) {
		count_lost(disk); /* it was evicted before its turn came */
		return false;
	}
	disk->pins++;
	writing = take_lane(disk);
	if (writing) writing->id = id;
	status = writing ? begin(writing) : KV_NO_MEMORY;
	if (status == KV_OK) return true;
	if (!writing || writing->id) unpin(disk, id);
	if (status == KV_BUSY) queue_back(disk, id);
	if (status != KV_BUSY && status != KV_EXISTS && status != KV_INVALID) count_lost(disk);
	if (writing) free_lane(writing);
	return status == KV_BUSY;
}

static void find_folder(struct kvs_disk *disk)
{
	struct kvs_disk_writing *writing;

	if (disk->readers) return;
	writing = take_lane(disk);
	if (writing && kvs_disk_job(disk, open_again, opened_again, writing) != KV_OK)
		free_lane(writing);
}

void kvs_disk_write_next(struct kvs_disk *disk)
{
	if (disk->listing || disk->writing || disk->stopping) return;
	if (disk->write_again_ms && kv_now_ms() < disk->write_again_ms) return;
	disk->write_again_ms = 0;
	if (disk->lost) {
		find_folder(disk);
		return;
	}
	while (disk->queue_count && !write_one(disk, queue_take(disk))) {
	}
}

void kvs_disk_note(struct kvs_server *server, const struct kvs_segment_view *view)
{
	if (server->disk && view->provenance == KVW_EXACT && view->checksums)
		kvs_disk_queue(server->disk, view->id);
}
