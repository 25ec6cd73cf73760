/* Status codes and the error text that goes with them.
 *
 * Every function that can fail returns enum kv_status. The function that first sees an error
 * describes it with kv_fail(): the thing, the value and the remedy, in one sentence. The text
 * belongs to the calling thread and lives until the next kv_fail() or kv_error_clear() of that
 * thread; whoever hands an error to a user prints kv_error_message(). Outputs of a failed call are
 * left unchanged.
 */
#ifndef KV_COMMON_BASE_STATUS_H
#define KV_COMMON_BASE_STATUS_H

#include <stdarg.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, wire value, text). Values cross the control socket: never renumber. */
#define KV_STATUS_MAP(X)                                                       \
	X(KV_OK, 0, "ok")                                                          \
	X(KV_INVALID, 1, "invalid argument")                                       \
	X(KV_NO_MEMORY, 2, "out of memory")                                        \
	X(KV_NOT_FOUND, 3, "not found")                                            \
	X(KV_EXISTS, 4, "already exists")                                          \
	X(KV_BUSY, 5, "busy")                                                      \
	X(KV_TIMEOUT, 6, "deadline passed")                                        \
	X(KV_IO, 7, "input/output error")                                          \
	X(KV_CORRUPT, 8, "corrupt data")                                           \
	X(KV_UNSUPPORTED, 9, "not supported")                                      \
	X(KV_LIMIT, 10, "limit reached")                                           \
	X(KV_PROTOCOL, 11, "protocol error")                                       \
	X(KV_REFUSED, 12, "refused")                                               \
	X(KV_STALE, 13, "lease or generation no longer holds")                     \
	X(KV_DISCONNECTED, 14, "store disconnected")                               \
	X(KV_CANCELLED, 15, "cancelled")                                           \
	X(KV_INTERNAL, 16, "internal error")                                       \
	X(KV_USAGE, 17, "wrong usage")                                             \
	X(KV_DRAINING, 18, "takes in nothing new")                                 \
	X(KV_TOO_LARGE, 19, "can never fit")

#define KV_STATUS_ENUM(name, value, text) name = value,
enum kv_status { KV_STATUS_MAP(KV_STATUS_ENUM) };
#undef KV_STATUS_ENUM

/* The text of a status; "unknown status" for a value outside the table. */
const char *kv_status_text(enum kv_status status);

/* The status of a wire value, KV_INTERNAL for a value outside the table. */
enum kv_status kv_status_from_wire(uint32_t value);

/* Record the error text of this thread and return `status`. */
enum kv_status kv_fail(enum kv_status status, const char *format, ...)
#if defined(__GNUC__)
	__attribute__((format(printf, 2, 3)))
#endif
	;
enum kv_status kv_fail_va(enum kv_status status, const char *format, va_list arguments);

/* Put "prefix: " before this thread's error text, to say where an inner failure mattered. */
enum kv_status kv_fail_prefix(enum kv_status status, const char *format, ...)
#if defined(__GNUC__)
	__attribute__((format(printf, 2, 3)))
#endif
	;

/* This thread's last error text, "" when there is none. Borrowed until the next kv_fail. */
const char *kv_error_message(void);
void kv_error_clear(void);

/* Return from the enclosing function when `expression` is not KV_OK. */
#define KV_TRY(expression)                                                     \
	do {                                                                       \
		enum kv_status kv_try_status = (expression);                           \
		if (kv_try_status != KV_OK) return kv_try_status;                      \
	} while (0)

/* Set `status` (a variable of the caller) and go to `label` when `expression` is not KV_OK. */
#define KV_TRY_GOTO(status, expression, label)                                 \
	do {                                                                       \
		(status) = (expression);                                               \
		if ((status) != KV_OK) goto label;                                     \
	} while (0)

#ifdef __cplusplus
}
#endif
#endif
