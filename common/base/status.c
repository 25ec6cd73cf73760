#include "common/base/status.h"

#include <stdio.h>
#include <string.h>

enum { MESSAGE_SIZE = 1024 };

static _Thread_local char message[MESSAGE_SIZE];

const char *kv_status_text(enum kv_status status)
{
	switch (status) {
#define STATUS_CASE(name, value, text)                                         \
	case name:                                                                 \
		return text;
		KV_STATUS_MAP(STATUS_CASE)
#undef STATUS_CASE
	}
	return "unknown status";
}

enum kv_status kv_status_from_wire(uint32_t value)
{
	switch (value) {
#define WIRE_CASE(name, wire, text)                                            \
	case wire:                                                                 \
		return name;
		KV_STATUS_MAP(WIRE_CASE)
#undef WIRE_CASE
	default:
		return KV_INTERNAL;
	}
}

enum kv_status kv_fail_va(enum kv_status status, const char *format, va_list arguments)
{
	/* The arguments may point into the old message (a caller that wraps an inner error). */
	char next[MESSAGE_SIZE];

	vsnprintf(next, sizeof next, format, arguments);
	memcpy(message, next, sizeof message);
	return status;
}

enum kv_status kv_fail(enum kv_status status, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	kv_fail_va(status, format, arguments);
	va_end(arguments);
	return status;
}

enum kv_status kv_fail_prefix(enum kv_status status, const char *format, ...)
{
	char prefix[MESSAGE_SIZE / 2];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(prefix, sizeof prefix, format, arguments);
	va_end(arguments);
	return kv_fail(status, "%s: %s", prefix, message[0] ? message : kv_status_text(status));
}

const char *kv_error_message(void)
{
	return message;
}

void kv_error_clear(void)
{
	message[0] = '\0';
}
