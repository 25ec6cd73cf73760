/* A body's JSON, bounded before it is parsed: a few bytes of JSON are a hundred in memory. */
#ifndef GW_SERVER_HTTP_JSON_H
#define GW_SERVER_HTTP_JSON_H

#include <jansson.h>

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GW_JSON_MAX_DEPTH = 32, GW_JSON_MORE_VALUES = 1 << 16 };

/* Parse a body that may have `most` values and names. KV_INVALID says where it is no JSON, or which
 * field has a number that none can hold. On success *value is a new reference. Thread-safe. */
enum kv_status gw_json_load(const char *body, size_t length, size_t most, json_t **value);

#ifdef __cplusplus
}
#endif
#endif
