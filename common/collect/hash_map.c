#include "common/collect/hash_map.h"

#include "common/base/check.h"

#include <string.h>

enum { MAX_KEY_SIZE = 256 };

#define MAX_CAPACITY ((size_t)1 << 30)

/* Slots are split by use: the probe reads hashes only, keys and values where a hash agrees. */
struct kv_hash_map {
	struct kv_allocator *allocator;
	uint64_t *hashes; /* 0: the slot is free */
	uint64_t *values;
	unsigned char *keys;
	size_t key_size;
	size_t capacity;
	size_t count;
	size_t mask;
	uint64_t seed;
};

static uint64_t rotate_left(uint64_t value, int bits)
{
	return (value << bits) | (value >> (64 - bits));
}

static void sip_round(uint64_t state[4])
{
	state[0] += state[1];
	state[2] += state[3];
	state[1] = rotate_left(state[1], 13) ^ state[0];
	state[3] = rotate_left(state[3], 16) ^ state[2];
	state[0] = rotate_left(state[0], 32);
	state[2] += state[1];
	state[0] += state[3];
	state[1] = rotate_left(state[1], 17) ^ state[2];
	state[3] = rotate_left(state[3], 21) ^ state[0];
	state[2] = rotate_left(state[2], 32);
}

uint64_t kv_hash_bytes(uint64_t seed, const void *bytes, size_t size)
{
	/* SipHash wants a key of 128 bits; the second half is a fixed mix of the seed. */
	uint64_t second = (seed ^ 0x9e3779b97f4a7c15U) * 0xff51afd7ed558ccdU;
	uint64_t state[4] = {seed ^ 0x736f6d6570736575U, second ^ 0x646f72616e646f6dU,
	    seed ^ 0x6c7967656e657261U, second ^ 0x7465646279746573U};
	const unsigned char *next = bytes;
	uint64_t word;

	for (size_t left = size; left >= 8; left -= 8, next += 8) {
		memcpy(&word, next, 8);
		state[3] ^= word;
		sip_round(state);
		state[0] ^= word;
	}
	word = 0;
	memcpy(&word, next, size % 8);
	word |= (uint64_t)size << 56;
	state[3] ^= word;
	sip_round(state);
	state[0] ^= word;
	state[2] ^= 0xff;
	for (int i = 0; i < 3; i++)
		sip_round(state);
	return state[0] ^ state[1] ^ state[2] ^ state[3];
}

static void free_parts(struct kv_hash_map *map)
{
	kv_free(map->allocator, map->hashes);
	kv_free(map->allocator, map->values);
	kv_free(map->allocator, map->keys);
	kv_free(map->allocator, map);
}

enum kv_status kv_hash_map_create(struct kv_allocator *allocator, size_t capacity, size_t key_size,
    uint64_t seed, struct kv_hash_map **map)
{
	struct kv_hash_map *made;
	size_t slots = 4;

	if (capacity == 0 || capacity > MAX_CAPACITY || key_size == 0 || key_size > MAX_KEY_SIZE)
		return kv_fail(KV_INVALID,
		    "a hash map of %zu entries with keys of %zu bytes: allowed are 1 to %zu entries, 1 to "
		    "%d "
		    "bytes",
		    capacity, key_size, MAX_CAPACITY, (int)MAX_KEY_SIZE);
	/* At most three quarters full: a probe then stays within a few cache lines, and ends. */
	while (slots - slots / 4 < capacity)
		slots *= 2;
	made = kv_alloc_zero(allocator, sizeof *made);
	if (!made) return KV_NO_MEMORY;
	made->allocator = allocator;
	made->key_size = key_size;
	made->capacity = capacity;
	made->mask = slots - 1;
	made->seed = seed;
	made->hashes = kv_alloc_array_zero(allocator, slots, sizeof *made->hashes);
	made->values = kv_alloc_array(allocator, slots, sizeof *made->values);
	made->keys = kv_alloc_array(allocator, slots, key_size);
	if (!made->hashes || !made->values || !made->keys) {
		free_parts(made);
		return KV_NO_MEMORY;
	}
	*map = made;
	return KV_OK;
}

void kv_hash_map_destroy(struct kv_hash_map *map)
{
	if (map) free_parts(map);
}

static uint64_t hash_of(const struct kv_hash_map *map, const void *key)
{
	uint64_t hash = kv_hash_bytes(map->seed, key, map->key_size);

	return hash ? hash : 1;
}

static unsigned char *key_at(const struct kv_hash_map *map, size_t slot)
{
	return map->keys + slot * map->key_size;
}

/* The slot of the key (true), or the free slot where it would go (false). */
static bool probe(const struct kv_hash_map *map, const void *key, uint64_t hash, size_t *slot)
{
	size_t at = (size_t)hash & map->mask;

	for (; map->hashes[at]; at = (at + 1) & map->mask) {
		if (map->hashes[at] == hash && memcmp(key_at(map, at), key, map->key_size) == 0) {
			*slot = at;
			return true;
		}
	}
	*slot = at;
	return false;
}

static enum kv_status put(
    struct kv_hash_map *map, const void *key, uint64_t value, bool replace_allowed)
{
	uint64_t hash = hash_of(map, key);
	size_t slot;

	if (probe(map, key, hash, &slot)) {
		if (!replace_allowed) return kv_fail(KV_EXISTS, "the key is in the map already");
		map->values[slot] = value;
		return KV_OK;
	}
	if (map->count == map->capacity)
		return kv_fail(KV_LIMIT, "the map holds its %zu entries", map->capacity);
	memcpy(key_at(map, slot), key, map->key_size);
	map->hashes[slot] = hash;
	map->values[slot] = value;
	map->count++;
	return KV_OK;
}

enum kv_status kv_hash_map_insert(struct kv_hash_map *map, const void *key, uint64_t value)
{
	return put(map, key, value, false);
}

enum kv_status kv_hash_map_set(struct kv_hash_map *map, const void *key, uint64_t value)
{
	return put(map, key, value, true);
}

bool kv_hash_map_find(const struct kv_hash_map *map, const void *key, uint64_t *value)
{
	size_t slot;

	if (!probe(map, key, hash_of(map, key), &slot)) return false;
	if (value) *value = map->values[slot];
	return true;
}

uint64_t *kv_hash_map_value(struct kv_hash_map *map, const void *key)
{
	size_t slot;

	return probe(map, key, hash_of(map, key), &slot) ? &map->values[slot] : NULL;
}

/* Free the slot, and move back each entry behind it that a probe would no longer reach: one whose
 * home does not lie (cyclically) after the hole. */
static void remove_slot(struct kv_hash_map *map, size_t hole)
{
	size_t at = hole;

	for (;;) {
		at = (at + 1) & map->mask;
		if (!map->hashes[at]) break;
		size_t home = (size_t)map->hashes[at] & map->mask;

		if (((at - home) & map->mask) < ((at - hole) & map->mask)) continue;
		map->hashes[hole] = map->hashes[at];
		map->values[hole] = map->values[at];
		memcpy(key_at(map, hole), key_at(map, at), map->key_size);
		hole = at;
	}
	map->hashes[hole] = 0;
	map->count--;
}

bool kv_hash_map_remove(struct kv_hash_map *map, const void *key, uint64_t *value)
{
	size_t slot;

	if (!probe(map, key, hash_of(map, key), &slot)) return false;
	if (value) *value = map->values[slot];
	remove_slot(map, slot);
	return true;
}

bool kv_hash_map_next(
    const struct kv_hash_map *map, size_t *cursor, const void **key, uint64_t *value)
{
	for (size_t slot = *cursor; slot <= map->mask; slot++) {
		if (!map->hashes[slot]) continue;
		if (key) *key = key_at(map, slot);
		if (value) *value = map->values[slot];
		*cursor = slot + 1;
		return true;
	}
	*cursor = map->mask + 1;
	return false;
}

size_t kv_hash_map_remove_if(struct kv_hash_map *map, kv_hash_map_filter remove, void *context)
{
	size_t removed = 0;

	for (size_t slot = 0; slot <= map->mask;) {
		/* After a removal another entry may have moved into this slot: look at it again. */
		if (map->hashes[slot] && remove(context, key_at(map, slot), map->values[slot])) {
			remove_slot(map, slot);
			removed++;
		} else {
			slot++;
		}
	}
	return removed;
}

void kv_hash_map_clear(struct kv_hash_map *map)
{
	memset(map->hashes, 0, (map->mask + 1) * sizeof *map->hashes);
	map->count = 0;
}

size_t kv_hash_map_count(const struct kv_hash_map *map)
{
	return map->count;
}

size_t kv_hash_map_capacity(const struct kv_hash_map *map)
{
	return map->capacity;
}
