#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/backend_cpu.h"
#include "tests/lib/kernel_harness.h"

static struct kn_backend_options options_of(struct kv_allocator *allocator)
{
	struct kn_backend_options options = {
	    .allocator = allocator, .threads = 2, .max_rows = 16, .max_columns = 64};

	return options;
}

static void test_open(void **state)
{
	struct kn_backend_options options = options_of(kv_heap());
	const struct kn_backend_ops *ops = NULL;
	struct kn_backend *backend = NULL;

	(void)state;
	assert_int_equal(kn_backend_open("cuda", &options, &ops, &backend), KV_UNSUPPORTED);
	assert_int_equal(kn_backend_open("tpu", &options, &ops, &backend), KV_INVALID);
	assert_int_equal(kn_backend_open(NULL, &options, &ops, &backend), KV_INVALID);
	assert_null(ops);
	assert_null(backend);
	options.max_rows = 1u << 30;
	assert_int_equal(kn_backend_open("cpu", &options, &ops, &backend), KV_INVALID);
	options.max_rows = 16;
	options.cpu_level = (enum kn_cpu_level)9;
	assert_int_equal(kn_backend_open("cpu", &options, &ops, &backend), KV_INVALID);
	options.cpu_level = KN_CPU_AUTO;
	assert_int_equal(kn_backend_open("auto", &options, &ops, &backend), KV_OK);
	assert_string_equal(ops->name, "cpu");
	assert_non_null(strstr(ops->describe(backend), "threads=2"));
	assert_int_equal(backend->level, kn_cpu_best_level());
	ops->close(backend);
	options.threads = 0;
	assert_int_equal(kn_backend_open("cpu", &options, &ops, &backend), KV_OK);
	assert_true(kn_pool_threads(backend->pool) >= 1);
	ops->close(backend);
	ops->close(NULL);
}

static void test_open_without_memory(void **state)
{
	struct kv_allocator *allocator = kv_allocator_create("backend test", 0);
	struct kn_backend_options options = options_of(allocator);
	const struct kn_backend_ops *ops = NULL;
	struct kn_backend *backend = NULL;
	uint64_t n = 0;

	(void)state;
	for (;;) {
		kv_allocator_fail_at(allocator, ++n);
		enum kv_status status = kn_backend_open("cpu", &options, &ops, &backend);

		if (status == KV_OK) break;
		assert_int_equal(status, KV_NO_MEMORY);
		assert_null(backend);
		assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	}
	assert_true(n > 4);
	kv_allocator_fail_at(allocator, 0);
	ops->close(backend);
	assert_int_equal(kv_allocator_stats(allocator).blocks, 0);
	kv_allocator_destroy(allocator);
}

static void test_buffers(void **state)
{
	static const size_t sizes[] = {0, 1, 64, 4097, (size_t)1 << 20, (size_t)5 << 20};
	struct kvt_backend b;

	(void)state;
	assert_true(kvt_backend_open(&b, KN_CPU_PLAIN, 1));
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		void *buffer;
		size_t alignment = sizes[i] >= (size_t)1 << 20 ? (size_t)2 << 20 : 64;

		assert_int_equal(b.ops->buffer_create(b.backend, KN_DEVICE, sizes[i], &buffer), KV_OK);
		assert_int_equal((uintptr_t)buffer % alignment, 0);
		memset(buffer, 0x5a, sizes[i]);
		b.ops->buffer_destroy(b.backend, buffer);
	}
	void *none = NULL;

	assert_int_equal(
	    b.ops->buffer_create(b.backend, KN_DEVICE, SIZE_MAX - 100, &none), KV_NO_MEMORY);
	kv_allocator_fail_at(b.allocator, 1);
	assert_int_equal(b.ops->buffer_create(b.backend, KN_SHARED, 10, &none), KV_NO_MEMORY);
	assert_null(none);
	b.ops->buffer_destroy(b.backend, NULL);
	kvt_backend_close(&b);
}

static void test_streams(void **state)
{
	struct kvt_backend b;
	struct kn_stream *stream, *other;
	char device[8], host[8] = {0};

	(void)state;
	assert_true(kvt_backend_open(&b, KN_CPU_PLAIN, 1));
	assert_int_equal(b.ops->stream_create(b.backend, KN_STREAM_COMPUTE, &stream), KV_OK);
	assert_int_equal(b.ops->upload(b.backend, stream, device, "abcdefg", 8), KV_OK);
	assert_int_equal(b.ops->download(b.backend, stream, host, device, 8), KV_OK);
	assert_int_equal(b.ops->stream_wait(b.backend, stream), KV_OK);
	assert_string_equal(host, "abcdefg");
	assert_int_equal(b.ops->fill(b.backend, stream, device, 'x', 3), KV_OK);
	assert_int_equal(b.ops->stream_wait(b.backend, stream), KV_OK);
	assert_string_equal(device, "xxxdefg");
	assert_int_equal(b.ops->step_begin(b.backend, stream, 1), KV_OK);
	assert_int_equal(b.ops->fill(b.backend, stream, device, 'y', 2), KV_OK);
	assert_int_equal(b.ops->stream_wait(b.backend, stream), KV_OK);
	assert_string_equal(device, "yyxdefg");
	assert_int_equal(b.ops->step_end(b.backend, stream), KV_OK);
	assert_true(b.ops->unified);
	assert_int_equal(b.ops->memory_register(b.backend, host, 8, KN_READ_ONLY), KV_OK);
	b.ops->memory_unregister(b.backend, host);
	assert_int_equal(b.ops->stream_create(b.backend, KN_STREAM_BACKGROUND, &other), KV_OK);
	assert_int_equal(b.ops->stream_order(b.backend, stream, other), KV_OK);
	b.ops->stream_destroy(b.backend, other);
	b.ops->stream_destroy(b.backend, stream);
	kvt_backend_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_open),
	    cmocka_unit_test(test_open_without_memory),
	    cmocka_unit_test(test_buffers),
	    cmocka_unit_test(test_streams),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
