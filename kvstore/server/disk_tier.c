/* The disk tier as a whole: its folder, the index at the start, time, the end. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "kvstore/server/disk_internal.h"

enum { LISTED_AT_A_TIME = 64, REPORT_MS = 2000 };

/* The scan at the start; the pool's thread has it between two turns of the loop. */
struct kvs_disk_listing {
	struct kvs_disk *disk;
	struct kvs_disk_scan *scan;
	struct kvs_disk_found found[LISTED_AT_A_TIME];
	uint32_t count;
	uint32_t kept_bad; /* before this turn */
	uint32_t looked_at, set_aside, unfinished, unread;
	uint64_t started_ns, reported_ms;
	enum kv_status status;
	char text[KVS_DISK_TEXT];
};

void kvs_disk_complain(struct kvs_disk *disk, const char *what, const char *why)
{
	kv_metrics_add(disk->server->metrics, KVS_DISK_ERRORS, 1);
	kv_warning_limited(&disk->log, KVS_MODULE, "disk tier: %s: %s", what, why);
}

uint64_t kvs_disk_later(uint64_t *pause)
{
	*pause = *pause ? 2 * *pause : KVS_DISK_AGAIN_MS;
	if (*pause > KVS_DISK_LATER_MS) *pause = KVS_DISK_LATER_MS;
	return kv_now_ms() + *pause;
}

void kvs_disk_note_aside(struct kvs_disk *disk, const char *name, const char *why)
{
	const bool kept = disk->kept_bad < KVS_DISK_KEPT_BAD;

	kv_metrics_add(disk->server->metrics, KVS_DISK_SET_ASIDE, 1);
	if (kept) disk->kept_bad++;
	kv_warning_limited(&disk->log, KVS_MODULE, "disk tier: file %s name=%s: %s",
	    kept ? "set aside" : "removed, enough are set aside", name, why);
}

enum kv_status kvs_disk_job(
    struct kvs_disk *disk, kv_loop_callback work, kv_loop_callback done, void *context)
{
	KV_TRY(kv_loop_work(disk->server->loop, work, done, context));
	disk->server->jobs++;
	return KV_OK;
}

void kvs_disk_job_done(struct kvs_disk *disk)
{
	disk->server->jobs--;
}

/* ---- the index at the start ---- */

static void tidy(struct kvs_disk_listing *listing, const struct kvs_disk_found *found)
{
	const struct kvs_disk_folder *folder = &listing->disk->folder;

	/* What a process left half written when it died is of no use to anybody. */
	if (found->kind == KVS_DISK_PART) (void)kvs_disk_set_aside(folder, found->name, false);
	if (found->kind == KVS_DISK_WRONG)
		(void)kvs_disk_set_aside(folder, found->name, listing->kept_bad++ < KVS_DISK_KEPT_BAD);
}

static void list_some(void *context)
{
	struct kvs_disk_listing *listing = context;

	listing->status =
	    kvs_disk_scan_next(listing->scan, listing->found, LISTED_AT_A_TIME, &listing->count);
	if (listing->status != KV_OK)
		snprintf(listing->text, sizeof listing->text, "%s", kv_error_message());
	for (uint32_t i = 0; i < listing->count; i++)
		tidy(listing, &listing->found[i]);
}

static void take_found(struct kvs_disk_listing *listing, const struct kvs_disk_found *found)
{
	struct kvs_disk *disk = listing->disk;

	listing->looked_at++;
	if (found->kind == KVS_DISK_SEGMENT) {
		if (kvs_disk_index_add(disk->index, found->key, &found->marks, found->bytes, found->used) !=
		    KV_OK)
			kvs_disk_complain(disk, "a file is not used", kv_error_message());
	} else if (found->kind == KVS_DISK_BAD) {
		disk->kept_bad++;
	} else if (found->kind == KVS_DISK_PART) {
		listing->unfinished++;
	} else if (found->kind == KVS_DISK_WRONG) {
		listing->set_aside++;
		kvs_disk_note_aside(disk, found->name, found->why);
	} else {
		listing->unread++;
		kvs_disk_complain(disk, found->name, found->why);
	}
}

static void end_listing(struct kvs_disk_listing *listing)
{
	struct kvs_disk *disk = listing->disk;

	if (listing->status != KV_OK) kvs_disk_complain(disk, "the index", listing->text);
	if (kvs_disk_index_sort(disk->index) != KV_OK)
		kvs_disk_complain(disk, "the index", kv_error_message());
	kv_info(KVS_MODULE,
	    "disk tier: index read files=%u bytes=%llu set_aside=%u unfinished=%u unread=%u "
	    "seconds=%.3f",
	    kvs_disk_index_count(disk->index), (unsigned long long)kvs_disk_index_bytes(disk->index),
	    listing->set_aside, listing->unfinished, listing->unread,
	    kv_seconds_since(listing->started_ns));
	kvs_disk_scan_end(listing->scan);
	kv_free(disk->server->allocator, listing);
	disk->listing = NULL;
	kvs_disk_write_next(disk);
}

static void listed_some(void *context)
{
	struct kvs_disk_listing *listing = context;
	struct kvs_disk *disk = listing->disk;
	const bool more = listing->count > 0 && listing->status == KV_OK && !disk->stopping;

	kvs_disk_job_done(disk);
	for (uint32_t i = 0; i < listing->count; i++)
		take_found(listing, &listing->found[i]);
	listing->kept_bad = disk->kept_bad;
	if (kv_now_ms() - listing->reported_ms >= REPORT_MS) {
		listing->reported_ms = kv_now_ms();
		kv_info(KVS_MODULE, "disk tier: reading the index files=%u", listing->looked_at);
	}
	if (!more || kvs_disk_job(disk, list_some, listed_some, listing) != KV_OK) end_listing(listing);
}

static enum kv_status start_listing(struct kvs_disk *disk)
{
	struct kvs_server *server = disk->server;
	struct kvs_disk_listing *listing = kv_alloc_zero(server->allocator, sizeof *listing);
	enum kv_status status;

	if (!listing) return KV_NO_MEMORY;
	listing->disk = disk;
	listing->started_ns = kv_now_ns();
	listing->reported_ms = kv_now_ms();
	status = kvs_disk_scan_begin(server->allocator, &disk->folder, &listing->scan);
	if (status == KV_OK) status = kvs_disk_job(disk, list_some, listed_some, listing);
	if (status != KV_OK) {
		kvs_disk_scan_end(listing->scan);
		kv_free(server->allocator, listing);
		return status;
	}
	disk->listing = listing;
	return KV_OK;
}

/* ---- start and end ---- */

static enum kv_status open_parts(struct kvs_disk *disk)
{
	struct kv_allocator *allocator = disk->server->allocator;

	disk->queue = kv_alloc_array(allocator, KVS_DISK_QUEUE, sizeof *disk->queue);
	if (!disk->queue) return KV_NO_MEMORY;
	KV_TRY(kv_hash_map_create(allocator, KVS_DISK_QUEUE, sizeof(uint64_t), 1, &disk->queued));
	KV_TRY(kvs_disk_index_create(allocator, KVS_DISK_FILES, &disk->index));
	KV_TRY(kvs_disk_open(disk->path, &disk->folder));
	return start_listing(disk);
}

enum kv_status kvs_disk_start(struct kvs_server *server)
{
	const struct sigaction ignore = {.sa_handler = SIG_IGN};
	const struct kvs_settings *settings = server->settings;
	char limit[KV_PARSE_TEXT_SIZE];
	struct kvs_disk *disk;

	if (!settings->disk || !*settings->disk) return KV_OK;
	disk = kv_alloc_zero(server->allocator, sizeof *disk);
	if (!disk) return KV_NO_MEMORY;
	disk->server = server;
	disk->path = settings->disk;
	disk->limit = settings->disk_size;
	disk->folder = (struct kvs_disk_folder){.descriptor = -1, .lock = -1};
	kv_list_init(&disk->loads);
	server->disk = disk;
	/* A file above the process's limit is a write that fails. */
	sigaction(SIGXFSZ, &ignore, NULL);
	KV_TRY(open_parts(disk));
	kv_info(
	    KVS_MODULE, "disk tier: path=%s limit=%s", disk->path, kv_format_size(disk->limit, limit));
	return KV_OK;
}

void kvs_disk_flush(struct kvs_server *server)
{
	const uint64_t wait_ms = server->settings->end_wait_ms;
	const uint64_t deadline = kv_now_ms() + wait_ms / 2;
	struct kvs_disk *disk = server->disk;

	if (!disk) return;
	/* And for what follows. */
	kv_sd_extend_timeout(server->notify, 2 * wait_ms);
	while (server->running && (disk->listing || disk->queue_count || disk->writing) &&
	       kv_now_ms() < deadline && kv_now_ms() >= disk->write_again_ms) {
		kvs_disk_write_next(disk);
		if (kv_loop_run_for(server->loop, 10) != KV_OK) break;
	}
	kv_metrics_add(server->metrics, KVS_DISK_NOT_WRITTEN, disk->queue_count);
	if (disk->queue_count)
		kv_warning(KVS_MODULE, "disk tier: segments=%u were not written before the end",
		    disk->queue_count);
	disk->queue_count = 0;
	disk->stopping = true;
}

void kvs_disk_stop(struct kvs_server *server)
{
	struct kvs_disk *disk = server->disk;

	if (!disk) return;
	kvs_disk_close(&disk->folder);
	kvs_disk_index_destroy(disk->index);
	kv_hash_map_destroy(disk->queued);
	kv_free(server->allocator, disk->copy);
	kv_free(server->allocator, disk->queue);
	kv_free(server->allocator, disk);
	server->disk = NULL;
}

/* ---- time and figures ---- */

void kvs_disk_tick(struct kvs_server *server, uint64_t now)
{
	struct kvs_disk *disk = server->disk;

	if (!disk) return;
	if (disk->full_until_ms && now >= disk->full_until_ms) disk->full_until_ms = 0;
	kvs_disk_write_next(disk);
	kvs_disk_loads_step(disk);
}

bool kvs_disk_holds(const struct kvs_server *server)
{
	return server->disk && server->disk->pins > 0;
}

uint32_t kvs_disk_listed(const struct kvs_server *server)
{
	return server->disk && server->disk->listing ? 1 + server->disk->listing->looked_at : 0;
}

void kvs_disk_refresh(struct kvs_server *server)
{
	const struct kvs_disk *disk = server->disk;

	if (!disk) return;
	kv_metrics_set(server->metrics, KVS_DISK_LIMIT, (int64_t)disk->limit);
	kv_metrics_set(server->metrics, KVS_DISK_BYTES, (int64_t)kvs_disk_index_bytes(disk->index));
	kv_metrics_set(server->metrics, KVS_DISK_SEGMENTS, kvs_disk_index_count(disk->index));
}
