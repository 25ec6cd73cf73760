/* Which segments lie in files, and which of them was used longest ago. In memory only; one thread.
 */
#ifndef KVS_DISK_INDEX_H
#define KVS_DISK_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"
#include "kvstore/disk/disk_format.h"
#include "proto/wire_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvs_disk_index;

/* Room for `capacity` files. */
enum kv_status kvs_disk_index_create(
    struct kv_allocator *allocator, uint32_t capacity, struct kvs_disk_index **index);
void kvs_disk_index_destroy(struct kvs_disk_index *index); /* NULL is allowed */

/* A file of so many bytes, the last one to have been used. `used` is when it was used, in whatever
 * unit, for kvs_disk_index_sort. KV_EXISTS, KV_LIMIT (full), KV_NO_MEMORY. */
enum kv_status kvs_disk_index_add(struct kvs_disk_index *index, const uint8_t key[KVW_KEY_BYTES],
    const struct kvs_disk_marks *marks, uint64_t bytes, uint64_t used);
bool kvs_disk_index_has(const struct kvs_disk_index *index, const uint8_t key[KVW_KEY_BYTES]);
/* The bytes of its file, 0 when there is none. */
uint64_t kvs_disk_index_bytes_of(
    const struct kvs_disk_index *index, const uint8_t key[KVW_KEY_BYTES]);
/* It is used now. */
void kvs_disk_index_touch(struct kvs_disk_index *index, const uint8_t key[KVW_KEY_BYTES]);
bool kvs_disk_index_remove(struct kvs_disk_index *index, const uint8_t key[KVW_KEY_BYTES]);
/* Remove the one that was used longest ago; false when there is none. */
bool kvs_disk_index_take_oldest(struct kvs_disk_index *index, uint8_t key[KVW_KEY_BYTES]);
void kvs_disk_index_clear(struct kvs_disk_index *index);
/* Put those that were added with an earlier `used` before the others. */
enum kv_status kvs_disk_index_sort(struct kvs_disk_index *index);

/* Tokens of the longest file that kvs_disk_index_closest would look at, 0: there is none. Of
 * `prompt` only parent and start are looked at. */
uint32_t kvs_disk_index_longest(
    const struct kvs_disk_index *index, const struct kvs_disk_marks *prompt);

/* Of the files with the same parent and start as the rest of a prompt, that which has the most
 * tokens in common with it, by kvs_disk_common; of several the last to have been used. How many
 * those are, 0: none (then nothing else is set). Some of very many are not looked at. */
uint32_t kvs_disk_index_closest(const struct kvs_disk_index *index,
    const struct kvs_disk_marks *prompt, const uint32_t *tokens, uint8_t key[KVW_KEY_BYTES],
    struct kvs_disk_marks *marks);

uint64_t kvs_disk_index_bytes(const struct kvs_disk_index *index);
uint32_t kvs_disk_index_count(const struct kvs_disk_index *index);
bool kvs_disk_index_full(const struct kvs_disk_index *index);

#ifdef __cplusplus
}
#endif
#endif
