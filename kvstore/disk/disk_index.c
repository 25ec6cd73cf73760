#include "kvstore/disk/disk_index.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/random.h"
#include "common/collect/hash_map.h"
#include "common/collect/list.h"

/* How many of a family a search goes through. */
enum { FAMILY_LOOKED_AT = 4096 };

/* Files with one parent. */
struct family {
	struct kv_list members; /* the last to have been used first */
	uint8_t parent[KVW_KEY_BYTES];
};

struct entry {
	struct kv_list node, sibling;
	struct family *family;
	uint8_t key[KVW_KEY_BYTES];
	struct kvs_disk_marks marks;
	uint64_t bytes, used;
};

struct kvs_disk_index {
	struct kv_allocator *allocator;
	struct kv_hash_map *entries, *families; /* by key, by parent */
	struct kv_list order;                   /* the longest unused first */
	uint64_t bytes;
	uint32_t count, capacity;
};

static struct entry *entry_at(struct kv_list *node)
{
	return KV_CONTAINER_OF(node, struct entry, node);
}

static struct entry *find(const struct kvs_disk_index *index, const uint8_t *key)
{
	return (struct entry *)kv_hash_map_find_pointer(index->entries, key);
}

enum kv_status kvs_disk_index_create(
    struct kv_allocator *allocator, uint32_t capacity, struct kvs_disk_index **index)
{
	struct kvs_disk_index *made = kv_alloc_zero(allocator, sizeof *made);
	enum kv_status status;

	if (!made) return KV_NO_MEMORY;
	made->allocator = allocator;
	made->capacity = capacity;
	kv_list_init(&made->order);
	status =
	    kv_hash_map_create(allocator, capacity, KVW_KEY_BYTES, kv_random_entropy(), &made->entries);
	if (status == KV_OK)
		status = kv_hash_map_create(
		    allocator, capacity, KVW_KEY_BYTES, kv_random_entropy(), &made->families);
	if (status != KV_OK) {
		kv_hash_map_destroy(made->entries);
		kv_free(allocator, made);
		return status;
	}
	*index = made;
	return KV_OK;
}

/* ---- families ---- */

static struct family *find_family(const struct kvs_disk_index *index, const uint8_t *parent)
{
	return (struct family *)kv_hash_map_find_pointer(index->families, parent);
}

static enum kv_status join_family(struct kvs_disk_index *index, struct entry *entry)
{
	struct family *family = find_family(index, entry->marks.parent);
	enum kv_status status;

	if (!family) {
		family = kv_alloc_zero(index->allocator, sizeof *family);
		if (!family) return KV_NO_MEMORY;
		kv_list_init(&family->members);
		memcpy(family->parent, entry->marks.parent, sizeof family->parent);
		status = kv_hash_map_insert(index->families, family->parent, kv_hash_pointer(family));
		if (status != KV_OK) {
			kv_free(index->allocator, family);
			return status;
		}
	}
	entry->family = family;
	kv_list_push_front(&family->members, &entry->sibling);
	return KV_OK;
}

static void leave_family(struct kvs_disk_index *index, struct entry *entry)
{
	struct family *family = entry->family;

	kv_list_remove(&entry->sibling);
	if (kv_list_first(&family->members)) return;
	kv_hash_map_remove(index->families, family->parent, NULL);
	kv_free(index->allocator, family);
}

uint32_t kvs_disk_index_longest(
    const struct kvs_disk_index *index, const struct kvs_disk_marks *prompt)
{
	const struct family *family = find_family(index, prompt->parent);
	uint32_t longest = 0, looked_at = 0;
	struct kv_list *node;

	if (!family) return 0;
	KV_LIST_EACH(node, &family->members)
	{
		const struct entry *entry = KV_CONTAINER_OF(node, struct entry, sibling);

		if (looked_at++ == FAMILY_LOOKED_AT) break;
		if (entry->marks.start == prompt->start && entry->marks.tokens > longest)
			longest = entry->marks.tokens;
	}
	return longest;
}

uint32_t kvs_disk_index_closest(const struct kvs_disk_index *index,
    const struct kvs_disk_marks *prompt, const uint32_t *tokens, uint8_t key[KVW_KEY_BYTES],
    struct kvs_disk_marks *marks)
{
	const struct family *family = find_family(index, prompt->parent);
	const struct entry *closest = NULL;
	struct kvs_disk_sums sums = {.count = 1, .lengths = {prompt->tokens}, .sums = {prompt->all}};
	uint32_t most = 0, looked_at = 0;
	struct kv_list *node;

	if (!family) return 0;
	KV_LIST_EACH(node, &family->members)
	{
		const struct entry *entry = KV_CONTAINER_OF(node, struct entry, sibling);
		uint32_t common;

		if (looked_at++ == FAMILY_LOOKED_AT) break;
		if (entry->marks.start != prompt->start || entry->marks.tokens <= most) continue;
		common = kvs_disk_common(&entry->marks, prompt, tokens, &sums);
		if (common <= most) continue;
		most = common;
		closest = entry;
	}
	if (!closest) return 0;
	memcpy(key, closest->key, KVW_KEY_BYTES);
	*marks = closest->marks;
	return most;
}

/* ---- files ---- */

static void drop(struct kvs_disk_index *index, struct entry *entry)
{
	leave_family(index, entry);
	kv_hash_map_remove(index->entries, entry->key, NULL);
	kv_list_remove(&entry->node);
	index->bytes -= entry->bytes;
	index->count--;
	kv_free(index->allocator, entry);
}

void kvs_disk_index_clear(struct kvs_disk_index *index)
{
	struct kv_list *node;

	while ((node = kv_list_first(&index->order)))
		drop(index, entry_at(node));
}

void kvs_disk_index_destroy(struct kvs_disk_index *index)
{
	if (!index) return;
	kvs_disk_index_clear(index);
	kv_hash_map_destroy(index->entries);
	kv_hash_map_destroy(index->families);
	kv_free(index->allocator, index);
}

enum kv_status kvs_disk_index_add(struct kvs_disk_index *index, const uint8_t key[KVW_KEY_BYTES],
    const struct kvs_disk_marks *marks, uint64_t bytes, uint64_t used)
{
	struct entry *entry;
	enum kv_status status;

	if (find(index, key)) return kv_fail(KV_EXISTS, "the segment has a file already");
	if (kvs_disk_index_full(index))
		return kv_fail(KV_LIMIT, "%u files are held, that is the limit", index->count);
	entry = kv_alloc_zero(index->allocator, sizeof *entry);
	if (!entry) return KV_NO_MEMORY;
	memcpy(entry->key, key, sizeof entry->key);
	entry->marks = *marks;
	entry->bytes = bytes;
	entry->used = used;
	status = join_family(index, entry);
	if (status != KV_OK) {
		kv_free(index->allocator, entry);
		return status;
	}
	status = kv_hash_map_insert(index->entries, entry->key, kv_hash_pointer(entry));
	if (status != KV_OK) {
		leave_family(index, entry);
		kv_free(index->allocator, entry);
		return status;
	}
	kv_list_push_back(&index->order, &entry->node);
	index->bytes += bytes;
	index->count++;
	return KV_OK;
}

bool kvs_disk_index_has(const struct kvs_disk_index *index, const uint8_t key[KVW_KEY_BYTES])
{
	return find(index, key) != NULL;
}

uint64_t kvs_disk_index_bytes_of(
    const struct kvs_disk_index *index, const uint8_t key[KVW_KEY_BYTES])
{
	const struct entry *entry = find(index, key);

	return entry ? entry->bytes : 0;
}

/* The last one to have been used, in the whole and in its family. */
static void make_last(struct kvs_disk_index *index, struct entry *entry)
{
	kv_list_move_back(&index->order, &entry->node);
	kv_list_remove(&entry->sibling);
	kv_list_push_front(&entry->family->members, &entry->sibling);
}

void kvs_disk_index_touch(struct kvs_disk_index *index, const uint8_t key[KVW_KEY_BYTES])
{
	struct entry *entry = find(index, key);

	if (entry) make_last(index, entry);
}

bool kvs_disk_index_remove(struct kvs_disk_index *index, const uint8_t key[KVW_KEY_BYTES])
{
	struct entry *entry = find(index, key);

	if (entry) drop(index, entry);
	return entry != NULL;
}

bool kvs_disk_index_take_oldest(struct kvs_disk_index *index, uint8_t key[KVW_KEY_BYTES])
{
	struct kv_list *node = kv_list_first(&index->order);

	if (!node) return false;
	memcpy(key, entry_at(node)->key, KVW_KEY_BYTES);
	drop(index, entry_at(node));
	return true;
}

static int by_use(const void *left, const void *right)
{
	const struct entry *const *a = left, *const *b = right;

	if ((*a)->used != (*b)->used) return (*a)->used < (*b)->used ? -1 : 1;
	return memcmp((*a)->key, (*b)->key, KVW_KEY_BYTES);
}

enum kv_status kvs_disk_index_sort(struct kvs_disk_index *index)
{
	struct entry **all;
	struct kv_list *node;
	uint32_t count = 0;

	if (!index->count) return KV_OK;
	all = kv_alloc_array(index->allocator, index->count, sizeof(struct entry *));
	if (!all) return KV_NO_MEMORY;
	KV_LIST_EACH(node, &index->order)
	all[count++] = entry_at(node);
	KV_CHECK(count == index->count);
	qsort(all, count, sizeof *all, by_use);
	for (uint32_t i = 0; i < count; i++)
		make_last(index, all[i]);
	kv_free(index->allocator, all);
	return KV_OK;
}

uint64_t kvs_disk_index_bytes(const struct kvs_disk_index *index)
{
	return index->bytes;
}

uint32_t kvs_disk_index_count(const struct kvs_disk_index *index)
{
	return index->count;
}

bool kvs_disk_index_full(const struct kvs_disk_index *index)
{
	return index->count >= index->capacity;
}
