#include "common/base/random.h"
#include "common/collect/hash_map.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void keys_are_found_by_content(void **state)
{
	struct kv_hash_map *map;
	unsigned char key[32];
	uint64_t value = 7;

	(void)state;
	assert_int_equal(kv_hash_map_create(kv_heap(), 10, sizeof key, 1, &map), KV_OK);
	memset(key, 1, sizeof key);
	assert_false(kv_hash_map_find(map, key, &value));
	assert_int_equal(value, 7);
	assert_int_equal(kv_hash_map_insert(map, key, 100), KV_OK);
	assert_int_equal(kv_hash_map_insert(map, key, 200), KV_EXISTS);
	assert_true(kv_hash_map_find(map, key, &value));
	assert_int_equal(value, 100);
	assert_int_equal(kv_hash_map_set(map, key, 300), KV_OK);
	assert_int_equal(*kv_hash_map_value(map, key), 300);
	*kv_hash_map_value(map, key) = 301;
	key[31] = 2;
	assert_null(kv_hash_map_value(map, key));
	assert_null(kv_hash_map_find_pointer(map, key));
	assert_int_equal(kv_hash_map_set(map, key, kv_hash_pointer(&value)), KV_OK);
	assert_ptr_equal(kv_hash_map_find_pointer(map, key), &value);
	key[31] = 1;
	assert_true(kv_hash_map_remove(map, key, &value));
	assert_int_equal(value, 301);
	assert_false(kv_hash_map_remove(map, key, &value));
	assert_int_equal(kv_hash_map_count(map), 1);
	kv_hash_map_clear(map);
	assert_int_equal(kv_hash_map_count(map), 0);
	key[31] = 2;
	assert_false(kv_hash_map_find(map, key, NULL));
	kv_hash_map_destroy(map);
	kv_hash_map_destroy(NULL);
}

static void the_capacity_is_exact(void **state)
{
	struct kv_hash_map *map;

	(void)state;
	for (uint32_t capacity = 1; capacity < 70; capacity++) {
		assert_int_equal(kv_hash_map_create(kv_heap(), capacity, 4, capacity, &map), KV_OK);
		for (uint32_t i = 0; i < capacity; i++)
			assert_int_equal(kv_hash_map_insert(map, &i, i), KV_OK);
		assert_int_equal(kv_hash_map_insert(map, &capacity, 0), KV_LIMIT);
		assert_int_equal(kv_hash_map_set(map, &capacity, 0), KV_LIMIT);
		/* Replacing needs no room. */
		assert_int_equal(kv_hash_map_set(map, &(uint32_t){0}, 5), KV_OK);
		assert_int_equal(kv_hash_map_count(map), kv_hash_map_capacity(map));
		kv_hash_map_destroy(map);
	}
}

enum { KEYS = 300, OPERATIONS = 60000 };

/* Random inserts and removals on few keys, compared with a plain array after each. */
static void long_use_agrees_with_an_array(void **state)
{
	struct kv_random random;
	struct kv_hash_map *map;
	bool present[KEYS] = {false};
	uint64_t values[KEYS];
	size_t count = 0;

	(void)state;
	kv_random_seed(&random, 9);
	assert_int_equal(kv_hash_map_create(kv_heap(), 192, sizeof(uint16_t), 2, &map), KV_OK);
	for (uint64_t i = 0; i < OPERATIONS; i++) {
		uint16_t key = (uint16_t)kv_random_below(&random, KEYS);
		uint64_t value = i + 1000;

		if (kv_random_below(&random, 2)) {
			enum kv_status status = kv_hash_map_insert(map, &key, i);

			assert_int_equal(status, present[key] ? KV_EXISTS : count == 192 ? KV_LIMIT : KV_OK);
			if (status == KV_OK) {
				present[key] = true;
				values[key] = i;
				count++;
			}
		} else {
			assert_int_equal(kv_hash_map_remove(map, &key, &value), present[key]);
			if (present[key]) {
				assert_true(value == values[key]);
				count--;
			}
			present[key] = false;
		}
		assert_int_equal(kv_hash_map_count(map), count);
		if (i % 1000) continue;
		for (uint16_t other = 0; other < KEYS; other++) {
			assert_int_equal(kv_hash_map_find(map, &other, &value), present[other]);
			if (present[other]) assert_true(value == values[other]);
		}
	}
	kv_hash_map_destroy(map);
}

static bool is_odd(void *context, const void *key, uint64_t value)
{
	uint32_t number;

	(void)context;
	memcpy(&number, key, sizeof number);
	assert_true(value == number * UINT64_C(2));
	return number % 2 == 1;
}

static void walks_see_each_entry_once(void **state)
{
	struct kv_hash_map *map;
	bool seen[500];
	const void *key;
	uint64_t value;

	(void)state;
	/* Many seeds, so that runs of entries wrap around the end in some of them. */
	for (uint64_t seed = 0; seed < 40; seed++) {
		size_t cursor = 0;

		assert_int_equal(kv_hash_map_create(kv_heap(), 500, 4, seed, &map), KV_OK);
		for (uint32_t i = 0; i < 500; i++)
			assert_int_equal(kv_hash_map_insert(map, &i, i * 2), KV_OK);
		assert_int_equal(kv_hash_map_remove_if(map, is_odd, NULL), 250);
		memset(seen, 0, sizeof seen);
		while (kv_hash_map_next(map, &cursor, &key, &value)) {
			uint32_t number;

			memcpy(&number, key, sizeof number);
			assert_int_equal(number % 2, 0);
			assert_false(seen[number]);
			seen[number] = true;
		}
		for (uint32_t i = 0; i < 500; i++)
			assert_int_equal(kv_hash_map_find(map, &i, NULL), i % 2 == 0);
		assert_false(kv_hash_map_next(map, &cursor, NULL, NULL));
		kv_hash_map_destroy(map);
	}
}

static void the_hash_depends_on_everything(void **state)
{
	unsigned char bytes[40] = {0};
	uint64_t hash = kv_hash_bytes(1, bytes, 40);
	int changed_bits = 0;

	(void)state;
	assert_true(hash == kv_hash_bytes(1, bytes, 40));
	assert_true(hash != kv_hash_bytes(2, bytes, 40));
	assert_true(hash != kv_hash_bytes(1, bytes, 39));
	assert_true(kv_hash_bytes(1, bytes, 0) != kv_hash_bytes(1, bytes, 1));
	for (int i = 0; i < 320; i++) {
		uint64_t difference;

		bytes[i / 8] ^= (unsigned char)(1 << i % 8);
		difference = hash ^ kv_hash_bytes(1, bytes, 40);
		bytes[i / 8] ^= (unsigned char)(1 << i % 8);
		assert_true(difference != 0);
		for (; difference; difference &= difference - 1)
			changed_bits++;
	}
	/* A changed bit of the key changes half of the hash's 64. */
	assert_in_range(changed_bits, 320 * 30, 320 * 34);
}

static void wrong_sizes_and_failures_make_nothing(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	struct kv_hash_map *map = NULL;

	(void)state;
	assert_int_equal(kv_hash_map_create(allocator, 0, 4, 0, &map), KV_INVALID);
	assert_int_equal(kv_hash_map_create(allocator, SIZE_MAX, 4, 0, &map), KV_INVALID);
	assert_int_equal(kv_hash_map_create(allocator, 4, 0, 0, &map), KV_INVALID);
	assert_int_equal(kv_hash_map_create(allocator, 4, 257, 0, &map), KV_INVALID);
	for (uint64_t n = 1; n <= 4; n++) {
		kv_allocator_fail_at(allocator, n);
		assert_int_equal(kv_hash_map_create(allocator, 4, 4, 0, &map), KV_NO_MEMORY);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
		kv_allocator_fail_at(allocator, 0);
	}
	assert_null(map);
	kv_allocator_destroy(allocator);
}

static void use_allocates_nothing(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("test", 0);
	struct kv_hash_map *map;
	uint64_t before;

	(void)state;
	assert_int_equal(kv_hash_map_create(allocator, 100, 8, 0, &map), KV_OK);
	before = kv_allocator_stats(allocator).allocations;
	for (uint64_t i = 0; i < 1000; i++) {
		kv_hash_map_insert(map, &i, i);
		if (i % 2) kv_hash_map_remove(map, &(uint64_t){i - 1}, NULL);
	}
	assert_int_equal(kv_allocator_stats(allocator).allocations, before);
	kv_hash_map_destroy(map);
	kv_allocator_destroy(allocator);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(keys_are_found_by_content),
	    cmocka_unit_test(the_capacity_is_exact),
	    cmocka_unit_test(long_use_agrees_with_an_array),
	    cmocka_unit_test(walks_see_each_entry_once),
	    cmocka_unit_test(the_hash_depends_on_everything),
	    cmocka_unit_test(wrong_sizes_and_failures_make_nothing),
	    cmocka_unit_test(use_allocates_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
