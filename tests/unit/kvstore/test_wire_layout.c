#include "tests/unit/kvstore/engine_fixture.h"

#include "proto/wire_layout.h"

static void test_offsets(void **state)
{
	const struct kvw_unit_shape shape = {
	    .kv_heads = 2, .head_dim = 8, .row_bytes = 32, .tokens = 20, .plain = 4, .clusters = 5};
	struct kvw_unit_layout layout;

	(void)state;
	assert_ok(kvw_unit_layout(&shape, &layout));
	assert_int_equal(layout.centroids, 0);
	assert_int_equal(layout.value_means, 128); /* 5 * 8 * 2 = 80 */
	assert_int_equal(layout.sizes, 256);
	assert_int_equal(layout.positions, 320);   /* 5 * 4 = 20 */
	assert_int_equal(layout.rows, 448);        /* 20 * 4 = 80 */
	assert_int_equal(layout.head_bytes, 1088); /* 448 + 20 * 32 */
	assert_int_equal(layout.bytes, 2176);
}

static void test_everything_is_aligned(void **state)
{
	struct kv_random random;

	(void)state;
	kv_random_seed(&random, 7);
	for (unsigned i = 0; i < 2000; i++) {
		struct kvw_unit_shape shape = {
		    .kv_heads = 1 + (uint32_t)kv_random_below(&random, 9),
		    .head_dim = 1 + (uint32_t)kv_random_below(&random, 200),
		    .tokens = 1 + (uint32_t)kv_random_below(&random, 5000),
		};
		struct kvw_unit_layout layout;

		shape.row_bytes = shape.head_dim * 4;
		shape.plain = (uint32_t)kv_random_below(&random, shape.tokens + 1);
		shape.clusters = (uint32_t)kv_random_below(&random, shape.tokens - shape.plain + 1);
		assert_ok(kvw_unit_layout(&shape, &layout));
		assert_int_equal(layout.centroids % KVW_ALIGNMENT, 0);
		assert_int_equal(layout.value_means % KVW_ALIGNMENT, 0);
		assert_int_equal(layout.sizes % KVW_ALIGNMENT, 0);
		assert_int_equal(layout.positions % KVW_ALIGNMENT, 0);
		assert_int_equal(layout.rows % KVW_ALIGNMENT, 0);
		assert_int_equal(layout.head_bytes % KVW_ALIGNMENT, 0);
		assert_true(
		    layout.value_means >= layout.centroids + (uint64_t)shape.clusters * shape.head_dim * 2);
		assert_true(
		    layout.sizes >= layout.value_means + (uint64_t)shape.clusters * shape.head_dim * 2);
		assert_true(layout.positions >= layout.sizes + (uint64_t)shape.clusters * 4);
		assert_true(layout.rows >= layout.positions + (uint64_t)shape.tokens * 4);
		assert_true(layout.head_bytes >= layout.rows + (uint64_t)shape.tokens * shape.row_bytes);
		assert_int_equal(layout.bytes, layout.head_bytes * shape.kv_heads);
	}
}

static void test_overflow(void **state)
{
	const struct kvw_unit_shape huge = {.kv_heads = UINT32_MAX,
	    .head_dim = UINT32_MAX,
	    .row_bytes = UINT32_MAX,
	    .tokens = UINT32_MAX,
	    .clusters = UINT32_MAX};
	struct kvw_unit_layout layout = {.bytes = 77};

	(void)state;
	assert_fails(kvw_unit_layout(&huge, &layout), KV_LIMIT, "exceeds");
	assert_int_equal(layout.bytes, 77);
}

static void test_shape_of_layers(void **state)
{
	struct kvw_unit_shape shape;

	(void)state;
	assert_ok(kvw_unit_shape(&engine_world_layout, KVW_CLUSTERED, 0, 19, 0, &shape));
	assert_int_equal(shape.plain, 19);
	assert_int_equal(shape.clusters, 0);
	assert_ok(kvw_unit_shape(&engine_world_layout, KVW_CLUSTERED, 0, 19, 1, &shape));
	assert_int_equal(shape.plain, 2);
	assert_int_equal(shape.clusters, 5); /* 17 tokens by 4 */
	assert_int_equal(shape.row_bytes, 16);
	assert_ok(kvw_unit_shape(&engine_world_layout, KVW_CLUSTERED, 1, 4, 1, &shape));
	assert_int_equal(shape.plain, 1);
	assert_int_equal(shape.clusters, 1);
	assert_ok(kvw_unit_shape(&engine_world_layout, KVW_CLUSTERED, 0, 1, 1, &shape));
	assert_int_equal(shape.plain, 1);
	assert_int_equal(shape.clusters, 0);
	assert_ok(kvw_unit_shape(&engine_world_layout, KVW_CLUSTERED, 100, 4, 1, &shape));
	assert_int_equal(shape.plain, 0);
	assert_ok(kvw_unit_shape(&engine_world_layout, KVW_PLAIN, 100, 4, 1, &shape));
	assert_int_equal(shape.plain, 4);
	assert_int_equal(shape.clusters, 0);
}

static void test_segment_is_the_sum_of_its_units(void **state)
{
	struct kvw_model_layout model = engine_world_layout;

	(void)state;
	model.layers = 7;
	for (uint32_t dense = 0; dense <= 7; dense++) {
		uint64_t sum = 0, bytes = 0;

		model.dense_layers = dense;
		for (uint32_t layer = 0; layer < model.layers; layer++) {
			struct kvw_unit_shape shape;
			struct kvw_unit_layout layout;

			assert_ok(kvw_unit_shape(&model, KVW_CLUSTERED, 0, 333, layer, &shape));
			assert_ok(kvw_unit_layout(&shape, &layout));
			sum += layout.bytes;
		}
		assert_ok(kvw_segment_bytes(&model, KVW_CLUSTERED, 0, 333, &bytes));
		assert_int_equal(bytes, sum);
	}
}

static void test_refusals(void **state)
{
	struct kvw_model_layout model = engine_world_layout;
	struct kvw_unit_shape shape;
	uint64_t bytes;

	(void)state;
	assert_ok(kvw_model_layout_check(&model));
	assert_fails(kvw_unit_shape(&model, KVW_PLAIN, 0, 0, 0, &shape), KV_INVALID, "0 tokens");
	assert_fails(kvw_unit_shape(&model, KVW_PLAIN, 0, 65537, 0, &shape), KV_INVALID, "65537");
	assert_fails(kvw_unit_shape(&model, KVW_PLAIN, 1048576, 1, 0, &shape), KV_INVALID, "1048576");
	assert_fails(
	    kvw_segment_bytes(&model, KVW_PLAIN, UINT32_MAX, 9, &bytes), KV_INVALID, "4294967295");
	assert_fails(kvw_unit_shape(&model, KVW_PLAIN, 0, 1, 2, &shape), KV_INVALID, "layer 2");
	assert_fails(
	    kvw_unit_shape(&model, (enum kvw_segment_kind)2, 0, 1, 0, &shape), KV_INVALID, "kind 2");
	model.head_dim = 513;
	assert_fails(kvw_model_layout_check(&model), KV_INVALID, "head_dim is 513");
	model = engine_world_layout;
	model.layers = 0;
	assert_fails(kvw_model_layout_check(&model), KV_INVALID, "layers is 0");
	model = engine_world_layout;
	model.dense_layers = 3;
	assert_fails(kvw_model_layout_check(&model), KV_INVALID, "dense_layers is 3");
	model = engine_world_layout;
	model.kv_type = 3;
	assert_fails(kvw_model_layout_check(&model), KV_INVALID, "kv_type is 3");
	model = engine_world_layout;
	model.cluster_tokens = 0;
	assert_fails(kvw_model_layout_check(&model), KV_INVALID, "cluster_tokens is 0");
	model = engine_world_layout;
	model.kv_heads = 257;
	assert_fails(kvw_model_layout_check(&model), KV_INVALID, "kv_heads is 257");
}

static void test_control_page(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvw_control_page), 4096);
	assert_int_equal(offsetof(struct kvw_control_page, boot_generation), 8);
	assert_int_equal(offsetof(struct kvw_control_page, lease), 96);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_offsets),
	    cmocka_unit_test(test_everything_is_aligned),
	    cmocka_unit_test(test_overflow),
	    cmocka_unit_test(test_shape_of_layers),
	    cmocka_unit_test(test_segment_is_the_sum_of_its_units),
	    cmocka_unit_test(test_refusals),
	    cmocka_unit_test(test_control_page),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
