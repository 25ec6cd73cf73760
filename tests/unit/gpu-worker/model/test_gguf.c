/* The GGUF reader: values of every type, and refusal of every broken file that we can think of. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu-worker/model/gguf.h"
#include "tests/lib/gguf_builder.h"

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };

static enum kv_status open_bytes(const void *data, size_t size, struct gw_gguf **file)
{
	return gw_gguf_open_memory(kv_heap(), data, size, "test.gguf", file);
}

/* The file is refused with `status` and a text that names the file and holds `words`. */
static void assert_refused(const struct kvt_bytes *bytes, enum kv_status status, const char *words)
{
	struct gw_gguf *file = NULL;
	enum kv_status actual = open_bytes(bytes->data, bytes->size, &file);

	if (actual != status || !strstr(kv_error_message(), words)) {
		print_error("status %d, message: %s\nwanted %d with: %s\n", actual, kv_error_message(),
		    status, words);
	}
	assert_int_equal(actual, status);
	assert_non_null(strstr(kv_error_message(), words));
	assert_non_null(strstr(kv_error_message(), "test.gguf"));
	assert_null(file);
}

/* One of everything. */
static void put_valid(struct kvt_bytes *bytes)
{
	const uint64_t matrix[] = {64, 3}, vector[] = {5}, foreign[] = {256, 2};

	kvt_put_head(bytes, 3, 12);
	kvt_put_key_string(bytes, "general.architecture", "llama");
	kvt_put_key_u32(bytes, "a.u32", 7);
	kvt_put_key(bytes, "a.i64", I64);
	kvt_put_u64(bytes, (uint64_t)-5);
	kvt_put_key(bytes, "a.u64", U64);
	kvt_put_u64(bytes, (uint64_t)1 << 40);
	kvt_put_key(bytes, "a.u8", U8);
	kvt_put_u8(bytes, 200);
	kvt_put_key_f32(bytes, "a.f32", 1.5f);
	kvt_put_key(bytes, "a.f64", F64);
	kvt_put_f64(bytes, 0.25);
	kvt_put_key(bytes, "a.bool", BOOL);
	kvt_put_u8(bytes, 1);
	kvt_put_key_array(bytes, "a.strings", STRING, 3);
	kvt_put_string(bytes, "one");
	kvt_put_string(bytes, "");
	kvt_put_string(bytes, "three");
	kvt_put_key_array(bytes, "a.ints", I8, 3);
	kvt_put(bytes, "\x01\xff\x80", 3);
	kvt_put_key_array(bytes, "a.floats", F32, 2);
	kvt_put_f32(bytes, -2.0f);
	kvt_put_f32(bytes, 4.0f);
	kvt_put_key_u32(bytes, "general.alignment", 64);
	kvt_put_tensor(bytes, "matrix", 2, matrix, KN_Q8_0, 0);
	kvt_put_tensor(bytes, "vector", 1, vector, KN_F32, 256);
	kvt_put_tensor(bytes, "foreign", 2, foreign, 23, 320);
	kvt_put_padding(bytes, 64, 256 + 5 * 4 + 44);
}

static void test_values(void **state)
{
	struct kvt_bytes bytes = {.size = 0};
	struct gw_gguf *file = NULL;
	struct gw_gguf_string text;
	uint32_t small = 0;
	uint64_t count = 0;
	double real = 0;
	int flag = 0;

	(void)state;
	put_valid(&bytes);
	assert_int_equal(open_bytes(bytes.data, bytes.size, &file), KV_OK);
	assert_string_equal(gw_gguf_path(file), "test.gguf");
	assert_int_equal(gw_gguf_u32(file, "a.u32", &small), KV_OK);
	assert_int_equal(small, 7);
	assert_int_equal(gw_gguf_u32(file, "a.u8", &small), KV_OK);
	assert_int_equal(small, 200);
	assert_int_equal(gw_gguf_u32(file, "a.i64", &small), KV_CORRUPT);
	assert_non_null(strstr(kv_error_message(), "-5"));
	assert_int_equal(gw_gguf_u32(file, "a.u64", &small), KV_CORRUPT);
	assert_int_equal(gw_gguf_u32(file, "a.f32", &small), KV_CORRUPT);
	assert_int_equal(gw_gguf_u32(file, "a.strings", &small), KV_CORRUPT);
	assert_int_equal(gw_gguf_u32(file, "a.none", &small), KV_NOT_FOUND);
	assert_int_equal(gw_gguf_u32(file, "a", &small), KV_NOT_FOUND);
	assert_int_equal(small, 200);
	assert_int_equal(gw_gguf_f64(file, "a.f32", &real), KV_OK);
	assert_true(real == 1.5);
	assert_int_equal(gw_gguf_f64(file, "a.f64", &real), KV_OK);
	assert_true(real == 0.25);
	assert_int_equal(gw_gguf_f64(file, "a.u32", &real), KV_CORRUPT);
	assert_int_equal(gw_gguf_bool(file, "a.bool", &flag), KV_OK);
	assert_int_equal(flag, 1);
	assert_int_equal(gw_gguf_bool(file, "a.u8", &flag), KV_CORRUPT);
	assert_int_equal(gw_gguf_string(file, "general.architecture", &text), KV_OK);
	assert_int_equal(text.length, 5);
	assert_memory_equal(text.bytes, "llama", 5);
	assert_int_equal(gw_gguf_string(file, "a.u32", &text), KV_CORRUPT);
	assert_int_equal(gw_gguf_array_count(file, "a.strings", &count), KV_OK);
	assert_int_equal(count, 3);
	assert_int_equal(gw_gguf_array_count(file, "a.u32", &count), KV_CORRUPT);
	gw_gguf_close(file);
}

static void test_arrays(void **state)
{
	struct kvt_bytes bytes = {.size = 0};
	struct gw_gguf *file = NULL;
	struct gw_gguf_string strings[3];
	int32_t integers[4] = {9, 9, 9, 9};
	float floats[2] = {0, 0};

	(void)state;
	put_valid(&bytes);
	assert_int_equal(open_bytes(bytes.data, bytes.size, &file), KV_OK);
	assert_int_equal(gw_gguf_array_strings(file, "a.strings", strings, 3), KV_OK);
	assert_int_equal(strings[1].length, 0);
	assert_int_equal(strings[2].length, 5);
	assert_memory_equal(strings[2].bytes, "three", 5);
	assert_int_equal(gw_gguf_array_strings(file, "a.ints", strings, 3), KV_CORRUPT);
	assert_int_equal(gw_gguf_array_i32(file, "a.strings", integers, 3), KV_CORRUPT);
	assert_int_equal(gw_gguf_array_i32(file, "a.ints", integers, 4), KV_INVALID);
	assert_int_equal(integers[0], 9);
	assert_int_equal(gw_gguf_array_i32(file, "a.ints", integers, 3), KV_OK);
	assert_int_equal(integers[0], 1);
	assert_int_equal(integers[1], -1);
	assert_int_equal(integers[2], -128);
	assert_int_equal(gw_gguf_array_f32(file, "a.floats", floats, 2), KV_OK);
	assert_true(floats[0] == -2.0f && floats[1] == 4.0f);
	assert_int_equal(gw_gguf_array_f32(file, "a.ints", floats, 2), KV_CORRUPT);
	gw_gguf_close(file);
}

static void test_tensors(void **state)
{
	struct kvt_bytes bytes = {.size = 0};
	struct gw_gguf *file = NULL;
	struct gw_gguf_tensor tensor;

	(void)state;
	put_valid(&bytes);
	assert_int_equal(open_bytes(bytes.data, bytes.size, &file), KV_OK);
	assert_int_equal(gw_gguf_tensor_count(file), 3);
	assert_int_equal(gw_gguf_tensor(file, "matrix", &tensor), KV_OK);
	assert_int_equal(tensor.dimensions, 2);
	assert_int_equal(tensor.shape[0], 64);
	assert_int_equal(tensor.shape[1], 3);
	assert_int_equal(tensor.shape[2], 1);
	assert_int_equal(tensor.type, KN_Q8_0);
	assert_int_equal(tensor.bytes, 3 * 2 * 34);
	assert_ptr_equal(tensor.data, bytes.data + bytes.size - 320);
	assert_int_equal(gw_gguf_tensor(file, "vector", &tensor), KV_OK);
	assert_int_equal(tensor.bytes, 20);
	/* A type that the kernels do not know is not an error until the tensor is needed. */
	assert_int_equal(gw_gguf_tensor(file, "foreign", &tensor), KV_OK);
	assert_int_equal(tensor.type, 23);
	assert_null(tensor.data);
	assert_int_equal(gw_gguf_tensor(file, "matri", &tensor), KV_NOT_FOUND);
	gw_gguf_tensor_at(file, 0, &tensor);
	assert_memory_equal(tensor.name.bytes, "foreign", 7);
	gw_gguf_close(file);
}

/* Cut anywhere, the file is refused and nothing behind its end is read (run under ASan to see it).
 */
static void test_every_prefix(void **state)
{
	struct kvt_bytes bytes = {.size = 0};

	(void)state;
	put_valid(&bytes);
	for (size_t size = 0; size + 44 < bytes.size; size++) {
		struct gw_gguf *file = NULL;
		uint8_t *copy = malloc(size ? size : 1);
		enum kv_status status;

		assert_non_null(copy);
		memcpy(copy, bytes.data, size);
		status = open_bytes(copy, size, &file);
		if (status == KV_OK) print_error("accepted the first %zu bytes\n", size);
		assert_int_equal(status, KV_CORRUPT);
		assert_non_null(strstr(kv_error_message(), "truncated"));
		assert_null(file);
		free(copy);
	}
}

static void test_magic_and_version(void **state)
{
	struct kvt_bytes bytes = {.size = 0};

	(void)state;
	put_valid(&bytes);
	bytes.data[0] = 'P';
	bytes.data[1] = 'K';
	assert_refused(&bytes, KV_CORRUPT, "50 4b 55 46");
	bytes.data[0] = 'G';
	bytes.data[1] = 'G';
	bytes.data[4] = 1;
	assert_refused(&bytes, KV_UNSUPPORTED, "version 1");
	bytes.data[4] = 4;
	assert_refused(&bytes, KV_UNSUPPORTED, "version 4");
	bytes.data[4] = 0;
	bytes.data[7] = 3;
	assert_refused(&bytes, KV_UNSUPPORTED, "big-endian");
	bytes.data[4] = 2;
	bytes.data[7] = 0;
	{
		struct gw_gguf *file = NULL;

		assert_int_equal(open_bytes(bytes.data, bytes.size, &file), KV_OK);
		gw_gguf_close(file);
	}
}

static void test_huge_counts(void **state)
{
	static const uint64_t counts[] = {65537, UINT32_MAX, (uint64_t)1 << 63, UINT64_MAX};
	struct kvt_bytes bytes;

	(void)state;
	for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
		bytes.size = 0;
		kvt_put_head(&bytes, 0, counts[i]);
		assert_refused(&bytes, KV_CORRUPT, "metadata keys");
		bytes.size = 0;
		kvt_put_head(&bytes, counts[i], 0);
		assert_refused(&bytes, KV_CORRUPT, "tensors");
		bytes.size = 0;
		kvt_put_head(&bytes, 0, 1);
		kvt_put_u64(&bytes, counts[i]);
		kvt_put_padding(&bytes, 32, 64);
		assert_refused(&bytes, KV_CORRUPT, "metadata key");
		bytes.size = 0;
		kvt_put_head(&bytes, 0, 1);
		kvt_put_key(&bytes, "k", STRING);
		kvt_put_u64(&bytes, counts[i]);
		assert_refused(&bytes, KV_CORRUPT, "value of k");
		for (uint32_t type = U8; type <= F64; type++) {
			if (type == ARRAY) continue;
			bytes.size = 0;
			kvt_put_head(&bytes, 0, 1);
			kvt_put_key_array(&bytes, "k", type, counts[i]);
			assert_refused(&bytes, KV_CORRUPT, "value of k");
		}
	}
	/* Counts within the limits that the file is too short for are refused before anything is read.
	 */
	bytes.size = 0;
	kvt_put_head(&bytes, 65536, 65536);
	assert_refused(&bytes, KV_CORRUPT, "cannot fit");
}

static void test_bad_metadata(void **state)
{
	struct kvt_bytes bytes = {.size = 0};

	(void)state;
	kvt_put_head(&bytes, 0, 1);
	kvt_put_key_array(&bytes, "nest", ARRAY, 1);
	kvt_put_padding(&bytes, 1, 32);
	assert_refused(&bytes, KV_UNSUPPORTED, "array of arrays");
	bytes.size = 0;
	kvt_put_head(&bytes, 0, 1);
	kvt_put_key(&bytes, "odd\nkey", 13);
	kvt_put_padding(&bytes, 1, 32);
	assert_refused(&bytes, KV_CORRUPT, "odd?key has unknown type 13");
	bytes.size = 0;
	kvt_put_head(&bytes, 0, 1);
	kvt_put_key_array(&bytes, "odd", 77, 1);
	kvt_put_padding(&bytes, 1, 32);
	assert_refused(&bytes, KV_CORRUPT, "unknown type 77");
	bytes.size = 0;
	kvt_put_head(&bytes, 0, 1);
	kvt_put_key_u32(&bytes, "", 1);
	assert_refused(&bytes, KV_CORRUPT, "empty metadata key");
	bytes.size = 0;
	kvt_put_head(&bytes, 0, 3);
	kvt_put_key_u32(&bytes, "b", 1);
	kvt_put_key_u32(&bytes, "a", 1);
	kvt_put_key_u32(&bytes, "b", 2);
	assert_refused(&bytes, KV_CORRUPT, "metadata key b is there twice");
}

static void test_alignment(void **state)
{
	static const uint32_t bad[] = {0, 1, 4, 12, 33, 1u << 21, UINT32_MAX};
	const uint64_t shape[] = {4};
	struct kvt_bytes bytes = {.size = 0};
	struct gw_gguf *file = NULL;

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		bytes.size = 0;
		kvt_put_head(&bytes, 0, 1);
		kvt_put_key_u32(&bytes, "general.alignment", bad[i]);
		assert_refused(&bytes, KV_CORRUPT, "power of two");
	}
	bytes.size = 0;
	kvt_put_head(&bytes, 0, 1);
	kvt_put_key_string(&bytes, "general.alignment", "32");
	assert_refused(&bytes, KV_CORRUPT, "general.alignment");
	bytes.size = 0;
	kvt_put_head(&bytes, 1, 1);
	kvt_put_key_u32(&bytes, "general.alignment", 16);
	kvt_put_tensor(&bytes, "t", 1, shape, KN_F32, 8);
	kvt_put_padding(&bytes, 16, 32);
	assert_refused(&bytes, KV_CORRUPT, "not a multiple of the alignment 16");
	bytes.size = 0;
	kvt_put_head(&bytes, 0, 0);
	assert_int_equal(open_bytes(bytes.data, bytes.size, &file), KV_OK);
	gw_gguf_close(file);
}

static void put_one_tensor(struct kvt_bytes *bytes, uint32_t dimensions, const uint64_t *shape,
    uint32_t type, uint64_t offset)
{
	bytes->size = 0;
	kvt_put_head(bytes, 1, 0);
	kvt_put_tensor(bytes, "t", dimensions, shape, type, offset);
	kvt_put_padding(bytes, 32, 128);
}

static void test_bad_tensors(void **state)
{
	const uint64_t good[] = {32, 1, 1, 1}, zero[] = {32, 0}, odd[] = {33, 2},
	               wide[] = {UINT32_MAX, 1};
	const uint64_t wider[] = {(uint64_t)1 << 32, 1};
	const uint64_t large[] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
	/* Products that come out small when they wrap at 64 bits. */
	const uint64_t wrapping[] = {1u << 31, 1u << 31, 4, 1};
	struct kvt_bytes bytes;

	(void)state;
	put_one_tensor(&bytes, 0, good, KN_F32, 0);
	assert_refused(&bytes, KV_CORRUPT, "0 dimensions");
	put_one_tensor(&bytes, 5, good, KN_F32, 0);
	assert_refused(&bytes, KV_CORRUPT, "5 dimensions");
	put_one_tensor(&bytes, 2, zero, KN_F32, 0);
	assert_refused(&bytes, KV_CORRUPT, "dimension 1 is 0");
	put_one_tensor(&bytes, 2, wider, KN_F32, 0);
	assert_refused(&bytes, KV_CORRUPT, "dimension 0");
	put_one_tensor(&bytes, 2, odd, KN_Q4_0, 0);
	assert_refused(&bytes, KV_CORRUPT, "blocks of type 2");
	put_one_tensor(&bytes, 2, wide, KN_F32, 0);
	assert_refused(&bytes, KV_CORRUPT, "truncated: tensor t");
	put_one_tensor(&bytes, 4, large, KN_F32, 0);
	assert_refused(&bytes, KV_CORRUPT, "too many elements");
	put_one_tensor(&bytes, 4, wrapping, KN_F32, 0);
	assert_refused(&bytes, KV_CORRUPT, "too many elements");
	put_one_tensor(&bytes, 1, good, KN_F32, 32);
	assert_refused(&bytes, KV_CORRUPT, "truncated: tensor t");
	put_one_tensor(&bytes, 1, good, KN_F32, UINT64_MAX - 31);
	assert_refused(&bytes, KV_CORRUPT, "truncated: tensor t");
	put_one_tensor(&bytes, 1, good, 23, (uint64_t)1 << 63);
	assert_refused(&bytes, KV_CORRUPT, "truncated: tensor t");
	bytes.size = 0;
	kvt_put_head(&bytes, 2, 0);
	kvt_put_tensor(&bytes, "t", 1, good, KN_F32, 0);
	kvt_put_tensor(&bytes, "t", 1, good, KN_F32, 0);
	kvt_put_padding(&bytes, 32, 128);
	assert_refused(&bytes, KV_CORRUPT, "tensor t is there twice");
}

static void test_bad_values(void **state)
{
	struct kvt_bytes bytes = {.size = 0};
	struct gw_gguf *file = NULL;
	int32_t integer = 3;
	float single = 3;
	double real = 3;
	int flag = 3;

	(void)state;
	kvt_put_head(&bytes, 0, 5);
	kvt_put_key(&bytes, "bool", BOOL);
	kvt_put_u8(&bytes, 2);
	kvt_put_key_f32(&bytes, "nan", NAN);
	kvt_put_key_array(&bytes, "wide", I64, 1);
	kvt_put_u64(&bytes, (uint64_t)1 << 31);
	kvt_put_key_array(&bytes, "least", I64, 1);
	kvt_put_u64(&bytes, (uint64_t)(int64_t)INT32_MIN);
	kvt_put_key_array(&bytes, "infinite", F64, 1);
	kvt_put_f64(&bytes, (double)INFINITY);
	assert_int_equal(open_bytes(bytes.data, bytes.size, &file), KV_OK);
	assert_int_equal(gw_gguf_bool(file, "bool", &flag), KV_CORRUPT);
	assert_int_equal(gw_gguf_f64(file, "nan", &real), KV_CORRUPT);
	assert_int_equal(gw_gguf_array_i32(file, "wide", &integer, 1), KV_CORRUPT);
	assert_int_equal(gw_gguf_array_f32(file, "infinite", &single, 1), KV_CORRUPT);
	assert_true(flag == 3 && real == 3.0 && integer == 3 && single == 3.0f);
	assert_int_equal(gw_gguf_array_i32(file, "least", &integer, 1), KV_OK);
	assert_int_equal(integer, INT32_MIN);
	gw_gguf_close(file);
}

/* Many keys in an order that sorting must undo. */
static void test_many_keys(void **state)
{
	struct kvt_bytes bytes = {.size = 0};
	struct gw_gguf *file = NULL;
	char key[16];
	uint32_t value = 0;

	(void)state;
	kvt_put_head(&bytes, 0, 300);
	for (uint32_t i = 0; i < 300; i++) {
		snprintf(key, sizeof key, "k%u", (unsigned)(i * 7919 % 300));
		kvt_put_key_u32(&bytes, key, i * 7919 % 300);
	}
	assert_int_equal(open_bytes(bytes.data, bytes.size, &file), KV_OK);
	for (uint32_t i = 0; i < 300; i++) {
		snprintf(key, sizeof key, "k%u", (unsigned)i);
		assert_int_equal(gw_gguf_u32(file, key, &value), KV_OK);
		assert_int_equal(value, i);
	}
	gw_gguf_close(file);
}

static void test_files(void **state)
{
	char path[] = "/tmp/kv_gguf_XXXXXX";
	struct kvt_bytes bytes = {.size = 0};
	struct gw_gguf *file = NULL;
	int descriptor;

	(void)state;
	assert_int_equal(gw_gguf_open(kv_heap(), "/nonexistent/model.gguf", &file), KV_NOT_FOUND);
	assert_non_null(strstr(kv_error_message(), "/nonexistent/model.gguf"));
	assert_int_equal(gw_gguf_open(kv_heap(), "/tmp", &file), KV_INVALID);
	descriptor = mkstemp(path);
	assert_true(descriptor >= 0);
	assert_int_equal(gw_gguf_open(kv_heap(), path, &file), KV_CORRUPT);
	put_valid(&bytes);
	assert_int_equal(write(descriptor, bytes.data, bytes.size), (ssize_t)bytes.size);
	close(descriptor);
	assert_int_equal(gw_gguf_open(kv_heap(), path, &file), KV_OK);
	assert_string_equal(gw_gguf_path(file), path);
	gw_gguf_close(file);
	unlink(path);
}

static void test_digest(void **state)
{
	/* BLAKE2b-256 of the 24 bytes of an empty file, from Python's hashlib. */
	static const uint8_t expected[32] = {
	    0x56,
	    0xae,
	    0x4e,
	    0x49,
	    0x13,
	    0xa5,
	    0x28,
	    0xf5,
	    0x2c,
	    0xf4,
	    0xe8,
	    0x3a,
	    0x2c,
	    0x43,
	    0xa8,
	    0x8d,
	    0x99,
	    0x22,
	    0xa4,
	    0xb5,
	    0x56,
	    0xce,
	    0xfb,
	    0x4b,
	    0x4a,
	    0x7d,
	    0x45,
	    0xce,
	    0xa6,
	    0xff,
	    0x05,
	    0xc7,
	};
	struct kvt_bytes bytes = {.size = 0};
	struct gw_gguf *file = NULL;
	uint8_t digest[32];

	(void)state;
	kvt_put_head(&bytes, 0, 0);
	assert_int_equal(open_bytes(bytes.data, bytes.size, &file), KV_OK);
	assert_int_equal(gw_gguf_digest(file, digest), KV_OK);
	assert_memory_equal(digest, expected, 32);
	gw_gguf_close(file);
}

static void test_allocation_failures(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("gguf", 0);
	struct kvt_bytes bytes = {.size = 0};
	struct gw_gguf *file = NULL;
	uint64_t failed = 0;

	(void)state;
	put_valid(&bytes);
	for (uint64_t n = 1; n < 100; n++) {
		enum kv_status status;

		kv_allocator_fail_at(allocator, n);
		status = gw_gguf_open_memory(allocator, bytes.data, bytes.size, "test.gguf", &file);
		if (status == KV_OK) break;
		assert_int_equal(status, KV_NO_MEMORY);
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
	    cmocka_unit_test(test_values),
	    cmocka_unit_test(test_arrays),
	    cmocka_unit_test(test_tensors),
	    cmocka_unit_test(test_every_prefix),
	    cmocka_unit_test(test_magic_and_version),
	    cmocka_unit_test(test_huge_counts),
	    cmocka_unit_test(test_bad_metadata),
	    cmocka_unit_test(test_alignment),
	    cmocka_unit_test(test_bad_tensors),
	    cmocka_unit_test(test_bad_values),
	    cmocka_unit_test(test_many_keys),
	    cmocka_unit_test(test_files),
	    cmocka_unit_test(test_digest),
	    cmocka_unit_test(test_allocation_failures),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
