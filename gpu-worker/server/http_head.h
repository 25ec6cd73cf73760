/* What a request's head must not be (RFC 9110, 9112). The daemon's parser is lenient where a proxy
 * in front of it may read the same bytes otherwise: then one of them takes for a body what the
 * other takes for a request. Whatever can be read in two ways is refused. */
#ifndef GW_SERVER_HTTP_HEAD_H
#define GW_SERVER_HTTP_HEAD_H

#include <microhttpd.h>
#include <stdbool.h>

#include "gpu-worker/server/http_completion.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GW_MAX_HEAD = 16 << 10, GW_MAX_HEAD_FIELDS = 100 };

/* Whether the daemon's own parser, told to be strict, refuses lines that do not end in CRLF and
 * fields that go on in the next line. Where it does not, gw_http_head_check does. */
bool gw_http_daemon_is_strict(void);

/* Parts of a request's first line, in the daemon's memory. The URL is that which came, and from
 * `url_end` on changed since. */
struct gw_http_line {
	const char *method, *url, *url_end, *version;
};

/* True when the request may be answered; else *error and *message (static) say why not. */
int gw_http_head_check(struct MHD_Connection *connection, const struct gw_http_line *line,
    struct gw_http_error *error, const char **message);

/* The path of a URL in absolute form ("http://host/path"), as proxies send it; any other as it is.
 */
const char *gw_http_path(const char *url);

#ifdef __cplusplus
}
#endif
#endif
