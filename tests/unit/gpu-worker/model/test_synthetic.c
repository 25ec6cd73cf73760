/* Synthetic models: the same name gives the same bytes, their shapes are those of the models that
 * they are called after, and what there is not is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/crc32c.h"
#include "gpu-worker/model/model.h"
#include "gpu-worker/model/synthetic.h"

static const char query[] = "blk.1.attn_q.weight";

static struct gw_gguf *open_named(const char *name)
{
	struct gw_gguf *file = NULL;

	assert_int_equal(gw_model_file_open(kv_heap(), name, &file), KV_OK);
	assert_string_equal(gw_gguf_path(file), name);
	return file;
}

/* A copy of a tensor's bytes; the caller frees it. */
static uint8_t *take(const struct gw_gguf *file, const char *name, struct gw_gguf_tensor *tensor)
{
	uint8_t *copy;

	assert_int_equal(gw_gguf_tensor(file, name, tensor), KV_OK);
	copy = malloc((size_t)tensor->bytes);
	assert_non_null(copy);
	gw_gguf_fetch(file, tensor);
	memcpy(copy, tensor->data, (size_t)tensor->bytes);
	gw_gguf_drop(file, tensor);
	return copy;
}

static int same(const char *first, const char *second)
{
	struct gw_gguf *files[2] = {open_named(first), open_named(second)};
	uint8_t digests[2][32], *bytes[2];
	struct gw_gguf_tensor tensors[2];
	int equal, digest_equal;

	for (int i = 0; i < 2; i++) {
		/* In another order: what was made before must not matter. */
		if (i == 1) free(take(files[i], "output.weight", &tensors[i]));
		bytes[i] = take(files[i], query, &tensors[i]);
		assert_int_equal(gw_gguf_digest(files[i], digests[i]), KV_OK);
	}
	equal = tensors[0].bytes == tensors[1].bytes &&
	        memcmp(bytes[0], bytes[1], (size_t)tensors[0].bytes) == 0;
	digest_equal = memcmp(digests[0], digests[1], 32) == 0;
	/* What a store takes for the same model is the same, and nothing else is. */
	assert_int_equal(digest_equal, equal);
	for (int i = 0; i < 2; i++) {
		free(bytes[i]);
		gw_gguf_close(files[i]);
	}
	return equal;
}

static void test_same_bytes(void **state)
{
	(void)state;
	assert_true(same("synthetic:tiny", "synthetic:tiny"));
	assert_true(same("synthetic:tiny,type=f16,seed=7", "synthetic:tiny,type=f16,seed=7"));
	assert_false(same("synthetic:tiny,seed=1", "synthetic:tiny,seed=2"));
	assert_false(same("synthetic:tiny,type=f16", "synthetic:tiny,type=bf16"));
}

static void test_tensors_differ(void **state)
{
	struct gw_gguf *file = open_named("synthetic:tiny");
	struct gw_gguf_tensor tensor;
	uint8_t *first, *second;

	(void)state;
	first = take(file, "blk.0.attn_k.weight", &tensor);
	second = take(file, "blk.1.attn_k.weight", &tensor);
	assert_memory_not_equal(first, second, (size_t)tensor.bytes);
	free(second);
	second = take(file, "blk.0.attn_v.weight", &tensor);
	assert_memory_not_equal(first, second, (size_t)tensor.bytes);
	free(second);
	/* Dropped and made again. */
	second = take(file, "blk.0.attn_k.weight", &tensor);
	assert_memory_equal(first, second, (size_t)tensor.bytes);
	gw_gguf_drop(file, &tensor);
	for (uint64_t i = 0; i < tensor.bytes; i++)
		assert_int_equal(((const uint8_t *)tensor.data)[i], 0);
	free(first);
	free(second);
	gw_gguf_close(file);
}

static uint32_t checksum(const char *name, const char *tensor_name)
{
	struct gw_gguf *file = open_named(name);
	struct gw_gguf_tensor tensor;
	uint8_t *bytes = take(file, tensor_name, &tensor);
	uint32_t sum = kv_crc32c(0, bytes, (size_t)tensor.bytes);

	free(bytes);
	gw_gguf_close(file);
	return sum;
}

/* The same everywhere, whatever the number of threads: figures of two machines are of one model. */
static void test_pinned(void **state)
{
	(void)state;
	assert_int_equal(checksum("synthetic:tiny", query), 0x39595eb3);
	assert_int_equal(checksum("synthetic:tiny,type=f16,seed=3", query), 0x9247c856);
	/* Large enough for threads. */
	assert_int_equal(checksum("synthetic:llama-3.2-1b", "blk.0.attn_output.weight"), 0xb63ba373);
}

/* Elements have mean 0 and the deviation that is meant, in every type. */
static void check_elements(const char *type, const char *tensor_name, double deviation)
{
	char name[64];
	struct gw_gguf *file;
	struct gw_gguf_tensor tensor;
	double sum = 0.0, squares = 0.0, count;
	uint64_t row_bytes;
	uint8_t *bytes;
	float *row;

	snprintf(name, sizeof name, "synthetic:tiny,type=%s", type);
	file = open_named(name);
	bytes = take(file, tensor_name, &tensor);
	row = malloc((size_t)tensor.shape[0] * sizeof *row);
	assert_non_null(row);
	row_bytes = tensor.bytes / tensor.shape[1];
	count = (double)tensor.shape[0] * (double)tensor.shape[1];
	for (uint64_t i = 0; i < tensor.shape[1]; i++) {
		assert_int_equal(kn_dequantise_row((enum kn_weight_type)tensor.type, bytes + i * row_bytes,
		    row, (uint32_t)tensor.shape[0]), KV_OK);
		for (uint64_t j = 0; j < tensor.shape[0]; j++) {
			sum += (double)row[j];
			squares += (double)row[j] * (double)row[j];
		}
	}
	assert_true(fabs(sum / count) < 5.0 * deviation / sqrt(count));
	assert_true(fabs(sqrt(squares / count) / deviation - 1.0) < 0.03);
	free(row);
	free(bytes);
	gw_gguf_close(file);
}

static void test_elements(void **state)
{
	static const char *const types[] = {"q8_0", "q4_0", "f16", "bf16", "f32"};

	(void)state;
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
		check_elements(types[i], "blk.3.ffn_up.weight", 1.0 / sqrt(256.0));
		check_elements(types[i], "blk.0.ffn_down.weight", 0.8 / sqrt(512.0));
		check_elements(types[i], "token_embd.weight", 1.0);
	}
}

/* No code of -128: kernels may take the sign off a byte. */
static void test_codes(void **state)
{
	struct gw_gguf *file = open_named("synthetic:tiny");
	struct gw_gguf_tensor tensor;
	uint8_t *bytes = take(file, query, &tensor);

	(void)state;
	for (uint64_t block = 0; block < tensor.bytes / 34; block++)
		for (uint64_t i = 0; i < 32; i++)
			assert_int_not_equal(bytes[34 * block + 2 + i], 0x80);
	free(bytes);
	gw_gguf_close(file);
}

static void test_shapes(void **state)
{
	struct gw_gguf *file = open_named("synthetic:llama-3.1-8b,type=f16");
	struct gw_model_shape shape;
	struct gw_gguf_tensor tensor;
	uint64_t bytes = 0;

	(void)state;
	assert_int_equal(gw_model_read_shape(file, &shape), KV_OK);
	assert_int_equal(shape.layers, 32);
	assert_int_equal(shape.hidden, 4096);
	assert_int_equal(shape.heads, 32);
	assert_int_equal(shape.kv_heads, 8);
	assert_int_equal(shape.head_dim, 128);
	assert_int_equal(shape.feed_forward, 14336);
	assert_int_equal(shape.vocabulary, 128256);
	assert_int_equal(shape.context, 131072);
	assert_int_equal(gw_gguf_tensor_count(file), 32 * 9 + 3);
	for (uint64_t i = 0; i < gw_gguf_tensor_count(file); i++) {
		gw_gguf_tensor_at(file, i, &tensor);
		bytes += tensor.bytes;
	}
	/* 8,030,261,248 parameters, of which 65 vectors of 4,096 take two bytes more each. */
	assert_int_equal(bytes, UINT64_C(8030261248) * 2 + 65 * 4096 * 2);
	gw_gguf_close(file);
	file = open_named("synthetic:llama-3.2-1b");
	assert_int_equal(gw_model_read_shape(file, &shape), KV_OK);
	assert_int_equal(gw_gguf_tensor(file, "output.weight", &tensor), KV_NOT_FOUND);
	gw_gguf_close(file);
}

static void test_refused(void **state)
{
	static const char *const names[] = {"synthetic:", "synthetic:llama", "synthetic:tiny,",
	    "synthetic:tiny,type=", "synthetic:tiny,type=q3_K", "synthetic:tiny,seed=",
	    "synthetic:tiny,seed=-1", "synthetic:tiny,seed=1x", "synthetic:tiny,seed= 1",
	    "synthetic:tiny,seed=99999999999999999999", "synthetic:tiny,sees=1", "synthetic:tiny ",
	    "synthetic:TINY"};
	struct gw_gguf *file = NULL;

	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		assert_int_equal(gw_model_file_open(kv_heap(), names[i], &file), KV_USAGE);
		assert_null(file);
		assert_non_null(strstr(kv_error_message(), names[i]));
		assert_non_null(strstr(kv_error_message(), "llama-3.1-8b, llama-3.2-1b, tiny"));
	}
	assert_int_equal(gw_model_file_open(kv_heap(), "Synthetic:tiny", &file), KV_NOT_FOUND);
}

static void test_no_memory(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("synthetic test", 0);
	struct gw_gguf *file = NULL;
	unsigned failed = 0;

	(void)state;
	for (uint64_t n = 1; n < 100 && !file; n++) {
		kv_allocator_fail_at(allocator, n);
		if (gw_model_file_open(allocator, "synthetic:tiny", &file) == KV_OK) break;
		assert_null(file);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
		failed++;
	}
	kv_allocator_fail_at(allocator, 0);
	assert_non_null(file);
	assert_true(failed >= 4);
	gw_gguf_close(file);
	kv_allocator_destroy(allocator);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_same_bytes),
	    cmocka_unit_test(test_tensors_differ),
	    cmocka_unit_test(test_pinned),
	    cmocka_unit_test(test_elements),
	    cmocka_unit_test(test_codes),
	    cmocka_unit_test(test_shapes),
	    cmocka_unit_test(test_refused),
	    cmocka_unit_test(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
