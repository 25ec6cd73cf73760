/* Strict readers of the numbers that people write: sizes, durations, integers, booleans.
 *
 * The whole text must be the value: no blanks, no trailing characters, nothing out of range. On
 * failure KV_INVALID, the output unchanged, and an error text that quotes the value and says which
 * form is allowed; the caller puts the option or field in front with kv_fail_prefix().
 */
#ifndef KV_COMMON_BASE_PARSE_H
#define KV_COMMON_BASE_PARSE_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Decimal, or hexadecimal after 0x. */
enum kv_status kv_parse_u64(const char *text, uint64_t *value);
enum kv_status kv_parse_i64(const char *text, int64_t *value);
enum kv_status kv_parse_u32(const char *text, uint32_t *value);

/* A finite decimal number such as 0.25, -3 or 1e-5, independent of the locale's decimal sign. */
enum kv_status kv_parse_double(const char *text, double *value);

/* yes no true false on off 1 0. */
enum kv_status kv_parse_bool(const char *text, bool *value);

/* Bytes: a number with at most three decimals and an optional unit. k M G T and KiB MiB GiB TiB are
 * powers of 1024; kB MB GB TB are powers of 1000; a bare number or B is bytes. 1.5GiB is allowed
 * where it comes to whole bytes. */
enum kv_status kv_parse_size(const char *text, uint64_t *bytes);

/* Milliseconds: a number with at most three decimals and a unit: us ms s min h d. 0 needs no unit.
 * A duration that is not a whole number of milliseconds is refused. */
enum kv_status kv_parse_duration_ms(const char *text, uint64_t *milliseconds);

/* The shortest exact text that the parsers above read back: "4GiB", "500ms", "3s". Both need
 * KV_PARSE_TEXT_SIZE bytes and return `text`. */
enum { KV_PARSE_TEXT_SIZE = 32 };
char *kv_format_size(uint64_t bytes, char *text);
char *kv_format_duration_ms(uint64_t milliseconds, char *text);

/* Lower-case hexadecimal. kv_hex_encode writes 2 * size digits and a NUL to `text`.
 * kv_hex_decode wants exactly 2 * size digits of either case. */
void kv_hex_encode(const void *bytes, size_t size, char *text);
enum kv_status kv_hex_decode(const char *text, void *bytes, size_t size);

#ifdef __cplusplus
}
#endif
#endif
