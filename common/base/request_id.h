/* What a request goes by: in X-Request-Id, in the log, and in traces. */
#ifndef KV_COMMON_BASE_REQUEST_ID_H
#define KV_COMMON_BASE_REQUEST_ID_H

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KV_REQUEST_ID_BYTES = 65 };

/* It is written to logs, headers and lines of words, so it is plain: 1 to 64 visible ASCII
 * characters. Else KV_INVALID says what it must be. */
enum kv_status kv_request_id_check(const char *id);

/* A new one, "KIND-0123456789abcdef". `kind` has at most 16 characters. */
void kv_request_id_make(const char *kind, char id[KV_REQUEST_ID_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
