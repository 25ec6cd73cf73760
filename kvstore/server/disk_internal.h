/* What the files of the disk tier (disk_*.c) share.
 *
 * One writer and at most two readers are on the pool's threads at a time: a disk that hangs must
 * leave a thread to the checksums of commits. The writer's lane does all that changes the folder;
 * readers only set aside what they find to be wrong.
 */
#ifndef KVS_SERVER_DISK_INTERNAL_H
#define KVS_SERVER_DISK_INTERNAL_H

#include "common/collect/hash_map.h"
#include "kvstore/disk/disk_folder.h"
#include "kvstore/disk/disk_index.h"
#include "kvstore/server/server_internal.h"

enum {
	KVS_DISK_FILES = 131072, /* that are known of */
	KVS_DISK_QUEUE = 16384,  /* segments that wait to be written */
	KVS_DISK_KEPT_BAD = 64,  /* files set aside; further ones are removed */
	KVS_DISK_VICTIMS = 64,   /* files that make room for one */
	KVS_DISK_READERS = 2,
	KVS_DISK_LOADS = 32,     /* prompts that wait for segments at a time */
	KVS_DISK_WORTH = 8,      /* a piece is read for this part of its tokens at least */
	KVS_DISK_AGAIN_MS = 500, /* after a failure; twice as long after each further one */
	KVS_DISK_LATER_MS = 32000,
	KVS_DISK_FULL_MS = 60000,
	KVS_DISK_TEXT = 256
};

struct kvs_disk_writing; /* disk_write.c: a file on its way */
struct kvs_disk_listing; /* disk_tier.c: the scan at the start */

struct kvs_disk {
	struct kvs_server *server;
	const char *path;
	struct kvs_disk_folder folder;
	struct kvs_disk_index *index;
	struct kv_log_limit log;
	uint64_t limit;
	/* A medium that is fuller than --disk-size thinks: no more than this, until then. */
	uint64_t room, full_until_ms;
	uint32_t kept_bad;
	uint32_t pins; /* segments that stay in memory for its sake */
	bool lost;     /* the folder is gone */
	bool stopping;
	struct kvs_disk_listing *listing; /* not NULL: it has not ended */

	uint64_t *queue; /* [KVS_DISK_QUEUE] ids, a ring */
	uint32_t queue_first, queue_count;
	struct kv_hash_map *queued;
	struct kvs_disk_writing *writing; /* the lane is taken */
	uint8_t *copy;                    /* of the segment that is being written */
	size_t copy_bytes;
	uint64_t write_again_ms, write_pause_ms;

	struct kv_list loads;
	uint32_t load_count, readers;
	uint64_t read_again_ms, read_pause_ms;
};

/* Something failed; not more than a few lines of it. */
void kvs_disk_complain(struct kvs_disk *disk, const char *what, const char *why);
/* When to try again after one more failure; *pause is 0 before the first. */
uint64_t kvs_disk_later(uint64_t *pause);
/* A file was set aside. */
void kvs_disk_note_aside(struct kvs_disk *disk, const char *name, const char *why);
/* A job begins and ends; jobs keep the server from ending. */
enum kv_status kvs_disk_job(
    struct kvs_disk *disk, kv_loop_callback work, kv_loop_callback done, void *context);
void kvs_disk_job_done(struct kvs_disk *disk);

/* disk_write.c */
void kvs_disk_queue(struct kvs_disk *disk, uint64_t segment_id);
void kvs_disk_write_next(struct kvs_disk *disk);

/* disk_load.c */
void kvs_disk_loads_step(struct kvs_disk *disk);

#endif
