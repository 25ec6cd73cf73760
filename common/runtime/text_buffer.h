/* Text that grows up to a limit.
 *
 * The first append that fails (limit or memory) makes the buffer keep that status and ignore what
 * follows, so a renderer appends freely and its caller asks kv_text_status once at the end. The
 * text is always ended by a NUL. Not thread-safe.
 */
#ifndef KV_COMMON_RUNTIME_TEXT_BUFFER_H
#define KV_COMMON_RUNTIME_TEXT_BUFFER_H

#include "common/base/status.h"
#include "common/memory/allocator.h"

#include <stdarg.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kv_text_buffer {
	struct kv_allocator *allocator;
	char *data; /* NULL while nothing was appended; kv_text() never is */
	size_t length;
	size_t capacity;
	size_t limit;
	enum kv_status status;
};

/* `limit` in bytes of text without the NUL. Allocates nothing. */
void kv_text_init(struct kv_text_buffer *text, struct kv_allocator *allocator, size_t limit);
void kv_text_deinit(struct kv_text_buffer *text);

/* Empty it and clear the status, keeping the memory. */
void kv_text_reset(struct kv_text_buffer *text);

/* Leave the first `length` bytes; no effect when there are fewer. */
void kv_text_cut(struct kv_text_buffer *text, size_t length);

void kv_text_append(struct kv_text_buffer *text, const char *bytes, size_t size);
void kv_text_put(struct kv_text_buffer *text, const char *string);
void kv_text_repeat(struct kv_text_buffer *text, char byte, size_t count);
void kv_text_printf(struct kv_text_buffer *text, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
void kv_text_vprintf(struct kv_text_buffer *text, const char *format, va_list arguments);

/* `string` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD. */
void kv_text_put_json(struct kv_text_buffer *text, const char *string);

/* A number that JSON and Prometheus both read; the shortest of up to 17 digits that is exact. Not
 * finite: `null_text` ("null" for JSON, "NaN" for Prometheus). */
void kv_text_put_double(struct kv_text_buffer *text, double value, const char *null_text);

/* KV_OK, KV_LIMIT or KV_NO_MEMORY. */
enum kv_status kv_text_status(const struct kv_text_buffer *text);

/* The text so far, "" when there is none. Borrowed until the next append. */
const char *kv_text(const struct kv_text_buffer *text);

#ifdef __cplusplus
}
#endif
#endif
