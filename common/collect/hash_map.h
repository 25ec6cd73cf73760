/* A hash map of fixed capacity: keys of one byte size, values of 64 bits, all memory taken at
 * creation.
 *
 * Open addressing with linear probing; a removal shifts the entries behind it back, so the map does
 * not slow down with age. The hash is SipHash-1-3 (Aumasson and Bernstein, 2012) under a seed: keys
 * chosen by a peer cannot be made to collide when the seed is random. Not thread-safe.
 */
#ifndef KV_COMMON_COLLECT_HASH_MAP_H
#define KV_COMMON_COLLECT_HASH_MAP_H

#include "common/base/status.h"
#include "common/memory/allocator.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kv_hash_map;

/* At most `capacity` entries (1 to 2^30) with keys of `key_size` bytes (1 to 256). Padding inside a
 * key struct takes part in the comparison: clear it. */
enum kv_status kv_hash_map_create(struct kv_allocator *allocator, size_t capacity, size_t key_size,
    uint64_t seed, struct kv_hash_map **map);
void kv_hash_map_destroy(struct kv_hash_map *map); /* NULL is allowed */

/* Add a new key. KV_EXISTS when it is there (its value unchanged), KV_LIMIT when the map is full.
 */
enum kv_status kv_hash_map_insert(struct kv_hash_map *map, const void *key, uint64_t value);

/* Add a key or replace its value. KV_LIMIT when it is new and the map is full. */
enum kv_status kv_hash_map_set(struct kv_hash_map *map, const void *key, uint64_t value);

/* True when found; `value` (may be NULL) is then set. */
bool kv_hash_map_find(const struct kv_hash_map *map, const void *key, uint64_t *value);

/* The value in place, NULL when the key is not there. Valid until the next insert, set or remove.
 */
uint64_t *kv_hash_map_value(struct kv_hash_map *map, const void *key);

/* True when the key was there; `value` (may be NULL) is then set to what it had. */
bool kv_hash_map_remove(struct kv_hash_map *map, const void *key, uint64_t *value);

/* Walk all entries in no order: start with *cursor = 0, until false. The map must not change during
 * the walk, except for values. `key` is borrowed from the map; key and value may be NULL. */
bool kv_hash_map_next(
    const struct kv_hash_map *map, size_t *cursor, const void **key, uint64_t *value);

/* Remove every entry for which `remove` says true; an entry may be asked about twice. The callback
 * must not touch the map. Returns how many went. */
typedef bool (*kv_hash_map_filter)(void *context, const void *key, uint64_t value);
size_t kv_hash_map_remove_if(struct kv_hash_map *map, kv_hash_map_filter remove, void *context);

void kv_hash_map_clear(struct kv_hash_map *map);
size_t kv_hash_map_count(const struct kv_hash_map *map);
size_t kv_hash_map_capacity(const struct kv_hash_map *map);

/* The hash itself, for users who shard or sample by key. */
uint64_t kv_hash_bytes(uint64_t seed, const void *bytes, size_t size);

/* Pointers as values. */
static inline uint64_t kv_hash_pointer(const void *pointer)
{
	return (uint64_t)(uintptr_t)pointer;
}

static inline void *kv_hash_map_find_pointer(const struct kv_hash_map *map, const void *key)
{
	uint64_t value = 0;

	return kv_hash_map_find(map, key, &value) ? (void *)(uintptr_t)value : NULL;
}

#ifdef __cplusplus
}
#endif
#endif
