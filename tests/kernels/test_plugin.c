/* Plug-ins: which are taken, which are refused and why, and what auto makes of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/plugin.h"

static const struct kn_backend_options usual = {.max_rows = 16, .max_columns = 64, .threads = 1};

static enum kv_status open_from(const char *name, const char *folder, struct kv_allocator *memory,
    const struct kn_backend_ops **ops, struct kn_backend **backend)
{
	struct kn_backend_options options = usual;

	options.allocator = memory;
	options.plugin_folder = folder;
	return kn_backend_open(name, &options, ops, backend);
}

static void a_plugin_computes_on_memory_that_the_program_counts(void **state)
{
	struct kv_allocator *memory = kv_allocator_create("plug-in", 0);
	const struct kn_backend_ops *ops = NULL;
	struct kn_backend *backend = NULL;
	struct kn_stream *stream = NULL;
	struct kn_copy_job job = {.bytes = 1};
	struct kn_copy_arguments a = {&job, 1};
	uint8_t here = 0, there = 7;
	void *buffer = NULL;

	(void)state;
	assert_int_equal(open_from("cuda", KVT_PLUGINS "/discrete", memory, &ops, &backend), KV_OK);
	assert_string_equal(ops->name, "discrete");
	assert_int_equal(ops->unified, 0);
	assert_int_equal(ops->stream_create(backend, KN_STREAM_COMPUTE, &stream), KV_OK);
	assert_int_equal(ops->buffer_create(backend, KN_DEVICE, 100, &buffer), KV_OK);
	assert_int_equal(ops->upload(backend, stream, buffer, &there, 1), KV_OK);
	assert_int_equal(ops->download(backend, stream, &here, buffer, 1), KV_OK);
	/* Nothing runs before it is waited for. */
	assert_int_equal(here, 0);
	there = 9;
	assert_int_equal(ops->stream_wait(backend, stream), KV_OK);
	assert_int_equal(here, 9);
	/* A failure in there is described here. */
	kv_error_clear();
	job.source = job.destination = &here;
	assert_int_equal(ops->copy(backend, stream, &a), KV_INTERNAL);
	assert_non_null(strstr(kv_error_message(), "is not memory of the backend"));
	ops->buffer_destroy(backend, buffer);
	ops->stream_destroy(backend, stream);
	assert_true(kv_allocator_stats(memory).blocks > 0);
	ops->close(backend);
	assert_int_equal(kv_allocator_stats(memory).blocks, 0);
	kv_allocator_destroy(memory);
}

static void check_refusal(const char *folder, enum kv_status status, const char *reason)
{
	const struct kn_backend_entry *entry = NULL;
	const struct kn_backend_ops *ops = NULL;
	struct kn_backend *backend = NULL;

	assert_int_equal(kn_plugin_open("cuda", folder, &entry), status);
	assert_null(entry);
	if (strstr(kv_error_message(), reason) == NULL)
		fail_msg("\"%s\" says nothing of \"%s\"", kv_error_message(), reason);
	assert_int_equal(open_from("cuda", folder, kv_heap(), &ops, &backend),
	    status == KV_INVALID ? KV_INVALID : KV_UNSUPPORTED);
	assert_non_null(strstr(kv_error_message(), reason));
	assert_null(backend);
	if (status == KV_INVALID) return;
	/* Whatever it is, auto takes the cpu. */
	assert_int_equal(open_from("auto", folder, kv_heap(), &ops, &backend), KV_OK);
	assert_string_equal(ops->name, "cpu");
	ops->close(backend);
}

static void what_is_no_backend_is_refused(void **state)
{
	(void)state;
	check_refusal(KVT_PLUGINS "/none", KV_NOT_FOUND, "no libclusterkv_cuda.so in");
	check_refusal(NULL, KV_NOT_FOUND, "lib/clusterkv");
	check_refusal("tests/plugins/discrete", KV_INVALID, "absolute path");
	check_refusal("", KV_INVALID, "absolute path");
	check_refusal(KVT_PLUGINS "/bad_entry", KV_UNSUPPORTED, "has no kn_backend_entry");
	check_refusal(KVT_PLUGINS "/bad_library", KV_UNSUPPORTED, "kvt_a_function_that_nobody_has");
	check_refusal(KVT_PLUGINS "/bad_device", KV_UNSUPPORTED, "no device: driver 35");
	check_refusal(KVT_PLUGINS "/bad_abi", KV_UNSUPPORTED, "install both of one version");
	check_refusal(KVT_PLUGINS "/bad_name", KV_UNSUPPORTED, "is backend \"rocm\"");
	check_refusal(KVT_PLUGINS "/bad_table", KV_UNSUPPORTED, "lacks an operation");
}

static void copy_file(const char *from, const char *to)
{
	FILE *source = fopen(from, "rb"), *target = fopen(to, "wb");
	char bytes[4096];
	size_t count;

	assert_non_null(source);
	assert_non_null(target);
	while ((count = fread(bytes, 1, sizeof bytes, source)) > 0)
		assert_int_equal(fwrite(bytes, 1, count, target), count);
	fclose(source);
	assert_int_equal(fclose(target), 0);
}

static void what_others_could_write_is_refused(void **state)
{
	char folder[] = "/tmp/kv-plugin-XXXXXX", path[64];

	(void)state;
	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof path, "%s/libclusterkv_cuda.so", folder);
	copy_file(KVT_PLUGINS "/bad_device/libclusterkv_cuda.so", path);
	assert_int_equal(chmod(path, 0777), 0);
	check_refusal(folder, KV_REFUSED, "could be written by others");
	assert_int_equal(chmod(path, 0775), 0);
	check_refusal(folder, KV_REFUSED, "could be written by others");
	assert_int_equal(chmod(path, 0755), 0);
	check_refusal(folder, KV_UNSUPPORTED, "no device: driver 35");
	if (geteuid() == 0) {
		assert_int_equal(chown(path, 12345, 12345), 0);
		check_refusal(folder, KV_REFUSED, "could be written by others");
	}
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkdir(path, 0755), 0);
	check_refusal(folder, KV_REFUSED, "is not a file");
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_plugin_computes_on_memory_that_the_program_counts),
	    cmocka_unit_test(what_is_no_backend_is_refused),
	    cmocka_unit_test(what_others_could_write_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
