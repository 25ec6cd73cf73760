#include "kernels/plugin_services.h"

#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 1024 };

static const struct kn_host_services *host;

void kn_plugin_services_set(const struct kn_host_services *services)
{
	host = services;
}

enum kv_status kv_fail_va(enum kv_status status, const char *format, va_list arguments)
{
	char text[TEXT_BYTES];

	vsnprintf(text, sizeof text, format, arguments);
	return host->fail(status, text);
}

enum kv_status kv_fail(enum kv_status status, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	status = kv_fail_va(status, format, arguments);
	va_end(arguments);
	return status;
}

void kv_log(enum kv_log_level level, const char *module, const char *format, ...)
{
	char text[TEXT_BYTES];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	host->log(level, module, text);
}

void *kv_alloc(struct kv_allocator *allocator, size_t size)
{
	return host->alloc(allocator, size);
}

void *kv_alloc_zero(struct kv_allocator *allocator, size_t size)
{
	void *block = host->alloc(allocator, size);

	if (block != NULL) memset(block, 0, size);
	return block;
}

void *kv_alloc_array(struct kv_allocator *allocator, size_t count, size_t size)
{
	if (size != 0 && count > SIZE_MAX / size) {
		kv_fail(KV_NO_MEMORY, "%zu elements of %zu bytes are more than there can be", count, size);
		return NULL;
	}
	return host->alloc(allocator, count * size);
}

void *kv_alloc_array_zero(struct kv_allocator *allocator, size_t count, size_t size)
{
	void *block = kv_alloc_array(allocator, count, size);

	if (block != NULL) memset(block, 0, count * size);
	return block;
}

void kv_free(struct kv_allocator *allocator, void *block)
{
	host->free(allocator, block);
}
