/* The worker's own stats socket: a Unix socket on which a line is a question, as on the store's.
 *
 *     traces, traces json     the requests that run and the last that ended, the newest first
 *     trace ID, trace json ID where the time of one went; NOT_FOUND for any other
 *     help, quit
 *
 * What readers may cost is bounded: how many there are, the length of a line, and how long each
 * may stay.
 */
#ifndef GW_SERVER_STATS_SOCKET_H
#define GW_SERVER_STATS_SOCKET_H

#include "common/runtime/event_loop.h"
#include "gpu-worker/server/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gw_stats_socket;

/* The answer to one line, without its end; false when the connection is to be closed behind it. */
bool gw_stats_answer(const struct gw_traces *traces, const char *line, uint64_t now_ns,
    struct kv_text_buffer *out);

/* Listen at `path`; errors as of kv_unix_listen. All belongs to the loop's thread. */
enum kv_status gw_stats_socket_create(struct kv_allocator *allocator, struct kv_loop *loop,
    const char *path, const struct gw_traces *traces, struct gw_stats_socket **socket);
void gw_stats_socket_destroy(struct gw_stats_socket *socket); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
