#include "common/runtime/text_buffer.h"

#include "common/base/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 256 };

void kv_text_init(struct kv_text_buffer *text, struct kv_allocator *allocator, size_t limit)
{
	memset(text, 0, sizeof *text);
	text->allocator = allocator;
	text->limit = limit < SIZE_MAX ? limit : SIZE_MAX - 1; /* one more for the NUL */
}

void kv_text_deinit(struct kv_text_buffer *text)
{
	kv_free(text->allocator, text->data);
	text->data = NULL;
	text->length = 0;
	text->capacity = 0;
}

void kv_text_reset(struct kv_text_buffer *text)
{
	text->length = 0;
	text->status = KV_OK;
	if (text->data) text->data[0] = '\0';
}

void kv_text_cut(struct kv_text_buffer *text, size_t length)
{
	if (length >= text->length) return;
	text->length = length;
	text->data[length] = '\0';
}

/* Make room for `more` bytes and the NUL; false sets the sticky status. */
static bool reserve(struct kv_text_buffer *text, size_t more)
{
	size_t needed;
	size_t capacity;
	char *grown;

	if (text->status != KV_OK) return false;
	if (more > text->limit - text->length) {
		text->status =
		    kv_fail(KV_LIMIT, "a text of more than %zu bytes was cut at its limit", text->limit);
		return false;
	}
	if (!kv_add_size(text->length + 1, more, &needed)) return false;
	if (needed <= text->capacity) return true;
	capacity = text->capacity ? text->capacity : FIRST_CAPACITY;
	while (capacity < needed)
		capacity = capacity > text->limit / 2 ? text->limit + 1 : capacity * 2;
	grown = kv_realloc(text->allocator, text->data, capacity);
	if (!grown) {
		text->status = KV_NO_MEMORY;
		return false;
	}
	text->data = grown;
	text->capacity = capacity;
	return true;
}

void kv_text_append(struct kv_text_buffer *text, const char *bytes, size_t size)
{
	if (size == 0 || !reserve(text, size)) return;
	memcpy(text->data + text->length, bytes, size);
	text->length += size;
	text->data[text->length] = '\0';
}

void kv_text_put(struct kv_text_buffer *text, const char *string)
{
	kv_text_append(text, string, strlen(string));
}

void kv_text_repeat(struct kv_text_buffer *text, char byte, size_t count)
{
	if (count == 0 || !reserve(text, count)) return;
	memset(text->data + text->length, byte, count);
	text->length += count;
	text->data[text->length] = '\0';
}

void kv_text_vprintf(struct kv_text_buffer *text, const char *format, va_list arguments)
{
	char local[256];
	va_list again;
	int length;

	va_copy(again, arguments);
	length = vsnprintf(local, sizeof local, format, arguments);
	if (length >= 0 && (size_t)length < sizeof local) {
		kv_text_append(text, local, (size_t)length);
	} else if (length >= 0 && reserve(text, (size_t)length)) {
		vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
		text->length += (size_t)length;
	}
	va_end(again);
}

void kv_text_printf(struct kv_text_buffer *text, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	kv_text_vprintf(text, format, arguments);
	va_end(arguments);
}

/* Length of the well-formed UTF-8 character at `bytes` (ended by a NUL), 0 when there is none. */
static size_t utf8_length(const unsigned char *bytes)
{
	size_t length = bytes[0] < 0x80   ? 1
	                : bytes[0] < 0xc2 ? 0
	                : bytes[0] < 0xe0 ? 2
	                : bytes[0] < 0xf0 ? 3
	                : bytes[0] < 0xf5 ? 4
	                                  : 0;

	for (size_t i = 1; i < length; i++) {
		if ((bytes[i] & 0xc0) != 0x80) return 0;
	}
	/* Overlong forms, surrogates, and what lies beyond U+10FFFF. */
	if (bytes[0] == 0xe0 && bytes[1] < 0xa0) return 0;
	if (bytes[0] == 0xed && bytes[1] > 0x9f) return 0;
	if (bytes[0] == 0xf0 && bytes[1] < 0x90) return 0;
	if (bytes[0] == 0xf4 && bytes[1] > 0x8f) return 0;
	return length;
}

static void put_json_ascii(struct kv_text_buffer *text, unsigned char byte)
{
	static const char escaped[] = "\"\\\b\f\n\r\t";
	static const char letters[] = "\"\\bfnrt";
	const char *found = strchr(escaped, byte);

	if (found) {
		kv_text_append(text, "\\", 1);
		kv_text_append(text, &letters[found - escaped], 1);
	} else if (byte < 0x20 || byte == 0x7f) {
		kv_text_printf(text, "\\u%04x", byte);
	} else {
		kv_text_append(text, (const char *)&byte, 1);
	}
}

void kv_text_put_json(struct kv_text_buffer *text, const char *string)
{
	const unsigned char *next = (const unsigned char *)string;

	kv_text_append(text, "\"", 1);
	while (*next) {
		size_t length = utf8_length(next);

		if (length == 1) {
			put_json_ascii(text, *next);
		} else if (length == 0) {
			kv_text_put(text, "\xef\xbf\xbd");
			length = 1;
		} else {
			kv_text_append(text, (const char *)next, length);
		}
		next += length;
	}
	kv_text_append(text, "\"", 1);
}

void kv_text_put_double(struct kv_text_buffer *text, double value, const char *null_text)
{
	char digits[40];

	if (!isfinite(value)) {
		kv_text_put(text, null_text);
		return;
	}
	/* Who counts does not want an exponent. */
	if (fabs(value) < 1e15 && trunc(value) == value) {
		snprintf(digits, sizeof digits, "%.0f", value);
		kv_text_put(text, digits);
		return;
	}
	for (int precision = 6; precision <= 17; precision++) {
		snprintf(digits, sizeof digits, "%.*g", precision, value);
		if (strtod(digits, NULL) == value) break;
	}
	kv_text_put(text, digits);
}

enum kv_status kv_text_status(const struct kv_text_buffer *text)
{
	return text->status;
}

const char *kv_text(const struct kv_text_buffer *text)
{
	return text->data ? text->data : "";
}
