/* Tokens to text as it is shown: whole UTF-8 characters only, and nothing past a stop string. */
#ifndef GW_TEXT_STREAM_DECODER_H
#define GW_TEXT_STREAM_DECODER_H

#include <stddef.h>

#include "common/base/status.h"
#include "common/memory/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GW_MAX_STOPS = 16, GW_MAX_STOP_BYTES = 256 };

struct gw_stream_decoder;

/* `stops`: up to GW_MAX_STOPS texts of at most GW_MAX_STOP_BYTES bytes, copied. `capacity`: most
 * bytes of the whole text, allocated now. */
enum kv_status gw_stream_decoder_create(struct kv_allocator *allocator, const char *const *stops,
    unsigned stop_count, size_t capacity, struct gw_stream_decoder **decoder);
void gw_stream_decoder_destroy(struct gw_stream_decoder *decoder);

/* Append a token's bytes. *stopped = 1 when a stop string is complete; the text then ends before
 * it. KV_LIMIT when the capacity is full. */
enum kv_status gw_stream_decoder_push(
    struct gw_stream_decoder *decoder, const char *bytes, size_t length, int *stopped);

/* What may be shown and was not yet: ends at a character boundary and before anything that may
 * still become a stop string. With `finish`, the rest too (a broken character at the end becomes
 * U+FFFD). Borrowed until the next call. */
const char *gw_stream_decoder_take(struct gw_stream_decoder *decoder, int finish, size_t *length);

/* The whole text shown so far, terminated. Borrowed. */
const char *gw_stream_decoder_text(const struct gw_stream_decoder *decoder, size_t *length);

#ifdef __cplusplus
}
#endif
#endif
