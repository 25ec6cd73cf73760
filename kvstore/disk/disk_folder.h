/* The folder of the disk tier, owned by one process, and its files: one segment each, named by its
 * content key. Every call blocks; those on one folder may run on several threads, but
 * kvs_disk_open, kvs_disk_close and the scan.
 *
 * KEY.segment is a whole file, KEY.part one that is being written, KEY.segment.bad one that was set
 * aside. Others are nobody's business here. No link is followed.
 */
#ifndef KVS_DISK_FOLDER_H
#define KVS_DISK_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "kvstore/disk/disk_format.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVS_DISK_NAME = 2 * KVW_KEY_BYTES + 16 }; /* the longest name and its terminator */

struct kvs_disk_folder {
	int descriptor, lock; /* -1: not open */
};

/* Open it, make it when it is not there (mode 0700), and lock it. KV_BUSY: another process has it.
 * KV_REFUSED: others may write to it. */
enum kv_status kvs_disk_open(const char *path, struct kvs_disk_folder *folder);
void kvs_disk_close(struct kvs_disk_folder *folder);
/* Could this process open it, if nobody else had? Changes nothing; fails as kvs_disk_open does. */
enum kv_status kvs_disk_check(const char *path);

/* The name of a key's file. */
void kvs_disk_name(const uint8_t key[KVW_KEY_BYTES], char name[KVS_DISK_NAME]);

/* Write a whole file; under its name it is whole or not there. Nothing is synchronised to the
 * medium: after a power cut the checksums tell. KV_LIMIT: no room; KV_UNSUPPORTED: no file may be
 * so large; KV_NOT_FOUND: the folder is gone; KV_IO. */
enum kv_status kvs_disk_write(const struct kvs_disk_folder *folder,
    const uint8_t key[KVW_KEY_BYTES], const uint8_t *front, size_t front_bytes, const uint8_t *data,
    size_t data_bytes);

/* KV_OK when it is gone, also when it was not there. */
enum kv_status kvs_disk_remove(
    const struct kvs_disk_folder *folder, const uint8_t key[KVW_KEY_BYTES]);

/* Put a file where no one looks for it; keep: else it is removed. */
enum kv_status kvs_disk_set_aside(
    const struct kvs_disk_folder *folder, const char *name, bool keep);

struct kvs_disk_read {
	const uint8_t *key;
	const struct kvs_saved *wanted; /* as kvs_disk_match takes it */
	uint8_t *const *units;          /* [layers] memory to read into */
	const uint64_t *unit_bytes;     /* [layers] */
	uint32_t *checksums;            /* [layers], set */
	uint8_t *front;                 /* scratch, as many bytes as kvs_disk_sizes says of `wanted` */
};

/* Read a segment and check every byte of it, and note in the file that it was used. KV_NOT_FOUND:
 * there is no such file. KV_CORRUPT: it is not what it should be. KV_IO. */
enum kv_status kvs_disk_load(
    const struct kvs_disk_folder *folder, const struct kvs_disk_read *read);

/* Read the front of a segment's file, `front_bytes` long, and of it the header and the token ids
 * ([tokens]). KV_CORRUPT when it is another key's, has another number of tokens or another front.
 */
struct kvs_disk_peek {
	const uint8_t *key;
	uint8_t *front;
	uint64_t front_bytes;
	uint32_t tokens;
	uint32_t *token_ids; /* [tokens], set */
};
enum kv_status kvs_disk_look(
    const struct kvs_disk_folder *folder, const struct kvs_disk_peek *peek);

/* ---- disk_scan.c: what is there ---- */

struct kvs_disk_scan;

/* Wrong: it is to be set aside. Unread: it could not be looked at, this time. */
enum kvs_disk_kind {
	KVS_DISK_SEGMENT,
	KVS_DISK_PART,
	KVS_DISK_BAD,
	KVS_DISK_WRONG,
	KVS_DISK_UNREAD
};

struct kvs_disk_found {
	enum kvs_disk_kind kind;
	char name[KVS_DISK_NAME];
	uint8_t key[KVW_KEY_BYTES];  /* of a segment */
	struct kvs_disk_marks marks; /* of a segment */
	uint64_t bytes, used;        /* of a segment; used: nanoseconds since 1970 */
	char why[128];               /* it is wrong or unread */
};

enum kv_status kvs_disk_scan_begin(struct kv_allocator *allocator,
    const struct kvs_disk_folder *folder, struct kvs_disk_scan **scan);
/* At most `most` of what bears a name of ours, segments with a header that is right; *count 0: that
 * was all. */
enum kv_status kvs_disk_scan_next(
    struct kvs_disk_scan *scan, struct kvs_disk_found *found, uint32_t most, uint32_t *count);
void kvs_disk_scan_end(struct kvs_disk_scan *scan); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
