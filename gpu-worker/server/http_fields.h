/* Which fields a request may have. What is in no table is refused, and so is a field that is known
 * and would have to change the answer: a client never gets an answer that left its wish out. */
#ifndef GW_SERVER_HTTP_FIELDS_H
#define GW_SERVER_HTTP_FIELDS_H

#include <jansson.h>

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The objects that have fields. */
enum gw_field_place {
	GW_FIELDS_COMPLETION = 1,
	GW_FIELDS_CHAT = 2,
	GW_FIELDS_STREAM_OPTIONS = 4,
	GW_FIELDS_MESSAGE = 8,
	GW_FIELDS_PART = 16, /* of a message's content */
	GW_FIELDS_TOKENIZE = 32,
	GW_FIELDS_DETOKENIZE = 64
};

/* KV_OK when each field of `object` is supported at `place`, or changes nothing at the value that
 * it has (null never does). Else KV_INVALID names field, value, and what would be taken. Values of
 * supported fields are not looked at. `where` names the object in messages. */
enum kv_status gw_fields_check(const json_t *object, enum gw_field_place place, const char *where);
/* After that of a completion with `resume`: the sequence has its prompt, sampling and end already.
 * KV_INVALID names a field that would be left out of account; null and empty ones are none. */
enum kv_status gw_fields_check_resume(const json_t *object);

#ifdef __cplusplus
}
#endif
#endif
