/* The head of an HTTP request: pure, so that it can be fuzzed.
 *
 * Only what a scraper, curl or a browser sends is understood: GET or HEAD, HTTP/1.0 or 1.1, no
 * body. Anything else is refused, and each connection serves one request.
 */
#ifndef KVS_SERVER_HTTP_REQUEST_H
#define KVS_SERVER_HTTP_REQUEST_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { KVS_HTTP_MAX_HEAD = 4096, KVS_HTTP_MAX_PATH = 64 };

struct kvs_http_request {
	char path[KVS_HTTP_MAX_PATH]; /* without the query; as it came, nothing is decoded */
};

/* Do these first bytes of a connection (at least one) begin an HTTP request, or may they still? */
int kvs_http_begins(const char *bytes, size_t length);

/* Are they another method and the space behind it (2), may they still become one (1), or not (0)?
 */
int kvs_http_other_method(const char *bytes, size_t length);

/* Is it HEAD: an answer without its body? Of bytes for which the above is true. */
int kvs_http_is_head(const char *bytes);

/* 0: the head has not come whole; 200: it has, and `request` is set; else the status to refuse it
 * with: 400 (not a request), 414 (the path is too long), 431 (the head is), 505 (another version).
 */
int kvs_http_parse(const char *bytes, size_t length, struct kvs_http_request *request);

/* The reason that goes with a status. */
const char *kvs_http_reason(int status);

#ifdef __cplusplus
}
#endif
#endif
