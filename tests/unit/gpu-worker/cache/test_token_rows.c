/* Rows in token order: append and drop of every head together, against a plain list of numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/random.h"
#include "gpu-worker/cache/token_rows.h"
#include "tests/lib/memory_device.h"

enum { HEADS = 3, CAPACITY = 20, ROW_BYTES = 16 };

static uint8_t byte_of(uint32_t token, uint32_t head)
{
	return (uint8_t)(token * 5 + head * 91);
}

static void check(const struct gw_token_rows *rows, const uint32_t *tokens, uint32_t count)
{
	assert_int_equal(rows->count, count);
	for (uint32_t head = 0; head < HEADS; head++)
		for (uint32_t i = 0; i < count; i++)
			for (uint32_t at = 0; at < ROW_BYTES; at++)
				assert_int_equal(gw_token_rows_at(rows, head, i)[at], byte_of(tokens[i], head));
}

static void check_queue(int unified)
{
	struct kv_allocator *allocator = kv_allocator_create("rows", 0);
	struct kn_device device = kvt_memory_device(allocator, unified);
	struct gw_token_rows rows;
	struct kv_random random;
	uint8_t source[HEADS * 8 * ROW_BYTES];
	uint32_t tokens[CAPACITY], count = 0, next = 0;

	kv_random_seed(&random, 1);
	assert_int_equal(gw_token_rows_init(&rows, &device, HEADS, CAPACITY, ROW_BYTES), KV_OK);
	for (uint32_t i = 0; i < 3000; i++) {
		uint32_t more = (uint32_t)kv_random_below(&random, 9), stride = 8 * ROW_BYTES;

		for (uint32_t head = 0; head < HEADS; head++)
			for (uint32_t j = 0; j < more; j++)
				memset(source + head * stride + j * ROW_BYTES, byte_of(next + j, head), ROW_BYTES);
		if (count + more > CAPACITY) {
			uint32_t drop = (uint32_t)kv_random_below(&random, count + 1);

			assert_int_equal(gw_token_rows_append(&rows, source, stride, more), KV_LIMIT);
			check(&rows, tokens, count);
			assert_int_equal(gw_token_rows_drop(&rows, drop), KV_OK);
			count -= drop;
			memmove(tokens, tokens + drop, count * sizeof *tokens);
		} else {
			assert_int_equal(
			    i % 2 ? gw_token_rows_append(&rows, source, stride, more)
			          : gw_token_rows_upload(&rows, &rows.device, source, stride, more),
			    KV_OK);
			while (more-- > 0)
				tokens[count++] = next++;
		}
		check(&rows, tokens, count);
	}
	gw_token_rows_deinit(&rows);
	gw_token_rows_deinit(&rows);
	assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	kv_allocator_destroy(allocator);
}

static void rows_are_a_queue_for_every_head(void **state)
{
	(void)state;
	check_queue(1);
	check_queue(0);
}

static void no_capacity_takes_no_memory(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("rows", 0);
	struct kn_device device = kvt_memory_device(allocator, 0);
	struct gw_token_rows rows;
	uint8_t source[ROW_BYTES] = {0};

	(void)state;
	assert_int_equal(gw_token_rows_init(&rows, &device, HEADS, 0, ROW_BYTES), KV_OK);
	assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	assert_int_equal(gw_token_rows_append(&rows, source, 0, 0), KV_OK);
	assert_int_equal(gw_token_rows_append(&rows, source, 0, 1), KV_LIMIT);
	assert_int_equal(gw_token_rows_upload(&rows, &rows.device, source, 0, 1), KV_LIMIT);
	assert_int_equal(gw_token_rows_drop(&rows, 0), KV_OK);
	gw_token_rows_deinit(&rows);
	kv_allocator_destroy(allocator);
}

static void a_refused_buffer_leaves_nothing(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("rows", 0);
	struct kn_device device = kvt_memory_device(allocator, 0);
	struct gw_token_rows rows = {0};

	(void)state;
	kv_allocator_fail_at(allocator, 1);
	assert_int_equal(
	    gw_token_rows_init(&rows, &device, HEADS, CAPACITY, ROW_BYTES), KV_NO_MEMORY);
	assert_null(rows.rows);
	gw_token_rows_deinit(&rows);
	assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	kv_allocator_destroy(allocator);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(rows_are_a_queue_for_every_head),
	    cmocka_unit_test(no_capacity_takes_no_memory),
	    cmocka_unit_test(a_refused_buffer_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
