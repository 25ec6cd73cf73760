/* The two ways in which this folder looks at UTF-8: strictly, to show text, and loosely, to read
 * it. */
#ifndef GW_TEXT_UTF8_H
#define GW_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gw_utf8_kind {
	GW_UTF8_WHOLE, /* a valid character */
	GW_UTF8_PART,  /* the bytes so far could still become a character */
	GW_UTF8_BROKEN /* these bytes can never become one: they stand for one U+FFFD */
};

/* Look at the first character of bytes[length], length > 0. *used: how many bytes it takes (all of
 * them for GW_UTF8_PART). No surrogates, no overlong forms, nothing over U+10FFFF. A broken
 * sequence is cut as the Unicode standard recommends (maximal subparts). */
enum gw_utf8_kind gw_utf8_scan(const char *bytes, size_t length, size_t *used);

/* 1 when all of bytes[length] is valid UTF-8. */
int gw_utf8_valid(const char *bytes, size_t length);

/* Decode as llama.cpp reads text: only the shape of a sequence counts, so overlong forms and
 * surrogates pass. Returns the bytes used, 0 when there is no such sequence or it exceeds U+10FFFF.
 */
size_t gw_utf8_decode_loose(const char *bytes, size_t length, uint32_t *codepoint);

/* Encode a code point of at most U+10FFFF; returns 1 to 4, the bytes written to out[4]. */
size_t gw_utf8_encode(uint32_t codepoint, char *out);

#ifdef __cplusplus
}
#endif
#endif
