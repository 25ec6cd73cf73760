/* The disk tier's files: a header that is read again, every lie of it refused, the order of the
 * index, and a folder with all that can lie in one. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/crc32c.h"
#include "common/base/random.h"
#include "kvstore/disk/disk_folder.h"
#include "kvstore/disk/disk_index.h"

enum { LAYERS = 3, TOKENS = 37, MUTATIONS = 20000, FOUND = 4 };

static const uint8_t model[KVW_MODEL_ID_BYTES] = {9, 8, 7};
static const uint8_t key[KVW_KEY_BYTES] = {0xab, 0xcd, 1}, parent_key[KVW_KEY_BYTES] = {5, 6};
static uint32_t tokens[TOKENS], checksums[LAYERS];
static uint8_t *data[LAYERS];
static struct kvs_unit units[LAYERS];
static char folder_path[64];

static struct kvs_saved sample(void)
{
	return (struct kvs_saved){.tenant = "uid-7",
	    .model_name = "tiny",
	    .model_id = model,
	    .layout = {.layers = LAYERS,
	        .kv_heads = 2,
	        .head_dim = 8,
	        .dense_layers = 1,
	        .sinks = 2,
	        .cluster_tokens = 4,
	        .index_digest = {1, 2, 3, 4, 5, 6, 7, 8}},
	    .start = 100,
	    .tokens = TOKENS,
	    .layers = LAYERS,
	    .kind = KVW_CLUSTERED,
	    .token_ids = tokens,
	    .checksums = checksums,
	    .units = units,
	    .key = key,
	    .parent_key = parent_key};
}

static int set_up(void **state)
{
	const struct kvs_saved saved = sample();

	(void)state;
	for (uint32_t i = 0; i < TOKENS; i++)
		tokens[i] = i * 1000003u;
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		struct kvw_unit_layout unit;
		struct kvw_unit_shape shape;

		if (kvw_unit_shape(&saved.layout, saved.kind, saved.start, TOKENS, layer, &shape) !=
		        KV_OK ||
		    kvw_unit_layout(&shape, &unit) != KV_OK)
			return -1;
		units[layer].bytes = unit.bytes;
		data[layer] = malloc(unit.bytes);
		if (!data[layer]) return -1;
		memset(data[layer], (int)layer + 1, unit.bytes);
		checksums[layer] = kv_crc32c(0, data[layer], unit.bytes);
	}
	snprintf(folder_path, sizeof folder_path, "/tmp/clusterkv-disk-XXXXXX");
	return mkdtemp(folder_path) ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		free(data[layer]);
	return rmdir(folder_path);
}

/* A whole file in memory; the caller frees it. */
static uint8_t *make_file(uint64_t *front_bytes, uint64_t *file_bytes)
{
	const struct kvs_saved saved = sample();
	uint8_t *file, *at;

	assert_int_equal(kvs_disk_sizes(&saved, front_bytes, file_bytes), KV_OK);
	file = malloc(*file_bytes);
	assert_non_null(file);
	assert_int_equal(kvs_disk_encode(&saved, file), KV_OK);
	at = file + *front_bytes;
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		memcpy(at, data[layer], units[layer].bytes);
		at += units[layer].bytes;
	}
	assert_int_equal(at - file, *file_bytes);
	return file;
}

static enum kv_status match(const uint8_t *file, uint64_t front_bytes,
    const struct kvs_disk_header *header, const struct kvs_saved *wanted)
{
	uint32_t found[LAYERS];
	enum kv_status status = kvs_disk_match(file, (size_t)front_bytes, header, wanted, key, found);

	if (status == KV_OK) assert_memory_equal(found, checksums, sizeof found);
	return status;
}

static void test_header(void **state)
{
	uint64_t front_bytes = 0, file_bytes = 0;
	uint8_t *file = make_file(&front_bytes, &file_bytes);
	struct kvs_saved wanted = sample();
	struct kvs_disk_header header;

	(void)state;
	assert_int_equal(kvs_disk_parse(file, KVS_DISK_HEADER, file_bytes, &header), KV_OK);
	assert_string_equal(header.tenant, "uid-7");
	assert_memory_equal(header.key, key, sizeof key);
	assert_memory_equal(header.parent_key, parent_key, sizeof parent_key);
	assert_true(header.has_parent && header.start == 100 && header.tokens == TOKENS);
	assert_int_equal(match(file, front_bytes, &header, &wanted), KV_OK);
	/* A size that is not the segment's, a piece of a header. */
	assert_int_equal(kvs_disk_parse(file, KVS_DISK_HEADER, file_bytes - 1, &header), KV_CORRUPT);
	assert_int_equal(kvs_disk_parse(file, KVS_DISK_HEADER - 1, file_bytes, &header), KV_CORRUPT);
	free(file);
}

/* Whatever differs between what is wanted and what is there, the file is not it. */
static void test_another_segment(void **state)
{
	static const uint8_t other_model[KVW_MODEL_ID_BYTES] = {1}, other_key[KVW_KEY_BYTES] = {2};
	uint64_t front_bytes = 0, file_bytes = 0;
	uint8_t *file = make_file(&front_bytes, &file_bytes);
	struct kvs_disk_header header;
	struct kvs_saved wanted[9];
	uint32_t other_tokens[TOKENS], found[LAYERS];

	(void)state;
	memcpy(other_tokens, tokens, sizeof tokens);
	other_tokens[TOKENS - 1]++;
	for (size_t i = 0; i < 9; i++)
		wanted[i] = sample();
	wanted[0].tenant = "uid-8";
	wanted[1].tenant = "";
	wanted[2].model_id = other_model;
	wanted[3].layout.index_digest[7]++;
	wanted[4].layout.cluster_tokens = 5;
	wanted[5].start++;
	wanted[6].kind = KVW_PLAIN;
	wanted[7].parent_key = NULL;
	wanted[8].token_ids = other_tokens;
	assert_int_equal(kvs_disk_parse(file, KVS_DISK_HEADER, file_bytes, &header), KV_OK);
	for (size_t i = 0; i < 9; i++)
		assert_int_equal(match(file, front_bytes, &header, &wanted[i]), KV_CORRUPT);
	wanted[8] = sample();
	assert_int_equal(
	    kvs_disk_match(file, (size_t)front_bytes, &header, &wanted[8], other_key, found),
	    KV_CORRUPT);
	free(file);
}

static void test_damaged_fronts(void **state)
{
	uint64_t front_bytes = 0, file_bytes = 0;
	uint8_t *file = make_file(&front_bytes, &file_bytes);
	const struct kvs_saved wanted = sample();
	const uint64_t used = KVS_DISK_HEADER + 4 * (TOKENS + LAYERS);
	struct kv_random random;

	(void)state;
	kv_random_seed(&random, 5);
	for (int i = 0; i < MUTATIONS; i++) {
		const uint64_t at = kv_random_below(&random, (uint32_t)used);
		const uint8_t bit = (uint8_t)(1u << kv_random_below(&random, 8));
		struct kvs_disk_header header;
		enum kv_status status;

		file[at] ^= bit;
		status = kvs_disk_parse(file, KVS_DISK_HEADER, file_bytes, &header);
		if (status == KV_OK) status = match(file, front_bytes, &header, &wanted);
		assert_int_equal(status, KV_CORRUPT);
		file[at] ^= bit;
	}
	free(file);
}

/* ---- the index ---- */

static void number_key(uint32_t number, uint8_t out[KVW_KEY_BYTES])
{
	memset(out, 0, KVW_KEY_BYTES);
	memcpy(out, &number, sizeof number);
}

static void test_index(void **state)
{
	const struct kvs_disk_marks marks = {.parent = {1}};
	struct kvs_disk_index *index = NULL;
	uint8_t name[KVW_KEY_BYTES], expected[KVW_KEY_BYTES];

	(void)state;
	assert_int_equal(kvs_disk_index_create(kv_heap(), 5, &index), KV_OK);
	for (uint32_t i = 0; i < 5; i++) {
		number_key(i, name);
		assert_int_equal(kvs_disk_index_add(index, name, &marks, 100 + i, 50 - i), KV_OK);
		assert_int_equal(kvs_disk_index_add(index, name, &marks, 1, 1), KV_EXISTS);
		assert_int_equal(kvs_disk_index_bytes_of(index, name), 100 + i);
	}
	number_key(9, name);
	assert_true(kvs_disk_index_full(index));
	assert_int_equal(kvs_disk_index_add(index, name, &marks, 1, 1), KV_LIMIT);
	assert_false(kvs_disk_index_has(index, name));
	assert_int_equal(kvs_disk_index_bytes(index), 510);
	/* By time, the last was used first; then it is used once more. */
	assert_int_equal(kvs_disk_index_sort(index), KV_OK);
	number_key(4, name);
	kvs_disk_index_touch(index, name);
	for (uint32_t i = 0; i < 5; i++) {
		assert_true(kvs_disk_index_take_oldest(index, name));
		number_key(i < 4 ? 3 - i : 4, expected);
		assert_memory_equal(name, expected, sizeof name);
	}
	assert_false(kvs_disk_index_take_oldest(index, name));
	assert_int_equal(kvs_disk_index_bytes(index), 0);
	assert_int_equal(kvs_disk_index_sort(index), KV_OK);
	kvs_disk_index_destroy(index);
}

enum { MARKED = 300 };

static struct kvs_disk_marks marks_of(const uint32_t *ids, uint32_t count)
{
	struct kvs_saved saved = sample();
	struct kvs_disk_marks marks;

	saved.token_ids = ids;
	saved.tokens = count;
	assert_int_equal(kvs_disk_marks(&saved, &marks), KV_OK);
	assert_true(marks.start == saved.start && marks.tokens == count);
	assert_memory_equal(marks.parent, parent_key, KVW_KEY_BYTES);
	return marks;
}

/* Marks never say more than there is, and at least half of it, or all of a segment. */
static void test_marks(void **state)
{
	uint32_t prompt[MARKED], other[MARKED];
	struct kv_random random;

	(void)state;
	kv_random_seed(&random, 3);
	for (uint32_t i = 0; i < MARKED; i++)
		prompt[i] = (uint32_t)kv_random_next(&random);
	for (int round = 0; round < 3000; round++) {
		const uint32_t left = 1 + (uint32_t)kv_random_below(&random, MARKED);
		const uint32_t count = 1 + (uint32_t)kv_random_below(&random, MARKED);
		const uint32_t same = (uint32_t)kv_random_below(&random, MARKED + 1);
		const struct kvs_disk_marks rest = marks_of(prompt, left);
		struct kvs_disk_marks segment;
		uint32_t common, least, expected = count < left ? count : left;

		memcpy(other, prompt, sizeof other);
		for (uint32_t i = same; i < MARKED; i++)
			other[i]++;
		if (expected > same) expected = same;
		segment = marks_of(other, count);
		common = kvs_disk_common(&segment, &rest, prompt, &(struct kvs_disk_sums){0});
		for (least = 0; (least ? 2 * least : 16) <= expected;)
			least = least ? 2 * least : 16;
		assert_int_equal(common, expected == count ? count : least);
	}
}

/* A search sums up leading tokens of few lengths, each once; files of other lengths have at least
 * what their steps say. So it keeps the store's loop for less than a millisecond, where 4,096 files
 * of 65,535 tokens, alike but for the last one, took 0.4 s. */
static void test_search_is_bounded(void **state)
{
	enum { FILES = 4096, MOST_MS = 100 };
	uint32_t *prompt = calloc(KVW_MAX_SEGMENT_TOKENS, sizeof *prompt);
	const uint32_t count = KVW_MAX_SEGMENT_TOKENS - 1, step = KVW_MAX_SEGMENT_TOKENS / 2;
	struct kvs_disk_index *index = NULL;
	struct kvs_disk_marks rest, other, found;
	struct kvs_disk_sums sums = {0};
	uint8_t name[KVW_KEY_BYTES];
	clock_t begun;

	(void)state;
	for (uint32_t i = 0; i <= count; i++)
		prompt[i] = i * i;
	rest = marks_of(prompt, count);
	prompt[count - 1]++;
	other = marks_of(prompt, count);
	prompt[count - 1]--;
	for (uint32_t i = 0; i < 2 * KVS_DISK_SUMS; i++) {
		struct kvs_disk_marks shorter = marks_of(prompt, count - 1 - i);

		assert_int_equal(kvs_disk_common(&shorter, &rest, prompt, &sums),
		    i < KVS_DISK_SUMS ? count - 1 - i : step);
	}
	assert_int_equal(sums.count, KVS_DISK_SUMS);
	assert_int_equal(kvs_disk_index_create(kv_heap(), FILES, &index), KV_OK);
	assert_int_equal(kvs_disk_index_longest(index, &rest), 0);
	for (uint32_t i = 0; i < FILES; i++) {
		number_key(i, name);
		assert_int_equal(kvs_disk_index_add(index, name, &other, 10, i), KV_OK);
	}
	assert_int_equal(kvs_disk_index_longest(index, &rest), count);
	begun = clock();
	assert_int_equal(kvs_disk_index_closest(index, &rest, prompt, name, &found), step);
	assert_true((clock() - begun) * 1000 / CLOCKS_PER_SEC < MOST_MS);
	kvs_disk_index_destroy(index);
	free(prompt);
}

static void test_closest_file(void **state)
{
	static const uint32_t same[] = {20, 40, 200, 0, 40};
	struct kvs_disk_index *index = NULL;
	struct kvs_disk_marks rest, marks, found;
	uint32_t prompt[MARKED], other[MARKED];
	uint8_t name[KVW_KEY_BYTES], closest[KVW_KEY_BYTES];

	(void)state;
	for (uint32_t i = 0; i < MARKED; i++)
		prompt[i] = i * i;
	rest = marks_of(prompt, 250);
	assert_int_equal(kvs_disk_index_create(kv_heap(), 16, &index), KV_OK);
	assert_int_equal(kvs_disk_index_closest(index, &rest, prompt, closest, &found), 0);
	for (uint32_t i = 0; i < 5; i++) {
		memcpy(other, prompt, sizeof other);
		other[same[i]]++;
		marks = marks_of(other, MARKED);
		/* What has the most of it belongs elsewhere. */
		if (i == 2) marks.parent[0]++;
		number_key(i, name);
		assert_int_equal(kvs_disk_index_add(index, name, &marks, 10, 9 - i), KV_OK);
	}
	marks = marks_of(prompt, 200);
	marks.start++;
	number_key(5, name);
	assert_int_equal(kvs_disk_index_add(index, name, &marks, 10, 0), KV_OK);
	assert_int_equal(kvs_disk_index_closest(index, &rest, prompt, closest, &found), 32);
	number_key(4, name);
	assert_memory_equal(closest, name, sizeof name);
	assert_int_equal(found.tokens, MARKED);
	/* Of two that have as much, the one used last: since it was added, or by its time. */
	number_key(1, name);
	kvs_disk_index_touch(index, name);
	assert_int_equal(kvs_disk_index_closest(index, &rest, prompt, closest, &found), 32);
	assert_memory_equal(closest, name, sizeof name);
	number_key(4, name);
	kvs_disk_index_touch(index, name);
	assert_int_equal(kvs_disk_index_closest(index, &rest, prompt, closest, &found), 32);
	assert_memory_equal(closest, name, sizeof name);
	number_key(1, name);
	assert_int_equal(kvs_disk_index_sort(index), KV_OK);
	assert_int_equal(kvs_disk_index_closest(index, &rest, prompt, closest, &found), 32);
	assert_memory_equal(closest, name, sizeof name);
	for (uint32_t i = 0; i < 6; i++) {
		number_key(i, name);
		if (same[i % 5] == 40) assert_true(kvs_disk_index_remove(index, name));
	}
	assert_int_equal(kvs_disk_index_closest(index, &rest, prompt, closest, &found), 16);
	kvs_disk_index_clear(index);
	assert_int_equal(kvs_disk_index_closest(index, &rest, prompt, closest, &found), 0);
	kvs_disk_index_destroy(index);
}

static enum kv_status use_index(struct kv_allocator *allocator)
{
	struct kvs_disk_marks marks = {.parent = {1}};
	struct kvs_disk_index *index = NULL;
	enum kv_status status;
	uint8_t name[KVW_KEY_BYTES];

	KV_TRY(kvs_disk_index_create(allocator, 8, &index));
	status = KV_OK;
	for (uint32_t i = 0; i < 3 && status == KV_OK; i++) {
		number_key(i, name);
		marks.parent[0] = (uint8_t)(1 + i / 2);
		status = kvs_disk_index_add(index, name, &marks, 10, i);
		/* What could not be taken in is not there. */
		assert_int_equal(kvs_disk_index_has(index, name), status == KV_OK);
	}
	if (status == KV_OK) status = kvs_disk_index_sort(index);
	kvs_disk_index_destroy(index);
	return status;
}

/* ---- the folder ---- */

static enum kv_status load(const struct kvs_disk_folder *folder, uint8_t *const *into)
{
	const struct kvs_saved wanted = sample();
	uint64_t front_bytes = 0, file_bytes = 0, sizes[LAYERS];
	uint32_t found[LAYERS] = {0};
	struct kvs_disk_read read = {
	    .key = key, .wanted = &wanted, .units = into, .unit_bytes = sizes, .checksums = found};
	enum kv_status status;

	for (uint32_t layer = 0; layer < LAYERS; layer++)
		sizes[layer] = units[layer].bytes;
	assert_int_equal(kvs_disk_sizes(&wanted, &front_bytes, &file_bytes), KV_OK);
	read.front = malloc(front_bytes);
	assert_non_null(read.front);
	status = kvs_disk_load(folder, &read);
	free(read.front);
	return status;
}

static void write_sample(const struct kvs_disk_folder *folder)
{
	uint64_t front_bytes = 0, file_bytes = 0;
	uint8_t *file = make_file(&front_bytes, &file_bytes);

	assert_int_equal(kvs_disk_write(folder, key, file, (size_t)front_bytes, file + front_bytes,
	                     (size_t)(file_bytes - front_bytes)),
	    KV_OK);
	free(file);
}

static void spoil(const struct kvs_disk_folder *folder, const char *name, off_t at)
{
	int descriptor = openat(folder->descriptor, name, O_RDWR | O_CLOEXEC);
	uint8_t byte = 0;

	assert_true(descriptor >= 0);
	assert_int_equal(pread(descriptor, &byte, 1, at), 1);
	byte ^= 1;
	assert_int_equal(pwrite(descriptor, &byte, 1, at), 1);
	close(descriptor);
}

static void test_folder(void **state)
{
	struct kvs_disk_folder folder, second;
	uint8_t *into[LAYERS];
	char name[KVS_DISK_NAME], aside[KVS_DISK_NAME + 8];

	(void)state;
	assert_int_equal(kvs_disk_open(folder_path, &folder), KV_OK);
	assert_int_equal(kvs_disk_open(folder_path, &second), KV_BUSY);
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		into[layer] = calloc(1, units[layer].bytes);
	assert_int_equal(load(&folder, into), KV_NOT_FOUND);
	write_sample(&folder);
	assert_int_equal(load(&folder, into), KV_OK);
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		assert_memory_equal(into[layer], data[layer], units[layer].bytes);
	kvs_disk_name(key, name);
	spoil(&folder, name, 8192);
	assert_int_equal(load(&folder, into), KV_CORRUPT);
	assert_int_equal(kvs_disk_set_aside(&folder, name, true), KV_OK);
	assert_int_equal(load(&folder, into), KV_NOT_FOUND);
	snprintf(aside, sizeof aside, "%s.bad", name);
	assert_int_equal(unlinkat(folder.descriptor, aside, 0), 0);
	/* Cut off, a link, and removed. */
	write_sample(&folder);
	assert_int_equal(truncate(folder_path, 0), -1);
	{
		int descriptor = openat(folder.descriptor, name, O_WRONLY | O_CLOEXEC);

		assert_int_equal(ftruncate(descriptor, 5000), 0);
		close(descriptor);
	}
	assert_int_equal(load(&folder, into), KV_CORRUPT);
	assert_int_equal(kvs_disk_remove(&folder, key), KV_OK);
	assert_int_equal(kvs_disk_remove(&folder, key), KV_OK);
	assert_int_equal(symlinkat("lock", folder.descriptor, name), 0);
	assert_int_equal(load(&folder, into), KV_CORRUPT);
	assert_int_equal(kvs_disk_remove(&folder, key), KV_OK);
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		free(into[layer]);
	assert_int_equal(unlinkat(folder.descriptor, "lock", 0), 0);
	kvs_disk_close(&folder);
}

/* Its tokens alone, as long as they are what is said of them. */
static void test_look(void **state)
{
	const struct kvs_saved saved = sample();
	uint8_t other[KVW_KEY_BYTES] = {1}, front[KVS_DISK_ALIGNMENT];
	char name[KVS_DISK_NAME], other_name[KVS_DISK_NAME];
	uint32_t ids[TOKENS] = {0};
	struct kvs_disk_peek peek = {.key = key, .front = front, .tokens = TOKENS, .token_ids = ids};
	struct kvs_disk_folder folder;
	uint64_t file_bytes = 0;

	(void)state;
	assert_int_equal(kvs_disk_open(folder_path, &folder), KV_OK);
	assert_int_equal(kvs_disk_sizes(&saved, &peek.front_bytes, &file_bytes), KV_OK);
	assert_true(peek.front_bytes <= sizeof front);
	assert_int_equal(kvs_disk_look(&folder, &peek), KV_NOT_FOUND);
	write_sample(&folder);
	assert_int_equal(kvs_disk_look(&folder, &peek), KV_OK);
	assert_memory_equal(ids, tokens, sizeof ids);
	peek.tokens = TOKENS - 1;
	assert_int_equal(kvs_disk_look(&folder, &peek), KV_CORRUPT);
	peek.tokens = TOKENS;
	kvs_disk_name(key, name);
	kvs_disk_name(other, other_name);
	assert_int_equal(renameat(folder.descriptor, name, folder.descriptor, other_name), 0);
	peek.key = other;
	assert_int_equal(kvs_disk_look(&folder, &peek), KV_CORRUPT);
	assert_int_equal(kvs_disk_remove(&folder, other), KV_OK);
	assert_int_equal(unlinkat(folder.descriptor, "lock", 0), 0);
	kvs_disk_close(&folder);
}

static void touch_file(const struct kvs_disk_folder *folder, const char *name, const char *bytes)
{
	int descriptor = openat(folder->descriptor, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_true(descriptor >= 0);
	assert_int_equal(write(descriptor, bytes, strlen(bytes)), (ssize_t)strlen(bytes));
	close(descriptor);
}

static enum kv_status count_kinds(
    struct kv_allocator *allocator, const struct kvs_disk_folder *folder, unsigned kinds[5])
{
	struct kvs_disk_found found[FOUND];
	struct kvs_disk_scan *scan = NULL;
	enum kv_status status;
	uint32_t count = 0;

	memset(kinds, 0, 5 * sizeof *kinds);
	KV_TRY(kvs_disk_scan_begin(allocator, folder, &scan));
	do {
		status = kvs_disk_scan_next(scan, found, FOUND, &count);
		for (uint32_t i = 0; i < count; i++) {
			kinds[found[i].kind]++;
			if (found[i].kind == KVS_DISK_SEGMENT) assert_memory_equal(found[i].key, key, 32);
			if (found[i].kind == KVS_DISK_WRONG) assert_true(found[i].why[0] != '\0');
		}
	} while (status == KV_OK && count > 0);
	kvs_disk_scan_end(scan);
	return status;
}

static void test_scan(void **state)
{
	static const char *const others[] = {"notes", "0123.segment",
	    "zz00000000000000000000000000000000000000000000000000000000000000.segment"};
	struct kvs_disk_folder folder;
	char names[5][KVS_DISK_NAME + 8];
	unsigned kinds[5];
	uint8_t name[KVW_KEY_BYTES];

	(void)state;
	assert_int_equal(kvs_disk_open(folder_path, &folder), KV_OK);
	write_sample(&folder);
	for (uint32_t i = 0; i < 5; i++) {
		number_key(i, name);
		kvs_disk_name(name, names[i]);
	}
	touch_file(&folder, names[0], "");
	touch_file(&folder, names[1], "CLKVSEG1 and not more than that");
	assert_int_equal(symlinkat("notes", folder.descriptor, names[2]), 0);
	strcpy(strchr(names[3], '.'), ".part");
	touch_file(&folder, names[3], "half");
	strcat(names[4], ".bad");
	touch_file(&folder, names[4], "bad");
	for (size_t i = 0; i < 3; i++)
		touch_file(&folder, others[i], "");
	assert_int_equal(count_kinds(kv_heap(), &folder, kinds), KV_OK);
	assert_int_equal(kinds[KVS_DISK_SEGMENT], 1);
	assert_int_equal(kinds[KVS_DISK_WRONG], 3);
	assert_int_equal(kinds[KVS_DISK_PART], 1);
	assert_int_equal(kinds[KVS_DISK_BAD], 1);
	for (size_t i = 0; i < 5; i++)
		assert_int_equal(unlinkat(folder.descriptor, names[i], 0), 0);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(unlinkat(folder.descriptor, others[i], 0), 0);
	assert_int_equal(kvs_disk_remove(&folder, key), KV_OK);
	assert_int_equal(unlinkat(folder.descriptor, "lock", 0), 0);
	kvs_disk_close(&folder);
}

static void test_allocations(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("disk", 0);
	struct kvs_disk_folder folder;
	enum kv_status status = KV_NO_MEMORY;
	unsigned kinds[5], failures = 0;

	(void)state;
	assert_int_equal(kvs_disk_open(folder_path, &folder), KV_OK);
	for (uint64_t n = 1; status == KV_NO_MEMORY; n++, failures++) {
		kv_allocator_fail_at(allocator, n);
		status = use_index(allocator);
		if (status == KV_OK) status = count_kinds(allocator, &folder, kinds);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	}
	kv_allocator_fail_at(allocator, 0);
	assert_int_equal(status, KV_OK);
	assert_true(failures > 5);
	assert_int_equal(unlinkat(folder.descriptor, "lock", 0), 0);
	kvs_disk_close(&folder);
	kv_allocator_destroy(allocator);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_header),
	    cmocka_unit_test(test_another_segment),
	    cmocka_unit_test(test_damaged_fronts),
	    cmocka_unit_test(test_index),
	    cmocka_unit_test(test_marks),
	    cmocka_unit_test(test_closest_file),
	    cmocka_unit_test(test_search_is_bounded),
	    cmocka_unit_test(test_folder),
	    cmocka_unit_test(test_look),
	    cmocka_unit_test(test_scan),
	    cmocka_unit_test(test_allocations),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
